/* test_base_mem.c - bytes are counted exactly, limits hold before memory is taken, every allocation may fail.
 *
 * Most tests use a device whose addresses are invented: the allocator must not touch the bytes it manages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/ctx.h"

typedef struct fake {
    uintptr_t next;
    int64_t held, calls, frees, refuse_above; /* refuse_above: bytes it can hold */
    const char *why;                          /* what is broken, or "" */
} fake;

static void *fake_alloc(void *user, size_t bytes)
{
    fake *f = user;
    f->calls++;
    if (f->why[0]) return NULL;
    if (f->held + (int64_t)bytes > f->refuse_above) return NULL;
    f->held += (int64_t)bytes;
    void *p = (void *)f->next;
    f->next += (bytes + 4095) & ~(size_t)4095;
    return p;
}

static void fake_free(void *user, void *p, size_t bytes)
{
    fake *f = user;
    assert_non_null(p);
    f->frees++;
    f->held -= (int64_t)bytes;
}

static const char *fake_why(void *user) { return ((fake *)user)->why; }

typedef struct world {
    neap_ctx *c;
    fake f;
    np_mem m;
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    w->c = neap_ctx_new(NULL);
    w->f = (fake){.next = (uintptr_t)1 << 44, .refuse_above = INT64_MAX, .why = ""};
    np_raw_mem raw = {fake_alloc, fake_free, &w->f, fake_why};
    *state = w;
    return w->c && np_mem_init(&w->m, w->c, &raw) ? 0 : -1;
}

static int teardown(void **state)
{
    world *w = *state;
    np_mem_close(&w->m);
    int64_t held = w->f.held;
    neap_ctx_free(w->c);
    free(w);
    return held == 0 ? 0 : -1;
}

static void expect_error(neap_ctx *c, neap_code code)
{
    assert_string_equal(neap_code_name(code), neap_code_name(neap_error(c)));
    neap_clear_error(c);
}

static void live_counts_requested_bytes_not_blocks(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    void *a = np_mem_take(m, 100, NEAP_PARAM), *b = np_mem_take(m, 7, NEAP_GRAD);
    assert_int_equal(107, m->live);
    assert_int_equal(100, m->by[NEAP_PARAM]);
    assert_int_equal(7, m->by[NEAP_GRAD]);
    assert_int_equal(112 + 64, m->reserved);
    assert_int_equal(0, m->cached);
    assert_int_equal(2, m->storages);
    np_mem_give(m, a, 100, NEAP_PARAM);
    assert_int_equal(7, m->live);
    assert_int_equal(112, m->cached);
    assert_ptr_equal(a, np_mem_take(m, 97, NEAP_TEMP)); /* same class, other size */
    assert_int_equal(104, m->live);
    assert_int_equal(1, m->n_hit);
    np_mem_give(m, a, 97, NEAP_TEMP);
    np_mem_give(m, b, 7, NEAP_GRAD);
    assert_int_equal(0, m->live);
    assert_int_equal(0, m->storages);
    np_mem_trim(m);
    assert_int_equal(0, m->reserved);
    assert_int_equal(0, m->cached);
    assert_int_equal(0, w->f.held);
}

static void exact_memory_neither_rounds_nor_keeps(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    m->exact = true;
    void *a = np_mem_take(m, 100, NEAP_PARAM), *b = np_mem_take_scratch(m, 7);
    assert_int_equal(107, m->reserved);
    np_mem_give(m, a, 100, NEAP_PARAM);
    assert_int_equal(7, m->reserved);
    np_mem_give_scratch(m, b, 7);
    assert_int_equal(0, m->reserved);
    assert_int_equal(0, m->cached);
    assert_int_equal(0, m->n_hit);
    assert_int_equal(0, w->f.held);
}

static void a_block_wastes_a_quarter_at_most(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    for (size_t bytes = 65, last = 0; bytes < ((size_t)200 << 20); bytes += 1 + bytes / 61) {
        void *p = np_mem_take(m, bytes, NEAP_TEMP);
        size_t size = (size_t)m->reserved;
        assert_true(size >= bytes && size >= last);
        if (bytes > ((size_t)64 << 20)) assert_true(size % (2 << 20) == 0 && size - bytes < (2 << 20));
        else assert_true((size - bytes) * 4 < size);
        last = size;
        np_mem_give(m, p, bytes, NEAP_TEMP);
        np_mem_trim(m);
    }
    for (int e = 6; e <= 26; e++) { /* exact powers of two waste nothing */
        void *p = np_mem_take(m, (size_t)1 << e, NEAP_TEMP);
        assert_int_equal((int64_t)1 << e, m->reserved);
        np_mem_give(m, p, (size_t)1 << e, NEAP_TEMP);
        np_mem_trim(m);
    }
}

