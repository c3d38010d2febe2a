/* pick.c - positions found and used all at once: nonzero, one_hot, take, and x[i, j, mask] with several tensors.
 *
 * Indexing by several tensors becomes indexing by one: the dimensions in question are brought side by side and seen as one,
 * and linear_positions makes one position of several (masks are turned into the positions where they are true). The
 * rest is index_select, index_copy and index_add, and so are the gradients. */
#include "autograd/autograd.h"
#include "ops/cpu/positions.h"
#include "ops/sample.h"

NP_CPU(nonzero)(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    neap_tensor *m = np_as_contiguous(f->c, f->in[0], NEAP_BOOL);
    if (!m) return false;
    int64_t *out = NP_DATA(int64_t, f->out[0]), at[NEAP_MAX_DIMS] = {0}, room = f->out[0]->numel;
    for (int64_t i = 0; i < m->numel && room > 0; i++) {
        if (NP_DATA(bool, m)[i]) {
            for (int d = 0; d < x->ndim; d++) *out++ = at[d] + f->attr[0].i;
            room -= x->ndim;
        }
        for (int d = x->ndim - 1; d >= 0 && ++at[d] == x->shape[d]; d--) at[d] = 0;
    }
    np_drop(m);
    return true;
}

NP_CPU(one_hot)(np_frame *f)
{
    int64_t n = f->attr[0].i;
    neap_tensor *y = f->out[0], *ids = np_positions(f, f->in[0], n, f->attr[1].i, "classes");
    if (!ids || !np_fill_zero(f->c, y)) {
        np_drop(ids);
        return false;
    }
    for (int64_t i = 0; i < ids->numel; i++)
        np_store_double((neap_dtype)y->dtype,
                        np_ptr(y) + (size_t)(i * n + NP_DATA(int64_t, ids)[i]) * np_itemsize(y), 1);
    np_drop(ids);
    return true;
}

NP_CPU(linear_positions)(np_frame *f)
{
    neap_tensor *y = f->out[0];
    const np_attr *sizes = &f->attr[0];
    int64_t *out = NP_DATA(int64_t, y);
    if (!np_fill_zero(f->c, y)) return false;
    for (int k = 0; k < f->n_in; k++) {
        neap_tensor *ids = np_positions(f, f->in[k], sizes->v[k], f->attr[1].i, NULL);
        if (!ids) return false;
        int64_t step[NEAP_MAX_DIMS] = {0}, at[NEAP_MAX_DIMS] = {0};
        for (int d = 0; d < ids->ndim; d++)
            step[d + y->ndim - ids->ndim] = ids->shape[d] == 1 ? 0 : ids->stride[d];
        for (int64_t i = 0; i < y->numel; i++) {
            int64_t from = 0;
            for (int d = 0; d < y->ndim; d++) from += at[d] * step[d];
            out[i] = out[i] * sizes->v[k] + NP_DATA(int64_t, ids)[from];
            for (int d = y->ndim - 1; d >= 0 && ++at[d] == y->shape[d]; d--) at[d] = 0;
        }
        np_drop(ids);
    }
    return true;
}

#ifdef NP_BASE_ONLY

/* ---- positions as results */

/* nonzero(x): the positions of all elements that are not 0 (or true), in row-major order: (n, x.ndim), int64. Reads x.
 * neap.tensor{0, 5, 7}:nonzero() is {{2}, {3}}. */
static bool nonzero_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    if (!np_same_device(f)) return false;
    neap_tensor *host = np_to_host(f->c, x), *m = host ? np_as_contiguous(f->c, host, NEAP_BOOL) : NULL;
    int64_t shape[2] = {0, x->ndim};
    for (int64_t i = 0; m && i < m->numel; i++) shape[0] += NP_DATA(bool, m)[i];
    bool ok = m != NULL;
    np_drop(host);
    np_drop(m);
    if (ok) np_meta_set(f, 0, NEAP_INT64, 2, shape);
    return ok;
}

