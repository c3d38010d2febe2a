--- Every Lua block of guide and README, the guide's C program, and every example of the help, run as they stand.
local neap = require "neap"

-- What the prompt has ready; a block's own globals stay in its table.
local function environment()
  local env = { neap = neap, nn = neap.nn, optim = neap.optim, data = neap.data, checkpoint = neap.checkpoint,
    print = function() end }
  return setmetatable(env, { __index = _G })
end

local function runs(source, name)
  local chunk, why = load(source, name, "t", environment())
  assert.is_not_nil(chunk, why)
  neap.scope(chunk)
end

-- Blocks begin with ```lua at the start of a line; their lines keep the numbers they have in the file.
local function blocks(path)
  local list, line, first, lines = {}, 0, nil, nil
  for text in io.lines(path) do
    line = line + 1
    if lines and text:match("^```") then
      list[#list + 1] = { line = first, source = ("\n"):rep(first) .. table.concat(lines, "\n") }
      lines = nil
    elseif lines then
      lines[#lines + 1] = text
    elseif text:match("^```lua%s*$") then
      first, lines = line, {}
    end
  end
  return list
end

for _, path in ipairs({ "docs/guide.md", "README.md" }) do
  describe(path, function()
    local list = blocks(path)
    it("has Lua blocks", function() assert.is_true(#list > 0) end)
    for _, block in ipairs(list) do
      it(("runs the block at line %d"):format(block.line), function() runs(block.source, "@" .. path) end)
    end
  end)
end

-- ---- C --------------------------------------------------------------------------------------------------------

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

local function shell(command)
  local p = assert(io.popen("{ " .. command .. " ; } 2>&1"))
  local text = p:read "a"
  return p:close() == true, text
end

-- The `cc` lines of a file.
local function commands(path)
  local list = {}
  for line in read(path):gmatch("\n(cc [^\n#]+)") do list[#list + 1] = line:match "^(.-)%s*$" end
  return list
end

describe("C programs", function()
  local build = os.getenv "NEAP_BUILD" or "build"
  if os.getenv "LD_PRELOAD" then -- a sanitizer's build: hosts would need its flags
    pending "hosts are compiled against a plain build"
    return
  end

  local folder
  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
    local f = assert(io.open(folder .. "/host.c", "wb"))
    f:write(read("docs/guide.md"):match("\n```c\n(.-)```\n"))
    f:close()
  end)
  teardown(function() os.execute("rm -r " .. folder) end)

  local _, here = shell "pwd"
  here = here:match "[^\n]+"
  local full = build:sub(1, 1) == "/" and build or here .. "/" .. build

  local function works(command, variables)
    command = command:gsub("host%.c", folder .. "/host.c"):gsub("%-o host", "-o " .. folder .. "/host")
    command = command:gsub('"$PWD/build"', full):gsub("%f[%w/]build%f[%W]", full):gsub("%-Lbuild", "-L" .. full)
      :gsub("%-Ibuild", "-I" .. full)
    local ok, text = shell(("%s && %s %s/host"):format(command, variables or "", folder))
    assert.is_true(ok, command .. "\n" .. text)
    assert.equal("4\n", text)
  end

  it("README and guide give the same commands", function()
    assert.is_true(#commands "README.md" == 3)
    assert.same(commands "README.md", commands "docs/guide.md")
  end)

  for _, command in ipairs(commands "README.md") do
    if not command:find("pkg-config", 1, true) then
      it("are built by " .. command, function() works(command) end)
    end
  end

  it("are built against an installed Neap", function()
    local command = commands("README.md")[3]
    if not shell "command -v pkg-config" then return pending "no pkg-config" end
    local ok, text = shell(("make -s -o build install BUILD=%s PREFIX=%s/usr"):format(full, folder))
    assert.is_true(ok, text)
    works(("export PKG_CONFIG_PATH=%s/usr/lib/pkgconfig; %s"):format(folder, command),
      ("LD_LIBRARY_PATH=%s/usr/lib"):format(folder))
  end)
end)

describe("help", function()
  for _, entry in ipairs(require("neap.help").order) do
    if entry.example then
      it("runs the example of " .. entry.name, function() runs(entry.example, "=" .. entry.name) end)
    end
  end
end)
