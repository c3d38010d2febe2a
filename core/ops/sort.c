/* sort.c - order: sort, argsort, topk, unique, searchsorted, bincount.
 *
 * Elements are compared as unsigned keys whose order is the order of the values: NaN is the greatest, -0 equals 0. Equal
 * elements keep their order, in both directions, so every result is determined. Rows are sorted by merging, each on one
 * thread; the values are moved as they are, and their gradient goes back to where they came from. */
#include "ops/cpu/positions.h"
#include "ops/sample.h"

typedef struct entry {
    uint64_t key;
    int64_t at;
} entry;

/* The types that rows are read in: all floats as double, all integers as int64. Both ways are exact. */
static inline neap_dtype key_type(neap_dtype t) { return np_is_float(t) ? NEAP_FLOAT64 : NEAP_INT64; }

static inline uint64_t float_key(double v)
{
    uint64_t u;
    if (v != v) return UINT64_MAX;
    if (v == 0) v = 0; /* no -0 */
    memcpy(&u, &v, sizeof u);
    return u >> 63 ? ~u : u | UINT64_C(1) << 63;
}

/* flip: the greatest first. */
static inline uint64_t key_at(neap_dtype w, const char *row, int64_t i, bool flip)
{
    uint64_t k = w == NEAP_FLOAT64 ? float_key(((const double *)(const void *)row)[i])
                                   : ((const uint64_t *)(const void *)row)[i] ^ UINT64_C(1) << 63;
    return flip ? ~k : k;
}

static inline bool before(const entry *a, const entry *b)
{
    return a->key < b->key || (a->key == b->key && a->at < b->at);
}

enum { RUN = 16 };

static inline void sort_runs(entry *v, int64_t n)
{
    for (int64_t lo = 0; lo < n; lo += RUN) {
        int64_t hi = lo + RUN < n ? lo + RUN : n;
        for (int64_t i = lo + 1; i < hi; i++) {
            entry e = v[i];
            int64_t k = i;
            for (; k > lo && v[k - 1].key > e.key; k--) v[k] = v[k - 1];
            v[k] = e;
        }
    }
}

/* Sorts v, stable; `other` has as much room. Returns which of the two holds the result. */
static inline entry *merge_sort(entry *v, entry *other, int64_t n)
{
    sort_runs(v, n);
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * width) {
            int64_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            int64_t a = lo, b = mid;
            for (int64_t k = lo; k < hi; k++) {
                bool left = a < mid && (b >= hi || v[a].key <= v[b].key);
                other[k] = left ? v[a++] : v[b++];
            }
        }
        entry *t = v;
        v = other, other = t;
    }
    return v;
}

/* ---- rows */

typedef struct sort_job {
    neap_dtype w;
    const char *x; /* (rows, n) of type w */
    char *values;  /* (rows, k), the same type, or NULL */
    int64_t *ids;  /* (rows, k) */
    entry *room;   /* (chunks, 2 n) */
    int64_t rows, n, k, per_chunk, base;
    bool flip, whole, in_order; /* whole: sort all; else choose k; in_order: of value, else of position */
} sort_job;

/* The k first of n in a heap whose top is the last of them. */
static inline void sift(entry *h, int64_t k, int64_t i)
{
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= k) return;
        if (c + 1 < k && before(&h[c], &h[c + 1])) c++;
        if (!before(&h[i], &h[c])) return;
        entry t = h[i];
        h[i] = h[c], h[c] = t;
        i = c;
    }
}

static inline void choose(const sort_job *j, const char *row, entry *h)
{
    for (int64_t i = 0; i < j->k; i++) h[i] = (entry){key_at(j->w, row, i, j->flip), i};
    for (int64_t i = j->k / 2; i-- > 0;) sift(h, j->k, i);
    for (int64_t i = j->k; j->k > 0 && i < j->n; i++) {
        uint64_t key = key_at(j->w, row, i, j->flip);
        if (key >= h[0].key) continue; /* equal ones: the earlier stays */
        h[0] = (entry){key, i};
        sift(h, j->k, 0);
    }
    /* By position first: then sorting by value keeps the order of equal ones. */
    for (int64_t i = 0; i < j->k; i++) h[i].key = (uint64_t)h[i].at;
}

