--- What users of tensor libraries run into: tensor operations. Case ids of the list of user cases, section (a).
local neap = require "neap"

local inf, nan = math.huge, 0 / 0

local function near(want, got, tolerance)
  tolerance = tolerance or 1e-6
  if math.abs(got - want) > tolerance * math.max(1, math.abs(want)) then
    error(("%.10g, should be %.10g"):format(got, want), 2)
  end
end

local function near_all(want, got, tolerance)
  local flat = got:reshape(-1):totable()
  assert.equal(#want, #flat)
  for i = 1, #want do
    if want[i] ~= want[i] then assert.is_true(flat[i] ~= flat[i], "element " .. i .. " should be NaN")
    elseif math.abs(want[i]) == inf then assert.equal(want[i], flat[i])
    else near(want[i], flat[i], tolerance) end
  end
end

--- The error of a call: its code and text.
local function refused(code, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok, "no error was raised")
  assert.equal(code, neap.error_code(err), tostring(err))
  return err
end

local function shape_is(t, ...)
  local want = { ... }
  assert.equal(#want, t.ndim)
  for i, n in ipairs(want) do assert.equal(n, t.shape[i]) end
end

describe("user cases: tensors", function()
  it("uc-A01 narrow-integer reductions do not wrap", function()
    local s = neap.ones({ 300 }, { dtype = "uint8" }):sum()
    assert.equal(300, s:item())
    assert.equal("int64", s.dtype)
    local bytes = neap.tensor({ 120, 120 }, { dtype = "int8" })
    assert.equal(240, bytes:sum():item())
    if rawget(neap, "cumsum") then assert.equal(240, neap.cumsum(bytes, 1):item(2)) end
    local b = neap.tensor({ true, false, true }):sum()
    assert.equal(2, b:item())
    assert.equal("int64", b.dtype)
  end)

  it("uc-A02 half and bfloat16 sums do not stall", function()
    local h = neap.ones({ 4096 }, { dtype = "float16" })
    assert.equal(4096.0, h:sum():item())
    assert.equal(1.0, h:mean():item())
    local b = neap.ones({ 70000 }, { dtype = "bfloat16" })
    assert.equal(70144.0, b:sum():item())
    assert.equal(1.0, b:mean():item())
  end)

  it("uc-A04 a float32 sum of 2^25 ones is exact with any number of threads #slow", function()
    local x = neap.ones(1 << 25)
    for _, threads in ipairs { 1, 2, 3 } do
      neap.set_num_threads(threads)
      assert.equal(33554432.0, x:sum():item())
    end
    x:release()
  end)

  it("uc-A06 softmax and log_softmax of large inputs stay finite", function()
    local x = neap.tensor({ 1000, 1001, 1002 }, { dtype = "float32" })
    near_all({ 0.09003057, 0.24472847, 0.66524096 }, x:softmax(1))
    near_all({ -2.40760596, -1.40760596, -0.40760596 }, x:log_softmax(1))
  end)

  it("uc-A07 logsumexp with -inf", function()
    local x = neap.tensor({ { 1, 2 }, { -inf, -inf }, { -inf, 1 }, { 1000, 1000 } }, { dtype = "float64" })
    near_all({ 2.3132616875, -inf, 1, 1000.6931471806 }, x:logsumexp(2), 1e-9)
  end)

  it("uc-A09 writing through an expanded tensor is refused before anything is written", function()
    local base = neap.ones(1, 1)
    local err = refused("E-OVERLAP", function() base:expand(4, 5):add_(1) end)
    assert.truthy(err:find("clone", 1, true))
    assert.equal(1.0, base:item())
  end)

  it("uc-A11 empty reductions", function()
    local a, b, c = neap.zeros(0), neap.zeros(2, 0), neap.zeros(0, 3)
    for _, x in ipairs { a, b, c } do
      assert.equal(0.0, x:sum():item())
      assert.equal(1.0, x:prod():item())
      local m = x:mean():item()
      assert.is_true(m ~= m)
      refused("E-SHAPE", function() return x:max() end)
      refused("E-SHAPE", function() return x:argmax() end)
    end
    shape_is((b:max(1)), 0)
    refused("E-SHAPE", function() return b:max(2) end)
    near_all({ 0, 0, 0 }, c:sum(1))
    near_all({ 1, 1 }, b:prod(2))
  end)

  it("uc-A12 matrix products with an empty inner dimension are zero", function()
    local y = neap.zeros(2, 0):matmul(neap.zeros(0, 3))
    shape_is(y, 2, 3)
    near_all({ 0, 0, 0, 0, 0, 0 }, y)
    shape_is(neap.zeros(0, 4):matmul(neap.zeros(4, 5)), 0, 5)
  end)

  it("uc-A13 integer division faults are errors or documented values, never signals", function()
    for _, dtype in ipairs { "int8", "int32", "int64" } do
      local x = neap.tensor({ 7, -7 }, { dtype = dtype })
      for _, op in ipairs { "floordiv", "remainder", "fmod" } do
        if rawget(neap, op) then
          local zero = neap.zeros({ 2 }, { dtype = dtype })
          local ok, err = pcall(neap[op], x, zero)
          if not ok then assert.is_not_nil(neap.error_code(err)) end
        end
      end
      local least = ({ int8 = -128, int32 = -2147483648, int64 = math.mininteger })[dtype]
      local m = neap.tensor({ least, least }, { dtype = dtype })
      pcall(function() return m // -1, m % -1 end)
      assert.equal(inf, (x / neap.zeros({ 2 }, { dtype = dtype })):item(1))
    end
  end)

  it("uc-A14 remainder signs follow Lua", function()
    local x, y = neap.tensor { -7, 7 }, neap.tensor { 3, -3 }
    assert.is_true(neap.equal(x % y, { 2, -2 }))
    near_all({ -0.5 }, neap.tensor { 5.5 } % neap.tensor { -2.0 })
    assert.is_true(neap.equal(x // y, { -3, -3 }))
    if rawget(neap, "fmod") then
      assert.is_true(neap.equal(neap.fmod(x, y), { -1, 1 }))
      near_all({ 1.5 }, neap.fmod(neap.tensor { 5.5 }, neap.tensor { -2.0 }))
    end
  end)

  it("uc-A15 arange includes both ends and refuses a zero step", function()
    assert.equal(9, neap.arange(0.1, 0.5, 0.05):numel())
    assert.equal(11, neap.arange(0, 1, 0.1):numel())
    assert.equal(50, neap.arange(0, 1, 1 / 49):numel())
    assert.equal(11, neap.arange(0, 1, 0.1, { dtype = "float32" }):numel())
    assert.is_false(pcall(neap.arange, 0, 1, 0))
    assert.is_false(pcall(neap.arange, 0, 1, 0.5, { dtype = "int64" }))
    assert.is_false(pcall(neap.arange, 10))
  end)

  it("uc-A17 one index base everywhere", function()
    local x = neap.tensor { { 10.0, 30.0, 20.0 } }
    local _, i = x:max(2)
    assert.is_true(neap.equal(i, { 2 }))
    assert.is_true(neap.equal(x:argmax(2), { 2 }))
    local at = i:unsqueeze(2)
    assert.is_true(neap.equal(x:gather(2, at), { { 30.0 } }))
    assert.is_true(neap.equal(x:index_select(2, i), { { 30.0 } }))
    local table_ = neap.tensor { { 1.0 }, { 2.0 }, { 3.0 } }
    assert.is_true(neap.equal(neap.embedding(table_, i), { { 2.0 } }))
    if rawget(neap, "topk") then
      local values, places = x:topk(2)
      assert.is_true(neap.equal(values, { { 30.0, 20.0 } }))
      assert.is_true(neap.equal(places, { { 2, 3 } }))
    end
    if rawget(neap, "sort") then
      local values, places = x:sort(2)
      assert.is_true(neap.equal(values, x:gather(2, places)))
    end
    if rawget(neap, "nonzero") then assert.is_true(neap.equal(x:gt(15):nonzero(), { { 1, 2 }, { 1, 3 } })) end
    if rawget(neap, "one_hot") then assert.is_true(neap.equal(neap.one_hot(i, 3), { { 0, 1, 0 } })) end
    if rawget(neap, "multinomial") then
      assert.is_true(neap.equal(neap.tensor({ 0.0, 1.0, 0.0 }):multinomial(1), { 2 }))
    end
  end)

  it("uc-A18 position 0 and positions out of range are errors", function()
    local x, m = neap.tensor { 1, 2, 3 }, neap.zeros(2, 3)
    for _, k in ipairs { 0, 4, -4 } do
      refused("E-INDEX", function() return x[k] end)
      refused("E-INDEX", function() x[k] = 9 end)
    end
    assert.equal(3, x[-1]:item())
    assert.is_true(neap.equal(x, { 1, 2, 3 }))
    refused("E-DIMS", function() return m:sum(0) end)
    refused("E-DIMS", function() return m:sum(3) end)
    assert.is_false(pcall(function() return m:narrow(2, 3, 2) end))
  end)

  it("uc-A19 64-bit integers are exact", function()
    for _, v in ipairs { 9007199254740993, 10151188881778163, math.mininteger, math.maxinteger } do
      local t = neap.tensor { v }
      assert.equal("int64", t.dtype)
      assert.equal(v, t:item())
      assert.equal(v, t:totable()[1])
      assert.equal(v, (t * 1):item())
      assert.is_true(t:eq(v):all())
      assert.truthy(tostring(t):find(tostring(v), 1, true))
    end
  end)

  it("uc-A20 type promotion with numbers", function()
    local i, f = neap.tensor({ 1, 2 }, { dtype = "int32" }), neap.tensor({ 1, 2 }, { dtype = "float32" })
    assert.equal("int32", (i * 2).dtype)
    assert.equal("float32", (i * 1.5).dtype)
    assert.equal("float32", (f + 1.5).dtype)
    assert.equal("float64", (f + neap.tensor({ 1, 2 }, { dtype = "float64" })).dtype)
    assert.equal("int64", (neap.tensor { true } + 1).dtype)
    assert.equal("float32", (neap.full({}, 1.0, { dtype = "float64" }) + f).dtype)
  end)

  it("uc-A22 rounding to float16 and bfloat16", function()
    local function through(v, dtype)
      return neap.tensor({ v }, { dtype = "float32" }):to(dtype):to("float32"):item()
    end
    assert.equal(1.0, through(1.00390625, "bfloat16"))
    assert.equal(1.015625, through(1.01171875, "bfloat16"))
    assert.equal(65504.0, through(65519, "float16"))
    assert.equal(inf, through(65520, "float16"))
    assert.equal(0.0, through(2.98e-8, "float16"))
    near(5.9604645e-8, through(5.9604645e-8, "float16"), 1e-13)
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local v = through(nan, dtype)
      assert.is_true(v ~= v)
    end
  end)

  it("uc-A23 NaN ordering", function()
    local x = neap.tensor { { 1, nan, 3 }, { 2, nan, 1 } }
    local v, i = x:max(2)
    near_all({ nan, nan }, v)
    assert.is_true(neap.equal(i, { 2, 2 }))
    assert.is_true(neap.equal(x:argmax(2), { 2, 2 }))
    near_all({ 1, nan, 2, 2, nan, 1 }, x:clamp { min = 0, max = 2 })
    if rawget(neap, "sort") then near_all({ 1, 3, nan, 1, 2, nan }, (x:sort(2))) end
  end)

  it("uc-A25 transposed then reshaped", function()
    local x = neap.arange(1, 6, 1, { dtype = "float32" }):view(2, 3)
    local t = x:t()
    refused("E-VIEW", function() return t:view(6) end)
    near_all({ 1, 4, 2, 5, 3, 6 }, t:reshape(6))
    local copy = t:contiguous()
    assert.is_true(neap.equal(t:exp(), copy:exp()))
    assert.is_true(neap.equal(t + t, copy + copy))
    assert.is_true(neap.equal(t:sum(1), copy:sum(1)))
    assert.is_true(neap.equal(t:matmul(x), copy:matmul(x)))
    assert.is_true(neap.equal(t:softmax(2), copy:softmax(2)))
    local path = os.tmpname()
    neap.save(path, { t = t })
    assert.is_true(neap.equal(neap.load(path).t, copy))
    os.remove(path)
  end)

  it("uc-A26 index_add with repeats", function()
    local x = neap.zeros(3)
    local y = x:index_add(1, neap.tensor { 1, 1, 3 }, neap.tensor { 1.0, 2.0, 4.0 })
    assert.is_true(neap.equal(y, { 3.0, 0.0, 4.0 }))
  end)

  it("uc-A27 variance edge cases", function()
    local one = neap.tensor { 5.0 }
    local v = one:var():item()
    assert.is_true(v ~= v)
    assert.equal(0.0, one:var({ correction = 0 }):item())
    near(1.0, neap.tensor({ 1e8, 1e8 + 1, 1e8 + 2 }, { dtype = "float64" }):var():item(), 1e-9)
    near(1.0, neap.tensor({ 1e4, 1e4 + 1, 1e4 + 2 }, { dtype = "float32" }):var():item())
  end)

  it("uc-A30 shape errors read well", function()
    local a, b = neap.ones(2, 3), neap.ones(4, 3)
    local function says(err, ...)
      assert.truthy(err:match("^[^\n]*user_cases_a_spec%.lua:%d+: "), err)
      assert.falsy(err:find("%.c:%d"))
      for _, word in ipairs { ... } do assert.truthy(err:find(word, 1, true), err) end
    end
    says(refused("E-SHAPE", function() local _ = a + b end), "add", "[2,3]", "[4,3]")
    says(refused("E-SHAPE", function() local _ = a:matmul(a) end), "matmul", "[2,3]")
    says(refused("E-SHAPE", function() local _ = neap.cat({ a, neap.ones(2, 4) }, 1) end), "cat", "[2,3]", "[2,4]")
  end)
end)
