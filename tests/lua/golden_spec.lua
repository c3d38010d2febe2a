-- The golden scripts that this version promises, as written, each in a fresh process: under the stock interpreter
-- and under the program. A script is silent when right.
local build = os.getenv("NEAP_BUILD") or "build"

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- Output and success of one script. The paths are those of this process.
local function run(program, script)
  local pipe = assert(io.popen(("%s %s 2>&1 </dev/null"):format(program, script)))
  local output = pipe:read("a")
  return output, pipe:close()
end

local scripts = {
  "01_positions", "02_truth", "03_gradients", "04_contexts", "05_function", "06_variants", "07_random", "08_mistakes",
  "09_selective", "10_contexts", "11_counts", "12_groups", "13_modules", "14_training", "15_files",
}

describe("golden script", function()
  for _, name in ipairs(scripts) do
    local script = ("tests/lua/golden/%s.lua"):format(name)
    it(name .. " runs under lua5.4", function()
      local output, ok = run("lua5.4 -W", script)
      assert.equal("", output)
      assert.is_true(ok)
    end)
    it(name .. " runs under neap", function()
      local program = build .. "/neap"
      if not exists(program) then
        pending("the program is not built")
        return
      end
      local output, ok = run(program, script)
      assert.equal("", output)
      assert.is_true(ok)
    end)
  end
end)
