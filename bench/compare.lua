--- Neap beside PyTorch, as one table of ratios (PyTorch's time / Neap's: above 1, Neap is faster). Both sides live in
-- this one run and take turns, so that a busy machine hits both alike. Nothing passes or fails.
--
--     build/neap bench/compare.lua [overhead] [ops] [train_mlp] [startup] [memory] ["name of a row"]
--
-- NEAP_TORCH_PYTHON: a Python with PyTorch; without one there are Neap's figures alone. NEAP_ROUNDS: rounds (15).
-- NEAP_THREADS: this number of threads alone. Rows of one thread are in CPU time, on both sides, so that other
-- programs count less; the others are in wall time. The ratio is the median of the rounds' ratios, with their range;
-- "best" is that of the two best times. On a busy machine believe one thread: OpenMP's threads spin while they wait,
-- so that PyTorch with two loses far more to other programs than it does alone.
-- Memory: peak bytes of tensors in a training step, Neap's exact, PyTorch's by its profiler of allocations; neither
-- counts what a BLAS packs. AdamW and all else is PyTorch's default implementation.
-- The work is in bench/work.lua and bench/work.py; the targets are those of the project, not of the table.
local neap = require "neap"
local peer = require "bench.peer"
local ours, median, repetitions, amount = peer.ours, peer.median, peer.repetitions, peer.amount

local ROUNDS = math.tointeger(os.getenv "NEAP_ROUNDS" or 15)
local ONLY = os.getenv "NEAP_THREADS" and { math.tointeger(os.getenv "NEAP_THREADS") }

-- ---- rows: label, maker and its arguments; target, threads (default: 1 and 2)

local groups = { "overhead", "ops", "train_mlp", "startup", "memory" }
local rows = { overhead = {}, ops = {}, train_mlp = {}, memory = {} }

local function row(group, label, target, maker, ...)
  local r = { group = group, label = label, target = target, maker = maker, ... }
  table.insert(rows[group], r)
  return r
end
local function one_thread(r) r.threads = { 1 } end

one_thread(row("overhead", "c = a + b, 4 elements", 8, "add"))
one_thread(row("overhead", "c = a + w, recorded", 8, "add_recorded"))
one_thread(row("overhead", "11 ops forward and backward", 8, "chain"))
one_thread(row("overhead", "an empty checkpoint", 8, "checkpoint"))
for _, op in ipairs { "add", "relu", "sum", "softmax", "matmul" } do
  one_thread(row("overhead", op .. " of (8,8)", 3, "small", op))
end

for _, n in ipairs { 256, 512, 1024 } do
  row("ops", ("matmul %d^3"):format(n), n >= 512 and 0.95 or 1.2, "matmul", n, n, n)
end
row("ops", "matmul 128x768x768", 1.2, "matmul", 128, 768, 768)
row("ops", "matmul 16x512x512", 1.2, "matmul", 16, 512, 512)
row("ops", "matrix 4096^2 by vector", 1.2, "mv", 4096)
row("ops", "add 16M", 1.2, "binary", "add", 0.1, 0.9, 16 << 20, false)
row("ops", "softmax 1024^2", 1.2, "rows", "softmax", 1024, 1024, false)
row("ops", "softmax 1024^2, and back", 1.2, "rows", "softmax", 1024, 1024, true)
row("ops", "log_softmax 1024^2", 1.2, "rows", "log_softmax", 1024, 1024, false)
row("ops", "layer_norm 1024^2", 1.2, "layer_norm", 1024, 1024, false)
row("ops", "layer_norm 1024^2, and back", 1.2, "layer_norm", 1024, 1024, true)
row("ops", "dropout 1M", 1.2, "dropout", 1 << 20)
row("ops", "cross_entropy 512x32000, and back", 1.2, "cross_entropy", 512, 32000)
row("ops", "AdamW 9.4M", 1.2, "adamw", 9, 1 << 20)
row("ops", "embedding 32000x256, 4096, and back", 1.2, "embedding", 32000, 256, 4096)
row("ops", "transpose 2048^2", 1.2, "transpose", 2048)
row("ops", "sum 2048^2 of rows", 1.2, "sum", 2048, 2048, 2)
row("ops", "sum 2048^2 of columns", 1.2, "sum", 2048, 2048, 1)
row("ops", "max 1024^2 of rows", 1.2, "rows", "max", 1024, 1024, false)
row("ops", "cumsum 1024^2", 1.2, "rows", "cumsum", 1024, 1024, false)
row("ops", "sort 1024^2", 1.2, "rows", "sort", 1024, 1024, false)

--- Pointwise ops, 1M elements, forward and with backward.
local function pointwise(maker, low, high, names, back)
  for op in names:gmatch "%S+" do
    row("ops", op .. " 1M", 1.2, maker, op, low, high, 1 << 20, false)
    if back ~= false then row("ops", op .. " 1M, and back", 1.2, maker, op, low, high, 1 << 20, true) end
  end
end
pointwise("unary", -0.9, 0.9, [[exp expm1 exp2 tanh sigmoid relu gelu silu softplus logsigmoid elu leaky_relu erf
  sin cos tan asin acos atan sinh cosh asinh atanh abs square]])
