/* matrix.c - linear algebra out of products and views: mm, bmm, addmm, outer, kron, tril, diag, trace ...
 *
 * Products are composites of matmul that insist on the number of dimensions in their names. tril and triu copy one part
 * of each row and zero the rest; diagonal is a view, and its transpose diagonal_backward also makes matrices from
 * vectors. einsum is in einsum.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* ---- triangles: rows of the last two dimensions */

typedef struct triangle {
    const neap_tensor *x, *y;
    int64_t diagonal, per_chunk;
    bool lower;
} triangle;

static inline void zero_strided(char *p, int64_t stride, size_t size, int64_t n)
{
    if (stride == (int64_t)size) memset(p, 0, (size_t)n * size);
    else
        for (int64_t i = 0; i < n; i++) memset(p + i * stride, 0, size);
}

static inline void triangle_chunk(void *arg, int64_t chunk)
{
    const triangle *j = arg;
    const neap_tensor *x = j->x, *y = j->y;
    int nd = x->ndim;
    int64_t n = x->shape[nd - 1], rows = n ? x->numel / n : 0, end = (chunk + 1) * j->per_chunk;
    int64_t size = (int64_t)np_itemsize(x), xs = x->stride[nd - 1] * size, ys = y->stride[nd - 1] * size;
    for (int64_t r = chunk * j->per_chunk; r < rows && r < end; r++) {
        int64_t rest = r, xa = 0, ya = 0;
        for (int d = nd - 2; d >= 0; d--) {
            xa += rest % x->shape[d] * x->stride[d], ya += rest % x->shape[d] * y->stride[d];
            rest /= x->shape[d];
        }
        /* columns [0, cut) belong to the lower triangle, the others to the upper one */
        int64_t cut = r % x->shape[nd - 2] + j->diagonal + (j->lower ? 1 : 0);
        cut = cut < 0 ? 0 : cut > n ? n : cut;
        int64_t from = j->lower ? 0 : cut, to = j->lower ? cut : n;
        const char *p = np_ptr(x) + xa * size;
        char *q = np_ptr(y) + ya * size;
        if (p != q) np_move((size_t)size, q + from * ys, ys, p + from * xs, xs, to - from);
        zero_strided(q, ys, (size_t)size, from);
        zero_strided(q + to * ys, ys, (size_t)size, n - to);
    }
}

static inline bool run_triangle(np_frame *f, bool lower)
{
    triangle j = {.x = f->in[0], .y = f->out[0], .lower = lower};
    int64_t n = j.x->shape[j.x->ndim - 1], far = j.x->shape[j.x->ndim - 2] + n;
    if (j.x->numel == 0) return true;
    j.diagonal = f->attr[0].i < -far ? -far : f->attr[0].i > far ? far : f->attr[0].i;
    j.per_chunk = n < NP_GRAIN ? NP_GRAIN / n : 1;
    return np_parallel(f->c, (j.x->numel / n + j.per_chunk - 1) / j.per_chunk, triangle_chunk, &j);
}

NP_CPU(tril)(np_frame *f) { return run_triangle(f, true); }
NP_CPU(triu)(np_frame *f) { return run_triangle(f, false); }

/* The diagonal of a tensor's dimensions d0 and d1, moved `offset` places to the right: what remains of the geometry,
 * and the diagonal as last dimension. */
static inline void diagonal_geometry(const neap_tensor *x, int64_t offset, int d0, int d1, int64_t *shape,
                                     int64_t *stride, int64_t *start)
{
    int n = 0;
    int64_t rows = x->shape[d0], columns = x->shape[d1];
    if (offset >= 0) columns = offset < columns ? columns - offset : 0;
    else rows = offset > -rows ? rows + offset : 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != d0 && d != d1) shape[n] = x->shape[d], stride[n++] = x->stride[d];
    shape[n] = rows < columns ? rows : columns;
    stride[n] = x->stride[d0] + x->stride[d1];
    *start = x->offset;
    if (shape[n] > 0) *start += offset >= 0 ? offset * x->stride[d1] : -offset * x->stride[d0];
}

NP_CPU(diagonal_backward)(np_frame *f)
{
    const np_attr *a = f->attr;
    neap_tensor *y = f->out[0], line = *y;
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], start;
    if (!np_fill_zero(f->c, y)) return false;
    diagonal_geometry(y, a[1].i, (int)a[2].i, (int)a[3].i, shape, stride, &start);
    np_tensor_geometry(&line, y->ndim - 1, shape, stride, start);
    return np_copy_into(f->c, &line, f->in[0]);
}

