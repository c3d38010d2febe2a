/* norm.c - layer_norm and rms_norm over the trailing dimensions. One pass finds the statistics of a row (two
 * sweeps over cached data), one writes it; only x and a number or two per row are kept. The fast backward is one
 * sweep; under create_graph the same gradient is written in ordinary ops and differentiates again. Sums for
 * weights and biases go through partial rows whose number follows from the shape. */
#include "ops/cpu/rows.h"
#include "ops/sample.h"

typedef struct norm_job {
    const void *x /* (N,D) */, *g /* (N,D) */, *w /* (D) or NULL */, *b /* (D) or NULL */;
    void *y /* (N,D) */, *mean /* (N), NULL: rms */, *rstd /* (N) */;
    void *dw /* (parts,D) */, *db /* (parts,D) or NULL */;
    int64_t N, D, per_chunk;
    double eps;
} norm_job;

#define NORM_ROWS(T, S) \
    static void norm_forward_##S(void *arg, int64_t chunk) \
    { \
        const norm_job *j = arg; \
        const int64_t D = j->D, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        const T *w = j->w, *b = j->b; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            const T *x = (const T *)j->x + r * D; \
            T *y = (T *)j->y + r * D; \
            const T m = j->mean ? NP_LANE_SUM(T, i, D, x[i]) / (T)D : (T)0; \
            const T v = NP_LANE_SUM(T, i, D, (x[i] - m) * (x[i] - m)) / (T)D; \
            const T s = (T)1 / v_sqrt(v + (T)j->eps); \
            if (j->mean) ((T *)j->mean)[r] = m; \
            ((T *)j->rstd)[r] = s; \
            if (w && b) \
                for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * s * w[i] + b[i]; \
            else if (w) \
                for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * s * w[i]; \
            else if (b) \
                for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * s + b[i]; \
            else \
                for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * s; \
        } \
    } \
    /* dx = s (gw - mean(gw) - h mean(gw h)), h = (x - m) s, gw = g w; rms: without the mean */ \
    static void norm_backward_##S(void *arg, int64_t chunk) \
    { \
        const norm_job *j = arg; \
        const int64_t D = j->D, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        const T *w = j->w; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            const T *x = (const T *)j->x + r * D, *g = (const T *)j->g + r * D; \
            T *d = (T *)j->y + r * D; \
            const T m = j->mean ? ((const T *)j->mean)[r] : (T)0, s = ((const T *)j->rstd)[r]; \
            if (w) \
                for (int64_t i = 0; i < D; i++) d[i] = g[i] * w[i]; \
            else \
                for (int64_t i = 0; i < D; i++) d[i] = g[i]; \
            const T a = j->mean ? NP_LANE_SUM(T, i, D, d[i]) / (T)D : (T)0; \
            const T c = NP_LANE_SUM(T, i, D, d[i] * ((x[i] - m) * s)) / (T)D; \
            for (int64_t i = 0; i < D; i++) d[i] = s * (d[i] - a - (x[i] - m) * s * c); \
        } \
    } \
    /* one partial row of dw = sum g h and db = sum g */ \
    static void norm_params_##S(void *arg, int64_t chunk) \
    { \
        const norm_job *j = arg; \
        const int64_t D = j->D, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        T *dw = (T *)j->dw + chunk * D, *db = j->db ? (T *)j->db + chunk * D : NULL; \
        for (int64_t i = 0; i < D; i++) dw[i] = 0; \
        if (db) \
            for (int64_t i = 0; i < D; i++) db[i] = 0; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            const T *x = (const T *)j->x + r * D, *g = (const T *)j->g + r * D; \
            const T m = j->mean ? ((const T *)j->mean)[r] : (T)0, s = ((const T *)j->rstd)[r]; \
            for (int64_t i = 0; i < D; i++) dw[i] += g[i] * ((x[i] - m) * s); \
            if (db) \
                for (int64_t i = 0; i < D; i++) db[i] += g[i]; \
        } \
    } \
    static void norm_fold_##S(const norm_job *j, int64_t parts, void *out, const void *partial) \
    { \
        T *o = out; \
        for (int64_t i = 0; i < j->D; i++) o[i] = 0; \
        for (int64_t p = 0; p < parts; p++) \
            for (int64_t i = 0; i < j->D; i++) o[i] += ((const T *)partial)[p * j->D + i]; \
    }
