--- Given to busted as --helper: the specs run with the collector forced (force_gc.c) in recomputes, or, with
-- NEAP_FORCE_GC=everywhere, all the time. A run in which it was not forced at least once an op fails.
package.cpath = (os.getenv "NEAP_BUILD" or "build") .. "/tests/?.so;" .. package.cpath
local force_gc = require "force_gc"
local busted = require "busted"

force_gc.begin(os.getenv "NEAP_FORCE_GC" == "everywhere")

busted.subscribe({ "suite", "end" }, function()
  local collections, ops, most, emergencies = force_gc.stats()
  force_gc.finish()
  print(("forced: %d collections and %d emergency collections for %d ops, at most %d ops between two")
    :format(collections, emergencies, ops, most))
  if collections < ops or ops == 0 then os.exit(1) end
  return nil, true
end)
