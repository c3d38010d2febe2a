--- Checkpointing, section K of the catalogue: selective checkpointing.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local checkpoint, ops = neap.checkpoint, neap.ops
local contexts = checkpoint.create_selective_checkpoint_contexts
local ck, with, f3, counted, leaf = help.ck, help.with, help.f3, help.counted, help.leaf
local storages, gradient, refused, kernels = help.storages, help.gradient, help.refused, help.kernels

local function esx(t) return t:square():exp():sin() end

--- A checkpoint with a policy, as a function of f and its arguments.
local function sac(policy, more)
  return function(f, ...)
    local o = with(more)
    o.policy = policy
    return checkpoint(f, o, ...)
  end
end

--- The same through context_fn, with options of the contexts.
local function through_contexts(policy, options, more)
  return function(f, ...)
    local o = with(more)
    o.context_fn = function() return contexts(policy, options) end
    return checkpoint(f, o, ...)
  end
end

local function backward_kernels(y)
  return kernels(function() neap.scope(function() y:sum():backward() end) end)
end

--- The warnings that fn gives.
local function warnings(fn, ...)
  local list = {}
  neap.on_log(function(level, text)
    if level == "warning" then list[#list + 1] = text end
  end)
  local ok, err = pcall(fn, ...)
  neap.on_log(nil)
  assert.is_true(ok, tostring(err))
  return list
end

describe("K: selective", function()
  help.without_collector(before_each, after_each)

  it("ck-K1 sum(sin(mm(cos x, y))): what is alive and how often mm runs", function()
    local function f(x, y) return x:cos():matmul(y):sin():sum() end
    local n = os.getenv "NEAP_TEST_VALGRIND" and 32 or 512
    local function measure(wrap)
      local x = neap.full({ n, n }, 0.3, { requires_grad = true })
      local y = neap.full({ n, n }, 0.2, { requires_grad = true })
      local before = storages()
      local loss = neap.scope(wrap, f, x, y)
      local alive = storages() - before - 1
      local products = kernels(loss.backward, loss).matmul
      local h = neap.hash { x.grad, y.grad }
      for _, t in ipairs { x, y } do
        t.grad = nil
        t:release()
      end
      loss:release()
      return { alive, products, h }
    end
    local plain, none = measure(function(g, ...) return g(...) end), measure(ck)
    local want = plain[3]
    assert.same({ 2, 2, want }, plain)
    assert.same({ 0, 3, want }, none)
    local function words(_, op) return op.name == "matmul" and "must_save" or "prefer_recompute" end
    local function truth(_, op) return op.name == "matmul" end
    local P = checkpoint.CheckpointPolicy
    local function names(_, op) return op:tagged "matmul" and P.MUST_SAVE or P.PREFER_RECOMPUTE end
    for _, policy in ipairs { { ops.matmul }, words, truth, names } do
      assert.same({ 1, 2, want }, measure(sac(policy)))
      assert.same({ 1, 2, want }, measure(through_contexts(policy)))
    end
  end)

  it("ck-K2 the policy is asked once a run of an op, in the forward alone", function()
    local asked = {}
    local y = sac(function(ctx, op)
      asked[#asked + 1] = op.name .. ctx.nth
      assert(ctx.is_recompute == false)
      return "prefer_recompute"
    end)(function(t) return t:sin():sin():sin() end, leaf())
    assert.same({ "sin1", "sin2", "sin3" }, asked)
    y:sum():backward()
    assert.equal(3, #asked)
  end)

  it("ck-K3 sin(exp(square x)): kernels of the backward, storages after the forward", function()
    for _, case in ipairs {
      { {}, 1, 1, 1 }, { { ops.exp }, 1, 0, 2 }, { { ops.square, ops.exp }, 0, 0, 2 },
    } do
      local x = leaf()
      local want = gradient(esx, x)
      local before = storages()
      local y = sac(case[1])(esx, x)
      assert.equal(case[4], storages() - before)
      local n = backward_kernels(y)
      assert.equal(case[2], n.square)
      assert.equal(case[3], n.exp)
      assert.equal(want, neap.hash(x.grad))
    end
  end)

  it("ck-K4 a second backward through a saved entry is refused, unless entries are kept", function()
    local function passes(wrap)
      local x = leaf()
      local y = wrap(esx, x):sum()
      y:backward(nil, { retain_graph = true })
      y:backward(nil, { retain_graph = true })
      return neap.hash(x.grad)
    end
    local want = passes(function(f, ...) return f(...) end)
    refused("E-SAC-AGAIN", passes, sac { ops.exp })
    assert.equal(want, passes(sac {}))
    assert.equal(want, passes(through_contexts({ ops.exp }, { keep_entries = true })))
    help.clean()
  end)

  it("ck-K5 a saved result changed in place", function()
    local function f(t) return t:sin():mul_(2):cos():exp() end
    local y = sac { ops.sin }(f, leaf()):sum()
    local err = refused("E-SAC-MUTATED", y.backward, y)
    assert.is_truthy(err:find("sin", 1, true) and err:find("allow_cache_entry_mutation", 1, true), err)
    through_contexts({ ops.sin }, { allow_cache_entry_mutation = true })(f, leaf()):sum():backward()
  end)

  it("ck-K6 a saved result changed through its view, a saved view through its base", function()
    local function by_view(t)
      local h = t:sin()
      h:narrow(1, 1, 2):mul_(2)
      return h:cos():exp()
    end
    local function by_base(t)
      local h = t:sin()
      local y = h:view(3, 1):exp()
      h:mul_(2)
      return y
    end
    for _, case in ipairs { { by_view, { ops.sin } }, { by_base, { ops.view } } } do
      local y = sac(case[2])(case[1], leaf()):sum()
      refused("E-SAC-MUTATED", y.backward, y)
    end
  end)

  it("ck-K7 an op with two results: asked once, not run again", function()
    local function f(t)
      local v, i = t:max(2)
      return v:sin() + t:gather(2, i:unsqueeze(2)):squeeze(2)
    end
    local x = neap.tensor({ { 1, 5, 2 }, { 4, 3, 9 } }, { dtype = "float64", requires_grad = true })
    local want = gradient(f, x)
    local asked = 0
    local y = sac(function(_, op)
      if op.name ~= "max" then return false end
      asked = asked + 1
      return true
    end)(f, x)
    assert.equal(0, backward_kernels(y).max)
    assert.equal(1, asked)
    assert.equal(want, neap.hash(x.grad))
  end)

  it("ck-K8 a result that the function reads is saved, though no gradient needs it: replayed, not run again", function()
    local function f(t)
      if t:gt(0):any() then return t:sin():exp() end
      return t:exp()
    end
    local x = leaf()
    local want = gradient(f, x)
    assert.equal(want, gradient(function(t) return sac { ops.sin }(f, t) end, x))
    local y = sac { ops.any }(f, x)
    assert.equal(0, backward_kernels(y).any or 0)
    assert.equal(want, neap.hash(x.grad))
  end)

  it("a saved result that nothing needs is dry: reading it in the replay alone is an error", function()
    local again = false
    local function f(t)
      local n = t:abs():sum()
      if again then n:item() end
      again = true
      return t:sin():exp()
    end
    local y = sac { ops.sum }(f, leaf()):sum()
    local err = refused("E-SAC-DRY", y.backward, y)
    assert.is_truthy(err:find("sum", 1, true), err)
  end)

  it("ck-K9 a recompute that runs more ops: E-SAC-NOOP, E-SAC-INDEX, unseen with early stop", function()
    local function more(first, later)
      local calls = 0
      return function(t)
        calls = calls + 1
        t = t:sin():exp()
        return (calls == 1 and first or later)(t)
      end
    end
    local function none(t) return t end
    local function once(t) return -t end
    local function twice(t) return -(-t) end
    local policy = { ops.sin }
    for _, case in ipairs { { none, once, "E-SAC-NOOP", "neg" }, { once, twice, "E-SAC-INDEX", "2" } } do
      local y = sac(policy, { early_stop = false })(more(case[1], case[2]), leaf()):sum()
      local err = refused(case[3], y.backward, y)
      assert.is_truthy(err:find(case[4], 1, true), err)
      sac(policy)(more(case[1], case[2]), leaf()):sum():backward()
    end
    help.clean()
  end)

  it("ck-K10 bad lists and policies are refused before fn runs", function()
    local f, calls = counted(esx)
    local x = leaf()
    for _, case in ipairs {
      { "E-BADOP", { 2 } }, { "E-BADOP", { "matmul" }, "neap.ops.matmul" }, { "E-BADOP", { neap.sin } },
      { "E-BADPOLICY", 2 }, { "E-BADPOLICY", "must_save" },
    } do
      for _, wrap in ipairs { sac(case[2]), through_contexts(case[2]) } do
        local err = refused(case[1], wrap, f, x)
        if case[3] then assert.is_truthy(err:find(case[3], 1, true), err) end
      end
    end
    assert.equal(0, calls.n)
    refused("E-ARG", function() return ops.mmm end)
    help.clean()
  end)

  it("ck-K11 a policy that looks at the result: the second, fourth and sixth are saved", function()
    local function module(list, from)
      local sum = 0
      for i = from, from + 2 do sum = sum + list[i]:exp():sin():sum() end
      return sum
    end
    local function f(list) return module(list, 1) + module(list, 4) end
    local list = {}
    for i = 1, 6 do list[i] = leaf(i, 0.1) end
    local function policy(ctx, op) return op.name == "exp" and ctx.op_output:numel() % 2 == 0 end
    -- every call's own count: how often its exp ran by the end of the forward and of the backward
    local order, runs = {}, { 0, 0, 0, 0, 0, 0 }
    local function watch(op, call, t, ...)
      local before = neap.counters()[op.name].kernels
      local y = call(t, ...)
      if op.name == "exp" then
        local ran = neap.counters().exp.kernels - before
        runs[t:numel()] = runs[t:numel()] + ran
        order[#order + 1] = t:numel()
      end
      return y
    end
    local function seen(...) return neap.op_mode(watch, f, ...) end
    neap.counters(true)
    local n = kernels(function() sac(policy)(seen, list):backward() end)
    assert.same({ 2, 1, 2, 1, 2, 1 }, runs)
    assert.same({ 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6 }, order)
    assert.equal(9, n.exp)
    assert.equal(3, neap.counters().exp.replayed)
    local got = {}
    for i = 1, 6 do got[i] = list[i].grad end
    for i = 1, 6 do list[i].grad = nil end
    f(list):backward()
    for i = 1, 6 do assert.is_true(neap.equal(got[i], list[i].grad)) end
  end)

  it("ck-K12 entries go when they are used, graph kept or not, and with the results", function()
    for _, keep in ipairs { true, false } do
      local x = leaf()
      x.grad = neap.zeros({ 3 }, { dtype = "float64" })
      collectgarbage()
      local before = help.alive()
      local y = sac { ops.exp }(esx, x)
      assert.equal(before.storages + 2, storages())
      neap.scope(function() y:backward(neap.ones_like(y), { retain_graph = keep }) end)
      assert.equal(before.storages + 1, storages())
      y:release()
      y = sac { ops.exp }(esx, x)
      assert.equal(before.storages + 2, storages())
      y:release()
      assert.same(before, help.alive())
    end
  end)

  it("what the function reads on the host is kept for the recompute, whatever the collector does", function()
    local function f(t)
      local m = t:abs():max():item() -- dead before the forward is over
      collectgarbage()
      local n = t[t:gt(0)]:sum() * 0 -- so is the mask, whose values decide a shape
      collectgarbage()
      return (t / m):sin() + n
    end
    local x = neap.randn(7, { dtype = "float64", requires_grad = true })
    local want = gradient(f, x)
    for _, answer in ipairs { "must_save", "prefer_save", "must_recompute" } do
      sac(function() return answer end)(f, x):sum():backward()
      assert.equal(want, neap.hash(x.grad), answer)
      x.grad = nil
    end
  end)

  it("ck-K15 offload on the host is like saving", function()
    local _ <close> = neap.device("cpu")
    local function f(t) return t:matmul(t):sin() end
    local x = neap.full({ 3, 3 }, 0.3, { dtype = "float64", requires_grad = true })
    local want = gradient(f, x)
    for _, answer in ipairs { "must_cpu_offload", "prefer_cpu_offload" } do
      local before = storages()
      local y = sac(function(_, op) return op.name == "matmul" and answer or "prefer_recompute" end)(f, x)
      assert.equal(before + 2, storages())
      assert.equal(2, backward_kernels(y).matmul) -- the two of the gradient
      assert.equal(want, neap.hash(x.grad))
      x.grad = nil
      y:release()
    end
  end)

  it("ck-K18 answers that are no policy; a policy that raises", function()
    local x = leaf()
    for _, answer in ipairs { { nil }, { 7 }, { "save" } } do
      local err = refused("E-BADPOLICYVALUE", sac(function() return answer[1] end), esx, x)
      assert.is_truthy(err:find("square", 1, true), err)
    end
    local mine = setmetatable({}, {})
    local before = help.alive()
    local ok, err = pcall(sac(function(_, op)
      if op.name == "exp" then error(mine) end
      return true
    end), esx, x)
    assert.is_false(ok)
    assert.is_true(rawequal(mine, err))
    assert.same(before, help.alive())
    help.clean()
  end)

  it("ck-K19 what the policy itself computes is neither counted nor recorded", function()
    local x, asked = leaf(), {}
    local want = gradient(esx, x)
    local y = sac(function(ctx, op)
      local s = (ctx.op_output:exp() * 2):sum()
      assert(not s.requires_grad)
      asked[#asked + 1] = op.name .. ctx.nth
      return op.name == "exp"
    end)(esx, x)
    assert.same({ "square1", "exp1", "sin1" }, asked)
    assert.equal(0, backward_kernels(y).exp)
    assert.equal(want, neap.hash(x.grad))
  end)

  it("ck-K20 a view of integers saved beside a differentiable result", function()
    local ids = neap.tensor { { 1, 3 }, { 2, 2 } }
    local function f(t) return t:index_select(1, ids:view(-1)):sin():exp() end
    local x = leaf()
    local want = gradient(f, x)
    assert.equal(want, gradient(function(t) return sac { ops.view, ops.index_select }(f, t) end, x))
  end)

  it("ck-K21 a plain region inside a selective one; one selective inside another", function()
    local function inner(t) return (t * 0.5):exp():sin() end
    local function nested(in_wrap)
      return function(t)
        local a = (t * 0.3):exp()
        return in_wrap(inner, a):exp()
      end
    end
    local function call(f, ...) return f(...) end
    local x = leaf()
    local want = gradient(nested(call), x)
    local y = sac { ops.exp }(nested(ck), x)
    assert.equal(1, backward_kernels(y).exp)
    assert.equal(want, neap.hash(x.grad))
    for _, list in ipairs { { ops.sin }, { ops.exp }, { ops.mul } } do
      assert.equal(want, gradient(function(t) return sac { ops.exp }(nested(sac(list)), t) end, x))
    end
  end)

  it("ck-K22 saved-tensors hooks around a selective region", function()
    local function run(respect, policy)
      local x = leaf()
      local kept = neap.no_grad(function() return x:square():exp() end)
      local packs, unpacks = 0, 0
      local y
      local list = warnings(function()
        y = neap.saved_tensors_hooks(function(t)
          local it = neap.equal(t, kept)
          packs = packs + (it and 1 or 0)
          return { it = it, neap.keep(t) }
        end, function(p)
          unpacks = unpacks + (p.it and 1 or 0)
          return p[1]
        end, checkpoint, esx, with { respect_saved_tensors_hooks = respect, policy = policy }, x)
      end)
      local forward = packs
      y:sum():backward()
      assert.equal(gradient(esx, leaf()), neap.hash(x.grad))
      assert.equal(forward, packs)
      return { packs, unpacks, #list }, list[1]
    end
    assert.same({ 1, 1, 0 }, (run(true, { ops.exp })))
    assert.same({ 0, 0, 0 }, (run(false, { ops.exp })))
    local result, text = run(nil, { ops.exp })
    assert.same({ 0, 0, 1 }, result)
    assert.is_truthy(text:find("W-SAC-HOOKS", 1, true))
    assert.same({ 0, 0, 0 }, (run(nil, nil)))
  end)

  it("what hooks give back shares no memory: a view of what is there or kept is made again", function()
    local w = leaf()
    local function f(t)
      local h = t:mul(2)
      h:narrow(1, 1, 1):mul_(0.5)
      return h:sin() * w:t():unsqueeze(1):squeeze(1)
    end
    local function copied(fn, ...)
      return neap.saved_tensors_hooks(function(t) return t:clone() end, function(t) return t end, fn, ...)
    end
    local want, w_want = gradient(f, leaf()), neap.hash(w.grad)
    for _, list in ipairs { { ops.t, ops.unsqueeze, ops.squeeze }, { ops.mul, ops.narrow, ops.t } } do
      w.grad = nil
      local x = leaf()
      local y = copied(checkpoint, f, with { respect_saved_tensors_hooks = true, policy = list }, x)
      y:sum():backward()
      assert.equal(want, neap.hash(x.grad))
      assert.equal(w_want, neap.hash(w.grad))
    end
  end)

  it("a value that nothing needs may be changed through a view; what is written is needed where its base is", function()
    local function unneeded(t)
      local h = (t + 1):mul(1)
      h:narrow(1, 1, 1):mul_(0.5)
      return (h + 1):sin()
    end
    local function needed(t)
      local h = t:mul(2)
      h:narrow(1, 1, 1):copy_(t:exp():narrow(1, 1, 1))
      return h:sin()
    end
    for f, kept in pairs { [unneeded] = ops.add, [needed] = ops.exp } do
      assert.equal(gradient(f, leaf()), gradient(function(t) return sac { kept }(f, t) end, leaf()))
    end
  end)

  it("a gradient taken inside the function recomputes, and so uses up what the policy has kept", function()
    local function f(t)
      local h = t:exp()
      return h * neap.grad(h:sin():sum(), h)
    end
    local y = sac { ops.exp }(f, leaf()):sum()
    refused("E-SAC-AGAIN", y.backward, y)
  end)

  it("ck-K24 detach, reading a shape and printing do not shift the order", function()
    local function f(t)
      local h = t:exp()
      for _ = 1, neap.in_recompute() and 3 or 1 do
        local d = h:detach()
        assert(d.shape[1] == #tostring(d.shape) * 0 + 3)
        assert(#tostring(h) > 0)
      end
      return (h * 0.1):exp():sin()
    end
    local x = leaf()
    assert.equal(gradient(f, x), gradient(function(t) return sac { ops.exp }(f, t) end, x))
  end)

  it("ck-K25 recompute for all is a plain checkpoint", function()
    local function measure(wrap)
      local f, calls = counted(f3)
      local x = leaf()
      local before = storages()
      local y = wrap(f, x)
      local alive = storages() - before
      local n = backward_kernels(y)
      return { alive, calls.n, n.sin, n.exp, n.mul, n.cos, neap.hash(x.grad) }
    end
    local want = measure(ck)
    assert.same(want, measure(sac(function() return "prefer_recompute" end)))
    assert.same(want, measure(sac(function() return "must_recompute" end)))
  end)

  it("ck-K26 a listed op that never runs: one warning that names it", function()
    local list = warnings(function()
      sac { ops.exp, ops.matmul }(esx, leaf()):sum():backward()
    end)
    assert.equal(1, #list)
    assert.is_truthy(list[1]:find("matmul", 1, true), list[1])
    assert.same({}, warnings(function() sac { ops.exp }(esx, leaf()):sum():backward() end))
  end)

  it("ck-K27 every call has entries of its own; a pair for two calls is refused", function()
    local asked = 0
    local g = checkpoint(with { context_fn = function()
      asked = asked + 1
      return contexts { ops.exp }
    end })(esx)
    local a, b = leaf(3, 0.2), leaf(3, 0.5)
    local y, z = g(a), g(b)
    assert.equal(2, asked)
    y:sum():backward()
    z:sum():backward()
    assert.equal(gradient(esx, leaf(3, 0.2)), neap.hash(a.grad))
    assert.equal(gradient(esx, leaf(3, 0.5)), neap.hash(b.grad))
    local forward, recompute = contexts { ops.exp }
    local once = checkpoint(with { context_fn = function() return forward, recompute end })(esx)
    local first = once(a)
    refused("E-CONTEXT-REUSED", once, b)
    first:sum():backward()
    help.clean()
  end)

  it("ck-K28 a context for a single use meets its second recompute", function()
    local exits, used = 0, false
    local single = {
      enter = function()
        if used then error("used already", 0) end
        used = true
      end,
      exit = function() exits = exits + 1 end,
    }
    local x = leaf()
    local y = checkpoint(f3, with { context_fn = function() return nil, single end }, x):sum()
    y:backward(nil, { retain_graph = true })
    local ok, err = pcall(y.backward, y, nil, { retain_graph = true })
    assert.is_false(ok)
    assert.is_truthy(tostring(err):find("used already", 1, true))
    assert.equal(1, exits)
    help.clean()
    used = false
    y:backward()
    assert.equal(2, exits)
  end)
end)
