/* shape.c - ops that look at the same elements another way: select, narrow, expand, permute, view, reshape
 * ...
 *
 * A view has no kernel: its infer describes a geometry over the operand's storage and the dispatcher makes
 * it. Negative dims and positions are resolved in the call's attributes, so gradients find them resolved.
 * reshape and flatten are views when the layout allows it and copies when not. Copies proper are in copies.c,
 * free geometry over a storage is in windows.c. */
#include "autograd/autograd.h"
#include "ops/sample.h"

static inline bool copy_reshaped(np_frame *f)
{
    int64_t stride[NEAP_MAX_DIMS];
    const neap_tensor *x = f->in[0];
    neap_tensor like_x = *f->out[0];
    np_contiguous_strides(x->ndim, x->shape, stride);
    np_tensor_geometry(&like_x, x->ndim, x->shape, stride, like_x.offset);
    return np_copy_into(f->c, &like_x, x);
}

NP_CPU(reshape)(np_frame *f) { return copy_reshaped(f); }
NP_CPU(flatten)(np_frame *f) { return copy_reshaped(f); }

/* g (the shape of the window) into zeros of the given shape. */
NP_CPU(narrow_backward)(np_frame *f)
{
    neap_tensor *y = f->out[0], window = *y;
    int d = (int)f->attr[1].i;
    int64_t stride[NEAP_MAX_DIMS];
    memcpy(stride, y->stride, sizeof stride);
    if (!np_fill_zero(f->c, y)) return false;
    stride[d] *= f->attr[3].i;
    np_tensor_geometry(&window, y->ndim, f->in[0]->shape, stride, y->offset + f->attr[2].i * y->stride[d]);
    return np_copy_into(f->c, &window, f->in[0]);
}

#ifdef NP_BASE_ONLY

/* ---- helpers of infer */

/* Shape attribute k with at most one -1, worked out so that the elements of in[0] fit. */
static bool resolve_shape(np_frame *f, int k, int64_t *shape)
{
    neap_ctx *c = f->c;
    const np_attr *a = &f->attr[k];
    const neap_tensor *x = f->in[0];
    char from[128], to[128];
    int64_t known = 1;
    int hole = -1;
    if (a->n < 0 || a->n > NEAP_MAX_DIMS)
        return np_fail(c, NEAP_E_DIMS, "a shape has at most %d sizes, not %d", NEAP_MAX_DIMS, a->n);
    np_shape_text(to, sizeof to, a->n, a->v);
    for (int i = 0; i < a->n; i++) {
        shape[i] = a->v[i];
        if (shape[i] == -1 && hole < 0) hole = i;
        else if (shape[i] == -1)
            return np_fail(c, NEAP_E_SHAPE, "%s has -1 twice: only one size can be worked out", to);
        else if (shape[i] < 0)
            return np_fail(c, NEAP_E_SHAPE, "size %lld in %s is negative: only -1, once, has a meaning",
                           (long long)shape[i], to);
        else if (__builtin_mul_overflow(known, shape[i], &known))
            return np_fail(c, NEAP_E_SHAPE, "%s has more elements than can be counted", to);
    }
    if (hole >= 0 && known > 0 && x->numel % known == 0) {
        shape[hole] = x->numel / known;
        return true;
    }
    if (hole < 0 && known == x->numel) return true;
    if (hole >= 0 && known == 0)
        return np_fail(c, NEAP_E_SHAPE, "the -1 in %s cannot be worked out next to a size of 0: write it out",
                       to);
    return np_fail(c, NEAP_E_SHAPE, "%s has %lld elements, which do not fit the shape %s",
                   np_shape_text(from, sizeof from, x->ndim, x->shape), (long long)x->numel, to);
}

/* Strides that show x's elements in row-major order as `shape`; false if its memory layout has none. Groups
 * of neighbouring dims that are one run in memory are cut anew; numel is the same. */
static bool view_strides(const neap_tensor *x, int ndim, const int64_t *shape, int64_t *stride)
{
    if (x->numel == 0 || x->contiguous) {
        np_contiguous_strides(ndim, shape, stride);
        return true;
    }
    int at = ndim - 1;
    int64_t run = 1, cut = 1, step = x->stride[x->ndim - 1];
    for (int d = x->ndim - 1; d >= 0; d--) {
        run *= x->shape[d];
        bool ends = d == 0 || (x->shape[d - 1] != 1 && x->stride[d - 1] != run * step);
        if (!ends) continue;
        while (at >= 0 && (cut < run || shape[at] == 1)) {
            stride[at] = cut * step;
            cut *= shape[at--];
        }
        if (cut != run) return false;
        if (d > 0) step = x->stride[d - 1], run = cut = 1;
    }
    return at < 0;
}

