/* overwrite.cu - writing at positions, where the last of several writes to one place stays: scatter, index_copy, and
 * which writes those are not.
 *
 * Two passes: every write leaves its number at its place if no later one has, then those whose number has stayed
 * write. The largest number is the same in whatever order the threads come. */
#include "positions.h"

namespace
{

/* last[place] = the largest i that goes there. w: rows, and where a line begins in `last`. */
__global__ void note_last(int64_t *last, const int64_t *rows, np_walk<2> w, int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        w.at(i, at);
        atomicMax(reinterpret_cast<long long *>(&last[at[1] + rows[at[0]] * along]), (long long)i);
    }
}
/* For n places, none of them written. NULL: fail has been called. */
int64_t *last_of(const np_call *k, int64_t n, const int64_t *rows, const np_walk<2> &w, int64_t along)
{
    np_gpu *gpu = np_gpu_of(k);
    const size_t bytes = sizeof(int64_t) * (size_t)(n + 1);
    int64_t *last = static_cast<int64_t *>(k->host->scratch(k, bytes));
    if (!last) return nullptr;
    bool ok =
        NP_TRY(gpu, cudaMemsetAsync(last, 0xff, bytes, gpu->stream)) &&
        NP_TRY(gpu, np_launch(note_last, np_blocks(w.n), NP_BLOCK, 0, gpu->stream, last, rows, w, along));
    return np_done(k, ok) == 0 ? last : nullptr;
}

/* true where a later write goes to the same place; w as in note_last, the result is contiguous. */
__global__ void mark_shadowed(bool *y, const int64_t *last, const int64_t *rows, np_walk<2> w, int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        w.at(i, at);
        y[i] = last[at[1] + rows[at[0]] * along] != i;
    }
}
int shadowed(const np_call *k, const np_operand &flat, const np_operand &place, int64_t places, int64_t along)
{
    const int64_t *rows = static_cast<const int64_t *>(flat.data);
    const np_walk<2> w = np_walk_over(flat.ndim, flat.shape, {&flat, &place});
    const int64_t *last = last_of(k, places, rows, w, along);
    if (!last) return -1;
    return np_done(
        k, NP_TRY(np_gpu_of(k), np_launch(mark_shadowed, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                                          static_cast<bool *>(k->out[0].data), last, rows, w, along)));
}

/* ---- one position an element */

/* w: rows, v, and where a line begins in y, which is contiguous. */
template <class T>
__global__ void write_last(T *y, const T *v, const int64_t *rows, const int64_t *last, np_walk<3> w,
                           int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[3];
        w.at(i, at);
        const int64_t place = at[2] + rows[at[0]] * along;
        if (last[place] == i) y[place] = v[at[1]];
    }
}

int scatter(const np_call *k)
{
    const np_operand *x = &k->in[0], *ids = &k->in[1], *out = &k->out[0];
    const int dim = np_dim_of(&k->attr[0], x->ndim);
    int64_t *rows;
    np_operand v;
    const int outside = np_rows_of(k, ids, x->shape[dim], k->attr[1].i, false, &rows);
    if (outside || out->numel == 0) return outside;
    const np_operand y = out->contiguous ? *out : np_dense_scratch(k, out, out->dtype);
    const np_operand flat = np_dense(ids, rows, NEAP_INT64), beside = np_beside(&y, ids, dim);
    if (!y.data || !np_as(k, &k->in[2], out->dtype, &v) || !np_start_from(k, &y, x)) return -1;
    if (ids->numel > 0) {
        const np_walk<3> w = np_walk_over(ids->ndim, ids->shape, {&flat, &v, &beside});
        const int64_t *last =
            last_of(k, y.numel, rows, np_walk_over(ids->ndim, ids->shape, {&flat, &beside}), y.stride[dim]);
        if (!last) return -1;
        const bool ok = np_with_bits(out->dtype, [&](auto t) {
            typedef typename decltype(t)::type T;
            return NP_TRY(np_gpu_of(k),
                          np_launch(write_last<T>, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                                    static_cast<T *>(y.data), static_cast<const T *>(v.data),
                                    static_cast<const int64_t *>(rows), last, w, y.stride[dim]));
        });
        if (np_done(k, ok)) return -1;
    }
    return out->contiguous ? 0 : np_done(k, np_move(k->device, out, &y));
}

