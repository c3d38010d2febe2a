/* loops.h - from an expression to a pointwise kernel over all dtypes, layouts and threads.
 *
 *     NP_MAP1(exp, x, v_exp(x))
 *     NP_CPU(exp)(np_frame *f) { return np_map(f, run_exp, NULL); }
 *
 * NP_MAP1 and NP_MAP2 define one run function per compute type and the table run_<name>, indexed by dtype. A
 * run sees operands of its own type, each either dense or one repeated element (byte stride 0), and a dense
 * result that may be exactly one of the operands (in-place forms). Everything else is bridged here: operands of
 * another dtype or with gaps are loaded in blocks of 256 on the stack (no temporary tensor), numbers and
 * one-element operands become one value of the compute type. Half types compute in float.
 * Contiguous operands skip the iterator; below NP_GRAIN elements no thread is asked. Results of 8 MiB and more
 * bypass the cache. Work is cut by shape alone. */
#ifndef NP_LOOPS_H
#define NP_LOOPS_H

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "ops/cpu/vec.h"
#include "ops/op.h"

#if defined(__clang__)
#define NP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define NP_IVDEP _Pragma("GCC ivdep")
#endif

#define NP_BLOCK 256 /* elements of one stack block */
#define NP_STREAM_BYTES (8 << 20)

/* ---- run functions: S a suffix, R the result's C type, T the operands'; expr must not use
 * the names arg, p, s, px, pa, pb or names that end in _ */

