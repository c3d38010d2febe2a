/* reduce.cu - sums, products, extremes, truth, moments and norms over some or all dims.
 *
 * A result is folded by a thread, a warp or a block, long ones in several parts whose accumulators wait in scratch for
 * a second launch. How work is cut follows from the shape alone and there are no atomics, so bits are the same at every
 * run. As on the CPU (ops/cpu/reduce.h), floats are folded in double and integers in int64, wrapping. */
#include <cmath>
#include <cstdlib>

#include "block.h"
#include "convert.h"
#include "walk.h"

namespace
{

enum fold {
    SUM,
    PROD,
    SQUARES /* about k */,
    ABS,
    SQUARE,
    POWER,
    NONZERO,
    MOST,
    LEAST,
    EXP /* of x - k */,
    ANY,
    ALL
};
enum finish { PLAIN, MEAN, VARIANCE, DEVIATION, NORM, LOG };

struct reduction {
    np_walk<1> kept, reduced;
    const void *x;
    int dtype, fold, finish;
    int64_t m, n;           /* results, elements of each */
    int64_t parts, part_n;  /* of a result; elements of a part */
    void *partial;          /* (m, parts) accumulators */
    double k;               /* exponent, or correction */
    const double *ks;       /* (m) centers of SQUARES, EXP */
    void *y, *also, *place; /* (m): the result, the same in another dtype, its position (int64) */
    int y_dtype, also_dtype, sign;
    int64_t base;
};

/* ---- elements */

template <class W> NP_DEVICE W load_any(const void *p, int dtype, int64_t i)
{
    switch (dtype) {
    case NEAP_FLOAT64: return (W) static_cast<const double *>(p)[i];
    case NEAP_FLOAT16: return (W)np_widen(static_cast<const np_f16 *>(p)[i]);
    case NEAP_BFLOAT16: return (W)np_widen(static_cast<const np_b16 *>(p)[i]);
    case NEAP_INT64: return (W) static_cast<const int64_t *>(p)[i];
    case NEAP_INT32: return (W) static_cast<const int32_t *>(p)[i];
    case NEAP_INT8: return (W) static_cast<const int8_t *>(p)[i];
    case NEAP_UINT8: return (W) static_cast<const uint8_t *>(p)[i];
    case NEAP_BOOL: return (W)np_widen(static_cast<const np_truth *>(p)[i]);
    default: return (W) static_cast<const float *>(p)[i];
    }
}
NP_DEVICE bool is_integer(int dtype)
{
    return dtype == NEAP_INT64 || dtype == NEAP_INT32 || dtype == NEAP_INT8 || dtype == NEAP_UINT8 ||
           dtype == NEAP_BOOL;
}
template <class W> NP_DEVICE void store_any(void *p, int dtype, int64_t i, W v)
{
    switch (dtype) {
    case NEAP_FLOAT64: static_cast<double *>(p)[i] = (double)v; break;
    case NEAP_FLOAT16: static_cast<np_f16 *>(p)[i] = np_store<np_f16>::from(v); break;
    case NEAP_BFLOAT16: static_cast<np_b16 *>(p)[i] = np_store<np_b16>::from(v); break;
    case NEAP_INT64: static_cast<int64_t *>(p)[i] = np_store<int64_t>::from(v); break;
    case NEAP_INT32: static_cast<int32_t *>(p)[i] = np_store<int32_t>::from(v); break;
    case NEAP_INT8: static_cast<int8_t *>(p)[i] = np_store<int8_t>::from(v); break;
    case NEAP_UINT8: static_cast<uint8_t *>(p)[i] = np_store<uint8_t>::from(v); break;
    case NEAP_BOOL: static_cast<np_truth *>(p)[i] = np_store<np_truth>::from(v); break;
    default: static_cast<float *>(p)[i] = (float)v;
    }
}

/* ---- accumulators: what starts, folds an element in, merges two, and stores */

struct real { /* floats: one double */
    typedef double acc;
    typedef double wide;
    static NP_DEVICE acc start(const reduction &r)
    {
        return r.fold == PROD ? 1.0 : r.fold == LEAST ? (double)INFINITY : 0.0;
    }
    static NP_DEVICE acc merge(const reduction &r, acc a, acc b)
    {
        switch (r.fold) {
        case PROD: return a * b;
        case MOST: return b > a || b != b ? b : a;
        case LEAST: return b < a || b != b ? b : a;
        default: return a + b;
        }
    }
    static NP_DEVICE acc fold(const reduction &r, acc a, double x, double k, int64_t)
    {
        switch (r.fold) {
        case SQUARES: x = (x - k) * (x - k); break;
        case ABS:
        case MOST:
        case LEAST: x = fabs(x); break;
        case SQUARE: x = x * x; break;
        case POWER: x = pow(fabs(x), r.k); break;
        case NONZERO: x = x != 0 ? 1.0 : 0.0; break;
        case EXP: x = exp(x - k); break;
        default: break;
        }
        return merge(r, a, x);
    }
    static NP_DEVICE double finished(const reduction &r, int64_t o, double a)
    {
        const double rest = (double)r.n - r.k;
        switch (r.finish) {
        case MEAN: return a / (double)r.n;
        case VARIANCE: return a / (rest > 0 ? rest : 0);
        case DEVIATION: return sqrt(a / (rest > 0 ? rest : 0));
        case NORM:
            return r.k == 2 ? sqrt(a) : r.k == 0 || r.k == 1 || fabs(r.k) == INFINITY ? a : pow(a, 1 / r.k);
        case LOG: return fabs(r.ks[o]) == INFINITY ? r.ks[o] : r.ks[o] + log(a);
        default: return a;
        }
    }
    static NP_DEVICE void store(const reduction &r, int64_t o, acc a)
    {
        const double v = finished(r, o, a);
        store_any(r.y, r.y_dtype, o, v);
        if (r.also) store_any(r.also, r.also_dtype, o, v);
    }
};

struct whole { /* integers and truth: one int64 */
    typedef int64_t acc;
    typedef int64_t wide;
    static NP_DEVICE acc start(const reduction &r) { return r.fold == PROD || r.fold == ALL; }
    static NP_DEVICE acc merge(const reduction &r, acc a, acc b)
    {
        switch (r.fold) {
        case PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
        case ANY: return a | b;
        case ALL: return a & b;
        default: return (int64_t)((uint64_t)a + (uint64_t)b);
        }
    }
    static NP_DEVICE acc fold(const reduction &r, acc a, int64_t x, double, int64_t)
    {
        return merge(r, a, x);
    }
    static NP_DEVICE void store(const reduction &r, int64_t o, acc a)
    {
        if (r.finish == MEAN) store_any(r.y, r.y_dtype, o, (double)a / (double)r.n);
        else store_any(r.y, r.y_dtype, o, a);
    }
};

/* The largest (sign 1) or the smallest, and where: the first of equal ones, the first NaN before all. */
template <class W> struct extreme {
    struct acc {
        W v;
        int64_t at; /* -1: none yet */
    };
    typedef W wide;
    static NP_DEVICE acc start(const reduction &) { return {(W)0, -1}; }
    static NP_DEVICE acc merge(const reduction &r, acc a, acc b)
    {
        if (b.at < 0) return a;
        if (a.at < 0) return b;
        const bool first = b.at < a.at, a_nan = a.v != a.v, b_nan = b.v != b.v;
        if (a_nan || b_nan) return b_nan && (!a_nan || first) ? b : a;
        if (a.v == b.v) return first ? b : a;
        return (r.sign > 0 ? b.v > a.v : b.v < a.v) ? b : a;
    }
    static NP_DEVICE acc fold(const reduction &r, acc a, W x, double, int64_t at)
    {
        return merge(r, a, acc{x, at});
    }
    static NP_DEVICE void store(const reduction &r, int64_t o, acc a)
    {
        if (r.y && a.at < 0) store_any(r.y, r.y_dtype, o, -(double)INFINITY);
        else if (r.y) store_any(r.y, r.y_dtype, o, a.v);
        if (r.place) static_cast<int64_t *>(r.place)[o] = a.at + r.base;
    }
};

/* ---- kernels. G threads (1, 32 or a block of THREADS) fold one part; lanes in a fixed order. */

enum { THREADS = 256 };

template <class P, int G> NP_DEVICE typename P::acc gather(const reduction &r, typename P::acc a)
{
    auto merge = [&r](typename P::acc p, typename P::acc q) { return P::merge(r, p, q); };
    if (G == 32)
        for (unsigned step = 1; step < 32; step *= 2) a = merge(a, np_shuffle_down(a, step));
    if (G == THREADS) a = np_block_merge(a, merge);
    return a;
}

template <class P, class T> NP_DEVICE typename P::wide element(const reduction &r, int64_t i)
{
    if (!std::is_void<T>::value)
        return (typename P::wide) static_cast<
            const typename std::conditional<std::is_void<T>::value, float, T>::type *>(r.x)[i];
    if (std::is_same<P, whole>::value && (r.fold == ANY || r.fold == ALL || r.fold == NONZERO))
        return (typename P::wide)(is_integer(r.dtype) ? load_any<int64_t>(r.x, r.dtype, i) != 0
                                                      : load_any<double>(r.x, r.dtype, i) != 0);
    return load_any<typename P::wide>(r.x, r.dtype, i);
}

template <class P, class T, int G> __global__ void fold_parts(reduction r)
{
    const int lane = G == 1 ? 0 : (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G), units = r.m * r.parts;
    for (int64_t u = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; u < units; u += step) {
        const int64_t o = u % r.m, part = u / r.m, lo = part * r.part_n;
        const int64_t hi = lo + r.part_n < r.n ? lo + r.part_n : r.n;
        const double k = r.ks ? r.ks[o] : 0;
        int64_t first[1], at[1];
        r.kept.at(o, first);
        typename P::acc a = P::start(r);
        if (r.reduced.ndim <= 1) {
            const int64_t stride = r.reduced.ndim ? r.reduced.stride[0][0] : 0;
            for (int64_t i = lo + lane; i < hi; i += G)
                a = P::fold(r, a, element<P, T>(r, first[0] + i * stride), k, i);
        } else {
            for (int64_t i = lo + lane; i < hi; i += G) {
                r.reduced.at(i, at);
                a = P::fold(r, a, element<P, T>(r, first[0] + at[0]), k, i);
            }
        }
        a = gather<P, G>(r, a);
        if (lane > 0) continue;
        if (r.parts == 1) P::store(r, o, a);
        else static_cast<typename P::acc *>(r.partial)[o * r.parts + part] = a;
    }
}

/* The parts of each result. */
template <class P> __global__ void merge_parts(reduction r)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t o = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; o < r.m; o += step) {
        typename P::acc a = P::start(r);
        for (int64_t i = lane; i < r.parts; i += 32)
            a = P::merge(r, a, static_cast<const typename P::acc *>(r.partial)[o * r.parts + i]);
        a = gather<P, 32>(r, a);
        if (lane == 0) P::store(r, o, a);
    }
}

