/* test_ops_grad.c - gradients of every op in the registry: central differences in both orders, failing
 * allocations, checkpointing. Values are in test_ops.c. NEAP_TEST_OP=name runs one op. */
#include "ops_harness.h"

/* The op as a function of its tensor arguments: results that are floating point, auxiliary ones left out. */
typedef struct as_function {
    const op_case *k;
    const np_sampler *s;
} as_function;

static int call_op(neap_ctx *c, void *user, neap_values *v)
{
    const as_function *a = user;
    np_frame f = {0};
    if (!run_op(c, a->k->op, a->s, v->in, &f)) return 1;
    int seen = n_seen(a->k->op, &f);
    for (int j = 0; j < f.n_out; j++) {
        if (j < seen && np_is_float((neap_dtype)f.out[j]->dtype)) v->out[v->n_out++] = f.out[j];
        else np_drop(f.out[j]);
    }
    return 0;
}

/* ---- central differences */

/* For samples too large for a whole Jacobian: the function of one number h, sum(w * op(x + h d)). */
typedef struct along {
    as_function f;
    neap_tensor *d[NP_SAMPLE_MAX_IN]; /* directions, NULL for inputs that stay */
} along;

static int call_along(neap_ctx *c, void *user, neap_values *v)
{
    const along *a = user;
    const np_sampler *s = a->f.s;
    neap_tensor *x[NP_SAMPLE_MAX_IN] = {0}, *total = NULL;
    neap_values inner = {.size = sizeof inner, .in = x, .n_in = s->n_in};
    for (int i = 0; i < s->n_in; i++) {
        neap_tensor *step = a->d[i] ? neap_mul(c, a->d[i], v->in[0]) : NULL;
        x[i] = step ? neap_add(c, s->in[i], step) : np_hold_ref(s->in[i]);
        neap_free(step);
    }
    int failed = np_pending(c) || call_op(c, (void *)&a->f, &inner);
    for (int j = 0; j < inner.n_out; j++) {
        neap_tensor *w = failed ? NULL : weights_like(c, inner.out[j]);
        neap_tensor *p = w ? neap_mul(c, inner.out[j], w) : NULL,
                    *sum = p ? neap_sum(c, p, NULL, 0, 0) : NULL;
        neap_tensor *next = sum ? (total ? neap_add(c, total, sum) : np_hold_ref(sum)) : NULL;
        neap_free(total), neap_free(w), neap_free(p), neap_free(sum), neap_free(inner.out[j]);
        total = next;
        if (!next) failed = 1;
    }
    free_all(x, s->n_in);
    if (total && !failed) v->out[v->n_out++] = total;
    else neap_free(total);
    return failed || np_pending(c);
}

static bool check_along(neap_ctx *c, const op_case *k, const np_sampler *s)
{
    along a = {.f = {k, s}};
    int64_t none[1] = {0};
    neap_tensor *h = neap_zeros(c, 0, none, NEAP_FLOAT64, 0);
    for (int i = 0; i < s->n_in; i++)
        if (takes_grad(s, i)) a.d[i] = weights_like(c, s->in[i]);
    neap_set_requires_grad(c, h, 1);
    neap_fn fn = {.call = call_along, .user = &a};
    bool ok = neap_gradcheck(c, fn, &h, 1, 1e-6, 1e-5, 1e-4, 2) == 0;
    free_all(a.d, s->n_in);
    neap_free(h);
    return ok;
}

static void test_gradients(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT64, NP_SMALL, i); i++) {
        int64_t elements = 0;
        int n = 0;
        bool fits = usable(c, k, &s);
        for (int j = 0; j < s.n_in; j++)
            if (takes_grad(&s, j)) elements += s.in[j]->numel, n++;
        if (fits && n > 0 && n < NEAP_MAX_RESULTS) {
            require_grads(c, &s);
            as_function f = {k, &s};
            neap_fn fn = {.call = call_op, .user = &f};
            if (elements <= 64) neap_gradcheck(c, fn, s.in, s.n_in, 1e-6, 1e-5, 1e-4, 2);
            else check_along(c, k, &s);
            /* Parts of gradients may say that they end here: the ops they are parts of have two orders. */
            bool ends = (k->op->tags & NP_INTERNAL) && neap_error(c) == NEAP_E_NOGRAD;
            if (ends) {
                neap_clear_error(c);
                neap_gradcheck(c, fn, s.in, s.n_in, 1e-6, 1e-5, 1e-4, 1);
            }
            no_error(c, k, s.label, "gradcheck");
            mark(k, COL_GRAD, "ok");
            mark(k, COL_GRAD2, ends ? "ends" : "ok");
        } else {
            mark(k, COL_GRAD, fits ? "no float input" : "does not fit");
            mark(k, COL_GRAD2, fits ? "no float input" : "does not fit");
        }
        free_sample(&s);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}

