/* nl.h - what the files of the Lua bindings share: the state, handles, scopes, guards, anchors and callbacks.
 *
 * Invariants.
 *  - Everything hangs on one nl_state per Lua state, found through upvalue 1 of every function. No statics.
 *  - A binding creates its userdata first and fills it afterwards; between taking a core reference and storing
 *    it in a userdata no Lua call that can raise lies. Errors are raised at the outermost line only (error.c).
 *  - Lua functions that the core calls later live in anchors: tables reachable from the handles of the tensors
 *    whose graph needs them, never in registry references (anchor.c).
 *  - The running coroutine is the owner of what it opens (ambient.h); every entry calls nl_enter first. */
#ifndef NL_H
#define NL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>

#include "ext.h"

#if defined(__GNUC__)
#define NL_FORMAT(a, b) __attribute__((format(printf, a, b)))
#else
#define NL_FORMAT(a, b)
#endif

#define NL_WALK_DEPTH 8  /* how deep plain tables are followed */
#define NL_PARKED 64     /* error values on their way through the core */
#define NL_MAX_DEPTH 160 /* own nesting, in units: E-CHECK-NESTED-DEPTH beyond */
#define NL_MAX_OPEN 200  /* guards open from one line */
#define NL_GC_FLOOR (64 << 20)

typedef struct nl_state nl_state;
typedef struct nl_scope nl_scope;
typedef struct nl_callback nl_callback;
typedef struct nl_watch nl_watch;

/* ---- handles: the userdata of a tensor. User value 1: its anchor. */
typedef struct nl_note { /* where handles were released; shared by those of one scope */
    int refs;
    char text[160];
} nl_note;

typedef struct nl_capture nl_capture;

typedef struct nl_handle {
    nl_state *st;                  /* also the mark by which handles are known: see nl_handle_at */
    neap_tensor *t;                /* NULL: not filled yet, or released */
    struct nl_handle *prev, *next; /* of its scope */
    nl_scope *scope;               /* NULL: in none (after __gc) */
    nl_note *note;                 /* released, or an orphan: where */
    nl_capture *captures;          /* by regions that may need it again */
    bool marked;                   /* leaves the scope that is ending */
} nl_handle;

struct nl_capture { /* a handle that a region's function captured; the region's callback has arrays of them */
    nl_handle *h;   /* NULL: collected */
    nl_capture *prev, *next; /* of the handle */
};

/* ---- scopes: lists of handles. The root has no guard and never ends. */
struct nl_scope {
    nl_handle head;        /* sentinel of a ring */
    nl_scope *prev, *next; /* all scopes of the state */
    uint64_t id;           /* ambient entry, 0: root or a holder */
    uint64_t group;        /* anchor of the region around it: nodes made here need it; 0 none */
    uint64_t first_seq;    /* nodes older than this were made outside the region */
    uint64_t covers[6];    /* groups that the region's anchor has as parents */
    bool holder;           /* of a loader's batch: in force nowhere */
};

/* ---- guards: userdata that end what they opened when closed. User values: 1 functions, 2 thread's list. */
#define NL_GUARD_IDS 4
typedef struct nl_guard {
    nl_state *st;
    lua_State *owner;
    const char *what; /* "no_grad" */
    uint64_t ids[NL_GUARD_IDS];
    int n_ids;
    bool has_scope, body, closed, anchored;
    bool reused; /* goes back to st->spare when its call has ended */
    nl_scope scope;
    neap_region *region;
    neap_reentrant *reentrant;
    nl_callback *cb;              /* of the region: a reference */
    void *mode;                   /* op_mode: malloc'd np_mode and callback */
    uint64_t frame;               /* number, while the region's function runs (once.c); 0: it does not */
    bool remembers;               /* checkpoint.once was called in it */
    struct nl_guard *prev, *next; /* bodies that run */
    char where[64];               /* "train.lua:12" */
} nl_guard;

/* ---- callbacks: one Lua function (or pair) that the core holds, by the id of its anchor. */
typedef enum nl_lifetime {                /* of the handles that a call of a callback makes */
                           NL_LIFE_PLAIN, /* as anywhere */
                           NL_LIFE_LENT,  /* its arguments are emptied at the end, unless kept */
                           NL_LIFE_SCOPE  /* the call is a handle scope */
} nl_lifetime;

