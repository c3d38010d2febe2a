/* dispatch.c - the one way an op runs. Every call, also from a gradient formula, comes through here.
 *
 * Order: op modes -> autocast -> check and infer (an error here has no side effect) -> record the node and pack inputs ->
 * inner mode (may put a stored value in the kernel's place) -> allocate -> kernel -> pack results. Packing
 * after the kernel has filled its results is structure here, not discipline anywhere else. */
#include "autograd/watch.h"
#include "tensor/storage.h"

#define NP_MAX_IN_COPIES 8 /* tensor inputs of an in-place op, at most */

static const np_op *impl_of(const np_op *op) { return op->base ? op->base : op; }

/* ---- in-place calls */

static NP_APART bool check_inplace(np_frame *f, bool recording)
{
    neap_ctx *c = f->c;
    neap_tensor *x = f->in[0];
    char got[128], want[128];
    const np_out_meta *m = &f->meta[0];
    if (x->number) return np_fail(c, NEAP_E_ARG, "a number cannot be changed in place");
    if (np_overlaps_itself(x))
        return np_fail(
            c, NEAP_E_OVERLAP,
            "cannot write to %s: several of its elements share one memory place (an expanded tensor); "
            "write to x:clone()",
            np_tensor_text(got, sizeof got, x));
    bool same = m->ndim == x->ndim;
    for (int d = 0; same && d < x->ndim; d++) same = m->shape[d] == x->shape[d];
    if (!same)
        return np_fail(c, NEAP_E_SHAPE, "the result %s does not fit into %s in place",
                       np_shape_text(got, sizeof got, m->ndim, m->shape),
                       np_shape_text(want, sizeof want, x->ndim, x->shape));
    if (np_dtype_kind((neap_dtype)m->dtype) > np_dtype_kind((neap_dtype)x->dtype))
        return np_fail(c, NEAP_E_DTYPE,
                       "a %s result cannot be stored in a %s tensor in place; convert with :to first",
                       np_dtype_name((neap_dtype)m->dtype), np_dtype_name((neap_dtype)x->dtype));
    if (!np_grad_on(c) || !recording) return true;
    if (np_requires_grad(x) && !x->ag->node)
        return np_fail(
            c, NEAP_E_LEAF_INPLACE,
            "a leaf that requires grad cannot be changed in place while gradients are recorded; use the "
            "out-of-place form, or neap.no_grad");
    return true;
}

/* What an in-place op reads: operands that overlap the target other than element on element as copies. */
typedef struct np_operands {
    neap_tensor *in[NP_MAX_IN_COPIES], *copy[NP_MAX_IN_COPIES];
    neap_tensor *const *given;
    int n;
} np_operands;

static NP_APART bool separate(np_frame *f, np_operands *o)
{
    o->given = f->in;
    o->n = f->n_in < NP_MAX_IN_COPIES ? f->n_in : NP_MAX_IN_COPIES;
    memset(o->copy, 0, sizeof o->copy);
    for (int i = 0; i < o->n; i++) {
        bool same = false;
        neap_tensor *t = o->in[i] = f->in[i];
        if (i == 0 || !t || t->number || !np_may_overlap(f->in[0], t, &same)) continue;
        if (same && (impl_of(f->op)->tags & NP_POINTWISE)) continue;
        o->in[i] = o->copy[i] = np_contiguous_copy(f->c, t);
        if (!o->copy[i]) return false;
    }
    f->in = o->in;
    return true;
}

/* The write counts, also a failed one. */
static NP_APART void rejoin(np_frame *f, np_operands *o)
{
    f->in = o->given;
    for (int i = 0; i < o->n; i++) np_drop(o->copy[i]);
    if (f->out[0]) np_bump(f->in[0]);
}

/* ---- results */

/* A view remembers the tensor it is a view of, so that writing through it can never lose a gradient. */
static void remember_base(np_frame *f, neap_tensor *out)
{
    neap_tensor *x = f->in[0], *base = x->graph & NP_HAS_BASE ? x->ag->base : x;
    bool on = np_grad_on(f->c);
    bool inside = !on && f->c->pass; /* gradients on their way: nobody records into them */
    if (!np_is_float((neap_dtype)out->dtype) || (inside && !np_requires_grad(x) && !np_requires_grad(base)))
        return;
    np_ag(out)->base = np_hold_ref(base);
    out->graph |= NP_HAS_BASE;
    out->ag->base_node = base->ag ? base->ag->node : NULL;
    out->ag->no_grad_view = !on || (x->ag && x->ag->no_grad_view);
}

