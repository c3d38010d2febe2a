/* iter.c - walks up to 8 operands over one broadcast shape in the order of the output's memory.
 *
 * Dims are sorted by the output's stride (smallest innermost), dims of size 1 vanish, neighbours that are
 * one run for every operand are merged; so a transposed output is still written front to back, and most calls
 * end up as a single run. Work is cut into chunks of NP_GRAIN elements of the merged order: by shape alone.
 * Never allocates, never looks at values. */
#include "tensor/tensor.h"

/* Should dim `a` be nested inside dim `b`? By the stride of the output, ties by the other operands. */
static bool is_inner(const np_iter *it, int a, int b)
{
    for (int k = 0; k < it->n; k++) {
        int64_t sa = it->stride[k][a], sb = it->stride[k][b];
        if (sa < 0) sa = -sa;
        if (sb < 0) sb = -sb;
        if (sa != sb) return sa < sb;
    }
    return false;
}

static void swap_dims(np_iter *it, int a, int b)
{
    int64_t s = it->shape[a];
    it->shape[a] = it->shape[b], it->shape[b] = s;
    for (int k = 0; k < it->n; k++) {
        s = it->stride[k][a];
        it->stride[k][a] = it->stride[k][b], it->stride[k][b] = s;
    }
}

static void merge_dims(np_iter *it)
{
    int last = 0;
    for (int d = 1; d < it->ndim; d++) {
        bool runs_on = true;
        for (int k = 0; k < it->n; k++) runs_on &= it->stride[k][d] == it->stride[k][last] * it->shape[last];
        if (runs_on) {
            it->shape[last] *= it->shape[d];
            continue;
        }
        last++;
        it->shape[last] = it->shape[d];
        for (int k = 0; k < it->n; k++) it->stride[k][last] = it->stride[k][d];
    }
    it->ndim = last + 1;
}

void np_iter_init(np_iter *it, neap_tensor *const *t, int n)
{
    const neap_tensor *out = t[0];
    it->n = n;
    it->ndim = 0;
    it->numel = out->numel;
    for (int k = 0; k < n; k++) it->base[k] = np_ptr(t[k]);
    for (int d = out->ndim - 1; d >= 0; d--) {
        if (out->shape[d] == 1) continue;
        int at = it->ndim++;
        it->shape[at] = out->shape[d];
        for (int k = 0; k < n; k++) {
            int own = d - (out->ndim - t[k]->ndim);
            bool walks = own >= 0 && t[k]->shape[own] != 1;
            it->stride[k][at] = walks ? t[k]->stride[own] * (int64_t)np_itemsize(t[k]) : 0;
        }
    }
    if (it->ndim == 0) {
        it->ndim = 1;
        it->shape[0] = 1;
        for (int k = 0; k < n; k++) it->stride[k][0] = (int64_t)np_itemsize(t[k]);
    }
    if (it->numel > 0) {
        for (int i = 1; i < it->ndim; i++)
            for (int j = i; j > 0 && is_inner(it, j, j - 1); j--) swap_dims(it, j, j - 1);
        merge_dims(it);
    }
    it->dense = it->ndim == 1 && it->stride[0][0] == (int64_t)np_itemsize(out);
    for (int k = 1; k < n && it->dense; k++)
        it->dense = it->stride[k][0] == (int64_t)np_itemsize(t[k]) || it->stride[k][0] == 0;
}

void np_iter_range(const np_iter *it, int64_t begin, int64_t end, np_run_fn run, void *arg)
{
    int64_t index[NEAP_MAX_DIMS], inner[NP_MAX_OPERANDS];
    char *p[NP_MAX_OPERANDS], *q[NP_MAX_OPERANDS];
    if (begin >= end) return;
    int64_t rest = begin;
    for (int d = 0; d < it->ndim; d++) index[d] = rest % it->shape[d], rest /= it->shape[d];
    for (int k = 0; k < it->n; k++) {
        p[k] = it->base[k];
        inner[k] = it->stride[k][0];
        for (int d = 0; d < it->ndim; d++) p[k] += index[d] * it->stride[k][d];
    }
    for (;;) {
        int64_t n = it->shape[0] - index[0];
        if (n > end - begin) n = end - begin;
        for (int k = 0; k < it->n; k++) q[k] = p[k]; /* run may advance its pointers */
        run(arg, n, q, inner);
        begin += n;
        if (begin >= end) return;
        for (int k = 0; k < it->n; k++) p[k] -= index[0] * inner[k];
        index[0] = 0;
        for (int d = 1; d < it->ndim; d++) {
            for (int k = 0; k < it->n; k++) p[k] += it->stride[k][d];
            if (++index[d] < it->shape[d]) break;
            for (int k = 0; k < it->n; k++) p[k] -= it->shape[d] * it->stride[k][d];
            index[d] = 0;
        }
    }
}

typedef struct iter_job {
    const np_iter *it;
    np_run_fn run;
    void *arg;
} iter_job;

static void iter_chunk(void *arg, int64_t chunk)
{
    const iter_job *j = arg;
    int64_t begin = chunk * NP_GRAIN, end = begin + NP_GRAIN;
    np_iter_range(j->it, begin, end < j->it->numel ? end : j->it->numel, j->run, j->arg);
}

bool np_iter_run(neap_ctx *c, const np_iter *it, np_run_fn run, void *arg)
{
    if (it->numel == 0) return true;
    iter_job j = {it, run, arg};
    return np_parallel(c, (it->numel + NP_GRAIN - 1) / NP_GRAIN, iter_chunk, &j);
}
