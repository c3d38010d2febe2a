/* misc.c - counters, memory statistics, hashes, generators, threads, log, and what only the library's own Lua files
 * call: set_category, set_data, set_library_prefix, set_translate, dtypes. */
#include "nl.h"

#include <sys/ioctl.h>
#include <unistd.h>

/* ---- counters */

static void set_int(lua_State *L, const char *name, int64_t v)
{
    lua_pushinteger(L, v);
    lua_setfield(L, -2, name);
}

/* counters([reset]): by op {calls =, kernels =, replayed =} */
static int counters(lua_State *L)
{
    nl_state *st = nl_enter(L);
    np_op_count *counts = st->c->counts;
    bool reset = lua_toboolean(L, 1);
    lua_newtable(L);
    for (int i = 0; i < st->n_ops; i++) {
        lua_createtable(L, 0, 3);
        set_int(L, "calls", (int64_t)counts[i].calls);
        set_int(L, "kernels", (int64_t)counts[i].kernels);
        if (counts[i].staged) set_int(L, "staged", (int64_t)counts[i].staged);
        set_int(L, "replayed", (int64_t)counts[i].replayed);
        lua_setfield(L, -2, st->ops[i].op->name);
    }
    if (reset) memset(counts, 0, sizeof *counts * (size_t)st->n_ops);
    return 1;
}

static int zero(lua_State *L)
{
    lua_pushinteger(L, 0);
    return 1;
}

/* The kernels that ran since the snapshot at 1; under it the results. */
static int count_done(lua_State *L, int status, lua_KContext k)
{
    (void)status, (void)k;
    nl_state *st = nl_enter(L);
    const uint64_t *before = lua_touserdata(L, 1);
    lua_newtable(L);
    for (int i = 0; i < st->n_ops; i++)
        if (st->c->counts[i].kernels != before[i])
            set_int(L, st->ops[i].op->name, (int64_t)(st->c->counts[i].kernels - before[i]));
    lua_newtable(L);
    lua_pushcfunction(L, zero);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_replace(L, 1);
    return lua_gettop(L);
}

/* count_ops(fn, ...) -> counts, fn's results */
static int count_ops(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_check_body(L, st, 1, "count_ops");
    uint64_t *before = lua_newuserdatauv(L, sizeof *before * (size_t)st->n_ops, 0);
    for (int i = 0; i < st->n_ops; i++) before[i] = st->c->counts[i].kernels;
    lua_insert(L, 1);
    lua_callk(L, lua_gettop(L) - 2, LUA_MULTRET, 0, count_done);
    return count_done(L, LUA_OK, 0);
}

/* ---- memory */

const char *const nl_categories[] = {"temp",  "param",     "grad",    "optimizer",
                                     "saved", "workspace", "staging", "user"};

static void set_categories(lua_State *L, const char *name, const int64_t *v)
{
    lua_createtable(L, 0, 8);
    for (int i = 0; i < 8; i++) set_int(L, nl_categories[i], v[i]);
    lua_setfield(L, -2, name);
}

static int64_t filled_handles(const nl_state *st)
{
    int64_t n = 0;
    const nl_scope *s = &st->root;
    do {
        for (const nl_handle *h = s->head.next; h != &s->head; h = h->next) n += h->t != NULL;
        s = s->next;
    } while (s != &st->root);
    return n;
}

static int device_arg(lua_State *L, nl_state *st, const char *fn)
{
    return lua_isnoneornil(L, 1) ? neap_x_default_device(st->c) : nl_check_device(L, st, 1, fn);
}

