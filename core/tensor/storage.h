/* storage.h - how storages come and go, for tensor.c and storage.c. What everybody knows of them is in tensor.h.
 * The ordinary kind is in line here: a tiny op makes one and drops one. */
#ifndef NP_STORAGE_H
#define NP_STORAGE_H

#include "tensor.h"

/* A storage without bytes, and its first tensor over `data`: one reference each. dtype and geometry are the
 * caller's. */
static inline void np_storage_begin(np_storage *s, neap_ctx *c, np_device *d, np_bytes_kind kind,
                                    size_t bytes, neap_category cat)
{
    s->refs = 1;
    s->saved = 0;
    s->category = (uint8_t)cat;
    s->kind = (uint8_t)kind;
    s->id = ++c->next_storage;
    s->dev = d;
    s->version.refs = 2;
    s->version.n = 0;
    s->data = s->inline_data;
    s->bytes = bytes;
    s->writes = 0;
    np_tensor_begin(&s->first, c, s);
    s->first.first = true;
}

/* The common case of np_tensor_new: an idle object, few bytes, nothing to look up and nothing to refuse. NULL: not such a
 * case, nothing has happened. dtype and ndim are good ones. */
static NP_INLINE neap_tensor *np_tensor_small(neap_ctx *c, np_device *d, neap_dtype dtype, int ndim,
                                              const int64_t *shape)
{
    np_storage *st = np_obj_peek(c, sizeof *st);
    if (!st || c->ambient.of[NP_AMB_CATEGORY] || d->mem.limit > 0 || !d->backend.host_memory) return NULL;
    neap_tensor *t = &st->first;
    int64_t numel = 1;
    for (ptrdiff_t i = ndim; i-- > 0;) { /* written before the object is taken */
        const int64_t n = shape[i];
        if (n < 1 || n > NP_INLINE_BYTES) return NULL; /* so numel cannot overflow */
        t->shape[i] = n;
        t->stride[i] = numel;
        numel *= n;
    }
    const int64_t bytes = numel * np_sizes[dtype];
    if (bytes > NP_INLINE_BYTES) return NULL;
    np_obj_take(c, st, sizeof *st);
    np_storage_begin(st, c, d, NP_BYTES_INLINE, (size_t)bytes, NEAP_TEMP);
    np_mem_add(&d->mem, (size_t)bytes, NEAP_TEMP);
    t->dtype = (uint8_t)dtype, t->ndim = (uint8_t)ndim;
    t->numel = numel;
    t->data = (char *)st->inline_data;
    return t;
}

/* NULL on failure: a storage made for bytes that are not in the allocator. */
np_storage *np_storage_number(neap_ctx *c); /* 8 uncounted bytes inside the storage */
/* The host's bytes; release(user) is called when the storage dies, not when this fails. */
np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user);

/* One of those that need the object lets go of it: the storage, its first tensor, who watches the version. */
static inline void np_storage_unhold(neap_ctx *c, np_storage *s)
{
    if (--s->version.refs == 0) np_obj_free(c, s, sizeof *s);
}

/* Drops one reference. */
void np_storage_drop_special(neap_ctx *c, np_storage *s);
static inline void np_storage_drop(neap_ctx *c, np_storage *s)
{
    if (--s->refs > 0) return;
    np_mem *m = &s->dev->mem;
    if (s->kind == NP_BYTES_INLINE) np_mem_uncount(m, s->bytes, (neap_category)s->category);
    else if (s->kind == NP_BYTES_BLOCK)
        np_mem_give_used(m, s->data, s->bytes, (neap_category)s->category, s->streams.use);
    else np_storage_drop_special(c, s);
    np_storage_unhold(c, s);
}

#endif
