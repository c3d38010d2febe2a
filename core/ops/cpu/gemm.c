/* gemm.c - the product door and our own kernel.
 *
 * This file is compiled once per CPU level for the packed kernel and the matrix-vector loops; the door itself
 * exists once. Every element of C is one sum along K in one fixed order, whoever computes its tile; tiles
 * follow from the shape. Nothing here knows tensors or autograd. */
#include "gemm.h"

#include <stdatomic.h>
#include "tensor/device.h"
#include <immintrin.h>

#ifndef NP_ISA
#define NP_ISA 0
#endif
#define LEVEL_(name, isa) name##isa
#define LEVEL2_(name, isa) LEVEL_(name, isa)
#define LEVEL(name) LEVEL2_(name, NP_ISA)

/* A matrix-vector block: y[r] = alpha sum_k A[r,k] x[k] + beta y[r] + bias[r], rows of one chunk. */
typedef struct gemv_job {
    bool f64;
    int64_t rows, K, rs, cs; /* A (rows,K) */
    const void *a, *x;       /* x is contiguous */
    void *y;
    int64_t ys;
    double alpha, beta;
    const void *bias;
    int64_t bias_stride;
} gemv_job;
#define GEMV_ROWS 256

typedef void (*gemv_fn)(const gemv_job *j);
void np_gemm_tile_0(const np_tile_job *t);
void np_gemm_tile_1(const np_tile_job *t);
void np_gemm_tile_2(const np_tile_job *t);
void np_gemv_0(const gemv_job *j);
void np_gemv_1(const gemv_job *j);
void np_gemv_2(const gemv_job *j);

/* ---- the packed kernel: MR rows by NV vectors of accumulators stay in registers */

#if NP_ISA == 2
enum { BYTES = 64, MR = 12, NV = 2 };
#elif NP_ISA == 1
enum { BYTES = 32, MR = 6, NV = 2 };
#else
enum { BYTES = 16, MR = 4, NV = 2 };
#endif
typedef float vec_f32
    __attribute__((vector_size(BYTES), aligned(4), may_alias)); /* loads need no alignment */
typedef double vec_f64 __attribute__((vector_size(BYTES), aligned(8), may_alias));
#define UNROLL _Pragma("GCC unroll 16")

