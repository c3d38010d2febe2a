--- RMSprop: the gradient over the root of its running mean square (Tieleman and Hinton, 2012).
-- g = grad + weight_decay p;  s = alpha s + (1 - alpha) g^2;  d = g / (sqrt(s) + eps), centered: s less the square of
-- the running mean of g;  momentum: b = momentum b + d, d = b;  p -= lr d.
local neap = require "neap"
local Optimizer = require "neap.optim.optimizer"

--- optim.RMSprop(params, {lr = 0.01, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false})
-- params: model:parameters(), or a list of groups {params = list, lr = ...} with settings of their own. lr: a number or
-- a function of the step. alpha: how much of the running means stays each step.
return {
  RMSprop = Optimizer.class {
    name = "RMSprop", options = { "lr", "alpha", "eps", "weight_decay", "momentum", "centered" },
    tensors = { "square", "buffer", "mean" },
    defaults = { lr = 0.01, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false },
    check = function(who, group)
      Optimizer.range(who, group, "alpha", 0, 1)
      Optimizer.range(who, group, "eps", 0, math.huge)
      Optimizer.range(who, group, "weight_decay", 0, math.huge)
      Optimizer.range(who, group, "momentum", 0, math.huge)
    end,
    new_state = function(p) return { square = Optimizer.buffer(p) } end,
    update = function(group, lr, _, params, states)
      neap.rmsprop_step({
        lr = lr, alpha = group.alpha, eps = group.eps, weight_decay = group.weight_decay, momentum = group.momentum,
      }, params, Optimizer.buffers("square", params, states),
        group.momentum ~= 0 and Optimizer.buffers("buffer", params, states) or nil,
        group.centered and Optimizer.buffers("mean", params, states) or nil)
    end,
  },
}
