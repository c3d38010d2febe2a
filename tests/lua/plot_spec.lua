--- Plots, logs, the table printer and the progress bar, as text.
local neap = require "neap"

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

local function content(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  os.remove(path)
  return text
end

describe("neap.plot.line", function()
  it("writes well-formed SVG with title, axes, ticks and a legend", function()
    local svg = neap.plot.line({ loss = { 3, 2, 1.5, 1.2 }, test = { x = { 1, 4 }, y = { 3, 1 } } },
      { title = "a < b & \"c\"", x = "step", y = "loss" }):svg()
    assert.is_truthy(svg:find("^<svg ") and svg:find("</svg>\n$"))
    assert.is_truthy(svg:find("a &lt; b &amp; &quot;c&quot;", 1, true))
    for _, word in ipairs { ">step<", ">loss<", ">test<", ">1.5<", ">2.0<" } do
      assert.is_truthy(svg:find(word, 1, true), word)
    end
    assert.is_nil(svg:find "%f[%w]nan%f[%W]")
    -- Every element that is opened is closed.
    local open = 0
    for slash, _, self_closed in svg:gmatch "<(/?)(%a+)[^>]-(/?)>" do
      if slash == "/" then open = open - 1 elseif self_closed ~= "/" then open = open + 1 end
    end
    assert.equal(0, open)
  end)

  it("takes one series without a name", function()
    assert.is_truthy(neap.plot.line({ 3, 2, 1 }, { y = "loss" }):svg():find(">loss<", 1, true))
    assert.equal(neap.plot.line({ 1, 2 }):svg(), neap.plot.line(neap.tensor { 1, 2 }):svg())
  end)

  it("takes tensors, leaves gaps at values that are not finite, and draws constant series", function()
    local svg = neap.plot.line({ a = neap.tensor { 1.0, 2.0, 3.0 }, b = { 1, 0 / 0, 3, math.huge }, c = { 2, 2,
      2 } }):svg()
    assert.is_nil(svg:find "%f[%w]nan%f[%W]")
    assert.is_nil(svg:find "%f[%w]inf%f[%W]")
    assert.is_truthy(neap.plot.line { a = {} }:svg():find "</svg>")
    assert.is_truthy(neap.plot.line({ a = { 0, 1, 100 } }, { log_y = true }):svg():find "</svg>")
  end)

  it("is the same text every time, and is saved", function()
    local function make() return neap.plot.line { b = { 1, 2 }, a = { 2, 1 } } end
    local path = os.tmpname()
    assert.equal(make():svg(), make():svg())
    make():save(path)
    assert.equal(make():svg(), content(path))
  end)

  it("refuses what it cannot draw", function()
    refused("E-ARG", neap.plot.line, { { 1, 2 } })
    refused("E-ARG", neap.plot.line, { a = { 1, "2" } })
    refused("E-UNKNOWN-OPTION", neap.plot.line, { a = { 1 } }, { titel = "x" })
    refused("E-IO", function() neap.plot.line({ a = { 1 } }):save "/nowhere/at/all.svg" end)
  end)
end)

describe("neap.log", function()
  it("csv writes a header once and goes on in an existing file", function()
    local path = os.tmpname()
    os.remove(path)
    local log = neap.log.csv(path)
    log:write { step = 1, loss = neap.tensor(0.5), note = 'a "b", c' }
    log:write { step = 2, loss = 0.1 }
    log:close()
    log = neap.log.csv(path)
    log:write { step = 3, note = "x" }
    refused("E-ARG", log.write, log, { step = 4, other = 1 })
    log:close()
    assert.equal('step,loss,note\n1,0.5,"a ""b"", c"\n2,0.1,\n3,,x\n', content(path))
  end)

  it("jsonl writes one object a line", function()
    local path = os.tmpname()
    local log = neap.log.jsonl(path)
    log:write { step = 1, loss = 0.1, ok = true, name = 'q"\n', bad = 0 / 0 }
    log:close()
    assert.equal('{"step": 1, "bad": null, "loss": 0.1, "name": "q\\"\\n", "ok": true}\n', content(path))
    refused("E-ARG", log.write, log, { [1] = 2 })
  end)

  it("says where it cannot write", function() refused("E-IO", neap.log.csv, "/nowhere/at/all.csv") end)
end)

describe("neap.pp", function()
  it("sorts keys, marks cycles, limits depth", function()
    local t = { b = 1, a = { 1, 2, "x" } }
    t.c = t
    assert.equal('{a = {1, 2, "x"}, b = 1, c = <cycle>}', neap.pp.text(t))
    assert.equal("{a = {...}}", neap.pp.text({ a = { b = { c = 1 } } }, { depth = 1 }))
    assert.equal('{[1.5] = 2, ["a b"] = 1}', neap.pp.text { [1.5] = 2, ["a b"] = 1 })
  end)
end)

describe("neap.progress", function()
  it("passes the items through and counts them", function()
    local seen = {}
    local bar = neap.progress({ "a", "b", "c" }, { desc = "letters" })
    for item in bar do
      seen[#seen + 1] = item
      bar:set { item = item }
    end
    assert.same({ "a", "b", "c" }, seen)
    local n = 0
    for i in neap.progress(5) do n = n + i end
    assert.equal(15, n)
    refused("E-ARG", neap.progress, "x")
  end)

  it("goes through a loader", function()
    local loader = neap.data.loader(neap.data.tensors(neap.arange(1, 6), neap.arange(7, 12)), { batch_size = 2 })
    local n = 0
    for x, y in neap.progress(loader) do n = n + x:sum():item() + y:sum():item() end
    assert.equal(21 + 57, n)
  end)
end)
