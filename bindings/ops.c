/* ops.c - every op of the registry as neap.NAME and x:NAME, read from its schema.
 *
 * One closure serves them all; its upvalues are the state, the op and the metatable of tensors. The common calls
 * (two tensors, tensor and number, one tensor) take a short way with the fewest Lua calls. Arguments are all
 * checked before anything is taken; the result's userdata exists before the kernel runs. */
#include "nl.h"

enum { OP_UPVALUE = 2, MT_UPVALUE = 3, MAX_LIST_ATTR = 4 };

bool nl_dispatch(nl_state *st, np_frame *f)
{
    neap_ctx *c = st->c;
    int base = c->base;
    f->c = c;
    c->base = 1;
    bool ok = neap_x_dispatch(f);
    c->base = base;
    return ok;
}

/* Inputs are retained over the call: a hook may release the caller's handle. */
static bool dispatch_holding(nl_state *st, np_frame *f)
{
    for (int i = 0; i < f->n_in; i++)
        if (f->in[i]) f->in[i]->refs++;
    bool ok = nl_dispatch(st, f);
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor *t = f->in[i];
        if (t && t->refs > 1) t->refs--;
        else neap_free(t);
    }
    return ok;
}

static void drop_results(np_frame *f, int from)
{
    for (int i = from; i < f->n_out; i++) neap_free(f->out[i]), f->out[i] = NULL;
}

neap_tensor *nl_call(nl_state *st, const char *name, np_frame *f, neap_tensor *const *in, int n_in)
{
    f->op = neap_x_op_find(name);
    if (!f->op) {
        neap_fail(st->c, NEAP_E_INTERNAL, "an op of the bindings is missing from the registry", NULL);
        return NULL;
    }
    f->in = in;
    f->n_in = n_in;
    if (!dispatch_holding(st, f)) return NULL;
    drop_results(f, 1);
    return f->out[0];
}

/* ---- results */

/* h[0 .. n-1] are the handles on top of the stack. In-place ops give their operand's own handle instead. */
static int give_results(lua_State *L, nl_state *st, const nl_op *op, np_frame *f, nl_handle **h, int n)
{
    if (op->op->tags & NP_INPLACE) {
        drop_results(f, 0);
        lua_pushvalue(L, 1);
        nl_handle *self = lua_touserdata(L, -1);
        if (st->n_callbacks && self->t && self->t->ag) nl_anchor_handle(L, st, self, -1);
        return 1;
    }
    int given = f->n_out < n ? f->n_out : n;
    drop_results(f, given);
    for (int i = 0; i < given; i++) h[i]->t = f->out[i];
    if (given < n) lua_settop(L, given - n - 1);
    if (!st->n_callbacks) return given;
    int first = lua_gettop(L) - given + 1;
    for (int i = 0; i < given; i++)
        if (h[i]->t && h[i]->t->ag) nl_anchor_handle(L, st, h[i], first + i);
    return given;
}

typedef struct number_arg { /* a Lua number as an operand: made after the last call that can raise */
    int slot, idx;
} number_arg;

static neap_tensor *number_at(lua_State *L, nl_state *st, int idx)
{
    return neap_keep(lua_isinteger(L, idx) ? neap_integer(st->c, lua_tointeger(L, idx))
                                           : neap_number(st->c, lua_tonumber(L, idx)));
}

static int call_frame(lua_State *L, nl_state *st, const nl_op *op, np_frame *f, neap_tensor **in,
                      const number_arg *numbers, int n_numbers)
{
    nl_handle *h[NP_MAX_OUT];
    int n = op->op->tags & NP_INPLACE ? 0 : op->n_visible;
    for (int i = 0; i < n; i++) h[i] = nl_new_handle_with(L, st, lua_upvalueindex(MT_UPVALUE));
    for (int i = 0; i < n_numbers; i++) in[numbers[i].slot] = number_at(L, st, numbers[i].idx);
    bool ok = dispatch_holding(st, f);
    for (int i = 0; i < n_numbers; i++) neap_free(in[numbers[i].slot]);
    if (!ok) return nl_raise(L, st, op->op->name);
    if (op->dims < 0 || f->attr[op->dims].has) return give_results(L, st, op, f, h, n);
    int64_t v = 0;
    bool read = neap_item_int(st->c, f->out[0], &v) == 0;
    drop_results(f, 0);
    if (!read) return nl_raise(L, st, op->op->name);
    lua_pushboolean(L, v != 0);
    return 1;
}

