/* reentrant.c - the reentrant variant: the forward runs without recording, its backward runs the function again and
 * differentiates that graph in a pass of its own.
 *
 * What it holds: the tensor inputs as slots (packed with the hooks in force around the call, versions taken before the
 * function ran), the function, the random ranges. All of it goes after the first pass that does not keep the graph.
 * Contributions to the inputs' gradients are handed one by one to the outer pass, which adds them in the same order
 * as without a checkpoint. What it cannot do is refused loudly: targets, create_graph, captured gradients. */
#include "autograd/custom.h"
#include "checkpoint/recompute.h"

#include <stdio.h>

struct neap_reentrant {
    int32_t refs;
    neap_ctx *c;
    char name[96];
    bool preserve_rng;
    int n;
    np_slot *inputs;
    bool *wants;            /* input i required grad */
    uint64_t *versions;     /* before the function ran */
    neap_tensor **borrowed; /* during the forward: strong */
    neap_fn recompute;
    void (*done)(neap_ctx *c, void *user);
    np_range_log ranges;
    uint64_t grad_id, ranges_id;
    struct neap_reentrant *outer; /* of nested forwards */
    void (*outer_watch)(neap_ctx *c, neap_tensor *t);
    bool captured;          /* a tensor that requires grad met an op, and no input does */
    uint64_t first_storage; /* storages above this id were made inside */
    np_setting setting;     /* at the forward */
};

static void drop(neap_reentrant *r)
{
    if (--r->refs > 0) return;
    neap_ctx *c = r->c;
    size_t n = (size_t)r->n;
    for (int i = 0; i < r->n; i++) {
        np_slot_release(c, &r->inputs[i]);
        if (r->borrowed) np_drop(r->borrowed[i]);
    }
    if (r->inputs) np_obj_free(c, r->inputs, sizeof *r->inputs * n);
    if (r->wants) np_obj_free(c, r->wants, n);
    if (r->versions) np_obj_free(c, r->versions, sizeof *r->versions * n);
    if (r->borrowed) np_obj_free(c, r->borrowed, sizeof *r->borrowed * n);
    if (r->recompute.release) r->recompute.release(r->recompute.user);
    np_range_log_free(c, &r->ranges);
    np_setting_free(c, &r->setting);
    c->n_regions--;
    np_obj_free(c, r, sizeof *r);
}

static void release_user(void *user) { drop(user); }
static void retain_user(void *user) { ((neap_reentrant *)user)->refs++; }

/* ---- forward */

/* Told of every tensor that requires grad and is used while recording is off. Only what this forward itself switched
 * off counts: a no_grad of the user's own is the user's wish. */
static void watch(neap_ctx *c, neap_tensor *t)
{
    neap_reentrant *r = c->reentrant;
    np_ambient_entry *grad = np_ambient_get(c, NP_AMB_GRAD);
    if (!r || !grad || grad->id != r->grad_id) return;
    for (int i = 0; i < r->n; i++)
        if (r->wants[i] || r->borrowed[i] == t) return;
    r->captured = true;
}

static bool remember_inputs(neap_reentrant *r, neap_tensor *const *inputs, int n)
{
    neap_ctx *c = r->c;
    if (n == 0) return true;
    size_t k = (size_t)n;
    r->n = n;
    r->inputs = np_obj_new(c, sizeof *r->inputs * k);
    r->wants = r->inputs ? np_obj_new(c, k) : NULL;
    r->versions = r->wants ? np_obj_new(c, sizeof *r->versions * k) : NULL;
    r->borrowed = r->versions ? np_obj_new(c, sizeof *r->borrowed * k) : NULL;
    if (!r->borrowed) {
        if (!r->inputs) r->n = 0;
        return false;
    }
    for (int i = 0; i < n; i++) {
        r->borrowed[i] = np_hold_ref(inputs[i]);
        r->wants[i] = np_requires_grad(inputs[i]);
        r->versions[i] = inputs[i] ? inputs[i]->st->version.n : 0;
    }
    return true;
}

