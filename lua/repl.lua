--- The prompt of the `neap` program. Returns a function of the host's table: line(prompt), history(line),
-- call(f, ...), traceback(), complete(fn).
--
-- What is typed runs in a session table over _G, so nothing global changes. Reading a name that was never
-- defined is an error; `local` variables at the top of a chunk are kept as session variables. neap, nn, optim,
-- data and checkpoint load when first named.
local util = require "neap.util"
local pp = require "neap.pp"

local parts = { neap = true, nn = true, optim = true, data = true, checkpoint = true }

local function load_part(name)
  local neap = require "neap"
  return name == "neap" and neap or neap[name]
end

-- ---- the session's variables ------------------------------------------------------------------------------

local function new_session()
  local declared, env = {}, {}

  local function suggestion(name)
    local names = {}
    for _, t in ipairs({ env, _G, parts }) do
      for k in next, t do -- one letter is near to every other: no suggestion
        if type(k) == "string" and #k > 1 then names[#names + 1] = k end
      end
    end
    if name == "help" then return "; ?name shows the help of a name" end
    for _, module in ipairs({ "neap", "neap.nn", "neap.optim" }) do
      local t = package.loaded[module]
      if type(t) == "table" and rawget(t, name) ~= nil then
        return ("; did you mean %s.%s?"):format(module:gsub("^neap%.", ""), name)
      end
    end
    local near = util.nearest(name, names)
    return near and ("; did you mean '%s'?"):format(near) or ""
  end

  setmetatable(env, {
    __index = function(_, name)
      local value = _G[name]
      if value ~= nil or declared[name] or name == "_" then return value end
      if parts[name] then
        local part = load_part(name)
        rawset(env, name, part)
        return part
      end
      if type(name) ~= "string" then return nil end
      error(("the name '%s' is not defined%s"):format(name, suggestion(name)), 2)
    end,
    __newindex = function(_, name, value)
      declared[name] = true
      rawset(env, name, value)
    end,
  })
  return env
end

-- ---- reading a chunk ----------------------------------------------------------------------------------------

local function incomplete(message)
  return message:find("<eof>", -5, true) ~= nil or message:find("near <eof>", 1, true) ~= nil
end

-- Reads lines until they make a chunk. Returns the text; nil at the end of the input; false when given up.
local function read_chunk(host, text, env)
  while true do
    local expression, why = load("return " .. text, "=stdin", "t", env)
    if expression then return text end
    local f, message = load(text, "=stdin", "t", env)
    if f or not (incomplete(message) or incomplete(why)) then return text end
    local line = host.line(">> ")
    if line == false then return false end
    if line == nil then return text end
    text = text .. "\n" .. line
  end
end

-- Names that the chunk closes itself.
local function closed_names(text)
  local names = {}
  for name in text:gmatch("([%a_][%w_]*)%s*<%s*close%s*>") do names[name] = true end
  return names
end

-- The values of an expression reach `results` by a call, so that the chunk's own frame lives while it runs: an error
-- names it. `return f(x)` would leave its frame for f.
local function expression_of(text, env)
  text = text:match("^%s*return%f[^%w_](.*)$") or text
  if not load("return " .. text, "=stdin", "t", env) then return nil end
  local close = text:find("--", 1, true) and "\n)" or ")" -- a comment may end the text
  return load("return (...)(" .. text .. close, "=stdin", "t", env)
end

