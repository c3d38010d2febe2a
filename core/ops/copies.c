/* copies.c - ops that move elements as they are: clone, contiguous, to, copy_, fill_, cat, stack, zeros_like
 * ...
 *
 * One kernel serves every device: all of them are np_copy_into or a fill, which know how to cross devices and
 * to convert. contiguous and to are views (aliases of their operand) when there is nothing to do. */
#include "autograd/autograd.h"
#include "ops/sample.h"

static inline bool copy_first(np_frame *f) { return np_copy_into(f->c, f->out[0], f->in[0]); }

/* The part of y that begins at position `at` of dim d, of the given size there. */
static inline neap_tensor part_of(const neap_tensor *y, int d, int64_t at, int64_t size)
{
    neap_tensor part = *y;
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    memcpy(shape, y->shape, sizeof shape);
    memcpy(stride, y->stride, sizeof stride);
    shape[d] = size;
    np_tensor_geometry(&part, y->ndim, shape, stride, y->offset + at * stride[d]);
    return part;
}

NP_CPU(clone)(np_frame *f) { return copy_first(f); }
NP_CPU(contiguous)(np_frame *f) { return copy_first(f); }
NP_CPU(to)(np_frame *f) { return copy_first(f); }
NP_CPU(copy_)(np_frame *f) { return np_copy_into(f->c, f->out[0], f->in[1]); }
static inline bool fill_attr(np_frame *f)
{
    int64_t v;
    if (!np_is_float((neap_dtype)f->out[0]->dtype) && np_attr_whole(&f->attr[0], &v))
        return np_fill_integer(f->c, f->out[0], v);
    return np_fill_value(f->c, f->out[0], f->attr[0].f);
}
NP_CPU(fill_)(np_frame *f) { return fill_attr(f); }
NP_CPU(zero_)(np_frame *f) { return np_fill_zero(f->c, f->out[0]); }
NP_CPU(zeros_like)(np_frame *f) { return np_fill_zero(f->c, f->out[0]); }
NP_CPU(ones_like)(np_frame *f) { return np_fill_value(f->c, f->out[0], 1); }
NP_CPU(full_like)(np_frame *f) { return fill_attr(f); }

NP_CPU(flip)(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    neap_tensor back = *x; /* x read from its last element on */
    int64_t stride[NEAP_MAX_DIMS], offset = x->offset;
    if (x->numel == 0) return true;
    memcpy(stride, x->stride, sizeof stride);
    /* a 0-dim tensor takes dimension 1, as everywhere */
    for (int i = 0; x->ndim > 0 && i < f->attr[0].n; i++) {
        int64_t d = f->attr[0].v[i] < 0 ? f->attr[0].v[i] + x->ndim : f->attr[0].v[i];
        offset += (x->shape[d] - 1) * stride[d];
        stride[d] = -stride[d];
    }
    np_tensor_geometry(&back, x->ndim, x->shape, stride, offset);
    return np_copy_into(f->c, f->out[0], &back);
}

NP_CPU(cat)(np_frame *f)
{
    int d = (int)f->attr[0].i;
    int64_t at = 0;
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor part = part_of(f->out[0], d, at, f->in[i]->shape[d]);
        if (!np_copy_into(f->c, &part, f->in[i])) return false;
        at += f->in[i]->shape[d];
    }
    return true;
}

NP_CPU(stack)(np_frame *f)
{
    neap_tensor *y = f->out[0];
    int d = (int)f->attr[0].i;
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor slice = part_of(y, d, i, 1);
        for (int k = d; k + 1 < y->ndim; k++)
            slice.shape[k] = y->shape[k + 1], slice.stride[k] = y->stride[k + 1];
        np_tensor_geometry(&slice, y->ndim - 1, slice.shape, slice.stride, slice.offset);
        if (!np_copy_into(f->c, &slice, f->in[i])) return false;
    }
    return true;
}

#ifdef NP_BASE_ONLY

static void s_int(np_sampler *s, int k, int64_t v) { s->attr[k] = (np_attr){.i = v, .has = 1}; }
static void s_float(np_sampler *s, int k, double v) { s->attr[k] = (np_attr){.f = v, .has = 1}; }

/* A view of in[0] that is in[0]: when an op has nothing to do. */
static void meta_alias(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    np_meta_view(f, 0, x->ndim, x->shape, x->stride, x->offset);
}

static void identity_grad(np_back *b) { b->dx[0] = b->g[0]; }

/* ---- copies of one tensor */

/* clone(x): a copy with its own memory; gradients flow through. */
NP_OP(clone) = {
    NP_NAMED(clone),        .args = "x:T -> y:T",  .tags = NP_POINTWISE | NP_CHEAP | NP_ANYWHERE,
    .infer = np_infer_same, .grad = identity_grad, .sample = np_sample_unary,
};