/* ---- launches */

static unsigned blocks_for(int64_t units, int group)
{
    return np_blocks(units > (1 << 24) ? 1 << 30 : units * group);
}

template <class P, class T> static bool run_typed(const np_call *c, reduction &r, int group)
{
    np_gpu *gpu = np_gpu_of(c);
    const unsigned blocks = blocks_for(r.m * r.parts, group);
    auto launch = [&](void (*kernel)(reduction)) {
        return NP_TRY(gpu, np_launch(kernel, blocks, THREADS, 0, gpu->stream, r));
    };
    return group == 1    ? launch(fold_parts<P, T, 1>)
           : group == 32 ? launch(fold_parts<P, T, 32>)
                         : launch(fold_parts<P, T, THREADS>);
}

/* 0, or -1 and the core has been told. */
template <class P> static int run(const np_call *c, reduction r)
{
    const int64_t threads =
        1 << 17; /* enough for the largest GPUs; a part has at least 16 elements a thread */
    np_gpu *gpu = np_gpu_of(c);
    bool ok;
    if (r.m == 0) return 0;
    const int64_t inner = r.reduced.ndim ? std::abs(r.reduced.stride[0][0]) : 1;
    const bool columns = r.kept.ndim && std::abs(r.kept.stride[0][0]) < inner;
    const int group = columns || r.n < 32 ? 1 : r.n <= 2048 ? 32 : THREADS;
    r.parts = threads / (r.m * group > threads ? threads : r.m * group);
    if (r.parts > r.n / (16 * group)) r.parts = r.n / (16 * group);
    if (r.parts > 512) r.parts = 512;
    if (r.parts < 1) r.parts = 1;
    r.part_n = (r.n + r.parts - 1) / r.parts;
    if (r.parts > 1) {
        r.partial = c->host->scratch(c, (size_t)(r.m * r.parts) * sizeof(typename P::acc));
        if (!r.partial) return -1;
    }
    if (r.dtype == NEAP_FLOAT32 && !std::is_same<typename P::wide, int64_t>::value)
        ok = run_typed<P, float>(c, r, group);
    else ok = run_typed<P, void>(c, r, group);
    if (ok && r.parts > 1)
        ok = NP_TRY(gpu, np_launch(merge_parts<P>, blocks_for(r.m, 32), THREADS, 0, gpu->stream, r));
    return np_done(c, ok);
}

