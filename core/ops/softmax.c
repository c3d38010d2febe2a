/* softmax.c - softmax, log_softmax and logsumexp: rows shifted by their maximum, so nothing overflows.
 * They save their results, not their inputs. A row of -inf alone: logsumexp is -inf with gradient 0; the two
 * others are not numbers there. */
#include "ops/cpu/rows.h"
#include "ops/sample.h"

typedef struct row_job {
    const void *x, *z; /* (rows, D); z: the second operand of backward kernels */
    void *y;           /* (rows, D), or (rows) for logsumexp */
    int64_t rows, D, per_chunk;
    void (*row)(const void *x, const void *z, void *y, int64_t D);
    size_t es, ys; /* bytes of an element, of a result row */
} row_job;

static inline void run_rows(void *arg, int64_t chunk)
{
    const row_job *j = arg;
    int64_t end = (chunk + 1) * j->per_chunk < j->rows ? (chunk + 1) * j->per_chunk : j->rows;
    size_t row = (size_t)j->D * j->es;
    for (int64_t r = chunk * j->per_chunk; r < end; r++)
        j->row((const char *)j->x + (size_t)r * row, j->z ? (const char *)j->z + (size_t)r * row : NULL,
               (char *)j->y + (size_t)r * j->ys, j->D);
}

static inline bool each_row(neap_ctx *c, row_job *j)
{
    j->per_chunk = j->D > 0 && j->D < NP_ROW_GRAIN ? NP_ROW_GRAIN / j->D : 1;
    return np_parallel(c, (j->rows + j->per_chunk - 1) / j->per_chunk, run_rows, j);
}

#define SOFTMAX_ROWS(T, S) \
    static void softmax_row_##S(const void *xp, const void *zp, void *yp, int64_t D) \
    { \
        const T *x = xp; \
        T *y = yp; \
        (void)zp; \
        const T m = np_row_max_##S(x, D); \
        for (int64_t i = 0; i < D; i++) y[i] = v_exp(x[i] - m); \
        const T r = (T)1 / NP_LANE_SUM(T, i, D, y[i]); \
        for (int64_t i = 0; i < D; i++) y[i] *= r; \
    } \
    static void log_softmax_row_##S(const void *xp, const void *zp, void *yp, int64_t D) \
    { \
        const T *x = xp; \
        T *y = yp; \
        (void)zp; \
        const T m = np_row_max_##S(x, D); \
        for (int64_t i = 0; i < D; i++) y[i] = v_exp(x[i] - m); \
        const T l = v_log(NP_LANE_SUM(T, i, D, y[i])); \
        for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) - l; \
    } \
    static void logsumexp_row_##S(const void *xp, const void *zp, void *yp, int64_t D) \
    { \
        const T *x = xp; \
        (void)zp; \
        const T m = np_row_max_##S(x, D); \
        *(T *)yp = isinf(m) ? m : m + v_log(NP_LANE_SUM(T, i, D, v_exp(x[i] - m))); \
    } \
    /* dx = y (g - sum g y) */ \
    static void softmax_back_##S(const void *gp, const void *zp, void *dp, int64_t D) \
    { \
        const T *g = gp, *y = zp; \
        T *d = dp; \
        const T s = NP_LANE_SUM(T, i, D, g[i] * y[i]); \
        for (int64_t i = 0; i < D; i++) d[i] = y[i] * (g[i] - s); \
    } \
    /* dx = g - e^y sum g */ \
    static void log_softmax_back_##S(const void *gp, const void *zp, void *dp, int64_t D) \
    { \
        const T *g = gp, *y = zp; \
        T *d = dp; \
        const T s = NP_LANE_SUM(T, i, D, g[i]); \
        for (int64_t i = 0; i < D; i++) d[i] = g[i] - v_exp(y[i]) * s; \
    }
SOFTMAX_ROWS(float, f32)
SOFTMAX_ROWS(double, f64)

