/* blaslt.cu - cuBLASLt, opened at the first product of a device, and what it chose for each kind of product.
 *
 * The plug-in is not linked to it: it is a library of half a gigabyte that products alone need. All that is remembered
 * belongs to the device. Accumulation is in float32 (float64 for float64) without TF32, and what is split along K is
 * added up in that type in a separate step, so a product has the same bits every time. A row-major C = A B is the
 * library's column-major C' = B' A'. */
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "blaslt.h"

#ifdef __CUDACC__
#include <cublasLt.h>
#else
#include "cublas_emu.h"
#endif

namespace
{

#define EACH_FUNCTION(F) \
    F(cublasLtGetVersion) \
    F(cublasLtGetStatusName) \
    F(cublasLtCreate) \
    F(cublasLtDestroy) \
    F(cublasLtMatmulDescCreate) \
    F(cublasLtMatmulDescDestroy) \
    F(cublasLtMatmulDescSetAttribute) \
    F(cublasLtMatrixLayoutCreate) \
    F(cublasLtMatrixLayoutDestroy) \
    F(cublasLtMatrixLayoutSetAttribute) \
    F(cublasLtMatmulPreferenceCreate) \
    F(cublasLtMatmulPreferenceDestroy) \
    F(cublasLtMatmulPreferenceSetAttribute) \
    F(cublasLtMatmulAlgoGetHeuristic) \
    F(cublasLtMatmul)

struct functions {
#define MEMBER(name) decltype(&::name) name;
    EACH_FUNCTION(MEMBER)
#undef MEMBER
};

struct plan_key { /* all of it is compared: no padding */
    int64_t M, N, K, lda, ldb, batches, stride_a, stride_b;
    uint8_t dtype, ta, tb, bias;
    uint8_t aligned[4]; /* a, b, c, bias: to that many bytes, at most 16 */
};
static_assert(sizeof(plan_key) == 8 * 8 + 8, "no padding");

struct plan {
    plan_key key;
    int64_t used; /* when, 0: free */
    bool possible;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t b, a, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
};

enum {
    SETS = 64,
    WAYS = 4
}; /* plans: a kind of product has four places, of which the one used longest ago goes */
const size_t most_workspace = (size_t)32 << 20;

} // namespace

struct np_lt {
    functions f;
    cublasLtHandle_t handle; /* NULL: own kernels */
    char about[80];
    plan plans[SETS][WAYS];
    int64_t clock, hits;
};

