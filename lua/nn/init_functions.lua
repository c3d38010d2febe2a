--- Initialisation: functions that fill a tensor in place and return it. All of them draw from Neap's generators
-- (option `generator`, else the default one), so that neap.seed decides every value.
local neap = require "neap"
local util = require "neap.util"

local init = {}

local function check(who, t)
  if not neap.is_tensor(t) then util.fail("E-ARG", "%s: needs a tensor, got %s", who, util.kind(t)) end
end

-- Inputs and outputs of one unit: weight is (out, in, ...).
local function fans(who, t)
  if t.ndim < 2 then
    util.fail("E-SHAPE", "%s: needs a weight of at least 2 dimensions, got %s", who, tostring(t.shape))
  end
  local field = 1
  for d = 3, t.ndim do field = field * t:size(d) end
  return t:size(2) * field, t:size(1) * field
end

local function uniform(t, low, high, generator)
  return neap.no_grad(t.uniform_, t, low, high, { generator = generator })
end

local function normal(t, mean, std, generator)
  return neap.no_grad(t.normal_, t, mean, std, { generator = generator })
end

--- Uniform in [low, high); options low = 0, high = 1, generator.
function init.uniform_(t, options)
  check("nn.init.uniform_", t)
  options = util.options("nn.init.uniform_", options, { "low", "high", "generator" })
  return uniform(t, options.low or 0, options.high or 1, options.generator)
end

--- Normal; options mean = 0, std = 1, generator.
function init.normal_(t, options)
  check("nn.init.normal_", t)
  options = util.options("nn.init.normal_", options, { "mean", "std", "generator" })
  return normal(t, options.mean or 0, options.std or 1, options.generator)
end

--- Every element the same number.
function init.constant_(t, value)
  check("nn.init.constant_", t)
  util.number("nn.init.constant_", "the value", value)
  return neap.no_grad(t.fill_, t, value)
end

function init.zeros_(t) return init.constant_(t, 0) end
function init.ones_(t) return init.constant_(t, 1) end

--- Uniform with variance 2 / (in + out): bound gain * sqrt(6 / (in + out)). Glorot and Bengio, 2010.
function init.xavier_uniform_(t, options)
  options = util.options("nn.init.xavier_uniform_", options, { "gain", "generator" })
  local fan_in, fan_out = fans("nn.init.xavier_uniform_", t)
  local bound = (options.gain or 1) * math.sqrt(6 / (fan_in + fan_out))
  return uniform(t, -bound, bound, options.generator)
end

--- Normal with std gain * sqrt(2 / (in + out)).
function init.xavier_normal_(t, options)
  options = util.options("nn.init.xavier_normal_", options, { "gain", "generator" })
  local fan_in, fan_out = fans("nn.init.xavier_normal_", t)
  return normal(t, 0, (options.gain or 1) * math.sqrt(2 / (fan_in + fan_out)), options.generator)
end

--- Uniform for layers before a rectifier: bound gain * sqrt(3 / in). He and others, 2015. gain = sqrt(2).
function init.kaiming_uniform_(t, options)
  options = util.options("nn.init.kaiming_uniform_", options, { "gain", "generator" })
  local bound = (options.gain or math.sqrt(2)) * math.sqrt(3 / (fans("nn.init.kaiming_uniform_", t)))
  return uniform(t, -bound, bound, options.generator)
end

--- Normal for layers before a rectifier: std gain / sqrt(in). gain = sqrt(2).
function init.kaiming_normal_(t, options)
  options = util.options("nn.init.kaiming_normal_", options, { "gain", "generator" })
  local fan_in = fans("nn.init.kaiming_normal_", t)
  return normal(t, 0, (options.gain or math.sqrt(2)) / math.sqrt(fan_in), options.generator)
end

return init
