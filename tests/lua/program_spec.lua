--- The `neap` program in subprocesses: options, arguments, exit codes, errors, the prompt.
local neap_program = os.getenv "NEAP_PROGRAM" or "build/neap"
if neap_program:sub(1, 1) ~= "/" then
  local pipe = assert(io.popen "pwd")
  neap_program = pipe:read "l" .. "/" .. neap_program
  pipe:close()
end

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Runs a shell command; stdout, stderr and the exit code.
local function shell(command, input)
  local err_path, in_path = os.tmpname(), os.tmpname()
  local file = assert(io.open(in_path, "wb"))
  file:write(input or "")
  file:close()
  local pipe = assert(io.popen(("{ %s ; } <%s 2>%s ; echo \"<$?>\""):format(command, in_path, err_path)))
  local out = pipe:read "a"
  pipe:close()
  local err_file = assert(io.open(err_path, "rb"))
  local err = err_file:read "a"
  err_file:close()
  os.remove(err_path)
  os.remove(in_path)
  local text, code = out:match "^(.*)<(%d+)>\n$"
  return text, err, tonumber(code)
end

local function neap(arguments, input) return shell(quoted(neap_program) .. " " .. arguments, input) end

local function with_file(name, text, f)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. quoted(folder)))
  local file = assert(io.open(folder .. "/" .. name, "wb"))
  file:write(text)
  file:close()
  local ok, err = pcall(f, folder .. "/" .. name, folder)
  os.execute("rm -r " .. quoted(folder))
  if not ok then error(err, 0) end
end

describe("options", function()
  it("-e runs code", function()
    assert.same({ "3\n", "", 0 }, { neap [[-e 'print(1 + 2)']] })
    assert.equal("ab\n", (neap [[-e 'io.write("a")' -e 'print("b")']]))
    assert.equal("x\n", (neap [[-e'print "x"']]))
  end)

  it("-v shows the version", function()
    local out, _, code = neap "-v"
    assert.is_truthy(out:find "^Neap %d+%.%d+%.%d+ %(Lua 5%.4")
    assert.equal(0, code)
  end)

  it("-l loads a library into a global", function()
    assert.equal("table\n", (neap [[-l neap -e 'print(type(neap))']]))
    assert.equal("table\tnil\n", (neap [[-l n=neap -e 'print(type(n), neap)']]))
  end)

  it("-E ignores LUA_INIT and LUA_PATH; without it they count", function()
    local command = "LUA_INIT='print(1)' " .. quoted(neap_program)
    assert.equal("1\n2\n", (shell(command .. " -e 'print(2)'")))
    assert.equal("2\n", (shell(command .. " -E -e 'print(2)'")))
  end)

  it("--help shows the usage, --version the version", function()
    local out, err, code = neap "--help"
    assert.same({ "", 0 }, { err, code })
    assert.is_truthy(out:find("usage: neap", 1, true))
    assert.same({ (neap "-v"), "", 0 }, { neap "--version" })
  end)

  it("an unknown option is refused with the usage", function()
    for _, bad in ipairs { "-x", "-vx", "--halp", "-e" } do
      local out, err, code = neap(bad)
      assert.equal("", out)
      assert.equal(1, code)
      assert.is_truthy(err:find("usage: neap", 1, true), bad)
    end
  end)
end)

