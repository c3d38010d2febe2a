/* streams.h - the streams of a device that a plug-in brings, and which of them waits for which.
 *
 * A stream does what it is asked in that order, two streams do it at the same time. Whose turn it is follows from
 * the data: a storage knows which stream wrote it last and which have used it since, a free block knows who may still
 * be at work on it. So a result is right whatever streams a script uses, and there is nothing for it to remember. A
 * device starts with one stream and then has no np_streams, and none of this costs anything.
 *
 * Calls are numbered; seen[s][w] is the number up to which stream s comes after what w was asked for. */
#ifndef NP_STREAMS_H
#define NP_STREAMS_H

#include "tensor/tensor.h"

struct np_streams {
    neap_ctx *c;
    np_device *d;
    int n, current;         /* streams of the plug-in; the one in use there */
    uint32_t idle;          /* bits of those that nobody holds */
    int to_host, from_host; /* of copies for later; 0: not yet */
    uint64_t now, seen[NP_STREAMS][NP_STREAMS];
    np_mem pinned;               /* host memory that copies use directly; its blocks wait for to_host */
    struct np_away *newest_away; /* offload.c */
};

/* A stream of device d, which comes after everything that was asked of it: its number, or -1 with E-DEVICE. */
int np_stream_new(neap_ctx *c, np_device *d);
void np_stream_free(np_device *d, int stream); /* for the next who wants one; its work goes on */

bool np_stream_finish(neap_ctx *c, np_device *d, int stream); /* the host waits for it */
bool np_stream_done(np_device *d, int stream);
bool np_stream_wait(neap_ctx *c, np_device *d, int stream, int other); /* for all that other was asked */

/* Moments of the stream in force. NULL, false: with E-DEVICE. */
void *np_event_new(neap_ctx *c, np_device *d);
void np_event_free(np_device *d, void *event);
bool np_event_record(neap_ctx *c, np_device *d, void *event);
bool np_event_done(np_device *d, void *event); /* all before it is done, or it was never recorded */
bool np_event_wait(neap_ctx *c, np_device *d, void *event);
bool np_event_time(neap_ctx *c, np_device *d, void *from, void *to,
                   double *milliseconds); /* waits for both; below 0: `to` was first */

/* The stream of ambient state (NP_AMB_STREAM), 0 without. */
int np_stream_now(neap_ctx *c, const np_device *d);
#define NP_STREAM_VALUE(device, stream) ((int64_t)(device)*NP_STREAMS + (stream))

/* What is asked for next reads, or writes, these bytes, on this stream. False with E-DEVICE. */
bool np_stream_use(neap_ctx *c, np_storage *st, int stream, bool write);

/* The same for the stream in force, which is then in use at the plug-in. */
static inline bool np_reads(neap_ctx *c, np_storage *st)
{
    return !st->dev->streams || np_stream_use(c, st, np_stream_now(c, st->dev), false);
}
static inline bool np_writes(neap_ctx *c, np_storage *st)
{
    return !st->dev->streams || np_stream_use(c, st, np_stream_now(c, st->dev), true);
}
bool np_streams_enter(neap_ctx *c, np_device *d);
/* The stream in force goes on after all others that write, for what follows may read anything. */
bool np_streams_join(neap_ctx *c, np_device *d);

/* The two streams and the host memory of copies for later, made at the first call. False with an error. */
bool np_streams_for_copies(neap_ctx *c, np_device *d);
/* Orders a block of the host that both copy streams may use: see np_stream_use. */
bool np_stream_after(np_streams *s, int stream, int other, uint64_t until);

void np_streams_close(np_device *d);

#endif
