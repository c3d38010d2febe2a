/* test_null.c - what a host does wrong: NULL where something is needed, objects that an earlier failure did not make,
 * and callbacks that answer nonsense. Each is an error or a neutral answer, and the context goes on. */
#include "tensor_help.h"

static neap_ctx *c;

/* The call failed with this code, in one line. */
#define REFUSED(code, call) \
    do { \
        (void)(call); \
        assert_string_equal(neap_code_name(neap_error(c)), code); \
        assert_true(strlen(neap_error_message(c)) > 10 && !strchr(neap_error_message(c), '\n')); \
        neap_clear_error(c); \
    } while (0)

static neap_tensor *leaf(void)
{
    neap_tensor *x = neap_full(c, 1, (int64_t[]){3}, 2, NEAP_FLOAT32, 0);
    assert_non_null(x);
    assert_int_equal(neap_set_requires_grad(c, x, 1), 0);
    return x;
}

static void test_no_place(void **state)
{
    c = ((world *)*state)->c;
    neap_tensor *x = leaf();
    neap_free(leaf()); /* an idle object: the short way of making one */
    REFUSED("E-ARG", neap_wrap(c, 2, NULL, NEAP_FLOAT32, &x, NULL, NULL));
    REFUSED("E-ARG", neap_zeros(c, 2, NULL, NEAP_FLOAT32, 0));
    REFUSED("E-ARG", neap_read(c, x, NULL, 12));
    REFUSED("E-ARG", neap_hash(c, x, NULL));
    REFUSED("E-ARG", neap_item(c, x, NULL));
    REFUSED("E-ARG", neap_item_int(c, x, NULL));
    REFUSED("E-ARG", neap_memory_stats(c, 0, NULL));
    REFUSED("E-ARG", neap_index(c, x, NULL, 1));
    REFUSED("E-DIMS", neap_index(c, x, (neap_tensor *[9]){0}, 9));
    REFUSED("E-DEVICE", neap_device_find(c, "two\nlines"));
    REFUSED("E-IO", neap_load(c, "/no/two\nlines"));
    neap_free(x);
}

static void test_no_settings(void **state)
{
    c = ((world *)*state)->c;
    neap_tensor *x = leaf();
    neap_adamw o = {.size = sizeof o, .step = 1};
    REFUSED("E-ARG", neap_adamw_step(c, NULL, 1, &x, &x, &x, &x, NULL));
    REFUSED("E-ARG", neap_adamw_step(c, &o, 1, NULL, NULL, NULL, NULL, NULL));
    REFUSED("E-ARG", neap_adamw_step(c, &o, -1, &x, &x, &x, &x, NULL));
    REFUSED("E-ARG", neap_sgd_step(c, NULL, 1, &x, &x, NULL));
    REFUSED("E-ARG", neap_rmsprop_step(c, NULL, 1, &x, &x, &x, NULL, NULL));
    REFUSED("E-ARG", neap_adagrad_step(c, NULL, 1, &x, &x, &x));
    REFUSED("E-ARG", neap_clip_grad_norm(c, 1, NULL, 1, 0, NULL));
    REFUSED("E-ARG", neap_clip_grad_value(c, 1, NULL, 1));
    neap_free(x);
}

static void test_not_made(void **state)
{
    c = ((world *)*state)->c;
    assert_int_equal(neap_file_count(NULL) + neap_file_n_metadata(NULL) + neap_npz_count(NULL), 0);
    assert_int_equal(neap_csv_rows(NULL) + neap_csv_columns(NULL) + neap_csv_is_number(NULL, 0), 0);
    assert_null(neap_file_name(NULL, 0));
    assert_null(neap_file_metadata(NULL, 0, NULL));
    assert_null(neap_npz_name(NULL, 0));
    assert_null(neap_csv_name(NULL, 0));
    assert_null(neap_csv_text(NULL, 0, 0));
    REFUSED("E-ARG", neap_csv_tensor(c, NULL, 1, (int64_t[]){0}, NEAP_FLOAT32));
    REFUSED("E-INDEX", neap_npz_tensor(c, NULL, 0));
    REFUSED("E-BADOP", neap_selective_new(c, NULL));
    REFUSED("E-BADOP",
            neap_selective_new(c, &(neap_selective_opts){.list = (int[]){-5, 99999}, .n_list = 2}));
    REFUSED("E-ARG", neap_selective_record_begin(c, NULL));
    REFUSED("E-ARG", neap_selective_replay_begin(c, NULL));
    REFUSED("E-ARG", neap_group_begin(c, NULL));
    REFUSED("E-ARG", neap_reentrant_begin(c, NULL, NULL, 0));
    assert_int_equal(neap_reentrant_end(c, NULL, NULL, 0, 1), 0);
    neap_group_close(c, NULL);
    neap_generator_set(NULL, 1, 2);
    uint64_t seed = 7, offset = 7;
    neap_generator_get(NULL, &seed, &offset);
    assert_true(seed == 0 && offset == 0);
    neap_cancel(NULL);
    neap_cancel_clear(NULL);
}

static int too_many(neap_ctx *ctx, void *user, neap_values *v)
{
    (void)ctx;
    v->n_out = *(int *)user;
    return 0;
}

static void test_too_many_results(void **state)
{
    c = ((world *)*state)->c;
    for (int i = 0; i < 2; i++) {
        int n = i ? NEAP_MAX_RESULTS + 1 : -1, n_results = 0;
        neap_fn fn = {.call = too_many, .user = &n};
        neap_tensor *x = leaf(), *results[NEAP_MAX_RESULTS];
        REFUSED("E-ARG", neap_checkpoint(c, fn, &x, 1, results, &n_results, NULL));
        assert_int_equal(n_results, 0);
        REFUSED("E-ARG", neap_checkpoint(c, fn, &x, 1, NULL, NULL, NULL));
        uint64_t hook = neap_register_hook(c, x, fn);
        neap_tensor *y = neap_sum(c, x, NULL, 0, 0);
        REFUSED("E-ARG", neap_backward(c, y, NULL, NULL));
        neap_remove_hook(c, hook);
        neap_free(y);
        y = neap_sum(c, x, NULL, 0, 0);
        assert_int_equal(neap_backward(c, y, NULL, NULL), 0);
        neap_free(y);
        neap_free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_no_place), TEST(test_no_settings), TEST(test_not_made),
                                       TEST(test_too_many_results)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
