/* binary.c - arithmetic of two operands, element by element, with broadcasting.
 *
 * Each op is one paragraph: kernel, gradient, entry, in-place form. Results are exact copies of the formula in
 * the comment, in the promoted dtype; half types compute in float; integer arithmetic wraps. A zero incoming
 * gradient times an infinite derivative counts as 0: the formulas below use mul0 and div0, which are here too,
 * where a derivative can be infinite. What an op saves is part of its contract. Comparisons are in compare.c, powers
 * in power.c, bits in bits.c. */
#include "ops/cpu/loops.h"
#include "ops/cpu/vec_more.h"
#include "ops/sample.h"

/* ---- helpers of the kernels: integers of every width go through 64 bits and are cut to their type */

static inline int64_t i_floor_divide(int64_t a, int64_t b)
{
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t i_fmod(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
static inline int64_t i_mod(int64_t a, int64_t b)
{
    if (b == -1) return 0;
    int64_t m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

static inline bool is_zero(int64_t v) { return v == 0; }
static inline bool divisor_ok(np_frame *f)
{
    if (np_is_float(f->compute) || f->out[0]->numel == 0 || !np_holds(f->in[1], f->compute, is_zero))
        return true;
    np_fail(f->c, NEAP_E_ARG,
            "integer division by zero: the divisor (argument 2) holds a 0; mask it out or use floats");
    return false;
}

/* add(a, b): a + b with broadcasting. x:add(2), x + y. */
NP_MAP2_WRAP(add, a, b, a + b, a + b)
NP_CPU(add)(np_frame *f) { return np_map(f, run_add, NULL); }

#ifdef NP_BASE_ONLY
static void add_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, b->g[0], 1);
}
NP_OP(add) = {
    NP_NAMED(add),    .args = "a:N b:N -> y:T",  .tags = NP_POINTWISE | NP_CHEAP, .infer = np_infer_binary,
    .grad = add_grad, .sample = np_sample_binary};
NP_INPLACE_OP(add_, add);
#endif

/* sub(a, b): a - b with broadcasting. x:sub(y), x - 1. */
NP_MAP2_WRAP(sub, a, b, a - b, a - b)
NP_CPU(sub)(np_frame *f) { return np_map(f, run_sub, NULL); }

#ifdef NP_BASE_ONLY
static void sub_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    if (b->need[1]) b->dx[1] = np_neg(b, np_unbroadcast(b, b->g[0], 1));
}
NP_OP(sub) = {NP_NAMED(sub),
              .args = "a:N b:N -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .infer = np_infer_binary_number,
              .grad = sub_grad,
              .sample = np_sample_binary};
NP_INPLACE_OP(sub_, sub);
#endif

/* mul(a, b): a * b element by element, with broadcasting. x:mul(3), x * y. */
NP_MAP2_WRAP(mul, a, b, a *b, a *b)
NP_CPU(mul)(np_frame *f) { return np_map(f, run_mul, NULL); }

#ifdef NP_BASE_ONLY
static void mul_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul(b, b->g[0], b->saved[1]), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul(b, b->g[0], b->saved[0]), 1);
}
NP_OP(mul) = {NP_NAMED(mul),
              .args = "a:N b:N -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 0)},
              .infer = np_infer_binary,
              .grad = mul_grad,
              .sample = np_sample_binary};
NP_INPLACE_OP(mul_, mul);
#endif

/* div(a, b): a / b with broadcasting; integers give floats. x:div(y), x / 2. */
NP_MAP2(div, a, b, a / b)
NP_CPU(div)(np_frame *f) { return np_map(f, run_div, NULL); }

#ifdef NP_BASE_ONLY
static void div_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_div0(b, g, y), 0);
    if (b->need[1]) {
        neap_tensor *q = np_mul0(b, g, np_div(b, b->saved[0], y));
        b->dx[1] = np_unbroadcast(b, np_neg(b, np_div0(b, q, y)), 1);
    }
}
NP_OP(div) = {NP_NAMED(div),
              .args = "a:N b:N -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .save = {NP_IN_FOR(0, 1), NP_IN(1)},
              .infer = np_infer_binary_float,
              .grad = div_grad,
              .sample = np_sample_binary_positive};
NP_INPLACE_OP(div_, div);
#endif

/* floor_divide(a, b): floor(a / b), as Lua's //; an integer divided by 0 is an error. x // 2. */
NP_MAP2_ANY(floor_divide, a, b, v_floor(a / b), i_floor_divide(a, b))
NP_CPU(floor_divide)(np_frame *f) { return divisor_ok(f) && np_map(f, run_floor_divide, NULL); }