-- Compiles a chunk so that its top-level locals become session variables when it has run.
local function compile(text, env, promoted)
  local f = expression_of(text, env)
  if f then return f, true end
  if text:find("^%s*local%f[^%w_]") then -- a constant is no variable when the line is over: keep it as one
    text = text:gsub("([%a_][%w_]*%s*)<%s*const%s*>", "%1")
  end
  local message
  f, message = load(text, "=stdin", "t", env)
  if not f or not text:find("%f[%w_]local%f[^%w_]") then return f, false, message end
  local skip = closed_names(text)
  local function keep_locals()
    local i = 1
    while true do
      local name, value = debug.getlocal(2, i)
      if not name then return end
      if skip[name] then
        promoted.closed = name
      elseif name:match("^[%a_][%w_]*$") and name ~= "_" then
        env[name] = value
        promoted[#promoted + 1] = name
      end
      i = i + 1
    end
  end
  -- The closing call sees the locals that are alive at the end. A chunk that ends in return has none to keep.
  local outer = setmetatable({}, {
    __index = function(_, name)
      if name == "__keep_locals" then return keep_locals end
      return env[name]
    end,
    __newindex = env,
  })
  local with_keep = load(text .. "\n;__keep_locals()", "=stdin", "t", outer)
  return with_keep or f, false
end

-- ---- help ---------------------------------------------------------------------------------------------------

-- The doc comment that ends just above a line of a file.
local function comment_above(path, line)
  local file = io.open(path, "r")
  if not file then return nil end
  local lines = {}
  for text in file:lines() do
    lines[#lines + 1] = text
    if #lines == line then break end
  end
  file:close()
  local first = #lines
  while first > 1 and lines[first - 1]:match("^%s*%-%-") do first = first - 1 end
  local out = {}
  for i = first, #lines - 1 do out[#out + 1] = (lines[i]:gsub("^%s*%-%-%-?%s?", "")) end
  return #out > 0 and table.concat(out, "\n") or nil
end

local function function_help(name, f)
  local info = debug.getinfo(f, "Su")
  if info.what == "C" then return name .. ": a built-in function" end
  local arguments = {}
  for i = 1, info.nparams do arguments[i] = debug.getlocal(f, i) end
  if info.isvararg then arguments[#arguments + 1] = "..." end
  local head = ("%s(%s)"):format(name, table.concat(arguments, ", "))
  local doc = info.source:sub(1, 1) == "@" and comment_above(info.source:sub(2), info.linedefined)
  return head .. "\n" .. (doc or ("defined at %s:%d"):format(info.short_src, info.linedefined))
end

-- The value of a dotted name; nil when a part is missing.
local function look_up(env, path)
  local value = env
  for part in path:gmatch("[^%.:]+") do
    local ok, inner = pcall(function() return value[part] end)
    if not ok or inner == nil then return nil end
    value = inner
  end
  return value
end

local help_text = [[
Type an expression to see its value, a statement to run it; a line that is not complete goes on.
  ?name   help for a function, a method, a layer: ?neap.matmul  ?x:item  ?nn.Linear
  ;       at the end of an expression: do not show the value
  _       the last value shown
  .bt     the whole traceback of the last error
  Tab     completes names, fields and methods
  Ctrl-C  stops what runs, Ctrl-D leaves
?neap lists all names, ?nn ?optim ?data those of a part, ?E-SHAPE explains an error code.]]

-- Of which kind the object is that a dotted name begins with: "Tensor", "Module", ...
local function kind_of(env, name)
  local owner = name:match("^(.*)[.:]")
  local value = owner and look_up(env, owner)
  local mt = value ~= nil and debug.getmetatable(value)
  return type(mt) == "table" and type(mt.__name) == "string" and mt.__name:match("^neap%.(%a+)$") or nil
end

local function help(env, name)
  if name == "" then return help_text end
  local texts, neap = require "neap.help", env.neap
  local value = look_up(env, name)
  local part = name:gsub("^neap%.", "")
  if parts[part] and part ~= "checkpoint" or value == nil then
    local topic = texts.topic(name)
    if topic then return topic end
  end
  if value == nil then value = look_up(neap, name) end
  local item = texts.find(neap, name, value, kind_of(env, name))
  if item then return texts.text(item) end
  if type(value) == "function" then return function_help(name, value) end
  local class = type(value) == "table" and rawget(value, "class_name")
  if class then
    local made = function_help(name, value.init):gsub("%(self, ", "("):gsub("%(self%)", "()")
    return ("%s: a class of modules\n"):format(name) .. made
  end
  if value ~= nil then return ("%s: %s"):format(name, tostring(value)) end
  local last = name:match("([%w_]+)$") or name
  local translate = require "neap.translate"
  local here = translate.text("names", last) or translate.text("modules", last) or translate.text("functions", last)
    or translate.text("optimizers", last)
  if here then return ("nothing is known about '%s'%s"):format(name, here) end
  local near = util.nearest(last, texts.names())
  return ("nothing is known about '%s'%s"):format(name, near and ("; did you mean ?%s?"):format(near) or "")
end

-- Words that people try; nothing is evaluated.
local words = {
  exit = "Ctrl-D leaves (or os.exit())", quit = "Ctrl-D leaves (or os.exit())", help = help_text,
}

local function word_of(env, line)
  local word = line:match("^%s*(%a+)%s*%(?%s*%)?%s*;?%s*$")
  return word and rawget(env, word) == nil and rawget(_G, word) == nil and words[word] or nil
end

-- ---- completion -----------------------------------------------------------------------------------------------

local keywords = { "break", "else", "elseif", "false", "function", "goto", "local", "nil", "repeat", "return", "then",
  "true", "until", "while" }

-- The names that may follow a prefix such as "neap." or "x:", each true in the result.
local function names_after(env, owner, mark)
  local names = {}
  local function add(t)
    for key in next, t do
      if type(key) == "string" then names[key] = true end
    end
  end
  if mark == "" then
    for _, t in ipairs({ env, _G, parts }) do add(t) end
    for _, word in ipairs(keywords) do names[word] = true end
    return names
  end
  local value = look_up(env, owner)
  local kind = kind_of(env, owner .. mark)
  if value == env.neap then kind = "neap" end
  if type(value) == "table" and kind ~= "neap" then
    add(value)
    if kind == "Module" then add(getmetatable(value).store or {}) end
  end
  for _, item in ipairs(require("neap.help").items()) do
    local of, dot, name = item.name:match("^(%a+)([.:])([%w_]+)")
    if of == kind and (dot == mark or item.method) then names[name] = true end
    if kind == "Tensor" and item.method then names[item.name:match("[%w_]+$")] = true end
  end
  if kind == "neap" then add(parts) end
  return names
end

-- Whole words that begin with the text, in order; before them what all of them begin with.
local function completions(env, text)
  local owner, mark, start = text:match("^([%w_.:]-)([.:]?)([%w_]*)$")
  if not start then return {} end
  local list = {}
  for name in pairs(names_after(env, owner, mark)) do
    if name:sub(1, #start) == start and (start ~= "" or name:sub(1, 1) ~= "_") then
      list[#list + 1] = owner .. mark .. name
    end
  end
  table.sort(list)
  local common = list[1]
  for _, name in ipairs(list) do
    while name:sub(1, #common) ~= common do common = common:sub(1, -2) end
  end
  table.insert(list, 1, common)
  return list
end

-- ---- the loop -----------------------------------------------------------------------------------------------

local function show(value)
  if type(value) == "table" and getmetatable(value) == nil then return pp.text(value) end
  return tostring(value)
end

local function echo(env, results, first, last)
  if last < first then return end
  local texts = {}
  for i = first, last do texts[#texts + 1] = show(results[i]) end
  print(table.concat(texts, "\t"))
  rawset(env, "_", results[first])
end

return function(host)
  local env, promoted, told = new_session(), {}, false
  host.complete(function(text) return completions(env, text) end)

  local function run(text)
    local quiet = text:match(";%s*$") ~= nil
    local f, is_expression, message = compile(quiet and text:gsub(";%s*$", "") or text, env, promoted)
    if not f then
      io.stderr:write(message, "\n")
      return
    end
    promoted.closed = nil
    local results = table.pack(host.call(f, function(...) return ... end))
    if not results[1] then
      io.stderr:write(tostring(results[2]), "\n")
      return
    end
    if #promoted > 0 and not told then
      told = true
      local plural = #promoted > 1 and "s" or ""
      print(("-- local %s: kept as session variable%s"):format(table.concat(promoted, ", "), plural))
    end
    for i = #promoted, 1, -1 do promoted[i] = nil end
    if promoted.closed then
      print(("-- local %s <close>: closed at the end of the line; write do ... end around what it is for, or pass a "
        .. "function"):format(promoted.closed))
    end
    if not quiet and (is_expression or results.n > 1) then
      local ok, trouble = host.call(echo, env, results, 2, results.n)
      if not ok then io.stderr:write(tostring(trouble), "\n") end
    end
  end

  while true do
    local line = host.line("> ")
    if line == nil then break end
    if line and line:match("^%s*%?") then
      host.history(line)
      local ok, text = host.call(help, env, line:match("^%s*%?%s*(.-)%s*$"))
      print(ok and text or tostring(text))
    elseif line and line:match("^%s*%.bt%s*$") then
      print(host.traceback() or "no error yet")
    elseif line and word_of(env, line) then
      print(word_of(env, line))
    elseif line and line:match("%S") then
      local text = read_chunk(host, line, env)
      if text then
        host.history(text)
        run(text)
      end
    end
    io.stdout:flush()
  end
  print()
end
