/* function.c - custom functions: a forward that ran without recording, and a host's backward for it.
 *
 * The saved values of one backward call are unpacked once and cached for that call, so that a backward may read
 * them as often as it likes, also inside checkpoint regions. */
#include "autograd/autograd.h"
#include "autograd/custom.h"

static int output_index(const neap_custom *f, const neap_tensor *t)
{
    for (int j = 0; j < f->n_outputs; j++)
        if (f->outputs[j] == t) return j;
    return -1;
}

static bool differentiable(const neap_custom *f, int j)
{
    return f->outputs[j] && np_is_float((neap_dtype)f->outputs[j]->dtype) &&
           !(f->non_differentiable && f->non_differentiable[j]);
}

static bool fill_edges(neap_ctx *c, const neap_custom *f, struct neap_node *n)
{
    for (int i = 0; i < f->n_inputs; i++) {
        if (!np_requires_grad(f->inputs[i])) continue;
        n->next[i] = np_edge_of(c, f->inputs[i]);
        if (!n->next[i].node) return false;
    }
    return true;
}

static void fill_meta(const neap_custom *f, struct neap_node *n)
{
    for (int j = 0; j < f->n_outputs; j++) {
        const neap_tensor *t = f->outputs[j];
        if (!t) continue;
        n->meta[j].dtype = t->dtype;
        n->meta[j].ndim = t->ndim;
        n->meta[j].device = (uint8_t)t->st->dev->index;
        memcpy((int64_t *)n->meta[j].shape, t->shape, sizeof(int64_t) * t->ndim);
    }
}

static bool pack_inputs(neap_ctx *c, const neap_custom *f, struct neap_node *n, bool outputs)
{
    for (int k = 0; k < f->n_saved; k++) {
        int j = f->saved[k] ? output_index(f, f->saved[k]) : -1;
        bool own = j >= 0 && differentiable(f, j);
        if (f->saved[k] && own == outputs &&
            !np_slot_pack(c, &n->slots[k], f->saved[k], own ? n : NULL, own ? j : 0))
            return false;
    }
    return true;
}

neap_node *neap_custom_record(neap_ctx *c, const neap_custom *f)
{
    bool any = false;
    if (np_pending(c)) return NULL;
    if (!f || !f->name || !f->backward.call)
        return np_fail(c, NEAP_E_ARG, "a custom function needs a name and a backward");
    if (f->n_inputs > NEAP_MAX_RESULTS)
        return np_fail(c, NEAP_E_ARG, "%s: %d tensor arguments, at most %d are allowed", f->name, f->n_inputs,
                       NEAP_MAX_RESULTS);
    for (int i = 0; i < f->n_inputs; i++) any = any || np_requires_grad(f->inputs[i]);
    if (!any || !np_grad_on(c)) return NULL;
    struct neap_node *n = np_node_new(c, f->n_inputs, f->n_outputs, f->n_saved);
    if (!n) return NULL;
    size_t len = strlen(f->name) + 1;
    n->name = np_obj_new(c, len);
    if (!n->name) goto fail;
    memcpy(n->name, f->name, len);
    n->backward = f->backward;
    if (n->backward.retain) n->backward.retain(n->backward.user);
    fill_meta(f, n);
    if (!fill_edges(c, f, n) || !pack_inputs(c, f, n, false)) goto fail;
    for (int j = 0; j < f->n_outputs; j++)
        if (differentiable(f, j)) np_set_identity(f->outputs[j], n, j);
    if (!pack_inputs(c, f, n, true)) goto fail;
    np_node_drop(n); /* the outputs hold it */
    return n;
fail:
    np_node_drop(n);
    return NULL;
}

neap_tensor *neap_custom_saved(neap_ctx *c, int i)
{
    np_custom_frame *fr = c->custom;
    if (!fr) return np_fail(c, NEAP_E_STATE, "saved values can be read inside a custom backward only");
    if (i < 0 || i >= fr->node->n_slots)
        return np_fail(c, NEAP_E_INDEX, "%s saved %d values, there is no number %d", fr->node->name,
                       fr->node->n_slots, i + c->base);
    if (!fr->cache[i]) fr->cache[i] = np_slot_unpack(c, &fr->node->slots[i], fr->node);
    return np_hold_ref(fr->cache[i]);
}

int neap_custom_needs(neap_ctx *c, int i)
{
    np_custom_frame *fr = c->custom;
    return fr && i >= 0 && i < fr->node->n_in && fr->need[i];
}

static bool check_results(neap_ctx *c, struct neap_node *n, const neap_values *v)
{
    char got[128], want[128];
    if (v->n_out > n->n_in)
        return np_fail(c, NEAP_E_GRADIENT,
                       "%s: backward returned %d gradients, forward has %d tensor arguments", n->name,
                       v->n_out, n->n_in);
    for (int i = 0; i < v->n_out; i++) {
        const neap_tensor *t = v->out[i];
        if (!t || !n->next[i].node) continue;
        const np_node_meta *m = &n->next[i].node->meta[n->next[i].out_nr];
        bool same = t->ndim == m->ndim && t->dtype == m->dtype;
        for (int d = 0; same && d < t->ndim; d++) same = t->shape[d] == m->shape[d];
        if (!same)
            return np_fail(
                c, NEAP_E_GRADIENT, "%s: backward returned a gradient %s for argument %d, which is %s %s",
                n->name, np_tensor_text(got, sizeof got, t), i + c->base,
                np_shape_text(want, sizeof want, m->ndim, m->shape), np_dtype_name((neap_dtype)m->dtype));
    }
    return true;
}

bool np_custom_backward(neap_ctx *c, struct neap_node *n, neap_tensor **g, neap_tensor **dx, const bool *need)
{
    neap_values v = {.size = sizeof v, .in = g, .n_in = n->n_out};
    size_t bytes = sizeof(neap_tensor *) * (size_t)(n->n_slots + 1);
    np_custom_frame fr = {.node = n, .need = need, .cache = np_obj_new(c, bytes), .outer = c->custom};
    if (!fr.cache) return false;
    c->custom = &fr;
    int status = np_call_fn(c, n->backward, &v);
    c->custom = fr.outer;
    for (int i = 0; i < n->n_slots; i++) np_drop(fr.cache[i]);
    np_obj_free(c, fr.cache, bytes);
    bool ok = status == 0 && !np_pending(c);
    if (status && !np_pending(c))
        np_fail(c, NEAP_E_INTERNAL, "%s: backward failed without saying why", n->name);
    ok = ok && check_results(c, n, &v);
    for (int i = 0; i < v.n_out; i++) {
        if (ok && i < n->n_in) dx[i] = v.out[i];
        else np_drop(v.out[i]);
    }
    return ok;
}
