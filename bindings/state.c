/* state.c - one nl_state per Lua state: who is running, when the collector must help, and the small tools of all
 * binding files.
 *
 * The state is a userdata that dies last in lua_close (finalizers run in reverse order of creation); handles that
 * outlive it in odd finalizers find st->c NULL. The running thread is anchored in the registry, so that st->L is
 * never a dangling pointer. */
#include "nl.h"

#include <time.h>

static const char state_key = 0;

nl_state *nl_state_get(lua_State *L)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
    nl_state *st = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return st;
}

double nl_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- functions and metatables */

void nl_pushfunction(lua_State *L, nl_state *st, lua_CFunction f)
{
    lua_pushlightuserdata(L, st);
    lua_pushcclosure(L, f, 1);
}

void nl_setfuncs(lua_State *L, nl_state *st, const luaL_Reg *list)
{
    lua_pushlightuserdata(L, st);
    luaL_setfuncs(L, list, 1);
}

void nl_metatable(lua_State *L, nl_state *st, void *key, const char *name, const luaL_Reg *list)
{
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, key) != LUA_TTABLE) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_rawsetp(L, LUA_REGISTRYINDEX, key);
    }
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__name");
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__metatable");
    nl_setfuncs(L, st, list);
}

void nl_open_class(lua_State *L, nl_state *st, void *key, const char *name, const luaL_Reg *metamethods,
                   const luaL_Reg *methods)
{
    nl_metatable(L, st, key, name, metamethods);
    lua_newtable(L);
    nl_setfuncs(L, st, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}

void nl_set_metatable(lua_State *L, void *key)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, key);
    lua_setmetatable(L, -2);
}

void *nl_userdata(lua_State *L, int idx, void *key)
{
    if (lua_type(L, idx) != LUA_TUSERDATA || !lua_getmetatable(L, idx)) return NULL;
    lua_rawgetp(L, LUA_REGISTRYINDEX, key);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same ? lua_touserdata(L, idx) : NULL;
}

/* ---- who is running */

static bool registered(lua_State *L, nl_state *st, const void *thread)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_by_pointer);
    bool known = lua_rawgetp(L, -1, thread) == LUA_TTHREAD;
    lua_pop(L, 2);
    return known;
}

static void register_thread(lua_State *L, nl_state *st)
{
    if (L == st->main || registered(L, st, L)) return; /* the main thread never dies */
    neap_x_pop_owner(st->c, L);                        /* of a dead coroutine that lay at the same address */
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_by_pointer);
    lua_pushthread(L);
    lua_rawsetp(L, -2, L);
    lua_pop(L, 1);
}

/* Is an owner's part of the ambient list out of force? A coroutine that yielded, ended or died. */
bool nl_asleep(void *user, const void *owner)
{
    nl_state *st = user;
    if (!owner || owner == st->main || !lua_checkstack(st->L, 3)) return false;
    if (!registered(st->L, st, owner)) return true;
    lua_State *co = (lua_State *)owner;
    lua_Debug ar;
    return lua_status(co) != LUA_OK || !lua_getstack(co, 0, &ar);
}

/* While other coroutines own entries, whether they sleep must be asked anew at every entry. */
static bool others_own(const nl_state *st)
{
    const np_ambient *a = &st->c->ambient;
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i].owner && a->v[i].owner != st->L && a->v[i].owner != st->main) return true;
    return false;
}

void nl_rewatch(nl_state *st) { st->watch = others_own(st); }

void nl_switch(lua_State *L, nl_state *st)
{
    if (!st->c) luaL_error(L, "neap: the context of this state is closed [E-STATE]");
    if (st->L == L) {
        neap_x_touch(st->c);
        return;
    }
    register_thread(L, st); /* before it can own an entry: who comes back to it must find it known */
    lua_pushthread(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_current);
    st->L = L;
    neap_x_run(st->c, L);
    nl_rewatch(st);
}

/* ---- collector */

