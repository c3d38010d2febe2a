--- Layers against tests/golden/layers.lua (PyTorch float64; tools/golden_layers.py makes it): outputs, gradients of
-- the input and of every parameter, in float64 and float32.
local neap = require "neap"
local nn = neap.nn -- the chunks of the golden file name it
local cases = dofile "tests/golden/layers.lua"

local function tensor(golden, dtype)
  local t = neap.tensor({ table.unpack(golden) }, { dtype = golden.dtype == "float64" and dtype or golden.dtype })
  return t:reshape(golden.shape)
end

local function compare(what, got, golden, tolerance)
  assert.is_not_nil(got, what .. " is missing")
  assert.equal(#golden.shape, got.ndim, what)
  for i, n in ipairs(golden.shape) do assert.equal(n, got:size(i), what) end
  local flat = got:detach():reshape(-1):totable()
  for i, want in ipairs(golden) do
    assert.is_true(math.abs(flat[i] - want) <= tolerance * math.max(1, math.abs(want)),
      ("%s, element %d: %.17g, golden %.17g"):format(what, i, flat[i], want))
  end
end

local function check(case, dtype, tolerance)
  local layer = neap.default_dtype(dtype, load("local nn = ...; return " .. case.make), nn)
  local state = {}
  for _, p in ipairs(case.parameters) do state[p.name] = tensor(p.value, dtype) end
  layer:load_state_dict(state, { base = 0 })
  local x = tensor(case.input, dtype)
  if case.grad then x.requires_grad = true end
  local out = layer(x)
  compare("output", out, case.output, tolerance)
  local flat = out:reshape(-1)
  ;(flat * neap.arange(1, flat:numel(), { dtype = dtype })):sum():backward()
  if case.grad then compare("gradient of the input", x.grad, case.grad, tolerance) end
  local grads = {}
  for name, t in pairs(layer:state_dict { base = 0 }) do grads[name] = t.grad end
  for _, p in ipairs(case.parameters) do compare("gradient of " .. p.name, grads[p.name], p.grad, tolerance) end
end

describe("layers equal PyTorch's", function()
  for i, case in ipairs(cases) do
    it(("%d: %s"):format(i, case.make), function()
      check(case, "float64", 1e-12)
      check(case, "float32", 1e-5)
    end)
  end
end)
