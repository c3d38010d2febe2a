/* autograd.c - backward, grad, hooks, and nodes as Lua sees them.
 *
 * What is handed in as a table comes back as a table with the same keys. A hook registered on a leaf lives in the
 * anchor of that leaf's handle and of every graph made above it; one on a result in the anchor of its node. */
#include "nl.h"

/* ---- backward and grad */

typedef struct pass_opts {
    neap_backward_opts o;
    int inputs; /* stack index of the list, 0 */
} pass_opts;

/* The core says that there is no graph; if recording is off here, who switched it off? */
static int raise_pass(lua_State *L, nl_state *st, const char *fn)
{
    if (neap_error(st->c) == NEAP_E_NOGRAD && !neap_grad_enabled(st->c) &&
        !strstr(neap_error_message(st->c), "switched off")) {
        const np_ambient_entry *e = neap_x_effective(st->c, NP_AMB_GRAD);
        char text[500];
        snprintf(text, sizeof text, "%.300s; gradients are switched off by neap.%s at %s",
                 neap_error_message(st->c), e && e->where ? e->where : "no_grad",
                 e && e->note[0] ? e->note : "an unknown line");
        neap_clear_error(st->c);
        neap_fail(st->c, NEAP_E_NOGRAD, text, NULL);
    }
    return nl_raise(L, st, fn);
}

/* backward([grad,] [options]) */
static int backward(lua_State *L)
{
    static const char *const names[] = {"retain_graph", "create_graph", "inputs", NULL};
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L), opts = n > 1 && lua_type(L, n) == LUA_TTABLE ? n : 0, n_inputs = 0;
    neap_tensor *out = nl_check_tensor(L, st, 1, "backward", "the output"), **inputs = NULL;
    neap_tensor *grad = n > 1 && opts != 2 ? nl_opt_tensor(L, st, 2, "backward", "the gradient") : NULL;
    if (n > 3 || (n == 3 && !opts && !lua_isnil(L, 3)))
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.backward: too many arguments; loss:backward([grad,] {retain_graph =, ...})");
    nl_check_options(L, st, opts, "backward", names);
    neap_backward_opts o = {.size = sizeof o};
    o.create_graph = nl_bool_option(L, st, opts, "backward", "create_graph", false);
    o.retain_graph = nl_bool_option(L, st, opts, "backward", "retain_graph", o.create_graph);
    if (nl_get_option(L, opts, "inputs"))
        inputs = nl_tensor_list(L, st, lua_gettop(L), "backward", "inputs", false, &n_inputs);
    o.inputs = inputs;
    o.n_inputs = n_inputs;
    uint64_t group = o.create_graph && st->n_callbacks ? nl_group_push(L, st, &out, 1) : 0;
    neap_retain(out);
    if (grad) neap_retain(grad);
    int base = nl_set_base(st, 1), bad = neap_backward(st->c, out, grad, &o);
    nl_set_base(st, base);
    neap_free(out);
    neap_free(grad);
    if (bad) return raise_pass(L, st, "backward");
    nl_anchor_leaves(L, st, group);
    return 0;
}

/* Values of a table in a fixed order: pushes a list of keys; numbers first, then strings, sorted. */
static int compare_keys(lua_State *L, int a, int b)
{
    bool na = lua_type(L, a) == LUA_TNUMBER, nb = lua_type(L, b) == LUA_TNUMBER;
    if (na != nb) return na ? -1 : 1;
    return lua_compare(L, a, b, LUA_OPLT) ? -1 : 1;
}

void nl_sorted_keys(lua_State *L, nl_state *st, int idx, const char *fn)
{
    char got[80];
    idx = lua_absindex(L, idx);
    lua_newtable(L);
    int keys = lua_gettop(L), n = 0;
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TNUMBER && lua_type(L, -1) != LUA_TSTRING)
            nl_error(L, st, NEAP_E_ARG, "neap.%s: keys must be numbers or strings, got %s", fn,
                     nl_kind(L, -1, got, sizeof got));
        lua_pushvalue(L, -1);
        int i = n++;
        for (; i > 0; i--) { /* insertion from the end: keys of lists come in order */
            lua_rawgeti(L, keys, i);
            bool before = compare_keys(L, lua_gettop(L) - 1, lua_gettop(L)) < 0;
            if (!before) {
                lua_pop(L, 1);
                break;
            }
            lua_rawseti(L, keys, i + 1);
        }
        lua_rawseti(L, keys, i + 1);
    }
}

