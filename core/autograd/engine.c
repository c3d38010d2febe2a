/* engine.c - one run of backward: a pass.
 *
 * A pass walks the graph twice, both times with loops. First it finds the reachable nodes, counts how many
 * gradients each will be given and marks those on the way to a target. Then it runs ready nodes in descending
 * order of seq, leaves as soon as they are complete. So every gradient buffer adds its contributions in
 * descending node order, with one add kernel: the same bits for any thread count and checkpoint policy.
 * A node's scratch (np_record) belongs to the pass; nested passes stack their records on the node.
 * What the engine does not know: any single op, and how slots keep their values. */
#include "autograd/custom.h"
#include "autograd/watch.h"

typedef struct np_record {
    struct neap_node *node;
    struct np_pass *pass;
    struct np_record *outer; /* the record of an enclosing pass on the same node */
    struct np_record *all;   /* list of the pass */
    int64_t deps;            /* gradients still to come */
    bool visited;
    const np_edge
        *sink;          /* a reentrant pass's own leaf: contributions go on to this place of the outer pass */
    bool target;        /* capture here */
    bool exec;          /* something below is wanted: run the node */
    neap_tensor *buf[]; /* n_out gradient buffers */
} np_record;

typedef struct np_pass {
    np_pass_facts facts;
    neap_ctx *c;
    struct np_pass *outer;
    const struct neap_node *running; /* its backward runs */
    np_record *all;
    np_record *ready; /* the only node that is ready; when there are more, NULL, and all are in the heap */
    np_record **heap;
    size_t n_heap, cap_heap;
    const np_edge *targets; /* NULL: every leaf */
    int n_targets;
    neap_tensor **captured;            /* per target, for grad(); NULL: leaves accumulate */
    neap_tensor *const *inputs;        /* of the targets */
    const struct neap_node *sink_node; /* of a reentrant pass: the outer node, and the leaves of its inputs */
    neap_tensor *const *leaves;
    int n_leaves;
} np_pass;

const np_pass_facts *np_current_pass(neap_ctx *c) { return c->pass ? &c->pass->facts : NULL; }
const struct neap_node *np_running_node(const neap_ctx *c) { return c->pass ? c->pass->running : NULL; }

static size_t record_size(const struct neap_node *n)
{
    return sizeof(np_record) + sizeof(neap_tensor *) * (size_t)n->n_out;
}

/* The pass's record of a node; made at the first visit. */
static np_record *record_of(np_pass *p, struct neap_node *n, bool *fresh)
{
    *fresh = false;
    if (n->record && n->record->pass == p) return n->record;
    np_record *r = np_obj_raw(p->c, record_size(n));
    if (!r) return NULL;
    n->refs++;
    *r = (np_record){.node = n, .pass = p, .outer = n->record, .all = p->all};
    for (int j = 0; j < n->n_out; j++) r->buf[j] = NULL;
    n->record = p->all = r;
    *fresh = true;
    return r;
}

static void drop_records(np_pass *p)
{
    while (p->all) {
        np_record *r = p->all;
        struct neap_node *n = r->node;
        p->all = r->all;
        for (int j = 0; j < n->n_out; j++) np_drop(r->buf[j]);
        n->record = r->outer;
        np_obj_free(p->c, r, record_size(n));
        np_node_drop(n);
    }
}

/* ---- the first walk: dependencies, and which nodes lead to a target */

typedef struct visit {
    np_record *r;
    int next;
} visit;

static bool is_leaf_node(const struct neap_node *n) { return n->leaf != NULL; }

static bool discover(np_pass *p, struct neap_node *root)
{
    size_t cap = 0, n = 0;
    visit *stack = NULL;
    bool fresh;
    np_record *r = record_of(p, root, &fresh);
    if (!r) return false;
    if (r->visited) return true;
    r->visited = true;
    stack = np_array_grow(p->c, stack, &cap, 1, sizeof *stack);
    if (!stack) return false;
    stack[n++] = (visit){r, 0};
    while (n > 0) {
        visit *v = &stack[n - 1];
        struct neap_node *node = v->r->node;
        if (v->next == 0 && !p->targets) v->r->exec = true;
        if (v->next == node->n_in) {
            if (n > 1 && (v->r->target || v->r->exec)) stack[n - 2].r->exec = true;
            n--;
            continue;
        }
        struct neap_node *child = node->next[v->next++].node;
        if (!child) continue;
        np_record *cr = record_of(p, child, &fresh);
        if (!cr) goto fail;
        cr->deps++;
        if (cr->visited) {
            if (cr->target || cr->exec) v->r->exec = true;
            continue;
        }
        cr->visited = true;
        visit *grown = np_array_grow(p->c, stack, &cap, n + 1, sizeof *stack);
        if (!grown) goto fail;
        stack = grown;
        stack[n++] = (visit){cr, 0};
    }
    np_array_free(p->c, stack);
    return true;
fail:
    np_array_free(p->c, stack);
    return false;
}

