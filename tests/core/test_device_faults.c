/* test_device_faults.c - every op of the registry on the emulated device, whose first, second, ... call of the runtime
 * fails, or whose kernel faults.
 *
 * A failed call is an error of the op, E-DEVICE or E-NOMEM, and nothing is left behind on either device; or the op has
 * found another way, and its results are the right ones. A kernel that faults loses the device: it is an error of the
 * op where each call is waited for, of whatever comes then otherwise; the CPU goes on. Each failure has a context of
 * its own, so that what is made once per context fails, too. NEAP_TEST_OP=name runs one op. Without the emulated
 * device everything is skipped. */
#include "emulator.h"
#include "ext.h"
#include "ops_harness.h"
#include "test_steps.h"

typedef struct on_device { /* a context with the i-th sample of an op, there and on the CPU */
    neap_ctx *c;
    np_sampler here, there;
} on_device;

static void close_sample(on_device *d)
{
    free_sample(&d->there);
    free_sample(&d->here);
    for (int i = 0; i < d->c->n_devices; i++) assert_int_equal(d->c->devices[i]->mem.live, 0);
    neap_ctx_free(d->c);
}

/* x on the device; `spread`: of a tensor there, every second element. */
static neap_tensor *moved(neap_ctx *c, neap_tensor *x, int device, bool spread)
{
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], n = 2;
    if (!spread || x->ndim == NEAP_MAX_DIMS) return neap_to(c, x, -1, device);
    for (int d = x->ndim - 1; d >= 0; d--) stride[d] = n, n *= shape[d] = x->shape[d];
    shape[x->ndim] = 2;
    neap_tensor *all = np_tensor_new(c, c->devices[device], (neap_dtype)x->dtype, x->ndim + 1, shape);
    neap_tensor *half = all ? np_tensor_view(all, x->ndim, x->shape, stride, 0) : NULL;
    assert_true(half && np_copy_into(c, half, x));
    neap_free(all);
    return half;
}

/* Odd samples are not contiguous there. False: there is no such sample. */
static bool open_sample(on_device *d, const op_case *k, neap_dtype t, int i)
{
    neap_ctx *c = d->c = open_ctx("", 1);
    const int device = neap_device_find(c, "cudaemu");
    memset(&d->there, 0, sizeof d->there);
    const bool spread =
        i % 2 == 1 && !(impl(k->op)->tags & NP_VIEW); /* as_strided tells one from the other */
    assert_true(device > 0);
    if (!next_sample(c, &d->here, k, t, NP_SMALL, i)) {
        free_sample(&d->here);
        neap_ctx_free(c);
        return false;
    }
    d->there = d->here;
    for (int j = 0; j < d->here.n_in; j++) {
        neap_tensor *x = d->here.in[j];
        d->there.in[j] = !x ? NULL : x->number ? np_hold_ref(x) : moved(c, x, device, spread);
    }
    no_error(c, k, d->here.label, "moving the sample");
    return true;
}

static live_counts count_all(const neap_ctx *c)
{
    live_counts n = count_live(c);
    const np_mem *m = &c->devices[c->n_devices - 1]->mem;
    n.bytes += m->live + m->scratch;
    n.storages += m->storages;
    return n;
}

/* What was seen of an op: does a kernel of the device's own do it, has a call failed, was there a sample? */
typedef struct seen {
    bool kernel, failure, sample;
} seen;

