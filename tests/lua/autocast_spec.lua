--- neap.autocast: which ops run in which dtype, what the casts cost a gradient, and where they are off.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local refused = help.refused

local function random(dtype, ...)
  local t = neap.randn(...):to(dtype)
  return t:requires_grad_()
end

-- The policy, written down a second time: op -> a call of it. Everything else runs as its operands are.
local low = {
  matmul = function(x) return x:matmul(x:t()) end,
  linear = function(x) return neap.linear(x, x:detach(), x:detach():select(2, 1)) end,
}
local ids = neap.tensor { 1, 2, 3 }
local wide = {
  exp = neap.exp, log = function(x) return x:abs():log() end, log1p = function(x) return x:abs():log1p() end,
  rsqrt = function(x) return x:abs():rsqrt() end, reciprocal = neap.reciprocal, softplus = neap.softplus,
  pow = function(x) return x ^ 2 end, sum = neap.sum, mean = neap.mean, prod = neap.prod,
  softmax = function(x) return x:softmax(1) end, log_softmax = function(x) return x:log_softmax(-1) end,
  logsumexp = function(x) return x:logsumexp(1) end,
  cumsum = function(x) return x:cumsum(1) end, cumprod = function(x) return x:cumprod(1) end,
  var = neap.var, std = neap.std, var_mean = function(x) return (neap.var_mean(x)) end, norm = neap.norm,
  expm1 = neap.expm1, exp2 = neap.exp2, log2 = function(x) return x:abs():log2() end,
  log10 = function(x) return x:abs():log10() end, tan = neap.tan, sinh = neap.sinh, cosh = neap.cosh,
  asin = function(x) return (x * 0.1):asin() end, acos = function(x) return (x * 0.1):acos() end,
  layer_norm = function(x) return neap.layer_norm(x, neap.ones(4), neap.zeros(4)) end,
  rms_norm = function(x) return neap.rms_norm(x, neap.ones(4)) end,
  nll_loss = function(x) return neap.nll_loss(x, ids) end,
  cross_entropy = function(x) return neap.cross_entropy(x, ids) end,
}
local as_given = {
  add = function(x) return x + x end, mul = function(x) return x * 2 end, relu = neap.relu, tanh = neap.tanh,
  gelu = neap.gelu, sqrt = function(x) return x:abs():sqrt() end, cat = function(x) return neap.cat({ x, x }, 1) end,
  max = function(x) return (x:max(1)) end, view = function(x) return x:reshape(-1) end,
}

