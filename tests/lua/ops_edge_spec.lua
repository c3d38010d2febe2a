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
    { "expm1", method "expm1", { { 0.0, inf, -inf, nan, 1e-10 } }, { 0, inf, -1, nan, 1e-10 } },
    { "exp2", method "exp2", { { inf, -inf, nan, -1.0, 3.0 } }, { inf, 0, nan, 0.5, 8 } },
    { "log2", method "log2", { { 0.0, -0.0, inf, -1.0, nan, 8.0 } }, { -inf, -inf, inf, nan, nan, 3 } },
    { "log10", method "log10", { { 0.0, -0.0, inf, -1.0, nan, 100.0 } }, { -inf, -inf, inf, nan, nan, 2 } },
    { "frac", method "frac", { { 2.5, -2.5, -2.0, inf, nan } }, { 0.5, -0.5, 0, nan, nan } },
    { "nan_to_num", method("nan_to_num", { nan = 7, posinf = 8, neginf = -9 }), { { nan, inf, -inf, 1.0 } },
      { 7, 8, -9, 1 } },
    { "nan_to_num without numbers", method "nan_to_num", { { nan, inf, -inf } }, function(dtype)
      local most = dtype == "float32" and 0x1.fffffep127 or 0x1.fffffffffffffp1023
      return { 0, most, -most }
    end },
    { "tan", method "tan", { { 0.0, inf, -inf, nan } }, { 0, nan, nan, nan } },
    { "asin", method "asin", { { 1.0, -1.0, 1.5, nan } }, { math.pi / 2, -math.pi / 2, nan, nan } },
    { "acos", method "acos", { { 1.0, -1.0, 1.5, nan } }, { 0, math.pi, nan, nan } },
    { "atan", method "atan", { { inf, -inf, nan, 0.0 } }, { math.pi / 2, -math.pi / 2, nan, 0 } },
    { "sinh", method "sinh", { { inf, -inf, nan, 0.0 } }, { inf, -inf, nan, 0 } },
    { "cosh", method "cosh", { { inf, -inf, nan, 0.0 } }, { inf, inf, nan, 1 } },
    { "asinh", method "asinh", { { inf, -inf, nan, 0.0 } }, { inf, -inf, nan, 0 } },
    { "acosh", method "acosh", { { 1.0, inf, 0.5, -inf, nan } }, { 0, inf, nan, nan, nan } },
    { "atanh", method "atanh", { { 1.0, -1.0, 1.5, nan } }, { inf, -inf, nan, nan } },
    { "silu", method "silu", { { inf, nan, -1000.0, 1000.0 } }, { inf, nan, 0, 1000 } },
    { "logsigmoid", method "logsigmoid", { { inf, -inf, nan, 1000.0, -1000.0 } }, { 0, -inf, nan, 0, -1000 } },
    { "leaky_relu", method("leaky_relu", 0.5), { { inf, -inf, nan, 0.0, -2.0 } }, { inf, -inf, nan, 0, -1 } },
    { "elu", method("elu", 2), { { inf, -inf, nan, 0.0 } }, { inf, -2, nan, 0 } },
    { "hardtanh", method "hardtanh", { { inf, -inf, nan, 0.5 } }, { 1, -1, nan, 0.5 } },
    { "atan2", method("atan2", neap.tensor { -0.0, -0.0, 1.0, -inf }), { { 0.0, -0.0, 0.0, 1.0 } },
      { math.pi, -math.pi, 0, math.pi } },
    { "fmod", function(a, b) return a:fmod(b) end, { { 5.0, -5.0, 5.0, inf, 5.0 }, { 0.0, 3.0, inf, 3.0, -3.0 } },
      { nan, -2, 5, nan, 2 } },
    { "hypot", function(a, b) return a:hypot(b) end, { { inf, nan, nan, 3e30 }, { nan, inf, 1.0, 4e30 } },
      { inf, inf, nan, 5e30 } },
    { "copysign", function(a, b) return 1 / a:copysign(b) end, { { 1.0, -1.0, 0.0 }, { -0.0, 0.0, -1.0 } },
      { -1, 1, -inf } },
    { "logaddexp", function(a, b) return a:logaddexp(b) end,
      { { -inf, inf, inf, 1000.0, nan }, { -inf, inf, -inf, 1000.0, 0.0 } },
      { -inf, inf, inf, 1000 + math.log(2), nan } },
    { "xlogy", function(a, b) return a:xlogy(b) end, { { 0.0, 0.0, 0.0, 1.0, nan }, { 0.0, -1.0, nan, 0.0, 1.0 } },
      { 0, 0, nan, -inf, nan } },
    { "lerp", function(a, b) return a:lerp(b, 1) end, { { 1e30, 1.0 }, { 1.0, 3.0 } }, { 1, 3 } },
    { "addcdiv", function(x, a, b) return x:addcdiv(a, b) end, { { 1.0, 1.0 }, { 1.0, 0.0 }, { 0.0, 0.0 } },
      { inf, nan } },
    { "clamp by tensors", function(x, low, high) return x:clamp { min = low, max = high } end,
      { { 1.0, nan, 3.0, -1.0, 1.0 }, { nan, 0.0, 4.0, 0.0, 0.0 }, { 2.0, 2.0, 2.0, nan, 2.0 } },
      { nan, nan, 2, nan, 1 } },
    { "amax and nan", method("amax", 1), { { 1.0, nan, inf } }, { nan } },
    { "median and nan", function(x) return (x:median()) end, { { 1.0, nan, 2.0 } }, { nan } },
    { "median with infinities", function(x) return (x:median(1)) end, { { inf, -inf, 0.0, -0.0 } }, { 0 } },
    { "var of one", method "var", { { 3.0 } }, { nan } },
    { "var of one, corrected by 0", method("var", { correction = 0 }), { { 3.0 } }, { 0 } },
    { "var with more correction than elements", method("var", { correction = 3 }), { { 1.0, 2.0 } }, { inf } },
    { "var of nothing", method "var", { {} }, { nan } },
    { "std and inf", method "std", { { 1.0, inf } }, { nan } },
    { "norm and nan", method("norm", { p = inf }), { { 1.0, nan } }, { nan } },
    { "norm of nothing", method "norm", { {} }, { 0 } },
    { "norm 0 counts nan", method("norm", { p = 0 }), { { nan, 0.0, 2.0 } }, { 2 } },
    { "norm of large values", method "norm", { { 3e30, 4e30 } }, { 5e30 } },
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
    { "lerp by a number, exact to the dtype", slope(function(x) return x:lerp(x:detach() * 0, 0.1) end), { { 2.0 } },
      { 0.9 } },
    { "the slope of a power by a number", slope(function(x)
      return neap.grad((x ^ 2.1):sum(), { x }, { create_graph = true })[1]
    end), { { 2.0 } }, { 2.1 * 1.1 * 2 ^ 0.1 } },
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
    { "log2", slope(method "log2"), { { 0.0, inf } }, { inf, 0 } },
    { "asin", slope(method "asin"), { { 1.0, 0.0 } }, { inf, 1 } },
    { "acosh", slope(method "acosh"), { { 1.0, inf } }, { inf, 0 } },
    { "atanh", slope(method "atanh"), { { 1.0, 0.0 } }, { inf, 1 } },
    { "an infinite slope that nobody asked for", slope(function(x) return (x:asin() + x:acosh() + x:log2()) * 0 end),
      { { 1.0 } }, { 0 } },
    { "nan_to_num", slope(method "nan_to_num"), { { nan, inf, -inf, 1.0 } }, { 0, 0, 0, 1 } },
    { "elu", slope(method "elu"), { { 0.0, 100.0, -1000.0 } }, { 1, 1, 0 } },
    { "leaky_relu", slope(method "leaky_relu"), { { 0.0, 1.0 } }, { 0.01, 1 } },
    { "hardtanh at its ends", slope(method "hardtanh"), { { -1.0, 1.0, 0.0 } }, { 0, 0, 1 } },
    { "silu", slope(method "silu"), { { 0.0, 1000.0, -1000.0 } }, { 0.5, 1, 0 } },
    { "logsigmoid", slope(method "logsigmoid"), { { 1000.0, -1000.0, 0.0 } }, { 0, 1, 0.5 } },
    { "hypot at 0", slope(function(x) return x:hypot(x) end), { { 0.0 } }, { 0 } },
    { "atan2 at 0", slope(function(x) return x:atan2(x) end), { { 0.0, 2.0 } }, { 0, 0 } },
    { "copysign at 0", slope(function(x) return x:copysign(-1) end), { { 0.0, 3.0, -3.0 } }, { 0, -1, 1 } },
    { "logaddexp of -inf", slope(function(x) return x:logaddexp(-inf) end), { { -inf, 0.0 } }, { 0, 1 } },
    { "xlogy", slope(function(x) return x:xlogy(0) end), { { 0.0 } }, { 0 } },
    { "xlogy in its second", slope(function(x) return neap.xlogy(0, x) end), { { 0.0, 2.0 } }, { 0, 0 } },
    { "clamp gives the bound what it took", function(low)
      low.requires_grad = true
      neap.tensor { -1.0, 0.0, 1.0, 5.0 }:clamp({ min = low, max = 2 }):sum():backward()
      return low.grad
    end, { { 0.0, 0.0, 0.0, 0.0 } }, { 1, 0, 0, 0 } },
    { "amax shares among equal ones", slope(function(x) return x:amax() end), { { 2.0, 1.0, 2.0 } }, { 0.5, 0, 0.5 } },
    { "norm 1 at 0", slope(method("norm", { p = 1 })), { { 0.0, -3.0 } }, { 0, -1 } },
    { "norm 3 at 0", slope(method("norm", { p = 3 })), { { 0.0, 0.0 } }, { 0, 0 } },
    { "norm 1/2 at 0", slope(method("norm", { p = 0.5 })), { { 0.0, 0.0 } }, { 0, 0 } },
    { "norm inf shares", slope(method("norm", { p = inf })), { { 3.0, -3.0, 1.0 } }, { 0.5, -0.5, 0 } },
    { "std of equal ones", slope(method "std"), { { 3.0, 3.0 } }, { 0, 0 } },
    { "prod with a 0", slope(method "prod"), { { 2.0, 0.0, 3.0 } }, { 0, 6, 0 } },
    { "cumprod with zeros", slope(method("cumprod", 1)), { { 2.0, 0.0, 3.0, 0.0 } }, { 1, 8, 0, 0 } },
  }
