/* random.cu - random fills and dropout: what random.c has, from the same words.
 *
 * Element i takes words of np_rng_bits(range, i) alone (base/rng.h), so the values are the CPU's: integers, uniforms,
 * bernoulli_ and what dropout keeps bit for bit, normals and exponentials up to a few ulp of log, sin and cos. What draws
 * by probabilities, and permutations, are in sampling.cu. */
#include "draws.h"
#include "pointwise.h"

namespace
{

/* ---- draws: `count` values from four words; normals make two values of a pair */

struct uniform32 {
    enum { count = 4 };
    typedef float value;
    float a, d;
    NP_DEVICE void operator()(const uint32_t *w, float *y) const
    {
        for (int i = 0; i < 4; i++) y[i] = a + np_rng_uniform(w[i]) * d;
    }
};
struct uniform64_of {
    enum { count = 2 };
    typedef double value;
    double a, d;
    NP_DEVICE void operator()(const uint32_t *w, double *y) const
    {
        for (int i = 0; i < 2; i++) y[i] = a + np_uniform64(np_word64(w + 2 * i)) * d;
    }
};
/* Radius and angle (Box and Muller): r = sqrt(-2 log u), u in (0, 1]. */
struct normal32 {
    enum { count = 4 };
    typedef float value;
    float mean, std;
    NP_DEVICE void operator()(const uint32_t *w, float *y) const
    {
        for (int i = 0; i < 4; i += 2) {
            float r = sqrt(-2.0f * log((float)((w[i] >> 8) + 1) * 0x1p-24f)) * std;
            float v = np_rng_uniform(w[i + 1]) * 6.28318530717958647692f;
            y[i] = mean + r * cos(v);
            y[i + 1] = mean + r * sin(v);
        }
    }
};
struct normal64 {
    enum { count = 2 };
    typedef double value;
    double mean, std;
    NP_DEVICE void operator()(const uint32_t *w, double *y) const
    {
        double u = (double)((np_word64(w) >> 11) + 1) * 0x1p-53;
        double v = np_uniform64(np_word64(w + 2)) * 6.28318530717958647692, r = sqrt(-2 * log(u)) * std;
        y[0] = mean + r * cos(v);
        y[1] = mean + r * sin(v);
    }
};
/* -log(u) / rate with u strictly between 0 and 1. */
struct exponential32 {
    enum { count = 4 };
    typedef float value;
    float scale;
    NP_DEVICE void operator()(const uint32_t *w, float *y) const
    {
        for (int i = 0; i < 4; i++) y[i] = log(((float)(w[i] >> 9) + 0.5f) * 0x1p-23f) * scale;
    }
};
struct exponential64 {
    enum { count = 2 };
    typedef double value;
    double rate;
    NP_DEVICE void operator()(const uint32_t *w, double *y) const
    {
        for (int i = 0; i < 2; i++)
            y[i] = log(((double)(np_word64(w + 2 * i) >> 12) + 0.5) * 0x1p-52) / -rate;
    }
};
struct bernoulli_bits {
    enum { count = 4 };
    typedef float value;
    double p;
    NP_DEVICE void operator()(const uint32_t *w, float *y) const
    {
        for (int i = 0; i < 4; i++) y[i] = (double)w[i] * 0x1p-32 < p ? 1.0f : 0.0f;
    }
};
struct integers {
    enum { count = 2 };
    typedef int64_t value;
    int64_t low;
    uint64_t span;
    NP_DEVICE void operator()(const uint32_t *w, int64_t *y) const
    {
        for (int i = 0; i < 2; i++) y[i] = (int64_t)((uint64_t)low + np_below(np_word64(w + 2 * i), span));
    }
};

/* ---- kernels */

template <class Draw>
__global__ void draw_elements(void *out, int dtype, np_rng_range r, int64_t groups, np_walk<1> w, Draw draw)
{
    NP_EACH(g, groups)
    {
        uint32_t words[4][4];
        const int64_t first = np_draw_words(r, g, words);
        for (int j = 0; j < 4; j++) {
            typename Draw::value y[Draw::count];
            draw(words[j], y);
            for (int i = 0; i < Draw::count; i++) {
                int64_t e = (first + 16 * j) * Draw::count / 4 + i, at[1];
                if (e >= w.n) continue;
                w.at(e, at);
                np_put(out, dtype, at[0], y[i]);
            }
        }
    }
}

template <class W>
__global__ void drop_elements(void *out, int dtype, np_given<W> x, np_rng_range r, int64_t groups,
                              np_walk<2> w, float p, W scale)
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
                const W v = np_get(x, at[1]) * scale;
                np_put(out, dtype, at[0], np_rng_uniform(words[j][i]) >= p ? v : W(0));
            }
    }
}

