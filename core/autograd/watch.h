/* watch.h - following a piece of a run: kernels with time and bytes, who holds memory, which line made what.
 *
 * A watch is an ambient entry of kind NP_AMB_TRACE with NP_TRACE_WATCH in its value, and sees through what hides
 * tracers (policies, recomputes, backward). It is told of every op before it is recorded, so the nodes numbered from
 * then on belong to its line, and of every kernel that ran. It changes nothing that it sees: it keeps the objects of
 * storages to see them die (their version cells), not their bytes. When its own memory runs out it says so at the
 * end (`failed`); the ops go on. */
#ifndef NP_WATCH_H
#define NP_WATCH_H

#include "autograd/autograd.h"

/* The value of an NP_AMB_TRACE entry. */
enum {
    NP_TRACE_WATCH = 1, /* the payload is a np_watch, else a np_tracer or NULL */
    NP_TRACE_BELOW = 2  /* a watch may be in force below this entry */
};
/* For entries that put something in front of what is in force. */
static inline int64_t np_trace_value(neap_ctx *c)
{
    const np_ambient_entry *e = np_ambient_get(c, NP_AMB_TRACE);
    return e && e->value ? NP_TRACE_BELOW : 0;
}

enum { /* what a watch looks at */
       NP_WATCH_EVENTS = 1,
       NP_WATCH_LIVE = 2,     /* with each event, the live bytes by category */
       NP_WATCH_STORAGES = 4, /* what was made, what of it lives, what lived at the peak */
       NP_WATCH_NAN = 8       /* the first NaN of a forward */
};

typedef enum np_phase { NP_FORWARD, NP_BACKWARD, NP_RECOMPUTE } np_phase;

typedef struct np_watch_event { /* a kernel that ran */
    int32_t op;
    uint32_t line; /* in `lines`; 0: unknown */
    np_phase phase;
    int64_t start, ns; /* the call of the kernel: devices that work on behind it are not waited for */
    int64_t bytes;     /* requested for its results */
} np_watch_event;

typedef struct np_watch_made { /* a storage */
    np_storage *st;            /* its object: bytes live while st->refs > 0 */
    int32_t op;                /* -1: made by no op */
    uint32_t line;
    np_phase phase;
    uint32_t peak;    /* == peak_nr: lived at the peak */
    uint8_t category; /* at the peak */
} np_watch_made;

typedef struct np_watch_mark { /* nodes from seq on belong to line */
    uint64_t seq;
    uint32_t line;
} np_watch_mark;

typedef struct np_watch_line {
    char text[64]; /* "train.lua:12" */
} np_watch_line;

typedef struct np_watch {
    neap_ctx *c;
    unsigned flags;
    int device;                                        /* of LIVE and STORAGES */
    void (*where)(void *user, char *buf, size_t size); /* the script line that runs now, or "" */
    void *user;
    bool failed, busy;
    const np_frame *told; /* the op that `line` is of */
    uint32_t line;
    np_watch_line *lines; /* 0 is "" */
    np_watch_mark *marks;
    np_watch_event *events;
    int64_t (*live)[NP_N_CATEGORIES]; /* of each event, its results included */
    np_watch_made *made;
    size_t n_lines, cap_lines, n_marks, cap_marks, n_events, cap_events, n_live, cap_live, n_made, cap_made;
    int64_t began;    /* ns */
    int64_t held;     /* live bytes at the begin */
    uint64_t newest;  /* storage that is known */
    int64_t peak;     /* of the device, as last seen */
    uint32_t peak_nr; /* how often it rose */
    int32_t peak_op;  /* whose results raised it last; -1: made by no op */
    uint32_t peak_line;
    int32_t nan_op; /* that made the first NaN; -1: none */
    uint32_t nan_line;
} np_watch;

/* Called by the dispatcher while an entry e is in force. `tell` says whether a watch is among them. */
bool np_watch_tell(neap_ctx *c, const np_ambient_entry *e, const np_frame *f);
bool np_watch_kernel(np_frame *f, np_kernel kernel); /* runs it */
/* What is known of a node whose gradient is NaN: "; it was called at train.lua:12; the first NaN of ...", or "". */
void np_watch_about(neap_ctx *c, const struct neap_node *n, char *buf, size_t size);
/* engine.c: the node whose backward runs, NULL if none does. */
const struct neap_node *np_running_node(const neap_ctx *c);

/* ---- for bindings */
/* NULL with E-NOMEM. The caller pushes it as an ambient entry, and frees it after the entry has ended. */
NEAP_API np_watch *neap_x_watch_new(neap_ctx *c, unsigned flags, int device,
                                    void (*where)(void *user, char *buf, size_t size), void *user);
NEAP_API void neap_x_watch_free(np_watch *w);
NEAP_API void neap_x_watch_made(np_watch *w, neap_tensor *t); /* t was made without an op */

#endif
