/* stats.c - variance, standard deviation and norms over some or all dimensions.
 *
 * All is summed in double. A variance takes two passes, means first and then squares of what differs from them, so that
 * nothing cancels. Where a result is 0 the gradient of its root is 0, too. */
#include "ops/cpu/reduce.h"

/* ---- variance */

RED_SUM_FLOATS(total, v, k, v)
RED_SUM_FLOATS(apart, v, mean, (v - mean) * (v - mean))

static inline void put(neap_tensor *t, int64_t o, double v)
{
    np_store_double((neap_dtype)t->dtype, np_ptr(t) + o * (int64_t)np_itemsize(t), v);
}
static void store_center(const red_job *j, int64_t o, const np_acc *a)
{
    double *means = j->user;
    means[o] = a->d / (double)j->n;
}
static inline double variance(const red_job *j, const np_acc *a)
{
    const double *correction = j->user;
    double n = (double)j->n - *correction;
    return a->d / (n > 0 ? n : 0);
}
static void store_var(const red_job *j, int64_t o, const np_acc *a) { put(j->out[0], o, variance(j, a)); }
static void store_std(const red_job *j, int64_t o, const np_acc *a)
{
    put(j->out[0], o, sqrt(variance(j, a)));
}

/* out[1], if there is one, gets the means. */
static inline bool spread_out(np_frame *f, void (*store)(const red_job *, int64_t, const np_acc *))
{
    uint32_t mask = np_dims_mask(&f->attr[0], f->in[0]->ndim);
    neap_dtype t = red_float((neap_dtype)f->in[0]->dtype);
    int64_t m = f->out[0]->numel;
    if (m == 0) return true;
    np_mem *mem = &f->c->devices[0]->mem;
    size_t bytes = (size_t)m * sizeof(double);
    double *means = np_mem_take(mem, bytes, NEAP_WORKSPACE), correction = f->attr[2].f;
    if (!means) return false;
    red_job first = red_begin(f, mask, &total_kinds[t], t, store_center);
    first.user = means;
    red_job second = red_begin(f, mask, &apart_kinds[t], t, store);
    second.ks = means, second.user = &correction;
    bool ok = red_run(f->c, &first) && red_run(f->c, &second);
    for (int64_t o = 0; ok && f->n_out > 1 && o < m; o++) put(f->out[1], o, means[o]);
    np_mem_give(mem, means, bytes, NEAP_WORKSPACE);
    return ok;
}

/* var(x, [dims], {keepdim=, correction=1}): the variance over dims, or of all: the sum of squares of what differs from
 * the mean, divided by n - correction; not a number where that is not above 0. Integers give floats. x:var(2). */
NP_CPU(var)(np_frame *f) { return spread_out(f, store_var); }

/* std(x, [dims], {keepdim=, correction=1}): the standard deviation: the square root of var. Its gradient at 0 is 0. */
NP_CPU(std)(np_frame *f) { return spread_out(f, store_std); }

/* var_mean(x, [dims], {keepdim=, correction=1}) -> variance, mean: both in the two passes of var. */
NP_CPU(var_mean)(np_frame *f) { return spread_out(f, store_var); }

