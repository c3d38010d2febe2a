/* tiny.c - the work around a tiny op, for counting instructions (tools/callgrind.sh); prints nothing.
 *
 *   tiny plain N     N additions of two 4-element tensors, nothing recorded
 *   tiny record N    the same with a graph
 *   tiny region N    the same inside a checkpoint, which notes where values come from
 *   tiny unnoted N   the same with determinism "none", which does not
 *   tiny train N     chains of 16 products, forward and backward, N ops in all
 * The cost of one op is the difference of two runs with different N, divided. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neap.h"

enum { CHAIN = 16 };

static int add(neap_ctx *c, neap_tensor *a, neap_tensor *b, long n)
{
    for (long i = 0; i < n; i++) neap_free(neap_add(c, a, b));
    return neap_error(c) != NEAP_OK;
}

static int no_recompute(neap_ctx *c, void *user, neap_values *v)
{
    (void)c, (void)user, (void)v;
    return 1;
}

static int region(neap_ctx *c, neap_tensor *a, neap_tensor *b, long n, neap_determinism check)
{
    neap_region_opts o;
    neap_region_opts_init(&o);
    o.check = check;
    o.recompute.call = no_recompute;
    neap_region *r = neap_region_begin(c, &o, &a, 1);
    int failed = add(c, a, b, n);
    neap_region_end(c, r, !failed);
    return failed;
}

static int train(neap_ctx *c, neap_tensor *x, neap_tensor *w, long n)
{
    for (long i = 0; i < n / CHAIN; i++) {
        neap_tensor *y = neap_retain(x), *g = NULL;
        for (int k = 0; k < CHAIN; k++) {
            neap_tensor *next = neap_mul(c, y, w);
            neap_free(y);
            y = next;
        }
        if (!y || neap_grad(c, &y, &x, 1, &x, 1, NULL, &g) != 0) return 1;
        neap_free(g);
        neap_free(y);
    }
    return neap_error(c) != NEAP_OK;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    long n = atol(argv[2]);
    neap_ctx_opts o = {.size = sizeof o, .threads = 1};
    neap_ctx *c = neap_ctx_new(&o);
    if (!c) return 1;
    const int64_t shape[] = {4};
    const float data[] = {1, 2, 3, 4};
    neap_tensor *a = neap_from_data(c, 1, shape, NEAP_FLOAT32, data),
                *b = neap_from_data(c, 1, shape, NEAP_FLOAT32, data);
    int failed = !a || !b;
    if (!failed && strcmp(argv[1], "plain") != 0) failed = neap_set_requires_grad(c, a, 1);
    if (failed) n = 0;
    if (strcmp(argv[1], "train") == 0) failed = failed || train(c, a, b, n);
    else if (strcmp(argv[1], "region") == 0) failed = failed || region(c, a, b, n, NEAP_CHECK_DEFAULT);
    else if (strcmp(argv[1], "unnoted") == 0) failed = failed || region(c, a, b, n, NEAP_CHECK_NONE);
    else failed = failed || add(c, a, b, n);
    if (failed) fprintf(stderr, "tiny: %s\n", neap_error_message(c));
    neap_free(a);
    neap_free(b);
    neap_ctx_free(c);
    return failed;
}
