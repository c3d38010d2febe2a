/* test_io_safetensors.c - neap_save, neap_load: what is written, what comes back, and what is refused. */
#include "io_help.h"

#include <sys/resource.h>

/* Header text and data to a file; the length is right, the text may be anything. */
static void write_st(const char *path, const char *header, const void *data, size_t n_data)
{
    size_t n = strlen(header);
    unsigned char *p = malloc(8 + n + n_data);
    for (int i = 0; i < 8; i++) p[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(p + 8, header, n);
    if (n_data) memcpy(p + 8 + n, data, n_data);
    io_write(path, p, 8 + n + n_data);
    free(p);
}

static neap_tensor *file_tensor(neap_file *f, const char *name)
{
    for (int i = 0; i < neap_file_count(f); i++)
        if (strcmp(neap_file_name(f, i), name) == 0) return neap_file_tensor(io_ctx, f, i);
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static void assert_same(neap_tensor *a, neap_tensor *b)
{
    uint64_t x = 0, y = 1;
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(neap_hash(io_ctx, a, &x), 0);
    assert_int_equal(neap_hash(io_ctx, b, &y), 0);
    assert_true(x == y);
}

static neap_tensor *filled(neap_dtype d, int ndim, const int64_t *shape)
{
    neap_tensor *t = neap_empty(io_ctx, ndim, shape, d, 0);
    assert_non_null(t);
    unsigned char *p = neap_data(t);
    size_t n = (size_t)neap_numel(t) * neap_dtype_size(d);
    for (size_t i = 0; i < n; i++) p[i] = d == NEAP_BOOL ? i % 3 == 1 : (unsigned char)(i * 37 + 11);
    return t;
}

/* ---- round trips -------------------------------------------------------------------------------------- */

static void round_trip_of_every_dtype(void **state)
{
    (void)state;
    const char *names[NEAP_N_DTYPES];
    neap_tensor *t[NEAP_N_DTYPES];
    for (int d = 0; d < NEAP_N_DTYPES; d++) {
        names[d] = neap_dtype_name((neap_dtype)d);
        t[d] = filled((neap_dtype)d, 3, (int64_t[]){2, 3, 5});
    }
    assert_int_equal(neap_save(io_ctx, io_path("a"), NEAP_N_DTYPES, names, t, 0, NULL), 0);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    assert_non_null(f);
    assert_int_equal(neap_file_count(f), NEAP_N_DTYPES);
    for (int d = 0; d < NEAP_N_DTYPES; d++) {
        neap_tensor *u = file_tensor(f, names[d]);
        assert_int_equal(neap_dtype_of(u), d);
        assert_int_equal(neap_ndim(u), 3);
        assert_memory_equal(neap_data(u), neap_data(t[d]), 30 * neap_dtype_size((neap_dtype)d));
        neap_free(u);
        neap_free(t[d]);
    }
    neap_file_free(f);
}

static void round_trip_of_odd_shapes_and_names(void **state)
{
    (void)state;
    const char *names[] = {"", "a/b.c d", "\xc3\xa9\xe2\x82\xac \"quoted\" \\ \n", "eight"};
    neap_tensor *t[] = {filled(NEAP_FLOAT32, 0, NULL), filled(NEAP_INT8, 2, (int64_t[]){0, 3}),
                        filled(NEAP_FLOAT64, 1, (int64_t[]){0}),
                        filled(NEAP_UINT8, 8, (int64_t[]){1, 2, 1, 2, 1, 2, 1, 3})};
    assert_int_equal(neap_save(io_ctx, io_path("a"), 4, names, t, 0, NULL), 0);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    assert_non_null(f);
    for (int i = 0; i < 4; i++) {
        neap_tensor *u = file_tensor(f, names[i]);
        assert_same(t[i], u);
        neap_free(u);
        neap_free(t[i]);
    }
    neap_file_free(f);
}

static void nan_payloads_survive(void **state)
{
    (void)state;
    uint32_t bits[] = {0x7fc12345, 0xff800001, 0x7f800000, 0x80000000, 1};
    neap_tensor *t = neap_from_data(io_ctx, 1, (int64_t[]){5}, NEAP_FLOAT32, bits);
    assert_int_equal(neap_save(io_ctx, io_path("a"), 1, (const char *[]){"x"}, &t, 0, NULL), 0);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    neap_tensor *u = neap_file_tensor(io_ctx, f, 0);
    assert_memory_equal(neap_data(u), bits, sizeof bits);
    neap_free(t), neap_free(u), neap_file_free(f);
}

static void views_are_written_in_logical_order(void **state)
{
    (void)state;
    int32_t ramp[] = {0, 1, 2, 3, 4, 5}, turned[] = {0, 3, 1, 4, 2, 5}, spread[] = {1, 1, 1, 4, 4, 4};
    neap_tensor *base = neap_from_data(io_ctx, 2, (int64_t[]){2, 3}, NEAP_INT32, ramp);
    neap_tensor *t[2];
    t[0] = np_tensor_view(base, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}, 0);
    t[1] = np_tensor_view(base, 2, (int64_t[]){2, 3}, (int64_t[]){3, 0}, 1);
    assert_int_equal(neap_save(io_ctx, io_path("a"), 2, (const char *[]){"t", "e"}, t, 0, NULL), 0);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    neap_tensor *u = file_tensor(f, "t"), *v = file_tensor(f, "e");
    assert_memory_equal(neap_data(u), turned, sizeof turned);
    assert_memory_equal(neap_data(v), spread, sizeof spread);
    neap_free(base), neap_free(t[0]), neap_free(t[1]), neap_free(u), neap_free(v), neap_file_free(f);
}

static void ties_are_written_once_and_come_back_as_one(void **state)
{
    (void)state;
    neap_tensor *a = filled(NEAP_FLOAT32, 1, (int64_t[]){64}), *same = np_tensor_alias(a);
    neap_tensor *t[] = {a, same, a};
    size_t n;
    assert_int_equal(neap_save(io_ctx, io_path("a"), 3, (const char *[]){"b", "c", "a\"q"}, t, 0, NULL), 0);
    free(io_slurp(io_path("a"), &n));
    assert_true(n < 2 * 256);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    assert_non_null(f);
    assert_int_equal(neap_file_count(f), 3);
    assert_int_equal(neap_file_n_metadata(f), 0);
    neap_tensor *x = file_tensor(f, "a\"q"), *y = file_tensor(f, "b"), *z = file_tensor(f, "c");
    assert_ptr_equal(x, y);
    assert_ptr_equal(y, z);
    assert_same(x, a);
    neap_free(x), neap_free(y), neap_free(z), neap_free(a), neap_free(same), neap_file_free(f);
}

static void metadata_round_trip(void **state)
{
    (void)state;
    const char *meta[] = {"z", "last", "a", "", "step", "12", "\xc3\xa9", "\"\\\n"};
    assert_int_equal(neap_save(io_ctx, io_path("a"), 0, NULL, NULL, 4, meta), 0);
    neap_file *f = neap_load(io_ctx, io_path("a"));
    assert_non_null(f);
    assert_int_equal(neap_file_count(f), 0);
    assert_int_equal(neap_file_n_metadata(f), 4);
    const char *key;
    assert_string_equal(neap_file_metadata(f, 0, &key), "");
    assert_string_equal(key, "a");
    assert_string_equal(neap_file_metadata(f, 1, &key), "12");
    assert_string_equal(neap_file_metadata(f, 2, &key), "last");
    assert_string_equal(neap_file_metadata(f, 3, &key), "\"\\\n");
    assert_null(neap_file_metadata(f, 4, &key));
    neap_file_free(f);
}

/* ---- the bytes themselves ------------------------------------------------------------------------------ */

static const char golden[] = "\x88\0\0\0\0\0\0\0"
                             "{\"__metadata__\":{\"k\":\"v\"},"
                             "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                             "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}"
                             "      "
                             "\0\0\x80\x3f\0\0\0\xc0\x07";

