--- L-BFGS: a quasi-Newton method for small smooth problems without noise (Liu and Nocedal, 1989).
-- The direction is -H g, with H built from the last `history` changes of position and gradient by the two-loop
-- recursion (Nocedal and Wright, algorithm 7.4). One step makes up to max_iter iterations.
local neap = require "neap"
local util = require "neap.util"
local Optimizer = require "neap.optim.optimizer"
local line_search = require "neap.optim.line_search"

local options = { "lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history", "line_search" }
local who = "optim.LBFGS"

local function dot(a, b) return a:matmul(b):item() end

local function largest(t) return t:numel() == 0 and 0 or t:abs():max():item() end

-- A value outside the open scopes, counted as optimizer memory.
local function hold(t)
  neap.set_category(t, "optimizer")
  return neap.own(t)
end

-- All gradients in one vector; zeros for parameters that took no part.
local function flat_gradient(params)
  local list = {}
  for i, p in ipairs(params) do list[i] = (p.grad or neap.zeros_like(p)):detach():reshape(-1) end
  return neap.cat(list, 1)
end

local function flat_values(params)
  local list = {}
  for i, p in ipairs(params) do list[i] = p:detach():reshape(-1) end
  return neap.cat(list, 1)
end

local function set_values(params, flat)
  local first = 1
  for _, p in ipairs(params) do
    p:detach():copy_(flat:narrow(1, first, p:numel()):reshape(p.shape))
    first = first + p:numel()
  end
end

-- -H g by the two-loop recursion.
local function direction(state, gradient)
  local n = #state.changes
  local q, alpha = -gradient, {}
  for i = n, 1, -1 do
    local c = state.changes[i]
    alpha[i] = dot(c.position, q) / c.curvature
    q = q - c.gradient * alpha[i]
  end
  q = q * state.scale
  for i = 1, n do
    local c = state.changes[i]
    q = q + c.position * (alpha[i] - dot(c.gradient, q) / c.curvature)
  end
  return q
end

