/* masked.c - reading and writing where a boolean mask is true.
 *
 * Selected elements are taken in row-major order. How many there are depends on the mask's data, so masked_select
 * reads it before its result exists. Values are checked against the mask before anything is written. */
#include "ops/cpu/loops.h"
#include "ops/cpu/rows.h"
#include "ops/sample.h"

/* t broadcast to a shape, contiguous, of its own dtype. */
static inline neap_tensor *expanded(neap_ctx *c, neap_tensor *t, int ndim, const int64_t *shape)
{
    bool same = t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++) same = t->shape[d] == shape[d];
    if (same) return np_as_contiguous(c, t, (neap_dtype)t->dtype);
    neap_tensor *r = np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, ndim, shape);
    if (r && !np_copy_into(c, r, t)) {
        np_drop(r);
        return NULL;
    }
    return r;
}

static inline int64_t count_true(const bool *m, int64_t n)
{
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++) k += m[i];
    return k;
}

/* Both values are there before the mask chooses, so that a mask without pattern costs no mispredicted branches. */
#define FILL_RUN(name, T) \
    static void name(void *value, int64_t n, char **p, const int64_t *s) \
    { \
        const T fill = *(const T *)value; \
        if (s[0] == sizeof(T) && s[1] == sizeof(T) && s[2] == 1) { \
            T *y = (T *)p[0]; \
            const T *x = (const T *)p[1]; \
            const uint8_t *m = (const uint8_t *)p[2]; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                const T v = x[i]; \
                y[i] = m[i] ? fill : v; \
            } \
            return; \
        } \
        for (int64_t i = 0; i < n; i++) { \
            const T v = *(const T *)(p[1] + i * s[1]), \
                    mask = (T)(0 - (T) * (const bool *)(p[2] + i * s[2])); \
            *(T *)(p[0] + i * s[0]) = (T)((fill & mask) | (v & ~mask)); \
        } \
    }
FILL_RUN(fill_run1, uint8_t)
FILL_RUN(fill_run2, uint16_t)
FILL_RUN(fill_run4, uint32_t)
FILL_RUN(fill_run8, uint64_t)

NP_CPU(masked_fill)(np_frame *f)
{
    uint64_t value = 0;
    np_iter it;
    neap_tensor *t[3] = {f->out[0], f->in[0], f->in[1]};
    int64_t whole;
    if (!np_is_float((neap_dtype)f->out[0]->dtype) && np_attr_whole(&f->attr[0], &whole))
        np_store_int((neap_dtype)f->out[0]->dtype, &value, whole);
    else np_store_double((neap_dtype)f->out[0]->dtype, &value, f->attr[0].f);
    np_iter_init(&it, t, 3);
    switch (np_itemsize(f->out[0])) {
    case 1: return np_iter_run(f->c, &it, fill_run1, &value);
    case 2: return np_iter_run(f->c, &it, fill_run2, &value);
    case 4: return np_iter_run(f->c, &it, fill_run4, &value);
    default: return np_iter_run(f->c, &it, fill_run8, &value);
    }
}

NP_CPU(masked_select)(np_frame *f)
{
    int nd = f->in[0]->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, f->in[0]->shape, sizeof shape);
    np_broadcast_shape(&nd, shape, f->in[1]->ndim, f->in[1]->shape);
    neap_tensor *x = expanded(f->c, f->in[0], nd, shape), *m = x ? expanded(f->c, f->in[1], nd, shape) : NULL;
    bool ok = m != NULL;
    if (ok) {
        size_t es = np_itemsize(x);
        char *y = np_ptr(f->out[0]);
        const char *p = np_ptr(x);
        const bool *mask = NP_DATA(bool, m);
        for (int64_t i = 0; i < x->numel; i++) {
            if (!mask[i]) continue;
            memcpy(y, p + (size_t)i * es, es);
            y += es;
        }
    }
    np_drop(x);
    np_drop(m);
    return ok;
}

