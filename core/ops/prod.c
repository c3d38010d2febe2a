/* prod.c - products over one or all dimensions; gradients are exact with zeros. */
#include "ops/cpu/reduce.h"
#include "ops/cpu/rows.h"

#define PROD_ROW(S, T, F, A) \
    static void prod_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        A p = (A)a->F; \
        for (int64_t i = 0; i < n; i++) p *= (A)x[i]; \
        memcpy(&a->F, &p, 8); \
    }
PROD_ROW(f32, float, d, double)
PROD_ROW(f64, double, d, double)
PROD_ROW(i64, int64_t, i, uint64_t)
PROD_ROW(i32, int32_t, i, uint64_t)
PROD_ROW(i8, int8_t, i, uint64_t)
PROD_ROW(u8, uint8_t, i, uint64_t)
static void prod_merge_d(np_acc *a, const np_acc *b) { a->d *= b->d; }
static void prod_merge_i(np_acc *a, const np_acc *b) { a->i = (int64_t)((uint64_t)a->i * (uint64_t)b->i); }

KINDS(prod, 1);

/* ---- products */

/* prod(x, [dim], {keepdim=}): the product over one dim, or over all. Integers and bool give int64. */
NP_CPU(prod)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, np_dim_mask(&f->attr[0], f->in[0]->ndim), &prod_kinds[t], t, store_value, 0);
}

/* A slice of x along `dim`, or all of x in row-major order: its length, and where its i-th element is in the
 * contiguous result. */
typedef struct slices {
    int64_t n, inner, count;
} slices;
static inline slices slices_of(const neap_tensor *x, const np_attr *dim)
{
    slices s = {.n = x->numel, .inner = 1, .count = x->numel > 0};
    if (!dim->has || x->ndim == 0) return s;
    int d = (int)(dim->i < 0 ? dim->i + x->ndim : dim->i);
    s.n = x->shape[d];
    for (int k = d + 1; k < x->ndim; k++) s.inner *= x->shape[k];
    s.count = s.n > 0 ? x->numel / s.n : 0;
    return s;
}
static inline int64_t slice_at(const slices *s, int64_t slice, int64_t i)
{
    return (slice / s->inner * s->n + i) * s->inner + slice % s->inner;
}
static inline double element(const neap_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->ndim - 1; d >= 0; d--) at += i % t->shape[d] * t->stride[d], i /= t->shape[d];
    return np_load_double((neap_dtype)t->dtype, np_ptr(t) + at * (int64_t)np_itemsize(t));
}
static inline void put(neap_tensor *t, int64_t i, double v)
{
    np_store_double((neap_dtype)t->dtype, np_ptr(t) + i * (int64_t)np_itemsize(t), v);
}

/* prod_others(x, [dim]): for each element the product of all others of its slice; exact with zeros.
 *
 * A slice is cut into segments: their products first, then what is before and after each segment, then the elements. */
#define PROD_SEGMENT 256
typedef struct others_job {
    const char *x; /* (rows, n), contiguous */
    char *y;
    bool f64;
    int64_t rows, n, segments, per_task;
    double *product, *before, *after; /* (rows, segments); NULL with one segment */
} others_job;

#define OTHERS(S, T) \
    static double segment_product_##S(const T *x, int64_t n) \
    { \
        double lane[4] = {1, 1, 1, 1}; \
        int64_t i = 0; \
        for (; i + 4 <= n; i += 4) \
            for (int l = 0; l < 4; l++) lane[l] *= (double)x[i + l]; \
        for (; i < n; i++) lane[0] *= (double)x[i]; \
        return (lane[0] * lane[1]) * (lane[2] * lane[3]); \
    } \
    static void segment_others_##S(const T *x, T *y, int64_t n, double before, double after) \
    { \
        double rest[PROD_SEGMENT]; \
        for (int64_t i = n - 1; i >= 0; i--) rest[i] = after, after *= (double)x[i]; \
        for (int64_t i = 0; i < n; i++) y[i] = (T)(before * rest[i]), before *= (double)x[i]; \
    }
OTHERS(f32, float)
OTHERS(f64, double)

static void others_task(void *arg, int64_t task)
{
    const others_job *j = arg;
    int64_t all = j->rows * j->segments,
            end = (task + 1) * j->per_task < all ? (task + 1) * j->per_task : all;
    for (int64_t u = task * j->per_task; u < end; u++) {
        int64_t first = u % j->segments * PROD_SEGMENT, at = u / j->segments * j->n + first;
        int64_t n = j->n - first < PROD_SEGMENT ? j->n - first : PROD_SEGMENT;
        const float *xf = (const float *)(const void *)j->x + at;
        const double *xd = (const double *)(const void *)j->x + at;
        if (j->product) {
            j->product[u] = j->f64 ? segment_product_f64(xd, n) : segment_product_f32(xf, n);
            continue;
        }
        double before = j->before ? j->before[u] : 1, after = j->after ? j->after[u] : 1;
        if (j->f64) segment_others_f64(xd, (double *)(void *)j->y + at, n, before, after);
        else segment_others_f32(xf, (float *)(void *)j->y + at, n, before, after);
    }
}

