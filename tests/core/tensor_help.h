/* tensor_help.h - a context per test that must end as empty as it began, and small makers of tensors. */
#ifndef TENSOR_HELP_H
#define TENSOR_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/tensor.h"

typedef struct world {
    neap_ctx *c;
    size_t objects; /* live when the test begins */
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    *state = w;
    w->c = neap_ctx_new(NULL);
    if (w->c) w->objects = w->c->obj_live;
    return w->c ? 0 : -1;
}

/* Nothing may be left: no object, no byte, no error. */
static int teardown(void **state)
{
    world *w = *state;
    neap_ctx *c = w->c;
    int bad = c->obj_live != w->objects || c->devices[0]->mem.live != 0 || c->devices[0]->mem.storages != 0 ||
              neap_error(c) != NEAP_OK;
    if (bad)
        print_error("left: %zd objects, %lld bytes, error '%s'\n", (ssize_t)(c->obj_live - w->objects),
                    (long long)c->devices[0]->mem.live, neap_error_message(c));
    neap_ctx_free(c);
    free(w);
    return bad;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define SHAPE(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

static inline neap_tensor *count_up(neap_ctx *c, neap_dtype t, int ndim, const int64_t *shape)
{
    neap_tensor *x = neap_empty(c, ndim, shape, t, 0);
    for (int64_t i = 0; x && i < x->numel; i++)
        np_store_double(t, np_ptr(x) + (size_t)i * np_itemsize(x), (double)i);
    return x;
}

/* The element at a row-major position, whatever the layout. */
static inline double at(const neap_tensor *x, int64_t i)
{
    int64_t offset = 0;
    for (int d = x->ndim - 1; d >= 0; d--) offset += i % x->shape[d] * x->stride[d], i /= x->shape[d];
    return np_load_double((neap_dtype)x->dtype, np_ptr(x) + offset * (int64_t)np_itemsize(x));
}

/* A view of x with any geometry. */
static inline neap_tensor *window(neap_tensor *x, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *stride)
{
    return np_tensor_view(x, ndim, shape, stride, offset);
}

#define expect_error(c, want) \
    do { \
        assert_string_equal(neap_code_name(neap_error(c)), want); \
        neap_clear_error(c); \
    } while (0)

/* Runs body(c) with its first, second, ... allocation failing until one run meets no failure. After each
 * failure the error is E-NOMEM and nothing is left behind. body returns true when it succeeded, and cleans up
 * after itself. */
static inline void every_allocation_fails(world *w, bool (*body)(neap_ctx *c))
{
    neap_ctx *c = w->c;
    int failed = 0;
    for (uint64_t n = 1; n < 1000; n++) {
        size_t objects = c->obj_live;
        int64_t live = c->devices[0]->mem.live;
        neap_memory_trim(c);
        c->alloc_fail_at = n;
        bool ok = body(c);
        bool met = c->alloc_fail_at == 0;
        c->alloc_fail_at = 0;
        assert_int_equal(c->obj_live, objects);
        assert_int_equal(c->devices[0]->mem.live, live);
        if (!met) {
            assert_true(ok);
            assert_true(failed > 0);
            return;
        }
        failed++;
        assert_false(ok);
        expect_error(c, "E-NOMEM");
    }
    fail_msg("never got through");
}

#endif
