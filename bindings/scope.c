/* scope.c - handle scopes: the handles made in a scope are emptied at its end, unless they leave as a result
 * (also in plain tables), were kept, or belong to a module or the library.
 *
 * Only handles die: the graph's slots hold their own references. A scope is an ambient entry of the coroutine
 * that opened it, so a suspended one collects nothing of others. Every handle is in exactly one scope; the root,
 * which never ends, has the rest. */
#include "nl.h"

enum { HANDLE_SCOPE = 2 }; /* value of our NP_AMB_SCOPE entries; C scopes use another */

void nl_scope_init(nl_state *st, nl_scope *s)
{
    memset(s, 0, sizeof *s);
    s->head.prev = s->head.next = &s->head;
    s->next = &st->root;
    s->prev = st->root.prev;
    st->root.prev->next = s;
    st->root.prev = s;
}

static bool ours(const np_ambient_entry *e) { return e && e->value == HANDLE_SCOPE; }

/* The newest handle scope in force among entries below id. C scopes of a host in between are passed over. */
static nl_scope *scope_below(nl_state *st, uint64_t id)
{
    np_ambient_entry *e = neap_x_below(st->c, NP_AMB_SCOPE, id);
    while (e && !ours(e)) e = neap_x_below(st->c, NP_AMB_SCOPE, e->id);
    return e ? e->payload : &st->root;
}

nl_scope *nl_current_scope(nl_state *st)
{
    if (!st->n_scopes) return &st->root;
    np_ambient_entry *e = neap_x_effective(st->c, NP_AMB_SCOPE);
    if (ours(e)) return e->payload;
    return e ? scope_below(st, e->id) : &st->root;
}

void nl_link(nl_scope *s, nl_handle *h)
{
    h->scope = s;
    h->next = &s->head;
    h->prev = s->head.prev;
    s->head.prev->next = h;
    s->head.prev = h;
}

void nl_unlink(nl_handle *h)
{
    if (!h->scope) return;
    h->prev->next = h->next;
    h->next->prev = h->prev;
    h->scope = NULL;
}

static void move(nl_handle *h, nl_scope *to)
{
    nl_unlink(h);
    nl_link(to, h);
}

/* ---- walking values: tensors, and plain tables up to a depth; each table once */

typedef void (*visit_fn)(nl_state *st, nl_handle *h);

static void walk(lua_State *L, nl_state *st, int idx, visit_fn visit, int seen, int depth)
{
    nl_handle *h = nl_handle_at(L, st, idx);
    if (h) {
        visit(st, h);
        return;
    }
    if (depth == NL_WALK_DEPTH || lua_type(L, idx) != LUA_TTABLE) return;
    if (lua_getmetatable(L, idx)) {
        lua_pop(L, 1);
        return;
    }
    luaL_checkstack(L, 6, "a value is nested too deeply");
    lua_pushvalue(L, idx);
    if (lua_rawget(L, seen) != LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    lua_pop(L, 1);
    lua_pushvalue(L, idx);
    lua_pushboolean(L, 1);
    lua_rawset(L, seen);
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        walk(L, st, lua_gettop(L), visit, seen, depth + 1);
        lua_pop(L, 1);
    }
}

static void walk_value(lua_State *L, nl_state *st, int idx, visit_fn visit)
{
    idx = lua_absindex(L, idx);
    nl_handle *h = nl_handle_at(L, st, idx);
    if (h) visit(st, h);
    if (lua_type(L, idx) != LUA_TTABLE) return;
    lua_newtable(L);
    walk(L, st, idx, visit, lua_gettop(L), 0);
    lua_pop(L, 1);
}

static void mark(nl_state *st, nl_handle *h)
{
    if (h->scope == st->marking) h->marked = true;
}

static void seek(nl_state *st, nl_handle *h)
{
    if (!st->seek || h == st->seek) st->found = true;
}

