--- The Lua face of checkpointing: contexts, policies, the reentrant variant, groups, debug, device states.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint

local function leaf() return neap.tensor({ 0.3, -1.2, 2.5 }, { requires_grad = true }) end

local function f(x) return x:sin():exp():sin() end

local function with(more)
  local o = { use_reentrant = false }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

local function gradient(g)
  local x = leaf()
  g(x):sum():backward()
  return neap.hash(x.grad)
end

local plain = gradient(f)

-- Warnings that are logged while fn runs.
local function warnings(fn, ...)
  local list = {}
  neap.on_log(function(level, text)
    if level == "warning" then list[#list + 1] = text end
  end)
  local ok, err = pcall(fn, ...)
  neap.on_log(nil)
  assert(ok, err)
  return list
end

describe("contexts", function()
  it("are functions of run, objects, or nil, asked for once a call", function()
    local log, asked = {}, 0
    local function say(word) log[#log + 1] = word end
    local object = {
      enter = function(self)
        say "enter"
        self.n = (self.n or 0) + 1
      end,
      exit = function(self, err) say(("exit %d %s"):format(self.n, tostring(err))) end,
    }
    local function context_fn()
      asked = asked + 1
      return object, function(run)
        say "again<"
        assert.equal(0, select("#", run()))
        say "again>"
      end
    end
    assert.equal(plain, gradient(function(x) return checkpoint(f, with { context_fn = context_fn }, x) end))
    assert.equal("enter exit 1 nil again< again>", table.concat(log, " "))
    assert.equal(1, asked)
    assert.equal(plain, gradient(function(x)
      return checkpoint(f, with { context_fn = function() return nil, nil end }, x)
    end))
    neap.no_grad(checkpoint, f, with { context_fn = context_fn }, leaf())
    assert.equal(1, asked)
  end)

  it("hand on all results and arguments, and may be the library's own", function()
    local a, b, n = checkpoint(function(...) return select("#", ...), nil, 3 end,
      with { context_fn = function() return neap.no_grad end }, nil, leaf(), nil)
    assert.equal(3, a)
    assert.is_nil(b)
    assert.equal(3, n)
    local y = checkpoint(f, with { context_fn = function() return neap.no_grad end }, leaf())
    assert.is_false(y.requires_grad)
  end)

  it("call run() exactly once", function()
    local function never() end
    local function twice(run)
      run()
      run()
    end
    local function quietly(run)
      run()
      pcall(run)
    end
    for _, context in ipairs { never, twice, quietly } do
      refused("E-CONTEXT-RUN", checkpoint, f, with { context_fn = function() return context end }, leaf())
      local y = checkpoint(f, with { context_fn = function() return nil, context end }, leaf())
      refused("E-CONTEXT-RUN", function() y:sum():backward() end)
    end
    local late
    checkpoint(f, with { context_fn = function() return function(run)
      late = run
      run()
    end end }, leaf())
    refused("E-CONTEXT-RUN", late)
  end)

  it("may look at an error but not swallow it, in forward and recompute", function()
    local seen
    local function watch(run)
      local _ <close> = setmetatable({}, { __close = function(_, err) seen = err end })
      run()
    end
    local value = { "mine" }
    local ok, err = pcall(checkpoint, error, with { context_fn = function() return watch end }, value)
    assert.is_false(ok)
    assert.equal(value, err)
    assert.equal(value, seen)
    local fail = false
    local function g(x)
      if fail then error(value) end
      return f(x)
    end
    local x = leaf()
    local y = checkpoint(g, with { context_fn = function() return nil, watch end }, x)
    local z = checkpoint(g, with { context_fn = function() return nil, pcall end }, x)
    fail, seen = true, nil
    ok, err = pcall(function() y:sum():backward() end)
    assert.is_false(ok)
    assert.equal(value, err)
    assert.equal(value, seen)
    refused("E-SUPPRESSED", function() z:sum():backward() end)
    fail = false
    y:sum():backward() -- a failed recompute leaves no trace
    assert.equal(plain, neap.hash(x.grad))
  end)

  it("wrap a forward that yields", function()
    local order = {}
    local co = coroutine.wrap(function()
      local y = checkpoint(function(t)
        coroutine.yield "inside"
        return f(t)
      end, with { context_fn = function() return function(run)
        order[#order + 1] = "<"
        run()
        order[#order + 1] = ">"
      end end }, leaf())
      return y
    end)
    assert.equal("inside", co())
    assert.equal("<", table.concat(order))
    assert.is_true(neap.is_tensor(co()))
    assert.equal("<>", table.concat(order))
  end)

  it("that are no contexts are refused", function()
    refused("E-ARG", checkpoint, f, with { context_fn = function() return 7 end }, leaf())
    refused("E-ARG", checkpoint, f, with { context_fn = function() return nil, {} end }, leaf())
    refused("E-ARG", checkpoint, f, with { context_fn = {} }, leaf())
  end)
end)

describe("policies", function()
  it("see each op once, with its results, attributes and number", function()
    local seen = {}
    local function policy(ctx, op, ...)
      local args = table.pack(...)
      seen[#seen + 1] = ("%s%d/%d"):format(op.name, ctx.nth, args.n)
      assert.equal(ctx.op_output, ctx.outputs[1])
      assert.is_false(ctx.is_recompute)
      assert.is_false(ctx.op_output.requires_grad)
      assert.is_false(neap.is_grad_enabled())
      if op.name == "sum" then
        assert.same({ 2 }, args[2])
        assert.is_true(args[3])
      elseif op.name == "mul" then
        assert.equal(2, args[2])
      end
      neap.ones(2):exp() -- ops of the policy are not seen
      return false
    end
    local function g(x) return (x:sin() * 2):sin():sum(2, { keepdim = true }):exp() end
    local x = neap.ones(2, 3, { requires_grad = true })
    checkpoint(g, with { policy = policy }, x):sum():backward()
    assert.equal("sin1/1 mul1/2 sin2/1 sum1/3 exp1/1", table.concat(seen, " "))
  end)

  it("are lent handles, which they may keep", function()
    local lent, kept
    local x = leaf()
    checkpoint(f, with { policy = function(ctx, op, arg)
      lent = lent or arg
      if op.name == "exp" then kept = neap.keep(ctx.op_output) end
      return true
    end }, x):sum():backward()
    refused("E-RELEASED", function() return lent + 1 end)
    assert.is_true(neap.allclose(kept, x:sin():exp()))
    assert.equal(plain, neap.hash(x.grad))
  end)

  it("answer in words, booleans or fail with op and value", function()
    for _, answer in ipairs { true, false, "must_save", "prefer_save", "must_recompute", "prefer_recompute",
      "must_cpu_offload", "prefer_cpu_offload" } do
      assert.equal(plain, gradient(function(x)
        return checkpoint(f, with { policy = function() return answer end }, x)
      end))
    end
    for _, answer in ipairs { 1, "save", {} } do
      local err = refused("E-BADPOLICYVALUE", checkpoint, f, with { policy = function() return answer end }, leaf())
      assert.is_truthy(err:find("sin", 1, true))
    end
    local mine = {}
    local ok, err = pcall(checkpoint, f, with { policy = function() error(mine) end }, leaf())
    assert.is_false(ok)
    assert.equal(mine, err)
  end)

  it("that are lists name ops by value", function()
    local err = refused("E-BADOP", checkpoint, f, with { policy = { "sin" } }, leaf())
    assert.is_truthy(err:find("neap.ops.sin", 1, true))
    refused("E-BADOP", checkpoint, f, with { policy = { neap.ops.sin, 3 } }, leaf())
    refused("E-BADOP", checkpoint, f, with { policy = { neap.sin } }, leaf())
    refused("E-BADPOLICY", checkpoint, f, with { policy = { sin = neap.ops.sin } }, leaf())
    refused("E-BADPOLICY", checkpoint, f, with { policy = 7 }, leaf())
    refused("E-BADPOLICY", checkpoint.create_selective_checkpoint_contexts, "sin")
    refused("E-UNKNOWN-OPTION", checkpoint.create_selective_checkpoint_contexts, {}, { keep = true })
  end)

  it("work as contexts inside other contexts", function()
    local log = {}
    local function around(name)
      return function(inner)
        return function(run)
          log[#log + 1] = name
          inner(run)
        end
      end
    end
    local function context_fn()
      local record, replay = checkpoint.create_selective_checkpoint_contexts({ neap.ops.exp })
      return around "f"(record), around "r"(replay)
    end
    local x = leaf()
    local y = checkpoint(f, with { context_fn = context_fn }, x)
    local counts = neap.count_ops(function() y:sum():backward() end)
    assert.equal(0, counts.exp)
    assert.equal("fr", table.concat(log))
    assert.equal(plain, neap.hash(x.grad))
    local a, b = checkpoint.create_selective_checkpoint_contexts({ neap.ops.exp })
    local reused = with { context_fn = function() return a, b end }
    checkpoint(f, reused, x)
    refused("E-CONTEXT-REUSED", checkpoint, f, reused, x)
  end)

  it("keep entries when told, else a second backward says how", function()
    local x = leaf()
    local function twice(y)
      y:sum():backward { retain_graph = true }
      x.grad = nil
      y:sum():backward()
    end
    local err = refused("E-SAC-AGAIN", twice, checkpoint(f, with { policy = { neap.ops.exp } }, x))
    assert.is_truthy(err:find("keep_entries", 1, true))
    x.grad = nil
    twice(checkpoint(f, with { context_fn = function()
      return checkpoint.create_selective_checkpoint_contexts({ neap.ops.exp }, { keep_entries = true })
    end }, x))
    assert.equal(plain, neap.hash(x.grad))
  end)

  it("say what becomes of hooks around them", function()
    local function run(respect)
      local packs = 0
      local list = warnings(function()
        neap.saved_tensors_hooks(function(t)
          packs = packs + 1
          return t
        end, function(t) return t end, function()
          return checkpoint(f, with { policy = { neap.ops.exp }, respect_saved_tensors_hooks = respect }, leaf())
        end):sum():backward()
      end)
      return packs, #list
    end
    local bypassed, warned = run(nil)
    assert.equal(1, warned)
    local off, quiet = run(false)
    assert.equal(bypassed, off)
    assert.equal(0, quiet)
    local on, silent = run(true)
    assert.equal(bypassed + 1, on)
    assert.equal(0, silent)
  end)
end)

describe("once", function()
  local function noisy(seen)
    return function(t)
      local k = checkpoint.once(function()
        local r = neap.rand(3)
        seen[#seen + 1] = neap.hash(r)
        return r:exp()
      end)
      return ((t * k):sin():dropout(0.5) * k):exp()
    end
  end

  it("is no part of the region: ops, random numbers and saved values inside it are not looked for again", function()
    local hashes = {}
    for _, o in ipairs { with(), with { determinism_check = "values", debug = true, early_stop = false },
      with { policy = { neap.ops.exp, neap.ops.rand } }, with { policy = function(_, op) return op.name ~= "rand" end },
      with { enabled = false }, { use_reentrant = true } } do
      local seen, x = {}, leaf()
      neap.seed(3)
      local y = checkpoint(noisy(seen), o, x)
      y:sum():backward()
      assert.equal(1, #seen)
      hashes[#hashes + 1] = neap.hash { x.grad, y:detach(), neap.rand(2) }
    end
    for _, hash in ipairs(hashes) do assert.equal(hashes[1], hash) end
  end)

  it("may return something differentiable", function()
    local w, x = leaf(), leaf()
    checkpoint(function(t) return (t * checkpoint.once(function() return (w * t):exp() end)):sin() end, with(),
      x):sum():backward()
    local got = neap.hash { w.grad, x.grad }
    w.grad, x.grad = nil, nil;
    (x * (w * x):exp()):sin():sum():backward()
    assert.equal(neap.hash { w.grad, x.grad }, got)
  end)
end)

describe("the reentrant variant", function()
  local opts = { use_reentrant = true }

  it("gives plain gradients, in order, for several results, also an input that comes out again", function()
    local x, k = leaf(), neap.ones(3)
    local a, word, same, b, whole = checkpoint(function(t, u)
      return f(t), "word", t, t * u, neap.tensor { 1, 2 }
    end, opts, x, k)
    assert.equal("word", word)
    assert.equal("int64", whole.dtype)
    assert.is_false(whole.requires_grad)
    assert.is_true(a.requires_grad and same.requires_grad and b.requires_grad)
    assert.is_true(x.is_leaf and not rawequal(same, x));
    (a + same + b * 2):sum():backward()
    local got = neap.hash(x.grad)
    x.grad = nil;
    (f(x) + x + x * k * 2):sum():backward()
    assert.equal(neap.hash(x.grad), got)
  end)

  it("differentiates parameters that the function uses", function()
    local l, x = nn.Linear(3, 3), neap.randn(2, 3, { requires_grad = true })
    checkpoint(l, opts, x):sum():backward()
    local got = neap.hash { l.weight.grad, l.bias.grad, x.grad }
    l:zero_grad()
    x.grad = nil
    l(x):sum():backward()
    assert.equal(neap.hash { l.weight.grad, l.bias.grad, x.grad }, got)
  end)

  it("warns when no argument requires grad, unless grad mode is off; refuses to lose gradients", function()
    local list = warnings(checkpoint, f, opts, neap.ones(3))
    assert.equal(1, #list)
    assert.is_truthy(list[1]:find("W-NOGRAD-INPUT", 1, true))
    assert.equal(0, #warnings(neap.no_grad, checkpoint, f, opts, neap.ones(3)))
    local w = leaf()
    warnings(function()
      refused("E-REENTRANT-CAPTURED", checkpoint, function(t) return t * w end, opts, neap.ones(3))
    end)
  end)

  it("refuses tables with tensors that require grad, by name; and options that are not its own", function()
    local named = { a = { m = leaf() } }
    local err = refused("E-REENTRANT-KWARGS", checkpoint, function(t) return t end, opts, leaf(), named)
    assert.is_truthy(err:find("argument 2.a.m", 1, true))
    checkpoint(function(t, o) return t * o.m end, opts, leaf(), { m = neap.ones(3) }):sum():backward()
    for _, o in ipairs { { context_fn = function() end }, { policy = {} }, { debug = true },
      { respect_saved_tensors_hooks = false }, { determinism_check = "ops" }, { determinism_check = "values" } } do
      o.use_reentrant = true
      refused("E-REENTRANT-OPTION", checkpoint, f, o, leaf())
      refused("E-REENTRANT-OPTION", checkpoint, o)
    end
    for _, o in ipairs { { debug = false }, { determinism_check = "none" }, { early_stop = false } } do
      o.use_reentrant = true
      assert.equal(plain, gradient(checkpoint(o)(f)))
    end
  end)

  it("captured tensors survive their scope, errors pass, results are anchored", function()
    local x = leaf()
    local y = neap.scope(function()
      local mask, list = x:detach() * 2, { x:detach() * 3 }
      return checkpoint(function(t, l)
        coroutine.running()
        return t * mask * l[1]
      end, opts, x, list)
    end)
    collectgarbage()
    y:sum():backward()
    assert.is_true(neap.allclose(x.grad, x:detach() * x:detach() * 6))
    local value, fail = {}, false
    y = checkpoint(function(t)
      if fail then error(value) end
      return f(t)
    end, opts, x)
    fail = true
    local ok, err = pcall(function() y:sum():backward() end)
    assert.is_false(ok)
    assert.equal(value, err)
    ok, err = pcall(checkpoint, error, opts, value)
    assert.is_false(ok)
    assert.equal(value, err)
    assert.is_true(neap.is_grad_enabled())
  end)

  it("yields in the forward, and is resumed at once in the backward", function()
    local x = leaf()
    local co = coroutine.wrap(function()
      return checkpoint(function(t)
        coroutine.yield "inside"
        return f(t)
      end, opts, x)
    end)
    assert.equal("inside", co())
    local y = co()
    y:sum():backward()
    assert.equal(plain, neap.hash(x.grad))
  end)

  it("runs in checkpoint_sequential, and nested in the other variant", function()
    local calls = 0
    local function part(t)
      calls = calls + 1
      return t:sin()
    end
    local x = leaf()
    checkpoint.checkpoint_sequential({ part, part, part }, 3, x, opts):sum():backward()
    assert.equal(5, calls)
    assert.equal(plain, gradient(function(t)
      return checkpoint(function(u) return checkpoint(f, opts, u) end, with(), t)
    end))
    assert.equal(plain, gradient(function(t)
      return checkpoint(function(u) return checkpoint(f, with(), u) end, opts, t)
    end))
  end)
end)

describe("GraphExecGroup", function()
  local function region()
    local calls, x = { 0 }, leaf()
    local function g(t)
      calls[1] = calls[1] + 1
      local y = t:exp()
      return y, y:sin()
    end
    local y, z = checkpoint(g, with(), x)
    return calls, x, y, z
  end

  it("is entered by a call or a guard, and may be closed and entered again", function()
    local group = checkpoint.GraphExecGroup()
    local calls, x, y, z = region()
    local gy
    do
      local _ <close> = group:enter()
      refused("E-GROUP-NESTED", group, function() end)
      refused("E-GROUP-NESTED", checkpoint.GraphExecGroup(), function() end)
      gy = neap.grad(z:sum(), y)
    end
    group(neap.grad, y, x, { grad_outputs = gy })
    assert.equal(2, calls[1])
    group:close()
    group:close()
    assert.equal(7, group(function(a, b) return a + b end, 3, 4))
    refused("E-ARG", group)
    refused("E-ARG", group.enter)
    assert.is_truthy(tostring(group):find("GraphExecGroup", 1, true))
  end)

  it("leaves nothing when it is dropped", function()
    collectgarbage()
    local before = neap.memory_stats()
    do
      local group = checkpoint.GraphExecGroup()
      local _, x, y, z = region()
      group(neap.grad, z:sum(), y)
      x:release()
      y:release()
      z:release()
    end
    collectgarbage()
    collectgarbage()
    assert.equal(before.storages, neap.memory_stats().storages)
    assert.equal(before.regions, neap.memory_stats().regions)
  end)
end)

describe("mismatches", function()
  it("name captured variables that changed since the forward", function()
    local n, word = 1, "x"
    local function g(t)
      for _ = 1, n do t = t:sin() end
      return t:exp():sin(), word
    end
    local y = checkpoint(g, with { determinism_check = "ops" }, leaf())
    n = 3
    local err = refused("E-OPS", function() y:sum():backward() end)
    assert.is_truthy(err:find("'n' (1, now 3)", 1, true), err)
    assert.is_nil(err:find("'word'", 1, true))
    n = 2
    y = checkpoint(g, with { early_stop = false }, leaf())
    n = 1
    assert.is_truthy(refused("E-COUNT", function() y:sum():backward() end):find("'n' (2, now 1)", 1, true))
  end)

  it("show both sequences of ops with debug, per call or for all", function()
    local n = 1
    local function g(t)
      for _ = 1, n do t = t:sin() end
      return t:exp():sin()
    end
    local function text(o, switch)
      n = 1
      local y
      if switch == nil then
        y = checkpoint(g, o, leaf())
      else
        y = checkpoint.set_checkpoint_debug_enabled(switch, checkpoint, g, o, leaf())
      end
      n = 2
      local ok, err = pcall(function() y:sum():backward() end)
      assert.is_false(ok)
      return err
    end
    local off = with { determinism_check = "ops" }
    local on = with { determinism_check = "ops", debug = true }
    assert.is_nil(text(off):find "\n")
    assert.is_truthy(text(on):find "\n.*checkpoint_face_spec.lua:%d+")
    assert.equal("E-OPS", neap.error_code(text(on)))
    assert.is_truthy(text(off, true):find "\n")
    assert.is_nil(text(on, false):find "\n")
    do
      local _ <close> = checkpoint.set_checkpoint_debug_enabled(nil)
      assert.is_truthy(text(on):find "\n")
      assert.is_nil(text(off):find "\n")
    end
    refused("E-ARG", checkpoint.set_checkpoint_debug_enabled)
    refused("E-ARG", checkpoint.set_checkpoint_debug_enabled, 1)
  end)
end)

describe("device states", function()
  it("of the CPU alone are empty; lists are applied pair by pair", function()
    local _ <close> = neap.device("cpu")
    local ids, states = checkpoint.get_device_states(leaf(), { leaf(), 3 }, nil, "s")
    assert.same({ {}, {} }, { ids, states })
    checkpoint.set_device_states({}, {})
    checkpoint.set_device_states({ 0 }, { 1 }, { device_type = "meta" })
    local g = neap.default_generator()
    local state = g:state()
    local drawn = neap.hash(neap.rand(3))
    checkpoint.set_device_states({ 0, 1 }, { state }, { device_type = "cpu" })
    assert.equal(drawn, neap.hash(neap.rand(3)))
    refused("E-ARG", checkpoint.set_device_states, nil, {})
    refused("E-UNKNOWN-OPTION", checkpoint.set_device_states, {}, {}, { device = "cuda" })
  end)
end)

describe("without the collector", function()
  it("1000 steps of every kind leave storages, regions and functions flat", function()
    local l, x = nn.Linear(3, 3), neap.randn(2, 3, { requires_grad = true })
    local group = checkpoint.GraphExecGroup()
    local function body(t)
      local m = t * 2
      return checkpoint(function(u) return l(u):tanh() * m end, with(), t):sum()
    end
    local kinds = {
      function() checkpoint(body, { use_reentrant = true }, x):backward() end,
      function() checkpoint(body, with { policy = { neap.ops.tanh } }, x):backward() end,
      function() checkpoint(body, with { policy = function(ctx) return ctx.nth == 1 end }, x):backward() end,
      function()
        checkpoint(body, with { context_fn = function() return function(run) run() end, neap.enable_grad end },
          x):backward()
      end,
      function()
        local y = checkpoint(body, with { debug = true, determinism_check = "values" }, x)
        group(y.backward, y)
        group:close()
      end,
    }
    local function step()
      for _, kind in ipairs(kinds) do
        neap.scope(kind)
        l:zero_grad()
        x.grad = nil
      end
    end
    for _ = 1, 3 do step() end
    collectgarbage()
    collectgarbage "stop"
    local before = neap.memory_stats()
    for _ = 1, help.rounds(200) do step() end
    local after = neap.memory_stats()
    collectgarbage "restart"
    for _, name in ipairs { "live", "storages", "regions", "markers", "slots", "nodes", "functions", "pass_entries" } do
      assert.equal(before[name], after[name], name)
    end
  end)
end)
