/* checkpoint.c - a checkpointed call, of either variant: begin the region, run the function, end it; and running it
 * again when backward needs its values.
 *
 * The forward runs between lua_callk and its continuation, so it may yield. A recompute runs in a coroutine of its
 * own: when the region has what it needs, the op that was running yields and the coroutine is reset, which closes
 * its <close> variables without an error (a reentrant one always runs to its end). A yield of the user's own is resumed at once. What a recompute needs of
 * Lua lies in the anchor: the function and the store. */
#include "nl.h"

/* In the store: the set of copied tables, the record of checkpoint.once (or nil: nothing is remembered), the function
 * that runs a recompute inside its context (or nil), what keep_anchors keeps (or false), the number of arguments, their
 * plan (plan.c), then the upvalues as they were at the forward. */
enum { S_COPIES = 1, S_RECORD, S_AROUND, S_KEPT, S_N, S_ARGS };

/* Arguments of checkpoint_run: the options' place is the guard's, once they are read. */
enum { P_FN = 1, P_GUARD, P_FORWARD, P_AROUND, P_ARGS };

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
    r->co = NULL; /* what <close> variables do now cannot be stopped */
    if (status != LUA_OK) status = lua_resetthread(co);
    st->run = r->outer;
    if (status != LUA_OK) lua_xmove(co, L, 1);
    return status;
}

static void resume(lua_State *L, nl_run *r)
{
    nl_state *st = r->cb->st;
    int n = r->n_args;
    r->n_args = -1;
    r->frame = ++st->next_frame;
    nl_switch(r->dead, st);
    if (drive(L, st, r, r->dead, n) != LUA_OK) lua_error(L);
    r->finished = true;
}

/* What a context's run() leads to. Upvalue 2: the nl_run, alive while the function around it runs. */
static int resume_inside(lua_State *L)
{
    nl_run *r = lua_touserdata(L, lua_upvalueindex(2));
    if (r->n_args >= 0) resume(L, r);
    return 0;
}

static int number_of_args(lua_State *L, int store)
{
    lua_rawgeti(L, store, S_N);
    int n = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
    return n;
}

/* The new coroutine stands ready: function and arguments on its stack. */
static void prepare(lua_State *L, nl_state *st, nl_run *r, int anchor, int store)
{
    lua_State *co = lua_newthread(L);
    int thread = lua_gettop(L), n = number_of_args(L, store);
    r->dead = co;
    luaL_checkstack(L, n + 20, "too many arguments");
    adopt_thread(L, st, thread, co);
    r->has_scope = nl_scope_begin_raw(st, &r->scope);
    if (!r->has_scope) nl_raise(L, st, "checkpoint");
    lua_rawgeti(L, store, S_COPIES);
    lua_rawgeti(L, anchor, NL_A_FN);
    nl_plan_push(L, st, r, store, S_ARGS, n, thread + 1);
    if (!lua_checkstack(co, n + 20))
        nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory for the recompute");
    lua_xmove(L, co, n + 1);
    r->n_args = n;
}

static void note_changes(lua_State *L, nl_state *st, int anchor, int store);

static int run_recompute(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    if (!nl_anchor_get(L, st, r->cb->cell))
        return nl_error(L, st, NEAP_E_INTERNAL,
                        "neap.checkpoint: the function was collected while the graph still needs it");
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
    note_changes(L, st, anchor, store);
    return 0;
}

/* The tensors among the values first ... last on L's stack, as new references. */
static int take_tensors(lua_State *L, nl_state *st, int first, int last, neap_tensor **out)
{
    int n = 0;
    for (int i = first; i <= last; i++) {
        if (!nl_handle_at(L, st, i)) continue;
        nl_check_tensor(L, st, i, "checkpoint", "a result");
        if (n++ == NEAP_MAX_RESULTS)
            nl_error(L, st, NEAP_E_ARG,
                     "neap.checkpoint: more than %d tensor results of a reentrant checkpoint",
                     NEAP_MAX_RESULTS);
    }
    n = 0;
    for (int i = first; i <= last; i++) {
        const nl_handle *h = nl_handle_at(L, st, i);
        if (h) out[n++] = neap_retain(h->t);
    }
    return n;
}

