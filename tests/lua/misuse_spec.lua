--- What people write by mistake, and what they are told: a code, the values, and nothing half done.
local neap = require "neap"

local function refused(code, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok, "nothing was raised")
  assert.equal(code, neap.error_code(e), tostring(e))
  return e
end

local function says(text, code, fn, ...)
  local e = refused(code, fn, ...)
  assert.truthy(e:find(text, 1, true), e)
end

describe("files", function()
  local path = os.tmpname()
  teardown(function() os.execute("rm -rf '" .. path .. "'") end)

  it("what reads a file takes a path: a device beside it is refused, not ignored", function()
    for _, f in ipairs { neap.load, neap.load_npy, neap.load_npz, neap.read_idx } do
      says(":to(device)", "E-ARG", f, path, { device = "cuda" })
    end
  end)

  it("a 0 byte in a path or name is refused", function()
    local t = { a = neap.ones(2) }
    refused("E-ARG", neap.save, path .. "\0x", t)
    refused("E-ARG", neap.save, path, { ["a\0b"] = neap.ones(2) })
    refused("E-ARG", neap.save, path, t, { metadata = { a = "b\0c" } })
    refused("E-ARG", neap.save, path, t, { metadata = { ["a\0"] = "b" } })
    refused("E-ARG", neap.load, path .. "\0x")
    refused("E-ARG", neap.read_idx, path .. "\0x")
    refused("E-ARG", neap.save_state, path .. "\0x", {})
    refused("E-ARG", neap.load_state, path .. "\0x", {})
    refused("E-ARG", function() neap.log.csv(path .. "\0x") end)
    refused("E-ARG", function() neap.plot.line({ 1, 2 }):save(path .. "\0x") end)
  end)

  it("load_state fills every object or none", function()
    os.remove(path)
    local function pair(width)
      return { a = neap.nn.Linear(2, 2), b = neap.nn.Linear(2, width), c = neap.nn.Linear(2, 2) }
    end
    neap.save_state(path, pair(2))
    local mine = pair(3)
    local before = { neap.hash(mine.a.weight), neap.hash(mine.b.weight), neap.hash(mine.c.weight) }
    refused("E-ARG", neap.load_state, path, mine)
    assert.same(before, { neap.hash(mine.a.weight), neap.hash(mine.b.weight), neap.hash(mine.c.weight) })
    local opt_a = neap.optim.AdamW(mine.a:parameters(), { lr = 0.5 })
    neap.save_state(path, { m = neap.nn.Linear(2, 2), a = opt_a })
    local m, opt_b = neap.nn.Linear(2, 3), neap.optim.AdamW(mine.a:parameters(), { lr = 0.25 })
    refused("E-ARG", neap.load_state, path, { m = m, a = opt_b })
    assert.equal(0.25, opt_b.lr)
  end)
end)

describe("texts", function()
  it("count from 1", function()
    local x = neap.ones(2, { requires_grad = true })
    says("input 1 did", "E-UNUSED", neap.grad, neap.ones(1, { requires_grad = true }):sum(), x)
    x:sum():backward()
    says("parameter 1 ", "E-SHAPE", neap.adamw_step, {}, { x }, { neap.ones(3) }, { neap.ones(2) })
  end)

  it("an index with too many positions says how many", function()
    local x = neap.ones(2, 3)
    says("too many positions: 3 for a tensor of 2 dimensions", "E-INDEX", function() return x[{ 1, 2, 3 }] end)
    says("too many positions: 1 for a tensor of 0 dimensions", "E-INDEX", function() return neap.tensor(1)[1] end)
    says("x:flip(dim)", "E-INDEX", function() return x[{ { 1, 2, -1 } }] end)
  end)
end)

describe("flip", function()
  it("turns dimensions round", function()
    local x = neap.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 4, 5, 6 }, { 1, 2, 3 } }, x:flip(1):totable())
    assert.same({ { 3, 2, 1 }, { 6, 5, 4 } }, x:flip(-1):totable())
    assert.same({ { 6, 5, 4 }, { 3, 2, 1 } }, x:flip(1, 2):totable())
    assert.same({ { 6, 3 }, { 5, 2 }, { 4, 1 } }, x:t():flip({ 1, 2 }):totable())
    assert.equal(5, neap.tensor(5):flip(1):item())
    assert.equal(5, neap.tensor(5):flip(-1):item())
    refused("E-DIMS", x.flip, x, 1, -2)
    refused("E-DIMS", x.flip, x, 3)
  end)