/* y[mask] = v in order; v holds one element or as many as the mask selects (checked here, before any write). */
static inline bool assign_masked(np_frame *f, neap_tensor *y, neap_tensor *mask, neap_tensor *v_in)
{
    neap_tensor *m = expanded(f->c, mask, y->ndim, y->shape);
    neap_tensor *v = m ? np_as_contiguous(f->c, v_in, (neap_dtype)y->dtype) : NULL;
    bool ok = v != NULL;
    int64_t n = ok ? count_true(NP_DATA(bool, m), m->numel) : 0;
    if (ok && v->numel != 1 && v->numel != n)
        ok = np_fail(f->c, NEAP_E_SHAPE,
                     "the mask selects %lld elements, but the values are %lld; give one or as many",
                     (long long)n, (long long)v->numel);
    if (ok) {
        size_t es = np_itemsize(y), step = v->numel == 1 ? 0 : es;
        const char *s = np_ptr(v);
        for (int64_t i = 0; i < y->numel; i++) {
            if (!NP_DATA(bool, m)[i]) continue;
            memcpy(np_ptr(y) + (size_t)i * es, s, es);
            s += step;
        }
    }
    np_drop(m);
    np_drop(v);
    return ok;
}

NP_CPU(masked_select_backward)(np_frame *f)
{
    return np_fill_zero(f->c, f->out[0]) && assign_masked(f, f->out[0], f->in[1], f->in[0]);
}

NP_CPU(masked_assign)(np_frame *f)
{
    neap_tensor *out = f->out[0], *x = f->in[0];
    bool inplace = out->st == x->st, direct = out->contiguous;
    neap_tensor *y = direct ? np_hold_ref(out)
                            : np_tensor_new(f->c, f->dev, (neap_dtype)out->dtype, out->ndim, out->shape);
    bool ok =
        y && ((inplace && direct) || np_copy_into(f->c, y, x)) && assign_masked(f, y, f->in[1], f->in[2]);
    if (ok && !direct) ok = np_copy_into(f->c, out, y);
    np_drop(y);
    return ok;
}

#ifdef NP_BASE_ONLY

static bool check_mask(np_frame *f, const neap_tensor *mask)
{
    if (!np_same_device(f)) return false;
    if (mask->dtype == NEAP_BOOL) return true;
    return np_fail(f->c, NEAP_E_DTYPE, "the mask must be bool, but is %s; compare first, as in x:gt(0)",
                   np_dtype_name((neap_dtype)mask->dtype));
}

/* The mask broadcasts to the shape of x, which stays. */
static bool infer_masked(np_frame *f)
{
    const neap_tensor *x = f->in[0], *m = f->in[1];
    int n = x->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    char a[100], b[100];
    if (!check_mask(f, m)) return false;
    memcpy(shape, x->shape, sizeof shape);
    bool fits = np_broadcast_shape(&n, shape, m->ndim, m->shape) && n == x->ndim;
    for (int d = 0; fits && d < n; d++) fits = shape[d] == x->shape[d];
    if (!fits)
        return np_fail(f->c, NEAP_E_SHAPE, "the mask %s does not broadcast to x %s",
                       np_shape_text(a, sizeof a, m->ndim, m->shape),
                       np_shape_text(b, sizeof b, x->ndim, x->shape));
    np_meta_like(f, 0, x);
    return true;
}

static bool infer_masked_fill(np_frame *f)
{
    return infer_masked(f) && np_attr_fits(f->c, &f->attr[0], (neap_dtype)f->in[0]->dtype);
}

static bool infer_masked_assign(np_frame *f)
{
    if (!infer_masked(f) || !np_number_fits(f->c, f->in[2], (neap_dtype)f->in[0]->dtype)) return false;
    if (f->in[2]->ndim > 1)
        return np_fail(f->c, NEAP_E_DIMS, "the values must be one number or one dimension, but have %d",
                       f->in[2]->ndim);
    return true;
}

/* How many elements a mask selects once it is broadcast to n elements; -1 with an error. Reads the mask. */
static int64_t mask_count(np_frame *f, neap_tensor *mask, int64_t n)
{
    neap_ctx *c = f->c;
    neap_tensor *m = mask->st->dev->backend.host_memory
                         ? np_as_contiguous(c, mask, NEAP_BOOL)
                         : np_tensor_new(c, c->devices[0], NEAP_BOOL, mask->ndim, mask->shape);
    int64_t k = -1;
    if (m && (mask->st->dev->backend.host_memory || np_copy_into(c, m, mask)))
        k = m->numel ? count_true(NP_DATA(bool, m), m->numel) * (n / m->numel) : 0;
    np_drop(m);
    return k;
}

static bool infer_masked_select(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    neap_tensor *m = f->in[1];
    int n = x->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    char a[100], b[100];
    if (!check_mask(f, m)) return false;
    memcpy(shape, x->shape, sizeof shape);
    if (!np_broadcast_shape(&n, shape, m->ndim, m->shape))
        return np_fail(f->c, NEAP_E_SHAPE, "mask %s and x %s do not broadcast",
                       np_shape_text(a, sizeof a, m->ndim, m->shape),
                       np_shape_text(b, sizeof b, x->ndim, x->shape));
    int64_t k = mask_count(f, m, np_shape_numel(n, shape));
    if (k < 0) return false;
    np_meta_set(f, 0, (neap_dtype)x->dtype, 1, &k);
    return true;
}

