/* binary.cu - functions of two elements: what binary.c, power.c and bits.c have, by the same formulas.
 *
 * Integer operands that an op refuses (a zero divisor, a negative exponent) are looked for before anything is written, as
 * on the CPU, which then gets the call and says what is wrong. */
#include "flag.h"
#include "pointwise.h"

namespace
{

/* ---- arithmetic */

NP_NUMBER2(add, a, b, a + b, np_wrap_add(a, b))
NP_NUMBER2(sub, a, b, a - b, np_wrap_sub(a, b))
NP_NUMBER2(mul, a, b, a *b, np_wrap_mul(a, b))
NP_FLOAT2(div, a, b, a / b)
NP_NUMBER2(maximum, a, b, ((a > b) | (a != a)) ? a : b, a > b ? a : b)
NP_NUMBER2(minimum, a, b, ((a < b) | (a != a)) ? a : b, a < b ? a : b)
NP_FLOAT2(hypot, a, b, hypot(a, b))
NP_FLOAT2(atan2, a, b, atan2(a, b))
NP_FLOAT2(copysign, a, b, copysign(a, b))
NP_FLOAT2(xlogy, a, b, ((a == 0) & (b == b)) ? W(0) : a *log(b))
NP_FLOAT2(mul0, g, d, g == 0 ? W(0) : g * d)
NP_FLOAT2(div0, g, d, g == 0 ? W(0) : g / d)

struct logaddexp_of {
    template <class W> NP_DEVICE W operator()(W a, W b) const
    {
        if ((a == b) & (fabs(a) == (W)INFINITY)) return a;
        return (((a > b) | (a != a)) ? a : b) + log1p(exp(-fabs(a - b)));
    }
};

/* ---- division with whole quotients. Integer divisors are not 0; those of elements past the result may be anything. */

NP_DEVICE int64_t whole_quotient(int64_t a, int64_t b)
{
    if (b == -1) return np_wrap_sub(0, a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
NP_DEVICE int64_t whole_fmod(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
NP_DEVICE int64_t whole_remainder(int64_t a, int64_t b)
{
    int64_t m = whole_fmod(a, b);
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
/* m = fmod(a, b), with the sign of b. */
template <class W> NP_DEVICE W with_sign_of(W m, W b)
{
    return ((m > 0) & (b < 0)) | ((m < 0) & (b > 0)) ? m + b : m;
}

NP_NUMBER2(floor_divide, a, b, floor(a / b), whole_quotient(a, b))
NP_NUMBER2(fmod, a, b, fmod(a, b), whole_fmod(a, b))
NP_NUMBER2(remainder, a, b, with_sign_of(fmod(a, b), b), whole_remainder(a, b))

/* ---- powers */

NP_DEVICE int64_t whole_power(int64_t a, int64_t n)
{
    uint64_t x = (uint64_t)a, y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return (int64_t)y;
}
NP_NUMBER2(pow, x, n, pow(x, n), whole_power(x, n))
NP_FLOAT1(square, x, x *x)
NP_FLOAT2(pow_dx, x, n, n == 0 ? W(0) : n == 2 ? 2 * x : n * pow(x, n - 1))
NP_FLOAT2(pow_dn, x, n, ((x == 0) & (n >= 0)) ? W(0) : pow(x, n) * log(x))

/* ---- bits */

NP_FLOAT2(bitwise_and, a, b, a &b)
NP_FLOAT2(bitwise_or, a, b, a | b)
NP_FLOAT2(bitwise_xor, a, b, a ^ b)

struct bitwise_not_of { /* of bool: not */
    bool truth;
    explicit bitwise_not_of(const np_call *k) : truth(k->compute == NEAP_BOOL) {}
    NP_DEVICE int64_t operator()(int64_t x) const { return truth ? x == 0 : ~x; }
};
struct shift { /* width: bits of the dtype; all of them move out */
    int width;
    explicit shift(const np_call *k)
        : width(k->compute == NEAP_INT64   ? 64
                : k->compute == NEAP_INT32 ? 32
                                           : 8)
    {
    }
    NP_DEVICE bool all(int64_t n) const { return n < 0 || n >= width; }
};
struct left_of : shift {
    using shift::shift;
    NP_DEVICE int64_t operator()(int64_t a, int64_t n) const
    {
        return all(n) ? 0 : (int64_t)((uint64_t)a << n);
    }
};
struct right_of : shift {
    using shift::shift;
    NP_DEVICE int64_t operator()(int64_t a, int64_t n) const { return all(n) ? (a < 0 ? -1 : 0) : a >> n; }
};

/* ---- operands that are refused */

struct zero {
    __host__ __device__ bool operator()(int64_t v) const { return v == 0; }
};
struct negative {
    __host__ __device__ bool operator()(int64_t v) const { return v < 0; }
};

template <class Bad>
__global__ void look_for(int *flag, np_given<int64_t> g, int compute, np_walk<1> w, Bad bad)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1];
        w.at(i, at);
        if (bad(np_cut(np_get(g, at[0]), compute))) np_raise(flag);
    }
}

/* Does operand 1 hold what is refused, once it is of the dtype that is computed in? 1 or 0; -1: fail has been called. */
template <class Bad> int holds(const np_call *k, Bad bad)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *o = &k->in[1];
    if (k->compute < NEAP_INT64 || k->out[0].numel == 0) return 0;
    np_given<int64_t> g = np_given_of<int64_t>(o, k->compute);
    if (o->is_number) return bad(g.value);
    int *flag = np_flag_new(k);
    if (!flag) return -1;
    const np_walk<1> w = np_walk_over(o->ndim, o->shape, {o});
    bool ok = NP_TRY(
        gpu, np_launch(look_for<Bad>, np_blocks(w.n), NP_BLOCK, 0, gpu->stream, flag, g, k->compute, w, bad));
    return np_done(k, ok) == 0 ? np_flag_read(k, flag) : -1;
}

template <class Op> int divide(const np_call *k)
{
    const int refused = holds(k, zero());
    return refused ? refused : np_pointwise<Op, 2, NP_NUMBERS>(k);
}

int power(const np_call *k)
{
    const int refused = holds(k, negative());
    if (refused) return refused;
    if (k->compute < NEAP_INT64 && k->in[1].is_number && k->in[1].number == 2)
        return np_pointwise<square_of, 1, NP_FLOATS>(k);
    return np_pointwise<pow_of, 2, NP_NUMBERS>(k);
}

} // namespace

