/* matmul.c - products: matmul and linear. Shapes and strides become one call of the product door; transposed
 * and sliced operands are never copied. The gradients are products too, so they differentiate again. */
#include <stdio.h>

#include "ops/cpu/gemm.h"
#include "ops/op.h"
#include "ops/sample.h"

/* The matrix of a tensor: its last two dimensions; a vector is a row (M or K = 1) or a column. */
static inline np_mat mat_of(const neap_tensor *t, bool column)
{
    np_mat m = {.p = np_ptr(t)};
    int n = t->ndim;
    if (n == 1) {
        m.rs = column ? t->stride[0] : t->shape[0];
        m.cs = column ? 1 : t->stride[0];
    } else {
        m.rs = t->stride[n - 2];
        m.cs = t->stride[n - 1];
    }
    return m;
}

NP_CPU(matmul)(np_frame *f)
{
    const neap_tensor *a = f->in[0], *b = f->in[1], *y = f->out[0];
    int an = a->ndim, bn = b->ndim, yn = y->ndim - (an > 1) - (bn > 1);
    np_gemm_args g = {
        .dtype = f->compute,
        .n_batch = yn,
        .alpha = 1,
        .M = an > 1 ? a->shape[an - 2] : 1,
        .K = a->shape[an - 1],
        .N = bn > 1 ? b->shape[bn - 1] : 1,
        .a = mat_of(a, false),
        .b = mat_of(b, true),
        .c = {.p = np_ptr(y), .cs = 1},
    };
    g.c.rs = g.N;
    for (int d = 0; d < yn; d++) {
        int ad = d - (yn - (an - 2)), bd = d - (yn - (bn - 2));
        g.batch[d] = y->shape[d];
        g.a.bs[d] = an > 2 && ad >= 0 && a->shape[ad] != 1 ? a->stride[ad] : 0;
        g.b.bs[d] = bn > 2 && bd >= 0 && b->shape[bd] != 1 ? b->stride[bd] : 0;
        g.c.bs[d] = y->stride[d];
    }
    return np_gemm(f->c, &g);
}

NP_CPU(linear)(np_frame *f)
{
    const neap_tensor *x = f->in[0], *w = f->in[1], *b = f->n_in > 2 ? f->in[2] : NULL, *y = f->out[0];
    int n = x->ndim;
    np_gemm_args g = {
        .dtype = f->compute,
        .alpha = 1,
        .n_batch = n > 2 ? n - 2 : 0,
        .M = n > 1 ? x->shape[n - 2] : 1,
        .K = w->shape[1],
        .N = w->shape[0],
        .a = mat_of(x, false),
        .b = {.p = np_ptr(w), .rs = w->stride[1], .cs = w->stride[0]},
        .c = {.p = np_ptr(y), .rs = w->shape[0], .cs = 1},
        .bias = b ? np_ptr(b) : NULL,
        .bias_stride = b ? b->stride[0] : 0,
    };
    for (int d = 0; d < g.n_batch; d++) {
        g.batch[d] = x->shape[d];
        g.a.bs[d] = x->stride[d];
        g.c.bs[d] = y->stride[d];
    }
    return np_gemm(f->c, &g);
}

#ifdef NP_BASE_ONLY

static bool same_dtype(np_frame *f)
{
    const neap_tensor *a = f->in[0];
    if (a->dtype == NEAP_BOOL)
        return np_fail(f->c, NEAP_E_DTYPE, "bool tensors have no product; convert with :to(\"float32\")");
    for (int i = 1; i < f->n_in; i++) {
        const neap_tensor *b = f->in[i];
        if (!b || b->dtype == a->dtype) continue;
        bool lossy = np_is_float((neap_dtype)b->dtype) && !np_is_float((neap_dtype)a->dtype);
        return np_fail(f->c, NEAP_E_DTYPE, "the operands are %s and %s; convert one with :to(\"%s\")",
                       np_dtype_name((neap_dtype)a->dtype), np_dtype_name((neap_dtype)b->dtype),
                       np_dtype_name((neap_dtype)(lossy ? b : a)->dtype));
    }
    f->compute = (neap_dtype)a->dtype;
    return true;
}

