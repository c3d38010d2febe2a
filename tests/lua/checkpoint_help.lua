--- What the specs of the checkpoint catalogue share: the functions under test, counters, and what is alive.
local assert = require "luassert"
local neap = require "neap"
local checkpoint = neap.checkpoint

local help = {}

--- Options of a variant, with more of them: with{early_stop = false}.
local function options(reentrant, more)
  local o = { use_reentrant = reentrant }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

function help.with(more) return options(false, more) end

--- The non-reentrant and the reentrant variant.
function help.ck(f, ...) return checkpoint(f, { use_reentrant = false }, ...) end

function help.rck(f, ...) return checkpoint(f, { use_reentrant = true }, ...) end

function help.plain(f, ...) return f(...) end

--- Rounds of a long loop: fewer where each is slow.
function help.rounds(n, under_valgrind)
  if os.getenv "NEAP_FORCE_GC" then return math.min(n, 20) end
  return os.getenv "NEAP_TEST_VALGRIND" and under_valgrind or n
end

--- Saves x, exp's result and sin's input, which is exp's result.
function help.f3(x) return x:sin():exp():sin() end

function help.storages() return neap.memory_stats().storages end

--- f with a counter of its calls.
function help.counted(f)
  local calls = { n = 0 }
  return function(...)
    calls.n = calls.n + 1
    return f(...)
  end, calls
end

function help.leaf(n, value) return neap.full({ n or 3 }, value or 0.7, { dtype = "float64", requires_grad = true }) end

--- A leaf without a dimension.
function help.scalar(value) return neap.tensor(value, { dtype = "float64", requires_grad = true }) end

--- The gradient of sum(f(x)), as a hash.
function help.gradient(f, x)
  x.grad = nil
  neap.scope(function() f(x):sum():backward() end)
  local h = neap.hash(x.grad)
  x.grad = nil
  return h
end

--- Kernels that ran in fn.
function help.kernels(fn, ...) return (neap.count_ops(fn, ...)) end

function help.refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), tostring(err))
  return err
end

--- Everything that counts what a graph holds.
function help.alive()
  local s = neap.memory_stats()
  return {
    storages = s.storages, slots = s.slots, markers = s.markers, regions = s.regions, nodes = s.nodes,
    pass_entries = s.pass_entries,
  }
end

--- The state that every call must leave as it found it.
function help.clean()
  assert.is_true(neap.is_grad_enabled())
  assert.is_false(neap.in_recompute())
  local x = help.leaf(2)
  local packs = 0
  neap.saved_tensors_hooks(function(t)
    packs = packs + 1
    return t
  end, function(t) return t end, help.ck, help.f3, x):sum():backward()
  assert.equal(1, packs)
  assert.equal(help.gradient(help.f3, x), help.gradient(function(t) return help.ck(help.f3, t) end, x))
end

--- Stops the collector around every test: what is freed is freed by reference counts and scopes.
function help.without_collector(before_each, after_each)
  before_each(function()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
  end)
  after_each(function() collectgarbage "restart" end)
end

return help
