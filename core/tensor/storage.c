/* storage.c - bytes on one device, shared by views, and the version cell that counts writes to them.
 *
 * A storage counts its requested bytes in its device's accounting for as long as it lives, under one category
 * that may change. Up to 16 bytes lie inside the storage itself (host devices), wrapped host memory lies
 * elsewhere; both are counted alike. Plain numbers used as operands are the one uncounted kind. The version
 * cell lies in the storage's own object, which outlives the bytes while someone watches the cell: watching keeps
 * no data alive.
 * Knows nothing of shapes or dtypes. */
#include "tensor/tensor.h"
#include "tensor/storage.h"

enum { INLINE_BYTES = 16 };

static neap_category ambient_category(neap_ctx *c)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_CATEGORY);
    return e ? (neap_category)e->value : NEAP_TEMP;
}

/* A storage without bytes: one reference, its own version cell. */
static np_storage *storage_shell(neap_ctx *c, np_device *d, size_t bytes, neap_category cat)
{
    np_storage *s = np_obj_new(c, sizeof *s);
    if (!s) return NULL;
    s->version = &s->cell;
    s->cell.refs = 1;
    s->refs = 1;
    s->id = ++c->next_storage;
    s->dev = d;
    s->bytes = bytes;
    s->category = (uint8_t)cat;
    return s;
}

np_storage *np_storage_new(neap_ctx *c, np_device *d, size_t bytes)
{
    np_storage *s = storage_shell(c, d, bytes, ambient_category(c));
    if (!s) return NULL;
    neap_category cat = (neap_category)s->category;
    if (bytes <= INLINE_BYTES && d->backend.host_memory)
        s->data = np_mem_count(&d->mem, bytes, cat) ? s->inline_data : NULL;
    else s->data = np_mem_take(&d->mem, bytes, cat);
    if (!s->data) {
        np_version_free(c, s->version);
        return NULL;
    }
    s->counted = true;
    return s;
}

np_storage *np_storage_dry(neap_ctx *c, np_device *d, size_t bytes)
{
    np_storage *s = storage_shell(c, d, bytes, NEAP_TEMP);
    if (!s) return NULL;
    s->dry = true;
    s->data = s->inline_data;
    c->n_dry++;
    return s;
}

void *np_fail_dry(neap_ctx *c)
{
    return np_fail(c, NEAP_E_SAC_DRY,
                   "a value is read in the recompute that the selective checkpoint did not keep, because no gradient "
                   "needs it: %s; let its policy answer \"prefer_recompute\" for that op",
                   c->dry_note ? c->dry_note : "a saved op");
}

np_storage *np_storage_number(neap_ctx *c)
{
    np_storage *s = storage_shell(c, c->devices[0], 8, NEAP_TEMP);
    if (s) s->data = s->inline_data;
    return s;
}

np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user)
{
    np_storage *s = storage_shell(c, c->devices[0], bytes, NEAP_USER);
    if (!s) return NULL;
    if (!np_mem_count(&s->dev->mem, bytes, NEAP_USER)) {
        np_version_free(c, s->version);
        return NULL;
    }
    s->counted = true;
    s->foreign = true;
    s->data = data;
    s->release = release;
    s->user = user;
    return s;
}

void np_storage_free(neap_ctx *c, np_storage *s)
{
    if (!s || --s->refs > 0) return;
    neap_category cat = (neap_category)s->category;
    if (s->dry) c->n_dry--;
    if (s->foreign || s->data == s->inline_data) {
        if (s->counted) np_mem_uncount(&s->dev->mem, s->bytes, cat);
    } else {
        np_mem_give(&s->dev->mem, s->data, s->bytes, cat);
    }
    void (*release)(void *) = s->release;
    void *user = s->user;
    np_version_free(c, s->version);
    if (release) release(user);
}

void np_storage_set_category(np_storage *s, neap_category cat)
{
    if (s->counted) np_mem_recategorize(&s->dev->mem, s->bytes, (neap_category)s->category, cat);
    s->category = (uint8_t)cat;
}

void np_version_free(neap_ctx *c, np_version *v)
{
    if (v && --v->refs == 0) np_obj_free(c, (char *)v - offsetof(np_storage, cell), sizeof(np_storage));
}
