--- Datasets and loaders: order, resumption, lifetimes, Fashion-MNIST.
local neap = require "neap"
local data = neap.data

local function refused(code, ...)
  local ok, err = pcall(...)
  assert.is_false(ok)
  assert.equal(code, neap.error_code(err), err)
  return err
end

local function numbers(n) return data.tensors(neap.arange(1, n)) end

-- The values that a loader gives in one epoch, as one list.
local function epoch(loader)
  local all = {}
  for x in loader:each() do
    for _, v in ipairs(x:totable()) do all[#all + 1] = v end
  end
  return all
end

local function sorted(list)
  local copy = { table.unpack(list) }
  table.sort(copy)
  return copy
end

describe("datasets", function()
  it("of tensors have a length and samples", function()
    local d = data.tensors(neap.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }, neap.tensor { 7, 8, 9 })
    assert.equal(3, #d)
    local x, y = d:get(2)
    assert.is_true(neap.equal(x, { 3, 4 }))
    assert.equal(8, y:item())
    assert.equal(9, select(2, d:get(-1)):item())
    refused("E-INDEX", d.get, d, 4)
    refused("E-INDEX", d.get, d, 0)
    refused("E-SHAPE", data.tensors, neap.zeros(3), neap.zeros(4))
    refused("E-ARG", data.tensors, { 1, 2 })
  end)

  it("of a function stack tensors and numbers", function()
    local d = data.dataset(5, function(i) return neap.full({ 2 }, i), i % 2 + 1 end)
    local xs, ys
    for x, y in data.loader(d, { batch_size = 5 }):each() do
      assert.equal(neap.ones(5, 2).shape, x.shape)
      assert.equal("int64", y.dtype)
      xs, ys = x:totable(), y:totable()
    end
    assert.same({ 2, 1, 2, 1, 2 }, ys)
    assert.equal(3, xs[3][1])
  end)
end)

describe("the loader", function()
  it("gives everything once, in order, the last batch short", function()
    local loader = data.loader(numbers(10), { batch_size = 4 })
    assert.equal(3, #loader)
    local sizes = {}
    for x in loader:each() do sizes[#sizes + 1] = #x end
    assert.same({ 4, 4, 2 }, sizes)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, epoch(loader))
  end)

  it("drop_last leaves the short batch out", function()
    local loader = data.loader(numbers(10), { batch_size = 4, drop_last = true })
    assert.equal(2, #loader)
    assert.equal(8, #epoch(loader))
  end)

  it("shuffles by its own generator: seeds decide, other draws do not", function()
    local function orders(seed, disturb)
      local loader = data.loader(numbers(50), { batch_size = 7, shuffle = true, seed = seed })
      local first = epoch(loader)
      if disturb then neap.rand(1000) end
      return first, epoch(loader)
    end
    local a1, a2 = orders(1)
    local b1, b2 = orders(1, true)
    local c1 = orders(2)
    assert.same(a1, b1)
    assert.same(a2, b2)
    assert.are_not.same(a1, a2)
    assert.are_not.same(a1, c1)
    assert.same(epoch(data.loader(numbers(50))), sorted(a1))
  end)

  it("without a seed follows neap.seed", function()
    neap.seed(9)
    local a = epoch(data.loader(numbers(30), { shuffle = true }))
    neap.seed(9)
    assert.same(a, epoch(data.loader(numbers(30), { shuffle = true })))
  end)

  it("resumes in the middle of an epoch", function()
    local function make() return data.loader(numbers(20), { batch_size = 3, shuffle = true, seed = 4 }) end
    local whole = make()
    local want = {}
    for _ = 1, 2 do
      for _, v in ipairs(epoch(whole)) do want[#want + 1] = v end
    end
    local first, got, state = make(), {}, nil
    for x in first:each() do
      for _, v in ipairs(x:totable()) do got[#got + 1] = v end
      if #got == 9 then
        state = first:state_dict()
        break
      end
    end
    local second = make()
    second:load_state_dict(state)
    for _, v in ipairs(epoch(second)) do got[#got + 1] = v end
    for _, v in ipairs(epoch(second)) do got[#got + 1] = v end
    assert.same(want, got)
    refused("E-ARG", second.load_state_dict, second, data.loader(numbers(21)):state_dict())
  end)

  it("starts a new epoch after a break", function()
    local loader = data.loader(numbers(6), { batch_size = 2 })
    for x in loader:each() do
      if #x == 2 then break end
    end
    assert.same({ 1, 2, 3, 4, 5, 6 }, epoch(loader))
  end)

  it("maps batches", function()
    local loader = data.loader(data.tensors(neap.arange(1, 4), neap.arange(1, 4)), {
      batch_size = 2, map = function(x, y) return x / 2, y + 1 end,
    })
    for x, y in loader:each() do assert.is_true(neap.allclose(x * 2 + 1, y:to "float32")) end
  end)

  it("owns a batch until the next is fetched; keep takes it", function()
    local loader, old, kept = data.loader(numbers(6), { batch_size = 2 }), nil, nil
    for x in loader:each() do
      if old then refused("E-RELEASED", function() return old + 1 end) end
      if not kept then
        kept = neap.keep(x)
      else
        old = x
      end
    end
    assert.is_true(neap.equal(kept, { 1, 2 }))
    refused("E-RELEASED", function() return old + 1 end)
  end)

  it("leaves nothing behind with the collector stopped", function()
    local function map(x) return x * 2 + 1 end
    local loader = data.loader(numbers(64), { batch_size = 4, shuffle = true, seed = 1, map = map })
    epoch(loader)
    collectgarbage()
    collectgarbage "stop"
    local stats = neap.memory_stats()
    local live, handles = stats.live, stats.handles
    for _ = 1, 5 do
      for _ in loader:each() do assert.is_true(true) end
    end
    assert.equal(live, neap.memory_stats().live)
    assert.equal(handles, neap.memory_stats().handles)
    collectgarbage "restart"
  end)

  it("does not change the dataset when a batch is changed", function()
    local d = numbers(4)
    for x in data.loader(d, { batch_size = 4 }):each() do x:zero_() end
    assert.is_true(neap.equal(d.tensors[1], { 1, 2, 3, 4 }))
  end)

  it("refuses what it does not know", function()
    local err = refused("E-UNKNOWN-OPTION", data.loader, numbers(3), { bach_size = 2 })
    assert.is_truthy(err:find("'batch_size'", 1, true))
    refused("E-ARG", data.loader, numbers(3), { batch_size = 0 })
    refused("E-ARG", data.loader, neap.zeros(3))
  end)
end)

describe("Fashion-MNIST", function()
  it("has bytes for images and labels from 1 to 10", function()
    local d = data.fashion_mnist "test"
    assert.equal(10000, #d)
    local x, y = table.unpack(d.tensors)
    assert.equal(neap.empty(10000, 28, 28).shape, x.shape)
    assert.equal("uint8", x.dtype)
    assert.equal(1, y:min():item())
    assert.equal(10, y:max():item())
    assert.equal("ankle boot", d.classes[y:item(1)])
  end)

  it("refuses other parts", function() refused("E-ARG", data.fashion_mnist, "valid") end)
end)

describe("data.csv", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  local function read(text, options)
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
    return data.csv(path, options)
  end

  it("gives columns of numbers as tensors and the others as lists of strings", function()
    local c = read('n,name,v\n1,"a, ""b""\nc",0.5\n2,z,NA\n\n3,,\n', { dtype = "float64" })
    assert.same({ "n", "name", "v" }, c.names)
    assert.equal(3, #c)
    assert.same({ 1.0, 2.0, 3.0 }, c.n:totable())
    assert.same({ 'a, "b"\nc', "z", "" }, c.name)
    assert.equal(0.5, c.v[1]:item())
    assert.is_true(c.v[2]:item() ~= c.v[2]:item() and c.v[3]:item() ~= c.v[3]:item())
    assert.equal(c.n, c[1])
    assert.same({ { 0.5, 1.0 } }, c:tensor({ "v", "n" }):narrow(1, 1, 1):totable())
    assert.equal("csv of 3 rows: n, name (text), v", tostring(c))
  end)

  it("reads what other systems write: line ends, a byte order mark, other separators, no header", function()
    local c = read("\xef\xbb\xbfa;b\r\n1;2\r3;4", { separator = ";", dtype = "int64" })
    assert.same({ 1, 3 }, c.a:totable())
    assert.equal("int64", c.b.dtype)
    c = read("1,2\n3,4\n", { header = false })
    assert.is_nil(c.names)
    assert.same({ { 1.0, 2.0 }, { 3.0, 4.0 } }, c:tensor():totable())
    assert.equal("float32", c[1].dtype)
  end)

  it("keeps every digit of whole numbers and of float64", function()
    local c = read("a\n9007199254740993\n-9223372036854775808\n", { dtype = "int64" })
    assert.same({ 9007199254740993, math.mininteger }, c.a:totable())
    c = read("a\n0.1\n1e-310\n1.7976931348623157e308\n", { dtype = "float64" })
    assert.same({ 0.1, 1e-310, 1.7976931348623157e308 }, c.a:totable())
  end)

  it("names the line, row or column that is wrong", function()
    for text, words in pairs {
      ["a,b\n1\n"] = "line 2 has 1 cells, the first one has 2", ['a\n1"2\n'] = "line 2 has a quote in the middle",
      ['a\n\n"1\n2'] = "line 3 begins a quote that does not end", ['a\n"1"2\n'] = "line 2 goes on after",
      [""] = "the file is empty", ["a,a\n1,2\n"] = "two columns called 'a'", ["a\0b"] = "0 byte",
    } do
      local err = refused("E-FORMAT", read, text)
      assert.is_truthy(err:find(words, 1, true), err)
    end
    local err = refused("E-FORMAT", read, "a\n1\n300\n", { dtype = "uint8" })
    assert.is_truthy(err:find("row 2, column 1: 300 does not fit uint8", 1, true), err)
    err = refused("E-FORMAT", read, "a\n1.5\n", { dtype = "int64" })
    assert.is_truthy(err:find("'1.5' is no whole number", 1, true), err)
    local c = read "alpha,beta\n1,x\n"
    err = refused("E-INDEX", function() return c.alhpa end)
    assert.is_truthy(err:find("did you mean 'alpha'?", 1, true), err)
    refused("E-ARG", c.tensor, c, { "beta" })
    refused("E-ARG", data.csv, path, { separator = "ab" })
    refused("E-IO", data.csv, "/nonexistent/file.csv")
  end)
end)

describe("NumPy files", function()
  it("npz: arrays by name, packed or not, in either order", function()
    local plain, packed = neap.load_npz "tests/golden/plain.npz", neap.load_npz "tests/golden/packed.npz"
    assert.same({ { 0.0, 1.0, 2.0 }, { 3.0, 4.0, 5.0 } }, plain.x:totable())
    assert.equal("int32", plain.y.dtype)
    assert.equal(4, plain.y:item())
    assert.same({ { 0.0, 1.0, 2.0 }, { 3.0, 4.0, 5.0 } }, packed.z:totable())
    refused("E-FORMAT", neap.load_npz, "README.md")
    refused("E-IO", neap.load_npz, "/nonexistent.npz")
  end)

  it("npz: a changed byte is found by its checksum", function()
    local f = assert(io.open("tests/golden/plain.npz", "rb"))
    local bytes = f:read "a"
    f:close()
    local path = os.tmpname()
    local at = bytes:find(string.pack("<d", 5.0), 1, true)
    f = assert(io.open(path, "wb"))
    f:write(bytes:sub(1, at - 1), string.pack("<d", 7.0), bytes:sub(at + 8))
    f:close()
    local err = refused("E-FORMAT", neap.load_npz, path)
    os.remove(path)
    assert.is_truthy(err:find("checksum", 1, true), err)
  end)

  it("npy: what is saved loads again", function()
    local path = os.tmpname()
    local x = neap.randn(3, 4):t()
    neap.save_npy(path, x)
    assert.is_true(neap.equal(x, neap.load_npy(path)))
    os.remove(path)
    refused("E-ARG", neap.save_npy, path, 3)
  end)
end)
