/* scan.cu - running sums, products and linear recurrences along a dim: cumsum, cumprod, linear_scan, run_numbers.
 *
 * Floats run in double and integers in int64, wrapping, as in ops/scan.c. Short rows, and rows where there are many, are
 * a thread's each, in the CPU's order. Others are cut into parts of PART elements by their length alone: the totals of
 * the parts are scanned, then each part from what came before it; no atomics, so bits are the same at every run. Like
 * any parallel product, that one may overflow beside a zero where a walk in order would stay at zero. */
#include "positions.h"

namespace
{

enum { THREADS = 256, EACH = 8, PART = THREADS * EACH, SHORT = 64, MANY = 4096 };

/* What an element does to what came before: an element's, and those of several in a row. */
struct sum_of {
    template <class W> struct step {
        W v;
    };
    template <class W> static NP_DEVICE step<W> none() { return {0}; }
    template <class W> static NP_DEVICE step<W> join(step<W> a, step<W> b) { return {add(a.v, b.v)}; }
    template <class W> static NP_DEVICE W apply(step<W> a, W s) { return add(s, a.v); }
    static NP_DEVICE double add(double a, double b) { return a + b; }
    static NP_DEVICE int64_t add(int64_t a, int64_t b) { return np_wrap_add(a, b); }
};
struct product_of {
    template <class W> struct step {
        W v;
    };
    template <class W> static NP_DEVICE step<W> none() { return {1}; }
    template <class W> static NP_DEVICE step<W> join(step<W> a, step<W> b) { return {mul(a.v, b.v)}; }
    template <class W> static NP_DEVICE W apply(step<W> a, W s) { return mul(s, a.v); }
    static NP_DEVICE double mul(double a, double b) { return a * b; }
    static NP_DEVICE int64_t mul(int64_t a, int64_t b) { return np_wrap_mul(a, b); }
};
struct linear_of { /* s -> v + by s */
    template <class W> struct step {
        W v, by;
    };
    template <class W> static NP_DEVICE step<W> none() { return {0, 1}; }
    template <class W> static NP_DEVICE step<W> join(step<W> a, step<W> b)
    {
        return {b.v + b.by * a.v, a.by * b.by};
    }
    template <class W> static NP_DEVICE W apply(step<W> a, W s) { return a.v + a.by * s; }
};

/* Rows along a dim of x (and a), and of the contiguous result y. */
template <class R> struct job { /* R: what floats are read as */
    np_given<R> x, a;
    np_walk<3> first; /* of y, x, a, over the rows */
    void *y;
    int y_dtype;
    int64_t n, step[3], parts; /* parts of a row */
    bool reverse;
};

template <class Op, class W, class R>
NP_DEVICE typename Op::template step<W> step_at(const job<R> &j, const int64_t (&at)[3], int64_t i)
{
    const int64_t p = j.reverse ? j.n - 1 - i : i;
    const W v = (W)np_get(j.x, at[1] + p * j.step[1]);
    if constexpr (std::is_same<Op, linear_of>::value) {
        if (j.reverse && i == 0) return {v, 0};
        return {v, (W)np_get(j.a, at[2] + (j.reverse ? p + 1 : p) * j.step[2])};
    } else {
        return {v};
    }
}
template <class R, class W> NP_DEVICE void put_at(const job<R> &j, const int64_t (&at)[3], int64_t i, W v)
{
    np_put(j.y, j.y_dtype, at[0] + (j.reverse ? j.n - 1 - i : i) * j.step[0], (R)v);
}

/* ---- a thread for a row */

template <class Op, class W, class R> __global__ void walk_rows(job<R> j, W start)
{
    NP_EACH(row, j.first.n)
    {
        int64_t at[3];
        j.first.at(row, at);
        W s = start;
        for (int64_t i = 0; i < j.n; i++) {
            s = Op::apply(step_at<Op, W>(j, at, i), s);
            put_at(j, at, i, s);
        }
    }
}

/* ---- a block for a part of a row */

template <class T> NP_DEVICE T shuffle_up(T v, unsigned by)
{
    union {
        T v;
        uint32_t word[sizeof(T) / 4];
    } from, to;
    from.v = v;
    for (size_t i = 0; i < sizeof(T) / 4; i++) to.word[i] = __shfl_up_sync(0xffffffffu, from.word[i], by);
    return to.v;
}

/* What the threads before this one do, joined; *all: what all of them do. */
template <class Op, class W, class S> NP_DEVICE S join_before(S mine, S *all)
{
    NP_SHARED(S, total, [THREADS / 32]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    S upto = mine;
    for (int by = 1; by < 32; by *= 2) {
        const S other = shuffle_up(upto, (unsigned)by);
        if (lane >= by) upto = Op::template join<W>(other, upto);
    }
    if (lane == 31) total[warp] = upto;
    __syncthreads();
    S before = Op::template none<W>(), sum = Op::template none<W>();
    for (int w = 0; w < THREADS / 32; w++) {
        if (w == warp) before = sum;
        sum = Op::template join<W>(sum, total[w]);
    }
    __syncthreads(); /* total may be written again */
    const S left = shuffle_up(upto, 1);
    *all = sum;
    return lane > 0 ? Op::template join<W>(before, left) : before;
}

/* The steps of this thread's EACH elements of a part, joined. */
template <class Op, class W, class R, class S>
NP_DEVICE S join_each(const job<R> &j, const int64_t (&at)[3], int64_t from)
{
    S s = Op::template none<W>();
    for (int e = 0; e < EACH && from + e < j.n; e++)
        s = Op::template join<W>(s, step_at<Op, W>(j, at, from + e));
    return s;
}

template <class Op, class W, class R, class S>
__global__ void __launch_bounds__(THREADS) join_parts(S *parts, job<R> j)
{
    for (int64_t p = blockIdx.x; p < j.first.n * j.parts; p += gridDim.x) {
        int64_t at[3];
        j.first.at(p / j.parts, at);
        S all;
        const S mine = join_each<Op, W, R, S>(j, at, p % j.parts * PART + (int64_t)threadIdx.x * EACH);
        join_before<Op, W>(mine, &all);
        if (threadIdx.x == 0) parts[p] = all;
    }
}

/* before[p]: the value that part p of a row starts from. A block for a row. */
template <class Op, class W, class S>
__global__ void __launch_bounds__(THREADS)
    start_parts(W *before, const S *parts, int64_t rows, int64_t n, W start)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        W s = start;
        for (int64_t p0 = 0; p0 < n; p0 += THREADS) {
            const int64_t p = p0 + threadIdx.x;
            S all;
            const S mine = p < n ? parts[row * n + p] : Op::template none<W>();
            const S left = join_before<Op, W>(mine, &all);
            if (p < n) before[row * n + p] = Op::apply(left, s);
            s = Op::apply(all, s);
        }
    }
}

