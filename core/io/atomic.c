/* atomic.c - see atomic.h. */
#define _GNU_SOURCE /* O_TMPFILE */
#include "io/atomic.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/file.h"
#include "tensor/tensor.h"

#define BLOCK ((size_t)16 << 20)
#define TEMP_TRIES 10000

static bool fail_write(np_atomic *a, const char *what, const char *path, int code)
{
    char name[NP_PATH_TEXT], why[96];
    np_fail(a->c, NEAP_E_IO, "cannot %s %s: %s", what, np_path_text(name, path),
            np_errno_text(why, sizeof why, code));
    np_atomic_abandon(a);
    return false;
}

static char *text_new(neap_ctx *c, size_t n)
{
    size_t cap = 0;
    return np_array_grow(c, NULL, &cap, n, 1);
}

/* The file that a symbolic link finally names, so that saving through a link keeps the link. */
static bool resolve_target(np_atomic *a, const char *path)
{
    struct stat st;
    char *real = NULL;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && !(real = realpath(path, NULL)))
        return fail_write(a, "follow the link", path, errno);
    const char *from = real ? real : path;
    size_t n = strlen(from) + 1;
    if ((a->target = text_new(a->c, n))) memcpy(a->target, from, n);
    free(real);
    return a->target != NULL;
}

/* Length of the directory part with its slash, 0 if there is none. */
static size_t dir_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Tries names beside the target until `make` takes one: it returns a descriptor or -1 with errno. Sets a->temp. */
static int name_temp(np_atomic *a, int (*make)(np_atomic *a, const char *path))
{
    size_t dir = dir_length(a->target), cap = dir + 64;
    char *temp = text_new(a->c, cap);
    if (!temp) {
        np_atomic_abandon(a);
        return -1;
    }
    memcpy(temp, a->target, dir);
    int fd = -1;
    for (int i = 0; i < TEMP_TRIES && fd < 0; i++) {
        snprintf(temp + dir, cap - dir, ".neap-%ld-%d.tmp", (long)getpid(), i);
        fd = make(a, temp);
        if (fd < 0 && errno != EEXIST && errno != EINTR) break;
    }
    if (fd >= 0) {
        a->temp = temp;
        return fd;
    }
    int code = errno;
    np_array_free(a->c, temp);
    fail_write(a, "create a file beside", a->target, code);
    return -1;
}

static int create_named(np_atomic *a, const char *path)
{
    (void)a;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) (void)!flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}

#define OPEN_FILE_PATH(path, fd) snprintf(path, sizeof path, "/proc/self/fd/%d", fd)

static int link_nameless(np_atomic *a, const char *path)
{
    char open_file[40];
    OPEN_FILE_PATH(open_file, a->fd);
    return linkat(AT_FDCWD, open_file, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 ? a->fd : -1;
}

/* Where the system can do it the file has no name before it is whole: who is killed while writing leaves nothing. It
 * is locked as long as this process lives and is not done with it. */
static void open_nameless(np_atomic *a)
{
    size_t dir = dir_length(a->target);
    char keep = a->target[dir], open_file[40];
    a->target[dir] = '\0';
    a->fd = open(dir ? a->target : ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    a->target[dir] = keep;
    if (a->fd < 0) return;
    OPEN_FILE_PATH(open_file, a->fd);
    if (access(open_file, W_OK) == 0 && flock(a->fd, LOCK_EX | LOCK_NB) == 0) return;
    close(a->fd);
    a->fd = -1;
}

/* Whole files whose process was killed between naming and renaming them: those that nobody has locked. */
static void remove_stale(np_atomic *a)
{
    size_t dir = dir_length(a->target);
    char keep = a->target[dir];
    a->target[dir] = '\0';
    DIR *d = opendir(dir ? a->target : ".");
    a->target[dir] = keep;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, ".neap-", 6) != 0 || n < 10 || strcmp(e->d_name + n - 4, ".tmp") != 0)
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d) closedir(d);
}