static bool view_or_copy(np_frame *f, int ndim, const int64_t *shape)
{
    int64_t stride[NEAP_MAX_DIMS];
    neap_tensor *x = f->in[0];
    if (!np_same_device(f)) return false;
    if (view_strides(x, ndim, shape, stride)) np_meta_view(f, 0, ndim, shape, stride, x->offset);
    else np_meta_set(f, 0, (neap_dtype)x->dtype, ndim, shape);
    return true;
}

/* A dim attribute of a tensor that has dims, resolved in place. */
static bool resolve_dim(np_frame *f, int k, int ndim)
{
    if (ndim == 0)
        return np_fail(f->c, NEAP_E_DIMS, "the tensor has 0 dimensions: there is nothing to choose from");
    int d = np_wrap_dim(f->c, f->attr[k].i, ndim);
    f->attr[k].i = d;
    return d >= 0;
}

/* Geometry of in[0] to start from. */
static void geometry_of(const np_frame *f, int64_t *shape, int64_t *stride)
{
    memcpy(shape, f->in[0]->shape, sizeof f->in[0]->shape);
    memcpy(stride, f->in[0]->stride, sizeof f->in[0]->stride);
}

static void swap_dims(int64_t *v, int64_t a, int64_t b)
{
    int64_t t = v[a];
    v[a] = v[b], v[b] = t;
}

/* g in the shape of input 0: the gradient of everything that only regroups elements. */
static void reshape_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    if (np_input_shape(b, 0, &ndim, shape, &dtype)) b->dx[0] = np_reshape(b, b->g[0], shape, ndim);
}

/* ---- helpers of samples */

static void s_int(np_sampler *s, int k, int64_t v) { s->attr[k] = (np_attr){.i = v, .has = 1}; }

/* Attribute k = the first n of a, b, c. */
static void s_list(np_sampler *s, int k, int n, int64_t a, int64_t b, int64_t c)
{
    const int64_t v[3] = {a, b, c};
    for (int i = 0; i < n; i++) s->lists[k][i] = v[i];
    s->attr[k] = (np_attr){.v = s->lists[k], .n = n, .has = 1};
}

static bool s_matrix(np_sampler *s, int layout, int64_t rows, int64_t columns)
{
    rows = np_s_size(s, rows, 256 * rows), columns = np_s_size(s, columns, 256 * columns);
    return np_s_tensor(s, -2, 2, layout, 2, rows, columns);
}

static bool s_cube(np_sampler *s, int layout, int64_t a, int64_t b, int64_t c)
{
    return np_s_tensor(s, -2, 2, layout, 3, a, b, c);
}

/* ---- choosing elements */

/* select(x, dim, i): the slice at position i of a dimension, which goes away. A view. */
static bool select_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    if (!np_same_device(f) || !resolve_dim(f, 0, x->ndim)) return false;
    int d = (int)f->attr[0].i;
    int64_t i = f->attr[1].i = np_wrap_index(f->c, f->attr[1].i, x->shape[d], d);
    if (i < 0) return false;
    geometry_of(f, shape, stride);
    int64_t offset = x->offset + i * stride[d];
    for (int k = d; k + 1 < x->ndim; k++) shape[k] = shape[k + 1], stride[k] = stride[k + 1];
    np_meta_view(f, 0, x->ndim - 1, shape, stride, offset);
    return true;
}

static void select_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    if (!np_input_shape(b, 0, &ndim, shape, &dtype)) return;
    neap_tensor *g = np_unsqueeze(b, b->g[0], b->attr[0].i);
    b->dx[0] = np_narrow_backward(b, g, shape, ndim, b->attr[0].i, b->attr[1].i, 1);
}

static bool select_sample(np_sampler *s, int i)
{
    static const int8_t dim[] = {0, 1, -1}, at[] = {2, 0, -1};
    if (i > 2) return false;
    s_int(s, 0, dim[i]);
    s_int(s, 1, at[i]);
    return i < 2 ? s_matrix(s, i, 3, 4) : s_cube(s, 0, 2, 3, 4);
}

