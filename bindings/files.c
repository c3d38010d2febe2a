/* files.c - safetensors, NumPy, idx and CSV files as tensors. Not opened when the host forbids files. */
#include "nl.h"

/* Frees an open file on every way out. */
typedef struct file_box {
    void *f;
    void (*free)(void *f);
} file_box;

static void free_file(void *f) { neap_file_free(f); }
static void free_csv(void *f) { neap_csv_free(f); }
static void free_npz(void *f) { neap_npz_free(f); }

static int file_gc(lua_State *L)
{
    file_box *b = lua_touserdata(L, 1);
    if (b->f) b->free(b->f);
    b->f = NULL;
    return 0;
}

static file_box *push_file_box(lua_State *L, void (*free)(void *f))
{
    file_box *b = lua_newuserdatauv(L, sizeof *b, 0);
    b->f = NULL;
    b->free = free;
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

/* There is nothing else to say: a table that names a device would be ignored. */
static const char *check_only_path(lua_State *L, nl_state *st, const char *fn)
{
    const char *path = check_path(L, st, fn);
    char got[80];
    if (!lua_isnoneornil(L, 2))
        nl_error(L, st, NEAP_E_ARG,
                 "neap.%s: takes a path, got %s besides; tensors are read to the CPU: move them with "
                 ":to(device), or a module by load_state_dict",
                 fn, nl_kind(L, 2, got, sizeof got));
    return path;
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
    if (lua_getmetatable(L, 2)) { /* its fields are not those of a plain table: nothing would be saved */
        if (lua_getfield(L, 2, "state_dict") == LUA_TFUNCTION)
            return nl_error(L, st, NEAP_E_ARG,
                            "neap.save: needs a table of tensors by name; of a module or an optimizer save "
                            "what x:state_dict() gives");
        lua_pop(L, 2);
    }
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
    const char *path = check_only_path(L, st, "load");
    nl_maybe_collect(L, st);
    lua_settop(L, 1);
    file_box *b = push_file_box(L, free_file);
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
    const char *path = check_only_path(L, st, "read_idx");
    nl_maybe_collect(L, st);
    nl_handle *h = nl_new_handle(L, st);
    h->t = neap_keep(neap_read_idx(st->c, path));
    return h->t ? 1 : nl_raise(L, st, "read_idx");
}

/* load_npy(path) -> tensor */
static int load_npy(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_only_path(L, st, "load_npy");
    nl_maybe_collect(L, st);
    nl_handle *h = nl_new_handle(L, st);
    h->t = neap_keep(neap_load_npy(st->c, path));
    return h->t ? 1 : nl_raise(L, st, "load_npy");
}

/* save_npy(path, tensor) */
static int save_npy(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_path(L, st, "save_npy");
    neap_tensor *t = nl_check_tensor(L, st, 2, "save_npy", "argument 2");
    return neap_save_npy(st->c, path, t) ? nl_raise(L, st, "save_npy") : 0;
}

/* load_npz(path) -> tensors by name */
static int load_npz(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_only_path(L, st, "load_npz");
    nl_maybe_collect(L, st);
    lua_settop(L, 1);
    file_box *b = push_file_box(L, free_npz);
    b->f = neap_load_npz(st->c, path);
    if (!b->f) return nl_raise(L, st, "load_npz");
    int n = neap_npz_count(b->f);
    lua_createtable(L, 0, n);
    for (int i = 0; i < n; i++) {
        nl_handle *h = nl_new_handle(L, st);
        h->t = neap_keep(neap_npz_tensor(st->c, b->f, i));
        if (!h->t) return nl_raise(L, st, "load_npz");
        lua_setfield(L, -2, neap_npz_name(b->f, i));
    }
    return 1;
}

/* Pushes column k: a tensor of (rows) where every cell is a number, else a list of texts. */
static bool push_column(lua_State *L, nl_state *st, neap_csv *f, int64_t k, neap_dtype d)
{
    int64_t rows = neap_csv_rows(f);
    if (!neap_csv_is_number(f, k)) {
        lua_createtable(L, (int)rows, 0);
        for (int64_t r = 0; r < rows; r++) {
            lua_pushstring(L, neap_csv_text(f, r, k));
            lua_rawseti(L, -2, r + 1);
        }
        return true;
    }
    nl_handle *h = nl_new_handle(L, st);
    neap_tensor *t = neap_csv_tensor(st->c, f, 1, &k, d);
    h->t = t ? neap_keep(neap_reshape(st->c, t, &rows, 1)) : NULL;
    neap_free(t);
    return h->t != NULL;
}

/* read_csv(path, separator, header, dtype) -> list of columns, list of names or nil, number of rows */
static int read_csv(lua_State *L)
{
    nl_state *st = nl_enter(L);
    const char *path = check_path(L, st, "read_csv"),
               *separator = nl_check_text(L, st, 2, "read_csv", "separator");
    bool header = lua_toboolean(L, 3);
    neap_dtype d = nl_check_dtype(L, st, 4, "read_csv");
    nl_maybe_collect(L, st);
    lua_settop(L, 4);
    file_box *b = push_file_box(L, free_csv);
    b->f = neap_read_csv(st->c, path, separator[0], header);
    if (!b->f) return nl_raise(L, st, "read_csv");
    int64_t n = neap_csv_columns(b->f);
    lua_createtable(L, (int)n, 0);
    for (int64_t k = 0; k < n; k++) {
        int base = nl_set_base(st, 1);
        bool ok = push_column(L, st, b->f, k, d);
        nl_set_base(st, base);
        if (!ok) return nl_raise(L, st, "read_csv");
        lua_rawseti(L, -2, k + 1);
    }
    if (header) lua_createtable(L, (int)n, 0);
    else lua_pushnil(L);
    for (int64_t k = 0; header && k < n; k++) {
        lua_pushstring(L, neap_csv_name(b->f, k));
        lua_rawseti(L, -2, k + 1);
    }
    lua_pushinteger(L, neap_csv_rows(b->f));
    return 3;
}

static const luaL_Reg functions[] = {
    {"save", save},         {"load", load},         {"read_idx", read_idx}, {"load_npy", load_npy},
    {"save_npy", save_npy}, {"load_npz", load_npz}, {"read_csv", read_csv}, {NULL, NULL}};

void nl_open_files(lua_State *L, nl_state *st)
{
    if (!(st->flags & NL_OPEN_NO_FILES)) nl_setfuncs(L, st, functions);
}
