/* test_products.c - the product door (every dtype, layout and provider gives the plain sum; threads change no bit),
 * the texts of the losses and positions, and the optimizer sweeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ops/cpu/gemm.h"
#include "ops/op.h"
#include "test_steps.h"

static neap_ctx *new_ctx(int threads)
{
    neap_ctx_opts o = {.size = sizeof o, .threads = threads};
    neap_ctx *c = neap_ctx_new(&o);
    assert_non_null(c);
    return c;
}

static unsigned state = 1;
static double draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (double)(int)(state >> 24) / 64 - 2;
}

static neap_tensor *filled(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype t)
{
    neap_tensor *x = neap_zeros(c, ndim, shape, t, 0);
    assert_non_null(x);
    for (int64_t i = 0; i < x->numel; i++) {
        double v = np_is_float(t) ? draw() : (double)(int)draw();
        np_store_double(t, np_ptr(x) + (size_t)i * np_itemsize(x), v);
    }
    return x;
}

static double element(const neap_tensor *x, int64_t i, int64_t j)
{
    return np_load_double((neap_dtype)x->dtype,
                          np_ptr(x) + (i * x->stride[0] + j * x->stride[1]) * (int64_t)np_itemsize(x));
}

/* (rows, cols) in one of four layouts: rows, columns, every second element of both, one row repeated. */
static neap_tensor *laid_out(neap_ctx *c, int layout, int64_t rows, int64_t cols, neap_dtype t)
{
    const int64_t big[2] = {2 * rows, 2 * cols}, plain[2] = {rows, cols}, flip[2] = {cols, rows},
                  one[2] = {1, cols};
    int64_t stride[2];
    neap_tensor *base = filled(c, 2, layout == 0 ? plain : layout == 1 ? flip : layout == 2 ? big : one, t);
    stride[0] = layout == 0 ? cols : layout == 1 ? 1 : layout == 2 ? 4 * cols : 0;
    stride[1] = layout == 1 ? rows : layout == 2 ? 2 : 1;
    neap_tensor *v = np_tensor_view(base, 2, plain, stride, 0);
    assert_non_null(v);
    neap_free(base);
    return v;
}

static void check_product(neap_ctx *c, int la, int lb, int64_t M, int64_t N, int64_t K, neap_dtype t)
{
    neap_tensor *a = laid_out(c, la, M, K, t), *b = laid_out(c, lb, K, N, t), *y = neap_matmul(c, a, b);
    if (!y) fail_msg("%s", neap_error_message(c));
    double tol = t == NEAP_FLOAT64 ? 1e-12 : t == NEAP_FLOAT32 ? 1e-5 : 1e-2;
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < N; j++) {
            double s = 0, size = 1;
            for (int64_t k = 0; k < K; k++)
                s += element(a, i, k) * element(b, k, j), size += fabs(element(a, i, k) * element(b, k, j));
            if (t == NEAP_INT8) s = (int8_t)(int64_t)s;
            if (t == NEAP_UINT8) s = (uint8_t)(int64_t)s;
            if (fabs(element(y, i, j) - s) > tol * size)
                fail_msg("%s layouts %d %d, %dx%dx%d at %d,%d: %g, should be %g", np_dtype_name(t), la, lb,
                         (int)M, (int)N, (int)K, (int)i, (int)j, element(y, i, j), s);
        }
    }
    neap_free(a);
    neap_free(b);
    neap_free(y);
}

static void check_all_products(neap_ctx *c)
{
    static const int64_t sizes[][3] = {{1, 1, 1},   {7, 5, 3},     {1, 19, 300}, {70, 1, 33},
                                       {33, 47, 0}, {65, 31, 530}, {2, 600, 20}, {530, 3, 9}};
    static const neap_dtype types[] = {NEAP_FLOAT32, NEAP_FLOAT64, NEAP_FLOAT16, NEAP_BFLOAT16,
                                       NEAP_INT64,   NEAP_INT32,   NEAP_INT8,    NEAP_UINT8};
    enum { SIZES = sizeof sizes / sizeof *sizes, TYPES = sizeof types / sizeof *types };
    const int all = SIZES * TYPES * 16,
              step = all / test_steps(all) | 1; /* odd: every size, dtype and layout occurs */
    for (int k = 0; k < all; k += step) {
        const int64_t *s = sizes[k % SIZES];
        int l = k / (SIZES * TYPES);
        check_product(c, l / 4, l % 4, s[0], s[1], s[2], types[k / SIZES % TYPES]);
    }
}

static void every_layout_gives_the_plain_sum(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(2);
    check_all_products(c);
    neap_ctx_free(c);
}

