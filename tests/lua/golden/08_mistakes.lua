local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x, opts = neap.ones(2, {requires_grad = true}), {use_reentrant = false}
local function refused(code, ...) local ok, err = pcall(...); assert(not ok and neap.error_code(err) == code, err); return err end
refused("E-USE-REENTRANT", checkpoint, neap.sin, {}, x)
assert(refused("E-USE-REENTRANT", checkpoint, neap.sin, x, opts):find "second")            -- options in the wrong place
assert(refused("E-UNKNOWN-OPTION", checkpoint, neap.sin, {use_reentrant = false, early_stpo = true}, x):find "early_stop")
refused("E-BADCHECK", checkpoint, neap.sin, {use_reentrant = false, determinism_check = "meta"}, x)
refused("E-REENTRANT-OPTION", checkpoint, neap.sin, {use_reentrant = true, policy = {neap.ops.sin}}, x)
refused("E-SEGMENTS", checkpoint.checkpoint_sequential, {neap.sin, neap.cos}, 3, x, opts)
refused("E-BADPOLICYVALUE", checkpoint, neap.sin, {use_reentrant = false, policy = function() end}, x)
assert(refused("E-LABEL", nn.cross_entropy, neap.zeros(1, 3), neap.tensor{0}):find "base = 0")   -- classes are 1..3