static inline void sort_chunk(void *arg, int64_t chunk)
{
    const sort_job *j = arg;
    entry *a = j->room + chunk * 2 * j->n, *b = a + j->n;
    int64_t end = (chunk + 1) * j->per_chunk < j->rows ? (chunk + 1) * j->per_chunk : j->rows;
    for (int64_t r = chunk * j->per_chunk; r < end; r++) {
        const char *row = j->x + r * j->n * 8;
        entry *v = a;
        if (j->whole) {
            for (int64_t i = 0; i < j->n; i++) a[i] = (entry){key_at(j->w, row, i, j->flip), i};
            v = merge_sort(a, b, j->n);
        } else {
            choose(j, row, a);
            v = merge_sort(a, b, j->k);
            for (int64_t i = 0; j->in_order && i < j->k; i++) v[i].key = key_at(j->w, row, v[i].at, j->flip);
            if (j->in_order) v = merge_sort(v, v == a ? b : a, j->k);
        }
        for (int64_t i = 0; i < j->k; i++) j->ids[r * j->k + i] = v[i].at + j->base;
        for (int64_t i = 0; j->values && i < j->k; i++)
            memcpy(j->values + (r * j->k + i) * 8, row + v[i].at * 8, 8);
    }
}

/* Results 0 and 1 are values and positions along dim; k of them, from a whole sort or a choice. */
static inline bool sort_rows(np_frame *f, int dim, int64_t k, bool flip, bool whole, bool in_order,
                             int64_t base)
{
    neap_ctx *c = f->c;
    neap_dtype w = key_type((neap_dtype)f->in[0]->dtype);
    neap_tensor *x = np_rows_in(c, f->in[0], dim, w), *v = NULL, *ids = NULL;
    bool ok = x && (v = np_rows_out(f, 0, dim, w)) && (ids = np_rows_out(f, 1, dim, NEAP_INT64));
    sort_job j = {.w = w, .k = k, .base = base, .flip = flip, .whole = whole, .in_order = in_order};
    j.n = ok && x->ndim ? x->shape[x->ndim - 1] : 1;
    if (ok && v->numel > 0) {
        np_mem *mem = &c->devices[0]->mem;
        j.rows = x->numel / j.n;
        int64_t chunks = x->numel / NP_GRAIN < 1 ? 1 : x->numel / NP_GRAIN > 16 ? 16 : x->numel / NP_GRAIN;
        j.per_chunk = (j.rows + chunks - 1) / chunks;
        chunks = (j.rows + j.per_chunk - 1) / j.per_chunk;
        size_t bytes = (size_t)chunks * 2 * (size_t)j.n * sizeof(entry);
        j.x = np_ptr(x), j.values = np_ptr(v), j.ids = NP_DATA(int64_t, ids);
        j.room = np_mem_take(mem, bytes, NEAP_WORKSPACE);
        ok = j.room && np_parallel(c, chunks, sort_chunk, &j);
        if (j.room) np_mem_give(mem, j.room, bytes, NEAP_WORKSPACE);
    }
    np_drop(x);
    ok = np_rows_done(f, 0, dim, v, ok);
    return np_rows_done(f, 1, dim, ids, ok);
}

NP_CPU(sort)(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    int d = (int)f->attr[0].i;
    return sort_rows(f, d, x->ndim ? x->shape[d] : 1, f->attr[1].i, true, true, f->attr[2].i);
}

NP_CPU(topk)(np_frame *f)
{
    return sort_rows(f, (int)f->attr[1].i, f->attr[0].i, f->attr[2].i, false, f->attr[3].i, f->attr[4].i);
}

