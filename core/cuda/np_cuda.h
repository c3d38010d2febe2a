/* np_cuda.h - what every .cu file includes: CUDA C++ as Neap writes it.
 *
 * The same sources are compiled by nvcc for GPUs, and as plain C++ against an emulator (tests/cudaemu) that runs them
 * without a GPU and finds races, missing barriers and overruns. So they keep to these rules:
 *
 *   launch by np_launch(); shared memory by NP_SHARED and np_dynsh(); 16-byte accesses by np_vload() and np_vstore();
 *   16-bit floats are storage (np_f16, np_b16): load, widen to float, compute, narrow, store;
 *   warp intrinsics are the _sync ones, with an exact mask; no return before a barrier, one barrier a source line;
 *   no inline PTX, cooperative groups, textures, managed memory, dynamic parallelism, __constant__;
 *   what the standard headers declare is included explicitly: nvcc brings less of it than the emulator. */
#ifndef NP_CUDA_H
#define NP_CUDA_H

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "cuda_emu.h"
#endif

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#define NP_DEVICE __device__ __forceinline__
#define NP_DEVICE_APART \
    __device__ __attribute__((noinline)) /* rare ways: compiled once, not into every kernel */
#ifndef NP_HOST_DEVICE                   /* also what rng.h and half.h are compiled with */
#define NP_HOST_DEVICE static __host__ __device__ __forceinline__
#endif

#include "base/half.h"
#include "base/rng.h"

/* ---- launches */

/* kernel<<<grid, block, shared, stream>>>(args...), each argument converted to the kernel's parameter type and copied.
 * `shared` bytes of dynamic shared memory may go up to what the device allows a block to opt in to. Returns the
 * launch's error, which then is not left behind as the last one. */
template <class... P, class... A>
cudaError_t np_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                      A &&...args)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
    cudaError_t e = cudaSuccess;
    if (shared > 48 * 1024)
        e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared);
    std::tuple<P...> copy{
        static_cast<P>(std::forward<A>(args))...}; /* braces: nvcc takes () for a declaration */
    if (e == cudaSuccess) {
#ifdef __CUDACC__
        e = std::apply(
            [&](auto &...a) {
                void *at[] = {(void *)&a..., nullptr};
                return cudaLaunchKernel((const void *)kernel, grid, block, at, shared, stream);
            },
            copy);
#else
        e = emu::launch((const void *)kernel, grid, block, shared, stream, [=] { std::apply(kernel, copy); },
                        &copy, sizeof copy);
#endif
    }
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e;
}

/* ---- shared memory */

#ifdef __CUDACC__
/* NP_SHARED(float, tile, [32][33]); declares `tile` in the memory of the block. */
#define NP_SHARED(T, name, dims) __shared__ T name dims
/* The block's dynamic shared memory, at 16-byte alignment. */
template <class T> NP_DEVICE T *np_dynsh()
{
    extern __shared__ __align__(16) unsigned char np_dynamic_shared[];
    return reinterpret_cast<T *>(np_dynamic_shared);
}
#else
#define NP_SHARED(T, name, dims) \
    typedef T name##_type dims; \
    static const char name##_declared = 0; \
    name##_type &name = *static_cast<name##_type *>( \
        emu::shared_static(sizeof(name##_type), alignof(name##_type), &name##_declared, __FILE__, __LINE__))
template <class T> T *np_dynsh(NP_EMU_SITE) { return static_cast<T *>(emu::shared_dynamic(16, file, line)); }
#endif

/* ---- vectors: N elements at once, N * sizeof(T) being 2, 4, 8 or 16 bytes and p aligned to it */

template <class T, int N> struct alignas(sizeof(T) * N) np_vec {
    T v[N];
};

#ifdef __CUDACC__
#define NP_ALIGNED(p, bytes) ((void)0)
#define NP_ALIGNED_SITE
#define NP_ALIGNED_ARGS
#else
#define NP_ALIGNED(p, bytes) \
    ((uintptr_t)(p) % (bytes) == 0 \
         ? (void)0 \
         : emu::report("misaligned", file, line, "%d bytes at %p", (int)(bytes), (const void *)(p)))
#define NP_ALIGNED_SITE , NP_EMU_SITE
#endif

template <int N, class T> NP_DEVICE np_vec<T, N> np_vload(const T *p NP_ALIGNED_SITE)
{
    NP_ALIGNED(p, sizeof(T) * N);
    return *reinterpret_cast<const np_vec<T, N> *>(p);
}
template <int N, class T> NP_DEVICE void np_vstore(T *p, const np_vec<T, N> &v NP_ALIGNED_SITE)
{
    NP_ALIGNED(p, sizeof(T) * N);
    *reinterpret_cast<np_vec<T, N> *>(p) = v;
}

/* ---- 16-bit floats: storage only. Narrowing rounds to nearest even; the same bits as the CPU's. */

struct np_f16 {
    np_half bits;
};
struct np_b16 {
    np_bf16 bits;
};

/* What elements of type T are computed in. */
template <class T> struct np_wide {
    typedef T type;
};
template <> struct np_wide<np_f16> {
    typedef float type;
};
template <> struct np_wide<np_b16> {
    typedef float type;
};

template <class T> NP_HOST_DEVICE T np_widen(T x) { return x; }
NP_HOST_DEVICE float np_widen(np_b16 x) { return np_bf16_to_float(x.bits); }
NP_HOST_DEVICE float np_widen(np_f16 x)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x.bits));
#else
    return np_half_widen(x.bits);
#endif
}

template <class T> NP_HOST_DEVICE void np_narrow(T *to, T x) { *to = x; }
NP_HOST_DEVICE void np_narrow(np_b16 *to, float x)
{
#ifdef __CUDA_ARCH__
    to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    to->bits = np_float_to_bf16(x);
#endif
}
NP_HOST_DEVICE void np_narrow(np_f16 *to, float x)
{
#ifdef __CUDA_ARCH__
    to->bits = __half_as_ushort(__float2half_rn(x));
#else
    to->bits = np_half_narrow(x);
#endif
}

#endif
