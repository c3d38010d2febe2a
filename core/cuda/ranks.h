/* ranks.h - for each of many elements, how many chosen ones come before it: compaction without atomics.
 *
 * Elements are cut into chunks. One pass counts what each chunk chooses, one block adds up the counts, and a second pass
 * gives every chosen element its rank. How work is cut follows from the number of elements alone. */
#ifndef NP_CUDA_RANKS_H
#define NP_CUDA_RANKS_H

#include "block.h"
#include "positions.h"

enum { NP_RANK_CHUNK = 16 * NP_BLOCK };

/* before[i] = n[0] + ... + n[i - 1], for i up to and including `count`. In one block: by runs of neighbours, a thread
 * each. `n` and `before` may be one. */
static __global__ void np_add_up(int64_t *before, const int64_t *n, int64_t count)
{
    NP_SHARED(int64_t, sums, [NP_BLOCK]);
    const int64_t run = (count + NP_BLOCK - 1) / NP_BLOCK, first = run * (int64_t)threadIdx.x;
    const int64_t end = first + run < count ? first + run : count;
    int64_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += n[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int t = 0; t < (int)threadIdx.x; t++) sum += sums[t];
    for (int64_t i = first; i < end; i++) {
        const int64_t v = n[i];
        before[i] = sum;
        sum += v;
    }
    if (threadIdx.x == NP_BLOCK - 1) before[count] = sum;
}

/* Is an element neither 0 nor false? */
NP_DEVICE bool np_is_chosen(const void *p, int dtype, int64_t at)
{
    return dtype == NEAP_BOOL ? static_cast<const uint8_t *>(p)[at] != 0
                              : np_get_converted<double>(p, dtype, at) != 0;
}

/* w: the mask, and another operand. */
static __global__ void np_count_chosen(int64_t *counts, const void *mask, int dtype, np_walk<2> w,
                                       int64_t chunks)
{
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const int64_t end = (chunk + 1) * NP_RANK_CHUNK < w.n ? (chunk + 1) * NP_RANK_CHUNK : w.n;
        int count = 0;
        for (int64_t i = chunk * NP_RANK_CHUNK + threadIdx.x; i < end; i += NP_BLOCK) {
            int64_t at[2];
            w.at(i, at);
            count += np_is_chosen(mask, dtype, at[0]);
        }
        count = np_block_merge(count, [](int a, int b) { return a + b; });
        if (threadIdx.x == 0) counts[chunk] = count;
    }
}

/* How many threads of the block before this one say yes, and in *all how many do. All threads call it. */
NP_DEVICE int np_block_rank(bool yes, int *all)
{
    NP_SHARED(int, count, [32]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const unsigned set = __ballot_sync(0xffffffffu, yes);
    if (lane == 0) count[warp] = __popc(set);
    __syncthreads();
    int rank = __popc(set & ((1u << lane) - 1u));
    *all = 0;
    for (int w = 0; w < warps; w++) {
        if (w < warp) rank += count[w];
        *all += count[w];
    }
    __syncthreads(); /* count may be written again */
    return rank;
}

/* write(i, at, rank, chosen) for every element: at is its place in the other operand, rank how many chosen ones come
 * before it. */
template <class Write>
__global__ void np_write_ranked(const int64_t *before, const void *mask, int dtype, np_walk<2> w,
                                int64_t chunks, Write write)
{
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        int64_t rank = before[chunk];
        const int64_t end = (chunk + 1) * NP_RANK_CHUNK < w.n ? (chunk + 1) * NP_RANK_CHUNK : w.n;
        for (int64_t first = chunk * NP_RANK_CHUNK; first < end; first += NP_BLOCK) {
            const int64_t i = first + threadIdx.x;
            int64_t at[2] = {0, 0};
            if (i < w.n) w.at(i, at);
            int all;
            const bool chosen = i < w.n && np_is_chosen(mask, dtype, at[0]);
            const int mine = np_block_rank(chosen, &all);
            if (i < w.n) write(i, at[1], rank + mine, chosen);
            rank += all;
        }
    }
}

struct np_ranks {
    np_walk<2> w;
    const np_operand *mask;
    int64_t chunks, *before; /* before[chunks]: all that are chosen */
};

/* Counts what a mask over a shape chooses, `other` being an operand over the same shape. 0; -1: fail was called. */
static inline int np_rank(const np_call *k, np_ranks *r, const np_operand *mask, const np_operand *other,
                          int ndim, const int64_t *shape)
{
    np_gpu *gpu = np_gpu_of(k);
    r->w = np_walk_over(ndim, shape, {mask, other});
    r->mask = mask;
    r->chunks = (r->w.n + NP_RANK_CHUNK - 1) / NP_RANK_CHUNK;
    r->before = static_cast<int64_t *>(k->host->scratch(k, sizeof(int64_t) * (size_t)(r->chunks + 1)));
    if (!r->before) return -1;
    const unsigned blocks = np_blocks(r->chunks * NP_BLOCK);
    bool ok = NP_TRY(gpu, np_launch(np_count_chosen, blocks, NP_BLOCK, 0, gpu->stream, r->before, mask->data,
                                    mask->dtype, r->w, r->chunks)) &&
              NP_TRY(gpu, np_launch(np_add_up, 1, NP_BLOCK, 0, gpu->stream, r->before, r->before, r->chunks));
    return np_done(k, ok);
}
template <class Write> int np_rank_write(const np_call *k, const np_ranks &r, const Write &write)
{
    return np_done(k, NP_TRY(np_gpu_of(k), np_launch(np_write_ranked<Write>, np_blocks(r.chunks * NP_BLOCK),
                                                     NP_BLOCK, 0, np_gpu_of(k)->stream, r.before,
                                                     r.mask->data, r.mask->dtype, r.w, r.chunks, write)));
}

#endif
