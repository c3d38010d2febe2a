/* ctx.h - the context: everything a Lua state or a host thread owns. There is no other mutable state.
 * One context is used by one thread at a time. */
#ifndef NP_CTX_H
#define NP_CTX_H

#include <stdatomic.h>
#include <string.h>

#include "ambient.h"
#include "cpu.h"
#include "dtype.h"
#include "generator.h"
#include "mem.h"
#include "pool.h"
#include "status.h"

struct np_device; /* tensor/device.h */
struct np_pass;   /* autograd/engine.c */
struct np_blas;   /* ops/cpu/gemm.c */

typedef struct np_op_count {
    uint64_t calls, kernels, replayed,
        staged; /* staged: kernels of the CPU for another device (ops/remote.c) */
} np_op_count;

#define NP_MAX_DEVICES 16
#define NP_OBJ_CLASSES 64

struct neap_ctx {
    np_error err;        /* code NEAP_OK: nothing pending */
    const char *op_name; /* the op being run, for messages */
    int base;            /* index base of texts: 0 for C callers, 1 when Lua calls */

    np_ambient ambient;
    struct np_device *devices[NP_MAX_DEVICES];
    int n_devices;                  /* devices[0] is the CPU */
    int default_device;             /* NEAP_DEVICE's */
    void *obj_free[NP_OBJ_CLASSES]; /* free lists of small objects */
    size_t obj_live;                /* objects handed out, for leak tests */
    struct np_plugins *plugins;     /* those asked for (tensor/plugin.c) */

    int isa; /* chosen CPU level */
    int n_threads;
    np_pool *pool;
    struct np_blas *blas; /* opened at first use */
    atomic_bool cancel;   /* set by neap_cancel from any thread or signal handler */

    uint64_t next_seq;    /* of graph nodes, from 1 */
    uint64_t next_pass;   /* of engine runs, from 1 */
    struct np_pass *pass; /* the running engine pass, NULL outside */
    uint64_t next_generator;
    neap_generator *default_generator; /* the CPU's: head of the list of default generators; borrowed */
    uint64_t default_seed;             /* of default generators made from now on: 0, or the last neap_seed */

    int64_t n_nodes, n_regions, n_slots, n_markers, n_pass_entries; /* live counts: neap_memory_stats */
    np_op_count *counts;                                            /* by op index */

    void *graveyard; /* nodes waiting for iterative release */
    bool burying;
    struct np_op_facts *facts; /* parsed schemas by op index (ops/registry.c) */
    struct np_hook *hooks;     /* every registered tensor and node hook, for removal by id */
    uint64_t next_hook;
    struct np_custom_frame *custom; /* the running custom backward */
    int64_t n_dry;                  /* live storages without bytes (selective checkpointing) */
    const char *dry_note;           /* names op and policy of the latest one, for messages */
    /* Told of tensors that require grad and meet an op while recording is off; NULL: nobody asks. */
    void (*on_unrecorded)(neap_ctx *c, neap_tensor *t);
    struct neap_reentrant *reentrant;        /* the running reentrant forward */
    uint64_t next_storage;                   /* storages get ascending ids */
    uint64_t moved_to_host, moved_to_device; /* bytes of saved values that offload moved */
    struct np_cycle *cycles;                 /* tensors whose .grad has a graph (autograd/cycles.c) */
    int64_t n_cycles, search_at;             /* how many; at how many to look for dead ones */
    bool warned_cycle;                       /* create_graph in backward: said once */
    int stop_barrier; /* > 0: code that must not be stopped early is running (nested backward) */
    struct np_region_pass *region_passes;          /* recomputes whose values are not all fetched yet */
    void (*on_pass_end)(neap_ctx *c, uint64_t id); /* set by the checkpoint layer */

    uint64_t alloc_count, alloc_fail_at; /* for tests, see mem.h */
    uint64_t forgiven;                   /* errors dropped on purpose: np_forgive */
    neap_ctx_opts opts;                  /* the host's callbacks and limits */
    /* a value is read on the host; set by the checkpoint layer */
    void (*on_read)(neap_ctx *c, const neap_tensor *t);
    bool (*can_stop)(void *user); /* may the running code be stopped here (early stop)? set by bindings */
    void *can_stop_user;
    int region_depth, region_depth_limit;
    struct np_at_close *at_close; /* what higher layers opened lazily: np_ctx_at_close */
};

/* A function of its own, for the unusual case: it must not make the frame of its caller larger. */
#define NP_APART __attribute__((noinline, unused))
#define NP_INLINE inline __attribute__((always_inline))

