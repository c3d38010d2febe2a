local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local w, steps, drawn = neap.rand(1000, {requires_grad = true}), 0, {}
local function f(t)
  checkpoint.once(function() steps = steps + 1 end)                              -- an effect: done once per call
  drawn[#drawn + 1] = checkpoint.once(function() return math.random(10^6) end)   -- a decision: remembered for the recompute
  return (t * w):dropout(0.5):sin():sum()
end
local function run(g) neap.seed(7); w.grad = nil; local y = g(w); neap.rand(5); y:backward(); return neap.hash{w.grad, neap.rand(3)} end
local plain = run(f); assert(run(checkpoint{use_reentrant = false, preserve_rng_state = false}(f)) ~= plain)
for _, reentrant in ipairs{true, false} do assert(run(checkpoint{use_reentrant = reentrant}(f)) == plain) end
assert(steps == 4 and #drawn == 7 and drawn[2] == drawn[3] and drawn[4] == drawn[5])
