/* tensor.c - the handle of a tensor in Lua: a small userdata that holds one core reference.
 *
 * A handle is empty (t NULL) before it is filled and after it is released; using it then is an error that names
 * where it was released. Equality is identity of the core tensor. Facts are fields, everything else is a method;
 * elements are read by index.c. */
#include "nl.h"

/* ---- life */

static nl_note *note_drop(nl_note *n)
{
    if (n && --n->refs == 0) free(n);
    return NULL;
}

void nl_empty(nl_handle *h, nl_note *note)
{
    neap_tensor *t = h->t;
    if (!t) return;
    if (h->st->n_callbacks && t->ag) nl_anchor_hold(h->st, t);
    h->t = NULL;
    if (note) {
        note_drop(h->note);
        h->note = note;
        note->refs++;
    }
    neap_free(t);
}

static int tensor_gc(lua_State *L)
{
    nl_handle *h = lua_touserdata(L, 1);
    nl_state *st = h->st;
    if (h->scope) st->n_handles--;
    nl_unlink(h);
    if (h->captures) nl_capture_forget(h);
    lua_State *running = st->L;
    st->L = L;
    nl_empty(h, NULL);
    st->L = running;
    h->note = note_drop(h->note);
    return 0;
}

nl_handle *nl_new_handle_with(lua_State *L, nl_state *st, int mt)
{
    nl_handle *h = lua_newuserdatauv(L, sizeof *h, 1);
    memset(h, 0, sizeof *h);
    h->st = st;
    lua_pushvalue(L, mt);
    lua_setmetatable(L, -2);
    nl_link(nl_current_scope(st), h);
    st->n_handles++;
    return h;
}

nl_handle *nl_new_handle(lua_State *L, nl_state *st)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_tensor);
    nl_handle *h = nl_new_handle_with(L, st, lua_gettop(L));
    lua_remove(L, -2);
    return h;
}

void nl_fill(lua_State *L, nl_state *st, nl_handle *h, neap_tensor *t)
{
    h->t = t;
    if (st->n_callbacks && t && t->ag) nl_anchor_handle(L, st, h, -1);
}

static int make_handle(lua_State *L)
{
    nl_state *st = lua_touserdata(L, 1);
    nl_new_handle(L, st);
    return 1;
}

void nl_push_take(lua_State *L, nl_state *st, neap_tensor *t)
{
    lua_pushcfunction(L, make_handle);
    lua_pushlightuserdata(L, st);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK) {
        neap_free(t);
        lua_error(L);
    }
    nl_fill(L, st, lua_touserdata(L, -1), t);
}

void nl_know(lua_State *L, nl_state *st, int idx)
{
    nl_handle *h = lua_touserdata(L, idx);
    idx = lua_absindex(L, idx);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_known);
    lua_pushvalue(L, idx);
    lua_rawsetp(L, -2, h->t);
    lua_pop(L, 1);
}

void nl_push_known(lua_State *L, nl_state *st, neap_tensor *t)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_known);
    lua_rawgetp(L, -1, t);
    lua_remove(L, -2);
    nl_handle *h = nl_handle_at(L, st, -1);
    if (h && h->t == t) return;
    lua_pop(L, 1);
    nl_push_take(L, st, neap_retain(t));
    if (t->ag && !t->ag->node) nl_know(L, st, -1);
}

int nl_released(lua_State *L, nl_state *st, nl_handle *h, const char *fn)
{
    const char *when = h->note ? h->note->text : "earlier";
    return nl_error(L, st, NEAP_E_RELEASED,
                    "neap.%s: the tensor was released %s; neap.keep(x)%s lets it live", fn, when,
                    strncmp(when, "when", 4) ? " or returning it from the scope" : " in that function");
}

neap_tensor *nl_check_tensor(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    char got[80];
    nl_handle *h = nl_handle_at(L, st, idx);
    if (!h)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %s must be a tensor, got %s", fn, what,
                 nl_kind(L, idx, got, sizeof got));
    if (!h->t) nl_released(L, st, h, fn);
    return h->t;
}

neap_tensor *nl_opt_tensor(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    return lua_isnoneornil(L, idx) ? NULL : nl_check_tensor(L, st, idx, fn, what);
}

