--- Adagrad: every element has a rate of its own that falls with its gradients (Duchi, Hazan and Singer, 2011).
-- g = grad + weight_decay p;  s = s + g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps).
local neap = require "neap"
local Optimizer = require "neap.optim.optimizer"

--- optim.Adagrad(params, {lr = 0.01, lr_decay = 0, eps = 1e-10, weight_decay = 0})
-- params: model:parameters(), or a list of groups {params = list, lr = ...} with settings of their own. lr: a number or
-- a function of the step.
return {
  Adagrad = Optimizer.class {
    name = "Adagrad", options = { "lr", "lr_decay", "eps", "weight_decay" }, tensors = { "sum" },
    defaults = { lr = 0.01, lr_decay = 0, eps = 1e-10, weight_decay = 0 },
    check = function(who, group)
      Optimizer.range(who, group, "lr_decay", 0, math.huge)
      Optimizer.range(who, group, "eps", 0, math.huge)
      Optimizer.range(who, group, "weight_decay", 0, math.huge)
    end,
    new_state = function(p) return { sum = Optimizer.buffer(p) } end,
    update = function(group, lr, step, params, states)
      neap.adagrad_step({
        lr = lr, lr_decay = group.lr_decay, eps = group.eps, weight_decay = group.weight_decay, step = step,
      }, params, Optimizer.buffers("sum", params, states))
    end,
  },
}