describe("autocast", function()
  before_each(function() neap.seed(5) end)

  it("runs products in its dtype, what needs range in float32, the rest as it is", function()
    for _, cast in ipairs { "float16", "bfloat16" } do
      for _, given in ipairs { "float32", "float16", "bfloat16" } do
        local x = random(given, 3, 4)
        local function expect(calls, dtype)
          for name, call in pairs(calls) do
            assert.is_not_nil(neap.ops[name])
            assert.equal(dtype, neap.autocast(cast, call, x).dtype, name .. " of " .. given .. " under " .. cast)
          end
        end
        expect(low, cast)
        expect(wide, "float32")
        expect(as_given, given)
      end
    end
  end)

  it("is a flag of the op's entry, of these ops and no others", function()
    for _, op in ipairs(neap.ops) do
      assert.equal(low[op.name] ~= nil, op:tagged "cast_low", op.name)
      assert.equal(wide[op.name] ~= nil, op:tagged "cast_float32", op.name)
    end
  end)

  it("leaves float64, integers and in-place forms alone", function()
    local _ <close> = neap.autocast "bfloat16"
    local x, y = random("float64", 3, 4), random("float32", 4, 3)
    assert.equal("float64", x:matmul(x:t()).dtype)
    refused("E-DTYPE", neap.matmul, x, y) -- as without autocast: no half of the operands is cast
    assert.equal("float64", x:exp().dtype)
    assert.equal("int64", neap.tensor({ 1, 2 }):sum().dtype)
    local z = y:detach():to "float16"
    assert.equal("float16", z:exp_().dtype)
  end)

  it("is the same as casts written by hand, and a leaf's gradient has the leaf's dtype", function()
    local x, w, b = random("float32", 5, 4), random("float32", 3, 4), random("float32", 3)
    local function gradients(f)
      local loss = f()
      local g = neap.grad(loss, { x = x, w = w, b = b })
      for _, t in pairs(g) do assert.equal("float32", t.dtype) end
      return neap.hash { loss = loss, g = g }
    end
    local byhand = gradients(function()
      local h = neap.linear(x:to "bfloat16", w:to "bfloat16", b:to "bfloat16"):tanh()
      return h:matmul(h:t()):to "float32":log_softmax(-1):sum()
    end)
    local function f()
      local h = neap.linear(x, w, b):tanh()
      return h:matmul(h:t()):log_softmax(-1):sum()
    end
    assert.equal(byhand, gradients(function() return neap.autocast("bfloat16", f) end))
    assert.are_not.equal(byhand, gradients(f))
  end)

  it("does not reach into backward: in or out of the scope, the same bits", function()
    local x, w = random("float32", 6, 6), random("float32", 6, 6)
    local function loss() return neap.autocast("bfloat16", function() return x:matmul(w):tanh():square():sum() end) end
    local function gradient(loss_of)
      loss_of:backward()
      local g = neap.hash { x.grad, w.grad }
      x.grad, w.grad = nil, nil
      return g
    end
    local want = gradient(loss())
    assert.equal(want, neap.autocast("bfloat16", gradient, loss()))
    -- float32 ops whose gradient is a product: recorded outside, differentiated inside
    local function outside() return x:matmul(w):square():sum() end
    want = gradient(outside())
    assert.equal(want, neap.autocast("bfloat16", gradient, outside()))
  end)

  it("nests: the innermost counts, and each ends with its scope", function()
    local x = random("float32", 2, 2)
    local function dtype() return x:matmul(x).dtype end
    local outer = neap.autocast "bfloat16"
    assert.equal("float32", neap.autocast("float16", { enabled = false }, dtype))
    assert.equal("float16", neap.autocast("float16", dtype))
    assert.is_false(pcall(neap.autocast, "float16", error))
    assert.equal("bfloat16", dtype())
    local inner = neap.autocast("float16", { enabled = false })
    outer:close()
    assert.equal("float32", dtype())
    inner:close()
    assert.equal("float32", dtype())
    assert.same({ 1, nil, 3 }, { neap.autocast("float16", function(...) return ... end, 1, nil, 3) })
  end)

  it("comes below op modes: they see the calls as they are written", function()
    local x, seen = random("float32", 2, 2), {}
    local function look(op, call, ...)
      seen[#seen + 1] = op.name
      for _, t in ipairs { ... } do assert.equal("float32", t.dtype) end
      return call(...)
    end
    local y = neap.autocast("bfloat16", neap.op_mode, look, function() return x:matmul(x) end)
    assert.equal("bfloat16", y.dtype)
    assert.same({ "matmul" }, seen)
  end)

  it("casts an operand each time it is used, and nothing that has the dtype", function()
    local x, w = random("float32", 2, 2), random("bfloat16", 2, 2)
    neap.counters(true)
    neap.autocast("bfloat16", function() return x:matmul(w) + x:matmul(w) end)
    assert.equal(2, neap.counters().to.calls)
    neap.counters(true)
    neap.autocast("bfloat16", function() return w:matmul(w):tanh() end)
    assert.equal(0, neap.counters().to.calls)
  end)

  it("refuses other dtypes and unknown options", function()
    for _, bad in ipairs { "float32", "float64", "int64", "bool" } do
      local err = refused("E-DTYPE", neap.autocast, bad)
      assert.is_truthy(err:find(bad, 1, true) and err:find("float16 or bfloat16", 1, true), err)
    end
    refused("E-DTYPE", neap.autocast, "float8")
    refused("E-UNKNOWN-OPTION", neap.autocast, "float16", { enable = false })
    refused("E-ARG", neap.autocast, "float16", nil)
    assert.equal("float32", neap.ones(2, 2):matmul(neap.ones(2, 2)).dtype)
  end)

  it("loses nothing when memory runs out in a cast", function()
    local x = neap.randn(64, 64)
    collectgarbage()
    collectgarbage()
    local before = help.alive()
    local function run() neap.scope(function() x:requires_grad_():matmul(x):exp():sum():backward() end) end
    local live, failed = neap.memory_stats().live, 0
    for limit = live + 1024, live + 40 * 1024, 1024 do
      local ok, err = pcall(neap.memory_limit, x.device, limit, neap.autocast, "bfloat16", run)
      if not ok then
        failed = failed + 1
        assert.equal("E-LIMIT", neap.error_code(err), tostring(err))
      end
      if x.grad then x.grad:release() end
      x.grad = nil
      assert.same(before, help.alive())
    end
    assert.is_true(failed > 5)
  end)
end)
