/* ops.c - time of every op in the registry on its large sample: forward, and forward with backward. Numbers
 * for people to compare; nothing passes or fails.  usage: ops [name] */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "autograd/autograd.h"
#include "ops/sample.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool forward(const np_op *op, np_sampler *s, np_frame *f)
{
    *f = (np_frame){.c = s->c, .op = op, .in = s->in, .n_in = s->n_in};
    memcpy(f->attr, s->attr, sizeof f->attr);
    return np_dispatch(f);
}

/* out.backward(out): the result itself serves as a gradient of the right shape. */
static bool both(const np_op *op, np_sampler *s, neap_tensor **x, int n_x)
{
    np_frame f;
    neap_tensor *dx[NP_SAMPLE_MAX_IN] = {0};
    if (!forward(op, s, &f)) return false;
    neap_tensor *g = neap_detach(s->c, f.out[0]);
    neap_backward_opts o = {.size = sizeof o, .allow_unused = 1};
    bool ok = g && neap_grad(s->c, f.out, &g, 1, x, n_x, &o, dx) == 0;
    for (int i = 0; i < n_x; i++) neap_free(dx[i]);
    neap_free(g);
    np_frame_drop(&f);
    return ok;
}

/* Seconds of one call: the best of several rounds. x NULL: forward only. */
static double measure(const np_op *op, np_sampler *s, neap_tensor **x, int n_x)
{
    double best = 1e9, start = now();
    for (int rounds = 0; rounds < 5 || (now() - start < 0.1 && rounds < 1000); rounds++) {
        np_frame f = {0};
        double t = now();
        bool ok = x ? both(op, s, x, n_x) : forward(op, s, &f);
        t = now() - t;
        if (!x) np_frame_drop(&f);
        if (!ok) return -1;
        if (t < best) best = t;
    }
    return best;
}

static void bench(neap_ctx *c, const np_op *op)
{
    np_sampler s = {.c = c, .state = 1, .dtype = NEAP_FLOAT32, .size = NP_LARGE};
    if (op->base || !op->sample || !op->sample(&s, 0)) return;
    neap_tensor *x[NP_SAMPLE_MAX_IN];
    int n_x = 0;
    double bytes = 0;
    char shape[96] = "";
    for (int i = 0; i < s.n_in; i++) {
        neap_tensor *t = s.in[i];
        if (!t || t->number) continue;
        bytes += (double)t->numel * (double)np_itemsize(t);
        if (!*shape) np_shape_text(shape, sizeof shape, t->ndim, t->shape);
        if (np_is_float((neap_dtype)t->dtype) && !(s.no_grad >> i & 1)) x[n_x++] = t;
    }
    double f = measure(op, &s, NULL, 0), fb = -1;
    if (op->grad && n_x) {
        for (int i = 0; i < n_x; i++) neap_set_requires_grad(c, x[i], 1);
        fb = measure(op, &s, x, n_x);
    }
    printf("%-28s %-24s %10.1f us  %7.2f GB/s in", op->name, shape, f * 1e6, bytes / f * 1e-9);
    if (fb > 0) printf("  %10.1f us with backward", fb * 1e6);
    if (neap_error(c)) printf("  (%s)", neap_error_message(c));
    printf("\n");
    neap_clear_error(c);
    for (int i = 0; i < s.n_in; i++) neap_free(s.in[i]);
}

int main(int argc, char **argv)
{
    neap_ctx *c = neap_ctx_new(NULL);
    if (!c) return 1;
    printf("%d threads, %s\n", neap_get_num_threads(c), np_cpu_level_name(c->isa));
    bool known = argc < 2;
    for (int i = 0; i < NP_N_OPS; i++) {
        if (argc > 1 && strcmp(argv[1], np_ops[i]->name) != 0) continue;
        bench(c, np_ops[i]);
        known = true;
    }
    if (!known) fprintf(stderr, "ops: no op is called '%s'\n", argv[1]);
    neap_ctx_free(c);
    return known ? 0 : 1;
}
