/* checkpoint.c - a checkpointed call (non-reentrant): begin the region, run the function, end it; and running it
 * again when backward needs its values.
 *
 * The forward runs between lua_callk and its continuation, so it may yield. A recompute runs in a coroutine of its
 * own: when the region has what it needs, the op that was running yields and the coroutine is reset, which closes
 * its <close> variables without an error. A yield of the user's own is resumed at once. What a recompute needs of
 * Lua lies in the anchor: the body, the plan of the arguments (plan.c), and the store. */
#include "nl.h"

/* In the store: the set of copied tables, the user's function, the record of checkpoint.once, the function that
 * runs a recompute inside its context (or false), then the upvalues as they were at the forward. */
enum { S_COPIES = 1, S_FN, S_RECORD, S_AROUND, S_UPVALUES };

/* Arguments of checkpoint_call: the options' place is the guard's, once they are read. */
enum { P_FN = 1, P_GUARD, P_RECORD, P_BODY, P_FORWARD, P_AROUND, P_ARGS };

/* ---- recompute */

bool nl_can_stop(void *user)
{
    const nl_state *st = user;
    return st->run && st->run->co == st->L && lua_isyieldable(st->L);
}

static void adopt_thread(lua_State *L, nl_state *st, int idx, lua_State *co)
{
    neap_x_pop_owner(st->c, co);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_by_pointer);
    lua_pushvalue(L, idx);
    lua_rawsetp(L, -2, co);
    lua_pop(L, 1);
    nl_switch(co, st);
}

/* Runs co until it ends or is stopped. Pushes nothing, or the error on L. */
static int drive(lua_State *L, nl_state *st, nl_run *r, lua_State *co, int n)
{
    int results, status;
    r->co = co;
    r->outer = st->run;
    st->run = r;
    status = lua_resume(co, L, n, &results);
    while (status == LUA_YIELD && !r->stopped) {
        lua_pop(co, results);
        status = lua_resume(co, L, 0, &results);
    }
    st->run = r->outer;
    r->co = NULL; /* what <close> variables do now cannot be stopped */
    if (status != LUA_OK) status = lua_resetthread(co);
    if (status != LUA_OK) lua_xmove(co, L, 1);
    return status;
}

static void resume(lua_State *L, nl_run *r)
{
    nl_state *st = r->cb->st;
    int n = r->n_args;
    r->n_args = -1;
    nl_switch(r->dead, st);
    if (drive(L, st, r, r->dead, n) != LUA_OK) lua_error(L);
}

/* What a context's run() leads to. Upvalue 2: the nl_run, alive while the function around it runs. */
static int resume_inside(lua_State *L)
{
    nl_run *r = lua_touserdata(L, lua_upvalueindex(2));
    if (r->n_args >= 0) resume(L, r);
    return 0;
}

/* The new coroutine stands ready: body, record, function, arguments on its stack. */
static void prepare(lua_State *L, nl_state *st, nl_run *r, int anchor, int store)
{
    lua_State *co = lua_newthread(L);
    int thread = lua_gettop(L);
    r->dead = co;
    lua_rawgeti(L, anchor, NL_A_FN);
    lua_rawgeti(L, store, S_RECORD);
    lua_rawgeti(L, store, S_FN);
    lua_rawgeti(L, anchor, NL_A_ARGS);
    lua_rawgeti(L, store, S_COPIES);
    lua_pushinteger(L, 0); /* keeps plan and copies below the arguments */
    int top = lua_gettop(L);
    adopt_thread(L, st, thread, co);
    r->has_scope = nl_scope_begin_raw(st, &r->scope);
    if (!r->has_scope) nl_raise(L, st, "checkpoint");
    int n = nl_plan_push(L, st, r, top - 2, top - 1);
    if (!lua_checkstack(co, n + 20)) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory for the recompute");
    for (int i = 0; i < 3; i++) lua_pushvalue(L, thread + 1 + i);
    lua_rotate(L, top + 1, 3);
    lua_xmove(L, co, n + 3);
    r->n_args = n + 2;
}

static void note_changes(lua_State *L, nl_state *st, int store);

static int run_recompute(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    if (!nl_anchor_get(L, st, r->cb->cell))
        return nl_error(L, st, NEAP_E_INTERNAL, "neap.checkpoint: the function was collected while the graph still needs it");
    int anchor = lua_gettop(L);
    lua_rawgeti(L, anchor, NL_A_STORE);
    int store = lua_gettop(L);
    luaL_checkstack(L, 20, NULL);
    prepare(L, st, r, anchor, store);
    if (lua_rawgeti(L, store, S_AROUND) == LUA_TFUNCTION) {
        lua_pushlightuserdata(L, st);
        lua_pushlightuserdata(L, r);
        lua_pushcclosure(L, resume_inside, 2);
        lua_call(L, 1, 0);
    } else {
        resume(L, r);
    }
    note_changes(L, st, store);
    return 0;
}

