/* sample.c - legal random arguments for ops: what tests, failing-allocation sweeps and benches walk.
 *
 * Values come from a small generator of the sampler itself, so every run sees the same ones and no stream of the
 * context moves. A builder that fails leaves the error pending and returns false. Not here: the samples of a
 * single op, which stand beside it. */
#include "ops/sample.h"

#include <stdarg.h>

static uint64_t next(np_sampler *s) /* splitmix64 */
{
    uint64_t z = s->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double np_s_uniform(np_sampler *s, double lo, double hi)
{
    return lo + (hi - lo) * ((double)(next(s) >> 11) * 0x1p-53);
}

int64_t np_s_int(np_sampler *s, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(next(s) % (uint64_t)(hi - lo + 1));
}

enum { WIDE = 67 }; /* 64 bytes, the widest vector, and a tail */
int64_t np_s_size(const np_sampler *s, int64_t small, int64_t large)
{
    return s->size == NP_SMALL ? small : s->size == NP_LARGE || large < WIDE ? large : WIDE;
}

/* An uninitialised tensor of that shape: 0 contiguous, 1 transposed, 2 every second element of the last dim. */
static neap_tensor *blank(np_sampler *s, neap_dtype t, int layout, int ndim, const int64_t *shape)
{
    int64_t have[NEAP_MAX_DIMS] = {0}, stride[NEAP_MAX_DIMS];
    if (ndim == 0) layout = 0;
    for (int d = 0; d < ndim; d++) have[d] = layout == 1 ? shape[ndim - 1 - d] : shape[d];
    if (layout == 2) have[ndim - 1] *= 2;
    neap_tensor *base = np_tensor_new(s->c, s->c->devices[0], t, ndim, have);
    if (!base || layout == 0) return base;
    for (int d = 0; d < ndim; d++) stride[d] = layout == 1 ? base->stride[ndim - 1 - d] : base->stride[d];
    if (layout == 2) stride[ndim - 1] = 2;
    if (!np_fill_zero(s->c, base)) {
        np_drop(base);
        return NULL;
    }
    neap_tensor *view = np_tensor_view(base, ndim, shape, stride, base->offset);
    np_drop(base);
    return view;
}

/* Elements of t in row-major order: position i as a pointer. */
static char *element(const neap_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        at += i % t->shape[d] * t->stride[d];
        i /= t->shape[d];
    }
    return np_ptr(t) + at * (int64_t)np_itemsize(t);
}

static bool give(np_sampler *s, neap_tensor *t)
{
    if (!t) return false;
    s->in[s->n_in++] = t;
    return true;
}

/* Values stay at least `gap` away from 0, where many functions have a kink or a pole. */
static bool give_floats(np_sampler *s, double lo, double hi, double gap, int layout, int ndim,
                        const int64_t *shape)
{
    neap_tensor *t = blank(s, s->dtype, layout, ndim, shape);
    if (!t) return false;
    /* Row by row, converted in runs: tests fill millions of elements. */
    const int64_t size = (int64_t)np_itemsize(t), row = ndim ? shape[ndim - 1] : 1;
    const int64_t step = ndim ? t->stride[ndim - 1] * size : size;
    enum { RUN = 64 };
    double v[RUN];
    for (int64_t i = 0, n; i < t->numel; i += n) {
        n = row - i % row < RUN ? row - i % row : RUN;
        for (int64_t k = 0; k < n; k++) {
            v[k] = np_s_uniform(s, lo, hi);
            if (fabs(v[k]) < gap) v[k] = v[k] < 0 ? v[k] - gap : v[k] + gap;
        }
        np_convert(s->dtype, element(t, i), step, NEAP_FLOAT64, v, sizeof *v, n);
    }
    return give(s, t);
}

#define READ_SHAPE(ndim, shape) \
    int64_t shape[NEAP_MAX_DIMS]; \
    va_list ap; \
    va_start(ap, ndim); \
    for (int d = 0; d < ndim; d++) shape[d] = va_arg(ap, int64_t); \
    va_end(ap)

