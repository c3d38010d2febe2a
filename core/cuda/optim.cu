/* optim.cu - optimizer steps, norms and clipping over lists of tensors: np_plugin.step.
 *
 * The rules are those of ops/optim.c, in the same order of operations. A launch takes a batch of entries by value; a
 * block has one chunk of NP_STEP_GRAIN elements of one of them. */
#include "block.h"
#include "convert.h"
#include "device.h"

namespace
{

enum { BATCH = 30, THREADS = 256 };

struct entry {
    void *a[NP_STEP_ARRAYS];
    int64_t numel;
    unsigned first; /* block of the launch */
    uint8_t t[NP_STEP_ARRAYS];
    bool same; /* all arrays are of the type that is computed in */
};

struct batch {
    entry e[BATCH];
    double *partial; /* of the first block */
    int n, n_arrays, writes, flags;
    double k[8];
};

/* Each rule: elements x of all arrays at one place, what of them is written changed. */
template <class W> struct adamw {
    W b1, a1, b2, a2, rate, rc2, eps, keep, wd;
    bool amsgrad;
    NP_DEVICE explicit adamw(const batch &b)
        : b1((W)b.k[0]), a1((W)(1 - b.k[0])), b2((W)b.k[1]), a2((W)(1 - b.k[1])), rate((W)b.k[2]),
          rc2((W)b.k[3]), eps((W)b.k[4]), keep((W)b.k[5]), wd((W)b.k[6]), amsgrad(b.flags & 1)
    {
    }
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const
    {
        const W p = x[0] * keep, d = x[1] + wd * x[0];
        x[2] = b1 * x[2] + a1 * d;
        x[3] = b2 * x[3] + a2 * d * d;
        if (amsgrad) x[4] = x[4] > x[3] ? x[4] : x[3];
        x[0] = p - rate * x[2] / (sqrt(amsgrad ? x[4] : x[3]) * rc2 + eps);
    }
};

template <class W> struct sgd {
    W lr, mu, damp, wd;
    bool nesterov, first, momentum;
    NP_DEVICE explicit sgd(const batch &b)
        : lr((W)b.k[0]), mu((W)b.k[1]), damp((W)(1 - b.k[2])), wd((W)b.k[3]), nesterov(b.flags & 1),
          first(b.flags & 2), momentum(b.flags & 4)
    {
    }
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const
    {
        const W d = x[1] + wd * x[0];
        if (!momentum) {
            x[0] -= lr * d;
            return;
        }
        x[2] = first ? d : mu * x[2] + damp * d;
        x[0] -= lr * (nesterov ? d + mu * x[2] : x[2]);
    }
};

template <class W> struct rmsprop {
    W lr, a, a1, eps, mu, wd;
    bool centered, momentum;
    NP_DEVICE explicit rmsprop(const batch &b)
        : lr((W)b.k[0]), a((W)b.k[1]), a1((W)(1 - b.k[1])), eps((W)b.k[2]), mu((W)b.k[3]), wd((W)b.k[4]),
          centered(b.flags & 1), momentum(b.flags & 4)
    {
    }
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const
    {
        const W d = x[1] + wd * x[0];
        W &mean = momentum ? x[4] : x[3]; /* the arrays that a step has lie next to each other */
        x[2] = a * x[2] + a1 * d * d;
        W var = x[2];
        if (centered) {
            mean = mean + a1 * (d - mean);
            var -= mean * mean;
        }
        W step = d / (sqrt(var) + eps);
        if (momentum) step = x[3] = mu * x[3] + step;
        x[0] -= lr * step;
    }
};

template <class W> struct adagrad {
    W lr, eps, wd;
    NP_DEVICE explicit adagrad(const batch &b) : lr((W)b.k[0]), eps((W)b.k[1]), wd((W)b.k[2]) {}
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const
    {
        const W d = x[1] + wd * x[0];
        x[2] += d * d;
        x[0] -= lr * d / (sqrt(x[2]) + eps);
    }
};

template <class W> struct scale {
    double s;
    NP_DEVICE explicit scale(const batch &b) : s(b.k[0]) {}
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const { x[0] = (W)((double)x[0] * s); }
};

template <class W> struct clamp {
    W most;
    NP_DEVICE explicit clamp(const batch &b) : most((W)b.k[0]) {}
    NP_DEVICE void operator()(W (&x)[NP_STEP_ARRAYS]) const
    {
        x[0] = x[0] > most ? most : x[0] < -most ? -most : x[0];
    }
};

/* Elements by the dtype that an array has. */
template <class W> NP_DEVICE W load(const entry &e, int k, int64_t i)
{
    if (e.same) return static_cast<const W *>(e.a[k])[i];
    switch (e.t[k]) {
    case NEAP_FLOAT64: return (W) static_cast<const double *>(e.a[k])[i];
    case NEAP_FLOAT16: return (W)np_widen(static_cast<const np_f16 *>(e.a[k])[i]);
    case NEAP_BFLOAT16: return (W)np_widen(static_cast<const np_b16 *>(e.a[k])[i]);
    default: return (W) static_cast<const float *>(e.a[k])[i];
    }
}
template <class W> NP_DEVICE void store(const entry &e, int k, int64_t i, W x)
{
    if (e.same) static_cast<W *>(e.a[k])[i] = x;
    else if (e.t[k] == NEAP_FLOAT64) static_cast<double *>(e.a[k])[i] = (double)x;
    else if (e.t[k] == NEAP_FLOAT16) static_cast<np_f16 *>(e.a[k])[i] = np_store<np_f16>::from(x);
    else if (e.t[k] == NEAP_BFLOAT16) static_cast<np_b16 *>(e.a[k])[i] = np_store<np_b16>::from(x);
    else static_cast<float *>(e.a[k])[i] = (float)x;
}

/* The block's entry, and its elements [begin, end). */
NP_DEVICE int my_entry(const batch &b, int64_t *begin, int64_t *end)
{
    int at = 0;
    while (at + 1 < b.n && b.e[at + 1].first <= blockIdx.x) at++;
    *begin = (int64_t)(blockIdx.x - b.e[at].first) * NP_STEP_GRAIN;
    *end = b.e[at].numel < *begin + NP_STEP_GRAIN ? b.e[at].numel : *begin + NP_STEP_GRAIN;
    return at;
}

template <class W, template <class> class Rule> __global__ void step(batch b)
{
    int64_t begin, end;
    const entry &e = b.e[my_entry(b, &begin, &end)];
    const Rule<W> rule(b);
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        W x[NP_STEP_ARRAYS] = {};
#pragma unroll
        for (int k = 0; k < NP_STEP_ARRAYS; k++)
            if (k < b.n_arrays) x[k] = load<W>(e, k, i);
        rule(x);
#pragma unroll
        for (int k = 0; k < NP_STEP_ARRAYS; k++)
            if (k < b.n_arrays && b.writes >> k & 1) store(e, k, i, x[k]);
    }
}

