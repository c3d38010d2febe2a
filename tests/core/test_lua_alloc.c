/* test_lua_alloc.c - every allocation fails in turn while a script builds an MLP and steps it, or goes through all forms
 * of checkpointing (ck-L13), or is measured: the core's and Lua's.
 * Each failure must be an ordinary Lua error; afterwards nothing is left alive, and the same state works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "base/ctx.h"
#include "neap_lua.h"
#include "test_steps.h"

enum { FIRST = 2000 }; /* allocations that are made to fail, one a run; of these test_steps.h picks evenly */

static const char prelude[] =
    "neap = require 'neap'; nn, optim = neap.nn, neap.optim; neap.on_log(function() end)\n"
    "local _ = neap.checkpoint; _ = nn.Linear, nn.Sequential, nn.ReLU, nn.LayerNorm, nn.Dropout, "
    "optim.AdamW\n"
    "probe = function() return neap.ones(2, 3):sum():item() end\n";
static const char script[] = "return function()\n"
                             "  local net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5), "
                             "nn.Dropout(0.1), nn.Linear(5, 3))\n"
                             "  local opt = optim.AdamW(net:parameters(), {lr = 0.01})\n"
                             "  local x, y = neap.randn(4, 6), neap.tensor{1, 2, 3, 1}\n"
                             "  for _ = 1, 40 do\n"
                             "    local _ <close> = neap.scope()\n"
                             "    opt:zero_grad()\n"
                             "    nn.cross_entropy(net(x), y):backward()\n"
                             "    opt:step()\n"
                             "  end\n"
                             "end\n";

/* What a watch has no memory to note, the report's E-NOMEM says; the search for NaN goes on without. */
static const char measured[] =
    "local profile, memory, checkpoint = neap.profile, neap.memory, neap.checkpoint\n"
    "return function()\n"
    "  local x = neap.ones(3, {requires_grad = true})\n"
    "  for i = 1, 40 do\n"
    "    local _ <close> = neap.scope()\n"
    "    local function step()\n"
    "      local y = checkpoint(function(t) return t:exp():sin() end, {use_reentrant = false}, x * i)\n"
    "      y:sum():backward()\n"
    "      return y\n"
    "    end\n"
    "    profile(step)\n"
    "    memory.profile(memory.profile, step)\n"
    "    neap.detect_anomaly(step)\n"
    "    memory.report()\n"
    "  end\n"
    "end\n";

static const char checkpoints[] =
    "local checkpoint, kinds = neap.checkpoint, {\n"
    "  {use_reentrant = false}, {use_reentrant = true},\n"
    "  {use_reentrant = false, policy = {neap.ops.exp}},\n"
    "  {use_reentrant = false, policy = function(ctx, op, x) return ctx.nth == 1 end},\n"
    "  {use_reentrant = false, context_fn = function() return function(run) run() end, neap.enable_grad "
    "end},\n"
    "  {use_reentrant = false, debug = true, determinism_check = 'values', early_stop = false},\n"
    "}\n"
    "local function look(_, call, ...) return call(...) end\n"
    "local function plain(f, ...) return f(...) end\n"
    "local function modes(...) return neap.autocast('bfloat16', neap.op_mode, look, ...) end\n"
    "return function()\n"
    "  local group = checkpoint.GraphExecGroup()\n"
    "  for i = 1, 20 do\n"
    "    local around = i % 2 == 0 and modes or plain\n"
    "    for _, options in ipairs(kinds) do\n"
    "      local _ <close> = neap.scope()\n"
    "      local x = neap.ones(3, {requires_grad = true})\n"
    "      local mask = x:detach() * 2\n"
    "      local y, same = around(checkpoint, function(t, m, list)\n"
    "        local k = checkpoint.once(function() return neap.rand(3) end)\n"
    "        return ((t * mask * list[1]):sin() * k):exp():sin(), t\n"
    "      end, options, x, 7, {mask})\n"
    "      group(function() (y + same):sum():backward() end)\n"
    "      group:close()\n"
    "    end\n"
    "  end\n"
    "end\n";

typedef struct counter {
    uint64_t n, fail_at; /* fails twice in a row: the second is Lua's retry after an emergency collection */
    bool block; /* what failed was no new object, but a block of one: Lua may go on with the old one */
} counter;

static void *counting_alloc(void *user, void *p, size_t old, size_t size)
{
    counter *k = user;
    if (size == 0) {
        free(p);
        return NULL;
    }
    bool grows = !p || size > old;
    if (grows && k->fail_at) {
        k->n++;
        if (k->n == k->fail_at) k->block = p || !old; /* without p, `old` is the object's type */
        if (k->n == k->fail_at || k->n == k->fail_at + 1) return NULL;
    }
    return realloc(p, size);
}

static void run_or_fail(lua_State *L, const char *code)
{
    if (luaL_dostring(L, code)) fail_msg("%s", lua_tostring(L, -1));
}

typedef struct level {
    int64_t live, storages, nodes, slots;
} level;

