/* test_ops_grad.c - gradients of every op in the registry: central differences in both orders, failing
 * allocations, checkpointing. Values are in test_ops.c. NEAP_TEST_OP=name runs one op. */
#include "ops_harness.h"

static bool has_gradient(const np_op *op) { return differentiable(op) && impl(op)->sample; }
static bool has_samples(const np_op *op) { return impl(op)->sample != NULL; }

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
            if ((k->op->tags & NP_INTERNAL) && neap_error(c) == NEAP_E_NOGRAD) {
                neap_clear_error(c);
                neap_gradcheck(c, fn, s.in, s.n_in, 1e-6, 1e-5, 1e-4, 1);
            }
            no_error(c, k, s.label, "gradcheck");
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

static bool has_own_gradient(const np_op *op) { return has_gradient(op) && !op->base; }

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
        }
        free_sample(&s);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}

/* ---- a checkpointed op gives the bits of the plain one */

static void test_checkpoint(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT32, NP_SMALL, i); i++) {
        if (!usable(c, k, &s)) {
            free_sample(&s);
            continue;
        }
        np_frame plain = {0}, again = {0};
        neap_tensor *dx[NP_SAMPLE_MAX_IN] = {0}, *dy[NP_SAMPLE_MAX_IN] = {0}, *y[NEAP_MAX_RESULTS] = {0};
        int n_y = 0;
        require_grads(c, &s);
        neap_seed(c, 3);
        bool ok = run_op(c, k->op, &s, s.in, &plain) && gradients(c, k->op, &plain, &s, dx);
        no_error(c, k, s.label, "plain");
        as_function f = {k, &s};
        neap_fn fn = {.call = call_op, .user = &f};
        neap_region_opts o;
        neap_region_opts_init(&o);
        neap_seed(c, 3);
        ok = ok && neap_checkpoint(c, fn, s.in, s.n_in, y, &n_y, &o) == 0;
        no_error(c, k, s.label, "checkpointed forward");
        again.op = k->op;
        for (int j = 0; j < n_y && j < NP_MAX_OUT; j++) again.out[again.n_out++] = y[j];
        neap_seed(c, 99); /* the recompute draws what the forward drew */
        ok = ok && gradients(c, k->op, &again, &s, dy);
        no_error(c, k, s.label, "checkpointed backward");
        for (int j = 0, m = 0; j < n_seen(k->op, &plain); j++)
            if (np_is_float((neap_dtype)plain.out[j]->dtype))
                assert_same_bits(k, s.label, "results", plain.out[j], y[m++]);
        for (int j = 0; j < s.n_in; j++) assert_same_bits(k, s.label, "gradients", dx[j], dy[j]);
        np_frame_drop(&plain);
        np_frame_drop(&again);
        free_all(dx, s.n_in);
        free_all(dy, s.n_in);
        free_sample(&s);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    assert_int_equal(c->n_nodes, 0);
    neap_ctx_free(c);
}

int main(void)
{
    static const op_mode modes[] = {
        {"gradcheck, first and second order", test_gradients, has_gradient},
        {"gradcheck at every CPU level", test_level_gradients, has_own_gradient},
        {"every allocation fails once", test_allocations, has_samples},
        {"checkpointed bits", test_checkpoint, has_gradient},
    };
    return run_modes("op gradients", modes, sizeof modes / sizeof *modes);
}
