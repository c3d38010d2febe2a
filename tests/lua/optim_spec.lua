--- Optimizers against their formulas, computed here in Lua's doubles; groups, schedules, resumption.
local neap = require "neap"
local optim = neap.optim

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

local start, gradient = { 0.5, -1.25, 2, 0 }, { 0.1, -0.2, 0.3, 0.05 }

local function parameter(values) return neap.tensor(values, { dtype = "float64", requires_grad = true }) end

-- Runs n steps with gradients g * k at step k; the parameter's values.
local function run(make, n, values)
  local p = parameter(values or start)
  local opt = make { p }
  for k = 1, n do
    opt:zero_grad();
    (p * neap.tensor(gradient, { dtype = "float64" }) * k):sum():backward()
    opt:step()
  end
  return p:totable()
end

local function close(got, want)
  for i, v in ipairs(want) do
    assert.is_true(math.abs(got[i] - v) < 1e-12, ("element %d: %.17g, not %.17g"):format(i, got[i], v))
  end
end

local function adam(n, o)
  local p = { table.unpack(start) }
  for i = 1, #p do
    local m, v = 0, 0
    for t = 1, n do
      local g = gradient[i] * t
      if o.decoupled then
        p[i] = p[i] - o.lr * o.weight_decay * p[i]
      else
        g = g + o.weight_decay * p[i]
      end
      m = o.beta1 * m + (1 - o.beta1) * g
      v = o.beta2 * v + (1 - o.beta2) * g * g
      p[i] = p[i] - o.lr * (m / (1 - o.beta1 ^ t)) / (math.sqrt(v / (1 - o.beta2 ^ t)) + o.eps)
    end
  end
  return p
end

local function sgd(n, o)
  local p = { table.unpack(start) }
  for i = 1, #p do
    local b
    for t = 1, n do
      local g = gradient[i] * t + o.weight_decay * p[i]
      if o.momentum ~= 0 then
        b = b and o.momentum * b + (1 - o.dampening) * g or g
        g = o.nesterov and g + o.momentum * b or b
      end
      p[i] = p[i] - o.lr * g
    end
  end
  return p
end

describe("updates equal the formulas", function()
  it("AdamW", function()
    close(run(function(ps) return optim.AdamW(ps, { lr = 0.01, weight_decay = 0.1 }) end, 7),
      adam(7, { lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.1, decoupled = true }))
  end)

  it("AdamW with other betas and eps", function()
    close(run(function(ps) return optim.AdamW(ps, { lr = 0.02, beta1 = 0.8, beta2 = 0.95, eps = 1e-3 }) end, 5),
      adam(5, { lr = 0.02, beta1 = 0.8, beta2 = 0.95, eps = 1e-3, weight_decay = 0.01, decoupled = true }))
  end)

  it("Adam adds the decay to the gradient", function()
    close(run(function(ps) return optim.Adam(ps, { lr = 0.01, weight_decay = 0.1 }) end, 6),
      adam(6, { lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.1 }))
  end)

  for _, case in ipairs {
    { name = "SGD", momentum = 0, dampening = 0, weight_decay = 0 },
    { name = "SGD with decay", momentum = 0, dampening = 0, weight_decay = 0.1 },
    { name = "SGD with momentum", momentum = 0.9, dampening = 0, weight_decay = 0.01 },
    { name = "SGD with dampening", momentum = 0.9, dampening = 0.5, weight_decay = 0 },
    { name = "SGD with nesterov", momentum = 0.9, dampening = 0, weight_decay = 0.01, nesterov = true },
  } do
    it(case.name, function()
      close(run(function(ps)
        return optim.SGD(ps, { lr = 0.1, momentum = case.momentum, dampening = case.dampening,
          weight_decay = case.weight_decay, nesterov = case.nesterov })
      end, 5), sgd(5, { lr = 0.1, momentum = case.momentum, dampening = case.dampening,
        weight_decay = case.weight_decay, nesterov = case.nesterov }))
    end)
  end
end)