int scatter_shadowed(const np_call *k)
{
    const np_operand *ids = &k->in[0];
    const int dim = np_dim_of(&k->attr[0], ids->ndim);
    int64_t *rows, places = 1;
    const int outside = np_rows_of(k, ids, k->attr[1].i, k->attr[2].i, false, &rows);
    if (outside || ids->numel == 0) return outside;
    np_operand whole = *ids; /* ids' shape with the positions' size along dim */
    whole.shape[dim] = k->attr[1].i;
    whole = np_dense(&whole, nullptr, NEAP_INT64);
    for (int d = 0; d < whole.ndim; d++) places *= whole.shape[d];
    return shadowed(k, np_dense(ids, rows, NEAP_INT64), np_beside(&whole, ids, dim), places,
                    whole.stride[dim]);
}

/* ---- slices */

/* w: y without its way along dim, v, rows. A write's number is that of its position. */
template <class T>
__global__ void write_slices(T *y, const T *v, const int64_t *rows, const int64_t *last, np_walk<3> w,
                             int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[3];
        w.at(i, at);
        const int64_t row = rows[at[2]];
        if (last[row] == at[2]) y[at[0] + row * along] = v[at[1]];
    }
}

/* o over the shape (..., ids.shape, ...) of what is selected: along ids' own dims as `steps` says, or not at all. */
np_operand selected(const np_operand *x, int dim, const np_operand *ids, bool of_ids)
{
    np_operand s = *x;
    int n = 0;
    s.numel = 1;
    for (int d = 0; d < dim; d++, n++) s.shape[n] = x->shape[d], s.stride[n] = of_ids ? 0 : x->stride[d];
    for (int d = 0; d < ids->ndim; d++, n++)
        s.shape[n] = ids->shape[d], s.stride[n] = of_ids ? ids->stride[d] : 0;
    for (int d = dim + 1; d < x->ndim; d++, n++)
        s.shape[n] = x->shape[d], s.stride[n] = of_ids ? 0 : x->stride[d];
    s.ndim = (uint8_t)n;
    for (int d = 0; d < n; d++) s.numel *= s.shape[d];
    return s;
}
np_operand nowhere(const np_operand *flat)
{
    np_operand p = *flat;
    for (int d = 0; d < p.ndim; d++) p.stride[d] = 0;
    return p;
}

int index_copy(const np_call *k)
{
    const np_operand *x = &k->in[0], *out = &k->out[0];
    const int dim = np_dim_of(&k->attr[0], x->ndim);
    int64_t *rows;
    np_operand v;
    const int outside = np_rows_of(k, &k->in[1], x->shape[dim], k->attr[1].i, false, &rows);
    if (outside || out->numel == 0) return outside;
    const np_operand flat = np_dense(&k->in[1], rows, NEAP_INT64), place = nowhere(&flat);
    const np_operand to = selected(out, dim, &flat, false), from = selected(out, dim, &flat, true);
    if (!np_as(k, &k->in[2], out->dtype, &v) || !np_start_from(k, out, x)) return -1;
    if (to.numel == 0) return 0;
    const np_walk<3> w = np_walk_over(to.ndim, to.shape, {&to, &v, &from});
    const int64_t *last =
        last_of(k, x->shape[dim], rows, np_walk_over(flat.ndim, flat.shape, {&flat, &place}), 1);
    if (!last) return -1;
    return np_with_bits(out->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        return np_done(k, NP_TRY(np_gpu_of(k),
                                 np_launch(write_slices<T>, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                                           static_cast<T *>(out->data), static_cast<const T *>(v.data),
                                           static_cast<const int64_t *>(rows), last, w, out->stride[dim])));
    });
}

int index_shadowed(const np_call *k)
{
    int64_t *rows;
    const int outside = np_rows_of(k, &k->in[0], k->attr[0].i, k->attr[1].i, false, &rows);
    if (outside || k->in[0].numel == 0) return outside;
    const np_operand flat = np_dense(&k->in[0], rows, NEAP_INT64);
    return shadowed(k, flat, nowhere(&flat), k->attr[0].i, 1);
}

} // namespace

const np_plugin_row np_rows_overwrite[] = {
    {"scatter", scatter},       {"scatter_shadowed", scatter_shadowed},
    {"index_copy", index_copy}, {"index_shadowed", index_shadowed},
    {nullptr, nullptr},
};
