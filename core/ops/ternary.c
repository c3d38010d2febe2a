/* ternary.c - choices and blends of three operands, element by element. The conventions are those of binary.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* ---- infer shared by the ops of three numbers */

#ifdef NP_BASE_ONLY

/* The shape that all operands broadcast to (absent ones are NULL), or false with E-SHAPE. */
static bool broadcast_all(np_frame *f, int *ndim, int64_t *shape)
{
    char text[3][128];
    *ndim = f->in[0]->ndim;
    memcpy(shape, f->in[0]->shape, sizeof(int64_t) * (size_t)*ndim);
    for (int i = 1; i < f->n_in; i++) {
        if (!f->in[i] || np_broadcast_shape(ndim, shape, f->in[i]->ndim, f->in[i]->shape)) continue;
        for (int k = 0; k < 3; k++) {
            text[k][0] = 0;
            if (f->in[k]) np_shape_text(text[k], sizeof text[k], f->in[k]->ndim, f->in[k]->shape);
        }
        np_fail(f->c, NEAP_E_SHAPE, "%s, %s and %s do not broadcast; sizes must be equal or 1", text[0],
                text[1], text[2]);
        return false;
    }
    return true;
}

/* Three tensors or numbers: broadcast, promoted. */
static bool infer_three(np_frame *f)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    if (!np_same_device(f) || !broadcast_all(f, &ndim, shape)) return false;
    f->compute = np_promote_operands(f->in, 3);
    np_meta_set(f, 0, f->compute, ndim, shape);
    for (int i = 0; i < 3; i++)
        if (!np_number_fits(f->c, f->in[i], f->compute)) return false;
    return true;
}
/* The same; integers give floats. */
static bool infer_three_float(np_frame *f)
{
    const np_ambient_entry *e = np_ambient_get(f->c, NP_AMB_DTYPE);
    if (!infer_three(f)) return false;
    if (!np_is_float(f->compute)) f->compute = e ? (neap_dtype)e->value : NEAP_FLOAT32;
    f->meta[0].dtype = (uint8_t)f->compute;
    return true;
}

/* Values of the last operand in [lo, hi]. */
static bool sample_three(np_sampler *s, int i, double lo, double hi)
{
    static const char *const labels[] = {"same shape", "broadcast", "number", "empty"};
    int64_t rows = np_s_size(s, i == 3 ? 0 : 3, 2048), cols = np_s_size(s, 4, 1024);
    if (i > 3 || (s->size != NP_SMALL && i > 0)) return false;
    s->label = labels[i];
    if (!np_s_tensor(s, -2, 2, i == 1, 2, rows, cols)) return false;
    if (!(i == 1 ? np_s_tensor(s, -2, 2, 0, 1, cols) : np_s_tensor(s, -2, 2, 0, 2, rows, cols))) return false;
    if (i == 1) return np_s_tensor(s, lo, hi, 0, 2, rows, (int64_t)1);
    if (i != 2) return np_s_tensor(s, lo, hi, 0, 2, rows, cols);
    np_s_number(s, (lo + hi) / 2);
    return !np_pending(s->c);
}

#endif

/* ---- bounds */

/* clamp(x, {min=, max=}): x brought into [min, max], each a number or a tensor that broadcasts; min first, so where
 * min > max it is max. NaN stays, and a NaN in a bound gives NaN. The gradient passes where min <= x <= max; elsewhere it
 * goes to the bound that was taken. x:clamp{min = 0}. */
