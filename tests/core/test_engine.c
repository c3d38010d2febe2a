/* test_engine.c - the backward engine through neap.h: values from formulas, lifetimes from counters. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/autograd.h"
#include "neap.h"
#include "test_steps.h"

static neap_ctx *new_ctx(void)
{
    neap_ctx_opts o = {.size = sizeof o, .threads = 1};
    neap_ctx *c = neap_ctx_new(&o);
    assert_non_null(c);
    return c;
}

static neap_memory memory(neap_ctx *c)
{
    neap_memory m = {.size = sizeof m};
    assert_int_equal(neap_memory_stats(c, 0, &m), 0);
    return m;
}

static void end_ctx(neap_ctx *c)
{
    neap_memory m = memory(c);
    assert_int_equal(m.live, 0);
    assert_int_equal(m.nodes, 0);
    assert_int_equal(m.slots, 0);
    assert_int_equal(m.regions, 0);
    assert_int_equal(m.markers, 0);
    neap_ctx_free(c);
}

static neap_tensor *vec(neap_ctx *c, int n, const double *v, int grad)
{
    int64_t shape[1] = {n};
    neap_tensor *t = neap_from_data(c, 1, shape, NEAP_FLOAT64, v);
    assert_non_null(t);
    assert_int_equal(neap_set_requires_grad(c, t, grad), 0);
    return t;
}

static double at(neap_ctx *c, neap_tensor *t, int i)
{
    double v[64];
    assert_non_null(t);
    assert_true(neap_numel(t) <= 64 && i < neap_numel(t));
    assert_int_equal(neap_read(c, t, v, sizeof(double) * (size_t)neap_numel(t)), 0);
    return v[i];
}

static double grad_at(neap_ctx *c, neap_tensor *t, int i)
{
    neap_tensor *g = neap_grad_of(t);
    double v = at(c, g, i);
    neap_free(g);
    return v;
}

static void product_rule_and_accumulation(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2, 3}, b[] = {5, 7};
    neap_tensor *x = vec(c, 2, a, 1), *y = vec(c, 2, b, 1);
    for (int k = 1; k <= 2; k++) {
        neap_scope_begin(c);
        neap_tensor *s = neap_sum(c, neap_mul(c, neap_mul(c, x, y), x), NULL, 0, 0); /* x^2 y */
        assert_int_equal(neap_backward(c, s, NULL, NULL), 0);
        neap_scope_end(c);
        assert_float_equal(grad_at(c, x, 0), k * 2 * 2 * 5, 0);
        assert_float_equal(grad_at(c, y, 1), k * 9, 0);
    }
    neap_free(x), neap_free(y);
    end_ctx(c);
}

static void second_backward_needs_retain_graph(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *x = vec(c, 1, a, 1), *y = neap_mul(c, x, x);
    neap_backward_opts keep = {.size = sizeof keep, .retain_graph = 1};
    assert_int_equal(neap_backward(c, y, NULL, &keep), 0);
    assert_int_equal(neap_backward(c, y, NULL, NULL), 0);
    assert_float_equal(grad_at(c, x, 0), 8, 0);
    assert_int_not_equal(neap_backward(c, y, NULL, NULL), 0);
    assert_int_equal(neap_error(c), NEAP_E_FREED);
    neap_clear_error(c);
    neap_free(x), neap_free(y);
    end_ctx(c);
}

static void higher_order(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *x = vec(c, 1, a, 1), *g1, *g2, *g3;
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    neap_tensor *sq = neap_mul(c, x, x), *y = neap_mul(c, sq, x);
    assert_int_equal(neap_grad(c, &y, NULL, 1, &x, 1, &o, &g1), 0);
    assert_float_equal(at(c, g1, 0), 12, 0);
    assert_int_equal(neap_grad(c, &g1, NULL, 1, &x, 1, &o, &g2), 0);
    assert_float_equal(at(c, g2, 0), 12, 0);
    assert_int_equal(neap_grad(c, &g2, NULL, 1, &x, 1, NULL, &g3), 0);
    assert_float_equal(at(c, g3, 0), 6, 0);
    assert_null(neap_grad_of(x));
    neap_free(g1), neap_free(g2), neap_free(g3), neap_free(sq), neap_free(y), neap_free(x);
    end_ctx(c);
}

