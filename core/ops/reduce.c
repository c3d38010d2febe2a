/* reduce.c - sums, means, extremes and truth over some or all dimensions.
 *
 * A reduction is described by an accumulator (np_acc) and three functions: fold a run of elements, merge two
 * accumulators, store the result. The driver splits the input into kept and reduced dims, merges neighbours and
 * takes one of two ways: by columns, when the innermost memory dim is kept, and by rows otherwise. Reduced dims are
 * walked in row-major order, so positions are logical ones. Work is cut by shape alone and partial results are
 * merged in order: the bits do not depend on threads. Floats are summed in double, integers in int64 (wrapping).
 * Empty reductions: sum 0, prod 1, mean NaN, any false, all true; an extreme of nothing is an error. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

#define RED_PARTS 256 /* partial results on the stack, at most */
#define RED_COLS 64   /* columns of one task */

typedef struct np_acc {
    union {
        double d;
        int64_t i;
    };
    int64_t at; /* extremes: position, -1 none yet */
} np_acc;

/* How to reduce elements of one compute type. */
typedef struct red_kind {
    np_acc start;
    void (*row)(np_acc *a, const void *x, int64_t n,
                int64_t at);                           /* n dense elements, the first is number `at` */
    void (*merge)(np_acc *a, const np_acc *b);         /* b comes after a */
    void (*cols)(void *acc, const void *x, int64_t n); /* 8-byte accumulators, or NULL */
    bool is_int;                                       /* the accumulator is .i */
} red_kind;

typedef struct red_job {
    const red_kind *k;
    neap_dtype type, dtype; /* of the run, of the memory */
    const char *x;
    int nk, nr; /* merged kept and reduced dims, outermost first; byte strides */
    int64_t kshape[NEAP_MAX_DIMS], kstride[NEAP_MAX_DIMS], rshape[NEAP_MAX_DIMS], rstride[NEAP_MAX_DIMS];
    int64_t m, n; /* results, elements per result */
    void (*store)(const struct red_job *j, int64_t o, const np_acc *a);
    neap_tensor *out[2];
    int64_t base; /* added to stored positions */
    /* cutting */
    int64_t parts, part_n; /* pieces of a reduction; rows per task otherwise */
    int64_t cols, col_tasks;
    np_acc *partial;
} red_job;

/* ---- folding */

#define SUM_ROW_INT(S, T) \
    static void sum_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        uint64_t s = 0; \
        for (int64_t i = 0; i < n; i++) s += (uint64_t)(int64_t)x[i]; \
        a->i = (int64_t)((uint64_t)a->i + s); \
    }
SUM_ROW_INT(i64, int64_t)
SUM_ROW_INT(i32, int32_t)
SUM_ROW_INT(i8, int8_t)
SUM_ROW_INT(u8, uint8_t)

/* Sixteen lanes, folded pairwise at the end. */
#define SUM_ROW_FLOAT(S, T) \
    static void sum_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        double lane[16] = {0}, rest = 0; \
        int64_t i = 0; \
        for (; i + 16 <= n; i += 16) \
            for (int l = 0; l < 16; l++) lane[l] += (double)x[i + l]; \
        for (; i < n; i++) rest += (double)x[i]; \
        for (int w = 8; w > 0; w >>= 1) \
            for (int l = 0; l < w; l++) lane[l] += lane[l + w]; \
        a->d += lane[0] + rest; \
    }
SUM_ROW_FLOAT(f32, float)
SUM_ROW_FLOAT(f64, double)

#define SUM_COLS(S, T, A) \
    static void sum_cols_##S(void *acc, const void *px, int64_t n) \
    { \
        A *a = acc; \
        const T *x = px; \
        NP_IVDEP for (int64_t i = 0; i < n; i++) a[i] += (A)x[i]; \
    }
SUM_COLS(f32, float, double)
SUM_COLS(f64, double, double)
SUM_COLS(i64, int64_t, uint64_t)
SUM_COLS(i32, int32_t, uint64_t)
SUM_COLS(i8, int8_t, uint64_t)
SUM_COLS(u8, uint8_t, uint64_t)

static void sum_merge_d(np_acc *a, const np_acc *b) { a->d += b->d; }
static void sum_merge_i(np_acc *a, const np_acc *b) { a->i = (int64_t)((uint64_t)a->i + (uint64_t)b->i); }

#define PROD_ROW(S, T, F, A) \
    static void prod_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        A p = (A)a->F; \
        for (int64_t i = 0; i < n; i++) p *= (A)x[i]; \
        memcpy(&a->F, &p, 8); \
    }
PROD_ROW(f32, float, d, double)
PROD_ROW(f64, double, d, double)
PROD_ROW(i64, int64_t, i, uint64_t)
PROD_ROW(i32, int32_t, i, uint64_t)
PROD_ROW(i8, int8_t, i, uint64_t)
PROD_ROW(u8, uint8_t, i, uint64_t)
static void prod_merge_d(np_acc *a, const np_acc *b) { a->d *= b->d; }
static void prod_merge_i(np_acc *a, const np_acc *b) { a->i = (int64_t)((uint64_t)a->i * (uint64_t)b->i); }

/* Extremes: the first of equal ones; the first NaN beats all. OP is > for max. */
#define EXTREME_ROW(name, S, T, F, OP) \
    static void name##_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        const T *x = px; \
        if (n == 0 || (a->at >= 0 && a->F != a->F)) return; \
        T best = a->at >= 0 ? (T)a->F : x[0]; \
        int64_t where = a->at >= 0 ? a->at : at; \
        for (int64_t i = 0; i < n && best == best; i++) \
            if (x[i] OP best || x[i] != x[i]) best = x[i], where = at + i; \
        a->F = best, a->at = where; \
    }