typedef struct nothing {
    char unused;
} nothing;
#define RAISED(x, lo) v_sel(!((x) >= (lo)) & ((x) == (x)), lo, x)
#define LOWERED(x, hi) v_sel(!((x) <= (hi)) & ((x) == (x)), hi, x)
#define CLAMP_FLOAT(S, T, F) \
    static inline T clamp_both_##F(T x, T lo, T hi) \
    { \
        T y = RAISED(x, lo); \
        return LOWERED(y, hi); \
    } \
    NP_RUN2(clamp_low, S, T, T, x, lo, RAISED(x, lo)) \
    NP_RUN2(clamp_high, S, T, T, x, hi, LOWERED(x, hi)) \
    NP_RUN3(clamp, S, T, T, nothing, k, x, lo, hi, clamp_both_##F(x, lo, hi))
#define CLAMP_INT(S, T) \
    NP_RUN2(clamp_low, S, T, T, x, lo, x < lo ? lo : x) \
    NP_RUN2(clamp_high, S, T, T, x, hi, x > hi ? hi : x) \
    NP_RUN3(clamp, S, T, T, nothing, k, x, lo, hi, (x < lo ? lo : x) > hi ? hi : (x < lo ? lo : x))
CLAMP_FLOAT(f32, float, f)
CLAMP_FLOAT(f64, double, d)
CLAMP_INT(i64, int64_t)
CLAMP_INT(i32, int32_t)
CLAMP_INT(i8, int8_t)
CLAMP_INT(u8, uint8_t)
#define NUMBER_RUNS(name) \
    NP_RUNS(name) = {NP_FLOAT_ROWS(name), [NEAP_INT64] = run_##name##_i64, [NEAP_INT32] = run_##name##_i32, \
                     [NEAP_INT8] = run_##name##_i8, [NEAP_UINT8] = run_##name##_u8}
NUMBER_RUNS(clamp_low);
NUMBER_RUNS(clamp_high);
NUMBER_RUNS(clamp);

/* Absent, or an infinite number beside integers: a bound that never binds. */
static inline bool unbound(const neap_tensor *t, neap_dtype as)
{
    return !t || (t->number && !np_is_float(as) && isinf(np_load_double((neap_dtype)t->dtype, np_ptr(t))));
}

NP_CPU(clamp)(np_frame *f)
{
    nothing none = {0};
    bool low = !unbound(f->in[1], f->compute), high = !unbound(f->in[2], f->compute);
    if (!low && !high) return f->out[0] == f->in[0] || np_copy_into(f->c, f->out[0], f->in[0]);
    const np_run_fn *runs = low && high ? run_clamp : low ? run_clamp_low : run_clamp_high;
    uint8_t t = (uint8_t)np_run_type(f->compute);
    np_map_job m = {.run = runs[f->compute],
                    .arg = &none,
                    .n = low && high ? 4 : 3,
                    .type = {t, t, t, t},
                    .t = {f->out[0], f->in[0], low ? f->in[1] : f->in[2], f->in[2]}};
    return np_map_go(f->c, &m);
}

/* hardtanh(x, [min_val = -1], [max_val = 1]): x brought into [min_val, max_val] as by clamp; the slope at both ends is
 * 0. */
typedef struct ends {
    double low, high;
} ends;
NP_MAP1_WITH(hardtanh, ends, k, x, v_sel(x < k.low, k.low, v_sel(x > k.high, k.high, x)))
NP_CPU(hardtanh)(np_frame *f)
{
    ends k = {f->attr[0].f, f->attr[1].f};
    return np_map(f, run_hardtanh, &k);
}

#ifdef NP_BASE_ONLY
static bool bound_ok(np_frame *f, const neap_tensor *t, double none)
{
    if (!t || !t->number) return true;
    double v = np_load_double((neap_dtype)t->dtype, np_ptr(t));
    if (isnan(v)) {
        np_fail(f->c, NEAP_E_ARG, "a bound is NaN");
        return false;
    }
    return v == none || np_number_fits(f->c, t, f->compute);
}
static bool clamp_infer(np_frame *f)
{
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    neap_tensor *real[3];
    int n = 0;
    if (!np_same_device(f)) return false;
    if (!f->in[1] && !f->in[2]) {
        np_fail(f->c, NEAP_E_ARG,
                "neither min nor max is given; say x:clamp{min = 0}, x:clamp{max = 1} or both");
        return false;
    }
    for (int i = 0; i < 3; i++)
        if (f->in[i] && !f->in[i]->number) real[n++] = f->in[i];
    f->compute = np_promote_operands(real, n);
    if (!broadcast_all(f, &ndim, shape)) return false;
    np_meta_set(f, 0, f->compute, ndim, shape);
    return np_no_bool(f) && bound_ok(f, f->in[1], -INFINITY) && bound_ok(f, f->in[2], INFINITY);
}
/* Saved: x, min, max. */
static void clamp_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0], *lo = b->saved[1], *hi = b->saved[2];
    if (b->need[0]) {
        neap_tensor *inside = g;
        if (lo) inside = np_where(b, np_ge(b, x, lo), inside, np_num(b, 0));
        if (hi) inside = np_where(b, np_le(b, x, hi), inside, np_num(b, 0));
        b->dx[0] = np_unbroadcast(b, inside, 0);
    }
    if (b->need[1]) {
        neap_tensor *taken = np_lt(b, x, lo);
        if (hi) taken = np_bitwise_and(b, taken, np_lt(b, lo, hi));
        b->dx[1] = np_unbroadcast(b, np_where(b, taken, g, np_num(b, 0)), 1);
    }
    if (b->need[2]) {
        neap_tensor *taken = np_gt(b, x, hi);
        if (lo) taken = np_bitwise_or(b, taken, np_gt(b, lo, hi));
        b->dx[2] = np_unbroadcast(b, np_where(b, taken, g, np_num(b, 0)), 2);
    }
}
static bool clamp_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"inside",  "min only",  "max only",
                                         "tensors", "broadcast", "min tensor"};
    static const double low[] = {0.05, 1.5, 0}, high[] = {1.25, 0, 0.05};
    int64_t n = np_s_size(s, 3, 1 << 18);
    if (i > 5 || !np_s_tensor(s, 0.1, 1, i % 3, 2, n, (int64_t)4)) return false;
    s->label = labels[i];
    if (i == 2) s->in[s->n_in++] = NULL;
    if (i == 3 || i == 5) np_s_tensor(s, 0.2, 0.5, 1, 2, n, (int64_t)4);
    if (i == 4) np_s_tensor(s, 0.2, 0.5, 0, 1, (int64_t)4);
    if (i < 2) np_s_number(s, low[i]);
    if (i == 1 || i == 5) s->in[s->n_in++] = NULL;
    if (i == 0 || i == 2) np_s_number(s, high[i]);
    if (i == 3) np_s_tensor(s, 0.6, 0.9, 2, 2, n, (int64_t)4);
    if (i == 4) np_s_tensor(s, 0.6, 0.9, 0, 2, n, (int64_t)1);
    return !np_pending(s->c);
}
NP_OP(clamp) = {NP_NAMED(clamp),
                .args = "x:T ; min:N? max:N? -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0), NP_IN(1), NP_IN(2)},
                .infer = clamp_infer,
                .grad = clamp_grad,
                .sample = clamp_sample};
