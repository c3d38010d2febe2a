/* test_tensor.c - tensors as objects: making, facts, views, counting of bytes, scopes, errors. */
#include "tensor_help.h"

static void makes_ordinary_tensors(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = neap_zeros(c, SHAPE(2, 3), NEAP_FLOAT32, 0);
    assert_int_equal(neap_ndim(x), 2);
    assert_int_equal(neap_size(x, -1), 3);
    assert_int_equal(neap_size(x, 2), -1);
    assert_int_equal(neap_stride(x, 0), 3);
    assert_int_equal(neap_numel(x), 6);
    assert_true(neap_is_contiguous(x));
    assert_int_equal(neap_device_of(x), 0);
    for (int i = 0; i < 6; i++) assert_true(((float *)neap_data(x))[i] == 0);
    neap_free(x);
    const int32_t data[] = {1, 2, 3};
    x = neap_from_data(c, SHAPE(3), NEAP_INT32, data);
    assert_true(at(x, 2) == 3);
    neap_free(x);
    x = neap_full(c, SHAPE(4), 2.5, NEAP_FLOAT16, 0);
    assert_true(at(x, 3) == 2.5);
    neap_free(x);
}

static void zero_dims_and_no_elements_are_ordinary(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    double v;
    int64_t i;
    neap_tensor *x = neap_full(c, 0, NULL, 7, NEAP_INT64, 0);
    assert_int_equal(neap_numel(x), 1);
    assert_int_equal(neap_item(c, x, &v), 0);
    assert_true(v == 7);
    assert_int_equal(neap_item_int(c, x, &i), 0);
    assert_int_equal(i, 7);
    neap_free(x);
    x = neap_zeros(c, SHAPE(3, 0, 2), NEAP_FLOAT32, 0);
    assert_int_equal(neap_numel(x), 0);
    assert_true(neap_is_contiguous(x));
    assert_int_equal(neap_item(c, x, &v), -1);
    expect_error(c, "E-SHAPE");
    assert_int_equal(neap_read(c, x, NULL, 0), 0);
    neap_free(x);
}

static void eight_dims_are_the_limit(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = neap_zeros(c, SHAPE(2, 1, 2, 1, 2, 1, 2, 1), NEAP_BOOL, 0);
    assert_int_equal(neap_numel(x), 16);
    neap_free(x);
    assert_null(neap_zeros(c, SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), NEAP_BOOL, 0));
    expect_error(c, "E-DIMS");
}

static void refuses_impossible_shapes(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    assert_null(neap_empty(c, SHAPE(2, -1), NEAP_FLOAT32, 0));
    assert_non_null(strstr(neap_error_message(c), "-1"));
    expect_error(c, "E-SHAPE");
    assert_null(neap_empty(c, SHAPE(INT64_MAX, 2), NEAP_UINT8, 0));
    expect_error(c, "E-SHAPE");
    assert_null(neap_empty(c, SHAPE(INT64_MAX / 4), NEAP_FLOAT64, 0));
    expect_error(c, "E-SHAPE");
    assert_null(neap_empty(c, SHAPE(2), NEAP_FLOAT32, 5));
    expect_error(c, "E-DEVICE");
    neap_tensor *x = neap_empty(c, SHAPE(0, INT64_MAX, INT64_MAX), NEAP_FLOAT64, 0);
    assert_int_equal(neap_numel(x), 0);
    neap_free(x);
}

static void a_pending_error_stops_work(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_fail(c, NEAP_E_USER, "mine", NULL);
    assert_null(neap_zeros(c, SHAPE(2), NEAP_FLOAT32, 0));
    assert_null(neap_number(c, 1));
    assert_string_equal(neap_error_message(c), "mine");
    expect_error(c, "E-USER");
}