typedef struct tensors { /* one tensor, or a table of them with its keys */
    int table, keys;     /* stack indices; table 0: a single tensor */
    int n;
    neap_tensor **v;
} tensors;

static tensors read_tensors(lua_State *L, nl_state *st, int idx, const char *what)
{
    tensors s = {.n = 1};
    char name[60];
    if (lua_type(L, idx) != LUA_TTABLE) {
        neap_tensor *t = nl_check_tensor(L, st, idx, "grad", what);
        s.v = lua_newuserdatauv(L, sizeof *s.v, 0);
        s.v[0] = t;
        return s;
    }
    s.table = idx;
    nl_sorted_keys(L, st, idx, "grad");
    s.keys = lua_gettop(L);
    s.n = (int)lua_rawlen(L, s.keys);
    if (s.n == 0) nl_error(L, st, NEAP_E_ARG, "neap.grad: the table of %s is empty", what);
    s.v = lua_newuserdatauv(L, sizeof *s.v * (size_t)s.n, 0);
    for (int i = 0; i < s.n; i++) {
        lua_rawgeti(L, s.keys, i + 1);
        snprintf(name, sizeof name, "%s: entry %d", what, i + 1);
        lua_rawget(L, idx);
        s.v[i] = nl_check_tensor(L, st, -1, "grad", name);
        lua_pop(L, 1);
    }
    return s;
}

/* grad_outputs follow the shape of outputs: a tensor for a tensor, the same keys for a table. */
static neap_tensor **read_grad_outputs(lua_State *L, nl_state *st, int opts, const tensors *outs)
{
    char got[80];
    if (!nl_get_option(L, opts, "grad_outputs")) return NULL;
    int idx = lua_gettop(L);
    neap_tensor **v = lua_newuserdatauv(L, sizeof *v * (size_t)outs->n, 0);
    if (!outs->table) {
        v[0] = nl_check_tensor(L, st, idx, "grad", "grad_outputs");
        return v;
    }
    if (lua_type(L, idx) != LUA_TTABLE)
        nl_error(L, st, NEAP_E_ARG,
                 "neap.grad: grad_outputs must be a table with the keys of the outputs, got %s",
                 nl_kind(L, idx, got, sizeof got));
    for (int i = 0; i < outs->n; i++) {
        lua_rawgeti(L, outs->keys, i + 1);
        lua_rawget(L, idx);
        v[i] = nl_opt_tensor(L, st, -1, "grad", "an entry of grad_outputs");
        lua_pop(L, 1);
    }
    return v;
}

/* grad(outputs, inputs, options): gradients in the form of inputs; unused ones are nil. */
static int grad(lua_State *L)
{
    static const char *const names[] = {"grad_outputs", "retain_graph", "create_graph", "allow_unused", NULL};
    nl_state *st = nl_enter(L);
    nl_maybe_collect(L, st);
    lua_settop(L, 3);
    nl_check_options(L, st, 3, "grad", names);
    tensors outs = read_tensors(L, st, 1, "outputs"), in = read_tensors(L, st, 2, "inputs");
    neap_tensor **grads = read_grad_outputs(L, st, 3, &outs);
    neap_backward_opts o = {.size = sizeof o};
    o.create_graph = nl_bool_option(L, st, 3, "grad", "create_graph", false);
    o.retain_graph = nl_bool_option(L, st, 3, "grad", "retain_graph", o.create_graph);
    o.allow_unused = nl_bool_option(L, st, 3, "grad", "allow_unused", false);
    nl_handle **h = lua_newuserdatauv(L, sizeof *h * (size_t)in.n, 0);
    neap_tensor **results = lua_newuserdatauv(L, sizeof *results * (size_t)in.n, 0);
    memset(results, 0, sizeof *results * (size_t)in.n);
    lua_createtable(L, in.n, 0); /* holds the handles until they are filled */
    int list = lua_gettop(L);
    for (int i = 0; i < in.n; i++) {
        h[i] = nl_new_handle(L, st);
        lua_rawseti(L, list, i + 1);
    }
    uint64_t group = o.create_graph && st->n_callbacks ? nl_group_push(L, st, outs.v, outs.n) : 0;
    for (int i = 0; i < outs.n; i++) neap_retain(outs.v[i]);
    for (int i = 0; i < in.n; i++) neap_retain(in.v[i]);
    int base = nl_set_base(st, 1), bad = neap_grad(st->c, outs.v, grads, outs.n, in.v, in.n, &o, results);
    nl_set_base(st, base);
    for (int i = 0; i < in.n; i++) neap_free(in.v[i]), h[i]->t = results[i];
    for (int i = 0; i < outs.n; i++) neap_free(outs.v[i]);
    if (bad) return raise_pass(L, st, "grad");
    for (int i = 0; i < in.n; i++) {
        neap_tensor *g = h[i]->t;
        lua_rawgeti(L, list, i + 1);
        if (g && g->ag && st->n_callbacks) nl_anchor_result(L, st, h[i], -1, group);
        lua_pop(L, 1);
    }
    if (!in.table) {
        lua_rawgeti(L, list, 1);
        if (!h[0]->t) lua_pushnil(L);
        return 1;
    }
    lua_createtable(L, 0, in.n);
    for (int i = 0; i < in.n; i++) {
        if (!h[i]->t) continue;
        lua_rawgeti(L, in.keys, i + 1);
        lua_rawgeti(L, list, i + 1);
        lua_rawset(L, -3);
    }
    return 1;
}