NP_INPLACE_OP(clamp_, clamp);

static bool hardtanh_infer(np_frame *f)
{
    if (f->attr[0].f <= f->attr[1].f) return np_infer_float(f);
    np_fail(f->c, NEAP_E_ARG, "min_val is %g and max_val %g; the former must not be above the latter",
            f->attr[0].f, f->attr[1].f);
    return false;
}
static void hardtanh_grad(np_back *b)
{
    neap_tensor *x = b->saved[0], *low = np_num(b, b->attr[0].f), *high = np_num(b, b->attr[1].f);
    neap_tensor *inside = np_bitwise_and(b, np_gt(b, x, low), np_lt(b, x, high));
    b->dx[0] = np_where(b, inside, b->g[0], np_num(b, 0));
}
static bool hardtanh_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = -0.75, .has = 1};
    s->attr[1] = (np_attr){.f = 1, .has = 1};
    return np_sample_unary(s, i);
}
NP_OP(hardtanh) = {NP_NAMED(hardtanh),
                   .args = "x:T min_val:float=-1 max_val:float=1 -> y:T",
                   .tags = NP_POINTWISE | NP_CHEAP,
                   .save = {NP_IN(0)},
                   .infer = hardtanh_infer,
                   .grad = hardtanh_grad,
                   .sample = hardtanh_sample};
NP_INPLACE_OP(hardtanh_, hardtanh);
#endif

/* ---- choice */

/* where(mask, a, b): a where the mask is true, else b, with broadcasting. The side that is not chosen gets a
 * gradient of exactly 0, whatever its value. neap.where(x:gt(0), x, 0). */
#define WHERE_RUN(S, T) \
    static void run_where_##S(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        (void)arg; \
        T *y = (T *)p[0]; \
        const uint8_t *m = (const uint8_t *)p[1]; \
        const T *a = (const T *)p[2], *b = (const T *)p[3]; \
        if (s[1] && s[2] && s[3]) { \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i], v = b[i]; \
                y[i] = m[i] ? u : v; \
            } \
        } else if (s[1] && s[2]) { \
            const T v = *b; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i]; \
                y[i] = m[i] ? u : v; \
            } \
        } else { \
            int64_t sm = s[1] ? 1 : 0, sa = s[2] ? 1 : 0, sb = s[3] ? 1 : 0; \
            NP_IVDEP for (int64_t i = 0; i < n; i++) \
            { \
                T u = a[i * sa], v = b[i * sb]; \
                y[i] = m[i * sm] ? u : v; \
            } \
        } \
    }
