--- What `require "neap"` returns: the C core's functions and, loaded at first use, the library's parts.
-- Sets no global and changes none. The C part is the module `neapcore`.
local core = require "neapcore"
local util = require "neap.util"

local neap = {}
for name, value in pairs(core) do neap[name] = value end
neap.log = nil -- the op is what calling the part neap.log does

-- Frames of these files are never the line an error names.
if core.set_library_prefix then core.set_library_prefix(util.prefix) end
core.set_translate(function(...) return require("neap.translate").text(...) end)

local parts = {
  nn = "neap.nn", optim = "neap.optim", data = "neap.data", checkpoint = "neap.checkpoint", plot = "neap.plot",
  log = "neap.log", progress = "neap.progress", pp = "neap.pp", save_state = "neap.state", load_state = "neap.state",
  summary = "neap.nn.summary", profile = "neap.profile", memory = "neap.memory", detect_leaks = "neap.detect_leaks",
  cuda = "neap.cuda",
}

setmetatable(neap, {
  __index = function(self, name)
    local part = parts[name]
    if not part then return nil end
    local value = require(part)
    if part == "neap.state" then value = value[name] end
    if type(value) == "table" then
      core.library_part(value)
      local mt = getmetatable(value)
      if not (mt and mt.__index) then util.part(name == "checkpoint" and name or "neap." .. name, value) end
    end
    rawset(self, name, value)
    return value
  end,
})

getmetatable(core.ops).__tostring = function(ops)
  return ("neap.ops: %d ops, by name and as a list; ?ops at the prompt lists them"):format(#ops)
end

-- A name that is not here: perhaps in a part, perhaps misspelt.
local function elsewhere(name)
  for _, part in ipairs { "nn", "optim", "data", "cuda" } do
    if rawget(require(parts[part]), name) ~= nil then return ("neap.%s.%s"):format(part, name) end
  end
  if neap.methods[name] then return ("x:%s(...)"):format(name) end
  local known = {}
  for part in pairs(parts) do known[#known + 1] = part end
  local hidden = require("neap.help").internal
  for key in next, neap do
    if not hidden[key] then known[#known + 1] = key end
  end
  local near = util.nearest(name, known)
  return near and "neap." .. near
end
util.part("neap", neap, elsewhere)

-- The parts require "neap" in their turn, so it must be found before they load.
package.loaded["neap"] = neap
require("neap.tensor_ext")(neap)
return neap
