/* region.c - the life of a region: its forward, its markers, its end. Recomputing is recompute.c.
 * See region.h for who owns whom. */
#include "checkpoint/region.h"
#include "autograd/watch.h"
#include "checkpoint/oplog.h"
#include "checkpoint/recompute.h"
#include "checkpoint/selective.h"
#include "tensor/origin.h"

/* ---- markers */

static void drop_entries(np_marker *m)
{
    neap_ctx *c = m->region->c;
    while (m->entries) {
        np_entry *e = m->entries;
        m->entries = e->next;
        np_drop(e->t);
        np_obj_free(c, e, sizeof *e);
        c->n_pass_entries--;
    }
}

static void marker_free(np_marker *m)
{
    neap_region *r = m->region;
    neap_ctx *c = r->c;
    drop_entries(m);
    r->markers[m->index] = NULL;
    while (r->last_live && !r->markers[r->last_live - 1]) r->last_live--;
    np_obj_free(c, m, sizeof *m);
    c->n_markers--;
    np_region_drop(r);
}

static void drop_marker(np_slot *s) { marker_free(s->packed); }

/* ---- the record pair */

static bool is_input(const neap_region *r, const neap_tensor *t)
{
    for (int i = 0; i < r->n_inputs; i++)
        if (r->input_storages[i] == t->st->id) return true;
    return false;
}

/* Cells are watched without keeping bytes alive: captured values until the region dies, values made inside until
 * the forward returns. */
static bool fill_meta(neap_region *r, np_saved_meta *m, neap_tensor *t)
{
    memset(m, 0, sizeof *m);
    m->dtype = t->dtype;
    m->ndim = t->ndim;
    m->device = (uint8_t)t->st->dev->index;
    memcpy(m->shape, t->shape, sizeof(int64_t) * t->ndim);
    m->storage = t->st->id;
    m->captured = t->st->id <= r->first_storage && !is_input(r, t);
    m->version = t->st->version.n;
    m->origin = r->check == NEAP_CHECK_NONE ? 0 : np_origin_now(r->c, t);
    if (r->check == NEAP_CHECK_VALUES && !np_is_dry(t) && neap_hash(r->c, t, &m->hash)) return false;
    m->cell = &t->st->version;
    m->cell->refs++;
    return true;
}

static void drop_cell(neap_region *r, np_saved_meta *m)
{
    np_version_free(r->c, m->cell);
    m->cell = NULL;
}

/* The forward is over: was a value changed in place after it was saved? Then plain autograd would refuse, too. */
static void settle_cells(neap_region *r)
{
    for (size_t i = 0; i < r->n; i++) {
        np_saved_meta *m = &r->metas[i];
        if (!m->cell) continue;
        m->mutated = m->cell->n != m->version;
        if (!m->captured) drop_cell(r, m);
    }
}

static bool record_pack(neap_ctx *c, np_hook_pair *self, np_slot *s, neap_tensor *t,
                        struct neap_node *owner_node)
{
    neap_region *r = self->owner;
    (void)owner_node;
    np_marker **v = np_array_grow(c, r->markers, &r->cap, r->n + 1, sizeof *v);
    if (!v) return false;
    r->markers = v;
    np_saved_meta *metas = np_array_grow(c, r->metas, &r->cap_meta, r->n + 1, sizeof *metas);
    if (!metas) return false;
    r->metas = metas;
    np_marker *m = np_obj_new(c, sizeof *m);
    if (!m) return false;
    if (!fill_meta(r, &r->metas[r->n], t)) {
        np_obj_free(c, m, sizeof *m);
        return false;
    }
    m->region = r;
    m->index = r->n;
    r->refs++;
    r->markers[r->n++] = m;
    r->last_live = r->n;
    c->n_markers++;
    s->state = NP_SLOT_REGION;
    s->packed = m;
    s->pair = self;
    self->refs++;
    return true;
}

/* ---- regions */