static void a_big_block_is_reused_up_to_a_quarter_larger(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    const size_t MB = (size_t)1 << 20;
    void *big = np_mem_take(m, 120 * MB, NEAP_TEMP), *small = np_mem_take(m, 100 * MB, NEAP_TEMP);
    np_mem_give(m, small, 100 * MB, NEAP_TEMP);
    np_mem_give(m, big, 120 * MB, NEAP_TEMP);
    assert_ptr_equal(small, np_mem_take(m, 97 * MB, NEAP_TEMP)); /* the smallest that fits */
    assert_ptr_equal(big, np_mem_take(m, 98 * MB, NEAP_TEMP));
    np_mem_give(m, big, 98 * MB, NEAP_TEMP);
    assert_int_equal(120 * MB, m->cached); /* its real size came back */
    void *other = np_mem_take(m, 80 * MB, NEAP_TEMP);
    assert_ptr_not_equal(big, other);
    np_mem_give(m, other, 80 * MB, NEAP_TEMP);
    np_mem_give(m, small, 97 * MB, NEAP_TEMP);
    assert_int_equal(0, m->live);
    assert_int_equal(m->reserved, m->cached);
}

static void peak_by_is_the_breakdown_at_the_peak(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    void *a = np_mem_take(m, 1000, NEAP_SAVED), *b = np_mem_take(m, 500, NEAP_TEMP);
    np_mem_give(m, a, 1000, NEAP_SAVED);
    void *d = np_mem_take(m, 900, NEAP_GRAD);
    assert_int_equal(1500, m->peak);
    assert_int_equal(1000, m->peak_by[NEAP_SAVED]);
    assert_int_equal(500, m->peak_by[NEAP_TEMP]);
    assert_int_equal(0, m->peak_by[NEAP_GRAD]);
    np_mem_recategorize(m, 900, NEAP_GRAD, NEAP_PARAM);
    assert_int_equal(900, m->by[NEAP_PARAM]);
    assert_int_equal(0, m->peak_by[NEAP_PARAM]);
    np_mem_reset_peak(m);
    assert_int_equal(1400, m->peak);
    assert_int_equal(900, m->peak_by[NEAP_PARAM]);
    assert_int_equal(0, m->peak_by[NEAP_SAVED]);
    np_mem_recategorize(m, 900, NEAP_PARAM, NEAP_OPTIMIZER); /* live stands at the peak: the name follows */
    assert_int_equal(900, m->peak_by[NEAP_OPTIMIZER]);
    np_mem_give(m, b, 500, NEAP_TEMP);
    np_mem_give(m, d, 900, NEAP_OPTIMIZER);
}

static void a_limit_refuses_before_memory_is_taken(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    m->limit = 1000;
    void *a = np_mem_take(m, 900, NEAP_TEMP);
    int64_t calls = w->f.calls;
    assert_null(np_mem_take(m, 101, NEAP_TEMP));
    assert_non_null(strstr(neap_error_message(w->c), "900 of 1000"));
    expect_error(w->c, NEAP_E_LIMIT);
    assert_int_equal(calls, w->f.calls);
    assert_int_equal(900, m->live);
    assert_int_equal(900, m->peak);
    assert_false(np_mem_count(m, 101, NEAP_TEMP));
    expect_error(w->c, NEAP_E_LIMIT);
    assert_true(np_mem_count(m, 100, NEAP_USER)); /* to the byte */
    assert_int_equal(1000, m->live);
    np_mem_uncount(m, 100, NEAP_USER);
    np_mem_give(m, a, 900, NEAP_TEMP);
    assert_null(np_mem_take(m, SIZE_MAX, NEAP_TEMP));
    expect_error(w->c, NEAP_E_NOMEM);
}

