--- Modules: tables that know their parameters, buffers and submodules in the order of assignment.
--
-- An instance is an empty proxy; its fields live in a store that its metatable holds. So every assignment
-- passes `assign`, which records the order and takes tensors out of the handle scopes (a module field keeps
-- what it is given), while a read is two plain table look-ups. Calling a module is Lua to Lua: no C frame lies
-- under forward. What counts as registered is decided by value when the fields are walked: a tensor marked
-- by nn.Parameter or nn.Buffer, a module, or a plain list of these.
local neap = require "neap"
local util = require "neap.util"

local scope_begin, scope_end, is_tensor, own = neap.scope_begin, neap.scope_end, neap.is_tensor, neap.own

-- Which handles are parameters and which are buffers.
local kinds = setmetatable({}, { __mode = "k" })

local M = {}

--- Marks a tensor as a parameter: it requires a gradient and registers when it becomes a module field.
-- A tensor that was computed is detached first. Options: requires_grad = true.
function M.Parameter(t, options)
  options = util.options("nn.Parameter", options, { "requires_grad" })
  if not is_tensor(t) then util.fail("E-ARG", "nn.Parameter: needs a tensor, got %s", util.kind(t)) end
  if not t.is_leaf then t = t:detach() end
  if options.requires_grad ~= false then t.requires_grad = true end
  neap.set_category(t, "param")
  kinds[t] = "parameter"
  return own(t)
end

--- Marks a tensor as a buffer: part of the state, moved and saved with the module, without a gradient.
function M.Buffer(t)
  if not is_tensor(t) then util.fail("E-ARG", "nn.Buffer: needs a tensor, got %s", util.kind(t)) end
  if not t.is_leaf then t = t:detach() end
  neap.set_category(t, "param")
  kinds[t] = "buffer"
  return own(t)
end

local function meta(v)
  local mt = type(v) == "table" and getmetatable(v)
  return mt and mt.neap_module and mt or nil
end

--- Is it an instance of a module class (or a wrapped one)?
function M.is_module(v) return meta(v) ~= nil end

-- The module behind its wrappers.
local function unwrap(v)
  local mt = meta(v)
  while mt and mt.inner do
    v = mt.inner
    mt = meta(v)
  end
  return v
end

local function fields_of(self, method)
  local mt = meta(unwrap(self))
  if not mt then
    util.fail("E-ARG", "%s: needs a module before the colon, got %s; write model:%s(...)", method, util.kind(self),
      method)
  end
  return mt
end

-- A plain list or table is looked into; one with a metatable is the user's own affair.
local function plain(v) return type(v) == "table" and getmetatable(v) == nil end

local function refuse_named(key, inner)
  util.fail("E-ARG", "module field '%s': a module under the name '%s' of a plain table does not register; "
    .. "give it a field of its own, or put it in a list", tostring(key), tostring(inner))
end

-- Takes every tensor in a value out of the open scopes.
local function keep_for_good(key, value, depth)
  if is_tensor(value) then
    own(value)
  elseif plain(value) and depth < 8 then
    for k, v in next, value do
      if math.type(k) ~= "integer" and meta(v) then refuse_named(key, k) end
      keep_for_good(key, v, depth + 1)
    end
  end
end

