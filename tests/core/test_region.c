/* test_region.c - checkpoint regions from C: the cases of the catalogue that need no Lua, named by id. Counts come
 * from the counters of kernels, memory from the allocator, gradients are compared bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/autograd.h"
#include "ext.h"

typedef struct fixture {
    neap_ctx *c;
    neap_tensor *x;
    int calls;
    int fail_at; /* call number that fails */
    int depth;   /* nesting below */
    neap_region_opts opts;
} fixture;

static void begin(fixture *f, int n)
{
    neap_ctx_opts o = {.size = sizeof o, .threads = 1};
    memset(f, 0, sizeof *f);
    f->c = neap_ctx_new(&o);
    assert_non_null(f->c);
    neap_region_opts_init(&f->opts);
    int64_t shape[1] = {n};
    f->x = neap_full(f->c, 1, shape, 0.7, NEAP_FLOAT64, 0);
    assert_int_equal(neap_set_requires_grad(f->c, f->x, 1), 0);
}

static neap_memory memory(neap_ctx *c)
{
    neap_memory m = {.size = sizeof m};
    neap_memory_stats(c, 0, &m);
    return m;
}

static void end(fixture *f)
{
    neap_free(f->x);
    neap_memory m = memory(f->c);
    assert_int_equal(m.live, 0);
    assert_int_equal(m.nodes + m.slots + m.regions + m.markers + m.pass_entries, 0);
    assert_int_equal(f->c->ambient.n, 0);
    neap_ctx_free(f->c);
}

static int kernels(neap_ctx *c, const char *op) { return (int)c->counts[np_op_find(op)->index].kernels; }

/* sin(exp(sin(x))): three saves, x, exp's result, sin's input */
static neap_tensor *f3(neap_ctx *c, neap_tensor *x)
{
    neap_tensor *a = neap_sin(c, x), *b = neap_exp(c, a), *y = neap_sin(c, b);
    neap_free(a), neap_free(b);
    return y;
}

static int call_f3(neap_ctx *c, void *user, neap_values *v)
{
    fixture *f = user;
    if (++f->calls == f->fail_at) {
        neap_fail(c, NEAP_E_USER, "mine", f);
        return 1;
    }
    v->out[0] = f3(c, v->in[0]);
    v->n_out = 1;
    return v->out[0] == NULL;
}

static int call_sin(neap_ctx *c, void *user, neap_values *v)
{
    ((fixture *)user)->calls++;
    v->out[0] = neap_sin(c, v->in[0]);
    v->n_out = 1;
    return v->out[0] == NULL;
}

static neap_tensor *checkpoint(fixture *f, int (*call)(neap_ctx *, void *, neap_values *), neap_tensor *x)
{
    neap_tensor *out[NEAP_MAX_RESULTS] = {0};
    int n = 0;
    neap_checkpoint(f->c, (neap_fn){.call = call, .user = f}, &x, 1, out, &n, &f->opts);
    return n ? out[0] : NULL;
}

static uint64_t grad_hash(fixture *f, neap_tensor *y)
{
    uint64_t h = 0;
    neap_set_grad(f->c, f->x, NULL);
    neap_tensor *s = neap_sum(f->c, y, NULL, 0, 0);
    assert_int_equal(neap_backward(f->c, s, NULL, NULL), 0);
    neap_free(s);
    neap_tensor *g = neap_grad_of(f->x);
    assert_int_equal(neap_hash(f->c, g, &h), 0);
    neap_free(g);
    return h;
}

static uint64_t plain_hash(fixture *f)
{
    neap_tensor *y = f3(f->c, f->x);
    uint64_t h = grad_hash(f, y);
    neap_free(y);
    memset(f->c->counts, 0, sizeof *f->c->counts * NP_N_OPS);
    return h;
}

static void ck_A1_two_calls_and_the_last_kernel_is_not_run_again(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 5);
    uint64_t want = plain_hash(&f);
    neap_tensor *y = checkpoint(&f, call_f3, f.x);
    assert_int_equal(grad_hash(&f, y), want);
    assert_int_equal(f.calls, 2);
    assert_int_equal(kernels(f.c, "sin"), 3);
    assert_int_equal(kernels(f.c, "exp"), 2);
    neap_free(y);
    end(&f);
}

/* A number that changes from run to run flows into what sin saves, or into nothing. */
static int call_counting(neap_ctx *c, void *user, neap_values *v)
{
    fixture *f = user;
    neap_tensor *k = neap_number(c, ++f->calls), *h = neap_mul(c, v->in[0], k);
    v->out[0] = neap_sin(c, f->depth ? v->in[0] : h);
    v->n_out = 1;
    neap_free(k), neap_free(h);
    return v->out[0] == NULL;
}