static int save_golden(const char *path)
{
    neap_tensor *t[2] = {neap_from_data(io_ctx, 0, NULL, NEAP_UINT8, "\x07"),
                         neap_from_data(io_ctx, 1, (int64_t[]){2}, NEAP_FLOAT32, (float[]){1, -2})};
    neap_code code = NEAP_E_NOMEM;
    if (t[0] && t[1])
        code = (neap_code)neap_save(io_ctx, path, 2, (const char *[]){"b", "a"}, t, 1,
                                    (const char *[]){"k", "v"});
    neap_free(t[0]), neap_free(t[1]);
    return (int)code;
}

static void the_file_is_the_golden_one(void **state)
{
    (void)state;
    size_t n;
    assert_int_equal(save_golden(io_path("a")), 0);
    unsigned char *p = io_slurp(io_path("a"), &n);
    assert_int_equal(n, sizeof golden - 1);
    assert_memory_equal(p, golden, n);
    free(p);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof golden - 1; n++) {
        io_write(io_path("t"), golden, n);
        assert_null(neap_load(io_ctx, io_path("t")));
        io_expect_error(NEAP_E_FORMAT, "/t");
    }
}

static void one_more_byte_is_refused(void **state)
{
    (void)state;
    io_write(io_path("t"), golden, sizeof golden);
    assert_null(neap_load(io_ctx, io_path("t")));
    io_expect_error(NEAP_E_FORMAT, "1 bytes after the last tensor");
}

