/* activation.c - the functions between the layers of a network, element by element. The conventions are those of
 * binary.c. What has a gradient kernel of its own (tanh_grad ...) saves its result or its input, never both. */
#include "ops/cpu/loops.h"
#include "ops/cpu/vec_more.h"
#include "ops/sample.h"

/* Typed pieces that need constants of the element's own type. */
#define POINTWISE_MATH(T, S, exp_, tanh_, normal_, sigmoid_) \
    static inline T gelu_tanh_##S(T x) \
    { \
        T u = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x); \
        return (T)0.5 * x * (1 + tanh_(u)); \
    } \
    static inline T gelu_slope_##S(T x) \
    { \
        T phi = (T)0.39894228040143267794 * exp_((T)-0.5 * x * x); \
        return normal_(x) + x * phi; \
    } \
    static inline T gelu_tanh_slope_##S(T x) \
    { \
        T u = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x), t = tanh_(u); \
        T du = (T)0.79788456080286535588 * (1 + (T)0.134145 * x * x); \
        return (T)0.5 * (1 + t) + (T)0.5 * x * (1 - t * t) * du; \
    } \
    static inline T silu_slope_##S(T x) \
    { \
        T s = sigmoid_(x); \
        return s * (1 + x * (1 - s)); \
    }
POINTWISE_MATH(float, f, v_exp_f, v_tanh_f, v_normal_f, v_sigmoid_f)
POINTWISE_MATH(double, d, exp, tanh, v_normal_d, v_sigmoid_d)

#ifdef NP_BASE_ONLY

/* A zero gradient of the same shape, whatever g holds. */
static neap_tensor *zeros_like(np_back *b, neap_tensor *g) { return np_mul0(b, np_num(b, 0), g); }

/* Gradient kernels get a result and its gradient: always of one shape. */
static bool sample_pair(np_sampler *s, int i)
{
    int64_t rows = np_s_size(s, 3, 2048), cols = np_s_size(s, 4, 1024);
    if (i > 2 || (s->size != NP_SMALL && i > 0)) return false;
    s->label = i == 0 ? "contiguous" : i == 1 ? "transposed" : "strided";
    return np_s_tensor(s, -2, 2, 0, 2, rows, cols) && np_s_tensor(s, 0.1, 0.9, i, 2, rows, cols);
}

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
NP_OP(softplus) = {
    NP_NAMED(softplus),       .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP | NP_CAST_FLOAT32,
    .save = {NP_IN(0)},       .infer = np_infer_float, .grad = softplus_grad,
    .sample = np_sample_unary};
#endif

/* silu(x): x sigmoid(x), also called swish. */
NP_MAP1(silu, x, x *v_sigmoid(x))
NP_CPU(silu)(np_frame *f) { return np_map(f, run_silu, NULL); }

/* silu_grad(g, x): g s (1 + x (1 - s)) with s = sigmoid(x), the gradient of silu at x. */
NP_MAP2(silu_grad, g, x, g *V_PICK(x, silu_slope_f, silu_slope_d))
NP_CPU(silu_grad)(np_frame *f) { return np_map(f, run_silu_grad, NULL); }

#ifdef NP_BASE_ONLY
static void silu_backward(np_back *b) { b->dx[0] = np_silu_grad(b, b->g[0], b->saved[0]); }
/* Second derivative: s (1 - s) (2 + x (1 - 2 s)). */
static void silu_grad_backward(np_back *b)
{
    neap_tensor *g = b->saved[0], *x = b->saved[1];
    if (b->need[0]) b->dx[0] = np_silu_grad(b, b->g[0], x);
    if (!b->need[1]) return;
    neap_tensor *s = np_hold(b, np_hold(b, np_sigmoid(b, x)));
    neap_tensor *bell = np_mul(b, s, np_sub(b, np_num(b, 1), s));
    neap_tensor *tilt = np_sub(b, np_num(b, 1), np_mul(b, s, np_num(b, 2)));
    neap_tensor *curve = np_mul(b, bell, np_add(b, np_mul(b, x, tilt), np_num(b, 2)));
    b->dx[1] = np_mul(b, np_mul(b, b->g[0], g), curve);
}
NP_OP(silu) = {NP_NAMED(silu),           .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_IN(0)},       .infer = np_infer_float, .grad = silu_backward,
               .sample = np_sample_unary};
NP_INPLACE_OP(silu_, silu);
NP_OP(silu_grad) = {NP_NAMED(silu_grad),
                    .args = "g:T x:T -> dx:T",
                    .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                    .save = {NP_IN_FOR(0, 1), NP_IN(1)},
                    .infer = np_infer_binary_float,
                    .grad = silu_grad_backward,
                    .sample = sample_pair};
