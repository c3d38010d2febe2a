--- Values of ops where formulas break: 0, infinities, NaN, overflow, and what the gradient is there.
-- Each row: what, function, inputs, expected. NaN is written nan. Every row runs in float32 and float64.
local neap = require "neap"

local inf, nan = math.huge, 0 / 0

local function shows(v) return v ~= v and "nan" or ("%.9g"):format(v) end

local function same(a, b, tolerance)
  if b ~= b then return a ~= a end
  if a == b then return true end
  return math.abs(a - b) <= tolerance * math.max(1, math.abs(b))
end

local function flat(t)
  local list = t:detach():reshape(-1):totable()
  return type(list) == "table" and list or { list }
end

local function check(got, want, tolerance)
  local list, texts, fits = flat(got), {}, true
  assert.equal(#want, #list)
  for i = 1, #want do
    texts[i] = shows(list[i])
    fits = fits and same(list[i], want[i], tolerance)
  end
  local wanted = {}
  for i = 1, #want do wanted[i] = shows(want[i]) end
  assert.is_true(fits, ("got {%s}, want {%s}"):format(table.concat(texts, ", "), table.concat(wanted, ", ")))
end

local tolerances = { float32 = 1e-6, float64 = 1e-14 }

local function rows(list)
  for _, row in ipairs(list) do
    local what, fn, inputs, want = table.unpack(row)
    for dtype, tolerance in pairs(tolerances) do
      it(("%s in %s"):format(what, dtype), function()
        local tensors = {}
        for i, values in ipairs(inputs) do tensors[i] = neap.tensor(values, { dtype = dtype }) end
        check(fn(table.unpack(tensors)), type(want) == "function" and want(dtype) or want, tolerance)
      end)
    end
  end
end

local function method(name, ...)
  local rest = table.pack(...)
  return function(x) return x[name](x, table.unpack(rest, 1, rest.n)) end
end

local e = math.exp(1)

describe("edge values", function()
  rows {
    { "sqrt", method "sqrt", { { 0.0, -0.0, inf, -1.0, nan, 4.0 } }, { 0, 0, inf, nan, nan, 2 } },
    { "log", method "log", { { 0.0, -0.0, inf, -1.0, nan, 1.0 } }, { -inf, -inf, inf, nan, nan, 0 } },
    { "log1p", method "log1p", { { 0.0, -1.0, -2.0, inf, nan, 1e-10 } }, { 0, -inf, nan, inf, nan, 1e-10 } },
    { "exp", method "exp", { { 0.0, inf, -inf, nan, 1000.0, -1000.0, 1.0 } }, { 1, inf, 0, nan, inf, 0, e } },
    { "tanh", method "tanh", { { 0.0, inf, -inf, nan, 100.0, -100.0 } }, { 0, 1, -1, nan, 1, -1 } },
    { "sigmoid", method "sigmoid", { { 0.0, inf, -inf, nan, 1000.0, -1000.0 } }, { 0.5, 1, 0, nan, 1, 0 } },
    { "gelu", method "gelu", { { 0.0, inf, nan, 100.0, -100.0 } }, { 0, inf, nan, 100, 0 } },
    { "softplus", method "softplus", { { inf, -inf, nan, 1000.0, -1000.0 } }, { inf, 0, nan, 1000, 0 } },
    { "reciprocal", method "reciprocal", { { 0.0, -0.0, inf, -inf, nan } }, { inf, -inf, 0, 0, nan } },
    { "div", function(a, b) return a / b end, { { 1.0, -1.0, 0.0, 1.0, inf, nan }, { 0.0, 0.0, 0.0, inf, inf, 1.0 } },
      { inf, -inf, nan, 0, nan, nan } },
    { "pow", function(a, b) return a ^ b end,
      { { 0.0, 0.0, 0.0, 2.0, -2.0, -2.0, inf, 1.0, nan }, { 0.0, 2.0, -1.0, inf, 3.0, 0.5, -1.0, nan, 0.0 } },
      { 1, 0, inf, inf, -8, nan, 0, 1, 1 } },
    { "softmax of large values", method("softmax", 1), { { 1000.0, 1000.0, -1000.0 } }, { 0.5, 0.5, 0 } },
    { "softmax with -inf", method("softmax", 1), { { -inf, 0.0, 0.0 } }, { 0, 0.5, 0.5 } },
    { "softmax of -inf alone", method("softmax", 1), { { -inf, -inf } }, { nan, nan } },
    { "softmax with nan", method("softmax", 1), { { nan, 0.0 } }, { nan, nan } },
    { "log_softmax of large values", method("log_softmax", 1), { { 1000.0, 0.0 } }, { 0, -1000 } },
    { "logsumexp of large values", method("logsumexp", 1), { { 1000.0, 1000.0 } }, { 1000 + math.log(2) } },
    { "where takes nothing from the other side", function(a, b) return neap.where(b:gt(0), a, b) end,
      { { nan, 1.0, inf }, { -1.0, 1.0, 1.0 } }, { -1, 1, inf } },
    { "mul overflows", function(a) return a * a end,
      { { 1e30 } }, function(dtype) return dtype == "float32" and { inf } or { 1e60 } end },
    { "sum", method "sum", { { inf, -inf } }, { nan } },
    { "max and nan", function(x) return (x:max()) end, { { 1.0, nan, 2.0 } }, { nan } },
    { "mean of nothing", method "mean", { {} }, { nan } },
  }
end)

describe("gradients at edges", function()
  local function slope(fn)
    return function(x)
      x.requires_grad = true
      fn(x):sum():backward()
      return x.grad
    end
  end
  rows {
    { "sqrt", slope(method "sqrt"), { { 0.0, 4.0, inf } }, { inf, 0.25, 0 } },
    { "log", slope(method "log"), { { 0.0, 2.0, inf } }, { inf, 0.5, 0 } },
    { "exp", slope(method "exp"), { { -inf, 0.0, 1000.0 } }, { 0, 1, inf } },
    { "tanh", slope(method "tanh"), { { inf, -inf, 0.0 } }, { 0, 0, 1 } },
    { "sigmoid", slope(method "sigmoid"), { { 1000.0, -1000.0, 0.0 } }, { 0, 0, 0.25 } },
    { "relu and abs", slope(function(x) return x:relu() + x:abs() end), { { 0.0, 2.0, -2.0 } }, { 0, 2, -1 } },
    { "a branch that where did not take", slope(function(x) return neap.where(x:gt(0), x:log(), x) end),
      { { 0.0, 2.0 } }, { 1, 0.5 } },
    { "pow at 0", slope(function(x) return x ^ 2 end), { { 0.0, 3.0 } }, { 0, 6 } },
    { "softmax of large values", slope(function(x) return x:softmax(1)[1] end), { { 1000.0, 0.0 } }, { 0, 0 } },
    { "log1p", slope(method "log1p"), { { -1.0, 0.0, inf } }, { inf, 1, 0 } },
    { "gelu", slope(method "gelu"), { { 0.0, 100.0, -100.0 } }, { 0.5, 1, 0 } },
    { "norm at 0", slope(method "norm"), { { 0.0, 0.0 } }, { 0, 0 } },
  }
end)