/* ---- ready nodes: a max-heap, leaves first */

static uint64_t priority(const np_record *r) { return is_leaf_node(r->node) ? UINT64_MAX : r->node->seq; }

static bool heap_push(np_pass *p, np_record *r)
{
    np_record **heap = np_array_grow(p->c, p->heap, &p->cap_heap, p->n_heap + 1, sizeof *heap);
    if (!heap) return false;
    p->heap = heap;
    size_t i = p->n_heap++;
    while (i > 0 && priority(heap[(i - 1) / 2]) < priority(r)) heap[i] = heap[(i - 1) / 2], i = (i - 1) / 2;
    heap[i] = r;
    return true;
}

static bool make_ready(np_pass *p, np_record *r)
{
    if (!p->ready && !p->n_heap) {
        p->ready = r;
        return true;
    }
    if (p->ready && !heap_push(p, p->ready)) return false;
    p->ready = NULL;
    return heap_push(p, r);
}

static np_record *heap_pop(np_pass *p)
{
    np_record *top = p->heap[0], *last = p->heap[--p->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= p->n_heap) break;
        if (k + 1 < p->n_heap && priority(p->heap[k + 1]) > priority(p->heap[k])) k++;
        if (priority(p->heap[k]) <= priority(last)) break;
        p->heap[i] = p->heap[k];
        i = k;
    }
    if (p->n_heap) p->heap[i] = last;
    return top;
}

static inline np_record *take_ready(np_pass *p)
{
    np_record *r = p->ready;
    p->ready = NULL;
    return r || !p->n_heap ? r : heap_pop(p);
}

/* ---- gradient buffers */

static bool exclusive(const neap_tensor *t)
{
    return t->refs == 1 && t->st->refs == 1 && t->contiguous && t->st->kind != NP_BYTES_FOREIGN && !t->ag;
}

static neap_tensor *call2(neap_ctx *c, int opx, neap_tensor *a, neap_tensor *b)
{
    neap_tensor *in[2] = {a, b};
    np_frame f;
    np_frame_begin(&f, c, np_ops[opx], in, b ? 2 : 1);
    memset(f.attr, 0, sizeof f.attr);
    return np_dispatch(&f) ? f.out[0] : NULL;
}

/* buf += g, taking g over. In place only when nobody else can see the buffer. */
static bool accumulate(np_pass *p, neap_tensor **buf, neap_tensor *g)
{
    if (!*buf) {
        *buf = g;
        return true;
    }
    bool inplace = !p->facts.create_graph && exclusive(*buf) && (*buf)->dtype == g->dtype;
    neap_tensor *sum = call2(p->c, inplace ? NP_OPX_add_ : NP_OPX_add, *buf, g);
    np_drop(g);
    if (!sum) return false;
    np_drop(*buf);
    *buf = sum;
    return true;
}

/* x.grad takes the pass's total: over if nobody else holds it, else as a copy. */
static bool add_to_grad(np_pass *p, neap_tensor *x, neap_tensor **total)
{
    neap_ctx *c = p->c;
    neap_tensor *g = *total, *next;
    np_autograd *ag = x->ag;
    *total = NULL;
    if (ag->grad && !p->facts.create_graph) {
        next = call2(c, NP_OPX_add_, ag->grad, g);
    } else if (ag->grad) {
        next = call2(c, NP_OPX_add, ag->grad, g);
    } else if (p->facts.create_graph) {
        next = np_hold_ref(g);
    } else {
        next = exclusive(g) ? np_hold_ref(g) : np_contiguous_copy(c, g);
    }
    np_drop(g);
    if (!next) return false;
    if (next->st->category != NEAP_GRAD && next->st->category != NEAP_USER)
        np_storage_set_category(next->st, NEAP_GRAD);
    return np_put_grad(c, x, next);
}

/* ---- hooks */

static bool same_shape(const neap_tensor *t, const np_node_meta *m)
{
    if (t->ndim != m->ndim) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] != m->shape[d]) return false;
    return true;
}

static bool run_tensor_hook(np_pass *p, const np_hook *h, neap_tensor **g, const np_node_meta *m)
{
    neap_ctx *c = p->c;
    char got[128];
    if (!p->facts.create_graph &&
        !exclusive(*g)) { /* what a hook does to it in place is seen by nobody else */
        neap_tensor *own = np_contiguous_copy(c, *g);
        if (!own) return false;
        np_drop(*g);
        *g = own;
    }
    neap_values v = {.size = sizeof v, .in = g, .n_in = 1};
    neap_fn fn = h->fn;
    if (fn.retain) fn.retain(fn.user); /* the hook may remove itself */
    int status = np_call_fn(c, fn, &v);
    if (fn.release) fn.release(fn.user);
    neap_tensor *other = v.n_out > 0 ? v.out[0] : NULL;
    for (int i = 1; i < v.n_out; i++) np_drop(v.out[i]);
    if (status || np_pending(c)) {
        np_drop(other);
        return false;
    }
    if (!other) return true;
    if (!same_shape(other, m) || other->dtype != m->dtype) {
        np_fail(c, NEAP_E_GRADIENT,
                "a tensor hook returned %s, which has not the shape and dtype of its tensor",
                np_tensor_text(got, sizeof got, other));
        np_drop(other);
        return false;
    }
    np_drop(*g);
    *g = other;
    return true;
}

