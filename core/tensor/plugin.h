/* plugin.h - what the core and a device plug-in (core/cuda, or its emulator) say to each other.
 *
 * A plug-in is C++ in a library of its own, opened at the first use of its device. It knows of the core what stands
 * here and in neap.h, rng.h and half.h, nothing else: a call of an op is an np_call. Kernels may return before the
 * device has done the work: everything that the core asks of one stream of a device happens in the order of asking,
 * and there is one stream, 0, until the core asks for more (tensor/streams.h). The library stays open as long as the
 * process (drivers have threads), a context keeps only the devices. */
#ifndef NP_PLUGIN_H
#define NP_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "neap.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NP_PLUGIN_ABI 6u

/* An attribute of a call: what is no tensor. */
typedef struct np_attr {
    union {
        int64_t i;        /* int, dim, index, base, dtype, device, bool */
        double f;         /* float */
        const int64_t *v; /* dims, shape: n entries */
        neap_generator *gen;
        const char *s; /* str: borrowed for the call */
    };
    int32_t n;   /* of a float made from an integer: what f lacks to that integer */
    int32_t has; /* 0: absent */
} np_attr;

/* An operand or a result. Strides are in elements; `data` is the first element. */
typedef struct np_operand {
    void *data; /* device memory; NULL: absent, a number, or no elements */
    int64_t numel, shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    double number;   /* of a plain number: its value, */
    int64_t integer; /* and as an integer, when its dtype is one */
    uint8_t dtype, ndim;
    bool present, is_number, contiguous;
} np_operand;

struct np_call;
typedef struct np_host { /* the core's functions that kernels may call */
    size_t size;
    void (*fail)(neap_ctx *c, neap_code code, const char *text);
    /* Bytes of the device for as long as the kernel's work takes: given back when the kernel returns, for whatever
     * comes later comes after it. NULL: fail has been called. */
    void *(*scratch)(const struct np_call *k, size_t bytes);
} np_host;

typedef struct np_call {
    const np_host *host;
    neap_ctx *ctx;
    void *device;   /* what the plug-in's open returned */
    const char *op; /* the name of the entry; in-place forms come as their op, with out[0] over in[0] */
    const np_operand *in, *out;
    int n_in, n_out;
    const np_attr *attr; /* those of the op's schema */
    np_rng_range rng;    /* NP_RANDOM ops: the reserved range */
    int compute;         /* neap_dtype to compute in, where infer says */
    void *taken;         /* the host's: what scratch has given */
} np_call;

typedef int (*np_device_kernel)(const np_call *k); /* 0; -1: fail was called; 1: nothing done, for the CPU */

typedef struct np_plugin_row { /* the last has op NULL */
    const char *op;
    np_device_kernel kernel;
} np_plugin_row;

enum { NP_STREAMS = 16 /* of a device of a context, at most */ };

/* ---- sweeps over a list of tensors: optimizer steps, norms, clipping (ops/optim.c has the rules) */

enum { NP_STEP_ARRAYS = 5, NP_STEP_GRAIN = 4096 /* elements of a device's chunk */ };

typedef enum np_step_kind {
    NP_STEP_ADAMW,
    NP_STEP_SGD,
    NP_STEP_RMSPROP,
    NP_STEP_ADAGRAD,
    NP_STEP_NORM, /* partial: of each chunk the sum of (k[0] x)^2 */
    NP_STEP_MAX,  /* partial: of each chunk the largest |x|, NaN if there is one */
    NP_STEP_SCALE,
    NP_STEP_CLAMP
} np_step_kind;

/* One parameter: its arrays (parameter, gradient, state ...), contiguous, all of numel > 0 elements. */
typedef struct np_step_entry {
    char *a[NP_STEP_ARRAYS];
    neap_dtype t[NP_STEP_ARRAYS];
    int64_t numel, first_chunk, chunks;
    neap_tensor *orig[NP_STEP_ARRAYS],
        *used[NP_STEP_ARRAYS]; /* the core's; used: orig or a contiguous copy of it */
} np_step_entry;

