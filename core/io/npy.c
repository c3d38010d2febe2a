/* npy.c - neap_load_npy, neap_save_npy: one array as NumPy keeps it, versions 1 to 3 of the format; np_read_npy.
 *
 * Magic, version, header length, a Python dictionary as text with exactly descr, fortran_order and shape,
 * then the bytes, exactly as many as these say. The dictionary is read by a scanner for just this shape of
 * text: nothing is evaluated, and object or structured arrays are refused. Both byte orders and both element
 * orders load; what is saved is little-endian, row-major. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "io/atomic.h"
#include "io/file.h"
#include "io/npy.h"
#include "tensor/origin.h"

#define MAX_HEADER 65535 /* a right header has about 100 bytes */
#define MAGIC "\x93NUMPY"

typedef struct npy_header {
    neap_dtype dtype;
    bool swap, fortran;
    int ndim;
    int64_t shape[NEAP_MAX_DIMS], bytes, data_at;
} npy_header;

typedef struct npy_scan {
    np_infile in;
    const char *p; /* NUL-terminated text */
    bool seen[3];  /* descr, fortran_order, shape */
} npy_scan;

static bool bad(const np_infile *in, const char *rule, const char *value)
{
    char path[NP_PATH_TEXT], text[48];
    size_t n = 0;
    for (; value[n] && n + 1 < sizeof text; n++) text[n] = isprint((unsigned char)value[n]) ? value[n] : '?';
    text[n] = '\0';
    np_fail(in->c, NEAP_E_FORMAT, "%s is no npy file that can be read: %s, at '%s'",
            np_path_text(path, in->path), rule, text);
    return false;
}

/* ---- the dictionary ------------------------------------------------------------------------------------ */

/* SAME-ORDER dtype; bfloat16 has no name in the format */
static const char *const DESCR[NEAP_N_DTYPES] = {"f4", "f8", "f2", NULL, "i8", "i4", "i1", "u1", "b1"};

static bool accept(npy_scan *s, const char *token)
{
    while (*s->p == ' ' || *s->p == '\n' || *s->p == '\t') s->p++;
    size_t n = strlen(token);
    if (strncmp(s->p, token, n) != 0) return false;
    s->p += n;
    return true;
}

/* 'text' or "text" of at most n - 1 characters, without escapes. */
static bool scan_text(npy_scan *s, char *out, size_t n)
{
    char quote = accept(s, "'") ? '\'' : accept(s, "\"") ? '"' : '\0';
    size_t k = 0;
    if (!quote) return bad(&s->in, "a text in quotes is missing", s->p);
    for (; s->p[k] && s->p[k] != quote && s->p[k] != '\\' && k + 1 < n; k++) out[k] = s->p[k];
    if (s->p[k] != quote) return bad(&s->in, "a text in its header is too long or does not end", s->p);
    out[k] = '\0';
    s->p += k + 1;
    return true;
}

static bool scan_descr(npy_scan *s, npy_header *h)
{
    char text[16];
    if (accept(s, "[")) return bad(&s->in, "structured arrays are not supported", s->p);
    if (!scan_text(s, text, sizeof text)) return false;
    for (int d = 0; d < NEAP_N_DTYPES; d++) {
        if (!DESCR[d] || !*text || strcmp(text + 1, DESCR[d]) != 0 || !strchr("<>|=", text[0])) continue;
        h->dtype = (neap_dtype)d;
        h->swap = text[0] == '>';
        return true;
    }
    return bad(&s->in, "its dtype must be one of f2 f4 f8 i1 i4 i8 u1 b1 (convert with astype)", text);
}

static bool scan_shape(npy_scan *s, npy_header *h)
{
    if (!accept(s, "(")) return bad(&s->in, "its shape must be a tuple", s->p);
    bool comma = true;
    for (h->ndim = 0; !accept(s, ")"); comma = accept(s, ",")) {
        int64_t size = 0;
        if (!comma) return bad(&s->in, "a comma is missing in its shape", s->p);
        accept(s, "");
        if (!isdigit((unsigned char)*s->p))
            return bad(&s->in, "its sizes must be whole numbers from 0", s->p);
        if (h->ndim == NEAP_MAX_DIMS) {
            char path[NP_PATH_TEXT];
            np_fail(s->in.c, NEAP_E_DIMS, "%s has more than %d dimensions", np_path_text(path, s->in.path),
                    NEAP_MAX_DIMS);
            return false;
        }
        for (; isdigit((unsigned char)*s->p); s->p++)
            if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, *s->p - '0', &size))
                return bad(&s->in, "a size overflows 64 bits", s->p);
        h->shape[h->ndim++] = size;
    }
    return h->ndim != 1 || comma || bad(&s->in, "a tuple of one size ends with a comma", s->p);
}

