--- Losses, as functions of (input, target, options) and as thin modules that hold the options.
-- All take reduction = "mean" (default), "sum" or "none".
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local losses = {}

local reductions = { none = 0, mean = 1, sum = 2 }
local weighted_options = { "ignore_index", "reduction", "base", "weight", "label_smoothing" }

local function reduction(who, options)
  local name = options.reduction
  if name == nil then return "mean" end
  if not reductions[name] then
    util.fail("E-ARG", '%s: reduction must be "mean", "sum" or "none", got %s', who, util.kind(name))
  end
  return name
end

local function check_tensor(who, what, t)
  if not neap.is_tensor(t) then util.fail("E-ARG", "%s: %s must be a tensor, got %s", who, what, util.kind(t)) end
  return t
end

-- A loss over classes by its fused op, which takes the reduction as a number.
local function fused(name, who, input, classes, options)
  return neap[name](input, classes, {
    ignore_index = options.ignore_index, base = options.base, reduction = reductions[reduction(who, options)],
  })
end

-- The mean divides by the weights of the rows that count, or gives 0 where none does.
local function reduce_rows(how, rows, weights)
  if how == "none" then return rows end
  if how == "sum" then return rows:sum() end
  local total = weights:sum()
  return rows:sum() / neap.where(total:eq(0), neap.ones_like(total), total)
end

local function check_weight(who, weight, input, dim)
  check_tensor(who, "weight", weight)
  if weight.ndim ~= 1 or weight:size(1) ~= input:size(dim) then
    util.fail("E-SHAPE", "%s: weight must hold one number for each of the %d classes, got %s", who, input:size(dim),
      tostring(weight.shape))
  end
end

-- -sum over c of weight_c target_c log_p_c for classes in place of a distribution: rows, and the weight of each row.
local function picked(log_p, classes, dim, options)
  local base = options.base or 1
  local counts
  if options.ignore_index ~= nil then counts = classes:ne(options.ignore_index) end
  local index = classes + (1 - base)
  if counts then index = neap.where(counts, index, neap.ones_like(index)) end
  local weights
  if options.weight then
    weights = options.weight:index_select(1, index:reshape(-1)):reshape(classes.shape)
  else
    weights = neap.ones(classes.shape, { dtype = log_p.dtype, device = log_p.device })
  end
  if counts then weights = weights * counts:to(weights.dtype) end
  local rows = -log_p:gather(dim, index:unsqueeze(dim)):squeeze(dim) * weights
  return rows, weights, counts
end

-- Weighted, smoothed, or against distributions: by log_softmax.
local function composed(who, input, target, options)
  local how, smoothing = reduction(who, options), options.label_smoothing or 0
  if type(smoothing) ~= "number" or smoothing < 0 or smoothing > 1 then
    util.fail("E-ARG", "%s: label_smoothing must be from 0 to 1, got %s", who, util.kind(smoothing))
  end
  local dim = input.ndim == 1 and 1 or 2
  local classes = input:size(dim)
  local shape = {}
  for d = 1, input.ndim do shape[d] = d == dim and classes or 1 end
  local log_p, weight = input:log_softmax(dim), options.weight
  if weight then check_weight(who, weight, input, dim) end
  local wide = weight and weight:reshape(shape)
  if target:is_floating_point() then
    if target.shape ~= input.shape then
      util.fail("E-SHAPE", "%s: a target of floats is a distribution, of the shape of the input, %s, got %s; class "
        .. "labels are integers: target:to(\"int64\")", who, tostring(input.shape), tostring(target.shape))
    end
    if smoothing > 0 then target = target * (1 - smoothing) + smoothing / classes end
    local rows = -((wide and log_p * wide or log_p) * target):sum(dim)
    return how == "none" and rows or how == "sum" and rows:sum() or rows:sum() / math.max(1, rows:numel())
  end
  local rows, weights, counts = picked(log_p, target, dim, options)
  if smoothing > 0 then
    local smooth = -(wide and log_p * wide or log_p):sum(dim)
    if counts then smooth = smooth * counts:to(smooth.dtype) end
    rows = rows * (1 - smoothing) + smooth * (smoothing / classes)
  end
  return reduce_rows(how, rows, weights)
end

