/* emu_cublas.cpp - products with epilogues, in the plainest way that a test of 1024 x 1024 can wait for. */
#include "cublas_emu.h"
#include "state.h"

#include "base/half.h"

struct cublasLtContext {
    int device;
};
struct emu_lt_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale, aux_type, bias_type;
    bool has_aux_type, has_bias_type;
    cublasOperation_t transa, transb;
    uint32_t epilogue;
    int32_t pointer_mode;
    void *bias, *aux;
    int64_t bias_stride, aux_ld, aux_stride;
};
struct emu_lt_layout {
    cudaDataType_t type;
    cublasLtOrder_t order;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
};
struct emu_lt_preference {
    uint64_t workspace;
};

namespace emu
{

enum {
    relu = 2,
    bias = 4,
    drelu = 8,
    bgrad = 16,
    gelu = 32,
    dgelu = 64,
    aux = 128,
    bgrad_a = 256,
    bgrad_b = 512
};

static size_t type_size(cudaDataType_t t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }

static double load(cudaDataType_t t, const void *p, int64_t i)
{
    switch (t) {
    case CUDA_R_64F: return ((const double *)p)[i];
    case CUDA_R_16F: return (double)np_half_widen(((const np_half *)p)[i]);
    case CUDA_R_16BF: return (double)np_bf16_to_float(((const np_bf16 *)p)[i]);
    default: return (double)((const float *)p)[i];
    }
}

static void store(cudaDataType_t t, void *p, int64_t i, double v)
{
    switch (t) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_16F: ((np_half *)p)[i] = np_half_narrow((float)v); break;
    case CUDA_R_16BF: ((np_bf16 *)p)[i] = np_float_to_bf16((float)v); break;
    default: ((float *)p)[i] = (float)v;
    }
}

static int64_t place(const emu_lt_layout *l, int64_t row, int64_t col, int64_t batch)
{
    return batch * l->stride + (l->order == CUBLASLT_ORDER_COL ? row + col * l->ld : row * l->ld + col);
}

static bool layout_ok(const emu_lt_layout *l)
{
    const uint64_t inner = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
    return l->rows > 0 && l->cols > 0 && l->batch > 0 && l->ld >= (int64_t)inner;
}

static bool types_ok(const emu_lt_desc *d, const emu_lt_layout *a, const emu_lt_layout *b,
                     const emu_lt_layout *c, const emu_lt_layout *out)
{
    const bool wide = d->compute == CUBLAS_COMPUTE_64F;
    if (a->type != b->type || c->type != out->type || d->scale != (wide ? CUDA_R_64F : CUDA_R_32F))
        return false;
    if (wide) return a->type == CUDA_R_64F && out->type == CUDA_R_64F;
    if (a->type == CUDA_R_16F || a->type == CUDA_R_16BF)
        return out->type == a->type || out->type == CUDA_R_32F;
    return a->type == CUDA_R_32F && out->type == CUDA_R_32F;
}