/* ---- ops */

static uint32_t dims_mask(const np_attr *a, int ndim) /* dims?: absent or empty is all */
{
    uint32_t mask = 0;
    if (!a->has || a->n == 0) return (1u << ndim) - 1;
    for (int i = 0; i < a->n; i++)
        if (ndim > 0) mask |= 1u << (a->v[i] < 0 ? a->v[i] + ndim : a->v[i]);
    return mask;
}
static uint32_t dim_mask(const np_attr *a, int ndim) /* dim?: absent is all */
{
    if (!a->has || ndim == 0) return (1u << ndim) - 1;
    return 1u << (a->i < 0 ? a->i + ndim : a->i);
}

static bool has_integers(const np_operand *x)
{
    return np_with_dtype(x->dtype, [](auto t) {
        typedef typename decltype(t)::type T;
        return std::is_integral<T>::value || std::is_same<T, np_truth>::value;
    });
}

static reduction begin(const np_call *c, uint32_t mask, int fold, int finish)
{
    const np_operand *x = &c->in[0];
    np_operand part[2] = {};
    for (int d = 0; d < x->ndim; d++) {
        np_operand *p = &part[mask >> d & 1];
        p->shape[p->ndim] = x->shape[d];
        p->stride[p->ndim++] = x->stride[d];
    }
    reduction r = {};
    r.kept = np_walk_over(part[0].ndim, part[0].shape, {&part[0]});
    r.reduced = np_walk_over(part[1].ndim, part[1].shape, {&part[1]});
    r.x = x->data;
    r.dtype = x->dtype;
    r.fold = fold;
    r.finish = finish;
    r.m = r.kept.n;
    r.n = r.reduced.n;
    r.y = c->out[0].data;
    r.y_dtype = c->out[0].dtype;
    return r;
}