#ifdef NP_BASE_ONLY
NP_OP(floor_divide) = {NP_NAMED(floor_divide), .args = "a:N b:N -> y:T",
                       .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = np_infer_binary_number,
                       .sample = np_sample_binary_positive};
NP_INPLACE_OP(floor_divide_, floor_divide);
#endif

/* Remainders of floats: blocks where a quotient is too large go through libm, element by element. Both ways are
 * exact, so the bits of an element do not depend on its neighbours. sign(m, b): the result from m = fmod(a, b). */
#define MOD_LOOP(sign, a, b) NP_IVDEP for (int64_t k = 0; k < len; k++) y[k] = sign(v_fmod_f(a, b), b);
#define MOD_RUNS(name, sign, fd, fi) \
    static void run_##name##_f32(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        (void)arg; \
        const int64_t sa = s[1] ? 1 : 0, sb = s[2] ? 1 : 0; \
        for (int64_t i = 0; i < n; i += NP_BLOCK) { \
            int64_t len = n - i < NP_BLOCK ? n - i : NP_BLOCK; \
            float *y = (float *)p[0] + i; \
            const float *a = (const float *)p[1] + i * sa, *b = (const float *)p[2] + i * sb; \
            int32_t fit = 1; \
            for (int64_t k = 0; k < len; k++) fit &= v_fmod_fits(a[k * sa], b[k * sb]); \
            if (fit && sa && sb) { \
                MOD_LOOP(sign, a[k], b[k]) \
            } else if (fit && sa) { \
                const float one = *b; \
                MOD_LOOP(sign, a[k], one) \
            } else { \
                for (int64_t k = 0; k < len; k++) { \
                    float v = a[k * sa], w = b[k * sb]; \
                    y[k] = sign(fmodf(v, w), w); \
                } \
            } \
        } \
    } \
    NP_RUN2(name, f64, double, double, a, b, fd(a, b)) \
    NP_INTS2(name, int64_t, int32_t, int8_t, a, b, fi(a, b)) \
    NP_RUNS(name) = {NP_FLOAT_ROWS(name), NP_INT_ROWS(name)};
static inline float fmod_sign(float m, float b) { return (void)b, m; }

/* remainder(a, b): a - b * floor(a / b), the sign of b, as Lua's %; an integer modulo 0 is an error. x % 3. */
MOD_RUNS(remainder, v_mod_sign_f, v_mod_d, i_mod)
NP_CPU(remainder)(np_frame *f) { return divisor_ok(f) && np_map(f, run_remainder, NULL); }

#ifdef NP_BASE_ONLY
static void remainder_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    if (b->need[1]) {
        neap_tensor *q = np_floor_divide(b, b->saved[0], b->saved[1]);
        b->dx[1] = np_unbroadcast(b, np_neg(b, np_mul0(b, b->g[0], q)), 1);
    }
}
NP_OP(remainder) = {NP_NAMED(remainder),
                    .args = "a:N b:N -> y:T",
                    .tags = NP_POINTWISE | NP_CHEAP,
                    .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 1)},
                    .infer = np_infer_binary_number,
                    .grad = remainder_grad,
                    .sample = np_sample_binary_positive};
NP_INPLACE_OP(remainder_, remainder);
#endif

/* maximum(a, b): the larger of two elements; NaN wins; at ties each side gets half of the gradient. */
NP_MAP2_ANY(maximum, a, b, v_max(a, b), a > b ? a : b)
NP_CPU(maximum)(np_frame *f) { return np_map(f, run_maximum, NULL); }

/* minimum(a, b): the smaller of two elements; NaN wins; at ties each side gets half of the gradient. */
NP_MAP2_ANY(minimum, a, b, v_min(a, b), a < b ? a : b)
NP_CPU(minimum)(np_frame *f) { return np_map(f, run_minimum, NULL); }

#ifdef NP_BASE_ONLY
/* g where `wins`, half of it where a == b, else 0. */
static neap_tensor *winner_share(np_back *b, neap_tensor *wins)
{
    neap_tensor *half = np_mul(b, b->g[0], np_num(b, 0.5));
    neap_tensor *tie = np_where(b, np_eq(b, b->saved[0], b->saved[1]), half, np_num(b, 0));
    return np_where(b, wins, b->g[0], tie);
}
static void maximum_grad(np_back *b)
{
    neap_tensor *x = b->saved[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, winner_share(b, np_gt(b, x, y)), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, winner_share(b, np_gt(b, y, x)), 1);
}
static void minimum_grad(np_back *b)
{
    neap_tensor *x = b->saved[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, winner_share(b, np_lt(b, x, y)), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, winner_share(b, np_lt(b, y, x)), 1);
}
NP_OP(maximum) = {NP_NAMED(maximum),
                  .args = "a:N b:N -> y:T",
                  .tags = NP_POINTWISE | NP_CHEAP,
                  .save = {NP_IN(0), NP_IN(1)},
                  .infer = np_infer_binary,
                  .grad = maximum_grad,
                  .sample = np_sample_binary};
