/* gather.cu - one position an element: gather and what adds to such places, and the picks of max and min.
 *
 * Sums have the CPU's order, and so its bits, without atomics: what goes to one element is added by one thread, which
 * goes through the positions of its line in their order. A long line is shared out by where its elements go to. */
#include "positions.h"

namespace
{

/* ---- reading and writing, each element once */

template <class T>
__global__ void read_elements(T *y, const T *x, np_given<int64_t> ids, int64_t base, np_walk<3> w,
                              int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[3];
        w.at(i, at);
        y[at[0]] = x[at[1] + (np_get(ids, at[2]) - base) * along];
    }
}
template <class T>
__global__ void write_elements(T *y, const T *x, np_given<int64_t> ids, int64_t base, np_walk<3> w,
                               int64_t along)
{
    NP_EACH(i, w.n)
    {
        int64_t at[3];
        w.at(i, at);
        y[at[1] + (np_get(ids, at[2]) - base) * along] = x[at[0]];
    }
}

/* few[i] = full[.., ids[i], ..], or the other way round; `beside`: full without its way along dim. */
int move_elements(const np_call *k, const np_operand *few, const np_operand *full, const np_operand &beside,
                  const np_operand *ids, int64_t base, int64_t along, bool write)
{
    const np_walk<3> w = np_walk_over(ids->ndim, ids->shape, {few, &beside, ids});
    if (w.n == 0) return 0;
    return np_with_bits(full->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        T *a = static_cast<T *>(few->data), *b = static_cast<T *>(full->data);
        return np_done(
            k, NP_TRY(np_gpu_of(k), np_launch(write ? write_elements<T> : read_elements<T>, np_blocks(w.n),
                                              NP_BLOCK, 0, np_gpu_of(k)->stream, write ? b : a, write ? a : b,
                                              np_given_of<int64_t>(ids, NEAP_INT64), base, w, along)));
    });
}

int gather(const np_call *k)
{
    const np_operand *x = &k->in[0], *ids = &k->in[1];
    const int dim = np_dim_of(&k->attr[0], x->ndim);
    int64_t *rows;
    if (ids->numel == 0) return 0;
    const int outside = np_rows_of(k, ids, x->shape[dim], k->attr[1].i, false, &rows);
    if (outside) return outside;
    const np_operand flat = np_dense(ids, rows, NEAP_INT64);
    return move_elements(k, &k->out[0], x, np_beside(x, ids, dim), &flat, 0, x->stride[dim], false);
}

/* The reduced shape has dim with size 1, or not at all. */
np_operand beside_reduced(const np_operand *full, const np_operand *few, int dim)
{
    return few->ndim == full->ndim ? np_beside(full, few, dim) : np_without(full, dim);
}
int max_pick(const np_call *k)
{
    const np_operand *x = &k->in[0], *ids = &k->in[1];
    const int dim = np_dim_of(&k->attr[0], x->ndim);
    return move_elements(k, &k->out[0], x, beside_reduced(x, ids, dim), ids, k->attr[1].i, x->stride[dim],
                         false);
}
int max_scatter(const np_call *k)
{
    const np_operand *y = &k->out[0], *ids = &k->in[1];
    const int dim = np_dim_of(&k->attr[1], y->ndim);
    if (y->numel == 0) return 0;
    if (!y->contiguous) return 1;
    bool ok = NP_TRY(np_gpu_of(k), cudaMemsetAsync(y->data, 0, np_size_of(y->dtype) * (size_t)y->numel,
                                                   np_gpu_of(k)->stream));
    if (np_done(k, ok)) return -1;
    return move_elements(k, &k->in[0], y, beside_reduced(y, ids, dim), ids, k->attr[2].i, y->stride[dim],
                         true);
}

/* ---- adding */

