/* autograd.h - nodes, slots, hooks, engine: what the dispatcher records and backward walks.
 *
 * A node keeps edges to the nodes of its inputs (strong), slots of saved values and, per result, its shape
 * and dtype. A tensor keeps its node. A leaf has one accumulator for life: while the graph refers to it, it is a
 * node like others and keeps the leaf; in between it rests and counts as nothing. All walks and releases are loops. Nodes number upward (seq): the engine runs them in descending order, so every
 * gradient buffer adds its contributions in descending node order with one add kernel, the same bits always. */
#ifndef NP_AUTOGRAD_H
#define NP_AUTOGRAD_H

#include "ops/op.h"

struct np_slot;

typedef struct np_hook_pair { /* saved-tensors hooks in force; refcounted */
    int32_t refs;
    neap_saved_hooks h;
    bool disabled;
    char message[200];
    /* A region's record and replay pairs: the checkpoint layer's own packing, NULL for user pairs. `slot` is
     * the slot being filled or read; return false with an error (NEAP_E_STOP: stop here). */
    bool (*pack)(neap_ctx *c, struct np_hook_pair *self, struct np_slot *s, neap_tensor *t,
                 struct neap_node *owner_node);
    neap_tensor *(*unpack)(neap_ctx *c, struct np_slot *s);
    void (*drop)(struct np_slot *s);
    void *owner;
    bool replay; /* a recompute's: the graph it serves dies with the recompute */
} np_hook_pair;
void np_hook_pair_drop(neap_ctx *c, np_hook_pair *p);

typedef enum np_slot_state {
    NP_SLOT_NONE,
    NP_SLOT_HELD,
    NP_SLOT_NUMBER,
    NP_SLOT_HOOKED,
    NP_SLOT_REGION,
    NP_SLOT_RELEASED
} np_slot_state;

/* One saved value: state machine in slot.c. */
typedef struct np_slot {
    uint8_t state;
    bool is_output, is_leaf, requires_grad;
    uint8_t dtype;        /* NUMBER */
    int32_t out_nr;       /* graph identity: result out_nr of `id` (not owned for own outputs) */
    struct neap_node *id; /* non-leaf identity, strong unless is_output */
    uint64_t version;
    union {
        neap_tensor *t; /* HELD */
        void *packed;   /* HOOKED, REGION (marker) */
        double f;       /* NUMBER */
        int64_t i;
    };
    np_hook_pair *pair;        /* HOOKED, REGION: strong */
    struct np_slot_meta *meta; /* HOOKED: what unpack must return */
    neap_tensor *leaf;         /* leaf identity when the value itself is not held */
} np_slot;

/* Packs t. `owner`: the node when t is its own result (is_output), else NULL. False with an error pending. */
bool np_slot_pack(neap_ctx *c, np_slot *s, neap_tensor *t, struct neap_node *owner, int out_nr);
/* New reference with the original graph identity; NULL with an error, or without one for a saved none.
 * `owner` is the node that owns the slot (identity of own results), NULL for region inputs. */
neap_tensor *np_slot_unpack(neap_ctx *c, np_slot *s, struct neap_node *owner);
void np_slot_release_slow(neap_ctx *c, np_slot *s);
static inline void np_slot_release(neap_ctx *c, np_slot *s)
{
    if (s->state != NP_SLOT_NONE && s->state != NP_SLOT_RELEASED) np_slot_release_slow(c, s);
}
bool np_slot_detach(np_slot *s);
/* Bytes that only a graph or a store still wants are category SAVED. */
void np_hold_bytes(np_storage *s);
void np_release_bytes(np_storage *s);
/* np_slot_unpack, in line for a saved none. */
static inline neap_tensor *np_slot_value(neap_ctx *c, np_slot *s, struct neap_node *owner)
{
    return s->state == NP_SLOT_NONE ? NULL : np_slot_unpack(c, s, owner);
}
/* Keeps the tensor itself (own results as a detached alias): what a slot does when no pair is in force. */
bool np_slot_hold(np_slot *s, neap_tensor *t, struct neap_node *owner);

typedef struct np_edge {
    struct neap_node *node; /* strong; NULL: no gradient wanted */
    int32_t out_nr;
} np_edge;

typedef struct np_hook { /* a registered closure */
    uint64_t id;
    neap_fn fn;
    int32_t out_nr;                      /* tensor hooks: which result; -1: node hook */
    neap_tensor *retain;                 /* retain_grad: weak, cleared when the tensor dies */
    struct np_hook *next;                /* of the same owner */
    struct np_hook **head;               /* the owner's list */
    struct np_hook *all_prev, *all_next; /* of the context */
} np_hook;

typedef struct np_node_meta {
    uint8_t dtype, ndim;
    uint8_t device;
    const int64_t *shape; /* inside the node's block */
} np_node_meta;

struct np_record; /* engine.c: per-pass scratch of a node */

struct neap_node {
    int32_t refs;
    int32_t n_in, n_out, n_slots;
    uint64_t seq;
    neap_ctx *c;
    size_t size;        /* of this block */
    const np_op *op;    /* NULL: accumulator or custom function */
    np_slot *slots;     /* n_slots, in the order of op->save for ops */
    np_node_meta *meta; /* n_out */
    np_attr *attr;      /* deep copies, NULL if none */
    np_rng_range rng;
    /* what most nodes have nothing of stands together, to be cleared at once */
    np_node_meta *in_meta; /* ops on a list: shapes of all inputs (n_in), else NULL */
    neap_tensor *leaf;     /* accumulator: strong, while refs > 0 */
    char *name;            /* custom: own copy; else NULL */
    np_hook *hooks;
    uint64_t group;           /* bindings' anchor group; 0 none */
    struct np_record *record; /* of the innermost running pass */
    neap_fn backward;         /* custom */
    struct neap_node *grave;  /* link in the list of nodes to release */
    np_edge next[];           /* n_in */
};

