/* index.c - reading and writing slices by positions: index_select, embedding, index_add, index_copy. One position an
 * element is in scatter.c, several dimensions at once in pick.c, masks are in masked.c.
 *
 * Positions count from `base`; negative ones count from the end, but for embedding, whose ids are strict. All
 * are checked before anything is written. What adds into or overwrites rows is cut by ranges of destination
 * rows: each range goes through the positions in order, so sums have one order and the last write wins,
 * without atomics. Linear ops and their transposes are each other's gradients. */
#include "ops/cpu/positions.h"
#include "ops/sample.h"

/* ---- rows: (outer, size, inner) against (outer, n, inner) */

typedef struct rows_job {
    char *dst;
    const char *src;
    const int64_t *ids /* (n) */;
    int64_t outer, size, n, inner, per_chunk, skip; /* skip: a position that takes no part, -1 none */
    size_t es;
    enum { ROWS_READ, ROWS_PUT, ROWS_ADD } what;
    neap_dtype t; /* ROWS_ADD: float32, float64 or int64 */
} rows_job;

static inline void read_chunk(void *arg, int64_t chunk)
{
    const rows_job *j = arg;
    size_t row = (size_t)j->inner * j->es;
    int64_t all = j->outer * j->n, end = (chunk + 1) * j->per_chunk < all ? (chunk + 1) * j->per_chunk : all;
    for (int64_t r = chunk * j->per_chunk; r < end; r++)
        memcpy(j->dst + (size_t)r * row, j->src + (size_t)(r / j->n * j->size + j->ids[r % j->n]) * row, row);
}

/* One range of destination rows. */
static inline void write_chunk(void *arg, int64_t chunk)
{
    const rows_job *j = arg;
    size_t row = (size_t)j->inner * j->es;
    int64_t lo = chunk * j->per_chunk, hi = lo + j->per_chunk;
    for (int64_t o = 0; o < j->outer; o++) {
        for (int64_t i = 0; i < j->n; i++) {
            int64_t r = j->ids[i];
            if (r < lo || r >= hi || r == j->skip) continue;
            char *d = j->dst + (size_t)(o * j->size + r) * row;
            const char *s = j->src + (size_t)(o * j->n + i) * row;
            if (j->what == ROWS_PUT) memcpy(d, s, row);
            else np_add_row(j->t, d, s, j->inner);
        }
    }
}

static inline bool run_rows(neap_ctx *c, rows_job *j)
{
    int64_t work = j->outer * j->n * j->inner;
    if (work == 0) return true;
    if (j->what == ROWS_READ) {
        j->per_chunk = j->inner < NP_GRAIN ? NP_GRAIN / j->inner : 1;
        return np_parallel(c, (j->outer * j->n + j->per_chunk - 1) / j->per_chunk, read_chunk, j);
    }
    int64_t parts = work / NP_GRAIN < 1 ? 1 : work / NP_GRAIN > 16 ? 16 : work / NP_GRAIN;
    j->per_chunk = (j->size + parts - 1) / parts;
    return np_parallel(c, (j->size + j->per_chunk - 1) / j->per_chunk, write_chunk, j);
}

static inline rows_job rows_of(const int64_t *shape, int ndim, int dim, const neap_tensor *ids)
{
    return (rows_job){.outer = sizes(shape, 0, dim),
                      .size = shape[dim],
                      .inner = sizes(shape, dim + 1, ndim),
                      .n = ids->numel,
                      .ids = NP_DATA(int64_t, ids),
                      .skip = -1};
}

/* out[0] = x[..., ids, ...] */
static inline bool select_rows(np_frame *f, int dim, neap_tensor *ids_in, int64_t base, const char *strict)
{
    neap_tensor *x = np_as_contiguous(f->c, f->in[0], (neap_dtype)f->in[0]->dtype);
    neap_tensor *ids = x ? np_positions(f, ids_in, x->shape[dim], base, strict) : NULL;
    bool ok = ids != NULL;
    if (ok) {
        rows_job j = rows_of(x->shape, x->ndim, dim, ids);
        j.dst = np_ptr(f->out[0]), j.src = np_ptr(x), j.es = np_itemsize(x), j.what = ROWS_READ;
        ok = run_rows(f->c, &j);
    }
    np_drop(x);
    np_drop(ids);
    return ok;
}

