-- Fits a cosine with a small network and draws both.   build/neap examples/curve_fit.lua [curve.svg]
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

neap.seed(1)
local x = neap.linspace(-3, 3, 200):unsqueeze(2)
local y = (x * 2):cos()

local net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
local steps = 600
local opt = optim.Adam(net:parameters(), { lr = optim.schedule.cosine { lr = 0.01, warmup = 20, total = steps } })

local function step()
  opt:zero_grad()
  local loss = nn.mse_loss(net(x), y)
  loss:backward()
  optim.clip_grad_norm_(net:parameters(), 1.0)
  opt:step()
  return loss:item()
end

local loss
for i = 1, steps do
  loss = neap.scope(step)
  if i % 150 == 0 then print(("step %3d  lr %.5f  loss %.6f"):format(i, opt.lr, loss)) end
end
assert(loss < 1e-3)

local path = arg and arg[1]
if path then
  local points = x:reshape(-1)
  local fitted = neap.no_grad(net, x):reshape(-1)
  neap.plot.line({ ["cos 2x"] = { x = points, y = y:reshape(-1) }, network = { x = points, y = fitted } },
    { title = "A network learns a cosine", x = "x", y = "y" }):save(path)
  print("drawn to " .. path)
end
