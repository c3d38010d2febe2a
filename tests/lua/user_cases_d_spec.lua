--- Files: saving, loading, hostile input: the user cases, by id. The C tests of the formats go further into each.
local neap = require "neap"
local nn, data = neap.nn, neap.data

local path = os.tmpname()

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok, "no error")
  assert.equal(code, neap.error_code(err), err)
  return err
end

local function write(bytes)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
end

-- A safetensors file of a header and data.
local function st(header, bytes)
  write(string.pack("<I8", #header) .. header .. (bytes or ""))
end

local function entry(dtype, shape, first, last)
  return ('{"dtype":"%s","shape":[%s],"data_offsets":[%s,%s]}'):format(dtype, shape, first, last)
end

-- Loading fails by the format, and the process holds no more memory after it.
local function hostile(load)
  collectgarbage()
  local before = neap.memory_stats().live
  local err = refused("E-FORMAT", load, path)
  collectgarbage()
  assert.equal(before, neap.memory_stats().live)
  assert.is_truthy(err:find(path:match "[^/]+$", 1, true), err)
  return err
end

local function npy(version, descr, order, shape, bytes)
  local head = ("{'descr': %s, 'fortran_order': %s, 'shape': %s, }"):format(descr, order, shape)
  write("\x93NUMPY" .. string.pack(version == 1 and "<BBs2" or "<BBs4", version, 0, head) .. (bytes or ""))
end

local function idx(code, sizes, bytes)
  local head = string.pack(">I2BB", 0, code, #sizes)
  for _, n in ipairs(sizes) do head = head .. string.pack(">I4", n) end
  write(head .. bytes)
end

describe("D: files", function()
  teardown(function() os.remove(path) end)

  it("uc-D01 the header's length lies", function()
    for _, length in ipairs { 1 << 63, -1, -5, 11, 100000001, 0, 1 } do
      write(string.pack("<i8", length) .. "{}")
      hostile(neap.load)
    end
    for _, bytes in ipairs { "", "1234567" } do
      write(bytes)
      hostile(neap.load)
    end
  end)

  it("uc-D02 offsets out of order or out of the file", function()
    for _, pair in ipairs { { 4, 0 }, { -4, 0 }, { 0, "9223372036854775808" }, { 0, 5 }, { '"0"', '"4"' },
      { "0.0", "4.0" }, { 0, "1e3" }, { 0, "2,4" } } do
      st(('{"a":%s}'):format(entry("F32", "1", pair[1], pair[2])), "abcd")
      hostile(neap.load)
    end
  end)

  it("uc-D03 uc-D04 ranges and shapes that disagree or overflow", function()
    st(('{"a":%s}'):format(entry("F32", "1000,1000", 0, 4)), "abcd")
    hostile(neap.load)
    for _, shape in ipairs { "4294967296,4294967296", "4611686018427387904,4" } do
      st(('{"a":%s}'):format(entry("F32", shape, 0, 4)), "abcd")
      hostile(neap.load)
    end
    st(('{"a":%s}'):format(entry("F32", "0,9223372036854775807", 0, 0)))
    local ok, t = pcall(neap.load, path)
    assert.is_true(ok and t.a:numel() == 0 or neap.error_code(t) == "E-FORMAT", tostring(t))
  end)

  it("uc-D06 uc-D08 duplicate names and abused JSON", function()
    local one = entry("U8", "1", 0, 1)
    for _, header in ipairs {
      ('{"a":%s,"a":%s}'):format(one, one), ('{"__metadata__":{},"__metadata__":{},"a":%s}'):format(one),
      "[]", ("["):rep(100000), '{"a\xff":' .. one .. "}", '{"\\ud800":' .. one .. "}", '{"a\\u0000b":' .. one .. "}",
      ('{"a":%s}'):format(entry("U8", "1e400", 0, 1)), '{"__metadata__":{"k":1},"a":' .. one .. "}", "{",
    } do
      st(header, "x")
      hostile(neap.load)
    end
    st(('{"a":%s}'):format(one) .. (" "):rep(13), "x")
    assert.equal(120, neap.load(path).a:item())
  end)

  it("uc-D09 legal odd files load, bit for bit", function()
    local odd = string.pack("<I4I4I4", 0x7fc12345, 0xff800001, 0x7f800000) -- NaNs with payloads, infinity
    st(('{"x/y.z é":%s,"none":%s,"one":%s}'):format(entry("F32", "3", 0, 12), entry("F32", "0,2", 12, 12),
      entry("U8", "", 12, 13)), odd .. "\7")
    local t = neap.load(path)
    assert.equal(0, t.none:numel())
    assert.equal(0, t.one.ndim)
    neap.save(path, { ["x/y.z é"] = t["x/y.z é"] })
    local file = assert(io.open(path, "rb"))
    local bytes = file:read "a"
    file:close()
    assert.equal(odd, bytes:sub(-12))
  end)

  it("uc-D10 views are written as what they show, ties once", function()
    local base = neap.arange(1, 1000, { dtype = "float32" })
    local x = neap.arange(1, 6):reshape(2, 3)
    neap.save(path, { t = x:t(), e = neap.ones(1):expand(4), few = base:narrow(1, 5, 2) })
    local file = assert(io.open(path, "rb"))
    assert.is_true(file:seek "end" < 600)
    file:close()
    local back = neap.load(path)
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, back.t:totable())
    assert.same({ 1.0, 1.0, 1.0, 1.0 }, back.e:totable())
    assert.same({ 5.0, 6.0 }, back.few:totable())
    local tied = neap.ones(100)
    neap.save(path, { a = tied, b = tied })
    file = assert(io.open(path, "rb"))
    assert.is_true(file:seek "end" < 700)
    file:close()
    back = neap.load(path)
    back.a:fill_(3)
    assert.equal(3, back.b[1]:item())
  end)

  it("uc-D12 uc-D14 npy files that lie or hold objects are refused", function()
    npy(1, "'|O'", "False", "(1,)", "cos\nsystem\n(S'false'\ntR.")
    hostile(neap.load_npy)
    for _, case in ipairs {
      { "'<f8'", "False", "(1000000000000,)" }, { "'<f8'", "False", "(184)" }, { "'<f8'", "False", "(-1,)" },
      { "[('a', '<f4')]", "False", "(1,)" }, { "'<f8'", "0", "(1,)" },
    } do
      npy(1, case[1], case[2], case[3], ("x"):rep(8))
      hostile(neap.load_npy)
    end
    write "\x93NUMPY\1\0\xff\xff{'descr"
    hostile(neap.load_npy)
    write("\x93NUMPY\2\0" .. string.pack("<I4", 1 << 30) .. (" "):rep(1000))
    hostile(neap.load_npy)
  end)

  it("uc-D13 the variants of npy load right", function()
    local ramp = string.pack("<i4i4i4i4i4i4", 0, 3, 1, 4, 2, 5)
    for version = 1, 3 do
      npy(version, "'<i4'", "True", "(2, 3)", ramp)
      assert.same({ { 0, 1, 2 }, { 3, 4, 5 } }, neap.load_npy(path):totable())
    end
    for descr, bytes in pairs { [">f4"] = string.pack(">f", -1.5), ["<f8"] = string.pack("<d", -1.5),
      ["<f2"] = "\x00\xbe" } do
      npy(1, ("'%s'"):format(descr), "False", "()", bytes)
      assert.equal(-1.5, neap.load_npy(path):item())
    end
    npy(1, "'|u1'", "False", "(3,)", "\1\2\3")
    assert.same({ 1, 2, 3 }, neap.load_npy(path):totable())
    npy(1, "'<i8'", "False", "(0, 4)")
    assert.equal(0, neap.load_npy(path):numel())
  end)

  it("uc-D16 idx files", function()
    idx(0x08, { 2, 3 }, "abcdef")
    assert.equal(97, neap.read_idx(path)[1][1]:item())
    for _, case in ipairs { { 0x07, { 1 }, "a" }, { 0x08, { 2, 3 }, "abcde" }, { 0x08, { 2, 3 }, "abcdefg" },
      { 0x08, { 0xffffffff, 0xffffffff, 0xffffffff }, "a" } } do
      idx(table.unpack(case))
      hostile(neap.read_idx)
    end
    idx(0x08, { 2, 3 }, "abcdef")
    os.execute(("gzip -c '%s' > '%s.gz' && printf garbage >> '%s.gz'"):format(path, path, path))
    refused("E-FORMAT", neap.read_idx, path .. ".gz")
    os.remove(path .. ".gz")
    refused("E-SHAPE", data.tensors, neap.ones(3, 2), neap.ones(2))
  end)

  it("uc-D18 loading runs no code", function()
    local called = 0
    local saved_load, saved_execute = load, os.execute
    local function trap() called = called + 1 end
    local chunk = string.dump(function() end):gsub("[^%g ]", "?")
    neap.save(path, { w = neap.ones(1) },
      { metadata = { code = "os.execute('false')", chunk = chunk, __index = "__gc" } })
    load, os.execute = trap, trap -- luacheck: ignore 121 122
    local ok, t, metadata = pcall(neap.load, path)
    load, os.execute = saved_load, saved_execute -- luacheck: ignore 121 122
    assert.is_true(ok, tostring(t))
    assert.equal("__gc", metadata.__index)
    assert.is_nil(getmetatable(metadata))
    assert.equal(0, called)
    for _, magic in ipairs { "\x80\2}q\0", "PK\3\4archive/data.pkl", "4\n1\n3\nV 1" } do
      write(magic .. ("x"):rep(40))
      hostile(neap.load)
    end
  end)

  it("uc-D20 a full disk and a folder that cannot be written leave the old file", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s'"):format(folder)))
    local file = folder .. "/w.safetensors"
    neap.save(file, { w = neap.full({ 10 }, 7) })
    local script = folder .. "/big.lua"
    local out = assert(io.open(script, "w"))
    out:write(('local neap = require "neap"\nlocal ok, err = pcall(neap.save, "%s", { w = neap.zeros(1000000) })\n'
      .. 'print(ok, err)\n'):format(file))
    out:close()
    local program = os.getenv "NEAP_PROGRAM" or "build/neap"
    -- on the CPU: a driver may have large files of its own
    local pipe = assert(io.popen(("sh -c 'ulimit -f 100; NEAP_DEVICE=cpu \"%s\" \"%s\" 2>&1'"):format(program, script)))
    local text = pipe:read "a"
    pipe:close()
    assert.is_truthy(text:find("false", 1, true) and text:find("E-IO", 1, true), text)
    assert.equal(7, neap.load(file).w[3]:item())
    pipe = assert(io.popen(("ls -A '%s'"):format(folder)))
    assert.equal("big.lua\nw.safetensors\n", pipe:read "a")
    pipe:close()
    os.execute(("rm -r '%s'"):format(folder))
    refused("E-IO", neap.save, folder .. "/w.safetensors", { w = neap.ones(1) })
  end)

  it("uc-D22 a state that does not fit is one error, and nothing is changed", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    local before = neap.hash(net:state_dict())
    local state = {}
    for name, t in pairs(net:state_dict()) do state[name] = t:detach():clone() + 1 end
    state["1.bias"] = nil
    state["9.weight"] = neap.ones(1)
    state["2.weight"] = neap.ones(5)
    local err = refused("E-ARG", net.load_state_dict, net, state)
    for _, name in ipairs { "1.bias", "9.weight", "2.weight" } do assert.is_truthy(err:find(name, 1, true), err) end
    assert.equal(before, neap.hash(net:state_dict()))
    state["2.weight"] = nil
    local missing, unexpected = net:load_state_dict(state, { strict = false })
    table.sort(missing)
    assert.same({ "1.bias", "2.weight" }, missing)
    assert.same({ "9.weight" }, unexpected)
  end)

  it("uc-D24 a file that shrinks after loading changes nothing", function()
    neap.save(path, { w = neap.full({ 100000 }, 5) })
    local t = neap.load(path)
    write ""
    assert.equal(500000, t.w:sum():item())
  end)
end)
