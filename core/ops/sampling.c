/* sampling.c - random choices with given probabilities. What is drawn depends on the probabilities, on seed and offset
 * alone, as in random.c. The probabilities are read and checked before anything is drawn. */
#include "ops/cpu/random.h"
#include "ops/cpu/rows.h"
#include "ops/sample.h"

/* bernoulli(p, {generator=}): ones with the probabilities p, a float tensor, and zeros; of the dtype of p. */
NP_CPU(bernoulli)(np_frame *f)
{
    const neap_tensor *p = f->in[0];
    double v[NP_BLOCK];
    float y[NP_BLOCK];
    uint32_t w[RNG_WORDS];
    char at[120];
    for (int draw = 0; draw < 2; draw++) {
        for (int64_t i = 0; i < p->numel; i += NP_BLOCK) {
            int64_t n = p->numel - i < NP_BLOCK ? p->numel - i : NP_BLOCK;
            np_read_block(p, i, n, NEAP_FLOAT64, v);
            if (draw) rng_words(f->rng, i, n, w);
            for (int64_t k = 0; k < n; k++) {
                if (draw) {
                    y[k] = (double)w[k] * 0x1p-32 < v[k] ? 1.0f : 0.0f;
                } else if (!(v[k] >= 0 && v[k] <= 1)) {
                    np_fail(f->c, NEAP_E_ARG, "the probability p%s is %g; it must lie between 0 and 1",
                            np_position_text(at, sizeof at, p, i + k, f->c->base), v[k]);
                    return false;
                }
            }
            if (draw) np_write_block(f->out[0], i, n, NEAP_FLOAT32, y);
        }
    }
    return true;
}

/* ---- multinomial */

typedef struct choice {
    double key;
    int64_t id;
} choice;

static inline bool comes_after(choice a, choice b)
{
    return a.key > b.key || (a.key == b.key && a.id > b.id);
}

/* h[0 .. n-1] is a heap with the last one on top, but for h[i]. */
static inline void sift(choice *h, int64_t n, int64_t i)
{
    for (;;) {
        int64_t top = i;
        for (int64_t k = 2 * i + 1; k <= 2 * i + 2 && k < n; k++)
            if (comes_after(h[k], h[top])) top = k;
        if (top == i) return;
        choice t = h[i];
        h[i] = h[top], h[top] = t, i = top;
    }
}

/* Without replacement: every id gets an exponential time of rate w; the first n in order of time. */
static inline void draw_distinct(const double *w, int64_t size, rng_stream *s, choice *h, int64_t n,
                                 int64_t *ids)
{
    int64_t have = 0;
    for (int64_t i = 0; i < size; i++) {
        double u = (double)((rng_next(s) >> 11) + 1) * 0x1p-53;
        if (w[i] == 0) continue;
        choice c = {-log(u) / w[i], i};
        if (have < n) {
            h[have++] = c;
            for (int64_t k = n / 2 - 1; have == n && k >= 0; k--) sift(h, n, k);
        } else if (comes_after(h[0], c)) {
            h[0] = c;
            sift(h, n, 0);
        }
    }
    for (int64_t k = n - 1; k >= 0; k--) {
        ids[k] = h[0].id;
        h[0] = h[k];
        sift(h, k, 0);
    }
}

/* With replacement: the first id whose running sum is above u times the total. */
static inline void draw_any(double *w, int64_t size, rng_stream *s, int64_t n, int64_t *ids)
{
    int64_t last = 0;
    for (int64_t i = 0; i < size; i++) {
        if (w[i] > 0) last = i;
        if (i > 0) w[i] += w[i - 1];
    }
    for (int64_t k = 0; k < n; k++) {
        double target = (double)(rng_next(s) >> 11) * 0x1p-53 * w[size - 1];
        int64_t low = 0, high = last;
        while (low < high) {
            int64_t mid = low + (high - low) / 2;
            if (w[mid] > target) high = mid;
            else low = mid + 1;
        }
        ids[k] = low;
    }
}

/* The weights of a row are numbers >= 0, enough of them above 0. */
static inline bool weights_ok(np_frame *f, const double *w, int64_t size, int64_t row, int64_t needed)
{
    char where[40] = "";
    int64_t positive = 0;
    double total = 0;
    if (f->in[0]->ndim == 2) snprintf(where, sizeof where, "row %lld: ", (long long)(row + f->c->base));
    for (int64_t i = 0; i < size; i++) {
        if (!(w[i] >= 0) || isinf(w[i])) {
            np_fail(f->c, NEAP_E_ARG, "%sweight %lld is %g; weights must be finite and not negative", where,
                    (long long)(i + f->c->base), w[i]);
            return false;
        }
        positive += w[i] > 0, total += w[i];
    }
    if (isinf(total)) {
        np_fail(f->c, NEAP_E_ARG, "%sthe sum of the weights overflows; scale them down", where);
        return false;
    }
    if (positive >= needed) return true;
    np_fail(f->c, NEAP_E_ARG, "%s%lld weights are above 0, at least %lld must be to draw%s", where,
            (long long)positive, (long long)needed, needed > 1 ? " as many without replacement" : "");
    return false;
}