/* Runs a row kernel along `dim` of in[0] (and in[1]) into out[0], which has the shape of in[0]. */
static inline bool along(np_frame *f, int64_t dim_attr,
                         void (*f32)(const void *, const void *, void *, int64_t),
                         void (*f64)(const void *, const void *, void *, int64_t))
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    int n = f->in[0]->ndim, dim = n ? (int)(dim_attr < 0 ? dim_attr + n : dim_attr) : 0;
    neap_tensor *x = np_rows_in(c, f->in[0], dim, w), *z = NULL;
    if (x && f->n_in > 1) z = np_rows_in(c, f->in[1], dim, w);
    neap_tensor *y = x && (z || f->n_in < 2) ? np_rows_out(f, 0, dim, w) : NULL;
    bool ok = y != NULL;
    if (ok && x->numel) {
        size_t es = np_dtype_size(w);
        row_job j = {.x = np_ptr(x),
                     .z = z ? np_ptr(z) : NULL,
                     .y = np_ptr(y),
                     .D = n ? x->shape[n - 1] : 1,
                     .row = w == NEAP_FLOAT64 ? f64 : f32,
                     .es = es};
        j.rows = x->numel / j.D;
        j.ys = (size_t)j.D * es;
        ok = each_row(c, &j);
    }
    np_drop(x);
    np_drop(z);
    return np_rows_done(f, 0, dim, y, ok);
}

NP_CPU(softmax)(np_frame *f) { return along(f, f->attr[0].i, softmax_row_f32, softmax_row_f64); }
NP_CPU(log_softmax)(np_frame *f) { return along(f, f->attr[0].i, log_softmax_row_f32, log_softmax_row_f64); }
NP_CPU(softmax_backward)(np_frame *f) { return along(f, f->attr[0].i, softmax_back_f32, softmax_back_f64); }
NP_CPU(log_softmax_backward)(np_frame *f)
{
    return along(f, f->attr[0].i, log_softmax_back_f32, log_softmax_back_f64);
}

/* Bit d: dimension d is reduced. Absent: all. The dims were checked by infer. */
static inline unsigned reduced_dims(const np_attr *a, int ndim)
{
    unsigned mask = 0;
    if (!a->has) return (1u << ndim) - 1;
    for (int i = 0; i < a->n; i++) mask |= ndim ? 1u << (a->v[i] < 0 ? a->v[i] + ndim : a->v[i]) : 0;
    return mask;
}

NP_CPU(logsumexp)(np_frame *f)
{
    neap_tensor *x = f->in[0];
    neap_dtype w = np_wide(f->compute);
    unsigned mask = reduced_dims(&f->attr[0], x->ndim);
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], D = 1;
    int n = 0;
    for (int pass = 0; pass < 2; pass++) { /* kept dimensions, then reduced ones */
        for (int d = 0; d < x->ndim; d++) {
            if ((int)(mask >> d & 1) != pass) continue;
            shape[n] = x->shape[d], stride[n++] = x->stride[d];
            if (pass) D *= x->shape[d];
        }
    }
    neap_tensor *v = np_tensor_view(x, n, shape, stride, x->offset),
                *r = v ? np_as_contiguous(f->c, v, w) : NULL;
    neap_tensor *y = r ? np_rows_out(f, 0, f->out[0]->ndim - 1, w) : NULL;
    bool ok = y != NULL;
    if (ok) {
        row_job j = {.x = np_ptr(r),
                     .y = np_ptr(y),
                     .rows = y->numel,
                     .D = D,
                     .es = np_dtype_size(w),
                     .ys = np_dtype_size(w),
                     .row = w == NEAP_FLOAT64 ? logsumexp_row_f64 : logsumexp_row_f32};
        ok = each_row(f->c, &j);
    }
    np_drop(v);
    np_drop(r);
    return np_rows_done(f, 0, f->out[0]->ndim - 1, y, ok);
}

