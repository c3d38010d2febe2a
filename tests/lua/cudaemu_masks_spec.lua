--- Masks, positions as values, triangles and products of others on the emulated device: the CPU's results, and nothing
-- that ran there.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
if not emu.available() then return end

local same, refused = emu.same, emu.refused

local function slope(fn)
  return function(x)
    x = x:detach():requires_grad_()
    local y = fn(x)
    local g = neap.rand(y.shape, { generator = neap.generator(9), dtype = y.dtype, device = "cpu" }):to(y.device)
    return neap.grad(y, { x }, { grad_outputs = g })[1]
  end
end

describe("masks on the emulated device", function()
  it("masked_select takes what is chosen, in order", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        for shape, m in pairs(emu.layouts(5, 7, "bool", 3)) do
          same(("masked_select, %s %s by %s"):format(name, dtype, shape), function(on)
            return on(x):masked_select(on(m))
          end)
        end
        same("a row of masks", function(on) return on(x):masked_select(on(emu.values({ 7 }, "bool", 2))) end)
        same("more masks than x", function(on)
          return on(x):masked_select(on(emu.values({ 3, 5, 1 }, "bool", 2)))
        end)
      end
    end
    for _, n in ipairs { 0, 1, 31, 32, 33, 1023, 1025, 4095, 4096, 4097, 9000 } do
      for _, m in ipairs { emu.values({ n }, "bool", 2), neap.ones({ n }, { dtype = "bool" }),
        neap.zeros({ n }, { dtype = "bool" }) } do
        local x = emu.values({ n }, "float32")
        same("select of " .. n, function(on) return on(x):masked_select(on(m)) end)
        same("nonzero of " .. n, function(on) return on(m):nonzero() end)
        same("select_backward of " .. n, function(on)
          return slope(function(t) return t:masked_select(on(m)) end)(on(x))
        end)
      end
    end
    same("0-dim", function(on)
      local yes = on(neap.tensor(true))
      return on(neap.tensor(2)):masked_select(yes), yes:nonzero()
    end)
  end)

  it("masked_assign writes one value, or one for each", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        for shape, m in pairs(emu.layouts(5, 7, "bool", 3)) do
          local what = ("masked_assign, %s %s by %s"):format(name, dtype, shape)
          local n = math.tointeger(m:sum():item())
          same(what, function(on) return on(x):masked_assign(on(m), on(emu.values({ n }, dtype, 4))) end)
          same(what .. ", a number", function(on) return on(x):masked_assign(on(m), 1) end)
          same(what .. ", every second value", function(on)
            return on(x):masked_assign(on(m), on(emu.values({ n, 2 }, dtype, 4)):select(2, 1))
          end)
          same(what .. ", of another dtype", function(on)
            return on(x):masked_assign(on(m), on(emu.values({ n }, "float64", 4)))
          end)
        end
      end
      same("in a view, " .. dtype, function(on)
        local y, m = on(emu.values({ 6, 5 }, dtype)):clone(), emu.values({ 3, 6 }, "bool", 2)
        y:t():narrow(1, 2, 3):masked_assign_(on(m), on(emu.values({ math.tointeger(m:sum():item()) }, dtype, 4)))
        return y
      end)
      same("x[mask] = v, " .. dtype, function(on)
        local y = on(emu.values({ 4, 3 }, dtype)):clone()
        y[on(emu.values({ 4, 3 }, "bool"))] = 1
        y[on(emu.values({ 4 }, "bool", 5))] = on(emu.values({ 3 }, dtype, 7))
        return y
      end)
    end
    same("nothing chosen", function(on)
      local x, none = on(emu.values({ 4 }, "float32")), on(neap.zeros(4, { dtype = "bool" }))
      return x:masked_assign(none, on(neap.zeros { 0 })), x:masked_assign(none, 3)
    end)
    same("no elements", function(on)
      return on(neap.zeros { 0, 3 }):masked_assign(on(neap.zeros({ 3 }, { dtype = "bool" })), 3)
    end)
  end)

  it("their gradients", function()
    local m = emu.values({ 5, 7 }, "bool", 3)
    local v = neap.rand({ math.tointeger(m:sum():item()) }, { generator = neap.generator(2), device = "cpu" })
    local x = emu.values({ 5, 7 }, "float32")
    same("masked_select", function(on) return slope(function(t) return t:masked_select(on(m)) end)(on(x)) end)
    same("masked_assign, of x", function(on)
      return slope(function(t) return t:masked_assign(on(m), on(v)) end)(on(x))
    end)
    same("masked_assign, of v", function(on)
      return slope(function(t) return on(x):masked_assign(on(m), t) end)(on(v))
    end)
  end)

  it("values that do not fit are refused in the CPU's words, and nothing is written", function()
    refused("masked_assign_", "E-SHAPE", function(on)
      local x = on(neap.ones { 3 }):clone()
      local ok, err = pcall(x.masked_assign_, x, on(neap.tensor { true, true, false }), on(neap.zeros { 3 }))
      assert.is_true(neap.equal(x:to "cpu", neap.ones { 3 }))
      if not ok then error(err, 0) end
    end)
  end)

  it("nonzero names the places of all numbers but 0, NaN among them", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        if dtype ~= "bool" then
          same("nonzero, " .. name .. " " .. dtype, function(on) return on(x):gt(50):nonzero() end)
        end
        same("nonzero of numbers, " .. name .. " " .. dtype, function(on) return on(x):nonzero() end)
      end
    end
    same("nan", function(on) return on(neap.tensor { 0, 0 / 0, -0.0, 1e-40 }):nonzero() end)
    same("float16", function(on) return on(neap.tensor({ 0, 6e-8, 1 }, { dtype = "float16" })):nonzero() end)
    same("int64", function(on) return on(neap.tensor({ 0, math.mininteger, 1 << 40 })):nonzero() end)
    same("many dims", function(on) return on(emu.values({ 2, 3, 1, 2, 5 }, "bool")):nonzero() end)
  end)
end)

