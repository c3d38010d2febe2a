/* guards.c - contexts in both forms: neap.no_grad(fn, ...) runs a body, neap.no_grad() is a guard that is in force
 * until it is closed. The number of arguments decides.
 *
 * A guard ends what it opened by id, in any order. A body runs between lua_callk and its continuation, so it may
 * yield; the guard is its to-be-closed variable, so every way out ends it. A guard without a body is anchored in
 * its coroutine by a table with weak keys: dropping it changes nothing, and only the death of the coroutine lets
 * the collector end it. */
#include "nl.h"

/* ---- life of a guard */

static void begin_guard(lua_State *L, nl_state *st, nl_guard *g, const char *what)
{
    memset(g, 0, sizeof *g);
    g->st = st;
    g->owner = L;
    g->what = what;
    nl_where(L, st, g->where, sizeof g->where);
}

nl_guard *nl_guard_new(lua_State *L, nl_state *st, const char *what)
{
    nl_guard *g = lua_newuserdatauv(L, sizeof *g, 2);
    begin_guard(L, st, g, what);
    nl_set_metatable(L, &st->k_guard);
    return g;
}

/* For bodies whose guard no script can get hold of. One that is made anew costs the collector a finalizer. */
nl_guard *nl_guard_reuse(lua_State *L, nl_state *st, const char *what)
{
    nl_guard *g = st->spare;
    if (g) {
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_spare);
        lua_pushboolean(L, 0);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_spare);
        st->spare = NULL;
        begin_guard(L, st, g, what);
    } else {
        g = nl_guard_new(L, st, what);
    }
    g->reused = true;
    return g;
}

/* The key is there (state.c): nothing is allocated. */
static void give_back(lua_State *L, nl_state *st, nl_guard *g, int idx)
{
    g->reused = false;
    if (st->spare) return;
    lua_pushnil(L);
    lua_setiuservalue(L, idx, 1);
    lua_pushvalue(L, idx);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_spare);
    st->spare = g;
}

bool nl_guard_add(nl_guard *g, uint64_t id)
{
    if (!id) return false;
    g->ids[g->n_ids++] = id;
    neap_x_note(g->st->c, id, g->what, g->where);
    return true;
}

static void leave_bodies(nl_guard *g)
{
    if (!g->body) return;
    if (g->prev) g->prev->next = g->next;
    else g->st->bodies = g->next;
    if (g->next) g->next->prev = g->prev;
    g->body = false;
}

void nl_guard_end_ids(nl_guard *g)
{
    while (g->n_ids > 0) neap_end(g->st->c, g->ids[--g->n_ids]);
}

void nl_guard_end(nl_guard *g, const char *ended)
{
    nl_state *st = g->st;
    if (g->closed) return;
    g->closed = true;
    leave_bodies(g);
    if (st->c && g->region) neap_region_end(st->c, g->region, 0);
    g->region = NULL;
    if (st->c && g->reentrant) neap_reentrant_end(st->c, g->reentrant, NULL, 0, 0);
    g->reentrant = NULL;
    if (g->cb) nl_callback_release(g->cb);
    g->cb = NULL;
    if (!st->c) return;
    nl_guard_end_ids(g);
    if (g->has_scope && g->scope.next != &g->scope)
        nl_scope_end(st, &g->scope, g->where, ended, g->scope.holder ? &st->root : NULL);
    if (g->mode) {
        nl_callback_release(((np_mode *)g->mode)->user);
        free(g->mode);
        g->mode = NULL;
    }
}

