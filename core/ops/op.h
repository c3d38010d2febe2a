/* op.h - what an op is, how it is called, and the one dispatcher. Read this before any family file.
 *
 * An op is one entry NP_OP(name) beside its kernel and gradient in core/ops/<family>.c. A build step
 * (tools/gen.lua) scans the family files and generates: the registry table, the C functions neap_<name>, the
 * wrappers np_<name> used by gradient formulas, the kernel table of all CPU levels, and the docs. The doc comment
 * of op `softplus` is the comment block in its family file that begins with "softplus(".
 *
 * Family files are compiled once per CPU level (NP_ISA = 0, 1, 2). NP_CPU(name) defines the kernel of that
 * level; everything inside NP_BASE_ONLY (entries, infer, gradients, samples) exists in level 0 only. Helpers
 * that kernels use must be static inline.
 *
 * Schema, e.g. .args = "x:T dim:dim ids:T ; keepdim:bool=false base:base -> y:T | mean:T":
 *   before ';' positional, after it options (Lua's option table; in C all are positional, in this order);
 *   after '->' results; after '|' auxiliary results that users do not see.
 *   T tensor   T? optional tensor   N tensor or number   T* list of tensors (alone, first or after a text)
 *   int float bool  |  dim  dim?  dims?  |  index (a position)  |  shape  |  dtype dtype?  |  device?  |  gen?
 *   str (a text; composites only)
 *   base: 0 in C, 1 from Lua unless {base = 0}: the base of index tensors, in and out.
 *   A default follows '='; `?` means may be absent (attr.has == 0). */
#ifndef NP_OPS_OP_H
#define NP_OPS_OP_H

#include <stddef.h>

#include "np_opx.h" /* generated: enum { NP_OPX_add, ... NP_N_OPS } */
#include "tensor/tensor.h"

#define NP_MAX_OUT 6
#define NP_MAX_SAVE 8
#define NP_MAX_ATTR 8

/* What infer says of one result. A view result has view = true and strides and offset. */
typedef struct np_out_meta {
    uint8_t dtype, ndim;
    bool view;
    int64_t shape[NEAP_MAX_DIMS];
    int64_t stride[NEAP_MAX_DIMS]; /* views only */
    int64_t offset;
} np_out_meta;

typedef struct np_op np_op;

/* One call of one op, from dispatch to kernel. Tensors and attributes are numbered apart, in schema order. */
typedef struct np_frame {
    neap_ctx *c;
    const np_op *op;
    neap_tensor *const *in; /* borrowed; NULL: absent optional */
    int n_in;
    int n_out;                    /* set by dispatch from the schema; infer may lower it (max without dim) */
    np_device *dev;               /* of the first real tensor; infer may set it (factories) */
    uint64_t rng_n;               /* NP_RANDOM ops: infer says how many elements to reserve for */
    np_rng_range rng;             /* the reserved range */
    neap_tensor *out[NP_MAX_OUT]; /* new references; for in-place ops out[0] is in[0] retained */
    neap_dtype compute;           /* promoted dtype for kernels, set by the infer helpers */
    bool flat; /* infer: at most two operands, contiguous, of one dtype and of the shape of result 0 */
    np_attr attr[NP_MAX_ATTR];    /* those of the schema are set by the caller */
    np_out_meta meta[NP_MAX_OUT]; /* filled by infer, n_out of them */
} np_frame;

/* Starts a call: everything but the attributes and what infer fills. (The rest of a frame is large.) */
static inline void np_frame_begin(np_frame *f, neap_ctx *c, const np_op *op, neap_tensor *const *in, int n_in)
{
    f->c = c;
    f->op = op;
    f->in = in;
    f->n_in = n_in;
    f->n_out = 0;
    f->dev = NULL;
    f->rng_n = 0;
    f->rng = (np_rng_range){0};
    for (int j = 0; j < NP_MAX_OUT; j++) f->out[j] = NULL;
    f->compute = (neap_dtype)0;
    f->flat = false;
}

/* A gradient formula's view of its node. Formulas call np_<op>(b, ...); results of those calls belong to
 * the frame: the first op that takes one consumes it (it is freed after that op), np_hold(b, t) keeps it for
 * one more use. b->g and b->saved are borrowed and never consumed. Errors are sticky: no checks needed. */
typedef struct np_back {
    neap_ctx *c;
    struct neap_node *node;
    neap_tensor *g[NP_MAX_OUT];      /* gradient of each result; g[0] is never NULL, others may be */
    neap_tensor *saved[NP_MAX_SAVE]; /* in the order of .save; NULL if its user is not needed */
    neap_tensor **dx;                /* write here: one per tensor input */
    const bool *need;                /* need[i]: input i needs a gradient; others may be left NULL */
    int n_in;
    const np_attr *attr; /* as in the call */
    np_rng_range rng;
    bool create_graph;
    struct np_temp *temps; /* frame temporaries */
} np_back;

