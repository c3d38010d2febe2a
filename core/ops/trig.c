/* trig.c - trigonometric and hyperbolic functions, element by element. The conventions are those of binary.c. */
#include "ops/cpu/loops.h"
#include "ops/cpu/vec_more.h"
#include "ops/cpu/vec_trig.h"
#include "ops/sample.h"

/* Sine, cosine and tangent of large arguments go through libm, element by element, so that the bits of an element do not
 * depend on its neighbours. */
#define TRIG_RUN(name, libm) \
    static inline float name##_any(float x) { return fabsf(x) < V_TRIG_MAX ? v_##name##_f(x) : libm(x); } \
    static void run_##name##_f32(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        (void)arg; \
        float *y = (float *)p[0]; \
        const float *px = (const float *)p[1]; \
        if (!s[1]) { \
            const float v = name##_any(*px); \
            for (int64_t i = 0; i < n; i++) y[i] = v; \
            return; \
        } \
        for (int64_t len; n > 0; n -= len, y += len, px += len) { \
            int32_t big = 0; \
            len = n < NP_BLOCK ? n : NP_BLOCK; \
            for (int64_t k = 0; k < len; k++) { \
                int32_t u = (int32_t)(v_bits(px[k]) & 0x7fffffffu); \
                big = u > big ? u : big; \
            } \
            if (big >= 0x4d000000) { /* 2^27 = V_TRIG_MAX */ \
                for (int64_t k = 0; k < len; k++) y[k] = name##_any(px[k]); \
            } else if (v_float((uint32_t)big) < V_TRIG_NEAR) { /* the same bits, without the other way */ \
                NP_IVDEP for (int64_t k = 0; k < len; k++) y[k] = v_##name##_near(px[k]); \
            } else { \
                NP_IVDEP for (int64_t k = 0; k < len; k++) y[k] = v_##name##_f(px[k]); \
            } \
        } \
    } \
    NP_RUN1(name, f64, double, double, x, name(x)) \
    NP_RUNS(name) = {NP_FLOAT_ROWS(name)};

/* sin(x): the sine of x in radians. */
TRIG_RUN(sin, sinf)
NP_CPU(sin)(np_frame *f) { return np_map(f, run_sin, NULL); }

/* cos(x): the cosine of x in radians. */
TRIG_RUN(cos, cosf)
NP_CPU(cos)(np_frame *f) { return np_map(f, run_cos, NULL); }

#ifdef NP_BASE_ONLY
static void sin_grad(np_back *b) { b->dx[0] = np_mul(b, b->g[0], np_cos(b, b->saved[0])); }
static void cos_grad(np_back *b) { b->dx[0] = np_neg(b, np_mul(b, b->g[0], np_sin(b, b->saved[0]))); }
NP_OP(sin) = {
    NP_NAMED(sin),           .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_IN(0)},
    .infer = np_infer_float, .grad = sin_grad,     .sample = np_sample_unary};
NP_OP(cos) = {
    NP_NAMED(cos),           .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_IN(0)},
    .infer = np_infer_float, .grad = cos_grad,     .sample = np_sample_unary};
NP_INPLACE_OP(sin_, sin);
NP_INPLACE_OP(cos_, cos);
#endif

/* tan(x): the tangent of x in radians. */
TRIG_RUN(tan, tanf)
NP_CPU(tan)(np_frame *f) { return np_map(f, run_tan, NULL); }

/* asin(x): the angle in [-pi/2, pi/2] whose sine is x; NaN outside of [-1, 1]. */
NP_MAP1(asin, x, V_PICK(x, v_asin_f, asin))
NP_CPU(asin)(np_frame *f) { return np_map(f, run_asin, NULL); }

/* acos(x): the angle in [0, pi] whose cosine is x; NaN outside of [-1, 1]. */
NP_MAP1(acos, x, V_PICK(x, v_acos_f, acos))
NP_CPU(acos)(np_frame *f) { return np_map(f, run_acos, NULL); }

/* atan(x): the angle in (-pi/2, pi/2) whose tangent is x. */
NP_MAP1(atan, x, V_PICK(x, v_atan_f, atan))
NP_CPU(atan)(np_frame *f) { return np_map(f, run_atan, NULL); }

/* sinh(x): the hyperbolic sine, (e^x - e^-x) / 2. */
NP_MAP1(sinh, x, V_PICK(x, v_sinh_f, sinh))
NP_CPU(sinh)(np_frame *f) { return np_map(f, run_sinh, NULL); }

