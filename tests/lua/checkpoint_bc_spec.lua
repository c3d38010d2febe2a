--- Checkpointing, sections B and C of the catalogue: early stop, memory.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint
local ck, rck, with, f3, leaf = help.ck, help.rck, help.with, help.f3, help.leaf
local storages, gradient, alive = help.storages, help.gradient, help.alive

describe("B: early stop", function()
  help.without_collector(before_each, after_each)

  it("ck-B4 a recompute that would save more: unseen with early stop, E-MORE-SAVED without", function()
    local x = leaf()
    local want = gradient(function(t) return t:sin():sin() end, x)
    local function growing(early)
      local calls = 0
      return checkpoint(function(t)
        calls = calls + 1
        t = t:sin():sin()
        return calls > 1 and t:sin() or t
      end, with { early_stop = early }, x):sum()
    end
    growing(true):backward()
    assert.equal(want, neap.hash(x.grad))
    local y = growing(false)
    help.refused("E-MORE-SAVED", y.backward, y)
  end)

  it("ck-B7 contexts around the recompute: the stop is no error, the cleanup runs once", function()
    local log = {}
    local function say(word) log[#log + 1] = word end
    local around = {
      enter = function() say "enter" end,
      exit = function(_, err) say(err == nil and "exit" or "error") end,
    }
    local function run_form(run)
      say "before"
      run()
      say "after"
    end
    local x = leaf()
    for _, context in ipairs { around, run_form } do
      checkpoint(f3, with { context_fn = function() return nil, context end }, x):sum():backward()
    end
    assert.same({ "enter", "exit", "before", "after" }, log)
  end)

  it("ck-B9 a side effect after the last save happens once, one before it twice", function()
    local before, after = 0, 0
    local y = ck(function(t)
      before = before + 1
      local z = t:sin()
      after = after + 1
      return z
    end, leaf())
    y:sum():backward()
    assert.equal(2, before)
    assert.equal(1, after)
  end)
end)

describe("C: memory", function()
  help.without_collector(before_each, after_each)

  -- The gradient of f with a graph, as a function.
  local function grad(f)
    return function(x) return (neap.grad(f(x):sum(), x, { create_graph = true })) end
  end
  local function c(f)
    return function(...) return ck(f, ...) end
  end

  it("ck-C5 whatever is wrapped around what, dropping the result frees everything", function()
    local function both(x) return c(f3)(x) + c(f3)(x) end
    local cases = {
      c(f3), c(c(f3)), grad(c(f3)), grad(c(grad(f3))), c(grad(grad(c(f3)))), c(both),
    }
    for i, f in ipairs(cases) do
      local x = leaf()
      collectgarbage() -- the x before it
      local before = alive()
      local y = neap.scope(f, x)
      assert.is_true(alive().nodes > before.nodes)
      y:release()
      assert.same(before, alive(), "case " .. i)
    end
  end)

  it("ck-C7 1000 backwards that keep the graph leave memory and bookkeeping flat", function()
    local x = leaf()
    local y = ck(f3, x):sum()
    local function pass() neap.scope(function() y:backward(nil, { retain_graph = true }) end) end
    for _ = 1, 10 do pass() end
    collectgarbage()
    local before, bytes = alive(), neap.memory_stats().live
    for _ = 1, help.rounds(1000) do
      pass()
      if neap.memory_stats().pass_entries ~= 0 then error "a pass left entries behind" end
    end
    assert.same(before, alive())
    assert.equal(bytes, neap.memory_stats().live)
    collectgarbage()
    collectgarbage()
    local kb = collectgarbage "count"
    for _ = 1, help.rounds(1000) do pass() end
    collectgarbage()
    collectgarbage()
    assert.is_true(collectgarbage "count" < kb + 50)
  end)

  it("ck-C8 the peak of an 8-block MLP is lower with either variant", function()
    local Block = nn.Module "PeakBlock"
    function Block:init()
      self.up = nn.Linear(32, 128)
      self.down = nn.Linear(128, 32)
    end
    function Block:forward(x) return x + self.down(self.up(x):gelu():tanh()) end
    local blocks = {}
    for i = 1, 8 do blocks[i] = Block() end
    local function peak(wrap)
      local x = neap.ones(64, 32, { requires_grad = true })
      for _, b in ipairs(blocks) do b:zero_grad() end
      collectgarbage()
      collectgarbage()
      neap.reset_peak()
      local base = neap.memory_stats().live
      neap.scope(function()
        local y = x
        for _, b in ipairs(blocks) do y = wrap(b, y) end
        y:sum():backward()
      end)
      return neap.memory_stats().peak - base
    end
    local plain = peak(function(b, y) return b(y) end)
    assert.is_true(peak(ck) < 0.8 * plain) -- the products' workspace counts, too
    assert.is_true(peak(rck) < 0.8 * plain)
  end)

  it("ck-C9 a region's input is freed after its first op's backward, before the next recompute", function()
    local function observe(keep)
      local x, seen = leaf(100), {}
      local function note(word) seen[word] = storages() end
      local a = ck(function(t)
        if neap.in_recompute() then note "first recompute" end
        return t:square():square()
      end, x)
      local b = ck(function(t)
        local u = t:square()
        if not neap.in_recompute() then u:register_hook(function() note "before first op" end) end
        return u:square()
      end, a)
      if not keep then a:release() end
      neap.scope(function() b:backward(neap.ones_like(b)) end)
      b:release()
      if keep then a:release() end
      x.grad = nil
      x:release()
      return seen
    end
    local kept, dropped = observe(true), observe(false)
    assert.equal(kept["before first op"], dropped["before first op"])
    assert.equal(kept["first recompute"] - 1, dropped["first recompute"])
  end)

  it("ck-C10 an output that no backward used keeps the region and its input until it is dropped", function()
    local x = leaf()
    local base = alive()
    local h = x * 2
    local y, z = ck(function(t) return t:sin(), t:cos() end, h)
    h:release()
    local s = y:sum()
    s:backward()
    s:release()
    y:release()
    x.grad = nil
    assert.equal(base.regions + 1, alive().regions)
    assert.equal(base.storages + 2, storages()) -- h and z
    z:release()
    assert.same(base, alive())
  end)

  it("ck-C11 an error in the middle of the recompute leaves nothing when the graph is kept", function()
    local x, calls = leaf(), 0
    local y = ck(function(t)
      calls = calls + 1
      t = t:exp():sin()
      if calls == 2 then error "stop here" end
      return t:exp():sin()
    end, x)
    local s = y:sum()
    local before = alive()
    neap.scope(function() assert.is_false(pcall(s.backward, s, nil, { retain_graph = true })) end)
    assert.same(before, alive())
    s:backward()
    assert.equal(gradient(function(t) return t:exp():sin():exp():sin() end, leaf()), neap.hash(x.grad))
  end)

  it("ck-C13 markers of dropped values are dead and take no place in the recompute", function()
    local x, first, again = leaf(), nil, nil
    local before = alive()
    local y = checkpoint(function(t)
      local a = t * t
      local b = a * t
      local r = t:exp()
      if neap.in_recompute() then
        again = neap.memory_stats().pass_entries
      else
        first = alive().markers - before.markers
      end
      assert.is_truthy(b)
      return r
    end, with { early_stop = false }, x)
    assert.equal(5, first)
    assert.equal(1, alive().markers - before.markers)
    y:sum():backward()
    assert.equal(1, again)
  end)
end)
