--- The non-reentrant checkpoint from Lua: cases of the catalogue, named by id. The collector is stopped: what is
-- freed here is freed by reference counts and scopes.
local neap = require "neap"
local checkpoint = neap.checkpoint

local opts = { use_reentrant = false }

local function ck(f, ...)
  return checkpoint(f, opts, ...)
end

local function f3(x)
  return x:sin():exp():sin()
end

local function storages()
  return neap.memory_stats().storages
end

--- f with a counter of its calls.
local function counted(f)
  local calls = { n = 0 }
  return function(...)
    calls.n = calls.n + 1
    return f(...)
  end, calls
end

local function leaf(n, value)
  return neap.full({ n }, value or 0.7, { dtype = "float64", requires_grad = true })
end

local function grad_hash(f, x)
  x.grad = nil
  neap.scope(function()
    f(x):sum():backward()
  end)
  local h = neap.hash(x.grad)
  x.grad = nil
  return h
end

describe("non-reentrant checkpoint", function()
  before_each(function()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
  end)
  after_each(function()
    collectgarbage "restart"
  end)

  it("ck-A1 calls the function twice and stops before the last kernel", function()
    local x = leaf(3)
    local want = grad_hash(f3, x)
    local f, calls = counted(f3)
    local counts = neap.count_ops(function()
      assert.equal(want, grad_hash(function(t)
        return ck(f, t)
      end, x))
    end)
    assert.equal(2, calls.n)
    assert.equal(3, counts.sin)
    assert.equal(2, counts.exp)
  end)

  it("ck-A3 a captured weight gets its gradient though no input requires one", function()
    local x = neap.full({ 3 }, 2, { dtype = "float64" })
    local w = leaf(3)
    local y = ck(function(t)
      return w * t
    end, x)
    assert.is_true(y.requires_grad)
    y:sum():backward()
    assert.is_true(neap.equal(w.grad, { 2, 2, 2 }))
  end)

  it("ck-A4 mixed arguments and results keep values and places", function()
    local a, b = leaf(2, 2), leaf(2, 3)
    local function double(t)
      return t * 2
    end
    local n, s = 0, nil
    local function f(k, t, u, g, none, word)
      n = select("#", k, t, u, g, none, word)
      s = word
      assert(none == nil and k == 7)
      return g(t) * u, 1, "abcd"
    end
    local y, one, text = ck(f, 7, a, b, double, nil, "word")
    assert.equal(6, n)
    assert.equal("word", s)
    assert.equal(1, one)
    assert.equal("abcd", text)
    y:sum():backward()
    assert.is_true(neap.equal(a.grad, { 6, 6 }))
    assert.is_true(neap.equal(b.grad, { 4, 4 }))
  end)

  it("ck-B1 sin alone: the kernel runs again only without early stop", function()
    for _, early in ipairs { true, false } do
      local x = leaf(3)
      local f, calls = counted(function(t)
        return t:sin()
      end)
      local counts = neap.count_ops(function()
        checkpoint(f, { use_reentrant = false, early_stop = early }, x):sum():backward()
      end)
      assert.equal(2, calls.n)
      assert.equal(early and 1 or 2, counts.sin)
    end
  end)

  it("ck-B2 the tail after the last save is not run again", function()
    for _, case in ipairs { { nil, 1 }, { false, 2 }, { true, 1 } } do
      local clones = 0
      local x = leaf(3)
      local y = checkpoint(function(t)
        local z = t:sin():cos()
        clones = clones + 1
        return z:clone()
      end, { use_reentrant = false, early_stop = case[1] }, x)
      y:sum():backward()
      assert.equal(case[2], clones)
    end
  end)

  it("ck-B3 set_checkpoint_early_stop counts at the forward, the inner one first", function()
    local function run(scope, inner, option, around_backward)
      local tails = 0
      local x = leaf(3)
      local function f(t)
        local z = t:sin()
        tails = tails + 1
        return z
      end
      local function forward()
        return checkpoint(f, { use_reentrant = false, early_stop = option }, x):sum()
      end
      local y
      if inner ~= nil then
        y = checkpoint.set_checkpoint_early_stop(scope, function()
          return checkpoint.set_checkpoint_early_stop(inner, forward)
        end)
      elseif scope ~= nil and not around_backward then
        y = checkpoint.set_checkpoint_early_stop(scope, forward)
      else
        y = forward()
      end
      if around_backward then
        checkpoint.set_checkpoint_early_stop(scope, function()
          y:backward()
        end)
      else
        y:backward()
      end
      return tails
    end
    assert.equal(2, run(false))
    assert.equal(1, run(true, nil, false))
    assert.equal(2, run(false, nil, true))
    assert.equal(1, run(false, true))
    assert.equal(1, run(false, nil, nil, true))
  end)

  it("ck-C1 after the forward only input and output are alive", function()
    for _, n in ipairs { 4, 8 } do
      local function squares(t)
        for _ = 1, n do
          t = t:square()
        end
        return t
      end
      local x = leaf(100)
      local before = storages() - 1
      local y = neap.scope(squares, x)
      assert.equal(n + 1, storages() - before)
      y:release()
      y = ck(squares, x)
      assert.equal(2, storages() - before)
      y:release()
      assert.equal(1, storages() - before)
    end
  end)

  --- Storages alive when the gradients of the three inner squares are there.
  local function series(checkpointed, keep)
    local x = leaf(100)
    collectgarbage()
    local before = storages() - 1
    local seen = {}
    local function f(t)
      for i = 1, 4 do
        t = t:square()
        if i < 4 and not neap.in_recompute() then
          t:register_hook(function()
            seen[#seen + 1] = storages() - before
          end)
        end
      end
      return t
    end
    local y = checkpointed and ck(f, x) or neap.scope(f, x)
    neap.scope(function()
      y:backward(neap.ones_like(y), { retain_graph = keep })
    end)
    y:release()
    return seen
  end

  it("ck-C2 memory falls step by step in the backward, kept graph or not", function()
    local function falls(s)
      return #s == 3 and s[1] > s[2] and s[2] > s[3]
    end
    local plain, kept = series(false, false), series(false, true)
    local c, ckept = series(true, false), series(true, true)
    assert.is_true(falls(plain))
    assert.is_true(falls(c))
    assert.same(c, ckept)
    assert.is_true(kept[1] == kept[2] and kept[2] == kept[3])
    assert.same(plain, c)
  end)

  it("ck-C3 four segments of four squares: 17, 5 and 2 alive; 0, 12 and 24 run again", function()
    local function four(t)
      return t:square():square():square():square()
    end
    local function segments(g)
      return function(t)
        for _ = 1, 4 do
          t = g(t)
        end
        return t
      end
    end
    local function each(t)
      return ck(four, t)
    end
    local peaks = {}
    for i, case in ipairs {
      { segments(four), 17, 0 },
      { segments(each), 5, 12 },
      {
        function(t)
          return ck(segments(each), t)
        end,
        2,
        24,
      },
    } do
      local x = leaf(1000)
      local before = storages() - 1
      local y = neap.scope(case[1], x)
      assert.equal(case[2], storages() - before)
      neap.reset_peak()
      local counts = neap.count_ops(function()
        neap.scope(function()
          y:backward(neap.ones_like(y))
        end)
      end)
      assert.equal(case[3], counts.square)
      peaks[i] = neap.memory_stats().peak
      y:release()
      x.grad = nil
      x:release()
    end
    assert.is_true(peaks[2] < 0.8 * peaks[1] and peaks[3] < 0.8 * peaks[1])
  end)

  it("ck-C4 dropping the result frees everything without the collector", function()
    local x = leaf(50)
    local before, stats = storages(), neap.memory_stats()
    local y = ck(f3, x)
    assert.is_true(storages() > before)
    y:release()
    assert.equal(before, storages())
    assert.equal(stats.regions, neap.memory_stats().regions)
    assert.equal(stats.nodes, neap.memory_stats().nodes)
  end)

  it("ck-D1 nesting: two calls with early stop, depth + 1 without", function()
    for _, early in ipairs { true, false } do
      for depth = 1, 4 do
        local x = leaf(3)
        local want = grad_hash(f3, x)
        local f, calls = counted(f3)
        local o = { use_reentrant = false, early_stop = early }
        for _ = 1, depth do
          local inner = f
          f = function(t)
            return checkpoint(inner, o, t)
          end
        end
        assert.equal(want, grad_hash(f, x))
        assert.equal(early and 2 or depth + 1, calls.n)
      end
    end
  end)

  it("ck-D2 two regions inside one: the first runs three times", function()
    for _, early in ipairs { true, false } do
      local x = leaf(3)
      local o = { use_reentrant = false, early_stop = early }
      local f, fn = counted(f3)
      local g, gn = counted(f3)
      local function outer(t)
        return checkpoint(g, o, checkpoint(f, o, t))
      end
      local want = grad_hash(function(t)
        return f3(f3(t))
      end, x)
      assert.equal(want, grad_hash(function(t)
        return checkpoint(outer, o, t)
      end, x))
      assert.equal(3, fn.n)
      assert.equal(early and 2 or 3, gn.n)
    end
  end)

  it("ck-G1 dropout: the same mask, bit-equal gradients", function()
    local x = neap.randn(20000, { requires_grad = true })
    local function f(t)
      return t:dropout(0.3):sin():dropout(0.5)
    end
    assert.is_true(f(x):eq(0):any())
    for k = 1, 5 do
      neap.seed(k)
      local want = grad_hash(function(t)
        return f(t:dropout(0.1))
      end, x)
      neap.seed(k)
      assert.equal(want, grad_hash(function(t)
        return ck(f, t:dropout(0.1))
      end, x))
    end
  end)

  it("ck-G2 the backward does not move the stream, also when it fails", function()
    local x = neap.randn(100, { requires_grad = true })
    for _, fail in ipairs { false, true } do
      neap.seed(3)
      local calls = 0
      local y = ck(function(t)
        calls = calls + 1
        local z = t:dropout(0.5):sin()
        if fail and calls == 2 then
          error "stop here"
        end
        return z:sin()
      end, x)
      local before = neap.default_generator():state()
      local ok = pcall(function()
        y:sum():backward()
      end)
      assert.equal(not fail, ok)
      assert.same(before, neap.default_generator():state())
    end
  end)

  it("ck-L1 an error in the forward comes out unchanged and leaves everything clean", function()
    local x = leaf(3)
    local mine = {}
    local before = neap.memory_stats()
    local ok, err = pcall(ck, function(t)
      local _ = t:sin()
      error(mine)
    end, x)
    assert.is_false(ok)
    assert.equal(mine, err)
    assert.is_true(neap.is_grad_enabled())
    assert.equal(before.regions, neap.memory_stats().regions)
    assert.equal(grad_hash(f3, x), grad_hash(function(t)
      return ck(f3, t)
    end, x))
  end)

  it("ck-L3 an error in the recompute alone: same object, clean state, a retry works", function()
    local x = leaf(3)
    local want = grad_hash(f3, x)
    local mine, calls = {}, 0
    local y = ck(function(t)
      calls = calls + 1
      if calls == 2 then
        error(mine)
      end
      return f3(t)
    end, x)
    local s = y:sum()
    local ok, err = pcall(s.backward, s, { retain_graph = true })
    assert.is_false(ok)
    assert.equal(mine, err)
    assert.is_true(neap.is_grad_enabled())
    assert.is_false(neap.in_recompute())
    s:backward()
    assert.equal(want, neap.hash(x.grad))
  end)

  it("ck-L5 any error value arrives as it is", function()
    for _, value in ipairs { { {} }, { nil }, { 42 }, { "text" }, { false } } do
      local x, calls = leaf(3), 0
      local y = ck(function(t)
        calls = calls + 1
        if calls == 2 then
          error(value[1], 0)
        end
        return f3(t)
      end, x)
      local s = y:sum()
      local ok, err = pcall(s.backward, s)
      assert.is_false(ok)
      assert.equal(value[1], err)
    end
  end)

  it("ck-B7 the stop closes <close> variables once, with no error, and no pcall sees it", function()
    local x = leaf(3)
    local closed, caught = {}, 0
    local y = ck(function(t)
      local _ <close> = setmetatable({}, {
        __close = function(_, err)
          closed[#closed + 1] = err == nil
        end,
      })
      local ok, z = pcall(f3, t)
      if not ok then
        caught = caught + 1
      end
      return z
    end, x)
    y:sum():backward()
    assert.same({ true, true }, closed)
    assert.equal(0, caught)
  end)

  it("ck-L10 a collection at every op of the recompute changes nothing", function()
    local x = leaf(3)
    local want = grad_hash(f3, x)
    local y = ck(function(t)
      collectgarbage()
      t = t:sin()
      collectgarbage()
      t = t:exp()
      collectgarbage()
      return t:sin()
    end, x)
    y:sum():backward()
    assert.equal(want, neap.hash(x.grad))
  end)

  it("ck-L11 forward in a coroutine that yields inside the region, backward elsewhere", function()
    local x = leaf(3)
    local want = grad_hash(f3, x)
    local co = coroutine.create(function()
      local y = ck(function(t)
        t = t:sin()
        coroutine.yield "half"
        return t:exp():sin()
      end, x)
      return y
    end)
    local _, word = coroutine.resume(co)
    assert.equal("half", word)
    local other = x:cos() -- not part of the region
    local _, y = coroutine.resume(co)
    assert.is_true(other.requires_grad)
    y:sum():backward()
    assert.equal(want, neap.hash(x.grad))
  end)
end)

describe("same bits (gate c)", function()
  --- An input used twice inside the region and once outside of it.
  local function hash_of(wrap, threads)
    neap.set_num_threads(threads)
    neap.seed(5)
    local x = neap.randn(64, 96, { requires_grad = true })
    local w1, w2 = neap.randn(96, 200, { requires_grad = true }), neap.randn(200, 96, { requires_grad = true })
    local function block(t)
      local h = t:matmul(w1):dropout(0.2):gelu()
      return h:matmul(w2):softmax(-1) * t + t:mean(2, { keepdim = true })
    end
    local y = wrap(block)(x) + x * 0.5
    wrap(block)(y):square():mean():backward()
    return neap.hash { x.grad, w1.grad, w2.grad }
  end

  local function plain(f)
    return f
  end
  local function region(f)
    return checkpoint(opts)(f)
  end
  local function nested(f)
    return region(function(t)
      return region(f)(t)
    end)
  end

  it("one gradient hash for plain, region and nested regions at 1 and 2 threads", function()
    local before = neap.get_num_threads and neap.get_num_threads() or 2
    local want = hash_of(plain, 1)
    for _, threads in ipairs { 1, 2 } do
      for _, wrap in ipairs { plain, region, nested } do
        assert.equal(want, hash_of(wrap, threads))
      end
    end
    neap.set_num_threads(before)
    assert.are_not.equal(
      want,
      hash_of(function(f)
        return function(t)
          return f(t * 1.0000001)
        end
      end, 1)
    )
  end)
end)
