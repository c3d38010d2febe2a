/* sum.c - sums and means over some or all dimensions, and spread, which takes their gradients back. */
#include "ops/cpu/reduce.h"

#define SUM_ROW_INT(S, T) \
    static void sum_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        (void)at; \
        const T *x = px; \
        uint64_t s = 0; \
        for (int64_t i = 0; i < n; i++) s += (uint64_t)(int64_t)x[i]; \
        a->i = (int64_t)((uint64_t)a->i + s); \
    }
SUM_ROW_INT(i64, int64_t)
SUM_ROW_INT(i32, int32_t)
SUM_ROW_INT(i8, int8_t)
SUM_ROW_INT(u8, uint8_t)

/* As RED_SUM_ROW, to the bit, in vectors that convert as they load. */
typedef double double4 __attribute__((vector_size(32)));
#if NP_ISA >= 1
#define LOAD4(p) ((double4)_mm256_cvtps_pd(_mm_loadu_ps(p)))
#else
#define LOAD4(p) ((double4){(double)(p)[0], (double)(p)[1], (double)(p)[2], (double)(p)[3]})
#endif
static void sum_row_f32(np_acc *a, const void *px, int64_t n, int64_t at)
{
    const float *x = px;
    double4 s[4] = {{0}, {0}, {0}, {0}};
    double rest = 0;
    int64_t i = 0;
    (void)at;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 4; l++) s[l] += LOAD4(x + i + 4 * l);
    for (; i < n; i++) rest += (double)x[i];
    double4 all = (s[0] + s[2]) + (s[1] + s[3]);
    a->d += ((all[0] + all[2]) + (all[1] + all[3])) + rest;
}
RED_SUM_ROW(sum, f64, double, v, k, v)

#define SUM_COLS(S, T, A) RED_COLS_OF(sum_cols_##S, T, A, A, v, k, v)
SUM_COLS(f32, float, double)
SUM_COLS(f64, double, double)
SUM_COLS(i64, int64_t, uint64_t)
SUM_COLS(i32, int32_t, uint64_t)
SUM_COLS(i8, int8_t, uint64_t)
SUM_COLS(u8, uint8_t, uint64_t)

static void sum_merge_i(np_acc *a, const np_acc *b) { a->i = (int64_t)((uint64_t)a->i + (uint64_t)b->i); }

#define SUM_KIND(S, F) \
    { \
        .start = {.at = -1}, .row = sum_row_##S, .merge = sum_merge_##F, .cols = sum_cols_##S, \
        .is_int = #F[0] == 'i' \
    }
static const red_kind sum_kinds[NEAP_N_DTYPES] = {
    [NEAP_FLOAT32] = SUM_KIND(f32, d), [NEAP_FLOAT64] = SUM_KIND(f64, d), [NEAP_INT64] = SUM_KIND(i64, i),
    [NEAP_INT32] = SUM_KIND(i32, i),   [NEAP_INT8] = SUM_KIND(i8, i),     [NEAP_UINT8] = SUM_KIND(u8, i),
    [NEAP_BOOL] = SUM_KIND(u8, i),
};
static void store_mean(const red_job *j, int64_t o, const np_acc *a)
{
    double sum = j->kind->is_int ? (double)a->i : a->d;
    neap_dtype t = (neap_dtype)j->out[0]->dtype;
    np_store_double(t, np_ptr(j->out[0]) + o * (int64_t)np_dtype_size(t), sum / (double)j->n);
}
/* ---- sums */

/* sum(x, [dims], {keepdim=}): the sum over dims, or over all. Integers and bool give int64. Half types and
 * float32 add up in double. x:sum(), x:sum(2), x:sum({1, 2}, {keepdim = true}). */
NP_CPU(sum)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &sum_kinds[t], t, store_value, 0);
}

/* mean(x, [dims], {keepdim=}): the average over dims, or over all; of nothing NaN; integers give floats. */
NP_CPU(mean)(np_frame *f)
{
    neap_dtype t = red_type((neap_dtype)f->in[0]->dtype);
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &sum_kinds[t], t, store_mean, 0);
}