static void full_collection(lua_State *L, nl_state *st)
{
    double begin = nl_clock();
    st->gc_running = true;
    lua_gc(L, LUA_GCCOLLECT, 0);
    neap_x_collect_cycles(st->c);
    st->gc_running = false;
    double took = nl_clock() - begin;
    st->gc_forced++;
    st->gc_seconds += took;
    st->gc_not_before = begin + took + 10 * took;
    int64_t twice = 2 * nl_live_bytes(st);
    st->gc_threshold = twice > NL_GC_FLOOR ? twice : NL_GC_FLOOR;
}

/* At the entry of an allocating binding, with live bytes over the threshold. Ten times the last collection's
 * duration must have passed: so collecting costs at most a tenth of the wall time. */
void nl_collect(lua_State *L, nl_state *st)
{
    if (st->gc_running || !lua_gc(L, LUA_GCISRUNNING, 0) || nl_clock() < st->gc_not_before) return;
    full_collection(L, st);
}

lua_State *nl_safe_thread(const nl_state *st) { return lua_status(st->L) == LUA_OK ? st->L : st->main; }

/* The allocator is out of memory: finalizers free handles, the second round what they held on to. Also with the
 * collector stopped. */
static int pressure(void *user, int device, int64_t bytes)
{
    nl_state *st = user;
    int tried = 0;
    if (!st->gc_running) {
        lua_State *L = nl_safe_thread(st);
        full_collection(L, st);
        full_collection(L, st);
        tried = 1;
    }
    if (st->host.pressure) tried |= st->host.pressure(st->host.user, device, bytes);
    return tried;
}

/* ---- log */

typedef struct log_line {
    nl_state *st;
    int level;
    const char *text;
} log_line;

static int call_logger(lua_State *L)
{
    const log_line *line = lua_touserdata(L, 1);
    static const char *const names[] = {"debug", "info", "warning"};
    lua_rawgetp(L, LUA_REGISTRYINDEX, &line->st->k_log);
    lua_pushstring(L, names[line->level < 0 ? 0 : line->level > 2 ? 2 : line->level]);
    lua_pushstring(L, line->text);
    lua_call(L, 2, 0);
    return 0;
}

/* What is said while the context is made: nobody listens yet. */
static void keep_text(void *user, int level, const char *text)
{
    nl_state *st = user;
    size_t n = strlen(st->opening);
    if (level >= 2) snprintf(st->opening + n, sizeof st->opening - n, "%s\n", text);
}

static void log_text(void *user, int level, const char *text)
{
    nl_state *st = user;
    lua_State *L = nl_safe_thread(st);
    if (st->host.log) st->host.log(st->host.user, level, text);
    if (!lua_checkstack(L, 4)) return;
    bool wanted = lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_log) == LUA_TFUNCTION;
    lua_pop(L, 1);
    if (!wanted) {
        if (level < 2 || st->host.log) return;
        lua_warning(L, "neap: ", 1);
        lua_warning(L, text, 0);
        return;
    }
    log_line line = {st, level, text};
    lua_State *running = st->L;
    lua_pushcfunction(L, call_logger);
    lua_pushlightuserdata(L, &line);
    if (lua_pcall(L, 1, 0, 0) != LUA_OK) lua_pop(L, 1);
    if (st->L != running) nl_switch(running, st);
}

void nl_log_opening(nl_state *st)
{
    for (char *at = st->opening, *end; (end = strchr(at, '\n')); at = end + 1) {
        *end = 0;
        log_text(st, 2, at);
        *end = '\n';
    }
}

static neap_ctx *new_context(nl_state *st)
{
    neap_ctx *c = neap_ctx_new(&(neap_ctx_opts){.size = sizeof(neap_ctx_opts), .log = keep_text, .user = st});
    if (c) c->opts.log = NULL, c->opts.user = NULL;
    return c;
}

/* ---- opening and closing */

static void restore_host(nl_state *st)
{
    neap_ctx *c = st->c;
    c->opts = st->host;
    c->can_stop = NULL;
    c->can_stop_user = NULL;
    neap_x_set_asleep(c, NULL, NULL);
}

