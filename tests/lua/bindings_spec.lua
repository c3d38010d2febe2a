--- What the bindings promise beyond single functions: coroutines, error values, the early stop, handles and their
-- scopes, functions held by graphs, and the collector's part.
local neap = require "neap"
local checkpoint = neap.checkpoint

local opts = { use_reentrant = false }

local function leaf() return neap.tensor({ 0.5, 1.5, -1 }, { requires_grad = true }) end

local function collect()
  for _ = 1, 4 do collectgarbage() end
end

describe("coroutines", function()
  -- A thread's memory is soon another thread's: that one must not end what the dead one had in force twice.
  it("that die inside checkpoints free them once, also when new ones lie where they lay", function()
    local x, random = leaf(), math.random
    math.randomseed(3)
    local function work()
      checkpoint(function(t)
        if coroutine.isyieldable() and random() < 0.7 then coroutine.yield() end
        return t:sin():cos()
      end, opts, x)
    end
    local open = {}
    for _ = 1, 400 do
      local what, any = random(5), random(math.max(#open, 1))
      if what == 1 then
        work()
      elseif what == 2 then
        open[#open + 1] = coroutine.create(function() for _ = 1, random(3) do work() end end)
        assert(coroutine.resume(open[#open]))
      elseif what == 3 and open[any] and coroutine.status(open[any]) ~= "dead" then
        assert(coroutine.resume(open[any]))
      elseif what == 4 then
        table.remove(open, open[any] and any)
      else
        collectgarbage(random() < 0.3 and "collect" or "step", random(100))
      end
    end
    open = nil -- luacheck: ignore
    work() -- the coroutine that ran last is known until another one is
    collect()
    assert.equal(0, neap.memory_stats().regions)
  end)

  it("that run a pass keep its modes while others run inside of it", function()
    local x, enabled = leaf(), nil
    local function other() coroutine.wrap(function() return neap.ones(2) + 1 end)() end
    local y = checkpoint(function(t)
      local u = t:sin()
      other()
      return u:sin():sin()
    end, { use_reentrant = false }, x)
    local h = y * 2
    h:register_hook(other)
    y:register_hook(function() enabled = neap.is_grad_enabled() end)
    coroutine.wrap(function() h:sum():backward() end)()
    assert.is_false(enabled)
    local got = x.grad
    x.grad = nil;
    (x:sin():sin():sin() * 2):sum():backward()
    assert.is_true(neap.equal(got, x.grad))
  end)

  it("a checkpointed forward may yield", function()
    local x = leaf()
    local run = coroutine.wrap(function()
      local y = checkpoint(function(t)
        local a = t:sin()
        coroutine.yield("half")
        return a:exp():sin()
      end, opts, x)
      y:sum():backward()
      return "done"
    end)
    assert.equal("half", run())
    assert.is_true(neap.is_grad_enabled())
    assert.equal("done", run())
    assert.is_true(neap.allclose(x.grad, neap.grad(x:sin():exp():sin():sum(), x)))
  end)

  it("a coroutine asleep inside no_grad switches nothing off outside", function()
    local co = coroutine.create(function()
      neap.no_grad(coroutine.yield)
      return neap.is_grad_enabled()
    end)
    coroutine.resume(co)
    assert.is_true(neap.is_grad_enabled())
    assert.is_true(select(2, coroutine.resume(co)))
  end)

  it("a dropped guard belongs to its coroutine and ends with it", function()
    local co = coroutine.create(function()
      neap.no_grad()
      coroutine.yield(neap.is_grad_enabled())
    end)
    assert.is_false(select(2, coroutine.resume(co)))
    co = nil -- luacheck: ignore 311
    collect()
    assert.is_true(neap.is_grad_enabled())
  end)

  it("200 guards open from one line are refused", function()
    local co = coroutine.create(function()
      for _ = 1, 300 do neap.enable_grad() end
    end)
    local ok, err = coroutine.resume(co)
    assert.is_false(ok)
    assert.equal("E-STATE", neap.error_code(err))
  end)
end)

describe("error values", function()
  local value = setmetatable({}, {})

  it("pass through forward, recompute and hooks as they are", function()
    local x, fail = leaf(), false
    local ok, err = pcall(checkpoint, function() error(value) end, opts, x)
    assert.is_false(ok)
    assert.equal(value, err)
    local y = checkpoint(function(t)
      if fail then error(value) end
      return t:sin():exp()
    end, opts, x):sum()
    fail = true
    ok, err = pcall(y.backward, y)
    assert.is_false(ok)
    assert.equal(value, err)
    fail = false
    y:backward() -- a failed recompute leaves no trace
    x:register_hook(function() error(nil) end)
    ok, err = pcall(function() (x * 2):sum():backward() end)
    assert.is_false(ok)
    assert.is_nil(err)
  end)

  it("name the line of the user", function()
    local _, err = pcall(function() return neap.ones(2, 3):matmul(neap.ones(2, 3)) end)
    assert.truthy(err:find("bindings_spec.lua:%d+: neap.matmul: "))
    assert.equal("E-SHAPE", neap.error_code(err))
  end)
end)

describe("the early stop", function()
  it("closes <close> variables without an error", function()
    local seen = {}
    checkpoint(function(t)
      local _ <close> = setmetatable({}, { __close = function(_, err) seen[#seen + 1] = tostring(err) end })
      return t:sin():exp():sin()
    end, opts, leaf()):sum():backward()
    assert.same({ "nil", "nil" }, seen)
  end)

  it("cannot be caught, and does not happen where code cannot be stopped", function()
    local function f(t)
      local r
      pcall(function() r = t:sin():exp() end)
      table.sort({ 3, 1, 2 }, function(a, b)
        local _ = t:cos()
        return a < b
      end)
      return r:sin()
    end
    local x = leaf()
    checkpoint(f, opts, x):sum():backward()
    assert.is_true(neap.equal(x.grad, neap.grad(f(x):sum(), x)))
  end)

  it("nests, and is refused cleanly when too deep", function()
    local function nested(n)
      local f = function(t) return t:sin():exp() end
      for _ = 1, n do
        local inner = f
        f = function(t) return (checkpoint(inner, opts, t)) end
      end
      return f
    end
    local x = leaf()
    nested(30)(x):sum():backward()
    local ok, err = pcall(function() nested(300)(x):sum():backward() end)
    assert.is_false(ok)
    assert.equal("E-CHECK-NESTED-DEPTH", neap.error_code(err))
    assert.is_true(neap.is_grad_enabled())
  end)
end)

describe("functions in graphs", function()
  it("that reach their own graph are collected with it", function()
    collect()
    local x = leaf()
    local before = neap.memory_stats()
    for _ = 1, 200 do
      local box = {}
      local z = checkpoint(function(t) return (t * 2):sin(), box end, opts, x)
      box.z = z
      z:register_hook(function(g) return box.z and g end)
      local F = neap.Function("F", {
        forward = function(ctx, a)
          ctx:save_for_backward(a)
          ctx.box = box
          return a * 2
        end,
        backward = function(_, g) return g * 2 end,
      })
      box.w = F(z)
    end
    collect()
    local after = neap.memory_stats()
    assert.equal(before.functions, after.functions)
    assert.equal(before.regions, after.regions)
    assert.is_true(after.nodes <= before.nodes)
  end)

  it("live as long as a tensor over them", function()
    local function loss()
      local w = leaf()
      local calls = 0
      w:register_hook(function() calls = calls + 1 end)
      local y = checkpoint(function(t) return t:sin():exp() end, opts, w) + 1
      return (y * y):sum(), function() return calls end
    end
    local y, calls = loss()
    collect()
    y:backward()
    assert.equal(1, calls())
  end)

  it("are found through a gradient that has a graph", function()
    local w = leaf()
    local y = checkpoint(function(t) return t:sin():exp() end, opts, w):sum()
    y:backward(nil, { create_graph = true })
    y = nil -- luacheck: ignore 311
    collect()
    local plain = leaf()
    local g = neap.grad(plain:sin():exp():sum(), plain, { create_graph = true })
    assert.is_true(neap.allclose(neap.grad((w.grad * w.grad):sum(), w), neap.grad((g * g):sum(), plain)))
  end)

  it("and leaves that only such gradients hold are found, without a word from the script", function()
    local before, most = neap.memory_stats("cpu").nodes, 0
    for _ = 1, 200 do
      neap.scope(function()
        local w = leaf();
        (w * w * w):sum():backward(nil, { create_graph = true })
      end)
      most = math.max(most, neap.memory_stats("cpu").nodes - before)
    end
    assert.is_true(most < 150, most)
  end)

  it("what a hook is lent is gone afterwards, unless kept", function()
    local x, lent, kept = leaf(), nil, nil
    x:register_hook(function(g)
      lent = g
    end)
    x:register_hook(function(g)
      kept = neap.keep(g)
    end)
    local y = (x * 2):sum()
    y:backward()
    local ok, err = pcall(function() return lent + 1 end)
    assert.is_false(ok)
    assert.equal("E-RELEASED", neap.error_code(err))
    assert.is_true(neap.equal(kept, { 2, 2, 2 }))
  end)

  it("op_mode sees every op, and gradients pass through it", function()
    local x, names = leaf(), {}
    local y = neap.op_mode(function(op, call, ...)
      names[#names + 1] = op.name
      return call(...)
    end, function() return (x * 2):sum() end)
    assert.same({ "mul", "sum" }, names)
    y:backward()
    assert.is_true(neap.equal(x.grad, { 2, 2, 2 }))
  end)
end)

describe("handles", function()
  it("a leaf keeps its identity when the core hands it back", function()
    local w = leaf()
    local saved = (w * w).grad_fn.saved
    assert.is_true(rawequal(saved[1], w))
  end)

  it("a scope releases what does not leave it, and says where", function()
    local stays, goes
    neap.scope(function()
      goes = neap.ones(2) + 1
      stays = neap.keep(neap.ones(2) * 3)
    end)
    assert.is_true(neap.equal(stays, { 3, 3 }))
    local ok, err = pcall(function() return goes + 1 end)
    assert.is_false(ok)
    assert.equal("E-RELEASED", neap.error_code(err))
    assert.truthy(err:find("bindings_spec.lua:%d+: .*bindings_spec.lua:%d+"), err)
  end)

  it("temporaries without scopes stay bounded, and a limit is kept with the collector stopped", function()
    collect()
    neap.reset_peak()
    local x = neap.ones(256, 1024)
    for i = 1, 500 do local _ = x + i end
    assert.is_true(neap.memory_stats().peak < 200 << 20)
    collectgarbage "stop"
    local ok, err = pcall(neap.memory_limit, x.device, "64 MiB", function()
      for i = 1, 200 do local _ = x + i end
    end)
    collectgarbage "restart"
    assert.is_true(ok, tostring(err))
    assert.equal(0, neap.memory_stats().limit)
  end)
end)
