--- Every variant of checkpointing with Lua's whole collector run at every op of a recompute, then at every op at all:
-- the gradients are those of a plain run, bit for bit, and nothing stays alive. `make check`, part gc, runs all specs
-- of checkpoints like this.
package.cpath = (os.getenv "NEAP_BUILD" or "build") .. "/tests/?.so;" .. package.cpath
local neap = require "neap"
local force_gc = require "force_gc"
local help = require "tests.lua.checkpoint_help"
local checkpoint = neap.checkpoint
local ck, rck, with, leaf = help.ck, help.rck, help.with, help.leaf

-- Every function takes a leaf and what wraps a function: wrap(fn, ...) runs fn(...), plainly or checkpointed.
local function chain(x, wrap)
  return wrap(function(t) return (t:sin() * 2 + t:exp()):tanh():sum() end, x)
end

local function nested(x, wrap)
  return wrap(function(t)
    local h = wrap(function(u) return wrap(function(v) return v:sin():exp() end, u) * u end, t)
    return (h:cos() + t):sum()
  end, x)
end

local function captured(x, wrap)
  local scale, box = x:detach() * 3, { shift = x * x }
  return wrap(function(t) return ((t * scale):sin() + box.shift:exp()):sum() end, x)
end

local function tables(x, wrap)
  return wrap(function(list)
    return (list[1] * list.more.y:sin() + list.more.z[1]):exp():sum()
  end, { x * 2, more = { y = x, z = { x:cos() } } })
end

local function dropout(x, wrap)
  return wrap(function(t)
    return wrap(function(u) return (u:sin():dropout(0.5, { training = true }) * u):exp() end, t)
      :dropout(0.3, { training = true }):sum()
  end, x)
end

local function once(x, wrap)
  local draws = 0
  return wrap(function(t)
    local k = checkpoint.once(function()
      draws = draws + 1
      return neap.rand(3, { dtype = "float64" }) + draws
    end)
    return (t * k):sin():exp():sum()
  end, x)
end

local function sequential(x, wrap, options)
  local list = {}
  for i = 1, 5 do list[i] = function(t) return (t * i):sin() end end
  if wrap == help.plain then
    for _, f in ipairs(list) do x = f(x) end
    return x:sum()
  end
  return checkpoint.checkpoint_sequential(list, 2, x, options):sum()
end

-- A derivative in the function, and one of the result.
local function higher(x, wrap)
  local y = wrap(function(t)
    local u = (t:sin() * t):sum()
    local d = neap.grad(u, t, { create_graph = true })
    return (d * t):exp():sum()
  end, x)
  local g = neap.grad(y, x, { create_graph = true })
  return (g * x):sum()
end

local function hooks(x, wrap)
  return wrap(function(t)
    local u = t:exp()
    if u.requires_grad then u:register_hook(function(g) return g * 2 + neap.zeros_like(g) end) end
    return wrap(function(v) return v:sin() * v end, u):sum()
  end, x)
end

local Cube = neap.Function "GcCube"
function Cube.forward(ctx, x)
  ctx:save_for_backward(x)
  return x * x * x
end
function Cube.backward(ctx, g)
  local x = ctx:saved()
  return g * x * x * 3
end

local function custom(x, wrap)
  return wrap(function(t) return wrap(function(u) return Cube(u:sin()) * u end, t):exp():sum() end, x)
end

local functions = {
  chain = chain, nested = nested, captured = captured, tables = tables, dropout = dropout, once = once,
  sequential = sequential, higher = higher, hooks = hooks, custom = custom,
}

local function around(run)
  local _ <close> = neap.enable_grad()
  run()
end

local ways = {
  ["non-reentrant"] = with(),
  ["without early stop"] = with { early_stop = false },
  ["debug and values"] = with { debug = true, determinism_check = "values" },
  ["context_fn"] = with { context_fn = function() return around, around end },
  ["policy: a list"] = with { policy = { neap.ops.sin } },
  reentrant = { use_reentrant = true },
}
for _, answer in ipairs {
  "must_save", "prefer_save", "must_recompute", "prefer_recompute", "must_cpu_offload", "prefer_cpu_offload",
} do
  ways["policy: " .. answer] = with {
    policy = function(ctx, op)
      assert(neap.is_tensor(ctx.op_output) and type(op.name) == "string")
      return ctx.nth == 1 and answer or "prefer_recompute"
    end,
  }
end

-- What a variant refuses; with policies, those that say something about what is saved.
local function fits(way, name)
  if way == "reentrant" then return name ~= "higher" and name ~= "tables" and name ~= "captured" end
  if way:find "policy: " then return name == "chain" or name == "nested" or name == "dropout" end
  return true
end

local everywhere_too = { ["non-reentrant"] = true, reentrant = true, ["policy: must_save"] = true }

