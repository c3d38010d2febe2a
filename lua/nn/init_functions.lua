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

--- Normal(mean, std) without what lies outside [low, high], which is drawn again; options mean = 0, std = 1, low = -2,
-- high = 2 (numbers, not standard deviations), generator.
function init.trunc_normal_(t, options)
  local who = "nn.init.trunc_normal_"
  check(who, t)
  options = util.options(who, options, { "mean", "std", "low", "high", "generator" })
  local low, high = options.low or -2, options.high or 2
  local mean, std = options.mean or 0, options.std or 1
  if not (low < high and high > mean - 4 * std and low < mean + 4 * std) then
    util.fail("E-ARG", "%s: nothing of a normal distribution with mean %g and std %g lies within %g to %g", who, mean,
      std, low, high)
  end
  return neap.no_grad(function()
    local scope <close> = neap.scope_begin()
    normal(t, mean, std, options.generator)
    local outside = t:lt(low):bitwise_or(t:gt(high))
    while outside:any() do
      t:copy_(neap.where(outside, normal(neap.zeros_like(t), mean, std, options.generator), t))
      outside = t:lt(low):bitwise_or(t:gt(high))
    end
    return neap.scope_end(scope, t)
  end)
end

--- An orthogonal matrix times gain: rows of length `gain` at right angles, or columns where there are more rows
-- (Saxe, McClelland and Ganguli, 2014). t: at least 2 dimensions, (out, ...) is taken as out rows. Options gain = 1,
-- generator. By modified Gram-Schmidt, twice, in float64.
function init.orthogonal_(t, options)
  local who = "nn.init.orthogonal_"
  check(who, t)
  options = util.options(who, options, { "gain", "generator" })
  fans(who, t)
  return neap.no_grad(function()
    local scope <close> = neap.scope_begin()
    local rows, columns = t:size(1), t:numel() // math.max(1, t:size(1))
    local tall = rows > columns
    local shape = tall and { columns, rows } or { rows, columns }
    local q = normal(neap.empty(shape, { dtype = "float64" }), 0, 1, options.generator)
    for i = 1, shape[1] do
      local row = q[i]
      for _ = 1, i > 1 and 2 or 0 do
        local done = q:narrow(1, 1, i - 1)
        row:sub_(done:matmul(row):matmul(done))
      end
      row:div_(row:square():sum():sqrt())
    end
    t:copy_(((tall and q:t() or q) * (options.gain or 1)):reshape(t.shape))
    return neap.scope_end(scope, t)
  end)
end

--- The gain that keeps the variance through a nonlinearity: 1 for "linear" and "sigmoid", 5/3 for "tanh", sqrt(2) for
-- "relu", sqrt(2 / (1 + slope^2)) for "leaky_relu" (slope 0.01), 3/4 for "selu".
function init.gain(name, slope)
  local gains = { linear = 1, sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4,
    leaky_relu = math.sqrt(2 / (1 + (slope or 0.01) ^ 2)) }
  return gains[name] or util.fail("E-ARG", 'nn.init.gain: no gain is known for %s, only for "linear", "sigmoid", '
    .. '"tanh", "relu", "leaky_relu" and "selu"', util.kind(name))
end

return util.part("nn.init", init)