static void add_anchor(lua_State *L, nl_state *st, neap_tensor *t, int list)
{
    uint64_t group = t ? nl_group_of(L, st, t) : 0;
    if (group && nl_anchor_get(L, st, group)) lua_rawseti(L, list, (lua_Integer)lua_rawlen(L, list) + 1);
}

/* The handles of a reentrant recompute die when it returns, the graph of its results does not: the pass differentiates
 * it next. The Lua functions in it live in the store until drop_anchors: a list whose first entry is the list of the
 * run around this one, or false. */
static void keep_anchors(lua_State *L, nl_state *st, const nl_run *r)
{
    if (!nl_anchor_get(L, st, r->cb->cell)) return;
    lua_rawgeti(L, -1, NL_A_STORE);
    int store = lua_gettop(L);
    lua_newtable(L);
    lua_rawgeti(L, store, S_KEPT);
    lua_rawseti(L, store + 1, 1);
    for (int i = 0; i < r->v->n_out; i++) add_anchor(L, st, r->v->out[i], store + 1);
    for (int i = 0; i < r->v->n_in; i++) add_anchor(L, st, r->v->in[i], store + 1);
    lua_rawseti(L, store, S_KEPT);
    lua_pop(L, 2);
}

/* The graph is gone. Allocates nothing: the key is there. */
static void drop_anchors(neap_ctx *c, void *user)
{
    const nl_callback *cb = user;
    nl_state *st = cb->st;
    (void)c;
    if (!st || !lua_checkstack(st->L, 5)) return; /* then they go with the region */
    lua_State *L = st->L;
    int top = lua_gettop(L);
    if (nl_anchor_get(L, st, cb->cell) && lua_rawgeti(L, -1, NL_A_STORE) == LUA_TTABLE &&
        lua_rawgeti(L, -1, S_KEPT) == LUA_TTABLE) {
        lua_rawgeti(L, -1, 1);
        lua_rawseti(L, -3, S_KEPT);
    }
    lua_settop(L, top);
}

/* The same for the reentrant variant: its results are what the pass goes on with. */
static int run_reentrant(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    run_recompute(L);
    r->v->n_out = take_tensors(r->dead, r->cb->st, 1, lua_gettop(r->dead), r->v->out);
    keep_anchors(L, r->cb->st, r);
    return 0;
}

/* The region's recompute. However it ended, its coroutine's part of the ambient state goes. Status 2: the function
 * did its part, what failed came after it: a <close> handler or a context. */
static int recompute(neap_ctx *c, void *user, neap_values *v)
{
    nl_callback *cb = user;
    nl_run r = {.v = v};
    v->n_out = 0;
    cb->refs++;
    bool ok = nl_callback_run(c, cb, &r);
    nl_state *st = cb->st;
    if (st && r.dead) neap_x_pop_owner(c, r.dead);
    nl_callback_release(cb);
    return ok ? 0 : r.stopped || r.finished ? 2 : 1;
}

/* The script line of the running op, for messages. */
static void where(neap_ctx *c, void *user, char *buf, size_t n)
{
    const nl_callback *cb = user;
    (void)c;
    buf[0] = 0;
    if (cb->st && lua_checkstack(cb->st->L, 4)) nl_where(cb->st->L, cb->st, buf, n);
}

/* ---- what differs: a variable that the function captured has another value than at the forward */

static void add_change(lua_State *L, nl_state *st, const char *name, int was, int is)
{
    char a[80], b[80];
    size_t used = strlen(st->changed), room = sizeof st->changed - used;
    int n = snprintf(st->changed + used, room, "%s '%.40s' (%s, now %s)",
                     used ? "," : "; captured variables that changed since the forward:", name,
                     nl_kind(L, was, a, sizeof a), nl_kind(L, is, b, sizeof b));
    if (n < 0 || (size_t)n >= room) st->changed[used] = 0; /* names that fit are enough */
}