/* ---- small ones */

static int detach(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "detach", "x");
    nl_handle *h = nl_new_handle(L, st);
    h->t = neap_keep(neap_detach(st->c, t));
    return h->t ? 1 : nl_raise(L, st, "detach");
}

static int detach_(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "detach_", "x");
    if (neap_detach_(st->c, t)) return nl_raise(L, st, "detach_");
    lua_pushnil(L); /* the functions of the graph it was in */
    lua_setiuservalue(L, 1, 1);
    lua_settop(L, 1);
    return 1;
}

static int requires_grad_(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "requires_grad_", "x");
    int on = lua_isnoneornil(L, 2) ? 1 : lua_toboolean(L, 2);
    if (neap_set_requires_grad(st->c, t, on)) return nl_raise(L, st, "requires_grad_");
    nl_know(L, st, 1);
    lua_settop(L, 1);
    return 1;
}

static int retain_grad(lua_State *L)
{
    nl_state *st = nl_enter(L);
    if (neap_retain_grad(st->c, nl_check_tensor(L, st, 1, "retain_grad", "x")))
        return nl_raise(L, st, "retain_grad");
    lua_settop(L, 1);
    return 1;
}

/* ---- hooks */

typedef struct hook_handle {
    uint64_t id;
} hook_handle;

static int hook_remove(lua_State *L)
{
    nl_state *st = nl_enter(L);
    hook_handle *h = nl_userdata(L, 1, &st->k_hook);
    if (!h) return nl_error(L, st, NEAP_E_ARG, "neap.hook: write hook:remove()");
    if (h->id) neap_remove_hook(st->c, h->id);
    h->id = 0;
    return 0;
}

/* The anchor of a new hook; below it the tensor's, if one is given. Pushed. */
static nl_callback *new_hook(lua_State *L, nl_state *st, int fn, neap_tensor *t, lua_CFunction run)
{
    char got[80];
    if (lua_type(L, fn) != LUA_TFUNCTION && luaL_getmetafield(L, fn, "__call") == LUA_TNIL)
        nl_error(L, st, NEAP_E_ARG, "neap.register_hook: the hook must be a function, got %s",
                 nl_kind(L, fn, got, sizeof got));
    uint64_t cell = nl_anchor_new(L, st);
    int anchor = lua_gettop(L);
    lua_pushvalue(L, fn);
    lua_rawseti(L, anchor, NL_A_FN);
    if (t) nl_anchor_parent(L, st, anchor, nl_group_of(L, st, t));
    return nl_callback_new(L, st, cell, run, "register_hook", NL_LIFE_LENT);
}

/* Gives back the callback's first reference (the hook has its own) and returns hook:remove()'s object. */
static int finish_hook(lua_State *L, nl_state *st, nl_callback *cb, hook_handle *h, uint64_t id)
{
    h->id = id;
    nl_callback_release(cb);
    return id ? 1 : nl_raise(L, st, "register_hook");
}