/* The common case of mem.h in line: an idle object of the class, a small count, no limit, no failure injected. */

/* The idle object that the next allocation of this size would get, NULL if it needs more than that. All but its first
 * word may be written to already; np_obj_take makes it the caller's. */
static inline void *np_obj_peek(neap_ctx *c, size_t size)
{
    size_t k = (size - 1) / NP_OBJ_STEP; /* size 0: beyond all classes */
    return k < NP_OBJ_CLASSES && !c->alloc_fail_at ? c->obj_free[k] : NULL;
}
static inline void np_obj_take(neap_ctx *c, void *p, size_t size)
{
    memcpy(&c->obj_free[(size - 1) / NP_OBJ_STEP], p, sizeof(void *));
    c->alloc_count++;
    c->obj_live++;
}
static inline void *np_obj_idle(neap_ctx *c, size_t size)
{
    void *p = np_obj_peek(c, size);
    if (p) np_obj_take(c, p, size);
    return p;
}
static inline void *np_obj_new(neap_ctx *c, size_t size)
{
    void *p = np_obj_idle(c, size);
    return p ? memset(p, 0, size) : np_obj_new_slow(c, size);
}
/* Not zeroed: for makers that write every field. */
static inline void *np_obj_raw(neap_ctx *c, size_t size)
{
    void *p = np_obj_idle(c, size);
    return p ? p : np_obj_new_slow(c, size);
}
#if defined(__SANITIZE_ADDRESS__)
#define NP_OBJ_CACHE 0 /* a freed object is really freed, so that a late use is seen */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NP_OBJ_CACHE 0
#endif
#endif
#ifndef NP_OBJ_CACHE
#define NP_OBJ_CACHE 1
#endif
static inline void np_obj_free(neap_ctx *c, void *p, size_t size)
{
    size_t k = (size - 1) / NP_OBJ_STEP;
    if (!NP_OBJ_CACHE || !p || k >= NP_OBJ_CLASSES) {
        np_obj_free_slow(c, p, size);
        return;
    }
    memcpy(p, &c->obj_free[k], sizeof(void *));
    c->obj_free[k] = p;
    c->obj_live--;
}

/* Bytes that live now; the peak is the moment of the most, with its categories. */
static inline void np_mem_add(np_mem *m, size_t bytes, neap_category cat)
{
    m->live += (int64_t)bytes;
    m->by[cat] += (int64_t)bytes;
    m->storages++;
    if (m->live > m->peak) {
        m->peak = m->live;
        memcpy(m->peak_by, m->by, sizeof m->by);
    }
}
static inline bool np_mem_count(np_mem *m, size_t bytes, neap_category cat)
{
    if (m->c->alloc_fail_at || m->limit > 0 || bytes > NP_OBJ_STEP) return np_mem_count_slow(m, bytes, cat);
    m->c->alloc_count++;
    np_mem_add(m, bytes, cat);
    return true;
}
static inline void np_mem_uncount(np_mem *m, size_t bytes, neap_category cat)
{
    m->live -= (int64_t)bytes;
    m->by[cat] -= (int64_t)bytes;
    m->storages--;
}

static inline np_ambient_entry *np_ambient_get(neap_ctx *c, np_ambient_kind kind)
{
    if (!c->ambient.of[kind]) return NULL;
    if (c->ambient.dirty) np_ambient_refresh(&c->ambient);
    return c->ambient.eff[kind];
}

/* Surely nothing of this kind is in force; false when it must be looked up. */
static inline bool np_ambient_none(const neap_ctx *c, np_ambient_kind kind)
{
    return !c->ambient.of[kind] || (!c->ambient.dirty && !c->ambient.eff[kind]);
}

static inline bool np_pending(const neap_ctx *c) { return c->err.code != NEAP_OK; }
static inline bool np_cancelled(neap_ctx *c)
{
    return atomic_load_explicit(&c->cancel, memory_order_relaxed);
}

/* Hooks that base calls and does not own. Devices: core/tensor/device.c. Number of ops: the generated registry. */
bool np_devices_init(neap_ctx *c);
void np_devices_close(neap_ctx *c);
void np_plugins_close(neap_ctx *c);
extern const int np_n_ops_total;

/* fn(c, arg) runs in neap_ctx_free before the devices close, newest first. false: E-NOMEM. */
bool np_ctx_at_close(neap_ctx *c, void (*fn)(neap_ctx *c, void *arg), void *arg);

/* One line to the host's log callback, if any. level: 0 debug, 1 info, 2 warning. */
void np_logf(neap_ctx *c, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
