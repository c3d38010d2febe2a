/* pointwise.c - arithmetic and elementary functions, element by element.
 *
 * Each op is one paragraph: kernel, gradient, entry, in-place form. Results are exact copies of the formula in
 * the comment, in the promoted dtype; half types compute in float; integer arithmetic wraps. A zero incoming
 * gradient times an infinite derivative counts as 0: the formulas below use mul0 and div0 where a derivative can
 * be infinite. What an op saves is part of its contract. Comparisons are in
 * compare.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* ---- helpers of the kernels: integers of every width go through 64 bits and are cut to their type */

static inline int64_t i_neg(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static inline int64_t i_abs(int64_t x) { return x < 0 ? i_neg(x) : x; }
static inline int64_t i_sign(int64_t x) { return (x > 0) - (x < 0); }
static inline int64_t i_floor_divide(int64_t a, int64_t b)
{
    if (b == -1) return i_neg(a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t i_mod(int64_t a, int64_t b)
{
    if (b == -1) return 0;
    int64_t m = a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
static inline int64_t i_pow(int64_t a, int64_t n)
{
    uint64_t x = (uint64_t)a, y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return (int64_t)y;
}

/* Does an integer operand hold a value that the op refuses, once it is of the dtype that the op computes in? */
static inline bool holds(const neap_tensor *t, neap_dtype as, bool (*bad)(int64_t))
{
    int64_t raw[NP_BLOCK], v[NP_BLOCK];
    for (int64_t i = 0; i < t->numel; i += NP_BLOCK) {
        int64_t n = t->numel - i < NP_BLOCK ? t->numel - i : NP_BLOCK;
        np_read_block(t, i, n, as, raw);
        np_block_load(NEAP_INT64, v, as, (const char *)raw, (int64_t)np_sizes[as], n);
        for (int64_t k = 0; k < n; k++)
            if (bad(v[k])) return true;
    }
    return false;
}
static inline bool is_zero(int64_t v) { return v == 0; }
static inline bool is_negative(int64_t v) { return v < 0; }
static inline bool divisor_ok(np_frame *f)
{
    if (np_is_float(f->compute) || f->out[0]->numel == 0 || !holds(f->in[1], f->compute, is_zero))
        return true;
    np_fail(f->c, NEAP_E_ARG,
            "integer division by zero: the divisor (argument 2) holds a 0; mask it out or use floats");
    return false;
}

/* Typed pieces that need constants of the element's own type. */
#define POINTWISE_MATH(T, S, exp_, tanh_, erf_) \
    static inline T gelu_tanh_##S(T x) \
    { \
        T u = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x); \
        return (T)0.5 * x * (1 + tanh_(u)); \
    } \
    static inline T gelu_slope_##S(T x) \
    { \
        T phi = (T)0.39894228040143267794 * exp_((T)-0.5 * x * x); \
        return (T)0.5 * (1 + erf_(x * (T)0.70710678118654752440)) + x * phi; \
    } \
    static inline T gelu_tanh_slope_##S(T x) \
    { \
        T u = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x), t = tanh_(u); \
        T du = (T)0.79788456080286535588 * (1 + (T)0.134145 * x * x); \
        return (T)0.5 * (1 + t) + (T)0.5 * x * (1 - t * t) * du; \
    }
POINTWISE_MATH(float, f, v_exp_f, v_tanh_f, v_erf_f)
POINTWISE_MATH(double, d, exp, tanh, erf)

/* x in [lo, hi], NaN stays. */
typedef struct clamp_bounds {
    double lo, hi;
    int64_t ilo, ihi;
} clamp_bounds;

/* ---- infer, gradients and samples shared by several ops */

#ifdef NP_BASE_ONLY

static bool no_bool(np_frame *f)
{
    if (f->compute != NEAP_BOOL) return true;
    np_fail(f->c, NEAP_E_DTYPE,
            "not defined for bool tensors; use bitwise_xor, bitwise_not or x:to(\"int64\")");
    return false;
}
static bool infer_same_number(np_frame *f) { return np_infer_same(f) && no_bool(f); }
static bool infer_binary_number(np_frame *f) { return np_infer_binary(f) && no_bool(f); }

static bool integers_only(np_frame *f)
{
    if (!np_is_float(f->compute)) return true;
    np_fail(f->c, NEAP_E_DTYPE,
            "%s tensors have no bits to combine: integers and bool only; compare first (x:gt(0))",
            np_dtype_name(f->compute));
    return false;
}
static bool infer_same_integer(np_frame *f) { return np_infer_same(f) && integers_only(f); }
static bool infer_binary_integer(np_frame *f) { return np_infer_binary(f) && integers_only(f); }

/* A zero gradient of the same shape, whatever g holds. */
static neap_tensor *zeros_like(np_back *b, neap_tensor *g) { return np_mul0(b, np_num(b, 0), g); }

/* Gradient kernels get a result and its gradient: always of one shape. */
static bool sample_pair(np_sampler *s, int i)
{
    int64_t rows = s->large ? 2048 : 3, cols = s->large ? 1024 : 4;
    if (i > 2 || (s->large && i > 0)) return false;
    s->label = i == 0 ? "contiguous" : i == 1 ? "transposed" : "strided";
    return np_s_tensor(s, -2, 2, 0, 2, rows, cols) && np_s_tensor(s, 0.1, 0.9, i, 2, rows, cols);
}

static bool sample_integers(np_sampler *s, int i)
{
    static const char *const labels[] = {"integers", "bool", "broadcast", "number"};
    if (i > 3) return false;
    s->label = labels[i];
    if (i == 1) return np_s_mask(s, 2, (int64_t)2, (int64_t)3) && np_s_mask(s, 2, (int64_t)2, (int64_t)3);
    if (!np_s_ids(s, -9, 9, 2, (int64_t)4, (int64_t)3)) return false;
    if (i == 0) return np_s_ids(s, -9, 9, 2, (int64_t)4, (int64_t)3);
    if (i == 2) return np_s_ids(s, -9, 9, 1, (int64_t)3);
    np_s_number(s, 5);
    return true;
}
static bool sample_integer(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "bool" : "integers";
    return i ? np_s_mask(s, 2, (int64_t)2, (int64_t)3) : np_s_ids(s, -9, 9, 2, (int64_t)4, (int64_t)3);
}

#endif

/* ---- arithmetic */

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
              .infer = infer_binary_number,
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
                       .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = infer_binary_number,
                       .sample = np_sample_binary_positive};
NP_INPLACE_OP(floor_divide_, floor_divide);
#endif

/* remainder(a, b): a - b * floor(a / b), the sign of b, as Lua's %; an integer modulo 0 is an error. x % 3. */
NP_MAP2_ANY(remainder, a, b, v_mod(a, b), i_mod(a, b))
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
                    .infer = infer_binary_number,
                    .grad = remainder_grad,
                    .sample = np_sample_binary_positive};
