/* script.c - a host with its own Lua state: opens Neap in it, hands a tensor to a script, reads one back.
 *
 * The context belongs to the host, which shares it with the state and frees it after the state is closed. The
 * Lua files are found in the library: no search path is needed. */
#include <stdio.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "neap_lua.h"

static const char SCRIPT[] =
    "local neap = require 'neap'\n"
    "local x = ...                                  -- the host's tensor\n"
    "local w = neap.tensor({{1.0, -1.0}}, {requires_grad = true})\n"
    "for _ = 1, 200 do                              -- x w^T -> 3, by gradient descent\n"
    "  w.grad = nil\n"
    "  neap.linear(x, w):sub(3):square():mean():backward()\n"
    "  neap.no_grad(function() w:sub_(w.grad * 0.1) end)\n"
    "end\n"
    "return neap.linear(x, w):detach()\n";

/* Runs the script on t; prints what comes back. The texts of errors are Lua's. */
static int run(lua_State *L, neap_ctx *c, neap_tensor *t)
{
    if (neap_lua_push(L, t) != 0) {
        fprintf(stderr, "%s\n", neap_error_message(c));
        return 1;
    }
    int status = luaL_loadbuffer(L, SCRIPT, sizeof SCRIPT - 1, "=script");
    if (status == LUA_OK) {
        lua_rotate(L, -2, 1); /* the function below its argument */
        status = lua_pcall(L, 1, 1, 0);
    }
    if (status != LUA_OK) {
        fprintf(stderr, "%s\n", lua_tostring(L, -1));
        return 1;
    }
    neap_tensor *y = neap_lua_get(L, -1);
    float out[3];
    if (!y || neap_numel(y) != 3 || neap_read(c, y, out, sizeof out) != 0) {
        fprintf(stderr, "the script returned no tensor of three numbers\n");
        return 1;
    }
    printf("from the script: %.3f %.3f %.3f\n", (double)out[0], (double)out[1], (double)out[2]);
    lua_pop(L, 1);
    return 0;
}

int main(void)
{
    neap_ctx *c = neap_ctx_new(NULL);
    lua_State *L = luaL_newstate();
    int failed = !c || !L;
    if (!failed) {
        luaL_openlibs(L);
        const float data[] = {1, 0.5f, -1, 2, 2, -0.25f};
        const int64_t shape[] = {3, 2};
        neap_tensor *t = neap_from_data(c, 2, shape, NEAP_FLOAT32, data);
        failed = neap_lua_open(L, c, 0) != 0 || !t || run(L, c, t) != 0;
    }
    if (L) lua_close(L);
    if (c) neap_ctx_free(c);
    return failed;
}
