/* plan.c - the arguments of a checkpointed call, kept for the recompute.
 *
 * Tensors are kept by number (they are inputs of the region, which holds them), plain tables that hold tensors as
 * copies, all else as it is. A table that stands in two places is one table in the copy too. */
#include "nl.h"

/* Tensor k of a plan is a light pointer that no program can have: not a canonical address. */
#define MARK_BASE ((uintptr_t)0xfe5a000000000000u)

/* Notes a tensor; the buffer beyond the first few is a userdata at p->buffer. */
static int note_tensor(nl_plan *p, neap_tensor *t)
{
    if (p->n == p->cap) {
        neap_tensor **v = lua_newuserdatauv(p->L, sizeof *v * 2 * (size_t)p->cap, 0);
        memcpy(v, p->v, sizeof *v * (size_t)p->n);
        lua_replace(p->L, p->buffer);
        p->v = v;
        p->cap *= 2;
    }
    p->v[p->n++] = t;
    return p->n;
}

static bool is_copied(const nl_plan *p, int idx, int depth)
{
    return !p->whole && depth < NL_WALK_DEPTH && lua_type(p->L, idx) == LUA_TTABLE &&
           nl_tree_has(p->L, p->st, idx, NULL);
}

/* Pushes what stands in the plan for the value at idx. */
static void plan_value(nl_plan *p, int idx, int depth)
{
    lua_State *L = p->L;
    idx = lua_absindex(L, idx);
    luaL_checkstack(L, 12, "arguments are nested too deeply");
    if (nl_handle_at(L, p->st, idx)) {
        int k = note_tensor(p, nl_check_tensor(L, p->st, idx, "checkpoint", "an argument"));
        lua_pushlightuserdata(L, (void *)(MARK_BASE + (uintptr_t)k));
        return;
    }
    if (lua_type(L, idx) == LUA_TTABLE && !p->whole) {
        lua_pushvalue(L, idx);
        if (lua_rawget(L, p->seen) != LUA_TNIL) return;
        lua_pop(L, 1);
    }
    if (!is_copied(p, idx, depth)) {
        lua_pushvalue(L, idx);
        return;
    }
    lua_newtable(L);
    int copy = lua_gettop(L);
    lua_pushvalue(L, copy);
    lua_pushboolean(L, 1);
    lua_rawset(L, p->copies);
    lua_pushvalue(L, idx);
    lua_pushvalue(L, copy);
    lua_rawset(L, p->seen);
    nl_sorted_keys(L, p->st, idx, "checkpoint");
    int keys = lua_gettop(L), n = (int)lua_rawlen(L, keys);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        lua_pushvalue(L, -1);
        lua_rawget(L, idx);
        plan_value(p, -1, depth + 1);
        lua_remove(L, -2);
        lua_rawset(L, copy);
    }
    lua_pop(L, 1);
}

static bool any_table(lua_State *L, int first, int n)
{
    for (int i = 0; i < n; i++)
        if (lua_type(L, first + i) == LUA_TTABLE) return true;
    return false;
}

void nl_plan_make(lua_State *L, nl_state *st, nl_plan *p, int store, int at, int first, int n_args,
                  bool whole)
{
    luaL_checkstack(L, 12, NULL);
    p->L = L;
    p->st = st;
    p->v = p->few;
    p->n = 0;
    p->cap = sizeof p->few / sizeof *p->few;
    p->whole = whole || !any_table(L, first, n_args);
    lua_pushnil(L);
    p->buffer = lua_gettop(L);
    p->copies = p->buffer + 1;
    p->seen = p->buffer + 2;
    if (p->whole) {
        lua_pushnil(L);
    } else {
        lua_newtable(L);
        lua_newtable(L);
    }
    for (int i = 0; i < n_args; i++) {
        plan_value(p, first + i, 0);
        lua_rawseti(L, store, at + i);
    }
    lua_settop(L, p->copies);
}

/* Pushes a plan's value with the tensors of this recompute in it. */
static void rebuild(lua_State *L, nl_state *st, const nl_run *r, int idx, int copies, int made)
{
    idx = lua_absindex(L, idx);
    luaL_checkstack(L, 8, "arguments are nested too deeply");
    if (lua_type(L, idx) == LUA_TLIGHTUSERDATA) {
        uintptr_t k = (uintptr_t)lua_touserdata(L, idx) - MARK_BASE;
        if (k >= 1 && k <= (uintptr_t)r->v->n_in) {
            nl_push_known(L, st, r->v->in[k - 1]);
            return;
        }
    }
    bool ours = false;
    if (made && lua_type(L, idx) == LUA_TTABLE) {
        lua_pushvalue(L, idx);
        if (lua_rawget(L, made) != LUA_TNIL) return;
        lua_pop(L, 1);
        lua_pushvalue(L, idx);
        ours = lua_rawget(L, copies) != LUA_TNIL;
        lua_pop(L, 1);
    }
    if (!ours) {
        lua_pushvalue(L, idx);
        return;
    }
    lua_newtable(L);
    int copy = lua_gettop(L);
    lua_pushvalue(L, idx);
    lua_pushvalue(L, copy);
    lua_rawset(L, made);
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pushvalue(L, -2);
        rebuild(L, st, r, -2, copies, made);
        lua_rawset(L, copy);
        lua_pop(L, 1);
    }
}

void nl_plan_push(lua_State *L, nl_state *st, const nl_run *r, int store, int at, int n, int copies)
{
    int made = 0;
    luaL_checkstack(L, n + 20, "too many arguments");
    if (lua_type(L, copies) == LUA_TTABLE) {
        lua_newtable(L);
        made = lua_gettop(L);
    }
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, store, at + i);
        rebuild(L, st, r, -1, copies, made);
        lua_remove(L, -2);
    }
    if (made) lua_remove(L, made);
}
