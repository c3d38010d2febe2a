local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x, opts, calls = neap.ones(3, {requires_grad = true}), {use_reentrant = false}, 0
local nested = function(t) calls = calls + 1; return t:sin():exp():sin() end
for _ = 1, 4 do local inner = nested; nested = function(t) return checkpoint(inner, opts, t) end end
nested(x):sum():backward(); assert(calls == 2)
checkpoint.set_checkpoint_early_stop(false, nested, x):sum():backward()   -- a value, then the body; read at the forward
assert(calls == 2 + 5)
local n, fns = {}, {}
for i = 1, 7 do fns[i] = function(t) n[i] = (n[i] or 0) + 1; return t:sin() end end
checkpoint.checkpoint_sequential(fns, 3, x, opts):sum():backward()
assert(table.concat(n, ",") == "2,2,2,2,1,1,1")