static void grad_of_an_inner_value_and_unused_inputs(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {0.5};
    neap_tensor *x = vec(c, 1, a, 1), *z = vec(c, 1, a, 1);
    neap_tensor *h = neap_exp(c, x), *y = neap_mul(c, h, h), *in[2] = {h, z}, *g[2];
    neap_backward_opts o = {.size = sizeof o, .retain_graph = 1};
    assert_int_not_equal(neap_grad(c, &y, NULL, 1, in, 2, &o, g), 0);
    assert_int_equal(neap_error(c), NEAP_E_UNUSED);
    assert_null(g[0]);
    neap_clear_error(c);
    o.allow_unused = 1;
    assert_int_equal(neap_grad(c, &y, NULL, 1, in, 2, &o, g), 0);
    assert_float_equal(at(c, g[0], 0), 2 * exp(0.5), 1e-15);
    assert_null(g[1]);
    assert_null(neap_grad_of(x));
    neap_free(g[0]);
    /* backward with inputs: only those accumulate */
    neap_backward_opts only = {.size = sizeof only, .inputs = &x, .n_inputs = 1};
    neap_tensor *w = neap_mul(c, y, z);
    assert_int_equal(neap_backward(c, w, NULL, &only), 0);
    assert_null(neap_grad_of(z));
    assert_float_equal(grad_at(c, x, 0), 2 * exp(1.0) * 0.5, 1e-14);
    neap_free(w), neap_free(y), neap_free(h), neap_free(x), neap_free(z);
    end_ctx(c);
}

static int double_it(neap_ctx *c, void *user, neap_values *v)
{
    ++*(int *)user;
    neap_tensor *two = neap_number(c, 2);
    v->out[0] = neap_mul(c, v->in[0], two);
    v->n_out = 1;
    neap_free(two);
    return v->out[0] == NULL;
}

static void hooks_see_the_total_once(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {3};
    int calls = 0, inner = 0;
    neap_tensor *x = vec(c, 1, a, 1);
    neap_fn f = {.call = double_it, .user = &calls}, f2 = {.call = double_it, .user = &inner};
    uint64_t id = neap_register_hook(c, x, f);
    assert_true(id > 0);
    neap_tensor *h = neap_mul(c, x, x), *y = neap_add(c, h, x); /* 2x + 1 = 7 */
    assert_true(neap_register_hook(c, h, f2) > 0);
    assert_int_equal(neap_retain_grad(c, h), 0);
    neap_backward_opts keep = {.size = sizeof keep, .retain_graph = 1};
    assert_int_equal(neap_backward(c, y, NULL, &keep), 0);
    assert_int_equal(calls, 1);
    assert_int_equal(inner, 1);
    assert_float_equal(grad_at(c, h, 0), 2, 0); /* after the hook */
    assert_float_equal(grad_at(c, x, 0), 2 * (2 * 6 + 1), 0);
    assert_true(neap_remove_hook(c, id));
    assert_false(neap_remove_hook(c, id));
    assert_int_equal(neap_backward(c, y, NULL, NULL), 0);
    assert_int_equal(calls, 1);
    neap_free(y), neap_free(h), neap_free(x);
    end_ctx(c);
}

static int failing(neap_ctx *c, void *user, neap_values *v)
{
    (void)v;
    neap_fail(c, NEAP_E_USER, "from the hook", user);
    return 1;
}

