/* tensor.c - the tensor object: making, viewing, reading, and what the public header tells about it.
 *
 * A tensor is geometry over a storage, plus `ag` when autograd knows it. numel and contiguous always follow
 * from shape and strides (np_tensor_geometry and np_tensor_new write them). Ops are elsewhere:
 * nothing here is recorded, and only neap_wrap and the constructors take memory. */
#include "tensor/tensor.h"
#include "base/hash.h"
#include "tensor/storage.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- making and dropping */

void np_tensor_geometry(neap_tensor *t, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
    t->ndim = (uint8_t)ndim;
    for (int i = 0; i < ndim; i++) t->shape[i] = shape[i], t->stride[i] = stride[i];
    t->offset = offset;
    t->numel = np_shape_numel(ndim, shape);
    t->contiguous = np_is_contiguous_geometry(ndim, shape, stride);
    t->data = (char *)t->st->data + offset * (int64_t)np_itemsize(t);
}

/* Bytes of a shape, or false with E-DIMS, E-ARG or E-SHAPE. */
static bool shape_bytes(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, size_t *bytes)
{
    if ((unsigned)dtype >= NEAP_N_DTYPES) {
        np_fail(c, NEAP_E_DTYPE, "there is no dtype number %d", (int)dtype);
        return false;
    }
    if (ndim < 0 || ndim > NEAP_MAX_DIMS) {
        np_fail(c, NEAP_E_DIMS, "a tensor has at most %d dimensions, not %d", NEAP_MAX_DIMS, ndim);
        return false;
    }
    if (ndim > 0 && !shape) {
        np_fail(c, NEAP_E_ARG, "the shape of %d dimensions is NULL", ndim);
        return false;
    }
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0) {
            np_fail(c, NEAP_E_SHAPE, "size %lld of dimension %d is negative: sizes are 0 or more",
                    (long long)shape[i], i + c->base);
            return false;
        }
    int64_t n = np_shape_numel(ndim, shape), total;
    if (n < 0 || __builtin_mul_overflow(n, (int64_t)np_dtype_size(dtype), &total) || total > PTRDIFF_MAX) {
        char text[200];
        np_fail(c, NEAP_E_SHAPE, "%s %s has more bytes than can be counted: use smaller sizes",
                np_shape_text(text, sizeof text, ndim, shape), np_dtype_name(dtype));
        return false;
    }
    *bytes = (size_t)total;
    return true;
}

static neap_tensor *dense(np_storage *st, neap_dtype dtype, int ndim, const int64_t *shape)
{
    if (!st) return NULL;
    int64_t stride[NEAP_MAX_DIMS];
    np_contiguous_strides(ndim, shape, stride);
    st->first.dtype = (uint8_t)dtype;
    np_tensor_geometry(&st->first, ndim, shape, stride, 0);
    return &st->first;
}

/* The end of making a tensor: its storage gets the bytes. */
static NP_APART neap_tensor *with_bytes(neap_ctx *c, np_storage *st)
{
    np_mem *m = &st->dev->mem;
    neap_category cat = (neap_category)st->category;
    bool ok;
    if (st->kind == NP_BYTES_INLINE) {
        ok = np_mem_count(m, st->bytes, cat);
    } else {
        ok = (st->data = np_mem_take(m, st->bytes, cat)) != NULL;
        st->streams = (np_stream_tag){.use = m->use};
    }
    if (!ok) {
        np_obj_free(c, st, sizeof *st);
        return NULL;
    }
    st->first.data = st->data;
    return &st->first;
}

static np_bytes_kind kind_for(const np_device *d, size_t bytes)
{
    return bytes <= NP_INLINE_BYTES && d->backend.host_memory ? NP_BYTES_INLINE : NP_BYTES_BLOCK;
}

/* Any shape, and any trouble. */
static NP_APART neap_tensor *unusual_tensor(neap_ctx *c, np_device *d, neap_dtype dtype, int ndim,
                                            const int64_t *shape)
{
    size_t bytes;
    if (!shape_bytes(c, ndim, shape, dtype, &bytes)) return NULL;
    np_storage *st = np_obj_raw(c, sizeof *st);
    if (!st) return NULL;
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_CATEGORY);
    np_storage_begin(st, c, d, kind_for(d, bytes), bytes, e ? (neap_category)e->value : NEAP_TEMP);
    dense(st, dtype, ndim, shape);
    return with_bytes(c, st);
}

