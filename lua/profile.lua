--- neap.profile: which ops and which lines of a script take the time, and what they allocate.
-- Rows are made of events: the kernels that a watch (core/autograd/watch.h) saw, with their lines.
local neap = require "neap"
local util = require "neap.util"

local phases = { "forward", "backward", "recompute" }

local function add(rows, key, phase, seconds, bytes)
  local row = rows[key]
  if not row then
    row = { name = key, calls = 0, forward = 0, backward = 0, recompute = 0, seconds = 0, bytes = 0 }
    rows[key], rows[#rows + 1] = row, row
  end
  row.calls, row[phase] = row.calls + 1, row[phase] + 1
  row.seconds, row.bytes = row.seconds + seconds, row.bytes + bytes
end

local function seconds_text(s)
  if s < 1e-3 then return ("%.1f us"):format(s * 1e6) end
  if s < 1 then return ("%.2f ms"):format(s * 1e3) end
  return ("%.2f s"):format(s)
end

local function table_of(report, head, rows)
  local cells = { { head, "time", "%", "calls" } }
  local shown = {}
  for _, phase in ipairs(phases) do
    for _, row in ipairs(rows) do shown[phase] = shown[phase] or row[phase] > 0 end
    if shown[phase] then table.insert(cells[1], phase) end
  end
  table.insert(cells[1], "bytes")
  for _, row in ipairs(rows) do
    local line = { row.name, seconds_text(row.seconds),
      ("%.1f"):format(report.seconds > 0 and 100 * row.seconds / report.seconds or 0), tostring(row.calls) }
    for _, phase in ipairs(phases) do
      if shown[phase] then line[#line + 1] = row[phase] > 0 and tostring(row[phase]) or "" end
    end
    line[#line + 1] = util.bytes(row.bytes)
    cells[#cells + 1] = line
  end
  return table.concat(util.columns(cells, 1), "\n")
end

local methods = {}

--- Writes the events as a Chrome trace: JSON that chrome://tracing and ui.perfetto.dev show.
function methods:save(path)
  local events = {}
  for i, e in ipairs(self.events) do
    events[i] = { name = e.op, cat = e.phase, ph = "X", ts = e.start * 1e6, dur = e.seconds * 1e6, pid = 1, tid = 1,
      args = { line = e.line, bytes = e.bytes } }
  end
  util.write("profile:save", path, require("neap.json").encode({ traceEvents = events, displayTimeUnit = "ms" },
    "profile"))
  return self
end

local mt = { __name = "neap.Profile", __index = methods }

function mt:__tostring()
  return ("%s\n\n%s\n\n%d kernels, %s of %s; they made %s"):format(table_of(self, "op", self.ops),
    table_of(self, "line", self.lines), #self.events, seconds_text(self.seconds), seconds_text(self.wall),
    util.bytes(self.bytes))
end

local function by_time(a, b)
  if a.seconds ~= b.seconds then return a.seconds > b.seconds end
  return a.name < b.name
end

local function report_of(watch, wall)
  local r = setmetatable({ ops = {}, lines = {}, events = {}, seconds = 0, bytes = 0, wall = wall }, mt)
  for i = 1, (watch:facts()) do
    local op, line, phase, start, ns, bytes = watch:event(i)
    local e = { op = op, line = line or "?", phase = phase, start = start / 1e9, seconds = ns / 1e9, bytes = bytes }
    r.events[i] = e
    r.seconds, r.bytes = r.seconds + e.seconds, r.bytes + bytes
    add(r.ops, op, phase, e.seconds, bytes)
    add(r.lines, e.line, phase, e.seconds, bytes)
  end
  table.sort(r.ops, by_time)
  table.sort(r.lines, by_time)
  return r
end

--- neap.profile(fn, ...) -> report, results
-- Runs fn(...) and notes every kernel that runs, also in backward and recomputes. The report prints as two tables, by
-- op and by script line; what runs in backward belongs to the line that called the op, or, where that was before fn, to
-- the line that calls backward. Fields: ops and lines, lists in descending order of time and tables by name, of {name,
-- calls, forward, backward, recompute (calls of each), seconds, bytes (made for results)}; events, a list of {op, line
-- ("?": unknown), phase, start, seconds, bytes}; seconds (in kernels), wall (in all), bytes. Time is that of the
-- kernel's call: a GPU may still be at work then. Calls are those that neap.count_ops counts: views and stored values
-- of selective checkpoints run no kernel, and an optimizer's step, one sweep over all parameters, is no op.
-- local report, y = neap.profile(function(x) return x:exp():sum() end, x); print(report)
local function profile(fn, ...)
  if not util.callable(fn) then util.fail("E-ARG", "neap.profile: needs a function, got %s", util.kind(fn)) end
  local guard <close>, watch = neap.watch_begin "time"
  local began = neap.clock()
  local results = table.pack(fn(...))
  local wall = neap.clock() - began
  guard:close()
  return report_of(watch, wall), table.unpack(results, 1, results.n)
end

return profile
