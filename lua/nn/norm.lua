--- Normalisation over the last dimension, then scale and shift.
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local LayerNorm = module.Module "LayerNorm"

--- nn.LayerNorm(size, {eps = 1e-5, bias = true, affine = true, dtype = nil, device = nil})
-- size: the length of the last dimension.
function LayerNorm:init(size, options)
  size = util.integer("nn.LayerNorm", "size", size, 1)
  options = util.options("nn.LayerNorm", options, { "eps", "bias", "affine", "dtype", "device" })
  local made = { dtype = options.dtype, device = options.device }
  self.size = size
  self.eps = options.eps or 1e-5
  if options.affine ~= false then
    self.weight = module.Parameter(neap.ones({ size }, made))
    if options.bias ~= false then self.bias = module.Parameter(neap.zeros({ size }, made)) end
  end
end

function LayerNorm:forward(x) return neap.layer_norm(x, self.weight, self.bias, { eps = self.eps }) end

function LayerNorm:describe() return tostring(self.size) end

local RMSNorm = module.Module "RMSNorm"

--- nn.RMSNorm(size, {eps = 1e-6, affine = true, dtype = nil, device = nil})
-- x / sqrt(mean x^2 + eps) * weight over the last dimension, of length size (Zhang and Sennrich, 2019).
function RMSNorm:init(size, options)
  size = util.integer("nn.RMSNorm", "size", size, 1)
  options = util.options("nn.RMSNorm", options, { "eps", "affine", "dtype", "device" })
  self.size = size
  self.eps = options.eps or 1e-6
  if options.affine ~= false then
    self.weight = module.Parameter(neap.ones({ size }, { dtype = options.dtype, device = options.device }))
  end
end

function RMSNorm:forward(x) return neap.rms_norm(x, self.weight, { eps = self.eps }) end

function RMSNorm:describe() return tostring(self.size) end

return { LayerNorm = LayerNorm, RMSNorm = RMSNorm }
