/* unary.cu - functions of one element: what unary.c, trig.c, power.c and activation.c have, by the same formulas, with
 * CUDA's mathematical functions. Gradients that are kernels of their own (tanh_grad ...) stand beside their function. */
#include "pointwise.h"

namespace
{

/* ---- sign and rounding; integers are whole already */

NP_NUMBER1(neg, x, -x, np_wrap_sub(0, x))
NP_NUMBER1(abs, x, fabs(x), x < 0 ? np_wrap_sub(0, x) : x)
NP_NUMBER1(sign, x, x != x ? x : W((x > 0) - (x < 0)), (x > 0) - (x < 0))
NP_NUMBER1(floor, x, floor(x), x)
NP_NUMBER1(ceil, x, ceil(x), x)
NP_NUMBER1(round, x, rint(x), x)
NP_NUMBER1(trunc, x, trunc(x), x)
NP_NUMBER1(frac, x, x - trunc(x), x - x)

struct nan_to_num_of {
    double nan, high, low;
    explicit nan_to_num_of(const np_call *k)
    {
        const double most = k->compute == NEAP_FLOAT64    ? 0x1.fffffffffffffp1023
                            : k->compute == NEAP_FLOAT16  ? 65504
                            : k->compute == NEAP_BFLOAT16 ? 0x1.fep127
                                                          : 0x1.fffffep127;
        nan = k->attr[0].f;
        high = k->attr[1].has ? k->attr[1].f : most;
        low = k->attr[2].has ? k->attr[2].f : -most;
    }
    template <class W> NP_DEVICE W operator()(W x) const
    {
        return x != x ? (W)nan : x == (W)INFINITY ? (W)high : x == -(W)INFINITY ? (W)low : x;
    }
    NP_DEVICE int64_t operator()(int64_t x) const { return x; }
};

/* ---- exponentials and logarithms */

NP_FLOAT1(exp, x, exp(x))
NP_FLOAT1(log, x, log(x))
NP_FLOAT1(log1p, x, log1p(x))
NP_FLOAT1(expm1, x, expm1(x))
NP_FLOAT1(exp2, x, exp2(x))
NP_FLOAT1(log2, x, log2(x))
NP_FLOAT1(log10, x, log10(x))
NP_FLOAT1(erf, x, erf(x))

/* ---- angles */

NP_FLOAT1(sin, x, sin(x))
NP_FLOAT1(cos, x, cos(x))
NP_FLOAT1(tan, x, tan(x))
NP_FLOAT1(asin, x, asin(x))
NP_FLOAT1(acos, x, acos(x))
NP_FLOAT1(atan, x, atan(x))
NP_FLOAT1(sinh, x, sinh(x))
NP_FLOAT1(cosh, x, cosh(x))
NP_FLOAT1(asinh, x, asinh(x))
NP_FLOAT1(acosh, x, acosh(x))
NP_FLOAT1(atanh, x, atanh(x))

/* ---- powers */

NP_NUMBER1(square, x, x *x, np_wrap_mul(x, x))
NP_FLOAT1(reciprocal, x, 1 / x)
NP_FLOAT1(sqrt, x, sqrt(x))
NP_FLOAT1(rsqrt, x, 1 / sqrt(x))

/* ---- activations */

NP_FLOAT1(tanh, x, tanh(x))
NP_FLOAT2(tanh_grad, g, y, g *(1 - y * y))
NP_FLOAT1(sigmoid, x, np_sigmoid(x))
NP_FLOAT2(sigmoid_grad, g, y, g *(y *(1 - y)))
NP_NUMBER1(relu, x, x <= 0 ? W(0) : x, x > 0 ? x : 0)
NP_FLOAT2(relu_grad, g, y, y > 0 ? g : W(0))
NP_FLOAT1(softplus, x, np_softplus(x))
NP_FLOAT1(logsigmoid, x, -np_softplus(-x))
NP_FLOAT1(silu, x, x *np_sigmoid(x))

struct silu_grad_of {
    template <class W> NP_DEVICE W operator()(W g, W x) const
    {
        W s = np_sigmoid(x);
        return g * (s * (1 + x * (1 - s)));
    }
};
struct gelu_of {
    template <class W> NP_DEVICE W operator()(W x) const
    {
        return W(0.5) * x * (1 + erf(x * W(0.70710678118654752440)));
    }
};
struct gelu_grad_of {
    template <class W> NP_DEVICE W operator()(W g, W x) const
    {
        W phi = W(0.39894228040143267794) * exp(W(-0.5) * x * x);
        return g * (W(0.5) * (1 + erf(x * W(0.70710678118654752440))) + x * phi);
    }
};
template <class W> NP_DEVICE W gelu_inner(W x)
{
    return W(0.79788456080286535588) * (x + W(0.044715) * x * x * x);
}
NP_FLOAT1(gelu_tanh, x, W(0.5) * x * (1 + tanh(gelu_inner(x))))
struct gelu_tanh_grad_of {
    template <class W> NP_DEVICE W operator()(W g, W x) const
    {
        W t = tanh(gelu_inner(x)), du = W(0.79788456080286535588) * (1 + W(0.134145) * x * x);
        return g * (W(0.5) * (1 + t) + W(0.5) * x * (1 - t * t) * du);
    }
};

/* With one number beside x. */
struct with_number {
    double v;
    explicit with_number(const np_call *k) : v(k->attr[0].f) {}
};
struct leaky_relu_of : with_number {
    using with_number::with_number;
    template <class W> NP_DEVICE W operator()(W x) const { return x > 0 ? x : (W)v * x; }
};
struct leaky_relu_grad_of : with_number {
    using with_number::with_number;
    template <class W> NP_DEVICE W operator()(W g, W x) const { return x > 0 ? g : (W)v * g; }
};
struct elu_of : with_number {
    using with_number::with_number;
    template <class W> NP_DEVICE W operator()(W x) const { return x > 0 ? x : (W)v * expm1(x); }
};
struct hardtanh_of {
    double low, high;
    explicit hardtanh_of(const np_call *k) : low(k->attr[0].f), high(k->attr[1].f) {}
    template <class W> NP_DEVICE W operator()(W x) const
    {
        return (double)x < low ? (W)low : (double)x > high ? (W)high : x;
    }
};

/* The formula with tanh, where attribute 0 says so. */
template <class Plain, class Tanh, int K> int gelu_kernel(const np_call *k)
{
    return k->attr[0].i ? np_pointwise<Tanh, K, NP_FLOATS>(k) : np_pointwise<Plain, K, NP_FLOATS>(k);
}

} // namespace

