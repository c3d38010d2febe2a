--- Dropout: in training, zeroes each element with probability p and scales the others by 1 / (1 - p).
-- Under checkpointing the recompute draws the same elements.
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local Dropout = module.Module "Dropout"

--- nn.Dropout(p = 0.5)
function Dropout:init(p)
  p = util.number("nn.Dropout", "p", p == nil and 0.5 or p)
  if not (p >= 0 and p < 1) then util.fail("E-ARG", "nn.Dropout: p must be in [0, 1), got %g", p) end
  self.p = p
end

function Dropout:forward(x)
  if not self.training or self.p == 0 then return x end
  return neap.dropout(x, self.p)
end

function Dropout:describe() return ("p = %g"):format(self.p) end

return { Dropout = Dropout }