struct nl_callback {
    int refs;
    nl_lifetime life;
    nl_state *st;                 /* NULL: the Lua state was closed */
    uint64_t cell;                /* anchor id: [1] function, [2] its arguments, [3] values stored for it */
    uint64_t next_token;          /* saved_tensors_hooks: of packed values */
    lua_CFunction run;            /* runs in protected mode with a light nl_run as its argument */
    const char *what;             /* for messages */
    int n_first;                  /* node hooks: how many of the values are gradients of inputs */
    bool late;                    /* registered on a node that others had used already */
    struct nl_captures *captures; /* handles that live as long as this (capture.c) */
    nl_callback *prev, *next;
};

typedef struct nl_run { /* one call of a callback; lives on the C stack of the trampoline */
    nl_callback *cb;
    lua_CFunction run; /* NULL: the callback's */
    neap_values *v;
    neap_tensor *t; /* pack: the value; unpack: the result (new reference) */
    uint64_t token;
    np_frame *f;                    /* op_mode */
    const neap_policy_call *policy; /* selective: the question; the answer is the token */
    uint64_t id;
    lua_State *co;   /* recompute: the coroutine, while it may be stopped */
    lua_State *dead; /* the same, for the clean-up */
    int n_args;      /* on the coroutine's stack, above the function; -1: it has run */
    uint64_t frame;  /* recompute: its number among frames (once.c) */
    int once;        /* recompute: calls of checkpoint.once so far */
    nl_scope scope;
    bool has_scope, stopped, finished;
    struct nl_run *outer;
} nl_run;

/* ---- ops as Lua sees them */
typedef struct nl_op {
    const np_op *op;
    const np_schema *s;
    int n_visible;
    int dims;        /* attribute of the `dims` argument of a truth op, -1 */
    uint8_t numbers; /* bit i: operand i may be a Lua number */
    bool two;        /* two operands and nothing else: the fast path */
    bool one;        /* one tensor, no attribute */
} nl_op;

struct nl_state {
    neap_ctx *c; /* NULL: closed */
    bool own_ctx;
    lua_State *L; /* the thread of the latest entry; kept alive by registry[&k_current] */
    lua_State *main;
    bool watch; /* entries of sleeping or resuming coroutines exist: look at every entry */
    unsigned flags;
    nl_op *ops;
    int n_ops;
    nl_scope root;
    nl_scope orphans, dying; /* captured handles whose scope has ended; those now being emptied */
    nl_scope packed; /* handles that pack hooks were lent or made, and returned: emptied with their slot */
    bool draining;
    struct nl_search *search; /* scratch of capture.c */
    char opening[400]; /* warnings from before anyone could listen, a line each: for the first neap.on_log */
    int64_t n_handles, n_scopes, n_callbacks, n_live_guards;
    uint64_t next_anchor;  /* 0 and 1 are not anchors */
    uint64_t first_fn_seq; /* graph nodes older than this have no Lua function below them */
    nl_callback *callbacks;
    nl_scope *marking; /* the scope whose results are being marked */
    nl_handle *seek;   /* nl_tree_has */
    bool found;
    nl_guard *bodies;
    nl_guard *spare; /* registry[&k_spare]: a closed guard that the next checkpoint takes, or NULL */
    nl_watch *watches;
    int trampolines;
    nl_run *run;         /* the innermost recompute */
    uint64_t next_frame; /* of running region functions */
    char changed[300];   /* captured variables that differed in the latest recompute */
    unsigned next_park;
    int64_t gc_threshold;
    double gc_not_before, gc_seconds;
    int64_t gc_forced;
    bool gc_running;
    neap_ctx_opts host; /* what the context's owner had set */
    np_print_opts print;
    char prefix[4][200]; /* sources of the library: their frames are not the user's line */
    int n_prefix;
    /* addresses of these are registry keys */
    char k_threads, k_by_pointer, k_anchors, k_known, k_parked, k_current, k_names, k_ops, k_log, k_late,
        k_translate, k_watches, k_parts, k_selective, k_group, k_stream, k_event, k_spare;
    char dots, newaxis; /* their addresses are neap.dots and neap.newaxis */
    char k_tensor, k_shape, k_guard, k_node, k_hook, k_generator, k_op, k_cases, k_methods, k_function,
        k_fctx, k_watch;
};

