/* others.cu - for each element the product of all others of its slice, and the gradient of that.
 *
 * Exact with zeros: nothing is divided. A slice is cut into segments, a thread each: their products first, then what is
 * before and after each segment, then the elements. The gradient is the same with dual numbers x + e h, of whose
 * product it takes the e part. Products are kept in double, as on the CPU (prod.c). */
#include "positions.h"

namespace
{

enum { SEGMENT = 256 };

struct plain {
    double v;
    static NP_DEVICE plain one() { return {1}; }
    static NP_DEVICE plain of(double x, double) { return {x}; }
    NP_DEVICE plain times(plain b) const { return {v * b.v}; }
    NP_DEVICE double result() const { return v; }
};
struct dual {
    double v, e;
    static NP_DEVICE dual one() { return {1, 0}; }
    static NP_DEVICE dual of(double x, double h) { return {x, h}; }
    NP_DEVICE dual times(dual b) const { return {v * b.v, v * b.e + e * b.v}; }
    NP_DEVICE double result() const { return e; }
};

template <class M> struct slices {
    np_walk<3> w; /* where a slice begins: of y, x, h */
    int64_t n, y_step, x_step, h_step, segments;
    np_given<double> x, h; /* h.data NULL: none */
    void *y;
    int dtype;
    M *product, *before; /* (slices, segments) */
    M *rest;             /* (slices, n): what is after an element */
};

template <class M> NP_DEVICE M load(const slices<M> &s, const int64_t (&at)[3], int64_t i)
{
    return M::of(np_get(s.x, at[1] + i * s.x_step), s.h.data ? np_get(s.h, at[2] + i * s.h_step) : 0.0);
}
template <class M> __global__ void multiply_segments(slices<M> s)
{
    NP_EACH(u, s.w.n * s.segments)
    {
        int64_t at[3];
        const int64_t slice = u / s.segments, first = (u - slice * s.segments) * SEGMENT;
        const int64_t end = first + SEGMENT < s.n ? first + SEGMENT : s.n;
        s.w.at(slice, at);
        M p = M::one();
        for (int64_t i = first; i < end; i++) p = p.times(load(s, at, i));
        s.product[u] = p;
    }
}
/* Products become what is after each segment. */
template <class M> __global__ void surround_segments(slices<M> s)
{
    NP_EACH(slice, s.w.n)
    {
        M *product = s.product + slice * s.segments, *before = s.before + slice * s.segments, p = M::one();
        for (int64_t k = 0; k < s.segments; k++) {
            before[k] = p;
            p = p.times(product[k]);
        }
        p = M::one();
        for (int64_t k = s.segments - 1; k >= 0; k--) {
            const M here = product[k];
            product[k] = p;
            p = here.times(p);
        }
    }
}
template <class M> __global__ void multiply_others(slices<M> s)
{
    NP_EACH(u, s.w.n * s.segments)
    {
        int64_t at[3];
        const int64_t slice = u / s.segments, first = (u - slice * s.segments) * SEGMENT;
        const int64_t end = first + SEGMENT < s.n ? first + SEGMENT : s.n;
        M *rest = s.rest + slice * s.n, p = s.product[u];
        s.w.at(slice, at);
        for (int64_t i = end - 1; i >= first; i--) {
            rest[i] = p;
            p = load(s, at, i).times(p);
        }
        p = s.before[u];
        for (int64_t i = first; i < end; i++) {
            np_put(s.y, s.dtype, at[0] + i * s.y_step, p.times(rest[i]).result());
            p = p.times(load(s, at, i));
        }
    }
}

/* The operand as slices: along dim, or laid out in a row as one. */
np_operand line_of(const np_operand *o, int dim, bool all)
{
    np_operand one = *o;
    if (!all) return np_without(o, dim);
    one.ndim = 0;
    one.numel = 1;
    return one;
}
int64_t step_of(const np_operand *o, int dim, bool all) { return all ? 1 : o->stride[dim]; }

template <class M>
int others(const np_call *k, const np_operand *h_in, const np_operand *x_in, const np_attr *at)
{
    np_gpu *gpu = np_gpu_of(k);
    const np_operand *y = &k->out[0];
    const bool all = !at->has || y->ndim == 0;
    const int dim = all ? 0 : np_dim_of(at, y->ndim);
    if (y->numel == 0) return 0;
    if (!y->contiguous) return 1;
    np_operand x = *x_in, h = h_in ? *h_in : *x_in;
    if (all) { /* in a row: one element after the other */
        x.data = const_cast<void *>(np_contiguous(k, x_in));
        h.data = h_in ? const_cast<void *>(np_contiguous(k, h_in)) : x.data;
        if (!x.data || !h.data) return -1;
    }
    const np_operand y_line = line_of(y, dim, all), x_line = line_of(&x, dim, all),
                     h_line = line_of(&h, dim, all);
    slices<M> s = {};
    s.w = np_walk_over(y_line.ndim, y_line.shape, {&y_line, &x_line, &h_line});
    s.n = all ? y->numel : y->shape[dim];
    s.y_step = step_of(y, dim, all), s.x_step = step_of(&x, dim, all), s.h_step = step_of(&h, dim, all);
    s.segments = (s.n + SEGMENT - 1) / SEGMENT;
    s.x = {x.data, 0, x.dtype}, s.h = {h_in ? h.data : nullptr, 0, h.dtype};
    s.y = y->data, s.dtype = y->dtype;
    const int64_t units = s.w.n * s.segments;
    s.product = static_cast<M *>(k->host->scratch(k, sizeof(M) * (size_t)(2 * units + s.w.n * s.n)));
    if (!s.product) return -1;
    s.before = s.product + units, s.rest = s.before + units;
    return np_done(
        k, NP_TRY(gpu, np_launch(multiply_segments<M>, np_blocks(units), NP_BLOCK, 0, gpu->stream, s)) &&
               NP_TRY(gpu, np_launch(surround_segments<M>, np_blocks(s.w.n), NP_BLOCK, 0, gpu->stream, s)) &&
               NP_TRY(gpu, np_launch(multiply_others<M>, np_blocks(units), NP_BLOCK, 0, gpu->stream, s)));
}

int prod_others(const np_call *k) { return others<plain>(k, nullptr, &k->in[0], &k->attr[0]); }
int prod_others_grad(const np_call *k) { return others<dual>(k, &k->in[0], &k->in[1], &k->attr[0]); }

} // namespace

const np_plugin_row np_rows_others[] = {
    {"prod_others", prod_others},
    {"prod_others_grad", prod_others_grad},
    {nullptr, nullptr},
};
