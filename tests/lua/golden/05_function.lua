local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local Cube = neap.Function "Cube"
function Cube.forward(ctx, x, k) ctx.k = k; ctx:save_for_backward(x); return x * x * x * k end
function Cube.backward(ctx, g) local x = ctx:saved(); return g * x * x * (3 * ctx.k) end   -- nothing owed for the number k
local x = neap.tensor({1.0, 2.0}, {dtype = "float64", requires_grad = true})
assert(neap.gradcheck(function(t) return Cube(t, 2) end, {x}))
checkpoint(function(t) return Cube(t, 2):sum() end, {use_reentrant = false}, x):backward()
assert(neap.equal(x.grad, {6, 24}))
function Cube.backward() end                                       -- forgot the gradient
local ok, err = pcall(function() Cube(x, 2):sum():backward() end)
assert(not ok and err:find "Cube")