/* The first place in a sorted row of n where v can stand; right: the last one. */
static inline int64_t place_in(neap_dtype w, const char *row, int64_t n, uint64_t v, bool right)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        uint64_t k = key_at(w, row, mid, false);
        if (k < v || (right && k == v)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

NP_CPU(searchsorted)(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_dtype w = key_type(f->compute);
    neap_tensor *s = np_as_contiguous(c, f->in[0], w), *v = s ? np_as_contiguous(c, f->in[1], w) : NULL;
    bool ok = v != NULL;
    if (ok && v->numel) {
        int64_t n = s->shape[s->ndim - 1], per_row = s->ndim == 1 ? v->numel : v->shape[v->ndim - 1];
        for (int64_t i = 0; i < v->numel; i++) NP_DATA(int64_t, f->out[0])
        [i] = place_in(w, np_ptr(s) + i / per_row * n * 8, n, key_at(w, np_ptr(v), i, false), f->attr[0].i) +
              f->attr[1].i;
    }
    np_drop(s);
    np_drop(v);
    return ok;
}

NP_CPU(bincount)(np_frame *f)
{
    neap_tensor *ids = np_as_contiguous(f->c, f->in[0], NEAP_INT64);
    bool ok = ids && np_fill_zero(f->c, f->out[0]);
    for (int64_t i = 0; ok && i < ids->numel; i++)
        NP_DATA(int64_t, f->out[0])[NP_DATA(int64_t, ids)[i] - f->attr[1].i]++;
    np_drop(ids);
    return ok;
}

NP_CPU(run_starts)(np_frame *f)
{
    neap_dtype w = key_type((neap_dtype)f->in[0]->dtype);
    neap_tensor *x = np_as_contiguous(f->c, f->in[0], w);
    bool *out = NP_DATA(bool, f->out[0]);
    if (!x) return false;
    for (int64_t i = 0; i < x->numel; i++)
        out[i] = i == 0 || (w == NEAP_FLOAT64 ? !(NP_DATA(double, x)[i] == NP_DATA(double, x)[i - 1])
                                              : NP_DATA(int64_t, x)[i] != NP_DATA(int64_t, x)[i - 1]);
    np_drop(x);
    return true;
}

NP_CPU(run_numbers)(np_frame *f)
{
    neap_tensor *starts = np_as_contiguous(f->c, f->in[0], NEAP_BOOL);
    int64_t run = f->attr[0].i - 1;
    if (!starts) return false;
    for (int64_t i = 0; i < starts->numel; i++)
        NP_DATA(int64_t, f->out[0])[i] = run += NP_DATA(bool, starts)[i];
    np_drop(starts);
    return true;
}

#ifdef NP_BASE_ONLY

/* Attribute k is a dimension of x; 0-dim tensors have one, too. */
static bool resolve_dim(np_frame *f, int k)
{
    if (!np_same_device(f)) return false;
    f->attr[k].i = np_wrap_dim(f->c, f->attr[k].i, f->in[0]->ndim);
    return f->attr[k].i >= 0;
}

/* The values came from positions `ids` along dim. */
static void back_to_positions(np_back *b, int64_t dim, int64_t base)
{
    int n;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    if (!np_input_shape(b, 0, &n, shape, &t)) return;
    if (n == 0) b->dx[0] = np_reshape(b, b->g[0], shape, 0);
    else b->dx[0] = np_gather_backward(b, b->g[0], dim, b->saved[0], shape, n, base);
}

/* Values all apart, in a mixed order. */
static bool distinct(np_sampler *s, int layout, int64_t rows, int64_t columns)
{
    rows = np_s_size(s, rows, rows * 50), columns = np_s_size(s, columns, columns * 500);
    if (!np_s_tensor(s, -1, 1, layout, 2, rows, columns)) return false;
    neap_tensor *t = s->in[s->n_in - 1];
    int64_t n = rows * columns, k = n > 1 ? 7 : 1;
    while (n > 1 && n % k == 0) k += 2;
    for (int64_t i = 0; i < n; i++)
        np_store_double(s->dtype,
                        np_ptr(t) + (i / columns * t->stride[0] + i % columns * t->stride[1]) *
                                        (int64_t)np_itemsize(t),
                        (double)(i * k % n) / 8 - 1);
    return true;
}

/* sort(x, [dim = -1], {descending = false}) -> values, positions: the elements along dim in ascending order, and where
 * they were. Equal ones keep their order; NaN counts as the greatest. local v, i = x:sort(1, {descending = true}) */
static bool sort_infer(np_frame *f)
{
    if (!resolve_dim(f, 0)) return false;
    np_meta_like(f, 0, f->in[0]);
    np_meta_set(f, 1, NEAP_INT64, f->in[0]->ndim, f->in[0]->shape);
    return true;
}

static void sort_grad(np_back *b) { back_to_positions(b, b->attr[0].i, b->attr[2].i); }

static bool sort_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    s->attr[0] = (np_attr){.i = i == 1 ? 0 : -1, .has = 1};
    s->attr[1] = (np_attr){.i = i % 2, .has = 1};
    s->attr[2] = (np_attr){.i = i == 2, .has = 1};
    return i == 3 ? np_s_tensor(s, -1, 1, 0, 0) : distinct(s, i, 3, 5);
}