/* ---- the general way: by schema */

typedef struct reader {
    lua_State *L;
    nl_state *st;
    const nl_op *op;
    const char *name;
    int next, last, options; /* next argument, last positional one, the option table or 0 */
    np_frame f;
    neap_tensor *in[12];
    number_arg numbers[12];
    int n_numbers, n_lists;
    int64_t lists[MAX_LIST_ATTR][NEAP_MAX_DIMS];
} reader;

static void missing(reader *r, const np_arg *a)
{
    char list[200] = "";
    for (int i = 0; i < r->op->s->n_args; i++) {
        const np_arg *b = &r->op->s->arg[i];
        if (b->option) continue;
        snprintf(list + strlen(list), sizeof list - strlen(list),
                 b->optional || b->has_default ? "%s[%s]" : "%s%s", i ? ", " : "", b->name);
    }
    nl_error(r->L, r->st, NEAP_E_ARG, "neap.%s: argument '%s' is %s: neap.%s(%s)", r->name, a->name,
             r->next > r->last ? "missing" : "nil", r->name, list);
}

static int64_t read_index(reader *r, int idx, const np_arg *a)
{
    int64_t i = nl_check_integer(r->L, r->st, idx, r->name, a->name);
    if (i == 0)
        nl_error(r->L, r->st, NEAP_E_INDEX,
                 "neap.%s: %s is 0: positions count from 1, or from the end with -1", r->name, a->name);
    return i > 0 ? i - 1 : i;
}

static int64_t *new_list(reader *r)
{
    if (r->n_lists == MAX_LIST_ATTR)
        nl_error(r->L, r->st, NEAP_E_INTERNAL, "neap.%s: too many list arguments", r->name);
    return r->lists[r->n_lists++];
}

/* Dims at idx: one list or numbers up to `last`. Returns how many arguments it took. */
static int read_dims(reader *r, int idx, int last, np_attr *attr)
{
    int64_t *v = new_list(r);
    int used = 1, n = 0;
    if (lua_type(r->L, idx) == LUA_TTABLE) {
        lua_Unsigned len = lua_rawlen(r->L, idx);
        if (len > NEAP_MAX_DIMS)
            nl_error(r->L, r->st, NEAP_E_DIMS, "neap.%s: %d dimensions, at most %d are possible", r->name,
                     (int)len, NEAP_MAX_DIMS);
        nl_only_list(r->L, r->st, idx, r->name, "dims");
        for (n = 0; n < (int)len; n++) {
            lua_rawgeti(r->L, idx, n + 1);
            v[n] = nl_check_dim(r->L, r->st, -1, r->name, -1);
            lua_pop(r->L, 1);
        }
    } else {
        for (used = 0; idx + used <= last && n < NEAP_MAX_DIMS; used++)
            v[n++] = nl_check_dim(r->L, r->st, idx + used, r->name, -1);
    }
    *attr = (np_attr){.v = v, .n = n, .has = 1};
    return used;
}

/* An integer arrives exactly: what the float lacks to it goes along. */
static void read_float(reader *r, const np_arg *a, int idx, np_attr *attr)
{
    attr->f = nl_check_number(r->L, r->st, idx, r->name, a->name);
    if (!lua_isinteger(r->L, idx)) return;
    uint64_t near = attr->f >= 0x1p63 ? (uint64_t)1 << 63 : (uint64_t)(int64_t)attr->f;
    attr->n = (int32_t)(int64_t)((uint64_t)lua_tointeger(r->L, idx) - near);
}

