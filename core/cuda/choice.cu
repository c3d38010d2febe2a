/* choice.cu - tests, choices and blends: what compare.c, ternary.c and masked_fill have, by the same formulas. */
#include "pointwise.h"

namespace
{

/* ---- tests: the result is bool */

NP_TEST2(eq, a, b, a == b)
NP_TEST2(ne, a, b, a != b)
NP_TEST2(lt, a, b, a < b)
NP_TEST2(le, a, b, a <= b)
NP_TEST2(gt, a, b, a > b)
NP_TEST2(ge, a, b, a >= b)
NP_TEST2(logical_and, a, b, (a != 0) & (b != 0))
NP_TEST2(logical_or, a, b, (a != 0) | (b != 0))
NP_TEST2(logical_xor, a, b, (a != 0) ^ (b != 0))
NP_TEST1(logical_not, x, x == 0, x == 0)
NP_TEST1(isnan, x, x != x, x != x)
NP_TEST1(isinf, x, fabs(x) == (W)INFINITY, x != x)
NP_TEST1(isfinite, x, fabs(x) < (W)INFINITY, x == x)

struct isclose_of {
    double rtol, atol;
    bool equal_nan;
    explicit isclose_of(const np_call *k)
        : rtol(k->attr[0].f), atol(k->attr[1].f), equal_nan(k->attr[2].i != 0)
    {
    }
    template <class W> NP_DEVICE bool operator()(W v, W w) const
    {
        const double a = (double)v, b = (double)w, apart = fabs(a - b);
        const bool near = (apart <= atol + rtol * fabs(b)) & (apart < (double)INFINITY);
        return (v == w) | near | (equal_nan & (a != a) & (b != b));
    }
};

/* ---- bounds */

struct clamp_of { /* a bound that is absent, or infinite beside integers, never binds */
    bool low, high;
    static bool binds(const np_operand *o, int compute)
    {
        return o->present && !(o->is_number && compute >= NEAP_INT64 && isinf(o->number));
    }
    explicit clamp_of(const np_call *k)
        : low(binds(&k->in[1], k->compute)), high(binds(&k->in[2], k->compute))
    {
    }
    template <class W> NP_DEVICE W operator()(W x, W lo, W hi) const
    {
        if (low) x = (!(x >= lo) & (x == x)) ? lo : x;
        if (high) x = (!(x <= hi) & (x == x)) ? hi : x;
        return x;
    }
};

/* ---- choices: operand 0 is the mask */

struct where_of {
    template <class W> NP_DEVICE W operator()(W mask, W a, W b) const { return mask != 0 ? a : b; }
};

int where(const np_call *k)
{
    return np_map<where_of, NP_NUMBERS, true>(k, k->compute, {&k->in[0], &k->in[1], &k->in[2]}, where_of());
}

/* The value as a number operand. */
int masked_fill(const np_call *k)
{
    np_operand v = {};
    v.present = v.is_number = true;
    v.number = k->attr[0].f;
    v.integer = np_whole_of(&k->attr[0]);
    v.dtype = k->out[0].dtype;
    return np_map<where_of, NP_NUMBERS, true>(k, k->out[0].dtype, {&k->in[1], &v, &k->in[0]}, where_of());
}

/* ---- blends */

struct lerp_of {
    template <class W> NP_DEVICE W operator()(W a, W b, W w) const
    {
        return fabs(w) < W(0.5) ? a + w * (b - a) : b - (b - a) * (1 - w);
    }
};

struct factor { /* of the product or quotient; of integers it is whole */
    double f;
    int64_t i;
    explicit factor(const np_call *k) : f(k->attr[0].f), i(np_whole_of(&k->attr[0])) {}
};
struct addcmul_of : factor {
    using factor::factor;
    template <class W> NP_DEVICE W operator()(W x, W a, W b) const { return x + (W)f * a * b; }
    NP_DEVICE int64_t operator()(int64_t x, int64_t a, int64_t b) const
    {
        return np_wrap_add(x, np_wrap_mul(np_wrap_mul(i, a), b));
    }
};
struct addcdiv_of : factor {
    using factor::factor;
    template <class W> NP_DEVICE W operator()(W x, W a, W b) const { return x + (W)f * a / b; }
};

} // namespace

#define TEST1(name) \
    { \
#name, np_pointwise < name##_of, 1, NP_NUMBERS> \
    }
#define LOGIC2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_NUMBERS | NP_TRUTH> \
    }
#define TEST2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_NUMBERS> \
    }

const np_plugin_row np_rows_choice[] = {
    TEST2(eq),
    TEST2(ne),
    TEST2(lt),
    TEST2(le),
    TEST2(gt),
    TEST2(ge),
    LOGIC2(logical_and),
    LOGIC2(logical_or),
    LOGIC2(logical_xor),
    {"logical_not", np_pointwise<logical_not_of, 1, NP_NUMBERS | NP_TRUTH>},
    TEST1(isnan),
    TEST1(isinf),
    TEST1(isfinite),
    {"isclose", np_pointwise<isclose_of, 2, NP_NUMBERS>},
    {"clamp", np_pointwise<clamp_of, 3, NP_NUMBERS>},
    {"where", where},
    {"masked_fill", masked_fill},
    {"lerp", np_pointwise<lerp_of, 3, NP_FLOATS>},
    {"addcmul", np_pointwise<addcmul_of, 3, NP_NUMBERS>},
    {"addcdiv", np_pointwise<addcdiv_of, 3, NP_FLOATS>},
    {nullptr, nullptr},
};
