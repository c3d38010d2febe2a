--- Embedding: a row of the weight for each id. Ids count from 1.
-- ids: (...) integers -> (..., dim). Init: N(0, 1).
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"
local init = require "neap.nn.init_functions"

local Embedding = module.Module "Embedding"

--- nn.Embedding(count, dim, {padding_idx = nil, base = 1, dtype = nil, device = nil})
-- padding_idx: an id whose row starts at zero and gets no gradient. base = 0: ids count from 0.
function Embedding:init(count, dim, options)
  count = util.integer("nn.Embedding", "count", count, 1)
  dim = util.integer("nn.Embedding", "dim", dim, 1)
  options = util.options("nn.Embedding", options, { "padding_idx", "base", "dtype", "device" })
  local weight = init.normal_(neap.empty({ count, dim }, { dtype = options.dtype, device = options.device }))
  self.base = options.base or 1
  self.padding_idx = options.padding_idx
  if self.padding_idx then
    local row = util.integer("nn.Embedding", "padding_idx", self.padding_idx) + 1 - self.base
    if row < 1 or row > count then
      util.fail("E-INDEX", "nn.Embedding: padding_idx %d is outside %d to %d", self.padding_idx, self.base,
        count + self.base - 1)
    end
    weight[row] = 0
  end
  self.weight = module.Parameter(weight)
end

function Embedding:forward(ids)
  return neap.embedding(self.weight, ids, { padding_idx = self.padding_idx, base = self.base })
end

function Embedding:describe()
  local count, dim = self.weight:size()
  return ("%d x %d"):format(count, dim)
end

return { Embedding = Embedding }
