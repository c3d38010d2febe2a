/* vec_more.h - the mathematics of vec.h, for the functions that few files need: by the same rules, branch-free, with
 * errors within 3 ulp, special values as in libm. Double goes through libm.
 * What goes through double inside (pow, hypot, remainders) is rounded once, and the remainders are exact. */
#ifndef NP_VEC_MORE_H
#define NP_VEC_MORE_H

#include "ops/cpu/vec.h"

/* ---- exponentials */

/* e^r - 1 for |r| <= ln2 / 2. */
static inline float v_expm1_near(float r)
{
    float s = 1.990760502e-04f;
    s = np_fma(s, r, 1.393367653e-03f);
    s = np_fma(s, r, 8.333286270e-03f);
    s = np_fma(s, r, 4.166646302e-02f);
    s = np_fma(s, r, 1.666666716e-01f);
    s = np_fma(s, r, 0.5f);
    return np_fma(s, r * r, r);
}
/* e^x = 2^n (1 + p) by n = round(x / ln2); q is 2^n / 4, so that sinh and cosh do not overflow before their result. */
static inline void v_exp_parts(float x, float *p, float *q)
{
    x = v_clamp_f(x, -80.0f, 89.6f);
    float t = np_fma(x, 1.44269504088896341f, 12582912.0f); /* 1.5 * 2^23: n sits in the low bits */
    float k = t - 12582912.0f;
    float r = np_fma(k, -0.693359375f, x);
    r = np_fma(k, 2.12194440e-4f, r);
    *p = v_expm1_near(r);
    *q = v_float((v_bits(t) - 0x4b400000u + 125u) << 23);
}
static inline float v_expm1_f(float x)
{
    float p, q;
    v_exp_parts(x, &p, &q);
    float y = 4.0f * np_fma(p, q, q - 0.25f);
    return v_sel_f(fabsf(x) < 0x1p-24f, x, y);
}
/* With t = e^|x| - 1: sinh = (t + t / (t + 1)) / 2. */
static inline float v_sinh_f(float x)
{
    float p, q, a = fabsf(x);
    v_exp_parts(a, &p, &q);
    float t = np_fma(p, q, q - 0.25f); /* a quarter */
    float small = v_min_f(t, 0x1p30f);
    float y = copysignf(np_fma(2.0f, t, 2.0f * small / (4.0f * small + 1.0f)), x);
    return v_sel_f(a < 0x1p-12f, x, y);
}
static inline float v_cosh_f(float x)
{
    float p, q;
    v_exp_parts(fabsf(x), &p, &q);
    float e = np_fma(p, q, q); /* a quarter */
    return np_fma(2.0f, e, 0.125f / e);
}
static inline float v_exp2_f(float x)
{
    x = v_clamp_f(x, -151.0f, 129.0f);
    float t = x + 12582912.0f, r = x - (t - 12582912.0f);
    int32_t n = (int32_t)(v_bits(t) - 0x4b400000u), h = n >> 1;
    float p = 1.535336188e-04f; /* 2^r (Cephes) */
    p = np_fma(p, r, 1.339887440e-03f);
    p = np_fma(p, r, 9.618437357e-03f);
    p = np_fma(p, r, 5.550332471e-02f);
    p = np_fma(p, r, 2.402264791e-01f);
    p = np_fma(p, r, 6.931472029e-01f);
    p = np_fma(p, r, 1.0f);
    return p * v_float((uint32_t)(h + 127) << 23) * v_float((uint32_t)(n - h + 127) << 23);
}

/* ---- logarithms: x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)) */

static inline float v_log_parts(float x, float *k)
{
    bool tiny = x < 1.17549435e-38f;
    uint32_t u = v_bits(v_sel_f(tiny, x * 0x1p25f, x)) + (0x3f800000u - 0x3f3504f3u);
    *k = (float)((int32_t)(u >> 23) - 127) - v_sel_f(tiny, 25.0f, 0.0f);
    return v_log_tail(v_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f, 0.0f, 0.0f);
}
static inline float v_log_special(float x, float l)
{
    l = v_sel_f(x == 0, -INFINITY, l);
    l = v_sel_f(x < 0, NAN, l);
    return v_sel_f((x != x) | (x == INFINITY), x, l);
}
static inline float v_log2_f(float x)
{
    float k, l = v_log_parts(x, &k);
    return v_log_special(x, k + np_fma(l, 1.44269502f, l * 1.92596303e-8f));
}
static inline float v_log10_f(float x)
{
    float k, l = v_log_parts(x, &k);
    float low = np_fma(k, 7.9034151e-7f, l * 0.434294482f);
    return v_log_special(x, np_fma(k, 0.30102920532f, low));
}

