--- Neap's side of bench/compare.lua: makers of work, by name. bench/work.py has the same names for PyTorch and must do
-- the same work: same shapes, dtypes, values' ranges, and the same tensors that want a gradient.
-- A maker returns run(n), which does the work n times. Results are freed at the end of a scope: of every step,
-- or of a hundred of the tiny ones, as in a module's call.
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

local work = {}

--- run(n) of a step that is worth a scope of its own. Its results do not leave it.
local function steps(step)
  local function silent() step() end
  return function(n) for _ = 1, n do neap.scope(silent) end end
end

--- run(n) of tiny work: many(k) does it k times in one scope.
local function tiny(many)
  return function(n)
    for first = 1, n, 100 do neap.scope(many, math.min(100, n - first + 1)) end
  end
end

local function uniform(low, high, shape, options)
  local x = neap.rand(shape) * (high - low) + low
  return options and options.grad and x:requires_grad_() or x
end

-- ---- overhead

function work.add()
  local a, b = neap.ones(4), neap.ones(4)
  return tiny(function(k) for _ = 1, k do local _ = a + b end end)
end
function work.add_recorded()
  local a, w = neap.ones(4), neap.ones(4, { requires_grad = true })
  return tiny(function(k) for _ = 1, k do local _ = a + w end end)
end
function work.chain()
  local b, w = neap.ones(4), neap.ones(4, { requires_grad = true })
  return tiny(function(k)
    for _ = 1, k do
      local y = w
      for _ = 1, 5 do y = (y * b):tanh() end
      neap.grad(y:sum(), w)
    end
  end)
end
function work.checkpoint()
  local w = neap.ones(4, { requires_grad = true })
  local options = { use_reentrant = false }
  local function nothing(x) return x end
  return tiny(function(k) for _ = 1, k do neap.checkpoint(nothing, options, w) end end)
end
--- A small tensor (8,8) through one op.
function work.small(op)
  local a, b = uniform(0.1, 0.9, { 8, 8 }), uniform(0.1, 0.9, { 8, 8 })
  local f = neap[op]
  if op == "sum" then return tiny(function(k) for _ = 1, k do f(a) end end) end
  if op == "softmax" then return tiny(function(k) for _ = 1, k do f(a, -1) end end) end
  if op == "relu" then return tiny(function(k) for _ = 1, k do f(a) end end) end
  return tiny(function(k) for _ = 1, k do f(a, b) end end)
end

-- ---- ops

--- n elements through an op of one or two operands between low and high; back: and back.
local function map(operands, op, low, high, n, back)
  local f, x, g = neap[op], {}, uniform(0, 1, { n })
  for i = 1, operands do x[i] = uniform(low, high, { n }, { grad = back }) end
  local a, b = x[1], x[2]
  local function call() if b then return f(a, b) end return f(a) end
  if not back then return steps(call) end
  return steps(function() neap.grad(call(), x, { grad_outputs = g }) end)
end
function work.unary(...) return map(1, ...) end
function work.binary(...) return map(2, ...) end

--- Rows of a matrix through an op along its last dim.
function work.rows(op, n, m, back)
  local f, x = neap[op], uniform(-1, 1, { n, m }, { grad = back })
  if not back then return steps(function() f(x, -1) end) end
  local g = uniform(0, 1, f(x, -1).shape)
  return steps(function() neap.grad(f(x, -1), x, { grad_outputs = g }) end)
end
function work.sum(n, m, dim)
  local x = uniform(-1, 1, { n, m })
  return steps(function() x:sum(dim) end)
end
function work.copy(n)
  local x, y = uniform(-1, 1, { n }), uniform(-1, 1, { n })
  return steps(function() y:copy_(x) end)
end
function work.matmul(m, k, n, dtype)
  local a, b = uniform(-1, 1, { m, k }):to(dtype or "float32"), uniform(-1, 1, { k, n }):to(dtype or "float32")
  return steps(function() a:matmul(b) end)
end
function work.mv(n)
  local a, v = uniform(-1, 1, { n, n }), uniform(-1, 1, { n })
  return steps(function() a:matmul(v) end)
end
function work.transpose(n)
  local x = uniform(-1, 1, { n, n })
  return steps(function() x:t():contiguous() end)
