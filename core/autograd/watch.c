/* watch.c - what a watch notes when it is told. See watch.h; nothing here runs while no watch is in force. */
#include "autograd/watch.h"

#include <stdio.h>
#include <time.h>

#define MAX_MARKS ((size_t)1 << 20) /* older nodes than these lose their line: a watch may stay for days */
#define NO_OP (-1)

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One more element of an array of w; NULL: no memory, and the watch has failed. */
static void *add(np_watch *w, void *array, size_t *n, size_t *cap, size_t each)
{
    void **at = array;
    np_error before = w->c->err;
    char *p = np_array_grow(w->c, *at, cap, *n + 1, each);
    if (!p) {
        np_forgive(w->c, &before); /* a diagnosis must not turn into a failure of the op */
        w->failed = true;
        return NULL;
    }
    *at = p;
    return p + each * (*n)++;
}

/* ---- lines */

/* The number of a text. Lines follow each other, so the search begins behind the latest. */
static uint32_t line_number(np_watch *w, const char *text)
{
    for (size_t k = 0, i = w->line; k < w->n_lines; k++, i++) {
        if (i >= w->n_lines) i = 0;
        if (!strcmp(w->lines[i].text, text)) return (uint32_t)i;
    }
    np_watch_line *l = add(w, &w->lines, &w->n_lines, &w->cap_lines, sizeof *l);
    if (!l) return 0;
    snprintf(l->text, sizeof l->text, "%s", text);
    return (uint32_t)(w->n_lines - 1);
}

static uint32_t line_of_seq(const np_watch *w, uint64_t seq)
{
    size_t low = 0, high = w->n_marks; /* the last mark whose seq is not larger */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (w->marks[mid].seq <= seq) low = mid + 1;
        else high = mid;
    }
    return low ? w->marks[low - 1].line : 0;
}

static np_phase phase_now(neap_ctx *c)
{
    const np_ambient_entry *again = np_ambient_get(c, NP_AMB_RECOMPUTE);
    if (again && again->value) return NP_RECOMPUTE;
    return c->pass ? NP_BACKWARD : NP_FORWARD;
}

/* In backward the line that recorded the node, else the script's. */
static uint32_t line_now(np_watch *w, np_phase phase)
{
    const struct neap_node *n = phase == NP_BACKWARD ? np_running_node(w->c) : NULL;
    uint32_t line = n ? line_of_seq(w, n->seq) : 0;
    char text[sizeof w->lines->text] = "";
    if (line || !w->where) return line;
    w->where(w->user, text, sizeof text);
    return line_number(w, text);
}

static void see_op(np_watch *w, const np_frame *f)
{
    uint64_t next = w->c->next_seq;
    w->line = line_now(w, phase_now(w->c));
    w->told = f;
    np_watch_mark *last = w->n_marks ? &w->marks[w->n_marks - 1] : NULL;
    if (last && last->line == w->line) return;
    if (last && last->seq == next) { /* nothing was recorded since */
        last->line = w->line;
        return;
    }
    if (w->n_marks == MAX_MARKS) {
        memmove(w->marks, w->marks + MAX_MARKS / 2, sizeof *w->marks * (MAX_MARKS / 2));
        w->n_marks = MAX_MARKS / 2;
    }
    np_watch_mark *m = add(w, &w->marks, &w->n_marks, &w->cap_marks, sizeof *m);
    if (m) *m = (np_watch_mark){next, w->line};
}

/* ---- storages */

static void forget(np_watch *w, size_t from)
{
    for (size_t i = from; i < w->n_made; i++) np_version_free(w->c, &w->made[i].st->version);
    w->n_made = from;
}

/* Dead ones that did not live at the peak are of no interest. */
static void compact(np_watch *w)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->n_made; i++) {
        np_watch_made m = w->made[i];
        if (m.st->refs > 0 || (w->peak_nr && m.peak == w->peak_nr)) w->made[kept++] = m;
        else np_version_free(w->c, &m.st->version);
    }
    w->n_made = kept;
}

static void note_storage(np_watch *w, np_storage *st, int32_t op, uint32_t line, np_phase phase)
{
    if (st->kind > NP_BYTES_FOREIGN || st->dev->index != w->device || st->id <= w->newest) return;
    w->newest = st->id;
    if (w->n_made == w->cap_made) compact(w);
    np_watch_made *m = add(w, &w->made, &w->n_made, &w->cap_made, sizeof *m);
    if (!m) return;
    *m = (np_watch_made){.st = st, .op = op, .line = line, .phase = phase};
    st->version.refs++;
}

/* After op made something at line: did the peak rise? Then what lives now lived at the peak. */
static void settle(np_watch *w, int32_t op, uint32_t line)
{
    const np_mem *m = &w->c->devices[w->device]->mem;
    if (m->peak <= w->peak) return;
    w->peak = m->peak;
    w->peak_op = op, w->peak_line = line;
    w->peak_nr++;
    for (size_t i = 0; i < w->n_made; i++) {
        np_watch_made *e = &w->made[i];
        if (e->st->refs > 0) e->peak = w->peak_nr, e->category = e->st->category;
    }
}

void neap_x_watch_made(np_watch *w, neap_tensor *t)
{
    if (!(w->flags & NP_WATCH_STORAGES) || w->busy) return;
    uint32_t line = line_now(w, NP_FORWARD);
    note_storage(w, t->st, NO_OP, line, phase_now(w->c));
    settle(w, NO_OP, line);
}

/* ---- NaN */