static bool open_temp(np_atomic *a, const struct stat *old)
{
    open_nameless(a);
    if (a->fd < 0) {
        int fd = name_temp(a, create_named);
        if (fd < 0) return false;
        a->fd = fd;
    }
    if (old && fchmod(a->fd, old->st_mode & 0777) != 0)
        return fail_write(a, "set the mode of the file that replaces", a->target, errno);
    return true;
}

bool np_atomic_open(neap_ctx *c, np_atomic *a, const char *path)
{
    *a = (np_atomic){.c = c, .fd = -1};
    if (!path || !*path) {
        np_fail(c, NEAP_E_ARG, "a file name is missing: give the path of the file to write");
        return false;
    }
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) {
        char name[NP_PATH_TEXT];
        np_fail(c, NEAP_E_IO, "cannot write %s: it is %s, not a regular file", np_path_text(name, path),
                S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
        return false;
    }
    if (resolve_target(a, path) && open_temp(a, exists ? &st : NULL)) return true;
    np_atomic_abandon(a);
    return false;
}

/* write(2), with SIGXFSZ (the file-size limit) held back and swallowed: a library must not end its host. */
static ssize_t write_quietly(int fd, const void *p, size_t n)
{
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    ssize_t put = write(fd, p, n);
    int code = errno;
    if (put < 0 && code == EFBIG && !was_pending) {
        struct timespec now = {0, 0};
        while (sigtimedwait(&limit, NULL, &now) < 0 && errno == EINTR) {}
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return put;
}

bool np_atomic_write(np_atomic *a, const void *p, size_t n)
{
    const char *at = p;
    while (n > 0) {
        if (np_cancelled(a->c)) {
            np_fail(a->c, NEAP_E_CANCELLED, "interrupted; %s is unchanged", a->target);
            np_atomic_abandon(a);
            return false;
        }
        ssize_t put = write_quietly(a->fd, at, n < BLOCK ? n : BLOCK);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return fail_write(a, "write", a->target, put < 0 ? errno : EIO);
        at += put, n -= (size_t)put;
    }
    return true;
}

bool np_io_write_tensor(np_atomic *a, neap_tensor *t)
{
    size_t bytes = (size_t)t->numel * np_itemsize(t);
    if (bytes == 0) return true;
    if (t->st->dev->index == 0) {
        neap_tensor *dense = np_as_contiguous(a->c, t, (neap_dtype)t->dtype);
        bool ok = dense && np_atomic_write(a, np_ptr(dense), bytes);
        np_drop(dense);
        return ok;
    }
    void *host = np_obj_new(a->c, bytes);
    bool ok = host && neap_read(a->c, t, host, bytes) == 0 && np_atomic_write(a, host, bytes);
    if (host) np_obj_free(a->c, host, bytes);
    return ok;
}

/* Makes the rename itself last. The file is in place already: a failure here is worth a warning, no error. */
static void flush_directory(np_atomic *a)
{
    size_t dir = dir_length(a->target);
    if (dir > 0) a->target[dir] = '\0';
    int fd = open(dir > 0 ? a->target : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)) {
        char why[96];
        np_logf(a->c, 2, "the directory of a saved file could not be flushed: %s",
                np_errno_text(why, sizeof why, errno));
    }
    if (fd >= 0) close(fd);
}

bool np_atomic_commit(np_atomic *a)
{
    if (fsync(a->fd) != 0) return fail_write(a, "flush", a->target, errno);
    if (!a->temp) {
        remove_stale(a);
        if (name_temp(a, link_nameless) < 0) return false;
    }
    if (rename(a->temp, a->target) != 0) return fail_write(a, "replace", a->target, errno);
    np_array_free(a->c, a->temp);
    a->temp = NULL;
    int fd = a->fd;
    a->fd = -1;
    if (close(fd) != 0 && errno != EINTR) return fail_write(a, "close", a->target, errno);
    flush_directory(a);
    np_atomic_abandon(a);
    return true;
}

void np_atomic_abandon(np_atomic *a)
{
    if (a->fd >= 0) close(a->fd);
    if (a->temp) unlink(a->temp);
    np_array_free(a->c, a->temp);
    np_array_free(a->c, a->target);
    *a = (np_atomic){.c = a->c, .fd = -1};
}