local function assign(self, key, value)
  local mt = getmetatable(self)
  local store, order = mt.store, mt.order
  local known = rawget(store, key) ~= nil
  if value == nil then
    for i = #order, 1, -1 do
      if order[i] == key then table.remove(order, i) end
    end
  else
    keep_for_good(key, value, 1)
    if not known then order[#order + 1] = key end
  end
  rawset(store, key, value)
end

local function call(self, ...)
  local scope <close> = scope_begin()
  return scope_end(scope, self:forward(...))
end

-- For errors, asked in the middle of one: which module runs, as "; in Sequential.3 (Linear)". Nothing when no module
-- runs inside another one.
local function running_path()
  local outer, inner
  local level = 1
  while true do
    local info = debug.getinfo(level, "f")
    if not info then break end
    if info.func == call then
      local _, module = debug.getlocal(level, 1)
      inner, outer = inner or unwrap(module), module
    end
    level = level + 1
  end
  if not outer or unwrap(outer) == inner then return nil end
  for name, module in outer:named_modules() do
    if unwrap(module) == inner then return ("; in %s.%s (%s)"):format(outer.class_name, name, inner.class_name) end
  end
end
debug.getregistry()["neap.module_path"] = running_path
util.module_path = running_path

-- Walks the registered things of a module in order: visit(kind, name, value) with kind "parameter",
-- "buffer" or "module". Each module and each tensor is visited once, under its first name.
local function walk(module, visit, base, prefix, seen)
  module = unwrap(module)
  if seen[module] then return end
  seen[module] = true
  local mt = meta(module)

  local function item(name, key, value)
    if is_tensor(value) then
      if kinds[value] and not seen[value] then
        seen[value] = true
        visit(kinds[value], name, value)
      end
    elseif meta(value) then
      if not seen[unwrap(value)] then
        visit("module", name, value)
        walk(value, visit, base, name .. ".", seen)
      end
    elseif plain(value) and not seen[value] then
      seen[value] = true
      for k, v in next, value do
        if math.type(k) ~= "integer" and meta(v) then refuse_named(key, k) end
      end
      for i = 1, #value do item(name .. "." .. (i + base - 1), key, value[i]) end
    end
  end

  for _, key in ipairs(mt.order) do
    local name = math.type(key) == "integer" and key + base - 1 or key
    item(prefix .. tostring(name), key, rawget(mt.store, key))
  end
end

local function collect(self, kind, method)
  fields_of(self, method)
  local names, values = {}, {}
  walk(self, function(k, name, value)
    if k == kind then names[#names + 1], values[#values + 1] = name, value end
  end, 1, "", {})
  return names, values
end

local function pairs_of(names, values)
  local i = 0
  return function()
    i = i + 1
    return names[i], values[i]
  end
end

--- The class of classes: `nn.Module "Name"` makes one.
local Module = {}
M.Module = Module

--- What a subclass overrides: builds the fields.
function Module:init() end -- luacheck: ignore 212

--- What a subclass writes: the computation. Call the module, not forward.
function Module:forward()
  util.fail("E-ARG", "nn.%s: has no forward; write function %s:forward(x) ... end", self.class_name, self.class_name)
end

--- Short text of the constructor's arguments for print(model).
function Module:describe() return "" end -- luacheck: ignore 212

--- All parameters, in order of registration; each knows its name: p.name.
function Module:parameters()
  local names, values = collect(self, "parameter", "parameters")
  for i, p in ipairs(values) do p.name = names[i] end
  return values
end

--- Iterator over name, parameter.
function Module:named_parameters()
  local names, values = collect(self, "parameter", "named_parameters")
  for i, p in ipairs(values) do p.name = names[i] end
  return pairs_of(names, values)
end

--- All buffers, in order of registration.
function Module:buffers()
  local _, values = collect(self, "buffer", "buffers")
  return values
end

--- Iterator over name, buffer.
function Module:named_buffers() return pairs_of(collect(self, "buffer", "named_buffers")) end

--- Iterator over name, module: the module itself under "", then every module below it.
function Module:named_modules()
  local names, values = collect(self, "module", "named_modules")
  table.insert(names, 1, "")
  table.insert(values, 1, self)
  return pairs_of(names, values)
end

--- Number of elements of all parameters.
function Module:num_parameters()
  local n = 0
  for _, p in ipairs(self:parameters()) do n = n + p:numel() end
  return n
end

--- Calls fn on every module below, then on this one. Returns the module.
function Module:apply(fn)
  local list = {}
  for _, m in self:named_modules() do list[#list + 1] = m end
  for i = #list, 1, -1 do fn(list[i]) end
  return self
end

local function set_training(self, on)
  for _, m in self:named_modules() do rawset(meta(unwrap(m)).store, "training", on) end
  return self
end

--- Training mode (dropout works) for this module and all below; train(false) is eval().
function Module:train(on) return set_training(self, on ~= false) end

--- Evaluation mode for this module and all below.
function Module:eval() return set_training(self, false) end

--- Sets every parameter's gradient to nil.
function Module:zero_grad()
  fields_of(self, "zero_grad")
  for _, p in ipairs(self:parameters()) do p.grad = nil end
end

--- Sets requires_grad of every parameter, on by default: module:requires_grad_(false) freezes it. Returns the module.
function Module:requires_grad_(on)
  fields_of(self, "requires_grad_")
  for _, p in ipairs(self:parameters()) do p:requires_grad_(on ~= false) end
  return self
end

--- Moves parameters with their gradients, and buffers, to a device, or converts the floating-point ones to a dtype, in
-- place: optimizers and ties go on holding the same tensors. The state of an optimizer that has made a step stays where
-- it is; opt:load_state_dict(opt:state_dict()) brings it after.
function Module:to(target, ...)
  fields_of(self, "to")
  if type(target) ~= "string" or ... ~= nil then
    util.fail("E-ARG", 'Module:to: takes one name, of a device or a dtype, got %s; m:to("cpu"):to("float32") does both',
      type(target) ~= "string" and util.kind(target) or "two")
  end
  local dtype = neap.dtypes[target] ~= nil
  walk(self, function(kind, _, t)
    if kind == "module" or dtype and not t:is_floating_point() then return end
    local scope <close> = scope_begin()
    local grad = t.grad -- set_data lets go of it
    neap.set_data(t, t:detach():to(target))
    if grad then t.grad = neap.set_data(grad:detach(), grad:detach():to(target)) end -- it is counted as before
    return scope_end(scope)
  end, 1, "", {})
  return self
end

local function ordered_pairs(dict)
  local order = getmetatable(dict).order
  local i = 0
  return function()
    i = i + 1
    while order[i] ~= nil and rawget(dict, order[i]) == nil do i = i + 1 end
    return order[i], order[i] and rawget(dict, order[i])
  end
end

--- Parameters and buffers by name; pairs keeps the order of registration. The tensors are the module's own.
-- Options: base = 0 names list elements from 0, as PyTorch does.
function Module:state_dict(options)
  options = util.options("state_dict", options, { "base" })
  local dict, order = {}, {}
  fields_of(self, "state_dict")
  walk(self, function(kind, name, t)
    if kind ~= "module" then
      order[#order + 1] = name
      dict[name] = t
    end
  end, options.base or 1, "", {})
  return setmetatable(dict, { __pairs = ordered_pairs, order = order })
end

local function listed(lines, title, names)
  if #names == 0 then return end
  local shown = {}
  for i = 1, math.min(#names, 12) do shown[i] = names[i] end
  if #names > #shown then shown[#shown + 1] = ("and %d more"):format(#names - #shown) end
  lines[#lines + 1] = title .. ": " .. table.concat(shown, ", ")
end

--- Copies values in by name. All or nothing: every name and shape is checked before anything is written.
-- Options: strict = true (missing and unexpected names are an error), base = 0 for names counted from 0.
-- Returns the lists of missing and unexpected names.
function Module:load_state_dict(dict, options)
  options = util.options("load_state_dict", options, { "strict", "base" })
  if type(dict) ~= "table" then
    util.fail("E-ARG", "load_state_dict: needs a table of tensors by name, got %s; neap.load(path) makes one",
      util.kind(dict))
  end
  local mine = self:state_dict({ base = options.base or 1 })
  local missing, unexpected, wrong = {}, {}, {}
  for name, t in pairs(mine) do
    local given = dict[name]
    if given == nil then
      missing[#missing + 1] = name
    elseif not is_tensor(given) then
      wrong[#wrong + 1] = ("%s (%s)"):format(name, util.kind(given))
    elseif given.shape ~= t.shape then
      wrong[#wrong + 1] = ("%s (given %s, module has %s)"):format(name, tostring(given.shape), tostring(t.shape))
    end
  end
  for name in next, dict do
    if rawget(mine, name) == nil then unexpected[#unexpected + 1] = tostring(name) end
  end
  table.sort(unexpected)
  local lines = {}
  if options.strict ~= false then
    listed(lines, "missing", missing)
    listed(lines, "unexpected", unexpected)
  end
  listed(lines, "of another shape", wrong)
  if #lines > 0 then
    util.fail("E-ARG", "load_state_dict: %s does not fit; %s; nothing was changed", self.class_name,
      table.concat(lines, "; "))
  end
  neap.no_grad(function()
    for name, t in pairs(mine) do
      if dict[name] ~= nil and dict[name] ~= t then t:copy_(dict[name]) end
    end
  end)
  return missing, unexpected
end

local function grouped(n)
  local text = tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

local function tree(lines, name, v, depth)
  local mt = meta(v)
  local inner = unwrap(v)
  local label = name and name .. ": " or ""
  local pad = ("  "):rep(depth)
  if not mt then
    lines[#lines + 1] = pad .. label .. type(v)
    return
  end
  local n = inner:num_parameters()
  local count = n == 0 and "" or ("  %s parameter%s"):format(grouped(n), n == 1 and "" or "s")
  lines[#lines + 1] = ("%s%s%s(%s)%s%s"):format(pad, label, inner.class_name, inner:describe(),
    mt.inner and " [" .. mt.label .. "]" or "", count)

  local function item(key, value)
    if meta(value) or math.type(key) == "integer" and util.callable(value) then
      tree(lines, tostring(key), value, depth + 1)
    elseif plain(value) then
      for i = 1, #value do
        if meta(value[i]) or plain(value[i]) then item(key .. "." .. i, value[i]) end
      end
    end
  end

  local fields = meta(inner)
  for _, key in ipairs(fields.order) do item(key, rawget(fields.store, key)) end
end

local function describe_tree(self)
  local lines = {}
  tree(lines, nil, self, 0)
  return table.concat(lines, "\n")
end

local function module_pairs(self)
  local mt = getmetatable(self)
  local i = 0
  return function()
    i = i + 1
    local key = mt.order[i]
    return key, key ~= nil and rawget(mt.store, key) or nil
  end
end

local function module_length(self)
  local store, n = getmetatable(self).store, 0
  while rawget(store, n + 1) ~= nil do n = n + 1 end
  return n
end

-- Makes an instance of a class and runs its init.
local function instance(class, fields, ...)
  local store = setmetatable({ training = true }, fields)
  local self = setmetatable({}, {
    __index = store, __newindex = assign, __call = call, __tostring = describe_tree, __pairs = module_pairs,
    __len = module_length, __name = "neap.Module", neap_module = class, store = store, order = {},
  })
  self:init(...)
  return self
end

--- A class that inherits from this one: Block:extend "Wide", or Block:extend("Wide", {init = ..., forward = ...}).
function Module:extend(name, body)
  if meta(self) then util.fail("E-ARG", "extend: call it on a class, not on a module") end
  if type(name) ~= "string" or name == "" then
    util.fail("E-ARG", 'nn.Module: needs a name: nn.Module "Block", got %s', util.kind(name))
  end
  if body ~= nil and type(body) ~= "table" then
    util.fail("E-ARG", "nn.Module: the second argument is a table of methods, got %s", util.kind(body))
  end
  local class = { class_name = name }
  for key, value in next, body or {} do class[key] = value end
  local fields = { __index = class }
  return setmetatable(class, {
    __index = self,
    __name = "neap.ModuleClass",
    __call = function(_, ...) return instance(class, fields, ...) end,
    __tostring = function() return "class " .. name end,
  })
end

setmetatable(Module, {
  -- Fields that were never set are nil; of PyTorch's methods that are something else here, say what.
  __index = function(_, key)
    local here = require("neap.translate").text("modules", key)
    if here then util.fail("E-ARG", "nn.Module: there is no method '%s'%s", key, here) end
  end,
  __call = function(self, name, body) return Module.extend(self, name, body) end,
  __tostring = function() return "class Module" end,
})

--- A module that runs another one's forward through `run(module, ...)` and is otherwise that module: the same
-- parameters under the same names, the same fields.
function M.wrap(inner, label, run)
  local class = meta(inner).neap_module
  return setmetatable({}, {
    __index = inner,
    __newindex = function(_, key, value) inner[key] = value end,
    __call = function(_, ...) return run(inner, ...) end,
    __tostring = describe_tree,
    __pairs = function() return pairs(inner) end,
    __len = function() return #inner end,
    __name = "neap.Module", neap_module = class, inner = inner, label = label,
  })
end

return M