/* Which library the next contexts open. NULL: again what it was before, as a checker may have said "none". */
static void use_blas(const char *library)
{
    static char before[256];
    static bool was_set;
    const char *now = getenv("NEAP_BLAS");
    if (library) {
        was_set = now != NULL;
        snprintf(before, sizeof before, "%s", now ? now : "");
        setenv("NEAP_BLAS", library, 1);
    } else if (was_set) setenv("NEAP_BLAS", before, 1);
    else unsetenv("NEAP_BLAS");
}

static void own_kernel_gives_the_plain_sum(void **st)
{
    (void)st;
    use_blas("none");
    for (int level = 0; level <= np_cpu_best_level(); level++) {
        neap_ctx *c = new_ctx(2);
        c->isa = level;
        check_all_products(c);
        assert_string_equal(np_blas_describe(c), "own kernel");
        neap_ctx_free(c);
    }
    use_blas(NULL);
}

static void a_missing_library_is_no_error(void **st)
{
    (void)st;
    use_blas("/nonexistent/libblas.so");
    neap_ctx *c = new_ctx(1);
    check_product(c, 0, 0, 20, 20, 20, NEAP_FLOAT32);
    assert_string_equal(np_blas_describe(c), "own kernel");
    neap_ctx_free(c);
    use_blas(NULL);
}

static uint64_t product_hash(int threads, int64_t M, int64_t N, int64_t K, neap_dtype t)
{
    neap_ctx *c = new_ctx(threads);
    uint64_t h = 0;
    state = 7;
    neap_tensor *a = filled(c, 2, (int64_t[]){M, K}, t), *b = filled(c, 2, (int64_t[]){K, N}, t),
                *y = neap_matmul(c, a, b);
    assert_int_equal(neap_hash(c, y, &h), 0);
    neap_free(a);
    neap_free(b);
    neap_free(y);
    neap_ctx_free(c);
    return h;
}

static void threads_change_no_bit(void **st)
{
    (void)st;
    static const int64_t sizes[][3] = {
        {256, 256, 256}, {300, 700, 129}, {1, 3000, 257}, {1000, 1, 257}, {40, 40, 5000}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int t = NEAP_FLOAT32; t <= NEAP_BFLOAT16; t++) {
            uint64_t one = product_hash(1, sizes[s][0], sizes[s][1], sizes[s][2], (neap_dtype)t);
            for (int n = 2; n <= 5; n++)
                assert_true(one == product_hash(n, sizes[s][0], sizes[s][1], sizes[s][2], (neap_dtype)t));
        }
}

/* The bytes of a product are its result's, under a limit of just as many, whoever computes, with any number of
 * threads and in any layout; what the operands are packed into is told apart. */
static void check_bytes(int threads, neap_dtype t, int layout)
{
    neap_ctx *c = new_ctx(threads);
    neap_tensor *a = laid_out(c, layout, 300, 70, t), *b = laid_out(c, layout, 70, 200, t);
    neap_memory before = {.size = sizeof before}, after = before;
    assert_int_equal(neap_memory_stats(c, 0, &before), 0);
    int64_t bytes = 300 * 200 * (int64_t)np_dtype_size(t);
    neap_reset_peak(c, 0);
    assert_int_equal(neap_memory_limit(c, 0, before.live + bytes), 0);
    neap_tensor *y = neap_matmul(c, a, b);
    if (!y) fail_msg("%s", neap_error_message(c));
    assert_int_equal(neap_memory_stats(c, 0, &after), 0);
    assert_int_equal(before.live + bytes, after.peak);
    assert_int_equal(before.live + bytes, after.live);
    bool own = strcmp(np_blas_describe(c), "own kernel") == 0;
    bool blas_takes_it = !own && layout < 2 && (t == NEAP_FLOAT32 || t == NEAP_FLOAT64);
    assert_true((after.scratch > 0) == !blas_takes_it);
    assert_int_equal(neap_memory_limit(c, 0, before.live), 0);
    assert_null(neap_matmul(c, a, b));
    assert_int_equal(neap_error(c), NEAP_E_LIMIT);
    neap_clear_error(c);
    neap_free(a);
    neap_free(b);
    neap_free(y);
    neap_ctx_free(c);
}

static void the_peak_is_the_results_bytes(void **st)
{
    (void)st;
    for (int k = 0; k < 2 * 4 * 4 * 3; k++) {
        if (k % 2) use_blas("none");
        check_bytes(1 + k / 2 % 3, (neap_dtype)(NEAP_FLOAT32 + k / 6 % 4), k / 24);
        if (k % 2) use_blas(NULL);
    }
}