static void what_is_made_otherwise_is_refused_where_a_gradient_needs_it(void **state)
{
    (void)state;
    for (int aside = 0; aside <= 1; aside++) {
        for (int check = NEAP_CHECK_NONE; check <= NEAP_CHECK_DEFAULT; check++) {
            fixture f;
            begin(&f, 3);
            f.depth = aside;
            f.opts.check = (neap_determinism)check;
            neap_tensor *y = checkpoint(&f, call_counting, f.x), *s = neap_sum(f.c, y, NULL, 0, 0);
            neap_backward(f.c, s, NULL, NULL);
            assert_int_equal(neap_error(f.c), aside || check == NEAP_CHECK_NONE ? NEAP_OK : NEAP_E_OPS);
            neap_clear_error(f.c);
            neap_set_grad(f.c, f.x, NULL);
            neap_free(s), neap_free(y);
            end(&f);
        }
    }
}

static void ck_B1_sin_alone(void **state)
{
    (void)state;
    for (int early = 1; early >= 0; early--) {
        fixture f;
        begin(&f, 3);
        f.opts.early_stop = early;
        neap_tensor *y = checkpoint(&f, call_sin, f.x);
        grad_hash(&f, y);
        assert_int_equal(f.calls, 2);
        assert_int_equal(kernels(f.c, "sin"), early ? 1 : 2);
        neap_free(y);
        end(&f);
    }
}

static int call_squares(neap_ctx *c, void *user, neap_values *v)
{
    neap_tensor *t = neap_retain(v->in[0]);
    for (int i = 0; i < ((fixture *)user)->depth; i++) {
        neap_tensor *next = neap_square(c, t);
        neap_free(t);
        t = next;
    }
    v->out[0] = t;
    v->n_out = 1;
    return t == NULL;
}

static void ck_C1_a_region_keeps_input_and_output_only(void **state)
{
    (void)state;
    for (int n = 4; n <= 8; n += 4) {
        fixture f;
        begin(&f, 100);
        f.depth = n;
        neap_values v = {.in = &f.x, .n_in = 1};
        call_squares(f.c, &f, &v);
        assert_int_equal(memory(f.c).storages, n + 1);
        neap_free(v.out[0]);
        neap_tensor *y = checkpoint(&f, call_squares, f.x);
        assert_int_equal(memory(f.c).storages, 2);
        neap_free(y); /* ck-C4: dropping the result frees everything at once */
        assert_int_equal(memory(f.c).storages, 1);
        end(&f);
    }
}

static int call_nested(neap_ctx *c, void *user, neap_values *v)
{
    fixture *f = user;
    int depth = f->depth--;
    (void)c;
    v->out[0] = checkpoint(f, depth > 1 ? call_nested : call_f3, v->in[0]);
    f->depth = depth;
    v->n_out = 1;
    return v->out[0] == NULL;
}

static void ck_D1_nesting_costs_one_recompute(void **state)
{
    (void)state;
    for (int early = 1; early >= 0; early--) {
        for (int d = 1; d <= 4; d++) {
            fixture f;
            begin(&f, 4);
            uint64_t want = plain_hash(&f);
            f.opts.early_stop = early;
            f.depth = d - 1;
            neap_tensor *y = checkpoint(&f, d > 1 ? call_nested : call_f3, f.x);
            assert_int_equal(memory(f.c).storages, 2 + 1); /* x, y and the gradient of the plain run */
            assert_int_equal(grad_hash(&f, y), want);
            assert_int_equal(f.calls, early ? 2 : d + 1);
            neap_free(y);
            end(&f);
        }
    }
}

static int call_dropout(neap_ctx *c, void *user, neap_values *v)
{
    ((fixture *)user)->calls++;
    neap_tensor *d = neap_dropout(c, v->in[0], 0.5, 1, NULL);
    v->out[0] = neap_sin(c, d);
    neap_free(d);
    v->n_out = 1;
    return v->out[0] == NULL;
}

static void ck_G1_G2_the_recompute_repeats_the_numbers_and_moves_no_stream(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 20000);
    neap_generator *g = neap_default_generator(f.c, 0);
    for (int k = 0; k < 5; k++) {
        uint64_t seed, after_forward, after;
        neap_seed(f.c, 11);
        neap_values v = {.in = &f.x, .n_in = 1};
        call_dropout(f.c, &f, &v);
        uint64_t want = grad_hash(&f, v.out[0]);
        neap_free(v.out[0]);
        neap_seed(f.c, 11);
        neap_tensor *y = checkpoint(&f, call_dropout, f.x);
        neap_generator_get(g, &seed, &after_forward);
        assert_int_equal(grad_hash(&f, y), want);
        neap_generator_get(g, &seed, &after);
        assert_int_equal(after, after_forward);
        neap_free(y);
    }
    end(&f);
}

