/* test_lua_offload.c - offload and streams of the emulated device while each allocation of the core, each call of the
 * runtime, or each kernel, fails in turn.
 *
 * A failure is an ordinary Lua error, or the way without it was taken (a copy at once instead of one for later); then
 * the gradient is right. Nothing is left alive on either device or in pinned memory, and the same state works after.
 * Without the emulated device everything is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "emulator.h"
#include "neap_lua.h"
#include "tensor/streams.h"
#include "test_steps.h"

/* What fails. A kernel's fault loses its device, until the emulator is told to forget it. */
typedef enum kind { ALLOCATIONS, CALLS, KERNELS } kind;

/* work() raises what failed, or returns true: the gradient is what it is without offload. */
static const char prelude[] =
    "neap = require 'neap'; neap.on_log(function() end)\n"
    "local checkpoint, D = neap.checkpoint, 'cudaemu'\n"
    "local value = neap.linspace(0, 1, 24, {device = 'cpu'}):view(4, 6):to(D)\n"
    "local w = neap.linspace(-1, 1, 36, {device = 'cpu'}):view(6, 6):to(D)\n"
    "local function sines(t) for _ = 1, 3 do t = t:matmul(w):sin() end return t:sum() end\n"
    "local function gradient(f)\n"
    "  local _ <close> = neap.scope()\n"
    "  local x = value:clone():requires_grad_()\n"
    "  f(x)\n"
    "  return neap.hash(x.grad)\n"
    "end\n"
    "local want = gradient(function(x) sines(x):backward() end)\n"
    "local function policy(_, op)\n"
    "  return op.name == 'matmul' and 'prefer_cpu_offload' or 'prefer_recompute'\n"
    "end\n"
    "local away, ck = {pin_memory = true}, {use_reentrant = false}\n"
    "local bodies = {\n"
    "  function(x) neap.save_on_cpu(away, sines, x):backward() end,\n"
    "  function(x) checkpoint(sines, {use_reentrant = false, policy = policy}, x):backward() end,\n"
    "  function(x)\n"
    "    local side = neap.cuda.Stream(D)\n"
    "    side(neap.save_on_cpu, away, checkpoint, sines, ck, x):backward()\n"
    "  end,\n"
    "  function(x)\n"
    "    local y = neap.save_on_cpu(away, sines, x)\n"
    "    y:backward{retain_graph = true}\n"
    "    x.grad = nil\n"
    "    y:backward()\n"
    "  end,\n"
    "}\n"
    "function work(i) return gradient(bodies[i]) == want end\n";

enum { WORKS = 4 };

typedef struct level {
    int64_t live[2], storages[2], scratch, pinned, nodes, slots, regions, ambient;
} level;

static level now(lua_State *L, neap_ctx *c)
{
    lua_gc(L, LUA_GCCOLLECT);
    lua_gc(L, LUA_GCCOLLECT);
    const np_device *d = c->devices[1];
    return (level){.live = {c->devices[0]->mem.live, d->mem.live},
                   .storages = {c->devices[0]->mem.storages, d->mem.storages},
                   .scratch = d->mem.scratch,
                   .pinned = d->streams && d->streams->to_host ? d->streams->pinned.scratch : 0,
                   .nodes = (int64_t)c->n_nodes,
                   .slots = (int64_t)c->n_slots,
                   .regions = (int64_t)c->n_regions,
                   .ambient = (int64_t)c->ambient.n};
}

static lua_State *open_state(void)
{
    lua_State *L = luaL_newstate();
    assert_non_null(L);
    luaL_openlibs(L);
    assert_int_equal(neap_lua_open(L, NULL, 0), 0);
    if (luaL_dostring(L, prelude)) fail_msg("%s", lua_tostring(L, -1));
    return L;
}

/* False: an error, on the stack. */
static bool work(lua_State *L, int i)
{
    lua_settop(L, 0);
    lua_getglobal(L, "work");
    lua_pushinteger(L, i);
    if (lua_pcall(L, 1, 1, 0)) return false;
    if (!lua_toboolean(L, -1)) fail_msg("work %d: another gradient", i);
    return true;
}

static void let_fail(neap_ctx *c, kind what, long n)
{
    if (what == CALLS) fail_at(n);
    else if (what == KERNELS) fault_at(n);
    else c->alloc_fail_at = (uint64_t)n;
}

/* Has it failed? Then nothing else will. */
static bool has_failed(neap_ctx *c, kind what)
{
    if (what == CALLS) return fail_at(0) == 0;
    if (what == KERNELS) return fault_at(0) == 0;
    const bool met = c->alloc_fail_at == 0;
    c->alloc_fail_at = 0;
    return met;
}

/* work(i) with the n-th allocation, call of the runtime, or kernel failing. False: it has fewer. */
static bool nth_fails(lua_State *L, int i, long n, kind what, int *errors)
{
    neap_ctx *c = neap_lua_context(L);
    const level before = now(L, c);
    let_fail(c, what, n);
    const bool ok = work(L, i), met = has_failed(c, what);
    if (what == KERNELS && met && (ok || !strstr(lua_tostring(L, -1), "[E-DEVICE]")))
        fail_msg("work %d, kernel %ld: %s", i, n, ok ? "no error" : lua_tostring(L, -1));
    if (!ok && !met) fail_msg("work %d: %s", i, lua_tostring(L, -1));
    *errors += !ok;
    lua_settop(L, 0);
    assert_int_equal(c->err.code, NEAP_OK);
    const level after = now(L, c);
    if (memcmp(&before, &after, sizeof before) != 0)
        fail_msg("work %d, failure %ld: device %lld -> %lld, host %lld -> %lld, pinned %lld -> %lld", i, n,
                 (long long)before.live[1], (long long)after.live[1], (long long)before.live[0],
                 (long long)after.live[0], (long long)before.pinned, (long long)after.pinned);
    if (!work(L, i)) fail_msg("work %d after failure %ld: %s", i, n, lua_tostring(L, -1));
    return met;
}

/* `fresh`: each failure has a state of its own, so that what is made once fails, too. */
static void sweep(kind what, bool fresh)
{
    if (!fail_at) skip();
    const int steps = test_steps(1000);
    for (int i = 1; i <= WORKS; i++) {
        lua_State *L = open_state();
        int errors = 0, n = 1;
        if (!fresh && !work(L, i)) fail_msg("%s", lua_tostring(L, -1));
        while (n <= steps && nth_fails(L, i, n, what, &errors)) {
            n++;
            if (fresh) lua_close(L), L = open_state();
        }
        lua_close(L);
        assert_true(n < 1000);
        assert_true(errors > 0);
    }
}

static void each_allocation_fails_in_turn(void **state) { (void)state, sweep(ALLOCATIONS, false); }
static void each_call_of_the_runtime_fails_in_turn(void **state) { (void)state, sweep(CALLS, false); }
static void each_first_allocation_fails_in_turn(void **state) { (void)state, sweep(ALLOCATIONS, true); }
static void each_first_call_of_the_runtime_fails_in_turn(void **state) { (void)state, sweep(CALLS, true); }
static void each_kernel_faults_in_turn(void **state) { (void)state, sweep(KERNELS, false); }

int main(int argc, char **argv)
{
    (void)argc;
    setenv("NEAP_EMU_LAZY", "1", 0);
    find_emulator(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_fails_in_turn),
        cmocka_unit_test(each_call_of_the_runtime_fails_in_turn),
        cmocka_unit_test(each_first_allocation_fails_in_turn),
        cmocka_unit_test(each_first_call_of_the_runtime_fails_in_turn),
        cmocka_unit_test(each_kernel_faults_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
