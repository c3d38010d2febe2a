/* print.c - a tensor as text for people: fixed columns, edges of large tensors, a last line of facts.
 *
 *    1.0000  -2.5000
 *       nan   0.0000
 *   [float32 2x2 cpu grad]
 *
 * Reads only the elements it shows, one by one, so that a tensor of any size on any device prints at once.
 * The format is chosen over the shown values: whole numbers without decimals, else fixed decimals, else a
 * common exponent on a line of its own ("1e+06 *"), else an exponent for each. The decimal separator is a
 * point in every locale. More than two dims print as slices "(1,.,.)", numbered in the caller's base. */
#include "tensor/tensor.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a growing text; an allocation failure sticks */

typedef struct text {
    neap_ctx *c;
    char *s;
    size_t n, cap;
    bool failed;
} text;

static void put(text *x, const char *s, size_t n)
{
    if (x->failed) return;
    if (x->n + n + 1 > x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        while (cap < x->n + n + 1) cap *= 2;
        char *p = np_alloc_should_fail(x->c) ? NULL : realloc(x->s, cap);
        if (!p) {
            np_fail_nomem(x->c, cap);
            x->failed = true;
            return;
        }
        x->s = p, x->cap = cap;
    }
    memcpy(x->s + x->n, s, n);
    x->n += n;
    x->s[x->n] = '\0';
}

static void puts_(text *x, const char *s) { put(x, s, strlen(s)); }

