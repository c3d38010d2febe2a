--- What all optimizers share: parameter groups, the learning rate, state per parameter, state_dict.
--
-- One step is one call into C per group of parameters that agree in their step count; the state tensors are
-- outside all handle scopes and are counted as optimizer memory. Parameters without a gradient are skipped
-- and their step count stands still.
local neap = require "neap"
local util = require "neap.util"

local is_tensor = neap.is_tensor

local Optimizer = {}

-- A tensor of zeros like p, outside every scope, counted as optimizer memory.
function Optimizer.buffer(p)
  local t = neap.own(neap.zeros_like(p:detach()))
  neap.set_category(t, "optimizer")
  return t
end

-- The buffers called `name` of all states, made where they are missing.
function Optimizer.buffers(name, params, states)
  local list = {}
  for i, state in ipairs(states) do
    state[name] = state[name] or Optimizer.buffer(params[i])
    list[i] = state[name]
  end
  return list
end

--- The rate, checked: a number of at least 0 or a function of the step.
function Optimizer.check_lr(who, lr)
  if type(lr) == "function" then return lr end
  if type(lr) ~= "number" or lr < 0 or lr ~= lr then
    util.fail("E-ARG", "%s: lr must be a number of at least 0 or a function of the step, got %s", who, util.kind(lr))
  end
  return lr
end

local function is_list(params)
  return type(params) == "table" and not is_tensor(params) and util.kind(params) ~= "a module"
end

-- An option among the elements would be lost.
local function only_list(who, params)
  local name = util.stray_name(params)
  if name then
    util.fail("E-ARG", "%s: the list of parameters holds the key '%s': options come after it in a table of their own",
      who, name)
  end
end

local function check_params(who, params)
  if not is_list(params) then
    util.fail("E-ARG", "%s: needs a list of parameters, got %s; model:parameters() makes one", who, util.kind(params))
  end
  if #params == 0 then
    util.fail("E-ARG", "%s: the list of parameters is empty; model:parameters() makes one, of what nn.Parameter marked "
      .. "in the module's fields", who)
  end
  only_list(who, params)
  for i, p in ipairs(params) do
    if not is_tensor(p) then util.fail("E-ARG", "%s: parameter %d must be a tensor, got %s", who, i, util.kind(p)) end
    if not p.is_leaf then
      util.fail("E-ARG", "%s: parameter %d was computed (it has a grad_fn); only leaves can be optimized", who, i)
    end
  end
  return params
end

--- Refuses a parameter that is in `seen` or twice in the list.
function Optimizer.once(who, params, seen)
  for _, p in ipairs(params) do
    if seen[p] then util.fail("E-ARG", "%s: a parameter is in the list twice", who) end
    seen[p] = true
  end
end

--- A checked copy of a list of parameters.
function Optimizer.list(who, params)
  local list = {}
  for i, p in ipairs(check_params(who, params)) do list[i] = p end
  return list
end

-- The group's own settings over the optimizer's.
local function new_group(who, class, given, defaults)
  local group = {}
  for _, name in ipairs(class.options) do
    group[name] = given[name]
    if group[name] == nil then group[name] = defaults[name] end
  end
  for key in pairs(given) do
    if key ~= "params" and class.defaults[key] == nil then util.options(who, { [key] = given[key] }, class.options) end
  end
  Optimizer.check_lr(who, group.lr)
  group.params = Optimizer.list(who, given.params)
  return group
end

