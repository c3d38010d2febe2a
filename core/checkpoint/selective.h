/* selective.h - between selective.c and the regions: the store of one checkpointed call. */
#ifndef NP_SELECTIVE_H
#define NP_SELECTIVE_H

#include "checkpoint/recompute.h"
#include "tensor/offload.h"

typedef enum np_sac_state {
    NP_SAC_RECOMPUTE,
    NP_SAC_SAVED,
    NP_SAC_DRY, /* saved, but nothing needs it */
    NP_SAC_CONSUMED
} np_sac_state;

typedef struct np_sac_kept { /* one result: an alias, away on the host, or what the user's hooks packed */
    neap_tensor *t;
    uint64_t version;
    np_away *away;
    void *packed;
    np_hook_pair *pair;
} np_sac_kept;

typedef struct np_sac_entry { /* the n-th run of an op */
    int op, nth, next;        /* next entry of the same op, -1 */
    uint8_t state;
    bool view, needed;
    int n_out, n_in;
    uint64_t origin; /* of the call whose results are kept; 0: unknown */
    np_sac_kept kept[NP_MAX_OUT];
    uint64_t out_storages[NP_MAX_OUT], *in_storages; /* ids; inputs' until the forward is over */
} np_sac_entry;

struct neap_selective {
    int32_t refs;
    neap_ctx *c;
    neap_selective_opts o;
    np_mode recorder, replayer;
    neap_region *region;         /* during the forward */
    struct neap_selective *next; /* of the same region */
    uint64_t first_storage;      /* storages above this id were made inside */
    np_sac_entry *v;
    size_t n, cap;
    uint64_t *reads; /* storages that the forward read on the host: the recompute will, too */
    size_t n_reads, cap_reads;
    bool all_needed; /* there was no memory to note a read */
    bool recorded, replayed, warned;
    bool listed[NP_N_OPS];
    int count[NP_N_OPS], head[NP_N_OPS], tail[NP_N_OPS], cursor[NP_N_OPS];
    char note[120];
};

void np_selective_clear(neap_selective *s);  /* lets all entries go */
void np_selective_commit(neap_selective *s); /* a recompute has succeeded: what it replayed is consumed */

#endif
