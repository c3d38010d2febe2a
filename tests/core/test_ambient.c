/* test_ambient.c - what is in force, alone and against a small model: owners sleep, wake, die; ends in any
 * order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

static uint64_t push(neap_ctx *c, np_ambient_kind kind, int64_t value)
{
    uint64_t id = np_ambient_push(c, kind, value, NULL, "test", "here:1");
    assert_true(id > 0);
    return id;
}

static int64_t in_force(neap_ctx *c, np_ambient_kind kind)
{
    np_ambient_entry *e = np_ambient_get(c, kind);
    return e ? e->value : -1;
}

static void ends_come_in_any_order(void **state)
{
    neap_ctx *c = *state;
    assert_int_equal(-1, in_force(c, NP_AMB_GRAD));
    uint64_t a = push(c, NP_AMB_GRAD, 1), b = push(c, NP_AMB_DTYPE, 2), d = push(c, NP_AMB_GRAD, 3);
    assert_true(a < b && b < d);
    assert_int_equal(3, in_force(c, NP_AMB_GRAD));
    assert_true(np_ambient_pop(c, a));
    assert_int_equal(3, in_force(c, NP_AMB_GRAD));
    assert_true(np_ambient_pop(c, d));
    assert_int_equal(-1, in_force(c, NP_AMB_GRAD));
    assert_int_equal(2, in_force(c, NP_AMB_DTYPE));
    assert_false(np_ambient_pop(c, d)); /* already ended */
    assert_false(np_ambient_pop(c, 0));
    np_ambient_entry *e = np_ambient_find(c, b);
    assert_string_equal("here:1", e->note);
    assert_string_equal("test", e->where);
    assert_null(np_ambient_find(c, a));
    assert_true(np_ambient_pop(c, b));
    assert_true(push(c, NP_AMB_GRAD, 0) > d); /* ids are never used again */
}

static bool sleeps(void *user, const void *owner) { return *(const void **)user == owner; }

static void own_entries_come_first_then_those_of_the_awake(void **state)
{
    neap_ctx *c = *state;
    char main_routine = 0, worker = 0;
    const void *sleeper = NULL;
    c->ambient.asleep = sleeps, c->ambient.asleep_user = &sleeper;
    np_ambient_run(c, &main_routine);
    push(c, NP_AMB_GRAD, 10);
    np_ambient_run(c, &worker);
    assert_int_equal(10, in_force(c, NP_AMB_GRAD)); /* inherited from who resumed it */
    push(c, NP_AMB_GRAD, 20);
    np_ambient_run(c, &main_routine);
    sleeper = &worker;
    np_ambient_touch(c);
    push(c, NP_AMB_GRAD, 11);
    assert_int_equal(11, in_force(c, NP_AMB_GRAD));
    sleeper = NULL;
    np_ambient_run(c, &worker);
    assert_int_equal(20, in_force(c, NP_AMB_GRAD)); /* its own, though 11 is newer */
    sleeper = &worker;
    np_ambient_run(c, NULL); /* a third one */
    assert_int_equal(11, in_force(c, NP_AMB_GRAD));
    sleeper = &main_routine;
    np_ambient_touch(c);
    assert_int_equal(20, in_force(c, NP_AMB_GRAD));
    c->ambient.asleep = NULL;
}

static void walking_outward_skips_the_inner_ones(void **state)
{
    neap_ctx *c = *state;
    push(c, NP_AMB_MODE, 1);
    push(c, NP_AMB_GRAD, 7);
    uint64_t b = push(c, NP_AMB_MODE, 2), d = push(c, NP_AMB_MODE, 3);
    assert_int_equal(3, np_ambient_below(c, NP_AMB_MODE, d + 1)->value);
    assert_int_equal(2, np_ambient_below(c, NP_AMB_MODE, d)->value);
    assert_int_equal(1, np_ambient_below(c, NP_AMB_MODE, b)->value);
    assert_null(np_ambient_below(c, NP_AMB_MODE, 1));
    assert_null(np_ambient_below(c, NP_AMB_GROUP, d));
}

static void a_long_note_is_cut(void **state)
{
    neap_ctx *c = *state;
    char note[200];
    memset(note, 'n', sizeof note - 1);
    note[sizeof note - 1] = 0;
    uint64_t id = np_ambient_push(c, NP_AMB_GRAD, 0, NULL, NULL, note);
    assert_int_equal(63, strlen(np_ambient_find(c, id)->note));
}

static void a_push_without_memory_changes_nothing(void **state)
{
    neap_ctx *c = *state;
    for (int i = 0; i < 100; i++) {
        int64_t before = in_force(c, NP_AMB_GRAD);
        size_t n = c->ambient.n;
        c->alloc_fail_at = 1;
        uint64_t id = np_ambient_push(c, NP_AMB_GRAD, i, NULL, NULL, NULL);
        bool failed = c->alloc_fail_at == 0;
        assert_int_equal(failed, id == 0);
        assert_int_equal(failed ? NEAP_E_NOMEM : NEAP_OK, neap_error(c));
        if (failed) {
            assert_int_equal(n, c->ambient.n);
            assert_int_equal(before, in_force(c, NP_AMB_GRAD));
        }
        c->alloc_fail_at = 0;
        neap_clear_error(c);
        if (failed) push(c, NP_AMB_GRAD, i);
    }
    assert_int_equal(99, in_force(c, NP_AMB_GRAD));
}

/* ---- the fuzz: a model that keeps every entry in an unordered bag and answers by looking at all of them */

enum { OWNERS = 6, BAG = 80, STEPS = 100000 };

typedef struct thing {
    uint64_t id;
    int owner, kind;
    int64_t value;
} thing;

