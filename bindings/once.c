/* once.c - checkpoint.once: what must not run again in a recompute.
 *
 * A region has a record of what `once` returned in it, by order. While its function runs it is a frame: the original
 * run (a guard) appends to the record, a recompute (an nl_run) takes from it. Frames have ascending numbers; in force
 * are those of the running coroutine, else of the one with the newest frame among those that wait for it. An original
 * run appends to the records of all regions it is inside of; a recompute takes from its own and hands on to regions
 * that it opens anew. Inside of `once` itself none of the frames around it is in force: a recompute of theirs will
 * not get there. */
#include "nl.h"

/* Frames up to this number are outside of the innermost `once`: the value of its entry. */
static uint64_t hidden(nl_state *st)
{
    np_ambient_entry *e = neap_x_effective(st->c, NP_AMB_REGION);
    while (e && !e->value) e = neap_x_below(st->c, NP_AMB_REGION, e->id);
    return e ? (uint64_t)e->value : 0;
}

static bool is_frame(const nl_guard *g) { return g->cb && g->frame; }

/* The coroutine whose frames are in force, NULL: there are none. */
static const lua_State *thread_in_force(lua_State *L, nl_state *st)
{
    const lua_State *best = NULL;
    uint64_t newest = 0;
    for (const nl_guard *g = st->bodies; g; g = g->next) {
        if (!is_frame(g)) continue;
        if (g->owner == L) return L;
        if (g->frame > newest && !nl_asleep(st, g->owner)) best = g->owner, newest = g->frame;
    }
    for (const nl_run *r = st->run; r; r = r->outer) {
        if (r->dead == L) return L;
        if (r->frame > newest && !nl_asleep(st, r->dead)) best = r->dead, newest = r->frame;
    }
    return best;
}

/* Puts the next of a recompute's record at `remembered`. */
static void take(lua_State *L, nl_state *st, nl_run *r, int remembered)
{
    nl_push_record(L, st, r->cb);
    if (lua_rawgeti(L, -1, ++r->once) != LUA_TTABLE)
        nl_error(
            L, st, NEAP_E_COUNT,
            "checkpoint.once: call %d in the recompute, but the forward made %d; the function must call it "
            "as often in both runs",
            r->once, (int)lua_rawlen(L, -2));
    lua_replace(L, remembered);
    lua_pop(L, 1);
}

/* once_next() -> what the recompute around remembers (or nil), the records to add to (or nil). */
static int once_next(lua_State *L)
{
    nl_state *st = nl_enter(L);
    uint64_t after = hidden(st);
    const lua_State *thread = thread_in_force(L, st);
    int n = 0;
    lua_settop(L, 0);
    lua_pushnil(L);
    lua_pushnil(L);
    if (!thread) return 2;
    for (nl_run *r = st->run; r; r = r->outer)
        if (r->dead == thread && r->frame > after) take(L, st, r, 1);
    for (nl_guard *g = st->bodies; g; g = g->next) {
        if (g->owner != thread || !is_frame(g) || g->frame <= after) continue;
        if (n == 0) {
            lua_newtable(L);
            lua_replace(L, 2);
        }
        g->remembers = true;
        nl_push_record(L, st, g->cb);
        lua_rawseti(L, 2, ++n);
    }
    return 2;
}

/* once_begin() -> a guard for a <close> variable. What runs in it is no part of the regions around: a recompute will
 * not run it, so it is neither recorded nor seen by policies, and its random numbers come from the live stream. */
static int once_begin(lua_State *L)
{
    static const np_ambient_kind kinds[] = {NP_AMB_HOOKS, NP_AMB_REGION, NP_AMB_TRACE, NP_AMB_INNER};
    nl_state *st = nl_enter(L);
    nl_guard *g = nl_guard_new(L, st, "checkpoint.once");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t value = kinds[i] == NP_AMB_REGION  ? (int64_t)st->next_frame
                        : kinds[i] == NP_AMB_TRACE ? NP_TRACE_BELOW
                                                   : 0;
        if (!nl_guard_add(g, neap_x_push(st->c, kinds[i], value, NULL, "checkpoint.once", g->where)))
            return nl_raise(L, st, "checkpoint.once");
    }
    return 1;
}

static const luaL_Reg functions[] = {{"once_next", once_next}, {"once_begin", once_begin}, {NULL, NULL}};

void nl_open_once(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