static void own(nl_state *st, nl_handle *h)
{
    if (h->scope && h->scope != &st->root) move(h, &st->root);
}

void nl_mark_tree(lua_State *L, nl_state *st, int idx, nl_scope *s)
{
    st->marking = s;
    walk_value(L, st, idx, mark);
}

bool nl_tree_has(lua_State *L, nl_state *st, int idx, nl_handle *h)
{
    st->seek = h;
    st->found = false;
    walk_value(L, st, idx, seek);
    return st->found;
}

void nl_own_tree(lua_State *L, nl_state *st, int idx) { walk_value(L, st, idx, own); }

/* ---- the end of a scope */

static nl_note *make_note(const char *opened, const char *ended)
{
    nl_note *n = malloc(sizeof *n);
    if (!n) return NULL;
    n->refs = 1;
    if (ended && ended[0])
        snprintf(n->text, sizeof n->text, "at %s, the end of the scope opened at %s", ended, opened);
    else if (strchr(opened, ':'))
        snprintf(n->text, sizeof n->text, "at the end of the scope opened at %s", opened);
    else snprintf(n->text, sizeof n->text, "when the function given to %s returned", opened);
    return n;
}

void nl_scope_end(nl_state *st, nl_scope *s, const char *opened, const char *ended, nl_scope *outer)
{
    if (s->id) {
        neap_x_pop(st->c, s->id);
        st->n_scopes--;
    }
    if (!outer) outer = nl_current_scope(st);
    nl_note *note =
        s->head.next == &s->head ? NULL : make_note(opened && opened[0] ? opened : "an unknown line", ended);
    while (s->head.next != &s->head) {
        nl_handle *h = s->head.next;
        if (h->marked) {
            h->marked = false;
            move(h, outer);
        } else if (h->captures && h->t) {
            nl_capture_orphan(st, h, note);
        } else {
            move(h, &st->root); /* an empty handle waits for the collector there */
            nl_empty(h, note);
        }
    }
    if (note && --note->refs == 0) free(note);
    s->prev->next = s->next;
    s->next->prev = s->prev;
    s->prev = s->next = s;
    s->id = 0;
}

/* A scope begins: the guard's own entry. */
bool nl_guard_scope(nl_guard *g)
{
    nl_state *st = g->st;
    nl_scope *outer = nl_current_scope(st);
    nl_scope_init(st, &g->scope);
    g->has_scope = true;
    g->scope.group = outer->group;
    g->scope.first_seq = outer->first_seq;
    memcpy(g->scope.covers, outer->covers, sizeof outer->covers);
    g->scope.id = neap_x_push(st->c, NP_AMB_SCOPE, HANDLE_SCOPE, &g->scope, "scope", g->where);
    if (!g->scope.id) return false;
    st->n_scopes++;
    return true;
}

/* The same for a scope that lies on a C stack (a recompute). */
bool nl_scope_begin_raw(nl_state *st, nl_scope *s)
{
    nl_scope_init(st, s);
    s->id = neap_x_push(st->c, NP_AMB_SCOPE, HANDLE_SCOPE, s, "checkpoint", NULL);
    if (!s->id) return false;
    st->n_scopes++;
    return true;
}

/* ---- Lua */

static nl_guard *new_scope(lua_State *L, nl_state *st)
{
    nl_guard *g = nl_guard_new(L, st, "scope");
    if (!nl_guard_scope(g)) nl_raise(L, st, "scope");
    return g;
}

/* Marks the results from `first` on, then ends the scope; they stay on the stack. */
static void leave(lua_State *L, nl_state *st, nl_guard *g, int first)
{
    char where[100];
    for (int i = first, n = lua_gettop(L); i <= n; i++) nl_mark_tree(L, st, i, &g->scope);
    nl_where(L, st, where, sizeof where);
    nl_guard_end(g, where);
}

