/* neap.h - the public C API of Neap: tensors, autograd, activation checkpointing. No Lua needed.
 *
 * Ownership: a function that returns a tensor returns a new reference, dropped by neap_free; arguments are
 * borrowed; exceptions carry `_take` or `_borrow` in the name. Inside neap_scope_begin/end results belong to
 * the scope, so expressions may nest; neap_keep takes one out.
 * Errors: a function that fails returns NULL, 0 or a code, and the first error stays in the context until
 * neap_clear_error; while one is pending every op returns NULL. Nothing aborts, exits, prints or longjmps.
 * Threads: a context is used by one thread at a time; contexts share nothing.
 * Indices and dimensions are 0-based in C; negative dimensions count from the end. */
#ifndef NEAP_H
#define NEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NEAP_API __attribute__((visibility("default")))
#else
#define NEAP_API
#endif

#define NEAP_API_VERSION 1
#define NEAP_VERSION "0.1.0"
#define NEAP_MAX_DIMS 8

/* ---- types ------------------------------------------------------------------------------------------ */

typedef struct neap_ctx neap_ctx;
typedef struct neap_tensor neap_tensor;
typedef struct neap_node neap_node;
typedef struct neap_generator neap_generator;
typedef struct neap_region neap_region;

/* Error codes: X(enum suffix, text, meaning). The docs and Lua's neap.error_code use the text. */
/* clang-format off */
#define NEAP_CODE_MAP(X) \
    X(OK, "OK", "no error") \
    X(ARG, "E-ARG", "an argument has the wrong type or value, or is missing") \
    X(SHAPE, "E-SHAPE", "shapes do not fit together") \
    X(DTYPE, "E-DTYPE", "the dtype is not allowed here") \
    X(DEVICE, "E-DEVICE", "tensors are on different devices, or the device does not exist") \
    X(DIMS, "E-DIMS", "too many dimensions (8 at most), or a dimension that does not exist") \
    X(INDEX, "E-INDEX", "a position is out of range") \
    X(LABEL, "E-LABEL", "a class label or token id is out of range") \
    X(NOMEM, "E-NOMEM", "the system has no memory left") \
    X(LIMIT, "E-LIMIT", "the memory limit would be passed") \
    X(UNKNOWN_OPTION, "E-UNKNOWN-OPTION", "an option name is not known") \
    X(NOKERNEL, "E-NOKERNEL", "the op has no kernel on this device") \
    X(VIEW, "E-VIEW", "the memory layout does not allow this view") \
    X(OVERLAP, "E-OVERLAP", "writing to memory that overlaps itself or an input") \
    X(NOGRAD, "E-NOGRAD", "there is no graph to differentiate") \
    X(UNUSED, "E-UNUSED", "an input of grad did not take part") \
    X(LEAF_INPLACE, "E-LEAF-INPLACE", "a leaf that requires grad is changed in place") \
    X(FREED, "E-FREED", "a saved value was released by an earlier backward") \
    X(INPLACE, "E-INPLACE", "a value needed for backward was changed in place") \
    X(DETACHED_INPLACE, "E-DETACHED-INPLACE", "a saved input was detached in place") \
    X(GRADIENT, "E-GRADIENT", "a custom backward returned the wrong gradients") \
    X(ANOMALY, "E-ANOMALY", "a gradient became NaN while detect_anomaly was on") \
    X(GRADCHECK, "E-GRADCHECK", "analytic and numeric gradients differ") \
    X(HOOKS_DISABLED, "E-HOOKS-DISABLED", "saved-tensors hooks are disabled here") \
    X(PACK_INPLACE, "E-PACK-INPLACE", "a pack hook changed its input") \
    X(UNPACK_TYPE, "E-UNPACK-TYPE", "an unpack hook returned no tensor") \
    X(UNPACK_TWICE, "E-UNPACK-TWICE", "a recomputed value was fetched twice in one pass") \
    X(COUNT, "E-COUNT", "the recompute saved a different number of values") \
    X(META, "E-META", "the recompute saved values of another shape, dtype or device") \
    X(MORE_SAVED, "E-MORE-SAVED", "the recompute saved more values than the forward") \
    X(USE_REENTRANT, "E-USE-REENTRANT", "checkpoint needs use_reentrant, and its arguments in order") \
    X(BADCHECK, "E-BADCHECK", "determinism_check has an unknown value") \
    X(SUPPRESSED, "E-SUPPRESSED", "a context swallowed the function's error") \
    X(CONTEXT_RUN, "E-CONTEXT-RUN", "a context must call run() exactly once") \
    X(NESTED_DEPTH, "E-CHECK-NESTED-DEPTH", "checkpoints or callbacks are nested too deeply") \
    X(REENTRANT_KWARGS, "E-REENTRANT-KWARGS", "a reentrant checkpoint got a table that holds a tensor requiring grad") \
    X(REENTRANT_OPTION, "E-REENTRANT-OPTION", "the option is not for the reentrant variant") \
    X(REENTRANT_GRAD, "E-REENTRANT-GRAD", "a reentrant checkpoint inside grad() or backward with inputs") \
    X(REENTRANT_HIGHER, "E-REENTRANT-HIGHER", "create_graph through a reentrant checkpoint") \
    X(NONE_REQUIRE_GRAD, "E-NONE-REQUIRE-GRAD", "no result of a reentrant checkpoint requires grad") \
    X(OPS, "E-OPS", "the recompute ran other ops, or ops with other numbers or tensors") \
    X(VALUES, "E-VALUES", "the recompute saved other values") \
    X(CONTEXT_REUSED, "E-CONTEXT-REUSED", "one pair of selective contexts was entered for two calls") \
    X(BADOP, "E-BADOP", "a selective list holds something that is no op") \
    X(BADPOLICY, "E-BADPOLICY", "a policy must be a function or a list of ops") \
    X(BADPOLICYVALUE, "E-BADPOLICYVALUE", "a policy returned something that is no policy") \
    X(SAC_NOOP, "E-SAC-NOOP", "the recompute ran an op that the forward did not") \
    X(SAC_INDEX, "E-SAC-INDEX", "the recompute ran an op more often than the forward") \
    X(SAC_AGAIN, "E-SAC-AGAIN", "a second backward through saved entries") \
    X(SAC_MUTATED, "E-SAC-MUTATED", "a saved entry was changed in place") \
    X(SAC_INPLACE, "E-SAC-INPLACE", "an in-place op cannot be saved") \
    X(SAC_DRY, "E-SAC-DRY", "a saved value was dropped because nothing needed it, and is read now") \
    X(REENTRANT_CAPTURED, "E-REENTRANT-CAPTURED", "a reentrant checkpoint would lose gradients of captured tensors") \
    X(SEGMENTS, "E-SEGMENTS", "the number of segments does not fit") \
    X(GROUP_NESTED, "E-GROUP-NESTED", "an execution group is already active") \
    X(RELEASED, "E-RELEASED", "the tensor was released") \
    X(STATE, "E-STATE", "not allowed in this state") \
    X(CANCELLED, "E-CANCELLED", "interrupted") \
    X(IO, "E-IO", "a file could not be read or written") \
    X(FORMAT, "E-FORMAT", "a file does not hold what it should") \
    X(MISSING, "E-MISSING", "a library or a data set is not installed") \
    X(USER, "E-USER", "an error raised by the host's own function") \
    X(STOP, "E-STOP", "internal: a recompute has all it needs") \
    X(INTERNAL, "E-INTERNAL", "a broken invariant of Neap; please report it")
