--- Which lines of the CUDA sources no test has run in the emulator.
--
--   lua5.4 tools/cuda_coverage.lua [BUILD]      normally by: make cuda-coverage
--
-- BUILD/cudaemu/cov is the emulated device with gcc's counters, after a run of the tests, and the selftest of what
-- kernels are written in (tests/cudaemu), which has what no op is large enough for. A line of a template counts
-- as run when one instance of it has; a line of a header, when it has in one source. Each line that nothing ran must
-- be in tests/cudaemu/uncovered.txt, as "file: the line's text -- the reason"; and each line there must be one of them.
-- The status is 1 otherwise, or when there is nothing to count.
local build = ... or "build"
local folder = build .. "/cudaemu/cov"

local function lines_of(command)
  local p = assert(io.popen(command))
  local list = {}
  for line in p:lines() do list[#list + 1] = line end
  p:close()
  return list
end

local function trim(text) return (text:gsub("^%s+", ""):gsub("%s+$", "")) end

-- counts[file][line] = the most that any instance has run; texts[file][line].
local counts, texts = {}, {}

-- One listing of gcov: "count:line:text", where the count is a number, "#####" or "=====" for none, "-" for no code.
local function add(listing)
  local source
  for line in io.lines(listing) do
    local count, n, text = line:match "^%s*([^:]+):%s*(%d+):(.*)$"
    if n == "0" then
      source = text:match "^Source:(.*)$" or source
      if not source:match "^core/cuda/" then return end -- of the tests, or a system's header
      counts[source], texts[source] = counts[source] or {}, texts[source] or {}
    elseif count and count ~= "-" then
      local ran = tonumber(count:match "^%d+") or 0
      counts[source][tonumber(n)] = math.max(counts[source][tonumber(n)] or 0, ran)
      texts[source][tonumber(n)] = trim(text)
    end
  end
end

local scratch = os.tmpname()
os.remove(scratch)
local here = lines_of "pwd"[1]
for _, path in ipairs(lines_of "LC_ALL=C ls core/cuda/*.cu tests/cudaemu/selftest.cu") do
  local name = path:match "([^/]+)%.cu$"
  -- The paths are those of the compilation; what gcov writes goes to where it runs.
  os.execute(("rm -rf '%s' && mkdir '%s' && cd '%s' && ln -s '%s/core' '%s/tests' . "
    .. "&& gcov -r -p -o '%s/%s' %s.o >/dev/null 2>&1")
    :format(scratch, scratch, scratch, here, here, here, folder, name))
  for _, listing in ipairs(lines_of(("ls '%s'/*.gcov 2>/dev/null"):format(scratch))) do add(listing) end
end
os.execute(("rm -rf '%s'"):format(scratch))

local excused = {}
for line in io.lines "tests/cudaemu/uncovered.txt" do
  if line ~= "" and not line:match "^#" then
    local key, reason = line:match "^(.-) %-%- (.+)$"
    assert(reason, "tests/cudaemu/uncovered.txt: no reason: " .. line)
    excused[key] = { reason = reason }
  end
end

local n_lines, n_run, n_excused, bad, stale = 0, 0, 0, {}, {}
local files = {}
for file in pairs(counts) do files[#files + 1] = file end
table.sort(files)
for _, file in ipairs(files) do
  local numbers = {}
  for n in pairs(counts[file]) do numbers[#numbers + 1] = n end
  table.sort(numbers)
  for _, n in ipairs(numbers) do
    n_lines = n_lines + 1
    local excuse = excused[("%s: %s"):format(file:match "[^/]+$", texts[file][n])]
    if counts[file][n] > 0 then
      n_run = n_run + 1
    elseif excuse then
      excuse.used = true
      n_excused = n_excused + 1
    else
      bad[#bad + 1] = ("%s:%d: %s"):format(file, n, texts[file][n])
    end
  end
end
for key, excuse in pairs(excused) do
  if not excuse.used then stale[#stale + 1] = "tests/cudaemu/uncovered.txt: run after all, or gone: " .. key end
end

table.sort(stale)
for _, line in ipairs(bad) do print(line) end
for _, line in ipairs(stale) do print(line) end
print(("%d of %d lines of core/cuda ran (%.2f %%), %d more have a reason, %d have none; %d reasons too many")
  :format(n_run, n_lines, 100 * n_run / math.max(n_lines, 1), n_excused, #bad, #stale))
os.exit(#bad + #stale == 0 and n_lines > 0)
