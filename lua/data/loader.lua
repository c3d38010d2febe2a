--- The loader: batches of a dataset, epoch after epoch, in an order that can be resumed exactly.
--
-- The order comes from the loader's own generator, so nothing else that draws numbers changes it. A batch
-- belongs to the loader: its tensors are released when the next one is fetched, unless neap.keep took them.
-- Iterators are plain functions: no to-be-closed value (Lua 5.4.4 miscompiles `break` out of such loops).
local neap = require "neap"
local util = require "neap.util"
local dataset = require "neap.data.dataset"

local methods = setmetatable({}, {
  __index = function(_, key)
    if math.type(key) then util.fail("E-ARG", "loader: has no elements by position; for x, y in loader:each() do") end
  end,
})
local function walked() util.fail("E-ARG", "loader: is walked by its method: for x, y in loader:each() do") end
local options = { "batch_size", "shuffle", "drop_last", "seed", "map" }

local function hidden(self) return getmetatable(self).hidden end

local function release(h)
  if h.batch then
    h.batch:close()
    h.batch = nil
  end
end

-- The order of the running epoch: nil for the natural one, else a permutation held outside the scopes.
local function begin_epoch(h)
  h.state = h.generator:state()
  if h.shuffle then
    local scope <close> = neap.scope_begin()
    local order = neap.randperm(h.n, { generator = h.generator })
    if h.order then h.order:release() end
    h.order = neap.own(order)
    neap.scope_end(scope)
  end
  h.position = 0
  h.running = true
end

local function fetch(h)
  local first = h.position * h.batch_size + 1
  local last = math.min(h.n, first + h.batch_size - 1)
  local ids = h.order and h.order:narrow(1, first, last - first + 1) or neap.arange(first, last)
  local values = table.pack(h.dataset.batch(ids, function() return ids:totable() end))
  if h.map then values = table.pack(h.map(table.unpack(values, 1, values.n))) end
  return values
end

--- Iterator over one epoch, or over the rest of the one that load_state_dict left.
function methods:each()
  local h = hidden(self)
  release(h)
  if not h.resumed then begin_epoch(h) end
  h.resumed = false
  local epoch = h.epoch
  return function()
    if not h.running or h.epoch ~= epoch then return nil end
    release(h)
    if h.position >= #self then
      h.epoch, h.running = h.epoch + 1, false
      return nil
    end
    local values
    values, h.batch = neap.owned(fetch, h)
    h.position = h.position + 1
    return table.unpack(values, 1, values.n)
  end
end

--- Where the order stands: plain numbers only.
function methods:state_dict()
  local h = hidden(self)
  local state = h.state
  if not h.running and not h.resumed then state = h.generator:state() end
  return { epoch = h.epoch, position = h.running and h.position or 0, generator = state, samples = h.n,
    batch_size = h.batch_size }
end

--- Goes back to where state_dict was asked; the next each() gives the rest of that epoch.
function methods:load_state_dict(dict)
  local h = hidden(self)
  if type(dict) ~= "table" or dict.generator == nil then
    util.fail("E-ARG", "loader:load_state_dict: needs what state_dict returned, got %s", util.kind(dict))
  end
  if dict.samples ~= h.n or dict.batch_size ~= h.batch_size then
    util.fail("E-ARG",
      "loader:load_state_dict: the state is of %s samples in batches of %s, this loader has %d in batches of %d",
      tostring(dict.samples), tostring(dict.batch_size), h.n, h.batch_size)
  end
  release(h)
  h.generator:set_state(dict.generator)
  begin_epoch(h)
  h.epoch, h.position, h.resumed = dict.epoch, dict.position, true
end

--- data.loader(dataset, {batch_size = 1, shuffle = false, drop_last = false, seed = nil, map = nil})
-- seed: of the order; without one it is drawn from the default generator, so neap.seed decides it.
-- map: a function of a batch's tensors that returns what the loop gets. #loader: batches in an epoch.
return function(set, opts)
  local who = "data.loader"
  local parts = dataset.parts(who, set)
  opts = util.options(who, opts, options)
  local batch_size = util.integer(who, "batch_size", opts.batch_size == nil and 1 or opts.batch_size, 1)
  if opts.map ~= nil and not util.callable(opts.map) then
    util.fail("E-ARG", "%s: map must be a function of a batch, got %s", who, util.kind(opts.map))
  end
  local seed = opts.seed
  if seed == nil then
    seed = neap.scope(function() return neap.randint(0, 0x7fffffff, { 1 }):item() end)
  end
  seed = util.integer(who, "seed", seed)
  local count = opts.drop_last and parts.n // batch_size or (parts.n + batch_size - 1) // batch_size
  return setmetatable({}, {
    __index = methods,
    __call = walked, __pairs = walked,
    __len = function() return count end, __name = "neap.Loader",
    __tostring = function() return ("loader of %d batches of %d"):format(count, batch_size) end,
    hidden = {
      dataset = parts, n = parts.n, batch_size = batch_size, shuffle = opts.shuffle, map = opts.map,
      generator = neap.generator(seed), epoch = 1, position = 0, running = false, resumed = false,
    },
  })
end