neap_tensor *np_tensor_new(neap_ctx *c, np_device *d, neap_dtype dtype, int ndim, const int64_t *shape)
{
    if ((unsigned)ndim > NEAP_MAX_DIMS || (unsigned)dtype >= NEAP_N_DTYPES)
        return unusual_tensor(c, d, dtype, ndim, shape);
    neap_tensor *t = np_tensor_small(c, d, dtype, ndim, shape);
    if (t) return t;
    np_storage *st = np_obj_peek(c, sizeof *st);
    if (!st || c->ambient.of[NP_AMB_CATEGORY]) return unusual_tensor(c, d, dtype, ndim, shape);
    t = &st->first;
    int64_t bytes, numel = 1;
    for (ptrdiff_t i = ndim; i-- > 0;) { /* before the object is taken: trouble leaves nothing to undo */
        const int64_t n = shape[i];
        t->shape[i] = n;
        t->stride[i] = numel;
        if (n <= 0 || __builtin_mul_overflow(numel, n, &numel))
            return unusual_tensor(c, d, dtype, ndim, shape);
    }
    if (__builtin_mul_overflow(numel, (int64_t)np_sizes[dtype], &bytes))
        return unusual_tensor(c, d, dtype, ndim, shape);
    np_obj_take(c, st, sizeof *st);
    np_storage_begin(st, c, d, kind_for(d, (size_t)bytes), (size_t)bytes, NEAP_TEMP);
    t->dtype = (uint8_t)dtype, t->ndim = (uint8_t)ndim;
    t->numel = numel;
    return with_bytes(c, st);
}

neap_tensor *np_tensor_dry(neap_ctx *c, np_device *d, neap_dtype dtype, int ndim, const int64_t *shape)
{
    size_t bytes;
    if (!shape_bytes(c, ndim, shape, dtype, &bytes)) return NULL;
    return dense(np_storage_dry(c, d, bytes), dtype, ndim, shape);
}

neap_tensor *np_tensor_view(neap_tensor *base, int ndim, const int64_t *shape, const int64_t *stride,
                            int64_t offset)
{
    neap_tensor *t = np_obj_raw(base->c, sizeof *t);
    if (!t) return NULL;
    np_tensor_begin(t, base->c, base->st);
    t->st->refs++;
    t->dtype = base->dtype;
    np_tensor_geometry(t, ndim, shape, stride, offset);
    return t;
}

neap_tensor *np_tensor_alias(neap_tensor *t)
{
    neap_tensor *a = np_tensor_view(t, t->ndim, t->shape, t->stride, t->offset);
    if (a) a->number = t->number, a->origin = t->origin;
    return a;
}

/* Shared, or large. */
static NP_APART void free_any(neap_tensor *t)
{
    neap_ctx *c = t->c;
    np_storage_drop(c, t->st);
    if (t->first) np_storage_unhold(c, (np_storage *)((char *)t - offsetof(np_storage, first)));
    else np_obj_free(c, t, sizeof *t);
}

/* The common case: a small result goes, and nobody else has its bytes or watches them. */
void np_tensor_free(neap_tensor *t)
{
    np_storage *st = t->st;
    if (!t->first || st->refs != 1 || st->version.refs != 2 || st->kind != NP_BYTES_INLINE) {
        free_any(t);
        return;
    }
    np_mem_uncount(&st->dev->mem, st->bytes, (neap_category)st->category);
    np_obj_free(t->c, st, sizeof *st);
}

void np_tensor_destroy(neap_tensor *t)
{
    if (t->ag) np_autograd_destroy(t);
    else np_tensor_free(t);
}

neap_tensor *neap_retain(neap_tensor *t) { return np_hold_ref(t); }

void neap_free(neap_tensor *t) { np_drop(t); }

