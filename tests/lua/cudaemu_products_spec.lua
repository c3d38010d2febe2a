--- Products of matrices of the CUDA sources, on the emulated device and with its emulated cuBLASLt, against the CPU's:
-- what the library gets, what it remembers, and the own kernels that stand in for it.
local neap = require "neap"
local cuda = require "neap.cuda"
local help = require "tests.lua.cudaemu_help"
local device = help.device

if not help.available() then return end

local rtol = { float32 = 1e-5, float64 = 1e-12, float16 = 4e-3, bfloat16 = 3e-2 }

local function random(dtype, ...) return neap.randn({ ... }, { dtype = dtype, device = "cpu" }) end

local function matmul(a, b) return a:matmul(b) end

--- f(on), whose `on` moves a tensor to the device in question, is the same on both; returns how many of its products
-- the library did. Views are made of what is there already: moving makes a tensor contiguous.
local function same(what, f)
  local want = f(help.here)
  neap.counters(true)
  local before = cuda.properties(device)
  local got = f(help.there)
  for op, c in pairs(neap.counters()) do
    if type(c) == "table" then assert.equal(0, c.staged or 0, what .. ": staged " .. op) end
  end
  local after = cuda.properties(device)
  help.compare(what, want, got, rtol[want.dtype] or 0, help.and_one)
  return after.product_plans + after.product_hits - before.product_plans - before.product_hits
end

--- Of a matrix (m, n): as it is, transposed, with rows further apart than they are long, and with neither dim at 1.
local function layouts(dtype, m, n)
  local function of(...)
    local t = random(dtype, ...)
    return function(on) return on(t) end
  end
  local plain, turned, padded, both = of(m, n), of(n, m), of(m, n + 3), of(n, m + 5)
  local strided = of(m, n, 2)
  return {
    { "rows", plain, true },
    { "turned", function(on) return turned(on):t() end, true },
    { "padded", function(on) return padded(on):narrow(2, 2, n) end, true },
    { "turned and padded", function(on) return both(on):narrow(2, 3, m):t() end, true },
    { "strided", function(on) return strided(on):select(3, 2) end, false },
  }
end

--- A product or another function of two or three tensors, moved as they are.
local function of(f, ...)
  local list = { ... }
  return function(on)
    local moved = {}
    for i, t in ipairs(list) do moved[i] = on(t) end
    return f(table.unpack(moved))
  end
end

