--- What specs of single kernels on the emulated device share: the same call on both devices, and its results compared.
local assert = require "luassert"
local neap = require "neap"

-- NEAP_TEST_DEVICE=cuda: the same on a GPU.
local M = { device = (os.getenv "NEAP_TEST_DEVICE" or "cudaemu") .. ":0" }

M.floats = { "float32", "float64", "float16", "bfloat16" }
M.everything = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool" }
M.sizes = { 0, 1, 31, 32, 33, 1023, 1025 }

--- Is the plug-in there? Without it there is nothing to test: make build/libneap-cudaemu.so
function M.available() return (pcall(neap.zeros, 1, { device = M.device })) end

function M.here(t) return t end
function M.there(t) return t:to(M.device) end

local function list_of(t)
  local list = t:detach():to("cpu"):reshape(-1):totable()
  return type(list) == "table" and list or { list }
end

local function near(a, b, tolerance)
  if a == b or (a ~= a and b ~= b) then return true end
  if type(a) ~= "number" or tolerance == 0 or a ~= a or b ~= b then return false end
  return math.abs(a - b) <= tolerance * math.max(math.abs(a), math.abs(b), 1e-3)
end

local function compare(what, want, got, tolerance)
  assert.equal(M.device, got.device, what)
  assert.equal(want.dtype, got.dtype, what)
  assert.equal(tostring(want.shape), tostring(got.shape), what)
  local a, b = list_of(want), list_of(got)
  for i = 1, #a do
    if not near(a[i], b[i], tolerance) then
      error(("%s: element %d is %s, on the CPU %s"):format(what, i, b[i], a[i]), 3)
    end
  end
end

--- fn(on), whose `on` moves a tensor to the device in question, gives the same results on both, and no op of it is
-- staged through the CPU. tolerance: relative; 0, the default, is bit for bit.
function M.same(what, fn, tolerance)
  local want = table.pack(fn(M.here))
  neap.counters(true)
  local got = table.pack(fn(M.there))
  for op, c in pairs(neap.counters()) do
    if c.staged then error(what .. ": " .. op .. " ran on the CPU", 2) end
  end
  for i = 1, want.n do compare(what, want[i], got[i], tolerance or 0) end
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

--- Views of an m x n tensor in all layouts.
function M.layouts(m, n, dtype, seed)
  return {
    rows = M.values({ m, n }, dtype, seed),
    columns = M.values({ n, m }, dtype, seed):t(),
    strided = M.values({ m, 2, n }, dtype, seed):select(2, 1),
    expanded = M.values({ m, 1 }, dtype, seed):expand(m, n),
  }
end

return M
