--- What the Lua files of Neap share: errors that name the user's line, option tables, near names.
-- Requires nothing, so every other file may require it first.
local util = {}

-- The folder of the library as Lua names it: frames whose source begins with it are ours, not the user's.
local prefix = debug.getinfo(1, "S").source:match("^(.*)util%.lua$") or "=neap"
util.prefix = prefix

--- "file:line: " of the innermost frame outside the library, or "".
function util.where()
  local level = 2
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then return "" end
    if info.currentline > 0 and info.source:sub(1, #prefix) ~= prefix then
      return ("%s:%d: "):format(info.short_src, info.currentline)
    end
    level = level + 1
  end
end

-- Set by neap.nn.module: which module runs.
util.module_path = nil

--- Raises "file:line: text [CODE]" with the line of the user's call.
-- @param code an error code such as "E-ARG"
-- @param text a format string: what, values, rule, remedy
function util.fail(code, text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  text = text:gsub("%c", "?") -- one line, whatever string of the script is quoted
  local inside = util.module_path and util.module_path() or ""
  error(("%s%s%s [%s]"):format(util.where(), text, inside, code), 0)
end

-- Optimal string alignment distance, given up above `limit`.
local function distance(a, b, limit)
  local n, m = #a, #b
  if math.abs(n - m) > limit then return limit + 1 end
  local before, previous, current = {}, {}, {}
  for j = 0, m do previous[j] = j end
  for i = 1, n do
    current[0] = i
    for j = 1, m do
      local same = a:byte(i) == b:byte(j)
      local best = math.min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        best = math.min(best, before[j - 2] + 1)
      end
      current[j] = best
    end
    before, previous, current = previous, current, before
  end
  return previous[m]
end

--- The name in a list (or among the string keys of a table) nearest to `name`, or nil when none is near. Of equally
-- near ones it is one that begins with `name`.
function util.nearest(name, names)
  local limit = #name > 1 and math.max(1, #name // 3) or 0.5 -- one letter: no other letter is near
  local best, best_distance
  local function try(candidate)
    if type(candidate) ~= "string" then return end
    local d = distance(name:lower(), candidate:lower(), limit)
    if candidate:sub(1, #name) == name then d = d - 0.5 end
    if d <= limit and (not best or d < best_distance or (d == best_distance and candidate < best)) then
      best, best_distance = candidate, d
    end
  end
  if #names > 0 then
    for _, candidate in ipairs(names) do try(candidate) end
  else
    for candidate in pairs(names) do try(candidate) end
  end
  return best
end

local none = setmetatable({}, { __newindex = function() error("an option table is never changed", 2) end })

--- A path for io.open, which would take a 0 byte for its end.
function util.path(who, path)
  if type(path) ~= "string" or path == "" then util.fail("E-ARG", "%s: needs a path, got %s", who, util.kind(path)) end
  if path:find("\0", 1, true) then
    util.fail("E-ARG", "%s: the path holds a 0 byte after '%s'", who, path:match("^[^\0]*"))
  end
  return path
end

--- Writes a whole file, or raises E-IO.
function util.write(who, path, text)
  util.path(who, path)
  local file, why = io.open(path, "wb")
  if not file then util.fail("E-IO", "%s: cannot open %s", who, why) end
  local ok, trouble = file:write(text)
  if ok then
    ok, trouble = file:close()
  else
    file:close()
  end
  if not ok then util.fail("E-IO", "%s: cannot write %s: %s", who, path, tostring(trouble)) end
end

--- "1.5 KiB"
function util.bytes(n)
  if math.abs(n) < 1024 then return ("%d B"):format(n) end
  if math.abs(n) < 1 << 20 then return ("%.1f KiB"):format(n / 1024) end
  return ("%.1f MiB"):format(n / (1 << 20))
end

--- The lines of a table out of rows of cells, heads first: `left` columns stand left, the others right. Under the
-- heads is a rule, which is the second result.
function util.columns(rows, left)
  local widths, lines, total = {}, {}, 0
  for _, row in ipairs(rows) do
    for c, cell in ipairs(row) do widths[c] = math.max(widths[c] or 0, utf8.len(cell) or #cell) end
  end
  for c = 1, #widths do total = total + widths[c] + (c > 1 and 2 or 0) end
  for i, row in ipairs(rows) do
    local cells = {}
    for c, cell in ipairs(row) do
      local pad = (" "):rep(widths[c] - (utf8.len(cell) or #cell))
      cells[c] = c <= left and cell .. pad or pad .. cell
    end
    lines[i] = table.concat(cells, "  "):gsub(" +$", "")
  end
  local rule = ("-"):rep(total)
  table.insert(lines, 2, rule)
  return lines, rule
end

--- Checks an option table: a table with string keys among `known`. Returns it, or an empty one for nil.
-- @param who the function's name for messages
-- @param known a list of the option names
function util.options(who, options, known)
  if options == nil then return none end
  if type(options) ~= "table" then
    util.fail("E-ARG", "%s: options must be a table such as {%s = ...}, got %s", who, known[1] or "",
      util.kind(options))
  end
  for key in pairs(options) do
    if type(key) ~= "string" then
      util.fail("E-ARG",
        "%s: an option table has names as keys only, got the key %s; data and options never share a table",
        who, tostring(key))
    end
    local found = false
    for i = 1, #known do found = found or known[i] == key end
    if not found then
      local near = util.nearest(key, known)
      local here = require("neap.translate").text("options", key)
      if here then util.fail("E-UNKNOWN-OPTION", "%s: unknown option '%s'%s", who, key, here) end
      util.fail("E-UNKNOWN-OPTION", "%s: unknown option '%s'; %s", who, key,
        near and ("did you mean '%s'?"):format(near) or "options are: " .. table.concat(known, ", "))
    end
  end
  return options
end

--- Makes a table of public functions answer for names it does not have, and printable. What its metatable says stays.
-- @param name what scripts call it: "neap", "nn"
-- @param other name -> where it is instead: a function of the missing name, or nil
-- @param hidden names that are never suggested
function util.part(name, t, other, hidden)
  local mt = getmetatable(t) or {}
  local fetch = mt.__index
  function mt.__index(self, key)
    local value = fetch and fetch(self, key)
    if value ~= nil or type(key) ~= "string" or key:find("^_") then return value end
    local here = require("neap.translate").text("names", key)
    if here then util.fail("E-ARG", "%s.%s: there is no such function%s", name, key, here) end
    local near = other and other(key)
    if not near then
      local names = {}
      for k in next, t do
        if not (hidden and hidden[k]) then names[#names + 1] = k end
      end
      near = util.nearest(key, names)
      near = near and name .. "." .. near
    end
    util.fail("E-ARG", "%s.%s: there is no such function%s", name, key,
      near and ("; did you mean %s?"):format(near) or "")
  end
  mt.__tostring = mt.__tostring or function()
    local names = {}
    for k in next, t do names[#names + 1] = tostring(k) end
    table.sort(names)
    if #names > 12 then return ("%s: ?%s at the prompt lists what is in it"):format(name, name) end
    return name .. ": " .. table.concat(names, ", ")
  end
  return setmetatable(t, mt)
end

--- The first name among the elements of a list, where it would be lost; nil: there is none. table.pack's n is none.
function util.stray_name(list)
  for key in pairs(list) do
    if type(key) == "string" and key ~= "n" then return key end
  end
end

--- The type of a value in words a person uses: "a tensor", "nil", "a table".
function util.kind(v)
  local t = type(v)
  if t == "nil" then return "nil" end
  local mt = debug.getmetatable(v)
  if t == "userdata" and mt and mt.__name == "neap.Tensor" then return "a tensor" end
  if t == "table" and mt and mt.neap_module then return "a module" end
  if t == "number" or t == "string" and #v < 40 then
    return ("the %s %s"):format(t, t == "string" and ("%q"):format(v) or v)
  end
  return "a " .. t
end

--- Can it be called?
function util.callable(v)
  if type(v) == "function" then return true end
  local mt = debug.getmetatable(v)
  return mt ~= nil and mt.__call ~= nil and type(v) ~= "string"
end

--- A whole number from an integer or an integral float; otherwise an error that names the argument.
function util.integer(who, what, v, least)
  local n = math.type(v) and math.tointeger(v)
  if not n or least and n < least then
    util.fail("E-ARG", "%s: %s must be a whole number%s, got %s", who, what,
      least and (" of at least %d"):format(least) or "", util.kind(v))
  end
  return n
end

--- A number; otherwise an error that names the argument.
function util.number(who, what, v)
  if type(v) ~= "number" then util.fail("E-ARG", "%s: %s must be a number, got %s", who, what, util.kind(v)) end
  return v
end

return util
