/* selective.c - policies of selective checkpointing: a Lua function or a list of ops in the core's hands.
 *
 * A store (userdata) serves one checkpointed call: lua/checkpoint.lua enters it around the forward and around
 * recomputes. A policy is asked in the forward only; it sees graph-less handles, which are emptied when it returns
 * unless it keeps them. The store keeps the policy's anchor; nothing of the graph does. Once a region holds the
 * core's object the userdata lets go of it, so that it dies with the region and needs no collector. */
#include "nl.h"

typedef struct store store;

typedef struct link { /* what the core's object holds */
    store *owner;     /* NULL: collected */
    nl_callback *cb;  /* of a policy function, or NULL */
} link;

struct store {
    nl_state *st;
    neap_selective *s; /* NULL: it died with its region */
    link *link;        /* while s is there */
    bool own;          /* holds a reference */
};

static const char *const policies[] = {"must_save",        "prefer_save",
                                       "must_recompute",   "prefer_recompute",
                                       "must_cpu_offload", "prefer_cpu_offload"}; /* SAME-ORDER neap_policy */

/* ---- asking the policy */

static void push_list(lua_State *L, const np_attr *a, int64_t base)
{
    lua_createtable(L, a->n, 0);
    for (int i = 0; i < a->n; i++) {
        lua_pushinteger(L, a->v[i] >= 0 ? a->v[i] + base : a->v[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

static void push_attribute(lua_State *L, nl_state *st, np_arg_type type, const np_attr *a)
{
    if (!a->has) {
        lua_pushnil(L);
        return;
    }
    switch (type) {
    case NP_ARG_FLOAT: lua_pushnumber(L, a->f); break;
    case NP_ARG_BOOL: lua_pushboolean(L, a->i != 0); break;
    case NP_ARG_DIM:
    case NP_ARG_INDEX: lua_pushinteger(L, a->i >= 0 ? a->i + 1 : a->i); break;
    case NP_ARG_DIMS: push_list(L, a, 1); break;
    case NP_ARG_SHAPE: push_list(L, a, 0); break;
    case NP_ARG_DTYPE: lua_pushstring(L, neap_dtype_name((neap_dtype)a->i)); break;
    case NP_ARG_DEVICE: lua_pushstring(L, neap_device_name(st->c, (int)a->i)); break;
    case NP_ARG_GEN: lua_pushnil(L); break;
    case NP_ARG_STR: lua_pushstring(L, a->s); break;
    default: lua_pushinteger(L, a->i);
    }
}

static void push_operand(lua_State *L, nl_run *r, int i)
{
    neap_tensor *t = i < r->policy->n_in ? r->policy->in[i] : NULL;
    if (!t || !t->number) nl_push_lent(L, r, t);
    else if (np_is_float((neap_dtype)t->dtype))
        lua_pushnumber(L, neap_x_load_double((neap_dtype)t->dtype, nl_ptr(t)));
    else lua_pushinteger(L, neap_x_load_int((neap_dtype)t->dtype, nl_ptr(t)));
}

static bool is_tensor_arg(np_arg_type t)
{
    return t == NP_ARG_TENSOR || t == NP_ARG_OPT_TENSOR || t == NP_ARG_NUMBER;
}

/* Pushes the op's arguments in the order of its schema. */
static void push_arguments(lua_State *L, nl_state *st, nl_run *r)
{
    const np_frame *f = r->policy->frame;
    const np_schema *s = neap_x_op_schema(st->c, f->op);
    for (int i = 0; s && i < s->n_args; i++) {
        const np_arg *a = &s->arg[i];
        if (is_tensor_arg(a->type)) {
            push_operand(L, r, a->slot);
        } else if (a->type == NP_ARG_LIST) {
            lua_createtable(L, r->policy->n_in, 0);
            for (int k = 0; k < r->policy->n_in; k++) {
                push_operand(L, r, k);
                lua_rawseti(L, -2, k + 1);
            }
        } else {
            push_attribute(L, st, a->type, &f->attr[a->slot]);
        }
    }
}

static void push_facts(lua_State *L, nl_run *r)
{
    const neap_policy_call *p = r->policy;
    lua_createtable(L, 0, 4);
    lua_createtable(L, p->n_out, 0);
    for (int j = 0; j < p->n_out; j++) {
        nl_push_lent(L, r, p->out[j]);
        lua_rawseti(L, -2, j + 1);
    }
    lua_rawgeti(L, -1, 1);
    lua_setfield(L, -3, "op_output");
    lua_setfield(L, -2, "outputs");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "is_recompute");
    lua_pushinteger(L, p->nth);
    lua_setfield(L, -2, "nth");
}

static int read_answer(lua_State *L, nl_state *st, int idx, const char *op)
{
    char got[80];
    if (lua_type(L, idx) == LUA_TBOOLEAN)
        return lua_toboolean(L, idx) ? NEAP_MUST_SAVE : NEAP_PREFER_RECOMPUTE;
    if (lua_type(L, idx) == LUA_TSTRING)
        for (int i = 0; i < NEAP_N_POLICIES; i++)
            if (!strcmp(policies[i], lua_tostring(L, idx))) return i;
    return nl_error(L, st, NEAP_E_BADPOLICYVALUE,
                    "neap.checkpoint: the policy returned %s for op %s; it must return true (save), "
                    "false (recompute), or a value of checkpoint.CheckpointPolicy such as \"must_save\"",
                    nl_kind(L, idx, got, sizeof got), op);
}

static int run_policy(lua_State *L)
{
    nl_run *r = lua_touserdata(L, 1);
    nl_state *st = r->cb->st;
    const np_frame *f = r->policy->frame;
    luaL_checkstack(L, 40, NULL);
    nl_run_function(L, r);
    int fn = lua_gettop(L);
    push_facts(L, r);
    if (!nl_push_op(L, st, f->op)) lua_pushstring(L, f->op->name);
    push_arguments(L, st, r);
    lua_call(L, lua_gettop(L) - fn, 1);
    r->token = (uint64_t)read_answer(L, st, -1, r->policy->op);
    return 0;
}

static int ask(neap_ctx *c, void *user, const neap_policy_call *call)
{
    nl_run r = {.policy = call};
    return nl_callback_run(c, ((link *)user)->cb, &r) ? (int)r.token : -1;
}

/* The core's object dies. */
static void release_link(void *user)
{
    link *k = user;
    if (k->owner) k->owner->s = NULL, k->owner->link = NULL;
    if (k->cb) nl_callback_release(k->cb);
    free(k);
}

/* ---- making a store */

static int bad_op(lua_State *L, nl_state *st, int idx, int i)
{
    char got[80];
    if (lua_type(L, idx) == LUA_TSTRING)
        return nl_error(L, st, NEAP_E_BADOP,
                        "neap.checkpoint: entry %d of the policy is the string '%.40s'; ops are values: "
                        "neap.ops.%.40s",
                        i, lua_tostring(L, idx), lua_tostring(L, idx));
    return nl_error(L, st, NEAP_E_BADOP,
                    "neap.checkpoint: entry %d of the policy is %s, which is no op; write such as "
                    "neap.ops.matmul",
                    i, nl_kind(L, idx, got, sizeof got));
}

/* Pushes a buffer with the indices of a list of ops. */
static int *read_list(lua_State *L, nl_state *st, int idx, int *n)
{
    char got[80];
    *n = (int)lua_rawlen(L, idx);
    lua_pushnil(L);
    while (lua_next(L, idx)) {
        lua_pop(L, 1);
        if (lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 1 && lua_tointeger(L, -1) <= *n) continue;
        nl_error(L, st, NEAP_E_BADPOLICY,
                 "neap.checkpoint: a policy is a function or a list of ops such as {neap.ops.matmul}; this "
                 "table has the key %s",
                 nl_kind(L, -1, got, sizeof got));
    }
    int *v = lua_newuserdatauv(L, sizeof *v * (size_t)(*n + 1), 0);
    for (int i = 0; i < *n; i++) {
        lua_rawgeti(L, idx, i + 1);
        const nl_op *op = nl_op_at(L, st, -1);
        if (!op) bad_op(L, st, -1, i + 1);
        if (op->op->tags & NP_COMPOSITE)
            nl_error(L, st, NEAP_E_BADPOLICY,
                     "neap.checkpoint: %s consists of other ops, and those are what a policy sees; name them",
                     op->op->name);
        v[i] = op->op->index;
        lua_pop(L, 1);
    }
    return v;
}

static bool is_callable(lua_State *L, int idx)
{
    if (lua_type(L, idx) == LUA_TFUNCTION) return true;
    if (luaL_getmetafield(L, idx, "__call") == LUA_TNIL) return false;
    lua_pop(L, 1);
    return true;
}

/* The policy at 1 goes into the options. An anchor or buffer is on top. The store at 5 gets the link. */
static void read_policy(lua_State *L, nl_state *st, store *s, neap_selective_opts *o)
{
    char got[80];
    bool function = is_callable(L, 1);
    if (!function && (lua_type(L, 1) != LUA_TTABLE || nl_op_at(L, st, 1)))
        nl_error(L, st, NEAP_E_BADPOLICY,
                 "neap.checkpoint: a policy is a function or a list of ops such as {neap.ops.matmul}, "
                 "got %s",
                 nl_kind(L, 1, got, sizeof got));
    s->link = calloc(1, sizeof *s->link);
    if (!s->link) nl_error(L, st, NEAP_E_NOMEM, "neap.checkpoint: out of memory");
    s->link->owner = s;
    o->release = release_link;
    o->user = s->link;
    if (!function) {
        o->list = read_list(L, st, 1, &o->n_list);
        return;
    }
    uint64_t cell = nl_anchor_new(L, st);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, NL_A_FN);
    s->link->cb = nl_callback_new(L, st, cell, run_policy, "checkpoint", NL_LIFE_LENT);
    o->policy = ask;
}

/* selective_new(policy or list, allow_cache_entry_mutation, keep_entries, respect_saved_tensors_hooks or nil) */
static int selective_new(lua_State *L)
{
    nl_state *st = nl_enter(L);
    lua_settop(L, 4);
    store *s = lua_newuserdatauv(L, sizeof *s, 1);
    *s = (store){.st = st};
    nl_set_metatable(L, &st->k_selective);
    neap_selective_opts o = {.size = sizeof o};
    o.allow_mutation = lua_toboolean(L, 2);
    o.keep_entries = lua_toboolean(L, 3);
    o.respect_hooks = lua_isnil(L, 4) ? -1 : lua_toboolean(L, 4);
    read_policy(L, st, s, &o);
    s->s = neap_selective_new(st->c, &o);
    if (!s->s) return nl_raise(L, st, "checkpoint");
    s->own = true;
    lua_setiuservalue(L, 5, 1);
    return 1;
}

/* selective_begin(store, replay) -> a guard for a <close> variable. */
static int selective_begin(lua_State *L)
{
    nl_state *st = nl_enter(L);
    store *s = nl_userdata(L, 1, &st->k_selective);
    if (!s) return nl_error(L, st, NEAP_E_ARG, "neap.selective_begin: needs what selective_new returned");
    if (!s->s)
        return nl_error(L, st, NEAP_E_CONTEXT_REUSED,
                        "neap.checkpoint: this pair of selective contexts belonged to a call that is "
                        "over; call create_selective_checkpoint_contexts inside context_fn");
    bool replay = lua_toboolean(L, 2);
    nl_guard *g = nl_guard_new(L, st, "a policy");
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1); /* the guard keeps the store and its policy */
    uint64_t id =
        replay ? neap_selective_replay_begin(st->c, s->s) : neap_selective_record_begin(st->c, s->s);
    if (!nl_guard_add(g, id)) return nl_raise(L, st, "checkpoint");
    return 1;
}

static void let_go(store *s)
{
    neap_selective *held = s->own ? s->s : NULL;
    s->own = false;
    if (held) neap_selective_free(s->st->c, held); /* may call release_link */
}

/* selective_settle(store): recording is over. */
static int selective_settle(lua_State *L)
{
    nl_state *st = nl_enter(L);
    store *s = nl_userdata(L, 1, &st->k_selective);
    if (s && s->own && neap_x_selective_held(s->s)) let_go(s);
    return 0;
}

static int store_gc(lua_State *L)
{
    store *s = lua_touserdata(L, 1);
    nl_state *st = s->st;
    lua_State *running = st->L;
    if (!st->c) return 0;
    st->L = L;
    if (s->link) s->link->owner = NULL;
    if (s->own) let_go(s);
    else if (s->link && !s->s) release_link(s->link); /* it was never filled */
    st->L = running;
    return 0;
}

static const luaL_Reg functions[] = {{"selective_new", selective_new},
                                     {"selective_begin", selective_begin},
                                     {"selective_settle", selective_settle},
                                     {NULL, NULL}};
static const luaL_Reg metamethods[] = {{"__gc", store_gc}, {NULL, NULL}};

void nl_open_selective(lua_State *L, nl_state *st)
{
    nl_setfuncs(L, st, functions);
    nl_metatable(L, st, &st->k_selective, "neap.SelectiveStore", metamethods);
    lua_pop(L, 1);
}
