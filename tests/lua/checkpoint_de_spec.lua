--- Checkpointing, sections D and E of the catalogue: nesting; several backwards, higher order, execution groups.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint
local ck, rck, with, f3, counted, leaf = help.ck, help.rck, help.with, help.f3, help.counted, help.leaf
local storages, gradient, alive, refused = help.storages, help.gradient, help.alive, help.refused

local function graph(y, x) return (neap.grad(y:sum(), x, { create_graph = true })) end

--- The gradient of f with a graph, as a function.
local function grad(f)
  return function(x) return graph(f(x), x) end
end

describe("D: nesting", function()
  help.without_collector(before_each, after_each)

  --- Every word of the letters g (gradient) and c (checkpoint) up to five letters, at most three of them g.
  local function words()
    local list, from = {}, { "" }
    for _ = 1, os.getenv "NEAP_FORCE_GC" and 3 or 5 do
      local longer = {}
      for _, w in ipairs(from) do
        for _, letter in ipairs { "g", "c" } do
          local word = w .. letter
          if select(2, word:gsub("g", "")) <= 3 then
            longer[#longer + 1] = word
            if word:find "c" then list[#list + 1] = word end
          end
        end
      end
      from = longer
    end
    return list
  end

  local function wrapped(f, word, early)
    for letter in word:reverse():gmatch "." do
      local inner = f
      if letter == "g" then
        f = grad(inner)
      elseif early ~= nil then
        f = function(x) return checkpoint(inner, with { early_stop = early }, x) end
      end
    end
    return f
  end

  local function values(f)
    local x = leaf(3, 0.4)
    return neap.scope(function()
      local y = f(x)
      local h = neap.hash(y)
      y:sum():backward()
      return h .. neap.hash(x.grad)
    end)
  end

  local function inner_grads(x)
    local y = x:sin()
    local z = y:cos()
    return graph(z, x) * graph(y, x) * x
  end

  it("ck-D3 all orders of gradient and checkpoint equal plain", function()
    for _, f in ipairs { function(x) return x:sin():exp():cos() end, inner_grads } do
      for _, word in ipairs(words()) do
        local want = values(wrapped(f, word))
        for _, early in ipairs { true, false } do
          assert.equal(want, values(wrapped(f, word, early)), word)
        end
      end
    end
  end)

  it("ck-D4 on a 3 x 3 input, with a checkpoint between two gradients", function()
    local w = neap.linspace(-0.5, 0.7, 9, { dtype = "float64" }):view(3, 3)
    local function f(t) return t:matmul(w):sin() end
    local function g(t) return (t:matmul(t:t())):exp():tanh() end
    local function run(c, between)
      local x = neap.linspace(-0.3, 0.4, 9, { dtype = "float64" }):view(3, 3):requires_grad_()
      local function inner(t) return c(g)(c(f)(t)) end
      local first = grad(c(inner))
      if between then first = c(first) end
      return neap.hash(neap.scope(grad(first), x))
    end
    local function plain(h) return h end
    local function region(h)
      return function(t) return ck(h, t) end
    end
    local want = run(plain)
    assert.equal(want, run(region))
    assert.equal(want, run(region, true))
  end)

  it("ck-D5 an inner region's input is not alive after the forward", function()
    local x = leaf(50)
    local before = storages()
    local y = ck(function(t) return ck(f3, t:exp()) end, x)
    assert.equal(before + 1, storages())
    y:release()
  end)

  it("ck-D6 one variant inside the other: three calls", function()
    for _, pair in ipairs { { ck, rck }, { rck, ck } } do
      local f, calls = counted(f3)
      local x = leaf()
      local outer, inner = pair[1], pair[2]
      local want = gradient(f3, x)
      assert.equal(want, gradient(function(t)
        return outer(function(u) return inner(f, u) end, t)
      end, x))
      assert.equal(3, calls.n)
    end
  end)

  it("ck-D7 30 levels work; too many are refused and leave the state clean", function()
    local function nested(depth)
      local f = f3
      for _ = 1, depth do
        local inner = f
        f = function(t) return (ck(inner, t)) end
      end
      return f
    end
    local x = leaf()
    assert.equal(gradient(f3, x), gradient(nested(30), x))
    refused("E-CHECK-NESTED-DEPTH", function() nested(400)(x):sum():backward() end)
    help.clean()
  end)

  it("ck-D8 a tree of regions that call themselves", function()
    local x = leaf()
    local function tree(wrap)
      local function f(t, n)
        if n == 0 then return t:sin() end
        return wrap(f, t * 0.5, n - 1):exp() + wrap(f, t * 0.75, n - 1)
      end
      return function(t) return wrap(f, t, 4) end
    end
    local want = gradient(tree(function(f, ...) return f(...) end), x)
    local before = storages()
    local y = tree(ck)(x)
    assert.equal(before + 1, storages())
    y:sum():backward()
    assert.equal(want, neap.hash(x.grad))
  end)
end)

describe("E: several backwards", function()
  help.without_collector(before_each, after_each)

  it("ck-E1 every backward recomputes; after one that frees the graph there is none", function()
    local f, calls = counted(f3)
    local y = ck(f, leaf()):sum()
    y:backward(nil, { retain_graph = true })
    y:backward(nil, { retain_graph = true })
    y:backward()
    assert.equal(4, calls.n)
    refused("E-FREED", y.backward, y)
  end)

  it("ck-E2 two outputs: three calls for two backwards, two for one", function()
    local function split(t) return t:sin():exp(), t:cos():exp() end
    local x = leaf()
    local want = gradient(function(t)
      local a, b = split(t)
      return a + b
    end, x)
    for _, separate in ipairs { true, false } do
      local f, calls = counted(split)
      local a, b = ck(f, x)
      if separate then
        a:sum():backward()
        b:sum():backward()
      else
        (a + b):sum():backward()
      end
      assert.equal(separate and 3 or 2, calls.n)
      assert.is_true(neap.allclose(x.grad, neap.grad((x:sin():exp() + x:cos():exp()):sum(), x)))
      if not separate then assert.equal(want, neap.hash(x.grad)) end
      x.grad = nil
    end
  end)

  it("ck-E3 three orders of x^3: the third touches no node of the region", function()
    local f, calls = counted(function(t) return t * t * t end)
    local x = help.scalar(2)
    local y, want = ck(f, x), { 12, 12, 6 }
    assert.equal(1, calls.n)
    for k, n in ipairs { 2, 3, 3 } do
      y = graph(y, x)
      assert.equal(n, calls.n)
      assert.equal(want[k], y:item())
    end
  end)

  it("ck-E4 a gradient with a graph inside the region", function()
    for _, early in ipairs { true, false } do
      local f, calls = counted(grad(function(t) return t * t * t end))
      local x = help.scalar(2)
      local y = checkpoint(f, with { early_stop = early }, x)
      assert.equal(12, y:item())
      assert.equal(2, calls.n)
      y:backward()
      assert.equal(3, calls.n)
      assert.equal(12, x.grad:item())
    end
  end)

  it("ck-E5 one and two gradients inside the region that free their graphs", function()
    local function one(x)
      local y = x:sin()
      local z = y:cos()
      return x:cos() * neap.grad(z:sum(), x)
    end
    local function two(x)
      local a = one(x)
      return a * neap.grad(x:sin():exp():sum(), x)
    end
    for n, inner in ipairs { one, two } do
      for _, early in ipairs { true, false } do
        local x = leaf()
        local want = gradient(inner, x)
        local f, calls = counted(inner)
        local y = checkpoint(f, with { early_stop = early }, x)
        assert.equal(n + 1, calls.n)
        y:sum():backward()
        assert.equal(n + 2, calls.n)
        assert.equal(want, neap.hash(x.grad))
      end
    end
  end)

  --- y and z = exp(y), from exp and sin of x.
  local function chain(t)
    local y = t:exp():sin()
    return y, y:exp()
  end

  it("ck-E8 backwards of one execution group share a recompute", function()
    local x = leaf()
    local py, pz = chain(x)
    local want = neap.hash(neap.grad(pz:sum(), x))
    assert.is_truthy(py)
    for _, grouped in ipairs { true, false } do
      local f, calls = counted(chain)
      local group = checkpoint.GraphExecGroup()
      local run = grouped and group or function(g, ...) return g(...) end
      local y, z = ck(f, x)
      local gy = run(neap.grad, z:sum(), y)
      local gx = run(neap.grad, y, x, { grad_outputs = gy })
      assert.equal(grouped and 2 or 3, calls.n)
      assert.equal(want, neap.hash(gx))
    end
  end)

  it("ck-E8 a group entered again goes on; a new one starts anew", function()
    local x = leaf()
    local f, calls = counted(chain)
    local y, z = ck(f, x)
    local group = checkpoint.GraphExecGroup()
    local gy
    do
      local _ <close> = group:enter()
      gy = neap.grad(z:sum(), y, { retain_graph = true })
    end
    do
      local _ <close> = group:enter()
      neap.grad(y, x, { grad_outputs = gy, retain_graph = true })
    end
    assert.equal(2, calls.n)
    checkpoint.GraphExecGroup()(neap.grad, y, x, { grad_outputs = gy })
    assert.equal(3, calls.n)
  end)

  it("ck-E9 backwards of one group must not overlap", function()
    local y = ck(f3, leaf()):sum()
    local group = checkpoint.GraphExecGroup()
    group(y.backward, y, nil, { retain_graph = true })
    local err = refused("E-UNPACK-TWICE", group, y.backward, y)
    assert.is_truthy(err:find "overlap")
  end)

  it("ck-E11 a group inside a group is refused; afterwards none is active", function()
    local outer, inner = checkpoint.GraphExecGroup(), checkpoint.GraphExecGroup()
    local ran = false
    outer(function()
      refused("E-GROUP-NESTED", inner, function() ran = true end)
      refused("E-GROUP-NESTED", inner.enter, inner)
    end)
    assert.is_false(ran)
    local f, calls = counted(f3)
    local y = ck(f, leaf()):sum()
    y:backward(nil, { retain_graph = true })
    y:backward() -- two passes, two recomputes: no group is active
    assert.equal(3, calls.n)
    assert.equal(7, inner(function() return 7 end))
  end)

  it("ck-E13 what a group still holds goes when it is closed or collected", function()
    for _, close in ipairs { true, false } do
      local x = leaf()
      local y, z = ck(chain, x)
      local group = checkpoint.GraphExecGroup()
      local gy = group(neap.grad, z:sum(), y)
      local held = storages()
      assert.is_true(alive().pass_entries > 0)
      if close then
        group:close()
      else
        group = nil -- luacheck: ignore 311
        collectgarbage()
        collectgarbage()
      end
      assert.equal(0, alive().pass_entries)
      if close then assert.equal(held - 1, storages()) end -- exp's result, twice saved
      assert.is_truthy(gy)
    end
  end)

  it("ck-E14 a pass inside a hook of another pass over the same region", function()
    local function run(wrap)
      local x, inner = leaf(), nil
      local y, z = wrap(chain, x)
      z.grad_fn:register_hook(function()
        inner = neap.hash(neap.grad(y, x, { grad_outputs = neap.ones_like(y), retain_graph = true }))
      end)
      z:sum():backward()
      return inner .. neap.hash(x.grad)
    end
    assert.equal(run(function(f, t) return f(t) end), run(ck))
  end)

  it("ck-E15 only the tail of a region: one recompute, no leaf is touched", function()
    local x, w = leaf(), leaf(3, 0.2)
    local f, calls = counted(function(t)
      local y = (t * w):sin()
      return y, (y * w):exp()
    end)
    local py = (x * w):sin()
    local want = neap.hash(neap.grad((py * w):exp():sum(), py))
    local y, z = ck(f, x)
    assert.equal(want, neap.hash(neap.grad(z:sum(), y)))
    assert.equal(2, calls.n)
    assert.is_nil(x.grad)
    assert.is_nil(w.grad)
  end)

  it("ck-E16 create_graph through checkpoint_sequential", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    local x = neap.randn(5, 4, { requires_grad = true })
    local function run(forward)
      local y = forward(x)
      local gx = graph(y, x);
      (gx * gx):sum():backward()
      local h = neap.hash { y, gx, net[1].weight.grad, net[3].weight.grad }
      net:zero_grad()
      x.grad = nil
      return h
    end
    local function sequential(reentrant)
      return function(t) return checkpoint.checkpoint_sequential(net, 2, t, { use_reentrant = reentrant }) end
    end
    assert.equal(run(net), run(sequential(false)))
    refused("E-REENTRANT-GRAD", run, sequential(true))
  end)
end)