/* The next hook of a list in order of registration. Looked up anew each time: a hook may remove any of them. */
static np_hook *next_hook(np_hook *const *head, uint64_t after, uint64_t last)
{
    np_hook *h = *head;
    while (h && (h->id <= after || h->id > last)) h = h->next;
    return h;
}

static bool run_hooks_on(np_pass *p, np_hook *const *head, np_record *r)
{
    struct neap_node *n = r->node;
    uint64_t last = p->c->next_hook;
    for (np_hook *h = next_hook(head, 0, last); h;) {
        uint64_t id = h->id;
        if (h->out_nr >= 0 && h->fn.call && r->buf[h->out_nr] &&
            !run_tensor_hook(p, h, &r->buf[h->out_nr], &n->meta[h->out_nr]))
            return false;
        h = next_hook(head, id, last);
    }
    for (np_hook *h = *head; h; h = h->next) {
        neap_tensor *total = h->retain ? np_hold_ref(r->buf[h->out_nr]) : NULL;
        if (total && !add_to_grad(p, h->retain, &total)) return false;
    }
    return true;
}

/* Node hooks see the input gradients, then the output gradients, and may replace the former. */
static bool run_node_hooks(np_pass *p, struct neap_node *n, neap_tensor **dx, neap_tensor **g)
{
    neap_ctx *c = p->c;
    uint64_t last = c->next_hook, id;
    for (np_hook *h = next_hook(&n->hooks, 0, last); h; h = next_hook(&n->hooks, id, last)) {
        id = h->id;
        if (h->out_nr >= 0 || !h->fn.call) continue;
        neap_tensor *in[NEAP_MAX_RESULTS + NP_MAX_OUT];
        int n_in = n->n_in < NEAP_MAX_RESULTS ? n->n_in : NEAP_MAX_RESULTS, total = n_in;
        for (int i = 0; i < n_in; i++) in[i] = dx[i];
        for (int j = 0; j < n->n_out && j < NP_MAX_OUT; j++) in[total++] = g[j];
        neap_values v = {.size = sizeof v, .in = in, .n_in = total};
        neap_fn fn = h->fn;
        if (fn.retain) fn.retain(fn.user);
        int status = np_call_fn(c, fn, &v);
        if (fn.release) fn.release(fn.user);
        bool ok = !status && !np_pending(c);
        for (int i = 0; i < v.n_out; i++) {
            if (!v.out[i]) continue;
            if (!ok || i >= n_in) {
                np_drop(v.out[i]);
            } else {
                np_drop(dx[i]);
                dx[i] = v.out[i];
            }
        }
        if (!ok) return false;
    }
    return true;
}

/* ---- gradient formulas and their frames */

typedef struct temp {
    neap_tensor *t;
    int holds; /* uses besides the one that consumes it */
} temp;

#define FEW_TEMPS 12
typedef struct np_temp { /* the temporaries of one formula */
    temp *v;             /* few, or a grown array */
    size_t n, cap;
    temp few[FEW_TEMPS];
} np_temp;

static bool room_for_temp(np_back *b)
{
    np_temp *f = b->temps;
    if (f->n < f->cap) return true;
    size_t cap = f->v == f->few ? 0 : f->cap;
    temp *v = np_array_grow(b->c, cap ? f->v : NULL, &cap, f->n + 1, sizeof *v);
    if (!v) return false;
    if (f->v == f->few) memcpy(v, f->few, sizeof f->few);
    f->v = v;
    f->cap = cap;
    return true;
}

static bool own_temp(np_back *b, neap_tensor *t)
{
    np_temp *f = b->temps;
    if (!room_for_temp(b)) {
        np_drop(t);
        return false;
    }
    f->v[f->n++] = (temp){t, 0};
    t->temp = true;
    return true;
}

static void forget_temp(np_temp *f, size_t i)
{
    f->v[i].t->temp = false;
    f->v[i] = f->v[--f->n];
}

static void consume(np_back *b, neap_tensor *t)
{
    np_temp *f = b->temps;
    for (size_t i = f->n; i-- > 0;) {
        if (f->v[i].t != t) continue;
        if (f->v[i].holds-- > 0) return;
        forget_temp(f, i);
        np_drop(t);
        return;
    }
}

static void own_results(np_back *b, np_frame *f)
{
    for (int j = 0; j < f->n_out; j++) {
        neap_tensor *t = f->out[j];
        if (!t) continue;
        if (t->temp) { /* an op that hands back its operand */
            np_drop(t);
            np_hold(b, t);
        } else if (!own_temp(b, t)) {
            f->out[j] = NULL;
        }
    }
}