NORM_ROWS(float, f32)
NORM_ROWS(double, f64)

/* D: the product of the last n sizes. */
static inline int64_t norm_size(const neap_tensor *x, int64_t n)
{
    int64_t D = 1;
    for (int d = x->ndim - (int)n; d < x->ndim; d++) D *= x->shape[d];
    return D;
}

static inline int64_t rows_per_chunk(int64_t D) { return D > 0 && D < NP_ROW_GRAIN ? NP_ROW_GRAIN / D : 1; }

/* y, mean (layer norm) and rstd of the rows of x. Results: y, then the statistics. */
static inline bool norm_forward(np_frame *f, neap_tensor *weight, neap_tensor *bias, bool centred)
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    neap_tensor *x = np_as_contiguous(c, f->in[0], w);
    neap_tensor *wt = x && weight ? np_as_contiguous(c, weight, w) : NULL;
    neap_tensor *bt = x && bias ? np_as_contiguous(c, bias, w) : NULL;
    int last = f->out[0]->ndim - 1;
    neap_tensor *y = x && (wt || !weight) && (bt || !bias) ? np_rows_out(f, 0, last, w) : NULL;
    bool ok = y != NULL;
    if (ok && x->numel) {
        norm_job j = {.x = np_ptr(x),
                      .w = wt ? np_ptr(wt) : NULL,
                      .b = bt ? np_ptr(bt) : NULL,
                      .y = np_ptr(y),
                      .mean = centred ? np_ptr(f->out[1]) : NULL,
                      .rstd = np_ptr(f->out[centred ? 2 : 1]),
                      .D = norm_size(x, f->attr[0].i),
                      .eps = f->attr[1].f};
        j.N = x->numel / j.D;
        j.per_chunk = rows_per_chunk(j.D);
        ok = np_parallel(c, (j.N + j.per_chunk - 1) / j.per_chunk,
                         w == NEAP_FLOAT64 ? norm_forward_f64 : norm_forward_f32, &j);
    }
    np_drop(x);
    np_drop(wt);
    np_drop(bt);
    return np_rows_done(f, 0, last, y, ok);
}

/* dx from g, x, weight and the statistics. */
static inline bool norm_backward(np_frame *f, neap_tensor *weight, neap_tensor *mean, neap_tensor *rstd)
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    neap_tensor *g = np_as_contiguous(c, f->in[0], w), *x = g ? np_as_contiguous(c, f->in[1], w) : NULL;
    neap_tensor *wt = x && weight ? np_as_contiguous(c, weight, w) : NULL;
    neap_tensor *m = x && mean ? np_as_contiguous(c, mean, w) : NULL,
                *r = x ? np_as_contiguous(c, rstd, w) : NULL;
    int last = f->out[0]->ndim - 1;
    neap_tensor *d = r && (m || !mean) && (wt || !weight) ? np_rows_out(f, 0, last, w) : NULL;
    bool ok = d != NULL;
    if (ok && x->numel) {
        norm_job j = {.x = np_ptr(x),
                      .g = np_ptr(g),
                      .w = wt ? np_ptr(wt) : NULL,
                      .y = np_ptr(d),
                      .mean = m ? np_ptr(m) : NULL,
                      .rstd = np_ptr(r),
                      .D = norm_size(x, f->attr[0].i)};
        j.N = x->numel / j.D;
        j.per_chunk = rows_per_chunk(j.D);
        ok = np_parallel(c, (j.N + j.per_chunk - 1) / j.per_chunk,
                         w == NEAP_FLOAT64 ? norm_backward_f64 : norm_backward_f32, &j);
    }
    np_drop(g);
    np_drop(x);
    np_drop(wt);
    np_drop(m);
    np_drop(r);
    return np_rows_done(f, 0, last, d, ok);
}

