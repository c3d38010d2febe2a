/* ambient.c - the list of everything in force, and which entry of a kind counts now.
 *
 * Entries stand in the order of their ids, which only grow. `eff` is a cache over the list, made again at the
 * first question after a push, a pop, a change of the running owner or a touch; pointers into the list are
 * good only until then. No kind means anything here. */
#include "ctx.h"

#include <string.h>

static bool awake(const np_ambient *a, const void *owner)
{
    return owner == a->running || !a->asleep || !a->asleep(a->asleep_user, owner);
}

uint64_t np_ambient_push(neap_ctx *c, np_ambient_kind kind, int64_t value, void *payload, const char *where,
                         const char *note)
{
    np_ambient *a = &c->ambient;
    np_ambient_entry *v = np_array_grow(c, a->v, &a->cap, a->n + 1, sizeof *v);
    if (!v) return 0;
    a->v = v;
    np_ambient_entry *e = &v[a->n++];
    *e = (np_ambient_entry){.id = ++a->next_id,
                            .owner = a->running,
                            .kind = kind,
                            .value = value,
                            .payload = payload,
                            .where = where};
    if (note) memcpy(e->note, note, strnlen(note, sizeof e->note - 1)); /* the rest is 0 */
    a->of[kind]++;
    a->loud += NP_AMB_LOUD >> kind & 1;
    a->dirty = true;
    return e->id;
}

/* Entries with an id below `id`: also the place of `id` itself. */
static size_t count_below(const np_ambient *a, uint64_t id)
{
    size_t low = 0, high = a->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (a->v[mid].id < id) low = mid + 1;
        else high = mid;
    }
    return low;
}

np_ambient_entry *np_ambient_find(neap_ctx *c, uint64_t id)
{
    np_ambient *a = &c->ambient;
    size_t i = count_below(a, id);
    return i < a->n && a->v[i].id == id ? &a->v[i] : NULL;
}

bool np_ambient_pop(neap_ctx *c, uint64_t id)
{
    np_ambient *a = &c->ambient;
    np_ambient_entry *e = np_ambient_find(c, id);
    if (!e) return false;
    size_t after = a->n - 1 - (size_t)(e - a->v);
    a->of[e->kind]--;
    a->loud -= NP_AMB_LOUD >> e->kind & 1;
    memmove(e, e + 1, after * sizeof *e);
    a->n--;
    a->dirty = true;
    return true;
}

/* One walk from the newest: the running owner's newest of each kind, else the newest of anyone awake. */
void np_ambient_refresh(np_ambient *a)
{
    bool own[NP_N_AMBIENT] = {false};
    memset(a->eff, 0, sizeof a->eff);
    for (size_t i = a->n; i-- > 0;) {
        np_ambient_entry *e = &a->v[i];
        if (own[e->kind]) continue;
        if (e->owner == a->running) {
            a->eff[e->kind] = e;
            own[e->kind] = true;
        } else if (!a->eff[e->kind] && awake(a, e->owner)) {
            a->eff[e->kind] = e;
        }
    }
    a->dirty = false;
}

np_ambient_entry *np_ambient_below(neap_ctx *c, np_ambient_kind kind, uint64_t below)
{
    np_ambient *a = &c->ambient;
    np_ambient_entry *other = NULL;
    for (size_t i = count_below(a, below); i-- > 0;) {
        np_ambient_entry *e = &a->v[i];
        if (e->kind != kind) continue;
        if (e->owner == a->running) return e;
        if (!other && awake(a, e->owner)) other = e;
    }
    return other;
}

void np_ambient_run(neap_ctx *c, const void *owner)
{
    c->ambient.running = owner;
    c->ambient.dirty = true; /* also when it is the same owner: others may have slept or woken meanwhile */
}

void np_ambient_touch(neap_ctx *c) { c->ambient.dirty = true; }

void np_ambient_close(neap_ctx *c)
{
    np_array_free(c, c->ambient.v);
    c->ambient = (np_ambient){0};
}
