/* test_base_rng.c - Philox against the published vectors, the element map, generators, and range logs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/ctx.h"

static int setup(void **state)
{
    *state = neap_ctx_new(NULL);
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    neap_ctx_free(*state);
    return 0;
}

/* Philox4x32-10 written from the paper, with all four counter words: an independent check of rng.h. */
static void philox_of_the_paper(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t L[2] = {counter[1], counter[3]}, R[2] = {counter[0], counter[2]};
    const uint32_t M[2] = {0xD2511F53u, 0xCD9E8D57u}, W[2] = {0x9E3779B9u, 0xBB67AE85u};
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t hi[2], lo[2];
        for (int i = 0; i < 2; i++) {
            uint32_t a = M[i] >> 16, b = M[i] & 0xffff, p = R[i] >> 16, q = R[i] & 0xffff; /* by half words */
            uint32_t low = b * q, mid = a * q + (low >> 16), mid2 = b * p + (mid & 0xffff);
            hi[i] = a * p + (mid >> 16) + (mid2 >> 16), lo[i] = M[i] * R[i];
        }
        R[0] = hi[1] ^ L[0] ^ (key[0] + round * W[0]);
        R[1] = hi[0] ^ L[1] ^ (key[1] + round * W[1]);
        L[0] = lo[1], L[1] = lo[0];
    }
    out[0] = R[0], out[1] = L[0], out[2] = R[1], out[3] = L[1];
}

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];
    for (int i = 0; i < 3; i++) {
        philox_of_the_paper(known[i].counter, known[i].key, out);
        assert_memory_equal(known[i].out, out, sizeof out);
    }
    np_philox(0, 0, out);
    assert_memory_equal(known[0].out, out, sizeof out);
}

