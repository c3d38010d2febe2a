local neap = require "neap"
local nn, optim, data, checkpoint = neap.nn, neap.optim, neap.data, neap.checkpoint
local Net = nn.Module "Net"
function Net:init(n) self.blocks = {}; for i = 1, n do self.blocks[i] = nn.Linear(4, 4) end end
function Net:forward(x) for _, block in ipairs(self.blocks) do x = block(x):tanh() end return x end
local net, names = Net(2), {}
for name in net:named_parameters() do names[#names + 1] = name end
assert(table.concat(names, " ") == "blocks.1.weight blocks.1.bias blocks.2.weight blocks.2.bias")
net.blocks[1] = checkpoint{use_reentrant = false}(net.blocks[1])
assert(#net:parameters() == 4 and net:state_dict()["blocks.1.weight"] and net:state_dict{base = 0}["blocks.0.weight"])
net(neap.randn(3, 4)):sum():backward()
assert(net.blocks[1].weight.grad and net.blocks[2].bias.grad)
