--- Runs every C test program and every Lua spec, and adds up.
--
--   lua5.4 tests/run.lua BUILD [asan|tsan]
--   NEAP_FORCE_GC=recompute|everywhere lua5.4 tests/run.lua BUILD [asan]     specs of checkpoints alone, with the
--                                            collector run at every op of a recompute, or at every op at all
--
-- The Lua specs run a second time on the emulated CUDA device: it is the device of whatever names none. Their long
-- loops are shorter then (NEAP_TEST_STEPS). NEAP_TEST_DEVICE=cudaemu: this alone, and the tests that name it. Under a
-- sanitizer it is not run unless asked for so. NEAP_TEST_DEVICE=cuda: the same on a GPU.
--
-- NEAP_TEST_SPECS: these specs alone, by their names without _spec. NEAP_TEST_JOBS: so many programs side by side (as
-- many as there are CPUs).
-- NEAP_TEST_LUA, NEAP_TEST_CLUA: where Lua finds what busted needs, if not where it looks.
--
-- One line per program, the whole output of those that fail, and "N passed, N failed" as the last line. The exit
-- status is 1 when anything failed or nothing ran. A program that dies counts its missing tests as failed.

local build, sanitizer = ...
build = build or "build"
local force_gc, only_device = os.getenv "NEAP_FORCE_GC", os.getenv "NEAP_TEST_DEVICE"
local passed, failed, skipped = 0, 0, 0
local on_device = {} -- name -> { passed, failed }

