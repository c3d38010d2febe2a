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
  -- matrices
  addmm_scaled = function(x, a, b) return x:addmm(a, b, { beta = 0.5, alpha = -1.5 }) end,
  baddbmm = function(x, a, b) return x:baddbmm(a, b, { beta = -0.25, alpha = 2 }) end,
  kron_ranks = function(a, b) return a:kron(b) end,
  cross_dim = function(a, b) return a:cross(b, 1) end,
  tril_above = function(x) return x:tril(1) end,
  triu_below = function(x) return x:triu(-1) end,
  diagonal = function(x) return x:diagonal(1, 1, 3) end,
  diag_vector = function(x) return x:diag(-1) end,
  diag_matrix = function(x) return x:diag(1) end,
  einsum_product = function(a, b) return neap.einsum("ij,jk->ik", a, b) end,
  einsum_batch = function(a, b) return neap.einsum("bij, bkj -> bki", { a, b }) end,
  einsum_implicit = function(a, b) return neap.einsum("zj,ja", a, b) end,
  einsum_diagonal = function(a) return neap.einsum("ii->i", a) end,
  einsum_trace = function(a) return neap.einsum("ii", a) end,
  einsum_ellipsis = function(a, b) return neap.einsum("...i,ji->...j", a, b) end,
  einsum_ellipsis_broadcast = function(a, b) return neap.einsum("...i,...i->...", a, b) end,
  einsum_outer = function(a, b) return neap.einsum("i,j->ji", a, b) end,
  einsum_broadcast = function(a, b) return neap.einsum("ij,jk->ik", a, b) end,
  einsum_three = function(a, b, c) return neap.einsum("iij,jk,k->ik", a, b, c) end,
  -- arranging
  tile = function(x) return x:tile(2, 1, 2) end,
  tile_few = function(x) return x:tile(2) end,
  roll = function(x) return x:roll({ 1, -2 }, { 1, 3 }) end,
  roll_row = function(x) return x:roll(4) end,
  pad_constant = function(x) return x:pad({ 1, 2, 0, 1 }, { value = -1.5 }) end,
  pad_cut = function(x) return x:pad(-1, 2) end,
  pad_reflect = function(x) return x:pad({ 2, 3 }, { mode = "reflect" }) end,
  pad_reflect_two = function(x) return x:pad({ 2, 1, 1, 2 }, { mode = "reflect" }) end,
  pad_replicate = function(x) return x:pad({ 2, 1, 1, 3 }, { mode = "replicate" }) end,
  pad_circular = function(x) return x:pad({ 2, 1, 0, 3 }, { mode = "circular" }) end,
  movedim = function(x) return x:movedim({ 1, 3 }, { -1, 1 }) end,
  unflatten = function(x) return x:unflatten(2, 3, -1) end,
  repeat_interleave = function(x) return x:repeat_interleave(2) end,
  repeat_interleave_dim = function(x) return x:repeat_interleave(3, 2) end,
  repeat_interleave_each = function(x, n) return x:repeat_interleave(n, 2) end,
  broadcast_to = function(x) return x:broadcast_to(2, 3, 4) end,
  unfold = function(x) return x:unfold(2, 3, 2) end,
  unfold_first = function(x) return x:unfold(1, 3, 1) end,
  meshgrid = function(a, b) local x, y = neap.meshgrid { a, b } return x * y end,
  -- positions
  scatter = function(x, i, v) return x:scatter(2, i, v) end,
  scatter_value = function(x, i) return x:scatter(2, i, 0.5) end,
  scatter_first = function(x, i, v) return x:scatter(1, i:reshape(1, 3), v) end,
  take_along_dim = function(x, i) return x:take_along_dim(i:reshape(1, 2, 1), 2) end,
  index_two = function(x, i, j) return x[{ i, j }] end,
  index_apart = function(x, i, j) return x[{ i, {}, j }] end,
  index_broadcast = function(x, i, j) return x[{ {}, i:unsqueeze(2), j }] end,
  index_range = function(x, i, j) return x[{ {}, i, { 2, 3 } }][{ {}, {}, j }] end,
  index_mask_middle = function(x, m) return x[{ {}, m }] end,
  index_mask_and_ids = function(x, m, j) return x[{ 2, m, j }] end,
  index_put = function(x, i, j, v) local y = x:clone() y[{ i, j }] = v return y end,
  index_put_apart = function(x, i, j, v) local y = x:clone() y[{ i, {}, j }] = v return y end,
  index_put_accumulate = function(x, i, j, v) return x:clone():index_put_({ i, j }, v, { accumulate = true }) end,
  one_hot = function(i) return i:one_hot(4, { dtype = "int64" }) end,
  -- order
  sort_first_descending = function(x) return x:sort(1, { descending = true }) end,
  sort_ties_descending = function(x) return x:sort({ descending = true }) end,
  sort_nan_descending = function(x) return x:sort(-1, { descending = true }) end,
  sort_ties = neap.sort,
  sort_nan = neap.sort,
  argsort = function(x) return x:argsort(2) end,
  topk = function(x) return x:topk(2) end,
  topk_smallest_first = function(x) return x:topk(3, 1, { largest = false }) end,
  topk_nan = function(x) return (x:topk(3)) end,
  unique_nan = function(x) local v, _, n = x:unique() return v, n end,
  bincount = function(i) return i:bincount { minlength = 6 } end,
  -- extremes
  min = function(x) return (x:min()) end,
  min_dim = function(x) return (x:min(2)) end,
  argmax = function(x) return x:argmax(2) end,
  argmin = function(x) return x:argmin(-1, { keepdim = true }) end,
  argmax_ties = function(x) return x:argmax(1) end,
  -- comparisons, tests
  eq_nan = neap.eq,
  isclose_wide = function(a, b) return a:isclose(b, { rtol = 0.25, atol = 0.125 }) end,
  isclose_nan = function(a, b) return a:isclose(b, { equal_nan = true }) end,
  any = function(x) return x:any(1) end,
  all = function(x) return x:all(1, { keepdim = true }) end,
  count_nonzero = function(x) return x:count_nonzero(2) end,
  floor_divide = function(a, b) return a // b end,
  floor_divide_int = neap.floor_divide,
  bitwise_and_bool = neap.bitwise_and,
  -- copies and fills
  contiguous = function(x) return x:transpose(1, 3):contiguous() end,
  to = function(x) return x:to "int32" end,
  full_like = function(x) return x:full_like(-1.75) end,
  fill_ = function(x) return (x * 2):fill_(0.625) * x end,
  zero_ = function(x) return (x * 2):zero_() + x end,
  copy_ = function(x, src) return (x * 2):copy_(src) end,
  stack = function(a, b) return neap.stack({ a, b }, 2) end,
  -- views and shapes
  flip = function(x) return x:flip { 1, 3 } end,
  select = function(x) return x:select(2, 3) end,
  narrow = function(x) return x:narrow(3, 2, 2) end,
  expand = function(x) return x:expand(2, 3, 4) end,
  permute = function(x) return x:permute(3, 1, 2) end,
  transpose = function(x) return x:transpose(1, 3) end,
  view = function(x) return x:view(4, -1) end,
  reshape = function(x) return x:transpose(1, 2):reshape(3, 8) end,
  flatten_last = function(x) return x:flatten(2, 3) end,
  squeeze_dim = function(x) return x:squeeze(2) end,
  unsqueeze = function(x) return x:unsqueeze(2) end,
  -- writing
  index_add = function(x, i, v) return x:index_add(2, i, v) end,
  index_copy = function(x, i, v) return x:index_copy(2, i, v) end,
  scatter_add = function(x, i, v) return x:scatter_add(2, i, v) end,
  masked_fill = function(x, m) return x:masked_fill(m, -0.75) end,
  masked_assign_number = function(x, m) return x:masked_assign(m, 0.5) end,
  rms_norm = function(x, w) return x:rms_norm(w, { eps = 1e-6 }) end,
  rms_norm_two = function(x) return x:rms_norm(nil, { dims = 2, eps = 0.125 }) end,
  searchsorted_right = function(s, v) return neap.searchsorted(s, v, { right = true }) end,
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
    local same = flat[i] == want or (flat[i] ~= flat[i] and want ~= want)
    local near = math.type(want) and math.abs(flat[i] - want) <= rtol * math.abs(want) + atol
    if not same and not near then
      error(("%s, element %d: %s, golden %s"):format(what, i, flat[i], want), 0)
    end
  end
end

local function check(case, dtype, rtol, atol)
  local inputs = {}
  for i, golden in ipairs(case.inputs) do inputs[i] = tensor(golden, dtype, true) end
  local fn = call[case.name] or neap[case.name]
  local results = { fn(table.unpack(inputs)) }
  local out = results[1]
  if case.output.dtype == "float64" then assert.equal(dtype, out.dtype) end
  compare("value", out, case.output, rtol, atol)
  for i, golden in ipairs(case.more or {}) do compare("result " .. i + 1, results[i + 1], golden, rtol, atol) end
  if not case.grad_output then return end
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
