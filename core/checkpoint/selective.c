/* selective.c - selective checkpointing: a store of op results, filled by a recorder around the forward and emptied by
 * a replayer around a recompute. Both are inner modes: they sit below recording, so nodes are built as usual.
 *
 * The store is ordered by op and by the n-th run of that op. What it keeps are aliases without a graph: nothing here
 * reaches the region. When the forward is over, a saved result that no gradient needs is let go (needs_of): "save
 * everything" costs what no checkpoint costs. The replay gives such a result a shape and no bytes (dry); reading it
 * is E-SAC-DRY. Entries count as consumed only when the whole recompute has succeeded. */
#include "checkpoint/selective.h"

#include "autograd/watch.h"

#include <stdio.h>

/* ---- entries */

static void drop_kept(neap_ctx *c, np_sac_entry *e)
{
    for (int j = 0; j < e->n_out; j++) {
        np_sac_kept *k = &e->kept[j];
        if (k->t) {
            np_release_bytes(k->t->st);
            np_drop(k->t);
        }
        np_away_free(k->away);
        if (k->pair) {
            if (k->pair->h.drop) k->pair->h.drop(k->pair->h.user, k->packed);
            np_hook_pair_drop(c, k->pair);
        }
        *k = (np_sac_kept){0};
    }
}

static void drop_uses(neap_ctx *c, np_sac_entry *e)
{
    if (e->in_storages) np_obj_free(c, e->in_storages, sizeof *e->in_storages * (size_t)e->n_in);
    e->in_storages = NULL;
    e->n_in = 0; /* also while the forward runs: a recompute inside it may have used the entries up */
}

void np_selective_clear(neap_selective *s)
{
    for (size_t i = 0; i < s->n; i++) {
        drop_kept(s->c, &s->v[i]);
        drop_uses(s->c, &s->v[i]);
        if (s->v[i].state != NP_SAC_RECOMPUTE) s->v[i].state = NP_SAC_CONSUMED;
    }
}

void neap_selective_free(neap_ctx *c, neap_selective *s)
{
    if (!s || --s->refs > 0) return;
    np_selective_clear(s);
    if (s->o.release) s->o.release(s->o.user);
    np_array_free(c, s->v);
    np_array_free(c, s->reads);
    np_obj_free(c, s, sizeof *s);
}

/* The next entry of an op, in the order of its runs. */
static np_sac_entry *new_entry(neap_selective *s, int op)
{
    np_sac_entry *v = np_array_grow(s->c, s->v, &s->cap, s->n + 1, sizeof *v);
    if (!v) return NULL;
    s->v = v;
    np_sac_entry *e = &v[s->n];
    memset(e, 0, sizeof *e);
    e->op = op;
    e->nth = ++s->count[op];
    e->next = -1;
    if (s->tail[op] >= 0) v[s->tail[op]].next = (int)s->n;
    else s->head[op] = (int)s->n;
    s->tail[op] = (int)s->n++;
    return e;
}

/* ---- the policy's question */

#define N_OFF 4
static bool push_off(neap_ctx *c, uint64_t ids[N_OFF])
{
    ids[0] = np_ambient_push(c, NP_AMB_GRAD, 0, NULL, "a policy", NULL);
    ids[1] = ids[0] ? np_ambient_push(c, NP_AMB_MODE, 0, NULL, "a policy", NULL) : 0;
    ids[2] = ids[1] ? np_ambient_push(c, NP_AMB_INNER, 0, NULL, "a policy", NULL) : 0;
    ids[3] = ids[2] ? np_ambient_push(c, NP_AMB_TRACE, np_trace_value(c), NULL, "a policy", NULL) : 0;
    return ids[3] != 0;
}

static void pop_off(neap_ctx *c, uint64_t ids[N_OFF])
{
    for (int k = N_OFF - 1; k >= 0; k--)
        if (ids[k]) np_ambient_pop(c, ids[k]);
}

enum { FEW_ARGS = 16 };