static void note_changes(lua_State *L, nl_state *st, int anchor, int store)
{
    st->changed[0] = 0;
    lua_rawgeti(L, anchor, NL_A_FN);
    int fn = lua_gettop(L);
    const char *name;
    if (lua_type(L, fn) == LUA_TFUNCTION && !lua_iscfunction(L, fn)) {
        for (int i = 1, at = S_ARGS + number_of_args(L, store); (name = lua_getupvalue(L, fn, i)); i++) {
            lua_rawgeti(L, store, at + i - 1);
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
    if (!is_mismatch(code) && !(code == NEAP_E_INPLACE && st->run)) return "";
    if (st->run && lua_checkstack(L, 10) && nl_anchor_get(L, st, st->run->cb->cell)) {
        int anchor = lua_gettop(L);
        if (lua_rawgeti(L, anchor, NL_A_STORE) == LUA_TTABLE) note_changes(L, st, anchor, anchor + 1);
        lua_pop(L, 2);
    }
    return st->changed;
}

/* ---- the forward */

typedef struct call_options {
    neap_region_opts o;
    bool reentrant;
} call_options;

static neap_determinism check_named(const char *name)
{
    static const char *const names[] = {"none", "default", "ops", "values"}; /* SAME-ORDER neap_determinism */
    for (int i = 0; i < 4; i++)
        if (!strcmp(names[i], name)) return (neap_determinism)i;
    return NEAP_CHECK_DEFAULT;
}

/* simple_checkpoint(fn, options) -> flags for checkpoint_run, if fn is a function and options a plain table of
 * use_reentrant = false and other flags: such a call needs no more checks. Else nothing. */
enum { F_PRESERVE = 1, F_EARLY = 2, F_DEBUG = 4 };

static int simple_checkpoint(lua_State *L)
{
    bool given = false;
    int flags = F_PRESERVE | F_EARLY;
    if (lua_type(L, 1) != LUA_TFUNCTION || lua_type(L, 2) != LUA_TTABLE || lua_getmetatable(L, 2)) return 0;
    lua_pushnil(L);
    for (; lua_next(L, 2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TBOOLEAN) return 0;
        const char *name = lua_tostring(L, -2);
        bool on = lua_toboolean(L, -1);
        int flag = 0;
        if (!strcmp(name, "use_reentrant") && !on) given = true;
        else if (!strcmp(name, "preserve_rng_state")) flag = F_PRESERVE;
        else if (!strcmp(name, "early_stop")) flag = F_EARLY;
        else if (!strcmp(name, "debug")) flag = F_DEBUG;
        else return 0;
        flags = on ? flags | flag : flags & ~flag;
    }
    if (!given) return 0;
    lua_pushinteger(L, flags);
    return 1;
}

/* Flags, or one walk over the table, whose keys and types lua/checkpoint.lua has checked; what it does itself is passed
 * over. */
static void read_options(lua_State *L, int idx, call_options *o)
{
    neap_region_opts_init(&o->o);
    o->reentrant = false;
    o->o.where = where;
    if (lua_isinteger(L, idx)) {
        lua_Integer flags = lua_tointeger(L, idx);
        o->o.preserve_rng_state = (flags & F_PRESERVE) != 0;
        o->o.early_stop = (flags & F_EARLY) != 0;
        o->o.debug = (flags & F_DEBUG) != 0;
        return;
    }
    if (lua_type(L, idx) != LUA_TTABLE) return;
    lua_pushnil(L);
    for (; lua_next(L, idx); lua_pop(L, 1)) {
        const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
        bool on = lua_toboolean(L, -1);
        if (!strcmp(name, "use_reentrant")) o->reentrant = on;
        else if (!strcmp(name, "preserve_rng_state")) o->o.preserve_rng_state = on;
        else if (!strcmp(name, "early_stop")) o->o.early_stop = on;
        else if (!strcmp(name, "debug")) o->o.debug = on;
        else if (!strcmp(name, "determinism_check") && lua_type(L, -1) == LUA_TSTRING)
            o->o.check = check_named(lua_tostring(L, -1));
    }
}

/* Groups below the region: its inputs', the enclosing region's and the hooks' in force. */
static void add_parents(lua_State *L, nl_state *st, int anchor, neap_tensor *const *inputs, int n,
                        uint64_t *covers, int max)
{
    int k = 0;
    for (int i = 0; i < n + 2; i++) {
        uint64_t g = i < n    ? (st->n_callbacks ? nl_group_of(L, st, inputs[i]) : 0)
                     : i == n ? nl_current_scope(st)->group
                              : nl_hooks_group(st);
        bool known = g == 0;
        for (int j = 0; j < k && !known; j++) known = covers[j] == g;
        if (known) continue;
        nl_anchor_parent(L, st, anchor, g);
        if (k < max) covers[k++] = g;
    }
}

static int count_upvalues(lua_State *L, int fn)
{
    int n = 0;
    if (lua_type(L, fn) != LUA_TFUNCTION || lua_iscfunction(L, fn)) return 0;
    while (lua_getupvalue(L, fn, n + 1)) n++, lua_pop(L, 1);
    return n;
}

/* Pushes the anchor with its store. */
static uint64_t make_anchor(lua_State *L, nl_state *st, nl_plan *p, int n_args, bool reentrant)
{
    int n_up = count_upvalues(L, P_FN);
    uint64_t cell = nl_anchor_new(L, st);
    int anchor = lua_gettop(L), store = anchor + 1;
    lua_createtable(L, S_ARGS - 1 + n_args + n_up, 0);
    nl_plan_make(L, st, p, store, S_ARGS, P_ARGS, n_args, reentrant);
    lua_rawseti(L, store, S_COPIES);
    lua_pushvalue(L, P_AROUND);
    lua_rawseti(L, store, S_AROUND);
    lua_pushboolean(L, 0);
    lua_rawseti(L, store, S_KEPT);
    lua_pushinteger(L, n_args);
    lua_rawseti(L, store, S_N);
    for (int i = 0; i < n_up; i++) {
        lua_getupvalue(L, P_FN, i + 1);
        lua_rawseti(L, store, S_ARGS + n_args + i);
    }
    lua_pushvalue(L, store);
    lua_rawseti(L, anchor, NL_A_STORE);
    lua_pushvalue(L, P_FN);
    lua_rawseti(L, anchor, NL_A_FN);
    return cell;
}

/* Tensors that the function and functions among its arguments captured, and those of the contexts; and, where
 * tables are kept as they are, those in table arguments. */
static void find_captured(lua_State *L, nl_state *st, int n_args, bool reentrant)
{
    nl_capture_begin(L, st);
    nl_capture_find(L, st, P_FN);
    if (!lua_isnil(L, P_AROUND)) nl_capture_find(L, st, P_AROUND);
    for (int i = 0; i < n_args; i++) {
        int type = lua_type(L, P_ARGS + i);
        if (type == LUA_TFUNCTION || (reentrant && type == LUA_TTABLE)) nl_capture_find(L, st, P_ARGS + i);
    }
}

/* Pushes what checkpoint.once has remembered in a region, or will: a list by order. */
void nl_push_record(lua_State *L, nl_state *st, const nl_callback *cb)
{
    if (!nl_anchor_get(L, st, cb->cell) || lua_rawgeti(L, -1, NL_A_STORE) != LUA_TTABLE) {
        nl_error(L, st, NEAP_E_INTERNAL, "neap.checkpoint.once: the region around it is gone");
        return;
    }
    if (lua_rawgeti(L, -1, S_RECORD) != LUA_TTABLE) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, S_RECORD);
    }
    lua_replace(L, -3);
    lua_pop(L, 1);
}

