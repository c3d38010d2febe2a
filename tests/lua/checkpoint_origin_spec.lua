--- Origins: the default check of a recompute compares how each saved value was made. What it must find, and what it
--- must leave alone: a function that is right with plain autograd and does the same twice is never refused.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local checkpoint = neap.checkpoint
local with, leaf, gradient, refused = help.with, help.leaf, help.gradient, help.refused

local F64 = { dtype = "float64" }

local function data(n, first) return neap.arange(first, first + n - 1, F64):mul(0.1) end

--- Out of all scopes around: scopes let buffers live.
local function keep(t) return neap.nn.Buffer(t) end

--- Every fault: make(state) returns the function; state.k changes from 2 to 3 between forward and backward.
local faults = {
  ["a number"] = function(s) return function(x) return (x * s.k):sin() end end,
  ["a branch"] = function(s) return function(x) return (s.k == 2 and x:sin() or x:cos()):exp() end end,
  ["an attribute"] = function(s) return function(x) return x:clamp({ max = s.k }):sin() end end,
  ["a place"] = function(s) return function(x) return (x * x[s.k]):sin() end end,
  ["a list of numbers"] = function(s) return function(x) return x:view(2, 2):permute(s.k - 1, 4 - s.k):sin() end end,
  ["data from a table"] = function(s) return function(x) return (x + neap.tensor({ 1, s.k, 1, 1 }, F64)):sin() end end,
  ["ids from a table"] = function(s)
    return function(x) return x:index_select(1, neap.tensor { 1, s.k }):sin() end
  end,
  ["a filled tensor"] = function(s) return function(x) return (x + neap.full({ 4 }, s.k, F64)):sin() end end,
  ["a refilled tensor"] = function(s) return function(x) return (x + neap.empty(4, F64):fill_(s.k)):sin() end end,
  ["a part written in place"] = function(s)
    return function(x)
      local h = neap.zeros(4, F64)
      h[2] = s.k
      return (x + h):sin()
    end
  end,
  ["a place written to"] = function(s)
    return function(x)
      local h = neap.zeros(4, F64)
      h:narrow(1, s.k, 1):fill_(1)
      return (x + h):sin()
    end
  end,
  ["a number beside small whole ones"] = function(s)
    return function(x)
      x = x * s.k
      for n = 0, 12 do x = x + n end
      return x:sin()
    end
  end,
  ["a number in place"] = function(s) return function(x) return x:mul(1):mul_(s.k):sin() end end,
  ["a threshold of a mask"] = function(s) return function(x) return x:masked_fill(x:gt(s.k * 0.1), 0):sin() end end,
  ["a number under no_grad"] = function(s)
    return function(x)
      local scale = neap.no_grad(function() return x:square() * s.k end)
      return (x + scale):sin()
    end
  end,
  ["a probability"] = function(s) return function(x) return x:dropout(s.k * 0.1, { training = true }):sin() end end,
  ["swapped arguments"] = function(s)
    return function(x, y)
      if s.k == 3 then x, y = y, x end
      return (x - y):sin()
    end
  end,
  ["a number in a custom function"] = function(s)
    local F = neap.Function "Scaled"
    function F.forward(_, a) return a * s.k end
    function F.backward(_, g) return g * s.k end
    return function(x) return F(x):sin() end
  end,
  ["captured data changed in place"] = function(s)
    local b = data(4, 1)
    function s.change() b:mul_(2) end
    return function(x) return (x + b):sin() end
  end,
  ["a captured bias that was trained"] = function(s)
    local b = data(4, 1):requires_grad_()
    function s.change() neap.no_grad(function() b:mul_(2) end) end
    return function(x) return (x + b):sin() end
  end,
  ["captured data replaced"] = function(s)
    local b = data(4, 1)
    function s.change() b = data(4, 2) end
    return function(x) return (x + b):sin() end
  end,
  ["captured tensors exchanged"] = function(s)
    local a, b = data(4, 1), data(4, 2)
    function s.change() a, b = b, a end
    return function(x) return (x + a):sin() - b end
  end,
  ["another captured view"] = function(s)
    local all = data(8, 1)
    local b = all:narrow(1, 1, 4)
    function s.change() b = all:narrow(1, 5, 4) end
    return function(x) return (x + b):sin() end
  end,
}

