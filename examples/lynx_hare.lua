-- Fits the Lotka-Volterra equations to the furs of hare and lynx that the Hudson's Bay Company took in from 1900 to
-- 1920:  hare' = birth hare - predation hare lynx,  lynx' = growth hare lynx - death lynx.
--   build/neap examples/lynx_hare.lua [data/lynx_hare.csv [fit.svg]]
-- Runge-Kutta of order 4 in float64, gradients through all its steps, L-BFGS with a line search. The state at the start
-- is fitted, too; all six numbers are kept above 0 by fitting their logarithms.
local neap = require "neap"
local optim, data = neap.optim, neap.data

local path = arg and arg[1] or "../shared/data/lynx_hare.csv"
local file = io.open(path)
if not file then
  print("no such file: " .. path .. "; it has the columns year, lynx and hare")
  return
end
file:close()

neap.default_dtype "float64"
local csv = data.csv(path)
local seen = csv:tensor { "hare", "lynx" }:log()

-- log of: birth, death | predation, growth | hares, lynxes at the start
local rates = neap.tensor({ { 0.5, 0.8 }, { 0.02, 0.02 } }):log():requires_grad_()
local start = neap.tensor({ 30.0, 4.0 }):log():requires_grad_()
local sign = neap.tensor { 1.0, -1.0 }
local steps_per_year = 20

-- The states at every year, (years, 2).
local function solve()
  local alone, met = rates[1]:exp() * sign, rates[2]:exp() * -sign
  local function slope(s) return s * (alone + met * s:flip(1)) end
  local h = 1 / steps_per_year
  local s = start:exp()
  local years = { s }
  for year = 2, #csv do
    for _ = 1, steps_per_year do
      local k1 = slope(s)
      local k2 = slope(s + k1 * (h / 2))
      local k3 = slope(s + k2 * (h / 2))
      local k4 = slope(s + k3 * h)
      s = s + (k1 + (k2 + k3) * 2 + k4) * (h / 6)
    end
    years[year] = s
  end
  return neap.stack(years, 1)
end

local opt = optim.LBFGS({ rates, start }, { line_search = "strong_wolfe", max_iter = 20 })
local calls = 0
local function closure()
  calls = calls + 1
  opt:zero_grad()
  local loss = (solve():log() - seen):square():mean()
  loss:backward()
  return loss
end

local began = neap.clock()
local last = math.huge
for round = 1, 20 do
  local loss = opt:step(closure)
  print(("round %2d  mean squared log error %.5f"):format(round, loss))
  if last - loss < 1e-9 then break end
  last = loss
end

local fitted = neap.no_grad(solve)
local birth, death = rates[1]:detach():exp():unbind()
local predation, growth = rates[2]:detach():exp():unbind()
local hares, lynxes = start:detach():exp():unbind()
print(("hare' = %.4f hare - %.5f hare lynx"):format(birth:item(), predation:item()))
print(("lynx' = %.5f hare lynx - %.4f lynx"):format(growth:item(), death:item()))
print(("in 1900: %.2f thousand hares, %.3f thousand lynxes"):format(hares:item(), lynxes:item()))
print(("mean squared log error %.5f after %d calls, %.1f s"):format((fitted:log() - seen):square():mean():item(), calls,
  neap.clock() - began))

if arg and arg[2] then
  local year = csv.year
  neap.plot.line({
    ["hares fitted"] = { x = year, y = fitted:select(2, 1) }, ["hares seen"] = { x = year, y = csv.hare },
    ["lynxes fitted"] = { x = year, y = fitted:select(2, 2) }, ["lynxes seen"] = { x = year, y = csv.lynx },
  }, { title = "Furs of the Hudson's Bay Company", x = "year", y = "thousands" }):save(arg[2])
end