/* flip(x, dims): a copy with the order of elements turned round along these dimensions. x:flip(1). */
static bool flip_infer(np_frame *f)
{
    unsigned seen = 0;
    if (!np_infer_same(f)) return false;
    for (int i = 0; i < f->attr[0].n; i++) {
        int d = np_wrap_dim(f->c, f->attr[0].v[i], f->in[0]->ndim);
        if (d < 0) return false;
        if (seen & 1u << d) return np_fail(f->c, NEAP_E_DIMS, "dimension %d is given twice", d + f->c->base);
        seen |= 1u << d;
    }
    return true;
}

static void flip_grad(np_back *b) { b->dx[0] = np_flip(b, b->g[0], b->attr[0].v, b->attr[0].n); }

static bool flip_sample(np_sampler *s, int i)
{
    int64_t n = np_s_size(s, 3, 1000);
    if (i > 2) return false;
    s->lists[0][0] = i == 0 ? 0 : -1;
    s->lists[0][1] = 0;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = i == 2 ? 2 : 1, .has = 1};
    return np_s_tensor(s, -2, 2, i, 2, n, (int64_t)4);
}

NP_OP(flip) = {
    NP_NAMED(flip),    .args = "x:T dims:dims -> y:T", .tags = NP_CHEAP | NP_ANYWHERE, .infer = flip_infer,
    .grad = flip_grad, .sample = flip_sample,
};

/* contiguous(x): x with its elements in row-major order in memory; a view of x itself when they are already.
 */
static bool contiguous_infer(np_frame *f)
{
    if (!np_infer_same(f)) return false;
    if (f->in[0]->contiguous) meta_alias(f);
    return true;
}

NP_OP(contiguous) = {
    NP_NAMED(contiguous),      .args = "x:T -> y:T",  .tags = NP_POINTWISE | NP_CHEAP | NP_ANYWHERE,
    .infer = contiguous_infer, .grad = identity_grad, .sample = np_sample_unary,
};

/* to(x, {dtype = x.dtype, device = x.device}): x with another element type or on another device; a view of x
 * itself when nothing changes. Floats become integers by truncation, toward the nearest value that fits. */
static bool to_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    const np_attr *dtype = &f->attr[0], *device = &f->attr[1];
    if (!np_same_device(f)) return false;
    if (dtype->has && (dtype->i < 0 || dtype->i >= NEAP_N_DTYPES))
        return np_fail(f->c, NEAP_E_DTYPE, "there is no dtype number %lld", (long long)dtype->i);
    if (device->has) f->dev = np_device_at(f->c, (int)device->i);
    if (!f->dev) return false;
    np_meta_set(f, 0, dtype->has ? (neap_dtype)dtype->i : (neap_dtype)x->dtype, x->ndim, x->shape);
    if (f->meta[0].dtype == x->dtype && f->dev == x->st->dev) meta_alias(f);
    return true;
}

/* Where input i of the node is. */
static int input_device(const np_back *b, int i)
{
    const np_edge *e = &b->node->next[i];
    return e->node ? e->node->meta[e->out_nr].device : 0;
}

static void to_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    if (np_input_shape(b, 0, &ndim, shape, &dtype))
        b->dx[0] = np_to(b, b->g[0], (int)dtype, input_device(b, 0));
}

static bool to_sample(np_sampler *s, int i)
{
    if (i == 1) s_int(s, 0, s->dtype == NEAP_FLOAT64 ? NEAP_FLOAT64 : NEAP_FLOAT32);
    if (i == 2) s_int(s, 1, 0);
    return i <= 2 && np_s_tensor(s, -2, 2, i, 2, (int64_t)3, (int64_t)4);
}

NP_OP(to) = {
    NP_NAMED(to),
    .args = "x:T ; dtype:dtype? device:device? -> y:T",
    .tags = NP_CHEAP | NP_ANYWHERE,
    .infer = to_infer,
    .grad = to_grad,
    .sample = to_sample,
};

/* ---- constants of x's shape */

/* zeros_like(x): zeros with the shape, dtype and device of x. */
NP_OP(zeros_like) = {
    NP_NAMED(zeros_like),   .args = "x:T -> y:T",      .tags = NP_CHEAP | NP_NODIFF | NP_ANYWHERE,
    .infer = np_infer_same, .sample = np_sample_unary,
};

/* ones_like(x): ones with the shape, dtype and device of x. */
NP_OP(ones_like) = {
    NP_NAMED(ones_like),    .args = "x:T -> y:T",      .tags = NP_CHEAP | NP_NODIFF | NP_ANYWHERE,
    .infer = np_infer_same, .sample = np_sample_unary,
};