static bool infer_masked_select_backward(np_frame *f)
{
    if (!check_mask(f, f->in[1])) return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, f->attr[0].n, f->attr[0].v);
    return true;
}

static void masked_fill_grad(np_back *b) { b->dx[0] = np_masked_fill(b, b->g[0], b->saved[0], 0); }

static void masked_select_grad(np_back *b)
{
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    int n;
    const neap_tensor *m = b->saved[0];
    if (!np_input_shape(b, 0, &n, shape, &t) || !np_broadcast_shape(&n, shape, m->ndim, m->shape)) return;
    b->dx[0] = np_unbroadcast(b, np_masked_select_backward(b, b->g[0], b->saved[0], shape, n), 0);
}

static void masked_select_backward_grad(np_back *b) { b->dx[0] = np_masked_select(b, b->g[0], b->saved[0]); }

static void masked_assign_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *mask = b->saved[0];
    if (b->need[0]) b->dx[0] = np_masked_fill(b, g, mask, 0);
    if (b->need[2]) b->dx[2] = np_unbroadcast(b, np_masked_select(b, g, mask), 2);
}

static bool masked_sample(np_sampler *s, int i)
{
    const int64_t n = np_s_size(s, 3, 1000);
    if (i > 2) return false;
    s->label = i == 0 ? "same shape" : i == 1 ? "broadcast" : "transposed";
    s->attr[0] = (np_attr){.f = 1.5, .has = 1};
    return np_s_tensor(s, -2, 2, i == 2, 2, n, (int64_t)4) &&
           (i == 1 ? np_s_mask(s, 1, (int64_t)4) : np_s_mask(s, 2, n, (int64_t)4));
}

static bool masked_assign_sample(np_sampler *s, int i)
{
    if (!masked_sample(s, i)) return false;
    s->attr[0] = (np_attr){0};
    if (i == 0) return np_s_number(s, 0.5), true;
    return i == 1 ? np_s_tensor(s, -2, 2, 0, 1, (int64_t)1) : np_s_tensor(s, -2, 2, 0, 0);
}

/* g of as many elements as the mask selects. */
static bool masked_backward_sample(np_sampler *s, int i)
{
    s->label = "one element";
    s->lists[0][0] = 1;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 1, .has = 1};
    if (i > 0 || !np_s_tensor(s, -2, 2, 0, 1, (int64_t)1) || !np_s_mask(s, 1, (int64_t)1)) return false;
    *NP_DATA(bool, s->in[1]) = true;
    return true;
}

/* masked_fill(x, mask, value): x with value where the mask is true. The mask broadcasts to x. */
NP_OP(masked_fill) = {
    NP_NAMED(masked_fill),           .args = "x:T mask:T value:float -> y:T",
    .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_IN(1)},
    .infer = infer_masked_fill,      .grad = masked_fill_grad,
    .sample = masked_sample,
};
NP_INPLACE_OP(masked_fill_, masked_fill);

/* masked_select_backward(g, mask, shape): zeros of this shape with g, in order, where the mask is true. */
NP_OP(masked_select_backward) = {
    NP_NAMED(masked_select_backward),
    .args = "g:T mask:T shape:shape -> dx:T",
    .tags = NP_INTERNAL,
    .save = {NP_IN(1)},
    .infer = infer_masked_select_backward,
    .grad = masked_select_backward_grad,
    .sample = masked_backward_sample,
};

/* masked_select(x, mask): the elements of x where the mask is true, in order, as one dimension. */
NP_OP(masked_select) = {
    NP_NAMED(masked_select),      .args = "x:T mask:T -> y:T", .tags = NP_SYNC,         .save = {NP_IN(1)},
    .infer = infer_masked_select, .grad = masked_select_grad,  .sample = masked_sample,
};

/* masked_assign(x, mask, v): x with v where the mask is true: a number, or one value for each selected element. */
NP_OP(masked_assign) = {
    NP_NAMED(masked_assign),      .args = "x:T mask:T v:N -> y:T", .save = {NP_IN(1)},
    .infer = infer_masked_assign, .grad = masked_assign_grad,      .sample = masked_assign_sample,
};
NP_INPLACE_OP(masked_assign_, masked_assign);
#endif