NP_INPLACE_OP(remainder_, remainder);
#endif

/* neg(x): -x. */
NP_MAP1_WRAP(neg, x, -x, 0 - x)
NP_CPU(neg)(np_frame *f) { return np_map(f, run_neg, NULL); }

#ifdef NP_BASE_ONLY
static void neg_grad(np_back *b) { b->dx[0] = np_neg(b, b->g[0]); }
NP_OP(neg) = {
    NP_NAMED(neg),    .args = "x:T -> y:T",     .tags = NP_POINTWISE | NP_CHEAP, .infer = infer_same_number,
    .grad = neg_grad, .sample = np_sample_unary};
NP_INPLACE_OP(neg_, neg);
#endif

/* abs(x): |x|; its slope at 0 is 0. */
NP_MAP1_ANY(abs, x, v_abs(x), i_abs(x))
NP_CPU(abs)(np_frame *f) { return np_map(f, run_abs, NULL); }

#ifdef NP_BASE_ONLY
static void abs_grad(np_back *b) { b->dx[0] = np_mul(b, b->g[0], np_sign(b, b->saved[0])); }
NP_OP(abs) = {
    NP_NAMED(abs),          .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_IN(0)},
    .infer = np_infer_same, .grad = abs_grad,     .sample = np_sample_unary};
NP_INPLACE_OP(abs_, abs);
#endif

/* sign(x): -1, 0 or 1; NaN stays NaN. Constant between its steps: no gradient. */
NP_MAP1_ANY(sign, x, v_sign(x), i_sign(x))
NP_CPU(sign)(np_frame *f) { return np_map(f, run_sign, NULL); }

#ifdef NP_BASE_ONLY
NP_OP(sign) = {NP_NAMED(sign), .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF,
               .infer = np_infer_same, .sample = np_sample_unary};
#endif

/* floor(x): the largest integer not above x. Constant between its steps: no gradient. */
NP_MAP1_ANY(floor, x, v_floor(x), x)
NP_CPU(floor)(np_frame *f) { return np_map(f, run_floor, NULL); }

/* ceil(x): the smallest integer not below x. Constant between its steps: no gradient. */
NP_MAP1_ANY(ceil, x, v_ceil(x), x)
NP_CPU(ceil)(np_frame *f) { return np_map(f, run_ceil, NULL); }

/* round(x): the nearest integer, halves to even. Constant between its steps: no gradient. */
NP_MAP1_ANY(round, x, v_round(x), x)
NP_CPU(round)(np_frame *f) { return np_map(f, run_round, NULL); }

/* trunc(x): x without its fraction. Constant between its steps: no gradient. */
NP_MAP1_ANY(trunc, x, v_trunc(x), x)
NP_CPU(trunc)(np_frame *f) { return np_map(f, run_trunc, NULL); }

#ifdef NP_BASE_ONLY
#define STEP_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, \
                     .infer = np_infer_same, .sample = np_sample_unary};
STEP_OP(floor)
STEP_OP(ceil)
STEP_OP(round)
STEP_OP(trunc)
NP_INPLACE_OP(floor_, floor);
NP_INPLACE_OP(ceil_, ceil);
NP_INPLACE_OP(round_, round);
NP_INPLACE_OP(trunc_, trunc);
#endif

