--- Checkpointing, section L of the catalogue: errors, state, and what Lua adds.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local checkpoint = neap.checkpoint
local ck, rck, with, f3, counted, leaf = help.ck, help.rck, help.with, help.f3, help.counted, help.leaf
local gradient, refused, alive = help.gradient, help.refused, help.alive

describe("L: errors and state", function()
  help.without_collector(before_each, after_each)

  it("ck-L1 the context around the forward sees the error once, as it is", function()
    local mine, seen = setmetatable({}, {}), {}
    local function look(run)
      local ok, err = pcall(run)
      seen[#seen + 1] = err
      if not ok then error(err) end
    end
    local closing = {
      enter = function() end,
      exit = function(_, err) seen[#seen + 1] = err end,
    }
    local x = leaf()
    for i, context in ipairs { look, closing } do
      local before = alive()
      local ok, err = pcall(checkpoint, function(t)
        local _ = t:sin()
        error(mine)
      end, with { debug = true, context_fn = function() return context end }, x)
      assert.is_false(ok)
      assert.is_true(rawequal(mine, err))
      assert.equal(i, #seen)
      assert.is_true(rawequal(mine, seen[i]))
      assert.same(before, alive())
      help.clean()
    end
  end)

  it("ck-L2 a context that swallows the error", function()
    local err = refused("E-SUPPRESSED", checkpoint, function() error("the cause", 0) end,
      with { context_fn = function() return function(run) pcall(run) end end }, leaf())
    assert.is_truthy(err:find("the cause", 1, true), err)
    help.clean()
  end)

  it("ck-L2 a context must call run once", function()
    for _, context in ipairs { function() end, function(run) run() run() end } do
      refused("E-CONTEXT-RUN", checkpoint, f3, with { context_fn = function() return context end }, leaf())
      local y = checkpoint(f3, with { context_fn = function() return nil, context end }, leaf()):sum()
      refused("E-CONTEXT-RUN", y.backward, y)
    end
    help.clean()
  end)

  it("ck-L4 a context of the recompute that fails when entered: nothing counts as recomputed", function()
    local mine, fail = setmetatable({}, {}), true
    local context = {
      enter = function()
        if fail then error(mine) end
      end,
      exit = function() end,
    }
    local f, calls = counted(f3)
    local x = leaf()
    local y = checkpoint(f, with { context_fn = function() return nil, context end }, x):sum()
    local before = alive()
    local ok, err = pcall(y.backward, y, nil, { retain_graph = true })
    assert.is_false(ok)
    assert.is_true(rawequal(mine, err))
    assert.equal(1, calls.n)
    assert.same(before.pass_entries, alive().pass_entries)
    help.clean()
    fail = false
    y:backward()
    assert.equal(2, calls.n)
    assert.equal(gradient(f3, leaf()), neap.hash(x.grad))
  end)

  it("ck-L9 an input changed in place, by others or by fn itself", function()
    for _, wrap in ipairs { ck, rck } do
      local x = leaf()
      local y = wrap(f3, x):sum()
      neap.no_grad(x.add_, x, 1)
      refused("E-INPLACE", y.backward, y)
      local h = leaf() * 1
      y = wrap(f3, h):sum()
      h:mul_(2)
      refused("E-INPLACE", y.backward, y)
    end
    local y = ck(function(t)
      local z = t:sin()
      t:mul_(2)
      return z
    end, leaf() * 1):sum()
    refused("E-INPLACE", y.backward, y)
    help.clean()
  end)

  it("ck-L9 an input in a table changed in place, and a captured one", function()
    local h = leaf() * 1
    local y = ck(function(o) return f3(o.list[1]) end, { list = { h } }):sum()
    h:mul_(2)
    refused("E-INPLACE", y.backward, y)
    local w = leaf()
    y = ck(function(t) return (t * w):sin() end, leaf()):sum()
    neap.no_grad(w.add_, w, 1)
    refused("E-INPLACE", y.backward, y)
    help.clean()
  end)

  it("ck-L12 a gradient of another graph in a finaliser, a backward in a hook", function()
    local other, x = leaf(2, 0.3), leaf()
    local want, want_other = gradient(f3, leaf()), gradient(f3, leaf(2, 0.3))
    local loss, got = ck(f3, other):sum(), {}
    local y = ck(function(t)
      t = t:sin()
      if neap.in_recompute() then
        setmetatable({}, { __gc = function()
          got[#got + 1] = neap.hash(neap.grad(loss, other, { retain_graph = true }))
        end })
        collectgarbage()
        collectgarbage "stop"
      end
      return t:exp():sin()
    end, x)
    y:sum():backward()
    assert.same({ want_other }, got)
    assert.equal(want, neap.hash(x.grad))
    x.grad = nil
    local z = x:cos()
    z:register_hook(function() loss:backward() end)
    ck(f3, z):sum():backward()
    assert.equal(want_other, neap.hash(other.grad))
    assert.equal(gradient(function(t) return f3(t:cos()) end, leaf()), neap.hash(x.grad))
    help.clean()
  end)

  it("ck-L13 memory runs out at every allocation of a small run: an error, a clean state", function()
    local x = leaf(16)
    local want = gradient(f3, x)
    collectgarbage()
    collectgarbage()
    local before, bytes = alive(), neap.memory_stats().live
    local function run(wrap)
      neap.scope(function() wrap(f3, x):sum():backward() end)
    end
    for _, wrap in ipairs { ck, rck } do
      local failed, worked = 0, 0
      for limit = bytes + 1, bytes + 4000, 64 do
        local ok, err = pcall(neap.memory_limit, x.device, limit, run, wrap)
        if ok then
          worked = worked + 1
          local g = x.grad
          assert.equal(want, neap.hash(g))
          g:release()
        else
          failed = failed + 1
          assert.equal("E-LIMIT", neap.error_code(err), tostring(err))
        end
        x.grad = nil
        assert.same(before, alive())
      end
      assert.is_true(failed > 3 and worked > 3)
    end
    help.clean()
  end)

  it("ck-L14 100000 ops and regions in a row, dropped and differentiated, need no deep stack", function()
    local n = help.rounds(100000, 2000)
    local x = leaf(1, 0.5)
    local function ops(t)
      for _ = 1, n do t = t + 1 end
      return t
    end
    local function regions(t)
      for _ = 1, n do t = ck(neap.sin, t) end
      return t
    end
    local function one_region(t) return ck(ops, t) end
    for _, f in ipairs { ops, regions, one_region } do
      local before = alive()
      local y = neap.scope(f, x)
      assert.is_true(alive().nodes > before.nodes)
      y:release()
      assert.same(before, alive())
      y = neap.scope(f, x)
      neap.scope(function() y:sum():backward() end)
      y:release()
      x.grad = nil
      assert.same(before, alive())
    end
  end)
end)
