/* error.c - errors as people see them: "file:line: neap.op: what, values, rule, remedy [E-CODE]".
 *
 * The line is the user's: the innermost frame outside the library's own Lua files, or none. The core's record is copied
 * and cleared before the first Lua call, so an error inside the error path leaves nothing pending. An error value
 * of the user's own functions waits in a parked slot and comes out as the very same value. */
#include "nl.h"

static bool of_library(const nl_state *st, const char *source)
{
    for (int i = 0; i < st->n_prefix; i++)
        if (!strncmp(source, st->prefix[i], strlen(st->prefix[i]))) return true;
    return false;
}

/* "file:line", by hand: every guard and region notes where it was made, and formatting took a tenth of their time. */
static void write_place(char *buf, size_t n, const char *file, int line)
{
    char digits[12];
    size_t k = sizeof digits, len = strnlen(file, n - 1);
    for (digits[--k] = 0; line > 0; line /= 10) digits[--k] = (char)('0' + line % 10);
    digits[--k] = ':';
    memcpy(buf, file, len);
    size_t m = strnlen(digits + k, n - 1 - len);
    memcpy(buf + len, digits + k, m);
    buf[len + m] = 0;
}

void nl_where(lua_State *L, nl_state *st, char *buf, size_t n)
{
    lua_Debug ar;
    buf[0] = 0;
    for (int level = 0; level < 400 && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline <= 0) continue;
        if (of_library(st, ar.source)) continue;
        write_place(buf, n, ar.short_src, ar.currentline);
        return;
    }
}

/* Pushes "; in Sequential.3 (Linear)", or "": which module's forward runs. lua/nn/module.lua knows. */
static const char *push_module_path(lua_State *L)
{
    if (!lua_checkstack(L, 4)) return "";
    if (lua_getfield(L, LUA_REGISTRYINDEX, "neap.module_path") == LUA_TFUNCTION &&
        lua_pcall(L, 0, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING)
        return lua_tostring(L, -1);
    lua_pop(L, 1);
    lua_pushliteral(L, "");
    return lua_tostring(L, -1);
}

/* Raises where + text + code; the code stands at the end of the first line. */
static int raise_text(lua_State *L, nl_state *st, const char *text, neap_code code)
{
    char where[160];
    nl_where(L, st, where, sizeof where);
    const char *module = push_module_path(L), *rest = strchr(text, '\n');
    size_t first = rest ? (size_t)(rest - text) : strlen(text);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    if (where[0]) {
        luaL_addstring(&b, where);
        luaL_addstring(&b, ": ");
    }
    luaL_addlstring(&b, text, first);
    luaL_addstring(&b, module);
    luaL_addstring(&b, " [");
    luaL_addstring(&b, neap_code_name(code));
    luaL_addchar(&b, ']');
    if (rest) luaL_addstring(&b, rest);
    luaL_pushresult(&b);
    return lua_error(L);
}

int nl_error(lua_State *L, nl_state *st, neap_code code, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *s = text; *s; s++) /* one line, whatever string of the script is quoted */
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
    return raise_text(L, st, text, code);
}

void *nl_park(lua_State *L, nl_state *st)
{
    unsigned slot = st->next_park++ % NL_PARKED + 1;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_parked);
    lua_insert(L, -2);
    lua_rawseti(L, -2, slot);
    lua_pop(L, 1);
    return (void *)(uintptr_t)slot;
}

static int raise_parked(lua_State *L, nl_state *st, uintptr_t slot)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_parked);
    lua_rawgeti(L, -1, (lua_Integer)slot);
    lua_pushboolean(L, 0);
    lua_rawseti(L, -3, (lua_Integer)slot);
    return lua_error(L);
}

/* The core's texts name the op, or begin with the function's name, or with nothing. */
static void with_name(char *buf, size_t n, const char *message, const char *name)
{
    size_t len = name ? strlen(name) : 0;
    if (!name || !strncmp(message, "neap.", 5)) snprintf(buf, n, "%s", message);
    else if (!strncmp(message, name, len) && message[len] == ':') snprintf(buf, n, "neap.%s", message);
    else snprintf(buf, n, "neap.%s: %s", name, message);
}

static void add_to_first_line(char *text, size_t n, const char *more)
{
    size_t len = strlen(text), add = strlen(more), at = strcspn(text, "\n");
    if (len + add >= n) return;
    memmove(text + at + add, text + at, len - at + 1);
    memcpy(text + at, more, add);
}

int nl_raise(lua_State *L, nl_state *st, const char *name)
{
    neap_ctx *c = st->c;
    neap_code code = neap_error(c);
    uintptr_t value = code == NEAP_E_USER ? (uintptr_t)neap_error_value(c) : 0;
    char text[2700];
    with_name(text, sizeof text, neap_error_message(c), name);
    neap_clear_error(c);
    if (code == NEAP_E_STOP && st->run && st->run->co == L) {
        st->run->stopped = true;
        return lua_yield(L, 0); /* the recompute has what it needs: its coroutine ends here */
    }
    if (value && value <= NL_PARKED) return raise_parked(L, st, value);
    if (code == NEAP_OK) code = NEAP_E_INTERNAL;
    add_to_first_line(text, sizeof text, nl_changed(L, st, code));
    return raise_text(L, st, text, code);
}

/* error_code(err): the code at the end of the first line of a string, or nil. */
int nl_error_code(lua_State *L)
{
    size_t len;
    if (lua_type(L, 1) != LUA_TSTRING) {
        lua_pushnil(L);
        return 1;
    }
    const char *s = lua_tolstring(L, 1, &len), *end = memchr(s, '\n', len);
    if (!end) end = s + len;
    const char *open = end;
    while (open > s && *open != '[') open--;
    if (end - open > 4 && *open == '[' && end[-1] == ']' && open[1] == 'E' && open[2] == '-') {
        lua_pushlstring(L, open + 1, (size_t)(end - open - 2));
        return 1;
    }
    lua_pushnil(L);
    return 1;
}

/* What a value is, for "got ...": short and never raising. */
const char *nl_kind(lua_State *L, int idx, char *buf, size_t n)
{
    switch (lua_type(L, idx)) {
    case LUA_TNONE: snprintf(buf, n, "nothing"); break;
    case LUA_TNIL: snprintf(buf, n, "nil"); break;
    case LUA_TBOOLEAN: snprintf(buf, n, "%s", lua_toboolean(L, idx) ? "true" : "false"); break;
    case LUA_TNUMBER:
        if (lua_isinteger(L, idx)) snprintf(buf, n, "%lld", (long long)lua_tointeger(L, idx));
        else snprintf(buf, n, "%.14g", (double)lua_tonumber(L, idx));
        break;
    case LUA_TSTRING: snprintf(buf, n, "the string '%.40s'", lua_tostring(L, idx)); break;
    case LUA_TTABLE: snprintf(buf, n, "a table"); break;
    case LUA_TFUNCTION: snprintf(buf, n, "a function"); break;
    case LUA_TTHREAD: snprintf(buf, n, "a coroutine"); break;
    case LUA_TUSERDATA: {
        snprintf(buf, n, "a userdata");
        if (luaL_getmetafield(L, idx, "__name") == LUA_TSTRING) {
            const char *name = lua_tostring(L, -1);
            snprintf(buf, n, "%s", !strcmp(name, "neap.Tensor") ? "a tensor" : name);
            lua_pop(L, 1);
        }
        break;
    }
    default: snprintf(buf, n, "%s", luaL_typename(L, idx));
    }
    return buf;
}