#define NL_OPEN_NO_FILES 1u /* SAME as NEAP_LUA_NO_FILES */

/* ---- state.c */
static inline nl_state *nl_up(lua_State *L) { return lua_touserdata(L, lua_upvalueindex(1)); }
void nl_switch(lua_State *L, nl_state *st);
static inline nl_state *nl_enter(lua_State *L)
{
    nl_state *st = nl_up(L);
    if (st->L != L || st->watch || !st->c) nl_switch(L, st);
    return st;
}
nl_state *nl_state_get(lua_State *L); /* from the registry; NULL if Neap is not open */
nl_state *nl_state_new(lua_State *L, neap_ctx *c, unsigned flags);
void nl_state_close(lua_State *L, nl_state *st); /* empties every handle, lets the context go */
void nl_rewatch(nl_state *st);                   /* after a push or pop of ambient entries */
void nl_collect(lua_State *L, nl_state *st);
static inline int64_t nl_live_bytes(const nl_state *st) /* of all devices */
{
    int64_t sum = st->c->devices[0]->mem.live;
    for (int i = 1; i < st->c->n_devices; i++) sum += st->c->devices[i]->mem.live;
    return sum;
}
static inline void nl_maybe_collect(lua_State *L, nl_state *st)
{
    if (nl_live_bytes(st) > st->gc_threshold) nl_collect(L, st);
}
double nl_clock(void);
void nl_setfuncs(lua_State *L, nl_state *st, const luaL_Reg *list); /* into the table on top; upvalue 1: st */
void nl_pushfunction(lua_State *L, nl_state *st, lua_CFunction f);
/* The metatable registry[key], made at the first time, refilled at every opening, with __name and __metatable. */
void nl_metatable(lua_State *L, nl_state *st, void *key, const char *name, const luaL_Reg *list);
/* The same, with methods in __index; leaves nothing on the stack. */
void nl_open_class(lua_State *L, nl_state *st, void *key, const char *name, const luaL_Reg *metamethods,
                   const luaL_Reg *methods);
void nl_set_metatable(lua_State *L, void *key);      /* of the userdata on top */
void *nl_userdata(lua_State *L, int idx, void *key); /* NULL if it is of another kind */

/* ---- error.c: these do not return (the int is for `return nl_raise(...)`). */
int nl_raise(lua_State *L, nl_state *st, const char *name); /* the core's pending error; a stop yields */
int nl_error(lua_State *L, nl_state *st, neap_code code, const char *fmt, ...) NL_FORMAT(4, 5);
void nl_where(lua_State *L, nl_state *st, char *buf, size_t n); /* "train.lua:12" of the user's line, or "" */
void *nl_park(lua_State *L, nl_state *st); /* pops an error value; a token for neap_fail */
int nl_error_code(lua_State *L);
const char *nl_kind(lua_State *L, int idx, char *buf, size_t n); /* "a table", "the number 3" */

/* ---- args.c */
bool nl_integer(lua_State *L, int idx, int64_t *out); /* an integer or an integral float; strings never */
int64_t nl_check_integer(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);
double nl_check_number(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);
int64_t nl_check_dim(lua_State *L, nl_state *st, int idx, const char *fn,
                     int ndim); /* 0-based; ndim < 0: unchecked */
neap_dtype nl_check_dtype(lua_State *L, nl_state *st, int idx, const char *fn);
int nl_check_device(lua_State *L, nl_state *st, int idx, const char *fn);
bool nl_is_options(lua_State *L, int idx); /* a plain table with string keys, or empty */
/* Options must be a table with keys among names (ends with NULL); *idx 0 is fine. */
void nl_check_options(lua_State *L, nl_state *st, int idx, const char *fn, const char *const *names);
bool nl_get_option(lua_State *L, int idx,
                   const char *name); /* pushes the value and true, or pushes nothing */
bool nl_bool_option(lua_State *L, nl_state *st, int idx, const char *fn, const char *name, bool def);
double nl_number_option(lua_State *L, nl_state *st, int idx, const char *fn, const char *name, double def);
/* Nothing but elements 1 to its length may be in the list at idx, a stack position from the bottom: an option among
 * them would be lost. */
