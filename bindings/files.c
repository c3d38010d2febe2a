/* files.c - safetensors and idx files as tables of tensors. Not opened when the host forbids files. */
#include "nl.h"

typedef struct file_box { /* frees the file on every way out */
    neap_file *f;
} file_box;

static int file_gc(lua_State *L)
{
    file_box *b = lua_touserdata(L, 1);
    if (b->f) neap_file_free(b->f);
    b->f = NULL;
    return 0;
}

static file_box *push_file_box(lua_State *L)
{
    file_box *b = lua_newuserdatauv(L, sizeof *b, 0);
    b->f = NULL;
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, file_gc);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "__close");
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_toclose(L, -1);
    return b;
}

static const char *check_path(lua_State *L, nl_state *st, const char *fn)
{
    return nl_check_text(L, st, 1, fn, "the path");
}

/* Pushes a list of name, value, name, value ... of the metadata option; the strings stay in it. */
static const char **read_metadata(lua_State *L, nl_state *st, int *n)
{
    static const char *const names[] = {"metadata", NULL};
    char got[80];
    *n = 0;
    nl_check_options(L, st, 3, "save", names);
    if (!nl_get_option(L, 3, "metadata")) return NULL;
    int table = lua_gettop(L);
    if (lua_type(L, table) != LUA_TTABLE)
        nl_error(L, st, NEAP_E_ARG, "neap.save: metadata must be a table of strings, got %s",
                 nl_kind(L, table, got, sizeof got));
    nl_sorted_keys(L, st, table, "save");
    int keys = lua_gettop(L);
    *n = (int)lua_rawlen(L, keys);
    const char **pairs = lua_newuserdatauv(L, sizeof *pairs * (size_t)(2 * *n + 1), 0);
    for (int i = 0; i < *n; i++) {
        lua_rawgeti(L, keys, i + 1);
        lua_pushvalue(L, -1);
        lua_rawget(L, table);
        pairs[2 * i] = nl_check_text(L, st, -2, "save", "a name in the metadata");
        pairs[2 * i + 1] = nl_check_text(L, st, -1, "save", "a value in the metadata");
        lua_pop(L, 2); /* both stay alive in the metadata table */
    }
    return pairs;
}

/* save(path, tensors, {metadata = {...}}) */
static int save(lua_State *L)
{
    nl_state *st = nl_enter(L);
    char got[80], what[120];
    int n_meta;
    const char *path = check_path(L, st, "save");
    if (lua_type(L, 2) != LUA_TTABLE)
        return nl_error(L, st, NEAP_E_ARG, "neap.save: needs a table of tensors by name, got %s",
                        nl_kind(L, 2, got, sizeof got));
    lua_settop(L, 3);
    const char **meta = read_metadata(L, st, &n_meta);
    nl_sorted_keys(L, st, 2, "save");
    int keys = lua_gettop(L), n = (int)lua_rawlen(L, keys);
    const char **names = lua_newuserdatauv(L, sizeof *names * (size_t)(n + 1), 0);
    neap_tensor **tensors = lua_newuserdatauv(L, sizeof *tensors * (size_t)(n + 1), 0);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, keys, i + 1);
        names[i] = nl_check_text(L, st, -1, "save", "a name");
        snprintf(what, sizeof what, "'%.90s'", names[i]);
        lua_rawget(L, 2);
        tensors[i] = nl_check_tensor(L, st, -1, "save", what);
        lua_pop(L, 1);
    }
    int base = nl_set_base(st, 1), bad = neap_save(st->c, path, n, names, tensors, n_meta, meta);
    nl_set_base(st, base);
    return bad ? nl_raise(L, st, "save") : 0;
}

/* load(path) -> tensors, metadata */
static int load(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_path(L, st, "load");
    nl_maybe_collect(L, st);
    lua_settop(L, 1);
    file_box *b = push_file_box(L);
    b->f = neap_load(st->c, path);
    if (!b->f) return nl_raise(L, st, "load");
    int n = neap_file_count(b->f);
    lua_createtable(L, 0, n);
    for (int i = 0; i < n; i++) {
        nl_handle *h = nl_new_handle(L, st);
        h->t = neap_keep(neap_file_tensor(st->c, b->f, i));
        if (!h->t) return nl_raise(L, st, "load");
        lua_setfield(L, -2, neap_file_name(b->f, i));
    }
    lua_newtable(L);
    for (int i = 0; i < neap_file_n_metadata(b->f); i++) {
        const char *key, *value = neap_file_metadata(b->f, i, &key);
        lua_pushstring(L, value);
        lua_setfield(L, -2, key);
    }
    return 2;
}

static int read_idx(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_path(L, st, "read_idx");
    nl_maybe_collect(L, st);
    nl_handle *h = nl_new_handle(L, st);
    h->t = neap_keep(neap_read_idx(st->c, path));
    return h->t ? 1 : nl_raise(L, st, "read_idx");
}

static const luaL_Reg functions[] = {{"save", save}, {"load", load}, {"read_idx", read_idx}, {NULL, NULL}};

void nl_open_files(lua_State *L, nl_state *st)
{
    if (!(st->flags & NL_OPEN_NO_FILES)) nl_setfuncs(L, st, functions);
}
