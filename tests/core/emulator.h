/* emulator.h - the emulated device in tests that let it fail: what its library has for them (tests/cudaemu/runtime.h).
 *
 * It is looked for beside the tests' folder unless NEAP_CUDA_PLUGIN says where. NULL: there is none (a build under a
 * sanitizer has none), and valgrind does not know its stacks. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long (*fail_at)(long n), (*fault_at)(long n);

static inline void find_emulator(const char *program)
{
    char path[1024];
    const char *given = getenv("NEAP_CUDA_PLUGIN"), *slash = strrchr(program, '/');
    int n = slash ? (int)(slash - program) : 1;
    snprintf(path, sizeof path, "%.*s/../libneap-cudaemu.so", n, slash ? program : ".");
    if (!given) setenv("NEAP_CUDA_PLUGIN", path, 1);
    void *lib = getenv("NEAP_TEST_VALGRIND") ? NULL : dlopen(given ? given : path, RTLD_NOW | RTLD_LOCAL);
    void *call = lib ? dlsym(lib, "neap_emu_fail_at") : NULL,
         *kernel = lib ? dlsym(lib, "neap_emu_fault_at") : NULL;
    memcpy(&fail_at, &call, sizeof fail_at); /* ISO C converts no object pointer to a function's */
    memcpy(&fault_at, &kernel, sizeof fault_at);
}

#endif