static hook_handle *push_hook_handle(lua_State *L, nl_state *st)
{
    hook_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    h->id = 0;
    nl_set_metatable(L, &st->k_hook);
    return h;
}

/* x:register_hook(fn): fn gets the gradient and may return another. */
static int register_hook(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "register_hook", "x");
    if (!neap_requires_grad(t))
        return nl_error(L, st, NEAP_E_NOGRAD,
                        "neap.register_hook: the tensor does not require grad, so its hook would never run");
    neap_node *n = neap_grad_fn(t);
    bool late = n ? n->refs > 1 : np_accumulates(t);
    hook_handle *h = push_hook_handle(L, st);
    nl_callback *cb = new_hook(L, st, 2, t, nl_run_plain);
    lua_pushvalue(L, -1);
    lua_setiuservalue(L, 1, 1); /* the handle keeps the hook's anchor */
    lua_pop(L, 1);
    if (n) n->group = cb->cell;
    if (late) nl_anchor_promise(L, st, cb);
    return finish_hook(L, st, cb, h, neap_register_hook(st->c, t, nl_callback_fn(cb)));
}

/* ---- nodes */

typedef struct node_box {
    neap_node *n;
} node_box;

void nl_push_node(lua_State *L, nl_state *st, neap_node *n)
{
    if (!n) {
        lua_pushnil(L);
        return;
    }
    node_box *b = lua_newuserdatauv(L, sizeof *b, 1);
    b->n = NULL;
    nl_set_metatable(L, &st->k_node);
    b->n = neap_node_retain(n);
    if (n->group > 1 && nl_anchor_get(L, st, n->group)) lua_setiuservalue(L, -2, 1);
}

static neap_node *check_node(lua_State *L, nl_state *st, int idx)
{
    char got[80];
    node_box *b = nl_userdata(L, idx, &st->k_node);
    if (!b || !b->n)
        nl_error(L, st, NEAP_E_ARG, "neap.node: needs a node such as x.grad_fn, got %s",
                 nl_kind(L, idx, got, sizeof got));
    return b->n;
}

static int node_gc(lua_State *L)
{
    nl_state *st = nl_up(L);
    node_box *b = lua_touserdata(L, 1);
    lua_State *running = st->L;
    st->L = L;
    if (b->n && st->c) neap_node_free(b->n);
    b->n = NULL;
    st->L = running;
    return 0;
}

static int node_eq(lua_State *L)
{
    nl_state *st = nl_up(L);
    const node_box *a = nl_userdata(L, 1, &st->k_node), *b = nl_userdata(L, 2, &st->k_node);
    lua_pushboolean(L, a && b && a->n == b->n);
    return 1;
}

static int node_tostring(lua_State *L)
{
    lua_pushfstring(L, "neap.node %s", neap_node_name(check_node(L, nl_up(L), 1)));
    return 1;
}

/* Hook of a node: tables of the gradients of its inputs and of its outputs, nil where there is none. */
static int run_node_hook(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    nl_run_function(L, r);
    int fn = lua_gettop(L), first = r->cb->n_first;
    lua_newtable(L);
    lua_newtable(L);
    for (int i = 0; i < r->v->n_in; i++) {
        if (!r->v->in[i]) continue;
        nl_push_lent(L, r, r->v->in[i]);
        lua_rawseti(L, i < first ? fn + 1 : fn + 2, i < first ? i + 1 : i - first + 1);
    }
    lua_call(L, 2, 1);
    if (lua_isnil(L, -1)) return 0;
    if (lua_type(L, -1) != LUA_TTABLE)
        return nl_error(L, st, NEAP_E_GRADIENT,
                        "neap.register_hook: a node's hook returns nil or a table of gradients of inputs");
    int list = lua_gettop(L);
    luaL_checkstack(L, first + 4, NULL);
    for (int i = 0; i < first; i++)
        if (lua_rawgeti(L, list, i + 1) == LUA_TNIL && r->v->in[i]) lua_pop(L, 1), lua_pushnil(L);
    nl_collect_results(L, r, list + 1, first, "register_hook");
    for (int i = 0; i < first; i++)
        if (!r->v->out[i] && r->v->in[i]) r->v->out[i] = neap_retain(r->v->in[i]);
    return 0;
}