template <class Op, class W, class R, class S>
__global__ void __launch_bounds__(THREADS) scan_parts(job<R> j, const W *before)
{
    for (int64_t p = blockIdx.x; p < j.first.n * j.parts; p += gridDim.x) {
        int64_t at[3];
        const int64_t from = p % j.parts * PART + (int64_t)threadIdx.x * EACH;
        j.first.at(p / j.parts, at);
        S all;
        const S left = join_before<Op, W>(join_each<Op, W, R, S>(j, at, from), &all);
        W s = Op::apply(left, before[p]);
        for (int e = 0; e < EACH && from + e < j.n; e++) {
            s = Op::apply(step_at<Op, W>(j, at, from + e), s);
            put_at(j, at, from + e, s);
        }
    }
}

/* ---- launches */

template <class Op, class W, class R> int launch(const np_call *k, job<R> j, W start)
{
    typedef typename Op::template step<W> S;
    np_gpu *gpu = np_gpu_of(k);
    const int64_t rows = j.first.n;
    if (j.n <= SHORT || rows >= MANY)
        return np_done(k, NP_TRY(gpu, np_launch(walk_rows<Op, W, R>, np_blocks(rows), NP_BLOCK, 0,
                                                gpu->stream, j, start)));
    j.parts = (j.n + PART - 1) / PART;
    const size_t count = (size_t)(rows * j.parts);
    const unsigned blocks = np_blocks((int64_t)count * NP_BLOCK);
    S *parts = static_cast<S *>(k->host->scratch(k, sizeof *parts * count));
    W *before = parts ? static_cast<W *>(k->host->scratch(k, sizeof *before * count)) : nullptr;
    if (!before) return -1;
    return np_done(
        k,
        NP_TRY(gpu, np_launch(join_parts<Op, W, R, S>, blocks, THREADS, 0, gpu->stream, parts, j)) &&
            NP_TRY(gpu, np_launch(start_parts<Op, W, S>, np_blocks(rows * NP_BLOCK), THREADS, 0, gpu->stream,
                                  before, static_cast<const S *>(parts), rows, j.parts, start)) &&
            NP_TRY(gpu, np_launch(scan_parts<Op, W, R, S>, blocks, THREADS, 0, gpu->stream, j,
                                  static_cast<const W *>(before))));
}

