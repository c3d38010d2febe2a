/* loss.c - cross_entropy and nll_loss: losses that pick one class a row.
 *
 * Labels count from `base` and lie strictly in base .. base+C-1; all are checked before anything is computed.
 * ignore_index is compared first, as the caller wrote it. Reductions: 0 none, 1 mean over the rows that count,
 * 2 sum; a mean over no row is 0 with gradient 0. cross_entropy keeps one number a row (the log-sum-exp) besides
 * its inputs, and its backward is one sweep. */
#include "ops/cpu/rows.h"
#include "ops/sample.h"

typedef struct loss_job {
    const void *x /* (N,C) */, *g /* (1) or (N) */;
    void *y /* (N,C) or (N) */, *lse /* (N) */;
    const int64_t *target /* (N) */;
    int64_t N, C, per_chunk, base, ignore;
    bool ignores, per_row;
    double scale;
} loss_job;

static inline bool counts(const loss_job *j, int64_t row)
{
    return !j->ignores || j->target[row] != j->ignore;
}

#define LOSS_ROWS(T, S) \
    static void ce_forward_##S(void *arg, int64_t chunk) \
    { \
        const loss_job *j = arg; \
        const int64_t C = j->C, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            const T *x = (const T *)j->x + r * C; \
            const T m = np_row_max_##S(x, C); \
            const T l = isinf(m) ? m : m + v_log(NP_LANE_SUM(T, i, C, v_exp(x[i] - m))); \
            ((T *)j->lse)[r] = l; \
            ((T *)j->y)[r] = counts(j, r) ? l - x[j->target[r] - j->base] : (T)0; \
        } \
    } \
    /* dx = (e^(x - lse) - onehot) g */ \
    static void ce_backward_##S(void *arg, int64_t chunk) \
    { \
        const loss_job *j = arg; \
        const int64_t C = j->C, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            const T *x = (const T *)j->x + r * C; \
            T *d = (T *)j->y + r * C; \
            const T l = ((const T *)j->lse)[r]; \
            const T s = counts(j, r) ? ((const T *)j->g)[j->per_row ? r : 0] * (T)j->scale : (T)0; \
            if (s == 0) { \
                for (int64_t i = 0; i < C; i++) d[i] = 0; \
                continue; \
            } \
            for (int64_t i = 0; i < C; i++) d[i] = v_exp(x[i] - l) * s; \
            d[j->target[r] - j->base] -= s; \
        } \
    } \
    static void nll_forward_##S(void *arg, int64_t chunk) \
    { \
        const loss_job *j = arg; \
        const int64_t end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) \
            ((T *)j->y)[r] = counts(j, r) ? -((const T *)j->x)[r * j->C + j->target[r] - j->base] : (T)0; \
    } \
    static void nll_backward_##S(void *arg, int64_t chunk) \
    { \
        const loss_job *j = arg; \
        const int64_t C = j->C, end = (chunk + 1) * j->per_chunk < j->N ? (chunk + 1) * j->per_chunk : j->N; \
        for (int64_t r = chunk * j->per_chunk; r < end; r++) { \
            T *d = (T *)j->y + r * C; \
            for (int64_t i = 0; i < C; i++) d[i] = 0; \
            if (counts(j, r)) \
                d[j->target[r] - j->base] = -(((const T *)j->g)[j->per_row ? r : 0] * (T)j->scale); \
        } \
    } \
    /* in row order, in double */ \
    static double loss_total_##S(const loss_job *j) \
    { \
        double s = 0; \
        for (int64_t r = 0; r < j->N; r++) s += (double)((const T *)j->y)[r]; \
        return s; \
    }
LOSS_ROWS(float, f32)
LOSS_ROWS(double, f64)

/* Attributes stand last in every entry here: ignore_index, reduction, base. */
static inline void loss_attrs(const np_attr *a, loss_job *j, int *reduction)
{
    j->ignores = a[0].has;
    j->ignore = a[0].i;
    *reduction = (int)a[1].i;
    j->base = a[2].i;
}