#ifdef NP_BASE_ONLY

static void s_int(np_sampler *s, int k, int64_t v) { s->attr[k] = (np_attr){.i = v, .has = 1}; }
static void s_float(np_sampler *s, int k, double v) { s->attr[k] = (np_attr){.f = v, .has = 1}; }
static bool s_matrix(np_sampler *s, int layout, int64_t rows, int64_t columns)
{
    rows = np_s_size(s, rows, rows * 100), columns = np_s_size(s, columns, columns * 100);
    return np_s_tensor(s, -1, 1, layout, 2, rows, columns);
}
static bool s_vector(np_sampler *s, int64_t n)
{
    return np_s_tensor(s, -1, 1, 0, 1, np_s_size(s, n, n * 100));
}
static bool s_stack(np_sampler *s, int layout, int64_t n, int64_t rows, int64_t columns)
{
    return np_s_tensor(s, -1, 1, layout, 3, n, rows, columns);
}

/* Operand i must have ndim dimensions. */
static bool need_ndim(np_frame *f, int i, int ndim)
{
    static const char *const kinds[] = {"a number", "a vector", "a matrix", "a stack of matrices"};
    const neap_tensor *t = f->in[i];
    char text[128];
    if (t->ndim == ndim) return true;
    return np_fail(
        f->c, NEAP_E_DIMS,
        "argument %d must be %s (%d dimension%s), but is %s; matmul takes all kinds and broadcasts", i + 1,
        kinds[ndim], ndim, ndim == 1 ? "" : "s", np_shape_text(text, sizeof text, t->ndim, t->shape));
}

/* ---- products */

/* mm(a, b): the product of two matrices. (M, K) x (K, N) -> (M, N). a:mm(b) */
static void mm_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 2) && need_ndim(f, 1, 2)) f->out[0] = np_matmul(b, f->in[0], f->in[1]);
}
static bool mm_sample(np_sampler *s, int i) { return i < 2 && s_matrix(s, i, 3, 4) && s_matrix(s, i, 4, 2); }
NP_OP(mm) = {NP_NAMED(mm), .args = "a:T b:T -> y:T", .tags = NP_COMPOSITE, .parts = mm_parts,
             .sample = mm_sample};

/* mv(a, v): a matrix times a vector. (M, K) x (K) -> (M). a:mv(v) */
static void mv_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 2) && need_ndim(f, 1, 1)) f->out[0] = np_matmul(b, f->in[0], f->in[1]);
}
static bool mv_sample(np_sampler *s, int i) { return i < 2 && s_matrix(s, i, 3, 4) && s_vector(s, 4); }
NP_OP(mv) = {NP_NAMED(mv), .args = "a:T v:T -> y:T", .tags = NP_COMPOSITE, .parts = mv_parts,
             .sample = mv_sample};

/* dot(a, b): the inner product of two vectors. (N) x (N) -> 0-dim. a:dot(b) */
static void dot_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 1) && need_ndim(f, 1, 1)) f->out[0] = np_matmul(b, f->in[0], f->in[1]);
}
static bool dot_sample(np_sampler *s, int i) { return i < 1 && s_vector(s, 5) && s_vector(s, 5); }
NP_OP(dot) = {NP_NAMED(dot), .args = "a:T b:T -> y:T", .tags = NP_COMPOSITE, .parts = dot_parts,
              .sample = dot_sample};

/* A stack has the same number of matrices on both sides. */
static bool same_batch(np_frame *f, int i)
{
    int64_t n = f->in[i]->shape[0], m = f->in[i + 1]->shape[0];
    return n == m ||
           np_fail(f->c, NEAP_E_SHAPE, "%lld matrices meet %lld: as many of both; matmul broadcasts",
                   (long long)n, (long long)m);
}

/* bmm(a, b): products of two stacks of matrices, one by one. (B, M, K) x (B, K, N) -> (B, M, N). a:bmm(b) */
static void bmm_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 3) && need_ndim(f, 1, 3) && same_batch(f, 0))
        f->out[0] = np_matmul(b, f->in[0], f->in[1]);
}
static bool bmm_sample(np_sampler *s, int i)
{
    return i < 2 && s_stack(s, i, 2, 3, 4) && s_stack(s, i, 2, 4, 2);
}
NP_OP(bmm) = {NP_NAMED(bmm), .args = "a:T b:T -> y:T", .tags = NP_COMPOSITE, .parts = bmm_parts,
              .sample = bmm_sample};

