--- Reads the op entries of core/ops/*.c and writes what follows from them.
--
--   lua5.4 tools/gen.lua code SRC_DIR OUT_DIR    the C files below
--
-- SRC_DIR holds the family files (core/ops). What is looked for in them:
--   NP_OP(name) = { ... .args = "schema" ... .tags = ... };   an op
--   NP_INPLACE_OP(name_, name);                               its in-place form, same schema
--   NP_CPU(name)                                              its kernel
--   /* name(...) ...                                          its doc comment
-- A function-like macro of the file whose body holds one of the first three is expanded where it is used at the
-- start of a line, so a family may write its entries with a macro of its own.
--
-- Output: np_opx.h (the numbers of the ops), neap_ops.h + neap_ops.c (the public functions), np_grad_ops.h + .c
-- (the same functions for gradient formulas), np_registry.c (tables of entries, kernels and docs). A file is
-- written only when its content changes. An error in an entry stops the build with file and line.
-- The schema language is described in core/ops/op.h.

local MAX = { tensors = 8, attrs = 8, results = 6, args = 12 } -- SAME-ORDER core/ops/op.h
local RESERVED = {} -- names that a parameter cannot have in C or C++, and the locals of the wrappers
for word in ([[auto break case char const continue default do double else enum extern float for goto if inline int
  long register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
  and asm bool catch class compl delete explicit export false friend mutable namespace new not operator or private
  protected public template this throw true try typeid typename using virtual xor ctx back frame more ins
]]):gmatch("%S+") do
  RESERVED[word] = true
end

--- Types of the schema language: kind in C and how an attribute is set. `%s` is the parameter's name.
local TYPES = {
  T = { tensor = true },
  ["T?"] = { tensor = true, optional = true },
  N = { tensor = true },
  ["N?"] = { tensor = true, optional = true },
  ["T*"] = { list = true },
  int = { c = "int64_t %s", set = ".i = %s, .has = 1" },
  float = { c = "double %s", set = ".f = %s, .has = 1" },
  bool = { c = "int %s", set = ".i = %s != 0, .has = 1" },
  dim = { c = "int64_t %s", set = ".i = %s, .has = 1" },
  index = { c = "int64_t %s", set = ".i = %s, .has = 1" },
  base = { c = "int64_t %s", set = ".i = %s, .has = 1" },
  dtype = { c = "int %s", set = ".i = %s, .has = 1" },
  dims = { c = "const int64_t *%s, int n_%s", set = ".v = %s, .n = n_%s, .has = 1" },
  shape = { c = "const int64_t *%s, int n_%s", set = ".v = %s, .n = n_%s, .has = 1" },
  str = { c = "const char *%s", set = ".s = %s, .has = %s != NULL", text = true },
  ["str?"] = { c = "const char *%s", set = ".s = %s, .has = %s != NULL", text = true },
  ["int?"] = { c = "const int64_t *%s", set = ".i = %s ? *%s : 0, .has = %s != NULL" },
  ["dim?"] = { c = "const int64_t *%s", set = ".i = %s ? *%s : 0, .has = %s != NULL" },
  ["index?"] = { c = "const int64_t *%s", set = ".i = %s ? *%s : 0, .has = %s != NULL" },
  ["float?"] = { c = "const double *%s", set = ".f = %s ? *%s : 0, .has = %s != NULL" },
  ["dims?"] = { c = "const int64_t *%s, int n_%s", set = ".v = %s, .n = %s ? n_%s : 0, .has = %s != NULL" },
  ["shape?"] = { c = "const int64_t *%s, int n_%s", set = ".v = %s, .n = %s ? n_%s : 0, .has = %s != NULL" },
  ["dtype?"] = { c = "int %s", set = ".i = %s, .has = %s >= 0" },
  ["device?"] = { c = "int %s", set = ".i = %s, .has = %s >= 0" },
  ["gen?"] = { c = "neap_generator *%s", set = ".gen = %s, .has = %s != NULL" },
}

local function fill(template, name)
  return (template:gsub("%%s", name))
end

local function fail(op, fmt, ...)
  io.stderr:write(("%s:%d: op '%s': "):format(op.file, op.line, op.name), fmt:format(...), "\n")
  os.exit(1)
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("a")
  f:close()
  return text
end

local function write_if_changed(path, text)
  local f = io.open(path, "rb")
  if f then
    local old = f:read("a")
    f:close()
    if old == text then return end
  end
  local part = path .. ".part"
  f = assert(io.open(part, "wb"))
  assert(f:write(text))
  assert(f:close())
  assert(os.rename(part, path))
end

-- ---- reading C

--- Blanks out comments (newlines stay, so lines keep their numbers) and returns them as a list of texts.
local function split_comments(src)
  local out, comments, i = {}, {}, 1
  while i <= #src do
    local s = src:find("[\"'/]", i)
    if not s then
      out[#out + 1] = src:sub(i)
      break
    end
    out[#out + 1] = src:sub(i, s - 1)
    local ch, two = src:sub(s, s), src:sub(s, s + 1)
    if two == "/*" or two == "//" then
      local e
      if two == "/*" then
        local _, close = src:find("*/", s + 2, true)
        e = close or #src
        comments[#comments + 1] = src:sub(s + 2, e - 2)
      else
        e = (src:find("\n", s, true) or #src + 1) - 1
      end
      out[#out + 1] = src:sub(s, e):gsub("[^\n]", " ")
      i = e + 1
    elseif ch == "/" then
      out[#out + 1] = ch
      i = s + 1
    else
      local e = s + 1
      while e <= #src and src:sub(e, e) ~= ch do
        e = e + (src:sub(e, e) == "\\" and 2 or 1)
      end
      out[#out + 1] = src:sub(s, e)
      i = e + 1
    end
  end
  return table.concat(out), comments
end

--- The position of the bracket that closes the one at `i`, or nil. Strings are skipped.
local function closing(text, i)
  local depth = 0
  while i <= #text do
    local ch = text:sub(i, i)
    if ch == "(" or ch == "{" or ch == "[" then
      depth = depth + 1
    elseif ch == ")" or ch == "}" or ch == "]" then
      depth = depth - 1
      if depth == 0 then return i end
    elseif ch == '"' or ch == "'" then
      i = i + 1
      while i <= #text and text:sub(i, i) ~= ch do
        i = i + (text:sub(i, i) == "\\" and 2 or 1)
      end
    end
    i = i + 1
  end
end

--- Splits macro arguments at top-level commas.
local function split_args(text)
  local list, start, i = {}, 1, 1
  while i <= #text do
    local ch = text:sub(i, i)
    if ch:find("[%(%{%[\"']") then
      if ch == '"' or ch == "'" then
        i = i + 1
        while i <= #text and text:sub(i, i) ~= ch do
          i = i + (text:sub(i, i) == "\\" and 2 or 1)
        end
      else
        i = closing(text, i) or #text
      end
    elseif ch == "," then
      list[#list + 1] = text:sub(start, i - 1)
      start = i + 1
    end
    i = i + 1
  end
  list[#list + 1] = text:sub(start)
  for k, v in ipairs(list) do
    list[k] = v:match("^%s*(.-)%s*$")
  end
  return list
end

local function collect_macros(text)
  local macros = {}
  local joined = text:gsub("\\\n", " \1")
  for name, params, body in joined:gmatch("#[ \t]*define[ \t]+([%w_]+)%(([^)\n]*)%)([^\n]*)") do
    local list = {}
    for p in params:gmatch("[%w_%.]+") do
      list[#list + 1] = p
    end
    macros[name] = { params = list, body = (body:gsub("\1", " ")) }
  end
  return macros
end

local KEY = "NP_OP%s*%(|NP_CPU%s*%(|NP_INPLACE_OP%s*%("
local function defines_op(body)
  for pattern in KEY:gmatch("[^|]+") do
    if body:find(pattern) then return true end
  end
end

local function expand_call(macro, args)
  local value = {}
  for i, p in ipairs(macro.params) do
    if p == "..." then
      value.__VA_ARGS__ = table.concat(args, ", ", math.min(i, #args + 1))
    else
      value[p] = args[i] or ""
    end
  end
  local body = macro.body:gsub("([^#])#%s*([%a_][%w_]*)", function(before, name)
    if value[name] then return before .. '"' .. value[name] .. '"' end
  end)
  body = body:gsub("[%a_][%w_]*", value)
  return (body:gsub("%s*##%s*", ""))
end

--- Replaces uses, at the start of a line, of the file's macros that define ops. Each becomes one line.
local function expand(text)
  local macros = collect_macros(text)
  local wanted, grew = {}, true
  while grew do -- a macro counts too when it uses one that counts
    grew = false
    for name, m in pairs(macros) do
      local counts = defines_op(m.body)
      for other in pairs(wanted) do
        counts = counts or m.body:find("%f[%w_]" .. other .. "%s*%(") ~= nil
      end
      if counts and not wanted[name] then
        wanted[name], grew = m, true
      end
    end
  end
  text = text:gsub("\\\n", "\1"):gsub("\n[ \t]*#[^\n]*", function(line)
    return "\n" .. line:gsub("[^\1]", "")
  end)
  text = text:gsub("\1", "\n")
  for _ = 1, 4 do
    local changed, pos = false, 1
    while true do
      local s, open, name = text:find("%f[%w_]([%a_][%w_]*)%s*%(", pos)
      if not s then break end
      local m = wanted[name]
      local e = m and closing(text, open)
      if e then
        local call = text:sub(s, e)
        local new = expand_call(m, split_args(text:sub(open + 1, e - 1)))
        new = new:gsub("\n", " ") .. call:gsub("[^\n]", "") -- lines keep their numbers
        text = text:sub(1, s - 1) .. new .. text:sub(e + 1)
        pos, changed = s + #new, true
      else
        pos = open + 1
      end
    end
    if not changed then break end
  end
  return text
end

-- ---- schemas

local function parse_schema(op)
  local head, tail = op.args:match("^(.-)%->(.*)$")
  if not head then fail(op, "schema '%s' has no '->'", op.args) end
  local positional, options = head:match("^(.-);(.*)$")
  local parsed = { args = {}, tensors = {}, attrs = {}, results = {}, n_aux = 0 }
  local seen = {}
  local function add_args(text, is_option)
    for word in text:gmatch("%S+") do
      local name, kind, default = word:match("^([%a_][%w_]*):([%a]+[?*]?)=?(.*)$")
      if not name then fail(op, "'%s' in the schema is not name:type or name:type=default", word) end
      local t = TYPES[kind]
      if not t then fail(op, "type '%s' of '%s' is unknown", kind, name) end
      if RESERVED[name] then fail(op, "an argument cannot be called '%s'", name) end
      if #name > 23 then fail(op, "'%s' is longer than 23 letters", name) end
      if seen[name] then fail(op, "argument '%s' stands twice", name) end
      seen[name] = true
      local arg = { name = name, kind = kind, type = t, option = is_option }
      arg.default = default ~= "" and default or nil
      parsed.args[#parsed.args + 1] = arg
      if t.list then
        for i = 1, #parsed.args - 1 do
          if not parsed.args[i].type.text then fail(op, "only a text can stand before a list of tensors") end
        end
        if #parsed.tensors > 0 then fail(op, "a list of tensors stands alone") end
        parsed.list = arg
      elseif t.tensor then
        if parsed.list then fail(op, "a list of tensors stands alone: '%s' cannot be a tensor", name) end
        parsed.tensors[#parsed.tensors + 1] = arg
      else
        parsed.attrs[#parsed.attrs + 1] = arg
      end
    end
  end
  add_args(positional or head, false)
  add_args(options or "", true)
  local seen_part, aux_part = tail:match("^(.-)|(.*)$")
  for i, part in ipairs({ seen_part or tail, aux_part or "" }) do
    for word in part:gmatch("%S+") do
      local name = word:match("^([%a_][%w_]*):T$")
      if not name then fail(op, "result '%s' is not name:T", word) end
      parsed.results[#parsed.results + 1] = name
      if i == 2 then parsed.n_aux = parsed.n_aux + 1 end
    end
  end
  parsed.n_seen = #parsed.results - parsed.n_aux
  if parsed.n_seen < 1 then fail(op, "the schema has no result") end
  if #parsed.results > MAX.results then fail(op, "more than %d results", MAX.results) end
  if #parsed.tensors > MAX.tensors then fail(op, "more than %d tensors", MAX.tensors) end
  if #parsed.attrs > MAX.attrs then fail(op, "more than %d attributes", MAX.attrs) end
  if #parsed.args > MAX.args then fail(op, "more than %d arguments", MAX.args) end
  return parsed
end

-- ---- reading the family files

local function list_sources(dir)
  local files = {}
  local p = assert(io.popen("LC_ALL=C ls '" .. dir .. "'"))
  for name in p:lines() do
    if name:match("%.c$") then files[#files + 1] = dir .. "/" .. name end
  end
  p:close()
  return files
end

local function doc_texts(comments)
  local docs = {}
  for _, comment in ipairs(comments) do
    local name = comment:match("^[%s%*]*([%a_][%w_]*)%(")
    if name and not docs[name] then
      local text = comment:gsub("\n[ \t]*%*[ \t]?", "\n"):match("^[%s%*]*(.-)%s*$")
      docs[name] = text
    end
  end
  return docs
end

local function entry_string(op, body)
  local _, e = body:find("%.args%s*=%s*")
  if not e then fail(op, "the entry has no .args") end
  local parts, pos = {}, e + 1
  while true do
    local _, e2, s = body:find('^%s*"([^"]*)"', pos)
    if not s then break end
    parts[#parts + 1], pos = s, e2 + 1
  end
  if #parts == 0 then fail(op, ".args is not a string") end
  return table.concat(parts)
end

--- All ops of a directory, in file order then source order.
local function read_ops(dir)
  local ops, by_name, kernels = {}, {}, {}
  local function add(op)
    if by_name[op.name] then
      fail(op, "is defined a second time; the first is at %s:%d", by_name[op.name].file, by_name[op.name].line)
    end
    if RESERVED[op.name] and not op.name:match("^and$") and not op.name:match("^or$") then
      fail(op, "an op cannot be called '%s'", op.name)
    end
    by_name[op.name] = op
    ops[#ops + 1] = op
  end
  for _, file in ipairs(list_sources(dir)) do
    local clean, comments = split_comments(read(file))
    local docs = doc_texts(comments)
    local text = expand("\n" .. clean)
    local pos, line, counted = 1, 0, 1
    while true do
      local s, open, key = text:find("%f[%w_](NP_[A-Z_]+)%s*%(", pos)
      if not s then break end
      pos = open + 1
      local _, n = text:sub(counted, s - 1):gsub("\n", "")
      line, counted = line + n, s
      local e = closing(text, open)
      local args = e and split_args(text:sub(open + 1, e - 1)) or {}
      local op = { name = args[1], file = file, line = line, family = file:match("([^/]+)%.c$") }
      if key == "NP_OP" then
        local _, brace = text:find("^%s*=%s*{", e + 1)
        if not brace then fail(op, "NP_OP(%s) is not followed by '= {'", op.name) end
        local stop = closing(text, brace)
        if not stop then fail(op, "the entry has no closing brace") end
        local body = text:sub(brace, stop)
        op.args = entry_string(op, body)
        op.tags = body:match("%.tags%s*=%s*([^,}]*)") or ""
        op.doc = docs[op.name]
        op.schema = parse_schema(op)
        for _, a in ipairs(op.schema.attrs) do
          if a.type.text and not op.tags:find "NP_COMPOSITE" then fail(op, "only composites take a text") end
        end
        add(op)
        pos = stop
      elseif key == "NP_INPLACE_OP" then
        op.base_name = args[2]
        op.tags = "NP_INPLACE"
        op.doc = docs[op.name]
        add(op)
      elseif key == "NP_CPU" then
        kernels[op.name] = op
      end
    end
  end
  for _, op in ipairs(ops) do
    if op.base_name then
      local base = by_name[op.base_name]
      if not base or base.base_name then fail(op, "its base '%s' is not an op", op.base_name) end
      if op.name ~= base.name .. "_" then
        fail(op, "the in-place form of '%s' is called '%s_'", base.name, base.name)
      end
      op.base, op.schema, op.args = base, base.schema, base.args
      if #base.schema.tensors == 0 then fail(op, "its base has no tensor to write to") end
      op.doc = op.doc or (op.name .. "(...): " .. base.name .. " written into its first argument.")
    end
    op.internal = (op.tags .. (op.base and op.base.tags or "")):find("NP_INTERNAL") ~= nil
    op.doc = op.doc or ""
    op.kernel = kernels[op.name] and op.name or (op.base and kernels[op.base.name] and op.base.name) or nil
  end
  for name, k in pairs(kernels) do
    if not by_name[name] then fail(k, "has a kernel but no entry NP_OP(%s)", name) end
  end
  return ops
end

-- ---- writing C

local function params(op, first)
  local list = { first }
  for _, a in ipairs(op.schema.args) do
    if a.type.list then
      list[#list + 1] = fill("neap_tensor *const *%s, int n_%s", a.name)
    elseif a.type.tensor then
      list[#list + 1] = "neap_tensor *" .. a.name
    else
      list[#list + 1] = fill(a.type.c, a.name)
    end
  end
  return list
end

--- The public prototype: results after the first go out through pointers, NULL for those not wanted.
local function public_prototype(op)
  local list = params(op, "neap_ctx *ctx")
  for i = 2, op.schema.n_seen do
    list[#list + 1] = "neap_tensor **out_" .. op.schema.results[i]
  end
  return ("neap_tensor *neap_%s(%s)"):format(op.name, table.concat(list, ", "))
end

local function formula_prototype(op)
  local list = params(op, "np_back *back")
  if op.schema.n_seen > 1 then list[#list + 1] = "neap_tensor **more" end
  return ("neap_tensor *np_%s(%s)"):format(op.name, table.concat(list, ", "))
end

--- Wraps a long prototype at commas.
local function wrap(text, indent)
  local lines, line = {}, ""
  for piece in text:gmatch("[^,]+,? ?") do
    if #line + #piece > 108 then
      lines[#lines + 1] = line:match("^(.-)%s*$")
      line = (" "):rep(indent) .. piece
    else
      line = line .. piece
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

local function comment(text)
  text = text:gsub("%*/", "* /"):gsub("/%*", "/ *")
  return "/* " .. text:gsub("\n", "\n * ") .. " */"
end

local HEAD = "/* Generated by tools/gen.lua from the op entries in core/ops. Do not edit: change the entry. */\n"

local function frame_lines(op, ctx)
  local s, lines = op.schema, {}
  local ins, n_in
  if s.list then
    ins, n_in = s.list.name, "n_" .. s.list.name
  elseif #s.tensors > 0 then
    local names = {}
    for i, t in ipairs(s.tensors) do
      names[i] = t.name
    end
    lines[1] = ("    neap_tensor *const ins[] = { %s };"):format(table.concat(names, ", "))
    ins, n_in = "ins", tostring(#names)
  else
    ins, n_in = "NULL", "0"
  end
  lines[#lines + 1] = ("    np_frame frame;\n    np_frame_begin(&frame, %s, &np_op_%s, %s, %s);"):format(ctx, op.name,
    ins, n_in)
  for i, a in ipairs(s.attrs) do
    lines[#lines + 1] = ("    frame.attr[%d] = (np_attr){ %s };"):format(i - 1, fill(a.type.set, a.name))
  end
  return lines
end

local function opx_h(ops)
  local out = { HEAD, "#ifndef NP_OPX_H\n#define NP_OPX_H\n\nenum {\n" }
  for _, op in ipairs(ops) do
    out[#out + 1] = "    NP_OPX_" .. op.name .. ",\n"
  end
  out[#out + 1] = "    NP_N_OPS\n};\n\n#endif\n"
  return table.concat(out)
end

local function ops_h(ops)
  local out = { HEAD, [[
/* neap_ops.h - all ops as C functions. Included by neap.h.
 *
 * Results are new references (or belong to the open scope). An absent optional argument is NULL; dtype and
 * device -1. Results after the first go out through pointers, which may be NULL. */
#ifndef NEAP_OPS_H
#define NEAP_OPS_H
]] }
  for _, op in ipairs(ops) do
    if not op.internal then
      out[#out + 1] = ("\n%s\n%s;\n"):format(comment(op.doc ~= "" and op.doc or op.name),
        wrap("NEAP_API " .. public_prototype(op), 4))
    end
  end
  out[#out + 1] = "\n#endif\n"
  return table.concat(out)
end

local function ops_c(ops)
  local out = { HEAD, [[
#include "ops/op.h"

/* A C function that Lua calls: inside it positions count from 0. */
static NP_APART neap_tensor *run_inside_lua(np_frame *f)
{
    neap_ctx *c = f->c;
    int base = c->base;
    c->base = 0;
    bool ok = np_dispatch(f);
    c->base = base;
    return ok ? np_scope_adopt(c, f->out[0]) : NULL;
}

/* Runs the frame as a C caller. */
static neap_tensor *run(np_frame *f)
{
    neap_ctx *c = f->c;
    if (c->base) return run_inside_lua(f);
    return np_dispatch(f) ? np_scope_adopt(c, f->out[0]) : NULL;
}

/* The same with several results: 1 .. n_more go to `more`, auxiliary ones are dropped. */
static neap_tensor *run_more(np_frame *f, int n_more, neap_tensor **const *more)
{
    neap_ctx *c = f->c;
    int base = c->base;
    c->base = 0;
    bool ok = np_dispatch(f);
    c->base = base;
    if (!ok) return NULL;
    for (int j = 1; j < f->n_out; j++) {
        if (j <= n_more && more[j - 1]) continue;
        np_drop(f->out[j]);
        f->out[j] = NULL;
    }
    for (int j = 0; j < f->n_out && ok; j++) {
        if (!f->out[j]) continue;
        f->out[j] = np_scope_adopt(c, f->out[j]);
        ok = f->out[j] != NULL;
        for (int k = j + 1; !ok && k < f->n_out; k++) np_drop(f->out[k]);
    }
    for (int j = 1; ok && j <= n_more && j < f->n_out; j++)
        if (more[j - 1]) *more[j - 1] = f->out[j];
    return ok ? f->out[0] : NULL;
}
]] }
  for _, op in ipairs(ops) do
    local s = op.schema
    local lines = { "\n" .. wrap(public_prototype(op), 4), "{" }
    local more = {}
    for i = 2, s.n_seen do
      more[#more + 1] = "out_" .. s.results[i]
      lines[#lines + 1] = ("    if (out_%s) *out_%s = NULL;"):format(s.results[i], s.results[i])
    end
    for _, l in ipairs(frame_lines(op, "ctx")) do
      lines[#lines + 1] = l
    end
    if #more > 0 then
      lines[#lines + 1] = ("    neap_tensor **const more[] = { %s };"):format(table.concat(more, ", "))
      lines[#lines + 1] = ("    return run_more(&frame, %d, more);"):format(#more)
    elseif #s.results > 1 then
      lines[#lines + 1] = "    return run_more(&frame, 0, NULL);"
    else
      lines[#lines + 1] = "    return run(&frame);"
    end
    lines[#lines + 1] = "}\n"
    out[#out + 1] = table.concat(lines, "\n")
  end
  return table.concat(out)
end

local function grad_ops_h(ops)
  local out = { HEAD, [[
/* np_grad_ops.h - the ops as gradient formulas call them: np_<op>(back, arguments as in neap_<op>). Results belong
 * to the formula's frame. Ops with several results also take an array that gets all of them (NULL: not wanted).
 * Included by op.h. The entries, and the plain functions of internal ops, are declared here too. */
#ifndef NP_GRAD_OPS_H
#define NP_GRAD_OPS_H

]] }
  for _, op in ipairs(ops) do
    out[#out + 1] = "extern const np_op np_op_" .. op.name .. ";\n"
  end
  out[#out + 1] = "\n"
  for _, op in ipairs(ops) do
    if op.internal then out[#out + 1] = wrap(public_prototype(op), 4) .. ";\n" end
  end
  out[#out + 1] = "\n"
  for _, op in ipairs(ops) do
    if not op.base then out[#out + 1] = wrap(formula_prototype(op), 4) .. ";\n" end
  end
  out[#out + 1] = "\n#endif\n"
  return table.concat(out)
end

local function grad_ops_c(ops)
  local out = { HEAD, '#include "ops/op.h"\n' }
  for _, op in ipairs(ops) do
    if not op.base then
      local lines = { "\n" .. wrap(formula_prototype(op), 4), "{" }
      for _, l in ipairs(frame_lines(op, "back->c")) do
        lines[#lines + 1] = l
      end
      if op.schema.n_seen > 1 then
        lines[#lines + 1] = "    neap_tensor *first = np_back_call(back, &frame);"
        lines[#lines + 1] = ("    for (int j = 0; more && j < %d; j++) more[j] = first ? frame.out[j] : NULL;"):format(
          #op.schema.results)
        lines[#lines + 1] = "    return first;"
      else
        lines[#lines + 1] = "    return np_back_call(back, &frame);"
      end
      lines[#lines + 1] = "}\n"
      out[#out + 1] = table.concat(lines, "\n")
    end
  end
  return table.concat(out)
end

local function c_string(text)
  local escaped = text:gsub('[\\"]', "\\%0"):gsub("\n", "\\n"):gsub("%?%?", "?\\?")
  local pieces = {}
  for i = 1, math.max(#escaped, 1), 90 do
    pieces[#pieces + 1] = escaped:sub(i, i + 89)
  end
  for i = 1, #pieces - 1 do -- an escape sequence stays in one piece
    while pieces[i]:match("(\\+)$") and #pieces[i]:match("(\\+)$") % 2 == 1 do
      pieces[i] = pieces[i] .. pieces[i + 1]:sub(1, 1)
      pieces[i + 1] = pieces[i + 1]:sub(2)
    end
  end
  return '"' .. table.concat(pieces, '"\n        "') .. '"'
end

local function registry_c(ops)
  local out = { HEAD, [[
#include "ops/op.h"

extern const int np_n_ops_total; /* for core/base, which does not see op.h */
const int np_n_ops_total = NP_N_OPS;

]] }
  for _, op in ipairs(ops) do
    if op.kernel == op.name then
      for level = 0, 2 do
        out[#out + 1] = ("bool np_cpu_%s_%d(np_frame *f);\n"):format(op.name, level)
      end
    end
  end
  out[#out + 1] = "\nconst np_op *const np_ops[] = {\n"
  for _, op in ipairs(ops) do
    out[#out + 1] = "    &np_op_" .. op.name .. ",\n"
  end
  out[#out + 1] = "};\n\nconst np_kernel np_cpu_kernels[][NP_N_ISA] = {\n"
  for _, op in ipairs(ops) do
    local k = op.kernel
    local row = k and ("np_cpu_%s_0, np_cpu_%s_1, np_cpu_%s_2"):format(k, k, k) or "NULL, NULL, NULL"
    out[#out + 1] = "    { " .. row .. " },\n"
  end
  out[#out + 1] = "};\n\nconst char *const np_op_docs[] = {\n"
  for _, op in ipairs(ops) do
    out[#out + 1] = "    " .. c_string(op.doc) .. ",\n"
  end
  out[#out + 1] = "};\n"
  return table.concat(out)
end

local command, src, dest = ...
if command == "code" and src and dest then
  local ops = read_ops(src)
  write_if_changed(dest .. "/np_opx.h", opx_h(ops))
  write_if_changed(dest .. "/neap_ops.h", ops_h(ops))
  write_if_changed(dest .. "/neap_ops.c", ops_c(ops))
  write_if_changed(dest .. "/np_grad_ops.h", grad_ops_h(ops))
  write_if_changed(dest .. "/np_grad_ops.c", grad_ops_c(ops))
  write_if_changed(dest .. "/np_registry.c", registry_c(ops))
else
  io.stderr:write("usage: gen.lua code SRC_DIR OUT_DIR\n")
  os.exit(2)
end
