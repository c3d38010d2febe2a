/* reduce.h - the driver of reductions: sums, products, extremes, truth, norms over some or all dimensions.
 *
 * A reduction is described by an accumulator (np_acc) and three functions: fold a run of elements, merge two
 * accumulators, store the result. The driver splits the input into kept and reduced dims, merges neighbours and
 * takes one of two ways: by columns, when the innermost memory dim is kept, and by rows otherwise. Reduced dims are
 * walked in row-major order, so positions are logical ones. Work is cut by shape alone and partial results are
 * merged in order: the bits do not depend on threads. Floats are np_summed in double, integers in int64 (wrapping).
 * Empty reductions: sum 0, prod 1, mean NaN, any false, all true; an extreme of nothing is an error. */
#ifndef NP_REDUCE_H
#define NP_REDUCE_H

#include "ops/cpu/loops.h"
#include "ops/sample.h"

#define RED_PARTS 256 /* partial results on the stack, at most */
#define RED_COLS 256  /* columns of one task */

typedef struct np_acc {
    union {
        double d;
        int64_t i;
    };
    int64_t at; /* extremes: position, -1 none yet */
    double
        k; /* of the reduction or of this result: the exponent of a norm, the mean that a variance is about */
} np_acc;

/* How to reduce elements of one compute type. */
typedef struct red_kind {
    np_acc start;
    void (*row)(np_acc *a, const void *x, int64_t n,
                int64_t at);                   /* n dense elements, the first is number `at` */
    void (*merge)(np_acc *a, const np_acc *b); /* b comes after a */
    /* or NULL; `rows` rows of n elements, `stride` bytes apart, in order into 8-byte accumulators, behind RED_COLS of
     * which lie the k of each column */
    void (*cols)(void *acc, const char *x, int64_t n, int64_t rows, int64_t stride);
    bool is_int; /* the accumulator is .i */
} red_kind;

typedef struct red_job {
    const red_kind *kind;
    neap_dtype type, dtype; /* of the run, of the memory */
    const char *x;
    int nk, nr; /* merged kept and reduced dims, outermost first; byte strides */
    int64_t kshape[NEAP_MAX_DIMS], kstride[NEAP_MAX_DIMS], rshape[NEAP_MAX_DIMS], rstride[NEAP_MAX_DIMS];
    int64_t m, n; /* results, elements per result */
    void (*store)(const struct red_job *j, int64_t o, const np_acc *a);
    neap_tensor *out[2];
    int64_t base;     /* added to stored positions */
    double k;         /* np_acc.k of all results, or */
    const double *ks; /* of each */
    void *user;       /* of store */
    /* cutting */
    int64_t parts, part_n; /* pieces of a reduction; rows per task otherwise */
    int64_t cols, col_tasks;
    np_acc *partial;
    uint64_t *col_partial;
} red_job;

static inline np_acc red_start(const red_job *j, int64_t o)
{
    np_acc a = j->kind->start;
    a.k = j->ks ? j->ks[o] : j->k;
    return a;
}

/* Sums of an expression over elements v (double) and the reduction's k: sixteen lanes, folded pairwise at the end, and
 * the same by columns. */
#define RED_SUM_ROW(name, S, T, v, K, expr) \
    static void name##_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x_ = px; \
        const double K = a->k; \
        (void)K; \
        double lane[16] = {0}, rest = 0; \
        int64_t i_ = 0; \
        for (; i_ + 16 <= n; i_ += 16) \
            for (int l = 0; l < 16; l++) { \
                const double v = (double)x_[i_ + l]; \
                lane[l] += (expr); \
            } \
        for (; i_ < n; i_++) { \
            const double v = (double)x_[i_]; \
            rest += (expr); \
        } \
        for (int w = 8; w > 0; w >>= 1) \
            for (int l = 0; l < w; l++) lane[l] += lane[l + w]; \
        a->d += lane[0] + rest; \
    }
#define RED_SUM_COLS(name, S, T, v, K, expr) RED_COLS_OF(name##_cols_##S, T, double, double, v, K, expr)

/* Four rows at a time, so that the accumulators move a quarter as often; each column still adds in order. */
#define RED_COLS_OF(name, T, A, V, v, K, expr) \
    static inline A name##_of(V v, double K) \
    { \
        (void)K; \
        return (A)(expr); \
    } \
    static void name(void *acc, const char *x, int64_t n, int64_t rows, int64_t stride) \
    { \
        A *a = acc; \
        const double *k = (const double *)acc + RED_COLS; \
        (void)k; \
        for (; rows >= 4; rows -= 4, x += 4 * stride) { \
            const T *p = (const T *)x, *q = (const T *)(x + stride), *r = (const T *)(x + 2 * stride), \
                    *s = (const T *)(x + 3 * stride); \
            NP_IVDEP for (int64_t i = 0; i < n; i++) a[i] = \
                a[i] + name##_of((V)p[i], k[i]) + name##_of((V)q[i], k[i]) + name##_of((V)r[i], k[i]) + \
                name##_of((V)s[i], k[i]); \
        } \
        for (; rows > 0; rows--, x += stride) { \
            const T *p = (const T *)x; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) a[i] += name##_of((V)p[i], k[i]); \
        } \
    }