static int memory_stats(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_memory m = {.size = sizeof m};
    if (neap_memory_stats(st->c, device_arg(L, st, "memory_stats"), &m))
        return nl_raise(L, st, "memory_stats");
    lua_createtable(L, 0, 21);
    const struct {
        const char *name;
        int64_t v;
    } fields[] = {{"live", m.live},
                  {"peak", m.peak},
                  {"limit", m.limit},
                  {"reserved", m.reserved},
                  {"cached", m.cached},
                  {"scratch", m.scratch},
                  {"storages", m.storages},
                  {"nodes", m.nodes},
                  {"slots", m.slots},
                  {"regions", m.regions},
                  {"markers", m.markers},
                  {"pass_entries", m.pass_entries},
                  {"functions", st->n_callbacks},
                  {"handles", filled_handles(st)},
                  {"scopes", st->n_scopes},
                  {"collections", st->gc_forced}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) set_int(L, fields[i].name, fields[i].v);
    lua_pushnumber(L, st->gc_seconds);
    lua_setfield(L, -2, "collection_seconds");
    set_categories(L, "by", m.by);
    set_categories(L, "peak_by", m.peak_by);
    lua_createtable(L, 0, 2);
    set_int(L, "to_host", (int64_t)st->c->moved_to_host);
    set_int(L, "to_device", (int64_t)st->c->moved_to_device);
    lua_setfield(L, -2, "moved");
    return 1;
}

static int reset_peak(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_reset_peak(st->c, device_arg(L, st, "reset_peak"));
    return 0;
}

static int set_category(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char got[80];
    neap_tensor *t = nl_check_tensor(L, st, 1, "set_category", "the argument");
    for (int i = 0; i < 8; i++) {
        if (lua_type(L, 2) != LUA_TSTRING || strcmp(lua_tostring(L, 2), nl_categories[i])) continue;
        neap_set_category(t, (neap_category)i);
        lua_settop(L, 1);
        return 1;
    }
    return nl_error(L, st, NEAP_E_ARG, "neap.set_category: no category %s", nl_kind(L, 2, got, sizeof got));
}

static int set_data(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_tensor *t = nl_check_tensor(L, st, 1, "set_data", "the tensor");
    neap_tensor *src = nl_check_tensor(L, st, 2, "set_data", "the data");
    if (!neap_x_set_data(st->c, t, src)) return nl_raise(L, st, "set_data");
    lua_settop(L, 1);
    return 1;
}

/* ---- hashes */

typedef struct hasher {
    lua_State *L;
    nl_state *st;
    uint64_t h;
} hasher;

static void mix(hasher *s, char kind, const void *p, size_t n)
{
    struct {
        uint64_t before, value, kind;
    } block = {s->h, neap_x_hash_bytes(p, n), (uint64_t)kind};
    s->h = neap_x_hash_bytes(&block, sizeof block);
}

static void hash_value(hasher *s, int idx, int depth);

static void hash_table(hasher *s, int idx, int depth)
{
    lua_State *L = s->L;
    if (depth > 100)
        nl_error(L, s->st, NEAP_E_ARG, "neap.hash: tables nested more than 100 deep, or a cycle");
    luaL_checkstack(L, 10, NULL);
    if (lua_getmetatable(L, idx)) { /* its tensors are not in the table: all modules would be alike */
        if (lua_getfield(L, idx, "state_dict") == LUA_TFUNCTION)
            nl_error(
                L, s->st, NEAP_E_ARG,
                "neap.hash: needs plain data; of a module or an optimizer hash what x:state_dict() gives");
        lua_pop(L, 2);
    }
    nl_sorted_keys(L, s->st, idx, "hash");
    int keys = lua_gettop(L), n = (int)lua_rawlen(L, keys);
    mix(s, '{', "", 0);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        hash_value(s, lua_gettop(L), depth);
        lua_rawget(L, idx);
        hash_value(s, lua_gettop(L), depth + 1);
        lua_pop(L, 1);
    }
    mix(s, '}', "", 0);
    lua_pop(L, 1);
}

static void hash_value(hasher *s, int idx, int depth)
{
    lua_State *L = s->L;
    char got[80];
    uint64_t h;
    size_t len;
    if (nl_handle_at(L, s->st, idx)) {
        if (neap_hash(s->st->c, nl_check_tensor(L, s->st, idx, "hash", "the value"), &h))
            nl_raise(L, s->st, "hash");
        mix(s, 't', &h, sizeof h);
        return;
    }
    switch (lua_type(L, idx)) {
    case LUA_TTABLE: hash_table(s, idx, depth); return;
    case LUA_TSTRING: {
        const char *p = lua_tolstring(L, idx, &len);
        mix(s, 's', p, len);
        return;
    }
    case LUA_TBOOLEAN: mix(s, lua_toboolean(L, idx) ? 'T' : 'F', "", 0); return;
    case LUA_TNUMBER: {
        lua_Integer i = lua_tointeger(L, idx);
        lua_Number v = lua_tonumber(L, idx);
        if (lua_isinteger(L, idx)) mix(s, 'i', &i, sizeof i);
        else mix(s, 'n', &v, sizeof v);
        return;
    }
    default:
        nl_error(L, s->st, NEAP_E_ARG,
                 "neap.hash: %s cannot be hashed; tensors, numbers, strings, booleans and tables can",
                 nl_kind(L, idx, got, sizeof got));
    }
}

