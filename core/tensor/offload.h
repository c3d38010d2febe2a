/* offload.h - a tensor's elements on the host for a while, and back on the device they came from. */
#ifndef NP_OFFLOAD_H
#define NP_OFFLOAD_H

#include "tensor/tensor.h"

typedef struct np_away np_away;

/* Copies t's elements to the host; the caller may let go of t at once. Of a tensor that is on the host it keeps an
 * alias. `later`: the copy goes through pinned memory on a stream of its own, if the device can do that, and what is
 * brought back is fetched ahead: of the same group, the one sent before it, or after it when they come back in the
 * order they were sent. Bytes are counted in moved_to_host and moved_to_device. NULL with an error. */
typedef struct np_away_opts {
    bool later, in_order;
    const void *group;
} np_away_opts;
np_away *np_send_away(neap_ctx *c, neap_tensor *t, const np_away_opts *o);

/* The elements where they were, in the layout they had: a fresh tensor, or the alias. May be called again. */
neap_tensor *np_bring_back(np_away *a);
void np_away_free(np_away *a); /* NULL is fine */

#endif
