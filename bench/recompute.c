/* recompute.c - what a checkpointed region's backward costs beside (plain backward + one more forward).
 *
 *   recompute                  medians of alternating rounds in one run, as ratios; nothing passes or fails
 *   recompute MODE WIDTH N     N rounds of one part, for counting instructions (tools/callgrind.sh): forward, plain
 *                              (forward and backward), held (the region's forward), region (its forward and backward)
 * The region is an MLP block: linear, gelu, linear, its input on top, tanh. tanh saves its result, so early stop spares
 * the recompute nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "neap.h"

enum { ROUNDS = 41, N_MODES = 4 };

typedef struct block {
    neap_ctx *c;
    neap_tensor *x, *w1, *b1, *w2, *b2;
} block;

static neap_tensor *leaf(neap_ctx *c, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    neap_tensor *t = neap_randn(c, shape + (rows == 1), 2 - (rows == 1), NEAP_FLOAT32, 0, NULL);
    if (t) neap_set_requires_grad(c, t, 1);
    return t;
}

static block block_new(neap_ctx *c, int64_t batch, int64_t width)
{
    return (block){c,
                   leaf(c, batch, width),
                   leaf(c, width, width),
                   leaf(c, 1, width),
                   leaf(c, width, width),
                   leaf(c, 1, width)};
}

static void block_free(const block *m)
{
    neap_tensor *const all[] = {m->x, m->w1, m->b1, m->w2, m->b2};
    for (int i = 0; i < 5; i++) neap_free(all[i]);
}

static neap_tensor *forward(const block *m, neap_tensor *x)
{
    neap_tensor *h = neap_linear(m->c, x, m->w1, m->b1), *a = neap_gelu(m->c, h, 0),
                *r = neap_linear(m->c, a, m->w2, m->b2), *sum = neap_add(m->c, r, x),
                *y = neap_tanh(m->c, sum);
    neap_free(h), neap_free(a), neap_free(r), neap_free(sum);
    return y;
}

static int run(neap_ctx *c, void *user, neap_values *v)
{
    (void)c;
    v->out[v->n_out++] = forward(user, v->in[0]);
    return v->out[0] == NULL;
}

static neap_tensor *region(block *m)
{
    neap_tensor *y[NEAP_MAX_RESULTS] = {NULL};
    int n = 0;
    neap_checkpoint(m->c, (neap_fn){run, NULL, NULL, m}, &m->x, 1, y, &n, NULL);
    return y[0];
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One round. Seconds of the forward and of the backward. */
static void step(block *m, int in_region, int backward, double seconds[2])
{
    neap_tensor *in[] = {m->x, m->w1, m->b1, m->w2, m->b2}, *g[5] = {NULL};
    double begin = now(), middle;
    neap_tensor *y = in_region ? region(m) : forward(m, m->x);
    middle = now();
    if (backward) neap_grad(m->c, &y, &m->x, 1, in, 5, NULL, g);
    seconds[0] = middle - begin;
    seconds[1] = now() - middle;
    for (int i = 0; i < 5; i++) neap_free(g[i]);
    neap_free(y);
}

static int by_value(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void compare(neap_ctx *c, int64_t batch, int64_t width)
{
    static double plain[2][ROUNDS], checkpointed[2][ROUNDS];
    block m = block_new(c, batch, width);
    double s[2];
    for (int i = -3; i < ROUNDS; i++) { /* the first few warm up */
        int at = i < 0 ? 0 : i;
        step(&m, 0, 1, s), plain[0][at] = s[0], plain[1][at] = s[1];
        step(&m, 1, 1, s), checkpointed[0][at] = s[0], checkpointed[1][at] = s[1];
    }
    double f = median(plain[0], ROUNDS), b = median(plain[1], ROUNDS), fr = median(checkpointed[0], ROUNDS),
           br = median(checkpointed[1], ROUNDS);
    printf("batch %4lld, width %4lld    forward %9.1f us    in a region %5.3f    its backward / (backward + "
           "forward) "
           "%5.3f\n",
           (long long)batch, (long long)width, f * 1e6, fr / f, br / (b + f));
    block_free(&m);
}

static int count(neap_ctx *c, const char *mode, int64_t width, long n)
{
    static const char *const names[N_MODES] = {"forward", "plain", "held", "region"};
    block m = block_new(c, width / 2, width);
    double s[2];
    int k = 0;
    while (k < N_MODES && strcmp(names[k], mode) != 0) k++;
    if (k == N_MODES) return 2;
    for (long i = 0; i < n; i++) step(&m, k >= 2, k % 2, s);
    block_free(&m);
    return neap_error(c) != NEAP_OK;
}

int main(int argc, char **argv)
{
    neap_ctx_opts o = {.size = sizeof o, .threads = 1};
    neap_ctx *c = neap_ctx_new(&o);
    if (!c) return 1;
    int failed = 0;
    if (argc == 4) {
        failed = count(c, argv[1], atol(argv[2]), atol(argv[3]));
    } else {
        compare(c, 256, 512);
        compare(c, 64, 128);
        compare(c, 8, 16);
        failed = neap_error(c) != NEAP_OK;
    }
    if (failed) fprintf(stderr, "recompute: %s\n", neap_error_message(c));
    neap_ctx_free(c);
    return failed;
}
