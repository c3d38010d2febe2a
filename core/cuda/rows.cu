/* rows.cu - softmax and log_softmax, layer_norm and rms_norm, cross_entropy and nll_loss, and their gradients.
 *
 * A row is a block's or, when it is short, a warp's, whose threads go over it as often as the formula needs sums of it.
 * Sums are in float32, of float64 in float64, as on the CPU (ops/softmax.c, ops/norm.c, ops/loss.c), in a fixed order. */
#include <cmath>

#include "block.h"
#include "convert.h"
#include "walk.h"

namespace
{

enum { THREADS = 256, LONG = 1024 }; /* rows above LONG elements have a block */

template <class T> struct wide {
    typedef typename np_wide<T>::type type;
};

/* ---- sums over the G threads (32 or THREADS) of a row, known to all of them */

template <int G, class W, class F> NP_DEVICE W over_row(W v, F merge)
{
    for (int d = 1; d < 32; d *= 2) v = merge(v, __shfl_xor_sync(0xffffffffu, v, d));
    if (G == 32) return v;
    NP_SHARED(W, part, [THREADS / 32]);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < THREADS / 32; w++) v = merge(v, part[w]);
    __syncthreads(); /* part may be written again */
    return v;
}
template <int G, class W> NP_DEVICE W row_sum(W v)
{
    return over_row<G>(v, [](W a, W b) { return a + b; });
}
template <int G, class W> NP_DEVICE W row_max(W v) /* NaN, where there is one, comes back in the sum */
{
    return over_row<G>(v, [](W a, W b) { return a > b ? a : b; });
}

NP_DEVICE float e_to(float x) { return expf(x); }
NP_DEVICE double e_to(double x) { return exp(x); }
NP_DEVICE float root(float x) { return sqrtf(x); }
NP_DEVICE double root(double x) { return sqrt(x); }
NP_DEVICE float ln(float x) { return logf(x); }
NP_DEVICE double ln(double x) { return log(x); }

template <class T> NP_DEVICE typename wide<T>::type get(const void *p, int64_t i)
{
    return np_widen(static_cast<const T *>(p)[i]);
}
template <class T, class W> NP_DEVICE void put(void *p, int64_t i, W v)
{
    np_narrow(static_cast<T *>(p) + i, v);
}

/* ---- the softmax family: y from x, or from g and y. Row by row, over any dim. */

enum softmax_kind { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD };

struct along {
    const void *x, *z; /* x, or g and y */
    void *y;
    np_walk<3> rows;       /* x, z, y: all dims but the one */
    int64_t D, xs, zs, ys; /* its size and strides */
    int kind;
};

template <class T, int G> __global__ void __launch_bounds__(THREADS) softmax_rows(along j)
{
    typedef typename wide<T>::type W;
    const int lane = (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; r < j.rows.n; r += step) {
        int64_t at[3];
        j.rows.at(r, at);
        if (j.kind == SOFTMAX || j.kind == LOG_SOFTMAX) {
            W most = -(W)INFINITY, sum = 0;
            for (int64_t i = lane; i < j.D; i += G) {
                const W x = get<T>(j.x, at[0] + i * j.xs);
                most = x > most ? x : most;
            }
            most = row_max<G>(most);
            for (int64_t i = lane; i < j.D; i += G) sum += e_to(get<T>(j.x, at[0] + i * j.xs) - most);
            sum = row_sum<G>(sum);
            const W scale = j.kind == SOFTMAX ? (W)1 / sum : ln(sum);
            for (int64_t i = lane; i < j.D; i += G) {
                const W x = get<T>(j.x, at[0] + i * j.xs) - most;
                put<T>(j.y, at[2] + i * j.ys, j.kind == SOFTMAX ? e_to(x) * scale : x - scale);
            }
        } else {
            const bool plain = j.kind == SOFTMAX_BACKWARD;
            W sum = 0;
            for (int64_t i = lane; i < j.D; i += G) {
                const W g = get<T>(j.x, at[0] + i * j.xs);
                sum += plain ? g * get<T>(j.z, at[1] + i * j.zs) : g;
            }
            sum = row_sum<G>(sum);
            for (int64_t i = lane; i < j.D; i += G) {
                const W g = get<T>(j.x, at[0] + i * j.xs), y = get<T>(j.z, at[1] + i * j.zs);
                put<T>(j.y, at[2] + i * j.ys, plain ? y * (g - sum) : g - e_to(y) * sum);
            }
        }
    }
}

