/* safetensors.c - the strict reader: neap_load, neap_file_*.
 *
 * Everything is checked when the file is opened, before any tensor exists: a file that opens is right in
 * every length, dtype, shape and range, and its ranges cover the data exactly, without overlap or hole.
 * Opening takes memory in proportion to the header, never to what the header claims. Bytes are read when a
 * tensor is asked for. The parsed header stays, so names and metadata are borrowed from it. */
#include "io/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "tensor/origin.h"

typedef struct st_entry {
    const char *name; /* in the header */
    neap_dtype dtype;
    int ndim;
    int64_t shape[NEAP_MAX_DIMS];
    int64_t begin, end; /* in the data */
    int32_t group;      /* entries of one group are one tensor under several names */
    bool tied;
    neap_tensor *kept; /* the tensor of a tied group, made at its first use */
} st_entry;

struct neap_file {
    neap_ctx *c;
    np_infile in;
    char *path;
    int64_t data_at, data_size;
    np_json *header;
    st_entry *entry; /* sorted by name once opened */
    size_t n, cap;
    void **meta; /* JSON iterators of the visible metadata */
    size_t n_meta, meta_cap;
};

/* SAME-ORDER dtype */
static const char *const DTYPE_NAMES[NEAP_N_DTYPES] = {"F32", "F64", "F16", "BF16", "I64",
                                                       "I32", "I8",  "U8",  "BOOL"};

const char *np_st_dtype_name(neap_dtype d) { return DTYPE_NAMES[d]; }

bool np_st_dtype_parse(const char *name, neap_dtype *out)
{
    for (int i = 0; i < NEAP_N_DTYPES; i++)
        if (strcmp(name, DTYPE_NAMES[i]) == 0) {
            *out = (neap_dtype)i;
            return true;
        }
    return false;
}

/* Records E-FORMAT (or another code) about one tensor of the file; false. */
#define BAD(f, name, ...) bad(f, NEAP_E_FORMAT, name, __VA_ARGS__)
__attribute__((format(printf, 4, 5))) static bool bad(neap_file *f, neap_code code, const char *name,
                                                      const char *fmt, ...)
{
    char path[NP_PATH_TEXT], rule[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rule, sizeof rule, fmt, ap);
    va_end(ap);
    np_fail(f->c, code, "%s: tensor '%.80s': %s", np_path_text(path, f->path), name, rule);
    return false;
}

/* ---- one entry --------------------------------------------------------------------------------------- */

/* shape -> e->shape and the bytes it takes; sizes that are not zero must have a product that fits, so that
 * strides fit too. */
static bool read_shape(neap_file *f, st_entry *e, const np_json *v, int64_t *bytes)
{
    if (!np_json_is_array(v)) return BAD(f, e->name, "its 'shape' must be a list of sizes");
    int64_t n = np_json_length(v), product = 1;
    bool empty = false;
    if (n > NEAP_MAX_DIMS)
        return bad(f, NEAP_E_DIMS, e->name, "it has %lld dimensions, %d at most", (long long)n,
                   NEAP_MAX_DIMS);
    e->ndim = (int)n;
    for (int i = 0; i < e->ndim; i++) {
        int64_t s;
        if (!np_json_int(np_json_at(v, i), &s) || s < 0)
            return BAD(f, e->name, "size %d of its shape must be a whole number from 0", i + 1);
        e->shape[i] = s;
        if (s == 0) empty = true;
        else if (__builtin_mul_overflow(product, s, &product))
            return BAD(f, e->name, "the product of its shape overflows 64 bits");
    }
    if (__builtin_mul_overflow(product, (int64_t)np_dtype_size(e->dtype), bytes))
        return BAD(f, e->name, "the bytes of its shape overflow 64 bits");
    if (empty) *bytes = 0;
    return true;
}

static bool read_range(neap_file *f, st_entry *e, const np_json *v, int64_t bytes)
{
    if (np_json_length(v) != 2 || !np_json_is_array(v) || !np_json_int(np_json_at(v, 0), &e->begin) ||
        !np_json_int(np_json_at(v, 1), &e->end))
        return BAD(f, e->name, "its 'data_offsets' must be two whole numbers");
    if (e->begin < 0 || e->begin > e->end || e->end > f->data_size)
        return BAD(f, e->name, "its range %lld..%lld must go upward and lie within the %lld bytes of data",
                   (long long)e->begin, (long long)e->end, (long long)f->data_size);
    if (e->end - e->begin == bytes) return true;
    char shape[120];
    return BAD(f, e->name, "its range has %lld bytes, but %s %s needs %lld", (long long)(e->end - e->begin),
               np_shape_text(shape, sizeof shape, e->ndim, e->shape), np_dtype_name(e->dtype),
               (long long)bytes);
}