/* clang-format on */

typedef enum neap_code {
#define NEAP_CODE_ENUM(name, text, meaning) NEAP_E_##name,
    NEAP_CODE_MAP(NEAP_CODE_ENUM)
#undef NEAP_CODE_ENUM
        NEAP_N_CODES,
    NEAP_OK = NEAP_E_OK
} neap_code;

typedef enum neap_dtype { /* SAME-ORDER dtype */
                          NEAP_FLOAT32,
                          NEAP_FLOAT64,
                          NEAP_FLOAT16,
                          NEAP_BFLOAT16,
                          NEAP_INT64,
                          NEAP_INT32,
                          NEAP_INT8,
                          NEAP_UINT8,
                          NEAP_BOOL,
                          NEAP_N_DTYPES
} neap_dtype;

typedef enum neap_category { /* SAME-ORDER neap_category: what bytes are for */
                             NEAP_TEMP,
                             NEAP_PARAM,
                             NEAP_GRAD,
                             NEAP_OPTIMIZER,
                             NEAP_SAVED,
                             NEAP_WORKSPACE,
                             NEAP_STAGING,
                             NEAP_USER
} neap_category;

/* ---- context ---------------------------------------------------------------------------------------- */

typedef struct neap_ctx_opts {
    size_t size;                                            /* sizeof(neap_ctx_opts) */
    int threads;                                            /* 0: NEAP_THREADS, else the number of cores */
    int64_t host_limit;                                     /* bytes of live host tensors, 0: none */
    void (*log)(void *user, int level, const char *text);   /* NULL: silent */
    int (*pressure)(void *user, int device, int64_t bytes); /* memory is short: free something; 1 if tried */
    void *user;
} neap_ctx_opts;

/* A context, or NULL when there is no memory. opts may be NULL. Where NEAP_DEVICE names a device that is not there,
 * NEAP_E_DEVICE is pending in the new context. */