describe("positions as values, on the emulated device", function()
  it("one_hot", function()
    for _, n in ipairs(emu.sizes) do
      local ids = neap.randint(1, 5, { n }, { generator = neap.generator(2), device = "cpu" })
      same("one_hot of " .. n, function(on) return neap.one_hot(on(ids), 5) end)
    end
    for _, dtype in ipairs(emu.everything) do
      same("one_hot, " .. dtype, function(on)
        return neap.one_hot(on(neap.tensor({ { 0, 3 }, { 2, 2 } }, { dtype = "int32" })):t(), 4,
          { base = 0, dtype = dtype })
      end)
    end
    refused("one_hot", "E-LABEL", function(on) return neap.one_hot(on(neap.tensor { 1, -1 }), 3) end)
    refused("one_hot", "E-LABEL", function(on) return neap.one_hot(on(neap.tensor { 1, 4 }), 3) end)
  end)

  it("x[i, j] by several tensors", function()
    local i, j = neap.tensor { { 1 }, { 3 }, { -1 } }, neap.tensor { 2, 5 }
    same("read", function(on) return on(emu.values({ 3, 5, 2 }, "float32"))[{ on(i), on(j) }] end)
    same("write", function(on)
      local x = on(emu.values({ 3, 5, 2 }, "float32")):clone()
      x[{ on(i), on(j) }] = on(emu.values({ 3, 2, 2 }, "float32", 4))
      return x
    end)
    refused("outside", "E-INDEX", function(on)
      return on(emu.values({ 3, 5 }, "float32"))[{ on(i), on(neap.tensor { 2, 6 }) }]
    end)
  end)

  it("repeat_interleave by a tensor", function()
    for _, n in ipairs(emu.sizes) do
      if n > 0 then
        local times = neap.randint(0, 3, { n }, { generator = neap.generator(n), device = "cpu" })
        for _, dtype in ipairs { "int64", "int32", "uint8" } do
          same("repeats of " .. n, function(on)
            return on(emu.values({ n }, "float32")):repeat_interleave(on(times:to(dtype)))
          end)
        end
      end
    end
    same("every second", function(on)
      local times = on(neap.tensor { { 2, 9 }, { 0, 9 }, { 3, 9 }, { 0, 9 } }):select(2, 1)
      return on(emu.values({ 4, 2 }, "int32")):repeat_interleave(times, 1)
    end)
  end)

  it("tril and triu", function()
    for _, dtype in ipairs(emu.everything) do
      for name, x in pairs(emu.layouts(5, 7, dtype)) do
        for _, diagonal in ipairs { 0, 1, -2, 9, -9 } do
          same(("tril(%d), %s %s"):format(diagonal, name, dtype), function(on)
            return on(x):tril(diagonal), on(x):triu(diagonal), on(x):t():triu(diagonal)
          end)
        end
      end
    end
    same("batches", function(on) return on(emu.values({ 2, 3, 40, 33 }, "float32")):tril() end)
    same("nan beyond", function(on) return on(neap.full({ 3, 3 }, 0 / 0)):tril() end)
    same("empty", function(on) return on(neap.zeros { 2, 0, 3 }):tril(), on(neap.zeros { 3, 0 }):triu() end)
    same("gradient", function(on)
      return slope(function(x) return x:tril(-1) end)(on(emu.values({ 5, 7 }, "float32")))
    end)
  end)

  it("unfold gives its windows back", function()
    for _, dtype in ipairs(emu.floats) do
      for _, size in ipairs { { 3, 1 }, { 3, 2 }, { 2, 5 }, { 7, 1 } } do
        for dim = 1, 2 do
          same(("unfold %d by %d, %s"):format(size[1], size[2], dtype), function(on)
            return slope(function(x) return x:unfold(dim, size[1], size[2]) end)(on(emu.values({ 9, 33 }, dtype)))
          end)
        end
      end
    end
  end)
end)

describe("products of others, on the emulated device", function()
  local function product(dim)
    return function(x) return dim and x:prod(dim) or x:prod() end
  end

  it("first and second gradients of prod, exact with zeros", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local rtol = dtype == "float64" and 1e-12 or dtype == "bfloat16" and 2e-2 or 1e-6
      for _, size in ipairs { { 1, 1 }, { 3, 5 }, { 2, 33 }, { 2, 256 }, { 3, 257 }, { 2, 1025 } } do
        local x = (neap.rand(size, { generator = neap.generator(3), device = "cpu" }) * 0.2 + 0.9):to(dtype)
        if size[2] > 4 then x[1][3], x[2][2], x[2][5] = 0, 0, 0 end
        for name, layout in pairs {
          rows = function(t) return t end, columns = function(t) return t:t():clone():t() end,
        } do
          for _, dim in ipairs { false, 1, 2 } do
            local what = ("%s %d x %d along %s, %s"):format(dtype, size[1], size[2], dim, name)
            same(what, function(on) return slope(product(dim))(layout(on(x))) end, rtol)
            same(what .. ", twice", function(on)
              local t = layout(on(x)):detach():requires_grad_()
              local y = product(dim)(t)
              local g = neap.grad(y:sum(), { t }, { create_graph = true })[1]
              local h = neap.rand(size, { generator = neap.generator(4), dtype = dtype, device = "cpu" }):to(t.device)
              return neap.grad((g * h):sum(), { t })[1]
            end, dtype == "bfloat16" and 4e-2 or rtol * 10)
          end
        end
      end
    end
  end)
end)
