/* random.c - random tensors, dropout and in-place fills.
 *
 * Every element is a function of (seed, offset, its logical row-major index) alone: np_rng_bits in base/rng.h. So
 * results do not depend on threads, layout or CPU level (normals up to a few ulp between levels), and dropout keeps
 * no mask: its gradient makes the same one again from the range its node recorded. 64-bit values take two words of
 * 32 bits: value i is made of words 2i and 2i + 1. Normals come in pairs by Box and Muller. Ranges are inclusive:
 * randint(1, 6) is a die. */
#include <float.h>

#include "ops/cpu/random.h"
#include "ops/cpu/vec_trig.h"
#include "ops/sample.h"

/* ---- filling: values of one block of elements in float, double or int64, then stored as the tensor's dtype */

typedef struct fill_job fill_job;
/* n elements, n even or the end; w: their words. */
typedef void (*fill_fn)(const fill_job *j, const uint32_t *w, int64_t n, void *out);
struct fill_job {
    neap_tensor *t;
    np_rng_range rng;
    neap_dtype type; /* what fn writes */
    int words;       /* per element: 1 or 2 */
    fill_fn fn;
    double a, b; /* from and to, or mean and std */
    int64_t low;
    uint64_t span;
};

static void fill_chunk(void *arg, int64_t chunk)
{
    const fill_job *j = arg;
    int64_t step = RNG_WORDS / j->words, end = (chunk + 1) * NP_GRAIN;
    if (end > j->t->numel) end = j->t->numel;
    _Alignas(64) uint32_t w[RNG_WORDS];
    _Alignas(64) unsigned char out[RNG_WORDS * 8];
    for (int64_t i = chunk * NP_GRAIN; i < end; i += step) {
        int64_t n = end - i < step ? end - i : step;
        rng_words(j->rng, i * j->words, ((n + 1) & ~(int64_t)1) * j->words, w);
        j->fn(j, w, n, out);
        np_write_block(j->t, i, n, j->type, out);
    }
}
static inline bool fill(neap_ctx *c, const fill_job *j)
{
    return np_parallel(c, (j->t->numel + NP_GRAIN - 1) / NP_GRAIN, fill_chunk, (void *)j);
}

static void uniform_f32(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    float *y = out, a = (float)j->a, d = (float)(j->b - j->a);
    for (int64_t i = 0; i < n; i++) y[i] = a + np_rng_uniform(w[i]) * d;
}
static void uniform_f64(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    double *y = out, a = j->a, d = j->b - j->a;
    for (int64_t i = 0; i < n; i++) y[i] = a + uniform64(word64(w + 2 * i)) * d;
}

/* Radius and angle from a pair of uniforms: r = sqrt(-2 log u), u in (0,1]. An odd last element wastes its twin. */
static void normal_f32(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    float r[RNG_WORDS / 2], v[RNG_WORDS / 2], mean = (float)j->a, std = (float)j->b;
    float *y = out;
    int64_t pairs = (n + 1) / 2;
    for (int64_t i = 0; i < pairs; i++) {
        r[i] = __builtin_sqrtf(-2.0f * v_log_f((float)((w[2 * i] >> 8) + 1) * 0x1p-24f)) * std;
        v[i] = np_rng_uniform(w[2 * i + 1]) * 6.28318530717958647692f;
    }
    for (int64_t i = 0; i < pairs; i++) {
        y[2 * i] = mean + r[i] * v_cos_wide(v[i]);
        y[2 * i + 1] = mean + r[i] * v_sin_wide(v[i]);
    }
}
static void normal_f64(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    double *y = out;
    for (int64_t i = 0; i < (n + 1) / 2; i++) {
        double u = (double)((word64(w + 4 * i) >> 11) + 1) * 0x1p-53;
        double v = uniform64(word64(w + 4 * i + 2)) * 6.28318530717958647692, r = sqrt(-2 * log(u)) * j->b;
        y[2 * i] = j->a + r * cos(v);
        y[2 * i + 1] = j->a + r * sin(v);
    }
}
/* -log(u) / rate with u strictly between 0 and 1. */
static void exponential_f32(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    float *y = out, scale = (float)(-1 / j->a);
    for (int64_t i = 0; i < n; i++) y[i] = v_log_f(((float)(w[i] >> 9) + 0.5f) * 0x1p-23f) * scale;
}
static void exponential_f64(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    double *y = out;
    for (int64_t i = 0; i < n; i++) y[i] = log(((double)(word64(w + 2 * i) >> 12) + 0.5) * 0x1p-52) / -j->a;
}
/* 1 with probability a. */
static void bernoulli_bits(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    float *y = out;
    for (int64_t i = 0; i < n; i++) y[i] = (double)w[i] * 0x1p-32 < j->a ? 1.0f : 0.0f;
}
static void integers(const fill_job *j, const uint32_t *w, int64_t n, void *out)
{
    int64_t *y = out;
    for (int64_t i = 0; i < n; i++) y[i] = (int64_t)((uint64_t)j->low + below(word64(w + 2 * i), j->span));
}

