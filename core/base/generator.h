/* generator.h - random generators of a context: default ones (one per device, same documented seed 0) and
 * the user's own. Reserving goes through one door so that a checkpoint region can log the ranges its ops
 * reserved and hand them out again in order (DECISIONS B12). */
#ifndef NP_GENERATOR_H
#define NP_GENERATOR_H

#include "neap.h"
#include "rng.h"

struct neap_generator {
    int32_t refs;
    neap_ctx *c;
    uint64_t seed, offset;
    uint64_t id; /* never reused; a region's log is keyed by it */
};

/* Reserves counters for n elements. If a region is recording it logs the range; if one is replaying and
 * preserves the stream, the logged range comes back instead. `g` NULL: the device's default generator. */
np_rng_range np_generator_reserve(neap_ctx *c, neap_generator *g, uint64_t n);

#endif
