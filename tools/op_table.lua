--- The table of ops: what the tests show of every op, or why there is nothing to show.
--
--   lua5.4 tools/op_table.lua PROGRAM...      (make op-table)
--
-- The programs are those tests that walk the registry; each says the cells of its columns (tests/core/ops_harness.h).
-- The column `value` is added here: it has the ops with a case in tests/golden, computed by PyTorch. Exit status 1
-- when a test failed, or a cell has neither been shown nor a reason that the legend explains.

local columns = {
  "value", "grad", "grad2", "dtypes", "int64", "empty", "0-dim", "broadcast", "strided", "threads", "region", "nomem",
  "device",
}
local about = {
  value = "values and gradients of PyTorch (tests/golden)",
  grad = "central differences",
  grad2 = "central differences of the gradient",
  dtypes = "float16, bfloat16, float32 in all layouts against float64",
  int64 = "integer inputs give what the same numbers give in float64, or a clear error",
  empty = "inputs, or a result, without elements",
  ["0-dim"] = "inputs, or a result, without dimensions",
  broadcast = "an operand of size 1 gives what the expanded operand gives, and the summed gradient",
  strided = "inputs that are transposed, or every second element, give what contiguous ones give",
  threads = "one and two threads give the same bits",
  region = "a checkpointed region gives the bits of the plain call, values and gradients",
  nomem = "every allocation fails once: a clean error, nothing left over",
  device = "a device without the op's kernel: by which way it runs, or the error it gives",
}
local legend = {
  ["ok"] = "shown",
  ["ok base"] = "shown: the same kernel as the op it is a form of, and the same values",
  ["ok view"] = "shown: a view needs no kernel",
  ["ok anywhere"] = "shown: moves bytes only, the kernel of the CPU serves",
  ["ok parts"] = "shown: runs as the ops it consists of",
  ["ok ref"] = "shown: runs as its composition",
  ["ok E-NOKERNEL"] = "shown: a clear error",
  ["E-DTYPE"] = "refuses integers with this error",
  ["E-ARG"] = "refuses this form with this error",
  ["E-DIMS"] = "refuses this form with this error",
  ["E-SHAPE"] = "refuses this form with this error",
  ["E-LABEL"] = "refuses this form with this error",
  ["nodiff"] = "integer or boolean results, or constants: no gradient",
  ["no float input"] = "nothing to differentiate with respect to",
  ["ends"] = "a part of gradients, differentiable once",
  ["internal"] = "a part of gradients or other ops: sees what its callers give, and is tested through them",
  ["random"] = "draws: tests of distributions and of the generator",
  ["no tensor"] = "has no tensor operand",
  ["1 tensor"] = "has one operand, nothing to stretch to",
  ["1 dim"] = "makes one dimension",
  ["own shapes"] = "operands of other sizes are legal and mean something else",
  ["storage"] = "reads the storage, whatever the layout",
  ["not PyTorch"] = "PyTorch has no such op; values by tests of their own",
}
-- Public ops that PyTorch lacks.
local ours = {}

local ops, cells = {}, {} -- names in order; cells[op] = {kind =, column = text}

local function read_cells(program)
  local path = os.tmpname()
  local ok = os.execute(("%s --cells %s >%s.log 2>&1"):format(program, path, path))
  for line in io.lines(path) do
    local op, kind, column, cell = line:match("^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)$")
    if not cells[op] then
      ops[#ops + 1] = op
      cells[op] = { kind = kind }
    end
    cells[op][column] = cell
  end
  os.remove(path)
  os.remove(path .. ".log")
  return ok
end

--- Cases are named op, or op_variant.
local function read_golden(path)
  for _, case in ipairs(dofile(path)) do
    local name = case.name
    while name and not cells[name] do
      name = name:match("^(.*)_[^_]*$")
    end
    if name then cells[name].value = "ok" end
  end
end

local function value_reason(row)
  return row.kind == "in place" and "ok base" or (row.kind == "internal" or row.kind == "random") and row.kind or ""
end

local function print_table()
  local width = {}
  for _, column in ipairs(columns) do
    width[column] = #column
    for _, op in ipairs(ops) do
      width[column] = math.max(width[column], #(cells[op][column] or ""))
    end
  end
  local function print_row(name, cell_of)
    local line = { ("%-22s"):format(name) }
    for _, column in ipairs(columns) do
      line[#line + 1] = ("%-" .. width[column] .. "s"):format(cell_of(column))
    end
    print((table.concat(line, "  "):gsub("%s+$", "")))
  end
  print_row("", function(column) return column end)
  for _, op in ipairs(ops) do
    print_row(op, function(column) return cells[op][column] or "" end)
  end
end

local function count()
  local kinds, reasons, bad = {}, {}, {}
  for _, op in ipairs(ops) do
    kinds[cells[op].kind] = (kinds[cells[op].kind] or 0) + 1
    for _, column in ipairs(columns) do
      local cell = cells[op][column] or ""
      reasons[cell] = (reasons[cell] or 0) + 1
      if not legend[cell] then bad[#bad + 1] = ("%s, %s: %s"):format(op, column, cell == "" and "blank" or cell) end
    end
  end
  return kinds, reasons, bad
end

local function print_counts(counts, explain)
  local names = {}
  for name in pairs(counts) do
    names[#names + 1] = name
  end
  table.sort(names, function(a, b) return counts[a] > counts[b] or counts[a] == counts[b] and a < b end)
  for _, name in ipairs(names) do
    print(("  %5d  %-15s %s"):format(counts[name], name, explain and explain[name] or ""))
  end
end

local passed = true
for _, program in ipairs(arg) do
  passed = read_cells(program) and passed
end
read_golden "tests/golden/ops.lua"
read_golden "tests/golden/losses.lua"
for _, op in ipairs(ops) do
  local row = cells[op]
  row.value = row.value or ours[op] and "not PyTorch" or value_reason(row)
end

print_table()
print "\nColumns"
for _, column in ipairs(columns) do
  print(("  %-10s %s"):format(column, about[column]))
end
local kinds, reasons, bad = count()
print "\nOps"
print_counts(kinds)
print "Cells"
print_counts(reasons, legend)
for _, text in ipairs(bad) do
  print("BAD: " .. text)
end
if not passed then print "BAD: a test failed" end
print(("%d ops, %d cells, %d bad"):format(#ops, #ops * #columns, #bad))
os.exit(passed and #bad == 0)