#define FLOAT2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_FLOATS> \
    }
#define NUMBER2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_NUMBERS> \
    }
#define BITS2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_INTEGERS | NP_TRUTH> \
    }

const np_plugin_row np_rows_binary[] = {
    NUMBER2(add),
    NUMBER2(sub),
    NUMBER2(mul),
    FLOAT2(div),
    NUMBER2(maximum),
    NUMBER2(minimum),
    FLOAT2(hypot),
    FLOAT2(atan2),
    FLOAT2(copysign),
    FLOAT2(xlogy),
    FLOAT2(mul0),
    FLOAT2(div0),
    FLOAT2(logaddexp),
    {"floor_divide", divide<floor_divide_of>},
    {"fmod", divide<fmod_of>},
    {"remainder", divide<remainder_of>},
    {"pow", power},
    FLOAT2(pow_dx),
    FLOAT2(pow_dn),
    BITS2(bitwise_and),
    BITS2(bitwise_or),
    BITS2(bitwise_xor),
    {"bitwise_not", np_pointwise<bitwise_not_of, 1, NP_INTEGERS | NP_TRUTH>},
    {"bitwise_left_shift", np_pointwise<left_of, 2, NP_INTEGERS>},
    {"bitwise_right_shift", np_pointwise<right_of, 2, NP_INTEGERS>},
    {nullptr, nullptr},
};