void np_region_drop(neap_region *r)
{
    if (--r->refs > 0) return;
    neap_ctx *c = r->c;
    np_region_forget_passes(r);
    while (r->selective) {
        neap_selective *s = r->selective;
        r->selective = s->next;
        np_selective_clear(s);
        neap_selective_free(c, s);
    }
    for (int i = 0; i < r->n_inputs; i++) np_slot_release(c, &r->inputs[i]);
    if (r->inputs) np_obj_free(c, r->inputs, sizeof *r->inputs * (size_t)r->n_inputs);
    if (r->input_storages) np_obj_free(c, r->input_storages, sizeof *r->input_storages * (size_t)r->n_inputs);
    if (r->input_origins) np_obj_free(c, r->input_origins, sizeof *r->input_origins * (size_t)r->n_inputs);
    if (r->recompute.release) r->recompute.release(r->recompute.user);
    np_range_log_free(c, &r->ranges);
    np_setting_free(c, &r->setting);
    np_oplog_free(c, r->log);
    for (size_t i = 0; i < r->n; i++) drop_cell(r, &r->metas[i]);
    np_array_free(c, r->markers);
    np_array_free(c, r->metas);
    np_hook_pair_drop(c, r->pair);
    c->n_regions--;
    np_obj_free(c, r, sizeof *r);
}

void neap_region_opts_init(neap_region_opts *o)
{
    if (!o) return;
    memset(o, 0, sizeof *o);
    o->size = sizeof *o;
    o->preserve_rng_state = o->early_stop = 1;
    o->check = NEAP_CHECK_DEFAULT;
    o->name = "a checkpoint";
}

static bool save_inputs(neap_ctx *c, neap_region *r, neap_tensor *const *inputs, int n)
{
    if (n == 0) return true;
    r->inputs = np_obj_new(c, sizeof *r->inputs * (size_t)n);
    if (!r->inputs) return false;
    r->n_inputs = n;
    r->input_storages = np_obj_new(c, sizeof *r->input_storages * (size_t)n);
    r->input_origins = r->input_storages ? np_obj_new(c, sizeof *r->input_origins * (size_t)n) : NULL;
    if (!r->input_origins) return false;
    for (int i = 0; i < n; i++) {
        if (!np_slot_pack(c, &r->inputs[i], inputs[i], NULL, 0) || !np_slot_detach(&r->inputs[i]))
            return false;
        r->input_storages[i] = inputs[i] ? inputs[i]->st->id : 0;
    }
    return true;
}

/* By hand: formatting would be a tenth of an empty checkpoint. */
static void name_it(neap_region *r, const char *name)
{
    static const char at[] = "the checkpoint at ";
    size_t k = strchr(name, ':') ? sizeof at - 1 : 0;
    memcpy(r->name, at, k);
    memcpy(r->name + k, name, strnlen(name, sizeof r->name - k - 1)); /* the rest is 0 */
}

static neap_region *region_new(neap_ctx *c, const neap_region_opts *o)
{
    neap_region *r = np_obj_new(c, sizeof *r);
    if (!r) return NULL;
    c->n_regions++;
    r->refs = 1;
    r->c = c;
    name_it(r, o->name ? o->name : "a checkpoint");
    r->preserve_rng = o->preserve_rng_state != 0;
    np_ambient_entry *stop = np_ambient_get(c, NP_AMB_EARLY_STOP), *debug = np_ambient_get(c, NP_AMB_DEBUG);
    r->early_stop = stop ? stop->value != 0 : o->early_stop != 0;
    r->debug = debug && debug->value >= 0 ? debug->value != 0 : o->debug != 0;
    r->where = o->where;
    r->check = o->check;
    r->recompute = o->recompute;
    if (r->recompute.retain) r->recompute.retain(r->recompute.user);
    bool follow = r->debug || r->check >= NEAP_CHECK_OPS;
    if (follow) r->log = np_oplog_new(r, NULL);
    r->pair = !follow || r->log ? np_obj_new(c, sizeof *r->pair) : NULL;
    if (!r->pair || !np_setting_take(c, &r->setting)) {
        np_region_drop(r);
        return NULL;
    }
    r->pair->refs = 1;
    r->pair->pack = record_pack;
    r->pair->unpack = np_region_unpack;
    r->pair->drop = drop_marker;
    r->pair->owner = r;
    c->on_pass_end = np_region_pass_end;
    return r;
}

/* Notes origins from here on; a region inside another one goes on with what that one knows. */
static bool begin_origins(neap_region *r, neap_tensor *const *inputs)
{
    neap_ctx *c = r->c;
    if (r->check == NEAP_CHECK_NONE) return true;
    const np_ambient_entry *around = np_ambient_get(c, NP_AMB_ORIGIN);
    int64_t first = around ? around->value : (int64_t)c->next_storage;
    void *pass = around ? around->payload : c->pass;
    r->origin_id = np_ambient_push(c, NP_AMB_ORIGIN, first, pass, r->name, NULL);
    for (int i = 0; r->origin_id && i < r->n_inputs; i++) r->input_origins[i] = np_origin_now(c, inputs[i]);
    return r->origin_id != 0;
}

