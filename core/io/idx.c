/* idx.c - neap_read_idx: the array files of MNIST and its kin, plain or gzip.
 *
 * Two zero bytes, a dtype code, the number of dimensions, their sizes as big-endian 32-bit numbers, then the
 * elements, big-endian, row-major. The file must hold exactly that: a byte too few or too many is an error.
 * The tensor is made only after its size was compared with the file's (gzip expands at most 1032 times), so a
 * lying header takes no memory. int16 has no tensor type here and comes as int32. */
#include <string.h>
#include <zlib.h>

#include "io/file.h"
#include "tensor/origin.h"

#define INPUT ((size_t)64 << 10)
#define RAW ((size_t)64 << 10)
#define GZIP_MAX_RATIO 1032

typedef struct idx_stream { /* the file's bytes, unpacked if it is gzip */
    neap_ctx *c;
    np_infile in;
    int64_t at; /* next byte of the file */
    bool gzip, open, member_done;
    z_stream z;
    unsigned char *input; /* INPUT bytes of the packed file */
} idx_stream;

static bool bad(idx_stream *s, const char *rule, int64_t value)
{
    char path[NP_PATH_TEXT];
    np_fail(s->c, NEAP_E_FORMAT, "%s is no idx file: %s (%lld)", np_path_text(path, s->in.path), rule,
            (long long)value);
    return false;
}

/* zlib's memory goes through the core, so that a test can make it fail. The size stands before the block. */
static void *z_take(void *user, unsigned n, unsigned size)
{
    size_t bytes = (size_t)n * size + 16;
    size_t *p = np_obj_new(user, bytes);
    if (!p) return NULL;
    *p = bytes;
    return (char *)p + 16;
}

static void z_give(void *user, void *p)
{
    size_t *block = (size_t *)(void *)((char *)p - 16);
    np_obj_free(user, block, *block);
}

static void stream_close(idx_stream *s)
{
    if (s->open) inflateEnd(&s->z);
    if (s->input) np_obj_free(s->c, s->input, INPUT);
    np_infile_close(&s->in);
}

static bool stream_open(neap_ctx *c, idx_stream *s, const char *path)
{
    unsigned char magic[2] = {0, 0};
    *s = (idx_stream){.c = c};
    if (!np_infile_open(c, &s->in, path)) return false;
    if (s->in.size < 8) return bad(s, "it is too short for a header, bytes", s->in.size);
    if (!np_infile_read(&s->in, magic, 2, 0)) return false;
    s->gzip = magic[0] == 0x1f && magic[1] == 0x8b;
    if (!s->gzip) return true;
    if (!(s->input = np_obj_new(c, INPUT))) return false;
    s->z.zalloc = z_take, s->z.zfree = z_give, s->z.opaque = c;
    s->open = inflateInit2(&s->z, 16 + MAX_WBITS) == Z_OK;
    if (!s->open && !np_pending(c)) np_fail_nomem(c, 0);
    return s->open;
}

/* More packed input. False without an error: the file has ended. */
static bool refill(idx_stream *s)
{
    int64_t left = s->in.size - s->at;
    size_t n = left < (int64_t)INPUT ? (size_t)left : INPUT;
    if (n == 0 || !np_infile_read(&s->in, s->input, n, s->at)) return false;
    s->z.next_in = s->input, s->z.avail_in = (unsigned)n;
    s->at += (int64_t)n;
    return true;
}

/* Up to n bytes into dst; *got < n only at the end of the data. A gzip file may have several members. */
static bool inflate_some(idx_stream *s, void *dst, size_t n, size_t *got)
{
    s->z.next_out = dst, s->z.avail_out = (unsigned)n;
    while (s->z.avail_out > 0) {
        if (s->z.avail_in == 0 && !refill(s)) {
            if (np_pending(s->c)) return false;
            if (!s->member_done) return bad(s, "its gzip data are cut short, at byte", s->at);
            break;
        }
        if (s->member_done && inflateReset(&s->z) != Z_OK)
            return bad(s, "its gzip data cannot be read, at byte", s->at);
        s->member_done = false;
        int code = inflate(&s->z, Z_NO_FLUSH);
        if (code == Z_MEM_ERROR) {
            if (!np_pending(s->c)) np_fail_nomem(s->c, INPUT);
            return false;
        }
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return bad(s, "its gzip data are damaged, or something follows them, before byte",
                       s->at - (int64_t)s->z.avail_in);
        s->member_done = code == Z_STREAM_END;
    }
    *got = n - s->z.avail_out;
    return true;
}

/* Up to n bytes (n at most 1 GiB), fewer only at the end. */
static bool stream_read(idx_stream *s, void *dst, size_t n, size_t *got)
{
    if (s->gzip) return inflate_some(s, dst, n, got);
    int64_t left = s->in.size - s->at;
    *got = (int64_t)n < left ? n : (size_t)left;
    if (!np_infile_read(&s->in, dst, *got, s->at)) return false;
    s->at += (int64_t)*got;
    return true;
}

/* ---- header ------------------------------------------------------------------------------------------ */

typedef struct idx_header {
    neap_dtype dtype;
    int width; /* bytes of an element in the file */
    int ndim;
    int64_t shape[NEAP_MAX_DIMS], numel, bytes;
} idx_header;

