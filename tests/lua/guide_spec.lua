--- Every Lua block of the guide and the README, and every example of the help, runs as it stands.
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

describe("help", function()
  for _, entry in ipairs(require("neap.help").order) do
    if entry.example then
      it("runs the example of " .. entry.name, function() runs(entry.example, "=" .. entry.name) end)
    end
  end
end)
