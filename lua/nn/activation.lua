--- Elementwise layers, softmax and flatten: modules without parameters over the ops of the same names.
local neap = require "neap"
local util = require "neap.util"
local module = require "neap.nn.module"

local layers = {}

local function elementwise(name, op)
  local class = module.Module(name)
  layers[name] = class
  function class.init(_, ...)
    if select("#", ...) > 0 then util.fail("E-ARG", "nn.%s: takes no argument, got %s", name, util.kind((...))) end
  end
  function class.forward(_, x) return neap[op](x) end
end

elementwise("ReLU", "relu")
elementwise("Tanh", "tanh")
elementwise("Sigmoid", "sigmoid")
elementwise("Softplus", "softplus")
elementwise("SiLU", "silu")
elementwise("LogSigmoid", "logsigmoid")

-- An elementwise op with numbers that the module holds: { name, default } in the op's order.
local function with_numbers(name, op, ...)
  local settings = { ... }
  local class = module.Module(name)
  layers[name] = class
  function class:init(...)
    for i, setting in ipairs(settings) do
      local given = select(i, ...)
      self[setting[1]] = util.number("nn." .. name, setting[1], given == nil and setting[2] or given)
    end
  end
  function class:forward(x)
    local first, second = settings[1][1], settings[2] and settings[2][1]
    if second then return neap[op](x, self[first], self[second]) end
    return neap[op](x, self[first])
  end
  function class:describe()
    local texts = {}
    for i, setting in ipairs(settings) do texts[i] = ("%s = %g"):format(setting[1], self[setting[1]]) end
    return table.concat(texts, ", ")
  end
end

with_numbers("LeakyReLU", "leaky_relu", { "negative_slope", 0.01 })
with_numbers("ELU", "elu", { "alpha", 1 })
with_numbers("Hardtanh", "hardtanh", { "min_val", -1 }, { "max_val", 1 })

--- nn.GELU({approximate = "none"|"tanh"}): x times the normal distribution function at x.
local GELU = module.Module "GELU"
layers.GELU = GELU

function GELU:init(options)
  options = util.options("nn.GELU", options, { "approximate" })
  local how = options.approximate or "none"
  if how ~= "none" and how ~= "tanh" then
    util.fail("E-ARG", 'nn.GELU: approximate must be "none" or "tanh", got %s', util.kind(how))
  end
  self.tanh = how == "tanh"
end

function GELU:forward(x) return neap.gelu(x, { tanh = self.tanh }) end

local function along(name, op)
  local class = module.Module(name)
  layers[name] = class
  function class:init(dim)
    self.dim = util.integer("nn." .. name, "dim", dim == nil and -1 or dim)
  end
  function class:forward(x) return neap[op](x, self.dim) end
  function class:describe() return "dim " .. self.dim end
end

along("Softmax", "softmax")
along("LogSoftmax", "log_softmax")

--- nn.Flatten(first = 2, last = -1): one dimension out of first ... last, by default all but the batch.
local Flatten = module.Module "Flatten"
layers.Flatten = Flatten

function Flatten:init(first, last)
  self.first = util.integer("nn.Flatten", "first", first == nil and 2 or first)
  self.last = util.integer("nn.Flatten", "last", last == nil and -1 or last)
end

function Flatten:forward(x) return neap.flatten(x, self.first, self.last) end

function Flatten:describe()
  return self.first == 2 and self.last == -1 and "" or ("%d, %d"):format(self.first, self.last)
end

return layers