/* float and double; other dtypes are folded as one of them. */
#define RED_SUM_FLOATS(name, v, K, expr) \
    RED_SUM_ROW(name, f32, float, v, K, expr) \
    RED_SUM_ROW(name, f64, double, v, K, expr) \
    RED_SUM_COLS(name, f32, float, v, K, expr) \
    RED_SUM_COLS(name, f64, double, v, K, expr) \
    static const red_kind name##_kinds[NEAP_N_DTYPES] = { \
        [NEAP_FLOAT32] = {.row = name##_row_f32, .merge = sum_merge_d, .cols = name##_cols_f32}, \
        [NEAP_FLOAT64] = {.row = name##_row_f64, .merge = sum_merge_d, .cols = name##_cols_f64}};
static inline void sum_merge_d(np_acc *a, const np_acc *b) { a->d += b->d; }

/* Folded as float or double, whatever it is. */
static inline neap_dtype red_float(neap_dtype t) { return np_is_float(t) ? np_run_type(t) : NEAP_FLOAT64; }

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
/* ---- storing */

static inline void store_value(const red_job *j, int64_t o, const np_acc *a)
{
    neap_dtype t = (neap_dtype)j->out[0]->dtype;
    char *y = np_ptr(j->out[0]) + o * (int64_t)np_dtype_size(t);
    if (j->kind->is_int) np_store_int(t, y, a->i);
    else if (t == NEAP_FLOAT32) *(float *)(void *)y = (float)a->d;
    else np_store_double(t, y, a->d);
}
/* ---- the driver */

/* Elements [lo, hi) of reduction o. */
static inline void fold(const red_job *j, int64_t o, int64_t lo, int64_t hi, np_acc *a)
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
            j->kind->row(a, q, len, at);
        } else {
            for (int64_t i = 0; i < len; i += NP_BLOCK) {
                int64_t n = len - i < NP_BLOCK ? len - i : NP_BLOCK;
                np_block_load(j->type, buf, j->dtype, q + i * step, step, n);
                j->kind->row(a, buf, n, at + i);
            }
        }
        at += len;
    }
}

static inline void row_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t end = (task + 1) * j->part_n < j->m ? (task + 1) * j->part_n : j->m;
    for (int64_t o = task * j->part_n; o < end; o++) {
        np_acc a = red_start(j, o);
        fold(j, o, 0, j->n, &a);
        j->store(j, o, &a);
    }
}

static inline void part_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t o = task / j->parts, lo = task % j->parts * j->part_n;
    int64_t hi = lo + j->part_n < j->n ? lo + j->part_n : j->n;
    j->partial[task] = red_start(j, o);
    if (lo < hi) fold(j, o, lo, hi, &j->partial[task]);
}

/* Few long reductions: each in equal pieces, merged in order. */
static inline bool run_parts(neap_ctx *c, red_job *j)
{
    np_acc partial[RED_PARTS];
    j->partial = partial;
    j->parts = (j->n + NP_GRAIN - 1) / NP_GRAIN;
    if (j->parts > RED_PARTS / j->m) j->parts = RED_PARTS / j->m;
    j->part_n = (j->n + j->parts - 1) / j->parts;
    if (!np_parallel(c, j->m * j->parts, part_task, j)) return false;
    for (int64_t o = 0; o < j->m; o++) {
        np_acc a = red_start(j, o);
        for (int64_t k = 0; k < j->parts; k++) j->kind->merge(&a, &partial[o * j->parts + k]);
        j->store(j, o, &a);
    }
    return true;
}

static inline bool run_rows(neap_ctx *c, red_job *j)
{
    if (j->m <= 16 && j->n > 2 * NP_GRAIN) return run_parts(c, j);
    j->part_n = j->n > 0 ? (NP_GRAIN + j->n - 1) / j->n : NP_GRAIN;
    return np_parallel(c, (j->m + j->part_n - 1) / j->part_n, row_task, j);
}

/* Rows [lo, hi) of a block of columns into 8-byte accumulators. */
static inline void fold_cols(const red_job *j, int64_t outer, int64_t col, int64_t n, int64_t lo, int64_t hi,
                             void *acc)
{
    int64_t size = (int64_t)np_dtype_size(j->dtype);
    const char *p = j->x + col * size;
    for (int d = j->nk - 2; d >= 0; d--) p += outer % j->kshape[d] * j->kstride[d], outer /= j->kshape[d];
    p += lo * j->rstride[0];
    if (j->dtype == j->type) {
        j->kind->cols(acc, p, n, hi - lo, j->rstride[0]);
        return;
    }
    _Alignas(64) char buf[RED_COLS * 8];
    for (int64_t r = lo; r < hi; r++, p += j->rstride[0]) {
        np_block_load(j->type, buf, j->dtype, p, size, n);
        j->kind->cols(acc, buf, n, 1, 0);
    }
}