describe("on the emulated device", function()
  before_each(function() neap.seed(1) end)

  it("cuBLASLt multiplies floats of every layout", function()
    for _, dtype in ipairs(help.floats) do
      for _, s in ipairs { { 4, 4, 4 }, { 5, 7, 6 }, { 33, 65, 31 }, { 64, 16, 128 } } do
        for _, a in ipairs(layouts(dtype, s[1], s[2])) do
          for _, b in ipairs(layouts(dtype, s[2], s[3])) do
            local what = ("%s %s, %s"):format(dtype, a[1], b[1])
            local n = same(what, function(on) return a[2](on):matmul(b[2](on)) end)
            assert.equal(a[3] and b[3] and 1 or 0, n, what)
          end
        end
      end
    end
    assert.matches("^cuBLASLt 13%.", cuda.properties(device).products)
  end)

  it("batches go in one call for each step of all their dims but the last", function()
    for _, dtype in ipairs(help.floats) do
      local function go(what, calls, a, b) assert.equal(calls, same(what, of(matmul, a, b)), what) end
      go("a batch", 1, random(dtype, 3, 5, 7), random(dtype, 3, 7, 6))
      go("two dims as one", 1, random(dtype, 2, 3, 5, 7), random(dtype, 2, 3, 7, 6))
      local q, k = random(dtype, 2, 9, 3, 8), random(dtype, 2, 9, 3, 8)
      assert.equal(2, same("heads", function(on) return on(q):transpose(2, 3):matmul(on(k):permute(1, 3, 4, 2)) end))
      go("one B: one product", 1, random(dtype, 3, 5, 7), random(dtype, 7, 6))
      go("one A", 1, random(dtype, 5, 7), random(dtype, 3, 7, 6))
      go("both spread", 2, random(dtype, 2, 1, 5, 7), random(dtype, 3, 7, 6))
    end
  end)

  it("linear adds its bias there, too", function()
    for _, dtype in ipairs(help.floats) do
      for _, s in ipairs { { 5, 7, 6 }, { 33, 65, 31 } } do
        local x, w, b = random(dtype, s[1], s[2]), random(dtype, s[3], s[2]), random(dtype, s[3])
        local long, turned = random(dtype, 2, s[1] + 1, s[2]), random(dtype, s[2], s[3])
        assert.equal(1, same("linear", of(neap.linear, x, w, b)))
        assert.equal(1, same("without bias", of(neap.linear, x, w)))
        assert.equal(1, same("batches", of(neap.linear, random(dtype, 2, s[1], s[2]), w, b)))
        assert.equal(1, same("batches apart", function(on)
          return neap.linear(on(long):narrow(2, 1, s[1]), on(w), on(b))
        end))
        assert.equal(1, same("turned weight", function(on) return neap.linear(on(x), on(turned):t(), on(b)) end))
        assert.equal(0, same("a spread bias", function(on)
          return neap.linear(on(x), on(w), on(b):narrow(1, 1, 1):expand(s[3]))
        end))
      end
    end
  end)

  it("the own kernels do what the library does not take", function()
    for _, dtype in ipairs(help.floats) do
      assert.equal(0, same("no k", of(matmul, random(dtype, 5, 0), random(dtype, 0, 6))))
      assert.equal(0, same("no k, bias", of(neap.linear, random(dtype, 5, 0), random(dtype, 6, 0), random(dtype, 6))))
      assert.equal(0, same("no rows", of(matmul, random(dtype, 0, 5), random(dtype, 5, 6))))
      assert.equal(0, same("no batch", of(matmul, random(dtype, 0, 4, 5), random(dtype, 5, 6))))
      local row, list, one = random(dtype, 1, 50), random(dtype, 6, 50), random(dtype, 1, 7)
      assert.equal(0, same("a row", function(on) return on(row):matmul(on(list):t()) end))
      assert.equal(0, same("a vector", of(matmul, random(dtype, 6, 50), random(dtype, 50))))
      local right = random(dtype, 7, 6)
      assert.equal(0, same("repeated rows", function(on) return on(one):expand(5, 7):matmul(on(right)) end))
    end
    for _, dtype in ipairs { "int64", "int32", "int8", "uint8" } do
      assert.equal(0, same(dtype, of(matmul, help.values({ 9, 70 }, dtype), help.values({ 70, 8 }, dtype, 2))))
    end
  end)

  it("a result is not read before it is written, NaN or not", function()
    local a, b = random("float32", 20, 30), random("float32", 30, 40)
    neap.full({ 20, 40 }, 0 / 0, { device = device }):sum() -- its memory is the next product's
    collectgarbage()
    assert.equal(1, same("over NaN", of(matmul, a, b)))
  end)

  it("a kind of product is asked for once, and at most 256 are remembered", function()
    local a, b = random("float32", 13, 17):to(device), random("float32", 17, 11):to(device)
    local _ = a:matmul(b)
    local first = cuda.properties(device)
    for _ = 1, 5 do _ = a:matmul(b) end
    local later = cuda.properties(device)
    assert.equal(first.product_plans, later.product_plans)
    assert.equal(first.product_hits + 5, later.product_hits)
    _ = random("float32", 12, 17):to(device):matmul(b)
    assert.equal(later.product_plans + 1, cuda.properties(device).product_plans)
    local column = random("float32", 1, 4):to(device)
    for _ = 1, 2 do
      later = cuda.properties(device)
      for m = 4, 603 do _ = neap.zeros({ m, 1 }, { device = device }):matmul(column) end
    end
    local last = cuda.properties(device)
    assert.is_true(last.product_hits - later.product_hits <= 256)
    assert.equal(600, last.product_plans - later.product_plans + last.product_hits - later.product_hits)
    assert.equal(1, same("after all of them", of(matmul, random("float32", 13, 17), random("float32", 17, 11))))
  end)

  it("gradients of products are the library's, too", function()
    local x, w, b, g = random("float32", 6, 7), random("float32", 5, 7), random("float32", 5), random("float32", 6, 5)
    for which = 1, 3 do
      same("gradient " .. which, of(function(x_, w_, b_, g_)
        local leaf = {}
        for i, t in ipairs { x_, w_, b_ } do leaf[i] = t:detach():requires_grad_(true) end
        neap.linear(table.unpack(leaf)):backward(g_)
        return leaf[which].grad
      end, x, w, b, g))
    end
  end)

  it("without the library everything is done by the own kernels #program", function()
    local script = ("local device = %q"):format(device) .. [[

      local neap, cuda = require "neap", require "neap.cuda"
      assert(cuda.properties(device).products == "none yet")
      for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
        local a, b = neap.randn({ 2, 33, 70 }, { dtype = dtype }), neap.randn({ 70, 31 }, { dtype = dtype })
        local got = a:to(device):matmul(b:to(device)):to("cpu")
        local tolerance = dtype:match "16" and 5e-2 or 1e-5
        assert(neap.allclose(got, a:matmul(b), { rtol = tolerance, atol = tolerance }), dtype)
      end
      local p = cuda.properties(device)
      assert(p.product_plans == 0 and p.product_hits == 0)
      print(p.products)]]
    local file = os.tmpname()
    local f = assert(io.open(file, "w"))
    f:write(script)
    f:close()
    local run = assert(io.popen(("NEAP_CUBLAS=none %s %s 2>&1"):format(os.getenv "NEAP_PROGRAM" or "build/neap", file)))
    local text = run:read "a"
    assert.is_true(run:close(), text)
    os.remove(file)
    assert.equal("own kernels: NEAP_CUBLAS is none\n", text)
  end)
end)
