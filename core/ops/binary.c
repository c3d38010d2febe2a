/* binary.c - arithmetic of two operands, element by element, with broadcasting.
 *
 * Each op is one paragraph: kernel, gradient, entry, in-place form. Results are exact copies of the formula in
 * the comment, in the promoted dtype; half types compute in float; integer arithmetic wraps. A zero incoming
 * gradient times an infinite derivative counts as 0: the formulas below use mul0 and div0, which are here too,
 * where a derivative can be infinite. What an op saves is part of its contract. Comparisons are in compare.c, powers
 * in power.c, bits in bits.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* ---- helpers of the kernels: integers of every width go through 64 bits and are cut to their type */

static inline int64_t i_floor_divide(int64_t a, int64_t b)
{
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
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
