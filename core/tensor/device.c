/* device.c - the devices of a context: the CPU, and what plug-ins register.
 *
 * Device 0 is the CPU and always there. A device owns its memory accounting, its default generator and a
 * table of kernels by op index: the CPU's is the generated table at the chosen CPU level (an op without a
 * kernel of that level takes the next lower one), a plug-in's is given by op name. Devices live as long as
 * the context. */
#include "tensor/streams.h"

#include <stdio.h>
#include <stdlib.h>

/* Generated (build/gen/np_registry.c) and ops/registry.c: the ops as this layer sees them. */
extern const np_kernel np_cpu_kernels[][NP_N_ISA];

static void free_tables(neap_ctx *c, np_device *d)
{
    if (d->kern) np_obj_free(c, d->kern, (size_t)np_n_ops_total * sizeof *d->kern);
    if (d->remote) np_obj_free(c, d->remote, (size_t)np_n_ops_total * sizeof *d->remote);
}

/* A device without kernels, appended to the context. */
static np_device *device_add(neap_ctx *c, const neap_backend *b)
{
    if (c->n_devices == NP_MAX_DEVICES)
        return np_fail(c, NEAP_E_DEVICE, "%s: a context has at most %d devices", b->name, NP_MAX_DEVICES);
    np_device *d = np_obj_new(c, sizeof *d);
    if (!d) return NULL;
    d->index = c->n_devices;
    snprintf(d->name, sizeof d->name, "%s", b->name);
    d->backend = *b;
    d->backend.name = d->name;
    d->kern = np_obj_new(c, (size_t)np_n_ops_total * sizeof *d->kern);
    d->remote = b->plugin && d->kern ? np_obj_new(c, (size_t)np_n_ops_total * sizeof *d->remote) : NULL;
    d->generator = d->kern && (d->remote || !b->plugin) ? np_generator_new_default(c) : NULL;
    if (!d->generator || !np_mem_init(&d->mem, c, b->mem.alloc ? &b->mem : NULL)) {
        if (d->generator) neap_generator_free(d->generator);
        free_tables(c, d);
        np_obj_free(c, d, sizeof *d);
        return NULL;
    }
    d->mem.device = d->index;
    d->mem.name = d->name;
    d->mem.exact = b->plugin && b->plugin->exact_memory;
    c->devices[c->n_devices++] = d;
    return d;
}

static void device_drop(neap_ctx *c, np_device *d)
{
    np_streams_close(d);
    np_mem_close(&d->mem);
    neap_generator_free(d->generator);
    if (d->backend.plugin) d->backend.plugin->close(d->backend.user);
    free_tables(c, d);
    np_obj_free(c, d, sizeof *d);
}

/* What NEAP_DEVICE names. Not there: the CPU, and the error waits in the new context. */
static int find_wanted(neap_ctx *c, const char *name)
{
    int found = neap_device_find(c, name);
    if (found >= 0) return found;
    np_error e = np_error_take(c);
    np_fail(c, e.code, "NEAP_DEVICE: %s", e.message);
    return 0;
}

bool np_devices_init(neap_ctx *c)
{
    static const neap_backend cpu = {.size = sizeof cpu, .name = "cpu", .host_memory = true};
    np_device *d = device_add(c, &cpu);
    if (!d) return false;
    d->mem.limit = c->opts.host_limit;
    for (int i = 0; i < np_n_ops_total; i++)
        for (int level = c->isa; level >= 0 && !d->kern[i]; level--) d->kern[i] = np_cpu_kernels[i][level];
    np_kernels_complete(d, d);
    const char *want = getenv("NEAP_DEVICE");
    c->default_device = want && *want ? find_wanted(c, want) : 0;
    return true;
}

void np_devices_close(neap_ctx *c)
{
    while (c->n_devices > 0) {
        c->n_devices--;
        device_drop(c, c->devices[c->n_devices]);
        c->devices[c->n_devices] = NULL;
    }
}

int neap_register_backend(neap_ctx *c, const neap_backend *b)
{
    if (np_pending(c)) return -1;
    if (!b || b->size != sizeof *b || !b->name || !b->name[0] ||
        strlen(b->name) >= sizeof c->devices[0]->name) {
        np_fail(c, NEAP_E_ARG, "a backend needs its size, and a name of 1 to 15 characters");
        return -1;
    }
    for (int i = 0; i < c->n_devices; i++)
        if (strcmp(c->devices[i]->name, b->name) == 0) {
            np_fail(c, NEAP_E_DEVICE, "device %s is registered already", b->name);
            return -1;
        }
    for (const np_kernel_row *r = b->kernels; r && r->name; r++)
        if (np_op_index(r->name) < 0) {
            np_fail(c, NEAP_E_DEVICE, "%s has a kernel for '%s', which is not an op: plug-in and core differ",
                    b->name, r->name);
            return -1;
        }
    for (const np_plugin_row *r = b->plugin ? b->plugin->kernels : NULL; r && r->op; r++)
        if (np_op_index(r->op) < 0) {
            np_fail(c, NEAP_E_DEVICE, "%s has a kernel for '%s', which is not an op: plug-in and core differ",
                    b->name, r->op);
            return -1;
        }
    np_device *d = device_add(c, b);
    if (!d) return -1;
    for (const np_kernel_row *r = b->kernels; r && r->name; r++) d->kern[np_op_index(r->name)] = r->kernel;
    for (const np_plugin_row *r = b->plugin ? b->plugin->kernels : NULL; r && r->op; r++)
        d->remote[np_op_index(r->op)] = r->kernel;
    np_kernels_complete(d, c->devices[0]);
    return d->index;
}

