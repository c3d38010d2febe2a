-- Checkpointing three ways: a function, a wrapped module, a sequence. The gradients are the same bits.
--   build/neap examples/checkpoint_mlp.lua
local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint

neap.seed(1)
local x = neap.randn(256, 64)
local blocks = {}
for i = 1, 6 do blocks[i] = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) end

-- Runs forward and backward; the bytes kept for backward and the hash of all gradients.
local function run(forward)
  local gradients = {}
  for _, block in ipairs(blocks) do block:zero_grad() end
  local saved = neap.scope(function()
    local loss = forward(x):square():mean()
    local bytes = neap.memory_stats().by.saved
    loss:backward()
    return bytes
  end)
  for i, block in ipairs(blocks) do
    for name, p in block:named_parameters() do gradients[i .. "." .. name] = p.grad end
  end
  return saved, neap.hash(gradients)
end

local opts = { use_reentrant = false }

local function plain(h)
  for _, block in ipairs(blocks) do h = h + block(h) end
  return h
end

local function by_function(h)
  for _, block in ipairs(blocks) do
    h = checkpoint(function(t) return t + block(t) end, opts, h)
  end
  return h
end

local function by_module(h)
  for _, block in ipairs(blocks) do h = h + checkpoint(opts)(block)(h) end
  return h
end

local function by_sequence(h)
  local parts = {}
  for i, block in ipairs(blocks) do
    parts[i] = function(t) return t + block(t) end
  end
  return checkpoint.checkpoint_sequential(parts, 3, h, opts)
end

local saved_plain, hash = run(plain)
print(("%-22s %9d bytes saved"):format("without", saved_plain))
local ways = { { "each block", by_function }, { "wrapped modules", by_module }, { "in three segments", by_sequence } }
for _, way in ipairs(ways) do
  local saved, other = run(way[2])
  print(("%-22s %9d bytes saved"):format(way[1], saved))
  assert(other == hash, "the gradients must be the same bits")
  assert(saved < saved_plain)
end
print("gradient hash " .. tostring(hash))
