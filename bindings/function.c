/* function.c - custom differentiable functions written in Lua, and gradcheck.
 *
 * neap.Function "Name" makes a class: a table with forward and backward. Calling it runs forward(ctx, ...) without
 * recording (it may yield) and then records one node over the results. What ctx keeps: fields are the user's;
 * saved tensors are slots of the node, so checkpoint regions and hooks see them. Class and ctx live in the
 * anchor of the node. */
#include "autograd/custom.h"
#include "nl.h"

/* Keys of a ctx table that are not the user's: addresses in the state. */
static void *key_saved(nl_state *st) { return &st->k_function; }
static void *key_over(nl_state *st) { return &st->n_callbacks; } /* true once forward has returned */
static void *key_dirty(nl_state *st) { return &st->k_fctx; }
static void *key_fixed(nl_state *st) { return &st->k_cases; }
static void *key_cache(nl_state *st) { return &st->k_methods; }

static const char *class_name(lua_State *L, int idx, char *buf, size_t n)
{
    lua_pushstring(L, "name");
    snprintf(buf, n, "%s", lua_rawget(L, idx) == LUA_TSTRING ? lua_tostring(L, -1) : "Function");
    lua_pop(L, 1);
    return buf;
}

/* ---- ctx */

static void check_ctx(lua_State *L, nl_state *st, const char *method)
{
    bool ok = lua_type(L, 1) == LUA_TTABLE && lua_getmetatable(L, 1);
    if (ok) {
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_fctx);
        ok = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
    }
    if (!ok) nl_error(L, st, NEAP_E_ARG, "neap.Function: write ctx:%s(...) with a colon", method);
}

/* Stores the tensors at 2 ... as a list with n under a key. */
static int keep_list(lua_State *L, const char *method, void *(*key)(nl_state *), bool holes)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L) - 1;
    check_ctx(L, st, method);
    if (lua_rawgetp(L, 1, key_over(st)) != LUA_TNIL)
        nl_error(
            L, st, NEAP_E_STATE,
            "neap.Function: ctx:%s works in forward only; what backward needs must be known when forward "
            "returns",
            method);
    lua_pop(L, 1);
    lua_createtable(L, n, 1);
    for (int i = 1; i <= n; i++) {
        if (!holes || !lua_isnil(L, i + 1)) nl_check_tensor(L, st, i + 1, method, "an argument");
        lua_pushvalue(L, i + 1);
        lua_rawseti(L, -2, i);
    }
    lua_pushinteger(L, n);
    lua_setfield(L, -2, "n");
    lua_rawsetp(L, 1, key(st));
    return 0;
}

static int save_for_backward(lua_State *L) { return keep_list(L, "save_for_backward", key_saved, true); }
static int mark_dirty(lua_State *L) { return keep_list(L, "mark_dirty", key_dirty, false); }
static int mark_fixed(lua_State *L) { return keep_list(L, "mark_non_differentiable", key_fixed, false); }

static int unpack_list(lua_State *L)
{
    lua_getfield(L, -1, "n");
    int n = (int)lua_tointeger(L, -1), list = lua_gettop(L) - 1;
    luaL_checkstack(L, n + 2, NULL);
    for (int i = 1; i <= n; i++) lua_rawgeti(L, list, i);
    return n;
}

/* ctx:saved(): what save_for_backward got; in backward unpacked once for the call. */
static int saved(lua_State *L)
{
    nl_state *st = nl_enter(L);
    check_ctx(L, st, "saved");
    lua_settop(L, 1);
    if (lua_rawgetp(L, 1, key_saved(st)) == LUA_TTABLE) return unpack_list(L); /* still in forward */
    lua_pop(L, 1);
    if (lua_rawgetp(L, 1, key_cache(st)) != LUA_TTABLE)
        return nl_error(L, st, NEAP_E_STATE,
                        "neap.Function: ctx:saved() works in forward and in backward only");
    lua_getfield(L, -1, "n");
    if (!lua_isnil(L, -1)) return lua_pop(L, 1), unpack_list(L);
    lua_pop(L, 1);
    const np_custom_frame *frame = st->c->custom;
    int n = frame ? frame->node->n_slots : 0;
    for (int i = 0; i < n; i++) {
        neap_tensor *t = neap_custom_saved(st->c, i);
        if (!t && neap_error(st->c)) return nl_raise(L, st, frame->node->name);
        if (!t) continue;
        nl_push_take(L, st, t);
        lua_rawseti(L, 2, i + 1);
    }
    lua_pushinteger(L, n);
    lua_setfield(L, 2, "n");
    return unpack_list(L);
}

