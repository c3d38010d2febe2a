/* flag.h - a yes or no from the device, for which the host waits: does an operand hold what an op refuses? */
#ifndef NP_CUDA_FLAG_H
#define NP_CUDA_FLAG_H

#include "device.h"

/* A zero in scratch memory; NULL: fail has been called. Kernels raise it by np_raise. */
static inline int *np_flag_new(const np_call *k)
{
    int *flag = static_cast<int *>(k->host->scratch(k, sizeof *flag));
    if (!flag) return nullptr;
    bool ok = NP_TRY(np_gpu_of(k), cudaMemsetAsync(flag, 0, sizeof *flag, np_gpu_of(k)->stream));
    return np_done(k, ok) == 0 ? flag : nullptr;
}

NP_DEVICE void np_raise(int *flag) { atomicOr(flag, 1); }

/* After all kernels so far: 1 or 0; -1: fail has been called. */
static inline int np_flag_read(const np_call *k, const int *flag)
{
    np_gpu *gpu = np_gpu_of(k);
    int raised = 0;
    bool ok =
        NP_TRY(gpu, cudaMemcpyAsync(&raised, flag, sizeof raised, cudaMemcpyDeviceToHost, gpu->stream)) &&
        NP_TRY(gpu, cudaStreamSynchronize(gpu->stream));
    return np_done(k, ok) == 0 ? raised : -1;
}

#endif
