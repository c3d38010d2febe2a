--- Saved runs: what goes in comes out, resumed training is uninterrupted training, and what is refused.
local neap = require "neap"
local nn, optim, data = neap.nn, neap.optim, neap.data

local folder

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

describe("save_state", function()
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
  end)
  after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

  it("gives plain values back with their types", function()
    local values = {
      step = 120, lr = 0.1, whole = 3.0, big = 2 ^ 60 // 1 | 0, name = 'a "quoted"\n\1 text', on = true, off = false,
      list = { 1, 2.5, "x", { deep = {} } }, inf = math.huge,
    }
    neap.save_state(folder, values)
    local back = neap.load_state(folder)
    assert.same(values, back)
    assert.equal("integer", math.type(back.step))
    assert.equal("float", math.type(back.whole))
  end)

  it("gives tensors and tables of tensors back", function()
    local w = neap.randn(3, 2)
    neap.save_state(folder, { w = w, nested = { a = { neap.tensor { 1, 2 }, 5 } } })
    local back = neap.load_state(folder)
    assert.equal(neap.hash(w), neap.hash(back.w))
    assert.is_true(neap.equal(back.nested.a[1], { 1, 2 }))
    assert.equal(5, back.nested.a[2])
  end)

  it("resumes a run in the middle of an epoch, random numbers included", function()
    local function new()
      neap.seed(3)
      local model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))
      local x, y = neap.randn(20, 4), neap.randint(1, 2, { 20 })
      return model, optim.AdamW(model:parameters(), { lr = 0.01 }),
        data.loader(data.tensors(x, y), { batch_size = 3, shuffle = true, seed = 5 })
    end
    local function train(model, opt, batches, from, to)
      local step = from
      while step < to do
        for x, y in batches:each() do
          opt:zero_grad()
          nn.cross_entropy(model(x), y):backward()
          opt:step()
          step = step + 1
          if step == to then break end
        end
      end
    end
    local model, opt, batches = new()
    train(model, opt, batches, 0, 10)
    neap.save_state(folder, { model = model, opt = opt, batches = batches, step = 10 })
    local state = batches:state_dict()
    batches:load_state_dict(state)
    train(model, opt, batches, 10, 20)
    local model2, opt2, batches2 = new()
    neap.rand(100)
    local rest = neap.load_state(folder, { model = model2, opt = opt2, batches = batches2 })
    assert.equal(10, rest.step)
    train(model2, opt2, batches2, rest.step, 20)
    assert.equal(neap.hash(model:state_dict()), neap.hash(model2:state_dict()))
  end)

  it("refuses what it cannot hold, and names that were not saved", function()
    assert.is_truthy(refused("E-ARG", neap.save_state, folder, { f = print }):find("neap.save_state.values.f", 1, true))
    refused("E-ARG", neap.save_state, folder, { t = { [1.5] = 1 } })
    local loop = {}
    loop.loop = loop
    refused("E-ARG", neap.save_state, folder, { loop = loop })
    neap.save_state(folder, { step = 1 })
    refused("E-ARG", neap.load_state, folder, { model = nn.Linear(1, 1) })
    refused("E-ARG", neap.load_state, folder, { step = 1 })
    refused("E-IO", neap.load_state, folder .. "/nothing")
  end)
end)

describe("a process killed while it saves", function()
  local program = os.getenv "NEAP_PROGRAM" or "build/neap"
  local moments = tonumber(os.getenv "NEAP_TEST_STEPS") and 20 or 200

  -- A run that goes on from the last state and saves without end; every number in it says which step it is. It writes
  -- a line when it is ready to save and one after each save.
  local run = [[
    local neap = require "neap"
    local folder = arg[1]
    local ok, rest = pcall(neap.load_state, folder, {})
    local step = ok and rest.step or 0
    while true do
      io.write(step, "\n")
      io.flush()
      step = step + 1
      neap.save_state(folder, { step = step, x = neap.full({ 30000 }, step, { dtype = "float64" }),
        deep = { y = neap.full({ 7 }, step, { dtype = "int64" }) } })
    end
  ]]

  -- Starts the run and kills it when it has told of `saves` saves and then gone on for `delay` seconds. Returns the
  -- last step it told of, and how long its last told save took.
  local function killed_after(saves, delay, command)
    local pipe = assert(io.popen("echo $$; exec " .. command))
    local pid = pipe:read "n"
    local told, began = assert(pipe:read "n", "the run has not begun"), neap.clock()
    local took
    for _ = 1, saves do
      told = assert(pipe:read "n", "the run ended by itself")
      began, took = neap.clock(), neap.clock() - began
    end
    os.execute(("sleep %.5f; kill -KILL %d"):format(delay, pid))
    pipe:close()
    return told, took
  end

  it("leaves the last good state, at each of many moments", function()
    local file = io.open(program)
    if not file then return pending(program .. " is not built") end
    file:close()
    local target, script = os.tmpname(), os.tmpname()
    os.remove(target)
    file = assert(io.open(script, "w"))
    file:write(run)
    file:close()
    local command = ("'%s' '%s' '%s'"):format(program, script, target)
    -- Runs are killed in the first save after their start, in the second or in the third: how far into it comes from
    -- the time a save took before, which is nothing that the test depends on.
    local last, span = killed_after(2, 0, command)
    assert.equal(2, last)
    for i = 1, moments do
      local saves = i % 3
      local told, took = killed_after(saves, (i * 0.6180339887 % 1) * span, command)
      span = took or span
      assert.is_true(told >= last + saves, ("told of step %d after %d and %d saves"):format(told, last, saves))
      local ok, rest = pcall(neap.load_state, target, {})
      assert.is_true(ok, tostring(rest))
      assert.is_true(rest.step >= told, ("step %d after %d was told to be saved"):format(rest.step, told))
      last = rest.step
      assert.equal(last, rest.x:min():item())
      assert.equal(last, rest.x:max():item())
      assert.same({ last, last }, { rest.deep.y:min():item(), rest.deep.y:max():item() })
    end
    neap.save_state(target, { step = last }) -- removes what a run left that died just before its last step
    local pipe = assert(io.popen(("ls -A '%s'"):format(target)))
    local left = pipe:read "a"
    pipe:close()
    os.execute(("rm -r '%s' '%s'"):format(target, script))
    assert.equal("state.safetensors\n", left)
  end)
end)
