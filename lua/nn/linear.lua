--- Affine map y = x W^T + b.
-- x: (..., in_features) -> y: (..., out_features). Init: U(-1/sqrt(in), 1/sqrt(in)).
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"
local init = require "neap.nn.init_functions"

local linear = neap.linear

local Linear = module.Module "Linear"

--- nn.Linear(in_features, out_features, {bias = true, dtype = "float32", device = nil})
function Linear:init(in_features, out_features, options)
  in_features = util.integer("nn.Linear", "in_features", in_features, 1)
  out_features = util.integer("nn.Linear", "out_features", out_features, 1)
  options = util.options("nn.Linear", options, { "bias", "dtype", "device" })
  local made = { dtype = options.dtype, device = options.device }
  local range = { low = -1 / math.sqrt(in_features), high = 1 / math.sqrt(in_features) }
  self.weight = module.Parameter(init.uniform_(neap.empty({ out_features, in_features }, made), range))
  if options.bias ~= false then
    self.bias = module.Parameter(init.uniform_(neap.empty({ out_features }, made), range))
  end
end

function Linear:forward(x) return linear(x, self.weight, self.bias) end

function Linear:describe()
  local out, inp = self.weight:size()
  return ("%d -> %d%s"):format(inp, out, self.bias and "" or ", no bias")
end

return { Linear = Linear }
