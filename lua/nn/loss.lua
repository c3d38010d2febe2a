--- Losses: the functions are the ops of the same names; the modules hold the options.
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local losses = {}

local function loss(name, op, options)
  local fn = neap[op]
  losses[op] = fn
  local class = module.Module(name)
  losses[name] = class
  function class:init(given)
    given = util.options("nn." .. name, given, options)
    local kept = {}
    for key, value in pairs(given) do kept[key] = value end
    self.options = kept
  end
  function class:forward(input, target) return fn(input, target, self.options) end
end

loss("CrossEntropyLoss", "cross_entropy", { "ignore_index", "reduction", "base" })
loss("NLLLoss", "nll_loss", { "ignore_index", "reduction", "base" })
loss("MSELoss", "mse_loss", { "reduction" })
loss("L1Loss", "l1_loss", { "reduction" })
loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", { "reduction" })

return losses
