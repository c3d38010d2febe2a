/* cuda_emu.h - a CUDA device made of fibers, for tests on machines without a GPU: what kernels see.
 *
 * The same .cu files that nvcc compiles are compiled as C++ against this header. Every CUDA thread ("lane") is a
 * fiber that runs until it must wait for others; one host thread runs them all, in an order that tests choose:
 *
 *   NEAP_EMU_ORDER=forward|reverse|random  order of lanes and blocks      NEAP_EMU_SEED=n    of the random choices
 *   NEAP_EMU_LAZY=1  streams run as late as they may, in random order     NEAP_EMU_STACK=n   KiB of stack a lane
 *   NEAP_EMU_DEVICES=n  NEAP_EMU_MEMORY=MiB  devices, and memory of each  NEAP_EMU_GUARD=1   see runtime.h
 *   NEAP_EMU_DRIVER=n  the driver's version, 12080 is 12.8; 0: there is none
 *   NEAP_EMU_PINNED=MiB  largest block of pinned memory   NEAP_EMU_FAULT=n  the n-th kernel faults (runtime.h)
 *
 * Misuse (barriers that not all reach, wrong masks, overruns ...) ends the process with one line that names block,
 * thread and source line. Only what Neap's kernels may use is here: no textures, managed memory, cooperative groups,
 * __constant__, nor launches from kernels. Names and meanings are those of the CUDA C++ programming guide. */
#ifndef NP_CUDA_EMU_H
#define NP_CUDA_EMU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
/* Where a call stands: the last two parameters of everything that may be misused. */
#define NP_EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- vector types */

#define NP_EMU_VEC2(T, name, align) \
    struct alignas(align) name##2 { T x, y; }; \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define NP_EMU_VEC3(T, name) \
    struct name##3 { T x, y, z; }; \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define NP_EMU_VEC4(T, name, align) \
    struct alignas(align) name##4 { T x, y, z, w; }; \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
NP_EMU_VEC2(float, float, 8)
NP_EMU_VEC3(float, float)
NP_EMU_VEC4(float, float, 16)
NP_EMU_VEC2(int, int, 8)
NP_EMU_VEC3(int, int)
NP_EMU_VEC4(int, int, 16)
NP_EMU_VEC2(unsigned, uint, 8)
NP_EMU_VEC3(unsigned, uint)
NP_EMU_VEC4(unsigned, uint, 16)
NP_EMU_VEC2(double, double, 16)
NP_EMU_VEC2(long long, longlong, 16)
NP_EMU_VEC2(unsigned long long, ulonglong, 16)
NP_EMU_VEC4(unsigned short, ushort, 8)
NP_EMU_VEC4(unsigned char, uchar, 4)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};

/* ---- the emulator's side of a kernel */