#define EXTREME_MERGE(name, S, F, OP) \
    static void name##_merge_##S(np_acc *a, const np_acc *b) \
    { \
        if (b->at >= 0 && (a->at < 0 || (a->F == a->F && (b->F OP a->F || b->F != b->F)))) *a = *b; \
    }
/* float: a vector pass per block finds its extreme; only when that wins is its place looked for. */
#define EXTREME_ROW_F32(name, OP) \
    EXTREME_ROW(name, scan, float, d, OP) \
    static void name##_row_f32(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        for (int64_t b = 0; b < n; b += NP_BLOCK) { \
            const float *x = (const float *)px + b; \
            int64_t len = n - b < NP_BLOCK ? n - b : NP_BLOCK, i = 16; \
            if (len < 32) { \
                name##_row_scan(a, x, len, at + b); \
                continue; \
            } \
            float lane[16]; \
            uint32_t nan = 0; \
            memcpy(lane, x, sizeof lane); \
            for (; i + 16 <= len; i += 16) \
                for (int l = 0; l < 16; l++) lane[l] = v_sel_f(x[i + l] OP lane[l], x[i + l], lane[l]); \
            for (; i < len; i++) lane[0] = x[i] OP lane[0] ? x[i] : lane[0]; \
            for (i = 0; i < len; i++) nan |= x[i] != x[i]; \
            float best = lane[0]; \
            for (int l = 1; l < 16; l++) best = lane[l] OP best ? lane[l] : best; \
            if (nan) { \
                name##_row_scan(a, x, len, at + b); \
            } else if (a->at < 0 || best OP(float) a->d) { \
                for (i = 0; x[i] != best; i++) \
                    ; \
                a->d = best, a->at = at + b + i; \
            } \
        } \
    }
/* clang-format off */
#define EXTREME(name, OP) \
    EXTREME_ROW_F32(name, OP) \
    EXTREME_ROW(name, f64, double, d, OP) \
    EXTREME_ROW(name, i64, int64_t, i, OP) \
    EXTREME_ROW(name, i32, int32_t, i, OP) EXTREME_ROW(name, i8, int8_t, i, OP) \
        EXTREME_ROW(name, u8, uint8_t, i, OP) EXTREME_MERGE(name, d, d, OP) EXTREME_MERGE(name, i, i, OP)
/* clang-format on */
EXTREME(max, >)
EXTREME(min, <)

static void any_row(np_acc *a, const void *px, int64_t n, int64_t at)
{
    (void)at;
    const uint8_t *x = px;
    uint8_t hit = 0;
    for (int64_t i = 0; i < n; i++) hit |= x[i];
    a->i |= hit;
}
static void all_row(np_acc *a, const void *px, int64_t n, int64_t at)
{
    (void)at;
    const uint8_t *x = px;
    uint8_t hit = 1;
    for (int64_t i = 0; i < n; i++) hit &= x[i];
    a->i &= hit;
}
static void any_merge(np_acc *a, const np_acc *b) { a->i |= b->i; }
static void all_merge(np_acc *a, const np_acc *b) { a->i &= b->i; }

#define KIND_F(name, S, F, V) \
    { \
        .start = {.F = V, .at = -1}, .row = name##_row_##S, .merge = name##_merge_##F, \
        .is_int = sizeof(#F) == 2 && #F[0] == 'i' \
    }
#define KINDS(name, V) \
    static const red_kind name##_kinds[NEAP_N_DTYPES] = { \
        [NEAP_FLOAT32] = KIND_F(name, f32, d, V), [NEAP_FLOAT64] = KIND_F(name, f64, d, V), \
        [NEAP_INT64] = KIND_F(name, i64, i, V),   [NEAP_INT32] = KIND_F(name, i32, i, V), \
        [NEAP_INT8] = KIND_F(name, i8, i, V),     [NEAP_UINT8] = KIND_F(name, u8, i, V), \
        [NEAP_BOOL] = KIND_F(name, u8, i, V)}
KINDS(prod, 1);
KINDS(max, 0);
KINDS(min, 0);
#define SUM_KIND(S, F) \
    { \
        .start = {.at = -1}, .row = sum_row_##S, .merge = sum_merge_##F, .cols = sum_cols_##S, \
        .is_int = #F[0] == 'i' \
    }
static const red_kind sum_kinds[NEAP_N_DTYPES] = {
    [NEAP_FLOAT32] = SUM_KIND(f32, d), [NEAP_FLOAT64] = SUM_KIND(f64, d), [NEAP_INT64] = SUM_KIND(i64, i),
    [NEAP_INT32] = SUM_KIND(i32, i),   [NEAP_INT8] = SUM_KIND(i8, i),     [NEAP_UINT8] = SUM_KIND(u8, i),
    [NEAP_BOOL] = SUM_KIND(u8, i),
};
static const red_kind any_kind = {.start = {.i = 0}, .row = any_row, .merge = any_merge, .is_int = true};
static const red_kind all_kind = {.start = {.i = 1}, .row = all_row, .merge = all_merge, .is_int = true};

/* ---- storing */