void nl_only_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);
/* A shape at idx: one list or shape object, or numbers up to last. Returns the number of dims; *used arguments. */
int nl_check_shape(lua_State *L, nl_state *st, int idx, int last, const char *fn, int64_t *shape, int *used);
const char *nl_nearest(const char *name, const char *const *names, int n); /* NULL: none is near */
const char *nl_translate(lua_State *L, nl_state *st, const char *kind, const char *name); /* pushes it */
/* The string at idx for C functions: one with a 0 byte, which they would take for its end, is an error. */
const char *nl_check_text(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);

/* ---- tensor.c */
static inline char *nl_ptr(const neap_tensor *t) /* the first element */ { return t->data; }
static inline nl_handle *nl_handle_at(lua_State *L, nl_state *st, int idx)
{
    if (lua_type(L, idx) != LUA_TUSERDATA || lua_rawlen(L, idx) != sizeof(nl_handle)) return NULL;
    nl_handle *h = lua_touserdata(L, idx);
    return h->st == st ? h : NULL;
}
neap_tensor *nl_check_tensor(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);
neap_tensor *nl_opt_tensor(lua_State *L, nl_state *st, int idx, const char *fn, const char *what);
int nl_released(lua_State *L, nl_state *st, nl_handle *h, const char *fn);
nl_handle *nl_new_handle(lua_State *L, nl_state *st); /* pushes an empty one, in the scope in force */
nl_handle *nl_new_handle_with(lua_State *L, nl_state *st, int mt); /* the same, metatable at index mt */
void nl_fill(lua_State *L, nl_state *st, nl_handle *h,
             neap_tensor *t); /* takes t; h on top; sets its anchor */
void nl_push_take(lua_State *L, nl_state *st,
                  neap_tensor *t); /* for cold paths; t is freed if Lua has no memory */
/* Pushes the handle of an existing tensor: the known one (leaf, input), else a new one. Borrows t. */
void nl_push_known(lua_State *L, nl_state *st, neap_tensor *t);
void nl_know(lua_State *L, nl_state *st, int idx); /* the handle at idx becomes the known one */
void nl_empty(nl_handle *h, nl_note *note);        /* releases */
void nl_push_shape(lua_State *L, nl_state *st, const neap_tensor *t);
int nl_shape_values(lua_State *L, nl_state *st, int idx, int64_t *v); /* -1: not a shape object */
void nl_open_tensor(lua_State *L, nl_state *st);
void nl_push_node(lua_State *L, nl_state *st, neap_node *n); /* autograd.c; nil for NULL */

/* ---- create.c, index.c, ops.c */
void nl_open_create(lua_State *L, nl_state *st);
neap_tensor *nl_tensor_from(lua_State *L, nl_state *st, int idx, const char *fn,
                            int dtype /* -1: by content */);
int nl_index_read(lua_State *L, nl_state *st);  /* x[k]: stack tensor, key */
int nl_index_write(lua_State *L, nl_state *st); /* x[k] = v */
void nl_open_index(lua_State *L, nl_state *st);
void nl_open_ops(lua_State *L, nl_state *st);         /* neap table on top, methods below it */
bool nl_dispatch(nl_state *st, np_frame *f);          /* in the caller's base */
static inline int nl_set_base(nl_state *st, int base) /* of positions in texts; gives the one before */
{
    int before = st->c->base;
    st->c->base = base;
    return before;
}
/* Calls a registry op by name; attributes are set in f beforehand. Result 0, others dropped. NULL: pending. */
neap_tensor *nl_call(nl_state *st, const char *name, np_frame *f, neap_tensor *const *in, int n_in);
bool nl_push_op(lua_State *L, nl_state *st, const np_op *op); /* neap.ops.NAME */
const nl_op *nl_op_at(lua_State *L, nl_state *st, int idx);   /* an op value, or NULL */

