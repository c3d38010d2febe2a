/* recompute.c - running a region's function again, and handing out what it saves.
 *
 * Positions never shift: the i-th save of a recompute belongs to marker i, dead or alive. A recompute stops at
 * the last live marker (early stop) where the running code can be stopped; elsewhere it runs on. A failed
 * recompute leaves no trace: no entries, no mark that it was done, all ambient state as before. */
#include "checkpoint/oplog.h"
#include "checkpoint/recompute.h"
#include "checkpoint/selective.h"
#include "tensor/origin.h"

#include <stdio.h>

typedef struct replay {
    neap_region *r;
    uint64_t key;
    size_t count;  /* saves so far */
    bool enough;   /* everything alive has been saved: stop as soon as possible */
    size_t bad_at; /* 1 + first position whose metadata differs */
    np_saved_meta bad;
    size_t strayed_at; /* 1 + first position whose value has another origin, and the op that saves it */
    const char *strayed_op;
    char strayed_line[96];
    size_t changed_at; /* 1 + first position whose bytes differ (determinism "values") */
    np_oplog *log;
    np_hook_pair pair;
} replay;

/* ---- entries */

static np_entry *find_entry(np_marker *m, uint64_t key)
{
    for (np_entry *e = m->entries; e; e = e->next)
        if (e->key == key) return e;
    return NULL;
}

static bool add_entry(neap_ctx *c, np_marker *m, uint64_t key, neap_tensor *t_take)
{
    np_entry *e = np_obj_new(c, sizeof *e);
    if (!e) {
        np_drop(t_take);
        return false;
    }
    e->key = key;
    e->t = t_take;
    e->version = t_take->st->version.n;
    e->next = m->entries;
    m->entries = e;
    c->n_pass_entries++;
    return true;
}

static void drop_key(neap_region *r, uint64_t key)
{
    neap_ctx *c = r->c;
    for (size_t i = 0; i < r->n; i++) {
        np_marker *m = r->markers[i];
        for (np_entry **p = m ? &m->entries : NULL; p && *p;) {
            np_entry *e = *p;
            if (e->key != key) {
                p = &e->next;
                continue;
            }
            *p = e->next;
            np_drop(e->t);
            np_obj_free(c, e, sizeof *e);
            c->n_pass_entries--;
        }
    }
}

/* ---- passes of a region */

static np_region_pass *find_pass(neap_region *r, uint64_t key)
{
    for (np_region_pass *p = r->c->region_passes; p; p = p->next)
        if (p->region == r && p->key == key) return p;
    return NULL;
}

static void unlink_pass(neap_ctx *c, np_region_pass *p)
{
    if (p->prev) p->prev->next = p->next;
    else c->region_passes = p->next;
    if (p->next) p->next->prev = p->prev;
    np_obj_free(c, p, sizeof *p);
}

static bool link_pass(neap_region *r, uint64_t key)
{
    np_region_pass *p = np_obj_new(r->c, sizeof *p);
    if (!p) return false;
    p->region = r;
    p->key = key;
    p->next = r->c->region_passes;
    if (p->next) p->next->prev = p;
    r->c->region_passes = p;
    return true;
}

void np_region_forget_passes(neap_region *r)
{
    np_region_pass *next;
    for (np_region_pass *p = r->c->region_passes; p; p = next) {
        next = p->next;
        if (p->region == r) unlink_pass(r->c, p);
    }
}

void np_region_pass_end(neap_ctx *c, uint64_t id)
{
    np_region_pass *p = c->region_passes;
    while (p) {
        if (p->key != id) {
            p = p->next;
            continue;
        }
        neap_region *r = p->region;
        unlink_pass(c, p);
        drop_key(r, id);
        p = c->region_passes; /* dropping values may have freed other regions */
    }
}

/* ---- the replay pair */

static bool same_meta(const np_saved_meta *m, const neap_tensor *t)
{
    if (m->dtype != t->dtype || m->ndim != t->ndim || m->device != t->st->dev->index) return false;
    for (int d = 0; d < t->ndim; d++)
        if (m->shape[d] != t->shape[d]) return false;
    return true;
}

static void check_meta(replay *p, size_t i, const neap_tensor *t)
{
    if (p->r->check == NEAP_CHECK_NONE || p->bad_at || same_meta(&p->r->metas[i], t)) return;
    p->bad_at = i + 1;
    p->bad.dtype = t->dtype;
    p->bad.ndim = t->ndim;
    p->bad.device = (uint8_t)t->st->dev->index;
    memcpy(p->bad.shape, t->shape, sizeof(int64_t) * t->ndim);
}