static void old_results_are_not_read(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(1);
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 1, 1, 1, 1, 1}, y[4] = {NAN, NAN, NAN, NAN};
    np_gemm_args g = {.dtype = NEAP_FLOAT32,
                      .M = 2,
                      .N = 2,
                      .K = 3,
                      .a = {a, 3, 1, {0}},
                      .b = {b, 2, 1, {0}},
                      .c = {y, 2, 1, {0}},
                      .alpha = 1};
    assert_true(np_gemm(c, &g));
    assert_true(y[0] == 6 && y[3] == 15);
    g.beta = 1, g.alpha = 2;
    assert_true(np_gemm(c, &g) && y[0] == 18 && y[3] == 45);
    g.K = 0, g.beta = 0;
    y[1] = NAN;
    assert_true(np_gemm(c, &g) && y[0] == 0 && y[1] == 0);
    neap_ctx_free(c);
}

static void expect_error(neap_ctx *c, neap_tensor *y, neap_code code, const char *part)
{
    assert_null(y);
    if (neap_error(c) != code || !strstr(neap_error_message(c), part))
        fail_msg("%s: %s", neap_code_name(neap_error(c)), neap_error_message(c));
    neap_clear_error(c);
}

static void mistakes_are_explained(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(1);
    neap_tensor *x = filled(c, 2, (int64_t[]){64, 128}, NEAP_FLOAT32),
                *w = filled(c, 2, (int64_t[]){10, 128}, NEAP_FLOAT32);
    int64_t three[3] = {0, 3, 1};
    neap_tensor *ids = neap_from_data(c, 1, (int64_t[]){3}, NEAP_INT64, three),
                *scores = filled(c, 2, (int64_t[]){3, 3}, NEAP_FLOAT32);
    expect_error(c, neap_matmul(c, x, w), NEAP_E_SHAPE,
                 "inner sizes differ: [64,128] x [10,128] (float32, cpu): 128 must equal 10; did you mean "
                 "b:t() for the second operand?");
    expect_error(
        c, neap_cross_entropy(c, scores, ids, NULL, 1, 1), NEAP_E_LABEL,
        "target[0] is 0, but with 3 classes labels are 1..3; for labels that count from 0 pass {base = 0}");
    expect_error(c, neap_cross_entropy(c, scores, ids, NULL, 1, 0), NEAP_E_LABEL,
                 "target[1] is 3, but with 3 classes labels are 0..2");
    expect_error(c, neap_embedding(c, scores, ids, 1, NULL), NEAP_E_LABEL, "base = 0");
    expect_error(c, neap_index_select(c, scores, 0, ids, 1), NEAP_E_INDEX, "count from 1");
    expect_error(c, neap_gather(c, scores, 1, ids, 0), NEAP_E_SHAPE, "as many dimensions");
    float first = NP_DATA(float, scores)[0];
    expect_error(c, neap_index_add_(c, scores, 0, ids, scores, 0), NEAP_E_INDEX, "ids[1] is 3");
    assert_true(NP_DATA(float, scores)[0] ==
                first); /* the good position before the bad one was not written */
    neap_free(x);
    neap_free(w);
    neap_free(ids);
    neap_free(scores);
    neap_ctx_free(c);
}

static void ignored_rows_do_not_count(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(1);
    float x[6] = {2, 1, 0, 5, 5, 5};
    int64_t label[2] = {0, -100}, none[2] = {-100, -100}, skip = -100;
    double v;
    neap_tensor *s = neap_from_data(c, 2, (int64_t[]){2, 3}, NEAP_FLOAT32, x),
                *t = neap_from_data(c, 1, (int64_t[]){2}, NEAP_INT64, label),
                *n = neap_from_data(c, 1, (int64_t[]){2}, NEAP_INT64, none);
    assert_int_equal(neap_set_requires_grad(c, s, 1), 0);
    neap_tensor *l = neap_cross_entropy(c, s, t, &skip, 1, 0), *z = neap_cross_entropy(c, s, n, &skip, 1, 0);
    assert_int_equal(neap_item(c, l, &v), 0);
    assert_true(fabs(v - 0.4076059644) < 1e-6);
    assert_int_equal(neap_item(c, z, &v), 0);
    assert_true(v == 0);
    assert_int_equal(neap_backward(c, l, NULL, NULL), 0);
    neap_tensor *g = neap_grad_of(s);
    assert_true(fabs(NP_DATA(float, g)[0] + 0.3347590442f) < 1e-6f && NP_DATA(float, g)[3] == 0);
    neap_tensor *all[] = {s, t, n, l, z, g};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neap_free(all[i]);
    neap_ctx_free(c);
}