/* One attribute from the value at idx; for lists of numbers up to `last`. Returns how many arguments it took. */
static int read_attr(reader *r, const np_arg *a, int idx, int last)
{
    np_attr *attr = &r->f.attr[a->slot];
    char got[80];
    int used = 1;
    attr->has = 1;
    switch (a->type) {
    case NP_ARG_BASE:
    case NP_ARG_INT: attr->i = nl_check_integer(r->L, r->st, idx, r->name, a->name); break;
    case NP_ARG_FLOAT: read_float(r, a, idx, attr); break;
    case NP_ARG_STR: attr->s = nl_check_text(r->L, r->st, idx, r->name, a->name); break;
    case NP_ARG_DIM: attr->i = nl_check_dim(r->L, r->st, idx, r->name, -1); break;
    case NP_ARG_INDEX: attr->i = read_index(r, idx, a); break;
    case NP_ARG_DTYPE: attr->i = nl_check_dtype(r->L, r->st, idx, r->name); break;
    case NP_ARG_DEVICE: attr->i = nl_check_device(r->L, r->st, idx, r->name); break;
    case NP_ARG_DIMS: return read_dims(r, idx, last, attr);
    case NP_ARG_BOOL:
        if (lua_type(r->L, idx) != LUA_TBOOLEAN)
            nl_error(r->L, r->st, NEAP_E_ARG, "neap.%s: %s must be true or false, got %s", r->name, a->name,
                     nl_kind(r->L, idx, got, sizeof got));
        attr->i = lua_toboolean(r->L, idx);
        break;
    case NP_ARG_SHAPE:
        attr->v = new_list(r);
        attr->n = nl_check_shape(r->L, r->st, idx, last, r->name, (int64_t *)attr->v, &used);
        return used;
    case NP_ARG_GEN:
        attr->gen = nl_generator_at(r->L, r->st, idx);
        if (!attr->gen)
            nl_error(r->L, r->st, NEAP_E_ARG,
                     "neap.%s: %s must be a generator such as neap.generator(42), got %s", r->name, a->name,
                     nl_kind(r->L, idx, got, sizeof got));
        break;
    default: break;
    }
    return used;
}

static void default_attr(reader *r, const np_arg *a)
{
    np_attr *attr = &r->f.attr[a->slot];
    neap_ctx *c = r->st->c;
    bool factory = c->ambient.n && (r->op->op->tags & NP_FACTORY);
    if (a->type == NP_ARG_BASE) {
        *attr = (np_attr){.i = 1, .has = 1};
    } else if (a->type == NP_ARG_DTYPE && factory && !(r->op->op->tags & NP_NODIFF)) {
        *attr = (np_attr){.i = neap_x_default_dtype(c), .has = 1};
    } else if (a->type == NP_ARG_DEVICE && factory) {
        *attr = (np_attr){.i = neap_x_default_device(c), .has = 1};
    } else if (a->has_default) {
        attr->has = 1;
        if (a->type == NP_ARG_FLOAT) attr->f = a->def;
        else attr->i = (int64_t)a->def;
    } else if (a->type == NP_ARG_SHAPE && !a->optional && (r->op->op->tags & NP_FACTORY)) {
        *attr = (np_attr){.v = new_list(r), .n = 0, .has = 1}; /* rand(): 0-dim */
    } else if (!a->optional) {
        missing(r, a);
    }
}

static void read_tensor(reader *r, const np_arg *a, int idx)
{
    char what[60], got[80];
    if (a->type == NP_ARG_NUMBER && lua_type(r->L, idx) == LUA_TNUMBER) {
        r->numbers[r->n_numbers++] = (number_arg){a->slot, idx};
        return;
    }
    snprintf(what, sizeof what, "argument '%s'", a->name);
    if (a->type == NP_ARG_NUMBER && !nl_handle_at(r->L, r->st, idx))
        nl_error(r->L, r->st, NEAP_E_ARG, "neap.%s: %s must be a tensor or a number, got %s", r->name, what,
                 nl_kind(r->L, idx, got, sizeof got));
    r->in[a->slot] = nl_check_tensor(r->L, r->st, idx, r->name, what);
}

