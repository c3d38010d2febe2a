/* io_help.h - what the tests of the file formats share: a private directory, files from bytes, expected
 * errors. */
#ifndef IO_HELP_H
#define IO_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tensor/tensor.h"

static char io_dir[64];
static neap_ctx *io_ctx;

static int io_setup(void **state)
{
    (void)state;
    strcpy(io_dir, "/tmp/neap-test-XXXXXX");
    io_ctx = neap_ctx_new(NULL);
    return mkdtemp(io_dir) && io_ctx ? 0 : -1;
}

/* Every tensor, byte and object that the test made must be gone. */
static int io_teardown(void **state)
{
    (void)state;
    neap_memory m = {.size = sizeof m};
    neap_clear_error(io_ctx);
    if (neap_memory_stats(io_ctx, 0, &m) != 0 || m.live != 0 || m.storages != 0) {
        fprintf(stderr, "left behind: %lld bytes, %lld storages\n", (long long)m.live, (long long)m.storages);
        return -1;
    }
    neap_ctx_free(io_ctx);
    DIR *d = opendir(io_dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", io_dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(path) != 0) rmdir(path);
    }
    if (d) closedir(d);
    return rmdir(io_dir);
}

/* A path in the test's directory. Four may be in use at once. */
static inline const char *io_path(const char *name)
{
    static char buf[4][128];
    static int next;
    char *p = buf[next++ % 4];
    snprintf(p, sizeof buf[0], "%s/%s", io_dir, name);
    return p;
}

static inline void io_write(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline unsigned char *io_slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *p = malloc(1 << 20);
    *n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

static inline int io_count_files(void)
{
    int n = 0;
    DIR *d = opendir(io_dir);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

/* The pending error has this code and its text holds these words; clears it. */
static inline void io_expect_error(neap_code code, const char *words)
{
    const char *text = neap_error_message(io_ctx);
    if (neap_error(io_ctx) != code || !strstr(text, words))
        fail_msg("expected %s with '%s', got %s: %s", neap_code_name(code), words,
                 neap_code_name(neap_error(io_ctx)), text);
    neap_clear_error(io_ctx);
}

#endif