/* What checkpoint.once remembered lives as long as the region, too. */
static void keep_remembered(lua_State *L, nl_state *st, nl_guard *g)
{
    if (!g->remembers) return;
    nl_push_record(L, st, g->cb);
    int record = lua_gettop(L), n = (int)lua_rawlen(L, record);
    nl_capture_begin(L, st);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, record, i);
        nl_capture_find(L, st, lua_gettop(L));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (!nl_capture_keep(st, g->cb)) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
}

/* The core has replaced some of the results (an input that came out again, say): those get the spare handles, which
 * stand above the results. Nothing here can fail. */
static void place_results(lua_State *L, nl_state *st, int first, int last, neap_tensor **results)
{
    for (int i = first, k = 0; i <= last; i++) {
        const nl_handle *h = nl_handle_at(L, st, i);
        if (!h) continue;
        if (h->t == results[k]) {
            neap_free(results[k]);
        } else {
            ((nl_handle *)lua_touserdata(L, last + 1 + k))->t = results[k];
            lua_copy(L, last + 1 + k, i);
        }
        k++;
    }
}

/* The results, from `first` on, get their place in the graph. */
static void end_reentrant(lua_State *L, nl_state *st, nl_guard *g, int first)
{
    neap_tensor *results[NEAP_MAX_RESULTS];
    int last = lua_gettop(L), spare = 0;
    luaL_checkstack(L, NEAP_MAX_RESULTS + 10, "too many results");
    for (int i = first; i <= last && spare < NEAP_MAX_RESULTS; i++)
        if (nl_handle_at(L, st, i)) nl_new_handle(L, st), spare++;
    int n = take_tensors(L, st, first, last, results);
    neap_reentrant *r = g->reentrant;
    g->reentrant = NULL;
    if (neap_reentrant_end(st->c, r, results, n, 1)) {
        for (int i = 0; i < n; i++) neap_free(results[i]);
        nl_raise(L, st, "checkpoint");
    }
    place_results(L, st, first, last, results);
    lua_settop(L, last);
    for (int i = first; i <= last; i++) {
        nl_handle *h = nl_handle_at(L, st, i);
        if (h && h->t->ag && st->n_callbacks) nl_anchor_handle(L, st, h, i);
    }
}

