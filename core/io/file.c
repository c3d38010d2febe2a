/* file.c - see file.h. Reads go in blocks, so that a cancelled context stops within one block. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((size_t)16 << 20)

const char *np_path_text(char buf[NP_PATH_TEXT], const char *path)
{
    size_t n = strlen(path);
    if (n < NP_PATH_TEXT) return path;
    memcpy(buf, "...", 3);
    memcpy(buf + 3, path + n - (NP_PATH_TEXT - 4), NP_PATH_TEXT - 3);
    return buf;
}

const char *np_errno_text(char *buf, size_t n, int code)
{
    if (strerror_r(code, buf, n) != 0) snprintf(buf, n, "system error %d", code);
    return buf;
}

static bool fail_read(np_infile *f, const char *what, int code)
{
    char name[NP_PATH_TEXT], why[96];
    np_fail(f->c, NEAP_E_IO, "cannot %s %s: %s", what, np_path_text(name, f->path),
            np_errno_text(why, sizeof why, code));
    return false;
}

bool np_infile_open(neap_ctx *c, np_infile *f, const char *path)
{
    *f = (np_infile){.c = c, .path = path ? path : "", .fd = -1};
    if (!path || !*path) {
        np_fail(c, NEAP_E_ARG, "a file name is missing: give the path of the file to read");
        return false;
    }
    do /* O_NONBLOCK: opening a pipe nobody writes to must not hang; it means nothing for regular files */
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (f->fd < 0 && errno == EINTR);
    if (f->fd < 0) return fail_read(f, "open", errno);
    struct stat st;
    if (fstat(f->fd, &st) != 0) {
        int code = errno;
        np_infile_close(f);
        return fail_read(f, "look at", code);
    }
    if (!S_ISREG(st.st_mode)) {
        char name[NP_PATH_TEXT];
        np_infile_close(f);
        np_fail(c, NEAP_E_IO, "cannot read %s: it is %s, not a regular file", np_path_text(name, path),
                S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
        return false;
    }
    f->size = (int64_t)st.st_size;
    return true;
}

void np_infile_memory(neap_ctx *c, np_infile *f, const char *path, const void *bytes, size_t n)
{
    *f = (np_infile){.c = c, .path = path, .fd = -1, .size = (int64_t)n, .memory = bytes};
}

bool np_infile_read(np_infile *f, void *dst, size_t n, int64_t at)
{
    char *p = dst;
    if (f->memory) {
        if (n) memcpy(p, f->memory + at, n);
        return true;
    }
    while (n > 0) {
        if (np_cancelled(f->c)) {
            np_fail(f->c, NEAP_E_CANCELLED, "interrupted");
            return false;
        }
        ssize_t got = pread(f->fd, p, n < BLOCK ? n : BLOCK, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_read(f, "read", errno);
        if (got == 0) {
            char name[NP_PATH_TEXT];
            np_fail(f->c, NEAP_E_FORMAT,
                    "%s ended at byte %lld, %zu bytes early: it was cut while being read",
                    np_path_text(name, f->path), (long long)at, n);
            return false;
        }
        p += got, at += got, n -= (size_t)got;
    }
    return true;
}

void np_infile_close(np_infile *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
