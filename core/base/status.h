/* status.h - the context's error record.
 *
 * Nothing in the core aborts, exits, prints, longjmps or raises. A function that fails fills the
 * context's record and returns NULL, false or a code. The first failure wins: while an error is pending
 * every op returns NULL without work, so a host can write a whole expression and check once at the end.
 * Release, end and query functions still work while an error is pending. */
#ifndef NP_STATUS_H
#define NP_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "neap.h"

typedef struct np_error {
    neap_code code;
    char op[40];        /* the op (or function) that failed, "" if none: "matmul" */
    char message[2400]; /* "neap.matmul: inner sizes differ: ..." without code and without script line */
    void *value;        /* NEAP_E_USER: the host's own error value, opaque to the core */
} np_error;

/* Records an error unless one is pending. `fmt` says what, values, rule, remedy; the prefix "neap.<op>: "
 * is added from the running op. Always returns NULL, so that `return np_fail(...)` reads well. */
void *np_fail(neap_ctx *c, neap_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4), cold));
/* The message of np_fail is one line, whatever is quoted in it; this one's may have more (both runs of a region). */
void *np_fail_lines(neap_ctx *c, neap_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Out of memory: text without allocation. */
void *np_fail_nomem(neap_ctx *c, size_t bytes) __attribute__((cold));
/* Calls a host's function; 0, or what it returned. More results than there is room for are an error, and none.
 * Inline: as a call, it cost a step of the backward loop three instructions (tools/callgrind.sh). */
int np_refuse_results(neap_ctx *c, neap_values *v) __attribute__((cold));
static inline int np_call_fn(neap_ctx *c, neap_fn fn, neap_values *v)
{
    int status = fn.call(c, fn.user, v);
    return v->n_out >= 0 && v->n_out <= NEAP_MAX_RESULTS ? status : np_refuse_results(c, v);
}

/* Drops the pending error: what failed can be done without (a diagnosis; the rest of a recompute that has all it
 * needs). `before` is what was pending when it began, NULL: nothing. Counted in c->forgiven, so that the tests of
 * failing allocations know of each. */
void np_forgive(neap_ctx *c, const np_error *before);

static inline bool np_pending(const neap_ctx *c);

/* Moves the pending record out (so that user code can run on an error path) and puts it back. */
np_error np_error_take(neap_ctx *c);
void np_error_restore(neap_ctx *c, np_error e);

/* "E-SHAPE" for NEAP_E_SHAPE: neap_code_name() in neap.h. */

#endif
