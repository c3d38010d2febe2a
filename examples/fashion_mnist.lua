-- Trains a small network on the 60,000 images of Fashion-MNIST, then shows what checkpointing saves.
--
--   build/neap examples/fashion_mnist.lua [folder for the results, default demo]
--
-- Everything printed on stdout is the same in every run and for every number of threads, except the lines that
-- begin with "time". The progress bar goes to stderr.
local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint

local folder = arg and arg[1] or "demo"
os.execute("mkdir -p '" .. folder:gsub("'", "'\\''") .. "'")

local function mib(bytes) return ("%.2f MiB"):format(bytes / 2 ^ 20) end

local function by_category(by)
  local parts = {}
  for _, name in ipairs({ "param", "grad", "optimizer", "saved", "temp", "workspace", "staging", "user" }) do
    if by[name] and by[name] > 0 then parts[#parts + 1] = name .. " " .. mib(by[name]) end
  end
  return table.concat(parts, ", ")
end

local function prepare(x, y) return x:reshape(-1, 784) / 255, y end

-- Share of the samples that the model puts into the right class.
local function accuracy(model, set)
  local right = 0
  local function count(x, y) return model(x):argmax(2):eq(y):sum():item() end
  model:eval()
  for x, y in data.loader(set, { batch_size = 1000, map = prepare }):each() do
    right = right + neap.no_grad(neap.scope, count, x, y)
  end
  model:train()
  return 100 * right / #set
end

-- ---- part 1: training -----------------------------------------------------------------------------------------

neap.seed(1)
local train, test = data.fashion_mnist("train"), data.fashion_mnist("test")
local function new_model() return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)) end
local epochs = 5
local model = new_model()
local batches = data.loader(train, { batch_size = 128, shuffle = true, seed = 1, map = prepare })
local opt = optim.AdamW(model:parameters(), { lr = optim.schedule.cosine { lr = 4e-3, total = epochs * #batches } })

print(("Fashion-MNIST: %d images to train on, %d to test with"):format(#train, #test))
print(model)

local function step(x, y)
  opt:zero_grad()
  local loss = nn.cross_entropy(model(x), y)
  loss:backward()
  opt:step()
  return loss:item()
end

local losses, means, ends = {}, {}, {}
for epoch = 1, epochs do
  neap.reset_peak()
  local started, sum = neap.clock(), 0
  local bar = neap.progress(batches, { desc = "epoch " .. epoch })
  for x, y in bar do
    local loss = neap.scope(step, x, y)
    sum = sum + loss
    losses[#losses + 1] = loss
    bar:set({ loss = loss })
  end
  local seconds = neap.clock() - started
  local memory = neap.memory_stats()
  means[epoch], ends[epoch] = sum / #batches, #losses
  print(("epoch %d  loss %.6f  test accuracy %.2f %%"):format(epoch, means[epoch], accuracy(model, test)))
  print(("  peak %s: %s"):format(mib(memory.peak), by_category(memory.peak_by)))
  print(("time  epoch %d: %.2f s, %.0f images/s"):format(epoch, seconds, #train / seconds))
end

local reached = accuracy(model, test)
assert(reached >= 85.5, ("the test accuracy is %.2f %%, at least 85.5 %% was expected"):format(reached))

neap.plot.line({ batch = losses, ["mean of the epoch"] = { x = ends, y = means } },
  { title = "Fashion-MNIST: training loss", x = "step", y = "cross entropy" }):save(folder .. "/loss.svg")
local metadata = { epochs = tostring(epochs), data = "Fashion-MNIST" }
neap.save(folder .. "/model.safetensors", model:state_dict(), { metadata = metadata })

local again = new_model()
again:load_state_dict((neap.load(folder .. "/model.safetensors")))
local reloaded = accuracy(again, test)
assert(reloaded == reached, "the reloaded model must be as good as the saved one")
print(("saved to %s/model.safetensors and loaded again: test accuracy %.2f %%, parameters %s"):format(folder, reloaded,
  neap.hash(again:state_dict())))
print(("the loss curve is in %s/loss.svg"):format(folder))

-- ---- part 2: eight blocks deep, with and without checkpoints ----------------------------------------------------

--- `through(blocks, h)` runs the eight blocks.
local function deep(through)
  neap.seed(2)
  local first, last, blocks = nn.Linear(784, 128), nn.Linear(128, 10), {}
  for i = 1, 8 do
    blocks[i] = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.Dropout(0.1), nn.Tanh())
  end
  local all = nn.Sequential(first, nn.Sequential(blocks), last) -- for its parameters
  return all, function(x) return last(through(blocks, first(x))) end
end

local function each(options)
  return function(blocks, h)
    for _, block in ipairs(blocks) do h = options and checkpoint(block, options, h) or block(h) end
    return h
  end
end

local function measure(through)
  collectgarbage() -- the network before is gone
  local net, forward = deep(through)
  local x, y = neap.scope(prepare, train.tensors[1]:narrow(1, 1, 1024), train.tensors[2]:narrow(1, 1, 1024))
  local function once()
    neap.seed(3)
    net:zero_grad()
    local loss = nn.cross_entropy(forward(x), y)
    local saved = neap.memory_stats().by.saved
    loss:backward()
    return saved
  end
  neap.scope(once) -- the first run finds memory and threads
  neap.reset_peak()
  local started = neap.clock()
  local saved = neap.scope(once)
  local seconds = neap.clock() - started
  local gradients = {}
  for name, p in net:named_parameters() do gradients[name] = p.grad end
  return { peak = neap.memory_stats().peak, saved = saved, seconds = seconds, hash = neap.hash(gradients) }
end

local ways = {
  { "none", each(nil) },
  { "reentrant", each { use_reentrant = true } },
  { "non-reentrant", each { use_reentrant = false } },
  { "sequential, 4 parts", function(blocks, h)
    return checkpoint.checkpoint_sequential(blocks, 4, h, { use_reentrant = false })
  end },
  { "selective, products", each { use_reentrant = false, policy = { neap.ops.linear } } },
}

print("\nEight blocks, 1024 images, one forward and backward, by the way of checkpointing:")
print(("%-22s %12s %12s  %s"):format("", "peak", "saved", "gradient hash"))
local times, hash = {}, nil
for i, way in ipairs(ways) do
  local row = measure(way[2])
  print(("%-22s %12s %12s  %s"):format(way[1], mib(row.peak), mib(row.saved), row.hash))
  times[i] = ("%s %.3f s"):format(way[1], row.seconds)
  hash = hash or row.hash
  assert(row.hash == hash, "the gradients must be the same bits")
end
print("time  " .. table.concat(times, "; "))
print("the gradients are the same bits")
