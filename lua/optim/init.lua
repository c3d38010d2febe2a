--- neap.optim: optimizers, learning rate schedules, gradient clipping.
local neap = require "neap"
local util = require "neap.util"

local optim = {
  AdamW = require("neap.optim.adamw").AdamW,
  Adam = require("neap.optim.adamw").Adam,
  SGD = require("neap.optim.sgd").SGD,
  schedule = require "neap.optim.schedule",
}

--- Scales the gradients so that their joint 2-norm is at most max_norm. Returns the norm before, a number.
-- Parameters without a gradient are skipped.
function optim.clip_grad_norm_(params, max_norm)
  if type(params) ~= "table" then
    util.fail("E-ARG", "optim.clip_grad_norm_: needs a list of parameters, got %s; model:parameters() makes one",
      util.kind(params))
  end
  util.number("optim.clip_grad_norm_", "the norm", max_norm)
  return neap.clip_grad_norm(params, max_norm)
end

return util.part("optim", optim)
