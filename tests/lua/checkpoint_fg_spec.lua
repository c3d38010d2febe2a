--- Checkpointing, sections F and G of the catalogue: determinism and debug; random streams and ambient state.
-- What needs a second device (ck-G7, ck-G8, ck-G11) is in tests/core/test_lua_device.c.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, optim, checkpoint = neap.nn, neap.optim, neap.checkpoint
local ck, rck, with, counted, leaf = help.ck, help.rck, help.with, help.counted, help.leaf
local gradient, refused = help.gradient, help.refused

--- A function that takes one path in its first run and another one in all later runs.
local function differs(first, later)
  local calls = 0
  return function(t)
    calls = calls + 1
    return (calls == 1 and first or later)(t)
  end
end

local function three(t) return t:sin():sin():sin() end

local function two(t) return t:sin():sin() end

local function three_ops(t) return t:sin():cos():exp() end

describe("F: determinism and debug", function()
  local function backward(f, more, x)
    local y = checkpoint(f, with(more), x or leaf()):sum()
    return pcall(y.backward, y)
  end
  local function fails(code, f, more, x)
    local ok, err = backward(f, more, x)
    assert.is_false(ok)
    assert.equal(code, neap.error_code(err), tostring(err))
    return err
  end

  it("ck-F1 another number of saves: both numbers and the way to see more", function()
    for _, early in ipairs { true, false } do
      local err = fails("E-COUNT", differs(three, two), { early_stop = early })
      assert.is_truthy(err:find "%f[%d]3%f[%D]" and err:find "%f[%d]2%f[%D]" and err:find("debug", 1, true), err)
    end
  end)

  it("ck-F2 another shape: the position and both shapes", function()
    local function short(t) return t:narrow(1, 1, 1):sin():sin() end
    local err = fails("E-META", differs(two, short))
    assert.is_truthy(err:find("position 1", 1, true) and err:find("[3]", 1, true) and err:find("[1]", 1, true), err)
  end)

  it("ck-F3 without the check another shape passes, another number does not", function()
    local function short(t) return t:narrow(1, 1, 1):sin():sin() end
    assert.is_true(backward(differs(two, short), { determinism_check = "none" }))
    fails("E-COUNT", differs(three, two), { determinism_check = "none" })
  end)

  it("ck-F4 an unknown check is refused before fn runs", function()
    local f, calls = counted(two)
    local err = refused("E-BADCHECK", checkpoint, f, with { determinism_check = "shapes" }, leaf())
    assert.is_truthy(err:find("shapes", 1, true) and err:find("values", 1, true))
    assert.equal(0, calls.n)
  end)

  it("ck-F5 debug shows both runs with their lines; the scope goes before the option", function()
    local function long(err) -- both lists, each op with its line
      local forward, again = err:match "\nforward, 3 ops:(.*)\nrecompute, 2 ops:(.*)"
      local function ops(list) return select(2, list:gsub("%d+ sin +%[3%] +%S*checkpoint_fg_spec.lua:%d+", "")) end
      return forward and ops(forward) == 3 and ops(again) == 2 and forward:find("> +3 sin") and again:find "> +%(end%)"
    end
    local err = fails("E-COUNT", differs(three, two), { debug = true })
    assert.is_truthy(long(err), err)
    assert.is_truthy(err:match "^[^\n]*the forward saved 3 values, the recompute 2", err) -- the cause first
    local function scoped(on, option)
      local y = checkpoint.set_checkpoint_debug_enabled(on, function()
        return checkpoint(differs(three, two), with { debug = option }, leaf()):sum()
      end)
      return refused("E-COUNT", y.backward, y)
    end
    assert.is_truthy(long(scoped(true, false)))
    assert.is_falsy(long(scoped(false, true)))
    assert.is_truthy(long(scoped(nil, true)))
  end)

  it("ck-F5 debug shows long runs around the first difference, with both numbers of ops", function()
    local calls = 0
    local err = fails("E-OPS", function(t)
      calls = calls + 1
      for i = 1, 20 do t = i == 12 and calls > 1 and t:cos() or t:sin() end
      return t
    end, { debug = true, determinism_check = "ops", early_stop = false })
    for _, name in ipairs { "forward", "recompute" } do
      assert.is_truthy(err:find("\n" .. name .. ", 20 ops:\n        ...\n      9 sin", 1, true), err)
    end
    assert.is_truthy(err:find("> +12 sin.*> +12 cos") and err:find("15 sin[^\n]*\n        %.%.%."), err)
  end)

  it("ck-F6 debug and contexts go together; each context is entered once", function()
    local log = {}
    local function around(name)
      return function(run)
        log[#log + 1] = name
        run()
      end
    end
    local function contexts() return around "forward", around "recompute" end
    local x = leaf()
    checkpoint(two, with { debug = true, context_fn = contexts }, x):sum():backward()
    assert.same({ "forward", "recompute" }, log)
    assert.equal(neap.hash(x.grad), gradient(two, leaf()))
    fails("E-COUNT", differs(three, two), { debug = true, context_fn = contexts })
  end)

  it("ck-F7 other values, made in the same way, are seen by the check of values alone", function()
    local function noisy(t) return (t * neap.rand(3, { dtype = "float64" })):sin() end
    assert.is_true(backward(noisy, { preserve_rng_state = false }))
    assert.is_true(backward(noisy, { preserve_rng_state = false, determinism_check = "ops" }))
    local err = fails("E-VALUES", noisy, { preserve_rng_state = false, determinism_check = "values" })
    assert.is_truthy(err:find "position %d", err)
  end)

  it("ck-F7 what a function writes to a buffer from outside is not compared by default", function()
    local buffer, value = neap.zeros({ 3 }, { dtype = "float64" }), 0
    local function hidden(t)
      value = value + 1
      buffer:fill_(value)
      return (t + buffer):sin()
    end
    assert.is_true(backward(hidden, {}))
    fails("E-OPS", hidden, { determinism_check = "ops" })
  end)

  it("ck-F7 another number, in an op or in data, is seen by the default check", function()
    local k = 1.0
    local function scaled(t)
      k = k + 1
      return (t * k):sin()
    end
    local function hidden(t)
      k = k + 1
      return (t * neap.tensor({ k, k, k }, { dtype = "float64" })):sin()
    end
    for _, f in ipairs { scaled, hidden } do
      for _, check in ipairs { "default", "values" } do fails("E-OPS", f, { determinism_check = check }) end
      assert.is_true(backward(f, { determinism_check = "none" }))
    end
    fails("E-OPS", scaled, { determinism_check = "ops" })
    for _, check in ipairs { "default", "ops", "values" } do
      assert.is_true(backward(three, { determinism_check = check }))
    end
  end)

  it("ck-F8 another dtype: both are named", function()
    local function as(dtype)
      return function(t) return t:to(dtype):sin() end
    end
    local err = fails("E-META", differs(as "float32", as "float16"))
    assert.is_truthy(err:find("float32", 1, true) and err:find("float16", 1, true), err)
  end)

  it("ck-F9 a retry in the same execution group fails again", function()
    local y = ck(differs(three, two), leaf()):sum()
    local group = checkpoint.GraphExecGroup()
    for _ = 1, 2 do refused("E-COUNT", group, y.backward, y, nil, { retain_graph = true }) end
  end)

  it("ck-F10 a branch with the same shapes is seen, unless the check is off", function()
    local function cosines(t) return t:cos():cos() end
    fails("E-OPS", differs(two, cosines))
    assert.is_true(backward(differs(two, cosines), { determinism_check = "none" }))
  end)
end)

local BatchNorm = nn.Module "SpecBatchNorm"

function BatchNorm:init(n)
  self.weight = nn.Parameter(neap.ones(n))
  self.mean = nn.Buffer(neap.zeros(n))
  self.var = nn.Buffer(neap.ones(n))
  self.batches = 0
end

function BatchNorm:forward(x)
  local mean, var = self.mean, self.var
  if self.training then
    mean = x:mean(1)
    var = (x - mean):square():mean(1)
    if not neap.in_recompute() then
      self.batches = self.batches + 1
      neap.no_grad(function()
        self.mean:mul_(0.9):add_(mean * 0.1)
        self.var:mul_(0.9):add_(var * 0.1)
      end)
    end
  end
  return (x - mean) / (var + 1e-5):sqrt() * self.weight
end

describe("G: random streams and ambient state", function()
  local function plain(f, ...) return f(...) end

  it("ck-G1 dropout in a reentrant region: the same mask", function()
    local x = neap.randn(20000, { requires_grad = true })
    local function f(t) return t:dropout(0.3):sin():dropout(0.5) end
    for k = 1, 5 do
      neap.seed(k)
      local want = gradient(function(t) return f(t:dropout(0.1)) end, x)
      neap.seed(k)
      assert.equal(want, gradient(function(t) return rck(f, t:dropout(0.1)) end, x))
    end
  end)

  it("ck-G3 preserve_rng_state = false draws other masks and moves the stream", function()
    local function f(t) return t:dropout(0.5):exp() end
    for _, reentrant in ipairs { false, true } do
      local function run(wrap)
        local x = neap.ones(20000, { requires_grad = true })
        neap.seed(1)
        local y = wrap(f, x)
        local before = neap.default_generator():state().offset
        y:sum():backward()
        return neap.hash(x.grad), neap.default_generator():state().offset ~= before
      end
      local function variant(preserve)
        return function(g, x)
          return checkpoint(g, { use_reentrant = reentrant, preserve_rng_state = preserve }, x)
        end
      end
      local want = run(plain)
      local kept, kept_moved = run(variant(true))
      assert.equal(want, kept)
      assert.is_false(kept_moved)
      local other, moved = run(variant(false))
      assert.are_not.equal(want, other)
      assert.is_true(moved)
    end
  end)

  it("ck-G4 dropout at two levels of nesting", function()
    local function nested(wrap)
      local function inner(t) return t:dropout(0.4):sin():dropout(0.2) end
      local function outer(t) return wrap(inner, t:dropout(0.3)):exp():dropout(0.1) end
      return function(t) return wrap(outer, t):sin() end
    end
    local x = neap.randn(5000, { requires_grad = true })
    local hashes = {}
    for i, wrap in ipairs { plain, ck, rck } do
      neap.seed(11)
      hashes[i] = gradient(nested(wrap), x) .. neap.hash(neap.rand(3))
    end
    assert.equal(hashes[1], hashes[2])
    assert.equal(hashes[1], hashes[3])
  end)

  it("ck-G7 get_device_states: the host contributes nothing, in nested tables too", function()
    local _ <close> = neap.device("cpu")
    local x = neap.ones(2)
    local ids, states = checkpoint.get_device_states(x, { x, { x, 3 } }, nil, "text")
    assert.same({}, ids)
    assert.same({}, states)
    local before = neap.default_generator():state()
    checkpoint.set_device_states(ids, states)
    assert.same(before, neap.default_generator():state())
  end)

  local function matrix() return neap.randn({ 4, 4 }, { requires_grad = true }) end

  it("ck-G9 autocast around the forward only: the recompute casts as the forward did", function()
    local x, w = matrix(), matrix()
    for _, enabled in ipairs { true, false } do
      local dtype = enabled and "bfloat16" or "float32"
      local seen = 0
      local function f(t)
        local y = t:matmul(w)
        assert.equal(dtype, y.dtype)
        assert.equal("float32", y:exp().dtype)
        seen = seen + 1
        return y:tanh():matmul(w)
      end
      local function run(wrap)
        local y = neap.autocast("bfloat16", neap.autocast, "bfloat16", { enabled = enabled }, wrap, f, x)
        assert.equal(dtype, y.dtype)
        assert.equal("float32", x:detach():matmul(x:detach()).dtype)
        local g = neap.hash(neap.grad(y, { x = x, w = w }, { grad_outputs = neap.ones_like(y) }))
        return g
      end
      local want = run(plain)
      assert.equal(want, run(ck))
      assert.equal(3, seen)
    end
  end)

  it("ck-G9 autocast and the reentrant variant; nested regions; a backward under another autocast", function()
    local x, w = matrix(), matrix()
    local function inner(t)
      local y = t:matmul(w)
      assert.equal("bfloat16", y.dtype)
      return y:tanh()
    end
    local function gradients(wrap, around)
      local y = neap.autocast("bfloat16", wrap, function(t) return wrap(inner, t) + inner(t * 2) end, x)
      around(y.backward, y, neap.ones_like(y))
      local h = neap.hash { y, x.grad, w.grad }
      x.grad, w.grad = nil, nil
      return h
    end
    local function float16(f, ...) return neap.autocast("float16", f, ...) end
    local want = gradients(plain, plain)
    for _, wrap in ipairs { ck, rck } do
      assert.equal(want, gradients(wrap, plain))
      assert.equal(want, gradients(wrap, float16))
    end
  end)

  it("ck-G9 an autocast inside the function is its own; nothing stays in force", function()
    local x = matrix()
    local function f(t)
      local _ <close> = neap.autocast "float16"
      local y = t:matmul(t)
      assert.equal("float16", y.dtype)
      return y:tanh():matmul(t)
    end
    local function gradients(wrap)
      local y = wrap(f, x)
      y:backward(neap.ones_like(y))
      local h = neap.hash(x.grad)
      x.grad = nil
      return h
    end
    local want = gradients(plain)
    assert.equal(want, gradients(ck))
    assert.equal(want, gradients(rck))
    assert.equal("float32", x:matmul(x).dtype)
  end)

  it("ck-G10 a weight shared with other regions and the outside: no mismatch, at any check, kept or not", function()
    local x, w = matrix(), matrix()
    local function layer(t) return t:matmul(w):tanh() end
    local function gradients(wrap)
      local y = neap.autocast("bfloat16", function()
        local t = wrap(layer, wrap(layer, layer(x)))
        return wrap(function(u) return wrap(layer, u):matmul(w) end, t)
      end)
      y:backward(neap.ones_like(y))
      local h = neap.hash { x.grad, w.grad }
      x.grad, w.grad = nil, nil
      return h
    end
    local want, lines = gradients(plain), {}
    neap.on_log(function(_, text) lines[#lines + 1] = text end)
    for _, early in ipairs { true, false } do
      for _, check in ipairs { "default", "ops", "values" } do
        for _, policy in ipairs { false, { neap.ops.matmul }, { neap.ops.to }, { neap.ops.tanh, neap.ops.to } } do
          local options = with { early_stop = early, determinism_check = check, policy = policy or nil }
          assert.equal(want, gradients(function(f, ...) return checkpoint(f, options, ...) end))
        end
      end
    end
    neap.on_log(nil)
    assert.same({}, lines) -- a recompute that stops early says nothing of listed ops that it did not reach
  end)

  it("op modes of the forward, and no others, are in force in the recompute", function()
    local x = leaf()
    for _, wrap in ipairs { plain, ck, rck } do
      local seen = { outer = "", inner = "", backward = "" }
      local function mode(name, factor)
        return function(op, call, ...)
          seen[name] = seen[name] .. op.name .. " "
          local y = call(...)
          return factor and op.name == "sin" and y * factor or y
        end
      end
      local y = neap.scope(function() -- what the modes captured outlives the scope
        local a, b = neap.full({ 3 }, 2, { dtype = "float64" }), neap.full({ 3 }, 3, { dtype = "float64" })
        return neap.op_mode(mode("outer", a), neap.op_mode, mode("inner", b), wrap, three_ops, x)
      end)
      collectgarbage() -- so do the modes' functions
      collectgarbage()
      local forward = { outer = seen.outer, inner = seen.inner }
      assert.equal("sin cos exp ", forward.inner)
      assert.equal("sin mul cos exp ", forward.outer) -- the inner mode's own product, too
      seen.outer, seen.inner = "", ""
      neap.op_mode(mode "backward", y.backward, y, neap.ones_like(y))
      assert.same(wrap == plain and { outer = "", inner = "" } or forward, { outer = seen.outer, inner = seen.inner })
      assert.is_truthy(seen.backward:find("cos", 1, true))
      assert.is_falsy(seen.backward:find("exp", 1, true)) -- a mode around the backward sees the formulas alone
      assert.is_true(neap.allclose(x.grad, (6 * x:sin()):cos():exp() * -(6 * x:sin()):sin() * 6 * x:cos()))
      x.grad = nil
    end
  end)

  it("op modes: those a mode's own function runs under, an error in one, and the end of all of it", function()
    local x = leaf()
    collectgarbage()
    collectgarbage()
    local functions, before = neap.memory_stats().functions, help.alive()
    for _, wrap in ipairs { ck, rck } do
      local calls, fail = 0, false
      local y = neap.op_mode(function(op, call, t)
        if op.name ~= "exp" then return call(t) end
        return wrap(function(u) -- a region inside a mode: the mode does not see its ops
          calls = calls + 1
          if fail then error "not now" end
          return u:exp():sin()
        end, t)
      end, function() return x:sin():exp() end)
      fail = true
      local ok, err = pcall(y.backward, y, neap.ones_like(y), { retain_graph = true })
      assert.is_false(ok)
      assert.is_truthy(tostring(err):find("not now", 1, true))
      fail = false
      y:backward(neap.ones_like(y))
      assert.equal(3, calls)
      assert.equal(gradient(function(t) return t:sin():exp():sin() end, leaf()), neap.hash(x.grad))
      x.grad:release()
      x.grad = nil
      y:release()
    end
    collectgarbage()
    collectgarbage()
    assert.same(before, help.alive())
    assert.equal(functions, neap.memory_stats().functions)
    help.clean()
  end)

  it("ck-G12 the default dtype of the forward holds in the recompute", function()
    for _, wrap in ipairs { ck, rck } do
      local x, seen = leaf(), {}
      local y = neap.default_dtype("float64", wrap, function(t)
        local k = neap.ones(3)
        seen[#seen + 1] = k.dtype
        return (t * k):sin()
      end, x)
      assert.equal("float32", neap.ones(1).dtype)
      y:sum():backward()
      assert.same({ "float64", "float64" }, seen)
    end
  end)

  local function step(wrap, train)
    local bn = BatchNorm(4)
    if not train then bn:eval() end
    neap.seed(2)
    local x = neap.randn(16, 4, { requires_grad = true })
    local y = wrap(bn, x * 2)
    if y.requires_grad then y:square():sum():backward() end
    return neap.hash {
      y = y, x = x.grad, w = bn.weight.grad, mean = bn.mean, var = bn.var,
      n = neap.tensor(bn.batches),
    }
  end

  it("ck-G13 batch norm updates its statistics once; outputs and gradients are the same", function()
    local want = step(plain, true)
    assert.equal(want, step(ck, true))
    assert.equal(want, step(rck, true))
  end)

  it("ck-G13 batch norm in evaluation, and in training without gradients", function()
    for _, train in ipairs { true, false } do
      local function off(wrap)
        return function(...) return neap.no_grad(wrap, ...) end
      end
      local want = step(off(plain), train)
      assert.equal(want, step(off(ck), train))
      assert.equal(want, step(off(rck), train))
    end
    local want = step(plain, false)
    assert.equal(want, step(ck, false))
    assert.equal(want, step(rck, false))
  end)

  it("ck-G15 in_recompute: in recomputes only, restored after errors", function()
    for _, wrap in ipairs { ck, rck } do
      local seen, x = {}, leaf()
      local function f(t)
        seen[#seen + 1] = neap.in_recompute()
        if #seen == 2 then error "stop here" end
        return t:sin()
      end
      local y = wrap(f, x):sum()
      assert.is_false(pcall(y.backward, y, nil, { retain_graph = true }))
      assert.is_false(neap.in_recompute())
      y:backward()
      assert.same({ false, true, true }, seen)
      assert.is_false(neap.in_recompute())
    end
  end)

  it("ck-G15 in_recompute: not in hooks, nor in a backward of another graph that one starts", function()
    local other, x, seen = leaf(), leaf(), {}
    local function note() seen[#seen + 1] = neap.in_recompute() end
    other:register_hook(note)
    local loss = (other * other):sum()
    local y = ck(two, x)
    y.grad_fn:register_hook(function()
      note()
      loss:backward()
    end)
    y:sum():backward()
    assert.same({ false, false }, seen)
  end)

  it("ck-G16 ten training steps with dropout and batch norm: losses bit-equal to plain", function()
    local Block = nn.Module "SpecBlock"
    function Block:init()
      self.l = nn.Linear(8, 8)
      self.norm = BatchNorm(8)
      self.drop = nn.Dropout(0.3)
    end
    function Block:forward(x) return self.drop(self.norm(self.l(x)):relu()) end
    local function train(wrap)
      neap.seed(3)
      local first, a, b, head = nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 1)
      local params = {}
      for _, m in ipairs { first, a, b, head } do
        for _, p in ipairs(m:parameters()) do params[#params + 1] = p end
      end
      local opt = optim.AdamW(params, { lr = 0.01 })
      local x, y = neap.randn(32, 4), neap.randn(32, 1)
      local losses = {}
      for i = 1, 10 do
        neap.scope(function()
          opt:zero_grad()
          local loss = nn.mse_loss(head(wrap(b, wrap(a, first(x)))), y)
          loss:backward()
          opt:step()
          losses[i] = loss:item()
        end)
      end
      return losses
    end
    local want = train(plain)
    assert.is_true(want[10] ~= want[1])
    assert.same(want, train(ck))
    assert.same(want, train(rck))
  end)
end)