/* Empties every handle that is left, then lets the context go. */
void nl_state_close(lua_State *L, nl_state *st)
{
    neap_ctx *c = st->c;
    if (!c) return;
    st->L = L;
    for (nl_scope *s = &st->root;;) {
        while (s->head.next != &s->head) {
            nl_handle *h = s->head.next;
            nl_unlink(h);
            nl_empty(h, NULL);
        }
        s = s->next;
        if (s == &st->root) break;
    }
    nl_watches_close(st);
    nl_callbacks_detach(st);
    restore_host(st);
    free(st->ops);
    free(st->search);
    st->ops = NULL;
    st->search = NULL;
    st->c = NULL;
    if (st->own_ctx) neap_ctx_free(c);
}

static int state_gc(lua_State *L)
{
    nl_state *st = lua_touserdata(L, 1);
    nl_state_close(L, st);
    return 0;
}

static void weak_table(lua_State *L, const char *mode, void *key)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_pushstring(L, mode);
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_rawsetp(L, LUA_REGISTRYINDEX, key);
}

static void make_tables(lua_State *L, nl_state *st)
{
    weak_table(L, "k", &st->k_threads);
    weak_table(L, "v", &st->k_by_pointer);
    weak_table(L, "v", &st->k_anchors);
    weak_table(L, "v", &st->k_known);
    weak_table(L, "v", &st->k_watches);
    weak_table(L, "k", &st->k_names);
    weak_table(L, "k", &st->k_parts);
    lua_createtable(L, NL_PARKED, 0);
    for (int i = 1; i <= NL_PARKED; i++) { /* filled, so that parking a value never allocates */
        lua_pushboolean(L, 0);
        lua_rawseti(L, -2, i);
    }
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_parked);
    lua_newtable(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_ops);
    lua_newtable(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_late);
    lua_pushthread(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_current);
    lua_pushboolean(L, 0);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_log);
    lua_pushboolean(L, 0);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_spare);
}

static lua_State *main_thread(lua_State *L)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    lua_State *m = lua_tothread(L, -1);
    lua_pop(L, 1);
    return m;
}

/* Takes the context into use: the state is complete and cannot fail any more. */
static void attach(nl_state *st, neap_ctx *c, bool own)
{
    st->host = c->opts;
    c->opts.log = log_text;
    c->opts.pressure = pressure;
    c->opts.user = st;
    c->can_stop = nl_can_stop;
    c->can_stop_user = st;
    st->own_ctx = own;
    st->c = c;
    neap_x_set_asleep(c, nl_asleep, st);
    neap_x_run(c, st->L);
}

nl_state *nl_state_new(lua_State *L, neap_ctx *c, unsigned flags)
{
    nl_state *st = lua_newuserdatauv(L, sizeof *st, 0);
    memset(st, 0, sizeof *st);
    st->L = L;
    st->main = main_thread(L);
    st->flags = flags;
    st->gc_threshold = NL_GC_FLOOR;
    st->next_anchor = 1;
    st->print = (np_print_opts){.threshold = 1000, .edge = 3, .precision = 4, .width = 80};
    st->root.prev = st->root.next = &st->root;
    st->root.head.prev = st->root.head.next = &st->root.head;
    nl_scope_init(st, &st->orphans);
    nl_scope_init(st, &st->packed);
    nl_scope_init(st, &st->dying);
    st->orphans.holder = st->dying.holder = st->packed.holder = true;
    lua_newtable(L);
    lua_pushcfunction(L, state_gc);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key); /* kept from here on; without a context it does nothing */
    make_tables(L, st);
    nl_op *ops = calloc((size_t)neap_x_op_count(), sizeof *ops);
    neap_ctx *made = c || !ops ? NULL : new_context(st);
    if (!ops || (!c && !made)) {
        free(ops);
        lua_pushnil(L);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
        luaL_error(L, "neap: out of memory [E-NOMEM]");
        return NULL;
    }
    st->ops = ops;
    attach(st, c ? c : made, !c);
    register_thread(L, st);
    nl_log_opening(st);
    if (neap_error(st->c)) nl_raise(L, st, NULL); /* NEAP_DEVICE is not there */
    return st;
}
