/* test_io_npy.c - neap_load_npy, neap_save_npy: the format's variants, the bytes written, and files that lie.
 */
#include "io_help.h"

static void write_npy(const char *path, int version, const char *header, const void *data, size_t n_data)
{
    unsigned char p[1024] = "\x93NUMPY";
    size_t n = strlen(header), at = version == 1 ? 10 : 12;
    p[6] = (unsigned char)version, p[7] = 0;
    for (size_t i = 8; i < at; i++) p[i] = (unsigned char)(n >> 8 * (i - 8));
    memcpy(p + at, header, n);
    if (n_data) memcpy(p + at + n, data, n_data);
    io_write(path, p, at + n + n_data);
}

static void expect(neap_dtype d, int ndim, const int64_t *shape, const void *data)
{
    neap_tensor *t = neap_load_npy(io_ctx, io_path("n"));
    if (!t) fail_msg("%s", neap_error_message(io_ctx));
    assert_int_equal(neap_dtype_of(t), d);
    assert_int_equal(neap_ndim(t), ndim);
    for (int i = 0; i < ndim; i++) assert_int_equal(neap_size(t, i), shape[i]);
    if (neap_numel(t)) assert_memory_equal(neap_data(t), data, (size_t)neap_numel(t) * neap_dtype_size(d));
    neap_free(t);
}

#define HEAD(descr, order, shape) "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

static void every_version(void **state)
{
    (void)state;
    for (int version = 1; version <= 3; version++) {
        write_npy(io_path("n"), version, HEAD("<i4", "False", "(2, 3)") "   \n",
                  (int32_t[]){0, 1, 2, 3, 4, 5}, 24);
        expect(NEAP_INT32, 2, (int64_t[]){2, 3}, (int32_t[]){0, 1, 2, 3, 4, 5});
    }
}

static void fortran_order_reads_by_logical_index(void **state)
{
    (void)state;
    write_npy(io_path("n"), 1, HEAD("<i4", "True", "(2, 3)") "\n", (int32_t[]){0, 3, 1, 4, 2, 5}, 24);
    expect(NEAP_INT32, 2, (int64_t[]){2, 3}, (int32_t[]){0, 1, 2, 3, 4, 5});
}

static void dtypes_and_byte_orders(void **state)
{
    (void)state;
    write_npy(io_path("n"), 1, HEAD(">f4", "False", "(2,)"), "\x3f\x80\0\0\xc0\0\0\0", 8);
    expect(NEAP_FLOAT32, 1, (int64_t[]){2}, (float[]){1, -2});
    write_npy(io_path("n"), 1, HEAD("<f8", "False", "()"), (double[]){2.5}, 8);
    expect(NEAP_FLOAT64, 0, NULL, (double[]){2.5});
    write_npy(io_path("n"), 1, HEAD("|u1", "False", "(0, 4)"), "", 0);
    expect(NEAP_UINT8, 2, (int64_t[]){0, 4}, "");
    write_npy(io_path("n"), 1, HEAD("<i8", "False", "(1,)"), (int64_t[]){-5}, 8);
    expect(NEAP_INT64, 1, (int64_t[]){1}, (int64_t[]){-5});
    write_npy(io_path("n"), 1, HEAD(">f2", "False", "(1,)"), "\x3c\x00", 2);
    expect(NEAP_FLOAT16, 1, (int64_t[]){1}, (uint16_t[]){0x3c00});
    write_npy(io_path("n"), 1, HEAD("|b1", "False", "(2,)"), "\0\1", 2);
    expect(NEAP_BOOL, 1, (int64_t[]){2}, "\0\1");
    write_npy(io_path("n"), 1, "{\"shape\":(2,),\"descr\":\"|i1\",\"fortran_order\":False}", "\x80\x7f", 2);
    expect(NEAP_INT8, 1, (int64_t[]){2}, "\x80\x7f");
}

