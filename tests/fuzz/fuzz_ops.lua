--- Random calls of every op that scripts can reach, with random arguments: wrong kinds, ranks, dtypes, layouts and
-- ranges among them. A call may succeed or raise an error with a code (E-INTERNAL is none); all else is a finding:
-- a crash, a sanitizer's report, an error without a code, memory that stays.
--
--   lua5.4 tests/fuzz/fuzz_ops.lua [calls = 20000] [seed = 1]      NEAP_FUZZ_TRACE=1 prints each call first
--
-- The same calls and seed make the same run.
local neap = require "neap"

local calls, seed = tonumber(arg[1] or 20000), tonumber(arg[2] or 1)
local trace = os.getenv "NEAP_FUZZ_TRACE"
math.randomseed(seed, 0)
neap.seed(seed)

local random = math.random
local function pick(list) return list[random(#list)] end
local function chance(p) return random() < p end

local dtypes = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool" }
local integers = {
  0, 1, -1, 2, 3, -2, 5, 7, 100, 127, 128, -128, -129, 255, 256, 65536, 1 << 31, -(1 << 31), 1 << 32, 1 << 33,
  (1 << 53) + 1, 1 << 62, math.maxinteger, math.mininteger, math.maxinteger - 1,
}
local floats = {
  0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.0, 1e-8, 1e30, -1e30, 65504.0, 2.0 ^ 53, 2.0 ^ 63, -(2.0 ^ 63), math.huge,
  -math.huge, 0 / 0,
}

local function number() return chance(0.5) and random(-4, 4) or chance(0.6) and pick(integers) or pick(floats) end

local function sizes(most)
  local list = {}
  for i = 1, random(0, most) do list[i] = chance(0.08) and 0 or random(1, 4) end
  return list
end

-- Values that the dtype holds: often small, sometimes its edges.
local edges = { int64 = math.maxinteger, int32 = (1 << 31) - 1, int8 = 127, uint8 = 255 }
local function value(dtype)
  if dtype == "bool" then return chance(0.5) end
  if not edges[dtype] then return chance(0.9) and random() * 4 - 2 or pick(floats) end
  if chance(0.1) then return chance(0.5) and edges[dtype] or dtype == "uint8" and 0 or -edges[dtype] - 1 end
  return random(dtype == "uint8" and 0 or -3, 5)
end

local function fresh(shape, dtype)
  local n, list = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 1, n do list[i] = value(dtype) end
  local t = neap.tensor(list, { dtype = dtype }):reshape(shape)
  if dtype:find "float" and chance(0.2) then t.requires_grad = true end
  return t
end

-- Another layout of it, or itself.
local function laid_out(t)
  local way = random(6)
  if way == 1 and t.ndim >= 2 then return t:transpose(1, -1) end
  if way == 2 and t.ndim >= 1 and t.shape[1] > 1 then return t[{ { 1, -1, 2 } }] end
  if way == 3 and t.ndim >= 1 then
    local wide = { 2 }
    for d = 1, t.ndim do wide[d + 1] = t.shape[d] end
    return t:unsqueeze(1):expand(wide)
  end
  if way == 4 and t.ndim >= 1 and t.shape[1] > 0 then return t:select(1, -1) end
  return t
end

-- The tensor arguments of one call often share a shape and a dtype: else most calls would be refused.
local call -- { shape, dtype } of the running call
local function tensor()
  local shape = chance(0.7) and call.shape or sizes(3)
  local dtype = chance(0.6) and call.dtype or chance(0.4) and "int64" or pick(dtypes)
  return laid_out(fresh(shape, dtype))
end
local function mask() return fresh(chance(0.7) and call.shape or sizes(3), "bool") end
local function list_of(make, most)
  local list = {}
  for i = 1, random(0, most) do list[i] = make() end
  return list
end
local function small() return random(-3, 5) end
local function whole() return chance(0.8) and small() or pick(integers) end

local texts = {
  "ij,jk->ik", "ij,ij->", "ii->i", "bij,bjk", "...i,...i->...", "i,j", "->", "", "ij->ji", "a...,...b->ab",
  "i.j", "i,i->k",
  "constant", "reflect", "replicate", "circular", "zeros",
}
local function text() return pick(texts) end

local junk = { "x", true, {}, { 1, 2 }, function() end, 1.5, -7 }
local make = {
  T = tensor, ["T?"] = function() return chance(0.6) and tensor() or nil end,
  N = function() return chance(0.5) and number() or tensor() end,
  ["N?"] = function() return chance(0.5) and number() or tensor() end,
  ["T*"] = function() return list_of(tensor, 4) end,
  int = whole, ["int?"] = whole, float = number, ["float?"] = number,
  bool = function() return chance(0.5) end, dim = small, ["dim?"] = small,
  dims = function() return list_of(small, 3) end, ["dims?"] = function() return list_of(small, 3) end,
  index = whole,
  shape = function()
    if chance(0.5) then return call.shape end
    return list_of(function() return chance(0.9) and random(0, 6) or whole() end, 4)
  end,
  ["shape?"] = function() return list_of(whole, 3) end,
  str = text, ["str?"] = text,
  ["dtype"] = function() return pick(dtypes) end, ["dtype?"] = function() return pick(dtypes) end,
  ["device?"] = function() return chance(0.9) and "cpu" or "cuda:0" end,
  ["gen?"] = function() return neap.generator(3) end, base = function() return chance(0.8) and 0 or 1 end,
}

local function parse(schema)
  local positional, options = {}, {}
  local list = positional
  for word in schema:match("^(.-)%->"):gmatch "%S+" do
    if word == ";" then
      list = options
    else
      local name, kind = word:match "^([%w_]+):([%w]+[?*]?)"
      list[#list + 1] = { name = name, make = assert(make[kind], kind), mask = name == "mask" }
    end
  end
  return positional, options
end

local ops = {}
for _, op in ipairs(neap.ops) do
  local positional, options = parse(op.schema)
  ops[#ops + 1] = { name = op.name, fn = neap[op.name] or error(op.name), positional = positional, options = options }
end

local function arguments(op)
  local args = { n = #op.positional }
  for i, a in ipairs(op.positional) do
    local v
    if chance(0.01) then
      v = pick(junk)
    elseif a.mask and chance(0.9) then
      v = mask()
    else
      v = a.make()
    end
    args[i] = v
  end
  if #op.options > 0 and chance(0.6) then
    local options = {}
    for _, a in ipairs(op.options) do
      if chance(0.5) then options[a.name] = a.make() end
    end
    args.n = args.n + 1
    args[args.n] = options
  end
  return args
end

local function shown(v)
  if neap.is_tensor(v) then return ("<%s %s>"):format(v.dtype, tostring(v.shape)) end
  if type(v) ~= "table" then return tostring(v) end
  local parts = {}
  for k, e in pairs(v) do parts[#parts + 1] = tostring(k) .. "=" .. shown(e) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function describe(op, args)
  local parts = {}
  for i = 1, args.n do parts[i] = shown(args[i]) end
  return ("%s(%s)"):format(op.name, table.concat(parts, ", "))
end

local succeeded, codes, findings = 0, {}, 0
local function judge(op, args, what, ok, e)
  if ok then return true end
  local code = neap.error_code(e)
  if code and code ~= "E-INTERNAL" then
    codes[code] = (codes[code] or 0) + 1
    return false
  end
  findings = findings + 1
  io.write(("call %s, %s: %s\n"):format(what, describe(op, args), tostring(e)))
  return false
end

local function one(i)
  local op = pick(ops)
  call = { shape = sizes(3), dtype = pick(dtypes) }
  local args = arguments(op)
  if trace then io.stderr:write(i, " ", describe(op, args), "\n") end
  local results = table.pack(pcall(op.fn, table.unpack(args, 1, args.n)))
  if not judge(op, args, i, results[1], results[2]) then return end
  succeeded = succeeded + 1
  local y = results[2]
  if neap.is_tensor(y) and y.requires_grad then
    judge(op, args, i .. " (backward)", pcall(function() y:to("float32"):sum():backward() end))
  end
  if neap.is_tensor(y) then judge(op, args, i .. " (text)", pcall(tostring, y)) end
end

local function run()
  for i = 1, calls do
    neap.scope(one, i)
    if i % 500 == 0 then collectgarbage() end
  end
end

neap.memory_limit("cpu", "256 MiB", run)
collectgarbage()
collectgarbage()
local left = neap.memory_stats().storages
if left > 0 then
  findings = findings + 1
  io.write(("%d storages are left\n"):format(left))
end
local kinds = {}
for code, n in pairs(codes) do kinds[#kinds + 1] = ("%s %d"):format(code, n) end
table.sort(kinds)
io.write(("fuzz_ops: %d calls of %d ops, seed %d: %d succeeded, %d findings; %s\n"):format(calls, #ops, seed, succeeded,
  findings, table.concat(kinds, ", ")))
os.exit(findings == 0 and 0 or 1, true)