describe("optimizers", function()
  it("skip parameters without a gradient; their step count stands still", function()
    local a, b = parameter { 1.0 }, parameter { 1.0 }
    local opt = optim.Adam({ a, b }, { lr = 0.1 })
    for k = 1, 3 do
      opt:zero_grad()
      local loss = (a * 2):sum()
      if k == 3 then loss = loss + (b * 2):sum() end
      loss:backward()
      opt:step()
    end
    -- At its first step Adam moves by lr whatever the gradient.
    assert.is_true(math.abs(b:item() - 0.9) < 1e-6)
    assert.is_true(math.abs(a:item() - 0.7) < 1e-6)
  end)

  it("have groups with their own settings", function()
    local a, b = parameter { 1.0 }, parameter { 1.0 }
    local opt = optim.SGD({ { params = { a }, lr = 0.5 }, { params = { b } } }, { lr = 0.1 });
    (a + b):sum():backward()
    opt:step()
    assert.equal(0.5, a:item())
    assert.equal(0.9, b:item())
    assert.equal(0.1, opt.groups[2].lr)
  end)

  it("take lr as a number that can be set, or as a function of the step", function()
    local p = parameter { 0.0 }
    local opt = optim.SGD({ p }, { lr = 0.5 })
    opt.lr = 0.25
    assert.equal(0.25, opt.lr)
    p:sum():backward()
    opt:step()
    assert.equal(-0.25, p:item())
    local seen = {}
    opt.lr = function(step)
      seen[#seen + 1] = step
      return 1
    end
    opt:step()
    assert.equal(-1.25, p:item())
    assert.same({ 2 }, seen)
  end)

  it("resume exactly from state_dict", function()
    local function make() return optim.AdamW({ parameter(start) }, { lr = 0.01 }) end
    local function steps(opt, n)
      local p = opt.groups[1].params[1]
      for _ = 1, n do
        opt:zero_grad();
        (p * p):sum():backward()
        opt:step()
      end
      return p
    end
    local whole = steps(make(), 6)
    local first = make()
    local p = steps(first, 3)
    local second = make()
    second:load_state_dict(first:state_dict())
    neap.no_grad(function() second.groups[1].params[1]:copy_(p) end)
    assert.equal(neap.hash(whole), neap.hash(steps(second, 3)))
    refused("E-ARG", second.load_state_dict, second, optim.SGD({ parameter(start) }, { lr = 1 }):state_dict())
  end)

  it("count their buffers as optimizer memory and leave nothing behind in a step", function()
    collectgarbage()
    local p = neap.zeros({ 1000 }, { requires_grad = true })
    local opt = optim.AdamW({ p })
    local before = neap.memory_stats().by.optimizer
    local function step()
      opt:zero_grad()
      p:square():sum():backward()
      opt:step()
    end
    neap.scope(step)
    assert.equal(8000, neap.memory_stats().by.optimizer - before)
    collectgarbage "stop"
    local live, handles = neap.memory_stats().live, neap.memory_stats().handles
    for _ = 1, 20 do neap.scope(step) end
    assert.equal(live, neap.memory_stats().live)
    assert.equal(handles, neap.memory_stats().handles)
    collectgarbage "restart"
  end)

  it("refuse what cannot be optimized", function()
    local p = parameter { 1.0 }
    refused("E-ARG", optim.SGD, {}, { lr = 1 })
    refused("E-ARG", optim.SGD, p, { lr = 1 })
    refused("E-ARG", optim.SGD, { p, p }, { lr = 1 })
    refused("E-ARG", optim.SGD, { p * 2 }, { lr = 1 })
    refused("E-ARG", optim.SGD, { p }, { lr = -1 })
    refused("E-ARG", optim.SGD, { p }, { lr = 1, nesterov = true })
    refused("E-ARG", optim.AdamW, { p }, { beta1 = 1 })
    local err = refused("E-UNKNOWN-OPTION", optim.AdamW, { p }, { wieght_decay = 0 })
    assert.is_truthy(err:find("'weight_decay'", 1, true))
  end)
end)

describe("clip_grad_norm_", function()
  it("and clip_grad_value_ refuse a module and a state_dict, whose gradients they would leave as they are", function()
    local m = neap.nn.Linear(2, 2)
    for _, clip in ipairs { optim.clip_grad_norm_, optim.clip_grad_value_ } do
      for _, given in ipairs { m, m:state_dict() } do
        assert.is_truthy(refused("E-ARG", clip, given, 1):find("model:parameters() makes one", 1, true))
      end
    end
  end)

  it("returns the norm before and scales down to the limit", function()
    local a, b, c = parameter { 0.0, 0.0 }, parameter { 0.0 }, parameter { 0.0 };
    (a * neap.tensor({ 3, 0 }, { dtype = "float64" })):sum():backward();
    (b * 4):sum():backward()
    assert.is_true(math.abs(optim.clip_grad_norm_({ a, b, c }, 1) - 5) < 1e-9)
    assert.is_true(neap.allclose(a.grad, { 0.6, 0 }, { rtol = 1e-6, atol = 1e-9 }))
    assert.is_true(neap.allclose(b.grad, { 0.8 }, { rtol = 1e-6, atol = 1e-9 }))
    assert.is_nil(c.grad)
    optim.clip_grad_norm_({ a, b }, 10)
    assert.is_true(neap.allclose(b.grad, { 0.8 }, { rtol = 1e-6, atol = 1e-9 }))
  end)
end)

describe("clipping", function()
  it("by a norm that is not finite names the gradient and changes none", function()
    local a, b = parameter { 0.0, 0.0 }, parameter { 0.0 };
    (a:sum() * 2 + b:sum() * math.huge):backward()
    local err = refused("E-ARG", optim.clip_grad_norm_, { a, b }, 1)
    assert.is_truthy(err:find("gradient 2 holds inf", 1, true))
    assert.equal(math.huge, optim.clip_grad_norm_({ a, b }, 1, { error_if_nonfinite = false }))
    assert.same({ 2.0, 2.0 }, a.grad:totable())
    assert.equal(math.huge, b.grad:item())
  end)

  it("by value clamps every element", function()
    local a, b = parameter { 0.0, 0.0, 0.0 }, parameter { 0.0 };
    (a * neap.tensor({ -3, 0.5, 3 }, { dtype = "float64" })):sum():backward()
    optim.clip_grad_value_({ a, b }, 1)
    assert.same({ -1.0, 0.5, 1.0 }, a.grad:totable())
    assert.is_nil(b.grad)
    refused("E-ARG", optim.clip_grad_value_, { a }, -1)
  end)
end)

describe("schedules", function()
  it("are functions of the step, from 1", function()
    local cosine = optim.schedule.cosine { lr = 1, warmup = 10, total = 110, min = 0.1 }
    assert.equal(0.1, cosine(1))
    assert.equal(1, cosine(10))
    assert.is_true(math.abs(cosine(60) - 0.55) < 1e-12)
    assert.is_true(math.abs(cosine(110) - 0.1) < 1e-12)
    assert.is_true(math.abs(cosine(500) - 0.1) < 1e-12)
    local linear = optim.schedule.linear { lr = 1, total = 100 }
    assert.equal(0.5, linear(50))
    assert.equal(0, linear(100))
    assert.equal(2, optim.schedule.constant { lr = 2 }(1000))
    local step = optim.schedule.step { lr = 1, every = 10, factor = 0.5 }
    assert.same({ 1, 1, 0.5, 0.25 }, { step(1) // 1, step(10), step(11), step(21) })
    refused("E-ARG", optim.schedule.cosine, { lr = 1 })
  end)

  it("fall at given steps, by powers, in one cycle, and one after another", function()
    local schedule = optim.schedule
    local multi = schedule.multi_step { lr = 1, at = { 10, 20 }, factor = 0.5 }
    assert.same({ 1, 0.5, 0.5, 0.25 }, { multi(9) // 1, multi(10), multi(19), multi(20) })
    local exponential = schedule.exponential { lr = 2, factor = 0.5 }
    assert.same({ 2.0, 1.0, 0.25 }, { exponential(1), exponential(2), exponential(4) })
    assert.equal(0.25, schedule.polynomial { lr = 1, total = 100, power = 2 }(50))
    -- PyTorch's OneCycleLR(max_lr = 1, total_steps = 10): its rates at the first, the third and the last step.
    local cycle = schedule.one_cycle { lr = 1, total = 10 }
    assert.is_true(math.abs(cycle(1) - 0.04) < 1e-15)
    assert.is_true(math.abs(cycle(2) - 0.52) < 1e-12)
    assert.is_true(math.abs(cycle(3) - 1) < 1e-15)
    assert.is_true(math.abs(cycle(10) - 4e-6) < 1e-15)
    assert.equal(cycle(10), cycle(11))
    local joined = schedule.join { { 3, multi }, { 2, exponential }, function(step) return -step end }
    assert.same({ 1, 1, 1, 2, 1, -1, -2 },
      { joined(1) // 1, joined(2) // 1, joined(3) // 1, joined(4) // 1, joined(5) // 1, joined(6), joined(7) })
    refused("E-ARG", schedule.join, { { 3 } })
    refused("E-ARG", schedule.multi_step, { lr = 1, at = 3 })
  end)
end)
