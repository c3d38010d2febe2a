--- Checkpointing, section J of the catalogue: call forms.
local neap = require "neap"
local help = require "tests.lua.checkpoint_help"
local nn, checkpoint = neap.nn, neap.checkpoint
local sequential = checkpoint.checkpoint_sequential
local ck, f3, counted, leaf, gradient, refused = help.ck, help.f3, help.counted, help.leaf, help.gradient, help.refused

local variants = { { use_reentrant = false }, { use_reentrant = true } }

describe("J: call forms", function()
  it("ck-J1 use_reentrant must be given, in every form", function()
    local f, calls = counted(f3)
    refused("E-USE-REENTRANT", checkpoint, f, {}, leaf())
    refused("E-USE-REENTRANT", checkpoint, {})
    refused("E-USE-REENTRANT", sequential, { f, f }, 2, leaf(), {})
    assert.equal(0, calls.n)
  end)

  it("ck-J2 sequential over a list and a container, both variants", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    local list = {}
    for i = 1, 5 do list[i] = net[i] end
    local x = neap.randn(3, 4, { requires_grad = true })
    local function run(forward)
      local y = forward(x)
      y:square():sum():backward()
      local grads = {}
      for i, p in ipairs(net:parameters()) do grads[i] = p.grad end
      local h = neap.hash { y, x.grad, grads }
      net:zero_grad()
      x.grad = nil
      return h
    end
    local want = run(net)
    for _, options in ipairs(variants) do
      for _, parts in ipairs { net, list } do
        assert.equal(want, run(function(t) return sequential(parts, 2, t, options) end))
      end
    end
    for _, options in ipairs(variants) do
      refused("E-ARG", sequential, list, 2, x, x, options)
      assert.is_false(pcall(sequential, list, 2, options))
      local more = { use_reentrant = options.use_reentrant, early_stpo = true }
      refused("E-UNKNOWN-OPTION", sequential, list, 2, x, more)
    end
  end)

  it("ck-J3 the last segment and what is left over run once", function()
    local function counts(n, segments, options)
      local calls, parts = {}, {}
      for i = 1, n do
        parts[i] = function(t)
          calls[i] = (calls[i] or 0) + 1
          return t:sin()
        end
      end
      sequential(parts, segments, leaf(), options):sum():backward()
      return calls
    end
    for _, options in ipairs(variants) do
      assert.same({ 2, 2, 2, 2, 1, 1, 1 }, counts(7, 3, options))
      assert.same({ 1, 1, 1, 1, 1 }, counts(5, 1, options))
      assert.same({ 2, 2, 2, 1 }, counts(4, 4, options))
    end
  end)

  it("ck-J4 segments that do not fit: both numbers", function()
    for _, options in ipairs(variants) do
      for _, segments in ipairs { 0, -1, 1.5, 4 } do
        local err = refused("E-SEGMENTS", sequential, { f3, f3, f3 }, segments, leaf(), options)
        assert.is_truthy(err:find("3", 1, true) and err:find(tostring(segments), 1, true), err)
      end
    end
  end)

  it("ck-J5 the curried form: every call is a region of its own; fn has its own option names", function()
    local seen = {}
    local f, calls = counted(function(t, o)
      seen[#seen + 1] = tostring(o.debug) .. "," .. tostring(o.early_stop)
      return f3(t)
    end)
    local g = checkpoint { use_reentrant = false, preserve_rng_state = false }(f)
    local a, b = leaf(3, 0.2), leaf(3, 0.5)
    local y, z = g(a, { debug = "mine", early_stop = 7 }), g(b, { debug = 1, early_stop = false })
    z:sum():backward()
    assert.equal(3, calls.n)
    y:sum():backward()
    assert.equal(4, calls.n)
    assert.same({ "mine,7", "1,false", "1,false", "mine,7" }, seen)
    assert.equal(gradient(f3, leaf(3, 0.2)), neap.hash(a.grad))
    assert.equal(gradient(f3, leaf(3, 0.5)), neap.hash(b.grad))
  end)

  it("ck-J6 on a method field obj:method(x) sees obj; unknown options are refused when configured", function()
    for _, options in ipairs(variants) do
      local object = setmetatable({ scale = 3, calls = 0 }, { __index = { power = 1 } })
      object.run = checkpoint(options)(function(self, t)
        self.calls = self.calls + 1
        return (t * self.scale):sin()
      end)
      local x = leaf()
      object:run(x):sum():backward()
      assert.equal(2, object.calls)
      assert.equal(gradient(function(t) return (t * 3):sin() end, leaf()), neap.hash(x.grad))
      refused("E-UNKNOWN-OPTION", checkpoint, { use_reentrant = options.use_reentrant, erly_stop = true })
    end
  end)

  it("ck-J7 a wrapper used in itself and inside another checkpoint", function()
    local function tower(wrap)
      local g
      g = wrap(function(t, n) return n == 0 and t:sin() or g(t:exp() * 0.3, n - 1):sin() end)
      return function(t) return g(t, 4) + ck(function(u) return g(u, 2):cos() end, t) end
    end
    local x = leaf()
    local want = gradient(tower(function(f) return f end), x)
    for _, options in ipairs(variants) do
      assert.equal(want, gradient(tower(checkpoint(options)), x))
    end
  end)
end)