static NP_APART bool make_view(np_frame *f)
{
    const np_out_meta *m = &f->meta[0];
    f->out[0] = np_tensor_view(f->in[0], m->ndim, m->shape, m->stride, m->offset);
    if (f->out[0]) remember_base(f, f->out[0]);
    return f->out[0] != NULL;
}

/* Has the base got a new place in the graph since the view was taken? */
static bool is_stale(const neap_tensor *t)
{
    if (!(t->graph & NP_HAS_BASE)) return false;
    const neap_tensor *base = t->ag->base;
    return (base->ag ? base->ag->node : NULL) != t->ag->base_node;
}

static NP_INLINE bool allocate_one(neap_ctx *c, np_frame *f, int j)
{
    const np_out_meta *m = &f->meta[j];
    neap_tensor *t = np_tensor_small(c, f->dev, (neap_dtype)m->dtype, m->ndim, m->shape);
    f->out[j] = t ? t : np_tensor_new(c, f->dev, (neap_dtype)m->dtype, m->ndim, m->shape);
    return f->out[j] != NULL;
}

static NP_INLINE bool allocate(neap_ctx *c, np_frame *f, bool inplace)
{
    int j = 0;
    if (inplace) f->out[j++] = np_hold_ref(f->in[0]);
    else if (!allocate_one(c, f, j++)) return false; /* nearly always the only one */
    for (; j < f->n_out; j++)
        if (!allocate_one(c, f, j)) return false;
    return true;
}

/* A view is the only result of its op, and takes no kernel. */
static bool is_view(const np_frame *f) { return f->meta[0].view; }

/* Fused ops without a kernel on the device: their composition, below recording and inner modes. */
static NP_APART bool run_reference(np_frame *f, const np_op *impl)
{
    uint64_t grad = np_ambient_push(f->c, NP_AMB_GRAD, 0, NULL, "reference composition", NULL);
    uint64_t cast = grad ? np_ambient_push(f->c, NP_AMB_CAST, 0, NULL, "reference composition", NULL) : 0;
    bool ok = cast && impl->ref(f);
    np_ambient_pop(f->c, cast);
    np_ambient_pop(f->c, grad);
    return ok && !np_pending(f->c);
}

/* Values that a selective checkpoint did not keep have a shape but no bytes. */
static NP_APART bool check_not_dry(np_frame *f)
{
    for (int i = 0; i < f->n_in; i++)
        if (f->in[i] && np_is_dry(f->in[i])) return np_fail_dry(f->c);
    return true;
}

/* watched: somebody wants to know which kernels run, and how long (watch.h). */
static NP_INLINE bool compute(neap_ctx *c, np_frame *f, const np_op_facts *facts, np_kernel kernel,
                              bool inplace, bool watched)
{
    if (is_view(f)) return make_view(f);
    if (!kernel) return run_reference(f, facts->impl);
    if (c->n_dry && !check_not_dry(f)) return false;
    if (!allocate(c, f, inplace)) return false;
    facts->count->kernels++;
    if (!(watched ? np_watch_kernel(f, kernel) : kernel(f)))
        np_fail(c, NEAP_E_INTERNAL, "the kernel failed without saying why"); /* unless it said so */
    return !np_pending(c);
}

static NP_INLINE bool inner_or_compute(neap_ctx *c, np_frame *f, const np_ambient_entry *inner,
                                       const np_op_facts *facts, np_kernel kernel, bool inplace, bool watched)
{
    if (inner && inner->payload) {
        np_mode *m = inner->payload;
        return m->call(c, m->user, f, inner->id);
    }
    return compute(c, f, facts, kernel, inplace, watched);
}

bool np_compute_below(np_frame *f, uint64_t id)
{
    const np_ambient_entry *e = np_ambient_get(f->c, NP_AMB_TRACE);
    return inner_or_compute(f->c, f, np_ambient_below(f->c, NP_AMB_INNER, id), np_facts(f->c, f->op),
                            f->dev->kern[f->op->index], (f->op->tags & NP_INPLACE) != 0, e && e->value);
}

