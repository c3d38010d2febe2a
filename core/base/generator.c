/* generator.c - random generators, the list of default ones, and the one door that reserves ranges.
 *
 * A generator is (seed, offset); reserving moves the offset and nothing else. Replaying regions hand out what
 * they logged and leave the generators alone, so a recompute needs no saving and restoring of states. */
#include "ctx.h"

static neap_generator *new_generator(neap_ctx *c, uint64_t seed)
{
    neap_generator *g = np_obj_new(c, sizeof *g);
    if (!g) return NULL;
    g->refs = 1;
    g->c = c;
    g->seed = seed;
    g->id = c->next_generator++;
    return g;
}

neap_generator *neap_generator_new(neap_ctx *c, uint64_t seed)
{
    return np_pending(c) ? NULL : new_generator(c, seed);
}

neap_generator *np_generator_new_default(neap_ctx *c)
{
    neap_generator *g = new_generator(c, c->default_seed);
    if (!g) return NULL;
    g->is_default = true;
    neap_generator **at = &c->default_generator;
    while (*at) at = &(*at)->next_default;
    *at = g;
    return g;
}

void neap_generator_free(neap_generator *g)
{
    if (!g || --g->refs > 0) return;
    if (g->is_default) {
        neap_generator **at = &g->c->default_generator;
        while (*at != g) at = &(*at)->next_default;
        *at = g->next_default;
    }
    np_obj_free(g->c, g, sizeof *g);
}

void neap_generator_get(const neap_generator *g, uint64_t *seed, uint64_t *offset)
{
    if (seed) *seed = g ? g->seed : 0;
    if (offset) *offset = g ? g->offset : 0;
}

void neap_generator_set(neap_generator *g, uint64_t seed, uint64_t offset)
{
    if (!g) return;
    g->seed = seed;
    g->offset = offset;
}

void neap_seed(neap_ctx *c, uint64_t seed)
{
    c->default_seed = seed;
    for (neap_generator *g = c->default_generator; g; g = g->next_default) neap_generator_set(g, seed, 0);
}

/* ---- ranges */

void np_range_log_rewind(np_range_log *log)
{
    log->mode = NP_RANGES_REPLAY;
    log->cursor = 0;
    log->mismatch = false;
    for (size_t i = 0; i < log->n; i++) log->v[i].taken = false;
}

void np_range_log_free(neap_ctx *c, np_range_log *log)
{
    np_array_free(c, log->v);
    *log = (np_range_log){0};
}

/* The next logged range of generator `id`, if it was for n elements. */
static bool replay(np_range_log *log, uint64_t id, uint64_t n, np_rng_range *out)
{
    while (log->cursor < log->n && log->v[log->cursor].taken) log->cursor++;
    for (size_t i = log->cursor; i < log->n; i++) {
        np_range_entry *e = &log->v[i];
        if (e->taken || e->generator != id) continue;
        e->taken = true;
        if (e->n != n) break;
        *out = e->range;
        return true;
    }
    log->mismatch = true;
    return false;
}

static void record(neap_ctx *c, np_range_log *log, uint64_t id, uint64_t n, np_rng_range range)
{
    np_range_entry *v = np_array_grow(c, log->v, &log->cap, log->n + 1, sizeof *v);
    if (!v) return;
    log->v = v;
    log->v[log->n++] = (np_range_entry){.generator = id, .n = n, .range = range};
}

static np_rng_range advance(neap_generator *g, uint64_t n)
{
    np_rng_range r = {g->seed, g->offset};
    g->offset += np_rng_counters(n);
    return r;
}

/* The log in force below entry id `below`; *id is its entry. NULL: none, or the live stream is asked for. */
static np_range_log *log_below(neap_ctx *c, uint64_t below, uint64_t *id)
{
    np_ambient_entry *e = np_ambient_below(c, NP_AMB_REGION, below);
    *id = e ? e->id : 0;
    return e ? e->payload : NULL;
}

np_rng_range np_generator_reserve(neap_ctx *c, neap_generator *g, uint64_t n)
{
    if (!g) g = c->default_generator;
    np_ambient_entry *top = np_ambient_get(c, NP_AMB_REGION);
    if (!top || !top->payload) return advance(g, n);

    uint64_t first = top->id + 1, id;
    np_rng_range r;
    np_range_log *log = log_below(c, first, &id);
    while (log && log->mode == NP_RANGES_RECORD) log = log_below(c, id, &id);
    if (!log || !replay(log, g->id, n, &r)) r = advance(g, n);

    log = log_below(c, first, &id);
    for (; log && log->mode == NP_RANGES_RECORD; log = log_below(c, id, &id)) record(c, log, g->id, n, r);
    return r;
}
