--- What users of tensor libraries run into: gradients, hooks, checkpoints. Case ids of the list of user cases,
-- section (b).
local neap = require "neap"
local nn, optim, checkpoint = neap.nn, neap.optim, neap.checkpoint

local inf = math.huge

local function leaf(values, dtype) return neap.tensor(values, { dtype = dtype or "float64", requires_grad = true }) end

local function near_all(want, got, tolerance)
  assert.is_not_nil(got, "there is no gradient")
  local flat = got:detach():reshape(-1):totable()
  assert.equal(#want, #flat)
  for i = 1, #want do
    local ok = want[i] == flat[i] or math.abs(flat[i] - want[i]) <= (tolerance or 1e-9) * math.max(1, math.abs(want[i]))
    if not ok then error(("element %d is %.12g, should be %.12g"):format(i, flat[i], want[i]), 2) end
  end
end

local function refused(code, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok, "no error was raised")
  assert.equal(code, neap.error_code(err), tostring(err))
  return err
end

--- The gradient of sum(fn(x)) at x.
local function slope(fn, x)
  fn(x):sum():backward()
  return x.grad
end

describe("user cases: gradients", function()
  it("uc-B01 the inactive branch of where gets a gradient of exactly 0", function()
    near_all({ 1, 1 }, slope(function(x) return neap.where(x:gt(0), x:sqrt(), x) end, leaf { -1, -4 }))
    near_all({ 1 }, slope(function(x) return neap.where(x:le(0), x:exp(), x + 1) end, leaf { 1000 }))
    near_all({ 2, 2, 0.4808983470 },
      slope(function(x) return neap.where(x:gt(2), x:log() / math.log(2), x * 2) end, leaf { 0, 2, 3 }))
  end)

  it("uc-B03 subgradients at kinks", function()
    near_all({ 0 }, slope(function(x) return x:abs() end, leaf { 0 }))
    near_all({ 0 }, slope(function(x) return x:relu() end, leaf { 0 }))
    near_all({ 1 }, slope(function(x) return x + x:sign() end, leaf { 0 }))
    if rawget(neap, "norm") then near_all({ 0, 0 }, slope(function(x) return x:norm() end, leaf { 0, 0 })) end
    if rawget(neap, "std") then near_all({ 0, 0 }, slope(function(x) return x:std() end, leaf { 3, 3 })) end
    near_all({ 0, 1, 1, 1, 0 }, slope(function(x) return x:clamp { min = 0, max = 1 } end, leaf { -1, 0, 0.5, 1, 2 }))
  end)

  it("uc-B04 a composite square root at zero is the same for every element", function()
    local g = slope(function(x) return (x * x):sum():sqrt() end, leaf { 0, 0 }):totable()
    assert.is_true(g[1] == g[2] or (g[1] ~= g[1] and g[2] ~= g[2]))
    assert.is_true(math.abs(g[1]) ~= inf)
  end)

  it("uc-B05 power at base zero", function()
    near_all({ 0 }, slope(function(x) return x ^ 2 end, leaf { 0 }))
    near_all({ 1 }, slope(function(x) return x ^ 1 end, leaf { 0 }))
    near_all({ inf }, slope(function(x) return x ^ 0.5 end, leaf { 0 }))
    near_all({ 0 }, slope(function(x) return x ^ 0 end, leaf { 0 }))
    local base, exponent = leaf { 0 }, leaf { 2 };
    (base ^ exponent):sum():backward()
    near_all({ 0 }, base.grad)
    near_all({ 0 }, exponent.grad)
  end)

  it("uc-B06 ties in max share or choose, and always sum to 1", function()
    near_all({ 0, 0.5, 0.5 }, slope(function(x) return (x:max()) end, leaf { 1, 3, 3 }))
    near_all({ 0, 1, 0 }, slope(function(x) return (x:max(1)) end, leaf { 1, 3, 3 }))
    local a, b = leaf { 1, 2 }, leaf { 1, 3 }
    neap.maximum(a, b):sum():backward()
    near_all({ 0.5, 0 }, a.grad)
    near_all({ 0.5, 1 }, b.grad)
  end)

  it("uc-B07 product gradients with zeros", function()
    near_all({ 0, 6, 0 }, slope(function(x) return x:prod() end, leaf { 2, 0, 3 }))
    near_all({ 0, 0, 0 }, slope(function(x) return x:prod() end, leaf { 0, 0, 3 }))
    if rawget(neap, "cumprod") then
      near_all({ 1, 8, 0 }, slope(function(x) return x:cumprod(1) end, leaf { 2, 0, 3 }))
    end
  end)

  it("uc-B08 broadcast gradients reduce to the operand's shape", function()
    local a, b, c = leaf { { 1 }, { 2 }, { 3 } }, leaf { { 1, 2, 3, 4 } }, leaf({ 5 })
    local s = c[1];
    (a + b + s):sum():backward()
    near_all({ 4, 4, 4 }, a.grad)
    assert.is_true(a.grad.shape == a.shape)
    near_all({ 3, 3, 3, 3 }, b.grad)
    assert.is_true(b.grad.shape == b.shape)
    near_all({ 12 }, c.grad)
    local bias = leaf { 1, 2, 3, 4 };
    (neap.ones({ 2, 3, 4 }, { dtype = "float64" }) + bias):sum():backward()
    near_all({ 6, 6, 6, 6 }, bias.grad)
    assert.is_true(bias.grad.shape == bias.shape)
  end)

  it("uc-B09 expand, repeat and narrow round trip", function()
    near_all({ 5 }, slope(function(x) return x:expand(5) end, leaf { 2 }))
    local again = rawget(neap, "repeat")
    if again then near_all({ 2, 2, 2 }, slope(function(x) return again(x, 2) end, leaf { 1, 2, 3 })) end
    near_all({ 0, 1, 1, 0 }, slope(function(x) return x:narrow(1, 2, 2) end, leaf { 1, 2, 3, 4 }))
    near_all({ 0, 1, 0 }, slope(function(x) return x[2] end, leaf { 1, 2, 3 }))
  end)

  it("uc-B10 repeated indices accumulate", function()
    local x = leaf { 0.1 }
    x:gather(1, neap.tensor { 1, 1 }):backward(neap.tensor({ 0.2, 0.3 }, { dtype = "float64" }))
    near_all({ 0.5 }, x.grad)
    local w = leaf { { 1, 2 }, { 3, 4 }, { 5, 6 } }
    neap.embedding(w, neap.tensor { 2, 2, 1, 3 }, { padding_idx = 1 }):sum():backward()
    near_all({ 0, 0, 2, 2, 1, 1 }, w.grad)
    local y = leaf { 1, 2 }
    y[neap.tensor { 1, 1 }]:sum():backward()
    near_all({ 2, 0 }, y.grad)
  end)

  it("uc-B11 overwriting a value needed later is an error before any gradient is written", function()
    local x = leaf { 1, 2 }
    local a = x:exp()
    a:add_(1)
    local err = refused("E-INPLACE", function() a:sum():backward() end)
    assert.truthy(err:find("exp", 1, true))
    assert.truthy(err:find("[2]", 1, true))
    assert.is_nil(x.grad)
    local b = x + 1
    b:mul_(2)
    b:sum():backward()
    near_all({ 2, 2 }, x.grad)
  end)

  it("uc-B14 in place on a leaf needs no_grad", function()
    local w = leaf { 1, 2 }
    refused("E-LEAF-INPLACE", function() w:add_(1) end)
    refused("E-LEAF-INPLACE", function() w[1] = 5 end)
    neap.no_grad(function() w:add_(1) end)
    near_all({ 2, 3 }, w)
    local before = w:square()
    local opt = optim.SGD({ w }, { lr = 0.1 })
    w:sum():backward()
    opt:step()
    near_all({ 1.9, 2.9 }, w)
    refused("E-INPLACE", function() before:sum():backward() end)
  end)

  it("uc-B15 a view changed in place is tracked", function()
    local x = leaf { 1, 1, 1, 1 }
    local y = x * 2
    y:narrow(1, 1, 2):mul_(3)
    y:sum():backward()
    near_all({ 6, 6, 2, 2 }, x.grad)
    x.grad = nil
    local z = neap.zeros({ 4 }, { dtype = "float64" })
    z[{ { 2, 3 } }] = x[{ { 1, 2 } }] * 5
    z:sum():backward()
    near_all({ 5, 5, 0, 0 }, x.grad)
  end)

  it("uc-B16 a view made under no_grad and changed outside it is an error", function()
    local x, w = leaf { 1, 2 }, leaf { 3, 4 }
    local y = x * 2
    local v = neap.no_grad(function() return y:narrow(1, 1, 2) end)
    local ok, err = pcall(function() v:mul_(w) end)
    assert.is_false(ok, "the gradient would be lost silently")
    assert.is_not_nil(neap.error_code(err), tostring(err))
  end)

  it("uc-B17 a second backward over a released graph", function()
    local x = leaf { 3 }
    local y = x ^ 2
    y:sum():backward()
    x.grad = nil
    y = (x ^ 2):sum()
    y:backward()
    local err = refused("E-FREED", function() y:backward() end)
    assert.truthy(err:find("retain_graph", 1, true), err)
    assert.truthy(err:find("detach", 1, true), err)
    x.grad = nil
    y = (x ^ 2):sum()
    y:backward(nil, { retain_graph = true })
    y:backward()
    near_all({ 12 }, x.grad)
  end)

  it("uc-B18 a carried hidden state must be detached", function()
    local w = leaf { 0.5 }
    local function cell(h) return (h * w):tanh() end
    local h = neap.ones({ 1 }, { dtype = "float64" })
    h = cell(h)
    h:sum():backward()
    h = cell(h)
    refused("E-FREED", function() h:sum():backward() end)
    h = neap.ones({ 1 }, { dtype = "float64" })
    local live
    for i = 1, 100 do
      h = neap.scope(function(previous)
        local new = cell(previous)
        new:sum():backward()
        return new:detach()
      end, h:detach())
      if i == 10 then collectgarbage() live = neap.memory_stats().live end
    end
    collectgarbage()
    assert.equal(live, neap.memory_stats().live)
  end)

  it("uc-B19 higher derivatives and a gradient penalty", function()
    local x = leaf { 2 }
    local y = (x ^ 3):sum()
    local d1 = neap.grad(y, x, { create_graph = true })
    local d2 = neap.grad(d1:sum(), x, { create_graph = true })
    local d3 = neap.grad(d2:sum(), x)
    near_all({ 12 }, d1)
    near_all({ 12 }, d2)
    near_all({ 6 }, d3)
    local v, w = leaf { 1, 2 }, leaf { 3, 4 }
    local g = neap.grad((w * v * v):sum(), v, { create_graph = true })
    local penalty = ((g * g):sum():sqrt() - 1) ^ 2
    near_all({ 258.8239850187 }, penalty)
    near_all({ 22.5955062336, 120.5093665774 }, neap.grad(penalty:sum(), w))
  end)

  it("uc-B21 disabling gradients is safe from errors and belongs to its coroutine", function()
    assert.is_false(pcall(neap.no_grad, function() error "x" end))
    assert.is_true(neap.is_grad_enabled())
    neap.no_grad(function()
      assert.is_false(neap.is_grad_enabled())
      neap.enable_grad(function() assert.is_true(neap.is_grad_enabled()) end)
      assert.is_false(neap.is_grad_enabled())
    end)
    do
      local co = coroutine.create(function() neap.no_grad(function() coroutine.yield() end) end)
      assert(coroutine.resume(co))
      assert.is_true(neap.is_grad_enabled())
    end
    collectgarbage()
    assert.is_true(neap.is_grad_enabled())
  end)

  it("uc-B22 detach shares storage", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    local d = y:detach()
    d:zero_()
    near_all({ 0, 0 }, y)
    assert.is_false(d.requires_grad)
    y:sum():backward()
    near_all({ 2, 2 }, x.grad)
  end)

  it("uc-B23 hooks see the total once, in order, and may remove themselves or raise", function()
    local x, seen = leaf { 1, 2 }, {}
    x:register_hook(function(g) seen[#seen + 1] = "a" return g * 2 end)
    local hook
    hook = x:register_hook(function() seen[#seen + 1] = "b" hook:remove() end);
    (x * 3 + x):sum():backward()
    near_all({ 8, 8 }, x.grad)
    assert.equal("a b", table.concat(seen, " "))
    x.grad = nil
    x:sum():backward()
    assert.equal("a b a", table.concat(seen, " "))
    local bad = x:register_hook(function() error "from the hook" end)
    local ok, err = pcall(function() x:sum():backward() end)
    assert.is_false(ok)
    assert.truthy(tostring(err):find("from the hook", 1, true))
    bad:remove()
    x.grad = nil
    x:sum():backward()
    near_all({ 2, 2 }, x.grad)
  end)

  it("uc-B24 mistakes of custom functions are named", function()
    local x, y = leaf { 1, 2 }, leaf { 3, 4 }
    local function with(backward)
      local F = neap.Function("Faulty", {
        forward = function(_, a, b) return a * b end,
        backward = backward,
      })
      F(x, y):sum():backward()
    end
    for _, wrong in ipairs {
      function(_, g) return g end,
      function() return neap.ones({ 3 }, { dtype = "float64" }), nil end,
    } do
      local ok, err = pcall(with, wrong)
      assert.is_false(ok)
      assert.truthy(tostring(err):find("Faulty", 1, true), tostring(err))
    end
    x.grad, y.grad = nil, nil
    with(function(_, g) return nil, g end)
    assert.is_nil(x.grad)
    near_all({ 1, 1 }, y.grad)
    local ok, err = pcall(with, function() error "in backward" end)
    assert.is_false(ok)
    assert.truthy(tostring(err):find("in backward", 1, true))
  end)

  it("uc-B25 backward needs one element or a seed of the right shape", function()
    local x = leaf { 1, 2 }
    local err = refused("E-SHAPE", function() (x * 2):backward() end)
    assert.truthy(err:find("[2]", 1, true), err);
    (x * 2):backward(neap.ones({ 2 }, { dtype = "float64" }))
    near_all({ 2, 2 }, x.grad)
    err = refused("E-SHAPE", function() (x * 2):backward(neap.ones({ 3 }, { dtype = "float64" })) end)
    assert.truthy(err:find("[2]", 1, true) and err:find("[3]", 1, true), err)
  end)

  it("uc-B26 a parameter that took no part has no gradient and does not move", function()
    local used, unused = leaf { 1 }, leaf { 1 }
    local opt = optim.AdamW({ used, unused }, { lr = 0.1, weight_decay = 0.5 })
    used:sum():backward()
    opt:step()
    assert.is_nil(unused.grad)
    assert.equal(1.0, unused:item())
    assert.is_true(used:item() < 1)
    refused("E-UNUSED", neap.grad, used:sum(), unused)
    assert.is_nil((neap.grad(used:sum(), unused, { allow_unused = true })))
  end)

  it("uc-B27 a checkpoint gives the bits of the plain run, dropout included", function()
    neap.seed(3)
    local net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5),
      nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    local x, calls = neap.randn(5, 6), 0
    local function forward(t) calls = calls + 1 return net(t) end
    local function run(opts)
      neap.seed(11)
      net:zero_grad()
      local y = opts and checkpoint(forward, opts, x) or forward(x)
      neap.rand(3)
      y:square():sum():backward()
      local grads = {}
      for i, p in ipairs(net:parameters()) do grads[i] = p.grad end
      return neap.hash(grads), neap.hash(neap.rand(3))
    end
    local plain, state = run()
    calls = 0
    local again, after = run { use_reentrant = false }
    assert.equal(2, calls)
    assert.equal(plain, again)
    assert.equal(state, after)
    assert.is_true(plain ~= run { use_reentrant = false, preserve_rng_state = false })
  end)

  it("uc-B29 a recomputation that differs is caught", function()
    local width = 3
    local x = leaf { 1, 2, 3, 4 }
    local y = checkpoint(function(t) return t:narrow(1, 1, width):exp():sin() end, { use_reentrant = false }, x)
    width = 2
    local err = refused("E-META", function() y:sum():backward() end)
    assert.truthy(err:find("[3]", 1, true) and err:find("[2]", 1, true), err)
    assert.is_nil(x.grad)
    local more = false
    y = checkpoint(function(t) t = t:exp() if more then t = t:sin() end return t:cos() end,
      { use_reentrant = false, early_stop = false }, x)
    more = true
    local ok, text = pcall(function() y:sum():backward() end)
    assert.is_false(ok)
    assert.truthy(({ ["E-COUNT"] = 1, ["E-META"] = 1, ["E-MORE-SAVED"] = 1 })[neap.error_code(text)], tostring(text))
  end)

  it("uc-B32 a checkpoint in a kept graph is recomputed once per backward", function()
    local calls = 0
    local x = leaf { 1, 2 }
    local function f(t) calls = calls + 1 return t:sin():exp() end
    local y = checkpoint(f, { use_reentrant = false }, x):sum()
    collectgarbage()
    local live = neap.memory_stats().storages
    y:backward(nil, { retain_graph = true })
    local once = x.grad:clone()
    y:backward(nil, { retain_graph = true })
    assert.equal(3, calls)
    assert.is_true(neap.equal(x.grad, once * 2))
    once:release()
    x.grad = nil
    collectgarbage()
    assert.equal(live, neap.memory_stats().storages)
    y:backward()
  end)

  it("uc-B35 checkpointing lowers the peak #slow", function()
    local net, n = {}, os.getenv "NEAP_TEST_VALGRIND" and 32 or 256
    neap.seed(1)
    for i = 1, 16 do net[i] = nn.Sequential(nn.Linear(n, n), nn.GELU(), nn.Linear(n, n), nn.Tanh()) end
    local input = neap.randn({ n, n }, { requires_grad = true })
    local function peak(wrap)
      collectgarbage()
      collectgarbage()
      local base, x = neap.memory_stats().live, input
      neap.reset_peak()
      for _, block in ipairs(net) do x = wrap and checkpoint(block, { use_reentrant = false }, x) or block(x) end
      neap.grad(x:sum(), input)
      return neap.memory_stats().peak - base
    end
    local plain, lean = peak(false), peak(true)
    assert.is_true(lean < 0.45 * plain, ("%d of %d"):format(lean, plain))
  end)
end)