static const struct {
    const char *header;
    size_t n_data;
    neap_code code;
    const char *words;
} bad_headers[] = {
    {"", 0, NEAP_E_FORMAT, "dictionary"},
    {"{}", 0, NEAP_E_FORMAT, "descr, fortran_order and shape"},
    {HEAD("|O", "False", "(1,)"), 8, NEAP_E_FORMAT, "dtype must be"},
    {HEAD("<U4", "False", "(1,)"), 8, NEAP_E_FORMAT, "dtype must be"},
    {HEAD("<c8", "False", "(1,)"), 8, NEAP_E_FORMAT, "dtype must be"},
    {HEAD("", "False", "(1,)"), 8, NEAP_E_FORMAT, "dtype must be"},
    {HEAD("f4", "False", "(1,)"), 4, NEAP_E_FORMAT, "dtype must be"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, NEAP_E_FORMAT, "structured"},
    {HEAD("<f4", "0", "(1,)"), 4, NEAP_E_FORMAT, "True or False"},
    {HEAD("<f4", "False", "(184)"), 736, NEAP_E_FORMAT, "comma"},
    {HEAD("<f4", "False", "(1 1)"), 4, NEAP_E_FORMAT, "comma"},
    {HEAD("<f4", "False", "[1]"), 4, NEAP_E_FORMAT, "tuple"},
    {HEAD("<f4", "False", "(-1,)"), 4, NEAP_E_FORMAT, "whole numbers"},
    {HEAD("<f4", "False", "(1.0,)"), 4, NEAP_E_FORMAT, "comma"},
    {HEAD("<f4", "False", "(,)"), 4, NEAP_E_FORMAT, "whole numbers"},
    {HEAD("<f4", "False", "(1000000000000,)"), 200, NEAP_E_FORMAT, "as long as its shape"},
    {HEAD("<f4", "False", "(99999999999999999999,)"), 4, NEAP_E_FORMAT, "overflows"},
    {HEAD("<f4", "False", "(4294967296, 4294967296)"), 4, NEAP_E_FORMAT, "overflows"},
    {HEAD("<f4", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 4, NEAP_E_DIMS, "more than 8"},
    {HEAD("<f4", "False", "(1,)"), 3, NEAP_E_FORMAT, "as long as"},
    {HEAD("<f4", "False", "(1,)"), 5, NEAP_E_FORMAT, "as long as"},
    {HEAD("<f4", "False", "(1,)") "x", 4, NEAP_E_FORMAT, "nothing more"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4, NEAP_E_FORMAT,
     "once each"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", 4, NEAP_E_FORMAT, "once each"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", 4, NEAP_E_FORMAT, "comma"},
    {"{'descr: 1}", 4, NEAP_E_FORMAT, "does not end"},
};

static void bad_headers_are_refused(void **state)
{
    (void)state;
    static const char data[800];
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        write_npy(io_path("n"), 1, bad_headers[i].header, data, bad_headers[i].n_data);
        neap_tensor *t = neap_load_npy(io_ctx, io_path("n"));
        if (t) fail_msg("loaded: %s", bad_headers[i].header);
        io_expect_error(bad_headers[i].code, bad_headers[i].words);
    }
}

static void lying_lengths_are_refused(void **state)
{
    (void)state;
    io_write(io_path("n"), "\x93NUMPY\1\0\xff\xff{}", 12);
    assert_null(neap_load_npy(io_ctx, io_path("n")));
    io_expect_error(NEAP_E_FORMAT, "within the file");
    io_write(io_path("n"), "\x93NUMPY\2\0\xff\xff\xff\xff{}", 14);
    assert_null(neap_load_npy(io_ctx, io_path("n")));
    io_expect_error(NEAP_E_FORMAT, "within the file");
    io_write(io_path("n"), "\x93NUMPY\4\0\2\0\0\0{}", 14);
    assert_null(neap_load_npy(io_ctx, io_path("n")));
    io_expect_error(NEAP_E_FORMAT, "version");
    io_write(io_path("n"), "PK\3\4 a zip file", 15);
    assert_null(neap_load_npy(io_ctx, io_path("n")));
    io_expect_error(NEAP_E_FORMAT, "NUMPY");
}