#define NP_RUN1(name, S, R, T, x, expr) \
    static void run_##name##_##S(void *arg, int64_t n_, char **p, const int64_t *s) \
    { \
        (void)arg; \
        R *out_ = (R *)p[0]; \
        const T *px = (const T *)p[1]; \
        if (s[1]) { \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T x = px[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else { \
            const T x = *px; \
            const R one_ = (R)(expr); \
            for (int64_t i_ = 0; i_ < n_; i_++) out_[i_] = one_; \
        } \
    }

#define NP_RUN2(name, S, R, T, a, b, expr) \
    static void run_##name##_##S(void *arg, int64_t n_, char **p, const int64_t *s) \
    { \
        (void)arg; \
        R *out_ = (R *)p[0]; \
        const T *pa = (const T *)p[1], *pb = (const T *)p[2]; \
        if (s[1] && s[2]) { \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_], b = pb[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else if (s[1]) { \
            const T b = *pb; \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else if (s[2]) { \
            const T a = *pa; \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T b = pb[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else { \
            const T a = *pa, b = *pb; \
            const R one_ = (R)(expr); \
            for (int64_t i_ = 0; i_ < n_; i_++) out_[i_] = one_; \
        } \
    }

/* Three operands, and operands beside a struct behind np_map's arg: k is a copy of it. */
#define NP_RUN3(name, S, R, T, A, k, a, b, c, expr) \
    static void run_##name##_##S(void *arg, int64_t n_, char **p, const int64_t *s) \
    { \
        const A k = *(const A *)arg; \
        (void)k; \
        R *out_ = (R *)p[0]; \
        const T *pa = (const T *)p[1], *pb = (const T *)p[2], *pc = (const T *)p[3]; \
        if (s[1] && s[2] && s[3]) { \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_], b = pb[i_], c = pc[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else { \
            const int64_t sa_ = s[1] ? 1 : 0, sb_ = s[2] ? 1 : 0, sc_ = s[3] ? 1 : 0; \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_ * sa_], b = pb[i_ * sb_], c = pc[i_ * sc_]; \
                out_[i_] = (R)(expr); \
            } \
        } \
    }
#define NP_RUN2_WITH(name, S, R, T, A, k, a, b, expr) \
    static void run_##name##_##S(void *arg, int64_t n_, char **p, const int64_t *s) \
    { \
        const A k = *(const A *)arg; \
        R *out_ = (R *)p[0]; \
        const T *pa = (const T *)p[1], *pb = (const T *)p[2]; \
        if (s[1] && s[2]) { \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_], b = pb[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else { \
            const int64_t sa_ = s[1] ? 1 : 0, sb_ = s[2] ? 1 : 0; \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T a = pa[i_ * sa_], b = pb[i_ * sb_]; \
                out_[i_] = (R)(expr); \
            } \
        } \
    }
#define NP_RUN1_WITH(name, S, R, T, A, k, x, expr) \
    static void run_##name##_##S(void *arg, int64_t n_, char **p, const int64_t *s) \
    { \
        const A k = *(const A *)arg; \
        R *out_ = (R *)p[0]; \
        const T *px = (const T *)p[1]; \
        if (s[1]) { \
            NP_IVDEP for (int64_t i_ = 0; i_ < n_; i_++) \
            { \
                const T x = px[i_]; \
                out_[i_] = (R)(expr); \
            } \
        } else { \
            const T x = *px; \
            const R one_ = (R)(expr); \
            for (int64_t i_ = 0; i_ < n_; i_++) out_[i_] = one_; \
        } \
    }

#define NP_FLOAT_ROWS(name) \
    [NEAP_FLOAT32] = run_##name##_f32, [NEAP_FLOAT64] = run_##name##_f64, [NEAP_FLOAT16] = run_##name##_f32, \
    [NEAP_BFLOAT16] = run_##name##_f32
#define NP_INT_ROWS(name) \
    [NEAP_INT64] = run_##name##_i64, [NEAP_INT32] = run_##name##_i32, [NEAP_INT8] = run_##name##_i8, \
    [NEAP_UINT8] = run_##name##_u8, [NEAP_BOOL] = run_##name##_u1
#define NP_RUNS(name) static const np_run_fn run_##name[NEAP_N_DTYPES]

/* Float dtypes only. */
#define NP_MAP1(name, x, expr) \
    NP_RUN1(name, f32, float, float, x, expr) \
    NP_RUN1(name, f64, double, double, x, expr) NP_RUNS(name) = {NP_FLOAT_ROWS(name)};
#define NP_MAP2(name, a, b, expr) \
    NP_RUN2(name, f32, float, float, a, b, expr) \
    NP_RUN2(name, f64, double, double, a, b, expr) NP_RUNS(name) = {NP_FLOAT_ROWS(name)};

#define NP_MAP1_WITH(name, A, k, x, expr) \
    NP_RUN1_WITH(name, f32, float, float, A, k, x, expr) \
    NP_RUN1_WITH(name, f64, double, double, A, k, x, expr) NP_RUNS(name) = {NP_FLOAT_ROWS(name)};

/* One expression for floats (fe) and one for integers (ie). _WRAP: integers are seen as unsigned of their width,
 * so that + - * wrap without undefined behaviour; _ANY: as they are. */
/* clang-format off */
#define NP_INTS1(name, I64, I32, I8, x, ie) \
    NP_RUN1(name, i64, I64, I64, x, ie) \
    NP_RUN1(name, i32, I32, I32, x, ie) \
    NP_RUN1(name, i8, I8, I8, x, ie) NP_RUN1(name, u8, uint8_t, uint8_t, x, ie) \
        NP_RUN1(name, u1, bool, bool, x, (ie) != 0)
/* clang-format on */
#define NP_INTS2(name, I64, I32, I8, a, b, ie) \
    NP_RUN2(name, i64, I64, I64, a, b, ie) \
    NP_RUN2(name, i32, I32, I32, a, b, ie) \
    NP_RUN2(name, i8, I8, I8, a, b, ie) \
    NP_RUN2(name, u8, uint8_t, uint8_t, a, b, ie) NP_RUN2(name, u1, bool, bool, a, b, ((ie) != 0))
#define NP_ALL1(name, I64, I32, I8, x, fe, ie) \
    NP_RUN1(name, f32, float, float, x, fe) \
    NP_RUN1(name, f64, double, double, x, fe) \
    NP_INTS1(name, I64, I32, I8, x, ie) NP_RUNS(name) = {NP_FLOAT_ROWS(name), NP_INT_ROWS(name)};
#define NP_ALL2(name, I64, I32, I8, a, b, fe, ie) \
    NP_RUN2(name, f32, float, float, a, b, fe) \
    NP_RUN2(name, f64, double, double, a, b, fe) \
    NP_INTS2(name, I64, I32, I8, a, b, ie) NP_RUNS(name) = {NP_FLOAT_ROWS(name), NP_INT_ROWS(name)};
#define NP_MAP1_WRAP(name, x, fe, ie) NP_ALL1(name, uint64_t, uint32_t, uint8_t, x, fe, ie)
#define NP_MAP1_ANY(name, x, fe, ie) NP_ALL1(name, int64_t, int32_t, int8_t, x, fe, ie)
#define NP_MAP2_WRAP(name, a, b, fe, ie) NP_ALL2(name, uint64_t, uint32_t, uint8_t, a, b, fe, ie)
#define NP_MAP2_ANY(name, a, b, fe, ie) NP_ALL2(name, int64_t, int32_t, int8_t, a, b, fe, ie)

/* Integers and bool only (bitwise ops). */
#define NP_MAP1_INT(name, x, ie) \
    NP_INTS1(name, int64_t, int32_t, int8_t, x, ie) NP_RUNS(name) = {NP_INT_ROWS(name)};
#define NP_MAP2_INT(name, a, b, ie) \
    NP_INTS2(name, int64_t, int32_t, int8_t, a, b, ie) NP_RUNS(name) = {NP_INT_ROWS(name)};

/* Tests of one or two values: the result is bool. */
/* clang-format off */
#define NP_TEST1(name, x, fe, ie) \
    NP_RUN1(name, f32, bool, float, x, fe) \
    NP_RUN1(name, f64, bool, double, x, fe) \
    NP_RUN1(name, i64, bool, int64_t, x, ie) \
    NP_RUN1(name, i32, bool, int32_t, x, ie) NP_RUN1(name, i8, bool, int8_t, x, ie) \
        NP_RUN1(name, u8, bool, uint8_t, x, ie) NP_RUN1(name, u1, bool, bool, x, ie) \
            NP_RUNS(name) = {NP_FLOAT_ROWS(name), NP_INT_ROWS(name)};
#define NP_TEST2(name, a, b, expr) \
    NP_RUN2(name, f32, bool, float, a, b, expr) \
    NP_RUN2(name, f64, bool, double, a, b, expr) \
    NP_RUN2(name, i64, bool, int64_t, a, b, expr) \
    NP_RUN2(name, i32, bool, int32_t, a, b, expr) \
    NP_RUN2(name, i8, bool, int8_t, a, b, expr) NP_RUN2(name, u8, bool, uint8_t, a, b, expr) \
        NP_RUN2(name, u1, bool, bool, a, b, expr) NP_RUNS(name) = {NP_FLOAT_ROWS(name), NP_INT_ROWS(name)};
/* clang-format on */

/* ---- elements in and out of stack blocks */

/* The type that kernels compute a dtype in. */
static inline neap_dtype np_run_type(neap_dtype t)
{
    return t == NEAP_FLOAT16 || t == NEAP_BFLOAT16 ? NEAP_FLOAT32 : t;
}

#define NP_COPY_STRIDED(T, d, ds, s, ss, n) \
    for (int64_t i = 0; i < (n); i++) *(T *)((d) + i * (ds)) = *(const T *)((s) + i * (ss))

static inline void np_move(size_t size, char *d, int64_t ds, const char *s, int64_t ss, int64_t n)
{
    if (ds == (int64_t)size && ss == (int64_t)size) {
        memcpy(d, s, (size_t)n * size);
        return;
    }
    switch (size) {
    case 1: NP_COPY_STRIDED(uint8_t, d, ds, s, ss, n); break;
    case 2: NP_COPY_STRIDED(uint16_t, d, ds, s, ss, n); break;
    case 4: NP_COPY_STRIDED(uint32_t, d, ds, s, ss, n); break;
    default: NP_COPY_STRIDED(uint64_t, d, ds, s, ss, n); break;
    }
}

/* n elements of dtype `from` at byte stride ss -> dense elements of type t. */
static inline void np_block_load(neap_dtype t, void *dst, neap_dtype from, const char *src, int64_t ss,
                                 int64_t n)
{
    if (t == from) {
        np_move(np_sizes[t], dst, (int64_t)np_sizes[t], src, ss, n);
        return;
    }
    if (t == NEAP_FLOAT32 && ss == 2 && from == NEAP_BFLOAT16) {
        const np_bf16 *s = (const np_bf16 *)src;
        uint32_t *d = dst;
        for (int64_t i = 0; i < n; i++) d[i] = (uint32_t)s[i] << 16;
        return;
    }
#if defined(__F16C__)
    if (t == NEAP_FLOAT32 && ss == 2 && from == NEAP_FLOAT16) {
        float *d = dst;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(d + i,
                             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i))));
        for (; i < n; i++) d[i] = _cvtsh_ss(((const np_half *)src)[i]);
        return;
    }
#endif
    np_convert(t, dst, (int64_t)np_sizes[t], from, src, ss, n);
}

/* The way back: n dense elements of type t -> dtype `to` at byte stride ds. */
static inline void np_block_store(neap_dtype to, char *dst, int64_t ds, neap_dtype t, const void *src,
                                  int64_t n)
{
    if (t == to) {
        np_move(np_sizes[t], dst, ds, src, (int64_t)np_sizes[t], n);
        return;
    }
    if (t == NEAP_FLOAT32 && ds == 2 && to == NEAP_BFLOAT16) {
        const uint32_t *s = src;
        np_bf16 *d = (np_bf16 *)dst;
        for (int64_t i = 0; i < n; i++) {
            uint32_t u = s[i], r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, q = (u >> 16) | 0x40u;
            uint32_t m = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
            d[i] = (np_bf16)((q & m) | (r & ~m));
        }
        return;
    }
#if defined(__F16C__)
    if (t == NEAP_FLOAT32 && ds == 2 && to == NEAP_FLOAT16) {
        const float *s = src;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), _mm256_cvtps_ph(_mm256_loadu_ps(s + i), 0));
        for (; i < n; i++) ((np_half *)dst)[i] = (np_half)_cvtss_sh(s[i], 0);
        return;
    }
#endif
    np_convert(to, dst, ds, t, src, (int64_t)np_sizes[t], n);
}