static bool scan_entry(npy_scan *s, npy_header *h)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[24];
    int k = 0;
    if (!scan_text(s, key, sizeof key)) return false;
    while (k < 3 && strcmp(key, keys[k]) != 0) k++;
    if (k == 3 || s->seen[k])
        return bad(&s->in, "its header must have descr, fortran_order and shape, once each", key);
    s->seen[k] = true;
    if (!accept(s, ":")) return bad(&s->in, "a colon is missing in its header", s->p);
    if (k == 0) return scan_descr(s, h);
    if (k == 2) return scan_shape(s, h);
    h->fortran = accept(s, "True");
    return h->fortran || accept(s, "False") || bad(&s->in, "fortran_order must be True or False", s->p);
}

static bool scan_header(npy_scan *s, npy_header *h)
{
    bool comma = true;
    if (!accept(s, "{")) return bad(&s->in, "its header must be a dictionary", s->p);
    for (; !accept(s, "}"); comma = accept(s, ",")) {
        if (!comma) return bad(&s->in, "a comma is missing in its header", s->p);
        if (!scan_entry(s, h)) return false;
    }
    accept(s, "");
    if (!s->seen[0] || !s->seen[1] || !s->seen[2] || *s->p)
        return bad(&s->in, "its header must have descr, fortran_order and shape, and nothing more", s->p);
    return true;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

/* The header's text, NUL-terminated; free with np_array_free. */
static char *read_text(npy_scan *s, npy_header *h)
{
    unsigned char raw[13] = {0};
    int64_t size = s->in.size;
    if (size < 10 || !np_infile_read(&s->in, raw, size < 12 ? 10 : 12, 0)) {
        if (!np_pending(s->in.c)) bad(&s->in, "it is too short", "");
        return NULL;
    }
    if (memcmp(raw, MAGIC, 6) != 0) return bad(&s->in, "it must begin with \\x93NUMPY", (char *)raw), NULL;
    if (raw[6] < 1 || raw[6] > 3) return bad(&s->in, "its version must be 1, 2 or 3", ""), NULL;
    int64_t start = raw[6] == 1 ? 10 : 12, length = raw[8] | raw[9] << 8;
    if (raw[6] > 1) length |= (int64_t)raw[10] << 16 | (int64_t)raw[11] << 24;
    if (length > MAX_HEADER || length > size - start)
        return bad(&s->in, "its header must have at most 65535 bytes and end within the file", ""), NULL;
    size_t cap = 0;
    char *text = np_array_grow(s->in.c, NULL, &cap, (size_t)length + 1, 1);
    if (!text) return NULL;
    text[length] = '\0';
    h->data_at = start + length;
    if (np_infile_read(&s->in, text, (size_t)length, start)) return text;
    np_array_free(s->in.c, text);
    return NULL;
}

/* The bytes that the shape needs must be those that are there. */
static bool check_size(const np_infile *in, npy_header *h)
{
    int64_t product = 1;
    bool empty = false, overflow = false;
    for (int i = 0; i < h->ndim; i++) {
        if (h->shape[i] == 0) empty = true;
        else overflow |= __builtin_mul_overflow(product, h->shape[i], &product);
    }
    overflow |= __builtin_mul_overflow(product, (int64_t)np_dtype_size(h->dtype), &h->bytes);
    if (overflow) return bad(in, "the product of its sizes overflows 64 bits", "");
    if (empty) h->bytes = 0;
    if (h->bytes == in->size - h->data_at) return true;
    char numbers[64];
    snprintf(numbers, sizeof numbers, "%lld of %lld bytes", (long long)(in->size - h->data_at),
             (long long)h->bytes);
    return bad(in, "its data must be as long as its shape says", numbers);
}

static void swap_bytes(char *p, int64_t n, size_t width)
{
    for (int64_t i = 0; i < n; i++, p += width)
        for (size_t a = 0, b = width - 1; a < b; a++, b--) {
            char keep = p[a];
            p[a] = p[b], p[b] = keep;
        }
}

/* The tensor as it lies in the file: for Fortran order, of the reversed shape. */
static neap_tensor *read_data(np_infile *in, const npy_header *h)
{
    int64_t shape[NEAP_MAX_DIMS];
    for (int i = 0; i < h->ndim; i++) shape[i] = h->shape[h->fortran ? h->ndim - 1 - i : i];
    neap_tensor *t = np_tensor_new(in->c, in->c->devices[0], h->dtype, h->ndim, shape);
    if (!t) return NULL;
    bool ok = np_infile_read(in, np_ptr(t), (size_t)h->bytes, h->data_at);
    for (int64_t i = 0; ok && h->dtype == NEAP_BOOL && i < t->numel; i++)
        if (NP_DATA(unsigned char, t)[i] > 1) ok = bad(in, "a bool must be 0 or 1", "");
    if (ok && h->swap) swap_bytes(np_ptr(t), t->numel, np_itemsize(t));
    if (ok) return t;
    np_drop(t);
    return NULL;
}

/* t, of the reversed shape, as the row-major tensor of the shape itself; takes t. */
static neap_tensor *turn_take(neap_ctx *c, neap_tensor *t)
{
    int64_t shape[NEAP_MAX_DIMS], stride[NEAP_MAX_DIMS];
    for (int i = 0; i < t->ndim; i++)
        shape[i] = t->shape[t->ndim - 1 - i], stride[i] = t->stride[t->ndim - 1 - i];
    neap_tensor *view = np_tensor_view(t, t->ndim, shape, stride, 0);
    neap_tensor *turned = view ? np_as_contiguous(c, view, (neap_dtype)t->dtype) : NULL;
    np_drop(view);
    np_drop(t);
    return turned;
}

neap_tensor *np_read_npy(const np_infile *in)
{
    npy_header h = {0};
    npy_scan s = {.in = *in};
    char *text = read_text(&s, &h);
    if (!text) return NULL;
    s.p = text;
    bool ok = scan_header(&s, &h) && check_size(in, &h);
    np_array_free(in->c, text);
    neap_tensor *t = ok ? read_data(&s.in, &h) : NULL;
    if (t && h.fortran && h.ndim > 1) t = turn_take(in->c, t);
    if (t) np_origin_of_bytes(t);
    return t;
}

neap_tensor *neap_load_npy(neap_ctx *c, const char *path)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "load_npy");
    np_infile in;
    neap_tensor *t = np_infile_open(c, &in, path) ? np_scope_adopt(c, np_read_npy(&in)) : NULL;
    np_infile_close(&in);
    c->op_name = before;
    return t;
}