WHERE_RUN(1, uint8_t)
WHERE_RUN(2, uint16_t)
WHERE_RUN(4, uint32_t)
WHERE_RUN(8, uint64_t)
NP_CPU(where)(np_frame *f) /* moves bits: half types need no float */
{
    size_t size = np_dtype_size(f->compute);
    uint8_t t = (uint8_t)f->compute;
    np_map_job m = {.run = size == 1   ? run_where_1
                           : size == 2 ? run_where_2
                           : size == 4 ? run_where_4
                                       : run_where_8,
                    .n = 4,
                    .type = {t, NEAP_BOOL, t, t},
                    .t = {f->out[0], f->in[0], f->in[1], f->in[2]}};
    return np_map_go(f->c, &m);
}

#ifdef NP_BASE_ONLY
static bool where_infer(np_frame *f)
{
    char text[3][128];
    if (!np_same_device(f)) return false;
    if (f->in[0]->dtype != NEAP_BOOL) {
        np_fail(f->c, NEAP_E_DTYPE, "the mask is %s; it must be bool: compare first, as in x:ne(0)",
                np_dtype_name((neap_dtype)f->in[0]->dtype));
        return false;
    }
    int ndim = f->in[0]->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, f->in[0]->shape, sizeof shape);
    for (int i = 1; i < 3; i++) {
        if (np_broadcast_shape(&ndim, shape, f->in[i]->ndim, f->in[i]->shape)) continue;
        for (int k = 0; k < 3; k++) np_shape_text(text[k], sizeof text[k], f->in[k]->ndim, f->in[k]->shape);
        np_fail(f->c, NEAP_E_SHAPE, "mask %s, a %s and b %s do not broadcast; sizes must be equal or 1",
                text[0], text[1], text[2]);
        return false;
    }
    f->compute = np_promote_operands(f->in + 1, 2);
    np_meta_set(f, 0, f->compute, ndim, shape);
    return np_number_fits(f->c, f->in[1], f->compute) && np_number_fits(f->c, f->in[2], f->compute);
}
static void where_grad(np_back *b)
{
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_where(b, b->saved[0], b->g[0], np_num(b, 0)), 1);
    if (b->need[2]) b->dx[2] = np_unbroadcast(b, np_where(b, b->saved[0], np_num(b, 0), b->g[0]), 2);
}
static bool where_sample(np_sampler *s, int i)
{
    static const char *const labels[] = {"same shape", "broadcast", "number"};
    int64_t n = np_s_size(s, 3, 1024);
    if (i > 2 || !np_s_mask(s, 2, n, (int64_t)4)) return false;
    s->label = labels[i];
    if (!np_s_tensor(s, -2, 2, i, 2, n, (int64_t)4)) return false;
    if (i == 0) return np_s_tensor(s, -2, 2, 1, 2, n, (int64_t)4);
    if (i == 1) return np_s_tensor(s, -2, 2, 0, 1, (int64_t)4);
    np_s_number(s, 0.5);
    return true;
}
NP_OP(where) = {NP_NAMED(where),
                .args = "mask:T a:N b:N -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0)},
                .infer = where_infer,
                .grad = where_grad,
                .sample = where_sample};
#endif

/* ---- blends */

/* lerp(a, b, weight): a + weight (b - a), exact at weight 0 and 1; the weight is a number or a tensor. */
NP_RUN3(lerp, f32, float, float, nothing, k, a, b, w,
        v_sel(fabsf(w) < 0.5f, a + w * (b - a), b - (b - a) * (1 - w)))
NP_RUN3(lerp, f64, double, double, nothing, k, a, b, w,
        v_sel(fabs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w)))
NP_RUNS(lerp) = {NP_FLOAT_ROWS(lerp)};
NP_CPU(lerp)(np_frame *f)
{
    nothing none = {0};
    return np_map(f, run_lerp, &none);
}