static bool nonzero_sample(np_sampler *s, int i)
{
    s->label = i ? "numbers" : "mask";
    s->attr[0] = (np_attr){.i = 0, .has = 1};
    return i == 0 ? np_s_mask(s, 2, (int64_t)3, (int64_t)4) : i == 1 && np_s_ids(s, -1, 1, 1, (int64_t)6);
}

NP_OP(nonzero) = {
    NP_NAMED(nonzero),      .args = "x:T ; base:base -> ids:T", .tags = NP_NODIFF | NP_SYNC,
    .infer = nonzero_infer, .sample = nonzero_sample,
};

/* one_hot(ids, classes, {dtype =, base = 1}): zeros with a one at each id along a new last dimension of size classes. An
 * id that is no class is an error. neap.one_hot(neap.tensor{3, 1}, 3) is {{0, 0, 1}, {1, 0, 0}}. */
static bool one_hot_infer(np_frame *f)
{
    const neap_tensor *ids = f->in[0];
    const np_attr *n = &f->attr[0], *dtype = &f->attr[2];
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_same_device(f) || !np_check_ids(f, ids)) return false;
    if (n->i < 1) return np_fail(f->c, NEAP_E_ARG, "%lld classes: at least 1", (long long)n->i);
    if (ids->ndim == NEAP_MAX_DIMS)
        return np_fail(f->c, NEAP_E_DIMS, "ids has %d dimensions: there is no room for one more", ids->ndim);
    if (dtype->has && (dtype->i < 0 || dtype->i >= NEAP_N_DTYPES))
        return np_fail(f->c, NEAP_E_DTYPE, "there is no dtype number %lld", (long long)dtype->i);
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->ndim] = n->i;
    np_meta_set(f, 0, dtype->has ? (neap_dtype)dtype->i : np_default_float(f->c), ids->ndim + 1, shape);
    return true;
}

static bool one_hot_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = 4, .has = 1};
    s->attr[1] = (np_attr){.i = i, .has = 1};
    return i < 2 && (i ? np_s_ids(s, 1, 4, 2, (int64_t)2, (int64_t)3) : np_s_ids(s, 0, 3, 1, (int64_t)5));
}

NP_OP(one_hot) = {
    NP_NAMED(one_hot),        .args = "ids:T classes:int ; base:base dtype:dtype? -> y:T",
    .tags = NP_NODIFF,        .infer = one_hot_infer,
    .sample = one_hot_sample,
};

/* ---- positions in all of x, or along one dimension with broadcasting */

/* take(x, ids): the elements of x, laid out in a row, at positions ids -> the shape of ids. x:take(neap.tensor{1, -1}) */
static void take_parts(np_back *b, np_frame *f)
{
    const int64_t row = -1;
    f->out[0] = np_index_select(b, np_reshape(b, f->in[0], &row, 1), 0, f->in[1], f->attr[0].i);
}
static bool take_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.i = 0, .has = 1};
    return i < 2 && np_s_tensor(s, -2, 2, i, 2, (int64_t)3, (int64_t)4) &&
           np_s_ids(s, -12, 11, 2, (int64_t)2, (int64_t)3);
}
NP_OP(take) = {NP_NAMED(take), .args = "x:T ids:T ; base:base -> y:T", .tags = NP_COMPOSITE,
               .parts = take_parts, .sample = take_sample};

/* t expanded to other's sizes but along dim. */
static neap_tensor *expand_beside(np_back *b, neap_tensor *t, const int64_t *shape, int dim)
{
    int64_t want[NEAP_MAX_DIMS];
    bool same = true;
    for (int d = 0; d < t->ndim; d++) {
        want[d] = d == dim || t->shape[d] != 1 ? t->shape[d] : shape[d];
        same = same && want[d] == t->shape[d];
    }
    return same ? t : np_expand(b, t, want, t->ndim);
}

