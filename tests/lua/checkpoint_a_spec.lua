--- Checkpointing, section A of the catalogue: the basics of both variants.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint
local ck, rck, with, f3, counted, leaf = help.ck, help.rck, help.with, help.f3, help.counted, help.leaf
local storages, gradient = help.storages, help.gradient

describe("A: basics", function()
  help.without_collector(before_each, after_each)

  it("ck-A2 what saves nothing is not run again, and its input not kept", function()
    for _, early in ipairs { true, false } do
      local f, calls = counted(function(t) return t:clone() end)
      local x = leaf()
      local h = x * 2
      local y = checkpoint(f, with { early_stop = early }, h)
      local before = storages()
      h:release()
      assert.equal(before - 1, storages())
      y:sum():backward()
      assert.equal(1, calls.n)
      assert.is_true(neap.equal(x.grad, { 2, 2, 2 }))
    end
  end)

  it("ck-A5 tables in, tables out", function()
    local x = neap.randn(4, 3)
    local layer = nn.Linear(3, 2)
    local function through(arg) return { result = layer(arg.tensor) } end
    local function run(y)
      y.result:square():sum():backward()
      local h = neap.hash { layer.weight.grad, layer.bias.grad }
      layer:zero_grad()
      return h
    end
    assert.equal(run(through { tensor = x }), run(ck(through, { tensor = x })))
  end)

  it("ck-A6 a tensor in a table argument, used in the middle", function()
    local function f(a, o) return (a:exp() * o.b):sin() end
    local function run(wrap)
      local a, b = leaf(3, 0.3), leaf(3, 0.6)
      wrap(f, a, { b = b }):sum():backward()
      return neap.hash { a.grad, b.grad }
    end
    local want = run(function(g, ...) return g(...) end)
    for _, early in ipairs { true, false } do
      assert.equal(want, run(function(g, ...) return checkpoint(g, with { early_stop = early }, ...) end))
    end
  end)

  it("ck-A7 grad and backward give the same gradient as plain", function()
    local x = leaf()
    local function f(t) return t:exp() end
    local want = gradient(f, x)
    assert.equal(want, gradient(function(t) return ck(f, t) end, x))
    assert.equal(want, neap.hash(neap.grad(ck(f, x):sum(), x)))
  end)

  it("ck-A8 a node's hook runs a backward through the same region", function()
    local function run(wrap)
      local a, hooks = leaf(), 0
      local x, out = wrap(function(t)
        local u = t:exp():sin()
        return u, u:cos():exp()
      end, a)
      out.grad_fn:register_hook(function()
        hooks = hooks + 1
        x:backward(neap.ones_like(x), { retain_graph = true })
      end)
      out:backward(neap.ones_like(out), { retain_graph = true })
      assert.equal(1, hooks)
      return neap.hash(a.grad)
    end
    assert.equal(run(function(f, ...) return f(...) end), run(ck))
  end)

  it("ck-A9 a parameter inside and outside: one gradient, one call of its hook", function()
    local function run(wrap)
      local w, x, hooks = leaf(3, 0.4), leaf(3, 1.5), 0
      w:register_hook(function() hooks = hooks + 1 end)
      local h = w * x
      wrap(function(t) return w * t end, h):sum():backward()
      assert.equal(1, hooks)
      return neap.hash { w.grad, x.grad }
    end
    assert.equal(run(function(f, ...) return f(...) end), run(ck))
  end)

  it("ck-A10 a hook on an inner node fires once a backward, not in the recompute", function()
    local x, hooks = leaf(), 0
    local y = ck(f3, x)
    local exp = y.grad_fn.next[1]
    assert.is_truthy(exp.name:find "exp")
    exp:register_hook(function() hooks = hooks + 1 end)
    local s = y:sum()
    s:backward(nil, { retain_graph = true })
    assert.equal(1, hooks)
    s:backward()
    assert.equal(2, hooks)
  end)

  it("ck-A11 a saved value without gradient comes back as the same object", function()
    local b, seen = neap.full({ 3 }, 2, { dtype = "float64" }), {}
    local F = neap.Function "KeepsB"
    function F.forward(ctx, a, c)
      ctx:save_for_backward(c)
      return a * c
    end
    function F.backward(ctx, g)
      seen[#seen + 1] = ctx:saved() == b
      return g * ctx:saved()
    end
    local x = leaf()
    ck(function(a) return F(a, b) end, x):sum():backward()
    ck(function(a, c) return F(a, c) end, x, b):sum():backward()
    assert.same({ true, true }, seen)
    assert.is_true(neap.equal(x.grad, { 4, 4, 4 }))
  end)

  it("ck-A12 with grad mode off fn runs once, no context is entered, nothing is kept", function()
    local entered = 0
    local function context(run)
      entered = entered + 1
      run()
    end
    local f, calls = counted(f3)
    local x = leaf()
    local before = help.alive()
    local y = neap.no_grad(checkpoint, f, with { context_fn = function() return context, context end }, x)
    assert.equal(1, calls.n)
    assert.equal(0, entered)
    assert.is_false(y.requires_grad)
    y:release()
    assert.same(before, help.alive())
  end)

  it("ck-A13 a module under no_grad inside the region", function()
    local m, a = nn.Linear(3, 3), neap.ones(2, 3, { requires_grad = true })
    for _ = 1, 3 do
      local y = ck(function(t) return neap.no_grad(m, t) end, a);
      (y + a):sum():backward()
    end
    assert.is_true(neap.equal(a.grad, neap.full({ 2, 3 }, 3.0)))
    assert.is_nil(m.weight.grad)
  end)

  it("ck-A14 a detached value inside is a constant", function()
    local x = leaf()
    local function f(t) return t:sin():detach() * t end
    assert.equal(gradient(f, x), gradient(function(t) return ck(f, t) end, x))
    assert.is_true(neap.equal(neap.grad(ck(f, x):sum(), x), neap.no_grad(neap.sin, x)))
  end)

  it("ck-A15 2000 small regions, one mean, one backward", function()
    local n = help.rounds(2000, 200)
    local function run(wrap, requires)
      local w = leaf(2, 0.3)
      local x = neap.linspace(-1, 1, 2 * n, { dtype = "float64" }):view(n, 2)
      if requires then x:requires_grad_() end
      local function f(t) return (t * w):sin():exp() end
      local list = {}
      for i = 1, n do list[i] = wrap(f, x[i]) end
      neap.stack(list):mean():backward()
      return neap.hash { w.grad, requires and x.grad or nil }
    end
    local function plain(f, t) return f(t) end
    local want = run(plain, true)
    assert.equal(want, run(ck, true))
    assert.equal(run(plain, false), run(ck, false))
    assert.equal(want, run(rck, true))
  end)

  it("ck-A16 a chain of 10000 regions", function()
    local n = help.rounds(10000, 1000)
    local function chain(wrap)
      return function(t)
        for _ = 1, n do t = wrap(neap.sin, t) end
        return t
      end
    end
    local x = leaf(2)
    assert.equal(gradient(chain(function(f, t) return f(t) end), x), gradient(chain(ck), x))
  end)

  it("ck-A17 reading a saved value recomputes each time; after backward it is gone", function()
    local f, calls = counted(function(t) return t:sin():exp() end)
    local x = leaf()
    local y = ck(f, x)
    local want = neap.no_grad(neap.exp, neap.no_grad(neap.sin, x))
    for k = 2, 3 do
      assert.is_true(neap.equal(y.grad_fn.saved[1], want))
      assert.equal(k, calls.n)
    end
    y:sum():backward()
    assert.equal(4, calls.n)
    help.refused("E-FREED", function() return y.grad_fn.saved end)
  end)

  it("ck-A18 a read outside of backward leaves nothing behind", function()
    local x = leaf()
    local y = ck(function(t) return t:sin():exp() end, x)
    local before = help.alive()
    for _ = 1, 3 do
      y.grad_fn.saved[1]:release()
      assert.same(before, help.alive())
    end
  end)

  it("ck-A19 saved values may be fetched twice in one backward; a slot unpacks once in a pass", function()
    local F = neap.Function "Twice"
    function F.forward(ctx, a)
      ctx:save_for_backward(a)
      return a * a
    end
    function F.backward(ctx, g)
      local a, b = ctx:saved(), ctx:saved()
      return g * a + g * b
    end
    local f, calls = counted(function(t) return F(t:sin()) end)
    local x = leaf()
    local got = neap.grad(ck(f, x):sum(), x)
    assert.is_true(neap.allclose(got, neap.grad((x:sin() * x:sin()):sum(), x)))
    assert.equal(2, calls.n)
    local y = ck(f3, x)
    local node, code = y.grad_fn, nil
    node:register_hook(function()
      local ok, err = pcall(function() return node.saved end)
      code = not ok and neap.error_code(err)
    end)
    y:sum():backward(nil, { retain_graph = true })
    assert.equal("E-UNPACK-TWICE", code)
  end)

  it("ck-A20 the results are the very objects that fn returned", function()
    local object, tensor = setmetatable({}, { __name = "Record" }), nil
    local a, b = ck(function(t)
      tensor = t:sin()
      return object, tensor
    end, leaf())
    assert.is_true(rawequal(object, a))
    assert.is_true(rawequal(tensor, b))
    assert.equal("Record", getmetatable(a).__name)
  end)
end)
