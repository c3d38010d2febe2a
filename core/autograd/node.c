/* node.c - graph nodes: one block of memory each, released iteratively.
 *
 * A node keeps the nodes of its inputs; nothing keeps a node but tensors, edges, slots and running passes. So
 * graphs die by reference counting alone. Dropping the last reference never recurses: dead nodes queue in the
 * context's graveyard and one loop empties it, whatever the length of the chain. */
#include "autograd/autograd.h"

_Static_assert(sizeof(struct neap_node) % 8 == 0, "edges follow the node");

/* int64s behind a node: shapes of results (and of a list op's inputs), lists of attributes. */
static inline size_t count_dims(const np_frame *f, const np_op_facts *facts)
{
    size_t dims = 0;
    for (int j = 0; j < f->n_out; j++) dims += f->meta[j].ndim;
    if (facts->plain_record) return dims;
    for (uint32_t m = facts->lists; m; m &= m - 1) dims += (size_t)f->attr[__builtin_ctz(m)].n;
    for (int i = 0; facts->schema.list && i < f->n_in; i++) dims += f->in[i]->ndim;
    return dims;
}

static inline int64_t *put_shape(np_node_meta *m, neap_dtype t, int ndim, int device, const int64_t *shape,
                                 int64_t *list)
{
    m->dtype = (uint8_t)t, m->ndim = (uint8_t)ndim, m->device = (uint8_t)device;
    m->shape = list;
    for (ptrdiff_t d = 0; d < ndim; d++) list[d] = shape[d];
    return list + ndim;
}

/* What a list op's inputs look like, and lists of attributes. */
static NP_APART void describe_lists(struct neap_node *n, const np_frame *f, const np_op_facts *facts,
                                    int64_t *list)
{
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

/* Everything a node needs in one block: edges, slots, result metas with their shapes, attributes with their lists.
 * Written: the node itself, and that its slots hold nothing. */
static NP_INLINE struct neap_node *block(neap_ctx *c, int n_in, int n_out, int n_slots, int n_metas,
                                         int n_attrs, size_t dims)
{
    size_t size = sizeof(struct neap_node) + sizeof(np_edge) * (size_t)n_in +
                  sizeof(np_slot) * (size_t)n_slots + sizeof(np_node_meta) * (size_t)n_metas +
                  sizeof(np_attr) * (size_t)n_attrs + sizeof(int64_t) * dims;
    struct neap_node *n = np_obj_raw(c, size);
    if (!n) return NULL;
    np_edge *next = (np_edge *)(n + 1);
    np_slot *slots = (np_slot *)(next + n_in);
    np_node_meta *meta = (np_node_meta *)(slots + n_slots);
    n->refs = 1, n->n_in = n_in, n->n_out = n_out, n->n_slots = n_slots;
    n->seq = c->next_seq++;
    n->c = c, n->size = size;
    n->op = NULL, n->name = NULL, n->is_custom = false;
    n->next = next, n->slots = slots, n->meta = meta, n->in_meta = NULL;
    n->attr = (np_attr *)(meta + n_metas);
    n->rng = (np_rng_range){0};
    n->leaf = NULL, n->hooks = NULL, n->group = 0, n->record = NULL, n->grave = NULL;
    n->backward = (neap_fn){0};
    for (int k = 0; k < n_slots; k++) slots[k] = (np_slot){0};
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

struct neap_node *np_node_of(np_frame *f, const np_op_facts *facts)
{
    const int n_attrs = facts->schema.n_attrs;
    struct neap_node *n = block(f->c, f->n_in, f->n_out, facts->n_saves,
                                f->n_out + (facts->schema.list ? f->n_in : 0), n_attrs, count_dims(f, facts));
    if (!n) return NULL;
    int64_t *list = (int64_t *)(n->attr + n_attrs);
    n->op = f->op;
    n->rng = f->rng;
    for (int j = 0; j < f->n_out; j++)
        list = put_shape(&n->meta[j], (neap_dtype)f->meta[j].dtype, f->meta[j].ndim, f->dev->index,
                         f->meta[j].shape, list);
    for (int k = 0; k < n_attrs; k++) n->attr[k] = f->attr[k];
    if (!facts->plain_record) describe_lists(n, f, facts, list);
    return n;
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
    if (n->name) np_obj_free(c, n->name, strlen(n->name) + 1);
}

static inline void bury(neap_ctx *c, struct neap_node *n)
{
    for (int i = 0; i < n->n_slots; i++) np_slot_release(c, &n->slots[i]);
    for (int i = 0; i < n->n_in; i++) {
        struct neap_node *next = n->next[i].node;
        if (next && --next->refs == 0) retire(c, next);
    }
    if (n->hooks) np_hooks_free(c, n->hooks);
    if (n->is_custom) forget_function(c, n);
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

static struct neap_node *accumulator(neap_ctx *c, neap_tensor *t)
{
    struct neap_node *n = t->ag->acc;
    if (n && n->refs++ > 0) return n;
    if (n) c->n_nodes++, c->obj_live++;
    else if (!(n = t->ag->acc = np_node_new(c, 0, 1, 0))) return NULL;
    n->leaf = np_hold_ref(t);
    n->meta[0].dtype = t->dtype, n->meta[0].ndim = t->ndim, n->meta[0].device = (uint8_t)t->st->dev->index;
    memcpy((int64_t *)n->meta[0].shape, t->shape, sizeof t->shape);
    return n;
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

/* retain_grad hooks point at their tensor weakly: a tensor that dies or changes its place takes them along. */
static void forget_retain(neap_tensor *t)
{
    if (!t->ag->node) return;
    for (np_hook *h = t->ag->node->hooks; h; h = h->next)
        if (h->retain == t) h->retain = NULL;
}

void np_set_identity(neap_tensor *t, struct neap_node *n, int out_nr)
{
    if (!t->ag) { /* a fresh result */
        t->own = (np_autograd){.requires_grad = true, .out_nr = out_nr, .node = n};
        t->ag = &t->own;
        n->refs++;
        return;
    }
    np_autograd *ag = t->ag;
    if (ag->retains_grad) forget_retain(t);
    struct neap_node *old = ag->node;
    n->refs++;
    ag->node = n;
    ag->out_nr = out_nr;
    ag->requires_grad = true;
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
    ag->requires_grad = ag->retains_grad = false;
    np_node_drop(old);
}

/* Of a leaf, of a view, or of a result that somebody looks at. */
static NP_APART void drop_rest(neap_ctx *c, neap_tensor *t, np_autograd *ag)
{
    if (ag->retains_grad) forget_retain(t);
    if (ag->grad) np_put_grad(c, t, NULL);
    t->ag = NULL;
    if (ag->acc) { /* at rest: at work it holds its leaf */
        c->obj_live++;
        np_obj_free(c, ag->acc, ag->acc->size);
    }
    np_node_drop(ag->node);
    np_drop(ag->base);
    if (ag->hooks) np_hooks_free(c, ag->hooks);
}

void np_autograd_drop(neap_tensor *t)
{
    np_autograd *ag = t->ag;
    neap_ctx *c = t->c;
    if (!ag) return;
    if (ag->retains_grad || ag->grad || ag->acc || ag->base || ag->hooks) {
        drop_rest(c, t, ag);
        return;
    }
    t->ag = NULL;
    np_node_drop(ag->node);
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
