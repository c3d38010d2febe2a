--- Random choices: how often, never what has no weight, the generator's stream, errors.
local neap = require "neap"

local function code_of(fn)
  local ok, err = pcall(fn)
  assert.is_false(ok)
  return neap.error_code(err), err
end

--- Shares of the positions 1 .. n among ids. They are fixed by the seed: no test here can fail now and then.
local function shares(ids, n)
  local list, total = {}, ids:numel()
  for i = 1, n do list[i] = ids:eq(i):sum():item() / total end
  return list
end

local function near(want, got, tolerance)
  for i = 1, #want do
    assert.is_true(math.abs(want[i] - got[i]) <= tolerance, ("%d: %g, want %g"):format(i, got[i], want[i]))
  end
end

describe("multinomial", function()
  local weights = neap.tensor { 1.0, 0.0, 2.0, 5.0 }

  it("draws in proportion to the weights, with replacement", function()
    local ids = weights:multinomial(20000, { replacement = true, generator = neap.generator(1) })
    assert.equal("int64", ids.dtype)
    near({ 0.125, 0, 0.25, 0.625 }, shares(ids, 4), 0.012)
  end)

  it("draws the first in proportion to the weights, the second among the rest, without replacement", function()
    local rows = neap.multinomial(weights:expand(20000, 4), 2, { generator = neap.generator(2) })
    near({ 0.125, 0, 0.25, 0.625 }, shares(rows:select(2, 1), 4), 0.012)
    near({ 2 / 8 / 6 + 5 / 8 / 3, 0, 1 / 8 * 2 / 7 + 5 / 8 * 2 / 3, 1 / 8 * 5 / 7 + 2 / 8 * 5 / 6 },
      shares(rows:select(2, 2), 4), 0.012)
    assert.is_false(neap.any(rows:select(2, 1):eq(rows:select(2, 2))))
  end)

  it("gives every position once when all are drawn", function()
    local ids = neap.rand({ 1000 }, { generator = neap.generator(3) }):add(0.01):multinomial(1000)
    assert.is_true(neap.equal(neap.zeros(1000):index_add(1, ids, neap.ones(1000)),
      neap.ones(1000)))
  end)

  it("goes on in the generator's stream, and counts from a base", function()
    local g = neap.generator(4)
    local state = g:state()
    local a = weights:multinomial(50, { replacement = true, generator = g })
    local b = weights:multinomial(50, { replacement = true, generator = g })
    g:set_state(state)
    local again = weights:multinomial(50, { replacement = true, generator = g, base = 0 })
    assert.is_true(neap.equal(a - 1, again))
    assert.is_false(neap.equal(a, b))
  end)

  it("takes any numbers as weights, also a single one", function()
    assert.equal(1, neap.tensor({ 3 }):multinomial(1):item())
    assert.is_true(neap.equal(neap.tensor({ 0, 7, 0 }):multinomial(1), { 2 }))
  end)

  it("refuses weights that are no distribution, and more than there is", function()
    local function refused(code, list, ...)
      local rest = { ... }
      assert.equal(code, (code_of(function() neap.tensor(list):multinomial(table.unpack(rest)) end)))
    end
    refused("E-ARG", { -0.1, 0.5 }, 1)
    refused("E-ARG", { 0.0, 0.0 }, 1, { replacement = true })
    refused("E-ARG", { 0 / 0, 1.0 }, 1)
    refused("E-ARG", { math.huge, 1.0 }, 1)
    refused("E-ARG", { 1.0, 0.0 }, 2)
    refused("E-ARG", { 1.0, 1.0 }, 3)
    refused("E-ARG", { 1.0, 1.0 }, 0)
    refused("E-DIMS", { { { 1.0 } } }, 1)
    local _, err = code_of(function() neap.tensor({ { 1.0, 1.0 }, { 1.0, -2.0 } }):multinomial(1) end)
    assert.is_truthy(err:find("row 2: weight 2 is -2", 1, true), err)
  end)
end)

describe("bernoulli", function()
  it("draws ones with the given probabilities", function()
    local p = neap.tensor { 0.0, 0.25, 1.0 }:expand(20000, 3)
    near({ 0, 0.25, 1 }, p:bernoulli({ generator = neap.generator(5) }):mean(1):totable(), 0.012)
  end)

  it("refuses what is no probability", function()
    assert.equal("E-ARG", (code_of(function() neap.tensor({ 1.5 }):bernoulli() end)))
    assert.equal("E-ARG", (code_of(function() neap.tensor({ 0 / 0 }):bernoulli() end)))
    assert.equal("E-ARG", (code_of(function() neap.zeros(2):bernoulli_(-0.1) end)))
    assert.equal("E-DTYPE", (code_of(function() neap.tensor({ 1 }):bernoulli() end)))
  end)

  it("fills any dtype in place", function()
    for _, dtype in ipairs { "float32", "float64", "int64", "uint8", "bool" } do
      local x = neap.zeros({ 20000 }, { dtype = dtype })
      x:bernoulli_(0.3, { generator = neap.generator(6) })
      assert.equal(dtype, x.dtype)
      near({ 0.3 }, { x:sum():item() / 20000 }, 0.012)
    end
    assert.is_true(neap.equal(neap.zeros(100):bernoulli_(1), neap.ones(100)))
  end)
end)

describe("normal and exponential_", function()
  it("have the moments they are asked for", function()
    local x = neap.normal(3, 0.5, { 20000 }, { generator = neap.generator(7), dtype = "float64" })
    near({ 3, 0.5 }, { x:mean():item(), x:std():item() }, 0.02)
    local y = neap.zeros(20000):exponential_(4, { generator = neap.generator(8) })
    near({ 0.25, 0.25 }, { y:mean():item(), y:std():item() }, 0.01)
    assert.is_true(neap.all(y:gt(0)))
  end)

  it("draw what normal_ draws", function()
    local a = neap.normal(1, 2, { 3, 5 }, { generator = neap.generator(9) })
    assert.is_true(neap.equal(a, neap.zeros(3, 5):normal_(1, 2, { generator = neap.generator(9) })))
  end)

  it("refuse impossible moments", function()
    assert.equal("E-ARG", (code_of(function() neap.normal(0, -1, { 2 }) end)))
    assert.equal("E-ARG", (code_of(function() neap.zeros(2):exponential_(0) end)))
  end)
end)

it("uniform_() and normal_() are rand and randn", function()
  for name, made in pairs { uniform_ = "rand", normal_ = "randn" } do
    neap.seed(3)
    local filled = neap.zeros(50)
    filled[name](filled)
    neap.seed(3)
    assert.is_true(neap.equal(filled, neap[made](50)), name)
  end
end)
