/* capture.c - tensors captured by a checkpointed function outlive the scope they were made in.
 *
 * A recompute runs the function again, long after the scope around the call has ended. So a handle that the
 * function captured lives until its region dies or its own scope ends, whichever is later. The region's callback
 * and the handle are linked by a nl_capture; a scope that ends hands such handles to the list of orphans, and the
 * last callback that lets go of an orphan empties it. Captured are: upvalues of the function, in plain tables too,
 * and those of Lua functions among them. Tables with a metatable, the globals and the library's own tables are
 * not looked into: what a module holds is outside all scopes anyway. The search allocates nothing in Lua. */
#include "nl.h"

enum { FUNCTION_DEPTH = 4, MAX_VALUES = 1000, N_SEEN = 1024, MAX_SEEN = N_SEEN / 2 };

typedef struct nl_search {
    int n;      /* handles found */
    int values; /* looked at */
    int n_seen;
    uint64_t run; /* marks the entries of `seen` that are of this search */
    const void *globals;
    nl_handle *found[MAX_VALUES];
    struct {
        const void *p;
        uint64_t run;
    } seen[N_SEEN]; /* tables and functions, hashed by address */
} nl_search;

/* ---- the search */

static bool first_time(nl_search *s, const void *p)
{
    if (s->n_seen == MAX_SEEN || p == s->globals) return false;
    size_t i = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 54;
    while (s->seen[i].run == s->run) {
        if (s->seen[i].p == p) return false;
        i = (i + 1) % N_SEEN;
    }
    s->seen[i].p = p;
    s->seen[i].run = s->run;
    s->n_seen++;
    return true;
}

static void look(lua_State *L, nl_state *st, int table_depth, int function_depth);

static bool own_part(lua_State *L, nl_state *st, int idx)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_parts);
    lua_pushvalue(L, idx);
    bool part = lua_rawget(L, -2) != LUA_TNIL;
    lua_pop(L, 2);
    return part;
}

static void look_in_table(lua_State *L, nl_state *st, int table_depth, int function_depth)
{
    nl_search *s = st->search;
    int idx = lua_gettop(L);
    if (lua_getmetatable(L, idx)) {
        lua_pop(L, 1);
        return;
    }
    if (table_depth == NL_WALK_DEPTH || !first_time(s, lua_topointer(L, idx)) || own_part(L, st, idx)) return;
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        if (s->values == MAX_VALUES) {
            lua_pop(L, 2);
            return;
        }
        look(L, st, table_depth + 1, function_depth);
        lua_pop(L, 1);
    }
}

static void look_in_function(lua_State *L, nl_state *st, int function_depth)
{
    int idx = lua_gettop(L);
    if (lua_iscfunction(L, idx) || function_depth == FUNCTION_DEPTH) return;
    if (!first_time(st->search, lua_topointer(L, idx))) return;
    for (int i = 1; lua_getupvalue(L, idx, i); i++) {
        look(L, st, 0, function_depth + 1);
        lua_pop(L, 1);
    }
}

/* The value on top. Functions are followed where they are captured themselves, not inside tables. */
static void look(lua_State *L, nl_state *st, int table_depth, int function_depth)
{
    nl_search *s = st->search;
    if (s->values++ >= MAX_VALUES) return;
    switch (lua_type(L, -1)) {
    case LUA_TUSERDATA: {
        nl_handle *h = nl_handle_at(L, st, -1);
        if (h && h->t && h->scope && h->scope != &st->root && s->n < MAX_VALUES) s->found[s->n++] = h;
        break;
    }
    case LUA_TTABLE: look_in_table(L, st, table_depth, function_depth); break;
    case LUA_TFUNCTION:
        if (table_depth == 0) look_in_function(L, st, function_depth);
        break;
    default: break;
    }
}

void nl_capture_begin(lua_State *L, nl_state *st)
{
    nl_search *s = st->search;
    if (!s) {
        s = st->search = calloc(1, sizeof *s);
        if (!s) {
            nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
            return;
        }
        lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
        s->globals = lua_topointer(L, -1);
        lua_pop(L, 1);
    }
    s->n = s->values = s->n_seen = 0;
    s->run++;
}

void nl_capture_find(lua_State *L, nl_state *st, int idx)
{
    luaL_checkstack(L, 3 * (NL_WALK_DEPTH + 1) * (FUNCTION_DEPTH + 1) + 5, NULL);
    lua_pushvalue(L, idx);
    look(L, st, 0, 0);
    lua_pop(L, 1);
}

/* ---- the links */

struct nl_captures {
    struct nl_captures *more;
    int n;
    nl_capture v[];
};

bool nl_capture_keep(nl_state *st, nl_callback *cb)
{
    const nl_search *s = st->search;
    if (s->n == 0) return true;
    struct nl_captures *set = calloc(1, sizeof *set + (size_t)s->n * sizeof *set->v);
    if (!set) return false;
    set->n = s->n;
    for (int i = 0; i < s->n; i++) {
        nl_capture *a = &set->v[i];
        a->h = s->found[i];
        a->next = a->h->captures;
        if (a->next) a->next->prev = a;
        a->h->captures = a;
    }
    set->more = cb->captures;
    cb->captures = set;
    return true;
}

static void unlink_capture(nl_capture *a)
{
    if (a->prev) a->prev->next = a->next;
    else a->h->captures = a->next;
    if (a->next) a->next->prev = a->prev;
    a->h = NULL;
}

void nl_capture_orphan(nl_state *st, nl_handle *h, nl_note *note)
{
    nl_unlink(h);
    nl_link(&st->orphans, h);
    h->note = note; /* kept until the handle is empty */
    if (note) note->refs++;
}

void nl_capture_forget(nl_handle *h)
{
    while (h->captures) unlink_capture(h->captures);
}

/* Emptying a handle may drop graphs with regions, whose orphans join the list: one loop, no recursion. */
static void drain(nl_state *st)
{
    if (st->draining) return;
    st->draining = true;
    while (st->dying.head.next != &st->dying.head) {
        nl_handle *h = st->dying.head.next;
        nl_unlink(h);
        nl_link(&st->root, h);
        nl_empty(h, NULL);
    }
    st->draining = false;
}

static void let_go(nl_state *st, nl_capture *a)
{
    nl_handle *h = a->h;
    if (!h) return;
    unlink_capture(a);
    if (!st || h->captures || h->scope != &st->orphans) return;
    nl_unlink(h);
    nl_link(&st->dying, h);
}

void nl_capture_release(nl_state *st, nl_callback *cb)
{
    while (cb->captures) {
        struct nl_captures *set = cb->captures;
        cb->captures = set->more;
        for (int i = 0; i < set->n; i++) let_go(st, &set->v[i]);
        free(set);
    }
    if (st) drain(st);
}

/* library_part(table): one of the library's own tables. */
static int library_part(lua_State *L)
{
    nl_state *st = nl_up(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_parts);
    lua_insert(L, 1);
    lua_pushboolean(L, 1);
    lua_rawset(L, 1);
    return 0;
}

static const luaL_Reg functions[] = {{"library_part", library_part}, {NULL, NULL}};

void nl_open_capture(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