/* ---- the inverse hyperbolic functions, by log1p */

/* log1p(u) with ln2 added where x is large: sqrt(x^2 +- 1) is x there, and the square would overflow. */
static inline float v_log1p_or_twice(float x, float u)
{
    bool large = x > 0x1p30f;
    return v_log1p_f(v_sel_f(large, x, u)) + v_sel_f(large, 0.693147180559945309f, 0.0f);
}
static inline float v_asinh_f(float x)
{
    float a = fabsf(x), z = a * a;
    return copysignf(v_log1p_or_twice(a, a + z / (1.0f + __builtin_sqrtf(z + 1.0f))), x);
}
static inline float v_acosh_f(float x)
{
    float t = x - 1.0f, y = v_log1p_or_twice(x, t + __builtin_sqrtf(t * t + 2.0f * t));
    return v_sel_f(x < 1.0f, NAN, y);
}
static inline float v_atanh_f(float x)
{
    float a = fabsf(x);
    return copysignf(0.5f * v_log1p_f((a + a) / (1.0f - a)), x);
}

/* ---- inverse trigonometric functions */

/* asin x for |x| <= 1/2, as x + x z P(z) with z = x^2. */
static inline float v_asin_near(float x, float z)
{
    float p = 3.833726794e-02f;
    p = np_fma(p, z, 2.642942593e-02f);
    p = np_fma(p, z, 4.502074420e-02f);
    p = np_fma(p, z, 7.498759031e-02f);
    p = np_fma(p, z, 1.666667312e-01f);
    return np_fma(p * z, x, x);
}
/* Beyond 1/2: pi/2 - 2 asin sqrt((1 - |x|) / 2). */
static inline float v_asin_f(float x)
{
    float a = fabsf(x), half = 0.5f * (1.0f - a);
    bool far = a > 0.5f;
    float z = v_sel_f(far, half, a * a), w = v_sel_f(far, __builtin_sqrtf(half), a);
    float r = v_asin_near(w, z);
    return copysignf(v_sel_f(far, 1.57079637f - (r + r + 4.37113883e-8f), r), x);
}
static inline float v_acos_f(float x)
{
    float a = fabsf(x), half = 0.5f * (1.0f - a);
    bool far = a > 0.5f;
    float z = v_sel_f(far, half, a * a), w = v_sel_f(far, __builtin_sqrtf(half), a);
    float r = v_asin_near(w, z);
    float near = 1.57079637f - (copysignf(r, x) + 4.37113883e-8f);
    float below = 3.14159274f - (r + r + 8.74227766e-8f);
    return v_sel_f(far, v_sel_f(x < 0, below, r + r), near);
}

/* atan of low / high for 0 <= low <= high, and pi/2 minus it where `turned`. */
static inline float v_atan_near(float w, bool turned)
{
    float z = w * w, p = -2.508478239e-03f;
    p = np_fma(p, z, 1.399609540e-02f);
    p = np_fma(p, z, -3.666966036e-02f);
    p = np_fma(p, z, 6.318167597e-02f);
    p = np_fma(p, z, -8.689020574e-02f);
    p = np_fma(p, z, 1.104202941e-01f);
    p = np_fma(p, z, -1.427961588e-01f);
    p = np_fma(p, z, 1.999979019e-01f);
    p = np_fma(p, z, -3.333333135e-01f);
    float r = np_fma(p * z, w, w);
    return v_sel_f(turned, 1.57079637f - (r + 4.37113883e-8f), r);
}
static inline float v_atan_f(float x)
{
    float a = fabsf(x);
    bool turned = a > 1.0f;
    return copysignf(v_atan_near(v_sel_f(turned, 1.0f, a) / v_sel_f(turned, a, 1.0f), turned), x);
}
static inline float v_atan2_f(float y, float x)
{
    float ay = fabsf(y), ax = fabsf(x);
    bool turned = ay > ax;
    float low = v_sel_f(turned, ax, ay), high = v_sel_f(turned, ay, ax);
    float w = (float)((double)low / (double)high); /* in double: a denormal quotient keeps its bits */
    w = v_sel_f(high == 0, 0.0f, w);
    w = v_sel_f(low == INFINITY, 1.0f, w); /* both */
    float r = v_atan_near(w, turned);
    bool left = (v_bits(x) >> 31) != 0;
    r = v_sel_f(left, 3.14159274f - (r + 8.74227766e-8f), r);
    return v_sel_f((x != x) | (y != y), x + y, copysignf(r, y));
}

