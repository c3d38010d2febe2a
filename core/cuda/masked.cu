/* masked.cu - where a mask is true: masked_select, masked_assign, nonzero.
 *
 * How many elements a result has, infer has counted. Values are held against the mask before anything is written; where
 * they do not fit, the CPU gets the call and says so. */
#include "ranks.h"

namespace
{

/* ---- what is done with an element and its rank */

template <class T> struct take {
    T *y;
    const T *x;
    NP_DEVICE void operator()(int64_t, int64_t at, int64_t rank, bool chosen) const
    {
        if (chosen) y[rank] = x[at];
    }
};
template <class T> struct give {
    T *y;
    const T *v;
    bool one; /* the same value for all */
    NP_DEVICE void operator()(int64_t, int64_t at, int64_t rank, bool chosen) const
    {
        if (chosen) y[at] = v[one ? 0 : rank];
    }
};
struct name_place { /* (n, ndim) positions */
    int64_t *y, base, shape[NEAP_MAX_DIMS];
    int ndim;
    NP_DEVICE void operator()(int64_t i, int64_t, int64_t rank, bool chosen) const
    {
        if (!chosen) return;
        for (int d = ndim - 1; d >= 0; d--) {
            y[rank * ndim + d] = i % shape[d] + base;
            i /= shape[d];
        }
    }
};

/* ---- calls */

int masked_select(const np_call *k)
{
    const np_operand *x = &k->in[0], *mask = &k->in[1], *out = &k->out[0];
    const np_operand *longer = x->ndim < mask->ndim ? mask : x, *other = longer == x ? mask : x;
    int64_t shape[NEAP_MAX_DIMS];
    np_ranks r;
    if (out->numel == 0) return 0;
    for (int d = 0; d < longer->ndim; d++) {
        const int at = d - (longer->ndim - other->ndim);
        shape[d] = longer->shape[d] != 1 || at < 0 ? longer->shape[d] : other->shape[at];
    }
    if (np_rank(k, &r, mask, x, longer->ndim, shape)) return -1;
    return np_with_bits(x->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        return np_rank_write(k, r, take<T>{static_cast<T *>(out->data), static_cast<const T *>(x->data)});
    });
}

/* out[0] = start (NULL: zeros) with the values v where the mask is true. */
int assign(const np_call *k, const np_operand *start, const np_operand *mask, const np_operand *values)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *out = &k->out[0];
    const bool one = values->is_number || values->numel == 1;
    np_operand v;
    np_ranks r;
    int64_t chosen = 0;
    if (np_rank(k, &r, mask, out, out->ndim, out->shape)) return -1;
    if (!one) {
        bool ok = NP_TRY(gpu, cudaMemcpyAsync(&chosen, r.before + r.chunks, sizeof chosen,
                                              cudaMemcpyDeviceToHost, gpu->stream)) &&
                  NP_TRY(gpu, cudaStreamSynchronize(gpu->stream));
        if (np_done(k, ok)) return -1;
        if (chosen != values->numel) return 1;
    }
    if (out->numel == 0) return 0;
    if (start ? !np_start_from(k, out, start)
              : np_done(k,
                        NP_TRY(gpu, cudaMemsetAsync(out->data, 0, np_size_of(out->dtype) * (size_t)out->numel,
                                                    gpu->stream))))
        return -1;
    if (!one && chosen == 0) return 0;
    if (!np_as(k, values, out->dtype, &v)) return -1;
    v.data = const_cast<void *>(np_contiguous(k, &v));
    if (!v.data) return -1;
    return np_with_bits(out->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        return np_rank_write(k, r, give<T>{static_cast<T *>(out->data), static_cast<const T *>(v.data), one});
    });
}
int masked_assign(const np_call *k) { return assign(k, &k->in[0], &k->in[1], &k->in[2]); }
int masked_select_backward(const np_call *k) { return assign(k, nullptr, &k->in[1], &k->in[0]); }

int nonzero(const np_call *k)
{
    const np_operand *x = &k->in[0];
    name_place place = {static_cast<int64_t *>(k->out[0].data), k->attr[0].i, {}, x->ndim};
    np_ranks r;
    if (k->out[0].numel == 0) return 0;
    for (int d = 0; d < x->ndim; d++) place.shape[d] = x->shape[d];
    return np_rank(k, &r, x, x, x->ndim, x->shape) ? -1 : np_rank_write(k, r, place);
}

} // namespace

const np_plugin_row np_rows_masked[] = {
    {"masked_select", masked_select},
    {"masked_select_backward", masked_select_backward},
    {"masked_assign", masked_assign},
    {"nonzero", nonzero},
    {nullptr, nullptr},
};
