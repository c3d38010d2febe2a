/* test_base_pool.c - every chunk runs once, cancelling stops between chunks, fork and nesting are safe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/ctx.h"

enum { N = 500 };

typedef struct work {
    neap_ctx *c;
    atomic_int ran[N];
    double part[N];
    atomic_int total, nested_failed;
    int cancel_at; /* chunk that cancels, -1: none */
    int64_t inner;
} work;

static void one_chunk(void *arg, int64_t i)
{
    work *w = arg;
    atomic_fetch_add(&w->ran[i], 1);
    atomic_fetch_add(&w->total, 1);
    double s = 0;
    for (int64_t k = 0; k < 200; k++) s += 1.0 / (double)(1 + i * 200 + k);
    w->part[i] = s;
    if (i == w->cancel_at) neap_cancel(w->c);
}

static void slow_chunk(void *arg, int64_t i)
{
    struct timespec ms = {0, 1000000};
    nanosleep(&ms, NULL);
    one_chunk(arg, i);
}

static void nesting_chunk(void *arg, int64_t i)
{
    work *w = arg, *inside = calloc(1, sizeof *inside);
    inside->c = w->c, inside->cancel_at = -1;
    if (!np_parallel(w->c, w->inner, one_chunk, inside)) atomic_fetch_add(&w->nested_failed, 1);
    else
        for (int64_t k = 0; k < w->inner; k++)
            if (inside->ran[k] != 1) atomic_fetch_add(&w->nested_failed, 1);
    free(inside);
    one_chunk(arg, i);
}

static work *new_work(neap_ctx *c)
{
    work *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->c = c, w->cancel_at = -1;
    return w;
}

static int setup(void **state)
{
    neap_ctx_opts o = {.size = sizeof o, .threads = 4};
    *state = neap_ctx_new(&o);
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    neap_ctx_free(*state);
    return 0;
}

static void every_chunk_runs_once_with_any_number_of_threads(void **state)
{
    neap_ctx *c = *state;
    double first[N];
    for (int threads = 1; threads <= 5; threads++) {
        neap_set_num_threads(c, threads);
        for (int round = 0; round < 20; round++) {
            work *w = new_work(c);
            assert_true(np_parallel(c, N, one_chunk, w));
            for (int i = 0; i < N; i++) assert_int_equal(1, w->ran[i]);
            if (threads == 1 && round == 0) memcpy(first, w->part, sizeof first);
            assert_memory_equal(first, w->part, sizeof first);
            free(w);
        }
    }
}

static void many_small_jobs_do_not_mix(void **state)
{
    neap_ctx *c = *state;
    work *w = new_work(c);
    for (int job = 0; job < 5000; job++) {
        int n = job % 7;
        atomic_store(&w->total, 0);
        assert_true(np_parallel(c, n, one_chunk, w));
        assert_int_equal(n, w->total);
    }
    free(w);
}

static void small_work_wakes_nobody(void **state)
{
    neap_ctx *c = *state;
    work *w = new_work(c);
    assert_true(np_parallel(c, 0, one_chunk, w));
    assert_true(np_parallel(c, 1, one_chunk, w));
    neap_set_num_threads(c, 1);
    assert_true(np_parallel(c, 50, one_chunk, w));
    assert_null(c->pool);
    neap_set_num_threads(c, 2);
    assert_true(np_parallel(c, 2, one_chunk, w));
    assert_non_null(c->pool);
    free(w);
}

static void cancelling_stops_between_chunks(void **state)
{
    neap_ctx *c = *state;
    for (int threads = 1; threads <= 4; threads++) {
        neap_set_num_threads(c, threads);
        work *w = new_work(c);
        w->cancel_at = 20;
        assert_false(np_parallel(c, N, slow_chunk, w));
        assert_int_equal(NEAP_E_CANCELLED, neap_error(c));
        assert_in_range(w->total, 21, 20 + 2 * threads);
        neap_clear_error(c);
        assert_false(np_parallel(c, 1, one_chunk, w)); /* in force until it is cleared */
        assert_int_equal(NEAP_E_CANCELLED, neap_error(c));
        neap_clear_error(c);
        neap_cancel_clear(c);
        w->cancel_at = -1;
        assert_true(np_parallel(c, 10, one_chunk, w));
        assert_int_equal(NEAP_OK, neap_error(c));
        free(w);
    }
}