static int ask(neap_selective *s, np_frame *f, int nth)
{
    neap_ctx *c = s->c;
    if (!s->o.policy) return s->listed[f->op->index] ? NEAP_MUST_SAVE : NEAP_PREFER_RECOMPUTE;
    neap_tensor *in[FEW_ARGS] = {0}, *out[NP_MAX_OUT] = {0};
    int n_in = f->n_in < FEW_ARGS ? f->n_in : FEW_ARGS, n_out = np_facts(c, f->op)->n_results, answer = -1;
    uint64_t off[N_OFF] = {0};
    bool ok = true;
    if (n_out > f->n_out) n_out = f->n_out;
    for (int i = 0; ok && i < n_in; i++) ok = !f->in[i] || (in[i] = np_tensor_alias(f->in[i]));
    for (int j = 0; ok && j < n_out; j++) ok = (out[j] = np_tensor_alias(f->out[j])) != NULL;
    if (ok && push_off(c, off)) {
        neap_policy_call call = {.size = sizeof call,
                                 .op = f->op->name,
                                 .op_index = f->op->index,
                                 .nth = nth,
                                 .in = in,
                                 .n_in = n_in,
                                 .out = out,
                                 .n_out = n_out,
                                 .frame = f};
        const char *op = c->op_name;
        answer = s->o.policy(c, s->o.user, &call);
        c->op_name = op;
    }
    pop_off(c, off);
    for (int i = 0; i < n_in; i++) np_drop(in[i]);
    for (int j = 0; j < n_out; j++) np_drop(out[j]);
    if (np_pending(c)) return -1;
    if (answer >= 0 && answer < NEAP_N_POLICIES) return answer;
    np_fail(c, NEAP_E_BADPOLICYVALUE, "the policy answered %d for it: not a policy", answer);
    return -1;
}

/* ---- keeping results */

/* The innermost hooks of the user's own, looking past those of regions. */
static np_hook_pair *user_pair(neap_ctx *c)
{
    for (np_ambient_entry *e = np_ambient_get(c, NP_AMB_HOOKS); e;
         e = np_ambient_below(c, NP_AMB_HOOKS, e->id)) {
        np_hook_pair *p = e->payload;
        if (p && !p->pack) return p->disabled ? NULL : p;
    }
    return NULL;
}

static bool pack_kept(neap_ctx *c, np_sac_kept *k, np_hook_pair *pair, neap_tensor *t)
{
    uint64_t off[N_OFF] = {0};
    neap_tensor *alias = np_tensor_alias(t);
    bool ok =
        alias && push_off(c, off) && pair->h.pack(c, pair->h.user, alias, &k->packed) == 0 && !np_pending(c);
    pop_off(c, off);
    np_drop(alias);
    if (!ok) return false;
    pair->refs++;
    k->pair = pair;
    return true;
}

/* Does the recompute have what this call is a view of, without running what made it? It was there before the function
 * ran, or it is kept itself. */
static bool base_is_kept(const neap_selective *s, const np_sac_entry *e)
{
    if (e->out_storages[0] <= s->first_storage) return true;
    for (const np_sac_entry *b = e; b-- > s->v;)
        for (int j = 0; j < b->n_out && !b->view && !(np_ops[b->op]->tags & NP_INPLACE); j++)
            if (b->out_storages[j] == e->out_storages[0]) return b->state == NP_SAC_SAVED;
    return false;
}

static bool keep(neap_selective *s, np_sac_entry *e, np_frame *f, int decision)
{
    neap_ctx *c = s->c;
    np_hook_pair *pair = s->o.respect_hooks ? user_pair(c) : NULL;
    bool to_host = decision == NEAP_MUST_CPU_OFFLOAD || decision == NEAP_PREFER_CPU_OFFLOAD;
    bool packed = pair && s->o.respect_hooks > 0;
    bool apart = packed || (to_host && f->n_out > 0 && f->out[0]->st->dev != c->devices[0]);
    /* What comes back shares memory with nothing: a view is made again instead, so that it stays one. */
    if (apart && e->view && base_is_kept(s, e)) return true;
    if (pair && s->o.respect_hooks < 0 && !s->warned) {
        s->warned = true;
        np_logf(c, 2,
                "checkpoint: values kept by a policy bypass the saved-tensors hooks around it; say so with "
                "respect_saved_tensors_hooks = false, or hand them over with true [W-SAC-HOOKS]");
    }
    for (int j = 0; j < f->n_out; j++) {
        np_sac_kept *k = &e->kept[j];
        neap_tensor *t = f->out[j];
        if (packed) {
            if (!pack_kept(c, k, pair, t)) return false;
            continue;
        }
        if (to_host && t->st->dev != c->devices[0] && !np_is_dry(t)) { /* dry: an outer replay's */
            k->away = np_send_away(c, t, &(np_away_opts){.later = true, .in_order = true, .group = s});
            if (k->away) continue;
            if (decision == NEAP_MUST_CPU_OFFLOAD) return false;
            np_forgive(c, NULL); /* no room on the host: where it is, then */
        }
        if (!(k->t = np_tensor_alias(t))) return false;
        np_hold_bytes(k->t->st);
        k->version = k->t->st->version.n;
    }
    if (s->region && s->region->check != NEAP_CHECK_NONE) e->origin = np_origin_of_call(f);
    e->state = NP_SAC_SAVED;
    return true;
}

