/* index.cu - rows by positions: index_select, embedding, index_add and their transposes, as index.c has them.
 *
 * Positions are checked before anything is written; where one is outside, the CPU gets the call and names it. Sums have
 * the CPU's order, and so its bits: positions are sorted by row, and one thread adds up what goes to an element, in the
 * order of the positions, without atomics. */
#include "order.h"
#include "positions.h"

namespace
{

/* ---- rows: (outer, size, inner) against (outer, n, inner) */

struct geometry {
    int64_t outer, size, n, inner;
};
geometry geometry_of(const np_operand *x, int dim, const np_operand *ids)
{
    geometry g = {1, x->shape[dim], ids->numel, 1};
    for (int d = 0; d < dim; d++) g.outer *= x->shape[d];
    for (int d = dim + 1; d < x->ndim; d++) g.inner *= x->shape[d];
    return g;
}

template <class T> __global__ void read_rows(T *y, const T *x, const int64_t *rows, geometry g)
{
    NP_EACH(i, g.outer * g.n * g.inner)
    {
        const int64_t row = i / g.inner, column = i - row * g.inner, o = row / g.n;
        y[i] = x[(o * g.size + rows[row - o * g.n]) * g.inner + column];
    }
}
template <class T>
bool launch_read(const np_call *k, const void *x, const int64_t *rows, const geometry &g, int per_element)
{
    geometry cut = g;
    cut.inner /= per_element;
    return NP_TRY(np_gpu_of(k), np_launch(read_rows<T>, np_blocks(cut.outer * cut.n * cut.inner), NP_BLOCK, 0,
                                          np_gpu_of(k)->stream, static_cast<T *>(k->out[0].data),
                                          static_cast<const T *>(x), rows, cut));
}

int select(const np_call *k, int dim, int64_t base, bool strict)
{
    const np_operand *x = &k->in[0], *out = &k->out[0];
    const geometry g = geometry_of(x, dim, &k->in[1]);
    int64_t *rows;
    if (k->in[1].numel == 0) return 0;
    const int outside = np_rows_of(k, &k->in[1], g.size, base, strict, &rows);
    if (outside || out->numel == 0) return outside;
    const void *from = np_contiguous(k, x);
    if (!from) return -1;
    const int size = np_with_dtype(x->dtype, [](auto t) { return (int)sizeof(typename decltype(t)::type); });
    const bool by_16 =
        g.inner * size % 16 == 0 && (uintptr_t)from % 16 == 0 && (uintptr_t)out->data % 16 == 0;
    return np_done(k, by_16       ? launch_read<np_vec<uint64_t, 2>>(k, from, rows, g, 16 / size)
                      : size == 1 ? launch_read<uint8_t>(k, from, rows, g, 1)
                      : size == 2 ? launch_read<uint16_t>(k, from, rows, g, 1)
                      : size == 4 ? launch_read<uint32_t>(k, from, rows, g, 1)
                                  : launch_read<uint64_t>(k, from, rows, g, 1));
}

/* The thread of the first position of a row adds up all of them. skip: a row that gets nothing. */
template <class W>
__global__ void add_rows(void *y, np_given<W> x, const int64_t *rows, const int64_t *sorted, geometry g,
                         int64_t skip)
{
    NP_EACH(i, g.outer * g.n * g.inner)
    {
        const int64_t at = i / g.inner, column = i - at * g.inner, o = at / g.n, first = at - o * g.n;
        const int64_t row = rows[sorted[first]];
        if (row == skip || (first > 0 && rows[sorted[first - 1]] == row)) continue;
        const int64_t to = (o * g.size + row) * g.inner + column;
        np_given<W> old = x;
        old.data = y;
        W sum = np_get(old, to);
        for (int64_t p = first; p < g.n && rows[sorted[p]] == row; p++) {
            const W v = np_get(x, (o * g.n + sorted[p]) * g.inner + column);
            if constexpr (std::is_same<W, int64_t>::value) sum = np_wrap_add(sum, v);
            else sum += v;
        }
        np_put(y, x.dtype, to, sum);
    }
}
template <class W>
bool launch_add(const np_call *k, const np_operand &y, const np_operand *x, const void *from,
                const int64_t *rows, const int64_t *sorted, const geometry &g, int64_t skip)
{
    np_given<W> given = {from, 0, x->dtype};
    return NP_TRY(np_gpu_of(k), np_launch(add_rows<W>, np_blocks(g.outer * g.n * g.inner), NP_BLOCK, 0,
                                          np_gpu_of(k)->stream, y.data, given, rows, sorted, g, skip));
}

/* out[0] = start (NULL: zeros) with the rows of x added at ids. */
int add(const np_call *k, const np_operand *start, const np_operand *x, int dim, int64_t base, bool strict,
        int64_t skip)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *out = &k->out[0];
    const geometry g = geometry_of(out, dim, &k->in[1]);
    int64_t *rows;
    const int outside = np_rows_of(k, &k->in[1], g.size, base, strict, &rows);
    if (outside) return outside;
    if (out->numel == 0) return 0;
    const np_operand y = out->contiguous ? *out : np_dense_scratch(k, out, out->dtype);
    if (!y.data) return -1;
    bool ok = true;
    if (!start)
        ok = NP_TRY(gpu, cudaMemsetAsync(y.data, 0, np_size_of(y.dtype) * (size_t)y.numel, gpu->stream));
    else if (start->data != y.data) ok = np_move(gpu, &y, start);
    if (np_done(k, ok)) return -1;
    if (x->numel == 0) return out->contiguous ? 0 : np_done(k, np_move(gpu, out, &y));
    const void *from = np_contiguous(k, x);
    const int64_t *sorted = from ? np_order_positions(k, rows, g.n) : nullptr;
    if (!sorted) return -1;
    if (out->dtype == NEAP_FLOAT64) ok = launch_add<double>(k, y, x, from, rows, sorted, g, skip);
    else if (out->dtype >= NEAP_INT64) ok = launch_add<int64_t>(k, y, x, from, rows, sorted, g, skip);
    else ok = launch_add<float>(k, y, x, from, rows, sorted, g, skip);
    return np_done(k, ok && (out->contiguous || np_move(gpu, out, &y)));
}

/* ---- calls */

int index_select(const np_call *k)
{
    return select(k, np_dim_of(&k->attr[0], k->in[0].ndim), k->attr[1].i, false);
}
int embedding(const np_call *k) { return select(k, 0, k->attr[0].i, true); }
int index_select_backward(const np_call *k)
{
    return add(k, nullptr, &k->in[0], np_dim_of(&k->attr[0], k->out[0].ndim), k->attr[2].i, false, -1);
}
int embedding_backward(const np_call *k)
{
    const int64_t skip = k->attr[2].has ? k->attr[2].i - k->attr[1].i : -1;
    return add(k, nullptr, &k->in[0], 0, k->attr[1].i, true, skip);
}
int index_add(const np_call *k)
{
    return add(k, &k->in[0], &k->in[2], np_dim_of(&k->attr[0], k->in[0].ndim), k->attr[1].i, false, -1);
}

} // namespace

const np_plugin_row np_rows_index[] = {
    {"index_select", index_select}, {"index_select_backward", index_select_backward},
    {"embedding", embedding},       {"embedding_backward", embedding_backward},
    {"index_add", index_add},       {nullptr, nullptr},
};