/* All labels, before any work. Also counts the rows that take part. */
static inline bool check_labels(np_frame *f, const loss_job *j, const neap_tensor *target, int64_t *n_counted)
{
    *n_counted = 0;
    for (int64_t r = 0; r < j->N; r++) {
        int64_t t = j->target[r];
        if (!counts(j, r)) continue;
        ++*n_counted;
        if (t >= j->base && t - j->base < j->C) continue;
        char at[120];
        return np_fail(f->c, NEAP_E_LABEL, "target%s is %lld, but with %lld classes labels are %lld..%lld%s",
                       np_position_text(at, sizeof at, target, r, f->c->base), (long long)t, (long long)j->C,
                       (long long)j->base, (long long)(j->base + j->C - 1),
                       j->base == 0 ? "; for labels that count from 1 pass {base = 1}"
                                    : "; for labels that count from 0 pass {base = 0}");
    }
    return true;
}

static inline int class_dim(const neap_tensor *x) { return x->ndim == 1 ? 0 : 1; }

static inline bool each_loss_row(neap_ctx *c, loss_job *j, np_chunk_fn fn)
{
    j->per_chunk = j->C > 0 && j->C < NP_ROW_GRAIN ? NP_ROW_GRAIN / j->C : 1;
    return np_parallel(c, (j->N + j->per_chunk - 1) / j->per_chunk, fn, j);
}

/* out[0] from the losses of the rows, which are in `rows` (dtype w). */
static inline bool reduce_loss(np_frame *f, const loss_job *j, neap_tensor *rows, int reduction,
                               int64_t n_counted)
{
    if (reduction == 0) return np_copy_into(f->c, f->out[0], rows);
    double s = rows->dtype == NEAP_FLOAT64 ? loss_total_f64(j) : loss_total_f32(j);
    if (reduction == 1) s = n_counted ? s / (double)n_counted : 0;
    np_store_double((neap_dtype)f->out[0]->dtype, np_ptr(f->out[0]), s);
    return true;
}

/* cross_entropy (with lse) and nll_loss (without). */
static inline bool loss_forward(np_frame *f, neap_tensor *lse, np_chunk_fn fn)
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    neap_tensor *x = f->in[0], *target = f->in[1];
    loss_job j = {.N = target->numel, .C = x->shape[class_dim(x)]};
    int reduction;
    int64_t counted = 0;
    loss_attrs(f->attr, &j, &reduction);
    neap_tensor *ids = np_as_contiguous(c, target, NEAP_INT64), *rows = NULL, *out = NULL;
    bool ok = ids != NULL;
    if (ok) j.target = NP_DATA(int64_t, ids);
    ok = ok && check_labels(f, &j, target, &counted) && (rows = np_rows_in(c, x, class_dim(x), w)) &&
         (out = np_tensor_new(c, f->dev, w, target->ndim, target->shape));
    if (ok) {
        j.x = np_ptr(rows);
        j.y = np_ptr(out);
        j.lse = lse ? np_ptr(lse) : NULL;
        ok = each_loss_row(c, &j, fn) && reduce_loss(f, &j, out, reduction, counted);
    }
    np_drop(ids);
    np_drop(rows);
    np_drop(out);
    return ok;
}

NP_CPU(cross_entropy)(np_frame *f)
{
    return loss_forward(f, f->out[1], np_wide(f->compute) == NEAP_FLOAT64 ? ce_forward_f64 : ce_forward_f32);
}
NP_CPU(nll_loss)(np_frame *f)
{
    return loss_forward(f, NULL, np_wide(f->compute) == NEAP_FLOAT64 ? nll_forward_f64 : nll_forward_f32);
}