NEAP_API neap_ctx *neap_ctx_new(const neap_ctx_opts *opts);
/* Frees it. Every tensor must have been freed before. */
NEAP_API void neap_ctx_free(neap_ctx *c);
NEAP_API const char *neap_version(void);
/* Threads of this context, at least 1. Results do not depend on it. */
NEAP_API void neap_set_num_threads(neap_ctx *c, int n);
NEAP_API int neap_get_num_threads(const neap_ctx *c);
/* Stops the running kernel or backward at its next block: NEAP_E_CANCELLED. Any thread, signal handlers too. */
NEAP_API void neap_cancel(neap_ctx *c);
NEAP_API void neap_cancel_clear(neap_ctx *c);

/* ---- errors ----------------------------------------------------------------------------------------- */

NEAP_API neap_code neap_error(const neap_ctx *c);           /* NEAP_OK: none pending */
NEAP_API const char *neap_error_message(const neap_ctx *c); /* one line, valid until cleared */
NEAP_API const char *neap_code_name(neap_code code);        /* "E-SHAPE" */
NEAP_API const char *neap_code_meaning(neap_code code);
NEAP_API void neap_clear_error(neap_ctx *c);
/* For callbacks: record an error of your own. `value` comes back from neap_error_value, untouched. */
NEAP_API void neap_fail(neap_ctx *c, neap_code code, const char *message, void *value);
NEAP_API void *neap_error_value(const neap_ctx *c);

/* ---- tensors ---------------------------------------------------------------------------------------- */

/* Uninitialised, zero-filled, filled, and from data (copied: numel x itemsize bytes, row-major). */
NEAP_API neap_tensor *neap_empty(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, int device);
NEAP_API neap_tensor *neap_zeros(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, int device);
NEAP_API neap_tensor *neap_full(neap_ctx *c, int ndim, const int64_t *shape, double value, neap_dtype dtype,
                                int device);
NEAP_API neap_tensor *neap_from_data(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype,
                                     const void *data);
/* The host's own memory, not copied: `release(user)` is called when the last tensor on it dies. */
NEAP_API neap_tensor *neap_wrap(neap_ctx *c, int ndim, const int64_t *shape, neap_dtype dtype, void *data,
                                void (*release)(void *user), void *user);
/* first, first + step ... up to and including last (a shortfall of rounding size is forgiven); computed in
 * double, exact for integers. linspace: n evenly spaced values with both ends. eye: n x m, ones on the diagonal. */
NEAP_API neap_tensor *neap_arange(neap_ctx *c, double first, double last, double step, neap_dtype dtype,
                                  int device);
NEAP_API neap_tensor *neap_linspace(neap_ctx *c, double first, double last, int64_t n, neap_dtype dtype,
                                    int device);
NEAP_API neap_tensor *neap_eye(neap_ctx *c, int64_t n, int64_t m, neap_dtype dtype, int device);
/* A Lua- or C-number as an operand: 0-dim, does not widen the other operand's dtype. */
NEAP_API neap_tensor *neap_number(neap_ctx *c, double v);
NEAP_API neap_tensor *neap_integer(neap_ctx *c, int64_t v);

NEAP_API neap_tensor *neap_retain(neap_tensor *t); /* one more reference */
NEAP_API void neap_free(neap_tensor *t);           /* one fewer; NULL is fine */

NEAP_API int neap_ndim(const neap_tensor *t);
NEAP_API int64_t neap_size(const neap_tensor *t, int dim);   /* -1 if there is no such dimension */
NEAP_API int64_t neap_stride(const neap_tensor *t, int dim); /* in elements */
NEAP_API int64_t neap_numel(const neap_tensor *t);
NEAP_API neap_dtype neap_dtype_of(const neap_tensor *t);
NEAP_API const char *neap_dtype_name(neap_dtype d); /* "float32" */
NEAP_API size_t neap_dtype_size(neap_dtype d);
NEAP_API int neap_device_of(const neap_tensor *t); /* 0 is the CPU */
NEAP_API int neap_is_contiguous(const neap_tensor *t);
NEAP_API void *neap_data(neap_tensor *t);                    /* first element; host memory only on the CPU */
NEAP_API uint64_t neap_tensor_version(const neap_tensor *t); /* counts writes to the storage */
/* The element of a one-element tensor. 0 on success. */
NEAP_API int neap_item(neap_ctx *c, neap_tensor *t, double *out);
NEAP_API int neap_item_int(neap_ctx *c, neap_tensor *t, int64_t *out);
/* Copies all elements, row-major, to host memory of numel x itemsize bytes. 0 on success. */
NEAP_API int neap_read(neap_ctx *c, neap_tensor *t, void *dst, size_t bytes);
/* Text like Lua's tostring(t); free it with neap_free_text. */
NEAP_API char *neap_tostring(neap_ctx *c, neap_tensor *t);
NEAP_API void neap_free_text(char *s);
/* 64-bit hash over dtype, shape and logical bytes. 0 on success. */
NEAP_API int neap_hash(neap_ctx *c, neap_tensor *t, uint64_t *out);
NEAP_API void neap_set_category(neap_tensor *t, neap_category cat);