template <class R> job<R> job_of(const np_call *k, int64_t dim, bool reverse)
{
    const np_operand *y = &k->out[0], *in[3] = {y, &k->in[0], k->n_in > 1 ? &k->in[1] : &k->in[0]};
    const int d = (int)(dim < 0 ? dim + y->ndim : dim);
    np_operand rest[3];
    job<R> j = {};
    j.x = np_given_of<R>(in[1], in[1]->dtype);
    j.a = np_given_of<R>(in[2], in[2]->dtype);
    j.y = y->data;
    j.y_dtype = y->dtype;
    j.reverse = reverse;
    j.n = y->ndim ? y->shape[d] : 1;
    for (int i = 0; i < 3; i++) {
        rest[i] = *in[i];
        const int at = d - (y->ndim - rest[i].ndim); /* shapes are aligned at their last dim */
        if (rest[i].ndim == 0 || at < 0) continue;
        j.step[i] = rest[i].shape[at] == j.n ? rest[i].stride[at] : 0;
        rest[i] = np_without(in[i], at);
    }
    j.first = np_walk_over(rest[0].ndim, rest[0].shape, {&rest[0], &rest[1], &rest[2]});
    return j;
}

template <class Op> int scan(const np_call *k, int64_t dim, bool reverse, int64_t start)
{
    const int dtype = k->out[0].dtype;
    if (k->out[0].numel == 0) return 0;
    if (k->in[0].is_number || (k->n_in > 1 && k->in[1].is_number)) return 1;
    if constexpr (!std::is_same<Op, linear_of>::value) /* which is of floats alone */
        if (dtype >= NEAP_INT64) return launch<Op>(k, job_of<int64_t>(k, dim, reverse), start);
    return dtype == NEAP_FLOAT64 ? launch<Op>(k, job_of<double>(k, dim, reverse), (double)start)
                                 : launch<Op>(k, job_of<float>(k, dim, reverse), (double)start);
}

int cumsum(const np_call *k) { return scan<sum_of>(k, k->attr[0].i, false, 0); }
int cumprod(const np_call *k) { return scan<product_of>(k, k->attr[0].i, false, 1); }
int linear_scan(const np_call *k) { return scan<linear_of>(k, k->attr[0].i, k->attr[1].i != 0, 0); }
int run_numbers(const np_call *k) { return scan<sum_of>(k, 0, false, k->attr[0].i - 1); }

} // namespace

const np_plugin_row np_rows_scan[] = {{"cumsum", cumsum},
                                      {"cumprod", cumprod},
                                      {"linear_scan", linear_scan},
                                      {"run_numbers", run_numbers},
                                      {nullptr, nullptr}};
