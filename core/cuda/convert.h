/* convert.h - the nine dtypes as C++ types, and conversion between them to the same bits as the CPU's (base/dtype.c). */
#ifndef NP_CUDA_CONVERT_H
#define NP_CUDA_CONVERT_H

#include <cstring>

#include "neap.h"
#include "np_cuda.h"

struct np_truth { /* bool: stored 0 or 1, any other byte is true */
    uint8_t byte;
};
NP_HOST_DEVICE int64_t np_widen(np_truth x) { return x.byte != 0; }
NP_HOST_DEVICE int64_t np_widen(int32_t x) { return x; }
NP_HOST_DEVICE int64_t np_widen(int8_t x) { return x; }
NP_HOST_DEVICE int64_t np_widen(uint8_t x) { return x; }

/* float64 to float32, and int64 to float64, rounded to odd: what a second rounding to fewer bits needs to be right. */
NP_HOST_DEVICE float np_to_odd(double v)
{
    float f = (float)v;
    if ((double)f == v || v != v) return f;
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((f < 0 ? -(double)f : (double)f) > (v < 0 ? -v : v)) u--;
    u |= 1u;
    memcpy(&f, &u, 4);
    return f;
}
NP_HOST_DEVICE double np_int_to_odd(int64_t v)
{
    const int64_t exact = (int64_t)1 << 53;
    if (v >= -exact && v <= exact) return (double)v;
    return (double)((v >> 11) | ((v & 0x7ff) != 0)) * 2048.0;
}

/* A wide value (float, double, int64_t) as a T. Floats outside an integer's range saturate, NaN is 0. */
template <class T> struct np_store;
template <> struct np_store<float> {
    template <class W> static __host__ __device__ __forceinline__ float from(W v) { return (float)v; }
};
template <> struct np_store<double> {
    template <class W> static __host__ __device__ __forceinline__ double from(W v) { return (double)v; }
};
template <class H> struct np_store_half {
    static __host__ __device__ __forceinline__ H from(float v)
    {
        H h;
        np_narrow(&h, v);
        return h;
    }
    static __host__ __device__ __forceinline__ H from(double v) { return from(np_to_odd(v)); }
    static __host__ __device__ __forceinline__ H from(int64_t v) { return from(np_int_to_odd(v)); }
};
template <> struct np_store<np_f16> : np_store_half<np_f16> {
};
template <> struct np_store<np_b16> : np_store_half<np_b16> {
};
template <> struct np_store<np_truth> {
    template <class W> static __host__ __device__ __forceinline__ np_truth from(W v)
    {
        return {(uint8_t)(v != 0)};
    }
};
template <class I> struct np_store_int {
    static __host__ __device__ __forceinline__ I from(int64_t v) { return (I)v; }
    static __host__ __device__ __forceinline__ I from(float v) { return from((double)v); }
    static __host__ __device__ __forceinline__ I from(double v)
    {
        const bool is_signed = (I)-1 < (I)0;
        const double above =
            is_signed ? (double)((uint64_t)1 << (sizeof(I) * 8 - 1)) : 256.0; /* uint8 alone is not */
        const double low = is_signed ? -above : 0.0;
        const I least = is_signed ? (I)((uint64_t)1 << (sizeof(I) * 8 - 1)) : (I)0;
        return v != v ? (I)0 : v < low ? least : v >= above ? (I)~least : (I)v;
    }
};
template <> struct np_store<int64_t> : np_store_int<int64_t> {
};
template <> struct np_store<int32_t> : np_store_int<int32_t> {
};
template <> struct np_store<int8_t> : np_store_int<int8_t> {
};
template <> struct np_store<uint8_t> : np_store_int<uint8_t> {
};

template <class T> struct np_is {
    typedef T type;
};
/* Calls fn(np_is<T>()) with the type of a neap_dtype, and returns what it returns. */
template <class F> auto np_with_dtype(int dtype, F fn)
{
    switch (dtype) {
    case NEAP_FLOAT64: return fn(np_is<double>());
    case NEAP_FLOAT16: return fn(np_is<np_f16>());
    case NEAP_BFLOAT16: return fn(np_is<np_b16>());
    case NEAP_INT64: return fn(np_is<int64_t>());
    case NEAP_INT32: return fn(np_is<int32_t>());
    case NEAP_INT8: return fn(np_is<int8_t>());
    case NEAP_UINT8: return fn(np_is<uint8_t>());
    case NEAP_BOOL: return fn(np_is<np_truth>());
    default: return fn(np_is<float>());
    }
}

#endif