static void store_value(const red_job *j, int64_t o, const np_acc *a)
{
    neap_dtype t = (neap_dtype)j->out[0]->dtype;
    char *y = np_ptr(j->out[0]) + o * (int64_t)np_dtype_size(t);
    if (j->k->is_int) np_store_int(t, y, a->i);
    else if (t == NEAP_FLOAT32) *(float *)(void *)y = (float)a->d;
    else np_store_double(t, y, a->d);
}
static void store_mean(const red_job *j, int64_t o, const np_acc *a)
{
    double sum = j->k->is_int ? (double)a->i : a->d;
    neap_dtype t = (neap_dtype)j->out[0]->dtype;
    np_store_double(t, np_ptr(j->out[0]) + o * (int64_t)np_dtype_size(t), sum / (double)j->n);
}
static void store_extreme(const red_job *j, int64_t o, const np_acc *a)
{
    store_value(j, o, a);
    if (j->out[1]) NP_DATA(int64_t, j->out[1])[o] = a->at + j->base;
}
static void store_position(const red_job *j, int64_t o, const np_acc *a)
{
    NP_DATA(int64_t, j->out[0])[o] = a->at + j->base;
}

/* ---- the driver */

/* Elements [lo, hi) of reduction o. */
static void fold(const red_job *j, int64_t o, int64_t lo, int64_t hi, np_acc *a)
{
    int64_t size = (int64_t)np_dtype_size(j->type);
    const char *p = j->x;
    for (int d = j->nk - 1; d >= 0; d--) p += o % j->kshape[d] * j->kstride[d], o /= j->kshape[d];
    int in = j->nr - 1;
    int64_t inner = in >= 0 ? j->rshape[in] : 1, step = in >= 0 ? j->rstride[in] : size;
    _Alignas(64) unsigned char buf[NP_BLOCK * 8];
    for (int64_t at = lo; at < hi;) {
        const char *q = p + at % inner * step;
        int64_t rest = at / inner, len = inner - at % inner;
        for (int d = in - 1; d >= 0; d--) q += rest % j->rshape[d] * j->rstride[d], rest /= j->rshape[d];
        if (len > hi - at) len = hi - at;
        if (step == size && j->dtype == j->type) {
            j->k->row(a, q, len, at);
        } else {
            for (int64_t i = 0; i < len; i += NP_BLOCK) {
                int64_t n = len - i < NP_BLOCK ? len - i : NP_BLOCK;
                np_block_load(j->type, buf, j->dtype, q + i * step, step, n);
                j->k->row(a, buf, n, at + i);
            }
        }
        at += len;
    }
}

static void row_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t end = (task + 1) * j->part_n < j->m ? (task + 1) * j->part_n : j->m;
    for (int64_t o = task * j->part_n; o < end; o++) {
        np_acc a = j->k->start;
        fold(j, o, 0, j->n, &a);
        j->store(j, o, &a);
    }
}

static void part_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t o = task / j->parts, lo = task % j->parts * j->part_n;
    int64_t hi = lo + j->part_n < j->n ? lo + j->part_n : j->n;
    j->partial[task] = j->k->start;
    if (lo < hi) fold(j, o, lo, hi, &j->partial[task]);
}

/* Few long reductions: each in equal pieces, merged in order. */
static bool run_parts(neap_ctx *c, red_job *j)
{
    np_acc partial[RED_PARTS];
    j->partial = partial;
    j->parts = (j->n + NP_GRAIN - 1) / NP_GRAIN;
    if (j->parts > RED_PARTS / j->m) j->parts = RED_PARTS / j->m;
    j->part_n = (j->n + j->parts - 1) / j->parts;
    if (!np_parallel(c, j->m * j->parts, part_task, j)) return false;
    for (int64_t o = 0; o < j->m; o++) {
        np_acc a = j->k->start;
        for (int64_t k = 0; k < j->parts; k++) j->k->merge(&a, &partial[o * j->parts + k]);
        j->store(j, o, &a);
    }
    return true;
}

static bool run_rows(neap_ctx *c, red_job *j)
{
    if (j->m <= 16 && j->n > 2 * NP_GRAIN) return run_parts(c, j);
    j->part_n = j->n > 0 ? (NP_GRAIN + j->n - 1) / j->n : NP_GRAIN;
    return np_parallel(c, (j->m + j->part_n - 1) / j->part_n, row_task, j);
}

/* Rows [lo, hi) of a block of columns into 8-byte accumulators. */
static void fold_cols(const red_job *j, int64_t outer, int64_t col, int64_t n, int64_t lo, int64_t hi,
                      uint64_t *acc)
{
    int64_t size = (int64_t)np_dtype_size(j->dtype);
    const char *p = j->x + col * size;
    for (int d = j->nk - 2; d >= 0; d--) p += outer % j->kshape[d] * j->kstride[d], outer /= j->kshape[d];
    _Alignas(64) unsigned char buf[RED_COLS * 8];
    for (int64_t r = lo; r < hi; r++) {
        const char *q = p + r * j->rstride[0];
        if (j->dtype != j->type) {
            np_block_load(j->type, buf, j->dtype, q, size, n);
            q = (const char *)buf;
        }
        j->k->cols(acc, q, n);
    }
}

static void col_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t part = task % j->parts, block = task / j->parts;
    int64_t outer = block / j->col_tasks, col = block % j->col_tasks * RED_COLS;
    int64_t n = j->cols - col < RED_COLS ? j->cols - col : RED_COLS;
    int64_t lo = part * j->part_n, hi = lo + j->part_n < j->n ? lo + j->part_n : j->n;
    uint64_t acc[RED_COLS] = {0};
    fold_cols(j, outer, col, n, lo, hi, acc);
    for (int64_t i = 0; i < n; i++) {
        np_acc a = {.i = (int64_t)acc[i], .at = -1};
        if (j->parts == 1) j->store(j, outer * j->cols + col + i, &a);
        else j->partial[task * RED_COLS + i] = a;
    }
}