/* Counters of random ops. Streams only move forward: a call that fails later keeps its range. */
static NP_APART np_rng_range reserve(np_frame *f, const np_op_facts *facts)
{
    neap_generator *g =
        facts->gen_attr >= 0 && f->attr[facts->gen_attr].has ? f->attr[facts->gen_attr].gen : NULL;
    return np_generator_reserve(f->c, g ? g : f->dev->generator, f->rng_n);
}

/* Somebody asks for tensors that require grad and meet an op while recording is off. */
static NP_APART void tell_unrecorded(np_frame *f)
{
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor *t = f->in[i];
        if (t && (np_requires_grad(t) || is_stale(t))) f->c->on_unrecorded(f->c, t);
    }
}

/* The last argument that is a view whose base got a new place in the graph (was changed in place) after the view was
 * taken, or -1. */
static NP_APART int find_stale(const np_frame *f)
{
    int stale = -1;
    for (int i = 0; i < f->n_in; i++)
        if (f->in[i] && is_stale(f->in[i])) stale = i;
    return stale;
}

/* Is this call one to record? graph: of its operands, taken together. */
static NP_INLINE bool records(np_frame *f, const np_op *impl, unsigned graph, int *stale)
{
    if (impl->tags & NP_NODIFF) return false;
    if (graph & NP_HAS_BASE) *stale = find_stale(f);
    const bool any = graph & NP_REQUIRES_GRAD || *stale >= 0;
    if (!any || np_grad_on(f->c)) return any;
    if (f->c->on_unrecorded) tell_unrecorded(f);
    return false;
}

static NP_APART bool fail_stale(np_frame *f, int i)
{
    return np_fail(f->c, NEAP_E_INPLACE,
                   "argument %d is a view taken before its base was changed in place; take the view again",
                   i + f->c->base);
}

/* Whoever follows the sequence of ops (determinism checks, debug, profile) sees each one here, checked but not yet
 * run. Does somebody want to be told of kernels, too? */
static inline bool trace(np_frame *f)
{
    const np_ambient_entry *e = np_ambient_get(f->c, NP_AMB_TRACE);
    return e && np_watch_tell(f->c, e, f);
}

/* A call that infer has described, from here on. */
static NP_INLINE bool perform(neap_ctx *c, np_frame *f, const np_op *op, const np_op_facts *facts,
                              bool recording, int stale, bool inplace, bool loud, bool watched)
{
    if (inplace && !check_inplace(f, recording)) return false;
    np_kernel kernel = f->dev->kern[op->index];
    if (!kernel && !facts->impl->ref && !is_view(f))
        return np_fail(c, NEAP_E_NOKERNEL, "no kernel on %s; move the operands with :to(\"cpu\")",
                       f->dev->name);
    if (recording && stale >= 0) return fail_stale(f, stale);
    if (recording && inplace && f->in[0]->graph & NP_HAS_BASE) return np_write_through_view(f);
    if (f->rng_n) f->rng = reserve(f, facts);

    struct neap_node *node = NULL;
    if (recording && !(node = np_record_begin(f, facts))) return false;

    np_operands operands;
    bool ok = (!inplace || separate(f, &operands)) &&
              inner_or_compute(c, f, loud ? np_ambient_get(c, NP_AMB_INNER) : NULL, facts, kernel, inplace,
                               watched);
    if (inplace) rejoin(f, &operands);
    const np_ambient_entry *origins = loud ? np_ambient_get(c, NP_AMB_ORIGIN) : NULL;
    if (ok && origins) np_origin_note(f, facts, origins);
    if (ok && recording) ok = np_record_end(f, facts, node);
    if (recording) np_node_drop(node);
    return ok;
}

static NP_APART bool perform_inplace(np_frame *f, const np_op_facts *facts, bool recording, int stale,
                                     bool watched)
{
    return perform(f->c, f, f->op, facts, recording, stale, true, true, watched);
}

static NP_INLINE bool run(neap_ctx *c, np_frame *f, const np_op *op, const np_op_facts *facts, unsigned graph,
                          bool loud)
{
    f->n_out = facts->n_out;
    if (!facts->impl->infer(f))
        return np_fail(c, NEAP_E_INTERNAL, "infer failed without saying why"); /* unless it said so */
    const bool watched = loud && trace(f);
    int stale = -1;
    const bool recording = graph && records(f, facts->impl, graph, &stale);
    if (op->tags & NP_INPLACE) return perform_inplace(f, facts, recording, stale, watched);
    if (recording) return perform(c, f, op, facts, true, stale, false, loud, watched);
    return perform(c, f, op, facts, false, -1, false, loud, watched);
}

