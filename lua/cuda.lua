--- neap.cuda: is there a GPU, what is it, and waiting for it. Devices are named as the driver counts: "cuda:0".
-- Nothing of CUDA is opened before one of these functions is called or a device "cuda" is named.
local neap = require "neap"
local util = require "neap.util"

local cuda = {}

--- neap.cuda.status() -> string
-- "ok", or what is missing: the plug-in, the driver, a device, or a newer driver.
function cuda.status()
  local n, why = neap.plugin_devices("cuda")
  return n > 0 and "ok" or why
end

--- neap.cuda.is_available() -> boolean
-- Is there a device that can be used?
-- local device = neap.cuda.is_available() and "cuda" or "cpu"
function cuda.is_available() return neap.plugin_devices("cuda") > 0 end

--- neap.cuda.device_count() -> integer
-- How many there are.
-- for i = 0, neap.cuda.device_count() - 1 do print(neap.cuda.properties("cuda:" .. i).name) end
function cuda.device_count() return (neap.plugin_devices("cuda")) end

-- Stream and Event are given to `named` with all that they were: an option would be lost.
local function named(device, fn, extra)
  if extra ~= nil then util.fail("E-ARG", "neap.cuda.%s: takes a device alone, got %s, too", fn, util.kind(extra)) end
  if device == nil then return "cuda" end
  if type(device) ~= "string" then
    util.fail("E-ARG", 'neap.cuda.%s: takes the name of a device alone, such as "cuda:0", got %s', fn,
      util.kind(device))
  end
  return device
end

--- neap.cuda.properties([device]) -> table
-- Fields: name, capability ("9.0"), processors, memory and memory_free (bytes),
-- driver and runtime (versions, "13.0"), products, product_plans, product_hits. products is what multiplies matrices:
-- "cuBLASLt 13.1.0", or "own kernels: " and why, or "none yet" before the first product; product_plans times the
-- library chose a way of multiplying, product_hits times it had one from before. Without a device: "cuda".
function cuda.properties(device) return neap.device_facts(named(device, "properties")) end

--- neap.cuda.synchronize([device])
-- Waits until the device has done all that it was asked for. Reading values (:item, print, :to("cpu")) waits by itself;
-- this is for measuring times. Without a device: "cuda".
function cuda.synchronize(device) neap.synchronize(named(device, "synchronize")) end

--- neap.cuda.Stream([device]) -> stream
-- Work that a device may do beside its other work. stream(fn, ...) runs fn on it
-- and returns fn's results; stream:enter() is a guard. Which stream has to wait for which follows from the tensors:
-- results are right whatever runs where, and memory that one stream gives back is not used by another too early.
-- stream:synchronize() waits until all its work is done, stream:query() tells whether it is, stream:wait(other) makes
-- it go on after what `other` (nil: the stream that a device always has) was asked so far. A device has 16 streams.
-- Without a device: "cuda".
-- local side, x = neap.cuda.Stream(), neap.ones(1000, {device = "cuda"})
-- local y = side(function() return x:exp():sum() end)
function cuda.Stream(device, ...) return neap.cuda_stream(named(device, "Stream", (...))) end

--- neap.cuda.Event([device]) -> event
-- A moment in a stream's work. event:record() takes that of the stream in force
-- and returns the event, event:query() tells whether it has come, event:synchronize() waits for it,
-- event:elapsed_time(later) waits for the later one and returns milliseconds. Without a device: "cuda".
-- local from = neap.cuda.Event():record(); x:exp(); print(from:elapsed_time(neap.cuda.Event():record()))
function cuda.Event(device, ...) return neap.cuda_event(named(device, "Event", (...))) end

return cuda