static int scope_done(lua_State *L, int status, lua_KContext guard)
{
    (void)status;
    nl_state *st = nl_enter(L);
    leave(L, st, lua_touserdata(L, (int)guard), (int)guard + 1);
    return lua_gettop(L) - (int)guard;
}

/* scope() -> guard;  scope(fn, ...) -> fn's results, which leave the scope. */
static int scope(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L);
    if (n > 0) nl_check_body(L, st, 1, "scope");
    new_scope(L, st);
    if (n == 0) return nl_guard_run(L, st, 1, 2);
    lua_insert(L, 1);
    nl_guard_body(L, st, 1);
    lua_callk(L, n - 1, LUA_MULTRET, 1, scope_done);
    return scope_done(L, LUA_OK, 1);
}

/* scope_begin() -> a guard for a <close> variable of the library's own Lua files: in force, and not anchored in
 * its coroutine, since the variable holds it. */
static int scope_begin(lua_State *L)
{
    new_scope(L, nl_enter(L));
    return 1;
}

/* scope_end(guard, ...) -> ..., which leave the scope. */
static int scope_end(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_guard *g = nl_userdata(L, 1, &st->k_guard);
    if (!g || !g->has_scope)
        return nl_error(L, st, NEAP_E_ARG, "neap.scope_end: needs what scope_begin returned");
    if (!g->closed) leave(L, st, g, 2);
    return lua_gettop(L) - 1;
}

/* owned(fn, ...) -> fn's first result, holder. The handles that leave fn belong to the holder until
 * holder:close(), whatever scopes begin and end meanwhile; neap.keep takes one out. */
static int owned_done(lua_State *L, int status, lua_KContext k)
{
    (void)status, (void)k;
    nl_state *st = nl_enter(L);
    nl_guard *holder = lua_touserdata(L, 1), *g = lua_touserdata(L, 2);
    lua_settop(L, 3);
    nl_mark_tree(L, st, 3, &g->scope);
    char where[100];
    nl_where(L, st, where, sizeof where);
    nl_scope_end(st, &g->scope, g->where, where, &holder->scope);
    nl_guard_end(g, where);
    lua_pushvalue(L, 1);
    return 2;
}

static int owned(lua_State *L)
{
    nl_state *st = nl_enter(L);
    int n = lua_gettop(L);
    nl_check_body(L, st, 1, "owned");
    nl_guard *holder = nl_guard_new(L, st, "scope");
    nl_scope_init(st, &holder->scope);
    holder->scope.holder = true;
    holder->has_scope = true;
    lua_insert(L, 1);
    new_scope(L, st);
    lua_insert(L, 2);
    nl_guard_body(L, st, 2);
    lua_callk(L, n - 1, 1, 0, owned_done);
    return owned_done(L, LUA_OK, 0);
}

/* keep(h) -> h, moved one scope out. A handle that is outside the scope in force already stays where it is. */
static int keep(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_check_tensor(L, st, 1, "keep", "the argument");
    nl_handle *h = lua_touserdata(L, 1);
    nl_scope *now = nl_current_scope(st);
    if (h->scope == now || h->scope->holder) {
        nl_scope *out = now == &st->root ? now : scope_below(st, now->id);
        if (h->scope != &st->root) move(h, out);
    }
    lua_settop(L, 1);
    return 1;
}

/* own(h) -> h, outside every scope: module fields, optimizer state. */
static int own_handle(lua_State *L)
{
    nl_state *st = nl_enter(L);
    nl_own_tree(L, st, 1);
    lua_settop(L, 1);
    return 1;
}

static const luaL_Reg functions[] = {{"scope", scope},
                                     {"scope_begin", scope_begin},
                                     {"scope_end", scope_end},
                                     {"owned", owned},
                                     {"keep", keep},
                                     {"own", own_handle},
                                     {NULL, NULL}};

void nl_open_scope(lua_State *L, nl_state *st) { nl_setfuncs(L, st, functions); }