/* dx (like out[0]) from g, the target, and for cross_entropy x and lse. */
static inline bool loss_backward(np_frame *f, neap_tensor *xt, neap_tensor *target, neap_tensor *lse,
                                 const np_attr *attrs, np_chunk_fn fn)
{
    neap_ctx *c = f->c;
    neap_dtype w = np_wide(f->compute);
    int dim = class_dim(f->out[0]), reduction;
    loss_job j = {.N = target->numel, .C = f->out[0]->shape[dim]};
    int64_t counted = 0;
    loss_attrs(attrs, &j, &reduction);
    neap_tensor *ids = np_as_contiguous(c, target, NEAP_INT64),
                *g = ids ? np_as_contiguous(c, f->in[0], w) : NULL;
    neap_tensor *x = g && xt ? np_rows_in(c, xt, dim, w) : NULL, *d = NULL;
    neap_tensor *sums = x && lse ? np_as_contiguous(c, lse, w) : NULL;
    bool ok = g && (x || !xt) && (sums || !lse);
    if (ok) j.target = NP_DATA(int64_t, ids);
    ok = ok && check_labels(f, &j, target, &counted) && (d = np_rows_out(f, 0, dim, w));
    if (ok) {
        j.x = x ? np_ptr(x) : NULL;
        j.lse = sums ? np_ptr(sums) : NULL;
        j.g = np_ptr(g);
        j.y = np_ptr(d);
        j.per_row = reduction == 0;
        j.scale = reduction != 1 ? 1 : counted ? 1 / (double)counted : 0;
        ok = each_loss_row(c, &j, fn);
    }
    np_drop(ids);
    np_drop(g);
    np_drop(x);
    np_drop(sums);
    return np_rows_done(f, 0, dim, d, ok);
}

NP_CPU(cross_entropy_backward)(np_frame *f)
{
    return loss_backward(f, f->in[1], f->in[2], f->in[3], f->attr,
                         np_wide(f->compute) == NEAP_FLOAT64 ? ce_backward_f64 : ce_backward_f32);
}
NP_CPU(nll_loss_backward)(np_frame *f)
{
    return loss_backward(f, NULL, f->in[1], NULL, f->attr + 1,
                         np_wide(f->compute) == NEAP_FLOAT64 ? nll_backward_f64 : nll_backward_f32);
}

#ifdef NP_BASE_ONLY

/* x (C), (N,C) or (N,C,...) of a float dtype; target without the class dimension, of an integer dtype. */
static bool check_loss(np_frame *f, int x_ndim, const int64_t *x_shape, neap_dtype t,
                       const neap_tensor *target, int64_t reduction)
{
    char a[100], b[100], want[100];
    int64_t shape[NEAP_MAX_DIMS];
    int n = 0;
    if (!np_is_float(t))
        return np_fail(f->c, NEAP_E_DTYPE,
                       "needs float scores, but they are %s; convert with :to(\"float32\")",
                       np_dtype_name(t));
    if (x_ndim < 1) return np_fail(f->c, NEAP_E_DIMS, "needs scores (N, C), but they have no dimension");
    if (!np_is_int((neap_dtype)target->dtype))
        return np_fail(
            f->c, NEAP_E_DTYPE,
            "targets are class labels of an integer dtype, but these are %s; convert with :to(\"int64\")",
            np_dtype_name((neap_dtype)target->dtype));
    for (int d = 0; d < x_ndim; d++)
        if (d != (x_ndim == 1 ? 0 : 1)) shape[n++] = x_shape[d];
    bool fits = target->ndim == n;
    for (int d = 0; fits && d < n; d++) fits = shape[d] == target->shape[d];
    if (!fits)
        return np_fail(f->c, NEAP_E_SHAPE, "for scores %s the targets must be %s, but are %s",
                       np_shape_text(a, sizeof a, x_ndim, x_shape),
                       np_shape_text(want, sizeof want, n, shape),
                       np_shape_text(b, sizeof b, target->ndim, target->shape));
    if (reduction < 0 || reduction > 2)
        return np_fail(f->c, NEAP_E_ARG, "reduction is %lld; it is 0 (none), 1 (mean) or 2 (sum)",
                       (long long)reduction);
    f->compute = t;
    return true;
}