/* Takes a closed guard out of its coroutine's list. */
static void unanchor(lua_State *L, nl_guard *g, int idx)
{
    if (!g->anchored) return;
    g->anchored = false;
    if (lua_getiuservalue(L, idx, 2) == LUA_TTABLE) {
        lua_pushvalue(L, idx);
        lua_pushnil(L);
        lua_rawset(L, -3);
        lua_pushstring(L, g->where);
        if (lua_rawget(L, -2) == LUA_TNUMBER) {
            lua_Integer open = lua_tointeger(L, -1) - 1;
            lua_pushstring(L, g->where);
            if (open > 0) lua_pushinteger(L, open);
            else lua_pushnil(L);
            lua_rawset(L, -4);
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static int guard_close(lua_State *L)
{
    nl_state *st = nl_up(L);
    nl_guard *g = nl_userdata(L, 1, &st->k_guard);
    if (!g) return nl_error(L, st, NEAP_E_ARG, "neap.guard: close needs a guard; write guard:close()");
    if (g->closed) {
        if (g->reused) give_back(L, st, g, 1);
        return 0;
    }
    char where[100] = "";
    if (g->has_scope) nl_where(L, st, where, sizeof where);
    if (st->c) nl_enter(L);
    nl_guard_end(g, where);
    unanchor(L, g, 1);
    return 0;
}

/* The coroutine is gone, or the state closes. The collector never empties a handle: what the scope had moves out. */
static int guard_gc(lua_State *L)
{
    nl_guard *g = lua_touserdata(L, 1);
    lua_State *running = g->st->L;
    g->st->L = L;
    if (g->has_scope && !g->closed)
        for (nl_handle *h = g->scope.head.next; h != &g->scope.head; h = h->next) h->marked = true;
    nl_guard_end(g, NULL);
    g->st->L = running;
    return 0;
}

static int guard_tostring(lua_State *L)
{
    nl_guard *g = lua_touserdata(L, 1);
    lua_pushfstring(L, "neap.%s guard of %s (%s)", g->what, g->where[0] ? g->where : "an unknown line",
                    g->closed ? "closed" : "in force");
    return 1;
}

/* ---- depth */

/* Units of nesting in force: a running body costs 1, a call from the core into Lua 2. */
int nl_depth(nl_state *st)
{
    int n = 2 * st->trampolines;
    for (const nl_guard *g = st->bodies; g; g = g->next)
        if (g->owner == st->L || !nl_asleep(st, g->owner)) n++;
    return n;
}

void nl_check_depth(lua_State *L, nl_state *st, int units)
{
    if (nl_depth(st) + units > NL_MAX_DEPTH)
        nl_error(L, st, NEAP_E_NESTED_DEPTH,
                 "neap: contexts, checkpoints and callbacks are nested more than %d deep; Lua "
                 "allows about 200 nested C calls: nest less, or recurse without a context",
                 NL_MAX_DEPTH);
}

void nl_guard_body(lua_State *L, nl_state *st, int guard)
{
    nl_guard *g = lua_touserdata(L, guard);
    lua_toclose(L, guard);
    nl_check_depth(L, st, 1);
    g->next = st->bodies;
    if (g->next) g->next->prev = g;
    st->bodies = g;
    g->body = true;
}

/* ---- running */

void nl_check_body(lua_State *L, nl_state *st, int idx, const char *what)
{
    char got[80];
    if (lua_type(L, idx) == LUA_TFUNCTION) return;
    if (luaL_getmetafield(L, idx, "__call") != LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    nl_error(L, st, NEAP_E_ARG,
             "neap.%s: the body must be a function, got %s; without a body give no argument in its place",
             what, nl_kind(L, idx, got, sizeof got));
}

/* guard under the function: results stand above the guard. */
static int body_done(lua_State *L, int status, lua_KContext guard)
{
    (void)status;
    nl_enter(L);
    nl_guard_end(lua_touserdata(L, (int)guard), NULL);
    return lua_gettop(L) - (int)guard;
}

static int anchor_guard(lua_State *L, nl_state *st, int guard)
{
    nl_guard *g = lua_touserdata(L, guard);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_threads);
    lua_pushthread(L);
    if (lua_rawget(L, -2) != LUA_TTABLE) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushthread(L);
        lua_pushvalue(L, -2);
        lua_rawset(L, -4);
    }
    lua_pushstring(L, g->where);
    lua_Integer open = lua_rawget(L, -2) == LUA_TNUMBER ? lua_tointeger(L, -1) : 0;
    lua_pop(L, 1);
    if (open >= NL_MAX_OPEN)
        nl_error(L, st, NEAP_E_STATE,
                 "neap.%s: %d guards opened at %s are still open; write local _ <close> = neap.%s(...), or "
                 "give it a body",
                 g->what, NL_MAX_OPEN, g->where, g->what);
    lua_pushstring(L, g->where);
    lua_pushinteger(L, open + 1);
    lua_rawset(L, -3);
    lua_pushvalue(L, guard);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
    lua_setiuservalue(L, guard, 2);
    g->anchored = true;
    lua_settop(L, guard);
    return 1;
}

/* The stack is [.. other arguments ..] body args; the guard has been pushed last and moves before the body. */
int nl_guard_run(lua_State *L, nl_state *st, int guard, int first)
{
    int n = lua_gettop(L);
    if (first >= guard) return anchor_guard(L, st, guard);
    lua_insert(L, first);
    nl_guard_body(L, st, first);
    lua_callk(L, n - first - 1, LUA_MULTRET, first, body_done);
    return body_done(L, LUA_OK, first);
}

/* Begins a context whose guard is complete once `id` is added; raises if the core refused. */
static int run_with(lua_State *L, nl_state *st, nl_guard *g, uint64_t id, int first)
{
    if (!nl_guard_add(g, id)) return nl_raise(L, st, g->what);
    return nl_guard_run(L, st, lua_gettop(L), first);
}

/* ---- the contexts */

static nl_guard *begin(lua_State *L, nl_state *st, const char *what, int first)
{
    if (lua_gettop(L) >= first) nl_check_body(L, st, first, what);
    return nl_guard_new(L, st, what);
}

static int grad_mode(lua_State *L, const char *what, int on, int first)
{
    nl_state *st = nl_up(L);
    nl_guard *g = begin(L, st, what, first);
    return run_with(L, st, g, neap_set_grad_enabled(st->c, on), first);
}

static int no_grad(lua_State *L)
{
    nl_enter(L);
    return grad_mode(L, "no_grad", 0, 1);
}

static int enable_grad(lua_State *L)
{
    nl_enter(L);
    return grad_mode(L, "enable_grad", 1, 1);
}

static bool check_flag(lua_State *L, nl_state *st, const char *what)
{
    char got[80];
    if (lua_type(L, 1) != LUA_TBOOLEAN)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: needs true or false first, got %s", what,
                 nl_kind(L, 1, got, sizeof got));
    return lua_toboolean(L, 1);
}

static int set_grad_enabled(lua_State *L)
{
    nl_state *st = nl_enter(L);
    return grad_mode(L, "set_grad_enabled", check_flag(L, st, "set_grad_enabled"), 2);
}

static int early_stop(lua_State *L)
{
    nl_state *st = nl_enter(L);
    bool on = check_flag(L, st, "set_checkpoint_early_stop");
    nl_guard *g = begin(L, st, "set_checkpoint_early_stop", 2);
    return run_with(L, st, g, neap_early_stop_begin(st->c, on), 2);
}

/* set_checkpoint_debug_enabled(true, false or nil [, fn, ...]) */
static int checkpoint_debug(lua_State *L)
{
    nl_state *st = nl_enter(L);
    bool unset = lua_gettop(L) > 0 && lua_isnil(L, 1);
    bool on = !unset && check_flag(L, st, "set_checkpoint_debug_enabled");
    nl_guard *g = begin(L, st, "set_checkpoint_debug_enabled", 2);
    return run_with(L, st, g, neap_checkpoint_debug_begin(st->c, unset ? -1 : on), 2);
}

static int default_dtype(lua_State *L)
{
    nl_state *st = nl_enter(L);
    if (lua_gettop(L) == 0) {
        lua_pushstring(L, neap_dtype_name(neap_x_default_dtype(st->c)));
        return 1;
    }
    neap_dtype d = nl_check_dtype(L, st, 1, "default_dtype");
    if (!np_is_float(d))
        return nl_error(L, st, NEAP_E_DTYPE, "neap.default_dtype: must be a floating-point dtype, got %s",
                        neap_dtype_name(d));
    nl_guard *g = begin(L, st, "default_dtype", 2);
    return run_with(L, st, g, neap_x_push(st->c, NP_AMB_DTYPE, d, NULL, "default_dtype", g->where), 2);
}

static int device(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int d = nl_check_device(L, st, 1, "device");
    nl_guard *g = begin(L, st, "device", 2);
    return run_with(L, st, g, neap_x_push(st->c, NP_AMB_DEVICE, d, NULL, "device", g->where), 2);
}

/* autocast(dtype [, {enabled = true}] [, fn, ...]) */
static int autocast(lua_State *L)
{
    static const char *const names[] = {"enabled", NULL};
    nl_state *st = nl_enter(L);
    neap_dtype low = nl_check_dtype(L, st, 1, "autocast");
    int first = nl_is_options(L, 2) ? 3 : 2;
    bool on = true;
    if (first == 3) {
        nl_check_options(L, st, 2, "autocast", names);
        on = nl_bool_option(L, st, 2, "autocast", "enabled", true);
    }
    nl_guard *g = begin(L, st, "autocast", first);
    return run_with(L, st, g, neap_autocast_begin(st->c, low, on), first);
}

static int detect_anomaly(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_guard *g = begin(L, st, "detect_anomaly", 1);
    bool ok = nl_guard_add(g, nl_watch_push(L, st, g, NP_WATCH_NAN)); /* knows the lines */
    lua_pop(L, 1);
    if (!ok) return nl_raise(L, st, g->what);
    return run_with(L, st, g, neap_x_push(st->c, NP_AMB_ANOMALY, 1, NULL, "detect_anomaly", g->where), 1);
}

static int disable_hooks(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char got[80];
    if (lua_type(L, 1) != LUA_TSTRING)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.disable_saved_tensors_hooks: needs the message of the error, got %s",
                        nl_kind(L, 1, got, sizeof got));
    nl_guard *g = begin(L, st, "disable_saved_tensors_hooks", 2);
    return run_with(L, st, g, neap_disable_saved_hooks_begin(st->c, lua_tostring(L, 1)), 2);
}