/* Scopes: results made between begin and end belong to the scope. Return 0 on success. */
NEAP_API int neap_scope_begin(neap_ctx *c);
NEAP_API void neap_scope_end(neap_ctx *c);
NEAP_API neap_tensor *neap_keep(neap_tensor *t); /* takes t out of its scope: yours to free */

/* ---- callbacks -------------------------------------------------------------------------------------- */

#define NEAP_MAX_RESULTS 32
typedef struct neap_values { /* arguments in, results out */
    size_t size;
    neap_tensor *const *in; /* borrowed; entries may be NULL */
    int n_in;
    neap_tensor *out[NEAP_MAX_RESULTS]; /* new references, or NULL */
    int n_out;
} neap_values;

/* A closure: hosts and Lua use the same door. call returns 0, or nonzero with an error recorded. */
typedef struct neap_fn {
    int (*call)(neap_ctx *c, void *user, neap_values *v);
    void (*retain)(void *user);  /* may be NULL */
    void (*release)(void *user); /* may be NULL */
    void *user;
} neap_fn;

/* ---- autograd --------------------------------------------------------------------------------------- */

NEAP_API int neap_requires_grad(const neap_tensor *t);
NEAP_API int neap_set_requires_grad(neap_ctx *c, neap_tensor *t, int on); /* leaves only; 0 on success */
NEAP_API int neap_is_leaf(const neap_tensor *t);
NEAP_API neap_tensor *neap_grad_of(neap_tensor *t); /* new reference, NULL if there is none */
NEAP_API int neap_set_grad(neap_ctx *c, neap_tensor *t, neap_tensor *grad); /* NULL clears */
NEAP_API neap_tensor *neap_detach(neap_ctx *c, neap_tensor *t);
/* Takes t itself out of the graph: afterwards it is a leaf that requires no grad. Views are refused (E-STATE). A
 * backward that saved t as an operand fails then (E-DETACHED-INPLACE); as a result of its op it does not. 0 on
 * success. */
NEAP_API int neap_detach_(neap_ctx *c, neap_tensor *t);
NEAP_API int neap_retain_grad(neap_ctx *c, neap_tensor *t);
NEAP_API int neap_grad_enabled(neap_ctx *c);
/* Grad mode until neap_end(id). 0: failed. */
NEAP_API uint64_t neap_set_grad_enabled(neap_ctx *c, int on);
NEAP_API void neap_end(neap_ctx *c, uint64_t id); /* ends what a *_begin or set_* returned, any order */
/* Mixed precision until neap_end(id): products run in `low` (float16 or bfloat16), losses, norms, softmax,
 * exponentials, logarithms and sums in float32; other ops as their operands are. The casts are ops of the graph: a
 * leaf's gradient has the leaf's dtype. float64 takes no part. on = 0: no casts. Backward runs in the dtypes of its
 * forward, a recompute under the autocast of its forward. 0: failed (E-DTYPE). */
NEAP_API uint64_t neap_autocast_begin(neap_ctx *c, neap_dtype low, int on);

typedef struct neap_backward_opts {
    size_t size;
    int retain_graph, create_graph, allow_unused;
    neap_tensor *const *inputs; /* accumulate only into these; NULL: all leaves */
    int n_inputs;
} neap_backward_opts;

/* Differentiates sum(out * grad) and adds into the leaves' .grad. grad NULL: out must have one element.
 * opts may be NULL. 0 on success. */
NEAP_API int neap_backward(neap_ctx *c, neap_tensor *out, neap_tensor *grad, const neap_backward_opts *opts);
/* The gradients of several outputs with respect to inputs: results[i] is new, or NULL if unused and allowed. */
NEAP_API int neap_grad(neap_ctx *c, neap_tensor *const *outs, neap_tensor *const *grads, int n_outs,
                       neap_tensor *const *inputs, int n_inputs, const neap_backward_opts *opts,
                       neap_tensor **results);

/* Hooks. The id removes one: neap_remove_hook. A tensor hook gets the gradient and may return another one.
 * A node hook gets the gradients of inputs then outputs: in = {dx..., g...}; may return replacements dx. */