NP_OP(sort) = {
    NP_NAMED(sort),      .args = "x:T dim:dim=-1 ; descending:bool=false base:base -> values:T indices:T",
    .save = {NP_OUT(1)}, .infer = sort_infer,
    .grad = sort_grad,   .sample = sort_sample,
};

/* argsort(x, [dim = -1], {descending = false}): the positions that sort x along dim, as the second result of sort. */
static void argsort_parts(np_back *b, np_frame *f)
{
    neap_tensor *more[2];
    np_sort(b, f->in[0], f->attr[0].i, (int)f->attr[1].i, f->attr[2].i, more);
    f->out[0] = more[1];
}
NP_OP(argsort) = {NP_NAMED(argsort), .args = "x:T dim:dim=-1 ; descending:bool=false base:base -> indices:T",
                  .tags = NP_COMPOSITE | NP_NODIFF, .parts = argsort_parts, .sample = sort_sample};

/* topk(x, k, [dim = -1], {largest = true, sorted = true}) -> values, positions: the k largest elements along dim, largest
 * first, or the k smallest, smallest first; with sorted = false in the order of their positions. Of equal ones the first
 * are taken; NaN counts as the greatest. local best, i = logits:topk(5) */
static bool topk_infer(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], k = f->attr[0].i;
    if (!resolve_dim(f, 1)) return false;
    int d = (int)f->attr[1].i;
    int64_t n = x->ndim ? x->shape[d] : 1;
    if (k < 0 || k > n)
        return np_fail(f->c, NEAP_E_ARG, "k is %lld, but dimension %d has %lld elements", (long long)k,
                       d + f->c->base, (long long)n);
    if (x->ndim == 0 && k == 0)
        return np_fail(f->c, NEAP_E_DIMS, "x has 0 dimensions and one element: k must be 1");
    memcpy(shape, x->shape, sizeof shape);
    if (x->ndim) shape[d] = k;
    np_meta_set(f, 0, (neap_dtype)x->dtype, x->ndim, shape);
    np_meta_set(f, 1, NEAP_INT64, x->ndim, shape);
    return true;
}

static void topk_grad(np_back *b) { back_to_positions(b, b->attr[1].i, b->attr[4].i); }

static bool topk_sample(np_sampler *s, int i)
{
    if (i > 4) return false;
    s->attr[0] = (np_attr){.i = i == 4 ? 1 : i == 3 ? 5 : 2, .has = 1};
    s->attr[1] = (np_attr){.i = i == 1 ? 0 : -1, .has = 1};
    s->attr[2] = (np_attr){.i = i != 1, .has = 1};
    s->attr[3] = (np_attr){.i = i != 2, .has = 1};
    s->attr[4] = (np_attr){.i = 0, .has = 1};
    if (i == 4) return np_s_tensor(s, -2, 2, 0, 0);
    return distinct(s, i % 3, 3, 5);
}