static bool infer_loss(np_frame *f)
{
    const neap_tensor *x = f->in[0], *target = f->in[1];
    if (!np_same_device(f) || !check_loss(f, x->ndim, x->shape, (neap_dtype)x->dtype, target, f->attr[1].i))
        return false;
    np_meta_set(f, 0, f->compute, f->attr[1].i ? 0 : target->ndim, target->shape);
    if (f->n_out > 1) np_meta_set(f, 1, np_wide(f->compute), target->ndim, target->shape);
    return true;
}

static bool infer_ce_backward(np_frame *f)
{
    const neap_tensor *x = f->in[1];
    if (!np_same_device(f) || !check_loss(f, x->ndim, x->shape, (neap_dtype)x->dtype, f->in[2], f->attr[1].i))
        return false;
    np_meta_like(f, 0, x);
    return true;
}

static bool infer_nll_backward(np_frame *f)
{
    const np_attr *s = &f->attr[0];
    neap_dtype t = (neap_dtype)f->in[0]->dtype;
    if (!np_same_device(f) || !check_loss(f, s->n, s->v, t, f->in[1], f->attr[2].i)) return false;
    np_meta_set(f, 0, t, s->n, s->v);
    return true;
}

static const int64_t *ignored(const np_attr *a) { return a->has ? &a->i : NULL; }

/* Linear in g, and nll_loss is its transpose. */
static void nll_backward_grad(np_back *b)
{
    const np_attr *a = b->attr + 1;
    b->dx[0] = np_nll_loss(b, b->g[0], b->saved[0], ignored(a), a[1].i, a[2].i);
}

static void nll_grad(np_back *b)
{
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    int n;
    if (!np_input_shape(b, 0, &n, shape, &t)) return;
    b->dx[0] =
        np_nll_loss_backward(b, b->g[0], b->saved[0], shape, n, ignored(b->attr), b->attr[1].i, b->attr[2].i);
}

/* dx = (softmax(x) - onehot) g; for create_graph as the chain nll_loss after log_softmax. */
static void cross_entropy_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *target = b->saved[1];
    const np_attr *a = b->attr;
    if (!b->create_graph) {
        b->dx[0] = np_cross_entropy_backward(b, g, x, target, b->saved[2], ignored(a), a[1].i, a[2].i);
        return;
    }
    int64_t dim = x->ndim == 1 ? 0 : 1;
    neap_tensor *p = np_exp(b, np_log_softmax(b, x, dim));
    neap_tensor *d = np_nll_loss_backward(b, g, target, x->shape, x->ndim, ignored(a), a[1].i, a[2].i);
    neap_tensor *s = np_sum(b, np_hold(b, d), &dim, 1, 1);
    b->dx[0] = np_sub(b, d, np_mul(b, p, s));
}

/* Attributes of the i-th case, from attr[k] on: ignore_index, reduction, base. */
static bool loss_case(np_sampler *s, int i, int k)
{
    static const char *const labels[] = {"mean", "none", "sum, ignored", "from 1", "3-d", "one row"};
    if (i >= (int)(sizeof labels / sizeof *labels)) return false;
    s->label = labels[i];
    s->attr[k] = (np_attr){.i = 1, .has = i == 2};
    s->attr[k + 1] = (np_attr){.i = i == 1 ? 0 : i == 2 ? 2 : 1, .has = 1};
    s->attr[k + 2] = (np_attr){.i = i == 3, .has = 1};
    return true;
}

static bool scores_sample(np_sampler *s, int i)
{
    const int64_t n = np_s_size(s, 4, 512), classes = np_s_size(s, 5, 1000);
    return i == 4   ? np_s_tensor(s, -2, 2, 0, 3, n, classes, (int64_t)3)
           : i == 5 ? np_s_tensor(s, -2, 2, 0, 1, classes)
                    : np_s_tensor(s, -2, 2, i == 1, 2, n, classes);
}
static bool labels_sample(np_sampler *s, int i)
{
    const int64_t n = np_s_size(s, 4, 512), classes = np_s_size(s, 5, 1000), base = i == 3;
    return i == 4   ? np_s_ids(s, base, classes - 1 + base, 2, n, (int64_t)3)
           : i == 5 ? np_s_ids(s, base, classes - 1 + base, 0)
                    : np_s_ids(s, base, classes - 1 + base, 1, n);
}