/* square(x): x * x. */
NP_MAP1_WRAP(square, x, x *x, x *x)
NP_CPU(square)(np_frame *f) { return np_map(f, run_square, NULL); }

#ifdef NP_BASE_ONLY
static void square_grad(np_back *b) { b->dx[0] = np_mul(b, b->g[0], np_mul(b, b->saved[0], np_num(b, 2))); }
NP_OP(square) = {NP_NAMED(square),         .args = "x:T -> y:T",   .tags = NP_POINTWISE | NP_CHEAP,
                 .save = {NP_IN(0)},       .infer = np_infer_same, .grad = square_grad,
                 .sample = np_sample_unary};
NP_INPLACE_OP(square_, square);
#endif

/* reciprocal(x): 1 / x. */
NP_MAP1(reciprocal, x, 1 / x)
NP_CPU(reciprocal)(np_frame *f) { return np_map(f, run_reciprocal, NULL); }

#ifdef NP_BASE_ONLY
static void reciprocal_grad(np_back *b)
{
    b->dx[0] = np_neg(b, np_mul0(b, b->g[0], np_square(b, b->saved[0])));
}
NP_OP(reciprocal) = {NP_NAMED(reciprocal),     .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
                     .save = {NP_OUT(0)},      .infer = np_infer_float, .grad = reciprocal_grad,
                     .sample = np_sample_unary};
NP_INPLACE_OP(reciprocal_, reciprocal);
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

/* clamp(x, {min=, max=}): x brought into [min, max]; NaN stays. The gradient passes where min <= x <= max. */
#define CLAMP_RUN(S, T, LO, HI) \
    static void run_clamp_##S(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        const clamp_bounds *bounds = arg; \
        const T lo = (T)bounds->LO, hi = (T)bounds->HI; \
        T *y = (T *)p[0]; \
        const T *x = (const T *)p[1]; \
        int64_t step = s[1] ? 1 : 0; \
        NP_IVDEP for (int64_t i = 0; i < n; i++) \
        { \
            T v = x[i * step]; \
            v = v < lo ? lo : v; \
            y[i] = v > hi ? hi : v; \
        } \
    }
CLAMP_RUN(f32, float, lo, hi)
CLAMP_RUN(f64, double, lo, hi)
CLAMP_RUN(i64, int64_t, ilo, ihi)
CLAMP_RUN(i32, int32_t, ilo, ihi)
CLAMP_RUN(i8, int8_t, ilo, ihi)
CLAMP_RUN(u8, uint8_t, ilo, ihi)
NP_RUNS(clamp) = {NP_FLOAT_ROWS(clamp), [NEAP_INT64] = run_clamp_i64, [NEAP_INT32] = run_clamp_i32,
                  [NEAP_INT8] = run_clamp_i8, [NEAP_UINT8] = run_clamp_u8};

NP_CPU(clamp)(np_frame *f)
{
    clamp_bounds b = {.lo = f->attr[0].has ? f->attr[0].f : -INFINITY,
                      .hi = f->attr[1].has ? f->attr[1].f : INFINITY};
    np_int_range(f->compute, &b.ilo, &b.ihi);
    if (f->attr[0].has) np_attr_whole(&f->attr[0], &b.ilo); /* an infinite bound is none */
    if (f->attr[1].has) np_attr_whole(&f->attr[1], &b.ihi);
    return np_map(f, run_clamp, &b);
}

#ifdef NP_BASE_ONLY
static bool clamp_infer(np_frame *f)
{
    if (!infer_same_number(f)) return false;
    const np_attr *min = &f->attr[0], *max = &f->attr[1];
    if (min->has || max->has) {
        if ((min->has && isnan(min->f)) || (max->has && isnan(max->f))) {
            np_fail(f->c, NEAP_E_ARG, "a bound is NaN");
            return false;
        }
        return (!min->has || min->f == -INFINITY || np_attr_fits(f->c, min, f->compute)) &&
               (!max->has || max->f == INFINITY || np_attr_fits(f->c, max, f->compute));
    }
    np_fail(f->c, NEAP_E_ARG, "neither min nor max is given; say x:clamp{min = 0}, x:clamp{max = 1} or both");
    return false;
}
static void clamp_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0];
    if (b->attr[0].has) g = np_where(b, np_ge(b, x, np_num(b, b->attr[0].f)), g, np_num(b, 0));
    if (b->attr[1].has) g = np_where(b, np_le(b, x, np_num(b, b->attr[1].f)), g, np_num(b, 0));
    b->dx[0] = g;
}
static bool clamp_sample(np_sampler *s, int i)
{
    if (i > 2 || !np_s_tensor(s, 0.1, 1, i, 2, (int64_t)3, (int64_t)4)) return false;
    s->label = i == 0 ? "inside" : i == 1 ? "min only" : "max only";
    if (i != 2) s->attr[0] = (np_attr){.f = i == 0 ? 0.05 : 1.5, .has = 1};
    if (i != 1) s->attr[1] = (np_attr){.f = i == 0 ? 1.25 : 0.05, .has = 1};
    return true;
}
NP_OP(clamp) = {NP_NAMED(clamp),
                .args = "x:T ; min:float? max:float? -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0)},
                .infer = clamp_infer,
                .grad = clamp_grad,
                .sample = clamp_sample};
