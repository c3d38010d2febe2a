--- Tensors that a checkpointed function captured live as long as the region may need them, and no longer.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint

local opts = { use_reentrant = false }

local function leaf() return neap.tensor({ 0.3, -1.2, 2.5 }, { requires_grad = true }) end

local function handles() return neap.memory_stats().storages end

describe("a captured tensor", function()
  it("of a module call survives it until backward", function()
    local Masked = nn.Module "Masked"
    function Masked:init() self.l = nn.Linear(3, 3) end
    function Masked:forward(x)
      local mask = x * 2
      return checkpoint(function(t) return self.l(t) * mask end, opts, x)
    end
    local m, x = Masked(), neap.randn(2, 3)
    local y = m(x)
    y:sum():backward()
    local got = neap.hash(m.l.weight.grad)
    m:zero_grad();
    (m.l(x) * (x * 2)):sum():backward()
    assert.equal(neap.hash(m.l.weight.grad), got)
  end)

  it("is found in plain tables and in captured functions, and beside arguments that are functions", function()
    local x = leaf()
    local y = neap.scope(function()
      local deep = { { { m = x * 2 } } }
      local k = x * 3
      local function inner(t) return t * k end
      local function through(f, t) return f(t) end
      local q = x * 5
      local a = checkpoint(function(t) return (inner(t) * deep[1][1].m):sin() end, opts, x)
      local b = checkpoint(through, opts, function(t) return (t * q):sin() end, x)
      return a + b
    end)
    y:sum():backward()
    local got = x.grad:clone()
    x.grad = nil;
    ((x * (x * 3) * (x * 2)):sin() + (x * (x * 5)):sin()):sum():backward()
    assert.is_true(neap.allclose(x.grad, got))
  end)

  it("is released with its region: after backward, or when the result is dropped", function()
    local x = leaf()
    local mask
    local function forward()
      return neap.scope(function()
        mask = x:detach() * 2
        return checkpoint(function(t) return (t * mask):sin():exp() end, opts, x)
      end)
    end
    local y = forward()
    assert.is_true(neap.equal(mask, x:detach() * 2)) -- the region needs it: it may be used
    y:sum():backward()
    local ok, err = pcall(function() return mask + 1 end)
    assert.is_false(ok)
    assert.equal("E-RELEASED", neap.error_code(err))
    assert.is_truthy(err:find("checkpoint_capture_spec.lua:%d+, the end of the scope opened at"))
    y = forward()
    y:release()
    assert.is_false(pcall(function() return mask + 1 end))
  end)

  it("stays usable while its own scope is open", function()
    local x = leaf()
    neap.scope(function()
      local mask = x:detach() * 2
      local y = checkpoint(function(t) return (t * mask):sin() end, opts, x)
      y:sum():backward()
      assert.is_true(neap.equal(mask * 1, x:detach() * 2))
    end)
  end)

  it("that leaves its scope belongs to whom it was given to", function()
    local x = leaf()
    local y, mask = neap.scope(function()
      local m = x:detach() * 2
      return checkpoint(function(t) return (t * m):sin() end, opts, x), m
    end)
    y:sum():backward()
    assert.is_true(neap.equal(mask, x:detach() * 2))
    local kept
    y = neap.scope(function()
      kept = x:detach() * 3
      return checkpoint(function(t) return (t * kept):sin() end, opts, x)
    end)
    neap.keep(kept) -- an orphan already
    y:sum():backward()
    assert.is_true(neap.equal(kept, x:detach() * 3))
  end)

  it("by two regions goes with the later one", function()
    local x = leaf()
    local mask
    local a, b = neap.scope(function()
      mask = x:detach() * 2
      local function f(t) return (t * mask):sin() end
      return checkpoint(f, opts, x), checkpoint(f, opts, x)
    end)
    a:sum():backward()
    assert.equal(3, mask:numel())
    b:sum():backward()
    assert.is_false(pcall(function() return mask + 1 end))
  end)

  it("by an inner region may be of the outer one's forward", function()
    local x = leaf()
    local function outer(t)
      local mask = t * 2
      return checkpoint(function(u) return (u * mask):sin():exp() end, opts, t):sin()
    end
    checkpoint(outer, opts, x):sum():backward()
    local got = neap.hash(x.grad)
    x.grad = nil;
    ((x * (x * 2)):sin():exp()):sin():sum():backward()
    assert.equal(neap.hash(x.grad), got)
  end)

  it("leaves nothing behind when the forward fails, or grad mode is off", function()
    local x = leaf()
    local mask
    local function f(t) return (t * mask):sin() end
    assert.is_false(pcall(neap.scope, function()
      mask = x:detach() * 2
      checkpoint(function(t)
        f(t)
        error "boom"
      end, opts, x)
    end))
    assert.is_false(pcall(function() return mask + 1 end))
    neap.scope(function()
      mask = x:detach() * 2
      neap.no_grad(checkpoint, f, opts, x)
    end)
    assert.is_false(pcall(function() return mask + 1 end))
  end)

  it("in a table with a metatable is the owner's affair; huge and cyclic tables are no trouble", function()
    local x = leaf()
    local cycle, huge = {}, {}
    cycle.me = { cycle }
    for i = 1, 5000 do huge[i] = { i } end
    local object = setmetatable({ k = 2 }, { __index = table })
    local y = checkpoint(function(t) return (t * object.k * #huge * (cycle.me and 1 or 2)):sin() end, opts, x)
    y:sum():backward()
    assert.is_truthy(x.grad)
  end)

  it("that is a remembered result of once lives as long", function()
    local x = leaf()
    local noise
    local function f(t)
      noise = checkpoint.once(function() return neap.rand(3) end)
      return (t * noise):sin():exp()
    end
    local y = checkpoint(f, opts, x)
    local k = noise
    y:sum():backward()
    assert.is_false(pcall(function() return k + 1 end))
    local function outer(t) return checkpoint(f, opts, t):sin() end
    checkpoint(outer, opts, x):sum():backward()
    assert.is_truthy(x.grad)
  end)

  it("of the caller's coroutine survives the coroutine", function()
    local x = leaf()
    local co = coroutine.wrap(function()
      local _ <close> = neap.scope()
      local mask = x:detach() * 2
      local y = neap.keep(checkpoint(function(t)
        coroutine.yield("inside")
        return (t * mask):sin():exp()
      end, opts, x))
      coroutine.yield(y)
    end)
    assert.equal("inside", co())
    local y = co()
    co()
    co = nil -- luacheck: ignore 311
    collectgarbage()
    y:sum():backward()
    local got = neap.hash(x.grad)
    x.grad = nil;
    (x * (x:detach() * 2)):sin():exp():sum():backward()
    assert.equal(neap.hash(x.grad), got)
  end)

  it("of a coroutine that never ends is used by others", function()
    local x = leaf()
    local y
    local co = coroutine.create(function()
      neap.scope(function()
        local mask = x:detach() * 2
        y = neap.keep(checkpoint(function(t) return (t * mask):sin():exp() end, opts, x))
        coroutine.yield()
      end)
    end)
    assert(coroutine.resume(co))
    y:sum():backward()
    assert.is_truthy(x.grad)
    assert.is_true(coroutine.close(co))
  end)
end)

describe("captured tensors in 1000 steps without the collector", function()
  it("leave storages and handles flat", function()
    local Masked = nn.Module "MaskedStep"
    function Masked:init() self.l = nn.Linear(3, 3) end
    function Masked:forward(x)
      local mask, list = x * 2, { x * 3 }
      local y = checkpoint(function(t) return (self.l(t) * mask * list[1]):tanh() end, opts, x)
      return checkpoint(function(t) return (self.l(t) + mask):tanh() end, opts, y)
    end
    local m, x = Masked(), neap.randn(2, 3)
    local function step()
      m:zero_grad()
      neap.scope(function() m(x):sum():backward() end)
    end
    for _ = 1, 5 do step() end
    collectgarbage()
    collectgarbage "stop"
    local before, live = handles(), neap.memory_stats().live
    local regions = neap.memory_stats().regions
    for _ = 1, help.rounds(1000) do step() end
    local after, live_after, regions_after = handles(), neap.memory_stats().live, neap.memory_stats().regions
    collectgarbage "restart"
    assert.equal(before, after)
    assert.equal(live, live_after)
    assert.equal(regions, regions_after)
  end)

  it("a chain of regions, each capturing the result of the one before, is released without recursion", function()
    local x = leaf()
    collectgarbage()
    local before = handles()
    neap.scope(function()
      local h = x
      for _ = 1, help.rounds(3000) do
        local previous = h
        h = checkpoint(function(t) return t * 0.5 + previous * 0.5 end, opts, x)
      end
    end)
    assert.equal(before, handles())
  end)
end)
