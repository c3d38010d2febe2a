/* tensor.h - storage, tensor, shapes and views.
 *
 * Ownership: a returned tensor is a new reference, arguments are borrowed (`_take` says otherwise).
 * Counts are plain integers: one context, one thread. A storage holds bytes of one device and a version
 * cell that every view shares; the cell is counted apart, so that watching a version keeps no data alive.
 * A tensor is dims, strides (in elements) and an offset over a storage; its autograd part hangs on `ag`,
 * NULL for the plain case. numel 0 and 0-dim are ordinary.
 * A storage and the tensor it is made for are one object: a tiny op makes and drops one of them. */
#ifndef NP_TENSOR_H
#define NP_TENSOR_H

#include "device.h"

typedef struct np_storage np_storage;

struct neap_node; /* autograd/autograd.h: what this is for */
struct np_hook;
struct np_cycle;
typedef struct np_autograd { /* a tensor's autograd part */
    bool retains_grad;
    bool no_grad_view; /* taken under no_grad: must not be written to while gradients are recorded */
    int32_t out_nr;
    struct neap_node *node; /* non-leaf: strong */
    struct neap_node *acc;  /* leaf: its accumulator, freed with the leaf; refs 0: at rest */
    neap_tensor *grad;
    struct np_hook *hooks;       /* leaf hooks */
    struct np_cycle *cycle;      /* .grad has a graph: the entry in the context's list (cycles.c) */
    neap_tensor *base;           /* views: the tensor it is a view of, strong (dispatch.c says when) */
    struct neap_node *base_node; /* the base's node when the view was taken (kept alive by the view's edge) */
} np_autograd;

enum { NP_REQUIRES_GRAD = 1, NP_HAS_BASE = 2 /* ag->base is not NULL */ };

struct neap_tensor {
    int32_t refs;
    union {
        struct {
            uint8_t dtype, ndim;
            bool contiguous; /* row-major dense; kept right by np_tensor_geometry */
            bool number;     /* a plain number used as an operand */
        };
        uint32_t look; /* the four, to compare at once */
    };
    bool temp;     /* belongs to a gradient formula's frame */
    bool scoped;   /* a C scope holds a reference, or did */
    bool first;    /* lies in the object of the storage it was made with */
    uint8_t graph; /* NP_REQUIRES_GRAD, NP_HAS_BASE: where an op looks at `ag`, which is there then */
    neap_ctx *c;
    np_storage *st;
    char *data; /* the first element: follows from st, offset and dtype */
    int64_t offset, numel;
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    uint64_t origin; /* made inside a checkpointed function: how; 0: outside (origin.h) */
    np_autograd *ag; /* NULL: no graph, no grad, no hooks; else &own (np_ag) */
    np_autograd own;
};

#define NP_INLINE_BYTES 16

typedef enum np_bytes_kind {
    NP_BYTES_INLINE,  /* few bytes of host memory: in the storage itself */
    NP_BYTES_BLOCK,   /* of the device's allocator */
    NP_BYTES_FOREIGN, /* release() owns them; the kinds up to here are in live bytes */
    NP_BYTES_NUMBER,  /* of a number used as an operand: in the storage itself */
    NP_BYTES_DRY      /* none: a value that a selective checkpoint did not keep */
} np_bytes_kind;

typedef struct np_version {
    int32_t refs; /* to the storage's object: the storage's, its first tensor's, and everyone's who watches */
    uint64_t n;   /* writes so far */
} np_version;

/* Who uses the bytes of a device with several streams: tensor/streams.h. */
typedef struct np_stream_tag {
    np_mem_use use;
    uint64_t written : 48, writer : 16; /* the last write: which call, on which stream */
} np_stream_tag;

struct np_storage {
    int32_t refs;
    int32_t saved;    /* slots that hold it: category SAVED while > 0, if it was TEMP */
    uint8_t category; /* neap_category */
    uint8_t kind;     /* np_bytes_kind */
    uint64_t id;      /* ascending in order of creation */
    np_device *dev;
    np_version version; /* outlives the bytes while someone watches */
    void *data;
    size_t bytes; /* requested */
    void (*release)(void *user);
    void *user;
    uint64_t writes; /* in place, inside checkpointed functions: origin.h */
    union {
        _Alignas(16) unsigned char inline_data[NP_INLINE_BYTES]; /* scalars need no block */
        np_stream_tag streams;                                   /* kind BLOCK */
    };
    neap_tensor first; /* the tensor it is made for */
};

