--- What happens when a checkpointed function is not the same function twice: faults by determinism levels.
--   build/neap bench/faults.lua        (make bench-faults)
-- Each row plants one fault between forward and backward, or inside the function. A cell is what a user sees:
--   detected        backward raises
--   right           the gradient is that of the forward, bit for bit
--   SILENTLY WRONG  another gradient, and no word
-- The run fails when a level lets more through than the legend at the end explains.
local neap = require "neap"
local checkpoint = neap.checkpoint

local LEVELS = { "none", "default", "ops", "values" }

local function leaf(n, first)
  return neap.arange(first, first + n - 1, { dtype = "float64" }):mul(0.1):requires_grad_()
end

local temporary = {} -- files to remove

--- Each fault: make() returns the function, its arguments, and what changes between forward and backward.
local faults = {
  {
    "changed upvalue (number)",
    function()
      local k = 2.0
      return function(x) return (x * k):sin():exp() end, { leaf(4, 1) }, function() k = 3.0 end
    end,
  },
  {
    "changed global (number)",
    function()
      local env = { k = 2.0 }
      return function(x) return (x * env.k):sin():exp() end, { leaf(4, 1) }, function() env.k = 3.0 end
    end,
  },
  {
    "weight updated before backward",
    function()
      local w = leaf(4, 3)
      return function(x) return (x * w):sin() end, { leaf(4, 1) }, function()
        neap.no_grad(function() w:mul_(0.5) end)
      end
    end,
  },
  {
    "captured tensor replaced",
    function()
      local w = leaf(4, 3)
      return function(x) return (x * w):sin() end, { leaf(4, 1) }, function() w = leaf(4, 9) end
    end,
  },
  {
    "private generator",
    function()
      local g = neap.generator(5)
      return function(x) return (x * neap.rand(4, { generator = g, dtype = "float64" })):sin() end, { leaf(4, 1) }
    end,
  },
  {
    "math.random in the function",
    function()
      return function(x) return (x * math.random()):sin() end, { leaf(4, 1) }
    end,
  },
  {
    "list captured and appended",
    function()
      local list = {}
      return function(x)
        list[#list + 1] = #list + 1.0
        for _, k in ipairs(list) do x = (x * k):sin() end
        return x
      end, { leaf(4, 1) }
    end,
  },
  {
    "dtype flip",
    function()
      local dtype = "float64"
      return function(x) return x:to(dtype):sin():exp() end, { leaf(4, 1) }, function() dtype = "float32" end
    end,
  },
  {
    "shape flip",
    function()
      local n = 4
      return function(x) return x:narrow(1, 1, n):sin():exp() end, { leaf(4, 1) }, function() n = 3 end
    end,
  },
  {
    "branch flip, same shapes",
    function()
      local first = true
      return function(x)
        if first then return x:sin():exp() end
        return x:cos():exp()
      end, { leaf(4, 1) }, function() first = false end
    end,
  },
  {
    "uninitialised output",
    function()
      local fill = 1.0
      local function f(x) return (x * neap.empty(4, { dtype = "float64" }):fill_(fill)):sin() end
      return f, { leaf(4, 1) }, function()
        fill = 2.0
      end
    end,
  },
  {
    "swapped arguments",
    function()
      local swap = false
      return function(x, y)
        if swap then x, y = y, x end
        return (x * y:sin()):exp()
      end, { leaf(4, 1), leaf(4, 5) }, function() swap = true end
    end,
  },
  {
    "hidden data from a table",
    function()
      local k = 2.0
      local function f(x) return (x + neap.tensor({ k, 1, 1, 1 }, { dtype = "float64" })):sin() end
      return f, { leaf(4, 1) }, function()
        k = 3.0
      end
    end,
  },
  {
    "captured data changed in place",
    function()
      local b = leaf(4, 3)
      return function(x) return (x + b):sin() end, { leaf(4, 1) }, function()
        neap.no_grad(function() b:mul_(0.5) end)
      end
    end,
  },
  {
    "captured data replaced",
    function()
      local b = leaf(4, 3):detach()
      return function(x) return (x + b):sin() end, { leaf(4, 1) }, function() b = leaf(4, 9):detach() end
    end,
  },
  {
    "threshold of a mask",
    function()
      local k = 0.25
      return function(x) return x:masked_fill(x:gt(k), 0):sin() end, { leaf(4, 1) }, function() k = 0.35 end
    end,
  },
  {
    "number under no_grad",
    function()
      local k = 2.0
      return function(x)
        local scale = neap.no_grad(function() return x:square() * k end)
        return (x + scale):sin()
      end, { leaf(4, 1) }, function() k = 3.0 end
    end,
  },
  {
    "index of an element",
    function()
      local k = 1
      return function(x) return (x * x[k]):sin() end, { leaf(4, 1) }, function() k = 2 end
    end,
  },
  {
    "number in a nested checkpoint",
    function()
      local k = 2.0
      local function inner(h) return (h * k):sin() end
      return function(x) return checkpoint(inner, { use_reentrant = false }, x:exp()):exp() end, { leaf(4, 1) },
        function() k = 3.0 end
    end,
  },
  {
    "outer buffer refilled inside",
    function()
      local buffer, k = neap.zeros({ 4 }, { dtype = "float64" }), 2.0
      return function(x) return (x + buffer:fill_(k)):sin() end, { leaf(4, 1) }, function() k = 3.0 end
    end,
  },
  {
    "file read again, rewritten",
    function()
      local path = os.tmpname()
      temporary[#temporary + 1] = path
      neap.save(path, { b = leaf(4, 3):detach() })
      return function(x) return (x + neap.load(path).b):sin() end, { leaf(4, 1) }, function()
        neap.save(path, { b = leaf(4, 9):detach() })
      end
    end,
  },
  {
    "mutated saved value",
    function()
      return function(x)
        local h = x * 2.0
        local y = h:sin()
        h:mul_(3.0)
        return y + h
      end, { leaf(4, 1) }
    end,
  },
  {
    "argument changed in place",
    function()
      local x = leaf(4, 1)
      return function(t) return t:sin():exp() end, { x }, function()
        neap.no_grad(function() x:mul_(0.5) end)
      end
    end,
  },
}

--- The gradient that belongs to the forward: plain autograd, nothing changes. nil where plain autograd refuses.
local function right(make)
  local fn, args = make()
  math.randomseed(7)
  local ok, hash = pcall(function()
    fn(table.unpack(args)):sum():backward()
    return neap.hash(args[1].grad)
  end)
  return ok and hash or nil
end

local function cell(make, level)
  local fn, args, change = make()
  math.randomseed(7)
  local y = checkpoint(fn, { use_reentrant = false, determinism_check = level }, table.unpack(args)):sum()
  if change then change() end
  local ok, err = pcall(y.backward, y)
  if not ok then return "detected " .. (neap.error_code(err) or "?") end
  return neap.hash(args[1].grad) == right(make) and "right" or "SILENTLY WRONG"
end

print(("%-32s %s"):format("fault", "determinism_check:"))
print(("%-32s %-22s %-22s %-22s %-22s"):format("", table.unpack(LEVELS)))
local wrong = { none = 0, default = 0, ops = 0, values = 0 }
for _, fault in ipairs(faults) do
  local row = {}
  for i, level in ipairs(LEVELS) do
    row[i] = cell(fault[2], level)
    if row[i] == "SILENTLY WRONG" then wrong[level] = wrong[level] + 1 end
  end
  print(("%-32s %-22s %-22s %-22s %-22s"):format(fault[1], table.unpack(row)))
end
print(("%-32s %-22d %-22d %-22d %-22d"):format("silently wrong", wrong.none, wrong.default, wrong.ops, wrong.values))
for _, path in ipairs(temporary) do os.remove(path) end
print [[

SILENTLY WRONG at "none": asked for; only the number of saved values, and captured tensors changed in place, are seen.
SILENTLY WRONG at "default": a buffer from outside that the function itself writes to. Such a buffer may hold other
numbers in each run of a right function (a cache, a statistic, scratch memory), so what flows through it is not
compared; pass what it is filled with as an argument, or use determinism_check = "ops".]]
if wrong.default > 1 or wrong.ops > 0 or wrong.values > 0 then os.exit(1) end
