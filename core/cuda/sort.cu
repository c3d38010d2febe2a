/* sort.cu - sort, topk, median, searchsorted, bincount, run_starts: what ops/sort.c and ops/median.c say.
 *
 * Positions come from order.cu; values are moved as they are, bit for bit. */
#include "order.h"

#include "positions.h"

namespace
{

/* What lies in (outer, count, inner), the middle dim being the one that is sorted along. */
struct block_of {
    int64_t outer, count, inner;
};
block_of block_along(const np_operand *o, int dim)
{
    block_of b = {1, o->ndim ? o->shape[dim] : 1, 1};
    for (int d = 0; d < dim; d++) b.outer *= o->shape[d];
    for (int d = dim + 1; d < o->ndim; d++) b.inner *= o->shape[d];
    return b;
}

/* ---- sort, topk */

/* Entry j of row r is order[r * stride + j]. by_key: the position is its key, not its place. */
template <class T>
__global__ void put_ordered(T *values, int64_t *ids, const T *x, np_lines lines, const np_entry *order,
                            int64_t stride, bool by_key, block_of out, int64_t base)
{
    NP_EACH(i, out.outer * out.count * out.inner)
    {
        const int64_t line = i / out.inner, column = i - line * out.inner, o = line / out.count;
        const int64_t row = o * out.inner + column;
        const np_entry e = order[row * stride + (line - o * out.count)];
        const int64_t from = by_key ? np_value_of_key(e.key) : e.at;
        int64_t at[1];
        lines.first.at(row, at);
        values[i] = x[at[0] + from * lines.step];
        ids[i] = from + base;
    }
}

__global__ void take_places(int64_t *to, const np_entry *order, int64_t rows, int64_t n, int64_t count)
{
    NP_EACH(i, rows * count) to[i] = order[i / count * n + i % count].at;
}

/* The first `count` entries of each row of n by their positions: these are the keys then. NULL: fail has been called. */
const np_entry *by_position(const np_call *k, const np_entry *order, int64_t rows, int64_t n, int64_t count)
{
    np_gpu *gpu = np_gpu_of(k);
    np_operand row = {};
    row.ndim = 1;
    row.shape[0] = rows;
    row.stride[0] = count;
    int64_t *places = static_cast<int64_t *>(k->host->scratch(k, sizeof *places * (size_t)(rows * count)));
    if (!places) return nullptr;
    const bool ok = NP_TRY(gpu, np_launch(take_places, np_blocks(rows * count), NP_BLOCK, 0, gpu->stream,
                                          places, order, rows, n, count));
    const np_lines lines = {places, NEAP_INT64, np_walk_over(1, row.shape, {&row}), count, 1};
    return np_done(k, ok) == 0 ? np_order(k, lines, count, false) : nullptr;
}

/* Results 0 and 1 are the first values along dim, and their positions. */
int put_first(const np_call *k, int dim, bool descending, bool in_order, int64_t base)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_lines x = np_lines_along(&k->in[0], dim);
    const block_of out = block_along(&k->out[0], dim);
    int64_t stride = x.n;
    if (k->out[0].numel == 0) return 0;
    const np_entry *order = np_order(k, x, out.count, descending);
    if (order && !in_order) order = by_position(k, order, x.first.n, x.n, out.count), stride = out.count;
    if (!order) return -1;
    return np_done(k, np_with_bits(x.dtype, [&](auto t) {
                       typedef typename decltype(t)::type T;
                       return NP_TRY(gpu, np_launch(put_ordered<T>, np_blocks(k->out[0].numel), NP_BLOCK, 0,
                                                    gpu->stream, static_cast<T *>(k->out[0].data),
                                                    static_cast<int64_t *>(k->out[1].data),
                                                    static_cast<const T *>(x.data), x, order, stride,
                                                    !in_order, out, base));
                   }));
}

int sort(const np_call *k) { return put_first(k, (int)k->attr[0].i, k->attr[1].i, true, k->attr[2].i); }
int topk(const np_call *k)
{
    return put_first(k, (int)k->attr[1].i, k->attr[2].i, k->attr[3].i, k->attr[4].i);
}

/* ---- median */

/* The lower one of the two in the middle, or the first NaN. */
template <class T>
__global__ void put_median(T *values, int64_t *ids, const T *x, np_lines lines, const np_entry *order,
                           bool floats, int64_t base)
{
    const uint64_t nan = ~(uint64_t)0;
    NP_EACH(row, lines.first.n)
    {
        const np_entry *e = order + row * lines.n;
        int64_t low = (lines.n - 1) / 2, at[1];
        if (floats && e[lines.n - 1].key == nan) {
            int64_t high = lines.n - 1;
            for (low = 0; low < high;) {
                const int64_t mid = low + (high - low) / 2;
                if (e[mid].key == nan) high = mid;
                else low = mid + 1;
            }
        }
        lines.first.at(row, at);
        values[row] = x[at[0] + e[low].at * lines.step];
        if (ids) ids[row] = e[low].at + base;
    }
}

