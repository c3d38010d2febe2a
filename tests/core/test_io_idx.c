/* test_io_idx.c - neap_read_idx: plain and gzip, every dtype, and files that lie. */
#include "io_help.h"

#include <zlib.h>

static void write_gz(const char *path, const void *p, size_t n)
{
    gzFile f = gzopen(path, "wb9");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, p, (unsigned)n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

/* Reads the bytes plain and packed, and compares both results with what is expected. */
static void expect(const void *file, size_t n, neap_dtype d, int ndim, const int64_t *shape, const void *data)
{
    for (int packed = 0; packed < 2; packed++) {
        if (packed) write_gz(io_path("i"), file, n);
        else io_write(io_path("i"), file, n);
        neap_tensor *t = neap_read_idx(io_ctx, io_path("i"));
        if (!t) fail_msg("%s", neap_error_message(io_ctx));
        assert_int_equal(neap_dtype_of(t), d);
        assert_int_equal(neap_ndim(t), ndim);
        for (int i = 0; i < ndim; i++) assert_int_equal(neap_size(t, i), shape[i]);
        if (neap_numel(t))
            assert_memory_equal(neap_data(t), data, (size_t)neap_numel(t) * neap_dtype_size(d));
        neap_free(t);
    }
}

static void refuse(const void *file, size_t n, neap_code code, const char *words)
{
    for (int packed = 0; packed < 2; packed++) {
        if (packed) write_gz(io_path("i"), file, n);
        else io_write(io_path("i"), file, n);
        assert_null(neap_read_idx(io_ctx, io_path("i")));
        io_expect_error(code, packed ? "/i" : words);
    }
}

#define F(s) s, sizeof(s) - 1
static const char bytes_2x3[] = "\0\0\x08\2\0\0\0\2\0\0\0\3"
                                "\x00\x01\x7f\x80\xfe\xff";

static void every_dtype(void **state)
{
    (void)state;
    expect(F(bytes_2x3), NEAP_UINT8, 2, (int64_t[]){2, 3}, "\x00\x01\x7f\x80\xfe\xff");
    expect(F("\0\0\x09\1\0\0\0\2\x80\x7f"), NEAP_INT8, 1, (int64_t[]){2}, (int8_t[]){-128, 127});
    expect(F("\0\0\x0b\1\0\0\0\3\x80\0\x01\x02\xff\xff"), NEAP_INT32, 1, (int64_t[]){3},
           (int32_t[]){-32768, 258, -1});
    expect(F("\0\0\x0c\1\0\0\0\2\x80\0\0\0\x01\x02\x03\x04"), NEAP_INT32, 1, (int64_t[]){2},
           (int32_t[]){INT32_MIN, 0x01020304});
    expect(F("\0\0\x0d\1\0\0\0\2\xbf\xc0\0\0\x3f\x80\0\0"), NEAP_FLOAT32, 1, (int64_t[]){2},
           (float[]){-1.5f, 1.0f});
    expect(F("\0\0\x0e\1\0\0\0\1\x40\x09\x21\xfb\x54\x44\x2d\x18"), NEAP_FLOAT64, 1, (int64_t[]){1},
           (double[]){3.14159265358979323846});
}

static void empty_and_eight_dims(void **state)
{
    (void)state;
    expect(F("\0\0\x08\2\0\0\0\0\xff\xff\xff\xff"), NEAP_UINT8, 2, (int64_t[]){0, 4294967295}, "");
    expect(F("\0\0\x08\x08\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\2ab"), NEAP_UINT8, 8,
           (int64_t[]){1, 1, 1, 1, 1, 1, 1, 2}, "ab");
}

/* More than one block of input and of conversion. */
static void large_files(void **state)
{
    (void)state;
    size_t n = 100003;
    unsigned char *p = malloc(8 + 4 * n);
    int32_t *want = malloc(4 * n);
    memcpy(p, "\0\0\x0c\1\0\1\x86\xa3", 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)i * 2654435761u;
        for (int b = 0; b < 4; b++) p[8 + 4 * i + (size_t)b] = (unsigned char)(v >> (24 - 8 * b));
        want[i] = (int32_t)v;
    }
    expect(p, 8 + 4 * n, NEAP_INT32, 1, (int64_t[]){(int64_t)n}, want);
    free(p), free(want);
}

