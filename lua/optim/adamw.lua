--- Adam and AdamW.
-- m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
-- AdamW (Loshchilov and Hutter, 2019) shrinks p by lr * weight_decay first; Adam adds weight_decay * p to g.
-- amsgrad (Reddi and others, 2018) puts the largest v so far in the place of v.
local neap = require "neap"
local Optimizer = require "neap.optim.optimizer"

local options = { "lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad" }

local function check(who, group)
  Optimizer.range(who, group, "beta1", 0, 1)
  Optimizer.range(who, group, "beta2", 0, 1)
  Optimizer.range(who, group, "eps", 0, math.huge)
  Optimizer.range(who, group, "weight_decay", 0, math.huge)
end

local function new_state(p) return { m = Optimizer.buffer(p), v = Optimizer.buffer(p) } end

local function adam(name, weight_decay, decoupled)
  return Optimizer.class {
    name = name, options = options, tensors = { "m", "v", "v_max" }, check = check, new_state = new_state,
    defaults = { lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = weight_decay,
      amsgrad = false },
    update = function(group, lr, step, params, states)
      neap.adamw_step({
        lr = lr, beta1 = group.beta1, beta2 = group.beta2, eps = group.eps, weight_decay = group.weight_decay,
        step = step, decoupled = decoupled,
      }, params, Optimizer.buffers("m", params, states), Optimizer.buffers("v", params, states),
        group.amsgrad and Optimizer.buffers("v_max", params, states) or nil)
    end,
  }
end

--- optim.AdamW(params, {lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01, amsgrad = false})
-- params: model:parameters(), or a list of groups {params = list, lr = ...} with settings of their own. lr: a number or
-- a function of the step. beta1, beta2: how much of the running means of g and g^2 stays each step (PyTorch's betas);
-- eps: keeps the division finite; weight_decay: how much p shrinks.
--- optim.Adam(params, {lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, amsgrad = false})
-- Settings as in optim.AdamW.
return { AdamW = adam("AdamW", 0.01, true), Adam = adam("Adam", 0, false) }
