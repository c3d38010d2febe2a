--- Layers, losses, optimizers, schedules: the numbers of the user cases, by id. All in float64.
local neap = require "neap"
local nn, optim = neap.nn, neap.optim

local function wide(values, requires_grad)
  return neap.tensor(values, { dtype = "float64", requires_grad = requires_grad })
end

local function near(want, got, tolerance, what)
  assert.is_true(math.abs(got - want) <= (tolerance or 1e-9),
    ("%s: %.12g, not %.12g"):format(what or "value", got, want))
end

local function all_near(want, got, tolerance)
  if neap.is_tensor(got) then got = got:detach():reshape(-1):totable() end
  assert.equal(#want, #got)
  for i, v in ipairs(want) do near(v, got[i], tolerance, "element " .. i) end
end

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

-- The parameter 1.0 after each of the given gradients.
local function run(make, gradients)
  local p = wide({ 1.0 }, true)
  local opt, values = make { p }, {}
  for i, g in ipairs(gradients) do
    opt:zero_grad();
    (p * g):sum():backward()
    opt:step()
    values[i] = p:item()
  end
  return values
end

describe("C: layers, losses, optimizers", function()
  it("uc-C01 SGD with momentum", function()
    local function sgd(options)
      options.lr = 0.1
      return run(function(ps) return optim.SGD(ps, options) end, { 1, 1 })
    end
    all_near({ 0.9, 0.71 }, sgd { momentum = 0.9 })
    all_near({ 0.81, 0.539 }, sgd { momentum = 0.9, nesterov = true })
    all_near({ 0.9, 0.76 }, sgd { momentum = 0.9, dampening = 0.5 })
    all_near({ 0.89, 0.7811 }, sgd { weight_decay = 0.1 })
  end)

  it("uc-C02 Adam", function()
    all_near({ 0.900000002, 0.8733662987, 0.8075551397 },
      run(function(ps) return optim.Adam(ps, { lr = 0.1 }) end, { 0.5, -0.25, 1 }))
  end)

  it("uc-C04 AdamW is decoupled", function()
    local function steps(name, decay, gradients)
      return run(function(ps) return optim[name](ps, { lr = 0.1, weight_decay = decay }) end, gradients)
    end
    all_near({ 0.999, 0.998001 }, steps("AdamW", 0.01, { 0, 0 }))
    all_near({ 0.9000001, 0.8004124318 }, steps("Adam", 0.01, { 0, 0 }), 1e-8)
    all_near({ 0.890000002, 0.7811000040 }, steps("AdamW", 0.1, { 0.5, 0.5 }))
  end)

  it("uc-C06 RMSprop and Adagrad", function()
    local function rms(options)
      options.lr = 0.01
      return run(function(ps) return optim.RMSprop(ps, options) end, { 1, 1 })
    end
    all_near({ 0.9000000100, 0.8291118945 }, rms {})
    all_near({ 0.8994962286, 0.8278920716 }, rms { centered = true })
    all_near({ 0.9000000100, 0.7391119035 }, rms { momentum = 0.9 })
    all_near({ 0.90000000001, 0.8105572809 }, run(function(ps) return optim.Adagrad(ps, { lr = 0.1 }) end, { 1, 2 }))
  end)

  it("uc-C07 clipping", function()
    local p = wide({ 0.0, 0.0 }, true);
    (p * wide { 3, 4 }):sum():backward()
    near(5, optim.clip_grad_norm_({ p }, 1))
    all_near({ 0.59999988, 0.79999984 }, p.grad)
    local list = {}
    for i = 1, 100 do
      list[i] = neap.zeros({ 1 }, { requires_grad = true });
      (list[i] * 1e20):sum():backward()
    end
    near(1e21, optim.clip_grad_norm_(list, 1), 1e15)
    near(0.1, list[1].grad:item(), 1e-6)
    list[3].grad = neap.tensor { math.huge }
    local before = list[2].grad:item()
    refused("E-ARG", optim.clip_grad_norm_, list, 1e-3)
    assert.equal(before, list[2].grad:item())
  end)

  it("uc-C09 cross-entropy", function()
    local x = wide({ { 2, 1, 0 } }, true)
    local loss = nn.cross_entropy(x, neap.tensor { 1 })
    near(0.4076059644, loss:item())
    loss:backward()
    all_near({ -0.3347590442, 0.2447284711, 0.0900305732 }, x.grad)
    near(0.5076059644, nn.cross_entropy(x, neap.tensor { 1 }, { label_smoothing = 0.1 }):item())
    local large = neap.tensor({ { 1e4, 0 } }, { requires_grad = true, dtype = "float32" })
    loss = nn.cross_entropy(large, neap.tensor { 2 })
    assert.equal(10000, loss:item())
    loss:backward()
    assert.same({ { 1.0, -1.0 } }, large.grad:totable())
    assert.equal(200, nn.cross_entropy(neap.tensor { { 100.0, 0, -100 } }, neap.tensor { 3 }):item())
  end)

  it("uc-C10 class weights divide by the weights used", function()
    local x, y, w = wide { { 2, 1, 0 }, { 0, 1, 2 } }, neap.tensor { 1, 2 }, wide { 1, 2, 3 }
    near(1.0742726311, nn.cross_entropy(x, y, { weight = w }):item())
    near(1.1545261633, nn.cross_entropy(x, y, { weight = w, label_smoothing = 0.1 }):item())
  end)

  it("uc-C11 ignored targets", function()
    local x = wide({ { 2, 1, 0 }, { 5, 1, 0 } }, true)
    near(0.4076059644, nn.cross_entropy(x, neap.tensor { 1, -100 }, { ignore_index = -100 }):item())
    local none = nn.cross_entropy(x, neap.tensor { -100, -100 }, { ignore_index = -100 })
    assert.equal(0, none:item())
    none:backward()
    assert.equal(0, x.grad:abs():sum():item())
    -- A valid class as the ignored one: its rows do not count, its logit stays in the denominator.
    near(0.4076059644, nn.cross_entropy(x, neap.tensor { 1, 3 }, { ignore_index = 3 }):item())
  end)

  it("uc-C12 bad class labels name the row, the label and the range", function()
    local x = neap.randn(2, 3)
    for _, label in ipairs { 0, 4, -4 } do
      local err = refused("E-LABEL", nn.cross_entropy, x, neap.tensor { 1, label })
      assert.is_truthy(err:find(tostring(label), 1, true) and err:find("1", 1, true) and err:find("3", 1, true), err)
    end
    assert.is_false(pcall(nn.cross_entropy, x, neap.tensor { 1.0, 1.5 }))
    assert.is_true(pcall(nn.cross_entropy, x, neap.tensor { 1, 3 }))
  end)

  it("uc-C13 binary cross-entropy", function()
    near(0.2310490602, nn.binary_cross_entropy_with_logits(wide { -1000, 0, 1000 }, wide { 0, 0.5, 1 }):item())
    near(0.8949968722,
      nn.binary_cross_entropy_with_logits(wide { 0.3, -2 }, wide { 1, 0 }, { pos_weight = 3 }):item())
    local p = wide({ 0.0 }, true)
    local loss = nn.binary_cross_entropy(p, wide { 1 })
    assert.equal(100, loss:item())
    loss:backward()
    assert.is_true(p.grad:isfinite():all())
  end)

  it("uc-C14 reductions of the KL divergence", function()
    local p, q = wide { { 0.2, 0.3, 0.5 }, { 0.1, 0.6, 0.3 } }, wide { { 0.25, 0.25, 0.5 }, { 0.2, 0.5, 0.3 } }
    near(0.0083576621, nn.kl_div(q:log(), p):item())
    near(0.0250729864, nn.kl_div(q:log(), p, { reduction = "batchmean" }):item())
    near(0.0501459728, nn.kl_div(q:log(), p, { reduction = "sum" }):item())
    assert.equal(0, nn.kl_div(wide { -1 }, wide { 0 }):item())
  end)

  it("uc-C15 smooth L1 and Huber", function()
    local zero = wide { 0, 0 }
    all_near({ 0.125, 1.5 }, nn.smooth_l1_loss(wide { 0.5, 2 }, zero, { reduction = "none" }))
    all_near({ 0.125, 4 }, nn.huber_loss(wide { 0.5, 3 }, zero, { reduction = "none", delta = 2 }))
    local x = wide({ 0.0, 0.25 }, true)
    local loss = nn.smooth_l1_loss(x, zero, { beta = 0, reduction = "none" })
    all_near({ 0, 0.25 }, loss)
    loss:sum():backward()
    all_near({ 0, 1 }, x.grad)
  end)

  it("uc-C17 the backward of layer norm; RMS norm", function()
    local x = wide({ 1, 2, 3, 4 }, true)
    neap.layer_norm(x)[1]:backward()
    all_near({ 0.2683303039, -0.3577683720, -0.0894434346, 0.1788815028 }, x.grad)
    near(0, x.grad:sum():item(), 1e-12)
    all_near({ 0.3651483473, 0.7302966947, 1.0954450420, 1.4605933893 }, neap.rms_norm(wide { 1, 2, 3, 4 },
      { eps = 1e-6 }), 1e-7)
  end)

  it("uc-C18 the extremes of dropout", function()
    local x = wide({ 1, 2, 3, 4 }, true)
    assert.is_true(neap.equal(x, neap.dropout(x, 0)))
    local y = neap.dropout(x, 1)
    assert.equal(0, y:abs():sum():item())
    y:sum():backward()
    assert.equal(0, x.grad:abs():sum():item())
    assert.is_true(neap.equal(x, nn.Dropout(0.5):eval()(x)))
    local big = neap.ones({ 1000 }, { dtype = "float64", requires_grad = true })
    local kept = neap.dropout(big, 0.75)
    for _, v in ipairs(kept:totable()) do assert.is_true(v == 0 or v == 4) end
    kept:sum():backward()
    assert.is_true(neap.equal(kept, big.grad))
    for _, p in ipairs { -0.1, 1.1, 0 / 0 } do assert.is_false(pcall(neap.dropout, x, p)) end
  end)

  it("uc-C19 the flavours of GELU", function()
    local x = wide { 1, -1 }
    all_near({ 0.8413447461, -0.1586552539 }, nn.GELU()(x))
    all_near({ 0.8411919906, -0.1588080094 }, nn.GELU({ approximate = "tanh" })(x))
  end)

  it("uc-C20 saturating activations", function()
    local x = wide({ 1000, -1000 }, true)
    all_near({ 1000, 0 }, neap.softplus(x))
    all_near({ 0, -1000 }, neap.logsigmoid(x))
    all_near({ 1, 0 }, neap.sigmoid(x));
    (neap.softplus(x) + neap.logsigmoid(x) + neap.sigmoid(x)):sum():backward()
    assert.is_true(x.grad:isfinite():all())
  end)

  it("uc-C26 the value of a schedule at every step", function()
    local s = optim.schedule
    local function values(fn, n)
      local list = {}
      for i = 1, n do list[i] = fn(i) end
      return list
    end
    all_near({ 0.1, 0.1, 0.01, 0.01, 0.001 }, values(s.step { lr = 0.1, every = 2, factor = 0.1 }, 5))
    local cycle = values(s.one_cycle { lr = 0.1, total = 10 }, 10)
    all_near({ 0.004, 0.052, 0.1, 0.0950484632 }, table.move(cycle, 1, 4, 1, {}))
    near(4e-7, cycle[10])
    local warm = values(s.cosine { lr = 0.1, warmup = 4, total = 12 }, 13)
    all_near({ 0.025, 0.05, 0.075, 0.1 }, table.move(warm, 1, 4, 1, {}))
    near(0.0961939766, warm[5])
    near(0.05, warm[8])
    near(0, warm[12])
    near(0, warm[13])
    -- The first step of an optimizer uses the first value.
    local p = wide({ 1.0 }, true)
    local opt = optim.SGD({ p }, { lr = s.cosine { lr = 0.1, warmup = 4, total = 12 } })
    p:sum():backward()
    opt:step()
    near(1 - 0.025, p:item())
  end)

  it("uc-C27 a resumed schedule goes on as it would have", function()
    local s = optim.schedule
    local makers = {
      function() return s.step { lr = 0.1, every = 2 } end, function() return s.cosine { lr = 0.1, total = 12 } end,
      function() return s.one_cycle { lr = 0.1, total = 12 } end,
      function() return s.exponential { lr = 0.1, factor = 0.9 } end,
      function() return s.join { { 4, s.linear { lr = 0.1, total = 4 } }, s.constant { lr = 0.01 } } end,
    }
    for _, make in ipairs(makers) do
      local function start() return optim.SGD({ wide({ 1.0 }, true) }, { lr = make() }) end
      local function go(opt, n)
        local rates = {}
        for i = 1, n do
          rates[i] = opt.lr
          opt:zero_grad()
          opt.groups[1].params[1]:sum():backward()
          opt:step()
        end
        return rates
      end
      local whole = go(start(), 13)
      for k = 0, 12 do
        local first = start()
        go(first, k)
        local second = start()
        second:load_state_dict(first:state_dict())
        assert.same(table.move(whole, k + 1, 13, 1, {}), go(second, 13 - k))
      end
    end
  end)

  it("uc-C28 embedding: positions outside are refused, the padding row stays", function()
    local e = nn.Embedding(4, 3, { padding_idx = 2 })
    for _, id in ipairs { 0, 5, -5 } do refused("E-LABEL", e, neap.tensor { 1, id }) end
    e(neap.tensor { 1, 2, 2, 4 }):sum():backward()
    assert.same({ { 1.0, 1.0, 1.0 }, { 0.0, 0.0, 0.0 }, { 0.0, 0.0, 0.0 }, { 1.0, 1.0, 1.0 } },
      e.weight.grad:totable())
    assert.equal(0, e.weight[2]:abs():sum():item())
  end)

  it("uc-C29 tied weights are one parameter, with the sum of both gradients, written once", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.tokens = nn.Embedding(5, 3, { dtype = "float64" })
      self.head = nn.Linear(3, 5, { bias = false, dtype = "float64" })
      self.head.weight = self.tokens.weight
    end
    function Net:forward(ids) return self.head(self.tokens(ids)) end
    local net = Net()
    assert.equal(15, net:num_parameters())
    assert.equal(1, #net:parameters())
    local ids = neap.tensor { 1, 3 }
    net(ids):sum():backward()
    local w = net.tokens.weight:detach()
    local inside, outside = w:clone():requires_grad_(), w:clone():requires_grad_()
    neap.linear(neap.embedding(inside, ids), outside):sum():backward()
    all_near((inside.grad + outside.grad):reshape(-1):totable(), net.tokens.weight.grad, 1e-12)
    local opt = optim.Adam(net:parameters())
    opt:step()
    assert.equal(1, #opt:state_dict().state)
    local path = os.tmpname()
    neap.save(path, net:state_dict())
    local file = assert(io.open(path, "rb"))
    local size = file:seek "end"
    file:close()
    os.remove(path)
    assert.is_true(size < 15 * 8 * 2, "the tied matrix is in the file twice")
  end)
end)
