--- Modules applied one after another, or not at all.
local util = require "neap.util"
local module = require "neap.nn.module"

local Sequential = module.Module "Sequential"

--- nn.Sequential(a, b, ...): modules applied one after another; also nn.Sequential{a, b, ...}. The parts are any
-- callables; modules among them register as 1, 2, ...
function Sequential:init(...)
  local first = ...
  local list = { ... }
  local n = select("#", ...)
  if n == 1 and type(first) == "table" and not util.callable(first) then
    list, n = first, #first
    local name = util.stray_name(first)
    if name then
      util.fail("E-ARG", "nn.Sequential: the list of parts holds the name '%s'; parts stand by position only", name)
    end
  end
  for i = 1, n do
    local part = list[i]
    if type(part) == "table" and rawget(part, "class_name") then
      util.fail("E-ARG", "nn.Sequential: part %d is the class %s; call it to make a module: nn.%s(...)", i,
        part.class_name, part.class_name)
    end
    if not util.callable(part) then
      util.fail("E-ARG", "nn.Sequential: part %d must be a module or a function, got %s", i, util.kind(part))
    end
    self[i] = part
  end
end

function Sequential:forward(x, ...)
  if self[1] == nil then return x, ... end
  x = self[1](x, ...)
  local i = 2
  local part = self[2]
  while part do
    x = part(x)
    i = i + 1
    part = self[i]
  end
  return x
end

local Identity = module.Module "Identity"

--- nn.Identity(): gives back what it gets.
function Identity:forward(...) return ... end

return { Sequential = Sequential, Identity = Identity }
