--- neap.cuda: is there a GPU, what is it, and waiting for it. Devices are named as the driver counts: "cuda:0".
-- Nothing of CUDA is opened before one of these functions is called or a device "cuda" is named.
local neap = require "neap"
local util = require "neap.util"

local cuda = {}

--- neap.cuda.status() -> "ok", or what is missing: the plug-in, the driver, a device, or a newer driver.
-- @usage print(neap.cuda.status())
function cuda.status()
  local n, why = neap.plugin_devices("cuda")
  return n > 0 and "ok" or why
end

--- neap.cuda.is_available() -> boolean: is there a device that can be used?
-- @usage local device = neap.cuda.is_available() and "cuda" or "cpu"
function cuda.is_available() return neap.plugin_devices("cuda") > 0 end

--- neap.cuda.device_count() -> integer: 0 where there is none.
-- @usage for i = 0, neap.cuda.device_count() - 1 do print(neap.cuda.properties("cuda:" .. i).name) end
function cuda.device_count() return (neap.plugin_devices("cuda")) end

local function named(device, fn)
  if device == nil then return "cuda" end
  if type(device) ~= "string" then
    util.fail("E-ARG", 'neap.cuda.%s: the device must be a name such as "cuda:0", got %s', fn, util.kind(device))
  end
  return device
end

--- neap.cuda.properties([device]) -> {name =, capability = "9.0", processors =, memory =, memory_free =, driver =,
-- runtime =, products =, product_plans =, product_hits =}: bytes, and versions as "13.0". products is what multiplies
-- matrices: "cuBLASLt 13.1.0", or "own kernels: " and why, or "none yet" before the first product; product_plans
-- times the library chose a way of multiplying, product_hits times it had one from before. Without a device: "cuda".
-- @usage if neap.cuda.is_available() then print(neap.cuda.properties().name) end
function cuda.properties(device) return neap.device_facts(named(device, "properties")) end

--- neap.cuda.synchronize([device]): waits until the device has done all that it was asked for. Reading values (:item,
-- print, :to("cpu")) waits by itself; this is for measuring times.
-- @usage if neap.cuda.is_available() then neap.cuda.synchronize() end
function cuda.synchronize(device) neap.synchronize(named(device, "synchronize")) end

return cuda
