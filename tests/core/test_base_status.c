/* test_base_status.c - the error record, the log, the CPU level, and a context's life. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

static void every_code_has_a_name_of_its_own_and_a_meaning(void **state)
{
    (void)state;
    assert_string_equal("OK", neap_code_name(NEAP_OK));
    assert_string_equal("E-SHAPE", neap_code_name(NEAP_E_SHAPE));
    assert_string_equal("E-INTERNAL", neap_code_name((neap_code)NEAP_N_CODES));
    for (int i = 0; i < NEAP_N_CODES; i++) {
        assert_true(strlen(neap_code_meaning((neap_code)i)) > 5);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(neap_code_name((neap_code)i), neap_code_name((neap_code)j));
    }
}

static void first_error_wins_and_carries_its_op(void **state)
{
    neap_ctx *c = *state;
    c->op_name = "matmul";
    assert_null(np_fail(c, NEAP_E_SHAPE, "inner sizes differ: %d and %d", 3, 4));
    c->op_name = "add";
    np_fail(c, NEAP_E_DTYPE, "later");
    neap_fail(c, NEAP_E_USER, "later still", &c);
    c->op_name = NULL;
    assert_int_equal(NEAP_E_SHAPE, neap_error(c));
    assert_string_equal("neap.matmul: inner sizes differ: 3 and 4", neap_error_message(c));
    assert_string_equal("matmul", c->err.op);
    assert_null(neap_error_value(c));
    neap_clear_error(c);
    assert_int_equal(NEAP_OK, neap_error(c));
    assert_string_equal("", neap_error_message(c));
}

static void a_hosts_error_keeps_its_text_and_its_value(void **state)
{
    neap_ctx *c = *state;
    int value = 7;
    c->op_name = "exp";
    neap_fail(c, NEAP_E_USER, "mine", &value);
    c->op_name = NULL;
    assert_string_equal("mine", neap_error_message(c));
    assert_ptr_equal(&value, neap_error_value(c));
    neap_clear_error(c);
    assert_null(neap_error_value(c));
    neap_fail(c, NEAP_OK, NULL, NULL);
    assert_int_equal(NEAP_E_USER, neap_error(c));
    neap_clear_error(c);
}

static void a_taken_error_comes_back_before_a_later_one(void **state)
{
    neap_ctx *c = *state;
    np_fail(c, NEAP_E_INDEX, "first");
    np_error first = np_error_take(c);
    assert_int_equal(NEAP_OK, neap_error(c));
    np_fail(c, NEAP_E_STATE, "second");
    np_error_restore(c, first);
    assert_string_equal("first", neap_error_message(c));
    neap_clear_error(c);

    np_error none = np_error_take(c);
    np_fail(c, NEAP_E_STATE, "second");
    np_error_restore(c, none);
    assert_int_equal(NEAP_E_STATE, neap_error(c));
    neap_clear_error(c);
}

static void a_long_text_is_cut_between_characters(void **state)
{
    neap_ctx *c = *state;
    char text[3001];
    for (int shift = 0; shift < 4; shift++) {
        memset(text, 'x', (size_t)shift);
        for (int i = shift; i + 2 <= 3000; i += 2) memcpy(text + i, "\xC3\xA9", 2);
        text[3000 - shift % 2] = 0;
        np_fail(c, NEAP_E_ARG, "%s", text);
        size_t n = strlen(neap_error_message(c));
        assert_in_range(n, sizeof c->err.message - 3, sizeof c->err.message - 1);
        assert_int_equal(0, (n - (size_t)shift) % 2);
        neap_clear_error(c);
    }
}

typedef struct lines {
    int n, level;
    char last[700];
} lines;

static void keep_line(void *user, int level, const char *text)
{
    lines *l = user;
    l->n++;
    l->level = level;
    strcpy(l->last, text);
}

static void the_log_goes_to_the_host_only(void **state)
{
    lines l = {0};
    neap_ctx_opts o = {.size = sizeof o, .threads = 2, .log = keep_line, .user = &l};
    neap_ctx *c = neap_ctx_new(&o);
    assert_non_null(c);
    int before = l.n;
    np_logf(c, 1, "%d lines", 2);
    assert_int_equal(before + 1, l.n);
    assert_int_equal(1, l.level);
    assert_string_equal("2 lines", l.last);
    neap_ctx_free(c);
    np_logf(*state, 2, "nobody hears this");
}

static void a_cpu_level_can_be_lowered_but_not_raised(void **state)
{
    neap_ctx *c = *state;
    lines l = {0};
    c->opts.log = keep_line, c->opts.user = &l;
    char *old = getenv("NEAP_ISA") ? strdup(getenv("NEAP_ISA")) : NULL;
    int best = np_cpu_best_level();
    for (int level = 0; level < NP_N_ISA; level++) {
        setenv("NEAP_ISA", np_cpu_level_name(level), 1);
        l.n = 0;
        assert_int_equal(level <= best ? level : best, np_cpu_choose_level(c));
        assert_int_equal(level <= best ? 0 : 1, l.n);
    }
    setenv("NEAP_ISA", "mmx", 1);
    assert_int_equal(best, np_cpu_choose_level(c));
    assert_non_null(strstr(l.last, "mmx"));
    setenv("NEAP_ISA", "", 1);
    assert_int_equal(best, np_cpu_choose_level(c));
    if (old) setenv("NEAP_ISA", old, 1);
    else unsetenv("NEAP_ISA");
    free(old);
    c->opts.log = NULL;
    if (best == 2) assert_string_equal("SkylakeX", np_cpu_openblas_core());
}

static void threads_come_from_options_then_environment(void **state)
{
    neap_ctx *c = *state;
    assert_true(neap_get_num_threads(c) >= 1);
    neap_set_num_threads(c, -3);
    assert_int_equal(1, neap_get_num_threads(c));

    char *old = getenv("NEAP_THREADS") ? strdup(getenv("NEAP_THREADS")) : NULL;
    setenv("NEAP_THREADS", "3", 1);
    neap_ctx *e = neap_ctx_new(NULL);
    assert_int_equal(3, neap_get_num_threads(e));
    neap_ctx_free(e);
    neap_ctx_opts o = {.size = sizeof o, .threads = 5};
    e = neap_ctx_new(&o);
    assert_int_equal(5, neap_get_num_threads(e));
    neap_ctx_free(e);
    setenv("NEAP_THREADS", "many", 1);
    e = neap_ctx_new(NULL);
    assert_true(neap_get_num_threads(e) >= 1);
    neap_ctx_free(e);
    if (old) setenv("NEAP_THREADS", old, 1);
    else unsetenv("NEAP_THREADS");
    free(old);
}

static void an_older_hosts_options_are_read_up_to_their_size(void **state)
{
    (void)state;
    neap_ctx_opts o = {.size = offsetof(neap_ctx_opts, host_limit), .threads = 2, .host_limit = 17};
    neap_ctx *c = neap_ctx_new(&o);
    assert_int_equal(2, neap_get_num_threads(c));
    assert_int_equal(0, c->opts.host_limit);
    neap_ctx_free(c);
}

static void note_close(neap_ctx *c, void *arg)
{
    (void)c;
    char **at = arg;
    *(*at)++ = 'x';
}

static void what_was_registered_closes_with_the_context_newest_first(void **state)
{
    (void)state;
    char text[3] = {0}, *at = text;
    neap_ctx *c = neap_ctx_new(NULL);
    c->alloc_fail_at = 1;
    assert_false(np_ctx_at_close(c, note_close, &at));
    assert_int_equal(NEAP_E_NOMEM, neap_error(c));
    neap_clear_error(c);
    assert_true(np_ctx_at_close(c, note_close, &at));
    assert_true(np_ctx_at_close(c, note_close, &at));
    neap_ctx_free(c);
    assert_string_equal("xx", text);
    neap_ctx_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name_of_its_own_and_a_meaning),
        cmocka_unit_test(first_error_wins_and_carries_its_op),
        cmocka_unit_test(a_hosts_error_keeps_its_text_and_its_value),
        cmocka_unit_test(a_taken_error_comes_back_before_a_later_one),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
        cmocka_unit_test(the_log_goes_to_the_host_only),
        cmocka_unit_test(a_cpu_level_can_be_lowered_but_not_raised),
        cmocka_unit_test(threads_come_from_options_then_environment),
        cmocka_unit_test(an_older_hosts_options_are_read_up_to_their_size),
        cmocka_unit_test(what_was_registered_closes_with_the_context_newest_first),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
