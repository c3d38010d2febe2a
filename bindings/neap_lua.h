/* neap_lua.h - Neap inside a host's Lua 5.4 state. No function raises across the host's frames.
 *
 *     neap_lua_open(L, NULL, 0);                    -- scripts may now say: local neap = require "neap"
 *     ...
 *     lua_close(L);                                 -- or neap_lua_close(L) first, in any order with others
 *
 * The Lua files are inside the library: no LUA_PATH is needed. Nothing global is set. */
#ifndef NEAP_LUA_H
#define NEAP_LUA_H

#include "neap.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lua_State;

#define NEAP_LUA_NO_FILES 1u /* scripts get no function that reads or writes files */

/* Makes `require "neap"` work in L. ctx: the host's context, which it frees after the state is closed; NULL:
 * the state owns one. 0, or nonzero when there is no memory or L has another context already. */
NEAP_API int neap_lua_open(struct lua_State *L, neap_ctx *ctx, unsigned flags);
/* Pushes a tensor and takes one reference, always. 0; on failure nothing is pushed and the reference is gone. */
NEAP_API int neap_lua_push(struct lua_State *L, neap_tensor *t);
/* The tensor at idx, borrowed; NULL if it is none or was released. */
NEAP_API neap_tensor *neap_lua_get(struct lua_State *L, int idx);
/* The context of a state; NULL if Neap is not open there. */
NEAP_API neap_ctx *neap_lua_context(struct lua_State *L);
/* Where the state keeps the coroutine that used Neap last, valid until the state is closed: an interrupt handler
 * reads it to stop a recompute, which runs in a coroutine of its own. NULL if Neap is not open there. */
NEAP_API struct lua_State *const volatile *neap_lua_running(struct lua_State *L);
/* Releases every tensor of the state and its own context; later calls from scripts raise. Done by lua_close. */
NEAP_API void neap_lua_close(struct lua_State *L);

#ifdef __cplusplus
}
#endif
#endif
