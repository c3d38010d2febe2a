--- Numbers that meet integer tensors: exact or refused, never cut; and the ranges that options must keep.
local neap = require "neap"

local function refused(code, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, "nothing was raised")
  assert.equal(code, neap.error_code(e), tostring(e))
  return e
end

local function int(values, dtype) return neap.tensor(values, { dtype = dtype }) end

describe("a number and an integer tensor", function()
  it("a number beyond the dtype is refused however the op is written", function()
    local x = int({ 5, 6 }, "uint8")
    local ways = {
      function() return x + 256 end, function() return 256 + x end, function() return x - 256 end,
      function() return x * 256 end, function() return x // 256 end, function() return x % 256 end,
      function() return 256 // x end, function() return 256 % x end, function() return x ^ 256 end,
      function() return x & 256 end, function() return x | 256 end, function() return x ~ 256 end,
      function() return neap.maximum(x, 256) end, function() return neap.minimum(x, -1) end,
      function() return x:add_(256) end, function() return x:mul_(-1) end,
      function() return x:floor_divide_(256) end, function() return x:fill_(256) end,
      function() return x:copy_(256) end, function() return neap.full_like(x, 256) end,
      function() x[1] = 256 end, function() x[{}] = -1 end, function() x[x:gt(0)] = 256 end,
      function() x[neap.tensor({ 1 })] = 256 end, function() x[{ { 1, 2 } }] = { 256, 1 } end,
      function() return x:masked_fill(x:gt(0), 256) end, function() return neap.where(x:gt(0), x, 256) end,
      function() return neap.full({ 2 }, 256, { dtype = "uint8" }) end,
      function() return neap.full({ 2 }, 256.0, { dtype = "uint8" }) end,
      function() return neap.tensor({ 256.0 }, { dtype = "uint8" }) end,
      function() return x:clamp { min = 256 } end,
    }
    for i, way in ipairs(ways) do
      local e = refused("E-DTYPE", way)
      assert.truthy(e:find("uint8", 1, true), i .. ": " .. e)
    end
    assert.same({ 5, 6 }, x:totable())
    refused("E-DTYPE", function() return int({ 5 }, "int32") % (1 << 33) end)
    refused("E-DTYPE", function() return int({ 5 }, "int32") // (1 << 32) end)
  end)

  it("a 0-dim divisor that becomes 0 in the dtype is a zero divisor", function()
    refused("E-ARG", function() return int({ 5 }, "uint8") // neap.tensor(256) end)
    refused("E-ARG", function() return int({ 5 }, "int32") % neap.tensor(1 << 32) end)
  end)

  it("fractions, NaN and what is beyond 2^63 are refused where integers are stored", function()
    local x = int({ 1, 2 }, "int64")
    for _, v in ipairs { 1.5, 0 / 0, 1e30, math.huge } do
      refused("E-DTYPE", function() return x:fill_(v) end)
      refused("E-DTYPE", function() return x:copy_(v) end)
      refused("E-DTYPE", function() x[1] = v end)
      refused("E-DTYPE", function() return neap.full_like(x, v) end)
      refused("E-DTYPE", function() return x:masked_fill(x:gt(0), v) end)
    end
    refused("E-DTYPE", function() return x:clamp { min = 0.5 } end)
    refused("E-DTYPE", function() return x:clamp { max = 1e30 } end)
    assert.same({ 1, 2 }, x:totable())
  end)

  it("64-bit integers arrive exactly", function()
    local odd, most, least = (1 << 53) + 1, math.maxinteger, math.mininteger
    for _, v in ipairs { odd, -odd, most, most - 1, least, least + 1, 1 << 62 } do
      local x = int({ 1, 2 }, "int64")
      assert.equal(v, x:fill_(v)[1]:item())
      assert.equal(v, neap.full_like(x, v)[2]:item())
      assert.equal(v, x:masked_fill(neap.tensor { true, false }, v)[1]:item())
    end
    local x = int({ least, 0, most }, "int64")
    assert.same({ least, 0, most - 1 }, x:clamp({ max = most - 1 }):totable())
    assert.same({ least + 1, 0, most }, x:clamp({ min = least + 1 }):totable())
    assert.same({ least, 0, odd }, x:clamp({ max = odd }):totable())
    assert.same({ 0, 0, most }, x:clamp({ min = 0, max = math.huge }):totable())
  end)

  it("comparisons are exact", function()
    assert.same({ true }, int({ 200 }, "uint8"):lt(300):totable())
    assert.same({ false }, int({ 44 }, "uint8"):eq(300):totable())
    assert.same({ true }, int({ 44 }, "uint8"):ne(300):totable())
    assert.same({ true }, int({ 0 }, "uint8"):gt(-1):totable())
    assert.same({ true }, int({ 5 }, "int32"):lt(1 << 32):totable())
    assert.same({ false }, int({ 44 }, "uint8"):eq(neap.tensor(300)):totable())
    assert.same({ true }, int({ 1 << 24 | 1 }, "int64"):gt((1 << 24) + 0.5):totable())
    assert.same({ false }, int({ (1 << 53) + 1 }, "int64"):eq(2.0 ^ 53):totable())
    assert.same({ true, false }, neap.tensor({ true, false }):eq(1):totable())
    assert.same({ true }, int({ 5 }, "int8"):lt(5.5):totable())
    assert.same({ false }, int({ 5 }, "int8"):eq(0 / 0):totable())
  end)
end)

describe("ranges", function()
  it("one_hot refuses ids that are no class", function()
    refused("E-LABEL", neap.one_hot, neap.tensor { 1, 4 }, 3)
    refused("E-LABEL", neap.one_hot, neap.tensor { 0, 1 }, 3)
    refused("E-LABEL", neap.one_hot, neap.tensor { 3 }, 3, { base = 0 })
    assert.same({ { 0, 0, 1 } }, neap.one_hot(neap.tensor { 3 }, 3):totable())
    local none = neap.one_hot(neap.zeros({ 0 }, { dtype = "int64" }), 3)
    assert.equal(0, none.shape[1])
  end)

  it("randint refuses a range that its dtype does not hold", function()
    refused("E-DTYPE", neap.randint, 0, 256, { 3 }, { dtype = "uint8" })
    refused("E-DTYPE", neap.randint, -1, 5, { 3 }, { dtype = "uint8" })
    refused("E-DTYPE", neap.randint, 0, 2, { 3 }, { dtype = "bool" })
    refused("E-DTYPE", neap.randint, 0, 3000, { 3 }, { dtype = "float16" })
    neap.randint(0, 255, { 3 }, { dtype = "uint8" })
    neap.randint(-2048, 2048, { 3 }, { dtype = "float16" })
  end)

  it("uniform_ and normal_ refuse bounds that are no bounds", function()
    local x = neap.zeros(3)
    for _, b in ipairs { { 2, 1 }, { 0, math.huge }, { 0 / 0, 1 }, { -3e38, 3e38 }, { 0, 1e300 } } do
      refused("E-ARG", x.uniform_, x, b[1], b[2])
    end
    refused("E-ARG", x.normal_, x, 0 / 0, 1)
    refused("E-ARG", x.normal_, x, 0, -1)
    refused("E-ARG", x.normal_, x, 0, math.huge)
    assert.same({ 1, 1, 1 }, x:uniform_(1, 1):totable())
  end)

  it("eps is finite and not negative", function()
    local x = neap.ones(2, 3)
    for _, eps in ipairs { -1, 0 / 0, math.huge } do
      refused("E-ARG", neap.layer_norm, x, nil, nil, { eps = eps })
      refused("E-ARG", neap.rms_norm, x, nil, { eps = eps })
    end
    neap.rms_norm(x, nil, { eps = 0 })
  end)
end)

describe("neap.tensor", function()
  it("refuses options among the data", function()
    local e = refused("E-ARG", neap.tensor, { 1, 2, dtype = "float64" })
    assert.truthy(e:find("dtype", 1, true) and e:find("{dtype =", 1, true), e)
    refused("E-ARG", neap.tensor, { dtype = "float64" })
    refused("E-ARG", neap.tensor, { { 1, 2 }, { 3, 4, name = "x" } })
    refused("E-ARG", neap.tensor, { 1, 2, nil, 4, [9] = 3 })
  end)

  it("refuses objects as data, but takes sizes", function()
    refused("E-ARG", neap.tensor, setmetatable({ 1, 2 }, {}))
    refused("E-ARG", neap.tensor, { { 1 }, setmetatable({ 2 }, {}) })
    assert.same({ 2, 3 }, neap.tensor(neap.zeros(2, 3).shape):totable())
  end)
end)