/* First order again at every CPU level below the best: their kernels are other code. */
static void test_level_gradients(const op_case *k)
{
    for (int level = 0; level < np_cpu_best_level(); level++) {
        neap_ctx *c = open_ctx(np_cpu_level_name(level), 1);
        np_sampler s;
        for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT64, NP_SMALL, i); i++) {
            int64_t elements = 0;
            for (int j = 0; j < s.n_in; j++)
                if (takes_grad(&s, j)) elements += s.in[j]->numel;
            if (elements > 0 && elements <= 64) {
                require_grads(c, &s);
                as_function f = {k, &s};
                neap_fn fn = {.call = call_op, .user = &f};
                neap_gradcheck(c, fn, s.in, s.n_in, 1e-6, 1e-5, 1e-4, 1);
                no_error(c, k, s.label, np_cpu_level_name(level));
            }
            free_sample(&s);
        }
        neap_ctx_free(c);
    }
}

static const char *unless_base_shows(const np_op *op)
{
    return op->base ? "in place" : unless_not_differentiable(op);
}

/* ---- failing allocations: the 1st, 2nd, ... of a call and its backward, until none is left to fail */

static bool call_and_differentiate(neap_ctx *c, const op_case *k, np_sampler *s)
{
    np_frame f = {0};
    neap_tensor *dx[NP_SAMPLE_MAX_IN] = {0};
    bool ok = run_op(c, k->op, s, s->in, &f) && gradients(c, k->op, &f, s, dx);
    np_frame_drop(&f);
    free_all(dx, s->n_in);
    return ok;
}

static void fail_each_allocation(neap_ctx *c, const op_case *k, np_sampler *s)
{
    neap_seed(c, 3);
    call_and_differentiate(c, k, s); /* what is made once per context exists now */
    no_error(c, k, s->label, "with all allocations");
    live_counts before = count_live(c);
    bool done = false;
    for (uint64_t n = 1; !done && n < 5000; n++) {
        char when[48];
        snprintf(when, sizeof when, "allocation %llu failed", (unsigned long long)n);
        c->alloc_fail_at = n;
        bool ok = call_and_differentiate(c, k, s);
        done = c->alloc_fail_at > 0;
        c->alloc_fail_at = 0;
        if (done) {
            no_error(c, k, s->label, "after the sweep");
            assert_true(ok);
        } else {
            if (ok) fail_msg("%s, sample '%s': %s and nobody noticed", k->op->name, s->label, when);
            assert_int_equal(neap_error(c), NEAP_E_NOMEM);
        }
        neap_clear_error(c);
        assert_live(k, s->label, when, c, before);
    }
    assert_true(done);
}

static void test_allocations(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT32, NP_SMALL, i); i++) {
        if (usable(c, k, &s)) {
            if (differentiable(k->op)) require_grads(c, &s);
            fail_each_allocation(c, k, &s);
            mark(k, COL_NOMEM, "ok");
        }
        free_sample(&s);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}

/* ---- an op in a checkpointed region gives the bits of the plain one */

/* The op's results times a number that takes a gradient: the last input. Whatever the op is, its results are
 * needed for that gradient, so backward has to make them again. */
static int call_times_h(neap_ctx *c, void *user, neap_values *v)
{
    const as_function *a = user;
    np_frame f = {0};
    if (!run_op(c, a->k->op, a->s, v->in, &f)) return 1;
    int seen = n_seen(a->k->op, &f);
    for (int j = 0; j < seen; j++) {
        neap_tensor *y = neap_mul(c, f.out[j], v->in[v->n_in - 1]);
        if (y) v->out[v->n_out++] = y;
    }
    np_frame_drop(&f);
    return np_pending(c);
}

