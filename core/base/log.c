/* log.c - lines for the host's log callback. Without a callback nothing is formatted; nothing is ever
 * printed. */
#include "ctx.h"

#include <stdarg.h>
#include <stdio.h>

void np_logf(neap_ctx *c, int level, const char *fmt, ...)
{
    if (!c->opts.log) return;
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->opts.log(c->opts.user, level, text);
}