static bool read_entry(neap_file *f, st_entry *e, const np_json *v)
{
    if (!np_json_is_object(v) || np_json_length(v) != 3)
        return BAD(f, e->name,
                   "its entry must be an object with exactly 'dtype', 'shape' and 'data_offsets'");
    const char *dtype = np_json_string(np_json_get(v, "dtype"));
    if (!dtype) return BAD(f, e->name, "its 'dtype' must be a text such as \"F32\"");
    if (!np_st_dtype_parse(dtype, &e->dtype))
        return BAD(f, e->name, "dtype '%.20s' is not supported; F32 F64 F16 BF16 I64 I32 I8 U8 BOOL are",
                   dtype);
    int64_t bytes = 0;
    return read_shape(f, e, np_json_get(v, "shape"), &bytes) &&
           read_range(f, e, np_json_get(v, "data_offsets"), bytes);
}

static st_entry *add_entry(neap_file *f)
{
    st_entry *v = np_array_grow(f->c, f->entry, &f->cap, f->n + 1, sizeof *v);
    if (!v) return NULL;
    f->entry = v;
    v[f->n] = (st_entry){.group = (int32_t)f->n};
    return &v[f->n++];
}

/* ---- the whole header -------------------------------------------------------------------------------- */

static int by_range(const void *a, const void *b)
{
    const st_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const st_entry *)a)->name, ((const st_entry *)b)->name);
}

/* The ranges, in order, must follow one another from 0 to the end of the data. */
static bool check_cover(neap_file *f)
{
    if (f->n > 1) qsort(f->entry, f->n, sizeof *f->entry, by_range);
    int64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        st_entry *e = &f->entry[i];
        e->group = (int32_t)i;
        if (e->begin != at)
            return BAD(f, e->name, "its range %lld..%lld %s; ranges must follow one another",
                       (long long)e->begin, (long long)e->end,
                       e->begin < at ? "overlaps the one before" : "leaves a hole before it");
        at = e->end;
    }
    if (at == f->data_size) return true;
    char path[NP_PATH_TEXT];
    np_fail(f->c, NEAP_E_FORMAT, "%s: %lld bytes after the last tensor belong to none",
            np_path_text(path, f->path), (long long)(f->data_size - at));
    return false;
}

static st_entry *find_entry(neap_file *f, size_t n, const char *name)
{
    st_entry key = {.name = name};
    return n ? bsearch(&key, f->entry, n, sizeof key, by_name) : NULL;
}

/* A second name of a tensor among the first n (sorted) entries. */
static bool add_alias(neap_file *f, size_t n, const char *name, const char *target)
{
    st_entry *of = find_entry(f, n, target);
    if (!of)
        return BAD(f, name, "the metadata call it the same as '%.80s', which is not in the file", target);
    if (find_entry(f, n, name))
        return BAD(f, name, "it is both a tensor and a second name of '%.80s'", target);
    of->tied = true;
    st_entry copy = *of, *e = add_entry(f);
    if (!e) return false;
    *e = copy;
    e->name = name;
    return true;
}

/* Texts only; the entries of ties become names, the others stay visible. */
static bool read_metadata(neap_file *f, np_json *meta)
{
    if (!np_json_is_object(meta)) return BAD(f, NP_ST_METADATA, "it must be an object of texts");
    size_t n = f->n, prefix = strlen(NP_ST_ALIAS);
    for (void *it = np_json_first(meta); it; it = np_json_next(meta, it)) {
        const char *key = np_json_key(it), *text = np_json_string(np_json_value(it));
        if (!text) return BAD(f, NP_ST_METADATA, "the value of '%.80s' must be a text", key);
        if (strncmp(key, NP_ST_ALIAS, prefix) == 0) {
            if (!add_alias(f, n, key + prefix, text)) return false;
            continue;
        }
        void **v = np_array_grow(f->c, f->meta, &f->meta_cap, f->n_meta + 1, sizeof *v);
        if (!v) return false;
        f->meta = v;
        v[f->n_meta++] = it;
    }
    return true;
}

static bool read_header(neap_file *f)
{
    np_json *meta = NULL;
    for (void *it = np_json_first(f->header); it; it = np_json_next(f->header, it)) {
        if (strcmp(np_json_key(it), NP_ST_METADATA) == 0) {
            meta = np_json_value(it);
            continue;
        }
        st_entry *e = add_entry(f);
        if (!e) return false;
        e->name = np_json_key(it);
        if (!read_entry(f, e, np_json_value(it))) return false;
    }
    if (!check_cover(f)) return false;
    if (f->n > 1) qsort(f->entry, f->n, sizeof *f->entry, by_name);
    if (meta && !read_metadata(f, meta)) return false;
    if (f->n > 1) qsort(f->entry, f->n, sizeof *f->entry, by_name);
    return true;
}

static bool bad_file(neap_file *f, const char *rule, int64_t value, int64_t limit)
{
    char path[NP_PATH_TEXT];
    np_fail(f->c, NEAP_E_FORMAT, "%s is no safetensors file: %s (%lld, %lld)", np_path_text(path, f->path),
            rule, (long long)value, (long long)limit);
    return false;
}

