/* oplog.h - the sequence of ops of a region's forward, to hold a recompute against it. */
#ifndef NP_OPLOG_H
#define NP_OPLOG_H

#include "checkpoint/region.h"

typedef struct np_op_seen {
    int op;           /* registry index */
    uint64_t numbers; /* hash of numeric attributes and number operands */
    char where[60];   /* script line, "" if unknown */
    char what[60];    /* "[64,128] x [128,10]" */
} np_op_seen;

typedef struct np_oplog {
    np_op_seen *v;
    size_t n, cap;
    np_tracer tracer; /* in force while the log is filled or compared */
    const neap_region *r;
    const struct np_oplog *against; /* a recompute's log: the forward's */
    size_t differs;                 /* 1 + first position that differs; 0 none so far */
    bool failed;                    /* no memory: the log is useless, nothing is compared */
} np_oplog;

np_oplog *np_oplog_new(neap_region *r, const np_oplog *against);
void np_oplog_free(neap_ctx *c, np_oplog *log);
/* Both runs, whole if they are short, else around the first difference, which is marked with '>', into buf. */
void np_oplog_diff(const np_oplog *forward, const np_oplog *recompute, char *buf, size_t n);

#endif