-- Remembers a pair of changes; one without curvature would spoil H and is left out.
local function remember(state, history, position, gradient)
  local curvature = dot(position, gradient)
  if curvature ~= curvature or curvature <= 1e-10 then return end
  if #state.changes == history then table.remove(state.changes, 1) end
  state.changes[#state.changes + 1] = { position = hold(position), gradient = hold(gradient), curvature = curvature }
  state.scale = curvature / dot(gradient, gradient)
end

local methods = { zero_grad = Optimizer.zero_grad }

-- Calls the closure; the loss as a number and the flat gradient.
local function evaluate(self, state, closure)
  local loss = neap.enable_grad(closure)
  state.evals = state.evals + 1
  if neap.is_tensor(loss) and loss:numel() == 1 then loss = loss:item() end
  if type(loss) ~= "number" then
    util.fail("E-ARG", "%s: the closure must return the loss, a number or a tensor of one element, got %s", who,
      util.kind(loss))
  end
  return loss, flat_gradient(self.groups[1].params)
end

-- If the closure raises, the parameters are where they were and the next step begins with the gradient alone.
local function undo_if_raised(state, params, from)
  return setmetatable({}, {
    __close = function(_, err)
      if err == nil then return end
      set_values(params, from)
      state.changes, state.direction, state.gradient, state.t, state.iterations = {}, nil, nil, nil, 0
    end,
  })
end

-- Moves along d from where the parameters are: to the line search's point, or by the step t. Returns the step taken,
-- the loss and the gradient there (without a search and with `last` they are not asked for). A search may call the
-- closure `left` times and once more: it begins with a call.
local function move(self, state, closure, d, t, loss, gradient, last, left)
  local group = self.groups[1]
  local from = flat_values(group.params)
  local _ <close> = undo_if_raised(state, group.params, from)
  local function at(step)
    set_values(group.params, from + d * step)
    local f, g = evaluate(self, state, closure)
    return { t = step, f = f, slope = dot(g, d), gradient = g }
  end
  if not group.line_search then
    if last then
      set_values(group.params, from + d * t)
      return t
    end
    local point = at(t)
    return t, point.f, point.gradient
  end
  local start = { t = 0, f = loss, slope = dot(gradient, d), gradient = gradient }
  local best = line_search(at, start, t, left + 1, group.tolerance_change / largest(d))
  set_values(group.params, from + d * best.t)
  return best.t, best.f, best.gradient
end

local function iterate(self, state, closure)
  local group = self.groups[1]
  local first_loss, gradient = evaluate(self, state, closure)
  local loss, used = first_loss, state.evals - 1
  if largest(gradient) <= group.tolerance_grad then return first_loss end
  for i = 1, group.max_iter do
    local _ <close> = neap.scope_begin()
    state.iterations = state.iterations + 1
    local d
    if state.direction then
      remember(state, group.history, state.direction * state.t, gradient - state.gradient)
      d = direction(state, gradient)
    else
      d = -gradient
    end
    local t = self.lr
    if state.iterations == 1 then t = math.min(1, 1 / gradient:abs():sum():item()) * t end
    state.gradient, state.direction = hold(gradient), hold(d)
    local slope = dot(gradient, d)
    if slope > -group.tolerance_change then break end
    local before = loss
    local new_loss, new_gradient
    state.t, new_loss, new_gradient = move(self, state, closure, d, t, loss, gradient, i == group.max_iter,
      group.max_eval - (state.evals - used))
    if not new_gradient then break end
    loss, gradient = new_loss, neap.own(new_gradient)
    if state.evals - used >= group.max_eval or largest(gradient) <= group.tolerance_grad then break end
    if largest(d) * math.abs(state.t) <= group.tolerance_change then break end
    if math.abs(loss - before) < group.tolerance_change then break end
  end
  return first_loss
end

-- Up to max_iter iterations. closure() clears the gradients, computes the loss, calls backward and returns the loss;
-- it is called several times. Returns the loss before the step, a number.
function methods:step(closure)
  if not util.callable(closure) then
    util.fail("E-ARG", "%s: step needs a function that computes the loss, calls backward and returns the loss, got %s",
      who, util.kind(closure))
  end
  local hidden = getmetatable(self).hidden
  local scope <close> = neap.scope_begin()
  hidden.steps = hidden.steps + 1
  local loss = neap.no_grad(iterate, self, hidden.state, closure)
  return neap.scope_end(scope, loss)
end

-- Everything a resumed run needs.
function methods:state_dict()
  local hidden = getmetatable(self).hidden
  local group, state, settings = self.groups[1], {}, {}
  for key, value in pairs(hidden.state) do state[key] = value end
  for _, name in ipairs(options) do
    if type(group[name]) ~= "function" then settings[name] = group[name] end
  end
  return { class = "LBFGS", steps = hidden.steps, settings = settings, numel = flat_values(group.params):numel(),
    state = state }
end

local function copy_of(v, device)
  if neap.is_tensor(v) then return hold(v:detach():to(device):clone()) end
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, value in pairs(v) do copy[key] = copy_of(value, device) end
  return copy
end

-- Restores what state_dict gave. The parameters must have as many elements, in the same order.
function methods:load_state_dict(dict)
  local group = self.groups[1]
  if type(dict) ~= "table" or dict.class ~= "LBFGS" then
    util.fail("E-ARG", "%s.load_state_dict: needs the state of an optim.LBFGS, got %s", who,
      type(dict) == "table" and dict.class and "that of an optim." .. tostring(dict.class) or util.kind(dict))
  end
  if type(dict.settings) ~= "table" or type(dict.state) ~= "table" or type(dict.state.changes) ~= "table"
    or not math.type(dict.steps) then
    util.fail("E-ARG", "%s.load_state_dict: the state is not whole: settings, steps or state are missing", who)
  end
  local mine = flat_values(group.params):numel()
  if dict.numel ~= mine then
    util.fail("E-SHAPE", "%s.load_state_dict: the parameters have %d elements, the state is for %s", who, mine,
      tostring(dict.numel))
  end
  local hidden = getmetatable(self).hidden
  for _, name in ipairs(options) do
    if dict.settings[name] ~= nil and type(group[name]) ~= "function" then group[name] = dict.settings[name] end
  end
  hidden.steps, hidden.state = dict.steps, copy_of(dict.state, group.params[1].device)
end

local function check(group)
  util.integer(who, "max_iter", group.max_iter, 1)
  util.integer(who, "max_eval", group.max_eval, 1)
  util.integer(who, "history", group.history, 1)
  Optimizer.range(who, group, "tolerance_grad", 0, math.huge)
  Optimizer.range(who, group, "tolerance_change", 0, math.huge)
  if group.line_search ~= nil and group.line_search ~= "strong_wolfe" then
    util.fail("E-ARG", '%s: line_search must be "strong_wolfe" or nil, got %s', who, util.kind(group.line_search))
  end
  Optimizer.once(who, group.params, {})
  local first = group.params[1]
  for i, p in ipairs(group.params) do
    if p.dtype ~= first.dtype or p.device ~= first.device then
      util.fail("E-DTYPE", "%s: parameters must share dtype and device; parameter 1 is %s on %s, parameter %d is %s "
        .. "on %s", who, first.dtype, first.device, i, p.dtype, p.device)
    end
  end
end

--- optim.LBFGS(params, {lr = 1, max_iter = 20, max_eval = nil, history = 100, line_search = nil})
-- params: one list, all of one dtype. max_iter: iterations a step; max_eval: calls of the closure a step, by default
-- 1.25 max_iter (a line search may make one more); history: pairs of changes kept, each of the size of two lists of
-- parameters; line_search: "strong_wolfe", or nil for steps of length lr. tolerance_grad = 1e-7 and
-- tolerance_change = 1e-9 end a step early. Use float64 and the line search for fits:
-- `opt:step(function() opt:zero_grad() local l = f() l:backward() return l end)`.
local function LBFGS(params, given)
  given = util.options(who, given, options)
  local group = { lr = 1, max_iter = 20, history = 100, tolerance_grad = 1e-7, tolerance_change = 1e-9 }
  for key, value in pairs(given) do group[key] = value end
  group.max_eval = group.max_eval or group.max_iter * 5 // 4
  group.params = Optimizer.list(who, params)
  Optimizer.check_lr(who, group.lr)
  check(group)
  return Optimizer.object(methods, { name = "LBFGS" }, { group },
    { steps = 0, state = { changes = {}, scale = 1, iterations = 0, evals = 0 } })
end

return { LBFGS = LBFGS }
