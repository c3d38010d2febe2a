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
  leaky_relu_slope = function(x) return x:leaky_relu(0.25) end,
  elu_alpha = function(x) return x:elu(1.5) end,
  hardtanh_six = function(x) return x:hardtanh(0, 4) end,
  gelu_tanh = function(x) return x:gelu { tanh = true } end,
  pow_number = function(x) return x ^ 1.7 end,
  number_pow = function(x) return 1.7 ^ x end,
  lerp_number = function(a, b) return a:lerp(b, 0.75) end,
  addcmul = function(x, a, b) return x:addcmul(a, b, { value = 0.75 }) end,
  addcdiv = function(x, a, b) return x:addcdiv(a, b, { value = 0.75 }) end,
  clamp_tensors = function(x, low, high) return x:clamp { min = low, max = high } end,
  clamp_min = function(x, low) return x:clamp { min = low } end,
  clamp_max = function(x, high) return x:clamp { max = high } end,
  prod_zeros = function(x) return x:prod(2) end,
  cumsum = function(x) return x:cumsum(2) end,
  cumprod = function(x) return x:cumprod(-1) end,
  cumprod_zeros = function(x) return x:cumprod(2) end,
  logsumexp = function(x) return x:logsumexp { 1, 3 } end,
  median_dim = function(x) return (x:median(3)) end,
  var_mean_both = function(x) return neap.stack({ x:var_mean(2) }, 1) end,
  var_correction = function(x) return x:var(2, { correction = 0 }) end,
  std_correction = function(x) return x:std(2, { correction = 2 }) end,
}
for _, op in ipairs { "amax", "amin", "var", "std" } do
  call[op .. "_all"] = function(x) return neap[op](x) end
  call[op .. "_first"] = function(x) return neap[op](x, 1) end
  call[op .. "_two_kept"] = function(x) return neap[op](x, { 1, 3 }, { keepdim = true }) end
end
for _, p in ipairs { "1", "2", "3", "0.5", "-1", "inf", "-inf" } do
  local value = tonumber(p) or (p == "inf" and math.huge or -math.huge)
  call["norm_" .. p .. "_all"] = function(x) return x:norm { p = value } end
  call["norm_" .. p .. "_first"] = function(x) return x:norm(1, { p = value }) end
  call["norm_" .. p .. "_two_kept"] = function(x) return x:norm({ 1, 3 }, { p = value, keepdim = true }) end
end

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
    it(case.name .. " in float64", function() check(case, "float64", 1e-12, 1e-14) end)
    it(case.name .. " in float32", function() check(case, "float32", 1e-6, 1e-6) end)
  end
end)
