/* offload.c - saved values that wait on the host.
 *
 * A copy for later is made by a stream of its own, so the device goes on computing: the values' bytes on the device are
 * free for the allocator at once, which gives them out when the copy is done with them (streams.h). Fetching ahead is
 * the same the other way, one value at a time, and only into room that nobody else wants. What cannot be done so
 * (no pinned memory, gaps in the layout) is copied at once. */
#include "tensor/offload.h"

#include "tensor/streams.h"

struct np_away {
    neap_ctx *c;
    np_device *from;
    neap_tensor *host; /* contiguous: dim k of it is dim order[k] of the tensor; or the alias */
    uint8_t order[NEAP_MAX_DIMS];
    np_away_opts o;
    bool stays;             /* on the host, or without bytes: nothing to copy */
    uint64_t sent;          /* later: the number of the copy (streams.h) */
    uint32_t times;         /* it was brought back */
    neap_tensor *coming;    /* fetched ahead */
    np_away *older, *newer; /* those of the device that are copied for later, by when they were sent */
};

/* ---- layout: t as a contiguous tensor over the same bytes */

/* Dims by descending stride. */
static void order_dims(const neap_tensor *t, uint8_t *order)
{
    for (int i = 0; i < t->ndim; i++) {
        int at = i;
        for (; at > 0 && t->stride[order[at - 1]] < t->stride[i]; at--) order[at] = order[at - 1];
        order[at] = (uint8_t)i;
    }
}

/* A view of t with its dims in this order. */
static neap_tensor *ordered(neap_tensor *t, const uint8_t *order)
{
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    for (int i = 0; i < t->ndim; i++) shape[i] = t->shape[order[i]], stride[i] = t->stride[order[i]];
    return np_tensor_view(t, t->ndim, shape, stride, t->offset);
}

/* The other way round. */
static neap_tensor *restored(neap_tensor *t, const uint8_t *order)
{
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    for (int i = 0; i < t->ndim; i++) shape[order[i]] = t->shape[i], stride[order[i]] = t->stride[i];
    return np_tensor_view(t, t->ndim, shape, stride, t->offset);
}

/* t's bytes without gaps, or NULL without an error. */
static neap_tensor *flat(neap_ctx *c, neap_tensor *t, uint8_t *order)
{
    order_dims(t, order);
    neap_tensor *f = ordered(t, order);
    if (f && f->contiguous) return f;
    if (f) np_drop(f);
    else np_forgive(c, NULL);
    for (int i = 0; i < t->ndim; i++) order[i] = (uint8_t)i;
    return NULL;
}

/* ---- copies for later */

typedef struct pinned_bytes {
    np_streams *s;
    void *p;
    size_t bytes;
} pinned_bytes;

static np_mem_use used_by_copies(const np_streams *s)
{
    return (np_mem_use){.last = s->now, .streams = (uint16_t)(1u << s->to_host | 1u << s->from_host)};
}

static void give_back(void *user)
{
    pinned_bytes *b = user;
    b->s->pinned.use = used_by_copies(b->s);
    np_mem_give_scratch(&b->s->pinned, b->p, b->bytes);
    np_obj_free(b->s->c, b, sizeof *b);
}

/* Like t, contiguous, in pinned memory; counted as the host's. */
static neap_tensor *pinned_like(neap_ctx *c, np_streams *s, const neap_tensor *t)
{
    pinned_bytes *b = np_obj_new(c, sizeof *b);
    if (!b) return NULL;
    *b = (pinned_bytes){s, NULL, (size_t)t->numel * np_itemsize(t)};
    b->p = np_mem_take_scratch(&s->pinned, b->bytes);
    neap_tensor *h =
        b->p ? np_tensor_wrap(c, (neap_dtype)t->dtype, t->ndim, t->shape, b->p, give_back, b) : NULL;
    if (h) {
        np_storage_set_category(h->st, NEAP_SAVED);
        return h;
    }
    if (b->p) give_back(b);
    else np_obj_free(c, b, sizeof *b);
    return NULL;
}

static bool copy_later(np_streams *s, int stream, void *dst, const void *src, size_t bytes, bool to_device)
{
    const neap_backend *b = &s->d->backend;
    return b->plugin->copy_later(b->user, stream, dst, src, bytes, to_device) ||
           np_fail(s->c, NEAP_E_DEVICE, "copying %zu bytes %s %s failed: %s", bytes,
                   to_device ? "to" : "from", s->d->name, b->plugin->why(b->user));
}

/* np_mem.shrink: nothing fails for want of room that a value took before its time. */
static bool let_go(np_mem *m)
{
    const np_streams *s = m->streams;
    bool any = false;
    for (np_away *a = s->newest_away; a; a = a->older)
        if (a->coming) np_drop(a->coming), a->coming = NULL, any = true;
    return any;
}

static void link_newest(np_away *a)
{
    np_streams *s = a->from->streams;
    a->from->mem.shrink = let_go;
    a->older = s->newest_away;
    if (a->older) a->older->newer = a;
    s->newest_away = a;
}

