--- The op of CONTRIBUTING.md compiles as it is printed there, and tests name an op that does not exist.
local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

--- Whether a command succeeds, what it printed and its status. A sanitizer is not for the compiler, and the shell that
-- popen starts under one has a status of its own: so the command's is printed.
local function run(command)
  local p = assert(io.popen("unset LD_PRELOAD; { " .. command .. " ; } 2>&1; s=$?; echo; echo status $s"))
  local text, status = p:read("a"):match("^(.-)%s*status (%d+)%s*$")
  p:close()
  return status == "0", text, tonumber(status)
end

describe("CONTRIBUTING.md", function()
  it("shows an op that compiles at every CPU level, without a warning", function()
    local block = assert(read("CONTRIBUTING.md"):match("\n```c\n(.-)\n```"), "no C block")
    local folder = os.tmpname()
    os.remove(folder)
    assert.is_true(run(("mkdir -p %s/ops %s/gen && cp core/ops/*.c %s/ops"):format(folder, folder, folder)))
    local file = assert(io.open(folder .. "/ops/binary.c", "ab"))
    file:write("\n", block, "\n")
    file:close()
    local ok, text = run(("lua5.4 tools/gen.lua code %s/ops %s/gen"):format(folder, folder))
    for level, march in ipairs { "x86-64", "x86-64-v3", "x86-64-v4" } do
      if not ok then break end
      ok, text = run(("gcc -std=gnu11 -Wall -Wextra -Wpedantic -Werror -march=%s -DNP_ISA=%d -Icore -I%s/gen "
        .. "-fsyntax-only %s/ops/binary.c"):format(march, level - 1, folder, folder))
    end
    local header = read(folder .. "/gen/neap_ops.h")
    run("rm -r " .. folder)
    assert.is_true(ok, text)
    assert.is_truthy(header:find("neap_tensor *neap_hypot1(neap_ctx *ctx, neap_tensor *a, neap_tensor *b);", 1, true))
  end)
end)

describe("NEAP_TEST_OP", function()
  local build = os.getenv "NEAP_BUILD" or "build"
  for _, program in ipairs { "test_ops", "test_ops_grad" } do
    local path = build .. "/tests/" .. program
    it("with an unknown name makes " .. program .. " fail and say so", function()
      local file = io.open(path, "rb")
      if not file then return pending(path .. " is not built") end
      file:close()
      local ok, text, status = run("NEAP_TEST_OP=no_such_op " .. path)
      assert.is_falsy(ok)
      assert.equal(1, status)
      assert.is_truthy(text:find("no op is called 'no_such_op'", 1, true), text)
    end)
  end
end)
