/* unary.c - sign, rounding, exponentials and logarithms, element by element. The conventions are those of binary.c.
 * Roots and powers are in power.c, angles in trig.c, what networks call activations in activation.c. */
#include <float.h>

#include "ops/cpu/loops.h"
#include "ops/cpu/vec_more.h"
#include "ops/sample.h"

/* Integers of every width go through 64 bits and are cut to their type. */
static inline int64_t i_abs(int64_t x) { return x < 0 ? (int64_t)(0 - (uint64_t)x) : x; }
static inline int64_t i_sign(int64_t x) { return (x > 0) - (x < 0); }

/* neg(x): -x. */
NP_MAP1_WRAP(neg, x, -x, 0 - x)
NP_CPU(neg)(np_frame *f) { return np_map(f, run_neg, NULL); }

#ifdef NP_BASE_ONLY
static void neg_grad(np_back *b) { b->dx[0] = np_neg(b, b->g[0]); }
NP_OP(neg) = {NP_NAMED(neg),
              .args = "x:T -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .infer = np_infer_same_number,
              .grad = neg_grad,
              .sample = np_sample_unary};
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

/* frac(x): the fraction of x, with its sign: x - trunc(x); of integers 0. */
NP_MAP1_ANY(frac, x, x - v_trunc(x), x - x)
NP_CPU(frac)(np_frame *f) { return np_map(f, run_frac, NULL); }

#ifdef NP_BASE_ONLY
static void frac_grad(np_back *b) { b->dx[0] = np_unbroadcast(b, b->g[0], 0); }
NP_OP(frac) = {NP_NAMED(frac),         .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP,
               .infer = np_infer_same, .grad = frac_grad,    .sample = np_sample_unary};
NP_INPLACE_OP(frac_, frac);
#endif

/* nan_to_num(x, {nan=0, posinf=, neginf=}): NaN and the infinities replaced by numbers: 0 and, unless others are given,
 * the largest and the smallest number of the dtype. The gradient passes where x was finite. Integers stay. */
typedef struct replacements {
    double nan, high, low;
} replacements;
NP_MAP1_WITH(nan_to_num, replacements, k, x,
             v_sel(x != x, k.nan,
                   v_sel(x == (double)INFINITY, k.high, v_sel(x == -(double)INFINITY, k.low, x))))
NP_CPU(nan_to_num)(np_frame *f)
{
    static const double most[NEAP_N_DTYPES] = {[NEAP_FLOAT32] = FLT_MAX,
                                               [NEAP_FLOAT64] = DBL_MAX,
                                               [NEAP_FLOAT16] = 65504,
                                               [NEAP_BFLOAT16] = 0x1.fep127};
    if (!np_is_float(f->compute)) return f->out[0] == f->in[0] || np_copy_into(f->c, f->out[0], f->in[0]);
    replacements k = {.nan = f->attr[0].f,
                      .high = f->attr[1].has ? f->attr[1].f : most[f->compute],
                      .low = f->attr[2].has ? f->attr[2].f : -most[f->compute]};
    return np_map(f, run_nan_to_num, &k);
}

#ifdef NP_BASE_ONLY
static void nan_to_num_grad(np_back *b)
{
    b->dx[0] = np_where(b, np_isfinite(b, b->saved[0]), b->g[0], np_num(b, 0));
}
NP_OP(nan_to_num) = {NP_NAMED(nan_to_num),
                     .args = "x:T ; nan:float=0 posinf:float? neginf:float? -> y:T",
                     .tags = NP_POINTWISE | NP_CHEAP,
                     .save = {NP_IN(0)},
                     .infer = np_infer_same,
                     .grad = nan_to_num_grad,
                     .sample = np_sample_unary};
NP_INPLACE_OP(nan_to_num_, nan_to_num);
#endif

/* exp(x): e^x. */
NP_MAP1(exp, x, v_exp(x))
NP_CPU(exp)(np_frame *f) { return np_map(f, run_exp, NULL); }