/* What the library would say of the descriptors, without pointers. */
static cublasStatus_t check(const emu_lt_desc *d, const emu_lt_layout *a, const emu_lt_layout *b,
                            const emu_lt_layout *c, const emu_lt_layout *out)
{
    if (!d || !a || !b || !c || !out) return CUBLAS_STATUS_INVALID_VALUE;
    if (!layout_ok(a) || !layout_ok(b) || !layout_ok(c) || !layout_ok(out))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool ta = d->transa != CUBLAS_OP_N, tb = d->transb != CUBLAS_OP_N;
    const uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols, n = tb ? b->rows : b->cols;
    if (k != (tb ? b->cols : b->rows) || m != out->rows || n != out->cols || m != c->rows || n != c->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->batch != b->batch || a->batch != c->batch || a->batch != out->batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_ok(d, a, b, c, out) || d->pointer_mode != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue & ~1u && out->order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue & (bias | bgrad | bgrad_a | bgrad_b) && !d->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (d->epilogue & aux) {
        const bool bits = d->epilogue & (relu | drelu);
        if (!d->aux || d->aux_ld < (int64_t)m || d->aux_ld % (bits ? 128 : 8))
            return CUBLAS_STATUS_INVALID_VALUE;
        if ((uintptr_t)d->aux % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct Product { /* a call, copied: descriptors may be destroyed before it runs */
    emu_lt_desc d;
    emu_lt_layout a, b, c, out;
    const void *A, *B, *C;
    void *D;
    double alpha, beta;
};

static void must_hold(const char *what, const void *p, const emu_lt_layout *l)
{
    const int64_t last = place(l, (int64_t)l->rows - 1, (int64_t)l->cols - 1, l->batch - 1);
    if (!is_device_memory(p, (size_t)(last + 1) * type_size(l->type)))
        report("cublas", nullptr, 0, "%s is no device memory of %lld elements", what, (long long)last + 1);
}

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define NP_EMU_FAST __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define NP_EMU_FAST
#endif
/* s (4,n) += a (4 rows of k) b (k,n), for those of k from `lo` to before `hi`. No fused multiply-add: the same sums
 * everywhere. */
template <class W>
static inline __attribute__((always_inline)) void add_rows(W *s, const W *a, const W *b, int64_t n, int64_t k,
                                                           int64_t lo, int64_t hi)
{
    W *__restrict s0 = s, *__restrict s1 = s + n, *__restrict s2 = s + 2 * n, *__restrict s3 = s + 3 * n;
    for (int64_t p = lo; p < hi; p++) {
        const W a0 = a[p], a1 = a[k + p], a2 = a[2 * k + p], a3 = a[3 * k + p];
        for (int64_t j = 0; j < n; j++) {
            const W x = b[p * n + j];
            s0[j] += a0 * x, s1[j] += a1 * x, s2[j] += a2 * x, s3[j] += a3 * x;
        }
    }
}
NP_EMU_FAST static void multiply_rows(double *s, const double *a, const double *b, int64_t n, int64_t k,
                                      int64_t lo, int64_t hi)
{
    add_rows(s, a, b, n, k, lo, hi);
}
NP_EMU_FAST static void multiply_rows(float *s, const float *a, const float *b, int64_t n, int64_t k,
                                      int64_t lo, int64_t hi)
{
    add_rows(s, a, b, n, k, lo, hi);
}

template <class W>
static std::vector<W> operand(const void *p, const emu_lt_layout *l, bool transposed, int64_t batch)
{
    const int64_t rows = (int64_t)(transposed ? l->cols : l->rows),
                  cols = (int64_t)(transposed ? l->rows : l->cols);
    std::vector<W> v((size_t)((rows + 3) / 4 * 4 * cols)); /* whole groups of four rows */
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            v[(size_t)(i * cols + j)] =
                (W)load(l->type, p, transposed ? place(l, j, i, batch) : place(l, i, j, batch));
    return v;
}

/* The tanh form, and its derivative. */
static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* One element through the epilogue; i, j its row and column, z its batch. */
static double finish(const Product *p, double v, int64_t i, int64_t j, int64_t z)
{
    const uint32_t e = p->d.epilogue;
    const cudaDataType_t bias_type = p->d.has_bias_type ? p->d.bias_type : p->out.type;
    const cudaDataType_t aux_type = p->d.has_aux_type ? p->d.aux_type : p->out.type;
    const int64_t at = z * p->d.aux_stride + i + j * p->d.aux_ld;
    uint8_t *bits = (uint8_t *)p->d.aux;
    if (e & bias) v += load(bias_type, p->d.bias, z * p->d.bias_stride + i);
    if (e & aux && e & relu)
        bits[at / 8] = (uint8_t)((bits[at / 8] & ~(1u << at % 8)) | (v > 0 ? 1u : 0u) << at % 8);
    if (e & aux && e & gelu) store(aux_type, p->d.aux, at, v);
    if (e & relu) v = v > 0 ? v : 0;
    if (e & gelu) v = gelu_of(v);
    if (e & drelu) v = bits[at / 8] >> at % 8 & 1 ? v : 0;
    if (e & dgelu) v *= gelu_slope(load(aux_type, p->d.aux, at));
    return v;
}

/* W: what is added up in, as the library is asked to. */
template <class W> static void run_product(const Product *p)
{
    const bool ta = p->d.transa != CUBLAS_OP_N, tb = p->d.transb != CUBLAS_OP_N;
    const int64_t m = (int64_t)p->out.rows, n = (int64_t)p->out.cols,
                  k = (int64_t)(ta ? p->a.rows : p->a.cols);
    const cudaDataType_t bias_type = p->d.has_bias_type ? p->d.bias_type : p->out.type;
    for (int64_t z = 0; z < p->out.batch; z++) {
        const std::vector<W> a = operand<W>(p->A, &p->a, ta, z), b = operand<W>(p->B, &p->b, tb, z);
        /* k in two halves: the order of a GPU's sums is not the CPU's, and nobody may count on it. */
        std::vector<W> s((size_t)((m + 3) / 4 * 4 * n)), half(s.size());
        std::vector<double> sums((size_t)(m > n ? m : n));
        for (int64_t i = 0; i < m; i += 4) {
            multiply_rows(&s[(size_t)(i * n)], &a[(size_t)(i * k)], b.data(), n, k, 0, k / 2);
            multiply_rows(&half[(size_t)(i * n)], &a[(size_t)(i * k)], b.data(), n, k, k / 2, k);
        }
        for (size_t i = 0; i < s.size(); i++) s[i] += half[i];
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double v = p->alpha * (double)s[(size_t)(i * n + j)];
                if (p->beta != 0) v += p->beta * load(p->c.type, p->C, place(&p->c, i, j, z));
                v = finish(p, v, i, j, z);
                store(p->out.type, p->D, place(&p->out, i, j, z), v);
                sums[(size_t)i] += p->d.epilogue & bgrad ? v : 0;
            }
        for (int64_t i = 0; i < m && p->d.epilogue & bgrad_a; i++)
            for (int64_t q = 0; q < k; q++) sums[(size_t)i] += (double)a[(size_t)(i * k + q)];
        for (int64_t j = 0; j < n && p->d.epilogue & bgrad_b; j++)
            for (int64_t q = 0; q < k; q++) sums[(size_t)j] += (double)b[(size_t)(q * n + j)];
        const int64_t n_sums = p->d.epilogue & (bgrad | bgrad_a) ? m : p->d.epilogue & bgrad_b ? n : 0;
        for (int64_t i = 0; i < n_sums; i++)
            store(bias_type, p->d.bias, z * p->d.bias_stride + i, sums[(size_t)i]);
    }
}

template <class T> static cublasStatus_t take(T *field, const void *v, size_t bytes)
{
    if (must_fail()) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!v || bytes != sizeof *field) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, v, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t make(T **out, const T &v)
{
    if (must_fail()) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = new T(v);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t drop(T *p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace emu

using namespace emu;

size_t cublasLtGetVersion(void) { return 130100; }

const char *cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    return make(h, {current_device});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return drop(h); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    emu_lt_desc v = {};
    v.compute = compute;
    v.scale = scale;
    v.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return make(d, v);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return drop(d); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
                                              const void *v, size_t n)
{
    switch (a) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return take(&d->compute, v, n);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return take(&d->scale, v, n);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return take(&d->pointer_mode, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d->transa, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d->transb, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return take(&d->bias_stride, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(&d->aux, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(&d->aux_ld, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return take(&d->aux_stride, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: d->has_aux_type = true; return take(&d->aux_type, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: d->has_bias_type = true; return take(&d->bias_type, v, n);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    return make(l, {type, CUBLASLT_ORDER_COL, rows, cols, ld, 0, 1});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(l); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                                                const void *v, size_t n)
{
    switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return take(&l->type, v, n);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return take(&l->order, v, n);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return take(&l->rows, v, n);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return take(&l->cols, v, n);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(&l->ld, v, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(&l->batch, v, n);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(&l->stride, v, n);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) { return make(p, {0}); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v,
                                                    size_t n)
{
    uint32_t alignment;
    return a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? take(&p->workspace, v, n) : take(&alignment, v, n);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n_results)
{
    *n_results = 0;
    if (must_fail()) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!h || !p || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t s = check(d, a, b, c, out);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    results[0] = {};
    *n_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b,
                              const void *beta, const void *C, cublasLtMatrixLayout_t c, void *D,
                              cublasLtMatrixLayout_t out, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t stream)
{
    Locked l;
    if (refused(cudaErrorUnknown)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!h || !alpha || !beta || !A || !B || !D) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t s = check(d, a, b, c, out);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    const Product p = {*d, *a, *b, *c, *out, A, B, C, D, load(d->scale, alpha, 0), load(d->scale, beta, 0)};
    if (p.beta != 0 && !C) return CUBLAS_STATUS_INVALID_VALUE;
    must_hold("A", A, a);
    must_hold("B", B, b);
    must_hold("D", D, out);
    if (p.beta != 0) must_hold("C", C, c);
    const bool wide = d->compute == CUBLAS_COMPUTE_64F;
    const int device = current_device;
    const cudaError_t e = enqueue(stream, [p, wide, device] {
        if (faults(device)) return;
        wide ? run_product<double>(&p) : run_product<float>(&p);
    });
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
