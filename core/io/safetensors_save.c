/* safetensors_save.c - the writer: neap_save.
 *
 * The same tensors and metadata always give the same bytes: names and keys are sorted, ranges follow one
 * another in that order, the header is padded with spaces to a multiple of 8. Everything is checked and the
 * header built before the file is touched; the file is replaced atomically (atomic.h). A view is written in
 * logical row-major order with its logical size. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/atomic.h"
#include "io/file.h"
#include "io/safetensors.h"

typedef struct st_out {
    const char *name;
    neap_tensor *t;
    int32_t of; /* index of the entry this one is the same as, or -1 */
} st_out;

typedef struct st_meta {
    const char *key, *value;
} st_meta;

typedef struct st_text { /* the growing header */
    neap_ctx *c;
    char *p;
    size_t n, cap;
    bool failed;
} st_text;

static void put(st_text *x, const char *s, size_t n)
{
    if (x->failed) return;
    if (x->n + n > x->cap) {
        char *p = np_array_grow(x->c, x->p, &x->cap, x->n + n, 1);
        if (!p) {
            x->failed = true;
            return;
        }
        x->p = p;
    }
    memcpy(x->p + x->n, s, n);
    x->n += n;
}

__attribute__((format(printf, 2, 3))) static void putf(st_text *x, const char *fmt, ...)
{
    char buf[128];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    put(x, buf, (size_t)n);
}

static void put_quoted(st_text *x, const char *what, const char *s)
{
    char *q = x->failed ? NULL : np_json_quote(x->c, what, s);
    if (q) put(x, q, strlen(q));
    else x->failed = true;
    np_json_free_text(q);
}

/* ---- what is saved ----------------------------------------------------------------------------------- */

static bool same_tensor(const neap_tensor *a, const neap_tensor *b)
{
    size_t n = (size_t)a->ndim * sizeof a->shape[0];
    return a->st == b->st && a->offset == b->offset && a->dtype == b->dtype && a->ndim == b->ndim &&
           a->numel > 0 && memcmp(a->shape, b->shape, n) == 0 && memcmp(a->stride, b->stride, n) == 0;
}

static int out_by_name(const void *a, const void *b)
{
    return strcmp(((const st_out *)a)->name, ((const st_out *)b)->name);
}
static int meta_by_key(const void *a, const void *b)
{
    return strcmp(((const st_meta *)a)->key, ((const st_meta *)b)->key);
}

/* Ties sort together: by storage, then name. Addresses decide only which entries meet, never the result. */
static int out_by_storage(const void *a, const void *b)
{
    const st_out *x = *(st_out *const *)a, *y = *(st_out *const *)b;
    uintptr_t p = (uintptr_t)x->t->st, q = (uintptr_t)y->t->st;
    return p != q ? (p < q ? -1 : 1) : (x < y ? -1 : x > y);
}

/* For every tensor that is another one under a second name: which. The first name in order is the written
 * one. */
static bool find_ties(neap_ctx *c, st_out *v, int n)
{
    size_t cap = 0;
    st_out **order = np_array_grow(c, NULL, &cap, (size_t)n, sizeof *order);
    if (!order) return false;
    for (int i = 0; i < n; i++) order[i] = &v[i];
    qsort(order, (size_t)n, sizeof *order, out_by_storage);
    for (int i = 0, first = 0; i < n; i++) {
        if (order[i]->t->st != order[first]->t->st) first = i;
        for (int j = first; j < i && order[i]->of < 0; j++)
            if (order[j]->of < 0 && same_tensor(order[j]->t, order[i]->t))
                order[i]->of = (int32_t)(order[j] - v);
    }
    np_array_free(c, order);
    return true;
}

static bool gather(neap_ctx *c, st_out *v, int n, const char *const *names, neap_tensor *const *tensors)
{
    for (int i = 0; i < n; i++) {
        if (!names[i] || !tensors[i]) {
            np_fail(c, NEAP_E_ARG, "%s %d of %d is missing", names[i] ? "tensor" : "name", i + c->base, n);
            return false;
        }
        if (strcmp(names[i], NP_ST_METADATA) == 0) {
            np_fail(c, NEAP_E_ARG, "the name '" NP_ST_METADATA "' is reserved by the format; choose another");
            return false;
        }
        v[i] = (st_out){names[i], tensors[i], -1};
    }
    qsort(v, (size_t)n, sizeof *v, out_by_name);
    for (int i = 1; i < n; i++)
        if (strcmp(v[i - 1].name, v[i].name) == 0) {
            np_fail(c, NEAP_E_ARG, "two tensors have the name '%.80s'; names must differ", v[i].name);
            return false;
        }
    return n == 0 || find_ties(c, v, n);
}

static bool gather_meta(neap_ctx *c, st_meta *m, int n, const char *const *pairs)
{
    for (int i = 0; i < n; i++) {
        m[i] = (st_meta){pairs[2 * i], pairs[2 * i + 1]};
        if (!m[i].key || !m[i].value || strncmp(m[i].key, NP_ST_ALIAS, strlen(NP_ST_ALIAS)) == 0) {
            np_fail(c, NEAP_E_ARG,
                    "metadata entry %d must be two texts, its key not starting with '" NP_ST_ALIAS "'",
                    i + c->base);
            return false;
        }
    }
    qsort(m, (size_t)n, sizeof *m, meta_by_key);
    for (int i = 1; i < n; i++)
        if (strcmp(m[i - 1].key, m[i].key) == 0) {
            np_fail(c, NEAP_E_ARG, "two metadata entries have the key '%.80s'; keys must differ", m[i].key);
            return false;
        }
    return true;
}