NP_OP(select) = {
    NP_NAMED(select),           .args = "x:T dim:dim i:index -> y:T",
    .tags = NP_VIEW | NP_CHEAP, .infer = select_infer,
    .grad = select_grad,        .sample = select_sample,
};

/* narrow(x, dim, start, length, {step = 1}): length positions of a dimension, from start on. A view. */
static bool narrow_infer(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], length = f->attr[2].i, step = f->attr[3].i;
    if (!np_same_device(f) || !resolve_dim(f, 0, x->ndim)) return false;
    int d = (int)f->attr[0].i;
    int64_t size = x->shape[d], start = f->attr[1].i;
    if (step < 1) return np_fail(c, NEAP_E_ARG, "the step is %lld: it must be 1 or more", (long long)step);
    if (length < 0)
        return np_fail(c, NEAP_E_ARG, "the length is %lld: it must be 0 or more", (long long)length);
    if (length > 0 || start != size) start = np_wrap_index(c, start, size, d);
    if (start < 0) return false;
    if (length > 0 && (length - 1) > (size - 1 - start) / step)
        return np_fail(
            c, NEAP_E_INDEX, "%lld positions from %lld in steps of %lld leave dimension %d of size %lld",
            (long long)length, (long long)(start + c->base), (long long)step, d + c->base, (long long)size);
    f->attr[1].i = start;
    geometry_of(f, shape, stride);
    shape[d] = length;
    int64_t offset = x->offset + (length ? start * stride[d] : 0);
    stride[d] = length > 1 ? stride[d] * step : stride[d];
    np_meta_view(f, 0, x->ndim, shape, stride, offset);
    return true;
}

static void narrow_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    if (np_input_shape(b, 0, &ndim, shape, &dtype))
        b->dx[0] = np_narrow_backward(b, b->g[0], shape, ndim, b->attr[0].i, b->attr[1].i, b->attr[3].i);
}

static bool narrow_sample(np_sampler *s, int i)
{
    static const int8_t dim[] = {0, 1, -2, 1}, start[] = {1, 0, -2, 4}, length[] = {2, 3, 1, 0},
                        step[] = {1, 2, 1, 1};
    if (i > 3) return false;
    s_int(s, 0, dim[i]);
    s_int(s, 1, start[i]);
    s_int(s, 2, length[i]);
    s_int(s, 3, step[i]);
    return i == 2 ? s_cube(s, 0, 2, 3, 2) : s_matrix(s, i % 3, 3, i == 3 ? 4 : 5);
}

NP_OP(narrow) = {
    NP_NAMED(narrow),           .args = "x:T dim:dim start:index length:int ; step:int=1 -> y:T",
    .tags = NP_VIEW | NP_CHEAP, .infer = narrow_infer,
    .grad = narrow_grad,        .sample = narrow_sample,
};

/* narrow_backward(g, shape, dim, start, step): g where narrow took its elements, zeros elsewhere. */
static bool narrow_backward_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    const neap_tensor *g = f->in[0];
    if (!np_same_device(f)) return false;
    bool ok = a[0].n == g->ndim && a[1].i >= 0 && a[1].i < g->ndim && a[2].i >= 0 && a[3].i >= 1;
    for (int d = 0; ok && d < g->ndim; d++)
        ok = d == a[1].i ? g->shape[d] == 0 || a[2].i + (g->shape[d] - 1) * a[3].i < a[0].v[d]
                         : g->shape[d] == a[0].v[d];
    if (!ok) return np_fail(f->c, NEAP_E_SHAPE, "the gradient of narrow does not fit its input");
    np_meta_set(f, 0, (neap_dtype)g->dtype, a[0].n, a[0].v);
    return true;
}

static void narrow_backward_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    const np_attr *a = b->attr;
    if (np_input_shape(b, 0, &ndim, shape, &dtype))
        b->dx[0] = np_narrow(b, b->g[0], a[1].i, a[2].i, shape[a[1].i], a[3].i);
}

static bool narrow_backward_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_list(s, 0, 2, 3, 5, 0);
    s_int(s, 1, 1);
    s_int(s, 2, i);
    s_int(s, 3, 2);
    return np_s_tensor(s, -2, 2, i, 2, (int64_t)3, (int64_t)2);
}

