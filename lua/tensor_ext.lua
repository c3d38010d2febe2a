--- Functions and methods that are pure compositions of ops: they need no kernel and no gradient of their own.
local util = require "neap.util"

-- Dimension from 1, or negative from the end, as a number from 1.
local function wrap_dim(who, x, dim)
  dim = util.integer(who, "dim", dim == nil and 1 or dim)
  local d = dim < 0 and x.ndim + 1 + dim or dim
  if d < 1 or d > x.ndim then
    util.fail("E-DIMS", "%s: dimension %d of %s does not exist (dimensions count from 1)", who, dim, tostring(x.shape))
  end
  return d
end

return function(neap)
  local ext = {}

  local function tensor(who, x)
    if not neap.is_tensor(x) then util.fail("E-ARG", "%s: needs a tensor, got %s", who, util.kind(x)) end
  end

  -- Lua returns no more than about a million values.
  local function several(who, n, loop)
    if n > 100000 then
      util.fail("E-ARG", "%s: %d results are too many for one call (100000 at most); take them in a loop: %s", who, n,
        loop)
    end
  end

  --- Views of `size` elements along dim; the last may be shorter. Or of the given sizes, when a list. Several results.
  function ext.split(x, size, dim)
    tensor("neap.split", x)
    dim = wrap_dim("neap.split", x, dim)
    local total = x:size(dim)
    local sizes = size
    if type(size) ~= "table" then
      size = util.integer("neap.split", "the size", size, 1)
      several("neap.split", (total + size - 1) // size, "x:narrow(dim, first, size)")
      sizes = {}
      for first = 1, math.max(total, 1), size do sizes[#sizes + 1] = math.min(size, total - first + 1) end
    end
    local parts, first = {}, 1
    for i, n in ipairs(sizes) do
      n = util.integer("neap.split", "a size", n, 0)
      if first + n - 1 > total then break end
      parts[i] = x:narrow(dim, first, n)
      first = first + n
    end
    if first ~= total + 1 or #parts ~= #sizes then
      util.fail("E-SHAPE", "neap.split: sizes %s do not add up to the %d elements of dimension %d",
        "{" .. table.concat(sizes, ", ") .. "}", total, dim)
    end
    return table.unpack(parts)
  end

  --- `count` views along dim, as equal as can be. Several results: local q, k, v = x:chunk(3, -1).
  function ext.chunk(x, count, dim)
    tensor("neap.chunk", x)
    count = util.integer("neap.chunk", "the number of parts", count, 1)
    dim = wrap_dim("neap.chunk", x, dim)
    local total = x:size(dim)
    several("neap.chunk", math.min(count, total), "x:narrow(dim, first, size)")
    return ext.split(x, math.max(1, (total + count - 1) // count), dim)
  end

  --- A list of the rows (or of the slices along dim), as views. Several results.
  function ext.unbind(x, dim)
    tensor("neap.unbind", x)
    dim = wrap_dim("neap.unbind", x, dim)
    local parts = {}
    several("neap.unbind", x:size(dim), "x:select(dim, i)")
    for i = 1, x:size(dim) do parts[i] = x:select(dim, i) end
    return table.unpack(parts)
  end

  --- Views of vectors that together give all combinations of their elements: result i changes along dimension i only.
  -- Options: indexing = "ij", or "xy" for the first two dimensions exchanged. Several results.
  function ext.meshgrid(vectors, options)
    if neap.is_tensor(vectors) then
      util.fail("E-ARG", "neap.meshgrid: the vectors stand in one list: neap.meshgrid({a, b})")
    end
    options = util.options("neap.meshgrid", options, { "indexing" })
    local xy = options.indexing == "xy"
    if not xy and options.indexing ~= nil and options.indexing ~= "ij" then
      util.fail("E-ARG", "neap.meshgrid: indexing is \"ij\" or \"xy\", got %s", util.kind(options.indexing))
    end
    if type(vectors) ~= "table" or #vectors == 0 or #vectors > 8 then
      util.fail("E-ARG", "neap.meshgrid: needs a list of 1 to 8 vectors, got %s", util.kind(vectors))
    end
    local shape, results = {}, {}
    for i, v in ipairs(vectors) do
      tensor("neap.meshgrid", v)
      if v.ndim > 1 then
        util.fail("E-DIMS", "neap.meshgrid: tensor %d has %d dimensions: vectors are combined", i, v.ndim)
      end
      shape[i] = v:numel()
    end
    for i, v in ipairs(vectors) do
      local thin = {}
      for d = 1, #vectors do thin[d] = d == i and shape[i] or 1 end
      results[i] = v:view(thin):expand(shape)
      if xy and #vectors > 1 then results[i] = results[i]:transpose(1, 2) end
    end
    return table.unpack(results)
  end

  for name, fn in pairs(ext) do
    if rawget(neap, name) == nil then
      neap[name] = fn
      if neap.methods then neap.methods[name] = fn end
    end
  end
end