typedef struct model {
    neap_ctx *c;
    char address[OWNERS]; /* owner i is &address[i] */
    bool asleep[OWNERS];
    int running, n;
    thing bag[BAG];
    uint64_t last_ended, newest, random;
} model;

static unsigned pick(model *m, unsigned n)
{
    m->random ^= m->random << 13, m->random ^= m->random >> 7, m->random ^= m->random << 17;
    return (unsigned)((m->random >> 11) % n);
}

static bool model_asleep(void *user, const void *owner)
{
    model *m = user;
    return m->asleep[(const char *)owner - m->address];
}

/* The effective entry of a kind among ids below `below`: two passes over the rule as it is written. */
static const thing *expected(const model *m, int kind, uint64_t below)
{
    const thing *best = NULL;
    for (int own = 1; own >= 0 && !best; own--)
        for (int i = 0; i < m->n; i++) {
            const thing *t = &m->bag[i];
            if (t->kind != kind || t->id >= below) continue;
            if (own ? t->owner != m->running : t->owner == m->running || m->asleep[t->owner]) continue;
            if (!best || t->id > best->id) best = t;
        }
    return best;
}

static void compare(model *m)
{
    for (int kind = 0; kind < NP_N_AMBIENT; kind++) {
        const thing *want = expected(m, kind, UINT64_MAX);
        const np_ambient_entry *got = np_ambient_get(m->c, (np_ambient_kind)kind);
        assert_int_equal(want ? want->id : 0, got ? got->id : 0);
        if (want) assert_int_equal(want->value, got->value);
    }
    int kind = (int)pick(m, NP_N_AMBIENT);
    uint64_t below = m->newest + 2 - pick(m, (unsigned)(m->newest < 100 ? m->newest + 1 : 100));
    const thing *want = expected(m, kind, below);
    const np_ambient_entry *got = np_ambient_below(m->c, (np_ambient_kind)kind, below);
    assert_int_equal(want ? want->id : 0, got ? got->id : 0);
    assert_int_equal(m->n, m->c->ambient.n);
}

static void step_push(model *m)
{
    neap_ctx *c = m->c;
    if (m->n == BAG) return;
    int kind = (int)pick(m, NP_N_AMBIENT);
    int64_t value = pick(m, 1000);
    if (pick(m, 4) == 0) { /* fails if the list must grow */
        bool grows = c->ambient.n == c->ambient.cap;
        c->alloc_fail_at = 1;
        uint64_t id = np_ambient_push(c, (np_ambient_kind)kind, value, NULL, NULL, NULL);
        c->alloc_fail_at = 0;
        assert_int_equal(grows, id == 0);
        neap_clear_error(c);
        if (grows) return;
        m->bag[m->n++] = (thing){m->newest = id, m->running, kind, value};
        return;
    }
    uint64_t id = np_ambient_push(c, (np_ambient_kind)kind, value, NULL, NULL, NULL);
    assert_true(id > m->newest);
    m->bag[m->n++] = (thing){m->newest = id, m->running, kind, value};
}

static void end_thing(model *m, int i)
{
    m->last_ended = m->bag[i].id;
    assert_int_equal(m->bag[i].value, np_ambient_find(m->c, m->bag[i].id)->value);
    assert_true(np_ambient_pop(m->c, m->bag[i].id));
    m->bag[i] = m->bag[--m->n];
}

static void step_pop(model *m)
{
    if (pick(m, 8) == 0) assert_false(np_ambient_pop(m->c, m->last_ended));
    else if (m->n) end_thing(m, (int)pick(m, (unsigned)m->n));
}

static void step_switch(model *m)
{
    m->running = (int)pick(m, OWNERS);
    m->asleep[m->running] = false;
    np_ambient_run(m->c, &m->address[m->running]);
}

static void step_sleep_or_wake(model *m)
{
    int owner = (int)pick(m, OWNERS);
    if (owner == m->running) return;
    m->asleep[owner] = !m->asleep[owner];
    np_ambient_touch(m->c);
}

static void step_die(model *m) /* all it opened ends, in no order; a new owner may get its address */
{
    int owner = (int)pick(m, OWNERS);
    if (owner == m->running) return;
    for (int i = m->n; i-- > 0;)
        if (m->bag[i].owner == owner) end_thing(m, i);
    m->asleep[owner] = pick(m, 2);
    np_ambient_touch(m->c);
}

static void ambient_fuzz_100000_steps_against_model(void **state)
{
    model *m = calloc(1, sizeof *m);
    m->c = *state;
    m->random = UINT64_C(0x9E3779B97F4A7C15);
    m->c->ambient.asleep = model_asleep, m->c->ambient.asleep_user = m;
    np_ambient_run(m->c, &m->address[0]);
    int64_t full = 0;
    for (int step = 0; step < STEPS; step++) {
        unsigned what = pick(m, 100);
        if (step % 20000 == 19999) { /* the list's memory goes too: growing is met again and again */
            while (m->n) end_thing(m, 0);
            np_array_free(m->c, m->c->ambient.v);
            m->c->ambient.v = NULL, m->c->ambient.cap = 0;
        }
        if (what < 45) step_push(m);
        else if (what < 80) step_pop(m);
        else if (what < 90) step_switch(m);
        else if (what < 98) step_sleep_or_wake(m);
        else step_die(m);
        full += m->n;
        compare(m);
    }
    assert_true(full / STEPS > 10); /* the walk was not spent on an empty list */
    m->c->ambient.asleep = NULL;
    free(m);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ends_come_in_any_order),
        TEST(own_entries_come_first_then_those_of_the_awake),
        TEST(walking_outward_skips_the_inner_ones),
        TEST(a_long_note_is_cut),
        TEST(a_push_without_memory_changes_nothing),
        TEST(ambient_fuzz_100000_steps_against_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