/* node:register_hook(fn) */
static int node_register_hook(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_node *n = check_node(L, st, 1);
    hook_handle *h = push_hook_handle(L, st);
    nl_callback *cb = new_hook(L, st, 2, NULL, run_node_hook);
    cb->n_first = n->n_in;
    nl_anchor_parent(L, st, lua_gettop(L), n->group);
    n->group = cb->cell;
    /* The tensor's handle is not at hand, so the registry keeps the function until the hook is dropped. */
    nl_anchor_promise(L, st, cb);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_late);
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, (lua_Integer)cb->cell);
    lua_pop(L, 2);
    return finish_hook(L, st, cb, h, neap_node_register_hook(st->c, n, nl_callback_fn(cb)));
}

static void push_meta(lua_State *L, nl_state *st, const neap_node *n)
{
    lua_newtable(L);
    for (int j = 0; j < n->n_out; j++) {
        lua_newtable(L);
        lua_pushstring(L, neap_dtype_name((neap_dtype)n->meta[j].dtype));
        lua_setfield(L, -2, "dtype");
        lua_pushstring(L, neap_device_name(st->c, n->meta[j].device));
        lua_setfield(L, -2, "device");
        lua_newtable(L);
        for (int d = 0; d < n->meta[j].ndim; d++) {
            lua_pushinteger(L, n->meta[j].shape[d]);
            lua_rawseti(L, -2, d + 1);
        }
        lua_setfield(L, -2, "shape");
        lua_rawseti(L, -2, j + 1);
    }
}

static int push_saved(lua_State *L, nl_state *st, neap_node *n)
{
    lua_newtable(L);
    for (int i = 0; i < neap_node_n_saved(n); i++) {
        neap_tensor *t = neap_node_saved(st->c, n, i);
        if (!t && neap_error(st->c)) return nl_raise(L, st, "node");
        if (!t) continue;
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_known);
        lua_rawgetp(L, -1, t);
        nl_handle *known = nl_handle_at(L, st, -1);
        lua_remove(L, -2);
        if (known && known->t == t) {
            neap_free(t);
        } else {
            lua_pop(L, 1);
            nl_push_take(L, st, t);
            nl_know(L, st, -1);
        }
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* Upvalue 2: the methods. */
static int node_index(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_node *n = check_node(L, st, 1);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (!strcmp(key, "name")) return lua_pushstring(L, neap_node_name(n)), 1;
    if (!strcmp(key, "meta")) return push_meta(L, st, n), 1;
    if (!strcmp(key, "saved")) return push_saved(L, st, n);
    if (!strcmp(key, "next")) {
        lua_newtable(L);
        for (int i = 0; i < neap_node_n_next(n); i++) {
            nl_push_node(L, st, neap_node_next(n, i));
            lua_rawseti(L, -2, i + 1);
        }
        return 1;
    }
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(2));
    return 1;
}

static const luaL_Reg node_metamethods[] = {
    {"__gc", node_gc}, {"__eq", node_eq}, {"__tostring", node_tostring}, {NULL, NULL}};
static const luaL_Reg hook_metamethods[] = {{"__close", hook_remove}, {NULL, NULL}};
static const luaL_Reg functions[] = {
    {"backward", backward}, {"grad", grad}, {"detach", detach}, {"detach_", detach_}, {NULL, NULL}};
static const luaL_Reg methods[] = {{"backward", backward},
                                   {"detach", detach},
                                   {"detach_", detach_},
                                   {"requires_grad_", requires_grad_},
                                   {"retain_grad", retain_grad},
                                   {"register_hook", register_hook},
                                   {NULL, NULL}};

/* Stack: methods, neap. */
void nl_open_autograd(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    lua_pushvalue(L, -2);
    nl_setfuncs(L, st, methods);
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_node, "neap.Node", node_metamethods);
    lua_pushlightuserdata(L, st);
    lua_newtable(L);
    nl_pushfunction(L, st, node_register_hook);
    lua_setfield(L, -2, "register_hook");
    lua_pushcclosure(L, node_index, 2);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_hook, "neap.Hook", hook_metamethods);
    lua_newtable(L);
    nl_pushfunction(L, st, hook_remove);
    lua_setfield(L, -2, "remove");
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
