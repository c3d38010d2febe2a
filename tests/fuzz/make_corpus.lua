--- Writes the seeds of the fuzzers: lua5.4 tests/fuzz/make_corpus.lua <directory>
-- A few right files of every kind and a few wrong ones; the fuzzer finds the rest.
local dir = assert(arg[1], "usage: lua5.4 make_corpus.lua <directory>")
os.execute(("mkdir -p '%s/safetensors' '%s/idx' '%s/npy' '%s/npz' '%s/csv'"):format(dir, dir, dir, dir, dir))

local function write(name, bytes)
  local f = assert(io.open(dir .. "/" .. name, "wb"))
  f:write(bytes)
  f:close()
end

--- A safetensors file: header text, padded as the format likes it, and data.
local function st(header, data)
  header = header .. (" "):rep(-#header % 8)
  return string.pack("<I8", #header) .. header .. (data or "")
end

local function entry(dtype, shape, first, last)
  return ('{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(dtype, shape, first, last)
end

write("safetensors/empty", st "{}")
write("safetensors/metadata", st '{"__metadata__":{"format":"pt","k":"v"}}')
write("safetensors/two", st(('{"a":%s,"b":%s}'):format(entry("F32", "2", 0, 8), entry("U8", "", 8, 9)), ("x"):rep(9)))
write("safetensors/alias",
  st(('{"__metadata__":{"neap.alias.b":"a"},"a":%s}'):format(entry("I64", "1,1", 0, 8)), ("y"):rep(8)))
write("safetensors/bool", st(('{"m":%s}'):format(entry("BOOL", "3", 0, 3)), "\0\1\1"))
write("safetensors/zero", st(('{"m":%s}'):format(entry("F16", "0,9", 0, 0))))
for i, d in ipairs { "F64", "BF16", "I32", "I8" } do
  local size = ({ 8, 2, 4, 1 })[i]
  write("safetensors/" .. d, st(('{"t":%s}'):format(entry(d, "2,2", 0, 4 * size)), ("z"):rep(4 * size)))
end
write("safetensors/overlap", st(('{"a":%s,"b":%s}'):format(entry("U8", "2", 0, 2), entry("U8", "2", 1, 3)), "abc"))
write("safetensors/length", string.pack("<I8", 1 << 62) .. "{}")

local function idx(code, sizes, data)
  local head = string.pack(">I2BB", 0, code, #sizes)
  for _, s in ipairs(sizes) do head = head .. string.pack(">I4", s) end
  return head .. data
end

write("idx/u8", idx(0x08, { 2, 3 }, "abcdef"))
write("idx/i8", idx(0x09, { 4 }, "abcd"))
write("idx/i16", idx(0x0B, { 2 }, string.pack(">i2i2", -2, 300)))
write("idx/i32", idx(0x0C, { 1, 2 }, string.pack(">i4i4", -2, 70000)))
write("idx/f32", idx(0x0D, { 2 }, string.pack(">ff", 1.5, -2)))
write("idx/f64", idx(0x0E, { 1 }, string.pack(">d", 1.5)))
write("idx/empty", idx(0x08, { 0, 5 }, ""))
write("idx/short", idx(0x08, { 9 }, "abc"))
os.execute(("gzip -9 -n -c '%s/idx/u8' > '%s/idx/u8.gz'"):format(dir, dir))
os.execute(("gzip -9 -n -c '%s/idx/i32' > '%s/idx/i32.gz'"):format(dir, dir))

local function npy(version, descr, order, shape, data)
  local head = ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n"):format(descr, order, shape)
  return "\x93NUMPY" .. string.pack(version == 1 and "<BBs2" or "<BBs4", version, 0, head) .. data
end

write("npy/f4", npy(1, "<f4", "False", "(2,)", ("x"):rep(8)))
write("npy/big", npy(2, ">f8", "True", "(1, 2)", ("x"):rep(16)))
write("npy/bool", npy(3, "|b1", "False", "()", "\1"))
write("npy/empty", npy(1, "<i8", "False", "(0, 3)", ""))
write("npy/object", npy(1, "|O", "False", "(1,)", ("x"):rep(8)))

for _, name in ipairs { "plain", "packed" } do
  local f = assert(io.open("tests/golden/" .. name .. ".npz", "rb"))
  local bytes = f:read "a"
  f:close()
  write("npz/" .. name, bytes)
  write("npz/" .. name .. "-short", bytes:sub(1, -30))
  write("npz/" .. name .. "-changed", (bytes:gsub("\x93NUM", "\x93NUN", 1)))
end

write("csv/numbers", "year,lynx,hare\n1900,4.0,30.0\n1901,6.1,47.2\n")
write("csv/quotes", 'a,"b ""c"""\r\n"x,\ny",-1e3\r\n\r\nNA,')
write("csv/one", "x\n1\n\n 2 \nnan\ninf")
write("csv/ragged", "a,b\n1\n")
write("csv/open", 'a\n"b')
write("csv/empty", "")
