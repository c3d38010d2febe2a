/* sample.h - legal random arguments for every op: tests, failing-allocation sweeps and bench walk them.
 * A .sample function fills s->in, s->attr for its i-th set. Values avoid kinks, poles and ties. */
#ifndef NP_OPS_SAMPLE_H
#define NP_OPS_SAMPLE_H

#include "ops/op.h"

#define NP_SAMPLE_MAX_IN 6
/* Small ones for what is done many times; wide ones run the vector loops and their tails at every CPU level; large
 * ones are split among threads, and are what bench measures. */
typedef enum np_size { NP_SMALL, NP_WIDE, NP_LARGE } np_size;

typedef struct np_sampler {
    neap_ctx *c;
    uint64_t state;   /* of a small private generator: the same samples in every run */
    neap_dtype dtype; /* float dtype wanted for the main inputs */
    np_size size;
    neap_tensor *in[NP_SAMPLE_MAX_IN];
    int n_in;
    np_attr attr[NP_MAX_ATTR];
    int64_t lists[4][NEAP_MAX_DIMS]; /* backing of dims and shape attributes */
    unsigned no_grad;                /* bit i: input i is not differentiable (integer ids, masks) */
    const char *label;               /* "broadcast", "0-dim", ... */
} np_sampler;

double np_s_uniform(np_sampler *s, double lo, double hi);
int64_t np_s_int(np_sampler *s, int64_t lo, int64_t hi);              /* inclusive */
int64_t np_s_size(const np_sampler *s, int64_t small, int64_t large); /* of a dimension; wide: at most 67 */
/* Sets in[n_in++]. Values uniform in [lo, hi]. layout: 0 contiguous, 1 transposed, 2 every second element. */
bool np_s_tensor(np_sampler *s, double lo, double hi, int layout, int ndim, ...); /* int64_t sizes... */
bool np_s_ids(np_sampler *s, int64_t lo, int64_t hi, int ndim, ...); /* int64, not differentiable */
bool np_s_mask(np_sampler *s, int ndim, ...);                        /* bool, not differentiable */
void np_s_number(np_sampler *s, double v);                           /* a number operand */

/* Ready ones. Unary: contiguous, transposed, strided, 0-dim, empty, 3-d. */
bool np_sample_unary(np_sampler *s, int i);          /* values in [-2, 2] away from 0 */
bool np_sample_unary_positive(np_sampler *s, int i); /* (0.2, 3) */
bool np_sample_unary_in(np_sampler *s, int i, double lo, double hi);
bool np_sample_binary(np_sampler *s, int i); /* same shape, broadcast row, column, 0-dim, number, empty */
bool np_sample_binary_positive(np_sampler *s, int i); /* second operand in (0.5, 2) */

bool np_sample_dims(np_sampler *s, int i); /* attributes dims?, keepdim: all, one, two, kept, 0-dim, empty */
bool np_sample_dim(np_sampler *s, int i);  /* attributes dim?, keepdim */

#endif
