/* positions.h - what kernels that read and write at positions share: the positions checked and counted from 0, operands
 * brought into the layout or dtype that a kernel takes.
 *
 * Positions are checked before anything is written; where one is outside, the call goes to the CPU, which names it. */
#ifndef NP_CUDA_POSITIONS_H
#define NP_CUDA_POSITIONS_H

#include "flag.h"
#include "pointwise.h"

static inline int np_dim_of(const np_attr *a, int ndim) { return (int)(a->i < 0 ? a->i + ndim : a->i); }

static inline size_t np_size_of(int dtype)
{
    return np_with_dtype(dtype, [](auto t) { return sizeof(typename decltype(t)::type); });
}
/* Calls fn with the unsigned integer that has the size of a dtype: elements as bits. */
template <class F> auto np_with_bits(int dtype, F fn)
{
    switch (np_size_of(dtype)) {
    case 1: return fn(np_is<uint8_t>());
    case 2: return fn(np_is<uint16_t>());
    case 4: return fn(np_is<uint32_t>());
    default: return fn(np_is<uint64_t>());
    }
}

/* ---- operands */

/* Elements of a dtype at `data`, one after the other, in the shape of `like`. */
static inline np_operand np_dense(const np_operand *like, void *data, int dtype)
{
    np_operand o = *like;
    int64_t step = 1;
    o.data = data;
    o.dtype = (uint8_t)dtype;
    o.contiguous = true;
    for (int d = o.ndim - 1; d >= 0; d--) o.stride[d] = step, step *= o.shape[d];
    return o;
}
/* As np_dense, in scratch memory. data NULL: fail has been called. */
static inline np_operand np_dense_scratch(const np_call *k, const np_operand *like, int dtype)
{
    return np_dense(like, k->host->scratch(k, np_size_of(dtype) * (size_t)(like->numel + 1)), dtype);
}

/* o over a smaller shape, standing still along dim: where an element lies but for its position. */
static inline np_operand np_beside(const np_operand *o, const np_operand *shape, int dim)
{
    np_operand p = *o;
    for (int d = 0; d < shape->ndim; d++) p.shape[d] = shape->shape[d];
    p.stride[dim] = 0;
    p.numel = shape->numel;
    return p;
}
/* o without a dim. */
static inline np_operand np_without(const np_operand *o, int dim)
{
    np_operand p = *o;
    p.ndim--;
    for (int d = dim; d < p.ndim; d++) p.shape[d] = o->shape[d + 1], p.stride[d] = o->stride[d + 1];
    p.numel = 1;
    for (int d = 0; d < p.ndim; d++) p.numel *= p.shape[d];
    return p;
}

/* The operand as elements of a dtype in memory: itself, or a copy in scratch; a number becomes one element. */
static inline bool np_as(const np_call *k, const np_operand *o, int dtype, np_operand *as)
{
    if (!o->is_number && o->dtype == dtype) return *as = *o, true;
    *as = np_dense_scratch(k, o, dtype);
    as->is_number = false;
    if (!as->data) return false;
    if (!o->is_number) return np_done(k, np_move(k->device, as, o)) == 0;
    return np_done(k, np_with_dtype(dtype, [&](auto t) {
                       typedef typename decltype(t)::type T;
                       const T v = o->dtype >= NEAP_INT64 ? np_store<T>::from(o->integer)
                                                          : np_store<T>::from(o->number);
                       return np_fill(k->device, as, &v); /* v goes by value: a copy might read it later */
                   })) == 0;
}
/* The operand itself if it is contiguous, else a copy in scratch memory. NULL: fail has been called. */
static inline const void *np_contiguous(const np_call *k, const np_operand *o)
{
    if (o->contiguous) return o->data;
    const np_operand copy = np_dense_scratch(k, o, o->dtype);
    return copy.data && np_done(k, np_move(k->device, &copy, o)) == 0 ? copy.data : nullptr;
}

/* out[0] := its operand, unless they are one (in place). */
static inline bool np_start_from(const np_call *k, const np_operand *to, const np_operand *start)
{
    return start->data == to->data || np_done(k, np_move(k->device, to, start)) == 0;
}

/* ---- positions */

/* ids -> 0-based rows; negative ones count from the end unless `strict`. */
static __global__ void np_resolve(int64_t *rows, int *flag, np_given<int64_t> ids, np_walk<1> w, int64_t size,
                                  int64_t base, bool strict)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1];
        w.at(i, at);
        const int64_t v = np_get(ids, at[0]);
        const bool plain = v >= base && v - base < size;
        rows[i] = plain ? v - base : v + size;
        if (!plain && (strict || v >= 0 || v < -size)) np_raise(flag);
    }
}

/* The rows that ids name, in scratch memory. 0; 1: one is outside; -1: fail has been called. */
static inline int np_rows_of(const np_call *k, const np_operand *ids, int64_t size, int64_t base, bool strict,
                             int64_t **rows)
{
    const np_walk<1> w = np_walk_over(ids->ndim, ids->shape, {ids});
    int *flag = np_flag_new(k);
    *rows = flag ? static_cast<int64_t *>(k->host->scratch(k, sizeof **rows * (size_t)(w.n + 1))) : nullptr;
    if (!*rows) return -1;
    bool ok =
        NP_TRY(np_gpu_of(k), np_launch(np_resolve, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream, *rows,
                                       flag, np_given_of<int64_t>(ids, NEAP_INT64), w, size, base, strict));
    return np_done(k, ok) == 0 ? np_flag_read(k, flag) : -1;
}

#endif