#ifdef NP_BASE_ONLY
static void exp_grad(np_back *b) { b->dx[0] = np_mul0(b, b->g[0], b->saved[0]); }
NP_OP(exp) = {NP_NAMED(exp),
              .args = "x:T -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
              .save = {NP_OUT(0)},
              .infer = np_infer_float,
              .grad = exp_grad,
              .sample = np_sample_unary};
NP_INPLACE_OP(exp_, exp);
#endif

/* log(x): the natural logarithm; log(0) = -inf, of negatives NaN. */
NP_MAP1(log, x, v_log(x))
NP_CPU(log)(np_frame *f) { return np_map(f, run_log, NULL); }

#ifdef NP_BASE_ONLY
static void log_grad(np_back *b) { b->dx[0] = np_div0(b, b->g[0], b->saved[0]); }
NP_OP(log) = {NP_NAMED(log),
              .args = "x:T -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
              .save = {NP_IN(0)},
              .infer = np_infer_float,
              .grad = log_grad,
              .sample = np_sample_unary_positive};
NP_INPLACE_OP(log_, log);
#endif

/* log1p(x): log(1 + x), exact for small x. */
NP_MAP1(log1p, x, v_log1p(x))
NP_CPU(log1p)(np_frame *f) { return np_map(f, run_log1p, NULL); }

#ifdef NP_BASE_ONLY
static void log1p_grad(np_back *b) { b->dx[0] = np_div0(b, b->g[0], np_add(b, b->saved[0], np_num(b, 1))); }
NP_OP(log1p) = {NP_NAMED(log1p),
                .args = "x:T -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
                .save = {NP_IN(0)},
                .infer = np_infer_float,
                .grad = log1p_grad,
                .sample = np_sample_unary_positive};
NP_INPLACE_OP(log1p_, log1p);
#endif

/* expm1(x): e^x - 1, exact for small x. */
NP_MAP1(expm1, x, V_PICK(x, v_expm1_f, expm1))
NP_CPU(expm1)(np_frame *f) { return np_map(f, run_expm1, NULL); }

/* exp2(x): 2^x. */
NP_MAP1(exp2, x, V_PICK(x, v_exp2_f, exp2))
NP_CPU(exp2)(np_frame *f) { return np_map(f, run_exp2, NULL); }

/* log2(x): the logarithm to base 2; log2(0) = -inf, of negatives NaN. */
NP_MAP1(log2, x, V_PICK(x, v_log2_f, log2))
NP_CPU(log2)(np_frame *f) { return np_map(f, run_log2, NULL); }

/* log10(x): the logarithm to base 10; log10(0) = -inf, of negatives NaN. */
NP_MAP1(log10, x, V_PICK(x, v_log10_f, log10))
NP_CPU(log10)(np_frame *f) { return np_map(f, run_log10, NULL); }

#ifdef NP_BASE_ONLY
static void expm1_grad(np_back *b) { b->dx[0] = np_mul0(b, b->g[0], np_add(b, b->saved[0], np_num(b, 1))); }
static void exp2_grad(np_back *b)
{
    b->dx[0] = np_mul0(b, b->g[0], np_mul(b, b->saved[0], np_num(b, 0.69314718055994530942)));
}
static void log2_grad(np_back *b)
{
    b->dx[0] = np_div0(b, b->g[0], np_mul(b, b->saved[0], np_num(b, 0.69314718055994530942)));
}
static void log10_grad(np_back *b)
{
    b->dx[0] = np_div0(b, b->g[0], np_mul(b, b->saved[0], np_num(b, 2.30258509299404568402)));
}
#define EXP_OP(opname, saved, sampler) \
    NP_OP(opname) = { \
        NP_NAMED(opname), .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32, \
        .save = {saved},  .infer = np_infer_float, .grad = opname##_grad, \
        .sample = sampler}; \
    NP_INPLACE_OP(opname##_, opname);
EXP_OP(expm1, NP_OUT(0), np_sample_unary)
EXP_OP(exp2, NP_OUT(0), np_sample_unary)
EXP_OP(log2, NP_IN(0), np_sample_unary_positive)
EXP_OP(log10, NP_IN(0), np_sample_unary_positive)
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
NP_INPLACE_OP(erf_, erf);
#endif
