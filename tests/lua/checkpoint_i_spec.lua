--- Checkpointing, section I of the catalogue: the reentrant variant.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local checkpoint = neap.checkpoint
local rck, f3, counted, leaf = help.rck, help.f3, help.counted, help.leaf
local storages, gradient, refused = help.storages, help.gradient, help.refused

local function plain(f, ...) return f(...) end

--- The warnings that fn gives.
local function warnings(fn)
  local list = {}
  neap.on_log(function(level, text)
    if level == "warning" then list[#list + 1] = text end
  end)
  local ok, err = pcall(fn)
  neap.on_log(nil)
  assert.is_true(ok, tostring(err))
  return list
end

describe("I: reentrant", function()
  help.without_collector(before_each, after_each)

  it("ck-I1 ten modules in two segments: the first five run again", function()
    local list, calls = {}, {}
    for i = 1, 10 do
      list[i] = function(t)
        calls[i] = (calls[i] or 0) + 1
        return t:sin()
      end
    end
    local x = leaf()
    local y = checkpoint.checkpoint_sequential(list, 2, x, { use_reentrant = true })
    assert.same({ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, calls)
    y:sum():backward()
    assert.same({ 2, 2, 2, 2, 2, 1, 1, 1, 1, 1 }, calls)
    assert.equal(gradient(function(t)
      for _, f in ipairs(list) do t = f(t) end
      return t
    end, leaf()), neap.hash(x.grad))
  end)

  it("ck-I2 grad and backward with inputs are refused; afterwards a backward works", function()
    local x = leaf()
    local want = gradient(f3, x)
    refused("E-REENTRANT-GRAD", function() return neap.grad(rck(f3, x):sum(), x) end)
    assert.equal(want, gradient(function(t) return rck(f3, t) end, x))
    refused("E-REENTRANT-GRAD", function() rck(f3, x):sum():backward(nil, { inputs = { x } }) end)
    assert.equal(want, gradient(function(t) return rck(f3, t) end, x))
  end)

  it("ck-I3 no result that requires grad is an error at every backward", function()
    local x, other = leaf(), neap.ones({ 3 }, { dtype = "float64" })
    for _, f in ipairs {
      function(_, b) return b end,
      function(a) return neap.no_grad(f3, a) end,
      function(a) return f3(a):detach() end,
    } do
      for _ = 1, 3 do
        local y = rck(f, x, other):sum()
        refused("E-NONE-REQUIRE-GRAD", y.backward, y)
      end
    end
    assert.is_false(other.requires_grad)
    assert.is_true(other.is_leaf)
  end)

  it("ck-I4 no input that requires grad: a warning, or an error if gradients would be lost", function()
    local x, w = neap.ones({ 3 }, { dtype = "float64" }), leaf()
    local y
    local list = warnings(function() y = rck(f3, x) end)
    assert.equal(1, #list)
    assert.is_truthy(list[1]:find("W-NOGRAD-INPUT", 1, true), list[1])
    assert.is_false(y.requires_grad)
    assert.same({}, warnings(function() neap.no_grad(rck, f3, x) end))
    warnings(function()
      local err = refused("E-REENTRANT-CAPTURED", rck, function(t) return t * w end, x)
      assert.is_truthy(err:find("use_reentrant = false", 1, true))
    end)
    assert.is_nil(neap.error_code(select(2, pcall(neap.no_grad, rck, function(t) return t * w end, x))))
  end)

  it("ck-I5 all kinds of arguments and results; three backwards from three results", function()
    local function f(n, a, none, flag, b, word)
      assert(none == nil and flag == true)
      return n + 1, a * b, nil, flag, a:sin(), word, a
    end
    local function run(wrap)
      local a, b = leaf(3, 0.4), leaf(3, 0.9)
      local n, y1, none, flag, y2, word, y3 = wrap(f, 6, a, nil, true, b, "word")
      assert.equal(7, n)
      assert.is_nil(none)
      assert.is_true(flag)
      assert.equal("word", word)
      assert.is_true(neap.equal(y3, a))
      y1:sum():backward(nil, { retain_graph = true })
      y2:sum():backward(nil, { retain_graph = true })
      y3:sum():backward()
      return neap.hash { a.grad, b.grad }, y1
    end
    local want = run(plain)
    local got, y1 = run(rck)
    assert.equal(want, got)
    refused("E-FREED", function() y1:sum():backward() end)
  end)

  it("ck-I6 without a tensor everything passes through", function()
    local results
    warnings(function() results = table.pack(rck(function(...) return ... end, 1, nil, "x", true, nil)) end)
    assert.same({ n = 5, 1, nil, "x", true, nil }, results)
  end)

  it("ck-I7 one call a backward; depth + 1 when nested", function()
    local f, calls = counted(f3)
    local y = rck(f, leaf()):sum()
    y:backward(nil, { retain_graph = true })
    y:backward(nil, { retain_graph = true })
    y:backward()
    assert.equal(4, calls.n)
    for depth = 2, 3 do
      local g, n = counted(f3)
      for _ = 1, depth do
        local inner = g
        g = function(t) return rck(inner, t) end
      end
      local x = leaf()
      g(x):sum():backward()
      assert.equal(depth + 1, n.n)
      assert.equal(gradient(f3, leaf()), neap.hash(x.grad))
    end
  end)

  it("ck-I8 a parameter inside and outside: its hook runs twice, the gradient is plain's", function()
    local function run(wrap)
      local w, x, hooks = leaf(3, 0.4), leaf(3, 1.5), 0
      w:register_hook(function() hooks = hooks + 1 end)
      wrap(function(t) return w * t end, w * x):sum():backward()
      return neap.hash { w.grad, x.grad }, hooks
    end
    local want = run(plain)
    local got, hooks = run(rck)
    assert.equal(want, got)
    assert.equal(2, hooks)
  end)

  it("ck-I9 what the variant cannot do is refused before fn runs", function()
    local f, calls = counted(f3)
    local x = leaf()
    refused("E-REENTRANT-KWARGS", rck, f, x, { mask = leaf() })
    for name, value in pairs {
      context_fn = function() end, debug = true, policy = { neap.ops.sin }, respect_saved_tensors_hooks = true,
    } do
      local err = refused("E-REENTRANT-OPTION", checkpoint, f, { use_reentrant = true, [name] = value }, x)
      assert.is_truthy(err:find(name, 1, true), err)
    end
    assert.equal(0, calls.n)
  end)

  it("ck-I10 create_graph is refused, not silently incomplete", function()
    local x = leaf()
    local y = rck(f3, x):sum()
    warnings(function() refused("E-REENTRANT-HIGHER", y.backward, y, nil, { create_graph = true }) end)
    assert.equal(gradient(f3, x), gradient(function(t) return rck(f3, t) end, x))
  end)

  it("ck-I11 a result that is a view changed in place", function()
    local w = leaf(4, 0.3)
    local function f(t)
      local h = t * w
      local v = h:narrow(1, 1, 2)
      v:mul_(3)
      return v
    end
    local x = leaf(4)
    local want = gradient(f, x) .. neap.hash(w.grad)
    w.grad = nil
    assert.equal(want, gradient(function(t) return rck(f, t) end, x) .. neap.hash(w.grad))
  end)

  it("ck-I12 two branches: no branch's nodes run inside the other's pass", function()
    local x, log = leaf(), {}
    local function branch(name)
      local before = x:sin()
      before.grad_fn:register_hook(function() log[#log + 1] = "before " .. name end)
      return rck(function(t)
        local u = t:exp()
        if neap.in_recompute() then
          log[#log + 1] = "enter " .. name
          u:register_hook(function() log[#log + 1] = "inner " .. name end)
        end
        return u:sin()
      end, before)
    end
    local y = branch "a" + branch "b"
    y:sum():backward()
    assert.same({ "enter b", "inner b", "before b", "enter a", "inner a", "before a" }, log)
  end)

  it("functions in the graph of a recompute live as long as that graph, and no longer", function()
    local x, alive, hooks = leaf(), setmetatable({}, { __mode = "k" }), 0
    local y = rck(function(t)
      local function inner(u) return f3(u) end
      local function collect()
        hooks = hooks + 1
        collectgarbage()
        collectgarbage()
      end
      alive[inner], alive[collect] = true, true
      local z = rck(inner, t) * 2
      if neap.in_recompute() then z:register_hook(collect) end -- runs before inner is needed again
      return z
    end, x)
    y:sum():backward(nil, { retain_graph = true })
    assert.equal(1, hooks)
    assert.equal(gradient(function(t) return f3(t) * 2 end, leaf()), neap.hash(x.grad))
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(alive))
    y:sum():backward()
    assert.equal(2, hooks)
  end)

  it("ck-I13 tensors inside tables are not followed", function()
    local x, k = leaf(), neap.full({ 3 }, 2, { dtype = "float64" })
    local y, record = rck(function(t, o)
      return t * o.k, { inner = t:sin() }
    end, x, { k = k })
    assert.is_false(record.inner.requires_grad)
    y:sum():backward()
    assert.is_true(neap.equal(x.grad, { 2, 2, 2 }))
  end)

  it("ck-I14 a captured table that stores the result is let go after the backward", function()
    local x = leaf()
    neap.scope(function() x:sum():backward() end)
    local before, functions = help.alive(), neap.memory_stats().functions
    local box = {}
    box.y = rck(function(t)
      box.calls = (box.calls or 0) + 1
      return t:sin()
    end, x)
    neap.scope(function() box.y:sum():backward() end)
    assert.is_true(storages() > before.storages)
    box.y:release()
    assert.equal(2, box.calls)
    assert.equal(before.storages, storages())
    assert.equal(before.regions, help.alive().regions)
    assert.equal(functions, neap.memory_stats().functions)
  end)
end)
