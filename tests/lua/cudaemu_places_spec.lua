--- Reading and writing at positions on the emulated device: the CPU's bits, and nothing that ran there.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
if not emu.available() then return end

local same, refused = emu.same, emu.refused

local function ids_of(shape, size, seed, o)
  local from, to = o and o.from or 1, o and o.to or size
  return neap.randint(from, to, shape, { generator = neap.generator(seed), device = "cpu" })
end

--- The gradient of fn(x, ...) in its first operand, from weights of its own.
local function slope(fn)
  return function(x, ...)
    x = x:detach():requires_grad_()
    local y = fn(x, ...)
    local g = neap.rand(y.shape, { generator = neap.generator(9), dtype = y.dtype, device = "cpu" }):to(y.device)
    return neap.grad(y, { x }, { grad_outputs = g })[1]
  end
end

describe("one position an element, on the emulated device", function()
  it("gather and max_pick read what the CPU reads", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        same("gather along 2, " .. name .. " " .. dtype, function(on)
          return on(x):gather(2, on(ids_of({ 4, 9 }, 7, 2)))
        end)
        same("gather along 1, " .. name .. " " .. dtype, function(on)
          return on(x):gather(1, on(ids_of({ 6, 9 }, 5, 3)):t():narrow(1, 2, 7):t())
        end)
      end
    end
    same("int32, from the end", function(on)
      return on(emu.values({ 5 }, "float32")):gather(1, on(neap.tensor({ -1, -5, 1 }, { dtype = "int32" })))
    end)
  end)

  it("sizes around warps and blocks", function()
    for _, n in ipairs(emu.sizes) do
      if n > 0 then
        local x, ids = emu.values({ n }, "float32"), ids_of({ n + 3 }, n, 4)
        same("gather of " .. n, function(on) return on(x):gather(1, on(ids)) end)
        same("gather_backward of " .. n, function(on)
          return slope(function(t) return t:gather(1, on(ids)) end)(on(x))
        end)
        same("scatter of " .. n, function(on)
          return on(x):scatter(1, on(ids), on(emu.values({ n + 3 }, "float32", 5)))
        end)
      end
    end
    same("no ids", function(on)
      local x, none = on(emu.values({ 3, 4 }, "float32")), on(neap.zeros({ 3, 0 }, { dtype = "int64" }))
      return x:gather(2, none), x:scatter(2, none, 1), x:scatter_add(2, none, x:narrow(2, 1, 0)),
        x:index_copy(1, none:narrow(2, 1, 0):reshape(0), 1)
    end)
    same("nothing to read from", function(on)
      local x, none = on(neap.zeros { 0, 4 }), on(neap.zeros({ 0, 4 }, { dtype = "int64" }))
      return x:gather(2, none), x:scatter(2, none, 1), x:scatter_add(1, none, x)
    end)
  end)

  it("scatter_add and gather_backward add in the order of the positions", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        for dim, shape in ipairs { { 20, 6 }, { 4, 20 } } do
          local ids = ids_of(shape, dim == 1 and 5 or 7, 6)
          local src = dtype:match "float"
              and neap.rand(shape, { generator = neap.generator(3), device = "cpu" }):to(dtype)
            or emu.values(shape, dtype, 3)
          local what = ("scatter_add along %d, %s %s"):format(dim, name, dtype)
          same(what, function(on) return on(x):scatter_add(dim, on(ids), on(src)) end)
          same(what .. ", from a view", function(on)
            return on(x):scatter_add(dim, on(ids), on(src:t():contiguous()):t())
          end)
          if name ~= "expanded" then
            same(what .. ", in place", function(on)
              local y = on(x)
              y = name == "columns" and y:t():clone():t() or y:clone()
              return y:scatter_add_(dim, on(ids), on(src))
            end)
          end
          if dtype:match "float" then
            same("gather_backward", function(on)
              return slope(function(t) return t:gather(dim, on(ids)) end)(on(x))
            end)
          end
        end
      end
    end
  end)

  it("scatter leaves the last of several writes", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        local ids, v = ids_of({ 4, 20 }, 7, 7), emu.values({ 4, 20 }, dtype, 8)
        same("scatter, " .. name .. " " .. dtype, function(on) return on(x):scatter(2, on(ids), on(v)) end)
        same("a number, " .. name .. " " .. dtype, function(on) return on(x):scatter(2, on(ids), 1) end)
        same("a row, " .. name .. " " .. dtype, function(on)
          return on(x):scatter(1, on(ids_of({ 9, 6 }, 5, 1)), on(v:reshape(-1):narrow(1, 1, 6)))
        end)
      end
      same("in a view, " .. dtype, function(on)
        local y = on(emu.values({ 6, 5 }, dtype)):clone()
        y:t():narrow(1, 2, 3):scatter_(1, on(ids_of({ 4, 6 }, 3, 2)), on(emu.values({ 4, 6 }, dtype, 4)))
        return y
      end)
    end
    same("large integers", function(on)
      return on(neap.zeros(2, { dtype = "int64" })):scatter(1, on(neap.tensor { 2 }), math.maxinteger)
    end)
  end)

  it("gradients of scatter know which writes were overwritten", function()
    local ids = ids_of({ 3, 8 }, 5, 2)
    same("of x", function(on)
      return slope(function(x) return x:scatter(2, on(ids), 2) end)(on(emu.values({ 3, 5 }, "float32")))
    end)
    for _, dim in ipairs { 1, 2 } do
      same("of the values", function(on)
        local x = on(emu.values({ 5, 8 }, "float64"))
        return slope(function(v) return x:scatter(dim, on(ids), v) end)(on(emu.values({ 3, 8 }, "float64")))
      end)
    end
  end)

  it("max and its kin give their gradient to what they chose, twice", function()
    for _, size in ipairs { { 1, 1 }, { 5, 33 }, { 3, 1025 } } do
      for name, x in pairs(emu.layouts(size[1], size[2], "float32")) do
        for _, keepdim in ipairs { false, true } do
          for dim = 1, 2 do
            local function most(t) return (t:max(dim, { keepdim = keepdim })) end
            same("max_scatter, " .. name, function(on) return slope(most)(on(x)) end)
            same("max_pick, " .. name, function(on)
              local t = on(x):detach():requires_grad_()
              local seed = neap.ones(most(t).shape):to(t.device):requires_grad_()
              local g = neap.grad(most(t), { t }, { grad_outputs = seed, create_graph = true })[1]
              return neap.grad((g * on(x)):sum(), { seed })[1]
            end)
          end
        end
      end
    end
    same("a vector", function(on)
      return slope(function(t) return (t:min(1)) end)(on(emu.values({ 40 }, "float64")))
    end)
  end)

  it("positions outside are refused in the CPU's words, and nothing is written", function()
    local bad = neap.tensor { { 1, 6 }, { 0, 2 } }
    for name, fn in pairs {
      gather = function(x, i) return x:gather(2, i) end,
      scatter = function(x, i) return x:scatter_(2, i, 7) end,
      scatter_add = function(x, i) return x:scatter_add_(2, i, x:narrow(1, 1, 2):narrow(2, 1, 2):clone()) end,
      index_copy = function(x, i) return x:index_copy_(1, i:reshape(-1), 7) end,
    } do
      refused(name, "E-INDEX", function(on)
        local x = on(neap.ones { 4, 5 }):clone()
        local ok, err = pcall(fn, x, on(bad))
        assert.is_true(neap.equal(x:to "cpu", neap.ones { 4, 5 }), name)
        if not ok then error(err, 0) end
      end)
    end
  end)
end)