static bool idx_dtype(unsigned code, idx_header *h)
{
    switch (code) {
    case 0x08: h->dtype = NEAP_UINT8, h->width = 1; return true;
    case 0x09: h->dtype = NEAP_INT8, h->width = 1; return true;
    case 0x0B: h->dtype = NEAP_INT32, h->width = 2; return true;
    case 0x0C: h->dtype = NEAP_INT32, h->width = 4; return true;
    case 0x0D: h->dtype = NEAP_FLOAT32, h->width = 4; return true;
    case 0x0E: h->dtype = NEAP_FLOAT64, h->width = 8; return true;
    default: return false;
    }
}

static bool read_header(idx_stream *s, idx_header *h)
{
    unsigned char raw[4 + 4 * NEAP_MAX_DIMS];
    size_t got;
    if (!stream_read(s, raw, 4, &got)) return false;
    if (got < 4 || raw[0] != 0 || raw[1] != 0)
        return bad(s, "it must begin with two zero bytes; first byte", raw[0]);
    if (!idx_dtype(raw[2], h)) return bad(s, "its dtype code must be one of 8, 9, 11, 12, 13, 14", raw[2]);
    h->ndim = raw[3];
    if (h->ndim < 1) return bad(s, "it must have at least one dimension", h->ndim);
    if (h->ndim > NEAP_MAX_DIMS) {
        char path[NP_PATH_TEXT];
        np_fail(s->c, NEAP_E_DIMS, "%s has %d dimensions, %d at most", np_path_text(path, s->in.path),
                h->ndim, NEAP_MAX_DIMS);
        return false;
    }
    if (!stream_read(s, raw + 4, 4 * (size_t)h->ndim, &got)) return false;
    if (got < 4 * (size_t)h->ndim)
        return bad(s, "it ends inside its list of sizes, bytes of it there", (int64_t)got);
    h->numel = 1;
    for (int i = 0; i < h->ndim; i++) {
        const unsigned char *p = raw + 4 + 4 * i;
        h->shape[i] = (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
        if (__builtin_mul_overflow(h->numel, h->shape[i], &h->numel))
            return bad(s, "the product of its sizes overflows 64 bits; dimensions", h->ndim);
    }
    if (__builtin_mul_overflow(h->numel, (int64_t)h->width, &h->bytes))
        return bad(s, "the bytes of its sizes overflow 64 bits; elements", h->numel);
    return true;
}

/* Before memory is taken: can the file hold that much? */
static bool check_size(idx_stream *s, const idx_header *h)
{
    int64_t head = 4 + 4 * (int64_t)h->ndim;
    if (!s->gzip) {
        if (s->in.size - head < h->bytes)
            return bad(s, "it is shorter than its sizes say; bytes needed", head + h->bytes);
        if (s->in.size - head > h->bytes)
            return bad(s, "it is longer than its sizes say; bytes needed", head + h->bytes);
    } else if (h->bytes / GZIP_MAX_RATIO > s->in.size) {
        return bad(s, "it is far too short for its sizes; bytes needed when unpacked", head + h->bytes);
    }
    return true;
}

/* ---- elements ---------------------------------------------------------------------------------------- */

/* n big-endian elements into the tensor's own type. */
static void from_big_endian(const idx_header *h, void *dst, const unsigned char *p, size_t n)
{
    if (h->width == 2) {
        int32_t *d = dst;
        for (size_t i = 0; i < n; i++, p += 2) d[i] = (int16_t)(uint16_t)(p[0] << 8 | p[1]);
        return;
    }
    unsigned char *d = dst;
    for (size_t i = 0; i < n; i++, p += h->width, d += h->width)
        for (int b = 0; b < h->width; b++) d[b] = p[h->width - 1 - b];
}

static bool read_elements(idx_stream *s, const idx_header *h, char *dst, unsigned char *raw)
{
    size_t out = np_dtype_size(h->dtype);
    for (int64_t left = h->bytes; left > 0;) {
        size_t n = left < (int64_t)RAW ? (size_t)left : RAW, got;
        if (np_cancelled(s->c)) {
            np_fail(s->c, NEAP_E_CANCELLED, "interrupted");
            return false;
        }
        if (!stream_read(s, h->width == 1 ? (unsigned char *)dst : raw, n, &got)) return false;
        if (got < n) return bad(s, "it is shorter than its sizes say; bytes missing", left - (int64_t)got);
        if (h->width > 1) from_big_endian(h, dst, raw, n / (size_t)h->width);
        dst += n / (size_t)h->width * out;
        left -= (int64_t)n;
    }
    unsigned char more;
    size_t got;
    if (!stream_read(s, &more, 1, &got)) return false;
    return got == 0 || bad(s, "it is longer than its sizes say; bytes they give", h->bytes);
}

static neap_tensor *read_file(idx_stream *s)
{
    idx_header h;
    if (!read_header(s, &h) || !check_size(s, &h)) return NULL;
    neap_tensor *t = np_tensor_new(s->c, s->c->devices[0], h.dtype, h.ndim, h.shape);
    unsigned char *raw = t ? np_obj_new(s->c, RAW) : NULL;
    bool ok = raw && read_elements(s, &h, np_ptr(t), raw);
    if (raw) np_obj_free(s->c, raw, RAW);
    if (ok) np_origin_of_bytes(t);
    else np_drop(t), t = NULL;
    return t;
}

neap_tensor *neap_read_idx(neap_ctx *c, const char *path)
{
    if (np_pending(c)) return NULL;
    const char *before = np_io_enter(c, "read_idx");
    idx_stream s;
    neap_tensor *t = np_scope_adopt(c, stream_open(c, &s, path) ? read_file(&s) : NULL);
    stream_close(&s);
    c->op_name = before;
    return t;
}
