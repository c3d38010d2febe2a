/* streams.c - the order between the streams of a device: from the data, and from the blocks that are used again. */
#include "tensor/streams.h"

static bool refuse(neap_ctx *c, const np_device *d)
{
    return np_fail(c, NEAP_E_DEVICE, "%s: %s", d->name, d->backend.plugin->why(d->backend.user));
}

/* ---- waiting */

/* s comes after what `other` was asked until now, and so after what that came after. */
static void learn(np_streams *s, int stream, int other)
{
    s->seen[stream][other] = s->now;
    for (int w = 0; w < s->n; w++)
        if (s->seen[stream][w] < s->seen[other][w]) s->seen[stream][w] = s->seen[other][w];
}

bool np_stream_after(np_streams *s, int stream, int other, uint64_t until)
{
    const np_plugin *p = s->d->backend.plugin;
    if (other == stream || s->seen[stream][other] >= until) return true;
    if (!p->stream_wait(s->d->backend.user, stream, other)) return refuse(s->c, s->d);
    learn(s, stream, other);
    return true;
}

static bool after_all(np_streams *s, int stream, uint32_t others, uint64_t until)
{
    for (int w = 0; w < s->n; w++)
        if (others >> w & 1 && !np_stream_after(s, stream, w, until)) return false;
    return true;
}

/* Has it happened already, as far as one can know without waiting? */
static bool is_after_all(np_streams *s, int stream, uint32_t others, uint64_t until)
{
    const np_plugin *p = s->d->backend.plugin;
    for (int w = 0; w < s->n; w++) {
        if (!(others >> w & 1) || w == stream || s->seen[stream][w] >= until) continue;
        if (!p->stream_done(s->d->backend.user, w)) return false;
        learn(s, stream, w);
    }
    return true;
}

/* ---- who asks now */

int np_stream_now(neap_ctx *c, const np_device *d)
{
    for (const np_ambient_entry *e = np_ambient_get(c, NP_AMB_STREAM); e;
         e = np_ambient_below(c, NP_AMB_STREAM, e->id))
        if (e->value / NP_STREAMS == d->index) return (int)(e->value % NP_STREAMS);
    return 0;
}

bool np_streams_enter(neap_ctx *c, np_device *d)
{
    np_streams *s = d->streams;
    if (!s) return true;
    int stream = np_stream_now(c, d);
    if (stream != s->current && !d->backend.plugin->stream_use(d->backend.user, stream)) return refuse(c, d);
    s->current = stream;
    s->now++;
    d->mem.use = (np_mem_use){.last = s->now, .streams = (uint16_t)(1u << stream)};
    return true;
}

bool np_stream_use(neap_ctx *c, np_storage *st, int stream, bool write)
{
    np_device *d = st->dev;
    np_streams *s = d->streams;
    np_stream_tag *t = &st->streams;
    if (st->kind != NP_BYTES_BLOCK) return true;
    if (!np_streams_enter(c, d)) return false;
    if (write) {
        if (!after_all(s, stream, t->use.streams, t->use.last)) return false;
        t->written = s->now & (((uint64_t)1 << 48) - 1);
        t->writer = (uint16_t)stream;
        t->use.streams = 0;
    } else if (!np_stream_after(s, stream, t->writer, t->written)) {
        return false;
    }
    t->use.streams |= (uint16_t)(1u << stream);
    t->use.last = s->now;
    return true;
}

bool np_streams_join(neap_ctx *c, np_device *d)
{
    np_streams *s = d->streams;
    if (!s) return true;
    if (!np_streams_enter(c, d)) return false;
    uint32_t all = (1u << s->n) - 1;
    if (s->to_host) all &= ~(1u << s->to_host);
    return after_all(s, s->current, all, s->now);
}

/* ---- blocks that are used again (np_mem.ready) */

static bool device_ready(np_mem *m, const np_mem_use *use, bool wait)
{
    np_streams *s = m->streams;
    if (!use) return np_streams_enter(s->c, s->d);
    return wait ? after_all(s, s->current, use->streams, use->last)
                : is_after_all(s, s->current, use->streams, use->last);
}

/* What comes to the host next is written there by to_host. */
static bool pinned_ready(np_mem *m, const np_mem_use *use, bool wait)
{
    np_streams *s = m->streams;
    if (!use) return true;
    return wait ? after_all(s, s->to_host, use->streams, use->last)
                : is_after_all(s, s->to_host, use->streams, use->last);
}

/* ---- making and ending */

