--- Seconds of one epoch of a classifier 784-256-256-10 on 20000 synthetic images, batches of 128, AdamW.
-- bench/mlp_torch.py does the same work; bench/run.sh prints the ratio. The last line is the number alone.
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

local N, BATCH, EPOCHS = 20000, 128, 3

neap.seed(1)
if os.getenv "NEAP_THREADS" then neap.set_num_threads(math.tointeger(os.getenv "NEAP_THREADS")) end
local x, y = neap.rand(N, 784), neap.randint(1, 10, { N })
local net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
local opt = optim.AdamW(net:parameters(), { lr = 1e-3 })

local function step(first)
  local size = math.min(BATCH, N - first + 1)
  local xb, yb = x:narrow(1, first, size), y:narrow(1, first, size)
  opt:zero_grad()
  nn.cross_entropy(net(xb), yb):backward()
  opt:step()
end

local best = math.huge
for _ = 1, EPOCHS do
  local start = neap.clock()
  for first = 1, N, BATCH do neap.scope(step, first) end
  best = math.min(best, neap.clock() - start)
end
print(("%.4f"):format(best))