static NP_APART void consume_operands(np_back *b, np_frame *f)
{
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor *t = f->in[i];
        if (!t || !t->temp) continue;
        bool again = false;
        for (int k = 0; k < i; k++) again = again || f->in[k] == t;
        if (!again) consume(b, t);
    }
}

static NP_APART bool numbers_only(const np_frame *f)
{
    bool all = f->n_in > 0 && (f->op->tags & NP_POINTWISE);
    for (int i = 0; i < f->n_in; i++) all = all && f->in[i] && f->in[i]->number;
    return all;
}

/* What is computed from numbers alone is a number, too, which goes with tensors of every device. On the way they are values of
 * their own dtype, float64 or int64, so that nothing is rounded to the default one. */
static NP_APART bool dispatch_numbers(np_frame *f)
{
    for (int i = 0; i < f->n_in; i++) f->in[i]->number = false;
    bool ok = np_dispatch(f);
    for (int i = 0; i < f->n_in; i++) f->in[i]->number = true;
    for (int j = 0; ok && j < f->n_out; j++)
        if (f->out[j]) f->out[j]->number = true;
    return ok;
}

neap_tensor *np_back_call(np_back *b, np_frame *f)
{
    bool numbers = f->n_in > 0 && f->in[0] && f->in[0]->number && numbers_only(f), temps = false;
    if (b->g[0] && !numbers) f->dev = b->g[0]->st->dev; /* of other things made from numbers alone */
    bool ok = numbers ? dispatch_numbers(f) : np_dispatch(f);
    if (ok) own_results(b, f);
    for (ptrdiff_t i = 0; i < f->n_in; i++) temps |= f->in[i] && f->in[i]->temp;
    if (temps) consume_operands(b, f);
    return ok ? f->out[0] : NULL;
}

neap_tensor *np_hold(np_back *b, neap_tensor *t)
{
    np_temp *f = b->temps;
    for (size_t i = f->n; t && t->temp && i-- > 0;) {
        if (f->v[i].t == t) {
            f->v[i].holds++;
            break;
        }
    }
    return t;
}

neap_tensor *np_num(np_back *b, double v)
{
    if (np_pending(b->c)) return NULL;
    neap_tensor *t = np_number_new(b->c, v);
    return t && own_temp(b, t) ? t : NULL;
}

static const np_node_meta *input_meta(const np_back *b, int input)
{
    const np_edge *e = &b->node->next[input];
    if (e->node) return &e->node->meta[e->out_nr];
    return b->node->in_meta ? &b->node->in_meta[input] : NULL;
}

bool np_input_shape(np_back *b, int input, int *ndim, int64_t *shape, neap_dtype *dtype)
{
    const np_node_meta *m = input_meta(b, input);
    if (!m) return false;
    *ndim = m->ndim;
    *dtype = (neap_dtype)m->dtype;
    for (int d = 0; d < m->ndim; d++) shape[d] = m->shape[d];
    return true;
}

neap_tensor *np_unbroadcast(np_back *b, neap_tensor *g, int input)
{
    int n = 0;
    int64_t dims[NEAP_MAX_DIMS];
    const np_node_meta *m = input_meta(b, input);
    if (!g || !m) return NULL;
    if (!same_shape(g, m)) {
        int extra = g->ndim - m->ndim;
        for (int d = 0; d < g->ndim; d++)
            if (d < extra || (m->shape[d - extra] == 1 && g->shape[d] != 1)) dims[n++] = d;
        if (n) g = np_sum(b, g, dims, n, true);
        if (g && n && extra > 0) g = np_reshape(b, g, m->shape, m->ndim);
    }
    if (g && g->dtype != m->dtype) g = np_to(b, g, m->dtype, -1);
    return g;
}

static void free_frame(np_back *b)
{
    np_temp *f = b->temps;
    for (size_t i = 0; i < f->n; i++) {
        f->v[i].t->temp = false;
        np_drop(f->v[i].t);
    }
    if (f->v != f->few) np_array_free(b->c, f->v);
}

/* What the formula wrote: frame temporaries change hands, borrowed tensors get a reference. */
static void take_results(np_back *b)
{
    np_temp *f = b->temps;
    for (int i = 0; i < b->n_in; i++) {
        neap_tensor *t = b->dx[i];
        if (!t) continue;
        bool moved = false;
        for (size_t k = 0; t->temp && k < f->n && !moved; k++) {
            if (f->v[k].t != t) continue;
            forget_temp(f, k);
            moved = true;
        }
        if (!moved) t->refs++;
    }
}

