/* ext.h - what a language binding needs of the core beyond neap.h: the registry with its parsed schemas, the
 * generic call of any op, the list of ambient state, and a few facts about tensors. Exported from libneap, but
 * not part of the public API: it changes with the core, and only the bindings built with it use it. */
#ifndef NP_EXT_H
#define NP_EXT_H

#include "autograd/watch.h"

/* ---- registry */
NEAP_API int neap_x_op_count(void);
NEAP_API const np_op *neap_x_op(int i);                 /* in registry order */
NEAP_API const np_op *neap_x_op_find(const char *name); /* NULL: no such op */
NEAP_API const char *neap_x_op_doc(int i);
NEAP_API const np_schema *neap_x_op_schema(neap_ctx *c, const np_op *op); /* NULL: no memory */
NEAP_API bool neap_x_dispatch(np_frame *f);
NEAP_API bool neap_x_dispatch_below(np_frame *f, uint64_t id);

/* ---- ambient state. An owner is opaque: the bindings use the coroutine. */
NEAP_API uint64_t neap_x_push(neap_ctx *c, np_ambient_kind kind, int64_t value, void *payload,
                              const char *where, const char *note);
NEAP_API bool neap_x_pop(neap_ctx *c, uint64_t id);
NEAP_API np_ambient_entry *neap_x_find(neap_ctx *c, uint64_t id);
NEAP_API np_ambient_entry *neap_x_effective(neap_ctx *c, np_ambient_kind kind);
NEAP_API np_ambient_entry *neap_x_below(neap_ctx *c, np_ambient_kind kind, uint64_t id);
/* The op mode that sees calls which come from below id `below` (UINT64_MAX: all); NULL: none. */
NEAP_API const np_ambient_entry *neap_x_mode_below(neap_ctx *c, uint64_t below);
NEAP_API void neap_x_run(neap_ctx *c, const void *owner);
NEAP_API void neap_x_touch(neap_ctx *c);
NEAP_API void neap_x_pop_owner(neap_ctx *c, const void *owner); /* all entries of an owner that is gone */
NEAP_API void neap_x_set_asleep(neap_ctx *c, bool (*asleep)(void *user, const void *owner), void *user);
/* Names the line that made an entry, for messages. */
NEAP_API void neap_x_note(neap_ctx *c, uint64_t id, const char *where, const char *note);
NEAP_API neap_dtype neap_x_default_dtype(neap_ctx *c); /* of float factories */
NEAP_API int neap_x_default_device(neap_ctx *c);

/* ---- devices of plug-ins: tensor/plugin.h. False with an error: not a device of a plug-in, or it says why. */
NEAP_API int neap_x_plugin_devices(neap_ctx *c, const char *name, char *why, size_t n);
NEAP_API bool neap_x_device_facts(neap_ctx *c, int device, np_device_facts *out);
NEAP_API bool neap_x_synchronize(neap_ctx *c, int device); /* nothing to wait for on the CPU */
/* Streams and events: tensor/streams.h, with the device's index. */
NEAP_API int neap_x_stream_new(neap_ctx *c, int device);
NEAP_API void neap_x_stream_free(neap_ctx *c, int device, int stream);
NEAP_API uint64_t neap_x_stream_begin(neap_ctx *c, int device, int stream); /* end: neap_end */
NEAP_API bool neap_x_stream_finish(neap_ctx *c, int device, int stream);
NEAP_API bool neap_x_stream_done(neap_ctx *c, int device, int stream);
NEAP_API bool neap_x_stream_wait(neap_ctx *c, int device, int stream, int other);
NEAP_API void *neap_x_event_new(neap_ctx *c, int device);
NEAP_API void neap_x_event_free(neap_ctx *c, int device, void *event);
NEAP_API bool neap_x_event_record(neap_ctx *c, int device, void *event);
NEAP_API bool neap_x_event_done(neap_ctx *c, int device, void *event);
NEAP_API bool neap_x_event_wait(neap_ctx *c, int device, void *event);
NEAP_API bool neap_x_event_time(neap_ctx *c, int device, void *from, void *to, double *milliseconds);

/* ---- errors */
NEAP_API np_error neap_x_error_take(neap_ctx *c);
NEAP_API void neap_x_error_restore(neap_ctx *c, np_error e);

/* ---- tensors */
NEAP_API neap_tensor *neap_x_alias(neap_tensor *t); /* same storage and geometry, no graph */
NEAP_API void neap_x_filled(neap_tensor *t);        /* its bytes were just written by the host */
/* t takes over the storage and geometry of src (an nn.Module that moves keeps its parameters' identity);
 * its gradient is dropped. False with an error pending. */
NEAP_API bool neap_x_set_data(neap_ctx *c, neap_tensor *t, neap_tensor *src);
/* After a write into t's memory through another view: a view gets its place in the graph anew. False with an error
 * pending. */
NEAP_API bool neap_x_renew_view(neap_ctx *c, neap_tensor *t);
NEAP_API void neap_x_collect_cycles(neap_ctx *c);
NEAP_API bool neap_x_dtype_parse(const char *name, neap_dtype *out);
NEAP_API double neap_x_load_double(neap_dtype t, const void *p);
NEAP_API int64_t neap_x_load_int(neap_dtype t, const void *p);
NEAP_API void neap_x_store_double(neap_dtype t, void *p, double v);
NEAP_API void neap_x_store_int(neap_dtype t, void *p, int64_t v);
NEAP_API char *neap_x_print(neap_ctx *c, neap_tensor *t, const np_print_opts *o); /* free: neap_free_text */
NEAP_API bool neap_x_selective_held(const neap_selective *s); /* by anyone else than the caller */
NEAP_API uint64_t neap_x_hash_bytes(const void *p, size_t n);

#endif