describe("slices by positions, on the emulated device", function()
  it("index_copy leaves the last of several writes", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        same("rows, " .. name .. " " .. dtype, function(on)
          return on(x):index_copy(1, on(ids_of({ 9 }, 5, 2)), on(emu.values({ 9, 7 }, dtype, 3)))
        end)
        same("columns, " .. name .. " " .. dtype, function(on)
          return on(x):index_copy(2, on(neap.tensor { -1, 3, 7 }), on(emu.values({ 3, 5 }, dtype, 3)):t())
        end)
        same("a number and a broadcast row, " .. name .. " " .. dtype, function(on)
          local y = on(x):index_copy(1, on(ids_of({ 2, 2 }, 5, 4)), 1)
          return y, y:index_copy(1, on(ids_of({ 3 }, 5, 4)), on(emu.values({ 7 }, dtype, 5)))
        end)
      end
      same("another dtype, " .. dtype, function(on)
        return on(emu.values({ 4, 3 }, "float16")):index_copy(1, on(ids_of({ 6 }, 4, 1)),
          on(emu.values({ 6, 3 }, dtype)))
      end)
      same("in a view, " .. dtype, function(on)
        local y = on(emu.values({ 6, 5 }, dtype)):clone()
        y:t():narrow(1, 2, 3):index_copy_(1, on(ids_of({ 4 }, 3, 2)), on(emu.values({ 4, 6 }, dtype, 4)))
        return y
      end)
    end
    for _, n in ipairs(emu.sizes) do
      same("sizes", function(on)
        return on(emu.values({ 37, 3 }, "float32")):index_copy(1, on(ids_of({ n }, 37, 2)),
          on(emu.values({ n, 3 }, "float32", 3)))
      end)
    end
  end)

  it("index_add in a view", function()
    for _, dtype in ipairs { "float32", "float16", "int32" } do
      same("index_add_ in a view, " .. dtype, function(on)
        local y = on(emu.values({ 6, 5 }, dtype)):clone()
        local view = y:t():narrow(1, 2, 3)
        view:index_add_(1, on(ids_of({ 9 }, 3, 2)), on(emu.values({ 9, 6 }, dtype, 4)))
        view:index_add_(1, on(neap.zeros({ 0 }, { dtype = "int64" })), on(emu.values({ 0, 6 }, dtype)))
        return y
      end)
    end
  end)

  it("index_copy's gradients", function()
    local ids = ids_of({ 6 }, 4, 3)
    same("of x", function(on)
      return slope(function(x) return x:index_copy(1, on(ids), 2) end)(on(emu.values({ 4, 3 }, "float32")))
    end)
    for _, shape in ipairs { { 6, 3 }, { 1, 3 }, { 3 } } do
      same("of the values", function(on)
        local x = on(emu.values({ 4, 3 }, "float32"))
        return slope(function(v) return x:index_copy(1, on(ids), v) end)(on(emu.values(shape, "float32")))
      end)
    end
  end)
end)