/* t times a number, in t's dtype. */
static neap_tensor *scaled(np_back *b, neap_tensor *t, const np_attr *factor)
{
    if (!t || factor->f == 1 || !np_attr_fits(b->c, factor, (neap_dtype)t->dtype)) return t;
    neap_tensor *v = np_num(b, factor->f);
    if (!np_is_float((neap_dtype)t->dtype)) v = np_to(b, v, t->dtype, t->st->dev->index);
    return np_mul(b, t, v);
}

/* beta x + alpha (a b); with beta = 0 x takes no part. */
static void add_product(np_back *b, np_frame *f, int ndim)
{
    neap_tensor *x = f->in[0], *y;
    char want[128], got[128];
    if (!need_ndim(f, 1, ndim) || !need_ndim(f, 2, ndim) || (ndim == 3 && !same_batch(f, 1))) return;
    y = scaled(b, np_matmul(b, f->in[1], f->in[2]), &f->attr[1]);
    if (!y) return;
    int n = y->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, y->shape, sizeof shape);
    bool fits = np_broadcast_shape(&n, shape, x->ndim, x->shape) && n == y->ndim;
    for (int d = 0; fits && d < n; d++) fits = shape[d] == y->shape[d];
    if (!fits) {
        np_fail(f->c, NEAP_E_SHAPE, "%s does not broadcast to the product %s",
                np_shape_text(got, sizeof got, x->ndim, x->shape),
                np_shape_text(want, sizeof want, y->ndim, y->shape));
        return;
    }
    f->out[0] = f->attr[0].f == 0 ? y : np_add(b, scaled(b, x, &f->attr[0]), y);
}

/* addmm(x, a, b, {beta = 1, alpha = 1}): beta x + alpha (a b), with x broadcast to the product. With beta = 0 x is left
 * out. (N) or (M, N), (M, K), (K, N) -> (M, N). bias:addmm(a, w) */
static void addmm_parts(np_back *b, np_frame *f) { add_product(b, f, 2); }
static bool addmm_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_float(s, 0, i ? 0.5 : 1);
    s_float(s, 1, i ? -1.5 : 1);
    return (i ? s_matrix(s, 0, 3, 2) : s_vector(s, 2)) && s_matrix(s, i, 3, 4) && s_matrix(s, i, 4, 2);
}
NP_OP(addmm) = {NP_NAMED(addmm), .args = "x:T a:T b:T ; beta:float=1 alpha:float=1 -> y:T",
                .tags = NP_COMPOSITE, .parts = addmm_parts, .sample = addmm_sample};

/* baddbmm(x, a, b, {beta = 1, alpha = 1}): beta x + alpha (a b) for stacks of matrices, with x broadcast to the product.
 * (B, M, N), (B, M, K), (B, K, N) -> (B, M, N). x:baddbmm(a, b) */
static void baddbmm_parts(np_back *b, np_frame *f) { add_product(b, f, 3); }
static bool baddbmm_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    s_float(s, 0, 0.5);
    s_float(s, 1, -1.5);
    return s_stack(s, 0, 2, 3, 2) && s_stack(s, 0, 2, 3, 4) && s_stack(s, 1, 2, 4, 2);
}
NP_OP(baddbmm) = {NP_NAMED(baddbmm), .args = "x:T a:T b:T ; beta:float=1 alpha:float=1 -> y:T",
                  .tags = NP_COMPOSITE, .parts = baddbmm_parts, .sample = baddbmm_sample};

/* outer(a, b): y[i][j] = a[i] b[j]. (M) x (N) -> (M, N). a:outer(b) */
static void outer_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 1) && need_ndim(f, 1, 1))
        f->out[0] = np_mul(b, np_unsqueeze(b, f->in[0], 1), f->in[1]);
}
static bool outer_sample(np_sampler *s, int i) { return i < 1 && s_vector(s, 3) && s_vector(s, 4); }
NP_OP(outer) = {NP_NAMED(outer), .args = "a:T b:T -> y:T", .tags = NP_COMPOSITE, .parts = outer_parts,
                .sample = outer_sample};