local function gradient(f, wrap, options)
  neap.seed(7)
  local x = leaf(3, 0.3)
  f(x, wrap, options):backward()
  return neap.hash(x.grad)
end

local function sorted(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

describe("with the collector forced", function()
  after_each(function() force_gc.finish() end)

  local function compare(way, name, everywhere)
    local options = ways[way]
    local function wrap(f, ...) return checkpoint(f, options, ...) end
    local want = gradient(functions[name], help.plain)
    collectgarbage()
    collectgarbage()
    local before = help.alive()
    force_gc.begin(everywhere)
    local got = gradient(functions[name], wrap, options)
    local collections, ops, most, emergencies = force_gc.stats()
    force_gc.finish()
    assert.equal(want, got, name)
    assert.is_true(ops > 0, name)
    assert.is_true(collections >= ops, name)
    assert.is_true(emergencies > 0, name)
    -- In a recompute nothing but the function runs ops, one a call; where it differentiates, a pass does.
    if not everywhere and name ~= "higher" then assert.equal(1, most, name) end
    collectgarbage()
    collectgarbage()
    assert.same(before, help.alive(), name)
  end

  for _, way in ipairs(sorted(ways)) do
    it(("in recomputes, %s: gradients and what stays alive"):format(way), function()
      for _, name in ipairs(sorted(functions)) do
        if fits(way, name) then compare(way, name, false) end
      end
    end)
  end

  for _, way in ipairs(sorted(everywhere_too)) do
    it(("everywhere, %s: gradients and what stays alive"):format(way), function()
      for _, name in ipairs(sorted(functions)) do
        if fits(way, name) then compare(way, name, true) end
      end
    end)
  end

  it("a function that fails in its recompute: the error is the same value, and a second try succeeds", function()
    local mine = setmetatable({}, {})
    for _, wrap in ipairs { ck, rck } do
      local fail = false
      local x = leaf()
      local y = wrap(function(t)
        local u = wrap(function(v) return v:sin():exp() end, t)
        if fail and neap.in_recompute() then error(mine) end
        return u:cos()
      end, x):sum()
      fail = true
      force_gc.begin()
      local ok, err = pcall(y.backward, y)
      assert.is_false(ok)
      assert.is_true(rawequal(mine, err))
      fail = false
      y:backward()
      local collections, ops = force_gc.stats()
      force_gc.finish()
      assert.is_true(ops > 0 and collections >= ops)
      assert.equal(help.gradient(function(t) return t:sin():exp():cos() end, leaf()), neap.hash(x.grad))
      help.clean()
    end
  end)

  it("hooks and pairs live as long as what needs them", function()
    local function by(k) return function(t) return t * k end end
    local function half(t) return t / 2 end
    force_gc.begin(true)
    local x = leaf(3, 0.5)
    for _, k in ipairs { 2, 3, 5 } do x:register_hook(by(k)) end
    local function branch(f, pair_k)
      local before = f(x)
      before.grad_fn:register_hook(function(g) return { g[1] * 7 } end)
      return neap.saved_tensors_hooks(by(pair_k), by(1 / pair_k), function() return ck(neap.sin, before):exp() end)
    end
    (branch(half, 2) + branch(half, 4)):sum():backward()
    local a = leaf(3, 0.5)
    local y = neap.saved_tensors_hooks(by(2), half, function() return a * a * a end)
    local z = neap.saved_tensors_hooks(by(4), by(0.25), function() return a:sin() end)
    local g = neap.saved_tensors_hooks(by(8), by(0.125), neap.grad, { y:sum(), z:sum() }, a, { create_graph = true })
    y, z = nil, nil -- luacheck: ignore
    local gg = neap.grad(g:sum(), a)
    force_gc.finish()
    local u = leaf(3, 0.5)
    ;((u / 2):sin():exp() * 2):sum():backward()
    assert.is_true(neap.allclose(u.grad * 210, x.grad, { rtol = 1e-14 }))
    assert.is_true(neap.allclose(u:detach() * 6 - u:detach():sin(), gg, { rtol = 1e-14 }))
  end)

  it("a group, and two backwards through a kept graph", function()
    local x = leaf()
    local y, z = ck(function(t)
      local u = t:sin()
      return u:exp(), u:cos()
    end, x)
    local want = neap.grad((x:sin():exp() + x:sin():cos()):sum(), x)
    force_gc.begin(true)
    local group = checkpoint.GraphExecGroup()
    local a, b
    group(function()
      a = neap.grad(y:sum(), x, { retain_graph = true })
      collectgarbage()
    end)
    group:close()
    b = neap.grad(z:sum(), x)
    force_gc.finish()
    assert.is_true(neap.allclose(want, a + b, { rtol = 1e-15 }))
  end)
end)
