/* stream.c - neap.cuda.Stream and neap.cuda.Event.
 *
 * A stream is entered as a group is: by calling it with a function, or by a guard, which keeps it. A stream that is
 * collected is given to the next who wants one; what it was asked for goes on. */
#include "nl.h"

typedef struct stream {
    nl_state *st;
    int device, number;
} stream;

typedef struct event {
    nl_state *st;
    int device;
    bool recorded;
    void *event;
} event;

static stream *check_stream(lua_State *L, nl_state *st, int idx, const char *method)
{
    stream *s = nl_userdata(L, idx, &st->k_stream);
    if (!s && idx == 1)
        nl_error(L, st, NEAP_E_ARG, "neap.cuda.Stream: write stream:%s(...), with a colon", method);
    if (!s) nl_error(L, st, NEAP_E_ARG, "neap.cuda.Stream: %s needs a stream", method);
    return s;
}

static event *check_event(lua_State *L, nl_state *st, int idx, const char *method)
{
    event *e = nl_userdata(L, idx, &st->k_event);
    if (!e && idx == 1)
        nl_error(L, st, NEAP_E_ARG, "neap.cuda.Event: write event:%s(...), with a colon", method);
    if (!e) nl_error(L, st, NEAP_E_ARG, "neap.cuda.Event: %s needs an event", method);
    return e;
}

/* The device at 1, of the plug-in "cuda" where none is given. */
static int device_at(lua_State *L, nl_state *st, const char *fn)
{
    if (lua_isnoneornil(L, 1)) {
        lua_settop(L, 0);
        lua_pushliteral(L, "cuda");
    }
    return nl_check_device(L, st, 1, fn);
}

/* ---- streams */

/* cuda_stream([device]); see neap.cuda.Stream. A script that lets go of its streams never runs out of them. */
static int stream_new(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device = device_at(L, st, "cuda.Stream");
    stream *s = lua_newuserdatauv(L, sizeof *s, 0);
    *s = (stream){st, device, -1};
    nl_set_metatable(L, &st->k_stream);
    s->number = neap_x_stream_new(st->c, device);
    if (s->number < 0) {
        neap_clear_error(st->c);
        lua_gc(L, LUA_GCCOLLECT);
        s->number = neap_x_stream_new(st->c, device);
    }
    return s->number >= 0 ? 1 : nl_raise(L, st, "cuda.Stream");
}

static int enter(lua_State *L, nl_state *st, const stream *s)
{
    nl_guard *guard = nl_guard_new(L, st, "cuda.Stream");
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1);
    if (!nl_guard_add(guard, neap_x_stream_begin(st->c, s->device, s->number)))
        return nl_raise(L, st, "cuda.Stream");
    return nl_guard_run(L, st, lua_gettop(L), 2);
}

/* stream(fn, ...) -> fn's results */
static int stream_call(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const stream *s = check_stream(L, st, 1, "enter");
    nl_check_body(L, st, 2, "cuda.Stream");
    return enter(L, st, s);
}

/* stream:enter() -> guard */
static int stream_enter(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const stream *s = check_stream(L, st, 1, "enter");
    if (lua_gettop(L) > 1)
        return nl_error(L, st, NEAP_E_ARG,
                        "neap.cuda.Stream: enter takes no function; write stream(fn, ...)");
    return enter(L, st, s);
}

static int stream_synchronize(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const stream *s = check_stream(L, st, 1, "synchronize");
    return neap_x_stream_finish(st->c, s->device, s->number) ? 0 : nl_raise(L, st, "cuda.Stream");
}

static int stream_query(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const stream *s = check_stream(L, st, 1, "query");
    lua_pushboolean(L, neap_x_stream_done(st->c, s->device, s->number));
    return 1;
}

/* stream:wait(other): other nil is the stream that is there always */
static int stream_wait(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char got[80];
    if (nl_userdata(L, 2, &st->k_event))
        nl_error(
            L, st, NEAP_E_ARG,
            "neap.cuda.Stream: wait needs a stream, got %s: give the stream that the event was recorded on",
            nl_kind(L, 2, got, sizeof got));
    const stream *s = check_stream(L, st, 1, "wait"),
                 *other = lua_isnoneornil(L, 2) ? NULL : check_stream(L, st, 2, "wait");
    if (other && other->device != s->device)
        return nl_error(L, st, NEAP_E_DEVICE,
                        "neap.cuda.Stream: wait needs a stream of the same device: %s, not %s",
                        neap_device_name(st->c, s->device), neap_device_name(st->c, other->device));
    if (!neap_x_stream_wait(st->c, s->device, s->number, other ? other->number : 0))
        return nl_raise(L, st, "cuda.Stream");
    return 0;
}

static int stream_gc(lua_State *L)
{
    const stream *s = lua_touserdata(L, 1);
    if (s->st->c && s->number >= 0) neap_x_stream_free(s->st->c, s->device, s->number);
    return 0;
}

static int stream_tostring(lua_State *L)
{
    const stream *s = lua_touserdata(L, 1);
    lua_pushfstring(L, "cuda.Stream %d of %s", s->number,
                    s->st->c ? neap_device_name(s->st->c, s->device) : "a closed context");
    return 1;
}

/* ---- events */

