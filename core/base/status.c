/* status.c - the context's error record: code names, and who writes the record.
 *
 * The first failure wins: nothing overwrites a pending record, only np_error_take, np_error_restore and
 * neap_clear_error replace it. The texts live inside the record, so reporting an error needs no memory.
 * Nothing here prints or stops. */
#include "ctx.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *meaning;
} codes[] = {
#define CODE_ROW(name, text, meaning) {text, meaning},
    NEAP_CODE_MAP(CODE_ROW)
#undef CODE_ROW
};

const char *neap_code_name(neap_code code)
{
    return (unsigned)code < NEAP_N_CODES ? codes[code].name : "E-INTERNAL";
}

const char *neap_code_meaning(neap_code code)
{
    return (unsigned)code < NEAP_N_CODES ? codes[code].meaning : codes[NEAP_E_INTERNAL].meaning;
}

/* A text cut at the end of its buffer must not end inside a UTF-8 sequence. */
static void mend_cut(char *s, size_t size, int wanted)
{
    if (wanted < 0 || (size_t)wanted < size) return;
    size_t n = size - 1, start = n;
    while (start > 0 && ((unsigned char)s[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)s[start - 1];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (start - 1 + length > n) s[start - 1] = 0;
}

/* The record's first lines: code, op, and the prefix of the message. Returns the prefix's length. */
static int open_record(neap_ctx *c, neap_code code)
{
    np_error *e = &c->err;
    e->code = (unsigned)code < NEAP_N_CODES && code != NEAP_OK ? code : NEAP_E_INTERNAL;
    e->value = NULL;
    e->op[0] = e->message[0] = 0;
    if (!c->op_name) return 0;
    mend_cut(e->op, sizeof e->op, snprintf(e->op, sizeof e->op, "%s", c->op_name));
    int n = snprintf(e->message, sizeof e->message, "neap.%s: ", e->op);
    return n > 0 ? n : 0;
}

static void fail(neap_ctx *c, neap_code code, const char *fmt, va_list ap)
{
    np_error *e = &c->err;
    int used = open_record(c, code);
    int n = vsnprintf(e->message + used, sizeof e->message - (size_t)used, fmt, ap);
    mend_cut(e->message + used, sizeof e->message - (size_t)used, n);
}

void *np_fail(neap_ctx *c, neap_code code, const char *fmt, ...)
{
    if (np_pending(c)) return NULL;
    va_list ap;
    va_start(ap, fmt);
    fail(c, code, fmt, ap);
    va_end(ap);
    for (char *s = c->err.message; *s; s++) /* names out of files, paths, texts of a script */
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
    return NULL;
}

void *np_fail_lines(neap_ctx *c, neap_code code, const char *fmt, ...)
{
    if (np_pending(c)) return NULL;
    va_list ap;
    va_start(ap, fmt);
    fail(c, code, fmt, ap);
    va_end(ap);
    return NULL;
}

void *np_fail_nomem(neap_ctx *c, size_t bytes)
{
    return np_fail(c, NEAP_E_NOMEM,
                   "out of memory: the system has no %zu bytes left; free tensors, or use smaller batches or "
                   "checkpointing",
                   bytes);
}

np_error np_error_take(neap_ctx *c)
{
    np_error e = c->err;
    neap_clear_error(c);
    return e;
}

void np_error_restore(neap_ctx *c, np_error e)
{
    if (e.code != NEAP_OK) c->err = e; /* it came first, so it wins over a later one */
}

neap_code neap_error(const neap_ctx *c) { return c->err.code; }

const char *neap_error_message(const neap_ctx *c) { return c->err.message; }

void *neap_error_value(const neap_ctx *c) { return c->err.value; }

void neap_clear_error(neap_ctx *c)
{
    c->err.code = NEAP_OK;
    c->err.op[0] = c->err.message[0] = 0;
    c->err.value = NULL;
}

void np_forgive(neap_ctx *c, const np_error *before)
{
    neap_clear_error(c);
    if (before) c->err = *before;
    c->forgiven++;
}

void neap_fail(neap_ctx *c, neap_code code, const char *message, void *value)
{
    if (np_pending(c)) return;
    np_error *e = &c->err;
    e->code = (unsigned)code < NEAP_N_CODES && code != NEAP_OK ? code : NEAP_E_USER;
    e->op[0] = 0; /* the host's own text, without a prefix */
    mend_cut(e->message, sizeof e->message,
             snprintf(e->message, sizeof e->message, "%s", message ? message : neap_code_meaning(e->code)));
    e->value = value;
}

int np_refuse_results(neap_ctx *c, neap_values *v)
{
    np_fail(c, NEAP_E_ARG, "a callback returned %d results: it must be 0 to %d", v->n_out, NEAP_MAX_RESULTS);
    v->n_out = 0;
    return 1;
}