/* "[64,128] x [256,10] (float32, cpu)" */
static const char *pair_text(char *buf, size_t n, const np_frame *f)
{
    char a[100], b[100];
    snprintf(buf, n, "%s x %s (%s, %s)", np_shape_text(a, sizeof a, f->in[0]->ndim, f->in[0]->shape),
             np_shape_text(b, sizeof b, f->in[1]->ndim, f->in[1]->shape),
             np_dtype_name((neap_dtype)f->in[0]->dtype), f->dev->name);
    return buf;
}

static bool infer_matmul(np_frame *f)
{
    const neap_tensor *a = f->in[0], *b = f->in[1];
    int an = a->ndim, bn = b->ndim;
    char text[300];
    if (!np_same_device(f)) return false;
    if (an == 0 || bn == 0)
        return np_fail(f->c, NEAP_E_DIMS,
                       "a product needs operands of at least one dimension: %s; for numbers use a * b",
                       pair_text(text, sizeof text, f));
    if (!same_dtype(f)) return false;
    int64_t ka = a->shape[an - 1], kb = b->shape[bn > 1 ? bn - 2 : 0];
    if (ka != kb) {
        bool flip_b = bn == 2 && b->shape[1] == ka, flip_a = an == 2 && a->shape[0] == kb;
        return np_fail(f->c, NEAP_E_SHAPE, "inner sizes differ: %s: %lld must equal %lld%s",
                       pair_text(text, sizeof text, f), (long long)ka, (long long)kb,
                       flip_b   ? "; did you mean b:t() for the second operand?"
                       : flip_a ? "; did you mean a:t() for the first operand?"
                                : "");
    }
    int nd = an > 2 ? an - 2 : 0;
    int64_t shape[NEAP_MAX_DIMS];
    for (int d = 0; d < nd; d++) shape[d] = a->shape[d];
    if (!np_broadcast_shape(&nd, shape, bn > 2 ? bn - 2 : 0, b->shape))
        return np_fail(f->c, NEAP_E_SHAPE,
                       "batch sizes do not broadcast: %s; sizes before the last two must be equal or 1",
                       pair_text(text, sizeof text, f));
    if (an > 1) shape[nd++] = a->shape[an - 2];
    if (bn > 1) shape[nd++] = b->shape[bn - 1];
    np_meta_set(f, 0, f->compute, nd, shape);
    return true;
}

/* A gradient or operand as a stack of matrices: a vector becomes (1,n) or (n,1). */
static neap_tensor *as_matrix(np_back *b, neap_tensor *t, bool is_vector, int at)
{
    return is_vector ? np_unsqueeze(b, t, at) : t;
}

/* All rows under one another: (..., n) -> (rows, n); last: t has the dimension n. */
static neap_tensor *as_rows(np_back *b, neap_tensor *t, bool last)
{
    int64_t shape[2] = {1, last ? t->shape[t->ndim - 1] : 1};
    for (int d = 0; d < t->ndim - last; d++) shape[0] *= t->shape[d];
    return np_reshape(b, t, shape, 2);
}

/* y = a b:  da = g b^T,  db = a^T g, each summed over the dimensions it was broadcast along. */
static void matmul_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *w = b->saved[1];
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    int n;
    if (b->need[0] && np_input_shape(b, 0, &n, shape, &t)) {
        bool vec = w->ndim == 1; /* w (K) is (K,1), g (...,M) is (...,M,1) */
        neap_tensor *gm = as_matrix(b, as_matrix(b, g, vec, -1), n == 1, -2);
        neap_tensor *wt = vec ? np_unsqueeze(b, w, 0) : np_transpose(b, w, -1, -2);
        b->dx[0] = np_unbroadcast(b, np_matmul(b, gm, wt), 0);
    }
    if (b->need[1] && np_input_shape(b, 1, &n, shape, &t)) {
        if (n <= 2) { /* one matrix for all rows: one product, nothing to sum afterwards */
            neap_tensor *dw = np_matmul(b, np_transpose(b, as_rows(b, x, true), 0, 1), as_rows(b, g, n == 2));
            b->dx[1] = n == 1 ? np_reshape(b, dw, shape, 1) : dw;
        } else {
            neap_tensor *gm = as_matrix(b, g, x->ndim == 1, -2);
            neap_tensor *xt = x->ndim == 1 ? np_unsqueeze(b, x, 1) : np_transpose(b, x, -1, -2);
            b->dx[1] = np_unbroadcast(b, np_matmul(b, xt, gm), 1);
        }
    }
}

