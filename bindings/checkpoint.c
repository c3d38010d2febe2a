/* checkpoint.c - a checkpointed call (non-reentrant): begin the region, run the function, end it; and running it
 * again when backward needs its values.
 *
 * The forward runs between lua_callk and its continuation, so it may yield. A recompute runs in a coroutine of its
 * own: when the region has what it needs, the op that was running yields and the coroutine is reset, which closes
 * its <close> variables without an error. A yield of the user's own is resumed at once. Arguments are remembered
 * by a plan: tensors by number (they are inputs of the region), plain tables that hold tensors as copies, all
 * else as it is. */
#include "nl.h"

/* Tensor k of a plan is a light pointer that no program can have: not a canonical address. */
#define MARK_BASE ((uintptr_t)0xfe5a000000000000u)

/* ---- the plan of the arguments */

typedef struct planner {
    lua_State *L;
    nl_state *st;
    int list;                  /* stack index of the list of tensors */
    int copies;                /* of the set of copied tables */
    int seen;                  /* of the map original table -> copy */
    int n;                     /* tensors so far */
} planner;

/* Pushes what stands in the plan for the value at idx. */
static void plan_value(planner *p, int idx, int depth)
{
    lua_State *L = p->L;
    idx = lua_absindex(L, idx);
    luaL_checkstack(L, 12, "arguments are nested too deeply");
    if (nl_handle_at(L, p->st, idx)) {
        nl_check_tensor(L, p->st, idx, "checkpoint", "an argument");
        lua_pushvalue(L, idx);
        lua_rawseti(L, p->list, ++p->n);
        lua_pushlightuserdata(L, (void *)(MARK_BASE + (uintptr_t)p->n));
        return;
    }
    if (lua_type(L, idx) == LUA_TTABLE) {
        lua_pushvalue(L, idx);
        if (lua_rawget(L, p->seen) != LUA_TNIL) return;
        lua_pop(L, 1);
    }
    if (depth == NL_WALK_DEPTH || lua_type(L, idx) != LUA_TTABLE || !nl_tree_has(L, p->st, idx, NULL)) {
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

/* Pushes the anchor: function, plan, copies. The list of tensors is at p->list. */
static uint64_t make_anchor(planner *p, int fn, int first, int n_args)
{
    lua_State *L = p->L;
    lua_newtable(L);
    p->list = lua_gettop(L);
    uint64_t cell = nl_anchor_new(L, p->st);
    int anchor = lua_gettop(L);
    lua_newtable(L);
    p->copies = lua_gettop(L);
    lua_newtable(L);
    p->seen = lua_gettop(L);
    lua_createtable(L, n_args, 1);
    int plan = lua_gettop(L);
    for (int i = 0; i < n_args; i++) {
        plan_value(p, first + i, 0);
        lua_rawseti(L, plan, i + 1);
    }
    lua_pushinteger(L, n_args);
    lua_setfield(L, plan, "n");
    lua_rawseti(L, anchor, NL_A_ARGS);
    lua_pop(L, 1);
    lua_rawseti(L, anchor, NL_A_STORE);
    lua_pushvalue(L, fn);
    lua_rawseti(L, anchor, NL_A_FN);
    return cell;
}

/* Pushes a plan's value with the tensors of this recompute in it. */
static void rebuild(lua_State *L, nl_state *st, nl_run *r, int idx, int copies, int made, int depth)
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
    if (lua_type(L, idx) == LUA_TTABLE) {
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
        rebuild(L, st, r, -2, copies, made, depth + 1);
        lua_rawset(L, copy);
        lua_pop(L, 1);
    }
}

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

static int run_recompute(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    if (!nl_anchor_get(L, st, r->cb->cell))
        return nl_error(L, st, NEAP_E_INTERNAL, "neap.checkpoint: the function was collected while the graph still needs it");
    int anchor = lua_gettop(L);
    lua_rawgeti(L, anchor, NL_A_ARGS);
    lua_rawgeti(L, anchor, NL_A_STORE);
    int plan = anchor + 1, copies = anchor + 2, made = anchor + 3, thread = anchor + 4;
    lua_newtable(L);
    lua_State *co = lua_newthread(L);
    r->dead = co;
    lua_getfield(L, plan, "n");
    int n = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
    luaL_checkstack(L, n + 20, "too many arguments");
    if (!lua_checkstack(co, n + 20)) return nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory for the recompute");
    adopt_thread(L, st, thread, co);
    r->has_scope = nl_scope_begin_raw(st, &r->scope);
    if (!r->has_scope) return nl_raise(L, st, "checkpoint");
    lua_rawgeti(L, anchor, NL_A_FN);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, plan, i);
        rebuild(L, st, r, -1, copies, made, 0);
        lua_remove(L, -2);
    }
    lua_xmove(L, co, n + 1);
    if (drive(L, st, r, co, n) != LUA_OK) return lua_error(L);
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