NP_INPLACE_OP(clamp_, clamp);
#endif

/* where(mask, a, b): a where the mask is true, else b, with broadcasting. The side that is not chosen gets a
 * gradient of exactly 0, whatever its value. neap.where(x:gt(0), x, 0). */
#define WHERE_RUN(S, T) \
    static void run_where_##S(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        (void)arg; \
        T *y = (T *)p[0]; \
        const uint8_t *m = (const uint8_t *)p[1]; \
        const T *a = (const T *)p[2], *b = (const T *)p[3]; \
        if (s[1] && s[2] && s[3]) { \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i], v = b[i]; \
                y[i] = m[i] ? u : v; \
            } \
        } else if (s[1] && s[2]) { \
            const T v = *b; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i]; \
                y[i] = m[i] ? u : v; \
            } \
        } else { \
            int64_t sm = s[1] ? 1 : 0, sa = s[2] ? 1 : 0, sb = s[3] ? 1 : 0; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i * sa], v = b[i * sb]; \
                y[i] = m[i * sm] ? u : v; \
            } \
        } \
    }
WHERE_RUN(1, uint8_t)
WHERE_RUN(2, uint16_t)
WHERE_RUN(4, uint32_t)
WHERE_RUN(8, uint64_t)
NP_CPU(where)(np_frame *f) /* moves bits: half types need no float */
{
    size_t size = np_dtype_size(f->compute);
    uint8_t t = (uint8_t)f->compute;
    np_map_job m = {.run = size == 1   ? run_where_1
                           : size == 2 ? run_where_2
                           : size == 4 ? run_where_4
                                       : run_where_8,
                    .n = 4,
                    .type = {t, NEAP_BOOL, t, t},
                    .t = {f->out[0], f->in[0], f->in[1], f->in[2]}};
    return np_map_go(f->c, &m);
}

#ifdef NP_BASE_ONLY
static bool where_infer(np_frame *f)
{
    char text[3][128];
    if (!np_same_device(f)) return false;
    if (f->in[0]->dtype != NEAP_BOOL) {
        np_fail(f->c, NEAP_E_DTYPE, "the mask is %s; it must be bool: compare first, as in x:ne(0)",
                np_dtype_name((neap_dtype)f->in[0]->dtype));
        return false;
    }
    int ndim = f->in[0]->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, f->in[0]->shape, sizeof shape);
    for (int i = 1; i < 3; i++) {
        if (np_broadcast_shape(&ndim, shape, f->in[i]->ndim, f->in[i]->shape)) continue;
        for (int k = 0; k < 3; k++) np_shape_text(text[k], sizeof text[k], f->in[k]->ndim, f->in[k]->shape);
        np_fail(f->c, NEAP_E_SHAPE, "mask %s, a %s and b %s do not broadcast; sizes must be equal or 1",
                text[0], text[1], text[2]);
        return false;
    }
    f->compute = np_promote_operands(f->in + 1, 2);
    np_meta_set(f, 0, f->compute, ndim, shape);
    return np_number_fits(f->c, f->in[1], f->compute) && np_number_fits(f->c, f->in[2], f->compute);
}
static void where_grad(np_back *b)
{
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_where(b, b->saved[0], b->g[0], np_num(b, 0)), 1);
    if (b->need[2]) b->dx[2] = np_unbroadcast(b, np_where(b, b->saved[0], np_num(b, 0), b->g[0]), 2);
}
static bool where_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"same shape", "broadcast", "number"};
    int64_t n = s->large ? 1024 : 3;
    if (i > 2 || !np_s_mask(s, 2, n, (int64_t)4)) return false;
    s->label = labels[i];
    if (!np_s_tensor(s, -2, 2, i, 2, n, (int64_t)4)) return false;
    if (i == 0) return np_s_tensor(s, -2, 2, 1, 2, n, (int64_t)4);
    if (i == 1) return np_s_tensor(s, -2, 2, 0, 1, (int64_t)4);
    np_s_number(s, 0.5);
    return true;
}
NP_OP(where) = {NP_NAMED(where),
                .args = "mask:T a:N b:N -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0)},
                .infer = where_infer,
                .grad = where_grad,
                .sample = where_sample};
#endif

/* ---- functions */

/* exp(x): e^x. */
NP_MAP1(exp, x, v_exp(x))
NP_CPU(exp)(np_frame *f) { return np_map(f, run_exp, NULL); }

#ifdef NP_BASE_ONLY
static void exp_grad(np_back *b) { b->dx[0] = np_mul0(b, b->g[0], b->saved[0]); }
NP_OP(exp) = {
    NP_NAMED(exp),           .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_OUT(0)},
    .infer = np_infer_float, .grad = exp_grad,     .sample = np_sample_unary};
NP_INPLACE_OP(exp_, exp);
#endif