/* ---- saving -------------------------------------------------------------------------------------------- */

/* Magic to newline, a multiple of 64 bytes as the format asks; the length. */
static size_t build_header(char out[512], const neap_tensor *t)
{
    char *p = out + 10;
    p += sprintf(p, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", np_itemsize(t) == 1 ? '|' : '<',
                 DESCR[t->dtype]);
    for (int i = 0; i < t->ndim; i++) p += sprintf(p, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    p += sprintf(p, "%s), }", t->ndim == 1 ? "," : "");
    while ((p + 1 - out) % 64 != 0) *p++ = ' ';
    *p++ = '\n';
    size_t n = (size_t)(p - out);
    memcpy(out, MAGIC "\1", 8);
    out[8] = (char)(n - 10), out[9] = (char)((n - 10) >> 8);
    return n;
}

int neap_save_npy(neap_ctx *c, const char *path, neap_tensor *t)
{
    if (np_pending(c)) return neap_error(c);
    const char *before = np_io_enter(c, "save_npy");
    char header[512];
    np_atomic a;
    if (!t) np_fail(c, NEAP_E_ARG, "a tensor is missing");
    else if (!DESCR[t->dtype])
        np_fail(c, NEAP_E_DTYPE, "the npy format has no %s; save a float32 copy: t:to(\"float32\")",
                np_dtype_name((neap_dtype)t->dtype));
    else if (np_atomic_open(c, &a, path)) {
        bool ok = np_atomic_write(&a, header, build_header(header, t)) && np_io_write_tensor(&a, t);
        if (ok) np_atomic_commit(&a);
        else np_atomic_abandon(&a);
    }
    c->op_name = before;
    return neap_error(c);
}
