--- neap.save_state and neap.load_state: a whole run in one folder, resumed as if it had not stopped.
--
-- The folder holds one safetensors file, written atomically: the tensors under their paths ("model.1.weight"), and
-- in the metadata the plain values as JSON. No code is in it. The states of the default generators come along.
local neap = require "neap"
local util = require "neap.util"
local json = require "neap.json"

local file_name = "state.safetensors"

local function has_method(v, name)
  if type(v) ~= "table" or getmetatable(v) == nil then return false end
  local ok, method = pcall(function() return v[name] end)
  return ok and util.callable(method)
end

-- A copy of a value in which tensors are replaced by {"$tensor": path} and collected.
local function strip(v, path, tensors, depth)
  if neap.is_tensor(v) then
    tensors[path] = v
    return { ["$tensor"] = path }
  end
  if type(v) ~= "table" then return v end
  if depth > 64 then util.fail("E-ARG", "neap.save_state: %s is nested too deeply, or holds itself", path) end
  if has_method(v, "state_dict") then v = v:state_dict() end
  local copy = {}
  for key, value in next, v do
    copy[key] = strip(value, path .. "." .. tostring(key), tensors, depth + 1)
  end
  return copy
end

local function restore(v, tensors, path)
  if type(v) ~= "table" then return v end
  local name = v["$tensor"]
  if name then return tensors[name] or util.fail("E-FORMAT", "%s lacks the tensor '%s'", path, tostring(name)) end
  for key, value in next, v do v[key] = restore(value, tensors, path) end
  return v
end

local function check(who, folder, objects)
  if type(folder) ~= "string" or folder == "" then
    util.fail("E-ARG", "%s: needs a folder, got %s", who, util.kind(folder))
  end
  util.path(who, folder)
  if type(objects) ~= "table" or getmetatable(objects) ~= nil then
    util.fail("E-ARG", "%s: needs a table such as {model = model, opt = opt, step = 1}, got %s", who,
      util.kind(objects))
  end
  for name in next, objects do
    if type(name) ~= "string" then util.fail("E-ARG", "%s: names are strings, got the key %s", who, tostring(name)) end
  end
end

local state = {}

--- Saves objects with state_dict, tensors, and plain values (numbers, strings, booleans, tables of these).
function state.save_state(folder, objects)
  check("neap.save_state", folder, objects)
  local tensors, values = {}, {}
  for name, v in next, objects do values[name] = strip(v, name, tensors, 1) end
  local text = json.encode({ values = values, generator = neap.default_generator():state() }, "neap.save_state")
  if not os.execute("mkdir -p '" .. folder:gsub("'", "'\\''") .. "'") then
    util.fail("E-IO", "neap.save_state: cannot make the folder %s", folder)
  end
  neap.save(folder .. "/" .. file_name, tensors, { metadata = { state = text } })
end

-- A state with tensors of its own.
local function snapshot(v)
  if neap.is_tensor(v) then return v:detach():clone() end
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, value in next, v do copy[key] = snapshot(value) end
  return copy
end

-- Each object from its state, or none: those that were filled before one failed get back what they held.
local function fill(objects, values)
  local names, before = {}, {}
  for name in next, objects do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local object = objects[name]
    if has_method(object, "state_dict") then before[name] = snapshot(object:state_dict()) end
    local ok, e = pcall(object.load_state_dict, object, values[name])
    if not ok then
      for k = i, 1, -1 do
        if before[names[k]] then pcall(objects[names[k]].load_state_dict, objects[names[k]], before[names[k]]) end
      end
      error(e, 0)
    end
  end
end

--- Fills the objects that have load_state_dict from what save_state wrote; returns everything else in a table.
-- A name among the objects that was not saved is an error, and so is a state that does not fit: then no object has
-- changed.
function state.load_state(folder, objects)
  objects = objects == nil and {} or objects
  check("neap.load_state", folder, objects)
  local path = folder .. "/" .. file_name
  local tensors, metadata = neap.load(path)
  if not metadata or not metadata.state then util.fail("E-FORMAT", "neap.load_state: %s holds no saved state", path) end
  local saved = json.decode(metadata.state, path)
  if type(saved) ~= "table" or type(saved.values) ~= "table" then
    util.fail("E-FORMAT", "neap.load_state: %s holds no saved state", path)
  end
  local values = restore(saved.values, tensors, path)
  for name, object in next, objects do
    if not has_method(object, "load_state_dict") then
      util.fail("E-ARG", "neap.load_state: '%s' has no load_state_dict, got %s; plain values are returned", name,
        util.kind(object))
    end
    if values[name] == nil then
      util.fail("E-ARG", "neap.load_state: '%s' is not in %s", name, path)
    end
  end
  fill(objects, values)
  for name in next, objects do values[name] = nil end
  neap.default_generator():set_state(saved.generator)
  return values
end

return state