/* A list at the end may also be tensors by position: they become one table. */
static void gather_arguments(reader *r)
{
    int n = r->last - r->next + 1;
    lua_createtable(r->L, n, 0);
    for (int i = 1; i <= n; i++) {
        lua_pushvalue(r->L, r->next + i - 1);
        lua_rawseti(r->L, -2, i);
    }
    lua_replace(r->L, r->next);
    r->last = r->next;
}

static void read_positional(reader *r, const np_arg *a, bool last_one)
{
    bool absent = r->next > r->last || lua_isnil(r->L, r->next);
    if (a->type == NP_ARG_LIST) {
        if (absent) missing(r, a);
        if (last_one && nl_handle_at(r->L, r->st, r->next)) gather_arguments(r);
        int n;
        if (lua_type(r->L, r->next) == LUA_TTABLE) nl_only_list(r->L, r->st, r->next, r->name, a->name);
        r->f.in = nl_tensor_list(r->L, r->st, r->next++, r->name, a->name, false,
                                 &n); /* its buffer stays on the stack */
        r->f.n_in = n;
    } else if (a->type <= NP_ARG_NUMBER) {
        if (!absent) read_tensor(r, a, r->next);
        else if (a->type != NP_ARG_OPT_TENSOR) missing(r, a);
        r->next++;
    } else if (absent) {
        default_attr(r, a);
        r->next++;
    } else {
        r->next += read_attr(r, a, r->next, last_one ? r->last : r->next);
    }
}

/* An attribute that may be left out by position may be given by name instead. */
static bool by_name(const np_arg *a) { return a->type > NP_ARG_LIST && (a->optional || a->has_default); }

static void read_options(reader *r)
{
    const np_schema *s = r->op->s;
    const char *names[14];
    int n = 0;
    bool factory = r->op->op->tags & NP_FACTORY;
    for (int i = 0; i < s->n_args; i++)
        if (s->arg[i].option || by_name(&s->arg[i])) names[n++] = s->arg[i].name;
    if (factory) names[n++] = "requires_grad";
    names[n] = NULL;
    nl_check_options(r->L, r->st, r->options, r->name, names);
    for (int i = 0; i < s->n_args; i++) {
        const np_arg *a = &s->arg[i];
        if (!a->option && !by_name(a)) continue;
        if (!nl_get_option(r->L, r->options, a->name)) {
            if (a->option && a->type > NP_ARG_LIST) default_attr(r, a);
            continue;
        }
        int idx = lua_gettop(r->L); /* stays on the stack: lists and generators are borrowed from it */
        if (a->type <= NP_ARG_NUMBER) read_tensor(r, a, idx);
        else read_attr(r, a, idx, idx);
    }
}

static void too_many(reader *r)
{
    char got[80];
    const np_schema *s = r->op->s;
    nl_kind(r->L, r->next, got, sizeof got);
    for (int i = 0; i < s->n_args; i++)
        if (s->arg[i].option && s->arg[i].type != NP_ARG_BASE)
            nl_error(r->L, r->st, NEAP_E_ARG,
                     "neap.%s: too many arguments: %s; options go in a table: {%s = ...}", r->name, got,
                     s->arg[i].name);
    nl_error(r->L, r->st, NEAP_E_ARG, "neap.%s: too many arguments: %s", r->name, got);
}

/* Is the last argument the option table? An empty one in a place that must be filled is an empty list there: a shape
 * of 0 dimensions. */
