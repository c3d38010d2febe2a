/* group.c - checkpoint.GraphExecGroup: backwards under one group compute a region again once.
 *
 * A group is entered by calling it with a function, or by a guard; the guard keeps it. Collecting it drops what it
 * holds, as close does. */
#include "nl.h"

typedef struct group {
    nl_state *st;
    neap_group *g;
} group;

static group *check_group(lua_State *L, nl_state *st, const char *method)
{
    group *g = nl_userdata(L, 1, &st->k_group);
    if (!g) nl_error(L, st, NEAP_E_ARG, "neap.GraphExecGroup: write group:%s(...), with a colon", method);
    return g;
}

/* GraphExecGroup() */
static int group_new(lua_State *L)
{
    nl_state *st = nl_enter(L);
    if (lua_gettop(L) > 0)
        return nl_error(
            L, st, NEAP_E_ARG,
            "neap.GraphExecGroup: takes no arguments; group = GraphExecGroup(), then group(fn, ...)");
    group *g = lua_newuserdatauv(L, sizeof *g, 0);
    *g = (group){st, NULL};
    nl_set_metatable(L, &st->k_group);
    g->g = neap_group_new(st->c);
    return g->g ? 1 : nl_raise(L, st, "GraphExecGroup");
}

/* Enters the group at 1: with a body from 2 on, or as a guard. */
static int enter(lua_State *L, nl_state *st, group *g)
{
    nl_guard *guard = nl_guard_new(L, st, "GraphExecGroup");
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1);
    if (!nl_guard_add(guard, neap_group_begin(st->c, g->g))) return nl_raise(L, st, "GraphExecGroup");
    return nl_guard_run(L, st, lua_gettop(L), 2);
}

/* group(fn, ...) -> fn's results */
static int group_call(lua_State *L)
{
    nl_state *st = nl_enter(L);
    group *g = check_group(L, st, "enter");
    nl_check_body(L, st, 2, "GraphExecGroup");
    return enter(L, st, g);
}

/* group:enter() -> guard */
static int group_enter(lua_State *L)
{
    nl_state *st = nl_enter(L);
    group *g = check_group(L, st, "enter");
    if (lua_gettop(L) > 1)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.GraphExecGroup: enter takes no function; write group(fn, ...)");
    return enter(L, st, g);
}

static int group_close(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_group_close(st->c, check_group(L, st, "close")->g);
    return 0;
}

static int group_gc(lua_State *L)
{
    group *g = lua_touserdata(L, 1);
    nl_state *st = g->st;
    lua_State *running = st->L;
    if (!g->g || !st->c) return 0;
    st->L = L;
    neap_group_free(st->c, g->g);
    g->g = NULL;
    st->L = running;
    return 0;
}

static const luaL_Reg functions[] = {{"GraphExecGroup", group_new}, {NULL, NULL}};
static const luaL_Reg methods[] = {{"enter", group_enter}, {"close", group_close}, {NULL, NULL}};
static const luaL_Reg metamethods[] = {
    {"__call", group_call}, {"__gc", group_gc}, {"__close", group_close}, {NULL, NULL}};

void nl_open_group(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    nl_open_class(L, st, &st->k_group, "neap.GraphExecGroup", metamethods, methods);
}
