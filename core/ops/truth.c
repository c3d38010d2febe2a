/* truth.c - questions about all elements: any, all, how many. NaN counts as true. Nothing here has a gradient. */
#include "ops/cpu/reduce.h"

static void any_row(np_acc *a, const void *px, int64_t n, int64_t at)
{
    (void)at;
    const uint8_t *x = px;
    uint8_t hit = 0;
    for (int64_t i = 0; i < n; i++) hit |= x[i];
    a->i |= hit;
}
static void all_row(np_acc *a, const void *px, int64_t n, int64_t at)
{
    (void)at;
    const uint8_t *x = px;
    uint8_t hit = 1;
    for (int64_t i = 0; i < n; i++) hit &= x[i];
    a->i &= hit;
}
static void count_row(np_acc *a, const void *px, int64_t n, int64_t at)
{
    (void)at;
    const uint8_t *x = px;
    int64_t hits = 0;
    for (int64_t i = 0; i < n; i++) hits += x[i];
    a->i += hits;
}
static void count_merge(np_acc *a, const np_acc *b) { a->i += b->i; }
static void any_merge(np_acc *a, const np_acc *b) { a->i |= b->i; }
static void all_merge(np_acc *a, const np_acc *b) { a->i &= b->i; }

static const red_kind any_kind = {.start = {.i = 0}, .row = any_row, .merge = any_merge, .is_int = true};
static const red_kind count_kind = {
    .start = {.i = 0}, .row = count_row, .merge = count_merge, .is_int = true};
static const red_kind all_kind = {.start = {.i = 1}, .row = all_row, .merge = all_merge, .is_int = true};

/* ---- truth */

/* any(x, [dims], {keepdim=}): is an element nonzero (NaN is)? Without dims a boolean; with dims a bool tensor. */
NP_CPU(any)(np_frame *f)
{
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &any_kind, NEAP_BOOL, store_value, 0);
}

/* all(x, [dims], {keepdim=}): is every element nonzero? Without dims a boolean; with dims a bool tensor. */
NP_CPU(all)(np_frame *f)
{
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &all_kind, NEAP_BOOL, store_value, 0);
}

/* count_nonzero(x, [dims], {keepdim=}): how many elements are not 0 (NaN is not); int64. */
NP_CPU(count_nonzero)(np_frame *f)
{
    return reduce(f, np_dims_mask(&f->attr[0], f->in[0]->ndim), &count_kind, NEAP_BOOL, store_value, 0);
}

#ifdef NP_BASE_ONLY
static bool count_infer(np_frame *f) { return np_infer_dims(f, NEAP_INT64); }
static bool truth_infer(np_frame *f) { return np_infer_dims(f, NEAP_BOOL); }
NP_OP(any) = {NP_NAMED(any), .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF | NP_TRUTH, .infer = truth_infer,
              .sample = np_sample_dims};
NP_OP(all) = {NP_NAMED(all), .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
              .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF | NP_TRUTH, .infer = truth_infer,
              .sample = np_sample_dims};
NP_OP(count_nonzero) = {NP_NAMED(count_nonzero), .args = "x:T dims:dims? ; keepdim:bool=false -> y:T",
                        .tags = NP_REDUCE | NP_CHEAP | NP_NODIFF, .infer = count_infer,
                        .sample = np_sample_dims};
#endif
