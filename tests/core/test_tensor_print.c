/* test_tensor_print.c - the text of a tensor, character by character. */
#include "tensor_help.h"

#include <math.h>

static void prints(neap_ctx *c, neap_tensor *x, const char *want)
{
    char *text = neap_tostring(c, x);
    assert_non_null(text);
    assert_string_equal(text, want);
    neap_free_text(text);
    neap_free(x);
}

static neap_tensor *doubles(neap_ctx *c, neap_dtype t, int n, const double *v)
{
    neap_tensor *x = neap_empty(c, 1, (int64_t[]){n}, t, 0);
    for (int i = 0; i < n; i++) np_store_double(t, np_ptr(x) + (size_t)i * np_itemsize(x), v[i]);
    return x;
}
#define LIST(t, ...) \
    doubles(c, t, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static void a_0_dim_tensor_prints_as_its_number(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, neap_full(c, 0, NULL, 0.1, NEAP_FLOAT32, 0), "0.1");
    prints(c, neap_full(c, 0, NULL, 3, NEAP_FLOAT64, 0), "3.0");
    prints(c, neap_full(c, 0, NULL, 1e300, NEAP_FLOAT64, 0), "1e+300");
    prints(c, neap_full(c, 0, NULL, -0.0, NEAP_FLOAT32, 0), "-0.0");
    prints(c, neap_full(c, 0, NULL, NAN, NEAP_FLOAT32, 0), "nan");
    prints(c, neap_full(c, 0, NULL, -INFINITY, NEAP_FLOAT16, 0), "-inf");
    prints(c, neap_full(c, 0, NULL, 7, NEAP_INT64, 0), "7");
    prints(c, neap_full(c, 0, NULL, 1, NEAP_BOOL, 0), "true");
}

static void columns_are_fixed(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    const float m[] = {1, -2.5f, 30, 0.125f};
    prints(c, neap_from_data(c, SHAPE(2, 2), NEAP_FLOAT32, m),
           " 1.0000  -2.5000\n30.0000   0.1250\n[float32 2x2 cpu]");
    prints(c, count_up(c, NEAP_INT64, SHAPE(2, 6)),
           " 0   1   2   3   4   5\n 6   7   8   9  10  11\n[int64 2x6 cpu]");
}

static void whole_numbers_have_no_decimals(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, LIST(NEAP_FLOAT32, 1, -2, 0), " 1  -2   0\n[float32 3 cpu]");
    prints(c, LIST(NEAP_FLOAT64, 1, NAN, INFINITY, -INFINITY, -0.0),
           "   1   nan   inf  -inf    -0\n[float64 5 cpu]");
    prints(c, LIST(NEAP_BOOL, 1, 0), " true  false\n[bool 2 cpu]");
}

static void exponents_are_shared_or_each(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, LIST(NEAP_FLOAT64, 1234567.5, 2e6), "1e+06 *\n1.2346  2.0000\n[float64 2 cpu]");
    prints(c, LIST(NEAP_FLOAT64, 1.5e-5, -3e-5), "1e-05 *\n 1.5000  -3.0000\n[float64 2 cpu]");
    prints(c, LIST(NEAP_FLOAT64, 1e-8, 1.5), "1.0000e-08  1.5000e+00\n[float64 2 cpu]");
    prints(c, LIST(NEAP_FLOAT64, 5e-324, 1e-323), "4.9407e-324  9.8813e-324\n[float64 2 cpu]");
}

static void integers_are_exact(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    const int64_t v[] = {INT64_C(9007199254740993), INT64_MIN};
    prints(c, neap_from_data(c, SHAPE(2), NEAP_INT64, v),
           "    9007199254740993  -9223372036854775808\n[int64 2 cpu]");
}

static void empty_tensors_show_their_shape(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, neap_zeros(c, SHAPE(0), NEAP_FLOAT32, 0), "[float32 0 cpu]");
    prints(c, neap_zeros(c, SHAPE(2, 0, 3), NEAP_FLOAT32, 0), "[float32 2x0x3 cpu]");
}

static void slices_are_numbered_in_the_callers_base(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, count_up(c, NEAP_INT8, SHAPE(2, 1, 2)), "(0,.,.)\n0  1\n\n(1,.,.)\n2  3\n\n[int8 2x1x2 cpu]");
    c->base = 1;
    prints(c, count_up(c, NEAP_INT8, SHAPE(2, 1, 2)), "(1,.,.)\n0  1\n\n(2,.,.)\n2  3\n\n[int8 2x1x2 cpu]");
    c->base = 0;
}

static void large_tensors_show_their_edges(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    prints(c, neap_arange(c, 1, 2000, 1, NEAP_INT32, 0),
           "   1     2     3  ...  1998  1999  2000\n[int32 2000 cpu]");
    prints(c, neap_full(c, SHAPE(100, 100), 1, NEAP_UINT8, 0),
           "1  1  1  ...  1  1  1\n1  1  1  ...  1  1  1\n1  1  1  ...  1  1  1\n...\n"
           "1  1  1  ...  1  1  1\n1  1  1  ...  1  1  1\n1  1  1  ...  1  1  1\n[uint8 100x100 cpu]");
    neap_tensor *x = neap_zeros(c, SHAPE(1, 1), NEAP_UINT8, 0);
    neap_tensor *huge = window(x, 0, 3, (int64_t[]){1 << 20, 1 << 20, 1 << 20}, (int64_t[]){0, 0, 0});
    char *text = neap_tostring(c, huge); /* 2^60 elements of one byte: prints at once */
    assert_non_null(strstr(text, "[uint8 1048576x1048576x1048576 cpu]"));
    assert_non_null(strstr(text, "(1048575,.,.)"));
    assert_true(strlen(text) < 4000);
    neap_free_text(text), neap_free(huge), neap_free(x);
}

static void wide_rows_are_cut_into_bands(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = count_up(c, NEAP_INT32, SHAPE(2, 60));
    char *text = neap_tostring(c, x);
    assert_non_null(strstr(text, "columns 0 to "));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) assert_true(strlen(line) <= 80);
    neap_free_text(text), neap_free(x);
}

static bool print_things(neap_ctx *c)
{
    neap_tensor *x = neap_zeros(c, SHAPE(20, 20), NEAP_FLOAT32, 0);
    char *text = x ? neap_tostring(c, x) : NULL;
    bool ok = text != NULL;
    neap_free_text(text);
    neap_free(x);
    return ok;
}

static void no_failed_allocation_loses_anything(void **state)
{
    every_allocation_fails(*state, print_things);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_0_dim_tensor_prints_as_its_number),
        TEST(columns_are_fixed),
        TEST(whole_numbers_have_no_decimals),
        TEST(exponents_are_shared_or_each),
        TEST(integers_are_exact),
        TEST(empty_tensors_show_their_shape),
        TEST(slices_are_numbered_in_the_callers_base),
        TEST(large_tensors_show_their_edges),
        TEST(wide_rows_are_cut_into_bands),
        TEST(no_failed_allocation_loses_anything),
    };
    return cmocka_run_group_tests_name("tensor printing", tests, NULL, NULL);
}