static bool run_formula(np_pass *p, struct neap_node *n, neap_tensor **g, neap_tensor **dx, const bool *need)
{
    neap_ctx *c = p->c;
    const np_op *impl = n->op->base ? n->op->base : n->op;
    np_temp temps;
    temps.v = temps.few, temps.n = 0, temps.cap = FEW_TEMPS;
    np_back b; /* saved: its first n_slots entries, no others */
    b.c = c, b.node = n, b.dx = dx, b.need = need, b.n_in = n->n_in, b.attr = n->attr, b.rng = n->rng;
    b.create_graph = p->facts.create_graph, b.temps = &temps;
    const char *outer = c->op_name;
    c->op_name = n->op->name;
    b.g[0] = g[0];
    for (int j = 1; j < NP_MAX_OUT; j++) b.g[j] = NULL;
    for (int j = 1; j < n->n_out; j++) b.g[j] = g[j];
    for (int k = 0; k < n->n_slots; k++)
        b.saved[k] = np_slot_value(c, &n->slots[k], n); /* NULL after an error */
    bool ok = !np_pending(c);
    if (ok && !b.g[0]) { /* only a later result got a gradient */
        const np_node_meta *m = &n->meta[0];
        b.g[0] = np_tensor_new(c, c->devices[m->device], (neap_dtype)m->dtype, m->ndim, m->shape);
        ok = b.g[0] && np_fill_zero(c, b.g[0]);
    }
    if (ok) {
        if (impl->grad) impl->grad(&b);
        else np_fail(c, NEAP_E_NOGRAD, "the op has no gradient");
        ok = !np_pending(c);
    }
    if (ok) take_results(&b);
    else memset(dx, 0, sizeof *dx * (size_t)n->n_in);
    free_frame(&b);
    for (int k = 0; k < n->n_slots; k++) np_drop(b.saved[k]);
    if (b.g[0] != g[0]) np_drop(b.g[0]);
    c->op_name = outer;
    return ok;
}

/* A composite is a formula, too: its results take the place of gradients. */
bool np_run_parts(np_frame *f)
{
    np_temp temps;
    temps.v = temps.few, temps.n = 0, temps.cap = FEW_TEMPS;
    np_back b = {.c = f->c, .attr = f->attr, .dx = f->out, .n_in = f->n_out, .temps = &temps};
    f->op->parts(&b, f);
    bool ok = !np_pending(f->c);
    for (int j = 0; ok && j < f->n_out; j++)
        if (!f->out[j]) ok = np_fail(f->c, NEAP_E_INTERNAL, "a part failed without saying why");
    if (ok) take_results(&b);
    else memset(f->out, 0, sizeof f->out);
    free_frame(&b);
    return ok;
}

/* ---- running one node */

/* Has target i got its gradient from elsewhere: as a leaf, by retain_grad, or for being named before? */
static bool has_its_grad(const np_pass *p, int i)
{
    bool done = is_leaf_node(p->targets[i].node) || p->inputs[i]->ag->retains_grad;
    for (int k = 0; k < i; k++) done = done || p->inputs[k] == p->inputs[i];
    return done;
}

static bool capture(np_pass *p, np_record *r)
{
    for (int i = 0; !p->captured && i < p->n_targets;
         i++) { /* backward with inputs: results get a .grad, too */
        neap_tensor *g = p->targets[i].node == r->node ? r->buf[p->targets[i].out_nr] : NULL;
        if (!g || has_its_grad(p, i)) continue;
        neap_tensor *total = np_hold_ref(g);
        if (!add_to_grad(p, p->inputs[i], &total)) return false;
    }
    for (int i = 0; i < p->n_targets; i++)
        if (p->captured && p->targets[i].node == r->node && r->buf[p->targets[i].out_nr])
            p->captured[i] = np_hold_ref(r->buf[p->targets[i].out_nr]);
    return true;
}

/* The buffer that contributions along an edge are added to: this pass's, or through sinks that of a pass further out. */
static neap_tensor **buffer_of(np_pass *p, const np_edge *e)
{
    np_record *r = e->node->record;
    while (r && r->sink) {
        e = r->sink;
        p = p->outer;
        for (r = e->node->record; r && r->pass != p;) r = r->outer;
    }
    return r ? &r->buf[e->out_nr] : NULL;
}

static bool contribute(np_pass *p, const np_edge *e, neap_tensor *g_take)
{
    neap_tensor **buf = buffer_of(p, e);
    if (buf) return accumulate(p, buf, g_take);
    np_drop(g_take); /* the outer pass does not want it */
    return true;
}

static bool hand_out(np_pass *p, struct neap_node *n, neap_tensor **dx)
{
    bool ok = true;
    for (int i = 0; i < n->n_in; i++) {
        const np_edge *e = &n->next[i];
        neap_tensor *t = dx[i];
        dx[i] = NULL;
        if (!t) continue;
        if (ok && e->node) ok = contribute(p, e, t);
        else np_drop(t);
    }
    return ok;
}

#define FEW_INPUTS 8