/* log(x): the natural logarithm; log(0) = -inf, of negatives NaN. */
NP_MAP1(log, x, v_log(x))
NP_CPU(log)(np_frame *f) { return np_map(f, run_log, NULL); }

#ifdef NP_BASE_ONLY
static void log_grad(np_back *b) { b->dx[0] = np_div0(b, b->g[0], b->saved[0]); }
NP_OP(log) = {
    NP_NAMED(log),           .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP,   .save = {NP_IN(0)},
    .infer = np_infer_float, .grad = log_grad,     .sample = np_sample_unary_positive};
NP_INPLACE_OP(log_, log);
#endif

/* log1p(x): log(1 + x), exact for small x. */
NP_MAP1(log1p, x, v_log1p(x))
NP_CPU(log1p)(np_frame *f) { return np_map(f, run_log1p, NULL); }

#ifdef NP_BASE_ONLY
static void log1p_grad(np_back *b) { b->dx[0] = np_div0(b, b->g[0], np_add(b, b->saved[0], np_num(b, 1))); }
NP_OP(log1p) = {
    NP_NAMED(log1p),         .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP,   .save = {NP_IN(0)},
    .infer = np_infer_float, .grad = log1p_grad,   .sample = np_sample_unary_positive};
#endif

/* sqrt(x): the square root. */
NP_MAP1(sqrt, x, v_sqrt(x))
NP_CPU(sqrt)(np_frame *f) { return np_map(f, run_sqrt, NULL); }

#ifdef NP_BASE_ONLY
static void sqrt_grad(np_back *b) { b->dx[0] = np_div0(b, b->g[0], np_mul(b, b->saved[0], np_num(b, 2))); }
NP_OP(sqrt) = {
    NP_NAMED(sqrt),          .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP,   .save = {NP_OUT(0)},
    .infer = np_infer_float, .grad = sqrt_grad,    .sample = np_sample_unary_positive};
NP_INPLACE_OP(sqrt_, sqrt);
#endif

/* rsqrt(x): 1 / sqrt(x). */
NP_MAP1(rsqrt, x, 1 / v_sqrt(x))
NP_CPU(rsqrt)(np_frame *f) { return np_map(f, run_rsqrt, NULL); }

#ifdef NP_BASE_ONLY
static void rsqrt_grad(np_back *b)
{
    neap_tensor *cube = np_mul(b, np_square(b, b->saved[0]), b->saved[0]);
    b->dx[0] = np_mul0(b, b->g[0], np_mul(b, cube, np_num(b, -0.5)));
}
NP_OP(rsqrt) = {
    NP_NAMED(rsqrt),         .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP,   .save = {NP_OUT(0)},
    .infer = np_infer_float, .grad = rsqrt_grad,   .sample = np_sample_unary_positive};
#endif

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

/* tanh(x): the hyperbolic tangent. */
NP_MAP1(tanh, x, v_tanh(x))
NP_CPU(tanh)(np_frame *f) { return np_map(f, run_tanh, NULL); }

/* tanh_grad(g, y): g (1 - y^2), the gradient of tanh at its result y. */
NP_MAP2(tanh_grad, g, y, g *(1 - y * y))
NP_CPU(tanh_grad)(np_frame *f) { return np_map(f, run_tanh_grad, NULL); }

#ifdef NP_BASE_ONLY
static void tanh_backward(np_back *b) { b->dx[0] = np_tanh_grad(b, b->g[0], b->saved[0]); }
static void tanh_grad_backward(np_back *b)
{
    neap_tensor *g = b->saved[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_tanh_grad(b, b->g[0], y);
    if (b->need[1]) b->dx[1] = np_mul(b, np_mul(b, b->g[0], g), np_mul(b, y, np_num(b, -2)));
}
NP_OP(tanh) = {NP_NAMED(tanh),           .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_OUT(0)},      .infer = np_infer_float, .grad = tanh_backward,
               .sample = np_sample_unary};
NP_INPLACE_OP(tanh_, tanh);
NP_OP(tanh_grad) = {NP_NAMED(tanh_grad),
                    .args = "g:T y:T -> dx:T",
                    .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                    .save = {NP_IN_FOR(0, 1), NP_IN(1)},
                    .infer = np_infer_binary_float,
                    .grad = tanh_grad_backward,
                    .sample = sample_pair};
#endif

/* sigmoid(x): 1 / (1 + e^-x). */
NP_MAP1(sigmoid, x, v_sigmoid(x))
NP_CPU(sigmoid)(np_frame *f) { return np_map(f, run_sigmoid, NULL); }

/* sigmoid_grad(g, y): g y (1 - y), the gradient of sigmoid at its result y. */
NP_MAP2(sigmoid_grad, g, y, g *(y *(1 - y)))
NP_CPU(sigmoid_grad)(np_frame *f) { return np_map(f, run_sigmoid_grad, NULL); }