/* save_on_cpu([{pin_memory=}] [, fn, ...]) */
static int save_on_cpu(lua_State *L)
{
    static const char *const names[] = {"pin_memory", NULL};
    nl_state *st = nl_enter(L);
    int first = nl_is_options(L, 1) ? 2 : 1;
    bool pin = false;
    if (first == 2) {
        nl_check_options(L, st, 1, "save_on_cpu", names);
        pin = nl_bool_option(L, st, 1, "save_on_cpu", "pin_memory", false);
    }
    nl_guard *g = begin(L, st, "save_on_cpu", first);
    return run_with(L, st, g, neap_save_on_cpu_begin(st->c, pin), first);
}

/* ---- saved_tensors_hooks(pack, unpack [, fn, ...])
 *
 * What a pack hook returns belongs to the slot: handles of its call (what it was lent, what it made) are emptied when
 * the slot lets go, so offloaded or converted values need no collector. Other tensors in it only live on. */

/* The tensors of a packed value: itself, or what a plain table holds. Never allocates. */
static void each_packed(lua_State *L, nl_state *st, int idx,
                        void (*visit)(nl_state *st, nl_handle *h, nl_scope *s), nl_scope *s)
{
    nl_handle *h = nl_handle_at(L, st, idx);
    if (h) visit(st, h, s);
    if (lua_type(L, idx) != LUA_TTABLE) return;
    if (lua_getmetatable(L, idx)) {
        lua_pop(L, 1);
        return;
    }
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        h = nl_handle_at(L, st, -1);
        if (h) visit(st, h, s);
        lua_pop(L, 1);
    }
}