neap_tensor **nl_tensor_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what,
                             bool holes, int *n)
{
    char got[80], name[100];
    if (lua_type(L, idx) != LUA_TTABLE)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %s must be a list of tensors, got %s", fn, what,
                 nl_kind(L, idx, got, sizeof got));
    *n = (int)lua_rawlen(L, idx);
    neap_tensor **v = lua_newuserdatauv(L, sizeof *v * (size_t)(*n + 1), 0);
    for (int i = 0; i < *n; i++) {
        bool none = lua_rawgeti(L, idx, i + 1) == LUA_TNIL || (lua_isboolean(L, -1) && !lua_toboolean(L, -1));
        snprintf(name, sizeof name, "%s %d", what, i + 1);
        v[i] = holes && none ? NULL : nl_check_tensor(L, st, -1, fn, name);
        lua_pop(L, 1);
    }
    return v;
}

static int tensor_release(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_handle *h = nl_handle_at(L, st, 1);
    if (!h || !h->t) return 0;
    nl_note *note = malloc(sizeof *note);
    if (note) {
        char where[100];
        nl_where(L, st, where, sizeof where);
        note->refs = 0;
        snprintf(note->text, sizeof note->text, "at %s by :release()", where[0] ? where : "an unknown line");
    }
    nl_empty(h, note);
    return 0;
}

/* ---- shapes: immutable lists that compare, print and serve as an argument */

typedef struct shape_value {
    int n;
    int64_t v[NEAP_MAX_DIMS];
} shape_value;

void nl_push_shape(lua_State *L, nl_state *st, const neap_tensor *t)
{
    shape_value *s = lua_newuserdatauv(L, sizeof *s, 0);
    s->n = t->ndim;
    memcpy(s->v, t->shape, sizeof s->v);
    nl_set_metatable(L, &st->k_shape);
}

int nl_shape_values(lua_State *L, nl_state *st, int idx, int64_t *v)
{
    const shape_value *s = nl_userdata(L, idx, &st->k_shape);
    if (!s) return -1;
    memcpy(v, s->v, sizeof(int64_t) * (size_t)s->n);
    return s->n;
}

static int shape_index(lua_State *L)
{
    nl_state *st = nl_up(L);
    const shape_value *s = lua_touserdata(L, 1);
    int64_t i;
    if (!nl_integer(L, 2, &i)) return 0;
    if (i == 0) return nl_error(L, st, NEAP_E_INDEX, "neap.shape: position 0: positions count from 1");
    if (i < 0) i += s->n + 1;
    if (i < 1 || i > s->n) return 0;
    lua_pushinteger(L, s->v[i - 1]);
    return 1;
}

static int shape_newindex(lua_State *L)
{
    return nl_error(L, nl_up(L), NEAP_E_ARG,
                    "neap.shape: a shape cannot be changed; use x:reshape or x:view");
}

static int shape_eq(lua_State *L)
{
    nl_state *st = nl_up(L);
    const shape_value *a = nl_userdata(L, 1, &st->k_shape), *b = nl_userdata(L, 2, &st->k_shape);
    bool same = a && b && a->n == b->n;
    for (int i = 0; same && i < a->n; i++) same = a->v[i] == b->v[i];
    lua_pushboolean(L, same);
    return 1;
}

static int shape_len(lua_State *L)
{
    lua_pushinteger(L, ((const shape_value *)lua_touserdata(L, 1))->n);
    return 1;
}

static int shape_tostring(lua_State *L)
{
    const shape_value *s = lua_touserdata(L, 1);
    char buf[220] = "[";
    size_t n = 1;
    for (int i = 0; i < s->n; i++)
        n += (size_t)snprintf(buf + n, sizeof buf - n, "%s%lld", i ? "," : "", (long long)s->v[i]);
    lua_pushfstring(L, "%s]", buf);
    return 1;
}

/* ---- fields */

static const char *const field_names[] = {"shape", "dtype",   "device",  "ndim", "requires_grad",
                                          "grad",  "is_leaf", "grad_fn", "name"};
