--- A GPU's table: seconds, rates and their share of what was reached at best, beside PyTorch. Nothing passes or fails.
--
--     NEAP_DEVICE=cuda build/neap bench/gpu.lua
--
-- NEAP_TORCH_PYTHON: a Python with PyTorch; without one there are Neap's figures alone. NEAP_ROUNDS: rounds (7).
-- Both sides work in this one run and take turns; each turn is long enough to be timed by the wall clock, between two
-- waits for the device, so that what a call costs the host is in it. Times are medians, the ratio is the median of the
-- rounds' ratios (above 1, Neap is faster). The ceilings are measured, too: of bytes the faster of both copies, of
-- products of a dtype the faster of both sides. On the emulated device, cudaemu, sizes are tiny and nothing is
-- measured: it shows that this program runs.
local neap = require "neap"
local peer = require "bench.peer"
local ours, median, amount = peer.ours, peer.median, peer.amount

local ROUNDS = math.tointeger(os.getenv "NEAP_ROUNDS" or 7)
local device = neap.ones(1).device
local emulated = device:find("cudaemu", 1, true) == 1
if device == "cpu" then
  io.stderr:write "bench/gpu.lua: NEAP_DEVICE names no device: cuda, or cudaemu to try this program\n"
  os.exit(77)
end
function peer.wait() neap.synchronize(device) end

-- ---- rows: label, what a second of it is counted in (bytes or operations), how many, maker and its arguments

local function size(real, tiny) return emulated and tiny or real end
local rows = {}
local function row(group, label, count, unit, maker, ...)
  rows[#rows + 1] = { group = group, label = label, count = count, unit = unit, maker = maker, ... }
  return rows[#rows]
end

local n = size(1 << 28, 1 << 10)
row("copy", ("copy_ of %d floats"):format(n), 8 * n, "bytes", "copy", n)

n = size(8192, 32)
for _, dtype in ipairs { "float32", "tf32", "bfloat16" } do
  local r = row("product", ("matmul %d^3, %s"):format(n, dtype), 2 * n ^ 3, dtype, "matmul", n, n, n, dtype)
  r.not_offered = dtype == "tf32" -- Neap's products of floats are products of floats
end

local N, M = size(16384, 8), size(4096, 33)
row("rows", ("softmax %dx%d"):format(N, M), 8 * N * M, "bytes", "rows", "softmax", N, M, false)
for _, norm in ipairs { "layer_norm", "rms_norm" } do
  row("rows", ("%s %dx%d"):format(norm, N, M), 8 * N * M, "bytes", norm, N, M, false)
  -- forward: x read, y written; back: x and g read, gradient written
  row("rows", ("%s %dx%d, and back"):format(norm, N, M), 20 * N * M, "bytes", norm, N, M, true)
end

local batch, sizes = size(4096, 4), size({ 784, 4096, 4096, 10 }, { 8, 16, 16, 4 })
local products = 0 -- forward, gradient of the weight, and of the input but the first
for i = 1, #sizes - 1 do products = products + (i == 1 and 4 or 6) * batch * sizes[i] * sizes[i + 1] end
row("step", ("AdamW step of %s, batch %d"):format(table.concat(sizes, "-"), batch), products, "float32", "train_mlp",
  batch, table.unpack(sizes))

local layers, width = size(16, 4), size(4096, 8)
for _, way in ipairs { "plain", "reentrant", "non-reentrant", "selective", "save_on_cpu" } do
  -- useful products: what is computed again is not counted
  local r = row("regions", ("%d layers of %d, batch %d, %s"):format(layers, width, batch, way),
    6 * batch * width * width * layers, "float32", "checkpointed", way, layers, width, batch)
  r.bytes = { maker = "peak_checkpointed", table.unpack(r) }
end

-- ---- measuring

local torch = peer.open_torch(emulated and "cpu" or "cuda")
local ceiling = {} -- by unit: a second's bytes or operations, at best

local function time_row(r)
  local a, b, n_ours, n_torch = not r.not_offered and {} or nil, nil, nil, nil
  if a then
    ours.make(r)
    n_ours = peer.repetitions(ours)
  end
  if torch then
    local ok, why = torch.make(r)
    if ok then b, n_torch = {}, peer.repetitions(torch) else io.stderr:write(r.label, ": PyTorch: ", why, "\n") end
  end
  local ratios = a and b and {}
  for i = 1, ROUNDS do
    if a then a[i] = ours.run(n_ours) end
    if b then b[i] = torch.run(n_torch) end
    if ratios then ratios[i] = b[i] / a[i] end
  end
  r.ours, r.torch, r.ratio = a and median(a), b and median(b), ratios and median(ratios)
  if r.group == "copy" or r.group == "product" then
    ceiling[r.unit] = r.count / math.min(r.ours or math.huge, r.torch or math.huge)
  end
  if r.bytes then
    r.peak = ours.bytes(r.bytes)
    r.torch_peak = torch and torch.bytes(r.bytes) or nil
  end
  ours.work = nil
  collectgarbage() -- its tensors are gone before the next
end

local function rate(r)
  if r.unit == "bytes" then return ("%8.1f GB/s"):format(r.count / r.ours / 1e9) end
  return ("%8.2f TFLOP/s"):format(r.count / r.ours / 1e12)
end

local function print_row(r)
  local line = ("%-46s"):format(r.label)
  if r.ours then
    line = line .. ("%9s %-16s %4.0f %%"):format(amount(r.ours), rate(r), 100 * r.count / r.ours / ceiling[r.unit])
  else
    line = line .. ("%-32s"):format "not offered"
  end
  if r.torch then line = line .. ("%10s"):format(amount(r.torch)) end
  if r.ratio then line = line .. ("%7.2f"):format(r.ratio) end
  if r.peak then
    line = line .. ("   peak %s"):format(amount(r.peak, "bytes"))
    if r.torch_peak then line = line .. (", PyTorch's %s"):format(amount(r.torch_peak, "bytes")) end
  end
  print(line)
  io.stdout:flush()
end

local facts = neap.device_facts(device)
print(("%s: %s, capability %s, %d processors%s"):format(device, facts.name, facts.capability, facts.processors,
  emulated and ". EMULATED: these figures say nothing about a GPU" or ""))
print(torch and ("Neap beside PyTorch %s%s"):format(torch.version, emulated and " on the CPU" or "")
  or "PyTorch is not here (NEAP_TORCH_PYTHON names a Python that has it): Neap's figures alone")
print(("%-46s%9s %-16s %6s%s"):format("", "Neap", "    rate", "of best", torch and "   PyTorch  ratio" or ""))
for _, r in ipairs(rows) do
  time_row(r)
  print_row(r)
end
print(("products by %s"):format(neap.device_facts(device).products))
if torch then torch.close() end