typedef struct np_step {
    np_step_kind kind;
    int n, n_arrays, writes; /* writes: bit k: array k is written */
    int64_t chunks;
    double k[8]; /* constants of the rule */
    int flags;   /* SGD: 1 nesterov, 2 first, 4 momentum; AdamW: 1 amsgrad; RMSprop: 1 centered, 4 momentum */
    double *partial; /* NORM, MAX: one number a chunk; on the device, for a device's step */
    np_step_entry *e;
} np_step;

typedef struct np_device_facts {
    char name[256];
    int major, minor; /* compute capability */
    int processors;   /* multiprocessors */
    int64_t memory, memory_free;
    int driver, runtime; /* 13000 is 13.0 */
    char products
        [80]; /* what multiplies matrices: a library, or why own kernels; "none yet" before the first */
    int64_t product_plans, product_hits; /* how often the library chose a way, and how often one came again */
} np_device_facts;

/* Every function that fails says why in `why` (n bytes), or returns false after np_plugin.why has the text. */
typedef struct np_plugin {
    uint32_t abi;                                  /* NP_PLUGIN_ABI */
    size_t size;                                   /* sizeof(np_plugin) */
    const char *name;                              /* "cuda", "cudaemu": its devices are "cuda:0" ... */
    int (*count)(char *why, size_t n);             /* of devices; 0: none, and why says what is missing */
    void *(*open)(int index, char *why, size_t n); /* a device for one context; NULL: why.
                                                      What it needs it may take at its first use */
    void (*close)(void *device);
    void *(*alloc)(void *device, size_t bytes); /* at least 64-byte aligned; NULL: see why */
    void (*free)(void *device, void *p, size_t bytes);
    /* Bytes, contiguous; after earlier work of the device. The host's bytes are read or there when it returns. */
    bool (*copy)(void *device, void *dst, const void *src, size_t bytes, bool to_device, bool from_device);
    /* Elements within the device: shapes are equal, strides and dtypes are not. NULL: through the host's memory. */
    bool (*move)(void *device, const np_operand *to, const np_operand *from);
    bool (*synchronize)(void *device); /* waits until all is done */
    bool (*facts)(void *device, np_device_facts *out);
    /* Of the last failure: the call, its error's name, file and line; empty where there was just no memory left. */
    const char *(*why)(void *device);
    const np_plugin_row *kernels;
    bool (*step)(void *device, const np_step *s); /* all entries are on the device */
    bool (*fill)(void *device, const np_operand *to,
                 const void *item); /* item: one element of its dtype, of the host */
    /* Streams: what is asked of one happens in that order, what is asked of two does in any. */
    int (*stream_new)(void *device);              /* its number, of 1 to NP_STREAMS - 1; -1: why */
    bool (*stream_use)(void *device, int stream); /* for all that is asked from now on, but copy_later */
    bool (*stream_wait)(void *device, int stream,
                        int other);                  /* stream goes on after what other was asked so far */
    bool (*stream_done)(void *device, int stream);   /* has it done all that it was asked? */
    bool (*stream_finish)(void *device, int stream); /* the host waits until it has */
    /* Memory of the host that copies do not stage, and copies that return before they are done. */
    void *(*host_alloc)(void *device, size_t bytes); /* at least 64-byte aligned; NULL: see why */
    void (*host_free)(void *device, void *p, size_t bytes);
    bool (*copy_later)(void *device, int stream, void *dst, const void *src, size_t bytes, bool to_device);
    /* Moments of the stream in use, to wait for and to measure between. */
    void *(*event_new)(void *device); /* NULL: why */
    void (*event_free)(void *device, void *event);
    bool (*event_record)(void *device, void *event);
    bool (*event_done)(void *device, void *event);                                /* or never recorded */
    bool (*event_wait)(void *device, void *event);                                /* the host waits */
    bool (*event_time)(void *device, void *from, void *to, double *milliseconds); /* both are done */
    bool exact_memory; /* an emulator's: alloc and free see every tensor, so that each has its own bounds */
} np_plugin;

/* The one symbol that a plug-in exports. NULL: it does not know this version. */
#define NP_PLUGIN_SYMBOL "neap_plugin"
typedef const np_plugin *(*np_plugin_get)(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