local function run(make, more, wrap)
  local s = { k = 2 }
  local x, z = leaf(4), leaf(4, 0.3)
  local y = (wrap or checkpoint)(make(s), with(more), x, z):sum()
  s.k = 3
  if s.change then s.change() end
  return function() y:backward() end, x
end

describe("origins: what the default check finds", function()
  for name, make in pairs(faults) do
    it(name, function()
      for _, early in ipairs { true, false } do
        refused("E-OPS", run(make, { early_stop = early }))
        assert.is_true(pcall(run(make, { early_stop = early, determinism_check = "none" })))
        assert.is_false(pcall(run(make, { early_stop = early, determinism_check = "values" })))
      end
      local s = { k = 2 }
      local x, z = leaf(4), leaf(4, 0.3)
      local f = make(s)
      neap.seed(3)
      local want = gradient(function(t) return f(t, z) end, x)
      neap.seed(3)
      assert.equal(want, gradient(function(t) return checkpoint(f, with(), t, z) end, x))
    end)
  end

  it("also inside of nested checkpoints, before them, and in inputs that hooks copy", function()
    local function inner_changes(make)
      return function(s)
        local f = make(s)
        return function(x, z) return checkpoint(f, with(), x:exp(), z):exp() end
      end
    end
    local function outer_changes(s)
      return function(x) return checkpoint(function(t) return t:sin():sin() end, with(), x * s.k):exp() end
    end
    local function copying(f, o, ...)
      return neap.saved_tensors_hooks(neap.clone, function(t) return t:clone() end, checkpoint, f, o, ...)
    end
    for _, early in ipairs { true, false } do
      refused("E-OPS", run(outer_changes, { early_stop = early }))
      for _, name in ipairs { "a number", "a branch", "swapped arguments", "a refilled tensor" } do
        refused("E-OPS", run(inner_changes(faults[name]), { early_stop = early }))
        refused("E-OPS", run(faults[name], { early_stop = early }, copying))
        refused("E-OPS", run(inner_changes(faults[name]), { early_stop = early }, copying))
      end
    end
  end)

  it("a kept result handed to another call of the same op", function()
    local function lazy()
      local weight
      return function(x)
        weight = weight or neap.nn.Parameter(neap.ones(4, F64) * 2)
        return (x * weight):sin()
      end
    end
    for _, policy in ipairs { "must_save", "must_cpu_offload" } do
      local y = checkpoint(lazy(), with { policy = function() return policy end }, leaf(4)):sum()
      local err = refused("E-OPS", y.backward, y)
      assert.is_truthy(err:find("run 1 of it", 1, true), err)
    end
    local x = leaf(4) -- decided once, it is right
    local weight
    local function f(t)
      weight = weight or checkpoint.once(function() return neap.nn.Parameter(neap.ones(4, F64) * 2) end)
      return (t * weight):sin()
    end
    local want = gradient(lazy(), x)
    weight = neap.nn.Parameter(neap.ones(4, F64) * 2)
    assert.equal(want, gradient(function(t)
      return checkpoint(f, with { policy = function() return true end }, t)
    end, x))
  end)

  it("swapped tensors of a table", function()
    local swap = false
    local x, z = leaf(4), leaf(4, 0.3)
    local function f(t) return (swap and t.b - t.a or t.a - t.b):sin() end
    local y = checkpoint(f, with(), { a = x, b = z }):sum()
    swap = true
    refused("E-OPS", y.backward, y)
  end)

  it("the message says where and what, and names the changed variable and the remedies", function()
    local k = 2
    local y = checkpoint(function(t) return (t:exp() * k):sin() end, with(), leaf()):sum()
    k = 3
    local err = refused("E-OPS", y.backward, y)
    for _, part in ipairs { "sin", "position 2", "checkpoint_origin_spec.lua:", "'k' (2, now 3)", "checkpoint.once",
      'determinism_check = "none"', "as an argument" } do
      assert.is_truthy(err:find(part, 1, true), part .. " in: " .. err)
    end
  end)

  it("a refused backward leaves no trace and can be done when the cause is gone", function()
    local k = 2
    local x = leaf()
    local y = checkpoint(function(t) return (t * k):sin() end, with(), x):sum()
    k = 3
    collectgarbage()
    local before = help.alive()
    refused("E-OPS", y.backward, y)
    assert.same(before, help.alive())
    k = 2
    y:backward()
    assert.equal(gradient(function(t) return (t * 2):sin() end, leaf()), neap.hash(x.grad))
  end)
end)

