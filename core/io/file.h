/* file.h - reading regular files, and the texts of the system's errors.
 *
 * A file is opened only if it is a regular one (a directory, a pipe or a device is refused, and opening never
 * waits), its size is taken once, and every read says how much it must get: a file that shrinks meanwhile is
 * an error, never a short result or a SIGBUS. Nothing here knows a format. */
#ifndef NP_IO_FILE_H
#define NP_IO_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ctx.h"

typedef struct np_infile {
    neap_ctx *c;
    const char *path; /* borrowed: for messages */
    int fd;           /* -1: closed, or the bytes at `memory` */
    int64_t size;
    const char *memory; /* borrowed; NULL for a file */
} np_infile;

/* E-ARG without a path, E-IO with the system's reason. */
bool np_infile_open(neap_ctx *c, np_infile *f, const char *path);
/* Reads from bytes in memory as from a file; `path` is for messages. */
void np_infile_memory(neap_ctx *c, np_infile *f, const char *path, const void *bytes, size_t n);
/* Exactly n bytes at offset `at`; E-IO, or E-FORMAT when the file is shorter by now. */
bool np_infile_read(np_infile *f, void *dst, size_t n, int64_t at);
void np_infile_close(np_infile *f);

/* The end of a path, short enough for a message: "...weights/model.safetensors". Returns path or buf. */
#define NP_PATH_TEXT 140
const char *np_path_text(char buf[NP_PATH_TEXT], const char *path);
/* strerror without shared state; returns buf. */
const char *np_errno_text(char *buf, size_t n, int code);

/* Sets the name of the running operation for messages; returns the previous one. */
static inline const char *np_io_enter(neap_ctx *c, const char *op)
{
    const char *before = c->op_name;
    c->op_name = op;
    return before;
}

#endif
