/* scatter.c - one position an element: gather, and its counterparts that write there: scatter, scatter_add.
 *
 * Rows along the dimension are independent of one another: each is done in order, so sums have one order and the last
 * write wins, on any number of threads. */
#include "ops/cpu/positions.h"
#include "ops/sample.h"

/* ---- gather: one position an element */

typedef struct gather_job {
    const neap_tensor *x, *ids, *out;
    int dim;
    int64_t rows, n, per_chunk; /* rows: all dimensions of ids but the last, n its size */
} gather_job;

#define GATHER_COPY(T) \
    for (int64_t i = 0; i < j->n; i++) \
        ((T *)y)[r * j->n + i] = ((const T *)x)[at + i * step + ids[i] * along];

static inline void gather_chunk(void *arg, int64_t chunk)
{
    const gather_job *j = arg;
    const neap_tensor *g = j->ids;
    int nd = g->ndim, last = nd - 1;
    const int64_t along = j->x->stride[j->dim], step = j->dim == last ? 0 : j->x->stride[last];
    int64_t end = (chunk + 1) * j->per_chunk < j->rows ? (chunk + 1) * j->per_chunk : j->rows;
    const void *x = np_ptr(j->x);
    void *y = np_ptr(j->out);
    for (int64_t r = chunk * j->per_chunk; r < end; r++) {
        int64_t at = 0, rest = r;
        for (int d = last - 1; d >= 0; d--) {
            if (d != j->dim) at += rest % g->shape[d] * j->x->stride[d];
            rest /= g->shape[d];
        }
        const int64_t *ids = NP_DATA(int64_t, g) + r * j->n;
        switch (np_itemsize(j->x)) {
        case 1: GATHER_COPY(uint8_t) break;
        case 2: GATHER_COPY(uint16_t) break;
        case 4: GATHER_COPY(uint32_t) break;
        default: GATHER_COPY(uint64_t) break;
        }
    }
}

NP_CPU(gather)(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    int dim = np_dim_of(&f->attr[0], x->ndim);
    neap_tensor *ids = np_positions(f, f->in[1], x->shape[dim], f->attr[1].i, NULL);
    bool ok = ids != NULL;
    if (ok && ids->numel) {
        gather_job j = {.x = x, .ids = ids, .out = f->out[0], .dim = dim, .n = ids->shape[ids->ndim - 1]};
        j.rows = ids->numel / j.n;
        j.per_chunk = j.n < NP_GRAIN ? NP_GRAIN / j.n : 1;
        ok = np_parallel(f->c, (j.rows + j.per_chunk - 1) / j.per_chunk, gather_chunk, &j);
    }
    np_drop(ids);
    return ok;
}

typedef struct scatter_job {
    char *dst /* (R, size) */;
    const char *src;        /* (rows, n) */
    const neap_tensor *ids; /* (rows, n), its own shape with dim last */
    const neap_tensor *d;   /* destination, dim last */
    int64_t rows, n, per_chunk;
    neap_dtype t;
    bool add;
} scatter_job;

/* Which row of the destination row r of ids stands for. */
static inline int64_t row_of(const scatter_job *j, int64_t r)
{
    int64_t row = 0, scale = 1;
    for (int d = j->ids->ndim - 2; d >= 0; d--) {
        row += r % j->ids->shape[d] * scale;
        scale *= j->d->shape[d];
        r /= j->ids->shape[d];
    }
    return row;
}

static inline void scatter_chunk(void *arg, int64_t chunk)
{
    const scatter_job *j = arg;
    int last = j->ids->ndim - 1;
    int64_t size = j->d->shape[last],
            end = (chunk + 1) * j->per_chunk < j->rows ? (chunk + 1) * j->per_chunk : j->rows;
    size_t es = np_dtype_size(j->t);
    for (int64_t r = chunk * j->per_chunk; r < end; r++) {
        const int64_t *ids = NP_DATA(int64_t, j->ids) + r * j->n;
        char *row = j->dst + (size_t)(row_of(j, r) * size) * es;
        const char *src = j->src + (size_t)(r * j->n) * es;
        for (int64_t i = 0; i < j->n; i++) {
            if (j->add) np_add_row(j->t, row + (size_t)ids[i] * es, src + (size_t)i * es, 1);
            else memcpy(row + (size_t)ids[i] * es, src + (size_t)i * es, es);
        }
    }
}

