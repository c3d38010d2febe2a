/* infer.c - what most ops say about their results: same, broadcast, promoted, boolean.
 * An infer function has no side effect: it checks and describes, nothing is allocated yet. */
#include "ops/op.h"

#include <math.h>
#include <stdio.h>

bool np_same_device(np_frame *f)
{
    const neap_tensor *first = NULL;
    for (int i = 0; i < f->n_in; i++) {
        const neap_tensor *t = f->in[i];
        if (!t || t->number) continue;
        if (!first) {
            first = t;
        } else if (t->st->dev != first->st->dev) {
            const np_device *a = first->st->dev, *b = t->st->dev; /* the model is rarely where the CPU is */
            np_fail(f->c, NEAP_E_DEVICE, "tensors are on %s and %s; move one with :to(\"%s\")", a->name,
                    b->name, a == f->c->devices[0] ? b->name : a->name);
            return false;
        }
    }
    if (first) f->dev = first->st->dev;
    else if (!f->dev) f->dev = f->c->devices[0];
    return true;
}

void np_meta_set(np_frame *f, int j, neap_dtype t, int ndim, const int64_t *shape)
{
    np_out_meta *m = &f->meta[j];
    m->dtype = (uint8_t)t;
    m->ndim = (uint8_t)ndim;
    m->view = false;
    for (int d = 0; d < ndim; d++) m->shape[d] = shape[d];
}

void np_meta_like(np_frame *f, int j, const neap_tensor *t)
{
    np_meta_set(f, j, (neap_dtype)t->dtype, t->ndim, t->shape);
}

void np_meta_view(np_frame *f, int j, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
    np_out_meta *m = &f->meta[j];
    m->dtype = f->in[0]->dtype;
    m->ndim = (uint8_t)ndim;
    m->view = true;
    m->offset = offset;
    for (int d = 0; d < ndim; d++) m->shape[d] = shape[d], m->stride[d] = stride[d];
}

/* ---- numbers meet integer tensors */

static bool in_range(int64_t v, neap_dtype as)
{
    int64_t low, high;
    np_int_range(as, &low, &high);
    return v >= low && v <= high;
}

static NP_APART bool fail_fits(neap_ctx *c, const char *value, neap_dtype as)
{
    int64_t low, high;
    np_int_range(as, &low, &high);
    return np_fail(c, NEAP_E_DTYPE,
                   "%s does not fit into %s, which holds the integers from %lld to %lld; convert the "
                   "tensor with x:to(dtype) first",
                   value, np_dtype_name(as), (long long)low, (long long)high);
}

bool np_integer_fits(neap_ctx *c, int64_t v, neap_dtype as)
{
    char text[40];
    if (!np_is_int(as) || in_range(v, as)) return true;
    snprintf(text, sizeof text, "%lld", (long long)v);
    return fail_fits(c, text, as);
}

bool np_attr_whole(const np_attr *a, int64_t *v)
{
    double f = a->f;
    if (!(fabs(f) <= 0x1p63) || f != floor(f) || (f == 0x1p63 && a->n >= 0)) return false;
    *v = (int64_t)((f == 0x1p63 ? UINT64_C(1) << 63 : (uint64_t)(int64_t)f) + (uint64_t)(int64_t)a->n);
    return true;
}

bool np_attr_fits(neap_ctx *c, const np_attr *a, neap_dtype as)
{
    char text[40];
    int64_t v;
    if (!np_is_int(as)) return true;
    if (np_attr_whole(a, &v)) return np_integer_fits(c, v, as);
    snprintf(text, sizeof text, "%.17g", a->f);
    return fail_fits(c, text, as);
}

static bool whole_number(const neap_tensor *t, int64_t *v)
{
    neap_dtype d = (neap_dtype)t->dtype;
    if (np_is_float(d)) return np_attr_whole(&(np_attr){.f = np_load_double(d, np_ptr(t))}, v);
    *v = np_load_int(d, np_ptr(t));
    return true;
}

bool np_number_fits(neap_ctx *c, const neap_tensor *t, neap_dtype as)
{
    int64_t v;
    if (!t->number || !np_is_int(as)) return true;
    if (whole_number(t, &v)) return np_integer_fits(c, v, as);
    return np_attr_fits(c, &(np_attr){.f = np_load_double((neap_dtype)t->dtype, np_ptr(t))}, as);
}

neap_dtype np_default_float(neap_ctx *c)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_DTYPE);
    return e ? (neap_dtype)e->value : NEAP_FLOAT32;
}

bool np_infer_same(np_frame *f)
{
    if (!np_same_device(f)) return false;
    f->compute = (neap_dtype)f->in[0]->dtype;
    f->flat = f->n_in == 1 && f->in[0]->contiguous;
    np_meta_like(f, 0, f->in[0]);
    return true;
}

bool np_infer_float(np_frame *f)
{
    if (!np_infer_same(f)) return false;
    if (!np_is_float(f->compute)) f->compute = np_default_float(f->c), f->meta[0].dtype = f->compute;
    return true;
}

static NP_APART bool fail_broadcast(np_frame *f)
{
    char ta[128], tb[128];
    neap_tensor *a = f->in[0], *b = f->in[1];
    return np_fail(
        f->c, NEAP_E_SHAPE,
        "shapes do not broadcast: %s and %s; sizes must be equal or 1, counted from the last dimension",
        np_shape_text(ta, sizeof ta, a->ndim, a->shape), np_shape_text(tb, sizeof tb, b->ndim, b->shape));
}

