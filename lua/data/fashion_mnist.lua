--- Fashion-MNIST: 60,000 and 10,000 grey images of clothes, 28 by 28 bytes, ten classes (labels 1 to 10).
-- Reads the files of Debian's package dataset-fashion-mnist, or the same files in the folder NEAP_DATA.
local neap = require "neap"
local util = require "neap.util"
local dataset = require "neap.data.dataset"

local folder = "/usr/share/datasets/fashion-mnist"
local prefixes = { train = "train", test = "t10k" }
local classes = {
  "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
}

-- The file in NEAP_DATA, NEAP_DATA/fashion-mnist or the package's folder, packed or not.
local function find(name)
  local places = { folder }
  local own = os.getenv("NEAP_DATA")
  if own and own ~= "" then places = { own, own .. "/fashion-mnist" } end
  for _, place in ipairs(places) do
    for _, suffix in ipairs({ ".gz", "" }) do
      local path = place .. "/" .. name .. suffix
      local file = io.open(path, "rb")
      if file then
        file:close()
        return path
      end
    end
  end
  util.fail("E-MISSING", "data.fashion_mnist: %s.gz is not in %s; install the Debian package dataset-fashion-mnist "
    .. "(apt-get install dataset-fashion-mnist) or set NEAP_DATA to the folder that has it", name,
    table.concat(places, " or "))
end

--- data.fashion_mnist("train"|"test"): sample i is an image (28, 28) of uint8 and its label, an int64 from 1 to 10.
-- `d.classes` lists the names of the classes.
return function(split)
  local prefix = prefixes[split]
  if not prefix then
    util.fail("E-ARG", 'data.fashion_mnist: the part must be "train" or "test", got %s', util.kind(split))
  end
  local images, labels = find(prefix .. "-images-idx3-ubyte"), find(prefix .. "-labels-idx1-ubyte")
  local x, y = neap.scope(function() return neap.read_idx(images), neap.read_idx(labels):to("int64") + 1 end)
  neap.set_category(x, "user")
  neap.set_category(y, "user")
  local d = dataset.tensors(x, y)
  d.classes = classes
  return d
end