/* src as rows of dtype w, broadcast to the shape of ids. */
static inline neap_tensor *source_rows(np_frame *f, neap_tensor *src, const neap_tensor *ids, int dim,
                                       neap_dtype w)
{
    bool same = src->ndim == ids->ndim;
    for (int d = 0; same && d < ids->ndim; d++) same = src->shape[d] == ids->shape[d];
    if (same) return np_rows_in(f->c, src, dim, w);
    neap_tensor *wide = np_tensor_new(f->c, f->dev, w, ids->ndim, ids->shape), *rows = NULL;
    if (wide && np_copy_into(f->c, wide, src)) rows = np_rows_in(f->c, wide, dim, w);
    np_drop(wide);
    return rows;
}

/* out[0] = start (NULL: zeros) with src added or put at ids along dim. */
static inline bool scatter_rows(np_frame *f, int dim, neap_tensor *start, neap_tensor *ids_in,
                                neap_tensor *src_in, int64_t base, bool add)
{
    neap_ctx *c = f->c;
    neap_dtype own = (neap_dtype)f->out[0]->dtype, w = add ? np_sum_type(own) : own;
    neap_tensor *flat = np_positions(f, ids_in, f->out[0]->shape[dim], base, NULL);
    neap_tensor *ids = flat ? np_rows_in(c, flat, dim, NEAP_INT64) : NULL, *src = NULL, *d = NULL,
                *first = NULL;
    int nd = f->out[0]->ndim;
    bool ok = ids && (src = source_rows(f, src_in, ids_in, dim, w)) && (d = np_rows_out(f, 0, dim, w));
    if (ok && !start) ok = np_fill_zero(c, d);
    else if (ok && !(d == f->out[0] && start->st == d->st))
        ok = (first = np_dim_last(start, dim)) && np_copy_into(c, d, first);
    if (ok && ids->numel) {
        scatter_job j = {.dst = np_ptr(d),
                         .src = np_ptr(src),
                         .ids = ids,
                         .d = d,
                         .n = ids->shape[nd - 1],
                         .t = w,
                         .add = add};
        j.rows = ids->numel / j.n;
        j.per_chunk = j.n < NP_GRAIN ? NP_GRAIN / j.n : 1;
        ok = np_parallel(c, (j.rows + j.per_chunk - 1) / j.per_chunk, scatter_chunk, &j);
    }
    np_drop(flat);
    np_drop(ids);
    np_drop(src);
    np_drop(first);
    return np_rows_done(f, 0, dim, d, ok);
}

NP_CPU(gather_backward)(np_frame *f)
{
    return scatter_rows(f, np_dim_of(&f->attr[0], f->out[0]->ndim), NULL, f->in[1], f->in[0], f->attr[2].i,
                        true);
}
NP_CPU(scatter_add)(np_frame *f)
{
    return scatter_rows(f, np_dim_of(&f->attr[0], f->in[0]->ndim), f->in[0], f->in[1], f->in[2], f->attr[1].i,
                        true);
}
NP_CPU(scatter)(np_frame *f)
{
    return scatter_rows(f, np_dim_of(&f->attr[0], f->in[0]->ndim), f->in[0], f->in[1], f->in[2], f->attr[1].i,
                        false);
}

