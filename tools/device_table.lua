--- The table of devices: by which way every op runs on the CPU, on the emulated device and on CUDA.
--
--   lua5.4 tools/device_table.lua BUILD      (make device-table)
--
-- The ways come from the registry and from the plug-ins' own tables (tests/cudaemu/op_ways.c). BUILD/libneap-cuda.so is
-- what nvcc made; where there is none, the table of the same sources stands for it: that of the emulated device. Exit
-- status 1 where a cell has no way, or an op runs on the host for no reason that is named here.

local build = arg[1] or "build"
local legend = {
  kernel = "a kernel of the device's own",
  view = "a view: no kernel is needed",
  parts = "consists of other ops, which run where their own rows say",
  bytes = "moves bytes by the device's own copies",
  ref = "its composition of simpler ops",
  host = "the CPU's kernel on copies, for the reason given",
}
-- Why an op works in the host's memory: op = "the reason in words".
local reasons = {
  restride = "a window of any geometry, over a buffer of the host: gradients of as_strided alone",
  zero_window = "as restride",
}

local function exists(path)
  local f = io.open(path)
  return f and f:close()
end

local ops, ways = {}, {}
local function read(device, plugin)
  local program = assert(io.popen(("%s/tests/op_ways %s"):format(build, plugin or "")))
  local column = {}
  for line in program:lines() do
    local op, way = line:match "^(%S+)\t(%S+)$"
    column[op] = way
    if device == "cpu" then ops[#ops + 1] = op end
  end
  ways[device] = column
  return program:close()
end

local compiled = exists(build .. "/libneap-cuda.so")
local emulated = build .. "/libneap-cudaemu.so"
local devices = { "cpu", "cudaemu", "cuda" }
local bad, counts = {}, { cpu = {}, cudaemu = {}, cuda = {} }
if not (read "cpu" and read("cudaemu", emulated) and read("cuda", compiled and build .. "/libneap-cuda.so" or emulated))
then
  os.exit(1)
end

print((("%-26s%-10s%-10s%-10s"):format("", table.unpack(devices)):gsub("%s+$", "")))
for _, op in ipairs(ops) do
  local line, base = ("%-26s"):format(op), reasons[op] and op or (op:gsub("_$", ""))
  for _, device in ipairs(devices) do
    local way = ways[device][op] or ""
    if way == "bytes" and reasons[base] then way = "host" end
    line = line .. ("%-10s"):format(way)
    counts[device][way] = (counts[device][way] or 0) + 1
    if not legend[way] then bad[#bad + 1] = ("%s on %s: %s"):format(op, device, way == "" and "blank" or way) end
    if way == "host" and not reasons[base] then bad[#bad + 1] = ("%s on %s: host, no reason"):format(op, device) end
  end
  print(((line .. (reasons[base] or "")):gsub("%s+$", "")))
end

print()
for _, way in ipairs { "kernel", "view", "parts", "bytes", "ref", "host" } do
  local text = legend[way]
  local numbers = {}
  for i, device in ipairs(devices) do numbers[i] = ("%s %d"):format(device, counts[device][way] or 0) end
  print(("%-8s%-40s%s"):format(way, table.concat(numbers, ", "), text))
end
print("cuda: " .. (compiled and "as compiled by nvcc" or "not compiled here; the table of the same sources"))
for _, text in ipairs(bad) do print("NOT SHOWN  " .. text) end
print(("%d ops, %d cells without a way"):format(#ops, #bad))
os.exit(#bad == 0 and 0 or 1)