/* Flipping any single byte must give an error or a file that reads without harm. */
static void every_flipped_byte_is_harmless(void **state)
{
    (void)state;
    char copy[sizeof golden];
    for (size_t i = 0; i < sizeof golden - 1; i++) {
        for (int bit = 0; bit < 8; bit += 3) {
            memcpy(copy, golden, sizeof golden);
            copy[i] = (char)(copy[i] ^ (1 << bit));
            io_write(io_path("t"), copy, sizeof golden - 1);
            neap_file *f = neap_load(io_ctx, io_path("t"));
            for (int k = 0; f && k < neap_file_count(f); k++) neap_free(neap_file_tensor(io_ctx, f, k));
            neap_file_free(f);
            neap_clear_error(io_ctx);
        }
    }
}

/* ---- hostile files ------------------------------------------------------------------------------------- */

static void lying_lengths_are_refused(void **state)
{
    (void)state;
    uint64_t lengths[] = {0,         1,         3,         (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 4,
                          100000001, 100000000, 0x7fffffff};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char p[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int b = 0; b < 8; b++) p[b] = (unsigned char)(lengths[i] >> (8 * b));
        io_write(io_path("t"), p, sizeof p);
        assert_null(neap_load(io_ctx, io_path("t")));
        io_expect_error(NEAP_E_FORMAT, "header's length");
    }
}

