/* copy.c - moving elements: convert, broadcast, cross devices, fill. Below autograd, no version is bumped.
 *
 * On host memory a copy is one of: memcpy in parallel chunks (both dense, one dtype), a tiled transpose (one
 * dtype, the source is contiguous along another dim than the target), or the iterator with a conversion of
 * each inner run. Other devices only know contiguous byte copies, so anything else goes through host staging:
 * the span of memory that a tensor covers is fetched, worked on here, and put back. Work is cut by shape
 * alone. */
#include "tensor/streams.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* ---- byte copies between devices */

/* One contiguous copy; at least one side is `d`. */
static bool device_copy(neap_ctx *c, const np_device *d, void *dst, const void *src, size_t bytes, bool to,
                        bool from)
{
    if (bytes == 0) return true;
    if (!d->backend.copy) {
        memcpy(dst, src, bytes);
        return true;
    }
    if (d->backend.copy(d->backend.user, dst, src, bytes, to, from)) return true;
    np_fail(c, NEAP_E_DEVICE, "copying %zu bytes %s %s failed%s%s", bytes, to ? "to" : "from", d->name,
            d->backend.plugin ? ": " : "", d->backend.plugin ? d->backend.plugin->why(d->backend.user) : "");
    return false;
}

bool np_fetch(neap_ctx *c, np_device *d, void *dst, const void *src, size_t bytes)
{
    return np_streams_join(c, d) && device_copy(c, d, dst, src, bytes, false, true);
}

/* ---- copies within host memory */

typedef struct bytes_job {
    char *dst;
    const char *src; /* NULL: zeros */
    int64_t bytes;
} bytes_job;

enum { BYTES_CHUNK = 1 << 18 };

static void bytes_chunk(void *arg, int64_t chunk)
{
    const bytes_job *j = arg;
    int64_t at = chunk * BYTES_CHUNK, n = j->bytes - at < BYTES_CHUNK ? j->bytes - at : BYTES_CHUNK;
    if (j->src) memcpy(j->dst + at, j->src + at, (size_t)n);
    else memset(j->dst + at, 0, (size_t)n);
}

static bool bytes_run(neap_ctx *c, void *dst, const void *src, int64_t bytes)
{
    bytes_job j = {dst, src, bytes};
    return bytes == 0 || np_parallel(c, (bytes + BYTES_CHUNK - 1) / BYTES_CHUNK, bytes_chunk, &j);
}

typedef struct convert_job {
    neap_dtype to, from;
} convert_job;

static void convert_run(void *arg, int64_t n, char **p, const int64_t *stride)
{
    const convert_job *j = arg;
    np_convert(j->to, p[0], stride[0], j->from, p[1], stride[1], n);
}

/* A transposed copy: target contiguous along iterator dim 0, source along dim k. Tiles of TILE x TILE
 * elements pass through a buffer that fits the first-level cache, so that both sides move whole cache lines.
 */
enum { TILE = 64 };

typedef struct tile_job {
    const np_iter *it;
    int k;
    size_t item;
    int64_t across, down; /* tiles along dim 0 and dim k */
} tile_job;

#define TILE_COPY(T) \
    static void tile_copy_##T(char *dst, int64_t dst_row, const char *src, int64_t src_row, int64_t w, \
                              int64_t h) \
    { \
        T buffer[TILE][TILE + 1]; \
        for (int64_t i = 0; i < w; i++) { /* src rows run along dim k */ \
            const T *s = (const T *)(src + i * src_row); \
            for (int64_t j = 0; j < h; j++) buffer[j][i] = s[j]; \
        } \
        for (int64_t j = 0; j < h; j++) memcpy(dst + j * dst_row, buffer[j], (size_t)w * sizeof(T)); \
    }
TILE_COPY(uint8_t)
TILE_COPY(uint16_t)
TILE_COPY(uint32_t)
TILE_COPY(uint64_t)

