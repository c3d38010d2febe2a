--- What users of tensor libraries run into: scale. Case ids of the list of user cases, section (h).
local neap = require "neap"
local checkpoint = neap.checkpoint

local MANY = os.getenv "NEAP_TEST_VALGRIND" and 5000 or 100000

local function resident_kb()
  local f = io.open "/proc/self/status"
  if not f then return nil end
  local kb = f:read("a"):match("VmRSS:%s*(%d+)")
  f:close()
  return tonumber(kb)
end

describe("user cases: scale", function()
  it("uc-H01 more than 2^31 elements #slow", function()
    if not os.getenv "NEAP_TEST_LARGE" then pending "needs 5 GB of memory: set NEAP_TEST_LARGE=1" return end
    local n = (1 << 31) + 64
    local x = neap.zeros({ n }, { dtype = "uint8" })
    x[n] = 7
    assert.equal(7, x:item(n))
    assert.equal(7, x:sum():item())
    assert.equal(n, x:argmax():item())
    local tail = x:narrow(1, n - 2, 3)
    assert.is_true(neap.equal(tail, neap.tensor({ 0, 0, 7 }, { dtype = "uint8" })))
    local copy = x:clone()
    assert.is_true(neap.equal(copy, x))
    copy:release()
    local path = os.tmpname()
    neap.save(path, { x = x })
    x:release()
    local y = neap.load(path).x
    assert.equal(7, y:item(n))
    y:release()
    os.remove(path)
  end)

  it("uc-H04 a chain of 100000 nodes", function()
    local x = neap.ones(2, { requires_grad = true })
    for _ = 1, 2 do
      local y = x
      for _ = 1, MANY do y = y + 1 end
      x.grad = nil
      y:sum():backward()
      assert.is_true(neap.equal(x.grad, { 1.0, 1.0 }))
    end
    collectgarbage()
    collectgarbage()
  end)

  it("uc-H04 a chain of 100000 nodes that no backward ever consumes", function()
    local x = neap.ones(2, { requires_grad = true })
    do
      local y = x
      for _ = 1, MANY do y = y + 1 end
      assert.is_true(neap.memory_stats().nodes >= MANY)
      y:release()
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(neap.memory_stats().nodes < 100)
  end)

  it("uc-H04 20000 slices written in place", function()
    local x = neap.ones(1, { requires_grad = true })
    local y = neap.zeros(4)
    for i = 1, MANY // 5 do y[{ { i % 4 + 1, i % 4 + 1 } }] = x * 2 end
    y:sum():backward()
    assert.is_true(neap.equal(x.grad, { 8.0 }))
  end)

  it("uc-H06 many tiny tensors are small, and go away", function()
    local n = 2 * MANY
    collectgarbage()
    local before = resident_kb()
    local list, sum = {}, 0
    -- on the CPU: what a block of a device costs is not seen in this process
    for i = 1, n do list[i] = neap.full({}, i, { dtype = "float32", device = "cpu" }) end
    local during = resident_kb()
    for i = 1, n, 1000 do sum = sum + list[i]:item() end
    assert.equal(n // 1000 * (n - 998) // 2, math.tointeger(sum))
    if before then
      local each = (during - before) * 1024 / n
      local most = os.getenv "LD_PRELOAD" and 1200 or 600 -- a sanitizer puts red zones around each block
      assert.is_true(each < most, ("%.0f bytes for each"):format(each))
    end
    for i = 1, n do list[i] = nil end
    collectgarbage()
    collectgarbage()
    assert.is_true(neap.memory_stats("cpu").storages < 1000)
  end)

  it("uc-H06 creating and dropping keeps memory flat without a collection", function()
    local function churn(n) for i = 1, n do local _ = neap.full({ 64 }, i, { dtype = "float32" }) end end
    churn(MANY)
    local warm = resident_kb()
    churn(3 * MANY)
    local last = resident_kb()
    if warm then assert.is_true(last < 1.2 * warm + 20000, ("%d kB, then %d kB"):format(warm, last)) end
  end)

  it("uc-H07 a long recurrence in checkpointed segments equals the plain one", function()
    local steps, segment = 4000, 63
    local w = neap.tensor({ 0.5, -0.25 }, { dtype = "float64", requires_grad = true })
    local function run(from, to, h)
      for _ = from, to do h = (h * w + 0.1):tanh() end
      return h
    end
    local function gradient(wrap)
      w.grad = nil
      collectgarbage() -- what earlier tests dropped is not part of the base
      collectgarbage()
      neap.reset_peak()
      local base = neap.memory_stats().live
      local h = neap.zeros({ 2 }, { dtype = "float64" })
      for from = 1, steps, segment do
        local to = math.min(from + segment - 1, steps)
        h = wrap and checkpoint(run, { use_reentrant = false }, from, to, h) or run(from, to, h)
      end
      h:sum():backward()
      local peak = neap.memory_stats().peak - base
      collectgarbage()
      return neap.hash(w.grad), peak
    end
    local plain, plain_peak = gradient(false)
    local lean, lean_peak = gradient(true)
    assert.equal(plain, lean)
    assert.is_true(lean_peak < plain_peak / 5, ("%d of %d"):format(lean_peak, plain_peak))
  end)

  it("uc-H07 nesting works 30 deep, and 1000 deep is refused cleanly", function()
    local function nested(depth)
      local f = function(t) return t:sin() end
      for _ = 1, depth do
        local inner = f
        f = function(t) return checkpoint(inner, { use_reentrant = false }, t):cos() end
      end
      return f
    end
    local x = neap.tensor({ 0.3 }, { dtype = "float64", requires_grad = true })
    nested(30)(x):sum():backward()
    local want = math.cos(0.3)
    local v = math.sin(0.3)
    for _ = 1, 30 do want, v = -math.sin(v) * want, math.cos(v) end
    assert.is_true(math.abs(x.grad:item() - want) < 1e-12)
    local ok, err = pcall(function() nested(1000)(x):sum():backward() end)
    if not ok then
      assert.truthy(neap.error_code(err) == "E-CHECK-NESTED-DEPTH" or tostring(err):find("C stack overflow", 1, true),
        tostring(err))
    end
    collectgarbage()
    assert.is_true(neap.is_grad_enabled())
    x.grad = nil
    checkpoint(function(t) return t:sin() end, { use_reentrant = false }, x):sum():backward()
    assert.is_true(math.abs(x.grad:item() - math.cos(0.3)) < 1e-12)
  end)
end)
