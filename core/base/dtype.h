/* dtype.h - the nine element types: sizes, names, classes and PyTorch's promotion table.
 * The order of the enum (neap.h) is the order of every table here: SAME-ORDER dtype. */
#ifndef NP_DTYPE_H
#define NP_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half.h"
#include "neap.h"

static const uint8_t np_sizes[NEAP_N_DTYPES] = {4, 8, 2, 2, 8, 4, 1, 1, 1}; /* bytes. SAME-ORDER dtype */
static inline size_t np_dtype_size(neap_dtype t) { return (unsigned)t < NEAP_N_DTYPES ? np_sizes[t] : 0; }
const char *np_dtype_name(neap_dtype t); /* "float32" */
bool np_dtype_parse(const char *name, neap_dtype *out);
static inline bool np_is_float(neap_dtype t) { return t <= NEAP_BFLOAT16; }
static inline bool np_is_int(neap_dtype t) { return t > NEAP_BFLOAT16 && t != NEAP_BOOL; }

/* What an integer dtype holds. */
static inline void np_int_range(neap_dtype t, int64_t *low, int64_t *high)
{
    *low = t == NEAP_INT32 ? INT32_MIN : t == NEAP_INT8 ? INT8_MIN : t == NEAP_UINT8 ? 0 : INT64_MIN;
    *high = t == NEAP_INT32 ? INT32_MAX : t == NEAP_INT8 ? INT8_MAX : t == NEAP_UINT8 ? UINT8_MAX : INT64_MAX;
}

/* Result type of two tensors of the same category (both dimensioned, or both 0-dim/number).
 * np_promote_operands (tensor.h) adds the rule that 0-dim operands and numbers do not widen in a kind. */
neap_dtype np_promote(neap_dtype a, neap_dtype b);
int np_dtype_kind(neap_dtype t); /* 0 bool, 1 integer, 2 float */

/* Those of half.h as functions. */
float np_half_to_float(np_half h);
np_half np_float_to_half(float f);

/* One element as a C number, and back. Integers go through int64 exactly. */
double np_load_double(neap_dtype t, const void *p);
int64_t np_load_int(neap_dtype t, const void *p);
void np_store_double(neap_dtype t, void *p, double v);
void np_store_int(neap_dtype t, void *p, int64_t v);

/* n elements from type `st` (byte stride ss) to type `dt` (byte stride ds). Float to integer truncates
 * toward zero and saturates (NaN gives 0); anything to bool is v != 0. */
void np_convert(neap_dtype dt, void *dst, int64_t ds, neap_dtype st, const void *src, int64_t ss, int64_t n);

#endif
