/* ext.c - the doors of ext.h: each forwards to the one owner of the fact. Nothing is decided here. */
#include <stdio.h>
#include "ext.h"

#include "base/hash.h"
#include "checkpoint/selective.h"
#include "tensor/origin.h"
#include "tensor/streams.h"

extern const int np_n_ops_total;

int neap_x_op_count(void) { return np_n_ops_total; }
const np_op *neap_x_op(int i) { return i >= 0 && i < np_n_ops_total ? np_ops[i] : NULL; }
const np_op *neap_x_op_find(const char *name) { return np_op_find(name); }
const char *neap_x_op_doc(int i)
{
    return i >= 0 && i < np_n_ops_total && np_op_docs[i] ? np_op_docs[i] : "";
}

const np_schema *neap_x_op_schema(neap_ctx *c, const np_op *op)
{
    const np_op_facts *facts = np_facts(c, op);
    return facts ? &facts->schema : NULL;
}

bool neap_x_dispatch(np_frame *f) { return np_dispatch(f); }
bool neap_x_dispatch_below(np_frame *f, uint64_t id) { return np_dispatch_below(f, id); }

uint64_t neap_x_push(neap_ctx *c, np_ambient_kind kind, int64_t value, void *payload, const char *where,
                     const char *note)
{
    return np_ambient_push(c, kind, value, payload, where, note);
}

bool neap_x_pop(neap_ctx *c, uint64_t id) { return np_ambient_pop(c, id); }
np_ambient_entry *neap_x_find(neap_ctx *c, uint64_t id) { return np_ambient_find(c, id); }
np_ambient_entry *neap_x_effective(neap_ctx *c, np_ambient_kind kind) { return np_ambient_get(c, kind); }

np_ambient_entry *neap_x_below(neap_ctx *c, np_ambient_kind kind, uint64_t id)
{
    return np_ambient_below(c, kind, id);
}

const np_ambient_entry *neap_x_mode_below(neap_ctx *c, uint64_t below) { return np_mode_below(c, below); }

void neap_x_run(neap_ctx *c, const void *owner) { np_ambient_run(c, owner); }
void neap_x_touch(neap_ctx *c) { np_ambient_touch(c); }

/* Ends by neap_end, so that payloads (hook pairs) are released as at any other end. */
void neap_x_pop_owner(neap_ctx *c, const void *owner)
{
    for (size_t i = c->ambient.n; i > 0; i--) {
        if (i > c->ambient.n || c->ambient.v[i - 1].owner != owner) continue;
        neap_end(c, c->ambient.v[i - 1].id);
    }
}

void neap_x_set_asleep(neap_ctx *c, bool (*asleep)(void *user, const void *owner), void *user)
{
    c->ambient.asleep = asleep;
    c->ambient.asleep_user = user;
    np_ambient_touch(c);
}

void neap_x_note(neap_ctx *c, uint64_t id, const char *where, const char *note)
{
    np_ambient_entry *e = np_ambient_find(c, id);
    if (!e) return;
    if (where) e->where = where;
    if (note) snprintf(e->note, sizeof e->note, "%s", note);
}

neap_dtype neap_x_default_dtype(neap_ctx *c)
{
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_DTYPE);
    return e ? (neap_dtype)e->value : NEAP_FLOAT32;
}

int neap_x_default_device(neap_ctx *c) { return np_default_device(c); }

int neap_x_plugin_devices(neap_ctx *c, const char *name, char *why, size_t n)
{
    return np_plugin_devices(c, name, why, n);
}

bool neap_x_device_facts(neap_ctx *c, int device, np_device_facts *out)
{
    const np_device *d = np_device_at(c, device);
    if (!d) return false;
    const np_plugin *p = d->backend.plugin;
    if (!p) return np_fail(c, NEAP_E_DEVICE, "%s is no device of a plug-in: nothing is known of it", d->name);
    memset(out, 0, sizeof *out);
    return p->facts(d->backend.user, out) || np_fail(c, NEAP_E_DEVICE, "%s", p->why(d->backend.user));
}

bool neap_x_synchronize(neap_ctx *c, int device)
{
    const np_device *d = np_device_at(c, device);
    const np_plugin *p = d ? d->backend.plugin : NULL;
    return d && (!p || p->synchronize(d->backend.user) ||
                 np_fail(c, NEAP_E_DEVICE, "%s", p->why(d->backend.user)));
}