/* ---- scope.c */
void nl_scope_init(nl_state *st, nl_scope *s);
nl_scope *nl_current_scope(nl_state *st);
void nl_link(nl_scope *s, nl_handle *h);
void nl_unlink(nl_handle *h);
/* Marks the handles of scope s in a value (plain tables too): they will leave it. */
void nl_mark_tree(lua_State *L, nl_state *st, int idx, nl_scope *s);
bool nl_tree_has(lua_State *L, nl_state *st, int idx, nl_handle *h); /* NULL: any handle */
bool nl_scope_begin_raw(nl_state *st, nl_scope *s);                  /* a scope without a guard */
void nl_own_tree(lua_State *L, nl_state *st, int idx);               /* moves them out of all scopes */
/* Empties the scope's handles; marked ones move to `outer` (or the scope now in force when NULL). */
void nl_scope_end(nl_state *st, nl_scope *s, const char *opened, const char *ended, nl_scope *outer);
void nl_open_scope(lua_State *L, nl_state *st);

/* ---- capture.c: tensors captured by a checkpointed function */
void nl_capture_begin(lua_State *L, nl_state *st);
void nl_capture_find(lua_State *L, nl_state *st, int idx); /* in a function or a plain table */
bool nl_capture_keep(nl_state *st, nl_callback *cb); /* those found live as long as cb; false: no memory */
void nl_capture_orphan(nl_state *st, nl_handle *h, nl_note *note); /* its scope ends */
void nl_capture_forget(nl_handle *h);                              /* it is collected */
void nl_capture_release(nl_state *st, nl_callback *cb);            /* never raises; st NULL: only lets go */
void nl_open_capture(lua_State *L, nl_state *st);

/* ---- plan.c: arguments that a recompute is given again */
typedef struct nl_plan {
    lua_State *L;
    nl_state *st;
    neap_tensor **v; /* tensors, borrowed: the arguments hold them */
    int n, cap;
    neap_tensor *few[16];
    int buffer, copies,
        seen;   /* stack indices: more tensors; the set of copied tables; original table -> copy */
    bool whole; /* tables are kept as they are, tensors in them are no inputs */
} nl_plan;
/* Puts the plan of n arguments from `first` on into the table `store` from `at` on. Pushes p's buffer, and the set of
 * copies or nil. */
void nl_plan_make(lua_State *L, nl_state *st, nl_plan *p, int store, int at, int first, int n, bool whole);
/* Pushes the n arguments, with the tensors of r in their places. */
void nl_plan_push(lua_State *L, nl_state *st, const nl_run *r, int store, int at, int n, int copies);

/* ---- guards.c */
nl_guard *nl_guard_new(lua_State *L, nl_state *st, const char *what); /* pushes it */
nl_guard *nl_guard_reuse(lua_State *L, nl_state *st,
                         const char *what);  /* the same, maybe one that has ended */
bool nl_guard_add(nl_guard *g, uint64_t id); /* 0: false; the pending error stays */
bool nl_guard_scope(nl_guard *g);
void nl_guard_end(nl_guard *g, const char *ended);
void nl_guard_end_ids(nl_guard *g); /* all but the scope and the region */
/* The guard at `guard` is complete. With arguments from `first` on: runs them as body, its results are those of
 * the caller. Without: anchors the guard in its coroutine and returns it. */
int nl_guard_run(lua_State *L, nl_state *st, int guard, int first);
/* Makes the guard at idx a to-be-closed body and counts it: E-CHECK-NESTED-DEPTH beyond the limit. */
void nl_guard_body(lua_State *L, nl_state *st, int guard);
void nl_check_depth(lua_State *L, nl_state *st, int units);
int nl_depth(nl_state *st);
bool nl_asleep(void *user, const void *owner);
void nl_check_body(lua_State *L, nl_state *st, int idx, const char *what);
/* Into the search of nl_capture_find go the functions of the op modes in force; the anchor holds them, too. */
void nl_modes_keep(lua_State *L, nl_state *st, int anchor);
void nl_open_guards(lua_State *L, nl_state *st);

/* ---- anchor.c: tables of Lua functions over the graph */
enum { NL_A_FN = 1, NL_A_ARGS = 2, NL_A_STORE = 3, NL_A_PARENTS = 4 };
uint64_t nl_anchor_new(lua_State *L, nl_state *st);          /* pushes the table; its id */
bool nl_anchor_get(lua_State *L, nl_state *st, uint64_t id); /* pushes the table, or pushes nothing */
void nl_anchor_parent(lua_State *L, nl_state *st, int anchor, uint64_t parent);
/* Drops the functions; late: it had been promised. Never raises. */
void nl_anchor_clear(nl_state *st, uint64_t id, bool late);
void nl_anchor_promise(lua_State *L, nl_state *st,
                       nl_callback *cb);           /* cb is late: nl_anchor_hold may follow */