NP_CPU(scatter_shadowed)(np_frame *f)
{
    int dim = np_dim_of(&f->attr[0], f->in[0]->ndim);
    int64_t size = f->attr[1].i;
    neap_tensor *flat = np_positions(f, f->in[0], size, f->attr[2].i, NULL);
    neap_tensor *ids = flat ? np_rows_in(f->c, flat, dim, NEAP_INT64) : NULL;
    neap_tensor *last = ids ? np_tensor_new(f->c, f->dev, NEAP_INT64, 1, &size) : NULL;
    neap_tensor *out = last ? np_rows_out(f, 0, dim, NEAP_BOOL) : NULL;
    int64_t n = ids && ids->ndim ? ids->shape[ids->ndim - 1] : 0;
    for (int64_t at = 0; out && n && at < ids->numel; at += n) {
        const int64_t *row = NP_DATA(int64_t, ids) + at;
        for (int64_t i = 0; i < n; i++) NP_DATA(int64_t, last)[row[i]] = i;
        for (int64_t i = 0; i < n; i++) NP_DATA(bool, out)[at + i] = NP_DATA(int64_t, last)[row[i]] != i;
    }
    bool ok = out != NULL;
    np_drop(flat);
    np_drop(ids);
    np_drop(last);
    return np_rows_done(f, 0, dim, out, ok);
}

#ifdef NP_BASE_ONLY

/* ---- infer */

/* ids like a part of x: equal ndim, and no larger along the other dimensions. */
static bool check_gather(np_frame *f, int ndim, const int64_t *shape, int64_t dim_attr,
                         const neap_tensor *ids)
{
    char a[100], b[100];
    int dim = np_check_ids_dim(f, ids, ndim, dim_attr);
    if (dim < 0) return false;
    bool fits = ids->ndim == ndim;
    for (int d = 0; fits && d < ndim; d++) fits = d == dim || ids->shape[d] <= shape[d];
    return fits || np_fail(f->c, NEAP_E_SHAPE,
                           "ids %s do not fit x %s: as many dimensions, and none larger except dimension %d",
                           np_shape_text(a, sizeof a, ids->ndim, ids->shape),
                           np_shape_text(b, sizeof b, ndim, shape), dim + f->c->base);
}

static bool infer_gather(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    if (!check_gather(f, x->ndim, x->shape, f->attr[0].i, f->in[1])) return false;
    np_meta_set(f, 0, (neap_dtype)x->dtype, f->in[1]->ndim, f->in[1]->shape);
    return true;
}

static bool check_scatter(np_frame *f, const neap_tensor *src, const neap_tensor *ids)
{
    char a[100], b[100];
    bool fits = src->ndim == ids->ndim;
    for (int d = 0; fits && d < ids->ndim; d++) fits = ids->shape[d] == src->shape[d];
    return fits || np_fail(f->c, NEAP_E_SHAPE, "ids %s and the values %s must have one shape",
                           np_shape_text(a, sizeof a, ids->ndim, ids->shape),
                           np_shape_text(b, sizeof b, src->ndim, src->shape));
}

static bool infer_gather_backward(np_frame *f)
{
    const np_attr *s = &f->attr[1];
    if (!check_gather(f, s->n, s->v, f->attr[0].i, f->in[1]) || !check_scatter(f, f->in[0], f->in[1]))
        return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, s->n, s->v);
    return true;
}

static bool infer_scatter_add(np_frame *f)
{
    const neap_tensor *x = f->in[0], *src = f->in[2];
    if (!check_gather(f, x->ndim, x->shape, f->attr[0].i, f->in[1]) || !check_scatter(f, src, f->in[1]))
        return false;
    if (src->dtype != x->dtype)
        return np_fail(f->c, NEAP_E_DTYPE, "x is %s and the values are %s; convert one with :to",
                       np_dtype_name((neap_dtype)x->dtype), np_dtype_name((neap_dtype)src->dtype));
    np_meta_like(f, 0, x);
    return true;
}

