std = "lua54"
max_line_length = 120
exclude_files = { "build*/**", "demo/**", "tests/golden/**" }
ignore = { "212/_.*", "212/self" }
files["tests/lua"] = { std = "+busted" }
files["bindings"] = { std = "lua54" }