enum { F_SHAPE, F_DTYPE, F_DEVICE, F_NDIM, F_REQUIRES_GRAD, F_GRAD, F_IS_LEAF, F_GRAD_FN, F_NAME, N_FIELDS };

static int find_field(const char *key)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (!strcmp(field_names[i], key)) return i;
    return -1;
}

static int push_field(lua_State *L, nl_state *st, neap_tensor *t, int field)
{
    neap_tensor *grad;
    switch (field) {
    case F_SHAPE: nl_push_shape(L, st, t); break;
    case F_DTYPE: lua_pushstring(L, neap_dtype_name(neap_dtype_of(t))); break;
    case F_DEVICE: lua_pushstring(L, neap_device_name(st->c, neap_device_of(t))); break;
    case F_NDIM: lua_pushinteger(L, t->ndim); break;
    case F_REQUIRES_GRAD: lua_pushboolean(L, neap_requires_grad(t)); break;
    case F_IS_LEAF: lua_pushboolean(L, neap_is_leaf(t)); break;
    case F_GRAD_FN: nl_push_node(L, st, neap_grad_fn(t)); break;
    case F_GRAD:
        grad = neap_grad_of(t);
        if (grad) nl_push_take(L, st, grad);
        else lua_pushnil(L);
        break;
    default:
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_names);
        lua_pushvalue(L, 1);
        lua_rawget(L, -2);
    }
    return 1;
}

/* An unknown key: the nearest field or method. Methods are collected in a list only here. */
static int unknown_key(lua_State *L, nl_state *st, const char *key)
{
    const char *names[1024];
    int n = 0;
    for (int i = 0; i < N_FIELDS; i++) names[n++] = field_names[i];
    lua_pushnil(L);
    while (lua_next(L, lua_upvalueindex(2))) {
        lua_pop(L, 1);
        if (n < 1024 && lua_type(L, -1) == LUA_TSTRING) names[n++] = lua_tostring(L, -1);
    }
    const char *here = nl_translate(L, st, "names", key), *near = nl_nearest(key, names, n);
    if (here) return nl_error(L, st, NEAP_E_ARG, "neap.Tensor: no field or method '%s'%s", key, here);
    if (near)
        return nl_error(L, st, NEAP_E_ARG, "neap.Tensor: no field or method '%s'; did you mean '%s'?", key,
                        near);
    return nl_error(L, st, NEAP_E_ARG, "neap.Tensor: no field or method '%s'", key);
}

/* Upvalue 2: the methods. Numbers first, then methods, then fields, then tables and tensors. */
static int tensor_index(lua_State *L)
{
    nl_state *st = nl_up(L);
    int type = lua_type(L, 2);
    if (type != LUA_TSTRING) {
        nl_enter(L);
        return nl_index_read(L, st);
    }
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(2)) != LUA_TNIL) return 1;
    nl_enter(L);
    const char *key = lua_tostring(L, 2);
    int field = find_field(key);
    if (field < 0) return unknown_key(L, st, key);
    return push_field(L, st, nl_check_tensor(L, st, 1, key, "x"), field);
}

static int set_field(lua_State *L, nl_state *st, neap_tensor *t, int field)
{
    char got[80];
    if (field == F_GRAD) {
        neap_tensor *g = nl_opt_tensor(L, st, 3, "grad", "the gradient");
        return neap_set_grad(st->c, t, g) ? nl_raise(L, st, "grad") : 0;
    }
    if (field == F_REQUIRES_GRAD) {
        if (lua_type(L, 3) != LUA_TBOOLEAN)
            return nl_error(L, st, NEAP_E_ARG, "neap.requires_grad: must be true or false, got %s",
                            nl_kind(L, 3, got, sizeof got));
        if (neap_set_requires_grad(st->c, t, lua_toboolean(L, 3))) return nl_raise(L, st, "requires_grad");
        nl_know(L, st, 1);
        return 0;
    }
    if (field == F_NAME) {
        if (!lua_isnil(L, 3) && lua_type(L, 3) != LUA_TSTRING)
            return nl_error(L, st, NEAP_E_ARG, "neap.name: must be a string, got %s",
                            nl_kind(L, 3, got, sizeof got));
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_names);
        lua_pushvalue(L, 1);
        lua_pushvalue(L, 3);
        lua_rawset(L, -3);
        return 0;
    }
    return nl_error(L, st, NEAP_E_ARG, "neap.Tensor: field '%s' cannot be set", field_names[field]);
}

