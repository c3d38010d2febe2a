/* mem.c - the caching allocator of tensor bytes, the pool of small objects, and failure injection.
 *
 * Counting and caching are two things that meet only here: `live`, `by` and their peaks see requested bytes,
 * the cache sees blocks of size classes. Every block held from the system has exactly one list node, which
 * waits in `spare` while the block is in use, so giving back never needs memory. Not thread-safe: only the
 * context's own thread comes here. Nothing here knows what a tensor is. */
#include "ctx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN ((size_t)64)
#define HUGE ((size_t)2 << 20)
#define BIG ((size_t)64 << 20) /* above: multiples of HUGE, searched */
#define MAX_BYTES ((size_t)1 << 60)

bool np_alloc_should_fail(neap_ctx *c)
{
    c->alloc_count++;
    return c->alloc_fail_at && --c->alloc_fail_at == 0;
}

/* ---- host memory */

static void *host_alloc(void *user, size_t bytes)
{
    (void)user;
    void *p = NULL;
    if (posix_memalign(&p, bytes >= HUGE ? HUGE : ALIGN, bytes)) return NULL;
    if (bytes >= HUGE)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice only: without it we are just slower */
    return p;
}

static void host_free(void *user, void *p, size_t bytes)
{
    (void)user, (void)bytes;
    free(p);
}

/* ---- size classes */

/* Real size of a block for `bytes` > 0, and its bin, or -1 for big ones. Class 0 is 64 bytes; then each power
 * of two is cut into four. Exact memory has one bin, which is emptied at once. */
static size_t block_size(const np_mem *m, size_t bytes, int *bin)
{
    *bin = -1;
    if (m->exact) return *bin = 0, bytes;
    if (bytes > BIG) return (bytes + HUGE - 1) & ~(HUGE - 1);
    if (bytes <= ALIGN) return *bin = 0, ALIGN;
    int e = 63 - __builtin_clzll((unsigned long long)(bytes - 1)); /* bytes in (2^e, 2^(e+1)] */
    size_t low = (size_t)1 << e, step = low / 4, k = (bytes - 1 - low) / step;
    *bin = (e - 6) * 4 + (int)k + 1;
    return low + (k + 1) * step;
}

static void push_node(np_mem_block **list, np_mem_block *b)
{
    b->next = *list;
    *list = b;
}

static np_mem_block *pop_node(np_mem_block **list)
{
    np_mem_block *b = *list;
    if (b) *list = b->next;
    return b;
}

/* ---- counting */

void np_mem_recategorize(np_mem *m, size_t bytes, neap_category from, neap_category to)
{
    m->by[from] -= (int64_t)bytes;
    m->by[to] += (int64_t)bytes;
    if (m->live == m->peak) memcpy(m->peak_by, m->by, sizeof m->by); /* still at the peak: the newer name */
}

void np_mem_reset_peak(np_mem *m)
{
    m->peak = m->live;
    memcpy(m->peak_by, m->by, sizeof m->by);
    m->scratch_peak = m->scratch;
}

static bool over_limit(const np_mem *m, size_t bytes)
{
    return m->limit > 0 && (int64_t)bytes > m->limit - m->live;
}

static void *fail_limit(np_mem *m, size_t bytes)
{
    return np_fail(
        m->c, NEAP_E_LIMIT,
        "%zu bytes more on %s would pass the memory limit: %lld of %lld bytes are in use; free tensors, "
        "checkpoint more, use smaller batches, or raise the limit",
        bytes, m->name, (long long)m->live, (long long)m->limit);
}

static void *fail_reserve(np_mem *m, size_t bytes)
{
    return np_fail(
        m->c, NEAP_E_LIMIT,
        "a block of %zu bytes on %s would pass the cap on reserved memory: %lld of %lld bytes are held; "
        "free tensors, use smaller batches, or raise the cap",
        bytes, m->name, (long long)m->reserved, (long long)m->reserved_limit);
}

static void *fail_memory(np_mem *m, size_t bytes)
{
    if (m->device == 0) return np_fail_nomem(m->c, bytes);
    return np_fail(
        m->c, NEAP_E_NOMEM,
        "out of memory: %s has no %zu bytes left, %lld are in use here; free tensors, or use smaller "
        "batches or checkpointing",
        m->name, bytes, (long long)m->live);
}

static void *fail_broken(np_mem *m)
{
    return np_fail(m->c, NEAP_E_DEVICE, "%s: %s", m->name, m->raw.why(m->raw.user));
}

/* Asks the host, once per request, to free something. The host's own requests from inside do not ask again.
 */
static bool press(np_mem *m, size_t bytes)
{
    neap_ctx *c = m->c;
    if (!c->opts.pressure || m->pressing || np_pending(c)) return false;
    m->pressing = true;
    int tried = c->opts.pressure(c->opts.user, m->device, (int64_t)bytes);
    m->pressing = false;
    m->n_press++;
    return tried && !np_pending(c);
}

