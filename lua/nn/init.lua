--- neap.nn: modules, layers, losses, initialisation.
local util = require "neap.util"
local module = require "neap.nn.module"

local nn = {
  Module = module.Module,
  Parameter = module.Parameter,
  Buffer = module.Buffer,
  is_module = module.is_module,
  init = require "neap.nn.init_functions",
}

for _, file in ipairs({ "linear", "activation", "dropout", "norm", "container", "embedding", "loss" }) do
  for name, value in pairs(require("neap.nn." .. file)) do nn[name] = value end
end

return util.part("nn", nn)