neap_reentrant *neap_reentrant_begin(neap_ctx *c, const neap_region_opts *o, neap_tensor *const *inputs,
                                     int n)
{
    if (np_pending(c) || !np_grad_on(c)) return NULL;
    if (!o || !o->recompute.call || n < 0 || (n > 0 && !inputs))
        return np_fail(
            c, NEAP_E_ARG,
            "checkpoint: options with a function to recompute, and the list of inputs, are needed");
    if (n > NEAP_MAX_RESULTS)
        return np_fail(c, NEAP_E_ARG, "checkpoint: %d tensor arguments, at most %d are possible", n,
                       NEAP_MAX_RESULTS);
    neap_reentrant *r = np_obj_new(c, sizeof *r);
    if (!r) return NULL;
    c->n_regions++;
    r->refs = 1;
    r->c = c;
    snprintf(r->name, sizeof r->name, o->name && strchr(o->name, ':') ? "the checkpoint at %s" : "%s",
             o->name ? o->name : "a checkpoint");
    r->preserve_rng = o->preserve_rng_state != 0;
    r->recompute = o->recompute;
    r->done = o->done;
    if (r->recompute.retain) r->recompute.retain(r->recompute.user);
    if (np_setting_take(c, &r->setting) && remember_inputs(r, inputs, n))
        r->grad_id = np_ambient_push(c, NP_AMB_GRAD, 0, NULL, "a reentrant checkpoint", NULL);
    if (r->grad_id && r->preserve_rng)
        r->ranges_id = np_ambient_push(c, NP_AMB_REGION, 0, &r->ranges, r->name, NULL);
    if (np_pending(c)) {
        if (r->grad_id) np_ambient_pop(c, r->grad_id);
        drop(r);
        return NULL;
    }
    r->outer = c->reentrant;
    r->outer_watch = c->on_unrecorded;
    r->first_storage = c->next_storage;
    c->reentrant = r;
    c->on_unrecorded = watch;
    return r;
}

static bool any(const neap_reentrant *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->wants[i]) return true;
    return false;
}

/* Slots are packed with the hooks around the call; the version is the one from before the function ran. */
static bool pack_inputs(neap_reentrant *r)
{
    for (int i = 0; i < r->n; i++) {
        if (!np_slot_pack(r->c, &r->inputs[i], r->borrowed[i], NULL, 0)) return false;
        r->inputs[i].version = r->versions[i];
    }
    return true;
}

static int backward(neap_ctx *c, void *user, neap_values *v);

static bool record(neap_reentrant *r, neap_tensor **results, int n)
{
    neap_ctx *c = r->c;
    neap_fn fn = {backward, retain_user, release_user, r};
    neap_tensor *fresh[NEAP_MAX_RESULTS];
    if (n > NEAP_MAX_RESULTS)
        return np_fail(c, NEAP_E_ARG, "%s: %d results, at most %d are possible", r->name, n,
                       NEAP_MAX_RESULTS);
    /* A result that came from outside, or has a place of its own, is given back as an alias: what others hold stays. */
    for (int j = 0; j < n; j++) {
        fresh[j] = results[j];
        if (!results[j] || (!results[j]->ag && results[j]->st->id > r->first_storage)) continue;
        fresh[j] = np_tensor_alias(results[j]);
        if (!fresh[j]) return false;
        np_drop(results[j]);
        results[j] = fresh[j];
    }
    neap_custom f = {.size = sizeof f,
                     .name = "checkpoint",
                     .backward = fn,
                     .inputs = r->borrowed,
                     .n_inputs = r->n,
                     .outputs = fresh,
                     .n_outputs = n};
    neap_node *node = neap_custom_record(c, &f);
    return node != NULL || !np_pending(c);
}

int neap_reentrant_end(neap_ctx *c, neap_reentrant *r, neap_tensor **results, int n, int ok)
{
    if (!r) return np_pending(c); /* begin failed, or grad mode is off */
    c->reentrant = r->outer;
    c->on_unrecorded = r->outer_watch;
    if (r->ranges_id) np_ambient_pop(c, r->ranges_id);
    np_ambient_pop(c, r->grad_id);
    if (ok && !np_pending(c)) {
        if (!any(r) && r->captured)
            np_fail(c, NEAP_E_REENTRANT_CAPTURED,
                    "%s: no argument requires grad, but the function uses tensors that do: their gradients "
                    "would be lost; "
                    "use {use_reentrant = false}, or pass such a tensor as an argument",
                    r->name);
        else if (any(r) && pack_inputs(r)) record(r, results, n);
    }
    for (int i = 0; i < r->n; i++) np_drop(r->borrowed[i]), r->borrowed[i] = NULL;
    drop(r);
    return np_pending(c) ? 1 : 0;
}

/* ---- backward */

