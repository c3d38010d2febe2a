/* mem.h - memory: the caching allocator of tensor bytes, and the pool of small core objects.
 *
 * Invariants. Tensor bytes are counted as requested bytes (numel x itemsize), per device and category,
 * live and peak, exactly: `live` never includes rounding, cache or metadata, and `peak_by` is
 * `by` at the moment of the peak. A limit is checked before memory is taken. Scratch of kernels is counted apart:
 * how much a kernel packs its operands into depends on who computes and with how many threads, while `live` and
 * its peak follow from the shapes alone. Every allocation of the core, bytes or object, may fail, and a test can
 * make the N-th one fail. A cached block belongs to a size class: 4 classes per power of two (at most
 * 25 % waste) up to 64 MiB, exact multiples of 2 MiB above; blocks are 64-byte aligned, blocks of 2 MiB
 * and more are 2 MiB aligned and advised to be huge pages. */
#ifndef NP_MEM_H
#define NP_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "neap.h"

#define NP_N_CATEGORIES 8 /* SAME-ORDER neap_category */

/* Raw memory of a device. CPU: aligned_alloc-like; a plug-in brings its own. */
typedef struct np_raw_mem {
    void *(*alloc)(void *user, size_t bytes); /* NULL when there is none */
    void (*free)(void *user, void *p, size_t bytes);
    void *user;
    const char *(*why)(
        void *user); /* after NULL: what is broken, or "", there is just none left. NULL: never broken */
} np_raw_mem;

/* Streams of a device that may still be at work on a block, and until which of the calls they were asked for. */
typedef struct np_mem_use {
    uint64_t last : 48, streams : 16;
} np_mem_use;

typedef struct np_mem_block { /* cached free block; the list node lives outside device memory */
    void *p;
    size_t bytes; /* real size */
    np_mem_use use;
    struct np_mem_block *next;
} np_mem_block;

/* One per context and device; one more for the host memory that a device copies from and to. */
typedef struct np_mem {
    neap_ctx *c;
    np_raw_mem raw;
    int device;                /* for the pressure callback, and its name for texts: np_mem_init */
    const char *name;          /* says 0 and "cpu"; the owner of another device sets both after it */
    int64_t live, peak, limit; /* requested bytes; limit 0 = none */
    int64_t by[NP_N_CATEGORIES], peak_by[NP_N_CATEGORIES];
    int64_t scratch, scratch_peak; /* requested bytes of np_mem_take_scratch, no part of live */
    int64_t reserved, cached;      /* bytes held from the system; of these, idle in the cache */
    int64_t reserved_limit;        /* the host's cap on reserved; 0 = none */
    int64_t storages;              /* live blocks taken or counted: take/give, count/uncount keep it */
    np_mem_block *bins[160];
    np_mem_block *big;      /* above 64 MiB: searched, reused when not over 1.25x */
    np_mem_block *big_live; /* those in use: their real size is known here only */
    np_mem_block *spare;    /* list nodes: one for each block held, so that give cannot fail */
    /* A device with several streams (tensor/streams.h): may a block be written to by whoever asks now, or, after
     * `wait`, will it be? Without a block: who asks now? NULL: one stream, so everything happens in order. */
    bool (*ready)(struct np_mem *m, const np_mem_use *use, bool wait);
    bool (*shrink)(struct np_mem *m); /* lets go of what was only fetched ahead; false: there was nothing */
    void *streams;
    np_mem_use use;   /* what a block that is given now is still used by, if nothing better is known */
    bool pressing;    /* the pressure callback is running */
    uint64_t n_press; /* how often it ran */
    bool exact;       /* to find mistakes: blocks as large as asked for, none kept; set after np_mem_init */
    uint64_t n_alloc, n_hit; /* for benches and tests */
} np_mem;

bool np_mem_init(np_mem *m, neap_ctx *c, const np_raw_mem *raw /* NULL: host memory */);
void np_mem_close(np_mem *m); /* trims; live blocks must be gone */

/* Bytes for a storage; 0 bytes gives a valid non-NULL pointer. On a limit or failure: drop the cache, ask
 * the context's pressure callback (once), retry, then fail with NEAP_E_LIMIT or NEAP_E_NOMEM; with NEAP_E_DEVICE at
 * once where the device is broken. The bytes are not zeroed. `give` gets the same size and the category of now. */
void *np_mem_take(np_mem *m, size_t bytes, neap_category cat);
void np_mem_give(np_mem *m, void *p, size_t bytes, neap_category cat);
void np_mem_give_used(np_mem *m, void *p, size_t bytes, neap_category cat, np_mem_use use);
/* The same for room of a kernel's own that is given back before it returns, and whose size follows from more than
 * shapes. The limit on live does not see it, as it does not see OpenBLAS's; the cap on reserved does. */
void *np_mem_take_scratch(np_mem *m, size_t bytes);
void np_mem_give_scratch(np_mem *m, void *p, size_t bytes);

/* Counts bytes that live elsewhere (inline scalars, wrapped host memory) under the same rules: np_mem_count and
 * np_mem_uncount, in line in ctx.h. */
bool np_mem_count_slow(np_mem *m, size_t bytes, neap_category cat);
void np_mem_recategorize(np_mem *m, size_t bytes, neap_category from, neap_category to);

void np_mem_trim(np_mem *m);       /* gives the cache back to the system */
void np_mem_reset_peak(np_mem *m); /* peak := live, peak_by := by, scratch_peak := scratch */

/* Small core objects (tensors, storages, nodes, hooks ...): size classes of 32 bytes up to 2048, larger
 * go to malloc. Never counted as tensor bytes. Zeroed. NULL with NEAP_E_NOMEM recorded on failure. */
#define NP_OBJ_STEP ((size_t)32)
void *np_obj_new_slow(neap_ctx *c, size_t size) __attribute__((cold));
void np_obj_free_slow(neap_ctx *c, void *p, size_t size) __attribute__((cold));
/* Growing arrays: like realloc, with the same failure injection: room for at least `need` elements of `each`
 * bytes, *cap updated. NULL with E-NOMEM: p and *cap are as before. New room is not zeroed. */
void *np_array_grow_slow(neap_ctx *c, void *p, size_t *cap, size_t need, size_t each);
static inline void *np_array_grow(neap_ctx *c, void *p, size_t *cap, size_t need, size_t each)
{
    return p && need <= *cap ? p : np_array_grow_slow(c, p, cap, need, each);
}
void np_array_free(neap_ctx *c, void *p);

/* Failure injection for tests: with c->alloc_fail_at = n the n-th core allocation from now fails (1 = next),
 * once, and alloc_fail_at is 0 again; 0 switches it off. c->alloc_count counts allocations. Memory that is not
 * had through this file (a library's own) asks here first, and then calls np_fail_nomem. */
bool np_alloc_should_fail(neap_ctx *c);

#endif