namespace emu
{

enum class Op : uint8_t {
    none,
    shfl,
    shfl_up,
    shfl_down,
    shfl_xor,
    ballot,
    any,
    all,
    match_any,
    match_all,
    sync,
    add_i,
    add_u,
    min_i,
    min_u,
    max_i,
    max_u,
    and_,
    or_,
    xor_,
    fused
};
enum class Bar : uint8_t { plain, count, all, any };

struct Now { /* where the running lane is */
    const uint3 *thread;
    uint3 block;
    dim3 block_dim, grid_dim;
};
extern Now now;

int barrier(Bar kind, int predicate, const char *file, int line);
/* One warp operation of the running lane: what it gets when every lane of the mask has called it. */
uint64_t warp_op(Op op, unsigned mask, uint64_t value, int arg, int width, const char *file, int line);
/* All lanes of a full warp hand in their payload; `run` is called once with the 32 of them. For tensor cores. */
void warp_fused(void (*run)(void *const payload[32]), void *payload, const char *file, int line);
void *shared_static(size_t bytes, size_t align, const void *declaration, const char *file, int line);
void *shared_dynamic(size_t align, const char *file, int line);
/* Prints "cudaemu: [kind] ..." with block and thread when a lane runs, and aborts. */
[[noreturn]] void report(const char *kind, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

template <class T> uint64_t to_bits(T v)
{
    static_assert(sizeof(T) <= 8, "warp operations move 1 to 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    return u;
}
template <class T> T from_bits(uint64_t u)
{
    T v;
    memcpy(&v, &u, sizeof v);
    return v;
}

} // namespace emu

#define threadIdx (*::emu::now.thread)
#define blockIdx (::emu::now.block)
#define blockDim (::emu::now.block_dim)
#define gridDim (::emu::now.grid_dim)
static constexpr int warpSize = 32;

/* ---- barriers and fences. Atomics order memory on their own here, so a fence is for the compiler only. */

static inline void __syncthreads(NP_EMU_SITE) { emu::barrier(emu::Bar::plain, 0, file, line); }
static inline int __syncthreads_count(int p, NP_EMU_SITE)
{
    return emu::barrier(emu::Bar::count, p, file, line);
}
static inline int __syncthreads_and(int p, NP_EMU_SITE) { return emu::barrier(emu::Bar::all, p, file, line); }
static inline int __syncthreads_or(int p, NP_EMU_SITE) { return emu::barrier(emu::Bar::any, p, file, line); }
static inline void __threadfence() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_block() { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_system() { __asm__ volatile("" ::: "memory"); }
static inline void __trap() { emu::report("trap", nullptr, 0, "the kernel called __trap()"); }

/* ---- warps */

static inline void __syncwarp(unsigned mask = 0xffffffffu, NP_EMU_SITE)
{
    emu::warp_op(emu::Op::sync, mask, 0, 0, 32, file, line);
}
#define NP_EMU_SHFL(name, op, argtype) \
    template <class T> T name(unsigned mask, T v, argtype arg, int width = 32, NP_EMU_SITE) \
    { \
        return emu::from_bits<T>( \
            emu::warp_op(emu::Op::op, mask, emu::to_bits(v), (int)arg, width, file, line)); \
    }
NP_EMU_SHFL(__shfl_sync, shfl, int)
NP_EMU_SHFL(__shfl_up_sync, shfl_up, unsigned)
NP_EMU_SHFL(__shfl_down_sync, shfl_down, unsigned)
NP_EMU_SHFL(__shfl_xor_sync, shfl_xor, int)

static inline unsigned __ballot_sync(unsigned mask, int p, NP_EMU_SITE)
{
    return (unsigned)emu::warp_op(emu::Op::ballot, mask, p != 0, 0, 32, file, line);
}
static inline int __any_sync(unsigned mask, int p, NP_EMU_SITE)
{
    return (int)emu::warp_op(emu::Op::any, mask, p != 0, 0, 32, file, line);
}
static inline int __all_sync(unsigned mask, int p, NP_EMU_SITE)
{
    return (int)emu::warp_op(emu::Op::all, mask, p != 0, 0, 32, file, line);
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, NP_EMU_SITE)
{
    return (unsigned)emu::warp_op(emu::Op::match_any, mask, emu::to_bits(v), 0, 32, file, line);
}
template <class T> unsigned __match_all_sync(unsigned mask, T v, int *same, NP_EMU_SITE)
{
    unsigned r = (unsigned)emu::warp_op(emu::Op::match_all, mask, emu::to_bits(v), 0, 32, file, line);
    *same = r != 0;
    return r;
}
#define NP_EMU_REDUCE(name, T, op) \
    static inline T name(unsigned mask, T v, NP_EMU_SITE) \
    { \
        return (T)emu::warp_op(emu::Op::op, mask, (uint64_t)v, 0, 32, file, line); \
    }
NP_EMU_REDUCE(__reduce_add_sync, int, add_i)
NP_EMU_REDUCE(__reduce_add_sync, unsigned, add_u)
NP_EMU_REDUCE(__reduce_min_sync, int, min_i)
NP_EMU_REDUCE(__reduce_min_sync, unsigned, min_u)
NP_EMU_REDUCE(__reduce_max_sync, int, max_i)
NP_EMU_REDUCE(__reduce_max_sync, unsigned, max_u)
NP_EMU_REDUCE(__reduce_and_sync, unsigned, and_)
NP_EMU_REDUCE(__reduce_or_sync, unsigned, or_)
NP_EMU_REDUCE(__reduce_xor_sync, unsigned, xor_)

/* ---- atomics: compare-and-swap loops, acquire and release, so that the thread sanitizer sees "last block" rules */

namespace emu
{
template <size_t n> struct word {
    typedef uint64_t type;
};
template <> struct word<4> {
    typedef uint32_t type;
};
template <> struct word<2> {
    typedef uint16_t type;
};
template <class T, class F> T atomic(T *p, F next)
{
    typedef typename word<sizeof(T)>::type W;
    W *w = reinterpret_cast<W *>(p), old = __atomic_load_n(w, __ATOMIC_RELAXED);
    for (;;) {
        T now = from_bits<T>(old);
        W want = (W)to_bits<T>(next(now));
        if (__atomic_compare_exchange_n(w, &old, want, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return now;
    }
}
} // namespace emu

#define NP_EMU_ATOMIC(name, T, expression) \
    static inline T name(T *p, T v) \
    { \
        return emu::atomic(p, [v](T old) -> T { return expression; }); \
    }
#define NP_EMU_ATOMIC_INT(name, expression) \
    NP_EMU_ATOMIC(name, int, expression) \
    NP_EMU_ATOMIC(name, unsigned, expression) \
    NP_EMU_ATOMIC(name, unsigned long long, expression)
NP_EMU_ATOMIC(atomicAdd, float, old + v)
NP_EMU_ATOMIC(atomicAdd, double, old + v)
NP_EMU_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)v))
NP_EMU_ATOMIC(atomicAdd, unsigned, old + v)
NP_EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
NP_EMU_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)v))
NP_EMU_ATOMIC(atomicSub, unsigned, old - v)
NP_EMU_ATOMIC_INT(atomicMin, v < old ? v : old)
NP_EMU_ATOMIC_INT(atomicMax, v > old ? v : old)
NP_EMU_ATOMIC(atomicMin, long long, v < old ? v : old)
NP_EMU_ATOMIC(atomicMax, long long, v > old ? v : old)
NP_EMU_ATOMIC_INT(atomicAnd, old &v)
NP_EMU_ATOMIC_INT(atomicOr, old | v)
NP_EMU_ATOMIC_INT(atomicXor, old ^ v)
NP_EMU_ATOMIC_INT(atomicExch, ((void)old, v))
NP_EMU_ATOMIC(atomicExch, float, ((void)old, v))
NP_EMU_ATOMIC(atomicInc, unsigned, old >= v ? 0u : old + 1u)
NP_EMU_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1u)
template <class T> T atomicCAS(T *p, T expected, T v)
{
    return emu::atomic(p, [=](T old) { return emu::to_bits(old) == emu::to_bits(expected) ? v : old; });
}

