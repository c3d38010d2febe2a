/* checkpoint.c - activation checkpointing from C: a deep chain of layers, plain and in checkpointed blocks.
 *
 * Both runs must give the same gradients, bit for bit; the checkpointed one keeps only the blocks' inputs and
 * computes the rest again during the backward. Prints the peak of each, in bytes. */
#include <stdio.h>

#include "neap.h"

enum { WIDTH = 64, BATCH = 256, BLOCKS = 8, LAYERS = 4 };

/* One block: LAYERS times x = tanh(x w). v->in = {x, w}. Runs again during the backward. */
static int block(neap_ctx *c, void *user, neap_values *v)
{
    int *calls = user;
    ++*calls;
    neap_tensor *x = v->in[0];
    if (neap_scope_begin(c) != 0) return 1;
    for (int i = 0; i < LAYERS; i++) x = neap_tanh(c, neap_matmul(c, x, v->in[1]));
    v->out[0] = x ? neap_retain(x) : NULL;
    v->n_out = x != NULL;
    neap_scope_end(c);
    return x == NULL;
}

/* x through every block; a new reference, NULL on error. */
static neap_tensor *run(neap_ctx *c, neap_tensor *x, neap_tensor *w, int checkpointed, int *calls)
{
    neap_fn fn = {.call = block, .user = calls};
    neap_tensor *y = neap_retain(x);
    for (int i = 0; i < BLOCKS && y; i++) {
        neap_tensor *in[2] = {y, w}, *out[NEAP_MAX_RESULTS] = {0};
        int n_out = 0;
        if (checkpointed) {
            neap_checkpoint(c, fn, in, 2, out, &n_out, NULL);
        } else {
            neap_values v = {.size = sizeof v, .in = in, .n_in = 2};
            block(c, calls, &v);
            out[0] = v.out[0];
        }
        neap_free(y);
        y = out[0];
    }
    return y;
}

/* The hash of w's gradient. */
static uint64_t gradient(neap_ctx *c, neap_tensor *x, neap_tensor *w, int checkpointed)
{
    int calls = 0;
    uint64_t hash = 0;
    neap_memory before = {.size = sizeof before}, after = {.size = sizeof after};
    neap_reset_peak(c, 0);
    neap_memory_stats(c, 0, &before);
    neap_tensor *y = run(c, x, w, checkpointed, &calls);
    neap_tensor *loss = neap_sum(c, y, NULL, 0, 0), *dw = NULL;
    neap_free(y);
    if (neap_grad(c, &loss, NULL, 1, &w, 1, NULL, &dw) == 0) neap_hash(c, dw, &hash);
    neap_memory_stats(c, 0, &after);
    printf("%-14s %2d block runs, peak %8lld bytes, gradient %016llx\n",
           checkpointed ? "checkpointed:" : "plain:", calls, (long long)(after.peak - before.live),
           (unsigned long long)hash);
    neap_free(dw);
    neap_free(loss);
    return hash;
}

int main(void)
{
    neap_ctx *c = neap_ctx_new(NULL);
    if (!c) return 1;
    static float xs[BATCH * WIDTH], ws[WIDTH * WIDTH];
    for (int i = 0; i < BATCH * WIDTH; i++) xs[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    for (int i = 0; i < WIDTH * WIDTH; i++) ws[i] = ((float)(i * 53 % 97) / 97 - 0.5f) / 4;
    const int64_t xshape[] = {BATCH, WIDTH}, wshape[] = {WIDTH, WIDTH};
    neap_tensor *x = neap_from_data(c, 2, xshape, NEAP_FLOAT32, xs);
    neap_tensor *w = neap_from_data(c, 2, wshape, NEAP_FLOAT32, ws);
    if (w) neap_set_requires_grad(c, w, 1);
    int same = w && gradient(c, x, w, 0) == gradient(c, x, w, 1);
    neap_free(x);
    neap_free(w);
    int failed = neap_error(c) != NEAP_OK;
    if (failed) fprintf(stderr, "%s [%s]\n", neap_error_message(c), neap_code_name(neap_error(c)));
    else printf("the gradients are %s\n", same ? "the same, bit for bit" : "DIFFERENT");
    neap_ctx_free(c);
    return failed || !same;
}
