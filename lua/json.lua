--- JSON text of plain values, and back: what neap.save_state writes beside the tensors.
-- Tables with keys 1 ... n are arrays, tables with string keys objects; others are an error. Integers stay integers
-- and floats floats ("5" and "5.0"); nan and infinities are written as strings "nan", "inf", "-inf" in {"$float": ...}.
local util = require "neap.util"

local json = {}

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function string_text(s)
  return '"' .. s:gsub('[%c"\\]', function(ch) return escapes[ch] or ("\\u%04x"):format(ch:byte()) end) .. '"'
end

local function float_text(v)
  if v ~= v then return '{"$float": "nan"}' end
  if v == math.huge or v == -math.huge then return ('{"$float": "%s"}'):format(v > 0 and "inf" or "-inf") end
  local text = ("%.17g"):format(v)
  return text:find("[%.e]") and text or text .. ".0"
end

local encode

local function table_text(v, path, depth)
  if depth > 64 then util.fail("E-ARG", "%s: the table is nested too deeply, or holds itself", path) end
  local n, items = #v, {}
  local count = 0
  for _ in next, v do count = count + 1 end
  if count == n then
    for i = 1, n do items[i] = encode(v[i], path .. "." .. i, depth + 1) end
    return "[" .. table.concat(items, ", ") .. "]"
  end
  local names = {}
  for key in next, v do
    if type(key) ~= "string" then
      util.fail("E-ARG", "%s: a table must be a list or have names as keys, got the key %s", path, tostring(key))
    end
    names[#names + 1] = key
  end
  table.sort(names)
  for i, key in ipairs(names) do
    items[i] = string_text(key) .. ": " .. encode(v[key], path .. "." .. key, depth + 1)
  end
  return "{" .. table.concat(items, ", ") .. "}"
end

function encode(v, path, depth)
  local t = type(v)
  if t == "table" and getmetatable(v) == nil then return table_text(v, path, depth) end
  if t == "string" then return string_text(v) end
  if math.type(v) == "integer" then return tostring(v) end
  if t == "number" then return float_text(v) end
  if t == "boolean" then return tostring(v) end
  util.fail("E-ARG", "%s: %s cannot be saved; plain values, tensors and objects with state_dict can", path,
    util.kind(v))
end

--- The text of a value; `path` names it in errors.
function json.encode(value, path) return encode(value, path, 1) end

local decode

local function fail(path) util.fail("E-FORMAT", "%s does not hold the text of a saved state", path) end

local function skip(text, at) return text:find("[^ \t\r\n]", at) or #text + 1 end

local plain = { ["true"] = true, ["false"] = false }
local unescaped = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function decode_string(text, at, path)
  local parts = {}
  at = at + 1
  while true do
    local stop = text:find('["\\]', at)
    if not stop then fail(path) end
    parts[#parts + 1] = text:sub(at, stop - 1)
    if text:sub(stop, stop) == '"' then return table.concat(parts), stop + 1 end
    local ch = text:sub(stop + 1, stop + 1)
    at = stop + 2
    if ch == "u" then
      local hex = text:match("^%x%x%x%x", at)
      if not hex then fail(path) end
      parts[#parts + 1] = utf8.char(tonumber(hex, 16))
      at = at + 4
    else
      parts[#parts + 1] = unescaped[ch] or ch
    end
  end
end

-- The items between two brackets: one(at) reads one item and returns where it ended.
local function decode_items(text, at, close, path, one)
  at = skip(text, at + 1)
  if text:sub(at, at) == close then return at + 1 end
  while true do
    at = skip(text, one(at))
    local ch = text:sub(at, at)
    if ch == close then return at + 1 end
    if ch ~= "," then fail(path) end
    at = skip(text, at + 1)
  end
end

function decode(text, at, path, depth)
  if depth > 64 then fail(path) end
  at = skip(text, at)
  local ch = text:sub(at, at)
  if ch == '"' then return decode_string(text, at, path) end
  if ch == "[" then
    local list = {}
    return list, decode_items(text, at, "]", path, function(i)
      local v
      v, i = decode(text, i, path, depth + 1)
      list[#list + 1] = v
      return i
    end)
  end
  if ch == "{" then
    local object = {}
    at = decode_items(text, at, "}", path, function(i)
      if text:sub(i, i) ~= '"' then fail(path) end
      local key
      key, i = decode_string(text, i, path)
      i = skip(text, i)
      if text:sub(i, i) ~= ":" then fail(path) end
      object[key], i = decode(text, i + 1, path, depth + 1)
      return i
    end)
    if object["$float"] then
      return tonumber(object["$float"]) or ({ nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge })[object["$float"]],
        at
    end
    return object, at
  end
  local word = text:match("^%a+", at)
  if word and plain[word] ~= nil then return plain[word], at + #word end
  local number = text:match("^-?%d[%d%.eE+-]*", at)
  local value = number and (math.tointeger(number:match("^-?%d+$") and tonumber(number)) or tonumber(number))
  if not value then fail(path) end
  return value, at + #number
end

--- The value of a text; `path` names the file in errors.
function json.decode(text, path)
  local value, at = decode(text, 1, path, 1)
  if skip(text, at) <= #text then fail(path) end
  return value
end

return json
