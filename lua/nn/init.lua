--- neap.nn: modules, layers, losses, initialisation.
local neap = require "neap"
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

--- Functions that are useful beside layers are the ops themselves: nn.relu is neap.relu.
return setmetatable(nn, {
  __index = function(_, name)
    local op = neap.ops and neap.ops[name]
    return op and neap[name] or nil
  end,
})
