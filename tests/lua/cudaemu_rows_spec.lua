--- Reductions, products and row kernels of the CUDA plug-in, on the emulated device, against the CPU's: sizes around
-- warps, blocks, tiles and parts, in all layouts. Needs libneap-cudaemu.so; without it there is nothing to test.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
local device, same = emu.device, emu.same_of

if not emu.available() then return end

local function layouts(m, n, dtype)
  return emu.views(m, n, function(shape) return neap.randn(shape, { dtype = dtype or "float32", device = "cpu" }) end)
end

describe("on the emulated device", function()
  before_each(function() neap.seed(1) end)

  it("reductions over rows, columns and all agree with the CPU's", function()
    for _, size in ipairs { { 3, 5 }, { 1, 31 }, { 7, 33 }, { 2, 1025 }, { 2, 9000 }, { 70, 40 } } do
      for layout, x in pairs(layouts(size[1], size[2])) do
        for _, op in ipairs { "sum", "mean", "amax", "amin", "var", "std", "norm", "logsumexp", "any", "all",
          "count_nonzero" } do
          local what = ("%s of %d x %d, %s"):format(op, size[1], size[2], layout)
          same(what, 1e-6, function(t) return t[op](t, 2) end, x)
          same(what, 1e-6, function(t) return t[op](t, 1) end, x)
        end
        for _, op in ipairs { "max", "min", "argmax", "argmin" } do
          same(op .. " " .. layout, 0, function(t) return t[op](t, 2) end, x)
        end
      end
    end
  end)

  it("extremes find the first NaN, and the first of equal ones", function()
    local x = neap.zeros({ 3, 700 }, { device = "cpu" })
    x[2][300], x[2][600], x[3][10] = 0 / 0, 0 / 0, 1
    same("max", 0, function(t) return t:max(2) end, x)
    same("argmin", 0, function(t) return t:argmin(2) end, x)
  end)

  it("integers add up and multiply as int64", function()
    local x = neap.arange(1, 5000, { dtype = "int32", device = "cpu" })
    same("sum", 0, function(t) return t:reshape { 1, -1 }:sum(2), t:reshape { 1, -1 }:prod(2) end, x)
  end)

  it("products of any shape and layout agree with the CPU's", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "int32" } do
      local function random(...)
        return (neap.randn({ ... }, { dtype = "float32", device = "cpu" }) * 3):to(dtype)
      end
      -- In float32 a sum of k products, each about 9, is right to ulps of what it is on the way, about 9 sqrt(k),
      -- however small it is in the end: the library's order is not the CPU's.
      local function rtol_of(k)
        if dtype ~= "float32" then return dtype == "float64" and 1e-12 or dtype == "bfloat16" and 2e-2 or 0 end
        return { 2e-6, function(a) return math.abs(a) + 9 * math.sqrt(k) end }
      end
      local function matmul(a, b) return a:matmul(b) end
      local function turned(a, b) return a:t():matmul(b:t()) end
      for _, s in ipairs { { 1, 1, 1 }, { 5, 7, 3 }, { 65, 17, 70 }, { 2, 300, 5 }, { 64, 16, 64 } } do
        local m, k, n = table.unpack(s)
        local rtol = rtol_of(k)
        local what = ("%s %d x %d x %d"):format(dtype, m, k, n)
        same(what, rtol, matmul, random(m, k), random(k, n))
        same(what .. ", transposed", rtol, turned, random(k, m), random(n, k))
        same(what .. ", batches", rtol, matmul, random(2, 1, m, k), random(3, k, n))
        same(what .. ", linear", rtol, neap.linear, random(2, m, k), random(n, k), random(n))
      end
      same("vectors", rtol_of(50), function(a, b) return a:matmul(b), b:matmul(a:t()) end, random(4, 50), random(50))
    end
  end)

  --- The result of f for copies of the tensors, and their gradients from g; the first n of them have one.
  local function slopes(f, n)
    return function(g, ...)
      local leaves, all = {}, {}
      for k, t in ipairs { ... } do leaves[k] = k <= (n or k) and t:detach():requires_grad_(true) or t end
      local y = f(table.unpack(leaves))
      y:backward(g)
      all[1] = y:detach()
      for k = 1, n or #leaves do all[#all + 1] = leaves[k].grad end
      return table.unpack(all)
    end
  end

  it("softmax and log_softmax agree with the CPU's, gradients too", function()
    for _, dtype in ipairs { "float32", "float64", "float16" } do
      local rtol = dtype == "float64" and 1e-12 or dtype == "float16" and 4e-3 or 2e-5
      for _, size in ipairs { { 3, 5 }, { 9, 33 }, { 2, 1100 }, { 40, 6 } } do
        for layout, x in pairs(layouts(size[1], size[2], dtype)) do
          local what = ("%s %d x %d, %s: "):format(dtype, size[1], size[2], layout)
          local g = neap.randn(size, { dtype = dtype, device = "cpu" })
          for dim = 1, 2 do
            same(what .. "softmax", rtol, slopes(function(t) return t:softmax(dim) end), g, x)
            same(what .. "log_softmax", rtol, slopes(function(t) return t:log_softmax(dim) end), g, x)
          end
        end
      end
    end
  end)

  it("layer_norm and rms_norm agree with the CPU's, weights and biases too", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local rtol = dtype == "float64" and 1e-11 or dtype == "bfloat16" and 6e-2 or 1e-4
      for _, size in ipairs { { 3, 5 }, { 50, 33 }, { 2, 1100 }, { 1030, 4 } } do
        local o = { dtype = dtype, device = "cpu" }
        local w, b, g = neap.randn({ size[2] }, o), neap.randn({ size[2] }, o), neap.randn(size, o)
        for layout, x in pairs(layouts(size[1], size[2], dtype)) do
          local what = ("%s %d x %d, %s: "):format(dtype, size[1], size[2], layout)
          same(what .. "layer_norm", rtol, slopes(neap.layer_norm), g, x, w, b)
          same(what .. "rms_norm", rtol, slopes(neap.rms_norm), g, x, w)
        end
      end
    end
  end)

  it("cross_entropy and nll_loss agree with the CPU's, and name a label that is none", function()
    for _, dtype in ipairs { "float32", "float64", "float16" } do
      local rtol = dtype == "float64" and 1e-12 or dtype == "float16" and 4e-3 or 2e-5
      for _, size in ipairs { { 3, 5 }, { 300, 33 }, { 2, 1100 }, { 4, 3, 5 } } do
        local o = { dtype = dtype, device = "cpu" }
        local x, shape = neap.randn(size, o), { size[1], size[3] }
        local target = neap.randint(1, size[2], shape, { device = "cpu" })
        for _, reduction in ipairs { "none", "mean", "sum" } do
          for _, name in ipairs { "cross_entropy", "nll_loss" } do
            local g = neap.randn(reduction == "none" and shape or {}, o)
            local f = slopes(function(t, labels) return neap.nn[name](t, labels, {
              reduction = reduction, ignore_index = 1 }) end, 1)
            same(("%s %s of %s, %s"):format(dtype, name, tostring(x.shape), reduction), rtol, f, g, x, target)
          end
        end
      end
    end
    local x = neap.zeros({ 3, 4 }, { device = device })
    local ok, err = pcall(neap.nn.cross_entropy, x, neap.tensor({ 1, 5, 2 }, { dtype = "int64", device = device }))
    assert.is_false(ok)
    assert.matches("target%[2%] is 5", tostring(err))
    assert.matches("E%-LABEL", tostring(err))
  end)
end)