/* dw and, with_bias, db. The statistics follow x. At most 16 partial rows, by shape. */
static inline bool norm_params(np_frame *f, neap_tensor *mean, neap_tensor *rstd, bool with_bias)
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    int64_t D = norm_size(f->in[1], f->attr[0].i), N = D ? f->in[1]->numel / D : 0;
    int64_t per = rows_per_chunk(D);
    if (per * 16 < N) per = (N + 15) / 16;
    int64_t parts = (N + per - 1) / per, shape[2] = {(with_bias ? 2 : 1) * parts, D};
    neap_tensor *g = np_as_contiguous(c, f->in[0], w), *x = g ? np_as_contiguous(c, f->in[1], w) : NULL;
    neap_tensor *m = x && mean ? np_as_contiguous(c, mean, w) : NULL,
                *r = x ? np_as_contiguous(c, rstd, w) : NULL;
    neap_tensor *partial = r && (m || !mean) ? np_tensor_new(c, f->dev, w, 2, shape) : NULL;
    int lw = f->out[0]->ndim - 1;
    neap_tensor *dw = partial ? np_rows_out(f, 0, lw, w) : NULL,
                *db = dw && with_bias ? np_rows_out(f, 1, lw, w) : NULL;
    bool ok = dw && (db || !with_bias), f64 = w == NEAP_FLOAT64;
    if (ok) {
        char *pb = np_ptr(partial) + (size_t)(parts * D) * np_dtype_size(w);
        norm_job j = {.x = np_ptr(x),
                      .g = np_ptr(g),
                      .mean = m ? np_ptr(m) : NULL,
                      .rstd = np_ptr(r),
                      .dw = np_ptr(partial),
                      .db = with_bias ? pb : NULL,
                      .N = N,
                      .D = D,
                      .per_chunk = per};
        ok = np_parallel(c, parts, f64 ? norm_params_f64 : norm_params_f32, &j);
        void (*fold)(const norm_job *, int64_t, void *, const void *) = f64 ? norm_fold_f64 : norm_fold_f32;
        if (ok) fold(&j, parts, np_ptr(dw), np_ptr(partial));
        if (ok && db) fold(&j, parts, np_ptr(db), pb);
    }
    np_drop(g);
    np_drop(x);
    np_drop(m);
    np_drop(r);
    np_drop(partial);
    if (with_bias) ok = np_rows_done(f, 1, lw, db, ok);
    return np_rows_done(f, 0, lw, dw, ok);
}

NP_CPU(layer_norm)(np_frame *f) { return norm_forward(f, f->in[1], f->in[2], true); }
NP_CPU(layer_norm_backward)(np_frame *f) { return norm_backward(f, f->in[2], f->in[3], f->in[4]); }
NP_CPU(layer_norm_params)(np_frame *f) { return norm_params(f, f->in[2], f->in[3], true); }
NP_CPU(rms_norm)(np_frame *f) { return norm_forward(f, f->in[1], NULL, false); }
NP_CPU(rms_norm_backward)(np_frame *f) { return norm_backward(f, f->in[2], NULL, f->in[3]); }
NP_CPU(rms_norm_params)(np_frame *f) { return norm_params(f, NULL, f->in[2], false); }

#ifdef NP_BASE_ONLY

static bool check_norm(np_frame *f, const neap_tensor *x)
{
    int64_t n = f->attr[0].i;
    f->compute = (neap_dtype)x->dtype;
    if (!np_is_float(f->compute))
        return np_fail(f->c, NEAP_E_DTYPE, "needs a float tensor, but x is %s; convert with :to(\"float32\")",
                       np_dtype_name(f->compute));
    if (n < 1 || n > x->ndim)
        return np_fail(f->c, NEAP_E_DIMS, "cannot normalise the last %lld of %d dimensions; dims is 1..%d",
                       (long long)n, x->ndim, x->ndim);
    return true;
}