static int tensor_newindex(lua_State *L)
{
    nl_state *st = nl_enter(L);
    if (lua_type(L, 2) != LUA_TSTRING) return nl_index_write(L, st);
    const char *key = lua_tostring(L, 2);
    int field = find_field(key);
    if (field < 0)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.Tensor: no field '%s' to set; a tensor has grad, requires_grad and name, "
                        "and elements: x[k] = v",
                        key);
    return set_field(L, st, nl_check_tensor(L, st, 1, key, "x"), field);
}

/* ---- metamethods */

static int tensor_eq(lua_State *L)
{
    nl_state *st = nl_up(L);
    const nl_handle *a = nl_handle_at(L, st, 1), *b = nl_handle_at(L, st, 2);
    lua_pushboolean(L, a && b && a->t && a->t == b->t);
    return 1;
}

static int tensor_len(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "#", "x");
    if (t->ndim == 0)
        return nl_error(L, st, NEAP_E_DIMS, "neap.#: a 0-dim tensor has no length; x:item() is its value");
    lua_pushinteger(L, t->shape[0]);
    return 1;
}

static int tensor_compare(lua_State *L)
{
    return nl_error(L, nl_up(L), NEAP_E_ARG,
                    "neap: < and <= cannot compare tensors (Lua makes the result a boolean); use "
                    "x:lt(y), x:le(y), x:gt(y), x:ge(y), or x:item() for one number");
}

static int push_text(lua_State *L)
{
    lua_pushstring(L, lua_touserdata(L, 1));
    return 1;
}

/* Pushes text and frees it, also when Lua has no memory. */
static void push_text_take(lua_State *L, char *text)
{
    lua_pushcfunction(L, push_text);
    lua_pushlightuserdata(L, text);
    int rc = lua_pcall(L, 1, 1, 0);
    neap_free_text(text);
    if (rc != LUA_OK) lua_error(L);
}

static int tensor_tostring(lua_State *L)
{
    static const char *const names[] = {"threshold", "edge", "precision", "width", NULL};
    nl_state *st = nl_enter(L);
    nl_handle *h = nl_handle_at(L, st, 1);
    np_print_opts o = st->print;
    if (!h) nl_check_tensor(L, st, 1, "tostring", "x");
    if (!h->t) {
        lua_pushfstring(L, "tensor (released %s)", h->note ? h->note->text : "earlier");
        return 1;
    }
    if (!lua_isnoneornil(L, 2)) {
        nl_check_options(L, st, 2, "tostring", names);
        o.threshold = (int)nl_number_option(L, st, 2, "tostring", "threshold", o.threshold);
        o.edge = (int)nl_number_option(L, st, 2, "tostring", "edge", o.edge);
        o.precision = (int)nl_number_option(L, st, 2, "tostring", "precision", o.precision);
        o.width = (int)nl_number_option(L, st, 2, "tostring", "width", o.width);
    }
    int base = nl_set_base(st, 1);
    char *text = neap_x_print(st->c, h->t, &o);
    nl_set_base(st, base);
    if (!text) return nl_raise(L, st, "tostring");
    push_text_take(L, text);
    return 1;
}

static int set_print(lua_State *L)
{
    static const char *const names[] = {"threshold", "edge", "precision", "width", NULL};
    nl_state *st = nl_enter(L);
    int *fields[] = {&st->print.threshold, &st->print.edge, &st->print.precision, &st->print.width};
    nl_check_options(L, st, 1, "set_print", names);
    for (int i = 0; names[i]; i++) {
        double v = nl_number_option(L, st, 1, "set_print", names[i], *fields[i]);
        if (v < 0 || v > 1e6)
            return nl_error(L, st, NEAP_E_ARG, "neap.set_print: %s must lie between 0 and 1000000, got %g",
                            names[i], v);
        *fields[i] = (int)v;
    }
    return 0;
}

/* ---- elements on the host */

