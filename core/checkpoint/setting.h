/* setting.h - what is in force around a forward and must be again around its recomputes: default dtype and device,
 * autocast, the op modes. One struct, taken and put in force whole, by both variants of checkpointing. */
#ifndef NP_SETTING_H
#define NP_SETTING_H

#include "ops/op.h"

typedef struct np_setting {
    int64_t dtype, device, cast;
    size_t n_modes, cap;
    np_mode *modes; /* innermost first; their users are retained */
} np_setting;

typedef struct np_entered { /* ambient entries first .. last, made in one go */
    uint64_t first, last;
} np_entered;

bool np_setting_take(neap_ctx *c,
                     np_setting *s); /* *s is zeroed; false: no memory, np_setting_free still applies */
void np_setting_free(neap_ctx *c, np_setting *s);
/* Recording on, in_recompute, the setting; the random ranges (NULL: the live stream) and the tracer given; no inner
 * mode. False: no memory, nothing is in force. */
bool np_setting_enter(neap_ctx *c, const np_setting *s, np_range_log *ranges, np_tracer *tracer,
                      const char *where, np_entered *e);
void np_setting_leave(neap_ctx *c, np_entered *e);

#endif