static void ck_L3_an_error_in_the_recompute_leaves_no_trace(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    uint64_t want = plain_hash(&f);
    neap_tensor *y = checkpoint(&f, call_f3, f.x), *s = neap_sum(f.c, y, NULL, 0, 0);
    neap_set_grad(f.c, f.x, NULL);
    neap_memory before = memory(f.c);
    f.fail_at = 2;
    neap_backward_opts keep = {.size = sizeof keep, .retain_graph = 1};
    assert_int_not_equal(neap_backward(f.c, s, NULL, &keep), 0);
    assert_int_equal(neap_error(f.c), NEAP_E_USER);
    assert_ptr_equal(neap_error_value(f.c), &f);
    neap_clear_error(f.c);
    assert_int_equal(memory(f.c).live, before.live);
    assert_int_equal(memory(f.c).pass_entries, 0);
    assert_int_equal(f.c->ambient.n, 0);
    neap_free(s);
    assert_int_equal(grad_hash(&f, y), want);
    neap_free(y);
    end(&f);
}

static int call_changing(neap_ctx *c, void *user, neap_values *v)
{
    fixture *f = user;
    neap_tensor *t = f3(c, v->in[0]);
    if (f->calls++ == f->fail_at) { /* one save more, or of another shape */
        neap_tensor *u = neap_sin(c, t);
        neap_free(t);
        t = u;
    }
    v->out[0] = t;
    v->n_out = 1;
    return t == NULL;
}

static void ck_F1_fewer_saves_are_E_COUNT(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    f.fail_at = 0; /* the forward saves four, the recompute three */
    neap_tensor *y = checkpoint(&f, call_changing, f.x), *s = neap_sum(f.c, y, NULL, 0, 0);
    assert_int_not_equal(neap_backward(f.c, s, NULL, NULL), 0);
    assert_int_equal(neap_error(f.c), NEAP_E_COUNT);
    assert_non_null(strstr(neap_error_message(f.c), "4"));
    assert_non_null(strstr(neap_error_message(f.c), "3"));
    neap_clear_error(f.c);
    neap_free(s), neap_free(y);
    end(&f);
}

static void ck_B4_more_saves_are_found_without_early_stop(void **state)
{
    (void)state;
    for (int early = 1; early >= 0; early--) {
        fixture f;
        begin(&f, 3);
        uint64_t want = plain_hash(&f);
        f.opts.early_stop = early;
        f.fail_at = 1;
        neap_tensor *y = checkpoint(&f, call_changing, f.x);
        if (early) {
            assert_int_equal(grad_hash(&f, y), want);
        } else {
            neap_tensor *s = neap_sum(f.c, y, NULL, 0, 0);
            assert_int_not_equal(neap_backward(f.c, s, NULL, NULL), 0);
            assert_int_equal(neap_error(f.c), NEAP_E_MORE_SAVED);
            neap_clear_error(f.c);
            neap_free(s);
        }
        neap_free(y);
        end(&f);
    }
}

static void ck_E1_every_kept_pass_recomputes_and_nothing_piles_up(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    neap_tensor *y = checkpoint(&f, call_f3, f.x), *s = neap_sum(f.c, y, NULL, 0, 0);
    neap_backward_opts keep = {.size = sizeof keep, .retain_graph = 1};
    assert_int_equal(neap_backward(f.c, s, NULL, &keep), 0);
    int64_t live = memory(f.c).live;
    for (int k = 0; k < 100; k++) assert_int_equal(neap_backward(f.c, s, NULL, &keep), 0);
    assert_int_equal(f.calls, 102);
    assert_int_equal(memory(f.c).live, live);
    assert_int_equal(memory(f.c).pass_entries, 0);
    assert_int_equal(neap_backward(f.c, s, NULL, NULL), 0);
    assert_int_not_equal(neap_backward(f.c, s, NULL, NULL), 0);
    assert_int_equal(neap_error(f.c), NEAP_E_FREED);
    neap_clear_error(f.c);
    neap_free(s), neap_free(y);
    end(&f);
}