/* ---- storages */
void np_storage_free(neap_ctx *c, np_storage *s); /* drops one reference */
np_storage *np_storage_dry(neap_ctx *c, np_device *d,
                           size_t bytes); /* has no bytes: reading it is E-SAC-DRY */
void *np_fail_dry(neap_ctx *c);
void np_storage_set_category(np_storage *s, neap_category cat);
void np_version_free(neap_ctx *c, np_version *v); /* drops one watcher */
static inline void np_bump(neap_tensor *t) { t->st->version.n++; }

/* ---- tensors */
/* What is the same for all: one reference, no graph. dtype, then geometry are the caller's. */
static inline void np_tensor_begin(neap_tensor *t, neap_ctx *c, np_storage *st)
{
    t->refs = 1;
    t->contiguous = true;
    t->number = t->temp = t->scoped = t->first = false;
    t->graph = 0;
    t->c = c;
    t->st = st;
    t->offset = 0;
    t->origin = 0;
    t->ag = NULL;
}
/* Fresh contiguous tensor (uninitialised). NULL with E-DIMS, E-SHAPE (negative size, overflow), E-NOMEM ...
 */
neap_tensor *np_tensor_new(neap_ctx *c, np_device *d, neap_dtype t, int ndim, const int64_t *shape);
neap_tensor *np_tensor_dry(neap_ctx *c, np_device *d, neap_dtype t, int ndim, const int64_t *shape);
/* Over the host's bytes, contiguous; release(user) is called when they are let go, not when this fails. */
neap_tensor *np_tensor_wrap(neap_ctx *c, neap_dtype t, int ndim, const int64_t *shape, void *data,
                            void (*release)(void *user), void *user);
/* A view: same storage, own geometry (strides in elements). Caller guarantees it is inside the storage. */
neap_tensor *np_tensor_view(neap_tensor *base, int ndim, const int64_t *shape, const int64_t *stride,
                            int64_t offset);
neap_tensor *np_tensor_alias(neap_tensor *t); /* same geometry, no graph: "detached alias" */
/* Gives t this geometry over its storage: shape, strides, offset, and what follows from them (numel, contiguous,
 * data). */
void np_tensor_geometry(neap_tensor *t, int ndim, const int64_t *shape, const int64_t *stride,
                        int64_t offset);
/* A contiguous tensor in host memory with t's elements: t itself (new reference) when it is one. */
neap_tensor *np_to_host(neap_ctx *c, neap_tensor *t);
/* Inside neap_scope_begin/end of the running owner the scope takes the reference over and the caller's
 * pointer is borrowed; elsewhere nothing happens. Returns t, or NULL (t dropped) with NEAP_E_NOMEM. NULL
 * gives NULL. */
neap_tensor *np_scope_adopt_slow(neap_ctx *c, neap_tensor *t);
static inline neap_tensor *np_scope_adopt(neap_ctx *c, neap_tensor *t)
{
    return c->ambient.of[NP_AMB_SCOPE] ? np_scope_adopt_slow(c, t) : t;
}
/* neap_number and neap_integer without the C scope: for slots and gradient frames. */
neap_tensor *np_number_new(neap_ctx *c, double v);
neap_tensor *np_integer_new(neap_ctx *c, int64_t v);
/* The end of a tensor: its autograd part goes (autograd/node.c, which then calls np_tensor_free), then the rest. */
void np_autograd_destroy(neap_tensor *t);
void np_tensor_free(neap_tensor *t);
void np_tensor_destroy(neap_tensor *t);

static inline neap_tensor *np_hold_ref(neap_tensor *t)
{
    if (t) t->refs++;
    return t;
}
static inline void np_drop(neap_tensor *t)
{
    if (t && --t->refs == 0) {
        np_tensor_destroy(t);
    }
}
static inline size_t np_itemsize(const neap_tensor *t) { return np_dtype_size((neap_dtype)t->dtype); }
static inline char *np_ptr(const neap_tensor *t) { return t->data; }
static inline bool np_is_dry(const neap_tensor *t) { return t->st->kind == NP_BYTES_DRY; }
#define NP_DATA(T, t) ((T *)np_ptr(t))

