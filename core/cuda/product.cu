/* product.cu - matmul and linear: C = A B (+ bias), batched, any strides.
 *
 * Floats go to cuBLASLt (blaslt.cu) where it is installed and the layout is one that it takes; integers, rows and
 * columns, and everything where it is not, to the kernels here. A tile of TILE x TILE results is a block's; panels of A and B pass through shared memory, K in one order, so bits
 * follow from the shapes alone. Half types accumulate in float32, integers wrap around: as on the CPU (ops/cpu/gemm.h).
 * One kernel for all layouts; transposed and sliced operands are never copied. */
#include "blaslt.h"
#include "convert.h"
#include "walk.h"

namespace
{

enum { TILE = 64, DEPTH = 16, SIDE = 4, THREADS = 256 }; /* SIDE x SIDE results a thread */

struct matrix {
    const void *p;
    int64_t rs, cs; /* elements from row to row, from column to column */
};

struct product {
    matrix a /* (M,K) */, b /* (K,N) */;
    void *c;          /* (M,N), rows of N, batch after batch */
    const void *bias; /* (N) or NULL */
    int64_t bias_stride;
    int64_t M, N, K;
    np_walk<2> batch; /* of A, B */
};

/* What elements are multiplied and added in: unsigned integers wrap around. */
template <class T> struct sums {
    typedef typename np_wide<T>::type type;
};
template <> struct sums<int64_t> {
    typedef uint64_t type;
};
template <> struct sums<int32_t> {
    typedef uint32_t type;
};
template <> struct sums<int8_t> {
    typedef uint32_t type;
};
template <> struct sums<uint8_t> {
    typedef uint32_t type;
};
template <class W> NP_DEVICE void put(W *to, W v) { *to = v; }
NP_DEVICE void put(int64_t *to, uint64_t v) { *to = (int64_t)v; }
NP_DEVICE void put(int32_t *to, uint32_t v) { *to = (int32_t)v; }
NP_DEVICE void put(int8_t *to, uint32_t v) { *to = (int8_t)v; }
NP_DEVICE void put(uint8_t *to, uint32_t v) { *to = (uint8_t)v; }
NP_DEVICE void put(np_f16 *to, float v) { np_narrow(to, v); }
NP_DEVICE void put(np_b16 *to, float v) { np_narrow(to, v); }
template <class T> NP_DEVICE typename sums<T>::type get(const T *p) { return (typename sums<T>::type) * p; }
NP_DEVICE float get(const np_f16 *p) { return np_widen(*p); }
NP_DEVICE float get(const np_b16 *p) { return np_widen(*p); }

template <class T> __global__ void __launch_bounds__(THREADS) multiply(product g)
{
    typedef typename sums<T>::type W;
    NP_SHARED(W, left, [DEPTH][TILE + 4]);
    NP_SHARED(W, right, [DEPTH][TILE + 4]);
    const int t = (int)threadIdx.x, row = t / (TILE / SIDE) * SIDE, col = t % (TILE / SIDE) * SIDE;
    const int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE;
    /* Neighbouring threads read what lies next to each other in memory. */
    const bool a_by_rows = g.a.cs > g.a.rs, b_by_rows = g.b.cs > g.b.rs;
    for (int64_t z = blockIdx.z; z < g.batch.n; z += gridDim.z) {
        int64_t at[2];
        g.batch.at(z, at);
        const T *a = static_cast<const T *>(g.a.p) + at[0], *b = static_cast<const T *>(g.b.p) + at[1];
        W sum[SIDE][SIDE] = {};
        for (int64_t k0 = 0; k0 < g.K; k0 += DEPTH) {
            for (int i = t; i < TILE * DEPTH; i += THREADS) {
                const int am = a_by_rows ? i % TILE : i / DEPTH, ak = a_by_rows ? i / TILE : i % DEPTH;
                const int bn = b_by_rows ? i / DEPTH : i % TILE, bk = b_by_rows ? i % DEPTH : i / TILE;
                left[ak][am] =
                    m0 + am < g.M && k0 + ak < g.K ? get(a + (m0 + am) * g.a.rs + (k0 + ak) * g.a.cs) : (W)0;
                right[bk][bn] =
                    n0 + bn < g.N && k0 + bk < g.K ? get(b + (k0 + bk) * g.b.rs + (n0 + bn) * g.b.cs) : (W)0;
            }
            __syncthreads();
            const int depth = g.K - k0 < DEPTH ? (int)(g.K - k0) : DEPTH; /* no 0 x inf beyond the end */
            for (int k = 0; k < depth; k++) {
                W x[SIDE], y[SIDE];
#pragma unroll
                for (int i = 0; i < SIDE; i++) x[i] = left[k][row + i], y[i] = right[k][col + i];
#pragma unroll
                for (int i = 0; i < SIDE; i++)
#pragma unroll
                    for (int j = 0; j < SIDE; j++) sum[i][j] += x[i] * y[j];
            }
            __syncthreads();
        }
        T *c = static_cast<T *>(g.c) + z * g.M * g.N;
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) {
                const int64_t m = m0 + row + i, n = n0 + col + j;
                if (m >= g.M || n >= g.N) continue;
                W v = sum[i][j];
                if (g.bias) v += get(static_cast<const T *>(g.bias) + n * g.bias_stride);
                put(c + m * g.N + n, v);
            }
    }
}

