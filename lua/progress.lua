--- A progress bar on stderr: for x, y in neap.progress(batches, {desc = "epoch 1"}) do bar:set{loss = loss} end
-- On a terminal one line is redrawn at most ten times a second; elsewhere a plain line is printed every ten
-- seconds and at the end. Metrics may be tensors: they are read only when a line is drawn.
local neap = require "neap"
local util = require "neap.util"

-- Is stderr a terminal? Asked once.
local terminal
local function on_terminal()
  if terminal == nil then
    terminal = neap.isatty(2)
  end
  return terminal
end

local function width()
  local columns = neap.terminal_width(2) or tonumber(os.getenv("COLUMNS"))
  return columns and columns > 20 and columns // 1 or 80
end

local function duration(seconds)
  if seconds ~= seconds or seconds == math.huge then return "?" end
  local s = math.floor(seconds + 0.5)
  if s >= 3600 then return ("%d:%02d:%02d"):format(s // 3600, s // 60 % 60, s % 60) end
  return ("%d:%02d"):format(s // 60, s % 60)
end

local function rate_text(rate)
  if rate >= 100 then return ("%.0f/s"):format(rate) end
  if rate >= 1 or rate == 0 then return ("%.1f/s"):format(rate) end
  return ("%.1f s each"):format(1 / rate)
end

local function metric_text(v)
  if neap.is_tensor(v) then v = v:item() end
  if math.type(v) == "float" then return ("%.4g"):format(v) end
  return tostring(v)
end

local methods = {}

local function line(h, room)
  local spent = neap.clock() - h.started
  local rate = spent > 0 and h.count / spent or 0
  local parts = {}
  for _, name in ipairs(h.names) do parts[#parts + 1] = name .. " " .. metric_text(h.metrics[name]) end
  local tail = #parts > 0 and "  " .. table.concat(parts, "  ") or ""
  local head = h.desc and h.desc .. "  " or ""
  if not h.total then
    return ("%s%d  %s  %s%s"):format(head, h.count, rate_text(rate), duration(spent), tail)
  end
  local share = h.total > 0 and math.min(1, h.count / h.total) or 1
  local left = rate > 0 and (h.total - h.count) / rate or math.huge
  local facts = ("%d/%d  %s  %s%s%s"):format(h.count, h.total, rate_text(rate), duration(spent),
    h.count < h.total and " +" .. duration(left) or "", tail)
  local bar = ("%s%3d%% "):format(head, math.floor(share * 100))
  local cells = math.min(30, room - #bar - #facts - 3)
  if cells >= 5 then
    local full = math.floor(share * cells + 1e-9)
    bar = bar .. "[" .. ("="):rep(full) .. (" "):rep(cells - full) .. "] "
  end
  return bar .. facts
end

local function draw(h, last)
  local now = neap.clock()
  if not last and now - h.drawn < (h.terminal and 0.1 or 10) then return end
  h.drawn = now
  if h.terminal then
    local room = width() - 1
    local text = line(h, room):sub(1, room)
    local pad = math.max(0, h.shown - #text)
    h.shown = #text
    io.stderr:write("\r", text, (" "):rep(pad), last and "\n" or "")
  else
    io.stderr:write(line(h, 100), "\n")
  end
  io.stderr:flush()
end

--- Shows these values behind the bar; order of first appearance, then by name.
function methods:set(metrics)
  local h = getmetatable(self).hidden
  if type(metrics) ~= "table" or neap.is_tensor(metrics) then
    util.fail("E-ARG", "bar:set: needs a table such as {loss = loss}, got %s", util.kind(metrics))
  end
  local new = {}
  for name, value in pairs(metrics) do
    local first = h.metrics[name] == nil
    if first then new[#new + 1] = tostring(name) end
    -- Read at once, since a tensor may be released before the line is drawn, but only when a line is due.
    if neap.is_tensor(value) then
      local due = first or neap.clock() - h.drawn >= (h.terminal and 0.1 or 10)
      value = due and value:item() or h.metrics[name]
    end
    h.metrics[name] = value
  end
  table.sort(new)
  for _, name in ipairs(new) do h.names[#h.names + 1] = name end
  draw(h, false)
end

--- One item more (or n) is done; the loop form does this itself.
function methods:step(n)
  local h = getmetatable(self).hidden
  h.count = h.count + (n or 1)
  draw(h, false)
end

--- Draws the line a last time. Happens by itself when the loop runs to its end.
function methods:close()
  local h = getmetatable(self).hidden
  if not h.closed then
    h.closed = true
    draw(h, true)
  end
end

-- The next item's values pass through; counting happens when the one before is done.
local function advance(h, self, first, ...)
  if first == nil then
    self:close()
    return nil
  end
  h.fetched = true
  return first, ...
end

local function iterator(what, total)
  if type(what) == "number" then
    local n = util.integer("neap.progress", "the number of items", what, 0)
    local i = 0
    return function()
      i = i + 1
      if i <= n then return i end
      return nil
    end, n
  end
  local mt = type(what) == "table" and getmetatable(what)
  if mt and mt.__name == "neap.Loader" then
    return what:each(), #what - what:state_dict().position
  end
  if type(what) == "function" then return what, total end
  if type(what) == "table" and not mt then
    local i = 0
    return function()
      i = i + 1
      if what[i] ~= nil then return what[i], i end
      return nil
    end, #what
  end
  util.fail("E-ARG", "neap.progress: needs a loader, a number, a list or an iterator function, got %s", util.kind(what))
end

--- neap.progress(what, {desc = nil, total = nil}): an iterator with a bar.
return function(what, options)
  options = util.options("neap.progress", options, { "desc", "total" })
  local next_item, total = iterator(what, options.total)
  if options.total ~= nil then total = util.integer("neap.progress", "total", options.total, 0) end
  local h = {
    desc = options.desc, total = total, count = 0, started = neap.clock(), drawn = -math.huge, shown = 0,
    metrics = {}, names = {}, terminal = on_terminal(), closed = false, fetched = false,
  }
  if not h.terminal then h.drawn = h.started end
  return setmetatable({}, {
    __index = methods, __name = "neap.Progress", hidden = h, __close = function(self) self:close() end,
    __tostring = function() return ("progress: %d of %s"):format(h.count, h.total or "?") end,
    __call = function(self, _, control)
      if h.fetched then
        h.count = h.count + 1
        draw(h, false)
      end
      return advance(h, self, next_item(nil, control))
    end,
  })
end