/* ---- shapes (shape.c) */
int64_t np_shape_numel(int ndim, const int64_t *shape); /* -1 on overflow */
void np_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride);
bool np_is_contiguous_geometry(int ndim, const int64_t *shape, const int64_t *stride);
/* [2,3] x [4,3] style texts; returns buf. */
char *np_shape_text(char *buf, size_t n, int ndim, const int64_t *shape);
char *np_tensor_text(char *buf, size_t n, const neap_tensor *t); /* "[2,3] float32 cpu" */
/* Broadcasts b into (ndim, shape); false if they do not fit (no error recorded). */
bool np_broadcast_shape(int *ndim, int64_t *shape, int b_ndim, const int64_t *b_shape);
/* dim in [-ndim, ndim) -> [0, ndim); -1 with E-DIMS in the caller's base. 0-dim accepts 0 and -1. */
int np_wrap_dim(neap_ctx *c, int64_t dim, int ndim);
/* index in [-size, size) -> [0, size); -1 with E-INDEX in the caller's base. */
int64_t np_wrap_index(neap_ctx *c, int64_t index, int64_t size, int dim);
/* Two elements may share memory (expanded or self-overlapping strides)? */
bool np_overlaps_itself(const neap_tensor *t);
/* Do the two address ranges meet? `same`: identical geometry over the same storage (safe elementwise). */
bool np_may_overlap(const neap_tensor *a, const neap_tensor *b, bool *same);
/* The dtype of a op b by PyTorch's rules: 0-dim operands and numbers do not widen within a kind. */
neap_dtype np_promote_operands(neap_tensor *const *in, int n);

/* ---- copies (copy.c): below autograd. Convert, broadcast and cross devices. */
bool np_copy_into(neap_ctx *c, neap_tensor *dst,
                  const neap_tensor *src); /* no version bump; src broadcasts */
neap_tensor *np_contiguous_copy(neap_ctx *c, neap_tensor *t);
/* t itself (new reference) when it is contiguous already and of dtype d, else a copy. */
neap_tensor *np_as_contiguous(neap_ctx *c, neap_tensor *t, neap_dtype d);
/* Contiguous bytes of a device to host memory. */
bool np_fetch(neap_ctx *c, np_device *d, void *dst, const void *src, size_t bytes);
bool np_fill_zero(neap_ctx *c, neap_tensor *t);
bool np_fill_value(neap_ctx *c, neap_tensor *t, double v);
bool np_fill_integer(neap_ctx *c, neap_tensor *t, int64_t v);

/* ---- iterator (iter.c): up to 8 operands over one broadcast shape, dims sorted by output stride and merged
 */
#define NP_MAX_OPERANDS 8
typedef struct np_iter {
    int n;    /* operands; 0 is the output */
    int ndim; /* after merging; dim 0 is the innermost */
    int64_t shape[NEAP_MAX_DIMS];
    int64_t stride[NP_MAX_OPERANDS][NEAP_MAX_DIMS]; /* bytes */
    char *base[NP_MAX_OPERANDS];
    int64_t numel;
    bool dense; /* one run, every operand stride = itemsize (or 0 for broadcast numbers) */
} np_iter;
/* Operands are broadcast to operand 0's shape (their shapes must fit). */
void np_iter_init(np_iter *it, neap_tensor *const *t, int n);
/* Calls run(arg, n, ptrs, strides) for inner runs that cover elements [begin, end) of the merged order. */
typedef void (*np_run_fn)(void *arg, int64_t n, char **p, const int64_t *stride);
void np_iter_range(const np_iter *it, int64_t begin, int64_t end, np_run_fn run, void *arg);
/* All elements, in parallel chunks of NP_GRAIN. false: cancelled. */
bool np_iter_run(neap_ctx *c, const np_iter *it, np_run_fn run, void *arg);

/* ---- printing (print.c) */
typedef struct np_print_opts {
    int threshold, edge, precision, width;
} np_print_opts;                                                     /* 1000, 3, 4, 80 */
char *np_print(neap_ctx *c, neap_tensor *t, const np_print_opts *o); /* malloc'd text, NULL on error */

#endif
