local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x = neap.tensor({2.0}, {dtype = "float64", requires_grad = true})
local y = (x * x * x):sum()
local d1 = neap.grad(y, x, {create_graph = true})
local d2 = neap.grad(d1:sum(), x, {create_graph = true})
assert(d1:item() == 12 and d2:item() == 12 and neap.grad(d2:sum(), x):item() == 6 and x.grad == nil)
local w = {a = neap.ones(2, {requires_grad = true}), b = neap.ones(2, {requires_grad = true})}
local g = neap.grad((w.a * 3 + w.b):sum(), w)                      -- a table in, a table with the same keys out
assert(neap.equal(g.a, {3, 3}) and neap.equal(g.b, {1, 1}))
for _ = 1, 2 do local loss = (w.a * 2):sum(); loss:backward() end  -- .grad accumulates
assert(neap.equal(w.a.grad, {4, 4}) and w.b.grad == nil)