static np_streams *streams_of(neap_ctx *c, np_device *d)
{
    if (d->streams) return d->streams;
    np_streams *s = np_obj_new(c, sizeof *s);
    if (!s) return NULL;
    s->c = c;
    s->d = d;
    s->n = 1;
    s->now = 1;
    d->mem.streams = s;
    d->mem.ready = device_ready;
    return d->streams = s;
}

static bool has_streams(neap_ctx *c, const np_device *d)
{
    return d->backend.plugin ||
           np_fail(c, NEAP_E_DEVICE, "%s has no streams or events: devices of a plug-in have", d->name);
}

int np_stream_new(neap_ctx *c, np_device *d)
{
    const np_plugin *p = d->backend.plugin;
    if (!has_streams(c, d)) return -1;
    np_streams *s = streams_of(c, d);
    if (!s) return -1;
    if (s->idle) {
        int i = __builtin_ctz(s->idle);
        s->idle &= ~(1u << i);
        return i;
    }
    int i = p->stream_new(d->backend.user);
    if (i < 0) return refuse(c, d), -1;
    s->n = i + 1;
    s->now++;
    return after_all(s, i, (1u << i) - 1, s->now) ? i : -1;
}

void np_stream_free(np_device *d, int stream)
{
    if (d->streams && stream > 0) d->streams->idle |= 1u << stream;
}

bool np_stream_finish(neap_ctx *c, np_device *d, int stream)
{
    return d->backend.plugin->stream_finish(d->backend.user, stream) || refuse(c, d);
}

bool np_stream_done(np_device *d, int stream)
{
    return d->backend.plugin->stream_done(d->backend.user, stream);
}

bool np_stream_wait(neap_ctx *c, np_device *d, int stream, int other)
{
    return np_streams_enter(c, d) && np_stream_after(d->streams, stream, other, d->streams->now);
}

/* ---- events */

void *np_event_new(neap_ctx *c, np_device *d)
{
    if (!has_streams(c, d)) return NULL;
    void *event = d->backend.plugin->event_new(d->backend.user);
    if (!event) refuse(c, d);
    return event;
}

void np_event_free(np_device *d, void *event) { d->backend.plugin->event_free(d->backend.user, event); }

bool np_event_record(neap_ctx *c, np_device *d, void *event)
{
    return np_streams_enter(c, d) &&
           (d->backend.plugin->event_record(d->backend.user, event) || refuse(c, d));
}

bool np_event_done(np_device *d, void *event)
{
    return d->backend.plugin->event_done(d->backend.user, event);
}

bool np_event_wait(neap_ctx *c, np_device *d, void *event)
{
    return d->backend.plugin->event_wait(d->backend.user, event) || refuse(c, d);
}

bool np_event_time(neap_ctx *c, np_device *d, void *from, void *to, double *milliseconds)
{
    const np_plugin *p = d->backend.plugin;
    return np_event_wait(c, d, from) && np_event_wait(c, d, to) &&
           (p->event_time(d->backend.user, from, to, milliseconds) || refuse(c, d));
}

/* ---- copies for later */

static void *pinned_alloc(void *user, size_t bytes)
{
    const np_device *d = ((np_streams *)user)->d;
    return d->backend.plugin->host_alloc(d->backend.user, bytes);
}

/* Not before the copies from and to it are done: unlike freeing memory of the device, this does not wait. */
static void pinned_free(void *user, void *p, size_t bytes)
{
    const np_device *d = ((np_streams *)user)->d;
    (void)d->backend.plugin->synchronize(d->backend.user);
    d->backend.plugin->host_free(d->backend.user, p, bytes);
}

static const char *pinned_why(void *user)
{
    const np_device *d = ((np_streams *)user)->d;
    return d->backend.plugin->why(d->backend.user);
}

bool np_streams_for_copies(neap_ctx *c, np_device *d)
{
    np_streams *s = has_streams(c, d) ? streams_of(c, d) : NULL;
    if (!s) return false;
    if (s->to_host && s->from_host) return true;
    if (!s->to_host) {
        int i = np_stream_new(c, d);
        if (i < 0) return false;
        const np_raw_mem raw = {pinned_alloc, pinned_free, s, pinned_why};
        s->to_host = i;
        np_mem_init(&s->pinned, c, &raw);
        s->pinned.name = "pinned host memory";
        s->pinned.streams = s;
        s->pinned.ready = pinned_ready;
    }
    int i = np_stream_new(c, d);
    if (i < 0) return false;
    s->from_host = i;
    return true;
}

void np_streams_close(np_device *d)
{
    np_streams *s = d->streams;
    if (!s) return;
    if (s->to_host) np_mem_close(&s->pinned);
    d->mem.ready = NULL;
    d->streams = NULL;
    np_obj_free(s->c, s, sizeof *s);
}