NP_DEVICE double larger(double a, double b) { return a >= b || a != a ? a : b; }

template <class W> __global__ void find(batch b, bool most)
{
    int64_t begin, end;
    const entry &e = b.e[my_entry(b, &begin, &end)];
    double found = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        const double x = (double)load<W>(e, 0, i);
        found = most ? larger(found, fabs(x)) : found + (x * b.k[0]) * (x * b.k[0]);
    }
    found = np_block_merge(found, [most](double p, double q) { return most ? larger(p, q) : p + q; });
    if (threadIdx.x == 0) b.partial[blockIdx.x] = found;
}

template <class W> static cudaError_t launch(np_gpu *gpu, np_step_kind kind, const batch &b, unsigned blocks)
{
    auto run = [&](void (*kernel)(batch)) { return np_launch(kernel, blocks, THREADS, 0, gpu->stream, b); };
    switch (kind) {
    case NP_STEP_ADAMW: return run(step<W, adamw>);
    case NP_STEP_SGD: return run(step<W, sgd>);
    case NP_STEP_RMSPROP: return run(step<W, rmsprop>);
    case NP_STEP_ADAGRAD: return run(step<W, adagrad>);
    case NP_STEP_SCALE: return run(step<W, scale>);
    case NP_STEP_CLAMP: return run(step<W, clamp>);
    default: return np_launch(find<W>, blocks, THREADS, 0, gpu->stream, b, kind == NP_STEP_MAX);
    }
}

} // namespace

/* Parameters in float64 are computed in it, all others in float32: a batch has one of both. */
bool np_step_run(void *device, const np_step *s)
{
    np_gpu *gpu = np_gpu_at(device);
    batch b = {};
    b.n_arrays = s->n_arrays;
    b.writes = s->writes;
    b.flags = s->flags;
    memcpy(b.k, s->k, sizeof b.k);
    for (int i = 0; i < s->n;) {
        const neap_dtype type = s->e[i].t[0] == NEAP_FLOAT64 ? NEAP_FLOAT64 : NEAP_FLOAT32;
        const int64_t first = s->e[i].first_chunk;
        int64_t blocks = 0;
        b.partial = s->partial ? s->partial + first : nullptr;
        for (b.n = 0; i < s->n && b.n < BATCH; b.n++, i++) {
            const np_step_entry *from = &s->e[i];
            if ((from->t[0] == NEAP_FLOAT64) != (type == NEAP_FLOAT64)) break;
            if (b.n > 0 && blocks + from->chunks > INT32_MAX) break;
            entry *to = &b.e[b.n];
            to->numel = from->numel;
            to->first = (unsigned)blocks;
            to->same = true;
            for (int k = 0; k < s->n_arrays; k++) {
                to->a[k] = from->a[k];
                to->t[k] = (uint8_t)from->t[k];
                to->same = to->same && from->t[k] == type;
            }
            blocks += from->chunks;
        }
        cudaError_t e = type == NEAP_FLOAT64 ? launch<double>(gpu, s->kind, b, (unsigned)blocks)
                                             : launch<float>(gpu, s->kind, b, (unsigned)blocks);
        if (!np_succeeds(gpu, e, "np_launch", __FILE__, __LINE__)) return false;
    }
    return true;
}
