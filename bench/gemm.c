/* gemm.c - products of square float32 matrices: neap_matmul beside OpenBLAS with all its threads, in one run
 * on the library that Neap opened (so with the same kernels). Prints time ratios, and whether 1 and 2 threads
 * give the same bits here. Nothing passes or fails. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ops/cpu/gemm.h"
#include "tensor/tensor.h"

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);

typedef struct peer { /* OpenBLAS, as its own users call it */
    sgemm_fn sgemm;
    void (*threads)(int n);
} peer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static neap_tensor *random_matrix(neap_ctx *c, int64_t n)
{
    neap_tensor *t = neap_empty(c, 2, (int64_t[]){n, n}, NEAP_FLOAT32, 0);
    uint32_t state = (uint32_t)n;
    for (int64_t i = 0; t && i < n * n; i++) {
        state = state * 1664525u + 1013904223u;
        NP_DATA(float, t)[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
    return t;
}

static double time_neap(neap_ctx *c, neap_tensor *a, neap_tensor *b)
{
    double start = now();
    neap_free(neap_matmul(c, a, b));
    return now() - start;
}

static double time_peer(const peer *p, int threads, int n, neap_tensor *a, neap_tensor *b, neap_tensor *y)
{
    p->threads(threads);
    double start = now();
    p->sgemm(101, 111, 111, n, n, n, 1.0f, NP_DATA(float, a), n, NP_DATA(float, b), n, 0.0f,
             NP_DATA(float, y), n);
    double seconds = now() - start;
    p->threads(1); /* as Neap wants it */
    return seconds;
}

static bool same_bits(neap_ctx *c, neap_tensor *a, neap_tensor *b, int threads)
{
    uint64_t hash[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        neap_set_num_threads(c, i + 1);
        neap_tensor *y = neap_matmul(c, a, b);
        if (y) neap_hash(c, y, &hash[i]);
        neap_free(y);
    }
    neap_set_num_threads(c, threads);
    return hash[0] == hash[1];
}

static void bench(neap_ctx *c, const peer *p, int64_t n)
{
    int threads = neap_get_num_threads(c), rounds = n <= 1024 ? 12 : 5;
    neap_tensor *a = random_matrix(c, n), *b = random_matrix(c, n), *y = random_matrix(c, n);
    if (!a || !b || !y) return;
    double ours = 1e9, theirs = 1e9;
    bool same = same_bits(c, a, b, threads);
    for (int i = 0; i < rounds; i++) { /* taking turns: both see the same machine */
        double s = time_neap(c, a, b);
        if (s < ours) ours = s;
        if (p->sgemm && (s = time_peer(p, threads, (int)n, a, b, y)) < theirs) theirs = s;
    }
    printf("matmul %5lld", (long long)n);
    if (p->sgemm) printf("   Neap / OpenBLAS time %5.2f", ours / theirs);
    printf("   bits at 1 and 2 threads: %s\n", same ? "same" : "DIFFERENT");
    neap_free(a), neap_free(b), neap_free(y);
}

int main(void)
{
    neap_ctx *c = neap_ctx_new(NULL);
    if (!c || !np_blas_open(c)) return 1;
    peer p = {0};
    void *lib = getenv("NEAP_BLAS") ? NULL : dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (lib) {
        *(void **)&p.sgemm = dlsym(lib, "cblas_sgemm");
        *(void **)&p.threads = dlsym(lib, "openblas_set_num_threads");
    }
    printf("%s, %d threads\n", np_blas_describe(c), neap_get_num_threads(c));
    static const int64_t sizes[] = {512, 768, 1024, 1536, 2048};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) bench(c, &p, sizes[i]);
    if (neap_error(c)) printf("%s\n", neap_error_message(c));
    neap_ctx_free(c);
    return 0;
}