#define ENTRY(dtype, shape, range) \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" range "}}"
static const struct {
    const char *header;
    size_t n_data;
    neap_code code;
    const char *words;
} bad_headers[] = {
    {"[1]", 0, NEAP_E_FORMAT, "begin with '{'"},
    {" {}", 0, NEAP_E_FORMAT, "begin with '{'"},
    {"{]", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{} x", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"\xff\xfe\":1}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"\\ud800\":1}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"a\\u0000b\":1}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"x\":1e400}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"x\":1,\"x\":1}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, NEAP_E_FORMAT, "strict JSON"},
    {"{\"__metadata__\":[]}", 0, NEAP_E_FORMAT, "object of texts"},
    {"{\"__metadata__\":{\"a\":1}}", 0, NEAP_E_FORMAT, "'a' must be a text"},
    {"{\"__metadata__\":{\"neap.alias.y\":\"x\"}}", 0, NEAP_E_FORMAT, "not in the file"},
    {"{\"x\":1}", 0, NEAP_E_FORMAT, "tensor 'x': its entry"},
    {"{\"x\":{}}", 0, NEAP_E_FORMAT, "exactly"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"more\":1}}", 1, NEAP_E_FORMAT,
     "exactly"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[],\"offsets\":[0,1]}}", 1, NEAP_E_FORMAT, "data_offsets"},
    {ENTRY("8", "[1]", "[0,1]"), 1, NEAP_E_FORMAT, "'dtype' must be a text"},
    {ENTRY("\"I16\"", "[1]", "[0,2]"), 2, NEAP_E_FORMAT, "dtype 'I16' is not supported"},
    {ENTRY("\"f32\"", "[1]", "[0,4]"), 4, NEAP_E_FORMAT, "not supported"},
    {ENTRY("\"U8\"", "1", "[0,1]"), 1, NEAP_E_FORMAT, "list of sizes"},
    {ENTRY("\"U8\"", "[-1]", "[0,1]"), 1, NEAP_E_FORMAT, "whole number"},
    {ENTRY("\"U8\"", "[1.0]", "[0,1]"), 1, NEAP_E_FORMAT, "whole number"},
    {ENTRY("\"U8\"", "[\"1\"]", "[0,1]"), 1, NEAP_E_FORMAT, "whole number"},
    {ENTRY("\"U8\"", "[18446744073709551616]", "[0,1]"), 1, NEAP_E_FORMAT, "strict JSON"},
    {ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, NEAP_E_DIMS, "9 dimensions"},
    {ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, NEAP_E_FORMAT, "overflow"},
    {ENTRY("\"F32\"", "[4611686018427387904,4]", "[0,4]"), 4, NEAP_E_FORMAT, "overflow"},
    {ENTRY("\"F32\"", "[0,9223372036854775807]", "[0,0]"), 0, NEAP_E_FORMAT, "overflow"},
    {ENTRY("\"F32\"", "[1000,1000]", "[0,4]"), 4, NEAP_E_FORMAT,
     "range has 4 bytes, but [1000,1000] float32 needs 4000000"},
    {ENTRY("\"U8\"", "[1]", "[1,0]"), 1, NEAP_E_FORMAT, "must go upward"},
    {ENTRY("\"U8\"", "[1]", "[-1,0]"), 1, NEAP_E_FORMAT, "must go upward"},
    {ENTRY("\"U8\"", "[2]", "[0,2]"), 1, NEAP_E_FORMAT, "within the 1 bytes"},
    {ENTRY("\"U8\"", "[1]", "[9223372036854775807,9223372036854775807]"), 1, NEAP_E_FORMAT, "within"},
    {ENTRY("\"U8\"", "[1]", "[0,1,1]"), 1, NEAP_E_FORMAT, "two whole numbers"},
    {ENTRY("\"U8\"", "[1]", "[0,1.0]"), 1, NEAP_E_FORMAT, "two whole numbers"},
    {ENTRY("\"U8\"", "[1]", "[0,1e0]"), 1, NEAP_E_FORMAT, "two whole numbers"},
    {ENTRY("\"U8\"", "[1]", "[\"0\",\"1\"]"), 1, NEAP_E_FORMAT, "two whole numbers"},
    {ENTRY("\"U8\"", "[1]", "{\"0\":0,\"1\":1}"), 1, NEAP_E_FORMAT, "two whole numbers"},
    {ENTRY("\"U8\"", "[1]", "[1,2]"), 2, NEAP_E_FORMAT, "hole"},
    {ENTRY("\"U8\"", "[1]", "[0,1]"), 2, NEAP_E_FORMAT, "after the last tensor"},
    {"{}", 1, NEAP_E_FORMAT, "after the last tensor"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
     3, NEAP_E_FORMAT, "tensor 'y': its range 1..3 overlaps"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, NEAP_E_FORMAT, "overlaps"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
     3, NEAP_E_FORMAT, "tensor 'y': its range 2..3 leaves a hole"},
    {"{\"__metadata__\":{\"neap.alias.x\":\"x\"},\"x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}"
     "}",
     1, NEAP_E_FORMAT, "both a tensor and a second name"},
};

static void bad_headers_are_refused(void **state)
{
    (void)state;
    char data[8] = {0};
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        write_st(io_path("t"), bad_headers[i].header, data, bad_headers[i].n_data);
        neap_file *f = neap_load(io_ctx, io_path("t"));
        if (f) fail_msg("loaded: %s", bad_headers[i].header);
        io_expect_error(bad_headers[i].code, bad_headers[i].words);
    }
}

static void legal_odd_headers_load(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{}",
        "{}      \n\t ",
        "{\"__metadata__\":{}}",
        "{ \"x\" : { \"data_offsets\" : [ 0 , 0 ] , \"shape\" : [ 0 , 7 ] , \"dtype\" : \"F64\" } }",
        "{\"x\":{\"dtype\":\"F64\",\"shape\":[0,100000000000],\"data_offsets\":[0,0]}}",
        ("{\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"x\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[0,0]}}")};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        write_st(io_path("t"), headers[i], NULL, 0);
        neap_file *f = neap_load(io_ctx, io_path("t"));
        if (!f) fail_msg("%s: %s", headers[i], neap_error_message(io_ctx));
        for (int k = 0; k < neap_file_count(f); k++) {
            neap_tensor *t = neap_file_tensor(io_ctx, f, k);
            assert_non_null(t);
            assert_int_equal(neap_numel(t), 0);
            neap_free(t);
        }
        neap_file_free(f);
    }
}

static void deep_and_wide_json_is_bounded(void **state)
{
    (void)state;
    size_t n = 100000;
    char *deep = malloc(n + 8);
    strcpy(deep, "{\"x\":");
    memset(deep + 5, '[', n);
    deep[n + 5] = '\0';
    write_st(io_path("t"), deep, NULL, 0);
    free(deep);
    assert_null(neap_load(io_ctx, io_path("t")));
    io_expect_error(NEAP_E_FORMAT, "strict JSON");
}