end)

describe("integers", function()
  local function code_of(fn)
    local ok, err = pcall(fn)
    assert.is_false(ok)
    return neap.error_code(err)
  end
  local n = neap.tensor { 5, -5, 7 }

  it("become floats where a function has fractions", function()
    for _, name in ipairs { "expm1", "exp2", "log2", "log10", "tan", "asin", "atan", "sinh", "silu", "elu",
      "leaky_relu", "hardtanh", "var", "std", "norm" } do
      assert.equal("float32", n[name](n).dtype, name)
    end
    for _, name in ipairs { "atan2", "hypot", "copysign", "logaddexp", "xlogy" } do
      assert.equal("float32", n[name](n, n).dtype, name)
    end
    assert.equal("float32", n:lerp(n, 0.5).dtype)
    assert.equal("float32", n:addcdiv(n, n).dtype)
  end)

  it("stay integers where they can", function()
    assert.is_true(neap.equal(n:fmod(3), { 2, -2, 1 }))
    assert.is_true(neap.equal(n:fmod(-1), { 0, 0, 0 }))
    assert.is_true(neap.equal(n:addcmul(n, 2), { 15, -15, 21 }))
    assert.is_true(neap.equal(n:frac(), { 0, 0, 0 }))
    assert.is_true(neap.equal(n:nan_to_num(), n))
    assert.is_true(neap.equal(n:cumsum(1), { 5, 0, 7 }))
    assert.is_true(neap.equal(n:cumprod(1), { 5, -25, -175 }))
    assert.is_true(neap.equal(n:amax(), 7))
    assert.is_true(neap.equal(n:median(), 5))
    assert.is_true(neap.equal(n:clamp { min = neap.tensor { 6, -9, 0 }, max = 6 }, { 6, -5, 6 }))
    assert.equal("int64", n:cumsum(1).dtype)
    assert.equal("int64", neap.tensor({ true, true }):cumsum(1).dtype)
    assert.equal("int64", n:to("int8"):cumprod(1).dtype)
    assert.equal("int8", n:to("int8"):median().dtype)
  end)

  it("refuse what they cannot do", function()
    assert.equal("E-ARG", code_of(function() n:fmod(0) end))
    assert.equal("E-DTYPE", code_of(function() n:addcmul(n, n, { value = 0.5 }) end))
    assert.equal("E-DTYPE", code_of(function() n:gt(0):bitwise_left_shift(n:gt(0)) end))
    assert.equal("E-DTYPE", code_of(function() neap.ones(2):bitwise_left_shift(1) end))
  end)

  it("are shifted with their sign, and out of their width to nothing", function()
    local x = neap.tensor { 1, -8 }
    assert.is_true(neap.equal(x:bitwise_left_shift(neap.tensor { 2, 70 }), { 4, 0 }))
    assert.is_true(neap.equal(x:bitwise_right_shift(neap.tensor { 1, 70 }), { 0, -1 }))
    assert.is_true(neap.equal(x:bitwise_right_shift(neap.tensor { -1, 1 }), { 0, -4 }))
    assert.is_true(neap.equal(neap.tensor({ 200 }, { dtype = "uint8" }):bitwise_left_shift(1), { 144 }))
    assert.is_true(neap.equal(neap.tensor({ -128 }, { dtype = "int8" }):bitwise_left_shift(1), { 0 }))
  end)
end)