/* ---- the header -------------------------------------------------------------------------------------- */

static void put_metadata(st_text *x, const st_meta *m, int n_meta, const st_out *v, int n)
{
    bool any = n_meta > 0;
    for (int i = 0; i < n; i++) any |= v[i].of >= 0;
    if (!any) return;
    put_quoted(x, "a name", NP_ST_METADATA);
    const char *comma = ":{";
    for (int i = 0; i < n_meta; i++, comma = ",") {
        putf(x, "%s", comma);
        put_quoted(x, "a metadata key", m[i].key);
        putf(x, ":");
        put_quoted(x, "a metadata value", m[i].value);
    }
    for (int i = 0; i < n; i++) {
        if (v[i].of < 0) continue;
        putf(x, "%s\"" NP_ST_ALIAS, comma), comma = ",";
        char *q = x->failed ? NULL : np_json_quote(x->c, "a tensor name", v[i].name);
        if (q) put(x, q + 1, strlen(q) - 1); /* the opening quote stands before the prefix */
        else x->failed = true;
        np_json_free_text(q);
        putf(x, ":");
        put_quoted(x, "a tensor name", v[v[i].of].name);
    }
    putf(x, "}");
}

/* One entry, its range starting at *at. False: the sizes overflow. */
static bool put_entry(st_text *x, const st_out *o, int64_t *at)
{
    int64_t bytes, end;
    if (__builtin_mul_overflow(o->t->numel, (int64_t)np_itemsize(o->t), &bytes) ||
        __builtin_add_overflow(*at, bytes, &end)) {
        np_fail(x->c, NEAP_E_SHAPE, "tensor '%.80s' is too large to save: its logical size overflows 64 bits",
                o->name);
        return false;
    }
    put_quoted(x, "a tensor name", o->name);
    putf(x, ":{\"dtype\":\"%s\",\"shape\":[", np_st_dtype_name((neap_dtype)o->t->dtype));
    for (int i = 0; i < o->t->ndim; i++) putf(x, "%s%lld", i ? "," : "", (long long)o->t->shape[i]);
    putf(x, "],\"data_offsets\":[%lld,%lld]}", (long long)*at, (long long)end);
    *at = end;
    return true;
}

/* Length, header, padding. */
static bool build_header(st_text *x, const st_out *v, int n, const st_meta *m, int n_meta)
{
    int64_t at = 0;
    put(x, "\0\0\0\0\0\0\0\0{", 9);
    put_metadata(x, m, n_meta, v, n);
    for (int i = 0; i < n; i++) {
        if (v[i].of >= 0) continue;
        if (x->n > 9) put(x, ",", 1);
        if (!put_entry(x, &v[i], &at)) return false;
    }
    put(x, "}", 1);
    while (!x->failed && x->n % 8 != 0) put(x, " ", 1);
    if (x->failed) return false;
    uint64_t length = x->n - 8;
    if (length > NP_ST_MAX_HEADER) {
        np_fail(x->c, NEAP_E_ARG,
                "the header would have %lld bytes, 100 million at most: save fewer or shorter names",
                (long long)length);
        return false;
    }
    for (int i = 0; i < 8; i++) x->p[i] = (char)(length >> (8 * i));
    return true;
}

/* ---- the bytes --------------------------------------------------------------------------------------- */

static bool write_file(neap_ctx *c, const char *path, const st_text *x, const st_out *v, int n)
{
    np_atomic a;
    if (!np_atomic_open(c, &a, path)) return false;
    bool ok = np_atomic_write(&a, x->p, x->n);
    for (int i = 0; ok && i < n; i++)
        if (v[i].of < 0) ok = np_io_write_tensor(&a, v[i].t);
    if (ok) return np_atomic_commit(&a);
    np_atomic_abandon(&a);
    return false;
}

int neap_save(neap_ctx *c, const char *path, int n, const char *const *names, neap_tensor *const *tensors,
              int n_meta, const char *const *metadata)
{
    if (np_pending(c)) return neap_error(c);
    const char *before = np_io_enter(c, "save");
    size_t cap = 0, meta_cap = 0;
    st_text x = {.c = c};
    st_out *v = NULL;
    st_meta *m = NULL;
    if (n < 0 || n_meta < 0 || (n > 0 && (!names || !tensors)) || (n_meta > 0 && !metadata))
        np_fail(c, NEAP_E_ARG, "names and tensors must be given, as many as said");
    else if ((v = np_array_grow(c, NULL, &cap, (size_t)n + 1, sizeof *v)) &&
             (m = np_array_grow(c, NULL, &meta_cap, (size_t)n_meta + 1, sizeof *m)) &&
             gather(c, v, n, names, tensors) && gather_meta(c, m, n_meta, metadata) &&
             build_header(&x, v, n, m, n_meta))
        write_file(c, path, &x, v, n);
    np_array_free(c, x.p);
    np_array_free(c, m);
    np_array_free(c, v);
    c->op_name = before;
    return neap_error(c);
}