static bool run_cols(neap_ctx *c, red_job *j)
{
    enum { TASKS = 16 };
    np_acc partial[TASKS * RED_COLS];
    j->partial = partial;
    j->cols = j->kshape[j->nk - 1];
    j->col_tasks = (j->cols + RED_COLS - 1) / RED_COLS;
    int64_t blocks = j->m / j->cols * j->col_tasks;
    int64_t width = j->cols < RED_COLS ? j->cols : RED_COLS;
    j->parts = (j->n * width + NP_GRAIN - 1) / NP_GRAIN;
    if (j->parts * blocks > TASKS) j->parts = TASKS / blocks;
    if (j->parts < 1) j->parts = 1;
    j->part_n = (j->n + j->parts - 1) / j->parts;
    if (!np_parallel(c, blocks * j->parts, col_task, j)) return false;
    for (int64_t b = 0; b < blocks && j->parts > 1; b++) {
        int64_t outer = b / j->col_tasks, col = b % j->col_tasks * RED_COLS;
        int64_t n = j->cols - col < RED_COLS ? j->cols - col : RED_COLS;
        for (int64_t i = 0; i < n; i++) {
            np_acc a = j->k->start;
            for (int64_t k = 0; k < j->parts; k++)
                j->k->merge(&a, &partial[(b * j->parts + k) * RED_COLS + i]);
            j->store(j, outer * j->cols + col + i, &a);
        }
    }
    return true;
}

/* Appends a dim, merged into the one before it when both are one run. */
static void push_dim(int *n, int64_t *shape, int64_t *stride, int64_t size, int64_t step)
{
    if (size == 1) return;
    if (*n > 0 && stride[*n - 1] == step * size) {
        shape[*n - 1] *= size, stride[*n - 1] = step;
        return;
    }
    shape[*n] = size, stride[*n] = step;
    ++*n;
}

/* Reduces dims `mask` of in[0] into out[0] (and out[1]). `kinds` by run type. */
static bool reduce(np_frame *f, uint32_t mask, const red_kind *k, neap_dtype type,
                   void (*store)(const red_job *, int64_t, const np_acc *), int64_t base)
{
    const neap_tensor *x = f->in[0];
    red_job j = {.k = k,
                 .type = type,
                 .dtype = (neap_dtype)x->dtype,
                 .x = np_ptr(x),
                 .m = 1,
                 .n = 1,
                 .store = store,
                 .out = {f->out[0], f->n_out > 1 ? f->out[1] : NULL},
                 .base = base};
    int64_t size = (int64_t)np_itemsize(x);
    for (int d = 0; d < x->ndim; d++) {
        bool reduced = mask >> d & 1;
        *(reduced ? &j.n : &j.m) *= x->shape[d];
        if (reduced) push_dim(&j.nr, j.rshape, j.rstride, x->shape[d], x->stride[d] * size);
        else push_dim(&j.nk, j.kshape, j.kstride, x->shape[d], x->stride[d] * size);
    }
    if (j.m == 0) return true;
    bool by_cols =
        k->cols && j.n > 0 && j.nr == 1 && j.nk > 0 && j.kstride[j.nk - 1] == size && j.rstride[0] != size;
    return by_cols ? run_cols(f->c, &j) : run_rows(f->c, &j);
}

/* Bool counts and compares as uint8; half types as float. */
static inline neap_dtype red_type(neap_dtype t) { return np_run_type(t); }

/* Bit mask of the dims of attribute `a` (dims?); absent or empty: all. In kernels they are known to be legal. */
static inline uint32_t dims_mask(const np_attr *a, int ndim)
{
    uint32_t mask = 0;
    if (!a->has || a->n == 0) return (1u << ndim) - 1;
    for (int i = 0; i < a->n; i++)
        if (ndim > 0) mask |= 1u << (a->v[i] < 0 ? a->v[i] + ndim : a->v[i]);
    return mask;
}
static inline uint32_t dim_mask(const np_attr *a, int ndim) /* dim? */
{
    if (!a->has || ndim == 0) return (1u << ndim) - 1;
    return 1u << (a->i < 0 ? a->i + ndim : a->i);
}

/* ---- infer, gradients, samples shared by the ops */

#ifdef NP_BASE_ONLY

static void reduced_meta(np_frame *f, int out, neap_dtype t, uint32_t mask, bool keepdim)
{
    const neap_tensor *x = f->in[0];
    int64_t shape[NEAP_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1)) shape[n++] = x->shape[d];
        else if (keepdim) shape[n++] = 1;
    }
    np_meta_set(f, out, t, n, shape);
}

static bool infer_dims(np_frame *f, neap_dtype t)
{
    const neap_tensor *x = f->in[0];
    const np_attr *a = &f->attr[0];
    uint32_t seen = 0;
    if (!np_same_device(f)) return false;
    for (int i = 0; a->has && i < a->n; i++) {
        int d = np_wrap_dim(f->c, a->v[i], x->ndim);
        if (d < 0) return false;
        if (seen >> d & 1) {
            np_fail(f->c, NEAP_E_DIMS, "dimension %lld is listed twice", (long long)(d + f->c->base));
            return false;
        }
        seen |= 1u << d;
    }
    f->compute = (neap_dtype)x->dtype;
    reduced_meta(f, 0, t, dims_mask(a, x->ndim), f->attr[1].i != 0);
    return true;
}
static neap_dtype summed(neap_dtype t) { return np_is_float(t) ? t : NEAP_INT64; }
static bool sum_infer(np_frame *f) { return infer_dims(f, summed((neap_dtype)f->in[0]->dtype)); }
static bool truth_infer(np_frame *f) { return infer_dims(f, NEAP_BOOL); }
static bool mean_infer(np_frame *f)
{
    return np_infer_float(f) && infer_dims(f, (neap_dtype)f->meta[0].dtype);
}

