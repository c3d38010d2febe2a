/* power.c - squares, roots, reciprocals and powers, element by element. The conventions are those of binary.c. */
#include "ops/cpu/loops.h"
#include "ops/cpu/vec_more.h"
#include "ops/sample.h"

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
NP_OP(reciprocal) = {
    NP_NAMED(reciprocal),     .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
    .save = {NP_OUT(0)},      .infer = np_infer_float, .grad = reciprocal_grad,
    .sample = np_sample_unary};
NP_INPLACE_OP(reciprocal_, reciprocal);
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
NP_OP(rsqrt) = {NP_NAMED(rsqrt),
                .args = "x:T -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
                .save = {NP_OUT(0)},
                .infer = np_infer_float,
                .grad = rsqrt_grad,
                .sample = np_sample_unary_positive};
NP_INPLACE_OP(rsqrt_, rsqrt);
#endif

static inline int64_t i_pow(int64_t a, int64_t n)
{
    uint64_t x = (uint64_t)a, y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return (int64_t)y;
}

static inline bool is_negative(int64_t v) { return v < 0; }

/* pow(x, n): x^n with broadcasting. Integers stay integers and refuse a negative n. x ^ 2. At x = 0 the slope
 * in n is 0 for n >= 0, and the slope in x is 0 for n = 0. */
#define POW(x, n) V_PICK2(x, n, v_pow_f, pow)
NP_MAP2_ANY(pow, x, n, POW(x, n), i_pow(x, n))
NP_CPU(pow)(np_frame *f)
{
    if (!np_is_float(f->compute) && f->out[0]->numel > 0 && np_holds(f->in[1], f->compute, is_negative)) {
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
NP_MAP2(pow_dx, x, n, v_sel(n == 0, 0, v_sel(n == 2, 2 * x, n *POW(x, n - 1))))
NP_CPU(pow_dx)(np_frame *f) { return np_map(f, run_pow_dx, NULL); }

/* pow_dn(x, n): x^n log x, 0 at x = 0 for n >= 0: the slope of x^n in n. */
NP_MAP2(pow_dn, x, n, v_sel((x == 0) & (n >= 0), 0, POW(x, n) * v_log(x)))
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
              .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
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