static bool has_options(lua_State *L, const np_schema *s, int last)
{
    int needed = 0;
    if (last == 0 || !nl_is_options(L, last)) return false;
    for (int i = 0; i < s->n_args; i++)
        needed += !s->arg[i].option && !s->arg[i].optional && !s->arg[i].has_default;
    lua_pushnil(L);
    if (!lua_next(L, last)) return last > needed;
    lua_pop(L, 2);
    return true;
}

static int call_by_schema(lua_State *L, nl_state *st, const nl_op *op)
{
    const np_schema *s = op->s;
    reader r;
    memset(&r, 0, offsetof(reader, lists));
    r.L = L, r.st = st, r.op = op, r.name = op->op->name;
    r.next = 1;
    r.last = lua_gettop(L);
    luaL_checkstack(L, 24, NULL);
    if (has_options(L, s, r.last)) r.options = r.last--;
    r.f.op = op->op;
    r.f.in = r.in;
    r.f.n_in = s->n_tensors;
    int positional = 0;
    for (int i = 0; i < s->n_args; i++) positional += !s->arg[i].option;
    for (int i = 0; i < s->n_args; i++)
        if (!s->arg[i].option) read_positional(&r, &s->arg[i], --positional == 0);
    if (r.next <= r.last) too_many(&r);
    read_options(&r);
    bool grad =
        (op->op->tags & NP_FACTORY) && nl_bool_option(L, st, r.options, r.name, "requires_grad", false);
    int n = call_frame(L, st, op, &r.f, r.in, r.numbers, r.n_numbers);
    if (grad) {
        nl_handle *h = lua_touserdata(L, -n);
        if (neap_set_requires_grad(st->c, h->t, 1)) return nl_raise(L, st, r.name);
        nl_know(L, st, -n);
    }
    return n;
}

/* ---- the short ways */

/* A live tensor's core pointer, or NULL: then the general way finds the words for it. */
static inline neap_tensor *live(lua_State *L, nl_state *st, int idx)
{
    nl_handle *h = nl_handle_at(L, st, idx);
    return h ? h->t : NULL;
}

static int op_two(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const nl_op *op = lua_touserdata(L, lua_upvalueindex(OP_UPVALUE));
    nl_maybe_collect(L, st);
    if (lua_gettop(L) != 2) return call_by_schema(L, st, op);
    neap_tensor *in[2] = {live(L, st, 1), live(L, st, 2)}, *number = NULL;
    int at = -1;
    if (!in[0] && in[1] && (op->numbers & 1) && lua_type(L, 1) == LUA_TNUMBER) at = 0;
    if (in[0] && !in[1] && (op->numbers & 2) && lua_type(L, 2) == LUA_TNUMBER) at = 1;
    if (at < 0 && !(in[0] && in[1])) return call_by_schema(L, st, op);
    nl_handle *h = op->op->tags & NP_INPLACE ? NULL : nl_new_handle_with(L, st, lua_upvalueindex(MT_UPVALUE));
    if (at >= 0) in[at] = number = number_at(L, st, at + 1);
    np_frame f;
    np_frame_begin(&f, st->c, op->op, in, 2); /* the short ways have no attributes */
    bool ok = dispatch_holding(st, &f);
    neap_free(number);
    if (!ok) return nl_raise(L, st, op->op->name);
    return give_results(L, st, op, &f, &h, h ? 1 : 0);
}

static int op_one(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const nl_op *op = lua_touserdata(L, lua_upvalueindex(OP_UPVALUE));
    nl_maybe_collect(L, st);
    neap_tensor *in[1] = {live(L, st, 1)};
    if (!in[0] || lua_gettop(L) != 1) return call_by_schema(L, st, op);
    nl_handle *h = op->op->tags & NP_INPLACE ? NULL : nl_new_handle_with(L, st, lua_upvalueindex(MT_UPVALUE));
    np_frame f;
    np_frame_begin(&f, st->c, op->op, in, 1);
    if (!dispatch_holding(st, &f)) return nl_raise(L, st, op->op->name);
    return give_results(L, st, op, &f, &h, h ? 1 : 0);
}