static bool fail_anomaly(neap_ctx *c, const struct neap_node *n, int i)
{
    char about[300];
    np_watch_about(c, n, about, sizeof about);
    return np_fail(c, NEAP_E_ANOMALY, "the backward of %s gives NaN as the gradient of its argument %d%s",
                   neap_node_name(n), i + c->base, about);
}

/* detect_anomaly: the op whose formula first gives a NaN is named. */
static bool check_anomaly(np_pass *p, const struct neap_node *n, neap_tensor *const *dx)
{
    neap_ctx *c = p->c;
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_ANOMALY);
    for (int i = 0; e && e->value && i < n->n_in; i++) {
        double found = 0;
        if (!dx[i] || !np_is_float((neap_dtype)dx[i]->dtype)) continue;
        neap_tensor *nan = call2(c, NP_OPX_isnan, dx[i], NULL),
                    *any = nan ? call2(c, NP_OPX_any, nan, NULL) : NULL;
        bool ok = any && neap_item(c, any, &found) == 0;
        np_drop(nan), np_drop(any);
        if (!ok) return false;
        if (found) return fail_anomaly(c, n, i);
    }
    return true;
}

static bool run_backward(np_pass *p, np_record *r)
{
    neap_ctx *c = p->c;
    struct neap_node *n = r->node;
    neap_tensor *few[FEW_INPUTS], **dx = few;
    bool few_need[FEW_INPUTS], *need = few_need;
    size_t bytes = (sizeof *dx + sizeof *need) * (size_t)n->n_in;
    if (n->n_in > FEW_INPUTS) {
        dx = np_obj_raw(c, bytes);
        if (!dx) return false;
        need = (bool *)(dx + n->n_in);
    }
    for (int i = 0; i < n->n_in; i++) {
        np_record *cr = n->next[i].node ? n->next[i].node->record : NULL;
        need[i] = cr && (cr->exec || cr->target);
        dx[i] = NULL;
    }
    p->running = n;
    bool ok =
        np_is_custom(n) ? np_custom_backward(c, n, r->buf, dx, need) : run_formula(p, n, r->buf, dx, need);
    if (ok && !p->facts.keep_graph) {
        for (int k = 0; k < n->n_slots; k++) np_slot_release(c, &n->slots[k]);
    }
    if (ok && c->ambient.n > 1) ok = check_anomaly(p, n, dx); /* the pass itself is one entry */
    if (ok && n->hooks) ok = run_node_hooks(p, n, dx, r->buf);
    p->running = NULL;
    for (int j = 0; j < n->n_out; j++) np_drop(r->buf[j]), r->buf[j] = NULL;
    if (ok) {
        ok = hand_out(p, n, dx);
    } else {
        for (int i = 0; i < n->n_in; i++) np_drop(dx[i]);
    }
    if (dx != few) np_obj_free(c, dx, bytes);
    return ok;
}

static bool run_leaf(np_pass *p, np_record *r)
{
    if (p->captured || (p->targets && !r->target)) return true;
    if (!np_requires_grad(r->node->leaf)) return true; /* not any more, since the op was recorded */
    /* A backward inside a checkpointed function is an effect: its recompute does not repeat it on outer leaves. */
    np_ambient_entry *again = np_ambient_get(p->c, NP_AMB_RECOMPUTE);
    if (again && again->value && r->node->leaf->st->id < (uint64_t)again->value) return true;
    return add_to_grad(p, r->node->leaf, &r->buf[0]);
}

static bool run_record(np_pass *p, np_record *r)
{
    struct neap_node *n = r->node;
    bool any = false;
    if (np_cancelled(p->c)) {
        np_fail(p->c, NEAP_E_CANCELLED, "backward was interrupted");
        return false;
    }
    for (int j = 0; j < n->n_out; j++) any = any || r->buf[j];
    if (any && (r->exec || r->target)) {
        if (n->hooks && !run_hooks_on(p, &n->hooks, r)) return false;
        if (is_leaf_node(n) && n->leaf->ag->hooks && !run_hooks_on(p, &n->leaf->ag->hooks, r)) return false;
        if (r->target && !capture(p, r)) return false;
        if (is_leaf_node(n)) {
            if (!run_leaf(p, r)) return false;
        } else if (r->exec && !run_backward(p, r)) {
            return false;
        }
    }
    for (int j = 0; j < n->n_out; j++) np_drop(r->buf[j]), r->buf[j] = NULL;
    for (int i = 0; i < n->n_in; i++) {
        np_record *cr = n->next[i].node ? n->next[i].node->record : NULL;
        if (cr && --cr->deps == 0 && !make_ready(p, cr)) return false;
    }
    return true;
}

/* ---- a whole pass */

