/* args.c - reading arguments: positions count from 1, integral floats are whole numbers, numeric strings are not
 * numbers, option tables have known names only. Every check is made before anything is taken. */
#include "nl.h"

#include <math.h>

bool nl_integer(lua_State *L, int idx, int64_t *out)
{
    if (lua_type(L, idx) != LUA_TNUMBER) return false;
    int ok;
    lua_Integer v = lua_tointegerx(L, idx, &ok);
    *out = v;
    return ok;
}

int64_t nl_check_integer(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    char got[80];
    int64_t v = 0;
    if (!nl_integer(L, idx, &v))
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %s must be a whole number, got %s", fn, what,
                 nl_kind(L, idx, got, sizeof got));
    return v;
}

double nl_check_number(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    char got[80];
    if (lua_type(L, idx) != LUA_TNUMBER)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %s must be a number, got %s", fn, what,
                 nl_kind(L, idx, got, sizeof got));
    return lua_tonumber(L, idx);
}

const char *nl_check_text(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    char got[80];
    size_t n = 0;
    if (lua_type(L, idx) != LUA_TSTRING)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: %s must be a string, got %s", fn, what,
                 nl_kind(L, idx, got, sizeof got));
    const char *s = lua_tolstring(L, idx, &n);
    if (strlen(s) != n)
        nl_error(L, st, NEAP_E_ARG,
                 "neap.%s: %s holds a 0 byte after '%.60s', where other programs would end it", fn, what, s);
    return s;
}

int64_t nl_check_dim(lua_State *L, nl_state *st, int idx, const char *fn, int ndim)
{
    int64_t d = nl_check_integer(L, st, idx, fn, "the dimension");
    if (d == 0)
        nl_error(L, st, NEAP_E_DIMS, "neap.%s: dimension 0: dimensions count from 1, or from the end with -1",
                 fn);
    if (ndim >= 0 && (d > ndim || d < -ndim))
        nl_error(L, st, NEAP_E_DIMS, "neap.%s: dimension %lld does not exist: the tensor has %d", fn,
                 (long long)d, ndim);
    if (ndim >= 0 && d < 0) return d + ndim;
    return d > 0 ? d - 1 : d;
}

neap_dtype nl_check_dtype(lua_State *L, nl_state *st, int idx, const char *fn)
{
    neap_dtype t = NEAP_FLOAT32;
    char got[80];
    if (lua_type(L, idx) == LUA_TSTRING) {
        const char *name = lua_tostring(L, idx);
        if (neap_x_dtype_parse(name, &t)) return t;
        const char *names[NEAP_N_DTYPES];
        for (int i = 0; i < NEAP_N_DTYPES; i++) names[i] = neap_dtype_name((neap_dtype)i);
        const char *here = nl_translate(L, st, "dtypes", name);
        if (here) nl_error(L, st, NEAP_E_DTYPE, "neap.%s: unknown dtype '%s'%s", fn, name, here);
        const char *near = nl_nearest(name, names, NEAP_N_DTYPES);
        nl_error(L, st, NEAP_E_DTYPE, "neap.%s: unknown dtype '%s'; did you mean '%s'?", fn, name,
                 near ? near : "float32");
    }
    nl_error(L, st, NEAP_E_ARG, "neap.%s: a dtype is a string such as \"float32\", got %s", fn,
             nl_kind(L, idx, got, sizeof got));
    return t;
}

int nl_check_device(lua_State *L, nl_state *st, int idx, const char *fn)
{
    char got[80];
    if (lua_type(L, idx) != LUA_TSTRING)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: a device is a string such as \"cpu\" or \"cuda:0\", got %s", fn,
                 nl_kind(L, idx, got, sizeof got));
    int d = neap_device_find(st->c, lua_tostring(L, idx));
    if (d < 0) nl_raise(L, st, fn);
    return d;
}

/* ---- near names: optimal string alignment distance, at most a third of the name */

static int distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    int n = (int)strlen(a), m = (int)strlen(b), row[3][MAX + 1];
    if (n > MAX || m > MAX) return MAX;
    for (int j = 0; j <= m; j++) row[1][j] = j;
    for (int i = 1; i <= n; i++) {
        int *before = row[(i - 1) % 3], *last = row[i % 3], *now = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[(n + 1) % 3][m];
}

const char *nl_nearest(const char *name, const char *const *names, int n)
{
    int limit = (int)strlen(name) / 3, best = 0;
    const char *found = NULL;
    if (limit < 1) limit = 1;
    for (int i = 0; i < n; i++) {
        int d = distance(name, names[i]);
        if (d <= limit && (!found || d < best)) found = names[i], best = d;
    }
    return found;
}

/* What a name of PyTorch's is called here, as the end of an error text; NULL with nil on the stack where unknown. */
const char *nl_translate(lua_State *L, nl_state *st, const char *kind, const char *name)
{
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_translate) != LUA_TFUNCTION) return NULL;
    lua_pushstring(L, kind);
    lua_pushstring(L, name);
    lua_call(L, 2, 1);
    return lua_tostring(L, -1);
}

/* ---- options */

bool nl_is_options(lua_State *L, int idx)
{
    if (lua_type(L, idx) != LUA_TTABLE) return false;
    idx = lua_absindex(L, idx);
    if (lua_getmetatable(L, idx)) {
        lua_pop(L, 1);
        return false;
    }
    lua_pushnil(L);
    if (!lua_next(L, idx)) return true;
    bool named = lua_type(L, -2) == LUA_TSTRING;
    lua_pop(L, 2);
    return named;
}