static unsigned blocks_for(int64_t rows, int group)
{
    return np_blocks(rows > (1 << 24) ? 1 << 30 : rows * group);
}

/* Calls fn with the type of a float dtype. */
template <class F> static auto with_float(int dtype, F fn)
{
    switch (dtype) {
    case NEAP_FLOAT64: return fn(np_is<double>());
    case NEAP_FLOAT16: return fn(np_is<np_f16>());
    case NEAP_BFLOAT16: return fn(np_is<np_b16>());
    default: return fn(np_is<float>());
    }
}

/* The elements of *o, contiguous and in this dtype, in scratch. False: the core has been told. */
static bool copied(const np_call *c, np_operand *o, int dtype, size_t size)
{
    np_operand to = *o;
    int64_t step = 1;
    to.dtype = (uint8_t)dtype;
    to.contiguous = true;
    for (int d = to.ndim - 1; d >= 0; d--) {
        to.stride[d] = step;
        step *= to.shape[d];
    }
    to.data = c->host->scratch(c, (size_t)o->numel * size);
    if (!to.data) return false;
    const bool ok = np_move(c->device, &to, o);
    *o = to;
    return np_done(c, ok) == 0;
}

static int softmax_like(const np_call *c, int kind)
{
    np_operand x = c->in[0], z = kind >= SOFTMAX_BACKWARD ? c->in[1] : c->in[0], y = c->out[0];
    np_gpu *gpu = np_gpu_of(c);
    if (y.numel == 0) return 0;
    return with_float(y.dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        if (x.dtype != y.dtype && !copied(c, &x, y.dtype, sizeof(T))) return -1;
        if (z.dtype != y.dtype && !copied(c, &z, y.dtype, sizeof(T))) return -1;
        const int dim = y.ndim ? (int)(c->attr[0].i < 0 ? c->attr[0].i + y.ndim : c->attr[0].i) : 0;
        along j = {};
        j.kind = kind;
        j.D = y.ndim ? y.shape[dim] : 1;
        if (y.ndim) {
            j.xs = x.stride[dim];
            j.zs = z.stride[dim];
            j.ys = y.stride[dim];
        }
        j.x = x.data;
        j.z = z.data;
        j.y = y.data;
        int64_t rest[NEAP_MAX_DIMS] = {};
        for (int d = 0; d < y.ndim; d++) rest[d] = d == dim ? 1 : y.shape[d];
        j.rows = np_walk_over(y.ndim, rest, {&x, &z, &y});
        const int group = j.D > LONG ? (int)THREADS : 32;
        return np_done(c, NP_TRY(gpu, np_launch(group == 32 ? softmax_rows<T, 32> : softmax_rows<T, THREADS>,
                                                blocks_for(j.rows.n, group), THREADS, 0, gpu->stream, j)));
    });
}
static int run_softmax(const np_call *c) { return softmax_like(c, SOFTMAX); }
static int run_log_softmax(const np_call *c) { return softmax_like(c, LOG_SOFTMAX); }
static int run_softmax_backward(const np_call *c) { return softmax_like(c, SOFTMAX_BACKWARD); }
static int run_log_softmax_backward(const np_call *c) { return softmax_like(c, LOG_SOFTMAX_BACKWARD); }

/* ---- layer_norm and rms_norm: contiguous rows (N,D) */

struct norm_job {
    const void *x /* (N,D) */, *g /* (N,D) */, *w /* (D) or NULL */, *b /* (D) or NULL */;
    void *y /* (N,D) */;
    void *mean /* (N) wide, NULL: rms */, *rstd /* (N) wide */;
    void *dw /* (D) */, *db /* (D) or NULL */;
    void *partial; /* (parts,D), behind it those of db: wide */
    int64_t N, D, parts, part_n;
    double eps;
};

template <class T, int G> __global__ void __launch_bounds__(THREADS) norm_forward(norm_job j)
{
    typedef typename wide<T>::type W;
    const int lane = (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; r < j.N; r += step) {
        W sum = 0, squares = 0;
        if (j.mean) {
            for (int64_t i = lane; i < j.D; i += G) sum += get<T>(j.x, r * j.D + i);
            sum = row_sum<G>(sum);
        }
        const W m = sum / (W)j.D;
        for (int64_t i = lane; i < j.D; i += G) {
            const W x = get<T>(j.x, r * j.D + i) - m;
            squares += x * x;
        }
        squares = row_sum<G>(squares);
        const W s = (W)1 / root(squares / (W)j.D + (W)j.eps);
        if (lane == 0) {
            if (j.mean) static_cast<W *>(j.mean)[r] = m;
            static_cast<W *>(j.rstd)[r] = s;
        }
        for (int64_t i = lane; i < j.D; i += G) {
            W y = (get<T>(j.x, r * j.D + i) - m) * s;
            if (j.w) y *= get<T>(j.w, i);
            if (j.b) y += get<T>(j.b, i);
            put<T>(j.y, r * j.D + i, y);
        }
    }
}

