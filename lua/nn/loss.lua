--- Losses, as functions of (input, target, options) and as thin modules that hold the options.
-- All take reduction = "mean" (default), "sum" or "none".
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local losses = {}

local reductions = { none = 0, mean = 1, sum = 2 }
local class_options = { "ignore_index", "reduction", "base" }

local function reduction(who, options)
  local name = options.reduction
  if name == nil then return "mean" end
  if not reductions[name] then
    util.fail("E-ARG", '%s: reduction must be "mean", "sum" or "none", got %s', who, util.kind(name))
  end
  return name
end

-- A loss over classes: the op takes the reduction as a number.
local function over_classes(name)
  local who, op = "nn." .. name, neap[name]
  losses[name] = function(input, classes, options)
    if options == nil then return op(input, classes) end
    options = util.options(who, options, class_options)
    return op(input, classes, {
      ignore_index = options.ignore_index, base = options.base, reduction = reductions[reduction(who, options)],
    })
  end
end

--- nn.cross_entropy(logits, classes, {ignore_index = nil, reduction = "mean", base = 1})
-- -log softmax(logits)[class]. logits: (N, C), (N, C, ...) or (C); classes: the same without C, int64 from 1 to C (from
-- 0 with base = 0). reduction: "mean" over the rows that count, "sum", or "none" for one loss a row. Rows whose class
-- is ignore_index do not count.
over_classes("cross_entropy")

--- nn.nll_loss(log_probabilities, classes, {ignore_index = nil, reduction = "mean", base = 1})
-- -log_probabilities[class]; shapes and options as in nn.cross_entropy.
over_classes("nll_loss")

-- A loss out of one value per element. Shapes must be equal: broadcasting here is a mistake more often than a wish.
local function elementwise(name, value)
  local who = "nn." .. name
  losses[name] = function(input, target, options)
    options = util.options(who, options, { "reduction" })
    local how = reduction(who, options)
    for i, t in ipairs({ input, target }) do
      if not neap.is_tensor(t) then
        util.fail("E-ARG", "%s: argument %d must be a tensor, got %s", who, i, util.kind(t))
      end
    end
    if input.shape ~= target.shape then
      util.fail("E-SHAPE", "%s: input %s and target %s must have the same shape; x:reshape(...) or x:unsqueeze(dim) "
        .. "makes them equal", who, tostring(input.shape), tostring(target.shape))
    end
    local each = value(input, target)
    if how == "none" then return each end
    return how == "sum" and each:sum() or each:mean()
  end
end

--- nn.mse_loss(input, target, {reduction = "mean"}): (input - target)^2.
elementwise("mse_loss", function(input, target) return (input - target):square() end)

--- nn.l1_loss(input, target, {reduction = "mean"}): |input - target|.
elementwise("l1_loss", function(input, target) return (input - target):abs() end)

--- nn.binary_cross_entropy_with_logits(logits, target, {reduction = "mean"})
-- -(t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))) = softplus(x) - x t.
elementwise("binary_cross_entropy_with_logits", function(x, target) return x:softplus() - x * target end)

local function as_module(class_name, name, options)
  local class = module.Module(class_name)
  losses[class_name] = class
  function class:init(given)
    given = util.options("nn." .. class_name, given, options)
    reduction("nn." .. class_name, given)
    local kept = {}
    for key, value in pairs(given) do kept[key] = value end
    self.options = kept
  end
  function class:forward(input, target) return losses[name](input, target, self.options) end
end

as_module("CrossEntropyLoss", "cross_entropy", class_options)
as_module("NLLLoss", "nll_loss", class_options)
as_module("MSELoss", "mse_loss", { "reduction" })
as_module("L1Loss", "l1_loss", { "reduction" })
as_module("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", { "reduction" })

return losses
