/* sampling.cu - draws by probabilities, and permutations: bernoulli, multinomial, randperm, from the CPU's words.
 *
 * Results are the CPU's: running sums of weights have its order, and so its bits; only the times of draws without
 * replacement come from the device's own log, whose last bit may differ. Where a probability or a weight is refused, the
 * CPU gets the call and names it. */
#include "block.h"
#include "draws.h"
#include "flag.h"
#include "pointwise.h"

namespace
{

/* ---- bernoulli */

__global__ void check_probabilities(int *flag, np_given<double> p, np_walk<1> w)
{
    NP_EACH(i, w.n)
    {
        int64_t at[1];
        w.at(i, at);
        const double v = np_get(p, at[0]);
        if (!(v >= 0 && v <= 1)) np_raise(flag);
    }
}
__global__ void draw_ones(void *y, int dtype, np_given<double> p, np_rng_range r, int64_t groups,
                          np_walk<2> w)
{
    NP_EACH(g, groups)
    {
        uint32_t words[4][4];
        const int64_t first = np_draw_words(r, g, words);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 4; i++) {
                int64_t e = first + 16 * j + i, at[2];
                if (e >= w.n) continue;
                w.at(e, at);
                np_put(y, dtype, at[0], (double)words[j][i] * 0x1p-32 < np_get(p, at[1]) ? 1.0f : 0.0f);
            }
    }
}
int bernoulli(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *p = &k->in[0], *y = &k->out[0];
    const np_given<double> given = {p->data, 0, p->dtype};
    if (y->numel == 0) return 0;
    int *flag = np_flag_new(k);
    if (!flag) return -1;
    bool ok = NP_TRY(gpu, np_launch(check_probabilities, np_blocks(p->numel), NP_BLOCK, 0, gpu->stream, flag,
                                    given, np_walk_over(p->ndim, p->shape, {p})));
    const int refused = np_done(k, ok) ? -1 : np_flag_read(k, flag);
    if (refused) return refused;
    const int64_t groups = np_draw_groups(y->numel);
    return np_done(
        k, NP_TRY(gpu, np_launch(draw_ones, np_blocks(groups), NP_BLOCK, 0, gpu->stream, y->data, y->dtype,
                                 given, k->rng, groups, np_walk_over(y->ndim, y->shape, {y, p}))));
}

/* ---- multinomial: a block a row of weights */

struct weights {
    np_given<double> p;
    np_walk<1> w;
    int64_t rows, size, n, base;
    np_rng_range rng;
    int64_t *ids; /* (rows, n) */
    int *flag;    /* raised: a row is refused */
};
/* Weight i of row r; raises the flag at what is none. */
NP_DEVICE double weight_at(const weights &a, int64_t r, int64_t i)
{
    int64_t at[1];
    a.w.at(r * a.size + i, at);
    const double v = np_get(a.p, at[0]);
    if (!(v >= 0 && v < (double)INFINITY)) np_raise(a.flag);
    return v;
}

/* With replacement. sums (rows, size): running ones, added up by one thread in the CPU's order; last (rows): the last
 * position of a weight above 0. */
__global__ void sum_weights(weights a, double *sums, int64_t *last)
{
    NP_SHARED(double, tile, [NP_BLOCK]);
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        double sum = 0;
        int64_t above = -1;
        for (int64_t first = 0; first < a.size; first += NP_BLOCK) {
            const int64_t i = first + threadIdx.x;
            tile[threadIdx.x] = i < a.size ? weight_at(a, r, i) : 0;
            __syncthreads();
            for (int j = 0; threadIdx.x == 0 && j < NP_BLOCK && first + j < a.size; j++) {
                if (tile[j] > 0) above = first + j;
                sum += tile[j];
                tile[j] = sum;
            }
            __syncthreads();
            if (i < a.size) sums[r * a.size + i] = tile[threadIdx.x];
        }
        if (threadIdx.x != 0) continue;
        last[r] = above;
        if (above < 0 || sum == (double)INFINITY) np_raise(a.flag);
    }
}
/* The first position whose running sum is above u times the total. */
__global__ void draw_any(weights a, const double *sums, const int64_t *last)
{
    NP_EACH(i, a.rows * a.n)
    {
        const int64_t r = i / a.n;
        const double *sum = sums + r * a.size;
        const double target = np_uniform64(np_draw64(a.rng, i)) * sum[a.size - 1];
        int64_t low = 0, high = last[r];
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (sum[middle] > target) high = middle;
            else low = middle + 1;
        }
        a.ids[i] = low + a.base;
    }
}

