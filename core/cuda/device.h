/* device.h - one CUDA device of one context, and how its failures are told. */
#ifndef NP_CUDA_DEVICE_H
#define NP_CUDA_DEVICE_H

#include <new>

#include "np_cuda.h"
#include "tensor/plugin.h"

/* All work of a context on a device goes through the stream in use, but copies that may take their time. Which stream
 * has to wait for which is the core's concern (tensor/streams.h). */
struct np_gpu {
    int index;
    cudaStream_t stream;          /* in use: one of all; NULL until the device is first used */
    cudaStream_t all[NP_STREAMS]; /* 0 is always there */
    int n_streams;
    cudaEvent_t moment; /* for waits, recorded anew for each */
    struct np_lt *lt;   /* blaslt.cu; NULL before the first product */
    bool waits;         /* for every call to be done, so that the one that is at fault is known */
    char why[500];      /* of the last failure */
};

/* A T of the host, all zero; NULL without memory. In the emulator it is one of the calls that a test lets fail. */
template <class T> T *np_new()
{
#ifndef __CUDACC__
    if (emu::must_fail()) return nullptr;
#endif
    return new (std::nothrow) T();
}

/* Did the call succeed? If not, `why` has the call, the error's name and meaning, file and line. What goes wrong while a
 * kernel runs is told by whichever call comes then, unless the device `waits` for each. */
bool np_succeeds(np_gpu *gpu, cudaError_t e, const char *call, const char *file, int line);
#define NP_TRY(gpu, call) np_succeeds(gpu, call, #call, __FILE__, __LINE__)

/* The device, which is then the one that launches go to: a context may have several. */
static inline np_gpu *np_gpu_at(void *device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    (void)cudaSetDevice(gpu->index); /* if that fails, so does what comes next */
    return gpu;
}
static inline np_gpu *np_gpu_of(const np_call *k) { return np_gpu_at(k->device); }

/* What a kernel function returns after its launches: 0, or -1 with the core told. */
static inline int np_done(const np_call *k, bool ok)
{
    if (!ok) k->host->fail(k->ctx, NEAP_E_DEVICE, np_gpu_of(k)->why);
    return ok ? 0 : -1;
}

/* The kernels of each file: op name and function. plugin.cu puts them together. */
extern const np_plugin_row np_rows_unary[], np_rows_binary[], np_rows_choice[], np_rows_random[],
    np_rows_index[];
extern const np_plugin_row np_rows_reduce[];
extern const np_plugin_row np_rows_product[];
extern const np_plugin_row np_rows_rows[];
extern const np_plugin_row np_rows_gather[], np_rows_overwrite[];
extern const np_plugin_row np_rows_sort[], np_rows_scan[];
extern const np_plugin_row np_rows_masked[], np_rows_arrange[], np_rows_others[];
extern const np_plugin_row np_rows_sampling[];

bool np_move(void *device, const np_operand *to, const np_operand *from);
bool np_fill(void *device, const np_operand *to, const void *item);
bool np_step_run(void *device, const np_step *s);

#endif
