std = "lua54"
max_line_length = 120
exclude_files = { "build*/**", "demo/**", "tests/golden/**" }
ignore = { "212/_.*", "212/self" }
files["tests/lua"] = { std = "+busted" }
files["bindings"] = { std = "lua54" }
files["library"] = { ignore = { "212", "241", "631" } } -- editor stubs: functions without bodies
files["tests/lua/golden"] = { ignore = { "211", "631" } } -- scripts with one header for all, kept as written