static void a_hook_error_leaves_nothing_half_done(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {3};
    int mine;
    neap_tensor *x = vec(c, 1, a, 1), *y = neap_mul(c, x, x), *z = neap_mul(c, y, x);
    uint64_t id = neap_register_hook(c, y, (neap_fn){.call = failing, .user = &mine});
    neap_memory before = memory(c);
    neap_backward_opts keep = {.size = sizeof keep, .retain_graph = 1};
    assert_int_not_equal(neap_backward(c, z, NULL, &keep), 0);
    assert_int_equal(neap_error(c), NEAP_E_USER);
    assert_ptr_equal(neap_error_value(c), &mine);
    neap_clear_error(c);
    assert_int_equal(memory(c).live, before.live + 8 * (neap_grad_of(x) != NULL));
    assert_true(neap_grad_enabled(c));
    neap_set_grad(c, x, NULL);
    neap_remove_hook(c, id);
    assert_int_equal(neap_backward(c, z, NULL, NULL), 0);
    assert_float_equal(grad_at(c, x, 0), 27, 0);
    neap_free(x), neap_free(y), neap_free(z);
    end_ctx(c);
}

static void in_place_is_seen(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {1, 2};
    neap_tensor *x = vec(c, 2, a, 1), *h = neap_mul(c, x, x), *s = neap_sin(c, h); /* saves h */
    neap_tensor *one = neap_number(c, 1), *same = neap_add_(c, h, one);
    assert_ptr_equal(same, h);
    neap_tensor *t = neap_sum(c, s, NULL, 0, 0);
    assert_int_not_equal(neap_backward(c, t, NULL, NULL), 0);
    assert_int_equal(neap_error(c), NEAP_E_INPLACE);
    neap_clear_error(c);
    assert_null(neap_add_(c, x, one));
    assert_int_equal(neap_error(c), NEAP_E_LEAF_INPLACE);
    neap_clear_error(c);
    neap_free(same), neap_free(one), neap_free(t), neap_free(s), neap_free(h), neap_free(x);
    end_ctx(c);
}

static void writing_through_a_view_keeps_the_graph_right(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {1, 2, 3, 4};
    neap_tensor *x = vec(c, 4, a, 1);
    neap_tensor *two = neap_number(c, 2), *y = neap_mul(c, x, two); /* y = 2x */
    neap_tensor *v = neap_narrow(c, y, 0, 1, 2, 1), *three = neap_number(c, 3);
    neap_tensor *same = neap_mul_(c, v, three); /* y[1..2] tripled */
    neap_tensor *s = neap_sum(c, y, NULL, 0, 0);
    assert_non_null(s);
    assert_float_equal(at(c, s, 0), 2 + 12 + 18 + 8, 0);
    assert_int_equal(neap_backward(c, s, NULL, NULL), 0);
    double want[] = {2, 6, 6, 2};
    for (int i = 0; i < 4; i++) assert_float_equal(grad_at(c, x, i), want[i], 0);
    neap_free(s), neap_free(same), neap_free(three), neap_free(v), neap_free(y), neap_free(two), neap_free(x);
    end_ctx(c);
}

static void a_stale_view_is_refused(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {1, 2};
    neap_tensor *x = vec(c, 2, a, 1), *y = neap_exp(c, x), *v = neap_select(c, y, 0, 0),
                *k = neap_number(c, 3);
    neap_tensor *same = neap_mul_(c, y, k), *bad = neap_exp(c, v);
    assert_null(bad);
    assert_int_equal(neap_error(c), NEAP_E_INPLACE);
    neap_clear_error(c);
    neap_free(same), neap_free(k), neap_free(v), neap_free(y), neap_free(x);
    end_ctx(c);
}

/* ---- a million adds on a small stack */

enum { CHAIN = 1000000 };