static void what_is_saved_comes_back(void **state)
{
    (void)state;
    neap_tensor *base =
        neap_from_data(io_ctx, 2, (int64_t[]){2, 3}, NEAP_INT32, (int32_t[]){0, 1, 2, 3, 4, 5});
    neap_tensor *t = np_tensor_view(base, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}, 0);
    assert_int_equal(neap_save_npy(io_ctx, io_path("n"), t), 0);
    expect(NEAP_INT32, 2, (int64_t[]){3, 2}, (int32_t[]){0, 3, 1, 4, 2, 5});
    neap_free(base), neap_free(t);
    for (int d = 0; d < NEAP_N_DTYPES; d++) {
        t = neap_zeros(io_ctx, d % 3, (int64_t[]){2, 3}, (neap_dtype)d, 0);
        neap_code code = (neap_code)neap_save_npy(io_ctx, io_path("n"), t);
        assert_int_equal(code, d == NEAP_BFLOAT16 ? NEAP_E_DTYPE : NEAP_OK);
        if (code) io_expect_error(NEAP_E_DTYPE, "no bfloat16");
        else expect((neap_dtype)d, d % 3, (int64_t[]){2, 3}, neap_data(t));
        neap_free(t);
    }
}

static void the_file_is_numpys(void **state)
{
    (void)state;
    size_t n;
    char want[132];
    neap_tensor *t = neap_from_data(io_ctx, 1, (int64_t[]){1}, NEAP_FLOAT32, (float[]){1});
    assert_int_equal(neap_save_npy(io_ctx, io_path("n"), t), 0);
    unsigned char *p = io_slurp(io_path("n"), &n);
    memset(want, ' ', sizeof want);
    memcpy(want, "\x93NUMPY\1\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 67);
    memcpy(want + 127, "\n\0\0\x80\x3f", 5);
    assert_int_equal(n, sizeof want);
    assert_memory_equal(p, want, n);
    free(p), neap_free(t);
}

static void every_failing_allocation(void **state)
{
    (void)state;
    neap_tensor *t = neap_zeros(io_ctx, 2, (int64_t[]){3, 2}, NEAP_FLOAT64, 0);
    write_npy(io_path("f"), 1, HEAD("<f8", "True", "(2, 3)"),
              "0123456789abcdef0123456789abcdef0123456789abcdef", 48);
    size_t objects = io_ctx->obj_live;
    for (int save = 0; save < 2; save++) {
        int failed = 0;
        for (uint64_t n = 1;; n++, failed++) {
            assert_true(n < 100);
            io_ctx->alloc_fail_at = n;
            neap_tensor *u = NULL;
            bool ok = save ? neap_save_npy(io_ctx, io_path("n"), t) == 0
                           : (u = neap_load_npy(io_ctx, io_path("f"))) != NULL;
            bool fired = io_ctx->alloc_fail_at == 0;
            io_ctx->alloc_fail_at = 0;
            neap_free(u);
            assert_int_equal(io_ctx->obj_live, objects);
            assert_true(ok == !fired);
            if (!fired) break;
            io_expect_error(NEAP_E_NOMEM, "");
        }
        assert_true(failed >= 2);
    }
    neap_free(t);
}

#define T(f) cmocka_unit_test_setup_teardown(f, io_setup, io_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_version),
        T(fortran_order_reads_by_logical_index),
        T(dtypes_and_byte_orders),
        T(bad_headers_are_refused),
        T(lying_lengths_are_refused),
        T(what_is_saved_comes_back),
        T(the_file_is_numpys),
        T(every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