bool np_s_tensor(np_sampler *s, double lo, double hi, int layout, int ndim, ...)
{
    READ_SHAPE(ndim, shape);
    return give_floats(s, lo, hi, 0, layout, ndim, shape);
}

bool np_s_ids(np_sampler *s, int64_t lo, int64_t hi, int ndim, ...)
{
    READ_SHAPE(ndim, shape);
    s->no_grad |= 1u << s->n_in;
    neap_tensor *t = blank(s, NEAP_INT64, 0, ndim, shape);
    for (int64_t i = 0; t && i < t->numel; i++) NP_DATA(int64_t, t)[i] = np_s_int(s, lo, hi);
    return give(s, t);
}

bool np_s_mask(np_sampler *s, int ndim, ...)
{
    READ_SHAPE(ndim, shape);
    s->no_grad |= 1u << s->n_in;
    neap_tensor *t = blank(s, NEAP_BOOL, 0, ndim, shape);
    for (int64_t i = 0; t && i < t->numel; i++) NP_DATA(uint8_t, t)[i] = (uint8_t)(next(s) >> 63);
    return give(s, t);
}

void np_s_number(np_sampler *s, double v)
{
    s->no_grad |= 1u << s->n_in;
    give(s, v == floor(v) && fabs(v) < 1e15 ? neap_integer(s->c, (int64_t)v) : neap_number(s->c, v));
}

/* ---- ready ones */

static const struct unary_case {
    const char *label;
    int layout, ndim;
    int64_t shape[3];
} unary_cases[] = {
    {"contiguous", 0, 2, {3, 5}}, {"transposed", 1, 2, {4, 3}}, {"strided", 2, 1, {7}},
    {"0-dim", 0, 0, {0}},         {"empty", 0, 2, {0, 3}},      {"3-d", 1, 3, {2, 3, 2}},
};

static bool unary(np_sampler *s, int i, double lo, double hi, double gap)
{
    if (s->size != NP_SMALL) {
        const int64_t large[] = {np_s_size(s, 0, 2048), np_s_size(s, 0, 1024)};
        s->label = s->size == NP_WIDE ? "wide" : "large";
        return i == 0 && give_floats(s, lo, hi, gap, 0, 2, large);
    }
    if (i >= (int)(sizeof unary_cases / sizeof *unary_cases)) return false;
    const struct unary_case *k = &unary_cases[i];
    s->label = k->label;
    return give_floats(s, lo, hi, gap, k->layout, k->ndim, k->shape);
}

bool np_sample_unary(np_sampler *s, int i) { return unary(s, i, -1.9, 1.9, 0.1); }
bool np_sample_unary_positive(np_sampler *s, int i) { return unary(s, i, 0.2, 3, 0); }
bool np_sample_unary_in(np_sampler *s, int i, double lo, double hi) { return unary(s, i, lo, hi, 0); }

static const struct binary_case {
    const char *label;
    int layout, ndim;
    int64_t shape[3];
    int b_layout, b_ndim; /* b_ndim -1: a number */
    int64_t b_shape[3];
} binary_cases[] = {
    {"same shape", 0, 2, {3, 4}, 0, 2, {3, 4}}, {"row", 0, 2, {3, 4}, 0, 1, {4}},
    {"column", 1, 2, {3, 4}, 0, 2, {3, 1}},     {"both", 0, 2, {3, 1}, 2, 3, {2, 1, 4}},
    {"0-dim", 0, 2, {3, 4}, 0, 0, {0}},         {"number", 0, 2, {3, 4}, 0, -1, {0}},
    {"empty", 0, 2, {0, 4}, 0, 1, {4}},         {"transposed", 1, 2, {3, 4}, 2, 2, {3, 4}},
};

