--- Order and running sums of the CUDA sources, on the emulated device: sort, topk, median, searchsorted, bincount,
-- cumsum, cumprod, and their gradients' helpers. Positions and integers are the CPU's bit for bit.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
local device, same = emu.device, emu.same_of

if not emu.available() then
  describe("order on the emulated device", function()
    pending("the emulated device is not built: make build/libneap-cudaemu.so")
  end)
  return
end

local nan, inf = 0 / 0, math.huge
local sizes = { 0, 1, 2, 31, 32, 33, 1023, 1025, 70000 } -- 70000 is of many tiles, and of many parts

--- n values with many equal ones among them, and NaN, both zeros and infinities where there are any.
local function mixed(n, dtype)
  local o = { device = "cpu" }
  if dtype == "bool" then return neap.randint(0, 1, { n }, o):to "bool" end
  if not dtype:match "float" then return neap.randint(dtype == "uint8" and 0 or -50, 50, { n }, o):to(dtype) end
  local x = neap.randint(-20, 20, { n }, o):to "float32" / 4
  for k, v in ipairs { nan, -0.0, inf, 0.0, -inf, nan } do
    for i = k * 5, n, 97 do x[i] = v end
  end
  return x:to(dtype)
end

describe("on the emulated device", function()
  before_each(function() neap.seed(1) end)

  it("sort and argsort are stable, in both directions, for every dtype and length", function()
    for _, dtype in ipairs(emu.everything) do
      for _, n in ipairs(sizes) do
        if n < 70000 or dtype == "float32" or dtype == "int64" then
          local x = mixed(n, dtype)
          for _, descending in ipairs { false, true } do
            local what = ("%s of %d%s"):format(dtype, n, descending and ", descending" or "")
            same("sort " .. what, 0, function(t) return t:sort(1, { descending = descending }) end, x)
          end
        end
      end
    end
    same("argsort", 0, function(t) return t:argsort() end, mixed(300, "float32"))
  end)

  it("sort goes along any dim of any layout", function()
    local x = mixed(6 * 35 * 4, "float32"):reshape(6, 35, 4)
    for d = 1, 3 do
      same("dim " .. d, 0, function(t) return t:sort(d) end, x)
      same("transposed, dim " .. d, 0, function(t) return t:transpose(1, 3):sort(d) end, x)
      same("sliced, dim " .. d, 0, function(t) return t:narrow(2, 3, 30):select(3, 2):sort(d > 2 and 1 or d) end, x)
    end
    same("rows over tiles", 0, function(t) return t:sort(2) end, mixed(3 * 2500, "float64"):reshape(3, 2500))
    same("columns over tiles", 0, function(t) return t:sort(1) end, mixed(3 * 2500, "float64"):reshape(2500, 3))
    same("0-dim", 0, function(t) return t:sort() end, neap.tensor(3.5))
    same("no rows", 0, function(t) return t:sort(2) end, neap.zeros { 0, 5 })
  end)

  it("topk takes the first of equal ones, in order of value or of position", function()
    for _, n in ipairs { 1, 33, 1025, 5000 } do
      local x = mixed(2 * n, "float32"):reshape(2, n)
      for _, k in ipairs { 0, 1, 5, 1024, 1030, n } do
        if k <= n then
          for _, largest in ipairs { true, false } do
            for _, sorted in ipairs { true, false } do
              same(("topk %d of %d"):format(k, n), 0, function(t)
                return t:topk(k, 2, { largest = largest, sorted = sorted })
              end, x)
            end
          end
        end
      end
      same("columns", 0, function(t) return t:t():topk(1, 1) end, x)
    end
  end)

  it("median is the lower one in the middle, or the first NaN", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "int64", "uint8" } do
      for _, n in ipairs { 1, 2, 31, 32, 33, 1023, 1025, 4100 } do
        local x = mixed(n, dtype)
        same(dtype .. " " .. n, 0, function(t) return t:median(1) end, x)
        same(dtype .. " all of " .. n, 0, function(t) return t:median() end, x)
        if dtype:match "float" then same("no NaN", 0, function(t) return t:median(1) end, x:nan_to_num()) end
      end
    end
    local x = neap.randn({ 7, 12, 5 }, { device = "cpu" })
    same("middle dim", 0, function(t) return t:median(2, { keepdim = true }) end, x)
    same("all of a transposed one", 0, function(t) return t:transpose(1, 3):median() end, x)
    same("0-dim", 0, function(t) return t:median() end, neap.tensor(2.5))
  end)

  it("searchsorted, bincount and runs agree with the CPU's", function()
    for _, n in ipairs { 1, 33, 1025 } do
      local s, v = mixed(n, "float32"):sort(), mixed(70, "float32"):reshape(7, 10)
      for _, right in ipairs { false, true } do
        same("searchsorted", 0, function(a, b) return neap.searchsorted(a, b, { right = right }) end, s, v)
        same("of columns", 0, function(a, b) return neap.searchsorted(a, b:t(), { right = right }) end, s, v)
        same("rows", 0, function(a, b) return neap.searchsorted(a, b, { right = right }) end,
          (mixed(7 * n, "int32"):reshape(7, n):sort()), v:nan_to_num():to "int32")
      end
    end
    for _, n in ipairs { 0, 1, 33, 5000 } do
      local ids = neap.randint(1, 40, { n }, { device = "cpu" })
      same("bincount", 0, function(t) return t:bincount(), t:bincount { minlength = 60 } end, ids)
    end
  end)

  it("unique agrees with the CPU's", function()
    for _, n in ipairs { 1, 33, 3000 } do
      local x = mixed(n, "int64")
      local want, got = table.pack(x:unique()), table.pack(x:to(device):unique())
      for i = 1, 3 do emu.compare("unique " .. n, want[i], got[i], 0) end
    end
  end)

  it("cumsum and cumprod agree with the CPU's for every dtype and length", function()
    for _, dtype in ipairs(emu.everything) do
      local rtol = not dtype:match "float" and 0 or dtype == "float64" and 1e-12 or dtype == "float32" and 1e-6 or 1e-2
      for _, n in ipairs(sizes) do
        local x = neap.randint(0, 1, { n }, { device = "cpu" }):to(dtype)
        if dtype:match "float" then x = (neap.rand({ n }, { device = "cpu" }) / 50 + 0.99):to(dtype) end
        same(("cumsum %s of %d"):format(dtype, n), rtol, function(t) return t:cumsum(1) end, x)
        same(("cumprod %s of %d"):format(dtype, n), rtol, function(t) return t:cumprod(1) end, x)
      end
    end
    local x = neap.ones({ 5000 }, { dtype = "float32", device = "cpu" })
    x[2100], x[4500] = inf, nan
    same("infinity, then NaN", 1e-6, function(t) return t:cumsum(1), t:cumprod(1) end, x)
    x[70] = 0
    same("a zero", 1e-6, function(t) return t:narrow(1, 1, 2000):cumprod(1) end, x)
    local big = neap.full({ 200 }, 3, { dtype = "int64", device = "cpu" })
    same("integers wrap", 0, function(t) return t:cumprod(1) end, big)
  end)

  it("running sums go along any dim of any layout, with their gradients", function()
    local o = { device = "cpu", dtype = "float64" }
    for _, shape in ipairs { { 3, 70, 4 }, { 2, 2100, 2 }, { 70, 3, 5 } } do
      local x, g = neap.rand(shape, o) / 10 + 0.95, neap.rand(shape, o)
      for d = 1, 3 do
        for _, op in ipairs { "cumsum", "cumprod" } do
          same(op, 1e-11, function(t) return t:transpose(1, 3)[op](t:transpose(1, 3), d) end, x)
          same(op .. "'s gradient", 1e-10, function(t, dy)
            local leaf = t:detach():requires_grad_(true)
            leaf[op](leaf, d):backward(dy)
            return leaf.grad
          end, x, g)
        end
      end
    end
    -- each block of parts is added up after the one before: more parts than a block has threads
    local long = neap.randint(-9, 9, { 600001 }, { device = "cpu" })
    same("a long row", 0, function(t) return t:cumsum(1) end, long)
    same("many rows", 1e-12, function(t) return t:cumsum(2) end, neap.rand({ 5000, 70 }, o))
    same("0-dim", 0, function(t) return t:cumsum(1) end, neap.tensor(2.5))
  end)
end)
