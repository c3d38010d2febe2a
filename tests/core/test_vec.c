/* test_vec.c - the float mathematics of vec.h and vec_more.h against libm in double: within a few ulp on bit patterns
 * from all over the range, and the same special values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "ops/cpu/vec_more.h"
#include "ops/cpu/vec_trig.h"

typedef struct unary {
    const char *name;
    float (*f)(float);
    double (*exact)(double);
    double ulps, limit; /* limit: the largest |x|, 0: all */
} unary;
typedef struct binary {
    const char *name;
    float (*f)(float, float);
    double (*exact)(double, double);
    double ulps;
} binary;

/* Distance of y from the exact value, in units of the exact value's last place; 0: equal, also both NaN. */
static double distance(float y, double exact)
{
    float near = (float)exact;
    if (isnan(exact) || isnan(y)) return isnan(exact) && isnan(y) ? 0 : INFINITY;
    if (near == y) return near == 0 && signbit(near) != signbit(y) ? INFINITY : 0;
    if (isinf(y)) return (exact > 0) == (y > 0) && fabs(exact) > 0x1.fffff0p127 ? 1 : INFINITY;
    if (isinf(near)) return fabsf(y) > 0x1.fffff0p127f && (y > 0) == (near > 0) ? 1 : INFINITY;
    int e;
    frexp(exact, &e);
    double place = ldexp(1, e - 24);
    return fabs((double)y - exact) / (place < 0x1p-149 ? 0x1p-149 : place);
}

static const float specials[] = {
    0.0f,     -0.0f,   1.0f,     -1.0f,     0.5f,       -0.5f,          2.0f,         -2.0f,
    3.0f,     -3.0f,   10.0f,    -10.0f,    100.0f,     1000.0f,        88.7f,        89.0f,
    89.4f,    89.5f,   -104.0f,  128.0f,    -150.0f,    1e30f,          -1e30f,       FLT_MAX,
    -FLT_MAX, FLT_MIN, -FLT_MIN, 0x1p-149f, -0x1p-149f, 0x1p-140f,      INFINITY,     -INFINITY,
    NAN,      0x1p31f, 0x1p23f,  1.5f,      -1.5f,      0x1.fffffep-1f, 0x1.000002p0f};
enum { N_SPECIALS = sizeof specials / sizeof specials[0], N_RANDOM = 200000 };

/* All exponents alike, or numbers near 1: what functions are made for. */
static float pattern(uint64_t *state, bool near)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t u = (uint32_t)(*state >> 32);
    if (near) u = (u & 0x81ffffffu) + 0x3c000000u;
    return v_float(u);
}

static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

static void unary_functions_are_near_libm(void **state)
{
    (void)state;
    static const unary all[] = {
        {"exp", v_exp_f, exp, 2.1, 0},
        {"log", v_log_f, log, 2.1, 0},
        {"log1p", v_log1p_f, log1p, 2.1, 0},
        {"tanh", v_tanh_f, tanh, 2.1, 0},
        {"erf", v_erf_f, erf, 2.1, 0},
        {"sin", v_sin_f, sin, 1, 1e8},
        {"cos", v_cos_f, cos, 1, 1e8},
        {"tan", v_tan_f, tan, 1, 1e8},
        {"expm1", v_expm1_f, expm1, 3, 0},
        {"exp2", v_exp2_f, exp2, 3, 0},
        {"log2", v_log2_f, log2, 3, 0},
        {"log10", v_log10_f, log10, 3, 0},
        {"sinh", v_sinh_f, sinh, 3, 0},
        {"cosh", v_cosh_f, cosh, 3, 0},
        {"asinh", v_asinh_f, asinh, 3, 0},
        {"acosh", v_acosh_f, acosh, 3, 0},
        {"atanh", v_atanh_f, atanh, 3, 0},
        {"asin", v_asin_f, asin, 3, 0},
        {"acos", v_acos_f, acos, 3, 0},
        {"atan", v_atan_f, atan, 3, 0},
        {"softplus", v_softplus_f, softplus, 3, 0},
    };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        const unary *u = &all[k];
        uint64_t seed = 1;
        double worst = 0, at = 0;
        for (int i = 0; i < N_SPECIALS + N_RANDOM; i++) {
            float x = i < N_SPECIALS ? specials[i] : pattern(&seed, i & 1);
            if (u->limit && !(fabs((double)x) < u->limit)) continue;
            double d = distance(u->f(x), u->exact((double)x));
            if (d > worst) worst = d, at = (double)x;
        }
        if (worst > u->ulps) fail_msg("%s(%a): %g ulp", u->name, at, worst);
    }
}

