/* pointwise.h - from an expression to a kernel over all dtypes and layouts: what loops.h is on the CPU.
 *
 *     NP_FLOAT1(tanh, x, tanh(x))                      an op of floats: one formula for float and double
 *     {"tanh", np_pointwise<tanh_of, 1, NP_FLOATS>}    its row
 *
 * An op is a struct with operator() for float, double and, where it takes integers, int64_t. Operands are converted to
 * the dtype that the call computes in as they are loaded, 16-bit floats and all integers through the wider type, and
 * cut to the result's dtype as they are stored: the CPU's results, for both wrap. Dense operands of one dtype go in
 * 16-byte vectors, numbers by value; everything else goes element by element, each operand with its dtype and strides.
 * Of the integers only int64 has vectors, and bool where it is what an op is for: compiling kernels takes time, too. */
#ifndef NP_CUDA_POINTWISE_H
#define NP_CUDA_POINTWISE_H

#include <math.h> /* not cmath: exp(float) and the like outside of std */

#include <type_traits>

#include "convert.h"
#include "walk.h"

/* ---- operands: elements of a dtype in memory, or one value */

template <class W> struct np_given {
    const void *data; /* NULL: the value */
    W value;
    int dtype;
};
template <class W, int K> struct np_givens {
    np_given<W> in[K];
};

NP_HOST_DEVICE int64_t np_cut(int64_t v, int dtype)
{
    switch (dtype) {
    case NEAP_INT32: return (int32_t)v;
    case NEAP_INT8: return (int8_t)v;
    case NEAP_UINT8: return (uint8_t)v;
    case NEAP_BOOL: return v != 0;
    default: return v;
    }
}

/* The dtype that a W lies in memory as. */
template <class W> struct np_dtype_of;
template <> struct np_dtype_of<float> {
    enum { value = NEAP_FLOAT32 };
};
template <> struct np_dtype_of<double> {
    enum { value = NEAP_FLOAT64 };
};
template <> struct np_dtype_of<int64_t> {
    enum { value = NEAP_INT64 };
};

template <class W> NP_DEVICE_APART W np_get_converted(const void *p, int dtype, int64_t at)
{
    switch (dtype) {
    case NEAP_FLOAT64: return (W) static_cast<const double *>(p)[at];
    case NEAP_FLOAT16: return (W)np_widen(static_cast<const np_f16 *>(p)[at]);
    case NEAP_BFLOAT16: return (W)np_widen(static_cast<const np_b16 *>(p)[at]);
    case NEAP_INT64: return (W) static_cast<const int64_t *>(p)[at];
    case NEAP_INT32: return (W) static_cast<const int32_t *>(p)[at];
    case NEAP_INT8: return (W) static_cast<const int8_t *>(p)[at];
    case NEAP_UINT8: return (W) static_cast<const uint8_t *>(p)[at];
    case NEAP_BOOL: return (W)(static_cast<const uint8_t *>(p)[at] != 0);
    default: return (W) static_cast<const float *>(p)[at];
    }
}
template <class W> NP_DEVICE W np_get(const np_given<W> &g, int64_t at)
{
    return g.dtype == np_dtype_of<W>::value ? static_cast<const W *>(g.data)[at]
                                            : np_get_converted<W>(g.data, g.dtype, at);
}

template <class V> NP_DEVICE_APART void np_put_converted(void *p, int dtype, int64_t at, V v)
{
    switch (dtype) {
    case NEAP_FLOAT64: static_cast<double *>(p)[at] = np_store<double>::from(v); break;
    case NEAP_FLOAT16: static_cast<np_f16 *>(p)[at] = np_store<np_f16>::from(v); break;
    case NEAP_BFLOAT16: static_cast<np_b16 *>(p)[at] = np_store<np_b16>::from(v); break;
    case NEAP_INT64: static_cast<int64_t *>(p)[at] = np_store<int64_t>::from(v); break;
    case NEAP_INT32: static_cast<int32_t *>(p)[at] = np_store<int32_t>::from(v); break;
    case NEAP_INT8: static_cast<int8_t *>(p)[at] = np_store<int8_t>::from(v); break;
    case NEAP_UINT8: static_cast<uint8_t *>(p)[at] = np_store<uint8_t>::from(v); break;
    case NEAP_BOOL: static_cast<np_truth *>(p)[at] = np_store<np_truth>::from(v); break;
    default: static_cast<float *>(p)[at] = np_store<float>::from(v);
    }
}
/* A result of type V; tests return bool. */
template <class V> NP_DEVICE void np_put(void *p, int dtype, int64_t at, V v)
{
    if (dtype == np_dtype_of<V>::value) static_cast<V *>(p)[at] = v;
    else np_put_converted(p, dtype, at, v);
}
NP_DEVICE void np_put(void *p, int, int64_t at, bool v)
{
    static_cast<np_truth *>(p)[at] = np_store<np_truth>::from(v);
}