static bool prepare(np_pass *p, const np_edge *roots, neap_tensor *const *grads, int n_roots)
{
    bool fresh;
    for (int i = 0; p->targets && i < p->n_targets; i++) {
        np_record *r = record_of(p, p->targets[i].node, &fresh);
        if (!r) return false;
        r->target = true;
    }
    for (int i = 0; i < n_roots; i++)
        if (!discover(p, roots[i].node)) return false;
    for (int i = 0; i < n_roots; i++) {
        if (!contribute(p, &roots[i], np_hold_ref(grads[i]))) return false;
    }
    for (int i = 0; i < n_roots; i++) {
        np_record *r = roots[i].node->record;
        bool twice = false;
        for (int k = 0; k < i; k++) twice = twice || roots[k].node == roots[i].node;
        if (r->deps == 0 && !twice && !make_ready(p, r)) return false;
    }
    return true;
}

/* A pass inside a reentrant node's backward: gradients of its leaves go to the places of the node's inputs. */
static bool place_sinks(np_pass *p, const struct neap_node *node, neap_tensor *const *leaves, int n)
{
    bool fresh;
    for (int i = 0; i < n; i++) {
        if (!np_requires_grad(leaves[i]) || !node->next[i].node) continue;
        np_record *r = np_accumulates(leaves[i]) ? record_of(p, leaves[i]->ag->acc, &fresh) : NULL;
        if (r) r->sink = &node->next[i];
        if (!r && np_pending(p->c)) return false;
    }
    return true;
}

static bool run_pass(neap_ctx *c, np_pass *p, const np_edge *roots, neap_tensor *const *grads, int n_roots)
{
    uint64_t grad = np_ambient_push(c, NP_AMB_GRAD, p->facts.create_graph, NULL, "backward", NULL);
    if (!grad) return false;
    p->c = c, p->outer = c->pass, p->facts.id = ++c->next_pass;
    c->pass = p;
    c->stop_barrier++;
    const np_ambient_kind off[] = {NP_AMB_TRACE, NP_AMB_CAST}; /* formulas are neither followed nor cast */
    uint64_t ids[2] = {0};
    for (int k = 0; k < 2; k++)
        if (np_ambient_get(c, off[k]))
            ids[k] = np_ambient_push(c, off[k], off[k] == NP_AMB_TRACE ? np_trace_value(c) : 0, NULL,
                                     "backward", NULL);
    bool ok = !np_pending(c) && (!p->sink_node || place_sinks(p, p->sink_node, p->leaves, p->n_leaves));
    ok = ok && prepare(p, roots, grads, n_roots);
    for (np_record *r; ok && (r = take_ready(p)) != NULL;) ok = run_record(p, r);
    drop_records(p);
    np_array_free(c, p->heap);
    if (c->on_pass_end) c->on_pass_end(c, p->facts.id);
    c->stop_barrier--;
    c->pass = p->outer;
    for (int k = 0; k < 2; k++)
        if (ids[k]) np_ambient_pop(c, ids[k]);
    np_ambient_pop(c, grad);
    return ok && !np_pending(c);
}

/* ---- the public face */

static bool no_graph(neap_ctx *c, const char *what)
{
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_GRAD);
    if (e && !e->value)
        return np_fail(c, NEAP_E_NOGRAD, "%s does not require grad: gradients are switched off by %s%s%s",
                       what, e->where ? e->where : "no_grad", e->note[0] ? " at " : "", e->note);
    return np_fail(
        c, NEAP_E_NOGRAD,
        "%s does not require grad: nothing it was made from has requires_grad = true, or it was made "
        "under no_grad",
        what);
}

static bool check_root(neap_ctx *c, neap_tensor *t, const neap_tensor *g)
{
    char a[128];
    if (!t) return np_fail(c, NEAP_E_ARG, "the tensor to differentiate is missing");
    if (!np_requires_grad(t)) return no_graph(c, "the tensor");
    if (!g && t->numel != 1)
        return np_fail(c, NEAP_E_SHAPE,
                       "a gradient is needed to differentiate %s: only one-element tensors do without; "
                       "use :sum() or hand in a gradient",
                       np_tensor_text(a, sizeof a, t));
    return !g || np_check_gradient(c, t, g);
}

static neap_tensor *first_gradient(neap_ctx *c, neap_tensor *t, neap_tensor *g)
{
    if (g) return np_hold_ref(g);
    neap_tensor *one = np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, t->ndim, t->shape);
    if (one && !np_fill_value(c, one, 1)) np_drop(one), one = NULL;
    return one;
}

/* Edges of n tensors into a fresh array; NULL with an error. */
static np_edge *edges_of(neap_ctx *c, neap_tensor *const *t, int n)
{
    np_edge *e = np_obj_new(c, sizeof *e * (size_t)(n + 1));
    for (int i = 0; e && i < n; i++) {
        e[i] = np_edge_of(c, t[i]);
        if (e[i].node) continue;
        if (!np_pending(c)) {
            if (t[i]) np_fail(c, NEAP_E_NOGRAD, "input %d does not require grad", i + c->base);
            else np_fail(c, NEAP_E_ARG, "input %d is missing", i + c->base);
        }
        while (i-- > 0) np_node_drop(e[i].node);
        np_obj_free(c, e, sizeof *e * (size_t)(n + 1));
        return NULL;
    }
    return e;
}