--- nn.cross_entropy(logits, classes, {weight =, reduction = "mean", ignore_index =, label_smoothing = 0, base = 1})
-- -log softmax(logits)[class]. logits: (N, C), (N, C, ...) or (C); classes: the same without C, int64 from 1 to C (from
-- 0 with base = 0), or a distribution over the classes of the shape of logits. reduction: "mean" over the rows that
-- count, "sum", or "none" for one loss a row. Rows whose class is ignore_index do not count; where none counts the mean
-- is 0. weight = tensor (C): the weight of each class, which the mean divides by; label_smoothing = 0: the part of the
-- target that is spread over all classes (Szegedy and others, 2016).
function losses.cross_entropy(input, target, options)
  local who = "nn.cross_entropy"
  options = util.options(who, options, weighted_options)
  check_tensor(who, "argument 1", input)
  check_tensor(who, "argument 2", target)
  if options.weight or options.label_smoothing or target:is_floating_point() then
    return composed(who, input, target, options)
  end
  return fused("cross_entropy", who, input, target, options)
end

--- nn.nll_loss(log_probabilities, classes, {ignore_index = nil, reduction = "mean", base = 1})
-- -log_probabilities[class]; shapes and options as in nn.cross_entropy, weight among them.
function losses.nll_loss(input, classes, options)
  local who = "nn.nll_loss"
  options = util.options(who, options, { "ignore_index", "reduction", "base", "weight" })
  check_tensor(who, "argument 1", input)
  check_tensor(who, "argument 2", classes)
  if not options.weight then return fused("nll_loss", who, input, classes, options) end
  local dim = input.ndim == 1 and 1 or 2
  check_weight(who, options.weight, input, dim)
  local rows, weights = picked(input, classes, dim, options)
  return reduce_rows(reduction(who, options), rows, weights)
end

local function reduce(how, each)
  if how == "none" then return each end
  return how == "sum" and each:sum() or each:mean()
end

-- Broadcasting here is a mistake more often than a wish.
local function check_shapes(who, input, target)
  check_tensor(who, "argument 1", input)
  check_tensor(who, "argument 2", target)
  if input.shape ~= target.shape then
    util.fail("E-SHAPE", "%s: input %s and target %s must have the same shape; x:reshape(...) or x:unsqueeze(dim) "
      .. "makes them equal", who, tostring(input.shape), tostring(target.shape))
  end
end

-- A loss out of one value per element: value(input, target, options).
local function elementwise(name, value, known)
  local who = "nn." .. name
  known = table.move(known or {}, 1, #(known or {}), 2, { "reduction" })
  losses[name] = function(input, target, options)
    options = util.options(who, options, known)
    local how = reduction(who, options)
    check_shapes(who, input, target)
    return reduce(how, value(input, target, options, who))
  end
end

--- nn.mse_loss(input, target, {reduction = "mean"}): (input - target)^2.
elementwise("mse_loss", function(input, target) return (input - target):square() end)

--- nn.l1_loss(input, target, {reduction = "mean"}): |input - target|.
elementwise("l1_loss", function(input, target) return (input - target):abs() end)

local function positive(who, name, value, default)
  if value == nil then return default end
  if type(value) ~= "number" or value <= 0 or value ~= value then
    util.fail("E-ARG", "%s: %s must be a number above 0, got %s", who, name, util.kind(value))
  end
  return value
end

--- nn.smooth_l1_loss(input, target, {beta = 1, reduction = "mean"})
-- With d = |input - target|: d^2 / (2 beta) below beta, else d - beta / 2 (Girshick, 2015); beta = 0 is l1_loss.
elementwise("smooth_l1_loss", function(input, target, options, who)
  local d = (input - target):abs()
  if options.beta == 0 then return d end
  local beta = positive(who, "beta", options.beta, 1)
  return neap.where(d:lt(beta), d:square() * (0.5 / beta), d - 0.5 * beta)
end, { "beta" })

--- nn.huber_loss(input, target, {delta = 1, reduction = "mean"})
-- With d = |input - target|: d^2 / 2 up to delta, else delta (d - delta / 2) (Huber, 1964).
elementwise("huber_loss", function(input, target, options, who)
  local delta = positive(who, "delta", options.delta, 1)
  local d = (input - target):abs()
  if delta == math.huge then return d:square() * 0.5 end
  return neap.where(d:le(delta), d:square() * 0.5, (d - 0.5 * delta) * delta)
end, { "delta" })

--- nn.binary_cross_entropy(probabilities, target, {weight = nil, reduction = "mean"})
-- -weight (t log p + (1 - t) log(1 - p)); the logarithms are at least -100. p from 0 to 1; with logits
-- nn.binary_cross_entropy_with_logits is exact where this one is not.
elementwise("binary_cross_entropy", function(p, target, options)
  local each = -(target * p:log():clamp { min = -100 } + (1 - target) * (1 - p):log():clamp { min = -100 })
  return options.weight and each * options.weight or each
end, { "weight" })

--- nn.binary_cross_entropy_with_logits(logits, target, {weight = nil, pos_weight = nil, reduction = "mean"})
-- -weight (pos_weight t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))), by softplus, so that no logit is too large.
-- weight, pos_weight: numbers or tensors that broadcast.
elementwise("binary_cross_entropy_with_logits", function(x, target, options)
  local each
  if options.pos_weight then
    each = (1 - target) * x + ((options.pos_weight - 1) * target + 1) * (-x):softplus()
  else
    each = x:softplus() - x * target
  end
  return options.weight and each * options.weight or each
end, { "weight", "pos_weight" })

