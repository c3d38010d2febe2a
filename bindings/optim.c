/* optim.c - one call of the core for a whole list of parameters; and the joint norm of gradients. The gradients are
 * the parameters' own .grad; parameters without one are skipped. */
#include "nl.h"

typedef struct lists {
    int n;
    neap_tensor **params, **grads;
} lists;

/* Reads the parameters at idx; grads are references to be dropped by drop_grads. Nothing may raise in between. */
static lists read_params(lua_State *L, nl_state *st, int idx, const char *fn)
{
    lists l;
    lua_settop(L, 5); /* an argument that is left out reads as nil, not as what the lists push */
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

static neap_tensor **optional_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what,
                                   int want)
{
    return lua_isnoneornil(L, idx) ? NULL : same_list(L, st, idx, fn, what, want);
}

/* What every step ends with: the lists' gradients go, an error is raised with positions counted from 1. */
static int finish(lua_State *L, nl_state *st, lists *l, int base, int bad, const char *fn)
{
    nl_set_base(st, base);
    drop_grads(l);
    return bad ? nl_raise(L, st, fn) : 0;
}

/* adamw_step(settings, params, m, v, v_max or nil) */
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
    neap_tensor **m = same_list(L, st, 3, fn, "m", l.n), **v = same_list(L, st, 4, fn, "v", l.n),
                **v_max = optional_list(L, st, 5, fn, "v_max", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    return finish(L, st, &l, base, neap_adamw_step(st->c, &o, l.n, l.params, l.grads, m, v, v_max), fn);
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
    neap_tensor **bufs = optional_list(L, st, 3, fn, "buffers", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    return finish(L, st, &l, base, neap_sgd_step(st->c, &o, l.n, l.params, l.grads, bufs), fn);
}

/* rmsprop_step(settings, params, squares, buffers or nil, means or nil) */
static int rmsprop_step(lua_State *L)
{
    static const char *const names[] = {"lr", "alpha", "eps", "momentum", "weight_decay", NULL};
    const char *fn = "rmsprop_step";
    nl_state *st = nl_enter(L);
    nl_check_options(L, st, 1, fn, names);
    neap_rmsprop o = {.size = sizeof o};
    o.lr = nl_number_option(L, st, 1, fn, "lr", 1e-2);
    o.alpha = nl_number_option(L, st, 1, fn, "alpha", 0.99);
    o.eps = nl_number_option(L, st, 1, fn, "eps", 1e-8);
    o.momentum = nl_number_option(L, st, 1, fn, "momentum", 0);
    o.weight_decay = nl_number_option(L, st, 1, fn, "weight_decay", 0);
    lists l = read_params(L, st, 2, fn);
    neap_tensor **squares = same_list(L, st, 3, fn, "squares", l.n),
                **bufs = optional_list(L, st, 4, fn, "buffers", l.n),
                **means = optional_list(L, st, 5, fn, "means", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    return finish(L, st, &l, base, neap_rmsprop_step(st->c, &o, l.n, l.params, l.grads, squares, bufs, means),
                  fn);
}

/* adagrad_step(settings, params, sums) */
static int adagrad_step(lua_State *L)
{
    static const char *const names[] = {"lr", "lr_decay", "eps", "weight_decay", "step", NULL};
    const char *fn = "adagrad_step";
    nl_state *st = nl_enter(L);
    nl_check_options(L, st, 1, fn, names);
    neap_adagrad o = {.size = sizeof o};
    o.lr = nl_number_option(L, st, 1, fn, "lr", 1e-2);
    o.lr_decay = nl_number_option(L, st, 1, fn, "lr_decay", 0);
    o.eps = nl_number_option(L, st, 1, fn, "eps", 1e-10);
    o.weight_decay = nl_number_option(L, st, 1, fn, "weight_decay", 0);
    o.step = (int64_t)nl_number_option(L, st, 1, fn, "step", 1);
    lists l = read_params(L, st, 2, fn);
    neap_tensor **sums = same_list(L, st, 3, fn, "sums", l.n);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    return finish(L, st, &l, base, neap_adagrad_step(st->c, &o, l.n, l.params, l.grads, sums), fn);
}

/* clip_grad_norm(params, max_norm, {error_if_nonfinite}) -> the norm before */
static int clip_grad_norm(lua_State *L)
{
    static const char *const names[] = {"error_if_nonfinite", NULL};
    const char *fn = "clip_grad_norm";
    nl_state *st = nl_enter(L);
    nl_check_options(L, st, 3, fn, names);
    bool strict = nl_bool_option(L, st, 3, fn, "error_if_nonfinite", true);
    double max = nl_check_number(L, st, 2, fn, "the norm"), norm = 0;
    lists l = read_params(L, st, 1, fn);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    finish(L, st, &l, base, neap_clip_grad_norm(st->c, l.n, l.grads, max, strict, &norm), fn);
    lua_pushnumber(L, norm);
    return 1;
}

/* clip_grad_value(params, max) */
static int clip_grad_value(lua_State *L)
{
    const char *fn = "clip_grad_value";
    nl_state *st = nl_enter(L);
    double max = nl_check_number(L, st, 2, fn, "the bound");
    lists l = read_params(L, st, 1, fn);
    take_grads(&l);
    int base = nl_set_base(st, 1);
    return finish(L, st, &l, base, neap_clip_grad_value(st->c, l.n, l.grads, max), fn);
}

static const luaL_Reg functions[] = {{"adamw_step", adamw_step},
                                     {"sgd_step", sgd_step},
                                     {"rmsprop_step", rmsprop_step},
                                     {"adagrad_step", adagrad_step},
                                     {"clip_grad_norm", clip_grad_norm},
                                     {"clip_grad_value", clip_grad_value},
                                     {NULL, NULL}};

void nl_open_optim(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
