/* setting.c - the state around a forward, put in force again around its recomputes.
 *
 * Op modes of the recompute are those of the forward and no others: an entry below them ends the walk outward, so a
 * mode around the backward does not see the ops of the recompute a second time, nor change them. */
#include "checkpoint/setting.h"

#include "autograd/watch.h"

static int64_t value_of(neap_ctx *c, np_ambient_kind kind, int64_t unset)
{
    np_ambient_entry *e = np_ambient_get(c, kind);
    return e ? e->value : unset;
}

bool np_setting_take(neap_ctx *c, np_setting *s)
{
    *s = (np_setting){.dtype = value_of(c, NP_AMB_DTYPE, NEAP_FLOAT32),
                      .device = np_default_device(c),
                      .cast = value_of(c, NP_AMB_CAST, 0)};
    if (!np_ambient_get(c, NP_AMB_MODE)) return true;
    for (const np_ambient_entry *e = np_mode_below(c, UINT64_MAX); e; e = np_mode_below(c, e->id)) {
        np_mode *v = np_array_grow(c, s->modes, &s->cap, s->n_modes + 1, sizeof *v);
        if (!v) return false;
        s->modes = v;
        np_mode *m = &v[s->n_modes++];
        *m = *(const np_mode *)e->payload;
        if (m->retain) m->retain(m->user);
    }
    return true;
}

void np_setting_free(neap_ctx *c, np_setting *s)
{
    for (size_t i = 0; i < s->n_modes; i++)
        if (s->modes[i].release) s->modes[i].release(s->modes[i].user);
    np_array_free(c, s->modes);
    *s = (np_setting){0};
}

static bool push(neap_ctx *c, np_entered *e, np_ambient_kind kind, int64_t value, void *payload,
                 const char *where)
{
    uint64_t id = np_ambient_push(c, kind, value, payload, where, NULL);
    if (!id) return false;
    if (!e->first) e->first = id;
    e->last = id; /* ids of entries made in a row are consecutive */
    return true;
}

bool np_setting_enter(neap_ctx *c, const np_setting *s, np_range_log *ranges, np_tracer *tracer,
                      const char *where, np_entered *e)
{
    *e = (np_entered){0};
    bool ok = push(c, e, NP_AMB_GRAD, 1, NULL, where) &&
              push(c, e, NP_AMB_RECOMPUTE, (int64_t)c->next_storage + 1, NULL, where) &&
              push(c, e, NP_AMB_DTYPE, s->dtype, NULL, where) &&
              push(c, e, NP_AMB_DEVICE, s->device, NULL, where) &&
              push(c, e, NP_AMB_CAST, s->cast, NULL, where) && push(c, e, NP_AMB_REGION, 0, ranges, where) &&
              push(c, e, NP_AMB_TRACE, np_trace_value(c), tracer, where) &&
              push(c, e, NP_AMB_INNER, 0, NULL, where) && push(c, e, NP_AMB_MODE, 0, NULL, where);
    for (size_t i = s->n_modes; ok && i-- > 0;) ok = push(c, e, NP_AMB_MODE, 0, &s->modes[i], where);
    if (!ok) np_setting_leave(c, e);
    return ok;
}

void np_setting_leave(neap_ctx *c, np_entered *e)
{
    for (uint64_t id = e->last; e->first && id >= e->first; id--) np_ambient_pop(c, id);
    *e = (np_entered){0};
}