#ifdef NP_BASE_ONLY
static bool stats_infer(np_frame *f)
{
    return np_infer_float(f) && np_infer_dims(f, (neap_dtype)f->meta[0].dtype);
}
static bool var_infer(np_frame *f)
{
    if (isfinite(f->attr[2].f)) return stats_infer(f);
    np_fail(f->c, NEAP_E_ARG, "the correction is %g; it must be a number such as 0 or 1", f->attr[2].f);
    return false;
}
static bool var_mean_infer(np_frame *f)
{
    if (!var_infer(f)) return false;
    f->meta[1] = f->meta[0];
    return true;
}
/* Elements per result. */
static double reduced_count(np_back *b)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    double n = 1;
    if (!np_x_shape(b, &ndim, shape)) return n;
    uint32_t mask = np_dims_mask(&b->attr[0], ndim);
    for (int d = 0; d < ndim; d++)
        if (mask >> d & 1) n *= (double)shape[d];
    return n;
}
/* 2 g (x - mean) / (n - correction) */
static neap_tensor *var_slope(np_back *b, neap_tensor *g)
{
    const np_attr *a = &b->attr[0];
    double n = reduced_count(b) - b->attr[2].f;
    neap_tensor *mean = np_mean(b, b->saved[0], a->has ? a->v : NULL, a->n, true);
    neap_tensor *scaled = np_mul(b, g, np_num(b, 2 / (n > 0 ? n : 0)));
    return np_mul(b, np_spread_dims(b, scaled), np_sub(b, b->saved[0], mean));
}
static void var_grad(np_back *b) { b->dx[0] = var_slope(b, b->g[0]); }
static void std_grad(np_back *b)
{
    neap_tensor *y = b->saved[1], *half = np_div0(b, b->g[0], np_mul(b, y, np_num(b, 2)));
    b->dx[0] = var_slope(b, np_where(b, np_eq(b, y, np_num(b, 0)), np_num(b, 0), half));
}
static void var_mean_grad(np_back *b)
{
    b->dx[0] = var_slope(b, b->g[0]);
    if (!b->g[1]) return;
    neap_tensor *share = np_div(b, b->g[1], np_num(b, reduced_count(b)));
    b->dx[0] = np_add(b, b->dx[0], np_spread_dims(b, share));
}
static bool var_sample(np_sampler *s, int i)
{
    s->attr[2] = (np_attr){.f = i == 1 || i == 6 ? 0 : 1, .has = 1}; /* the 0-dim one has no other */
    return np_sample_dims(s, i);
}
/* One element has no slope that differences could find. */
static bool std_sample(np_sampler *s, int i)
{
    s->attr[2] = (np_attr){.f = i == 1 ? 0 : 0.5, .has = 1};
    return i < 6 && np_sample_dims(s, i);
}
NP_OP(var) = {NP_NAMED(var),
              .args = "x:T dims:dims? ; keepdim:bool=false correction:float=1 -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
              .save = {NP_IN(0)},
              .infer = var_infer,
              .grad = var_grad,
              .sample = var_sample};
NP_OP(std) = {NP_NAMED(std),
              .args = "x:T dims:dims? ; keepdim:bool=false correction:float=1 -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
              .save = {NP_IN(0), NP_OUT(0)},
              .infer = var_infer,
              .grad = std_grad,
              .sample = std_sample};
NP_OP(var_mean) = {NP_NAMED(var_mean),
                   .args = "x:T dims:dims? ; keepdim:bool=false correction:float=1 -> variance:T mean:T",
                   .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
                   .save = {NP_IN(0)},
                   .infer = var_mean_infer,
                   .grad = var_mean_grad,
                   .sample = var_sample};
#endif

/* ---- norms */

RED_SUM_FLOATS(norm0, v, k, (double)(v != 0))
RED_SUM_FLOATS(norm1, v, k, fabs(v))
RED_SUM_FLOATS(norm2, v, k, v *v)
RED_SUM_FLOATS(normp, v, p, pow(fabs(v), p))

#define NORM_EXTREME(name, S, T, OP) \
    static void name##_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        double best = a->d; \
        for (int64_t i = 0; i < n; i++) { \
            double v = fabs((double)x[i]); \
            best = v OP best || v != v ? v : best; \
        } \
        a->d = best; \
    }
