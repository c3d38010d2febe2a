/* draws.h - random words as kernels take them: the same ones as the CPU's (ops/cpu/random.h).
 *
 * A thread makes four neighbouring counters, which are sixteen words: four runs of four neighbouring ones. 64-bit values
 * take two words: value i is made of words 2i and 2i + 1. */
#ifndef NP_CUDA_DRAWS_H
#define NP_CUDA_DRAWS_H

#include "np_cuda.h"

NP_DEVICE uint64_t np_word64(const uint32_t *w) { return (uint64_t)w[0] | (uint64_t)w[1] << 32; }
NP_DEVICE double np_uniform64(uint64_t u) { return (double)(u >> 11) * 0x1p-53; }

/* An integer below `span`; 0 stands for 2^64. */
NP_DEVICE uint64_t np_below(uint64_t u, uint64_t span) { return span ? __umul64hi(u, span) : u; }

/* 64-bit value i of a range. */
NP_DEVICE uint64_t np_draw64(np_rng_range r, int64_t i)
{
    return (uint64_t)np_rng_bits(r, 2 * (uint64_t)i) | (uint64_t)np_rng_bits(r, 2 * (uint64_t)i + 1) << 32;
}

/* Four counters from the g-th four of a range on: word i of run j is word first + 16 j + i of the range. */
NP_DEVICE int64_t np_draw_words(np_rng_range r, int64_t g, uint32_t (&w)[4][4])
{
    for (int i = 0; i < 4; i++) {
        uint32_t out[4];
        np_philox(r.seed, r.offset + (uint64_t)(4 * g + i), out);
        for (int j = 0; j < 4; j++) w[j][i] = out[j];
    }
    return 64 * (g / 4) + 4 * (g % 4);
}
/* Fours of counters that n words need. */
static inline int64_t np_draw_groups(int64_t n) { return (int64_t)(np_rng_counters((uint64_t)n) / 4); }

#endif