/* Ends the forward's ambient entries. */
static void leave(neap_region *r)
{
    if (r->origin_id) np_ambient_pop(r->c, r->origin_id);
    if (r->trace_id) np_ambient_pop(r->c, r->trace_id);
    if (r->ranges_id) np_ambient_pop(r->c, r->ranges_id);
    if (r->hooks_id) neap_end(r->c, r->hooks_id); /* it holds the pair */
    r->origin_id = r->trace_id = r->ranges_id = r->hooks_id = 0;
}

neap_region *neap_region_begin(neap_ctx *c, const neap_region_opts *o, neap_tensor *const *inputs, int n)
{
    if (np_pending(c) || !np_grad_on(c) || !np_hooks_allowed(c)) return NULL;
    if (!o || !o->recompute.call || n < 0 || (n > 0 && !inputs))
        return np_fail(
            c, NEAP_E_ARG,
            "checkpoint: options with a function to recompute, and the list of inputs, are needed");
    neap_region *r = region_new(c, o);
    if (!r) return NULL;
    if (!save_inputs(c, r, inputs, n) || !begin_origins(r, inputs)) goto fail;
    r->hooks_id = np_ambient_push(c, NP_AMB_HOOKS, 0, r->pair, r->name, NULL);
    if (!r->hooks_id) goto fail;
    r->pair->refs++; /* the entry's: its coroutine may die first, and neap_x_pop_owner end it */
    if (r->preserve_rng) {
        r->ranges_id = np_ambient_push(c, NP_AMB_REGION, 0, &r->ranges, r->name, NULL);
        if (!r->ranges_id) goto fail;
    }
    if (r->log) {
        r->trace_id = np_ambient_push(c, NP_AMB_TRACE, np_trace_value(c), &r->log->tracer, r->name, NULL);
        if (!r->trace_id) goto fail;
    }
    r->first_storage = c->next_storage;
    return r;
fail:
    leave(r);
    np_region_drop(r);
    return NULL;
}

void neap_region_end(neap_ctx *c, neap_region *r, int ok)
{
    (void)c;
    if (!r) return; /* grad mode was off at the begin */
    leave(r);
    r->completed = ok != 0;
    settle_cells(r);
    np_region_drop(r);
}

int neap_checkpoint(neap_ctx *c, neap_fn fn, neap_tensor *const *inputs, int n, neap_tensor **results,
                    int *n_results, const neap_region_opts *o)
{
    neap_region_opts opts;
    neap_region_opts_init(&opts);
    if (o) opts = *o;
    opts.recompute = fn;
    if (n_results) *n_results = 0;
    if (np_pending(c)) return 1;
    if (!fn.call || !results || !n_results) {
        np_fail(c, NEAP_E_ARG, "checkpoint: the function, or the place for its results, is missing");
        return 1;
    }
    neap_region *r = neap_region_begin(c, &opts, inputs, n);
    if (!r && np_pending(c)) return 1;
    neap_values v = {.size = sizeof v, .in = inputs, .n_in = n};
    int status = np_call_fn(c, fn, &v);
    if (status && !np_pending(c))
        np_fail(c, NEAP_E_INTERNAL, "the checkpointed function failed without saying why");
    bool ok = !np_pending(c);
    if (r) neap_region_end(c, r, ok);
    for (int i = 0; i < v.n_out; i++) {
        if (ok) results[(*n_results)++] = v.out[i];
        else np_drop(v.out[i]);
    }
    return !ok;
}

uint64_t neap_early_stop_begin(neap_ctx *c, int on)
{
    return np_ambient_push(c, NP_AMB_EARLY_STOP, on != 0, NULL, "set_checkpoint_early_stop", NULL);
}

uint64_t neap_checkpoint_debug_begin(neap_ctx *c, int on)
{
    return np_ambient_push(c, NP_AMB_DEBUG, on, NULL, "set_checkpoint_debug_enabled", NULL);
}

neap_region *np_recording_region(neap_ctx *c)
{
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_HOOKS);
    np_hook_pair *p = e ? e->payload : NULL;
    return p && p->pack == record_pack ? p->owner : NULL;
}

int neap_in_recompute(neap_ctx *c)
{
    np_ambient_entry *e = np_ambient_get(c, NP_AMB_RECOMPUTE);
    return e && e->value;
}
