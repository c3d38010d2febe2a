/* node.c - graph nodes: one block of memory each, released iteratively.
 *
 * A node keeps the nodes of its inputs; nothing keeps a node but tensors, edges, slots and running passes. So
 * graphs die by reference counting alone. Dropping the last reference never recurses: dead nodes queue in the
 * context's graveyard and one loop empties it, whatever the length of the chain. */
#include "autograd/autograd.h"

static size_t align8(size_t n) { return (n + 7) & ~(size_t)7; }

/* int64s behind a node: shapes of results (and of a list op's inputs), lists of attributes. */
static size_t count_dims(const np_frame *f, const np_op_facts *facts, int n_in, int n_out)
{
    size_t dims = 0;
    for (int j = 0; j < n_out; j++) dims += f->meta[j].ndim;
    for (uint32_t m = facts->lists; m; m &= m - 1) dims += (size_t)f->attr[__builtin_ctz(m)].n;
    for (int i = 0; facts->schema.list && i < n_in; i++) dims += f->in[i]->ndim;
    return dims;
}

static int64_t *put_shape(np_node_meta *m, neap_dtype t, int ndim, int device, const int64_t *shape,
                          int64_t *list)
{
    *m = (np_node_meta){(uint8_t)t, (uint8_t)ndim, (uint8_t)device, list};
    for (int d = 0; d < ndim; d++) *list++ = shape[d];
    return list;
}

/* Copies what a record needs of the call into the node's block. */
static void describe(struct neap_node *n, const np_frame *f, const np_op_facts *facts, int64_t *list)
{
    n->op = f->op;
    n->rng = f->rng;
    for (int j = 0; j < n->n_out; j++)
        list = put_shape(&n->meta[j], (neap_dtype)f->meta[j].dtype, f->meta[j].ndim, f->dev->index,
                         f->meta[j].shape, list);
    for (int i = 0; n->in_meta && i < n->n_in; i++) {
        const neap_tensor *t = f->in[i];
        list = put_shape(&n->in_meta[i], (neap_dtype)t->dtype, t->ndim, t->st->dev->index, t->shape, list);
    }
    for (int k = 0; k < facts->schema.n_attrs; k++) n->attr[k] = f->attr[k];
    if (facts->gen_attr >= 0) n->attr[facts->gen_attr].gen = NULL; /* the range is what a record needs */
    for (uint32_t m = facts->lists; m; m &= m - 1) {
        np_attr *a = &n->attr[__builtin_ctz(m)];
        for (int d = 0; d < a->n; d++) list[d] = a->v[d];
        a->v = list;
        list += a->n;
    }
}

/* Everything a node needs in one block: edges, slots, result metas with their shapes, attributes with their lists. */
struct neap_node *np_node_new(neap_ctx *c, int n_in, int n_out, int n_slots, const np_frame *f)
{
    const np_op_facts *facts = f ? np_facts(c, f->op) : NULL;
    if (f && !facts) return NULL;
    bool list_op = facts && facts->schema.list;
    size_t dims = f ? count_dims(f, facts, n_in, n_out) : (size_t)n_out * NEAP_MAX_DIMS;
    size_t head = align8(sizeof(struct neap_node)), edges = sizeof(np_edge) * (size_t)n_in,
           slots = sizeof(np_slot) * (size_t)n_slots,
           metas = sizeof(np_node_meta) * (size_t)(n_out + (list_op ? n_in : 0)),
           attrs = facts ? sizeof(np_attr) * (size_t)facts->schema.n_attrs : 0;
    size_t size = head + edges + slots + metas + attrs + sizeof(int64_t) * dims;
    struct neap_node *n = np_obj_new(c, size);
    if (!n) return NULL;
    char *p = (char *)n + head;
    n->refs = 1, n->c = c, n->size = size, n->seq = c->next_seq++;
    n->n_in = n_in, n->n_out = n_out, n->n_slots = n_slots;
    n->next = (np_edge *)p, p += edges;
    n->slots = (np_slot *)p, p += slots;
    n->meta = (np_node_meta *)p, p += metas;
    n->in_meta = list_op ? n->meta + n_out : NULL;
    n->attr = (np_attr *)p, p += attrs;
    int64_t *list = (int64_t *)p;
    c->n_nodes++;
    if (f) {
        describe(n, f, facts, list);
    } else {
        for (int j = 0; j < n_out; j++) n->meta[j].shape = list + j * NEAP_MAX_DIMS;
    }
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

static inline void bury(neap_ctx *c, struct neap_node *n)
{
    for (int i = 0; i < n->n_slots; i++) np_slot_release(c, &n->slots[i]);
    for (int i = 0; i < n->n_in; i++) {
        struct neap_node *next = n->next[i].node;
        if (next && --next->refs == 0) retire(c, next);
    }
    if (n->hooks) np_hooks_free(c, n->hooks);
    if (n->backward.release) n->backward.release(n->backward.user);
    if (n->name) np_obj_free(c, n->name, strlen(n->name) + 1);
    c->n_nodes--;
    np_obj_free(c, n, n->size);
}

void np_node_release(struct neap_node *n)
{
    neap_ctx *c = n->c;
    retire(c, n);
    if (c->burying) return;
    c->burying = true;
    while ((n = c->graveyard)) {
        c->graveyard = n->grave;
        bury(c, n);
    }
    c->burying = false;
}

static struct neap_node *accumulator(neap_ctx *c, neap_tensor *t)
{
    struct neap_node *n = t->ag->acc;
    if (n && n->refs++ > 0) return n;
    if (n) c->n_nodes++, c->obj_live++;
    else if (!(n = t->ag->acc = np_node_new(c, 0, 1, 0, NULL))) return NULL;
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
    np_autograd *ag = np_ag(t);
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

void np_autograd_drop(neap_tensor *t)
{
    np_autograd *ag = t->ag;
    neap_ctx *c = t->c;
    if (!ag) return;
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
