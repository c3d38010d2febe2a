local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local w = neap.ones(2, {requires_grad = true})
assert(neap.no_grad(function(a, b) return a + b end, 1, 2) == 3)   -- arguments go in, all results come out
do local _ <close> = neap.no_grad(); assert(not neap.is_grad_enabled()) end
assert(neap.is_grad_enabled() and neap.set_grad_enabled(false, function() return (w * 2).requires_grad end) == false)
assert(not pcall(neap.no_grad, function() error "x" end) and neap.is_grad_enabled())
assert(not pcall(neap.no_grad, nil) and neap.is_grad_enabled())    -- a misspelt function is an error, not a guard
local guard = neap.set_grad_enabled(false)                         -- no body: in force until closed
local ok, err = pcall(function() w:sum():backward() end)
guard:close()
assert(not ok and err:find "set_grad_enabled" and neap.is_grad_enabled())   -- the message names who switched it off
