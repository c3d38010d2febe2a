/* ctx.c - making and freeing a context, its threads, and the cancel flag.
 *
 * The environment is read here and in cpu.c, once, when a context is made; nothing outside the context
 * changes. Whatever a higher layer opens lazily it registers with np_ctx_at_close, so that this file knows
 * none of it. */
#include "ctx.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 256
#define REGION_DEPTH 160 /* nested checkpoints, each with a few C frames */

struct np_at_close {
    void (*fn)(neap_ctx *c, void *arg);
    void *arg;
    struct np_at_close *next;
};

const char *neap_version(void) { return NEAP_VERSION; }

static int clamp_threads(long n) { return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n; }

static int default_threads(neap_ctx *c)
{
    const char *text = getenv("NEAP_THREADS");
    int cores = clamp_threads(sysconf(_SC_NPROCESSORS_ONLN));
    if (!text || !*text) return cores;
    size_t digits = strspn(text, "0123456789");
    long n = text[digits] ? 0 : strtol(text, NULL, 10);
    if (n >= 1 && n <= MAX_THREADS) return (int)n;
    np_logf(c, 2,
            "NEAP_THREADS is '%.40s'; it must be a whole number from 1 to %d; using the number of cores, %d",
            text, MAX_THREADS, cores);
    return cores;
}

static void copy_opts(neap_ctx_opts *to, const neap_ctx_opts *from)
{
    size_t n = from->size < sizeof *to ? from->size : sizeof *to;
    memcpy(to, from, n);
    to->size = sizeof *to;
}

neap_ctx *neap_ctx_new(const neap_ctx_opts *opts)
{
    neap_ctx *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    if (opts) copy_opts(&c->opts, opts);
    atomic_init(&c->cancel, false);
    c->next_seq = c->next_pass = c->next_generator = 1;
    c->region_depth_limit = REGION_DEPTH;
    c->isa = np_cpu_choose_level(c);
    c->n_threads = c->opts.threads > 0 ? clamp_threads(c->opts.threads) : default_threads(c);
    c->counts = calloc(np_n_ops_total > 0 ? (size_t)np_n_ops_total : 1, sizeof *c->counts);
    if (!c->counts || !np_devices_init(c)) {
        neap_ctx_free(c);
        return NULL;
    }
    return c;
}

bool np_ctx_at_close(neap_ctx *c, void (*fn)(neap_ctx *c, void *arg), void *arg)
{
    struct np_at_close *a = np_obj_new(c, sizeof *a);
    if (!a) return false;
    *a = (struct np_at_close){fn, arg, c->at_close};
    c->at_close = a;
    return true;
}

static void free_obj_cache(neap_ctx *c)
{
    for (int k = 0; k < NP_OBJ_CLASSES; k++)
        for (void *p = c->obj_free[k], *next; p; p = next) {
            memcpy(&next, p, sizeof next);
            free(p);
        }
}

void neap_ctx_free(neap_ctx *c)
{
    if (!c) return;
    for (struct np_at_close *a; (a = c->at_close);) {
        c->at_close = a->next;
        a->fn(c, a->arg);
        np_obj_free(c, a, sizeof *a);
    }
    np_pool_close(c->pool);
    c->pool = NULL;
    np_devices_close(c);
    np_plugins_close(c);
    np_ambient_close(c);
    free_obj_cache(c);
    np_array_free(c, c->facts);
    free(c->counts);
    free(c);
}

void neap_set_num_threads(neap_ctx *c, int n)
{
    c->n_threads = clamp_threads(n); /* the pool follows at its next use */
}

int neap_get_num_threads(const neap_ctx *c) { return c->n_threads; }

void neap_cancel(neap_ctx *c)
{
    if (c) atomic_store_explicit(&c->cancel, true, memory_order_relaxed);
}

void neap_cancel_clear(neap_ctx *c)
{
    if (c) atomic_store_explicit(&c->cancel, false, memory_order_relaxed);
}
