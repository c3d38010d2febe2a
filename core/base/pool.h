/* pool.h - the context's worker threads. No OpenMP (it hangs after fork and hides races).
 *
 * Work is cut into chunks by shape alone, never by the number of threads; each chunk's result must not
 * depend on which thread runs it. Between chunks every worker polls the context's cancel flag. Threads
 * start at the first parallel call; after fork the child runs serially. Workers never touch refcounts,
 * the error record or the allocator. Nested calls run serially. */
#ifndef NP_POOL_H
#define NP_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "neap.h"

typedef struct np_pool np_pool;
typedef void (*np_chunk_fn)(void *arg, int64_t chunk);

/* Runs fn(arg, 0 .. n_chunks-1) on the calling thread and the workers. false: cancelled, with
 * NEAP_E_CANCELLED recorded by the calling thread (some chunks have not run), or, at the first parallel call,
 * no memory for the pool (NEAP_E_NOMEM). One chunk or one thread: no worker is woken. A nested call returns
 * false when cancelled and leaves the record to the outer one. */
bool np_parallel(neap_ctx *c, int64_t n_chunks, np_chunk_fn fn, void *arg);

/* Elementwise helper: n elements in chunks of `grain` (a constant of the caller). */
#define NP_GRAIN 32768

void np_pool_close(np_pool *p); /* joins the workers; NULL is fine */

#endif
