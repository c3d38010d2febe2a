/* bits.c - the bits of integers and the truth of bool, element by element. Nothing here has a gradient. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

#ifdef NP_BASE_ONLY

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

/* A shift by less than 0 or by the width of the type and more moves everything out. */
static inline int64_t i_shl(int64_t a, int64_t n, int width)
{
    return n < 0 || n >= width ? 0 : (int64_t)((uint64_t)a << n);
}
static inline int64_t i_shr(int64_t a, int64_t n, int width)
{
    return n < 0 || n >= width ? (a < 0 ? -1 : 0) : a >> n;
}

/* bitwise_left_shift(a, b): a * 2^b of integers, wrapping; 0 when b is negative or not below the width of the type. */
NP_MAP2_INT(bitwise_left_shift, a, b, i_shl(a, b, 8 * (int)sizeof a))
NP_CPU(bitwise_left_shift)(np_frame *f) { return np_map(f, run_bitwise_left_shift, NULL); }

/* bitwise_right_shift(a, b): floor(a / 2^b) of integers: the sign stays (Lua's >> on numbers fills with zeros). A b that
 * is negative or not below the width of the type leaves 0 or -1. */
NP_MAP2_INT(bitwise_right_shift, a, b, i_shr(a, b, 8 * (int)sizeof a))
NP_CPU(bitwise_right_shift)(np_frame *f) { return np_map(f, run_bitwise_right_shift, NULL); }

#ifdef NP_BASE_ONLY
static bool infer_shift(np_frame *f) { return np_infer_binary_number(f) && integers_only(f); }
static bool sample_shift(np_sampler *s, int i)
{
    static const char *const labels[] = {"integers", "broadcast", "number"};
    if (i > 2 || !np_s_ids(s, -99, 99, 2, (int64_t)4, (int64_t)3)) return false;
    s->label = labels[i];
    if (i == 0) return np_s_ids(s, -1, 64, 2, (int64_t)4, (int64_t)3);
    if (i == 1) return np_s_ids(s, 0, 5, 1, (int64_t)3);
    np_s_number(s, 2);
    return true;
}
#define SHIFT_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "a:N b:N -> y:T", \
                     .tags = NP_POINTWISE | NP_CHEAP | NP_NODIFF, .infer = infer_shift, \
                     .sample = sample_shift};
SHIFT_OP(bitwise_left_shift)
SHIFT_OP(bitwise_right_shift)
#endif