/* cosh(x): the hyperbolic cosine, (e^x + e^-x) / 2. */
NP_MAP1(cosh, x, V_PICK(x, v_cosh_f, cosh))
NP_CPU(cosh)(np_frame *f) { return np_map(f, run_cosh, NULL); }

/* asinh(x): the number whose hyperbolic sine is x. */
NP_MAP1(asinh, x, V_PICK(x, v_asinh_f, asinh))
NP_CPU(asinh)(np_frame *f) { return np_map(f, run_asinh, NULL); }

/* acosh(x): the number >= 0 whose hyperbolic cosine is x; NaN below 1. */
NP_MAP1(acosh, x, V_PICK(x, v_acosh_f, acosh))
NP_CPU(acosh)(np_frame *f) { return np_map(f, run_acosh, NULL); }

/* atanh(x): the number whose hyperbolic tangent is x; infinite at -1 and 1, NaN beyond. */
NP_MAP1(atanh, x, V_PICK(x, v_atanh_f, atanh))
NP_CPU(atanh)(np_frame *f) { return np_map(f, run_atanh, NULL); }

#ifdef NP_BASE_ONLY
static void tan_grad(np_back *b) /* 1 + y^2 */
{
    b->dx[0] = np_mul0(b, b->g[0], np_add(b, np_square(b, b->saved[0]), np_num(b, 1)));
}
/* g / sqrt(1 - x^2) */
static neap_tensor *over_cosine(np_back *b)
{
    return np_mul0(b, b->g[0], np_rsqrt(b, np_sub(b, np_num(b, 1), np_square(b, b->saved[0]))));
}
static void asin_grad(np_back *b) { b->dx[0] = over_cosine(b); }
static void acos_grad(np_back *b) { b->dx[0] = np_neg(b, over_cosine(b)); }
static void atan_grad(np_back *b)
{
    b->dx[0] = np_div(b, b->g[0], np_add(b, np_square(b, b->saved[0]), np_num(b, 1)));
}
static void sinh_grad(np_back *b) { b->dx[0] = np_mul0(b, b->g[0], np_cosh(b, b->saved[0])); }
static void cosh_grad(np_back *b) { b->dx[0] = np_mul0(b, b->g[0], np_sinh(b, b->saved[0])); }
static void asinh_grad(np_back *b)
{
    b->dx[0] = np_mul(b, b->g[0], np_rsqrt(b, np_add(b, np_square(b, b->saved[0]), np_num(b, 1))));
}
static void acosh_grad(np_back *b)
{
    b->dx[0] = np_mul0(b, b->g[0], np_rsqrt(b, np_sub(b, np_square(b, b->saved[0]), np_num(b, 1))));
}
static void atanh_grad(np_back *b)
{
    b->dx[0] = np_div0(b, b->g[0], np_sub(b, np_num(b, 1), np_square(b, b->saved[0])));
}
static bool sample_below_one(np_sampler *s, int i) { return np_sample_unary_in(s, i, -0.9, 0.9); }
static bool sample_above_one(np_sampler *s, int i) { return np_sample_unary_in(s, i, 1.2, 3); }

#define TRIG_OP(opname, more_tags, saved, sampler) \
    NP_OP(opname) = { \
        NP_NAMED(opname), .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP | (more_tags), \
        .save = {saved},  .infer = np_infer_float, .grad = opname##_grad, \
        .sample = sampler}; \
    NP_INPLACE_OP(opname##_, opname);
TRIG_OP(tan, NP_CAST_FLOAT32, NP_OUT(0), sample_below_one)
TRIG_OP(asin, NP_CAST_FLOAT32, NP_IN(0), sample_below_one)
TRIG_OP(acos, NP_CAST_FLOAT32, NP_IN(0), sample_below_one)
TRIG_OP(atan, 0, NP_IN(0), np_sample_unary)
TRIG_OP(sinh, NP_CAST_FLOAT32, NP_IN(0), np_sample_unary)
TRIG_OP(cosh, NP_CAST_FLOAT32, NP_IN(0), np_sample_unary)
TRIG_OP(asinh, 0, NP_IN(0), np_sample_unary)
TRIG_OP(acosh, 0, NP_IN(0), sample_above_one)
TRIG_OP(atanh, 0, NP_IN(0), sample_below_one)
#endif