static void push_element(lua_State *L, neap_dtype d, const void *p)
{
    if (np_is_float(d)) lua_pushnumber(L, neap_x_load_double(d, p));
    else if (d == NEAP_BOOL) lua_pushboolean(L, neap_x_load_int(d, p) != 0);
    else lua_pushinteger(L, neap_x_load_int(d, p));
}

/* All elements, row-major, in a userdata that is pushed. */
static char *read_all(lua_State *L, nl_state *st, neap_tensor *t, const char *fn)
{
    size_t bytes = (size_t)t->numel * neap_dtype_size(neap_dtype_of(t));
    char *buf = lua_newuserdatauv(L, bytes + 16, 0);
    if (neap_read(st->c, t, buf, bytes)) nl_raise(L, st, fn);
    return buf;
}

/* Offset, in elements of the row-major order, of the positions at 2 ... */
static void element_strides(lua_State *L, nl_state *st, const neap_tensor *t, int64_t *logical,
                            int64_t *physical)
{
    int n = lua_gettop(L) - 1;
    if (n != t->ndim) nl_error(L, st, NEAP_E_INDEX, "neap.item: %d positions for %d dimensions", n, t->ndim);
    *logical = *physical = 0;
    for (int d = 0; d < n; d++) {
        int64_t i = nl_check_integer(L, st, d + 2, "item", "a position");
        if (i == 0)
            nl_error(L, st, NEAP_E_INDEX,
                     "neap.item: position 0: positions count from 1, or from the end with -1");
        if (i > t->shape[d] || i < -t->shape[d])
            nl_error(L, st, NEAP_E_INDEX, "neap.item: position %lld in dimension %d of size %lld",
                     (long long)i, d + 1, (long long)t->shape[d]);
        i = i < 0 ? i + t->shape[d] : i - 1;
        *logical = *logical * t->shape[d] + i;
        *physical += i * t->stride[d];
    }
}

static int tensor_item(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "item", "x");
    neap_dtype d = neap_dtype_of(t);
    int64_t logical = 0, physical = 0;
    if (lua_gettop(L) > 1) element_strides(L, st, t, &logical, &physical);
    else if (t->numel != 1)
        return nl_error(L, st, NEAP_E_SHAPE,
                        "neap.item: the tensor has %lld elements, item() is for one; name positions, or "
                        "use x:totable()",
                        (long long)t->numel);
    size_t item = neap_dtype_size(d);
    if (t->st->dev->backend.host_memory && !np_is_dry(t)) {
        if (st->c->on_read) st->c->on_read(st->c, t);
        push_element(L, d, nl_ptr(t) + physical * (int64_t)item);
    } else push_element(L, d, read_all(L, st, t, "item") + (size_t)logical * item);
    return 1;
}

static const char *push_nested(lua_State *L, const neap_tensor *t, int dim, const char *p)
{
    neap_dtype d = neap_dtype_of(t);
    if (dim == t->ndim) {
        push_element(L, d, p);
        return p + neap_dtype_size(d);
    }
    int64_t n = t->shape[dim];
    luaL_checkstack(L, 4, "tensor too deep");
    lua_createtable(L, n > INT32_MAX ? 0 : (int)n, 0);
    for (int64_t i = 1; i <= n; i++) {
        p = push_nested(L, t, dim + 1, p);
        lua_rawseti(L, -2, i);
    }
    return p;
}

static int tensor_totable(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "totable", "x");
    push_nested(L, t, 0, read_all(L, st, t, "totable"));
    return 1;
}

static int tensor_size(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "size", "x");
    if (!lua_isnoneornil(L, 2)) {
        lua_pushinteger(L, t->shape[nl_check_dim(L, st, 2, "size", t->ndim)]);
        return 1;
    }
    for (int i = 0; i < t->ndim; i++) lua_pushinteger(L, t->shape[i]);
    return t->ndim;
}

static int tensor_numel(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_pushinteger(L, nl_check_tensor(L, st, 1, "numel", "x")->numel);
    return 1;
}

static int tensor_is_float(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_pushboolean(L, np_is_float(neap_dtype_of(nl_check_tensor(L, st, 1, "is_floating_point", "x"))));
    return 1;
}

