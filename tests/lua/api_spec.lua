--- Every name of the API card that this version has, and no other global.
local neap = require "neap"

local function has(t, where, names)
  for name in names:gmatch "%S+" do
    it(where .. "." .. name, function() assert.is_not_nil(t[name]) end)
  end
end

describe("the API card", function()
  has(neap, "neap", [[
    nn optim data checkpoint plot log progress pp
    tensor zeros ones empty zeros_like eye full arange linspace rand randn randint randperm
    seed generator default_generator
    dots newaxis cat stack where equal allclose hash is_tensor
    grad Function gradcheck no_grad enable_grad set_grad_enabled saved_tensors_hooks save_on_cpu
    disable_saved_tensors_hooks default_dtype device autocast op_mode is_grad_enabled in_recompute clock
    scope keep memory_stats reset_peak count_ops counters profile memory detect_leaks set_print error_code
    save load set_num_threads version on_log ops]])

  local x = neap.ones({ 2, 3 }, { requires_grad = true })
  has(x, "tensor", [[
    shape dtype device ndim requires_grad is_leaf
    size numel item totable iter matmul sum mean max argmax softmax view reshape permute transpose t unsqueeze narrow
    gather clone contiguous to add_ zero_ copy_ dropout backward requires_grad_ detach detach_ retain_grad
    register_hook release
    chunk split std var gt lt eq any all sin exp]])

  has(neap.nn, "nn", [[
    Module Parameter Buffer Linear Embedding LayerNorm Dropout ReLU GELU Tanh Sigmoid Softmax Flatten Sequential init
    cross_entropy nll_loss mse_loss l1_loss binary_cross_entropy_with_logits CrossEntropyLoss]])
  has(neap.nn.Linear(1, 1), "module", [[
    parameters named_parameters state_dict load_state_dict train eval training zero_grad to apply forward]])
  has(neap.optim, "optim", "AdamW SGD Adam schedule clip_grad_norm_")
  has(neap.data, "data", "fashion_mnist read_idx tensors dataset loader")
  has(neap.checkpoint, "checkpoint", "checkpoint checkpoint_sequential set_checkpoint_early_stop once")
  has(neap.log, "log", "csv jsonl")
  has(neap.plot, "plot", "line")
end)

describe("require \"neap\"", function()
  it("sets no global", function()
    for _, name in ipairs { "neap", "nn", "optim", "data", "checkpoint", "neapcore" } do
      assert.is_nil(rawget(_G, name))
    end
  end)

  it("has the logarithm and the logs under one name", function()
    assert.is_true(neap.allclose(neap.log(neap.tensor { 1.0, 2.0 }), { 0, math.log(2) }))
    assert.is_function(neap.log.csv)
  end)

  it("gives the same table for a part by both names", function()
    assert.equal(require "neap.nn", neap.nn)
    assert.equal(require "neap.checkpoint", neap.checkpoint)
  end)

  it("says what a name that is nowhere may have meant", function()
    local function message(f) return select(2, pcall(f)) end
    local text = message(function() return neap.onse(2) end)
    assert.is_truthy(text:find("api_spec.lua:", 1, true), text)
    assert.is_truthy(text:find("neap.onse: there is no such function; did you mean neap.ones?", 1, true), text)
    assert.is_truthy(message(function() return neap.mtmul end):find("did you mean neap.matmul?", 1, true))
    assert.is_truthy(message(function() return neap.Linear end):find("did you mean neap.nn.Linear?", 1, true))
    assert.is_truthy(message(function() return neap.nn.Liner end):find("did you mean nn.Linear?", 1, true))
    assert.is_truthy(message(function() return neap.optim.adamw end):find("did you mean optim.AdamW?", 1, true))
    assert.is_truthy(message(function() return neap.data.lodaer end):find("did you mean data.loader?", 1, true))
    assert.is_truthy(message(function() return neap.zzzzzzzz end):find("there is no such function [E-ARG]", 1, true))
    assert.is_nil(neap[1])
  end)

  it("has compositions that agree with their definitions", function()
    local x = neap.tensor { { 1.0, 2.0, 3.0, 4.0 }, { 2.0, 4.0, 6.0, 8.0 } }
    local a, b = x:chunk(2, -1)
    assert.is_true(neap.equal(a, { { 1, 2 }, { 2, 4 } }))
    assert.is_true(neap.equal(b, { { 3, 4 }, { 6, 8 } }))
    local parts = table.pack(x:split(3, 2))
    assert.equal(2, parts.n)
    assert.is_true(neap.equal(parts[2], { { 4 }, { 8 } }))
    assert.is_true(neap.allclose(x:var(2), { 5 / 3, 20 / 3 }))
    assert.is_true(neap.allclose(x:std(2, { correction = 0 }), { math.sqrt(1.25), math.sqrt(5) }))
    assert.is_true(neap.equal(neap.one_hot(neap.tensor { 2, 1 }, 3), { { 0, 1, 0 }, { 1, 0, 0 } }))
  end)
end)

it("slices and columns of a printed tensor count from 1", function()
  local text = tostring(neap.zeros(2, 1, 60))
  assert.truthy(text:find("(1,.,.)\ncolumns 1 to ", 1, true), text)
  assert.truthy(text:find("(2,.,.)", 1, true), text)
end)