static void adamw_follows_the_paper(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(2);
    const int64_t n = 100000;
    for (int t = NEAP_FLOAT32; t <= NEAP_BFLOAT16; t++) {
        neap_tensor *p = neap_full(c, 1, &n, 1, (neap_dtype)t, 0),
                    *g = neap_full(c, 1, &n, 0.5, (neap_dtype)t, 0),
                    *m = neap_zeros(c, 1, &n, (neap_dtype)t, 0), *v = neap_zeros(c, 1, &n, (neap_dtype)t, 0),
                    *none = NULL;
        neap_adamw o = {sizeof o, 0.1, 0.9, 0.999, 1e-8, 0.01, 1, 1};
        assert_int_equal(neap_adamw_step(c, &o, 1, &p, &g, &m, &v, NULL), 0);
        double x = np_load_double((neap_dtype)t, np_ptr(p) + (size_t)(n - 1) * np_itemsize(p));
        assert_true(fabs(x - 0.899) < (t >= NEAP_FLOAT16 ? 4e-3 : 1e-6)); /* 1 - lr wd - lr */
        assert_true(neap_tensor_version(p) > 0 && neap_tensor_version(m) > 0);
        assert_int_equal(neap_adamw_step(c, &o, 1, &p, &none, &m, &v, NULL), 0); /* no gradient: skipped */
        assert_true(x == np_load_double((neap_dtype)t, np_ptr(p)));
        neap_free(p), neap_free(g), neap_free(m), neap_free(v);
    }
    neap_ctx_free(c);
}

static void a_bad_list_changes_nothing(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(1);
    const int64_t three = 3, four = 4;
    neap_tensor *p[2] = {neap_full(c, 1, &three, 1, NEAP_FLOAT32, 0),
                         neap_full(c, 1, &three, 1, NEAP_FLOAT32, 0)};
    neap_tensor *g[2] = {neap_full(c, 1, &three, 1, NEAP_FLOAT32, 0),
                         neap_full(c, 1, &four, 1, NEAP_FLOAT32, 0)};
    neap_sgd o = {sizeof o, 0.1, 0, 0, 0, 0, 0};
    assert_int_not_equal(neap_sgd_step(c, &o, 2, p, g, NULL), 0);
    assert_non_null(strstr(neap_error_message(c), "the gradient of parameter 1 is [4]"));
    neap_clear_error(c);
    assert_true(NP_DATA(float, p[0])[0] == 1 && neap_tensor_version(p[0]) == 0);
    assert_int_equal(neap_sgd_step(c, &o, 1, p, g, NULL), 0);
    assert_true(fabsf(NP_DATA(float, p[0])[0] - 0.9f) < 1e-7f);
    for (int i = 0; i < 2; i++) neap_free(p[i]), neap_free(g[i]);
    neap_ctx_free(c);
}

static void clipping_keeps_the_norm_finite(void **st)
{
    (void)st;
    neap_ctx *c = new_ctx(2);
    float pair[2] = {3, 4};
    const int64_t two = 2, hundred = 100;
    double norm, huge = 1e200;
    neap_tensor *g = neap_from_data(c, 1, &two, NEAP_FLOAT32, pair), *list[3] = {g, NULL, NULL};
    assert_int_equal(neap_clip_grad_norm(c, 2, list, 1, 1, &norm), 0);
    assert_true(norm == 5 && fabsf(NP_DATA(float, g)[0] - 0.59999988f) < 1e-7f &&
                fabsf(NP_DATA(float, g)[1] - 0.79999984f) < 1e-7f);
    list[1] = neap_full(c, 1, &hundred, 1e20, NEAP_FLOAT32, 0);
    assert_int_equal(neap_clip_grad_norm(c, 2, list, 1, 1, &norm), 0);
    assert_true(fabs(norm / 1e21 - 1) < 1e-6 && fabsf(NP_DATA(float, list[1])[7] - 0.1f) < 1e-6f);
    list[2] = neap_full(c, 1, &two, huge, NEAP_FLOAT64, 0); /* squares beyond double */
    assert_int_equal(neap_clip_grad_norm(c, 1, list + 2, 1, 1, &norm), 0);
    assert_true(fabs(norm / (huge * sqrt(2)) - 1) < 1e-12);
    NP_DATA(float, list[1])[3] = INFINITY;
    NP_DATA(float, g)[0] = 9;
    assert_int_not_equal(neap_clip_grad_norm(c, 2, list, 1, 1, &norm), 0);
    assert_non_null(strstr(neap_error_message(c), "gradient 1 holds inf"));
    neap_clear_error(c);
    assert_true(NP_DATA(float, g)[0] == 9);
    for (int i = 0; i < 3; i++) neap_free(list[i]);
    neap_ctx_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_plain_sum), cmocka_unit_test(own_kernel_gives_the_plain_sum),
        cmocka_unit_test(a_missing_library_is_no_error),    cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(the_peak_is_the_results_bytes),    cmocka_unit_test(old_results_are_not_read),
        cmocka_unit_test(mistakes_are_explained),           cmocka_unit_test(ignored_rows_do_not_count),
        cmocka_unit_test(adamw_follows_the_paper),          cmocka_unit_test(a_bad_list_changes_nothing),
        cmocka_unit_test(clipping_keeps_the_norm_finite),
    };
    return cmocka_run_group_tests_name("products, losses, optimizers", tests, NULL, NULL);
}
