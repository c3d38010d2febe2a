/* optim.c - one call of the core for a whole list of parameters; and the joint norm of gradients. The gradients are
 * the parameters' own .grad; parameters without one are skipped. */
#include "nl.h"

#include <math.h>

typedef struct lists {
    int n;
    neap_tensor **params, **grads;
} lists;

/* Reads the parameters at idx; grads are references to be dropped by drop_grads. Nothing may raise in between. */
static lists read_params(lua_State *L, nl_state *st, int idx, const char *fn)
{
    lists l;
    l.params = nl_tensor_list(L, st, idx, fn, "parameter", false, &l.n);
    l.grads = lua_newuserdatauv(L, sizeof *l.grads * (size_t)(l.n + 1), 0);
    return l;
}

static void take_grads(lists *l)
{
    for (int i = 0; i < l->n; i++) l->grads[i] = neap_grad_of(l->params[i]);
}

static void drop_grads(lists *l)
{
    for (int i = 0; i < l->n; i++) neap_free(l->grads[i]);
}

static neap_tensor **same_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what,
                               int want)
{
    int n;
    neap_tensor **v = nl_tensor_list(L, st, idx, fn, what, false, &n);
    if (n != want)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %d entries of %s for %d parameters", fn, n, what, want);
    return v;
}

/* adamw_step(settings, params, m, v) */
static int adamw_step(lua_State *L)
{
    static const char *const names[] = {"lr",           "beta1", "beta2",     "eps",
                                        "weight_decay", "step",  "decoupled", NULL};
    const char *fn = "adamw_step";
    nl_state *st = nl_enter(L);
    nl_check_options(L, st, 1, fn, names);
    neap_adamw o = {.size = sizeof o};
    o.lr = nl_number_option(L, st, 1, fn, "lr", 1e-3);
    o.beta1 = nl_number_option(L, st, 1, fn, "beta1", 0.9);
    o.beta2 = nl_number_option(L, st, 1, fn, "beta2", 0.999);
    o.eps = nl_number_option(L, st, 1, fn, "eps", 1e-8);
    o.weight_decay = nl_number_option(L, st, 1, fn, "weight_decay", 0);
    o.step = (int64_t)nl_number_option(L, st, 1, fn, "step", 1);
    o.decoupled = nl_bool_option(L, st, 1, fn, "decoupled", true);
    lists l = read_params(L, st, 2, fn);
    neap_tensor **m = same_list(L, st, 3, fn, "m", l.n), **v = same_list(L, st, 4, fn, "v", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1), bad = neap_adamw_step(st->c, &o, l.n, l.params, l.grads, m, v);
    nl_set_base(st, base);
    drop_grads(&l);
    return bad ? nl_raise(L, st, fn) : 0;
}

/* sgd_step(settings, params, buffers or nil) */
static int sgd_step(lua_State *L)
{
    static const char *const names[] = {"lr",       "momentum", "dampening", "weight_decay",
                                        "nesterov", "first",    NULL};
    const char *fn = "sgd_step";
    nl_state *st = nl_enter(L);
    nl_check_options(L, st, 1, fn, names);
    neap_sgd o = {.size = sizeof o};
    o.lr = nl_number_option(L, st, 1, fn, "lr", 1e-2);
    o.momentum = nl_number_option(L, st, 1, fn, "momentum", 0);
    o.dampening = nl_number_option(L, st, 1, fn, "dampening", 0);
    o.weight_decay = nl_number_option(L, st, 1, fn, "weight_decay", 0);
    o.nesterov = nl_bool_option(L, st, 1, fn, "nesterov", false);
    o.first = nl_bool_option(L, st, 1, fn, "first", false);
    lists l = read_params(L, st, 2, fn);
    neap_tensor **bufs = lua_isnoneornil(L, 3) ? NULL : same_list(L, st, 3, fn, "buffers", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1), bad = neap_sgd_step(st->c, &o, l.n, l.params, l.grads, bufs);
    nl_set_base(st, base);
    drop_grads(&l);
    return bad ? nl_raise(L, st, fn) : 0;
}

/* Sum of squares of g in double; false with an error pending. */
static bool add_squares(nl_state *st, neap_tensor *g, double *total)
{
    np_frame f = {0}, s = {0};
    f.attr[0] = (np_attr){.i = NEAP_FLOAT64, .has = 1};
    neap_tensor *wide = nl_call(st, "to", &f, &g, 1);
    if (!wide) return false;
    memset(&f, 0, sizeof f);
    neap_tensor *square = nl_call(st, "square", &f, &wide, 1);
    neap_tensor *sum = square ? nl_call(st, "sum", &s, &square, 1) : NULL;
    double v = 0;
    bool ok = sum && !neap_item(st->c, sum, &v);
    neap_free(wide);
    neap_free(square);
    neap_free(sum);
    *total += v;
    return ok;
}

static bool scale_grad(nl_state *st, neap_tensor *g, double by)
{
    np_frame f = {0};
    neap_tensor *in[2] = {g, neap_keep(neap_number(st->c, by))},
                *y = in[1] ? nl_call(st, "mul_", &f, in, 2) : NULL;
    neap_free(in[1]);
    neap_free(y);
    return y != NULL;
}

/* clip_grad_norm(params, max_norm) -> the norm before */
static int clip_grad_norm(lua_State *L)
{
    nl_state *st = nl_enter(L);
    double max = nl_check_number(L, st, 2, "clip_grad_norm", "the norm"), total = 0;
    lists l = read_params(L, st, 1, "clip_grad_norm");
    uint64_t mode = neap_set_grad_enabled(st->c, 0);
    bool ok = mode != 0;
    take_grads(&l);
    for (int i = 0; ok && i < l.n; i++) ok = !l.grads[i] || add_squares(st, l.grads[i], &total);
    double norm = sqrt(total);
    if (norm > max && isfinite(norm))
        for (int i = 0; ok && i < l.n; i++) ok = !l.grads[i] || scale_grad(st, l.grads[i], max / norm);
    drop_grads(&l);
    if (mode) neap_end(st->c, mode);
    if (!ok) return nl_raise(L, st, "clip_grad_norm");
    lua_pushnumber(L, norm);
    return 1;
}

static const luaL_Reg functions[] = {
    {"adamw_step", adamw_step}, {"sgd_step", sgd_step}, {"clip_grad_norm", clip_grad_norm}, {NULL, NULL}};

void nl_open_optim(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