static void philox_agrees_with_an_independent_one(void **state)
{
    (void)state;
    uint64_t x = 0x2545F4914F6CDD1Du;
    for (int i = 0; i < 2000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t seed = x, counter = i % 3 ? x * 0x9E3779B97F4A7C15u : (uint64_t)i;
        uint32_t full[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, a[4], b[4];
        philox_of_the_paper(full, key, a);
        np_philox(seed, counter, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void each_element_has_a_word_of_its_own(void **state)
{
    (void)state;
    enum { N = 1000 };
    static unsigned char used[1024][4];
    memset(used, 0, sizeof used);
    np_rng_range r = {42, 160};
    for (uint64_t i = 0; i < N; i++) {
        uint64_t counter = i / 64 * 16 + i % 16, word = i % 64 / 16;
        uint32_t w[4];
        np_philox(42, 160 + counter, w);
        assert_int_equal(w[word], np_rng_bits(r, i));
        assert_true(counter < np_rng_counters(N));
        assert_int_equal(0, used[counter][word]++);
    }
    assert_int_equal(0, np_rng_counters(0));
    assert_int_equal(16, np_rng_counters(1));
    assert_int_equal(16, np_rng_counters(64));
    assert_int_equal(32, np_rng_counters(65));
}

static void uniform_numbers_stay_below_one(void **state)
{
    (void)state;
    assert_true(np_rng_uniform(0) == 0.0f);
    assert_true(np_rng_uniform(~0u) < 1.0f);
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) sum += np_rng_uniform(np_rng_bits((np_rng_range){1, 0}, i));
    assert_true(sum > 49500 && sum < 50500);
}

static void reserving_moves_the_offset_and_ranges_do_not_meet(void **state)
{
    neap_ctx *c = *state;
    neap_generator *g = neap_generator_new(c, 7);
    np_rng_range a = np_generator_reserve(c, g, 100), b = np_generator_reserve(c, g, 1);
    assert_int_equal(7, a.seed);
    assert_int_equal(0, a.offset);
    assert_int_equal(32, b.offset);
    uint64_t seed, offset;
    neap_generator_get(g, &seed, &offset);
    assert_int_equal(48, offset);
    neap_generator_set(g, 9, 32);
    assert_int_equal(32, np_generator_reserve(c, g, 5).offset);
    neap_generator_free(g);
    neap_generator_free(NULL);
}

static void a_seed_reaches_all_default_generators_and_later_ones(void **state)
{
    neap_ctx *c = *state;
    neap_seed(c, 0);
    neap_generator *mine = neap_generator_new(c, 5), *other = np_generator_new_default(c);
    assert_int_equal(0, other->seed);
    np_generator_reserve(c, NULL, 10);
    np_generator_reserve(c, other, 10);
    np_generator_reserve(c, mine, 10);
    neap_seed(c, 77);
    assert_int_equal(77, c->default_generator->seed);
    assert_int_equal(0, c->default_generator->offset);
    assert_int_equal(77, other->seed);
    assert_int_equal(0, other->offset);
    assert_int_equal(5, mine->seed);
    assert_int_equal(16, mine->offset);
    neap_generator *late = np_generator_new_default(c);
    assert_int_equal(77, late->seed);
    assert_true(other->id != late->id && mine->id != late->id);
    neap_generator_free(other);
    neap_generator_free(late);
    neap_generator_free(mine);
    neap_seed(c, 0);
    assert_int_equal(0, c->default_generator->offset);
}

static uint64_t push_log(neap_ctx *c, np_range_log *log)
{
    return np_ambient_push(c, NP_AMB_REGION, 0, log, "checkpoint", NULL);
}

static void a_replay_hands_out_what_was_recorded_per_generator(void **state)
{
    neap_ctx *c = *state;
    neap_generator *a = neap_generator_new(c, 1), *b = neap_generator_new(c, 2);
    np_range_log log = {0};
    uint64_t id = push_log(c, &log);
    np_rng_range a1 = np_generator_reserve(c, a, 10), b1 = np_generator_reserve(c, b, 20);
    np_rng_range a2 = np_generator_reserve(c, a, 30);
    np_ambient_pop(c, id);
    assert_int_equal(3, log.n);
    uint64_t a_offset = a->offset, b_offset = b->offset;

    for (int pass = 0; pass < 2;
         pass++) { /* a region may be replayed again; other order between generators */
        np_range_log_rewind(&log);
        id = push_log(c, &log);
        np_rng_range r = np_generator_reserve(c, b, 20);
        assert_memory_equal(&b1, &r, sizeof r);
        r = np_generator_reserve(c, a, 10);
        assert_memory_equal(&a1, &r, sizeof r);
        r = np_generator_reserve(c, a, 30);
        assert_memory_equal(&a2, &r, sizeof r);
        np_ambient_pop(c, id);
        assert_false(log.mismatch);
        assert_int_equal(a_offset, a->offset);
        assert_int_equal(b_offset, b->offset);
    }
    np_range_log_free(c, &log);
    neap_generator_free(a);
    neap_generator_free(b);
}

static void a_replay_that_asks_differently_is_seen(void **state)
{
    neap_ctx *c = *state;
    neap_generator *g = neap_generator_new(c, 1);
    np_range_log log = {0};
    uint64_t id = push_log(c, &log);
    np_generator_reserve(c, g, 10);
    np_rng_range second = np_generator_reserve(c, g, 11);
    np_ambient_pop(c, id);

    np_range_log_rewind(&log);
    id = push_log(c, &log);
    assert_int_equal(32, np_generator_reserve(c, g, 99).offset); /* another size: from the live stream */
    assert_true(log.mismatch);
    np_rng_range r = np_generator_reserve(c, g, 11);
    assert_memory_equal(&second, &r, sizeof r);
    np_range_log_rewind(&log);
    assert_false(log.mismatch);
    np_generator_reserve(c, g, 10);
    np_generator_reserve(c, g, 11);
    assert_false(log.mismatch);
    uint64_t live = g->offset;
    assert_int_equal(live, np_generator_reserve(c, g, 1).offset); /* more than was recorded */
    assert_true(log.mismatch);
    np_ambient_pop(c, id);
    np_range_log_free(c, &log);
    neap_generator_free(g);
}

static void nested_regions_record_for_themselves_and_replay_from_outside(void **state)
{
    neap_ctx *c = *state;
    neap_generator *g = neap_generator_new(c, 3);
    np_range_log outer = {0}, inner = {0}, again = {0};
    uint64_t o = push_log(c, &outer);
    np_rng_range first = np_generator_reserve(c, g, 5);
    uint64_t i = push_log(c, &inner);
    np_rng_range deep = np_generator_reserve(c, g, 6);
    np_ambient_pop(c, i);
    np_ambient_pop(c, o);
    assert_int_equal(2, outer.n);
    assert_int_equal(1, inner.n);
    uint64_t live = g->offset;

    np_range_log_rewind(
        &outer); /* the outer one runs again: its inner region records anew, the same ranges */
    o = push_log(c, &outer);
    np_rng_range r = np_generator_reserve(c, g, 5);
    assert_memory_equal(&first, &r, sizeof r);
    i = push_log(c, &again);
    r = np_generator_reserve(c, g, 6);
    assert_memory_equal(&deep, &r, sizeof r);
    np_ambient_pop(c, i);
    assert_int_equal(1, again.n);
    assert_memory_equal(&deep, &again.v[0].range, sizeof deep);
    assert_int_equal(2, outer.n);
    assert_false(outer.mismatch);

    i = push_log(c, NULL); /* a region that does not preserve the stream */
    assert_int_equal(live, np_generator_reserve(c, g, 1).offset);
    np_ambient_pop(c, i);
    np_ambient_pop(c, o);
    assert_false(outer.mismatch);
    np_range_log_free(c, &outer);
    np_range_log_free(c, &inner);
    np_range_log_free(c, &again);
    neap_generator_free(g);
}

static void a_log_that_cannot_grow_is_an_error(void **state)
{
    neap_ctx *c = *state;
    neap_generator *g = neap_generator_new(c, 3);
    np_range_log log = {0};
    uint64_t id = push_log(c, &log);
    c->alloc_fail_at = 1;
    np_generator_reserve(c, g, 5);
    assert_int_equal(NEAP_E_NOMEM, neap_error(c));
    neap_clear_error(c);
    assert_int_equal(0, log.n);
    np_generator_reserve(c, g, 5);
    assert_int_equal(1, log.n);
    np_ambient_pop(c, id);
    np_range_log_free(c, &log);
    assert_null(log.v);
    neap_generator_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(philox_agrees_with_an_independent_one),
        cmocka_unit_test(each_element_has_a_word_of_its_own),
        cmocka_unit_test(uniform_numbers_stay_below_one),
        cmocka_unit_test(reserving_moves_the_offset_and_ranges_do_not_meet),
        cmocka_unit_test(a_seed_reaches_all_default_generators_and_later_ones),
        cmocka_unit_test(a_replay_hands_out_what_was_recorded_per_generator),
        cmocka_unit_test(a_replay_that_asks_differently_is_seen),
        cmocka_unit_test(nested_regions_record_for_themselves_and_replay_from_outside),
        cmocka_unit_test(a_log_that_cannot_grow_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
