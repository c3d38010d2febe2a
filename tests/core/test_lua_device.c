/* test_lua_device.c - the cases of the checkpoint catalogue that need a second device, as Lua scripts: the context has
 * a device whose kernels are the CPU's, with memory and random numbers of its own. Scripts fail by their asserts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "neap_lua.h"
#include "ops/op.h"

static void *device_alloc(void *user, size_t bytes)
{
    (void)user;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void device_free(void *user, void *p, size_t bytes)
{
    (void)user, (void)bytes;
    free(p);
}

static void add_device(neap_ctx *c)
{
    static np_kernel_row rows[NP_N_OPS + 1];
    int n = 0;
    for (int i = 0; i < NP_N_OPS; i++)
        if (c->devices[0]->kern[i]) rows[n++] = (np_kernel_row){np_ops[i]->name, c->devices[0]->kern[i]};
    rows[n] = (np_kernel_row){NULL, NULL};
    neap_backend b = {.size = sizeof b,
                      .name = "fake:0",
                      .mem = {device_alloc, device_free, NULL, NULL},
                      .host_memory = true,
                      .kernels = rows};
    assert_int_equal(neap_register_backend(c, &b), 1);
}

static const char prelude[] =
    "neap = require 'neap'; checkpoint = neap.checkpoint\n"
    "local function plain(f, ...) return f(...) end\n"
    "function ck(f, ...) return checkpoint(f, {use_reentrant = false}, ...) end\n"
    "function rck(f, ...) return checkpoint(f, {use_reentrant = true}, ...) end\n"
    "variants = {plain, ck, rck}\n"
    "function on(device, ...) return neap.randn(...):to(device):requires_grad_() end\n"
    "function storages(device) return neap.memory_stats(device).storages end\n"
    "function same(a, b) if a ~= b then error(('expected %s, got %s'):format(a, b), 2) end end\n";

/* The script runs, and leaves nothing on either device. */
static void run(const char *code)
{
    lua_State *L = luaL_newstate();
    assert_non_null(L);
    luaL_openlibs(L);
    assert_int_equal(neap_lua_open(L, NULL, 0), 0);
    neap_ctx *c = neap_lua_context(L);
    add_device(c);
    if (luaL_dostring(L, prelude) || luaL_dostring(L, code)) fail_msg("%s", lua_tostring(L, -1));
    lua_gc(L, LUA_GCCOLLECT);
    lua_gc(L, LUA_GCCOLLECT);
    assert_int_equal(c->devices[1]->mem.storages, 0);
    assert_int_equal(c->n_regions + c->n_slots + c->n_markers, 0);
    assert_int_equal(c->ambient.n, 0);
    lua_close(L);
}

/* ck-G7 */
static void ck_G7_get_device_states_finds_devices_in_tables_in_order(void **state)
{
    (void)state;
    run("local _ <close> = neap.scope()\n"
        "local a, h = on('fake:0', 2), neap.ones(2)\n"
        "local ids, states = checkpoint.get_device_states(h, {a, {h, a}}, nil, 'text', {x = a})\n"
        "same(3, #ids); same(3, #states)\n"
        "for i = 1, 3 do same(0, ids[i]) end\n"
        "local function draw() return neap.hash(neap.rand(5, {device = 'fake:0'})) end\n"
        "local first = draw(); assert(draw() ~= first)\n"
        "checkpoint.set_device_states(ids, states, {device_type = 'meta'}); assert(draw() ~= first)\n"
        "checkpoint.set_device_states({0, 0}, {states[1]}, {device_type = 'fake'}); same(first, draw())\n");
}