/* hash(v): 16 hex digits over dtype, shape and bytes of a tensor, or over a table by sorted keys. */
static int hash(lua_State *L)
{
    nl_state *st = nl_enter(L);
    hasher s = {.L = L, .st = st};
    char text[20];
    if (nl_handle_at(L, st, 1)) {
        if (neap_hash(st->c, nl_check_tensor(L, st, 1, "hash", "the value"), &s.h))
            return nl_raise(L, st, "hash");
    } else {
        hash_value(&s, 1, 0);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)s.h);
    lua_pushstring(L, text);
    return 1;
}

/* ---- generators */

typedef struct generator_box {
    neap_generator *g;
} generator_box;

neap_generator *nl_generator_at(lua_State *L, nl_state *st, int idx)
{
    generator_box *b = nl_userdata(L, idx, &st->k_generator);
    return b ? b->g : NULL;
}

static neap_generator *check_generator(lua_State *L, nl_state *st)
{
    neap_generator *g = nl_generator_at(L, st, 1);
    if (!g)
        nl_error(L, st, NEAP_E_ARG,
                 "neap.generator: write g:seed(n), g:state() or g:set_state(s) with a colon");
    return g;
}

static generator_box *push_generator(lua_State *L, nl_state *st)
{
    generator_box *b = lua_newuserdatauv(L, sizeof *b, 0);
    b->g = NULL;
    nl_set_metatable(L, &st->k_generator);
    return b;
}

static uint64_t check_seed(lua_State *L, nl_state *st, int idx, const char *fn)
{
    return (uint64_t)nl_check_integer(L, st, idx, fn, "the seed");
}

static int generator(lua_State *L)
{
    nl_state *st = nl_enter(L);
    uint64_t seed = lua_isnoneornil(L, 1) ? 0 : check_seed(L, st, 1, "generator");
    generator_box *b = push_generator(L, st);
    b->g = neap_generator_new(st->c, seed);
    return b->g ? 1 : nl_raise(L, st, "generator");
}

static int default_generator(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device = device_arg(L, st, "default_generator");
    generator_box *b = push_generator(L, st);
    neap_generator *g = neap_default_generator(st->c, device);
    if (!g) return nl_raise(L, st, "default_generator");
    g->refs++;
    b->g = g;
    return 1;
}

static int generator_gc(lua_State *L)
{
    nl_state *st = nl_up(L);
    generator_box *b = lua_touserdata(L, 1);
    if (b->g && st->c) neap_generator_free(b->g);
    b->g = NULL;
    return 0;
}

static int generator_seed(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_generator *g = check_generator(L, st);
    neap_generator_set(g, check_seed(L, st, 2, "generator"), 0);
    lua_settop(L, 1);
    return 1;
}

static int generator_state(lua_State *L)
{
    nl_state *st = nl_enter(L);
    uint64_t seed, offset;
    neap_generator_get(check_generator(L, st), &seed, &offset);
    lua_createtable(L, 0, 2);
    set_int(L, "seed", (int64_t)seed);
    set_int(L, "offset", (int64_t)offset);
    return 1;
}

static int generator_set_state(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_generator *g = check_generator(L, st);
    int64_t v[2];
    static const char *const names[] = {"seed", "offset"};
    for (int i = 0; i < 2; i++) {
        if (!nl_get_option(L, 2, names[i]) || !nl_integer(L, -1, &v[i]))
            return nl_error(L, st, NEAP_E_ARG,
                            "neap.generator: set_state takes what state() gave: {seed = n, offset = n}");
        lua_pop(L, 1);
    }
    neap_generator_set(g, (uint64_t)v[0], (uint64_t)v[1]);
    lua_settop(L, 1);
    return 1;
}

