--- Activation checkpointing: what happens inside fn is not kept for backward but computed again when needed.
--
--   local y = checkpoint(fn, {use_reentrant = false}, ...)        function, options, arguments; the results are fn's
--   local g = checkpoint{use_reentrant = false}(fn)               configure, wrap, then g(...); a module stays a module
--
-- This file checks the call forms and options and keeps what checkpoint.once remembers; the region itself
-- (what is kept, what is computed again, random streams, early stop) is the core's.
local neap = require "neap"
local util = require "neap.util"
local module -- neap.nn.module, once a module is wrapped

local checkpoint_run, is_tensor = neap.checkpoint_run, neap.is_tensor

local checkpoint = {}

local known = {
  "use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop",
  "respect_saved_tensors_hooks", "policy", "enabled",
}
local checks = { default = true, none = true }
local later_checks = { ops = true, values = true }

local example = "checkpoint(fn, {use_reentrant = false}, x)"

local function not_built(who, what)
  util.fail("E-ARG", "%s: %s is not in this build, which has the plain non-reentrant variant: "
    .. "use {use_reentrant = false} with preserve_rng_state, determinism_check, early_stop, enabled", who, what)
end

-- Options that may only be true or false, and those of which this build knows no value but nil.
local booleans = { use_reentrant = true, preserve_rng_state = true, early_stop = true, enabled = true, debug = true }
local reserved = { context_fn = true, policy = true, respect_saved_tensors_hooks = true }

local function check_determinism(who, check)
  if checks[check] then return end
  if later_checks[check] then not_built(who, ('determinism_check = "%s"'):format(check)) end
  local near = type(check) == "string" and util.nearest(check, { "default", "none", "ops", "values" })
  util.fail("E-BADCHECK", '%s: determinism_check must be "default", "none", "ops" or "values", got %s%s', who,
    util.kind(check), near and ("; did you mean %q?"):format(near) or "")
end

local function check_options(who, options)
  for name, value in next, options do
    if booleans[name] then
      if type(value) ~= "boolean" then
        util.fail("E-ARG", "%s: %s must be true or false, got %s", who, name, util.kind(value))
      end
    elseif name == "determinism_check" then
      check_determinism(who, value)
    elseif reserved[name] then
      not_built(who, "option " .. name)
    else
      util.options(who, options, known) -- raises
    end
  end
  if options.use_reentrant == nil then
    util.fail("E-USE-REENTRANT", "%s: use_reentrant is not given; pass it: {use_reentrant = false} (recommended) or "
      .. "{use_reentrant = true}", who)
  end
  if options.use_reentrant then not_built(who, "use_reentrant = true") end
  if options.debug then not_built(who, "debug = true") end
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
-- A region call has a record of what `once` returned in it, by order. While a region's function runs, its
-- frame lies on the stack of its coroutine. The original run appends to the records of all regions it is
-- inside of; a recompute takes from its own record, and hands on to regions that it opens anew.

local stacks = setmetatable({}, { __mode = "k" }) -- coroutine -> frames, innermost last
local serial = 0

-- The frames in force: those of the running coroutine, else the newest of a coroutine that waits for us.
local function frames_in_force()
  local stack = stacks[coroutine.running()]
  if stack and #stack > 0 then return stack end
  local best
  for thread, other in pairs(stacks) do
    local top = other[#other]
    if top and coroutine.status(thread) == "normal" and (not best or top.serial > best[#best].serial) then
      best = other
    end
  end
  return best
end

local function pop(frame)
  local stack = frame.stack
  for i = #stack, 1, -1 do
    if stack[i] == frame then
      table.remove(stack, i)
      return
    end
  end
end

local frame_meta = { __close = pop }

local function push(record, replaying)
  local thread = coroutine.running()
  local stack = stacks[thread]
  if not stack then
    stack = {}
    stacks[thread] = stack
  end
  serial = serial + 1
  local frame = setmetatable({ record = record, replaying = replaying, at = 0, stack = stack, serial = serial },
    frame_meta)
  stack[#stack + 1] = frame
  return frame
end

-- Runs fn as one run of the region that `record` belongs to: the first run is the original.
local function run(record, fn, ...)
  local replaying = record.started
  record.started = true
  local _ <close> = push(record, replaying)
  return fn(...)
end

--- Runs fn(...) in the original pass and returns its results; a recompute of the region is given the same
-- results without running it. Outside a region it just runs.
function checkpoint.once(fn, ...)
  if not util.callable(fn) then util.fail("E-ARG", "checkpoint.once: needs a function, got %s", util.kind(fn)) end
  local stack = frames_in_force()
  if not stack then return fn(...) end
  local results
  for _, frame in ipairs(stack) do
    if frame.replaying then
      frame.at = frame.at + 1
      results = results or frame.record[frame.at]
    end
  end
  results = results or table.pack(fn(...))
  for _, frame in ipairs(stack) do
    if not frame.replaying then frame.record[#frame.record + 1] = results end
  end
  return table.unpack(results, 1, results.n)
end

-- ---- the call forms -------------------------------------------------------------------------------------

local function call(fn, options, ...)
  if options.enabled == false then return fn(...) end
  return checkpoint_run(fn, options, {}, run, nil, nil, ...)
end

-- Configure, then wrap.
local function curried(options)
  check_options("checkpoint", options)
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

--- checkpoint(fn, options, ...) or checkpoint(options)(fn).
function checkpoint.checkpoint(fn, options, ...)
  if plain(fn) and options == nil and select("#", ...) == 0 then return curried(fn) end
  local n = select("#", ...) + (options == nil and select("#", ...) == 0 and 1 or 2)
  check_call("checkpoint", n, fn, options, (select(-1, nil, ...)))
  check_options("checkpoint", options)
  return call(fn, options, ...)
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

--- Early stop of recomputes: a context, (b) or (b, fn, ...), read when a region is made.
checkpoint.set_checkpoint_early_stop = neap.set_checkpoint_early_stop

return setmetatable(checkpoint, {
  __call = function(_, ...)
    if select("#", ...) == 0 then util.fail("E-ARG", "checkpoint: needs a function: %s", example) end
    return checkpoint.checkpoint(...)
  end,
})
