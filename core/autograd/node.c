/* node.c - graph nodes: one block of memory each, released iteratively.
 *
 * A node keeps the nodes of its inputs; nothing keeps a node but tensors, edges, slots and running passes. So
 * graphs die by reference counting alone. Dropping the last reference never recurses: dead nodes queue in the
 * context's graveyard and one loop empties it, whatever the length of the chain. */
#include "autograd/autograd.h"

_Static_assert(sizeof(struct neap_node) % 8 == 0, "edges follow the node");

static inline void put_meta(np_node_meta *m, neap_dtype t, int ndim, int device, const int64_t *shape)
{
    m->dtype = (uint8_t)t, m->ndim = (uint8_t)ndim, m->device = (uint8_t)device;
    m->shape = shape;
}

/* The same with a copy of the shape in `list`; returns what is behind it. */
static int64_t *put_shape(np_node_meta *m, neap_dtype t, int ndim, int device, const int64_t *shape,
                          int64_t *list)
{
    put_meta(m, t, ndim, device, list);
    for (int d = 0; d < ndim; d++) list[d] = shape[d];
    return list + ndim;
}

/* Everything a node needs in one block: edges, slots, metas, attributes, and `dims` numbers (shapes, lists).
 * Written: the node itself, and that its slots hold nothing. */
static NP_INLINE struct neap_node *block(neap_ctx *c, int n_in, int n_out, int n_slots, int n_metas,
                                         int n_attrs, size_t dims)
{
    size_t slots = sizeof(struct neap_node) + sizeof(np_edge) * (size_t)n_in,
           meta = slots + sizeof(np_slot) * (size_t)n_slots,
           attr = meta + sizeof(np_node_meta) * (size_t)n_metas,
           size = attr + sizeof(np_attr) * (size_t)n_attrs + sizeof(int64_t) * dims;
    struct neap_node *n = np_obj_raw(c, size);
    if (!n) return NULL;
    n->refs = 1, n->n_in = n_in, n->n_out = n_out, n->n_slots = n_slots;
    n->seq = c->next_seq++;
    n->c = c, n->size = size;
    n->op = NULL;
    n->slots = (np_slot *)((char *)n + slots);
    n->meta = (np_node_meta *)((char *)n + meta);
    n->attr = (np_attr *)((char *)n + attr);
    n->in_meta = NULL, n->leaf = NULL, n->name = NULL, n->hooks = NULL, n->group = 0, n->record = NULL;
    for (int k = 0; k < n_slots; k++) n->slots[k] = (np_slot){0};
    c->n_nodes++;
    return n;
}

struct neap_node *np_node_new(neap_ctx *c, int n_in, int n_out, int n_slots)
{
    size_t dims = (size_t)n_out * NEAP_MAX_DIMS;
    struct neap_node *n = block(c, n_in, n_out, n_slots, n_out, 0, dims);
    if (!n) return NULL;
    int64_t *list = (int64_t *)n->attr;
    memset(n->next, 0, sizeof *n->next * (size_t)n_in);
    memset(n->meta, 0, sizeof *n->meta * (size_t)n_out);
    memset(list, 0, sizeof *list * dims);
    for (int j = 0; j < n_out; j++) n->meta[j].shape = list + j * NEAP_MAX_DIMS;
    return n;
}

/* ---- the accumulators of leaves */

static NP_APART bool make_accumulator(neap_ctx *c, neap_tensor *t)
{
    t->ag->acc = np_node_new(c, 0, 1, 0);
    if (t->ag->acc) t->ag->acc->refs = 0;
    return t->ag->acc != NULL;
}

static inline void describe_leaf(struct neap_node *n, const neap_tensor *t)
{
    n->meta->dtype = t->dtype, n->meta->ndim = t->ndim, n->meta->device = (uint8_t)t->st->dev->index;
    memcpy((int64_t *)n->meta->shape, t->shape, sizeof t->shape);
}

/* The accumulator of t, a leaf that requires grad: one more reference. NULL: no memory. */
static inline struct neap_node *accumulator(neap_ctx *c, neap_tensor *t)
{
    const bool fresh = !t->ag->acc;
    if (fresh && !make_accumulator(c, t)) return NULL;
    struct neap_node *n = t->ag->acc;
    if (n->refs++ > 0) return n;
    if (!fresh) c->n_nodes++, c->obj_live++; /* it was at rest */
    n->leaf = np_hold_ref(t);
    describe_leaf(n, t);
    return n;
}

void np_accumulator_renew(neap_tensor *t)
{
    if (t->ag->acc) describe_leaf(t->ag->acc, t);
}

np_edge np_edge_of(neap_ctx *c, neap_tensor *t)
{
    if (!np_requires_grad(t)) return (np_edge){NULL, 0};
    if (t->ag->node) {
        t->ag->node->refs++;
        return (np_edge){t->ag->node, t->ag->out_nr};
    }
    return (np_edge){accumulator(c, t), 0};
}

