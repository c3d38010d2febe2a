/* storage.h - how storages come and go, for tensor.c and storage.c. What everybody knows of them is in tensor.h.
 * The ordinary kind is in line here: a tiny op makes one and drops one. */
#ifndef NP_STORAGE_H
#define NP_STORAGE_H

#include "tensor.h"

/* A storage without bytes: one reference, its own version cell. */
static inline np_storage *np_storage_shell(neap_ctx *c, np_device *d, size_t bytes, neap_category cat)
{
    np_storage *s = np_obj_raw(c, sizeof *s);
    if (!s) return NULL;
    s->refs = 1;
    s->category = (uint8_t)cat;
    s->counted = s->foreign = s->dry = false;
    s->saved = 0;
    s->id = ++c->next_storage;
    s->dev = d;
    s->version = &s->cell;
    s->cell.refs = 1;
    s->cell.n = 0;
    s->bytes = bytes;
    return s;
}

/* The storage itself lets go of its object, which is kept for those who watch the version. */
static inline void np_storage_unhold(neap_ctx *c, np_storage *s)
{
    if (--s->cell.refs == 0) np_obj_free(c, s, sizeof *s);
}

/* Category from ambient. Few bytes of host memory lie inside the storage. */
static inline np_storage *np_storage_new(neap_ctx *c, np_device *d, size_t bytes)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_CATEGORY);
    neap_category cat = e ? (neap_category)e->value : NEAP_TEMP;
    np_storage *s = np_storage_shell(c, d, bytes, cat);
    if (!s) return NULL;
    if (bytes <= sizeof s->inline_data && d->backend.host_memory)
        s->data = np_mem_count(&d->mem, bytes, cat) ? s->inline_data : NULL;
    else s->data = np_mem_take(&d->mem, bytes, cat);
    if (!s->data) {
        np_storage_unhold(c, s);
        return NULL;
    }
    s->counted = true;
    return s;
}

np_storage *np_storage_number(neap_ctx *c); /* 8 uncounted bytes inside the storage */
/* The host's bytes; release(user) is called when the storage dies, not when this fails. */
np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user);

/* Drops one reference. */
void np_storage_drop_special(neap_ctx *c, np_storage *s);
static inline void np_storage_drop(neap_ctx *c, np_storage *s)
{
    if (--s->refs > 0) return;
    if (s->foreign | s->dry) {
        np_storage_drop_special(c, s);
        return;
    }
    if (s->data != s->inline_data) np_mem_give(&s->dev->mem, s->data, s->bytes, (neap_category)s->category);
    else if (s->counted) np_mem_uncount(&s->dev->mem, s->bytes, (neap_category)s->category);
    np_storage_unhold(c, s);
}

#endif