NEAP_API uint64_t neap_register_hook(neap_ctx *c, neap_tensor *t, neap_fn fn);
NEAP_API uint64_t neap_node_register_hook(neap_ctx *c, neap_node *n, neap_fn fn);
NEAP_API int neap_remove_hook(neap_ctx *c, uint64_t id);

/* Saved-tensors hooks: what pack returns is kept in place of the tensor. */
typedef struct neap_saved_hooks {
    int (*pack)(neap_ctx *c, void *user, neap_tensor *t, void **packed); /* 0, or nonzero with an error */
    neap_tensor *(*unpack)(neap_ctx *c, void *user, void *packed);       /* new reference */
    void (*drop)(void *user, void *packed);
    void (*retain)(void *user);
    void (*release)(void *user);
    void *user;
} neap_saved_hooks;
NEAP_API uint64_t neap_saved_hooks_begin(neap_ctx *c, const neap_saved_hooks *hooks); /* end: neap_end */
NEAP_API uint64_t neap_disable_saved_hooks_begin(neap_ctx *c, const char *message);
/* Values saved for backward wait on the host. pin_memory: in memory that the device copies to and from by itself, while
 * it goes on computing; what backward needs next is fetched ahead. */
NEAP_API uint64_t neap_save_on_cpu_begin(neap_ctx *c, int pin_memory);

/* Nodes: facts for inspection. Borrowed unless said. */
NEAP_API neap_node *neap_grad_fn(neap_tensor *t); /* NULL for leaves */
NEAP_API const char *neap_node_name(const neap_node *n);
NEAP_API int neap_node_n_next(const neap_node *n);
NEAP_API neap_node *neap_node_next(const neap_node *n, int i); /* may be NULL */
NEAP_API int neap_node_n_saved(const neap_node *n);
NEAP_API neap_tensor *neap_node_saved(neap_ctx *c, neap_node *n, int i); /* new reference, NULL if none */
NEAP_API neap_node *neap_node_retain(neap_node *n);
NEAP_API void neap_node_free(neap_node *n);
/* The host's tag of a node and of everything above it (bindings: anchors). 0: none. */
NEAP_API uint64_t neap_node_group(const neap_node *n);
NEAP_API void neap_node_set_group(neap_node *n, uint64_t group);

/* Custom functions. backward gets in = {g of each output}, must give out = {dx of each input, NULL allowed};
 * neap_custom_saved reads what was saved. */
typedef struct neap_custom {
    size_t size;
    const char *name;           /* copied, at most 40 bytes */
    neap_fn backward;           /* v->in = output gradients; v->out, v->n_out = input gradients */
    neap_tensor *const *inputs; /* tensor arguments, in order; NULL entries for non-tensors */
    int n_inputs;
    neap_tensor **outputs; /* plain results: given an identity in place */
    int n_outputs;
    neap_tensor *const *saved; /* inputs, outputs or others; NULL entries allowed */
    int n_saved;
    const unsigned char *non_differentiable; /* per output, may be NULL */
} neap_custom;
/* Records a node over the results of a forward that ran without recording. Returns a borrowed node, or NULL
 * with no error when nothing requires grad. */
NEAP_API neap_node *neap_custom_record(neap_ctx *c, const neap_custom *f);
/* Inside a custom backward: saved value i (new reference), and whether input i needs a gradient. */
NEAP_API neap_tensor *neap_custom_saved(neap_ctx *c, int i);
NEAP_API int neap_custom_needs(neap_ctx *c, int i);

/* Compares the gradients of fn (any number of float64 inputs) with central differences; order 1 or 2.
 * 0, or nonzero with NEAP_E_GRADCHECK naming input, element and both values. */
NEAP_API int neap_gradcheck(neap_ctx *c, neap_fn fn, neap_tensor *const *inputs, int n, double eps,
                            double atol, double rtol, int order);

/* ---- checkpointing ----------------------------------------------------------------------------------- */

/* How closely a recompute is held against its forward: nothing; each saved value's shape, dtype, device, and how it
 * was made: the ops, their numbers and the tensors that flowed into it, captured ones unchanged; also the whole
 * sequence of ops, saved or not; also the bytes of what was saved. */
typedef enum neap_determinism {
    NEAP_CHECK_NONE,
    NEAP_CHECK_DEFAULT,
    NEAP_CHECK_OPS,
    NEAP_CHECK_VALUES
} neap_determinism;

