/* hooks.c - what hosts may do to gradients and saved values: tensor and node hooks, retain_grad,
 * saved-tensors hooks, save_on_cpu, and the flags of leaves. A hook belongs to its node (or leaf) and dies
 * with it; the context's list of all hooks only serves removal by id. */
#include "autograd/autograd.h"
#include "tensor/offload.h"

#include <stdio.h>

static np_hook *add_hook(neap_ctx *c, np_hook **head, neap_fn fn, int out_nr)
{
    np_hook *h = np_obj_new(c, sizeof *h);
    if (!h) return NULL;
    if (fn.retain) fn.retain(fn.user);
    h->id = ++c->next_hook;
    h->fn = fn;
    h->out_nr = out_nr;
    h->head = head;
    h->all_next = c->hooks;
    if (c->hooks) c->hooks->all_prev = h;
    c->hooks = h;
    while (*head) head = &(*head)->next; /* in order of registration */
    *head = h;
    return h;
}

uint64_t neap_register_hook(neap_ctx *c, neap_tensor *t, neap_fn fn)
{
    if (np_pending(c)) return 0;
    if (!np_requires_grad(t)) {
        np_fail(c, NEAP_E_NOGRAD, "register_hook: the tensor does not require grad");
        return 0;
    }
    np_hook *h =
        t->ag->node ? add_hook(c, &t->ag->node->hooks, fn, t->ag->out_nr) : add_hook(c, &t->ag->hooks, fn, 0);
    return h ? h->id : 0;
}

uint64_t neap_node_register_hook(neap_ctx *c, neap_node *n, neap_fn fn)
{
    if (np_pending(c) || !n) return 0;
    np_hook *h = add_hook(c, &n->hooks, fn, -1);
    return h ? h->id : 0;
}

int neap_remove_hook(neap_ctx *c, uint64_t id)
{
    for (np_hook *h = c->hooks; h; h = h->all_next) {
        if (h->id != id) continue;
        np_hook **p = h->head;
        while (*p != h) p = &(*p)->next;
        *p = h->next;
        h->next = NULL;
        np_hooks_free(c, h);
        return 1;
    }
    return 0;
}

int neap_retain_grad(neap_ctx *c, neap_tensor *t)
{
    if (np_pending(c)) return 1;
    if (!np_requires_grad(t)) {
        np_fail(c, NEAP_E_NOGRAD, "retain_grad: the tensor does not require grad");
        return 1;
    }
    if (!t->ag->node || t->ag->retains_grad) return 0; /* leaves keep their gradient anyway */
    np_hook *h = add_hook(c, &t->ag->node->hooks, (neap_fn){0}, t->ag->out_nr);
    if (!h) return 1;
    h->retain = t;
    t->ag->retains_grad = true;
    return 0;
}

/* ---- flags and .grad */

int neap_requires_grad(const neap_tensor *t) { return np_requires_grad(t); }
int neap_is_leaf(const neap_tensor *t) { return t && (!t->ag || !t->ag->node); }

int neap_set_requires_grad(neap_ctx *c, neap_tensor *t, int on)
{
    if (np_pending(c)) return 1;
    if (!t) {
        np_fail(c, NEAP_E_ARG, "requires_grad: the tensor is NULL");
        return 1;
    }
    if (on && !np_is_float((neap_dtype)t->dtype)) {
        np_fail(c, NEAP_E_DTYPE,
                "requires_grad: a %s tensor cannot require grad, only floating-point ones can",
                np_dtype_name((neap_dtype)t->dtype));
        return 1;
    }
    if (!on && !neap_is_leaf(t)) {
        np_fail(c, NEAP_E_STATE,
                "requires_grad = false is for leaves only; this is a result: use x:detach()");
        return 1;
    }
    if (!on && !t->ag) return 0;
    np_autograd *ag = np_ag(t);
    t->graph = (uint8_t)((t->graph & ~NP_REQUIRES_GRAD) | (on ? NP_REQUIRES_GRAD : 0));
    if (on && !ag->node &&
        ag->base) { /* a leaf is no part of another tensor's graph: it would hold itself through it */
        np_drop(ag->base);
        ag->base = NULL;
        t->graph &= (uint8_t)~NP_HAS_BASE;
        ag->base_node = NULL;
        ag->no_grad_view = false;
    }
    return 0;
}

neap_tensor *neap_grad_of(neap_tensor *t) { return t && t->ag ? np_hold_ref(t->ag->grad) : NULL; }

bool np_check_gradient(neap_ctx *c, const neap_tensor *t, const neap_tensor *g)
{
    char a[128], b[128];
    const bool here = g->st->dev == t->st->dev;
    bool fits = here && g->ndim == t->ndim && g->dtype == t->dtype;
    for (int d = 0; fits && d < t->ndim; d++) fits = g->shape[d] == t->shape[d];
    if (fits) return true;
    np_tensor_text(a, sizeof a, g), np_tensor_text(b, sizeof b, t);
    if (here) return np_fail(c, NEAP_E_SHAPE, "the gradient %s does not fit the tensor %s", a, b);
    return np_fail(c, NEAP_E_DEVICE, "the gradient %s does not fit the tensor %s; move it with :to(\"%s\")",
                   a, b, t->st->dev->name);
}

