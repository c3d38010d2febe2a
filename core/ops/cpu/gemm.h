/* gemm.h - the one door for products: C = alpha A B + beta C, batched, with free strides.
 *
 * Row and column strides mean that transposes, heads and slices need no copies. The work is cut into tiles
 * from the shape alone and K is never cut, so no bit depends on the number of threads: each tile is one call
 * of single-threaded OpenBLAS (blas.c) or of our own kernel (gemm.c). Half types compute in float32, integers
 * wrap around. What tiles are packed or converted into is scratch (mem.h): the bytes that live, and their peak, are
 * the same whoever computes, with any number of threads. K = 0 counts as a product of zeros; beta = 0 never reads C. */
#ifndef NP_GEMM_H
#define NP_GEMM_H

#include "base/ctx.h"

typedef struct np_mat {
    void *p;                   /* first element of the first matrix of the batch */
    int64_t rs, cs;            /* elements from row to row, from column to column */
    int64_t bs[NEAP_MAX_DIMS]; /* elements along each batch dimension; 0: the same matrix again */
} np_mat;

typedef struct np_gemm_args {
    neap_dtype dtype; /* of A, B, C and bias; not bool */
    int n_batch;
    int64_t batch[NEAP_MAX_DIMS];
    int64_t M, N, K;
    np_mat a /* (M,K) */, b /* (K,N) */, c /* (M,N) */;
    double alpha, beta; /* integers: 1 and 0 only */
    const void *bias;   /* (N), added to every row, or NULL; beta must be 0 then */
    int64_t bias_stride;
} np_gemm_args;

/* false: cancelled or out of memory, recorded; C is half written then. C must not overlap A or B. */
bool np_gemm(neap_ctx *c, const np_gemm_args *g);

/* One tile of our own kernel, float32 or float64: C = alpha A B + beta C. `pack` holds
 * NP_PACK_ELEMENTS(M, N) elements, 64-byte aligned. */
typedef struct np_tile_job {
    bool f64;
    int64_t M, N, K;
    const void *a, *b;
    void *c;
    int64_t ars, acs, brs, bcs, crs, ccs;
    double alpha, beta;
    void *pack;
} np_tile_job;
#define NP_PACK_K 256 /* rows of a packed panel; also the step of the fixed order along K */
#define NP_PACK_ELEMENTS(M, N) (((M) + (N) + 64) * NP_PACK_K)
typedef void (*np_tile_fn)(const np_tile_job *t);
np_tile_fn np_gemm_tile(int isa);

/* ---- blas.c: OpenBLAS, opened at the first product of a context */
typedef struct np_blas np_blas;

/* Never NULL but for lack of memory (recorded); np_blas_ready says whether a library stands behind it. */
const np_blas *np_blas_open(neap_ctx *c);
bool np_blas_ready(const np_blas *b);
const char *np_blas_describe(neap_ctx *c); /* "OpenBLAS 0.3.21 Zen" or "own kernel", for benches */
/* Row-major C (M,N) with row stride ldc. ta: A is stored (K,M). Safe from pool workers. */
void np_blas_tile(const np_blas *b, bool f64, bool ta, bool tb, int M, int N, int K, double alpha,
                  const void *A, int lda, const void *B, int ldb, double beta, void *C, int ldc);

#endif
