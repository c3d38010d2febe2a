/* emu_devices.cpp - the emulated devices as the runtime API describes them, its errors, and the emulator's settings. */
#include "state.h"

namespace emu
{

std::recursive_mutex lock;
Device devices[max_devices];
thread_local int current_device;
std::map<const void *, int> dynamic_shared;
static thread_local cudaError_t last_error;
static long fail_in;                     /* calls until the one that fails; 0: none does */
static long fault_in = settings().fault; /* the same of kernels */

cudaError_t fail(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

bool must_fail()
{
    Locked l;
    return fail_in > 0 && --fail_in == 0;
}

cudaError_t refused(cudaError_t otherwise, int device)
{
    Locked l;
    if (devices[device < 0 ? current_device : device].lost) return fail(cudaErrorIllegalAddress);
    return must_fail() ? fail(otherwise) : cudaSuccess;
}

bool faults(int device)
{
    if (fault_in <= 0 || --fault_in > 0) return false;
    return devices[device].lost = true;
}

Locked::Locked()
{
    if (!streams.empty()) return;
    for (int i = 0; i < max_devices; i++) {
        devices[i].null.device = i;
        devices[i].peers.resize(max_devices);
        streams.push_back(&devices[i].null);
    }
}

/* ---- settings */

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);
    return s && *s ? strtoull(s, nullptr, 10) : otherwise;
}

static Settings read_settings()
{
    Settings s;
    const char *order = getenv("NEAP_EMU_ORDER");
    s.order = !order || !*order || !strcmp(order, "forward") ? Settings::forward
              : !strcmp(order, "reverse")                    ? Settings::reverse
                                                             : Settings::random;
    s.seed = (unsigned)number("NEAP_EMU_SEED", 1);
    s.lazy = number("NEAP_EMU_LAZY", 0) != 0;
    s.guard = !sanitized && number("NEAP_EMU_GUARD", 0) != 0;
    s.stack = (number("NEAP_EMU_STACK", sanitized ? 256 : 64) * 1024 + 4095) / 4096 * 4096;
    s.memory = number("NEAP_EMU_MEMORY", 4096) << 20;
    s.pinned = number("NEAP_EMU_PINNED", 4096) << 20;
    s.devices = (int)number("NEAP_EMU_DEVICES", 1);
    s.fault = (long)number("NEAP_EMU_FAULT", 0);
    s.driver = (int)number("NEAP_EMU_DRIVER", CUDART_VERSION);
    if (s.devices > max_devices) s.devices = max_devices;
    return s;
}

const Settings &settings()
{
    static const Settings s = read_settings();
    return s;
}

unsigned next_random(unsigned below)
{
    static uint64_t x = 0x9e3779b97f4a7c15u * (settings().seed + 1u);
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (unsigned)((x >> 33) % below);
}

} // namespace emu

using namespace emu;

long neap_emu_fail_at(long n)
{
    Locked l;
    const long left = fail_in;
    fail_in = n;
    return left;
}

long neap_emu_fault_at(long n)
{
    Locked l;
    const long left = fault_in;
    fault_in = n;
    for (Device &d : devices) d.lost = d.lost && n != 0;
    return left;
}

/* ---- errors and devices */

#define EACH_ERROR(X) \
    X(cudaSuccess, "no error") \
    X(cudaErrorInvalidValue, "invalid argument") \
    X(cudaErrorMemoryAllocation, "out of memory") \
    X(cudaErrorInitializationError, "initialization error") \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument") \
    X(cudaErrorInvalidDevicePointer, "invalid device pointer") \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
    X(cudaErrorStubLibrary, "CUDA driver is a stub library") \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(cudaErrorInvalidDeviceFunction, "invalid device function") \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected") \
    X(cudaErrorInvalidDevice, "invalid device ordinal") \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle") \
    X(cudaErrorNotReady, "device not ready") \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered") \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled") \
    X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled") \
    X(cudaErrorLaunchFailure, "unspecified launch failure") \
    X(cudaErrorNotPermitted, "operation not permitted") \
    X(cudaErrorNotSupported, "operation not supported") \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing") \
    X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
    X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began") \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work") \
    X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream") \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
#define NAME(code, text) \
    case code: return #code;
        EACH_ERROR(NAME)
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
#define TEXT(code, text) \
    case code: return text;
        EACH_ERROR(TEXT)
    }
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

static cudaError_t version(int *out, int known)
{
    if (must_fail()) return fail(cudaErrorUnknown);
    *out = known;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *out) { return version(out, settings().driver); }
cudaError_t cudaRuntimeGetVersion(int *out) { return version(out, CUDART_VERSION); }
cudaError_t cudaGetDeviceCount(int *count)
{
    if (must_fail()) return fail(cudaErrorInitializationError);
    /* The count stays as it was, as with CUDA. */
    if (settings().driver < CUDART_VERSION) return fail(cudaErrorInsufficientDriver);
    if (settings().devices < 1) return fail(cudaErrorNoDevice);
    *count = settings().devices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    if (cudaError_t e = refused(cudaErrorUnknown, is_device(device) ? device : -1)) return e;
    if (!is_device(device)) return fail(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { return *device = current_device, cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (cudaError_t e = refused(cudaErrorUnknown)) return e;
    if (!is_device(device)) return fail(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated device %d", device);
    p->totalGlobalMem = settings().memory;
    p->sharedMemPerBlock = shared_static_limit;
    p->sharedMemPerBlockOptin = shared_limit;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = (int)lanes_limit;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 4 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    p->memoryBusWidth = 64;
    p->asyncEngineCount = 2;
    p->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device)
{
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return cudaErrorInvalidDevice;
    switch (a) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)shared_limit + 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)shared_limit; break;
    default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    Locked l;
    if (cudaError_t e = refused(cudaErrorLaunchFailure)) return e;
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    for (Stream *s : streams)
        if (s->device == current_device) drain(s);
    return survived(current_device);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!is_device(device) || !is_device(peer)) return fail(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    Locked l;
    if (!is_device(peer) || peer == current_device) return fail(cudaErrorInvalidDevice);
    if (flags != 0) return fail(cudaErrorInvalidValue);
    if (devices[current_device].peers[peer]) return fail(cudaErrorPeerAccessAlreadyEnabled);
    devices[current_device].peers[peer] = true;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    Locked l;
    if (cudaError_t e = refused(cudaErrorInvalidDeviceFunction)) return e;
    if (a == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > shared_limit)
        return fail(cudaErrorInvalidValue);
    dynamic_shared[kernel] = value;
    return cudaSuccess;
}