static void mark_own(nl_state *st, nl_handle *h, nl_scope *s)
{
    (void)st;
    if (h->scope == s) h->marked = true;
}

static void claim(nl_state *st, nl_handle *h, nl_scope *s)
{
    if (!h->marked) return;
    h->marked = false;
    nl_unlink(h);
    nl_link(s, h);
    (void)st;
}

static void drop_packed(nl_state *st, nl_handle *h, nl_scope *s)
{
    if (h->scope != s) return;
    nl_unlink(h);
    nl_link(&st->root, h);
    nl_empty(h, NULL);
}

static int run_pack(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    if (!nl_anchor_get(L, st, r->cb->cell))
        return luaL_error(L, "neap.saved_tensors_hooks: the pack hook is gone [E-INTERNAL]");
    int anchor = lua_gettop(L);
    lua_rawgeti(L, anchor, NL_A_FN);
    nl_handle *h = nl_new_handle(L, st);
    h->t = neap_x_alias(r->t); /* without the graph: a hook that keeps it makes no cycle */
    if (!h->t) return nl_raise(L, st, "saved_tensors_hooks");
    lua_call(L, 1, 1);
    each_packed(L, st, lua_gettop(L), mark_own, &r->scope);
    nl_own_tree(L, st, -1);
    each_packed(L, st, lua_gettop(L), claim, &st->packed);
    lua_rawgeti(L, anchor, NL_A_STORE);
    lua_pushvalue(L, -2);
    r->token = ++r->cb->next_token;
    lua_rawseti(L, -2, (lua_Integer)r->token);
    return 0;
}