/* Floats of out[0] from a (float, double) pair of functions. */
static inline bool fill_floats(np_frame *f, fill_fn f32, fill_fn f64, double a, double b)
{
    bool wide = f->out[0]->dtype == NEAP_FLOAT64;
    fill_job j = {.t = f->out[0],
                  .rng = f->rng,
                  .type = wide ? NEAP_FLOAT64 : NEAP_FLOAT32,
                  .words = wide ? 2 : 1,
                  .fn = wide ? f64 : f32,
                  .a = a,
                  .b = b};
    return fill(f->c, &j);
}

/* ---- infer */

#ifdef NP_BASE_ONLY

/* Words that n elements take: normals need the twin of an odd last element. */
static uint64_t words_for(neap_dtype t, int64_t n)
{
    uint64_t even = ((uint64_t)n + 1) & ~(uint64_t)1;
    return t == NEAP_FLOAT64 || np_is_int(t) ? 2 * even : even;
}
static uint64_t numel_of(const np_out_meta *m)
{
    int64_t n = np_shape_numel(m->ndim, m->shape);
    return n > 0 ? (uint64_t)n : 0;
}

/* Shape, dtype and device attributes of a factory at these places. */
static bool factory(np_frame *f, int ndim, const int64_t *shape, const np_attr *dtype, const np_attr *device,
                    neap_dtype fallback)
{
    f->dev = np_device_at(f->c, device->has ? (int)device->i : np_default_device(f->c));
    if (!f->dev) return false;
    if (ndim > NEAP_MAX_DIMS) {
        np_fail(f->c, NEAP_E_DIMS, "%d dimensions; 8 at most", ndim);
        return false;
    }
    f->compute = dtype->has ? (neap_dtype)dtype->i : fallback;
    np_meta_set(f, 0, f->compute, ndim, shape);
    f->rng_n = words_for(f->compute, (int64_t)numel_of(&f->meta[0]));
    return true;
}
static bool floats_only(np_frame *f)
{
    if (np_is_float(f->compute)) return true;
    np_fail(f->c, NEAP_E_DTYPE, "values are floats, %s was asked for; use randint, or convert with :to",
            np_dtype_name(f->compute));
    return false;
}
static bool float_factory_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    return factory(f, a[0].n, a[0].v, &a[1], &a[2], np_default_float(f->c)) && floats_only(f);
}
static bool probability_ok(np_frame *f)
{
    double p = f->attr[0].f;
    if (p >= 0 && p <= 1) return true;
    np_fail(f->c, NEAP_E_ARG, "the probability is %g; it must lie between 0 and 1", p);
    return false;
}
static bool moments_ok(np_frame *f)
{
    double mean = f->attr[0].f, std = f->attr[1].f;
    if (isfinite(mean) && isfinite(std) && std >= 0) return true;
    np_fail(f->c, NEAP_E_ARG,
            "the mean is %g and the standard deviation %g; both must be finite, the latter not "
            "negative",
            mean, std);
    return false;
}
static bool normal_factory_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    return moments_ok(f) && factory(f, a[2].n, a[2].v, &a[3], &a[4], np_default_float(f->c)) &&
           floats_only(f);
}
static bool sample_factory(np_sampler *s, int i)
{
    static const char *const labels[] = {"vector", "matrix", "0-dim", "empty"};
    static const int64_t shapes[4][2] = {{7, 0}, {3, 5}, {0, 0}, {0, 3}};
    static const int ndim[] = {1, 2, 0, 2};
    if (i > 3) return false;
    s->label = labels[i];
    memcpy(s->lists[0], shapes[i], sizeof shapes[i]);
    if (s->size != NP_SMALL) s->lists[0][0] = s->size == NP_WIDE ? 5000 : 1 << 21;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = ndim[i], .has = 1};
    s->attr[1] = (np_attr){.i = s->dtype, .has = 1};
    return s->size == NP_SMALL || i == 0;
}
static bool sample_normal(np_sampler *s, int i)
{
    if (!sample_factory(s, i)) return false;
    s->attr[3] = s->attr[1], s->attr[2] = s->attr[0];
    s->attr[0] = (np_attr){.f = 1, .has = 1};
    s->attr[1] = (np_attr){.f = 2, .has = 1};
    return true;
}

