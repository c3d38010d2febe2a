/* anchor.c - where Lua functions live that the graph will call: hooks, custom backwards, checkpointed closures.
 *
 * An anchor is a table: the function, its arguments, values stored for it, and the anchors of the graph below.
 * A graph node carries an anchor's id as its group; the handle of every tensor whose node has a group keeps the
 * anchor in its user value. The registry finds anchors by id through weak values only, so a function that captures
 * its own output makes a cycle inside Lua, which the collector can free. Backward starts from a handle, whose
 * anchor chain is alive; a function that is not found is an error, never skipped.
 *
 * A node's group: its own function's anchor; else the one group among its inputs, the region and the hooks in
 * force when it was made; several are joined by a new anchor. Nodes made while no function was alive have none. A
 * joined anchor is held by nothing until it is put somewhere: nothing may be allocated before that. */
#include "nl.h"

enum { NO_GROUP = 1, MAX_SET = 16 }; /* NO_GROUP: looked at, none */

uint64_t nl_anchor_new(lua_State *L, nl_state *st)
{
    uint64_t id = ++st->next_anchor;
    lua_createtable(L, NL_A_PARENTS, 0);
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_anchors);
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, (lua_Integer)id);
    lua_pop(L, 1);
    return id;
}

bool nl_anchor_get(lua_State *L, nl_state *st, uint64_t id)
{
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_anchors);
    bool found = lua_rawgeti(L, -1, (lua_Integer)id) == LUA_TTABLE;
    if (found) lua_remove(L, -2);
    else lua_pop(L, 2);
    return found;
}

void nl_anchor_parent(lua_State *L, nl_state *st, int anchor, uint64_t parent)
{
    if (parent <= NO_GROUP || !nl_anchor_get(L, st, parent)) return;
    int i = NL_A_PARENTS;
    while (lua_rawgeti(L, anchor, i) != LUA_TNIL) lua_pop(L, 1), i++;
    lua_pop(L, 1);
    lua_rawseti(L, anchor, i);
}

/* Called when the core drops the function: from releases of any depth, also inside finalizers. Existing keys are
 * set to nil, which allocates nothing. */
void nl_anchor_clear(nl_state *st, uint64_t id, bool late)
{
    lua_State *L = st->L;
    if (!lua_checkstack(L, 5)) return;
    if (nl_anchor_get(L, st, id)) {
        for (int i = NL_A_FN; i <= NL_A_STORE; i++) {
            lua_pushnil(L);
            lua_rawseti(L, -2, i);
        }
        lua_pop(L, 1);
    }
    if (!late) return;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_late);
    lua_pushnil(L);
    lua_rawseti(L, -2, (lua_Integer)id);
    lua_pop(L, 1);
}

/* ---- hooks set on a node that others had used already: those handles know nothing of the function. As long as
 * the handle it was registered through lives, that one keeps it; when that handle goes first, the registry does
 * until the hook is dropped. The slot is made here, so that filling it never allocates. */

void nl_anchor_promise(lua_State *L, nl_state *st, nl_callback *cb)
{
    cb->late = true;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_late);
    lua_pushboolean(L, 0);
    lua_rawseti(L, -2, (lua_Integer)cb->cell);
    lua_pop(L, 1);
}

static const nl_callback *callback_of(const nl_state *st, const np_hook *h)
{
    const nl_callback *cb = h->fn.call == nl_callback_call ? h->fn.user : NULL;
    return cb && cb->st == st ? cb : NULL;
}

static const np_hook *hooks_of(const neap_tensor *t)
{
    return t->ag->node ? t->ag->node->hooks : t->ag->hooks;
}

void nl_anchor_hold(nl_state *st, neap_tensor *t)
{
    lua_State *L = st->L;
    if (t->ag->node ? t->ag->node->refs < 2 : !np_accumulates(t)) return;
    for (const np_hook *h = hooks_of(t); h; h = h->next) {
        const nl_callback *cb = callback_of(st, h);
        if (!cb || !cb->late || !lua_checkstack(L, 5)) continue;
        lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_late);
        if (nl_anchor_get(L, st, cb->cell)) lua_rawseti(L, -2, (lua_Integer)cb->cell);
        lua_pop(L, 1);
    }
}

/* ---- groups */

typedef struct group_set {
    uint64_t v[MAX_SET];
    int n;
} group_set;

static void add(group_set *s, uint64_t g)
{
    if (g <= NO_GROUP || s->n == MAX_SET) return;
    for (int i = 0; i < s->n; i++)
        if (s->v[i] == g) return;
    s->v[s->n++] = g;
}

static void add_hooks(group_set *s, const nl_state *st, const np_hook *h)
{
    for (; h; h = h->next) {
        const nl_callback *cb = callback_of(st, h);
        if (cb) add(s, cb->cell);
    }
}

/* Inputs of a node. Nodes without a handle of their own (in-place writes through views) are looked through. */
static void add_inputs(group_set *s, const nl_state *st, const neap_node *n, int depth)
{
    for (int i = 0; i < n->n_in; i++) {
        const neap_node *child = n->next[i].node;
        if (!child) continue;
        if (child->leaf) add_hooks(s, st, child->leaf->ag->hooks);
        else if (child->group) add(s, child->group);
        else if (child->seq >= st->first_fn_seq && depth < 4) add_inputs(s, st, child, depth + 1);
    }
}

