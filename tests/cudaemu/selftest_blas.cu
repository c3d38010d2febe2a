/* selftest_blas.cu - the emulated cublasLt against sums written out here, and what it refuses. The calls are those of
 * the library itself: nvcc compiles the same file with its header. */
#ifdef __CUDACC__
#include <cublasLt.h>
#else
#include "cublas_emu.h"
#endif
#include "cuda/np_cuda.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static int passed, failed;
static cublasLtHandle_t handle;

static void check(const char *what, bool ok)
{
    ok ? passed++ : failed++;
    if (!ok) printf("not ok %s\n", what);
}

struct Matrix { /* (rows, cols) column-major with ld, `batch` of them, on the device, NaN between */
    int rows, cols, ld, batch;
    std::vector<float> v;
    float *p = nullptr;
    cublasLtMatrixLayout_t layout;
    Matrix(int r, int c, int extra, int z = 1, bool empty = false)
        : rows(r), cols(c), ld(r + extra), batch(z), v((size_t)(ld * c * z), NAN)
    {
        for (int k = 0; k < z && !empty; k++)
            for (int j = 0; j < c; j++)
                for (int i = 0; i < r; i++)
                    at(i, j, k) = (float)((i * 31 + j * 17 + k * 7 + r) % 23) / 23.0f - 0.4f;
        cudaMalloc((void **)&p, v.size() * sizeof(float));
        cudaMemcpy(p, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice);
        const int64_t stride = (int64_t)ld * c;
        cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, (uint64_t)r, (uint64_t)c, ld);
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &z, sizeof z);
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                         sizeof stride);
    }
    Matrix(const Matrix &) = delete;
    ~Matrix()
    {
        cudaFree(p);
        cublasLtMatrixLayoutDestroy(layout);
    }
    float &at(int i, int j, int k = 0) { return v[(size_t)((k * cols + j) * ld + i)]; }
    void fetch() { cudaMemcpy(v.data(), p, v.size() * sizeof(float), cudaMemcpyDeviceToHost); }
};

struct Call {
    cublasLtMatmulDesc_t d;
    Call() { cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F); }
    ~Call() { cublasLtMatmulDescDestroy(d); }
    template <class T> Call &set(cublasLtMatmulDescAttributes_t a, T v)
    {
        check("attribute", cublasLtMatmulDescSetAttribute(d, a, &v, sizeof v) == CUBLAS_STATUS_SUCCESS);
        return *this;
    }
    cublasStatus_t run(float alpha, Matrix &a, Matrix &b, float beta, Matrix &c, Matrix &out)
    {
        cublasLtMatmulPreference_t p;
        cublasLtMatmulHeuristicResult_t best;
        int n = 0;
        cublasLtMatmulPreferenceCreate(&p);
        cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(handle, d, a.layout, b.layout, c.layout, out.layout,
                                                          p, 1, &best, &n);
        cublasLtMatmulPreferenceDestroy(p);
        if (s == CUBLAS_STATUS_SUCCESS)
            s = cublasLtMatmul(handle, d, &alpha, a.p, a.layout, b.p, b.layout, &beta, c.p, c.layout, out.p,
                               out.layout, &best.algo, nullptr, 0, nullptr);
        if (s == CUBLAS_STATUS_SUCCESS) out.fetch();
        return s;
    }
};

static double product(Matrix &a, bool ta, Matrix &b, bool tb, int i, int j, int z = 0)
{
    double s = 0;
    for (int k = 0; k < (ta ? a.rows : a.cols); k++)
        s += (double)(ta ? a.at(k, i, z) : a.at(i, k, z)) * (tb ? b.at(j, k, z) : b.at(k, j, z));
    return s;
}
static bool close(float got, double want) { return std::fabs(got - want) <= 1e-5 * (1 + std::fabs(want)); }

