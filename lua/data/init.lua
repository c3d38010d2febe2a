--- neap.data: datasets and loaders.
local neap = require "neap"
local util = require "neap.util"
local dataset = require "neap.data.dataset"

local data = {
  tensors = dataset.tensors,
  dataset = dataset.dataset,
  loader = require "neap.data.loader",
  read_idx = neap.read_idx,
  csv = require "neap.data.csv",
}

--- data.fashion_mnist("train"|"test"); see neap.data.fashion_mnist.
function data.fashion_mnist(split) return require("neap.data.fashion_mnist")(split) end

return util.part("data", data)