/* take_along_dim(x, ids, [dim]): gather with broadcasting: the elements of x at positions ids along dim, where the other
 * dimensions of x and ids are equal or 1. Without dim both are laid out in a row. It takes what argsort and argmax (with
 * keepdim) give: x:take_along_dim(x:argsort(2), 2) is sorted. */
static void take_along_dim_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0], *ids = f->in[1];
    const int64_t row = -1;
    char p[100], q[100];
    if (!f->attr[0].has) x = np_reshape(b, x, &row, 1), ids = np_reshape(b, ids, &row, 1);
    if (!x || !ids) return;
    int dim = f->attr[0].has ? np_wrap_dim(f->c, f->attr[0].i, x->ndim) : 0;
    if (dim < 0) return;
    bool fits = x->ndim == ids->ndim;
    for (int d = 0; fits && d < x->ndim; d++)
        fits = d == dim || x->shape[d] == ids->shape[d] || x->shape[d] == 1 || ids->shape[d] == 1;
    if (!fits) {
        np_fail(f->c, NEAP_E_SHAPE,
                "x %s and ids %s: as many dimensions, and sizes equal or 1 beside dimension %d",
                np_shape_text(p, sizeof p, x->ndim, x->shape),
                np_shape_text(q, sizeof q, ids->ndim, ids->shape), dim + f->c->base);
        return;
    }
    int64_t sizes[NEAP_MAX_DIMS];
    memcpy(sizes, x->shape, sizeof sizes);
    neap_tensor *from = expand_beside(b, x, ids->shape, dim);
    f->out[0] = np_gather(b, from, dim, expand_beside(b, ids, sizes, dim), f->attr[1].i);
}
static bool take_along_dim_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    if (i) s->attr[0] = (np_attr){.i = i == 1 ? 1 : 0, .has = 1};
    s->attr[1] = (np_attr){.i = 0, .has = 1};
    s->label = i == 0 ? "in a row" : i == 1 ? "one row of ids" : "one row of x";
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)(i == 2 ? 1 : 4)) &&
           (i == 1 ? np_s_ids(s, 0, 3, 2, (int64_t)1, (int64_t)5)
                   : np_s_ids(s, 0, 2, 2, (int64_t)2, (int64_t)3));
}
NP_OP(take_along_dim) = {NP_NAMED(take_along_dim), .args = "x:T ids:T dim:dim? ; base:base -> y:T",
                         .tags = NP_COMPOSITE, .parts = take_along_dim_parts,
                         .sample = take_along_dim_sample};

/* ---- several tensors of positions */

/* linear_positions(ids, sizes): positions along several dimensions of these sizes as one position, from 0, of all of them
 * laid out in a row. The tensors broadcast. */
static bool linear_positions_infer(np_frame *f)
{
    int n = 0;
    int64_t shape[NEAP_MAX_DIMS];
    char a[100], b[100];
    if (!np_same_device(f)) return false;
    if (f->attr[0].n != f->n_in) return np_fail(f->c, NEAP_E_ARG, "one size for each tensor of positions");
    for (int k = 0; k < f->n_in; k++) {
        const neap_tensor *ids = f->in[k];
        if (!np_check_ids(f, ids)) return false;
        if (!np_broadcast_shape(&n, shape, ids->ndim, ids->shape))
            return np_fail(
                f->c, NEAP_E_SHAPE, "tensors of positions %s and %s do not broadcast: sizes are equal or 1",
                np_shape_text(a, sizeof a, n, shape), np_shape_text(b, sizeof b, ids->ndim, ids->shape));
    }
    np_meta_set(f, 0, NEAP_INT64, n, shape);
    return true;
}
static bool linear_positions_sample(np_sampler *s, int i)
{
    s->lists[0][0] = 3, s->lists[0][1] = 4;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 2, .has = 1};
    s->attr[1] = (np_attr){.i = 1, .has = 1};
    return i < 1 && np_s_ids(s, 1, 3, 2, (int64_t)2, (int64_t)1) && np_s_ids(s, -4, -1, 1, (int64_t)3);
}
NP_OP(linear_positions) = {
    NP_NAMED(linear_positions),        .args = "ids:T* sizes:shape ; base:base -> y:T",
    .tags = NP_INTERNAL | NP_NODIFF,   .infer = linear_positions_infer,
    .sample = linear_positions_sample,
};