/* ---- the call */

/* [1] class [2] guard [3] ctx [4 ..] arguments, then results */
enum { AT_CLASS = 1, AT_GUARD = 2, AT_CTX = 3, AT_ARGS = 4 };

typedef struct call {
    lua_State *L;
    nl_state *st;
    char name[41];
    int n_args, n_results;
    neap_tensor *in[NEAP_MAX_RESULTS], *out[NEAP_MAX_RESULTS], *saved[NEAP_MAX_RESULTS];
    unsigned char fixed[NEAP_MAX_RESULTS];
    int n_in, n_out, n_saved;
} call;

static bool in_list(lua_State *L, int ctx, void *key, const neap_tensor *t, nl_state *st)
{
    bool found = false;
    if (lua_rawgetp(L, ctx, key) == LUA_TTABLE) {
        int n = (int)lua_rawlen(L, -1);
        for (int i = 1; i <= n && !found; i++) {
            lua_rawgeti(L, -1, i);
            nl_handle *h = nl_handle_at(L, st, -1);
            found = h && h->t == t;
            lua_pop(L, 1);
        }
    }
    lua_pop(L, 1);
    return found;
}

static void read_inputs(call *c)
{
    for (int i = 0; i < c->n_args; i++) {
        if (!nl_handle_at(c->L, c->st, AT_ARGS + i)) continue;
        if (c->n_in == NEAP_MAX_RESULTS)
            nl_error(c->L, c->st, NEAP_E_ARG, "neap.%s: more than %d tensor arguments", c->name,
                     NEAP_MAX_RESULTS);
        c->in[c->n_in++] = nl_check_tensor(c->L, c->st, AT_ARGS + i, c->name, "an argument");
    }
}

static bool holds(neap_tensor *const *v, int n, const neap_tensor *t)
{
    for (int i = 0; i < n; i++)
        if (v[i] == t) return true;
    return false;
}

/* What forward says of arguments must be about arguments; then ctx takes no more. */
static void close_ctx(call *c)
{
    lua_State *L = c->L;
    if (lua_rawgetp(L, AT_CTX, key_dirty(c->st)) == LUA_TTABLE)
        for (int i = 1, n = (int)lua_rawlen(L, -1); i <= n; i++) {
            lua_rawgeti(L, -1, i);
            nl_handle *h = nl_handle_at(L, c->st, -1);
            if (!h || !holds(c->in, c->n_in, h->t))
                nl_error(
                    L, c->st, NEAP_E_ARG,
                    "neap.%s: tensor %d of mark_dirty is no argument of forward; name the arguments that "
                    "forward changed in place",
                    c->name, i);
            lua_pop(L, 1);
        }
    lua_pop(L, 1);
    lua_pushboolean(L, true);
    lua_rawsetp(L, AT_CTX, key_over(c->st));
}

/* Results that are an input, a leaf or a tensor with a graph of its own are returned as another tensor over the
 * same storage: the node's identity must not replace theirs. Dirty inputs keep theirs: that is what dirty says. */