describe("scripts", function()
  it("run from a file with arguments", function()
    with_file("a.lua", "print(#arg, arg[1], arg[2], ...) print(arg[0]:match('[^/]+$'))", function(path)
      assert.same({ "2\tx\ty z\tx\ty z\na.lua\n", "", 0 }, { neap(quoted(path) .. " x 'y z'") })
    end)
  end)

  it("run from stdin, with and without -", function()
    assert.equal("5\n", (neap("", "print(5)")))
    assert.equal("1\ta\n", (neap("- a", "print(#arg, ...)")))
  end)

  it("-- ends the options", function()
    with_file("-e", "print 'named -e'", function(_, folder)
      assert.equal("named -e\n", (shell("cd " .. quoted(folder) .. " && " .. quoted(neap_program)
        .. " -- -e")))
    end)
  end)

  it("have no name of Neap's set", function()
    assert.equal("nil\tnil\tnil\tnil\tnil\n", (neap [[-e 'print(neap, nn, optim, data, checkpoint)']]))
  end)

  it("exit with what os.exit says, and 1 after an error", function()
    assert.equal(3, select(3, neap [[-e 'os.exit(3)']]))
    assert.equal(0, select(3, neap [[-e 'os.exit(true)']]))
    local out, err, code = neap [[-e 'local t = nil; print(t.x)']]
    assert.equal("", out)
    assert.equal(1, code)
    assert.is_truthy(err:find "^neap: %(command line%):1: attempt to index a nil value")
    assert.equal(1, select(3, neap "/nowhere/at/all.lua"))
    assert.equal(1, select(3, neap [[-e 'x = = 1']]))
  end)

  it("errors show the frames of the user alone", function()
    with_file("bad.lua", [[
local neap = require "neap"
local function inner() local y = neap.nn.Linear(2, 2)(neap.ones(1, 3)) return y end
local function outer() local y = inner() return y end
outer()
]], function(path)
      local _, err, code = neap(quoted(path))
      assert.equal(1, code)
      assert.is_truthy(err:find("bad.lua:2: ", 1, true), err)
      assert.is_truthy(err:find("[E-SHAPE]", 1, true), err)
      assert.is_truthy(err:find("bad.lua:3: ", 1, true), err)
      assert.is_truthy(err:find("bad.lua:4: in main chunk", 1, true), err)
      assert.is_nil(err:find("linear.lua", 1, true), err)
      assert.is_nil(err:find("[C]", 1, true), err)
    end)
  end)

  it("a part of Neap that is not named is explained", function()
    local _, err = neap [[-e 'print(neap.ones(2))']]
    assert.is_truthy(err:find('(global \'neap\'); a script begins with: local neap = require "neap"\n', 1, true), err)
    _, err = neap [[-e 'local m = nn.Linear(1, 2)']]
    assert.is_truthy(err:find('local neap = require "neap"; local nn = neap.nn\n', 1, true), err)
    _, err = neap [[-e 'other.x = 1']]
    assert.is_nil(err:find("require", 1, true))
  end)

  it("errors inside modules say in which", function()
    local _, err = neap [[-e 'local neap = require "neap"
      local nn = neap.nn
      local inner = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
      nn.Sequential(nn.Tanh(), inner)(neap.ones(1, 4))']]
    assert.is_truthy(err:find("in Sequential.2.2 (Linear) [E-SHAPE]", 1, true), err)
    assert.equal(1, select(2, err:gsub("in Sequential", "")))
  end)

  it("error objects with __tostring are shown, others named by type", function()
    local _, err = neap [[-e 'error(setmetatable({}, {__tostring = function() return "my error" end}))']]
    assert.equal("neap: my error\n", err)
    _, err = neap [[-e 'error({})']]
    assert.is_truthy(err:find("error object is a table value", 1, true))
  end)

  it("warnings are shown", function()
    local _, err = neap [[-e 'warn("look ", "here")']]
    assert.equal("warning: look here\n", err)
  end)

  it("a neap.lua of the user's is named, and does not shadow the module", function()
    with_file("neap.lua", "error 'not this one'", function(_, folder)
      local out, err, code = shell("cd " .. quoted(folder) .. " && " .. quoted(neap_program)
        .. [[ -e 'print(require("neap").ones(1):item())']])
      assert.same({ "1.0\n", 0 }, { out, code })
      assert.is_truthy(err:find("./neap.lua", 1, true), err)
    end)
  end)

  it("coroutines behave as Lua's", function()
    local out, err = neap [[-e '
      local co = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) error("x" .. b) end)
      print(co(1)) print(pcall(co, 2))
      print(coroutine.resume(coroutine.create(function(...) return select("#", ...), ... end), 1, nil))
      print(coroutine.resume(coroutine.running()))
      print(pcall(coroutine.resume, 1))']]
    assert.equal("", err)
    local lines = {}
    for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
    assert.equal("2", lines[1])
    assert.is_truthy(lines[2]:find "^false\t.*x2$")
    assert.equal("true\t2\t1\tnil", lines[3])
    assert.is_truthy(lines[4]:find "^false\tcannot resume non%-suspended coroutine")
    assert.is_truthy(lines[5]:find "coroutine expected")
  end)

  it("an interrupt of each of two lines, one soon after the other, keeps the session", function()
    local send = [[io.popen("kill -INT $PPID"):close() ]]
    local loop = send .. "while true do end\n"
    local out, err, status = neap("-i", loop .. loop .. "print('still ' .. 'here')\n")
    assert.equal(0, status)
    assert.equal(2, select(2, err:gsub("interrupted!", "")))
    assert.is_truthy(out:find("still here", 1, true), out)
  end)

  it("an interrupt never comes between a guard and its <close>: no gradient mode or scope stays in force", function()
    local later = "os.execute('p=$PPID; (sleep 0.1; kill -INT $p) &') "
    local input = ""
    for _ = 1, 4 do
      input = input .. later .. "while true do local _ <close> = neap.no_grad() end\n"
        .. later .. "while true do local _ <close> = neap.scope() local x = neap.ones(3):exp() end\n"
        .. "print('now', neap.is_grad_enabled(), neap.memory_stats().scopes)\n"
    end
    local out, err, status = neap("-i", input)
    assert.equal(0, status)
    assert.equal(4, select(2, out:gsub("now\ttrue\t0\n", "")), out .. err)
  end)

  it("SIGINT stops a loop, also inside a coroutine, with exit code 1", function()
    for _, code in ipairs {
      "while true do end",
      "coroutine.wrap(function() while true do end end)()",
      "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
      "coroutine.wrap(function() while true do pcall(function() while true do end end) end end)()",
      "local function f() while true do end end local function g() while true do pcall(f) end end "
        .. "while true do pcall(coroutine.wrap(g)) end",
    } do
      local started = os.tmpname()
      os.remove(started)
      local script = ("io.open(%q, 'w'):close() %s"):format(started, code)
      local wait = ("while kill -0 $pid && ! [ -e %s ]; do sleep 0.1; done; sleep 0.1"):format(started)
      local _, err, status = shell(("%s -e %s & pid=$!; %s; kill -INT $pid; wait $pid")
        :format(quoted(neap_program), quoted(script), wait))
      os.remove(started)
      assert.equal(1, status, code)
      assert.is_truthy(err:find("interrupted!", 1, true), err)
    end
  end)
end)

describe("the prompt", function()
  local function prompt(input)
    local out, err = neap("-i", input)
    return out, err
  end

  it("echoes expressions, unless they end in a semicolon", function()
    local out, err = prompt "1 + 1\n'a', nil\n5;\n{1, x = 2}\n"
    assert.equal("", err)
    assert.is_truthy(out:find("> 2\n", 1, true))
    assert.is_truthy(out:find("> a\tnil\n", 1, true))
    assert.is_nil(out:find("5\n", 1, true))
    assert.is_truthy(out:find("{1, x = 2}", 1, true))
  end)

  it("reads on until a chunk is complete", function()
    local out = prompt "for i = 1, 2 do\n\nprint(i * 10)\nend\n"
    assert.is_truthy(out:find("10\n20\n", 1, true))
    local sum, err = prompt "1 +\n41\nx = 6 *\n7\nx\n"
    assert.equal("", err)
    assert.equal(2, select(2, sum:gsub("> 42\n", "")))
  end)

  it("keeps locals, and says so once", function()
    local out, err = prompt "local x = 41\nx + 1\nlocal y, z = 1, 2; local w = y + z\nw\n"
    assert.equal("", err)
    assert.is_truthy(out:find("42\n", 1, true))
    assert.is_truthy(out:find("> 3\n", 1, true))
    assert.equal(1, select(2, out:gsub("kept as session variable", "")))
  end)

  it("keeps constants, and says what becomes of <close>", function()
    local out, err = prompt "local k <const> = 5\nk\nlocal g <close> = neap.no_grad()\nneap.is_grad_enabled()\n"
    assert.equal("", err)
    assert.is_truthy(out:find("> 5\n", 1, true))
    assert.is_truthy(out:find("local g <close>: closed at the end of the line", 1, true))
    assert.is_truthy(out:find("> true\n", 1, true))
  end)

  it("names its own line in errors, not the library's", function()
    for _, line in ipairs { "neap.nn.Linear(2, 2)(neap.ones(1, 3))", "return nn.Linear(2, 2)(neap.ones(1, 3))",
      "neap.onse(2)", "optim.SGD({})", "data.loader(1)", "neap.add(neap.ones(1), nil)" } do
      local _, err = prompt(line .. "\n")
      assert.equal("stdin:1: ", err:sub(1, 9), err)
    end
  end)

  it("answers exit, quit and help", function()
    local out, err = prompt "exit\nquit()\nhelp\n"
    assert.equal("", err)
    assert.equal(2, select(2, out:gsub("Ctrl%-D leaves %(or", "")))
    assert.is_truthy(out:find("%?name   help for"))
    assert.is_truthy(prompt "exit = 7\nexit\n":find("> 7\n", 1, true))
  end)

  it("shows parts and objects readably", function()
    local out = prompt "neap\nnn\ncheckpoint\nneap.plot\nneap.log\nneap.plot.line{1, 2}\ndata\n"
      .. "neap.ops\nneap.progress(3)\n"
    assert.is_nil(out:find("table: 0x", 1, true), out)
    assert.is_nil(out:find("function: 0x", 1, true), out)
  end)

  it("refuses names that were never defined, with the nearest one", function()
    local _, err = prompt "count = 3\nconut\n"
    assert.is_truthy(err:find("the name 'conut' is not defined; did you mean 'count'?", 1, true), err)
    _, err = prompt "b = 1\na\n"
    assert.is_nil(err:find("did you mean", 1, true), err)
    local _, quiet = prompt "value = nil\nprint(value)\n"
    assert.equal("", quiet)
  end)

  it("has neap, nn, optim, data and checkpoint ready", function()
    local out, err = prompt "neap.ones(2):sum():item()\n#nn.Linear(2, 3):parameters()\ntype(optim.AdamW)\n"
    assert.equal("", err)
    assert.is_truthy(out:find("> 2.0\n", 1, true))
    assert.is_truthy(out:find("> 2\n", 1, true))
    assert.is_truthy(out:find("> function\n", 1, true))
  end)

  it("goes on after an error and shows all of it with .bt", function()
    local out, err = prompt "error 'boom'\n1 + 1\n.bt\n"
    assert.is_truthy(err:find("boom", 1, true))
    assert.is_truthy(out:find("> 2\n", 1, true))
    assert.is_truthy(out:find("[C]", 1, true))
  end)

  it("?name shows help for ops, layers and functions", function()
    local out = prompt "?softplus\n?nn.Linear\n?optim.clip_grad_norm_\n?nothing_of_the_kind\n?\n"
    assert.is_truthy(out:find("neap.softplus(x) -> y\n", 1, true), out)
    assert.is_truthy(out:find("in_features, out_features", 1, true), out)
    local more = prompt("?nn.cross_entropy\n?optim.AdamW\n?neap\n?nn\n?neap.checkpoint\n?e-shape\n"
      .. "t = neap.ones(1)\n?t:item\n")
    for _, text in ipairs { 'reduction = "mean"', "beta1 = 0.9", "neap.matmul", "nn.Embedding", "checkpoint(fn, {",
      "E-SHAPE: shapes do not fit", "x:item([i, ...]) -> number" } do
      assert.is_truthy(more:find(text, 1, true), text)
    end
    assert.is_truthy(out:find("clip_grad_norm_(params, max_norm", 1, true), out)
    assert.is_truthy(out:find("nothing is known about", 1, true), out)
    assert.is_truthy(prompt("?long\n"):find('x:to("int64")', 1, true))
  end)

  it("completes globals, fields and methods", function()
    local complete
    local lines = { "x = require('neap').ones(2)", "layer = nn.Linear(1, 1)" }
    require "neap.repl" {
      line = function() return table.remove(lines, 1) end, history = function() end,
      call = function(f, ...) return pcall(f, ...) end, traceback = function() end,
      complete = function(f) complete = f end,
    }
    for text, wanted in pairs { ["neap.matm"] = "neap.matmul", ["x:tota"] = "x:totable",
      ["x.requires_g"] = "x.requires_grad", ["nn.Embed"] = "nn.Embedding", ["lay"] = "layer",
      ["layer.wei"] = "layer.weight", ["string.rep"] = "string.rep",
      ["layer:named_p"] = "layer:named_parameters", ["optim.AdamW"] = "optim.AdamW", ["loc"] = "local" } do
      assert.equal(wanted, complete(text)[1], text)
    end
    assert.same({ "neap.zeros", "neap.zeros", "neap.zeros_like" }, complete "neap.zeros")
    assert.same({}, complete "no_such.thing")
  end)

  it("leaves the globals as they are", function()
    local out = prompt "x = 1\n_G.x\nrawget(_G, 'neap')\n"
    assert.is_truthy(out:find("> nil\n> nil\n", 1, true), out)
  end)
end)