/* A tensor that the function took from outside must be the same one, unchanged. */
static bool check_captured(replay *p, size_t i, const neap_tensor *t)
{
    neap_region *r = p->r;
    const np_saved_meta *m = &r->metas[i];
    if (!m->captured || !m->cell || r->ignore_mismatch) return true;
    char text[160];
    np_tensor_text(text, sizeof text, t);
    if (&t->st->version != m->cell)
        return r->check == NEAP_CHECK_NONE ||
               np_fail(r->c, NEAP_E_INPLACE,
                       "%s: the tensor that the function captures at position %zu (%s now) was replaced by "
                       "another "
                       "between forward and backward; pass it as an argument, or keep it",
                       r->name, i + 1, text);
    if (m->cell->n == m->version) return true;
    return np_fail(
        r->c, NEAP_E_INPLACE,
        "%s: a tensor captured by the function was changed in place between forward and backward: %s at "
        "position %zu, version %llu expected, %llu found; backward before the change (an optimizer step?)",
        r->name, text, i + 1, (unsigned long long)m->version, (unsigned long long)m->cell->n);
}

/* Is it made by the same ops with the same numbers, out of the same tensors? Only where a gradient may need it. */
static void check_origin(replay *p, size_t i, neap_tensor *t)
{
    neap_region *r = p->r;
    const uint64_t was = r->metas[i].origin;
    if (!was || p->strayed_at || !r->markers[i]) return;
    const uint64_t now = np_origin_now(r->c, t);
    if (!now || now == was) return;
    p->strayed_at = i + 1;
    p->strayed_op = r->c->op_name;
    if (r->where) r->where(r->c, r->recompute.user, p->strayed_line, sizeof p->strayed_line);
}

static bool check_value(replay *p, size_t i, neap_tensor *t)
{
    uint64_t hash;
    const uint64_t was = p->r->metas[i].hash;
    if (p->r->check != NEAP_CHECK_VALUES || p->changed_at || !was || np_is_dry(t)) return true;
    if (neap_hash(p->r->c, t, &hash)) return false;
    if (hash != was) p->changed_at = i + 1;
    return true;
}

static bool beyond(replay *p)
{
    neap_region *r = p->r;
    if (!r->completed) {
        r->ignore_mismatch = true;
        return true;
    }
    if (p->enough || r->early_stop || r->ignore_mismatch) return true;
    return np_fail(
        r->c, NEAP_E_MORE_SAVED,
        "%s: the recompute saves more values than the forward's %zu; the function depends on something "
        "that changed (a global, a counter, data); debug = true shows both runs",
        r->name, r->n);
}

/* Stops the running code, if it can be stopped here. */
static bool stop_if_possible(replay *p)
{
    neap_ctx *c = p->r->c;
    if (c->stop_barrier > 0 || (c->can_stop && !c->can_stop(c->can_stop_user))) return true;
    return np_fail(c, NEAP_E_STOP, "a recompute has all it needs");
}

static bool replay_pack(neap_ctx *c, np_hook_pair *self, np_slot *s, neap_tensor *t,
                        struct neap_node *owner_node)
{
    replay *p = self->owner;
    neap_region *r = p->r;
    size_t i = p->count++;
    if (i >= r->n) {
        if (!beyond(p)) return false;
    } else {
        check_meta(p, i, t);
        check_origin(p, i, t);
        if (!check_captured(p, i, t) || !check_value(p, i, t)) return false;
        np_marker *m = r->markers[i];
        if (m && !find_entry(m, p->key)) {
            neap_tensor *kept = np_requires_grad(t) ? np_tensor_alias(t) : np_hold_ref(t);
            if (!kept || !add_entry(c, m, p->key, kept)) return false;
        }
        if (r->early_stop && i + 1 >= r->last_live) p->enough = true;
    }
    if (p->enough && !stop_if_possible(p)) return false;
    return np_slot_hold(s, t, owner_node);
}

/* Slots of the throw-away graph hold their values themselves. */
static neap_tensor *no_unpack(neap_ctx *c, np_slot *s)
{
    (void)s;
    return np_fail(c, NEAP_E_INTERNAL, "a slot of a recompute has no marker");
}

/* ---- recomputing */

static bool fail_meta(replay *p, const char *tip, const char *more)
{
    char was[128], is[128];
    neap_region *r = p->r;
    const np_saved_meta *m = &r->metas[p->bad_at - 1];
    return np_fail_lines(
        r->c, NEAP_E_META,
        "%s: the recompute saved another tensor at position %zu: %s %s in the forward, %s %s now; the "
        "function depends on something that changed%s%s",
        r->name, p->bad_at, np_shape_text(was, sizeof was, m->ndim, m->shape),
        np_dtype_name((neap_dtype)m->dtype), np_shape_text(is, sizeof is, p->bad.ndim, p->bad.shape),
        np_dtype_name((neap_dtype)p->bad.dtype), tip, more);
}