/* The i-th sample's op with its n-th call failing. False: it has fewer. */
static bool nth_fails(const op_case *k, neap_dtype t, int i, long n, seen *s)
{
    on_device d;
    np_frame right = {0}, f = {0};
    if (!open_sample(&d, k, t, i)) return s->sample = false;
    bool met = false;
    if (usable(d.c, k, &d.here)) {
        char when[48];
        snprintf(when, sizeof when, "call %ld failed", n);
        neap_seed(d.c, 3);
        bool ok = run_op(d.c, k->op, &d.here, d.here.in, &right);
        no_error(d.c, k, d.here.label, "on the CPU");
        live_counts before = count_all(d.c);
        neap_seed(d.c, 3);
        d.c->default_device = d.c->n_devices - 1; /* what makes tensors makes them there */
        fail_at(n);
        ok = run_op(d.c, k->op, &d.there, d.there.in, &f);
        met = fail_at(0) == 0;
        d.c->default_device = 0;
        if (!ok && met && (neap_error(d.c) == NEAP_E_DEVICE || neap_error(d.c) == NEAP_E_NOMEM))
            neap_clear_error(d.c);
        no_error(d.c, k, d.here.label, when);
        if (ok && !(impl(k->op)->tags & NP_RANDOM))
            for (int j = 0; j < n_seen(k->op, &f); j++)
                assert_close(k, d.here.label, when, f.out[j], right.out[j], 1e-4);
        np_frame_drop(&f);
        live_counts after = count_all(d.c);
        if (memcmp(&before, &after, sizeof before) != 0)
            fail_msg("%s, sample '%s', %s: something is left over", k->op->name, d.here.label, when);
        np_frame_drop(&right);
    }
    s->kernel |= d.c->devices[d.c->n_devices - 1]->remote[impl(k->op)->index] != NULL;
    s->failure |= met;
    close_sample(&d);
    return met;
}

static void test_calls(const op_case *k)
{
    if (!fail_at) skip();
    seen s = {.sample = true};
    for (int i = 0; s.sample && i < test_steps(1000); i++)
        for (long n = 1; nth_fails(k, NEAP_FLOAT32, i, n, &s); n++) assert_true(n < 1000);
    if (s.kernel) assert_true(s.failure);
}

/* The i-th sample's op while its n-th kernel faults. False: it has fewer. */
static bool nth_faults(const op_case *k, neap_dtype t, int i, long n, bool waits, seen *s)
{
    on_device d;
    np_frame right = {0}, f = {0};
    bool met = false;
    setenv("NEAP_CUDA_SYNC", waits ? "1" : "0", 1);
    if (!open_sample(&d, k, t, i)) return s->sample = false;
    if (usable(d.c, k, &d.here)) {
        live_counts before = count_all(d.c);
        d.c->default_device = d.c->n_devices - 1;
        fault_at(n);
        const bool ok = run_op(d.c, k->op, &d.there, d.there.in, &f);
        met = fault_at(-1) == 0;
        d.c->default_device = 0;
        if (met && (ok ? waits : neap_error(d.c) != NEAP_E_DEVICE))
            fail_msg("%s, sample '%s', kernel %ld: %s", k->op->name, d.here.label, n,
                     ok ? "no error" : neap_error_message(d.c));
        if (ok) np_frame_drop(&f);
        neap_clear_error(d.c);
        if (met) assert_false(neap_x_synchronize(d.c, d.c->n_devices - 1));
        if (met) assert_int_equal(neap_error(d.c), NEAP_E_DEVICE);
        neap_clear_error(d.c);
        live_counts after = count_all(d.c);
        if (memcmp(&before, &after, sizeof before) != 0)
            fail_msg("%s, sample '%s', kernel %ld: something is left over", k->op->name, d.here.label, n);
        (void)run_op(d.c, k->op, &d.here, d.here.in, &right);
        no_error(d.c, k, d.here.label, "on the CPU, the device being lost");
        np_frame_drop(&right);
    }
    s->kernel |= d.c->devices[d.c->n_devices - 1]->remote[impl(k->op)->index] != NULL;
    s->failure |= met;
    close_sample(&d);
    fault_at(0);
    return met;
}

static void test_kernels(const op_case *k)
{
    if (!fault_at) skip();
    for (int waits = 0; waits < 2; waits++) {
        seen s = {.sample = true};
        for (int i = 0; s.sample && i < test_steps(1000); i++)
            for (long n = 1; nth_faults(k, NEAP_FLOAT32, i, n, waits, &s); n++) assert_true(n < 1000);
        if (s.kernel) assert_true(s.failure);
    }
    unsetenv("NEAP_CUDA_SYNC");
}

/* ---- what is no op. body is called with its first, second, ... call failing, until none is left to fail */

