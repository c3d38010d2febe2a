--- Output of the Lua specs: failures in full, then one line of totals that tests/run.lua reads.

return function()
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()

  local function show(kind, t)
    local message = t.message
    if message == nil then
      message = "nil error"
    elseif type(message) ~= "string" then
      message = tostring(message)
    end
    local where = t.element and t.element.trace
    print(("%s: %s"):format(kind, t.name or "?"))
    if where and where.currentline then print(("  %s:%d"):format(where.short_src, where.currentline)) end
    print("  " .. message:gsub("\n", "\n  "))
    local trace = t.trace and t.trace.traceback
    if trace and kind == "error" then print("  " .. trace:gsub("^\n", ""):gsub("\n", "\n  ")) end
  end

  handler.testEnd = function(_, _, status)
    if status == "failure" then
      show("failed", handler.failures[#handler.failures])
    elseif status == "error" then
      show("error", handler.errors[#handler.errors])
    end
    io.flush()
    return nil, true
  end

  handler.error = function(element)
    if element.descriptor ~= "it" then show("error", handler.errors[#handler.errors]) end
    return nil, true
  end

  handler.suiteEnd = function()
    print(("totals: %d passed, %d failed, %d skipped"):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, handler.pendingsCount))
    io.flush()
    return nil, true
  end

  busted.subscribe({ "test", "end" }, handler.testEnd, { predicate = handler.cancelOnPending })
  busted.subscribe({ "suite", "end" }, handler.suiteEnd)
  busted.subscribe({ "error" }, handler.error)
  return handler
end