/* One dim, or none for all: f->compute, and whether there is something to choose from. */
static bool infer_dim(np_frame *f, bool needs_elements)
{
    const neap_tensor *x = f->in[0];
    if (!np_same_device(f)) return false;
    f->compute = (neap_dtype)x->dtype;
    int d = f->attr[0].has ? np_wrap_dim(f->c, f->attr[0].i, x->ndim) : 0;
    if (d < 0) return false;
    if (!needs_elements) return true;
    char text[128];
    if (!f->attr[0].has && x->numel == 0) {
        np_fail(f->c, NEAP_E_SHAPE, "%s has no elements to choose from; check x:numel() first",
                np_tensor_text(text, sizeof text, x));
        return false;
    }
    if (f->attr[0].has && x->ndim > 0 && x->shape[d] == 0) {
        np_fail(f->c, NEAP_E_SHAPE, "dimension %d of %s has size 0: there is nothing to choose from",
                d + f->c->base, np_tensor_text(text, sizeof text, x));
        return false;
    }
    return true;
}

/* The shape of the node's input 0. */
static bool x_shape(np_back *b, int *ndim, int64_t *shape)
{
    neap_dtype t;
    return np_input_shape(b, 0, ndim, shape, &t);
}
/* g of a result with reduced dims, repeated over them. */
static neap_tensor *spread(np_back *b, neap_tensor *g)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!x_shape(b, &ndim, shape)) return NULL;
    const np_attr *a = &b->attr[0];
    return np_spread(b, g, shape, ndim, a->has ? a->v : NULL, a->n, b->attr[1].i != 0);
}
/* The same for ops with one optional dim. */
static neap_tensor *spread_dim(np_back *b, neap_tensor *g)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!x_shape(b, &ndim, shape)) return NULL;
    const np_attr *a = &b->attr[0];
    return np_spread(b, g, shape, ndim, a->has ? &a->i : NULL, a->has, b->attr[1].i != 0);
}

static bool sample_dims(np_sampler *s, int i)
{
    static const struct {
        const char *label;
        int layout, n;
        int64_t dims[2];
        int keep;
    } k[] = {
        {"all", 0, -1, {0}, 0},         {"last", 0, 1, {-1}, 0},  {"first", 0, 1, {0}, 0},
        {"middle, kept", 1, 1, {1}, 1}, {"two", 2, 2, {0, 2}, 0}, {"last two", 0, 2, {2, 1}, 1},
        {"0-dim", 0, -1, {0}, 0},       {"empty", 0, 1, {0}, 0},
    };
    if (i >= (int)(sizeof k / sizeof *k)) return false;
    s->label = k[i].label;
    memcpy(s->lists[0], k[i].dims, sizeof k[i].dims);
    if (k[i].n >= 0) s->attr[0] = (np_attr){.v = s->lists[0], .n = k[i].n, .has = 1};
    s->attr[1] = (np_attr){.i = k[i].keep, .has = 1};
    if (s->large) return i < 3 && np_s_tensor(s, -2, 2, 0, 2, (int64_t)2048, (int64_t)1024);
    if (i == 6) return np_s_tensor(s, -2, 2, 0, 0);
    if (i == 7) return np_s_tensor(s, -2, 2, 0, 2, (int64_t)0, (int64_t)3);
    return np_s_tensor(s, -2, 2, k[i].layout, 3, (int64_t)2, (int64_t)3, (int64_t)4);
}
static bool sample_dim(np_sampler *s, int i)
{
    static const struct {
        const char *label;
        int layout, has;
        int64_t dim;
        int keep;
    } k[] = {
        {"all", 0, 0, 0, 0},          {"last", 0, 1, -1, 0}, {"first", 1, 1, 0, 0},
        {"middle, kept", 2, 1, 1, 1}, {"0-dim", 0, 0, 0, 0},
    };
    if (i >= (int)(sizeof k / sizeof *k)) return false;
    s->label = k[i].label;
    if (k[i].has) s->attr[0] = (np_attr){.i = k[i].dim, .has = 1};
    s->attr[1] = (np_attr){.i = k[i].keep, .has = 1};
    if (s->large) return i < 3 && np_s_tensor(s, -2, 2, 0, 2, (int64_t)2048, (int64_t)1024);
    if (i == 4) return np_s_tensor(s, -2, 2, 0, 0);
    return np_s_tensor(s, 0.3, 2, k[i].layout, 3, (int64_t)2, (int64_t)3, (int64_t)4);
}

#endif

/* ---- sums */

/* sum(x, [dims], {keepdim=}): the sum over dims, or over all. Integers and bool give int64. Half types and
 * float32 add up in double. x:sum(), x:sum(2), x:sum({1, 2}, {keepdim = true}). */
NP_CPU(sum)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, dims_mask(&f->attr[0], f->in[0]->ndim), &sum_kinds[t], t, store_value, 0);
}

/* mean(x, [dims], {keepdim=}): the average over dims, or over all; of nothing NaN; integers give floats. */
NP_CPU(mean)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, dims_mask(&f->attr[0], f->in[0]->ndim), &sum_kinds[t], t, store_mean, 0);
}

#ifdef NP_BASE_ONLY
static void sum_grad(np_back *b) { b->dx[0] = spread(b, b->g[0]); }
static void mean_grad(np_back *b)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS], n = 1;
    if (!x_shape(b, &ndim, shape)) return;
    uint32_t mask = dims_mask(&b->attr[0], ndim);
    for (int d = 0; d < ndim; d++)
        if (mask >> d & 1) n *= shape[d];
    b->dx[0] = spread(b, np_div(b, b->g[0], np_num(b, (double)n)));
}
NP_OP(sum) = {NP_NAMED(sum),
              .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP,
              .infer = sum_infer,
              .grad = sum_grad,
              .sample = sample_dims};