typedef bool (*np_infer_fn)(np_frame *f);
typedef void (*np_grad_fn)(np_back *b);
typedef bool (*np_ref_fn)(np_frame *f); /* fills f->out by calling other ops (neap_*), recording off */
typedef void (*np_cost_fn)(const np_frame *f, double *flops, double *bytes);
typedef void (*np_parts_fn)(np_back *b, np_frame *f); /* fills f->out with the results of np_<op>(b, ...) */
struct np_sampler;                                    /* tests and bench: core/ops/sample.h */
typedef bool (*np_sample_fn)(struct np_sampler *s, int i); /* i-th legal argument set; false: no more */

enum {                        /* tags */
       NP_POINTWISE = 1 << 0, /* result element depends on same-index inputs */
       NP_VIEW = 1 << 1,      /* results alias input 0; no kernel */
       NP_INPLACE = 1 << 2,   /* writes input 0; bumps its version */
       NP_RANDOM = 1 << 3,    /* consumes counters */
       NP_HEAVY = 1 << 4,     /* compute-bound: matmul, convolution, attention */
       NP_CHEAP = 1 << 5,     /* bandwidth-bound: redo gladly */
       NP_REDUCE = 1 << 6,
       NP_NODIFF = 1 << 7,        /* integer or boolean result, or a constant: never recorded */
       NP_SYNC = 1 << 8,          /* reads device data on the host */
       NP_FUSED = 1 << 9,         /* has .ref */
       NP_INTERNAL = 1 << 10,     /* not in the Lua API: parts of gradients */
       NP_FACTORY = 1 << 11,      /* no tensor input: rand, randn ... */
       NP_ANYWHERE = 1 << 12,     /* the CPU kernel serves every device: it only moves bytes (np_copy_into) */
       NP_TRUTH = 1 << 13,        /* without dims the result is a Lua boolean: any, all */
       NP_CAST_LOW = 1 << 14,     /* under autocast: operands in its dtype (cast.c) */
       NP_CAST_FLOAT32 = 1 << 15, /* under autocast: operands in float32 */
       NP_COMPOSITE = 1 << 16     /* has .parts and nothing else: a call is the calls it consists of */
};

enum { NP_SAVE_NONE, NP_SAVE_IN, NP_SAVE_OUT };
typedef struct np_save {
    uint8_t what, index;
    uint8_t for_mask; /* bit i: needed for the gradient of input i; 0: needed for any */
} np_save;
#define NP_IN(i) \
    { \
        NP_SAVE_IN, i, 0 \
    }
#define NP_IN_FOR(i, j) \
    { \
        NP_SAVE_IN, i, 1u << (j) \
    } /* input i, only if input j needs a gradient */
#define NP_OUT(i) \
    { \
        NP_SAVE_OUT, i, 0 \
    }
#define NP_OUT_FOR(i, j) \
    { \
        NP_SAVE_OUT, i, 1u << (j) \
    }

struct np_op {
    const char *name;
    const char *args;
    int index; /* NP_OPX_<name> */
    uint32_t tags;
    np_save save[NP_MAX_SAVE]; /* ends with NP_SAVE_NONE */
    np_infer_fn infer;         /* shapes, dtypes, all checks: an error here has no side effect */
    np_grad_fn grad;           /* NULL with NP_NODIFF */
    np_ref_fn ref;             /* NP_FUSED: the same results out of simpler ops: oracle and fallback */
    np_parts_fn
        parts;       /* NP_COMPOSITE: a formula of other ops. They are what modes, policies, counters and the
                                * graph see, so no infer, kernel or gradient is needed, on any device. */
    np_cost_fn cost; /* NULL: by tags */
    np_sample_fn sample;
    const np_op *base; /* in-place forms: the op they are a form of */
};