typedef struct picked { /* x seen so that all picked dimensions are one */
    neap_tensor *view, *flat,
        *ids; /* view: x with its dimensions in `order`; flat: the picked ones as one, number `at` */
    int at, n;
    int64_t order[NEAP_MAX_DIMS];
} picked;

/* Masks become the positions where they are true: ids[k] for dimension dims[k]. How many there are; 0 with an error. */
static int spread_masks(np_back *b, const neap_tensor *x, neap_tensor *const *in, int n_in,
                        const np_attr *dims, int64_t base, neap_tensor **ids, int *at)
{
    int n = 0;
    for (int k = 0; k < n_in; k++) {
        int d = np_wrap_dim(b->c, dims->v[k], x->ndim), width = in[k]->dtype == NEAP_BOOL ? in[k]->ndim : 1;
        if (d < 0) return 0;
        if (n + width > NEAP_MAX_DIMS || d + width > x->ndim || (n && d <= at[n - 1]))
            return (int)(intptr_t)np_fail(b->c, NEAP_E_INDEX,
                                          "too many positions for a tensor of %d dimensions", x->ndim);
        if (in[k]->dtype != NEAP_BOOL) {
            ids[n] = in[k], at[n++] = d;
            continue;
        }
        for (int j = 0; j < width; j++)
            if (in[k]->shape[j] != x->shape[d + j])
                return (int)(intptr_t)np_fail(
                    b->c, NEAP_E_SHAPE, "the mask has size %lld where dimension %d has %lld",
                    (long long)in[k]->shape[j], d + j + b->c->base, (long long)x->shape[d + j]);
        if (width == 0)
            return (int)(intptr_t)np_fail(b->c, NEAP_E_DIMS,
                                          "a mask of 0 dimensions stands for no dimension");
        neap_tensor *where = np_nonzero(b, in[k], base);
        for (int j = 0; where && j < width; j++) {
            ids[n] = np_select(b, j + 1 < width ? np_hold(b, where) : where, 1, j);
            at[n++] = d + j;
        }
        if (np_pending(b->c)) return 0;
    }
    return n;
}

/* in: x, then the tensors of positions. Those side by side keep their place, others go to the front. */
static bool pick(np_back *b, neap_tensor *x, neap_tensor *const *in, int n_in, const np_attr *dims,
                 int64_t base, picked *p)
{
    neap_tensor *ids[NEAP_MAX_DIMS];
    int at[NEAP_MAX_DIMS], n, k = 0;
    if (dims->n != n_in) return np_fail(b->c, NEAP_E_ARG, "one dimension for each tensor of positions");
    if (!(n = spread_masks(b, x, in, n_in, dims, base, ids, at))) return false;
    bool together = at[n - 1] - at[0] == n - 1;
    p->at = together ? at[0] : 0;
    p->n = 0;
    for (int d = 0; d < p->at; d++) p->order[p->n++] = d;
    for (int i = 0; i < n; i++) p->order[p->n++] = at[i];
    for (int d = p->at; d < x->ndim; d++) {
        while (k < n && at[k] < d) k++;
        if (k == n || at[k] != d) p->order[p->n++] = d;
    }
    int64_t shape[NEAP_MAX_DIMS], sizes[NEAP_MAX_DIMS], all = 1;
    int m = 0;
    for (int i = 0; i < n; i++) all *= sizes[i] = x->shape[at[i]];
    for (int d = 0; d < p->at; d++) shape[m++] = x->shape[p->order[d]];
    shape[m++] = all;
    for (int d = p->at + n; d < p->n; d++) shape[m++] = x->shape[p->order[d]];
    p->view = together ? x : np_permute(b, x, p->order, p->n);
    p->flat = np_reshape(b, np_hold(b, p->view), shape, m);
    p->ids = np_linear_positions(b, ids, n, sizes, n, base);
    return !np_pending(b->c);
}