static void bytes_are_counted_exactly(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_memory m = {.size = sizeof m};
    neap_tensor *x = neap_empty(c, SHAPE(5, 5), NEAP_FLOAT32, 0),
                *s = neap_empty(c, 0, NULL, NEAP_FLOAT64, 0);
    neap_tensor *number = neap_number(c, 3), *view = np_tensor_alias(x);
    assert_int_equal(neap_memory_stats(c, 0, &m), 0);
    assert_int_equal(m.live, 108);
    assert_int_equal(m.storages, 2);
    assert_int_equal(m.by[NEAP_TEMP], 108);
    neap_set_category(x, NEAP_PARAM);
    neap_memory_stats(c, 0, &m);
    assert_int_equal(m.by[NEAP_TEMP], 8);
    assert_int_equal(m.by[NEAP_PARAM], 100);
    neap_free(x);
    neap_memory_stats(c, 0, &m);
    assert_int_equal(m.live, 108); /* the view holds the storage */
    neap_free(view);
    neap_free(s);
    neap_free(number);
    neap_memory_stats(c, 0, &m);
    assert_int_equal(m.live, 0);
    assert_int_equal(m.peak, 108);
    neap_reset_peak(c, 0);
    neap_memory_stats(c, 0, &m);
    assert_int_equal(m.peak, 0);
}

static void a_limit_holds_before_memory_is_taken(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    assert_int_equal(neap_memory_limit(c, 0, 1000), 0);
    assert_null(neap_empty(c, SHAPE(1001), NEAP_UINT8, 0));
    expect_error(c, "E-LIMIT");
    neap_tensor *x = neap_empty(c, SHAPE(1000), NEAP_UINT8, 0);
    assert_null(neap_empty(c, SHAPE(1), NEAP_UINT8, 0)); /* scalars count too */
    expect_error(c, "E-LIMIT");
    neap_free(x);
    assert_int_equal(neap_memory_limit(c, 0, -1), -1);
    expect_error(c, "E-ARG");
}

static void ambient_category_names_new_storages(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    uint64_t id = np_ambient_push(c, NP_AMB_CATEGORY, NEAP_OPTIMIZER, NULL, "test", NULL);
    neap_tensor *x = neap_empty(c, SHAPE(100), NEAP_UINT8, 0);
    np_ambient_pop(c, id);
    assert_int_equal(c->devices[0]->mem.by[NEAP_OPTIMIZER], 100);
    neap_free(x);
}

static void release_once(void *user) { ++*(int *)user; }

static void wraps_host_memory(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    _Alignas(16) float data[4] = {1, 2, 3, 4};
    int released = 0;
    neap_tensor *x = neap_wrap(c, SHAPE(2, 2), NEAP_FLOAT32, data, release_once, &released);
    neap_tensor *view = np_tensor_alias(x);
    assert_ptr_equal(neap_data(x), data);
    assert_int_equal(c->devices[0]->mem.by[NEAP_USER], 16);
    neap_free(x);
    assert_int_equal(released, 0);
    neap_free(view);
    assert_int_equal(released, 1);
    assert_null(neap_wrap(c, SHAPE(1), NEAP_FLOAT32, (char *)data + 1, release_once, &released));
    expect_error(c, "E-ARG");
    assert_null(neap_wrap(c, SHAPE(1), NEAP_FLOAT32, NULL, release_once, &released));
    expect_error(c, "E-ARG");
    assert_int_equal(released, 1);
}

static void watching_a_version_keeps_no_data(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *x = neap_empty(c, SHAPE(100), NEAP_UINT8, 0), *view = np_tensor_alias(x);
    np_version *v = &x->st->version;
    v->refs++;
    np_bump(view);
    assert_int_equal(neap_tensor_version(x), 1);
    neap_free(view);
    neap_free(x);
    assert_int_equal(c->devices[0]->mem.live, 0);
    assert_int_equal(v->n, 1);
    np_version_free(c, v);
}

static void reads_any_layout(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    float out[6];
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(3, 2));
    neap_tensor *t = window(x, 0, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2});
    assert_false(neap_is_contiguous(t));
    assert_int_equal(neap_read(c, t, out, sizeof out), 0);
    const float want[] = {0, 2, 4, 1, 3, 5};
    assert_memory_equal(out, want, sizeof want);
    assert_int_equal(neap_read(c, t, out, 20), -1);
    expect_error(c, "E-ARG");
    neap_free(t);
    neap_free(x);
}

