/* move.cu - elements from one place of a device to another: strided, broadcast, converted; and one value for all. */
#include <cstring>

#include "convert.h"
#include "walk.h"

template <class To, class From> __global__ void convert_elements(To *to, const From *from, np_walk<2> w)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        w.at(i, at);
        to[at[0]] = np_store<To>::from(np_widen(from[at[1]]));
    }
}

/* The same type: bit for bit, payloads of NaN too. */
template <class T> __global__ void copy_elements(T *to, const T *from, np_walk<2> w)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        w.at(i, at);
        to[at[0]] = from[at[1]];
    }
}

template <class T>
static cudaError_t launch_copy(np_gpu *gpu, void *to, const void *from, const np_walk<2> &w)
{
    return np_launch(copy_elements<T>, np_blocks(w.n), NP_BLOCK, 0, gpu->stream, static_cast<T *>(to),
                     static_cast<const T *>(from), w);
}

static cudaError_t copy_bits(np_gpu *gpu, size_t size, void *to, const void *from, const np_walk<2> &w)
{
    if (w.dense())
        return cudaMemcpyAsync(to, from, size * (size_t)w.n, cudaMemcpyDeviceToDevice, gpu->stream);
    switch (size) {
    case 1: return launch_copy<uint8_t>(gpu, to, from, w);
    case 2: return launch_copy<uint16_t>(gpu, to, from, w);
    case 4: return launch_copy<uint32_t>(gpu, to, from, w);
    default: return launch_copy<uint64_t>(gpu, to, from, w);
    }
}

bool np_move(void *device, const np_operand *to, const np_operand *from)
{
    np_gpu *gpu = np_gpu_at(device);
    np_walk<2> w = np_walk_over(to->ndim, to->shape, {to, from});
    if (w.n == 0) return true;
    if (to->dtype == from->dtype && to->dtype != NEAP_BOOL) {
        size_t size = np_with_dtype(to->dtype, [](auto t) { return sizeof(typename decltype(t)::type); });
        return NP_TRY(gpu, copy_bits(gpu, size, to->data, from->data, w));
    }
    return np_with_dtype(to->dtype, [&](auto t) {
        return np_with_dtype(from->dtype, [&](auto f) {
            typedef typename decltype(t)::type To;
            typedef typename decltype(f)::type From;
            return NP_TRY(gpu,
                          np_launch(convert_elements<To, From>, np_blocks(w.n), NP_BLOCK, 0, gpu->stream,
                                    static_cast<To *>(to->data), static_cast<const From *>(from->data), w));
        });
    });
}

template <class T> __global__ void fill_elements(T *to, T value, np_walk<1> w)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1];
        w.at(i, at);
        to[at[0]] = value;
    }
}

template <class T> static bool launch_fill(np_gpu *gpu, void *to, const void *item, const np_walk<1> &w)
{
    T value;
    memcpy(&value, item, sizeof value);
    if (value == 0 && w.dense())
        return NP_TRY(gpu, cudaMemsetAsync(to, 0, sizeof(T) * (size_t)w.n, gpu->stream));
    return NP_TRY(gpu, np_launch(fill_elements<T>, np_blocks(w.n), NP_BLOCK, 0, gpu->stream,
                                 static_cast<T *>(to), value, w));
}

/* By size: bits are bits. */
bool np_fill(void *device, const np_operand *to, const void *item)
{
    np_gpu *gpu = np_gpu_at(device);
    np_walk<1> w = np_walk_over(to->ndim, to->shape, {to});
    if (w.n == 0) return true;
    switch (np_with_dtype(to->dtype, [](auto t) { return sizeof(typename decltype(t)::type); })) {
    case 1: return launch_fill<uint8_t>(gpu, to->data, item, w);
    case 2: return launch_fill<uint16_t>(gpu, to->data, item, w);
    case 4: return launch_fill<uint32_t>(gpu, to->data, item, w);
    default: return launch_fill<uint64_t>(gpu, to->data, item, w);
    }
}
