/* vec_trig.h - sine, cosine and tangent, by the rules of vec.h: within 1 ulp (tangent 1.1) up to V_TRIG_MAX; loops send larger
 * arguments through libm.
 *
 * The argument is k pi/2 + r. Wide: k, r and the polynomials in double (FreeBSD msun), enough for all. Near: in float
 * with the rounding error of r carried along, for |x| < V_TRIG_NEAR; it takes a real fused multiply-add, so below CPU
 * level 1 there is only the wide way. Which one an element takes depends on its value alone. */
#ifndef NP_VEC_TRIG_H
#define NP_VEC_TRIG_H

#include "ops/cpu/vec.h"

#define V_TRIG_MAX 0x1p27f

/* ---- wide */

static inline void v_sincos_parts(float x, double *sine, double *cosine, uint64_t *quadrant)
{
    double t = (double)x * 6.36619772367581382433e-01 + 0x1.8p52;
    double k = t - 0x1.8p52;
    double r = ((double)x - k * 1.57079631090164184570e+00) - k * 1.58932547735281966916e-08;
    double z = r * r, w = z * z, s = z * r;
    *quadrant = v_bits_d(t);
    *sine = (r + s * (-0.166666666416265235595 + z * 0.0083333293858894631756)) +
            s * w * (-0.000198393348360966317347 + z * 0.0000027183114939898219064);
    *cosine = ((1.0 + z * -0.499999997251031003120) + w * 0.0416666233237390631894) +
              (w * z) * (-0.00138867637746099294692 + z * 0.0000243904487962774090654);
}
static inline float v_sincos_wide(float x, uint64_t turn)
{
    double s, c;
    uint64_t q;
    v_sincos_parts(x, &s, &c, &q);
    q += turn;
    uint64_t m = 0u - (q & 1);
    uint64_t u = (v_bits_d(c) & m) | (v_bits_d(s) & ~m);
    return (float)v_double(u ^ ((q & 2) << 62));
}
static inline float v_sin_wide(float x) { return v_sel_f(x == 0, x, v_sincos_wide(x, 0)); }
static inline float v_cos_wide(float x) { return v_sincos_wide(x, 1); }
static inline float v_tan_wide(float x)
{
    double s, c;
    uint64_t q;
    v_sincos_parts(x, &s, &c, &q);
    uint64_t m = 0u - (q & 1), us = v_bits_d(s), uc = v_bits_d(c);
    double up = v_double((us & ~m) | (uc & m)), down = v_double((uc & ~m) | ((us ^ 0x8000000000000000u) & m));
    return v_sel_f(x == 0, x, (float)(up / down));
}

/* ---- near */

#if NP_ISA >= 1
#define V_TRIG_NEAR 0x1p15f

/* x = k pi/2 + r + low for r within pi/4. r1 and each difference are exact. Returns k in the low bits. */
static inline uint32_t v_trig_reduce(float x, float *r, float *low)
{
    float t = np_fma(x, 0.636619772f, 12582912.0f), k = t - 12582912.0f; /* 1.5 * 2^23 */
    float r1 = np_fma(k, -0x1.921fb6p+0f, x);
    float p = k * 0x1.777a5cp-25f, more = np_fma(k, 0x1.777a5cp-25f, -p); /* pi/2 = hi - mid - lo */
    *r = r1 + p;
    *low = np_fma(k, 0x1.ee59dap-50f, more + (p - (*r - r1)));
    return v_bits(t);
}
/* What sin(r + low) has beyond r, and cos(r + low) beyond *one, which is 1 - r^2 / 2 rounded. */
static inline float v_sin_rest(float r, float low)
{
    float z = r * r, p = np_fma(2.83253985e-6f, z, -1.98530659e-4f);
    p = np_fma(p, z, 8.33337940e-3f);
    p = np_fma(p, z, -1.66666672e-1f);
    return np_fma(p, z * r, low);
}
static inline float v_cos_rest(float r, float low, float *one)
{
    float z = r * r, half = 0.5f * r, p = np_fma(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    *one = np_fma(-half, r, 1.0f);
    float lost = np_fma(-half, r, 1.0f - *one);
    p = np_fma(p, z, 4.166664568298827e-2f);
    return np_fma(p, z * z, np_fma(-r, low, lost));
}
static inline float v_sincos_near(float x, uint32_t turn)
{
    float r, low, one;
    uint32_t q = v_trig_reduce(x, &r, &low) + turn, m = 0u - (q & 1);
    float s = r + v_sin_rest(r, low), c = v_cos_rest(r, low, &one);
    c += one;
    return v_float(((v_bits(c) & m) | (v_bits(s) & ~m)) ^ (q & 2) << 30);
}
static inline float v_sin_near(float x) { return v_sel_f(x == 0, x, v_sincos_near(x, 0)); }
static inline float v_cos_near(float x) { return v_sincos_near(x, 1); }
/* sine / cosine, or -cosine / sine in odd quadrants, each as head and tail. */
static inline float v_tan_near(float x)
{
    float r, low, one;
    uint32_t m = 0u - (v_trig_reduce(x, &r, &low) & 1);
    float s = v_sin_rest(r, low), c = v_cos_rest(r, low, &one);
    float sh = r + s, sl = s - (sh - r), ch = one + c, cl = c - (ch - one);
    float up = v_float((v_bits(sh) & ~m) | (v_bits(ch) & m)),
          up_low = v_float((v_bits(sl) & ~m) | (v_bits(cl) & m));
    float down = v_float((v_bits(ch) & ~m) | (v_bits(-sh) & m));
    float down_low = v_float((v_bits(cl) & ~m) | (v_bits(-sl) & m));
    float y = 1.0f / down, q = up * y;
    float lack = np_fma(-q, down, up) + np_fma(-q, down_low, up_low);
    return v_sel_f(x == 0, x, np_fma(lack, y, q));
}
#define V_TRIG(name, x) v_sel_f(fabsf(x) < V_TRIG_NEAR, v_##name##_near(x), v_##name##_wide(x))
#else
#define V_TRIG_NEAR 0.0f
#define V_TRIG(name, x) v_##name##_wide(x)
#define v_sin_near v_sin_wide
#define v_cos_near v_cos_wide
#define v_tan_near v_tan_wide
#endif

static inline float v_sin_f(float x) { return V_TRIG(sin, x); }
static inline float v_cos_f(float x) { return V_TRIG(cos, x); }
static inline float v_tan_f(float x) { return V_TRIG(tan, x); }

#endif