static int run_unpack(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    char got[80];
    if (!nl_anchor_get(L, st, r->cb->cell))
        return luaL_error(L, "neap.saved_tensors_hooks: the unpack hook is gone [E-INTERNAL]");
    lua_rawgeti(L, -1, NL_A_ARGS);
    lua_rawgeti(L, -2, NL_A_STORE);
    lua_rawgeti(L, -1, (lua_Integer)r->token);
    lua_remove(L, -2);
    lua_call(L, 1, 1);
    nl_handle *h = nl_handle_at(L, st, -1);
    if (!h)
        return nl_error(L, st, NEAP_E_UNPACK_TYPE,
                        "neap.saved_tensors_hooks: the unpack hook returned %s, it must return a tensor",
                        nl_kind(L, -1, got, sizeof got));
    if (!h->t) return nl_released(L, st, h, "saved_tensors_hooks");
    r->t = neap_retain(h->t);
    return 0;
}

static int hook_pack(neap_ctx *c, void *user, neap_tensor *t, void **packed)
{
    nl_run r = {.run = run_pack, .t = t};
    if (!nl_callback_run(c, user, &r)) return 1;
    *packed = (void *)(uintptr_t)r.token;
    return 0;
}

static neap_tensor *hook_unpack(neap_ctx *c, void *user, void *packed)
{
    nl_run r = {.run = run_unpack, .token = (uint64_t)(uintptr_t)packed};
    return nl_callback_run(c, user, &r) ? r.t : NULL;
}

/* The slot lets its value go: it leaves the anchor. Never allocates: the key exists. */
static void hook_drop(void *user, void *packed)
{
    nl_callback *cb = user;
    nl_state *st = cb->st;
    if (!st || !st->c || !lua_checkstack(st->L, 10)) return;
    lua_State *L = st->L;
    int top = lua_gettop(L);
    if (!nl_anchor_get(L, st, cb->cell)) return;
    if (lua_rawgeti(L, -1, NL_A_STORE) == LUA_TTABLE) {
        int store = lua_gettop(L);
        lua_rawgeti(L, store, (lua_Integer)(uintptr_t)packed);
        lua_pushnil(L);
        lua_rawseti(L, store, (lua_Integer)(uintptr_t)packed);
        each_packed(L, st, store + 1, drop_packed, &st->packed);
    }
    lua_settop(L, top);
}

uint64_t nl_hooks_group(nl_state *st)
{
    if (!st->c->ambient.n) return 0;
    const np_ambient_entry *e = neap_x_effective(st->c, NP_AMB_HOOKS);
    const np_hook_pair *p = e ? e->payload : NULL;
    return p && !p->disabled && p->h.pack == hook_pack ? ((nl_callback *)p->h.user)->cell : 0;
}

