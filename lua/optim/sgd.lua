--- Stochastic gradient descent with momentum.
-- g = grad + weight_decay p;  b = momentum b + (1 - dampening) g (b = g at first);
-- p -= lr * b, or with nesterov p -= lr * (g + momentum b).
local neap = require "neap"
local util = require "neap.util"
local Optimizer = require "neap.optim.optimizer"

--- optim.SGD(params, {lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false})
-- params: model:parameters(), or a list of groups {params = list, lr = ...} with settings of their own. lr: a number or
-- a function of the step.
return {
  SGD = Optimizer.class {
    name = "SGD", options = { "lr", "momentum", "dampening", "weight_decay", "nesterov" }, tensors = { "buffer" },
    defaults = { lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false },
    check = function(who, group)
      Optimizer.range(who, group, "momentum", 0, math.huge)
      Optimizer.range(who, group, "dampening", -math.huge, math.huge)
      Optimizer.range(who, group, "weight_decay", 0, math.huge)
      if group.nesterov and (group.momentum == 0 or group.dampening ~= 0) then
        util.fail("E-ARG", "%s: nesterov needs momentum above 0 and dampening 0", who)
      end
    end,
    new_state = function(p, group) return { buffer = group.momentum ~= 0 and Optimizer.buffer(p) or nil } end,
    update = function(group, lr, step, params, states)
      local buffers = group.momentum ~= 0 and Optimizer.buffers("buffer", params, states) or nil
      neap.sgd_step({
        lr = lr, momentum = group.momentum, dampening = group.dampening, weight_decay = group.weight_decay,
        nesterov = group.nesterov, first = step == 1,
      }, params, buffers)
    end,
  },
}
