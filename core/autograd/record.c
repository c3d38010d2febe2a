/* record.c - turning an executed op into a node: edges and packed inputs before the kernel, identity and
 * packed results after it. An error in between leaves no trace: the half-built node is dropped by dispatch. */
#include "autograd/autograd.h"

static bool wanted(const np_save *s, const struct neap_node *n)
{
    if (!s->for_mask) return true;
    for (unsigned m = s->for_mask; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        if (i < n->n_in && n->next[i].node) return true;
    }
    return false;
}

/* What an in-place op overwrites is saved as a copy, which keeps the place of the original in the graph. */
static NP_APART bool pack_copy(np_frame *f, np_slot *slot)
{
    np_frame copy = {.c = f->c, .op = np_ops[NP_OPX_clone], .in = f->in, .n_in = 1};
    bool ok = np_dispatch(&copy) && np_slot_pack(f->c, slot, copy.out[0], NULL, 0);
    np_frame_drop(&copy);
    return ok;
}

bool np_pack_inputs(np_frame *f, const np_op *impl, struct neap_node *n)
{
    const bool inplace = f->op->tags & NP_INPLACE;
    for (ptrdiff_t k = 0; k < n->n_slots; k++) {
        const np_save *s = &impl->save[k];
        if (s->what != NP_SAVE_IN || s->index >= f->n_in || !wanted(s, n)) continue;
        const bool ok = inplace && s->index == 0 ? pack_copy(f, &n->slots[k])
                                                 : np_slot_pack(f->c, &n->slots[k], f->in[s->index], NULL, 0);
        if (!ok) return false;
    }
    return true;
}

bool np_pack_results(np_frame *f, const np_op *impl, struct neap_node *n)
{
    for (int k = 0; k < n->n_slots; k++) {
        const np_save *s = &impl->save[k];
        if (s->what == NP_SAVE_OUT && s->index < f->n_out && wanted(s, n) &&
            !np_slot_pack(f->c, &n->slots[k], f->out[s->index], n, s->index))
            return false;
    }
    return true;
}

bool np_renew_view(neap_ctx *c, neap_tensor *x)
{
    if (!(x->graph & NP_HAS_BASE) || !np_grad_on(c)) return true;
    neap_tensor *base = x->ag->base;
    if (!np_requires_grad(base) || base->ag->node == x->ag->base_node) return true;
    np_frame window = {.c = c, .op = np_ops[NP_OPX_as_strided], .in = &base, .n_in = 1};
    window.attr[0] = (np_attr){.v = x->shape, .n = x->ndim, .has = 1};
    window.attr[1] = (np_attr){.v = x->stride, .n = x->ndim, .has = 1};
    window.attr[2] = (np_attr){.i = x->offset, .has = 1};
    if (!np_dispatch(&window)) return false;
    neap_tensor *v = window.out[0];
    np_set_identity(x, v->ag->node, v->ag->out_nr);
    x->ag->base_node = base->ag->node;
    np_frame_drop(&window);
    return true;
}

/* x (a view of base) is written in place: w = the op on a clone of x; base's window := w; x = that window. */
bool np_write_through_view(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *x = f->in[0], *base = x->ag->base;
    if (x->ag->no_grad_view)
        return np_fail(
            c, NEAP_E_INPLACE,
            "a view taken under no_grad cannot be changed in place while gradients are recorded: the "
            "gradient would be lost; take the view outside of no_grad");
    if (np_requires_grad(base) && !base->ag->node)
        return np_fail(
            c, NEAP_E_LEAF_INPLACE,
            "a view of a leaf that requires grad cannot be changed in place while gradients are recorded; "
            "use neap.no_grad, or an out-of-place form");
    neap_tensor *in[NP_MAX_SAVE] = {x};
    np_frame copy = {.c = c, .op = np_ops[NP_OPX_clone], .in = in, .n_in = 1};
    if (!np_dispatch(&copy)) return false;
    neap_tensor *w = copy.out[0];
    np_frame g = *f;
    g.n_in = f->n_in < NP_MAX_SAVE ? f->n_in : NP_MAX_SAVE;
    for (int i = 0; i < g.n_in; i++) in[i] = f->in[i];
    in[0] = w;
    g.in = in;
    memset(g.out, 0, sizeof g.out);
    bool ok = np_dispatch(&g);
    np_frame_drop(&g);
    neap_tensor *args[2] = {base, w};
    np_frame put = {.c = c, .op = np_ops[NP_OPX_as_strided_scatter_], .in = args, .n_in = 2};
    put.attr[0] = (np_attr){.v = x->shape, .n = x->ndim, .has = 1};
    put.attr[1] = (np_attr){.v = x->stride, .n = x->ndim, .has = 1};
    put.attr[2] = (np_attr){.i = x->offset, .has = 1};
    ok = ok && np_dispatch(&put);
    np_frame_drop(&put);
    np_drop(w);
    if (!ok || !np_renew_view(c, x)) return false;
    f->out[0] = np_hold_ref(x);
    return true;
}