static int saved_hooks(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_check_body(L, st, 1, "saved_tensors_hooks");
    nl_check_body(L, st, 2, "saved_tensors_hooks");
    nl_guard *g = begin(L, st, "saved_tensors_hooks", 3);
    int guard = lua_gettop(L);
    uint64_t cell = nl_anchor_new(L, st);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, NL_A_FN);
    lua_pushvalue(L, 2);
    lua_rawseti(L, -2, NL_A_ARGS);
    lua_newtable(L);
    lua_rawseti(L, -2, NL_A_STORE);
    nl_anchor_parent(L, st, lua_gettop(L), nl_hooks_group(st));
    lua_setiuservalue(L, guard, 1); /* the guard holds the functions while it is in force */
    nl_callback *cb = nl_callback_new(L, st, cell, run_pack, "saved_tensors_hooks", NL_LIFE_SCOPE);
    neap_saved_hooks h = {hook_pack, hook_unpack, hook_drop, nl_callback_retain, nl_callback_release, cb};
    uint64_t id = neap_saved_hooks_begin(st->c, &h);
    nl_callback_release(cb); /* the pair holds it now */
    return run_with(L, st, g, id, 3);
}

/* ---- op_mode(function(op, call, ...) return call(...) end [, fn, ...]) */

static void push_frame_args(lua_State *L, nl_state *st, const np_frame *f)
{
    for (int i = 0; i < f->n_in; i++) {
        if (!f->in[i]) lua_pushnil(L);
        else if (f->in[i]->number && np_is_float((neap_dtype)f->in[i]->dtype))
            lua_pushnumber(L, neap_x_load_double((neap_dtype)f->in[i]->dtype, nl_ptr(f->in[i])));
        else if (f->in[i]->number)
            lua_pushinteger(L, neap_x_load_int((neap_dtype)f->in[i]->dtype, nl_ptr(f->in[i])));
        else nl_push_known(L, st, f->in[i]);
    }
}

/* call(...): continues below the mode, with the tensors given in place of the op's own. Upvalue 2: the run. */
static int mode_call(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_run *r = lua_touserdata(L, lua_upvalueindex(2));
    neap_tensor *in[64], *number[64];
    int n = 0;
    if (!r->f) return nl_error(L, st, NEAP_E_STATE, "neap.op_mode: call(...) works only while the op runs");
    np_frame f = *r->f;
    if (f.n_in > 64) return nl_error(L, st, NEAP_E_ARG, "neap.op_mode: %d operands are too many", f.n_in);
    if (lua_gettop(L) != f.n_in)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.op_mode: %s has %d operand%s, call got %d; write call(...) with what the "
                        "function got after op and call",
                        f.op->name, f.n_in, f.n_in == 1 ? "" : "s", lua_gettop(L));
    luaL_checkstack(L, NP_MAX_OUT + 4, NULL);
    for (int i = 0; i < f.n_in; i++) {
        in[i] = f.in[i];
        if (lua_type(L, i + 1) != LUA_TNUMBER && !lua_isnil(L, i + 1))
            in[i] = nl_check_tensor(L, st, i + 1, "op_mode", "an operand of call");
    }
    for (int i = 0; i < f.n_in; i++) {
        if (lua_type(L, i + 1) != LUA_TNUMBER || lua_gettop(L) <= i) continue;
        number[n] = lua_isinteger(L, i + 1) ? neap_integer(st->c, lua_tointeger(L, i + 1))
                                            : neap_number(st->c, lua_tonumber(L, i + 1));
        in[i] = neap_keep(number[n++]);
    }
    memset(f.out, 0, sizeof f.out);
    f.in = in;
    int top = lua_gettop(L), visible = neap_x_op_schema(st->c, f.op)->n_results;
    bool ok = neap_x_dispatch_below(&f, r->id);
    while (n > 0) neap_free(number[--n]);
    if (!ok) return nl_raise(L, st, NULL);
    for (int i = 0; i < NP_MAX_OUT; i++) { /* auxiliary results stay with the op: the caller's frame */
        if (i < f.n_out && i >= visible) {
            neap_free(r->f->out[i]);
            r->f->out[i] = f.out[i];
            f.out[i] = NULL;
        }
    }
    memcpy(r->f->meta, f.meta, sizeof f.meta);
    r->f->n_out = f.n_out;
    r->f->dev = f.dev;
    for (int i = 0; i < visible && i < f.n_out; i++) {
        neap_tensor *t = f.out[i];
        f.out[i] = NULL;
        nl_push_take(L, st, t);
    }
    return lua_gettop(L) - top;
}