#ifdef NP_BASE_ONLY
static void sigmoid_backward(np_back *b) { b->dx[0] = np_sigmoid_grad(b, b->g[0], b->saved[0]); }
static void sigmoid_grad_backward(np_back *b)
{
    neap_tensor *g = b->saved[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_sigmoid_grad(b, b->g[0], y);
    if (b->need[1]) {
        neap_tensor *slope = np_sub(b, np_num(b, 1), np_mul(b, y, np_num(b, 2)));
        b->dx[1] = np_mul(b, np_mul(b, b->g[0], g), slope);
    }
}
NP_OP(sigmoid) = {NP_NAMED(sigmoid),        .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
                  .save = {NP_OUT(0)},      .infer = np_infer_float, .grad = sigmoid_backward,
                  .sample = np_sample_unary};
NP_INPLACE_OP(sigmoid_, sigmoid);
NP_OP(sigmoid_grad) = {NP_NAMED(sigmoid_grad),
                       .args = "g:T y:T -> dx:T",
                       .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                       .save = {NP_IN_FOR(0, 1), NP_IN(1)},
                       .infer = np_infer_binary_float,
                       .grad = sigmoid_grad_backward,
                       .sample = sample_pair};
#endif

/* relu(x): max(x, 0); its slope at 0 is 0; NaN stays NaN. */
NP_MAP1_ANY(relu, x, v_relu(x), x > 0 ? x : 0)
NP_CPU(relu)(np_frame *f) { return np_map(f, run_relu, NULL); }

/* relu_grad(g, y): g where the result y of relu is above 0, else 0. */
NP_MAP2(relu_grad, g, y, v_sel(!(y > 0), 0, g))
NP_CPU(relu_grad)(np_frame *f) { return np_map(f, run_relu_grad, NULL); }

#ifdef NP_BASE_ONLY
static void relu_backward(np_back *b) { b->dx[0] = np_relu_grad(b, b->g[0], b->saved[0]); }
static void relu_grad_backward(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_relu_grad(b, b->g[0], b->saved[0]);
    if (b->need[1]) b->dx[1] = zeros_like(b, b->g[0]);
}
NP_OP(relu) = {NP_NAMED(relu),           .args = "x:T -> y:T",   .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_OUT(0)},      .infer = np_infer_same, .grad = relu_backward,
               .sample = np_sample_unary};
NP_INPLACE_OP(relu_, relu);
NP_OP(relu_grad) = {
    NP_NAMED(relu_grad),  .args = "g:T y:T -> dx:T",      .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
    .save = {NP_IN(1)},   .infer = np_infer_binary_float, .grad = relu_grad_backward,
    .sample = sample_pair};
#endif

/* gelu(x, {tanh=false}): x times the normal distribution function of x, by erf, or by the tanh approximation. */
NP_MAP1(gelu, x, v_gelu(x))
NP_MAP1(gelu_tanh, x, V_PICK(x, gelu_tanh_f, gelu_tanh_d))
NP_CPU(gelu)(np_frame *f) { return np_map(f, f->attr[0].i ? run_gelu_tanh : run_gelu, NULL); }

/* gelu_grad(g, x, {tanh=false}): g times the slope of gelu at x. */
NP_MAP2(gelu_slope, g, x, g *V_PICK(x, gelu_slope_f, gelu_slope_d))
NP_MAP2(gelu_tanh_slope, g, x, g *V_PICK(x, gelu_tanh_slope_f, gelu_tanh_slope_d))
NP_CPU(gelu_grad)(np_frame *f)
{
    return np_map(f, f->attr[0].i ? run_gelu_tanh_slope : run_gelu_slope, NULL);
}

#ifdef NP_BASE_ONLY
static void gelu_backward(np_back *b) { b->dx[0] = np_gelu_grad(b, b->g[0], b->saved[0], b->attr[0].i != 0); }