static bool note_uses(neap_selective *s, np_sac_entry *e, const np_frame *f)
{
    e->n_out = f->n_out;
    e->view = f->n_out > 0;
    for (int j = 0; j < f->n_out; j++) {
        e->out_storages[j] = f->out[j]->st->id;
        e->view = e->view && f->meta[j].view;
    }
    e->n_in = f->n_in;
    if (f->n_in == 0) return true;
    e->in_storages = np_obj_new(s->c, sizeof *e->in_storages * (size_t)f->n_in);
    if (!e->in_storages) return false;
    for (int i = 0; i < f->n_in; i++)
        e->in_storages[i] = f->in[i] && !f->in[i]->number ? f->in[i]->st->id : 0;
    return true;
}

/* An op that scripts do not see is run again. What writes a changed view into its base has an entry all the same: the
 * base needs what is written. */
static bool is_hidden(const np_frame *f) { return (f->op->tags & (NP_INTERNAL | NP_INPLACE)) == NP_INTERNAL; }

/* ---- the recorder */

static bool record_call(neap_ctx *c, void *user, np_frame *f, uint64_t id)
{
    neap_selective *s = user;
    if (!np_compute_below(f, id)) return false;
    if (is_hidden(f)) return true;
    bool inplace = (f->op->tags & NP_INPLACE) != 0, internal = (f->op->tags & NP_INTERNAL) != 0;
    int decision = internal ? NEAP_MUST_RECOMPUTE : ask(s, f, s->count[f->op->index] + 1);
    if (decision < 0) return false;
    bool save = decision != NEAP_MUST_RECOMPUTE && decision != NEAP_PREFER_RECOMPUTE;
    if (save && inplace) {
        if (decision == NEAP_MUST_SAVE || decision == NEAP_MUST_CPU_OFFLOAD)
            return np_fail(c, NEAP_E_SAC_INPLACE,
                           "an in-place op cannot be saved: its result is its argument; save the op before "
                           "it, or answer "
                           "\"prefer_save\"");
        save = false;
    }
    np_sac_entry *e = new_entry(s, f->op->index);
    return e && note_uses(s, e, f) && (!save || keep(s, e, f, decision));
}

/* A value that the function reads (a loop until a norm is small) is read again by the recompute. */
static void note_read(neap_ctx *c, const neap_tensor *t)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_INNER);
    for (; e && e->payload; e = np_ambient_below(c, NP_AMB_INNER, e->id)) {
        const np_mode *m = e->payload;
        neap_selective *s = m->call == record_call ? m->user : NULL;
        if (!s || s->all_needed) continue;
        uint64_t *v = np_array_grow(c, s->reads, &s->cap_reads, s->n_reads + 1, sizeof *v);
        if (!v) {
            np_forgive(c, NULL);
            s->all_needed = true;
            continue;
        }
        s->reads = v;
        v[s->n_reads++] = t->st->id;
    }
}

typedef struct id_set { /* of storage ids; 0 is no id */
    uint64_t *v;
    size_t cap, n;
} id_set;

static size_t place(const id_set *set, uint64_t id)
{
    size_t i = (size_t)(id * 0x9E3779B97F4A7C15u) & (set->cap - 1);
    while (set->v[i] && set->v[i] != id) i = (i + 1) & (set->cap - 1);
    return i;
}

static void add_id(id_set *set, uint64_t id)
{
    if (id) set->v[place(set, id)] = id;
}

static bool has_id(const id_set *set, uint64_t id) { return id && set->v[place(set, id)] == id; }

static void settle_entry(neap_selective *s, np_sac_entry *e, id_set *needed)
{
    for (int j = 0; j < e->n_out; j++) e->needed = e->needed || has_id(needed, e->out_storages[j]);
    if (np_ops[e->op]->tags & NP_SYNC) /* its shape follows from values */
        for (int i = 0; i < e->n_in; i++) add_id(needed, e->in_storages[i]);
    if (e->state == NP_SAC_SAVED && !e->needed) {
        drop_kept(s->c, e);
        e->state = NP_SAC_DRY;
    }
    if (e->state == NP_SAC_RECOMPUTE && e->needed)
        for (int i = 0; i < e->n_in; i++) add_id(needed, e->in_storages[i]);
}