typedef struct neap_region_opts {
    size_t size;
    int preserve_rng_state; /* 1 */
    int early_stop;         /* 1 */
    neap_determinism check; /* NEAP_CHECK_DEFAULT */
    int debug;              /* 0; 1: a mismatch error shows both sequences of ops */
    const char *name;       /* for messages, copied */
    neap_fn recompute;      /* v->in: the region's inputs again. Non-reentrant: results are ignored;
                                 * reentrant: the tensor results, in the order of the forward's */
    void (*where)(neap_ctx *c, void *user, char *buf,
                  size_t n);               /* the script line of the running op, or NULL */
    void (*done)(neap_ctx *c, void *user); /* reentrant: the graph of the results that the latest unfinished
                                            * recompute returned is gone; or NULL */
} neap_region_opts;
NEAP_API void neap_region_opts_init(neap_region_opts *o);
/* Begins a region; run the function, then end it. inputs are saved in the region (NULL entries allowed).
 * NULL with no error pending: grad mode is off, run plainly and do not call end. */
NEAP_API neap_region *neap_region_begin(neap_ctx *c, const neap_region_opts *o, neap_tensor *const *inputs,
                                        int n);
NEAP_API void neap_region_end(neap_ctx *c, neap_region *r, int ok);
/* Both and the call between: runs fn on inputs; results as fn's. 0 on success. */
NEAP_API int neap_checkpoint(neap_ctx *c, neap_fn fn, neap_tensor *const *inputs, int n,
                             neap_tensor **results, int *n_results, const neap_region_opts *o);
NEAP_API int neap_in_recompute(neap_ctx *c);
/* set_checkpoint_early_stop(on) and set_checkpoint_debug_enabled(on), until neap_end. debug: on < 0 is "unset". */
NEAP_API uint64_t neap_early_stop_begin(neap_ctx *c, int on);
NEAP_API uint64_t neap_checkpoint_debug_begin(neap_ctx *c, int on);

/* The reentrant variant: the function runs without recording, backward runs it again as a pass of its own. Begin,
 * run, end with the top-level tensor results: floating ones get their place in the graph (in place). NULL with no
 * error: grad mode is off. end returns 0, or nonzero with an error (E-REENTRANT-CAPTURED ...). */
typedef struct neap_reentrant neap_reentrant;
NEAP_API neap_reentrant *neap_reentrant_begin(neap_ctx *c, const neap_region_opts *o,
                                              neap_tensor *const *inputs, int n);
NEAP_API int neap_reentrant_end(neap_ctx *c, neap_reentrant *r, neap_tensor **results, int n, int ok);

/* Execution groups: regions met by the backwards of one group are recomputed once. */
typedef struct neap_group neap_group;
NEAP_API neap_group *neap_group_new(neap_ctx *c);
NEAP_API uint64_t neap_group_begin(neap_ctx *c, neap_group *g); /* 0: E-GROUP-NESTED; end: neap_end */
NEAP_API void neap_group_close(neap_ctx *c, neap_group *g);     /* drops what it holds; may be begun again */
NEAP_API void neap_group_free(neap_ctx *c, neap_group *g);

/* Selective checkpointing: a store shared by the recorder (around the forward) and the replayer (around each
 * recompute). SAME-ORDER neap_policy. */
typedef enum neap_policy {
    NEAP_MUST_SAVE,
    NEAP_PREFER_SAVE,
    NEAP_MUST_RECOMPUTE,
    NEAP_PREFER_RECOMPUTE,
    NEAP_MUST_CPU_OFFLOAD,
    NEAP_PREFER_CPU_OFFLOAD,
    NEAP_N_POLICIES
} neap_policy;
typedef struct neap_policy_call { /* what a policy sees of one executed op */
    size_t size;
    const char *op;         /* name */
    int op_index;           /* in the registry */
    int nth;                /* run of this op in the region, from 1 */
    neap_tensor *const *in; /* graph-less aliases, borrowed; entries may be NULL */
    int n_in;
    neap_tensor *const *out;
    int n_out;
    const void *frame; /* for bindings: the np_frame with the attributes */
} neap_policy_call;
typedef struct neap_selective_opts {
    size_t size;
    /* A neap_policy, or -1 with an error recorded. NULL: `list` decides. */
    int (*policy)(neap_ctx *c, void *user, const neap_policy_call *call);
    void (*retain)(void *user);
    void (*release)(void *user);
    void *user;
    const int *list; /* op indices: these MUST_SAVE, the rest PREFER_RECOMPUTE */
    int n_list;
    int allow_mutation; /* allow_cache_entry_mutation */
    int keep_entries;   /* a second backward is possible */
    int respect_hooks;  /* -1: unset (bypass, and one warning line if user hooks are in force), 0, 1 */
} neap_selective_opts;
typedef struct neap_selective neap_selective;
NEAP_API neap_selective *neap_selective_new(neap_ctx *c, const neap_selective_opts *o);
NEAP_API void neap_selective_free(neap_ctx *c, neap_selective *s); /* one reference; regions hold their own */
NEAP_API uint64_t neap_selective_record_begin(neap_ctx *c,
                                              neap_selective *s); /* E-CONTEXT-REUSED; end: neap_end */
