/* lua.c - runs a Lua script with its arguments. `make build/cudaemu/tsan/lua` links it with clang's thread sanitizer,
 * which crashes when it is preloaded into a plain lua5.4, so that kernels built for it can be opened. */
#include <lauxlib.h>
#include <lualib.h>
#include <stdbool.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    lua_State *L = argc > 1 ? luaL_newstate() : NULL;
    if (!L) return 2;
    luaL_openlibs(L);
    lua_newtable(L);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - 1);
    }
    lua_setglobal(L, "arg");
    luaL_checkstack(L, argc, "too many arguments");
    bool failed = luaL_loadfile(L, argv[1]) != LUA_OK;
    for (int i = 2; !failed && i < argc; i++) lua_pushstring(L, argv[i]);
    failed = failed || lua_pcall(L, argc - 2, 0, 0) != LUA_OK;
    if (failed) fprintf(stderr, "%s\n", lua_tostring(L, -1));
    lua_close(L);
    return failed;
}