/* addcmul(x, a, b, {value=1}): x + value a b. */
typedef struct factor {
    double f;
    int64_t i;
} factor;
#define ADDCMUL_INT(S, T) NP_RUN3(addcmul, S, T, T, factor, k, x, a, b, x + (T)k.i * a * b)
NP_RUN3(addcmul, f32, float, float, factor, k, x, a, b, x + (float)k.f * a * b)
NP_RUN3(addcmul, f64, double, double, factor, k, x, a, b, x + k.f * a * b)
ADDCMUL_INT(i64, uint64_t)
ADDCMUL_INT(i32, uint32_t)
ADDCMUL_INT(i8, uint8_t)
ADDCMUL_INT(u8, uint8_t)
NUMBER_RUNS(addcmul);
NP_CPU(addcmul)(np_frame *f)
{
    factor k = {.f = f->attr[0].f};
    np_attr_whole(&f->attr[0], &k.i);
    return np_map(f, run_addcmul, &k);
}

/* addcdiv(x, a, b, {value=1}): x + value a / b; integers give floats. */
NP_RUN3(addcdiv, f32, float, float, factor, k, x, a, b, x + (float)k.f * a / b)
NP_RUN3(addcdiv, f64, double, double, factor, k, x, a, b, x + k.f * a / b)
NP_RUNS(addcdiv) = {NP_FLOAT_ROWS(addcdiv)};
NP_CPU(addcdiv)(np_frame *f)
{
    factor k = {.f = f->attr[0].f};
    return np_map(f, run_addcdiv, &k);
}

#ifdef NP_BASE_ONLY
static void lerp_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *w = b->saved[2];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, np_mul(b, g, np_sub(b, np_num(b, 1), w)), 0);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul(b, g, w), 1);
    if (b->need[2]) b->dx[2] = np_unbroadcast(b, np_mul(b, g, np_sub(b, b->saved[1], b->saved[0])), 2);
}
static bool addcmul_infer(np_frame *f)
{
    return infer_three(f) && np_no_bool(f) && np_attr_fits(f->c, &f->attr[0], f->compute);
}
static void addcmul_grad(np_back *b)
{
    neap_tensor *g = b->g[0];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, g, 0);
    neap_tensor *scaled = np_mul(b, g, np_num(b, b->attr[0].f));
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_mul(b, np_hold(b, scaled), b->saved[1]), 1);
    if (b->need[2]) b->dx[2] = np_unbroadcast(b, np_mul(b, scaled, b->saved[0]), 2);
}
static void addcdiv_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *y = b->saved[1];
    if (b->need[0]) b->dx[0] = np_unbroadcast(b, g, 0);
    neap_tensor *scaled = np_div0(b, np_mul(b, g, np_num(b, b->attr[0].f)), y);
    if (b->need[1]) b->dx[1] = np_unbroadcast(b, np_hold(b, scaled), 1);
    if (b->need[2]) {
        neap_tensor *q = np_mul0(b, scaled, np_div(b, b->saved[0], y));
        b->dx[2] = np_unbroadcast(b, np_neg(b, q), 2);
    }
}
static bool lerp_sample(np_sampler *s, int i) { return sample_three(s, i, -0.3, 1.2); }
static bool addc_sample(np_sampler *s, int i)
{
    s->attr[0] = (np_attr){.f = 1.5, .has = 1};
    return sample_three(s, i, 0.5, 2);
}
NP_OP(lerp) = {NP_NAMED(lerp),
               .args = "a:T b:T weight:N -> y:T",
               .tags = NP_POINTWISE | NP_CHEAP,
               .save = {NP_IN_FOR(0, 2), NP_IN_FOR(1, 2), NP_IN(2)},
               .infer = infer_three_float,
               .grad = lerp_grad,
               .sample = lerp_sample};
NP_OP(addcmul) = {NP_NAMED(addcmul),
                  .args = "x:T a:N b:N ; value:float=1 -> y:T",
                  .tags = NP_POINTWISE | NP_CHEAP,
                  .save = {NP_IN_FOR(1, 2), NP_IN_FOR(2, 1)},
                  .infer = addcmul_infer,
                  .grad = addcmul_grad,
                  .sample = addc_sample};
NP_OP(addcdiv) = {NP_NAMED(addcdiv),
                  .args = "x:T a:N b:N ; value:float=1 -> y:T",
                  .tags = NP_POINTWISE | NP_CHEAP,
                  .save = {NP_IN_FOR(1, 2), {NP_SAVE_IN, 2, 6}},
                  .infer = infer_three_float,
                  .grad = addcdiv_grad,
                  .sample = addc_sample};
NP_INPLACE_OP(lerp_, lerp);
NP_INPLACE_OP(addcmul_, addcmul);
NP_INPLACE_OP(addcdiv_, addcdiv);
#endif