static void each_call_fails(bool (*body)(neap_ctx *c, int device))
{
    if (!fail_at) skip();
    neap_ctx *c = open_ctx("", 1);
    const int device = neap_device_find(c, "cudaemu");
    int failures = 0;
    assert_true(body(c, device)); /* what is made once exists now */
    for (long n = 1; n < 1000; n++) {
        live_counts before = count_all(c);
        fail_at(n);
        const bool ok = body(c, device);
        if (fail_at(0) > 0) {
            assert_true(ok && failures > 0);
            neap_ctx_free(c);
            return;
        }
        failures++;
        if (!ok) assert_true(neap_error(c) == NEAP_E_DEVICE || neap_error(c) == NEAP_E_NOMEM);
        neap_clear_error(c);
        live_counts after = count_all(c);
        assert_memory_equal(&before, &after, sizeof before);
    }
    fail_msg("never got through");
}

/* The device is found and makes a tensor, or the reason says which call failed; then the next try succeeds. */
static void test_opening(void **state)
{
    (void)state;
    if (!fail_at) skip();
    bool met = true;
    int found_then_failed = 0;
    for (long n = 1; met; n++) {
        assert_true(n < 100);
        neap_ctx *c = open_ctx("", 1);
        int64_t shape[1] = {3};
        fail_at(n);
        const int device = neap_device_find(c, "cudaemu");
        neap_tensor *x = device > 0 ? neap_full(c, 1, shape, 1, NEAP_FLOAT32, device) : NULL;
        met = fail_at(0) == 0;
        assert_true(n > 1 || met);
        assert_true(x || met);
        /* Finding a device counts them and no more: each starts when it is used. */
        if (n > 2) assert_true(device > 0);
        if (!x) { /* or it was filled on the host */
            const char *said = neap_error_message(c);
            assert_true(strstr(said, "cudaError") || strstr(said, "out of memory"));
            assert_true(neap_error(c) == NEAP_E_DEVICE || neap_error(c) == NEAP_E_NOMEM);
            neap_clear_error(c);
        }
        if (!x && device > 0) {
            found_then_failed++;
            x = neap_full(c, 1, shape, 1, NEAP_FLOAT32, device);
            assert_non_null(x);
        }
        neap_free(x);
        neap_ctx_free(c);
    }
    assert_true(found_then_failed > 3);
}

static bool describes(neap_ctx *c, int device)
{
    np_device_facts f;
    return neap_x_device_facts(c, device, &f) && neap_x_synchronize(c, device);
}
static void test_facts(void **state) { (void)state, each_call_fails(describes); }

/* Steps of two parameters that one launch does not hold together, their norm, and clipping. */
static bool steps(neap_ctx *c, int device)
{
    int64_t shape[1] = {5};
    double norm;
    neap_tensor *p[2] = {neap_full(c, 1, shape, 1, NEAP_FLOAT32, device),
                         neap_full(c, 1, shape, 1, NEAP_FLOAT64, device)};
    neap_tensor *g[2] = {neap_full(c, 1, shape, 2, NEAP_FLOAT32, device),
                         neap_full(c, 1, shape, 2, NEAP_FLOAT64, device)};
    neap_sgd o = {.size = sizeof o, .lr = 0.5};
    const bool ok = !np_pending(c) && neap_clip_grad_norm(c, 2, g, 1.0, 1, &norm) == 0 &&
                    neap_clip_grad_value(c, 2, g, 0.125) == 0 && neap_sgd_step(c, &o, 2, p, g, NULL) == 0;
    free_all(p, 2), free_all(g, 2);
    return ok;
}
static void test_steps_of_parameters(void **state) { (void)state, each_call_fails(steps); }

