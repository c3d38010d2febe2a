--- Long training with each way of checkpointing, the collector stopped: bytes, regions and functions stay flat.
local neap = require "neap"
local nn, optim, checkpoint = neap.nn, neap.optim, neap.checkpoint

local STEPS = tonumber(os.getenv "NEAP_TEST_STEPS" or "10000")

local function products(_, op)
  return op:tagged "matmul"
end

local function pass(run)
  run()
end

local ways = {
  reentrant = { use_reentrant = true },
  ["non-reentrant"] = { use_reentrant = false },
  ["selective by a list"] = { use_reentrant = false, policy = { neap.ops.linear } },
  ["selective by a function"] = { use_reentrant = false, policy = products },
  ["with contexts"] = { use_reentrant = false, context_fn = function() return pass, pass end },
  sequential = false,
}

local function problem(options)
  neap.seed(1)
  local first, last, blocks = nn.Linear(8, 8), nn.Linear(8, 3), {}
  for i = 1, 3 do
    blocks[i] = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 8))
  end
  local opt = optim.AdamW(nn.Sequential(first, nn.Sequential(blocks), last):parameters(), { lr = 1e-3 })
  local x, y = neap.randn(4, 8), neap.randint(1, 3, { 4 })
  return function()
    local h = first(x)
    local scale = h:detach() * 0.5 + 1 -- captured by the blocks
    if options then
      for _, block in ipairs(blocks) do
        h = checkpoint(function(t) return block(t) * scale end, options, h)
      end
    else
      h = checkpoint.checkpoint_sequential(blocks, 2, h, { use_reentrant = false })
    end
    opt:zero_grad()
    nn.cross_entropy(last(h), y):backward()
    opt:step()
  end
end

describe("training with checkpoints, collector stopped:", function()
  before_each(function()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
  end)
  after_each(function()
    collectgarbage "restart"
  end)

  local names = {}
  for name in pairs(ways) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    it(name .. ": live bytes, nodes, regions and functions flat", function()
      local step = problem(ways[name])
      for _ = 1, 3 do
        neap.scope(step)
      end
      local before = neap.memory_stats()
      neap.reset_peak()
      neap.scope(step)
      local peak = neap.memory_stats().peak
      for _ = 1, STEPS do
        neap.scope(step)
      end
      local after = neap.memory_stats()
      local counts = { "live", "storages", "nodes", "slots", "regions", "markers", "pass_entries", "functions" }
      for _, what in ipairs(counts) do
        assert.equal(before[what], after[what], what)
      end
      assert.equal(peak, after.peak)
    end)
  end
end)