#define FLOAT1(name) \
    { \
#name, np_pointwise < name##_of, 1, NP_FLOATS> \
    }
#define FLOAT2(name) \
    { \
#name, np_pointwise < name##_of, 2, NP_FLOATS> \
    }
#define NUMBER1(name) \
    { \
#name, np_pointwise < name##_of, 1, NP_NUMBERS> \
    }

const np_plugin_row np_rows_unary[] = {
    NUMBER1(neg),
    NUMBER1(abs),
    NUMBER1(sign),
    NUMBER1(floor),
    NUMBER1(ceil),
    NUMBER1(round),
    NUMBER1(trunc),
    NUMBER1(frac),
    NUMBER1(nan_to_num),
    FLOAT1(exp),
    FLOAT1(log),
    FLOAT1(log1p),
    FLOAT1(expm1),
    FLOAT1(exp2),
    FLOAT1(log2),
    FLOAT1(log10),
    FLOAT1(erf),
    FLOAT1(sin),
    FLOAT1(cos),
    FLOAT1(tan),
    FLOAT1(asin),
    FLOAT1(acos),
    FLOAT1(atan),
    FLOAT1(sinh),
    FLOAT1(cosh),
    FLOAT1(asinh),
    FLOAT1(acosh),
    FLOAT1(atanh),
    NUMBER1(square),
    FLOAT1(reciprocal),
    FLOAT1(sqrt),
    FLOAT1(rsqrt),
    FLOAT1(tanh),
    FLOAT2(tanh_grad),
    FLOAT1(sigmoid),
    FLOAT2(sigmoid_grad),
    NUMBER1(relu),
    FLOAT2(relu_grad),
    FLOAT1(softplus),
    FLOAT1(logsigmoid),
    FLOAT1(silu),
    FLOAT2(silu_grad),
    {"gelu", gelu_kernel<gelu_of, gelu_tanh_of, 1>},
    {"gelu_grad", gelu_kernel<gelu_grad_of, gelu_tanh_grad_of, 2>},
    FLOAT1(leaky_relu),
    FLOAT2(leaky_relu_grad),
    FLOAT1(elu),
    FLOAT1(hardtanh),
    {nullptr, nullptr},
};