static inline bool np_requires_grad(const neap_tensor *t) { return t && t->graph & NP_REQUIRES_GRAD; }
/* Is a leaf (with ag) part of a graph that somebody keeps? */
static inline bool np_accumulates(const neap_tensor *t) { return t->ag->acc && t->ag->acc->refs > 0; }
static inline np_autograd *np_ag(neap_tensor *t) /* made at the first need */
{
    np_autograd *ag = t->ag;
    if (ag) return ag;
    t->ag = ag = &t->own; /* field by field: gcc clears the whole with a slow loop */
    ag->retains_grad = ag->no_grad_view = false, ag->out_nr = 0;
    ag->node = ag->acc = NULL, ag->grad = NULL, ag->hooks = NULL, ag->cycle = NULL;
    ag->base = NULL, ag->base_node = NULL;
    return ag;
}

/* node.c */
static inline bool np_is_custom(const struct neap_node *n) { return n->name != NULL; }
struct neap_node *np_node_new(neap_ctx *c, int n_in, int n_out,
                              int n_slots); /* zeroed: metas are the caller's */
/* Of a call: edges, metas and attributes from f, no slot filled. NULL: no memory. */
struct neap_node *np_node_of(np_frame *f, const np_op_facts *facts);
void np_node_release(struct neap_node *n);           /* the last reference is gone; iterative */
static inline void np_node_drop(struct neap_node *n) /* one reference */
{
    if (n && --n->refs == 0) np_node_release(n);
}
np_edge np_edge_of(neap_ctx *c,
                   neap_tensor *t); /* strong; accumulator created for leaves; {NULL,0} if none */
/* May g be the gradient of t? If its shape, dtype or device is another one the error says so. */
bool np_check_gradient(neap_ctx *c, const neap_tensor *t, const neap_tensor *g);
/* t, which has an autograd part, got other data: gradients arrive in its dtype, also through a graph that is there. */
void np_accumulator_renew(neap_tensor *t);
/* Gives t the identity (n, out_nr); replaces what it had. */
void np_replace_identity(neap_tensor *t, struct neap_node *n, int out_nr);
static inline void np_set_identity(neap_tensor *t, struct neap_node *n, int out_nr)
{
    if (t->ag) {
        np_replace_identity(t, n, out_nr);
        return;
    }
    np_autograd *ag = np_ag(t); /* a fresh result */
    ag->out_nr = out_nr;
    ag->node = n;
    t->graph |= NP_REQUIRES_GRAD;
    n->refs++;
}
void np_clear_identity(neap_tensor *t); /* t (with ag) becomes a leaf that requires no grad */
void np_hooks_free(neap_ctx *c, np_hook *h);

/* record.c: called by the dispatcher */
static inline bool np_grad_on(neap_ctx *c) /* effective grad mode */
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_GRAD);
    return !e || e->value;
}
bool np_hooks_allowed(neap_ctx *c); /* may a saved-tensors pair be entered here? E-HOOKS-DISABLED if not */
bool np_pack_inputs(np_frame *f, const np_op *impl, struct neap_node *n);
bool np_pack_results(np_frame *f, const np_op *impl, struct neap_node *n);
/* A node with edges and packed inputs. NULL: error. */
static inline struct neap_node *np_record_begin(np_frame *f, const np_op_facts *facts)
{
    struct neap_node *n = np_node_of(f, facts);
    if (!n || !facts->n_saves || np_pack_inputs(f, facts->impl, n)) return n;
    np_node_drop(n);
    return NULL;
}
/* Gives results their identity, packs them. */
static inline bool np_record_end(np_frame *f, const np_op_facts *facts, struct neap_node *n)
{
    for (int j = 0; j < f->n_out; j++) {
        neap_tensor *t = f->out[j];
        if (t && np_is_float((neap_dtype)t->dtype)) np_set_identity(t, n, j);
    }
    for (int k = 0; k < facts->n_saves; k++)
        if (facts->impl->save[k].what == NP_SAVE_OUT) return np_pack_results(f, facts->impl, n);
    return true;
}
/* An in-place op on a differentiable view: the base is rewritten, the view gets a new place in the graph. */
bool np_write_through_view(np_frame *f);
/* A view whose base got a new place in the graph (somebody wrote into it) gets its own anew, from the base. */
bool np_renew_view(neap_ctx *c, neap_tensor *x);
/* engine.c: the call of a composite op. */
bool np_run_parts(np_frame *f);

/* cycles.c */
/* t's .grad becomes g (taken; NULL: none). False: no memory, it stays as it was. t has an autograd part. */
bool np_put_grad(neap_ctx *c, neap_tensor *t, neap_tensor *g_take);
void np_cycles_collect(neap_ctx *c);       /* frees leaves that only their own gradients' graphs hold */
void np_cycles_maybe_collect(neap_ctx *c); /* the same, when there are enough to be worth the search */

/* engine.c */
typedef struct np_pass_facts {
    uint64_t id;
    bool keep_graph, create_graph, has_targets;
} np_pass_facts;
const np_pass_facts *np_current_pass(neap_ctx *c); /* NULL outside */

#endif