static void hashes_values_not_layouts(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    uint64_t a, b, d;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(3, 2));
    neap_tensor *t = window(x, 0, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2});
    neap_tensor *copy = np_contiguous_copy(c, t);
    neap_tensor *flat = window(copy, 0, 1, (int64_t[]){6}, (int64_t[]){1});
    assert_int_equal(neap_hash(c, t, &a), 0);
    assert_int_equal(neap_hash(c, copy, &b), 0);
    assert_int_equal(neap_hash(c, flat, &d), 0);
    assert_true(a == b);
    assert_true(a != d);
    neap_free(flat), neap_free(copy), neap_free(t), neap_free(x);
}

static void sequences_include_both_ends(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    const struct {
        double first, last, step;
        int64_t n;
    } cases[] = {{0.1, 0.5, 0.05, 9}, {0, 1, 0.1, 11}, {0, 1, 1.0 / 49, 50}, {1, 10, 1, 10},
                 {5, 1, -2, 3},       {2, 1, 1, 0},    {3, 3, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            neap_tensor *x = neap_arange(c, cases[i].first, cases[i].last, cases[i].step,
                                         k ? NEAP_FLOAT64 : NEAP_FLOAT32, 0);
            assert_int_equal(neap_numel(x), cases[i].n);
            neap_free(x);
        }
    neap_tensor *x = neap_arange(c, 1, 5, 2, NEAP_INT64, 0);
    assert_true(at(x, 0) == 1 && at(x, 1) == 3 && at(x, 2) == 5);
    neap_free(x);
    assert_null(neap_arange(c, 0, 1, 0, NEAP_FLOAT32, 0));
    expect_error(c, "E-ARG");
    assert_null(neap_arange(c, 0, 3, 0.5, NEAP_INT32, 0));
    expect_error(c, "E-ARG");
    x = neap_linspace(c, -1, 1, 5, NEAP_FLOAT64, 0);
    for (int i = 0; i < 5; i++) assert_true(at(x, i) == -1 + 0.5 * i);
    neap_free(x);
    x = neap_linspace(c, 0.1, 0.7, 4, NEAP_FLOAT64, 0);
    assert_true(at(x, 0) == 0.1 && at(x, 3) == 0.7);
    neap_free(x);
    x = neap_eye(c, 2, 3, NEAP_INT32, 0);
    for (int i = 0; i < 6; i++) assert_true(at(x, i) == (i == 0 || i == 4));
    neap_free(x);
}

static void scopes_own_what_is_made_inside(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    assert_int_equal(neap_scope_begin(c), 0);
    neap_tensor *gone = neap_zeros(c, SHAPE(10), NEAP_FLOAT32, 0),
                *kept = neap_zeros(c, SHAPE(3), NEAP_FLOAT32, 0);
    neap_number(c, 2);
    assert_true(gone->scoped);
    assert_int_equal(neap_scope_begin(c), 0);
    neap_tensor *inner = neap_zeros(c, SHAPE(5), NEAP_FLOAT32, 0);
    assert_ptr_equal(neap_keep(inner), inner);
    neap_keep(kept);
    neap_scope_end(c);
    assert_int_equal(inner->refs, 1);
    neap_scope_end(c);
    neap_scope_end(c); /* none is open: nothing happens */
    assert_int_equal(c->devices[0]->mem.live, 32);
    assert_ptr_equal(neap_keep(kept), kept); /* in no scope: harmless */
    neap_free(kept);
    neap_free(inner);
    neap_tensor *x = neap_zeros(c, SHAPE(5), NEAP_FLOAT32, 0);
    assert_false(x->scoped);
    neap_free(x);
}

static bool make_things(neap_ctx *c)
{
    bool ok = neap_scope_begin(c) == 0;
    for (int i = 0; i < 20; i++) neap_zeros(c, SHAPE(i), NEAP_FLOAT32, 0);
    neap_number(c, 1);
    neap_eye(c, 3, 3, NEAP_FLOAT64, 0);
    neap_arange(c, 1, 9, 1, NEAP_INT32, 0);
    if (ok) neap_scope_end(c);
    return neap_error(c) == NEAP_OK;
}

static void no_failed_allocation_loses_anything(void **state) { every_allocation_fails(*state, make_things); }

static void shapes_broadcast(void **state)
{
    (void)state;
    int n = 2;
    int64_t shape[NEAP_MAX_DIMS] = {3, 1};
    assert_true(np_broadcast_shape(&n, shape, 3, (const int64_t[]){2, 1, 4}));
    assert_int_equal(n, 3);
    assert_true(shape[0] == 2 && shape[1] == 3 && shape[2] == 4);
    assert_false(np_broadcast_shape(&n, shape, 1, (const int64_t[]){3}));
    assert_true(np_broadcast_shape(&n, shape, 0, NULL));
    n = 1, shape[0] = 1;
    assert_true(np_broadcast_shape(&n, shape, 1, (const int64_t[]){0}));
    assert_int_equal(shape[0], 0);
}

static void positions_speak_the_callers_base(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    assert_int_equal(np_wrap_dim(c, -1, 3), 2);
    assert_int_equal(np_wrap_dim(c, 0, 0), 0);
    assert_int_equal(np_wrap_dim(c, 3, 3), -1);
    assert_non_null(strstr(neap_error_message(c), "no dimension 3"));
    expect_error(c, "E-DIMS");
    c->base = 1;
    assert_int_equal(np_wrap_dim(c, 3, 3), -1);
    assert_non_null(strstr(neap_error_message(c), "no dimension 4: the tensor has 3, so 1 to 3"));
    expect_error(c, "E-DIMS");
    assert_int_equal(np_wrap_index(c, -5, 5, 0), 0);
    assert_int_equal(np_wrap_index(c, 5, 5, 0), -1);
    assert_non_null(
        strstr(neap_error_message(c), "position 6 is out of range: dimension 1 has size 5, so 1 to 5"));
    expect_error(c, "E-INDEX");
    assert_int_equal(np_wrap_index(c, 0, 0, 0), -1);
    expect_error(c, "E-INDEX");
    c->base = 0;
}

static void knows_what_overlaps(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    bool same;
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(4, 4));
    neap_tensor *columns = window(x, 0, 2, (int64_t[]){4, 2}, (int64_t[]){4, 2});
    neap_tensor *expanded = window(x, 0, 2, (int64_t[]){3, 4}, (int64_t[]){0, 1});
    neap_tensor *sliding = window(x, 0, 2, (int64_t[]){3, 2}, (int64_t[]){1, 1});
    neap_tensor *top = window(x, 0, 1, (int64_t[]){8}, (int64_t[]){1});
    neap_tensor *bottom = window(x, 8, 1, (int64_t[]){8}, (int64_t[]){1});
    assert_false(np_overlaps_itself(x));
    assert_false(np_overlaps_itself(columns));
    assert_true(np_overlaps_itself(expanded));
    assert_true(np_overlaps_itself(sliding));
    assert_false(np_may_overlap(top, bottom, &same));
    assert_true(np_may_overlap(x, bottom, &same));
    assert_false(same);
    neap_tensor *alias = np_tensor_alias(x);
    assert_true(np_may_overlap(x, alias, &same));
    assert_true(same);
    neap_tensor *all[] = {alias, bottom, top, sliding, expanded, columns, x};
    for (int i = 0; i < 7; i++) neap_free(all[i]);
}