static bool fail_origin(replay *p, const char *tip, const char *more)
{
    return np_fail_lines(
        p->r->c, NEAP_E_OPS,
        "%s: what %s saves at position %zu%s%s is made otherwise than in the forward: by other ops, "
        "with other numbers, or out of other tensors; the function depends on something that changed "
        "(a variable, math.random, a tensor changed in place): pass it as an argument, decide it in "
        "checkpoint.once, or switch the check off with determinism_check = \"none\"%s%s",
        p->r->name, p->strayed_op ? p->strayed_op : "the function", p->strayed_at,
        p->strayed_line[0] ? " at " : "", p->strayed_line, tip, more);
}

/* Where the two runs part, with the lines of the script if the host knows them. */
static void divergence(replay *p, char *buf, size_t n)
{
    const np_oplog *a = p->r->log, *b = p->log;
    buf[0] = 0;
    if (!a || !b || a->failed || b->failed) return;
    if (p->r->debug) {
        np_oplog_diff(a, b, buf, n);
        return;
    }
    size_t i = b->differs ? b->differs - 1 : b->n;
    snprintf(buf, n, "; op %zu was %s%s%s in the forward and is %s%s%s now", i + 1,
             i < a->n ? np_ops[a->v[i].op]->name : "none", i < a->n && a->v[i].where[0] ? " at " : "",
             i < a->n ? a->v[i].where : "", i < b->n ? np_ops[b->v[i].op]->name : "none",
             i < b->n && b->v[i].where[0] ? " at " : "", i < b->n ? b->v[i].where : "");
}

static bool check(replay *p)
{
    neap_region *r = p->r;
    char more[2000];
    if (r->ignore_mismatch) return true;
    divergence(p, more, sizeof more);
    const char *tip = r->debug ? "" : "; debug = true shows both runs";
    if (r->check >= NEAP_CHECK_OPS && p->log && !p->log->failed && p->log->differs)
        return np_fail_lines(r->c, NEAP_E_OPS,
                             "%s: the recompute runs other ops, or the same with other numbers%s%s", r->name,
                             tip, more);
    if (!p->enough && p->count != r->n)
        return np_fail_lines(
            r->c, NEAP_E_COUNT,
            "%s: the forward saved %zu values, the recompute %zu; the function depends on something that "
            "changed (a global, a branch on data, a cache)%s%s",
            r->name, r->n, p->count, tip, more);
    if (p->bad_at) return fail_meta(p, tip, more);
    if (p->strayed_at) return fail_origin(p, tip, more);
    if (p->changed_at)
        return np_fail_lines(
            r->c, NEAP_E_VALUES,
            "%s: the recompute saved other values at position %zu of %zu; something outside of the function "
            "changed (a captured tensor, a generator, the clock)%s%s",
            r->name, p->changed_at, r->n, tip, more);
    return true;
}

bool np_ranges_for_replay(neap_ctx *c, const np_range_log *from, np_range_log *to)
{
    memset(to, 0, sizeof *to);
    if (from->n) {
        to->v = np_array_grow(c, NULL, &to->cap, from->n, sizeof *to->v);
        if (!to->v) return false;
        memcpy(to->v, from->v, sizeof *to->v * from->n);
        to->n = from->n;
    }
    np_range_log_rewind(to);
    return true;
}

/* Calls the function; true when everything it had to save was saved. */
static bool call_function(replay *p, neap_tensor **inputs)
{
    neap_region *r = p->r;
    neap_ctx *c = r->c;
    neap_values v = {.size = sizeof v, .in = inputs, .n_in = r->n_inputs};
    neap_fn fn = r->recompute;
    int barrier = c->stop_barrier;
    const char *op = c->op_name;
    c->stop_barrier = 0;
    c->op_name = NULL;
    int status = np_call_fn(c, fn, &v);
    c->op_name = op;
    c->stop_barrier = barrier;
    for (int i = 0; i < v.n_out; i++) np_drop(v.out[i]);
    /* Stopped, or failed after all was saved. Status 2: code that closes what the function had open failed. */
    if (p->enough && np_pending(c) && status != 2) np_forgive(c, NULL);
    if (status && !p->enough && !np_pending(c))
        np_fail(c, NEAP_E_INTERNAL, "%s: the recompute failed without saying why", r->name);
    return !np_pending(c);
}

/* The same, with the state of the forward and the replay pair in force, which go whatever happens. */
static bool run_function(replay *p, np_range_log *ranges, neap_tensor **inputs)
{
    neap_region *r = p->r;
    neap_ctx *c = r->c;
    np_entered e;
    if (!np_setting_enter(c, &r->setting, r->preserve_rng ? ranges : NULL, p->log ? &p->log->tracer : NULL,
                          r->name, &e))
        return false;
    uint64_t origins = np_ambient_push(c, NP_AMB_ORIGIN, (int64_t)c->next_storage, c->pass, r->name, NULL);
    uint64_t hooks = origins ? np_ambient_push(c, NP_AMB_HOOKS, 0, &p->pair, r->name, NULL) : 0;
    bool ok = hooks && call_function(p, inputs);
    np_ambient_pop(c, hooks);
    np_ambient_pop(c, origins);
    np_setting_leave(c, &e);
    return ok;
}

