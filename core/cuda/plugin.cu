/* plugin.cu - the CUDA plug-in: what tensor/plugin.h asks for.
 *
 * Compiled by nvcc this is libneap-cuda.so, compiled against the emulator libneap-cudaemu.so. No CUDA library is
 * needed to open it: the runtime is linked in, and the driver is looked for when somebody asks how many devices there
 * are. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "blaslt.h"

/* What a kernel does wrong stays the error of every call after it. */
static bool is_lost(const np_gpu *gpu)
{
    const cudaError_t e = gpu->stream ? cudaStreamQuery(gpu->stream) : cudaSuccess;
    return e != cudaSuccess && e != cudaErrorNotReady;
}

bool np_succeeds(np_gpu *gpu, cudaError_t e, const char *call, const char *file, int line)
{
    if (e == cudaSuccess && gpu->waits && gpu->stream) e = cudaStreamSynchronize(gpu->stream);
    if (e == cudaSuccess) return true;
    const char *name = strrchr(file, '/');
    const bool lost = is_lost(gpu);
    snprintf(gpu->why, sizeof gpu->why, "%s: %s (%.120s, %s:%d)%s%s", cudaGetErrorName(e),
             cudaGetErrorString(e), call, name ? name + 1 : file, line,
             lost ? "; the device is lost to this process" : "",
             !lost || gpu->waits
                 ? ""
                 : ", perhaps by an op before this one: with NEAP_CUDA_SYNC=1 the one at fault is named");
    (void)cudaGetLastError(); /* or the next call would report it again */
    return false;
}

static int count(char *why, size_t n)
{
    int devices = 0, driver = 0; /* an error leaves them as they are */
    cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaSuccess && devices > 0) return devices;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        snprintf(why, n, "no driver is installed");
    else if (e == cudaErrorInsufficientDriver)
        snprintf(why, n, "the driver is too old: it knows CUDA %d.%d, this plug-in needs %d.%d",
                 driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (e == cudaErrorNoDevice || e == cudaSuccess) snprintf(why, n, "there is a driver, but no device");
    else snprintf(why, n, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
    return 0;
}

static int add_stream(np_gpu *gpu)
{
    if (gpu->n_streams == NP_STREAMS) {
        snprintf(gpu->why, sizeof gpu->why, "a device has at most %d streams", NP_STREAMS);
        return -1;
    }
    if (!NP_TRY(gpu, cudaStreamCreateWithFlags(&gpu->all[gpu->n_streams], cudaStreamNonBlocking))) return -1;
    return gpu->n_streams++;
}

static __global__ void nothing() {}

/* What a device needs: memory of its own, a part of a second, and kernels that it can run. So it gets it when it is first
 * used: a machine may have eight, and a script use one. After a failure the next use tries again. */
static bool start(np_gpu *gpu)
{
    if ((gpu->n_streams == 0 && add_stream(gpu) < 0) ||
        !NP_TRY(gpu, np_launch(nothing, 1, 1, 0, gpu->all[0])) ||
        (!gpu->moment && !NP_TRY(gpu, cudaEventCreateWithFlags(&gpu->moment, cudaEventDisableTiming))))
        return false;
    gpu->stream = gpu->all[0];
    return true;
}

/* Where something is given back, a failure to enter hinders nothing: addresses and handles say which device it is. */
static bool enter(np_gpu *gpu)
{
    return NP_TRY(gpu, cudaSetDevice(gpu->index)) && (gpu->stream || start(gpu));
}

/* ---- streams and events */

static int stream_new(void *device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    return enter(gpu) ? add_stream(gpu) : -1;
}

static bool stream_use(void *device, int stream)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    gpu->stream = gpu->all[stream];
    return true;
}

static bool stream_wait(void *device, int stream, int other)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    return enter(gpu) && NP_TRY(gpu, cudaEventRecord(gpu->moment, gpu->all[other])) &&
           NP_TRY(gpu, cudaStreamWaitEvent(gpu->all[stream], gpu->moment, 0));
}

/* Nothing is to be waited for: also where the device is lost, which the next call will tell. */
static bool stream_done(void *device, int stream)
{
    return cudaStreamQuery(static_cast<np_gpu *>(device)->all[stream]) != cudaErrorNotReady;
}

static bool stream_finish(void *device, int stream)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    return !gpu->stream || NP_TRY(gpu, cudaStreamSynchronize(gpu->all[stream]));
}

static void *event_new(void *device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    cudaEvent_t e = nullptr;
    return enter(gpu) && NP_TRY(gpu, cudaEventCreate(&e)) ? e : nullptr;
}

static void event_free(void *device, void *event)
{
    (void)enter(static_cast<np_gpu *>(device));
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

static bool event_record(void *device, void *event)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    return enter(gpu) && NP_TRY(gpu, cudaEventRecord(static_cast<cudaEvent_t>(event), gpu->stream));
}

static bool event_done(void *, void *event)
{
    return cudaEventQuery(static_cast<cudaEvent_t>(event)) != cudaErrorNotReady;
}

static bool event_wait(void *device, void *event)
{
    return NP_TRY(static_cast<np_gpu *>(device), cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}

static bool event_time(void *device, void *from, void *to, double *milliseconds)
{
    float ms = 0;
    if (!NP_TRY(static_cast<np_gpu *>(device),
                cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to))))
        return false;
    *milliseconds = ms;
    return true;
}

/* ---- the device */

/* Also one that has started in part only, or not. */
static void close_device(void *device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    if (gpu->n_streams > 0) (void)NP_TRY(gpu, cudaSetDevice(gpu->index));
    np_lt_close(gpu);
    for (int i = 0; i < gpu->n_streams; i++) (void)cudaStreamDestroy(gpu->all[i]);
    if (gpu->moment) (void)cudaEventDestroy(gpu->moment);
    delete gpu;
}

