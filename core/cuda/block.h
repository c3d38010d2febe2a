/* block.h - sums and the like over the threads of a block, in a fixed order: the same bits at every run. */
#ifndef NP_CUDA_BLOCK_H
#define NP_CUDA_BLOCK_H

#include "np_cuda.h"

/* A value of any size from the lane `step` above, by words of 4 bytes. */
template <class T> NP_DEVICE T np_shuffle_down(T v, unsigned step)
{
    union {
        T v;
        uint32_t word[(sizeof(T) + 3) / 4];
    } from, to;
    from.v = v;
    for (size_t i = 0; i < sizeof(T) / 4; i++) to.word[i] = __shfl_down_sync(0xffffffffu, from.word[i], step);
    return to.v;
}

/* What merge(a, b) makes of the v of all threads, in thread 0. All threads of a block of whole warps call it; merge's
 * `a` comes from the lower thread. */
template <class T, class F> NP_DEVICE T np_block_merge(T v, F merge)
{
    NP_SHARED(T, part, [32]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    for (unsigned step = 1; step < 32; step *= 2) v = merge(v, np_shuffle_down(v, step));
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < warps; w++) v = merge(v, part[w]);
    __syncthreads(); /* part may be written again */
    return v;
}

#endif
