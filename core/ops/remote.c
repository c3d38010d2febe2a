/* remote.c - calling kernels on a device that a plug-in brings.
 *
 * Where the plug-in has a kernel, it gets the call in plain C types (tensor/plugin.h). Where it has none or hands the
 * call back, the CPU's kernel works on copies in host memory and the results go back: right, slow, and counted
 * (np_op_count.staged). The copies are contiguous, and hold the same bits. */
#include "ops/op.h"
#include "tensor/streams.h"

enum { FEW = 8 };

/* ---- the plug-in's kernels */

typedef struct taken { /* scratch of one call */
    void *p;
    size_t bytes;
    struct taken *next;
} taken;

static np_mem *memory_of(const np_call *k)
{
    const neap_ctx *c = k->ctx;
    for (int i = 0; i < c->n_devices; i++)
        if (c->devices[i]->backend.user == k->device && c->devices[i]->remote) return &c->devices[i]->mem;
    return NULL;
}

static void fail(neap_ctx *c, neap_code code, const char *text) { np_fail(c, code, "%s", text); }

static void *scratch(const np_call *k, size_t bytes)
{
    neap_ctx *c = k->ctx;
    taken *t = np_obj_new(c, sizeof *t), **head = k->taken;
    if (!t) return NULL;
    t->p = np_mem_take_scratch(memory_of(k), bytes);
    if (!t->p) {
        np_obj_free(c, t, sizeof *t);
        return NULL;
    }
    t->bytes = bytes;
    t->next = *head;
    return *head = t, t->p;
}

/* The stream in force goes on after those that the operands come from. */
static bool order(np_frame *f)
{
    bool ok = true;
    for (int i = 0; ok && i < f->n_in; i++)
        if (f->in[i] && f->in[i]->st->dev == f->dev) ok = np_reads(f->c, f->in[i]->st);
    for (int i = 0; ok && i < f->n_out; i++) ok = np_writes(f->c, f->out[i]->st);
    return ok;
}

bool np_remote_kernel(np_frame *f)
{
    static const np_host host = {sizeof host, fail, scratch};
    neap_ctx *c = f->c;
    const np_device *d = f->dev;
    const np_op *impl = f->op->base ? f->op->base : f->op;
    np_operand few[FEW], out[NP_MAX_OUT], *in = few;
    taken *list = NULL;
    size_t bytes = sizeof *in * (size_t)f->n_in;
    if (d->streams && !order(f)) return false;
    if (f->n_in > FEW && !(in = np_obj_new(c, bytes))) return false;
    for (int i = 0; i < f->n_in; i++) np_operand_of(&in[i], f->in[i]);
    for (int i = 0; i < f->n_out; i++) np_operand_of(&out[i], f->out[i]);
    np_call k = {.host = &host,
                 .ctx = c,
                 .device = d->backend.user,
                 .op = impl->name,
                 .in = in,
                 .out = out,
                 .n_in = f->n_in,
                 .n_out = f->n_out,
                 .attr = f->attr,
                 .rng = f->rng,
                 .compute = f->compute,
                 .taken = &list};
    const uint64_t pressed = d->mem.n_press;
    int result = d->remote[impl->index](&k);
    for (taken *t; (t = list);) {
        list = t->next;
        np_mem_give_scratch(memory_of(&k), t->p, t->bytes);
        np_obj_free(c, t, sizeof *t);
    }
    if (in != few) np_obj_free(c, in, bytes);
    if (result > 0) return np_staged_kernel(f);
    /* Who made room for scratch may have let another stream wait for this one before it had all its work. */
    if (d->streams && d->mem.n_press != pressed && !order(f)) return false;
    return result == 0 || np_fail(c, NEAP_E_INTERNAL, "the kernel of %s failed without saying why", d->name);
}

/* ---- the CPU's kernels */

static bool fetch_inputs(np_frame *f, neap_tensor **host)
{
    for (int i = 0; i < f->n_in; i++) {
        neap_tensor *t = f->in[i];
        if (!t) continue;
        host[i] = t->number ? np_hold_ref(t) : np_to_host(f->c, t);
        if (!host[i]) return false;
    }
    return true;
}

/* In place: result 0 is input 0 again, so the host's copy of it is, too. */
static bool make_results(np_frame *f, np_frame *h)
{
    neap_ctx *c = f->c;
    for (int j = 0; j < f->n_out; j++) {
        const neap_tensor *t = f->out[j];
        h->out[j] = j == 0 && f->op->tags & NP_INPLACE
                        ? np_hold_ref(h->in[0])
                        : np_tensor_new(c, c->devices[0], (neap_dtype)t->dtype, t->ndim, t->shape);
        if (!h->out[j]) return false;
    }
    return true;
}

bool np_staged_kernel(np_frame *f)
{
    neap_ctx *c = f->c;
    neap_tensor *few[FEW] = {0}, **in = few;
    size_t bytes = sizeof *in * (size_t)f->n_in;
    if (f->n_in > FEW && !(in = np_obj_new(c, bytes))) return false;
    np_frame h = *f;
    h.in = in;
    h.dev = c->devices[0];
    for (int j = 0; j < NP_MAX_OUT; j++) h.out[j] = NULL;
    c->counts[f->op->index].staged++;
    bool ok = fetch_inputs(f, in) && make_results(f, &h) && h.dev->kern[f->op->index](&h) && !np_pending(c);
    for (int j = 0; ok && j < f->n_out; j++) ok = np_copy_into(c, f->out[j], h.out[j]);
    for (int j = 0; j < f->n_out; j++) np_drop(h.out[j]);
    for (int i = 0; i < f->n_in; i++) np_drop(in[i]);
    if (in != few) np_obj_free(c, in, bytes);
    return ok || np_fail(c, NEAP_E_INTERNAL, "the kernel failed without saying why");
}
