--- Learning rates as functions of the step, from 1.
-- Use: {lr = optim.schedule.cosine{lr = 1e-3, warmup = 100, total = 5000}}.
local util = require "neap.util"

local schedule = {}

local function read(who, options, known, needed)
  options = util.options(who, options, known)
  for _, name in ipairs(needed) do
    if options[name] == nil then util.fail("E-ARG", "%s: needs %s = ...", who, name) end
  end
  for _, name in ipairs(known) do
    if options[name] ~= nil then util.number(who, name, options[name]) end
  end
  return options
end

-- Linear from lr / warmup at step 1 to lr at step `warmup`, then after(steps since, steps left in all).
local function warmed(lr, warmup, total, after)
  return function(step)
    if step <= warmup then return lr * step / warmup end
    local span = math.max(1, total - warmup)
    return after(math.min(1, (step - warmup) / span))
  end
end

--- The same rate always, after a linear warm-up. Options: lr, warmup = 0.
function schedule.constant(options)
  options = read("optim.schedule.constant", options, { "lr", "warmup" }, { "lr" })
  local lr = options.lr
  return warmed(lr, options.warmup or 0, math.huge, function() return lr end)
end

--- Linear decay to `min` at step `total`. Options: lr, total, warmup = 0, min = 0.
function schedule.linear(options)
  options = read("optim.schedule.linear", options, { "lr", "total", "warmup", "min" }, { "lr", "total" })
  local lr, low = options.lr, options.min or 0
  return warmed(lr, options.warmup or 0, options.total, function(t) return lr + (low - lr) * t end)
end

--- Half a cosine from lr to `min` at step `total`. Options: lr, total, warmup = 0, min = 0.
function schedule.cosine(options)
  options = read("optim.schedule.cosine", options, { "lr", "total", "warmup", "min" }, { "lr", "total" })
  local lr, low = options.lr, options.min or 0
  return warmed(lr, options.warmup or 0, options.total, function(t)
    return low + (lr - low) * 0.5 * (1 + math.cos(math.pi * t))
  end)
end

--- Multiplied by `factor` every `every` steps. Options: lr, every, factor = 0.1.
function schedule.step(options)
  options = read("optim.schedule.step", options, { "lr", "every", "factor" }, { "lr", "every" })
  local lr, every, factor = options.lr, options.every, options.factor or 0.1
  return function(step) return lr * factor ^ ((step - 1) // every) end
end

return schedule