/* ---- two operands, through double */

static inline float v_hypot_f(float a, float b)
{
    float y = (float)__builtin_sqrt((double)a * (double)a + (double)b * (double)b);
    return v_sel_f((fabsf(a) == INFINITY) | (fabsf(b) == INFINITY), INFINITY, y);
}

/* x^y = 2^(y log2 |x|): log2 m = s P(s^2) with s = (m - 1) / (m + 1) for m in [sqrt(1/2), sqrt(2)). Without AVX2 gcc
 * leaves this scalar, and libm is faster. */
#if NP_ISA == 0
static inline float v_pow_f(float x, float y) { return powf(x, y); }
#else
static inline float v_pow_f(float x, float y)
{
    double a = (double)fabsf(x), b = (double)y;
    uint64_t u = v_bits_d(a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double k = v_double((u >> 52) | 0x4330000000000000u) - 0x1.00000000003ffp52;
    double m = v_double((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0.28290824659868241;
    p = p * z + 0.31990509898668784;
    p = p * z + 0.41220926780396538;
    p = p * z + 0.57707794220384834;
    p = p * z + 0.96179669411390967;
    p = p * z + 2.88539008177784773;
    double l = k + s * p;
    l = v_sel_d(a == 0, -(double)INFINITY, l);
    l = v_sel_d(!(a < (double)INFINITY), a, l);
    double e = b * l;
    e = v_sel_d(e < -200, -200.0, e);
    e = v_sel_d(e > 200, 200.0, e);
    double t = e + 0x1.8p52, r = e - (t - 0x1.8p52);
    p = 1.53100693880726946e-05;
    p = p * r + 1.54614471600567592e-04;
    p = p * r + 1.33334545909717661e-03;
    p = p * r + 9.61805667083188640e-03;
    p = p * r + 5.55041092871618735e-02;
    p = p * r + 2.40226509223368190e-01;
    p = p * r + 6.93147180553721487e-01;
    p = p * r + 1.0;
    float v = (float)v_double(v_bits_d(p) + (v_bits_d(t) << 52));
    v = v_sel_f((x != x) | (y != y), x + y, v);
    bool whole = v_trunc_f(y) == y, even = v_trunc_f(0.5f * y) == 0.5f * y;
    bool minus = (v_bits(x) >> 31) != 0;
    v = v_float(v_bits(v) ^ ((uint32_t)(minus & whole & !even) << 31));
    v = v_sel_f((x < 0) & (x > -INFINITY) & !whole, NAN, v);
    return v_sel_f((y == 0) | (x == 1.0f) | ((x == -1.0f) & (fabsf(y) == INFINITY)), 1.0f, v);
}
#endif

/* fmod where |a / b| < V_MOD_MAX; loops send other pairs through libm. Exact: the quotient has 29 bits, b has 24, so
 * a - q b fits a double, and one step mends a quotient that was rounded up to the next integer. */
#define V_MOD_MAX 0x1p29f
static inline bool v_fmod_fits(float a, float b)
{
    return (fabsf(a) < V_MOD_MAX * fabsf(b)) & (fabsf(b) < INFINITY);
}
static inline float v_fmod_f(float a, float b)
{
    double x = (double)fabsf(a), y = (double)fabsf(b);
    double q = x / y + 0x1p52 - 0x1p52; /* to the nearest */
    double r = x - q * y;
    r = v_sel_d(r < 0, r + y, r);
    return copysignf((float)r, a);
}
/* The remainder has the sign of the divisor, as in Lua. m: fmod(a, b). */
static inline float v_mod_sign_f(float m, float b)
{
    return v_sel_f(((m > 0) & (b < 0)) | ((m < 0) & (b > 0)), m + b, m);
}
static inline double v_mod_d(double a, double b)
{
    double m = fmod(a, b);
    return (m > 0 ? b < 0 : (m < 0 && b != m && b > 0)) ? m + b : m;
}

#endif