/* ---- calls */

template <class Draw> int fill(const np_call *k, const Draw &draw)
{
    const np_operand *out = &k->out[0];
    const np_walk<1> w = np_walk_over(out->ndim, out->shape, {out});
    const int64_t groups = np_draw_groups(w.n * (4 / Draw::count));
    if (w.n == 0) return 0;
    return np_done(k, NP_TRY(np_gpu_of(k), np_launch(draw_elements<Draw>, np_blocks(groups), NP_BLOCK, 0,
                                                     np_gpu_of(k)->stream, out->data, out->dtype, k->rng,
                                                     groups, w, draw)));
}

int fill_uniform(const np_call *k, double a, double b)
{
    if (k->out[0].dtype == NEAP_FLOAT64) return fill(k, uniform64_of{a, b - a});
    return fill(k, uniform32{(float)a, (float)(b - a)});
}
int fill_normal(const np_call *k, double mean, double std)
{
    if (k->out[0].dtype == NEAP_FLOAT64) return fill(k, normal64{mean, std});
    return fill(k, normal32{(float)mean, (float)std});
}

int uniform_here(const np_call *k) { return fill_uniform(k, k->attr[0].f, k->attr[1].f); }
int uniform_new(const np_call *k) { return fill_uniform(k, 0, 1); }
int normal_given(const np_call *k) { return fill_normal(k, k->attr[0].f, k->attr[1].f); }
int normal_new(const np_call *k) { return fill_normal(k, 0, 1); }
int bernoulli_here(const np_call *k) { return fill(k, bernoulli_bits{k->attr[0].f}); }
int exponential_here(const np_call *k)
{
    if (k->out[0].dtype == NEAP_FLOAT64) return fill(k, exponential64{k->attr[0].f});
    return fill(k, exponential32{(float)(-1 / k->attr[0].f)});
}
int integers_new(const np_call *k)
{
    const int64_t low = k->attr[0].i, high = k->attr[1].i;
    return fill(k, integers{low, (uint64_t)high - (uint64_t)low + 1});
}

template <class W> cudaError_t launch_drop(const np_call *k, double p, np_rng_range r)
{
    const np_operand *out = &k->out[0], *x = &k->in[0];
    const np_walk<2> w = np_walk_over(out->ndim, out->shape, {out, x});
    const int64_t groups = np_draw_groups(w.n);
    return np_launch(drop_elements<W>, np_blocks(groups), NP_BLOCK, 0, np_gpu_of(k)->stream, out->data,
                     out->dtype, np_given_of<W>(x, k->compute), r, groups, w, (float)p, (W)(1 / (1 - p)));
}
int drop(const np_call *k, double p, np_rng_range r)
{
    if (k->out[0].numel == 0) return 0;
    return np_done(k, NP_TRY(np_gpu_of(k), k->out[0].dtype == NEAP_FLOAT64 ? launch_drop<double>(k, p, r)
                                                                           : launch_drop<float>(k, p, r)));
}
int dropout(const np_call *k)
{
    if (k->attr[1].i && k->attr[0].f > 0) return drop(k, k->attr[0].f, k->rng);
    return np_done(k, np_move(k->device, &k->out[0], &k->in[0]));
}
int dropout_apply(const np_call *k)
{
    return drop(k, k->attr[0].f, {(uint64_t)k->attr[1].i, (uint64_t)k->attr[2].i});
}

} // namespace

const np_plugin_row np_rows_random[] = {
    {"rand", uniform_new},
    {"randn", normal_new},
    {"normal", normal_given},
    {"randint", integers_new},
    {"uniform_", uniform_here},
    {"normal_", normal_given},
    {"exponential_", exponential_here},
    {"bernoulli_", bernoulli_here},
    {"dropout", dropout},
    {"dropout_apply", dropout_apply},
    {nullptr, nullptr},
};
