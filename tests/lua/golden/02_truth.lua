local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x = neap.tensor({{1, 5}, {7, 2}}, {dtype = "float32"})
local v, i = x:max(2)
assert(neap.equal(v, {5, 7}) and neap.equal(i, {2, 1}))            -- positions from 1
assert(x:gt(6):any() == true and x:gt(9):any() == false)           -- Lua booleans, safe in `if`
assert((x:gt(1) & x:lt(6)):sum():item() == 2 and x ~= x:clone() and neap.equal(x, x:clone()))
local ok, err = pcall(function() return x[1][1] < 3 end)
assert(not ok and err:find(":lt", 1, true) and err:find(":item", 1, true))
assert(x:sum{1, 2}:item() == 15 and x:sum(1, {keepdim = true}).shape == neap.ones(1, 2).shape)
ok, err = pcall(function() return x:sum(1, {keepdims = true}) end)
assert(not ok and neap.error_code(err) == "E-UNKNOWN-OPTION" and err:find("'keepdim'", 1, true))
