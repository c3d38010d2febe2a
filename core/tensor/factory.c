/* factory.c - tensors out of nothing: empty, zeros, full, from data, arange, linspace, eye.
 *
 * Values are computed in double (arange of an integer dtype: in int64) on the host and converted once to the
 * dtype; an integer dtype is filled exactly or refused. Random factories are ops (core/ops/random.c). */
#include "base/hash.h"
#include "tensor/origin.h"

#include <math.h>

static neap_tensor *new_on(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, int device)
{
    if (np_pending(c)) return NULL;
    if (ndim > 0 && !shape) return np_fail(c, NEAP_E_ARG, "the shape of %d dimensions is NULL", ndim);
    np_device *d = np_device_at(c, device);
    return d ? np_tensor_new(c, d, dtype, ndim, shape) : NULL;
}

/* The bytes at the front stand for all: what is larger was not written down by hand. */
void np_origin_of_bytes(neap_tensor *t)
{
    enum { FRONT = 65536 };
    const np_ambient_entry *e = np_ambient_get(t->c, NP_AMB_ORIGIN);
    size_t n = (size_t)t->numel * np_itemsize(t);
    if (!e || !t->contiguous) return;
    if (n > FRONT) n = FRONT;
    void *fetched = NULL;
    if (!t->st->dev->backend.host_memory) {
        fetched = np_obj_new(t->c, n + 1);
        if (!fetched || !np_fetch(t->c, t->st->dev, fetched, np_ptr(t), n)) {
            np_forgive(t->c, NULL);
            if (fetched) np_obj_free(t->c, fetched, n + 1);
            return;
        }
    }
    np_hash h;
    np_hash_init(&h);
    np_hash_add(&h, t->shape, sizeof *t->shape * t->ndim);
    np_hash_add(&h, fetched ? fetched : np_ptr(t), n);
    t->origin = np_hash_done(&h) | 2;
    if (fetched) np_obj_free(t->c, fetched, n + 1);
}

/* t when `ok`, else NULL and t dropped: the end of every factory. */
static neap_tensor *finish(neap_ctx *c, neap_tensor *t, bool ok)
{
    if (t && !ok) np_drop(t), t = NULL;
    if (t) np_origin_of_bytes(t);
    return np_scope_adopt(c, t);
}

neap_tensor *neap_empty(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, int device)
{
    return np_scope_adopt(c, new_on(c, ndim, shape, dtype, device));
}

neap_tensor *neap_zeros(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, int device)
{
    neap_tensor *t = new_on(c, ndim, shape, dtype, device);
    return finish(c, t, t && np_fill_zero(c, t));
}

neap_tensor *neap_full(neap_ctx *c, int ndim, const int64_t *shape, double value, neap_dtype dtype,
                       int device)
{
    int64_t low, high;
    np_int_range(dtype, &low, &high);
    if (np_pending(c)) return NULL;
    if (np_is_int(dtype) && !(value == trunc(value) && value >= (double)low && value < (double)high + 1))
        return np_fail(c, NEAP_E_DTYPE,
                       "full: %.17g does not fit into %s, which holds the integers from %lld to %lld", value,
                       np_dtype_name(dtype), (long long)low, (long long)high);
    neap_tensor *t = new_on(c, ndim, shape, dtype, device);
    return finish(c, t, t && np_fill_value(c, t, value));
}

neap_tensor *neap_from_data(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, const void *data)
{
    neap_tensor *t = new_on(c, ndim, shape, dtype, 0);
    size_t bytes = t ? (size_t)t->numel * np_itemsize(t) : 0;
    bool ok = t != NULL;
    if (bytes && !data) {
        np_fail(c, NEAP_E_ARG, "data is NULL, but the shape asks for %zu bytes", bytes);
        ok = false;
    } else if (bytes) {
        memcpy(np_ptr(t), data, bytes);
    }
    return finish(c, t, ok);
}

/* ---- sequences: element i is first + i * step, or its mirror image from the end */

typedef struct sequence {
    neap_tensor *t;
    double first, last, step; /* last: what element n - 1 is, exactly (linspace) */
    bool ends;
} sequence;