/* The region's recompute. However it ended, its coroutine's part of the ambient state goes. */
static int recompute(neap_ctx *c, void *user, neap_values *v)
{
    nl_callback *cb = user;
    nl_run r = {.v = v};
    cb->refs++;
    bool ok = nl_callback_run(c, cb, &r);
    nl_state *st = cb->st;
    if (st && r.dead) neap_x_pop_owner(c, r.dead);
    nl_callback_release(cb);
    v->n_out = 0;
    return !ok;
}

/* ---- what differs: a variable that the function captured has another value than at the forward */

static void add_change(lua_State *L, nl_state *st, const char *name, int was, int is)
{
    char a[80], b[80];
    size_t used = strlen(st->changed), room = sizeof st->changed - used;
    int n = snprintf(st->changed + used, room, "%s '%.40s' (%s, now %s)",
                     used ? "," : "; captured variables that changed since the forward:", name, nl_kind(L, was, a, sizeof a),
                     nl_kind(L, is, b, sizeof b));
    if (n < 0 || (size_t)n >= room) st->changed[used] = 0; /* names that fit are enough */
}

static void note_changes(lua_State *L, nl_state *st, int store)
{
    st->changed[0] = 0;
    lua_rawgeti(L, store, S_FN);
    int fn = lua_gettop(L);
    const char *name;
    if (lua_type(L, fn) == LUA_TFUNCTION && !lua_iscfunction(L, fn)) {
        for (int i = 1; (name = lua_getupvalue(L, fn, i)); i++) {
            lua_rawgeti(L, store, S_UPVALUES + i - 1);
            if (!lua_rawequal(L, -1, -2)) add_change(L, st, name, fn + 2, fn + 1);
            lua_settop(L, fn);
        }
    }
    lua_settop(L, fn - 1);
}

static bool is_mismatch(neap_code code)
{
    return code == NEAP_E_COUNT || code == NEAP_E_META || code == NEAP_E_MORE_SAVED || code == NEAP_E_OPS ||
           code == NEAP_E_VALUES || code == NEAP_E_SAC_NOOP || code == NEAP_E_SAC_INDEX;
}

const char *nl_changed(lua_State *L, nl_state *st, neap_code code)
{
    if (!is_mismatch(code)) return "";
    if (st->run && lua_checkstack(L, 10) && nl_anchor_get(L, st, st->run->cb->cell)) {
        if (lua_rawgeti(L, -1, NL_A_STORE) == LUA_TTABLE) note_changes(L, st, lua_gettop(L));
        lua_pop(L, 2);
    }
    return st->changed;
}

/* ---- the forward */

static void read_options(lua_State *L, nl_state *st, int idx, neap_region_opts *o)
{
    neap_region_opts_init(o);
    o->preserve_rng_state = nl_bool_option(L, st, idx, "checkpoint", "preserve_rng_state", true);
    o->early_stop = nl_bool_option(L, st, idx, "checkpoint", "early_stop", true);
    if (!nl_get_option(L, idx, "determinism_check")) return;
    if (lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "none") == 0) o->check = NEAP_CHECK_NONE;
    lua_pop(L, 1);
}

/* Groups below the region: its inputs', the enclosing region's and the hooks' in force. */
static void add_parents(lua_State *L, nl_state *st, int anchor, neap_tensor *const *inputs, int n, uint64_t *covers, int max)
{
    int k = 0;
    for (int i = 0; i < n + 2; i++) {
        uint64_t g = i < n ? (st->n_callbacks ? nl_group_of(L, st, inputs[i]) : 0)
                     : i == n ? nl_current_scope(st)->group
                              : nl_hooks_group(st);
        bool known = g == 0;
        for (int j = 0; j < k && !known; j++) known = covers[j] == g;
        if (known) continue;
        nl_anchor_parent(L, st, anchor, g);
        if (k < max) covers[k++] = g;
    }
}

/* Pushes the table of what stands at S_... */
static void make_store(lua_State *L, int copies)
{
    int n = 0;
    bool lua = lua_type(L, P_FN) == LUA_TFUNCTION && !lua_iscfunction(L, P_FN);
    while (lua && lua_getupvalue(L, P_FN, n + 1)) n++, lua_pop(L, 1);
    lua_createtable(L, S_UPVALUES - 1 + n, 0);
    int store = lua_gettop(L);
    for (int i = 0; i < n; i++) {
        lua_getupvalue(L, P_FN, i + 1);
        lua_rawseti(L, store, S_UPVALUES + i);
    }
    const int from[] = {copies, P_FN, P_RECORD, P_AROUND};
    for (int i = 0; i < 4; i++) {
        lua_pushvalue(L, from[i]);
        lua_rawseti(L, store, S_COPIES + i);
    }
}

/* Pushes the anchor. */
static uint64_t make_anchor(lua_State *L, nl_state *st, nl_plan *p, int n_args)
{
    nl_plan_make(L, st, p, P_ARGS, n_args, false);
    int plan = lua_gettop(L) - 1;
    uint64_t cell = nl_anchor_new(L, st);
    int anchor = lua_gettop(L);
    make_store(L, plan + 1);
    lua_rawseti(L, anchor, NL_A_STORE);
    lua_pushvalue(L, plan);
    lua_rawseti(L, anchor, NL_A_ARGS);
    lua_pushvalue(L, P_BODY);
    lua_rawseti(L, anchor, NL_A_FN);
    return cell;
}