#ifdef NP_BASE_ONLY
static bool sum_infer(np_frame *f) { return np_infer_dims(f, np_summed((neap_dtype)f->in[0]->dtype)); }
static bool mean_infer(np_frame *f)
{
    return np_infer_float(f) && np_infer_dims(f, (neap_dtype)f->meta[0].dtype);
}

/* The shape of the node's input 0. */
bool np_x_shape(np_back *b, int *ndim, int64_t *shape)
{
    neap_dtype t;
    return np_input_shape(b, 0, ndim, shape, &t);
}
/* g of a result with reduced dims, repeated over them. */
neap_tensor *np_spread_dims(np_back *b, neap_tensor *g)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_x_shape(b, &ndim, shape)) return NULL;
    const np_attr *a = &b->attr[0];
    return np_spread(b, g, shape, ndim, a->has ? a->v : NULL, a->n, b->attr[1].i != 0);
}
/* The same for ops with one optional dim. */
neap_tensor *np_spread_dim(np_back *b, neap_tensor *g)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_x_shape(b, &ndim, shape)) return NULL;
    const np_attr *a = &b->attr[0];
    return np_spread(b, g, shape, ndim, a->has ? &a->i : NULL, a->has, b->attr[1].i != 0);
}

static void sum_grad(np_back *b) { b->dx[0] = np_spread_dims(b, b->g[0]); }
static void mean_grad(np_back *b)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS], n = 1;
    if (!np_x_shape(b, &ndim, shape)) return;
    uint32_t mask = np_dims_mask(&b->attr[0], ndim);
    for (int d = 0; d < ndim; d++)
        if (mask >> d & 1) n *= shape[d];
    b->dx[0] = np_spread_dims(b, np_div(b, b->g[0], np_num(b, (double)n)));
}
NP_OP(sum) = {NP_NAMED(sum),
              .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
              .infer = sum_infer,
              .grad = sum_grad,
              .sample = np_sample_dims};
NP_OP(mean) = {NP_NAMED(mean),
               .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
               .tags = NP_REDUCE | NP_CHEAP | NP_CAST_FLOAT32,
               .infer = mean_infer,
               .grad = mean_grad,
               .sample = np_sample_dims};

/* spread(g, shape, [dims], keepdim): a view of g repeated over the dims that a reduction removed. */
static bool spread_infer(np_frame *f)
{
    const neap_tensor *g = f->in[0];
    const np_attr *shape = &f->attr[0];
    uint32_t mask = np_dims_mask(&f->attr[1], shape->n);
    int64_t stride[NEAP_MAX_DIMS];
    if (!np_same_device(f)) return false;
    for (int d = 0, k = 0; d < shape->n; d++) {
        bool reduced = mask >> d & 1;
        stride[d] = reduced ? 0 : g->stride[k];
        if (!reduced || f->attr[2].i) k++;
    }
    f->compute = (neap_dtype)g->dtype;
    np_meta_view(f, 0, shape->n, shape->v, stride, g->offset);
    return true;
}
static void spread_grad(np_back *b)
{
    const np_attr *a = &b->attr[1];
    b->dx[0] = np_sum(b, b->g[0], a->has ? a->v : NULL, a->n, b->attr[2].i != 0);
}
static bool spread_sample(np_sampler *s, int i)
{
    if (i > 1) return false;
    s->label = i ? "all" : "middle";
    memcpy(s->lists[0], (int64_t[]){2, 3, 4}, 3 * sizeof(int64_t));
    s->lists[1][0] = 1;
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 3, .has = 1};
    if (!i) s->attr[1] = (np_attr){.v = s->lists[1], .n = 1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return i ? np_s_tensor(s, -2, 2, 0, 0) : np_s_tensor(s, -2, 2, 0, 2, (int64_t)2, (int64_t)4);
}
NP_OP(spread) = {NP_NAMED(spread),
                 .args = "g:T shape:shape dims:dims? keepdim:bool -> y:T",
                 .tags = NP_VIEW | NP_INTERNAL,
                 .infer = spread_infer,
                 .grad = spread_grad,
                 .sample = spread_sample};
#endif
