--- Streams, events, offload and checkpoints on emulated devices (section M). Each piece is a program of its own: two
-- devices, and streams that run as late as they may, in an order drawn by a seed, so a missing wait shows as a wrong
-- number. On a GPU a program runs once, if it needs neither a second one nor settings of the emulator.
local neap = require "neap"
local help = require "tests.lua.cudaemu_help"

if not help.available() then return end

--- Runs the program once for each seed, lazily; it must print "ok" last.
local function run(program, seeds, settings)
  if help.on_gpu and settings then return pending("on a GPU nothing does as told: " .. settings) end
  if help.on_gpu and program:find "%f[%w]E%f[^%w%-]" and neap.cuda.device_count() < 2 then
    return pending "there is one GPU"
  end
  if help.on_gpu then seeds = 1 end
  local name = os.tmpname()
  local file <close> = assert(io.open(name, "w"))
  file:write(("local D, E = %q, %q"):format(help.device, (help.device:gsub("0$", "1"))), [[

local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint
local function live(device) return neap.memory_stats(device or D).live end
local start = { to_host = 0, to_device = 0 }
local function moved() -- bytes since the last forget()
  local m = neap.memory_stats(D).moved
  return { to_host = m.to_host - start.to_host, to_device = m.to_device - start.to_device }
end
local function forget() start = neap.memory_stats(D).moved end
local function near(got, want, tolerance) assert(neap.allclose(got, want, tolerance), tostring(got)) end
]], program, '\nprint "ok"\n')
  file:close()
  for seed = 1, seeds do
    local command = "NEAP_EMU_DEVICES=2 NEAP_EMU_LAZY=1 NEAP_EMU_SEED=%d %s NEAP_DEVICE= lua5.4 -W %s 2>&1"
    local pipe = assert(io.popen(command:format(seed, settings or "", name)))
    local text = pipe:read "a"
    pipe:close()
    assert.is_truthy(text:find "ok\n$", ("seed %d: %s"):format(seed, text))
  end
  os.remove(name)
end