static neap_tensor *number_new(neap_ctx *c, neap_dtype dtype)
{
    if (np_pending(c)) return NULL;
    neap_tensor *t = dense(np_storage_number(c), dtype, 0, NULL);
    if (t) t->number = true;
    return t;
}

neap_tensor *np_number_new(neap_ctx *c, double v)
{
    neap_tensor *t = number_new(c, NEAP_FLOAT64);
    if (t) *NP_DATA(double, t) = v;
    return t;
}

neap_tensor *np_integer_new(neap_ctx *c, int64_t v)
{
    neap_tensor *t = number_new(c, NEAP_INT64);
    if (t) *NP_DATA(int64_t, t) = v;
    return t;
}

neap_tensor *neap_number(neap_ctx *c, double v) { return np_scope_adopt(c, np_number_new(c, v)); }
neap_tensor *neap_integer(neap_ctx *c, int64_t v) { return np_scope_adopt(c, np_integer_new(c, v)); }

neap_tensor *np_tensor_wrap(neap_ctx *c, neap_dtype dtype, int ndim, const int64_t *shape, void *data,
                            void (*release)(void *user), void *user)
{
    size_t bytes;
    if (!shape_bytes(c, ndim, shape, dtype, &bytes)) return NULL;
    neap_tensor *t = dense(np_storage_wrap(c, data, bytes, NULL, user), dtype, ndim, shape);
    if (t) t->st->release = release; /* from here on: a failed call leaves the bytes with the caller */
    return t;
}

neap_tensor *neap_wrap(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, void *data,
                       void (*release)(void *user), void *user)
{
    size_t bytes;
    if (np_pending(c) || !shape_bytes(c, ndim, shape, dtype, &bytes)) return NULL;
    if (!data && bytes)
        return np_fail(c, NEAP_E_ARG, "data is NULL, but the shape asks for %zu bytes", bytes);
    if ((uintptr_t)data % np_dtype_size(dtype))
        return np_fail(c, NEAP_E_ARG, "data is not aligned: %s needs a multiple of %zu bytes",
                       np_dtype_name(dtype), np_dtype_size(dtype));
    neap_tensor *t = np_scope_adopt(c, np_tensor_wrap(c, dtype, ndim, shape, data, NULL, user));
    if (t)
        t->st->release =
            release; /* not before the scope has it: what fails leaves the bytes with the caller */
    return t;
}

/* ---- facts */

int neap_ndim(const neap_tensor *t) { return t ? t->ndim : 0; }

int64_t neap_size(const neap_tensor *t, int dim)
{
    if (!t) return -1;
    if (dim < 0) dim += t->ndim;
    return dim >= 0 && dim < t->ndim ? t->shape[dim] : -1;
}

int64_t neap_stride(const neap_tensor *t, int dim)
{
    if (!t) return -1;
    if (dim < 0) dim += t->ndim;
    return dim >= 0 && dim < t->ndim ? t->stride[dim] : -1;
}

int64_t neap_numel(const neap_tensor *t) { return t ? t->numel : 0; }
neap_dtype neap_dtype_of(const neap_tensor *t) { return t ? (neap_dtype)t->dtype : NEAP_FLOAT32; }
int neap_device_of(const neap_tensor *t) { return t ? t->st->dev->index : 0; }
int neap_is_contiguous(const neap_tensor *t) { return t && t->contiguous; }
void *neap_data(neap_tensor *t) { return t && !np_is_dry(t) ? np_ptr(t) : NULL; }
uint64_t neap_tensor_version(const neap_tensor *t) { return t ? t->st->version.n : 0; }

void neap_set_category(neap_tensor *t, neap_category cat)
{
    if (t && (unsigned)cat < NP_N_CATEGORIES) np_storage_set_category(t->st, cat);
}

/* ---- reading values: no graph, no copy when the bytes are host memory already */

/* Is t there to be read? A NULL tensor is the trace of an earlier failure. */
static bool readable(neap_ctx *c, const neap_tensor *t)
{
    if (np_pending(c)) return false;
    if (!t) np_fail(c, NEAP_E_ARG, "the tensor is NULL");
    else if (np_is_dry(t)) np_fail_dry(c);
    else if (c->on_read) c->on_read(c, t);
    return t && !np_is_dry(t);
}

