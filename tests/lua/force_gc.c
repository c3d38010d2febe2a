/* force_gc.c - runs Lua's whole collector at every op and every allocation of a recompute, for the specs.
 *
 * A hook collects when any function is called and when it returns; every op that a script runs is such a call, so a
 * full collection, finalizers included, lies between any two of them. An allocator that refuses each request for more
 * memory once makes Lua collect also where C code of the bindings allocates (an emergency collection, which runs no
 * finalizers). The specs see nothing of either: no op mode, no counter, no Lua function of theirs. Coroutines inherit
 * the hook; those made before begin() have none. */
#include <stdbool.h>

#include <lauxlib.h>
#include <lua.h>

#include "base/ctx.h"
#include "ext.h"
#include "neap_lua.h"

typedef struct force {
    lua_Alloc alloc; /* the one before */
    void *alloc_user;
    neap_ctx *c;     /* NULL: not open yet */
    bool everywhere; /* in forwards and backwards, too */
    bool collecting; /* now */
    bool refused;    /* the latest request: the next one is Lua's second try */
    uint64_t within; /* which recompute the latest event was in */
    uint64_t ops_before;
    lua_Integer collections, emergencies, ops, most; /* most: ops between two collections */
} force;

static const char force_key = 0;

static force *get(lua_State *L)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &force_key);
    force *f = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return f;
}

static bool wanted(const force *f) { return f->c && (f->everywhere || f->c->region_depth > 0); }

static uint64_t op_calls(const neap_ctx *c)
{
    uint64_t sum = 0;
    for (int i = 0, n = neap_x_op_count(); i < n; i++) sum += c->counts[i].calls;
    return sum;
}

/* The innermost recompute that runs, 0: none. */
static uint64_t recompute(const neap_ctx *c)
{
    for (size_t i = c->ambient.n; i-- > 0;)
        if (c->ambient.v[i].kind == NP_AMB_RECOMPUTE) return c->ambient.v[i].value ? c->ambient.v[i].id : 0;
    return 0;
}

/* Ops since the latest event, if that was in the same recompute: between two of them backward runs ops of its own. The
 * last op of a recompute is not counted where it stops there. */
static void count_ops(force *f)
{
    uint64_t now = op_calls(f->c), within = f->everywhere ? 1 : recompute(f->c);
    if (within && within == f->within) {
        lua_Integer n = (lua_Integer)(now - f->ops_before);
        f->ops += n;
        if (n > f->most) f->most = n;
    }
    f->ops_before = now;
    f->within = within;
}

static void hook(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    if (!lua_checkstack(L, 2)) return;
    force *f = get(L);
    if (!f || f->collecting) return;
    if (!f->c) f->c = neap_lua_context(L);
    if (!wanted(f)) {
        f->within = 0;
        return;
    }
    count_ops(f);
    f->collecting = true;
    if (lua_gc(L, LUA_GCCOLLECT) == 0) f->collections++; /* not inside a finalizer */
    f->collecting = false;
}

/* luaL_Buffer asks for itself and gives up at once. Its blocks are large and no objects, which come with a type. */
static bool may_be_buffer(const void *p, size_t old, size_t size)
{
    return size > LUAL_BUFFERSIZE && (p || old == 0);
}

static void *refusing(void *user, void *p, size_t old, size_t size)
{
    force *f = user;
    if (size && (!p || size > old)) { /* the collection in between frees and shrinks */
        f->refused = wanted(f) && !f->collecting && !f->refused && !may_be_buffer(p, old, size);
        if (f->refused) {
            f->emergencies++;
            return NULL;
        }
    }
    return f->alloc(f->alloc_user, p, old, size);
}

/* Before the state goes: this library is unloaded before the state's last blocks are freed. */
static int stop(lua_State *L)
{
    force *f = lua_touserdata(L, 1);
    if (!f->alloc) return 0; /* finished already; another one may be at work */
    lua_setallocf(L, f->alloc, f->alloc_user);
    f->alloc = NULL;
    lua_sethook(L, NULL, 0, 0);
    lua_pushnil(L);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &force_key);
    return 0;
}

/* begin([everywhere]): from here on, in recomputes, or everywhere. */
static int begin(lua_State *L)
{
    bool everywhere = lua_toboolean(L, 1);
    force *f = get(L);
    if (!f) {
        f = lua_newuserdatauv(L, sizeof *f, 0);
        memset(f, 0, sizeof *f);
        lua_newtable(L);
        lua_pushcfunction(L, stop);
        lua_setfield(L, -2, "__gc");
        lua_setmetatable(L, -2);
        lua_rawsetp(L, LUA_REGISTRYINDEX, &force_key);
        f->alloc = lua_getallocf(L, &f->alloc_user);
    }
    f->everywhere = everywhere;
    lua_setallocf(L, refusing, f);
    lua_sethook(L, hook, LUA_MASKCALL | LUA_MASKRET, 0);
    return 0;
}

/* stats() -> collections, ops of recomputes (all ops, with `everywhere`), the most ops between two collections,
 * emergency collections; counted anew from here on. */
static int stats(lua_State *L)
{
    force *f = get(L);
    if (!f) return luaL_error(L, "force_gc: not begun");
    lua_Integer v[] = {f->collections, f->ops, f->most, f->emergencies};
    f->collections = f->ops = f->most = f->emergencies = 0;
    for (int i = 0; i < 4; i++) lua_pushinteger(L, v[i]);
    return 4;
}

/* finish(): no more. Coroutines keep a hook that does nothing. */
static int finish(lua_State *L)
{
    force *f = get(L);
    if (!f) return 0;
    lua_settop(L, 0);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &force_key);
    return stop(L);
}

__attribute__((visibility("default"))) int luaopen_force_gc(lua_State *L);
int luaopen_force_gc(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"begin", begin}, {"stats", stats}, {"finish", finish}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