/* Momentum in float32, whatever the parameter is: the CPU's step, to rounding. */
static void test_state_of_another_dtype(void **state)
{
    (void)state;
    if (!fail_at) skip();
    neap_ctx *c = open_ctx("", 1);
    const int device = neap_device_find(c, "cudaemu");
    static const neap_dtype dtypes[] = {NEAP_FLOAT64, NEAP_FLOAT16, NEAP_BFLOAT16};
    int64_t shape[1] = {3};
    for (int t = 0; t < 3; t++) {
        double got[2][2];
        for (int there = 0; there < 2; there++) {
            const int on = there ? device : 0;
            neap_tensor *p = neap_full(c, 1, shape, 1.5, dtypes[t], on),
                        *g = neap_full(c, 1, shape, 0.1, dtypes[t], on),
                        *m = neap_full(c, 1, shape, 0.3, NEAP_FLOAT32, on);
            neap_sgd o = {.size = sizeof o, .lr = 0.5, .momentum = 0.9};
            assert_int_equal(neap_sgd_step(c, &o, 1, &p, &g, &m), 0);
            for (int k = 0; k < 2; k++) {
                neap_tensor *wide = neap_to(c, k ? m : p, NEAP_FLOAT64, 0),
                            *sum = neap_sum(c, wide, NULL, 0, 0);
                assert_int_equal(neap_item(c, sum, &got[there][k]), 0);
                neap_free(wide), neap_free(sum);
            }
            neap_free(p), neap_free(g), neap_free(m);
        }
        for (int k = 0; k < 2; k++) assert_float_equal(got[0][k], got[1][k], 1e-6);
        assert_true(fabs(got[0][1] - 3 * 0.37) < 1e-3);
    }
    neap_ctx_free(c);
}

/* From and to the host, of another dtype, not contiguous. */
static bool copies(neap_ctx *c, int device)
{
    int64_t shape[2] = {2, 3};
    neap_tensor *a = neap_full(c, 2, shape, 1, NEAP_FLOAT32, 0),
                *there = a ? neap_to(c, a, -1, device) : NULL;
    neap_tensor *turned = there ? neap_transpose(c, there, 0, 1) : NULL;
    neap_tensor *wide = turned ? neap_to(c, turned, NEAP_FLOAT64, -1) : NULL;
    neap_tensor *back = wide ? neap_to(c, wide, -1, 0) : NULL;
    double got[6];
    const bool ok = back && neap_read(c, back, got, sizeof got) == 0 && got[0] == 1 && got[5] == 1;
    neap_free(a), neap_free(there), neap_free(turned), neap_free(wide), neap_free(back);
    return ok;
}
static void test_copies(void **state) { (void)state, each_call_fails(copies); }

/* Two moments, and the time between them. */
static bool times(neap_ctx *c, int device)
{
    void *from = neap_x_event_new(c, device), *to = from ? neap_x_event_new(c, device) : NULL;
    double ms = -1;
    const bool ok = to && neap_x_event_record(c, device, from) && neap_x_event_record(c, device, to) &&
                    neap_x_event_time(c, device, from, to, &ms) && ms >= 0;
    if (from) neap_x_event_free(c, device, from);
    if (to) neap_x_event_free(c, device, to);
    return ok;
}
static void test_events(void **state) { (void)state, each_call_fails(times); }

/* The time of a moment that never was is an error with what CUDA says of it, and no time. */
static void test_unrecorded(void **state)
{
    (void)state;
    if (!fail_at) skip();
    neap_ctx *c = open_ctx("", 1);
    const int device = neap_device_find(c, "cudaemu");
    void *from = neap_x_event_new(c, device), *to = neap_x_event_new(c, device);
    double ms = -1;
    assert_true(from && to && neap_x_event_record(c, device, from));
    assert_false(neap_x_event_time(c, device, from, to, &ms));
    assert_int_equal(neap_error(c), NEAP_E_DEVICE);
    assert_non_null(strstr(neap_error_message(c), "cudaErrorInvalidResourceHandle"));
    assert_true(ms == -1);
    neap_clear_error(c);
    neap_x_event_free(c, device, from), neap_x_event_free(c, device, to);
    neap_ctx_free(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(test_opening),
                                        cmocka_unit_test(test_facts),
                                        cmocka_unit_test(test_steps_of_parameters),
                                        cmocka_unit_test(test_state_of_another_dtype),
                                        cmocka_unit_test(test_copies),
                                        cmocka_unit_test(test_events),
                                        cmocka_unit_test(test_unrecorded)};
    static const op_mode modes[] = {{"each call of the device fails", test_calls, unless_no_samples, 0},
                                    {"each kernel of the device faults", test_kernels, unless_no_samples, 0}};
    find_emulator(argv[0]);
    const int failed = getenv("NEAP_TEST_OP") ? 0 : cmocka_run_group_tests(others, NULL, NULL);
    return run_modes("device_faults", modes, 2, argc, argv) | failed;
}
