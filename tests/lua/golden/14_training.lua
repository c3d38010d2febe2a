local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
collectgarbage "stop"; neap.seed(1)
local x, y = neap.tensor({{0, 0}, {0, 1}, {1, 0}, {1, 1}}, {dtype = "float32"}), neap.tensor{1, 2, 2, 1}   -- classes 1 and 2
local net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
local opt, batches = optim.AdamW(net:parameters(), {lr = 0.05}), data.loader(data.tensors(x, y), {batch_size = 2, shuffle = true, seed = 1})
local function step(a, b) opt:zero_grad(); nn.cross_entropy(net(a), b):backward(); opt:step() end
local function train(n) for _ = 1, n do for a, b in batches:each() do neap.scope(step, a, b) end end end
train(10)
local live = neap.memory_stats().live
train(190)
assert(neap.memory_stats().live == live and neap.equal(net(x):argmax(2), y))