static void the_normal_distribution_is_right_to_2e_7(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (int i = 0; i < N_SPECIALS + N_RANDOM; i++) {
        float x = i < N_SPECIALS ? specials[i] : pattern(&seed, true), y = v_normal_f(x);
        double exact = 0.5 * erfc(-(double)x * 0.70710678118654752440);
        if (isnan(x) ? !isnan(y) : !(fabs((double)y - exact) < 2e-7))
            fail_msg("v_normal(%a) = %a", (double)x, (double)y);
        if (fabsf(x) > 6) assert_true(y == (x > 0));
    }
}

static float remainder_f(float a, float b) { return v_mod_sign_f(fmodf(a, b), b); }

static void binary_functions_are_near_libm(void **state)
{
    (void)state;
    static const binary all[] = {{"pow", v_pow_f, pow, 0.51},
                                 {"atan2", v_atan2_f, atan2, 3},
                                 {"hypot", v_hypot_f, hypot, 0.51},
                                 {"remainder", remainder_f, v_mod_d, 0.51}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        uint64_t seed = 2;
        double worst = 0, at[2] = {0};
        for (int i = 0; i < N_SPECIALS * N_SPECIALS + N_RANDOM; i++) {
            bool random = i >= N_SPECIALS * N_SPECIALS;
            float a = random ? pattern(&seed, i & 1) : specials[i % N_SPECIALS];
            float b = random ? pattern(&seed, i & 2) : specials[i / N_SPECIALS];
            double d = distance(all[k].f(a, b), all[k].exact((double)a, (double)b));
            if (d > worst) worst = d, at[0] = (double)a, at[1] = (double)b;
        }
        if (worst > all[k].ulps) fail_msg("%s(%a, %a): %g ulp", all[k].name, at[0], at[1], worst);
    }
}

static void the_fast_remainder_is_exact(void **state)
{
    (void)state;
    uint64_t seed = 3;
    int fit = 0;
    for (int i = 0; i < N_SPECIALS * N_SPECIALS + 2 * N_RANDOM; i++) {
        bool random = i >= N_SPECIALS * N_SPECIALS;
        float a = random ? pattern(&seed, i & 1) : specials[i % N_SPECIALS];
        float b = random ? pattern(&seed, i & 1) : specials[i / N_SPECIALS];
        if (i % 5 == 0) a = (float)(int)(a * 1000) * b; /* a multiple, or next to one */
        if (!v_fmod_fits(a, b)) continue;
        fit++;
        float y = v_fmod_f(a, b), m = fmodf(a, b);
        if (v_bits(y) != v_bits(m))
            fail_msg("fmod(%a, %a) = %a, not %a", (double)a, (double)b, (double)y, (double)m);
    }
    assert_true(fit > N_RANDOM);
}

static void whole_powers_have_whole_logarithms(void **state)
{
    (void)state;
    float ten = 1;
    for (int k = 0; k <= 10; k++, ten *= 10) assert_true(v_log10_f(ten) == (float)k);
    for (int k = -149; k <= 127; k++) {
        assert_true(v_log2_f(ldexpf(1, k)) == (float)k);
        assert_true(v_exp2_f((float)k) == ldexpf(1, k));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_functions_are_near_libm),
        cmocka_unit_test(the_normal_distribution_is_right_to_2e_7),
        cmocka_unit_test(binary_functions_are_near_libm),
        cmocka_unit_test(the_fast_remainder_is_exact),
        cmocka_unit_test(whole_powers_have_whole_logarithms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
