/* blas.c - OpenBLAS as a provider of tiles, found at run time.
 *
 * It is never linked: the search is NEAP_BLAS (a path, or "none"), a copy already in the process,
 * libopenblas.so.0, else none. OpenBLAS picks its kernels when it is loaded and does not know recent CPUs, so
 * the core type is put into the environment around that first load, unless the owner has set one. A library
 * that multiplies wrongly is refused. It always runs one thread a tile: the tiles are our parallelism, and
 * its bits depend on its own thread count. The library stays loaded: unloading one that has threads is unsafe. */
#include "gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* cblas.h */

typedef void (*sgemm_fn)(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda,
                         const float *B, int ldb, float beta, float *C, int ldc);
typedef void (*dgemm_fn)(int order, int ta, int tb, int M, int N, int K, double alpha, const double *A,
                         int lda, const double *B, int ldb, double beta, double *C, int ldc);

struct np_blas {
    void *handle;
    sgemm_fn sgemm;
    dgemm_fn dgemm;
    void (*omp_set)(int); /* openmp flavour: its thread count is a property of the calling thread */
    int (*omp_get)(void);
    char name[96];
};

bool np_blas_ready(const np_blas *b) { return b->sgemm != NULL; }

void np_blas_tile(const np_blas *b, bool f64, bool ta, bool tb, int M, int N, int K, double alpha,
                  const void *A, int lda, const void *B, int ldb, double beta, void *C, int ldc)
{
    int before = 0, at = ta ? TRANS : NO_TRANS, bt = tb ? TRANS : NO_TRANS;
    if (b->omp_set) {
        before = b->omp_get();
        if (before != 1) b->omp_set(1);
    }
    if (f64) b->dgemm(ROW_MAJOR, at, bt, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else b->sgemm(ROW_MAJOR, at, bt, M, N, K, (float)alpha, A, lda, B, ldb, (float)beta, C, ldc);
    if (b->omp_set && before != 1) b->omp_set(before);
}

/* dlsym returns an object pointer; POSIX guarantees that it converts. */
static bool symbol(void *handle, const char *name, void *fn_ptr)
{
    void *p = dlsym(handle, name);
    memcpy(fn_ptr, &p, sizeof p);
    return p != NULL;
}

/* The largest difference of one product of uneven sizes from the plain sum, relative to K. */
static double check_error(const np_blas *b, bool f64)
{
    enum { M = 19, N = 21, K = 37 };
    float a[M * K], w[N * K], c[M * N];
    double ad[M * K], wd[N * K], cd[M * N], worst = 0;
    for (int i = 0; i < M * K; i++) a[i] = (float)(ad[i] = (double)((i * 7) % 23 - 11) / 8);
    for (int i = 0; i < N * K; i++) w[i] = (float)(wd[i] = (double)((i * 5) % 19 - 9) / 8);
    for (int i = 0; i < M * N; i++) c[i] = (float)(cd[i] = NAN); /* beta = 0 must not read it */
    np_blas_tile(b, f64, false, true, M, N, K, 2, f64 ? (void *)ad : (void *)a, K,
                 f64 ? (void *)wd : (void *)w, K, 0, f64 ? (void *)cd : (void *)c, N);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double s = 0;
            for (int k = 0; k < K; k++) s += ad[i * K + k] * wd[j * K + k];
            double d = fabs(2 * s - (f64 ? cd[i * N + j] : (double)c[i * N + j]));
            if (!(d <= worst)) worst = d;
        }
    }
    return worst / K;
}

/* The copy that the process has, or a fresh load with the core type in the environment. */
static void *load(const char *path)
{
    const char *name = path ? path : "libopenblas.so.0";
    void *h = dlopen(name, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    if (h) return h;
    const char *core = np_cpu_openblas_core();
    bool set = core && !getenv("OPENBLAS_CORETYPE") && setenv("OPENBLAS_CORETYPE", core, 0) == 0;
    h = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (set) unsetenv("OPENBLAS_CORETYPE");
    return h;
}

static const char *refuse(np_blas *b, const char *why)
{
    b->sgemm = NULL;
    b->dgemm = NULL;
    return why;
}

/* NULL, or why the library is not used. */
static const char *bind(neap_ctx *c, np_blas *b)
{
    char *(*config)(void) = NULL, *(*corename)(void) = NULL;
    void (*set_threads)(int) = NULL;
    if (!symbol(b->handle, "cblas_sgemm", &b->sgemm) || !symbol(b->handle, "cblas_dgemm", &b->dgemm))
        return refuse(b, "it has no cblas_sgemm or cblas_dgemm");
    symbol(b->handle, "openblas_get_config", &config);
    symbol(b->handle, "openblas_get_corename", &corename);
    if (config && strstr(config(), "USE64BITINT")) return refuse(b, "it takes 64-bit sizes");
    if (!symbol(b->handle, "omp_set_num_threads", &b->omp_set) ||
        !symbol(b->handle, "omp_get_max_threads", &b->omp_get))
        b->omp_set = NULL;
    if (symbol(b->handle, "openblas_set_num_threads", &set_threads)) {
        int before = b->omp_set ? b->omp_get() : 0; /* the openmp flavour forwards it to the calling thread */
        set_threads(1);
        if (b->omp_set) b->omp_set(before);
    }
    if (!(check_error(b, false) < 1e-5) || !(check_error(b, true) < 1e-13))
        return refuse(b, "a test product came out wrong");
    const char *text = config ? config() : "BLAS"; /* "OpenBLAS 0.3.21 NO_LAPACKE ..." */
    int words = (int)strcspn(text, " ");
    if (text[words]) words += 1 + (int)strcspn(text + words + 1, " ");
    snprintf(b->name, sizeof b->name, "%.*s %.24s", words < 60 ? words : 60, text,
             corename ? corename() : "");
    const char *want = np_cpu_openblas_core();
    if (corename && want && strcmp(corename(), "Prescott") == 0)
        np_logf(
            c, 2,
            "OpenBLAS runs its Prescott kernels, which are several times slower than this CPU allows; set "
            "OPENBLAS_CORETYPE=%s before the process starts",
            want);
    return NULL;
}

static void close_blas(neap_ctx *c, void *arg)
{
    np_blas *b = arg;
    if (b->handle) dlclose(b->handle);
    np_obj_free(c, b, sizeof *b);
    c->blas = NULL;
}

const np_blas *np_blas_open(neap_ctx *c)
{
    if (c->blas) return c->blas;
    np_blas *b = np_obj_new(c, sizeof *b);
    if (!b) return NULL;
    if (!np_ctx_at_close(c, close_blas, b)) {
        np_obj_free(c, b, sizeof *b);
        return NULL;
    }
    c->blas = b;
    snprintf(b->name, sizeof b->name, "own kernel");
    const char *path = getenv("NEAP_BLAS");
    if (path && !*path) path = NULL;
    if (path && strcmp(path, "none") == 0) return b;
    b->handle = load(path);
    const char *why = b->handle ? bind(c, b) : path ? dlerror() : "libopenblas.so.0 was not found";
    if (why)
        np_logf(c, path ? 2 : 1, "products run on Neap's own kernel: %s: %s", path ? path : "OpenBLAS", why);
    else np_logf(c, 0, "products run on %s", b->name);
    return b;
}

const char *np_blas_describe(neap_ctx *c)
{
    const np_blas *b = np_blas_open(c);
    return b ? b->name : "";
}