static int sum_like(const np_call *c, uint32_t mask, int fold, int finish)
{
    reduction r = begin(c, mask, fold, finish);
    return has_integers(&c->in[0]) ? run<whole>(c, r) : run<real>(c, r);
}
static int run_sum(const np_call *c)
{
    return sum_like(c, dims_mask(&c->attr[0], c->in[0].ndim), SUM, PLAIN);
}
static int run_mean(const np_call *c)
{
    return sum_like(c, dims_mask(&c->attr[0], c->in[0].ndim), SUM, MEAN);
}
static int run_prod(const np_call *c)
{
    return sum_like(c, dim_mask(&c->attr[0], c->in[0].ndim), PROD, PLAIN);
}

static int truth(const np_call *c, int fold)
{
    return run<whole>(c, begin(c, dims_mask(&c->attr[0], c->in[0].ndim), fold, PLAIN));
}
static int run_any(const np_call *c) { return truth(c, ANY); }
static int run_all(const np_call *c) { return truth(c, ALL); }
static int run_count_nonzero(const np_call *c) { return truth(c, NONZERO); }

static int extreme_of(const np_call *c, reduction &r, int sign)
{
    r.sign = sign;
    return has_integers(&c->in[0]) ? run<extreme<int64_t>>(c, r) : run<extreme<double>>(c, r);
}
static int with_place(const np_call *c, int sign)
{
    reduction r = begin(c, dim_mask(&c->attr[0], c->in[0].ndim), SUM, PLAIN);
    r.place = c->n_out > 1 ? c->out[1].data : nullptr;
    r.base = c->attr[2].i;
    return extreme_of(c, r, sign);
}
static int place_alone(const np_call *c, int sign)
{
    reduction r = begin(c, dim_mask(&c->attr[0], c->in[0].ndim), SUM, PLAIN);
    r.place = r.y;
    r.y = nullptr;
    r.base = c->attr[2].i;
    return extreme_of(c, r, sign);
}
static int value_alone(const np_call *c, int sign)
{
    reduction r = begin(c, dims_mask(&c->attr[0], c->in[0].ndim), SUM, PLAIN);
    return extreme_of(c, r, sign);
}
static int run_max(const np_call *c) { return with_place(c, 1); }
static int run_min(const np_call *c) { return with_place(c, -1); }
static int run_argmax(const np_call *c) { return place_alone(c, 1); }
static int run_argmin(const np_call *c) { return place_alone(c, -1); }
static int run_amax(const np_call *c) { return value_alone(c, 1); }
static int run_amin(const np_call *c) { return value_alone(c, -1); }

