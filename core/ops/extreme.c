/* extreme.c - the largest and the smallest element and where it is. The first of equal ones wins, a NaN beats all. */
#include "ops/cpu/reduce.h"

/* Extremes: the first of equal ones; the first NaN beats all. OP is > for max. */
#define EXTREME_ROW(name, S, T, F, OP) \
    static void name##_row_##S(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        const T *x = px; \
        if (n == 0 || (a->at >= 0 && a->F != a->F)) return; \
        T best = a->at >= 0 ? (T)a->F : x[0]; \
        int64_t where = a->at >= 0 ? a->at : at; \
        for (int64_t i = 0; i < n && best == best; i++) \
            if (x[i] OP best || x[i] != x[i]) best = x[i], where = at + i; \
        a->F = best, a->at = where; \
    }
#define EXTREME_MERGE(name, S, F, OP) \
    static void name##_merge_##S(np_acc *a, const np_acc *b) \
    { \
        if (b->at >= 0 && (a->at < 0 || (a->F == a->F && (b->F OP a->F || b->F != b->F)))) *a = *b; \
    }
/* float: a vector pass per block finds its extreme; only when that wins is its place looked for. */
#define EXTREME_ROW_F32(name, OP) \
    EXTREME_ROW(name, scan, float, d, OP) \
    static void name##_row_f32(np_acc *a, const void *px, int64_t n, int64_t at) \
    { \
        for (int64_t b = 0; b < n; b += NP_BLOCK) { \
            const float *x = (const float *)px + b; \
            int64_t len = n - b < NP_BLOCK ? n - b : NP_BLOCK, i = 16; \
            if (len < 32) { \
                name##_row_scan(a, x, len, at + b); \
                continue; \
            } \
            float lane[16]; \
            uint32_t nan = 0; \
            memcpy(lane, x, sizeof lane); \
            for (; i + 16 <= len; i += 16) \
                for (int l = 0; l < 16; l++) lane[l] = v_sel_f(x[i + l] OP lane[l], x[i + l], lane[l]); \
            for (; i < len; i++) lane[0] = x[i] OP lane[0] ? x[i] : lane[0]; \
            for (i = 0; i < len; i++) nan |= x[i] != x[i]; \
            float best = lane[0]; \
            for (int l = 1; l < 16; l++) best = lane[l] OP best ? lane[l] : best; \
            if (nan) { \
                name##_row_scan(a, x, len, at + b); \
            } else if (a->at < 0 || best OP(float) a->d) { \
                for (i = 0; x[i] != best; i++) \
                    ; \
                a->d = best, a->at = at + b + i; \
            } \
        } \
    }
/* clang-format off */
#define EXTREME(name, OP) \
    EXTREME_ROW_F32(name, OP) \
    EXTREME_ROW(name, f64, double, d, OP) \
    EXTREME_ROW(name, i64, int64_t, i, OP) \
    EXTREME_ROW(name, i32, int32_t, i, OP) EXTREME_ROW(name, i8, int8_t, i, OP) \
        EXTREME_ROW(name, u8, uint8_t, i, OP) EXTREME_MERGE(name, d, d, OP) EXTREME_MERGE(name, i, i, OP)
/* clang-format on */
EXTREME(max, >)
EXTREME(min, <)

KINDS(max, 0);
KINDS(min, 0);

static void store_extreme(const red_job *j, int64_t o, const np_acc *a)
{
    store_value(j, o, a);
    if (j->out[1]) NP_DATA(int64_t, j->out[1])[o] = a->at + j->base;
}
static void store_position(const red_job *j, int64_t o, const np_acc *a)
{
    NP_DATA(int64_t, j->out[0])[o] = a->at + j->base;
}

/* ---- extremes */

static inline bool extreme(np_frame *f, const red_kind *kinds, bool position)
{
    neap_dtype t = red_type(f->compute);
    return reduce(f, np_dim_mask(&f->attr[0], f->in[0]->ndim), &kinds[t], t,
                  position ? store_position : store_extreme, f->attr[2].i);
}

/* max(x, [dim], {keepdim=}) -> values, positions: the largest along dim and where it is (the first of equal ones,
 * NaN before all). Without dim: the largest of all elements, alone. local v, i = x:max(2).
 * Along a dim the gradient goes to the chosen element; without dim it is shared evenly by all equal ones. */
NP_CPU(max)(np_frame *f) { return extreme(f, max_kinds, false); }

/* min(x, [dim], {keepdim=}) -> values, positions: the smallest along dim and where it is, as max. */
NP_CPU(min)(np_frame *f) { return extreme(f, min_kinds, false); }