/* kron(a, b): the Kronecker product: every element of a times all of b, as blocks. The dimensions are counted from the
 * last. (M, N) x (P, Q) -> (M P, N Q). a:kron(b) */
static void kron_parts(np_back *b, np_frame *f)
{
    const neap_tensor *x = f->in[0], *y = f->in[1];
    int n = x->ndim > y->ndim ? x->ndim : y->ndim;
    int64_t xs[NEAP_MAX_DIMS], ys[NEAP_MAX_DIMS], whole[NEAP_MAX_DIMS];
    if (2 * n > NEAP_MAX_DIMS) {
        np_fail(f->c, NEAP_E_DIMS, "the operands have %d dimensions: at most %d are possible", n,
                NEAP_MAX_DIMS / 2);
        return;
    }
    for (int d = 0; d < n; d++) {
        int xd = d - (n - x->ndim), yd = d - (n - y->ndim);
        xs[2 * d] = xd >= 0 ? x->shape[xd] : 1, xs[2 * d + 1] = 1;
        ys[2 * d] = 1, ys[2 * d + 1] = yd >= 0 ? y->shape[yd] : 1;
        if (__builtin_mul_overflow(xs[2 * d], ys[2 * d + 1], &whole[d])) {
            np_fail(f->c, NEAP_E_SHAPE, "the result has more elements than can be counted");
            return;
        }
    }
    neap_tensor *p = np_mul(b, np_reshape(b, f->in[0], xs, 2 * n), np_reshape(b, f->in[1], ys, 2 * n));
    f->out[0] = np_reshape(b, p, whole, n);
}
static bool kron_sample(np_sampler *s, int i)
{
    if (i == 0)
        return np_s_tensor(s, -1, 1, 0, 2, (int64_t)2, (int64_t)3) &&
               np_s_tensor(s, -1, 1, 1, 2, (int64_t)3, (int64_t)2);
    return i == 1 && np_s_tensor(s, -1, 1, 0, 1, (int64_t)2) &&
           np_s_tensor(s, -1, 1, 0, 2, (int64_t)2, (int64_t)2);
}
NP_OP(kron) = {NP_NAMED(kron), .args = "a:T b:T -> y:T", .tags = NP_COMPOSITE, .parts = kron_parts,
               .sample = kron_sample};

/* cross(a, b, [dim = -1]): the cross product of vectors of 3 elements along dim; the other dimensions broadcast.
 * a:cross(b) */
static void cross_parts(np_back *b, np_frame *f)
{
    int ndim = f->in[0]->ndim > f->in[1]->ndim ? f->in[0]->ndim : f->in[1]->ndim;
    int64_t one = -1, two = -2, d = np_wrap_dim(f->c, f->attr[0].i, ndim) - ndim; /* from the end, for both */
    if (np_pending(f->c)) return;
    for (int i = 0; i < 2; i++) {
        const neap_tensor *t = f->in[i];
        if (t->ndim + d >= 0 && t->ndim > 0 && t->shape[t->ndim + d] == 3) continue;
        char text[128];
        np_fail(f->c, NEAP_E_SHAPE,
                "argument %d is %s: it needs 3 elements along the dimension of the product", i + 1,
                np_shape_text(text, sizeof text, t->ndim, t->shape));
        return;
    }
    neap_tensor *plus = np_mul(b, np_roll(b, f->in[0], &one, 1, &d, 1), np_roll(b, f->in[1], &two, 1, &d, 1));
    neap_tensor *minus =
        np_mul(b, np_roll(b, f->in[0], &two, 1, &d, 1), np_roll(b, f->in[1], &one, 1, &d, 1));
    f->out[0] = np_sub(b, plus, minus);
}
static bool cross_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s_int(s, 0, i - 1);
    return i ? np_s_tensor(s, -1, 1, 0, 2, (int64_t)3, (int64_t)2) &&
                   np_s_tensor(s, -1, 1, 1, 2, (int64_t)3, (int64_t)2)
             : np_s_tensor(s, -1, 1, 0, 2, (int64_t)2, (int64_t)3) && np_s_tensor(s, -1, 1, 0, 1, (int64_t)3);
}
NP_OP(cross) = {NP_NAMED(cross), .args = "a:T b:T dim:dim=-1 -> y:T", .tags = NP_COMPOSITE,
                .parts = cross_parts, .sample = cross_sample};

