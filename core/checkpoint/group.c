/* group.c - execution groups: while one is in force its key stands in the pass id's place, so a region met by
 * several backwards is recomputed once. The key belongs to the object: entering it again continues it. */
#include "checkpoint/recompute.h"

neap_group *neap_group_new(neap_ctx *c)
{
    if (np_pending(c)) return NULL;
    neap_group *g = np_obj_new(c, sizeof *g);
    if (g) g->key = ++c->next_pass;
    return g;
}

uint64_t neap_group_begin(neap_ctx *c, neap_group *g)
{
    if (np_pending(c)) return 0;
    if (!g) return np_fail(c, NEAP_E_ARG, "checkpoint: the execution group is NULL"), 0;
    np_ambient_entry *now = np_ambient_get(c, NP_AMB_GROUP);
    if (now && now->payload) {
        np_fail(c, NEAP_E_GROUP_NESTED,
                "an execution group is already active%s%s; leave it before entering another",
                now->note[0] ? ", entered at " : "", now->note);
        return 0;
    }
    return np_ambient_push(c, NP_AMB_GROUP, 0, g, "GraphExecGroup", NULL);
}

void neap_group_close(neap_ctx *c, neap_group *g)
{
    if (g) np_region_pass_end(c, g->key);
}

void neap_group_free(neap_ctx *c, neap_group *g)
{
    if (!g) return;
    neap_group_close(c, g);
    np_obj_free(c, g, sizeof *g);
}
