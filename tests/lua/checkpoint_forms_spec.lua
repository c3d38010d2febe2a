--- The call forms of checkpoint: which orders are accepted, what is said about the others, wrapping, sequences, once.
local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint

local opts = { use_reentrant = false }

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

local function leaf() return neap.tensor({ 0.3, -1.2, 2.5 }, { requires_grad = true }) end

local function f(x) return x:sin():exp():sin() end

local function gradient(g)
  local x = leaf()
  g(x):sum():backward()
  return neap.hash(x.grad)
end

describe("call forms", function()
  it("direct, curried and checkpoint.checkpoint give plain gradients", function()
    local plain = gradient(f)
    assert.equal(plain, gradient(function(x) return checkpoint(f, opts, x) end))
    assert.equal(plain, gradient(checkpoint(opts)(f)))
    assert.equal(plain, gradient(function(x) return checkpoint.checkpoint(f, opts, x) end))
  end)

  it("pass arguments and results as they are: nil, tables, several", function()
    local seen
    local y, word, nothing, n = checkpoint(function(...)
      seen = table.pack(...)
      return (...), "word", nil, 4
    end, opts, leaf(), nil, { mask = 1 }, "s")
    assert.equal(4, seen.n)
    assert.is_nil(seen[2])
    assert.equal(1, seen[3].mask)
    assert.is_true(neap.is_tensor(y))
    assert.equal("word", word)
    assert.is_nil(nothing)
    assert.equal(4, n)
  end)

  it("work as a method", function()
    local object = { scale = 2 }
    object.run = checkpoint(opts)(function(self, x) return x * self.scale end)
    assert.is_true(neap.equal(object:run(neap.ones(2)), { 2, 2 }))
    assert.equal(object, (checkpoint(function(self) return self end, opts, object)))
  end)

  it("a wrapped module is a module with the same parameters", function()
    local inner = nn.Linear(2, 2)
    local wrapped = checkpoint(opts)(inner)
    assert.is_true(nn.is_module(wrapped))
    assert.equal(inner.weight, wrapped.weight)
    assert.equal(2, #wrapped:parameters())
    assert.equal("weight", wrapped:parameters()[1].name)
    local net = nn.Sequential(wrapped, nn.Tanh())
    assert.is_truthy(net:state_dict()["1.weight"])
    net(neap.ones(1, 2)):sum():backward()
    assert.is_truthy(inner.weight.grad)
    net:eval()
    assert.is_false(inner.training)
    wrapped.note = "set through"
    assert.equal("set through", inner.note)
    assert.is_truthy(tostring(net):find("checkpoint", 1, true))
  end)

  it("enabled = false runs the function plainly", function()
    local calls = 0
    local y = checkpoint(function(x)
      calls = calls + 1
      return f(x)
    end, { use_reentrant = false, enabled = false }, leaf())
    y:sum():backward()
    assert.equal(1, calls)
  end)
end)

describe("wrong orders", function()
  it("use_reentrant missing, in every form", function()
    refused("E-USE-REENTRANT", checkpoint, f, {}, leaf())
    refused("E-USE-REENTRANT", checkpoint, f)
    refused("E-USE-REENTRANT", checkpoint, {})
    refused("E-USE-REENTRANT", checkpoint.checkpoint_sequential, { f, f }, 2, leaf())
    refused("E-USE-REENTRANT", checkpoint.checkpoint_sequential, { f, f }, 2, leaf(), {})
  end)

  it("each has its own text", function()
    assert.is_truthy(refused("E-USE-REENTRANT", checkpoint, f, leaf()):find "second")
    assert.is_truthy(refused("E-USE-REENTRANT", checkpoint, f, leaf(), opts):find "last place")
    assert.is_truthy(refused("E-USE-REENTRANT", checkpoint, opts, f, leaf()):find "after the function")
    assert.is_truthy(refused("E-ARG", checkpoint, nil, opts, leaf()):find "nil")
    assert.is_truthy(refused("E-ARG", checkpoint, leaf(), opts):find "first place")
    refused("E-ARG", checkpoint(opts), nil)
    refused("E-ARG", checkpoint)
  end)

  it("names the user's line", function()
    local err = refused("E-USE-REENTRANT", checkpoint, f, {}, leaf())
    assert.is_truthy(err:find "^[^:]*checkpoint_forms_spec.lua:%d+: checkpoint: ")
  end)

  it("options are checked before anything runs", function()
    local ran = false
    local function g(x)
      ran = true
      return x
    end
    local err = refused("E-UNKNOWN-OPTION", checkpoint, g, { use_reentrant = false, early_stpo = true }, leaf())
    assert.is_truthy(err:find("'early_stop'", 1, true))
    err = refused("E-BADCHECK", checkpoint, g, { use_reentrant = false, determinism_check = "defualt" }, leaf())
    assert.is_truthy(err:find("default", 1, true))
    refused("E-ARG", checkpoint, g, { use_reentrant = false, early_stop = 1 }, leaf())
    refused("E-ARG", checkpoint, g, { use_reentrant = "no" }, leaf())
    assert.is_false(ran)
  end)
end)

describe("checkpoint_sequential", function()
  it("checkpoints all segments but the last", function()
    local calls, parts = {}, {}
    for i = 1, 7 do
      parts[i] = function(t)
        calls[i] = (calls[i] or 0) + 1
        return t:sin()
      end
    end
    local x = leaf()
    local y = checkpoint.checkpoint_sequential(parts, 3, x, opts)
    y:sum():backward()
    assert.equal("2,2,2,2,1,1,1", table.concat(calls, ","))
    assert.equal(x.grad and neap.hash(x.grad), gradient(function(t)
      for i = 1, 7 do t = parts[i](t) end
      return t
    end))
  end)

  it("takes a Sequential", function()
    local net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    local x = neap.randn(2, 3)
    assert.is_true(neap.equal(net(x), checkpoint.checkpoint_sequential(net, 2, x, opts)))
  end)

  it("refuses segments that do not fit, with both numbers", function()
    for _, segments in ipairs { 0, -1, 1.5, 3, "2" } do
      local err = refused("E-SEGMENTS", checkpoint.checkpoint_sequential, { f, f }, segments, leaf(), opts)
      assert.is_truthy(err:find("2", 1, true) and err:find(tostring(segments), 1, true))
    end
  end)
end)

describe("once", function()
  it("runs in the original pass only and hands the results to the recompute", function()
    local runs, seen = 0, {}
    local function g(x)
      local k = checkpoint.once(function(a)
        runs = runs + 1
        return a + runs
      end, 10)
      seen[#seen + 1] = k
      return x:sin() * k:cos()
    end
    local function number(x)
      local k = checkpoint.once(function()
        runs = runs + 1
        return runs
      end)
      seen[#seen + 1] = k
      return (x * k):sin():exp()
    end
    checkpoint(number, opts, leaf()):sum():backward()
    assert.equal(1, runs)
    assert.same({ 1, 1 }, seen)
    assert.is_function(g)
  end)

  it("just runs outside a region", function()
    assert.equal(3, checkpoint.once(function(a, b) return a + b end, 1, 2))
    assert.equal(2, select("#", checkpoint.once(function() return nil, nil end)))
  end)

  it("keeps the order of several, also in nested regions", function()
    local n, seen = 0, {}
    local function draw()
      n = n + 1
      return n
    end
    local function inner(t)
      local k = checkpoint.once(draw)
      seen[#seen + 1] = "i" .. k
      return (t * k):sin():exp()
    end
    local function outer(t)
      local a = checkpoint.once(draw)
      local y = checkpoint(inner, opts, t * a)
      local b = checkpoint.once(draw)
      seen[#seen + 1] = ("o%d,%d"):format(a, b)
      return (y * b):sin():exp()
    end
    checkpoint(outer, opts, leaf()):sum():backward()
    assert.equal(3, n)
    for _, word in ipairs(seen) do assert.is_truthy(word == "i2" or word == "o1,3", word) end
  end)
end)

describe("once inside of once", function()
  it("is not looked for in the recompute, which does not get there; nor are regions in it", function()
    local seen = {}
    local function draw(v) return function() return v end end
    checkpoint(function(t)
      local a = checkpoint.once(function()
        local y = checkpoint(function(u) return (u * checkpoint.once(draw(3))):exp() end, opts, leaf())
        y:sum():backward()
        return checkpoint.once(draw(2)) + 5
      end)
      local b = checkpoint.once(draw(11))
      seen[#seen + 1] = ("%d,%d"):format(a, b)
      return (t * a):exp() * b
    end, opts, leaf()):sum():backward()
    assert.same({ "7,11", "7,11" }, seen)
  end)

  it("belongs to the coroutine it runs in", function()
    local runs, seen = 0, {}
    local function draw()
      runs = runs + 1
      return runs
    end
    local function g(t)
      local k = coroutine.wrap(function() return checkpoint.once(draw) end)()
      local m = checkpoint.once(draw)
      seen[#seen + 1] = ("%d,%d"):format(k, m)
      return (t * k):exp() * m
    end
    checkpoint(g, opts, leaf()):sum():backward()
    assert.equal(2, runs)
    assert.same({ "1,2", "1,2" }, seen)
  end)

  it("in a context is none of the function's", function()
    local runs = 0
    local function context(run)
      checkpoint.once(function() runs = runs + 1 end)
      run()
    end
    local y = checkpoint(function(t) return (t * checkpoint.once(function() return 3 end)):exp() end,
      { use_reentrant = false, context_fn = function() return context, context end }, leaf())
    y:sum():backward()
    assert.equal(2, runs)
  end)
end)

describe("set_checkpoint_early_stop", function()
  it("is read when the region is made", function()
    local calls = 0
    local function g(x)
      calls = calls + 1
      return f(x)
    end
    checkpoint.set_checkpoint_early_stop(false, function(x) return checkpoint(g, opts, x) end, leaf()):sum():backward()
    assert.equal(2, calls)
  end)
end)
