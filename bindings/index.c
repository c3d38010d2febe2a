/* index.c - x[k] and x[k] = v.
 *
 *   number          select            {a, b [, step]}   range, both ends included
 *   {}              all               neap.dots         all dimensions in between
 *   neap.newaxis    a dimension of 1  a mask, ids       a copy (bool: where true; integers: those positions)
 *
 * A table is a list of such parts, one for each dimension. A bare range is written x[{ {1, 3} }]. Views are made by
 * recorded ops, so gradients and in-place writes follow. A mask for all dimensions and one ids tensor are simple ops;
 * several, which broadcast, are index_at and index_put_at_ of core/ops/pick.c, as x:index_put_ is. */
#include "nl.h"

typedef struct cursor {
    lua_State *L;
    nl_state *st;
    neap_tensor *t; /* the view so far */
    nl_handle *box; /* owns it, on the stack at box_at */
    int box_at;
    int dim;                          /* next dimension of the view */
    neap_tensor *pick[NEAP_MAX_DIMS]; /* masks and ids, borrowed from the key */
    int64_t pick_dim[NEAP_MAX_DIMS];
    int n_picks;
} cursor;

/* One step: the view becomes the result of an op. */
static void step(cursor *c, const char *op, np_frame *f)
{
    neap_tensor *in = c->t, *y = nl_call(c->st, op, f, &in, 1);
    if (!y) nl_raise(c->L, c->st, "index");
    neap_free(c->box->t);
    c->box->t = c->t = y;
    if (c->st->n_callbacks && y->ag) nl_anchor_handle(c->L, c->st, c->box, c->box_at);
}

typedef enum part { PART_OTHER, PART_DOTS, PART_NEWAXIS } part;

static part special(cursor *c, int idx)
{
    if (lua_type(c->L, idx) != LUA_TLIGHTUSERDATA) return PART_OTHER;
    const void *p = lua_touserdata(c->L, idx);
    return p == &c->st->dots ? PART_DOTS : p == &c->st->newaxis ? PART_NEWAXIS : PART_OTHER;
}

/* Dimensions that the parts from..n of the key take. */
static int dims_of_parts(cursor *c, int key, int from, int n)
{
    int used = 0;
    for (int i = from; i <= n; i++) {
        lua_rawgeti(c->L, key, i);
        nl_handle *h = nl_handle_at(c->L, c->st, -1);
        if (h && h->t && neap_dtype_of(h->t) == NEAP_BOOL) used += h->t->ndim;
        else if (special(c, -1) == PART_OTHER) used++;
        lua_pop(c->L, 1);
    }
    return used;
}

static void need_dim(cursor *c)
{
    if (c->dim < c->t->ndim) return;
    int ndim = nl_check_tensor(c->L, c->st, 1, "index", "x")->ndim;
    int given = lua_type(c->L, 2) == LUA_TTABLE ? dims_of_parts(c, 2, 1, (int)lua_rawlen(c->L, 2)) : 1;
    nl_error(c->L, c->st, NEAP_E_INDEX, "neap.index: too many positions: %d for a tensor of %d dimension%s",
             given, ndim, ndim == 1 ? "" : "s");
}

static int64_t place(cursor *c, int idx, const char *what)
{
    int64_t i = nl_check_integer(c->L, c->st, idx, "index", what), n = c->t->shape[c->dim];
    if (i == 0)
        nl_error(c->L, c->st, NEAP_E_INDEX,
                 "neap.index: position 0 in dimension %d: positions count from 1, or from the end with "
                 "-1",
                 c->dim + 1);
    return i < 0 ? i + n : i - 1;
}

static void outside(cursor *c, int idx, int64_t n)
{
    nl_error(c->L, c->st, NEAP_E_INDEX,
             "neap.index: position %lld in dimension %d, which has %lld; x:iter() walks rows",
             (long long)lua_tointeger(c->L, idx), c->dim + 1, (long long)n);
}

static void number_part(cursor *c, int idx)
{
    need_dim(c);
    int64_t n = c->t->shape[c->dim], i = place(c, idx, "a position");
    if (i < 0 || i >= n) outside(c, idx, n);
    np_frame f = {0};
    f.attr[0] = (np_attr){.i = c->dim, .has = 1};
    f.attr[1] = (np_attr){.i = i, .has = 1};
    step(c, "select", &f);
}

