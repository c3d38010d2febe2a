--- neap.memory: who holds memory now, and who held it at the peak.
local neap = require "neap"
local util = require "neap.util"
local holders = require "neap.holders"

local memory = {}

local categories = { "param", "grad", "optimizer", "saved", "temp", "workspace", "staging", "user" }

local function by_category(now, peak)
  local cells = { { "category", "now", "at the peak" } }
  for _, name in ipairs(categories) do
    if now[name] ~= 0 or peak[name] ~= 0 then
      cells[#cells + 1] = { name, util.bytes(now[name]), util.bytes(peak[name]) }
    end
  end
  return table.concat(util.columns(cells, 1), "\n")
end

-- ---- now ----------------------------------------------------------------------------------------------------

local report_mt = { __name = "neap.MemoryReport" }

function report_mt:__tostring()
  local cells = { { "handles in", "handles", "bytes" } }
  for _, s in ipairs(self.scopes) do cells[#cells + 1] = { s.name, tostring(s.handles), util.bytes(s.bytes) } end
  cells[#cells + 1] = { "no handle: graphs, gradients, optimizers", "", util.bytes(self.unhandled) }
  local parts = { by_category(self.by, self.peak_by), table.concat(util.columns(cells, 1), "\n") }
  if self.lines then parts[#parts + 1] = holders.text(self.lines, true) end
  parts[#parts + 1] = ("%s live in %d storages, %s at the peak"):format(util.bytes(self.live), self.storages,
    util.bytes(self.peak))
  return table.concat(parts, "\n\n")
end

--- neap.memory.report([device]) -> report
-- Who holds memory now: a table that prints as one. Fields, in bytes: live, peak, by and peak_by (by category); scopes,
-- a list of {name, handles, bytes}, innermost first: the handles of each scope that is open, a storage under several
-- counted in the first; unhandled, what no handle holds: values saved in graphs, gradients, state of optimizers; inside
-- neap.memory.profile and neap.detect_leaks also lines, as there. neap.reset_peak() starts the peak anew.
-- print(neap.memory.report())
function memory.report(device)
  local stats = neap.memory_stats(device)
  local r = setmetatable({ live = stats.live, peak = stats.peak, by = stats.by, peak_by = stats.peak_by,
    storages = stats.storages, scopes = neap.memory_holders(device), unhandled = stats.live }, report_mt)
  for _, s in ipairs(r.scopes) do r.unhandled = r.unhandled - s.bytes end
  local watch = neap.watch_running(device)
  if watch then r.lines = holders.rows(watch) end
  return r
end

-- ---- over a run ---------------------------------------------------------------------------------------------

local function all_zero(list)
  for _, v in ipairs(list) do
    if v ~= 0 then return false end
  end
  return true
end

local methods = {}

--- Writes the live bytes over the kernels that ran, in all and by category, as an SVG plot.
function methods:save(path)
  local series = { total = {} }
  for i, moment in ipairs(self.timeline) do
    local total = 0
    for name, bytes in pairs(moment.by) do
      total = total + bytes
      series[name] = series[name] or {}
      series[name][i] = bytes
    end
    series.total[i] = total
  end
  for name, bytes in pairs(series) do
    if name ~= "total" and all_zero(bytes) then series[name] = nil end
  end
  neap.plot.line(series, { title = "live bytes, at most " .. util.bytes(self.peak), x = "kernels",
    y = "bytes" }):save(path)
  return self
end

local profile_mt = { __name = "neap.MemoryProfile", __index = methods }

function profile_mt:__tostring()
  local raised = self.peak_line and ("; raised last by %s at %s"):format(self.peak_op or "a new tensor", self.peak_line)
  return ("%s\n\n%s\n\npeak %s on %s, live before %s%s"):format(by_category(self.by, self.peak_by),
    holders.text(self.lines, true), util.bytes(self.peak), self.device, util.bytes(self.held), raised or "")
end

--- neap.memory.profile(fn, ...) -> report, results
-- Runs fn(...) and notes who holds memory, on the device of new tensors; on another that fn uses:
-- neap.device("cuda", neap.memory.profile, fn, ...). The report prints as tables, by category and by the line and op
-- that made what lived at the peak or is left. Fields: device; in bytes, held (live before fn), peak and peak_by (of fn
-- alone: the peak starts anew), by (at the end), lines, a list of {line, op, storages (left), now (at the end), peak};
-- peak_op and peak_line, whose results raised the peak last (nil: no op's); timeline, for each kernel in order its op,
-- line and by. What is made without an op has a line when the script makes it, as neap.zeros does, and none when the
-- engine does, as the first gradient. report:save "memory.svg" draws the timeline.
-- local report = neap.memory.profile(step, batch); print(report)
function memory.profile(fn, ...)
  if not util.callable(fn) then util.fail("E-ARG", "neap.memory.profile: needs a function, got %s", util.kind(fn)) end
  local device = neap.zeros(0).device
  neap.reset_peak(device)
  local guard <close>, watch = neap.watch_begin "memory"
  local results = table.pack(fn(...))
  guard:close()
  local stats = neap.memory_stats(device)
  local events, _, held, peak_op, peak_line = watch:facts()
  local r = setmetatable({ device = device, held = held, peak = stats.peak, by = stats.by, peak_by = stats.peak_by,
    peak_op = peak_op, peak_line = peak_line, lines = holders.rows(watch), timeline = {} }, profile_mt)
  for i = 1, events do
    local op, line = watch:event(i)
    r.timeline[i] = { op = op, line = line or "?", by = watch:live(i) }
  end
  return r, table.unpack(results, 1, results.n)
end

return memory