local function lines_of(command)
  local p <close> = assert(io.popen(command))
  local list = {}
  for line in p:lines() do
    list[#list + 1] = line
  end
  return list
end

--- Runs {command =, finish = function(job, output, how)} side by side, and finishes them in their order. how: nil when
-- the status was 0.
local function run_all(list, jobs)
  local dir = lines_of("mktemp -d")[1]
  for i, job in ipairs(list) do
    local script <close> = assert(io.open(("%s/%d"):format(dir, i), "w"))
    script:write(job.command, "\n")
  end
  local each = ("sh %s/{} >%s/{}.out 2>&1 </dev/null; echo {} $?"):format(dir, dir)
  local p <close> = assert(io.popen(("seq %d | xargs -P %d -I{} sh -c '%s'"):format(#list, jobs, each)))
  local done, turn = {}, 1
  for line in p:lines() do
    local i, status = line:match "^(%d+) (%d+)$"
    done[tonumber(i)] = tonumber(status)
    while done[turn] do
      local how = done[turn] > 128 and "signal " .. done[turn] - 128 or "status " .. done[turn]
      local output = lines_of(("cat %s/%d.out"):format(dir, turn))
      list[turn]:finish(output, done[turn] ~= 0 and how or nil)
      turn = turn + 1
    end
  end
  os.execute("rm -r " .. dir)
  assert(turn > #list, "not all programs were run")
end

local function report(name, n_passed, n_failed, n_skipped, output, note)
  passed, failed, skipped = passed + n_passed, failed + n_failed, skipped + n_skipped
  io.write(("%-28s %5d passed"):format(name, n_passed))
  if n_failed > 0 then io.write((", %d FAILED"):format(n_failed)) end
  if n_skipped > 0 then io.write((", %d skipped"):format(n_skipped)) end
  io.write(note and "  (" .. note .. ")\n" or "\n")
  if n_failed > 0 then
    for _, line in ipairs(output) do
      if not line:match("^ok ") then io.write("    ", line, "\n") end
    end
  end
  io.flush()
end

--- Counts the lines of TAP. `planned` is nil when the program died before it said how many.
local function count_tap(output)
  local ok, not_ok, skip, planned = 0, 0, 0, nil
  for _, line in ipairs(output) do
    local n = line:match("^1%.%.(%d+)")
    if n then
      planned = (planned or 0) + tonumber(n)
    elseif line:match("^n?o?t? ?ok %d+ .*# SKIP") then
      skip = skip + 1
    elseif line:match("^ok %d") then
      ok = ok + 1
    elseif line:match("^not ok %d") then
      not_ok = not_ok + 1
    end
  end
  return ok, not_ok, skip, planned
end

local function finish_tap(job, output, how)
  local n_ok, n_bad, n_skip, planned = count_tap(output)
  local missing = math.max((planned or 1) - n_ok - n_bad - n_skip, 0)
  n_bad = n_bad + missing
  if how and n_bad == 0 then n_bad = 1 end
  local note
  for _, line in ipairs(output) do note = note or line:match "# SKIP (.*)" end
  if missing > 0 then
    note = "ended early, " .. (how or "status 0")
  elseif how and n_bad > 0 then
    note = how
  end
  report(job.name, n_ok, n_bad, n_skip, output, note)
end

--- A program or a script that prints TAP.
local function tap(program, name)
  local command = "CMOCKA_MESSAGE_OUTPUT=TAP NEAP_TEST_DIR=tests " .. program
  return { name = name, command = command, finish = finish_tap }
end

--- The variables that a Lua program is run with.
local function environment(device)
  local list = ""
  if sanitizer == "asan" or sanitizer == "tsan" then
    local lib = lines_of("gcc -print-file-name=lib" .. sanitizer .. ".so")[1]
    -- Leaks count too. Frames of the module show no names, as it is closed by then: BUILD/neap shows them. Where a
    -- library that was opened has its thread-local variables is a guess that can make LeakSanitizer itself crash; what
    -- it does not look for there it can only report.
    list = "LD_PRELOAD=" .. lib .. " ASAN_OPTIONS=detect_leaks=1:intercept_tls_get_addr=0 "
  end
  if not device then return list end
  return ("%sNEAP_DEVICE=%s NEAP_TEST_STEPS=%s "):format(list, device, os.getenv "NEAP_TEST_STEPS" or 100)
end

local extra_lua, extra_c = os.getenv "NEAP_TEST_LUA", os.getenv "NEAP_TEST_CLUA"
local lua_path = (extra_lua and extra_lua .. ";" or "")
  .. ("%s/lua/?.lua;%s/lua/?/init.lua;./?.lua;;"):format(build, build)
local lua_cpath = ("%s%s/lua/?.so;;"):format(extra_c and extra_c .. ";" or "", build)

local function finish_spec(job, output, how)
  local n_ok, n_bad, n_skip, note
  for _, line in ipairs(output) do
    note = note or line:match "^forced: (.*)"
    local a, b, c = line:match("^totals: (%d+) passed, (%d+) failed, (%d+) skipped$")
    if a then n_ok, n_bad, n_skip = tonumber(a), tonumber(b), tonumber(c) end
  end
  if not n_ok then
    n_ok, n_bad, n_skip, note = 0, 1, 0, "ended early, " .. (how or "status 0")
  elseif how and n_bad == 0 then
    n_bad, note = 1, how
  end
  report(job.name, n_ok, n_bad, n_skip, output, note)
  if not job.device then return end
  local sum = on_device[job.device] or { 0, 0 }
  on_device[job.device] = { sum[1] + n_ok, sum[2] + n_bad }
end

local function lua_spec(file, device)
  return {
    name = file:match "([^/]+)%.lua$" .. (device and " on " .. device or ""),
    device = device,
    command = ("%sLUA_PATH='%s' LUA_CPATH='%s' NEAP_BUILD=%s NEAP_PROGRAM=%s/neap "
      .. "lua5.4 -W \"$(command -v busted)\" -o tests/output.lua %s --no-auto-insulate '%s'")
      :format(environment(device), lua_path, lua_cpath, build, build,
        force_gc and "--helper=tests/lua/force_gc_helper.lua" or "", file),
    finish = finish_spec,
  }
end

-- What is not run on another device, and why.
local programs = "starts programs that name no device"
local cpu_only = {
  docs = "texts", contributing = "compiles C", program = programs, examples = programs, plot = "text on a terminal",
  golden = "scripts as written, with neap.gradcheck, which is for the CPU", guide = "the guide's text, for the CPU",
}
local function on_both(spec)
  local name = spec:match "([^/]+)_spec%.lua$"
  return not cpu_only[name] and not name:match "^cudaemu_" -- those name both devices, in the first run
end

-- Once: that the device is there, and is what a tensor is made on.
local function has_device(device)
  local output = lines_of(("%s%s/neap -e 'print(require \"neap\".ones(1).device)' 2>&1 </dev/null")
    :format(environment(device), build))
  local there = output[1] == device .. ":0"
  report("device " .. device, there and 1 or 0, there and 0 or 1, 0, output)
  return there
end

local only = os.getenv "NEAP_TEST_SPECS" or ""
local function wanted(spec)
  return only:match "^%s*$" or (" " .. only .. " "):find(" " .. spec:match "([^/]+)_spec%.lua$" .. " ", 1, true)
end

local list = {}
local function add_specs(device)
  for _, spec in ipairs(lines_of("LC_ALL=C ls tests/lua/*_spec.lua 2>/dev/null")) do
    -- checkpoint_gc_spec forces the collector itself
    local forced = not force_gc or (spec:match "/checkpoint_" and not spec:match "_gc_spec")
    local named = spec:match "/cudaemu_" or not only_device
    local here = device and on_both(spec) or not device and named
    if wanted(spec) and forced and here then list[#list + 1] = lua_spec(spec, device) end
  end
end

if not only_device then
  for _, source in ipairs(force_gc and {} or lines_of("LC_ALL=C ls tests/core/test_*.c 2>/dev/null")) do
    local name = source:match("([^/]+)%.c$")
    list[#list + 1] = tap(build .. "/tests/" .. name, name)
  end
  if not sanitizer and not force_gc then
    list[#list + 1] = tap("tools/check_nvcc.sh " .. build .. " 90", "plug-in of nvcc")
  end
elseif only_device == "cudaemu" then
  list[#list + 1] = tap(environment() .. build .. "/tests/test_device_faults", "test_device_faults")
end
if sanitizer ~= "tsan" then add_specs() end
local device = only_device or "cudaemu"
if (only_device or not sanitizer and not force_gc) and has_device(device) then add_specs(device) end
run_all(list, os.getenv "NEAP_TEST_JOBS" or lines_of("nproc")[1])

for name, sum in pairs(on_device) do print(("on %s: %d passed, %d failed"):format(name, sum[1], sum[2])) end
if skipped > 0 then print(("%d skipped"):format(skipped)) end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0)