/* Names the argument that is not there. */
static NP_APART bool fail_missing(np_frame *f, const np_op_facts *facts)
{
    const np_schema *s = &facts->schema;
    for (int k = 0; k < s->n_args; k++) {
        const np_arg *a = &s->arg[k];
        if (a->type <= NP_ARG_NUMBER && (facts->required >> a->slot & 1) &&
            (a->slot >= f->n_in || !f->in[a->slot]))
            return np_fail(f->c, NEAP_E_ARG, "argument '%s' is missing", a->name);
    }
    return np_fail(f->c, NEAP_E_INTERNAL, "a required argument is missing");
}

/* Is every tensor there that the op needs? Called when one is NULL, or when there are few. */
static NP_APART bool required_present(np_frame *f, const np_op_facts *facts)
{
    if (facts->schema.list) {
        if (f->n_in == 0) return np_fail(f->c, NEAP_E_ARG, "the list of tensors is empty");
        for (int i = 0; i < f->n_in; i++)
            if (!f->in[i])
                return np_fail(f->c, NEAP_E_ARG, "tensor %d of the list is missing", i + f->c->base);
        return true;
    }
    if (f->n_in < facts->n_needed) return fail_missing(f, facts);
    for (int i = 0; i < f->n_in; i++)
        if (!f->in[i] && (facts->required >> i & 1)) return fail_missing(f, facts);
    return true;
}

/* The entry that counts: one without a payload says "none", or "those below `value`". */
static const np_ambient_entry *resolve(neap_ctx *c, const np_ambient_entry *e)
{
    while (e && !e->payload) e = e->value ? np_ambient_below(c, NP_AMB_MODE, (uint64_t)e->value) : NULL;
    return e;
}

const np_ambient_entry *np_mode_below(neap_ctx *c, uint64_t below)
{
    return resolve(c, np_ambient_below(c, NP_AMB_MODE, below));
}

/* A call from outside, or from above `mode` (not fresh). Not loud: surely no mode, cast or tracer is in force. */
static NP_INLINE bool enter(np_frame *f, const np_ambient_entry *mode, bool fresh, bool loud)
{
    neap_ctx *c = f->c;
    const np_op *op = f->op;
    const np_op_facts *facts = np_facts(c, op);
    if (np_pending(c) || !facts) return false;
    const char *outer = c->op_name;
    c->op_name = op->name;
    facts->count->calls += fresh;
    const int n_in = f->n_in;
    bool gaps = n_in < facts->n_needed;
    unsigned graph = 0;
    for (int i = 0; i < n_in; i++) {
        const neap_tensor *t = f->in[i];
        if (t) graph |= t->graph;
        else gaps = true;
    }
    bool ok = !gaps || required_present(f, facts);
    const np_ambient_entry *cast =
        loud && op->tags & (NP_CAST_LOW | NP_CAST_FLOAT32) ? np_ambient_get(c, NP_AMB_CAST) : NULL;
    if (op->tags & NP_COMPOSITE) {
        f->n_out = facts->n_results;
        ok = ok && np_run_parts(f);
    } else if (ok && mode) {
        np_mode *m = mode->payload;
        ok = m->call(c, m->user, f, mode->id) && !np_pending(c);
    } else if (ok && cast && cast->value && np_cast_wanted(f, cast->value)) {
        ok = np_cast_call(f, cast->value); /* comes back here, with nothing left to cast */
    } else if (ok) {
        ok = run(c, f, op, facts, graph, loud);
    }
    if (!ok) np_frame_drop(f);
    c->op_name = outer;
    return ok;
}

/* A call that modes, casts or tracers may see: from outside (fresh), or from above mode `id`. */
static NP_APART bool enter_loud(np_frame *f, uint64_t id, bool fresh)
{
    neap_ctx *c = f->c;
    return enter(f, fresh ? resolve(c, np_ambient_get(c, NP_AMB_MODE)) : np_mode_below(c, id), fresh, true);
}

bool np_dispatch_below(np_frame *f, uint64_t id) { return enter_loud(f, id, false); }

bool np_dispatch(np_frame *f)
{
    if (f->c->ambient.loud) return enter_loud(f, 0, true);
    return enter(f, NULL, true, false);
}
