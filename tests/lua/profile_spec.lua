--- neap.profile, neap.memory, neap.detect_leaks and the lines of neap.detect_anomaly: exact counts and bytes, never
-- times.
local neap = require "neap"
local nn, checkpoint = neap.nn, neap.checkpoint

local F = 4 -- bytes of a float32
local NR = { use_reentrant = false }

-- "tests/lua/profile_spec.lua:12" of the caller, plus some lines.
local function here(more)
  local info = debug.getinfo(2, "Sl")
  return ("%s:%d"):format(info.short_src, info.currentline + (more or 0))
end

local function content(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  os.remove(path)
  return text
end

local function row_of(rows, line, op)
  for _, row in ipairs(rows) do
    if row.line == line and row.op == op then return row end
  end
end

local function sum(rows, field)
  local total = 0
  for _, row in ipairs(rows) do total = total + row[field] end
  return total
end

describe("neap.profile", function()
  it("counts kernels and the bytes of their results, by op and by line, and returns fn's results", function()
    local x = neap.ones(10, 20)
    local first
    local report, y, nothing, n = neap.profile(function(t, k)
      first = here(1)
      local a = t:exp()
      a = (a * 2):exp():view(-1) -- the view takes no kernel
      return a:sum(), nil, k
    end, x, 7)
    assert.equal(0, y.ndim)
    assert.is_nil(nothing)
    assert.equal(7, n)
    assert.equal(4, #report.events)
    assert.equal(2, report.ops.exp.calls)
    assert.equal(2, report.ops.exp.forward)
    assert.equal(2 * 200 * F, report.ops.exp.bytes)
    assert.equal(F, report.ops.sum.bytes)
    assert.is_nil(report.ops.view)
    assert.equal(1, report.lines[first].calls)
    assert.equal(200 * F, report.lines[first].bytes)
    assert.equal(3 * 200 * F + F, report.bytes)
    assert.equal(report.bytes, sum(report.ops, "bytes"))
    assert.equal(report.bytes, sum(report.lines, "bytes"))
    assert.equal(3, #report.lines)
  end)

  it("counts no bytes for ops in place", function()
    local x = neap.ones(10)
    local report = neap.profile(function() x:add_(1):mul_(2) end)
    assert.equal(1, report.ops.add_.calls)
    assert.equal(0, report.bytes)
  end)

  it("counts what count_ops counts, over a step with checkpoint and optimizer", function()
    neap.seed(1)
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    local opt = neap.optim.SGD(net:parameters(), { lr = 0.1 })
    local x = neap.randn(3, 4)
    local function step()
      opt:zero_grad()
      checkpoint(net, NR, x):sum():backward()
      opt:step()
    end
    neap.scope(step)
    local counts = neap.count_ops(neap.scope, step)
    local report = neap.profile(neap.scope, step)
    for _, op in ipairs(neap.ops) do
      local row = report.ops[op.name]
      assert.equal(counts[op.name], row and row.calls or 0, op.name)
    end
    for _, row in ipairs(report.ops) do assert.equal(row.calls, row.forward + row.backward + row.recompute) end
  end)

  it("gives backward's kernels to the line that called the op, recomputed ones to their line", function()
    local x = neap.ones({ 5 }, { requires_grad = true })
    local at_exp, at_cos, at_backward
    local report = neap.profile(function()
      at_exp = here(1)
      local y = x:exp()
      at_cos = here(1)
      local z = checkpoint(function(t) return t:cos():cos() end, NR, y)
      at_backward = here(1)
      z:backward(neap.ones(5))
    end)
    local exp = report.lines[at_exp]
    assert.equal(1, exp.forward)
    assert.equal(1, exp.backward) -- g * y
    assert.equal(0, exp.recompute)
    local cos = report.lines[at_cos]
    assert.equal(2, cos.forward)
    assert.equal(1, cos.recompute) -- early stop: the second cosine is not needed
    assert.is_true(cos.backward >= 4) -- twice -g * sin(t)
    assert.equal(0, cos.backward % 2)
    assert.is_nil(report.lines[at_backward])
  end)

  it("gives backward's kernels to the line that calls backward where the op ran before", function()
    local x = neap.ones({ 5 }, { requires_grad = true })
    local y = x:exp():sum()
    local line
    local report = neap.profile(function()
      line = here(1)
      y:backward()
    end)
    assert.equal(1, #report.lines)
    assert.equal(1, report.lines[line].backward)
  end)

  it("sees through debug regions, policies and op modes", function()
    local x = neap.ones({ 5 }, { requires_grad = true })
    local function policy(_, op)
      neap.ones(2):neg()
      return op.name == "exp"
    end
    local report = neap.profile(function()
      local options = { use_reentrant = false, debug = true, determinism_check = "ops", policy = policy }
      local y = checkpoint(function(t) return t:exp():sin() end, options, x)
      neap.op_mode(function(_, call, ...) return call(...) end, function() return y:sum() end):backward()
    end)
    assert.equal(1, report.ops.exp.calls) -- kept by the policy
    assert.equal(2, report.ops.neg.calls) -- asked twice
    assert.equal(1, report.ops.sum.forward)
  end)

  it("nests, and ends when fn raises or yields", function()
    local x = neap.ones(2)
    local inner
    local outer = neap.profile(function()
      x:exp()
      inner = neap.profile(function() x:sin() end)
      x:exp()
    end)
    assert.equal(1, #inner.events)
    assert.equal(3, #outer.events)
    local value = {}
    local ok, err = pcall(neap.profile, function() error(value) end)
    assert.is_false(ok)
    assert.equal(value, err)
    local co = coroutine.wrap(function()
      return neap.profile(function()
        x:exp()
        coroutine.yield()
        x:exp()
      end)
    end)
    co()
    x:sin() -- another coroutine's op
    assert.equal(2, #co().events)
    ok, err = pcall(neap.profile, 7)
    assert.is_false(ok)
    assert.equal("E-ARG", neap.error_code(err))
  end)

  it("prints two tables and saves a Chrome trace", function()
    local report = neap.profile(function() return neap.ones(2, 3):exp() end)
    local text = tostring(report)
    assert.truthy(text:find("op .*\n%-+\nexp "))
    assert.truthy(text:find("profile_spec.lua:%d+ "))
    assert.truthy(text:find("1 kernels, ", 1, true))
    local path = os.tmpname()
    assert.equal(report, report:save(path))
    local trace = require("neap.json").decode(content(path), path)
    assert.equal(1, #trace.traceEvents)
    local event = trace.traceEvents[1]
    assert.equal("exp", event.name)
    assert.equal("X", event.ph)
    assert.equal("forward", event.cat)
    assert.equal(6 * F, event.args.bytes)
    assert.equal(report.events[1].line, event.args.line)
  end)
end)

describe("neap.memory", function()
  before_each(function()
    neap.collect_all()
    collectgarbage "stop"
  end)
  after_each(function() collectgarbage "restart" end)

  it("profile says who held the peak, to the byte", function()
    local w = neap.ones({ 3, 20 }, { requires_grad = true })
    local x = neap.ones(10, 3)
    local at_new, at_product, at_exp
    local report, loss = neap.memory.profile(function()
      local loss = neap.scope(function()
        at_new = here(1)
        local scale = neap.zeros(10, 20)
        at_product = here(1)
        local h = x:matmul(w) + scale
        at_exp = here(1)
        return h:exp():sum()
      end)
      loss:backward()
      return loss
    end)
    local stats = neap.memory_stats()
    assert.equal(stats.live, report.held + 60 * F + F) -- w.grad and the loss
    assert.equal(stats.peak, report.peak)
    assert.same(stats.by, report.by)
    assert.equal(F, row_of(report.lines, at_exp, "sum").now)

    -- At the peak, inside the scope: scale, the product, the sum of both, its exponential, the total.
    local made = 4 * 200 * F + F
    assert.equal(report.held + made, report.peak)
    assert.equal(made, sum(report.lines, "peak"))
    assert.equal(200 * F, row_of(report.lines, at_new, "new tensor").peak)
    assert.equal(200 * F, row_of(report.lines, at_product, "matmul").peak)
    assert.equal(200 * F, row_of(report.lines, at_exp, "exp").peak)
    assert.equal("sum", report.peak_op)
    assert.equal(at_exp, report.peak_line)
    assert.equal(60 * F, row_of(report.lines, at_product, "matmul (backward)").now)
    assert.equal(60 * F + F, sum(report.lines, "now"))
    assert.equal(0, loss.ndim)
    for _, moment in ipairs(report.timeline) do
      local total = 0
      for _, bytes in pairs(moment.by) do total = total + bytes end
      assert.is_true(total <= report.peak)
    end
    assert.truthy(tostring(report):find("raised last by sum at " .. at_exp, 1, true))
  end)

  it("profile remembers who held the peak, however much comes and goes afterwards", function()
    local at_large, at_small
    local report = neap.memory.profile(function()
      at_large = here(1)
      local large = neap.ones(5000):exp()
      large:release()
      collectgarbage()
      for _ = 1, 300 do
        at_small = here(1)
        neap.scope(function() neap.ones(10):exp():sin() end)
      end
    end)
    assert.equal(report.held + 2 * 5000 * F, report.peak)
    assert.equal(5000 * F, row_of(report.lines, at_large, "exp").peak)
    assert.equal(0, row_of(report.lines, at_large, "exp").now)
    assert.is_nil(row_of(report.lines, at_small, "sin"))
    assert.equal(2 * 5000 * F, sum(report.lines, "peak"))
    assert.equal(600, #report.timeline - 1)
  end)

  it("profile saves the timeline as SVG: the categories that were used, and the total", function()
    local w = neap.ones({ 30 }, { requires_grad = true })
    local path = os.tmpname()
    local report = neap.memory.profile(function() (w * w):sum():backward() end)
    assert.equal(report, report:save(path))
    local svg = content(path)
    assert.truthy(svg:find "^<svg " and svg:find "</svg>\n$")
    assert.truthy(svg:find(">total<", 1, true) and svg:find(">saved<", 1, true))
    assert.is_nil(svg:find(">optimizer<", 1, true))
  end)

  it("report lists handles by scope, a storage once, and what no handle holds", function()
    local start = neap.memory.report()
    local x = neap.ones({ 100 }, { requires_grad = true })
    local report, opened
    neap.scope(function()
      local y = x:exp()
      local v = y:view(10, 10) -- the same storage
      opened = here(1)
      neap.scope(function()
        local z = (x * 3):exp() -- both have a handle in the inner scope
        report = neap.memory.report()
        return z, v
      end)
    end)
    assert.equal(start.live + 4 * 100 * F, report.live)
    assert.equal(2 * 100 * F, report.scopes[1].bytes)
    assert.equal(2, report.scopes[1].handles)
    assert.equal("scope at " .. opened, report.scopes[1].name)
    assert.equal(100 * F, report.scopes[2].bytes)
    assert.equal(2, report.scopes[2].handles)
    assert.equal("no scope", report.scopes[#report.scopes].name)
    assert.equal(report.live, sum(report.scopes, "bytes") + report.unhandled)
    assert.equal(start.unhandled, report.unhandled)
    assert.is_nil(report.lines)
    assert.truthy(tostring(report):find("no handle: graphs, gradients, optimizers", 1, true))
    neap.scope(function() -- two results in a graph that no handle holds
      local loss = neap.scope(function() return x:exp():exp():sum() end)
      assert.equal(start.unhandled + 2 * 100 * F, neap.memory.report().unhandled)
      assert.equal(0, loss.ndim)
    end)
  end)

  it("report knows the lines inside a profile", function()
    local report, line
    neap.memory.profile(function()
      line = here(1)
      local y = neap.ones(50):exp()
      report = neap.memory.report()
      y:release()
    end)
    assert.equal(50 * F, row_of(report.lines, line, "exp").now)
    assert.equal(50 * F, row_of(report.lines, line, "new tensor").now)
  end)
end)

describe("neap.detect_leaks", function()
  local x = neap.ones({ 10 }, { requires_grad = true })

  it("finds nothing in a clean step, also with checkpoint", function()
    local function step(t)
      local y = checkpoint(function(v) return v:exp():sin() end, NR, t * 2)
      y:sum():backward()
      return y
    end
    local report = neap.detect_leaks(step, x)
    assert.is_true(report.ok, tostring(report))
    assert.same({}, report.grows)
    assert.same({}, report.lines)
    assert.equal("neap.detect_leaks: nothing grows over 3 calls", tostring(report))
  end)

  it("says what a call leaves, and the line that made it", function()
    local losses, line = {}, nil
    local report = neap.detect_leaks(function()
      line = here(1)
      losses[#losses + 1] = x:exp():sum() -- the graph stays with it
    end)
    assert.is_false(report.ok)
    assert.equal(10 * F + F, report.grows.bytes)
    assert.equal(2, report.grows.storages)
    assert.equal(2, report.grows.nodes) -- exp, sum; the leaf's is the same every time
    assert.equal(1, report.grows.handles)
    assert.is_nil(report.grows.regions)
    local exp, total = row_of(report.lines, line, "exp"), row_of(report.lines, line, "sum")
    assert.equal(3, exp.storages)
    assert.equal(3 * 10 * F, exp.now)
    assert.equal(3 * F, total.now)
    assert.equal(2, #report.lines)
    local text = tostring(report)
    assert.truthy(text:find("every call leaves 44 B, 2 storages, 2 nodes, 1 handles", 1, true), text)
    assert.truthy(text:find(line .. "  exp", 1, true), text)
  end)

  it("finds regions and tensors made without an op, and not what grows once", function()
    local kept, line, cache = {}, nil, nil
    local report = neap.detect_leaks(function()
      cache = cache or neap.ones(1000)
      line = here(1)
      kept[#kept + 1] = neap.zeros(5)
      kept[#kept + 1] = checkpoint(function(t) return t:exp():sin() end, NR, x)
    end)
    assert.equal(1, report.grows.regions)
    assert.equal(5 * F + 10 * F, report.grows.bytes)
    assert.equal(3 * 5 * F, row_of(report.lines, line, "new tensor").now)
    assert.equal(1000, #cache)
  end)
end)

describe("neap.detect_anomaly", function()
  local function refused(f)
    local ok, err = pcall(f)
    assert.is_false(ok)
    assert.equal("E-ANOMALY", neap.error_code(err), tostring(err))
    return err
  end

  it("names the line that called the op whose backward gives NaN", function()
    local line
    local err = refused(function()
      neap.detect_anomaly(function()
        local x = neap.zeros({ 2 }, { requires_grad = true })
        local y = x:view(2, 1)
        line = here(1)
        y = y:square() -- 0 * inf: the slope of the root is infinite
        y:sqrt():sum():backward()
      end)
    end)
    assert.truthy(err:find("the backward of square gives NaN as the gradient of its argument 1; it was called at "
      .. line .. " [E-ANOMALY]", 1, true), err)
  end)

  it("names op and line of the first NaN in the forward", function()
    local made, called
    local err = refused(function()
      local _ <close> = neap.detect_anomaly()
      local x = neap.ones({ 2 }, { requires_grad = true })
      made = here(1)
      local nan = (neap.zeros(2) / neap.zeros(2)):view(2)
      called = here(1)
      local y = x * nan
      y:sum():backward()
    end)
    assert.truthy(err:find("the backward of mul gives NaN as the gradient of its argument 1; it was called at "
      .. called .. "; the first NaN of the forward was made by div at " .. made, 1, true), err)
  end)

  it("knows the lines inside checkpoints, and none of nodes from before it was on", function()
    local line
    local function f(t)
      line = here(1)
      return t:square():sqrt()
    end
    local x = neap.zeros({ 2 }, { requires_grad = true })
    for _, reentrant in ipairs { false, true } do
      local err = refused(function()
        neap.detect_anomaly(function() checkpoint(f, { use_reentrant = reentrant }, x):sum():backward() end)
      end)
      assert.truthy(err:find("the backward of square gives NaN", 1, true), err)
      assert.truthy(err:find("it was called at " .. line, 1, true), err)
    end
    local y = f(x):sum()
    local err = refused(function() neap.detect_anomaly(function() y:backward() end) end)
    assert.is_nil(err:find("called at", 1, true))
  end)
end)