typedef struct hoard {
    np_mem *m;
    void *p;
    size_t bytes;
    int asked, device;
    int64_t wanted;
    bool greedy;
} hoard;

static int let_go(void *user, int device, int64_t bytes)
{
    hoard *h = user;
    h->asked++, h->device = device, h->wanted = bytes;
    if (h->greedy) { /* takes memory itself: must be refused without another question */
        assert_null(np_mem_take(h->m, h->bytes, NEAP_TEMP));
        neap_clear_error(h->m->c);
        return 0;
    }
    if (!h->p) return 0;
    np_mem_give(h->m, h->p, h->bytes, NEAP_TEMP);
    h->p = NULL;
    return 1;
}

static void pressure_is_asked_once_and_helps(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    hoard h = {.m = m, .bytes = 800};
    w->c->opts.pressure = let_go, w->c->opts.user = &h;
    m->limit = 1000, m->device = 3;
    h.p = np_mem_take(m, 800, NEAP_TEMP);
    void *a = np_mem_take(m, 900, NEAP_TEMP);
    assert_non_null(a);
    assert_int_equal(1, h.asked);
    assert_int_equal(3, h.device);
    assert_int_equal(900, h.wanted);
    assert_int_equal(900, m->live);
    assert_null(np_mem_take(m, 200, NEAP_TEMP)); /* nothing left to let go */
    assert_int_equal(2, h.asked);
    expect_error(w->c, NEAP_E_LIMIT);
    h.greedy = true;
    assert_null(np_mem_take(m, 200, NEAP_TEMP));
    assert_int_equal(3, h.asked);
    expect_error(w->c, NEAP_E_LIMIT);
    w->c->opts.pressure = NULL;
    np_mem_give(m, a, 900, NEAP_TEMP);
}

/* That is no want of memory: nothing is dropped, nobody is asked to free something, and the reason is told. */
static void a_broken_device_is_not_called_full(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    hoard h = {.m = m};
    m->name = "it", m->device = 1;
    np_mem_give(m, np_mem_take(m, 2048, NEAP_TEMP), 2048, NEAP_TEMP);
    w->c->opts.pressure = let_go;
    w->c->opts.user = &h;
    w->f.why = "the device is lost";
    const int64_t calls = w->f.calls;
    assert_null(np_mem_take(m, 4096, NEAP_TEMP));
    assert_string_equal(neap_error_message(w->c), "it: the device is lost");
    expect_error(w->c, NEAP_E_DEVICE);
    assert_int_equal(calls + 1, w->f.calls);
    assert_int_equal(0, m->n_press);
    assert_int_equal(2048, m->cached);
    w->f.why = "";
    w->f.refuse_above = 0;
    assert_null(np_mem_take(m, 4096, NEAP_TEMP));
    assert_non_null(strstr(neap_error_message(w->c), "it has no 4096 bytes left"));
    expect_error(w->c, NEAP_E_NOMEM);
    w->c->opts.pressure = NULL;
}

static void the_cache_is_dropped_before_the_system_is_called_empty(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    w->f.refuse_above = 4096;
    void *a = np_mem_take(m, 4096, NEAP_TEMP);
    np_mem_give(m, a, 4096, NEAP_TEMP);
    a = np_mem_take(m, 2048, NEAP_TEMP); /* another class: the cached block must go first */
    assert_non_null(a);
    assert_int_equal(2048, m->reserved);
    assert_null(np_mem_take(m, 4096, NEAP_TEMP));
    expect_error(w->c, NEAP_E_NOMEM);
    assert_int_equal(2048, m->live);

    w->f.refuse_above = INT64_MAX;
    m->reserved_limit = 4096; /* the host's cap acts on what is held, cache included */
    assert_null(np_mem_take(m, 4096, NEAP_TEMP));
    expect_error(w->c, NEAP_E_LIMIT);
    np_mem_give(m, a, 2048, NEAP_TEMP);
    a = np_mem_take(m, 4096, NEAP_TEMP);
    assert_non_null(a);
    np_mem_give(m, a, 4096, NEAP_TEMP);
}

