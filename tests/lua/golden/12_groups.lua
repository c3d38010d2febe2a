local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x, opts, calls, packs = neap.ones(3, {requires_grad = true}), {use_reentrant = false}, 0, 0
local function f(t) calls = calls + 1; local y = t:exp(); return y, y:sin() end
local group, y, z = checkpoint.GraphExecGroup(), checkpoint(f, opts, x)
local gy = group(neap.grad, z:sum(), y)
group(neap.grad, y, x, {grad_outputs = gy})                               -- the same group: still one recompute
assert(calls == 2)
local function fourth(t) return t:square():square() end
local function sixteenth(t) return checkpoint(fourth, opts, t:square()):square() end
neap.saved_tensors_hooks(function(t) packs = packs + 1; return t end, function(t) return t end, sixteenth, x):sum():backward()
assert(packs == 3 and neap.equal(x.grad, {16, 16, 16}))                   -- x, the region's input, the last input
