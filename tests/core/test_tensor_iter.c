/* test_tensor_iter.c - the iterator visits every element once, in merged order, whatever the layout. */
#include "tensor_help.h"

static void add_run(void *arg, int64_t n, char **p, const int64_t *stride)
{
    int64_t *runs = arg;
    if (runs) ++*runs;
    for (int64_t i = 0; i < n; i++)
        *(double *)(p[0] + i * stride[0]) =
            *(double *)(p[1] + i * stride[1]) + 1000 * *(double *)(p[2] + i * stride[2]);
}

static void merges_what_is_one_run(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    np_iter it;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(2, 3, 4)),
                *y = count_up(c, NEAP_FLOAT32, SHAPE(2, 3, 4));
    np_iter_init(&it, (neap_tensor *[]){y, x}, 2);
    assert_true(it.dense);
    assert_int_equal(it.ndim, 1);
    assert_int_equal(it.shape[0], 24);
    neap_tensor *xt = window(x, 0, 3, (int64_t[]){4, 3, 2}, (int64_t[]){1, 4, 12});
    neap_tensor *yt = window(y, 0, 3, (int64_t[]){4, 3, 2}, (int64_t[]){1, 4, 12});
    np_iter_init(&it, (neap_tensor *[]){yt, xt}, 2); /* both transposed alike: still one run */
    assert_true(it.dense);
    neap_tensor *one = neap_zeros(c, 0, NULL, NEAP_FLOAT32, 0);
    np_iter_init(&it, (neap_tensor *[]){y, one}, 2);
    assert_true(it.dense);
    assert_int_equal(it.stride[1][0], 0);
    np_iter_init(&it, (neap_tensor *[]){one, one}, 2);
    assert_true(it.dense);
    assert_int_equal(it.shape[0], 1);
    neap_tensor *every_second = window(x, 0, 1, (int64_t[]){12}, (int64_t[]){2});
    np_iter_init(&it, (neap_tensor *[]){every_second}, 1);
    assert_false(it.dense);
    neap_tensor *row = count_up(c, NEAP_FLOAT32, SHAPE(4));
    np_iter_init(&it, (neap_tensor *[]){y, row}, 2);
    assert_int_equal(it.ndim, 2);
    assert_int_equal(it.shape[0], 4);
    assert_int_equal(it.shape[1], 6);
    neap_tensor *all[] = {row, every_second, one, yt, xt, y, x};
    for (int i = 0; i < 7; i++) neap_free(all[i]);
}

/* out[i] = a[i] + 1000 b[i] for layouts and broadcasts of all kinds, in parts of every size. */
static void visits_every_element_once(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *a = count_up(c, NEAP_FLOAT64, SHAPE(3, 4, 5)),
                *out = neap_zeros(c, SHAPE(4, 5, 3), NEAP_FLOAT64, 0);
    neap_tensor *outs[] = {
        neap_zeros(c, SHAPE(3, 4, 5), NEAP_FLOAT64, 0),
        window(out, 0, 3, (int64_t[]){3, 4, 5}, (int64_t[]){1, 15, 3}),
    };
    neap_tensor *b4 = count_up(c, NEAP_FLOAT64, SHAPE(4, 1)), *b5 = count_up(c, NEAP_FLOAT64, SHAPE(5));
    neap_tensor *bs[] = {b4, b5, a};
    for (int o = 0; o < 2; o++)
        for (int k = 0; k < 3; k++)
            for (int64_t part = 1; part <= 60; part = part * 2 + 1) {
                np_iter it;
                np_iter_init(&it, (neap_tensor *[]){outs[o], a, bs[k]}, 3);
                np_fill_zero(c, outs[o]);
                for (int64_t i = 0; i < 60; i += part)
                    np_iter_range(&it, i, i + part < 60 ? i + part : 60, add_run, NULL);
                for (int64_t i = 0; i < 60; i++) {
                    double b = k == 0 ? (double)(i / 5 % 4) : k == 1 ? (double)(i % 5) : (double)i;
                    assert_true(at(outs[o], i) == (double)i + 1000 * b);
                }
            }
    neap_tensor *all[] = {b5, b4, outs[1], outs[0], out, a};
    for (int i = 0; i < 6; i++) neap_free(all[i]);
}

static void runs_in_parallel_chunks(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_set_num_threads(c, 2);
    neap_tensor *a = count_up(c, NEAP_FLOAT64, SHAPE(333, 301)),
                *b = neap_full(c, SHAPE(301), 2, NEAP_FLOAT64, 0);
    neap_tensor *out = neap_zeros(c, SHAPE(333, 301), NEAP_FLOAT64, 0);
    np_iter it;
    np_iter_init(&it, (neap_tensor *[]){out, a, b}, 3);
    assert_true(np_iter_run(c, &it, add_run, NULL));
    for (int64_t i = 0; i < out->numel; i++) assert_true(NP_DATA(double, out)[i] == (double)i + 2000);
    neap_tensor *all[] = {out, b, a};
    for (int i = 0; i < 3; i++) neap_free(all[i]);
}

static void cancel_stops_it(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *a = neap_zeros(c, SHAPE(100, 1000), NEAP_FLOAT64, 0);
    neap_cancel(c);
    assert_false(np_fill_value(c, a, 1));
    expect_error(c, "E-CANCELLED");
    neap_cancel_clear(c);
    assert_true(np_fill_value(c, a, 1));
    neap_free(a);
}

static void no_elements_no_call(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    int64_t runs = 0;
    np_iter it;
    neap_tensor *a = neap_zeros(c, SHAPE(3, 0, 2), NEAP_FLOAT64, 0);
    np_iter_init(&it, (neap_tensor *[]){a, a, a}, 3);
    assert_true(np_iter_run(c, &it, add_run, &runs));
    assert_int_equal(runs, 0);
    neap_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(merges_what_is_one_run), TEST(visits_every_element_once), TEST(runs_in_parallel_chunks),
        TEST(cancel_stops_it),        TEST(no_elements_no_call),
    };
    return cmocka_run_group_tests_name("tensor iterator", tests, NULL, NULL);
}