/* Gradients of the results with respect to the inputs that take one. */
static bool results_gradients(neap_ctx *c, neap_tensor *const *y, int n_y, neap_tensor *const *in, int n_in,
                              neap_tensor **dx)
{
    neap_tensor *w[NEAP_MAX_RESULTS], *x[NP_SAMPLE_MAX_IN + 1], *out[NP_SAMPLE_MAX_IN + 1] = {0};
    int n_w = 0, n_x = 0;
    while (n_w < n_y && (w[n_w] = weights_like(c, y[n_w]))) n_w++;
    for (int i = 0; i < n_in; i++)
        if (np_requires_grad(in[i])) x[n_x++] = in[i];
    neap_backward_opts o = {.size = sizeof o, .allow_unused = 1};
    bool ok = n_w == n_y && neap_grad(c, y, w, n_y, x, n_x, &o, out) == 0;
    free_all(w, n_w);
    for (int i = 0, n = 0; i < n_in; i++) dx[i] = np_requires_grad(in[i]) ? out[n++] : NULL;
    return ok;
}

static void check_region(neap_ctx *c, const op_case *k, np_sampler *s)
{
    neap_tensor *in[NP_SAMPLE_MAX_IN + 1] = {0}, *dx[NP_SAMPLE_MAX_IN + 1] = {0},
                                       *dy[NP_SAMPLE_MAX_IN + 1] = {0};
    neap_tensor *again[NEAP_MAX_RESULTS] = {0}, *plain_out[NEAP_MAX_RESULTS] = {0};
    neap_values plain = {.size = sizeof plain, .in = in, .n_in = s->n_in + 1};
    int n_y = 0;
    int64_t none[1] = {0};
    if (differentiable(k->op)) require_grads(c, s);
    for (int i = 0; i < s->n_in; i++) in[i] = s->in[i];
    neap_tensor *h = in[s->n_in] = neap_full(c, 0, none, 0.75, NEAP_FLOAT32, 0);
    assert_int_equal(neap_set_requires_grad(c, h, 1), 0);
    as_function f = {k, s};
    neap_seed(c, 3);
    bool ok = call_times_h(c, &f, &plain) == 0;
    for (int j = 0; j < plain.n_out; j++) plain_out[j] = plain.out[j];
    ok = ok && results_gradients(c, plain_out, plain.n_out, in, plain.n_in, dx);
    no_error(c, k, s->label, "plain");
    neap_fn fn = {.call = call_times_h, .user = &f};
    neap_region_opts o;
    neap_region_opts_init(&o);
    neap_seed(c, 3);
    ok = ok && neap_checkpoint(c, fn, in, plain.n_in, again, &n_y, &o) == 0;
    no_error(c, k, s->label, "forward in a region");
    neap_seed(c, 99); /* the recompute draws what the forward drew */
    ok = ok && results_gradients(c, again, n_y, in, plain.n_in, dy);
    no_error(c, k, s->label, "backward of a region");
    assert_int_equal(n_y, plain.n_out);
    for (int j = 0; j < n_y; j++) assert_same_bits(k, s->label, "results", plain_out[j], again[j]);
    for (int i = 0; i < plain.n_in; i++) assert_same_bits(k, s->label, "gradients", dx[i], dy[i]);
    free_all(plain_out, n_y), free_all(again, n_y);
    free_all(dx, plain.n_in), free_all(dy, plain.n_in);
    neap_free(h);
}

static void test_checkpoint(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT32, NP_SMALL, i); i++) {
        if (usable(c, k, &s)) {
            check_region(c, k, &s);
            mark(k, COL_REGION, "ok");
        }
        free_sample(&s);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    assert_int_equal(c->n_nodes, 0);
    neap_ctx_free(c);
}

int main(int argc, char **argv)
{
    static const op_mode modes[] = {
        {"gradcheck, first and second order", test_gradients, unless_not_differentiable,
         COL(GRAD) | COL(GRAD2)},
        {"gradcheck at every CPU level", test_level_gradients, unless_base_shows, 0},
        {"every allocation fails once", test_allocations, unless_no_samples, COL(NOMEM)},
        {"checkpointed bits", test_checkpoint, unless_no_samples, COL(REGION)},
    };
    return run_modes("op gradients", modes, sizeof modes / sizeof *modes, argc, argv);
}