static void *long_chain(void *arg)
{
    int backward = *(int *)arg, chain = 100 * test_steps(CHAIN / 100);
    neap_ctx_opts o = {.size = sizeof o, .threads = 1};
    neap_ctx *c = neap_ctx_new(&o);
    double one[] = {1};
    int64_t shape[1] = {1};
    neap_tensor *x = neap_from_data(c, 1, shape, NEAP_FLOAT64, one), *t = neap_retain(x);
    neap_set_requires_grad(c, x, 1);
    for (int i = 0; i < chain; i++) {
        neap_tensor *next = neap_add(c, t, x);
        neap_free(t);
        t = next;
    }
    double g = -1;
    if (backward && neap_backward(c, t, NULL, NULL) == 0) {
        neap_tensor *grad = neap_grad_of(x);
        neap_item(c, grad, &g);
        neap_free(grad);
    }
    neap_free(t);
    neap_memory m = {.size = sizeof m};
    neap_memory_stats(c, 0, &m);
    int ok = m.nodes == 0 && (!backward || g == chain + 1) && neap_error(c) == NEAP_OK;
    neap_free(x);
    neap_ctx_free(c);
    return ok ? arg : NULL;
}

static void run_on_small_stack(int backward)
{
    pthread_t t;
    pthread_attr_t attr;
    void *result = NULL;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
    assert_int_equal(pthread_create(&t, &attr, long_chain, &backward), 0);
    pthread_join(t, &result);
    assert_non_null(result);
}

static void a_million_adds_backward_on_a_256_KB_stack(void **state)
{
    (void)state;
    run_on_small_stack(1);
}

static void a_million_adds_dropped_on_a_256_KB_stack(void **state)
{
    (void)state;
    run_on_small_stack(0);
}

/* ---- saved-tensors hooks */

typedef struct counting {
    int packs, unpacks, drops;
} counting;

static int pack(neap_ctx *c, void *user, neap_tensor *t, void **packed)
{
    ((counting *)user)->packs++;
    *packed = neap_detach(c, t);
    return *packed == NULL;
}
static neap_tensor *unpack(neap_ctx *c, void *user, void *packed)
{
    (void)c;
    ((counting *)user)->unpacks++;
    return neap_retain(packed);
}
static void drop(void *user, void *packed)
{
    ((counting *)user)->drops++;
    neap_free(packed);
}

static void saved_hooks_pack_unpack_and_drop(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {0.3};
    counting k = {0};
    neap_saved_hooks h = {.pack = pack, .unpack = unpack, .drop = drop, .user = &k};
    neap_tensor *x = vec(c, 1, a, 1);
    uint64_t id = neap_saved_hooks_begin(c, &h);
    neap_tensor *e = neap_exp(c, x), *y = neap_sin(c, e); /* saves exp's result, then sin's input */
    neap_end(c, id);
    assert_int_equal(k.packs, 2);
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    neap_tensor *g, *g2;
    assert_int_equal(neap_grad(c, &y, NULL, 1, &x, 1, &o, &g), 0);
    assert_int_equal(k.unpacks, 2);
    assert_int_equal(neap_grad(c, &g, NULL, 1, &x, 1, NULL, &g2), 0);
    double ex = exp(0.3);
    assert_float_equal(at(c, g, 0), cos(ex) * ex, 1e-14);
    assert_float_equal(at(c, g2, 0), (cos(ex) - sin(ex) * ex) * ex, 1e-14);
    neap_free(g), neap_free(g2), neap_free(y), neap_free(e);
    assert_int_equal(k.drops, 2);
    neap_free(x);
    end_ctx(c);
}

static void disabled_hooks_refuse_pairs(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    counting k = {0};
    neap_saved_hooks h = {.pack = pack, .unpack = unpack, .drop = drop, .user = &k};
    uint64_t outer = neap_disable_saved_hooks_begin(c, "outer"),
             inner = neap_disable_saved_hooks_begin(c, "inner");
    assert_int_equal(neap_saved_hooks_begin(c, &h), 0);
    assert_int_equal(neap_error(c), NEAP_E_HOOKS_DISABLED);
    assert_non_null(strstr(neap_error_message(c), "inner"));
    neap_clear_error(c);
    neap_end(c, inner);
    assert_int_equal(neap_saved_hooks_begin(c, &h), 0);
    assert_non_null(strstr(neap_error_message(c), "outer"));
    neap_clear_error(c);
    neap_end(c, outer);
    uint64_t id = neap_saved_hooks_begin(c, &h);
    assert_true(id > 0);
    neap_end(c, id);
    end_ctx(c);
}