/* A weight or bias has the shape of the last n dimensions and the dtype of x. */
static bool check_param(np_frame *f, const neap_tensor *x, const neap_tensor *p, const char *name)
{
    int n = (int)f->attr[0].i;
    if (!p) return true;
    char want[100], got[100];
    bool fits = p->ndim == n && p->dtype == x->dtype;
    for (int d = 0; fits && d < n; d++) fits = p->shape[d] == x->shape[x->ndim - n + d];
    return fits ||
           np_fail(f->c, p->dtype != x->dtype ? NEAP_E_DTYPE : NEAP_E_SHAPE,
                   "the %s must be %s %s like the normalised dimensions of x, but is %s %s", name,
                   np_shape_text(want, sizeof want, n, x->shape + x->ndim - n),
                   np_dtype_name((neap_dtype)x->dtype), np_shape_text(got, sizeof got, p->ndim, p->shape),
                   np_dtype_name((neap_dtype)p->dtype));
}

/* Result 0 like x, then `stats` results of one number a row. */
static bool infer_norm(np_frame *f, int stats)
{
    const neap_tensor *x = f->in[0];
    if (!np_same_device(f) || !check_norm(f, x) || !check_param(f, x, f->in[1], "weight")) return false;
    if (f->n_in > 2 && !check_param(f, x, f->in[2], "bias")) return false;
    if (!(f->attr[1].f >= 0) || isinf(f->attr[1].f))
        return np_fail(f->c, NEAP_E_ARG, "eps is %g; it must be finite and not negative", f->attr[1].f);
    np_meta_like(f, 0, x);
    for (int j = 1; j <= stats; j++)
        np_meta_set(f, j, np_wide(f->compute), x->ndim - (int)f->attr[0].i, x->shape);
    return true;
}
static bool infer_layer_norm(np_frame *f) { return infer_norm(f, 2); }
static bool infer_rms_norm(np_frame *f) { return infer_norm(f, 1); }

static bool infer_norm_backward(np_frame *f)
{
    if (!np_same_device(f) || !check_norm(f, f->in[1])) return false;
    np_meta_like(f, 0, f->in[1]);
    return true;
}

static bool infer_norm_params(np_frame *f)
{
    const neap_tensor *x = f->in[1];
    int n = (int)f->attr[0].i;
    if (!np_same_device(f) || !check_norm(f, x)) return false;
    for (int j = 0; j < f->n_out; j++) np_meta_set(f, j, f->compute, n, x->shape + x->ndim - n);
    return true;
}

/* The last n dimensions, as a list. */
static int last_dims(int64_t *dims, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dims[i] = i - n;
    return (int)n;
}

/* Statistics in ordinary ops: xc = x - mean (layer norm) and rstd = (mean xc^2 + eps)^-1/2, sizes kept. */
static neap_tensor *centre(np_back *b, neap_tensor *x, const int64_t *dims, int n)
{
    return np_sub(b, x, np_mean(b, x, dims, n, 1));
}
static neap_tensor *rstd_of(np_back *b, neap_tensor *xc, const int64_t *dims, int n, double eps)
{
    neap_tensor *v = np_mean(b, np_square(b, xc), dims, n, 1);
    return np_rsqrt(b, np_add(b, v, np_num(b, eps)));
}

/* The gradient in ops, for create_graph. */
static void norm_grad_ops(np_back *b, bool centred)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *w = b->saved[1];
    int64_t dims[NEAP_MAX_DIMS];
    int n = last_dims(dims, b->attr[0].i);
    double eps = b->attr[1].f;
    neap_tensor *xc = centred ? centre(b, x, dims, n) : x;
    if (centred) np_hold(b, xc);
    neap_tensor *s = rstd_of(b, xc, dims, n, eps);
    neap_tensor *h = np_mul(b, xc, np_hold(b, s));
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul(b, g, np_hold(b, h)), 1);
    if (!b->need[0]) return;
    neap_tensor *gw = w ? np_mul(b, g, w) : g;
    neap_tensor *c = np_mean(b, np_mul(b, np_hold(b, gw), np_hold(b, h)), dims, n, 1);
    neap_tensor *a = centred ? np_mean(b, np_hold(b, gw), dims, n, 1) : NULL;
    neap_tensor *d = centred ? np_sub(b, gw, a) : gw;
    b->dx[0] = np_mul(b, s, np_sub(b, d, np_mul(b, h, c)));
}