NP_OP(mean) = {NP_NAMED(mean),
               .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
               .tags = NP_REDUCE | NP_CHEAP,
               .infer = mean_infer,
               .grad = mean_grad,
               .sample = sample_dims};

/* spread(g, shape, [dims], keepdim): a view of g repeated over the dims that a reduction removed. */
static bool spread_infer(np_frame *f)
{
    const neap_tensor *g = f->in[0];
    const np_attr *shape = &f->attr[0];
    uint32_t mask = dims_mask(&f->attr[1], shape->n);
    int64_t stride[NEAP_MAX_DIMS];
    if (!np_same_device(f)) return false;
    for (int d = 0, k = 0; d < shape->n; d++) {
        bool reduced = mask >> d & 1;
        stride[d] = reduced ? 0 : g->stride[k];
        if (!reduced || f->attr[2].i) k++;
    }
    f->compute = (neap_dtype)g->dtype;
    np_meta_view(f, 0, shape->n, shape->v, stride, g->offset);
    return true;
}
static void spread_grad(np_back *b)
{
    const np_attr *a = &b->attr[1];
    b->dx[0] = np_sum(b, b->g[0], a->has ? a->v : NULL, a->n, b->attr[2].i != 0);
}
static bool spread_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "all" : "middle";
    memcpy(s->lists[0], (int64_t[]){2, 3, 4}, 3 * sizeof(int64_t));
    s->lists[1][0] = 1;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 3, .has = 1};
    if (!i) s->attr[1] = (np_attr){.v = s->lists[1], .n = 1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return i ? np_s_tensor(s, -2, 2, 0, 0) : np_s_tensor(s, -2, 2, 0, 2, (int64_t)2, (int64_t)4);
}
NP_OP(spread) = {NP_NAMED(spread),
                 .args = "g:T shape:shape dims:dims? keepdim:bool -> y:T",
                 .tags = NP_VIEW | NP_INTERNAL,
                 .infer = spread_infer,
                 .grad = spread_grad,
                 .sample = spread_sample};
#endif

/* ---- products */

/* prod(x, [dim], {keepdim=}): the product over one dim, or over all. Integers and bool give int64. */
NP_CPU(prod)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, dim_mask(&f->attr[0], f->in[0]->ndim), &prod_kinds[t], t, store_value, 0);
}

/* A slice of x along `dim`, or all of x in row-major order: its length, and where its i-th element is in the
 * contiguous result. */
typedef struct slices {
    int64_t n, inner, count;
} slices;
static inline slices slices_of(const neap_tensor *x, const np_attr *dim)
{
    slices s = {.n = x->numel, .inner = 1, .count = x->numel > 0};
    if (!dim->has || x->ndim == 0) return s;
    int d = (int)(dim->i < 0 ? dim->i + x->ndim : dim->i);
    s.n = x->shape[d];
    for (int k = d + 1; k < x->ndim; k++) s.inner *= x->shape[k];
    s.count = s.n > 0 ? x->numel / s.n : 0;
    return s;
}
static inline int64_t slice_at(const slices *s, int64_t slice, int64_t i)
{
    return (slice / s->inner * s->n + i) * s->inner + slice % s->inner;
}
static inline double element(const neap_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->ndim - 1; d >= 0; d--) at += i % t->shape[d] * t->stride[d], i /= t->shape[d];
    return np_load_double((neap_dtype)t->dtype, np_ptr(t) + at * (int64_t)np_itemsize(t));
}
static inline void put(neap_tensor *t, int64_t i, double v)
{
    np_store_double((neap_dtype)t->dtype, np_ptr(t) + i * (int64_t)np_itemsize(t), v);
}

/* prod_others(x, [dim]): for each element the product of all others of its slice; exact with zeros. */
NP_CPU(prod_others)(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    slices s = slices_of(x, &f->attr[0]);
    for (int64_t k = 0; k < s.count; k++) {
        double p = 1;
        for (int64_t i = 0; i < s.n; i++) { /* products before i */
            int64_t at = slice_at(&s, k, i);
            put(f->out[0], at, p);
            p *= element(x, at);
        }
        p = 1;
        for (int64_t i = s.n - 1; i >= 0; i--) { /* times products after i */
            int64_t at = slice_at(&s, k, i);
            put(f->out[0], at, p * element(f->out[0], at));
            p *= element(x, at);
        }
    }
    return true;
}

/* prod_others_grad(h, x, [dim]): the gradient of sum(h * prod_others(x)) in x. With products of dual numbers
 * x + e h before and after an element, it is the e part of their product: no division, exact with zeros. */
NP_CPU(prod_others_grad)(np_frame *f)
{
    const neap_tensor *h = f->in[0], *x = f->in[1];
    slices s = slices_of(x, &f->attr[0]);
    np_mem *mem = &f->c->devices[0]->mem;
    size_t bytes = (size_t)s.n * 2 * sizeof(double);
    double *before = np_mem_take(mem, bytes, NEAP_WORKSPACE); /* (n,2) */
    if (!before) return false;
    for (int64_t k = 0; k < s.count; k++) {
        double p = 1, dp = 0;
        for (int64_t i = 0; i < s.n; i++) {
            int64_t at = slice_at(&s, k, i);
            double v = element(x, at);
            before[2 * i] = p, before[2 * i + 1] = dp;
            dp = dp * v + p * element(h, at), p *= v;
        }
        p = 1, dp = 0;
        for (int64_t i = s.n - 1; i >= 0; i--) {
            int64_t at = slice_at(&s, k, i);
            double v = element(x, at);
            put(f->out[0], at, before[2 * i] * dp + before[2 * i + 1] * p);
            dp = dp * v + p * element(h, at), p *= v;
        }
    }
    np_mem_give(mem, before, bytes, NEAP_WORKSPACE);
    return true;
}

