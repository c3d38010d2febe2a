/* callback.c - the one door through which the core calls Lua: the trampoline.
 *
 * The core holds a nl_callback, which holds the id of an anchor (anchor.c), never a Lua value. A call pushes light
 * values only and runs in protected mode; an error value is parked and recorded as NEAP_E_USER, to be raised as
 * the same value at the outermost line. Nesting is counted and refused before Lua's own limit. Calls that start in
 * C outside any script run on the main thread. */
#include "nl.h"

nl_callback *nl_callback_new(lua_State *L, nl_state *st, uint64_t cell, lua_CFunction run, const char *what,
                             nl_lifetime life)
{
    nl_callback *cb = calloc(1, sizeof *cb);
    if (!cb) {
        nl_error(L, st, NEAP_E_NOMEM, "neap.%s: out of memory", what);
        return NULL;
    }
    *cb = (nl_callback){
        .refs = 1, .st = st, .cell = cell, .run = run, .what = what, .life = life, .next = st->callbacks};
    if (cb->next) cb->next->prev = cb;
    st->callbacks = cb;
    if (!st->n_callbacks++) st->first_fn_seq = st->c->next_seq;
    return cb;
}

void nl_callback_retain(void *user) { ((nl_callback *)user)->refs++; }

void nl_callback_release(void *user)
{
    nl_callback *cb = user;
    nl_state *st = cb->st;
    if (--cb->refs > 0) return;
    if (cb->captures) nl_capture_release(st, cb);
    if (st) {
        if (cb->prev) cb->prev->next = cb->next;
        else st->callbacks = cb->next;
        if (cb->next) cb->next->prev = cb->prev;
        st->n_callbacks--;
        nl_anchor_clear(st, cb->cell, cb->late);
    }
    free(cb);
}

void nl_callbacks_detach(nl_state *st)
{
    for (nl_callback *cb = st->callbacks; cb; cb = cb->next) {
        if (cb->captures) nl_capture_release(NULL, cb);
        cb->st = NULL;
    }
    st->callbacks = NULL;
    st->n_callbacks = 0;
}

neap_fn nl_callback_fn(nl_callback *cb)
{
    return (neap_fn){nl_callback_call, nl_callback_retain, nl_callback_release, cb};
}

/* The error value on top becomes the core's error record. */
static void record_error(neap_ctx *c, nl_state *st, lua_State *L)
{
    char text[300];
    snprintf(text, sizeof text, "%.290s",
             lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error raised by a Lua function");
    void *token = nl_park(L, st);
    neap_clear_error(c);
    neap_fail(c, NEAP_E_USER, text, token);
}

static bool begin_scope(nl_state *st, nl_callback *cb, nl_run *r)
{
    if (cb->life == NL_LIFE_PLAIN) return true;
    r->has_scope = true;
    if (cb->life == NL_LIFE_SCOPE) return r->has_scope = nl_scope_begin_raw(st, &r->scope);
    nl_scope_init(st, &r->scope);
    r->scope.holder = true;
    return true;
}

bool nl_callback_run(neap_ctx *c, nl_callback *cb, nl_run *r)
{
    nl_state *st = cb->st;
    if (!st || !st->c) {
        neap_fail(c, NEAP_E_STATE, "a Lua function is called after its state was closed", NULL);
        return false;
    }
    lua_State *L = nl_safe_thread(st);
    if (!lua_checkstack(L, 10)) {
        neap_fail(c, NEAP_E_NOMEM, "no room on the Lua stack for a callback", NULL);
        return false;
    }
    if (st->L != L) nl_switch(L, st);
    if (nl_depth(st) + 2 > NL_MAX_DEPTH) {
        neap_fail(c, NEAP_E_NESTED_DEPTH,
                  "checkpoints or callbacks are nested too deeply (160 units); Lua allows about "
                  "200 nested C calls: nest less",
                  NULL);
        return false;
    }
    if (!begin_scope(st, cb, r)) return false;
    const char *op = c->op_name;
    int base = c->base;
    cb->refs++;
    r->cb = cb;
    c->op_name = NULL;
    st->trampolines++;
    lua_pushcfunction(L, r->run ? r->run : cb->run);
    lua_pushlightuserdata(L, r);
    int rc = lua_pcall(L, 1, 0, 0);
    st->trampolines--;
    c->op_name = op;
    c->base = base;
    if (st->L != L) nl_switch(L, st);
    else neap_x_touch(c);
    if (rc != LUA_OK) record_error(c, st, L);
    if (r->has_scope) nl_scope_end(st, &r->scope, cb->what, NULL, r->scope.holder ? &st->root : NULL);
    nl_callback_release(cb);
    return rc == LUA_OK;
}

int nl_callback_call(neap_ctx *c, void *user, neap_values *v)
{
    nl_run r = {.v = v};
    if (nl_callback_run(c, user, &r)) return 0;
    for (int i = 0; i < v->n_out; i++) neap_free(v->out[i]), v->out[i] = NULL;
    v->n_out = 0;
    return 1;
}

void nl_run_function(lua_State *L, nl_run *r)
{
    nl_state *st = r->cb->st;
    if (!nl_anchor_get(L, st, r->cb->cell) || lua_rawgeti(L, -1, NL_A_FN) == LUA_TNIL)
        nl_error(L, st, NEAP_E_INTERNAL,
                 "neap.%s: the Lua function was collected while the graph still needs it; keep the "
                 "tensor it belongs to",
                 r->cb->what);
    lua_remove(L, -2);
}

/* Results first ... first + n - 1 as new references; nil and false are none. All are checked before one is taken. */
void nl_collect_results(lua_State *L, nl_run *r, int first, int n, const char *what)
{
    nl_state *st = r->cb->st;
    if (n > NEAP_MAX_RESULTS)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %d results, at most %d are possible", what, n,
                 NEAP_MAX_RESULTS);
    for (int i = 0; i < n; i++)
        if (lua_toboolean(L, first + i)) nl_check_tensor(L, st, first + i, what, "a result");
    for (int i = 0; i < n; i++) {
        nl_handle *h = nl_handle_at(L, st, first + i);
        r->v->out[i] = h ? neap_retain(h->t) : NULL;
    }
    r->v->n_out = n;
}

void nl_push_lent(lua_State *L, nl_run *r, neap_tensor *t)
{
    nl_state *st = r->cb->st;
    if (!t) {
        lua_pushnil(L);
        return;
    }
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_known);
    lua_rawgetp(L, -1, t);
    lua_remove(L, -2);
    nl_handle *h = nl_handle_at(L, st, -1);
    if (h && h->t == t) return;
    lua_pop(L, 1);
    nl_push_take(L, st, neap_retain(t));
    if (!r->has_scope || !r->scope.holder) return;
    h = lua_touserdata(L, -1);
    nl_unlink(h);
    nl_link(&r->scope, h);
}

int nl_run_plain(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_run_function(L, r);
    int fn = lua_gettop(L);
    luaL_checkstack(L, r->v->n_in + 8, NULL);
    for (int i = 0; i < r->v->n_in; i++) nl_push_lent(L, r, r->v->in[i]);
    lua_call(L, r->v->n_in, LUA_MULTRET);
    nl_collect_results(L, r, fn, lua_gettop(L) - fn + 1, r->cb->what);
    return 0;
}