NP_OP(topk) = {
    NP_NAMED(topk),
    .args = "x:T k:int dim:dim=-1 ; largest:bool=true sorted:bool=true base:base -> values:T indices:T",
    .save = {NP_OUT(1)},
    .infer = topk_infer,
    .grad = topk_grad,
    .sample = topk_sample,
};

/* ---- different elements */

/* run_starts(x): where an element of a vector differs from the one before; true for the first. */
static bool run_starts_infer(np_frame *f)
{
    if (!np_same_device(f)) return false;
    if (f->in[0]->ndim != 1) return np_fail(f->c, NEAP_E_DIMS, "runs are counted in a vector");
    np_meta_set(f, 0, NEAP_BOOL, 1, f->in[0]->shape);
    return true;
}
static bool run_starts_sample(np_sampler *s, int i) { return i < 1 && np_s_ids(s, 0, 1, 1, (int64_t)9); }
NP_OP(run_starts) = {NP_NAMED(run_starts), .args = "x:T -> y:T", .tags = NP_INTERNAL | NP_NODIFF,
                     .infer = run_starts_infer, .sample = run_starts_sample};

/* run_numbers(starts): the number of the run that each element of a vector belongs to. */
static bool run_numbers_infer(np_frame *f)
{
    if (!run_starts_infer(f)) return false;
    if (f->in[0]->dtype != NEAP_BOOL) return np_fail(f->c, NEAP_E_DTYPE, "where runs start is a mask");
    f->meta[0].dtype = NEAP_INT64;
    return true;
}
static bool run_numbers_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = 1, .has = 1};
    return i < 1 && np_s_mask(s, 1, (int64_t)9);
}
NP_OP(run_numbers) = {NP_NAMED(run_numbers), .args = "starts:T ; base:base -> y:T",
                      .tags = NP_INTERNAL | NP_NODIFF, .infer = run_numbers_infer,
                      .sample = run_numbers_sample};

/* unique(x) -> values, inverse, counts: the different elements of x in ascending order; for each element of x the position
 * of its value among them, in the shape of x; and how often each occurs. Every NaN is a value of its own. Reads x.
 * local v, i, n = neap.tensor{3, 1, 3}:unique() gives {1, 3}, {2, 1, 2}, {1, 2}. */
static void unique_parts(np_back *b, np_frame *f)
{
    const int64_t row = -1;
    const np_attr *base = &f->attr[0];
    neap_tensor *x = f->in[0], *more[2];
    neap_tensor *sorted = np_sort(b, np_reshape(b, x, &row, 1), 0, 0, 0, more);
    if (!sorted) return;
    neap_tensor *from = more[1], *starts = np_run_starts(b, np_hold(b, sorted));
    f->out[0] = np_masked_select(b, sorted, np_hold(b, starts));
    neap_tensor *number = np_run_numbers(b, starts, base->i);
    neap_tensor *inverse = np_scatter(b, np_zeros_like(b, np_hold(b, from)), 0, from, np_hold(b, number), 0);
    f->out[1] = np_reshape(b, inverse, x->shape, x->ndim);
    f->out[2] = np_bincount(b, number, 0, base->i);
}
static bool unique_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = 0, .has = 1};
    return i < 2 && distinct(s, i, 2, 4);
}
NP_OP(unique) = {NP_NAMED(unique), .args = "x:T ; base:base -> values:T inverse:T counts:T",
                 .tags = NP_COMPOSITE | NP_SYNC, .parts = unique_parts, .sample = unique_sample};

/* ---- counting and searching */