NP_OP(narrow_backward) = {
    NP_NAMED(narrow_backward),
    .args = "g:T shape:shape dim:dim start:index step:int -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL | NP_ANYWHERE,
    .infer = narrow_backward_infer,
    .grad = narrow_backward_grad,
    .sample = narrow_backward_sample,
};

/* ---- repeating and reordering dims */

/* expand(x, shape): x repeated along dims of size 1 and along new leading ones, without copying; -1 keeps a
 * size. */
static bool expand_infer(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *x = f->in[0];
    const np_attr *a = &f->attr[0];
    char from[128], to[128];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    if (!np_same_device(f)) return false;
    if (a->n > NEAP_MAX_DIMS)
        return np_fail(c, NEAP_E_DIMS, "a shape has at most %d sizes, not %d", NEAP_MAX_DIMS, a->n);
    int extra = a->n - x->ndim;
    bool fits = extra >= 0;
    for (int d = 0; fits && d < a->n; d++) {
        int64_t own = d >= extra ? x->shape[d - extra] : 1,
                want = a->v[d] == -1 && d >= extra ? own : a->v[d];
        fits = want >= 0 && (own == want || own == 1);
        shape[d] = want;
        stride[d] = d >= extra && own == want ? x->stride[d - extra] : 0;
    }
    if (!fits)
        return np_fail(
            c, NEAP_E_SHAPE,
            "%s does not expand to %s: counted from the last, a size must be equal or 1 (-1 keeps it)",
            np_shape_text(from, sizeof from, x->ndim, x->shape), np_shape_text(to, sizeof to, a->n, a->v));
    if (np_shape_numel(a->n, shape) < 0)
        return np_fail(c, NEAP_E_SHAPE, "the result has more elements than can be counted");
    np_meta_view(f, 0, a->n, shape, stride, x->offset);
    return true;
}

static void expand_grad(np_back *b) { b->dx[0] = np_unbroadcast(b, b->g[0], 0); }

static bool expand_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    s_list(s, 0, 3, i == 3 ? 0 : 2, i == 1 ? -1 : 3, 4);
    if (i == 0 || i == 3) return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)1);
    if (i == 1) return s_cube(s, 0, 1, 3, 4);
    return np_s_tensor(s, -2, 2, 0, 0);
}

NP_OP(expand) = {
    NP_NAMED(expand),    .args = "x:T shape:shape -> y:T", .tags = NP_VIEW | NP_CHEAP, .infer = expand_infer,
    .grad = expand_grad, .sample = expand_sample,
};

/* permute(x, dims): the dimensions in the order given. A view. */
static bool permute_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    const np_attr *a = &f->attr[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    unsigned seen = 0;
    if (!np_same_device(f)) return false;
    if (a->n != x->ndim)
        return np_fail(f->c, NEAP_E_DIMS, "%d dimensions are given, the tensor has %d: name each once", a->n,
                       x->ndim);
    for (int i = 0; i < a->n; i++) {
        int d = np_wrap_dim(f->c, a->v[i], x->ndim);
        if (d < 0) return false;
        if (seen & 1u << d)
            return np_fail(f->c, NEAP_E_DIMS, "dimension %d is given twice: name each once", d + f->c->base);
        seen |= 1u << d;
        shape[i] = x->shape[d], stride[i] = x->stride[d];
    }
    np_meta_view(f, 0, x->ndim, shape, stride, x->offset);
    return true;
}

static void permute_grad(np_back *b)
{
    int64_t back[NEAP_MAX_DIMS];
    int n = b->attr[0].n;
    for (int i = 0; i < n; i++) back[b->attr[0].v[i] + (b->attr[0].v[i] < 0 ? n : 0)] = i;
    b->dx[0] = np_permute(b, b->g[0], back, n);
}

static bool permute_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    if (i == 2) {
        s_list(s, 0, 0, 0, 0, 0);
        return np_s_tensor(s, -2, 2, 0, 0);
    }
    s_list(s, 0, 3, i ? -1 : 1, i ? 0 : 2, i ? -2 : 0);
    return s_cube(s, 0, 2, 3, 4);
}

NP_OP(permute) = {
    NP_NAMED(permute),      .args = "x:T dims:dims -> y:T", .tags = NP_VIEW | NP_CHEAP,
    .infer = permute_infer, .grad = permute_grad,           .sample = permute_sample,
};