static inline void col_task(void *arg, int64_t task)
{
    const red_job *j = arg;
    int64_t part = task % j->parts, block = task / j->parts;
    int64_t outer = block / j->col_tasks, col = block % j->col_tasks * RED_COLS;
    int64_t n = j->cols - col < RED_COLS ? j->cols - col : RED_COLS;
    int64_t lo = part * j->part_n, hi = lo + j->part_n < j->n ? lo + j->part_n : j->n;
    union {
        uint64_t sum[RED_COLS];
        double k[2 * RED_COLS];
    } acc = {{0}};
    for (int64_t i = 0; i < n; i++) acc.k[RED_COLS + i] = j->ks ? j->ks[outer * j->cols + col + i] : j->k;
    fold_cols(j, outer, col, n, lo, hi, &acc);
    for (int64_t i = 0; i < n; i++) {
        np_acc a = {.i = (int64_t)acc.sum[i], .at = -1};
        if (j->parts == 1) j->store(j, outer * j->cols + col + i, &a);
        else j->col_partial[task * RED_COLS + i] = acc.sum[i];
    }
}

static inline bool run_cols(neap_ctx *c, red_job *j)
{
    enum { TASKS = 16 };
    uint64_t partial[TASKS * RED_COLS];
    j->col_partial = partial;
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
            np_acc a = red_start(j, outer * j->cols + col + i);
            for (int64_t k = 0; k < j->parts; k++) {
                np_acc part = {.i = (int64_t)partial[(b * j->parts + k) * RED_COLS + i], .at = -1};
                j->kind->merge(&a, &part);
            }
            j->store(j, outer * j->cols + col + i, &a);
        }
    }
    return true;
}

/* Appends a dim, merged into the one before it when both are one run. */
static inline void push_dim(int *n, int64_t *shape, int64_t *stride, int64_t size, int64_t step)
{
    if (size == 1) return;
    if (*n > 0 && stride[*n - 1] == step * size) {
        shape[*n - 1] *= size, stride[*n - 1] = step;
        return;
    }
    shape[*n] = size, stride[*n] = step;
    ++*n;
}

/* The reduction of dims `mask` of in[0] into out[0] (and out[1]), whose elements are folded as `type`. */
static inline red_job red_begin(np_frame *f, uint32_t mask, const red_kind *k, neap_dtype type,
                                void (*store)(const red_job *, int64_t, const np_acc *))
{
    const neap_tensor *x = f->in[0];
    red_job j = {.kind = k,
                 .type = type,
                 .dtype = (neap_dtype)x->dtype,
                 .x = np_ptr(x),
                 .m = 1,
                 .n = 1,
                 .store = store,
                 .out = {f->out[0], f->n_out > 1 ? f->out[1] : NULL}};
    int64_t size = (int64_t)np_itemsize(x);
    for (int d = 0; d < x->ndim; d++) {
        bool reduced = mask >> d & 1;
        *(reduced ? &j.n : &j.m) *= x->shape[d];
        if (reduced) push_dim(&j.nr, j.rshape, j.rstride, x->shape[d], x->stride[d] * size);
        else push_dim(&j.nk, j.kshape, j.kstride, x->shape[d], x->stride[d] * size);
    }
    return j;
}
static inline bool red_run(neap_ctx *c, red_job *j)
{
    int64_t size = (int64_t)np_sizes[j->dtype];
    if (j->m == 0) return true;
    bool by_cols = j->kind->cols && j->n > 0 && j->nr == 1 && j->nk > 0 && j->kstride[j->nk - 1] == size &&
                   j->rstride[0] != size;
    return by_cols ? run_cols(c, j) : run_rows(c, j);
}
static inline bool reduce(np_frame *f, uint32_t mask, const red_kind *k, neap_dtype type,
                          void (*store)(const red_job *, int64_t, const np_acc *), int64_t base)
{
    red_job j = red_begin(f, mask, k, type, store);
    j.base = base;
    return red_run(f->c, &j);
}

/* Bool counts and compares as uint8; half types as float. */
static inline neap_dtype red_type(neap_dtype t) { return np_run_type(t); }

/* ---- for gradients: g of a result with reduced dims, repeated over them (sum.c) */

/* The shape of the node's input 0. */
bool np_x_shape(np_back *b, int *ndim, int64_t *shape);
neap_tensor *np_spread_dims(np_back *b, neap_tensor *g); /* attributes: dims?, keepdim */
neap_tensor *np_spread_dim(np_back *b, neap_tensor *g);  /* attributes: dim?, keepdim */

/* ---- ops that choose one element: max, min, median (extreme.c). Attributes: dim?, keepdim, base */
bool np_infer_extreme(np_frame *f);
void np_extreme_grad(np_back *b);

#endif