static void bad_headers(void **state)
{
    (void)state;
    refuse(F("\1\0\x08\1\0\0\0\1x"), NEAP_E_FORMAT, "two zero bytes");
    refuse(F("\0\1\x08\1\0\0\0\1x"), NEAP_E_FORMAT, "two zero bytes");
    refuse(F("\0\0\x0a\1\0\0\0\1x"), NEAP_E_FORMAT, "dtype code");
    refuse(F("\0\0\x0f\1\0\0\0\1x"), NEAP_E_FORMAT, "dtype code");
    refuse(F("\0\0\x08\0abcd"), NEAP_E_FORMAT, "at least one dimension");
    refuse(F("\0\0\x08\x09\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1x"),
           NEAP_E_DIMS, "9 dimensions");
    refuse(F("\0\0\x08\xff\0\0\0\1"), NEAP_E_DIMS, "255 dimensions");
    refuse(F("\0\0\x08\3\0\0\0\1\0\0\0\1"), NEAP_E_FORMAT, "list of sizes");
    refuse(F("\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), NEAP_E_FORMAT, "overflows");
    refuse(F("\0\0\x0e\2\xff\xff\xff\xff\x40\0\0\0"), NEAP_E_FORMAT, "overflow");
}

static void lying_sizes(void **state)
{
    (void)state;
    refuse(F("\0\0\x08\1\0\0\0\3xy"), NEAP_E_FORMAT, "shorter than its sizes");
    refuse(F("\0\0\x08\1\0\0\0\3wxyz"), NEAP_E_FORMAT, "longer than its sizes");
    refuse(F("\0\0\x08\1\xff\xff\xff\xffx"), NEAP_E_FORMAT, "shorter than its sizes");
    refuse(F("\0\0\x08\2\x7f\xff\xff\xff\x7f\xff\xff\xffx"), NEAP_E_FORMAT, "shorter than its sizes");
    neap_memory m = {.size = sizeof m};
    assert_int_equal(neap_memory_stats(io_ctx, 0, &m), 0);
    assert_true(m.peak < 100);
}

static void truncated_at_every_byte(void **state)
{
    (void)state;
    size_t n;
    write_gz(io_path("z"), F(bytes_2x3));
    unsigned char *z = io_slurp(io_path("z"), &n);
    for (size_t k = 0; k < n; k++) {
        io_write(io_path("i"), z, k);
        assert_null(neap_read_idx(io_ctx, io_path("i")));
        io_expect_error(NEAP_E_FORMAT, "/i");
    }
    free(z);
    for (size_t k = 0; k < sizeof bytes_2x3 - 1; k++) {
        io_write(io_path("i"), bytes_2x3, k);
        assert_null(neap_read_idx(io_ctx, io_path("i")));
        io_expect_error(NEAP_E_FORMAT, "/i");
    }
}

static void what_follows_gzip_data_is_refused(void **state)
{
    (void)state;
    size_t n;
    write_gz(io_path("z"), F(bytes_2x3));
    unsigned char *z = io_slurp(io_path("z"), &n);
    for (size_t extra = 1; extra < 12; extra++) {
        memset(z + n, extra % 2 ? 'x' : 0, extra);
        io_write(io_path("i"), z, n + extra);
        assert_null(neap_read_idx(io_ctx, io_path("i")));
        io_expect_error(NEAP_E_FORMAT, "/i");
    }
    z[n - 5] ^= 1; /* inside the checksum */
    io_write(io_path("i"), z, n);
    assert_null(neap_read_idx(io_ctx, io_path("i")));
    io_expect_error(NEAP_E_FORMAT, "damaged");
    free(z);
}

static void gzip_members_are_joined(void **state)
{
    (void)state;
    size_t n, m;
    write_gz(io_path("y"), bytes_2x3, 7);
    write_gz(io_path("z"), bytes_2x3 + 7, sizeof bytes_2x3 - 8);
    unsigned char *y = io_slurp(io_path("y"), &n), *z = io_slurp(io_path("z"), &m);
    memcpy(y + n, z, m);
    io_write(io_path("i"), y, n + m);
    neap_tensor *t = neap_read_idx(io_ctx, io_path("i"));
    assert_non_null(t);
    assert_memory_equal(neap_data(t), "\x00\x01\x7f\x80\xfe\xff", 6);
    neap_free(t), free(y), free(z);
}

static void missing_files_and_directories(void **state)
{
    (void)state;
    assert_null(neap_read_idx(io_ctx, io_path("none")));
    io_expect_error(NEAP_E_IO, "neap.read_idx: cannot open");
    assert_null(neap_read_idx(io_ctx, io_dir));
    io_expect_error(NEAP_E_IO, "a directory");
    assert_null(neap_read_idx(io_ctx, NULL));
    io_expect_error(NEAP_E_ARG, "file name is missing");
}

static void every_failing_allocation(void **state)
{
    (void)state;
    size_t objects = io_ctx->obj_live;
    for (int packed = 0; packed < 2; packed++) {
        static const char words[] = "\0\0\x0c\1\0\0\0\5\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5";
        if (packed) write_gz(io_path("i"), words, sizeof words - 1);
        else io_write(io_path("i"), words, sizeof words - 1);
        int failed = 0;
        for (uint64_t n = 1;; n++, failed++) {
            assert_true(n < 100);
            io_ctx->alloc_fail_at = n;
            neap_tensor *t = neap_read_idx(io_ctx, io_path("i"));
            bool fired = io_ctx->alloc_fail_at == 0, ok = t != NULL;
            io_ctx->alloc_fail_at = 0;
            neap_free(t);
            assert_int_equal(io_ctx->obj_live, objects);
            if (!fired) {
                assert_true(ok);
                break;
            }
            assert_false(ok);
            io_expect_error(NEAP_E_NOMEM, "");
        }
        assert_true(failed >= 2);
    }
}

/* The complete data set, where it is installed. */
static void fashion_mnist_loads(void **state)
{
    (void)state;
    static const char images[] = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz";
    static const char labels[] = "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz";
    if (access(images, R_OK) != 0) skip();
    neap_tensor *x = neap_read_idx(io_ctx, images), *y = neap_read_idx(io_ctx, labels);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(neap_ndim(x), 3);
    assert_int_equal(neap_size(x, 0), 10000);
    assert_int_equal(neap_size(x, 1), 28);
    assert_int_equal(neap_size(x, 2), 28);
    int count[10] = {0};
    const unsigned char *p = neap_data(y);
    for (int i = 0; i < 10000; i++) count[p[i]]++;
    for (int k = 0; k < 10; k++) assert_int_equal(count[k], 1000);
    neap_free(x), neap_free(y);
}

#define T(f) cmocka_unit_test_setup_teardown(f, io_setup, io_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_dtype),
        T(empty_and_eight_dims),
        T(large_files),
        T(bad_headers),
        T(lying_sizes),
        T(truncated_at_every_byte),
        T(what_follows_gzip_data_is_refused),
        T(gzip_members_are_joined),
        T(missing_files_and_directories),
        T(every_failing_allocation),
        T(fashion_mnist_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