/* index_at(xs, dims): xs = x and tensors of positions or masks, for these dimensions of x in ascending order. */
static void index_at_parts(np_back *b, np_frame *f)
{
    picked p;
    if (pick(b, f->in[0], f->in + 1, f->n_in - 1, &f->attr[0], f->attr[1].i, &p))
        f->out[0] = np_index_select(b, p.flat, p.at, p.ids, 0);
}

/* An op that writes into x, in the frame of a formula. */
static neap_tensor *write_into(np_back *b, int op, neap_tensor *const *in, int n_in, int64_t dim)
{
    np_frame f;
    np_frame_begin(&f, b->c, np_ops[op], in, n_in);
    f.attr[0] = (np_attr){.i = dim, .has = 1};
    f.attr[1] = (np_attr){.i = 0, .has = 1};
    return np_back_call(b, &f);
}

/* Can a part of x be written by way of a view, so that x itself stays of use? Not when x is a view in a graph. */
static bool writes_through(np_back *b, neap_tensor *const *in)
{
    bool graph = np_requires_grad(in[0]) || np_requires_grad(in[1]);
    return !(graph && np_grad_on(b->c));
}

/* index_put_at_(xs, dims, accumulate): xs = x, values, then tensors of positions or masks for these dimensions of x; the
 * values, broadcast to what index_at gives, are written or added there. */
static void index_put_at_parts(np_back *b, np_frame *f)
{
    picked p;
    neap_tensor *x = f->in[0], *v = f->in[1];
    bool add = f->attr[1].i;
    if (f->n_in < 3) {
        np_fail(f->c, NEAP_E_ARG, "x, the values and at least one tensor of positions");
        return;
    }
    if (!pick(b, x, f->in + 2, f->n_in - 2, &f->attr[0], f->attr[2].i, &p)) return;
    if (add) {
        int64_t shape[NEAP_MAX_DIMS];
        int n = 0;
        if (p.flat->ndim - 1 + p.ids->ndim > NEAP_MAX_DIMS ||
            !np_number_fits(f->c, v, (neap_dtype)x->dtype)) {
            np_fail(f->c, NEAP_E_DIMS, "the positions select more than %d dimensions", NEAP_MAX_DIMS);
            return;
        }
        for (int d = 0; d < p.at; d++) shape[n++] = p.flat->shape[d];
        for (int d = 0; d < p.ids->ndim; d++) shape[n++] = p.ids->shape[d];
        for (int d = p.at + 1; d < p.flat->ndim; d++) shape[n++] = p.flat->shape[d];
        v = np_expand(b, np_to(b, v, x->dtype, x->st->dev->index), shape, n);
    }
    if (!v) return;
    if (p.flat->st == x->st && writes_through(b, f->in)) {
        neap_tensor *in[3] = {p.flat, p.ids, v};
        write_into(b, add ? NP_OPX_index_add_ : NP_OPX_index_copy_, in, 3, p.at);
    } else {
        int64_t back[NEAP_MAX_DIMS];
        for (int d = 0; d < p.n; d++) back[p.order[d]] = d;
        neap_tensor *y =
            add ? np_index_add(b, p.flat, p.at, p.ids, v, 0) : np_index_copy(b, p.flat, p.at, p.ids, v, 0);
        if (p.view && y) y = np_permute(b, np_reshape(b, y, p.view->shape, p.n), back, p.n);
        if (y) write_into(b, NP_OPX_copy_, (neap_tensor *[]){x, y}, 2, 0);
    }
    f->out[0] = x;
}