/* ---- custom functions */

static int cube_backward(neap_ctx *c, void *user, neap_values *v)
{
    (void)user;
    neap_scope_begin(c);
    neap_tensor *x = neap_custom_saved(c, 0), *again = neap_custom_saved(c, 0);
    neap_tensor *three = neap_number(c, 3);
    v->out[0] = neap_keep(neap_mul(c, neap_mul(c, v->in[0], three), neap_mul(c, x, again)));
    v->n_out = 1;
    neap_free(x), neap_free(again);
    neap_scope_end(c);
    return v->out[0] == NULL;
}

static void a_custom_function_differentiates_twice(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *x = vec(c, 1, a, 1);
    uint64_t off = neap_set_grad_enabled(c, 0);
    neap_tensor *sq = neap_mul(c, x, x), *y = neap_mul(c, sq, x);
    neap_end(c, off);
    neap_custom f = {.size = sizeof f,
                     .name = "Cube",
                     .backward = {.call = cube_backward},
                     .inputs = &x,
                     .n_inputs = 1,
                     .outputs = &y,
                     .n_outputs = 1,
                     .saved = &x,
                     .n_saved = 1};
    assert_non_null(neap_custom_record(c, &f));
    assert_string_equal(neap_node_name(neap_grad_fn(y)), "Cube");
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    neap_tensor *g, *g2;
    assert_int_equal(neap_grad(c, &y, NULL, 1, &x, 1, &o, &g), 0);
    assert_float_equal(at(c, g, 0), 12, 0);
    assert_int_equal(neap_grad(c, &g, NULL, 1, &x, 1, NULL, &g2), 0);
    assert_float_equal(at(c, g2, 0), 12, 0);
    neap_free(g), neap_free(g2), neap_free(y), neap_free(sq), neap_free(x);
    end_ctx(c);
}

/* y = x^3 backward with a graph: x.grad holds nodes that hold x. */
static void keep_a_graph(neap_ctx *c, neap_tensor *x)
{
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    neap_tensor *sq = neap_mul(c, x, x), *y = neap_mul(c, sq, x);
    assert_int_equal(neap_backward(c, y, NULL, &o), 0);
    neap_free(sq), neap_free(y);
}

static void a_leaf_that_its_own_gradient_holds_is_found(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *kept = vec(c, 1, a, 1);
    keep_a_graph(c, kept);
    int64_t each = memory(c).nodes, most = 0;
    for (int i = 0; i < 1000; i++) {
        neap_tensor *x = vec(c, 1, a, 1);
        keep_a_graph(c, x);
        neap_free(x);
        if (memory(c).nodes > most) most = memory(c).nodes;
    }
    assert_true(each > 1 && most <= 20 * each);
    neap_tensor *g = neap_grad_of(kept), *g2;
    assert_int_equal(neap_grad(c, &g, NULL, 1, &kept, 1, NULL, &g2), 0);
    assert_float_equal(at(c, g2, 0), 12, 0);
    neap_free(g), neap_free(g2);
    np_cycles_collect(c);
    assert_int_equal(memory(c).storages, 2); /* kept and its gradient's value: the pass released the rest */
    assert_int_equal(neap_set_grad(c, kept, NULL), 0);
    neap_free(kept);
    end_ctx(c);
}

static void leaves_hold_each_other_through_their_gradients(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2}, b[] = {3};
    neap_backward_opts o = {.size = sizeof o, .create_graph = 1};
    neap_tensor *x = vec(c, 1, a, 1), *w = vec(c, 1, b, 1), *p = neap_mul(c, x, w), *y = neap_mul(c, p, p);
    assert_int_equal(neap_backward(c, y, NULL, &o), 0); /* w.grad = 2 x^2 w */
    neap_free(p), neap_free(y), neap_free(x);
    np_cycles_collect(c);
    assert_int_equal(c->n_cycles, 2);
    neap_tensor *g = neap_grad_of(w), *gw; /* its graph has x in it */
    assert_float_equal(at(c, g, 0), 24, 0);
    neap_free(w);
    np_cycles_collect(c); /* g alone holds all of it */
    assert_int_equal(c->n_cycles, 2);
    assert_int_equal(neap_backward(c, g, NULL, &o), 0);
    gw = neap_grad_of(g);
    assert_null(gw);
    neap_free(g);
    assert_true(memory(c).nodes > 0);
    np_cycles_collect(c);
    end_ctx(c);
}