/* dx = s (gw - mean(gw) - h mean(gw h)), h = (x - m) s, gw = g w; rms: without the mean */
template <class T, int G> __global__ void __launch_bounds__(THREADS) norm_backward(norm_job j)
{
    typedef typename wide<T>::type W;
    const int lane = (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; r < j.N; r += step) {
        const W m = j.mean ? static_cast<const W *>(j.mean)[r] : (W)0, s = static_cast<const W *>(j.rstd)[r];
        W a = 0, c = 0;
        for (int64_t i = lane; i < j.D; i += G) {
            const W d = get<T>(j.g, r * j.D + i) * (j.w ? get<T>(j.w, i) : (W)1);
            a += d;
            c += d * ((get<T>(j.x, r * j.D + i) - m) * s);
        }
        a = row_sum<G>(a) / (W)j.D;
        c = row_sum<G>(c) / (W)j.D;
        if (!j.mean) a = 0;
        for (int64_t i = lane; i < j.D; i += G) {
            const W d = get<T>(j.g, r * j.D + i) * (j.w ? get<T>(j.w, i) : (W)1);
            put<T>(j.y, r * j.D + i, s * (d - a - (get<T>(j.x, r * j.D + i) - m) * s * c));
        }
    }
}

/* Partial rows of dw = sum g h and db = sum g: a thread has a column of one part. */
template <class T> __global__ void norm_columns(norm_job j)
{
    typedef typename wide<T>::type W;
    NP_EACH(u, j.parts * j.D)
    {
        const int64_t i = u % j.D, part = u / j.D, lo = part * j.part_n;
        const int64_t hi = lo + j.part_n < j.N ? lo + j.part_n : j.N;
        W dw = 0, db = 0;
        for (int64_t r = lo; r < hi; r++) {
            const W m = j.mean ? static_cast<const W *>(j.mean)[r] : (W)0,
                    s = static_cast<const W *>(j.rstd)[r];
            const W g = get<T>(j.g, r * j.D + i);
            dw += g * ((get<T>(j.x, r * j.D + i) - m) * s);
            db += g;
        }
        static_cast<W *>(j.partial)[u] = dw;
        if (j.db) static_cast<W *>(j.partial)[j.parts * j.D + u] = db;
    }
}
template <class T> __global__ void norm_params(norm_job j)
{
    typedef typename wide<T>::type W;
    NP_EACH(i, j.D)
    {
        const W *dw = static_cast<const W *>(j.partial) + i, *db = dw + j.parts * j.D;
        W sw = 0, sb = 0;
        for (int64_t p = 0; p < j.parts; p++) {
            sw += dw[p * j.D];
            if (j.db) sb += db[p * j.D];
        }
        put<T>(j.dw, i, sw);
        if (j.db) put<T>(j.db, i, sb);
    }
}

/* Where the elements of an operand are, one after the other. */
static bool dense(const np_call *c, np_operand o, const void **p, size_t size)
{
    if (o.present && !o.contiguous && o.numel > 0 && !copied(c, &o, o.dtype, size)) return false;
    *p = o.data;
    return true;
}

enum norm_kind { FORWARD, BACKWARD, PARAMS };

/* Operands by their places in the op, -1: it has none. */
struct places {
    int g, x, w, b, mean, rstd;
};