/* The one element of t as type `as`, into 8 bytes. Numbers (double) become float without a call. */
static inline void np_scalar(neap_dtype as, void *dst, const neap_tensor *t)
{
    const char *src = np_ptr(t);
    if (t->dtype == NEAP_FLOAT64 && as == NEAP_FLOAT32) *(float *)dst = (float)*(const double *)src;
    else if (t->dtype == as) memcpy(dst, src, np_sizes[as]);
    else np_convert(as, dst, 8, (neap_dtype)t->dtype, src, 8, 1);
}

/* Writes a finished block around the cache. */
static inline void np_stream(char *dst, const void *src, size_t bytes)
{
#if defined(__SSE2__)
    if (((uintptr_t)dst & 15) == 0) {
        size_t i = 0;
        for (; i + 16 <= bytes; i += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + i),
                             _mm_load_si128((const __m128i *)(const void *)((const char *)src + i)));
        memcpy(dst + i, (const char *)src + i, bytes - i);
        return;
    }
#endif
    memcpy(dst, src, bytes);
}
static inline void np_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* ---- the driver */

#define NP_MAP_MAX 4 /* result and three operands */
typedef struct np_map_job {
    np_run_fn run;
    void *arg;
    int n; /* operands, 0 is the result */
    bool stream;
    uint8_t type[NP_MAP_MAX];  /* what the run sees */
    uint8_t dtype[NP_MAP_MAX]; /* what lies in memory (the run's type for loaded scalars) */
    neap_tensor *t[NP_MAP_MAX];
    char *p[NP_MAP_MAX];
    int64_t s[NP_MAP_MAX]; /* byte strides of the flat case */
    _Alignas(16) unsigned char scalar[NP_MAP_MAX][8];
    int64_t numel;
} np_map_job;