describe("streams of an emulated device #program", function()
  it("results are right whatever stream makes, reads and frees what", function()
    run([[
local streams = { neap.cuda.Stream(D), neap.cuda.Stream(D), neap.cuda.Stream(D) }
local function on(i, f, ...) if i == 0 then return f(...) end return streams[i](f, ...) end
math.randomseed(7)
local here, there = {}, {}
for i = 1, 6 do
  here[i] = neap.arange(1, 5001, 1, { dtype = "float32" }):mul(i / 1000)
  there[i] = here[i]:to(D)
end
for step = 1, 150 do
  local s, a, b, to = math.random(0, 3), math.random(6), math.random(6), math.random(6)
  local kind = math.random(5)
  local function f(list)
    if kind == 1 then list[to] = (list[a] + list[b]):mul(0.5)
    elseif kind == 2 then list[to] = list[a]:sin()
    elseif kind == 3 then list[to]:mul_(0.75)
    elseif kind == 4 then list[to] = list[a]:flip(1):contiguous()
    else list[to]:copy_(list[b]) end
  end
  f(here)
  on(s, f, there)
  if step % 40 == 0 then
    on(math.random(0, 3), function() near(there[a]:to("cpu"), here[a], { rtol = 1e-5, atol = 1e-6 }) end)
  end
end
for i = 1, 6 do near(there[i]:to("cpu"), here[i], { rtol = 1e-5, atol = 1e-6 }) end
]], 12)
  end)

  it("what the host reads is finished, whatever stream makes it and whatever stream reads", function()
    run([[
local side, other = neap.cuda.Stream(D), neap.cuda.Stream(D)
local x = neap.arange(1, 4, 1, { device = D, dtype = "float64" })
local function late(k) -- x + 30 k, and nothing has waited for it
  return side(function()
    local y = x:clone()
    for _ = 1, 30 do y:add_(k) end
    return y
  end)
end
local function here(f, ...) return f(...) end
for k, on in ipairs { here, other, here, other } do
  local want = 30 * k
  assert(on(function() return late(k):select(1, 2):item() end) == want + 2)
  assert(on(function() return late(k):item(3) end) == want + 3)
  assert(on(function() return late(k):totable()[4] end) == want + 4)
  assert(on(function() return tostring(late(k)) end):find(want + 1, 1, true))
  assert(on(function() return late(k):t():totable()[4] end) == want + 4)
  assert(on(function() return neap.hash(late(k)) end) == neap.hash(x:to "cpu" + want))
  assert(on(function() return neap.equal(late(k), { want + 1, want + 2, want + 3, want + 4 }) end))
  assert(on(function() return late(k):to("cpu", "int32"):totable()[1] end) == want + 1)
  assert(on(function() return late(k):gt(want + 2):nonzero().shape[1] end) == 2)
end
]], 4)
  end)

  it("an object that is collected gives its stream to the next; there are no more than 16", function()
    run([[
local kept = {}
for i = 1, 15 do kept[i] = neap.cuda.Stream(D) end
local ok, err = pcall(neap.cuda.Stream, D)
err = tostring(err)
assert(not ok and err:find("E-DEVICE", 1, true) and err:find("at most 16 streams", 1, true), err)
assert(neap.cuda.Stream(E)(function() return 3 end) == 3)
kept = nil
collectgarbage() collectgarbage()
for i = 1, 100 do neap.cuda.Stream(D)  collectgarbage() end
collectgarbage "stop"
for i = 1, 100 do neap.cuda.Stream(D) end -- what nobody holds is looked for before a stream is refused
]], 1)
  end)

  it("guards, waits, queries, events and misuse", function()
    run([[
local s, t = neap.cuda.Stream(D), neap.cuda.Stream(D)
assert(tostring(s):find("cuda.Stream 1 of cudaemu:0", 1, true), tostring(s))
local from, to = neap.cuda.Event(D), neap.cuda.Event(D)
assert(from:query())
local x = neap.ones(4000, { device = D })
from:record()
local y
do
  local _ <close> = s:enter()
  for _ = 1, 20 do x = x:add(1) end
  y = x:sum()
  to:record()
end
assert(from:elapsed_time(to) >= 0 and to:query())
local first = neap.cuda.Event(D):record()
x:add(1)
assert(neap.cuda.Event(D):record():elapsed_time(first) <= 0) -- the other way round: it waits for the later one, too
t:wait(s)
t:wait(nil)
s:wait(t)
s:synchronize()
assert(s:query())
assert(y:item() == 4000 * 21)
from:synchronize()
local function refused(code, f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok and tostring(err):find(code, 1, true), tostring(err))
end
refused("E-DEVICE", neap.cuda.Stream, "cpu")
refused("E-DEVICE", neap.cuda.Event, "cpu")
refused("E-ARG", neap.cuda.Stream, 3)
refused("E-DEVICE", s.wait, s, neap.cuda.Stream(E))
refused("E-ARG", s.wait, s, 3)
refused("E-ARG", s.synchronize)
refused("E-ARG", s)
refused("E-ARG", from.elapsed_time, from, 3)
refused("E-DEVICE", from.elapsed_time, from, neap.cuda.Event(E))
refused("E-ARG", from.elapsed_time, neap.cuda.Event(D), from)
refused("E-ARG", from.elapsed_time, from, neap.cuda.Event(D))
]], 3)
  end)
end)