static bool pick_sample(np_sampler *s, int i, bool put)
{
    static const char *const labels[] = {"side by side", "apart", "mask", "broadcast", "transposed"};
    if (i > 4) return false;
    s->label = labels[i];
    s->lists[0][0] = i == 1 ? 0 : i == 2 ? 0 : 1;
    s->lists[0][1] = 2;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = i == 2 ? 1 : 2, .has = 1};
    s->attr[put ? 2 : 1] = (np_attr){.i = 0, .has = 1};
    if (put) s->attr[1] = (np_attr){.i = i % 2, .has = 1};
    if (!np_s_tensor(s, -2, 2, i == 4, 3, (int64_t)2, (int64_t)3, (int64_t)4)) return false;
    if (put && !np_s_tensor(s, -2, 2, 0, i == 2 ? 1 : 0, (int64_t)4)) return false;
    if (i == 2) return np_s_mask(s, 2, (int64_t)2, (int64_t)3);
    if (!np_s_ids(s, 0, i == 1 ? 1 : 2, i == 3 ? 2 : 1, (int64_t)5, (int64_t)1)) return false;
    return i == 3 ? np_s_ids(s, 0, 3, 1, (int64_t)2) : np_s_ids(s, 0, 3, 1, (int64_t)5);
}
static bool index_at_sample(np_sampler *s, int i) { return pick_sample(s, i, false); }
static bool index_put_at_sample(np_sampler *s, int i) { return pick_sample(s, i, true); }

NP_OP(index_at) = {NP_NAMED(index_at), .args = "xs:T* dims:dims ; base:base -> y:T",
                   .tags = NP_COMPOSITE | NP_INTERNAL, .parts = index_at_parts, .sample = index_at_sample};
NP_OP(index_put_at_) = {NP_NAMED(index_put_at_),
                        .args = "xs:T* dims:dims ; accumulate:bool=false base:base -> y:T",
                        .tags = NP_COMPOSITE | NP_INTERNAL | NP_INPLACE, .parts = index_put_at_parts,
                        .sample = index_put_at_sample};

/* ---- for hosts */

/* The tensors of positions among ids, after the n_in operands there are; how many operands then. */
static int collect(neap_ctx *c, neap_tensor *const *ids, int n, neap_tensor **in, int n_in, int64_t *dims)
{
    if (n > NEAP_MAX_DIMS)
        np_fail(c, NEAP_E_DIMS, "index: positions for %d dimensions, a tensor has at most %d", n,
                NEAP_MAX_DIMS);
    for (int d = 0, k = 0; ids && d < n && d < NEAP_MAX_DIMS; d++)
        if (ids[d]) in[n_in++] = ids[d], dims[k++] = d;
    return n_in;
}

neap_tensor *neap_index(neap_ctx *c, neap_tensor *x, neap_tensor *const *ids, int n)
{
    neap_tensor *in[1 + NEAP_MAX_DIMS] = {x};
    int64_t dims[NEAP_MAX_DIMS];
    int n_in = collect(c, ids, n, in, 1, dims);
    if (np_pending(c)) return NULL;
    if (n_in < 2) return np_fail(c, NEAP_E_ARG, "index: no tensor of positions is given");
    return neap_index_at(c, in, n_in, dims, n_in - 1, 0);
}

int neap_index_put_(neap_ctx *c, neap_tensor *x, neap_tensor *const *ids, int n, neap_tensor *v,
                    int accumulate)
{
    neap_tensor *in[2 + NEAP_MAX_DIMS] = {x, v};
    int64_t dims[NEAP_MAX_DIMS];
    int n_in = collect(c, ids, n, in, 2, dims);
    neap_tensor *y = neap_index_put_at_(c, in, n_in, dims, n_in - 2, accumulate, 0);
    neap_free(neap_keep(y)); /* x itself */
    return y ? 0 : -1;
}

#endif
