/* pool.c - worker threads of one context.
 *
 * The calling thread posts one job at a time and works on it too; chunks are handed out by an atomic counter.
 * A worker enters a job only while it is open, under the lock, and the caller leaves only when the job is
 * closed and nobody is inside: so a worker that wakes late finds it closed and sleeps on, and the caller
 * never waits for a sleeping thread. Falling asleep and waking take longer than many jobs, so whoever waits
 * spins for a moment first, if there is a CPU for each thread; an idle pool sleeps. Workers touch the job, the
 * cancel flag and what fn touches, nothing else of the context. Threads belong to the process that started
 * them: a fork's child has none and works serially. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "ctx.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000 /* about what a sleep and a wake-up cost */

struct np_pool {
    neap_ctx *c;
    pid_t pid;            /* of the process whose threads these are */
    int asked, n_workers; /* workers wanted, and started */
    bool busy;            /* a job is running: written by the caller between jobs, read by chunks */
    bool told;            /* the child after a fork has logged */
    bool spins;           /* there is a CPU for each thread */
    pthread_mutex_t lock;
    pthread_cond_t work, left; /* a job opened or quit; the last worker left */
    bool quit, open;           /* under lock */
    atomic_int inside;         /* workers in the job, written under lock */
    atomic_uint_fast64_t job;  /* number of the job, written under lock: a worker enters it once */
    np_chunk_fn fn;
    void *arg;
    int64_t n_chunks;
    atomic_int_fast64_t next;
    atomic_bool stopped; /* the cancel flag was seen: some chunks have not run */
    pthread_t thread[];
};

static void run_chunks(np_pool *p)
{
    for (;;) {
        if (np_cancelled(p->c)) {
            if (atomic_load_explicit(&p->next, memory_order_relaxed) < p->n_chunks)
                atomic_store_explicit(&p->stopped, true, memory_order_relaxed);
            return;
        }
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_chunks) return;
        p->fn(p->arg, i);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_briefly(void)
{
    for (int i = 0; i < 8; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
}

/* Both look for SPIN_NS at most; what they see is only a hint. */
static void spin_for_job(np_pool *p, uint64_t seen)
{
    for (int64_t end = now_ns() + SPIN_NS; p->spins && now_ns() < end; pause_briefly())
        if (atomic_load_explicit(&p->job, memory_order_relaxed) != seen) return;
}
static void spin_for_last(np_pool *p)
{
    for (int64_t end = now_ns() + SPIN_NS; p->spins && now_ns() < end; pause_briefly())
        if (atomic_load_explicit(&p->inside, memory_order_relaxed) == 0) return;
}

static void *worker(void *arg)
{
    np_pool *p = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        if (!p->open || p->job == seen) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        seen = p->job;
        p->inside++;
        pthread_mutex_unlock(&p->lock);
        run_chunks(p);
        pthread_mutex_lock(&p->lock);
        if (--p->inside == 0) pthread_cond_signal(&p->left);
        pthread_mutex_unlock(&p->lock);
        spin_for_job(p, seen);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool cpu_for_each(int n)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= n;
}

/* Workers take no signals: the host's handlers run in the host's threads. */
static void start_workers(np_pool *p)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n_workers < p->asked && pthread_create(&p->thread[p->n_workers], NULL, worker, p) == 0)
        p->n_workers++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->n_workers < p->asked)
        np_logf(p->c, 2, "only %d of %d threads could be started", p->n_workers + 1, p->asked + 1);
}

static np_pool *pool_new(neap_ctx *c, int n_workers)
{
    size_t bytes = sizeof(np_pool) + (size_t)n_workers * sizeof(pthread_t);
    np_pool *p = np_alloc_should_fail(c) ? NULL : calloc(1, bytes);
    if (!p) return np_fail_nomem(c, bytes);
    p->c = c;
    p->pid = getpid();
    p->asked = n_workers;
    p->spins = cpu_for_each(n_workers + 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->left, NULL);
    start_workers(p);
    return p;
}

void np_pool_close(np_pool *p)
{
    if (!p) return;
    if (p->pid == getpid()) { /* else the threads are not ours, and the lock may have been held at the fork */
        pthread_mutex_lock(&p->lock);
        p->quit = true;
        p->job++; /* for those who spin */
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->n_workers; i++) pthread_join(p->thread[i], NULL);
        pthread_cond_destroy(&p->left);
        pthread_cond_destroy(&p->work);
        pthread_mutex_destroy(&p->lock);
    }
    free(p);
}

/* A pool with workers for this process, started at first use and again after a change of the thread count.
 * *usable false: work serially. false: no memory. */
static bool get_pool(neap_ctx *c, bool *usable)
{
    np_pool *p = c->pool;
    *usable = false;
    if (p && p->pid != getpid()) {
        if (!p->told) np_logf(c, 1, "after fork the child process works with one thread");
        p->told = true;
        return true;
    }
    if (p && p->asked != c->n_threads - 1) {
        np_pool_close(p);
        p = c->pool = NULL;
    }
    if (!p && !(p = c->pool = pool_new(c, c->n_threads - 1))) return false;
    *usable = p->n_workers > 0;
    return true;
}

static bool run_job(np_pool *p, int64_t n_chunks, np_chunk_fn fn, void *arg)
{
    pthread_mutex_lock(&p->lock);
    p->fn = fn, p->arg = arg, p->n_chunks = n_chunks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->stopped, false, memory_order_relaxed);
    p->busy = p->open = true;
    p->job++;
    if (n_chunks > p->n_workers) pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 1; i < n_chunks; i++) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);

    run_chunks(p);

    pthread_mutex_lock(&p->lock);
    p->open = false;
    if (p->inside > 0) {
        pthread_mutex_unlock(&p->lock);
        spin_for_last(p);
        pthread_mutex_lock(&p->lock);
    }
    while (p->inside > 0) pthread_cond_wait(&p->left, &p->lock);
    p->busy = false;
    pthread_mutex_unlock(&p->lock);
    return !atomic_load_explicit(&p->stopped, memory_order_relaxed);
}

static bool run_serial(neap_ctx *c, int64_t n_chunks, np_chunk_fn fn, void *arg)
{
    for (int64_t i = 0; i < n_chunks; i++) {
        if (np_cancelled(c)) return false;
        fn(arg, i);
    }
    return true;
}

bool np_parallel(neap_ctx *c, int64_t n_chunks, np_chunk_fn fn, void *arg)
{
    np_pool *p = c->pool;
    if (p && p->busy) { /* nested: maybe on a worker, which must not touch the error record */
        if (run_serial(c, n_chunks, fn, arg)) return true;
        atomic_store_explicit(&p->stopped, true, memory_order_relaxed);
        return false;
    }
    bool usable = false, done;
    if (n_chunks > 1 && c->n_threads > 1 && !get_pool(c, &usable)) return false;
    done = usable ? run_job(c->pool, n_chunks, fn, arg) : run_serial(c, n_chunks, fn, arg);
    if (!done) np_fail(c, NEAP_E_CANCELLED, "interrupted before it was finished; its result is dropped");
    return done;
}