#ifdef NP_BASE_ONLY

static bool infer_along(np_frame *f)
{
    return np_infer_float(f) && np_wrap_dim(f->c, f->attr[0].i, f->in[0]->ndim) >= 0;
}

static int64_t wrapped(const np_back *b, const neap_tensor *t)
{
    return b->attr[0].i < 0 ? b->attr[0].i + (t->ndim ? t->ndim : 1) : b->attr[0].i;
}

static bool dim_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = i == 1 || i == 4 ? 0 : -1, .has = 1};
    if (s->size != NP_SMALL)
        return s->label = "rows",
               i == 0 && np_s_tensor(s, -3, 3, 0, 2, np_s_size(s, 0, 512), np_s_size(s, 0, 1024));
    switch (i) {
    case 0: return s->label = "last", np_s_tensor(s, -3, 3, 0, 2, (int64_t)3, (int64_t)5);
    case 1: return s->label = "first", np_s_tensor(s, -3, 3, 0, 3, (int64_t)4, (int64_t)2, (int64_t)3);
    case 2: return s->label = "transposed", np_s_tensor(s, -3, 3, 1, 2, (int64_t)20, (int64_t)3);
    case 3: return s->label = "strided", np_s_tensor(s, -3, 3, 2, 2, (int64_t)2, (int64_t)4);
    case 4: return s->label = "vector", np_s_tensor(s, -3, 3, 0, 1, (int64_t)37);
    case 5: return s->label = "0-dim", np_s_tensor(s, -3, 3, 0, 0);
    case 6: return s->label = "empty", np_s_tensor(s, -3, 3, 0, 2, (int64_t)0, (int64_t)3);
    default: return false;
    }
}

static bool dim_pair_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = -1, .has = 1};
    switch (i) {
    case 0:
        return s->label = "last", np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)5) &&
                                      np_s_tensor(s, 0.1, 0.9, 0, 2, (int64_t)3, (int64_t)5);
    case 1:
        return s->label = "transposed", np_s_tensor(s, -1, 1, 1, 2, (int64_t)3, (int64_t)5) &&
                                            np_s_tensor(s, 0.1, 0.9, 0, 2, (int64_t)3, (int64_t)5);
    default: return false;
    }
}

/* softmax_backward(g, y, dim): y (g - sum g y), in one sweep. */
NP_OP(softmax_backward) = {
    NP_NAMED(softmax_backward), .args = "g:T y:T dim:dim -> dx:T", .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_along,       .sample = dim_pair_sample,
};

/* log_softmax_backward(g, y, dim): g - e^y sum g, in one sweep. */
NP_OP(log_softmax_backward) = {
    NP_NAMED(log_softmax_backward),
    .args = "g:T y:T dim:dim -> dx:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_along,
    .sample = dim_pair_sample,
};

/* dx = y (g - sum g y) */
static void softmax_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *y = b->saved[0];
    int64_t dim = wrapped(b, y);
    if (!b->create_graph) {
        b->dx[0] = np_softmax_backward(b, g, y, dim);
        return;
    }
    neap_tensor *gy = np_mul(b, g, y);
    neap_tensor *s = np_sum(b, np_hold(b, gy), &dim, 1, 1);
    b->dx[0] = np_sub(b, gy, np_mul(b, y, s));
}

/* softmax(x, dim): e^x / sum e^x along dim. */
NP_OP(softmax) = {
    NP_NAMED(softmax),    .args = "x:T dim:dim -> y:T", .tags = NP_CHEAP | NP_CAST_FLOAT32,
    .save = {NP_OUT(0)},  .infer = infer_along,         .grad = softmax_grad,
    .sample = dim_sample,
};

/* dx = g - e^y sum g */
static void log_softmax_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *y = b->saved[0];
    int64_t dim = wrapped(b, y);
    if (!b->create_graph) {
        b->dx[0] = np_log_softmax_backward(b, g, y, dim);
        return;
    }
    b->dx[0] = np_sub(b, g, np_mul(b, np_exp(b, y), np_sum(b, g, &dim, 1, 1)));
}