static bool binary(np_sampler *s, int i, double lo, double hi, double gap)
{
    if (s->size != NP_SMALL) {
        const int64_t full[] = {np_s_size(s, 0, 2048), np_s_size(s, 0, 1024)}, column[] = {full[0], 1};
        static const char *const labels[] = {"same shape", "row", "column", "column first"};
        if (i > (s->size == NP_WIDE ? 3 : 0)) return false;
        s->label = labels[i];
        return give_floats(s, -1.9, 1.9, 0.1, 0, 2, i == 3 ? column : full) &&
               (i == 1 ? give_floats(s, lo, hi, gap, 0, 1, full + 1)
                       : give_floats(s, lo, hi, gap, 0, 2, i == 2 ? column : full));
    }
    if (i >= (int)(sizeof binary_cases / sizeof *binary_cases)) return false;
    const struct binary_case *k = &binary_cases[i];
    s->label = k->label;
    if (!give_floats(s, -1.9, 1.9, 0.1, k->layout, k->ndim, k->shape)) return false;
    if (k->b_ndim >= 0) return give_floats(s, lo, hi, gap, k->b_layout, k->b_ndim, k->b_shape);
    np_s_number(s, 1.5);
    return !np_pending(s->c);
}

bool np_sample_binary(np_sampler *s, int i) { return binary(s, i, -1.9, 1.9, 0.1); }
bool np_sample_binary_positive(np_sampler *s, int i) { return binary(s, i, 0.5, 2, 0); }

bool np_sample_dims(np_sampler *s, int i)
{
    static const struct {
        const char *label;
        int layout, n;
        int64_t dims[2];
        int keep;
    } k[] = {
        {"all", 0, -1, {0}, 0},         {"last", 0, 1, {-1}, 0},  {"first", 0, 1, {0}, 0},
        {"middle, kept", 1, 1, {1}, 1}, {"two", 2, 2, {0, 2}, 0}, {"last two", 0, 2, {2, 1}, 1},
        {"0-dim", 0, -1, {0}, 0},       {"empty", 0, 1, {0}, 0},
    };
    if (i >= (int)(sizeof k / sizeof *k)) return false;
    s->label = k[i].label;
    memcpy(s->lists[0], k[i].dims, sizeof k[i].dims);
    if (k[i].n >= 0) s->attr[0] = (np_attr){.v = s->lists[0], .n = k[i].n, .has = 1};
    s->attr[1] = (np_attr){.i = k[i].keep, .has = 1};
    if (s->size != NP_SMALL)
        return i < 3 && np_s_tensor(s, -2, 2, 0, 2, np_s_size(s, 0, 2048), np_s_size(s, 0, 1024));
    if (i == 6) return np_s_tensor(s, -2, 2, 0, 0);
    if (i == 7) return np_s_tensor(s, -2, 2, 0, 2, (int64_t)0, (int64_t)3);
    return np_s_tensor(s, -2, 2, k[i].layout, 3, (int64_t)2, (int64_t)3, (int64_t)4);
}
bool np_sample_dim(np_sampler *s, int i)
{
    static const struct {
        const char *label;
        int layout, has;
        int64_t dim;
        int keep;
    } k[] = {
        {"all", 0, 0, 0, 0},          {"last", 0, 1, -1, 0}, {"first", 1, 1, 0, 0},
        {"middle, kept", 2, 1, 1, 1}, {"0-dim", 0, 0, 0, 0},
    };
    if (i >= (int)(sizeof k / sizeof *k)) return false;
    s->label = k[i].label;
    if (k[i].has) s->attr[0] = (np_attr){.i = k[i].dim, .has = 1};
    s->attr[1] = (np_attr){.i = k[i].keep, .has = 1};
    if (s->size != NP_SMALL)
        return i < 3 && np_s_tensor(s, -2, 2, 0, 2, np_s_size(s, 0, 2048), np_s_size(s, 0, 1024));
    if (i == 4) return np_s_tensor(s, -2, 2, 0, 0);
    return np_s_tensor(s, 0.3, 2, k[i].layout, 3, (int64_t)2, (int64_t)3, (int64_t)4);
}
