/* device.h - a device of a context and the backend behind it. The CPU is device 0; a plug-in (CUDA, its
 * emulator, the fake device of the tests) hands over one neap_backend by neap_register_backend. */
#ifndef NP_DEVICE_H
#define NP_DEVICE_H

#include "base/ctx.h"
#include "tensor/plugin.h"

struct np_frame;
typedef bool (*np_kernel)(struct np_frame *f);

typedef struct np_kernel_row { /* plug-ins: ends with name NULL */
    const char *name;
    np_kernel kernel;
} np_kernel_row;

struct neap_backend {
    size_t size;      /* sizeof(neap_backend) */
    const char *name; /* "cuda:0" */
    np_raw_mem mem;
    bool host_memory; /* the CPU may read its bytes (the CPU, the fake device) */
    /* Contiguous byte copies; at least one side is this device. NULL: memcpy. */
    bool (*copy)(void *user, void *dst, const void *src, size_t bytes, bool to_device, bool from_device);
    const np_kernel_row *kernels;
    void *user;
    const np_plugin *plugin; /* or NULL: what follows from it is above already, but for its kernels */
};

typedef struct np_device {
    int index;
    char name[16];
    neap_backend backend;
    np_mem mem;
    np_kernel *kern;          /* by op index; NULL entries: no kernel */
    np_device_kernel *remote; /* of a plug-in, by op index; NULL entries: the CPU's does it (ops/remote.c) */
    neap_generator *generator;
    struct np_streams *streams; /* NULL: it has one (streams.h) */
} np_device;

typedef struct np_streams np_streams;

NEAP_API int neap_register_backend(neap_ctx *c, const neap_backend *b); /* its device index, or -1 */

/* plugin.c: the devices of the plug-in of this name ("cuda", "cudaemu") join the context, at the first call; how many
 * they are. 0: none, and `why` (n bytes, may be NULL) has the reason; no error is recorded. */
int np_plugin_devices(neap_ctx *c, const char *name, char *why, size_t n);

np_device *np_device_at(neap_ctx *c, int index); /* NULL with E-DEVICE */
int np_default_device(neap_ctx *c); /* of what says no device: neap.device, else NEAP_DEVICE, else the CPU */
void np_operand_of(np_operand *v, const neap_tensor *t); /* t may be NULL */
bool np_devices_init(neap_ctx *c);                       /* device 0 */
void np_devices_close(neap_ctx *c);

/* What this layer calls and does not own (ops/registry.c): the index of an op, -1 if there is none. */
int np_op_index(const char *name);
/* The rest of a table of kernels: what in-place forms have from their op, ops that one kernel serves everywhere, and
 * how a plug-in's kernels are called. */
void np_kernels_complete(np_device *d, const np_device *cpu);

#endif