/* Second derivative by erf: phi(x) (2 - x^2). */
static neap_tensor *gelu_curve(np_back *b, neap_tensor *x)
{
    neap_tensor *phi = np_exp(b, np_mul(b, np_square(b, x), np_num(b, -0.5)));
    neap_tensor *rest = np_sub(b, np_num(b, 2), np_square(b, x));
    return np_mul(b, np_mul(b, phi, np_num(b, 0.39894228040143267794)), rest);
}
/* By tanh: with u = k (x + a x^3), t = tanh u:  (1 - t^2) (u' + x/2 (u'' - 2 t u'^2)). */
static neap_tensor *gelu_tanh_curve(np_back *b, neap_tensor *x)
{
    const double k = 0.79788456080286535588, a = 0.044715;
    neap_tensor *x2 = np_hold(b, np_hold(b, np_square(b, x)));
    neap_tensor *u = np_mul(b, x, np_add(b, np_mul(b, x2, np_num(b, k * a)), np_num(b, k)));
    neap_tensor *t = np_hold(b, np_tanh(b, u));
    neap_tensor *du = np_hold(b, np_add(b, np_mul(b, x2, np_num(b, 3 * k * a)), np_num(b, k)));
    neap_tensor *bend = np_mul(b, x2, np_num(b, 3 * k * a)); /* x u'' / 2 */
    neap_tensor *turn = np_mul(b, np_mul(b, t, x), np_square(b, np_hold(b, du)));
    neap_tensor *sum = np_add(b, du, np_sub(b, bend, turn));
    return np_mul(b, np_sub(b, np_num(b, 1), np_square(b, t)), sum);
}
static void gelu_grad_backward(np_back *b)
{
    neap_tensor *g = b->saved[0], *x = b->saved[1];
    bool by_tanh = b->attr[0].i != 0;
    if (b->need[0]) b->dx[0] = np_gelu_grad(b, b->g[0], x, by_tanh);
    if (b->need[1])
        b->dx[1] = np_mul(b, np_mul(b, b->g[0], g), by_tanh ? gelu_tanh_curve(b, x) : gelu_curve(b, x));
}
static bool gelu_sample(np_sampler *s, int i)
{
    if (i == 6 && !np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)4)) return false;
    if (i > 6 || (i < 6 && !np_sample_unary(s, i))) return false;
    if (i == 6) s->label = "tanh";
    s->attr[0] = (np_attr){.i = i == 6, .has = 1};
    return true;
}
static bool gelu_grad_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "tanh" : "erf";
    s->attr[0] = (np_attr){.i = i, .has = 1};
    return np_s_tensor(s, -2, 2, 0, 2, (int64_t)3, (int64_t)4) &&
           np_s_tensor(s, -2, 2, 1, 2, (int64_t)3, (int64_t)4);
}
NP_OP(gelu) = {NP_NAMED(gelu),
               .args = "x:T ; tanh:bool=false -> y:T",
               .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_IN(0)},
               .infer = np_infer_float,
               .grad = gelu_backward,
               .sample = gelu_sample};
NP_OP(gelu_grad) = {NP_NAMED(gelu_grad),
                    .args = "g:T x:T ; tanh:bool=false -> dx:T",
                    .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                    .save = {NP_IN_FOR(0, 1), NP_IN(1)},
                    .infer = np_infer_binary_float,
                    .grad = gelu_grad_backward,
                    .sample = gelu_grad_sample};
#endif

/* softplus(x): log(1 + e^x), as max(x, 0) + log1p(e^-|x|) so that it never overflows. Its slope is sigmoid(x). */
NP_MAP1(softplus, x, v_softplus(x))
NP_CPU(softplus)(np_frame *f) { return np_map(f, run_softplus, NULL); }

#ifdef NP_BASE_ONLY
static void softplus_grad(np_back *b) { b->dx[0] = np_mul(b, b->g[0], np_sigmoid(b, b->saved[0])); }
NP_OP(softplus) = {NP_NAMED(softplus),       .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
                   .save = {NP_IN(0)},       .infer = np_infer_float, .grad = softplus_grad,
                   .sample = np_sample_unary};
#endif

/* erf(x): the error function. */
NP_MAP1(erf, x, v_erf(x))
NP_CPU(erf)(np_frame *f) { return np_map(f, run_erf, NULL); }

#ifdef NP_BASE_ONLY
static void erf_grad(np_back *b)
{
    neap_tensor *bell = np_exp(b, np_neg(b, np_square(b, b->saved[0])));
    b->dx[0] = np_mul(b, b->g[0], np_mul(b, bell, np_num(b, 1.12837916709551257390)));
}
NP_OP(erf) = {
    NP_NAMED(erf),           .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP, .save = {NP_IN(0)},
    .infer = np_infer_float, .grad = erf_grad,     .sample = np_sample_unary};
#endif

/* pow(x, n): x^n with broadcasting. Integers stay integers and refuse a negative n. x ^ 2. At x = 0 the slope
 * in n is 0 for n >= 0, and the slope in x is 0 for n = 0. */
NP_MAP2_ANY(pow, x, n, v_pow(x, n), i_pow(x, n))
NP_CPU(pow)(np_frame *f)
{
    if (!np_is_float(f->compute) && f->out[0]->numel > 0 && holds(f->in[1], f->compute, is_negative)) {
        np_fail(f->c, NEAP_E_ARG,
                "an integer to a negative power is not an integer; use floats: x:to(\"float32\") ^ n");
        return false;
    }
    if (np_is_float(f->compute) && f->in[1]->number) { /* x ^ 2 as a product */
        double n = np_load_double((neap_dtype)f->in[1]->dtype, np_ptr(f->in[1]));
        if (n == 2) {
            np_map_job m = {.run = run_square[f->compute], .n = 2, .t = {f->out[0], f->in[0]}};
            m.type[0] = m.type[1] = (uint8_t)np_run_type(f->compute);
            return np_map_go(f->c, &m);
        }
    }
    return np_map(f, run_pow, NULL);
}

/* pow_dx(x, n): n x^(n-1), 0 for n = 0: the slope of x^n in x. */
NP_MAP2(pow_dx, x, n, n == 0 ? 0 : n == 2 ? 2 * x : n * v_pow(x, n - 1))
NP_CPU(pow_dx)(np_frame *f) { return np_map(f, run_pow_dx, NULL); }

/* pow_dn(x, n): x^n log x, 0 at x = 0 for n >= 0: the slope of x^n in n. */
NP_MAP2(pow_dn, x, n, x == 0 && n >= 0 ? 0 : v_pow(x, n) * v_log(x))
NP_CPU(pow_dn)(np_frame *f) { return np_map(f, run_pow_dn, NULL); }

