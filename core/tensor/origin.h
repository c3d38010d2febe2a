/* origin.h - where a value comes from, as one number: how a recompute knows that it makes the same values.
 *
 * While a checkpointed function runs, and while it is recomputed (NP_AMB_ORIGIN), every op gives its results an
 * origin: a hash of the op, its numbers and the origins of its operands (core/ops/origin.c). What a node saves must
 * have the same origin in both runs. Only what flows into a saved value counts: logs, counters and detached side
 * computations do not. An origin says nothing of the place in a random stream. Invariants:
 *  - t->origin is 0 in a tensor made outside of any checkpointed function: it is known by its storage's id. It stays
 *    with its tensor for life, so a value that a function made once and kept is the same value in the recompute.
 *  - Writes in place are the storage's: np_storage.writes hashes those made by ops meanwhile, its version counts all.
 *  - Where two equal runs could differ, the origin is 0, "unknown", and what is made of it is unknown, too: a buffer
 *    from outside once the running function writes to it; what a backward inside the function computes. Unknown
 *    origins are never compared. */
#ifndef NP_ORIGIN_H
#define NP_ORIGIN_H

#include "tensor/tensor.h"

#define NP_ORIGIN_UNKNOWN UINT64_C(1) /* in t->origin and in writes */
#define NP_ORIGIN_MADE UINT64_C(2)    /* t->origin: made inside, but by no op: all alike */

static inline uint64_t np_origin_mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

/* What writes in place add to the origin of everything in a storage; 0 for one never written to. */
static inline uint64_t np_origin_of_writes(const np_storage *st)
{
    return st->writes + st->version.n * UINT64_C(0xC2B2AE3D27D4EB4F);
}

/* The running function's mark in a storage from outside that it writes to. `first` is the entry's value: the newest
 * storage when the outermost running function, or recompute, began. */
static inline uint64_t np_origin_mark(uint64_t first) { return first << 1 | 1; }

/* The origin of t as it is now; 0: unknown. */
static inline uint64_t np_origin(neap_tensor *t, uint64_t first)
{
    const np_storage *st = t->st;
    const uint64_t writes = np_origin_of_writes(st);
    uint64_t origin = t->origin;
    if (origin <= NP_ORIGIN_UNKNOWN) {
        if (origin) return 0;
        if (t->number) {
            memcpy(&origin, np_ptr(t), sizeof origin);
            return np_origin_mix(t->dtype + UINT64_C(1), origin) | 2; /* never 0, which means unknown */
        }
        if (st->id > first) origin = t->origin = NP_ORIGIN_MADE;
        else origin = (st->id ^ (uint64_t)t->offset << 32) * UINT64_C(0x9E3779B97F4A7C15);
    }
    if (!writes) return origin;
    if (st->writes == NP_ORIGIN_UNKNOWN || (st->id <= first && st->writes == np_origin_mark(first))) return 0;
    return origin + writes;
}

/* The same while nobody may be noting origins: then unknown. */
static inline uint64_t np_origin_now(neap_ctx *c, neap_tensor *t)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_ORIGIN);
    return e && t ? np_origin(t, (uint64_t)e->value) : 0;
}

/* Gives t an origin that was taken elsewhere (of the value that t is a copy of). */
static inline void np_origin_set(neap_tensor *t, uint64_t origin)
{
    t->origin = origin ? origin - np_origin_of_writes(t->st) : NP_ORIGIN_UNKNOWN;
}

/* A tensor that was just filled by no op is known by its bytes. */
void np_origin_of_bytes(neap_tensor *t);

#endif
