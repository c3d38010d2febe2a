/* test_tensor_copy.c - copies: every pair of dtypes, every layout, overlap, broadcast, failing allocations.
 */
#include "tensor_help.h"

#include <math.h>

static const double samples[] = {0,   -0.0, 1,   -1,  0.5, -0.5, 1.75, 2,
                                 100, -100, 127, 200, 255, -128, 3.25, 65504};
enum { N = sizeof samples / sizeof *samples };

/* What v, already exact in dtype `from`, must become in `to`: by double arithmetic. */
static double converted(neap_dtype to, double v)
{
    static const double lo[] = {[NEAP_INT8] = -128, [NEAP_UINT8] = 0},
                        hi[] = {[NEAP_INT8] = 127, [NEAP_UINT8] = 255};
    if (to == NEAP_BOOL) return v != 0;
    if (to == NEAP_INT64 || to == NEAP_INT32) return trunc(v);
    if (to == NEAP_INT8 || to == NEAP_UINT8) return fmin(fmax(trunc(v), lo[to]), hi[to]);
    return v; /* the samples are exact in every float dtype, but for bfloat16: see below */
}

static void converts_every_pair(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    for (int from = 0; from < NEAP_N_DTYPES; from++)
        for (int to = 0; to < NEAP_N_DTYPES; to++)
            for (int strided = 0; strided < 2; strided++) {
                neap_tensor *x = neap_zeros(c, SHAPE(N, 2), (neap_dtype)from, 0);
                neap_tensor *y = neap_zeros(c, SHAPE(N), (neap_dtype)to, 0);
                neap_tensor *xs = window(x, 0, 1, (int64_t[]){N}, (int64_t[]){strided ? 2 : 1});
                for (int i = 0; i < N; i++)
                    np_store_double((neap_dtype)from,
                                    np_ptr(x) + (size_t)(i * (strided ? 2 : 1)) * np_itemsize(x), samples[i]);
                assert_true(np_copy_into(c, y, xs));
                for (int i = 0; i < N; i++) {
                    double v = at(xs, i), want = converted((neap_dtype)to, v);
                    /* integers narrow by wrapping, floats by saturating */
                    if (np_is_int((neap_dtype)from) && to == NEAP_INT8) want = (int8_t)(int64_t)v;
                    if (np_is_int((neap_dtype)from) && to == NEAP_UINT8) want = (uint8_t)(int64_t)v;
                    if (to == NEAP_BFLOAT16) want = np_bf16_to_float(np_float_to_bf16((float)v));
                    if (to == NEAP_FLOAT16) want = np_half_to_float(np_float_to_half((float)v));
                    assert_true(at(y, i) == want);
                    if (np_is_float((neap_dtype)from) && np_is_float((neap_dtype)to))
                        assert_int_equal(signbit(at(y, i)), signbit(v));
                }
                neap_free(xs), neap_free(y), neap_free(x);
            }
}

static void copies_64_bit_integers_exactly(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    const int64_t data[] = {INT64_C(9007199254740993), INT64_MIN, INT64_MAX, 10151188881778163};
    neap_tensor *x = neap_from_data(c, SHAPE(2, 2), NEAP_INT64, data);
    neap_tensor *t = window(x, 0, 2, (int64_t[]){2, 2}, (int64_t[]){1, 2}), *y = np_contiguous_copy(c, t);
    const int64_t want[] = {data[0], data[2], data[1], data[3]};
    assert_memory_equal(np_ptr(y), want, sizeof want);
    neap_free(y), neap_free(t), neap_free(x);
}

/* Transposes of many sizes and item sizes, alone and in batches: tiles, edges, small ones. */
static void transposes(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    static const neap_dtype types[] = {NEAP_UINT8, NEAP_INT32, NEAP_FLOAT64, NEAP_BFLOAT16};
    static const int64_t sizes[] = {1, 7, 8, 63, 64, 65, 130};
    neap_set_num_threads(c, 2);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 7; j++) {
                int64_t rows = sizes[i], columns = sizes[j];
                neap_tensor *x = neap_empty(c, SHAPE(3, rows, columns), types[k], 0);
                for (int64_t e = 0; e < x->numel; e++)
                    np_store_int(types[k], np_ptr(x) + (size_t)e * np_itemsize(x), e % 127);
                neap_tensor *t =
                    window(x, 0, 3, (int64_t[]){3, columns, rows}, (int64_t[]){rows * columns, 1, columns});
                neap_tensor *y = np_contiguous_copy(c, t);
                assert_true(y->contiguous);
                for (int64_t e = 0; e < y->numel; e++) assert_true(at(y, e) == at(t, e));
                neap_free(y), neap_free(t), neap_free(x);
            }
}