static int run_mode(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    nl_run_function(L, r);
    int fn = lua_gettop(L);
    if (!nl_push_op(L, st, r->f->op)) lua_pushstring(L, r->f->op->name);
    lua_pushlightuserdata(L, st);
    lua_pushlightuserdata(L, r);
    lua_pushcclosure(L, mode_call, 2);
    luaL_checkstack(L, r->f->n_in + 10, NULL);
    push_frame_args(L, st, r->f);
    lua_call(L, lua_gettop(L) - fn, LUA_MULTRET);
    int n = lua_gettop(L) - fn + 1, visible = neap_x_op_schema(st->c, r->f->op)->n_results;
    if (n < visible && n < 1)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.op_mode: the function returned nothing for op %s; return call(...)",
                        r->f->op->name);
    for (int i = 0; i < n && i < visible; i++) {
        neap_tensor *t = nl_check_tensor(L, st, fn + i, "op_mode", "a result");
        neap_free(r->f->out[i]);
        r->f->out[i] = neap_retain(t);
        if (r->f->n_out <= i) r->f->n_out = i + 1;
    }
    r->f = NULL; /* call(...) is over */
    return 0;
}

/* While a mode's function runs, its own ops go to the modes outside of it, never to itself. */
static bool mode_op(neap_ctx *c, void *user, np_frame *f, uint64_t id)
{
    nl_run r = {.f = f, .id = id};
    uint64_t entry = neap_x_push(c, NP_AMB_MODE, (int64_t)id, NULL, "op_mode", NULL);
    bool ok = entry && nl_callback_run(c, user, &r);
    if (entry) neap_x_pop(c, entry);
    return ok;
}

/* A region runs again under the modes of its forward: its anchor holds their functions, and what those captured
 * lives as long as the region. */
void nl_modes_keep(lua_State *L, nl_state *st, int anchor)
{
    if (!st->c->ambient.n) return;
    for (const np_ambient_entry *e = neap_x_mode_below(st->c, UINT64_MAX); e;
         e = neap_x_mode_below(st->c, e->id)) {
        const np_mode *m = e->payload;
        uint64_t cell = m->call == mode_op ? ((nl_callback *)m->user)->cell : 0;
        if (!cell || !nl_anchor_get(L, st, cell)) continue;
        lua_rawgeti(L, -1, NL_A_FN);
        nl_capture_find(L, st, lua_gettop(L));
        lua_pop(L, 2);
        nl_anchor_parent(L, st, anchor, cell);
    }
}

static int op_mode(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_check_body(L, st, 1, "op_mode");
    nl_guard *g = begin(L, st, "op_mode", 2);
    int guard = lua_gettop(L);
    uint64_t cell = nl_anchor_new(L, st);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, NL_A_FN);
    lua_setiuservalue(L, guard, 1);
    nl_callback *cb = nl_callback_new(L, st, cell, run_mode, "op_mode", NL_LIFE_PLAIN);
    np_mode *m = malloc(sizeof *m);
    if (!m) {
        nl_callback_release(cb);
        return nl_error(L, st, NEAP_E_NOMEM, "neap.op_mode: out of memory");
    }
    *m = (np_mode){.call = mode_op, .user = cb, .retain = nl_callback_retain, .release = nl_callback_release};
    g->mode = m;
    return run_with(L, st, g, neap_x_push(st->c, NP_AMB_MODE, 0, m, "op_mode", g->where), 2);
}

/* ---- memory_limit(device, bytes or "256 MiB" [, fn, ...]): the old limit comes back at the end */