NEAP_API uint64_t neap_selective_replay_begin(neap_ctx *c, neap_selective *s);

/* ---- random numbers --------------------------------------------------------------------------------- */

NEAP_API void neap_seed(neap_ctx *c, uint64_t seed); /* all default generators */
NEAP_API neap_generator *neap_generator_new(neap_ctx *c, uint64_t seed);
NEAP_API void neap_generator_free(neap_generator *g);
NEAP_API neap_generator *neap_default_generator(neap_ctx *c, int device); /* borrowed */
NEAP_API void neap_generator_get(const neap_generator *g, uint64_t *seed, uint64_t *offset);
NEAP_API void neap_generator_set(neap_generator *g, uint64_t seed, uint64_t offset);

/* ---- memory ----------------------------------------------------------------------------------------- */

typedef struct neap_memory {
    size_t size;
    int64_t live, peak, limit, reserved, cached;
    int64_t by[8], peak_by[8]; /* SAME-ORDER neap_category */
    int64_t storages, nodes, slots, regions, markers, pass_entries;
    int64_t scratch; /* the most that kernels packed operands into since the peak was reset; not in peak */
} neap_memory;
NEAP_API int neap_memory_stats(neap_ctx *c, int device, neap_memory *out);
NEAP_API void neap_reset_peak(neap_ctx *c, int device);
NEAP_API int neap_memory_limit(neap_ctx *c, int device, int64_t bytes); /* 0: none */
NEAP_API void neap_memory_trim(neap_ctx *c);

/* ---- devices ---------------------------------------------------------------------------------------- */

/* A backend: memory, copies and a table op name -> kernel. Kernels of the CPU have the same form. */
typedef struct neap_backend neap_backend; /* core/tensor/device.h, for plug-ins */
/* Devices are numbers: 0 is the CPU. Factories take one, neap_to(c, x, -1, device) moves a tensor. Plug-ins are opened
 * when a name asks for them. */
NEAP_API int neap_device_count(neap_ctx *c);
NEAP_API const char *neap_device_name(neap_ctx *c, int device); /* "cpu", "cuda:0" */
NEAP_API int neap_device_find(neap_ctx *c, const char *name);   /* -1 with NEAP_E_DEVICE */

/* ---- optimizers: one call for a whole parameter list, under no recording, bumps versions ------------- */

typedef struct neap_adamw {
    size_t size;
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;  /* 1 at the first step */
    int decoupled; /* 1: AdamW, 0: Adam with L2 */
} neap_adamw;
/* params[i] -= ...; m[i], v[i] same shapes. Params without gradient (grads[i] NULL) are skipped. 0 on success.
 * v_max: NULL, or (AMSGrad) the largest v so far, which then takes its place in the step. */
NEAP_API int neap_adamw_step(neap_ctx *c, const neap_adamw *o, int n, neap_tensor *const *params,
                             neap_tensor *const *grads, neap_tensor *const *m, neap_tensor *const *v,
                             neap_tensor *const *v_max);
typedef struct neap_sgd {
    size_t size;
    double lr, momentum, dampening, weight_decay;
    int nesterov, first; /* first: the momentum buffer is filled with the gradient */
} neap_sgd;
NEAP_API int neap_sgd_step(neap_ctx *c, const neap_sgd *o, int n, neap_tensor *const *params,
                           neap_tensor *const *grads, neap_tensor *const *bufs /* NULL without momentum */);
typedef struct neap_rmsprop {
    size_t size;
    double lr, alpha, eps, momentum, weight_decay;
} neap_rmsprop;
/* squares: running mean of g^2. bufs: NULL without momentum. means: NULL, or (centered) the running mean of g. */
NEAP_API int neap_rmsprop_step(neap_ctx *c, const neap_rmsprop *o, int n, neap_tensor *const *params,
                               neap_tensor *const *grads, neap_tensor *const *squares,
                               neap_tensor *const *bufs, neap_tensor *const *means);
typedef struct neap_adagrad {
    size_t size;
    double lr, lr_decay, eps, weight_decay;
    int64_t step; /* 1 at the first step */
} neap_adagrad;
/* sums: the sum of g^2 over all steps. */
NEAP_API int neap_adagrad_step(neap_ctx *c, const neap_adagrad *o, int n, neap_tensor *const *params,
                               neap_tensor *const *grads, neap_tensor *const *sums);
/* Scales all gradients (NULL entries allowed) so that their common norm is at most max_norm; *norm is what it was.
 * A norm that is not finite changes nothing; with error_if_nonfinite it is an error that names the first such
 * gradient. */