/* Blocks of a run whose operands do not all look as the run function wants them. */
static inline void np_map_blocks(const np_map_job *m, int64_t n, char **p, const int64_t *s)
{
    _Alignas(64) unsigned char buf[NP_MAP_MAX][NP_BLOCK * 8];
    char *q[NP_MAP_MAX];
    int64_t qs[NP_MAP_MAX];
    bool load[NP_MAP_MAX];
    for (int k = 0; k < m->n; k++) {
        int64_t size = (int64_t)np_sizes[m->type[k]];
        bool same = m->dtype[k] == m->type[k];
        load[k] = !same || (s[k] != size && (s[k] != 0 || k == 0));
        qs[k] = s[k] == 0 && k > 0 ? 0 : size;
        if (load[k] && qs[k] == 0) /* one value for the whole run */
            np_block_load((neap_dtype)m->type[k], buf[k], (neap_dtype)m->dtype[k], p[k], 0, 1);
    }
    for (int64_t i = 0; i < n; i += NP_BLOCK) {
        int64_t len = n - i < NP_BLOCK ? n - i : NP_BLOCK;
        for (int k = 0; k < m->n; k++) {
            q[k] = load[k] || (k == 0 && m->stream) ? (char *)buf[k] : p[k] + i * s[k];
            if (k > 0 && load[k] && qs[k])
                np_block_load((neap_dtype)m->type[k], buf[k], (neap_dtype)m->dtype[k], p[k] + i * s[k], s[k],
                              len);
        }
        m->run(m->arg, len, q, qs);
        if (load[0])
            np_block_store((neap_dtype)m->dtype[0], p[0] + i * s[0], s[0], (neap_dtype)m->type[0], buf[0],
                           len);
        else if (m->stream) np_stream(p[0] + i * s[0], buf[0], (size_t)(len * qs[0]));
    }
    if (m->stream) np_stream_end();
}