static void bools_must_be_0_or_1(void **state)
{
    (void)state;
    write_st(io_path("t"), ENTRY("\"BOOL\"", "[3]", "[0,3]"), "\0\1\2", 3);
    neap_file *f = neap_load(io_ctx, io_path("t"));
    assert_non_null(f);
    assert_null(neap_file_tensor(io_ctx, f, 0));
    io_expect_error(NEAP_E_FORMAT, "BOOL must be 0 or 1");
    neap_file_free(f);
}

static void a_file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    io_write(io_path("t"), golden, sizeof golden - 1);
    neap_file *f = neap_load(io_ctx, io_path("t"));
    assert_non_null(f);
    assert_int_equal(truncate(io_path("t"), 100), 0);
    assert_null(neap_file_tensor(io_ctx, f, 0));
    io_expect_error(NEAP_E_FORMAT, "cut while being read");
    neap_file_free(f);
}

/* ---- the file system ----------------------------------------------------------------------------------- */

static void missing_files_and_directories(void **state)
{
    (void)state;
    assert_null(neap_load(io_ctx, io_path("none")));
    io_expect_error(NEAP_E_IO, "No such file");
    assert_null(neap_load(io_ctx, io_dir));
    io_expect_error(NEAP_E_IO, "a directory, not a regular file");
    assert_null(neap_load(io_ctx, "/dev/zero"));
    io_expect_error(NEAP_E_IO, "not a regular file");
    assert_null(neap_load(io_ctx, NULL));
    io_expect_error(NEAP_E_ARG, "file name is missing");
    assert_int_not_equal(save_golden(io_dir), 0);
    io_expect_error(NEAP_E_IO, "a directory, not a regular file");
    assert_int_not_equal(save_golden("/dev/full"), 0);
    io_expect_error(NEAP_E_IO, "not a regular file");
    assert_int_not_equal(save_golden(io_path("no/such/dir")), 0);
    io_expect_error(NEAP_E_IO, "No such file");
    assert_int_not_equal(save_golden(""), 0);
    io_expect_error(NEAP_E_ARG, "file name is missing");
}

static void bad_arguments_of_save(void **state)
{
    (void)state;
    neap_tensor *t[] = {neap_number(io_ctx, 1), neap_number(io_ctx, 2)}, *holes[] = {t[0], NULL};
    const char *same[] = {"a", "a"}, *names[] = {"a", "b"}, *meta = "__metadata__", *latin = "\xe9";
    assert_int_equal(neap_save(io_ctx, io_path("t"), 2, same, t, 0, NULL), NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "two tensors have the name 'a'");
    assert_int_equal(neap_save(io_ctx, io_path("t"), 1, &meta, t, 0, NULL), NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "reserved");
    assert_int_equal(neap_save(io_ctx, io_path("t"), 1, &latin, t, 0, NULL), NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "UTF-8");
    assert_int_equal(neap_save(io_ctx, io_path("t"), 2, names, holes, 0, NULL), NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "tensor 1 of 2 is missing");
    assert_int_equal(neap_save(io_ctx, io_path("t"), 1, names, t, 2, (const char *[]){"k", "1", "k", "2"}),
                     NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "key 'k'");
    assert_int_equal(neap_save(io_ctx, io_path("t"), 1, names, t, 1, (const char *[]){"neap.alias.z", "a"}),
                     NEAP_E_ARG);
    io_expect_error(NEAP_E_ARG, "neap.alias.");
    assert_int_equal(io_count_files(), 0);
    neap_free(t[0]), neap_free(t[1]);
}

