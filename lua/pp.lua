--- neap.pp(value): prints nested tables, keys sorted, cycles marked. `neap.pp.text` returns the text.
local util = require "neap.util"

local function sorted_keys(t)
  local keys = {}
  for k in next, t do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return ta < tb end
    if ta == "number" or ta == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function scalar(v)
  if type(v) == "string" then return (("%q"):format(v):gsub("\\\n", "\\n")) end
  return tostring(v)
end

local function key_text(k)
  if type(k) == "string" and k:match("^[%a_][%w_]*$") then return k end
  return "[" .. scalar(k) .. "]"
end

local function plain(v)
  local mt = type(v) == "table" and debug.getmetatable(v)
  return type(v) == "table" and not (mt and mt.__tostring)
end

local function render(v, options, depth, path)
  if not plain(v) then return scalar(v) end
  if path[v] then return "<cycle>" end
  if next(v) == nil then return "{}" end
  if depth >= options.depth then return "{...}" end
  path[v] = true
  local items, n = {}, #v
  for _, k in ipairs(sorted_keys(v)) do
    if #items == options.items then
      items[#items + 1] = "..."
      break
    end
    local text = render(v[k], options, depth + 1, path)
    local in_list = math.type(k) == "integer" and k >= 1 and k <= n
    items[#items + 1] = in_list and text or key_text(k) .. " = " .. text
  end
  path[v] = nil
  local line = "{" .. table.concat(items, ", ") .. "}"
  if #line + 2 * depth <= options.width and not line:find("\n", 1, true) then return line end
  local pad = ("  "):rep(depth + 1)
  return "{\n" .. pad .. table.concat(items, ",\n" .. pad) .. "\n" .. ("  "):rep(depth) .. "}"
end

local pp = {}

--- The text that neap.pp prints. Options: depth = 6, width = 100, items = 200 (per table).
function pp.text(value, options)
  options = util.options("neap.pp", options, { "depth", "width", "items" })
  local filled = { depth = options.depth or 6, width = options.width or 100, items = options.items or 200 }
  return render(value, filled, 0, {})
end

return setmetatable(pp, {
  __call = function(_, value, options) print(pp.text(value, options)) end,
})