static void ck_E3_higher_orders_through_a_region(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 2);
    neap_tensor *y = checkpoint(&f, call_f3, f.x), *p = f3(f.c, f.x), *gy, *gp, *ggy, *ggp;
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    int64_t two[1] = {2};
    neap_tensor *ones = neap_full(f.c, 1, two, 1, NEAP_FLOAT64, 0);
    assert_int_equal(neap_grad(f.c, &y, &ones, 1, &f.x, 1, &o, &gy), 0);
    assert_int_equal(neap_grad(f.c, &p, &ones, 1, &f.x, 1, &o, &gp), 0);
    assert_int_equal(neap_grad(f.c, &gy, &ones, 1, &f.x, 1, NULL, &ggy), 0);
    assert_int_equal(neap_grad(f.c, &gp, &ones, 1, &f.x, 1, NULL, &ggp), 0);
    uint64_t a, b;
    assert_int_equal(neap_hash(f.c, ggy, &a) | neap_hash(f.c, ggp, &b), 0);
    assert_int_equal(a, b);
    neap_free(ones), neap_free(gy), neap_free(gp), neap_free(ggy), neap_free(ggp), neap_free(y), neap_free(p);
    end(&f);
}

static void reading_outside_a_backward_leaves_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    neap_tensor *y = checkpoint(&f, call_f3, f.x);
    int64_t live = memory(f.c).live;
    for (int k = 1; k <= 2; k++) { /* ck-A17, ck-A18 */
        neap_tensor *saved = neap_node_saved(f.c, neap_grad_fn(y), 0);
        assert_non_null(saved);
        assert_int_equal(f.calls, 1 + k);
        neap_free(saved);
        assert_int_equal(memory(f.c).live, live);
    }
    neap_free(y);
    end(&f);
}

static void without_grad_mode_nothing_is_kept(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    uint64_t off = neap_set_grad_enabled(f.c, 0);
    neap_tensor *y = checkpoint(&f, call_f3, f.x);
    neap_end(f.c, off);
    assert_int_equal(memory(f.c).regions, 0);
    assert_false(neap_requires_grad(y));
    assert_int_equal(f.calls, 1);
    neap_free(y);
    end(&f);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int errors = 0;
    for (uint64_t n = 1;; n++) {
        fixture f;
        begin(&f, 3);
        f.depth = 1;
        f.c->alloc_count = 0;
        f.c->alloc_fail_at = n;
        neap_tensor *y = checkpoint(&f, call_nested, f.x), *s = y ? neap_sum(f.c, y, NULL, 0, 0) : NULL;
        int failed = !s || neap_backward(f.c, s, NULL, NULL) != 0;
        f.c->alloc_fail_at = 0;
        if (failed) assert_int_not_equal(neap_error(f.c), NEAP_OK);
        neap_clear_error(f.c);
        neap_free(s), neap_free(y);
        errors += failed;
        end(&f); /* no leak */
        if (!failed) break;
    }
    assert_true(errors > 20);
}

static int no_recompute(neap_ctx *c, void *user, neap_values *v)
{
    (void)user, (void)v;
    neap_fail(c, NEAP_E_INTERNAL, "nobody asked for it", NULL);
    return 1;
}

/* The coroutine dies first: what it has in force ends with it, then its region, once. */
static void a_region_may_end_after_what_it_had_in_force(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 3);
    size_t objects = f.c->obj_live;
    f.opts.recompute = (neap_fn){.call = no_recompute};
    for (int before = 0; before < 2; before++) {
        neap_region *r = neap_region_begin(f.c, &f.opts, &f.x, 1);
        assert_non_null(r);
        neap_tensor *y = f3(f.c, f.x);
        if (before) neap_free(y);
        neap_x_pop_owner(f.c, f.c->ambient.running);
        assert_int_equal(f.c->ambient.n, 0);
        neap_region_end(f.c, r, 0);
        if (!before) neap_free(y);
    }
    assert_int_equal(f.c->obj_live, objects);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_region_may_end_after_what_it_had_in_force),
        cmocka_unit_test(ck_A1_two_calls_and_the_last_kernel_is_not_run_again),
        cmocka_unit_test(what_is_made_otherwise_is_refused_where_a_gradient_needs_it),
        cmocka_unit_test(ck_B1_sin_alone),
        cmocka_unit_test(ck_C1_a_region_keeps_input_and_output_only),
        cmocka_unit_test(ck_D1_nesting_costs_one_recompute),
        cmocka_unit_test(ck_G1_G2_the_recompute_repeats_the_numbers_and_moves_no_stream),
        cmocka_unit_test(ck_L3_an_error_in_the_recompute_leaves_no_trace),
        cmocka_unit_test(ck_F1_fewer_saves_are_E_COUNT),
        cmocka_unit_test(ck_B4_more_saves_are_found_without_early_stop),
        cmocka_unit_test(ck_E1_every_kept_pass_recomputes_and_nothing_piles_up),
        cmocka_unit_test(ck_E3_higher_orders_through_a_region),
        cmocka_unit_test(reading_outside_a_backward_leaves_nothing),
        cmocka_unit_test(without_grad_mode_nothing_is_kept),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
