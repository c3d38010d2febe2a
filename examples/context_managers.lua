-- Contexts as closures: what runs around a checkpointed forward and around its recompute.
--   build/neap examples/context_managers.lua
local neap = require "neap"
local checkpoint = neap.checkpoint

neap.seed(1)
local x = neap.randn(512, 512, { requires_grad = true })
local w = neap.randn(512, 512, { requires_grad = true })

local function block(t)
  return t:matmul(w):tanh():matmul(w):tanh():matmul(w):tanh()
end

-- A context is a function of run that calls run() once. run() returns also when the recompute stops early.
local function counting(into)
  return function(run)
    into.calls = into.calls + 1
    run()
    into.bytes = neap.memory_stats().live
  end
end

-- Or a table: enter, and exit with the error, nil if there was none.
local function tracing(name, log)
  return {
    enter = function() log[#log + 1] = name .. " enters" end,
    exit = function(_, err) log[#log + 1] = name .. " leaves" .. (err and " with an error" or "") end,
  }
end

local forward, recompute, log = { calls = 0 }, { calls = 0 }, {}

local function contexts()
  local outer, inner = counting(forward), tracing("the forward", log)
  -- They nest by calling.
  local function around_forward(run)
    inner.enter()
    outer(run)
    inner.exit(inner, nil)
  end
  return around_forward, counting(recompute)
end

local before = neap.memory_stats().live
local plain = neap.scope(function()
  block(x):sum():backward()
  return neap.memory_stats().live - before
end)
local hash = neap.hash(x.grad)
x.grad, w.grad = nil, nil

before = neap.memory_stats().live
local saved = neap.scope(function()
  local loss = checkpoint(block, { use_reentrant = false, context_fn = contexts }, x):sum()
  local bytes = neap.memory_stats().by.saved
  local counts = neap.count_ops(function() loss:backward() end)
  print(("extra work in the backward: %d products run again"):format(counts.matmul - 6))
  return bytes
end)

print(table.concat(log, "; "))
print(("forward %d time, recompute %d time"):format(forward.calls, recompute.calls))
print(("saved for backward with the checkpoint: %.2f MiB"):format(saved / 2 ^ 20))
print(("alive after a plain step: %.2f MiB"):format(plain / 2 ^ 20))
assert(neap.hash(x.grad) == hash, "the gradients must be the same bits")
print "the gradients are the same bits"
