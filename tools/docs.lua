--- Writes what people read about Neap from where it is said once.
--
--   lua5.4 tools/docs.lua                 docs/reference.html, library/neap.lua, lua/reference.lua (what ?name shows at
--                                         the prompt), the generated parts of docs/guide.md
--   lua5.4 tools/docs.lua check           writes nothing; names the files that are not up to date, status 1
--
-- Sources: the op entries and their doc comments in core/ops/*.c (read by tools/gen.lua), the `---` comments in
-- lua/**, the rows of lua/help.lua, and NEAP_CODE_MAP in core/neap.h. Each item becomes
--   { name, section, signature, text, example, saves, tags, prototype, op }
-- with names as in lua/help.lua: neap.exp, Tensor:item, nn.Linear, Loader:each, Tensor.shape.
local docs = {}

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("a")
  f:close()
  return text
end

local help = dofile("lua/help.lua")

--- Sections in the order of the reference.
docs.sections = {
  { "tensors", "Tensors", "Making, asking and reading tensors." },
  { "ops", "Ops", "Every op is neap.f(x, ...) and, where a tensor comes first, x:f(...). Saves: what a recorded call "
    .. "keeps for backward; a checkpoint region keeps its inputs instead." },
  { "autograd", "Autograd", "Gradients, hooks, functions of your own." },
  { "contexts", "Contexts", "Each takes its own arguments, then an optional function to run inside." },
  { "checkpoint", "Checkpoint", "What happens inside fn is computed again in backward instead of kept." },
  { "memory", "Memory and measuring", "Scopes, counts, limits, profiles, leaks." },
  { "modules", "Modules", "neap.nn: modules, layers, losses, initialisation." },
  { "optim", "Optimizers", "neap.optim: optimizers, schedules, clipping." },
  { "data", "Data, logs, plots", "neap.data, neap.log, neap.plot, neap.progress, neap.pp." },
  { "files", "Files", "safetensors, idx, whole runs." },
  { "devices", "Devices and process", "neap.cuda, threads, versions, errors, the list of ops." },
}

-- ---- ops ----------------------------------------------------------------------------------------------------

-- The functions of tools/gen.lua that read the sources: everything above its command line.
local function generator()
  local source = read("tools/gen.lua")
  local body = source:match("^(.-)\nlocal command, src, dest = %.%.%.\n")
  assert(body, "tools/docs.lua: the command line of tools/gen.lua is not where it was")
  local names = "read = read, read_ops = read_ops, list_sources = list_sources, split_comments = split_comments, "
    .. "expand = expand, closing = closing, wrap = wrap, public_prototype = public_prototype"
  return assert(load(body .. "\nreturn { " .. names .. " }", "=tools/gen.lua"))()
end

-- name -> the text of the entry between its braces, macros expanded.
local function entry_bodies(gen, dir)
  local bodies = {}
  for _, file in ipairs(gen.list_sources(dir)) do
    local text = gen.expand("\n" .. gen.split_comments(gen.read(file)))
    local pos = 1
    while true do
      local _, stop, name = text:find("%f[%w_]NP_OP%s*%(%s*([%w_]+)%s*%)%s*=%s*{", pos)
      if not stop then break end
      bodies[name] = text:sub(stop, gen.closing(text, stop))
      pos = stop
    end
  end
  return bodies
end

-- ".save = { NP_IN(0), NP_OUT_FOR(1, 0) }" in words.
local function saves_of(op, body)
  if (op.tags .. (op.base and op.base.tags or "")):find("NP_NODIFF") then return "nothing, it has no gradient" end
  if op.tags:find("NP_COMPOSITE") then return "what the ops keep that it consists of" end
  local list = body:match("%.save%s*=%s*(%b{})")
  if not list then return "nothing" end
  local schema, out = op.schema, {}
  local function input(i) return schema.tensors[i + 1] and schema.tensors[i + 1].name or ("input " .. i + 1) end
  local function add(what, index, wanted)
    local name
    if what == "IN" then
      name = input(index)
    else
      name = "the result " .. schema.results[index + 1]
      if index + 1 > schema.n_seen then name = schema.results[index + 1] .. " (computed beside the result)" end
    end
    if #wanted > 0 and #wanted < #schema.tensors then
      name = name .. " if the gradient of " .. table.concat(wanted, " or ") .. " is wanted"
    end
    out[#out + 1] = name
  end
  local plain = list:sub(2, -2):gsub("{%s*NP_SAVE_(%a+)%s*,%s*(%d+)%s*,%s*(%d+)%s*}", "NP_%1_MASK(%2, %3)")
  for what, arguments in plain:gmatch("NP_([A-Z_]+)%s*%(([^)]*)%)") do
    local index, second = arguments:match("^%s*(%d+)%s*,?%s*(%d*)")
    local wanted = {}
    if what:find("_FOR$") then
      wanted[1] = input(tonumber(second))
    elseif what:find("_MASK$") then
      for i = 0, 7 do
        if tonumber(second) >> i & 1 == 1 then wanted[#wanted + 1] = input(i) end
      end
    end
    add(what:match("^(%a+)"), tonumber(index), wanted)
  end
  return #out > 0 and table.concat(out, ", ") or "nothing"
end

local absent = { base = "1", ["dtype?"] = "", ["device?"] = "", ["gen?"] = "" }

local function op_signature(op)
  local positional, options = {}, {}
  for _, a in ipairs(op.schema.args) do
    if a.option then
      options[#options + 1] = a.name .. " =" .. ((a.default or absent[a.kind] or "") ~= ""
        and " " .. (a.default or absent[a.kind]) or "")
    elseif a.kind:match("%?$") or a.default then
      positional[#positional + 1] = ("[%s%s]"):format(#positional > 0 and ", " or "", a.name)
    else
      positional[#positional + 1] = (#positional > 0 and ", " or "") .. a.name
    end
  end
  local text = table.concat(positional)
  if #options > 0 then
    text = ("%s[%s{%s}]"):format(text, #positional > 0 and ", " or "", table.concat(options, ", "))
  end
  local results = table.concat(op.schema.results, ", ", 1, op.schema.n_seen)
  return ("neap.%s(%s) -> %s"):format(op.name, text, results)
end

-- The doc comment without the call it begins with, as running text.
local function op_text(op)
  local text = op.doc:gsub("%s*\n%s*", " ")
  local rest = text:match("^[%w_]+%b()%s*:%s*(.*)$") or text:match("^[%w_]+%b()%s*%->[^:]*:%s*(.*)$")
  return rest or text
end

local function op_items()
  local gen = generator()
  local bodies = entry_bodies(gen, "core/ops")
  local items = {}
  for _, op in ipairs(gen.read_ops("core/ops")) do
    if not op.internal then
      local base = op.base or op
      local tags = {}
      for tag in op.tags:gmatch("NP_([A-Z]+)") do tags[#tags + 1] = tag:lower() end
      items[#items + 1] = {
        name = "neap." .. op.name, section = "ops", signature = op_signature(op), text = op_text(op),
        saves = saves_of(op, bodies[base.name] or ""), tags = tags, op = op, family = op.family,
        prototype = gen.wrap(gen.public_prototype(op), 4),
        method = #op.schema.tensors > 0 and not op.schema.list,
      }
    end
  end
  return items
end

-- ---- Lua files ----------------------------------------------------------------------------------------------

-- Which tables of a file are public under which name. A comment whose text begins with such a name and a bracket
-- ("nn.Linear(in_features, ...)") names itself. head: the comment that opens the file describes it, too. methods:
-- each function is a method of tensors as well.
local lua_sources = {
  { file = "lua/tensor_ext.lua", section = "tensors", owners = { ext = "neap." }, methods = true },
  { file = "lua/checkpoint.lua", section = "checkpoint", owners = { checkpoint = "checkpoint." } },
  { file = "lua/profile.lua", section = "memory", owners = { methods = "Profile:" } },
  { file = "lua/memory.lua", section = "memory", owners = { memory = "neap.memory.", methods = "MemoryProfile:" } },
  { file = "lua/detect_leaks.lua", section = "memory", owners = {} },
  { file = "lua/nn/module.lua", section = "modules", owners = { M = "nn.", Module = "Module:" } },
  { file = "lua/nn/linear.lua", section = "modules", owners = {}, head = true },
  { file = "lua/nn/activation.lua", section = "modules", owners = {} },
  { file = "lua/nn/dropout.lua", section = "modules", owners = {}, head = true },
  { file = "lua/nn/norm.lua", section = "modules", owners = {}, head = true },
  { file = "lua/nn/container.lua", section = "modules", owners = {} },
  { file = "lua/nn/embedding.lua", section = "modules", owners = {}, head = true },
  { file = "lua/nn/loss.lua", section = "modules", owners = {} },
  { file = "lua/nn/init_functions.lua", section = "modules", owners = { init = "nn.init." } },
  { file = "lua/nn/summary.lua", section = "modules", owners = {} },
  { file = "lua/optim/sgd.lua", section = "optim", owners = {}, head = true },
  { file = "lua/optim/adamw.lua", section = "optim", owners = {}, head = true },
  { file = "lua/optim/rmsprop.lua", section = "optim", owners = {}, head = true },
  { file = "lua/optim/adagrad.lua", section = "optim", owners = {}, head = true },
  { file = "lua/optim/lbfgs.lua", section = "optim", owners = {}, head = true },
  { file = "lua/optim/init.lua", section = "optim", owners = { optim = "optim." } },
  { file = "lua/optim/optimizer.lua", section = "optim", owners = { methods = "Optimizer:" } },
  { file = "lua/optim/schedule.lua", section = "optim", owners = { schedule = "optim.schedule." } },
  { file = "lua/data/dataset.lua", section = "data", owners = { methods = "Dataset:" } },
  { file = "lua/data/csv.lua", section = "data", owners = { methods = "CSV:" } },
  { file = "lua/data/fashion_mnist.lua", section = "data", owners = {} },
  { file = "lua/data/loader.lua", section = "data", owners = { methods = "Loader:" } },
  { file = "lua/progress.lua", section = "data", owners = { methods = "Progress:" } },
  { file = "lua/log.lua", section = "data", owners = { log = "neap.log." } },
  { file = "lua/plot.lua", section = "data", owners = { plot = "neap.plot.", methods = "Plot:" } },
  { file = "lua/pp.lua", section = "data", owners = { pp = "neap.pp." } },
  { file = "lua/cuda.lua", section = "devices", owners = {} },
  { file = "lua/state.lua", section = "files", owners = { state = "neap." } },
}

-- Public by place, but for the library's own use.
local not_public = { ["nn.wrap"] = true, ["Module:init"] = true }

local variables = { Module = "m", Optimizer = "opt", Dataset = "dataset", CSV = "csv", Loader = "batches",
  Progress = "bar", Plot = "plot", Tensor = "x", Profile = "report", MemoryProfile = "report" }

-- Blocks of `---` comments: { { texts }, following code line }. One block may hold several `---` lines.
local function comment_blocks(text)
  local blocks, block = {}, nil
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do
    local first = line:match("^%s*%-%-%-%s?(.*)$")
    local more = not first and line:match("^%s*%-%-%s?(.*)$")
    if first then
      block = block or { texts = {} }
      block.texts[#block.texts + 1] = first
    elseif more and block then
      block.texts[#block.texts] = block.texts[#block.texts] .. "\n" .. more
    elseif block then
      block.code = line
      blocks[#blocks + 1] = block
      block = nil
    end
  end
  return blocks
end

-- A text that begins with a call of a public name: name, signature, rest.
local function self_named(text)
  local name = text:match("^([%a]+[%w_.]*)%s*[%(]")
  local root = name and name:match("^%a+")
  if not (root == "neap" or root == "nn" or root == "optim" or root == "data" or root == "checkpoint") then return end
  local call, rest = text:match("^([%w_.]+%b())(.*)$")
  local results, after = rest:match("^%s*%->%s*([^:\n]*)(.*)$")
  if results then call, rest = call .. " -> " .. results, after end
  return name, call, rest:gsub("^%s*:?%s*", "")
end

local function flow(text)
  return (text:gsub("%s*\n%s*", " "):gsub("^%s+", ""):gsub("%s+$", ""))
end

-- LDoc tags become words.
local function untag(text)
  return (text:gsub("\n@param%s+([%w_]+)%s+", "\n%1: "):gsub("\n@return%s+", "\nReturns "))
end

local function lua_items(known)
  local items = {}
  local function add(source, name, signature, text)
    if not_public[name] or known[name] then return end
    known[name] = true
    items[#items + 1] = { name = name, section = source.section, signature = signature, text = flow(untag(text)),
      method = source.methods }
  end
  for _, source in ipairs(lua_sources) do
    local blocks = comment_blocks(read(source.file))
    local head = source.head and blocks[1].texts[1]
    for _, block in ipairs(blocks) do
      local owner, mark, key, arguments = block.code:match("^%s*function%s+([%w_]+)([.:])([%w_]+)%((.-)%)")
      local prefix = owner and source.owners[owner]
      for _, text in ipairs(block.texts) do
        local name, signature, rest = self_named(text)
        if name then
          if head then
            add(source, name, signature, head .. (rest ~= "" and "\n" .. rest or ""))
          else
            add(source, name, signature, rest)
          end
        elseif prefix then
          name = prefix .. key
          if prefix:match(":$") then
            local class = prefix:sub(1, -2)
            signature = ("%s:%s(%s)"):format(variables[class], key, arguments)
          else
            signature = ("%s(%s)"):format(name, mark == ":" and "self, " .. arguments or arguments)
          end
          add(source, name, signature, text)
        end
      end
    end
  end
  return items
end

-- ---- error codes --------------------------------------------------------------------------------------------

--- All error codes in order: { code, meaning, remedy }.
function docs.codes()
  local map = read("core/neap.h"):match("#define NEAP_CODE_MAP%(X%)(.-)\n\n")
  local list = {}
  for code, meaning in map:gmatch('X%([%w_]+, "([^"]+)", "([^"]+)"%)') do
    if code ~= "OK" then list[#list + 1] = { code, meaning, help.remedies[code] } end
  end
  return list
end

-- ---- everything ---------------------------------------------------------------------------------------------

--- All items, in the order of the reference.
function docs.items()
  local known, all = {}, {}
  for _, entry in ipairs(help.order) do
    known[entry.name] = true
    all[#all + 1] = entry
  end
  local from_lua, ops, op_named = lua_items(known), op_items(), {}
  for _, op in ipairs(ops) do op_named[op.op.name] = op end
  for _, item in ipairs(from_lua) do
    local op = op_named[item.name:match("^nn%.(.*)$")] -- nn.nll_loss says no more than the op
    if item.text == "" and op then item.text = op.text end
    all[#all + 1] = item
  end
  for _, op in ipairs(ops) do
    if not known[op.name] then all[#all + 1] = op end
  end
  local place = {}
  for i, s in ipairs(docs.sections) do place[s[1]] = i end
  local order = {}
  for i, item in ipairs(all) do order[item] = assert(place[item.section], item.section) * 100000 + i end
  table.sort(all, function(a, b) return order[a] < order[b] end)
  return all
end

-- ---- the reference ------------------------------------------------------------------------------------------

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local page_head = [[
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Neap reference</title>
<style>
:root { --ink: #1d2330; --dim: #5c6675; --line: #dde2ea; --soft: #f5f7fa; --link: #1f5fae; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe4ec; --dim: #97a2b3; --line: #333b48; --soft: #1d232d; --link: #82b4f5; --page: #151a21 }
}
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page) }
nav { position: fixed; top: 0; bottom: 0; width: 16rem; overflow-y: auto; padding: 1rem; background: var(--soft);
  border-right: 1px solid var(--line); font-size: 14px }
nav summary { cursor: pointer; font-weight: 600; margin-top: .3rem }
nav a { display: block; padding-left: 1rem; overflow: hidden; text-overflow: ellipsis }
main { margin-left: 16rem; padding: 1rem 2rem 4rem; max-width: 62rem }
a { color: var(--link); text-decoration: none }
h1 { margin: 0 0 .5rem } h2 { margin: 2.5rem 0 .3rem; border-bottom: 1px solid var(--line) }
h3 { margin: 1.6rem 0 .2rem; font: 600 16px/1.5 ui-monospace, monospace }
h4 { margin: 1.6rem 0 0; color: var(--dim); font-weight: 600 }
pre, code { font: 14px/1.45 ui-monospace, monospace }
pre { margin: .3rem 0; padding: .45rem .7rem; background: var(--soft); border-radius: 4px; white-space: pre-wrap }
p { margin: .3rem 0 } .more { color: var(--dim); font-size: 14px }
td, th { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line) }
@media (max-width: 50rem) { nav { position: static; width: auto; max-height: 14rem } main { margin: 0; padding: 1rem } }
</style>
</head>
<body>
]]

local function article(out, item)
  local id = escape(item.name)
  out[#out + 1] = ('<h3 id="%s"><a href="#%s">%s</a></h3>\n'):format(id, id, id)
  out[#out + 1] = ("<pre>%s%s</pre>\n"):format(escape(item.signature), item.method
    and "\nx:" .. escape(item.name:sub(6)) .. "(...)" or "")
  out[#out + 1] = ("<p>%s</p>\n"):format(escape(item.text))
  if item.example then out[#out + 1] = ('<pre class="example">%s</pre>\n'):format(escape(item.example)) end
  if item.op then
    out[#out + 1] = ('<p class="more">Saves: %s.%s</p>\n'):format(escape(item.saves), #item.tags > 0
      and " Tags: " .. table.concat(item.tags, ", ") .. "." or "")
    out[#out + 1] = ('<pre class="more">%s</pre>\n'):format(escape(item.prototype))
  end
end

--- The text of docs/reference.html.
function docs.reference(items)
  local out = { page_head, "<nav>\n<b>Neap reference</b>\n" }
  for _, s in ipairs(docs.sections) do
    out[#out + 1] = ('<details><summary><a href="#%s" style="display:inline;padding:0">%s</a></summary>\n'):format(
      s[1], s[2])
    for _, item in ipairs(items) do
      if item.section == s[1] then
        out[#out + 1] = ('<a href="#%s">%s</a>\n'):format(escape(item.name), escape(item.name))
      end
    end
    out[#out + 1] = "</details>\n"
  end
  out[#out + 1] = '<p><a href="#errors" style="padding:0"><b>Error codes</b></a></p>\n</nav>\n<main>\n'
  out[#out + 1] = "<h1>Neap reference</h1>\n<p>Generated by <code>make docs</code> from the sources. Positions and "
    .. "dimensions count from 1 in Lua, negatives from the end; in C from 0. x is a tensor, [brackets] may be left "
    .. "out, {a = 1} is the option table with its defaults.</p>\n"
  for _, s in ipairs(docs.sections) do
    out[#out + 1] = ('<h2 id="%s">%s</h2>\n<p>%s</p>\n'):format(s[1], s[2], escape(s[3]))
    local family
    for _, item in ipairs(items) do
      if item.section == s[1] then
        if item.family ~= family then
          family = item.family
          if family then out[#out + 1] = ("<h4>%s</h4>\n"):format(escape(family)) end
        end
        article(out, item)
      end
    end
  end
  out[#out + 1] = '<h2 id="errors">Error codes</h2>\n<table>\n<tr><th>Code<th>Means<th>What to do</tr>\n'
  for _, c in ipairs(docs.codes()) do
    out[#out + 1] = ('<tr id="%s"><td><code>%s</code><td>%s<td>%s</tr>\n'):format(c[1], c[1], escape(c[2]),
      escape(c[3] or ""))
  end
  out[#out + 1] = "</table>\n</main>\n</body>\n</html>\n"
  return table.concat(out)
end

-- ---- editor stubs -------------------------------------------------------------------------------------------

local number = "number"
local schema_types = {
  T = "neap.Tensor", ["T?"] = "neap.Tensor", N = "neap.Tensor|number", ["N?"] = "neap.Tensor|number",
  ["T*"] = "neap.Tensor[]", int = "integer", float = number, bool = "boolean", dim = "integer", index = "integer",
  base = "integer", dtype = "neap.Dtype", dims = "integer|integer[]", shape = "neap.ShapeLike", device = "string",
  gen = "neap.Generator", str = "string",
}

local function schema_type(kind) return schema_types[kind] or schema_types[(kind:gsub("%?$", ""))] or "any" end

-- Types of the names that signatures use.
local parameter_types = {
  x = "neap.Tensor", t = "neap.Tensor", grad = "neap.Tensor", shape = "neap.ShapeLike", fn = "function",
  pack = "function", unpack = "function", handler = "function", path = "string", folder = "string", name = "string",
  message = "string", tag = "string", dtype = "neap.Dtype", device = "string", n = "integer", dim = "integer",
  seed = "integer", on = "boolean", options = "table", count = "integer", size = "integer|integer[]",
  tensors = "table<string, neap.Tensor>", input = "neap.Tensor", target = "neap.Tensor", logits = "neap.Tensor",
  classes = "neap.Tensor", ids = "neap.Tensor", model = "neap.Module", params = "neap.Tensor[]|table[]",
}
local often_left_out = { dim = true, dims = true, on = true, options = true }
local result_types = {
  tensor = "neap.Tensor", x = "neap.Tensor", t = "neap.Tensor", number = number, integer = "integer",
  string = "string", boolean = "boolean", table = "table", generator = "neap.Generator", hook = "neap.Hook",
  module = "neap.Module", guard = "neap.Guard", group = "neap.Group",
  ["results | guard"] = "any", iterator = "function",
}

-- The parameters of a signature: { { name, optional } }, options last as { "options", true, "{ a?: type }" }.
local function parameters(signature)
  local inner = signature:match("^[^(]*(%b())")
  if not inner then
    local braces = signature:match("^[%w_.:]+(%b{})")
    if not braces then return {} end
    inner = "(" .. braces .. ")"
  end
  inner = inner:sub(2, -2)
  local list = {}
  inner = inner:gsub("%b{}", function(braces)
    local fields = {}
    for part in braces:sub(2, -2):gmatch("[^,]+") do
      local key = part:match("^%s*([%a_][%w_]*)")
      if key then fields[#fields + 1] = key .. "?: any" end
    end
    list.options = "{ " .. table.concat(fields, ", ") .. " }"
    return " options "
  end)
  inner = inner:gsub('"[^"]*"', " text ")
  local optional = 0
  for mark, word, default in inner:gsub("%.%.%.", " ... "):gmatch("([%[%]]?)%s*([%w_.]*)%s*(=?)") do
    if mark == "[" then optional = optional + 1 end
    if mark == "]" then optional = optional - 1 end
    if word == "..." or word:match("^[%a_][%w_]*$") and not word:match("^nil$") then
      list[#list + 1] = { word, optional > 0 or default ~= "" or often_left_out[word] }
    end
  end
  -- defaults such as `p = 0.5` or `what|what` leave words that are no names
  local seen, clean = {}, { options = list.options }
  for _, p in ipairs(list) do
    if not seen[p[1]] then
      seen[p[1]] = true
      clean[#clean + 1] = p
    end
  end
  return clean
end

local lua_words = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true until
  while]]):gmatch("%a+") do
  lua_words[word] = true
end

local function results_of(signature)
  local text = signature:match("%->%s*(.-)%s*$")
  if not text then return nil end
  if result_types[text] then return result_types[text] end
  local list = {}
  for word in text:gmatch("[^,]+") do
    word = word:match("^%s*(.-)%s*$")
    list[#list + 1] = word == "..." and "..." or result_types[word] or "any"
  end
  return table.concat(list, ", ")
end

local function comment(out, item)
  out[#out + 1] = ("--- `%s`\n---\n"):format(item.signature)
  for line in (item.text .. "\n"):gmatch("([^\n]*)\n") do out[#out + 1] = "--- " .. line .. "\n" end
  if item.saves then out[#out + 1] = "---\n--- Saves for backward: " .. item.saves .. ".\n" end
  if item.example then
    out[#out + 1] = "--- ```lua\n--- " .. item.example:gsub("\n", "\n--- ") .. "\n--- ```\n"
  end
end

local function stub_function(out, target, list, results)
  local names = {}
  for _, p in ipairs(list) do
    if not lua_words[p[1]] then
      names[#names + 1] = p[1]
      local kind = p[3] or p[1] == "options" and list.options or parameter_types[p[1]] or "any"
      out[#out + 1] = ("---@param %s%s %s\n"):format(p[1], p[2] and p[1] ~= "..." and "?" or "", kind)
    end
  end
  if results then out[#out + 1] = "---@return " .. results .. "\n" end
  out[#out + 1] = ("function %s(%s) end\n\n"):format(target, table.concat(names, ", "))
end

local function op_parameters(op, as_method)
  local list, fields = {}, {}
  for i, a in ipairs(op.schema.args) do
    if a.option then
      fields[#fields + 1] = ("%s?: %s"):format(a.name, schema_type(a.kind))
    elseif not (as_method and i == 1) then
      list[#list + 1] = { a.name, a.kind:match("%?$") ~= nil or a.default ~= nil, schema_type(a.kind) }
    end
  end
  if #fields > 0 then
    list[#list + 1] = { "options", true }
    list.options = "{ " .. table.concat(fields, ", ") .. " }"
  end
  return list
end

local function op_results(op)
  local list = {}
  for i = 1, op.schema.n_seen do list[i] = "neap.Tensor" end
  local text = table.concat(list, ", ")
  return op.tags:find("NP_TRUTH") and "boolean|neap.Tensor" or text
end

local stub_head = [[
---@meta
-- Generated by make docs. For editors: point the language server's library at this folder.

---@alias neap.Dtype "float32"|"float64"|"float16"|"bfloat16"|"int64"|"int32"|"int8"|"uint8"|"bool"
---@alias neap.ShapeLike integer|integer[]|neap.Shape

---@class neap.Shape: integer[]
---@class neap.Guard
local Guard = {}
---@class neap.Group
---@overload fun(fn: function, ...): any
local Group = {}
---@class neap.Hook
local Hook = {}
---@class neap.Generator
local Generator = {}
---@class neap.Dataset
local Dataset = {}
---@class neap.CSV
local CSV = {}
---@class neap.Loader
local Loader = {}
---@class neap.Progress
local Progress = {}
---@class neap.Profile
local Profile = {}
---@class neap.MemoryProfile
local MemoryProfile = {}
---@class neap.Plot
local Plot = {}
---@class neap.Log
local Log = {}

]]

-- Classes with fields, and what the fields are.
local field_types = {
  ["Tensor.shape"] = "neap.Shape", ["Tensor.dtype"] = "neap.Dtype", ["Tensor.device"] = "string",
  ["Tensor.ndim"] = "integer", ["Tensor.name"] = "string?", ["Tensor.requires_grad"] = "boolean",
  ["Tensor.grad"] = "neap.Tensor?", ["Tensor.is_leaf"] = "boolean", ["Tensor.grad_fn"] = "neap.Node?",
  ["Node.name"] = "string", ["Node.next"] = "table", ["Node.saved"] = "neap.Tensor[]", ["Node.meta"] = "table",
  ["FunctionContext.needs_input_grad"] = "boolean[]", ["Module.training"] = "boolean", ["Optimizer.lr"] = "number",
  ["Optimizer.steps"] = "integer", ["Optimizer.groups"] = "table[]", ["Op.name"] = "string", ["Op.schema"] = "string",
  ["Op.tags"] = "string[]", ["Op.doc"] = "string", ["neap.version"] = "string", ["neap.ops"] = "table<string, neap.Op>",
  ["checkpoint.CheckpointPolicy"] = "table<string, string>",
  ["neap.dots"] = "lightuserdata", ["neap.newaxis"] = "lightuserdata",
}
local operators = {
  add = "neap.Tensor|number", sub = "neap.Tensor|number", mul = "neap.Tensor|number", div = "neap.Tensor|number",
  idiv = "neap.Tensor|number", mod = "neap.Tensor|number", pow = "neap.Tensor|number", band = "neap.Tensor",
  bor = "neap.Tensor", bxor = "neap.Tensor", unm = false, bnot = false, len = false,
}

local function stub_classes(out, items)
  local classes = { "Tensor", "Node", "FunctionContext", "Module", "Optimizer", "Op" }
  for _, name in ipairs(classes) do
    out[#out + 1] = "---@class neap." .. name .. "\n"
    for _, item in ipairs(items) do
      if item.name:match("^" .. name .. "%.") then
        out[#out + 1] = ("---@field %s %s %s\n"):format(item.name:match("%.(.*)$"), field_types[item.name] or "any",
          (item.text:gsub("\n", " ")))
      end
    end
    if name == "Tensor" then
      local order = {}
      for op in pairs(operators) do order[#order + 1] = op end
      table.sort(order)
      for _, op in ipairs(order) do
        out[#out + 1] = operators[op] and ("---@operator %s(%s): neap.Tensor\n"):format(op, operators[op])
          or ("---@operator %s: %s\n"):format(op, op == "len" and "integer" or "neap.Tensor")
      end
    elseif name == "Module" then
      out[#out + 1] = "---@overload fun(...): any\n"
    end
    out[#out + 1] = ("local %s = {}\n\n"):format(name)
  end
end

-- Tables that can be called.
local callable = {
  checkpoint = "fn: function|table, options?: table, ...", ["neap.pp"] = "value: any, options?: table",
}

--- The text of library/neap.lua.
function docs.stubs(items)
  local out = { stub_head }
  stub_classes(out, items)
  out[#out + 1] = "---@class neap\nlocal neap = {}\n"
  for _, part in ipairs({ "nn", "nn.init", "optim", "optim.schedule", "data", "log", "plot", "memory", "cuda" }) do
    out[#out + 1] = ("neap.%s = {}\n"):format(part)
  end
  local parts = { nn = true, optim = true, data = true, checkpoint = true }
  for _, item in ipairs(items) do
    local name = item.name
    local root = name:match("^%a+")
    local target = parts[root] and "neap." .. name or name
    local is_call = item.signature:match("^[%w_.:]+%s*[%({]") ~= nil
    if item.op then
      comment(out, item)
      stub_function(out, target, op_parameters(item.op, false), op_results(item.op))
      if item.method then
        out[#out + 1] = ("--- `neap.%s` as a method.\n"):format(item.op.name)
        stub_function(out, "Tensor:" .. item.op.name, op_parameters(item.op, true), op_results(item.op))
      end
    elseif callable[name] then
      comment(out, item)
      out[#out + 1] = ("---@class neap.%s\n---@overload fun(%s): any\n%s = {}\n\n"):format(name:match("[^.]+$"),
        callable[name], name:match("^neap%.") and name or "neap." .. name)
    elseif field_types[name] and name:match("^%l") then
      comment(out, item)
      out[#out + 1] = ("---@type %s\n%s = nil\n\n"):format(field_types[name], target)
    elseif is_call then
      comment(out, item)
      local list = parameters(item.signature)
      stub_function(out, target, list, results_of(item.signature))
      if item.method then
        table.remove(list, 1)
        out[#out + 1] = ("--- `%s` as a method.\n"):format(name)
        stub_function(out, "Tensor:" .. name:sub(6), list, results_of(item.signature))
      end
    end
  end
  out[#out + 1] = "return neap\n"
  return table.concat(out)
end

-- ---- help at the prompt -----------------------------------------------------------------------------------------

local function quoted(text) return (("%q"):format(text):gsub("\\\n", "\\n")) end

--- The text of lua/reference.lua.
function docs.prompt(items)
  local out = { "--- What ?name shows at the prompt. Generated by make docs from the sources; do not edit.\n"
    .. "-- luacheck: no max line length\nreturn {\n  sections = {\n" }
  for _, s in ipairs(docs.sections) do
    out[#out + 1] = ("    { %s, %s, %s },\n"):format(quoted(s[1]), quoted(s[2]), quoted(s[3]))
  end
  out[#out + 1] = "  },\n  codes = {\n"
  for _, c in ipairs(docs.codes()) do
    out[#out + 1] = ("    [%s] = { %s, %s },\n"):format(quoted(c[1]), quoted(c[2]), quoted(c[3] or ""))
  end
  out[#out + 1] = "  },\n  items = {\n"
  for _, item in ipairs(items) do
    out[#out + 1] = "    {\n"
    for _, key in ipairs({ "name", "section", "signature", "text", "example", "saves" }) do
      if item[key] then out[#out + 1] = ("      %s = %s,\n"):format(key, quoted(item[key])) end
    end
    out[#out + 1] = item.method and "      method = true,\n    },\n" or "    },\n"
  end
  out[#out + 1] = "  },\n}\n"
  return table.concat(out)
end

-- ---- generated parts of the guide -----------------------------------------------------------------------------

local function cell(text) return (text:gsub("|", "\\|")) end

local guide_parts = {}

--- What each differentiable op saves, grouped by what it is.
function guide_parts.saves(items)
  local groups, order = {}, {}
  for _, item in ipairs(items) do
    if item.op and not item.op.base and not item.saves:find("no gradient") then
      if not groups[item.saves] then
        groups[item.saves] = {}
        order[#order + 1] = item.saves
      end
      table.insert(groups[item.saves], "`" .. item.op.name .. "`")
    end
  end
  table.sort(order, function(a, b) return #groups[a] > #groups[b] or #groups[a] == #groups[b] and a < b end)
  local out = { "| an op keeps for backward | ops |\n|---|---|\n" }
  for _, saves in ipairs(order) do
    out[#out + 1] = ("| %s | %s |\n"):format(cell(saves), table.concat(groups[saves], " "))
  end
  return table.concat(out)
end

--- The catalogue of error codes.
function guide_parts.errors()
  local out = { "| code | means | what to do |\n|---|---|---|\n" }
  for _, c in ipairs(docs.codes()) do
    out[#out + 1] = ("| `%s` | %s | %s |\n"):format(c[1], cell(c[2]), cell(c[3] or ""))
  end
  return table.concat(out)
end

--- A guide with its generated parts made anew: between "<!-- generated: NAME -->" and "<!-- end -->".
function docs.guide(items, text)
  return (text:gsub("(<!%-%- generated: (%a+) %-%->\n).-(<!%-%- end %-%->)", function(head, name, tail)
    local part = guide_parts[name] or error("docs/guide.md: no generated part is called " .. name)
    return head .. part(items) .. tail
  end))
end

--- path -> the text it should have.
function docs.files()
  local items = docs.items()
  return {
    ["docs/reference.html"] = docs.reference(items),
    ["library/neap.lua"] = docs.stubs(items),
    ["lua/reference.lua"] = docs.prompt(items),
    ["docs/guide.md"] = docs.guide(items, read("docs/guide.md")),
  }
end

--- The paths whose text is not what the sources say, sorted.
function docs.stale()
  local list = {}
  for path, text in pairs(docs.files()) do
    local f = io.open(path, "rb")
    local now = f and f:read("a")
    if f then f:close() end
    if now ~= text then list[#list + 1] = path end
  end
  table.sort(list)
  return list
end

if ... == "tools.docs" then return docs end

local stale = docs.stale()
if ... == "check" then
  for _, path in ipairs(stale) do print(path .. " is not up to date: run make docs") end
  os.exit(#stale == 0)
end
local texts = docs.files()
os.execute("mkdir -p docs library")
for _, path in ipairs(stale) do
  local f = assert(io.open(path, "wb"))
  assert(f:write(texts[path]))
  assert(f:close())
end