/* Tensors that the function and functions among its arguments captured, and those of the contexts. */
static void find_captured(lua_State *L, nl_state *st, int n_args)
{
    nl_capture_begin(L, st);
    nl_capture_find(L, st, P_FN);
    nl_capture_find(L, st, P_AROUND);
    for (int i = 0; i < n_args; i++)
        if (lua_type(L, P_ARGS + i) == LUA_TFUNCTION) nl_capture_find(L, st, P_ARGS + i);
}

/* What checkpoint.once remembered lives as long as the region, too. */
static void keep_remembered(lua_State *L, nl_state *st, nl_guard *g)
{
    nl_capture_begin(L, st);
    nl_capture_find(L, st, P_RECORD);
    if (!nl_capture_keep(st, g->cb)) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
}

static int call_done(lua_State *L, int status, lua_KContext base)
{
    (void)status;
    nl_state *st = nl_enter(L);
    nl_guard *g = lua_touserdata(L, P_GUARD);
    if (g->region) {
        keep_remembered(L, st, g);
        neap_region_end(st->c, g->region, 1);
        g->region = NULL;
    }
    for (int i = (int)base + 1, n = lua_gettop(L); i <= n; i++) nl_mark_tree(L, st, i, &g->scope);
    char where[100] = "";
    if (g->scope.head.next != &g->scope.head) nl_where(L, st, where, sizeof where);
    nl_guard_end(g, where);
    return lua_gettop(L) - (int)base;
}

/* Begins the region; the guard is in its place. False: grad mode is off. */
static bool begin_region(lua_State *L, nl_state *st, nl_guard *g, neap_region_opts *o, int n_args, uint64_t *cell,
                         uint64_t *covers, int max)
{
    nl_plan p;
    if (!neap_grad_enabled(st->c)) return false;
    luaL_checkstack(L, 20, NULL);
    *cell = make_anchor(L, st, &p, n_args);
    int anchor = lua_gettop(L);
    add_parents(L, st, anchor, p.v, p.n, covers, max);
    lua_setiuservalue(L, P_GUARD, 1); /* the guard keeps the anchor while the forward runs */
    find_captured(L, st, n_args);
    g->cb = nl_callback_new(L, st, *cell, run_recompute, "checkpoint", NL_LIFE_PLAIN);
    if (!nl_capture_keep(st, g->cb)) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
    o->recompute = (neap_fn){recompute, nl_callback_retain, nl_callback_release, g->cb};
    o->name = g->where[0] ? g->where : "a checkpoint";
    for (int i = 0; i < p.n; i++) neap_retain(p.v[i]);
    g->region = neap_region_begin(st->c, o, p.v, p.n);
    for (int i = 0; i < p.n; i++) neap_free(p.v[i]);
    if (!g->region && neap_error(st->c)) nl_raise(L, st, "checkpoint");
    return g->region != NULL;
}

/* checkpoint_run(fn, options, record, body, forward, around, ...): runs forward(record, fn, ...), or the body if it
 * is nil; a recompute runs body(record, fn, ...), inside around(run) unless that is nil. All is checked already
 * (lua/checkpoint.lua). */
static int checkpoint_run(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L) - (P_ARGS - 1);
    uint64_t cell = 0, covers[6] = {0};
    neap_region_opts o;
    nl_maybe_collect(L, st);
    if (n < 0) return nl_error(L, st, NEAP_E_ARG, "neap.checkpoint_run: is the library's own; call neap.checkpoint");
    nl_check_body(L, st, P_FN, "checkpoint");
    nl_check_body(L, st, P_BODY, "checkpoint");
    read_options(L, st, P_GUARD, &o);
    nl_guard *g = nl_guard_new(L, st, "checkpoint");
    lua_replace(L, P_GUARD);
    nl_guard_body(L, st, P_GUARD);
    bool region = begin_region(L, st, g, &o, n, &cell, covers, 6);
    int base = n + P_ARGS - 1;
    lua_settop(L, base);
    if (!nl_guard_scope(g)) return nl_raise(L, st, "checkpoint");
    if (region) {
        g->scope.group = cell;
        g->scope.first_seq = st->c->next_seq;
        memcpy(g->scope.covers, covers, sizeof covers);
    }
    luaL_checkstack(L, n + 12, "too many arguments");
    lua_pushvalue(L, region && !lua_isnil(L, P_FORWARD) ? P_FORWARD : P_BODY);
    lua_pushvalue(L, P_RECORD);
    lua_pushvalue(L, P_FN);
    for (int i = 0; i < n; i++) lua_pushvalue(L, P_ARGS + i);
    lua_callk(L, n + 2, LUA_MULTRET, base, call_done);
    return call_done(L, LUA_OK, base);
}

static const luaL_Reg functions[] = {{"checkpoint_run", checkpoint_run}, {NULL, NULL}};

void nl_open_checkpoint(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