/* argmax(x, [dim], {keepdim=}): the position of the largest along dim, or in x laid out in a row. */
NP_CPU(argmax)(np_frame *f) { return extreme(f, max_kinds, true); }

/* argmin(x, [dim], {keepdim=}): the position of the smallest along dim, or in x laid out in a row. */
NP_CPU(argmin)(np_frame *f) { return extreme(f, min_kinds, true); }

/* Moves values between (shape) and its reduced form, at positions ids along dim. */
static inline void move_chosen(neap_tensor *full, neap_tensor *few, const neap_tensor *ids, int dim,
                               int64_t base, bool scatter)
{
    int64_t size = (int64_t)np_itemsize(full), step = full->stride[dim] * size, inner = 1;
    for (int d = dim + 1; d < full->ndim; d++) inner *= full->shape[d];
    for (int64_t k = 0; k < ids->numel; k++) {
        int64_t id, outer = k / inner, rest = k % inner, at = 0, src = 0, r = k;
        np_read_block(ids, k, 1, NEAP_INT64, &id);
        for (int d = full->ndim - 1; d > dim; d--)
            at += rest % full->shape[d] * full->stride[d], rest /= full->shape[d];
        for (int d = dim - 1; d >= 0; d--)
            at += outer % full->shape[d] * full->stride[d], outer /= full->shape[d];
        for (int d = few->ndim - 1; d >= 0; d--)
            src += r % few->shape[d] * few->stride[d], r /= few->shape[d];
        char *a = np_ptr(full) + at * size + (id - base) * step, *b = np_ptr(few) + src * size;
        memcpy(scatter ? a : b, scatter ? b : a, (size_t)size);
    }
}

/* max_scatter(g, ids, shape, dim): zeros of that shape with g at positions ids along dim. */
NP_CPU(max_scatter)(np_frame *f)
{
    if (!np_fill_zero(f->c, f->out[0])) return false;
    move_chosen(f->out[0], f->in[0], f->in[1], (int)f->attr[1].i, f->attr[2].i, true);
    return true;
}

/* max_pick(x, ids, dim): the elements of x at positions ids along dim, in the shape of ids. */
NP_CPU(max_pick)(np_frame *f)
{
    move_chosen(f->in[0], f->out[0], f->in[1], (int)f->attr[0].i, f->attr[1].i, false);
    return true;
}

#ifdef NP_BASE_ONLY
bool np_infer_extreme(np_frame *f)
{
    if (!np_infer_dim(f, true)) return false;
    uint32_t mask = np_dim_mask(&f->attr[0], f->in[0]->ndim);
    np_reduced_meta(f, 0, f->compute, mask, f->attr[1].i != 0);
    if (f->attr[0].has) np_reduced_meta(f, 1, NEAP_INT64, mask, f->attr[1].i != 0);
    else f->n_out = 1;
    return true;
}
static bool position_infer(np_frame *f)
{
    if (!np_infer_dim(f, true)) return false;
    np_reduced_meta(f, 0, NEAP_INT64, np_dim_mask(&f->attr[0], f->in[0]->ndim), f->attr[1].i != 0);
    return true;
}
/* Saved: x, values, positions. */
void np_extreme_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *y = b->saved[1];
    const np_attr *dim = &b->attr[0];
    if (dim->has && x->ndim > 0) {
        int64_t d = dim->i < 0 ? dim->i + x->ndim : dim->i;
        b->dx[0] = np_max_scatter(b, g, b->saved[2], x->shape, x->ndim, d, b->attr[2].i);
        return;
    }
    neap_tensor *chosen = np_hold(b, np_eq(b, x, y));
    neap_tensor *share = np_div0(b, g, np_sum(b, chosen, NULL, 0, false));
    b->dx[0] = np_where(b, chosen, share, np_num(b, 0));
}
static bool max_scatter_infer(np_frame *f)
{
    if (!np_same_device(f)) return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, f->attr[0].n, f->attr[0].v);
    return true;
}
static void max_scatter_grad(np_back *b)
{
    b->dx[0] = np_max_pick(b, b->g[0], b->saved[0], b->attr[1].i, b->attr[2].i);
}
static bool max_pick_infer(np_frame *f)
{
    if (!np_same_device(f)) return false;
    np_meta_set(f, 0, (neap_dtype)f->in[0]->dtype, f->in[1]->ndim, f->in[1]->shape);
    return true;
}
static void max_pick_grad(np_back *b)
{
    int ndim = 0;
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_x_shape(b, &ndim, shape)) return;
    b->dx[0] = np_max_scatter(b, b->g[0], b->saved[0], shape, ndim, b->attr[0].i, b->attr[1].i);
}
static bool max_scatter_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    s->label = "last";
    memcpy(s->lists[0], (int64_t[]){2, 3}, 2 * sizeof(int64_t));
    s->attr[0] = (np_attr){.v = s->lists[0], .n = 2, .has = 1};
    s->attr[1] = (np_attr){.i = 1, .has = 1};
    s->attr[2] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, -2, 2, 0, 1, (int64_t)2) && np_s_ids(s, 0, 2, 1, (int64_t)2);
}
static bool max_pick_sample(np_sampler *s, int i)
{
    if (i > 0) return false;
    s->label = "first";
    s->attr[0] = s->attr[1] = (np_attr){.i = 0, .has = 1};
    return np_s_tensor(s, -2, 2, 1, 2, (int64_t)3, (int64_t)2) && np_s_ids(s, 0, 2, 1, (int64_t)2);
}
#define EXTREME_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), \
                     .args = "x:T dim:dim? ; keepdim:bool=false base:base -> values:T indices:T", \
                     .tags = NP_REDUCE | NP_CHEAP, \
                     .save = {NP_IN(0), NP_OUT(0), NP_OUT(1)}, \
                     .infer = np_infer_extreme, \
                     .grad = np_extreme_grad, \
                     .sample = np_sample_dim};
