local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local calls = 0
local function f(x) calls = calls + 1; return x:sin():exp():sin() end
local function grad(g) local x = neap.tensor({0.3, -1.2, 2.5}, {requires_grad = true}); g(x):sum():backward(); return neap.hash(x.grad) end
local plain = grad(f)
for _, reentrant in ipairs{true, false} do
  local opts = {use_reentrant = reentrant}
  assert(grad(function(x) return checkpoint(f, opts, x) end) == plain)      -- direct: function, options, arguments
  assert(grad(checkpoint(opts)(f)) == plain)                                -- curried: configure, wrap, call
end
assert(calls == 1 + 4 * 2)