/* Without: every position gets an exponential time, whose rate is its weight; the first n in order of time. */
struct choice {
    double time;
    int64_t id; /* -1: none */
};
NP_DEVICE bool comes_before(choice a, choice b)
{
    return a.id >= 0 && (b.id < 0 || a.time < b.time || (a.time == b.time && a.id < b.id));
}
/* times (rows, size): NaN where the weight is 0. */
__global__ void time_weights(weights a, double *times)
{
    NP_EACH(i, a.rows * a.size)
    {
        const int64_t r = i / a.size;
        const double v = weight_at(a, r, i - r * a.size);
        const double u = (double)((np_draw64(a.rng, i) >> 11) + 1) * 0x1p-53;
        times[i] = v == 0 ? (double)NAN : -log(u) / v;
    }
}
__global__ void draw_distinct(weights a, const double *times)
{
    NP_SHARED(choice, drawn, [1]);
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        choice before = {-(double)INFINITY, 0};
        double sum = 0;
        for (int64_t i = threadIdx.x; i < a.size; i += NP_BLOCK) sum += weight_at(a, r, i);
        sum = np_block_merge(sum, [](double x, double y) { return x + y; });
        if (threadIdx.x == 0 && sum == (double)INFINITY) np_raise(a.flag);
        for (int64_t n = 0; n < a.n; n++) {
            choice best = {0, -1};
            for (int64_t i = threadIdx.x; i < a.size; i += NP_BLOCK) {
                const choice c = {times[r * a.size + i], i};
                if (c.time == c.time && comes_before(before, c) && comes_before(c, best)) best = c;
            }
            best = np_block_merge(best, [](choice x, choice y) { return comes_before(y, x) ? y : x; });
            if (threadIdx.x == 0) {
                drawn[0] = best;
                a.ids[r * a.n + n] = best.id + a.base;
                if (best.id < 0) np_raise(a.flag);
            }
            __syncthreads();
            before = drawn[0];
            if (before.id < 0) break;
        }
    }
}

int multinomial(const np_call *k)
{
    const int64_t most = (int64_t)1 << 30; /* comparisons of a block: what takes it some tenths of a second */
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *p = &k->in[0];
    const bool replacement = k->attr[1].i != 0;
    weights a = {{p->data, 0, p->dtype},
                 np_walk_over(p->ndim, p->shape, {p}),
                 p->ndim == 2 ? p->shape[0] : 1,
                 p->shape[p->ndim - 1],
                 k->attr[0].i,
                 k->attr[2].i,
                 k->rng,
                 static_cast<int64_t *>(k->out[0].data),
                 nullptr};
    if (a.rows == 0) return 0;
    if (!replacement && a.n > most / a.size) return 1;
    a.flag = np_flag_new(k);
    double *room = a.flag
                       ? static_cast<double *>(k->host->scratch(k, sizeof *room * (size_t)(a.rows * a.size)))
                       : nullptr;
    int64_t *last =
        room ? static_cast<int64_t *>(k->host->scratch(k, sizeof *last * (size_t)a.rows)) : nullptr;
    if (!last) return -1;
    const unsigned rows = np_blocks(a.rows * NP_BLOCK);
    bool ok = replacement
                  ? NP_TRY(gpu, np_launch(sum_weights, rows, NP_BLOCK, 0, gpu->stream, a, room, last)) &&
                        NP_TRY(gpu, np_launch(draw_any, np_blocks(a.rows * a.n), NP_BLOCK, 0, gpu->stream, a,
                                              room, last))
                  : NP_TRY(gpu, np_launch(time_weights, np_blocks(a.rows * a.size), NP_BLOCK, 0, gpu->stream,
                                          a, room)) &&
                        NP_TRY(gpu, np_launch(draw_distinct, rows, NP_BLOCK, 0, gpu->stream, a, room));
    return np_done(k, ok) ? -1 : np_flag_read(k, a.flag);
}

