--- What a hostile or clumsy user does to gradients and checkpoints: each of these once crashed, leaked or was silently
-- wrong.
local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint

local NR = { use_reentrant = false }

local function leaf(...)
  return neap.tensor({ ... }, { dtype = "float64", requires_grad = true })
end

local function refused(code, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), tostring(err))
  return err
end

describe("hostile use", function()
  it("a hook may remove itself and the hooks after it", function()
    local w, calls = leaf(1, 2), 0
    local first, second
    first = w:register_hook(function()
      calls = calls + 1
      first:remove()
      second:remove()
    end)
    second = w:register_hook(function()
      calls = calls + 10
    end)
    local y = w * w
    local node
    node = y.grad_fn:register_hook(function()
      calls = calls + 100
      node:remove()
    end)
    y:sum():backward()
    assert.equal(101, calls)
    assert.is_true(neap.equal(w.grad, { 2, 4 }))
  end)

  it("an unpack hook must return the shape, dtype and device that was saved", function()
    local a = leaf(1, 2, 3)
    for _, wrong in ipairs { neap.zeros(1, { dtype = "float64" }), neap.zeros(3), neap.zeros(50, 50) } do
      local uses = { function() return a:softmax(1) end, function() return a * a end, function() return a:exp() end }
      for _, f in ipairs(uses) do
        local y = neap.saved_tensors_hooks(function(t) return t end, function() return wrong end, f)
        refused("E-UNPACK-TYPE", function() y:sum():backward() end)
      end
    end
    assert.is_nil(a.grad)
  end)

  it("a gradient of the wrong shape or dtype is refused, from hooks and custom functions", function()
    local x = leaf(1, 2)
    for _, make in ipairs { function(g) return g:to "float32" end, function(g) return g:narrow(1, 1, 1) end } do
      local h = x:register_hook(make)
      refused("E-GRADIENT", function() (x * x):sum():backward() end)
      h:remove()
      local F = neap.Function("F", {
        forward = function(_, t) return t * 1 end,
        backward = function(_, g) return make(g) end,
      })
      refused("E-GRADIENT", function() F(x):sum():backward() end)
    end
  end)

  it("backward with inputs fills a result's .grad; an empty list is an error", function()
    local x = leaf(1, 2)
    local b = x * 2
    (b * b):sum():backward(nil, { inputs = { b } })
    assert.is_true(neap.equal(b.grad, { 4, 8 }))
    assert.is_nil(x.grad)
    refused("E-ARG", function() (x * x):sum():backward(nil, { inputs = {} }) end)
  end)

  it("what a hook does to its gradient in place is seen by nobody else", function()
    local a, go = leaf(1, 2), neap.ones(2, { dtype = "float64" })
    a:register_hook(function(g) g:mul_(100) end);
    (a + 0):backward(go)
    assert.is_true(neap.equal(go, { 1, 1 }))
  end)

  it("a view made under no_grad is never written to while gradients are recorded", function()
    local b, w = neap.ones(4), neap.ones(2, { requires_grad = true })
    local v = neap.no_grad(function() return b[{ { 1, 2 } }] end)
    refused("E-INPLACE", function() v:mul_(w) end)
    assert.is_true(neap.equal(b, { 1, 1, 1, 1 }))
  end)

  it("a checkpoint sees captured tensors and parameters that changed before backward", function()
    local a, c = leaf(1, 2), neap.ones(2, { dtype = "float64" })
    local y = checkpoint(function(x) return (x * c):exp() end, NR, a)
    c:mul_(3)
    refused("E-INPLACE", function() y:sum():backward() end)

    local net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    local z = checkpoint(net, NR, neap.ones(2, { requires_grad = true })):sum()
    neap.no_grad(function() net:parameters()[1]:mul_(0.5) end)
    refused("E-INPLACE", function() z:backward() end)

    local d = neap.ones(2, { dtype = "float64" })
    y = checkpoint(function(x) return (x * d):exp() end, NR, a)
    d = neap.ones(2, { dtype = "float64" })
    refused("E-INPLACE", function() y:sum():backward() end)

    local e = neap.ones(2, { dtype = "float64" })
    y = checkpoint(function(x)
      e:mul_(2)
      return (x * e):exp()
    end, NR, a)
    refused("E-INPLACE", function() y:sum():backward() end)
  end)

  it("a backward inside a checkpointed function counts once", function()
    local function f(x)
      (x * x):sum():backward()
      return (x * x):sin()
    end
    local a, b = leaf(1, 2), leaf(1, 2)
    f(a):sum():backward()
    checkpoint(f, NR, b):sum():backward()
    assert.equal(neap.hash(a.grad), neap.hash(b.grad))
  end)

  it("a region that changes its own input in place does not hold itself", function()
    collectgarbage()
    collectgarbage()
    local before = neap.memory_stats()
    for _ = 1, 20 do
      for _, name in ipairs { "exp_", "tanh_" } do
        neap.scope(function()
          local x = leaf(1, 2) * 1
          local y = checkpoint(function(t) return t[name](t) end, NR, x)
          refused("E-INPLACE", function() y:sum():backward() end)
        end)
      end
    end
    collectgarbage()
    collectgarbage()
    local after = neap.memory_stats()
    assert.equal(before.regions, after.regions)
    assert.equal(before.nodes, after.nodes)
    assert.equal(before.storages, after.storages)
  end)
end)

describe("detect_anomaly", function()
  it("names the op whose backward gives the first NaN, and only while it is on", function()
    local function f()
      local x = leaf(0, 1)
      local y = x:square():sum():sqrt() * 0 -- the square root of a sum is fine, 0 * inf is not
      local z = (x - x) / (x - x) -- NaN in the forward
      return (y + z):sum()
    end
    local err = refused("E-ANOMALY", function() neap.detect_anomaly(function() f():backward() end) end)
    assert.truthy(err:find("backward of %a+ gives NaN"))
    f():backward()
    local x = leaf(1, 2)
    neap.detect_anomaly(function() (x * x):sum():backward() end)
    assert.is_true(neap.equal(x.grad, { 2, 4 }))
  end)
end)
