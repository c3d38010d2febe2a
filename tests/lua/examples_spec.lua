--- Examples on real data reach what is known of it. The data is not part of the project: where it is absent the tests
-- say so and are left out.
local program = os.getenv "NEAP_PROGRAM" or "build/neap"
local folder = "../shared/data"

local function have(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- What an example prints.
local function run(example, arguments, environment)
  if not have(program) then return nil, program .. " is not built" end
  local pipe = assert(io.popen(("%s '%s' examples/%s.lua %s 2>&1"):format(environment or "", program, example,
    arguments)))
  local text = pipe:read "a"
  assert(pipe:close(), text)
  return text
end

-- The same, on the data file of that path.
local function output(example, path, arguments, environment)
  if not have(path) then return nil, path .. " is absent" end
  return run(example, ("'%s' %s"):format(path, arguments or ""), environment)
end

describe("examples", function()
  it("lynx_hare: the least squares fit of the Lotka-Volterra equations", function()
    local text, why = output("lynx_hare", folder .. "/lynx_hare.csv")
    if not text then return pending(why) end
    local numbers = {}
    for n in text:gsub("round[^\n]*\n", ""):gsub("in 1900[^\n]*\n", ""):gmatch "%d+%.%d+" do
      numbers[#numbers + 1] = tonumber(n)
    end
    for i, want in ipairs { 0.5402, 0.02717, 0.02369, 0.7964 } do
      assert.is_true(math.abs(numbers[i] / want - 1) < 0.02, text)
    end
    assert.is_true(numbers[5] <= 0.0490, text)
  end)

  -- Under valgrind, which makes a call of every fused multiply-add, the products are the baseline's, and a twentieth of
  -- the names is learned from: that is enough to be better than counting letters (2.823).
  it("names: better than counting pairs of letters after one epoch", function()
    local path, limit, environment = folder .. "/names.txt", 2.25, nil
    if os.getenv "NEAP_TEST_VALGRIND" and have(path) then
      local fewer = os.tmpname()
      os.execute(("awk 'NR %% 20 == 1' '%s' > '%s'"):format(path, fewer))
      finally(function() os.remove(fewer) end)
      path, limit, environment = fewer, 2.823, "NEAP_ISA=baseline"
    end
    local text, why = output("names", path, "1", environment)
    if not text then return pending(why) end
    assert.is_true(tonumber(text:match "held out (%d+%.%d+)") < limit, text)
  end)

  -- It compares with the CPU and with its formulas itself, and fails where they differ.
  it("on_device: losses as the CPU's, bytes by formula, one gradient hash; a difference fails", function()
    if not have((os.getenv "NEAP_BUILD" or "build") .. "/libneap-cudaemu.so") then
      return pending "the emulated device is not built"
    end
    if os.getenv "NEAP_TEST_VALGRIND" then
      return pending "the emulated device switches stacks by itself, which valgrind does not follow"
    end
    local found, problem = pcall(require("neap").data.fashion_mnist, "train")
    if not found then return pending(problem) end
    local text, why = run("on_device", "cudaemu")
    if not text then return pending(why) end
    local hashes = {}
    for hash in text:gmatch " (%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)\n" do hashes[#hashes + 1] = hash end
    assert.equal(15, #hashes, text)
    for _, hash in ipairs(hashes) do assert.equal(hashes[1], hash, text) end
    assert.has_error(function() run("on_device", "cudaemu -1") end) -- no difference is that small
  end)
end)
