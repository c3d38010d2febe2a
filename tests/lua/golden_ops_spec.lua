--- Values and gradients of the ops against tests/golden/ops.lua (PyTorch, float64; its first line says which).
local neap = require "neap"
local cases = dofile "tests/golden/ops.lua"

-- How Neap spells each case of the golden file.
local call = {
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end,
  sum_dim = function(x) return x:sum(2) end,
  sum_dims_keepdim = function(x) return x:sum({ 1, 3 }, { keepdim = true }) end,
  mean_dim = function(x) return x:mean(-1) end,
  max = function(x) return (x:max()) end,
  max_dim = function(x) return (x:max(2)) end,
  softmax = function(x) return x:softmax(-1) end,
  softmax_first = function(x) return x:softmax(1) end,
  log_softmax = function(x) return x:log_softmax(-1) end,
  cross_entropy = function(x, y) return neap.nn.cross_entropy(x, y) end,
  matmul_batched = function(a, b) return a:matmul(b) end,
  matmul_vector = function(a, b) return a:matmul(b) end,
  gather = function(x, i) return x:gather(2, i) end,
  index_select = function(x, i) return x:index_select(2, i) end,
  clamp = function(x) return x:clamp { min = -0.75, max = 0.8125 } end,
  cat = function(a, b) return neap.cat({ a, b }, 2) end,
}

local function tensor(golden, dtype, requires_grad)
  local t = neap.tensor({ table.unpack(golden) }, { dtype = golden.dtype == "float64" and dtype or golden.dtype })
  if #golden.shape == 0 then t = t[1]:clone() else t = t:reshape(golden.shape) end
  if requires_grad and golden.dtype == "float64" then t.requires_grad = true end
  return t
end

--- Every element within rtol of the golden one, plus atol.
local function compare(what, got, golden, rtol, atol)
  assert.is_not_nil(got, what .. " is missing")
  assert.equal(#golden.shape, got.ndim, what .. ": number of dimensions")
  for i, n in ipairs(golden.shape) do assert.equal(n, got.shape[i], what .. ": size " .. i) end
  local flat = got:detach():reshape(-1):totable()
  for i, want in ipairs(golden) do
    if math.abs(flat[i] - want) > rtol * math.abs(want) + atol then
      error(("%s, element %d: %.17g, golden %.17g"):format(what, i, flat[i], want), 0)
    end
  end
end

local function check(case, dtype, rtol, atol)
  local inputs = {}
  for i, golden in ipairs(case.inputs) do inputs[i] = tensor(golden, dtype, true) end
  local fn = call[case.name] or neap[case.name]
  local out = fn(table.unpack(inputs))
  assert.equal(dtype, out.dtype)
  compare("value", out, case.output, rtol, atol)
  out:backward(tensor(case.grad_output, dtype))
  for i, golden in ipairs(case.grads) do
    if golden then compare("gradient " .. i, inputs[i].grad, golden, rtol, atol) end
  end
end

describe("golden values", function()
  for _, case in ipairs(cases) do
    it(case.name .. " in float64", function() check(case, "float64", 1e-10, 1e-14) end)
    it(case.name .. " in float32", function() check(case, "float32", 1e-5, 1e-6) end)
  end
end)