static void matmul_cost(const np_frame *f, double *flops, double *bytes)
{
    double k = (double)f->in[0]->shape[f->in[0]->ndim - 1], out = 1;
    for (int d = 0; d < f->meta[0].ndim; d++) out *= (double)f->meta[0].shape[d];
    *flops = 2 * out * k;
    *bytes = ((double)f->in[0]->numel + (double)f->in[1]->numel + out) * (double)np_itemsize(f->in[0]);
}

static bool matmul_sample(np_sampler *s, int i)
{
    const int64_t n = np_s_size(s, 3, 512);
    static const char *const labels[] = {"2-d",          "transposed", "batch",         "broadcast batch",
                                         "shared right", "dot",        "matrix-vector", "vector-matrix",
                                         "vector-batch", "strided",    "no inner",      "empty"};
    if (i >= (int)(sizeof labels / sizeof *labels)) return false;
    s->label = labels[i];
    switch (i) {
    case 0: return np_s_tensor(s, -1, 1, 0, 2, n, n + 1) && np_s_tensor(s, -1, 1, 0, 2, n + 1, n + 2);
    case 1: return np_s_tensor(s, -1, 1, 1, 2, n, n + 1) && np_s_tensor(s, -1, 1, 1, 2, n + 1, n + 2);
    case 2:
        return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, n, n) && np_s_tensor(s, -1, 1, 1, 3, (int64_t)2, n, n);
    case 3:
        return np_s_tensor(s, -1, 1, 0, 4, (int64_t)2, (int64_t)1, n, n) &&
               np_s_tensor(s, -1, 1, 0, 3, (int64_t)3, n, n);
    case 4: return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, n, n) && np_s_tensor(s, -1, 1, 0, 2, n, n + 1);
    case 5: return np_s_tensor(s, -1, 1, 0, 1, n) && np_s_tensor(s, -1, 1, 0, 1, n);
    case 6: return np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, n, n + 1) && np_s_tensor(s, -1, 1, 0, 1, n + 1);
    case 7: return np_s_tensor(s, -1, 1, 0, 1, n) && np_s_tensor(s, -1, 1, 0, 2, n, n + 1);
    case 8: return np_s_tensor(s, -1, 1, 0, 1, n) && np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, n, n + 1);
    case 9: return np_s_tensor(s, -1, 1, 2, 2, n, n) && np_s_tensor(s, -1, 1, 2, 2, n, n);
    case 10: return np_s_tensor(s, -1, 1, 0, 2, n, (int64_t)0) && np_s_tensor(s, -1, 1, 0, 2, (int64_t)0, n);
    default: return np_s_tensor(s, -1, 1, 0, 2, (int64_t)0, n) && np_s_tensor(s, -1, 1, 0, 2, n, n);
    }
}

/* matmul(a, b): the matrix product over the last two dimensions; those before broadcast. A vector on the left is a
 * row, on the right a column, and its dimension is dropped from the result. (..., M, K) x (..., K, N) -> (..., M, N) */
NP_OP(matmul) = {
    NP_NAMED(matmul),
    .args = "a:T b:T -> y:T",
    .tags = NP_HEAVY | NP_CAST_LOW,
    .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 0)},
    .infer = infer_matmul,
    .grad = matmul_grad,
    .cost = matmul_cost,
    .sample = matmul_sample,
};