/* Which results does the backward need? From the live markers and what the host read upward: what makes a needed value
 * by running needs its operands; what is saved needs nothing. */
static bool settle(neap_selective *s)
{
    neap_region *r = s->region;
    size_t want = r->n + s->n_reads;
    if (s->all_needed) return true;
    for (size_t i = 0; i < s->n; i++) want += (size_t)s->v[i].n_in;
    id_set needed = {.cap = 64};
    while (needed.cap < 2 * want + 2) needed.cap *= 2;
    size_t bytes = sizeof *needed.v * needed.cap;
    needed.v = np_obj_new(s->c, bytes);
    if (!needed.v) return false;
    for (size_t i = 0; i < r->n; i++)
        if (r->markers[i]) add_id(&needed, r->metas[i].storage);
    for (size_t i = 0; i < s->n_reads; i++) add_id(&needed, s->reads[i]);
    for (size_t i = s->n; i-- > 0;) settle_entry(s, &s->v[i], &needed);
    np_obj_free(s->c, needed.v, bytes);
    return true;
}

static void warn_unused(neap_selective *s)
{
    for (int k = 0; !s->o.policy && k < NP_N_OPS; k++)
        if (s->listed[k] && !s->count[k])
            np_logf(
                s->c, 2,
                "checkpoint: the policy lists %s, which never ran in the function: nothing is saved for it",
                np_ops[k]->name);
}

static void record_end(neap_ctx *c, void *user)
{
    neap_selective *s = user;
    if (s->region && !np_pending(c)) {
        settle(s);
        if (!neap_in_recompute(c)) warn_unused(s); /* a recompute may have stopped before them */
    }
    s->region = NULL;
    for (size_t i = 0; i < s->n; i++) drop_uses(c, &s->v[i]);
}

/* ---- the replayer */

static bool fail_unknown(neap_ctx *c, neap_selective *s, const np_frame *f)
{
    int op = f->op->index;
    if (s->head[op] < 0)
        return np_fail(
            c, NEAP_E_SAC_NOOP,
            "the recompute runs it, the forward did not: the function depends on something that changed");
    return np_fail(c, NEAP_E_SAC_INDEX,
                   "the recompute runs it a %d. time, the forward ran it %d times: the function depends on "
                   "something that "
                   "changed",
                   s->count[op] + 1, s->count[op]);
}

static bool any_dry(const np_frame *f)
{
    for (int i = 0; i < f->n_in; i++)
        if (f->in[i] && np_is_dry(f->in[i])) return true;
    return false;
}

/* Results with a shape and no bytes. In place: the operand is as dry as before. */
static bool dry_results(neap_ctx *c, neap_selective *s, const np_sac_entry *e, np_frame *f)
{
    snprintf(s->note, sizeof s->note, "run %d of %s was saved by the policy", e->nth, f->op->name);
    c->dry_note = s->note;
    for (int j = 0; j < f->n_out; j++) {
        const np_out_meta *m = &f->meta[j];
        bool own = j == 0 && (f->op->tags & NP_INPLACE);
        f->out[j] =
            own ? np_hold_ref(f->in[0]) : np_tensor_dry(c, f->dev, (neap_dtype)m->dtype, m->ndim, m->shape);
        if (!f->out[j]) return false;
    }
    return true;
}

static neap_tensor *take(neap_selective *s, const np_sac_entry *e, const np_sac_kept *k, const np_frame *f)
{
    neap_ctx *c = s->c;
    if (k->pair) return k->pair->h.unpack(c, k->pair->h.user, k->packed);
    if (k->away) return np_bring_back(k->away);
    if (!s->o.allow_mutation && k->t->st->version.n != k->version)
        return np_fail(c, NEAP_E_SAC_MUTATED,
                       "the saved result of run %d of %s was changed in place (version %llu expected, %llu "
                       "found); use the "
                       "out-of-place form, or {allow_cache_entry_mutation = true}",
                       e->nth, f->op->name, (unsigned long long)k->version,
                       (unsigned long long)k->t->st->version.n);
    return np_tensor_alias(k->t);
}

