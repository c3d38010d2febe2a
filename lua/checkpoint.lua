--- Activation checkpointing: what happens inside fn is not kept for backward but computed again when needed.
--
--   local y = checkpoint(fn, {use_reentrant = false}, ...)        function, options, arguments; the results are fn's
--   local g = checkpoint{use_reentrant = false}(fn)               configure, wrap, then g(...); a module stays a module
--
-- This file checks the call forms and options and runs contexts; the region itself (what is kept, what is computed
-- again, random streams, early stop) is the core's.
local neap = require "neap"
local util = require "neap.util"
local module -- neap.nn.module, once a module is wrapped

local checkpoint_run, simple_checkpoint = neap.checkpoint_run, neap.simple_checkpoint
local is_tensor, is_grad_enabled = neap.is_tensor, neap.is_grad_enabled

local checkpoint = {}

local known = {
  "use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop",
  "respect_saved_tensors_hooks", "policy", "enabled",
}
local checks = { "default", "none", "ops", "values" }

local example = "checkpoint(fn, {use_reentrant = false}, x)"

local booleans = {
  use_reentrant = true, preserve_rng_state = true, early_stop = true, enabled = true, debug = true,
  respect_saved_tensors_hooks = true,
}
-- Options of the non-reentrant variant alone.
local non_reentrant = { "context_fn", "policy", "respect_saved_tensors_hooks" }

local function check_determinism(who, check)
  for _, name in ipairs(checks) do
    if check == name then return end
  end
  local near = type(check) == "string" and util.nearest(check, checks)
  util.fail("E-BADCHECK", '%s: determinism_check must be "default", "none", "ops" or "values", got %s%s', who,
    util.kind(check), near and ("; did you mean %q?"):format(near) or "")
end

local function check_reentrant(who, options)
  local wrong = options.debug and "debug"
  for _, name in ipairs(non_reentrant) do
    if options[name] ~= nil then wrong = name end
  end
  if options.determinism_check == "ops" or options.determinism_check == "values" then
    wrong = ('determinism_check = "%s"'):format(options.determinism_check)
  end
  if wrong then
    util.fail("E-REENTRANT-OPTION", "%s: %s does not go with use_reentrant = true; {use_reentrant = false} has it", who,
      wrong)
  end
end

local function check_options(who, options)
  for name, value in next, options do
    if booleans[name] then
      if type(value) ~= "boolean" then
        util.fail("E-ARG", "%s: %s must be true or false, got %s", who, name, util.kind(value))
      end
    elseif name == "determinism_check" then
      check_determinism(who, value)
    elseif name == "context_fn" then
      if not util.callable(value) then
        util.fail("E-ARG", "%s: context_fn must be a function that returns one or two contexts, got %s", who,
          util.kind(value))
      end
    elseif name == "policy" then
      if type(value) ~= "table" and not util.callable(value) then
        util.fail("E-BADPOLICY", "%s: a policy is a function or a list of ops such as {neap.ops.matmul}, got %s", who,
          util.kind(value))
      end
    else
      util.options(who, options, known) -- raises
    end
  end
  if options.use_reentrant == nil then
    util.fail("E-USE-REENTRANT", "%s: use_reentrant is not given; pass it: {use_reentrant = false} (recommended) or "
      .. "{use_reentrant = true}", who)
  end
  if options.use_reentrant then check_reentrant(who, options) end
  return options
end

local function plain(v) return type(v) == "table" and getmetatable(v) == nil end

-- What fn and its options must look like, with a text for each way to mix them up.
local function check_call(who, n, fn, options, last)
  if fn == nil then
    util.fail("E-ARG", "%s: the function is nil; is its name spelt right? The order is %s", who, example)
  end
  if not util.callable(fn) then
    if plain(fn) and util.callable(options) then
      util.fail("E-USE-REENTRANT", "%s: the options come second, after the function: %s", who, example)
    end
    if is_tensor(fn) then
      util.fail("E-ARG", "%s: a tensor stands in first place, the function belongs there: %s", who, example)
    end
    util.fail("E-ARG", "%s: the first argument must be a function, got %s: %s", who, util.kind(fn), example)
  end
  if plain(options) then return end
  if n > 2 and plain(last) and last.use_reentrant ~= nil then
    util.fail("E-USE-REENTRANT", "%s: the options stand in last place; they come second, before the arguments: %s",
      who, example)
  end
  if is_tensor(options) then
    util.fail("E-USE-REENTRANT", "%s: a tensor stands in second place, the options belong there: %s", who, example)
  end
  if options == nil then
    util.fail("E-USE-REENTRANT", "%s: use_reentrant is not given; pass it in second place: %s", who, example)
  end
  util.fail("E-USE-REENTRANT", "%s: the second argument must be an option table, got %s: %s", who, util.kind(options),
    example)