static int seed(lua_State *L)
{
    nl_state *st = nl_enter(L);
    neap_seed(st->c, check_seed(L, st, 1, "seed"));
    return 0;
}

/* ---- the rest */

static int clock_now(lua_State *L)
{
    lua_pushnumber(L, nl_clock());
    return 1;
}

static int set_num_threads(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int64_t n = nl_check_integer(L, st, 1, "set_num_threads", "the number of threads");
    if (n < 1 || n > 1024)
        return nl_error(L, st, NEAP_E_ARG, "neap.set_num_threads: needs 1 to 1024 threads, got %lld",
                        (long long)n);
    neap_set_num_threads(st->c, (int)n);
    return 0;
}

static int get_num_threads(lua_State *L)
{
    lua_pushinteger(L, neap_get_num_threads(nl_enter(L)->c));
    return 1;
}

/* on_log(fn or nil): fn(level, text) with level "debug", "info" or "warning" */
static int on_log(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char got[80];
    lua_settop(L, 1);
    if (!lua_isnil(L, 1) && lua_type(L, 1) != LUA_TFUNCTION)
        return nl_error(L, st, NEAP_E_ARG, "neap.on_log: needs a function or nil, got %s",
                        nl_kind(L, 1, got, sizeof got));
    if (lua_isnil(L, 1)) lua_pushboolean(L, 0);
    bool listens = lua_toboolean(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_log);
    if (listens) nl_log_opening(st), st->opening[0] = 0;
    return 0;
}

static int set_library_prefix(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *p = luaL_checkstring(L, 1);
    for (int i = 0; i < st->n_prefix; i++)
        if (!strcmp(st->prefix[i], p)) return 0;
    if (st->n_prefix == 4 || !*p || strlen(p) >= sizeof st->prefix[0]) return 0;
    snprintf(st->prefix[st->n_prefix++], sizeof st->prefix[0], "%s", p);
    return 0;
}

/* set_translate(fn): fn(kind, name) knows what PyTorch's names are called here (lua/translate.lua). */
static int set_translate(lua_State *L)
{
    nl_state *st = nl_enter(L);
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &st->k_translate);
    return 0;
}

static int is_terminal(lua_State *L)
{
    lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
    return 1;
}

static int terminal_width(lua_State *L)
{
    struct winsize w;
    if (ioctl((int)luaL_checkinteger(L, 1), TIOCGWINSZ, &w) || !w.ws_col) return 0;
    lua_pushinteger(L, w.ws_col);
    return 1;
}

static const luaL_Reg functions[] = {{"counters", counters},
                                     {"count_ops", count_ops},
                                     {"memory_stats", memory_stats},
                                     {"reset_peak", reset_peak},
                                     {"set_category", set_category},
                                     {"set_data", set_data},
                                     {"hash", hash},
                                     {"generator", generator},
                                     {"default_generator", default_generator},
                                     {"seed", seed},
                                     {"clock", clock_now},
                                     {"set_num_threads", set_num_threads},
                                     {"get_num_threads", get_num_threads},
                                     {"on_log", on_log},
                                     {"set_library_prefix", set_library_prefix},
                                     {"set_translate", set_translate},
                                     {"isatty", is_terminal},
                                     {"terminal_width", terminal_width},
                                     {"error_code", nl_error_code},
                                     {NULL, NULL}};

static const luaL_Reg generator_metamethods[] = {{"__gc", generator_gc}, {NULL, NULL}};
static const luaL_Reg generator_methods[] = {
    {"seed", generator_seed}, {"state", generator_state}, {"set_state", generator_set_state}, {NULL, NULL}};

void nl_open_misc(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    lua_pushstring(L, neap_version());
    lua_setfield(L, -2, "version");
    lua_createtable(L, 0, NEAP_N_DTYPES);
    for (int i = 0; i < NEAP_N_DTYPES; i++) {
        lua_pushinteger(L, (lua_Integer)neap_dtype_size((neap_dtype)i));
        lua_setfield(L, -2, neap_dtype_name((neap_dtype)i));
    }
    lua_setfield(L, -2, "dtypes");
    nl_metatable(L, st, &st->k_generator, "neap.Generator", generator_metamethods);
    lua_newtable(L);
    nl_setfuncs(L, st, generator_methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
