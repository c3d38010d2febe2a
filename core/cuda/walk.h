/* walk.h - which element an operand has at a place of the result: shapes and strides as kernels take them. */
#ifndef NP_CUDA_WALK_H
#define NP_CUDA_WALK_H

#include "device.h"

/* K operands over one shape, the last dim first. Dims that lie behind each other in all of them are one; offsets are
 * in elements. A dim that an operand lacks or has one of, where the shape has more, has stride 0 in it. */
template <int K> struct np_walk {
    int ndim;
    int64_t n;
    int64_t size[NEAP_MAX_DIMS], stride[K][NEAP_MAX_DIMS];

    __host__ __device__ __forceinline__ void at(int64_t i, int64_t (&offset)[K]) const
    {
        for (int k = 0; k < K; k++) offset[k] = 0;
        for (int d = 0; d < ndim; d++) {
            int64_t rest, index;
            if (i <= 0x7fffffff && size[d] <= UINT32_MAX) { /* 64-bit division is many times slower */
                rest = (uint32_t)i / (uint32_t)size[d];
                index = i - rest * size[d];
            } else {
                rest = i / size[d];
                index = i - rest * size[d];
            }
            for (int k = 0; k < K; k++) offset[k] += index * stride[k][d];
            i = rest;
        }
    }
    /* Has every operand its elements one after the other? */
    bool dense() const
    {
        for (int k = 0; k < K; k++)
            if (ndim > 1 || (ndim == 1 && stride[k][0] != 1 && size[0] > 1)) return false;
        return true;
    }
};

template <int K>
np_walk<K> np_walk_over(int ndim, const int64_t *shape, const np_operand *const (&operand)[K])
{
    np_walk<K> w = {};
    w.n = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t stride[K];
        bool joins = w.ndim > 0;
        w.n *= shape[d];
        if (shape[d] == 1) continue;
        for (int k = 0; k < K; k++) {
            const np_operand *o = operand[k];
            int at = d - (ndim - o->ndim); /* shapes are aligned at their last dim */
            stride[k] = at < 0 || o->shape[at] != shape[d] ? 0 : o->stride[at];
            joins = joins && stride[k] == w.stride[k][w.ndim - 1] * w.size[w.ndim - 1];
        }
        if (joins) {
            w.size[w.ndim - 1] *= shape[d];
            continue;
        }
        w.size[w.ndim] = shape[d];
        for (int k = 0; k < K; k++) w.stride[k][w.ndim] = stride[k];
        w.ndim++;
    }
    return w;
}

enum { NP_BLOCK = 256 };

/* Blocks of NP_BLOCK threads for n elements; kernels go on in strides of the whole grid. */
static inline unsigned np_blocks(int64_t n)
{
    int64_t blocks = (n + NP_BLOCK - 1) / NP_BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks > 65535 ? 65535 : blocks);
}
#define NP_EACH(i, n) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
         i += (int64_t)gridDim.x * blockDim.x)

#endif