/* ---- blocks */

static void release_block(np_mem *m, np_mem_block *b)
{
    m->raw.free(m->raw.user, b->p, b->bytes);
    m->reserved -= (int64_t)b->bytes;
    m->cached -= (int64_t)b->bytes;
    free(b);
}

void np_mem_trim(np_mem *m)
{
    for (size_t i = 0; i < sizeof m->bins / sizeof m->bins[0]; i++)
        for (np_mem_block *b; (b = pop_node(&m->bins[i]));) release_block(m, b);
    for (np_mem_block *b; (b = pop_node(&m->big));) release_block(m, b);
}

static bool ready(np_mem *m, const np_mem_block *b, bool wait)
{
    return !m->ready || m->ready(m, &b->use, wait);
}

/* The smallest idle big block that holds `bytes` and is not over 1.25 times as large. */
static np_mem_block *find_big(np_mem *m, size_t bytes, bool wait)
{
    np_mem_block **best = NULL;
    for (np_mem_block **at = &m->big; *at; at = &(*at)->next) {
        size_t have = (*at)->bytes;
        if (have >= bytes && have - bytes <= bytes / 4 && (!best || have < (*best)->bytes) &&
            ready(m, *at, wait))
            best = at;
    }
    return best ? pop_node(best) : NULL;
}

static np_mem_block *find_small(np_mem *m, int bin, bool wait)
{
    np_mem_block **at = &m->bins[bin];
    while (*at && !ready(m, *at, wait)) at = &(*at)->next;
    return pop_node(at);
}

static void *from_cache(np_mem *m, size_t size, int bin, bool wait)
{
    np_mem_block *b = bin >= 0 ? find_small(m, bin, wait) : find_big(m, size, wait);
    if (!b) return NULL;
    m->cached -= (int64_t)b->bytes;
    m->n_hit++;
    push_node(bin >= 0 ? &m->spare : &m->big_live, b);
    return b->p;
}

typedef enum refusal { NONE, LIVE_LIMIT, RESERVED_LIMIT, NO_MEMORY, BROKEN } refusal;

static refusal from_system(np_mem *m, size_t size, int bin, void **out)
{
    np_mem_block *b = malloc(sizeof *b);
    if (!b) return NO_MEMORY;
    *out = m->raw.alloc(m->raw.user, size);
    if (!*out) {
        free(b);
        return m->raw.why && m->raw.why(m->raw.user)[0] ? BROKEN : NO_MEMORY;
    }
    b->p = *out, b->bytes = size;
    m->reserved += (int64_t)size;
    push_node(bin >= 0 ? &m->spare : &m->big_live, b);
    return NONE;
}

/* One attempt, in the order of the promises: limit, cache, cap, system; at last what another stream still uses. */
static refusal try_take(np_mem *m, size_t bytes, bool limited, void **out)
{
    int bin;
    size_t size = block_size(m, bytes, &bin);
    if (limited && over_limit(m, bytes)) return LIVE_LIMIT;
    if ((*out = from_cache(m, size, bin, false))) return NONE;
    const bool capped = m->reserved_limit > 0 && (int64_t)size > m->reserved_limit - m->reserved;
    const refusal why = capped ? RESERVED_LIMIT : from_system(m, size, bin, out);
    if (why == NONE || why == BROKEN) return why;
    return m->ready && (*out = from_cache(m, size, bin, true)) ? NONE : why;
}

/* 0 bytes need an address and no memory; nobody reads or writes through it. */
static _Alignas(64) const unsigned char nothing[64];

/* A block, not yet counted; NULL with the error recorded. `limited`: it is going to be live. */
static void *take_block(np_mem *m, size_t bytes, bool limited)
{
    neap_ctx *c = m->c;
    if (np_alloc_should_fail(c) || bytes > MAX_BYTES) return fail_memory(m, bytes);
    m->n_alloc++;
    if (m->ready && !m->ready(m, NULL, false)) return NULL;
    if (bytes == 0) return (void *)nothing;
    void *p = NULL;
    refusal why = try_take(m, bytes, limited, &p);
    if (why == BROKEN) return fail_broken(m); /* no use in making room */
    if (why != NONE && why != LIVE_LIMIT && m->cached > 0) {
        np_mem_trim(m);
        why = try_take(m, bytes, limited, &p);
    }
    if (why != NONE && m->shrink && m->shrink(m)) why = try_take(m, bytes, limited, &p);
    if (why != NONE && press(m, bytes)) {
        if (m->ready && !m->ready(m, NULL, false)) return NULL; /* it may have worked on another stream */
        if (why != LIVE_LIMIT) np_mem_trim(m);
        why = try_take(m, bytes, limited, &p);
    }
    switch (why) {
    case NONE: return p;
    case LIVE_LIMIT: return fail_limit(m, bytes);
    case RESERVED_LIMIT: return fail_reserve(m, bytes);
    case BROKEN: return fail_broken(m);
    default: return fail_memory(m, bytes);
    }
}

