/* rng.h - Philox4x32-10 and the map from element to counter, shared by CPU and CUDA sources.
 *
 * A generator is two integers: seed and offset. An op reserves a range of counters and computes every
 * element from (seed, offset, element index) alone: element i -> block i/64, word (i%64)/16, counter
 * offset + 16*(i/64) + i%16. So a stream is captured by two integers and no result depends on threads.
 * Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef NP_RNG_H
#define NP_RNG_H

#include <stdint.h>

#ifndef NP_HOST_DEVICE
#define NP_HOST_DEVICE static inline
#endif

typedef struct np_rng_range { /* what a random op's record holds */
    uint64_t seed, offset;
} np_rng_range;

NP_HOST_DEVICE void np_philox(uint64_t seed, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The 32 random bits of element i of a range. Kernels that fill many elements do a block at a time. */
NP_HOST_DEVICE uint32_t np_rng_bits(np_rng_range r, uint64_t i)
{
    uint32_t w[4];
    np_philox(r.seed, r.offset + 16 * (i / 64) + i % 16, w);
    return w[(i % 64) / 16];
}

/* Uniform in [0,1): 24 bits. */
NP_HOST_DEVICE float np_rng_uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

/* Counters that n elements reserve. 64-bit values take two words: reserve for 2n elements. */
NP_HOST_DEVICE uint64_t np_rng_counters(uint64_t n) { return 16 * ((n + 63) / 64); }

#endif