static void read_results(call *c)
{
    lua_State *L = c->L;
    int first = AT_ARGS + c->n_args;
    luaL_checkstack(L, 10, NULL);
    for (int i = 0; i < c->n_results; i++) {
        if (!nl_handle_at(L, c->st, first + i)) continue;
        neap_tensor *t = nl_check_tensor(L, c->st, first + i, c->name, "a result");
        if (c->n_out == NEAP_MAX_RESULTS)
            nl_error(L, c->st, NEAP_E_ARG, "neap.%s: more than %d tensor results", c->name, NEAP_MAX_RESULTS);
        bool dirty = in_list(L, AT_CTX, key_dirty(c->st), t, c->st);
        if (dirty && neap_requires_grad(t) && neap_is_leaf(t))
            nl_error(L, c->st, NEAP_E_LEAF_INPLACE,
                     "neap.%s: a leaf that requires grad was changed in place and marked dirty", c->name);
        c->fixed[c->n_out] = in_list(L, AT_CTX, key_fixed(c->st), t, c->st);
        if (!dirty && (holds(c->in, c->n_in, t) || holds(c->out, c->n_out, t) || neap_requires_grad(t))) {
            nl_handle *h = nl_new_handle(L, c->st);
            h->t = neap_x_alias(t);
            if (!h->t) nl_raise(L, c->st, c->name);
            t = h->t;
            lua_replace(L, first + i);
        }
        c->out[c->n_out++] = t;
    }
}

/* The saved list leaves ctx (its handles would keep the tensors alive); the list stays on the stack meanwhile. */
static void read_saved(call *c)
{
    lua_State *L = c->L;
    if (lua_rawgetp(L, AT_CTX, key_saved(c->st)) == LUA_TTABLE) {
        lua_getfield(L, -1, "n");
        int n = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
        if (n > NEAP_MAX_RESULTS)
            nl_error(L, c->st, NEAP_E_ARG, "neap.%s: save_for_backward got more than %d tensors", c->name,
                     NEAP_MAX_RESULTS);
        for (int i = 0; i < n; i++) {
            bool none = lua_rawgeti(L, -1, i + 1) == LUA_TNIL;
            c->saved[c->n_saved++] = none ? NULL : nl_check_tensor(L, c->st, -1, c->name, "a saved value");
            lua_pop(L, 1);
        }
    }
    void *keys[] = {key_saved(c->st), key_dirty(c->st), key_fixed(c->st)};
    for (int i = 0; i < 3; i++) {
        lua_pushnil(L);
        lua_rawsetp(L, AT_CTX, keys[i]);
    }
}

static int run_backward(lua_State *L);

/* The anchor: class, ctx, positions of the tensor arguments; over the inputs' graphs and what is in force. */
static nl_callback *make_anchor(call *c)
{
    lua_State *L = c->L;
    nl_state *st = c->st;
    uint64_t below = 0, before = 0;
    bool any = st->n_callbacks > 0;
    uint64_t cell = nl_anchor_new(L, st);
    int anchor = lua_gettop(L);
    lua_pushvalue(L, AT_CLASS);
    lua_rawseti(L, anchor, NL_A_FN);
    lua_pushvalue(L, AT_CTX);
    lua_rawseti(L, anchor, NL_A_ARGS);
    lua_createtable(L, c->n_in, 1);
    for (int i = 0, k = 0; i < c->n_args; i++) {
        if (!nl_handle_at(L, st, AT_ARGS + i)) continue;
        lua_pushinteger(L, i + 1);
        lua_rawseti(L, -2, ++k);
    }
    lua_pushinteger(L, c->n_args);
    lua_setfield(L, -2, "n");
    lua_rawseti(L, anchor, NL_A_STORE);
    for (int i = 0; any && i < c->n_in; i++, before = below) {
        below = nl_group_of(L, st, c->in[i]);
        if (below != before) nl_anchor_parent(L, st, anchor, below);
    }
    nl_anchor_parent(L, st, anchor, nl_current_scope(st)->group);
    nl_anchor_parent(L, st, anchor, nl_hooks_group(st));
    return nl_callback_new(L, st, cell, run_backward, "Function", NL_LIFE_SCOPE);
}

/* Handles in ctx's fields outlive the scopes around the call: backward needs them. */
static void own_fields(lua_State *L, nl_state *st)
{
    lua_pushnil(L);
    while (lua_next(L, AT_CTX)) {
        nl_own_tree(L, st, -1);
        lua_pop(L, 1);
    }
}

