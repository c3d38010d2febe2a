/* region.h - non-reentrant activation checkpointing: regions, markers, recomputes.
 *
 * A region is one call of a checkpointed function. While it runs, every value that a node would save becomes a
 * marker; the tensor is not kept. The first unpack of a marker in a pass runs the function again and fills the
 * live markers; each is handed out once. Ownership: slot -> marker -> region (strong); region -> markers (weak,
 * NULL when dead). So recomputed values never outlive their slot, and a region dies with its last slot.
 * Nothing reachable from a recomputed value reaches the region: there is no cycle. */
#ifndef NP_REGION_H
#define NP_REGION_H

#include "autograd/autograd.h"
#include "checkpoint/setting.h"

typedef struct np_entry { /* a recomputed value waiting to be fetched under one pass key */
    uint64_t key;
    neap_tensor *t;   /* NULL: fetched already */
    uint64_t version; /* when it was saved */
    struct np_entry *next;
} np_entry;

typedef struct np_marker {
    struct neap_region *region; /* strong */
    size_t index;
    np_entry *entries;
} np_marker;

typedef struct np_saved_meta { /* what the forward saw at a position */
    uint8_t dtype, ndim, device;
    bool captured; /* made outside of the region and no input of it: must still be the same, unchanged */
    int64_t shape[NEAP_MAX_DIMS];
    np_version
        *cell; /* captured: its version cell (counted) and version; inside values: version at the pack */
    uint64_t version;
    uint64_t storage; /* id */
    uint64_t hash; /* determinism "values"; 0: no bytes to hash (a dry value of a selective region around) */
    uint64_t origin; /* tensor/origin.h; 0: unknown */
    bool mutated;    /* made inside, and changed in place after it was saved */
} np_saved_meta;

/* A key under which the region has been recomputed; linked in the context until the pass ends. */
typedef struct np_region_pass {
    struct neap_region *region; /* weak: the region unlinks its passes when it dies */
    uint64_t key;
    struct np_region_pass *prev, *next;
} np_region_pass;

struct neap_region {
    int32_t refs;
    neap_ctx *c;
    char name[96];
    bool preserve_rng, early_stop;
    neap_determinism check;
    bool completed;       /* the forward has returned */
    bool ignore_mismatch; /* recomputed while its forward was still running */
    size_t n, cap, cap_meta;
    np_marker **markers;
    np_saved_meta *metas;
    size_t last_live; /* 1 + index of the last live marker; 0: none */
    int n_inputs;
    np_slot *inputs;
    uint64_t *input_storages; /* their ids */
    uint64_t *input_origins;
    neap_fn recompute;
    np_range_log ranges;
    np_hook_pair *pair;                      /* in force during the forward */
    uint64_t hooks_id, ranges_id, origin_id; /* ambient entries of the forward */
    np_setting setting;                      /* at the forward */
    uint64_t first_storage;                  /* storages above this id were made inside */
    bool debug;
    struct neap_selective *selective; /* stores that recorded its forward; strong */
    struct np_oplog *log;             /* the forward's ops (determinism "ops", "values", debug), or NULL */
    uint64_t trace_id;
    void (*where)(neap_ctx *c, void *user, char *buf, size_t n);
};

struct neap_group {
    uint64_t key; /* stands in a pass id's place */
};

#endif
