/* oplog.c - recording and comparing sequences of ops (determinism "ops" and "values", debug).
 *
 * A position holds the op, a hash of its numbers and, where the host can tell, the script line. A recompute's log is
 * compared while it grows, so the first difference is known when the recompute ends or stops. */
#include "checkpoint/oplog.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/hash.h"

/* Numbers of a call: attributes, and operands that are plain numbers. Generators and absent ones do not count. */
static uint64_t hash_numbers(neap_ctx *c, const np_frame *f)
{
    np_hash h;
    np_hash_init(&h);
    const np_op_facts *facts = np_facts(c, f->op);
    for (int k = 0; facts && k < facts->schema.n_attrs; k++) {
        const np_attr *a = &f->attr[k];
        if (k == facts->gen_attr || !a->has) continue;
        if (facts->lists >> k & 1) np_hash_add(&h, a->v, sizeof *a->v * (size_t)a->n);
        else np_hash_add(&h, &a->i, sizeof a->i);
    }
    for (int i = 0; i < f->n_in; i++)
        if (f->in[i] && f->in[i]->number) np_hash_add(&h, np_ptr(f->in[i]), np_itemsize(f->in[i]));
    return np_hash_done(&h);
}

static void describe(const np_frame *f, char *buf, size_t n)
{
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < f->n_in && at + 24 < n; i++) {
        char shape[48];
        if (!f->in[i]) continue;
        np_shape_text(shape, sizeof shape, f->in[i]->ndim, f->in[i]->shape);
        int put = snprintf(buf + at, n - at, "%s%s", at ? " " : "", f->in[i]->number ? "number" : shape);
        if (put > 0) at += (size_t)put;
    }
}

static void see(neap_ctx *c, void *user, const np_frame *f)
{
    np_oplog *log = user;
    if (log->failed || (f->op->tags & NP_INTERNAL)) return;
    np_op_seen *v = np_array_grow(c, log->v, &log->cap, log->n + 1, sizeof *v);
    if (!v) { /* a diagnosis must not turn into a failure of the op */
        np_forgive(c, NULL);
        log->failed = true;
        return;
    }
    log->v = v;
    np_op_seen *s = &v[log->n++];
    memset(s, 0, sizeof *s);
    s->op = f->op->index;
    s->numbers = hash_numbers(c, f);
    if (log->r->where) log->r->where(c, log->r->recompute.user, s->where, sizeof s->where);
    describe(f, s->what, sizeof s->what);
    const np_oplog *a = log->against;
    if (!a || log->differs || a->failed) return;
    if (log->n > a->n || a->v[log->n - 1].op != s->op || a->v[log->n - 1].numbers != s->numbers)
        log->differs = log->n;
}

np_oplog *np_oplog_new(neap_region *r, const np_oplog *against)
{
    np_oplog *log = np_obj_new(r->c, sizeof *log);
    if (!log) return NULL;
    log->r = r;
    log->against = against;
    log->tracer = (np_tracer){see, log};
    return log;
}

void np_oplog_free(neap_ctx *c, np_oplog *log)
{
    if (!log) return;
    np_array_free(c, log->v);
    np_obj_free(c, log, sizeof *log);
}

static size_t put(char *buf, size_t n, size_t at, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static size_t put(char *buf, size_t n, size_t at, const char *fmt, ...)
{
    if (at + 1 >= n) return at;
    va_list ap;
    va_start(ap, fmt);
    int w = vsnprintf(buf + at, n - at, fmt, ap);
    va_end(ap);
    return w > 0 ? at + (size_t)w : at;
}

/* The ops of a run from the differing one backward and forward, or all if they are few; `same` is marked. */
static size_t put_run(char *buf, size_t n, size_t at, const char *name, const np_oplog *log, size_t same)
{
    enum { ALL = 8, BEFORE = 3, AFTER = 4 };
    size_t first = log->n > ALL && same > BEFORE ? same - BEFORE : 0;
    size_t last = log->n > ALL && same + AFTER < log->n ? same + AFTER : log->n;
    at = put(buf, n, at, "\n%s, %zu ops:%s", name, log->n, first ? "\n        ..." : "");
    for (size_t i = first; i < last; i++) {
        const np_op_seen *s = &log->v[i];
        at = put(buf, n, at, "\n  %c %3zu %-14s %-28s %s", i == same ? '>' : ' ', i + 1, np_ops[s->op]->name,
                 s->what, s->where);
    }
    if (last < log->n) return put(buf, n, at, "\n        ...");
    return same >= log->n ? put(buf, n, at, "\n  >     (end)") : at;
}

void np_oplog_diff(const np_oplog *forward, const np_oplog *recompute, char *buf, size_t n)
{
    size_t same = 0;
    while (same < forward->n && same < recompute->n && forward->v[same].op == recompute->v[same].op &&
           forward->v[same].numbers == recompute->v[same].numbers)
        same++;
    buf[0] = 0;
    size_t at = put_run(buf, n, 0, "forward", forward, same);
    put_run(buf, n, at, "recompute", recompute, same);
}
