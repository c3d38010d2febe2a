/* hash.h - a 64-bit hash of bytes (not cryptographic), stable across runs and machines (little-endian).
 * Streaming: h = np_hash_init(); np_hash_add(&h, p, n) ...; np_hash_done(&h). Splitting the input
 * differently gives the same value. */
#ifndef NP_HASH_H
#define NP_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct np_hash {
    uint64_t acc[4], total;
    unsigned char tail[32];
    size_t n_tail;
} np_hash;

void np_hash_init(np_hash *h);
void np_hash_add(np_hash *h, const void *p, size_t n);
uint64_t np_hash_done(const np_hash *h);

#endif
