/* create.c - tensors from nested tables and from nothing: neap.tensor, zeros, full, arange ...
 *
 * neap.tensor reads a table twice: first shape and kinds, with every complaint naming the position, then the
 * values; in the second walk nothing can fail. All integers make int64 (exactly), any float the default float
 * dtype, booleans bool. */
#include "nl.h"

#include <math.h>

typedef struct scan {
    lua_State *L;
    nl_state *st;
    const char *fn;
    int ndim, known; /* dims, once a leaf was seen; dims with a known size */
    bool leaf;
    int64_t shape[NEAP_MAX_DIMS], pos[NEAP_MAX_DIMS + 1];
    bool floats, ints, bools;
    bool whole;
    int64_t low, high;  /* of the whole numbers, if any */
    char fraction[100]; /* position of the first value that is no whole number */
} scan;

static char *position(const scan *s, int depth, char *buf, size_t n)
{
    size_t k = 0;
    buf[0] = 0;
    for (int i = 0; i < depth; i++) k += (size_t)snprintf(buf + k, n - k, "[%lld]", (long long)s->pos[i]);
    return buf;
}

static void ragged(scan *s, int depth, int64_t len)
{
    char at[100];
    nl_error(s->L, s->st, NEAP_E_SHAPE,
             "neap.%s: the lists are ragged: %s has %lld elements, the lists before it have %lld", s->fn,
             depth ? position(s, depth, at, sizeof at) : "the list", (long long)len,
             (long long)s->shape[depth]);
}

static void see_whole(scan *s, int64_t v)
{
    if (!s->whole || v < s->low) s->low = v;
    if (!s->whole || v > s->high) s->high = v;
    s->whole = true;
}

static void see_leaf(scan *s, int depth)
{
    lua_State *L = s->L;
    char at[100], got[80];
    if (s->leaf ? depth != s->ndim : depth < s->known)
        nl_error(L, s->st, NEAP_E_SHAPE,
                 "neap.%s: the lists are ragged: %s is %s where the lists before it have lists", s->fn,
                 position(s, depth, at, sizeof at), nl_kind(L, -1, got, sizeof got));
    s->leaf = true;
    s->ndim = depth;
    if (lua_type(L, -1) == LUA_TBOOLEAN) {
        s->bools = true;
    } else if (lua_isinteger(L, -1)) {
        see_whole(s, lua_tointeger(L, -1));
        s->ints = true;
    } else {
        double v = lua_tonumber(L, -1);
        s->floats = true;
        if (v == floor(v) && fabs(v) < 0x1p63) see_whole(s, (int64_t)v);
        else if (!s->fraction[0])
            snprintf(s->fraction, sizeof s->fraction, "%.17g at %s", v,
                     depth ? position(s, depth, at, sizeof at) : "the top");
    }
    if (s->bools && (s->ints || s->floats))
        nl_error(L, s->st, NEAP_E_DTYPE,
                 "neap.%s: %s mixes booleans with numbers; use one kind, or name a dtype for numbers", s->fn,
                 depth ? position(s, depth, at, sizeof at) : "the value");
}

/* Nothing but elements 1 to len may be in the list on top: an option among the data would be lost. */
static void check_list(scan *s, int depth, int64_t len)
{
    lua_State *L = s->L;
    char at[100], got[80];
    luaL_checkstack(L, 6, NULL);
    if (lua_getmetatable(L, -1))
        nl_error(L, s->st, NEAP_E_ARG,
                 "neap.%s: %s is an object (a table with a metatable), not a list of numbers", s->fn,
                 depth ? position(s, depth, at, sizeof at) : "the data");
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        int64_t i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
        lua_pop(L, 1);
        if (i >= 1 && i <= len) continue;
        nl_error(L, s->st, NEAP_E_ARG,
                 "neap.%s: %s holds the key %s: data is a list without gaps, options come after it in "
                 "a table of their own, as in neap.tensor({1, 2}, {dtype = \"float64\"})",
                 s->fn, depth ? position(s, depth, at, sizeof at) : "the list",
                 nl_kind(L, -1, got, sizeof got));
    }
}