static void scratch_is_counted_apart_and_capped(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    void *a = np_mem_take(m, 100, NEAP_TEMP);
    m->limit = 100; /* reached, and it acts on live: scratch passes */
    void *p = np_mem_take_scratch(m, 1000), *q = np_mem_take_scratch(m, 24);
    assert_true(p && q);
    assert_int_equal(1024, m->scratch);
    np_mem_give_scratch(m, q, 24);
    assert_int_equal(1000, m->scratch);
    assert_int_equal(1024, m->scratch_peak);
    assert_int_equal(100, m->live);
    assert_int_equal(100, m->peak);
    assert_int_equal(1, m->storages);
    assert_int_equal(112 + 1024 + 64, m->reserved);
    np_mem_reset_peak(m);
    assert_int_equal(1000, m->scratch_peak);
    m->reserved_limit = m->reserved;
    assert_null(np_mem_take_scratch(m, 4096));
    expect_error(w->c, NEAP_E_LIMIT);
    assert_int_equal(1000, m->scratch);
    np_mem_give_scratch(m, p, 1000);
    np_mem_give(m, a, 100, NEAP_TEMP);
    assert_int_equal(0, m->scratch);
    assert_int_equal(m->reserved, m->cached);
}

static void no_bytes_have_an_address(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    void *p = np_mem_take(m, 0, NEAP_TEMP);
    assert_non_null(p);
    assert_int_equal(0, m->live);
    assert_int_equal(1, m->storages);
    assert_int_equal(0, w->f.calls);
    np_mem_give(m, p, 0, NEAP_TEMP);
    assert_int_equal(0, m->storages);
    assert_int_equal(0, m->cached);
}

static void host_blocks_are_aligned(void **state)
{
    world *w = *state;
    np_mem host;
    assert_true(np_mem_init(&host, w->c, NULL));
    const size_t sizes[] = {1, 65, 1000, 100000, 2 << 20, (3 << 20) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *p = np_mem_take(&host, sizes[i], NEAP_TEMP);
        assert_int_equal(0, (uintptr_t)p % (sizes[i] >= (2 << 20) ? 2 << 20 : 64));
        memset(p, 0xA5, sizes[i]);
        np_mem_give(&host, p, sizes[i], NEAP_TEMP);
    }
    np_mem_close(&host);
    assert_int_equal(0, host.reserved);
}

static void random_traffic_agrees_with_a_plain_sum(void **state)
{
    world *w = *state;
    np_mem *m = &w->m;
    enum { N = 64 };
    struct {
        void *p;
        size_t bytes;
        neap_category cat;
    } held[N] = {0};
    int64_t live = 0, peak = 0, by[NP_N_CATEGORIES] = {0}, peak_by[NP_N_CATEGORIES] = {0};
    uint64_t x = 88172645463325252u;
    for (int step = 0; step < 50000; step++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int i = (int)(x % N);
        if (held[i].p) {
            np_mem_give(m, held[i].p, held[i].bytes, held[i].cat);
            live -= (int64_t)held[i].bytes, by[held[i].cat] -= (int64_t)held[i].bytes;
            held[i].p = NULL;
        } else {
            held[i].bytes = (size_t)(x >> 20) % ((size_t)1 << (x >> 8) % 28);
            held[i].cat = (neap_category)((x >> 50) % NP_N_CATEGORIES);
            held[i].p = np_mem_take(m, held[i].bytes, held[i].cat);
            assert_non_null(held[i].p);
            for (int j = 0; j < N; j++)
                assert_true(j == i || !held[j].p || !held[i].bytes || held[j].p != held[i].p);
            live += (int64_t)held[i].bytes, by[held[i].cat] += (int64_t)held[i].bytes;
            if (live > peak) peak = live, memcpy(peak_by, by, sizeof by);
        }
        assert_int_equal(live, m->live);
        assert_int_equal(w->f.held, m->reserved);
        assert_true(m->reserved - m->cached >= live);
    }
    assert_int_equal(peak, m->peak);
    assert_memory_equal(by, m->by, sizeof by);
    assert_memory_equal(peak_by, m->peak_by, sizeof peak_by);
    assert_true(m->n_hit * 2 > m->n_alloc);
    for (int i = 0; i < N; i++) np_mem_give(m, held[i].p, held[i].bytes, held[i].cat);
}