#ifdef NP_BASE_ONLY
static bool prod_infer(np_frame *f)
{
    if (!infer_dim(f, false)) return false;
    reduced_meta(f, 0, summed(f->compute), dim_mask(&f->attr[0], f->in[0]->ndim), f->attr[1].i != 0);
    return true;
}
static void prod_grad(np_back *b)
{
    const np_attr *a = &b->attr[0];
    neap_tensor *others = np_prod_others(b, b->saved[0], a->has ? &a->i : NULL);
    b->dx[0] = np_mul(b, spread_dim(b, b->g[0]), others);
}
static void prod_others_backward(np_back *b)
{
    const np_attr *a = &b->attr[0];
    b->dx[0] = np_prod_others_grad(b, b->g[0], b->saved[0], a->has ? &a->i : NULL);
}
static void prod_others_grad_backward(np_back *b)
{
    np_fail(b->c, NEAP_E_NOGRAD, "third derivatives of prod are not available; write the product out");
}
static bool prod_others_infer(np_frame *f) { return infer_dim(f, false) && np_infer_same(f); }
static bool prod_others_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "dim" : "all";
    s->no_grad = 3; /* checked by the second order of prod: a third one there is not */
    if (i) s->attr[0] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, 0.3, 2, i, 2, (int64_t)3, (int64_t)2);
}
static bool prod_others_grad_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    return np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)2) && prod_others_sample(s, i);
}
NP_OP(prod) = {NP_NAMED(prod),
               .args = "x:T dim:dim? ; keepdim:bool=false -> y:T",
               .tags = NP_REDUCE | NP_CHEAP,
               .save = {NP_IN(0)},
               .infer = prod_infer,
               .grad = prod_grad,
               .sample = sample_dim};
NP_OP(prod_others) = {NP_NAMED(prod_others),          .args = "x:T dim:dim? -> y:T",
                      .tags = NP_CHEAP | NP_INTERNAL, .save = {NP_IN(0)},
                      .infer = prod_others_infer,     .grad = prod_others_backward,
                      .sample = prod_others_sample};
NP_OP(prod_others_grad) = {NP_NAMED(prod_others_grad),        .args = "h:T x:T dim:dim? -> dx:T",
                           .tags = NP_CHEAP | NP_INTERNAL,    .infer = prod_others_infer,
                           .grad = prod_others_grad_backward, .sample = prod_others_grad_sample};
#endif

/* ---- extremes */

static inline bool extreme(np_frame *f, const red_kind *kinds, bool position)
{
    neap_dtype t = red_type(f->compute);
    return reduce(f, dim_mask(&f->attr[0], f->in[0]->ndim), &kinds[t], t,
                  position ? store_position : store_extreme, f->attr[2].i);
}

/* max(x, [dim], {keepdim=}) -> values, positions: the largest along dim and where it is (the first of equal ones,
 * NaN before all). Without dim: the largest of all elements, alone. local v, i = x:max(2).
 * Along a dim the gradient goes to the chosen element; without dim it is shared evenly by all equal ones. */
NP_CPU(max)(np_frame *f) { return extreme(f, max_kinds, false); }

/* min(x, [dim], {keepdim=}) -> values, positions: the smallest along dim and where it is, as max. */
NP_CPU(min)(np_frame *f) { return extreme(f, min_kinds, false); }

/* argmax(x, [dim], {keepdim=}): the position of the largest along dim, or in x laid out in a row. */
NP_CPU(argmax)(np_frame *f) { return extreme(f, max_kinds, true); }

/* argmin(x, [dim], {keepdim=}): the position of the smallest along dim, or in x laid out in a row. */
NP_CPU(argmin)(np_frame *f) { return extreme(f, min_kinds, true); }

/* Moves values between (shape) and its reduced form, at positions ids along dim. */
static inline void move_chosen(neap_tensor *full, neap_tensor *few, const neap_tensor *ids, int dim,
                               int64_t base, bool scatter)
{
    int64_t size = (int64_t)np_itemsize(full), step = full->stride[dim] * size, inner = 1;
    for (int d = dim + 1; d < full->ndim; d++) inner *= full->shape[d];
    for (int64_t k = 0; k < ids->numel; k++) {
        int64_t id, outer = k / inner, rest = k % inner, at = 0, src = 0, r = k;
        np_read_block(ids, k, 1, NEAP_INT64, &id);
        for (int d = full->ndim - 1; d > dim; d--)
            at += rest % full->shape[d] * full->stride[d], rest /= full->shape[d];
        for (int d = dim - 1; d >= 0; d--)
            at += outer % full->shape[d] * full->stride[d], outer /= full->shape[d];
        for (int d = few->ndim - 1; d >= 0; d--)
            src += r % few->shape[d] * few->stride[d], r /= few->shape[d];
        char *a = np_ptr(full) + at * size + (id - base) * step, *b = np_ptr(few) + src * size;
        memcpy(scatter ? a : b, scatter ? b : a, (size_t)size);
    }
}

