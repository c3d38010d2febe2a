--- Draws by probabilities and permutations on the emulated device: the CPU's, bit for bit.
local neap = require "neap"
local emu = require "tests.lua.cudaemu_help"
if not emu.available() then return end

local same, refused = emu.same, emu.refused
local nan, inf = 0 / 0, math.huge

local function weights_of(shape, dtype)
  local w = neap.rand(shape, { generator = neap.generator(5), device = "cpu" })
  return (w * w:gt(0.3)):to(dtype or "float32")
end

describe("sampling on the emulated device", function()
  it("bernoulli", function()
    for _, dtype in ipairs(emu.floats) do
      for name, x in pairs {
        rows = weights_of({ 5, 33 }, dtype), columns = weights_of({ 33, 5 }, dtype):t(),
        expanded = weights_of({ 5, 1 }, dtype):expand(5, 7), sure = neap.tensor({ 0, 1, 0, 1 }, { dtype = dtype }),
        zero_dim = neap.tensor(0.5, { dtype = dtype }),
      } do
        same(("bernoulli of %s, %s"):format(dtype, name), function(on)
          return neap.bernoulli(on(x), { generator = neap.generator(3) })
        end)
      end
    end
    for _, n in ipairs(emu.sizes) do
      same("bernoulli of " .. n, function(on)
        return neap.bernoulli(on(weights_of { n }), { generator = neap.generator(n) })
      end)
    end
  end)

  it("multinomial with and without replacement", function()
    for _, dtype in ipairs(emu.floats) do
      for _, replacement in ipairs { false, true } do
        local o = { replacement = replacement }
        for name, w in pairs {
          vector = weights_of({ 70 }, dtype), rows = weights_of({ 5, 33 }, dtype),
          columns = weights_of({ 33, 5 }, dtype):t(), none = weights_of({ 0, 5 }, dtype),
        } do
          for _, n in ipairs { 1, 4, 12 } do
            same(("multinomial of %s, %s, replacement %s"):format(dtype, name, replacement), function(on)
              o.generator = neap.generator(n)
              if name == "none" and n > 5 then return on(w) end
              return neap.multinomial(on(w), n, o)
            end)
          end
        end
      end
    end
    for _, n in ipairs(emu.sizes) do
      if n > 0 then
        local w = neap.rand({ 2, n }, { generator = neap.generator(n), device = "cpu" }) + 0.1
        same("sizes", function(on)
          return neap.multinomial(on(w), math.min(n, 40), { generator = neap.generator(1), base = 0 }),
            neap.multinomial(on(w), 1025, { generator = neap.generator(1), replacement = true })
        end)
      end
    end
    same("all of them", function(on)
      return neap.multinomial(on(neap.ones { 300 }), 300, { generator = neap.generator(2) })
    end)
    same("one that is sure", function(on)
      return neap.multinomial(on(neap.tensor({ 0, 0, 1e-300, 0 }, { dtype = "float64" })), 1,
        { generator = neap.generator(2) }),
        neap.multinomial(on(neap.tensor { 0, 1, 0 }), 5, { generator = neap.generator(2), replacement = true })
    end)
  end)

  it("randperm is the CPU's permutation", function()
    for _, n in ipairs { 0, 1, 2, 3, 31, 32, 33, 1023, 1025, 20000 } do
      for seed = 1, n < 100 and 20 or 2 do
        same("randperm of " .. n, function(on)
          local device = on(neap.zeros { 1 }).device
          return neap.randperm(n, { device = device, generator = neap.generator(seed) }),
            neap.randperm(n, { device = device, generator = neap.generator(seed), base = 0 })
        end)
      end
    end
  end)

  it("what the CPU refuses is refused in its words", function()
    for _, p in ipairs { 1.5, -0.25, nan } do
      refused("bernoulli", "E-ARG", function(on) return neap.bernoulli(on(neap.tensor { 0.5, p })) end)
    end
    for _, w in ipairs { { 1, -1 }, { nan, 1 }, { 1, inf }, { 0, 0 } } do
      for _, replacement in ipairs { false, true } do
        refused("multinomial", "E-ARG", function(on)
          return neap.multinomial(on(neap.tensor(w)), 1, { replacement = replacement })
        end)
        refused("a row of multinomial", "E-ARG", function(on)
          return neap.multinomial(on(neap.tensor { { 1, 1 }, w }), 1, { replacement = replacement })
        end)
        refused("an infinite sum", "E-ARG", function(on)
          local far = neap.full({ 300 }, 1e308, { dtype = "float64" })
          return neap.multinomial(on(far), 1, { replacement = replacement })
        end)
      end
    end
    refused("too few", "E-ARG", function(on) return neap.multinomial(on(neap.tensor { 0, 1, 1, 0 }), 3) end)
  end)
end)