static void layer_norm_grad(np_back *b)
{
    neap_tensor *g = b->g[0];
    int64_t n = b->attr[0].i;
    if (b->need[2] && (b->create_graph || !b->need[1])) b->dx[2] = np_unbroadcast(b, g, 2);
    if (b->create_graph) {
        norm_grad_ops(b, true);
        return;
    }
    if (b->need[0])
        b->dx[0] = np_layer_norm_backward(b, g, b->saved[0], b->saved[1], b->saved[2], b->saved[3], n);
    if (!b->need[1]) return;
    neap_tensor *d[2];
    b->dx[1] = np_layer_norm_params(b, g, b->saved[0], b->saved[2], b->saved[3], n, d);
    if (b->need[2]) b->dx[2] = d[1];
}

static void rms_norm_grad(np_back *b)
{
    neap_tensor *g = b->g[0];
    int64_t n = b->attr[0].i;
    if (b->create_graph) {
        norm_grad_ops(b, false);
        return;
    }
    if (b->need[0]) b->dx[0] = np_rms_norm_backward(b, g, b->saved[0], b->saved[1], b->saved[2], n);
    if (b->need[1]) b->dx[1] = np_rms_norm_params(b, g, b->saved[0], b->saved[2], n);
}

/* One step of a reference composition: the result, with the operands it consumed dropped. */
static neap_tensor *step(neap_tensor *r, neap_tensor *used, neap_tensor *used2)
{
    np_drop(used);
    np_drop(used2);
    return r;
}

static bool ref_norm(np_frame *f, bool centred)
{
    neap_ctx *c = f->c;
    neap_tensor *x = neap_to(c, f->in[0], np_wide(f->compute), -1), *eps = neap_number(c, f->attr[1].f),
                *m = NULL, *h = x;
    int64_t dims[NEAP_MAX_DIMS];
    int n = last_dims(dims, f->attr[0].i), stats = x ? x->ndim - n : 0;
    if (centred) {
        m = neap_mean(c, x, dims, n, 1);
        h = step(neap_sub(c, x, m), x, NULL);
    }
    neap_tensor *sq = neap_square(c, h), *v = step(neap_mean(c, sq, dims, n, 1), sq, NULL);
    v = step(neap_add(c, v, eps), v, eps);
    neap_tensor *s = step(neap_rsqrt(c, v), v, NULL), *y = step(neap_mul(c, h, s), h, NULL);
    if (f->in[1]) y = step(neap_mul(c, y, f->in[1]), y, NULL);
    if (f->n_in > 2 && f->in[2]) y = step(neap_add(c, y, f->in[2]), y, NULL);
    f->out[0] = step(neap_to(c, y, (int)f->compute, -1), y, NULL);
    if (centred) f->out[1] = step(neap_reshape(c, m, f->in[0]->shape, stats), m, NULL);
    f->out[centred ? 2 : 1] = step(neap_reshape(c, s, f->in[0]->shape, stats), s, NULL);
    return !np_pending(c);
}
static bool ref_layer_norm(np_frame *f) { return ref_norm(f, true); }
static bool ref_rms_norm(np_frame *f) { return ref_norm(f, false); }

static bool norm_sample(np_sampler *s, int i, bool bias)
{
    static const char *const labels[] = {"affine", "plain", "transposed", "two dims", "wide"};
    const int64_t a = np_s_size(s, 3, 512), d = np_s_size(s, i == 4 ? 37 : 5, 768);
    if (i > 4 || (s->size != NP_SMALL && i > 0)) return false;
    s->label = labels[i];
    s->attr[0] = (np_attr){.i = i == 3 ? 2 : 1, .has = 1};
    s->attr[1] = (np_attr){.f = 1e-5, .has = 1};
    if (i == 3 ? !np_s_tensor(s, -2, 2, 0, 3, a, (int64_t)2, d) : !np_s_tensor(s, -2, 2, i == 2, 2, a, d))
        return false;
    for (int k = 0; k < 1 + bias; k++) {
        if (i == 1) s->in[s->n_in++] = NULL;
        else if (i == 3 ? !np_s_tensor(s, 0.5, 2, 0, 2, (int64_t)2, d) : !np_s_tensor(s, 0.5, 2, 0, 1, d))
            return false;
    }
    return true;
}
static bool layer_norm_sample(np_sampler *s, int i) { return norm_sample(s, i, true); }
static bool rms_norm_sample(np_sampler *s, int i) { return norm_sample(s, i, false); }

