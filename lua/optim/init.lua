--- neap.optim: optimizers, learning rate schedules, gradient clipping.
local neap = require "neap"
local util = require "neap.util"

local optim = {
  AdamW = require("neap.optim.adamw").AdamW,
  Adam = require("neap.optim.adamw").Adam,
  SGD = require("neap.optim.sgd").SGD,
  RMSprop = require("neap.optim.rmsprop").RMSprop,
  Adagrad = require("neap.optim.adagrad").Adagrad,
  LBFGS = require("neap.optim.lbfgs").LBFGS,
  schedule = require "neap.optim.schedule",
}

-- A module or a state_dict has no elements by position: nothing would be clipped.
local function check_list(who, params)
  local got = util.kind(params)
  if type(params) ~= "table" or got == "a module" then
    util.fail("E-ARG", "%s: needs a list of parameters, got %s; model:parameters() makes one", who, got)
  end
  local name = util.stray_name(params)
  if name then
    util.fail("E-ARG", "%s: needs a list of parameters, got a table with the name '%s'; model:parameters() makes one",
      who, name)
  end
end

--- Scales the gradients so that their joint 2-norm is at most max_norm. Returns the norm before, a number.
-- Parameters without a gradient are skipped. A norm that is not finite is an error that names the first such gradient,
-- and leaves all of them as they were; with {error_if_nonfinite = false} it is only returned.
function optim.clip_grad_norm_(params, max_norm, options)
  check_list("optim.clip_grad_norm_", params)
  util.number("optim.clip_grad_norm_", "the norm", max_norm)
  return neap.clip_grad_norm(params, max_norm, util.options("optim.clip_grad_norm_", options, { "error_if_nonfinite" }))
end

--- Clamps every element of the gradients to [-max, max]. Parameters without a gradient are skipped.
function optim.clip_grad_value_(params, max)
  check_list("optim.clip_grad_value_", params)
  util.number("optim.clip_grad_value_", "the bound", max)
  neap.clip_grad_value(params, max)
end

return util.part("optim", optim)
