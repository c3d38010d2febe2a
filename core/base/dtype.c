/* dtype.c - the nine element types: tables, promotion, conversions of single elements and of strided runs.
 *
 * Every conversion rounds once, to nearest even: a float64 or a large integer goes to half precision through
 * a value rounded to odd, never through two roundings. Float to integer truncates toward zero and saturates,
 * NaN gives 0; a wider integer to a narrower one wraps, as in C. Tables are in the order of the enum.
 * SAME-ORDER dtype */
#include "dtype.h"

#include <assert.h>

/* X(enum suffix, C type, class of its numbers: F float, D double, I int64, name) */
#define EACH_TYPE(X) \
    X(FLOAT32, float, F, "float32") \
    X(FLOAT64, double, D, "float64") \
    X(FLOAT16, half, F, "float16") \
    X(BFLOAT16, bf16, F, "bfloat16") \
    X(INT64, int64_t, I, "int64") \
    X(INT32, int32_t, I, "int32") \
    X(INT8, int8_t, I, "int8") \
    X(UINT8, uint8_t, I, "uint8") \
    X(BOOL, boolean, I, "bool")

/* Distinct types, so that a bool is not taken for a uint8 nor a half for a bfloat16. */
typedef struct half {
    np_half bits;
} half;
typedef struct bf16 {
    np_bf16 bits;
} bf16;
typedef struct boolean {
    uint8_t byte;
} boolean;

static const char *const names[] = {
#define TYPE_NAME(suffix, ctype, class, name) name,
    EACH_TYPE(TYPE_NAME)
#undef TYPE_NAME
};

static_assert(sizeof names / sizeof names[0] == NEAP_N_DTYPES, "SAME-ORDER dtype");

const char *np_dtype_name(neap_dtype t) { return (unsigned)t < NEAP_N_DTYPES ? names[t] : "unknown"; }

size_t neap_dtype_size(neap_dtype t) { return np_dtype_size(t); }

const char *neap_dtype_name(neap_dtype t) { return np_dtype_name(t); }

bool np_dtype_parse(const char *name, neap_dtype *out)
{
    for (int i = 0; name && i < NEAP_N_DTYPES; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (neap_dtype)i;
            return true;
        }
    return false;
}

int np_dtype_kind(neap_dtype t) { return t == NEAP_BOOL ? 0 : np_is_float(t) ? 2 : 1; }

/* PyTorch's table. It answers int16 for int8 with uint8; Neap has no int16 and takes the next one, int32. */
neap_dtype np_promote(neap_dtype a, neap_dtype b)
{
    enum {
        F4 = NEAP_FLOAT32,
        F8 = NEAP_FLOAT64,
        F2 = NEAP_FLOAT16,
        BF = NEAP_BFLOAT16,
        I8 = NEAP_INT64,
        I4 = NEAP_INT32,
        I1 = NEAP_INT8,
        U1 = NEAP_UINT8,
        BO = NEAP_BOOL
    };
    static const uint8_t table[NEAP_N_DTYPES][NEAP_N_DTYPES] = {
        /* f4  f8  f2  bf  i8  i4  i1  u1  bo */
        {F4, F8, F4, F4, F4, F4, F4, F4, F4}, /* float32 */
        {F8, F8, F8, F8, F8, F8, F8, F8, F8}, /* float64 */
        {F4, F8, F2, F4, F2, F2, F2, F2, F2}, /* float16 */
        {F4, F8, F4, BF, BF, BF, BF, BF, BF}, /* bfloat16 */
        {F4, F8, F2, BF, I8, I8, I8, I8, I8}, /* int64 */
        {F4, F8, F2, BF, I8, I4, I4, I4, I4}, /* int32 */
        {F4, F8, F2, BF, I8, I4, I1, I4, I1}, /* int8 */
        {F4, F8, F2, BF, I8, I4, I4, U1, U1}, /* uint8 */
        {F4, F8, F2, BF, I8, I4, I1, U1, BO}, /* bool */
    };
    return (neap_dtype)table[a][b];
}

/* ---- half precision */

float np_half_to_float(np_half h) { return np_half_widen(h); }
np_half np_float_to_half(float f) { return np_half_narrow(f); }

/* float64 to float32 rounded to odd: what a second rounding to fewer bits needs to be right. */
static float to_odd(double v)
{
    float f = (float)v;
    if ((double)f == v || v != v) return f;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (fabs((double)f) > fabs(v)) u--; /* back toward zero; from inf to the largest number */
    u |= 1u;
    memcpy(&f, &u, 4);
    return f;
}