static int call_done(lua_State *L, int status, lua_KContext base)
{
    (void)status;
    nl_state *st = nl_enter(L);
    nl_guard *g = lua_touserdata(L, 2);
    char where[100];
    if (g->region) neap_region_end(st->c, g->region, 1);
    g->region = NULL;
    for (int i = (int)base + 1, n = lua_gettop(L); i <= n; i++) nl_mark_tree(L, st, i, &g->scope);
    nl_where(L, st, where, sizeof where);
    nl_guard_end(g, where);
    return lua_gettop(L) - (int)base;
}

/* Begins the region over fn at 1 and arguments at 3 ...; the guard is at 2. False: grad mode is off. */
static bool begin_region(lua_State *L, nl_state *st, nl_guard *g, neap_region_opts *o, int n_args, uint64_t *cell,
                         uint64_t *covers, int max)
{
    planner p = {.L = L, .st = st};
    int n;
    if (!neap_grad_enabled(st->c)) return false;
    luaL_checkstack(L, 20, NULL);
    *cell = make_anchor(&p, 1, 3, n_args);
    int anchor = lua_gettop(L);
    neap_tensor **inputs = nl_tensor_list(L, st, p.list, "checkpoint", "an argument", false, &n);
    add_parents(L, st, anchor, inputs, n, covers, max);
    lua_pushvalue(L, anchor);
    lua_setiuservalue(L, 2, 1); /* the guard keeps the anchor while the forward runs */
    nl_callback *cb = nl_callback_new(L, st, *cell, run_recompute, "checkpoint", NL_LIFE_PLAIN);
    o->recompute = (neap_fn){recompute, nl_callback_retain, nl_callback_release, cb};
    o->name = g->where[0] ? g->where : "a checkpoint";
    for (int i = 0; i < n; i++) neap_retain(inputs[i]);
    g->region = neap_region_begin(st->c, o, inputs, n);
    for (int i = 0; i < n; i++) neap_free(inputs[i]);
    nl_callback_release(cb); /* the region has its own reference */
    g->has_region = g->region != NULL;
    if (!g->region && neap_error(st->c)) nl_raise(L, st, "checkpoint");
    return g->has_region;
}

/* checkpoint_call(fn, options, ...): the options are checked already (lua/checkpoint.lua). */
static int checkpoint_call(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L) - 2;
    uint64_t cell = 0, covers[6] = {0};
    neap_region_opts o;
    nl_maybe_collect(L, st);
    if (n < 0) return nl_error(L, st, NEAP_E_ARG, "neap.checkpoint: needs a function and options");
    nl_check_body(L, st, 1, "checkpoint");
    read_options(L, st, 2, &o);
    nl_guard *g = nl_guard_new(L, st, "checkpoint");
    lua_replace(L, 2);
    nl_guard_body(L, st, 2);
    bool region = begin_region(L, st, g, &o, n, &cell, covers, 6);
    lua_settop(L, n + 2);
    if (!nl_guard_scope(g)) return nl_raise(L, st, "checkpoint");
    if (region) {
        g->scope.group = cell;
        g->scope.first_seq = st->c->next_seq;
        memcpy(g->scope.covers, covers, sizeof covers);
    }
    luaL_checkstack(L, n + 10, "too many arguments");
    lua_pushvalue(L, 1);
    for (int i = 0; i < n; i++) lua_pushvalue(L, 3 + i);
    lua_callk(L, n, LUA_MULTRET, n + 2, call_done);
    return call_done(L, LUA_OK, n + 2);
}

static const luaL_Reg functions[] = {{"checkpoint_call", checkpoint_call}, {NULL, NULL}};

void nl_open_checkpoint(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