static void *open_device(int index, char *why, size_t n)
{
    np_gpu *gpu = np_new<np_gpu>();
    if (!gpu) {
        snprintf(why, n, "out of memory");
        return nullptr;
    }
    const char *sync = getenv("NEAP_CUDA_SYNC");
    gpu->index = index;
    gpu->waits = sync && *sync && strcmp(sync, "0") != 0;
    return gpu;
}

/* p, or nothing; then `why` is empty where there is just no memory left. */
static void *taken(np_gpu *gpu, cudaError_t e, void *p, const char *call)
{
    if (np_succeeds(gpu, e, call, __FILE__, __LINE__)) return p;
    if (e == cudaErrorMemoryAllocation) gpu->why[0] = 0;
    return nullptr;
}

static void *allocate(void *device, size_t bytes)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    void *p = nullptr;
    if (!enter(gpu)) return nullptr;
    const cudaError_t e = cudaMalloc(&p, bytes);
    return taken(gpu, e, p, "cudaMalloc");
}

/* The device may still be using what the core has done with: cudaFree waits for it. */
static void release(void *device, void *p, size_t)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    (void)enter(gpu);
    (void)NP_TRY(gpu, cudaFree(p));
}

static bool synchronize(void *device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    bool ok = !gpu->stream || enter(gpu);
    for (int i = 0; ok && i < gpu->n_streams; i++) ok = NP_TRY(gpu, cudaStreamSynchronize(gpu->all[i]));
    return ok;
}

/* ---- copies between host and device */

static void *host_alloc(void *device, size_t bytes)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    void *p = nullptr;
    if (!enter(gpu)) return nullptr;
    const cudaError_t e = cudaMallocHost(&p, bytes);
    return taken(gpu, e, p, "cudaMallocHost");
}

/* The caller has waited for the copies that used it. */
static void host_free(void *device, void *p, size_t)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    (void)enter(gpu);
    (void)NP_TRY(gpu, cudaFreeHost(p));
}

static bool copy_later(void *device, int stream, void *dst, const void *src, size_t bytes, bool to_device)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    return enter(gpu) &&
           NP_TRY(gpu, cudaMemcpyAsync(dst, src, bytes,
                                       to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                                       gpu->all[stream]));
}

/* The host's memory is ordinary, so the runtime stages it; after a copy to the host its bytes must be there. */
static bool copy(void *device, void *dst, const void *src, size_t bytes, bool to, bool from)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    cudaMemcpyKind kind = to && from ? cudaMemcpyDeviceToDevice
                          : to       ? cudaMemcpyHostToDevice
                                     : cudaMemcpyDeviceToHost;
    return enter(gpu) && NP_TRY(gpu, cudaMemcpyAsync(dst, src, bytes, kind, gpu->stream)) &&
           (kind == cudaMemcpyDeviceToDevice || NP_TRY(gpu, cudaStreamSynchronize(gpu->stream)));
}

static bool facts(void *device, np_device_facts *out)
{
    np_gpu *gpu = static_cast<np_gpu *>(device);
    cudaDeviceProp p;
    size_t unused = 0, all = 0;
    if (!enter(gpu) || !NP_TRY(gpu, cudaGetDeviceProperties(&p, gpu->index)) ||
        !NP_TRY(gpu, cudaMemGetInfo(&unused, &all)) || !NP_TRY(gpu, cudaDriverGetVersion(&out->driver)) ||
        !NP_TRY(gpu, cudaRuntimeGetVersion(&out->runtime)))
        return false;
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->processors = p.multiProcessorCount;
    out->memory = (int64_t)all;
    out->memory_free = (int64_t)unused;
    np_lt_facts(gpu, out);
    return true;
}

static const char *why(void *device) { return static_cast<np_gpu *>(device)->why; }

/* One list of all kernels, put together when the library is opened. */
static std::vector<np_plugin_row> all_rows()
{
    std::vector<np_plugin_row> all;
    for (const np_plugin_row *rows :
         {np_rows_unary, np_rows_binary, np_rows_choice, np_rows_random, np_rows_index, np_rows_reduce,
          np_rows_product, np_rows_rows, np_rows_gather, np_rows_overwrite, np_rows_sort, np_rows_scan,
          np_rows_masked, np_rows_arrange, np_rows_others, np_rows_sampling})
        for (; rows->op; rows++) all.push_back(*rows);
    all.push_back({nullptr, nullptr});
    return all;
}

#ifdef __CUDACC__
#define PLUGIN_NAME "cuda"
#define EXACT_MEMORY false
#else
#define PLUGIN_NAME "cudaemu"
/* Freeing waits for the streams, which would hide from late ones that an event is missing. */
#define EXACT_MEMORY !emu::settings().lazy
#endif

extern "C" __attribute__((visibility("default"))) const np_plugin *neap_plugin(uint32_t abi)
{
    static const std::vector<np_plugin_row> rows = all_rows();
    static const np_plugin plugin = {
        NP_PLUGIN_ABI, sizeof(np_plugin), PLUGIN_NAME,   count,      open_device, close_device,
        allocate,      release,           copy,          np_move,    synchronize, facts,
        why,           rows.data(),       np_step_run,   np_fill,    stream_new,  stream_use,
        stream_wait,   stream_done,       stream_finish, host_alloc, host_free,   copy_later,
        event_new,     event_free,        event_record,  event_done, event_wait,  event_time,
        EXACT_MEMORY};
    return abi == NP_PLUGIN_ABI ? &plugin : nullptr;
}