template <class Op, class W> NP_DEVICE auto np_apply(const Op &op, const W (&x)[1]) { return op(x[0]); }
template <class Op, class W> NP_DEVICE auto np_apply(const Op &op, const W (&x)[2]) { return op(x[0], x[1]); }
template <class Op, class W> NP_DEVICE auto np_apply(const Op &op, const W (&x)[3])
{
    return op(x[0], x[1], x[2]);
}

/* The integer that a float attribute is (np_attr.n). */
static inline int64_t np_whole_of(const np_attr *a)
{
    const uint64_t f = a->f >= 0x1p63 ? (uint64_t)1 << 63 : (uint64_t)np_store<int64_t>::from(a->f);
    return (int64_t)(f + (uint64_t)(int64_t)a->n);
}

/* ---- kernels */

template <class Op, class W, int K>
__global__ void np_strided_elements(void *out, int dtype, int compute, np_givens<W, K> g, np_walk<K + 1> w,
                                    Op op)
{
    NP_EACH(i, w.n)
    {
        int64_t at[K + 1];
        W x[K];
        w.at(i, at);
        for (int k = 0; k < K; k++) {
            x[k] = g.in[k].data ? np_get(g.in[k], at[k + 1]) : g.in[k].value;
            if constexpr (std::is_same<W, int64_t>::value) x[k] = np_cut(x[k], compute);
        }
        np_put(out, dtype, at[0], np_apply(op, x));
    }
}

/* N elements from the N at-th on. */
template <class T, int N, class W> NP_DEVICE void np_get_vector(W (&x)[N], const np_given<W> &g, int64_t at)
{
    if (!g.data) {
        for (int i = 0; i < N; i++) x[i] = g.value;
        return;
    }
    np_vec<T, N> v = np_vload<N>(static_cast<const T *>(g.data) + at * N);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = (W)np_widen(v.v[i]);
}

/* Result R, first operand F, the others T. */
template <class Op, class R, class F, class T, class W, int K>
__global__ void np_dense_elements(R *out, np_givens<W, K> g, int64_t n, Op op)
{
    constexpr int N = 16 / (int)sizeof(T);
    const int64_t vectors = n / N;
    NP_EACH(v, vectors)
    {
        W x[K][N];
        np_vec<R, N> y;
        np_get_vector<F, N>(x[0], g.in[0], v);
#pragma unroll
        for (int k = 1; k < K; k++) np_get_vector<T, N>(x[k], g.in[k], v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            W e[K];
            for (int k = 0; k < K; k++) e[k] = x[k][i];
            y.v[i] = np_store<R>::from(np_apply(op, e));
        }
        np_vstore(out + v * N, y);
    }
    NP_EACH(rest, n % N)
    {
        const int64_t i = vectors * N + rest;
        W e[K];
        for (int k = 0; k < K; k++) e[k] = g.in[k].data ? np_get(g.in[k], i) : g.in[k].value;
        out[i] = np_store<R>::from(np_apply(op, e));
    }
}

/* ---- launches */

enum {
    NP_FLOATS = 1,
    NP_INTEGERS = 2,
    NP_NUMBERS = 3,
    NP_TRUTH = 4
}; /* what an op computes with; bool in vectors */

template <class W> np_given<W> np_given_of(const np_operand *o, int compute)
{
    np_given<W> g = {nullptr, 0, o->dtype};
    const bool whole = o->dtype >= NEAP_INT64;
    if (!o->present) return g;
    if (!o->is_number) g.data = o->data;
    else if (!std::is_same<W, int64_t>::value) g.value = whole ? (W)o->integer : (W)o->number;
    else if (compute == NEAP_BOOL) g.value = (W)(o->number != 0);
    else g.value = (W)np_cut(o->integer, compute);
    return g;
}

/* Can this operand go in vectors of `dtype`, beside a result of n elements? */
static inline bool np_goes_dense(const np_operand *o, int dtype, int64_t n)
{
    if (!o->present || o->is_number) return true;
    return o->contiguous && o->dtype == dtype && o->numel == n && (uintptr_t)o->data % 16 == 0;
}

template <class Op, class R, class F, class T, class W, int K>
cudaError_t np_launch_dense(const np_call *k, const np_givens<W, K> &g, const Op &op)
{
    const int64_t n = k->out[0].numel;
    return np_launch(np_dense_elements<Op, R, F, T, W, K>, np_blocks(n / (16 / (int)sizeof(T))), NP_BLOCK, 0,
                     np_gpu_of(k)->stream, static_cast<R *>(k->out[0].data), g, n, op);
}

template <class Op, class W, int K>
cudaError_t np_launch_strided(const np_call *k, int compute, const np_operand *const (&in)[K],
                              const np_givens<W, K> &g, const Op &op)
{
    const np_operand *out = &k->out[0], *all[K + 1] = {out};
    for (int i = 0; i < K; i++) all[i + 1] = in[i];
    const np_walk<K + 1> w = np_walk_over(out->ndim, out->shape, all);
    return np_launch(np_strided_elements<Op, W, K>, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                     out->data, out->dtype, compute, g, w, op);
}

