/* lua_files.h - the library's Lua files inside the binary (build/gen/lua_files.c, made by tools/embed.lua), so that a
 * host needs no LUA_PATH. */
#ifndef NL_LUA_FILES_H
#define NL_LUA_FILES_H

#include <stddef.h>

typedef struct nl_lua_file {
    const char *name; /* "neap.nn.linear" */
    const char *path; /* "nn/linear.lua" */
    const char *source;
    size_t size;
} nl_lua_file;

extern const nl_lua_file nl_lua_files[]; /* ends with name NULL */

#endif