/* ---- triangles */

static bool triangle_infer(np_frame *f)
{
    if (f->in[0]->ndim < 2)
        return np_fail(f->c, NEAP_E_DIMS, "needs at least 2 dimensions, but x has %d", f->in[0]->ndim);
    return np_infer_same(f);
}

static bool triangle_sample(np_sampler *s, int i)
{
    static const int8_t diagonal[] = {0, 1, -2, 0, 9};
    if (i > 4) return false;
    s_int(s, 0, diagonal[i]);
    return i == 3 ? s_stack(s, 1, 2, 3, 3) : s_matrix(s, i % 3, 3, 4);
}

/* tril(x, [diagonal = 0]): the lower triangle of the last two dimensions, zeros above it. diagonal moves the border to
 * the right, or to the left if negative. x:tril(-1) leaves the main diagonal out. */
static void tril_grad(np_back *b) { b->dx[0] = np_tril(b, b->g[0], b->attr[0].i); }
NP_OP(tril) = {
    NP_NAMED(tril),    .args = "x:T diagonal:int=0 -> y:T", .tags = NP_CHEAP, .infer = triangle_infer,
    .grad = tril_grad, .sample = triangle_sample,
};
NP_INPLACE_OP(tril_, tril);

/* triu(x, [diagonal = 0]): the upper triangle of the last two dimensions, zeros below it. diagonal moves the border to
 * the right, or to the left if negative. A causal mask: neap.ones(n, n):triu(1) */
static void triu_grad(np_back *b) { b->dx[0] = np_triu(b, b->g[0], b->attr[0].i); }
NP_OP(triu) = {
    NP_NAMED(triu),    .args = "x:T diagonal:int=0 -> y:T", .tags = NP_CHEAP, .infer = triangle_infer,
    .grad = triu_grad, .sample = triangle_sample,
};
NP_INPLACE_OP(triu_, triu);

/* ---- diagonals */

static bool resolve_dims(np_frame *f, int first, int ndim)
{
    np_attr *a = f->attr;
    if (ndim < 2)
        return np_fail(f->c, NEAP_E_DIMS, "a diagonal needs at least 2 dimensions, but x has %d", ndim);
    for (int k = first; k < first + 2; k++)
        if ((a[k].i = np_wrap_dim(f->c, a[k].i, ndim)) < 0) return false;
    return a[first].i != a[first + 1].i ||
           np_fail(f->c, NEAP_E_DIMS, "dimension %d is given twice: a diagonal runs through two",
                   (int)a[first].i + f->c->base);
}

/* diagonal(x, [offset = 0, dim0 = 1, dim1 = 2]): the elements where the positions along two dimensions are equal, or
 * differ by offset; they become the last dimension. A view. x:diagonal(1) is the line above the main one. */
static bool diagonal_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS], start;
    if (!np_same_device(f) || !resolve_dims(f, 1, f->in[0]->ndim)) return false;
    diagonal_geometry(f->in[0], a[0].i, (int)a[1].i, (int)a[2].i, shape, stride, &start);
    np_meta_view(f, 0, f->in[0]->ndim - 1, shape, stride, start);
    return true;
}

static void diagonal_grad(np_back *b)
{
    int n;
    int64_t shape[NEAP_MAX_DIMS];
    neap_dtype t;
    const np_attr *a = b->attr;
    if (np_input_shape(b, 0, &n, shape, &t))
        b->dx[0] = np_diagonal_backward(b, b->g[0], shape, n, a[0].i, a[1].i, a[2].i);
}

static bool diagonal_sample(np_sampler *s, int i)
{
    static const int8_t offset[] = {0, 1, -1, 9}, dim0[] = {0, 0, 2, 0}, dim1[] = {1, 1, 0, 1};
    if (i > 3) return false;
    s_int(s, 0, offset[i]);
    s_int(s, 1, dim0[i]);
    s_int(s, 2, dim1[i]);
    return i == 2 ? s_stack(s, 0, 3, 2, 4) : s_matrix(s, i % 2, 3, 4);
}

NP_OP(diagonal) = {
    NP_NAMED(diagonal),         .args = "x:T offset:int=0 dim0:dim=0 dim1:dim=1 -> y:T",
    .tags = NP_VIEW | NP_CHEAP, .infer = diagonal_infer,
    .grad = diagonal_grad,      .sample = diagonal_sample,
};