/* A copy of the input, from hooks or the recompute around, has the input's origin. */
static neap_tensor *unpack_input(neap_region *r, int i)
{
    neap_tensor *t = np_slot_unpack(r->c, &r->inputs[i], NULL);
    if (t && r->input_origins[i] && t->st->id != r->input_storages[i]) np_origin_set(t, r->input_origins[i]);
    return t;
}

static bool recompute(neap_region *r, uint64_t key)
{
    neap_ctx *c = r->c;
    if (c->region_depth_limit && c->region_depth >= c->region_depth_limit)
        return np_fail(
            c, NEAP_E_NESTED_DEPTH,
            "%s: recomputes are nested %d deep; checkpoint fewer levels, or backward outside of the function",
            r->name, c->region_depth);
    replay p = {.r = r, .key = key};
    p.pair = (np_hook_pair){.refs = 1, .pack = replay_pack, .unpack = no_unpack, .owner = &p, .replay = true};
    np_range_log ranges = {0};
    size_t bytes = sizeof(neap_tensor *) * (size_t)(r->n_inputs + 1);
    neap_tensor **inputs = np_obj_new(c, bytes);
    if (!inputs) return false;
    c->region_depth++;
    for (int i = 0; i < r->n_inputs; i++) inputs[i] = unpack_input(r, i);
    if (r->log && !np_pending(c)) p.log = np_oplog_new(r, r->log);
    bool ok =
        !np_pending(c) && np_ranges_for_replay(c, &r->ranges, &ranges) && run_function(&p, &ranges, inputs);
    for (int i = 0; i < r->n_inputs; i++) np_drop(inputs[i]);
    np_obj_free(c, inputs, bytes);
    np_range_log_free(c, &ranges);
    c->region_depth--;
    ok = ok && check(&p) && link_pass(r, key);
    np_oplog_free(c, p.log);
    for (neap_selective *s = r->selective; ok && s; s = s->next) np_selective_commit(s);
    if (!ok) drop_key(r, key);
    return ok;
}

static neap_tensor *fetch(neap_ctx *c, np_marker *m, uint64_t key)
{
    neap_region *r = m->region;
    np_entry *e = find_entry(m, key);
    np_ambient_entry *group = np_ambient_get(c, NP_AMB_GROUP);
    if (e && !e->t)
        return np_fail(c, NEAP_E_UNPACK_TWICE, "%s: a recomputed value was fetched twice in one %s; %s",
                       r->name, group && group->payload ? "execution group" : "backward",
                       group && group->payload
                           ? "backwards of one group must not overlap: none may need a value that "
                             "another has used"
                           : "read saved values once and keep them");
    if (!e) return np_fail(c, NEAP_E_INTERNAL, "%s: a recompute left marker %zu empty", r->name, m->index);
    if (r->metas[m->index].mutated || e->t->st->version.n != e->version) {
        char text[160];
        return np_fail(c, NEAP_E_INPLACE,
                       "%s: a value saved for backward was changed in place inside the function: %s at "
                       "position %zu; use "
                       "the out-of-place form",
                       r->name, np_tensor_text(text, sizeof text, e->t), m->index + 1);
    }
    neap_tensor *t = e->t;
    e->t = NULL;
    return t;
}

/* The running group's key, else the pass's. Outside both every read has a key of its own and leaves nothing behind. */
static uint64_t key_of(neap_ctx *c, bool *alone)
{
    np_ambient_entry *group = np_ambient_get(c, NP_AMB_GROUP);
    const np_pass_facts *pass = np_current_pass(c);
    *alone = false;
    if (group && group->payload) return ((neap_group *)group->payload)->key;
    *alone = pass == NULL;
    return pass ? pass->id : ++c->next_pass;
}

neap_tensor *np_region_unpack(neap_ctx *c, np_slot *s)
{
    np_marker *m = s->packed;
    neap_region *r = m->region;
    bool alone;
    uint64_t key = key_of(c, &alone);
    r->refs++; /* the function may release the last marker */
    neap_tensor *t = NULL;
    if (find_pass(r, key) || recompute(r, key)) t = fetch(c, m, key);
    if (alone) {
        np_region_pass *p = find_pass(r, key);
        if (p) unlink_pass(c, p);
        drop_key(r, key);
    }
    np_region_drop(r);
    return t;
}
