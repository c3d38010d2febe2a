/* test_two_contexts.c - two contexts in two threads share nothing: each trains a small network through the
 * public API, with two worker threads of its own, and both end with the bits that one alone gives. Run under
 * TSan by `make check`. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "neap.h"

enum { BATCH = 64, IN = 32, HIDDEN = 48, STEPS = 12, N_PARAMS = 4 };

typedef struct job {
    uint64_t seed;
    uint64_t hash;      /* of the first weights at the end */
    double first, last; /* losses */
    char error[200];    /* "" if all went well */
} job;

static neap_tensor *leaf(neap_ctx *c, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= shape[d];
    neap_tensor *t = neap_keep(neap_empty(c, ndim, shape, NEAP_FLOAT32, 0));
    float *p = t ? neap_data(t) : NULL;
    uint64_t state = (uint64_t)n * 77;
    for (int64_t i = 0; p && i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        p[i] = ((float)(state >> 40) * 0x1p-24f - 0.5f) * 0.4f;
    }
    return t;
}

/* One step of gradient descent on mean((tanh(x w1' + b1) w2' + b2 - target)^2). */
static double step(neap_ctx *c, neap_tensor *x, neap_tensor *target, neap_tensor **p)
{
    double loss = -1;
    neap_tensor *grads[N_PARAMS];
    if (neap_scope_begin(c) != 0) return -1;
    neap_tensor *h = neap_tanh(c, neap_linear(c, x, p[0], p[1]));
    neap_tensor *kept = neap_dropout(c, h, 0.1, 1, NULL);
    neap_tensor *d = neap_sub(c, neap_linear(c, kept, p[2], p[3]), target);
    neap_tensor *y = neap_mean(c, neap_mul(c, d, d), NULL, 0, 0);
    if (y && neap_backward(c, y, NULL, NULL) == 0 && neap_item(c, y, &loss) == 0) {
        for (int i = 0; i < N_PARAMS; i++) grads[i] = neap_grad_of(p[i]);
        neap_sgd o = {.size = sizeof o, .lr = 0.05};
        neap_sgd_step(c, &o, N_PARAMS, p, grads, NULL);
        for (int i = 0; i < N_PARAMS; i++) neap_free(grads[i]), neap_set_grad(c, p[i], NULL);
    }
    neap_scope_end(c);
    return loss;
}

static void *train(void *arg)
{
    job *j = arg;
    neap_ctx_opts o = {.size = sizeof o, .threads = 2};
    neap_ctx *c = neap_ctx_new(&o);
    if (!c) {
        snprintf(j->error, sizeof j->error, "no context");
        return NULL;
    }
    neap_seed(c, j->seed);
    neap_tensor *x = leaf(c, 2, (int64_t[]){BATCH, IN}), *target = leaf(c, 2, (int64_t[]){BATCH, 1});
    neap_tensor *p[N_PARAMS] = {leaf(c, 2, (int64_t[]){HIDDEN, IN}), leaf(c, 1, (int64_t[]){HIDDEN}),
                                leaf(c, 2, (int64_t[]){1, HIDDEN}), leaf(c, 1, (int64_t[]){1})};
    for (int i = 0; i < N_PARAMS; i++)
        if (p[i]) neap_set_requires_grad(c, p[i], 1);
    for (int s = 0; s < STEPS; s++) {
        double loss = step(c, x, target, p);
        if (s == 0) j->first = loss;
        j->last = loss;
    }
    neap_hash(c, p[0], &j->hash);
    if (neap_error(c) != NEAP_OK) snprintf(j->error, sizeof j->error, "%s", neap_error_message(c));
    neap_free(x), neap_free(target);
    for (int i = 0; i < N_PARAMS; i++) neap_free(p[i]);
    neap_ctx_free(c);
    return NULL;
}

static void test_both_train(void **state)
{
    (void)state;
    job alone = {.seed = 1}, jobs[2] = {{.seed = 1}, {.seed = 1}};
    pthread_t threads[2];
    train(&alone);
    assert_string_equal(alone.error, "");
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, train, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(jobs[i].error, "");
        assert_true(jobs[i].last < jobs[i].first);
        assert_true(jobs[i].hash == alone.hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_train)};
    return cmocka_run_group_tests_name("two contexts", tests, NULL, NULL);
}
