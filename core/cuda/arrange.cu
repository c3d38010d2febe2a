/* arrange.cu - positions and shapes: one_hot, linear_positions, repeated_positions, triangles, the transpose of unfold. */
#include "ranks.h"

namespace
{

/* ---- positions as values */

__global__ void set_ones(void *y, int dtype, const int64_t *rows, int64_t n, int64_t classes)
{
    NP_EACH(i, n)
    {
        const int64_t id = i / classes;
        np_put(y, dtype, i, rows[id] == i - id * classes ? 1.0f : 0.0f);
    }
}
int one_hot(const np_call *k)
{
    const np_operand *y = &k->out[0];
    int64_t *rows;
    const int outside = np_rows_of(k, &k->in[0], k->attr[0].i, k->attr[1].i, true, &rows);
    if (outside || y->numel == 0) return outside;
    return np_done(k,
                   NP_TRY(np_gpu_of(k),
                          np_launch(set_ones, np_blocks(y->numel), NP_BLOCK, 0, np_gpu_of(k)->stream, y->data,
                                    y->dtype, static_cast<const int64_t *>(rows), y->numel, k->attr[0].i)));
}

/* y = y size + rows, w being y's and those of the rows; the first time y counts as 0. */
__global__ void add_digit(int64_t *y, const int64_t *rows, np_walk<2> w, int64_t size, bool first)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        w.at(i, at);
        y[at[0]] = (first ? 0 : y[at[0]] * size) + rows[at[1]];
    }
}
int linear_positions(const np_call *k)
{
    const np_operand *y = &k->out[0];
    for (int n = 0; n < k->n_in; n++) {
        const int64_t size = k->attr[0].v[n];
        int64_t *rows;
        const int outside = np_rows_of(k, &k->in[n], size, k->attr[1].i, false, &rows);
        if (outside) return outside;
        if (y->numel == 0) continue;
        const np_operand flat = np_dense(&k->in[n], rows, NEAP_INT64);
        const np_walk<2> w = np_walk_over(y->ndim, y->shape, {y, &flat});
        const bool ok = NP_TRY(np_gpu_of(k), np_launch(add_digit, np_blocks(w.n), NP_BLOCK, 0,
                                                       np_gpu_of(k)->stream, static_cast<int64_t *>(y->data),
                                                       static_cast<const int64_t *>(rows), w, size, n == 0));
        if (np_done(k, ok)) return -1;
    }
    return 0;
}

/* y[i]: the last position that begins at or before i; those that begin where the next one does are not repeated. */
__global__ void find_repeated(int64_t *y, int64_t n, const int64_t *begin, int64_t count)
{
    NP_EACH(i, n)
    {
        int64_t low = 0, high = count - 1;
        while (low < high) {
            const int64_t middle = low + (high - low + 1) / 2;
            if (begin[middle] <= i) low = middle;
            else high = middle - 1;
        }
        y[i] = low;
    }
}
int repeated_positions(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *y = &k->out[0];
    np_operand repeats;
    if (y->numel == 0) return 0;
    if (!np_as(k, &k->in[0], NEAP_INT64, &repeats)) return -1;
    const void *n = np_contiguous(k, &repeats);
    int64_t *begin =
        n ? static_cast<int64_t *>(k->host->scratch(k, sizeof(int64_t) * (size_t)(repeats.numel + 1)))
          : nullptr;
    if (!begin) return -1;
    return np_done(k, NP_TRY(gpu, np_launch(np_add_up, 1, NP_BLOCK, 0, gpu->stream, begin,
                                            static_cast<const int64_t *>(n), repeats.numel)) &&
                          NP_TRY(gpu, np_launch(find_repeated, np_blocks(y->numel), NP_BLOCK, 0, gpu->stream,
                                                static_cast<int64_t *>(y->data), y->numel,
                                                static_cast<const int64_t *>(begin), repeats.numel)));
}

/* ---- triangles of the last two dims */

template <class T>
__global__ void keep_triangle(T *y, const T *x, np_walk<2> w, int64_t rows, int64_t columns, int64_t diagonal,
                              bool lower)
{
    NP_EACH(i, w.n)
    {
        int64_t at[2];
        const int64_t row = i / columns, column = i - row * columns, right = column - row % rows;
        w.at(i, at);
        y[at[0]] = (lower ? right <= diagonal : right >= diagonal) ? x[at[1]] : (T)0;
    }
}
int triangle(const np_call *k, bool lower)
{
    const np_operand *x = &k->in[0], *y = &k->out[0];
    if (y->numel == 0) return 0;
    const np_walk<2> w = np_walk_over(y->ndim, y->shape, {y, x});
    return np_with_bits(y->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        return np_done(k,
                       NP_TRY(np_gpu_of(k),
                              np_launch(keep_triangle<T>, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                                        static_cast<T *>(y->data), static_cast<const T *>(x->data), w,
                                        y->shape[y->ndim - 2], y->shape[y->ndim - 1], k->attr[0].i, lower)));
    });
}
int tril(const np_call *k) { return triangle(k, true); }
int triu(const np_call *k) { return triangle(k, false); }

/* ---- the transpose of unfold: g (..., windows, ..., size) -> y (..., n, ...) */

struct windows {
    np_walk<2> w; /* y, and g at window 0, place 0 */
    int64_t n, inner, count, size, step, g_window, g_place;
};
/* An element gets what windows have of it, by places in the window: the CPU's order. */
template <class W> __global__ void add_windows(void *y, int dtype, np_given<W> g, windows a)
{
    NP_EACH(i, a.w.n)
    {
        int64_t at[2];
        const int64_t p = i / a.inner % a.n;
        W sum = 0;
        a.w.at(i, at);
        for (int64_t place = p % a.step; place < a.size && place <= p; place += a.step) {
            const int64_t window = (p - place) / a.step;
            if (window < a.count) sum += np_get(g, at[1] + window * a.g_window + place * a.g_place);
        }
        np_put(y, dtype, at[0], sum);
    }
}
template <class W> int launch_windows(const np_call *k, const windows &a)
{
    return np_done(k, NP_TRY(np_gpu_of(k), np_launch(add_windows<W>, np_blocks(a.w.n), NP_BLOCK, 0,
                                                     np_gpu_of(k)->stream, k->out[0].data, k->out[0].dtype,
                                                     np_given<W>{k->in[0].data, 0, k->in[0].dtype}, a)));
}
int unfold_backward(const np_call *k)
{
    const np_operand *g = &k->in[0], *y = &k->out[0];
    const int dim = (int)k->attr[1].i;
    if (y->numel == 0) return 0;
    const np_operand first = np_without(g, g->ndim - 1), beside = np_beside(&first, y, dim);
    windows a = {np_walk_over(y->ndim, y->shape, {y, &beside}),
                 y->shape[dim],
                 1,
                 g->shape[dim],
                 g->numel ? k->attr[2].i : 0,
                 k->attr[3].i,
                 g->stride[dim],
                 g->stride[g->ndim - 1]};
    for (int d = dim + 1; d < y->ndim; d++) a.inner *= y->shape[d];
    return y->dtype == NEAP_FLOAT64 ? launch_windows<double>(k, a) : launch_windows<float>(k, a);
}

} // namespace

const np_plugin_row np_rows_arrange[] = {
    {"one_hot", one_hot},
    {"linear_positions", linear_positions},
    {"repeated_positions", repeated_positions},
    {"tril", tril},
    {"triu", triu},
    {"unfold_backward", unfold_backward},
    {nullptr, nullptr},
};