NP_OP(minimum) = {NP_NAMED(minimum),
                  .args = "a:N b:N -> y:T",
                  .tags = NP_POINTWISE | NP_CHEAP,
                  .save = {NP_IN(0), NP_IN(1)},
                  .infer = np_infer_binary,
                  .grad = minimum_grad,
                  .sample = np_sample_binary};
#endif

/* fmod(a, b): a - b * trunc(a / b), the sign of a, as C's fmod; an integer by 0 is an error. */
MOD_RUNS(fmod, fmod_sign, fmod, i_fmod)
NP_CPU(fmod)(np_frame *f) { return divisor_ok(f) && np_map(f, run_fmod, NULL); }

#ifdef NP_BASE_ONLY
static void fmod_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    if (b->need[1]) {
        neap_tensor *q = np_trunc(b, np_div(b, b->saved[0], b->saved[1]));
        b->dx[1] = np_unbroadcast(b, np_neg(b, np_mul0(b, b->g[0], q)), 1);
    }
}
NP_OP(fmod) = {NP_NAMED(fmod),
               .args = "a:N b:N -> y:T",
               .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 1)},
               .infer = np_infer_binary_number,
               .grad = fmod_grad,
               .sample = np_sample_binary_positive};
NP_INPLACE_OP(fmod_, fmod);
#endif

/* hypot(a, b): sqrt(a^2 + b^2) without overflow on the way. d/da = a / y, d/db = b / y, 0 at (0, 0). */
NP_MAP2(hypot, a, b, V_PICK2(a, b, v_hypot_f, hypot))
NP_CPU(hypot)(np_frame *f) { return np_map(f, run_hypot, NULL); }

/* atan2(a, b): the angle of the point (b, a), in [-pi, pi]. d/da = b / (a^2 + b^2), d/db = -a / (a^2 + b^2), 0 at
 * (0, 0). */
NP_MAP2(atan2, a, b, V_PICK2(a, b, v_atan2_f, atan2))
NP_CPU(atan2)(np_frame *f) { return np_map(f, run_atan2, NULL); }

#ifdef NP_BASE_ONLY
static void hypot_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *y = b->saved[2];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul(b, g, np_div0(b, b->saved[0], y)), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul(b, g, np_div0(b, b->saved[1], y)), 1);
}
/* g times one coordinate over the square of the length. */
static neap_tensor *over_square(np_back *b, neap_tensor *coordinate)
{
    neap_tensor *length = np_hold(b, np_hypot(b, b->saved[0], b->saved[1]));
    return np_div0(b, np_div0(b, np_mul0(b, b->g[0], coordinate), length), length);
}
static void atan2_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, over_square(b, b->saved[1]), 0);
    if (b->need[1]) b->dx[1] = np_neg(b, np_unbroadcast(b, over_square(b, b->saved[0]), 1));
}
NP_OP(hypot) = {NP_NAMED(hypot),
                .args = "a:N b:N -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN_FOR(0, 0), NP_IN_FOR(1, 1), NP_OUT(0)},
                .infer = np_infer_binary_float,
                .grad = hypot_grad,
                .sample = np_sample_binary_positive};
NP_OP(atan2) = {NP_NAMED(atan2),
                .args = "a:N b:N -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0), NP_IN(1)},
                .infer = np_infer_binary_float,
                .grad = atan2_grad,
                .sample = np_sample_binary};
NP_INPLACE_OP(hypot_, hypot);
NP_INPLACE_OP(atan2_, atan2);
#endif

/* copysign(a, b): |a| with the sign of b, also of a zero. The slope in a is -1 or 1, at a = 0 it is 0; in b it is 0. */
NP_MAP2(copysign, a, b, V_PICK2(a, b, copysignf, copysign))
NP_CPU(copysign)(np_frame *f) { return np_map(f, run_copysign, NULL); }

#ifdef NP_BASE_ONLY
static void copysign_grad(np_back *b)
{
    if (b->need[0]) {
        neap_tensor *turned = np_mul(b, np_sign(b, b->saved[0]), np_copysign(b, np_num(b, 1), b->saved[1]));
        b->dx[0] = np_unbroadcast(b, np_mul(b, b->g[0], turned), 0);
    }
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul0(b, np_num(b, 0), b->g[0]), 1);
}
NP_OP(copysign) = {NP_NAMED(copysign),
                   .args = "a:N b:N -> y:T",
                   .tags = NP_POINTWISE | NP_CHEAP,
                   .save = {NP_IN_FOR(0, 0), NP_IN_FOR(1, 0)},
                   .infer = np_infer_binary_float,
                   .grad = copysign_grad,
                   .sample = np_sample_binary};