#if defined(__SSE2__)
/* A whole tile of 4-byte elements, in squares of four by four that are turned in registers. */
static void tile_copy_full(char *dst, int64_t dst_row, const char *src, int64_t src_row)
{
    _Alignas(16) float buffer[TILE][TILE + 4];
    for (int64_t i = 0; i < TILE; i += 4) {
        for (int64_t j = 0; j < TILE; j += 4) {
            const char *s = src + i * src_row + j * 4;
            __m128 a = _mm_loadu_ps((const float *)s), b = _mm_loadu_ps((const float *)(s + src_row));
            __m128 c = _mm_loadu_ps((const float *)(s + 2 * src_row));
            __m128 d = _mm_loadu_ps((const float *)(s + 3 * src_row));
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_store_ps(&buffer[j][i], a);
            _mm_store_ps(&buffer[j + 1][i], b);
            _mm_store_ps(&buffer[j + 2][i], c);
            _mm_store_ps(&buffer[j + 3][i], d);
        }
    }
    for (int64_t j = 0; j < TILE; j++) memcpy(dst + j * dst_row, buffer[j], TILE * 4);
}
#else
static void tile_copy_full(char *dst, int64_t dst_row, const char *src, int64_t src_row)
{
    tile_copy_uint32_t(dst, dst_row, src, src_row, TILE, TILE);
}
#endif

static void tile_chunk(void *arg, int64_t chunk)
{
    const tile_job *j = arg;
    const np_iter *it = j->it;
    char *dst = it->base[0];
    const char *src = it->base[1];
    int64_t x = chunk % j->across * TILE, rest = chunk / j->across;
    int64_t y = rest % j->down * TILE;
    rest /= j->down;
    for (int d = 1; d < it->ndim; d++) {
        if (d == j->k) continue;
        int64_t i = rest % it->shape[d];
        rest /= it->shape[d];
        dst += i * it->stride[0][d];
        src += i * it->stride[1][d];
    }
    int64_t w = it->shape[0] - x < TILE ? it->shape[0] - x : TILE;
    int64_t h = it->shape[j->k] - y < TILE ? it->shape[j->k] - y : TILE;
    dst += x * it->stride[0][0] + y * it->stride[0][j->k];
    src += x * it->stride[1][0] + y * it->stride[1][j->k];
    int64_t dst_row = it->stride[0][j->k], src_row = it->stride[1][0];
    if (j->item == 4 && w == TILE && h == TILE) {
        tile_copy_full(dst, dst_row, src, src_row);
        return;
    }
    switch (j->item) {
    case 1: tile_copy_uint8_t(dst, dst_row, src, src_row, w, h); break;
    case 2: tile_copy_uint16_t(dst, dst_row, src, src_row, w, h); break;
    case 4: tile_copy_uint32_t(dst, dst_row, src, src_row, w, h); break;
    default: tile_copy_uint64_t(dst, dst_row, src, src_row, w, h);
    }
}

/* The dim along which a tiled transpose pays, or 0. */
static int tile_dim(const np_iter *it, size_t item)
{
    int64_t step = (int64_t)item;
    if (it->ndim < 2 || it->stride[0][0] != step || it->stride[1][0] == step || it->stride[1][0] == 0)
        return 0;
    for (int k = 1; k < it->ndim; k++)
        if (it->stride[1][k] == step) return it->shape[k] >= 8 && it->shape[0] >= 8 ? k : 0;
    return 0;
}

/* dst and src are host memory, src has been broadcast-checked and does not overlap dst. */
static bool host_copy(neap_ctx *c, neap_tensor *dst, const neap_tensor *src)
{
    neap_tensor *pair[2] = {dst, (neap_tensor *)src};
    np_iter it;
    if (dst->numel == 0) return true;
    np_iter_init(&it, pair, 2);
    if (dst->dtype == src->dtype) {
        size_t item = np_itemsize(dst);
        if (it.dense && it.stride[1][0] == (int64_t)item)
            return bytes_run(c, it.base[0], it.base[1], it.numel * (int64_t)item);
        tile_job t = {.it = &it, .k = tile_dim(&it, item), .item = item};
        if (t.k) {
            t.across = (it.shape[0] + TILE - 1) / TILE;
            t.down = (it.shape[t.k] + TILE - 1) / TILE;
            int64_t planes = it.numel / (it.shape[0] * it.shape[t.k]);
            return np_parallel(c, t.across * t.down * planes, tile_chunk, &t);
        }
    }
    convert_job j = {(neap_dtype)dst->dtype, (neap_dtype)src->dtype};
    return np_iter_run(c, &it, convert_run, &j);
}

/* ---- staging: the memory span of a tensor as host bytes */

typedef struct span {
    np_mem *mem; /* the host's accounting; NULL: the tensor is host memory itself */
    void *data;
    size_t bytes;
    char *device_data; /* where the span lies on its device */
    np_storage st;
    neap_tensor t; /* the tensor's twin over the staged bytes */
} span;

