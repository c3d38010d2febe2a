-- The smallest network that is not linear: exclusive or.   build/neap examples/xor.lua
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

neap.seed(1)
local x = neap.tensor({ { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }, { dtype = "float32" })
local y = neap.tensor({ 1, 2, 2, 1 }) -- classes count from 1
local net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
local opt = optim.AdamW(net:parameters(), { lr = 0.05 })

local function step()
  opt:zero_grad()
  local loss = nn.cross_entropy(net(x), y)
  loss:backward()
  opt:step()
  return loss:item()
end

for i = 1, 200 do
  local loss = neap.scope(step)
  if i % 50 == 0 then print(("step %3d  loss %.6f"):format(i, loss)) end
end
print(net(x):argmax(2))
assert(neap.equal(net(x):argmax(2), y))
