/* windows.c - any geometry over an operand's storage: as_strided, and what its gradient and writes through
 * views are made of. Internal ops: offsets and strides count elements from the beginning of the storage.
 *
 * A gradient has a geometry of its own, so a window into a storage is carried over by way of a zeroed buffer
 * in which the operand's elements lie where they lie in its storage (stage). */
#include "autograd/autograd.h"
#include "ops/sample.h"

typedef struct geometry {
    int ndim;
    const int64_t *shape, *stride;
    int64_t offset;
} geometry;

/* Widens [*lo, *hi] (elements) by what g touches. */
static inline void geometry_span(const geometry *g, int64_t *lo, int64_t *hi)
{
    int64_t first = g->offset, last = g->offset;
    for (int i = 0; i < g->ndim; i++) {
        if (g->shape[i] == 0) return;
        if (g->stride[i] < 0) first += g->stride[i] * (g->shape[i] - 1);
        else last += g->stride[i] * (g->shape[i] - 1);
    }
    if (first < *lo) *lo = first;
    if (last > *hi) *hi = last;
}

/* The elements of `src` added one by one to those of `dst`, which may overlap itself. Host memory. */
static inline void add_elements(neap_tensor *dst, const neap_tensor *src)
{
    int64_t index[NEAP_MAX_DIMS] = {0};
    neap_dtype t = (neap_dtype)dst->dtype;
    size_t item = np_itemsize(dst);
    for (int64_t i = 0; i < src->numel; i++) {
        int64_t at = 0;
        for (int d = 0; d < dst->ndim; d++) at += index[d] * dst->stride[d];
        char *p = np_ptr(dst) + at * (int64_t)item;
        np_store_double(t, p, np_load_double(t, p) + np_load_double(t, np_ptr(src) + (size_t)i * item));
        for (int d = dst->ndim - 1; d >= 0 && ++index[d] == dst->shape[d]; d--) index[d] = 0;
    }
}

/* A host buffer over the span of two geometries, zeroed, and the tensor that lies in it as `of` says. */
typedef struct stage {
    np_storage st;
    neap_tensor t;
    int64_t lo;
    size_t bytes;
} stage;

static inline bool stage_open(neap_ctx *c, stage *s, neap_dtype dtype, const geometry *of, const geometry *to)
{
    int64_t hi = INT64_MIN;
    memset(s, 0, sizeof *s);
    s->lo = INT64_MAX;
    geometry_span(of, &s->lo, &hi);
    geometry_span(to, &s->lo, &hi);
    if (s->lo > hi) s->lo = 0, hi = -1; /* both windows are empty */
    s->bytes = (size_t)(hi - s->lo + 1) * np_dtype_size(dtype);
    s->st = (np_storage){.refs = 1, .dev = c->devices[0], .bytes = s->bytes};
    s->st.data = np_mem_take(&c->devices[0]->mem, s->bytes, NEAP_WORKSPACE);
    if (!s->st.data) return false;
    memset(s->st.data, 0, s->bytes);
    s->t = (neap_tensor){.refs = 1, .c = c, .dtype = (uint8_t)dtype, .st = &s->st};
    return true;
}

static inline neap_tensor *stage_as(stage *s, const geometry *g)
{
    np_tensor_geometry(&s->t, g->ndim, g->shape, g->stride, g->offset - s->lo);
    return &s->t;
}

static inline void stage_close(neap_ctx *c, stage *s)
{
    np_mem_give(&c->devices[0]->mem, s->st.data, s->bytes, NEAP_WORKSPACE);
}

NP_CPU(restride)(np_frame *f)
{
    neap_tensor *x = f->in[0];
    geometry to = {f->attr[0].n, f->attr[0].v, f->attr[1].v, f->attr[2].i};
    geometry of = {x->ndim, x->shape, f->attr[3].v, f->attr[4].i};
    stage s;
    if (!stage_open(f->c, &s, (neap_dtype)x->dtype, &of, &to)) return false;
    neap_tensor *place = stage_as(&s, &of);
    bool ok;
    if (np_overlaps_itself(place)) {
        neap_tensor *host = np_to_host(f->c, x);
        ok = host != NULL;
        if (ok) add_elements(place, host);
        np_drop(host);
    } else {
        ok = np_copy_into(f->c, place, x);
    }
    ok = ok && np_copy_into(f->c, f->out[0], stage_as(&s, &to));
    stage_close(f->c, &s);
    return ok;
}

