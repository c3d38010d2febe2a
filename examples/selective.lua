-- Selective checkpointing: a policy says which results are kept; what it costs and what it saves.
--   build/neap examples/selective.lua
local neap = require "neap"
local checkpoint = neap.checkpoint

neap.seed(1)
local n = 256
local x = neap.randn(n, n, { requires_grad = true })
local w1, w2 = neap.randn(n, n, { requires_grad = true }), neap.randn(n, n, { requires_grad = true })

-- Two products, cheap functions between them.
local function block(t)
  return t:matmul(w1):tanh():sin():matmul(w2):tanh():cos()
end

local CheckpointPolicy = checkpoint.CheckpointPolicy

--- The answer may depend on the op, on how often it ran, on its result.
local function first_product(ctx, op)
  if op == neap.ops.matmul and ctx.nth == 1 then return CheckpointPolicy.MUST_SAVE end
  return CheckpointPolicy.PREFER_RECOMPUTE
end

local function small_results(ctx)
  return ctx.op_output:numel() <= 16 -- true keeps, false recomputes
end

local ways = {
  { "no checkpoint", nil },
  { "everything again", { use_reentrant = false } },
  { "products kept", { use_reentrant = false, policy = { neap.ops.matmul } } },
  { "the first product", { use_reentrant = false, policy = first_product } },
  { "only small results", { use_reentrant = false, policy = small_results } },
  -- The long form: two contexts, one around the forward, one around the recompute.
  {
    "by context_fn",
    {
      use_reentrant = false,
      context_fn = function()
        return checkpoint.create_selective_checkpoint_contexts({ neap.ops.matmul, neap.ops.tanh })
      end,
    },
  },
}

print(("%-20s %12s %28s  %s"):format("", "saved", "ops run again in backward", "gradient hash"))
local hash
for _, way in ipairs(ways) do
  x.grad, w1.grad, w2.grad = nil, nil, nil
  neap.scope(function()
    local y = way[2] and checkpoint(block, way[2], x) or block(x)
    local loss = y:square():mean()
    local saved = neap.memory_stats().by.saved
    local counts = neap.count_ops(function() loss:backward() end)
    local again = ("%d matmul, %d tanh, %d sin"):format(counts.matmul - 4, counts.tanh, counts.sin)
    local h = neap.hash { x.grad, w1.grad, w2.grad }
    hash = hash or h
    print(("%-20s %8.2f MiB %28s  %s"):format(way[1], saved / 2 ^ 20, again, h))
    assert(h == hash, "the gradients must be the same bits")
  end)
end
print "the gradients are the same bits each way"