-- A list of tensors is one group; a list of tables with `params` is several.
local function read_groups(who, class, params, defaults)
  if not is_list(params) then check_params(who, params) end
  local grouped = type(params[1]) == "table" and not is_tensor(params[1])
  local groups, seen = {}, {}
  if params[1] == nil then check_params(who, {}) end
  only_list(who, params)
  for _, given in ipairs(grouped and params or { { params = params } }) do
    groups[#groups + 1] = new_group(who, class, given, defaults)
  end
  for _, group in ipairs(groups) do Optimizer.once(who, group.params, seen) end
  return groups
end

local methods = {}

--- Forgets the gradients: .grad becomes nil.
function methods:zero_grad()
  if self == nil then util.fail("E-ARG", "optim: zero_grad needs the optimizer: opt:zero_grad()") end
  for _, group in ipairs(self.groups) do
    for _, p in ipairs(group.params) do p.grad = nil end
  end
end
Optimizer.zero_grad = methods.zero_grad

local function lr_at(lr, step)
  if type(lr) ~= "function" then return lr end
  local value = lr(step)
  if type(value) ~= "number" or value ~= value then
    util.fail("E-ARG", "optim: the lr function returned %s at step %d, it must return a number", util.kind(value), step)
  end
  return value
end

--- One update of every parameter that has a gradient. optim.LBFGS needs a closure: opt:step(function() ... return loss
-- end), which clears the gradients, computes the loss and calls backward; it is called several times.
function methods:step(...)
  if self == nil then util.fail("E-ARG", "optim: step needs the optimizer: opt:step()") end
  if (...) ~= nil then
    util.fail("E-ARG", "%s: step takes nothing, got %s; a closure is for optim.LBFGS, here: opt:zero_grad(), "
      .. "loss:backward(), opt:step()", self, util.kind((...)))
  end
  local scope <close> = neap.scope_begin()
  local hidden = getmetatable(self).hidden
  local number = hidden.steps + 1 -- counts go up when a step is done: an update may refuse
  for _, group in ipairs(self.groups) do
    local lr = lr_at(group.lr, number)
    -- Buckets of equal step count: one call each.
    local buckets, order = {}, {}
    for _, p in ipairs(group.params) do
      if p.grad then
        local state = hidden.state[p]
        if not state then
          state = hidden.class.new_state(p, group)
          state.step = 0
          hidden.state[p] = state
        end
        local step = state.step + 1
        local bucket = buckets[step]
        if not bucket then
          bucket = { params = {}, states = {} }
          buckets[step] = bucket
          order[#order + 1] = step
        end
        bucket.params[#bucket.params + 1] = p
        bucket.states[#bucket.states + 1] = state
      end
    end
    for _, step in ipairs(order) do
      local bucket = buckets[step]
      hidden.class.update(group, lr, step, bucket.params, bucket.states)
      for _, state in ipairs(bucket.states) do state.step = step end
    end
  end
  hidden.steps = number
  return neap.scope_end(scope)
end

--- Everything a resumed run needs: settings (lr functions excepted), step counts, state tensors by position.
-- The tensors are the optimizer's own.
function methods:state_dict()
  local hidden = getmetatable(self).hidden
  local dict = { class = hidden.class.name, steps = hidden.steps, groups = {}, state = {} }
  local i = 0
  for g, group in ipairs(self.groups) do
    local settings = {}
    for _, name in ipairs(hidden.class.options) do
      if type(group[name]) ~= "function" then settings[name] = group[name] end
    end
    settings.count = #group.params
    dict.groups[g] = settings
    for _, p in ipairs(group.params) do
      i = i + 1
      local state = hidden.state[p]
      if state then
        local copy = {}
        for key, value in pairs(state) do copy[key] = value end
        dict.state[i] = copy
      else
        dict.state[i] = { step = 0 }
      end
    end
  end
  return dict
end

-- May a step use this state of p? Not where the model has moved or changed its dtype since.
local function fits(state, p)
  return state.device == p.device and (state.dtype == p.dtype or state.dtype == "float32")
end

--- Restores what state_dict gave. The parameters must be as many, in the same order and of the same shapes. After a
-- model:to(device) between two steps, opt:load_state_dict(opt:state_dict()) brings the state after it.
function methods:load_state_dict(dict)
  local hidden = getmetatable(self).hidden
  local class = hidden.class
  local who = "optim." .. class.name .. ".load_state_dict"
  if type(dict) ~= "table" or dict.class ~= class.name then
    util.fail("E-ARG", "%s: needs the state of an optim.%s, got %s", who, class.name,
      type(dict) == "table" and dict.class and "that of an optim." .. tostring(dict.class) or util.kind(dict))
  end
  local params = {}
  for g, group in ipairs(self.groups) do
    local count = dict.groups[g] and dict.groups[g].count
    if count ~= #group.params then
      util.fail("E-ARG", "%s: group %d has %d parameters, the state has %s", who, g, #group.params,
        tostring(count or "none"))
    end
    for _, p in ipairs(group.params) do params[#params + 1] = p end
  end
  if #dict.groups ~= #self.groups then
    util.fail("E-ARG", "%s: %d groups, the state has %d", who, #self.groups, #dict.groups)
  end
  for i, p in ipairs(params) do
    for _, name in ipairs(class.tensors) do
      local t = dict.state[i] and dict.state[i][name]
      if t and t.shape ~= p.shape then
        util.fail("E-SHAPE", "%s: parameter %d is %s, its state %s is %s", who, i, tostring(p.shape), name,
          tostring(t.shape))
      end
    end
  end
  for g, group in ipairs(self.groups) do
    for _, name in ipairs(class.options) do
      local value = dict.groups[g][name]
      if value ~= nil and type(group[name]) ~= "function" then group[name] = value end
    end
  end
  hidden.steps = dict.steps
  neap.no_grad(function()
    for i, p in ipairs(params) do
      local given = dict.state[i]
      if given == nil or given.step == 0 then
        hidden.state[p] = nil
      else
        local state = hidden.state[p] or {}
        state.step = given.step
        for _, name in ipairs(class.tensors) do
          local own = state[name]
          if given[name] then
            if not own or not fits(own, p) then own = Optimizer.buffer(p) end
            if own ~= given[name] then own:copy_(given[name]) end
            state[name] = own
          end
        end
        hidden.state[p] = state
      end
    end
  end)
end

--- The object that scripts hold: own methods, groups, and what is hidden (class, steps, state). opt.lr is the rate of
-- the first group's next step; setting it sets every group's.
function Optimizer.object(own, class, groups, hidden)
  local who = "optim." .. class.name
  hidden.class = class
  return setmetatable({ groups = groups }, {
    __index = function(self, key)
      if own[key] then return own[key] end
      if key == "lr" then return lr_at(self.groups[1].lr, hidden.steps + 1) end
      if key == "steps" then return hidden.steps end
      local here = require("neap.translate").text("optimizers", key)
      if here then util.fail("E-ARG", "%s: there is no field '%s'%s", who, key, here) end
      return nil
    end,
    __newindex = function(self, key, value)
      if key ~= "lr" then
        util.fail("E-ARG", "%s: field '%s' cannot be set; lr can, and the fields of opt.groups[i]", who, tostring(key))
      end
      Optimizer.check_lr(who, value)
      for _, group in ipairs(self.groups) do group.lr = value end
    end,
    __name = "neap.Optimizer", hidden = hidden,
    __tostring = function() return ("%s(%d group%s)"):format(who, #groups, #groups == 1 and "" or "s") end,
  })
end

--- Makes a constructor optim.<name>(params, options).
-- class.defaults: option -> default; class.options: their names in order; class.tensors: names of state tensors;
-- class.new_state(p, group); class.update(group, lr, step, params, states).
function Optimizer.class(class)
  local who = "optim." .. class.name
  return function(params, options)
    options = util.options(who, options, class.options)
    local defaults = {}
    for _, name in ipairs(class.options) do
      defaults[name] = options[name]
      if defaults[name] == nil then defaults[name] = class.defaults[name] end
    end
    local groups = read_groups(who, class, params, defaults)
    for _, group in ipairs(groups) do class.check(who, group) end
    return Optimizer.object(methods, class, groups, { steps = 0, state = setmetatable({}, { __mode = "k" }) })
  end
end

--- Checks lo <= group[name] < hi.
function Optimizer.range(who, group, name, lo, hi)
  local v = group[name]
  if type(v) ~= "number" or not (v >= lo and v < hi) then
    util.fail("E-ARG", "%s: %s must be at least %g%s, got %s", who, name, lo,
      hi < math.huge and (" and below %g"):format(hi) or "",
      util.kind(v))
  end
end

return Optimizer