static void objects_are_zeroed_and_counted(void **state)
{
    world *w = *state;
    neap_ctx *c = w->c;
    size_t before = c->obj_live;
    const size_t sizes[] = {1, 32, 33, 2048, 2049, 100000};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            unsigned char *p = np_obj_new(c, sizes[i]);
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(0, p[j]);
            assert_int_equal(before + 1, c->obj_live);
            memset(p, 0xFF, sizes[i]);
            np_obj_free(c, p, sizes[i]);
        }
    np_obj_free(c, NULL, 8);
    assert_int_equal(before, c->obj_live);
}

static void arrays_grow_and_keep_their_elements(void **state)
{
    world *w = *state;
    size_t cap = 0;
    int *v = NULL;
    for (int i = 0; i < 1000; i++) {
        int *q = np_array_grow(w->c, v, &cap, (size_t)i + 1, sizeof *v);
        assert_non_null(q);
        v = q;
        v[i] = i;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(i, v[i]);
    size_t old = cap;
    assert_null(np_array_grow(w->c, v, &cap, SIZE_MAX / 2, sizeof *v));
    expect_error(w->c, NEAP_E_NOMEM);
    assert_int_equal(old, cap);
    w->c->alloc_fail_at = 1;
    assert_null(np_array_grow(w->c, v, &cap, cap + 1, sizeof *v));
    expect_error(w->c, NEAP_E_NOMEM);
    assert_int_equal(old, cap);
    np_array_free(w->c, v);
}

static void the_nth_allocation_fails_once(void **state)
{
    world *w = *state;
    neap_ctx *c = w->c;
    c->alloc_fail_at = 3;
    uint64_t before = c->alloc_count;
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(i == 3, np_alloc_should_fail(c));
        assert_int_equal(before + (uint64_t)i, c->alloc_count);
    }
    assert_int_equal(0, c->alloc_fail_at);
}

/* Every way to get memory in the base layer, failed once: NULL, E-NOMEM, and the counts as before. */
static void every_kind_of_allocation_can_fail_and_leaves_nothing(void **state)
{
    world *w = *state;
    neap_ctx *c = w->c;
    np_mem *m = &w->m;
    size_t objects = c->obj_live;
    for (int kind = 0; kind < 7; kind++) {
        c->alloc_fail_at = 1;
        size_t cap = 0;
        switch (kind) {
        case 0: assert_null(np_mem_take(m, 64, NEAP_TEMP)); break;
        case 1: assert_false(np_mem_count(m, 8, NEAP_TEMP)); break;
        case 2: assert_null(np_obj_new(c, 64)); break;
        case 3: assert_null(np_array_grow(c, NULL, &cap, 1, 4)); break;
        case 4: assert_null(neap_generator_new(c, 1)); break;
        case 5: assert_null(np_mem_take_scratch(m, 64)); break;
        case 6: assert_int_equal(0, np_ambient_push(c, NP_AMB_GRAD, 0, NULL, NULL, NULL)); break;
        }
        assert_int_equal(0, c->alloc_fail_at);
        expect_error(c, NEAP_E_NOMEM);
    }
    assert_int_equal(objects, c->obj_live);
    assert_int_equal(0, m->live);
    assert_int_equal(0, m->storages);
    assert_int_equal(0, m->peak);
    assert_int_equal(0, m->scratch_peak);
    assert_int_equal(0, w->f.calls);
    assert_null(np_ambient_get(c, NP_AMB_GRAD));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(exact_memory_neither_rounds_nor_keeps),
        TEST(live_counts_requested_bytes_not_blocks),
        TEST(a_block_wastes_a_quarter_at_most),
        TEST(a_big_block_is_reused_up_to_a_quarter_larger),
        TEST(peak_by_is_the_breakdown_at_the_peak),
        TEST(a_limit_refuses_before_memory_is_taken),
        TEST(pressure_is_asked_once_and_helps),
        TEST(the_cache_is_dropped_before_the_system_is_called_empty),
        TEST(a_broken_device_is_not_called_full),
        TEST(scratch_is_counted_apart_and_capped),
        TEST(no_bytes_have_an_address),
        TEST(host_blocks_are_aligned),
        TEST(random_traffic_agrees_with_a_plain_sum),
        TEST(objects_are_zeroed_and_counted),
        TEST(arrays_grow_and_keep_their_elements),
        TEST(the_nth_allocation_fails_once),
        TEST(every_kind_of_allocation_can_fail_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