/* transpose(x, dim0, dim1): two dimensions change places. A view. */
static bool transpose_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    if (!np_same_device(f) || !resolve_dim(f, 0, x->ndim) || !resolve_dim(f, 1, x->ndim)) return false;
    geometry_of(f, shape, stride);
    swap_dims(shape, f->attr[0].i, f->attr[1].i);
    swap_dims(stride, f->attr[0].i, f->attr[1].i);
    np_meta_view(f, 0, x->ndim, shape, stride, x->offset);
    return true;
}

static void transpose_grad(np_back *b) { b->dx[0] = np_transpose(b, b->g[0], b->attr[0].i, b->attr[1].i); }

static bool transpose_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_int(s, 0, i ? -1 : 0);
    s_int(s, 1, i ? 0 : 1);
    return i ? s_cube(s, 0, 2, 3, 4) : s_matrix(s, 0, 3, 4);
}

NP_OP(transpose) = {
    NP_NAMED(transpose),        .args = "x:T dim0:dim dim1:dim -> y:T",
    .tags = NP_VIEW | NP_CHEAP, .infer = transpose_infer,
    .grad = transpose_grad,     .sample = transpose_sample,
};

/* t(x): the transpose of a matrix; vectors and 0-dim tensors stay as they are. A view. */
static bool t_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    if (!np_same_device(f)) return false;
    if (x->ndim > 2)
        return np_fail(f->c, NEAP_E_DIMS,
                       "the tensor has %d dimensions, t needs at most 2: use transpose or permute", x->ndim);
    geometry_of(f, shape, stride);
    if (x->ndim == 2) swap_dims(shape, 0, 1), swap_dims(stride, 0, 1);
    np_meta_view(f, 0, x->ndim, shape, stride, x->offset);
    return true;
}

static void t_grad(np_back *b) { b->dx[0] = np_t(b, b->g[0]); }

static bool t_sample(np_sampler *s, int i)
{
    if (i == 0) return s_matrix(s, 0, 3, 4);
    if (i == 1) return np_s_tensor(s, -2, 2, 0, 1, (int64_t)3);
    return i == 2 && np_s_tensor(s, -2, 2, 0, 0);
}

NP_OP(t) = {
    NP_NAMED(t),      .args = "x:T -> y:T", .tags = NP_VIEW | NP_CHEAP,
    .infer = t_infer, .grad = t_grad,       .sample = t_sample,
};

/* ---- regrouping */

/* view(x, shape): the same elements in another shape, never copying; one size may be -1. */
static bool view_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    char from[128], to[128], strides[128];
    int n = f->attr[0].n;
    if (!np_same_device(f) || !resolve_shape(f, 0, shape)) return false;
    if (!view_strides(x, n, shape, stride))
        return np_fail(
            f->c, NEAP_E_VIEW,
            "%s with strides %s cannot be seen as %s without a copy: use reshape, or contiguous() first",
            np_shape_text(from, sizeof from, x->ndim, x->shape),
            np_shape_text(strides, sizeof strides, x->ndim, x->stride),
            np_shape_text(to, sizeof to, n, shape));
    np_meta_view(f, 0, n, shape, stride, x->offset);
    return true;
}

static bool view_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    if (i == 0) s_list(s, 0, 2, 4, 3, 0);
    if (i == 1) s_list(s, 0, 1, -1, 0, 0);
    if (i == 2) s_list(s, 0, 3, 2, -1, 2);
    if (i == 3) s_list(s, 0, 2, 1, 1, 0);
    if (i == 3) return np_s_tensor(s, -2, 2, 0, 0);
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)4);
}

NP_OP(view) = {
    NP_NAMED(view),
    .args = "x:T shape:shape -> y:T",
    .tags = NP_VIEW | NP_CHEAP,
    .infer = view_infer,
    .grad = reshape_grad,
    .sample = view_sample,
};

/* reshape(x, shape): the same elements in another shape; a view when the memory layout allows it, else a
 * copy. */
static bool reshape_infer(np_frame *f)
{
    int64_t shape[NEAP_MAX_DIMS];
    return resolve_shape(f, 0, shape) && view_or_copy(f, f->attr[0].n, shape);
}

static bool reshape_sample(np_sampler *s, int i)
{
    if (i < 4) return view_sample(s, i);
    if (i > 5) return false;
    s_list(s, 0, 2, i == 4 ? 4 : 2, i == 4 ? 3 : -1, 0);
    return np_s_tensor(s, -2, 2, i - 3, 2, (int64_t)3, (int64_t)4); /* transposed, strided: copies */
}

