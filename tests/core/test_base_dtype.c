/* test_base_dtype.c - names and sizes, PyTorch's promotion, and conversions that round once to nearest even.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

static void names_and_sizes_agree(void **state)
{
    (void)state;
    static const struct {
        neap_dtype t;
        const char *name;
        size_t size;
        int kind;
    } all[] = {
        {NEAP_FLOAT32, "float32", 4, 2},   {NEAP_FLOAT64, "float64", 8, 2}, {NEAP_FLOAT16, "float16", 2, 2},
        {NEAP_BFLOAT16, "bfloat16", 2, 2}, {NEAP_INT64, "int64", 8, 1},     {NEAP_INT32, "int32", 4, 1},
        {NEAP_INT8, "int8", 1, 1},         {NEAP_UINT8, "uint8", 1, 1},     {NEAP_BOOL, "bool", 1, 0},
    };
    assert_int_equal(NEAP_N_DTYPES, sizeof all / sizeof all[0]);
    for (size_t i = 0; i < NEAP_N_DTYPES; i++) {
        neap_dtype parsed;
        assert_string_equal(all[i].name, neap_dtype_name(all[i].t));
        assert_int_equal(all[i].size, neap_dtype_size(all[i].t));
        assert_int_equal(all[i].kind, np_dtype_kind(all[i].t));
        assert_true(np_dtype_parse(all[i].name, &parsed) && parsed == all[i].t);
        assert_int_equal(all[i].kind == 2, np_is_float(all[i].t));
        assert_int_equal(all[i].kind == 1, np_is_int(all[i].t));
    }
    neap_dtype none;
    assert_false(np_dtype_parse("float", &none));
    assert_false(np_dtype_parse(NULL, &none));
}

/* The rules of which PyTorch's table is made, stated apart from the table. */
static neap_dtype promote_by_rules(neap_dtype a, neap_dtype b)
{
    if (a == b) return a;
    if (np_dtype_kind(a) != np_dtype_kind(b)) return np_dtype_kind(a) > np_dtype_kind(b) ? a : b;
    if (np_is_float(a)) return a == NEAP_FLOAT64 || b == NEAP_FLOAT64 ? NEAP_FLOAT64 : NEAP_FLOAT32;
    if (a == NEAP_INT64 || b == NEAP_INT64) return NEAP_INT64;
    return NEAP_INT32; /* with int32, and int8 with uint8 (no int16 here) */
}

static void promotion_is_pytorchs(void **state)
{
    (void)state;
    for (int a = 0; a < NEAP_N_DTYPES; a++)
        for (int b = 0; b < NEAP_N_DTYPES; b++)
            assert_string_equal(np_dtype_name(promote_by_rules((neap_dtype)a, (neap_dtype)b)),
                                np_dtype_name(np_promote((neap_dtype)a, (neap_dtype)b)));
    assert_int_equal(NEAP_FLOAT32, np_promote(NEAP_FLOAT16, NEAP_BFLOAT16));
    assert_int_equal(NEAP_FLOAT16, np_promote(NEAP_FLOAT16, NEAP_INT64));
    assert_int_equal(NEAP_INT64, np_promote(NEAP_INT64, NEAP_BOOL));
    assert_int_equal(NEAP_INT32, np_promote(NEAP_INT8, NEAP_UINT8));
}

static void rounding_cases_of_the_catalogue(void **state) /* uc-A22 */
{
    (void)state;
    assert_true(np_bf16_to_float(np_float_to_bf16(1.00390625f)) == 1.0f);
    assert_true(np_bf16_to_float(np_float_to_bf16(1.01171875f)) == 1.015625f);
    assert_true(np_half_to_float(np_float_to_half(65519.0f)) == 65504.0f);
    assert_true(isinf(np_half_to_float(np_float_to_half(65520.0f))));
    assert_true(np_half_to_float(np_float_to_half(2.98e-8f)) == 0.0f);
    assert_true(np_half_to_float(np_float_to_half(5.9604645e-8f)) == 5.9604645e-8f);
    assert_int_equal(0, np_float_to_half(0x1p-25f)); /* a tie between 0 and the smallest */
    assert_int_equal(1, np_float_to_half(0x1.000002p-25f));
    for (uint32_t payload = 1; payload < 0x800000u; payload += 4097) { /* NaN never turns into inf */
        assert_true(isnan(np_half_to_float(np_float_to_half(from_bits(0x7f800000u | payload)))));
        assert_true(isnan(np_bf16_to_float(np_float_to_bf16(from_bits(0xff800000u | payload)))));
    }
}

static void every_half_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = np_half_to_float((np_half)h), g = np_bf16_to_float((np_bf16)h);
        if (isnan(f)) assert_true(isnan(np_half_to_float(np_float_to_half(f))));
        else assert_int_equal(h, np_float_to_half(f));
        if (isnan(g)) assert_true(isnan(np_bf16_to_float(np_float_to_bf16(g))));
        else assert_int_equal(h, np_float_to_bf16(g));
    }
    assert_true(np_half_to_float(1) == 0x1p-24f);
    assert_true(np_half_to_float(0x3c00) == 1.0f);
    assert_true(np_half_to_float(0xfbff) == -65504.0f);
}