/* user case A20: 0-dim operands and numbers do not widen within a kind. */
static void operands_promote_as_in_pytorch(void **state)
{
    neap_ctx *c = ((world *)*state)->c;
    neap_tensor *i32 = neap_zeros(c, SHAPE(2), NEAP_INT32, 0),
                *f32 = neap_zeros(c, SHAPE(2), NEAP_FLOAT32, 0);
    neap_tensor *f64 = neap_zeros(c, SHAPE(2), NEAP_FLOAT64, 0), *b = neap_zeros(c, SHAPE(2), NEAP_BOOL, 0);
    neap_tensor *f16 = neap_zeros(c, SHAPE(2), NEAP_FLOAT16, 0),
                *d64 = neap_zeros(c, 0, NULL, NEAP_FLOAT64, 0);
    neap_tensor *two = neap_integer(c, 2), *half = neap_number(c, 0.5);
    const struct {
        neap_tensor *a, *b;
        neap_dtype want;
    } cases[] = {
        {i32, two, NEAP_INT32},    {i32, half, NEAP_FLOAT32}, {f32, half, NEAP_FLOAT32},
        {f32, f64, NEAP_FLOAT64},  {b, two, NEAP_INT64},      {f32, d64, NEAP_FLOAT32},
        {i32, d64, NEAP_FLOAT64},  {f16, half, NEAP_FLOAT16}, {d64, half, NEAP_FLOAT64},
        {two, half, NEAP_FLOAT32}, {two, two, NEAP_INT64},    {b, b, NEAP_BOOL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        neap_tensor *one[2] = {cases[i].a, cases[i].b}, *other[2] = {cases[i].b, cases[i].a};
        assert_int_equal(np_promote_operands(one, 2), cases[i].want);
        assert_int_equal(np_promote_operands(other, 2), cases[i].want);
    }
    neap_tensor *all[] = {i32, f32, f64, b, f16, d64, two, half};
    for (int i = 0; i < 8; i++) neap_free(all[i]);
}

static bool no_copy(void *user, void *dst, const void *src, size_t bytes, bool to, bool from)
{
    (void)to, (void)from;
    ++*(int *)user;
    memcpy(dst, src, bytes);
    return true;
}

/* A device whose memory the core must not touch but by its copy function. */
static void devices_register_and_copy(void **state)
{
    world *w = *state;
    neap_ctx *c = w->c;
    int copies = 0;
    const np_kernel_row unknown[] = {{"no_such_op", NULL}, {NULL, NULL}};
    neap_backend b = {
        .size = sizeof b, .name = "fake:0", .copy = no_copy, .user = &copies, .kernels = unknown};
    assert_int_equal(neap_register_backend(c, &b), -1);
    expect_error(c, "E-DEVICE");
    b.kernels = NULL;
    int dev = neap_register_backend(c, &b);
    w->objects = c->obj_live;
    assert_int_equal(dev, 1);
    assert_int_equal(neap_device_count(c), 2);
    assert_int_equal(neap_device_find(c, "fake"), 1);
    assert_int_equal(neap_device_find(c, "fake:0"), 1);
    assert_int_equal(neap_device_find(c, "cpu"), 0);
    assert_int_equal(neap_device_find(c, "cpu:0"), 0);
    assert_int_equal(neap_device_find(c, "tpu"), -1);
    assert_non_null(strstr(neap_error_message(c), "cpu, fake:0"));
    expect_error(c, "E-DEVICE");
    assert_int_equal(neap_register_backend(c, &b), -1);
    expect_error(c, "E-DEVICE");
    assert_non_null(neap_default_generator(c, 1));
    neap_tensor *x = count_up(c, NEAP_FLOAT32, SHAPE(3, 4));
    neap_tensor *y = neap_zeros(c, SHAPE(4, 3), NEAP_FLOAT64, dev);
    neap_tensor *yt = window(y, 0, 2, (int64_t[]){3, 4}, (int64_t[]){1, 3});
    assert_true(np_copy_into(c, yt, x));
    neap_tensor *back = np_to_host(c, yt);
    for (int i = 0; i < 12; i++) assert_true(at(back, i) == i);
    assert_true(copies > 0);
    char *text = neap_tostring(c, y);
    assert_non_null(strstr(text, "[float64 4x3 fake:0]"));
    neap_free_text(text);
    assert_true(c->devices[1]->mem.live == 96);
    assert_int_equal(c->devices[0]->mem.by[NEAP_STAGING], 0);
    neap_free(back), neap_free(yt), neap_free(y), neap_free(x);
    assert_true(c->devices[1]->mem.live == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(makes_ordinary_tensors),
        TEST(zero_dims_and_no_elements_are_ordinary),
        TEST(eight_dims_are_the_limit),
        TEST(refuses_impossible_shapes),
        TEST(a_pending_error_stops_work),
        TEST(bytes_are_counted_exactly),
        TEST(a_limit_holds_before_memory_is_taken),
        TEST(ambient_category_names_new_storages),
        TEST(wraps_host_memory),
        TEST(watching_a_version_keeps_no_data),
        TEST(reads_any_layout),
        TEST(hashes_values_not_layouts),
        TEST(sequences_include_both_ends),
        TEST(scopes_own_what_is_made_inside),
        TEST(no_failed_allocation_loses_anything),
        TEST(shapes_broadcast),
        TEST(positions_speak_the_callers_base),
        TEST(knows_what_overlaps),
        TEST(operands_promote_as_in_pytorch),
        TEST(devices_register_and_copy),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