void nl_anchor_hold(nl_state *st, neap_tensor *t); /* a handle dies: late hooks stay; never raises */
uint64_t nl_group_of(lua_State *L, nl_state *st, neap_tensor *t); /* may make a joined anchor */
void nl_anchor_handle(lua_State *L, nl_state *st, nl_handle *h,
                      int idx); /* sets the user value of the handle */
/* Of a pass from t[0 ... n-1] with create_graph: theirs and the hooks'. Pushes its anchor, which must live meanwhile, or
 * nil. */
uint64_t nl_group_push(lua_State *L, nl_state *st, neap_tensor *const *t, int n);
void nl_anchor_result(lua_State *L, nl_state *st, nl_handle *h, int idx, uint64_t pass); /* of such a pass */
void nl_anchor_leaves(lua_State *L, nl_state *st, uint64_t group); /* leaf handles, after create_graph */
uint64_t nl_hooks_group(nl_state *st); /* of the saved-tensors hooks in force, 0 */

/* ---- callback.c */
nl_callback *nl_callback_new(lua_State *L, nl_state *st, uint64_t cell, lua_CFunction run, const char *what,
                             nl_lifetime life);
void nl_push_lent(lua_State *L, nl_run *r, neap_tensor *t); /* an argument of the callback; nil for NULL */
void nl_callback_retain(void *user);
void nl_callback_release(void *user);
int nl_callback_call(neap_ctx *c, void *user, neap_values *v); /* a neap_fn's call */
neap_fn nl_callback_fn(nl_callback *cb);
bool nl_callback_run(neap_ctx *c, nl_callback *cb, nl_run *r); /* false: an error is recorded */
void nl_callbacks_detach(nl_state *st);                        /* the state closes */
void nl_run_function(lua_State *L, nl_run *r);                 /* pushes the callback's function, or raises */
int nl_run_plain(lua_State *L);                                /* tensors in, tensors out */
void nl_collect_results(lua_State *L, nl_run *r, int first, int n, const char *what);
lua_State *nl_safe_thread(const nl_state *st);
void nl_log_opening(nl_state *st); /* logs what was said while the context was made */

/* ---- the rest */
void nl_open_autograd(lua_State *L, nl_state *st);
void nl_open_function(lua_State *L, nl_state *st);
void nl_sorted_keys(lua_State *L, nl_state *st, int idx,
                    const char *fn); /* pushes a list: numbers, then strings */
void nl_open_checkpoint(lua_State *L, nl_state *st);
void nl_push_record(lua_State *L, nl_state *st,
                    const nl_callback *cb); /* of checkpoint.once in that region */
void nl_open_once(lua_State *L, nl_state *st);
void nl_open_selective(lua_State *L, nl_state *st);
void nl_open_group(lua_State *L, nl_state *st);
void nl_open_stream(lua_State *L, nl_state *st);
bool nl_can_stop(void *user);
const char *nl_changed(lua_State *L, nl_state *st, neap_code code); /* what a mismatch error adds, or "" */
void nl_open_misc(lua_State *L, nl_state *st);
void nl_open_device(lua_State *L, nl_state *st);
extern const char *const nl_categories[]; /* SAME-ORDER neap_category */
/* watch.c. Pushes a watch (core/autograd/watch.h), which guard g, on top before, keeps alive; its entry's id, 0: the
 * error is pending. */
uint64_t nl_watch_push(lua_State *L, nl_state *st, nl_guard *g, unsigned flags);
void nl_watch_made(nl_state *st, neap_tensor *t); /* t was made without an op, while st->watches */
void nl_watches_close(nl_state *st);
void nl_open_watch(lua_State *L, nl_state *st);
void nl_open_files(lua_State *L, nl_state *st);
void nl_open_optim(lua_State *L, nl_state *st);
neap_generator *nl_generator_at(lua_State *L, nl_state *st, int idx); /* borrowed, or NULL */
/* A list of tensors at idx: pushes a buffer userdata and returns it, borrowed entries. */
neap_tensor **nl_tensor_list(lua_State *L, nl_state *st, int idx, const char *fn, const char *what,
                             bool holes, int *n);

#endif