/* The value on top. */
static void see(scan *s, int depth)
{
    lua_State *L = s->L;
    char at[100], got[80];
    int type = lua_type(L, -1);
    if (type == LUA_TNUMBER || type == LUA_TBOOLEAN) {
        see_leaf(s, depth);
        return;
    }
    if (type != LUA_TTABLE)
        nl_error(L, s->st, NEAP_E_ARG, "neap.%s: %s must be a number, a boolean or a list of these, got %s",
                 s->fn, depth ? position(s, depth, at, sizeof at) : "the value",
                 nl_kind(L, -1, got, sizeof got));
    if (depth == NEAP_MAX_DIMS)
        nl_error(L, s->st, NEAP_E_DIMS, "neap.%s: lists nested more than %d deep", s->fn, NEAP_MAX_DIMS);
    int64_t len = (int64_t)lua_rawlen(L, -1);
    if (depth < s->known) {
        if (s->shape[depth] != len) ragged(s, depth, len);
    } else if (s->leaf) {
        nl_error(L, s->st, NEAP_E_SHAPE,
                 "neap.%s: the lists are ragged: %s is a list where the lists before it have a value", s->fn,
                 position(s, depth, at, sizeof at));
    } else {
        s->shape[s->known++] = len;
    }
    check_list(s, depth, len);
    for (int64_t i = 1; i <= len; i++) {
        s->pos[depth] = i;
        lua_rawgeti(L, -1, i);
        see(s, depth + 1);
        lua_pop(L, 1);
    }
}

static char *store(lua_State *L, const neap_tensor *t, int depth, char *p)
{
    neap_dtype d = (neap_dtype)t->dtype;
    if (depth == t->ndim) {
        if (lua_type(L, -1) == LUA_TBOOLEAN) neap_x_store_int(d, p, lua_toboolean(L, -1));
        else if (lua_isinteger(L, -1)) neap_x_store_int(d, p, lua_tointeger(L, -1));
        else neap_x_store_double(d, p, lua_tonumber(L, -1));
        return p + neap_dtype_size(d);
    }
    for (int64_t i = 1; i <= t->shape[depth]; i++) {
        lua_rawgeti(L, -1, i);
        p = store(L, t, depth + 1, p);
        lua_pop(L, 1);
    }
    return p;
}

static void check_range(const scan *s, neap_dtype d)
{
    static const struct {
        neap_dtype d;
        int64_t low, high;
    } ranges[] = {
        {NEAP_INT32, INT32_MIN, INT32_MAX}, {NEAP_INT8, INT8_MIN, INT8_MAX}, {NEAP_UINT8, 0, UINT8_MAX}};
    if (!np_is_int(d)) return;
    if (s->fraction[0])
        nl_error(s->L, s->st, NEAP_E_DTYPE, "neap.%s: %s cannot be %s; use a float dtype", s->fn, s->fraction,
                 neap_dtype_name(d));
    for (int i = 0; i < 3; i++)
        if (s->whole && d == ranges[i].d && (s->low < ranges[i].low || s->high > ranges[i].high))
            nl_error(s->L, s->st, NEAP_E_DTYPE, "neap.%s: values from %lld to %lld do not fit into %s", s->fn,
                     (long long)s->low, (long long)s->high, neap_dtype_name(d));
}

