--- Modules: registration, naming, state, containers, layers against their formulas.
local neap = require "neap"
local nn = neap.nn

local function names_of(model)
  local names = {}
  for name in model:named_parameters() do names[#names + 1] = name end
  return table.concat(names, " ")
end

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

describe("registration", function()
  it("keeps the order of assignment, not of names", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.zebra = nn.Linear(2, 2)
      self.apple = nn.Parameter(neap.zeros(3))
      self.mid = nn.Linear(2, 1, { bias = false })
    end
    assert.equal("zebra.weight zebra.bias apple mid.weight", names_of(Net()))
  end)

  it("keeps the place of a field that is assigned again, and forgets one that is set to nil", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.a = nn.Linear(1, 1, { bias = false })
      self.b = nn.Linear(1, 1, { bias = false })
    end
    local net = Net()
    net.a = nn.Linear(1, 2, { bias = false })
    assert.equal("a.weight b.weight", names_of(net))
    assert.equal(2, net.a.weight:size(1))
    net.a = nil
    assert.equal("b.weight", names_of(net))
    net.a = nn.Linear(1, 1, { bias = false })
    assert.equal("b.weight a.weight", names_of(net))
  end)

  it("leaves plain tensors, numbers and functions alone", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.scale = neap.ones(3)
      self.n = 3
      self.f = print
      self.running = nn.Buffer(neap.zeros(2))
    end
    local net = Net()
    assert.equal("", names_of(net))
    assert.equal(3, net.n)
    local sd = net:state_dict()
    assert.is_truthy(sd.running)
    assert.is_nil(sd.scale)
  end)

  it("registers lists of modules and of lists", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.grid = {}
      for i = 1, 2 do
        self.grid[i] = {}
        for j = 1, 2 do self.grid[i][j] = nn.Linear(1, 1, { bias = false }) end
      end
    end
    assert.equal("grid.1.1.weight grid.1.2.weight grid.2.1.weight grid.2.2.weight", names_of(Net()))
  end)

  it("refuses a module under a name in a plain table", function()
    local Net = nn.Module "Net"
    function Net:init() self.parts = { first = nn.Linear(1, 1) } end
    local err = refused("E-ARG", Net)
    assert.is_truthy(err:find("first", 1, true))
    local Late = nn.Module "Late"
    function Late:init() self.parts = {} end
    local late = Late()
    late.parts.first = nn.Linear(1, 1)
    refused("E-ARG", late.parameters, late)
  end)

  it("visits a shared module once, under its first name", function()
    local Net = nn.Module "Net"
    function Net:init()
      self.a = nn.Linear(2, 2, { bias = false })
      self.b = self.a
      self.c = nn.Linear(2, 2, { bias = false })
      self.c.weight = self.a.weight
    end
    local net = Net()
    assert.equal("a.weight", names_of(net))
    assert.equal(1, #net:parameters())
  end)

  it("gives every parameter its name", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    local names = {}
    for i, p in ipairs(net:parameters()) do names[i] = p.name end
    assert.same({ "1.weight", "1.bias", "3.weight", "3.bias" }, names)
  end)

  it("survives a reference to the parent", function()
    local Child, Parent = nn.Module "Child", nn.Module "Parent"
    function Child:init(parent)
      self.parent = parent
      self.layer = nn.Linear(1, 1, { bias = false })
    end
    function Parent:init() self.child = Child(self) end
    assert.equal("child.layer.weight", names_of(Parent()))
  end)
end)

describe("classes", function()
  it("take their methods from a table or from definitions, and inherit by extend", function()
    local Base = nn.Module("Base", {
      init = function(self, n) self.n = n end,
      forward = function(self, x) return x * self.n end,
    })
    local Wide = Base:extend "Wide"
    function Wide:init(n)
      Base.init(self, n)
      self.n = self.n + 1
    end
    assert.equal(6, Base(3)(neap.tensor(2)):item())
    assert.equal(8, Wide(3)(neap.tensor(2)):item())
  end)

  it("say which class has no forward, and refuse a missing name", function()
    local Empty = nn.Module "Empty"
    assert.is_truthy(refused("E-ARG", function() return Empty()(1) end):find("Empty", 1, true))
    refused("E-ARG", nn.Module)
  end)

  it("pass several arguments and results", function()
    local Swap = nn.Module("Swap", { forward = function(_, a, b) return b, a end })
    local b, a = Swap()(neap.tensor(1), neap.tensor(2))
    assert.equal(2, b:item())
    assert.equal(1, a:item())
  end)

  it("keep what a module field was given inside forward, and release the rest", function()
    local Net = nn.Module "Net"
    local inner
    function Net:forward(x)
      inner = x + 1
      self.last = x * 2
      return x * 3
    end
    local net = Net()
    local y = net(neap.ones(2))
    assert.is_true(neap.equal(y, { 3, 3 }))
    assert.is_true(neap.equal(net.last, { 2, 2 }))
    refused("E-RELEASED", function() return inner + 1 end)
  end)

  it("may yield inside forward", function()
    local Net = nn.Module "Net"
    function Net:forward(x)
      coroutine.yield "half"
      return x + 1
    end
    local net = Net()
    local co = coroutine.create(function(x) return net(x) end)
    local _, word = coroutine.resume(co, neap.ones(1))
    assert.equal("half", word)
    local _, y = coroutine.resume(co)
    assert.equal(2, y:item())
  end)
end)

describe("state", function()
  it("to(dtype) between two backwards: gradients come along and arrive in it; the optimizer can follow", function()
    local m = nn.Linear(2, 3)
    local opt = neap.optim.AdamW(m:parameters(), { lr = 0.1 })
    local first = m(neap.ones(1, 2)):sum() -- its graph lives on
    first:backward()
    opt:step()
    for _, dtype in ipairs { "float64", "float32", "float64" } do
      local before = m.bias.grad:totable()
      local bytes = neap.memory_stats().by.grad / (dtype == "float64" and 1 or 2)
      m:to(dtype)
      assert.equal(dtype, m.bias.grad.dtype)
      assert.is_true(neap.equal(m.bias.grad, before))
      collectgarbage()
      assert.equal(bytes, neap.memory_stats().by.grad / (dtype == "float64" and 2 or 1)) -- and counted as gradients
      opt:zero_grad()
      m(neap.ones({ 1, 2 }, { dtype = dtype })):square():sum():backward()
      for _, p in ipairs(m:parameters()) do assert.equal(dtype, p.grad.dtype) end
      opt:load_state_dict(opt:state_dict())
      opt:step()
    end
    assert.equal(4, opt:state_dict().state[1].step)
    assert.truthy(first)
  end)

  local function net() return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) end

  it("is copied by load_state_dict, and pairs keeps the order", function()
    local a, b = net(), net()
    b:load_state_dict(a:state_dict())
    assert.equal(neap.hash(a:state_dict()), neap.hash(b:state_dict()))
    assert.are_not.equal(a[1].weight, b[1].weight)
    local order = {}
    for name in pairs(a:state_dict()) do order[#order + 1] = name end
    assert.same({ "1.weight", "1.bias", "3.weight", "3.bias" }, order)
  end)

  it("counts list elements from 0 with base = 0", function()
    local a, b = net(), net()
    local sd = a:state_dict { base = 0 }
    assert.is_truthy(sd["0.weight"])
    assert.is_nil(sd["1.weight"])
    b:load_state_dict(sd, { base = 0 })
    assert.equal(neap.hash(a:state_dict()), neap.hash(b:state_dict()))
  end)

  it("names everything missing, unexpected and misshapen in one error, and changes nothing", function()
    local a = net()
    local before = neap.hash(a:state_dict())
    local sd = {}
    for name, t in pairs(net():state_dict()) do sd[name] = t end
    sd["1.bias"], sd.extra, sd["3.weight"] = nil, neap.zeros(1), neap.zeros(7, 7)
    local err = refused("E-ARG", a.load_state_dict, a, sd)
    for _, word in ipairs { "1.bias", "extra", "3.weight", "7" } do assert.is_truthy(err:find(word, 1, true), word) end
    assert.equal(before, neap.hash(a:state_dict()))
    sd["3.weight"] = nil
    local missing, unexpected = a:load_state_dict(sd, { strict = false })
    assert.same({ "1.bias", "3.weight" }, missing)
    assert.same({ "extra" }, unexpected)
  end)

  it("goes through a file", function()
    local a, b, path = net(), net(), os.tmpname()
    neap.save(path, a:state_dict())
    b:load_state_dict((neap.load(path)))
    os.remove(path)
    assert.equal(neap.hash(a:state_dict()), neap.hash(b:state_dict()))
  end)

  it("changes dtype in place", function()
    local a = net()
    local w = a[1].weight
    assert.equal(a, a:to "float64")
    assert.equal("float64", a[1].weight.dtype)
    assert.equal(w, a[1].weight)
    local y = a(neap.ones({ 1, 2 }, { dtype = "float64" }))
    y:sum():backward()
    assert.equal("float64", w.grad.dtype)
  end)

  it("requires_grad_(false) freezes, requires_grad_() thaws", function()
    local model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    assert.equal(model[1], model[1]:requires_grad_(false))
    model(neap.ones(1, 2)):sum():backward()
    assert.is_nil(model[1].weight.grad)
    assert.is_not_nil(model[2].weight.grad)
    model:requires_grad_()
    for _, p in ipairs(model:parameters()) do assert.is_true(p.requires_grad) end
  end)

  it("train and eval reach every module; zero_grad clears", function()
    local a = nn.Sequential(nn.Sequential(nn.Dropout(0.5)), nn.Linear(2, 2))
    a:eval()
    assert.is_false(a[1][1].training)
    a:train()
    assert.is_true(a[1][1].training)
    a(neap.ones(1, 2)):sum():backward()
    assert.is_truthy(a[2].weight.grad)
    a:zero_grad()
    assert.is_nil(a[2].weight.grad)
  end)

  it("apply visits children before parents", function()
    local seen = {}
    nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())):apply(function(m) seen[#seen + 1] = m.class_name end)
    assert.equal("Sequential", seen[#seen])
    assert.equal(4, #seen)
  end)

  it("prints a tree with parameter counts", function()
    local text = tostring(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)))
    assert.is_truthy(text:find("101,770 parameters", 1, true))
    assert.is_truthy(text:find("1: Linear(784 -> 128)", 1, true))
    assert.is_truthy(text:find("2: ReLU()", 1, true))
  end)
end)

describe("Sequential", function()
  it("takes modules and functions, as arguments or as one list, and indexes them", function()
    local function double(x) return x * 2 end
    local first = nn.Linear(2, 2)
    local a = nn.Sequential(first, double)
    local b = nn.Sequential { first, double }
    local x = neap.randn(3, 2)
    assert.is_true(neap.equal(a(x), b(x)))
    assert.equal(first, a[1])
    assert.equal(2, #a)
    refused("E-ARG", nn.Sequential, first, 3)
  end)
end)

describe("layers", function()
  it("Linear starts inside the bound, and equals x W^T + b", function()
    neap.seed(5)
    local layer = nn.Linear(16, 8)
    assert.is_true(layer.weight:abs():max():item() <= 0.25)
    assert.is_true(layer.weight:abs():max():item() > 0.2)
    local x = neap.randn(4, 16)
    assert.is_true(neap.allclose(layer(x), x:matmul(layer.weight:t()) + layer.bias, { rtol = 1e-5, atol = 1e-6 }))
    assert.is_nil(nn.Linear(2, 2, { bias = false }).bias)
    assert.is_truthy(refused("E-UNKNOWN-OPTION", nn.Linear, 2, 2, { bais = false }):find("'bias'", 1, true))
    refused("E-ARG", nn.Linear, 2.5, 2)
  end)

  it("the same seed gives the same parameters", function()
    neap.seed(3)
    local a = neap.hash(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Embedding(4, 3)):state_dict())
    neap.seed(3)
    assert.equal(a, neap.hash(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Embedding(4, 3)):state_dict()))
  end)

  it("LayerNorm has mean 0 and variance 1 along the last dimension", function()
    local y = nn.LayerNorm(64)(neap.randn(5, 64) * 3 + 2)
    assert.is_true(neap.allclose(y:mean(2), neap.zeros(5), { atol = 1e-5 }))
    assert.is_true(neap.allclose((y * y):mean(2), neap.ones(5), { atol = 1e-3 }))
  end)

  it("Embedding takes rows by ids from 1, or from 0 with base", function()
    local layer = nn.Embedding(4, 3)
    assert.is_true(neap.equal(layer(neap.tensor { 4, 1 })[1], layer.weight[4]))
    refused("E-LABEL", layer, neap.tensor { 0 })
    local zero = nn.Embedding(4, 3, { base = 0 })
    assert.is_true(neap.equal(zero(neap.tensor { 0 })[1], zero.weight[1]))
  end)

  it("padding_idx starts at zero and gets no gradient", function()
    local layer = nn.Embedding(3, 2, { padding_idx = 2 })
    layer(neap.tensor { 1, 2, 2 }):sum():backward()
    assert.is_true(neap.equal(layer.weight.grad, { { 1, 1 }, { 0, 0 }, { 0, 0 } }))
    assert.is_true(neap.equal(layer.weight[2], { 0, 0 }))
  end)

  it("Dropout acts in training only and keeps the mean", function()
    neap.seed(1)
    local layer = nn.Dropout(0.25)
    local x = neap.ones(20000)
    assert.is_true(math.abs(layer(x):mean():item() - 1) < 0.02)
    layer:eval()
    assert.is_true(neap.equal(layer(x), x))
    refused("E-ARG", nn.Dropout, 1)
  end)

  it("activations, softmax and flatten are their ops", function()
    local x = neap.randn(2, 3, 4)
    for name, op in pairs { ReLU = "relu", Tanh = "tanh", Sigmoid = "sigmoid", GELU = "gelu", Softplus = "softplus" } do
      assert.is_true(neap.equal(nn[name]()(x), neap[op](x)), name)
    end
    assert.is_true(neap.allclose(nn.Softmax(-1)(x):sum(-1), neap.ones(2, 3)))
    assert.is_true(neap.allclose(nn.LogSoftmax()(x):exp(), nn.Softmax()(x)))
    assert.equal(neap.ones(2, 12).shape, nn.Flatten()(x).shape)
    assert.equal(neap.ones(6, 4).shape, nn.Flatten(1, 2)(x).shape)
    refused("E-ARG", nn.ReLU, 3)
  end)

  it("losses exist as functions and as modules", function()
    local logits, classes = neap.randn(4, 3), neap.tensor { 1, 3, 2, 1 }
    local want = -logits:log_softmax(-1):gather(2, classes:unsqueeze(2)):mean():item()
    assert.is_true(math.abs(nn.cross_entropy(logits, classes):item() - want) < 1e-5)
    assert.equal(nn.cross_entropy(logits, classes):item(), nn.CrossEntropyLoss()(logits, classes):item())
    local a, b = neap.randn(5), neap.randn(5)
    assert.is_true(neap.allclose(nn.mse_loss(a, b), ((a - b) * (a - b)):mean()))
    assert.is_true(neap.allclose(nn.l1_loss(a, b), (a - b):abs():mean()))
    assert.equal(nn.mse_loss(a, b, { reduction = "sum" }):item(), nn.MSELoss({ reduction = "sum" })(a, b):item())
  end)
end)

describe("nn.init", function()
  it("fills in place within the stated range", function()
    neap.seed(2)
    local w = nn.Parameter(neap.zeros(40, 60))
    assert.equal(w, nn.init.xavier_uniform_(w))
    local bound = math.sqrt(6 / 100)
    local top = w:abs():max():item()
    assert.is_true(top <= bound and top > 0.95 * bound)
    nn.init.kaiming_normal_(w)
    assert.is_true(math.abs((w * w):mean():item() / (2 / 60) - 1) < 0.1)
    nn.init.normal_(w, { mean = 1, std = 0.02 })
    assert.is_true(math.abs(w:mean():item() - 1) < 0.01)
    assert.is_true(neap.equal(nn.init.ones_(neap.zeros(2)), { 1, 1 }))
    refused("E-SHAPE", nn.init.xavier_uniform_, neap.zeros(3))
  end)
end)

describe("neap.summary", function()
  local function model()
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)))
  end

  it("lists the modules with their parameters", function()
    local s = neap.summary(model())
    local lines = {}
    for i, row in ipairs(s.rows) do lines[i] = ("%d %s%s %d"):format(row.depth, row.name, row.class, row.parameters) end
    assert.same({ "0 Sequential 0", "1 1: Linear 36", "1 2: ReLU 0", "1 3: Sequential 0", "2 1: LayerNorm 8",
      "2 2: Linear 10" }, lines)
    assert.equal(54, s.parameters)
    assert.equal(54 * 4, s.bytes)
    assert.is_truthy(tostring(s):find("54 parameters", 1, true))
  end)

  it("runs one pass: output shapes, and the exact bytes it keeps", function()
    local m, x = model(), neap.randn(5, 8)
    collectgarbage()
    local s = neap.summary(m, x)
    local shapes = {}
    for i, row in ipairs(s.rows) do shapes[i] = row.output end
    assert.same({ "[5,2]", "[5,4]", "[5,4]", "[5,2]", "[5,4]", "[5,2]" }, shapes)
    -- ReLU's output, the mean and 1 / std of 5 rows, the norm's output, the result.
    assert.equal((5 * 4 + 5 * 2 + 5 * 4 + 5 * 2) * 4, s.saved)
    assert.is_true(s.peak >= s.saved)
    collectgarbage()
    local live = neap.memory_stats().live
    neap.summary(m, x)
    collectgarbage()
    assert.equal(live, neap.memory_stats().live)
  end)

  it("counts a tied parameter once, and leaves the modules as they were after an error", function()
    local tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[2].weight = tied[1].weight
    assert.equal(9 + 3 + 3, neap.summary(tied).parameters)
    local calls = getmetatable(tied[1]).__call
    assert.is_false(pcall(neap.summary, tied, neap.ones(4)))
    assert.equal(calls, getmetatable(tied[1]).__call)
    refused("E-ARG", neap.summary, 3)
  end)
