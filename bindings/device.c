/* device.c - devices that plug-ins bring, as Lua asks for them (lua/cuda.lua). */
#include <stdio.h>

#include "nl.h"

/* plugin_devices(name) -> how many, why none */
static int plugin_devices(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char why[300];
    int n = neap_x_plugin_devices(st->c, luaL_checkstring(L, 1), why, sizeof why);
    lua_pushinteger(L, n);
    lua_pushstring(L, why);
    return 2;
}

static void set_version(lua_State *L, const char *name, int v)
{
    lua_pushfstring(L, "%d.%d", v / 1000, v % 1000 / 10);
    lua_setfield(L, -2, name);
}

static void set_integer(lua_State *L, const char *name, int64_t v)
{
    lua_pushinteger(L, v);
    lua_setfield(L, -2, name);
}

/* device_facts(device) -> table; see neap.cuda.properties */
static int device_facts(lua_State *L)
{
    nl_state *st = nl_enter(L);
    np_device_facts f;
    if (!neap_x_device_facts(st->c, nl_check_device(L, st, 1, "cuda.properties"), &f))
        return nl_raise(L, st, "cuda.properties");
    lua_createtable(L, 0, 10);
    lua_pushstring(L, f.name);
    lua_setfield(L, -2, "name");
    lua_pushfstring(L, "%d.%d", f.major, f.minor);
    lua_setfield(L, -2, "capability");
    set_integer(L, "processors", f.processors);
    set_integer(L, "memory", f.memory);
    set_integer(L, "memory_free", f.memory_free);
    set_version(L, "driver", f.driver);
    set_version(L, "runtime", f.runtime);
    lua_pushstring(L, f.products);
    lua_setfield(L, -2, "products");
    set_integer(L, "product_plans", f.product_plans);
    set_integer(L, "product_hits", f.product_hits);
    return 1;
}

/* synchronize(device) */
static int synchronize(lua_State *L)
{
    nl_state *st = nl_enter(L);
    if (!neap_x_synchronize(st->c, nl_check_device(L, st, 1, "cuda.synchronize")))
        return nl_raise(L, st, "cuda.synchronize");
    return 0;
}

static const luaL_Reg functions[] = {{"plugin_devices", plugin_devices},
                                     {"device_facts", device_facts},
                                     {"synchronize", synchronize},
                                     {NULL, NULL}};

void nl_open_device(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