end)

describe("several results", function()
  it("too many of them are refused with what to write", function()
    says("x:narrow", "E-ARG", function() return neap.ones(1000000):chunk(1000000, 1) end)
    says("x:narrow", "E-ARG", function() return neap.ones(200000):split(1) end)
    says("x:select", "E-ARG", function() return neap.ones(2000000):unbind() end)
  end)
end)

describe("messages", function()
  it("of a recompute name the checkpoint's line once, and as that", function()
    local n, x = 0, neap.ones(3, { requires_grad = true })
    local y = neap.checkpoint(function(t)
      n = n + 1
      return n == 2 and t * 2 or t:exp():sin()
    end, { use_reentrant = false }, x)
    local e = refused("E-COUNT", function() y:sum():backward() end)
    local line = "[^:]*misuse_spec.lua:%d+: "
    assert.truthy(e:find("^" .. line .. "neap%.%w+: the checkpoint at " .. line .. "the forward"), e)
  end)

  it("of a gradient kept from a hook name the hook, not a scope", function()
    local x, kept = neap.ones(3, { requires_grad = true }), nil
    local y = x * 2
    y:register_hook(function(g) kept = g end)
    y:sum():backward()
    says("when the function given to register_hook returned; neap.keep(x)", "E-RELEASED", function()
      return kept + 1
    end)
  end)
end)

