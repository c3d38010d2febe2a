/* slot.c - one value that a node keeps for its backward.
 *
 * A slot never keeps the tensor's own graph alive: a result of the node is stored as a detached alias, and the
 * graph identity is stored beside it and put back at unpack. Everything that decides *how* the value is
 * kept (hooks, checkpoint markers) is a state of the slot; nothing outside this file and the pair that packed
 * it knows which. Who may drop a slot: its owner, a node or a region, and only its owner. */
#include "autograd/autograd.h"

static void pair_drop(neap_ctx *c, np_hook_pair *p)
{
    if (!p || --p->refs > 0) return;
    if (p->h.release) p->h.release(p->h.user);
    np_obj_free(c, p, sizeof *p);
}

void np_hook_pair_drop(neap_ctx *c, np_hook_pair *p) { pair_drop(c, p); }

/* Bytes that only the graph may still want are category SAVED while a slot holds them. */
void np_hold_bytes(np_storage *s)
{
    if (s->saved++ == 0 && s->category == NEAP_TEMP) np_storage_set_category(s, NEAP_SAVED);
}

void np_release_bytes(np_storage *s)
{
    if (--s->saved == 0 && s->category == NEAP_SAVED) np_storage_set_category(s, NEAP_TEMP);
}

bool np_slot_hold(np_slot *s, neap_tensor *t, struct neap_node *owner)
{
    bool detach = owner && t->ag && t->ag->node;
    neap_tensor *kept = detach ? np_tensor_alias(t) : np_hold_ref(t);
    if (!kept) return false;
    np_hold_bytes(kept->st);
    s->state = NP_SLOT_HELD;
    s->t = kept;
    return true;
}

typedef struct np_slot_meta { /* what a user's unpack must give back */
    uint8_t dtype, ndim;
    np_device *dev;
    int64_t shape[NEAP_MAX_DIMS];
} np_slot_meta;

static np_slot_meta *meta_of(neap_ctx *c, const neap_tensor *t)
{
    np_slot_meta *m = np_obj_new(c, sizeof *m);
    if (!m) return NULL;
    m->dtype = t->dtype;
    m->ndim = t->ndim;
    m->dev = t->st->dev;
    memcpy(m->shape, t->shape, sizeof(int64_t) * t->ndim);
    return m;
}

static bool same_meta(const np_slot_meta *m, const neap_tensor *t)
{
    if (m->dtype != t->dtype || m->ndim != t->ndim || m->dev != t->st->dev) return false;
    for (int d = 0; d < t->ndim; d++)
        if (m->shape[d] != t->shape[d]) return false;
    return true;
}

static bool pack_user(neap_ctx *c, np_slot *s, neap_tensor *t, np_hook_pair *pair)
{
    uint64_t version = t->st->version.n;
    np_slot_meta *meta = meta_of(c, t);
    if (!meta) return false;
    uint64_t grad = np_ambient_push(c, NP_AMB_GRAD, 0, NULL, "a pack hook", NULL);
    if (!grad) {
        np_obj_free(c, meta, sizeof *meta);
        return false;
    }
    void *packed = NULL;
    pair->refs++;
    const char *op = c->op_name;
    int status = pair->h.pack(c, pair->h.user, t, &packed);
    c->op_name = op;
    np_ambient_pop(c, grad);
    if (status == 0 && t->st->version.n != version) {
        np_fail(c, NEAP_E_PACK_INPLACE, "a pack hook changed its input in place; clone it first");
        status = 1;
        if (pair->h.drop) pair->h.drop(pair->h.user, packed);
    }
    if (status || np_pending(c)) {
        if (!np_pending(c)) np_fail(c, NEAP_E_INTERNAL, "a pack hook failed without saying why");
        pair_drop(c, pair);
        np_obj_free(c, meta, sizeof *meta);
        return false;
    }
    s->meta = meta;
    s->state = NP_SLOT_HOOKED;
    s->packed = packed;
    s->pair = pair;
    return true;
}