/* One row or one column of results (M or N is 1), or very short ones: a warp each, which reads along K. */
template <class T> __global__ void dots(product g)
{
    typedef typename sums<T>::type W;
    const int lane = (int)threadIdx.x % 32;
    const int64_t all = g.batch.n * g.M * g.N, step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t o = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; o < all; o += step) {
        const int64_t n = o % g.N, m = o / g.N % g.M;
        int64_t at[2];
        g.batch.at(o / (g.M * g.N), at);
        const T *a = static_cast<const T *>(g.a.p) + at[0] + m * g.a.rs;
        const T *b = static_cast<const T *>(g.b.p) + at[1] + n * g.b.cs;
        W sum = 0;
        for (int64_t k = lane; k < g.K; k += 32) sum += get(a + k * g.a.cs) * get(b + k * g.b.rs);
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane > 0) continue;
        if (g.bias) sum += get(static_cast<const T *>(g.bias) + n * g.bias_stride);
        put(static_cast<T *>(g.c) + o, sum);
    }
}

bool is_narrow(const product &g) { return (g.M < 4 && g.b.rs == 1) || (g.N < 4 && g.a.cs == 1); }

template <class T> static cudaError_t launch(np_gpu *gpu, const product &g)
{
    const int64_t across = (g.N + TILE - 1) / TILE, down = (g.M + TILE - 1) / TILE,
                  results = g.M * g.N * g.batch.n;
    if (is_narrow(g) || down > 65535)
        return np_launch(dots<T>, np_blocks(results > (1 << 24) ? 1 << 30 : results * 32), THREADS, 0,
                         gpu->stream, g);
    const unsigned layers = g.batch.n < 65535 ? (unsigned)g.batch.n : 65535u;
    return np_launch(multiply<T>, dim3((unsigned)across, (unsigned)down, layers), THREADS, 0, gpu->stream, g);
}

/* ---- by the library */

/* m (rows, cols) as rows of ld or, turned, its transpose as rows of ld. false: it is neither. */
bool as_rows(const matrix &m, int64_t rows, int64_t cols, bool *turned, int64_t *ld)
{
    *turned = !((m.cs == 1 || cols == 1) && (m.rs >= cols || rows == 1));
    *ld = *turned ? (cols == 1 ? rows : m.cs) : (rows == 1 ? cols : m.rs);
    return !*turned || ((m.rs == 1 || rows == 1) && (m.cs >= rows || cols == 1));
}

/* Where one B is for all batches, and the rows of A go on from one to the next, all of them are one product. */
product folded(product g)
{
    const int64_t step = g.batch.stride[0][0];
    if (g.batch.ndim != 1 || g.batch.stride[1][0] != 0 || (g.M > 1 && step != g.M * g.a.rs)) return g;
    if (g.M == 1) g.a.rs = step;
    g.M *= g.batch.n;
    g.batch.ndim = 0;
    g.batch.n = 1;
    return g;
}

/* One call for each step of all batch dims but the last. 0, -1; 1: not for the library. */
int by_library(const np_call *c, const product &g)
{
    np_lt_product p = {c->out[0].dtype, g.M,   g.N,     g.K,     0,      0,      1, 0, 0,
                       false,           false, nullptr, nullptr, g.bias, nullptr};
    const int64_t size = p.dtype == NEAP_FLOAT64 ? 8 : p.dtype == NEAP_FLOAT32 ? 4 : 2;
    if (p.dtype >= NEAP_INT64 || g.K == 0 || is_narrow(g) || (g.bias && g.bias_stride != 1 && g.N > 1))
        return 1;
    if (!as_rows(g.a, g.M, g.K, &p.ta, &p.lda) || !as_rows(g.b, g.K, g.N, &p.tb, &p.ldb)) return 1;
    if (g.batch.ndim > 0) {
        p.batches = g.batch.size[0];
        p.stride_a = g.batch.stride[0][0];
        p.stride_b = g.batch.stride[1][0];
    }
    for (int64_t z = 0; z < g.batch.n; z += p.batches) {
        int64_t at[2];
        g.batch.at(z, at);
        p.a = static_cast<const char *>(g.a.p) + at[0] * size;
        p.b = static_cast<const char *>(g.b.p) + at[1] * size;
        p.c = static_cast<char *>(g.c) + z * g.M * g.N * size;
        const int result = np_lt_multiply(c, p);
        if (result != 0) return result;
    }
    return 0;
}

