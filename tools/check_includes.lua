--- Includes in core/ point downward only: base < tensor < ops <-> autograd < checkpoint; io beside autograd.
-- usage: lua5.4 tools/check_includes.lua

local LEVEL = { base = 1, tensor = 2, ops = 3, autograd = 3, io = 3, checkpoint = 4 }
-- Where each room's code may look besides below: ops and autograd meet in op.h and autograd.h.
local BESIDE = { ops = { autograd = true }, autograd = { ops = true }, io = {} }

local bad, seen = 0, 0
local p = assert(io.popen("find core -name '*.[ch]' | LC_ALL=C sort"))
for path in p:lines() do
  local room = path:match("^core/([^/]+)/")
  local number = 0
  for line in io.lines(path) do
    number = number + 1
    local target = line:match('^%s*#%s*include%s+"([^"]+)"')
    local to = target and target:match("^([^/]+)/")
    if room and to and LEVEL[to] and LEVEL[room] and to ~= room then
      seen = seen + 1
      local allowed = LEVEL[to] < LEVEL[room] or (BESIDE[room] and BESIDE[room][to])
      if not allowed then
        io.stderr:write(("%s:%d: %s must not include %s\n"):format(path, number, room, target))
        bad = bad + 1
      end
    end
    if line:match('#%s*include%s*[<"]lua') then
      io.stderr:write(("%s:%d: the core knows nothing of Lua\n"):format(path, number))
      bad = bad + 1
    end
  end
end
p:close()
print(("%d includes between rooms, %d upward"):format(seen, bad))
os.exit(bad == 0 and seen > 0)
