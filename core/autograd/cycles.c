/* cycles.c - tensors whose .grad has a graph of its own, which holds the tensor: backward with create_graph.
 *
 * That is the one cycle of strong references that the library itself makes. Such tensors are listed in the context,
 * and a trial deletion finds those that nothing outside of the cycle can reach: over everything reachable from the
 * list it counts the references that come from inside; an object with more than that is alive, and so is all below
 * it. What closures, regions and custom functions hold counts as outside, so that nothing alive is ever taken; what
 * they keep dead goes when the context closes. The search runs when the list has doubled, after a full collection
 * of a binding, and costs the size of the listed graphs. */
#include "autograd/autograd.h"

enum { FIRST_SEARCH = 16 };

typedef struct np_cycle { /* a tensor in the list */
    neap_tensor *t;       /* weak: it leaves the list when it dies */
    struct np_cycle *prev, *next;
} np_cycle;

/* ---- the list */

static void unlist(neap_ctx *c, np_cycle *e)
{
    if (e->prev) e->prev->next = e->next;
    else c->cycles = e->next;
    if (e->next) e->next->prev = e->prev;
    c->n_cycles--;
    e->t->ag->cycle = NULL;
    np_obj_free(c, e, sizeof *e);
}

static void break_all(neap_ctx *c, void *arg)
{
    (void)arg;
    while (c->cycles) np_put_grad(c, c->cycles->t, NULL);
}

static bool list(neap_ctx *c, neap_tensor *t)
{
    if (!c->search_at) {
        if (!np_ctx_at_close(c, break_all, NULL)) return false;
        c->search_at = FIRST_SEARCH;
    }
    np_cycle *e = np_obj_new(c, sizeof *e);
    if (!e) return false;
    e->t = t;
    e->next = c->cycles;
    if (e->next) e->next->prev = e;
    c->cycles = e;
    c->n_cycles++;
    t->ag->cycle = e;
    return true;
}

bool np_put_grad(neap_ctx *c, neap_tensor *t, neap_tensor *g_take)
{
    np_autograd *ag = t->ag;
    neap_tensor *old = ag->grad;
    bool graph = g_take && g_take->ag && g_take->ag->node;
    if (graph && !ag->cycle && !list(c, t)) {
        np_drop(g_take);
        return false;
    }
    if (!graph && ag->cycle) unlist(c, ag->cycle);
    ag->grad = g_take;
    np_drop(old); /* perhaps the last that held t */
    return true;
}

/* ---- the search: everything reachable from the list, found by its address */

typedef struct object {
    void *p; /* a neap_tensor, or a node */
    bool node, live;
    int32_t inside; /* references from other objects of the search */
} object;

typedef struct search {
    neap_ctx *c;
    object *v;
    size_t n, cap;
    uint32_t *index; /* 1 + place in v, hashed by address */
    size_t cap_index;
    uint32_t *todo; /* places of living objects whose children are to be visited */
    size_t n_todo, cap_todo;
    void (*child)(struct search *s, object *o);
    bool failed;
} search;

static size_t slot_of(const search *s, const void *p)
{
    size_t i = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 20 & (s->cap_index - 1);
    while (s->index[i] && s->v[s->index[i] - 1].p != p) i = (i + 1) & (s->cap_index - 1);
    return i;
}

static bool rehash(search *s)
{
    size_t cap = 0, want = s->cap_index ? 2 * s->cap_index : 256;
    uint32_t *index = np_array_grow(s->c, NULL, &cap, want, sizeof *index);
    if (!index) return false;
    memset(index, 0, want * sizeof *index);
    np_array_free(s->c, s->index);
    s->index = index;
    s->cap_index = want;
    for (size_t i = 0; i < s->n; i++) index[slot_of(s, s->v[i].p)] = (uint32_t)i + 1;
    return true;
}

