/* test_pick.c - for C hosts: indexing by several tensors of positions, composites inside and outside of scopes. Values are
 * held against PyTorch's in tests/lua/golden_ops_spec.lua. */
#include "tensor_help.h"

static neap_tensor *ids(neap_ctx *c, int64_t a, int64_t b)
{
    return neap_from_data(c, SHAPE(2), NEAP_INT64, (int64_t[]){a, b});
}

static void several_tensors_of_positions(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(2, 3, 4)), *i = ids(c, 0, -1), *j = ids(c, 3, 1);
    neap_tensor *y = neap_index(c, x, (neap_tensor *[]){i, NULL, j}, 3);
    assert_int_equal(neap_ndim(y), 2);
    assert_true(at(y, 0) == 3 && at(y, 1) == 7 && at(y, 3) == 13);
    neap_free(y);
    y = neap_index(c, x, (neap_tensor *[]){NULL, i, j}, 3);
    assert_int_equal(neap_size(y, 0), 2);
    assert_true(at(y, 0) == 3 && at(y, 1) == 9);
    neap_tensor *v = neap_full(c, 0, NULL, 100, NEAP_FLOAT32, 0);
    assert_int_equal(neap_index_put_(c, x, (neap_tensor *[]){i, i}, 2, v, 0), 0);
    assert_int_equal(neap_index_put_(c, x, (neap_tensor *[]){NULL, NULL, i}, 3, v, 1), 0);
    assert_true(at(x, 0) == 200 && at(x, 3) == 200 && at(x, 1) == 100 && at(x, 23) == 200 && at(x, 4) == 104);
    neap_free(v), neap_free(y), neap_free(i), neap_free(j), neap_free(x);
}

static void masks_among_positions(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(2, 2, 3)), *i = ids(c, 2, 0);
    neap_tensor *mask = neap_from_data(c, SHAPE(2, 2), NEAP_BOOL, (bool[]){false, true, true, false});
    neap_tensor *y = neap_index(c, x, (neap_tensor *[]){mask, NULL, i}, 3);
    assert_int_equal(neap_numel(y), 2);
    assert_true(at(y, 0) == 5 && at(y, 1) == 6);
    neap_free(y);
    assert_null(neap_index(c, x, (neap_tensor *[]){mask, i}, 2)); /* two for one dimension */
    assert_int_equal(neap_error(c), NEAP_E_INDEX);
    neap_clear_error(c);
    assert_null(neap_index(c, x, (neap_tensor *[]){NULL, NULL}, 2));
    assert_int_equal(neap_error(c), NEAP_E_ARG);
    neap_clear_error(c);
    neap_free(mask), neap_free(i), neap_free(x);
}

static void composites_count_from_0_in_c_and_belong_to_scopes(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    assert_int_equal(neap_scope_begin(c), 0);
    neap_tensor *a = count_up(c, NEAP_FLOAT64, SHAPE(2, 3)), *more[2] = {NULL, NULL};
    neap_tensor *y =
        neap_einsum(c, "ij,kj->ikj", (neap_tensor *[]){a, neap_tile(c, a, (int64_t[]){2, 1}, 2)}, 2);
    assert_int_equal(neap_size(y, 1), 4);
    assert_true(at(y, 2) == 4 && at(y, 23) == 25);
    neap_tensor *v = neap_unique(c, neap_remainder(c, a, neap_number(c, 2)), 0, &more[0], &more[1]);
    assert_int_equal(neap_numel(v), 2);
    assert_true(at(more[0], 3) == 1 && at(more[1], 0) == 3);
    assert_null(neap_movedim(c, a, (int64_t[]){2}, 1, (int64_t[]){0}, 1));
    assert_non_null(strstr(neap_error_message(c), "no dimension 2"));
    neap_clear_error(c);
    assert_int_equal(neap_index_put_(c, a, (neap_tensor *[]){ids(c, 0, 1)}, 1,
                                     y ? neap_sum(c, y, (int64_t[]){2}, 1, 0) : NULL, 0),
                     -1);
    neap_clear_error(c);
    neap_scope_end(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(several_tensors_of_positions),
        TEST(masks_among_positions),
        TEST(composites_count_from_0_in_c_and_belong_to_scopes),
    };
    return cmocka_run_group_tests_name("pick", tests, NULL, NULL);
}
