/* positions.h - what ops that take positions share: reading and checking them, adding in a wide type.
 *
 * Positions count from `base`, negative ones from the end; strict ones (labels, ids of a table) lie in base .. base + n - 1.
 * All are checked before anything is written. */
#ifndef NP_POSITIONS_H
#define NP_POSITIONS_H

#include "ops/cpu/rows.h"

/* The positions as contiguous 0-based int64. New reference; NULL with E-INDEX. strict: the size is a number
 * of such things, the ids are names of them: E-LABEL. */
static inline neap_tensor *np_positions(np_frame *f, neap_tensor *ids, int64_t size, int64_t base,
                                        const char *strict)
{
    neap_ctx *c = f->c;
    neap_tensor *in = np_as_contiguous(c, ids, NEAP_INT64);
    neap_tensor *out = in ? np_tensor_new(c, c->devices[0], NEAP_INT64, ids->ndim, ids->shape) : NULL;
    for (int64_t i = 0; out && i < out->numel; i++) {
        int64_t v = NP_DATA(int64_t, in)[i];
        bool plain = v >= base && v - base < size;
        if (plain || (!strict && v < 0 && v >= -size)) {
            NP_DATA(int64_t, out)[i] = plain ? v - base : v + size;
            continue;
        }
        char at[120];
        np_position_text(at, sizeof at, ids, i, c->base);
        if (strict)
            np_fail(c, NEAP_E_LABEL, "ids%s is %lld, but there are %lld %s: ids are %lld..%lld%s", at,
                    (long long)v, (long long)size, strict, (long long)base, (long long)(base + size - 1),
                    base ? "; for ids that count from 0 pass {base = 0}" : "");
        else
            np_fail(c, NEAP_E_INDEX,
                    "ids%s is %lld, but positions are %lld..%lld, or -1..-%lld from the end%s", at,
                    (long long)v, (long long)base, (long long)(base + size - 1), (long long)size,
                    base ? "; they count from 1, for others pass {base = 0}" : "");
        np_drop(out);
        out = NULL;
    }
    np_drop(in);
    return out;
}

static inline int np_dim_of(const np_attr *a, int ndim) { return (int)(a->i < 0 ? a->i + ndim : a->i); }

static inline int64_t sizes(const int64_t *shape, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= shape[d];
    return n;
}

/* The dtype sums are kept in. */
static inline neap_dtype np_sum_type(neap_dtype t) { return np_is_float(t) ? np_wide(t) : NEAP_INT64; }

static inline void np_add_row(neap_dtype t, char *dst, const char *src, int64_t n)
{
    if (t == NEAP_FLOAT32) {
        float *d = (float *)(void *)dst;
        const float *s = (const float *)(const void *)src;
        for (int64_t i = 0; i < n; i++) d[i] += s[i];
    } else if (t == NEAP_FLOAT64) {
        double *d = (double *)(void *)dst;
        const double *s = (const double *)(const void *)src;
        for (int64_t i = 0; i < n; i++) d[i] += s[i];
    } else {
        uint64_t *d = (uint64_t *)(void *)dst;
        const uint64_t *s = (const uint64_t *)(const void *)src;
        for (int64_t i = 0; i < n; i++) d[i] += s[i];
    }
}

static inline bool np_check_ids(np_frame *f, const neap_tensor *ids)
{
    if (np_is_int((neap_dtype)ids->dtype)) return true;
    return np_fail(f->c, NEAP_E_DTYPE, "positions are integers, but ids is %s; %s",
                   np_dtype_name((neap_dtype)ids->dtype),
                   ids->dtype == NEAP_BOOL ? "for a mask use masked_select" : "convert with :to(\"int64\")");
}

/* Devices, ids and dim of an op on x; the dim, or -1. */
static inline int np_check_ids_dim(np_frame *f, const neap_tensor *ids, int ndim, int64_t dim)
{
    if (!np_same_device(f) || !np_check_ids(f, ids)) return -1;
    if (ndim == 0) {
        np_fail(f->c, NEAP_E_DIMS, "x has no dimension to index");
        return -1;
    }
    return np_wrap_dim(f->c, dim, ndim);
}

#endif