/* diagonal_backward(g, shape, offset, dim0, dim1): zeros of this shape with g on the diagonal. */
static bool diagonal_backward_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    const neap_tensor *g = f->in[0];
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS] = {0}, start;
    if (!np_same_device(f) || !resolve_dims(f, 2, a[0].n)) return false;
    neap_tensor like = {.ndim = (uint8_t)a[0].n};
    memcpy(like.shape, a[0].v, sizeof(int64_t) * (size_t)a[0].n);
    memcpy(like.stride, stride, sizeof stride);
    diagonal_geometry(&like, a[1].i, (int)a[2].i, (int)a[3].i, shape, stride, &start);
    bool fits = g->ndim == a[0].n - 1;
    for (int d = 0; fits && d < g->ndim; d++) fits = g->shape[d] == shape[d];
    if (!fits) return np_fail(f->c, NEAP_E_SHAPE, "the diagonal does not fit the shape");
    np_meta_set(f, 0, (neap_dtype)g->dtype, a[0].n, a[0].v);
    return true;
}

static void diagonal_backward_grad(np_back *b)
{
    const np_attr *a = b->attr;
    b->dx[0] = np_diagonal(b, b->g[0], a[1].i, a[2].i, a[3].i);
}

static bool diagonal_backward_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    memcpy(s->lists[0], (int64_t[]){3, 4}, 2 * sizeof(int64_t));
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 2, .has = 1};
    s_int(s, 1, i ? -1 : 1);
    s_int(s, 2, 0);
    s_int(s, 3, 1);
    return np_s_tensor(s, -2, 2, 0, 1, (int64_t)(i ? 2 : 3));
}

NP_OP(diagonal_backward) = {
    NP_NAMED(diagonal_backward),
    .args = "g:T shape:shape offset:int dim0:dim dim1:dim -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL | NP_ANYWHERE,
    .infer = diagonal_backward_infer,
    .grad = diagonal_backward_grad,
    .sample = diagonal_backward_sample,
};

/* diag(x, [diagonal = 0]): a vector becomes a matrix with x on that diagonal and zeros elsewhere; of a matrix the
 * diagonal, as a copy (x:diagonal() is the view). neap.diag(neap.tensor{1, 2}) is {{1, 0}, {0, 2}}. */
static void diag_parts(np_back *b, np_frame *f)
{
    neap_tensor *x = f->in[0];
    int64_t k = f->attr[0].i, n = x->ndim == 1 ? x->shape[0] : 0;
    if (x->ndim == 2) {
        f->out[0] = np_clone(b, np_diagonal(b, x, k, 0, 1));
        return;
    }
    if (x->ndim != 1) {
        np_fail(f->c, NEAP_E_DIMS, "x has %d dimensions: diag takes a vector or a matrix; see diagonal",
                x->ndim);
    } else if (k > INT32_MAX || k < -INT32_MAX || n > INT32_MAX) {
        np_fail(f->c, NEAP_E_SHAPE, "the diagonal %lld is too far out", (long long)k);
    } else {
        int64_t size = n + (k < 0 ? -k : k), shape[2] = {size, size};
        f->out[0] = np_diagonal_backward(b, x, shape, 2, k, 0, 1);
    }
}

static bool diag_sample(np_sampler *s, int i)
{
    if (i > 3) return false;
    s_int(s, 0, i - 1);
    return i % 2 ? s_matrix(s, 1, 3, 4) : np_s_tensor(s, -2, 2, 0, 1, (int64_t)3);
}

NP_OP(diag) = {NP_NAMED(diag), .args = "x:T diagonal:int=0 -> y:T", .tags = NP_COMPOSITE, .parts = diag_parts,
               .sample = diag_sample};

/* trace(x): the sum of the main diagonal of a matrix. x:trace() */
static void trace_parts(np_back *b, np_frame *f)
{
    if (need_ndim(f, 0, 2)) f->out[0] = np_sum(b, np_diagonal(b, f->in[0], 0, 0, 1), NULL, 0, 0);
}
static bool trace_sample(np_sampler *s, int i) { return i < 2 && s_matrix(s, i, 3, 4); }
NP_OP(trace) = {NP_NAMED(trace), .args = "x:T -> y:T", .tags = NP_COMPOSITE, .parts = trace_parts,
                .sample = trace_sample};

#endif