static bool covered(const nl_scope *s, uint64_t g)
{
    for (size_t i = 0; i < sizeof s->covers / sizeof *s->covers; i++)
        if (s->covers[i] == g) return true;
    return false;
}

/* What is in force around the op: the region, whose anchor has its inputs' groups as parents, and the hooks. */
static void add_ambient(group_set *s, nl_state *st, const neap_node *n)
{
    const nl_scope *scope = nl_current_scope(st);
    if (scope->group && n->seq >= scope->first_seq) {
        int k = 0;
        for (int i = 0; i < s->n; i++)
            if (!covered(scope, s->v[i])) s->v[k++] = s->v[i];
        s->n = k;
        add(s, scope->group);
    }
    add(s, nl_hooks_group(st));
}

static uint64_t join(lua_State *L, nl_state *st, const group_set *s)
{
    if (s->n == 0) return NO_GROUP;
    if (s->n == 1) return s->v[0];
    uint64_t id = nl_anchor_new(L, st);
    for (int i = 0; i < s->n; i++) nl_anchor_parent(L, st, lua_gettop(L), s->v[i]);
    lua_pop(L, 1);
    return id;
}

static bool in_set(const group_set *s, uint64_t g)
{
    for (int i = 0; i < s->n; i++)
        if (s->v[i] == g) return true;
    return false;
}

static bool is_alive(lua_State *L, nl_state *st, uint64_t g)
{
    bool alive = nl_anchor_get(L, st, g);
    if (alive) lua_pop(L, 1);
    return alive;
}

uint64_t nl_group_of(lua_State *L, nl_state *st, neap_tensor *t)
{
    group_set s = {.n = 0};
    if (!t->ag) return 0;
    neap_node *n = t->ag->node;
    if (!n) {
        add_hooks(&s, st, t->ag->hooks);
        return s.n ? join(L, st, &s) : 0;
    }
    if (n->seq < st->first_fn_seq) return n->group > NO_GROUP ? n->group : 0;
    add_inputs(&s, st, n, 0);
    if (n->group > NO_GROUP && !in_set(&s, n->group) && is_alive(L, st, n->group))
        return n->group;                       /* set for good: its own, or joined */
    if (n->group == 0) add_ambient(&s, st, n); /* it has just been made */
    n->group = join(L, st, &s);
    return n->group > NO_GROUP ? n->group : 0;
}

uint64_t nl_group_push(lua_State *L, nl_state *st, neap_tensor *const *t, int n)
{
    group_set s = {.n = 0};
    for (int i = 0; i < n; i++) add(&s, nl_group_of(L, st, t[i])); /* their handles are alive */
    add(&s, nl_hooks_group(st)); /* leaves' gradients get their handles when these are out of force */
    uint64_t g = join(L, st, &s);
    if (g <= NO_GROUP || !nl_anchor_get(L, st, g)) lua_pushnil(L);
    return g > NO_GROUP ? g : 0;
}

/* A node that a pass made needs what the pass needed, beside its own. The new group's anchor is pushed, if any. */
static bool push_with_pass(lua_State *L, nl_state *st, neap_node *n, uint64_t pass)
{
    group_set s = {.n = 0};
    add_inputs(&s, st, n, 0);
    if (n->group == 0) add_ambient(&s, st, n);
    add(&s, n->group);
    add(&s, pass);
    n->group = join(L, st, &s);
    return n->group > NO_GROUP && nl_anchor_get(L, st, n->group);
}

void nl_anchor_result(lua_State *L, nl_state *st, nl_handle *h, int idx, uint64_t pass)
{
    idx = lua_absindex(L, idx);
    luaL_checkstack(L, 6, NULL);
    if (!h->t->ag->node) nl_anchor_handle(L, st, h, idx);
    else if (push_with_pass(L, st, h->t->ag->node, pass)) lua_setiuservalue(L, idx, 1);
}

void nl_anchor_handle(lua_State *L, nl_state *st, nl_handle *h, int idx)
{
    idx = lua_absindex(L, idx);
    luaL_checkstack(L, 6, NULL);
    uint64_t g = nl_group_of(L, st, h->t);
    if (g && nl_anchor_get(L, st, g)) lua_setiuservalue(L, idx, 1);
}

/* After a pass with create_graph the leaves' gradients have graphs over that of the output: the leaves' handles
 * keep its anchor beside their own. */
void nl_anchor_leaves(lua_State *L, nl_state *st, uint64_t group)
{
    if (!group) return;
    lua_rawgetp(L, LUA_REGISTRYINDEX, &st->k_known);
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        nl_handle *h = nl_handle_at(L, st, -1);
        neap_tensor *g = h && h->t && h->t->ag && !h->t->ag->node ? h->t->ag->grad : NULL;
        if (g && g->ag && g->ag->node && push_with_pass(L, st, g->ag->node, group)) {
            group_set s = {.n = 0};
            add_hooks(&s, st, h->t->ag->hooks);
            add(&s, g->ag->node->group);
            if (nl_anchor_get(L, st, join(L, st, &s))) lua_setiuservalue(L, -3, 1);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}
