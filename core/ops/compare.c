/* compare.c - tests whose results are bool. Operands are compared in their promoted dtype; NaN is equal to
 * nothing, itself included. Nothing here has a gradient. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* eq(a, b): a == b element by element, with broadcasting. x:eq(0). */
NP_TEST2(eq, a, b, a == b)
NP_CPU(eq)(np_frame *f) { return np_map_test(f, run_eq); }

/* ne(a, b): a ~= b element by element, with broadcasting. */
NP_TEST2(ne, a, b, a != b)
NP_CPU(ne)(np_frame *f) { return np_map_test(f, run_ne); }

/* lt(a, b): a < b element by element, with broadcasting. */
NP_TEST2(lt, a, b, a < b)
NP_CPU(lt)(np_frame *f) { return np_map_test(f, run_lt); }

/* le(a, b): a <= b element by element, with broadcasting. */
NP_TEST2(le, a, b, a <= b)
NP_CPU(le)(np_frame *f) { return np_map_test(f, run_le); }

/* gt(a, b): a > b element by element, with broadcasting. x:gt(0). */
NP_TEST2(gt, a, b, a > b)
NP_CPU(gt)(np_frame *f) { return np_map_test(f, run_gt); }

/* ge(a, b): a >= b element by element, with broadcasting. */
NP_TEST2(ge, a, b, a >= b)
NP_CPU(ge)(np_frame *f) { return np_map_test(f, run_ge); }

/* isnan(x): true where x is not a number. */
NP_TEST1(isnan, x, x != x, x != x)
NP_CPU(isnan)(np_frame *f) { return np_map_test(f, run_isnan); }

/* isinf(x): true where x is infinite, of either sign. */
NP_TEST1(isinf, x, v_abs(x) == (double)INFINITY, x != x)
NP_CPU(isinf)(np_frame *f) { return np_map_test(f, run_isinf); }

/* isfinite(x): true where x is neither infinite nor NaN. */
NP_TEST1(isfinite, x, v_abs(x) < (double)INFINITY, x == x)
NP_CPU(isfinite)(np_frame *f) { return np_map_test(f, run_isfinite); }

/* logical_not(x): true where x is 0. */
NP_TEST1(logical_not, x, x == 0, x == 0)
NP_CPU(logical_not)(np_frame *f) { return np_map_test(f, run_logical_not); }

/* logical_and(a, b): true where both are not 0 (NaN is not). */
NP_TEST2(logical_and, a, b, (a != 0) & (b != 0))
NP_CPU(logical_and)(np_frame *f) { return np_map_test(f, run_logical_and); }

/* logical_or(a, b): true where one or both are not 0 (NaN is not). */
NP_TEST2(logical_or, a, b, (a != 0) | (b != 0))
NP_CPU(logical_or)(np_frame *f) { return np_map_test(f, run_logical_or); }

/* logical_xor(a, b): true where exactly one is not 0 (NaN is not). */
NP_TEST2(logical_xor, a, b, (a != 0) ^ (b != 0))
NP_CPU(logical_xor)(np_frame *f) { return np_map_test(f, run_logical_xor); }

/* isclose(a, b, {rtol=1e-5, atol=1e-8, equal_nan=false}): true where a == b or |a - b| <= atol + rtol |b|, in double. An
 * infinity is close to itself alone, NaN to nothing or, with equal_nan, to NaN. neap.allclose answers for all. */
typedef struct closeness {
    double rtol, atol;
    bool equal_nan;
} closeness;
static inline bool is_close(double a, double b, closeness k)
{
    double apart = fabs(a - b);
    bool near = (apart <= k.atol + k.rtol * fabs(b)) & (apart < (double)INFINITY);
    return near | (k.equal_nan & (a != a) & (b != b));
}
#define CLOSE_RUN(S, T) \
    NP_RUN2_WITH(isclose, S, bool, T, closeness, k, a, b, (a == b) | is_close((double)a, (double)b, k))
CLOSE_RUN(f32, float)
CLOSE_RUN(f64, double)
CLOSE_RUN(i64, int64_t)
CLOSE_RUN(i32, int32_t)
CLOSE_RUN(i8, int8_t)
CLOSE_RUN(u8, uint8_t)
CLOSE_RUN(u1, bool)
NP_RUNS(isclose) = {NP_FLOAT_ROWS(isclose), NP_INT_ROWS(isclose)};
NP_CPU(isclose)(np_frame *f)
{
    closeness k = {f->attr[0].f, f->attr[1].f, f->attr[2].i != 0};
    return np_map_to(f, run_isclose, NEAP_BOOL, &k);
}

#ifdef NP_BASE_ONLY
static bool infer_close(np_frame *f)
{
    double rtol = f->attr[0].f, atol = f->attr[1].f;
    if (rtol >= 0 && atol >= 0) return np_infer_compare(f);
    np_fail(f->c, NEAP_E_ARG, "rtol is %g and atol %g; neither may be negative", rtol, atol);
    return false;
}
static bool sample_close(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.3, .has = 1};
    s->attr[1] = (np_attr){.f = 0.1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return np_sample_binary(s, i);
}
NP_OP(isclose) = {NP_NAMED(isclose),
                  .args = "a:N b:N ; rtol:float=1e-5 atol:float=1e-8 equal_nan:bool=false -> y:T",
                  .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = infer_close, .sample = sample_close};

static bool infer_test(np_frame *f)
{
    if (!np_infer_same(f)) return false;
    f->meta[0].dtype = NEAP_BOOL;
    return true;
}

#define COMPARE_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "a:N b:N -> y:T", \
                     .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = np_infer_compare, \
                     .sample = np_sample_binary};
#define TEST_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "x:T -> y:T", .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, \
                     .infer = infer_test, .sample = np_sample_unary};
COMPARE_OP(eq)
COMPARE_OP(ne)
COMPARE_OP(lt)
COMPARE_OP(le)
COMPARE_OP(gt)
COMPARE_OP(ge)
COMPARE_OP(logical_and)
COMPARE_OP(logical_or)
COMPARE_OP(logical_xor)
TEST_OP(isnan)
TEST_OP(isinf)
TEST_OP(isfinite)
TEST_OP(logical_not)
#endif