/* ---- the node of a call */

/* False: no memory for an accumulator; the edges up to there are written. */
static inline bool connect(neap_ctx *c, struct neap_node *n, neap_tensor *const *in, ptrdiff_t n_in)
{
    for (ptrdiff_t i = 0; i < n_in; i++) {
        neap_tensor *t = in[i];
        struct neap_node *to = NULL;
        int32_t out_nr = 0;
        if (np_requires_grad(t)) {
            to = t->ag->node;
            out_nr = t->ag->out_nr;
            if (to) {
                to->refs++;
            } else if (!(to = accumulator(c, t))) {
                n->n_in = (int32_t)i;
                return false;
            }
        }
        n->next[i] = (np_edge){to, out_nr};
    }
    return true;
}

/* int64s behind a node: shapes of results (and of a list op's inputs), lists of attributes. */
static size_t count_dims(const np_frame *f, const np_op_facts *facts)
{
    size_t dims = 0;
    for (int j = 0; j < f->n_out; j++) dims += f->meta[j].ndim;
    for (uint32_t m = facts->lists; m; m &= m - 1) dims += (size_t)f->attr[__builtin_ctz(m)].n;
    for (int i = 0; facts->schema.list && i < f->n_in; i++) dims += f->in[i]->ndim;
    return dims;
}

/* All results, what a list op's inputs look like, lists of attributes, and numbers drawn. */
static NP_APART void describe_all(struct neap_node *n, const np_frame *f, const np_op_facts *facts,
                                  int64_t *list)
{
    n->rng = f->rng;
    for (int j = 0; j < f->n_out; j++) {
        const np_out_meta *m = &f->meta[j];
        list = put_shape(&n->meta[j], (neap_dtype)m->dtype, m->ndim, f->dev->index, m->shape, list);
    }
    n->in_meta = facts->schema.list ? n->meta + n->n_out : NULL;
    for (int i = 0; n->in_meta && i < n->n_in; i++) {
        const neap_tensor *t = f->in[i];
        list = put_shape(&n->in_meta[i], (neap_dtype)t->dtype, t->ndim, t->st->dev->index, t->shape, list);
    }
    if (facts->gen_attr >= 0) n->attr[facts->gen_attr].gen = NULL; /* the range is what a record needs */
    for (uint32_t m = facts->lists; m; m &= m - 1) {
        np_attr *a = &n->attr[__builtin_ctz(m)];
        for (int d = 0; d < a->n; d++) list[d] = a->v[d];
        a->v = list;
        list += a->n;
    }
}

enum { FEW_DIMS = 4 };

/* plain: one result of few dims, no lists. Its shape is copied with the room behind it. */
static NP_INLINE struct neap_node *node_of(neap_ctx *c, np_frame *f, const np_op_facts *facts, bool plain)
{
    const np_out_meta *m = &f->meta[0];
    const int n_attrs = facts->schema.n_attrs, n_out = plain ? 1 : f->n_out,
              n_metas = plain ? 1 : n_out + (facts->schema.list ? f->n_in : 0);
    struct neap_node *n =
        block(c, f->n_in, n_out, facts->n_saves, n_metas, n_attrs, plain ? FEW_DIMS : count_dims(f, facts));
    if (!n) return NULL;
    int64_t *list = (int64_t *)(n->attr + n_attrs);
    n->op = f->op;
    for (int k = 0; k < n_attrs; k++) n->attr[k] = f->attr[k];
    put_meta(n->meta, (neap_dtype)m->dtype, m->ndim, f->dev->index, list);
    if (plain) memcpy(list, m->shape, sizeof *list * FEW_DIMS);
    else describe_all(n, f, facts, list);
    if (connect(c, n, f->in, f->n_in)) return n;
    np_node_drop(n);
    return NULL;
}

static NP_APART struct neap_node *node_of_any(np_frame *f, const np_op_facts *facts)
{
    return node_of(f->c, f, facts, false);
}

struct neap_node *np_node_of(np_frame *f, const np_op_facts *facts)
{
    if (!facts->plain_record || f->n_out != 1 || f->meta[0].ndim > FEW_DIMS) return node_of_any(f, facts);
    return node_of(f->c, f, facts, true);
}

void np_hooks_free(neap_ctx *c, np_hook *h)
{
    while (h) {
        np_hook *next = h->next;
        if (h->all_prev) h->all_prev->all_next = h->all_next;
        else if (c->hooks == h) c->hooks = h->all_next;
        if (h->all_next) h->all_next->all_prev = h->all_prev;
        if (h->fn.release) h->fn.release(h->fn.user);
        np_obj_free(c, h, sizeof *h);
        h = next;
    }
}

/* An accumulator that no graph wants any more: its leaf keeps the block for the next one. */
static void rest(neap_ctx *c, struct neap_node *n)
{
    np_hook *hooks = n->hooks;
    n->hooks = NULL;
    n->group = 0;
    c->n_nodes--, c->obj_live--;
    if (hooks) np_hooks_free(c, hooks);
    np_drop(n->leaf); /* perhaps the leaf's end, and the block's */
}

