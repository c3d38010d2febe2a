/* csv.c - neap_read_csv: a table of text cells after RFC 4180, and columns of it as tensors.
 *
 * The whole file is read; the cells are unquoted in place and their beginnings kept, so a table takes the size of
 * its file and 8 bytes a cell. Every line has as many cells as the first; lines without a character are skipped.
 * Numbers are read in the C locale, whatever the host has set. */
#define _GNU_SOURCE /* strtod_l */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "tensor/tensor.h"

struct neap_csv {
    neap_ctx *c;
    char *text; /* the cells, each with a NUL at its end */
    size_t text_bytes;
    int64_t *cell; /* where each begins; a header's cells come first */
    int64_t n, room;
    int64_t columns, header; /* header: 1 or 0 lines */
    char path[NP_PATH_TEXT];
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static bool add_cell(neap_csv *f, int64_t at)
{
    if (f->n == f->room) {
        int64_t room = f->room ? f->room * 2 : 64;
        int64_t *more = np_obj_new(f->c, (size_t)room * sizeof *more);
        if (!more) return false;
        if (f->n) memcpy(more, f->cell, (size_t)f->n * sizeof *more);
        if (f->cell) np_obj_free(f->c, f->cell, (size_t)f->room * sizeof *f->cell);
        f->cell = more;
        f->room = room;
    }
    f->cell[f->n++] = at;
    return true;
}

typedef struct csv_scan {
    const char *p, *end; /* what is still to be read */
    char *out;           /* where the next character of a cell goes: never beyond p */
    int64_t line;
    char separator;
} csv_scan;

static bool bad(neap_csv *f, int64_t line, const char *rule)
{
    return np_fail(f->c, NEAP_E_FORMAT, "%s cannot be read as CSV: line %lld %s", f->path, (long long)line,
                   rule);
}

static bool at_line_end(const csv_scan *s) { return s->p == s->end || *s->p == '\n' || *s->p == '\r'; }

/* A quoted cell: everything up to the closing quote, two quotes for one. */
static bool scan_quoted(neap_csv *f, csv_scan *s)
{
    int64_t first = s->line;
    for (s->p++;; s->p++) {
        if (s->p == s->end) return bad(f, first, "begins a quote that does not end");
        if (*s->p == '\n') s->line++;
        if (*s->p == '"') {
            if (s->p + 1 == s->end || s->p[1] != '"') break;
            s->p++;
        }
        *s->out++ = *s->p;
    }
    s->p++;
    if (!at_line_end(s) && *s->p != s->separator) return bad(f, s->line, "goes on after a closing quote");
    return true;
}

/* One cell up to its separator or the end of the line; what ends it is left. */
static bool scan_cell(neap_csv *f, csv_scan *s)
{
    if (!add_cell(f, s->out - f->text)) return false;
    if (s->p < s->end && *s->p == '"') return scan_quoted(f, s);
    for (; !at_line_end(s) && *s->p != s->separator; s->p++) {
        if (*s->p == '"') return bad(f, s->line, "has a quote in the middle of a cell; quote the whole cell");
        *s->out++ = *s->p;
    }
    return true;
}

/* All lines. A cell's NUL takes the place of what ended it, which has been read by then. */
static bool scan_table(neap_csv *f, csv_scan *s)
{
    while (s->p < s->end) {
        int64_t cells = 0, line = s->line;
        bool more = !at_line_end(s);
        while (more) {
            if (!scan_cell(f, s)) return false;
            cells++;
            more = s->p < s->end && *s->p == s->separator;
            if (more) s->p++;
            if (!more && s->p < s->end && *s->p == '\r') s->p++;
            if (!more && s->p < s->end && *s->p == '\n') s->p++, s->line++;
            *s->out++ = '\0';
        }
        if (cells == 0) {
            if (*s->p == '\n') s->line++;
            s->p++;
        } else if (f->columns == 0) {
            f->columns = cells;
        } else if (cells != f->columns) {
            char text[80];
            snprintf(text, sizeof text, "has %lld cells, the first one has %lld", (long long)cells,
                     (long long)f->columns);
            return bad(f, line, text);
        }
    }
    return true;
}

/* The file's bytes behind one spare byte, so that the NUL of a last cell without a line end has its place. */
static bool read_text(neap_csv *f, const char *path, csv_scan *s)
{
    np_infile in = {0};
    if (!np_infile_open(f->c, &in, path)) return false;
    size_t n = (size_t)in.size;
    f->text = np_obj_new(f->c, n + 2);
    if (f->text) f->text_bytes = n + 2;
    bool ok = f->text && (n == 0 || np_infile_read(&in, f->text + 1, n, 0));
    np_infile_close(&in);
    if (!ok) return false;
    s->p = f->text + 1;
    s->end = s->p + n;
    s->out = f->text;
    s->line = 1;
    if (n >= 3 && memcmp(s->p, "\xef\xbb\xbf", 3) == 0) s->p += 3;
    const char *nul = memchr(s->p, '\0', (size_t)(s->end - s->p));
    return !nul || bad(f, 1, "or a later one holds a 0 byte, which no text has");
}

neap_csv *neap_read_csv(neap_ctx *c, const char *path, char separator, int header)
{
    if (np_pending(c)) return NULL;
    const char *outer = np_io_enter(c, "read_csv");
    neap_csv *f = NULL;
    csv_scan s = {.separator = separator};
    if (separator == '"' || separator == '\n' || separator == '\r' || separator == '\0')
        np_fail(c, NEAP_E_ARG, "the separator must not be a quote, a line end or a 0 byte");
    else f = np_obj_new(c, sizeof *f);
    if (f) {
        f->c = c;
        f->header = header ? 1 : 0;
        const char *text = np_path_text(f->path, path ? path : "");
        if (text != f->path) snprintf(f->path, sizeof f->path, "%s", text);
        bool ok = read_text(f, path, &s) && scan_table(f, &s);
        if (ok && header && f->n == 0)
            ok = bad(f, 1, "should hold the names of the columns, the file is empty");
        if (!ok) {
            neap_csv_free(f);
            f = NULL;
        }
    }
    c->op_name = outer;
    return f;
}

void neap_csv_free(neap_csv *f)
{
    if (!f) return;
    if (f->cell) np_obj_free(f->c, f->cell, (size_t)f->room * sizeof *f->cell);
    if (f->text) np_obj_free(f->c, f->text, f->text_bytes);
    np_obj_free(f->c, f, sizeof *f);
}

int64_t neap_csv_columns(const neap_csv *f) { return f ? f->columns : 0; }
int64_t neap_csv_rows(const neap_csv *f) { return f && f->columns ? f->n / f->columns - f->header : 0; }

const char *neap_csv_name(const neap_csv *f, int64_t column)
{
    return f && f->header && column >= 0 && column < f->columns ? f->text + f->cell[column] : NULL;
}

const char *neap_csv_text(const neap_csv *f, int64_t row, int64_t column)
{
    if (row < 0 || row >= neap_csv_rows(f) || column < 0 || column >= neap_csv_columns(f)) return NULL;
    return f->text + f->cell[(row + f->header) * f->columns + column];
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static const char *skip_spaces(const char *p)
{
    while (*p == ' ' || *p == '\t') p++;
    return p;
}

/* A cell as a number; an empty one and NA are not a number. */
static bool read_number(const char *text, locale_t plain, double *v)
{
    text = skip_spaces(text);
    if (!*text || (strncmp(text, "NA", 2) == 0 && !*skip_spaces(text + 2))) {
        *v = NAN;
        return true;
    }
    char *end;
    *v = strtod_l(text, &end, plain);
    return end != text && !*skip_spaces(end);
}

/* Whole numbers beyond 2^53 keep every digit. */
static bool read_integer(const char *text, int64_t *v)
{
    char *end;
    text = skip_spaces(text);
    errno = 0;
    *v = strtoll(text, &end, 10);
    return end != text && !*skip_spaces(end) && errno == 0;
}

int neap_csv_is_number(const neap_csv *f, int64_t column)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double v;
    int64_t rows = neap_csv_rows(f), row = 0;
    if (!plain || column < 0 || column >= neap_csv_columns(f)) row = -1;
    while (row >= 0 && row < rows && read_number(neap_csv_text(f, row, column), plain, &v)) row++;
    if (plain) freelocale(plain);
    return row == rows;
}

static bool store_cell(neap_csv *f, int64_t row, int64_t column, locale_t plain, neap_dtype d, char *dst)
{
    const char *text = neap_csv_text(f, row, column);
    double v = 0;
    int64_t whole = 0;
    bool integer = !np_is_float(d) && d != NEAP_BOOL, ok;
    if (integer) ok = read_integer(text, &whole);
    else ok = read_number(text, plain, &v);
    if (!ok)
        return np_fail(f->c, NEAP_E_FORMAT, "%s: row %lld, column %lld: '%.40s' is no %s", f->path,
                       (long long)row + f->c->base, (long long)column + f->c->base, text,
                       integer ? "whole number" : "number");
    if (!integer) {
        np_convert(d, dst, 0, NEAP_FLOAT64, &v, 0, 1);
        return true;
    }
    int64_t back = 0;
    np_convert(d, dst, 0, NEAP_INT64, &whole, 0, 1);
    np_convert(NEAP_INT64, &back, 0, d, dst, 0, 1);
    return back == whole || np_fail(f->c, NEAP_E_FORMAT, "%s: row %lld, column %lld: %lld does not fit %s",
                                    f->path, (long long)row + f->c->base, (long long)column + f->c->base,
                                    (long long)whole, np_dtype_name(d));
}

neap_tensor *neap_csv_tensor(neap_ctx *c, neap_csv *f, int64_t n, const int64_t *columns, neap_dtype d)
{
    if (np_pending(c)) return NULL;
    const char *outer = np_io_enter(c, "read_csv");
    int64_t shape[2] = {neap_csv_rows(f), n};
    bool ok = f && (n <= 0 || columns);
    if (!ok) np_fail(c, NEAP_E_ARG, "the file, or the list of columns, is missing");
    for (int64_t k = 0; ok && k < n; k++)
        if (columns[k] < 0 || columns[k] >= f->columns)
            ok = np_fail(c, NEAP_E_INDEX, "column %lld does not exist; %s has %lld",
                         (long long)columns[k] + c->base, f->path, (long long)f->columns);
    locale_t plain = ok ? newlocale(LC_ALL_MASK, "C", (locale_t)0) : (locale_t)0;
    neap_tensor *t = plain ? neap_empty(c, 2, shape, d, 0) : NULL;
    if (ok && !plain) np_fail_nomem(c, 0);
    ok = t != NULL;
    for (int64_t row = 0; ok && row < shape[0]; row++)
        for (int64_t k = 0; ok && k < n; k++)
            ok = store_cell(f, row, columns[k], plain, d,
                            np_ptr(t) + (size_t)(row * n + k) * np_dtype_size(d));
    if (plain) freelocale(plain);
    if (!ok) {
        np_drop(t);
        t = NULL;
    }
    c->op_name = outer;
    return t;
}