static int op_any(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_maybe_collect(L, st);
    return call_by_schema(L, st, lua_touserdata(L, lua_upvalueindex(OP_UPVALUE)));
}

/* The string at idx as to() reads it: 0 a dtype, 1 a device. What is near neither, or no string, is refused. */
static int to_what(lua_State *L, nl_state *st, int idx)
{
    neap_dtype d;
    char got[80];
    const char *s = lua_type(L, idx) == LUA_TSTRING ? lua_tostring(L, idx) : NULL;
    if (!s)
        return nl_error(
            L, st, NEAP_E_ARG,
            "neap.to: takes the name of a dtype or a device, \"float32\" or \"cuda:0\", or {dtype =, "
            "device =}; got %s%s",
            nl_kind(L, idx, got, sizeof got),
            nl_handle_at(L, st, idx) ? "; y.device and y.dtype are names" : "");
    if (neap_x_dtype_parse(s, &d)) return 0;
    if (strchr(s, ':') || !strcmp(s, "cpu") || !strncmp(s, "cuda", 4)) return 1;
    const char *names[NEAP_N_DTYPES];
    for (int i = 0; i < NEAP_N_DTYPES; i++) names[i] = neap_dtype_name((neap_dtype)i);
    if (nl_translate(L, st, "dtypes", s) || nl_nearest(s, names, NEAP_N_DTYPES)) return 0;
    return nl_error(
        L, st, NEAP_E_ARG,
        "neap.to: '%s' is neither a dtype, as \"float32\", nor a device, as \"cpu\" or \"cuda:0\"", s);
}

/* to(x, dtype or device, ...): strings by position, or the options of the schema. */
static int op_to(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const nl_op *op = lua_touserdata(L, lua_upvalueindex(OP_UPVALUE));
    neap_tensor *in[1];
    np_frame f = {.op = op->op, .in = in, .n_in = 1};
    int n = lua_gettop(L);
    nl_maybe_collect(L, st);
    if (n < 2 || lua_isnil(L, 2) || (n == 2 && nl_is_options(L, 2))) return call_by_schema(L, st, op);
    in[0] = nl_check_tensor(L, st, 1, "to", "argument 'x'");
    for (int i = 2; i <= n; i++) {
        if (to_what(L, st, i) == 0) f.attr[0] = (np_attr){.i = nl_check_dtype(L, st, i, "to"), .has = 1};
        else f.attr[1] = (np_attr){.i = nl_check_device(L, st, i, "to"), .has = 1};
    }
    return call_frame(L, st, op, &f, in, NULL, 0);
}

/* ---- op values: neap.ops.NAME */

static const struct {
    const char *name;
    uint32_t bit;
} tag_names[] = {{"pointwise", NP_POINTWISE}, {"view", NP_VIEW},         {"inplace", NP_INPLACE},
                 {"random", NP_RANDOM},       {"heavy", NP_HEAVY},       {"cheap", NP_CHEAP},
                 {"reduce", NP_REDUCE},       {"nodiff", NP_NODIFF},     {"sync", NP_SYNC},
                 {"fused", NP_FUSED},         {"internal", NP_INTERNAL}, {"factory", NP_FACTORY},
                 {"anywhere", NP_ANYWHERE},   {"truth", NP_TRUTH},       {"matmul", NP_HEAVY},
                 {"composite", NP_COMPOSITE}, {"cast_low", NP_CAST_LOW}, {"cast_float32", NP_CAST_FLOAT32}};
enum { N_TAGS = sizeof tag_names / sizeof *tag_names };

/* An op value is a userdata that holds its nl_op. */
const nl_op *nl_op_at(lua_State *L, nl_state *st, int idx)
{
    const nl_op **p = nl_userdata(L, idx, &st->k_op);
    return p ? *p : NULL;
}

