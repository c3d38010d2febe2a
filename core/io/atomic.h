/* atomic.h - writing a file so that a reader, a crash or a full disk sees the old file or the new one, never
 * a part.
 *
 * The bytes go to a temporary file in the same directory, which is flushed to the disk and renamed over the
 * target at the end; then the directory is flushed. Where the system allows, that file has no name until it is
 * whole, so that a killed process leaves nothing behind. On any failure before the rename the old file is
 * untouched and the temporary one is removed. A symbolic link is followed: the file it names is replaced.
 * Targets that are not regular files are refused. A file-size limit is an error, not a signal. */
#ifndef NP_IO_ATOMIC_H
#define NP_IO_ATOMIC_H

#include <stdbool.h>

#include "base/ctx.h"

typedef struct np_atomic {
    neap_ctx *c;
    int fd;       /* -1: closed */
    char *target; /* what gets replaced */
    char *temp;   /* the temporary file's path, NULL while it has none */
} np_atomic;

/* Failures record E-ARG, E-IO or E-NOMEM and leave nothing behind; after a failed write call abandon. */
bool np_atomic_open(neap_ctx *c, np_atomic *a, const char *path);
bool np_atomic_write(np_atomic *a, const void *p, size_t n);
/* The logical bytes of a tensor on any device, row-major. */
bool np_io_write_tensor(np_atomic *a, neap_tensor *t);
bool np_atomic_commit(np_atomic *a);  /* the new file is in place; abandons on failure */
void np_atomic_abandon(np_atomic *a); /* removes the temporary file; harmless after commit */

#endif