/* log_softmax(x, dim): x - log sum e^x along dim. */
NP_OP(log_softmax) = {
    NP_NAMED(log_softmax), .args = "x:T dim:dim -> y:T", .tags = NP_CHEAP | NP_CAST_FLOAT32,
    .save = {NP_OUT(0)},   .infer = infer_along,         .grad = log_softmax_grad,
    .sample = dim_sample,
};

static bool infer_logsumexp(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    const np_attr *dims = &f->attr[0];
    if (!np_infer_float(f)) return false;
    unsigned seen = 0;
    for (int i = 0; dims->has && i < dims->n; i++) {
        int d = np_wrap_dim(f->c, dims->v[i], x->ndim);
        if (d < 0) return false;
        if (seen >> d & 1) return np_fail(f->c, NEAP_E_DIMS, "dimension %d is named twice", d + f->c->base);
        seen |= 1u << d;
    }
    unsigned mask = reduced_dims(dims, x->ndim);
    int64_t shape[NEAP_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1)) shape[n++] = x->shape[d];
        else if (f->attr[1].i) shape[n++] = 1;
    }
    np_meta_set(f, 0, (neap_dtype)f->meta[0].dtype, n, shape);
    return true;
}

/* dx = g e^(x - y), where y = -inf counts as 0: then every x is -inf and so e^x is 0, not NaN. */
static void logsumexp_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *y = b->saved[1];
    int64_t shape[NEAP_MAX_DIMS];
    unsigned mask = reduced_dims(&b->attr[0], x->ndim);
    for (int d = 0; d < x->ndim; d++) shape[d] = mask >> d & 1 ? 1 : x->shape[d];
    neap_tensor *finite = np_masked_fill(b, y, np_eq(b, y, np_num(b, -INFINITY)), 0);
    neap_tensor *p = np_exp(b, np_sub(b, x, np_reshape(b, finite, shape, x->ndim)));
    b->dx[0] = np_mul(b, np_reshape(b, g, shape, x->ndim), p);
}

static bool logsumexp_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 1, .has = 1};
    s->attr[1] = (np_attr){.i = i == 1, .has = 1};
    s->lists[0][0] = -1;
    if (s->size != NP_SMALL)
        return s->label = "rows",
               i == 0 && np_s_tensor(s, -3, 3, 0, 2, np_s_size(s, 0, 512), np_s_size(s, 0, 1024));
    switch (i) {
    case 0: return s->label = "last", np_s_tensor(s, -3, 3, 0, 2, (int64_t)3, (int64_t)5);
    case 1: return s->label = "keepdim", np_s_tensor(s, -3, 3, 0, 2, (int64_t)3, (int64_t)5);
    case 2:
        s->lists[0][0] = 0, s->lists[0][1] = 2, s->attr[0].n = 2;
        return s->label = "two dims", np_s_tensor(s, -3, 3, 0, 3, (int64_t)3, (int64_t)2, (int64_t)4);
    case 3: s->attr[0].has = 0; return s->label = "all", np_s_tensor(s, -3, 3, 1, 2, (int64_t)3, (int64_t)5);
    case 4: s->attr[0].has = 0; return s->label = "0-dim", np_s_tensor(s, -3, 3, 0, 0);
    default: return false;
    }
}

/* logsumexp(x, dims): log sum e^x along dims, or over all elements. A row of -inf gives -inf with gradient 0. */
NP_OP(logsumexp) = {
    NP_NAMED(logsumexp),
    .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
    .tags = NP_REDUCE | NP_CAST_FLOAT32,
    .save = {NP_IN(0), NP_OUT(0)},
    .infer = infer_logsumexp,
    .grad = logsumexp_grad,
    .sample = logsumexp_sample,
};
#endif
