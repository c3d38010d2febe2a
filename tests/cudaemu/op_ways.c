/* op_ways.c - by which way every op runs on a plug-in's device: what tools/device_table.lua prints.
 *
 *   op_ways [PLUGIN.so]     a line each: op, tab, way. Without a plug-in: on the CPU.
 *
 * The ways are those of np_kernels_complete: view, parts, bytes (the CPU's code, which only moves bytes by the device's
 * own copies), kernel, ref, host (the CPU's kernel on copies), none. In-place forms go the way of their op. A plug-in is
 * opened, not asked for devices: none is needed. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "ops/op.h"

static bool has_row(const np_plugin *p, const char *op)
{
    for (const np_plugin_row *r = p->kernels; r->op; r++)
        if (strcmp(r->op, op) == 0) return true;
    return false;
}

static const char *way_of(const np_op *op, const np_plugin *p)
{
    const bool cpu = np_cpu_kernels[op->index][0] != NULL;
    if (op->tags & NP_VIEW) return "view";
    if (op->tags & NP_COMPOSITE) return "parts";
    if (p && op->tags & NP_ANYWHERE) return "bytes";
    if (p ? has_row(p, op->name) : cpu) return "kernel";
    if (p && cpu) return "host";
    return op->ref ? "ref" : "none";
}

int main(int argc, char **argv)
{
    const np_plugin *p = NULL;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, NP_PLUGIN_SYMBOL) : NULL;
        np_plugin_get get;
        memcpy(&get, &symbol, sizeof get); /* ISO C converts no object pointer to a function's */
        if (!get || !(p = get(NP_PLUGIN_ABI))) {
            fprintf(stderr, "%s: %s\n", argv[1], library ? "no plug-in of this version" : dlerror());
            return 1;
        }
        for (const np_plugin_row *r = p->kernels; r->op; r++)
            if (!np_op_find(r->op)) {
                fprintf(stderr, "%s has a kernel for '%s', which is not an op\n", argv[1], r->op);
                return 1;
            }
    }
    for (int i = 0; i < NP_N_OPS; i++)
        printf("%s\t%s\n", np_ops[i]->name, way_of(np_ops[i]->base ? np_ops[i]->base : np_ops[i], p));
    return 0;
}
