-- A device beside the CPU: the same small training on both, then what every way of checkpointing keeps on the device,
-- to the byte, and moves to the host.
--
--   build/neap examples/on_device.lua DEVICE [tolerance, default 1e-5]
--
-- DEVICE is "cuda", or "cudaemu", the emulated device of tests (make build/libneap-cudaemu.so). It fails where a loss
-- differs from the CPU's by more than the tolerance, where a gradient is not the same bits by every way, and where
-- bytes do not follow the formula that stands beside them.
local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint

local device, tolerance = arg[1] or "cuda", tonumber(arg[2] or 1e-5)
local kind = device:match "^[^:]+"
local count, why = 0, "the CPU has nothing to be compared with"
if kind ~= "cpu" then count, why = neap.plugin_devices(kind) end
if count == 0 then
  io.stderr:write(("there is no device '%s': %s\n"):format(device, why))
  os.exit(1)
end

local train = data.fashion_mnist("train")
local function images(n)
  return neap.scope(function()
    return train.tensors[1]:narrow(1, 1, n):reshape(-1, 784) / 255, train.tensors[2]:narrow(1, 1, n)
  end)
end

-- ---- part 1: the losses of a short training -------------------------------------------------------------------

local function train_on(where, x, y)
  neap.seed(1)
  local model = nn.Sequential(nn.Linear(784, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 10)):to(where)
  local opt = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  neap.seed(2) -- dropout draws the same numbers on both
  local function step(xb, yb)
    opt:zero_grad()
    local loss = nn.cross_entropy(model(xb:to(where)), yb:to(where))
    loss:backward()
    opt:step()
    return loss:item()
  end
  local losses = {}
  for xb, yb in data.loader(data.tensors(x, y), { batch_size = 64, shuffle = true, seed = 1 }):each() do
    losses[#losses + 1] = neap.scope(step, xb, yb)
  end
  return losses
end

local x, y = images(640)
local on_cpu, on_device = train_on("cpu", x, y), train_on(device, x, y)
print(("Fashion-MNIST, %d images, a step with each 64 of them:"):format(x.shape[1]))
print(("%4s %12s %12s %12s"):format("step", "cpu", device, "difference"))
local worst = 0
for i, loss in ipairs(on_cpu) do
  local difference = math.abs(on_device[i] - loss)
  worst = math.max(worst, difference ~= difference and math.huge or difference) -- a NaN is no small difference
  print(("%4d %12.7f %12.7f %12.1e"):format(i, loss, on_device[i], difference))
end
print(("largest difference %.1e; %.0e is allowed\n"):format(worst, tolerance))
assert(worst <= tolerance, ("the losses on %s differ from the CPU's by %.1e"):format(device, worst))
assert(on_cpu[#on_cpu] < on_cpu[1], "the training did not lower the loss")

-- ---- part 2: every way of checkpointing -----------------------------------------------------------------------

local B, W, H, N, C = 64, 64, 128, 4, 10 -- batch, width, hidden width, blocks, classes
neap.seed(3)
local first, last, blocks = nn.Linear(784, W), nn.Linear(W, C), {}
for i = 1, N do
  blocks[i] = nn.Sequential(nn.Linear(W, H), nn.GELU(), nn.Linear(H, W), nn.Dropout(0.1), nn.Tanh())
end
local net = nn.Sequential(first, nn.Sequential(blocks), last):to(device)
x, y = neap.scope(function()
  local a, b = images(B)
  return a:to(device), b:to(device)
end)

-- Bytes of a result of width W, of one of width H, of the weight of a block's linear map.
local U, V, K = 4 * B * W, 4 * B * H, 4 * W * H
-- What is on the device before a forward: weights and biases, images, labels (int64).
local standing = 4 * (784 * W + W + N * (2 * W * H + H + W) + W * C + C) + 4 * B * 784 + 8 * B
-- What the loss keeps: logits, a number for each of their rows, and itself.
local loss_bytes = 4 * B * C + 4 * B + 4
-- A block's results: linear H, gelu H, linear W, dropout W, tanh W. Its backward needs its input, the input of gelu,
-- that of the second linear map, and the result of tanh, which is the input of the next block.
local plain = standing + U + N * (2 * V + U) + loss_bytes -- U: the result of `first`
local regions = standing + U + N * U + loss_bytes         -- a region keeps its input
-- A hook moves each value as often as it is kept: for the linear maps also the weights, for the loss also the labels.
local ends = 4 * B * 784 + U + 4 * W * C + 4 * B * C + 4 * B + 8 * B -- images, the input and weight of `last`, the loss
local hooked = ends + N * (U + K + V + V + K + U)

local re, non = { use_reentrant = true }, { use_reentrant = false }
local linear, all = neap.ops.linear, nil
--- The policy `answer` for the results of an op, or of all ops; the others are computed again.
local function policy(answer, op)
  local function decide(_, o) return (op == all or o == op) and answer or "must_recompute" end
  return { use_reentrant = false, policy = decide }
end
local function on_host(options)
  return function(f) return neap.save_on_cpu(options, f) end
end

-- name, options of the checkpoint around each block, bytes on the device after the forward, bytes moved to the host,
-- and back (the same, if not given), what is around the forward
local ways = {
  { "plain", nil, plain, 0 },
  { "reentrant", re, regions, 0 },
  { "non-reentrant", non, regions, 0 },
  { "must_save, linear", policy("must_save", linear), regions + N * (V + U), 0 },
  { "prefer_save, linear", policy("prefer_save", linear), regions + N * (V + U), 0 },
  { "must_save, all", policy("must_save", all), plain, 0 }, -- what nothing needs is not kept
  { "must_recompute, all", policy("must_recompute", all), regions, 0 },
  { "prefer_recompute, all", policy("prefer_recompute", all), regions, 0 },
  { "must_cpu_offload, linear", policy("must_cpu_offload", linear), regions, N * (V + U) },
  { "prefer_cpu_offload, linear", policy("prefer_cpu_offload", linear), regions, N * (V + U) },
  -- whether a result is needed is known when the backward asks: all five go out, the needed three come back
  { "must_cpu_offload, all", policy("must_cpu_offload", all), regions, N * (2 * V + 3 * U), N * (2 * V + U) },
  { "prefer_cpu_offload, all", policy("prefer_cpu_offload", all), regions, N * (2 * V + 3 * U), N * (2 * V + U) },
  { "save_on_cpu", nil, standing + 4, hooked, nil, on_host {} },
  { "save_on_cpu, pinned", nil, standing + 4, hooked, nil, on_host { pin_memory = true } },
  { "save_on_cpu, non-reentrant", non, standing + 4, ends + N * U, nil, on_host { pin_memory = true } },
}

local function measured()
  neap.cuda.synchronize(device) -- what is on its way has arrived
  local s = neap.memory_stats(device)
  return s.live, s.moved.to_host, s.moved.to_device
end

local function measure(options, around)
  net:zero_grad()
  collectgarbage() -- what the row before left is gone
  neap.seed(4)
  local function forward()
    local h = first(x)
    for _, block in ipairs(blocks) do h = options and checkpoint(block, options, h) or block(h) end
    return nn.cross_entropy(last(h), y)
  end
  local _, out_before, back_before = measured()
  local loss = neap.scope(around or forward, forward)
  local live = measured()
  loss:backward()
  local _, out, back = measured()
  local gradients = {}
  for name, p in net:named_parameters() do gradients[name] = p.grad end
  loss:release()
  return live, out - out_before, back - back_before, neap.hash(gradients)
end

print(("%d blocks, %d images; bytes on %s after the forward, and moved, as the formulas have them:")
  :format(N, B, device))
print(("%-27s %9s %9s %9s  %s"):format("", "device", "to host", "back", "gradient hash"))
local hash
for _, way in ipairs(ways) do
  local name, options, want, want_out, want_back, around = table.unpack(way, 1, 6)
  local live, out, back, h = measure(options, around)
  hash = hash or h
  print(("%-27s %9d %9d %9d  %s"):format(name, live, out, back, h))
  local function check(what, got, wanted)
    assert(got == wanted, ("%s: %s: %d bytes, by the formula %d"):format(name, what, got, wanted))
  end
  check("on the device", live, want)
  check("moved to the host", out, want_out)
  check("moved back", back, want_back or want_out)
  assert(h == hash, name .. ": the gradients must be the same bits")
end
print "every byte is where the formulas have it, and the gradients are the same bits"