pointwise("unary", 0.1, 2.0, "log log1p log2 log10 sqrt rsqrt reciprocal")
pointwise("unary", 1.2, 3.0, "acosh")
pointwise("unary", -9.5, 9.5, "floor round sign", false)
pointwise("binary", 0.1, 0.9, "add mul div maximum minimum pow remainder fmod hypot atan2 logaddexp")

row("train_mlp", "784-256-256-10, batch 128", 1.2, "train_mlp", 128, 784, 256, 256, 10)
row("train_mlp", "2-16-16-2, batch 8", 3, "train_mlp", 8, 2, 16, 16, 2)
row("train_mlp", "64-64-64-64-64-10, batch 16", 3, "train_mlp", 16, 64, 64, 64, 64, 64, 10)

row("memory", "784-256-256-10, batch 128", nil, "peak", 128, 784, 256, 256, 10)
row("memory", "784-256-256-10, batch 4096", nil, "peak", 4096, 784, 256, 256, 10)
row("memory", "64-64-64-64-64-10, batch 1024", nil, "peak", 1024, 64, 64, 64, 64, 64, 10)

--- One line. a, b: Neap's and PyTorch's figures by round; b nil: no PyTorch.
local function print_line(group, label, threads, target, a, b, unit)
  local line = ("%-9s %-36s %s  %10s"):format(group, label, threads or " ", amount(median { table.unpack(a) }, unit))
  if b and #b > 0 then
    local ratios = {}
    for i = 1, #b do ratios[i] = b[i] / a[i] end
    local middle = median(ratios) -- sorts
    line = line .. ("  %10s  %6.2f  %6.2f  %6.2f - %-6.2f"):format(amount(median { table.unpack(b) }, unit), middle,
      math.min(table.unpack(b)) / math.min(table.unpack(a)), ratios[1], ratios[#ratios])
    if target then line = line .. ("  %4.2f%s"):format(target, middle < target and " below" or "") end
  end
  print(line)
  io.stdout:flush()
end

--- With more than one thread the second of two runs counts: OpenMP's threads spin for some milliseconds after the other
-- side's turn has ended, and would take a CPU from this one.
local function turn(side, n, threads)
  if threads > 1 then side.run(n) end
  return side.run(n)
end

local function time_row(r, threads, torch)
  ours.threads(threads)
  ours.make(r)
  local n, a, b, m = repetitions(ours), {}, nil, nil
  if torch then
    torch.threads(threads)
    local ok, why = torch.make(r)
    if ok then b, m = {}, repetitions(torch) else io.stderr:write(r.label, ": PyTorch: ", why, "\n") end
  end
  for i = 1, ROUNDS do
    a[i] = turn(ours, n, threads)
    if b then b[i] = turn(torch, m, threads) end
  end
  print_line(r.group, r.label, threads, r.target, a, b)
end

local function time_program(command)
  local start = neap.clock()
  return os.execute(command .. " >/dev/null 2>&1") and neap.clock() - start
end
local function resident(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe:read "a"
  pipe:close()
  local kilobytes = text:match "VmHWM:%s*(%d+)"
  return kilobytes and kilobytes * 1024
end

--- A program that makes one tensor and prints it.
local function startup(torch)
  local neap_program = (arg[-1] or "build/neap") .. " -e 'local neap = require \"neap\"; print(neap.ones(2))'"
  local torch_program = peer.python .. " -c 'import torch; print(torch.ones(2))'"
  local a, b = {}, torch and {}
  for i = 1, ROUNDS do
    a[i] = time_program(neap_program)
    if b then b[i] = time_program(torch_program) end
  end
  if not a[1] then return print(("%-9s %s does not start"):format("startup", arg[-1])) end
  print_line("startup", "start, one tensor, end", nil, nil, a, b)
  local status = "/proc/self/status"
  print_line("startup", "resident memory of that", nil, nil,
    { resident(neap_program:sub(1, -2) .. (" print(io.open(\"%s\"):read(\"a\"))'"):format(status)) },
    torch and { resident(torch_program:sub(1, -2) .. ("; print(open(\"%s\").read())'"):format(status)) }, "bytes")
end

-- ---- the run

local wanted, any = {}, #arg > 0
for _, name in ipairs(arg) do wanted[name] = true end
local torch = peer.open_torch()
print(torch and "Neap beside PyTorch " .. torch.version
  or "PyTorch is not here (NEAP_TORCH_PYTHON names a Python that has it): Neap's figures alone, no ratios")
print(("%-9s %-36s T  %10s%s"):format("", "", "Neap",
  torch and "     PyTorch   ratio    best  (range)          target" or ""))
for _, group in ipairs(groups) do
  if group == "startup" then
    if not any or wanted.startup then startup(torch) end
  else
    for _, r in ipairs(rows[group]) do
      if any and not wanted[group] and not wanted[r.label] then goto continue end
      if group == "memory" then
        print_line(group, r.label, nil, nil, { ours.bytes(r) }, torch and { torch.bytes(r) }, "bytes")
      else
        for _, threads in ipairs(ONLY or r.threads or { 1, 2 }) do time_row(r, threads, torch) end
      end
      ::continue::
    end
  end
end
if torch then torch.close() end