NP_OP(reshape) = {
    NP_NAMED(reshape),
    .args = "x:T shape:shape -> y:T",
    .tags = NP_CHEAP | NP_ANYWHERE,
    .infer = reshape_infer,
    .grad = reshape_grad,
    .sample = reshape_sample,
};

/* flatten(x, [first, [last]]): the dimensions first to last as one; all of them by default. A view if it can
 * be. */
static bool flatten_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS];
    int first = np_wrap_dim(f->c, f->attr[0].i, x->ndim),
        last = first < 0 ? -1 : np_wrap_dim(f->c, f->attr[1].i, x->ndim);
    int n = 0;
    if (last < 0) return false;
    if (first > last)
        return np_fail(f->c, NEAP_E_DIMS, "the first dimension %d comes after the last %d",
                       first + f->c->base, last + f->c->base);
    for (int d = 0; d < x->ndim; d++) {
        if (d > first && d <= last) shape[n - 1] *= x->shape[d];
        else shape[n++] = x->shape[d];
    }
    if (x->ndim == 0) shape[n++] = 1;
    return view_or_copy(f, n, shape);
}

static bool flatten_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    s_int(s, 0, i == 1 ? 1 : 0);
    s_int(s, 1, i == 2 ? -2 : -1);
    return i == 3 ? np_s_tensor(s, -2, 2, 0, 0) : s_cube(s, i, 2, 3, 4);
}

NP_OP(flatten) = {
    NP_NAMED(flatten),
    .args = "x:T first:dim=0 last:dim=-1 -> y:T",
    .tags = NP_CHEAP | NP_ANYWHERE,
    .infer = flatten_infer,
    .grad = reshape_grad,
    .sample = flatten_sample,
};

/* squeeze(x, [dim]): without the dimensions of size 1, or without dim if its size is 1. A view. */
static bool squeeze_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    int only = -1, n = 0;
    if (!np_same_device(f)) return false;
    if (f->attr[0].has) {
        only = np_wrap_dim(f->c, f->attr[0].i, x->ndim);
        if (only < 0) return false;
    }
    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 1 && (only < 0 || d == only)) continue;
        shape[n] = x->shape[d], stride[n++] = x->stride[d];
    }
    np_meta_view(f, 0, n, shape, stride, x->offset);
    return true;
}

static bool squeeze_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    if (i) s_int(s, 0, i == 1 ? 1 : -2);
    return i < 2 ? s_cube(s, 0, 1, 3, 1) : s_cube(s, 0, 3, 1, 2);
}

NP_OP(squeeze) = {
    NP_NAMED(squeeze),      .args = "x:T dim:dim? -> y:T", .tags = NP_VIEW | NP_CHEAP,
    .infer = squeeze_infer, .grad = reshape_grad,          .sample = squeeze_sample,
};

/* unsqueeze(x, dim): a new dimension of size 1, which is number dim of the result. A view. */
static bool unsqueeze_infer(np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    if (!np_same_device(f)) return false;
    if (x->ndim == NEAP_MAX_DIMS)
        return np_fail(f->c, NEAP_E_DIMS, "the tensor has %d dimensions: there is no room for one more",
                       x->ndim);
    if (!resolve_dim(f, 0, x->ndim + 1)) return false;
    int d = (int)f->attr[0].i;
    for (int k = 0; k <= x->ndim; k++) {
        int from = k < d ? k : k - 1;
        shape[k] = k == d ? 1 : x->shape[from];
        stride[k] = k == d ? 1 : x->stride[from];
    }
    np_meta_view(f, 0, x->ndim + 1, shape, stride, x->offset);
    return true;
}

static bool unsqueeze_sample(np_sampler *s, int i)
{
    if (i > 2) return false;
    s_int(s, 0, i - 1);
    return i == 2 ? s_matrix(s, 1, 3, 4) : np_s_tensor(s, -2, 2, 0, i, (int64_t)3);
}

NP_OP(unsqueeze) = {
    NP_NAMED(unsqueeze),      .args = "x:T dim:dim -> y:T", .tags = NP_VIEW | NP_CHEAP,
    .infer = unsqueeze_infer, .grad = reshape_grad,         .sample = unsqueeze_sample,
};

#endif