/* A held result of some node: keeps an alias and the identity instead of the tensor, whose place in the graph may
 * still change (a region that changes its own input in place would otherwise hold itself). */
bool np_slot_detach(np_slot *s)
{
    if (s->state != NP_SLOT_HELD || s->is_output || !s->t->ag || !s->t->ag->node) return true;
    neap_tensor *alias = np_tensor_alias(s->t);
    if (!alias) return false;
    s->id = s->t->ag->node;
    s->id->refs++;
    s->out_nr = s->t->ag->out_nr;
    np_drop(s->t);
    s->t = alias;
    return true;
}

/* The identity beside a value that is not held itself. */
static void remember_identity(np_slot *s, neap_tensor *t, struct neap_node *owner)
{
    if (owner || !s->requires_grad) return;
    if (t->ag->node) {
        s->id = t->ag->node;
        s->id->refs++;
        s->out_nr = t->ag->out_nr;
    } else {
        s->is_leaf = true;
        s->leaf = np_hold_ref(t);
    }
}

static void pack_number(np_slot *s, const neap_tensor *t)
{
    s->state = NP_SLOT_NUMBER;
    s->dtype = t->dtype;
    if (t->dtype == NEAP_INT64) s->i = np_load_int(NEAP_INT64, np_ptr(t));
    else s->f = np_load_double((neap_dtype)t->dtype, np_ptr(t));
}

/* Hooks that the function of a region enters itself have nothing to do while it runs again: what the throw-away graph
 * saves dies with the recompute, so it is kept as it is. */
static bool inside_replay(neap_ctx *c, const np_ambient_entry *e)
{
    while ((e = np_ambient_below(c, NP_AMB_HOOKS, e->id)) != NULL)
        if (e->payload && ((np_hook_pair *)e->payload)->replay) return true;
    return false;
}

bool np_slot_pack(neap_ctx *c, np_slot *s, neap_tensor *t, struct neap_node *owner, int out_nr)
{
    if (!t) return true; /* a saved "none": state NONE */
    if (t->number) {
        pack_number(s, t);
        return true;
    }
    s->is_output = owner != NULL;
    s->out_nr = out_nr;
    s->requires_grad = np_requires_grad(t);
    s->version = t->st->version.n;
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_HOOKS);
    np_hook_pair *pair = e ? e->payload : NULL;
    bool ok;
    if (pair && pair->pack) ok = pair->pack(c, pair, s, t, owner);
    else if (!pair || pair->disabled || inside_replay(c, e)) ok = np_slot_hold(s, t, owner);
    else ok = pack_user(c, s, t, pair);
    if (!ok) return false;
    if (s->state != NP_SLOT_HELD) remember_identity(s, t, owner);
    else s->is_leaf = s->requires_grad && !owner && !t->ag->node;
    c->n_slots++;
    return true;
}

/* `data` (taken over) with the identity that was recorded. */
static NP_APART neap_tensor *with_identity(neap_ctx *c, np_slot *s, struct neap_node *owner,
                                           neap_tensor *data)
{
    if (!data || !s->requires_grad) return data;
    if (s->is_leaf && data == s->leaf) return data;
    struct neap_node *id = s->is_output ? owner : s->id;
    np_edge leaf_edge = {NULL, 0};
    if (s->is_leaf) {
        leaf_edge = np_edge_of(c, s->leaf);
        id = leaf_edge.node;
    }
    neap_tensor *t = id ? np_tensor_alias(data) : NULL;
    np_drop(data);
    if (t) np_set_identity(t, id, s->is_leaf ? 0 : s->out_nr);
    np_node_drop(leaf_edge.node);
    return t;
}

static neap_tensor *unpack_user(neap_ctx *c, np_slot *s)
{
    neap_tensor *t = s->pair->h.unpack(c, s->pair->h.user, s->packed);
    char got[160], want[160];
    if (!t && !np_pending(c)) np_fail(c, NEAP_E_UNPACK_TYPE, "an unpack hook returned no tensor");
    if (!t || same_meta(s->meta, t)) return t;
    np_fail(c, NEAP_E_UNPACK_TYPE,
            "an unpack hook returned %s for a saved %s %s; it must have the same shape, dtype and device",
            np_tensor_text(got, sizeof got, t),
            np_shape_text(want, sizeof want, s->meta->ndim, s->meta->shape),
            np_dtype_name((neap_dtype)s->meta->dtype));
    np_drop(t);
    return NULL;
}