/* Fused where the level has it: one rounding, the same for every element. */
#if NP_ISA == 2
#define FMA_f32(a, b, c) ((vec_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FMA_f64(a, b, c) ((vec_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#elif NP_ISA == 1
#define FMA_f32(a, b, c) ((vec_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FMA_f64(a, b, c) ((vec_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#else
#define FMA_f32(a, b, c) ((a) * (b) + (c))
#define FMA_f64(a, b, c) ((a) * (b) + (c))
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define PACKED_KERNEL(T, S) \
    enum { NR_##S = NV * BYTES / (int)sizeof(T) }; \
    /* (n, K) in strips of `width`: out[strip][k][0..width), edges zero */ \
    static void pack_##S(T *out, const T *p, int64_t ns, int64_t ks, int64_t n, int64_t K, int width) \
    { \
        for (int64_t n0 = 0; n0 < n; n0 += width, out += width * K) { \
            int w = (int)MIN(width, n - n0); \
            const T *q = p + n0 * ns; \
            for (int64_t k = 0; k < K; k++) { \
                T *o = out + k * width; \
                const T *s = q + k * ks; \
                if (ns == 1 && w == width) { \
                    for (int i = 0; i < width; i++) o[i] = s[i]; \
                } else { \
                    for (int i = 0; i < w; i++) o[i] = s[i * ns]; \
                    for (int i = w; i < width; i++) o[i] = 0; \
                } \
            } \
        } \
    } \
    static void micro_##S(int64_t K, const T *a, const T *b, T *out /* (MR, NR) */) \
    { \
        vec_##S acc[MR][NV]; \
        UNROLL for (int i = 0; i < MR; i++) UNROLL for (int v = 0; v < NV; v++) acc[i][v] = (vec_##S){0}; \
        for (int64_t k = 0; k < K; k++, a += MR, b += NR_##S) { \
            vec_##S bv[NV]; \
            UNROLL for (int v = 0; v < NV; v++) bv[v] = ((const vec_##S *)(const void *)b)[v]; \
            UNROLL for (int i = 0; i < MR; i++) \
            { \
                vec_##S av = a[i] - (vec_##S){0}; \
                UNROLL for (int v = 0; v < NV; v++) acc[i][v] = FMA_##S(av, bv[v], acc[i][v]); \
            } \
        } \
        UNROLL for (int i = 0; i < MR; i++) \
            UNROLL for (int v = 0; v < NV; v++)((vec_##S *)(void *)out)[i * NV + v] = acc[i][v]; \
    } \
    static void tile_##S(const np_tile_job *t) \
    { \
        T *bp = t->pack, *ap = bp + (t->N + NR_##S - 1) / NR_##S * NR_##S * NP_PACK_K; \
        T alpha = (T)t->alpha, block[MR * NR_##S]; \
        for (int64_t k0 = 0; k0 == 0 || k0 < t->K; k0 += NP_PACK_K) { \
            int64_t K = MIN(NP_PACK_K, t->K - k0); \
            T beta = k0 ? (T)1 : (T)t->beta; \
            pack_##S(bp, (const T *)t->b + k0 * t->brs, t->bcs, t->brs, t->N, K, NR_##S); \
            pack_##S(ap, (const T *)t->a + k0 * t->acs, t->ars, t->acs, t->M, K, MR); \
            for (int64_t j0 = 0; j0 < t->N; j0 += NR_##S) { \
                int nj = (int)MIN(NR_##S, t->N - j0); \
                for (int64_t i0 = 0; i0 < t->M; i0 += MR) { \
                    int ni = (int)MIN(MR, t->M - i0); \
                    micro_##S(K, ap + i0 * K, bp + j0 * K, block); \
                    for (int i = 0; i < ni; i++) { \
                        T *c = (T *)t->c + (i0 + i) * t->crs + j0 * t->ccs; \
                        const T *r = block + i * NR_##S; \
                        if (beta == 0) \
                            for (int j = 0; j < nj; j++) c[j * t->ccs] = alpha * r[j]; \
                        else \
                            for (int j = 0; j < nj; j++) \
                                c[j * t->ccs] = alpha * r[j] + beta * c[j * t->ccs]; \
                    } \
                } \
            } \
        } \
    }
PACKED_KERNEL(float, f32)
PACKED_KERNEL(double, f64)

void LEVEL(np_gemm_tile_)(const np_tile_job *t)
{
    if (t->f64) tile_f64(t);
    else tile_f32(t);
}

/* ---- matrix times vector: bandwidth bound, so it reads A once, along whichever stride is 1 */

#define MATVEC(T, S) \
    /* one row: four vectors of partial sums, added in a fixed order */ \
    static T dot_##S(const T *a, int64_t cs, const T *x, int64_t K) \
    { \
        enum { L = BYTES / (int)sizeof(T) }; \
        T sum = 0; \
        int64_t k = 0; \
        if (cs == 1) { \
            vec_##S acc[4] = {{0}, {0}, {0}, {0}}; \
            for (; k + 4 * L <= K; k += 4 * L) { \
                const vec_##S *av = (const void *)(a + k), *xv = (const void *)(x + k); \
                UNROLL for (int v = 0; v < 4; v++) acc[v] = FMA_##S(av[v], xv[v], acc[v]); \
            } \
            vec_##S all = (acc[0] + acc[1]) + (acc[2] + acc[3]); \
            for (int l = 0; l < L; l++) sum += all[l]; \
        } \
        for (; k < K; k++) sum += a[k * cs] * x[k]; \
        return sum; \
    } \
    /* Three rows of stride 1, each as above: one row alone is one stream from memory, too few for its bandwidth. */ \
    static void dot3_##S(const T *a, int64_t rs, const T *x, int64_t K, T *sum) \
    { \
        enum { L = BYTES / (int)sizeof(T) }; \
        vec_##S acc[3][4] = {{{0}}}; \
        int64_t k = 0; \
        for (; k + 4 * L <= K; k += 4 * L) { \
            const vec_##S *xv = (const void *)(x + k), *av = (const void *)(a + k); \
            const vec_##S *bv = (const void *)(a + rs + k), *cv = (const void *)(a + 2 * rs + k); \
            UNROLL for (int v = 0; v < 4; v++) \
            { \
                acc[0][v] = FMA_##S(av[v], xv[v], acc[0][v]); \
                acc[1][v] = FMA_##S(bv[v], xv[v], acc[1][v]); \
                acc[2][v] = FMA_##S(cv[v], xv[v], acc[2][v]); \
            } \
        } \
        UNROLL for (int r = 0; r < 3; r++) \
        { \
            vec_##S all = (acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3]); \
            sum[r] = 0; \
            for (int l = 0; l < L; l++) sum[r] += all[l]; \
            for (int64_t i = k; i < K; i++) sum[r] += a[r * rs + i] * x[i]; \
        } \
    } \
    static void matvec_##S(const gemv_job *j) \
    { \
        const T *a = j->a, *x = j->x, *bias = j->bias; \
        T sum[GEMV_ROWS]; \
        if (j->rs == 1 && j->cs != 1) { \
            for (int64_t r = 0; r < j->rows; r++) sum[r] = 0; \
            int64_t k = 0; \
            for (; k + 4 <= j->K; k += 4) { \
                const T *p = a + k * j->cs, *q = p + j->cs, *s = q + j->cs, *t = s + j->cs; \
                T x0 = x[k], x1 = x[k + 1], x2 = x[k + 2], x3 = x[k + 3]; \
                for (int64_t r = 0; r < j->rows; r++) \
                    sum[r] += (p[r] * x0 + q[r] * x1) + (s[r] * x2 + t[r] * x3); \
            } \
            for (; k < j->K; k++) \
                for (int64_t r = 0; r < j->rows; r++) sum[r] += a[r + k * j->cs] * x[k]; \
        } else { \
            int64_t r = 0; \
            for (; j->cs == 1 && r + 3 <= j->rows; r += 3) dot3_##S(a + r * j->rs, j->rs, x, j->K, sum + r); \
            for (; r < j->rows; r++) sum[r] = dot_##S(a + r * j->rs, j->cs, x, j->K); \
        } \
        T *y = j->y, alpha = (T)j->alpha, beta = (T)j->beta; \
        for (int64_t r = 0; r < j->rows; r++) { \
            T v = alpha * sum[r]; \
            if (beta != 0) v += beta * y[r * j->ys]; \
            if (bias) v += bias[r * j->bias_stride]; \
            y[r * j->ys] = v; \
        } \
    }
MATVEC(float, f32)
MATVEC(double, f64)

void LEVEL(np_gemv_)(const gemv_job *j)
{
    if (j->f64) matvec_f64(j);
    else matvec_f32(j);
}

/* ---- the door */
#if NP_ISA == 0

np_tile_fn np_gemm_tile(int isa)
{
    static const np_tile_fn fns[NP_N_ISA] = {np_gemm_tile_0, np_gemm_tile_1, np_gemm_tile_2};
    return fns[isa];
}

enum {
    TILE_MAX = 512,    /* at most TILE_MAX x TILE_MAX: its packed panels stay in the second cache */
    HALF_K = 512,      /* half types: columns converted to float32 at a time */
    GEMV_WORK = 262144 /* elements of a matrix-vector chunk */
};
#define TILE_WORK 2097152.0 /* multiply-adds below which cutting further costs more than it balances */
#define CHUNK_WORK 131072.0 /* smaller items share a chunk, so that small products wake no worker */

typedef struct job {
    const np_gemm_args *g;
    const np_blas *blas; /* NULL: own kernel */
    np_tile_fn tile;
    gemv_fn gemv;
    int64_t tm, tn, n_tm, n_tn; /* tile sizes and counts */
    int64_t items, per_chunk;   /* (batch, tile) pairs */
    bool half, vec;
    const void *x; /* matrix-vector: the vectors of all batch entries, contiguous */
    char *scratch; /* n_slots pieces of slot_bytes */
    size_t slot_bytes;
    int n_slots;
    atomic_int *taken; /* per slot */
} job;

/* Scratch for one running chunk. Which piece it is does not change a bit. */
static int take_slot(job *j)
{
    for (int i = 0;; i = (i + 1) % j->n_slots) {
        int free = 0;
        if (atomic_compare_exchange_strong(&j->taken[i], &free, 1)) return i;
    }
}

static const char *at(const np_mat *m, const np_gemm_args *g, int64_t batch, size_t es, int64_t r,
                      int64_t col)
{
    int64_t o = r * m->rs + col * m->cs;
    for (int d = g->n_batch - 1; d >= 0; d--) {
        o += batch % g->batch[d] * m->bs[d];
        batch /= g->batch[d];
    }
    return (const char *)m->p + o * (int64_t)es;
}

/* BLAS takes a matrix with one stride 1 and the other at least the length along it. */
static bool blas_layout(int64_t rows, int64_t cols, int64_t rs, int64_t cs, bool *trans, int *ld)
{
    if ((cs == 1 || cols == 1) && (rows == 1 || (rs >= cols && rs <= INT32_MAX))) {
        *trans = false;
        *ld = rows == 1 ? (int)MIN(cols, INT32_MAX) : (int)rs;
        return cols <= INT32_MAX;
    }
    if ((rs == 1 || rows == 1) && (cols == 1 || (cs >= rows && cs <= INT32_MAX))) {
        *trans = true;
        *ld = cols == 1 ? (int)rows : (int)cs;
        return cols <= INT32_MAX;
    }
    return false;
}

/* A float32 or float64 tile on whichever provider takes its layout. The choice depends on shape and strides. */
static void run_tile(const job *j, const np_tile_job *t)
{
    bool ta, tb;
    int lda, ldb;
    if (j->blas && t->K > 0 && t->ccs == 1 && (t->crs >= t->N || t->M == 1) && t->crs <= INT32_MAX &&
        blas_layout(t->M, t->K, t->ars, t->acs, &ta, &lda) &&
        blas_layout(t->K, t->N, t->brs, t->bcs, &tb, &ldb)) {
        int ldc = (int)(t->M == 1 ? t->N : t->crs);
        np_blas_tile(j->blas, t->f64, ta, tb, (int)t->M, (int)t->N, (int)t->K, t->alpha, t->a, lda, t->b, ldb,
                     t->beta, t->c, ldc);
        return;
    }
    j->tile(t);
}

static void prefill(np_tile_job *t, const char *bias, int64_t stride)
{
    for (int64_t i = 0; i < t->M; i++) {
        for (int64_t k = 0; k < t->N; k++) {
            int64_t o = i * t->crs + k * t->ccs;
            if (t->f64) ((double *)t->c)[o] = ((const double *)bias)[k * stride];
            else ((float *)t->c)[o] = ((const float *)bias)[k * stride];
        }
    }
    t->beta = 1;
}

/* rows x cols of a half matrix to contiguous float32. */
static void load_half(float *out, neap_dtype t, const char *p, int64_t rows, int64_t cols, int64_t rs,
                      int64_t cs)
{
    for (int64_t r = 0; r < rows; r++)
        np_convert(NEAP_FLOAT32, out + r * cols, 4, t, p + r * rs * 2, cs * 2, cols);
}

static void half_tile(const job *j, int64_t batch, int64_t i0, int64_t j0, int64_t M, int64_t N,
                      char *scratch)
{
    const np_gemm_args *g = j->g;
    float *sum = (float *)(void *)scratch, *ap = sum + j->tm * j->tn, *bp = ap + j->tm * HALF_K;
    np_tile_job t = {.M = M,
                     .N = N,
                     .a = ap,
                     .b = bp,
                     .c = sum,
                     .acs = 1,
                     .brs = N,
                     .bcs = 1,
                     .crs = N,
                     .ccs = 1,
                     .alpha = g->alpha,
                     .pack = bp + HALF_K * j->tn};
    for (int64_t k0 = 0; k0 == 0 || k0 < g->K; k0 += HALF_K) {
        t.K = t.ars = MIN(HALF_K, g->K - k0);
        t.beta = k0 ? 1 : 0;
        load_half(ap, g->dtype, at(&g->a, g, batch, 2, i0, k0), M, t.K, g->a.rs, g->a.cs);
        load_half(bp, g->dtype, at(&g->b, g, batch, 2, k0, j0), t.K, N, g->b.rs, g->b.cs);
        run_tile(j, &t);
    }
    for (int64_t i = 0; i < M; i++) {
        char *c = (char *)(uintptr_t)at(&g->c, g, batch, 2, i0 + i, j0);
        for (int64_t k = 0; k < N; k++) {
            float v = sum[i * N + k], old = 0;
            if (g->beta != 0) np_convert(NEAP_FLOAT32, &old, 4, g->dtype, c + k * g->c.cs * 2, 2, 1);
            if (g->bias)
                np_convert(NEAP_FLOAT32, &old, 4, g->dtype,
                           (const char *)g->bias + (j0 + k) * g->bias_stride * 2, 2, 1);
            sum[i * N + k] = v + (float)(g->bias ? 1 : g->beta) * old;
        }
        np_convert(g->dtype, c, g->c.cs * 2, NEAP_FLOAT32, sum + i * N, 4, N);
    }
}

static void gemv_item(const job *j, int64_t batch, int64_t r0)
{
    const np_gemm_args *g = j->g;
    bool f64 = g->dtype == NEAP_FLOAT64, row = g->N != 1; /* a row result: y^T = B^T a^T */
    size_t es = f64 ? 8 : 4;
    const np_mat *m = row ? &g->b : &g->a;
    gemv_job v = {
        .f64 = f64,
        .rows = MIN(row ? j->tn : j->tm, (row ? g->N : g->M) - r0),
        .K = g->K,
        .rs = row ? m->cs : m->rs,
        .cs = row ? m->rs : m->cs,
        .a = at(m, g, batch, es, row ? 0 : r0, row ? r0 : 0),
        .x = (const char *)j->x + (size_t)(batch * g->K) * es,
        .y = (void *)(uintptr_t)at(&g->c, g, batch, es, row ? 0 : r0, row ? r0 : 0),
        .ys = row ? g->c.cs : g->c.rs,
        .alpha = g->alpha,
        .beta = g->beta,
        .bias = g->bias ? (const char *)g->bias + (row ? r0 * g->bias_stride * (int64_t)es : 0) : NULL,
        .bias_stride = row ? g->bias_stride : 0,
    };
    j->gemv(&v);
}

/* Integers wrap around, in unsigned arithmetic. */
#define INT_TILE(T, U) \
    static void tile_##T(const np_gemm_args *g, const T *a, const T *b, T *c, int64_t M, int64_t N) \
    { \
        for (int64_t i = 0; i < M; i++) { \
            T *ci = c + i * g->c.rs; \
            for (int64_t n = 0; n < N; n++) \
                ci[n * g->c.cs] = g->bias ? ((const T *)g->bias)[n * g->bias_stride] : (T)0; \
            for (int64_t k = 0; k < g->K; k++) { \
                U x = (U)a[i * g->a.rs + k * g->a.cs]; \
                const T *bk = b + k * g->b.rs; \
                for (int64_t n = 0; n < N; n++) \
                    ci[n * g->c.cs] = (T)((U)ci[n * g->c.cs] + x * (U)bk[n * g->b.cs]); \
            } \
        } \
    }
INT_TILE(int64_t, uint64_t)
INT_TILE(int32_t, uint32_t)
INT_TILE(int8_t, uint32_t)
INT_TILE(uint8_t, uint32_t)

static void int_tile(const np_gemm_args *g, int64_t batch, int64_t i0, int64_t j0, int64_t M, int64_t N)
{
    size_t es = np_dtype_size(g->dtype);
    np_gemm_args s = *g;
    if (s.bias) s.bias = (const char *)s.bias + j0 * s.bias_stride * (int64_t)es;
    const char *a = at(&g->a, g, batch, es, i0, 0), *b = at(&g->b, g, batch, es, 0, j0);
    void *c = (void *)(uintptr_t)at(&g->c, g, batch, es, i0, j0);
    switch (g->dtype) {
    case NEAP_INT64: tile_int64_t(&s, (const void *)a, (const void *)b, c, M, N); break;
    case NEAP_INT32: tile_int32_t(&s, (const void *)a, (const void *)b, c, M, N); break;
    case NEAP_INT8: tile_int8_t(&s, (const void *)a, (const void *)b, c, M, N); break;
    default: tile_uint8_t(&s, (const void *)a, (const void *)b, c, M, N); break;
    }
}

static void run_item(const job *j, int64_t item, char *scratch)
{
    const np_gemm_args *g = j->g;
    int64_t per = j->n_tm * j->n_tn, batch = item / per, tile = item % per;
    int64_t i0 = tile / j->n_tn * j->tm, j0 = tile % j->n_tn * j->tn;
    if (j->vec) {
        gemv_item(j, batch, g->N != 1 ? j0 : i0);
        return;
    }
    int64_t M = MIN(j->tm, g->M - i0), N = MIN(j->tn, g->N - j0);
    if (j->half) {
        half_tile(j, batch, i0, j0, M, N, scratch);
        return;
    }
    if (!np_is_float(g->dtype)) {
        int_tile(g, batch, i0, j0, M, N);
        return;
    }
    size_t es = np_dtype_size(g->dtype);
    np_tile_job t = {
        .f64 = g->dtype == NEAP_FLOAT64,
        .M = M,
        .N = N,
        .K = g->K,
        .a = at(&g->a, g, batch, es, i0, 0),
        .ars = g->a.rs,
        .acs = g->a.cs,
        .b = at(&g->b, g, batch, es, 0, j0),
        .brs = g->b.rs,
        .bcs = g->b.cs,
        .c = (void *)(uintptr_t)at(&g->c, g, batch, es, i0, j0),
        .crs = g->c.rs,
        .ccs = g->c.cs,
        .alpha = g->alpha,
        .beta = g->beta,
        .pack = scratch,
    };
    if (g->bias) prefill(&t, (const char *)g->bias + j0 * g->bias_stride * (int64_t)es, g->bias_stride);
    run_tile(j, &t);
}

static void run_chunk(void *arg, int64_t chunk)
{
    job *j = arg;
    int slot = j->scratch ? take_slot(j) : 0;
    int64_t end = MIN(j->items, (chunk + 1) * j->per_chunk);
    for (int64_t i = chunk * j->per_chunk; i < end; i++)
        run_item(j, i, j->scratch ? j->scratch + (size_t)slot * j->slot_bytes : NULL);
    if (j->scratch) atomic_store(&j->taken[slot], 0);
}

/* Batch entries that share B and follow one another in A and C are one taller product: (batch, M) = M'. */
static void merge_batch(np_gemm_args *g)
{
    while (g->n_batch > 0) {
        int d = g->n_batch - 1;
        bool fits = g->batch[d] == 1 ||
                    (g->b.bs[d] == 0 && g->a.bs[d] == g->M * g->a.rs && g->c.bs[d] == g->M * g->c.rs);
        if (g->batch[d] != 1 && g->M == 1 && g->b.bs[d] == 0) { /* one row each: any strides will do */
            g->a.rs = g->a.bs[d];
            g->c.rs = g->c.bs[d];
            fits = true;
        }
        if (!fits) return;
        g->M *= g->batch[d];
        g->n_batch--;
    }
}

static int64_t cut(int64_t size, int64_t pieces)
{
    int64_t each = (size + pieces - 1) / pieces;
    return each >= size ? size : (each + 15) / 16 * 16;
}

/* Halves the longer side until there are eight tiles or they would get too small. By shape only. */
static void choose_tiles(job *j)
{
    const np_gemm_args *g = j->g;
    if (j->vec) {
        int64_t rows = g->K > 0 ? MAX(16, MIN(GEMV_ROWS, GEMV_WORK / g->K)) : GEMV_ROWS;
        j->tm = g->N == 1 ? rows : 1;
        j->tn = g->N == 1 ? 1 : rows;
        j->n_tm = (g->M + j->tm - 1) / j->tm;
        j->n_tn = (g->N + j->tn - 1) / j->tn;
        return;
    }
    int64_t m = (g->M + TILE_MAX - 1) / TILE_MAX, n = (g->N + TILE_MAX - 1) / TILE_MAX, batch = 1;
    for (int d = 0; d < g->n_batch; d++) batch *= g->batch[d];
    for (;;) {
        int64_t tm = cut(g->M, m), tn = cut(g->N, n);
        if (batch * m * n >= 8 || (double)tm * (double)tn * (double)g->K < 2 * TILE_WORK) break;
        if (tm <= 16 && tn <= 16) break;
        if (tm > tn) m *= 2;
        else n *= 2;
    }
    j->tm = cut(g->M, m);
    j->tn = cut(g->N, n);
    j->n_tm = (g->M + j->tm - 1) / j->tm;
    j->n_tn = (g->N + j->tn - 1) / j->tn;
}

/* The vectors of all batch entries, in order, so that the loops below read them with stride 1. */
static void gather_vectors(const np_gemm_args *g, int64_t batches, char *out)
{
    size_t es = np_dtype_size(g->dtype);
    bool row = g->N != 1;
    const np_mat *m = row ? &g->a : &g->b;
    int64_t stride = (row ? m->cs : m->rs) * (int64_t)es;
    for (int64_t i = 0; i < batches; i++)
        np_convert(g->dtype, out + (size_t)(i * g->K) * es, (int64_t)es, g->dtype, at(m, g, i, es, 0, 0),
                   stride, g->K);
}

static bool needs_scratch(const job *j)
{
    const np_gemm_args *g = j->g;
    bool t;
    int ld;
    if (j->vec || !np_is_float(g->dtype)) return false;
    return j->half || !j->blas || g->K == 0 || g->c.cs != 1 || (g->M > 1 && g->c.rs < g->N) ||
           g->c.rs > INT32_MAX || !blas_layout(g->M, g->K, g->a.rs, g->a.cs, &t, &ld) ||
           !blas_layout(g->K, g->N, g->b.rs, g->b.cs, &t, &ld);
}

static bool run(neap_ctx *c, job *j)
{
    int64_t chunks = (j->items + j->per_chunk - 1) / j->per_chunk;
    return np_parallel(c, chunks, run_chunk, j);
}

static bool with_scratch(neap_ctx *c, np_mem *mem, job *j)
{
    const np_gemm_args *g = j->g;
    int64_t chunks = (j->items + j->per_chunk - 1) / j->per_chunk;
    size_t es = j->half ? 4 : np_dtype_size(g->dtype),
           elements = NP_PACK_ELEMENTS((size_t)j->tm, (size_t)j->tn);
    if (j->half) elements += (size_t)(j->tm * j->tn + (j->tm + j->tn) * HALF_K);
    j->slot_bytes = (elements * es + 63) / 64 * 64;
    j->n_slots = (int)MIN(chunks, (int64_t)neap_get_num_threads(c));
    size_t flags = ((size_t)j->n_slots * sizeof *j->taken + 63) / 64 * 64,
           bytes = flags + j->slot_bytes * (size_t)j->n_slots;
    char *p = np_mem_take_scratch(mem, bytes);
    if (!p) return false;
    j->taken = (atomic_int *)(void *)p;
    for (int i = 0; i < j->n_slots; i++) atomic_init(&j->taken[i], 0);
    j->scratch = p + flags;
    bool ok = run(c, j);
    np_mem_give_scratch(mem, p, bytes);
    return ok;
}

bool np_gemm(neap_ctx *c, const np_gemm_args *args)
{
    static const gemv_fn gemvs[NP_N_ISA] = {np_gemv_0, np_gemv_1, np_gemv_2};
    np_mem *mem = &c->devices[0]->mem;
    np_gemm_args g = *args;
    int64_t batches = 1;
    if (g.M == 0 || g.N == 0) return true;
    merge_batch(&g);
    for (int d = 0; d < g.n_batch; d++) batches *= g.batch[d];
    if (batches == 0 || g.M == 0) return true;
    bool plain = g.dtype == NEAP_FLOAT32 || g.dtype == NEAP_FLOAT64;
    const np_blas *blas = np_blas_open(c);
    if (!blas) return false;
    job j = {.g = &g,
             .blas = np_blas_ready(blas) ? blas : NULL,
             .tile = np_gemm_tile(c->isa),
             .gemv = gemvs[c->isa],
             .half = np_is_float(g.dtype) && !plain,
             .vec = plain && (g.M == 1 || g.N == 1)};
    choose_tiles(&j);
    j.items = batches * j.n_tm * j.n_tn;
    double work = (double)j.tm * (double)j.tn * (double)(g.K > 0 ? g.K : 1);
    j.per_chunk = work >= CHUNK_WORK ? 1 : (int64_t)(CHUNK_WORK / work);
    if (!j.vec) return needs_scratch(&j) ? with_scratch(c, mem, &j) : run(c, &j);
    size_t bytes = (size_t)(batches * g.K) * np_dtype_size(g.dtype);
    char *x = np_mem_take(mem, bytes, NEAP_WORKSPACE);
    if (!x) return false;
    gather_vectors(&g, batches, x);
    j.x = x;
    bool ok = run(c, &j);
    np_mem_give(mem, x, bytes, NEAP_WORKSPACE);
    return ok;
}
#endif