static void broadcasts_the_source(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *y = neap_zeros(c, SHAPE(2, 3, 4), NEAP_FLOAT32, 0), *row = count_up(c, NEAP_INT32, SHAPE(4));
    neap_tensor *column = count_up(c, NEAP_FLOAT32, SHAPE(3, 1)),
                *wrong = count_up(c, NEAP_FLOAT32, SHAPE(3));
    assert_true(np_copy_into(c, y, row));
    for (int i = 0; i < 24; i++) assert_true(at(y, i) == i % 4);
    assert_true(np_copy_into(c, y, column));
    for (int i = 0; i < 24; i++) assert_true(at(y, i) == i / 4 % 3);
    assert_false(np_copy_into(c, y, wrong));
    expect_error(c, "E-SHAPE");
    assert_false(np_copy_into(c, row, y));
    expect_error(c, "E-SHAPE");
    neap_free(wrong), neap_free(column), neap_free(row), neap_free(y);
}

static void overlapping_copies_read_first(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(10));
    neap_tensor *head = window(x, 0, 1, (int64_t[]){9}, (int64_t[]){1}),
                *tail = window(x, 1, 1, (int64_t[]){9}, (int64_t[]){1});
    assert_true(np_copy_into(c, tail, head));
    for (int i = 0; i < 10; i++) assert_true(at(x, i) == (i ? i - 1 : 0));
    assert_true(np_copy_into(c, x, x));
    neap_tensor *m = count_up(c, NEAP_FLOAT32, SHAPE(3, 3));
    neap_tensor *mt = window(m, 0, 2, (int64_t[]){3, 3}, (int64_t[]){1, 3});
    assert_true(np_copy_into(c, m, mt));
    for (int i = 0; i < 9; i++) assert_true(at(m, i) == i % 3 * 3 + i / 3);
    neap_free(mt), neap_free(m), neap_free(tail), neap_free(head), neap_free(x);
}

static void fills_only_what_it_is_given(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = neap_zeros(c, SHAPE(4, 4), NEAP_BFLOAT16, 0);
    neap_tensor *middle = window(x, 5, 2, (int64_t[]){2, 2}, (int64_t[]){4, 1});
    assert_true(np_fill_value(c, middle, 3));
    for (int i = 0; i < 16; i++) assert_true(at(x, i) == (i == 5 || i == 6 || i == 9 || i == 10 ? 3 : 0));
    assert_true(np_fill_value(c, x, 2));
    assert_true(np_fill_zero(c, middle));
    for (int i = 0; i < 16; i++) assert_true(at(x, i) == (i == 5 || i == 6 || i == 9 || i == 10 ? 0 : 2));
    neap_free(middle), neap_free(x);
}

static void as_contiguous_copies_only_when_it_must(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(2, 3)), *same = np_as_contiguous(c, x, NEAP_FLOAT32);
    assert_ptr_equal(same, x);
    neap_tensor *other = np_as_contiguous(c, x, NEAP_INT8);
    assert_ptr_not_equal(other, x);
    assert_true(at(other, 5) == 5);
    neap_free(other), neap_free(same), neap_free(x);
}

static bool copy_things(neap_ctx *c)
{
    neap_tensor *x = neap_zeros(c, SHAPE(40, 40), NEAP_FLOAT32, 0), *t = NULL, *y = NULL;
    bool ok = x != NULL;
    if (ok) t = window(x, 0, 2, (int64_t[]){40, 40}, (int64_t[]){1, 40});
    ok = ok && t && np_copy_into(c, x, t);
    if (ok) y = np_contiguous_copy(c, t);
    ok = ok && y;
    neap_free(y), neap_free(t), neap_free(x);
    return ok;
}

static void no_failed_allocation_loses_anything(void **state) { every_allocation_fails(*state, copy_things); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(converts_every_pair),
        TEST(copies_64_bit_integers_exactly),
        TEST(transposes),
        TEST(broadcasts_the_source),
        TEST(overlapping_copies_read_first),
        TEST(fills_only_what_it_is_given),
        TEST(as_contiguous_copies_only_when_it_must),
        TEST(no_failed_allocation_loses_anything),
    };
    return cmocka_run_group_tests_name("tensor copies", tests, NULL, NULL);
}
