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

#ifdef NP_BASE_ONLY
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
TEST_OP(isnan)
TEST_OP(isinf)
TEST_OP(isfinite)
TEST_OP(logical_not)
#endif
