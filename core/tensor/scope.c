/* scope.c - C scopes: results made between neap_scope_begin and neap_scope_end belong to the scope.
 *
 * A scope is an ambient entry of the running owner with a growing list of references; it holds one reference
 * per adopted result, and drops them all at its end. `scoped` on a tensor means: a scope lists it, or did.
 * Only entries with value SCOPE_C are ours; the bindings may keep other kinds of scopes in the same list. */
#include "tensor/tensor.h"

enum { SCOPE_C = 1 };

typedef struct scope {
    uint64_t id;
    neap_tensor **v;
    size_t n, cap;
} scope;

static scope *scope_of_entry(const np_ambient_entry *e, const void *owner)
{
    return e && e->value == SCOPE_C && e->owner == owner ? e->payload : NULL;
}

int neap_scope_begin(neap_ctx *c)
{
    if (np_pending(c)) return -1;
    scope *s = np_obj_new(c, sizeof *s);
    if (!s) return -1;
    s->id = np_ambient_push(c, NP_AMB_SCOPE, SCOPE_C, s, "neap_scope_begin", NULL);
    if (s->id) return 0;
    np_obj_free(c, s, sizeof *s);
    return -1;
}

/* Ends the newest scope of the running owner; without one it does nothing. Works while an error is pending.
 */
void neap_scope_end(neap_ctx *c)
{
    scope *s = scope_of_entry(np_ambient_get(c, NP_AMB_SCOPE), c->ambient.running);
    if (!s) return;
    np_ambient_pop(c, s->id);
    for (size_t i = s->n; i > 0; i--) np_drop(s->v[i - 1]);
    np_array_free(c, s->v);
    np_obj_free(c, s, sizeof *s);
}

neap_tensor *np_scope_adopt_slow(neap_ctx *c, neap_tensor *t)
{
    if (!t) return NULL;
    scope *s = scope_of_entry(np_ambient_get(c, NP_AMB_SCOPE), c->ambient.running);
    if (!s) return t;
    if (s->n == s->cap) {
        void *v = np_array_grow(c, s->v, &s->cap, s->n + 1, sizeof *s->v);
        if (!v) {
            np_drop(t);
            return NULL;
        }
        s->v = v;
    }
    s->v[s->n++] = t;
    t->scoped = true;
    return t;
}

/* Takes one reference to t out of the innermost scope that lists it. */
neap_tensor *neap_keep(neap_tensor *t)
{
    if (!t || !t->scoped) return t;
    const np_ambient *a = &t->c->ambient;
    for (size_t i = a->n; i > 0; i--) {
        const np_ambient_entry *e = &a->v[i - 1];
        if (e->kind != NP_AMB_SCOPE || e->value != SCOPE_C) continue;
        scope *s = e->payload;
        for (size_t k = s->n; k > 0; k--) {
            if (s->v[k - 1] != t) continue;
            s->v[k - 1] = s->v[--s->n];
            return t;
        }
    }
    t->scoped = false;
    return t;
}