template <class T> static int run_norm(const np_call *c, norm_kind kind, places at)
{
    typedef typename wide<T>::type W;
    np_gpu *gpu = np_gpu_of(c);
    norm_job j = {};
    const void *mean = nullptr, *rstd = nullptr;
    auto take = [&](int i, const void **p, size_t size) {
        return i < 0 || i >= c->n_in || dense(c, c->in[i], p, size);
    };
    if (!take(at.g, &j.g, sizeof(T)) || !take(at.x, &j.x, sizeof(T)) || !take(at.w, &j.w, sizeof(T)) ||
        !take(at.b, &j.b, sizeof(T)))
        return -1;
    if (kind != FORWARD && (!take(at.mean, &mean, sizeof(W)) || !take(at.rstd, &rstd, sizeof(W)))) return -1;
    const np_operand *x = &c->in[at.x];
    j.D = 1;
    for (int d = x->ndim - (int)c->attr[0].i; d < x->ndim; d++) j.D *= x->shape[d];
    j.N = j.D ? x->numel / j.D : 0;
    j.y = j.dw = c->out[0].data;
    j.mean = const_cast<void *>(mean);
    j.rstd = const_cast<void *>(rstd);
    const int group = j.D > LONG ? (int)THREADS : 32;
    const unsigned blocks = blocks_for(j.N, group);
    if (kind == FORWARD) {
        j.eps = c->attr[1].f;
        j.mean = at.mean < 0 ? nullptr : c->out[at.mean].data;
        j.rstd = c->out[at.rstd].data;
        if (x->numel == 0) return 0;
        return np_done(c, NP_TRY(gpu, np_launch(group == 32 ? norm_forward<T, 32> : norm_forward<T, THREADS>,
                                                blocks, THREADS, 0, gpu->stream, j)));
    }
    if (kind == BACKWARD) {
        if (x->numel == 0) return 0;
        return np_done(c,
                       NP_TRY(gpu, np_launch(group == 32 ? norm_backward<T, 32> : norm_backward<T, THREADS>,
                                             blocks, THREADS, 0, gpu->stream, j)));
    }
    if (j.D == 0) return 0;
    j.db = c->n_out > 1 ? c->out[1].data : nullptr;
    j.part_n = j.N > 64 * 16 ? (j.N + 63) / 64 : 16; /* rows of a part */
    j.parts = (j.N + j.part_n - 1) / j.part_n;
    const size_t cells = (size_t)((j.parts ? j.parts : 1) * j.D);
    j.partial = c->host->scratch(c, cells * sizeof(W) * 2);
    if (!j.partial) return -1;
    bool ok = j.parts == 0 ||
              NP_TRY(gpu, np_launch(norm_columns<T>, np_blocks(j.parts * j.D), NP_BLOCK, 0, gpu->stream, j));
    ok = ok && NP_TRY(gpu, np_launch(norm_params<T>, np_blocks(j.D), NP_BLOCK, 0, gpu->stream, j));
    return np_done(c, ok);
}
static int norm_op(const np_call *c, norm_kind kind, places at)
{
    return with_float(c->in[at.x].dtype,
                      [&](auto t) { return run_norm<typename decltype(t)::type>(c, kind, at); });
}
static int run_layer_norm(const np_call *c) { return norm_op(c, FORWARD, {-1, 0, 1, 2, 1, 2}); }
static int run_layer_backward(const np_call *c) { return norm_op(c, BACKWARD, {0, 1, 2, -1, 3, 4}); }
static int run_layer_params(const np_call *c) { return norm_op(c, PARAMS, {0, 1, -1, -1, 2, 3}); }
static int run_rms_norm(const np_call *c) { return norm_op(c, FORWARD, {-1, 0, 1, -1, -1, 1}); }
static int run_rms_backward(const np_call *c) { return norm_op(c, BACKWARD, {0, 1, 2, -1, -1, 3}); }
static int run_rms_params(const np_call *c) { return norm_op(c, PARAMS, {0, 1, -1, -1, -1, 2}); }

/* ---- cross_entropy and nll_loss: a row is one label's scores */

struct loss {
    const void *x;         /* scores; NULL: nll_loss_backward has none */
    const int64_t *target; /* (N) */
    const void *g;         /* (1) or (N) */
    void *y, *lse;         /* losses (N) or their gradient; (N) wide, NULL: nll */
    np_walk<2> rows;       /* x, y: where a row's class 0 is */
    int64_t N, C, xs, ys;  /* strides of classes */
    int64_t base, ignore;
    int64_t *found; /* labels that are no class, rows that count */
    int reduction;
    bool ignores;
};

NP_DEVICE bool counts(const loss &j, int64_t r) { return !j.ignores || j.target[r] != j.ignore; }
/* The class of a row, -1: none. */
NP_DEVICE int64_t class_of(const loss &j, int64_t r)
{
    const int64_t t = j.target[r];
    return !counts(j, r) || t < j.base || t - j.base >= j.C ? -1 : t - j.base;
}

/* One block. */
__global__ void check_labels(loss j)
{
    int64_t bad = 0, counted = 0;
    for (int64_t r = threadIdx.x; r < j.N; r += THREADS) {
        counted += counts(j, r);
        bad += counts(j, r) && class_of(j, r) < 0;
    }
    auto add = [](int64_t a, int64_t b) { return a + b; };
    bad = np_block_merge(bad, add);
    counted = np_block_merge(counted, add);
    if (threadIdx.x > 0) return;
    j.found[0] = bad;
    j.found[1] = counted;
}