__attribute__((format(printf, 2, 3))) static void putf(text *x, const char *fmt, ...)
{
    char buf[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    puts_(x, buf);
}

/* ---- numbers */

/* printf writes the locale's decimal separator: back to a point. */
static void point(char *buf)
{
    const char *sep = localeconv()->decimal_point;
    size_t n = strlen(sep);
    char *at = n && strcmp(sep, ".") != 0 ? strstr(buf, sep) : NULL;
    if (!at) return;
    *at = '.';
    memmove(at + 1, at + n, strlen(at + n) + 1);
}

/* The shortest decimal text that reads back as v in dtype d, with ".0" when it looks whole, as Lua does. */
static void shortest(char *buf, size_t n, neap_dtype d, double v)
{
    if (isnan(v)) {
        snprintf(buf, n, "nan");
        return;
    }
    if (isinf(v)) {
        snprintf(buf, n, v > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        _Alignas(8) unsigned char raw[8];
        snprintf(buf, n, "%.*g", digits, v);
        np_store_double(d, raw, strtod(buf, NULL));
        if (np_load_double(d, raw) == v) break;
    }
    point(buf);
    if (!strpbrk(buf, ".e")) strncat(buf, ".0", n - strlen(buf) - 1);
}

typedef union value {
    double f;
    int64_t i;
} value;

typedef struct format {
    neap_dtype dtype;
    enum { WHOLE, FIXED, SCIENTIFIC } kind;
    int precision, width;
    double scale; /* FIXED: values are shown divided by it; 1 = no common exponent */
    int exponent;
} format;

static void number_text(const format *f, value v, char *buf, size_t n)
{
    if (f->dtype == NEAP_BOOL) snprintf(buf, n, "%s", v.i ? "true" : "false");
    else if (!np_is_float(f->dtype)) snprintf(buf, n, "%lld", (long long)v.i);
    else if (isnan(v.f)) snprintf(buf, n, "nan");
    else if (f->kind == WHOLE) snprintf(buf, n, "%.0f", v.f);
    else if (f->kind == FIXED) snprintf(buf, n, "%.*f", f->precision, v.f / f->scale);
    else snprintf(buf, n, "%.*e", f->precision, v.f);
    point(buf);
}

static void choose_format(format *f, const value *v, int64_t n, int precision)
{
    double most = 0, least = INFINITY;
    bool whole = true;
    f->precision = precision;
    f->scale = 1;
    f->exponent = 0;
    f->kind = WHOLE;
    if (np_is_float(f->dtype)) {
        for (int64_t i = 0; i < n; i++) {
            double a = fabs(v[i].f);
            if (!isfinite(a)) continue;
            whole &= a == floor(a);
            if (a > most) most = a;
            if (a > 0 && a < least) least = a;
        }
        if (!whole || most >= 1e9) {
            bool wide = most / least >= 1e5;
            f->kind = wide ? SCIENTIFIC : FIXED;
            if (!wide && (most >= 1e5 || most < 1e-2)) {
                f->exponent = (int)floor(log10(most));
                f->scale = pow(10, f->exponent);
                if (f->scale == 0 || !isfinite(most / f->scale)) f->kind = SCIENTIFIC, f->scale = 1;
            }
        }
    }
    f->width = 1;
    for (int64_t i = 0; i < n; i++) {
        char buf[400];
        number_text(f, v[i], buf, sizeof buf);
        int w = (int)strlen(buf);
        if (w > f->width) f->width = w;
    }
}

/* ---- which elements are shown */

typedef struct shown {
    int64_t n[NEAP_MAX_DIMS]; /* positions shown per dim */
    bool cut[NEAP_MAX_DIMS];  /* only the first and last n/2 */
    int64_t total;
} shown;

static void choose_shown(shown *s, const neap_tensor *t, const np_print_opts *o)
{
    bool all = t->numel <= o->threshold;
    for (int64_t edge = o->edge > 0 ? o->edge : 1;; edge--) {
        s->total = 1;
        for (int d = 0; d < t->ndim; d++) {
            s->cut[d] = !all && t->shape[d] > 2 * edge;
            s->n[d] = s->cut[d] ? 2 * edge : t->shape[d];
            s->total *= s->n[d];
        }
        if (all || edge == 1 || s->total <= 4096) return;
    }
}

/* k-th shown position of dim d. */
static int64_t position(const shown *s, const neap_tensor *t, int d, int64_t k)
{
    return s->cut[d] && k >= s->n[d] / 2 ? t->shape[d] - s->n[d] + k : k;
}

static bool read_shown(neap_ctx *c, const neap_tensor *t, const shown *s, value *out)
{
    np_device *dev = t->st->dev;
    neap_dtype d = (neap_dtype)t->dtype;
    size_t item = np_itemsize(t);
    for (int64_t i = 0; i < s->total; i++) {
        _Alignas(8) unsigned char raw[8];
        int64_t rest = i, at = 0;
        for (int k = t->ndim - 1; k >= 0; k--) {
            at += position(s, t, k, rest % s->n[k]) * t->stride[k];
            rest /= s->n[k];
        }
        const char *p = np_ptr(t) + at * (int64_t)item;
        if (dev->backend.host_memory) memcpy(raw, p, item);
        else if (!np_fetch(c, dev, raw, p, item)) return false;
        if (np_is_float(d)) out[i].f = np_load_double(d, raw);
        else out[i].i = np_load_int(d, raw);
    }
    return true;
}

/* ---- layout */

typedef struct printer {
    text *x;
    const neap_tensor *t;
    const shown *s;
    const format *f;
    const value *v;
    int line; /* characters of a line */
} printer;

/* Columns from .. to of the row that starts at value `at`; the gap of a cut dim is an ellipsis. */
static void put_row(const printer *p, int64_t at, int64_t from, int64_t to)
{
    int d = p->t->ndim - 1;
    for (int64_t k = from; k < to; k++) {
        char buf[400];
        if (k > from) puts_(p->x, "  ");
        if (p->s->cut[d] && k == p->s->n[d] / 2) puts_(p->x, "...  ");
        number_text(p->f, p->v[at + k], buf, sizeof buf);
        int pad = p->f->width - (int)strlen(buf);
        for (; pad > 0; pad--) put(p->x, " ", 1);
        puts_(p->x, buf);
    }
    puts_(p->x, "\n");
}

static int64_t columns_per_line(const printer *p)
{
    int64_t n = (p->line + 2) / (p->f->width + 2);
    return n < 1 ? 1 : n;
}

/* rows x columns starting at value `at`; wide ones in bands of columns. One row: the bands just follow. */
static void put_matrix(const printer *p, int64_t at, int64_t rows, bool is_vector)
{
    int d = p->t->ndim - 1;
    int64_t columns = p->s->n[d], band = p->s->cut[d] ? columns : columns_per_line(p);
    for (int64_t from = 0; from < columns; from += band) {
        int64_t to = from + band < columns ? from + band : columns;
        if (!is_vector && band < columns)
            putf(p->x, "%scolumns %lld to %lld\n", from ? "\n" : "", (long long)(from + p->x->c->base),
                 (long long)(to - 1 + p->x->c->base));
        for (int64_t r = 0; r < rows; r++) {
            if (!is_vector && p->s->cut[d - 1] && r == rows / 2) puts_(p->x, "...\n");
            put_row(p, at + r * columns, from, to);
        }
    }
}

/* "(1,2,.,.)" of slice number i over the leading dims. */
static void put_slice_head(const printer *p, int64_t i)
{
    int64_t index[NEAP_MAX_DIMS];
    int lead = p->t->ndim - 2;
    for (int d = lead - 1; d >= 0; d--) index[d] = position(p->s, p->t, d, i % p->s->n[d]), i /= p->s->n[d];
    puts_(p->x, "(");
    for (int d = 0; d < lead; d++) putf(p->x, "%lld,", (long long)(index[d] + p->x->c->base));
    puts_(p->x, ".,.)\n");
}

/* Does slice i begin right after the gap of a cut leading dim? */
static bool after_gap(const printer *p, int64_t i)
{
    for (int d = p->t->ndim - 3; d >= 0; d--) {
        int64_t k = i % p->s->n[d];
        if (k) return p->s->cut[d] && k == p->s->n[d] / 2;
        i /= p->s->n[d];
    }
    return false;
}

static void put_slices(const printer *p)
{
    int n = p->t->ndim;
    int64_t rows = p->s->n[n - 2], size = rows * p->s->n[n - 1];
    for (int64_t i = 0; i * size < p->s->total; i++) {
        if (after_gap(p, i)) puts_(p->x, "...\n\n");
        put_slice_head(p, i);
        put_matrix(p, i * size, rows, false);
        puts_(p->x, "\n");
    }
}

static void put_facts(text *x, const neap_tensor *t)
{
    putf(x, "[%s", np_dtype_name((neap_dtype)t->dtype));
    for (int d = 0; d < t->ndim; d++) putf(x, "%s%lld", d ? "x" : " ", (long long)t->shape[d]);
    putf(x, " %s%s]", t->st->dev->name, neap_requires_grad(t) ? " grad" : "");
}

static void put_tensor(text *x, const neap_tensor *t, const shown *s, const value *v, const np_print_opts *o)
{
    format f = {.dtype = (neap_dtype)t->dtype};
    if (t->ndim == 0) {
        char buf[64];
        if (np_is_float(f.dtype)) shortest(buf, sizeof buf, f.dtype, v[0].f);
        else number_text(&f, v[0], buf, sizeof buf);
        puts_(x, buf);
        return;
    }
    choose_format(&f, v, s->total, o->precision);
    printer p = {x, t, s, &f, v, o->width};
    if (f.scale != 1) putf(x, "1e%+03d *\n", f.exponent);
    if (s->total && t->ndim == 1) put_matrix(&p, 0, 1, true);
    else if (s->total && t->ndim == 2) put_matrix(&p, 0, s->n[0], false);
    else if (s->total) put_slices(&p);
    put_facts(x, t);
}

char *np_print(neap_ctx *c, neap_tensor *t, const np_print_opts *o)
{
    if (np_is_dry(t)) return np_fail_dry(c);
    static const np_print_opts usual = {.threshold = 1000, .edge = 3, .precision = 4, .width = 80};
    np_print_opts opts = o ? *o : usual;
    if (opts.precision < 0 || opts.precision > 17) opts.precision = opts.precision < 0 ? 0 : 17;
    shown s;
    size_t cap = 0;
    text x = {.c = c};
    choose_shown(&s, t, &opts);
    value *v = np_array_grow(c, NULL, &cap, (size_t)s.total + 1, sizeof *v);
    if (!v) return NULL;
    bool ok = read_shown(c, t, &s, v);
    if (ok) put_tensor(&x, t, &s, v, &opts);
    np_array_free(c, v);
    if (ok && !x.failed) return x.s;
    free(x.s);
    return NULL;
}