template <class W> struct adding {
    W *y;
    np_given<W> x;
    const int64_t *rows;
    np_walk<3> lines; /* where each begins: of rows, x, y */
    int64_t n, rows_step, x_step, y_step;
    int64_t shares; /* of a line, a power of two: element r of it belongs to share r mod shares */
};
template <class W> __global__ void add_elements(adding<W> a)
{
    NP_EACH(t, a.lines.n * a.shares)
    {
        int64_t at[3];
        const int64_t line = t / a.shares, share = t - line * a.shares;
        a.lines.at(line, at);
        for (int64_t i = 0; i < a.n; i++) {
            const int64_t row = a.rows[at[0] + i * a.rows_step];
            if ((row & (a.shares - 1)) != share) continue;
            W *y = &a.y[at[2] + row * a.y_step];
            const W v = np_get(a.x, at[1] + i * a.x_step);
            if constexpr (std::is_same<W, int64_t>::value) *y = np_wrap_add(*y, v);
            else *y += v;
        }
    }
}

/* y, of type W and contiguous, gets x added. Threads enough to fill a device, no more than a line has elements. */
template <class W>
bool launch_add(const np_call *k, const np_operand *x, const np_operand *y, const np_operand *flat, int dim)
{
    enum { THREADS = 1 << 15 };
    const np_operand rows_at = np_without(flat, dim), x_at = np_without(x, dim);
    const np_operand along = np_beside(y, flat, dim), y_at = np_without(&along, dim);
    adding<W> a = {static_cast<W *>(y->data),
                   {x->data, 0, x->dtype},
                   static_cast<const int64_t *>(flat->data),
                   np_walk_over(rows_at.ndim, rows_at.shape, {&rows_at, &x_at, &y_at}),
                   flat->shape[dim],
                   flat->stride[dim],
                   x->stride[dim],
                   y->stride[dim],
                   1};
    while (a.shares < y->shape[dim] && a.shares * a.lines.n < THREADS) a.shares *= 2;
    return NP_TRY(np_gpu_of(k), np_launch(add_elements<W>, np_blocks(a.lines.n * a.shares), NP_BLOCK, 0,
                                          np_gpu_of(k)->stream, a));
}

/* out[0] = start (NULL: zeros) with x added at ids along dim: summed in the wide type, and rounded once. */
int add(const np_call *k, const np_operand *start, const np_operand *ids, const np_operand *x, int64_t base)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *out = &k->out[0];
    const int dim = np_dim_of(&k->attr[0], out->ndim);
    const int wide = out->dtype >= NEAP_INT64     ? NEAP_INT64
                     : out->dtype == NEAP_FLOAT64 ? NEAP_FLOAT64
                                                  : NEAP_FLOAT32;
    int64_t *rows;
    const int outside = np_rows_of(k, ids, out->shape[dim], base, false, &rows);
    if (outside || out->numel == 0) return outside;
    const bool direct = out->contiguous && out->dtype == wide;
    const np_operand y = direct ? *out : np_dense_scratch(k, out, wide),
                     flat = np_dense(ids, rows, NEAP_INT64);
    if (!y.data) return -1;
    if (start ? !np_start_from(k, &y, start)
              : np_done(k, NP_TRY(gpu, cudaMemsetAsync(y.data, 0, np_size_of(wide) * (size_t)y.numel,
                                                       gpu->stream))))
        return -1;
    bool ok = true;
    if (ids->numel == 0) ok = true;
    else if (wide == NEAP_FLOAT64) ok = launch_add<double>(k, x, &y, &flat, dim);
    else if (wide == NEAP_INT64) ok = launch_add<int64_t>(k, x, &y, &flat, dim);
    else ok = launch_add<float>(k, x, &y, &flat, dim);
    return np_done(k, ok && (direct || np_move(gpu, out, &y)));
}

int gather_backward(const np_call *k) { return add(k, nullptr, &k->in[1], &k->in[0], k->attr[2].i); }
int scatter_add(const np_call *k) { return add(k, &k->in[0], &k->in[1], &k->in[2], k->attr[1].i); }

} // namespace

const np_plugin_row np_rows_gather[] = {
    {"gather", gather},     {"gather_backward", gather_backward}, {"scatter_add", scatter_add},
    {"max_pick", max_pick}, {"max_scatter", max_scatter},         {nullptr, nullptr},
};