static bool infer_scatter(np_frame *f)
{
    char a[100], b[100];
    const neap_tensor *x = f->in[0], *ids = f->in[1], *v = f->in[2];
    if (!check_gather(f, x->ndim, x->shape, f->attr[0].i, ids)) return false;
    int n = ids->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, ids->shape, sizeof shape);
    bool fits = np_broadcast_shape(&n, shape, v->ndim, v->shape) && n == ids->ndim;
    for (int d = 0; fits && d < n; d++) fits = shape[d] == ids->shape[d];
    if (!fits)
        return np_fail(f->c, NEAP_E_SHAPE, "the values %s do not broadcast to ids %s",
                       np_shape_text(b, sizeof b, v->ndim, v->shape),
                       np_shape_text(a, sizeof a, ids->ndim, ids->shape));
    if (!v->number && v->dtype != x->dtype)
        return np_fail(f->c, NEAP_E_DTYPE, "x is %s and the values are %s; convert one with :to",
                       np_dtype_name((neap_dtype)x->dtype), np_dtype_name((neap_dtype)v->dtype));
    np_meta_like(f, 0, x);
    return np_number_fits(f->c, v, (neap_dtype)x->dtype);
}

static bool infer_scatter_shadowed(np_frame *f)
{
    const neap_tensor *ids = f->in[0];
    if (np_check_ids_dim(f, ids, ids->ndim, f->attr[0].i) < 0) return false;
    np_meta_set(f, 0, NEAP_BOOL, ids->ndim, ids->shape);
    return true;
}

/* ---- gradients */

static void gather_grad(np_back *b)
{
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    int n;
    if (!np_input_shape(b, 0, &n, shape, &t)) return;
    b->dx[0] = np_gather_backward(b, b->g[0], np_dim_of(&b->attr[0], n), b->saved[0], shape, n, b->attr[1].i);
}

static void gather_backward_grad(np_back *b)
{
    b->dx[0] = np_gather(b, b->g[0], np_dim_of(&b->attr[0], b->g[0]->ndim), b->saved[0], b->attr[2].i);
}

static void scatter_add_grad(np_back *b)
{
    int64_t dim = np_dim_of(&b->attr[0], b->g[0]->ndim);
    b->dx[0] = b->g[0];
    if (b->need[2]) b->dx[2] = np_gather(b, b->g[0], dim, b->saved[0], b->attr[1].i);
}

/* What was overwritten gets nothing; of several writes to one place only the last counts. */
static void scatter_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *ids = b->saved[0];
    int64_t dim = np_dim_of(&b->attr[0], g->ndim), base = b->attr[1].i;
    if (b->need[0]) b->dx[0] = np_scatter(b, g, dim, ids, np_num(b, 0), base);
    if (!b->need[2]) return;
    neap_tensor *shadowed = np_scatter_shadowed(b, ids, dim, g->shape[dim], base);
    b->dx[2] = np_unbroadcast(b, np_masked_fill(b, np_gather(b, g, dim, ids, base), shadowed, 0), 2);
}

/* ---- samples */

static bool gather_ids_sample(np_sampler *s, int i)
{
    return i == 0   ? np_s_ids(s, 0, 3, 2, (int64_t)2, (int64_t)5)
           : i == 1 ? np_s_ids(s, 0, 2, 2, (int64_t)6, (int64_t)4)
                    : np_s_ids(s, 0, 3, 1, (int64_t)7);
}

static bool gather_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    s->label = i == 0 ? "along the last" : i == 1 ? "along the first, transposed" : "vector";
    s->attr[0] = (np_attr){.i = i == 0 ? -1 : 0, .has = 1};
    s->attr[1] = (np_attr){.i = 0, .has = 1};
    return (i == 2 ? np_s_tensor(s, -2, 2, 0, 1, (int64_t)4)
                   : np_s_tensor(s, -2, 2, i, 2, (int64_t)3, (int64_t)4)) &&
           gather_ids_sample(s, i);
}

static bool gather_values_sample(np_sampler *s, int i)
{
    return i == 0   ? np_s_tensor(s, -2, 2, 0, 2, (int64_t)2, (int64_t)5)
           : i == 1 ? np_s_tensor(s, -2, 2, 0, 2, (int64_t)6, (int64_t)4)
                    : np_s_tensor(s, -2, 2, 0, 1, (int64_t)7);
}

