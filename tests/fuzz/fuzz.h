/* fuzz.h - what the fuzzed readers share. Each program is a libFuzzer target (built with -DNEAP_LIBFUZZER
 * -fsanitize=fuzzer) or, without that, a program that runs the files given as arguments once.
 * Build and run:
 *   make FUZZ=1 CC=clang fuzzers
 *   lua5.4 tests/fuzz/make_corpus.lua corpus && build-fuzz/fuzz/fuzz_idx corpus/idx
 * `make check PARTS=fuzz` replays the seeds under ASan and fuzzes for a while. */
#ifndef NEAP_FUZZ_H
#define NEAP_FUZZ_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "neap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever a reader does with a file of these bytes: nothing may be left, and a failure must be recorded. */
static inline void fuzz_file(const uint8_t *data, size_t size, int (*read_all)(neap_ctx *c, const char *path))
{
    char path[32];
    int fd = memfd_create("input", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    neap_ctx *c = neap_ctx_new(
        &(neap_ctx_opts){.size = sizeof(neap_ctx_opts), .threads = 1, .host_limit = (int64_t)64 << 20});
    if (!c) abort();
    int ok = read_all(c, path);
    if (ok == (neap_error(c) != NEAP_OK)) abort();
    neap_clear_error(c);
    neap_memory m = {.size = sizeof m};
    if (neap_memory_stats(c, 0, &m) != 0 || m.live != 0 || m.storages != 0) abort();
    neap_ctx_free(c);
    close(fd);
}

#ifndef NEAP_LIBFUZZER
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        uint8_t *p = malloc((size_t)1 << 20);
        if (!f || !p) return 1;
        size_t n = fread(p, 1, (size_t)1 << 20, f);
        fclose(f);
        LLVMFuzzerTestOneInput(p, n);
        free(p);
    }
    printf("%d files\n", argc - 1);
    return 0;
}
#endif

#endif