#define NORM_EXTREMES(name, OP, START) \
    NORM_EXTREME(name, f32, float, OP) \
    NORM_EXTREME(name, f64, double, OP) \
    static void name##_merge(np_acc *a, const np_acc *b) \
    { \
        a->d = b->d OP a->d || b->d != b->d ? b->d : a->d; \
    } \
    static const red_kind name##_kinds[NEAP_N_DTYPES] = { \
        [NEAP_FLOAT32] = {.start = {.d = START}, .row = name##_row_f32, .merge = name##_merge}, \
        [NEAP_FLOAT64] = {.start = {.d = START}, .row = name##_row_f64, .merge = name##_merge}};
NORM_EXTREMES(norm_most, >, 0)
NORM_EXTREMES(norm_least, <, (double)INFINITY)

static void store_norm(const red_job *j, int64_t o, const np_acc *a)
{
    double p = j->k;
    put(j->out[0], o, p == 2 ? sqrt(a->d) : p == 0 || p == 1 || isinf(p) ? a->d : pow(a->d, 1 / p));
}

/* norm(x, [dims], {keepdim=, p=2}): (sum |x|^p)^(1/p) over dims, or over all. p = 1 is the sum of |x|, p = inf the
 * largest |x|, p = -inf the smallest, p = 0 the number of elements that are not 0. Where the norm is 0 its gradient is 0.
 * Integers give floats. x:norm(), x:norm(2, {p = 1}). */
NP_CPU(norm)(np_frame *f)
{
    double p = f->attr[2].f;
    neap_dtype t = red_float((neap_dtype)f->in[0]->dtype);
    const red_kind *kinds = p == 2           ? norm2_kinds
                            : p == 1         ? norm1_kinds
                            : p == 0         ? norm0_kinds
                            : p == INFINITY  ? norm_most_kinds
                            : p == -INFINITY ? norm_least_kinds
                                             : normp_kinds;
    red_job j = red_begin(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &kinds[t], t, store_norm);
    j.k = p;
    return red_run(f->c, &j);
}

#ifdef NP_BASE_ONLY
static bool norm_infer(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    double p = f->attr[2].f;
    if (isnan(p)) {
        np_fail(f->c, NEAP_E_ARG, "p is NaN; it is a number such as 1, 2 or math.huge");
        return false;
    }
    if (!stats_infer(f)) return false;
    uint32_t mask = np_dims_mask(&f->attr[0], x->ndim);
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1) || x->shape[d] > 0 || (p >= 0 && !isinf(p))) continue;
        char text[128];
        np_fail(f->c, NEAP_E_SHAPE,
                "dimension %d of %s has size 0: the norm of nothing with p = %g is undefined", d + f->c->base,
                np_tensor_text(text, sizeof text, x), p);
        return false;
    }
    return true;
}
/* g sign(x) (|x| / y)^(p-1), 0 where x is 0; for infinite p shared evenly by the elements that are the extreme. */
static void norm_grad(np_back *b)
{
    const np_attr *a = &b->attr[0];
    neap_tensor *x = b->saved[0], *y = b->saved[1], *g = b->g[0];
    double p = b->attr[2].f;
    if (p == 0) {
        b->dx[0] = np_mul0(b, np_num(b, 0), x);
    } else if (p == 1) {
        b->dx[0] = np_mul(b, np_spread_dims(b, g), np_sign(b, x));
    } else if (p == 2) {
        b->dx[0] = np_mul(b, np_spread_dims(b, g), np_div0(b, x, np_spread_dims(b, y)));
    } else if (isinf(p)) {
        neap_tensor *chosen = np_hold(b, np_eq(b, np_abs(b, x), np_spread_dims(b, y)));
        neap_tensor *count = np_sum(b, chosen, a->has ? a->v : NULL, a->n, b->attr[1].i != 0);
        neap_tensor *share = np_spread_dims(b, np_div0(b, g, count));
        b->dx[0] = np_where(b, chosen, np_mul(b, share, np_sign(b, x)), np_num(b, 0));
    } else {
        neap_tensor *part = np_div0(b, np_abs(b, x), np_spread_dims(b, y));
        neap_tensor *slope = np_mul0(b, np_sign(b, x), np_pow(b, part, np_num(b, p - 1)));
        b->dx[0] = np_mul(b, np_spread_dims(b, g), slope);
    }
}
static bool norm_sample(np_sampler *s, int i)
{
    static const double ps[] = {2, 1, 3, INFINITY, 1.5, 0, 2, 2, -INFINITY, -1, 0.5};
    if (i >= (int)(sizeof ps / sizeof *ps)) return false;
    s->attr[2] = (np_attr){.f = ps[i], .has = 1};
    return np_sample_dims(s, i < 8 ? i : i - 7);
}
NP_OP(norm) = {NP_NAMED(norm),
               .args = "x:T dims:dims? ; keepdim:bool=false p:float=2 -> y:T",
               .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
               .save = {NP_IN(0), NP_OUT(0)},
               .infer = norm_infer,
               .grad = norm_grad,
               .sample = norm_sample};
#endif