static void a_cancel_after_the_last_chunk_is_not_an_error(void **state)
{
    neap_ctx *c = *state;
    neap_set_num_threads(c, 1);
    work *w = new_work(c);
    w->cancel_at = 9;
    assert_true(np_parallel(c, 10, one_chunk, w));
    assert_int_equal(NEAP_OK, neap_error(c));
    neap_cancel_clear(c);
    free(w);
}

static void nested_calls_run_on_their_own_thread(void **state)
{
    neap_ctx *c = *state;
    for (int threads = 1; threads <= 4; threads++) {
        neap_set_num_threads(c, threads);
        work *w = new_work(c);
        w->inner = 11;
        assert_true(np_parallel(c, N, nesting_chunk, w));
        assert_int_equal(0, w->nested_failed);
        assert_int_equal(N, w->total);
        free(w);
    }
}

static void a_cancelled_nested_call_is_reported_once_outside(void **state)
{
    neap_ctx *c = *state;
    neap_cancel(c);
    work *w = new_work(c);
    w->inner = 5;
    assert_false(np_parallel(c, N, nesting_chunk, w));
    neap_cancel_clear(c);
    assert_int_equal(NEAP_E_CANCELLED, neap_error(c));
    neap_clear_error(c);
    free(w);
}

static void count_line(void *user, int level, const char *text)
{
    (void)level;
    if (strstr(text, "fork")) ++*(int *)user;
}

/* Exit code of the child: 0 when both jobs ran whole, serially, and one line was logged. */
static int child_work(neap_ctx *c, const int *logged)
{
    work *w = new_work(c);
    for (int round = 1; round <= 2; round++) {
        if (!np_parallel(c, N, one_chunk, w)) return 1;
        for (int i = 0; i < N; i++)
            if (w->ran[i] != round) return 2;
    }
    if (*logged != 1) return 3;
    neap_set_num_threads(c, 2);
    if (!np_parallel(c, N, one_chunk, w)) return 4;
    free(w);
    neap_ctx_free(c);
    return 0;
}

static void a_forked_child_works_serially_and_says_so_once(void **state)
{
    neap_ctx *c = *state;
    int logged = 0;
    c->opts.log = count_line, c->opts.user = &logged;
    work *w = new_work(c);
    assert_true(np_parallel(c, N, one_chunk, w));
    pid_t child = fork();
    if (child == 0) {
        alarm(20); /* a hang is a failure too */
        free(w);   /* the copy: nothing may be lost in the child either */
        _exit(child_work(c, &logged));
    }
    int status = -1;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
    assert_true(np_parallel(c, N, one_chunk, w)); /* the parent's workers are unharmed */
    assert_int_equal(0, logged);
    free(w);
}

static void without_memory_for_the_pool_the_call_fails_and_the_next_works(void **state)
{
    neap_ctx *c = *state;
    work *w = new_work(c);
    c->alloc_fail_at = 1;
    assert_false(np_parallel(c, N, one_chunk, w));
    assert_int_equal(NEAP_E_NOMEM, neap_error(c));
    assert_int_equal(0, w->total);
    neap_clear_error(c);
    assert_true(np_parallel(c, N, one_chunk, w));
    free(w);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_chunk_runs_once_with_any_number_of_threads),
        TEST(many_small_jobs_do_not_mix),
        TEST(small_work_wakes_nobody),
        TEST(cancelling_stops_between_chunks),
        TEST(a_cancel_after_the_last_chunk_is_not_an_error),
        TEST(nested_calls_run_on_their_own_thread),
        TEST(a_cancelled_nested_call_is_reported_once_outside),
        TEST(a_forked_child_works_serially_and_says_so_once),
        TEST(without_memory_for_the_pool_the_call_fails_and_the_next_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