int neap_x_stream_new(neap_ctx *c, int device) { return np_stream_new(c, c->devices[device]); }
void neap_x_stream_free(neap_ctx *c, int device, int stream) { np_stream_free(c->devices[device], stream); }
uint64_t neap_x_stream_begin(neap_ctx *c, int device, int stream)
{
    return np_ambient_push(c, NP_AMB_STREAM, NP_STREAM_VALUE(device, stream), NULL, "cuda.Stream", NULL);
}
bool neap_x_stream_finish(neap_ctx *c, int device, int stream)
{
    return np_stream_finish(c, c->devices[device], stream);
}
bool neap_x_stream_done(neap_ctx *c, int device, int stream)
{
    return np_stream_done(c->devices[device], stream);
}
bool neap_x_stream_wait(neap_ctx *c, int device, int stream, int other)
{
    return np_stream_wait(c, c->devices[device], stream, other);
}
void *neap_x_event_new(neap_ctx *c, int device) { return np_event_new(c, c->devices[device]); }
void neap_x_event_free(neap_ctx *c, int device, void *event) { np_event_free(c->devices[device], event); }
bool neap_x_event_record(neap_ctx *c, int device, void *event)
{
    return np_event_record(c, c->devices[device], event);
}
bool neap_x_event_done(neap_ctx *c, int device, void *event)
{
    return np_event_done(c->devices[device], event);
}
bool neap_x_event_wait(neap_ctx *c, int device, void *event)
{
    return np_event_wait(c, c->devices[device], event);
}
bool neap_x_event_time(neap_ctx *c, int device, void *from, void *to, double *milliseconds)
{
    return np_event_time(c, c->devices[device], from, to, milliseconds);
}

np_error neap_x_error_take(neap_ctx *c) { return np_error_take(c); }
void neap_x_error_restore(neap_ctx *c, np_error e) { np_error_restore(c, e); }

neap_tensor *neap_x_alias(neap_tensor *t) { return np_tensor_alias(t); }

void neap_x_filled(neap_tensor *t) { np_origin_of_bytes(t); }

bool neap_x_renew_view(neap_ctx *c, neap_tensor *t) { return np_renew_view(c, t); }

bool neap_x_set_data(neap_ctx *c, neap_tensor *t, neap_tensor *src)
{
    if (np_pending(c)) return false;
    if (t->ag && t->ag->node)
        return np_fail(c, NEAP_E_STATE,
                       "set_data: the tensor is a result; only leaves can be given other data");
    if (np_requires_grad(t) && !np_is_float((neap_dtype)src->dtype))
        return np_fail(c, NEAP_E_DTYPE, "set_data: the tensor requires grad and cannot become %s",
                       np_dtype_name((neap_dtype)src->dtype));
    neap_category cat = (neap_category)t->st->category;
    np_storage *old = t->st;
    src->st->refs++;
    t->st = src->st;
    t->dtype = src->dtype;
    t->origin = src->origin;
    np_tensor_geometry(t, src->ndim, src->shape, src->stride, src->offset);
    np_storage_free(c, old);
    np_storage_set_category(t->st, cat);
    if (t->ag) np_accumulator_renew(t);
    if (t->ag && t->ag->grad) neap_set_grad(c, t, NULL);
    return true;
}

void neap_x_collect_cycles(neap_ctx *c) { np_cycles_collect(c); }

bool neap_x_dtype_parse(const char *name, neap_dtype *out) { return np_dtype_parse(name, out); }
double neap_x_load_double(neap_dtype t, const void *p) { return np_load_double(t, p); }
int64_t neap_x_load_int(neap_dtype t, const void *p) { return np_load_int(t, p); }
void neap_x_store_double(neap_dtype t, void *p, double v) { np_store_double(t, p, v); }
void neap_x_store_int(neap_dtype t, void *p, int64_t v) { np_store_int(t, p, v); }
char *neap_x_print(neap_ctx *c, neap_tensor *t, const np_print_opts *o) { return np_print(c, t, o); }

bool neap_x_selective_held(const neap_selective *s) { return s->refs > 1; }

uint64_t neap_x_hash_bytes(const void *p, size_t n)
{
    np_hash h;
    np_hash_init(&h);
    np_hash_add(&h, p, n);
    return np_hash_done(&h);
}
