-- Ways through the emulated device's kernels that no other spec takes: rare dtypes and layouts, and the device itself
-- being absent, full or described.
local neap = require "neap"
local help = require "tests.lua.cudaemu_help"

if not help.available() then return end

describe("rare ways on the emulated device", function()
  it("products of small integers, and of a layer whose input is no run of rows", function()
    for _, dtype in ipairs { "int8", "uint8", "int32" } do
      local a = neap.arange(1, 12, { dtype = dtype, device = "cpu" }):reshape(3, 4)
      help.same("matmul of " .. dtype, function(on) return on(a):matmul(on(a:t())) end)
    end
    local x = neap.arange(1, 24, { dtype = "float64", device = "cpu" }):reshape(2, 3, 4)
    local w = neap.arange(1, 10, { dtype = "float64", device = "cpu" }):reshape(5, 2)
    help.same("linear", function(on) return neap.linear(on(x):transpose(1, 3), on(w)) end)
  end)

  it("reductions to and of small integers", function()
    for _, dtype in ipairs { "int8", "uint8", "int32" } do
      local x = neap.tensor({ { 5, 2, 7 }, { 1, 9, 3 } }, { dtype = dtype, device = "cpu" })
      help.same("of " .. dtype, function(on)
        return on(x):amax(), on(x):amax(1), on(x):amin(2), on(x):sum(), on(x):prod(1)
      end)
    end
  end)

  it("integers beyond 2^53, rounded once", function()
    local x = neap.tensor({ (1 << 53) + 1, -(1 << 60) - 12345, math.maxinteger }, { dtype = "int64", device = "cpu" })
    for _, dtype in ipairs(help.floats) do
      help.same("to " .. dtype, function(on) return on(x):to(dtype) end)
    end
  end)

  it("labels of another dtype, and not one behind the other", function()
    local x = neap.arange(1, 12, { dtype = "float64", device = "cpu" }):reshape(4, 3):sin()
    local target = neap.tensor({ { 1, 2 }, { 3, 1 }, { 2, 2 }, { 1, 3 } }, { dtype = "int64", device = "cpu" })
    help.same("cross_entropy", function(on)
      return neap.cross_entropy(on(x), on(target):select(2, 1)),
        neap.cross_entropy(on(x), on(target):select(2, 1):to "int32")
    end, 1e-14)
  end)

  it("steps and clipping of parameters of every dtype", function()
    for _, dtype in ipairs(help.floats) do
      for _, name in ipairs { "AdamW", "SGD" } do
        help.same(name .. " of " .. dtype, function(on)
          local x = neap.tensor({ 0.5, -1.25, 3, 0.125 }, { dtype = dtype, device = "cpu" })
          local p = on(x):detach():requires_grad_()
          local opt = neap.optim[name]({ p }, name == "SGD" and { lr = 0.1, momentum = 0.9 } or { lr = 0.1 })
          for _ = 1, 3 do
            p.grad = nil
            neap.scope(function() (p * p):sum():backward() end)
            local norm = neap.optim.clip_grad_norm_({ p }, 1.5)
            assert.is_true((neap.is_tensor(norm) and norm:item() or norm) > 0)
            opt:step()
          end
          return p:detach()
        end, 1e-6)
      end
    end
  end)

  it("a gradient that is on another device is refused, with the way to move it", function()
    local x = neap.ones({ 2 }, { device = help.device, requires_grad = true })
    local g = neap.ones({ 2 }, { device = "cpu" })
    for what, f in pairs {
      ["neap.grad: "] = function() x.grad = g end,
      ["neap.backward: "] = function() x:exp():backward(g) end,
    } do
      local ok, err = pcall(f)
      assert.is_false(ok)
      assert.equal("E-DEVICE", neap.error_code(err))
      local rule = ('the gradient [2] float32 cpu does not fit the tensor [2] float32 %s; move it with :to("%s")')
        :format(x.device, x.device)
      assert.truthy(err:find(what .. rule, 1, true), err)
    end
    assert.is_nil(x.grad)
    x.grad = g:to(x.device)
    assert.equal(x.device, x.grad.device)
  end)

  it("the device is described", function()
    local p = neap.cuda.properties(help.device)
    assert.is_true(p.memory > 0 and p.memory_free > 0 and p.memory_free <= p.memory)
    assert.equal(help.device == "cudaemu:0", p.name:find "emulated" ~= nil)
  end)

  it("two devices work by turns: kernels, products, copies and steps #program", function()
    if help.on_gpu and neap.cuda.device_count() < 2 then return pending "there is one GPU" end
    local program = os.getenv "NEAP_PROGRAM" or "build/neap"
    local name = os.tmpname()
    local file <close> = assert(io.open(name, "w"))
    file:write(("local devices = { %q, %q }"):format(help.device, (help.device:gsub("0$", "1"))), [[

      local neap = require "neap"
      local function each(fn)
        local made = {}
        for i, d in ipairs(devices) do made[i] = fn(i, d) end
        return made
      end
      local x = each(function(i, d) return neap.full({ 3, 3 }, i * 1.0, { device = d }) end)
      local p = each(function(_, d) return neap.ones(4, { device = d }):requires_grad_() end)
      local optimizers = each(function(i) return neap.optim.SGD({ p[i] }, { lr = 0.25 }) end)
      for _ = 1, 2 do
        each(function(i) (p[i] * p[i]):sum():backward() end)
        each(function(i)
          optimizers[i]:step()
          optimizers[i]:zero_grad()
        end)
      end
      each(function(i) print((x[i] + x[i]):sum():item(), x[i]:matmul(x[i]):sum():item(), p[i]:sum():item()) end)
      print((x[1]:to(x[2].device) * x[2]:t():to "float64"):sum():item())
    ]])
    file:close()
    local out <close> = io.popen(("NEAP_DEVICE=cpu NEAP_EMU_DEVICES=2 %s %s 2>&1"):format(program, name))
    local text = out:read "a"
    os.remove(name)
    assert.equal("18.0\t27.0\t1.0\n36.0\t108.0\t1.0\n18.0\n", text)
  end)

  it("a loader gives batches of data on the device, and of the CPU's while the device is the default", function()
    local x, y = neap.arange(1, 6, { device = "cpu" }):reshape(6, 1), neap.arange(1, 6, { device = "cpu" })
    for _, default in ipairs { "cpu", help.device } do
      neap.device(default, function()
        local set = neap.data.tensors(x:to(help.device), y)
        for a, b in neap.data.loader(set, { batch_size = 4, shuffle = true, seed = 1 }):each() do
          assert.equal(x:to(help.device).device, a.device)
          assert.equal("cpu", b.device)
          assert.is_true(neap.equal(a:to("cpu"):flatten(), b))
        end
      end)
    end
  end)

  it("a model that moves takes its gradients along, and its optimizer's state when asked", function()
    local opts = { device = help.device }
    for _, name in ipairs { "SGD", "AdamW", "RMSprop", "Adagrad" } do
      local losses = {}
      for round = 1, 2 do
        neap.seed(1)
        local m = neap.device("cpu", neap.nn.Linear, 4, 3)
        local x = neap.arange(1, 8, { dtype = "float32", device = "cpu" }):reshape(2, 4)
        local opt = neap.optim[name](m:parameters(), { lr = 0.01, momentum = name == "SGD" and 0.9 or nil })
        local function step()
          opt:zero_grad()
          local loss = m(x):square():mean()
          loss:backward()
          opt:step()
          return loss:item()
        end
        step()
        local before = m.weight.grad:clone()
        if round == 2 then
          m:to(help.device)
          x = x:to(help.device)
          assert.equal(x.device, m.weight.grad.device)
          assert.is_true(neap.equal(before:to(help.device), m.weight.grad))
          local ok, err = pcall(step)
          assert.is_false(ok)
          assert.truthy(err:find("opt:load_state_dict(opt:state_dict()) brings the state after it", 1, true), err)
          opt:load_state_dict(opt:state_dict())
        end
        for i = 1, 3 do losses[i] = losses[i] and math.abs(losses[i] - step()) or step() end
      end
      for i = 1, 3 do assert.is_true(losses[i] < 1e-4, name .. ": " .. losses[i]) end
    end
    local ok, err = pcall(function() return neap.ones({ 2 }, { device = "cpu" }) + neap.ones({ 2 }, opts) end)
    assert.is_false(ok)
    assert.truthy(err:find('move one with :to("' .. neap.ones({ 1 }, opts).device .. '")', 1, true), err)
  end)

  it("streams and events tell what PyTorch's methods are here, and take nothing that would be lost", function()
    local stream, event = neap.cuda.Stream(help.device), neap.cuda.Event(help.device)
    local function says(words, f, ...)
      local ok, err = pcall(f, ...)
      assert.is_false(ok)
      assert.truthy(err:find(words, 1, true) and neap.error_code(err) == "E-ARG", err)
    end
    says("here PyTorch's 'wait_stream' is stream:wait(other)", function() stream:wait_stream(stream) end)
    says("here PyTorch's 'record_event' is stream(event.record, event)", function() stream:record_event() end)
    says("did you mean 'synchronize'?", function() event:syncronize() end)
    says("no method 'colour' [E-ARG]", function() return event.colour end)
    says("methods have names, got 1", function() return stream[1] end)
    says("record takes nothing, got neap.cuda.Stream, too", event.record, event, stream)
    says("give the stream that the event was recorded on", stream.wait, stream, event)
    assert.is_true(stream(event.record, event) == event)
    local later = neap.cuda.Event(help.device)
    stream(later.record, later) -- another stream's moment may as well be before
    assert.is_true(event:elapsed_time(later) >= 0)
  end)

  it("a kernel that faults loses its device alone; with NEAP_CUDA_SYNC its op is named #program", function()
    if help.on_gpu then return pending "no kernel of Neap faults on a GPU when it is told to" end
    local name = os.tmpname()
    local file <close> = assert(io.open(name, "w"))
    file:write [[
      local neap = require "neap"
      local x, other = neap.ones(4, 4, { device = "cudaemu:0" }), neap.ones(2, { device = "cudaemu:1" })
      local stream, event = neap.cuda.Stream "cudaemu:0", neap.cuda.Event "cudaemu:0"
      event:record()
      local made = {}
      for i = 1, 4 do made[i] = x:matmul(x:t()) end
      for i = 1, 4 do made[i]:release() end -- where memory is cached (NEAP_EMU_LAZY), it is used again
      for _, device in ipairs { "cudaemu:0", "cudaemu:1" } do neap.cuda.synchronize(device) end
      local function try(fn) print(select(2, pcall(fn))) end
      try(function()
        local y = x:exp()
        return y:sum():item()
      end)
      try(function() return x:matmul(x:t()) end)
      try(function() return x:to "cpu" end)
      try(function() return neap.cuda.synchronize "cudaemu:0" end)
      try(function() return neap.zeros(1 << 20, { device = "cudaemu:0" }) end)
      while not (stream:query() and event:query()) do end -- would never end, were what is lost not done
      collectgarbage()
      print(neap.memory_stats("cudaemu:0").live, other:sum():item(), neap.ones(3):sum():item())
    ]]
    file:close()
    local function run(settings)
      local program = os.getenv "NEAP_PROGRAM" or "build/neap"
      local command = "NEAP_DEVICE=cpu NEAP_EMU_DEVICES=2 NEAP_EMU_FAULT=9 NEAP_EMU_LAZY=0 %s timeout 60 %s %s 2>&1"
      local out <close> = io.popen(command:format(settings, program, name))
      local lines = {}
      for line in out:lines() do lines[#lines + 1] = line end
      return lines
    end
    local lost = "; the device is lost to this process"
    local hint = ", perhaps by an op before this one: with NEAP_CUDA_SYNC=1 the one at fault is named [E-DEVICE]"
    for _, case in ipairs {
      { "", ":12: neap.sum: ", lost .. hint },
      { "NEAP_CUDA_SYNC=0", ":12: neap.sum: ", lost .. hint },
      { "NEAP_EMU_LAZY=1", ": neap", lost .. hint },
      { "NEAP_CUDA_SYNC=1", ":11: neap.exp: ", lost .. " [E-DEVICE]" },
      { "NEAP_CUDA_SYNC=1 NEAP_EMU_LAZY=1", ":11: neap.exp: ", lost .. " [E-DEVICE]" },
    } do
      local lines = run(case[1])
      assert.equal(6, #lines, table.concat(lines, "\n"))
      assert.truthy(lines[1]:find(case[2], 1, true), lines[1])
      for i = 1, 5 do
        assert.truthy(lines[i]:find("cudaErrorIllegalAddress: an illegal memory access", 1, true), lines[i])
        assert.truthy(lines[i]:find(case[3], 1, true), lines[i])
      end
      local call = case[1]:find "LAZY" and "cublasLtMatmul" or "cudaSetDevice"
      assert.truthy(lines[2]:find("neap.matmul: .*%(" .. call), lines[2])
      assert.equal("64\t2.0\t3.0", lines[6])
    end
    os.remove(name)
  end)

  it("without a device, or without memory, the error says so #program", function()
    if help.on_gpu then return pending "a GPU that is there is not absent when it is told to be" end
    local function run(setting, code)
      local program = os.getenv "NEAP_PROGRAM" or "build/neap"
      local p <close> = io.popen(("NEAP_DEVICE=cpu %s %s -e '%s' 2>&1"):format(setting, program, code))
      return p:read "a"
    end
    local out = run("NEAP_EMU_DEVICES=0", [[require "neap".ones(1, { device = "cudaemu" })]])
    assert.truthy(out:find("there is a driver, but no device", 1, true), out)
    for setting, words in pairs {
      ["NEAP_EMU_DRIVER=0"] = "no driver is installed",
      ["NEAP_EMU_DRIVER=12080"] = "the driver is too old: it knows CUDA 12.8, this plug-in needs 13.0",
    } do
      out = run(setting, [[require "neap".ones(1, { device = "cudaemu" })]])
      assert.truthy(out:find(words, 1, true), out)
    end
    out = run("NEAP_EMU_MEMORY=1", [[require "neap".zeros(1 << 20, { device = "cudaemu" })]])
    assert.truthy(out:find("cudaemu:0 has no 4194304 bytes left, 0 are in use here.*E%-NOMEM"), out)
  end)
end)
