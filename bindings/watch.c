/* watch.c - what lua/profile.lua and lua/memory.lua are made of: a watch (core/autograd/watch.h) as a userdata, and
 * who holds memory now by handle scope.
 *
 * The guard that a watch comes with ends it and keeps it alive; afterwards it can only be read. A state that closes
 * empties the watches that are left. */
#include "nl.h"

struct nl_watch {
    nl_state *st;
    np_watch *w; /* NULL: the state was closed */
    uint64_t id; /* its ambient entry */
    nl_watch *prev, *next;
};

static const char *const phases[] = {"forward", "backward", "recompute"};

static void where(void *user, char *buf, size_t n)
{
    nl_state *st = user;
    buf[0] = 0;
    if (lua_checkstack(st->L, 4)) nl_where(st->L, st, buf, n);
}

static void end_watch(nl_watch *b)
{
    if (!b->w) return;
    neap_x_pop(b->st->c, b->id);
    neap_x_watch_free(b->w);
    b->w = NULL;
    if (b->prev) b->prev->next = b->next;
    else b->st->watches = b->next;
    if (b->next) b->next->prev = b->prev;
}

void nl_watches_close(nl_state *st)
{
    while (st->watches) end_watch(st->watches);
}

void nl_watch_made(nl_state *st, neap_tensor *t)
{
    for (nl_watch *b = st->watches; b; b = b->next)
        if (neap_x_find(st->c, b->id)) neap_x_watch_made(b->w, t);
}

static int watch_gc(lua_State *L)
{
    end_watch(lua_touserdata(L, 1));
    return 0;
}

uint64_t nl_watch_push(lua_State *L, nl_state *st, nl_guard *g, unsigned flags)
{
    nl_watch *b = lua_newuserdatauv(L, sizeof *b, 0);
    *b = (nl_watch){.st = st};
    nl_set_metatable(L, &st->k_watch);
    lua_pushvalue(L, -1);
    lua_setiuservalue(L, -3, 1);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_watches);
    lua_pushvalue(L, -2);
    lua_rawsetp(L, -2, b);
    lua_pop(L, 1);
    b->w = neap_x_watch_new(st->c, flags, neap_x_default_device(st->c), where, st);
    if (!b->w) return 0;
    b->next = st->watches;
    if (b->next) b->next->prev = b;
    st->watches = b;
    return b->id = neap_x_push(st->c, NP_AMB_TRACE, NP_TRACE_WATCH, b->w, g->what, g->where);
}

/* watch_begin(kind) -> guard, watch of the default device */
static int watch_begin(lua_State *L)
{
    static const char *const kinds[] = {"time", "memory", "storages", NULL};
    static const unsigned flags[] = {NP_WATCH_EVENTS, NP_WATCH_EVENTS | NP_WATCH_LIVE | NP_WATCH_STORAGES,
                                     NP_WATCH_STORAGES};
    static const char *const names[] = {"profile", "memory.profile", "detect_leaks"};
    nl_state *st = nl_enter(L);
    int kind = luaL_checkoption(L, 1, NULL, kinds);
    lua_settop(L, 1);
    nl_guard *g = nl_guard_new(L, st, names[kind]);
    if (!nl_guard_add(g, nl_watch_push(L, st, g, flags[kind]))) return nl_raise(L, st, names[kind]);
    return 2;
}

/* ---- reading */

static np_watch *check_watch(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_watch *b = nl_userdata(L, 1, &st->k_watch);
    if (!b || !b->w) nl_error(L, st, NEAP_E_ARG, "neap.watch: needs a watch");
    return b->w;
}

static size_t check_index(lua_State *L, size_t n)
{
    lua_Integer i = luaL_checkinteger(L, 2);
    luaL_argcheck(L, i >= 1 && (uint64_t)i <= n, 2, "no such element");
    return (size_t)i - 1;
}

static void push_line(lua_State *L, const np_watch *w, uint32_t line)
{
    if (line) lua_pushstring(L, w->lines[line].text);
    else lua_pushnil(L);
}

static void push_op(lua_State *L, int op)
{
    if (op >= 0) lua_pushstring(L, neap_x_op(op)->name);
    else lua_pushnil(L);
}

/* w:facts() -> number of events, number of storages, bytes held at the begin, op and line that raised the peak last */
static int facts(lua_State *L)
{
    np_watch *w = check_watch(L);
    if (w->failed)
        return nl_error(L, nl_up(L), NEAP_E_NOMEM,
                        "neap.profile: there was no memory to note what happened; watch a shorter piece");
    lua_pushinteger(L, (lua_Integer)w->n_events);
    lua_pushinteger(L, (lua_Integer)w->n_made);
    lua_pushinteger(L, w->held);
    push_op(L, w->peak_op);
    push_line(L, w, w->peak_line);
    return 5;
}

/* w:event(i) -> op, line or nil, phase, start in ns, ns, bytes */
static int event(lua_State *L)
{
    np_watch *w = check_watch(L);
    const np_watch_event *e = &w->events[check_index(L, w->n_events)];
    push_op(L, e->op);
    push_line(L, w, e->line);
    lua_pushstring(L, phases[e->phase]);
    lua_pushinteger(L, e->start);
    lua_pushinteger(L, e->ns);
    lua_pushinteger(L, e->bytes);
    return 6;
}