#endif

/* ---- factories */

/* rand(shape, {dtype=, device=, generator=}): uniform in [0, 1). neap.rand(2, 3). */
NP_CPU(rand)(np_frame *f) { return fill_floats(f, uniform_f32, uniform_f64, 0, 1); }

/* randn(shape, {dtype=, device=, generator=}): normal with mean 0 and standard deviation 1. neap.randn(2, 3). */
NP_CPU(randn)(np_frame *f) { return fill_floats(f, normal_f32, normal_f64, 0, 1); }

/* normal(mean, std, shape, {dtype=, device=, generator=}): normal values. neap.normal(0, 0.02, {2, 3}). */
NP_CPU(normal)(np_frame *f) { return fill_floats(f, normal_f32, normal_f64, f->attr[0].f, f->attr[1].f); }

/* randint(low, high, shape, {dtype=, device=, generator=}): integers from low to high, both included; int64.
 * neap.randint(1, 6, {2, 3}). */
NP_CPU(randint)(np_frame *f)
{
    int64_t low = f->attr[0].i, high = f->attr[1].i;
    fill_job j = {.t = f->out[0],
                  .rng = f->rng,
                  .type = NEAP_INT64,
                  .words = 2,
                  .fn = integers,
                  .low = low,
                  .span = (uint64_t)high - (uint64_t)low + 1};
    return fill(f->c, &j);
}

/* randperm(n, {base=, device=, generator=}): the numbers 1 .. n (from `base` on) in random order; int64.
 * neap.randperm(10). */
NP_CPU(randperm)(np_frame *f)
{
    int64_t n = f->out[0]->numel, *y = NP_DATA(int64_t, f->out[0]);
    for (int64_t i = 0; i < n; i++) y[i] = i + f->attr[1].i;
    uint32_t w[RNG_WORDS];
    for (int64_t i = 0; i < n; i++) { /* Fisher and Yates */
        if (i % (RNG_WORDS / 2) == 0) {
            int64_t left = 2 * (n - i);
            rng_words(f->rng, 2 * i, left < RNG_WORDS ? left : RNG_WORDS, w);
        }
        int64_t k = i + (int64_t)below(word64(w + 2 * (i % (RNG_WORDS / 2))), (uint64_t)(n - i)), t = y[i];
        y[i] = y[k], y[k] = t;
    }
    return true;
}