/* ---- randperm: the permutation that Fisher and Yates' exchanges give when they are done one after the other
 *
 * Exchange i swaps elements i and to[i] >= i. Element `to[i]` then holds what element i held before; so what element p
 * holds before exchange t is what the latest exchange j < t with to[j] = p brought there, or p itself if there was none:
 * held(j), which is what element j held before exchange j. Each element's exchanges are kept as a list, whose order
 * chance decides; the latest one is looked for, so results do not depend on it. Lists have one element on average, and
 * chains of held() grow as log n. */

struct exchanges {
    int32_t *to, *next, *head; /* head[p]: of the list of exchanges into p; -1: none */
    int32_t *source;           /* source[j]: the latest exchange into j before exchange j; -1: none */
    int64_t n;
};
__global__ void draw_exchanges(exchanges x, np_rng_range r)
{
    NP_EACH(i, x.n)
    {
        const int32_t to = (int32_t)(i + (int64_t)np_below(np_draw64(r, i), (uint64_t)(x.n - i)));
        x.to[i] = to;
        x.next[i] = atomicExch(&x.head[to], (int)i);
    }
}
NP_DEVICE int32_t latest_before(const exchanges &x, int32_t p, int32_t t)
{
    int32_t latest = -1;
    for (int32_t j = x.head[p]; j >= 0; j = x.next[j])
        if (j < t && j > latest) latest = j;
    return latest;
}
__global__ void find_sources(exchanges x)
{
    NP_EACH(i, x.n) x.source[i] = latest_before(x, (int32_t)i, (int32_t)i);
}
__global__ void follow_sources(int64_t *y, exchanges x, int64_t base)
{
    NP_EACH(i, x.n)
    {
        const int32_t to = x.to[i];
        int32_t from = latest_before(x, to, (int32_t)i), held = to;
        for (; from >= 0; from = x.source[from]) held = from;
        y[i] = held + base;
    }
}

int randperm(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    const int64_t n = k->out[0].numel;
    if (n == 0) return 0;
    if (n > INT32_MAX) return 1;
    int32_t *room = static_cast<int32_t *>(k->host->scratch(k, sizeof *room * 4 * (size_t)n));
    if (!room) return -1;
    const exchanges x = {room, room + n, room + 2 * n, room + 3 * n, n};
    return np_done(
        k, NP_TRY(gpu, cudaMemsetAsync(x.head, 0xff, sizeof *room * (size_t)n, gpu->stream)) &&
               NP_TRY(gpu, np_launch(draw_exchanges, np_blocks(n), NP_BLOCK, 0, gpu->stream, x, k->rng)) &&
               NP_TRY(gpu, np_launch(find_sources, np_blocks(n), NP_BLOCK, 0, gpu->stream, x)) &&
               NP_TRY(gpu, np_launch(follow_sources, np_blocks(n), NP_BLOCK, 0, gpu->stream,
                                     static_cast<int64_t *>(k->out[0].data), x, k->attr[1].i)));
}

} // namespace

const np_plugin_row np_rows_sampling[] = {
    {"bernoulli", bernoulli},
    {"multinomial", multinomial},
    {"randperm", randperm},
    {nullptr, nullptr},
};