end
function work.layer_norm(n, m, back)
  local x, w, b = uniform(-1, 1, { n, m }), neap.ones(m), neap.zeros(m)
  if not back then return steps(function() neap.layer_norm(x, w, b) end) end
  local g = uniform(0, 1, { n, m })
  local all = { x:requires_grad_(), w:requires_grad_(), b:requires_grad_() }
  return steps(function() neap.grad(neap.layer_norm(x, w, b), all, { grad_outputs = g }) end)
end
function work.rms_norm(n, m, back)
  local x, w = uniform(-1, 1, { n, m }), neap.ones(m)
  if not back then return steps(function() neap.rms_norm(x, w) end) end
  local g = uniform(0, 1, { n, m })
  local all = { x:requires_grad_(), w:requires_grad_() }
  return steps(function() neap.grad(neap.rms_norm(x, w), all, { grad_outputs = g }) end)
end
function work.dropout(n)
  local x = uniform(-1, 1, { n })
  return steps(function() x:dropout(0.5) end)
end
function work.cross_entropy(n, classes)
  local x, y = uniform(-1, 1, { n, classes }, { grad = true }), neap.randint(1, classes, { n })
  return steps(function() neap.grad(neap.cross_entropy(x, y), x) end)
end
function work.embedding(n, m, ids)
  local w, i = uniform(-1, 1, { n, m }, { grad = true }), neap.randint(1, n, { ids })
  local g = uniform(-1, 1, { ids, m })
  return steps(function() neap.grad(neap.embedding(w, i), w, { grad_outputs = g }) end)
end
function work.adamw(tensors, n)
  local params = {}
  for i = 1, tensors do
    params[i] = uniform(-1, 1, { n }, { grad = true })
    params[i].grad = uniform(-1, 1, { n })
  end
  local opt = optim.AdamW(params, { lr = 1e-3 })
  return steps(function() opt:step() end)
end

-- ---- training

--- One training step of a perceptron; the parameters and the optimizer live on.
local function perceptron(sizes, batch)
  local layers = {}
  for i = 1, #sizes - 1 do
    if i > 1 then layers[#layers + 1] = nn.ReLU() end
    layers[#layers + 1] = nn.Linear(sizes[i], sizes[i + 1])
  end
  local net = nn.Sequential(layers)
  local opt = optim.AdamW(net:parameters(), { lr = 1e-3 })
  local x, y = neap.rand(batch, sizes[1]), neap.randint(1, sizes[#sizes], { batch })
  return function()
    opt:zero_grad()
    nn.cross_entropy(net(x), y):backward()
    opt:step()
  end
end
function work.train_mlp(batch, ...) return steps(perceptron({ ... }, batch)) end

--- Peak bytes of all tensors over the making of a network and a few steps: exact, and the same on every run.
function work.peak(batch, ...)
  collectgarbage()
  neap.reset_peak()
  local before = neap.memory_stats().live
  local step = perceptron({ ... }, batch)
  for _ = 1, 4 do neap.scope(step) end
  return neap.memory_stats().peak - before
end

--- Forward and backward of a deep network, with a way of checkpointing around each fourth of its layers.
local function regions(way, layers, width, batch)
  local quarters, x = {}, uniform(-1, 1, { batch, width }, { grad = true })
  for i = 1, 4 do
    local parts = {}
    for _ = 1, layers // 4 do parts[#parts + 1] = nn.Sequential(nn.Linear(width, width), nn.GELU()) end
    quarters[i] = nn.Sequential(parts)
  end
  local options = ({
    reentrant = { use_reentrant = true },
    ["non-reentrant"] = { use_reentrant = false },
    selective = { use_reentrant = false, policy = { neap.ops.linear } },
  })[way]
  local function forward()
    local h = x
    for _, f in ipairs(quarters) do h = options and neap.checkpoint(f, options, h) or f(h) end
    return h:square():mean()
  end
  local pinned = { pin_memory = true }
  return function()
    for _, f in ipairs(quarters) do f:zero_grad() end
    x.grad = nil
    local loss = way == "save_on_cpu" and neap.save_on_cpu(pinned, forward) or forward()
    loss:backward()
  end
end
function work.checkpointed(...) return steps(regions(...)) end

--- Bytes that a step adds at its height to what the network and its gradients take.
function work.peak_checkpointed(...)
  local step = regions(...)
  neap.scope(step)
  collectgarbage()
  neap.reset_peak()
  local before = neap.memory_stats().live
  neap.scope(step)
  return neap.memory_stats().peak - before
end

return work