#ifdef NP_BASE_ONLY
/* Both ends must be values of the dtype, and so everything between them. */
static bool range_fits(np_frame *f, int64_t low, int64_t high)
{
    static const int8_t bits[NEAP_N_DTYPES] = {
        [NEAP_FLOAT32] = 24, [NEAP_FLOAT64] = 53, [NEAP_FLOAT16] = 11, [NEAP_BFLOAT16] = 8, [NEAP_BOOL] = 0};
    if (np_is_int(f->compute))
        return np_integer_fits(f->c, low, f->compute) && np_integer_fits(f->c, high, f->compute);
    int64_t most = (int64_t)1 << bits[f->compute], least = f->compute == NEAP_BOOL ? 0 : -most;
    if (low >= least && high <= most) return true;
    np_fail(f->c, NEAP_E_DTYPE, "%s does not hold every integer from %lld to %lld; it does from %lld to %lld",
            np_dtype_name(f->compute), (long long)low, (long long)high, (long long)least, (long long)most);
    return false;
}
static bool randint_infer(np_frame *f)
{
    const np_attr *a = f->attr;
    if (a[0].i > a[1].i) {
        np_fail(f->c, NEAP_E_ARG, "low %lld is above high %lld; both ends are included", (long long)a[0].i,
                (long long)a[1].i);
        return false;
    }
    if (!factory(f, a[2].n, a[2].v, &a[3], &a[4], NEAP_INT64) || !range_fits(f, a[0].i, a[1].i)) return false;
    f->rng_n = 2 * numel_of(&f->meta[0]);
    return true;
}
static bool randint_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "one value" : "die";
    s->lists[0][0] = 20;
    s->attr[0] = (np_attr){.i = 1, .has = 1};
    s->attr[1] = (np_attr){.i = i ? 1 : 6, .has = 1};
    s->attr[2] = (np_attr){.v = s->lists[0], .n = 1, .has = 1};
    return true;
}
static bool randperm_infer(np_frame *f)
{
    static const np_attr none = {0};
    int64_t n = f->attr[0].i;
    if (n < 0) {
        np_fail(f->c, NEAP_E_ARG, "n is %lld; it must not be negative", (long long)n);
        return false;
    }
    return factory(f, 1, &n, &none, &f->attr[2], NEAP_INT64);
}
static bool randperm_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "empty" : "ten";
    s->attr[0] = (np_attr){.i = i ? 0 : 10, .has = 1};
    s->attr[1] = (np_attr){.i = 0, .has = 1};
    return true;
}
NP_OP(rand) = {NP_NAMED(rand), .args = "shape:shape ; dtype:dtype? device:device? generator:gen? -> y:T",
               .tags = NP_RANDOM | NP_FACTORY | NP_CHEAP | NP_NODIFF, .infer = float_factory_infer,
               .sample = sample_factory};
NP_OP(randn) = {NP_NAMED(randn), .args = "shape:shape ; dtype:dtype? device:device? generator:gen? -> y:T",
                .tags = NP_RANDOM | NP_FACTORY | NP_CHEAP | NP_NODIFF, .infer = float_factory_infer,
                .sample = sample_factory};
NP_OP(normal) = {
    NP_NAMED(normal),
    .args = "mean:float std:float shape:shape ; dtype:dtype? device:device? generator:gen? -> y:T",
    .tags = NP_RANDOM | NP_FACTORY | NP_CHEAP | NP_NODIFF, .infer = normal_factory_infer,
    .sample = sample_normal};
NP_OP(randint) = {NP_NAMED(randint),
                  .args = "low:int high:int shape:shape ; dtype:dtype? device:device? generator:gen? -> y:T",
                  .tags = NP_RANDOM | NP_FACTORY | NP_CHEAP | NP_NODIFF, .infer = randint_infer,
                  .sample = randint_sample};
NP_OP(randperm) = {NP_NAMED(randperm), .args = "n:int ; base:base device:device? generator:gen? -> y:T",
                   .tags = NP_RANDOM | NP_FACTORY | NP_CHEAP | NP_NODIFF, .infer = randperm_infer,
                   .sample = randperm_sample};
#endif

/* ---- fills */

/* uniform_(x, low, high, {generator=}): fills x with uniform values in [low, high), by default [0, 1). */
NP_CPU(uniform_)(np_frame *f) { return fill_floats(f, uniform_f32, uniform_f64, f->attr[0].f, f->attr[1].f); }

/* normal_(x, mean, std, {generator=}): fills x with normal values, by default of mean 0 and std 1. */
NP_CPU(normal_)(np_frame *f) { return fill_floats(f, normal_f32, normal_f64, f->attr[0].f, f->attr[1].f); }

/* exponential_(x, [lambd = 1], {generator=}): fills x with exponential values of mean 1 / lambd. */
NP_CPU(exponential_)(np_frame *f)
{
    return fill_floats(f, exponential_f32, exponential_f64, f->attr[0].f, 0);
}

/* bernoulli_(x, [p = 0.5], {generator=}): fills x, of any dtype, with ones of probability p and zeros. */
NP_CPU(bernoulli_)(np_frame *f)
{
    fill_job j = {.t = f->out[0],
                  .rng = f->rng,
                  .type = NEAP_FLOAT32,
                  .words = 1,
                  .fn = bernoulli_bits,
                  .a = f->attr[0].f};
    return fill(f->c, &j);
}