static bool value_infer(np_frame *f)
{
    return np_infer_same(f) && np_attr_fits(f->c, &f->attr[0], f->compute);
}

static bool value_sample(np_sampler *s, int i)
{
    s_float(s, 0, 1.5);
    return np_sample_unary(s, i);
}

/* full_like(x, value): one value everywhere, with the shape, dtype and device of x. */
NP_OP(full_like) = {
    NP_NAMED(full_like),  .args = "x:T value:float -> y:T", .tags = NP_CHEAP | NP_NODIFF | NP_ANYWHERE,
    .infer = value_infer, .sample = value_sample,
};

/* ---- writing in place */

static void forget_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_zeros_like(b, b->g[0]);
}

/* fill_(x, value): every element of x becomes value. */
NP_OP(fill_) = {
    NP_NAMED(fill_),
    .args = "x:T value:float -> y:T",
    .tags = NP_INPLACE | NP_POINTWISE | NP_CHEAP | NP_ANYWHERE,
    .infer = value_infer,
    .grad = forget_grad,
    .sample = value_sample,
};

/* zero_(x): every element of x becomes 0. */
NP_OP(zero_) = {
    NP_NAMED(zero_),        .args = "x:T -> y:T", .tags = NP_INPLACE | NP_POINTWISE | NP_CHEAP | NP_ANYWHERE,
    .infer = np_infer_same, .grad = forget_grad,  .sample = np_sample_unary,
};

/* copy_(x, src): the elements of src into x, broadcast, converted to x's dtype and moved to its device. */
static bool copy_infer(np_frame *f)
{
    neap_tensor *x = f->in[0], *src = f->in[1];
    char from[128], to[128];
    int ndim = x->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    bool ok = np_broadcast_shape(&ndim, shape, src->ndim, src->shape) && ndim == x->ndim;
    for (int d = 0; ok && d < ndim; d++) ok = shape[d] == x->shape[d];
    if (!ok)
        return np_fail(f->c, NEAP_E_SHAPE,
                       "%s does not broadcast to %s: counted from the last, a size must be equal or 1",
                       np_shape_text(from, sizeof from, src->ndim, src->shape),
                       np_shape_text(to, sizeof to, x->ndim, x->shape));
    f->dev = x->st->dev;
    f->compute = (neap_dtype)x->dtype;
    np_meta_like(f, 0, x);
    return np_number_fits(f->c, src, f->compute);
}

static void copy_grad(np_back *b)
{
    forget_grad(b);
    if (!b->need[1]) return;
    neap_tensor *g = np_unbroadcast(b, b->g[0], 1);
    if (g && g->st->dev->index != input_device(b, 1)) g = np_to(b, g, -1, input_device(b, 1));
    b->dx[1] = g;
}

static bool copy_sample(np_sampler *s, int i)
{
    if (i > 4) return false;
    if (!np_s_tensor(s, -2, 2, i == 3, 2, (int64_t)3, (int64_t)4)) return false;
    if (i == 0) return np_s_tensor(s, -2, 2, 1, 2, (int64_t)3, (int64_t)4);
    if (i == 1) return np_s_tensor(s, -2, 2, 0, 1, (int64_t)4);
    if (i == 2) return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)1);
    if (i == 3) return np_s_tensor(s, -2, 2, 0, 0);
    np_s_number(s, 1.5);
    return true;
}

NP_OP(copy_) = {
    NP_NAMED(copy_),
    .args = "x:T src:N -> y:T",
    .tags = NP_INPLACE | NP_POINTWISE | NP_CHEAP | NP_ANYWHERE,
    .infer = copy_infer,
    .grad = copy_grad,
    .sample = copy_sample,
};

/* ---- joining */

static bool join_types(np_frame *f, neap_dtype *dtype)
{
    if (!np_same_device(f)) return false;
    *dtype = np_promote_operands(f->in, f->n_in);
    return true;
}