/* out[0] = start (NULL: zeros), then rows of src put or added at ids. Safe when out[0] is `start` (in place). */
static inline bool write_rows(np_frame *f, int dim, neap_tensor *start, neap_tensor *ids_in,
                              neap_tensor *src_in, int64_t base, const char *strict, int64_t skip, bool add)
{
    neap_ctx *c = f->c;
    neap_tensor *out = f->out[0];
    neap_dtype t = (neap_dtype)out->dtype, w = add ? np_sum_type(t) : t;
    bool direct = out->contiguous && t == w;
    neap_tensor *ids = np_positions(f, ids_in, out->shape[dim], base, strict), *src = NULL, *d = NULL;
    int64_t shape[2 * NEAP_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < dim; k++) shape[n++] = out->shape[k];
    for (int k = 0; k < ids_in->ndim; k++) shape[n++] = ids_in->shape[k];
    for (int k = dim + 1; k < out->ndim; k++) shape[n++] = out->shape[k];
    bool same = src_in->ndim == n;
    for (int k = 0; same && k < n; k++) same = src_in->shape[k] == shape[k];
    bool ok = ids && (src = same ? np_as_contiguous(c, src_in, w) : np_tensor_new(c, f->dev, w, n, shape)) &&
              (same || np_copy_into(c, src, src_in)) &&
              (d = direct ? np_hold_ref(out) : np_tensor_new(c, f->dev, w, out->ndim, out->shape));
    if (ok && !start) ok = np_fill_zero(c, d);
    else if (ok && !(direct && start->st == out->st)) ok = np_copy_into(c, d, start);
    if (ok) {
        rows_job j = rows_of(out->shape, out->ndim, dim, ids);
        j.dst = np_ptr(d), j.src = np_ptr(src), j.es = np_dtype_size(w), j.what = add ? ROWS_ADD : ROWS_PUT;
        j.t = w, j.skip = skip;
        ok = run_rows(c, &j);
    }
    if (ok && !direct) ok = np_copy_into(c, out, d);
    np_drop(ids);
    np_drop(src);
    np_drop(d);
    return ok;
}

NP_CPU(index_select)(np_frame *f)
{
    return select_rows(f, np_dim_of(&f->attr[0], f->in[0]->ndim), f->in[1], f->attr[1].i, NULL);
}
NP_CPU(index_select_backward)(np_frame *f)
{
    return write_rows(f, np_dim_of(&f->attr[0], f->out[0]->ndim), NULL, f->in[1], f->in[0], f->attr[2].i,
                      NULL, -1, true);
}
NP_CPU(embedding)(np_frame *f) { return select_rows(f, 0, f->in[1], f->attr[0].i, "rows"); }
NP_CPU(embedding_backward)(np_frame *f)
{
    int64_t skip = f->attr[2].has ? f->attr[2].i - f->attr[1].i : -1;
    return write_rows(f, 0, NULL, f->in[1], f->in[0], f->attr[1].i, "rows", skip, true);
}
NP_CPU(index_add)(np_frame *f)
{
    return write_rows(f, np_dim_of(&f->attr[0], f->in[0]->ndim), f->in[0], f->in[1], f->in[2], f->attr[1].i,
                      NULL, -1, true);
}
NP_CPU(index_copy)(np_frame *f)
{
    return write_rows(f, np_dim_of(&f->attr[0], f->in[0]->ndim), f->in[0], f->in[1], f->in[2], f->attr[1].i,
                      NULL, -1, false);
}

