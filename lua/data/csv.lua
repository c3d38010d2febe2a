--- CSV files as columns.
local neap = require "neap"
local util = require "neap.util"

local methods = {}

-- The column called `name` (or of that number).
local function column(self, name)
  local mt = getmetatable(self)
  local value = mt.columns[mt.index[name] or name]
  if value ~= nil then return value end
  local near = type(name) == "string" and util.nearest(name, mt.names)
  util.fail("E-INDEX", "data.csv: no column %s in %d columns%s", type(name) == "string" and "'" .. name .. "'"
    or tostring(name), #mt.columns, near and ("; did you mean '%s'?"):format(near) or "")
end

--- The columns of these names or numbers, all of them by default, as one tensor (rows, columns).
function methods:tensor(names)
  local mt = getmetatable(self)
  local list = {}
  if names == nil then
    for k in ipairs(mt.columns) do list[k] = k end
  elseif type(names) == "table" then
    list = names
  else
    util.fail("E-ARG", "csv:tensor: needs a list of column names, got %s", util.kind(names))
  end
  if #list == 0 then util.fail("E-ARG", "csv:tensor: the list of columns is empty") end
  local parts = {}
  for i, name in ipairs(list) do
    parts[i] = column(self, name)
    if not neap.is_tensor(parts[i]) then
      util.fail("E-ARG", "csv:tensor: column '%s' is text; csv.%s is a list of strings", tostring(name), tostring(name))
    end
  end
  return neap.stack(parts, 2)
end

local function head_of(self)
  local mt = getmetatable(self)
  local names = {}
  for k, value in ipairs(mt.columns) do
    names[k] = tostring(mt.names and mt.names[k] or k) .. (neap.is_tensor(value) and "" or " (text)")
  end
  return ("csv of %d rows: %s"):format(mt.rows, table.concat(names, ", "))
end

--- data.csv(path, {header = true, separator = ",", dtype = nil}) -> csv
-- csv.NAME (or csv[k]) is a column: a tensor (rows) of the dtype, by default the default one, where every cell is a
-- number (an empty cell and NA are NaN); else a list of strings. csv.names: the list of names, nil without a header;
-- #csv: the number of rows; csv:tensor{"a", "b"}: columns as one tensor (rows, 2). Cells in quotes may hold separators
-- and line ends (RFC 4180); all lines have as many cells as the first.
local function csv(path, options)
  util.path("data.csv", path)
  options = util.options("data.csv", options, { "header", "separator", "dtype" })
  local separator = options.separator or ","
  if type(separator) ~= "string" or #separator ~= 1 then
    util.fail("E-ARG", "data.csv: separator must be one character, got %s", util.kind(separator))
  end
  local columns, names, rows = neap.read_csv(path, separator, options.header ~= false,
    options.dtype or neap.zeros(0).dtype)
  local index = {}
  for k, name in ipairs(names or {}) do
    if index[name] then
      util.fail("E-FORMAT", "data.csv: %s has two columns called '%s'; read it with header = false", path, name)
    end
    index[name] = k
  end
  return setmetatable({}, {
    columns = columns, names = names, index = index, rows = rows, __name = "neap.CSV",
    __len = function() return rows end,
    __tostring = head_of,
    __index = function(self, key)
      if index[key] then return columns[index[key]] end
      if key == "names" then return names end
      return methods[key] or column(self, key)
    end,
    __newindex = function(_, key) util.fail("E-ARG", "data.csv: field '%s' cannot be set", tostring(key)) end,
  })
end

return csv