#ifndef NP_ISA
#define NP_ISA 0
#endif
#define NP_CAT3_(a, b, c) a##b##c
#define NP_CAT3(a, b, c) NP_CAT3_(a, b, c)
#define NP_CPU(opname) \
    bool NP_CAT3(np_cpu_##opname##_, NP_ISA, )(np_frame * f); \
    bool NP_CAT3(np_cpu_##opname##_, NP_ISA, )
#if NP_ISA == 0
#define NP_BASE_ONLY 1
#endif
/* NP_OP(exp) = { NP_NAMED(exp), .args = ..., };  its in-place form takes one more line: NP_INPLACE_OP(exp_, exp); */
#define NP_OP(opname) const np_op np_op_##opname
#define NP_NAMED(opname) .name = #opname, .index = NP_OPX_##opname
#define NP_INPLACE_OP(opname, of) NP_OP(opname) = {NP_NAMED(opname), .tags = NP_INPLACE, .base = &np_op_##of}

/* ---- the registry (generated table, in file order) */
extern const np_op *const np_ops[]; /* NP_N_OPS entries */
extern const np_kernel np_cpu_kernels[][NP_N_ISA];
extern const char *const np_op_docs[]; /* doc comment text by index */
const np_op *np_op_find(const char *name);

typedef enum np_arg_type {
    NP_ARG_TENSOR,
    NP_ARG_OPT_TENSOR,
    NP_ARG_NUMBER,
    NP_ARG_LIST,
    NP_ARG_INT,
    NP_ARG_FLOAT,
    NP_ARG_BOOL,
    NP_ARG_DIM,
    NP_ARG_DIMS,
    NP_ARG_INDEX,
    NP_ARG_SHAPE,
    NP_ARG_DTYPE,
    NP_ARG_DEVICE,
    NP_ARG_GEN,
    NP_ARG_BASE,
    NP_ARG_STR
} np_arg_type;
typedef struct np_arg { /* a parsed schema argument */
    char name[24];
    np_arg_type type;
    bool optional; /* `?` */
    bool has_default;
    bool option; /* after ';' */
    int slot;    /* tensor number or attribute number */
    double def;  /* default: number, or 0/1 */
} np_arg;
typedef struct np_schema {
    int n_args, n_tensors, n_attrs, n_results, n_aux; /* results seen, then auxiliary */
    bool list;                                        /* one T* argument */
    np_arg arg[12];
    char result[NP_MAX_OUT][24];
} np_schema;
bool np_schema_parse(const char *args, np_schema *s); /* false: malformed (a test walks all) */

/* Parsed once per context. */
typedef struct np_op_facts {
    const np_op *impl;                        /* the op itself; of in-place forms what they are a form of */
    int8_t n_results, n_aux, n_out, gen_attr; /* gen_attr: the generator's attribute, -1 none */
    int8_t n_needed, n_saves; /* tensor inputs that a call has at least; saved values of a record */
    uint32_t required;        /* bit i: tensor input i must be there */
    uint32_t lists;           /* bit i: attribute i has a list of numbers */
    bool
        plain_record; /* a node has the shapes of the results and the attributes as they are: no lists, no draws */
    np_op_count *count; /* of the context */
    np_schema schema;
} np_op_facts;
const np_op_facts *np_facts_load(neap_ctx *c, const np_op *op);
static inline const np_op_facts *np_facts(neap_ctx *c, const np_op *op) /* NULL: no memory */
{
    return c->facts ? &c->facts[op->index] : np_facts_load(c, op);
}

/* An op mode: sees a call before (NP_AMB_MODE) or below (NP_AMB_INNER) recording. It fills f->out, by calling
 * np_dispatch_below(f, id) or in its own way. */
typedef struct np_mode {
    bool (*call)(neap_ctx *c, void *user, np_frame *f, uint64_t id);
    void *user;
    void (*end)(neap_ctx *c, void *user); /* neap_end was called, or NULL */
    void (*retain)(void *user);           /* op modes: a region keeps its forward's for the recomputes */
    void (*release)(void *user);
} np_mode;
bool np_dispatch_below(np_frame *f, uint64_t id); /* continues below the mode with this ambient id */
bool np_compute_below(np_frame *f, uint64_t id);  /* the same for inner modes: the next one, or the kernel */
/* The op mode that sees calls which come from below id `below` (UINT64_MAX: all calls); NULL: none. */
const np_ambient_entry *np_mode_below(neap_ctx *c, uint64_t below);
/* NP_AMB_TRACE: told of every op, after its checks and before it runs. */
typedef struct np_tracer {
    void (*op)(neap_ctx *c, void *user, const np_frame *f);
    void *user;
} np_tracer;

/* origin.c: gives the results of a call that has run their origins. */
void np_origin_note(np_frame *f, const np_op_facts *facts, const np_ambient_entry *e);

/* What results of this call have as origin, op and operands taken together; 0: unknown, or nobody notes origins. */
uint64_t np_origin_of_call(const np_frame *f);

/* remote.c: kernels of devices that a plug-in brings: its own, and those of the CPU for what it has none. */
bool np_remote_kernel(np_frame *f);
bool np_staged_kernel(np_frame *f);

/* ---- calling */
/* The one dispatcher. f->c, op, in, n_in, attr are set by the caller (zeroed otherwise). On success f->out
 * holds new references; on failure all are NULL and an error is pending. */
bool np_dispatch(np_frame *f);
/* cast.c: the dispatcher's part of autocast. Would an operand be cast? Then the call, with those that are. */
bool np_cast_wanted(const np_frame *f, int64_t cast);
bool np_cast_call(np_frame *f, int64_t cast);
static inline void np_frame_drop(np_frame *f)
{
    for (int i = 0; i < f->n_out; i++) np_drop(f->out[i]), f->out[i] = NULL;
}
/* Dispatch for formulas: consumes frame temporaries among the inputs, owns the results. Returns out[0]. */
neap_tensor *np_back_call(np_back *b, np_frame *f);
neap_tensor *np_hold(np_back *b, neap_tensor *t);
neap_tensor *np_num(np_back *b, double v); /* a number operand, owned by the frame */
/* g summed down to the shape of input i (the transpose of broadcasting), cast to its dtype. */
neap_tensor *np_unbroadcast(np_back *b, neap_tensor *g, int input);
/* Shape of input i of the node (from the graph; valid for inputs that need a gradient, in list ops for all). */
bool np_input_shape(np_back *b, int input, int *ndim, int64_t *shape, neap_dtype *dtype);

/* ---- infer helpers (infer.c) */
bool np_infer_same(np_frame *f);   /* one result like in[0]; any dtype */
bool np_infer_float(np_frame *f);  /* like in[0]; integers become the default float dtype; f->compute set */
bool np_infer_binary(np_frame *f); /* broadcast in[0], in[1]; promote; f->compute = result dtype */
bool np_infer_binary_float(np_frame *f); /* the same, integers give float */
bool np_no_bool(np_frame *f);            /* f->compute is bool: E-DTYPE */
bool np_infer_same_number(np_frame *f);  /* as np_infer_same and np_infer_binary; bool is refused */
bool np_infer_binary_number(np_frame *f);
bool np_infer_compare(np_frame *f); /* broadcast, bool result, f->compute = promoted dtype */
/* A number that an integer dtype cannot hold is E-DTYPE, never cut: operands (others than numbers pass) and float
 * attributes. Float dtypes take everything, bool takes the truth of it. */
bool np_number_fits(neap_ctx *c, const neap_tensor *t, neap_dtype as);
bool np_attr_fits(neap_ctx *c, const np_attr *a, neap_dtype as);
bool np_integer_fits(neap_ctx *c, int64_t v, neap_dtype as);
bool np_attr_whole(const np_attr *a,
                   int64_t *v); /* the integer that a float attribute is; false: it is none */
/* The dtype of floats that nothing else decides: neap.default_dtype. */
neap_dtype np_default_float(neap_ctx *c);
bool np_same_device(np_frame *f); /* checks all tensors, sets f->dev; E-DEVICE. Called by all of the above */
/* Bit mask of the dims of attribute `a` (dims?); absent or empty: all. In kernels they are known to be legal. */
static inline uint32_t np_dims_mask(const np_attr *a, int ndim)
{
    uint32_t mask = 0;
    if (!a->has || a->n == 0) return (1u << ndim) - 1;
    for (int i = 0; i < a->n; i++)
        if (ndim > 0) mask |= 1u << (a->v[i] < 0 ? a->v[i] + ndim : a->v[i]);
    return mask;
}
static inline uint32_t np_dim_mask(const np_attr *a, int ndim) /* dim? */
{
    if (!a->has || ndim == 0) return (1u << ndim) - 1;
    return 1u << (a->i < 0 ? a->i + ndim : a->i);
}
/* Reductions: attribute 0 is dims? (np_infer_dims) or dim? (np_infer_dim), attribute 1 keepdim. */
static inline neap_dtype np_summed(neap_dtype t) { return np_is_float(t) ? t : NEAP_INT64; }
void np_reduced_meta(np_frame *f, int out, neap_dtype t, uint32_t mask, bool keepdim);
bool np_infer_dims(np_frame *f, neap_dtype t); /* checks the dims, result 0 has dtype t */
bool np_infer_dim(np_frame *f,
                  bool needs_elements); /* checks the dim; needs_elements: an empty one is an error */
/* Sets result j. */
void np_meta_set(np_frame *f, int j, neap_dtype t, int ndim, const int64_t *shape);
void np_meta_like(np_frame *f, int j, const neap_tensor *t);
/* Marks result 0 as a view of in[0] with this geometry. */
void np_meta_view(np_frame *f, int j, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset);

#include "np_grad_ops.h" /* generated: np_<op>(np_back *, ...) */

#endif
