--- Long training loops: live bytes stay flat whatever the collector does. The figures are exact, from the
-- allocator; no time is measured.
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

local STEPS = tonumber(os.getenv "NEAP_TEST_STEPS" or "10000")
local BATCH, IN, HIDDEN, OUT = 16, 12, 32, 4

local function problem()
  neap.seed(1)
  local net = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))
  local opt = optim.AdamW(net:parameters(), { lr = 1e-3 })
  local x, y = neap.randn(BATCH, IN), neap.randint(1, OUT, { BATCH })
  return function()
    opt:zero_grad()
    nn.cross_entropy(net(x), y):backward()
    opt:step()
  end
end

--- Peak of one step over what is alive before it, from the sizes alone (float32): the gradients of all parameters,
-- and what is alive beside them at the worst moment. See peak_spec.lua for the derivation.
local PARAMS = IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT

describe("10,000 training steps", function()
  after_each(function()
    collectgarbage "restart"
    collectgarbage "incremental"
    collectgarbage()
    collectgarbage()
  end)

  for _, mode in ipairs { "stop", "incremental", "generational" } do
    it("in neap.scope, collector " .. mode .. ": live flat, the peak is the first step's", function()
      collectgarbage(mode)
      local step = problem()
      for _ = 1, 3 do
        neap.scope(step)
      end
      local live = neap.memory_stats().live
      neap.reset_peak()
      neap.scope(step)
      local one = neap.memory_stats().peak
      neap.reset_peak()
      for _ = 1, STEPS do
        neap.scope(step)
      end
      local stats = neap.memory_stats()
      assert.equal(live, stats.live)
      assert.equal(one, stats.peak)
      assert.is_true(stats.peak - stats.live >= BATCH * (HIDDEN + OUT) * 4)
      local peak = stats.peak - stats.peak_by.workspace -- room to rearrange operands in, without OpenBLAS
      assert.is_true(peak <= 1.1 * (live + 4 * PARAMS + BATCH * (4 * HIDDEN + 4 * OUT) * 4 + 1024))
    end)
  end

  it("without a scope: the peak stays under 2 x live + 64 MiB", function()
    local step = problem()
    step()
    collectgarbage()
    local live = neap.memory_stats().live
    neap.reset_peak()
    for _ = 1, STEPS do
      step()
    end
    assert.is_true(neap.memory_stats().peak <= 2 * live + 64 * 2 ^ 20)
  end)
end)
