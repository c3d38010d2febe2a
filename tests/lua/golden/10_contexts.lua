local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local log, x = {}, neap.ones(3, {requires_grad = true})
local function say(word) log[#log + 1] = word end
local function around(name) return function(run) say(name .. "<"); run(); say(name .. ">") end end
local witness = setmetatable({}, {__close = function(_, err) say(err == nil and "closed" or "error") end})
local function f(t) local _ <close> = witness; return t:sin():exp():sin() end
local function both() return around "f", around "r" end
checkpoint(f, {use_reentrant = false, context_fn = both}, x):sum():backward()
assert(table.concat(log, " ") == "f< closed f> r< closed r>")      -- the early stop is no error, and run() returns
local ok, err = pcall(checkpoint, error, {use_reentrant = false, context_fn = function() return pcall end}, "boom")
assert(not ok and neap.error_code(err) == "E-SUPPRESSED" and err:find "boom")   -- a context may watch an error, not eat it
