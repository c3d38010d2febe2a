/* order.h - the stable order of rows of elements: what sort, topk, median and sums over equal positions ask for. */
#ifndef NP_CUDA_ORDER_H
#define NP_CUDA_ORDER_H

#include "walk.h"

/* An element of a row: its key, whose order as an unsigned number is that of the values (ops/sort.c: NaN is the
 * greatest, -0 equals 0), and its place in the row. */
struct np_entry {
    uint64_t key;
    int64_t at;
};

/* Rows that lie anywhere: the first element of row i is at first.at(i), its next one `step` further. */
struct np_lines {
    const void *data;
    int dtype;
    np_walk<1> first; /* over the rows */
    int64_t n, step;
};

/* The lines along a dim of an operand; of a 0-dim one, its element. */
np_lines np_lines_along(const np_operand *x, int dim);

/* The `keep` first entries of each line in ascending order, or from the greatest down: equal ones keep their order in
 * both. In scratch memory, entry i of row r is [r * n + i]. NULL: fail has been called. */
const np_entry *np_order(const np_call *k, const np_lines &x, int64_t keep, bool descending);

/* The positions 0 .. n-1 ordered by the value at them, and then by themselves. NULL: fail has been called. */
int64_t *np_order_positions(const np_call *k, const int64_t *values, int64_t n);

NP_HOST_DEVICE uint64_t np_key_of(int64_t v) { return (uint64_t)v ^ (uint64_t)1 << 63; }
NP_HOST_DEVICE int64_t np_value_of_key(uint64_t key) { return (int64_t)(key ^ (uint64_t)1 << 63); }
NP_HOST_DEVICE uint64_t np_key_of(double v)
{
    if (v != v) return ~(uint64_t)0;
    if (v == 0) v = 0; /* no -0 */
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

#endif
