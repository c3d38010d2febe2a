--- Every optimizer with every option against tests/golden/optim.lua (PyTorch, float64; tools/golden_optim.py makes it).
local neap = require "neap"
local optim = neap.optim
local cases = dofile "tests/golden/optim.lua"

local wide = { dtype = "float64", requires_grad = true }

local function run(case, n)
  local a, b = neap.tensor({ 0.5, -1.25, 2.0 }, wide), neap.tensor({ { 0.25, -0.5 }, { 1.0, 1.5 } }, wide)
  local c = neap.tensor({ 1.0, 0.5, 2.25 }, { dtype = "float64" })
  local opt = optim[case.name]({ a, b }, case.options)
  local function closure()
    opt:zero_grad()
    local loss = (a * a - c):square():sum() + (b:exp() - b * 2):sum() + (a:sum() * b:sum()):square() / 100
    loss:backward()
    return loss
  end
  for _ = 1, n do
    if case.name ~= "LBFGS" then
      closure()
      opt:step()
    else
      opt:step(closure)
    end
  end
  local got = a:totable()
  for _, row in ipairs(b:totable()) do table.move(row, 1, 2, #got + 1, got) end
  return got
end

describe("optimizers follow PyTorch", function()
  for _, case in ipairs(cases) do
    local text = {}
    for name, value in pairs(case.options) do text[#text + 1] = name .. " = " .. tostring(value) end
    table.sort(text)
    it(("optim.%s {%s}"):format(case.name, table.concat(text, ", ")), function()
      for _, n in ipairs { 1, 10, 100 } do
        local got = run(case, n)
        for i, want in ipairs(case[n]) do
          assert.is_true(math.abs(got[i] - want) <= 1e-12 * math.max(1, math.abs(want)),
            ("after %d steps element %d is %.17g, golden %.17g"):format(n, i, got[i], want))
        end
      end
    end)
  end
end)

describe("optim.LBFGS", function()
  local function rosenbrock(start, options)
    local x = neap.tensor(start, wide)
    local opt = optim.LBFGS({ x }, options)
    local calls = 0
    local function closure()
      calls = calls + 1
      opt:zero_grad()
      local a, b = x[1], x[2]
      local loss = (1 - a) * (1 - a) + 100 * (b - a * a) * (b - a * a)
      loss:backward()
      return loss
    end
    return x, opt, closure, function() return calls end
  end

  it("with the line search reaches the minimum of Rosenbrock's valley from far away", function()
    for _, start in ipairs { { -1.2, 1.0 }, { 5.0, -3.0 }, { 0.0, 0.0 }, { -20.0, 30.0 } } do
      local x, opt, closure = rosenbrock(start, { line_search = "strong_wolfe", max_iter = 200, max_eval = 500,
        tolerance_change = 1e-14 })
      opt:step(closure)
      assert.is_true(math.abs(x[1]:item() - 1) < 1e-6 and math.abs(x[2]:item() - 1) < 1e-6, tostring(x))
    end
  end)

  it("never raises the loss, whatever lr is, when it searches", function()
    for _, lr in ipairs { 1e-6, 1, 1e3 } do
      local _, opt, closure = rosenbrock({ -1.2, 1.0 }, { line_search = "strong_wolfe", lr = lr, max_iter = 1 })
      local last = math.huge
      for _ = 1, 30 do
        local loss = opt:step(closure)
        assert.is_true(loss <= last, ("lr %g: %.17g after %.17g"):format(lr, loss, last))
        last = loss
      end
    end
  end)

  it("asks the closure no more often than max_eval allows", function()
    local _, opt, closure, calls = rosenbrock({ -1.2, 1.0 }, { lr = 1e-3, max_iter = 100, max_eval = 7 })
    opt:step(closure)
    assert.equal(7, calls())
    for max_eval = 1, 9 do -- a search begins with a call
      local _, searching, same, count = rosenbrock({ -1.2, 1.0 }, { lr = 1e-3, max_iter = 100, max_eval = max_eval,
        line_search = "strong_wolfe" })
      searching:step(same)
      assert.is_true(count() <= max_eval + 1, ("%d calls of %d"):format(count(), max_eval))
    end
  end)

  it("resumes exactly from a state that went through a file", function()
    local options = { line_search = "strong_wolfe", max_iter = 2 }
    local x, opt, closure = rosenbrock({ -1.2, 1.0 }, options)
    local folder = os.tmpname()
    os.remove(folder)
    for _ = 1, 4 do opt:step(closure) end
    neap.save_state(folder, { opt = opt, x = x })
    for _ = 1, 4 do opt:step(closure) end
    local y, again, closure_again = rosenbrock({ 0.0, 0.0 }, options)
    local rest = neap.load_state(folder, { opt = again })
    os.execute("rm -r " .. folder)
    neap.no_grad(y.copy_, y, rest.x)
    for _ = 1, 4 do again:step(closure_again) end
    assert.equal(neap.hash(x), neap.hash(y))
    assert.equal(8, again.steps)
  end)

  it("counts its history as optimizer memory and leaves nothing else behind", function()
    local x, opt, closure = rosenbrock({ -1.2, 1.0 }, { line_search = "strong_wolfe", max_iter = 3, history = 2 })
    for _ = 1, 3 do neap.scope(function() opt:step(closure) end) end
    collectgarbage()
    local stats = neap.memory_stats()
    collectgarbage "stop"
    for _ = 1, 20 do neap.scope(function() opt:step(closure) end) end
    collectgarbage "restart"
    collectgarbage()
    assert.equal(stats.by.optimizer, neap.memory_stats().by.optimizer)
    assert.equal(stats.live, neap.memory_stats().live)
    assert.is_truthy(x)
  end)

  it("refuses what it cannot do", function()
    local x = neap.tensor({ 1.0 }, wide)
    local function refused(code, text, ...)
      local ok, err = pcall(...)
      assert.is_false(ok)
      assert.equal(code, neap.error_code(err), err)
      assert.is_truthy(err:find(text, 1, true), err)
    end
    refused("E-ARG", "line_search", optim.LBFGS, { x }, { line_search = "armijo" })
    refused("E-ARG", "needs a function", function() optim.LBFGS({ x }):step() end)
    refused("E-ARG", "return the loss", function() optim.LBFGS({ x }):step(function() end) end)
    refused("E-DTYPE", "share dtype", optim.LBFGS, { x, neap.zeros(1, { requires_grad = true }) })
    refused("E-ARG", "empty", optim.LBFGS, {})
    refused("E-ARG", "twice", optim.LBFGS, { x, x })
    local opt = optim.LBFGS { x }
    refused("E-ARG", "not whole", opt.load_state_dict, opt, { class = "LBFGS", numel = 1 })
    local sgd = optim.SGD({ x }, { lr = 0.1 })
    refused("E-ARG", "a closure is for optim.LBFGS", sgd.step, sgd, function() end)
  end)

  it("goes back and can go on when the closure raises", function()
    for _, search in ipairs { "strong_wolfe", false } do
      local x, opt, closure = rosenbrock({ -1.2, 1.0 }, { line_search = search or nil, max_iter = 3, lr = 0.1 })
      for at = 1, 3 do
        local before, calls = neap.hash(x), 0
        local ok, err = pcall(opt.step, opt, function()
          calls = calls + 1
          if calls == at then error("mine", 0) end
          return closure()
        end)
        if at <= 2 then assert.equal(before, neap.hash(x)) end
        assert.is_false(ok)
        assert.equal("mine", err)
        local again, fresh, its_closure =
          rosenbrock(x:totable(), { line_search = search or nil, max_iter = 3, lr = 0.1 })
        assert.equal(fresh:step(its_closure), opt:step(closure)) -- as one that begins here
        assert.equal(neap.hash(again), neap.hash(x))
      end
    end
  end)
end)