void *np_mem_take(np_mem *m, size_t bytes, neap_category cat)
{
    void *p = take_block(m, bytes, true);
    if (p) np_mem_add(m, bytes, cat);
    return p;
}

void *np_mem_take_scratch(np_mem *m, size_t bytes)
{
    void *p = take_block(m, bytes, false);
    if (!p) return NULL;
    m->scratch += (int64_t)bytes;
    if (m->scratch > m->scratch_peak) m->scratch_peak = m->scratch;
    return p;
}

static np_mem_block *take_out_live(np_mem *m, const void *p)
{
    np_mem_block **at = &m->big_live;
    while ((*at)->p != p) at = &(*at)->next;
    return pop_node(at);
}

static void give_block(np_mem *m, void *p, size_t bytes, np_mem_use use)
{
    if (bytes == 0) return;
    int bin;
    size_t size = block_size(m, bytes, &bin);
    np_mem_block *b = bin >= 0 ? pop_node(&m->spare) : take_out_live(m, p);
    if (bin >= 0) b->p = p, b->bytes = size;
    b->use = use;
    m->cached += (int64_t)b->bytes;
    push_node(bin >= 0 ? &m->bins[bin] : &m->big, b);
    if (m->exact) np_mem_trim(m);
}

void np_mem_give_used(np_mem *m, void *p, size_t bytes, neap_category cat, np_mem_use use)
{
    if (!p) return;
    np_mem_uncount(m, bytes, cat);
    give_block(m, p, bytes, use);
}

void np_mem_give(np_mem *m, void *p, size_t bytes, neap_category cat)
{
    np_mem_give_used(m, p, bytes, cat, m->use);
}

void np_mem_give_scratch(np_mem *m, void *p, size_t bytes)
{
    if (!p) return;
    m->scratch -= (int64_t)bytes;
    give_block(m, p, bytes, m->use);
}

bool np_mem_count_slow(np_mem *m, size_t bytes, neap_category cat)
{
    if (np_alloc_should_fail(m->c) || bytes > MAX_BYTES) return np_fail_nomem(m->c, bytes), false;
    if (over_limit(m, bytes) && (!press(m, bytes) || over_limit(m, bytes)))
        return fail_limit(m, bytes), false;
    np_mem_add(m, bytes, cat);
    return true;
}

bool np_mem_init(np_mem *m, neap_ctx *c, const np_raw_mem *raw)
{
    *m = (np_mem){.c = c, .name = "cpu"};
    m->raw = raw ? *raw : (np_raw_mem){host_alloc, host_free, NULL, NULL};
    return true;
}

void np_mem_close(np_mem *m)
{
    np_mem_trim(m);
    for (np_mem_block *b; (b = pop_node(&m->spare));) free(b);
    for (np_mem_block *b; (b = pop_node(&m->big_live));) free(b);
}

/* ---- small objects */

static size_t obj_class(size_t size) { return size ? (size - 1) / NP_OBJ_STEP : 0; }

void *np_obj_new_slow(neap_ctx *c, size_t size)
{
    size_t k = obj_class(size), room = k < NP_OBJ_CLASSES ? (k + 1) * NP_OBJ_STEP : size;
    if (np_alloc_should_fail(c)) return np_fail_nomem(c, size);
    void *p;
    if (k < NP_OBJ_CLASSES && (p = c->obj_free[k])) {
        memcpy(&c->obj_free[k], p, sizeof(void *));
        memset(p, 0, size);
    } else if (!(p = calloc(1, NP_OBJ_CACHE || !size ? room : size))) {
        return np_fail_nomem(c, size);
    }
    c->obj_live++;
    return p;
}

void np_obj_free_slow(neap_ctx *c, void *p, size_t size)
{
    if (!p) return;
    size_t k = obj_class(size);
    c->obj_live--;
    if (!NP_OBJ_CACHE || k >= NP_OBJ_CLASSES) {
        free(p);
        return;
    }
    memcpy(p, &c->obj_free[k], sizeof(void *));
    c->obj_free[k] = p;
}

void *np_array_grow_slow(neap_ctx *c, void *p, size_t *cap, size_t need, size_t each)
{
    size_t n = *cap ? *cap + *cap / 2 : 8;
    if (n < need) n = need;
    if (np_alloc_should_fail(c) || n > MAX_BYTES / each)
        return np_fail_nomem(c, n > MAX_BYTES / each ? SIZE_MAX : n * each);
    void *q = realloc(p, n * each);
    if (!q) return np_fail_nomem(c, n * each);
    *cap = n;
    return q;
}

void np_array_free(neap_ctx *c, void *p)
{
    (void)c;
    free(p);
}