/* Two passes: a center of each result in scratch first, then what is folded about it. */
static bool centers(const np_call *c, reduction *first, reduction *second)
{
    double *k =
        static_cast<double *>(c->host->scratch(c, (size_t)(first->m ? first->m : 1) * sizeof(double)));
    first->y = k;
    first->y_dtype = NEAP_FLOAT64;
    second->ks = k;
    return k != nullptr;
}
static int moment(const np_call *c, int finish)
{
    const uint32_t mask = dims_mask(&c->attr[0], c->in[0].ndim);
    reduction first = begin(c, mask, SUM, MEAN), second = begin(c, mask, SQUARES, finish);
    if (!centers(c, &first, &second)) return -1;
    if (c->n_out > 1) {
        first.also = c->out[1].data;
        first.also_dtype = c->out[1].dtype;
    }
    second.k = c->attr[2].f;
    return run<real>(c, first) || run<real>(c, second) ? -1 : 0;
}
static int run_var(const np_call *c) { return moment(c, VARIANCE); }
static int run_std(const np_call *c) { return moment(c, DEVIATION); }

static int run_logsumexp(const np_call *c)
{
    const np_attr *a = &c->attr[0];
    const uint32_t mask = a->has && a->n == 0 ? 0 : dims_mask(a, c->in[0].ndim);
    reduction first = begin(c, mask, SUM, PLAIN), second = begin(c, mask, EXP, LOG);
    if (!centers(c, &first, &second)) return -1;
    first.sign = 1;
    return run<extreme<double>>(c, first) || run<real>(c, second) ? -1 : 0;
}

static int run_norm(const np_call *c)
{
    const double p = c->attr[2].f;
    const int fold = p == 2           ? SQUARE
                     : p == 1         ? ABS
                     : p == 0         ? NONZERO
                     : p == INFINITY  ? MOST
                     : p == -INFINITY ? LEAST
                                      : POWER;
    reduction r = begin(c, dims_mask(&c->attr[0], c->in[0].ndim), fold, NORM);
    r.k = p;
    return run<real>(c, r);
}

} // namespace

const np_plugin_row np_rows_reduce[] = {{"sum", run_sum},
                                        {"mean", run_mean},
                                        {"prod", run_prod},
                                        {"any", run_any},
                                        {"all", run_all},
                                        {"count_nonzero", run_count_nonzero},
                                        {"max", run_max},
                                        {"min", run_min},
                                        {"argmax", run_argmax},
                                        {"argmin", run_argmin},
                                        {"amax", run_amax},
                                        {"amin", run_amin},
                                        {"var", run_var},
                                        {"std", run_std},
                                        {"var_mean", run_var},
                                        {"norm", run_norm},
                                        {"logsumexp", run_logsumexp},
                                        {nullptr, nullptr}};