/* ck-G8: the streams of all devices are kept, so there is nothing to warn of; also ck-M6. */
static void ck_G8_arguments_on_two_devices_draw_the_same_numbers_again(void **state)
{
    (void)state;
    run("local lines, hashes = {}, {}\n"
        "neap.on_log(function(_, text) lines[#lines + 1] = text end)\n"
        "for i, wrap in ipairs(variants) do\n"
        "  local _ <close> = neap.scope()\n"
        "  neap.seed(4)\n"
        "  local a, b = on('cpu', 50), on('fake:0', 50)\n"
        "  local y, z = wrap(function(s, t) return s:dropout(0.4):exp(), t:dropout(0.3):exp():dropout(0.5) "
        "end, a, b)\n"
        "  same('fake:0', z.device)\n"
        "  local later = neap.hash{neap.rand(3), neap.rand(3, {device = 'fake:0'})};\n"
        "  (y:sum() + z:sum():to('cpu')):backward()\n"
        "  same('fake:0', b.grad.device)\n"
        "  hashes[i] = neap.hash{y, z, a.grad, b.grad} .. later .. neap.hash(neap.rand(3, {device = "
        "'fake:0'}))\n"
        "  same(hashes[1], hashes[i])\n"
        "end\n"
        "same(0, #lines)\n");
}

/* ck-G11 */
static void ck_G11_the_default_device_of_the_forward_holds_in_the_recompute(void **state)
{
    (void)state;
    run("for i = 2, 3 do\n"
        "  local _ <close> = neap.scope()\n"
        "  local x, seen = on('fake:0', 3), {}\n"
        "  local y = neap.device('fake:0', variants[i], function(t)\n"
        "    local k = neap.full({3}, 2.0)\n"
        "    seen[#seen + 1] = k.device\n"
        "    return (t * k):sin()\n"
        "  end, x)\n"
        "  same('cpu', neap.ones(1).device)\n"
        "  y:sum():backward()\n"
        "  same('fake:0 fake:0', table.concat(seen, ' '))\n"
        "  assert(neap.equal(x.grad, (x:detach() * 2):cos() * 2))\n"
        "end\n");
}

/* ck-K15 */
static void ck_K15_an_offloaded_product_waits_on_the_host(void **state)
{
    (void)state;
    run("local function f(t) return t:matmul(t):sin() end\n"
        "local function policy(answer) return function(_, op) return op.name == 'matmul' and answer or "
        "'prefer_recompute' end end\n"
        "local x = on('fake:0', 8, 8)\n"
        "f(x):sum():backward(); local want = neap.hash(x.grad); x.grad:release(); x.grad = nil\n"
        "local function try(answer)\n"
        "  local _ <close> = neap.scope()\n"
        "  collectgarbage 'stop'\n"
        "  local device, host = neap.memory_stats('fake:0').live, neap.memory_stats('cpu').live\n"
        "  local y = checkpoint(f, {use_reentrant = false, policy = policy(answer)}, x)\n"
        "  device, host = neap.memory_stats('fake:0').live - device, neap.memory_stats('cpu').live - host\n"
        "  neap.counters(true)\n"
        "  y:sum():backward()\n"
        "  local n = neap.counters().matmul\n"
        "  same(want, neap.hash(x.grad)); x.grad:release(); x.grad = nil\n"
        "  collectgarbage 'restart'\n"
        "  return device, host, n.kernels, n.replayed\n"
        "end\n"
        "local bytes = 8 * 8 * 4\n"
        "local function expect(answer, ...)\n"
        "  local got, want = table.pack(try(answer)), table.pack(...)\n"
        "  for i = 1, 4 do if got[i] ~= want[i] then error(answer .. ' ' .. i .. ': ' .. got[i]) end end\n"
        "end\n"
        "expect('must_recompute', bytes, 0, 3, 0)\n"       /* the result alone */
        "expect('must_save', 2 * bytes, 0, 2, 1)\n"        /* and the product */
        "expect('must_cpu_offload', bytes, bytes, 2, 1)\n" /* which is on the host */
        "expect('prefer_cpu_offload', bytes, bytes, 2, 1)\n"
        "x:release()\n");
}