/* The data at idx; sizes as x:shape() gives them become a list. */
static void push_data(lua_State *L, nl_state *st, int idx)
{
    int64_t sizes[NEAP_MAX_DIMS];
    int n = nl_shape_values(L, st, idx, sizes);
    if (n < 0) {
        lua_pushvalue(L, idx);
        return;
    }
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushinteger(L, sizes[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

neap_tensor *nl_tensor_from(lua_State *L, nl_state *st, int idx, const char *fn, int dtype)
{
    scan s = {.L = L, .st = st, .fn = fn};
    push_data(L, st, idx);
    see(&s, 0);
    int ndim = s.leaf ? s.ndim : s.known;
    neap_dtype d = dtype >= 0            ? (neap_dtype)dtype
                   : s.bools             ? NEAP_BOOL
                   : s.ints && !s.floats ? NEAP_INT64
                                         : neap_x_default_dtype(st->c);
    check_range(&s, d);
    neap_tensor *t = neap_keep(neap_empty(st->c, ndim, s.shape, d, 0));
    if (!t) nl_raise(L, st, fn);
    store(L, t, 0, nl_ptr(t));
    neap_x_filled(t);
    lua_pop(L, 1);
    return t;
}

/* ---- the options of all factories */

typedef struct made {
    int dtype; /* -1: not given */
    int device;
    bool grad;
} made;

static made read_made(lua_State *L, nl_state *st, int idx, const char *fn)
{
    static const char *const names[] = {"dtype", "device", "requires_grad", NULL};
    made m = {.dtype = -1, .device = neap_x_default_device(st->c)};
    nl_check_options(L, st, idx, fn, names);
    if (nl_get_option(L, idx, "dtype")) m.dtype = (int)nl_check_dtype(L, st, -1, fn), lua_pop(L, 1);
    if (nl_get_option(L, idx, "device")) m.device = nl_check_device(L, st, -1, fn), lua_pop(L, 1);
    m.grad = nl_bool_option(L, st, idx, fn, "requires_grad", false);
    return m;
}

/* h on top gets t (taken; NULL: raise) and the flag. */
static int finish(lua_State *L, nl_state *st, nl_handle *h, neap_tensor *t, bool grad, const char *fn)
{
    if (!t) return nl_raise(L, st, fn);
    h->t = neap_keep(t);
    if (st->watches) nl_watch_made(st, t);
    if (!grad) return 1;
    if (neap_set_requires_grad(st->c, t, 1)) return nl_raise(L, st, fn);
    nl_know(L, st, -1);
    return 1;
}

/* The option table in last place, or 0; *last is the last argument before it. */
static int options_at(lua_State *L, int first, int *last)
{
    int n = lua_gettop(L);
    *last = n;
    if (n < first || !nl_is_options(L, n)) return 0;
    *last = n - 1;
    return n;
}

static void no_more(lua_State *L, nl_state *st, int next, int last, const char *fn)
{
    char got[80];
    if (next <= last)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: too many arguments: %s; options go in a table: {dtype = ...}",
                 fn, nl_kind(L, next, got, sizeof got));
}

static int tensor(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_maybe_collect(L, st);
    if (nl_handle_at(L, st, 1))
        return nl_error(
            L, st, NEAP_E_ARG,
            "neap.tensor: the data is a tensor already; use x:clone(), x:detach() or x:to(dtype)");
    if (lua_gettop(L) == 0)
        return nl_error(L, st, NEAP_E_ARG, "neap.tensor: needs a number, a boolean or a list of these");
    if (lua_gettop(L) > 2) no_more(L, st, 3, lua_gettop(L), "tensor");
    made m = read_made(L, st, 2, "tensor");
    nl_handle *h = nl_new_handle(L, st);
    h->t = nl_tensor_from(L, st, 1, "tensor", m.dtype);
    if (m.device) {
        np_frame f = {0};
        f.attr[1] = (np_attr){.i = m.device, .has = 1};
        neap_tensor *host = h->t, *moved = nl_call(st, "to", &f, &host, 1);
        if (!moved) return nl_raise(L, st, "tensor");
        h->t = moved;
        neap_free(host);
    }
    return finish(L, st, h, h->t, m.grad, "tensor");
}

typedef enum fill_kind { FILL_EMPTY, FILL_ZEROS, FILL_ONES } fill_kind;

static int filled(lua_State *L, fill_kind kind, const char *fn)
{
    nl_state *st = nl_enter(L);
    int64_t shape[NEAP_MAX_DIMS];
    int last, used = 0, ndim = 0, opts = options_at(L, 1, &last);
    nl_maybe_collect(L, st);
    if (last >= 1) ndim = nl_check_shape(L, st, 1, last, fn, shape, &used);
    no_more(L, st, used + 1, last, fn);
    made m = read_made(L, st, opts, fn);
    neap_dtype d = m.dtype < 0 ? neap_x_default_dtype(st->c) : (neap_dtype)m.dtype;
    nl_handle *h = nl_new_handle(L, st);
    int base = nl_set_base(st, 1);
    neap_tensor *t = kind == FILL_EMPTY   ? neap_empty(st->c, ndim, shape, d, m.device)
                     : kind == FILL_ZEROS ? neap_zeros(st->c, ndim, shape, d, m.device)
                                          : neap_full(st->c, ndim, shape, 1, d, m.device);
    nl_set_base(st, base);
    return finish(L, st, h, t, m.grad, fn);
}

static int empty(lua_State *L) { return filled(L, FILL_EMPTY, "empty"); }
static int zeros(lua_State *L) { return filled(L, FILL_ZEROS, "zeros"); }
static int ones(lua_State *L) { return filled(L, FILL_ONES, "ones"); }

/* full(shape, value, options): the dtype follows the value. */
static int full(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int64_t shape[NEAP_MAX_DIMS];
    char got[80];
    int used, ndim = nl_check_shape(L, st, 1, 1, "full", shape, &used), type = lua_type(L, 2);
    nl_maybe_collect(L, st);
    if (type != LUA_TNUMBER && type != LUA_TBOOLEAN)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.full: the value must be a number or a boolean, got %s; neap.full({2,3}, 7.0)",
                        nl_kind(L, 2, got, sizeof got));
    no_more(L, st, 4, lua_gettop(L), "full");
    made m = read_made(L, st, 3, "full");
    neap_dtype d = m.dtype >= 0           ? (neap_dtype)m.dtype
                   : type == LUA_TBOOLEAN ? NEAP_BOOL
                   : lua_isinteger(L, 2)  ? NEAP_INT64
                                          : neap_x_default_dtype(st->c);
    double v = type == LUA_TBOOLEAN ? lua_toboolean(L, 2) : lua_tonumber(L, 2);
    scan s = {.L = L, .st = st, .fn = "full"};
    lua_pushvalue(L, 2);
    see_leaf(&s, 0);
    check_range(&s, d);
    lua_pop(L, 1);
    if (lua_isinteger(L, 2) && d == NEAP_INT64 && llabs(lua_tointeger(L, 2)) > (1ll << 53))
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.full: %lld is beyond 2^53; use neap.tensor for exact large integers",
                        (long long)lua_tointeger(L, 2));
    nl_handle *h = nl_new_handle(L, st);
    int base = nl_set_base(st, 1);
    neap_tensor *t = neap_full(st->c, ndim, shape, v, d, m.device);
    nl_set_base(st, base);
    return finish(L, st, h, t, m.grad, "full");
}

