--- Do reference, editor stubs and the running library agree? Both ways: every public name of the library is
-- described, and everything that is described exists. Needs the library: run it as tests do, with LUA_PATH and
-- LUA_CPATH into the build.
--
--   lua5.4 tools/check_docs.lua           prints what is missing; status 1 if anything is
--
-- As a module it returns functions that return such lists.
local docs = require "tools.docs"
local help = dofile("lua/help.lua")

local check = {}

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("a")
  f:close()
  return text
end

-- ---- what is described ----------------------------------------------------------------------------------------

-- name -> item; what is a function and a method at once has both names.
local function described()
  local names = {}
  for _, item in ipairs(docs.items()) do
    names[item.name] = item
    if item.method then names["Tensor:" .. item.name:sub(6)] = item end
  end
  return names
end

-- ---- what exists ----------------------------------------------------------------------------------------------

-- The objects whose members have names such as "Loader:each".
local function objects(neap)
  local nn, optim, data = neap.nn, neap.optim, neap.data
  local w = neap.ones(2, { requires_grad = true })
  local set = data.tensors(neap.ones(2))
  local context
  local Probe = neap.Function "Probe"
  function Probe.forward(ctx, x)
    context = ctx
    return x * 1
  end
  function Probe.backward(_, g) return g end
  local y = Probe(w)
  local guard = neap.no_grad()
  guard:close()
  local path = os.tmpname()
  local log = require("neap.log").csv(path)
  log:close()
  local file = assert(io.open(path, "w"))
  file:write("a\n1\n")
  file:close()
  local csv = data.csv(path)
  os.remove(path)
  return {
    Tensor = y, Node = y.grad_fn, FunctionContext = context, Hook = y:register_hook(function() end), Guard = guard,
    Generator = neap.generator(1), Op = neap.ops.add, Module = nn.Linear(1, 1),
    Optimizer = optim.SGD({ w }, { lr = 1 }), Dataset = set, Loader = data.loader(set), CSV = csv,
    Progress = neap.progress(1), Log = log,
    Profile = neap.profile(function() end), MemoryProfile = neap.memory.profile(function() end),
    Group = neap.checkpoint.GraphExecGroup(), Plot = neap.plot.line { loss = { 1, 2 } },
  }
end

-- Fields that may be nil on the objects above, and are.
local may_be_nil = { ["Tensor.grad"] = true, ["Tensor.name"] = true, ["Node.meta"] = true,
  ["Module:forward"] = true }

local function member(object, key)
  local ok, value = pcall(function() return object[key] end)
  return ok and value ~= nil
end

local function exists(neap, made, name)
  if may_be_nil[name] then return true end
  if name == "checkpoint" then return neap.checkpoint ~= nil end
  local kind, key = name:match("^(%u%w*)[.:]([%w_]+)$")
  if kind then return made[kind] ~= nil and member(made[kind], key) end
  local value = neap
  for part in name:gsub("^neap%.", ""):gmatch("[^.]+") do
    local ok, inner = pcall(function() return value[part] end)
    if not ok or inner == nil then return false end
    value = inner
  end
  return true
end