/* bincount(ids, {minlength = 0, base = 1}): how often each of the numbers 1 .. n stands in ids, where n is the largest of
 * them, or minlength if that is more. Reads ids. neap.tensor{1, 3, 3}:bincount() is {1, 0, 2}. */
static bool bincount_infer(np_frame *f)
{
    neap_tensor *ids = f->in[0];
    int64_t n = f->attr[0].i, base = f->attr[1].i;
    if (!np_same_device(f) || !np_check_ids(f, ids)) return false;
    if (n < 0) return np_fail(f->c, NEAP_E_ARG, "minlength is %lld: it must be 0 or more", (long long)n);
    neap_tensor *host = np_to_host(f->c, ids), *m = host ? np_as_contiguous(f->c, host, NEAP_INT64) : NULL;
    bool ok = m != NULL;
    for (int64_t i = 0; ok && i < m->numel; i++) {
        int64_t v = NP_DATA(int64_t, m)[i];
        if (v < base)
            ok = np_fail(f->c, NEAP_E_LABEL, "%lld cannot be counted: numbers start at %lld", (long long)v,
                         (long long)base);
        else if (v - base >= n && __builtin_add_overflow(v - base, 1, &n))
            ok = np_fail(f->c, NEAP_E_LABEL, "%lld is too large to be counted", (long long)v);
    }
    np_drop(host);
    np_drop(m);
    if (ok) np_meta_set(f, 0, NEAP_INT64, 1, &n);
    return ok;
}
static bool bincount_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = i ? 9 : 0, .has = 1};
    s->attr[1] = (np_attr){.i = i, .has = 1};
    return i < 2 && np_s_ids(s, 1, 6, 1, (int64_t)8);
}
NP_OP(bincount) = {
    NP_NAMED(bincount),          .args = "ids:T ; minlength:int=0 base:base -> counts:T",
    .tags = NP_NODIFF | NP_SYNC, .infer = bincount_infer,
    .sample = bincount_sample,
};

/* searchsorted(sorted, values, {right = false}): where each value can be put so that the order stays: the first such
 * position, or the last if right. sorted is one ascending row for all values, or has a row for each of theirs.
 * neap.searchsorted(neap.tensor{1, 3, 5}, neap.tensor{3, 9}) is {2, 4}. */
static bool searchsorted_infer(np_frame *f)
{
    const neap_tensor *s = f->in[0], *v = f->in[1];
    char a[100], b[100];
    if (!np_same_device(f)) return false;
    bool fits = s->ndim == 1 || (s->ndim > 1 && s->ndim == v->ndim);
    for (int d = 0; fits && s->ndim > 1 && d < s->ndim - 1; d++) fits = s->shape[d] == v->shape[d];
    if (!fits)
        return np_fail(f->c, NEAP_E_SHAPE, "sorted %s is neither one row nor a row for each one of values %s",
                       np_shape_text(a, sizeof a, s->ndim, s->shape),
                       np_shape_text(b, sizeof b, v->ndim, v->shape));
    f->compute = np_promote((neap_dtype)s->dtype, (neap_dtype)v->dtype);
    np_meta_set(f, 0, NEAP_INT64, v->ndim, v->shape);
    return true;
}
static bool searchsorted_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = i, .has = 1};
    s->attr[1] = (np_attr){.i = i, .has = 1};
    s->no_grad = 3;
    if (i > 1 || !np_s_tensor(s, 0, 0, 0, 1, (int64_t)6)) return false;
    for (int k = 0; k < 6; k++)
        np_store_double(s->dtype, np_ptr(s->in[0]) + k * (int64_t)np_itemsize(s->in[0]), k / 4.0 - 1);
    return np_s_tensor(s, -1.5, 1, i, 2, (int64_t)2, (int64_t)3);
}
NP_OP(searchsorted) = {
    NP_NAMED(searchsorted),
    .args = "sorted:T values:T ; right:bool=false base:base -> ids:T",
    .tags = NP_NODIFF,
    .infer = searchsorted_infer,
    .sample = searchsorted_sample,
};
#endif