bool nl_push_op(lua_State *L, nl_state *st, const np_op *op)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_ops);
    if (lua_rawgeti(L, -1, op->index + 1) == LUA_TNIL) {
        lua_pop(L, 2);
        return false;
    }
    lua_remove(L, -2);
    return true;
}

static int op_tagged(lua_State *L)
{
    nl_state *st = nl_up(L);
    const nl_op *op = nl_op_at(L, st, 1);
    char got[80];
    if (!op) return nl_error(L, st, NEAP_E_ARG, "neap.ops: write op:tagged(\"matmul\")");
    const char *tag = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
    for (int i = 0; tag && i < N_TAGS; i++) {
        if (strcmp(tag_names[i].name, tag)) continue;
        lua_pushboolean(L, (op->op->tags & tag_names[i].bit) != 0);
        return 1;
    }
    return nl_error(
        L, st, NEAP_E_ARG,
        "neap.ops: unknown tag %s; tags are pointwise, view, inplace, random, heavy, matmul, cheap, "
        "reduce, nodiff, sync, fused, factory, cast_low, cast_float32",
        nl_kind(L, 2, got, sizeof got));
}

static int op_index(lua_State *L)
{
    nl_state *st = nl_up(L);
    const nl_op *op = nl_op_at(L, st, 1);
    const char *key = op && lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "";
    if (!strcmp(key, "name")) return lua_pushstring(L, op->op->name), 1;
    if (!strcmp(key, "tagged")) return lua_pushvalue(L, lua_upvalueindex(2)), 1;
    if (!strcmp(key, "schema")) return lua_pushstring(L, op->op->base ? op->op->base->args : op->op->args), 1;
    if (!strcmp(key, "doc")) return lua_pushstring(L, neap_x_op_doc(op->op->index)), 1;
    if (strcmp(key, "tags")) return 0;
    lua_newtable(L);
    for (int i = 0, n = 0; i < N_TAGS; i++) {
        if (!(op->op->tags & tag_names[i].bit)) continue;
        lua_pushstring(L, tag_names[i].name);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static int op_newindex(lua_State *L)
{
    return nl_error(L, nl_up(L), NEAP_E_ARG, "neap.ops: an op cannot be changed");
}

static int op_tostring(lua_State *L)
{
    const nl_op *op = nl_op_at(L, nl_up(L), 1);
    lua_pushfstring(L, "neap.ops.%s", op ? op->op->name : "?");
    return 1;
}

static int ops_missing(lua_State *L)
{
    nl_state *st = nl_up(L);
    const char *names[1024];
    int n = 0;
    if (lua_type(L, 2) != LUA_TSTRING) return 0;
    for (int i = 0; i < st->n_ops && n < 1024; i++) names[n++] = st->ops[i].op->name;
    const char *near = nl_nearest(lua_tostring(L, 2), names, n);
    if (!near) return nl_error(L, st, NEAP_E_ARG, "neap.ops: no op '%s'", lua_tostring(L, 2));
    return nl_error(L, st, NEAP_E_ARG, "neap.ops: no op '%s'; did you mean '%s'?", lua_tostring(L, 2), near);
}

static const luaL_Reg op_metamethods[] = {
    {"__newindex", op_newindex}, {"__tostring", op_tostring}, {NULL, NULL}};

/* Registry [index + 1] -> op value, made once per state so that identity holds over repeated openings. */
static void make_op_value(lua_State *L, nl_state *st, const nl_op *op)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_ops);
    if (lua_rawgeti(L, -1, op->op->index + 1) == LUA_TNIL) {
        lua_pop(L, 1);
        const nl_op **p = lua_newuserdatauv(L, sizeof *p, 0);
        *p = op;
        nl_set_metatable(L, &st->k_op);
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, op->op->index + 1);
    }
    lua_remove(L, -2);
}

/* ---- opening */