/* cuda_event([device]); see neap.cuda.Event */
static int event_new(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int device = device_at(L, st, "cuda.Event");
    event *e = lua_newuserdatauv(L, sizeof *e, 0);
    *e = (event){.st = st, .device = device};
    nl_set_metatable(L, &st->k_event);
    e->event = neap_x_event_new(st->c, device);
    return e->event ? 1 : nl_raise(L, st, "cuda.Event");
}

static int event_record(lua_State *L)
{
    nl_state *st = nl_enter(L);
    event *e = check_event(L, st, 1, "record");
    char got[80];
    if (!lua_isnoneornil(L, 2)) /* it would be lost */
        nl_error(
            L, st, NEAP_E_ARG,
            "neap.cuda.Event: record takes nothing, got %s, too; on a stream: stream(event.record, event)",
            nl_kind(L, 2, got, sizeof got));
    if (!neap_x_event_record(st->c, e->device, e->event)) return nl_raise(L, st, "cuda.Event");
    e->recorded = true;
    lua_settop(L, 1);
    return 1;
}

static int event_query(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const event *e = check_event(L, st, 1, "query");
    lua_pushboolean(L, neap_x_event_done(st->c, e->device, e->event));
    return 1;
}

static int event_synchronize(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const event *e = check_event(L, st, 1, "synchronize");
    return neap_x_event_wait(st->c, e->device, e->event) ? 0 : nl_raise(L, st, "cuda.Event");
}

/* event:elapsed_time(later) -> milliseconds */
static int event_elapsed(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const event *from = check_event(L, st, 1, "elapsed_time"), *to = check_event(L, st, 2, "elapsed_time");
    double ms = 0;
    if (from->device != to->device)
        return nl_error(L, st, NEAP_E_DEVICE, "neap.cuda.Event: elapsed_time needs two events of one device");
    if (!from->recorded || !to->recorded)
        return nl_error(L, st, NEAP_E_ARG, "neap.cuda.Event: elapsed_time: event:record() of %s comes first",
                        from->recorded ? "the later event" : "the first event");
    if (!neap_x_event_time(st->c, from->device, from->event, to->event, &ms))
        return nl_raise(L, st, "cuda.Event");
    lua_pushnumber(L, ms);
    return 1;
}

static int event_gc(lua_State *L)
{
    event *e = lua_touserdata(L, 1);
    if (e->st->c && e->event) neap_x_event_free(e->st->c, e->device, e->event);
    e->event = NULL;
    return 0;
}

/* A key that the methods (argument 1) do not have is an error, which names PyTorch's or the nearest. Upvalue 2: class */
static int unknown_method(lua_State *L)
{
    nl_state *st = nl_up(L);
    const char *class = lua_tostring(L, lua_upvalueindex(2)), *names[16];
    char got[80];
    int n = 0;
    if (lua_type(L, 2) != LUA_TSTRING)
        return nl_error(L, st, NEAP_E_ARG, "%s: methods have names, got %s", class,
                        nl_kind(L, 2, got, sizeof got));
    const char *key = lua_tostring(L, 2), *here = nl_translate(L, st, "streams", key);
    if (here) return nl_error(L, st, NEAP_E_ARG, "%s: no method '%s'%s", class, key, here);
    for (lua_pushnil(L); lua_next(L, 1) && n < 16; lua_pop(L, 1)) names[n++] = lua_tostring(L, -2);
    const char *near = nl_nearest(key, names, n);
    return nl_error(L, st, NEAP_E_ARG, near ? "%s: no method '%s'; did you mean '%s'?" : "%s: no method '%s'",
                    class, key, near);
}

static void open_class(lua_State *L, nl_state *st, void *key, const char *name, const luaL_Reg *metamethods,
                       const luaL_Reg *methods)
{
    nl_open_class(L, st, key, name, metamethods, methods);
    lua_rawgetp(L, LUA_REGISTRYINDEX, key);
    lua_getfield(L, -1, "__index");
    lua_newtable(L);
    lua_pushlightuserdata(L, st);
    lua_pushstring(L, name);
    lua_pushcclosure(L, unknown_method, 2);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_pop(L, 2);
}

static const luaL_Reg functions[] = {{"cuda_stream", stream_new}, {"cuda_event", event_new}, {NULL, NULL}};
static const luaL_Reg stream_methods[] = {{"enter", stream_enter},
                                          {"synchronize", stream_synchronize},
                                          {"query", stream_query},
                                          {"wait", stream_wait},
                                          {NULL, NULL}};
static const luaL_Reg stream_metamethods[] = {
    {"__call", stream_call}, {"__gc", stream_gc}, {"__tostring", stream_tostring}, {NULL, NULL}};
static const luaL_Reg event_methods[] = {{"record", event_record},
                                         {"query", event_query},
                                         {"synchronize", event_synchronize},
                                         {"elapsed_time", event_elapsed},
                                         {NULL, NULL}};
static const luaL_Reg event_metamethods[] = {{"__gc", event_gc}, {NULL, NULL}};

void nl_open_stream(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    open_class(L, st, &st->k_stream, "neap.cuda.Stream", stream_metamethods, stream_methods);
    open_class(L, st, &st->k_event, "neap.cuda.Event", event_metamethods, event_methods);
}