/* Nobody refers to n any more. */
static inline void retire(neap_ctx *c, struct neap_node *n)
{
    if (n->leaf) {
        rest(c, n);
    } else {
        n->grave = c->graveyard;
        c->graveyard = n;
    }
}

static NP_APART void forget_function(neap_ctx *c, struct neap_node *n)
{
    if (n->backward.release) n->backward.release(n->backward.user);
    np_obj_free(c, n->name, strlen(n->name) + 1);
}

static inline void bury(neap_ctx *c, struct neap_node *n)
{
    for (int i = 0; i < n->n_slots; i++) np_slot_release(c, &n->slots[i]);
    for (const np_edge *e = n->next, *end = e + n->n_in; e < end; e++)
        if (e->node && --e->node->refs == 0) retire(c, e->node);
    if (n->hooks) np_hooks_free(c, n->hooks);
    if (np_is_custom(n)) forget_function(c, n);
    c->n_nodes--;
    np_obj_free(c, n, n->size);
}

void np_node_release(struct neap_node *n)
{
    neap_ctx *c = n->c;
    if (n->leaf || c->burying) {
        retire(c, n);
        return;
    }
    c->burying = true;
    for (;;) {
        bury(c, n);
        if (!(n = c->graveyard)) break;
        c->graveyard = n->grave;
    }
    c->burying = false;
}

/* retain_grad hooks point at their tensor weakly: a tensor that dies or changes its place takes them along. */
static void forget_retain(neap_tensor *t)
{
    if (!t->ag->node) return;
    for (np_hook *h = t->ag->node->hooks; h; h = h->next)
        if (h->retain == t) h->retain = NULL;
}

void np_replace_identity(neap_tensor *t, struct neap_node *n, int out_nr)
{
    np_autograd *ag = t->ag;
    if (ag->retains_grad) forget_retain(t);
    struct neap_node *old = ag->node;
    n->refs++;
    ag->node = n;
    ag->out_nr = out_nr;
    t->graph |= NP_REQUIRES_GRAD;
    ag->retains_grad = false;
    np_node_drop(old);
}

void np_clear_identity(neap_tensor *t)
{
    np_autograd *ag = t->ag;
    if (ag->retains_grad) forget_retain(t);
    struct neap_node *old = ag->node;
    ag->node = NULL;
    ag->out_nr = 0;
    t->graph &= (uint8_t)~NP_REQUIRES_GRAD;
    ag->retains_grad = false;
    np_node_drop(old);
}

/* Of a leaf, of a view, or of a result that somebody looks at. */
static NP_APART void drop_parts(neap_ctx *c, neap_tensor *t, np_autograd *ag)
{
    if (ag->retains_grad) forget_retain(t);
    if (ag->grad) np_put_grad(c, t, NULL);
    if (ag->acc) { /* at rest: at work it holds its leaf */
        c->obj_live++;
        np_obj_free(c, ag->acc, ag->acc->size);
    }
    np_node_drop(ag->node);
    np_drop(ag->base);
    if (ag->hooks) np_hooks_free(c, ag->hooks);
}

void np_autograd_destroy(neap_tensor *t)
{
    np_autograd *ag = t->ag;
    const uintptr_t parts =
        (uintptr_t)ag->grad | (uintptr_t)ag->acc | (uintptr_t)ag->base | (uintptr_t)ag->hooks;
    if (parts | ag->retains_grad) drop_parts(t->c, t, ag);
    else np_node_drop(ag->node);
    np_tensor_free(t);
}

/* ---- inspection */

neap_node *neap_grad_fn(neap_tensor *t) { return t && t->ag ? t->ag->node : NULL; }

const char *neap_node_name(const neap_node *n)
{
    if (!n) return "";
    if (n->op) return n->op->name;
    return n->name ? n->name : "accumulate";
}

int neap_node_n_next(const neap_node *n) { return n ? n->n_in : 0; }

neap_node *neap_node_next(const neap_node *n, int i)
{
    return n && i >= 0 && i < n->n_in ? n->next[i].node : NULL;
}

int neap_node_n_saved(const neap_node *n) { return n ? n->n_slots : 0; }

neap_tensor *neap_node_saved(neap_ctx *c, neap_node *n, int i)
{
    if (!n || i < 0 || i >= n->n_slots)
        return np_fail(c, NEAP_E_INDEX, "the node has no saved value %d", i + c->base);
    return np_slot_unpack(c, &n->slots[i], n);
}

neap_node *neap_node_retain(neap_node *n)
{
    if (n) n->refs++;
    return n;
}

void neap_node_free(neap_node *n) { np_node_drop(n); }
uint64_t neap_node_group(const neap_node *n) { return n ? n->group : 0; }
void neap_node_set_group(neap_node *n, uint64_t group)
{
    if (n) n->group = group;
}
