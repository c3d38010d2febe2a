--- Gate (a): the peak of a training step is a closed formula of the sizes, to the byte. No collector runs.
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

local B, D0, D1, D2, D3 = 64, 100, 80, 60, 10
local F = 4 -- bytes of a float32

--- What a step needs at its worst over what was alive before it (parameters, AdamW's two moments, the batch).
-- Moments of the step, in order; each line is everything alive then:
local function formula()
  local a1, a2, logits = B * D1 * F, B * D2 * F, B * D3 * F
  local g1, g2, g3 = (D1 * D0 + D1) * F, (D2 * D1 + D2) * F, (D3 * D2 + D3) * F -- gradients of the three layers
  local lse, loss, seed = B * F, F, F
  local head = logits + loss + seed -- the handle of logits, the loss and its own gradient live through the backward
  local moments = {
    forward = a1 + a1 + a2 + a2 + logits, -- inside the module call its intermediates still have handles
    loss = a1 + a2 + logits + lse + loss,
    cross_entropy = a1 + a2 + head + lse + logits, -- the gradient of the logits
    linear3 = a1 + a2 + head + logits + a2 + g3,
    relu2 = a1 + a2 + head + g3 + a2 + a2,
    linear2 = a1 + head + g3 + a2 + a1 + g2,
    relu1 = a1 + head + g3 + g2 + a1 + a1,
    linear1 = head + g3 + g2 + a1 + g1,
    optimizer = logits + loss + g1 + g2 + g3, -- one sweep over all parameters: no temporary
  }
  local peak, where = 0, nil
  for name, bytes in pairs(moments) do
    if bytes > peak then
      peak, where = bytes, name
    end
  end
  return peak, where, g1 + g2 + g3
end

describe("gate a: memory of one training step", function()
  before_each(function()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
  end)
  after_each(function()
    collectgarbage "restart"
  end)

  it("the peak equals the closed formula, byte for byte", function()
    neap.seed(1)
    local start = neap.memory_stats().live
    local net = nn.Sequential(nn.Linear(D0, D1), nn.ReLU(), nn.Linear(D1, D2), nn.ReLU(), nn.Linear(D2, D3))
    local opt = optim.AdamW(net:parameters(), { lr = 1e-3 })
    local x, y = neap.randn(B, D0), neap.randint(1, D3, { B })
    local function step()
      opt:zero_grad()
      nn.cross_entropy(net(x), y):backward()
      opt:step()
    end
    neap.scope(step)
    local extra, where, params = formula()
    assert.equal("relu1", where)
    local base = 3 * params + B * D0 * F + B * 8
    assert.equal(base + params, neap.memory_stats().live - start) -- the gradients stay until zero_grad
    for _ = 1, 3 do
      neap.reset_peak()
      neap.scope(step)
      local stats = neap.memory_stats()
      assert.equal(base + extra, stats.peak - start)
      assert.equal(base + params, stats.live - start)
      assert.equal(2 * params, stats.by.optimizer)
      local sum = 0
      for _, bytes in pairs(stats.peak_by) do
        sum = sum + bytes
      end
      assert.equal(stats.peak, sum)
    end
  end)

  it("one float more in the step moves the peak by four bytes", function()
    local function peak(n)
      local x = neap.ones(n, { requires_grad = true })
      neap.reset_peak()
      local live = neap.memory_stats().live
      neap.scope(function()
        (x * x):sum():backward()
      end)
      return neap.memory_stats().peak - live
    end
    assert.equal(3 * 4, peak(1001) - peak(1000)) -- the product, two gradient contributions
  end)
end)