static inline void np_map_some(void *job, int64_t n, char **p, const int64_t *s)
{
    const np_map_job *m = job;
    bool plain = !m->stream;
    for (int k = 0; k < m->n; k++) {
        int64_t size = (int64_t)np_sizes[m->type[k]];
        plain = plain && m->dtype[k] == m->type[k] && (s[k] == size || (s[k] == 0 && k > 0));
    }
    if (plain) m->run(m->arg, n, p, s);
    else np_map_blocks(m, n, p, s);
}

static inline void np_map_chunk(void *job, int64_t chunk)
{
    const np_map_job *m = job;
    int64_t begin = chunk * NP_GRAIN, n = m->numel - begin < NP_GRAIN ? m->numel - begin : NP_GRAIN;
    char *p[NP_MAP_MAX];
    for (int k = 0; k < m->n; k++) p[k] = m->p[k] + begin * m->s[k];
    np_map_some(job, n, p, m->s);
}

/* Runs a job whose run, arg, n, type and t are set. */
static inline bool np_map_go(neap_ctx *c, np_map_job *m)
{
    neap_tensor *y = m->t[0];
    bool flat = y->contiguous, aliased = false;
    m->numel = y->numel;
    for (int k = 0; k < m->n; k++) {
        neap_tensor *t = m->t[k];
        m->dtype[k] = t->dtype;
        if (k > 0 && t->numel == 1) {
            np_scalar((neap_dtype)m->type[k], m->scalar[k], t);
            m->dtype[k] = m->type[k];
            m->p[k] = (char *)m->scalar[k];
            m->s[k] = 0;
            continue;
        }
        flat = flat && t->contiguous && t->numel == m->numel;
        aliased = aliased || (k > 0 && t->st == y->st);
        m->p[k] = np_ptr(t);
        m->s[k] = (int64_t)np_itemsize(t);
    }
    if (m->numel == 0) return true;
    m->stream = false;
    if (flat && m->numel <= NP_GRAIN) {
        np_map_some(m, m->numel, m->p, m->s);
        return true;
    }
    if (flat) {
        m->stream = !aliased && m->numel * m->s[0] >= NP_STREAM_BYTES && m->dtype[0] == m->type[0];
        return np_parallel(c, (m->numel + NP_GRAIN - 1) / NP_GRAIN, np_map_chunk, m);
    }
    np_iter it;
    np_iter_init(&it, m->t, m->n);
    for (int k = 1; k < m->n; k++)
        if (m->p[k] == (char *)m->scalar[k]) it.base[k] = m->p[k]; /* its strides are 0 already */
    return np_iter_run(c, &it, np_map_some, m);
}