static void free_edges(neap_ctx *c, np_edge *e, int n)
{
    if (!e) return;
    for (int i = 0; i < n; i++) np_node_drop(e[i].node);
    np_obj_free(c, e, sizeof *e * (size_t)(n + 1));
}

static bool differentiate(neap_ctx *c, np_pass *p, neap_tensor *const *outs, neap_tensor *const *grads,
                          int n_outs, neap_tensor *const *inputs)
{
    size_t bytes = sizeof(neap_tensor *) * (size_t)(n_outs + 1);
    for (int i = 0; i < n_outs; i++)
        if (!check_root(c, outs[i], grads ? grads[i] : NULL)) return false;
    np_edge *roots = edges_of(c, outs, n_outs), *targets = NULL;
    neap_tensor **first = roots ? np_obj_new(c, bytes) : NULL;
    bool ok = first != NULL;
    if (ok && inputs) {
        targets = edges_of(c, inputs, p->n_targets);
        ok = targets != NULL;
        p->targets = targets;
        p->inputs = inputs;
        p->facts.has_targets = true;
    }
    for (int i = 0; ok && i < n_outs; i++) {
        first[i] = first_gradient(c, outs[i], grads ? grads[i] : NULL);
        ok = first[i] != NULL;
    }
    ok = ok && run_pass(c, p, roots, first, n_outs);
    for (int i = 0; first && i < n_outs; i++) np_drop(first[i]);
    if (first) np_obj_free(c, first, bytes);
    free_edges(c, roots, n_outs);
    free_edges(c, targets, p->n_targets);
    return ok;
}

static np_pass pass_of(const neap_backward_opts *o)
{
    np_pass p = {0};
    if (!o) return p;
    p.facts.create_graph = o->create_graph != 0;
    p.facts.keep_graph = o->retain_graph != 0 || p.facts.create_graph;
    return p;
}

bool np_pass_has_targets(neap_ctx *c)
{
    for (const np_pass *p = c->pass; p; p = p->outer)
        if (p->facts.has_targets) return true;
    return false;
}

bool np_run_reentrant(neap_ctx *c, struct neap_node *node, neap_tensor *const *outs,
                      neap_tensor *const *grads, int n_outs, neap_tensor *const *leaves, int n_leaves)
{
    np_pass p = {.sink_node = node, .leaves = leaves, .n_leaves = n_leaves};
    return differentiate(c, &p, outs, grads, n_outs, NULL);
}

int neap_backward(neap_ctx *c, neap_tensor *out, neap_tensor *grad, const neap_backward_opts *opts)
{
    if (np_pending(c)) return 1;
    const char *outer = c->op_name;
    c->op_name = "backward";
    np_pass p = pass_of(opts);
    neap_tensor *const *inputs = opts ? opts->inputs : NULL;
    p.n_targets = inputs ? opts->n_inputs : 0;
    if (inputs && opts->n_inputs <= 0)
        np_fail(c, NEAP_E_ARG, "the list of inputs is empty; leave it out for all leaves");
    if (p.facts.create_graph && !c->warned_cycle) {
        c->warned_cycle = true;
        np_logf(
            c, 2,
            "backward with create_graph stores gradients that hold their graph in .grad: it lives as long "
            "as the tensor; set x.grad = nil when done, or use neap.grad");
    }
    if (p.facts.create_graph && !c->pass) np_cycles_maybe_collect(c);
    bool ok = !np_pending(c) && differentiate(c, &p, &out, &grad, 1, inputs);
    c->op_name = outer;
    return !ok;
}

int neap_grad(neap_ctx *c, neap_tensor *const *outs, neap_tensor *const *grads, int n_outs,
              neap_tensor *const *inputs, int n_inputs, const neap_backward_opts *opts, neap_tensor **results)
{
    for (int i = 0; results && i < n_inputs; i++) results[i] = NULL;
    if (np_pending(c)) return 1;
    if (!outs || !inputs || !results || n_outs <= 0 || n_inputs <= 0) {
        np_fail(c, NEAP_E_ARG, "grad: outputs, inputs and results are needed, at least one of each");
        return 1;
    }
    const char *outer = c->op_name;
    c->op_name = "grad";
    np_pass p = pass_of(opts);
    p.n_targets = n_inputs;
    p.captured = results;
    bool ok = differentiate(c, &p, outs, grads, n_outs, inputs);
    for (int i = 0; ok && i < n_inputs; i++) {
        if (results[i] || (opts && opts->allow_unused)) continue;
        np_fail(c, NEAP_E_UNUSED,
                "input %d did not take part in the result; pass {allow_unused = true} for nil", i + c->base);
        ok = false;
    }
    for (int i = 0; !ok && i < n_inputs; i++) np_drop(results[i]), results[i] = NULL;
    c->op_name = outer;
    return !ok;
}