int neap_set_grad(neap_ctx *c, neap_tensor *t, neap_tensor *grad)
{
    if (np_pending(c)) return 1;
    if (!t) {
        np_fail(c, NEAP_E_ARG, "grad: the tensor is NULL");
        return 1;
    }
    if (!grad && !t->ag) return 0;
    np_ag(t);
    if (grad && !np_check_gradient(c, t, grad)) return 1;
    return !np_put_grad(c, t, np_hold_ref(grad));
}

neap_tensor *neap_detach(neap_ctx *c, neap_tensor *t)
{
    if (np_pending(c) || !t) return NULL;
    return np_scope_adopt(c, np_tensor_alias(t));
}

int neap_detach_(neap_ctx *c, neap_tensor *t)
{
    if (np_pending(c) || !t) return 1;
    if (t->ag && t->ag->base) {
        np_fail(
            c, NEAP_E_STATE,
            "detach_: the tensor is a view; in place it would part from the tensor whose memory it shows; "
            "use x:detach()");
        return 1;
    }
    if (t->ag) np_clear_identity(t);
    return 0;
}

int neap_grad_enabled(neap_ctx *c) { return np_grad_on(c); }

uint64_t neap_set_grad_enabled(neap_ctx *c, int on)
{
    return np_ambient_push(c, NP_AMB_GRAD, on != 0, NULL, "set_grad_enabled", NULL);
}

/* ---- saved-tensors hooks */

static np_hook_pair *new_pair(neap_ctx *c)
{
    np_hook_pair *p = np_obj_new(c, sizeof *p);
    if (p) p->refs = 1;
    return p;
}

/* Entering a pair while hooks are disabled is an error with the message of the innermost disable. */
bool np_hooks_allowed(neap_ctx *c)
{
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_HOOKS);
    np_hook_pair *p = e ? e->payload : NULL;
    if (p && p->disabled) return np_fail(c, NEAP_E_HOOKS_DISABLED, "%s", p->message);
    return true;
}

static uint64_t push_pair(neap_ctx *c, np_hook_pair *p, const char *where)
{
    uint64_t id = np_ambient_push(c, NP_AMB_HOOKS, 0, p, where, NULL);
    if (!id) np_hook_pair_drop(c, p);
    return id;
}

uint64_t neap_saved_hooks_begin(neap_ctx *c, const neap_saved_hooks *hooks)
{
    if (np_pending(c) || !np_hooks_allowed(c)) return 0;
    if (!hooks || !hooks->pack || !hooks->unpack) {
        np_fail(c, NEAP_E_ARG, "saved_tensors_hooks: a pack and an unpack function are needed");
        return 0;
    }
    np_hook_pair *p = new_pair(c);
    if (!p) return 0;
    p->h = *hooks;
    if (p->h.retain) p->h.retain(p->h.user);
    return push_pair(c, p, "saved_tensors_hooks");
}

uint64_t neap_disable_saved_hooks_begin(neap_ctx *c, const char *message)
{
    if (np_pending(c)) return 0;
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_HOOKS);
    np_hook_pair *now = e ? e->payload : NULL;
    if (now && !now->disabled) {
        np_fail(c, NEAP_E_HOOKS_DISABLED, "%s", message);
        return 0;
    }
    np_hook_pair *p = new_pair(c);
    if (!p) return 0;
    p->disabled = true;
    snprintf(p->message, sizeof p->message, "%s", message);
    return push_pair(c, p, "disable_saved_tensors_hooks");
}

/* save_on_cpu: the value's elements go to the host, its layout and device are remembered. `user` is not NULL: through
 * pinned memory, while the device goes on. Values that are on the host already are kept as they are. */
static int cpu_pack(neap_ctx *c, void *user, neap_tensor *t, void **packed)
{
    return (*packed = np_send_away(c, t, &(np_away_opts){.later = user != NULL})) == NULL;
}

static neap_tensor *cpu_unpack(neap_ctx *c, void *user, void *packed)
{
    (void)c, (void)user;
    return np_bring_back(packed);
}

static void cpu_drop(void *user, void *packed)
{
    (void)user;
    np_away_free(packed);
}

uint64_t neap_save_on_cpu_begin(neap_ctx *c, int pin_memory)
{
    static char pinned;
    neap_saved_hooks h = {
        .pack = cpu_pack, .unpack = cpu_unpack, .drop = cpu_drop, .user = pin_memory ? &pinned : NULL};
    return neap_saved_hooks_begin(c, &h);
}

/* Ends any ambient entry that a *_begin or set_* function returned; pairs lose their reference. */
void neap_end(neap_ctx *c, uint64_t id)
{
    np_ambient_entry *e = np_ambient_find(c, id);
    if (!e) return;
    np_hook_pair *p = e->kind == NP_AMB_HOOKS ? e->payload : NULL;
    np_mode *m = e->kind == NP_AMB_INNER ? e->payload : NULL;
    np_ambient_pop(c, id);
    np_hook_pair_drop(c, p);
    if (m && m->end) m->end(c, m->user);
}