static int tensor_is_contiguous(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_pushboolean(L, neap_is_contiguous(nl_check_tensor(L, st, 1, "is_contiguous", "x")));
    return 1;
}

static int tensor_version(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_pushinteger(L, (lua_Integer)neap_tensor_version(nl_check_tensor(L, st, 1, "version", "x")));
    return 1;
}

/* Upvalues: state, tensor, dim (0-based). Called with (nothing, i). */
static int iter_next(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, lua_upvalueindex(2), "iter", "x");
    int64_t dim = lua_tointeger(L, lua_upvalueindex(3)), i = lua_tointeger(L, 2);
    if (dim >= t->ndim || i >= t->shape[dim]) return 0;
    lua_settop(L, 0);
    lua_pushinteger(L, i + 1);
    nl_handle *h = nl_new_handle(L, st);
    np_frame f = {0};
    f.attr[0] = (np_attr){.i = dim, .has = 1};
    f.attr[1] = (np_attr){.i = i, .has = 1};
    neap_tensor *row = nl_call(st, "select", &f, &t, 1);
    if (!row) return nl_raise(L, st, "iter");
    nl_fill(L, st, h, row);
    return 2;
}

static int tensor_iter(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "iter", "x");
    if (t->ndim == 0)
        return nl_error(L, st, NEAP_E_DIMS, "neap.iter: a 0-dim tensor has no rows; x:item() is its value");
    int64_t dim = lua_isnoneornil(L, 2) ? 0 : nl_check_dim(L, st, 2, "iter", t->ndim);
    lua_pushlightuserdata(L, st);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, dim);
    lua_pushcclosure(L, iter_next, 3);
    lua_pushnil(L);
    lua_pushinteger(L, 0);
    return 3;
}

/* "loss " .. x: the number of a one-element tensor. */
static int tensor_concat(lua_State *L)
{
    nl_state *st = nl_enter(L);
    for (int i = 1; i <= 2; i++) {
        nl_handle *h = nl_handle_at(L, st, i);
        if (!h) {
            luaL_tolstring(L, i, NULL);
            continue;
        }
        neap_tensor *t = nl_check_tensor(L, st, i, "..", "x");
        if (t->numel != 1)
            return nl_error(L, st, NEAP_E_SHAPE,
                            "neap...: a tensor of %lld elements cannot be joined to a text; use "
                            "tostring(x)",
                            (long long)t->numel);
        push_element(L, neap_dtype_of(t), read_all(L, st, t, ".."));
        lua_remove(L, -2);
        luaL_tolstring(L, -1, NULL);
        lua_remove(L, -2);
    }
    lua_concat(L, 2);
    return 1;
}

/* ---- comparison as plain booleans: b is a tensor, a nested list or a number */

typedef struct operand {
    neap_tensor *t;
    const char *p;
    size_t step; /* 0: one element for all */
} operand;

static operand read_operand(lua_State *L, nl_state *st, int idx, const char *fn)
{
    operand o = {0};
    if (!nl_handle_at(L, st, idx)) {
        nl_handle *h = nl_new_handle(L, st);
        h->t = nl_tensor_from(L, st, idx, fn, -1);
        o.t = h->t;
    } else {
        o.t = nl_check_tensor(L, st, idx, fn, "an argument");
    }
    o.p = read_all(L, st, o.t, fn);
    o.step = lua_type(L, idx) == LUA_TNUMBER ? 0 : neap_dtype_size(neap_dtype_of(o.t));
    return o;
}

static bool same_shape(const operand *a, const operand *b)
{
    if (!a->step || !b->step) return true;
    if (a->t->ndim != b->t->ndim) return a->t->numel == 0 && b->t->numel == 0 && b->t->ndim <= 1;
    for (int i = 0; i < a->t->ndim; i++)
        if (a->t->shape[i] != b->t->shape[i]) return false;
    return true;
}

static int64_t count_of(const operand *a, const operand *b)
{
    if (!a->step) return b->step ? b->t->numel : 1;
    return a->t->numel;
}