static void sequence_chunk(void *arg, int64_t chunk)
{
    const sequence *s = arg;
    const neap_tensor *t = s->t;
    size_t item = np_itemsize(t);
    int64_t n = t->numel, begin = chunk * NP_GRAIN, end = begin + NP_GRAIN < n ? begin + NP_GRAIN : n;
    bool whole = !np_is_float((neap_dtype)t->dtype);
    for (int64_t i = begin; i < end; i++) {
        void *p = np_ptr(t) + (size_t)i * item;
        if (whole && !s->ends)
            np_store_int((neap_dtype)t->dtype, p, (int64_t)s->first + i * (int64_t)s->step);
        else if (s->ends && i >= n - n / 2)
            np_store_double((neap_dtype)t->dtype, p, s->last - (double)(n - 1 - i) * s->step);
        else np_store_double((neap_dtype)t->dtype, p, s->first + (double)i * s->step);
    }
}

/* n values on the device: made on the host, then moved. */
static neap_tensor *make_sequence(neap_ctx *c, sequence s, int64_t n, neap_dtype dtype, int device)
{
    np_device *d = np_device_at(c, device);
    if (!d) return NULL;
    s.t = np_tensor_new(c, d->backend.host_memory ? d : c->devices[0], dtype, 1, &n);
    bool ok = s.t && (n == 0 || np_parallel(c, (n + NP_GRAIN - 1) / NP_GRAIN, sequence_chunk, &s));
    if (ok && s.t->st->dev != d) {
        neap_tensor *moved = np_tensor_new(c, d, dtype, 1, &n);
        ok = moved && np_copy_into(c, moved, s.t);
        np_drop(s.t);
        s.t = moved;
    }
    return finish(c, s.t, ok);
}

static bool is_finite(neap_ctx *c, const char *what, double v)
{
    if (isfinite(v)) return true;
    np_fail(c, NEAP_E_ARG, "%s: %g is not a finite number", what, v);
    return false;
}

neap_tensor *neap_arange(neap_ctx *c, double first, double last, double step, neap_dtype dtype, int device)
{
    if (np_pending(c) || !is_finite(c, "arange", first) || !is_finite(c, "arange", last) ||
        !is_finite(c, "arange", step))
        return NULL;
    if (step == 0) return np_fail(c, NEAP_E_ARG, "arange: the step is 0: it must lead from first to last");
    if (dtype == NEAP_BOOL)
        return np_fail(c, NEAP_E_DTYPE, "arange: bool has no sequence: use an integer dtype");
    if (!np_is_float(dtype) && (first != trunc(first) || step != trunc(step)))
        return np_fail(c, NEAP_E_ARG,
                       "arange: %s needs a whole first and step, not %g and %g: use a float dtype",
                       np_dtype_name(dtype), first, step);
    if (!np_is_float(dtype) && (fabs(first) > 0x1p62 || fabs(last) > 0x1p62 || fabs(step) > 0x1p62))
        return np_fail(c, NEAP_E_ARG, "arange: %g to %g is beyond what %s can hold: use float64", first, last,
                       np_dtype_name(dtype));
    double q = (last - first) / step;
    q += fabs(q) * 4 * 0x1p-52; /* (1 - 0) / 0.1 may fall just short of 10 */
    if (!(q < 0x1p53)) return np_fail(c, NEAP_E_SHAPE, "arange: about %g elements are too many", q);
    int64_t n = q < 0 ? 0 : (int64_t)floor(q) + 1;
    return make_sequence(c, (sequence){.first = first, .step = step}, n, dtype, device);
}

neap_tensor *neap_linspace(neap_ctx *c, double first, double last, int64_t n, neap_dtype dtype, int device)
{
    if (np_pending(c) || !is_finite(c, "linspace", first) || !is_finite(c, "linspace", last)) return NULL;
    if (n < 0)
        return np_fail(c, NEAP_E_ARG, "linspace: the number of values is %lld: it must be 0 or more",
                       (long long)n);
    if (!np_is_float(dtype))
        return np_fail(c, NEAP_E_DTYPE, "linspace: %s cannot hold evenly spaced values: use a float dtype",
                       np_dtype_name(dtype));
    double step = n > 1 ? (last - first) / (double)(n - 1) : 0;
    return make_sequence(c, (sequence){.first = first, .last = last, .step = step, .ends = true}, n, dtype,
                         device);
}

neap_tensor *neap_eye(neap_ctx *c, int64_t n, int64_t m, neap_dtype dtype, int device)
{
    neap_tensor *t = new_on(c, 2, (int64_t[]){n, m}, dtype, device);
    if (!t) return NULL;
    int64_t k = n < m ? n : m, stride = t->stride[0] + t->stride[1];
    neap_tensor *diagonal = np_tensor_view(t, 1, &k, &stride, 0);
    bool ok = diagonal && np_fill_zero(c, t) && np_fill_value(c, diagonal, 1);
    np_drop(diagonal);
    return finish(c, t, ok);
}