--- Functions that do the same twice, as far as gradients can tell: make() returns a fresh one.
local legitimate = {
  ["counters, logs and reads of values, another number of them"] = function()
    local n, log = 0, {}
    return function(x)
      n = n + 1
      local h = x:exp()
      for _ = 1, n do
        log[#log + 1] = h:mean():item() .. tostring(h) .. #h:detach().shape .. (h:detach() * n):sum():item()
      end
      return h:sin()
    end
  end,
  ["a list that grows"] = function()
    local kept = {}
    return function(x)
      kept[#kept + 1] = keep(x:detach() * 2)
      return (x * 2):sin():exp()
    end
  end,
  ["numbers read from values"] = function()
    return function(x) return (x / x:abs():max():item()):sin() end
  end,
  ["a value made once and kept"] = function()
    local table_of
    return function(x)
      table_of = table_of or keep(neap.arange(1, 4, F64):mul(0.5):cos())
      return (x + table_of):sin():mul(table_of):exp()
    end
  end,
  ["a statistic of the forward, kept"] = function()
    local mean
    return function(x)
      if not neap.in_recompute() then mean = keep(x:detach():mean()) end
      return (x - mean:detach():clone()):sin()
    end
  end,
  ["decisions of checkpoint.once"] = function()
    return function(x)
      local k = checkpoint.once(function() return math.random() end)
      local b = checkpoint.once(function() return neap.randn(4, F64) * k end)
      return (x * k + b):sin()
    end
  end,
  ["a scratch buffer from outside, written whole and in parts"] = function()
    local buffer = neap.zeros(4, F64)
    return function(x)
      buffer:zero_()
      buffer:narrow(1, 1, 2):copy_(x:detach():narrow(1, 3, 2))
      return (x + buffer):sin():exp()
    end
  end,
  ["a scratch buffer made at the first call"] = function()
    local buffer
    return function(x)
      buffer = buffer or keep(neap.empty(4, F64))
      buffer:zero_()
      buffer:narrow(1, 1, 2):copy_(x:detach():narrow(1, 3, 2))
      return (x + buffer):sin():exp()
    end
  end,
  ["statistics written in the forward only"] = function()
    local mean = neap.zeros(1, F64)
    return function(x)
      if not neap.in_recompute() then neap.no_grad(function() mean:mul_(0.9):add_(x:mean() * 0.1) end) end
      return (x - mean):sin():exp()
    end
  end,
  ["writes in place, also through views"] = function()
    return function(x)
      local h = x * 1
      h:narrow(1, 1, 2):mul_(3)
      h[3] = x[1]
      h:add_(x):mul_(h:detach():clone())
      return h:sin():exp()
    end
  end,
  ["an argument that is captured, too"] = function(x)
    return function(t) return (t:exp() + x):sin() end
  end,
  ["gradients taken inside"] = function()
    return function(x)
      local h = x:exp()
      local g = neap.grad(h:sin():sum(), h, { create_graph = true })
      return (x * g):sin() + checkpoint(function(t) return t:sin() * neap.grad(t:exp():sum(), t) end, with(), h)
    end
  end,
  ["a custom function"] = function()
    local F = neap.Function "Square"
    function F.forward(ctx, a)
      ctx:save_for_backward(a)
      return a * a
    end
    function F.backward(ctx, g) return g * ctx:saved() * 2 end
    return function(x) return F(x:sin()):sin() end
  end,
  ["checkpoints of both kinds inside, with captured values"] = function()
    return function(x)
      local h, mask = x:exp(), x:gt(0.5)
      local offset = neap.tensor({ 1, 2, 3, 4 }, F64)
      local function f(t) return (t + offset + h):masked_fill(mask, 0):sin():exp() end
      local function g(t) return (t + offset):masked_fill(mask, 0):sin():exp() end
      local y = checkpoint(f, with(), h)
      return checkpoint(g, { use_reentrant = true }, y):sin() + checkpoint(f, with(), y:narrow(1, 1, 4))
    end
  end,
  ["one result in several places, lists, and several results"] = function()
    return function(x)
      local top, at = x:max(1)
      local all = neap.stack { x, x:sin(), x }
      return (neap.cat { all[1], all[2] * top, x[at]:view(1) }):sin()
    end
  end,
}

describe("origins: what the default check leaves alone", function()
  local ways = {
    ["in a checkpoint"] = function(f, x) return checkpoint(f, with(), x) end,
    ["without early stop"] = function(f, x) return checkpoint(f, with { early_stop = false }, x) end,
    ["in nested checkpoints"] = function(f, x)
      return checkpoint(function(t) return checkpoint(f, with(), t:mul(1)):mul(1) end, with { early_stop = false }, x)
    end,
    ["of a view"] = function(f, x) return checkpoint(f, with(), neap.cat({ x, x }):narrow(1, 5, 4)) end,
    ["with inputs that hooks copy"] = function(f, x)
      return neap.saved_tensors_hooks(neap.clone, function(t) return t:clone() end, function()
        return checkpoint(f, with(), neap.cat({ x, x }):narrow(1, 5, 4))
      end)
    end,
    ["in host memory"] = function(f, x)
      return neap.save_on_cpu(function() return checkpoint(f, with(), x) end)
    end,
    ["with a policy"] = function(f, x)
      local kept = { sin = true, cat = true, stack = true, max = true, masked_fill = true }
      return checkpoint(f, with { policy = function(_, op) return kept[op.name] or false end }, x)
    end,
  }
  -- What a policy has kept goes by the number of runs of an op, and is used up by the first recompute.
  local counts_ops = {
    ["counters, logs and reads of values, another number of them"] = true,
    ["gradients taken inside"] = true,
  }
  for name, make in pairs(legitimate) do
    it(name, function()
      for way, wrap in pairs(ways) do
        if way == "with a policy" and counts_ops[name] then goto continue end
        local x = leaf(4)
        neap.seed(5)
        math.randomseed(5)
        local f = make(x)
        local want = gradient(f, x)
        neap.seed(5)
        math.randomseed(5)
        f = make(x)
        local ok, got = pcall(gradient, function(t) return wrap(f, t) end, x)
        assert.is_true(ok, way .. ": " .. tostring(got))
        assert.equal(want, got, way)
        ::continue::
      end
    end)
  end

  it("several backwards, in and outside of a group, also of higher order", function()
    for name, make in pairs(legitimate) do
      local x = leaf(4)
      local y = checkpoint(make(x), with(), x):sum()
      for _ = 1, 3 do
        local ok, err = pcall(y.backward, y, nil, { retain_graph = true })
        assert.is_true(ok, name .. ": " .. tostring(err))
      end
      if not name:find "both kinds" then -- a reentrant one does not support it
        local ok, g = pcall(neap.grad, y, x, { create_graph = true })
        assert.is_true(ok, name .. ": " .. tostring(g))
        g:sum():backward()
      end
    end
  end)

  it("random ops, also where the random numbers are others", function()
    local function f(x)
      return (x:dropout(0.5, { training = true }) + neap.rand(4, F64)):sin():mul(neap.randn(4, F64))
    end
    for _, preserve in ipairs { true, false } do
      local x = leaf(4)
      checkpoint(f, with { preserve_rng_state = preserve }, x):sum():backward()
    end
  end)

  it("a function that yields, while others run", function()
    local x = leaf(4)
    local function f(t)
      local h = t:exp()
      coroutine.yield()
      return (h * 2):sin()
    end
    local y
    local co = coroutine.wrap(function() y = checkpoint(f, with(), x) end)
    co()
    local other = checkpoint(function(t) return (t * 3):sin() end, with(), x)
    co()
    other:sum():backward()
    y:sum():backward()
    local same = leaf(4)
    local sum = (same * 3):sin():sum() + (same:exp() * 2):sin():sum()
    sum:backward()
    assert.is_true(neap.allclose(x.grad, same.grad))
  end)
end)