static inline bool np_map_dtype_error(np_frame *f)
{
    np_fail(f->c, NEAP_E_DTYPE, "no kernel for %s tensors; convert with x:to(...)",
            np_dtype_name(f->compute));
    return false;
}

/* Small, and infer has found nothing to bridge. False: not such a case, nothing is done. */
static NP_INLINE bool np_map_flat(np_frame *f, np_run_fn run, neap_dtype t, neap_dtype result, void *arg)
{
    const neap_tensor *y = f->out[0], *a = f->in[0];
    const int64_t n = y->numel, size = np_sizes[t];
    if (!f->flat || a->dtype != t || y->dtype != result || n > NP_GRAIN) return false;
    char *p[3] = {np_ptr(y), np_ptr(a), np_ptr(f->in[f->n_in - 1])};
    run(arg, n, p, (int64_t[3]){np_sizes[result], size, size});
    return true;
}

/* Small, and dense but for operands of one element: no job, no iterator, no thread. False: the same. */
static NP_INLINE bool np_map_small(np_frame *f, np_run_fn run, neap_dtype t, neap_dtype result, void *arg)
{
    const neap_tensor *y = f->out[0];
    const int64_t n = y->numel, size = np_sizes[t];
    uint64_t scalar[NP_MAP_MAX];
    char *p[NP_MAP_MAX];
    int64_t s[NP_MAP_MAX];
    if (n > NP_GRAIN || n == 0 || !y->contiguous || y->dtype != result) return false;
    p[0] = np_ptr(y);
    s[0] = np_sizes[result];
    for (int64_t i = 0; i < f->n_in; i++) {
        const neap_tensor *x = f->in[i];
        if (x->dtype == t && x->contiguous && x->numel == n) {
            p[i + 1] = np_ptr(x);
            s[i + 1] = size;
        } else if (x->numel == 1) {
            np_scalar(t, &scalar[i], x);
            p[i + 1] = (char *)&scalar[i];
            s[i + 1] = 0;
        } else {
            return false;
        }
    }
    run(arg, n, p, s);
    return true;
}

/* Everything else. */
static NP_APART bool np_map_other(np_frame *f, np_run_fn run, neap_dtype t, neap_dtype result, void *arg)
{
    np_map_job m;
    if (np_map_small(f, run, t, result, arg)) return true;
    m.run = run;
    m.arg = arg;
    m.n = 1 + f->n_in;
    m.t[0] = f->out[0];
    m.type[0] = (uint8_t)result;
    for (int i = 0; i < f->n_in; i++) {
        m.t[i + 1] = f->in[i];
        m.type[i + 1] = (uint8_t)t;
    }
    return np_map_go(f->c, &m);
}

/* Result of dtype `result` (NEAP_N_DTYPES: the compute type), operands in f->compute. */
static inline bool np_map_to(np_frame *f, const np_run_fn *runs, int result, void *arg)
{
    neap_dtype t = np_run_type(f->compute), to = result == NEAP_N_DTYPES ? t : (neap_dtype)result;
    np_run_fn run = runs[f->compute];
    if (!run) return np_map_dtype_error(f);
    return np_map_flat(f, run, t, to, arg) || np_map_other(f, run, t, to, arg);
}
static inline bool np_map(np_frame *f, const np_run_fn *runs, void *arg)
{
    return np_map_to(f, runs, NEAP_N_DTYPES, arg);
}
static inline bool np_map_test(np_frame *f, const np_run_fn *runs)
{
    return np_map_to(f, runs, NEAP_BOOL, NULL);
}