/* The length and the JSON text, into f->header. */
static bool parse_header(neap_file *f)
{
    unsigned char raw[8];
    uint64_t length = 0;
    if (f->in.size < 8) return bad_file(f, "it must have at least 8 bytes", f->in.size, 8);
    if (!np_infile_read(&f->in, raw, sizeof raw, 0)) return false;
    for (int i = 7; i >= 0; i--) length = length << 8 | raw[i];
    if (length > NP_ST_MAX_HEADER)
        return bad_file(f, "the header's length must be at most 100 million bytes", (int64_t)length,
                        NP_ST_MAX_HEADER);
    if (length < 2 || (int64_t)length > f->in.size - 8)
        return bad_file(f, "the header's length must be at least 2 and end within the file", (int64_t)length,
                        f->in.size - 8);
    f->data_at = 8 + (int64_t)length;
    f->data_size = f->in.size - f->data_at;
    size_t cap = 0;
    char *text = np_array_grow(f->c, NULL, &cap, (size_t)length, 1);
    if (!text) return false;
    bool ok = np_infile_read(&f->in, text, (size_t)length, 8);
    if (ok && text[0] != '{') ok = bad_file(f, "the header must begin with '{'", (unsigned char)text[0], '{');
    if (ok) ok = (f->header = np_json_parse(f->c, f->path, text, (size_t)length)) != NULL;
    np_array_free(f->c, text);
    return ok;
}

neap_file *neap_load(neap_ctx *c, const char *path)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "load");
    neap_file *f = np_obj_new(c, sizeof *f);
    if (f) {
        size_t cap = 0, n = path ? strlen(path) + 1 : 0;
        f->c = c;
        f->in.fd = -1;
        f->path = n ? np_array_grow(c, NULL, &cap, n, 1) : NULL;
        if (f->path) memcpy(f->path, path, n);
        bool ok =
            (f->path || !path) && np_infile_open(c, &f->in, f->path) && parse_header(f) && read_header(f);
        if (!ok) neap_file_free(f), f = NULL;
    }
    c->op_name = before;
    return f;
}

void neap_file_free(neap_file *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n; i++) np_drop(f->entry[i].kept);
    np_infile_close(&f->in);
    np_json_free(f->header);
    np_array_free(f->c, f->entry);
    np_array_free(f->c, f->meta);
    np_array_free(f->c, f->path);
    np_obj_free(f->c, f, sizeof *f);
}

int neap_file_count(const neap_file *f) { return f ? (int)f->n : 0; }

const char *neap_file_name(const neap_file *f, int i)
{
    return i >= 0 && i < neap_file_count(f) ? f->entry[i].name : NULL;
}

int neap_file_n_metadata(const neap_file *f) { return f ? (int)f->n_meta : 0; }

const char *neap_file_metadata(const neap_file *f, int i, const char **key)
{
    if (i < 0 || i >= neap_file_n_metadata(f)) return NULL;
    if (key) *key = np_json_key(f->meta[i]);
    return np_json_string(np_json_value(f->meta[i]));
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

/* A bool that is neither 0 nor 1 would mean different things to different kernels. */
static bool check_bools(neap_file *f, const st_entry *e, const neap_tensor *t)
{
    const unsigned char *p = (const unsigned char *)np_ptr(t);
    for (int64_t i = 0; i < t->numel; i++)
        if (p[i] > 1) return BAD(f, e->name, "byte %lld is %d, a BOOL must be 0 or 1", (long long)i, p[i]);
    return true;
}

static neap_tensor *read_tensor(neap_ctx *c, neap_file *f, const st_entry *e)
{
    neap_tensor *t = np_tensor_new(c, c->devices[0], e->dtype, e->ndim, e->shape);
    if (!t) return NULL;
    if (np_infile_read(&f->in, np_ptr(t), (size_t)(e->end - e->begin), f->data_at + e->begin) &&
        (e->dtype != NEAP_BOOL || check_bools(f, e, t))) {
        np_origin_of_bytes(t);
        return t;
    }
    np_drop(t);
    return NULL;
}

/* The tensor of a tied group, remembered so that every name gives the same one. */
static neap_tensor *tied_tensor(neap_ctx *c, neap_file *f, st_entry *e)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->entry[i].group == e->group && f->entry[i].kept) return np_hold_ref(f->entry[i].kept);
    e->kept = read_tensor(c, f, e);
    return np_hold_ref(e->kept);
}

neap_tensor *neap_file_tensor(neap_ctx *c, neap_file *f, int i)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "load");
    neap_tensor *t = NULL;
    if (!f || i < 0 || (size_t)i >= f->n)
        np_fail(c, NEAP_E_INDEX, "tensor %d of a file that has %d", i + c->base, f ? (int)f->n : 0);
    else t = f->entry[i].tied ? tied_tensor(c, f, &f->entry[i]) : read_tensor(c, f, &f->entry[i]);
    t = np_scope_adopt(c, t);
    c->op_name = before;
    return t;
}