NP_CPU(index_shadowed)(np_frame *f)
{
    int64_t size = f->attr[0].i;
    neap_tensor *ids = np_positions(f, f->in[0], size, f->attr[1].i, NULL);
    neap_tensor *last = ids ? np_tensor_new(f->c, f->dev, NEAP_INT64, 1, &size) : NULL;
    if (last) {
        const int64_t *p = NP_DATA(int64_t, ids);
        for (int64_t i = 0; i < ids->numel; i++) NP_DATA(int64_t, last)[p[i]] = i;
        for (int64_t i = 0; i < ids->numel; i++)
            NP_DATA(bool, f->out[0])[i] = NP_DATA(int64_t, last)[p[i]] != i;
    }
    bool ok = last != NULL;
    np_drop(ids);
    np_drop(last);
    return ok;
}

#ifdef NP_BASE_ONLY

/* ---- infer */

/* Shape of x[..., ids, ...]: dimension dim replaced by the dimensions of ids. */
static bool selected_shape(np_frame *f, int x_ndim, const int64_t *x_shape, int dim, const neap_tensor *ids,
                           int *ndim, int64_t *shape)
{
    int n = x_ndim - 1 + ids->ndim, k = 0;
    if (n > NEAP_MAX_DIMS)
        return np_fail(f->c, NEAP_E_DIMS, "the result would have %d dimensions; %d at most", n,
                       NEAP_MAX_DIMS);
    for (int d = 0; d < dim; d++) shape[k++] = x_shape[d];
    for (int d = 0; d < ids->ndim; d++) shape[k++] = ids->shape[d];
    for (int d = dim + 1; d < x_ndim; d++) shape[k++] = x_shape[d];
    *ndim = n;
    return true;
}

static bool infer_index_select(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    int n, dim = np_check_ids_dim(f, f->in[1], x->ndim, f->attr[0].i);
    int64_t shape[NEAP_MAX_DIMS];
    if (dim < 0 || !selected_shape(f, x->ndim, x->shape, dim, f->in[1], &n, shape)) return false;
    np_meta_set(f, 0, (neap_dtype)x->dtype, n, shape);
    return true;
}

/* g has the shape that selecting from the result would have. */
static bool infer_rows_backward(np_frame *f, int dim, int64_t size)
{
    const neap_tensor *g = f->in[0], *ids = f->in[1];
    int n = g->ndim - ids->ndim + 1, k = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (n < 1 || n > NEAP_MAX_DIMS || dim >= n || !np_same_device(f) || !np_check_ids(f, ids))
        return np_pending(f->c)
                   ? false
                   : np_fail(f->c, NEAP_E_SHAPE, "a gradient of %d dimensions does not fit ids of %d",
                             g->ndim, ids->ndim);
    for (int d = 0; d < dim; d++) shape[k++] = g->shape[d];
    shape[k++] = size;
    for (int d = dim + ids->ndim; d < g->ndim; d++) shape[k++] = g->shape[d];
    np_meta_set(f, 0, (neap_dtype)g->dtype, n, shape);
    return true;
}

static bool infer_index_select_backward(np_frame *f)
{
    return infer_rows_backward(f, np_dim_of(&f->attr[0], f->in[0]->ndim - f->in[1]->ndim + 1), f->attr[1].i);
}
static bool infer_embedding_backward(np_frame *f) { return infer_rows_backward(f, 0, f->attr[0].i); }

static bool infer_embedding(np_frame *f)
{
    const neap_tensor *w = f->in[0], *ids = f->in[1];
    const np_attr *pad = &f->attr[1];
    int n = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_same_device(f) || !np_check_ids(f, ids)) return false;
    if (w->ndim != 2)
        return np_fail(f->c, NEAP_E_DIMS, "the table must be (rows, features), but has %d dimensions",
                       w->ndim);
    if (pad->has && (pad->i < f->attr[0].i || pad->i - f->attr[0].i >= w->shape[0]))
        return np_fail(f->c, NEAP_E_INDEX, "padding_idx is %lld, but the table's rows are %lld..%lld",
                       (long long)pad->i, (long long)f->attr[0].i,
                       (long long)(f->attr[0].i + w->shape[0] - 1));
    if (!selected_shape(f, 2, w->shape, 0, ids, &n, shape)) return false;
    np_meta_set(f, 0, (neap_dtype)w->dtype, n, shape);
    return true;
}