end)

describe("initialisers", function()
  it("orthogonal_: rows or columns at right angles, of length gain", function()
    neap.seed(5)
    for _, shape in ipairs { { 3, 7 }, { 7, 3 }, { 4, 4 }, { 6, 2, 2 } } do
      local w = nn.init.orthogonal_(neap.empty(shape, { dtype = "float64" }), { gain = 2 }):reshape(shape[1], -1)
      local square = w:size(1) <= w:size(2) and w:matmul(w:t()) or w:t():matmul(w)
      local eye = neap.eye(square:size(1), { dtype = "float64" }) * 4
      assert.is_true((square - eye):abs():max():item() < 1e-13)
    end
    refused("E-SHAPE", nn.init.orthogonal_, neap.empty(3))
  end)

  it("trunc_normal_: within its bounds, with the variance of the cut normal", function()
    neap.seed(6)
    local t = nn.init.trunc_normal_(neap.empty({ 200000 }, { dtype = "float64" }), { low = -1, high = 1 })
    assert.is_true(t:min():item() >= -1 and t:max():item() <= 1)
    -- 1 - 2 phi(1) / (2 Phi(1) - 1), with phi and Phi the normal density and distribution.
    assert.is_true(math.abs(t:square():mean():item() - 0.2911251) < 5e-3)
    refused("E-ARG", nn.init.trunc_normal_, t, { low = 10, high = 11 })
  end)

  it("gain: what PyTorch's calculate_gain gives", function()
    assert.equal(5 / 3, nn.init.gain "tanh")
    assert.equal(math.sqrt(2 / (1 + 0.2 ^ 2)), nn.init.gain("leaky_relu", 0.2))
    refused("E-ARG", nn.init.gain, "sine")
  end)
end)