/* {a, b [, step]} at idx; {} is all. An empty range, as {3, 2}, is an empty view. */
static void range_part(cursor *c, int idx)
{
    lua_State *L = c->L;
    need_dim(c);
    int len = (int)lua_rawlen(L, idx);
    int64_t n = c->t->shape[c->dim], by = 1;
    nl_only_list(L, c->st, idx, "index", "first, last, step");
    if (len == 0) {
        c->dim++;
        return;
    }
    if (len != 2 && len != 3)
        nl_error(L, c->st, NEAP_E_INDEX,
                 "neap.index: a range is {first, last} or {first, last, step}, got %d value%s", len,
                 len == 1 ? "" : "s");
    lua_rawgeti(L, idx, 1);
    int64_t a = place(c, -1, "the start of a range");
    if (a < 0 || a > n) outside(c, lua_gettop(L), n);
    lua_rawgeti(L, idx, 2);
    int64_t b = nl_check_integer(L, c->st, -1, "index", "the end of a range");
    b = b < 0 ? b + n : b - 1;
    if (b >= n || b < -1) outside(c, lua_gettop(L), n);
    if (len == 3) {
        lua_rawgeti(L, idx, 3);
        by = nl_check_integer(L, c->st, -1, "index", "the step of a range");
        if (by < 1)
            nl_error(L, c->st, NEAP_E_INDEX,
                     "neap.index: the step of a range is %lld; steps are at least 1, x:flip(dim) turns "
                     "a dimension round",
                     (long long)by);
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
    np_frame f = {0};
    f.attr[0] = (np_attr){.i = c->dim, .has = 1};
    f.attr[1] = (np_attr){.i = a, .has = 1};
    f.attr[2] = (np_attr){.i = b < a ? 0 : (b - a) / by + 1, .has = 1};
    f.attr[3] = (np_attr){.i = by, .has = 1};
    step(c, "narrow", &f);
    c->dim++;
}

static void newaxis_part(cursor *c)
{
    np_frame f = {0};
    f.attr[0] = (np_attr){.i = c->dim, .has = 1};
    step(c, "unsqueeze", &f);
    c->dim++;
}

static void pick_part(cursor *c, neap_tensor *k)
{
    if (np_is_float(neap_dtype_of(k)))
        nl_error(c->L, c->st, NEAP_E_DTYPE,
                 "neap.index: a %s tensor cannot index; use integers (positions) or booleans (a mask)",
                 neap_dtype_name(neap_dtype_of(k)));
    need_dim(c);
    c->pick[c->n_picks] = k;
    c->pick_dim[c->n_picks++] = c->dim;
    c->dim += neap_dtype_of(k) != NEAP_BOOL ? 1 : k->ndim > 0 ? k->ndim : 1;
}

/* How many dimensions the parts after `from` take: what neap.dots leaves. */
static int dims_after(cursor *c, int key, int from, int n)
{
    for (int i = from; i <= n; i++) {
        lua_rawgeti(c->L, key, i);
        if (special(c, -1) == PART_DOTS)
            nl_error(c->L, c->st, NEAP_E_INDEX, "neap.index: neap.dots can stand in an index only once");
        lua_pop(c->L, 1);
    }
    return dims_of_parts(c, key, from, n);
}

static void one_part(cursor *c, int idx)
{
    char got[80];
    switch (lua_type(c->L, idx)) {
    case LUA_TNUMBER: number_part(c, idx); return;
    case LUA_TTABLE: range_part(c, idx); return;
    default: break;
    }
    if (special(c, idx) == PART_NEWAXIS) {
        newaxis_part(c);
    } else if (nl_handle_at(c->L, c->st, idx)) {
        pick_part(c, nl_check_tensor(c->L, c->st, idx, "index", "a position"));
    } else {
        nl_error(c->L, c->st, NEAP_E_INDEX,
                 "neap.index: a tensor cannot be indexed with %s; use a number, a list of numbers and "
                 "ranges, a mask or an integer tensor",
                 nl_kind(c->L, idx, got, sizeof got));
    }
}

static void list_parts(cursor *c, int key)
{
    lua_State *L = c->L;
    int n = (int)lua_rawlen(L, key);
    nl_only_list(L, c->st, key, "index", "positions");
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, key, i);
        int idx = lua_gettop(L);
        if (special(c, idx) == PART_DOTS) {
            int rest = dims_after(c, key, i + 1, n);
            if (c->t->ndim - rest > c->dim) c->dim = c->t->ndim - rest;
        } else {
            one_part(c, idx);
        }
        if (!nl_handle_at(L, c->st, idx))
            lua_pop(L, 1); /* a mask or ids stays on the stack: it is borrowed */
    }
}