static int run(const np_call *c, const product &whole)
{
    np_gpu *gpu = np_gpu_of(c);
    const product g = folded(whole);
    if (g.M == 0 || g.N == 0 || g.batch.n == 0) return 0;
    const int done = by_library(c, g);
    if (done <= 0) return done;
    switch (c->out[0].dtype) {
    case NEAP_FLOAT64: return np_done(c, NP_TRY(gpu, launch<double>(gpu, g)));
    case NEAP_FLOAT16: return np_done(c, NP_TRY(gpu, launch<np_f16>(gpu, g)));
    case NEAP_BFLOAT16: return np_done(c, NP_TRY(gpu, launch<np_b16>(gpu, g)));
    case NEAP_INT64: return np_done(c, NP_TRY(gpu, launch<int64_t>(gpu, g)));
    case NEAP_INT32: return np_done(c, NP_TRY(gpu, launch<int32_t>(gpu, g)));
    case NEAP_INT8: return np_done(c, NP_TRY(gpu, launch<int8_t>(gpu, g)));
    case NEAP_UINT8: return np_done(c, NP_TRY(gpu, launch<uint8_t>(gpu, g)));
    default: return np_done(c, NP_TRY(gpu, launch<float>(gpu, g)));
    }
}

/* The matrix of an operand: its last two dims; a vector is a row or a column. */
static matrix matrix_of(const np_operand *t, bool column)
{
    const int n = t->ndim;
    if (n > 1) return {t->data, t->stride[n - 2], t->stride[n - 1]};
    return column ? matrix{t->data, t->stride[0], 1} : matrix{t->data, t->shape[0], t->stride[0]};
}
/* An operand's batch: the dims before its last two. */
static np_operand batch_of(const np_operand *t)
{
    np_operand b = *t;
    b.ndim = (uint8_t)(t->ndim > 2 ? t->ndim - 2 : 0);
    return b;
}

static int run_matmul(const np_call *c)
{
    const np_operand *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    const int an = a->ndim, bn = b->ndim, batch = y->ndim - (an > 1) - (bn > 1);
    const np_operand ab = batch_of(a), bb = batch_of(b);
    product g = {};
    g.M = an > 1 ? a->shape[an - 2] : 1;
    g.K = a->shape[an - 1];
    g.N = bn > 1 ? b->shape[bn - 1] : 1;
    g.a = matrix_of(a, false);
    g.b = matrix_of(b, true);
    g.c = y->data;
    g.batch = np_walk_over(batch, y->shape, {&ab, &bb});
    return run(c, g);
}

/* x (..., in), w (out, in), bias (out): all rows of x are one matrix where its strides allow, else batches of them. */
static int run_linear(const np_call *c)
{
    const np_operand *x = &c->in[0], *w = &c->in[1],
                     *b = c->n_in > 2 && c->in[2].present ? &c->in[2] : nullptr;
    np_operand one = {};
    product g = {};
    g.K = w->shape[1];
    g.N = w->shape[0];
    g.b = {w->data, w->stride[1], w->stride[0]};
    g.c = c->out[0].data;
    if (b) {
        g.bias = b->data;
        g.bias_stride = b->stride[0];
    }
    if (x->contiguous) {
        g.M = 1;
        for (int d = 0; d < x->ndim - 1; d++) g.M *= x->shape[d];
        g.a = {x->data, g.K, 1};
        g.batch = np_walk_over(0, x->shape, {&one, &one});
        return run(c, g);
    }
    const np_operand xb = batch_of(x);
    g.M = x->ndim > 1 ? x->shape[x->ndim - 2] : 1;
    g.a = matrix_of(x, false);
    g.batch = np_walk_over(xb.ndim, xb.shape, {&xb, &one});
    return run(c, g);
}

} // namespace

const np_plugin_row np_rows_product[] = {{"matmul", run_matmul}, {"linear", run_linear}, {nullptr, nullptr}};