/* index_add: src has the selected shape; index_copy: it broadcasts to it. */
static bool infer_write(np_frame *f, bool exact)
{
    const neap_tensor *x = f->in[0], *src = f->in[2];
    int n, m, dim = np_check_ids_dim(f, f->in[1], x->ndim, f->attr[0].i);
    int64_t shape[NEAP_MAX_DIMS], got[NEAP_MAX_DIMS];
    char want[100], have[100];
    if (dim < 0 || !selected_shape(f, x->ndim, x->shape, dim, f->in[1], &n, shape)) return false;
    m = n;
    memcpy(got, shape, sizeof got);
    bool fits = np_broadcast_shape(&m, got, src->ndim, src->shape) && m == n && (!exact || src->ndim == n);
    for (int d = 0; fits && d < n; d++) fits = got[d] == shape[d] && (!exact || src->shape[d] == shape[d]);
    if (!fits)
        return np_fail(f->c, NEAP_E_SHAPE, "the positions select %s, but the values are %s",
                       np_shape_text(want, sizeof want, n, shape),
                       np_shape_text(have, sizeof have, src->ndim, src->shape));
    if (exact && src->dtype != x->dtype)
        return np_fail(f->c, NEAP_E_DTYPE, "x is %s and the values are %s; convert one with :to",
                       np_dtype_name((neap_dtype)x->dtype), np_dtype_name((neap_dtype)src->dtype));
    np_meta_like(f, 0, x);
    return true;
}
static bool infer_index_add(np_frame *f) { return infer_write(f, true); }
static bool infer_index_copy(np_frame *f)
{
    return infer_write(f, false) && np_number_fits(f->c, f->in[2], (neap_dtype)f->in[0]->dtype);
}

static bool infer_shadowed(np_frame *f)
{
    if (!np_same_device(f) || !np_check_ids(f, f->in[0])) return false;
    np_meta_set(f, 0, NEAP_BOOL, f->in[0]->ndim, f->in[0]->shape);
    return true;
}

/* ---- gradients */

static void index_select_grad(np_back *b)
{
    int64_t shape[NEAP_MAX_DIMS], dim;
    neap_dtype t;
    int n;
    if (!np_input_shape(b, 0, &n, shape, &t)) return;
    dim = np_dim_of(&b->attr[0], n);
    b->dx[0] = np_index_select_backward(b, b->g[0], b->saved[0], dim, shape[dim], b->attr[1].i);
}

static void index_select_backward_grad(np_back *b)
{
    int64_t dim = np_dim_of(&b->attr[0], b->g[0]->ndim);
    b->dx[0] = np_index_select(b, b->g[0], dim, b->saved[0], b->attr[2].i);
}

static void embedding_grad(np_back *b)
{
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    int n;
    if (!np_input_shape(b, 0, &n, shape, &t)) return;
    b->dx[0] = np_embedding_backward(b, b->g[0], b->saved[0], shape[0], b->attr[0].i,
                                     b->attr[1].has ? &b->attr[1].i : NULL);
}

/* The transpose: rows of padding give nothing. */
static void embedding_backward_grad(np_back *b)
{
    const np_attr *base = &b->attr[1], *pad = &b->attr[2];
    neap_tensor *ids = b->saved[0], *d = np_embedding(b, b->g[0], ids, base->i, NULL);
    if (pad->has) d = np_masked_fill(b, d, np_unsqueeze(b, np_eq(b, ids, np_num(b, (double)pad->i)), -1), 0);
    b->dx[0] = d;
}

static void index_add_grad(np_back *b)
{
    b->dx[0] = b->g[0];
    if (b->need[2])
        b->dx[2] =
            np_index_select(b, b->g[0], np_dim_of(&b->attr[0], b->g[0]->ndim), b->saved[0], b->attr[1].i);
}