static bool scatter_add_sample(np_sampler *s, int i)
{
    return gather_sample(s, i) && gather_values_sample(s, i);
}

static bool scatter_sample(np_sampler *s, int i)
{
    if (i < 3) return gather_sample(s, i) && gather_values_sample(s, i);
    if (i > 4 || !gather_sample(s, i - 3)) return false;
    s->label = i == 3 ? "number" : "broadcast";
    if (i == 4) return np_s_tensor(s, -2, 2, 0, 1, (int64_t)4);
    np_s_number(s, 0.5);
    return true;
}

static bool scatter_shadowed_sample(np_sampler *s, int i)
{
    s->label = "repeats";
    s->attr[0] = (np_attr){.i = i ? -1 : 0, .has = 1};
    s->attr[1] = (np_attr){.i = 4, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return i < 2 && np_s_ids(s, 0, 3, 2, (int64_t)6, (int64_t)5);
}

static bool gather_backward_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    s->label = i == 0 ? "along the last" : i == 1 ? "along the first" : "vector";
    s->lists[0][0] = i == 2 ? 4 : 3;
    s->lists[0][1] = 4;
    s->attr[0] = (np_attr){.i = i == 0 ? -1 : 0, .has = 1};
    s->attr[1] = (np_attr){.v = s->lists[0], .n = i == 2 ? 1 : 2, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return gather_values_sample(s, i) && gather_ids_sample(s, i);
}

/* ---- entries */

/* gather_backward(g, dim, shape, ids): zeros of this shape with g added at ids along dim. */
NP_OP(gather_backward) = {
    NP_NAMED(gather_backward),
    .args = "g:T dim:dim ids:T shape:shape ; base:base -> dx:T",
    .tags = NP_INTERNAL,
    .save = {NP_IN(1)},
    .infer = infer_gather_backward,
    .grad = gather_backward_grad,
    .sample = gather_backward_sample,
};

/* gather(x, dim, ids): for every element of ids the element of x at that position along dim and at the same place
 * along the others. ids has as many dimensions as x. Negative positions count from the end. */
NP_OP(gather) = {
    NP_NAMED(gather),    .args = "x:T dim:dim ids:T ; base:base -> y:T",
    .save = {NP_IN(1)},  .infer = infer_gather,
    .grad = gather_grad, .sample = gather_sample,
};

/* scatter_add(x, dim, ids, src): x with src added where gather(x, dim, ids) would read. */
NP_OP(scatter_add) = {
    NP_NAMED(scatter_add),    .args = "x:T dim:dim ids:T src:T ; base:base -> y:T",
    .save = {NP_IN(1)},       .infer = infer_scatter_add,
    .grad = scatter_add_grad, .sample = scatter_add_sample,
};
NP_INPLACE_OP(scatter_add_, scatter_add);

/* scatter_shadowed(ids, dim, size): true where the same position comes again later along dim. */
NP_OP(scatter_shadowed) = {
    NP_NAMED(scatter_shadowed),        .args = "ids:T dim:dim size:int ; base:base -> y:T",
    .tags = NP_INTERNAL | NP_NODIFF,   .infer = infer_scatter_shadowed,
    .sample = scatter_shadowed_sample,
};

/* scatter(x, dim, ids, v): x with v written where gather(x, dim, ids) would read. v is a number or broadcasts to the
 * shape of ids; of several writes to one place the last stays. neap.zeros(2, 3):scatter(2, neap.tensor{{1}, {3}}, 1) */
NP_OP(scatter) = {
    NP_NAMED(scatter),    .args = "x:T dim:dim ids:T v:N ; base:base -> y:T",
    .save = {NP_IN(1)},   .infer = infer_scatter,
    .grad = scatter_grad, .sample = scatter_sample,
};
NP_INPLACE_OP(scatter_, scatter);

#endif