static int call_done(lua_State *L, int status, lua_KContext base)
{
    (void)status;
    nl_state *st = nl_enter(L);
    nl_guard *g = lua_touserdata(L, P_GUARD);
    if (g->cb) keep_remembered(L, st, g);
    if (g->region) neap_region_end(st->c, g->region, 1);
    g->region = NULL;
    if (g->reentrant) end_reentrant(L, st, g, (int)base + 1);
    for (int i = (int)base + 1, n = lua_gettop(L); i <= n; i++) nl_mark_tree(L, st, i, &g->scope);
    char where[100] = "";
    if (g->scope.head.next != &g->scope.head) nl_where(L, st, where, sizeof where);
    nl_guard_end(g, where);
    return lua_gettop(L) - (int)base;
}

/* The reentrant variant differentiates its arguments alone. */
static void warn_if_lost(nl_state *st, const nl_guard *g, const nl_plan *p)
{
    char text[300];
    for (int i = 0; i < p->n; i++)
        if (neap_requires_grad(p->v[i])) return;
    snprintf(
        text, sizeof text,
        "%s: no argument of a reentrant checkpoint requires grad: its results will not either; pass such a "
        "tensor, or use {use_reentrant = false} [W-NOGRAD-INPUT]",
        g->where[0] ? g->where : "checkpoint");
    st->c->opts.log(st->c->opts.user, 2, text);
}