#ifdef NP_BASE_ONLY
static bool fill_infer(np_frame *f)
{
    if (!np_infer_same(f) || !floats_only(f)) return false;
    f->rng_n = words_for(f->compute, f->in[0]->numel);
    return true;
}
static bool uniform_infer(np_frame *f)
{
    static const double most[NEAP_N_DTYPES] = {[NEAP_FLOAT32] = FLT_MAX,
                                               [NEAP_FLOAT64] = DBL_MAX,
                                               [NEAP_FLOAT16] = 65504,
                                               [NEAP_BFLOAT16] = 0x1.fep127};
    double low = f->attr[0].f, high = f->attr[1].f;
    if (!fill_infer(f)) return false;
    if (!isfinite(low) || !isfinite(high) || high < low) {
        np_fail(f->c, NEAP_E_ARG, "the bounds are %g and %g; they must be finite, the lower one first", low,
                high);
        return false;
    }
    if (fabs(low) <= most[f->compute] && fabs(high) <= most[f->compute] && high - low <= most[f->compute])
        return true;
    np_fail(f->c, NEAP_E_ARG, "the bounds %g and %g are too far apart for %s, whose largest number is %g",
            low, high, np_dtype_name(f->compute), most[f->compute]);
    return false;
}
static bool normal_infer(np_frame *f) { return moments_ok(f) && fill_infer(f); }
static bool exponential_infer(np_frame *f)
{
    if (f->attr[0].f > 0 && isfinite(f->attr[0].f)) return fill_infer(f);
    np_fail(f->c, NEAP_E_ARG, "the rate lambd is %g; it must be finite and above 0", f->attr[0].f);
    return false;
}
static bool bernoulli_fill_infer(np_frame *f)
{
    if (!np_infer_same(f) || !probability_ok(f)) return false;
    f->rng_n = (uint64_t)f->in[0]->numel;
    return true;
}
/* What x was before no longer matters. */
static void fill_grad(np_back *b) { b->dx[0] = np_mul0(b, np_num(b, 0), b->g[0]); }
static bool sample_fill(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = -1, .has = 1};
    s->attr[1] = (np_attr){.f = 2, .has = 1};
    return np_sample_unary(s, i);
}
static bool sample_rate(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.3, .has = 1};
    return np_sample_unary(s, i);
}
NP_OP(uniform_) = {NP_NAMED(uniform_),
                   .args = "x:T low:float=0 high:float=1 ; generator:gen? -> y:T",
                   .tags = NP_RANDOM | NP_INPLACE | NP_CHEAP,
                   .infer = uniform_infer,
                   .grad = fill_grad,
                   .sample = sample_fill};
NP_OP(normal_) = {NP_NAMED(normal_),
                  .args = "x:T mean:float=0 std:float=1 ; generator:gen? -> y:T",
                  .tags = NP_RANDOM | NP_INPLACE | NP_CHEAP,
                  .infer = normal_infer,
                  .grad = fill_grad,
                  .sample = sample_fill};
NP_OP(exponential_) = {NP_NAMED(exponential_),
                       .args = "x:T lambd:float=1 ; generator:gen? -> y:T",
                       .tags = NP_RANDOM | NP_INPLACE | NP_CHEAP,
                       .infer = exponential_infer,
                       .grad = fill_grad,
                       .sample = sample_rate};
NP_OP(bernoulli_) = {NP_NAMED(bernoulli_),
                     .args = "x:T p:float=0.5 ; generator:gen? -> y:T",
                     .tags = NP_RANDOM | NP_INPLACE | NP_CHEAP,
                     .infer = bernoulli_fill_infer,
                     .grad = fill_grad,
                     .sample = sample_rate};
#endif

/* ---- dropout */

typedef struct drop_job {
    neap_tensor *x, *y;
    np_rng_range rng;
    float p;
    double scale;
} drop_job;

