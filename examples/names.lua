-- Learns to write first names, letter by letter: an MLP over the last letters, after Bengio and others, 2003.
--   build/neap examples/names.lua [data/names.txt [epochs]]
-- The loss is in nats per letter, the end of a name included, on a tenth of the names that is held out. Counting pairs
-- of letters reaches 2.454.
local neap = require "neap"
local nn, optim, data = neap.nn, neap.optim, neap.data

local path = arg and arg[1] or "../shared/data/names.txt"
local epochs = tonumber(arg and arg[2] or 6)
local file = io.open(path)
if not file then
  print("no such file: " .. path .. "; it has one name in small letters a line")
  return
end

neap.seed(1)
local names = {}
for name in file:lines() do
  if name:match "^%l+$" then names[#names + 1] = name end
end
file:close()
local order = neap.randperm(#names):totable()

-- Letters are 1 (the end, and what is before a name) and 2 to 27.
local context, letters = 6, 27

-- Every letter of the names order[first ... last], with the letters before it.
local function samples(first, last)
  local x, y = {}, {}
  for i = first, last do
    local window = {}
    for k = 1, context do window[k] = 1 end
    local name = names[order[i]]
    for p = 1, #name + 1 do
      local letter = p <= #name and name:byte(p) - 95 or 1
      x[#x + 1] = table.move(window, 1, context, 1, {})
      y[#y + 1] = letter
      table.remove(window, 1)
      window[context] = letter
    end
  end
  return data.tensors(neap.tensor(x), neap.tensor(y))
end

local held = #names // 10
local test, train = samples(1, held), samples(held + 1, #names)
print(("%d names, %d letters to learn from, %d held out"):format(#names, #train, #test))

local Model = nn.Module "Model"
function Model:init(width, hidden)
  self.letters = nn.Embedding(letters, width)
  self.net = nn.Sequential(nn.Linear(context * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
    nn.Linear(hidden, letters))
end
function Model:forward(x) return self.net(self.letters(x):flatten(2)) end

local model = Model(24, 256)
local batches = data.loader(train, { batch_size = 256, shuffle = true, drop_last = true })
local total = epochs * #batches
local opt = optim.AdamW(model:parameters(), {
  lr = optim.schedule.cosine { lr = 3e-3, warmup = 100, total = total }, weight_decay = 0.05,
})

local function evaluate()
  local sum, count = 0, 0
  neap.no_grad(function()
    for x, y in data.loader(test, { batch_size = 4096 }):each() do
      sum = sum + nn.cross_entropy(model(x), y, { reduction = "sum" }):item()
      count = count + #y
    end
  end)
  return sum / count
end

local began = neap.clock()
for epoch = 1, epochs do
  local sum = 0
  for x, y in batches:each() do
    sum = sum + neap.scope(function()
      opt:zero_grad()
      local loss = nn.cross_entropy(model(x), y)
      loss:backward()
      opt:step()
      return loss:item()
    end)
  end
  print(("epoch %d  learned %.4f  held out %.4f  (%.0f s)"):format(epoch, sum / #batches, evaluate(),
    neap.clock() - began))
end

-- Some names of its own.
local function write()
  local window, name = {}, ""
  for k = 1, context do window[k] = 1 end
  repeat
    local p = model(neap.tensor { window }):softmax(-1)[1]:totable()
    local r, letter = neap.rand(1):item(), 0
    repeat
      letter = letter + 1
      r = r - p[letter]
    until r < 0 or letter == letters
    if letter > 1 then name = name .. string.char(letter + 95) end
    table.remove(window, 1)
    window[context] = letter
  until letter == 1 or #name > 20
  return name
end
local written = {}
for i = 1, 10 do written[i] = neap.no_grad(write) end
print("written: " .. table.concat(written, " "))