static bool has_nan(neap_ctx *c, neap_tensor *t)
{
    if (!np_is_float((neap_dtype)t->dtype) || np_is_dry(t)) return false;
    np_error before = c->err;
    neap_tensor *host = np_to_host(c, t);
    bool found = false;
    for (int64_t i = 0; host && !found && i < host->numel; i++) {
        double v = np_load_double((neap_dtype)t->dtype, np_ptr(host) + (size_t)i * np_itemsize(host));
        found = v != v;
    }
    np_drop(host);
    if (!host) np_forgive(c, &before); /* where there is no memory to look, nothing is found */
    return found;
}

static void look_for_nan(np_watch *w, const np_frame *f)
{
    for (int j = 0; j < f->n_out && w->nan_op < 0; j++)
        if (has_nan(w->c, f->out[j])) w->nan_op = f->op->index, w->nan_line = w->line;
}

/* ---- being told */

static void see_kernel(np_watch *w, const np_frame *f, int64_t start, int64_t ns)
{
    np_phase phase = phase_now(w->c);
    uint32_t line = w->told == f ? w->line : line_now(w, phase);
    int first = f->op->tags & NP_INPLACE ? 1 : 0;
    int64_t bytes = 0;
    for (int j = first; j < f->n_out; j++) {
        np_storage *st = f->out[j]->st;
        bytes += (int64_t)st->bytes;
        if (w->flags & NP_WATCH_STORAGES) note_storage(w, st, f->op->index, line, phase);
    }
    if (w->flags & NP_WATCH_NAN && phase == NP_FORWARD && w->nan_op < 0) look_for_nan(w, f);
    if (w->flags & NP_WATCH_EVENTS) {
        np_watch_event *e = add(w, &w->events, &w->n_events, &w->cap_events, sizeof *e);
        if (e) *e = (np_watch_event){f->op->index, line, phase, start - w->began, ns, bytes};
    }
    if (w->flags & NP_WATCH_LIVE) {
        int64_t(*v)[NP_N_CATEGORIES] = add(w, &w->live, &w->n_live, &w->cap_live, sizeof *v);
        if (v) memcpy(*v, w->c->devices[w->device]->mem.by, sizeof *v);
    }
    if (w->flags & NP_WATCH_STORAGES) settle(w, f->op->index, line);
}

/* Entries from e on downward in which a watch may be. */
static const np_ambient_entry *next_entry(neap_ctx *c, const np_ambient_entry *e)
{
    return e->value ? np_ambient_below(c, NP_AMB_TRACE, e->id) : NULL;
}

bool np_watch_tell(neap_ctx *c, const np_ambient_entry *e, const np_frame *f)
{
    bool traced = false, watched = false;
    for (; e; e = next_entry(c, e)) {
        if (e->value & NP_TRACE_WATCH) {
            np_watch *w = e->payload;
            watched = true;
            if (!w->busy) see_op(w, f);
        } else if (!traced) { /* the newest tracer, or what hides all of them */
            np_tracer *t = e->payload;
            traced = true;
            if (t) t->op(c, t->user, f);
        }
    }
    return watched;
}

bool np_watch_kernel(np_frame *f, np_kernel kernel)
{
    neap_ctx *c = f->c;
    int64_t start = now_ns();
    bool ok = kernel(f);
    int64_t ns = now_ns() - start;
    if (!ok || np_pending(c)) return ok;
    for (const np_ambient_entry *e = np_ambient_get(c, NP_AMB_TRACE); e; e = next_entry(c, e)) {
        np_watch *w = e->value & NP_TRACE_WATCH ? e->payload : NULL;
        if (!w || w->busy) continue;
        w->busy = true;
        see_kernel(w, f, start, ns);
        w->busy = false;
    }
    return ok;
}

void np_watch_about(neap_ctx *c, const struct neap_node *n, char *buf, size_t size)
{
    const char *called = NULL, *op = NULL, *at = NULL;
    for (const np_ambient_entry *e = np_ambient_get(c, NP_AMB_TRACE); e; e = next_entry(c, e)) {
        const np_watch *w = e->value & NP_TRACE_WATCH ? e->payload : NULL;
        uint32_t line = w ? line_of_seq(w, n->seq) : 0;
        if (line && !called) called = w->lines[line].text;
        if (w && w->nan_op >= 0 && !op) op = np_ops[w->nan_op]->name, at = w->lines[w->nan_line].text;
    }
    int used = snprintf(buf, size, "%s%s", called ? "; it was called at " : "", called ? called : "");
    if (op && used >= 0 && (size_t)used < size)
        snprintf(buf + used, size - (size_t)used, "; the first NaN of the forward was made by %s%s%s", op,
                 *at ? " at " : "", at);
}

/* ---- life */

np_watch *neap_x_watch_new(neap_ctx *c, unsigned flags, int device,
                           void (*where)(void *user, char *buf, size_t size), void *user)
{
    np_watch *w = np_obj_new(c, sizeof *w);
    if (!w) return NULL;
    const np_mem *m = &c->devices[device]->mem;
    w->c = c, w->flags = flags, w->device = device, w->where = where, w->user = user;
    w->began = now_ns(), w->held = m->live, w->peak = m->peak, w->newest = c->next_storage;
    w->nan_op = w->peak_op = NO_OP;
    np_watch_line *none = add(w, &w->lines, &w->n_lines, &w->cap_lines, sizeof *none);
    if (!none) {
        neap_x_watch_free(w);
        return np_fail_nomem(c, sizeof *none);
    }
    none->text[0] = 0;
    return w;
}

void neap_x_watch_free(np_watch *w)
{
    if (!w) return;
    neap_ctx *c = w->c;
    forget(w, 0);
    np_array_free(c, w->lines), np_array_free(c, w->marks), np_array_free(c, w->events);
    np_array_free(c, w->live), np_array_free(c, w->made);
    np_obj_free(c, w, sizeof *w);
}
