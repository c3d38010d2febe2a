/* hash.c - XXH64 with seed 0 (Yann Collet's public algorithm), streaming.
 *
 * The value depends on the bytes alone, not on how they were split, and is the same on every machine: words
 * are read as little-endian. Not for adversaries. */
#include "hash.h"

#include <string.h>

#define P1 UINT64_C(0x9E3779B185EBCA87)
#define P2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define P3 UINT64_C(0x165667B19E3779F9)
#define P4 UINT64_C(0x85EBCA77C2B2AE63)
#define P5 UINT64_C(0x27D4EB2F165667C5)

static inline uint64_t rotl(uint64_t x, int r) { return x << r | x >> (64 - r); }

static inline uint64_t word64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint32_t word32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

static inline uint64_t mix(uint64_t acc, uint64_t word) { return rotl(acc + word * P2, 31) * P1; }

static void block(np_hash *h, const unsigned char *p)
{
    for (int i = 0; i < 4; i++) h->acc[i] = mix(h->acc[i], word64(p + 8 * i));
}

void np_hash_init(np_hash *h) { *h = (np_hash){.acc = {P1 + P2, P2, 0, 0 - P1}}; }

void np_hash_add(np_hash *h, const void *data, size_t n)
{
    const unsigned char *p = data;
    if (n == 0) return;
    h->total += n;
    if (h->n_tail) {
        size_t take = sizeof h->tail - h->n_tail;
        if (take > n) take = n;
        memcpy(h->tail + h->n_tail, p, take);
        h->n_tail += take, p += take, n -= take;
        if (h->n_tail < sizeof h->tail) return;
        block(h, h->tail);
        h->n_tail = 0;
    }
    for (; n >= sizeof h->tail; p += sizeof h->tail, n -= sizeof h->tail) block(h, p);
    memcpy(h->tail, p, n);
    h->n_tail = n;
}

uint64_t np_hash_done(const np_hash *h)
{
    uint64_t x = P5;
    if (h->total >= sizeof h->tail) {
        x = rotl(h->acc[0], 1) + rotl(h->acc[1], 7) + rotl(h->acc[2], 12) + rotl(h->acc[3], 18);
        for (int i = 0; i < 4; i++) x = (x ^ mix(0, h->acc[i])) * P1 + P4;
    }
    x += h->total;
    const unsigned char *p = h->tail, *end = p + h->n_tail;
    for (; end - p >= 8; p += 8) x = rotl(x ^ mix(0, word64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        x = rotl(x ^ word32(p) * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++) x = rotl(x ^ *p * P5, 11) * P1;
    x = (x ^ x >> 33) * P2;
    x = (x ^ x >> 29) * P3;
    return x ^ x >> 32;
}
