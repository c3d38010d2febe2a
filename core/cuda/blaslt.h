/* blaslt.h - products of matrices by NVIDIA's cuBLASLt, where it is installed. */
#ifndef NP_CUDA_BLASLT_H
#define NP_CUDA_BLASLT_H

#include "device.h"

/* C (M,N) = A (M,K) B (K,N) + bias (N), `batches` times. A is (M,K) in rows of `lda` or, ta, its transpose in rows of
 * lda; B likewise. C is contiguous. A stride of 0: the same matrix again. No size is 0. */
struct np_lt_product {
    int dtype; /* of all of them: a float */
    int64_t M, N, K, lda, ldb, batches, stride_a, stride_b;
    bool ta, tb;
    const void *a, *b, *bias; /* bias NULL: none */
    void *c;
};

/* 0; -1: fail has been called; 1: nothing done, for there is no library, or it has no way to do this one. */
int np_lt_multiply(const np_call *k, const np_lt_product &p);

/* What multiplies on a device, how often it chose a way of multiplying, and how often one was used again. */
void np_lt_facts(const np_gpu *gpu, np_device_facts *out);
void np_lt_close(np_gpu *gpu);

#endif