/* Distance of the first and the last element from element 0, in elements; t is not empty. */
static void reach(const neap_tensor *t, int64_t *first, int64_t *last)
{
    *first = *last = 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t r = t->stride[i] * (t->shape[i] - 1);
        if (r < 0) *first += r;
        else *last += r;
    }
}

static bool span_open(neap_ctx *c, span *s, const neap_tensor *t, bool fetch)
{
    int64_t first, last;
    np_device *d = t->st->dev;
    memset(s, 0, sizeof *s);
    s->t = *t;
    if (d->backend.host_memory || t->numel == 0) return true;
    reach(t, &first, &last);
    s->bytes = (size_t)(last - first + 1) * np_itemsize(t);
    s->device_data = np_ptr(t) + first * (int64_t)np_itemsize(t);
    s->data = np_mem_take(&c->devices[0]->mem, s->bytes, NEAP_STAGING);
    if (!s->data) return false;
    s->mem = &c->devices[0]->mem;
    s->st = (np_storage){.refs = 1, .dev = c->devices[0], .data = s->data, .bytes = s->bytes};
    s->t.st = &s->st;
    s->t.data = (char *)s->data - first * (int64_t)np_itemsize(t);
    s->t.offset = -first;
    return !fetch || np_fetch(c, d, s->data, s->device_data, s->bytes);
}

static bool span_put_back(neap_ctx *c, const span *s, const np_device *d)
{
    return !s->mem || device_copy(c, d, s->device_data, s->data, s->bytes, true, false);
}

static void span_close(span *s)
{
    if (s->mem) np_mem_give(s->mem, s->data, s->bytes, NEAP_STAGING);
}

static bool staged_copy(neap_ctx *c, neap_tensor *dst, const neap_tensor *src)
{
    span to, from;
    bool ok = span_open(c, &from, src, true);
    if (ok) {
        ok = span_open(c, &to, dst, !dst->contiguous) && host_copy(c, &to.t, &from.t) &&
             np_writes(c, dst->st) && /* again: room was made, and whoever did may have used another stream */
             span_put_back(c, &to, dst->st->dev);
        span_close(&to);
    }
    span_close(&from);
    return ok;
}

/* ---- the door */