-- All public names of the running library that can be listed.
local function runtime_names(neap, made)
  local names = {}
  local function list(prefix, t, skip)
    for key, value in next, t do
      if type(key) == "string" and not key:find("^_") and not (skip and skip[key]) then
        names[#names + 1] = prefix .. key
      end
      if prefix .. key == "nn.init" or prefix .. key == "optim.schedule" then
        names[#names] = nil
        list(prefix .. key .. ".", value)
      end
    end
  end
  local skip = { nn = true, optim = true, data = true, checkpoint = true, log = true, plot = true, memory = true }
  for key in pairs(help.internal) do skip[key] = true end
  list("neap.", neap, skip)
  list("Tensor:", neap.methods)
  for _, op in ipairs(neap.ops) do names[#names + 1] = "neap." .. op.name end
  for _, part in ipairs({ "nn", "optim", "data", "checkpoint" }) do list(part .. ".", neap[part]) end
  for _, part in ipairs({ "log", "plot", "pp", "memory" }) do
    if type(neap[part]) == "table" then list("neap." .. part .. ".", neap[part]) end
  end
  for kind, object in pairs(made) do
    local mt = debug.getmetatable(object)
    local index = mt and mt.__index
    if type(index) == "table" and kind ~= "Module" then list(kind .. ":", index) end -- a module's are its own fields
  end
  for key, value in next, neap.nn.Module do
    if type(value) == "function" and not key:find("^_") and key ~= "init" then names[#names + 1] = "Module:" .. key end
  end
  return names
end

-- The parts load at first use; a complete list needs them all.
local function library()
  local neap = require "neap"
  for _, part in ipairs({ "nn", "optim", "data", "checkpoint", "log", "plot", "progress", "pp", "save_state",
    "load_state" }) do
    assert(neap[part], part)
  end
  return neap
end

-- ---- the checks: each returns a sorted list of complaints -------------------------------------------------------

local function sorted(list)
  table.sort(list)
  return list
end

--- Public names of the running library without a description.
function check.undescribed()
  local neap = library()
  local known, missing, seen = described(), {}, {}
  for _, name in ipairs(runtime_names(neap, objects(neap))) do
    if not seen[name] and not known[name] and not known[(name:gsub(":", "."))] then missing[#missing + 1] = name end
    seen[name] = true
  end
  return sorted(missing)
end

--- Described names that the running library does not have; internal names likewise.
function check.nonexistent()
  local neap = library()
  local made, missing = objects(neap), {}
  for name in pairs(described()) do
    if not exists(neap, made, name) then missing[#missing + 1] = name end
  end
  for name in pairs(help.internal) do
    if rawget(neap, name) == nil then missing[#missing + 1] = "internal name " .. name end
  end
  return sorted(missing)
end

--- Described names that reference or stubs do not hold.
function check.unwritten()
  local missing = {}
  local reference, stubs = read("docs/reference.html"), read("library/neap.lua")
  for name, item in pairs(described()) do
    if not reference:find('<h3 id="' .. item.name .. '">', 1, true) then
      missing[#missing + 1] = name .. " in docs/reference.html"
    end
    local root = name:match("^(%w+)%.")
    local part = root == "nn" or root == "optim" or root == "data" or root == "checkpoint"
    local place = part and "neap." .. name or name
    local field = name:match("^%u%w*%.([%w_]+)$")
    local found = field and stubs:find("\n---@field " .. field .. " ", 1, true)
      or stubs:find("\nfunction " .. place .. "(", 1, true) or stubs:find("\n" .. place .. " = ", 1, true)
      or name == "checkpoint" and stubs:find("\nneap.checkpoint = ", 1, true)
    if not found then missing[#missing + 1] = name .. " in library/neap.lua" end
  end
  return sorted(missing)
end

--- Names in the stubs that nothing describes.
function check.unknown_stubs()
  local known, extra = described(), {}
  for name in read("library/neap.lua"):gmatch("\nfunction ([%w_.:]+)%(") do
    local short = name:gsub("^neap%.(%a+)%.", function(part)
      local plain = part == "nn" or part == "optim" or part == "data" or part == "checkpoint"
      return plain and part .. "." or nil
    end)
    if not known[short] then extra[#extra + 1] = name end
  end
  return sorted(extra)
end

--- Whether the stubs are Lua and begin as editors want; nil or a complaint.
function check.stub_syntax()
  local text = read("library/neap.lua")
  if text:match("^[^\n]*") ~= "---@meta" then return "library/neap.lua does not begin with ---@meta" end
  local _, why = load(text, "@library/neap.lua", "t")
  return why
end

--- Described names without a text, error codes without a remedy, remedies without a code.
function check.empty()
  local list = {}
  for name, item in pairs(described()) do
    if not item.text or not item.text:find("%w") then list[#list + 1] = name .. " has no text" end
  end
  local left = {}
  for code in pairs(help.remedies) do left[code] = true end
  for _, c in ipairs(docs.codes()) do
    if not c[3] then list[#list + 1] = c[1] .. " has no remedy in lua/help.lua" end
    left[c[1]] = nil
  end
  for code in pairs(left) do list[#list + 1] = code .. " has a remedy but is no code" end
  return sorted(list)
end

--- Generated files that do not say what the sources say.
check.stale = docs.stale

--- make commands of README.md and CONTRIBUTING.md that are no targets of the Makefile; files they link to that are
-- neither there nor made by it.
function check.commands()
  local makefile, list = "\n" .. read("Makefile"), {}
  for _, path in ipairs({ "README.md", "CONTRIBUTING.md" }) do
    local text = read(path)
    for command in text:gmatch("%f[%w]make ([^\n`#]+)") do
      local target
      for word in command:gmatch("%S+") do
        if word:match("^[%a][%w-]*$") then
          target = word
          break
        elseif not word:match("^[%u]+=") and not word:match("^%-") then
          break
        end
      end
      local in_code = text:find("`make " .. command, 1, true) or text:find("\nmake " .. command, 1, true)
      if target and in_code and not makefile:find("\n" .. target:gsub("%-", "%%-") .. ":") then
        list[#list + 1] = ("%s: make %s"):format(path, target)
      end
    end
    for link in text:gmatch("%]%(([^)#:]+)%)") do
      local f = io.open(link, "rb")
      if f then
        f:close()
      elseif not makefile:find(link, 1, true) then
        list[#list + 1] = ("%s: %s"):format(path, link)
      end
    end
  end
  return sorted(list)
end

if ... == "tools.check_docs" then return check end

local bad = false
for _, name in ipairs({ "undescribed", "nonexistent", "unwritten", "unknown_stubs", "stub_syntax", "empty", "stale",
  "commands" }) do
  local found = check[name]()
  if type(found) == "string" then found = { found } end
  for _, text in ipairs(found or {}) do
    bad = true
    print(name .. ": " .. text)
  end
end
os.exit(not bad)