static level now(lua_State *L)
{
    lua_gc(L, LUA_GCCOLLECT);
    lua_gc(L, LUA_GCCOLLECT);
    neap_memory m = {.size = sizeof m};
    assert_int_equal(neap_memory_stats(neap_lua_context(L), 0, &m), 0);
    return (level){m.live, m.storages, m.nodes, m.slots};
}

/* An allocation that fails must raise an error. It may pass unseen only where the core says that it forgave it (a
 * diagnosis goes on without; what fails after a recompute has all it needs is dropped: much, under an op mode, for
 * there it runs to its end), or where Lua does without another block (its table of strings, the stack of a coroutine
 * that it resets): at most `blocks` of these. */
static void sweep(bool core, const char *code, int blocks)
{
    counter k = {0};
    lua_State *L = lua_newstate(counting_alloc, &k);
    assert_non_null(L);
    luaL_openlibs(L);
    assert_int_equal(neap_lua_open(L, NULL, 0), 0);
    run_or_fail(L, prelude);
    run_or_fail(L, code); /* the function stays on the stack */
    int fn = lua_gettop(L);
    neap_ctx *c = neap_lua_context(L);
    lua_pushvalue(L, fn);
    uint64_t forgiven = c->forgiven;
    if (lua_pcall(L, 0, 0, 0)) fail_msg("%s", lua_tostring(L, -1));
    forgiven = c->forgiven - forgiven; /* in a run without a failure */
    level base = now(L);
    uint64_t tries = (uint64_t)test_steps(FIRST);
    int errors = 0, n_forgiven = 0, n_blocks = 0, done = 0;
    char text[300] = "";
    for (uint64_t i = 0; i < tries && !done; i++) {
        uint64_t n = 1 + i * FIRST / tries;
        lua_pushvalue(L, fn);
        if (core) {
            c->alloc_count = 0;
            c->alloc_fail_at = n;
        } else {
            k.n = 0;
            k.fail_at = n;
        }
        uint64_t before = c->forgiven;
        int status = lua_pcall(L, 0, 0, 0);
        done = core ? c->alloc_count < n : k.n < n;
        c->alloc_fail_at = k.fail_at = 0;
        if (status) {
            errors++;
            assert_true(lua_type(L, -1) == LUA_TSTRING);
            snprintf(text, sizeof text, "%s", lua_tostring(L, -1));
            lua_pop(L, 1);
        } else if (c->forgiven - before > forgiven) {
            n_forgiven++;
        } else if (!core && k.block) {
            n_blocks++;
        } else if (!done) {
            fail_msg("allocation %d fails, and nobody says so", (int)n);
        }
        assert_int_equal(c->err.code, NEAP_OK);
        level after = now(L);
        if (c->ambient.n)
            fail_msg("allocation %d: %s is still in force after: %s", (int)n, c->ambient.v[0].where, text);
        if (after.live != base.live || after.nodes != base.nodes || after.slots != base.slots ||
            after.storages != base.storages)
            fail_msg("allocation %d: live %lld -> %lld, nodes %lld -> %lld", (int)n, (long long)base.live,
                     (long long)after.live, (long long)base.nodes, (long long)after.nodes);
        lua_getglobal(L, "probe");
        assert_int_equal(lua_pcall(L, 0, 1, 0), LUA_OK);
        assert_float_equal(lua_tonumber(L, -1), 6, 0);
        lua_settop(L, fn);
    }
    printf("%s allocations: %d of %d raise an error, %d are forgiven, %d Lua does without\n",
           core ? "the core's" : "Lua's", errors, (int)tries, n_forgiven, n_blocks);
    assert_false(done); /* the script makes more allocations than are tried */
    assert_in_range(n_blocks, 0, blocks);
    lua_close(L);
}

static void each_core_allocation_fails_in_turn(void **state)
{
    (void)state;
    sweep(true, script, 0);
}

static void each_lua_allocation_fails_in_turn(void **state)
{
    (void)state;
    sweep(false, script, 5);
}

static void each_core_allocation_of_checkpoints_fails_in_turn(void **state)
{
    (void)state;
    sweep(true, checkpoints, 0);
}

static void each_lua_allocation_of_checkpoints_fails_in_turn(void **state)
{
    (void)state;
    sweep(false, checkpoints, 20);
}

static void each_core_allocation_of_measuring_fails_in_turn(void **state)
{
    (void)state;
    sweep(true, measured, 0);
}

static void each_lua_allocation_of_measuring_fails_in_turn(void **state)
{
    (void)state;
    sweep(false, measured, 40); /* each recompute resets a coroutine; 11 to 25 fell on one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_core_allocation_of_measuring_fails_in_turn),
        cmocka_unit_test(each_lua_allocation_of_measuring_fails_in_turn),
        cmocka_unit_test(each_core_allocation_fails_in_turn),
        cmocka_unit_test(each_lua_allocation_fails_in_turn),
        cmocka_unit_test(each_core_allocation_of_checkpoints_fails_in_turn),
        cmocka_unit_test(each_lua_allocation_of_checkpoints_fails_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