/* Records the node over the results. */
static void record(call *c)
{
    lua_State *L = c->L;
    nl_state *st = c->st;
    int first = AT_ARGS + c->n_args;
    read_results(c);
    read_saved(c);
    own_fields(L, st);
    nl_callback *cb = make_anchor(c);
    neap_custom f = {.size = sizeof f,
                     .name = c->name,
                     .backward = nl_callback_fn(cb),
                     .inputs = c->in,
                     .n_inputs = c->n_in,
                     .outputs = c->out,
                     .n_outputs = c->n_out,
                     .saved = c->saved,
                     .n_saved = c->n_saved,
                     .non_differentiable = c->fixed};
    neap_node *n = neap_custom_record(st->c, &f);
    if (n) n->group = cb->cell;
    nl_callback_release(cb); /* the node has its own reference; without a node the anchor goes */
    if (!n && neap_error(st->c)) nl_raise(L, st, c->name);
    lua_settop(L, first + c->n_results - 1);
    for (int i = first; n && i < first + c->n_results; i++) {
        nl_handle *h = nl_handle_at(L, st, i);
        if (h && h->t && h->t->ag) nl_anchor_handle(L, st, h, i);
    }
}

static int apply_done(lua_State *L, int status, lua_KContext n_args)
{
    (void)status;
    nl_state *st = nl_enter(L);
    nl_guard *g = lua_touserdata(L, AT_GUARD);
    call c = {.L = L, .st = st, .n_args = (int)n_args};
    int first = AT_ARGS + c.n_args;
    bool any = false;
    nl_guard_end_ids(g);
    c.n_results = lua_gettop(L) - first + 1;
    class_name(L, AT_CLASS, c.name, sizeof c.name);
    read_inputs(&c);
    luaL_checkstack(L, 10, NULL);
    close_ctx(&c);
    for (int i = 0; i < c.n_in; i++) any = any || neap_requires_grad(c.in[i]);
    if (any && neap_grad_enabled(st->c)) record(&c);
    for (int i = 0; i < c.n_results; i++) nl_mark_tree(L, st, first + i, &g->scope);
    nl_guard_end(g, NULL);
    return c.n_results;
}

/* class(...) */
static int apply(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char name[41];
    int n = lua_gettop(L) - 1;
    class_name(L, AT_CLASS, name, sizeof name);
    nl_maybe_collect(L, st);
    lua_pushstring(L, "forward");
    if (lua_rawget(L, AT_CLASS) != LUA_TFUNCTION)
        return nl_error(L, st, NEAP_E_ARG, "neap.%s: has no forward; write function %s.forward(ctx, ...) end",
                        name, name);
    lua_pop(L, 1);
    luaL_checkstack(L, n + 10, NULL);
    lua_createtable(L, 0, 4); /* ctx */
    lua_createtable(L, n, 0);
    for (int i = 1; i <= n; i++) {
        nl_handle *h = nl_handle_at(L, st, i + 1);
        lua_pushboolean(L, h && h->t && neap_requires_grad(h->t));
        lua_rawseti(L, -2, i);
    }
    lua_setfield(L, -2, "needs_input_grad");
    nl_set_metatable(L, &st->k_fctx);
    lua_insert(L, 2);
    nl_guard *g = nl_guard_new(L, st, "Function");
    if (!nl_guard_add(g, neap_set_grad_enabled(st->c, 0)) || !nl_guard_scope(g)) return nl_raise(L, st, name);
    lua_insert(L, 2);
    nl_guard_body(L, st, AT_GUARD);
    lua_pushstring(L, "forward");
    lua_rawget(L, AT_CLASS);
    for (int i = 0; i <= n; i++) lua_pushvalue(L, AT_CTX + i);
    lua_callk(L, n + 1, LUA_MULTRET, n, apply_done);
    return apply_done(L, LUA_OK, n);
}

/* ---- backward */

/* Gradients of the outputs; where none arrived, zeros. */
static void push_gradients(lua_State *L, nl_state *st, nl_run *r, const neap_node *node)
{
    for (int j = 0; j < r->v->n_in; j++) {
        if (r->v->in[j]) {
            nl_push_lent(L, r, r->v->in[j]);
            continue;
        }
        const np_node_meta *m = &node->meta[j];
        nl_handle *h = nl_new_handle(L, st);
        h->t = neap_keep(neap_zeros(st->c, m->ndim, m->shape, (neap_dtype)m->dtype, m->device));
        if (!h->t) nl_raise(L, st, node->name);
    }
}

