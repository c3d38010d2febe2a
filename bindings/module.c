/* module.c - opening Neap in a Lua state: as the module `neapcore` that lua/init.lua requires, and for hosts
 * (neap_lua.h). Opening is repeatable: the state and its metatables stay, the function table is made anew. */
#include "nl.h"

#include "lua_files.h"
#include "neap_lua.h"

/* A dead coroutine's guards, handles and so on know the state by upvalues: it is made once. */
static nl_state *open_state(lua_State *L, neap_ctx *c, unsigned flags)
{
    luaL_checkversion(L);
    nl_state *st = nl_state_get(L);
    return st ? st : nl_state_new(L, c, flags);
}

/* Pushes the table of functions. */
static void push_library(lua_State *L, nl_state *st)
{
    lua_newtable(L); /* methods */
    lua_newtable(L);
    nl_open_ops(L, st);
    nl_open_tensor(L, st);
    nl_open_create(L, st);
    nl_open_index(L, st);
    nl_open_scope(L, st);
    nl_open_capture(L, st);
    nl_open_guards(L, st);
    nl_open_autograd(L, st);
    nl_open_function(L, st);
    nl_open_checkpoint(L, st);
    nl_open_once(L, st);
    nl_open_selective(L, st);
    nl_open_group(L, st);
    nl_open_stream(L, st);
    nl_open_misc(L, st);
    nl_open_device(L, st);
    nl_open_watch(L, st);
    nl_open_optim(L, st);
    nl_open_files(L, st);
    lua_insert(L, -2);
    lua_setfield(L, -2, "methods");
}

NEAP_API int luaopen_neapcore(lua_State *L);
int luaopen_neapcore(lua_State *L)
{
    nl_state *st = open_state(L, NULL, 0);
    if (!st->c) return luaL_error(L, "neap: the context of this state is closed [E-STATE]");
    if (st->L != L) nl_switch(L, st);
    push_library(L, st);
    return 1;
}

/* ---- for hosts */

static int load_file(lua_State *L)
{
    const nl_lua_file *f = lua_touserdata(L, lua_upvalueindex(1));
    char chunk[120];
    snprintf(chunk, sizeof chunk, "@neap/%s", f->path);
    if (luaL_loadbufferx(L, f->source, f->size, chunk, "t") != LUA_OK) return lua_error(L);
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

static int open_protected(lua_State *L)
{
    neap_ctx *c = lua_touserdata(L, 1);
    nl_state *st = open_state(L, c, (unsigned)lua_tointeger(L, 2));
    if (c && st->c != c) return luaL_error(L, "neap: this state has another context");
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
    lua_pushcfunction(L, luaopen_neapcore);
    lua_setfield(L, -2, "neapcore");
    for (const nl_lua_file *f = nl_lua_files; f->name; f++) {
        lua_pushlightuserdata(L, (void *)f);
        lua_pushcclosure(L, load_file, 1);
        lua_setfield(L, -2, f->name);
    }
    return 0;
}

int neap_lua_open(lua_State *L, neap_ctx *ctx, unsigned flags)
{
    if (!lua_checkstack(L, 8)) return 1;
    lua_pushcfunction(L, open_protected);
    lua_pushlightuserdata(L, ctx);
    lua_pushinteger(L, flags);
    if (lua_pcall(L, 2, 0, 0) == LUA_OK) return 0;
    lua_pop(L, 1);
    return 1;
}

static int push_handle(lua_State *L)
{
    nl_new_handle(L, lua_touserdata(L, 1));
    return 1;
}

static int anchor_handle(lua_State *L)
{
    nl_anchor_handle(L, lua_touserdata(L, 2), lua_touserdata(L, 1), 1);
    return 0;
}

int neap_lua_push(lua_State *L, neap_tensor *t)
{
    nl_state *st = lua_checkstack(L, 8) ? nl_state_get(L) : NULL;
    if (st && st->c && t) {
        if (st->L != L) nl_switch(L, st);
        lua_pushcfunction(L, push_handle);
        lua_pushlightuserdata(L, st);
        if (lua_pcall(L, 1, 1, 0) == LUA_OK) {
            nl_handle *h = lua_touserdata(L, -1);
            h->t = t;
            if (!st->n_callbacks || !t->ag) return 0;
            lua_pushcfunction(L, anchor_handle);
            lua_pushvalue(L, -2);
            lua_pushlightuserdata(L, st);
            if (lua_pcall(L, 2, 0, 0) == LUA_OK) return 0;
            lua_pop(L, 2);
            return 1; /* the handle is garbage and drops the reference */
        }
        lua_pop(L, 1);
    }
    neap_free(t);
    return 1;
}

neap_tensor *neap_lua_get(lua_State *L, int idx)
{
    if (!lua_checkstack(L, 4)) return NULL;
    nl_state *st = nl_state_get(L);
    nl_handle *h = st ? nl_handle_at(L, st, idx) : NULL;
    return h ? h->t : NULL;
}

neap_ctx *neap_lua_context(lua_State *L)
{
    nl_state *st = lua_checkstack(L, 4) ? nl_state_get(L) : NULL;
    return st ? st->c : NULL;
}

lua_State *const volatile *neap_lua_running(lua_State *L)
{
    nl_state *st = lua_checkstack(L, 4) ? nl_state_get(L) : NULL;
    return st ? (lua_State *const volatile *)&st->L : NULL;
}

void neap_lua_close(lua_State *L)
{
    nl_state *st = lua_checkstack(L, 8) ? nl_state_get(L) : NULL;
    if (st) nl_state_close(L, st);
}
