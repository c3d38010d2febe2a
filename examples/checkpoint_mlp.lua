-- What each way of checkpointing costs and saves: a deep MLP, five ways, one gradient.
--   build/neap examples/checkpoint_mlp.lua [layers] [width] [batch]
-- A layer is a linear map and a GELU. Plain autograd keeps the input of both for backward; a checkpointed segment
-- keeps its own input and makes the rest again. Saved bytes follow from the sizes alone: the formula stands beside.
local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint

local layers, width, batch = tonumber(arg[1]) or 64, tonumber(arg[2]) or 512, tonumber(arg[3]) or 512
local segments = math.floor(math.sqrt(layers))
local size = layers // segments -- layers in a segment
layers = size * segments

neap.seed(1)
local x = neap.randn(batch, width)
local parts = {}
for i = 1, layers do parts[i] = nn.Sequential(nn.Linear(width, width), nn.GELU()) end

--- Layers from .. to as one function.
local function chain(from, to)
  return function(h)
    for i = from, to do h = parts[i](h) end
    return h
  end
end

--- The whole net, `call` around each segment.
local function segmented(call)
  return function(h)
    for s = 1, segments do h = call(chain((s - 1) * size + 1, s * size), h) end
    return h
  end
end

local function with(options)
  return segmented(function(f, h) return checkpoint(f, options, h) end)
end

local function by_sequence(h)
  return checkpoint.checkpoint_sequential(parts, segments, h, { use_reentrant = false })
end

local function products(_, op)
  return op:tagged "matmul" -- true: kept, false: made again
end

--- Saved bytes in activations of batch x width floats: the net's input and its result count in each.
local ways = {
  { "none", segmented(function(f, h) return f(h) end), 2 * layers + 1 },
  { "reentrant", with { use_reentrant = true }, segments + 1 },
  { "non-reentrant", with { use_reentrant = false }, segments + 1 },
  { "sequential", by_sequence, (segments - 1) + 2 * size + 1 },
  { "selective, products", with { use_reentrant = false, policy = products }, segments + layers + 1 },
}

local function gradients()
  local g = {}
  for i, part in ipairs(parts) do
    for name, p in part:named_parameters() do g[i .. "." .. name] = p.grad end
  end
  return g
end

--- One step: bytes saved for backward, its peak, products computed, seconds, hash of all gradients.
local function step(forward)
  for _, part in ipairs(parts) do part:zero_grad() end
  collectgarbage()
  local row = {}
  neap.reset_peak()
  local start = neap.clock()
  local counts = neap.count_ops(function()
    neap.scope(function()
      -- a reentrant checkpoint needs an input that requires grad
      local loss = forward(x:detach():requires_grad_()):square():mean()
      row.saved = neap.memory_stats().by.saved
      loss:backward()
    end)
  end)
  row.seconds = neap.clock() - start
  row.peak = neap.memory_stats().peak
  row.linear = counts.linear
  row.hash = neap.hash(gradients())
  return row
end

local unit = batch * width * 4
local function mib(bytes) return ("%.1f MiB"):format(bytes / 2 ^ 20) end

print(("%d layers of width %d, batch %d, segments of %d; one activation is %s\n")
  :format(layers, width, batch, size, mib(unit)))
print(("%-20s %12s %22s %12s %8s  %s"):format("", "saved", "formula", "peak", "linear", "gradient hash"))
local hash
for _, way in ipairs(ways) do
  step(way[2]) -- the first one finds memory and threads
  local row = step(way[2])
  hash = hash or row.hash
  print(("%-20s %12s %4d x one = %9s %12s %8d  %s"):format(way[1], mib(row.saved), way[3], mib(way[3] * unit),
    mib(row.peak), row.linear, row.hash))
  print(("time %-15s %.3f s"):format(way[1], row.seconds))
  assert(row.hash == hash, "the gradients must be the same bits")
  assert(math.abs(row.saved - way[3] * unit) < 64, "the saved bytes must follow the formula")
end
print "\none gradient hash: the same bits each way"
