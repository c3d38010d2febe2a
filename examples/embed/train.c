/* train.c - a network trained from C, through neap.h alone: 1-32-1 with tanh learns sin(3x) on [-1, 1].
 *
 * Each step runs in a scope, so no intermediate result is freed by hand; while an error is pending every call
 * does nothing, so errors are looked at once, at the end. */
#include <math.h>
#include <stdio.h>

#include "neap.h"

enum { N = 64, HIDDEN = 32, STEPS = 400, PARAMS = 4 };

typedef struct model {                  /* weights are (out, in) */
    neap_tensor *p[PARAMS];             /* w1, b1, w2, b2 */
    neap_tensor *m[PARAMS], *v[PARAMS]; /* the optimizer's state */
} model;

/* Uniform in [-bound, bound] from a small generator, so that the run is the same everywhere. */
static neap_tensor *random_parameter(neap_ctx *c, int ndim, const int64_t *shape, double bound)
{
    static uint32_t state = 1;
    float data[HIDDEN];
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (float)(bound * ((double)(state >> 8) / 8388608.0 - 1.0));
    }
    neap_tensor *t = neap_from_data(c, ndim, shape, NEAP_FLOAT32, data);
    if (t) {
        neap_set_category(t, NEAP_PARAM);
        neap_set_requires_grad(c, t, 1);
    }
    return t;
}

static void model_init(neap_ctx *c, model *net)
{
    const int64_t shapes[PARAMS][2] = {{HIDDEN, 1}, {HIDDEN, 0}, {1, HIDDEN}, {1, 0}};
    const int ndim[PARAMS] = {2, 1, 2, 1};
    for (int i = 0; i < PARAMS; i++) {
        net->p[i] = random_parameter(c, ndim[i], shapes[i], i < 2 ? 1.0 : 1 / sqrt(HIDDEN));
        net->m[i] = neap_zeros(c, ndim[i], shapes[i], NEAP_FLOAT32, 0);
        net->v[i] = neap_zeros(c, ndim[i], shapes[i], NEAP_FLOAT32, 0);
    }
}

static void model_free(model *net)
{
    for (int i = 0; i < PARAMS; i++) neap_free(net->p[i]), neap_free(net->m[i]), neap_free(net->v[i]);
}

static neap_tensor *forward(neap_ctx *c, const model *net, neap_tensor *x)
{
    neap_tensor *h = neap_tanh(c, neap_linear(c, x, net->p[0], net->p[1]));
    return neap_linear(c, h, net->p[2], net->p[3]);
}

/* One step of gradient descent; the loss before it. */
static double step(neap_ctx *c, model *net, neap_tensor *x, neap_tensor *y, int number)
{
    double loss = NAN;
    neap_tensor *grads[PARAMS] = {0};
    if (neap_scope_begin(c) != 0) return loss;
    neap_tensor *error = neap_mean(c, neap_square(c, neap_sub(c, forward(c, net, x), y)), NULL, 0, 0);
    if (neap_grad(c, &error, NULL, 1, net->p, PARAMS, NULL, grads) == 0) {
        neap_adamw o = {.size = sizeof o,
                        .lr = 0.02,
                        .beta1 = 0.9,
                        .beta2 = 0.999,
                        .eps = 1e-8,
                        .weight_decay = 1e-4,
                        .step = number,
                        .decoupled = 1};
        neap_adamw_step(c, &o, PARAMS, net->p, grads, net->m, net->v, NULL);
        neap_item(c, error, &loss);
    }
    for (int i = 0; i < PARAMS; i++) neap_free(grads[i]);
    neap_scope_end(c);
    return loss;
}

int main(void)
{
    neap_ctx *c = neap_ctx_new(NULL);
    if (!c) return 1;
    float xs[N], ys[N];
    for (int i = 0; i < N; i++) xs[i] = 2.0f * (float)i / (N - 1) - 1, ys[i] = sinf(3 * xs[i]);
    const int64_t column[] = {N, 1};
    neap_tensor *x = neap_from_data(c, 2, column, NEAP_FLOAT32, xs);
    neap_tensor *y = neap_from_data(c, 2, column, NEAP_FLOAT32, ys);
    model net;
    model_init(c, &net);

    double loss = NAN;
    for (int i = 1; i <= STEPS && neap_error(c) == NEAP_OK; i++) {
        loss = step(c, &net, x, y, i);
        if (i == 1 || i % 100 == 0) printf("step %3d  loss %.6f\n", i, loss);
    }

    model_free(&net);
    neap_free(x);
    neap_free(y);
    int failed = neap_error(c) != NEAP_OK;
    if (failed) fprintf(stderr, "%s [%s]\n", neap_error_message(c), neap_code_name(neap_error(c)));
    neap_ctx_free(c);
    return failed || !(loss < 0.01);
}
