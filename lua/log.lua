--- Logs of numbers by step: neap.log.csv(path) and neap.log.jsonl(path).
-- Every record is flushed; an existing file is continued. log:write{step = 1, loss = l}: numbers, strings,
-- booleans and tensors of one element. Called, neap.log(x) is the natural logarithm.
local neap = require "neap"
local logarithm = require("neapcore").log
local util = require "neap.util"

local log = {}

local function plain(who, key, v)
  if neap.is_tensor(v) then
    if v:numel() ~= 1 then
      util.fail("E-ARG", "%s: '%s' is a tensor of %s; log numbers or tensors of one element", who, key,
        tostring(v.shape))
    end
    return v:item()
  end
  local t = type(v)
  if t ~= "number" and t ~= "string" and t ~= "boolean" then
    util.fail("E-ARG", "%s: '%s' is %s; log numbers, strings, booleans or tensors of one element", who, key,
      util.kind(v))
  end
  return v
end

local function sorted_names(who, record)
  if type(record) ~= "table" or neap.is_tensor(record) then
    util.fail("E-ARG", "%s: needs a table such as {step = 1, loss = l}, got %s", who, util.kind(record))
  end
  local names = {}
  for key in pairs(record) do
    if type(key) ~= "string" then util.fail("E-ARG", "%s: names are strings, got the key %s", who, tostring(key)) end
    names[#names + 1] = key
  end
  -- `step` and `epoch` lead, the others follow by name.
  local rank = { step = 1, epoch = 2 }
  table.sort(names, function(a, b)
    local ra, rb = rank[a] or 3, rank[b] or 3
    if ra ~= rb then return ra < rb end
    return a < b
  end)
  return names
end

-- The shortest decimal text that reads back as the same number.
local function number_text(v)
  if math.type(v) == "integer" then return tostring(v) end
  for digits = 6, 17 do
    local text = ("%." .. digits .. "g"):format(v)
    if tonumber(text) == v then return text end
  end
  return tostring(v)
end

local function open(who, path, mode)
  util.path(who, path)
  local file, why = io.open(path, mode)
  if not file then util.fail("E-IO", "%s: cannot open %s", who, why) end
  return file
end

local function write(who, path, file, text)
  local ok, why = file:write(text)
  if ok then ok, why = file:flush() end
  if not ok then util.fail("E-IO", "%s: cannot write %s: %s", who, path, tostring(why)) end
end

local function object(file, write_record)
  local self = { write = write_record }
  function self.close()
    if file then
      file:close()
      file = nil
    end
  end
  return setmetatable(self, { __close = self.close, __gc = self.close, __name = "neap.Log",
    __tostring = function() return "log: :write{step = 1, loss = l} adds a record, :close() ends it" end })
end

local function csv_field(v)
  if type(v) == "number" then return number_text(v) end
  local text = tostring(v)
  if text:find('[,"\r\n]') then text = '"' .. text:gsub('"', '""') .. '"' end
  return text
end

local function read_header(path)
  local file = io.open(path, "rb")
  local line = file and file:read("l")
  if file then file:close() end
  if not line or line == "" then return nil end
  local names = {}
  for name in (line:gsub("\r$", "") .. ","):gmatch("([^,]*),") do names[#names + 1] = name end
  return names
end

--- A CSV file. The first record names the columns (sorted, step and epoch first); later ones may leave some out.
function log.csv(path)
  local who = "neap.log.csv"
  local names = type(path) == "string" and read_header(path) or nil
  local file = open(who, path, "ab")
  return object(file, function(_, record)
    local given = sorted_names(who, record)
    local head = ""
    if not names then
      names = given
      local quoted = {}
      for i, name in ipairs(names) do quoted[i] = csv_field(name) end
      head = table.concat(quoted, ",") .. "\n"
    end
    local known, fields = {}, {}
    for i, name in ipairs(names) do
      known[name] = true
      fields[i] = record[name] == nil and "" or csv_field(plain(who, name, record[name]))
    end
    for _, name in ipairs(given) do
      if not known[name] then
        util.fail("E-ARG", "%s: '%s' is not a column of %s; its columns are %s", who, name, path,
          table.concat(names, ", "))
      end
    end
    write(who, path, file, head .. table.concat(fields, ",") .. "\n")
  end)
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function json_text(v)
  if type(v) == "string" then
    return '"' .. v:gsub('[%c"\\]', function(ch) return escapes[ch] or ("\\u%04x"):format(ch:byte()) end) .. '"'
  end
  if type(v) == "number" then
    -- JSON has no infinity and no nan.
    if v ~= v or v == math.huge or v == -math.huge then return "null" end
    return number_text(v)
  end
  return tostring(v)
end

--- One JSON object a line; names sorted, step and epoch first.
function log.jsonl(path)
  local who = "neap.log.jsonl"
  local file = open(who, path, "ab")
  return object(file, function(_, record)
    local items = {}
    for i, name in ipairs(sorted_names(who, record)) do
      items[i] = json_text(name) .. ": " .. json_text(plain(who, name, record[name]))
    end
    write(who, path, file, "{" .. table.concat(items, ", ") .. "}\n")
  end)
end

return setmetatable(log, { __call = function(_, ...) return logarithm(...) end })