namespace
{

/* ---- the library */

#ifdef __CUDACC__
/* NEAP_CUBLAS is a path, or "none". It stays open: it has threads and memory of the driver. */
bool find_functions(np_lt *lt)
{
    const char *path = getenv("NEAP_CUBLAS");
    if (!path || !*path) path = "libcublasLt.so.13";
    void *lib = strcmp(path, "none") != 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : nullptr;
    const char *why = lib ? "" : strcmp(path, "none") != 0 ? dlerror() : "NEAP_CUBLAS is none";
    snprintf(lt->about, sizeof lt->about, "own kernels: %s", why);
#define FIND(name) \
    if (void *at = lib ? dlsym(lib, #name) : nullptr) memcpy(&lt->f.name, &at, sizeof at); \
    else if (lib) return snprintf(lt->about, sizeof lt->about, "own kernels: no " #name), false;
    EACH_FUNCTION(FIND)
#undef FIND
    return lib != nullptr;
}
#else
bool find_functions(np_lt *lt)
{
    const char *path = getenv("NEAP_CUBLAS");
    snprintf(lt->about, sizeof lt->about, "own kernels: NEAP_CUBLAS is none");
#define FIND(name) lt->f.name = ::name;
    EACH_FUNCTION(FIND)
#undef FIND
    return !path || strcmp(path, "none") != 0;
}
#endif

/* The device's; without a handle where there is no library. NULL: fail has been called. */
np_lt *library_of(const np_call *k)
{
    np_gpu *gpu = np_gpu_of(k);
    if (gpu->lt) return gpu->lt;
    if (!NP_TRY(gpu, cudaSetDevice(gpu->index))) return np_done(k, false), nullptr;
    np_lt *lt = np_new<np_lt>();
    if (!lt)
        return k->host->fail(k->ctx, NEAP_E_NOMEM, "there is no memory for the plans of products"), nullptr;
    gpu->lt = lt;
    if (!find_functions(lt)) return lt;
    const cublasStatus_t s = lt->f.cublasLtCreate(&lt->handle);
    const size_t v = lt->f.cublasLtGetVersion();
    if (s != CUBLAS_STATUS_SUCCESS) {
        lt->handle = nullptr;
        snprintf(lt->about, sizeof lt->about, "own kernels: cublasLtCreate: %s",
                 lt->f.cublasLtGetStatusName(s));
    } else {
        snprintf(lt->about, sizeof lt->about, "cuBLASLt %d.%d.%d", (int)(v / 10000), (int)(v / 100 % 100),
                 (int)(v % 100));
    }
    return lt;
}

/* ---- plans */

cudaDataType_t type_of(int dtype)
{
    return dtype == NEAP_FLOAT64    ? CUDA_R_64F
           : dtype == NEAP_FLOAT16  ? CUDA_R_16F
           : dtype == NEAP_BFLOAT16 ? CUDA_R_16BF
                                    : CUDA_R_32F;
}

uint8_t alignment_of(const void *p)
{
    const uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return (uint8_t)(low == 0 || low > 16 ? 16 : low);
}

void clear(np_lt *lt, plan *p)
{
    if (p->what) (void)lt->f.cublasLtMatmulDescDestroy(p->what);
    for (cublasLtMatrixLayout_t l : {p->a, p->b, p->c})
        if (l) (void)lt->f.cublasLtMatrixLayoutDestroy(l);
    *p = {};
}

template <class T> bool set(np_lt *lt, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const T &v)
{
    return lt->f.cublasLtMatmulDescSetAttribute(d, a, &v, sizeof v) == CUBLAS_STATUS_SUCCESS;
}
template <class T>
bool prefer(np_lt *lt, cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const T &v)
{
    return lt->f.cublasLtMatmulPreferenceSetAttribute(p, a, &v, sizeof v) == CUBLAS_STATUS_SUCCESS;
}

/* (rows, cols), column-major. */
bool lay_out(np_lt *lt, cublasLtMatrixLayout_t *l, const plan_key &k, int64_t rows, int64_t cols, int64_t ld,
             int64_t stride)
{
    const int32_t batches = (int32_t)k.batches;
    return lt->f.cublasLtMatrixLayoutCreate(l, type_of(k.dtype), (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->f.cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                                  sizeof batches) == CUBLAS_STATUS_SUCCESS &&
           lt->f.cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                  sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/* The bias is set before a way is chosen, too: its alignment is taken from it. */
bool describe(np_lt *lt, plan *p, const void *bias)
{
    const plan_key &k = p->key;
    const bool f64 = k.dtype == NEAP_FLOAT64;
    const cublasOperation_t none = CUBLAS_OP_N, turn = CUBLAS_OP_T;
    return lt->f.cublasLtMatmulDescCreate(&p->what, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                          f64 ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(lt, p->what, CUBLASLT_MATMUL_DESC_TRANSA, k.tb ? turn : none) &&
           set(lt, p->what, CUBLASLT_MATMUL_DESC_TRANSB, k.ta ? turn : none) &&
           (!bias || (set(lt, p->what, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
                      set(lt, p->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias))) &&
           lay_out(lt, &p->b, k, k.tb ? k.K : k.N, k.tb ? k.N : k.K, k.ldb, k.stride_b) &&
           lay_out(lt, &p->a, k, k.ta ? k.M : k.K, k.ta ? k.K : k.M, k.lda, k.stride_a) &&
           lay_out(lt, &p->c, k, k.N, k.M, k.N, k.M * k.N);
}

bool choose(np_lt *lt, plan *p)
{
    const uint32_t splits = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint8_t *aligned = p->key.aligned;
    cublasLtMatmulPreference_t want = nullptr;
    cublasLtMatmulHeuristicResult_t best = {};
    int n = 0;
    if (lt->f.cublasLtMatmulPreferenceCreate(&want) != CUBLAS_STATUS_SUCCESS) return false;
    const bool ok = prefer(lt, want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)most_workspace) &&
                    prefer(lt, want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, splits) &&
                    prefer(lt, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)aligned[1]) &&
                    prefer(lt, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)aligned[0]) &&
                    prefer(lt, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)aligned[2]) &&
                    prefer(lt, want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)aligned[2]) &&
                    lt->f.cublasLtMatmulAlgoGetHeuristic(lt->handle, p->what, p->b, p->a, p->c, p->c, want, 1,
                                                         &best, &n) == CUBLAS_STATUS_SUCCESS;
    (void)lt->f.cublasLtMatmulPreferenceDestroy(want);
    p->algorithm = best.algo;
    p->workspace = best.workspaceSize;
    return ok && n > 0 && best.state == CUBLAS_STATUS_SUCCESS;
}

/* The plan of a kind of product: the one remembered, or a new one. It may say that there is no way. */
plan *plan_of(np_lt *lt, const plan_key &key, const void *bias)
{
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a by words */
    uint64_t word[sizeof key / 8];
    memcpy(word, &key, sizeof key);
    for (uint64_t w : word) hash = (hash ^ w) * UINT64_C(1099511628211);
    plan *set = lt->plans[(hash >> 32) % SETS], *p = set;
    lt->clock++; /* a product more */
    for (int i = 0; i < WAYS; i++) {
        if (set[i].used && memcmp(&set[i].key, &key, sizeof key) == 0) {
            set[i].used = lt->clock;
            lt->hits++;
            return &set[i];
        }
        if (set[i].used < p->used) p = &set[i];
    }
    clear(lt, p);
    p->key = key;
    p->used = lt->clock;
    p->possible = describe(lt, p, bias) && choose(lt, p);
    return p;
}

int failed(const np_call *k, const np_lt *lt, cublasStatus_t s)
{
    np_gpu *gpu = np_gpu_of(k);
    const cudaError_t e = cudaStreamQuery(gpu->stream); /* is the device at fault? */
    char text[120];
    if (e != cudaErrorNotReady && !np_succeeds(gpu, e, "cublasLtMatmul", __FILE__, __LINE__))
        return np_done(k, false);
    snprintf(text, sizeof text, "cublasLtMatmul: %s", lt->f.cublasLtGetStatusName(s));
    k->host->fail(k->ctx, NEAP_E_DEVICE, text);
    return -1;
}

} // namespace

int np_lt_multiply(const np_call *k, const np_lt_product &p)
{
    np_lt *lt = library_of(k);
    if (!lt) return -1;
    if (!lt->handle || p.batches > INT32_MAX) return 1;
    const plan_key key = {p.M,
                          p.N,
                          p.K,
                          p.lda,
                          p.ldb,
                          p.batches,
                          p.stride_a,
                          p.stride_b,
                          (uint8_t)p.dtype,
                          p.ta,
                          p.tb,
                          p.bias != nullptr,
                          {alignment_of(p.a), alignment_of(p.b), alignment_of(p.c), alignment_of(p.bias)}};
    plan *way = plan_of(lt, key, p.bias);
    if (!way->possible) return 1;
    if (p.bias && !set(lt, way->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias)) return 1;
    void *workspace = way->workspace ? k->host->scratch(k, way->workspace) : nullptr;
    if (way->workspace && !workspace) return -1;
    const float one = 1, zero = 0;
    const double one_wide = 1, zero_wide = 0;
    const bool f64 = p.dtype == NEAP_FLOAT64;
    const cublasStatus_t s =
        lt->f.cublasLtMatmul(lt->handle, way->what, f64 ? (const void *)&one_wide : &one, p.b, way->b, p.a,
                             way->a, f64 ? (const void *)&zero_wide : &zero, p.c, way->c, p.c, way->c,
                             &way->algorithm, workspace, way->workspace, np_gpu_of(k)->stream);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED) return way->possible = false, 1;
    if (s != CUBLAS_STATUS_SUCCESS) return failed(k, lt, s);
    return np_done(k, np_succeeds(np_gpu_of(k), cudaSuccess, "cublasLtMatmul", __FILE__, __LINE__));
}

void np_lt_facts(const np_gpu *gpu, np_device_facts *out)
{
    const np_lt *lt = gpu->lt;
    snprintf(out->products, sizeof out->products, "%s", lt ? lt->about : "none yet");
    out->product_plans = lt ? lt->clock - lt->hits : 0;
    out->product_hits = lt ? lt->hits : 0;
}

void np_lt_close(np_gpu *gpu)
{
    np_lt *lt = gpu->lt;
    if (!lt) return;
    for (auto &set : lt->plans)
        for (plan &p : set) clear(lt, &p);
    if (lt->handle) (void)lt->f.cublasLtDestroy(lt->handle);
    delete lt;
    gpu->lt = nullptr;
}