/* Is this the call whose results were kept, and not just the n-th of its op? */
static bool check_call(const np_sac_entry *e, const np_frame *f)
{
    const uint64_t now = e->origin ? np_origin_of_call(f) : 0;
    if (!now || now == e->origin) return true;
    return np_fail(
        f->c, NEAP_E_OPS,
        "run %d of it, whose result the policy has kept, has other numbers or other tensors than in the "
        "forward: the function runs other ops before it or depends on something that changed (a value "
        "made in the first run only?): make it before, pass it as an argument, or decide it in "
        "checkpoint.once",
        e->nth);
}

static bool replay_call(neap_ctx *c, void *user, np_frame *f, uint64_t id)
{
    neap_selective *s = user;
    int op = f->op->index;
    if (is_hidden(f)) return np_compute_below(f, id);
    if (s->cursor[op] < 0) return fail_unknown(c, s, f);
    np_sac_entry *e = &s->v[s->cursor[op]];
    s->cursor[op] = e->next;
    switch (e->state) {
    case NP_SAC_RECOMPUTE:
        if (!e->view && !e->needed && any_dry(f)) return dry_results(c, s, e, f);
        return np_compute_below(f, id);
    case NP_SAC_DRY: return e->view ? np_compute_below(f, id) : dry_results(c, s, e, f);
    case NP_SAC_SAVED:
        if (!check_call(e, f)) return false;
        c->counts[op].replayed++;
        for (int j = 0; j < e->n_out && j < f->n_out; j++) {
            f->out[j] = take(s, e, &e->kept[j], f);
            if (!f->out[j]) return false;
        }
        return true;
    default:
        return np_fail(c, NEAP_E_SAC_AGAIN,
                       "a second backward needs run %d of %s, whose saved result is used up; pass "
                       "{keep_entries = true} with "
                       "the policy",
                       e->nth, f->op->name);
    }
}

void np_selective_commit(neap_selective *s)
{
    if (!s->o.keep_entries && s->replayed) np_selective_clear(s);
    s->replayed = false;
}

/* ---- making and entering */

neap_selective *neap_selective_new(neap_ctx *c, const neap_selective_opts *o)
{
    if (np_pending(c)) return NULL;
    bool ok = o && o->n_list >= 0 && (o->n_list == 0 || o->list);
    for (int i = 0; ok && i < o->n_list; i++) ok = o->list[i] >= 0 && o->list[i] < NP_N_OPS;
    if (!ok)
        return np_fail(c, NEAP_E_BADOP,
                       "checkpoint: a selective list of op indices is needed, each from 0 to %d",
                       NP_N_OPS - 1);
    neap_selective *s = np_obj_new(c, sizeof *s);
    if (!s) return NULL;
    s->refs = 1;
    s->c = c;
    s->o = *o;
    s->o.list = NULL;
    for (int k = 0; k < NP_N_OPS; k++) s->head[k] = s->tail[k] = s->cursor[k] = -1;
    for (int i = 0; i < o->n_list; i++) s->listed[o->list[i]] = true;
    s->recorder = (np_mode){.call = record_call, .user = s, .end = record_end};
    c->on_read = note_read;
    s->replayer = (np_mode){.call = replay_call, .user = s};
    if (o->retain) o->retain(o->user);
    return s;
}

static bool given(neap_ctx *c, const neap_selective *s)
{
    if (!np_pending(c) && !s) np_fail(c, NEAP_E_ARG, "checkpoint: the selective store is NULL");
    return !np_pending(c);
}

uint64_t neap_selective_record_begin(neap_ctx *c, neap_selective *s)
{
    if (!given(c, s)) return 0;
    if (s->recorded) {
        np_fail(c, NEAP_E_CONTEXT_REUSED,
                "checkpoint: this pair of selective contexts was entered for another call already; call "
                "create_selective_checkpoint_contexts inside context_fn, so that each call gets its own");
        return 0;
    }
    uint64_t id = np_ambient_push(c, NP_AMB_INNER, 0, &s->recorder, "a policy", NULL);
    if (!id) return 0;
    s->recorded = true;
    s->first_storage = c->next_storage;
    s->region = np_recording_region(c);
    if (s->region) {
        s->refs++;
        s->next = s->region->selective;
        s->region->selective = s;
    }
    return id;
}

uint64_t neap_selective_replay_begin(neap_ctx *c, neap_selective *s)
{
    if (!given(c, s)) return 0;
    memcpy(s->cursor, s->head, sizeof s->cursor);
    s->replayed = true;
    return np_ambient_push(c, NP_AMB_INNER, 0, &s->replayer, "a policy", NULL);
}
