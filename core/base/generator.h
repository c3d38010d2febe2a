/* generator.h - random generators of a context: default ones (one per device, same documented seed 0) and
 * the user's own. Reserving goes through one door so that a checkpoint region can log the ranges its ops
 * reserved and hand them out again in order. */
#ifndef NP_GENERATOR_H
#define NP_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>

#include "neap.h"
#include "rng.h"

struct neap_generator {
    int32_t refs;
    neap_ctx *c;
    uint64_t seed, offset;
    uint64_t id;     /* never reused; a region's log is keyed by it */
    bool is_default; /* in the context's list: neap_seed reaches it */
    neap_generator *next_default;
};

/* A device's default generator: in the context's list, with the context's default seed. The caller owns one
 * reference (neap_generator_free). The first one made is c->default_generator. NULL with E-NOMEM. */
neap_generator *np_generator_new_default(neap_ctx *c);

/* What a region remembers of its random ops: the payload of an NP_AMB_REGION entry. The region owns it. */
typedef enum np_range_mode { NP_RANGES_RECORD, NP_RANGES_REPLAY } np_range_mode;
typedef struct np_range_entry {
    uint64_t generator; /* id */
    uint64_t n;         /* elements reserved */
    np_rng_range range;
    bool taken; /* handed out in this replay */
} np_range_entry;
typedef struct np_range_log { /* all zero: empty and recording */
    np_range_entry *v;        /* in the order of the reservations */
    size_t n, cap;
    size_t cursor; /* replay: every entry before it is taken */
    np_range_mode mode;
    bool mismatch; /* replay: asked for more, or for other sizes, than was recorded */
} np_range_log;
void np_range_log_rewind(np_range_log *log);            /* a replay starts: REPLAY, nothing taken */
void np_range_log_free(neap_ctx *c, np_range_log *log); /* releases the entries, leaves it empty */

/* Reserves counters for n elements. Recording regions log the range, nested ones each for itself. The innermost
 * replaying region hands out its next logged range of this generator; if there is none, or of another n, the
 * range comes from the live generator and log->mismatch is set. An entry without a log (payload NULL) means the
 * live stream, whatever is outside. `g` NULL: c->default_generator (ops of other devices pass their own).
 * A log that cannot grow records E-NOMEM; the range is then valid but the op must fail. */
np_rng_range np_generator_reserve(neap_ctx *c, neap_generator *g, uint64_t n);

#endif
