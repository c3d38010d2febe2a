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

--- Multiplied by `factor` at each step of the list `at`: from step at[i] on, i times. Options: lr, at, factor = 0.1.
function schedule.multi_step(options)
  local who = "optim.schedule.multi_step"
  options = util.options(who, options, { "lr", "at", "factor" })
  local lr, factor = util.number(who, "lr", options.lr), util.number(who, "factor", options.factor or 0.1)
  if type(options.at) ~= "table" then
    util.fail("E-ARG", "%s: needs at = a list of steps such as {1000, 2000}, got %s", who, util.kind(options.at))
  end
  local at = {}
  for i, step in ipairs(options.at) do at[i] = util.number(who, "at", step) end
  return function(step)
    local value = lr
    for _, from in ipairs(at) do
      if step >= from then value = value * factor end
    end
    return value
  end
end

--- Multiplied by `factor` every step. Options: lr, factor.
function schedule.exponential(options)
  options = read("optim.schedule.exponential", options, { "lr", "factor" }, { "lr", "factor" })
  local lr, factor = options.lr, options.factor
  return function(step) return lr * factor ^ (step - 1) end
end

--- From lr to `min` at step `total` as (1 - t)^power. Options: lr, total, power = 1, warmup = 0, min = 0.
function schedule.polynomial(options)
  options = read("optim.schedule.polynomial", options, { "lr", "total", "power", "warmup", "min" }, { "lr", "total" })
  local lr, low, power = options.lr, options.min or 0, options.power or 1
  return warmed(lr, options.warmup or 0, options.total, function(t) return low + (lr - low) * (1 - t) ^ power end)
end

--- One cycle (Smith and Topin, 2018): half a cosine up from lr / `divide` to lr during the part `rise` of the steps,
-- then half a cosine down to lr / `divide` / `final`. Options: lr, total, rise = 0.3, divide = 25, final = 1e4.
function schedule.one_cycle(options)
  options = read("optim.schedule.one_cycle", options, { "lr", "total", "rise", "divide", "final" }, { "lr", "total" })
  local lr, total, rise = options.lr, options.total, options.rise or 0.3
  local first = lr / (options.divide or 25)
  local last = first / (options.final or 1e4)
  local top = rise * total - 1
  local function cosine(from, to, t) return to + (from - to) * 0.5 * (1 + math.cos(math.pi * t)) end
  return function(step)
    step = math.min(step, total) - 1
    if step <= top then return cosine(first, lr, top > 0 and step / top or 1) end
    return cosine(lr, last, (step - top) / (total - 1 - top))
  end
end

--- One schedule after another: schedule.join{ {100, warmup}, {1000, cosine}, rest } runs `warmup` for 100 steps, then
-- `cosine` for 1000, then `rest`; each counts its steps from 1.
function schedule.join(parts)
  local who = "optim.schedule.join"
  if type(parts) ~= "table" or #parts == 0 then
    util.fail("E-ARG", "%s: needs a list of {steps, schedule}, got %s", who, util.kind(parts))
  end
  local list = {}
  for i, part in ipairs(parts) do
    local last = i == #parts
    local steps, fn = math.huge, part
    if type(part) == "table" and not (last and util.callable(part)) then steps, fn = part[1], part[2] end
    if not util.callable(fn) or type(steps) ~= "number" then
      util.fail("E-ARG", "%s: part %d must be {steps, schedule}%s", who, i, last and " or a schedule" or "")
    end
    list[i] = { steps = last and math.huge or steps, fn = fn }
  end
  return function(step)
    for _, part in ipairs(list) do
      if step <= part.steps then return part.fn(step) end
      step = step - part.steps
    end
  end
end

return util.part("optim.schedule", schedule)