/* The value a finite half (or bfloat16) stands for, by its fields; the first infinity counts as the next
 * power. */
static double value_of(uint32_t bits, int mantissa, int bias)
{
    int e = (int)(bits >> mantissa);
    double m = (double)(bits & ((1u << mantissa) - 1)) / (double)(1u << mantissa);
    return e ? ldexp(1 + m, e - bias) : ldexp(m, 1 - bias);
}

/* Nearest even by bisection over the encodings of one sign: no bit arithmetic shared with the library. */
static uint32_t nearest(double v, int mantissa, int bias, uint32_t inf)
{
    double a = fabs(v);
    uint32_t low = 0, high = inf;
    if (a >= value_of(inf, mantissa, bias)) return inf;
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (value_of(mid, mantissa, bias) <= a) low = mid;
        else high = mid;
    }
    double below = a - value_of(low, mantissa, bias), above = value_of(high, mantissa, bias) - a;
    return below < above ? low : below > above ? high : low & 1 ? high : low;
}

static void half_precision_rounds_to_nearest_even(void **state)
{
    (void)state;
    uint64_t x = 0x853c49e6748fea9bu;
    for (int i = 0; i < 200000; i++) {
        uint64_t r = next_random(&x);
        float f = from_bits((uint32_t)r);
        if (i % 2) { /* around the range of half, often on ties */
            f = from_bits((uint32_t)(96 + r % 50) << 23 | ((uint32_t)(r >> 8) & 0x7ff000u) |
                          (i % 4 == 1 ? 0 : (uint32_t)(r >> 40) & 1));
        }
        if (isnan(f)) continue;
        uint32_t sign = signbit(f) ? 0x8000u : 0;
        assert_int_equal(sign | nearest(f, 10, 15, 0x7c00), np_float_to_half(f));
        assert_int_equal(sign | (isinf(f) ? 0x7f80 : nearest(f, 7, 127, 0x7f80)), np_float_to_bf16(f));
    }
}

static void float64_and_large_integers_round_once(void **state)
{
    (void)state;
    uint16_t h;
    np_store_double(NEAP_FLOAT16, &h, 1 + 0x1p-11 + 0x1p-40); /* just above a tie; float32 would land on it */
    assert_true(np_half_to_float(h) == 1 + 0x1p-10f);
    np_store_double(NEAP_FLOAT16, &h, -(1 + 0x1p-11 + 0x1p-40));
    assert_true(np_half_to_float(h) == -(1 + 0x1p-10f));
    np_store_double(NEAP_FLOAT16, &h, 1 + 0x1p-10 + 0x1p-11 - 0x1p-40); /* just below one */
    assert_true(np_half_to_float(h) == 1 + 0x1p-10f);
    np_store_double(NEAP_BFLOAT16, &h, 1e300);
    assert_true(np_bf16_to_float(h) == INFINITY);
    np_store_double(NEAP_FLOAT16, &h, 1e-300);
    assert_int_equal(0, h);
    np_store_double(NEAP_FLOAT16, &h, -INFINITY);
    assert_int_equal(0xfc00, h);
    np_store_double(NEAP_FLOAT16, &h, NAN);
    assert_true(isnan(np_half_to_float(h)));
    const int64_t tie = INT64_C(0x4040000000000000); /* 2^62 + 2^54: halfway between bfloat16 numbers */
    np_store_int(NEAP_BFLOAT16, &h, tie);
    assert_true(np_bf16_to_float(h) == 0x1p62f);
    np_store_int(NEAP_BFLOAT16, &h, tie + 1);
    assert_true(np_bf16_to_float(h) == 0x1.02p62f);
    np_store_int(NEAP_BFLOAT16, &h, -tie - 1);
    assert_true(np_bf16_to_float(h) == -0x1.02p62f);
    float f;
    np_store_int(NEAP_FLOAT32, &f, (INT64_C(1) << 53) + (INT64_C(1) << 29) + 1);
    if (getenv("NEAP_TEST_VALGRIND")) /* valgrind itself converts through double, and so rounds twice */
        assert_true(f == 0x1.000002p53f || f == 0x1p53f);
    else assert_true(f == 0x1.000002p53f);

    uint64_t x = 99;
    for (int i = 0; i < 100000; i++) {
        uint64_t r = next_random(&x),
                 u = (UINT64_C(1000) + r % 45) << 52 | (r >> 12 & (i % 2 ? UINT64_C(0xFFE0000000000) : ~0u));
        double v;
        memcpy(&v, &u, 8);
        np_store_double(NEAP_FLOAT16, &h, v);
        assert_int_equal(nearest(v, 10, 15, 0x7c00), h);
    }
}

