/* storage.h - the two special kinds of storage, for tensor.c. The ordinary kind is in tensor.h. */
#ifndef NP_STORAGE_H
#define NP_STORAGE_H

#include "tensor.h"

np_storage *np_storage_number(neap_ctx *c); /* 8 uncounted bytes inside the storage */
/* The host's bytes; release(user) is called when the storage dies, not when this fails. */
np_storage *np_storage_wrap(neap_ctx *c, void *data, size_t bytes, void (*release)(void *user), void *user);

#endif