static bool allowed(neap_ctx *c, const neap_reentrant *r)
{
    if (np_pass_has_targets(c))
        return np_fail(c, NEAP_E_REENTRANT_GRAD,
                       "%s: a reentrant checkpoint cannot run inside grad() or a backward with inputs; use "
                       "backward(), or "
                       "{use_reentrant = false}",
                       r->name);
    if (np_current_pass(c)->create_graph)
        return np_fail(
            c, NEAP_E_REENTRANT_HIGHER,
            "%s: create_graph through a reentrant checkpoint would give incomplete second derivatives; use "
            "{use_reentrant = false}",
            r->name);
    return true;
}

/* Fresh leaves over the inputs' values. */
static bool make_leaves(neap_reentrant *r, neap_tensor **leaves)
{
    neap_ctx *c = r->c;
    for (int i = 0; i < r->n; i++) {
        neap_tensor *t = np_slot_unpack(c, &r->inputs[i], NULL);
        if (!t && np_pending(c)) return false;
        if (!t) continue;
        leaves[i] = np_tensor_alias(t);
        np_drop(t);
        if (!leaves[i] || (r->wants[i] && neap_set_requires_grad(c, leaves[i], 1))) return false;
    }
    return true;
}

/* Differentiates the results that require grad, with the gradients that arrived. */
static bool differentiate(neap_ctx *c, neap_reentrant *r, struct neap_node *node, neap_values *made,
                          neap_values *g, neap_tensor **leaves)
{
    neap_tensor *outs[NEAP_MAX_RESULTS], *grads[NEAP_MAX_RESULTS];
    int n = 0, requiring = 0;
    for (int j = 0; j < made->n_out && j < g->n_in; j++) {
        if (!np_requires_grad(made->out[j])) continue;
        requiring++;
        if (!g->in[j]) continue;
        outs[n] = made->out[j];
        grads[n++] = g->in[j];
    }
    if (requiring == 0)
        return np_fail(
            c, NEAP_E_NONE_REQUIRE_GRAD,
            "%s: no result of the function requires grad when it runs again: all are detached or made under "
            "no_grad; {use_reentrant = false} supports that",
            r->name);
    return n == 0 || np_run_reentrant(c, node, outs, grads, n, leaves, r->n);
}

/* Runs the function and differentiates what it returns. The host is told when that graph is gone; its function is
 * pinned, as hooks may run another pass, which releases it. */
static bool run_and_differentiate(neap_ctx *c, neap_reentrant *r, struct neap_node *node, neap_values *v,
                                  neap_values *made, neap_tensor **leaves, np_entered *e)
{
    neap_fn fn = r->recompute;
    const char *op = c->op_name;
    c->op_name = NULL;
    if (fn.retain) fn.retain(fn.user);
    bool ran = np_call_fn(c, fn, made) == 0;
    c->op_name = op;
    np_setting_leave(c, e);
    bool ok = ran && !np_pending(c) && differentiate(c, r, node, made, v, leaves);
    for (int j = 0; j < made->n_out; j++) np_drop(made->out[j]);
    if (ran && r->done) r->done(c, fn.user);
    if (fn.retain && fn.release) fn.release(fn.user);
    return ok;
}

static int backward(neap_ctx *c, void *user, neap_values *v)
{
    neap_reentrant *r = user;
    struct neap_node *node = c->custom->node;
    neap_tensor *leaves[NEAP_MAX_RESULTS] = {0};
    neap_values made = {.size = sizeof made, .in = leaves, .n_in = r->n};
    np_range_log ranges = {0};
    np_entered e = {0};
    bool keep = np_current_pass(c)->keep_graph;
    if (c->region_depth_limit && c->region_depth >= c->region_depth_limit) {
        np_fail(c, NEAP_E_NESTED_DEPTH, "%s: recomputes are nested %d deep; checkpoint fewer levels", r->name,
                c->region_depth);
        return 1;
    }
    c->region_depth++;
    bool ok = allowed(c, r) && make_leaves(r, leaves) && np_ranges_for_replay(c, &r->ranges, &ranges) &&
              np_setting_enter(c, &r->setting, r->preserve_rng ? &ranges : NULL, NULL, r->name, &e);
    if (ok) ok = run_and_differentiate(c, r, node, v, &made, leaves, &e);
    else np_setting_leave(c, &e);
    for (int i = 0; i < r->n; i++) np_drop(leaves[i]);
    np_range_log_free(c, &ranges);
    c->region_depth--;
    if (ok && !keep) {
        for (int i = 0; i < r->n; i++) np_slot_release(c, &r->inputs[i]);
        neap_fn fn = r->recompute;
        r->recompute.release = NULL; /* once */
        if (fn.release) fn.release(fn.user);
        np_setting_free(c, &r->setting);
    }
    v->n_out = 0; /* contributions went to the outer pass one by one */
    return !ok;
}
