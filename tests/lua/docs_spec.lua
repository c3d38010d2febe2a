--- Reference, editor stubs, help and the running library agree; README commands exist.
local check = require "tools.check_docs"

local function nothing(list) assert.equal("", table.concat(list or {}, "\n")) end

describe("the documentation", function()
  it("describes every public name of the library", function() nothing(check.undescribed()) end)
  it("describes nothing that the library does not have", function() nothing(check.nonexistent()) end)
  it("is complete in reference and editor stubs", function() nothing(check.unwritten()) end)
  it("has no stub for what nothing describes", function() nothing(check.unknown_stubs()) end)
  it("has stubs that are Lua", function() assert.is_nil(check.stub_syntax()) end)
  it("has a text for every name and a remedy for every error code", function() nothing(check.empty()) end)
  it("is up to date (make docs)", function() nothing(check.stale()) end)
  it("names only make targets and files that exist", function() nothing(check.commands()) end)
end)

describe("lua/help.lua", function()
  local neap = require "neap"
  local help = require "neap.help"

  it("finds an entry by value and by name", function()
    assert.equal("neap.zeros", help.find(neap, "z", neap.zeros).name)
    assert.equal("Tensor:item", help.find(neap, "x:item", neap.methods.item).name)
    assert.equal("neap.no_grad", help.find(neap, "no_grad").name)
    assert.equal("Generator:seed", help.find(neap, "g:seed", neap.generator(1).seed).name)
    assert.is_nil(help.find(neap, "grad", 7))
    assert.is_nil(help.find(neap, "no_such_name"))
  end)

  it("shows signature, text and example", function()
    local text = help.text(help.entries["neap.eye"])
    assert.truthy(text:find("neap.eye(n[, m]", 1, true))
    assert.truthy(text:find("ones on the diagonal", 1, true))
    assert.truthy(text:find("  neap.eye(3)", 1, true))
  end)
end)
