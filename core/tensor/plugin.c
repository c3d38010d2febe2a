/* plugin.c - finding and opening the libraries of other devices.
 *
 * A plug-in is looked for once in a context, when somebody names one of its devices. The context remembers what came
 * of it, also why there is none. */
#define _GNU_SOURCE /* dladdr */
#include "tensor/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/tensor.h"

typedef struct np_plugins {
    char name[16], why[300];
    int n_devices;
    struct np_plugins *next;
} np_plugins;

static const char *const known[] = {"cuda", "cudaemu"};

/* ---- the library */

/* `here` is where this code is, without the file's name. */
static void folder_of_core(char *here, size_t n)
{
    Dl_info info;
    char *slash;
    here[0] = 0;
    if (!dladdr((void *)(uintptr_t)np_plugin_devices, &info) || !info.dli_fname) return;
    snprintf(here, n, "%s", info.dli_fname);
    slash = strrchr(here, '/');
    if (slash) *slash = 0;
    else snprintf(here, n, ".");
}

static void *open_at(const char *path, char *why, size_t n)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) snprintf(why, n, "%s", dlerror());
    return lib;
}

/* NEAP_CUDA_PLUGIN, beside this library, above it (a Lua module lies deeper), in the lib beside it, the system's. */
static void *open_library(const char *name, char *why, size_t n)
{
    static const char *const places[] = {"%s/%s", "%s/../%s", "%s/../../%s", "%s/../lib/%s"};
    const char *given = getenv("NEAP_CUDA_PLUGIN");
    char here[2048], file[64], path[2200];
    if (given && *given) return open_at(given, why, n);
    snprintf(file, sizeof file, "libneap-%s.so", name);
    folder_of_core(here, sizeof here);
    for (size_t i = 0; i < sizeof places / sizeof *places && here[0]; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(path, sizeof path, places[i], here, file);
#pragma GCC diagnostic pop
        FILE *there = fopen(path, "rb");
        if (!there) continue;
        fclose(there);
        return open_at(path, why, n);
    }
    void *lib = open_at(file, why, n);
    const size_t told = strlen(why);
    if (!lib) snprintf(why + told, n - told, " (make build/%s builds it)", file);
    return lib;
}

static const np_plugin *get_plugin(const char *name, char *why, size_t n)
{
    char text[260] = "";
    void *lib = open_library(name, text, sizeof text);
    if (!lib) {
        snprintf(why, n, "the plug-in of %s cannot be opened: %s", name, text);
        return NULL;
    }
    np_plugin_get get;
    void *symbol = dlsym(lib, NP_PLUGIN_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const np_plugin *p = symbol ? get(NP_PLUGIN_ABI) : NULL;
    if (!symbol) snprintf(why, n, "the library that was opened for %s is no plug-in of Neap", name);
    else if (!p || p->abi != NP_PLUGIN_ABI || p->size != sizeof *p)
        snprintf(why, n, "the plug-in of %s is of another version of Neap", name);
    else if (strcmp(p->name, name) != 0)
        snprintf(why, n, "the plug-in that was found is for %s, not %s", p->name, name);
    else return p;
    return NULL;
}

/* ---- its devices */

static bool add_device(neap_ctx *c, const np_plugin *p, int index, char *why, size_t n)
{
    char name[16];
    void *device = p->open(index, why, n);
    if (!device) return false;
    snprintf(name, sizeof name, "%s:%d", p->name, index);
    neap_backend b = {.size = sizeof b,
                      .name = name,
                      .mem = {p->alloc, p->free, device, p->why},
                      .copy = p->copy,
                      .user = device,
                      .plugin = p};
    if (neap_register_backend(c, &b) >= 0) return true;
    snprintf(why, n, "%s", neap_error_message(c));
    neap_clear_error(c);
    p->close(device);
    return false;
}

static void open_plugin(neap_ctx *c, np_plugins *e)
{
    const np_plugin *p = get_plugin(e->name, e->why, sizeof e->why);
    int count = p ? p->count(e->why, sizeof e->why) : 0;
    while (e->n_devices < count && add_device(c, p, e->n_devices, e->why, sizeof e->why)) e->n_devices++;
}

int np_plugin_devices(neap_ctx *c, const char *name, char *why, size_t n)
{
    bool is_known = false;
    np_plugins *e = c->plugins;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known |= strcmp(known[i], name) == 0;
    if (!is_known) return 0;
    while (e && strcmp(e->name, name) != 0) e = e->next;
    if (!e) {
        np_error before = c->err; /* what is asked for may be a remedy */
        neap_clear_error(c);
        e = np_obj_new(c, sizeof *e);
        if (!e) neap_clear_error(c);
        if (e) {
            snprintf(e->name, sizeof e->name, "%s", name);
            e->next = c->plugins;
            c->plugins = e;
            open_plugin(c, e);
        }
        c->err = before;
    }
    if (why) snprintf(why, n, "%s", e ? e->why : "there is no memory for the plug-in");
    return e ? e->n_devices : 0;
}

void np_plugins_close(neap_ctx *c)
{
    for (np_plugins *e; (e = c->plugins);) {
        c->plugins = e->next;
        np_obj_free(c, e, sizeof *e);
    }
}

/* ---- what a plug-in sees */

void np_operand_of(np_operand *v, const neap_tensor *t)
{
    memset(v, 0, sizeof *v);
    if (!t) return;
    v->present = true;
    v->dtype = t->dtype;
    v->ndim = t->ndim;
    v->numel = t->numel;
    v->contiguous = t->contiguous;
    v->is_number = t->number;
    if (t->number) {
        v->number = np_load_double((neap_dtype)t->dtype, np_ptr(t));
        v->integer = np_load_int((neap_dtype)t->dtype, np_ptr(t));
        return;
    }
    v->data = np_ptr(t);
    memcpy(v->shape, t->shape, sizeof v->shape);
    memcpy(v->stride, t->stride, sizeof v->stride);
}