static inline bool run_others(neap_ctx *c, others_job *j)
{
    int64_t all = j->rows * j->segments, tasks = (all + j->per_task - 1) / j->per_task;
    if (j->segments == 1) return np_parallel(c, tasks, others_task, j);
    np_mem *mem = &c->devices[0]->mem;
    size_t bytes = (size_t)all * 2 * sizeof(double);
    double *work = np_mem_take(mem, bytes, NEAP_WORKSPACE), *other = work ? work + all : NULL;
    if (!work) return false;
    j->product = work;
    bool ok = np_parallel(c, tasks, others_task, j);
    j->product = NULL, j->before = other, j->after = work;
    for (int64_t r = 0; r < j->rows; r++) { /* products become what is after each */
        double *product = work + r * j->segments, *before = other + r * j->segments, p = 1;
        for (int64_t k = 0; k < j->segments; k++) before[k] = p, p *= product[k];
        p = 1;
        for (int64_t k = j->segments - 1; k >= 0; k--) {
            double here = product[k];
            product[k] = p, p *= here;
        }
    }
    ok = ok && np_parallel(c, tasks, others_task, j);
    np_mem_give(mem, work, bytes, NEAP_WORKSPACE);
    return ok;
}

NP_CPU(prod_others)(np_frame *f)
{
    neap_tensor *x = f->in[0];
    neap_dtype w = np_wide(f->compute);
    const np_attr *a = &f->attr[0];
    int dim = a->has && x->ndim ? (int)(a->i < 0 ? a->i + x->ndim : a->i) : x->ndim - 1;
    if (x->numel == 0) return true;
    neap_tensor *rows = np_rows_in(f->c, x, dim, w), *y = rows ? np_rows_out(f, 0, dim, w) : NULL;
    bool ok = y != NULL;
    if (ok) {
        others_job j = {.x = np_ptr(rows), .y = np_ptr(y), .f64 = w == NEAP_FLOAT64};
        j.n = !a->has ? x->numel : x->ndim ? x->shape[dim] : 1;
        j.rows = x->numel / j.n;
        j.segments = (j.n + PROD_SEGMENT - 1) / PROD_SEGMENT;
        j.per_task = NP_GRAIN / (j.n < PROD_SEGMENT ? j.n : PROD_SEGMENT);
        ok = run_others(f->c, &j);
    }
    np_drop(rows);
    return np_rows_done(f, 0, dim, y, ok);
}

/* prod_others_grad(h, x, [dim]): the gradient of sum(h * prod_others(x)) in x. With products of dual numbers
 * x + e h before and after an element, it is the e part of their product: no division, exact with zeros. */
NP_CPU(prod_others_grad)(np_frame *f)
{
    const neap_tensor *h = f->in[0], *x = f->in[1];
    slices s = slices_of(x, &f->attr[0]);
    np_mem *mem = &f->c->devices[0]->mem;
    size_t bytes = (size_t)s.n * 2 * sizeof(double);
    double *before = np_mem_take(mem, bytes, NEAP_WORKSPACE); /* (n,2) */
    if (!before) return false;
    for (int64_t k = 0; k < s.count; k++) {
        double p = 1, dp = 0;
        for (int64_t i = 0; i < s.n; i++) {
            int64_t at = slice_at(&s, k, i);
            double v = element(x, at);
            before[2 * i] = p, before[2 * i + 1] = dp;
            dp = dp * v + p * element(h, at), p *= v;
        }
        p = 1, dp = 0;
        for (int64_t i = s.n - 1; i >= 0; i--) {
            int64_t at = slice_at(&s, k, i);
            double v = element(x, at);
            put(f->out[0], at, before[2 * i] * dp + before[2 * i + 1] * p);
            dp = dp * v + p * element(h, at), p *= v;
        }
    }
    np_mem_give(mem, before, bytes, NEAP_WORKSPACE);
    return true;
}

#ifdef NP_BASE_ONLY
static bool prod_infer(np_frame *f)
{
    if (!np_infer_dim(f, false)) return false;
    np_reduced_meta(f, 0, np_summed(f->compute), np_dim_mask(&f->attr[0], f->in[0]->ndim), f->attr[1].i != 0);
    return true;
}
static void prod_grad(np_back *b)
{
    const np_attr *a = &b->attr[0];
    neap_tensor *others = np_prod_others(b, b->saved[0], a->has ? &a->i : NULL);
    b->dx[0] = np_mul(b, np_spread_dim(b, b->g[0]), others);
}
static void prod_others_backward(np_back *b)
{
    const np_attr *a = &b->attr[0];
    b->dx[0] = np_prod_others_grad(b, b->g[0], b->saved[0], a->has ? &a->i : NULL);
}
static void prod_others_grad_backward(np_back *b)
{
    np_fail(b->c, NEAP_E_NOGRAD, "third derivatives of prod are not available; write the product out");
}
static bool prod_others_infer(np_frame *f) { return np_infer_dim(f, false) && np_infer_same(f); }
static bool prod_others_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "dim" : "all";
    s->no_grad = 3; /* checked by the second order of prod: a third one there is not */
    if (i) s->attr[0] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, 0.3, 2, i, 2, (int64_t)3, (int64_t)2);
}
static bool prod_others_grad_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    return np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)2) && prod_others_sample(s, i);
}
NP_OP(prod) = {NP_NAMED(prod),
               .args = "x:T dim:dim? ; keepdim:bool=false -> y:T",
               .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
               .save = {NP_IN(0)},
               .infer = prod_infer,
               .grad = prod_grad,
               .sample = np_sample_dim};
NP_OP(prod_others) = {NP_NAMED(prod_others),          .args = "x:T dim:dim? -> y:T",
                      .tags = NP_CHEAP | NP_INTERNAL, .save = {NP_IN(0)},
                      .infer = prod_others_infer,     .grad = prod_others_backward,
                      .sample = prod_others_sample};
NP_OP(prod_others_grad) = {NP_NAMED(prod_others_grad),        .args = "h:T x:T dim:dim? -> dx:T",
                           .tags = NP_CHEAP | NP_INTERNAL,    .infer = prod_others_infer,
                           .grad = prod_others_grad_backward, .sample = prod_others_grad_sample};
#endif