static void floats_truncate_and_saturate(void **state)
{
    (void)state;
    static const struct {
        double v;
        int64_t i64;
        int32_t i32;
        int8_t i8;
        uint8_t u8;
        uint8_t boolean;
    } known[] = {
        {2.9, 2, 2, 2, 2, 1},
        {-2.9, -2, -2, -2, 0, 1},
        {-0.9, 0, 0, 0, 0, 1},
        {127.9, 127, 127, 127, 127, 1},
        {300.0, 300, 300, 127, 255, 1},
        {-1e30, INT64_MIN, INT32_MIN, -128, 0, 1},
        {1e30, INT64_MAX, INT32_MAX, 127, 255, 1},
        {0x1p63, INT64_MAX, INT32_MAX, 127, 255, 1},
        {0x1p31, INT64_C(1) << 31, INT32_MAX, 127, 255, 1},
        {256.0, 256, 256, 127, 255, 1},
        {INFINITY, INT64_MAX, INT32_MAX, 127, 255, 1},
        {NAN, 0, 0, 0, 0, 1},
        {-0.0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int64_t i64;
        int32_t i32;
        int8_t i8;
        uint8_t u8, b;
        np_store_double(NEAP_INT64, &i64, known[i].v);
        np_store_double(NEAP_INT32, &i32, known[i].v);
        np_store_double(NEAP_INT8, &i8, known[i].v);
        np_store_double(NEAP_UINT8, &u8, known[i].v);
        np_store_double(NEAP_BOOL, &b, known[i].v);
        assert_int_equal(known[i].i64, i64);
        assert_int_equal(known[i].i32, i32);
        assert_int_equal(known[i].i8, i8);
        assert_int_equal(known[i].u8, u8);
        assert_int_equal(known[i].boolean, b);
        assert_int_equal(known[i].i64, np_load_int(NEAP_FLOAT64, &known[i].v));
    }
    int64_t big = (INT64_C(1) << 62) + 1, back;
    np_store_int(NEAP_INT64, &back, np_load_int(NEAP_INT64, &big));
    assert_int_equal(big, back);
    int8_t wrapped;
    np_store_int(NEAP_INT8, &wrapped, 257);
    assert_int_equal(1, wrapped);
}

/* All 81 pairs: a strided, a dense and an element-wise conversion give the same bytes. */
static void runs_agree_with_elements(void **state)
{
    (void)state;
    enum { N = 37 };
    uint64_t x = 4711;
    for (int s = 0; s < NEAP_N_DTYPES; s++)
        for (int d = 0; d < NEAP_N_DTYPES; d++) {
            size_t ss = np_dtype_size((neap_dtype)s), ds = np_dtype_size((neap_dtype)d);
            _Alignas(8) unsigned char src[N * 8], spread[N * 24], dense[N * 8], strided[N * 24], one[8];
            for (int i = 0; i < N; i++) {
                double v = ((double)(next_random(&x) % 2001) - 1000) / 8;
                np_store_double((neap_dtype)s, src + (size_t)i * ss, i % 5 ? v : floor(v));
                memcpy(spread + (size_t)i * 3 * ss, src + (size_t)i * ss, ss);
            }
            np_convert((neap_dtype)d, dense, (int64_t)ds, (neap_dtype)s, src, (int64_t)ss, N);
            np_convert((neap_dtype)d, strided + (N - 1) * 2 * ds, -2 * (int64_t)ds, (neap_dtype)s, spread,
                       3 * (int64_t)ss, N);
            for (int i = 0; i < N; i++) {
                const void *from = src + (size_t)i * ss;
                if (np_is_float((neap_dtype)s))
                    np_store_double((neap_dtype)d, one, np_load_double((neap_dtype)s, from));
                else np_store_int((neap_dtype)d, one, np_load_int((neap_dtype)s, from));
                assert_memory_equal(one, dense + (size_t)i * ds, ds);
                assert_memory_equal(one, strided + (size_t)(N - 1 - i) * 2 * ds, ds);
            }
        }
    unsigned char bytes[3] = {0, 2, 255}, bools[3];
    np_convert(NEAP_BOOL, bools, 1, NEAP_BOOL, bytes, 1, 3); /* any nonzero byte is true, as 1 */
    assert_memory_equal("\0\1\1", bools, 3);
    uint32_t nan = 0x7fa00001u, copy;
    np_convert(NEAP_FLOAT32, &copy, 4, NEAP_FLOAT32, &nan, 4, 1);
    assert_int_equal(nan, copy);
    float v = 3, zero[4];
    np_convert(NEAP_FLOAT32, zero, 4, NEAP_FLOAT32, &v, 0, 4); /* stride 0 repeats */
    assert_true(zero[0] == 3 && zero[3] == 3);
    np_convert(NEAP_FLOAT32, NULL, 4, NEAP_FLOAT32, NULL, 4, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes_agree),
        cmocka_unit_test(promotion_is_pytorchs),
        cmocka_unit_test(rounding_cases_of_the_catalogue),
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(half_precision_rounds_to_nearest_even),
        cmocka_unit_test(float64_and_large_integers_round_once),
        cmocka_unit_test(floats_truncate_and_saturate),
        cmocka_unit_test(runs_agree_with_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