static NP_APART bool broadcast(np_frame *f)
{
    neap_tensor *a = f->in[0], *b = f->in[1];
    f->flat = false;
    f->compute = np_promote_operands(f->in, 2);
    if (!np_same_device(f)) return false;
    int ndim = a->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, a->shape, sizeof(int64_t) * (size_t)ndim);
    if (!np_broadcast_shape(&ndim, shape, b->ndim, b->shape)) return fail_broadcast(f);
    np_meta_set(f, 0, f->compute, ndim, shape);
    return true;
}

/* The common case: tensors of one dtype, device and shape. (False: result 0 is half described.) */
static inline bool alike(np_frame *f)
{
    const neap_tensor *a = f->in[0], *b = f->in[1];
    np_out_meta *m = &f->meta[0];
    if (a->look != b->look || a->number || a->st->dev != b->st->dev) return false;
    for (int d = 0; d < a->ndim; d++) {
        if (a->shape[d] != b->shape[d]) return false;
        m->shape[d] = a->shape[d];
    }
    m->dtype = a->dtype;
    m->ndim = a->ndim;
    m->view = false;
    f->dev = a->st->dev;
    f->compute = (neap_dtype)a->dtype;
    f->flat = a->contiguous & (f->n_in == 2);
    return true;
}

static bool binary_shape(np_frame *f) { return alike(f) || broadcast(f); }

static NP_APART bool infer_unlike(np_frame *f)
{
    return broadcast(f) && np_number_fits(f->c, f->in[0], f->compute) &&
           np_number_fits(f->c, f->in[1], f->compute);
}

bool np_infer_binary(np_frame *f) { return alike(f) || infer_unlike(f); }

bool np_infer_binary_float(np_frame *f)
{
    if (!binary_shape(f)) return false;
    if (!np_is_float(f->compute)) f->compute = np_default_float(f->c), f->meta[0].dtype = f->compute;
    return true;
}

/* The dtype in which a comparison with an operand that takes no part in the promotion is exact: no integer is cut to
 * a narrower dtype, and integers meet a plain float as the integer that it is, or in float64. */
static neap_dtype compare_type(const np_frame *f)
{
    const neap_tensor *a = f->in[0], *b = f->in[1], *number = a->number ? a : b->number ? b : NULL;
    neap_dtype x = (neap_dtype)(number == a ? b : a)->dtype;
    int64_t v;
    if (!number)
        return np_is_float(f->compute) ? f->compute : np_promote((neap_dtype)a->dtype, (neap_dtype)b->dtype);
    if (np_is_float(x)) return f->compute;
    if (!whole_number(number, &v)) return NEAP_FLOAT64;
    return np_is_int(x) && in_range(v, x) ? x : NEAP_INT64;
}

bool np_infer_compare(np_frame *f)
{
    if (!binary_shape(f)) return false;
    if (f->in[0]->dtype != f->in[1]->dtype) f->compute = compare_type(f);
    f->meta[0].dtype = NEAP_BOOL;
    return true;
}

bool np_no_bool(np_frame *f)
{
    if (f->compute != NEAP_BOOL) return true;
    np_fail(f->c, NEAP_E_DTYPE,
            "not defined for bool tensors; use bitwise_xor, bitwise_not or x:to(\"int64\")");
    return false;
}
bool np_infer_same_number(np_frame *f) { return np_infer_same(f) && np_no_bool(f); }
bool np_infer_binary_number(np_frame *f) { return np_infer_binary(f) && np_no_bool(f); }

/* ---- reductions */

void np_reduced_meta(np_frame *f, int out, neap_dtype t, uint32_t mask, bool keepdim)
{
    const neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1)) shape[n++] = x->shape[d];
        else if (keepdim) shape[n++] = 1;
    }
    np_meta_set(f, out, t, n, shape);
}

bool np_infer_dims(np_frame *f, neap_dtype t)
{
    const neap_tensor *x = f->in[0];
    const np_attr *a = &f->attr[0];
    uint32_t seen = 0;
    if (!np_same_device(f)) return false;
    for (int i = 0; a->has && i < a->n; i++) {
        int d = np_wrap_dim(f->c, a->v[i], x->ndim);
        if (d < 0) return false;
        if (seen >> d & 1) {
            np_fail(f->c, NEAP_E_DIMS, "dimension %lld is listed twice", (long long)(d + f->c->base));
            return false;
        }
        seen |= 1u << d;
    }
    f->compute = (neap_dtype)x->dtype;
    np_reduced_meta(f, 0, t, np_dims_mask(a, x->ndim), f->attr[1].i != 0);
    return true;
}
/* One dim, or none for all: f->compute, and whether there is something to choose from. */
bool np_infer_dim(np_frame *f, bool needs_elements)
{
    const neap_tensor *x = f->in[0];
    if (!np_same_device(f)) return false;
    f->compute = (neap_dtype)x->dtype;
    int d = f->attr[0].has ? np_wrap_dim(f->c, f->attr[0].i, x->ndim) : 0;
    if (d < 0) return false;
    if (!needs_elements) return true;
    char text[128];
    if (!f->attr[0].has && x->numel == 0) {
        np_fail(f->c, NEAP_E_SHAPE, "%s has no elements to choose from; check x:numel() first",
                np_tensor_text(text, sizeof text, x));
        return false;
    }
    if (f->attr[0].has && x->ndim > 0 && x->shape[d] == 0) {
        np_fail(f->c, NEAP_E_SHAPE, "dimension %d of %s has size 0: there is nothing to choose from",
                d + f->c->base, np_tensor_text(text, sizeof text, x));
        return false;
    }
    return true;
}