/* w:live(i) -> {param =, grad = ...}: live bytes by category while event i ran */
static int live(lua_State *L)
{
    np_watch *w = check_watch(L);
    size_t i = check_index(L, w->n_live);
    lua_createtable(L, 0, NP_N_CATEGORIES);
    for (int k = 0; k < NP_N_CATEGORIES; k++) {
        lua_pushinteger(L, w->live[i][k]);
        lua_setfield(L, -2, nl_categories[k]);
    }
    return 1;
}

/* w:storage(i) -> op or nil, line or nil, phase, bytes, category now or nil, category at the peak or nil */
static int storage(lua_State *L)
{
    np_watch *w = check_watch(L);
    const np_watch_made *m = &w->made[check_index(L, w->n_made)];
    push_op(L, m->op);
    push_line(L, w, m->line);
    lua_pushstring(L, phases[m->phase]);
    lua_pushinteger(L, (lua_Integer)m->st->bytes);
    if (m->st->refs > 0) lua_pushstring(L, nl_categories[m->st->category]);
    else lua_pushnil(L);
    if (w->peak_nr && m->peak == w->peak_nr) lua_pushstring(L, nl_categories[m->category]);
    else lua_pushnil(L);
    return 6;
}

/* ---- who holds memory now */

/* Adds t's storage to the row {where, handles, bytes} on top; each storage counts once, where it is seen first. */
static void count_handle(lua_State *L, const neap_tensor *t, int device, int seen, int64_t *n, int64_t *bytes)
{
    if (t->st->kind > NP_BYTES_FOREIGN || t->st->dev->index != device) return;
    ++*n;
    if (lua_rawgetp(L, seen, t->st) == LUA_TNIL) {
        *bytes += (int64_t)t->st->bytes;
        lua_pushboolean(L, 1);
        lua_rawsetp(L, seen, t->st);
    }
    lua_pop(L, 1);
}

static void push_scope_name(lua_State *L, nl_state *st, const nl_scope *s)
{
    const np_ambient_entry *e = s->id ? neap_x_find(st->c, s->id) : NULL;
    if (e)
        lua_pushfstring(L, "%s at %s", e->where ? e->where : "scope",
                        e->note[0] ? e->note : "an unknown line");
    else if (s == &st->root) lua_pushliteral(L, "no scope");
    else if (s == &st->orphans) lua_pushliteral(L, "captured by checkpointed functions");
    else if (s == &st->packed) lua_pushliteral(L, "packed by saved_tensors_hooks");
    else lua_pushliteral(L, "batches of loaders");
}

/* memory_holders([device]) -> list of {name =, handles =, bytes =}: handles by scope, innermost first */
static int memory_holders(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device =
        lua_isnoneornil(L, 1) ? neap_x_default_device(st->c) : nl_check_device(L, st, 1, "memory.report");
    lua_settop(L, 1);
    lua_newtable(L);
    lua_newtable(L);
    for (const nl_scope *s = st->root.prev;; s = s->prev) {
        int64_t n = 0, bytes = 0;
        for (const nl_handle *h = s->head.next; h != &s->head; h = h->next)
            if (h->t) count_handle(L, h->t, device, 2, &n, &bytes);
        if (n) {
            lua_createtable(L, 0, 3);
            push_scope_name(L, st, s);
            lua_setfield(L, -2, "name");
            lua_pushinteger(L, n);
            lua_setfield(L, -2, "handles");
            lua_pushinteger(L, bytes);
            lua_setfield(L, -2, "bytes");
            lua_rawseti(L, 3, (lua_Integer)lua_rawlen(L, 3) + 1);
        }
        if (s == &st->root) break;
    }
    return 1;
}

/* watch_running([device]) -> the newest watch of its storages in force, or nil */
static int watch_running(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device =
        lua_isnoneornil(L, 1) ? neap_x_default_device(st->c) : nl_check_device(L, st, 1, "memory.report");
    for (nl_watch *b = st->watches; b; b = b->next)
        if (b->w->flags & NP_WATCH_STORAGES && b->w->device == device && neap_x_find(st->c, b->id)) {
            lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_watches);
            lua_rawgetp(L, -1, b);
            return 1;
        }
    return 0;
}

/* collect_all(): what nobody can reach is gone, also cycles through gradients */
static int collect_all(lua_State *L)
{
    nl_state *st = nl_enter(L);
    for (int i = 0; i < 2; i++) {
        lua_gc(L, LUA_GCCOLLECT, 0);
        neap_x_collect_cycles(st->c);
    }
    return 0;
}

static const luaL_Reg functions[] = {{"watch_begin", watch_begin},
                                     {"watch_running", watch_running},
                                     {"memory_holders", memory_holders},
                                     {"collect_all", collect_all},
                                     {NULL, NULL}};
static const luaL_Reg metamethods[] = {{"__gc", watch_gc}, {NULL, NULL}};
static const luaL_Reg methods[] = {
    {"facts", facts}, {"event", event}, {"live", live}, {"storage", storage}, {NULL, NULL}};

void nl_open_watch(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    nl_open_class(L, st, &st->k_watch, "neap.Watch", metamethods, methods);
}
