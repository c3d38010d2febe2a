/* storage.c - bytes on one device, shared by views, and the version cell that counts writes to them.
 *
 * A storage counts its requested bytes in its device's accounting for as long as it lives, under one category
 * that may change. Up to 16 bytes lie inside the storage itself (host devices), wrapped host memory lies
 * elsewhere; both are counted alike. Plain numbers used as operands are the one uncounted kind. The version
 * cell lies in the storage's own object, which outlives the bytes while someone watches the cell: watching keeps
 * no data alive. The object holds the first tensor, too: the one that every storage is made for.
 * Knows nothing of shapes or dtypes. */
#include "tensor/tensor.h"
#include "tensor/storage.h"

static np_storage *special(neap_ctx *c, np_device *d, np_bytes_kind kind, size_t bytes, neap_category cat)
{
    np_storage *s = np_obj_raw(c, sizeof *s);
    if (s) np_storage_begin(s, c, d, kind, bytes, cat);
    return s;
}

np_storage *np_storage_dry(neap_ctx *c, np_device *d, size_t bytes)
{
    np_storage *s = special(c, d, NP_BYTES_DRY, bytes, NEAP_TEMP);
    if (s) c->n_dry++;
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
    return special(c, c->devices[0], NP_BYTES_NUMBER, 8, NEAP_TEMP);
}

np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user)
{
    np_storage *s = special(c, c->devices[0], NP_BYTES_FOREIGN, bytes, NEAP_USER);
    if (!s) return NULL;
    if (!np_mem_count(&s->dev->mem, bytes, NEAP_USER)) {
        np_obj_free(c, s, sizeof *s);
        return NULL;
    }
    s->data = data;
    s->release = release;
    s->user = user;
    return s;
}

/* The last reference to the host's bytes, to a number or to none at all. */
void np_storage_drop_special(neap_ctx *c, np_storage *s)
{
    if (s->kind == NP_BYTES_DRY) c->n_dry--;
    if (s->kind != NP_BYTES_FOREIGN) return;
    np_mem_uncount(&s->dev->mem, s->bytes, (neap_category)s->category);
    if (s->release) s->release(s->user);
}

void np_storage_free(neap_ctx *c, np_storage *s) { np_storage_drop(c, s); }

void np_storage_set_category(np_storage *s, neap_category cat)
{
    if (s->kind <= NP_BYTES_FOREIGN)
        np_mem_recategorize(&s->dev->mem, s->bytes, (neap_category)s->category, cat);
    s->category = (uint8_t)cat;
}

void np_version_free(neap_ctx *c, np_version *v)
{
    if (v && --v->refs == 0) np_obj_free(c, (char *)v - offsetof(np_storage, version), sizeof(np_storage));
}