/* Is there a place for the answer? */
static bool placed(neap_ctx *c, const void *out)
{
    if (!out) np_fail(c, NEAP_E_ARG, "the place for the result is NULL");
    return out != NULL;
}

/* The one element of t, in `raw` (8 bytes). */
static bool fetch_item(neap_ctx *c, neap_tensor *t, void *raw)
{
    if (!readable(c, t)) return false;
    if (t->numel != 1) {
        char text[200];
        np_fail(c, NEAP_E_SHAPE,
                "item: the tensor %s has %" PRId64 " elements: only a one-element tensor is a number",
                np_shape_text(text, sizeof text, t->ndim, t->shape), t->numel);
        return false;
    }
    return np_fetch(c, t->st->dev, raw, np_ptr(t), np_itemsize(t));
}

int neap_item(neap_ctx *c, neap_tensor *t, double *out)
{
    _Alignas(8) unsigned char raw[8];
    if (!placed(c, out) || !fetch_item(c, t, raw)) return -1;
    *out = np_load_double((neap_dtype)t->dtype, raw);
    return 0;
}

int neap_item_int(neap_ctx *c, neap_tensor *t, int64_t *out)
{
    _Alignas(8) unsigned char raw[8];
    if (!placed(c, out) || !fetch_item(c, t, raw)) return -1;
    *out = np_load_int((neap_dtype)t->dtype, raw);
    return 0;
}

neap_tensor *np_to_host(neap_ctx *c, neap_tensor *t)
{
    if (np_is_dry(t)) return np_fail_dry(c);
    if (t->contiguous && t->st->dev->backend.host_memory) return np_hold_ref(t);
    neap_tensor *h = np_tensor_new(c, c->devices[0], (neap_dtype)t->dtype, t->ndim, t->shape);
    if (h && !np_copy_into(c, h, t)) np_drop(h), h = NULL;
    return h;
}

int neap_read(neap_ctx *c, neap_tensor *t, void *dst, size_t bytes)
{
    if (!readable(c, t)) return -1;
    size_t need = (size_t)t->numel * np_itemsize(t);
    if (bytes != need) {
        np_fail(c, NEAP_E_ARG, "read: the tensor has %zu bytes, the buffer %zu: they must be equal", need,
                bytes);
        return -1;
    }
    if (need == 0) return 0;
    if (!dst) {
        np_fail(c, NEAP_E_ARG, "read: the buffer is NULL, but the tensor has %zu bytes", need);
        return -1;
    }
    if (t->contiguous) return np_fetch(c, t->st->dev, dst, np_ptr(t), need) ? 0 : -1;
    np_storage st = {.dev = c->devices[0], .data = dst, .bytes = need};
    neap_tensor view = {.c = c, .dtype = t->dtype, .st = &st};
    int64_t stride[NEAP_MAX_DIMS];
    np_contiguous_strides(t->ndim, t->shape, stride);
    np_tensor_geometry(&view, t->ndim, t->shape, stride, 0);
    return np_copy_into(c, &view, t) ? 0 : -1;
}

int neap_hash(neap_ctx *c, neap_tensor *t, uint64_t *out)
{
    if (!placed(c, out) || !readable(c, t)) return -1;
    neap_tensor *host = np_to_host(c, t);
    if (!host) return -1;
    np_hash h;
    int64_t head[2 + NEAP_MAX_DIMS] = {t->dtype, t->ndim};
    for (int i = 0; i < t->ndim; i++) head[2 + i] = t->shape[i];
    np_hash_init(&h);
    np_hash_add(&h, head, (size_t)(2 + t->ndim) * sizeof *head);
    if (t->numel) np_hash_add(&h, np_ptr(host), (size_t)t->numel * np_itemsize(t));
    *out = np_hash_done(&h);
    np_drop(host);
    return 0;
}

char *neap_tostring(neap_ctx *c, neap_tensor *t) { return readable(c, t) ? np_print(c, t, NULL) : NULL; }

void neap_free_text(char *s) { free(s); }