/* Which result is the gradient of tensor argument i: results stand at first ... by argument position. */
static int check_gradients(lua_State *L, nl_state *st, int positions, int first, int m, const neap_node *node,
                           int *at)
{
    char got[80];
    lua_getfield(L, positions, "n");
    int n_args = (int)lua_tointeger(L, -1), n = (int)lua_rawlen(L, positions);
    lua_pop(L, 1);
    if (m > n_args)
        nl_error(L, st, NEAP_E_GRADIENT, "neap.%s: backward returned %d gradients, forward has %d arguments",
                 node->name, m, n_args);
    for (int i = 0, next = 1; i < n; i++, next++) {
        lua_rawgeti(L, positions, i + 1);
        int p = (int)lua_tointeger(L, -1);
        lua_pop(L, 1);
        for (; next < p; next++)
            if (next <= m && !lua_isnil(L, first + next - 1))
                nl_error(L, st, NEAP_E_GRADIENT,
                         "neap.%s: backward returned %s as the gradient of argument %d, which is no tensor; "
                         "return nil there",
                         node->name, nl_kind(L, first + next - 1, got, sizeof got), next);
        bool given = p <= m && !lua_isnil(L, first + p - 1);
        at[i] = given ? first + p - 1 : 0;
        if (given) nl_check_tensor(L, st, at[i], node->name, "a gradient");
        else if (p > m && neap_custom_needs(st->c, i)) /* an explicit nil says: none */
            nl_error(L, st, NEAP_E_GRADIENT,
                     "neap.%s: backward returned no gradient for argument %d, which needs one; return one "
                     "gradient for each argument of forward, in order",
                     node->name, p);
    }
    return n;
}

static int run_backward(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    const neap_node *node = st->c->custom->node;
    int at[NEAP_MAX_RESULTS];
    if (!nl_anchor_get(L, st, r->cb->cell))
        return nl_error(L, st, NEAP_E_INTERNAL,
                        "neap.%s: its Lua functions were collected while the graph still needs them",
                        node->name);
    int anchor = lua_gettop(L);
    lua_rawgeti(L, anchor, NL_A_FN);
    lua_rawgeti(L, anchor, NL_A_ARGS);
    lua_rawgeti(L, anchor, NL_A_STORE);
    int ctx = anchor + 2, positions = anchor + 3;
    lua_newtable(L); /* saved values are unpacked into it at the first ctx:saved() */
    lua_rawsetp(L, ctx, key_cache(st));
    lua_pushstring(L, "backward");
    if (lua_rawget(L, anchor + 1) != LUA_TFUNCTION)
        return nl_error(L, st, NEAP_E_ARG, "neap.%s: has no backward; write function %s.backward(ctx, g) end",
                        node->name, node->name);
    int fn = lua_gettop(L);
    luaL_checkstack(L, r->v->n_in + 10, NULL);
    lua_pushvalue(L, ctx);
    push_gradients(L, st, r, node);
    lua_call(L, r->v->n_in + 1, LUA_MULTRET);
    nl_switch(L, st);
    int m = lua_gettop(L) - fn + 1;
    int n = check_gradients(L, st, positions, fn, m, node, at);
    lua_pushnil(L);
    lua_rawsetp(L, ctx, key_cache(st));
    for (int i = 0; i < n; i++)
        r->v->out[i] = at[i] ? neap_retain(((nl_handle *)lua_touserdata(L, at[i]))->t) : NULL;
    r->v->n_out = n;
    return 0;
}

/* ---- classes */

/* A field that a class or a ctx does not have: nil, except for PyTorch's names of what it has. */
static int untold(lua_State *L)
{
    nl_state *st = nl_up(L);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
    const char *here = key ? nl_translate(L, st, "functions", key) : NULL;
    if (here) return nl_error(L, st, NEAP_E_ARG, "neap.Function: there is no field '%s'%s", key, here);
    lua_pushnil(L);
    return 1;
}