/* cat(xs, dim = 1): the tensors one after the other along a dimension; the other sizes must be equal. */
static bool cat_infer(np_frame *f)
{
    neap_ctx *c = f->c;
    const neap_tensor *first = f->in[0];
    char a[128], b[128];
    neap_dtype dtype;
    int64_t shape[NEAP_MAX_DIMS];
    if (!join_types(f, &dtype)) return false;
    if (first->ndim == 0)
        return np_fail(c, NEAP_E_DIMS, "0-dim tensors have no dimension to join along: use stack");
    int d = np_wrap_dim(c, f->attr[0].i, first->ndim);
    if (d < 0) return false;
    f->attr[0].i = d;
    memcpy(shape, first->shape, sizeof shape);
    for (int i = 1; i < f->n_in; i++) {
        const neap_tensor *x = f->in[i];
        bool fits = x->ndim == first->ndim;
        for (int k = 0; fits && k < x->ndim; k++) fits = k == d || x->shape[k] == first->shape[k];
        if (!fits)
            return np_fail(c, NEAP_E_SHAPE,
                           "%s and %s (tensor %d) do not join along dimension %d: other sizes must be equal",
                           np_shape_text(a, sizeof a, first->ndim, first->shape),
                           np_shape_text(b, sizeof b, x->ndim, x->shape), i + c->base, d + c->base);
        if (__builtin_add_overflow(shape[d], x->shape[d], &shape[d]))
            return np_fail(c, NEAP_E_SHAPE, "the result has more elements than can be counted");
    }
    np_meta_set(f, 0, dtype, first->ndim, shape);
    return true;
}

static void cat_grad(np_back *b)
{
    int64_t at = 0, d = b->attr[0].i;
    for (int i = 0; i < b->n_in; i++) {
        int ndim;
        int64_t shape[NEAP_MAX_DIMS];
        neap_dtype dtype;
        if (!np_input_shape(b, i, &ndim, shape, &dtype)) return;
        if (b->need[i]) b->dx[i] = np_unbroadcast(b, np_narrow(b, b->g[0], d, at, shape[d], 1), i);
        at += shape[d];
    }
}

static bool cat_sample(np_sampler *s, int i)
{
    int64_t n = np_s_size(s, 2, 512);
    if (i > 2) return false;
    s_int(s, 0, i == 2 ? -1 : i);
    if (i == 1) return np_s_tensor(s, -2, 2, 1, 2, n, n + 1) && np_s_tensor(s, -2, 2, 0, 2, n, n);
    return np_s_tensor(s, -2, 2, 0, 2, n, n) && np_s_tensor(s, -2, 2, 2, 2, n, n) &&
           np_s_tensor(s, -2, 2, 1, 2, n, n);
}

NP_OP(cat) = {
    NP_NAMED(cat),
    .args = "xs:T* dim:dim=0 -> y:T",
    .tags = NP_CHEAP | NP_ANYWHERE,
    .infer = cat_infer,
    .grad = cat_grad,
    .sample = cat_sample,
};

/* stack(xs, dim = 1): tensors of one shape as the slices of a new dimension. */
static bool stack_infer(np_frame *f)
{
    neap_ctx *c = f->c;
    const neap_tensor *first = f->in[0];
    char a[128], b[128];
    neap_dtype dtype;
    int64_t shape[NEAP_MAX_DIMS];
    if (!join_types(f, &dtype)) return false;
    if (first->ndim == NEAP_MAX_DIMS)
        return np_fail(c, NEAP_E_DIMS, "the tensors have %d dimensions: there is no room for one more",
                       first->ndim);
    int d = np_wrap_dim(c, f->attr[0].i, first->ndim + 1);
    if (d < 0) return false;
    f->attr[0].i = d;
    for (int i = 1; i < f->n_in; i++) {
        const neap_tensor *x = f->in[i];
        bool same = x->ndim == first->ndim;
        for (int k = 0; same && k < x->ndim; k++) same = x->shape[k] == first->shape[k];
        if (!same)
            return np_fail(c, NEAP_E_SHAPE, "%s and %s (tensor %d) differ: stack needs equal shapes",
                           np_shape_text(a, sizeof a, first->ndim, first->shape),
                           np_shape_text(b, sizeof b, x->ndim, x->shape), i + c->base);
    }
    for (int k = 0; k <= first->ndim; k++) shape[k] = k == d ? f->n_in : first->shape[k < d ? k : k - 1];
    np_meta_set(f, 0, dtype, first->ndim + 1, shape);
    return true;
}

static void stack_grad(np_back *b)
{
    for (int i = 0; i < b->n_in; i++)
        if (b->need[i]) b->dx[i] = np_unbroadcast(b, np_select(b, b->g[0], b->attr[0].i, i), i);
}

static bool stack_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    s_int(s, 0, i == 2 ? -1 : i);
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)2, (int64_t)3) &&
           np_s_tensor(s, -2, 2, i, 2, (int64_t)2, (int64_t)3);
}

NP_OP(stack) = {
    NP_NAMED(stack),
    .args = "xs:T* dim:dim=0 -> y:T",
    .tags = NP_CHEAP | NP_ANYWHERE,
    .infer = stack_infer,
    .grad = stack_grad,
    .sample = stack_sample,
};

#endif