describe("a finalizer that uses another stream while room is made for a call #program", function()
  local program = [[
local A, B = neap.cuda.Stream(D), neap.cuda.Stream(D)
local ran = 0
local function trash(bytes, device)
  local t = neap.zeros({ bytes // 4 }, { device = device, dtype = "float32" })
  setmetatable({}, { __gc = function()
    B(function() return neap.ones(10, { device = D }):add(1) end)
    ran = ran + 1
    t:release()
  end })
end
local function try(f)
  for step = 1, 8 do
    collectgarbage() collectgarbage()
    collectgarbage "stop"
    A(f)
    collectgarbage "restart"
  end
  assert(ran >= 8, ran)
end
]]

  it("of a kernel that takes scratch: 0.9 MiB of 1 are in use", function()
    run(program .. [[
local h = neap.randint(0, 100000, { 10000 }, { device = "cpu" }):to "float32"
local want = h:sort(1) + 1
try(function()
  local x = h:to(D)
  for _ = 1, 3 do trash(200000, D) end
  local kept = neap.ones(5000, { device = D })
  near((x:sort(1) + 1):to "cpu", want, { rtol = 0, atol = 0 })
  return kept
end)
]], 4, "NEAP_EMU_MEMORY=1")
  end)

  it("and that stream waits for the call's own: what it had all its work for by then is not all", function()
    run([[
local A, B = neap.cuda.Stream(D), neap.cuda.Stream(D)
local ran, old = 0
local function trash()
  local t = neap.zeros({ 50000 }, { device = D, dtype = "float32" })
  setmetatable({}, { __gc = function()
    B(function() old:add_(1) end)
    ran = ran + 1
    t:release()
  end })
end
local h = neap.randint(0, 100000, { 10000 }, { device = "cpu" }):to "float32"
local want = h:sort(1) + 1
for step = 1, 8 do
  collectgarbage() collectgarbage()
  collectgarbage "stop"
  local x, y, kept
  A(function()
    x, old = h:to(D), neap.ones(10, { device = D })
    for _ = 1, 3 do trash() end
    kept = neap.ones(5000, { device = D })
    y = x:sort(1)
  end)
  kept:release()
  B(function()
    x:zero_()
    near((y + 1):to "cpu", want, { rtol = 0, atol = 0 })
  end)
  collectgarbage "restart"
end
assert(ran == 24)
]], 2, "NEAP_EMU_MEMORY=1")
  end)

  it("of a copy that is converted on the host", function()
    run(program .. [[
local h = neap.rand({ 100, 100 }, { device = "cpu" }):t()
local want = h:to "float64" + 1
try(function()
  local x = neap.zeros({ 100, 100 }, { device = D, dtype = "float64" })
  trash(40000, "cpu")
  neap.memory_limit("cpu", neap.memory_stats("cpu").live + 45000, function() x:copy_(h) end)
  near((x + 1):to "cpu", want, { rtol = 0, atol = 0 })
end)
]], 4)
  end)
end)

describe("offload from an emulated device #program", function()
  it("ck-M5 save_on_cpu, pinned or not: device bytes of a no-grad forward, bytes moved, layout restored", function()
    run([[
neap.seed(1)
local w = neap.randn({ 40, 40 }, { device = D, dtype = "float64" })
local function f(t)
  for _ = 1, 6 do t = t:matmul(w):tanh() end
  return t:sum()
end
local value = neap.randn({ 40, 40 }, { device = D, dtype = "float64" })
local x = value:clone():requires_grad_()
f(x):backward()
local want = neap.hash(x.grad)
x.grad = nil
local function grown(run) -- device bytes that the forward leaves behind
  local before = live()
  local y = run()
  return live() - before, y
end
local none = grown(function() return neap.no_grad(f, value) end)
for _, pin in ipairs { false, true } do
  forget()
  local bytes, y = grown(function() return neap.save_on_cpu({ pin_memory = pin }, f, x) end)
  collectgarbage()
  assert(bytes == none, ("pin %s: %d bytes on the device, %d without gradients"):format(pin, bytes, none))
  -- matmul saves its two operands, tanh its result; the first operand x and each w are saved, too
  local one = 40 * 40 * 8
  local out = moved().to_host
  assert(out % one == 0 and out >= 12 * one, out)
  y:backward()
  assert(moved().to_device <= out and moved().to_device >= 12 * one, moved().to_device)
  assert(neap.hash(x.grad) == want, "pin " .. tostring(pin))
  x.grad = nil
  y:release()
end
-- layout: a transposed value comes back transposed, a window without its gaps
local seen = {}
local square = neap.Function("square", {
  forward = function(ctx, t) ctx:save_for_backward(t) return t:mul(t) end,
  backward = function(ctx, g)
    local t = ctx:saved()
    seen[#seen + 1] = { t.dtype, t.device, tostring(t:is_contiguous()) .. " " .. tostring(t:t():is_contiguous()) }
    return g:mul(t):mul(2)
  end,
})
for _, pin in ipairs { false, true } do
  local y = neap.save_on_cpu({ pin_memory = pin }, function()
    return square(x:t()):sum() + square(x:narrow(2, 3, 5)):sum()
  end)
  y:backward()
end
for _, s in ipairs(seen) do assert(s[1] == "float64" and s[2] == D, s[1] .. " " .. s[2]) end
local strides = {}
for i, s in ipairs(seen) do strides[i] = s[3] end
assert(table.concat(strides, ", ") == "true false, false true, true false, false true", table.concat(strides, ", "))
]], 4)
  end)

  it("ck-M5 several values of one node: each is copied once a pass, and nothing stays on the device", function()
    run([[
local a, b, c = neap.rand(6, 7, { device = D }), neap.rand({ 3, 5 }, { device = D, dtype = "float64" }):t(),
  neap.arange(1, 20):to(D)
local gaps = neap.arange(1, 20):to(D)[{ { 1, -1, 3 } }] -- this one is not copied for later
local want = neap.hash { a, b, gaps, c }
local keep = neap.Function("keep", {
  forward = function(ctx, x)
    ctx:save_for_backward(a, b, gaps, c)
    return x:clone()
  end,
  backward = function(ctx, g)
    assert(neap.hash { ctx:saved() } == want)
    return g
  end,
})
local x, passes = neap.ones(1, { device = D, requires_grad = true }), 3
local y = neap.save_on_cpu({ pin_memory = true }, function() return keep(keep(x)) end)
x.grad = neap.zeros_like(x)
forget()
local one = 2 * (a:numel() * 4 + (b:numel() + gaps:numel() + c:numel()) * 8)
collectgarbage() collectgarbage()
local before = live()
for pass = 1, passes do
  neap.scope(function() y:backward({ retain_graph = true }) end)
  collectgarbage() collectgarbage()
  assert(moved().to_device == pass * one, ("pass %d: %d of %d"):format(pass, moved().to_device, pass * one))
  assert(live() == before, ("pass %d: %d more"):format(pass, live() - before))
end
]], 2)
  end)

  it("ck-M5 blocks that are used again at once: right gradients, and no more memory with every step", function()
    run([[
neap.seed(2)
local start = neap.randn({ 50, 20 }, { device = D })
local function f(t)
  for i = 1, 12 do t = (t:sin() + t:mul(0.5)):exp():log() end
  return t:square():sum()
end
local x = start:clone():requires_grad_()
f(x):backward()
local want = neap.hash(x.grad)
x.grad = nil
for step = 1, 6 do
  local y = neap.save_on_cpu({ pin_memory = true }, f, x)
  for _ = 1, 5 do neap.full({ 50, 20 }, step, { device = D }):mul_(3) end -- takes what was given back
  y:backward()
  assert(neap.hash(x.grad) == want, step)
  x.grad = nil
  y:release()
end
]], 6)
  end)

  it("ck-K15 must_cpu_offload: device bytes as with recompute, one copy on the host, nothing rerun", function()
    run([[
neap.seed(3)
local w = neap.randn({ 30, 30 }, { device = D })
local function f(t) return t:matmul(w):sin():matmul(w):cos() end
local value = neap.randn({ 30, 30 }, { device = D })
local function gradient(answer)
  local x = value:clone():requires_grad_()
  local before, host = live(), live("cpu")
  forget()
  local y = checkpoint.checkpoint(f, { use_reentrant = false, context_fn = function()
    return checkpoint.create_selective_checkpoint_contexts(function(_, op)
      return op.name == "matmul" and answer or "prefer_recompute"
    end)
  end }, x)
  local facts = { device = live() - before, host = live("cpu") - host, products = 0, out = moved().to_host }
  neap.counters(true)
  y:sum():backward()
  facts.products, facts.back = neap.counters().matmul.kernels, moved().to_device
  return neap.hash(x.grad), facts
end
local one = 30 * 30 * 4
local want, again = gradient("prefer_recompute")
local kept, saved = gradient("must_save")
assert(kept == want)
for _, answer in ipairs { "must_cpu_offload", "prefer_cpu_offload" } do
  local got, away = gradient(answer)
  assert(got == want, answer)
  assert(away.device == again.device, answer .. ": device bytes " .. away.device .. " " .. again.device)
  assert(away.products == saved.products, "products " .. away.products .. " " .. saved.products)
  assert(away.host - again.host == 2 * one, answer .. ": host bytes " .. away.host)
  assert(away.out == 2 * one and away.back == 2 * one, ("moved %d and %d"):format(away.out, away.back))
end
]], 4)
  end)

  it("ck-K16 offload of all there is: views stay views, of weights, of inputs, of what is changed in place", function()
    run([[
local w = neap.randn({ 20, 20 }, { device = D, requires_grad = true })
local x = neap.randn({ 20, 20 }, { device = D, requires_grad = true })
local function f(t)
  local h = t:t():matmul(w:t()):mul(w[1])
  h:narrow(1, 1, 5):mul_(0.5)
  h:view(400):select(1, 3):add_(1)
  return h:sin():reshape(400):view(20, 20)
end
local function gradient(fn)
  x.grad, w.grad = nil, nil
  local y = fn(x)
  forget()
  y:sum():backward()
  return neap.hash { x.grad, w.grad }
end
local want = gradient(f)
for _, answer in ipairs { "must_cpu_offload", "prefer_cpu_offload" } do
  local got = gradient(function(t)
    return checkpoint.checkpoint(f, { use_reentrant = false, context_fn = function()
      return checkpoint.create_selective_checkpoint_contexts(function(_, op)
        return op.name:find "_$" and "prefer_recompute" or answer
      end)
    end }, t)
  end)
  assert(got == want, answer)
  -- two products of 400 values; what is changed through a view is a copy of it, of 100 values and of one
  assert(moved().to_device == (2 * 400 + 100 + 1) * 4, moved().to_device)
end
]], 4)
  end)

  it("pinned memory that a backward has read is not written by another stream's forward before", function()
    run([[
neap.seed(4)
local side = neap.cuda.Stream(D)
local function f(t) for _ = 1, 4 do t = t:sin() end return t:sum() end
local x, z = neap.randn({ 30, 30 }, { device = D, requires_grad = true }), neap.zeros({ 30, 30 }, { device = D }):exp()
z.requires_grad = true
f(x):backward()
local want = neap.hash(x.grad)
for step = 1, 4 do
  neap.cuda.synchronize(D)
  x.grad = nil
  neap.scope(function()
    neap.save_on_cpu({ pin_memory = true }, f, x):backward()
    side(function() neap.save_on_cpu({ pin_memory = true }, f, z) end)
  end)
  assert(neap.hash(x.grad) == want, step)
end
]], 6)
  end)

  it("without pinned memory the copies are made at once", function()
    run([[
local x = neap.full({ 10, 10 }, 0.5, { device = D, requires_grad = true })
local y = neap.save_on_cpu({ pin_memory = true }, function() return x:exp():sum() end)
y:backward()
near(x.grad:to("cpu"), neap.full({ 10, 10 }, math.exp(0.5)), { rtol = 1e-6, atol = 0 })
]], 1, "NEAP_EMU_PINNED=0")
  end)

  it("pinned memory that makes room for other is freed when its copies are done", function()
    run([[
for step = 1, 5 do
  local x = neap.full({ 50000 }, 0.5, { device = D, requires_grad = true })
  for _ = 1, 4 do
    neap.save_on_cpu({ pin_memory = true }, function() return x:exp():sum() end):release()
    collectgarbage() collectgarbage()
  end
  local large = neap.full({ 400000 }, 0.5, { device = D, requires_grad = true }) -- of which there is none
  neap.save_on_cpu({ pin_memory = true }, function() return large:exp():sum() end):backward()
  near(large.grad:to("cpu"), neap.full({ 400000 }, math.exp(0.5)), { rtol = 1e-6, atol = 0 })
end
]], 2, "NEAP_EMU_PINNED=1")
  end)

  it("a value that comes back ahead of its time takes no room that something else needs", function()
    run([[
local one = 100 * 100 * 4
local x = neap.full({ 100, 100 }, 0.5, { device = D, requires_grad = true })
local function sines(t) for _ = 1, 5 do t = t:sin() end return t:sum() end
local function f(t) return neap.scope(sines, t) end -- no handles of the values between
f(x):backward()
local want = neap.hash(x.grad)
local function forward()
  x.grad = nil
  collectgarbage() collectgarbage()
  local y = neap.save_on_cpu({ pin_memory = true }, f, x)
  neap.reset_peak(D)
  return y
end
forward():backward()
local free = neap.memory_stats(D).peak
assert(neap.hash(x.grad) == want)
for less = 0, one, one / 4 do -- no room for the value ahead, or not for long
  local y = forward()
  neap.memory_limit(D, free - less, function() y:backward() end)
  assert(neap.hash(x.grad) == want)
  assert(neap.memory_stats(D).peak <= free - less)
end
local y = forward()
local ok, err = pcall(neap.memory_limit, D, free - one - 1, function() y:backward() end)
assert(not ok and tostring(err):find("E-LIMIT", 1, true), tostring(err))
]], 2)
  end)
end)

--- The end of a program with a tensor x and a function f: x's gradient is the same in a region of either variant.
local variants = [[
local function gradient(wrap)
  neap.seed(5)
  wrap(x:dropout(0.1)):sum():backward()
  local h = neap.hash(x.grad)
  x.grad = nil
  return h
end
local want = gradient(f)
for _, reentrant in ipairs { false, true } do
  assert(gradient(function(t) return checkpoint.checkpoint(f, { use_reentrant = reentrant }, t) end) == want)
end
]]

describe("checkpoints on emulated devices #program", function()
  it("ck-M1 dropout in a region of either variant: the same mask", function()
    run([[
local x = neap.full({ 2000 }, 0.3, { device = D, requires_grad = true })
local function f(t) return t:dropout(0.3):sin():dropout(0.5) end
]] .. variants, 3)
  end)

  it("ck-M2 the peak of device bytes is lower with either variant", function()
    run([[
local blocks = {}
for i = 1, 8 do blocks[i] = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)):to(D) end
local function peak(wrap)
  local x = neap.ones(1024, 32, { requires_grad = true, device = D })
  for _, b in ipairs(blocks) do b:zero_grad() end
  collectgarbage() collectgarbage()
  neap.reset_peak(D)
  local base = live()
  neap.scope(function()
    local y = x
    for _, b in ipairs(blocks) do y = wrap(b, y) end
    y:sum():backward()
  end)
  return neap.memory_stats(D).peak - base
end
peak(function(b, y) return b(y) end)
local plain = peak(function(b, y) return b(y) end)
for _, reentrant in ipairs { false, true } do
  local less = peak(function(b, y) return checkpoint.checkpoint(b, { use_reentrant = reentrant }, y) end)
  assert(less < 0.6 * plain, ("%d of %d"):format(less, plain))
end
]], 1)
  end)

  it("ck-M3 autocast to float16, both variants", function()
    run([[
neap.seed(4)
local net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)):to(D)
local x = neap.randn({ 8, 16 }, { device = D, requires_grad = true })
local function gradient(wrap)
  net:zero_grad()
  x.grad = nil
  local y = neap.autocast("float16", function() return wrap(net, x) end)
  assert(y.dtype == "float16", y.dtype)
  y:to("float32"):sum():backward()
  return neap.hash(x.grad) .. neap.hash(net:parameters()[1].grad)
end
local want = gradient(function(f, t) return f(t) end)
for _, reentrant in ipairs { false, true } do
  assert(gradient(function(f, t) return checkpoint.checkpoint(f, { use_reentrant = reentrant }, t) end) == want)
end
]], 2)
  end)

  it("ck-M4 the region on one stream, the backward on another", function()
    run([[
neap.seed(6)
local w = neap.randn({ 20, 20 }, { device = D })
local value = neap.randn({ 20, 20 }, { device = D })
local function f(t) return t:matmul(w):sin():mul(t) end
local x = value:clone():requires_grad_()
f(x):sum():backward()
local want = neap.hash(x.grad)
for _, reentrant in ipairs { false, true } do
  for step = 1, 3 do
    local side, other = neap.cuda.Stream(D), neap.cuda.Stream(D)
    local t = value:clone():requires_grad_() -- made on the stream that is always there
    local y = side(function() return checkpoint.checkpoint(f, { use_reentrant = reentrant }, t) end)
    other(function() y:sum():backward() end)
    assert(neap.hash(t.grad) == want, tostring(reentrant))
  end
end
]], 8)
  end)

  it("ck-M6 two devices in one region, dropout on each", function()
    run([[
local x = neap.full({ 500 }, 0.4, { device = D, requires_grad = true })
local function f(t) return t:dropout(0.5):to(E):sin():dropout(0.5):to(D):exp() end
]] .. variants, 4)
  end)

  it("ck-M7 two regions on two devices in one backward: each runs again once, 200 times", function()
    run([[
local x = neap.full({ 20 }, 0.4, { device = D, requires_grad = true })
local runs = { 0, 0 }
local function counted(i)
  return function(t)
    runs[i] = runs[i] + 1
    return t:sin():mul(t)
  end
end
local want
for step = 1, 200 do
  runs = { 0, 0 }
  local a = checkpoint.checkpoint(counted(1), { use_reentrant = false }, x)
  local b = checkpoint.checkpoint(counted(2), { use_reentrant = false }, x:to(E))
  local both = a + b:to(D)
  both:sum():backward()
  assert(runs[1] == 2 and runs[2] == 2, runs[1] .. " " .. runs[2])
  want = want or neap.hash(x.grad)
  assert(neap.hash(x.grad) == want)
  x.grad = nil
end
]], 1)
  end)

  it("ck-M8 the forward is the first use of the device", function()
    run([[
local x = neap.full({ 300 }, 0.4, { requires_grad = true })
local function f(t) return t:to(D):dropout(0.5):exp():to("cpu") end
local y = checkpoint.checkpoint(f, { use_reentrant = false, preserve_rng_state = true }, x)
local mask = y:gt(1.5)
y:sum():backward()
-- where a value was dropped, y is 1 and the gradient 0; elsewhere it is 2 exp(0.8)
near(x.grad, mask:to("float32"):mul(2 * math.exp(0.8)), { rtol = 1e-5, atol = 0 })
]], 2)
  end)
end)