/* max_scatter(g, ids, shape, dim): zeros of that shape with g at positions ids along dim. */
NP_CPU(max_scatter)(np_frame *f)
{
    if (!np_fill_zero(f->c, f->out[0])) return false;
    move_chosen(f->out[0], f->in[0], f->in[1], (int)f->attr[1].i, f->attr[2].i, true);
    return true;
}

/* max_pick(x, ids, dim): the elements of x at positions ids along dim, in the shape of ids. */
NP_CPU(max_pick)(np_frame *f)
{
    move_chosen(f->in[0], f->out[0], f->in[1], (int)f->attr[0].i, f->attr[1].i, false);
    return true;
}

#ifdef NP_BASE_ONLY
static bool extreme_infer(np_frame *f)
{
    if (!infer_dim(f, true)) return false;
    uint32_t mask = dim_mask(&f->attr[0], f->in[0]->ndim);
    reduced_meta(f, 0, f->compute, mask, f->attr[1].i != 0);
    if (f->attr[0].has) reduced_meta(f, 1, NEAP_INT64, mask, f->attr[1].i != 0);
    else f->n_out = 1;
    return true;
}
static bool position_infer(np_frame *f)
{
    if (!infer_dim(f, true)) return false;
    reduced_meta(f, 0, NEAP_INT64, dim_mask(&f->attr[0], f->in[0]->ndim), f->attr[1].i != 0);
    return true;
}
/* Saved: x, values, positions. */
static void extreme_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *y = b->saved[1];
    const np_attr *dim = &b->attr[0];
    if (dim->has && x->ndim > 0) {
        int64_t d = dim->i < 0 ? dim->i + x->ndim : dim->i;
        b->dx[0] = np_max_scatter(b, g, b->saved[2], x->shape, x->ndim, d, b->attr[2].i);
        return;
    }
    neap_tensor *chosen = np_hold(b, np_eq(b, x, y));
    neap_tensor *share = np_div0(b, g, np_sum(b, chosen, NULL, 0, false));
    b->dx[0] = np_where(b, chosen, share, np_num(b, 0));
}
static bool max_scatter_infer(np_frame *f)
{
    if (!np_same_device(f)) return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, f->attr[0].n, f->attr[0].v);
    return true;
}
static void max_scatter_grad(np_back *b)
{
    b->dx[0] = np_max_pick(b, b->g[0], b->saved[0], b->attr[1].i, b->attr[2].i);
}
static bool max_pick_infer(np_frame *f)
{
    if (!np_same_device(f)) return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, f->in[1]->ndim, f->in[1]->shape);
    return true;
}
static void max_pick_grad(np_back *b)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!x_shape(b, &ndim, shape)) return;
    b->dx[0] = np_max_scatter(b, b->g[0], b->saved[0], shape, ndim, b->attr[0].i, b->attr[1].i);
}
static bool max_scatter_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    s->label = "last";
    memcpy(s->lists[0], (int64_t[]){2, 3}, 2 * sizeof(int64_t));
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 2, .has = 1};
    s->attr[1] = (np_attr){.i = 1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, -2, 2, 0, 1, (int64_t)2) && np_s_ids(s, 0, 2, 1, (int64_t)2);
}
static bool max_pick_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    s->label = "first";
    s->attr[0] = s->attr[1] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, -2, 2, 1, 2, (int64_t)3, (int64_t)2) && np_s_ids(s, 0, 2, 1, (int64_t)2);
}
#define EXTREME_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), \
                     .args = "x:T dim:dim? ; keepdim:bool=false base:base -> values:T indices:T", \
                     .tags = NP_REDUCE | NP_CHEAP, \
                     .save = {NP_IN(0), NP_OUT(0), NP_OUT(1)}, \
                     .infer = extreme_infer, \
                     .grad = extreme_grad, \
                     .sample = sample_dim};
#define POSITION_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "x:T dim:dim? ; keepdim:bool=false base:base -> indices:T", \
                     .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF, .infer = position_infer, \
                     .sample = sample_dim};
EXTREME_OP(max)
EXTREME_OP(min)
POSITION_OP(argmax)
POSITION_OP(argmin)
NP_OP(max_scatter) = {
    NP_NAMED(max_scatter),          .args = "g:T ids:T shape:shape dim:dim base:base -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL, .save = {NP_IN(1)},
    .infer = max_scatter_infer,     .grad = max_scatter_grad,
    .sample = max_scatter_sample};
NP_OP(max_pick) = {NP_NAMED(max_pick),
                   .args = "x:T ids:T dim:dim base:base -> y:T",
                   .tags = NP_CHEAP | NP_INTERNAL,
                   .save = {NP_IN(1)},
                   .infer = max_pick_infer,
                   .grad = max_pick_grad,
                   .sample = max_pick_sample};
#endif

/* ---- truth */

/* any(x, [dims], {keepdim=}): is an element nonzero (NaN is)? Without dims a boolean; with dims a bool tensor. */
NP_CPU(any)(np_frame *f)
{
    return reduce(f, dims_mask(&f->attr[0], f->in[0]->ndim), &any_kind, NEAP_BOOL, store_value, 0);
}

/* all(x, [dims], {keepdim=}): is every element nonzero? Without dims a boolean; with dims a bool tensor. */
NP_CPU(all)(np_frame *f)
{
    return reduce(f, dims_mask(&f->attr[0], f->in[0]->ndim), &all_kind, NEAP_BOOL, store_value, 0);
}

#ifdef NP_BASE_ONLY
NP_OP(any) = {NP_NAMED(any), .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF | NP_TRUTH, .infer = truth_infer,
              .sample = sample_dims};
NP_OP(all) = {NP_NAMED(all), .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF | NP_TRUTH, .infer = truth_infer,
              .sample = sample_dims};
#endif