static void what_a_result_still_needs_is_alive(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *x = vec(c, 1, a, 1), *sq = neap_mul(c, x, x), *again;
    keep_a_graph(c, x);
    neap_free(x);
    np_cycles_collect(c);
    again = neap_node_saved(c, neap_grad_fn(sq), 0); /* x, by way of the graph */
    assert_float_equal(grad_at(c, again, 0), 12, 0);
    neap_free(again), neap_free(sq);
    np_cycles_collect(c);
    end_ctx(c);
}

/* The search does not get its memory: nothing happens, and nothing is lost. */
static void a_search_without_memory_does_nothing(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    neap_tensor *x = vec(c, 1, a, 1);
    keep_a_graph(c, x);
    neap_free(x);
    int64_t nodes = memory(c).nodes;
    uint64_t n = 1;
    for (; memory(c).nodes; n++) {
        assert_int_equal(memory(c).nodes, nodes);
        assert_true(n < 100);
        c->alloc_fail_at = n;
        np_cycles_collect(c);
        c->alloc_fail_at = 0;
        assert_int_equal(neap_error(c), NEAP_OK);
    }
    assert_true(n > 3);
    end_ctx(c);
}

static int unused_hook(neap_ctx *c, void *user, neap_values *v)
{
    (void)c, (void)user, (void)v;
    return 0;
}
static void count_retain(void *user) { --*(int *)user; }
static void count_release(void *user) { ++*(int *)user; }

/* A context frees what only cycles still hold when it closes: also the hooks go. */
static void cycles_end_with_the_context(void **state)
{
    (void)state;
    neap_ctx *c = new_ctx();
    double a[] = {2};
    int released = 0;
    for (int i = 0; i < 3; i++) {
        neap_tensor *x = vec(c, 1, a, 1);
        assert_true(
            neap_register_hook(c, x, (neap_fn){unused_hook, count_retain, count_release, &released}) != 0);
        keep_a_graph(c, x);
        neap_free(x);
    }
    assert_true(memory(c).nodes > 0);
    assert_int_equal(released, -3);
    neap_ctx_free(c);
    assert_int_equal(released, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_rule_and_accumulation),
        cmocka_unit_test(second_backward_needs_retain_graph),
        cmocka_unit_test(higher_order),
        cmocka_unit_test(a_leaf_that_its_own_gradient_holds_is_found),
        cmocka_unit_test(leaves_hold_each_other_through_their_gradients),
        cmocka_unit_test(what_a_result_still_needs_is_alive),
        cmocka_unit_test(a_search_without_memory_does_nothing),
        cmocka_unit_test(cycles_end_with_the_context),
        cmocka_unit_test(grad_of_an_inner_value_and_unused_inputs),
        cmocka_unit_test(hooks_see_the_total_once),
        cmocka_unit_test(a_hook_error_leaves_nothing_half_done),
        cmocka_unit_test(in_place_is_seen),
        cmocka_unit_test(writing_through_a_view_keeps_the_graph_right),
        cmocka_unit_test(a_stale_view_is_refused),
        cmocka_unit_test(a_million_adds_backward_on_a_256_KB_stack),
        cmocka_unit_test(a_million_adds_dropped_on_a_256_KB_stack),
        cmocka_unit_test(saved_hooks_pack_unpack_and_drop),
        cmocka_unit_test(disabled_hooks_refuse_pairs),
        cmocka_unit_test(a_custom_function_differentiates_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
