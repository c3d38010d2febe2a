/* trig.c - trigonometric and hyperbolic functions, element by element. The conventions are those of binary.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* Sine and cosine of large arguments go through libm, element by element, so that the bits of an element do not
 * depend on its neighbours. */
#define TRIG_RUN(name, libm) \
    static void run_##name##_f32(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        (void)arg; \
        int64_t step = s[1] ? 1 : 0; \
        for (int64_t i = 0; i < n; i += NP_BLOCK) { \
            int64_t len = n - i < NP_BLOCK ? n - i : NP_BLOCK; \
            float *y = (float *)p[0] + i; \
            const float *px = (const float *)p[1] + i * step; \
            int32_t big = 0; \
            for (int64_t k = 0; k < len; k++) { \
                int32_t u = (int32_t)(v_bits(px[k * step]) & 0x7fffffffu); \
                big = u > big ? u : big; \
            } \
            if (big >= 0x4d000000) { /* 2^27 = V_TRIG_MAX */ \
                for (int64_t k = 0; k < len; k++) { \
                    float x = px[k * step]; \
                    y[k] = fabsf(x) < V_TRIG_MAX ? v_##name##_f(x) : libm(x); \
                } \
            } else if (step) { \
                NP_IVDEP for (int64_t k = 0; k < len; k++) y[k] = v_##name##_f(px[k]); \
            } else { \
                const float v = v_##name##_f(*px); \
                for (int64_t k = 0; k < len; k++) y[k] = v; \
            } \
        } \
    } \
    NP_RUN1(name, f64, double, double, x, v_##name(x)) \
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