#endif

/* logsigmoid(x): log sigmoid(x), as -softplus(-x) so that it is exact for large |x|. */
NP_MAP1(logsigmoid, x, -v_softplus(-x))
NP_CPU(logsigmoid)(np_frame *f) { return np_map(f, run_logsigmoid, NULL); }

#ifdef NP_BASE_ONLY
static void logsigmoid_grad(np_back *b)
{
    b->dx[0] = np_mul(b, b->g[0], np_sigmoid(b, np_neg(b, b->saved[0])));
}
NP_OP(logsigmoid) = {NP_NAMED(logsigmoid),     .args = "x:T -> y:T",    .tags = NP_POINTWISE | NP_CHEAP,
                     .save = {NP_IN(0)},       .infer = np_infer_float, .grad = logsigmoid_grad,
                     .sample = np_sample_unary};
#endif

/* leaky_relu(x, [negative_slope = 0.01]): x where it is above 0, else negative_slope * x; that is the slope at 0, too. */
NP_MAP1_WITH(leaky_relu, double, k, x, v_sel(x > 0, x, (__typeof__(x))k *x))
NP_CPU(leaky_relu)(np_frame *f) { return np_map(f, run_leaky_relu, &f->attr[0].f); }

/* leaky_relu_grad(g, x, negative_slope): g where x is above 0, else negative_slope * g. */
NP_RUN2_WITH(leaky_relu_grad, f32, float, float, double, k, g, x, v_sel(x > 0, g, (float)k *g))
NP_RUN2_WITH(leaky_relu_grad, f64, double, double, double, k, g, x, v_sel(x > 0, g, k *g))
NP_RUNS(leaky_relu_grad) = {NP_FLOAT_ROWS(leaky_relu_grad)};
NP_CPU(leaky_relu_grad)(np_frame *f) { return np_map(f, run_leaky_relu_grad, &f->attr[0].f); }

/* elu(x, [alpha = 1]): x where it is above 0, else alpha (e^x - 1). */
NP_MAP1_WITH(elu, double, k, x, v_sel(x > 0, x, (__typeof__(x))k *V_PICK(x, v_expm1_f, expm1)))
NP_CPU(elu)(np_frame *f) { return np_map(f, run_elu, &f->attr[0].f); }

#ifdef NP_BASE_ONLY
static void leaky_relu_backward(np_back *b)
{
    b->dx[0] = np_leaky_relu_grad(b, b->g[0], b->saved[0], b->attr[0].f);
}
static void leaky_relu_grad_backward(np_back *b)
{
    if (b->need[0]) b->dx[0] = np_leaky_relu_grad(b, b->g[0], b->saved[0], b->attr[0].f);
    if (b->need[1]) b->dx[1] = zeros_like(b, b->g[0]);
}
static void elu_grad(np_back *b)
{
    neap_tensor *x = b->saved[0], *slope = np_mul(b, np_exp(b, x), np_num(b, b->attr[0].f));
    b->dx[0] = np_where(b, np_gt(b, x, np_num(b, 0)), b->g[0], np_mul0(b, b->g[0], slope));
}
static bool sample_bent(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.25, .has = 1};
    return np_sample_unary(s, i);
}
static bool sample_bent_pair(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.25, .has = 1};
    return sample_pair(s, i);
}
NP_OP(leaky_relu) = {NP_NAMED(leaky_relu),
                     .args = "x:T negative_slope:float=0.01 -> y:T",
                     .tags = NP_POINTWISE | NP_CHEAP,
                     .save = {NP_IN(0)},
                     .infer = np_infer_float,
                     .grad = leaky_relu_backward,
                     .sample = sample_bent};
NP_OP(leaky_relu_grad) = {NP_NAMED(leaky_relu_grad),
                          .args = "g:T x:T negative_slope:float -> dx:T",
                          .tags = NP_POINTWISE | NP_CHEAP | NP_INTERNAL,
                          .save = {NP_IN(1)},
                          .infer = np_infer_binary_float,
                          .grad = leaky_relu_grad_backward,
                          .sample = sample_bent_pair};
NP_OP(elu) = {NP_NAMED(elu),
              .args = "x:T alpha:float=1 -> y:T",
              .tags = NP_POINTWISE | NP_CHEAP,
              .save = {NP_IN(0)},
              .infer = np_infer_float,
              .grad = elu_grad,
              .sample = sample_bent};
NP_INPLACE_OP(leaky_relu_, leaky_relu);
NP_INPLACE_OP(elu_, elu);
#endif