/* Begins the region; the guard is in its place. False: grad mode is off. */
static bool begin_region(lua_State *L, nl_state *st, nl_guard *g, call_options *o, int n_args, uint64_t *cell,
                         uint64_t *covers, int max)
{
    nl_plan p;
    if (!neap_grad_enabled(st->c)) return false;
    luaL_checkstack(L, 20, NULL);
    int anchor = lua_gettop(L) + 1;
    *cell = make_anchor(L, st, &p, n_args, o->reentrant);
    add_parents(L, st, anchor, p.v, p.n, covers, max);
    lua_pushvalue(L, anchor);
    lua_setiuservalue(L, P_GUARD, 1); /* the guard keeps the anchor while the forward runs */
    find_captured(L, st, n_args, o->reentrant);
    nl_modes_keep(L, st, anchor);
    g->cb = nl_callback_new(L, st, *cell, o->reentrant ? run_reentrant : run_recompute, "checkpoint",
                            NL_LIFE_PLAIN);
    if (!nl_capture_keep(st, g->cb)) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
    if (o->reentrant) warn_if_lost(st, g, &p);
    o->o.done = drop_anchors;
    o->o.recompute = (neap_fn){recompute, nl_callback_retain, nl_callback_release, g->cb};
    o->o.name = g->where[0] ? g->where : "a checkpoint";
    for (int i = 0; i < p.n; i++) neap_retain(p.v[i]);
    if (o->reentrant) g->reentrant = neap_reentrant_begin(st->c, &o->o, p.v, p.n);
    else g->region = neap_region_begin(st->c, &o->o, p.v, p.n);
    for (int i = 0; i < p.n; i++) neap_free(p.v[i]);
    if (neap_error(st->c)) nl_raise(L, st, "checkpoint");
    return g->region || g->reentrant;
}

/* Inside a context of the forward: runs the function itself. Upvalue 2: the guard. */
static int function_done(lua_State *L, int status, lua_KContext k)
{
    (void)status, (void)k;
    nl_enter(L);
    ((nl_guard *)lua_touserdata(L, lua_upvalueindex(2)))->frame = 0;
    return lua_gettop(L);
}

static int run_function(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_guard *g = lua_touserdata(L, lua_upvalueindex(2));
    g->frame = ++st->next_frame;
    lua_pushvalue(L, lua_upvalueindex(3));
    lua_insert(L, 1);
    lua_callk(L, lua_gettop(L) - 1, LUA_MULTRET, 0, function_done);
    return function_done(L, LUA_OK, 0);
}

/* Pushes what the forward runs: the function, or the context around it and, first among its arguments, what
 * runs the function. The number of arguments that are pushed. */
static int push_forward(lua_State *L, nl_state *st, nl_guard *g, bool region)
{
    if (!region || lua_isnil(L, P_FORWARD)) {
        g->frame = ++st->next_frame;
        lua_pushvalue(L, P_FN);
        return 0;
    }
    g->reused = false; /* the context may keep what runs the function */
    lua_pushvalue(L, P_FORWARD);
    lua_pushlightuserdata(L, st);
    lua_pushvalue(L, P_GUARD);
    lua_pushvalue(L, P_FN);
    lua_pushcclosure(L, run_function, 3);
    return 1;
}

/* checkpoint_run(fn, options or flags, forward, around, ...): runs fn(...), inside forward(run, ...) unless that is nil; a
 * recompute runs it inside around(run) unless that is nil. All is checked already (lua/checkpoint.lua). */
static int checkpoint_run(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L) - (P_ARGS - 1);
    uint64_t cell = 0, covers[6] = {0};
    call_options o;
    nl_maybe_collect(L, st);
    if (n < 0)
        return nl_error(L, st, NEAP_E_ARG, "neap.checkpoint_run: is the library's own; call neap.checkpoint");
    nl_check_body(L, st, P_FN, "checkpoint");
    read_options(L, P_GUARD, &o);
    nl_guard *g = nl_guard_reuse(L, st, "checkpoint");
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
    int own = push_forward(L, st, g, region);
    for (int i = 0; i < n; i++) lua_pushvalue(L, P_ARGS + i);
    lua_callk(L, n + own, LUA_MULTRET, base, call_done);
    return call_done(L, LUA_OK, base);
}

static const luaL_Reg functions[] = {
    {"checkpoint_run", checkpoint_run}, {"simple_checkpoint", simple_checkpoint}, {NULL, NULL}};

void nl_open_checkpoint(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
