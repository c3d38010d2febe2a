--- Losses with every option against tests/golden/losses.lua (PyTorch, float64; tools/golden_losses.py makes it), as
-- functions and as modules; what they refuse.
local neap = require "neap"
local nn = neap.nn
local cases = dofile "tests/golden/losses.lua"

local modules = {
  cross_entropy = "CrossEntropyLoss", nll_loss = "NLLLoss", mse_loss = "MSELoss", l1_loss = "L1Loss",
  smooth_l1_loss = "SmoothL1Loss", huber_loss = "HuberLoss", binary_cross_entropy = "BCELoss",
  binary_cross_entropy_with_logits = "BCEWithLogitsLoss", kl_div = "KLDivLoss", gaussian_nll_loss = "GaussianNLLLoss",
}

local function tensor(golden, dtype)
  local t = neap.tensor({ table.unpack(golden) }, { dtype = golden.dtype == "float64" and dtype or golden.dtype })
  if #golden.shape == 0 then return t[1]:clone() end
  return t:reshape(golden.shape)
end

local function compare(what, got, golden, tolerance)
  assert.equal(#golden.shape, got.ndim, what)
  for i, n in ipairs(golden.shape) do assert.equal(n, got:size(i), what) end
  local flat = got:detach():reshape(-1):totable()
  for i, want in ipairs(golden) do
    assert.is_true(math.abs(flat[i] - want) <= tolerance * math.max(1, math.abs(want)),
      ("%s, element %d: %.17g, golden %.17g"):format(what, i, flat[i], want))
  end
end

local function check(case, dtype, tolerance, as_module)
  local inputs, options = {}, {}
  for i, golden in ipairs(case.inputs) do
    inputs[i] = tensor(golden, dtype)
    if case.grads[i] then inputs[i].requires_grad = true end
  end
  for name, value in pairs(case.options) do options[name] = type(value) == "table" and tensor(value, dtype) or value end
  local out
  if as_module then
    out = nn[modules[case.name]](options)(table.unpack(inputs))
  else
    inputs[#inputs + 1] = options
    out = nn[case.name](table.unpack(inputs))
  end
  compare("value", out, case.output, tolerance)
  local flat = out:reshape(-1)
  ;(flat * neap.arange(1, flat:numel(), { dtype = dtype })):sum():backward()
  for i, golden in ipairs(case.grads) do
    if golden then compare("gradient " .. i, inputs[i].grad, golden, tolerance) end
  end
end

describe("losses equal PyTorch's", function()
  for i, case in ipairs(cases) do
    local names = {}
    for name, value in pairs(case.options) do
      names[#names + 1] = type(value) == "table" and name or name .. " = " .. tostring(value)
    end
    table.sort(names)
    it(("%d: nn.%s {%s}"):format(i, case.name, table.concat(names, ", ")), function()
      check(case, "float64", 1e-12)
      check(case, "float64", 1e-12, true)
      check(case, "float32", 1e-6)
    end)
  end
end)

describe("losses", function()
  it("are 0 with zero gradients where no row counts", function()
    local x = neap.randn({ 2, 3 }, { requires_grad = true })
    local y = neap.tensor { 2, 2 }
    for _, options in ipairs { {}, { weight = neap.ones(3) }, { label_smoothing = 0.1 } } do
      options.ignore_index = 2
      x.grad = nil
      local loss = nn.cross_entropy(x, y, options)
      assert.equal(0, loss:item())
      loss:backward()
      assert.equal(0, x.grad:abs():sum():item())
    end
  end)

  it("count classes from 0 with base = 0", function()
    local x, w = neap.randn(2, 3), neap.tensor { 1.0, 2.0, 0.5 }
    local one = nn.cross_entropy(x, neap.tensor { 1, 3 }, { weight = w }):item()
    assert.equal(one, nn.cross_entropy(x, neap.tensor { 0, 2 }, { weight = w, base = 0 }):item())
  end)

  it("hold at the ends of their domain", function()
    local p, t = neap.tensor({ 0, 1, 0, 1 }, { dtype = "float64" }), neap.tensor({ 0, 1, 1, 0 }, { dtype = "float64" })
    assert.same({ 0.0, 0.0, 100.0, 100.0 }, nn.binary_cross_entropy(p, t, { reduction = "none" }):abs():totable())
    assert.equal(0, nn.kl_div(neap.tensor { -1.0 }, neap.tensor { 0.0 }):item())
  end)

  it("refuse targets that do not fit", function()
    local function refused(code, text, ...)
      local ok, err = pcall(...)
      assert.is_false(ok)
      assert.equal(code, neap.error_code(err), err)
      assert.is_truthy(err:find(text, 1, true), err)
    end
    local x, y = neap.randn(2, 3), neap.tensor { 1, 2 }
    refused("E-SHAPE", "weight must hold one number for each of the 3 classes", nn.cross_entropy, x, y,
      { weight = neap.ones(2) })
    refused("E-ARG", "label_smoothing must be from 0 to 1", nn.cross_entropy, x, y, { label_smoothing = 2 })
    refused("E-SHAPE", "a distribution, of the shape of the input", nn.cross_entropy, x, neap.ones(2))
    refused("E-SHAPE", "must have the same shape", nn.huber_loss, x, neap.ones(2))
    refused("E-ARG", "delta must be a number above 0", nn.huber_loss, x, x, { delta = 0 })
    refused("E-ARG", "a variance is below 0", nn.gaussian_nll_loss, x, x, -neap.ones(2, 3))
    refused("E-ARG", "argument 2 must be a tensor", nn.CrossEntropyLoss(), x)
    refused("E-ARG", "reduction", nn.MSELoss, { reduction = "batchmean" })
    refused("E-INDEX", "", nn.cross_entropy, x, neap.tensor { 1, 4 }, { weight = neap.ones(3) })
  end)

  it("has finite gradients without an upper bound, and moves a variance below eps", function()
    local x = neap.tensor({ 3.0, -200.0 }, { requires_grad = true })
    nn.huber_loss(x, neap.zeros(2), { delta = math.huge, reduction = "sum" }):backward()
    assert.same({ 3.0, -200.0 }, x.grad:totable())
    local var = neap.tensor({ 0.0, 4.0 }, { dtype = "float64", requires_grad = true })
    local one = neap.ones(2, { dtype = "float64" })
    nn.gaussian_nll_loss(one, neap.zeros_like(one), var, { reduction = "sum", eps = 0.5 }):backward()
    assert.same({ (1 / 0.5 - 1 / 0.25) / 2, (1 / 4 - 1 / 16) / 2 }, var.grad:totable())
  end)
end)