/* ck-K15: what cannot be offloaded. */
static void ck_K15_no_room_on_the_host_and_ops_in_place(void **state)
{
    (void)state;
    run("local function policy(name, answer) return function(_, op) return op.name == name and answer or "
        "'prefer_recompute' end end\n"
        "local function try(f, x, ...)\n"
        "  local _ <close> = neap.scope()\n"
        "  local ok, y = pcall(checkpoint, f, {use_reentrant = false, policy = policy(...)}, x)\n"
        "  if not ok then return neap.error_code(y), y end\n"
        "  y:sum():backward()\n"
        "  local h = neap.hash(x.grad); x.grad:release(); x.grad = nil\n"
        "  return h\n"
        "end\n"
        "local x = on('fake:0', 64, 64)\n"
        "local function f(t) return t:matmul(t):sin() end\n"
        "local want = try(f, x, 'matmul', 'must_save')\n"
        "collectgarbage(); collectgarbage()\n"
        "local limit = neap.memory_stats('cpu').live + 1000\n"
        "local code, err = neap.memory_limit('cpu', limit, try, f, x, 'matmul', 'must_cpu_offload')\n"
        "same('E-LIMIT', code); assert(err:find('neap.matmul', 1, true), err)\n"
        "local moved = neap.memory_stats().moved.to_host\n"
        "same(want, (neap.memory_limit('cpu', limit, try, f, x, 'matmul', 'prefer_cpu_offload')))\n"
        "same(moved, neap.memory_stats().moved.to_host)\n"
        "same(want, (try(f, x, 'matmul', 'prefer_cpu_offload')))\n"
        "assert(neap.memory_stats().moved.to_host > moved)\n"
        "local function g(t) return t:sin():mul_(2):cos() end\n"
        "want = try(g, x, 'mul_', 'must_recompute')\n"
        "same(want, (try(g, x, 'mul_', 'prefer_cpu_offload')))\n"
        "code, err = try(g, x, 'mul_', 'must_cpu_offload')\n"
        "same('E-SAC-INPLACE', code); assert(err:find('mul_', 1, true))\n"
        "x:release()\n");
}

/* ck-K16: the kept result is multiplied in place before it is used; the copy on the host is as it was. */
static void ck_K16_an_offloaded_result_may_be_changed_in_place(void **state)
{
    (void)state;
    run("local function f(t) return t:sin():mul_(2):cos():exp() end\n"
        "local function gradient(g)\n"
        "  local _ <close> = neap.scope()\n"
        "  local x = neap.full({3}, 0.5, {device = 'fake:0', requires_grad = true})\n"
        "  local y = g(x)\n"
        "  neap.counters(true)\n"
        "  local ok, err = pcall(y.backward, y, neap.ones_like(y))\n"
        "  return ok and neap.hash(x.grad) or neap.error_code(err), neap.counters().sin.replayed\n"
        "end\n"
        "local function kept(answer)\n"
        "  local function policy(_, op) return op.name == 'sin' and answer or 'prefer_recompute' end\n"
        "  return gradient(function(x) return checkpoint(f, {use_reentrant = false, policy = policy}, x) "
        "end)\n"
        "end\n"
        "local want = gradient(f)\n"
        "for _, answer in ipairs{'must_cpu_offload', 'prefer_cpu_offload'} do\n"
        "  local got, replayed = kept(answer)\n"
        "  same(want, got); same(1, replayed)\n"
        "end\n"
        "same('E-SAC-MUTATED', (kept 'must_save'))\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ck_G7_get_device_states_finds_devices_in_tables_in_order),
        cmocka_unit_test(ck_G8_arguments_on_two_devices_draw_the_same_numbers_again),
        cmocka_unit_test(ck_G11_the_default_device_of_the_forward_holds_in_the_recompute),
        cmocka_unit_test(ck_K15_an_offloaded_product_waits_on_the_host),
        cmocka_unit_test(ck_K15_no_room_on_the_host_and_ops_in_place),
        cmocka_unit_test(ck_K16_an_offloaded_result_may_be_changed_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
