/* shape.c - arithmetic on shapes and strides: sizes, broadcasting, positions, overlap, promotion.
 *
 * Strides count elements. Sizes never overflow silently: a shape whose element count does not fit in int64
 * is reported as -1. Texts speak in the caller's base. Nothing here touches bytes. */
#include "tensor/tensor.h"

#include <stdio.h>

int64_t np_shape_numel(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0) return 0;
    for (int i = 0; i < ndim; i++)
        if (__builtin_mul_overflow(n, shape[i], &n)) return -1;
    return n;
}

/* Sizes of 0 count as 1, so that an empty tensor's strides look like any other's; unsigned, since the strides
 * of an empty tensor with huge sizes may wrap (they are never used). */
void np_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride)
{
    uint64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = (int64_t)step;
        step *= (uint64_t)(shape[i] > 1 ? shape[i] : 1);
    }
}

bool np_is_contiguous_geometry(int ndim, const int64_t *shape, const int64_t *stride)
{
    for (int i = 0; i < ndim; i++)
        if (shape[i] == 0) return true;
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 1) continue;
        if (stride[i] != step) return false;
        step *= shape[i];
    }
    return true;
}

char *np_shape_text(char *buf, size_t n, int ndim, const int64_t *shape)
{
    size_t at = 0;
    if (n) buf[0] = '\0';
    for (int i = 0; i < ndim && at < n; i++) {
        int w = snprintf(buf + at, n - at, "%s%lld", i ? "," : "[", (long long)shape[i]);
        if (w > 0) at += (size_t)w;
    }
    if (at < n) snprintf(buf + at, n - at, ndim ? "]" : "[]");
    return buf;
}

char *np_tensor_text(char *buf, size_t n, const neap_tensor *t)
{
    char shape[200];
    np_shape_text(shape, sizeof shape, t->ndim, t->shape);
    snprintf(buf, n, "%s %s %s", shape, np_dtype_name((neap_dtype)t->dtype), t->st->dev->name);
    return buf;
}

bool np_broadcast_shape(int *ndim, int64_t *shape, int b_ndim, const int64_t *b_shape)
{
    int a_ndim = *ndim, n = a_ndim > b_ndim ? a_ndim : b_ndim;
    int64_t out[NEAP_MAX_DIMS];
    for (int i = 0; i < n; i++) {
        int ia = i - (n - a_ndim), ib = i - (n - b_ndim);
        int64_t a = ia >= 0 ? shape[ia] : 1, b = ib >= 0 ? b_shape[ib] : 1;
        if (a != b && a != 1 && b != 1) return false;
        out[i] = a == 1 ? b : a;
    }
    *ndim = n;
    if (n) memcpy(shape, out, (size_t)n * sizeof *out);
    return true;
}

int np_wrap_dim(neap_ctx *c, int64_t dim, int ndim)
{
    int64_t n = ndim ? ndim : 1;
    if (dim >= -n && dim < n) return (int)(dim < 0 ? dim + n : dim);
    int64_t shown = dim >= 0 ? dim + c->base : dim;
    if (ndim == 0)
        np_fail(c, NEAP_E_DIMS, "there is no dimension %lld: the tensor has 0 dimensions", (long long)shown);
    else
        np_fail(c, NEAP_E_DIMS, "there is no dimension %lld: the tensor has %d, so %d to %d or -%d to -1",
                (long long)shown, ndim, c->base, ndim - 1 + c->base, ndim);
    return -1;
}

int64_t np_wrap_index(neap_ctx *c, int64_t index, int64_t size, int dim)
{
    if (index >= -size && index < size) return index < 0 ? index + size : index;
    int64_t shown = index >= 0 ? index + c->base : index;
    if (size == 0)
        np_fail(c, NEAP_E_INDEX, "position %lld is out of range: dimension %d has size 0", (long long)shown,
                dim + c->base);
    else
        np_fail(c, NEAP_E_INDEX,
                "position %lld is out of range: dimension %d has size %lld, so %d to %lld or -%lld to -1",
                (long long)shown, dim + c->base, (long long)size, c->base, (long long)(size - 1 + c->base),
                (long long)size);
    return -1;
}

/* Exact for what views make (every stride at least the extent of the smaller ones); interleaved strides that
 * happen not to meet count as overlapping. */
bool np_overlaps_itself(const neap_tensor *t)
{
    int64_t size[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    int n = 0;
    if (t->numel <= 1 || t->contiguous) return false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1) continue;
        int64_t s = t->stride[i] < 0 ? -t->stride[i] : t->stride[i];
        int j = n++;
        for (; j > 0 && stride[j - 1] > s; j--) stride[j] = stride[j - 1], size[j] = size[j - 1];
        stride[j] = s, size[j] = t->shape[i];
    }
    int64_t extent = 0; /* largest distance between two elements of the dims so far */
    for (int i = 0; i < n; i++) {
        if (stride[i] <= extent) return true;
        extent += stride[i] * (size[i] - 1);
    }
    return false;
}

/* First and last byte address of t's elements; t is not empty. */
static void address_range(const neap_tensor *t, uintptr_t *lo, uintptr_t *hi)
{
    int64_t first = 0, last = 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t reach = t->stride[i] * (t->shape[i] - 1);
        if (reach < 0) first += reach;
        else last += reach;
    }
    size_t item = np_itemsize(t);
    uintptr_t p = (uintptr_t)np_ptr(t);
    *lo = p + (uintptr_t)(first * (int64_t)item);
    *hi = p + (uintptr_t)(last * (int64_t)item) + item - 1;
}

static bool same_geometry(const neap_tensor *a, const neap_tensor *b)
{
    if (np_ptr(a) != np_ptr(b) || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] != 1 && a->stride[i] != b->stride[i])) return false;
    return true;
}

bool np_may_overlap(const neap_tensor *a, const neap_tensor *b, bool *same)
{
    uintptr_t alo, ahi, blo, bhi;
    *same = false;
    if (a->numel == 0 || b->numel == 0 || a->st->dev != b->st->dev) return false;
    address_range(a, &alo, &ahi);
    address_range(b, &blo, &bhi);
    if (ahi < blo || bhi < alo) return false;
    *same = same_geometry(a, b);
    return true;
}

/* PyTorch's rule. Three ranks of operands: dimensioned, 0-dim, plain numbers. A lower rank takes part only
 * if its kind (bool < integer < float) is higher; a plain float stands for the default float dtype. */
neap_dtype np_promote_operands(neap_tensor *const *in, int n)
{
    bool have[3] = {false, false, false};
    neap_dtype type[3] = {NEAP_BOOL, NEAP_BOOL, NEAP_BOOL};
    for (int i = 0; i < n; i++) {
        if (!in[i]) continue;
        neap_dtype d = (neap_dtype)in[i]->dtype;
        int rank = in[i]->number ? 2 : in[i]->ndim == 0 ? 1 : 0;
        if (rank == 2 && np_is_float(d)) {
            const np_ambient_entry *e = np_ambient_get(in[i]->c, NP_AMB_DTYPE);
            d = e ? (neap_dtype)e->value : NEAP_FLOAT32;
        }
        type[rank] = have[rank] ? np_promote(type[rank], d) : d;
        have[rank] = true;
    }
    neap_dtype r = type[2];
    bool any = have[2];
    for (int rank = 1; rank >= 0; rank--) {
        if (!have[rank]) continue;
        bool wins = !any || np_dtype_kind(type[rank]) >= np_dtype_kind(r);
        r = wins ? type[rank] : np_promote(type[rank], r);
        any = true;
    }
    return r;
}
