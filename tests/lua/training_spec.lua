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

--- Bytes of a step at its worst, over the parameters, AdamW's moments and the batch (float32): the backward of tanh.
-- Alive then: its saved result, the gradient it gets and the one it gives; the gradients of the second layer; the
-- handle of the logits, the loss and the loss's own gradient. peak_spec.lua goes through all moments of such a step.
local GRADS_1, GRADS_2 = (IN * HIDDEN + HIDDEN) * 4, (HIDDEN * OUT + OUT) * 4
local WORST = 3 * BATCH * HIDDEN * 4 + GRADS_2 + BATCH * OUT * 4 + 4 + 4

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
      assert.equal(live - GRADS_1 - GRADS_2 + WORST, one) -- the gradients alive now are not, when a step begins
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