/* x at 1, key at 2. The view is in the box, which is pushed; masks and ids may follow above it. */
static cursor read_key(lua_State *L, nl_state *st)
{
    cursor c = {.L = L, .st = st};
    neap_tensor *x = nl_check_tensor(L, st, 1, "index", "x");
    luaL_checkstack(L, 40, NULL);
    c.box = nl_new_handle(L, st);
    c.box_at = lua_gettop(L);
    c.box->t = neap_retain(x);
    c.t = x;
    if (lua_type(L, 2) == LUA_TTABLE) list_parts(&c, 2);
    else one_part(&c, 2);
    return c;
}

static bool is_mask(const neap_tensor *t) { return neap_dtype_of(t) == NEAP_BOOL; }

/* Is the only pick one that a simple op serves? A mask is that when it is for all dimensions. */
static bool simple_pick(const cursor *c)
{
    return c->n_picks == 1 &&
           (!is_mask(c->pick[0]) || (c->pick_dim[0] == 0 && c->pick[0]->ndim == c->t->ndim));
}

/* The positions of all picks, for index_at and index_put_at_: in[0 .. n-1] are filled, the picks follow. */
static int pick_operands(const cursor *c, np_frame *f, neap_tensor **in, int n)
{
    for (int i = 0; i < c->n_picks; i++) in[n + i] = c->pick[i];
    f->attr[0] = (np_attr){.v = c->pick_dim, .n = c->n_picks, .has = 1};
    return n + c->n_picks;
}

static neap_tensor *read_picks(cursor *c)
{
    np_frame f = {0};
    neap_tensor *in[1 + NEAP_MAX_DIMS] = {c->t, c->pick[0]};
    if (simple_pick(c) && is_mask(c->pick[0])) return nl_call(c->st, "masked_select", &f, in, 2);
    f.attr[1] = (np_attr){.i = 1, .has = 1};
    if (!simple_pick(c)) return nl_call(c->st, "index_at", &f, in, pick_operands(c, &f, in, 1));
    f.attr[0] = (np_attr){.i = c->pick_dim[0], .has = 1};
    return nl_call(c->st, "index_select", &f, in, 2);
}

/* v into the picked elements of the view; into x itself where the view is all of it. */
static neap_tensor *write_picks(cursor *c, neap_tensor *v, bool accumulate)
{
    np_frame f = {0};
    neap_tensor *in[2 + NEAP_MAX_DIMS] = {c->t, c->pick[0], v};
    if (!accumulate && simple_pick(c) && is_mask(c->pick[0]))
        return nl_call(c->st, "masked_assign_", &f, in, 3);
    f.attr[1] = (np_attr){.i = 1, .has = 1};
    if (!accumulate && simple_pick(c)) {
        f.attr[0] = (np_attr){.i = c->pick_dim[0], .has = 1};
        return nl_call(c->st, "index_copy_", &f, in, 3);
    }
    in[1] = v;
    f.attr[1] = (np_attr){.i = accumulate, .has = 1};
    f.attr[2] = (np_attr){.i = 1, .has = 1};
    return nl_call(c->st, "index_put_at_", &f, in, pick_operands(c, &f, in, 2));
}

int nl_index_read(lua_State *L, nl_state *st)
{
    nl_maybe_collect(L, st);
    neap_tensor *x = nl_check_tensor(L, st, 1, "index", "x"), *y;
    cursor c = read_key(L, st);
    if (c.n_picks == 0) {
        np_frame f = {0};
        if (c.t == x) { /* x[{}]: a view of its own */
            f.attr[0] = (np_attr){.v = x->shape, .n = x->ndim, .has = 1};
            step(&c, x->contiguous ? "view" : "expand", &f);
        }
        lua_pushvalue(L, c.box_at);
        return 1;
    }
    y = read_picks(&c);
    if (!y) return nl_raise(L, st, "index");
    neap_free(c.box->t);
    c.box->t = NULL;
    lua_pushvalue(L, c.box_at);
    nl_fill(L, st, c.box, y);
    return 1;
}

/* The value at 3 as an operand: a tensor, or what `made` holds from a number or a list. */
static neap_tensor *value_operand(lua_State *L, nl_state *st, nl_handle *made, const neap_tensor *x)
{
    char got[80];
    int64_t whole;
    int type = lua_type(L, 3);
    if (nl_handle_at(L, st, 3)) return nl_check_tensor(L, st, 3, "index", "the value");
    if (type == LUA_TNUMBER && np_is_int(neap_dtype_of(x)) && !nl_integer(L, 3, &whole))
        nl_error(L, st, NEAP_E_DTYPE, "neap.index: %s cannot be stored in a tensor of %s",
                 nl_kind(L, 3, got, sizeof got), neap_dtype_name(neap_dtype_of(x)));
    if (type == LUA_TNUMBER && lua_isinteger(L, 3))
        made->t = neap_keep(neap_integer(st->c, lua_tointeger(L, 3)));
    else if (type == LUA_TNUMBER) made->t = neap_keep(neap_number(st->c, lua_tonumber(L, 3)));
    else if (type == LUA_TBOOLEAN) made->t = neap_keep(neap_integer(st->c, lua_toboolean(L, 3)));
    else if (type == LUA_TTABLE)
        made->t = nl_tensor_from(L, st, 3, "index", np_is_int(neap_dtype_of(x)) ? (int)neap_dtype_of(x) : -1);
    else
        nl_error(L, st, NEAP_E_ARG, "neap.index: the value must be a tensor, a number or a list, got %s",
                 nl_kind(L, 3, got, sizeof got));
    if (!made->t) nl_raise(L, st, "index");
    return made->t;
}