/* ---- public facts */

int neap_device_count(neap_ctx *c) { return c->n_devices; }

const char *neap_device_name(neap_ctx *c, int device)
{
    return device >= 0 && device < c->n_devices ? c->devices[device]->name : NULL;
}

/* "cuda" finds "cuda:0", "cpu:0" finds "cpu". */
static bool is_name(const char *device, const char *name)
{
    size_t n = strlen(name), m = strlen(device);
    if (strcmp(device, name) == 0) return true;
    if (m == n + 2 && strncmp(device, name, n) == 0 && strcmp(device + n, ":0") == 0) return true;
    return n == m + 2 && strncmp(device, name, m) == 0 && strcmp(name + m, ":0") == 0;
}

static int find(const neap_ctx *c, const char *name)
{
    for (int i = 0; i < c->n_devices; i++)
        if (is_name(c->devices[i]->name, name)) return i;
    return -1;
}

int neap_device_find(neap_ctx *c, const char *name)
{
    char known[200] = "", why[300] = "";
    size_t at = 0;
    int found = name ? find(c, name) : -1;
    if (found < 0 && name) { /* not yet: plug-ins are opened when somebody asks for their devices */
        char plugin[16];
        snprintf(plugin, sizeof plugin, "%.*s", (int)strcspn(name, ":"), name);
        if (np_plugin_devices(c, plugin, why, sizeof why) > 0) found = find(c, name);
    }
    if (found >= 0) return found;
    for (int i = 0; i < c->n_devices && at < sizeof known; i++) {
        int w = snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", c->devices[i]->name);
        if (w > 0) at += (size_t)w;
    }
    np_fail(c, NEAP_E_DEVICE, "there is no device '%.40s'%s%s: this context has %s", name ? name : "(null)",
            why[0] ? ", for " : "", why, known);
    return -1;
}

int np_default_device(neap_ctx *c)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_DEVICE);
    return e ? (int)e->value : c->default_device;
}

neap_generator *neap_default_generator(neap_ctx *c, int device)
{
    const np_device *d = np_device_at(c, device);
    return d ? d->generator : NULL;
}

np_device *np_device_at(neap_ctx *c, int index)
{
    if (index >= 0 && index < c->n_devices) return c->devices[index];
    return np_fail(c, NEAP_E_DEVICE, "there is no device number %d: this context has %d", index,
                   c->n_devices);
}

/* ---- memory of a device */

int neap_memory_stats(neap_ctx *c, int device, neap_memory *out)
{
    const np_device *d = np_device_at(c, device);
    if (!d) return -1;
    if (!out) return np_fail(c, NEAP_E_ARG, "memory_stats: the place for the result is NULL"), -1;
    const np_mem *m = &d->mem;
    size_t size = out->size < sizeof *out ? out->size : sizeof *out;
    neap_memory all = {.live = m->live,
                       .peak = m->peak,
                       .limit = m->limit,
                       .reserved = m->reserved,
                       .cached = m->cached,
                       .storages = m->storages,
                       .nodes = c->n_nodes,
                       .slots = c->n_slots,
                       .regions = c->n_regions,
                       .markers = c->n_markers,
                       .pass_entries = c->n_pass_entries,
                       .scratch = m->scratch_peak};
    if (size < sizeof all.size) {
        np_fail(c, NEAP_E_ARG, "neap_memory.size is not set: it must be sizeof(neap_memory)");
        return -1;
    }
    all.size = out->size;
    memcpy(all.by, m->by, sizeof all.by);
    memcpy(all.peak_by, m->peak_by, sizeof all.peak_by);
    memcpy(out, &all, size);
    return 0;
}

void neap_reset_peak(neap_ctx *c, int device)
{
    if (device >= 0 && device < c->n_devices) np_mem_reset_peak(&c->devices[device]->mem);
}

int neap_memory_limit(neap_ctx *c, int device, int64_t bytes)
{
    np_device *d = np_device_at(c, device);
    if (!d) return -1;
    if (bytes < 0) {
        np_fail(c, NEAP_E_ARG, "a memory limit of %lld bytes: it must be 0 (none) or more", (long long)bytes);
        return -1;
    }
    d->mem.limit = bytes;
    return 0;
}

void neap_memory_trim(neap_ctx *c)
{
    for (int i = 0; i < c->n_devices; i++) np_mem_trim(&c->devices[i]->mem);
}
