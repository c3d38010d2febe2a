/* vec.h - the mathematics of pointwise kernels, written for one element so that the compiler vectorises it.
 *
 * Every float function here is branch-free: choices are bit masks (v_sel), never `?:` around arithmetic, because
 * the compiler may turn such a clamp into per-path constants and divide denormals (ten times slower). Errors are
 * within 2.1 ulp of the exact value (v_normal: 2e-7), and inf, NaN, -0 and denormals come out right. Double goes through libm.
 * np_fma is a real fused multiply-add from CPU level 1 on and two roundings below: the only place where the
 * bits of a CPU level differ. Names without suffix choose by the type of their argument.
 * Not here: what few files need (vec_more.h), loops (loops.h), anything that reads memory. */
#ifndef NP_VEC_H
#define NP_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef NP_ISA
#define NP_ISA 0
#endif

#if NP_ISA >= 1
#define np_fma(a, b, c) __builtin_fmaf(a, b, c)
#else
#define np_fma(a, b, c) ((a) * (b) + (c))
#endif

static inline uint32_t v_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float v_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint64_t v_bits_d(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
static inline double v_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* c ? a : b, as masks. */
static inline float v_sel_f(bool c, float a, float b)
{
    uint32_t m = 0u - (uint32_t)c;
    return v_float((v_bits(a) & m) | (v_bits(b) & ~m));
}
static inline double v_sel_d(bool c, double a, double b)
{
    uint64_t m = 0u - (uint64_t)c;
    return v_double((v_bits_d(a) & m) | (v_bits_d(b) & ~m));
}

/* NaN stays NaN in all of these. */
static inline float v_clamp_f(float x, float lo, float hi)
{
    x = v_sel_f(x < lo, lo, x);
    return v_sel_f(x > hi, hi, x);
}
static inline float v_relu_f(float x) { return v_sel_f(x <= 0, 0.0f, x); }
static inline double v_relu_d(double x) { return v_sel_d(x <= 0, 0.0, x); }
static inline float v_max_f(float a, float b) { return v_sel_f((a > b) | (a != a), a, b); }
static inline double v_max_d(double a, double b) { return v_sel_d((a > b) | (a != a), a, b); }
static inline float v_min_f(float a, float b) { return v_sel_f((a < b) | (a != a), a, b); }
static inline double v_min_d(double a, double b) { return v_sel_d((a < b) | (a != a), a, b); }
static inline float v_sign_f(float x) { return v_sel_f(x != x, x, (float)((x > 0) - (x < 0))); }
static inline double v_sign_d(double x) { return v_sel_d(x != x, x, (double)((x > 0) - (x < 0))); }

/* e^x: x = n ln2 + r, polynomial in r (Cephes), scaled in two steps so that denormals and overflow are right. */
static inline float v_exp_f(float x)
{
    x = v_clamp_f(x, -104.0f, 89.0f);
    float t = np_fma(x, 1.44269504088896341f, 12582912.0f); /* 1.5 * 2^23: n sits in the low bits */
    int32_t n = (int32_t)(v_bits(t) - 0x4b400000u);
    float k = t - 12582912.0f;
    float r = np_fma(k, -0.693359375f, x);
    r = np_fma(k, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = np_fma(p, r, 1.3981999507e-3f);
    p = np_fma(p, r, 8.3334519073e-3f);
    p = np_fma(p, r, 4.1665795894e-2f);
    p = np_fma(p, r, 1.6666665459e-1f);
    p = np_fma(p, r, 5.0000001201e-1f);
    p = np_fma(p, r * r, r) + 1.0f;
    int32_t h = n >> 1;
    return p * v_float((uint32_t)(h + 127) << 23) * v_float((uint32_t)(n - h + 127) << 23);
}

/* The common part of log and log1p (FreeBSD msun): log(1 + f) + k ln2 + c for 1 + f in [sqrt(1/2), sqrt(2)). */
static inline float v_log_tail(float f, float k, float c)
{
    float s = f / (2.0f + f), z = s * s, w = z * z;
    float r = z * (0.66666662693f + w * 0.28498786688f) + w * (0.40000972152f + w * 0.24279078841f);
    float h = 0.5f * f * f;
    return s * (h + r) + (k * 9.0580006145e-06f + c) - h + f + k * 6.9313812256e-01f;
}

static inline float v_log_f(float x)
{
    bool tiny = x < 1.17549435e-38f;
    float y = v_sel_f(tiny, x * 0x1p25f, x);
    uint32_t u = v_bits(y) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)((int32_t)(u >> 23) - 127) - v_sel_f(tiny, 25.0f, 0.0f);
    float f = v_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float l = v_log_tail(f, k, 0.0f);
    l = v_sel_f(x == 0, -INFINITY, l);
    l = v_sel_f(x < 0, NAN, l);
    return v_sel_f((x != x) | (x == INFINITY), x, l);
}

static inline float v_log1p_f(float x)
{
    float y = 1.0f + x;
    uint32_t u = v_bits(y) + (0x3f800000u - 0x3f3504f3u);
    int32_t e = (int32_t)(u >> 23) - 127;
    bool plain = (x > -0.29289323f) & (x < 0.41421354f); /* f = x itself, no rounding of 1 + x */
    float c = v_sel_f(e >= 2, 1.0f - (y - x), x - (y - 1.0f)) / y;
    c = v_sel_f(plain | (e >= 25), 0.0f, c);
    float f = v_sel_f(plain, x, v_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f);
    float l = v_log_tail(f, v_sel_f(plain, 0.0f, (float)e), c);
    l = v_sel_f(x == -1.0f, -INFINITY, l);
    l = v_sel_f(x < -1.0f, NAN, l);
    return v_sel_f((x != x) | (x == INFINITY) | (x == 0), x, l);
}

static inline float v_tanh_f(float x)
{
    float a = fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = np_fma(p, z, 2.06390887954e-2f);
    p = np_fma(p, z, -5.37397155531e-2f);
    p = np_fma(p, z, 1.33314422036e-1f);
    p = np_fma(p, z, -3.33332819422e-1f);
    p = np_fma(p * z, x, x);
    float big = copysignf(1.0f - 2.0f / (v_exp_f(a + a) + 1.0f), x);
    return v_sel_f(a < 0.625f, copysignf(p, x), v_sel_f(x != x, x, big));
}

/* e^-|x| never overflows. */
static inline float v_sigmoid_f(float x)
{
    float e = v_exp_f(-fabsf(x));
    return v_sel_f(x < 0, e, 1.0f) / (1.0f + e);
}
static inline double v_sigmoid_d(double x)
{
    double e = exp(-fabs(x));
    return v_sel_d(x < 0, e, 1.0) / (1.0 + e);
}

/* erf: odd polynomial near 0, 1 - exp(polynomial) beyond (N. Juffa). */
static inline float v_erf_f(float x)
{
    float t = fabsf(x), s = x * x;
    float tc = v_clamp_f(t, 0.0f, 4.0f), sc = tc * tc;
    float r = np_fma(-1.72853470e-5f, tc, 3.83197126e-4f);
    float u = np_fma(-3.88396438e-3f, tc, 2.42546219e-2f);
    r = np_fma(r, sc, u);
    r = np_fma(r, tc, -1.06777877e-1f);
    r = np_fma(r, tc, -6.34846687e-1f);
    r = np_fma(r, tc, -1.28717512e-1f);
    r = np_fma(r, tc, -tc);
    float big = copysignf(1.0f - v_exp_f(r), x);
    float p = -5.96761703e-4f;
    p = np_fma(p, s, 4.99119423e-3f);
    p = np_fma(p, s, -2.67681349e-2f);
    p = np_fma(p, s, 1.12819925e-1f);
    p = np_fma(p, s, -3.76125336e-1f);
    p = np_fma(p, s, 1.28379166e-1f);
    p = np_fma(p, x, x);
    return v_sel_f(t > 0.927734375f, big, v_sel_f(x != x, x, p));
}

/* The normal distribution function, (1 + erf(x / sqrt 2)) / 2, as 1/2 + x P(x^2) / Q(x^2): within 2e-7, and 0 or 1 beyond
 * its last steps. */
static inline float v_normal_f(float x)
{
    float z = x * x;
    float p = 2.30642989e-8f, q = 1.20683865e-6f;
    p = np_fma(p, z, 6.35456718e-6f), q = np_fma(q, z, 7.29977838e-5f);
    p = np_fma(p, z, 1.66507176e-4f), q = np_fma(q, z, 1.87132112e-3f);
    p = np_fma(p, z, 4.66359919e-3f), q = np_fma(q, z, 2.85087992e-2f);
    p = np_fma(p, z, 3.36068645e-2f), q = np_fma(q, z, 2.50905931e-1f);
    p = np_fma(p, z, 3.98942232e-1f), q = np_fma(q, z, 1.0f);
    return v_sel_f(z > 29.7f, v_sel_f(x > 0, 1.0f, 0.0f), np_fma(x, p / q, 0.5f));
}
static inline float v_gelu_f(float x) { return x * v_normal_f(x); }
static inline double v_normal_d(double x) { return 0.5 * (1.0 + erf(x * 0.70710678118654752440)); }
static inline double v_gelu_d(double x) { return x * v_normal_d(x); }
/* log(1 + e^-|x|): of u = e^-|x| <= 1 the logarithm is u - u^2 P(u) / Q(u). */
static inline float v_softplus_tail_f(float x)
{
    float u = v_exp_f(-fabsf(x));
    float p = np_fma(7.22535327e-2f, u, 4.50735271e-1f), q = np_fma(7.57021159e-2f, u, 6.89974725e-1f);
    p = np_fma(p, u, 4.99999911e-1f), q = np_fma(q, u, 1.56813228f);
    q = np_fma(q, u, 1.0f);
    return u - u * u * p / q;
}
static inline float v_softplus_f(float x) { return v_relu_f(x) + v_softplus_tail_f(x); }
static inline double v_softplus_tail_d(double x) { return log1p(exp(-fabs(x))); }
static inline double v_softplus_d(double x) { return v_relu_d(x) + v_softplus_tail_d(x); }

/* Rounding is an instruction from level 1 on. Without: adding 2^23 rounds to even; larger values are integers already. */
#if NP_ISA >= 1
static inline float v_round_f(float x) { return __builtin_rintf(x); }
static inline float v_floor_f(float x) { return __builtin_floorf(x); }
static inline float v_ceil_f(float x) { return __builtin_ceilf(x); }
static inline float v_trunc_f(float x) { return __builtin_truncf(x); }
#else
static inline float v_round_f(float x)
{
    float a = fabsf(x), r = copysignf((a + 8388608.0f) - 8388608.0f, x);
    return v_sel_f(a < 8388608.0f, r, x);
}
static inline float v_floor_f(float x)
{
    float r = v_round_f(x);
    return copysignf(r - v_sel_f(r > x, 1.0f, 0.0f), x);
}
static inline float v_ceil_f(float x) { return -v_floor_f(-x); }
static inline float v_trunc_f(float x) { return copysignf(v_floor_f(fabsf(x)), x); }
#endif

#define V_PICK(x, f, d) _Generic((x), float : f, double : d)(x)
#define V_PICK2(a, b, f, d) _Generic((a), float : f, double : d)(a, b)
#define v_abs(x) V_PICK(x, fabsf, fabs)
#define v_sqrt(x) V_PICK(x, __builtin_sqrtf, __builtin_sqrt)
#define v_exp(x) V_PICK(x, v_exp_f, exp)
#define v_log(x) V_PICK(x, v_log_f, log)
#define v_log1p(x) V_PICK(x, v_log1p_f, log1p)
#define v_tanh(x) V_PICK(x, v_tanh_f, tanh)
#define v_sigmoid(x) V_PICK(x, v_sigmoid_f, v_sigmoid_d)
#define v_erf(x) V_PICK(x, v_erf_f, erf)
#define v_gelu(x) V_PICK(x, v_gelu_f, v_gelu_d)
#define v_softplus_tail(x) V_PICK(x, v_softplus_tail_f, v_softplus_tail_d)
#define v_softplus(x) V_PICK(x, v_softplus_f, v_softplus_d)
#define v_relu(x) V_PICK(x, v_relu_f, v_relu_d)
#define v_sign(x) V_PICK(x, v_sign_f, v_sign_d)
#define v_round(x) V_PICK(x, v_round_f, rint)
#define v_floor(x) V_PICK(x, v_floor_f, floor)
#define v_ceil(x) V_PICK(x, v_ceil_f, ceil)
#define v_trunc(x) V_PICK(x, v_trunc_f, trunc)
#define v_max(a, b) V_PICK2(a, b, v_max_f, v_max_d)
#define v_min(a, b) V_PICK2(a, b, v_min_f, v_min_d)
#define v_sel(c, a, b) _Generic((b), float : v_sel_f, double : v_sel_d)(c, a, b) /* by the type of b */

#endif