#define POSITION_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), .args = "x:T dim:dim? ; keepdim:bool=false base:base -> indices:T", \
                     .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF, .infer = position_infer, \
                     .sample = np_sample_dim};
EXTREME_OP(max)
EXTREME_OP(min)
POSITION_OP(argmax)
POSITION_OP(argmin)
NP_OP(max_scatter) = {
    NP_NAMED(max_scatter),          .args = "g:T ids:T shape:shape dim:dim base:base -> y:T",
    .tags = NP_CHEAP | NP_INTERNAL, .save = {NP_IN(1)},
    .infer = max_scatter_infer,     .grad = max_scatter_grad,
    .sample = max_scatter_sample};
NP_OP(max_pick) = {NP_NAMED(max_pick),
                   .args = "x:T ids:T dim:dim base:base -> y:T",
                   .tags = NP_CHEAP | NP_INTERNAL,
                   .save = {NP_IN(1)},
                   .infer = max_pick_infer,
                   .grad = max_pick_grad,
                   .sample = max_pick_sample};
#endif

/* ---- extremes over several dims, values only */

/* amax(x, [dims], {keepdim=}): the largest over dims, or of all. The gradient is shared evenly by all equal ones. */
NP_CPU(amax)(np_frame *f)
{
    neap_dtype t = red_type(f->compute);
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &max_kinds[t], t, store_value, 0);
}

/* amin(x, [dims], {keepdim=}): the smallest over dims, or of all. The gradient is shared evenly by all equal ones. */
NP_CPU(amin)(np_frame *f)
{
    neap_dtype t = red_type(f->compute);
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &min_kinds[t], t, store_value, 0);
}

#ifdef NP_BASE_ONLY
static bool amax_infer(np_frame *f)
{
    const neap_tensor *x = f->in[0];
    char text[128];
    if (!np_infer_dims(f, (neap_dtype)x->dtype)) return false;
    uint32_t mask = np_dims_mask(&f->attr[0], x->ndim);
    for (int d = 0; d < x->ndim; d++) {
        if (!(mask >> d & 1) || x->shape[d] > 0) continue;
        np_fail(f->c, NEAP_E_SHAPE, "dimension %d of %s has size 0: there is nothing to choose from",
                d + f->c->base, np_tensor_text(text, sizeof text, x));
        return false;
    }
    return true;
}
/* Saved: x, values. */
static void amax_grad(np_back *b)
{
    const np_attr *a = &b->attr[0];
    neap_tensor *chosen = np_hold(b, np_eq(b, b->saved[0], np_spread_dims(b, b->saved[1])));
    neap_tensor *count = np_sum(b, chosen, a->has ? a->v : NULL, a->n, b->attr[1].i != 0);
    neap_tensor *share = np_spread_dims(b, np_div0(b, b->g[0], count));
    b->dx[0] = np_where(b, chosen, share, np_num(b, 0));
}
static bool amax_sample(np_sampler *s, int i) { return i < 7 && np_sample_dims(s, i); }
#define AMAX_OP(opname) \
    NP_OP(opname) = {NP_NAMED(opname), \
                     .args = "x:T dims:dims? ; keepdim:bool=false -> y:T", \
                     .tags = NP_REDUCE | NP_CHEAP, \
                     .save = {NP_IN(0), NP_OUT(0)}, \
                     .infer = amax_infer, \
                     .grad = amax_grad, \
                     .sample = amax_sample};
AMAX_OP(amax)
AMAX_OP(amin)
#endif