NEAP_API int neap_clip_grad_norm(neap_ctx *c, int n, neap_tensor *const *grads, double max_norm,
                                 int error_if_nonfinite, double *norm);
/* Clamps every element of all gradients (NULL entries allowed) to [-max, max]. NaN stays. */
NEAP_API int neap_clip_grad_value(neap_ctx *c, int n, neap_tensor *const *grads, double max);

/* ---- files ------------------------------------------------------------------------------------------ */

/* safetensors. Save is atomic (temporary name, fsync, rename). metadata: pairs key, value, or NULL. */
NEAP_API int neap_save(neap_ctx *c, const char *path, int n, const char *const *names,
                       neap_tensor *const *tensors, int n_meta, const char *const *metadata);
typedef struct neap_file neap_file; /* an opened safetensors file */
NEAP_API neap_file *neap_load(neap_ctx *c, const char *path);
NEAP_API void neap_file_free(neap_file *f);
NEAP_API int neap_file_count(const neap_file *f);
NEAP_API const char *neap_file_name(const neap_file *f, int i);
NEAP_API neap_tensor *neap_file_tensor(neap_ctx *c, neap_file *f, int i); /* new reference */
NEAP_API int neap_file_n_metadata(const neap_file *f);
NEAP_API const char *neap_file_metadata(const neap_file *f, int i, const char **key);
/* An idx file (MNIST), plain or gzip: dtype and shape from the file. */
NEAP_API neap_tensor *neap_read_idx(neap_ctx *c, const char *path);
/* A CSV file (RFC 4180): all cells as text, columns as tensors. header: the first line holds names. Every line has as
 * many cells as the first; empty lines are skipped. Rows and columns count from 0 here, without the header. */
typedef struct neap_csv neap_csv;
NEAP_API neap_csv *neap_read_csv(neap_ctx *c, const char *path, char separator, int header);
NEAP_API void neap_csv_free(neap_csv *f);
NEAP_API int64_t neap_csv_rows(const neap_csv *f);
NEAP_API int64_t neap_csv_columns(const neap_csv *f);
NEAP_API const char *neap_csv_name(const neap_csv *f, int64_t column); /* NULL without a header */
NEAP_API const char *neap_csv_text(const neap_csv *f, int64_t row, int64_t column);
NEAP_API int neap_csv_is_number(const neap_csv *f,
                                int64_t column); /* 1: every cell is a number, empty or NA */
/* n columns as a tensor (rows, n) on the CPU; an empty cell and NA are NaN. NEAP_E_FORMAT names the cell that is no
 * number of the dtype. New reference. */
NEAP_API neap_tensor *neap_csv_tensor(neap_ctx *c, neap_csv *f, int64_t n, const int64_t *columns,
                                      neap_dtype dtype);
/* One array of NumPy (.npy, versions 1 to 3). Save is atomic. */
NEAP_API neap_tensor *neap_load_npy(neap_ctx *c, const char *path);
NEAP_API int neap_save_npy(neap_ctx *c, const char *path, neap_tensor *t);
/* The arrays of a NumPy .npz file, packed or not; each is read when it is asked for. */
typedef struct neap_npz neap_npz;
NEAP_API neap_npz *neap_load_npz(neap_ctx *c, const char *path);
NEAP_API void neap_npz_free(neap_npz *z);
NEAP_API int neap_npz_count(const neap_npz *z);
NEAP_API const char *neap_npz_name(const neap_npz *z, int i);
NEAP_API neap_tensor *neap_npz_tensor(neap_ctx *c, neap_npz *z, int i); /* new reference */

/* ---- ops: generated from the registry (neap_ops.h) --------------------------------------------------- */
#ifndef NEAP_NO_OPS
#include "neap_ops.h"

/* x[ids[0], ids[1], ...]: ids[d] for dimension d, NULL for all of it; n of them, the dimensions after them whole. ids are
 * integer tensors, which broadcast, or masks, which stand for as many dimensions as they have (the entries after one
 * are NULL then). Their dimensions come in the place of those they stand for, or in front if these are apart.
 *     neap_tensor *y = neap_index(c, x, (neap_tensor *[]){rows, NULL, columns}, 3);
 * E-INDEX, E-SHAPE, E-DTYPE. neap_index_put_ writes v there, broadcast, or adds it; it returns 0 on success. */
NEAP_API neap_tensor *neap_index(neap_ctx *c, neap_tensor *x, neap_tensor *const *ids, int n);
NEAP_API int neap_index_put_(neap_ctx *c, neap_tensor *x, neap_tensor *const *ids, int n, neap_tensor *v,
                             int accumulate);
#endif

#ifdef __cplusplus
}
#endif
#endif
