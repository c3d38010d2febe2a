--- Kernels of the CUDA sources, on the emulated device: the same results as the CPU's, and none that ran there.
-- Integers, bool, arithmetic and draws are equal bit for bit, mathematical functions within a few ulp.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
local device, compare, everything, floats = emu.device, emu.compare, emu.everything, emu.floats

if not emu.available() then
  describe("kernels of the emulated device", function()
    pending("the emulated device is not built: make build/libneap-cudaemu.so")
  end)
  return
end

local inf, nan = math.huge, 0 / 0
local integers = { "int64", "int32", "int8", "uint8" }
local numbers = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8" }
local ulps = { float32 = 4e-7, float64 = 1e-15, float16 = 1e-3, bfloat16 = 8e-3 } -- relative

--- fn's kernels must all be the device's.
local function unstaged(what, fn, ...)
  neap.counters(true)
  local result = fn(...)
  for op, c in pairs(neap.counters()) do
    if c.staged then error(what .. ": " .. op .. " ran on the CPU", 2) end
  end
  return result
end

-- ---- operands

--- n values of a dtype, from a list that is gone through again and again.
local function values(list, n, dtype)
  local v = {}
  for i = 1, n do v[i] = list[(i - 1) % #list + 1] end
  return neap.tensor(v, { dtype = dtype })
end

-- Every layout: from a list and a dtype, a function that builds the operand from what moves it to a device.
local layouts = {
  dense = function(list, dtype, on) return on(values(list, 141, dtype)) end,
  matrix = function(list, dtype, on) return on(values(list, 35, dtype):reshape(5, 7)) end,
  transposed = function(list, dtype, on) return on(values(list, 35, dtype):reshape(7, 5)):t() end,
  second = function(list, dtype, on) return on(values(list, 70, dtype):reshape(5, 7, 2)):select(3, 1) end,
  unaligned = function(list, dtype, on) return on(values(list, 36, dtype)):narrow(1, 2, 35):reshape(5, 7) end,
  row = function(list, dtype, on) return on(values(list, 7, dtype)) end,
  column = function(list, dtype, on) return on(values(list, 5, dtype):reshape(5, 1)) end,
  expanded = function(list, dtype, on) return on(values(list, 5, dtype):reshape(5, 1)):expand(5, 7) end,
  zero_dim = function(list, dtype, on) return on(values(list, 1, dtype):reshape {}) end,
  empty = function(_, dtype, on) return on(neap.zeros({ 0, 7 }, { dtype = dtype })) end,
}
local alone = { "dense", "matrix", "transposed", "second", "unaligned", "expanded", "zero_dim", "empty" }
local pairs_of_layouts = {
  { "dense", "dense" }, { "matrix", "matrix" }, { "transposed", "second" }, { "matrix", "row" }, { "column", "row" },
  { "unaligned", "matrix" }, { "zero_dim", "transposed" }, { "empty", "row" }, { "matrix", "zero_dim" },
}

local function here(t) return t end
local function there(t) return t:to(device) end

local lists = {
  any = { 0.5, -1.25, 3.0, -0.0, 2.5, -2.5, 1.5, 0.25, 7.0, inf, -inf, nan, 100.0, -90.0 },
  positive = { 0.5, 1.25, 3.0, 0.125, 2.5, 10.0, 90.0, 0.0, inf },
  unit = { 0.5, -0.25, 0.75, -1.0, 1.0, 0.0, 0.03125 },
  other = { 2.0, 0.5, -3.0, 1.0, -1.0, 0.25, 7.0, inf, nan, 0.0, 3.0 },
  whole = { 1, 0, 3, 7, 100, 2, 5, 127 },
  signed = { 1, -2, 0, 3, -7, 100, -128, 127, 5 },
  divisors = { 1, 2, 3, 7, 5, 100 },
  small = { 0, 1, 2, 3, 5, 8, 64 },
  bool = { true, false, true, true, false },
}
--- The list for a dtype: `name` of floats, else integers that fit.
local function list_for(dtype, name)
  if dtype == "bool" then return lists.bool end
  if dtype:match "float" then return lists[name] end
  if name == "divisors" or name == "small" then return lists[name] end
  return dtype == "uint8" and lists.whole or lists.signed
end

local function unary(ops, dtypes, list, exact)
  for _, op in ipairs(ops) do
    local name, args = op, {}
    if type(op) == "table" then name, args = op[1], { table.unpack(op, 2) } end
    it(name .. (type(op) == "table" and " with arguments" or ""), function()
      for _, dtype in ipairs(dtypes) do
        for _, layout in ipairs(alone) do
          local what = ("%s of %s, %s"):format(name, dtype, layout)
          local x = layouts[layout](list_for(dtype, list), dtype, here)
          local y = layouts[layout](list_for(dtype, list), dtype, there)
          local want = x[name](x, table.unpack(args))
          local got = unstaged(what, y[name], y, table.unpack(args))
          -- gelu of negatives is a difference of numbers near 1, on both sides: in float it is right to ulps of those,
          -- and in double, too, where erf is another library's
          local apart = want.dtype == "float32" or emu.on_gpu and want.dtype == "float64"
          local size = name == "gelu" and apart and emu.or_one or nil
          compare(what, want, got, exact and 0 or ulps[want.dtype] or 0, size)
        end
      end
    end)
  end
end

local function binary(ops, dtypes, first, second, exact)
  for _, name in ipairs(ops) do
    it(name, function()
      for _, dtype in ipairs(dtypes) do
        for _, l in ipairs(pairs_of_layouts) do
          local what = ("%s of %s, %s and %s"):format(name, dtype, l[1], l[2])
          local a, b = list_for(dtype, first), list_for(dtype, second)
          local want = neap[name](layouts[l[1]](a, dtype, here), layouts[l[2]](b, dtype, here))
          local x, y = layouts[l[1]](a, dtype, there), layouts[l[2]](b, dtype, there)
          compare(what, want, unstaged(what, neap[name], x, y), exact and 0 or ulps[want.dtype] or 0)
        end
      end
    end)
  end
end

--- fn(on) on both devices; on(list, dtype) builds an operand.
local function both(what, fn, tolerance)
  local want = fn(function(list, dtype) return neap.tensor(list, { dtype = dtype }) end)
  local got = unstaged(what, fn, function(list, dtype) return neap.tensor(list, { dtype = dtype }):to(device) end)
  compare(what, want, got, tolerance or 0)
end

describe("kernels of the emulated device: one operand", function()
  unary({ "abs", "sign", "floor", "ceil", "round", "trunc", "frac", "square", "relu", "nan_to_num" }, numbers, "any",
    true)
  unary({ "neg" }, numbers, "any", true)
  unary({ "exp", "expm1", "exp2", "erf", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "tanh", "sigmoid",
    "softplus", "logsigmoid", "silu", "gelu", { "gelu", { tanh = true } }, "leaky_relu", "elu", "hardtanh",
    { "leaky_relu", 0.5 }, { "elu", 2 }, { "hardtanh", -0.5, 1.5 } }, floats, "any")
  unary({ "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acosh" }, floats, "positive")
  unary({ "asin", "acos", "atanh" }, floats, "unit")
  unary({ "exp", "sqrt", "gelu" }, { "int64", "uint8", "bool" }, "any")
  unary({ "isnan", "isinf", "isfinite", "logical_not" }, everything, "any", true)
  unary({ "bitwise_not" }, { "int64", "int32", "int8", "uint8", "bool" }, "any", true)
  unary({ { "clamp", { min = 0.25, max = 2 } }, { "nan_to_num", { nan = 1, posinf = 2, neginf = -3 } } }, floats, "any",
    true)
  unary({ { "clamp", { min = 2 } }, { "clamp", { max = 5 } }, { "clamp", { min = 1, max = 6 } } }, numbers, "any", true)
  unary({ { "pow", 2 }, { "add", 3 }, { "mul", 2 }, { "eq", 1 }, { "remainder", 3 }, { "floor_divide", 2 } }, numbers,
    "any", true)
end)

describe("kernels of the emulated device: two operands", function()
  binary({ "add", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_xor", "isclose" }, everything, "any", "other", true)
  binary({ "sub" }, numbers, "any", "other", true)
  binary({ "div" }, floats, "any", "other", true)
  -- A GPU widens a float16 NaN without its sign.
  binary({ "copysign" }, floats, "any", emu.on_gpu and "unit" or "other", true)
  binary({ "hypot", "atan2", "logaddexp" }, floats, "any", "other")
  binary({ "xlogy", "pow" }, floats, "any", "positive")
  binary({ "floor_divide", "fmod", "remainder" }, numbers, "any", "divisors", true)
  binary({ "pow" }, { "int64", "int32", "int8", "uint8" }, "any", "small", true)
  binary({ "bitwise_and", "bitwise_or", "bitwise_xor" }, { "int64", "int32", "int8", "uint8", "bool" }, "any", "other",
    true)
  binary({ "bitwise_left_shift", "bitwise_right_shift" }, integers, "any", "small", true)

  it("takes operands of different dtypes, and numbers on either side", function()
    for _, a in ipairs(everything) do
      for _, b in ipairs(everything) do
        both(a .. " + " .. b, function(on)
          return on(list_for(a, "unit"), a):narrow(1, 1, 5) + on(list_for(b, "unit"), b):narrow(1, 1, 5)
        end)
      end
      both("number * " .. a, function(on) return 3 * on(list_for(a, "unit"), a) end)
    end
    both("2 ^ x", function(on) return 2 ^ on({ 1.0, 2.5, -3.0 }, "float32") end, 1e-6)
    both("large integers", function(on) return on({ 2 ^ 53 | 0, math.maxinteger }, "int64") + 1 end)
    both("large integers and floats", function(on)
      return on({ (1 << 53) + 1, math.mininteger }, "int64") * on({ 1.0, 0.5 }, "float32")
    end)
  end)

  it("wraps integers as the CPU does", function()
    both("int8", function(on) return on({ 127, -128, 100 }, "int8") + on({ 1, -1, 100 }, "int8") end)
    both("negated int8", function(on) return -on({ -128, 5 }, "int8") end)
    both("int64 by -1", function(on) return on({ math.mininteger, 7 }, "int64") // -1 end)
    both("int64 modulo -1", function(on) return on({ math.mininteger, 7 }, "int64") % -1 end)
  end)

  it("refuses what the CPU refuses, and writes nothing", function()
    for _, try in ipairs {
      { function(x, y) return x // y end, "division by zero" }, { function(x, y) return x % y end, "division by zero" },
      { function(x, y) return x:fmod(y) end, "division by zero" },
      { function(x, y) return x:floor_divide_(y) end, "division by zero" },
      { function(x, y) return x ^ (y - 1) end, "negative power" },
    } do
      local x = neap.tensor({ 5, 6, 7 }, { dtype = "int32" }):to(device)
      local ok, err = pcall(try[1], x, neap.tensor({ 1, 0, 2 }, { dtype = "int32" }):to(device))
      assert.is_false(ok)
      assert.equal("E-ARG", neap.error_code(err))
      assert.matches(try[2], tostring(err), 1, true)
      assert.same({ 5, 6, 7 }, x:totable())
    end
    both("no divisors", function(on) return on({ 1 }, "int64"):narrow(1, 1, 0) // on({ 0 }, "int64") end)
  end)

  it("works in place, on views and with other dtypes", function()
    local half = { 0.5, 1.5, -2.0, 4.0, 8.0, 1.0 }
    both("view", function(on)
      local x = on(half, "float32"):reshape(2, 3)
      x:t():add_(on({ 1.0, 2.0 }, "float64"))
      return x
    end)
    both("float16 times float32", function(on) return on(half, "float16"):mul_(on(half, "float32")) end)
    both("in itself", function(on)
      local x = on(half, "float32")
      return x:mul_(x)
    end)
    both("exp_", function(on) return on(half, "bfloat16"):exp_() end, 8e-3)
  end)
end)

describe("kernels of the emulated device: three operands", function()
  local a, b = { 0.5, -1.0, 2.0, nan, 3.0, inf }, { 1.0, 2.0, -3.0, 4.0, 0.25, 0.0 }
  local mask = { true, false, true, false, false, true }

  it("where and masked_fill", function()
    for _, dtype in ipairs(everything) do
      both("where of " .. dtype, function(on)
        return neap.where(values(lists.bool, 70):to(on({ 1 }).device), on(list_for(dtype, "unit"), dtype):select(1, 1),
          on(list_for(dtype, "unit"), dtype):select(1, 2))
      end)
      for n = 5, 37, 16 do
        both("dense where of " .. dtype, function(on)
          local to = on({ 1 }).device
          return neap.where(values(lists.bool, n):to(to), values(list_for(dtype, "any"), n, dtype):to(to),
            values(list_for(dtype, "other"), n, dtype):to(to))
        end)
        both("masked_fill of " .. dtype, function(on)
          local to = on({ 1 }).device
          return values(list_for(dtype, "any"), n, dtype):to(to):masked_fill(values(lists.bool, n):to(to), 1)
        end)
      end
    end
    both("a column of masks", function(on)
      return on({ { 1.0, 2.0 }, { 3.0, 4.0 } }):masked_fill_(on({ { true }, { false } }), -inf)
    end)
    both("numbers", function(on) return neap.where(on(mask), 1.5, on(b)) end)
    both("large integers", function(on)
      return on({ 1, 2 }, "int64"):masked_fill(on { true, false }, math.maxinteger)
    end)
  end)

  it("clamp with tensors, lerp, addcmul, addcdiv", function()
    for _, dtype in ipairs(floats) do
      both("clamp", function(on) return on(a, dtype):clamp { min = on(b, dtype), max = on({ 2.0 }, dtype) } end)
      both("lerp", function(on) return on(b, dtype):lerp(on(a, dtype), 0.75) end)
      both("lerp by tensor", function(on) return on(b, dtype):lerp(on(a, dtype), on(a, dtype)) end)
      both("addcmul", function(on) return on(b, dtype):addcmul(on(a, dtype), on(b, dtype), { value = 0.5 }) end)
      both("addcdiv", function(on) return on(b, dtype):addcdiv(on(a, dtype), on(b, dtype), { value = 0.5 }) end)
    end
    both("addcmul of integers", function(on)
      return on({ 1, -2, 100 }, "int8"):addcmul(on({ 3, 4, 5 }, "int8"), on({ 7, 8, 9 }, "int8"), { value = -3 })
    end)
    both("bounds that never bind", function(on) return on({ 1, 2 }, "int64"):clamp { min = -inf, max = inf } end)
  end)

  it("gradients, and gradients of gradients, by their own kernels", function()
    local function slopes(on, fn, n)
      local x = on { 0.5, -1.25, 2.0, 0.75 }:requires_grad_()
      local y = fn(x)
      for _ = 1, n do
        y = neap.grad(y:sum(), { x }, { create_graph = true })
        y = type(y) == "table" and y[1] or y
      end
      return y:detach()
    end
    for name, fn in pairs {
      tanh_grad = function(x) return x:tanh() end, sigmoid_grad = function(x) return x:sigmoid() end,
      relu_grad = function(x) return x:relu() end, gelu_grad = function(x) return x:gelu() end,
      leaky_relu_grad = function(x) return x:leaky_relu() end, silu_grad = function(x) return x:silu() end,
      pow_dx = function(x) return x ^ 3 end, pow_dn = function(x) return 1.5 ^ x end,
      mul0 = function(x) return x:exp() end, div0 = function(x) return (x * x):log() end,
    } do
      for n = 1, 2 do
        local want = slopes(neap.tensor, fn, n)
        neap.counters(true)
        local got = slopes(function(v) return neap.tensor(v):to(device) end, fn, n)
        local c = neap.counters()[name]
        assert.is_true(c.kernels > 0, name)
        assert.is_nil(c.staged, name)
        compare(name, want, got, 4e-6)
      end
    end
  end)
end)

describe("kernels of the emulated device: random numbers", function()
  local shapes = { { 1 }, { 63 }, { 2, 65 }, { 7, 11, 13 }, {}, { 0, 3 } }

  local function draws(what, fn, tolerance, size)
    it(what, function()
      for _, shape in ipairs(shapes) do
        local want = fn(shape, { device = "cpu", generator = neap.generator(7) })
        local got = unstaged(what, fn, shape, { device = device, generator = neap.generator(7) })
        compare(what, want, got, tolerance, size)
      end
    end)
  end
  local function with(o, dtype) return { device = o.device, generator = o.generator, dtype = dtype } end

  for _, dtype in ipairs(floats) do
    draws("rand of " .. dtype, function(s, o) return neap.rand(s, with(o, dtype)) end, 0)
    draws("randn of " .. dtype, function(s, o) return neap.randn(s, with(o, dtype)) end, ulps[dtype] * 2)
    draws("normal of " .. dtype, function(s, o) return neap.normal(1, 2, s, with(o, dtype)) end, ulps[dtype] * 4,
      emu.on_gpu and emu.or_one or nil) -- a sum with 1 may be near 0, and another library's logarithm shows there
    draws("dropout of " .. dtype, function(s, o)
      return neap.ones(s, { device = o.device, dtype = dtype }):dropout(0.3, { generator = o.generator })
    end, 0)
    draws("exponential_ of " .. dtype, function(s, o)
      return neap.zeros(s, { device = o.device, dtype = dtype }):exponential_(0.5, { generator = o.generator })
    end, ulps[dtype] * 2)
  end
  for _, dtype in ipairs(numbers) do
    draws("randint of " .. dtype, function(s, o) return neap.randint(0, 100, s, with(o, dtype)) end, 0)
    draws("bernoulli_ of " .. dtype, function(s, o)
      return neap.zeros(s, { device = o.device, dtype = dtype }):bernoulli_(0.3, { generator = o.generator })
    end, 0)
  end
  draws("randint of all integers", function(s, o)
    return neap.randint(math.mininteger, math.maxinteger, s, o)
  end, 0)

  it("fills views, each element with the number of its place", function()
    for _, fill in ipairs { "uniform_", "bernoulli_" } do
      local function strided(on)
        local x = on(neap.zeros(9, 40))
        x:t():narrow(1, 3, 17)[fill](x:t():narrow(1, 3, 17), { generator = neap.generator(3) })
        return x
      end
      compare(fill, strided(here), unstaged(fill, strided, there), 0)
    end
  end)

  it("drops in the gradient what it dropped", function()
    local function slope(on)
      local x = on(neap.ones(130)):requires_grad_()
      x:dropout(0.5, { generator = neap.generator(5) }):sum():backward()
      return x.grad
    end
    neap.counters(true)
    compare("dropout_apply", slope(here), slope(there), 0)
    assert.is_nil(neap.counters().dropout_apply.staged)
  end)
end)

describe("kernels of the emulated device: rows by positions", function()
  local g = neap.generator(11)
  local table_of = {} -- by dtype: 9 rows of 8, which 16-byte loads take, and of 3, which they do not
  for _, dtype in ipairs(everything) do
    local x = neap.randint(0, 9, { 9, 8 }, { generator = g })
    table_of[dtype] = { (dtype == "bool" and x:gt(4) or x):to(dtype), x:narrow(2, 1, 3):contiguous():to(dtype) }
  end
  local ids = neap.tensor { { 3, 9, 1, 3 }, { 3, 2, 9, 3 } }
  local function to(on) return on { 1 }.device end

  it("read", function()
    for _, dtype in ipairs(everything) do
      for _, x in ipairs(table_of[dtype]) do
        both("index_select of " .. dtype, function(on) return x:to(to(on)):index_select(1, ids:to(to(on))) end)
        both("columns of " .. dtype, function(on)
          return x:to(to(on)):index_select(2, neap.tensor({ -1, 1 }, { dtype = "int32" }):to(to(on)))
        end)
        both("of a transposed view", function(on) return x:to(to(on)):t():index_select(2, ids:to(to(on)):t()) end)
        both("embedding of " .. dtype, function(on) return neap.embedding(x:to(to(on)), ids:to(to(on))) end)
      end
    end
    both("no ids", function(on)
      return table_of.float32[1]:to(to(on)):index_select(1, ids:to(to(on)):narrow(1, 1, 0))
    end)
  end)

  it("add, in the order of the positions", function()
    for _, dtype in ipairs(numbers) do
      local x = table_of[dtype][2]
      local src = (dtype:match "float" and neap.rand({ 8, 3 }, { generator = g }) or table_of.int64[1]:narrow(1, 1, 8)
        :narrow(2, 1, 3)):to(dtype)
      for _, name in ipairs { "index_add", "index_add_" } do
        both(name .. " of " .. dtype, function(on)
          local y = x:to(to(on)):clone()
          return y[name](y, 1, ids:reshape(8):to(to(on)), src:to(to(on)))
        end)
      end
    end
    local function slope(fn)
      return function(on)
        local x = neap.rand({ 9, 3 }, { generator = neap.generator(1) }):to(to(on)):requires_grad_()
        local y = fn(x, ids:to(to(on)))
        local seed = neap.rand(y.shape, { generator = neap.generator(2) }):to(to(on))
        return neap.grad(y, { x }, { grad_outputs = seed })[1]
      end
    end
    both("rows", slope(function(x, i) return x:index_select(1, i) end))
    both("columns", slope(function(x) return x:index_select(2, neap.tensor({ 1, 3, 1 }):to(x.device)) end))
    both("table", slope(function(x, i) return neap.embedding(x, i) end))
    both("table with padding", slope(function(x, i) return neap.embedding(x, i, { padding_idx = 3 }) end))
  end)

  it("refuse positions outside in the CPU's words, and write nothing", function()
    for _, try in ipairs {
      function(x, i) return x:index_select(1, i) end, function(x, i) return neap.embedding(x, i) end,
      function(x, i) return x:index_add_(1, i, x:narrow(1, 1, 2)) end,
    } do
      local x, texts = table_of.float32[2], {}
      for n, on in ipairs { here, there } do
        local y = on(x):clone()
        local ok, err = pcall(try, y, on(neap.tensor { 1, 10 }))
        assert.is_false(ok)
        texts[n] = tostring(err)
        assert.is_true(neap.equal(y:to("cpu"), x))
      end
      assert.equal(texts[1], texts[2])
    end
  end)
end)