describe("op_mode", function()
  it("does not see the ops of its own function; an outer mode does", function()
    local inner, outer = {}, {}
    local function mode(list)
      return function(op, call, ...)
        list[#list + 1] = op.name
        return call(...) + 0
      end
    end
    neap.op_mode(function(op, call, ...)
      outer[#outer + 1] = op.name
      return call(...)
    end, function() return neap.op_mode(mode(inner), function() return neap.ones(2):exp() end) end)
    assert.same({ "exp" }, inner)
    assert.same({ "exp", "add" }, outer)
  end)

  it("refuses a call without the op's operands", function()
    local function with(...)
      local given = table.pack(...)
      return neap.op_mode, function(_, call) return call(table.unpack(given, 1, given.n)) end, function()
        return neap.ones(2):exp()
      end
    end
    says("exp has 1 operand", "E-ARG", with())
    says("exp has 1 operand", "E-ARG", with(neap.ones(2), 3))
    refused("E-ARG", with("x"))
  end)
end)

describe("the environment", function()
  it("a value that makes no sense is named, with the rule and what is used", function()
    local script = os.tmpname()
    local f <close> = assert(io.open(script, "w"))
    f:write('local neap = require "neap"\nneap.on_log(function(level, text) print(level, text) end)\n')
    f:flush()
    for setting, text in pairs {
      ["NEAP_THREADS=3x"] = "NEAP_THREADS is '3x'; it must be a whole number from 1 to 256; using the number of ",
      ["NEAP_THREADS=-1"] = "NEAP_THREADS is '-1'", ["NEAP_THREADS=1.5"] = "NEAP_THREADS is '1.5'",
      ["NEAP_ISA=avx9"] = "NEAP_ISA is 'avx9'; it must be baseline, avx2 or avx512; using ",
    } do
      local p <close> = io.popen(("%s '%s' %s 2>&1"):format(setting, os.getenv "NEAP_PROGRAM" or "build/neap", script))
      local out = p:read("a")
      assert.truthy(out:find("warning\t" .. text, 1, true), out)
      assert.truthy(out:find("warning: neap: " .. text, 1, true), out)
    end
    os.remove(script)
  end)

  it("is named where it asks for a device or a library that is none", function()
    local script = os.tmpname()
    local f <close> = assert(io.open(script, "w"))
    f:write('local neap = require "neap"\nneap.ones(2, { device = "cuda" })\n')
    f:flush()
    for setting, text in pairs {
      ["NEAP_DEVICE=gpu"] = "NEAP_DEVICE: there is no device 'gpu': this context has cpu [E-DEVICE]",
      ["NEAP_CUDA_PLUGIN=libc.so.6"] = "the library that was opened for cuda is no plug-in of Neap",
      ["NEAP_CUDA_PLUGIN=/no/file"] = "/no/file: cannot open",
      ["NEAP_CUDA_PLUGIN=" .. script] = "the plug-in of cuda cannot be opened: " .. script,
    } do
      local p <close> = io.popen(("NEAP_DEVICE=cpu %s '%s' %s 2>&1")
        :format(setting, os.getenv "NEAP_PROGRAM" or "build/neap", script))
      local out = p:read("a")
      assert.truthy(out:find(text, 1, true), out)
      assert.truthy(out:find("E-DEVICE", 1, true), out)
    end
    os.remove(script)
  end)

  it("a memory limit without a number is refused, not taken for none", function()
    for _, text in ipairs { "", " ", "MiB", " GiB" } do
      refused("E-ARG", neap.memory_limit, "cpu", text, function() end)
    end
  end)
end)

describe("a tensor hook", function()
  it("that writes into its gradient does not change the tensor given to backward", function()
    local x, go = neap.ones(3, { requires_grad = true }), neap.ones(3)
    for _, y in ipairs { x * 2, x + 0 } do
      y:register_hook(function(g) g:mul_(5) end)
      y:backward(go)
    end
    x:register_hook(function(g) g:mul_(5) end)
    local z = x + 0
    z:backward(go)
    assert.same({ 1, 1, 1 }, go:totable())
  end)
end)

describe("checkpoint.once", function()
  it("called more often in the recompute is an error with both counts", function()
    local n, x = 0, neap.ones(3, { requires_grad = true })
    local y = neap.checkpoint(function(t)
      n = n + 1
      for _ = 1, n do neap.checkpoint.once(function() return 1 end) end
      return t:exp():sin()
    end, { use_reentrant = false }, x)
    says("call 2 in the recompute, but the forward made 1", "E-COUNT", function() y:sum():backward() end)
  end)

  it("may return tensors", function()
    local x, runs = neap.ones(3, { requires_grad = true }), 0
    local y = neap.checkpoint(function(t)
      local noise = neap.checkpoint.once(function()
        runs = runs + 1
        return neap.full({ 3 }, 2.0)
      end)
      return (t * noise):exp()
    end, { use_reentrant = false }, x)
    y:sum():backward()
    assert.equal(1, runs)
    assert.is_true(neap.allclose(x.grad, neap.full({ 3 }, 2 * math.exp(2))))
  end)
end)

describe("a custom function", function()
  it("marks only its arguments dirty", function()
    local F = neap.Function "Wrong"
    function F.forward(ctx, x)
      local y = x * 2
      ctx:mark_dirty(y)
      return y
    end
    function F.backward(_, g) return g end
    says("mark_dirty is no argument", "E-ARG", F, neap.ones(2, { requires_grad = true }))
    says("mark_dirty is no argument", "E-ARG", F, neap.ones(2))
  end)

  it("saves for backward in forward only", function()
    local F, kept = neap.Function "Late", nil
    function F.forward(ctx, x)
      kept = ctx
      return x * 2
    end
    function F.backward(_, g) return g end
    F(neap.ones(2, { requires_grad = true }))
    says("in forward only", "E-STATE", function() kept:save_for_backward(neap.ones(2)) end)
    says("in forward only", "E-STATE", function() kept:mark_dirty(neap.ones(2)) end)
  end)
end)

describe("a view that was made a leaf", function()
  it("cannot be written through its views, and nothing stays", function()
    collectgarbage()
    collectgarbage()
    local before = neap.memory_stats().storages
    neap.scope(function()
      local x = neap.ones(4):reshape(2, 2)
      x.requires_grad = true
      refused("E-LEAF-INPLACE", function() x:t():sin_() end)
      refused("E-LEAF-INPLACE", function() x:sin_() end)
    end)
    collectgarbage()
    assert.equal(before, neap.memory_stats().storages)
  end)
end)

describe("writing into a view", function()
  local function leaf(list) return neap.tensor(list, { dtype = "float64", requires_grad = true }) end

  -- x[2] is column 2 of b: its place is counted in b's memory, not in that of a copy of x.
  it("that is transposed or begins late, and gets its graph by it, writes where the view is", function()
    local v, b = leaf { 1, 2, 3 }, neap.zeros(3, 3, { dtype = "float64" })
    local x = b:t()
    x[1], x[2] = v * v, v * 3
    assert.is_true(neap.equal(b, { { 1, 3, 0 }, { 4, 6, 0 }, { 9, 9, 0 } }))
    local y = b[{ {}, 3 }]
    y[2] = v[1]
    assert.is_true(neap.equal(b[{ {}, 3 }], { 0, 1, 0 }))
    x = b:t();
    (x * x):sum():backward()
    assert.is_true(neap.equal(v.grad, { 4 + 18 + 2, 32 + 36, 108 + 54 })) -- 4 v^3 + 18 v, and 2 v[1]
  end)

  it("leaves the view itself fit for use, masks and ranges included", function()
    local v, h = leaf { 1, 2, 3 }, leaf { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } } * 1
    local x = h:t()
    x[1] = v
    x[{ {}, 3 }] = 0
    x[{ { 2, 3 }, neap.tensor { 1 } }] = 5;
    (x * x):sum():backward()
    assert.is_true(neap.equal(x, { { 1, 2, 0 }, { 5, 5, 0 }, { 5, 6, 0 } }))
    assert.is_true(neap.equal(v.grad, { 2, 4, 0 }))
  end)
end)

describe("the gradient of a result", function()
  local x, h
  before_each(function()
    x = neap.tensor({ 1.0, 2.0 }, { requires_grad = true })
    h = x * 2
    h:retain_grad()
  end)

  it("is counted once when it is kept and named", function()
    (h * h):sum():backward(nil, { inputs = { h, x, h } })
    assert.is_true(neap.equal(h.grad, { 4, 8 }))
    assert.is_true(neap.equal(x.grad, { 8, 16 }))
  end)

  it("adds up over passes, as a leaf's does", function()
    local s = (h * h):sum()
    s:backward(nil, { retain_graph = true })
    s:backward()
    assert.is_true(neap.equal(h.grad, { 8, 16 }))
  end)

  it("is no memory of the pass: changing it in a hook changes no other gradient", function()
    x:register_hook(function() h.grad:zero_() end);
    (h * 1 + h):sum():backward()
    assert.is_true(neap.equal(x.grad, { 4, 4 }))
  end)
end)

it("a leaf that was frozen after its op was recorded is given no gradient", function()
  local a, b = neap.ones(2, { requires_grad = true }), neap.ones(2, { requires_grad = true })
  local s = (a * b):sum()
  a.requires_grad = false
  s:backward()
  assert.is_nil(a.grad)
  assert.is_true(neap.equal(b.grad, { 1, 1 }))
end)

describe("an empty list", function()
  it("is a shape of 0 dimensions where a shape is needed", function()
    assert.equal(0, neap.ones(1):reshape({}).ndim)
    assert.equal(0, neap.reshape(neap.ones(1), {}).ndim)
    assert.equal(0, neap.rand({}).ndim)
    assert.equal(0, neap.ones(3):sum({}).ndim)
  end)
end)

describe("an option in the wrong table is never lost", function()
  local nn, optim, data = neap.nn, neap.optim, neap.data
  local x = neap.ones(2, 3)

  it("a list of sizes, dims, tensors or positions has no names in it", function()
    says("sizes holds the key the string 'dtype'", "E-ARG", neap.zeros, { 2, dtype = "float64" })
    says("options come after it", "E-ARG", neap.rand, { 2, 3, requires_grad = true })
    says("'keepdim'", "E-ARG", x.sum, x, { 1, keepdim = true })
    says("'dim'", "E-ARG", neap.cat, { x, x, dim = 2 })
    says("'step'", "E-ARG", function() return x[{ { 1, 2, step = 2 } }] end)
    says("'n'", "E-ARG", function() return x[{ n = 1 }] end)
    assert.is_true(neap.equal(x:view(table.pack(3, 2)), neap.ones(3, 2)))
    assert.is_true(neap.equal(neap.cat(table.pack(x:chunk(3, 2)), 2), x))
  end)

  it("nor has a list of parameters or of groups", function()
    local w = nn.Parameter(x)
    says("'lr'", "E-ARG", optim.SGD, { w, lr = 0.1 })
    says("'lr'", "E-ARG", optim.SGD, { { params = { w } }, lr = 0.1 })
    assert.equal(0.1, optim.SGD({ { params = { w }, lr = 0.1 } }).lr)
  end)

  it("nor has a list of modules; a module or optimizer is no data to hash: all would be alike", function()
    local layer = nn.Linear(2, 2)
    says("'first'", "E-ARG", nn.Sequential, { first = layer })
    says("x:state_dict()", "E-ARG", neap.hash, layer)
    says("x:state_dict()", "E-ARG", neap.hash, { model = optim.SGD(layer:parameters(), { lr = 1 }) })
    assert.equal(neap.hash(layer:state_dict()), neap.hash(layer:state_dict()))
  end)

  it("a loader is not walked by pairs; unknown names of nn.init and optim.schedule are told", function()
    says("loader:each()", "E-ARG", pairs, data.loader(data.tensors(x)))
    says("xavier_uniform_?", "E-ARG", function() return nn.init.xavier_uniform end)
    says("optim.schedule.cosine?", "E-ARG", function() return optim.schedule.cosin end)
  end)

  it("labels that are floats: the message says how they become integers", function()
    says('target:to("int64")', "E-SHAPE", nn.cross_entropy, x, neap.ones(2))
  end)
end)

describe("names of PyTorch's that are others here", function()
  local translate, nn = require "neap.translate", neap.nn

  it("are told: functions, methods, layers, options, dtypes, methods of modules, fields of functions", function()
    local x = neap.ones(2, 3)
    says("here PyTorch's 'long' is x:to(\"int64\")", "E-ARG", function() return x:long() end)
    says("neap.seed(n)", "E-ARG", function() return neap.manual_seed(1) end)
    says("a list of modules in a field", "E-ARG", function() return nn.ModuleList {} end)
    says("beta1 and beta2", "E-UNKNOWN-OPTION", neap.optim.Adam, { nn.Parameter(x) }, { betas = { 0.9, 0.99 } })
    says("correction = 0", "E-UNKNOWN-OPTION", x.var, x, 1, { unbiased = false })
    says('"float64"', "E-DTYPE", neap.zeros, 2, { dtype = "double" })
    says("nn.Buffer(t)", "E-ARG", function() return nn.ReLU():register_buffer("a", x) end)
    says('module:to("cuda")', "E-ARG", function() return nn.ReLU():cuda() end)
    says("neap.memory_stats(device).live", "E-ARG", function() return neap.cuda.memory_allocated() end)
    says("x:to(device)", "E-UNKNOWN-OPTION", x.to, x, { non_blocking = true })
    local F = neap.Function("F", { forward = function(ctx, t) return t, ctx.saved_tensors end })
    says("Name(x)", "E-ARG", function() return F.apply(x) end)
    says("ctx:saved()", "E-ARG", F, x)
    assert.is_nil(F.backward)
    assert.is_nil(nn.ReLU().unset)
  end)

  it("exist nowhere, and what is written instead exists", function()
    local parts = { neap = neap, nn = nn, optim = neap.optim, data = neap.data, math = math }
    local function no_part_has(name)
      for _, part in pairs { neap, nn, neap.optim, neap.data } do assert.is_nil(rawget(part, name), name) end
    end
    for name, text in pairs(translate.names) do
      if name ~= "cuda" then no_part_has(name) end -- x:cuda(); neap.cuda is a part
      assert.is_nil(neap.methods[name], name)
      for part, field in text:gmatch "(%w+)%.([%w_]+)" do
        if parts[part] then assert.is_not_nil(parts[part][field], text) end
      end
      for method in text:gmatch "x:([%w_]+)" do assert.is_not_nil(neap.methods[method], text) end
    end
    for name in pairs(translate.modules) do assert.is_nil(rawget(nn.Module, name), name) end
    for _, dtype in pairs(translate.dtypes) do assert.is_not_nil(neap.dtypes[dtype], dtype) end
  end)

  it("one letter is near no other; a module is no list of parameters", function()
    assert.is_nil(require("neap.util").nearest("z", { "a" }))
    says("got a module", "E-ARG", neap.optim.SGD, nn.Linear(2, 2), { lr = 1 })
    says("got a module", "E-ARG", neap.optim.SGD, nn.Sequential(nn.Linear(2, 2)), { lr = 1 })
  end)
end)

describe("what would do nothing, or the wrong thing, without a word", function()
  local nn, data = neap.nn, neap.data

  it("x:to takes names or one table, a module one name", function()
    local x, m = neap.ones(2), nn.Linear(2, 2)
    says("'gpu' is neither a dtype, as \"float32\", nor a device", "E-ARG", x.to, x, "gpu")
    says("did you mean 'float64'?", "E-DTYPE", x.to, x, "flaot64")
    says("y.device and y.dtype are names", "E-ARG", x.to, x, neap.ones(1))
    says("got a table", "E-ARG", x.to, x, "cpu", { dtype = "float64" })
    assert.equal("float64", x:to("cpu", "float64").dtype)
    assert.equal("float64", x:to({ dtype = "float64" }).dtype)
    says("got two", "E-ARG", m.to, m, "cpu", "float64")
    says("got a table", "E-ARG", m.to, m, { dtype = "float64" })
    says("got nil", "E-ARG", m.to, m)
  end)

  it("a stream and an event take no options", function()
    says("takes a device alone, got a table, too", "E-ARG", neap.cuda.Stream, "cpu", { priority = -1 })
    says("takes a device alone, got a table, too", "E-ARG", neap.cuda.Event, "cpu", { enable_timing = true })
  end)

  it("a module is not saved as a table of tensors", function()
    local path = os.tmpname()
    says("state_dict", "E-ARG", neap.save, path, nn.Sequential(nn.Linear(2, 2)))
    says("state_dict", "E-ARG", neap.save, path, neap.optim.SGD(nn.Linear(2, 2):parameters()))
    os.remove(path)
  end)

  it("a loader and a dataset are not walked by position", function()
    local set = data.tensors(neap.ones(4, 2))
    local loader = data.loader(set, { batch_size = 2 })
    says("loader:each()", "E-ARG", function() return ipairs(loader)(loader, 0) end)
    says("loader:each()", "E-ARG", function() return loader() end)
    says("d:get(1)", "E-ARG", function() return set[1] end)
    assert.is_nil(loader.nothing)
    assert.equal(1, #set.tensors)
  end)

  it("a plot is no PNG", function()
    local plot = neap.plot.line { 1, 2 }
    says("SVG", "E-ARG", plot.save, plot, "a.png")
  end)

  it("a class in a Sequential is told where it stands", function()
    says("part 2 is the class ReLU", "E-ARG", nn.Sequential, nn.Linear(2, 2), nn.ReLU)
  end)

  it("a dot in the place of a colon is told", function()
    says("opt:step()", "E-ARG", function() return neap.optim.SGD(nn.Linear(2, 2):parameters()).step() end)
    says("zero_grad", "E-ARG", function() return nn.Linear(2, 2).zero_grad() end)
    says("opt.groups", "E-ARG", function() return neap.optim.SGD(nn.Linear(2, 2):parameters()).param_groups end)
  end)

  it("a product of integers with floats names the floats, a negative size its dimension", function()
    says(':to("float32")', "E-DTYPE", nn.Linear(4, 2), neap.ones(3, 4, { dtype = "uint8" }))
    says("dimension 1 is negative", "E-SHAPE", neap.ones, -1)
    says("dimension 2 is negative", "E-SHAPE", neap.full, { 1, -1 }, 3)
  end)

  it("an error is one line, whatever string of the script it quotes", function()
    for _, f in ipairs {
      function() return neap.zeros("two\nlines") end,
      function() return neap.zeros(2, { ["two\nlines"] = 1 }) end,
      function() return neap.zeros(2, { device = "two\nlines" }) end,
      function() return neap.load("/no/two\nlines") end,
      function() return neap.profile("two\nlines") end,
    } do
      local ok, err = pcall(f)
      assert.is_false(ok)
      assert.is_nil(err:find("%c"), err)
      assert.is_truthy(neap.error_code(err) and err:find("%]$"), err)
    end
  end)
end)