static bool same_shape(const neap_tensor *a, const neap_tensor *b)
{
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

static bool fits(neap_ctx *c, const neap_tensor *dst, const neap_tensor *src)
{
    int ndim = dst->ndim;
    int64_t shape[NEAP_MAX_DIMS];
    memcpy(shape, dst->shape, sizeof shape);
    bool ok = same_shape(dst, src);
    if (!ok && np_broadcast_shape(&ndim, shape, src->ndim, src->shape) && ndim == dst->ndim) {
        ok = true;
        for (int i = 0; i < ndim; i++) ok &= shape[i] == dst->shape[i];
    }
    if (ok) return true;
    char to[200], from[200];
    np_fail(c, NEAP_E_SHAPE, "%s does not broadcast to %s: each size must be 1 or equal",
            np_shape_text(from, sizeof from, src->ndim, src->shape),
            np_shape_text(to, sizeof to, dst->ndim, dst->shape));
    return false;
}

/* Both contiguous and alike: one byte copy, if the two devices know each other. */
static bool direct_copy(neap_ctx *c, neap_tensor *dst, const neap_tensor *src, bool *done)
{
    const np_device *to = dst->st->dev, *from = src->st->dev;
    *done = dst->dtype == src->dtype && dst->contiguous && src->contiguous && same_shape(dst, src) &&
            (to == from || to->backend.host_memory || from->backend.host_memory);
    if (!*done) return true;
    const np_device *d = to->backend.host_memory ? from : to;
    size_t bytes = (size_t)dst->numel * np_itemsize(dst);
    return device_copy(c, d, np_ptr(dst), np_ptr(src), bytes, d == to, d == from);
}

/* Within one device that can do it: no byte passes through the host. */
static bool can_move(const neap_tensor *dst, const neap_tensor *src)
{
    const np_plugin *p = dst->st->dev->backend.plugin;
    return p && p->move && src->st->dev == dst->st->dev;
}

static bool device_move(neap_ctx *c, neap_tensor *dst, const neap_tensor *src)
{
    const np_device *d = dst->st->dev;
    np_operand to, from;
    np_operand_of(&to, dst);
    np_operand_of(&from, src);
    /* The source broadcasts: dims it lacks or has one of get stride 0. */
    int lack = dst->ndim - src->ndim;
    for (int i = 0; i < dst->ndim; i++) {
        bool one = i < lack || src->shape[i - lack] != dst->shape[i];
        from.stride[i] = one ? 0 : src->stride[i - lack];
        from.shape[i] = dst->shape[i];
    }
    from.ndim = to.ndim;
    from.numel = to.numel;
    from.contiguous = src->contiguous && src->numel == dst->numel;
    return d->backend.plugin->move(d->backend.user, &to, &from) ||
           np_fail(c, NEAP_E_DEVICE, "%s", d->backend.plugin->why(d->backend.user));
}

bool np_copy_into(neap_ctx *c, neap_tensor *dst, const neap_tensor *src)
{
    bool same, done;
    if (!fits(c, dst, src)) return false;
    if (dst->numel == 0) return true;
    if (np_is_dry(src) || np_is_dry(dst)) return np_fail_dry(c);
    if (np_may_overlap(dst, src, &same)) {
        if (same) return true;
        neap_tensor *copy = np_contiguous_copy(c, (neap_tensor *)src);
        bool ok = copy && np_copy_into(c, dst, copy);
        np_drop(copy);
        return ok;
    }
    if (dst->st->dev->backend.host_memory && src->st->dev->backend.host_memory) return host_copy(c, dst, src);
    if (!np_reads(c, src->st) || !np_writes(c, dst->st) || !direct_copy(c, dst, src, &done)) return false;
    return done || (can_move(dst, src) ? device_move(c, dst, src) : staged_copy(c, dst, src));
}

neap_tensor *np_contiguous_copy(neap_ctx *c, neap_tensor *t)
{
    neap_tensor *r = np_tensor_new(c, t->st->dev, (neap_dtype)t->dtype, t->ndim, t->shape);
    if (r && !np_copy_into(c, r, t)) np_drop(r), r = NULL;
    return r;
}

neap_tensor *np_as_contiguous(neap_ctx *c, neap_tensor *t, neap_dtype d)
{
    if (t->contiguous && t->dtype == d) return np_hold_ref(t);
    neap_tensor *r = np_tensor_new(c, t->st->dev, d, t->ndim, t->shape);
    if (r && !np_copy_into(c, r, t)) np_drop(r), r = NULL;
    return r;
}

/* ---- fills */

static bool host_fill(neap_ctx *c, neap_tensor *t, const void *item /* NULL: zeros */)
{
    neap_tensor *pair[2] = {t, NULL};
    np_iter it;
    if (!item && t->contiguous) return bytes_run(c, np_ptr(t), NULL, t->numel * (int64_t)np_itemsize(t));
    np_storage st = {.dev = t->st->dev};
    memset(st.inline_data, 0, sizeof st.inline_data);
    if (item) memcpy(st.inline_data, item, np_itemsize(t));
    st.data = st.inline_data;
    neap_tensor value = {.dtype = t->dtype, .numel = 1, .contiguous = true, .st = &st, .data = st.data};
    pair[1] = &value;
    np_iter_init(&it, pair, 2);
    convert_job j = {(neap_dtype)t->dtype, (neap_dtype)t->dtype};
    return np_iter_run(c, &it, convert_run, &j);
}

static bool device_fill(neap_ctx *c, neap_tensor *t, const void *item)
{
    static const uint64_t zero = 0;
    const np_device *d = t->st->dev;
    np_operand to;
    np_operand_of(&to, t);
    return np_writes(c, t->st) && (d->backend.plugin->fill(d->backend.user, &to, item ? item : &zero) ||
                                   np_fail(c, NEAP_E_DEVICE, "%s", d->backend.plugin->why(d->backend.user)));
}

static bool fill(neap_ctx *c, neap_tensor *t, const void *item)
{
    span s;
    if (t->numel == 0) return true;
    if (t->st->dev->backend.plugin) return device_fill(c, t, item);
    bool ok =
        span_open(c, &s, t, !t->contiguous) && host_fill(c, &s.t, item) && span_put_back(c, &s, t->st->dev);
    span_close(&s);
    return ok;
}

bool np_fill_zero(neap_ctx *c, neap_tensor *t) { return fill(c, t, NULL); }

bool np_fill_value(neap_ctx *c, neap_tensor *t, double v)
{
    _Alignas(8) unsigned char item[8] = {0};
    np_store_double((neap_dtype)t->dtype, item, v);
    return fill(c, t, item);
}

bool np_fill_integer(neap_ctx *c, neap_tensor *t, int64_t v)
{
    _Alignas(8) unsigned char item[8] = {0};
    np_store_int((neap_dtype)t->dtype, item, v);
    return fill(c, t, item);
}