int median(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *x = &k->in[0];
    np_lines lines = {x->data, x->dtype, {}, x->numel, 1};
    if (k->out[0].numel == 0) return 0;
    if (k->attr[0].has && x->ndim > 0) {
        lines = np_lines_along(x, np_dim_of(&k->attr[0], x->ndim));
    } else {
        lines.first = np_walk_over(0, x->shape, {x});
        lines.data = np_contiguous(k, x);
        if (!lines.data) return -1;
    }
    const np_entry *order = np_order(k, lines, lines.n, false);
    if (!order) return -1;
    return np_done(k, np_with_bits(x->dtype, [&](auto t) {
                       typedef typename decltype(t)::type T;
                       return NP_TRY(
                           gpu, np_launch(put_median<T>, np_blocks(lines.first.n), NP_BLOCK, 0, gpu->stream,
                                          static_cast<T *>(k->out[0].data),
                                          static_cast<int64_t *>(k->n_out > 1 ? k->out[1].data : nullptr),
                                          static_cast<const T *>(lines.data), lines, order,
                                          x->dtype < NEAP_INT64, k->attr[2].i));
                   }));
}

/* ---- searching and counting in what is sorted */

/* The first place in its row where a value can stand; right: the last one. per_row: values of a row. */
template <class W>
__global__ void search_rows(int64_t *ids, np_given<W> sorted, np_lines lines, np_given<W> values,
                            np_walk<1> w, int64_t per_row, bool right, int64_t base)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1], low = 0, high = lines.n;
        w.at(i, at);
        const uint64_t v = np_key_of(np_get(values, at[0]));
        lines.first.at(i / per_row, at);
        while (low < high) {
            const int64_t mid = low + (high - low) / 2;
            const uint64_t key = np_key_of(np_get(sorted, at[0] + mid * lines.step));
            if (key < v || (right && key == v)) low = mid + 1;
            else high = mid;
        }
        ids[i] = low + base;
    }
}
template <class W> bool launch_search(const np_call *k, int compute)
{
    const np_operand *s = &k->in[0], *v = &k->in[1];
    const np_lines lines = np_lines_along(s, s->ndim - 1);
    const np_walk<1> w = np_walk_over(v->ndim, v->shape, {v});
    return NP_TRY(np_gpu_of(k),
                  np_launch(search_rows<W>, np_blocks(w.n), NP_BLOCK, 0, np_gpu_of(k)->stream,
                            static_cast<int64_t *>(k->out[0].data), np_given_of<W>(s, compute), lines,
                            np_given_of<W>(v, compute), w, s->ndim == 1 ? w.n : v->shape[v->ndim - 1],
                            k->attr[0].i, k->attr[1].i));
}
int searchsorted(const np_call *k)
{
    if (k->out[0].numel == 0) return 0;
    if (k->in[1].is_number) return 1;
    return np_done(k, k->compute < NEAP_INT64 ? launch_search<double>(k, k->compute)
                                              : launch_search<int64_t>(k, k->compute));
}

__global__ void count_ids(unsigned long long *counts, np_given<int64_t> ids, np_walk<1> w, int64_t base)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1];
        w.at(i, at);
        atomicAdd(&counts[np_get(ids, at[0]) - base], 1ull); /* integers: any order is the same sum */
    }
}
int bincount(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *ids = &k->in[0], *out = &k->out[0];
    const np_walk<1> w = np_walk_over(ids->ndim, ids->shape, {ids});
    if (out->numel == 0) return 0;
    bool ok = NP_TRY(gpu, cudaMemsetAsync(out->data, 0, sizeof(int64_t) * (size_t)out->numel, gpu->stream)) &&
              NP_TRY(gpu, np_launch(count_ids, np_blocks(w.n), NP_BLOCK, 0, gpu->stream,
                                    static_cast<unsigned long long *>(out->data),
                                    np_given_of<int64_t>(ids, NEAP_INT64), w, k->attr[1].i));
    return np_done(k, ok);
}

template <class W> __global__ void mark_starts(np_truth *out, np_given<W> x, int64_t step, int64_t n)
{
    NP_EACH(i, n) out[i] = {(uint8_t)(i == 0 || !(np_get(x, i * step) == np_get(x, (i - 1) * step)))};
}
template <class W> bool launch_starts(const np_call *k)
{
    const np_operand *x = &k->in[0];
    return NP_TRY(np_gpu_of(k), np_launch(mark_starts<W>, np_blocks(x->numel), NP_BLOCK, 0,
                                          np_gpu_of(k)->stream, static_cast<np_truth *>(k->out[0].data),
                                          np_given_of<W>(x, x->dtype), x->stride[0], x->numel));
}
int run_starts(const np_call *k)
{
    if (k->out[0].numel == 0) return 0;
    return np_done(k, k->in[0].dtype < NEAP_INT64 ? launch_starts<double>(k) : launch_starts<int64_t>(k));
}

} // namespace

const np_plugin_row np_rows_sort[] = {
    {"sort", sort},         {"topk", topk},
    {"median", median},     {"searchsorted", searchsorted},
    {"bincount", bincount}, {"run_starts", run_starts},
    {nullptr, nullptr},
};