/* multinomial(weights, num_samples, {replacement=false, base=, generator=}): positions drawn with probabilities
 * proportional to the weights, one vector or the rows of a matrix; int64, counting from 1 (from `base`). Weights need not
 * add up to 1. Without replacement no position is drawn twice, in the order of drawing.
 * neap.multinomial(neap.tensor{1, 2, 1}, 2). */
NP_CPU(multinomial)(np_frame *f)
{
    const neap_tensor *p = f->in[0];
    int64_t n = f->attr[0].i, size = p->shape[p->ndim - 1], rows = p->ndim == 2 ? p->shape[0] : 1;
    bool replacement = f->attr[1].i != 0;
    if (rows == 0) return true;
    np_mem *mem = &f->c->devices[0]->mem;
    size_t bytes = (size_t)size * sizeof(double) + (replacement ? 0 : (size_t)n * sizeof(choice));
    double *w = np_mem_take(mem, bytes, NEAP_WORKSPACE);
    if (!w) return false;
    rng_stream s = {.range = f->rng};
    bool ok = true;
    for (int64_t r = 0; ok && r < rows; r++) {
        int64_t *ids = NP_DATA(int64_t, f->out[0]) + r * n;
        np_read_block(p, r * size, size, NEAP_FLOAT64, w);
        ok = weights_ok(f, w, size, r, replacement ? 1 : n);
        if (!ok) break;
        if (replacement) draw_any(w, size, &s, n, ids);
        else draw_distinct(w, size, &s, (choice *)(void *)(w + size), n, ids);
        for (int64_t k = 0; k < n; k++) ids[k] += f->attr[2].i;
    }
    np_mem_give(mem, w, bytes, NEAP_WORKSPACE);
    return ok;
}

#ifdef NP_BASE_ONLY
static bool bernoulli_infer(np_frame *f)
{
    if (!np_infer_same(f)) return false;
    f->rng_n = (uint64_t)f->in[0]->numel;
    if (np_is_float(f->compute)) return true;
    np_fail(f->c, NEAP_E_DTYPE, "probabilities are floats, p is %s; convert it with p:to(\"float32\")",
            np_dtype_name(f->compute));
    return false;
}
static bool bernoulli_sample(np_sampler *s, int i)
{
    s->no_grad = 1;
    return np_sample_unary_in(s, i, 0, 1);
}
static bool multinomial_infer(np_frame *f)
{
    const neap_tensor *p = f->in[0];
    char text[128];
    int64_t n = f->attr[0].i;
    if (!np_infer_same(f)) return false;
    if (p->ndim < 1 || p->ndim > 2) {
        np_fail(f->c, NEAP_E_DIMS, "the weights are %s; they must be a vector or a matrix",
                np_tensor_text(text, sizeof text, p));
        return false;
    }
    int64_t size = p->shape[p->ndim - 1], rows = p->ndim == 2 ? p->shape[0] : 1;
    if (n < 1 || size < 1) {
        np_fail(f->c, NEAP_E_ARG, "%lld of %lld positions: at least one must be drawn, from at least one",
                (long long)n, (long long)size);
        return false;
    }
    if (!f->attr[1].i && n > size) {
        np_fail(f->c, NEAP_E_ARG,
                "%lld of %lld positions without replacement; pass {replacement = true} to draw more",
                (long long)n, (long long)size);
        return false;
    }
    int64_t shape[2] = {rows, n};
    np_meta_set(f, 0, NEAP_INT64, p->ndim, p->ndim == 2 ? shape : shape + 1);
    f->rng_n = 2 * (uint64_t)rows * (uint64_t)(f->attr[1].i ? n : size);
    return true;
}
static bool multinomial_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"vector", "rows", "with replacement", "rows with replacement"};
    if (i > 3) return false;
    s->label = labels[i];
    s->no_grad = 1;
    s->attr[0] = (np_attr){.i = i < 2 ? 3 : 300, .has = 1};
    s->attr[1] = (np_attr){.i = i > 1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    int64_t rows = np_s_size(s, 2, 64), size = np_s_size(s, 5, 1 << 15);
    return i % 2 ? np_s_tensor(s, 0, 1, i % 3, 2, rows, size) : np_s_tensor(s, 0, 1, i, 1, size);
}
NP_OP(bernoulli) = {NP_NAMED(bernoulli), .args = "p:T ; generator:gen? -> y:T",
                    .tags = NP_RANDOM | NP_CHEAP | NP_NODIFF, .infer = bernoulli_infer,
                    .sample = bernoulli_sample};
NP_OP(multinomial) = {
    NP_NAMED(multinomial),
    .args = "weights:T num_samples:int ; replacement:bool=false base:base generator:gen? -> ids:T",
    .tags = NP_RANDOM | NP_NODIFF, .infer = multinomial_infer, .sample = multinomial_sample};
#endif
