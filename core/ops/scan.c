/* scan.c - running sums, products and linear recurrences along a dimension.
 *
 * A row is walked by one thread in order, in double or, for integers, in int64 (wrapping); rows run in parallel. */
#include "ops/cpu/reduce.h"
#include "ops/cpu/rows.h"

typedef struct scan_job scan_job;
typedef void (*scan_fn)(const void *x, const void *a, void *y, int64_t rows, int64_t n, bool reverse);
struct scan_job {
    const char *x, *a; /* (rows, n); a NULL or a second operand */
    char *y;
    int64_t rows, n, size, per_task;
    bool reverse;
    scan_fn fn;
};

/* Four rows at a time: each sum waits for the one before it, so four waiting together cost as much as one. */
#define SCAN(name, S, T, A, first, op) \
    static void name##_##S(const void *px, const void *pa, void *py, int64_t rows, int64_t n, bool reverse) \
    { \
        const T *x = px; \
        T *y = py; \
        (void)pa, (void)reverse; \
        for (; rows >= 4; rows -= 4, x += 4 * n, y += 4 * n) { \
            A a = first, b = first, c = first, d = first; \
            for (int64_t i = 0; i < n; i++) { \
                a op(A) x[i], b op(A) x[n + i], c op(A) x[2 * n + i], d op(A) x[3 * n + i]; \
                y[i] = (T)a, y[n + i] = (T)b, y[2 * n + i] = (T)c, y[3 * n + i] = (T)d; \
            } \
        } \
        for (; rows > 0; rows--, x += n, y += n) { \
            A a = first; \
            for (int64_t i = 0; i < n; i++) a op(A) x[i], y[i] = (T)a; \
        } \
    }
#define SCAN_ROWS(S, T, A) SCAN(cumsum, S, T, A, 0, +=) SCAN(cumprod, S, T, A, 1, *=)
/* Forward y[i] = u[i] + a[i] y[i-1]; reverse, its transpose, y[i] = u[i] + a[i+1] y[i+1]. */
#define SCAN_LINEAR(S, T) \
    static void linear_##S(const void *pu, const void *pa, void *py, int64_t rows, int64_t n, bool reverse) \
    { \
        const T *u = pu, *a = pa; \
        T *y = py; \
        for (; rows > 0; rows--, u += n, a += n, y += n) { \
            double s = 0; \
            for (int64_t i = 0; !reverse && i < n; i++) s = (double)u[i] + (double)a[i] * s, y[i] = (T)s; \
            for (int64_t i = n - 1; reverse && i >= 0; i--) { \
                s = (double)u[i] + (i + 1 < n ? (double)a[i + 1] * s : 0); \
                y[i] = (T)s; \
            } \
        } \
    }
SCAN_ROWS(f32, float, double)
SCAN_ROWS(f64, double, double)
SCAN_ROWS(i64, int64_t, uint64_t)
SCAN_LINEAR(f32, float)
SCAN_LINEAR(f64, double)

static void scan_task(void *arg, int64_t task)
{
    const scan_job *j = arg;
    int64_t begin = task * j->per_task, left = j->rows - begin, at = begin * j->n * j->size;
    j->fn(j->x + at, j->a ? j->a + at : NULL, j->y + at, left < j->per_task ? left : j->per_task, j->n,
          j->reverse);
}

/* Rows of in[0] (and in[1]) along `dim` into out[0]. */
static inline bool scan(np_frame *f, int64_t dim, bool reverse, scan_fn f32, scan_fn f64, scan_fn i64)
{
    neap_tensor *y = f->out[0];
    neap_dtype w = np_is_float((neap_dtype)y->dtype) ? np_wide((neap_dtype)y->dtype) : NEAP_INT64;
    int d = (int)(dim < 0 ? dim + y->ndim : dim);
    if (y->numel == 0) return true;
    neap_tensor *x = np_rows_in(f->c, f->in[0], d, w);
    neap_tensor *a = x && f->n_in > 1 ? np_rows_in(f->c, f->in[1], d, w) : NULL;
    neap_tensor *rows = x && (a || f->n_in == 1) ? np_rows_out(f, 0, d, w) : NULL;
    bool ok = rows != NULL;
    if (ok) {
        scan_job j = {.x = np_ptr(x),
                      .a = a ? np_ptr(a) : NULL,
                      .y = np_ptr(rows),
                      .n = y->ndim ? y->shape[d] : 1,
                      .size = np_sizes[w],
                      .reverse = reverse,
                      .fn = w == NEAP_FLOAT64 ? f64
                            : w == NEAP_INT64 ? i64
                                              : f32};
        j.rows = y->numel / j.n;
        j.per_task = j.n < NP_ROW_GRAIN / 4 ? NP_ROW_GRAIN / j.n : 4;
        ok = np_parallel(f->c, (j.rows + j.per_task - 1) / j.per_task, scan_task, &j);
    }
    np_drop(x);
    np_drop(a);
    return np_rows_done(f, 0, d, rows, ok);
}

/* cumsum(x, dim): the sums of all elements up to each one along dim. Integers and bool give int64. */
NP_CPU(cumsum)(np_frame *f) { return scan(f, f->attr[0].i, false, cumsum_f32, cumsum_f64, cumsum_i64); }

/* cumprod(x, dim): the products of all elements up to each one along dim. Integers and bool give int64. Its gradient is
 * exact with zeros. */
NP_CPU(cumprod)(np_frame *f) { return scan(f, f->attr[0].i, false, cumprod_f32, cumprod_f64, cumprod_i64); }