NP_CPU(zero_window)(np_frame *f)
{
    neap_tensor *x = f->in[0];
    geometry window = {f->attr[0].n, f->attr[0].v, f->attr[1].v, f->attr[2].i};
    geometry of = {x->ndim, x->shape, f->attr[3].v, f->attr[4].i};
    stage s;
    if (!stage_open(f->c, &s, (neap_dtype)x->dtype, &of, &window)) return false;
    bool ok = np_copy_into(f->c, stage_as(&s, &of), x) && np_fill_zero(f->c, stage_as(&s, &window)) &&
              np_copy_into(f->c, f->out[0], stage_as(&s, &of));
    stage_close(f->c, &s);
    return ok;
}

NP_CPU(as_strided_scatter_)(np_frame *f)
{
    neap_tensor window = *f->out[0];
    np_tensor_geometry(&window, f->attr[0].n, f->attr[0].v, f->attr[1].v, f->attr[2].i);
    return np_copy_into(f->c, &window, f->in[1]);
}

#ifdef NP_BASE_ONLY

static void s_int(np_sampler *s, int k, int64_t v) { s->attr[k] = (np_attr){.i = v, .has = 1}; }

/* Attribute k = (a, b). */
static void s_pair(np_sampler *s, int k, int64_t a, int64_t b)
{
    s->lists[k][0] = a, s->lists[k][1] = b;
    s->attr[k] = (np_attr){.v = s->lists[k], .n = 2, .has = 1};
}

/* Fills attributes 3 and 4 with the operand's own geometry, which the gradient needs. The dispatcher copies
 * lists. */
static void note_geometry(np_frame *f)
{
    f->attr[3] = (np_attr){.v = f->in[0]->stride, .n = f->in[0]->ndim, .has = 1};
    f->attr[4] = (np_attr){.i = f->in[0]->offset, .has = 1};
}

/* Attributes 0, 1, 2 are shape, stride, offset: a legal geometry inside in[0]'s storage? */
static bool check_window(np_frame *f)
{
    neap_ctx *c = f->c;
    const np_attr *a = f->attr;
    const neap_tensor *x = f->in[0];
    int64_t last = a[2].i, room = (int64_t)(x->st->bytes / np_itemsize(x));
    bool empty = false, fits = a[2].i >= 0;
    if (a[0].n > NEAP_MAX_DIMS || a[0].n != a[1].n)
        return np_fail(c, NEAP_E_DIMS, "%d sizes and %d strides: as many of both, at most %d", a[0].n, a[1].n,
                       NEAP_MAX_DIMS);
    for (int d = 0; d < a[0].n; d++) {
        int64_t reach;
        if (a[0].v[d] < 0 || a[1].v[d] < 0)
            return np_fail(c, NEAP_E_ARG, "sizes and strides must be 0 or more");
        empty |= a[0].v[d] == 0;
        fits = fits && !__builtin_mul_overflow(a[1].v[d], a[0].v[d] - 1, &reach) &&
               !__builtin_add_overflow(last, reach, &last);
    }
    if (empty || (fits && last < room)) return true;
    char shape[128], stride[128];
    return np_fail(c, NEAP_E_INDEX,
                   "shape %s, strides %s, offset %lld reach outside the storage of %lld elements",
                   np_shape_text(shape, sizeof shape, a[0].n, a[0].v),
                   np_shape_text(stride, sizeof stride, a[1].n, a[1].v), (long long)a[2].i, (long long)room);
}

/* as_strided(x, shape, stride, offset): the storage of x with another geometry, offset from its beginning. */
static bool as_strided_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    if (!np_same_device(f) || !check_window(f)) return false;
    note_geometry(f);
    np_meta_view(f, 0, a[0].n, a[0].v, a[1].v, a[2].i);
    return true;
}

static void as_strided_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    const np_attr *a = b->attr;
    if (np_input_shape(b, 0, &ndim, shape, &dtype))
        b->dx[0] = np_restride(b, b->g[0], shape, ndim, a[3].v, a[3].n, a[4].i, a[1].v, a[1].n, a[2].i);
}

static bool as_strided_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_pair(s, 0, 2, 3);
    s_pair(s, 1, i ? 1 : 4, i ? 2 : 1); /* the second one overlaps itself */
    s_int(s, 2, 1);
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)4);
}

NP_OP(as_strided) = {
    NP_NAMED(as_strided),
    .args = "x:T shape:shape stride:shape offset:int ; of_stride:shape? of_offset:int? -> y:T",
    .tags = NP_VIEW | NP_CHEAP | NP_INTERNAL,
    .infer = as_strided_infer,
    .grad = as_strided_grad,
    .sample = as_strided_sample,
};

/* restride(x, shape, stride, offset, of_stride, of_offset): zeros get x added at the places that (of_stride,
 * of_offset) gives its elements; the result is read there as (shape, stride, offset) says. Its gradient is
 * itself with the two geometries exchanged. */