static void assert_is_golden(const char *path)
{
    size_t n;
    unsigned char *p = io_slurp(path, &n);
    assert_int_equal(n, sizeof golden - 1);
    assert_memory_equal(p, golden, n);
    free(p);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    assert_int_equal(save_golden(io_path("a")), 0);
    neap_tensor *big = neap_zeros(io_ctx, 1, (int64_t[]){300000}, NEAP_UINT8, 0);
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int code = neap_save(io_ctx, io_path("a"), 1, (const char *[]){"big"}, &big, 0, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(code, NEAP_E_IO);
    io_expect_error(NEAP_E_IO, "File too large");
    assert_int_equal(io_count_files(), 1);
    assert_is_golden(io_path("a"));
    neap_free(big);
}

static void saving_keeps_mode_and_link(void **state)
{
    (void)state;
    struct stat st;
    io_write(io_path("real"), "old", 3);
    assert_int_equal(chmod(io_path("real"), 0640), 0);
    assert_int_equal(symlink("real", io_path("link")), 0);
    assert_int_equal(save_golden(io_path("link")), 0);
    assert_int_equal(lstat(io_path("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(io_path("real"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_is_golden(io_path("real"));
    assert_int_equal(io_count_files(), 2);
}

static void cancelled_saves_leave_the_old_file(void **state)
{
    (void)state;
    assert_int_equal(save_golden(io_path("a")), 0);
    neap_tensor *t = neap_number(io_ctx, 1);
    neap_cancel(io_ctx);
    assert_int_equal(neap_save(io_ctx, io_path("a"), 1, (const char *[]){"x"}, &t, 0, NULL),
                     NEAP_E_CANCELLED);
    neap_cancel_clear(io_ctx);
    io_expect_error(NEAP_E_CANCELLED, "unchanged");
    assert_is_golden(io_path("a"));
    assert_int_equal(io_count_files(), 1);
    neap_free(t);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void every_failing_allocation_of_save(void **state)
{
    (void)state;
    assert_int_equal(save_golden(io_path("a")), 0);
    int failed = 0;
    for (uint64_t n = 1;; n++, failed++) {
        assert_true(n < 200);
        io_ctx->alloc_fail_at = n;
        int code = save_golden(io_path("a"));
        bool fired = io_ctx->alloc_fail_at == 0;
        io_ctx->alloc_fail_at = 0;
        assert_is_golden(io_path("a"));
        assert_int_equal(io_count_files(), 1);
        if (!fired) break;
        assert_int_equal(code, NEAP_E_NOMEM);
        io_expect_error(NEAP_E_NOMEM, "");
    }
    assert_true(failed >= 5);
}

static bool load_all(void)
{
    neap_file *f = neap_load(io_ctx, io_path("a"));
    bool ok = f != NULL;
    for (int i = 0; ok && i < neap_file_count(f); i++) {
        neap_tensor *t = neap_file_tensor(io_ctx, f, i);
        ok = t != NULL;
        neap_free(t);
    }
    neap_file_free(f);
    return ok;
}

static void every_failing_allocation_of_load(void **state)
{
    (void)state;
    neap_tensor *t[] = {filled(NEAP_FLOAT32, 1, (int64_t[]){64}), NULL, filled(NEAP_INT8, 1, (int64_t[]){3})};
    t[1] = t[0];
    assert_int_equal(
        neap_save(io_ctx, io_path("a"), 3, (const char *[]){"a", "b", "c"}, t, 1, (const char *[]){"k", "v"}),
        0);
    neap_free(t[0]), neap_free(t[2]);
    size_t objects = io_ctx->obj_live;
    int failed = 0;
    for (uint64_t n = 1;; n++, failed++) {
        assert_true(n < 200);
        io_ctx->alloc_fail_at = n;
        bool ok = load_all(), fired = io_ctx->alloc_fail_at == 0;
        io_ctx->alloc_fail_at = 0;
        assert_int_equal(io_ctx->obj_live, objects);
        if (!fired) {
            assert_true(ok);
            break;
        }
        assert_false(ok);
        io_expect_error(NEAP_E_NOMEM, "");
    }
    assert_true(failed >= 5);
}

#define T(f) cmocka_unit_test_setup_teardown(f, io_setup, io_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(round_trip_of_every_dtype),
        T(round_trip_of_odd_shapes_and_names),
        T(nan_payloads_survive),
        T(views_are_written_in_logical_order),
        T(ties_are_written_once_and_come_back_as_one),
        T(metadata_round_trip),
        T(the_file_is_the_golden_one),
        T(every_truncation_is_refused),
        T(one_more_byte_is_refused),
        T(every_flipped_byte_is_harmless),
        T(lying_lengths_are_refused),
        T(bad_headers_are_refused),
        T(legal_odd_headers_load),
        T(deep_and_wide_json_is_bounded),
        T(bools_must_be_0_or_1),
        T(a_file_that_shrinks_is_an_error),
        T(missing_files_and_directories),
        T(bad_arguments_of_save),
        T(a_full_disk_leaves_the_old_file),
        T(saving_keeps_mode_and_link),
        T(cancelled_saves_leave_the_old_file),
        T(every_failing_allocation_of_save),
        T(every_failing_allocation_of_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