/* linear_scan(u, a, dim, reverse): y[i] = u[i] + a[i] y[i-1] along dim; reverse: y[i] = u[i] + a[i+1] y[i+1]. As functions
 * of u the two are transposes of each other. */
NP_CPU(linear_scan)(np_frame *f)
{
    return scan(f, f->attr[0].i, f->attr[1].i != 0, linear_f32, linear_f64, NULL);
}

#ifdef NP_BASE_ONLY
static bool scan_infer(np_frame *f)
{
    if (!np_infer_same(f) || np_wrap_dim(f->c, f->attr[0].i, f->in[0]->ndim) < 0) return false;
    f->meta[0].dtype = (uint8_t)np_summed(f->compute);
    return true;
}
static bool linear_scan_infer(np_frame *f)
{
    return np_infer_binary_float(f) && np_wrap_dim(f->c, f->attr[0].i, f->in[0]->ndim) >= 0;
}
/* t moved by one place along dim, with `first` in front: what came before each element. */
static neap_tensor *before(np_back *b, neap_tensor *t, int64_t dim, double first)
{
    if (!t || t->numel == 0) return t;
    int64_t d = dim < 0 ? dim + t->ndim : dim, n = t->ndim ? t->shape[d] : 1;
    neap_tensor *edge = t->ndim ? np_narrow(b, n > 1 ? np_hold(b, t) : t, d, 0, 1, 1) : t;
    neap_tensor *head = np_add(b, np_mul0(b, np_num(b, 0), edge), np_num(b, first));
    if (n == 1) return head;
    neap_tensor *parts[2] = {head, np_narrow(b, t, d, 0, n - 1, 1)};
    return np_cat(b, parts, 2, d);
}
static void cumsum_grad(np_back *b)
{
    const int64_t *dim = &b->attr[0].i;
    if (b->g[0]->ndim == 0) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    else b->dx[0] = np_flip(b, np_cumsum(b, np_flip(b, b->g[0], dim, 1), *dim), dim, 1);
}
/* dx[i] = (x[1] ... x[i-1]) s[i], s[i] = g[i] + x[i+1] s[i+1] */
static void cumprod_grad(np_back *b)
{
    int64_t dim = b->attr[0].i;
    neap_tensor *s = np_linear_scan(b, b->g[0], b->saved[0], dim, 1);
    b->dx[0] = np_mul(b, s, before(b, b->saved[1], dim, 1));
}
static void linear_scan_grad(np_back *b)
{
    int64_t dim = b->attr[0].i;
    bool reverse = b->attr[1].i != 0;
    neap_tensor *y = b->saved[1], *du = np_linear_scan(b, b->g[0], b->saved[0], dim, !reverse);
    if (b->need[0]) b->dx[0] = b->need[1] ? np_hold(b, du) : du;
    if (!b->need[1]) return;
    b->dx[1] = reverse ? np_mul(b, before(b, du, dim, 0), y) : np_mul(b, du, before(b, y, dim, 0));
}
static bool scan_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"first", "last", "middle", "one", "0-dim", "empty"};
    if (i > 5 || (s->size != NP_SMALL && i > 1)) return false;
    s->label = labels[i];
    s->attr[0] = (np_attr){.i = i == 1 ? -1 : i == 2 ? 1 : 0, .has = 1};
    if (s->size != NP_SMALL)
        return np_s_tensor(s, 0.9, 1.1, 0, 2, np_s_size(s, 0, 2048), np_s_size(s, 0, 1024));
    if (i == 3) return np_s_tensor(s, -1.5, 1.5, 0, 2, (int64_t)1, (int64_t)3);
    if (i == 4) return np_s_tensor(s, -1.5, 1.5, 0, 0);
    if (i == 5) return np_s_tensor(s, -1.5, 1.5, 0, 2, (int64_t)0, (int64_t)3);
    return np_s_tensor(s, -1.5, 1.5, i, 3, (int64_t)3, (int64_t)4, (int64_t)2);
}
static bool linear_scan_sample(np_sampler *s, int i)
{
    if (i > 2 || !np_s_tensor(s, -1.5, 1.5, i, 2, (int64_t)4, (int64_t)3)) return false;
    s->label = i == 1 ? "reverse" : "forward";
    s->attr[0] = (np_attr){.i = i == 2, .has = 1};
    s->attr[1] = (np_attr){.i = i == 1, .has = 1};
    return np_s_tensor(s, -1.5, 1.5, 0, 2, (int64_t)4, (int64_t)3);
}
NP_OP(cumsum) = {NP_NAMED(cumsum),    .args = "x:T dim:dim -> y:T", .tags = NP_CHEAP | NP_CAST_FLOAT32,
                 .infer = scan_infer, .grad = cumsum_grad,          .sample = scan_sample};
NP_OP(cumprod) = {NP_NAMED(cumprod),
                  .args = "x:T dim:dim -> y:T",
                  .tags = NP_CHEAP | NP_CAST_FLOAT32,
                  .save = {NP_IN(0), NP_OUT(0)},
                  .infer = scan_infer,
                  .grad = cumprod_grad,
                  .sample = scan_sample};
NP_OP(linear_scan) = {NP_NAMED(linear_scan),          .args = "u:T a:T dim:dim reverse:bool -> y:T",
                      .tags = NP_CHEAP | NP_INTERNAL, .save = {NP_IN(1), NP_OUT_FOR(0, 1)},
                      .infer = linear_scan_infer,     .grad = linear_scan_grad,
                      .sample = linear_scan_sample};
#endif