/* The whole op in type W, which is that of dtype `compute` or wider. `masked`: operand 0 is a bool mask. */
template <class Op, class W, int kinds, bool masked, int K>
cudaError_t np_run_in(const np_call *k, int compute, const np_operand *const (&in)[K], const Op &op)
{
    typedef decltype(np_apply(op, std::declval<const W(&)[K]>())) result;
    constexpr bool tests = std::is_same<result, bool>::value;
    const np_operand *out = &k->out[0];
    const int first = masked ? (int)NEAP_BOOL : compute;
    np_givens<W, K> g;
    bool dense = np_goes_dense(out, tests ? (int)NEAP_BOOL : compute, out->numel);
    for (int i = 0; i < K; i++) {
        g.in[i] = np_given_of<W>(in[i], i == 0 ? first : compute);
        dense = dense && np_goes_dense(in[i], i == 0 ? first : compute, out->numel);
    }
    auto go = [&](auto t) {
        typedef typename decltype(t)::type T;
        typedef typename std::conditional<tests, np_truth, T>::type R;
        typedef typename std::conditional<masked, np_truth, T>::type F;
        return np_launch_dense<Op, R, F, T, W, K>(k, g, op);
    };
    if constexpr (std::is_same<W, float>::value) {
        if (dense && compute == NEAP_FLOAT16) return go(np_is<np_f16>());
        if (dense && compute == NEAP_BFLOAT16) return go(np_is<np_b16>());
        if (dense) return go(np_is<float>());
    } else if constexpr (std::is_same<W, double>::value) {
        if (dense) return go(np_is<double>());
    } else {
        if (dense && compute == NEAP_INT64) return go(np_is<int64_t>());
        if constexpr ((kinds & NP_TRUTH) != 0) {
            if (dense && compute == NEAP_BOOL) return go(np_is<np_truth>());
        }
    }
    return np_launch_strided(k, masked ? (int)NEAP_INT64 : compute, in, g, op);
}

template <class Op, int kinds, bool masked = false, int K>
int np_map(const np_call *k, int compute, const np_operand *const (&in)[K], const Op &op)
{
    const bool whole = compute >= NEAP_INT64;
    cudaError_t e = cudaErrorInvalidValue;
    if (k->out[0].numel == 0) return 0;
    if constexpr ((kinds & NP_INTEGERS) != 0) {
        if (whole) e = np_run_in<Op, int64_t, kinds, masked>(k, compute, in, op);
    }
    if constexpr ((kinds & NP_FLOATS) != 0) {
        if (compute == NEAP_FLOAT64) e = np_run_in<Op, double, kinds, masked>(k, compute, in, op);
        else if (!whole) e = np_run_in<Op, float, kinds, masked>(k, compute, in, op);
    }
    return np_done(k, np_succeeds(np_gpu_of(k), e, "np_launch", __FILE__, __LINE__));
}

/* The kernel of an op whose operands are the call's first K. Ops that depend on more are made of the call. */
template <class Op, int K, int kinds> int np_pointwise(const np_call *k)
{
    const np_operand *in[K];
    for (int i = 0; i < K; i++) in[i] = &k->in[i];
    if constexpr (std::is_constructible<Op, const np_call *>::value)
        return np_map<Op, kinds>(k, k->compute, in, Op(k));
    else return np_map<Op, kinds>(k, k->compute, in, Op());
}

/* ---- ops from formulas: W is the type that is computed in */

#define NP_FLOAT1(name, x, fe) \
    struct name##_of { \
        template <class W> NP_DEVICE W operator()(W x) const { return fe; } \
    };
#define NP_FLOAT2(name, a, b, fe) \
    struct name##_of { \
        template <class W> NP_DEVICE W operator()(W a, W b) const { return fe; } \
    };
#define NP_NUMBER1(name, x, fe, ie) \
    struct name##_of { \
        template <class W> NP_DEVICE W operator()(W x) const { return fe; } \
        NP_DEVICE int64_t operator()(int64_t x) const { return ie; } \
    };
#define NP_NUMBER2(name, a, b, fe, ie) \
    struct name##_of { \
        template <class W> NP_DEVICE W operator()(W a, W b) const { return fe; } \
        NP_DEVICE int64_t operator()(int64_t a, int64_t b) const { return ie; } \
    };
#define NP_TEST2(name, a, b, e) \
    struct name##_of { \
        template <class W> NP_DEVICE bool operator()(W a, W b) const { return e; } \
    };
#define NP_TEST1(name, x, fe, ie) \
    struct name##_of { \
        template <class W> NP_DEVICE bool operator()(W x) const { return fe; } \
        NP_DEVICE bool operator()(int64_t x) const { return ie; } \
    };

/* Integers wrap. */
NP_HOST_DEVICE int64_t np_wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
NP_HOST_DEVICE int64_t np_wrap_sub(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
NP_HOST_DEVICE int64_t np_wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* 1 / (1 + e^-x) from e^-|x|, which never overflows; log(1 + e^x), too. */
template <class W> NP_DEVICE W np_sigmoid(W x)
{
    W e = exp(-fabs(x));
    return (x < 0 ? e : W(1)) / (1 + e);
}
template <class W> NP_DEVICE W np_softplus(W x) { return (x <= 0 ? W(0) : x) + log1p(exp(-fabs(x))); }

#endif