/* The object at p, new if need be; NULL: out of memory. */
static object *object_at(search *s, void *p, bool node)
{
    if (2 * s->n >= s->cap_index && !rehash(s)) return NULL;
    size_t i = slot_of(s, p);
    if (s->index[i]) return &s->v[s->index[i] - 1];
    object *v = np_array_grow(s->c, s->v, &s->cap, s->n + 1, sizeof *v);
    if (!v) return NULL;
    s->v = v;
    v[s->n] = (object){.p = p, .node = node};
    s->index[i] = (uint32_t)++s->n;
    return &v[s->n - 1];
}

static void visit(search *s, void *p, bool node)
{
    object *o = p && !s->failed ? object_at(s, p, node) : NULL;
    if (o) s->child(s, o);
    else if (p) s->failed = true;
}

/* Every strong reference that a tensor or a node has to another. */
static void visit_children(search *s, const object *o)
{
    const neap_tensor *t = o->p;
    const struct neap_node *n = o->p;
    if (!o->node && t->ag) {
        visit(s, t->ag->node, true);
        visit(s, t->ag->grad, false);
        visit(s, t->ag->base, false);
    }
    if (!o->node) return;
    visit(s, n->leaf, false);
    for (int i = 0; i < n->n_in; i++) visit(s, n->next[i].node, true);
    for (int k = 0; k < n->n_slots; k++) {
        const np_slot *slot = &n->slots[k];
        if (slot->state == NP_SLOT_HELD) visit(s, slot->t, false);
        visit(s, slot->id, true);
        visit(s, slot->leaf, false);
    }
}

static void count_child(search *s, object *o)
{
    (void)s;
    o->inside++;
}

static void revive(search *s, object *o)
{
    if (o->live || s->failed) return;
    o->live = true;
    uint32_t *todo = np_array_grow(s->c, s->todo, &s->cap_todo, s->n_todo + 1, sizeof *todo);
    if (!todo) {
        s->failed = true;
        return;
    }
    s->todo = todo;
    todo[s->n_todo++] = (uint32_t)(o - s->v);
}

static int32_t references(const object *o)
{
    return o->node ? ((const struct neap_node *)o->p)->refs : ((const neap_tensor *)o->p)->refs;
}

/* Finds all objects, then marks what is alive: with references from outside, and all below. */
static bool find_living(search *s)
{
    for (const np_cycle *e = s->c->cycles; e && !s->failed; e = e->next)
        s->failed = !object_at(s, e->t, false);
    s->child = count_child;
    for (size_t i = 0; i < s->n && !s->failed; i++) {
        object o = s->v[i]; /* the array may move */
        visit_children(s, &o);
    }
    s->child = revive;
    for (size_t i = 0; i < s->n && !s->failed; i++)
        if (references(&s->v[i]) != s->v[i].inside) revive(s, &s->v[i]);
    while (s->n_todo && !s->failed) visit_children(s, &s->v[s->todo[--s->n_todo]]);
    return !s->failed;
}

static bool is_dead(const object *o)
{
    const neap_tensor *t = o->p;
    return !o->live && !o->node && t->ag && t->ag->cycle;
}

void np_cycles_collect(neap_ctx *c)
{
    if (!c->cycles || c->pass || c->burying || np_pending(c)) return;
    search s = {.c = c};
    size_t dead = 0;
    if (find_living(&s)) {
        for (size_t i = 0; i < s.n; i++)
            if (is_dead(&s.v[i])) s.v[dead++].p = np_hold_ref(s.v[i].p);
    } else {
        neap_clear_error(c);
    }
    for (size_t i = 0; i < dead; i++) np_put_grad(c, s.v[i].p, NULL);
    for (size_t i = 0; i < dead; i++) np_drop(s.v[i].p);
    np_array_free(c, s.todo);
    np_array_free(c, s.index);
    np_array_free(c, s.v);
    c->search_at = 2 * c->n_cycles + FIRST_SEARCH;
}

void np_cycles_maybe_collect(neap_ctx *c)
{
    if (c->n_cycles >= c->search_at) np_cycles_collect(c);
}