NP_INPLACE_OP(copysign_, copysign);
#endif

/* logaddexp(a, b): log(e^a + e^b), shifted by the larger one so that nothing overflows. Where both are -inf it is -inf
 * with gradient 0. */
NP_MAP2(logaddexp, a, b,
        v_sel((a == b) & (v_abs(a) == (double)INFINITY), a, v_max(a, b) + v_softplus_tail(a - b)))
NP_CPU(logaddexp)(np_frame *f) { return np_map(f, run_logaddexp, NULL); }

#ifdef NP_BASE_ONLY
/* g e^(x - y), where y = -inf counts as 0: then x is -inf, too. */
static neap_tensor *log_share(np_back *b, neap_tensor *x)
{
    neap_tensor *y = b->saved[2], *finite = np_masked_fill(b, y, np_eq(b, y, np_num(b, -INFINITY)), 0);
    return np_mul0(b, b->g[0], np_exp(b, np_sub(b, x, finite)));
}
static void logaddexp_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, log_share(b, b->saved[0]), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, log_share(b, b->saved[1]), 1);
}
NP_OP(logaddexp) = {NP_NAMED(logaddexp),
                    .args = "a:N b:N -> y:T",
                    .tags = NP_POINTWISE | NP_CHEAP,
                    .save = {NP_IN_FOR(0, 0), NP_IN_FOR(1, 1), NP_OUT(0)},
                    .infer = np_infer_binary_float,
                    .grad = logaddexp_grad,
                    .sample = np_sample_binary};
#endif

/* xlogy(a, b): a log(b), and 0 where a is 0, unless b is NaN. */
NP_MAP2(xlogy, a, b, v_sel((a == 0) & (b == b), 0, a *v_log(b)))
NP_CPU(xlogy)(np_frame *f) { return np_map(f, run_xlogy, NULL); }

#ifdef NP_BASE_ONLY
static void xlogy_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *y = b->saved[1];
    if (b->need[0]) {
        neap_tensor *nothing = np_bitwise_and(b, np_eq(b, x, np_num(b, 0)), np_le(b, y, np_num(b, 0)));
        b->dx[0] = np_unbroadcast(b, np_where(b, nothing, np_num(b, 0), np_xlogy(b, g, y)), 0);
    }
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_div0(b, np_mul0(b, g, x), y), 1);
}
NP_OP(xlogy) = {NP_NAMED(xlogy),
                .args = "a:N b:N -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0), NP_IN(1)},
                .infer = np_infer_binary_float,
                .grad = xlogy_grad,
                .sample = np_sample_binary_positive};
NP_INPLACE_OP(xlogy_, xlogy);
#endif

/* ---- products of gradients: 0 times anything is 0 */

/* mul0(g, d): g d, and 0 where g is 0 even if d is infinite or NaN. */
NP_MAP2(mul0, g, d, v_sel(g == 0, 0, g *d))
NP_CPU(mul0)(np_frame *f) { return np_map(f, run_mul0, NULL); }

/* div0(g, d): g / d, and 0 where g is 0 even if d is 0 or NaN. */
NP_MAP2(div0, g, d, v_sel(g == 0, 0, g / d))
NP_CPU(div0)(np_frame *f) { return np_map(f, run_div0, NULL); }

#ifdef NP_BASE_ONLY
static void mul0_grad(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul0(b, b->g[0], b->saved[1]), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul0(b, b->g[0], b->saved[0]), 1);
}
static void div0_grad(np_back *b)
{
    neap_tensor *d = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_div0(b, b->g[0], d), 0);
    if (b->need[1]) {
        neap_tensor *q = np_mul0(b, b->g[0], np_div0(b, b->saved[0], d));
        b->dx[1] = np_unbroadcast(b, np_neg(b, np_div0(b, q, d)), 1);
    }
}
NP_OP(mul0) = {NP_NAMED(mul0),
               .args = "g:N d:N -> y:T",
               .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
               .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 0)},
               .infer = np_infer_binary_float,
               .grad = mul0_grad,
               .sample = np_sample_binary};
NP_OP(div0) = {NP_NAMED(div0),
               .args = "g:N d:N -> y:T",
               .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
               .save = {NP_IN_FOR(0, 1), NP_IN(1)},
               .infer = np_infer_binary_float,
               .grad = div0_grad,
               .sample = np_sample_binary_positive};
#endif