/* int64 to float64 rounded to odd (any value of up to 53 bits is exact). */
static double int_to_odd(int64_t v)
{
    const int64_t exact = INT64_C(1) << 53;
    if (v >= -exact && v <= exact) return (double)v;
    return (double)((v >> 11) | ((v & 0x7ff) != 0)) * 2048.0;
}

/* ---- one element: load_<type> gives a float, double or int64; store_<type>_<class> takes one */

static inline float load_FLOAT32(float v) { return v; }
static inline double load_FLOAT64(double v) { return v; }
static inline float load_FLOAT16(half v) { return np_half_to_float(v.bits); }
static inline float load_BFLOAT16(bf16 v) { return np_bf16_to_float(v.bits); }
static inline int64_t load_INT64(int64_t v) { return v; }
static inline int64_t load_INT32(int32_t v) { return v; }
static inline int64_t load_INT8(int8_t v) { return v; }
static inline int64_t load_UINT8(uint8_t v) { return v; }
static inline int64_t load_BOOL(boolean v) { return v.byte != 0; }

static inline int64_t to_int(double v, double low, double above, int64_t min, int64_t max)
{
    return v != v ? 0 : v < low ? min : v >= above ? max : (int64_t)v;
}

static inline float store_FLOAT32_F(float v) { return v; }
static inline float store_FLOAT32_D(double v) { return (float)v; }
static inline float store_FLOAT32_I(int64_t v) { return (float)v; }
static inline double store_FLOAT64_F(float v) { return v; }
static inline double store_FLOAT64_D(double v) { return v; }
static inline double store_FLOAT64_I(int64_t v) { return (double)v; }
static inline half store_FLOAT16_F(float v) { return (half){np_float_to_half(v)}; }
static inline half store_FLOAT16_D(double v) { return (half){np_float_to_half(to_odd(v))}; }
static inline half store_FLOAT16_I(int64_t v) { return store_FLOAT16_D(int_to_odd(v)); }
static inline bf16 store_BFLOAT16_F(float v) { return (bf16){np_float_to_bf16(v)}; }
static inline bf16 store_BFLOAT16_D(double v) { return (bf16){np_float_to_bf16(to_odd(v))}; }
static inline bf16 store_BFLOAT16_I(int64_t v) { return store_BFLOAT16_D(int_to_odd(v)); }
static inline boolean store_BOOL_F(float v) { return (boolean){v != 0}; }
static inline boolean store_BOOL_D(double v) { return (boolean){v != 0}; }
static inline boolean store_BOOL_I(int64_t v) { return (boolean){v != 0}; }

#define INTEGER_STORES(suffix, ctype, low, above, min, max) \
    static inline ctype store_##suffix##_D(double v) { return (ctype)to_int(v, low, above, min, max); } \
    static inline ctype store_##suffix##_F(float v) { return store_##suffix##_D(v); } \
    static inline ctype store_##suffix##_I(int64_t v) { return (ctype)v; }
INTEGER_STORES(INT64, int64_t, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX)
INTEGER_STORES(INT32, int32_t, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX)
INTEGER_STORES(INT8, int8_t, -128.0, 128.0, INT8_MIN, INT8_MAX)
INTEGER_STORES(UINT8, uint8_t, 0.0, 256.0, 0, UINT8_MAX)

double np_load_double(neap_dtype t, const void *p)
{
    switch (t) {
#define LOAD_CASE(suffix, ctype, class, name) \
    case NEAP_##suffix: { \
        ctype v; \
        memcpy(&v, p, sizeof v); \
        return (double)load_##suffix(v); \
    }
        EACH_TYPE(LOAD_CASE)
#undef LOAD_CASE
    default: return 0;
    }
}

int64_t np_load_int(neap_dtype t, const void *p)
{
    switch (t) {
#define LOAD_CASE(suffix, ctype, class, name) \
    case NEAP_##suffix: { \
        ctype v; \
        memcpy(&v, p, sizeof v); \
        return store_INT64_##class(load_##suffix(v)); \
    }
        EACH_TYPE(LOAD_CASE)
#undef LOAD_CASE
    default: return 0;
    }
}

