--- The price of a tiny op from Lua, in nanoseconds: c = a + b on 4 elements, a chain of ten ops with its backward,
-- and a checkpoint around an empty function. Best of several rounds; numbers to compare, nothing passes or fails.
-- With the arguments "empty" and N: runs N such checkpoints and prints nothing, for counting instructions.
local neap = require "neap"

local ROUNDS = 7

--- Nanoseconds of one call of fn, run n times inside a scope, so that the collector has no part in it.
local function nanoseconds(n, fn)
  local best = math.huge
  for _ = 1, ROUNDS do
    local start = neap.clock()
    for _ = 1, n // 100 do
      neap.scope(function() for _ = 1, 100 do fn() end end)
    end
    best = math.min(best, (neap.clock() - start) / (n // 100 * 100))
  end
  return best * 1e9
end

neap.set_num_threads(1)
local a, b = neap.ones(4), neap.ones(4)
local w = neap.ones(4, { requires_grad = true })

local function add() return a + b end
local function add_recorded() return a + w end
local function chain()
  local y = w
  for _ = 1, 5 do y = (y * b):tanh() end
  return neap.grad(y:sum(), w)
end

local function nothing(x) return x end
local options = { use_reentrant = false }
local function checkpointed() return neap.checkpoint(nothing, options, w) end

if arg[1] == "empty" then
  for _ = 1, tonumber(arg[2]) // 100 do
    neap.scope(function() for _ = 1, 100 do checkpointed() end end)
  end
  return
end

local empty = nanoseconds(20000, function() return a end)
print(("add, 4 elements                %8.0f ns"):format(nanoseconds(20000, add) - empty))
print(("add, 4 elements, recorded      %8.0f ns"):format(nanoseconds(20000, add_recorded) - empty))
print(("ten ops forward and backward   %8.0f ns for each op"):format((nanoseconds(2000, chain) - empty) / 10))
print(("an empty checkpoint            %8.0f ns"):format(nanoseconds(20000, checkpointed) - empty))
