--- neap.detect_leaks: what a function leaves behind at every call.
local neap = require "neap"
local util = require "neap.util"
local holders = require "neap.holders"

local calls = 3
local counted = { "bytes", "storages", "nodes", "regions", "handles", "functions", "scopes" }

-- What is left when nothing unreachable is there any more.
local function left(device)
  neap.collect_all()
  local stats = neap.memory_stats(device)
  stats.bytes = stats.live
  return stats
end

local mt = { __name = "neap.LeakReport" }

function mt:__tostring()
  if self.ok then return ("neap.detect_leaks: nothing grows over %d calls"):format(self.calls) end
  local list = {}
  for _, name in ipairs(counted) do
    local n = self.grows[name]
    if n then list[#list + 1] = name == "bytes" and util.bytes(n) or ("%g %s"):format(n, name) end
  end
  local text = ("neap.detect_leaks: every call leaves %s"):format(table.concat(list, ", "))
  if #self.lines == 0 then return ("%s; no tensor made on %s in these calls is left"):format(text, self.device) end
  return ("%s\nmade in %d calls and left:\n%s"):format(text, self.calls, holders.text(self.lines))
end

--- neap.detect_leaks(fn, ...) -> report
-- Calls fn(...) once, so that caches are warm, and then three times with a full collection after each. Does what is
-- live grow every time? Fields: ok (nothing does), grows, a table of what a call leaves on average, of bytes, storages,
-- nodes, regions, handles, functions and scopes; lines, a list of {line, op, storages, now (bytes)}: where the tensors
-- were made that are left of the three calls. Bytes, storages and lines are of one device, that of new tensors: for
-- another, neap.device("cuda", neap.detect_leaks, fn, ...). fn's results are dropped. In tests:
-- local report = neap.detect_leaks(step, batch); assert(report.ok, tostring(report))
local function detect_leaks(fn, ...)
  if not util.callable(fn) then util.fail("E-ARG", "neap.detect_leaks: needs a function, got %s", util.kind(fn)) end
  local device = neap.zeros(0).device
  fn(...)
  local first = left(device)
  local guard <close>, watch = neap.watch_begin "storages"
  local report = setmetatable({ ok = true, device = device, calls = calls, grows = {}, lines = {} }, mt)
  local before = first
  for _, name in ipairs(counted) do report.grows[name] = 0 end
  for _ = 1, calls do
    fn(...)
    local after = left(device)
    for name in pairs(report.grows) do
      if after[name] <= before[name] then report.grows[name] = nil end
    end
    before = after
  end
  guard:close()
  for name in pairs(report.grows) do
    report.ok, report.grows[name] = false, (before[name] - first[name]) / calls
  end
  if not report.ok then
    for _, row in ipairs(holders.rows(watch)) do
      if row.storages > 0 then report.lines[#report.lines + 1] = row end
    end
  end
  return report
end

return detect_leaks