describe("truth and closeness", function()
  it("of numbers: anything but 0 is true, NaN too", function()
    local a, b = neap.tensor { 0.0, 2.0, nan, 0.0 }, neap.tensor { 0.0, 0.0, 1.0, -1.0 }
    assert.is_true(neap.equal(a:logical_and(b), { false, false, true, false }))
    assert.is_true(neap.equal(a:logical_or(b), { false, true, true, true }))
    assert.is_true(neap.equal(a:logical_xor(b), { false, true, false, true }))
    assert.equal(2, a:count_nonzero():item())
    assert.is_true(neap.equal(neap.tensor({ { 0, 1, 2 }, { 0, 0, 3 } }):count_nonzero(1), { 0, 1, 2 }))
  end)

  it("of infinities, NaN and integers", function()
    local a, b = neap.tensor { inf, inf, nan, 1.0, 1.0 }, neap.tensor { inf, -inf, nan, 1.0 + 1e-6, inf }
    assert.is_true(neap.equal(a:isclose(b), { true, false, false, true, false }))
    assert.is_true(neap.equal(a:isclose(b, { equal_nan = true }), { true, false, true, true, false }))
    assert.is_true(neap.equal(neap.tensor({ 1, 2 }):isclose(neap.tensor { 1, 3 }), { true, false }))
    assert.is_true(neap.equal(neap.tensor({ 100.0 }):isclose(101, { rtol = 0.01 }), { true }))
    assert.is_false(pcall(function() return a:isclose(b, { rtol = -1 }) end))
  end)
end)