/* ---- logical order: elements [begin, begin + n) of t, row-major, as dense values of type t, and back */

typedef struct np_walk { /* a position in a tensor that moves through whole inner runs */
    const neap_tensor *t;
    int64_t at[NEAP_MAX_DIMS];
    int64_t offset; /* elements from np_ptr */
} np_walk;

static inline void np_walk_to(np_walk *w, const neap_tensor *t, int64_t index)
{
    w->t = t, w->offset = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        w->at[d] = index % t->shape[d];
        index /= t->shape[d];
        w->offset += w->at[d] * t->stride[d];
    }
}
/* Elements left in the inner run. */
static inline int64_t np_walk_left(const np_walk *w)
{
    return w->t->ndim == 0 ? 1 : w->t->shape[w->t->ndim - 1] - w->at[w->t->ndim - 1];
}
static inline void np_walk_by(np_walk *w, int64_t n) /* n <= left */
{
    int d = w->t->ndim - 1;
    if (d < 0) return;
    w->at[d] += n, w->offset += n * w->t->stride[d];
    while (d > 0 && w->at[d] == w->t->shape[d]) {
        w->offset += w->t->stride[d - 1] - w->at[d] * w->t->stride[d];
        w->at[d] = 0;
        w->at[--d]++;
    }
}

static inline void np_read_block(const neap_tensor *t, int64_t begin, int64_t n, neap_dtype as, void *dst)
{
    int64_t size = (int64_t)np_itemsize(t), to = (int64_t)np_sizes[as];
    if (t->contiguous) {
        np_block_load(as, dst, (neap_dtype)t->dtype, np_ptr(t) + begin * size, size, n);
        return;
    }
    np_walk w;
    np_walk_to(&w, t, begin);
    for (int64_t i = 0; i < n;) {
        int64_t len = np_walk_left(&w), step = t->ndim ? t->stride[t->ndim - 1] * size : 0;
        if (len > n - i) len = n - i;
        np_block_load(as, (char *)dst + i * to, (neap_dtype)t->dtype, np_ptr(t) + w.offset * size, step, len);
        np_walk_by(&w, len), i += len;
    }
}
static inline void np_write_block(neap_tensor *t, int64_t begin, int64_t n, neap_dtype as, const void *src)
{
    int64_t size = (int64_t)np_itemsize(t), from = (int64_t)np_sizes[as];
    if (t->contiguous) {
        np_block_store((neap_dtype)t->dtype, np_ptr(t) + begin * size, size, as, src, n);
        return;
    }
    np_walk w;
    np_walk_to(&w, t, begin);
    for (int64_t i = 0; i < n;) {
        int64_t len = np_walk_left(&w), step = t->ndim ? t->stride[t->ndim - 1] * size : 0;
        if (len > n - i) len = n - i;
        np_block_store((neap_dtype)t->dtype, np_ptr(t) + w.offset * size, step, as,
                       (const char *)src + i * from, len);
        np_walk_by(&w, len), i += len;
    }
}

/* Does an integer operand hold a value that the op refuses, once it is of the dtype that the op computes in? */
static inline bool np_holds(const neap_tensor *t, neap_dtype as, bool (*bad)(int64_t))
{
    int64_t raw[NP_BLOCK], v[NP_BLOCK];
    for (int64_t i = 0; i < t->numel; i += NP_BLOCK) {
        int64_t n = t->numel - i < NP_BLOCK ? t->numel - i : NP_BLOCK;
        np_read_block(t, i, n, as, raw);
        np_block_load(NEAP_INT64, v, as, (const char *)raw, (int64_t)np_sizes[as], n);
        for (int64_t k = 0; k < n; k++)
            if (bad(v[k])) return true;
    }
    return false;
}

#endif
