--- N checkpoints around an empty function, for counting instructions (tools/callgrind.sh).
-- usage: empty_checkpoint.lua N
local neap = require "neap"

neap.set_num_threads(1)
local w = neap.ones(4, { requires_grad = true })
local options = { use_reentrant = false }
local function nothing(x) return x end
for _ = 1, tonumber(arg[1]) // 100 do
  neap.scope(function() for _ = 1, 100 do neap.checkpoint(nothing, options, w) end end)
end