--- nn.kl_div(log_probabilities, target, {log_target = false, reduction = "mean"})
-- target (log target - log_probabilities), 0 where target is 0; log_target: the target holds logarithms. reduction =
-- "batchmean" divides the sum by the size of the first dimension, which is the divergence's own mean.
function losses.kl_div(input, target, options)
  local who = "nn.kl_div"
  options = util.options(who, options, { "reduction", "log_target" })
  local batch = options.reduction == "batchmean"
  local how = batch and "sum" or reduction(who, options)
  check_shapes(who, input, target)
  local each
  if options.log_target then
    each = target:exp() * (target - input)
  else
    local none = target:eq(0)
    each = target * (neap.where(none, neap.ones_like(target), target):log() - input)
  end
  each = reduce(how, each)
  return batch and input.ndim > 0 and each / input:size(1) or each
end

--- nn.gaussian_nll_loss(input, target, var, {full = false, eps = 1e-6, reduction = "mean"})
-- (log v + (input - target)^2 / v) / 2 with v = max(var, eps); full adds log(2 pi) / 2 (Nix and Weigend, 1994). var:
-- the variance, a tensor that broadcasts against input, nowhere below 0; its gradient is that of v, below eps, too.
function losses.gaussian_nll_loss(input, target, var, options)
  local who = "nn.gaussian_nll_loss"
  options = util.options(who, options, { "reduction", "full", "eps" })
  local how = reduction(who, options)
  check_shapes(who, input, target)
  check_tensor(who, "argument 3", var)
  if var:numel() > 0 and var:min():item() < 0 then
    util.fail("E-ARG", "%s: a variance is below 0: %g", who, var:min():item())
  end
  -- Changed in place and unrecorded: where eps stands for a smaller variance, its gradient still moves that one.
  var = var:clone()
  neap.no_grad(var.clamp_, var, { min = positive(who, "eps", options.eps, 1e-6) })
  local each = (var:log() + (input - target):square() / var) * 0.5
  if options.full then each = each + 0.5 * math.log(2 * math.pi) end
  return reduce(how, each)
end

-- A module that holds the options of a loss; batchmean is kl_div's alone.
local function as_module(class_name, name, options)
  local class = module.Module(class_name)
  losses[class_name] = class
  function class:init(given)
    given = util.options("nn." .. class_name, given, options)
    if not (name == "kl_div" and given.reduction == "batchmean") then reduction("nn." .. class_name, given) end
    local kept = {}
    for key, value in pairs(given) do kept[key] = value end
    self.options = kept
  end
  function class:forward(input, target) return losses[name](input, target, self.options) end
  return class
end

as_module("CrossEntropyLoss", "cross_entropy", weighted_options)
as_module("NLLLoss", "nll_loss", { "ignore_index", "reduction", "base", "weight" })
as_module("MSELoss", "mse_loss", { "reduction" })
as_module("L1Loss", "l1_loss", { "reduction" })
as_module("SmoothL1Loss", "smooth_l1_loss", { "reduction", "beta" })
as_module("HuberLoss", "huber_loss", { "reduction", "delta" })
as_module("BCELoss", "binary_cross_entropy", { "reduction", "weight" })
as_module("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", { "reduction", "weight", "pos_weight" })
as_module("KLDivLoss", "kl_div", { "reduction", "log_target" })
local GaussianNLLLoss = as_module("GaussianNLLLoss", "gaussian_nll_loss", { "reduction", "full", "eps" })
function GaussianNLLLoss:forward(input, target, var)
  return losses.gaussian_nll_loss(input, target, var, self.options)
end

return losses
