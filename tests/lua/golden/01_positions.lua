local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local x = neap.tensor{{1, 2, 3}, {4, 5, 6}}                        -- Lua integers make int64, any float makes float32
assert(x.dtype == "int64" and neap.tensor{1, 2.5}.dtype == "float32")
local rows, cols = x:size()
assert(rows == 2 and cols == 3 and #x == 2 and x.shape == neap.ones(2, 3).shape and x.shape[-1] == 3)
assert(x[2][3]:item() == 6 and x:item(-1, 1) == 4 and neap.equal(x[{ {}, {2, -1} }], {{2, 3}, {5, 6}}))
x[{1, {1, 2}}] = 0
assert(neap.equal(x, {{0, 0, 3}, {4, 5, 6}}) and neap.equal(x[x:gt(3)], {4, 5, 6}))
assert(neap.equal(x[neap.tensor{2, 2}], {{4, 5, 6}, {4, 5, 6}}) and neap.equal(neap.arange(1, 5), {1, 2, 3, 4, 5}))
local ok, err = pcall(function() return x[0] end)
assert(not ok and neap.error_code(err) == "E-INDEX" and err:find "count from 1" and err:find "^[^:]+:%d+: ")