/* g, x, [weight,] statistics of 3 rows of 5. */
static bool backward_sample(np_sampler *s, int i, bool weight, int stats)
{
    if (i > 0) return false;
    s->label = "rows";
    s->attr[0] = (np_attr){.i = 1, .has = 1};
    neap_dtype t = s->dtype;
    bool ok = np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)5) &&
              np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)5) &&
              (!weight || np_s_tensor(s, 0.5, 2, 0, 1, (int64_t)5));
    s->dtype = np_wide(t);
    for (int k = 0; ok && k < stats; k++) ok = np_s_tensor(s, 0.5, 2, 0, 1, (int64_t)3);
    s->dtype = t;
    return ok;
}
static bool layer_backward_sample(np_sampler *s, int i) { return backward_sample(s, i, true, 2); }
static bool layer_params_sample(np_sampler *s, int i) { return backward_sample(s, i, false, 2); }
static bool rms_backward_sample(np_sampler *s, int i) { return backward_sample(s, i, true, 1); }
static bool rms_params_sample(np_sampler *s, int i) { return backward_sample(s, i, false, 1); }

/* layer_norm_backward(g, x, w, mean, rstd, dims): the gradient of layer_norm for x, in one sweep. */
NP_OP(layer_norm_backward) = {
    NP_NAMED(layer_norm_backward),
    .args = "g:T x:T w:T? mean:T rstd:T dims:int -> dx:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_norm_backward,
    .sample = layer_backward_sample,
};

/* layer_norm_params(g, x, mean, rstd, dims): the gradients of layer_norm for weight and bias. */
NP_OP(layer_norm_params) = {
    NP_NAMED(layer_norm_params),
    .args = "g:T x:T mean:T rstd:T dims:int -> dw:T db:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_norm_params,
    .sample = layer_params_sample,
};

/* layer_norm(x, w, b): (x - mean) / sqrt(variance + eps) * w + b over the last `dims` dimensions (1), with the
 * biased variance. w and b have the shape of these dimensions, or are absent. */
NP_OP(layer_norm) = {
    NP_NAMED(layer_norm),
    .args = "x:T w:T? b:T? ; dims:int=1 eps:float=1e-5 -> y:T | mean:T rstd:T",
    .tags = NP_FUSED | NP_CHEAP | NP_CAST_FLOAT32,
    .save = {{NP_SAVE_IN, 0, 3}, NP_IN_FOR(1, 0), {NP_SAVE_OUT, 1, 3}, {NP_SAVE_OUT, 2, 3}},
    .infer = infer_layer_norm,
    .grad = layer_norm_grad,
    .ref = ref_layer_norm,
    .sample = layer_norm_sample,
};

/* rms_norm_backward(g, x, w, rstd, dims): the gradient of rms_norm for x, in one sweep. */
NP_OP(rms_norm_backward) = {
    NP_NAMED(rms_norm_backward),
    .args = "g:T x:T w:T? rstd:T dims:int -> dx:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_norm_backward,
    .sample = rms_backward_sample,
};

/* rms_norm_params(g, x, rstd, dims): the gradient of rms_norm for its weight. */
NP_OP(rms_norm_params) = {
    NP_NAMED(rms_norm_params),
    .args = "g:T x:T rstd:T dims:int -> dw:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_norm_params,
    .sample = rms_params_sample,
};

/* rms_norm(x, w): x / sqrt(mean x^2 + eps) * w over the last `dims` dimensions (1). */
NP_OP(rms_norm) = {
    NP_NAMED(rms_norm),
    .args = "x:T w:T? ; dims:int=1 eps:float=1e-6 -> y:T | rstd:T",
    .tags = NP_FUSED | NP_CHEAP | NP_CAST_FLOAT32,
    .save = {{NP_SAVE_IN, 0, 3}, NP_IN_FOR(1, 0), {NP_SAVE_OUT, 1, 3}},
    .infer = infer_rms_norm,
    .grad = rms_norm_grad,
    .ref = ref_rms_norm,
    .sample = rms_norm_sample,
};
#endif
