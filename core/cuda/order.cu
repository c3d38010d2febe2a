/* order.cu - rows put in order: tiles in shared memory, then merges of runs, each twice as long as before.
 *
 * No two entries are equal, for the place of an element decides between equal keys. So there is one order, the CPU's,
 * and the network that sorts a tile needs not be stable. In a merge every entry finds its own place: how many of the
 * other run stand before it is found by bisection, and nothing depends on other threads. Where only the first few of a
 * row are wanted, runs are never longer than that. */
#include "order.h"

#include "positions.h"

namespace
{

enum { TILE = 1024, THREADS = 256 };

NP_DEVICE bool stands_before(const np_entry &a, const np_entry &b)
{
    return a.key < b.key || (a.key == b.key && a.at < b.at);
}

/* The entries of a tile in order, in segments of `width` (a power of two, at most TILE). */
NP_DEVICE void sort_segments(np_entry *tile, int width)
{
    for (int size = 2; size <= width; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int p = (int)threadIdx.x; p < TILE / 2; p += THREADS) {
                const int low = p / step * step * 2 + p % step, high = low + step;
                const bool upward = size == width || (low & size) == 0;
                const np_entry a = tile[low], b = tile[high];
                if (stands_before(b, a) == upward) tile[low] = b, tile[high] = a;
            }
            __syncthreads();
        }
}

/* Runs of `width` in order. A row is made of `runs` of them; a tile holds TILE / width. */
template <class W>
__global__ void __launch_bounds__(THREADS)
    sort_tiles(np_entry *to, np_given<W> x, np_lines lines, int width, int64_t runs, int64_t keep, bool flip)
{
    NP_SHARED(np_entry, tile, [TILE]);
    const int64_t all = lines.first.n * runs, per_tile = TILE / width;
    for (int64_t t = blockIdx.x; t * per_tile < all; t += gridDim.x) {
        for (int j = (int)threadIdx.x; j < TILE; j += THREADS) {
            const int64_t run = t * per_tile + j / width, row = run / runs,
                          i = run % runs * width + j % width;
            np_entry e = {~(uint64_t)0, INT64_MAX}; /* after all others */
            if (run < all && i < lines.n) {
                int64_t at[1];
                lines.first.at(row, at);
                const uint64_t key = np_key_of(np_get(x, at[0] + i * lines.step));
                e = {flip ? ~key : key, i};
            }
            tile[j] = e;
        }
        __syncthreads();
        sort_segments(tile, width);
        for (int j = (int)threadIdx.x; j < TILE; j += THREADS) {
            const int64_t run = t * per_tile + j / width, i = run % runs * width + j % width;
            if (run < all && i < lines.n && j % width < keep) to[run / runs * lines.n + i] = tile[j];
        }
        __syncthreads();
    }
}

/* Of n ordered keys, how many are smaller than `key`, or equal to it where equal ones count. */
NP_DEVICE int64_t count_before(const np_entry *run, int64_t n, uint64_t key, bool equal)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (run[mid].key < key || (equal && run[mid].key == key)) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Runs 2 i and 2 i + 1 of each row become one; the first `keep` entries of a run are there, and are made. */
__global__ void merge_runs(np_entry *to, const np_entry *from, int64_t rows, int64_t n, int64_t width,
                           int64_t keep)
{
    const int64_t runs = (n + width - 1) / width, held = keep < width ? keep : width;
    NP_EACH(i, rows * runs * held)
    {
        const int64_t run = i / held % runs, other = run ^ 1, in_run = i % held, row = i / held / runs;
        const np_entry *line = from + row * n;
        if (run * width + in_run >= n) continue;
        const int64_t rest = n - other * width, others = rest < 0 ? 0 : rest < held ? rest : held;
        const np_entry mine = line[run * width + in_run];
        const int64_t place = in_run + count_before(line + other * width, others, mine.key, run > other);
        if (place < keep) to[row * n + (run & ~(int64_t)1) * width + place] = mine;
    }
}

__global__ void take_positions(int64_t *to, const np_entry *from, int64_t n)
{
    NP_EACH(i, n) to[i] = from[i].at;
}

template <class W>
bool launch_tiles(np_gpu *gpu, np_entry *to, const np_lines &x, int width, int64_t keep, bool flip)
{
    const np_given<W> given = {x.data, 0, x.dtype};
    const int64_t runs = (x.n + width - 1) / width, tiles = (x.first.n * runs * width + TILE - 1) / TILE;
    return NP_TRY(gpu, np_launch(sort_tiles<W>, np_blocks(tiles * NP_BLOCK), THREADS, 0, gpu->stream, to,
                                 given, x, width, runs, keep, flip));
}

} // namespace

np_lines np_lines_along(const np_operand *x, int dim)
{
    np_lines l = {x->data, x->dtype, {}, 1, 0};
    if (x->ndim == 0) {
        l.first = np_walk_over(0, x->shape, {x});
        return l;
    }
    const np_operand rows = np_without(x, dim);
    l.n = x->shape[dim];
    l.step = x->stride[dim];
    l.first = np_walk_over(rows.ndim, rows.shape, {&rows});
    return l;
}

const np_entry *np_order(const np_call *k, const np_lines &x, int64_t keep, bool descending)
{
    np_gpu *gpu = np_gpu_of(k);
    const size_t bytes = sizeof(np_entry) * (size_t)(x.first.n * x.n + 1);
    int width = 2;
    while (width < TILE && width < x.n) width *= 2;
    np_entry *from = static_cast<np_entry *>(k->host->scratch(k, bytes));
    np_entry *to = from && width < x.n ? static_cast<np_entry *>(k->host->scratch(k, bytes)) : from;
    if (!from || !to) return nullptr;
    if (x.first.n * x.n == 0) return from;
    bool ok = x.dtype < NEAP_INT64 ? launch_tiles<double>(gpu, from, x, width, keep, descending)
                                   : launch_tiles<int64_t>(gpu, from, x, width, keep, descending);
    for (int64_t w = width; ok && w < x.n; w *= 2, std::swap(from, to)) {
        const int64_t held = keep < w ? keep : w, entries = x.first.n * ((x.n + w - 1) / w) * held;
        ok = NP_TRY(gpu, np_launch(merge_runs, np_blocks(entries), NP_BLOCK, 0, gpu->stream, to,
                                   static_cast<const np_entry *>(from), x.first.n, x.n, w, keep));
    }
    return np_done(k, ok) == 0 ? from : nullptr;
}

int64_t *np_order_positions(const np_call *k, const int64_t *values, int64_t n)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_lines line = {values, NEAP_INT64, np_walk_over(0, &n, {nullptr}), n, 1};
    const np_entry *order = np_order(k, line, n, false);
    int64_t *to = order ? static_cast<int64_t *>(k->host->scratch(k, sizeof *to * (size_t)(n + 1))) : nullptr;
    if (!to) return nullptr;
    bool ok = NP_TRY(gpu, np_launch(take_positions, np_blocks(n), NP_BLOCK, 0, gpu->stream, to, order, n));
    return np_done(k, ok) == 0 ? to : nullptr;
}
