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

np_storage *np_storage_dry(neap_ctx *c, np_device *d, size_t bytes)
{
    np_storage *s = np_storage_shell(c, d, bytes, NEAP_TEMP);
    if (!s) return NULL;
    s->dry = true;
    s->data = s->inline_data;
    c->n_dry++;
    return s;
}

void *np_fail_dry(neap_ctx *c)
{
    return np_fail(
        c, NEAP_E_SAC_DRY,
        "a value is read in the recompute that the selective checkpoint did not keep, because no gradient "
        "needs it: %s; let its policy answer \"prefer_recompute\" for that op",
        c->dry_note ? c->dry_note : "a saved op");
}

np_storage *np_storage_number(neap_ctx *c)
{
    np_storage *s = np_storage_shell(c, c->devices[0], 8, NEAP_TEMP);
    if (s) s->data = s->inline_data;
    return s;
}

np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user)
{
    np_storage *s = np_storage_shell(c, c->devices[0], bytes, NEAP_USER);
    if (!s) return NULL;
    if (!np_mem_count(&s->dev->mem, bytes, NEAP_USER)) {
        np_storage_unhold(c, s);
        return NULL;
    }
    s->counted = true;
    s->foreign = true;
    s->data = data;
    s->release = release;
    s->user = user;
    return s;
}

/* The host's bytes, or none, on the last reference. */
void np_storage_drop_special(neap_ctx *c, np_storage *s)
{
    void (*release)(void *) = s->foreign ? s->release : NULL;
    void *user = s->user;
    if (s->dry) c->n_dry--;
    if (s->counted) np_mem_uncount(&s->dev->mem, s->bytes, (neap_category)s->category);
    np_storage_unhold(c, s);
    if (release) release(user);
}

void np_storage_free(neap_ctx *c, np_storage *s) { np_storage_drop(c, s); }

void np_storage_set_category(np_storage *s, neap_category cat)
{
    if (s->counted) np_mem_recategorize(&s->dev->mem, s->bytes, (neap_category)s->category, cat);
    s->category = (uint8_t)cat;
}

void np_version_free(neap_ctx *c, np_version *v)
{
    if (v && --v->refs == 0) np_obj_free(c, (char *)v - offsetof(np_storage, cell), sizeof(np_storage));
}