static bool loss_sample(np_sampler *s, int i)
{
    return (s->size == NP_SMALL || i == 0) && loss_case(s, i, 0) && scores_sample(s, i) &&
           labels_sample(s, i);
}

static bool ce_backward_sample(np_sampler *s, int i)
{
    if (i > 0 || !loss_case(s, i, 0) || !np_s_tensor(s, 0.5, 1, 0, 0) || !scores_sample(s, i) ||
        !labels_sample(s, i))
        return false;
    neap_dtype t = s->dtype;
    s->dtype = np_wide(t);
    bool ok = np_s_tensor(s, 1, 2, 0, 1, np_s_size(s, 4, 512));
    s->dtype = t;
    return ok;
}

static bool nll_backward_sample(np_sampler *s, int i)
{
    if (i > 0 || !loss_case(s, i, 1) || !np_s_tensor(s, 0.5, 1, 0, 0) || !labels_sample(s, i)) return false;
    s->lists[0][0] = np_s_size(s, 4, 512);
    s->lists[0][1] = np_s_size(s, 5, 1000);
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 2, .has = 1};
    return true;
}

/* nll_loss_backward(g, target, shape): the gradient of nll_loss for its scores of this shape. */
NP_OP(nll_loss_backward) = {
    NP_NAMED(nll_loss_backward),
    .args = "g:T target:T shape:shape ; ignore_index:int? reduction:int=1 base:base -> dx:T",
    .tags = NP_INTERNAL | NP_CHEAP,
    .save = {NP_IN(1)},
    .infer = infer_nll_backward,
    .grad = nll_backward_grad,
    .sample = nll_backward_sample,
};

/* nll_loss(logp, target): minus the log-probability of each row's class. logp (C), (N,C) or (N,C,...), target the
 * same without C, labels from `base`. reduction: 0 none, 1 mean over the rows that count, 2 sum; nn.nll_loss takes
 * these by name. Rows whose label is ignore_index do not count. */
NP_OP(nll_loss) = {
    NP_NAMED(nll_loss),
    .args = "logp:T target:T ; ignore_index:int? reduction:int=1 base:base -> loss:T",
    .tags = NP_REDUCE | NP_CAST_FLOAT32,
    .save = {NP_IN(1)},
    .infer = infer_loss,
    .grad = nll_grad,
    .sample = loss_sample,
};

/* cross_entropy_backward(g, logits, target, lse): (softmax(logits) - onehot) g in one sweep. */
NP_OP(cross_entropy_backward) = {
    NP_NAMED(cross_entropy_backward),
    .args = "g:T logits:T target:T lse:T ; ignore_index:int? reduction:int=1 base:base -> dx:T",
    .tags = NP_INTERNAL | NP_NODIFF | NP_CHEAP,
    .infer = infer_ce_backward,
    .sample = ce_backward_sample,
};

/* cross_entropy(logits, target): the negative log-softmax of each row's class. logits (C), (N,C) or (N,C,...),
 * target the same without C, labels from `base`. reduction: 0 none, 1 mean over the rows that count, 2 sum;
 * nn.cross_entropy takes these by name. Rows whose label is ignore_index do not count; a mean over no row is 0. */
NP_OP(cross_entropy) = {
    NP_NAMED(cross_entropy),
    .args = "logits:T target:T ; ignore_index:int? reduction:int=1 base:base -> loss:T | lse:T",
    .tags = NP_REDUCE | NP_CAST_FLOAT32,
    .save = {NP_IN(0), NP_IN(1), NP_OUT(1)},
    .infer = infer_loss,
    .grad = cross_entropy_grad,
    .sample = loss_sample,
};
#endif
