--- Line plots as SVG text: neap.plot.line({loss = list}, {title = "training"}):save("loss.svg").
-- A series is a list of numbers (drawn over 1, 2, ...), a 1-dimensional tensor, or {x = list, y = list}. One series
-- needs no name: neap.plot.line(list).
-- Points that are not finite leave a gap.
local neap = require "neap"
local util = require "neap.util"

local plot = {}
local colours = { "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f" }

local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

local function escape(text)
  return (tostring(text):gsub("[&<>\"']", entities):gsub("%c", " "))
end

local function finite(v) return type(v) == "number" and v == v and v ~= math.huge and v ~= -math.huge end

local function numbers(name, values)
  if neap.is_tensor(values) then values = values:totable() end
  if type(values) ~= "table" then
    util.fail("E-ARG", "neap.plot.line: series '%s' must be a list of numbers or a tensor, got %s", name,
      util.kind(values))
  end
  local out = {}
  for i = 1, #values do
    local v = values[i]
    if neap.is_tensor(v) then v = v:item() end
    if type(v) ~= "number" then
      util.fail("E-ARG", "neap.plot.line: element %d of series '%s' must be a number, got %s", i, name, util.kind(v))
    end
    out[i] = v
  end
  return out
end

local function read_series(series, name_of_one)
  if neap.is_tensor(series) or type(series) == "table" and series[1] ~= nil then
    series = { [name_of_one or "values"] = series }
  end
  if type(series) ~= "table" then
    util.fail("E-ARG", "neap.plot.line: needs a list of numbers, or lists by name such as {loss = list}, got %s",
      util.kind(series))
  end
  local names = {}
  for name in pairs(series) do
    if type(name) ~= "string" then
      util.fail("E-ARG", "neap.plot.line: series have names: {loss = list}, got the key %s", tostring(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  local list = {}
  for i, name in ipairs(names) do
    local given = series[name]
    local x, y
    if type(given) == "table" and not neap.is_tensor(given) and given.y ~= nil then
      x, y = numbers(name, given.x or {}), numbers(name, given.y)
      if given.x and #x ~= #y then
        util.fail("E-SHAPE", "neap.plot.line: series '%s' has %d x and %d y", name, #x, #y)
      end
    else
      x, y = {}, numbers(name, given)
    end
    for k = 1, #y do x[k] = x[k] or k end
    list[i] = { name = name, x = x, y = y }
  end
  return list
end

-- Round tick positions: about `count` of them, steps of 1, 2 or 5 times a power of ten.
local function ticks(low, high, count)
  local raw = (high - low) / count
  local power = 10 ^ math.floor(math.log(raw, 10))
  local step = power
  for _, m in ipairs({ 1, 2, 5, 10 }) do
    step = m * power
    if step >= raw * 0.999 then break end
  end
  local list = {}
  for k = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do list[#list + 1] = k * step end
  return list, step
end

local function label(v, step)
  if math.abs(v) >= 1e6 or v ~= 0 and math.abs(v) < 1e-4 then return ("%.3g"):format(v) end
  local digits = math.max(0, -math.floor(math.log(step, 10) + 1e-9))
  local text = ("%." .. math.min(digits, 8) .. "f"):format(v)
  return (text:gsub("^%-(0%.?0*)$", "%1"))
end

local function range(list, axis, log_scale)
  local low, high = math.huge, -math.huge
  for _, s in ipairs(list) do
    for i = 1, #s.y do
      local v = s[axis][i]
      if finite(s.x[i]) and finite(s.y[i]) and not (log_scale and s.y[i] <= 0) then
        if log_scale and axis == "y" then v = math.log(v, 10) end
        low, high = math.min(low, v), math.max(high, v)
      end
    end
  end
  if low > high then return 0, 1 end
  if low == high then
    local pad = low == 0 and 1 or math.abs(low) * 0.1
    return low - pad, high + pad
  end
  return low, high
end

local known = { "title", "x", "y", "width", "height", "log_y" }

local function draw(list, o)
  local width, height = o.width or 720, o.height or 420
  local left, right, top, bottom = 72, 20, o.title and 44 or 20, o.x and 56 or 40
  local x0, x1 = range(list, "x", false)
  local y0, y1 = range(list, "y", o.log_y)
  local margin = (y1 - y0) * 0.04
  y0, y1 = y0 - margin, y1 + margin
  local function px(v) return left + (v - x0) / (x1 - x0) * (width - left - right) end
  local function py(v) return height - bottom - (v - y0) / (y1 - y0) * (height - top - bottom) end

  local out = {}
  local function add(text, ...) out[#out + 1] = text:format(...) end
  add('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
    .. 'font-family="sans-serif" font-size="12" fill="#222">', width, height, width, height)
  add('<rect width="%d" height="%d" fill="#fff"/>', width, height)
  if o.title then
    add('<text x="%d" y="26" font-size="16" text-anchor="middle">%s</text>', width // 2, escape(o.title))
  end

  local list_x, step_x = ticks(x0, x1, 8)
  for _, v in ipairs(list_x) do
    add('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#eee"/>', px(v), top, px(v), height - bottom)
    add('<text x="%.1f" y="%d" text-anchor="middle">%s</text>', px(v), height - bottom + 16, label(v, step_x))
  end
  local list_y, step_y = ticks(y0, y1, 6)
  for _, v in ipairs(list_y) do
    add('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#eee"/>', left, py(v), width - right, py(v))
    local text = o.log_y and ("%.3g"):format(10 ^ v) or label(v, step_y)
    add('<text x="%d" y="%.1f" text-anchor="end" dominant-baseline="middle">%s</text>', left - 8, py(v), text)
  end
  add('<path d="M%d %dV%dH%d" fill="none" stroke="#222"/>', left, top, height - bottom, width - right)
  if o.x then
    add('<text x="%d" y="%d" text-anchor="middle">%s</text>', (left + width - right) // 2, height - 14, escape(o.x))
  end
  if o.y then
    add('<text x="16" y="%d" text-anchor="middle" transform="rotate(-90 16 %d)">%s</text>',
      (top + height - bottom) // 2,
      (top + height - bottom) // 2, escape(o.y))
  end

  for i, s in ipairs(list) do
    local colour = colours[(i - 1) % #colours + 1]
    local path, pen_down = {}, false
    for k = 1, #s.y do
      local x, y = s.x[k], s.y[k]
      if finite(x) and finite(y) and not (o.log_y and y <= 0) then
        path[#path + 1] = ("%s%.2f %.2f"):format(pen_down and "L" or "M", px(x), py(o.log_y and math.log(y, 10) or y))
        pen_down = true
      else
        pen_down = false
      end
    end
    add('<path d="%s" fill="none" stroke="%s" stroke-width="1.6" stroke-linejoin="round" stroke-linecap="round"/>',
      table.concat(path), colour)
    local row = top + 12 + 18 * (i - 1)
    add('<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/>', width - right - 26, row,
      width - right - 6, row, colour)
    add('<text x="%d" y="%d" text-anchor="end" dominant-baseline="middle">%s</text>', width - right - 32, row,
      escape(s.name))
  end
  add("</svg>")
  return table.concat(out, "\n") .. "\n"
end

local methods = {}

--- The SVG text.
function methods:svg() return getmetatable(self).svg end

--- Writes the SVG file; returns the plot.
function methods:save(path)
  local other = util.path("plot:save", path):lower():match("%.(%a+)$")
  if other == "png" or other == "pdf" or other == "jpg" or other == "jpeg" then
    util.fail("E-ARG", "plot:save: writes SVG, not %s: name the file .svg", other:upper())
  end
  util.write("plot:save", path, self:svg())
  return self
end

--- neap.plot.line(series, {title = nil, x = nil, y = nil, width = 720, height = 420, log_y = false})
-- series: a list of numbers, or lists by name. x and y are the names of the axes. Returns an object with :save(path)
-- and :svg().
function plot.line(series, options)
  options = util.options("neap.plot.line", options, known)
  for _, name in ipairs({ "width", "height" }) do
    if options[name] ~= nil then util.integer("neap.plot.line", name, options[name], 100) end
  end
  return setmetatable({}, {
    __index = methods, __name = "neap.Plot", svg = draw(read_series(series, options.y), options),
    __tostring = function() return "plot: :save(path) writes it as SVG, :svg() is the text" end,
  })
end

return plot