/* Overwritten rows get nothing; of several writes to one row only the last counts. */
static void index_copy_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *ids = b->saved[0];
    int64_t dim = np_dim_of(&b->attr[0], g->ndim), base = b->attr[1].i, shape[NEAP_MAX_DIMS];
    if (b->need[0]) b->dx[0] = np_index_copy(b, g, dim, ids, np_num(b, 0), base);
    if (!b->need[2]) return;
    int n = 0;
    for (int d = 0; d < ids->ndim; d++) shape[n++] = ids->shape[d];
    for (int d = (int)dim + 1; d < g->ndim; d++) shape[n++] = 1;
    neap_tensor *shadowed = np_reshape(b, np_index_shadowed(b, ids, g->shape[dim], base), shape, n);
    b->dx[2] = np_unbroadcast(b, np_masked_fill(b, np_index_select(b, g, dim, ids, base), shadowed, 0), 2);
}

/* ---- samples */

static bool select_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"rows",          "columns", "transposed",
                                         "matrix of ids", "one id",  "no ids"};
    const int64_t n = np_s_size(s, 4, 1024), m = np_s_size(s, 3, 256);
    if (i >= (int)(sizeof labels / sizeof *labels)) return false;
    s->label = labels[i];
    s->attr[0] = (np_attr){.i = i == 1 ? -1 : 0, .has = 1};
    s->attr[1] = (np_attr){.i = i == 2, .has = 1};
    if (!np_s_tensor(s, -2, 2, i == 2, 2, n, m)) return false;
    switch (i) {
    case 3: return np_s_ids(s, 0, n - 1, 2, (int64_t)2, (int64_t)3);
    case 4: return np_s_ids(s, 0, n - 1, 0);
    case 5: return np_s_ids(s, 0, n - 1, 1, (int64_t)0);
    default: return np_s_ids(s, i == 2, (i == 1 ? m : n) - 1, 1, (int64_t)5);
    }
}

static bool select_backward_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "columns" : "rows";
    s->attr[0] = (np_attr){.i = i, .has = 1};
    s->attr[1] = (np_attr){.i = 4, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return (i ? np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)6)
              : np_s_tensor(s, -2, 2, 0, 2, (int64_t)6, (int64_t)3)) &&
           np_s_ids(s, 0, 3, 1, (int64_t)6);
}

static bool embedding_sample(np_sampler *s, int i)
{
    const int64_t rows = np_s_size(s, 5, 10000), d = np_s_size(s, 3, 256);
    if (i > 2) return false;
    s->label = i == 0 ? "ids" : i == 1 ? "matrix of ids, padding" : "from 1";
    s->attr[0] = (np_attr){.i = i == 2, .has = 1};
    s->attr[1] = (np_attr){.i = rows - 1, .has = i == 1}; /* not among the ids: its gradient is 0 by decree */
    if (!np_s_tensor(s, -2, 2, 0, 2, rows, d)) return false;
    return i == 1 ? np_s_ids(s, 0, rows - 2, 2, (int64_t)2, (int64_t)4)
                  : np_s_ids(s, 1, rows - 1, 1, (int64_t)6);
}

static bool embedding_backward_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "padding" : "plain";
    s->attr[0] = (np_attr){.i = 4, .has = 1};
    s->attr[1] = (np_attr){.i = 1, .has = 1};
    s->attr[2] = (np_attr){.i = 2, .has = i};
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)6, (int64_t)3) && np_s_ids(s, 1, 4, 1, (int64_t)6);
}

/* x, ids with repeats, values. */
static bool index_write_sample(np_sampler *s, int i, bool exact)
{
    if (i > (exact ? 1 : 3)) return false;
    s->label = i == 0 ? "rows" : i == 1 ? "columns" : i == 2 ? "one row" : "number";
    s->attr[0] = (np_attr){.i = i == 1, .has = 1};
    s->attr[1] = (np_attr){.i = 0, .has = 1};
    if (!np_s_tensor(s, -2, 2, 0, 2, (int64_t)4, (int64_t)3) || !np_s_ids(s, 0, 2, 1, (int64_t)5))
        return false;
    if (i == 3) return np_s_number(s, 0.5), true;
    return i == 0   ? np_s_tensor(s, -2, 2, 0, 2, (int64_t)5, (int64_t)3)
           : i == 1 ? np_s_tensor(s, -2, 2, 1, 2, (int64_t)4, (int64_t)5)
                    : np_s_tensor(s, -2, 2, 0, 1, (int64_t)3);
}
static bool index_add_sample(np_sampler *s, int i) { return index_write_sample(s, i, true); }
static bool index_copy_sample(np_sampler *s, int i) { return index_write_sample(s, i, false); }