static bool infer_linear(np_frame *f)
{
    const neap_tensor *x = f->in[0], *w = f->in[1], *b = f->n_in > 2 ? f->in[2] : NULL;
    char text[300], bias[100];
    if (!np_same_device(f)) return false;
    if (x->ndim == 0 || w->ndim != 2)
        return np_fail(f->c, NEAP_E_DIMS, "needs x (..., in) and weight (out, in): %s",
                       pair_text(text, sizeof text, f));
    if (!same_dtype(f)) return false;
    int64_t in = x->shape[x->ndim - 1], out = w->shape[0], shape[NEAP_MAX_DIMS];
    if (in != w->shape[1])
        return np_fail(f->c, NEAP_E_SHAPE,
                       "the last size of x and of the weight (out, in) differ: %s: %lld must equal %lld",
                       pair_text(text, sizeof text, f), (long long)in, (long long)w->shape[1]);
    if (b && (b->ndim != 1 || b->shape[0] != out))
        return np_fail(f->c, NEAP_E_SHAPE, "the bias must be [%lld] for %lld output features, but is %s",
                       (long long)out, (long long)out, np_shape_text(bias, sizeof bias, b->ndim, b->shape));
    for (int d = 0; d < x->ndim - 1; d++) shape[d] = x->shape[d];
    shape[x->ndim - 1] = out;
    np_meta_set(f, 0, f->compute, x->ndim, shape);
    return true;
}

/* y = x w^T + b:  dx = g w,  dw = g^T x over all rows,  db = the column sums of g. */
static void linear_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *w = b->saved[1];
    if (b->need[0]) b->dx[0] = np_matmul(b, g, w);
    if (b->need[1]) b->dx[1] = np_matmul(b, np_transpose(b, as_rows(b, g, true), 0, 1), as_rows(b, x, true));
    if (b->n_in > 2 && b->need[2]) b->dx[2] = np_unbroadcast(b, g, 2);
}

static bool linear_sample(np_sampler *s, int i)
{
    const int64_t n = np_s_size(s, 4, 512), rows = np_s_size(s, 3, 128);
    static const char *const labels[] = {"bias",       "no bias",       "3-d",  "vector",
                                         "transposed", "strided batch", "empty"};
    if (i >= (int)(sizeof labels / sizeof *labels)) return false;
    s->label = labels[i];
    switch (i) {
    case 0:
    case 1:
        if (!np_s_tensor(s, -1, 1, 0, 2, rows, n)) return false;
        break;
    case 2:
        if (!np_s_tensor(s, -1, 1, 0, 3, (int64_t)2, rows, n)) return false;
        break;
    case 3:
        if (!np_s_tensor(s, -1, 1, 0, 1, n)) return false;
        break;
    case 4:
        if (!np_s_tensor(s, -1, 1, 1, 2, rows, n)) return false;
        break;
    case 5:
        if (!np_s_tensor(s, -1, 1, 2, 3, (int64_t)2, rows, n)) return false;
        break;
    default:
        if (!np_s_tensor(s, -1, 1, 0, 2, (int64_t)0, n)) return false;
        break;
    }
    if (!np_s_tensor(s, -1, 1, i == 4, 2, n + 1, n)) return false;
    if (i == 1) return s->in[s->n_in++] = NULL, true;
    return np_s_tensor(s, -1, 1, 0, 1, n + 1);
}

/* linear(x, w, b): x w^T + b, the affine map of a layer. x (..., in), w (out, in), b (out) or absent -> (..., out) */
NP_OP(linear) = {
    NP_NAMED(linear),
    .args = "x:T w:T b:T? -> y:T",
    .tags = NP_HEAVY | NP_CAST_LOW,
    .save = {NP_IN_FOR(0, 1), NP_IN_FOR(1, 0)},
    .infer = infer_linear,
    .grad = linear_grad,
    .cost = matmul_cost,
    .sample = linear_sample,
};
#endif