static NP_APART neap_tensor *fail_changed(neap_ctx *c, const np_slot *s)
{
    char text[160];
    return np_fail(
        c, NEAP_E_INPLACE,
        "a value saved for backward was changed in place: %s %s, version %llu expected, %llu found; "
        "use the out-of-place form",
        s->is_output ? "result of this op," : "input of this op,", np_tensor_text(text, sizeof text, s->t),
        (unsigned long long)s->version, (unsigned long long)s->t->st->version.n);
}

/* An operand that was a result when it was saved, and has been taken out of the graph since. */
static inline bool lost_identity(const np_slot *s)
{
    return s->requires_grad && !s->is_leaf && !s->is_output && !s->id && !s->t->ag->node;
}

static NP_APART neap_tensor *fail_detached(neap_ctx *c, const np_slot *s)
{
    char text[160];
    return np_fail(
        c, NEAP_E_DETACHED_INPLACE,
        "an operand saved for backward, %s, was detached in place since; use x:detach(), or detach_ "
        "after the backward",
        np_tensor_text(text, sizeof text, s->t));
}

static inline neap_tensor *unpack_held(neap_ctx *c, np_slot *s, struct neap_node *owner)
{
    if (s->t->st->version.n != s->version) return fail_changed(c, s);
    if (lost_identity(s)) return fail_detached(c, s);
    s->t->refs++;
    return s->is_output || s->id ? with_identity(c, s, owner, s->t) : s->t;
}

neap_tensor *np_slot_unpack(neap_ctx *c, np_slot *s, struct neap_node *owner)
{
    if (np_pending(c)) return NULL;
    switch (s->state) {
    case NP_SLOT_NONE: return NULL;
    case NP_SLOT_NUMBER: return s->dtype == NEAP_INT64 ? np_integer_new(c, s->i) : np_number_new(c, s->f);
    case NP_SLOT_HELD: return unpack_held(c, s, owner);
    case NP_SLOT_HOOKED: return with_identity(c, s, owner, unpack_user(c, s));
    case NP_SLOT_REGION: return with_identity(c, s, owner, s->pair->unpack(c, s));
    default:
        return np_fail(
            c, NEAP_E_FREED,
            "a saved value was already released by a backward: it ran twice over this graph, a state was "
            "carried over without detach(), or two losses share a part; pass {retain_graph = true} to the "
            "first one, or detach");
    }
}

static void release_held(neap_ctx *c, np_slot *s)
{
    neap_tensor *t = s->t;
    struct neap_node *id = s->id;
    s->state = NP_SLOT_RELEASED;
    s->t = NULL;
    s->id = NULL;
    c->n_slots--;
    if (t->refs > 1 || t->st->refs > 1) np_release_bytes(t->st); /* it lives on */
    np_drop(t);
    np_node_drop(id);
}

void np_slot_release_slow(neap_ctx *c, np_slot *s)
{
    if (s->state == NP_SLOT_HELD) {
        release_held(c, s);
        return;
    }
    np_slot old = *s;
    memset(s, 0, sizeof *s);
    s->state = NP_SLOT_RELEASED;
    if (old.state == NP_SLOT_HOOKED && old.pair->h.drop) {
        old.pair->h.drop(old.pair->h.user, old.packed);
    } else if (old.state == NP_SLOT_REGION) {
        old.pair->drop(&old);
    }
    if (old.state != NP_SLOT_NUMBER) c->n_slots--;
    if (old.meta) np_obj_free(c, old.meta, sizeof *old.meta);
    pair_drop(c, old.pair);
    np_node_drop(old.id);
    np_drop(old.leaf);
}
