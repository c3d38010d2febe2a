/* pointwise.c - ops that only move memory, beside memcpy of the same traffic on the same number of threads.
 *
 * 64 MiB operands; the result's block comes back from the allocator's cache in every round, so no page is
 * new. Prints time ratios; 1.00 is the speed of memcpy. Nothing passes or fails. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tensor/tensor.h"

enum { ROUNDS = 15 };
#define N ((int64_t)16 << 20) /* float32 elements */
#define CHUNK ((size_t)1 << 20)

typedef struct copy_job {
    char *to;
    const char *from;
} copy_job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void copy_chunk(void *arg, int64_t i)
{
    copy_job *j = arg;
    memcpy(j->to + (size_t)i * CHUNK, j->from + (size_t)i * CHUNK, CHUNK);
}

/* Best seconds of reading and writing `bytes` each with memcpy, at most the operands' size. */
static double time_copy(neap_ctx *c, neap_tensor *to, neap_tensor *from, size_t bytes)
{
    copy_job j = {np_ptr(to), np_ptr(from)};
    double start = now();
    np_parallel(c, (int64_t)(bytes / CHUNK), copy_chunk, &j);
    return now() - start;
}

typedef neap_tensor *(*bench_op)(neap_ctx *c, neap_tensor *a, neap_tensor *b);
static neap_tensor *op_add(neap_ctx *c, neap_tensor *a, neap_tensor *b) { return neap_add(c, a, b); }
static neap_tensor *op_clone(neap_ctx *c, neap_tensor *a, neap_tensor *b)
{
    return (void)b, neap_clone(c, a);
}
static neap_tensor *op_exp(neap_ctx *c, neap_tensor *a, neap_tensor *b) { return (void)b, neap_exp(c, a); }
static neap_tensor *op_relu(neap_ctx *c, neap_tensor *a, neap_tensor *b) { return (void)b, neap_relu(c, a); }

/* `streams`: operands read and written; memcpy moves half of them in each direction. */
static void bench(neap_ctx *c, const char *name, bench_op op, int streams, neap_tensor *a, neap_tensor *b,
                  neap_tensor *wide[2])
{
    double ours = 1e9, theirs = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double start = now(), s;
        neap_free(op(c, a, b));
        if ((s = now() - start) < ours) ours = s;
        if ((s = time_copy(c, wide[0], wide[1], (size_t)N * 4 * (size_t)streams / 2)) < theirs) theirs = s;
    }
    printf("%-8s %d threads   Neap / memcpy time %5.2f\n", name, neap_get_num_threads(c), ours / theirs);
}

int main(void)
{
    neap_ctx *c = neap_ctx_new(NULL);
    if (!c) return 1;
    neap_tensor *a = neap_full(c, 1, (int64_t[]){N}, 0.5, NEAP_FLOAT32, 0);
    neap_tensor *b = neap_full(c, 1, (int64_t[]){N}, 0.25, NEAP_FLOAT32, 0), *wide[2];
    for (int i = 0; i < 2; i++) wide[i] = neap_zeros(c, 1, (int64_t[]){N + N / 2}, NEAP_FLOAT32, 0);
    int all = neap_get_num_threads(c);
    for (int threads = 1; !neap_error(c) && threads <= all; threads += all > 1 ? all - 1 : 1) {
        neap_set_num_threads(c, threads);
        bench(c, "copy", op_clone, 2, a, b, wide);
        bench(c, "add", op_add, 3, a, b, wide);
        bench(c, "relu", op_relu, 2, a, b, wide);
        bench(c, "exp", op_exp, 2, a, b, wide);
    }
    if (neap_error(c)) printf("%s\n", neap_error_message(c));
    neap_free(a), neap_free(b), neap_free(wide[0]), neap_free(wide[1]);
    neap_ctx_free(c);
    return 0;
}
