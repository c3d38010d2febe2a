/* ambient.h - everything that is "in force" around an op: grad mode, hook pairs, regions, op modes, scopes ...
 *
 * One list of entries {id, owner, kind}. An owner is an opaque pointer (a coroutine; C hosts use NULL).
 * The effective entry of a kind is the newest one of the running owner, else the newest whose owner is not
 * asleep. Entries end by id, in any order. Nothing here knows what a kind means, but for the derived struct
 * np_effective, which the dispatcher reads and which is recomputed only after a push, a pop or a change
 * of the running owner. */
#ifndef NP_AMBIENT_H
#define NP_AMBIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "neap.h"

typedef enum np_ambient_kind {
    NP_AMB_GRAD,  /* value: 0 or 1 */
    NP_AMB_HOOKS, /* payload: np_hook_pair (user pair, region record or replay pair, or "disabled") */
    NP_AMB_MODE,  /* payload: np_mode, sees every op first; NULL: none but those below id `value` (0: none) */
    NP_AMB_INNER, /* payload: np_mode, below recording (selective checkpoint) */
    NP_AMB_SCOPE, /* payload: C or handle scope */
    NP_AMB_GROUP, /* payload: execution group */
    NP_AMB_RECOMPUTE, /* value: 1 + the newest storage before the recompute; 0: none (neap_in_recompute) */
    NP_AMB_REGION, /* payload: np_range_log (generator.h), or NULL: the live stream; value: the bindings' */
    NP_AMB_DTYPE,  /* value: neap_dtype */
    NP_AMB_DEVICE, /* value: device index */
    NP_AMB_STREAM, /* value: NP_STREAM_VALUE (tensor/streams.h) */
    NP_AMB_CAST,   /* value: 1 + the neap_dtype of autocast; 0: off */
    NP_AMB_EARLY_STOP, /* value: 0 or 1 */
    NP_AMB_CATEGORY,   /* value: neap_category of new storages */
    NP_AMB_ANOMALY,    /* value: 0 or 1 */
    NP_AMB_TRACE,      /* payload: np_tracer or np_watch, told of every op; value: autograd/watch.h */
    NP_AMB_ORIGIN, /* value: newest storage, payload: pass when it began; in force: origins are noted (origin.h) */
    NP_AMB_DEBUG, /* value: set_checkpoint_debug_enabled: 0, 1, or -1 for unset */
    NP_N_AMBIENT
} np_ambient_kind;

/* Kinds that have a part in the call of an op, besides recording it. */
#define NP_AMB_LOUD \
    (1u << NP_AMB_MODE | 1u << NP_AMB_INNER | 1u << NP_AMB_CAST | 1u << NP_AMB_TRACE | 1u << NP_AMB_ORIGIN)

typedef struct np_ambient_entry {
    uint64_t id; /* from 1, never reused */
    const void *owner;
    np_ambient_kind kind;
    int64_t value;
    void *payload;
    const char *where; /* optional: what opened it ("no_grad"), for messages; a static string */
    char note[64];     /* "train.lua:12", copied */
} np_ambient_entry;

typedef struct np_ambient {
    np_ambient_entry *v; /* ascending id */
    size_t n, cap;
    uint64_t next_id;
    const void *running;                           /* the running owner */
    bool (*asleep)(void *user, const void *owner); /* NULL: everyone is awake */
    void *asleep_user;
    int32_t of[NP_N_AMBIENT]; /* entries of a kind, of all owners */
    int32_t loud;             /* entries of the kinds that may change what an op call does: NP_AMB_LOUD */
    bool dirty;
    np_ambient_entry *eff[NP_N_AMBIENT]; /* valid when !dirty; NULL: nothing in force */
} np_ambient;

/* Returns the entry's id, or 0 with NEAP_E_NOMEM recorded. `note` may be NULL. */
uint64_t np_ambient_push(neap_ctx *c, np_ambient_kind kind, int64_t value, void *payload, const char *where,
                         const char *note);
bool np_ambient_pop(neap_ctx *c, uint64_t id); /* false: no such entry (already ended) */
np_ambient_entry *np_ambient_find(neap_ctx *c, uint64_t id);

/* np_ambient_get, in line in ctx.h: the effective entry of a kind, NULL if none. Cheap when nothing changed. */
void np_ambient_refresh(np_ambient *a);
/* The same, among entries with id < below (op modes nest by walking outward). */
np_ambient_entry *np_ambient_below(neap_ctx *c, np_ambient_kind kind, uint64_t below);

void np_ambient_run(neap_ctx *c, const void *owner); /* sets the running owner */
void np_ambient_touch(neap_ctx *c);                  /* an owner may have fallen asleep or died */
void np_ambient_close(neap_ctx *c);

#endif