static bool restride_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    if (!np_same_device(f)) return false;
    if (a[0].n > NEAP_MAX_DIMS || a[0].n != a[1].n || a[3].n != f->in[0]->ndim)
        return np_fail(f->c, NEAP_E_DIMS, "sizes and strides do not go together");
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, a[0].n, a[0].v);
    return true;
}

static void restride_grad(np_back *b)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype dtype;
    const np_attr *a = b->attr;
    if (np_input_shape(b, 0, &ndim, shape, &dtype))
        b->dx[0] = np_restride(b, b->g[0], shape, ndim, a[3].v, a[3].n, a[4].i, a[1].v, a[1].n, a[2].i);
}

static bool restride_sample(np_sampler *s, int i)
{
    if (!as_strided_sample(s, i)) return false;
    s_pair(s, 3, 4, 1);
    s_int(s, 4, 0);
    return true;
}

NP_OP(restride) = {
    NP_NAMED(restride),
    .args = "x:T shape:shape stride:shape offset:int of_stride:shape of_offset:int -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL | NP_ANYWHERE,
    .infer = restride_infer,
    .grad = restride_grad,
    .sample = restride_sample,
};

/* zero_window(x, shape, stride, offset, of_stride, of_offset): x, whose elements lie as (of_stride,
 * of_offset) says, with zeros where the window (shape, stride, offset) lies. */
static bool zero_window_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    if (!np_same_device(f)) return false;
    if (a[0].n > NEAP_MAX_DIMS || a[0].n != a[1].n || a[3].n != f->in[0]->ndim)
        return np_fail(f->c, NEAP_E_DIMS, "sizes and strides do not go together");
    np_meta_like(f, 0, f->in[0]);
    return true;
}

static void zero_window_grad(np_back *b)
{
    const np_attr *a = b->attr;
    b->dx[0] = np_zero_window(b, b->g[0], a[0].v, a[0].n, a[1].v, a[1].n, a[2].i, a[3].v, a[3].n, a[4].i);
}

NP_OP(zero_window) = {
    NP_NAMED(zero_window),
    .args = "x:T shape:shape stride:shape offset:int of_stride:shape of_offset:int -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL | NP_ANYWHERE,
    .infer = zero_window_infer,
    .grad = zero_window_grad,
    .sample = restride_sample,
};

/* as_strided_scatter_(x, src, shape, stride, offset): src written into a window of x's storage. */
static bool as_strided_scatter_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    char want[128], got[128];
    if (!np_same_device(f) || !check_window(f)) return false;
    int n = a[0].n;
    int64_t shape[NEAP_MAX_DIMS];
    for (int d = 0; d < n; d++) shape[d] = a[0].v[d];
    bool ok = np_broadcast_shape(&n, shape, f->in[1]->ndim, f->in[1]->shape) && n == a[0].n;
    for (int d = 0; ok && d < n; d++) ok = shape[d] == a[0].v[d];
    if (!ok)
        return np_fail(f->c, NEAP_E_SHAPE, "%s does not broadcast to the window %s",
                       np_shape_text(got, sizeof got, f->in[1]->ndim, f->in[1]->shape),
                       np_shape_text(want, sizeof want, a[0].n, a[0].v));
    note_geometry(f);
    np_meta_like(f, 0, f->in[0]);
    return true;
}

static void as_strided_scatter_grad(np_back *b)
{
    const np_attr *a = b->attr;
    neap_tensor *g = b->g[0];
    if (b->need[0])
        b->dx[0] = np_zero_window(b, g, a[0].v, a[0].n, a[1].v, a[1].n, a[2].i, a[3].v, a[3].n, a[4].i);
    if (!b->need[1]) return;
    neap_tensor *window = np_restride(b, g, a[0].v, a[0].n, a[1].v, a[1].n, a[2].i, a[3].v, a[3].n, a[4].i);
    b->dx[1] = np_unbroadcast(b, window, 1);
}

static bool as_strided_scatter_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    return as_strided_sample(s, 0) && np_s_tensor(s, -2, 2, 0, 2, (int64_t)2, (int64_t)3);
}

NP_OP(as_strided_scatter_) = {
    NP_NAMED(as_strided_scatter_),
    .args = "x:T src:T shape:shape stride:shape offset:int ; of_stride:shape? of_offset:int? -> y:T",
    .tags = NP_INPLACE | NP_CHEAP | NP_INTERNAL | NP_ANYWHERE,
    .infer = as_strided_scatter_infer,
    .grad = as_strided_scatter_grad,
    .sample = as_strided_scatter_sample,
};

#endif