#ifdef NP_BASE_ONLY
static void pow_grad(np_back *b)
{
    neap_tensor *x = b->saved[0], *n = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul0(b, b->g[0], np_pow_dx(b, x, n)), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul0(b, b->g[0], np_pow_dn(b, x, n)), 1);
}
/* The mixed slope x^(n-1) (1 + n log x). */
static neap_tensor *pow_mixed(np_back *b, neap_tensor *x, neap_tensor *n)
{
    neap_tensor *less = np_hold(b, np_sub(b, n, np_num(b, 1)));
    neap_tensor *p = np_pow(b, x, less);
    return np_add(b, p, np_mul(b, n, np_pow_dn(b, x, less)));
}
static void pow_dx_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *n = b->saved[1];
    if (b->need[0]) {
        neap_tensor *slope = np_mul0(b, n, np_pow_dx(b, x, np_sub(b, n, np_num(b, 1))));
        b->dx[0] = np_unbroadcast(b, np_mul0(b, g, slope), 0);
    }
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul0(b, g, pow_mixed(b, x, n)), 1);
}
static void pow_dn_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *n = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul0(b, g, pow_mixed(b, x, n)), 0);
    if (b->need[1]) {
        neap_tensor *slope = np_mul0(b, np_pow_dn(b, x, n), np_log(b, x));
        b->dx[1] = np_unbroadcast(b, np_mul0(b, g, slope), 1);
    }
}
static bool pow_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"same shape", "broadcast", "number", "square"};
    if (i > 3 || !np_s_tensor(s, 0.3, 2, i == 1, 2, (int64_t)3, (int64_t)4)) return false;
    s->label = labels[i];
    if (i == 0) return np_s_tensor(s, 0.5, 3, 1, 2, (int64_t)3, (int64_t)4);
    if (i == 1) return np_s_tensor(s, 0.5, 3, 0, 1, (int64_t)4);
    np_s_number(s, i == 2 ? 1.5 : 2);
    return true;
}
NP_OP(pow) = {NP_NAMED(pow),
              .args = "x:N n:N -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .save = {NP_IN(0), NP_IN(1)},
              .infer = np_infer_binary,
              .grad = pow_grad,
              .sample = pow_sample};
NP_INPLACE_OP(pow_, pow);
NP_OP(pow_dx) = {NP_NAMED(pow_dx),
                 .args = "x:N n:N -> y:T",
                 .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                 .save = {NP_IN(0), NP_IN(1)},
                 .infer = np_infer_binary_float,
                 .grad = pow_dx_grad,
                 .sample = pow_sample};
NP_OP(pow_dn) = {NP_NAMED(pow_dn),
                 .args = "x:N n:N -> y:T",
                 .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                 .save = {NP_IN(0), NP_IN(1)},
                 .infer = np_infer_binary_float,
                 .grad = pow_dn_grad,
                 .sample = pow_sample};
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

/* ---- bits and truth */

/* bitwise_and(a, b): a & b of integers; of bool: and. x:gt(0) & x:lt(1). */
NP_MAP2_INT(bitwise_and, a, b, a &b)
NP_CPU(bitwise_and)(np_frame *f) { return np_map(f, run_bitwise_and, NULL); }

/* bitwise_or(a, b): a | b of integers; of bool: or. */
NP_MAP2_INT(bitwise_or, a, b, a | b)
NP_CPU(bitwise_or)(np_frame *f) { return np_map(f, run_bitwise_or, NULL); }

/* bitwise_xor(a, b): a ~ b of integers; of bool: exclusive or. */
NP_MAP2_INT(bitwise_xor, a, b, a ^ b)
NP_CPU(bitwise_xor)(np_frame *f) { return np_map(f, run_bitwise_xor, NULL); }

/* bitwise_not(x): ~x of integers; of bool: not. ~mask. */
NP_RUN1(bitwise_not, i64, int64_t, int64_t, x, ~x)
NP_RUN1(bitwise_not, i32, int32_t, int32_t, x, ~x)
NP_RUN1(bitwise_not, i8, int8_t, int8_t, x, ~x)
NP_RUN1(bitwise_not, u8, uint8_t, uint8_t, x, ~x)
NP_RUN1(bitwise_not, u1, bool, bool, x, !x)
NP_RUNS(bitwise_not) = {NP_INT_ROWS(bitwise_not)};
NP_CPU(bitwise_not)(np_frame *f) { return np_map(f, run_bitwise_not, NULL); }

#ifdef NP_BASE_ONLY
#define BITS_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "a:N b:N -> y:T", \
                     .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = infer_binary_integer, \
                     .sample = sample_integers};
BITS_OP(bitwise_and)
BITS_OP(bitwise_or)
BITS_OP(bitwise_xor)
NP_OP(bitwise_not) = {NP_NAMED(bitwise_not), .args = "x:T -> y:T",
                      .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = infer_same_integer,
                      .sample = sample_integer};
#endif