static int tensor_equal(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_settop(L, 2);
    operand a = read_operand(L, st, 1, "equal"), b = read_operand(L, st, 2, "equal");
    neap_dtype da = neap_dtype_of(a.t), db = neap_dtype_of(b.t);
    bool same = same_shape(&a, &b) && (da == NEAP_BOOL) == (db == NEAP_BOOL);
    bool whole = !np_is_float(da) && !np_is_float(db);
    for (int64_t i = 0, n = count_of(&a, &b); same && i < n; i++) {
        const char *p = a.p + (size_t)i * a.step, *q = b.p + (size_t)i * b.step;
        same = whole ? neap_x_load_int(da, p) == neap_x_load_int(db, q)
                     : neap_x_load_double(da, p) == neap_x_load_double(db, q);
    }
    lua_pushboolean(L, same);
    return 1;
}

static int tensor_allclose(lua_State *L)
{
    static const char *const names[] = {"rtol", "atol", "equal_nan", NULL};
    nl_state *st = nl_enter(L);
    lua_settop(L, 3);
    nl_check_options(L, st, 3, "allclose", names);
    double rtol = nl_number_option(L, st, 3, "allclose", "rtol", 1e-5);
    double atol = nl_number_option(L, st, 3, "allclose", "atol", 1e-8);
    bool equal_nan = nl_bool_option(L, st, 3, "allclose", "equal_nan", false);
    operand a = read_operand(L, st, 1, "allclose"), b = read_operand(L, st, 2, "allclose");
    bool same = same_shape(&a, &b);
    for (int64_t i = 0, n = count_of(&a, &b); same && i < n; i++) {
        double x = neap_x_load_double(neap_dtype_of(a.t), a.p + (size_t)i * a.step);
        double y = neap_x_load_double(neap_dtype_of(b.t), b.p + (size_t)i * b.step);
        double d = x > y ? x - y : y - x;
        same = x == y || d <= atol + rtol * (y < 0 ? -y : y) || (equal_nan && x != x && y != y);
        if (x != y && (d > 1.7976931348623157e308)) same = false; /* an infinity against anything else */
    }
    lua_pushboolean(L, same);
    return 1;
}

static int is_tensor(lua_State *L)
{
    lua_pushboolean(L, nl_handle_at(L, nl_up(L), 1) != NULL);
    return 1;
}

/* ---- opening */

static const luaL_Reg metamethods[] = {{"__gc", tensor_gc},
                                       {"__close", tensor_release},
                                       {"__newindex", tensor_newindex},
                                       {"__eq", tensor_eq},
                                       {"__len", tensor_len},
                                       {"__lt", tensor_compare},
                                       {"__le", tensor_compare},
                                       {"__tostring", tensor_tostring},
                                       {"__concat", tensor_concat},
                                       {NULL, NULL}};

static const luaL_Reg methods[] = {{"release", tensor_release},
                                   {"item", tensor_item},
                                   {"totable", tensor_totable},
                                   {"size", tensor_size},
                                   {"numel", tensor_numel},
                                   {"iter", tensor_iter},
                                   {"equal", tensor_equal},
                                   {"allclose", tensor_allclose},
                                   {"tostring", tensor_tostring},
                                   {"is_floating_point", tensor_is_float},
                                   {"is_contiguous", tensor_is_contiguous},
                                   {"version", tensor_version},
                                   {NULL, NULL}};

static const luaL_Reg functions[] = {{"equal", tensor_equal},
                                     {"allclose", tensor_allclose},
                                     {"is_tensor", is_tensor},
                                     {"set_print", set_print},
                                     {NULL, NULL}};

static const luaL_Reg shape_metamethods[] = {
    {"__index", shape_index}, {"__newindex", shape_newindex}, {"__eq", shape_eq},
    {"__len", shape_len},     {"__tostring", shape_tostring}, {NULL, NULL}};

/* Stack: methods, neap (on top). Called after the ops, so that these win over ops of the same name. */
void nl_open_tensor(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    lua_pushvalue(L, -2);
    nl_setfuncs(L, st, methods);
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_tensor, "neap.Tensor", metamethods);
    lua_pushlightuserdata(L, st);
    lua_pushvalue(L, -4);
    lua_pushcclosure(L, tensor_index, 2);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_shape, "neap.Shape", shape_metamethods);
    lua_pop(L, 1);
}
