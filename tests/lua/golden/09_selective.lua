local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x, w1, w2 = neap.randn(8, 8), neap.randn(8, 8, {requires_grad = true}), neap.randn(8, 8, {requires_grad = true})
local function f(t) return t:matmul(w1):tanh():matmul(w2):tanh():matmul(w1):tanh():sum() end
local function second(ctx, op) return op:tagged "matmul" and ctx.nth % 2 == 0 end         -- true: save, false: recompute
local function products(opts)
  local y = opts and checkpoint(f, opts, x) or f(x)
  return neap.count_ops(function() y:backward() end).matmul                              -- kernels that ran
end
assert(products() == 5 and products{use_reentrant = false} == 5 + 3)                    -- two a product, one for the first; three again
assert(products{use_reentrant = false, policy = second} == 5 + 2)
assert(products{use_reentrant = false, policy = {neap.ops.matmul}} == 5)
