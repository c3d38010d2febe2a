--- neap.summary: what a model consists of, module by module, and what one forward pass makes.
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local function shape_of(v)
  if neap.is_tensor(v) then return v.ndim == 0 and "number" or tostring(v.shape) end
  if type(v) ~= "table" or module.is_module(v) then return type(v) end
  local list = {}
  for i, x in ipairs(v) do list[i] = shape_of(x) end
  return "{" .. table.concat(list, ", ") .. "}"
end

-- A module's own parameters, without those of the modules below: elements and bytes.
local function own_parameters(m, seen)
  local elements, bytes = 0, 0
  for name, p in m:named_parameters() do
    if not name:find(".", 1, true) and not seen[p] then
      seen[p] = true
      elements, bytes = elements + p:numel(), bytes + p:numel() * neap.dtypes[p.dtype]
    end
  end
  return elements, bytes
end

-- Runs fn while every call of a module of the list notes its result in note(module, results).
local function watch(modules, note, fn)
  local plain = {}
  local _ <close> = setmetatable({}, { __close = function()
    for m, call in pairs(plain) do getmetatable(m).__call = call end
  end })
  for _, m in ipairs(modules) do
    local mt = getmetatable(m)
    local call = mt.__call
    plain[m] = call
    mt.__call = function(...)
      local results = table.pack(call(...))
      note(m, results)
      return table.unpack(results, 1, results.n)
    end
  end
  fn()
end

local function text_of(s)
  local heads = { "module", "output", "parameters" }
  local cells = { heads }
  for _, row in ipairs(s.rows) do
    cells[#cells + 1] = { ("  "):rep(row.depth) .. row.name .. row.class, row.output or "",
      row.parameters > 0 and tostring(row.parameters) or "" }
  end
  local lines, rule = util.columns(cells, 2)
  lines[#lines + 1] = rule
  lines[#lines + 1] = ("%d parameters, %d of them trained, %s"):format(s.parameters, s.trained, util.bytes(s.bytes))
  if s.saved then
    lines[#lines + 1] = ("a forward pass keeps %s for backward, at most %s at once beside the parameters"):format(
      util.bytes(s.saved), util.bytes(s.peak))
  end
  return table.concat(lines, "\n")
end

local mt = { __tostring = text_of, __name = "neap.Summary" }

-- What one forward pass with gradients keeps and takes at most, in exact bytes.
local function measure(s, model, modules, rows, inputs)
  local scope <close> = neap.scope_begin()
  local before = neap.memory_stats()
  neap.reset_peak()
  local results
  watch(modules, function(m, list)
    local row = rows[m]
    if row and not row.output then
      local texts = {}
      for i = 1, list.n do texts[i] = shape_of(list[i]) end
      row.output = table.concat(texts, ", ")
    end
  end, function() results = table.pack(model(table.unpack(inputs, 1, inputs.n))) end)
  local after = neap.memory_stats()
  s.saved, s.peak = after.live - before.live, after.peak - before.live
  results.n = 0
  return neap.scope_end(scope)
end

--- neap.summary(model, inputs...)
-- A table that prints as one: every module with its class, its own parameters and, where inputs are given, the shape of
-- what it returned. Inputs: the arguments of one forward pass, which is run as it stands (training mode, statistics and
-- random numbers included). Fields: rows (name, class, depth, parameters, output), parameters, trained, bytes; with
-- inputs saved and peak, in bytes: what the pass keeps, and the most it holds at once. print(neap.summary(model, x))
local function summary(model, ...)
  if not module.is_module(model) then util.fail("E-ARG", "neap.summary: needs a module, got %s", util.kind(model)) end
  local s = setmetatable({ rows = {}, parameters = 0, trained = 0, bytes = 0 }, mt)
  local seen, rows, modules = {}, {}, {}
  for name, m in model:named_modules() do
    local parent, last = name:match("^(.*)%.([^.]+)$")
    local elements, bytes = own_parameters(m, seen)
    local row = { name = name == "" and "" or (last or name) .. ": ", class = m.class_name, parameters = elements,
      depth = name == "" and 0 or 1 + select(2, name:gsub("%.", "")), path = name, parent = parent }
    s.rows[#s.rows + 1], rows[m], modules[#modules + 1] = row, row, m
    s.bytes = s.bytes + bytes
    s.parameters = s.parameters + elements
  end
  for _, p in ipairs(model:parameters()) do
    if p.requires_grad then s.trained = s.trained + p:numel() end
  end
  if select("#", ...) > 0 then measure(s, model, modules, rows, table.pack(...)) end
  return s
end

return summary