static int function_tostring(lua_State *L)
{
    char name[41];
    lua_pushfstring(L, "neap.Function %s", class_name(L, 1, name, sizeof name));
    return 1;
}

/* Function "Name", or Function("Name", {forward = ..., backward = ...}) */
static int new_class(lua_State *L)
{
    static const char *const names[] = {"forward", "backward", NULL};
    nl_state *st = nl_enter(L);
    char got[80];
    if (lua_type(L, 1) != LUA_TSTRING)
        return nl_error(L, st, NEAP_E_ARG, "neap.Function: needs a name: neap.Function \"Swish\", got %s",
                        nl_kind(L, 1, got, sizeof got));
    nl_check_options(L, st, 2, "Function", names);
    lua_newtable(L);
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "name");
    for (int i = 0; i < 2; i++) {
        if (!nl_get_option(L, lua_isnoneornil(L, 2) || lua_type(L, 2) != LUA_TTABLE ? 0 : 2, names[i]))
            continue;
        lua_setfield(L, -2, names[i]);
    }
    nl_set_metatable(L, &st->k_function);
    return 1;
}

/* gradcheck(fn, inputs, {eps =, atol =, rtol =, order =}): true, or an error that says where. */
static int gradcheck(lua_State *L)
{
    static const char *const names[] = {"eps", "atol", "rtol", "order", NULL};
    nl_state *st = nl_enter(L);
    int n = 1, order;
    nl_check_body(L, st, 1, "gradcheck");
    nl_check_options(L, st, 3, "gradcheck", names);
    lua_settop(L, 3);
    double eps = nl_number_option(L, st, 3, "gradcheck", "eps", 1e-6);
    double atol = nl_number_option(L, st, 3, "gradcheck", "atol", 1e-5);
    double rtol = nl_number_option(L, st, 3, "gradcheck", "rtol", 1e-3);
    order = (int)nl_number_option(L, st, 3, "gradcheck", "order", 1);
    neap_tensor *one, **inputs = &one;
    if (nl_handle_at(L, st, 2)) one = nl_check_tensor(L, st, 2, "gradcheck", "the input");
    else inputs = nl_tensor_list(L, st, 2, "gradcheck", "inputs", false, &n);
    uint64_t cell = nl_anchor_new(L, st);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, NL_A_FN);
    nl_callback *cb = nl_callback_new(L, st, cell, nl_run_plain, "gradcheck", NL_LIFE_SCOPE);
    for (int i = 0; i < n; i++) neap_retain(inputs[i]);
    int base = nl_set_base(st, 1),
        bad = neap_gradcheck(st->c, nl_callback_fn(cb), inputs, n, eps, atol, rtol, order);
    nl_set_base(st, base);
    for (int i = 0; i < n; i++) neap_free(inputs[i]);
    nl_callback_release(cb);
    if (bad) return nl_raise(L, st, "gradcheck");
    lua_pushboolean(L, 1);
    return 1;
}

static const luaL_Reg functions[] = {{"Function", new_class}, {"gradcheck", gradcheck}, {NULL, NULL}};
static const luaL_Reg class_metamethods[] = {
    {"__call", apply}, {"__index", untold}, {"__tostring", function_tostring}, {NULL, NULL}};
static const luaL_Reg unknown_fields[] = {{"__index", untold}, {NULL, NULL}};
static const luaL_Reg ctx_methods[] = {{"save_for_backward", save_for_backward},
                                       {"saved", saved},
                                       {"mark_dirty", mark_dirty},
                                       {"mark_non_differentiable", mark_fixed},
                                       {NULL, NULL}};

void nl_open_function(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    nl_metatable(L, st, &st->k_function, "neap.Function", class_metamethods);
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_fctx, "neap.FunctionContext", (luaL_Reg[]){{NULL, NULL}});
    lua_newtable(L);
    nl_setfuncs(L, st, ctx_methods);
    lua_newtable(L);
    nl_setfuncs(L, st, unknown_fields);
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