static void unlink_away(np_away *a)
{
    if (a->newer) a->newer->older = a->older;
    else if (a->from->streams && a->from->streams->newest_away == a) a->from->streams->newest_away = a->older;
    if (a->older) a->older->newer = a->newer;
}

/* False without an error: it has to be copied at once. */
static bool send_later(np_away *a, neap_tensor *t)
{
    neap_ctx *c = a->c;
    neap_tensor *f = t->numel > 0 && t->st->kind == NP_BYTES_BLOCK ? flat(c, t, a->order) : NULL;
    if (!f) return false;
    np_device *d = t->st->dev;
    bool ok = np_streams_for_copies(c, d);
    np_streams *s = d->streams;
    ok = ok && (a->host = pinned_like(c, s, f)) && np_stream_use(c, f->st, s->to_host, false) &&
         copy_later(s, s->to_host, np_ptr(a->host), np_ptr(f), a->host->st->bytes, false);
    np_drop(f);
    if (ok) {
        a->sent = s->now;
        link_newest(a);
        return true;
    }
    np_forgive(c, NULL);
    if (a->host) np_drop(a->host);
    a->host = NULL;
    return false;
}

static neap_tensor *fetch(np_away *a)
{
    neap_ctx *c = a->c;
    const neap_tensor *h = a->host;
    neap_tensor *t = np_tensor_new(c, a->from, (neap_dtype)h->dtype, h->ndim, h->shape);
    bool ok = t != NULL;
    if (ok && a->sent) {
        np_streams *s = a->from->streams;
        ok = np_stream_after(s, s->from_host, s->to_host, a->sent) &&
             np_stream_use(c, t->st, s->from_host, true) &&
             copy_later(s, s->from_host, np_ptr(t), np_ptr(h), t->st->bytes, true);
    } else if (ok) {
        ok = np_copy_into(c, t, h);
    }
    if (ok) c->moved_to_device += t->st->bytes;
    else if (t) np_drop(t), t = NULL;
    return t;
}

/* What is going to be brought back soon after a, of those sent about when it was: a node's own values come in the order
 * they were sent, even if nodes come the other way round, so those beside a may have been back in this pass. */
static np_away *next_of(const np_away *a)
{
    enum { BESIDE = 16 };
    np_away *w = a->o.in_order ? a->newer : a->older;
    for (int i = 0; i < BESIDE && w && w->o.group == a->o.group; i++, w = a->o.in_order ? w->newer : w->older)
        if (w->times < a->times) return w;
    return NULL;
}

/* Nobody is asked to make room for it: the host could let go of a itself. */
static void fetch_ahead(np_away *a)
{
    if (!a || a->coming) return;
    np_mem *m = &a->from->mem;
    if (m->limit > 0 && (int64_t)a->host->st->bytes > m->limit - m->live) return;
    const bool pressing = m->pressing;
    m->pressing = true;
    a->coming = fetch(a);
    m->pressing = pressing;
    if (!a->coming) np_forgive(a->c, NULL);
}

/* ---- the door */

static bool send_now(np_away *a, neap_tensor *t)
{
    neap_ctx *c = a->c;
    neap_tensor *f = flat(c, t, a->order), *from = f ? f : t;
    a->host = np_tensor_new(c, c->devices[0], (neap_dtype)t->dtype, from->ndim, from->shape);
    bool ok = a->host && np_copy_into(c, a->host, from);
    if (f) np_drop(f);
    if (ok) return np_storage_set_category(a->host->st, NEAP_SAVED), true;
    if (a->host) np_drop(a->host);
    return false;
}

np_away *np_send_away(neap_ctx *c, neap_tensor *t, const np_away_opts *o)
{
    np_away *a = np_obj_new(c, sizeof *a);
    if (!a) return NULL;
    a->c = c;
    a->from = t->st->dev;
    a->o = *o;
    const bool stays = a->stays = a->from == c->devices[0] || np_is_dry(t);
    bool ok =
        stays ? (a->host = np_tensor_alias(t)) != NULL : (o->later && send_later(a, t)) || send_now(a, t);
    if (!ok) {
        np_obj_free(c, a, sizeof *a);
        return NULL;
    }
    if (!stays) c->moved_to_host += a->host->st->bytes;
    return a;
}

neap_tensor *np_bring_back(np_away *a)
{
    if (a->stays) return np_hold_ref(a->host);
    neap_tensor *t = a->coming ? a->coming : fetch(a), *back = t ? restored(t, a->order) : NULL;
    a->coming = NULL;
    if (t) np_drop(t);
    if (!back) return NULL;
    a->times++;
    fetch_ahead(next_of(a));
    return back;
}

void np_away_free(np_away *a)
{
    if (!a) return;
    if (a->sent) unlink_away(a);
    if (a->coming) np_drop(a->coming);
    np_drop(a->host);
    np_obj_free(a->c, a, sizeof *a);
}