/* arange(first, last [, step]): both ends included, as in a for loop. */
static int arange(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int last, opts = options_at(L, 2, &last);
    nl_maybe_collect(L, st);
    if (last < 2)
        return nl_error(
            L, st, NEAP_E_ARG,
            "neap.arange: needs both ends: neap.arange(1, 10) has 10 elements; one argument would "
            "leave open where counting begins");
    no_more(L, st, 4, last, "arange");
    double first = nl_check_number(L, st, 1, "arange", "the first value");
    double end = nl_check_number(L, st, 2, "arange", "the last value");
    double step = last >= 3 ? nl_check_number(L, st, 3, "arange", "the step") : 1;
    bool whole = lua_isinteger(L, 1) && lua_isinteger(L, 2) && (last < 3 || lua_isinteger(L, 3));
    made m = read_made(L, st, opts, "arange");
    neap_dtype d = m.dtype >= 0 ? (neap_dtype)m.dtype : whole ? NEAP_INT64 : neap_x_default_dtype(st->c);
    nl_handle *h = nl_new_handle(L, st);
    return finish(L, st, h, neap_arange(st->c, first, end, step, d, m.device), m.grad, "arange");
}

static int linspace(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int last, opts = options_at(L, 2, &last);
    no_more(L, st, 4, last, "linspace");
    double first = nl_check_number(L, st, 1, "linspace", "the first value");
    double end = nl_check_number(L, st, 2, "linspace", "the last value");
    int64_t n = nl_check_integer(L, st, 3, "linspace", "the number of values");
    made m = read_made(L, st, opts, "linspace");
    neap_dtype d = m.dtype >= 0 ? (neap_dtype)m.dtype : neap_x_default_dtype(st->c);
    nl_handle *h = nl_new_handle(L, st);
    return finish(L, st, h, neap_linspace(st->c, first, end, n, d, m.device), m.grad, "linspace");
}

static int eye(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int last, opts = options_at(L, 2, &last);
    no_more(L, st, 3, last, "eye");
    int64_t n = nl_check_integer(L, st, 1, "eye", "the number of rows");
    int64_t cols = last >= 2 ? nl_check_integer(L, st, 2, "eye", "the number of columns") : n;
    made m = read_made(L, st, opts, "eye");
    neap_dtype d = m.dtype >= 0 ? (neap_dtype)m.dtype : neap_x_default_dtype(st->c);
    nl_handle *h = nl_new_handle(L, st);
    return finish(L, st, h, neap_eye(st->c, n, cols, d, m.device), m.grad, "eye");
}

static const luaL_Reg functions[] = {{"tensor", tensor},     {"empty", empty}, {"zeros", zeros},
                                     {"ones", ones},         {"full", full},   {"arange", arange},
                                     {"linspace", linspace}, {"eye", eye},     {NULL, NULL}};

void nl_open_create(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
