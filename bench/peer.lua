--- The two sides of a comparison: Neap with bench/work.lua in this program, PyTorch with bench/work.py behind a pipe.
-- Each has make(row), run(n) -> seconds of one, threads(n), bytes(row). A row is {maker =, its arguments ...}. Both
-- work on the device of whatever names none: NEAP_DEVICE, and what open_torch is given.
local neap = require "neap"
local work = require "bench.work"

local peer = {}
local SHORTEST = 0.01 -- seconds of one turn

--- Waits for the device, where there is something to wait for.
function peer.wait() end

local ours = { clock = neap.clock }
function ours.threads(n)
  neap.set_num_threads(n)
  ours.clock = n == 1 and os.clock or neap.clock
end
function ours.make(r)
  ours.work = work[r.maker](table.unpack(r))
  ours.work(2)
  return true
end
function ours.run(n)
  peer.wait()
  local start = ours.clock()
  ours.work(n)
  peer.wait()
  return (ours.clock() - start) / n
end
function ours.bytes(r) return work[r.maker](table.unpack(r)) end

peer.python = os.getenv "NEAP_TORCH_PYTHON" or "python3"

--- PyTorch behind a pipe, on that device, or nil. Its answers come through a FIFO, since a Lua pipe goes one way.
function peer.open_torch(device)
  local fifo = os.tmpname()
  os.remove(fifo)
  if not os.execute("mkfifo " .. fifo) then return end
  local to = io.popen(("%s bench/work.py %s 2>/dev/null >%s"):format(peer.python, device or "cpu", fifo), "w")
  local from = io.open(fifo)
  os.remove(fifo)
  local version = from:read()
  if not version then return end
  local function ask(...)
    to:write(table.concat({ ... }, " "), "\n")
    to:flush()
    local line = assert(from:read(), "PyTorch's side ended early")
    return tonumber(line) or line == "ok", line
  end
  local function ask_row(order, r)
    local words = { order, r.maker }
    for _, v in ipairs(r) do words[#words + 1] = tostring(v) end
    return ask(table.unpack(words))
  end
  return {
    version = version,
    threads = function(n) ask("threads", n) end,
    run = function(n) return ask("run", n) end,
    make = function(r) return ask_row("make", r) end,
    bytes = function(r) return (ask_row("bytes", r)) end,
    close = function() to:close() from:close() end,
  }
end

-- ---- measuring

function peer.median(list)
  table.sort(list)
  return (list[(#list + 1) // 2] + list[#list // 2 + 1]) / 2
end

--- How often one turn repeats the work, so that it takes SHORTEST.
function peer.repetitions(side)
  local n = 1
  while true do
    local took = side.run(n) * n
    if took >= SHORTEST or n >= 1 << 24 then return n end
    n = math.max(2 * n, math.min(math.ceil(n * SHORTEST / math.max(took, 1e-7)), 64 * n))
  end
end

function peer.amount(v, unit)
  if unit == "bytes" then return ("%.2f MiB"):format(v / 1048576) end
  for _, u in ipairs { { 1, "s" }, { 1e-3, "ms" }, { 1e-6, "us" } } do
    if v >= u[1] then return ("%.3g %s"):format(v / u[1], u[2]) end
  end
  return ("%.0f ns"):format(v * 1e9)
end

peer.ours = ours
return peer