static void drop_chunk(void *arg, int64_t chunk)
{
    const drop_job *j = arg;
    neap_dtype type = np_run_type((neap_dtype)j->y->dtype);
    int64_t end = (chunk + 1) * NP_GRAIN;
    if (end > j->y->numel) end = j->y->numel;
    _Alignas(64) uint32_t w[RNG_WORDS];
    _Alignas(64) double wide[RNG_WORDS];
    float *narrow = (float *)wide;
    for (int64_t i = chunk * NP_GRAIN; i < end; i += RNG_WORDS) {
        int64_t n = end - i < RNG_WORDS ? end - i : RNG_WORDS;
        rng_words(j->rng, i, n, w);
        np_read_block(j->x, i, n, type, wide);
        if (type == NEAP_FLOAT64) {
            for (int64_t k = 0; k < n; k++)
                wide[k] = v_sel_d(np_rng_uniform(w[k]) >= j->p, wide[k] * j->scale, 0.0);
        } else {
            const float scale = (float)j->scale;
            for (int64_t k = 0; k < n; k++)
                narrow[k] = v_sel_f(np_rng_uniform(w[k]) >= j->p, narrow[k] * scale, 0.0f);
        }
        np_write_block(j->y, i, n, type, wide);
    }
}
static inline bool drop(np_frame *f, double p, np_rng_range rng)
{
    drop_job j = {f->in[0], f->out[0], rng, (float)p, 1 / (1 - p)};
    return np_parallel(f->c, (j.y->numel + NP_GRAIN - 1) / NP_GRAIN, drop_chunk, &j);
}

/* dropout(x, [p = 0.5], {training = true, generator=}): in training each element is 0 with probability p, the
 * others are scaled by 1 / (1 - p); otherwise a copy of x. No mask is kept. x:dropout(0.1, {training = model.training}). */
NP_CPU(dropout)(np_frame *f)
{
    if (f->rng_n == 0) return np_copy_into(f->c, f->out[0], f->in[0]);
    return drop(f, f->attr[0].f, f->rng);
}

/* dropout_apply(x, p, seed, offset): dropout with the mask of that range of counters. */
NP_CPU(dropout_apply)(np_frame *f)
{
    np_rng_range rng = {(uint64_t)f->attr[1].i, (uint64_t)f->attr[2].i};
    return drop(f, f->attr[0].f, rng);
}

#ifdef NP_BASE_ONLY
static bool drops(const np_attr *attr) { return attr[1].i && attr[0].f > 0; }
static bool dropout_infer(np_frame *f)
{
    if (!np_infer_float(f) || !probability_ok(f)) return false;
    f->rng_n = drops(f->attr) ? (uint64_t)f->in[0]->numel : 0;
    return true;
}
static void dropout_grad(np_back *b)
{
    if (!drops(b->attr)) b->dx[0] = np_unbroadcast(b, b->g[0], 0);
    else b->dx[0] = np_dropout_apply(b, b->g[0], b->attr[0].f, (int64_t)b->rng.seed, (int64_t)b->rng.offset);
}
static bool dropout_apply_infer(np_frame *f) { return np_infer_float(f) && probability_ok(f); }
static void dropout_apply_grad(np_back *b)
{
    b->dx[0] = np_dropout_apply(b, b->g[0], b->attr[0].f, b->attr[1].i, b->attr[2].i);
}
static bool dropout_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.3, .has = 1};
    s->attr[1] = (np_attr){.i = i != 2, .has = 1};
    return np_sample_unary(s, i);
}
static bool dropout_apply_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 0.3, .has = 1};
    s->attr[1] = (np_attr){.i = 7, .has = 1};
    s->attr[2] = (np_attr){.i = 32, .has = 1};
    return np_sample_unary(s, i);
}
NP_OP(dropout) = {NP_NAMED(dropout),
                  .args = "x:T p:float=0.5 ; training:bool=true generator:gen? -> y:T",
                  .tags = NP_RANDOM | NP_CHEAP,
                  .infer = dropout_infer,
                  .grad = dropout_grad,
                  .sample = dropout_sample};
NP_OP(dropout_apply) = {NP_NAMED(dropout_apply),        .args = "x:T p:float seed:int offset:int -> y:T",
                        .tags = NP_CHEAP | NP_INTERNAL, .infer = dropout_apply_infer,
                        .grad = dropout_apply_grad,     .sample = dropout_apply_sample};
#endif
