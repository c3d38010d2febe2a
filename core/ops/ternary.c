/* ternary.c - choices and blends of three operands, element by element. The conventions are those of binary.c. */
#include "ops/cpu/loops.h"
#include "ops/sample.h"

/* x in [lo, hi], NaN stays. */
typedef struct clamp_bounds {
    double lo, hi;
    int64_t ilo, ihi;
} clamp_bounds;

/* clamp(x, {min=, max=}): x brought into [min, max]; NaN stays. The gradient passes where min <= x <= max. */
#define CLAMP_RUN(S, T, LO, HI) \
    static void run_clamp_##S(void *arg, int64_t n, char **p, const int64_t *s) \
    { \
        const clamp_bounds *bounds = arg; \
        const T lo = (T)bounds->LO, hi = (T)bounds->HI; \
        T *y = (T *)p[0]; \
        const T *x = (const T *)p[1]; \
        int64_t step = s[1] ? 1 : 0; \
        NP_IVDEP for (int64_t i = 0; i < n; i++) \
        { \
            T v = x[i * step]; \
            v = v < lo ? lo : v; \
            y[i] = v > hi ? hi : v; \
        } \
    }
CLAMP_RUN(f32, float, lo, hi)
CLAMP_RUN(f64, double, lo, hi)
CLAMP_RUN(i64, int64_t, ilo, ihi)
CLAMP_RUN(i32, int32_t, ilo, ihi)
CLAMP_RUN(i8, int8_t, ilo, ihi)
CLAMP_RUN(u8, uint8_t, ilo, ihi)
NP_RUNS(clamp) = {NP_FLOAT_ROWS(clamp), [NEAP_INT64] = run_clamp_i64, [NEAP_INT32] = run_clamp_i32,
                  [NEAP_INT8] = run_clamp_i8, [NEAP_UINT8] = run_clamp_u8};

NP_CPU(clamp)(np_frame *f)
{
    clamp_bounds b = {.lo = f->attr[0].has ? f->attr[0].f : -INFINITY,
                      .hi = f->attr[1].has ? f->attr[1].f : INFINITY};
    np_int_range(f->compute, &b.ilo, &b.ihi);
    if (f->attr[0].has) np_attr_whole(&f->attr[0], &b.ilo); /* an infinite bound is none */
    if (f->attr[1].has) np_attr_whole(&f->attr[1], &b.ihi);
    return np_map(f, run_clamp, &b);
}

#ifdef NP_BASE_ONLY
static bool clamp_infer(np_frame *f)
{
    if (!np_infer_same_number(f)) return false;
    const np_attr *min = &f->attr[0], *max = &f->attr[1];
    if (min->has || max->has) {
        if ((min->has && isnan(min->f)) || (max->has && isnan(max->f))) {
            np_fail(f->c, NEAP_E_ARG, "a bound is NaN");
            return false;
        }
        return (!min->has || min->f == -INFINITY || np_attr_fits(f->c, min, f->compute)) &&
               (!max->has || max->f == INFINITY || np_attr_fits(f->c, max, f->compute));
    }
    np_fail(f->c, NEAP_E_ARG, "neither min nor max is given; say x:clamp{min = 0}, x:clamp{max = 1} or both");
    return false;
}
static void clamp_grad(np_back *b)
{
    neap_tensor *g = b->g[0], *x = b->saved[0];
    if (b->attr[0].has) g = np_where(b, np_ge(b, x, np_num(b, b->attr[0].f)), g, np_num(b, 0));
    if (b->attr[1].has) g = np_where(b, np_le(b, x, np_num(b, b->attr[1].f)), g, np_num(b, 0));
    b->dx[0] = g;
}
static bool clamp_sample(np_sampler *s, int i)
{
    if (i > 2 || !np_s_tensor(s, 0.1, 1, i, 2, (int64_t)3, (int64_t)4)) return false;
    s->label = i == 0 ? "inside" : i == 1 ? "min only" : "max only";
    if (i != 2) s->attr[0] = (np_attr){.f = i == 0 ? 0.05 : 1.5, .has = 1};
    if (i != 1) s->attr[1] = (np_attr){.f = i == 0 ? 1.25 : 0.05, .has = 1};
    return true;
}
NP_OP(clamp) = {NP_NAMED(clamp),
                .args = "x:T ; min:float? max:float? -> y:T",
                .tags = NP_POINTWISE | NP_CHEAP,
                .save = {NP_IN(0)},
                .infer = clamp_infer,
                .grad = clamp_grad,
                .sample = clamp_sample};
NP_INPLACE_OP(clamp_, clamp);
#endif

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
    int64_t n = s->large ? 1024 : 3;
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