/* W losses, one a row. */
template <class T, int G> __global__ void __launch_bounds__(THREADS) loss_rows(loss j)
{
    typedef typename wide<T>::type W;
    const int lane = (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; r < j.N; r += step) {
        int64_t at[2];
        j.rows.at(r, at);
        const int64_t chosen = class_of(j, r);
        W l = 0;
        if (j.lse) {
            W most = -(W)INFINITY, sum = 0;
            for (int64_t i = lane; i < j.C; i += G) {
                const W x = get<T>(j.x, at[0] + i * j.xs);
                most = x > most ? x : most;
            }
            most = row_max<G>(most);
            for (int64_t i = lane; i < j.C; i += G) sum += e_to(get<T>(j.x, at[0] + i * j.xs) - most);
            sum = row_sum<G>(sum);
            l = most == (W)INFINITY || most == -(W)INFINITY ? most : most + ln(sum);
        }
        if (lane > 0) continue;
        if (j.lse) static_cast<W *>(j.lse)[r] = l;
        static_cast<W *>(j.y)[r] = chosen < 0 ? (W)0 : l - get<T>(j.x, at[0] + chosen * j.xs);
    }
}

/* One block: the sum or mean of W losses. */
template <class T> __global__ void loss_total(loss j, void *out)
{
    typedef typename wide<T>::type W;
    double sum = 0;
    for (int64_t r = threadIdx.x; r < j.N; r += THREADS) sum += (double)static_cast<const W *>(j.y)[r];
    sum = np_block_merge(sum, [](double a, double b) { return a + b; });
    if (threadIdx.x > 0) return;
    if (j.reduction == 1) sum = j.found[1] ? sum / (double)j.found[1] : 0;
    *static_cast<T *>(out) = np_store<T>::from(sum);
}

/* dx = (e^(x - lse) - onehot) g, or -onehot g */
template <class T, int G> __global__ void __launch_bounds__(THREADS) loss_slopes(loss j)
{
    typedef typename wide<T>::type W;
    const int lane = (int)(threadIdx.x % G);
    const int64_t step = (int64_t)gridDim.x * (THREADS / G);
    const W scale = j.reduction != 1 ? (W)1 : j.found[1] ? (W)(1 / (double)j.found[1]) : (W)0;
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G; r < j.N; r += step) {
        int64_t at[2];
        j.rows.at(r, at);
        const int64_t chosen = class_of(j, r);
        const W s = chosen < 0 ? (W)0 : get<T>(j.g, j.reduction == 0 ? r : 0) * scale;
        for (int64_t i = lane; i < j.C; i += G) {
            W d = 0;
            if (j.lse && s != 0)
                d = e_to(get<T>(j.x, at[0] + i * j.xs) - static_cast<const W *>(j.lse)[r]) * s;
            put<T>(j.y, at[1] + i * j.ys, i == chosen ? d - s : d);
        }
    }
}

/* Labels, contiguous int64, and what a glance at them finds, on the device. */
static bool begin_loss(const np_call *c, loss *j, np_operand target, const np_attr *a)
{
    np_gpu *gpu = np_gpu_of(c);
    if ((target.dtype != NEAP_INT64 || !target.contiguous) && target.numel > 0 &&
        !copied(c, &target, NEAP_INT64, sizeof(int64_t)))
        return false;
    j->target = static_cast<const int64_t *>(target.data);
    j->N = target.numel;
    j->ignores = a[0].has;
    j->ignore = a[0].i;
    j->reduction = (int)a[1].i;
    j->base = a[2].i;
    j->found = static_cast<int64_t *>(c->host->scratch(c, 2 * sizeof(int64_t)));
    return j->found && np_done(c, NP_TRY(gpu, np_launch(check_labels, 1, THREADS, 0, gpu->stream, *j))) == 0;
}
/* The scores' layout: rows over all dims but that of the classes. */
static void scores(loss *j, const np_operand *x, const np_operand *y)
{
    const int dim = x->ndim == 1 ? 0 : 1;
    int64_t rest[NEAP_MAX_DIMS] = {};
    for (int d = 0; d < x->ndim; d++) rest[d] = d == dim ? 1 : x->shape[d];
    j->C = x->shape[dim];
    j->xs = x->stride[dim];
    j->ys = y->stride[dim];
    j->rows = np_walk_over(x->ndim, rest, {x, y});
}

