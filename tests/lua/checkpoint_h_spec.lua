--- Checkpointing, section H of the catalogue: saved-tensors hooks, alone and with regions.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local checkpoint = neap.checkpoint
local ck, rck, f3, leaf = help.ck, help.rck, help.f3, help.leaf
local storages, gradient, refused, kernels = help.storages, help.gradient, help.refused, help.kernels

local function same(t) return t end

local function square(t) return t:square() end

--- Hooks that hand on what they get, and count.
local function counting(name, log)
  return function(...)
    log[name] = { packs = 0, unpacks = 0 }
    return neap.saved_tensors_hooks(function(t)
      log[name].packs = log[name].packs + 1
      return t
    end, function(t)
      log[name].unpacks = log[name].unpacks + 1
      return t
    end, ...)
  end
end

describe("H: saved-tensors hooks", function()
  help.without_collector(before_each, after_each)

  local function sixteenth(t) return t:square():square():square():square() end

  it("ck-H1 hooks around, the middle checkpointed: three values pass through them", function()
    local x, log = leaf(), {}
    local want = gradient(sixteenth, x)
    local function f(t)
      return ck(function(u) return u:square():square() end, t:square()):square()
    end
    local y = counting("pair", log)(f, x)
    assert.same({ packs = 3, unpacks = 0 }, log.pair)
    y:sum():backward()
    assert.same({ packs = 3, unpacks = 3 }, log.pair)
    assert.equal(want, neap.hash(x.grad))
    assert.equal(want, gradient(function(t) return neap.save_on_cpu(f, t) end, x))
  end)

  it("ck-H2 hooks inside around the middle: two values, packed once, not recomputed", function()
    local x, log = leaf(), {}
    local want = gradient(sixteenth, x)
    local function f(t)
      local inner = counting(neap.in_recompute() and "replay" or "forward", log)
      return inner(function(u) return u:square():square() end, t:square()):square()
    end
    local y = ck(f, x)
    assert.same({ packs = 2, unpacks = 0 }, log.forward)
    y:sum():backward()
    assert.same({ packs = 2, unpacks = 2 }, log.forward)
    assert.same({ packs = 0, unpacks = 0 }, log.replay)
    assert.equal(want, neap.hash(x.grad))
    assert.equal(want, gradient(function(t)
      return ck(function(u)
        return neap.save_on_cpu(function(v) return v:square():square() end, u:square()):square()
      end, t)
    end, x))
  end)

  it("ck-H3 hooks around nested regions see the outer input alone", function()
    local x, log = leaf(), {}
    local y = counting("pair", log)(ck, function(t) return ck(f3, t:square()):sin() end, x)
    assert.same({ packs = 1, unpacks = 0 }, log.pair)
    y:sum():backward()
    assert.same({ packs = 1, unpacks = 1 }, log.pair)
    assert.equal(gradient(function(t) return f3(t:square()):sin() end, leaf()), neap.hash(x.grad))
  end)

  it("ck-H4 of two pairs the inner one is used, afterwards the outer one again", function()
    local x, log = leaf(), {}
    counting("outer", log)(function()
      local y = counting("inner", log)(square, x:square()):square()
      y:sum():backward()
    end)
    assert.same({ packs = 2, unpacks = 2 }, log.outer)
    assert.same({ packs = 1, unpacks = 1 }, log.inner)
  end)

  local function twice(t) return t * 2 end
  local function half(t) return t / 2 end

  it("ck-H5 pairs that scale: gradients as the hooks say", function()
    local function first(pack, unpack)
      local a = leaf(3, 0.75)
      local y = neap.saved_tensors_hooks(pack, unpack, function() return a * a end)
      return neap.grad(y, a, { grad_outputs = neap.ones_like(y) }), a
    end
    local g, a = first(twice, half)
    assert.is_true(neap.equal(g, neap.no_grad(twice, a)))
    g, a = first(twice, same)
    assert.is_true(neap.equal(g, neap.no_grad(function(t) return t * 4 end, a)))
  end)

  it("ck-H5 pairs that scale: second derivatives", function()
    local function second(forward, backward)
      local a = leaf(3, 0.75)
      local y = forward(function() return a * a end)
      local ones = neap.ones_like(y)
      local g = backward(neap.grad, y, a, { grad_outputs = ones, create_graph = true })
      return g:detach(), neap.grad(g, a, { grad_outputs = ones })
    end
    local function pair(pack, unpack)
      return function(...) return neap.saved_tensors_hooks(pack, unpack, ...) end
    end
    local function plain(f, ...) return f(...) end
    local function check(g, gg, want, want_second)
      assert.is_true(neap.equal(g, neap.full({ 3 }, want, { dtype = "float64" })))
      assert.is_true(neap.equal(gg, neap.full({ 3 }, want_second, { dtype = "float64" })))
    end
    local lossy = pair(twice, same)
    local g, gg = second(pair(twice, half), pair(twice, half))
    check(g, gg, 1.5, 2)
    g, gg = second(lossy, plain) -- each saved a counts twice
    check(g, gg, 3, 2)
    g, gg = second(plain, lossy) -- each saved gradient counts twice
    check(g, gg, 1.5, 4)
    g, gg = second(lossy, lossy)
    check(g, gg, 3, 4)
  end)

  it("ck-H6 numbers never reach the hooks", function()
    local x, log = leaf(), {}
    local _ = counting("pair", log)(function() return x * 2, 3 * x, x / 4, x + 1 end)
    assert.same({ packs = 0, unpacks = 0 }, log.pair)
    local y = counting("pair", log)(function() return x ^ 2 end)
    assert.same({ packs = 1, unpacks = 0 }, log.pair)
    y:sum():backward()
    assert.same({ packs = 1, unpacks = 1 }, log.pair)
  end)

  it("ck-H7 errors of pack and unpack come out as they are", function()
    local mine, x = setmetatable({}, {}), leaf()
    local function fail() error(mine) end
    local ok, err = pcall(neap.saved_tensors_hooks, fail, same, square, x)
    assert.is_false(ok)
    assert.is_true(rawequal(mine, err))
    help.clean()
    local y = neap.saved_tensors_hooks(same, fail, square, x):sum()
    ok, err = pcall(y.backward, y)
    assert.is_false(ok)
    assert.is_true(rawequal(mine, err))
    help.clean()
  end)

  it("ck-H8 a pack that changes its input, an unpack that returns no tensor", function()
    local x = leaf()
    refused("E-PACK-INPLACE", neap.saved_tensors_hooks, function(t) return t:add_(1) end, same, square, x * 1)
    local y = neap.saved_tensors_hooks(same, function() return 3 end, square, x):sum()
    refused("E-UNPACK-TYPE", y.backward, y)
    help.clean()
  end)

  it("ck-H9 disabled hooks: the message, nesting, regions", function()
    local x = leaf()
    local function enter() return neap.saved_tensors_hooks(same, same, square, x) end
    local function says(message, f, ...)
      local err = refused("E-HOOKS-DISABLED", f, ...)
      assert.is_truthy(err:find(message, 1, true), err)
    end
    neap.disable_saved_tensors_hooks("outer message", function()
      says("outer message", enter)
      says("outer message", ck, f3, x)
      rck(f3, x):sum():backward()
      neap.disable_saved_tensors_hooks("inner message", function() says("inner message", enter) end)
      says("outer message", enter)
    end)
    assert.equal(gradient(f3, leaf()), neap.hash(x.grad))
    neap.saved_tensors_hooks(same, same, function()
      says("too late", neap.disable_saved_tensors_hooks, "too late", function() end)
      assert.is_true(neap.is_tensor(enter()))
    end)
    help.clean()
  end)

  it("ck-H10 a backward that changes what unpack returned does not touch the leaf", function()
    local F = neap.Function "Changes"
    function F.forward(ctx, a)
      ctx:save_for_backward(a)
      return a * 2
    end
    function F.backward(ctx, g)
      ctx:saved():mul_(3)
      return g * 2
    end
    local x = leaf()
    local watch = x:square() -- saves x
    local function copy(t) return t:clone() end
    neap.saved_tensors_hooks(copy, copy, F, x):sum():backward()
    assert.is_true(neap.equal(x, neap.full({ 3 }, 0.7, { dtype = "float64" })))
    watch:sum():backward() -- x is unchanged: no E-INPLACE
    assert.is_true(neap.allclose(x.grad, neap.full({ 3 }, 3.4, { dtype = "float64" })))
  end)

  it("ck-H11 a saved input that was detached in place is refused at backward, a saved output is fine", function()
    local x = leaf()
    local h = x:sin()
    local y = h:cos():sum() -- keeps its input, h
    assert.is_true(rawequal(h, h:detach_()))
    assert.is_false(h.requires_grad)
    assert.is_true(h.is_leaf)
    assert.is_nil(h.grad_fn)
    local err = refused("E-DETACHED-INPLACE", y.backward, y)
    assert.is_truthy(err:find("[3] float64", 1, true) and err:find("x:detach()", 1, true), err)
    local e = x:exp() -- keeps its result
    y = e:sum()
    e:detach_()
    y:backward()
    assert.is_true(neap.equal(e, x.grad))
    help.clean()
  end)

  it("ck-H11 where a pair or a region keeps the value, its place in the graph is beside it: detached or not", function()
    local function f(t)
      local h = t:sin()
      local y = h:cos()
      h:detach_()
      return y
    end
    local want = gradient(function(t) return t:sin():cos() end, leaf())
    assert.equal(want, gradient(function(t) return ck(f, t) end, leaf()))
    assert.equal(want, gradient(function(t) return neap.saved_tensors_hooks(same, same, f, t) end, leaf()))
    refused("E-DETACHED-INPLACE", gradient, f, leaf())
    local x = leaf()
    local h = x:sin()
    local y = ck(f3, h):sum()
    h:detach_() -- the region's input
    y:backward()
    assert.equal(gradient(function(t) return f3(t:sin()) end, leaf()), neap.hash(x.grad))
  end)

  it("detach_: views are refused and later uses of views of it; leaves stop requiring grad; nothing leaks", function()
    local before = help.alive()
    neap.scope(function()
      local x = leaf()
      local h = x * 2
      local view = h:narrow(1, 1, 2)
      refused("E-STATE", view.detach_, view)
      h:retain_grad()
      local y = h:sum()
      h:detach_()
      refused("E-INPLACE", view.sin, view)
      y:backward()
      assert.is_nil(h.grad)
      assert.is_true(neap.equal(x.grad, neap.full({ 3 }, 2, { dtype = "float64" })))
      assert.is_false((h * x:detach()).requires_grad)
      assert.is_false(x:detach_().requires_grad)
      assert.is_false(neap.ones(2):detach_().requires_grad)
      assert.is_true(neap.detach_(x * 1).is_leaf)
    end)
    assert.same(before, help.alive())
  end)

  it("ck-H12 a hook that keeps what it got makes no cycle", function()
    for _, wrap in ipairs { function(f, ...) return f(...) end, ck } do
      local x = leaf()
      local before = help.alive()
      local y = neap.saved_tensors_hooks(same, same, wrap, neap.exp, x)
      assert.is_true(storages() > before.storages)
      y:release()
      assert.same(before, help.alive())
    end
  end)

  it("ck-H13 the graph of a gradient is packed by the pair in force at the backward", function()
    local log = {}
    local function run(forward, backward)
      local x = leaf()
      local y = forward(ck, neap.sin, x)
      local options = { grad_outputs = neap.ones_like(y), create_graph = true }
      local g = backward(neap.grad, y, x, options)
      assert.is_true(neap.equal(neap.grad(g, x, { grad_outputs = options.grad_outputs }), neap.no_grad(function()
        return -x:sin()
      end)))
    end
    local function plain(f, ...) return f(...) end
    run(plain, counting("pair", log))
    assert.same({ packs = 2, unpacks = 2 }, log.pair) -- g * cos(x) saves x and g
    run(counting("pair", log), plain)
    assert.same({ packs = 1, unpacks = 1 }, log.pair) -- the region's input
  end)

  it("ck-H2 what the inner pair holds costs no second kernel", function()
    local x = leaf()
    local y = checkpoint(function(t)
      return neap.saved_tensors_hooks(same, same, function(u) return u:square():square() end, t:square())
    end, help.with(), x)
    local s = y:sum()
    assert.equal(0, kernels(s.backward, s).square) -- the first square's input is all that is saved in the region
  end)
end)