describe("small layers", function()
  it("RMSNorm divides by the root of the mean square", function()
    local norm = nn.RMSNorm(3, { dtype = "float64" })
    norm.weight:detach():copy_(neap.tensor { 1, 2, 3 })
    local y = norm(neap.tensor({ { 1, 2, 2 } }, { dtype = "float64" }))
    local rms = math.sqrt(3 + 1e-6)
    for i, want in ipairs { 1 / rms, 4 / rms, 6 / rms } do assert.is_true(math.abs(y[1][i]:item() - want) < 1e-14) end
    assert.equal(0, nn.RMSNorm(3, { affine = false }):num_parameters())
  end)

  it("activations are their formulas, with the numbers they were made with", function()
    local function sigmoid(v) return 1 / (1 + math.exp(-v)) end
    for _, case in ipairs {
      { nn.SiLU(), function(v) return v * sigmoid(v) end },
      { nn.LogSigmoid(), function(v) return math.log(sigmoid(v)) end },
      { nn.LeakyReLU(), function(v) return v > 0 and v or 0.01 * v end },
      { nn.LeakyReLU(0.3), function(v) return v > 0 and v or 0.3 * v end },
      { nn.ELU(2), function(v) return v > 0 and v or 2 * (math.exp(v) - 1) end },
      { nn.Hardtanh(), function(v) return math.max(-1, math.min(1, v)) end },
      { nn.Hardtanh(-0.25, 0.75), function(v) return math.max(-0.25, math.min(0.75, v)) end },
    } do
      for _, v in ipairs { -3, -0.5, 0.125, 2 } do
        local got = case[1](neap.tensor({ v }, { dtype = "float64" })):item()
        assert.is_true(math.abs(got - case[2](v)) < 1e-14, ("%s(%g) = %.17g"):format(tostring(case[1]), v, got))
      end
    end
    assert.equal("Hardtanh(min_val = -0.25, max_val = 0.75)", tostring(nn.Hardtanh(-0.25, 0.75)))
    refused("E-ARG", nn.ELU, "x")
    refused("E-ARG", nn.SiLU, 1)
  end)

  it("Identity gives back what it gets", function()
    local a, b = nn.Identity()(3, "x")
    assert.equal(3, a)
    assert.equal("x", b)
  end)
end)
