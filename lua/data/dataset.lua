--- Datasets: objects with a length that give one sample by position or a batch by positions.
--
-- A dataset has `n`, `sample(i)` -> values and `batch(ids, list)` -> tensors, where ids is an int64 tensor of
-- positions from 1 and list the same positions as Lua numbers (made only when asked for: list()).
local neap = require "neap"
local util = require "neap.util"

local dataset = {}
local methods = setmetatable({}, {
  __index = function(_, key)
    if math.type(key) then util.fail("E-ARG", "dataset: sample %s is d:get(%s)", key, key) end
  end,
})

--- The values of sample i (from 1; negative from the end).
function methods:get(i)
  local n = #self
  i = util.integer("dataset:get", "the position", i)
  local at = i < 0 and n + 1 + i or i
  if at < 1 or at > n then
    util.fail("E-INDEX", "dataset:get: position %d is outside 1 to %d (positions count from 1)", i, n)
  end
  return getmetatable(self).sample(at)
end

local function object(n, sample, batch, fields)
  return setmetatable(fields, {
    __index = methods, __len = function() return n end, __name = "neap.Dataset", n = n, sample = sample, batch = batch,
    __tostring = function() return ("dataset of %d samples"):format(n) end,
  })
end

--- The parts that the loader uses, or an error.
function dataset.parts(who, d)
  local mt = type(d) == "table" and getmetatable(d)
  if not mt or mt.__name ~= "neap.Dataset" then
    util.fail("E-ARG", "%s: needs a dataset, got %s; data.tensors(x, y) and data.dataset(n, fn) make one", who,
      util.kind(d))
  end
  return mt
end

--- data.tensors(x, y, ...): sample i is x[i], y[i], ...; all have the same length. `d.tensors` is the list.
function dataset.tensors(...)
  local list = { ... }
  if select("#", ...) == 0 then util.fail("E-ARG", "data.tensors: needs at least one tensor") end
  for i = 1, select("#", ...) do
    local t = list[i]
    if not neap.is_tensor(t) then
      util.fail("E-ARG", "data.tensors: argument %d must be a tensor, got %s", i, util.kind(t))
    end
    if t.ndim == 0 then util.fail("E-SHAPE", "data.tensors: argument %d is a single number and has no samples", i) end
    if #t ~= #list[1] then
      util.fail("E-SHAPE", "data.tensors: argument %d has %d samples, the first has %d", i, #t, #list[1])
    end
    neap.own(t)
  end
  local function each(take)
    local out = {}
    for i, t in ipairs(list) do out[i] = take(t) end
    return table.unpack(out)
  end
  local function batch(ids)
    local on = { [ids.device] = ids } -- the positions, where each tensor is
    return each(function(t)
      local device = t.device
      on[device] = on[device] or ids:to(device)
      return t:index_select(1, on[device])
    end)
  end
  return object(#list[1], function(i) return each(function(t) return t[i] end) end, batch, { tensors = list })
end

-- One tensor out of the samples' k-th values: tensors are stacked, numbers and booleans become a vector.
local function collate(k, values)
  if neap.is_tensor(values[1]) then return neap.stack(values, 1) end
  local t = type(values[1])
  if t ~= "number" and t ~= "boolean" then
    util.fail("E-ARG", "data.dataset: value %d of a sample is %s; a sample is made of tensors and numbers", k,
      util.kind(values[1]))
  end
  return neap.tensor(values)
end

--- data.dataset(n, fn): sample i is fn(i): tensors or numbers.
function dataset.dataset(n, fn)
  n = util.integer("data.dataset", "the number of samples", n, 0)
  if not util.callable(fn) then
    util.fail("E-ARG", "data.dataset: needs a function of the position, got %s", util.kind(fn))
  end
  local function batch(_, list)
    return neap.scope(function()
      local columns, width = {}, nil
      for row, i in ipairs(list()) do
        local values = table.pack(fn(i))
        width = width or values.n
        if values.n ~= width then
          util.fail("E-ARG", "data.dataset: sample %d has %d values, the others of its batch %d", i, values.n, width)
        end
        for k = 1, width do
          columns[k] = columns[k] or {}
          columns[k][row] = values[k]
        end
      end
      for k = 1, width do columns[k] = collate(k, columns[k]) end
      return table.unpack(columns, 1, width)
    end)
  end
  return object(n, fn, batch, {})
end

return dataset
