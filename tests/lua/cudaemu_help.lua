--- What specs of single kernels on the emulated device share: the same call on both devices, and its results compared.
local assert = require "luassert"
local neap = require "neap"

-- NEAP_TEST_DEVICE=cuda: the same on a GPU.
local M = { device = (os.getenv "NEAP_TEST_DEVICE" or "cudaemu") .. ":0" }

--- The emulated device has the host's mathematical functions, a GPU its own.
M.on_gpu = M.device ~= "cudaemu:0"

M.floats = { "float32", "float64", "float16", "bfloat16" }
M.everything = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool" }
M.sizes = { 0, 1, 31, 32, 33, 1023, 1025 }

--- Is the plug-in there? Without it there is nothing to test: make build/libneap-cudaemu.so
function M.available() return (pcall(neap.zeros, 1, { device = M.device })) end

-- How a view of M.views is made of a contiguous tensor: { fn, tensor }. Moving it would make it contiguous.
local made_of = setmetatable({}, { __mode = "k" })

function M.here(t) return t end
function M.there(t)
  local made = made_of[t]
  if made then return made[1](made[2]:to(M.device)) end
  return t:to(M.device)
end

local function list_of(t)
  local list = t:detach():to("cpu"):reshape(-1):totable()
  return type(list) == "table" and list or { list }
end

-- What a tolerance is a part of: a value here and there, in numbers of 0.001, or 1, at least; or as of neap.allclose,
-- whose rtol and atol are the same.
local function or_little(a, b) return math.max(math.abs(a), math.abs(b), 1e-3) end
function M.or_one(a, b) return math.max(math.abs(a), math.abs(b), 1) end
function M.and_one(a) return math.abs(a) + 1 end

local function near(a, b, tolerance, size)
  if a == b then return a ~= 0 or tolerance > 0 or 1 / a == 1 / b end
  if a ~= a and b ~= b then return true end
  if type(a) ~= "number" or tolerance == 0 or a ~= a or b ~= b then return false end
  return math.abs(a - b) <= tolerance * size(a, b)
end

--- Are both results the same in dtype, shape and values? tolerance: relative; 0 is bit for bit, signs of zeros too.
-- size: M.or_one, M.and_one; by default the larger value, or 1e-3.
function M.compare(what, want, got, tolerance, size)
  assert.equal(M.device, got.device, what)
  assert.equal(want.dtype, got.dtype, what)
  assert.equal(tostring(want.shape), tostring(got.shape), what)
  local a, b = list_of(want), list_of(got)
  for i = 1, #a do
    if not near(a[i], b[i], tolerance, size or or_little) then
      error(("%s: element %d is %s, on the CPU %s"):format(what, i, b[i], a[i]), 3)
    end
  end
end

--- fn(on), whose `on` moves a tensor to the device in question, gives the same results on both, and no op of it is
-- staged through the CPU. tolerance and size: as of compare; 0 by default.
function M.same(what, fn, tolerance, size)
  local want = table.pack(fn(M.here))
  neap.counters(true)
  local got = table.pack(fn(M.there))
  for op, c in pairs(neap.counters()) do
    if c.staged then error(what .. ": " .. op .. " ran on the CPU", 2) end
  end
  for i = 1, want.n do M.compare(what, want[i], got[i], tolerance or 0, size) end
end

--- f of the tensors, here and there: the same within rtol of values and of 1; or of rtol[2], which is a size.
function M.same_of(what, rtol, f, ...)
  local all = { ... }
  local tolerance, size = rtol, M.and_one
  if type(rtol) == "table" then tolerance, size = table.unpack(rtol) end
  M.same(what, function(on)
    local moved = {}
    for i, t in ipairs(all) do moved[i] = on(t) end
    return f(table.unpack(moved))
  end, tolerance, size)
end

--- fn(on) fails on both devices with this code, in the same words.
function M.refused(what, code, fn)
  local texts = {}
  for i, on in ipairs { M.here, M.there } do
    local ok, err = pcall(fn, on)
    assert.is_false(ok, what)
    assert.equal(code, neap.error_code(err), what)
    texts[i] = tostring(err)
  end
  assert.equal(texts[1], texts[2], what)
end

--- A tensor of this shape on the CPU, whose values all dtypes hold; the same ones at every run.
function M.values(shape, dtype, seed)
  local o = { generator = neap.generator(seed or 1), device = "cpu" }
  if dtype == "bool" then return neap.randint(0, 1, shape, o):to "bool" end
  return neap.randint(0, 100, shape, o):to(dtype)
end

local function view(t, fn)
  local v = fn(t)
  made_of[v] = { fn, t }
  return v
end

--- m x n tensors of different layouts, of make(shape).
function M.views(m, n, make)
  return {
    rows = make { m, n },
    columns = view(make { n, m }, function(t) return t:t() end),
    strided = view(make { m, 2, n }, function(t) return t:select(2, 1) end),
  }
end

--- Those of M.values, and an expanded one.
function M.layouts(m, n, dtype, seed)
  local all = M.views(m, n, function(shape) return M.values(shape, dtype, seed) end)
  all.expanded = view(M.values({ m, 1 }, dtype, seed), function(t) return t:expand(m, n) end)
  return all
end

return M