/* A label that is no class: the CPU's kernel finds it again and says which. */
static int loss_forward(const np_call *c, bool keeps_lse)
{
    np_gpu *gpu = np_gpu_of(c);
    const np_operand *x = &c->in[0];
    loss j = {};
    int64_t found[2] = {};
    scores(&j, x, x);
    if (!begin_loss(c, &j, c->in[1], c->attr)) return -1;
    if (!NP_TRY(gpu, cudaMemcpyAsync(found, j.found, sizeof found, cudaMemcpyDeviceToHost, gpu->stream)) ||
        !NP_TRY(gpu, cudaStreamSynchronize(gpu->stream)))
        return np_done(c, false);
    if (found[0] > 0) return 1;
    return with_float(x->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        typedef typename wide<T>::type W;
        const np_operand *out = c->out;
        j.x = x->data;
        j.lse = keeps_lse ? out[1].data : nullptr;
        j.y = c->host->scratch(c, (size_t)(j.N ? j.N : 1) * sizeof(W));
        if (!j.y) return -1;
        const int group = j.C > LONG ? (int)THREADS : 32;
        if (j.N && !NP_TRY(gpu, np_launch(group == 32 ? loss_rows<T, 32> : loss_rows<T, THREADS>,
                                          blocks_for(j.N, group), THREADS, 0, gpu->stream, j)))
            return np_done(c, false);
        if (j.reduction)
            return np_done(c,
                           NP_TRY(gpu, np_launch(loss_total<T>, 1, THREADS, 0, gpu->stream, j, out[0].data)));
        np_operand rows = out[0]; /* as contiguous as the rows are */
        rows.data = j.y;
        rows.dtype = sizeof(W) == 8 ? NEAP_FLOAT64 : NEAP_FLOAT32;
        return np_done(c, np_move(c->device, &out[0], &rows));
    });
}
static int run_cross_entropy(const np_call *c) { return loss_forward(c, true); }
static int run_nll(const np_call *c) { return loss_forward(c, false); }

static int loss_backward(const np_call *c, const np_operand *x, const np_operand *target,
                         const np_operand *lse, const np_attr *a)
{
    np_gpu *gpu = np_gpu_of(c);
    const np_operand *y = &c->out[0];
    loss j = {};
    if (y->numel == 0) return 0;
    scores(&j, x ? x : y, y);
    if (!begin_loss(c, &j, *target, a)) return -1;
    return with_float(y->dtype, [&](auto t) {
        typedef typename decltype(t)::type T;
        np_operand g = c->in[0];
        const void *sums = nullptr;
        if ((g.dtype != y->dtype || !g.contiguous) && !copied(c, &g, y->dtype, sizeof(T))) return -1;
        if (lse && !dense(c, *lse, &sums, sizeof(typename wide<T>::type))) return -1;
        j.x = x ? x->data : nullptr;
        j.g = g.data;
        j.lse = const_cast<void *>(sums);
        j.y = y->data;
        const int group = j.C > LONG ? (int)THREADS : 32;
        return np_done(c, NP_TRY(gpu, np_launch(group == 32 ? loss_slopes<T, 32> : loss_slopes<T, THREADS>,
                                                blocks_for(j.N, group), THREADS, 0, gpu->stream, j)));
    });
}
static int run_cross_entropy_backward(const np_call *c)
{
    return loss_backward(c, &c->in[1], &c->in[2], &c->in[3], c->attr);
}
static int run_nll_backward(const np_call *c)
{
    return loss_backward(c, nullptr, &c->in[1], nullptr, c->attr + 1);
}

} // namespace

const np_plugin_row np_rows_rows[] = {{"softmax", run_softmax},
                                      {"log_softmax", run_log_softmax},
                                      {"softmax_backward", run_softmax_backward},
                                      {"log_softmax_backward", run_log_softmax_backward},
                                      {"layer_norm", run_layer_norm},
                                      {"layer_norm_backward", run_layer_backward},
                                      {"layer_norm_params", run_layer_params},
                                      {"rms_norm", run_rms_norm},
                                      {"rms_norm_backward", run_rms_backward},
                                      {"rms_norm_params", run_rms_params},
                                      {"cross_entropy", run_cross_entropy},
                                      {"cross_entropy_backward", run_cross_entropy_backward},
                                      {"nll_loss", run_nll},
                                      {"nll_loss_backward", run_nll_backward},
                                      {nullptr, nullptr}};