describe("reductions of nothing", function()
  local none = neap.zeros(0, 3)
  local function refused(fn)
    local ok, err = pcall(fn)
    assert.is_false(ok)
    assert.equal("E-SHAPE", neap.error_code(err))
  end

  it("raise where there is nothing to choose from, and only there", function()
    for _, name in ipairs { "amax", "amin", "argmax", "argmin", "median", "max" } do
      refused(function() return none[name](none) end)
      refused(function() return none[name](none, 1) end)
      assert.is_true((none[name](none, 2)).shape == neap.zeros(0).shape, name)
    end
    for _, p in ipairs { inf, -inf, -1 } do refused(function() return none:norm { p = p } end) end
    assert.is_true(neap.equal(none:norm(1, { p = 3 }), { 0, 0, 0 }))
    assert.is_true(none:cumsum(1).shape == none.shape)
    assert.is_true(none:cumprod(2).shape == none.shape)
  end)
end)

describe("median", function()
  it("is the lower of the two in the middle, by rank, with its place", function()
    local v, i = neap.tensor({ { 3, 1, 2, 4 }, { 5, 5, 5, 5 } }):median(2)
    assert.is_true(neap.equal(v, { 2, 5 }))
    assert.is_true(neap.equal(i, { 3, 2 }))
    local _, at = neap.tensor({ 4.0, nan, 1.0, nan }):median(1)
    assert.equal(2, at:item())
    assert.equal(-math.maxinteger, neap.tensor({ math.maxinteger, math.mininteger, -math.maxinteger }):median():item())
  end)
  it("agrees with a sorted list of a thousand numbers, equal ones among them", function()
    local x = neap.randint(-40, 40, { 999 }, { generator = neap.generator(1) })
    local list = x:totable()
    table.sort(list)
    assert.equal(list[500], x:median():item())
    assert.equal(list[500] / 8, (x:to("float32") / 8):median():item())
  end)
end)