static bool shadowed_sample(np_sampler *s, int i)
{
    s->label = "repeats";
    s->attr[0] = (np_attr){.i = 4, .has = 1};
    s->attr[1] = (np_attr){.i = 0, .has = 1};
    return i == 0 && np_s_ids(s, 0, 3, 1, (int64_t)7);
}

/* ---- entries */

/* index_select_backward(g, ids, dim, size): zeros with g added at positions ids of dimension dim. */
NP_OP(index_select_backward) = {
    NP_NAMED(index_select_backward),
    .args = "g:T ids:T dim:dim size:int ; base:base -> dx:T",
    .tags = NP_INTERNAL,
    .save = {NP_IN(1)},
    .infer = infer_index_select_backward,
    .grad = index_select_backward_grad,
    .sample = select_backward_sample,
};

/* index_select(x, dim, ids): the slices of x at positions ids along dim. ids of any shape takes the place of dim:
 * (..., size, ...) -> (..., ids.shape, ...). Negative positions count from the end. */
NP_OP(index_select) = {
    NP_NAMED(index_select),    .args = "x:T dim:dim ids:T ; base:base -> y:T",
    .save = {NP_IN(1)},        .infer = infer_index_select,
    .grad = index_select_grad, .sample = select_sample,
};

/* embedding_backward(g, ids, rows): zeros (rows, D) with g added at ids, but for the padding row. */
NP_OP(embedding_backward) = {
    NP_NAMED(embedding_backward),
    .args = "g:T ids:T rows:int ; base:base padding_idx:int? -> dw:T",
    .tags = NP_INTERNAL,
    .save = {NP_IN(1)},
    .infer = infer_embedding_backward,
    .grad = embedding_backward_grad,
    .sample = embedding_backward_sample,
};

/* embedding(w, ids): rows of the table w (rows, D) at ids, of any shape -> (ids.shape, D). ids lie strictly in
 * base .. base+rows-1. The row padding_idx gets no gradient. */
NP_OP(embedding) = {
    NP_NAMED(embedding),    .args = "w:T ids:T ; base:base padding_idx:int? -> y:T",
    .save = {NP_IN(1)},     .infer = infer_embedding,
    .grad = embedding_grad, .sample = embedding_sample,
};

/* index_add(x, dim, ids, src): x with src added at positions ids along dim; repeated positions add up. src has the
 * shape of index_select(x, dim, ids). */
NP_OP(index_add) = {
    NP_NAMED(index_add),    .args = "x:T dim:dim ids:T src:T ; base:base -> y:T",
    .save = {NP_IN(1)},     .infer = infer_index_add,
    .grad = index_add_grad, .sample = index_add_sample,
};
NP_INPLACE_OP(index_add_, index_add);

/* index_shadowed(ids, size): true where the same position comes again later. */
NP_OP(index_shadowed) = {
    NP_NAMED(index_shadowed),        .args = "ids:T size:int ; base:base -> y:T",
    .tags = NP_INTERNAL | NP_NODIFF, .infer = infer_shadowed,
    .sample = shadowed_sample,
};

/* index_copy(x, dim, ids, v): x with v written at positions ids along dim. v is a number or broadcasts to the shape
 * of index_select(x, dim, ids); of several writes to one position the last stays. */
NP_OP(index_copy) = {
    NP_NAMED(index_copy),    .args = "x:T dim:dim ids:T v:N ; base:base -> y:T",
    .save = {NP_IN(1)},      .infer = infer_index_copy,
    .grad = index_copy_grad, .sample = index_copy_sample,
};
NP_INPLACE_OP(index_copy_, index_copy);

#endif
