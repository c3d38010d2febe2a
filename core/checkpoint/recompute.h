/* recompute.h - between region.c and recompute.c. */
#ifndef NP_RECOMPUTE_H
#define NP_RECOMPUTE_H

#include "checkpoint/region.h"

void np_region_drop(neap_region *r);                    /* one reference */
neap_tensor *np_region_unpack(neap_ctx *c, np_slot *s); /* a marker's value, once per pass key */
void np_region_pass_end(neap_ctx *c, uint64_t id);      /* drops what the pass did not fetch */
void np_region_forget_passes(neap_region *r);
bool np_ranges_for_replay(neap_ctx *c, const np_range_log *from, np_range_log *to); /* a copy, rewound */
neap_region *np_recording_region(neap_ctx *c); /* whose forward's hook pair is in force, or NULL */

#endif
