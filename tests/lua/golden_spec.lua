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
  "01_positions", "02_truth", "03_gradients", "04_contexts", "05_function", "11_counts", "13_modules", "14_training",
  "15_files",
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

  it("07 holds for the non-reentrant variant", function()
    local neap = require "neap"
    local checkpoint = neap.checkpoint
    local w, steps, drawn = neap.rand(1000, { requires_grad = true }), 0, {}
    local function f(t)
      checkpoint.once(function() steps = steps + 1 end)
      drawn[#drawn + 1] = checkpoint.once(function() return math.random(10 ^ 6) end)
      return (t * w):dropout(0.5):sin():sum()
    end
    local function gradient(g)
      neap.seed(7)
      w.grad = nil
      local y = g(w)
      neap.rand(5)
      y:backward()
      return neap.hash { w.grad, neap.rand(3) }
    end
    local plain = gradient(f)
    assert.not_equal(plain, gradient(checkpoint { use_reentrant = false, preserve_rng_state = false }(f)))
    assert.equal(plain, gradient(checkpoint { use_reentrant = false }(f)))
    assert.equal(3, steps)
    assert.equal(5, #drawn)
    assert.equal(drawn[2], drawn[3])
    assert.equal(drawn[4], drawn[5])
  end)
end)
