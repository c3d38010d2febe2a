-- For luarocks, from a checkout: luarocks make neap-0.1.0-1.rockspec
package = "neap"
version = "0.1.0-1"
source = { url = "." }
description = {
  summary = "Tensors, autograd and activation checkpointing under a memory ceiling",
  detailed = "Networks are trained in Lua 5.4 scripts, at a prompt or inside C programs; memory is counted to the byte.",
  license = "MIT",
}
dependencies = { "lua >= 5.4, < 5.5" }
external_dependencies = { JANSSON = { header = "jansson.h" }, ZLIB = { header = "zlib.h" } }
build = {
  type = "make",
  build_target = "build",
  install_target = "install-rock",
  install_variables = { LIBDIR = "$(LIBDIR)", LUADIR = "$(LUADIR)" },
}