/* The value of a graph goes into a tensor that has none and is no view: the window of x becomes v, and x gets the
 * graph, in one op. */
static neap_tensor *write_window(cursor *c, neap_tensor *x, neap_tensor *v)
{
    np_frame f = {0}, put = {0};
    f.attr[0] = (np_attr){.i = neap_dtype_of(x), .has = 1};
    neap_tensor *same = nl_call(c->st, "to", &f, &v, 1);
    if (!same) return NULL;
    memset(&f, 0, sizeof f);
    f.attr[0] = (np_attr){.v = c->t->shape, .n = c->t->ndim, .has = 1};
    neap_tensor *wide = nl_call(c->st, "expand", &f, &same, 1);
    neap_free(same);
    if (!wide) return NULL;
    put.attr[0] = (np_attr){.v = c->t->shape, .n = c->t->ndim, .has = 1};
    put.attr[1] = (np_attr){.v = c->t->stride, .n = c->t->ndim, .has = 1};
    put.attr[2] = (np_attr){.i = c->t->offset, .has = 1};
    neap_tensor *y = nl_call(c->st, "as_strided_scatter_", &put, (neap_tensor *[]){x, wide}, 2);
    neap_free(wide);
    return y;
}

/* x[k] = v, or += v: x, key, v at 1, 2, 3. In place, broadcasting. */
static void write_key(lua_State *L, nl_state *st, bool accumulate)
{
    neap_tensor *x = nl_check_tensor(L, st, 1, "index", "x"), *y;
    neap_tensor *v = value_operand(L, st, nl_new_handle(L, st), x);
    cursor c = read_key(L, st);
    np_frame f = {0};
    if (c.n_picks > 0) {
        y = write_picks(&c, v, accumulate);
    } else {
        bool graph = neap_requires_grad(v) && !neap_requires_grad(x) && neap_grad_enabled(st->c);
        if (accumulate) y = nl_call(st, "add_", &f, (neap_tensor *[]){c.t, v}, 2);
        else if (graph && c.t != x && !(x->graph & NP_HAS_BASE)) y = write_window(&c, x, v);
        else y = nl_call(st, "copy_", &f, (neap_tensor *[]){c.t, v}, 2);
    }
    if (!y) nl_raise(L, st, "index");
    neap_free(y);
    if (!neap_x_renew_view(st->c, x)) nl_raise(L, st, "index"); /* written through another view of its base */
    if (st->n_callbacks && x->ag) nl_anchor_handle(L, st, lua_touserdata(L, 1), 1);
}

int nl_index_write(lua_State *L, nl_state *st)
{
    lua_settop(L, 3);
    write_key(L, st, false);
    return 0;
}

/* x:index_put_(key, v, {accumulate = true}) */
static int index_put(lua_State *L)
{
    nl_state *st = nl_enter(L);
    static const char *const names[] = {"accumulate", NULL};
    int n = lua_gettop(L), options = n == 4 ? 4 : 0;
    nl_maybe_collect(L, st);
    if (n < 3 || n > 4)
        nl_error(L, st, NEAP_E_ARG,
                 "neap.index_put_: write x:index_put_(positions, values, {accumulate = true})");
    if (options) nl_check_options(L, st, options, "index_put_", names);
    bool accumulate = nl_bool_option(L, st, options, "index_put_", "accumulate", false);
    lua_settop(L, 3);
    write_key(L, st, accumulate);
    lua_settop(L, 1);
    return 1;
}

/* Stack: methods, neap. */
void nl_open_index(lua_State *L, nl_state *st)
{
    nl_pushfunction(L, st, index_put);
    lua_setfield(L, -3, "index_put_");
    lua_pushlightuserdata(L, &st->dots);
    lua_setfield(L, -2, "dots");
    lua_pushlightuserdata(L, &st->newaxis);
    lua_setfield(L, -2, "newaxis");
}