static int64_t check_bytes(lua_State *L, nl_state *st, int idx)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0},
                 {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    char got[80];
    if (lua_type(L, idx) == LUA_TNUMBER) {
        int64_t n = nl_check_integer(L, st, idx, "memory_limit", "the limit");
        if (n >= 0) return n;
    } else if (lua_type(L, idx) == LUA_TSTRING) {
        const char *text = lua_tostring(L, idx);
        char *end;
        double v = strtod(text, &end);
        if (end == text) v = -1; /* no number, which is not 0 */
        while (*end == ' ') end++;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (!strcmp(end, units[i].unit) && v >= 0 && v * units[i].factor < 9e18)
                return (int64_t)(v * units[i].factor);
    }
    return nl_error(L, st, NEAP_E_ARG,
                    "neap.memory_limit: a limit is bytes or a text such as \"256 MiB\" (0: none), got %s",
                    nl_kind(L, idx, got, sizeof got));
}

static int limit_back(lua_State *L)
{
    nl_state *st = nl_up(L);
    if (st->c)
        neap_memory_limit(st->c, (int)lua_tointeger(L, lua_upvalueindex(2)),
                          lua_tointeger(L, lua_upvalueindex(3)));
    return 0;
}

static int limit_done(lua_State *L, int status, lua_KContext k)
{
    (void)status, (void)k;
    nl_enter(L);
    return lua_gettop(L) - 1;
}

/* A table whose __close sets the old limit: also what the form without a body returns. */
static void push_limit_guard(lua_State *L, nl_state *st, int device, int64_t old)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_pushlightuserdata(L, st);
    lua_pushinteger(L, device);
    lua_pushinteger(L, old);
    lua_pushcclosure(L, limit_back, 3);
    lua_pushvalue(L, -1);
    lua_setfield(L, -4, "close");
    lua_setfield(L, -2, "__close");
    lua_setmetatable(L, -2);
}

static int memory_limit(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device = nl_check_device(L, st, 1, "memory_limit");
    int64_t bytes = check_bytes(L, st, 2);
    int n = lua_gettop(L);
    if (n >= 3) nl_check_body(L, st, 3, "memory_limit");
    neap_memory m = {.size = sizeof m};
    if (neap_memory_stats(st->c, device, &m)) return nl_raise(L, st, "memory_limit");
    push_limit_guard(L, st, device, m.limit);
    if (neap_memory_limit(st->c, device, bytes)) return nl_raise(L, st, "memory_limit");
    if (n < 3) return 1;
    lua_replace(L, 1);
    lua_remove(L, 2);
    lua_toclose(L, 1);
    nl_check_depth(L, st, 1);
    lua_callk(L, n - 3, LUA_MULTRET, 0, limit_done);
    return limit_done(L, LUA_OK, 0);
}

static int is_grad_enabled(lua_State *L)
{
    lua_pushboolean(L, neap_grad_enabled(nl_enter(L)->c));
    return 1;
}

static int in_recompute(lua_State *L)
{
    lua_pushboolean(L, neap_in_recompute(nl_enter(L)->c));
    return 1;
}

static const luaL_Reg functions[] = {{"no_grad", no_grad},
                                     {"enable_grad", enable_grad},
                                     {"set_grad_enabled", set_grad_enabled},
                                     {"default_dtype", default_dtype},
                                     {"device", device},
                                     {"autocast", autocast},
                                     {"detect_anomaly", detect_anomaly},
                                     {"disable_saved_tensors_hooks", disable_hooks},
                                     {"save_on_cpu", save_on_cpu},
                                     {"saved_tensors_hooks", saved_hooks},
                                     {"op_mode", op_mode},
                                     {"memory_limit", memory_limit},
                                     {"set_checkpoint_early_stop", early_stop},
                                     {"set_checkpoint_debug_enabled", checkpoint_debug},
                                     {"is_grad_enabled", is_grad_enabled},
                                     {"in_recompute", in_recompute},
                                     {NULL, NULL}};

static const luaL_Reg metamethods[] = {
    {"__gc", guard_gc}, {"__close", guard_close}, {"__tostring", guard_tostring}, {NULL, NULL}};

void nl_open_guards(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    nl_metatable(L, st, &st->k_guard, "neap.Guard", metamethods);
    lua_newtable(L);
    nl_pushfunction(L, st, guard_close);
    lua_setfield(L, -2, "close");
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