static void describe(nl_op *o, const np_op *op)
{
    const np_schema *s = o->s;
    bool plain = s->n_args == s->n_tensors && s->n_results == 1 && !s->list;
    o->op = op;
    o->n_visible = s->n_results;
    o->dims = -1;
    for (int i = 0; i < s->n_args; i++) {
        np_arg_type type = s->arg[i].type;
        if ((op->tags & NP_TRUTH) && (type == NP_ARG_DIMS || type == NP_ARG_DIM)) o->dims = s->arg[i].slot;
        if (type == NP_ARG_OPT_TENSOR) plain = false;
        if (type == NP_ARG_NUMBER && !(i == 0 && (op->tags & NP_INPLACE))) o->numbers |= (uint8_t)(1 << i);
    }
    o->one = plain && s->n_tensors == 1 && o->dims < 0;
    o->two = plain && s->n_tensors == 2;
}

static void push_op_function(lua_State *L, nl_state *st, const nl_op *op)
{
    lua_CFunction f = op->two ? op_two : op->one ? op_one : op_any;
    if (!strcmp(op->op->name, "to")) f = op_to;
    lua_pushlightuserdata(L, st);
    lua_pushlightuserdata(L, (void *)op);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_tensor);
    lua_pushcclosure(L, f, 3);
}

static const char *const operators[][2] = {
    {"__add", "add"},        {"__sub", "sub"},           {"__mul", "mul"},
    {"__div", "div"},        {"__idiv", "floor_divide"}, {"__mod", "remainder"},
    {"__pow", "pow"},        {"__unm", "neg"},           {"__band", "bitwise_and"},
    {"__bor", "bitwise_or"}, {"__bxor", "bitwise_xor"},  {"__bnot", "bitwise_not"}};

/* -x and ~x are called with x twice. */
static int unary_operator(lua_State *L)
{
    lua_settop(L, 1);
    return op_one(L);
}

static void set_operators(lua_State *L, nl_state *st)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_tensor);
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const np_op *op = neap_x_op_find(operators[i][1]);
        if (!op) continue;
        const nl_op *o = &st->ops[op->index];
        if (o->one) {
            lua_pushlightuserdata(L, st);
            lua_pushlightuserdata(L, (void *)o);
            lua_pushvalue(L, -3);
            lua_pushcclosure(L, unary_operator, 3);
        } else {
            push_op_function(L, st, o);
        }
        lua_setfield(L, -2, operators[i][0]);
    }
    lua_pop(L, 1);
}

/* Stack: methods, neap. Adds every op that is not internal to both, and neap.ops. */
void nl_open_ops(lua_State *L, nl_state *st)
{
    int neap = lua_gettop(L), methods = neap - 1;
    nl_metatable(L, st, &st->k_tensor, "neap.Tensor", (luaL_Reg[]){{NULL, NULL}});
    lua_pop(L, 1);
    nl_metatable(L, st, &st->k_op, "neap.Op", op_metamethods);
    lua_pushlightuserdata(L, st);
    nl_pushfunction(L, st, op_tagged);
    lua_pushcclosure(L, op_index, 2);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    st->n_ops = neap_x_op_count();
    lua_newtable(L);
    for (int i = 0, n = 0; i < st->n_ops; i++) {
        const np_op *op = neap_x_op(i);
        nl_op *o = &st->ops[i];
        o->s = neap_x_op_schema(st->c, op);
        if (!o->s) nl_raise(L, st, "ops");
        describe(o, op);
        make_op_value(L, st, o);
        if (op->tags & NP_INTERNAL) {
            lua_pop(L, 1);
            continue;
        }
        lua_pushvalue(L, -1);
        lua_setfield(L, -3, op->name);
        lua_rawseti(L, -2, ++n);
        push_op_function(L, st, o);
        lua_pushvalue(L, -1);
        lua_setfield(L, neap, op->name);
        if (o->s->n_tensors > 0 && !o->s->list) lua_setfield(L, methods, op->name);
        else lua_pop(L, 1);
    }
    lua_newtable(L);
    nl_pushfunction(L, st, ops_missing);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_setfield(L, neap, "ops");
    set_operators(L, st);
}