static void test_plain()
{
    for (int form = 0; form < 4; form++) {
        const bool ta = form & 1, tb = form & 2;
        Matrix a(ta ? 7 : 5, ta ? 5 : 7, 2, 3), b(tb ? 6 : 7, tb ? 7 : 6, 1, 3), c(5, 6, 0, 3),
            d(5, 6, 3, 3, true);
        Call call;
        call.set(CUBLASLT_MATMUL_DESC_TRANSA, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
        call.set(CUBLASLT_MATMUL_DESC_TRANSB, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
        bool ok = call.run(2.0f, a, b, 0.5f, c, d) == CUBLAS_STATUS_SUCCESS;
        for (int z = 0; z < 3; z++)
            for (int j = 0; j < 6; j++)
                for (int i = 0; i < 5; i++)
                    ok = ok && close(d.at(i, j, z), 2 * product(a, ta, b, tb, i, j, z) + 0.5 * c.at(i, j, z));
        for (int i = 5; i < 8; i++)
            ok = ok && std::isnan(d.at(i, 0)); /* between columns nothing is written */
        check("products, transposed, batched, with padding", ok);
    }
    Matrix a(4, 4, 0), b(4, 4, 0), d(4, 4, 0, 1, true); /* D is its own C, and NaN: not read when beta is 0 */
    check("beta 0", Call().run(1, a, b, 0, d, d) == CUBLAS_STATUS_SUCCESS &&
                        close(d.at(3, 2), product(a, 0, b, 0, 3, 2)));
    Matrix wrong(4, 5, 0);
    check("wrong shape", Call().run(1, a, wrong, 0, d, d) == CUBLAS_STATUS_INVALID_VALUE);
    const int64_t ld = 3;
    cublasLtMatrixLayoutSetAttribute(a.layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
    check("short ld", Call().run(1, a, b, 0, d, d) == CUBLAS_STATUS_INVALID_VALUE);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void test_epilogues()
{
    Matrix a(8, 5, 0), b(5, 6, 0), d(8, 6, 0, 1, true), bias(8, 1, 0), aux(8, 6, 0, 1, true),
        sums(8, 1, 0, 1, true);
    Call relu, act, back, grad_b;
    bool ok = relu.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU_BIAS)
                  .set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)bias.p)
                  .run(1, a, b, 0, d, d) == CUBLAS_STATUS_SUCCESS;
    for (int j = 0; j < 6; j++)
        for (int i = 0; i < 8; i++)
            ok = ok && close(d.at(i, j), fmax(0.0, product(a, 0, b, 0, i, j) + bias.at(i, 0)));
    check("relu and bias", ok);

    ok = act.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
             .set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)bias.p)
             .set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)aux.p)
             .set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)8)
             .run(1, a, b, 0, d, d) == CUBLAS_STATUS_SUCCESS;
    aux.fetch();
    for (int j = 0; j < 6; j++)
        for (int i = 0; i < 8; i++) {
            const double x = product(a, 0, b, 0, i, j) + bias.at(i, 0);
            ok = ok && close(aux.at(i, j), x) && close(d.at(i, j), gelu(x));
        }
    check("gelu with aux and bias", ok);

    ok = back.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DGELU_BGRAD)
             .set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)sums.p)
             .set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void *)aux.p)
             .set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)8)
             .run(1, a, b, 0, d, d) == CUBLAS_STATUS_SUCCESS;
    sums.fetch();
    for (int i = 0; i < 8; i++) {
        double sum = 0;
        for (int j = 0; j < 6; j++) {
            const double x = aux.at(i, j), slope = (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4;
            const double want = product(a, 0, b, 0, i, j) * slope;
            ok = ok && close(d.at(i, j), want);
            sum += want;
        }
        ok = ok && close(sums.at(i, 0), sum);
    }
    check("gradient through gelu, with that of the bias", ok);

    ok = grad_b.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB)
             .set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)sums.p)
             .run(1, a, b, 0, d, d) == CUBLAS_STATUS_SUCCESS;
    sums.fetch();
    for (int j = 0; j < 6; j++) {
        double sum = 0;
        for (int k = 0; k < 5; k++) sum += b.at(k, j);
        ok = ok && close(sums.at(j, 0), sum) && close(d.at(1, j), product(a, 0, b, 0, 1, j));
    }
    check("sums of B beside its product", ok);

    act.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)9);
    check("ld of aux", act.run(1, a, b, 0, d, d) == CUBLAS_STATUS_INVALID_VALUE);
}

int main()
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        printf("no device: %s\n", cudaGetErrorName(e));
        return 77;
    }
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
    test_plain();
    test_epilogues();
    cublasLtDestroy(handle);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
