/* random.h - random words in blocks, as the kernels that draw take them.
 *
 * Word i of a range is np_rng_bits(range, i) of base/rng.h, whatever the block: so results do not depend on how work is
 * cut. 64-bit values take two words: value i is made of words 2i and 2i + 1. */
#ifndef NP_RANDOM_H
#define NP_RANDOM_H

#include "ops/cpu/loops.h"

#define RNG_WORDS 256 /* words made at a time: four Philox blocks of 64 */

/* Sixteen counters in vectors of 64-bit lanes; only the low half of a lane counts, its high half is rubbish that
 * the 32-bit products ignore. */
#if defined(__AVX2__)
typedef __m256i rng_vec;
#define RV_MUL(a, b) _mm256_mul_epu32(a, b)
#define RV_XOR(a, b) _mm256_xor_si256(a, b)
#define RV_HIGH(a) _mm256_srli_epi64(a, 32)
#define RV_ALL(x) _mm256_set1_epi64x((int64_t)(uint64_t)(x))
#elif defined(__SSE2__)
typedef __m128i rng_vec;
#define RV_MUL(a, b) _mm_mul_epu32(a, b)
#define RV_XOR(a, b) _mm_xor_si128(a, b)
#define RV_HIGH(a) _mm_srli_epi64(a, 32)
#define RV_ALL(x) _mm_set1_epi64x((int64_t)(uint64_t)(x))
#endif

/* Words [64 k, 64 k + 64) of a range, as np_rng_bits gives them one by one. */
static inline void rng_block(np_rng_range r, int64_t k, uint32_t *w)
{
    uint64_t first = r.offset + 16 * (uint64_t)k;
#if defined(__SSE2__)
    enum { LANES = sizeof(rng_vec) / 8, VECS = 16 / LANES, GROUP = 4 };
    const rng_vec m0 = RV_ALL(0xD2511F53u), m1 = RV_ALL(0xCD9E8D57u);
    for (int v = 0; v < VECS; v += GROUP) { /* four at a time hide the latency of the products */
        rng_vec c0[GROUP], c1[GROUP], c2[GROUP], c3[GROUP];
        for (int g = 0; g < GROUP; g++) {
            uint64_t at[LANES];
            for (int l = 0; l < LANES; l++) at[l] = first + (uint64_t)((v + g) * LANES + l);
            memcpy(&c0[g], at, sizeof at);
            c1[g] = RV_HIGH(c0[g]), c2[g] = c3[g] = RV_ALL(0);
        }
        uint32_t k0 = (uint32_t)r.seed, k1 = (uint32_t)(r.seed >> 32);
        for (int round = 0; round < 10; round++) { /* SAME-ORDER np_philox */
            const rng_vec key0 = RV_ALL(k0), key1 = RV_ALL(k1);
            for (int g = 0; g < GROUP; g++) {
                rng_vec p0 = RV_MUL(c0[g], m0), p1 = RV_MUL(c2[g], m1);
                c0[g] = RV_XOR(RV_XOR(RV_HIGH(p1), c1[g]), key0);
                c2[g] = RV_XOR(RV_XOR(RV_HIGH(p0), c3[g]), key1);
                c1[g] = p1, c3[g] = p0;
            }
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        uint64_t out[4][GROUP * LANES];
        memcpy(out[0], c0, sizeof c0), memcpy(out[1], c1, sizeof c1);
        memcpy(out[2], c2, sizeof c2), memcpy(out[3], c3, sizeof c3);
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < GROUP * LANES; l++) w[16 * j + v * LANES + l] = (uint32_t)out[j][l];
    }
#else
    for (int l = 0; l < 16; l++) {
        uint32_t out[4];
        np_philox(r.seed, first + (uint64_t)l, out);
        for (int j = 0; j < 4; j++) w[16 * j + l] = out[j];
    }
#endif
}

/* n words from word `begin`, a multiple of 64; n <= RNG_WORDS. w has room for RNG_WORDS. */
static inline void rng_words(np_rng_range r, int64_t begin, int64_t n, uint32_t *w)
{
    for (int64_t i = 0; i < n; i += 64) rng_block(r, (begin + i) / 64, w + i);
}

static inline uint64_t word64(const uint32_t *w) { return (uint64_t)w[0] | (uint64_t)w[1] << 32; }
static inline double uniform64(uint64_t u) { return (double)(u >> 11) * 0x1p-53; }

/* High half of the product: an integer below `span` without division; span 0 stands for 2^64. */
static inline uint64_t below(uint64_t u, uint64_t span)
{
    __extension__ typedef unsigned __int128 wide;
    return span ? (uint64_t)(((wide)u * span) >> 64) : u;
}

/* 64-bit values one after the other, from value 0 of a range on. */
typedef struct rng_stream {
    np_rng_range range;
    int64_t next;
    uint32_t w[RNG_WORDS];
} rng_stream;
static inline uint64_t rng_next(rng_stream *s)
{
    int64_t at = 2 * s->next % RNG_WORDS;
    if (at == 0) rng_words(s->range, 2 * s->next, RNG_WORDS, s->w);
    s->next++;
    return word64(s->w + at);
}

#endif