/* clang-format off */
#define STORE_CASES(class) \
    STORE_CASE(FLOAT32, float, class) \
    STORE_CASE(FLOAT64, double, class) \
    STORE_CASE(FLOAT16, half, class) \
    STORE_CASE(BFLOAT16, bf16, class) STORE_CASE(INT64, int64_t, class) STORE_CASE(INT32, int32_t, class) \
        STORE_CASE(INT8, int8_t, class) STORE_CASE(UINT8, uint8_t, class) STORE_CASE(BOOL, boolean, class)
/* clang-format on */
#define STORE_CASE(suffix, ctype, class) \
    case NEAP_##suffix: { \
        ctype r = store_##suffix##_##class(v); \
        memcpy(p, &r, sizeof r); \
        return; \
    }

void np_store_double(neap_dtype t, void *p, double v)
{
    switch (t) {
        STORE_CASES(D)
    default: return;
    }
}

void np_store_int(neap_dtype t, void *p, int64_t v)
{
    switch (t) {
        STORE_CASES(I)
    default: return;
    }
}

/* ---- runs */

#define CONVERT_LOOP(dsuffix, dtype, ssuffix, stype, class) \
    static void convert_##dsuffix##_##ssuffix(void *dst, int64_t ds, const void *src, int64_t ss, int64_t n) \
    { \
        if (ds == (int64_t)sizeof(dtype) && ss == (int64_t)sizeof(stype)) { \
            dtype *d = dst; \
            const stype *s = src; \
            for (int64_t i = 0; i < n; i++) d[i] = store_##dsuffix##_##class(load_##ssuffix(s[i])); \
            return; \
        } \
        char *d = dst; \
        const char *s = src; \
        for (int64_t i = 0; i < n; i++, d += ds, s += ss) \
            *(dtype *)d = store_##dsuffix##_##class(load_##ssuffix(*(const stype *)s)); \
    }
#define CONVERT_FROM(ssuffix, stype, class, name) \
    CONVERT_LOOP(FLOAT32, float, ssuffix, stype, class) \
    CONVERT_LOOP(FLOAT64, double, ssuffix, stype, class) \
    CONVERT_LOOP(FLOAT16, half, ssuffix, stype, class) \
    CONVERT_LOOP(BFLOAT16, bf16, ssuffix, stype, class) \
    CONVERT_LOOP(INT64, int64_t, ssuffix, stype, class) \
    CONVERT_LOOP(INT32, int32_t, ssuffix, stype, class) \
    CONVERT_LOOP(INT8, int8_t, ssuffix, stype, class) \
    CONVERT_LOOP(UINT8, uint8_t, ssuffix, stype, class) \
    CONVERT_LOOP(BOOL, boolean, ssuffix, stype, class)
EACH_TYPE(CONVERT_FROM)

/* Same type: bit for bit, NaN payloads too. */
#define COPY_LOOP(bytes) \
    case bytes: \
        for (int64_t i = 0; i < n; i++, d += ds, s += ss) memcpy(d, s, bytes); \
        return;
static void copy_run(char *d, int64_t ds, const char *s, int64_t ss, int64_t n, size_t size)
{
    if (ds == (int64_t)size && ss == (int64_t)size) {
        memmove(d, s, (size_t)n * size);
        return;
    }
    switch (size) {
        COPY_LOOP(1)
        COPY_LOOP(2)
        COPY_LOOP(4)
        COPY_LOOP(8)
    }
}

typedef void (*convert_fn)(void *dst, int64_t ds, const void *src, int64_t ss, int64_t n);

void np_convert(neap_dtype dt, void *dst, int64_t ds, neap_dtype st, const void *src, int64_t ss, int64_t n)
{
#define CONVERT_ROW(ssuffix, stype, class, name) \
    {convert_FLOAT32_##ssuffix,  convert_FLOAT64_##ssuffix, convert_FLOAT16_##ssuffix, \
     convert_BFLOAT16_##ssuffix, convert_INT64_##ssuffix,   convert_INT32_##ssuffix, \
     convert_INT8_##ssuffix,     convert_UINT8_##ssuffix,   convert_BOOL_##ssuffix},
    static const convert_fn table[NEAP_N_DTYPES][NEAP_N_DTYPES] = {EACH_TYPE(CONVERT_ROW)}; /* [from][to] */
    if (n <= 0) return;
    if (dt != st || dt == NEAP_BOOL) table[st][dt](dst, ds, src, ss, n);
    else copy_run(dst, ds, src, ss, n, np_dtype_size(dt));
}