static void unknown_option(lua_State *L, nl_state *st, const char *fn, const char *key,
                           const char *const *names)
{
    int n = 0;
    char list[300] = "";
    while (names[n]) n++;
    const char *here = nl_translate(L, st, "options", key);
    if (here) nl_error(L, st, NEAP_E_UNKNOWN_OPTION, "neap.%s: unknown option '%s'%s", fn, key, here);
    const char *near = nl_nearest(key, names, n);
    if (near)
        nl_error(L, st, NEAP_E_UNKNOWN_OPTION, "neap.%s: unknown option '%s'; did you mean '%s'?", fn, key,
                 near);
    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
    if (!n)
        nl_error(L, st, NEAP_E_UNKNOWN_OPTION, "neap.%s: unknown option '%s'; it takes no options", fn, key);
    nl_error(L, st, NEAP_E_UNKNOWN_OPTION, "neap.%s: unknown option '%s'; options are: %s", fn, key, list);
}

void nl_check_options(lua_State *L, nl_state *st, int idx, const char *fn, const char *const *names)
{
    char got[80];
    if (idx == 0 || lua_isnoneornil(L, idx)) return;
    if (lua_type(L, idx) != LUA_TTABLE)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: options are a table such as {%s = ...}, got %s", fn,
                 names[0] ? names[0] : "name", nl_kind(L, idx, got, sizeof got));
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TSTRING)
            nl_error(L, st, NEAP_E_ARG,
                     "neap.%s: an option table has names as keys only, got the key %s; data and "
                     "options never share a table",
                     fn, nl_kind(L, -1, got, sizeof got));
        const char *key = lua_tostring(L, -1);
        int i = 0;
        while (names[i] && strcmp(names[i], key)) i++;
        if (!names[i]) unknown_option(L, st, fn, key, names);
    }
}

bool nl_get_option(lua_State *L, int idx, const char *name)
{
    if (idx == 0 || lua_type(L, idx) != LUA_TTABLE) return false;
    idx = lua_absindex(L, idx);
    lua_pushstring(L, name);
    if (lua_rawget(L, idx) != LUA_TNIL) return true;
    lua_pop(L, 1);
    return false;
}

bool nl_bool_option(lua_State *L, nl_state *st, int idx, const char *fn, const char *name, bool def)
{
    char got[80];
    if (!nl_get_option(L, idx, name)) return def;
    if (lua_type(L, -1) != LUA_TBOOLEAN)
        nl_error(L, st, NEAP_E_ARG, "neap.%s: option %s must be true or false, got %s", fn, name,
                 nl_kind(L, -1, got, sizeof got));
    bool v = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return v;
}

double nl_number_option(lua_State *L, nl_state *st, int idx, const char *fn, const char *name, double def)
{
    if (!nl_get_option(L, idx, name)) return def;
    char what[60];
    snprintf(what, sizeof what, "option %s", name);
    double v = nl_check_number(L, st, -1, fn, what);
    lua_pop(L, 1);
    return v;
}

/* ---- shapes */

static void too_many(lua_State *L, nl_state *st, const char *fn, int64_t n)
{
    if (n > NEAP_MAX_DIMS)
        nl_error(L, st, NEAP_E_DIMS, "neap.%s: %lld dimensions, at most %d are possible", fn, (long long)n,
                 NEAP_MAX_DIMS);
}

void nl_only_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what)
{
    int64_t len = (int64_t)lua_rawlen(L, idx);
    char got[80];
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        int64_t i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0, value = lua_tointeger(L, -1);
        lua_pop(L, 1);
        if (i >= 1 && i <= len) continue;
        if (lua_type(L, -1) == LUA_TSTRING && value == len && strcmp(lua_tostring(L, -1), "n") == 0)
            continue; /* table.pack's */
        nl_error(
            L, st, NEAP_E_ARG,
            "neap.%s: the list of %s holds the key %s: a list has positions only, options come after it in a "
            "table of their own",
            fn, what, nl_kind(L, -1, got, sizeof got));
    }
}

int nl_check_shape(lua_State *L, nl_state *st, int idx, int last, const char *fn, int64_t *shape, int *used)
{
    char got[80];
    int n = nl_shape_values(L, st, idx, shape);
    *used = 1;
    if (n >= 0) return n;
    if (lua_type(L, idx) == LUA_TTABLE) {
        lua_Unsigned len = lua_rawlen(L, idx);
        too_many(L, st, fn, (int64_t)len);
        nl_only_list(L, st, idx, fn, "sizes");
        for (n = 0; n < (int)len; n++) {
            lua_rawgeti(L, idx, n + 1);
            shape[n] = nl_check_integer(L, st, -1, fn, "a size");
            lua_pop(L, 1);
        }
        return n;
    }
    for (n = 0; idx + n <= last; n++) {
        too_many(L, st, fn, n + 1);
        if (!nl_integer(L, idx + n, &shape[n]))
            nl_error(L, st, NEAP_E_ARG, "neap.%s: a shape is whole numbers or one list of them, got %s", fn,
                     nl_kind(L, idx + n, got, sizeof got));
    }
    *used = n;
    return n;
}