end

-- ---- once -----------------------------------------------------------------------------------------------

--- Runs fn(...) in the original pass and returns its results; a recompute of the region is given the same
-- results without running it. What fn does is not part of the region. Outside a region it just runs.
function checkpoint.once(fn, ...)
  if not util.callable(fn) then util.fail("E-ARG", "checkpoint.once: needs a function, got %s", util.kind(fn)) end
  local remembered, records = neap.once_next()
  if not remembered then
    if not records then return fn(...) end
    local _ <close> = neap.once_begin()
    remembered = table.pack(fn(...))
  end
  for _, record in ipairs(records or {}) do record[#record + 1] = remembered end
  return table.unpack(remembered, 1, remembered.n)
end

-- ---- contexts -------------------------------------------------------------------------------------------
-- A context is a function of run that calls run() once. What run() does, a C function, stands behind it.

local mistakes = {
  never = "did not call run()", running = "left before run() was done", twice = "called run() more than once",
}

local function wrong_run(state)
  util.fail("E-CONTEXT-RUN", "checkpoint: a context %s; it must call run() exactly once, and run() returns nothing",
    mistakes[state])
end

local function at_end(fn) return setmetatable({}, { __close = function(_, err) fn(err) end }) end

-- Calls context(run), where run() calls body(...); the body's results.
local function through(context, body, ...)
  local state, args, results, cause = "before", table.pack(...), nil, nil

  local function run_once()
    if state ~= "before" then
      if state == "done" then state = "twice" end
      wrong_run("twice")
    end
    state = "running"
    local _ <close> = at_end(function(err)
      if state == "running" then state, cause = "failed", err end
    end)
    results = table.pack(body(table.unpack(args, 1, args.n)))
    state = "done"
  end

  do
    local _ <close> = at_end(function() -- from here on run() comes too late
      if state == "before" then state = "never" end
    end)
    context(run_once)
  end
  if state == "failed" then
    util.fail("E-SUPPRESSED", "checkpoint: a context swallowed the function's error; it may look at what run() raises, "
      .. "but must let it pass: %s", (tostring(cause):match "^[^\n]*"))
  end
  if state ~= "done" then wrong_run(state) end
  return table.unpack(results, 1, results.n)
end

local function from_object(object)
  return function(run_inside)
    if object.enter then object:enter() end
    local _ <close> = at_end(function(err)
      if object.exit then object:exit(err) end
    end)
    run_inside()
  end
end

local function as_context(v, place)
  if v == nil or util.callable(v) then return v end
  if type(v) == "table" and (v.enter ~= nil or v.exit ~= nil) then return from_object(v) end
  util.fail("E-ARG", "checkpoint: context_fn's %s result must be a function of run, {enter =, exit =} or nil, got %s",
    place, util.kind(v))
end

local function inside(outer, inner)
  if not outer then return inner end
  return function(run_inside) outer(function() inner(run_inside) end) end
end

-- What respect_saved_tensors_hooks says at the call whose contexts are now asked for.
local respect_hooks

-- A pair of contexts over one store: to be entered around the forward, and around recomputes.
local function selective_pair(policy, allow_mutation, keep_entries)
  local store = neap.selective_new(policy, allow_mutation, keep_entries, respect_hooks)
  local function record(run_inside)
    do
      local _ <close> = neap.selective_begin(store, false)
      run_inside()
    end
    neap.selective_settle(store)
  end
  local function replay(run_inside)
    local _ <close> = neap.selective_begin(store, true)
    run_inside()
  end
  return record, replay
end

--- Two contexts for context_fn: around the forward and around recomputes. Results of ops that the policy saves are
-- kept from the one for the other. A pair serves one checkpointed call. policy: a list of ops, which are saved; or
-- a function(ctx, op, ...) that answers true, false or a value of checkpoint.CheckpointPolicy.
-- Options: allow_cache_entry_mutation = false, keep_entries = false (several backwards through saved values).
function checkpoint.create_selective_checkpoint_contexts(policy, options)
  local who = "create_selective_checkpoint_contexts"
  options = util.options(who, options, { "allow_cache_entry_mutation", "keep_entries" })
  for name, value in next, options do
    if type(value) ~= "boolean" then
      util.fail("E-ARG", "%s: %s must be true or false, got %s", who, name, util.kind(value))
    end
  end
  return selective_pair(policy, options.allow_cache_entry_mutation or false, options.keep_entries or false)
end

-- Asks for the contexts of one call: around the forward, around recomputes; nil for none.
local function contexts(options)
  local forward, again
  local before = respect_hooks
  local _ <close> = at_end(function() respect_hooks = before end)
  respect_hooks = options.respect_saved_tensors_hooks
  if options.context_fn then
    forward, again = options.context_fn()
    forward, again = as_context(forward, "first"), as_context(again, "second")
  end
  if options.policy ~= nil then
    local record, replay = selective_pair(options.policy, false, false)
    forward, again = inside(forward, record), inside(again, replay)
  end
  return forward, again
end

-- ---- the call forms -------------------------------------------------------------------------------------

-- The first tensor that requires grad in a table argument: where it is, or nil.
local function tracked(v, path, depth, seen)
  if is_tensor(v) then return v.requires_grad and path or nil end
  if depth == 8 or not plain(v) or seen[v] then return nil end
  seen[v] = true
  for key, value in next, v do
    local found = tracked(value, ("%s.%s"):format(path, tostring(key)), depth + 1, seen)
    if found then return found end
  end
end

local function check_tables(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    local found = plain(v) and tracked(v, "argument " .. i, 0, {})
    if found then
      util.fail("E-REENTRANT-KWARGS", "checkpoint: %s requires grad, and a reentrant checkpoint does not follow "
        .. "tensors in tables: pass it as an argument of its own, or use {use_reentrant = false}", found)
    end
  end
end

-- A call whose form and options are checked.
local function call(fn, options, ...)
  if options.enabled == false then return fn(...) end
  if options.use_reentrant then
    if is_grad_enabled() then check_tables(...) end
  elseif (options.context_fn ~= nil or options.policy ~= nil) and is_grad_enabled() then
    local forward, again = contexts(options)
    local function run_forward(run, ...) return through(forward, run, ...) end
    local function around(run) return through(again, run) end
    return checkpoint_run(fn, options, forward and run_forward, again and around, ...)
  end
  return checkpoint_run(fn, options, nil, nil, ...)
end

-- Configure, then wrap.
local function curried(options)
  local copy = {}
  for name, value in next, check_options("checkpoint", options) do copy[name] = value end
  options = copy
  return function(fn, ...)
    if select("#", ...) > 0 then
      util.fail("E-ARG", "checkpoint{...}: takes the function alone; write checkpoint{...}(fn)(...) or %s", example)
    end
    if not util.callable(fn) then
      util.fail("E-ARG", "checkpoint{...}: needs a function or a module, got %s", util.kind(fn))
    end
    module = module or type(fn) == "table" and require "neap.nn.module"
    if module and module.is_module(fn) then
      return module.wrap(fn, "checkpoint", function(inner, ...) return call(inner, options, ...) end)
    end
    return function(...) return call(fn, options, ...) end
  end
end

local function checked(fn, options, ...)
  if plain(fn) and options == nil and select("#", ...) == 0 then return curried(fn) end
  local n = select("#", ...) + (options == nil and select("#", ...) == 0 and 1 or 2)
  check_call("checkpoint", n, fn, options, (select(-1, nil, ...)))
  check_options("checkpoint", options)
  return call(fn, options, ...)
end

--- checkpoint(fn, options, ...) or checkpoint(options)(fn).
function checkpoint.checkpoint(fn, options, ...)
  local flags = simple_checkpoint(fn, options)
  if flags then return checkpoint_run(fn, flags, nil, nil, ...) end
  return checked(fn, options, ...)
end

--- Cuts a list of callables (or an nn.Sequential) into segments and checkpoints all but the last.
-- checkpoint.checkpoint_sequential(list, segments, input, {use_reentrant = false})
function checkpoint.checkpoint_sequential(list, segments, input, options, ...)
  local who = "checkpoint_sequential"
  local order = "checkpoint.checkpoint_sequential(list, segments, input, {use_reentrant = false})"
  if type(list) ~= "table" then
    util.fail("E-ARG", "%s: needs a list of functions or an nn.Sequential, got %s: %s", who, util.kind(list), order)
  end
  if select("#", ...) > 0 then util.fail("E-ARG", "%s: takes one input, and the options last: %s", who, order) end
  local n = #list
  for i = 1, n do
    if not util.callable(list[i]) then
      util.fail("E-ARG", "%s: part %d must be a function or a module, got %s", who, i, util.kind(list[i]))
    end
  end
  if not plain(options) then
    if plain(input) and input.use_reentrant ~= nil then
      util.fail("E-USE-REENTRANT", "%s: the options come last, after the input: %s", who, order)
    end
    util.fail("E-USE-REENTRANT", "%s: use_reentrant is not given: %s", who, order)
  end
  check_options(who, options)
  local count = math.type(segments) and math.tointeger(segments)
  if not count or count < 1 or count > n then
    util.fail("E-SEGMENTS", "%s: segments must be a whole number from 1 to %d (the number of parts), got %s", who, n,
      type(segments) == "number" and tostring(segments) or util.kind(segments))
  end
  local function segment(first, last)
    return function(x)
      for i = first, last do x = list[i](x) end
      return x
    end
  end
  local size = n // count
  local first, x = 1, input
  for _ = 1, count - 1 do
    x = call(segment(first, first + size - 1), options, x)
    first = first + size
  end
  return segment(first, n)(x)
end

checkpoint.set_checkpoint_early_stop = neap.set_checkpoint_early_stop
checkpoint.set_checkpoint_debug_enabled = neap.set_checkpoint_debug_enabled
checkpoint.GraphExecGroup = neap.GraphExecGroup

checkpoint.CheckpointPolicy = {}
for _, name in ipairs({ "must_save", "prefer_save", "must_recompute", "prefer_recompute", "must_cpu_offload",
  "prefer_cpu_offload" }) do
  checkpoint.CheckpointPolicy[name:upper()] = name
end

-- ---- device states --------------------------------------------------------------------------------------

local function find_devices(v, depth, seen, ids, found)
  if is_tensor(v) then
    local id = v.device:match ":(%d+)$"
    if id then
      ids[#ids + 1] = tonumber(id)
      found[#found + 1] = neap.default_generator(v.device):state()
    end
  elseif depth < 8 and plain(v) and not seen[v] then
    seen[v] = true
    for _, value in next, v do find_devices(value, depth + 1, seen, ids, found) end
  end
end

--- Numbers of the devices, other than the CPU, of the tensors among the arguments and in plain tables, and the
-- states of these devices' default generators.
function checkpoint.get_device_states(...)
  local ids, states = {}, {}
  for i = 1, select("#", ...) do find_devices((select(i, ...)), 0, {}, ids, states) end
  return ids, states
end

--- Sets the states of devices' default generators, pair by pair up to the end of the shorter list.
-- Options: device_type = "cuda" ("meta": nothing happens).
function checkpoint.set_device_states(ids, states, options)
  local who = "set_device_states"
  options = util.options(who, options, { "device_type" })
  for _, list in ipairs({ ids or false, states or false }) do
    if type(list) ~= "table" then util.fail("E-ARG", "%s: needs two lists, got %s", who, util.kind(list or nil)) end
  end
  local kind = options.device_type or "cuda"
  if kind == "meta" then return end
  for i = 1, math.min(#ids, #states) do
    local device = kind == "cpu" and "cpu" or ("%s:%d"):format(kind, util.integer(who, "an id", ids[i], 0))
    neap.default_generator(device):set_state(states[i])
  end
end

return setmetatable(checkpoint, {
  __call = function(_, fn, options, ...) -- checkpoint.checkpoint again: one call less
    local flags = simple_checkpoint(fn, options)
    if flags then return checkpoint_run(fn, flags, nil, nil, ...) end
    return checked(fn, options, ...)
  end,
})
