/* median.c - the element in the middle, found by its bits: no order of the elements is made.
 *
 * Every value is mapped to an unsigned key whose order is that of the values. Eight passes over a row, one per byte from
 * the highest on, count the keys that agree so far and narrow them down to the one with the wanted rank. */
#include "ops/cpu/rows.h"
#include "ops/cpu/reduce.h"

/* The order of keys is the order of values; both zeros are one. */
static inline uint64_t key_of_double(double x)
{
    uint64_t u = v_bits_d(x + 0.0 == 0 ? 0.0 : x);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
static inline uint64_t key_at(const void *row, int64_t i, bool floats)
{
    return floats ? key_of_double(((const double *)row)[i])
                  : (uint64_t)((const int64_t *)row)[i] ^ (uint64_t)1 << 63;
}

/* The position of the element with `rank` smaller or, before it, equal ones; of the first NaN if there is one. */
static inline int64_t select_rank(const void *row, int64_t n, int64_t rank, bool floats)
{
    for (int64_t i = 0; floats && i < n; i++)
        if (isnan(((const double *)row)[i])) return i;
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint64_t key = key_at(row, i, floats);
            if (shift == 56 || (key ^ prefix) >> (shift + 8) == 0) count[key >> shift & 255]++;
        }
        int digit = 0;
        while (rank >= count[digit]) rank -= count[digit++];
        prefix |= (uint64_t)digit << shift;
    }
    for (int64_t i = 0; i < n; i++)
        if (key_at(row, i, floats) == prefix && rank-- == 0) return i;
    return 0; /* not reached */
}

typedef struct median_job {
    const neap_tensor *x; /* (rows, n), contiguous, int64 or float64 */
    neap_tensor *values, *ids;
    int64_t rows, n, base, per_task;
} median_job;

static void median_rows(void *arg, int64_t task)
{
    const median_job *j = arg;
    int64_t end = (task + 1) * j->per_task < j->rows ? (task + 1) * j->per_task : j->rows;
    bool floats = j->x->dtype == NEAP_FLOAT64;
    for (int64_t r = task * j->per_task; r < end; r++) {
        const char *row = np_ptr(j->x) + r * j->n * 8;
        int64_t at = select_rank(row, j->n, (j->n - 1) / 2, floats);
        np_write_block(j->values, r, 1, (neap_dtype)j->x->dtype, row + at * 8);
        if (j->ids) NP_DATA(int64_t, j->ids)[r] = at + j->base;
    }
}

/* median(x, [dim], {keepdim=}) -> values, positions: the lower one of the two in the middle along dim and where it is
 * (equal ones keep their order; the first NaN before all). Without dim: the median of all elements, alone.
 * Along a dim the gradient goes to the chosen element; without dim it is shared evenly by all equal ones. */
NP_CPU(median)(np_frame *f)
{
    neap_tensor *x = f->in[0];
    neap_dtype wide = np_is_float((neap_dtype)x->dtype) ? NEAP_FLOAT64 : NEAP_INT64;
    int dim = f->attr[0].has && x->ndim ? (int)(f->attr[0].i < 0 ? f->attr[0].i + x->ndim : f->attr[0].i)
                                        : x->ndim - 1;
    if (f->out[0]->numel == 0) return true;
    neap_tensor *rows = np_rows_in(f->c, x, dim, wide);
    if (!rows) return false;
    median_job j = {.x = rows,
                    .values = f->out[0],
                    .ids = f->n_out > 1 ? f->out[1] : NULL,
                    .rows = f->out[0]->numel,
                    .n = x->numel / f->out[0]->numel,
                    .base = f->attr[2].i};
    j.per_task = j.n < NP_ROW_GRAIN ? NP_ROW_GRAIN / j.n : 1;
    bool ok = np_parallel(f->c, (j.rows + j.per_task - 1) / j.per_task, median_rows, &j);
    np_drop(rows);
    return ok;
}

#ifdef NP_BASE_ONLY
NP_OP(median) = {
    NP_NAMED(median),          .args = "x:T dim:dim? ; keepdim:bool=false base:base -> values:T indices:T",
    .tags = NP_REDUCE,         .save = {NP_IN(0), NP_OUT(0), NP_OUT(1)},
    .infer = np_infer_extreme, .grad = np_extreme_grad,
    .sample = np_sample_dim};
#endif
