/* rows.h - what row-wise kernels share (softmax, norms, losses, indexing): operands brought into rows, sums and
 * maxima over lanes in one fixed order, positions for messages.
 *
 * A row kernel sees contiguous rows of float or double. Half types, integers and other layouts are converted on
 * the way in and out here. Partial sums live in NP_LANES lanes and are added as a tree, so that the compiler
 * can vectorise without changing the order. All of it runs on the calling thread but for the lane macros. */
#ifndef NP_ROWS_H
#define NP_ROWS_H

#include <stdio.h>

#include "ops/cpu/vec.h"
#include "ops/op.h"

#define NP_LANES 16
#define NP_ROW_GRAIN 16384 /* elements of a chunk of rows */

/* sum over i in [0, n) of expr */
#define NP_LANE_SUM(T, i, n, expr) \
    __extension__({ \
        T acc_[NP_LANES] = {0}; \
        int64_t i0_ = 0; \
        for (; i0_ + NP_LANES <= (n); i0_ += NP_LANES) \
            for (int l_ = 0; l_ < NP_LANES; l_++) { \
                const int64_t i = i0_ + l_; \
                acc_[l_] += (expr); \
            } \
        for (int64_t i = i0_; i < (n); i++) acc_[i - i0_] += (expr); \
        for (int w_ = NP_LANES / 2; w_ > 0; w_ /= 2) \
            for (int l_ = 0; l_ < w_; l_++) acc_[l_] += acc_[l_ + w_]; \
        acc_[0]; \
    })

/* The largest of x[0 .. n-1]; -inf if none; NaN stays. Floats compare as integers, which the compiler vectorises. */
static inline float np_row_max_f32(const float *x, int64_t n)
{
    int32_t top = INT32_MIN + 0x7fffff, size = 0; /* -inf */
    for (int64_t i = 0; i < n; i++) {
        int32_t u = (int32_t)v_bits(x[i]), key = u ^ ((u >> 31) & 0x7fffffff), a = u & 0x7fffffff;
        top = key > top ? key : top;
        size = a > size ? a : size;
    }
    return size > 0x7f800000 ? NAN : v_float((uint32_t)(top ^ ((top >> 31) & 0x7fffffff)));
}
static inline double np_row_max_f64(const double *x, int64_t n)
{
    double lane[NP_LANES];
    int64_t i = 0;
    for (int l = 0; l < NP_LANES; l++) lane[l] = (double)-INFINITY;
    for (; i + NP_LANES <= n; i += NP_LANES)
        for (int l = 0; l < NP_LANES; l++) lane[l] = v_max_d(lane[l], x[i + l]);
    for (; i < n; i++) lane[0] = v_max_d(lane[0], x[i]);
    for (int l = 1; l < NP_LANES; l++) lane[0] = v_max_d(lane[0], lane[l]);
    return lane[0];
}

/* The float type that row kernels compute a dtype in. */
static inline neap_dtype np_wide(neap_dtype t) { return t == NEAP_FLOAT64 ? NEAP_FLOAT64 : NEAP_FLOAT32; }

/* A view of t with dimension `dim` last. 0-dim stays. */
static inline neap_tensor *np_dim_last(neap_tensor *t, int dim)
{
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < t->ndim; d++)
        if (d != dim) shape[n] = t->shape[d], stride[n++] = t->stride[d];
    if (t->ndim) shape[n] = t->shape[dim], stride[n++] = t->stride[dim];
    return np_tensor_view(t, n, shape, stride, t->offset);
}

/* Contiguous rows along `dim`, of dtype w. New reference; NULL with an error. */
static inline neap_tensor *np_rows_in(neap_ctx *c, neap_tensor *t, int dim, neap_dtype w)
{
    if (t->ndim < 2 || dim == t->ndim - 1) return np_as_contiguous(c, t, w);
    neap_tensor *v = np_dim_last(t, dim), *r = v ? np_as_contiguous(c, v, w) : NULL;
    np_drop(v);
    return r;
}

/* Where a kernel writes the rows of result j: the result itself when its layout and dtype allow it. */
static inline neap_tensor *np_rows_out(np_frame *f, int j, int dim, neap_dtype w)
{
    neap_tensor *y = f->out[j];
    if (y->dtype == w && y->contiguous && (y->ndim < 2 || dim == y->ndim - 1)) return np_hold_ref(y);
    neap_tensor *v = np_dim_last(y, dim), *r = v ? np_tensor_new(f->c, f->dev, w, v->ndim, v->shape) : NULL;
    np_drop(v);
    return r;
}

/* Ends np_rows_out: moves rows kept elsewhere into result j, drops `r` (NULL is fine). Returns ok and success. */
static inline bool np_rows_done(np_frame *f, int j, int dim, neap_tensor *r, bool ok)
{
    if (ok && r != f->out[j]) {
        neap_tensor *v = np_dim_last(f->out[j], dim);
        ok = v && np_copy_into(f->c, v, r);
        np_drop(v);
    }
    np_drop(r);
    return ok;
}

/* "[3]" or "[2,5]": the position of row-major element i, in the base of the caller's texts. */
static inline const char *np_position_text(char *buf, size_t n, const neap_tensor *t, int64_t i, int base)
{
    int64_t at[NEAP_MAX_DIMS];
    size_t k = 0;
    for (int d = t->ndim - 1; d >= 0; d--) at[d] = i % t->shape[d], i /= t->shape[d];
    for (int d = 0; d < t->ndim && k < n; d++)
        k += (size_t)snprintf(buf + k, n - k, "%s%lld", d ? "," : "[", (long long)(at[d] + base));
    if (k < n) snprintf(buf + k, n - k, t->ndim ? "]" : "");
    if (!t->ndim) buf[0] = 0;
    return buf;
}

#endif
