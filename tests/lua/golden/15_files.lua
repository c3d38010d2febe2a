local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local function new() neap.seed(1); local net = nn.Linear(4, 1); return net, optim.Adam(net:parameters(), {lr = 0.1}) end
local function train(net, opt, n) for _ = 1, n do opt:zero_grad(); net(neap.randn(8, 4)):square():mean():backward(); opt:step() end end
local name, net, opt = os.tmpname(), new()
train(net, opt, 5); neap.save_state(name .. ".run", {net = net, opt = opt, step = 5})      -- objects and plain values; generators come along
train(net, opt, 5); neap.save(name .. ".safetensors", net:state_dict())
local net2, opt2 = new()
local rest = neap.load_state(name .. ".run", {net = net2, opt = opt2})                     -- fills the objects, returns the plain values
train(net2, opt2, 10 - rest.step)
assert(rest.step == 5 and neap.hash(net2:state_dict()) == neap.hash(neap.load(name .. ".safetensors")))