/* ---- arithmetic. The C library declares some of the __ names itself, so those are macros. */

#define __expf(x) ::expf(x)
#define __exp10f(x) ::exp10f(x)
#define __logf(x) ::logf(x)
#define __log2f(x) ::log2f(x)
#define __log10f(x) ::log10f(x)
#define __powf(x, y) ::powf(x, y)
#define __sinf(x) ::sinf(x)
#define __cosf(x) ::cosf(x)
#define __tanf(x) ::tanf(x)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float normcdff(float a) { return 0.5f * erfcf(-a * 0.70710678118654752f); }
static inline double normcdf(double a) { return 0.5 * erfc(-a * 0.70710678118654752440); }
static inline float sinpif(float a) { return (float)sin(3.14159265358979323846 * (double)a); }
static inline float cospif(float a) { return (float)cos(3.14159265358979323846 * (double)a); }
/* As on the device, min and max are there for each type alone: mixed ones do not compile in silence. */
#define NP_EMU_MINMAX(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
NP_EMU_MINMAX(int)
NP_EMU_MINMAX(unsigned)
NP_EMU_MINMAX(long)
NP_EMU_MINMAX(unsigned long)
NP_EMU_MINMAX(long long)
NP_EMU_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline int __popc(unsigned a) { return __builtin_popcount(a); }
static inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
static inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
static inline int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
static inline int __ffs(int a) { return __builtin_ffs(a); }
static inline int __ffsll(long long a) { return __builtin_ffsll(a); }
static inline unsigned __brev(unsigned a)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (a >> i & 1u) << (31 - i);
    return r;
}
static inline int __mulhi(int a, int b) { return (int)(((int64_t)a * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)(((wide)a * b) >> 64);
}
#define NP_EMU_CAST(name, to, from) \
    static inline to name(from v) { return emu::from_bits<to>(emu::to_bits(v)); }
NP_EMU_CAST(__float_as_int, int, float)
NP_EMU_CAST(__int_as_float, float, int)
NP_EMU_CAST(__float_as_uint, unsigned, float)
NP_EMU_CAST(__uint_as_float, float, unsigned)
NP_EMU_CAST(__double_as_longlong, long long, double)
NP_EMU_CAST(__longlong_as_double, double, long long)
static inline int __float2int_rn(float a) { return (int)rintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }
/* Loads and stores with a cache hint. */
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcs(T *p, T v) { *p = v; }

#include "runtime.h"

#endif
