--- What a watch of storages (core/autograd/watch.h) saw made, in rows by script line and op: for neap.memory and
-- neap.detect_leaks.
local util = require "neap.util"

local holders = {}

--- The rows as a table, with or without what lived at the peak.
function holders.text(rows, peak)
  local cells = { { "line", "op", "storages", "now", peak and "at the peak" } }
  for _, row in ipairs(rows) do
    cells[#cells + 1] = { row.line, row.op, tostring(row.storages), util.bytes(row.now), peak and util.bytes(row.peak) }
  end
  return table.concat(util.columns(cells, 2), "\n")
end

--- What is still there, or was at the peak: {line, op, storages, now, peak}, largest first. What was there before, and
-- what neither an op nor a script made (the engine's first gradient), is none of them.
function holders.rows(watch)
  local rows = {}
  local _, n = watch:facts()
  for i = 1, n do
    local op, line, phase, bytes, now, peak = watch:storage(i)
    if now or peak then
      line, op = line or "?", op or "new tensor"
      if phase ~= "forward" then op = ("%s (%s)"):format(op, phase) end
      local key = line .. "\n" .. op
      local row = rows[key]
      if not row then
        row = { line = line, op = op, storages = 0, now = 0, peak = 0 }
        rows[key], rows[#rows + 1] = row, row
      end
      row.storages = row.storages + (now and 1 or 0)
      row.now, row.peak = row.now + (now and bytes or 0), row.peak + (peak and bytes or 0)
    end
  end
  local list = table.move(rows, 1, #rows, 1, {})
  table.sort(list, function(a, b)
    local x, y = math.max(a.peak, a.now), math.max(b.peak, b.now)
    if x ~= y then return x > y end
    if a.line ~= b.line then return a.line < b.line end
    return a.op < b.op
  end)
  return list
end
return holders
