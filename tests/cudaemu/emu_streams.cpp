/* emu_streams.cpp - streams, events and graphs of the emulated devices.
 *
 * A stream is a queue of closures. Eager: a closure runs as it is given. Lazy: it runs at some later call, in an order
 * drawn among the streams whose next closure may run, at the latest when the host waits for it; a missing event then
 * shows as a wrong result for some seed. Recording an event gives it a new moment that a closure
 * will tick off; a wait is a closure that may not run before the moment that the event then had. */
#include "state.h"

#include <time.h>

namespace emu
{

std::vector<Stream *> streams;

Stream *stream_of(cudaStream_t s) { return s ? s : &devices[current_device].null; }

bool is_stream(const Stream *s)
{
    for (const Stream *t : streams)
        if (t == s) return true;
    return false;
}

static void run_head(Stream *s)
{
    Task t = std::move(s->queue.front());
    s->queue.pop_front();
    guard(s->device, true);
    t.work();
    guard(s->device, false);
}

static bool runnable(const Stream *s)
{
    return !s->queue.empty() && (!s->queue.front().may_run || s->queue.front().may_run());
}

/* One closure of a stream drawn among those that may go on; false when there is none. */
static bool step()
{
    Stream *chosen = nullptr;
    unsigned n = 0;
    for (Stream *s : streams)
        if (runnable(s) && next_random(++n) == 0) chosen = s;
    if (chosen) run_head(chosen);
    return chosen != nullptr;
}

static void some_steps()
{
    while (settings().lazy && next_random(3) == 0 && step())
        ;
}

void drain(Stream *s)
{
    while (!s->queue.empty())
        if (!step())
            report("stream deadlock", nullptr, 0, "the host waits for work of a stream that can never run");
}

/* The default stream and the blocking ones wait for each other. */
static void legacy_order(Stream *s)
{
    if (s == &devices[s->device].null) {
        for (Stream *t : streams)
            if (t != s && t->device == s->device && t->blocking) drain(t);
    } else if (s->blocking) {
        drain(&devices[s->device].null);
    }
}

static void queue(Stream *s, Work work, std::function<bool()> may_run = nullptr)
{
    if (s->capture) {
        s->capture->nodes.push_back(std::move(work));
        s->unjoined = true;
        return;
    }
    legacy_order(s);
    s->queue.push_back({std::move(work), std::move(may_run)});
    if (!settings().lazy) drain(s);
    some_steps();
}

void give(Stream *s, Work work)
{
    const int device = s->device;
    queue(s, [device, work] {
        if (!devices[device].lost) work();
    });
}

bool capturing()
{
    bool found = false;
    for (Stream *s : streams)
        if (s->capture && s->capture->mode != cudaStreamCaptureModeRelaxed) {
            s->capture->invalid = true;
            found = true;
        }
    return found;
}

cudaError_t enqueue(cudaStream_t stream, Work work)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    give(s, std::move(work));
    return cudaSuccess;
}

cudaError_t launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Work body,
                   const void *arguments, size_t n_bytes)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (cudaError_t e = refused(cudaErrorLaunchOutOfResources, is_stream(s) ? s->device : -1)) return e;
    if (!is_stream(s) || s->device != current_device) return fail(cudaErrorInvalidResourceHandle);
    const uint64_t lanes = (uint64_t)block.x * block.y * block.z;
    if (lanes == 0 || lanes > lanes_limit || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return fail(cudaErrorInvalidConfiguration);
    auto opted = dynamic_shared.find(kernel);
    if (shared > (opted == dynamic_shared.end() ? shared_static_limit : (size_t)opted->second))
        return fail(cudaErrorInvalidValue);
    const int device = s->device;
    const auto used = allocations_in(arguments, n_bytes);
    give(s, [=] {
        if (faults(device)) return;
        run_grid(kernel, grid, block, shared, body);
        check_tails(device, used);
    });
    return cudaSuccess;
}

static double seconds()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

} // namespace emu

using namespace emu;

/* ---- streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    Locked l;
    *s = nullptr;
    if (cudaError_t e = refused(cudaErrorUnknown)) return e;
    if (!is_device(current_device)) return fail(cudaErrorNoDevice);
    if (flags & ~(unsigned)cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
    *s = new Stream{current_device, !(flags & cudaStreamNonBlocking), {}};
    streams.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithPriority(s, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Locked l;
    if (!s || !is_stream(s) || s == &devices[s->device].null) return fail(cudaErrorInvalidResourceHandle);
    if (s->capture) s->capture->invalid = true;
    drain(s);
    guard(s->device, true);
    check_all_tails(s->device);
    guard(s->device, false);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) {
            streams.erase(streams.begin() + (long)i);
            break;
        }
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t e = refused(cudaErrorLaunchFailure, s->device)) return e;
    if (s->capture) {
        s->capture->invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    drain(s);
    return survived(s->device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (devices[s->device].lost) return fail(cudaErrorIllegalAddress);
    if (s->capture) {
        s->capture->invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    if (!s->queue.empty() && next_random(2)) step(); /* who polls gets there in the end */
    return s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    return enqueue(stream, [=] { fn(user); });
}

/* ---- events */

static bool is_over(const Event *e) { return !e->last || e->last->done; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    Locked l;
    *e = nullptr;
    if (cudaError_t e = refused(cudaErrorUnknown)) return e;
    *e = new Event;
    (*e)->device = current_device;
    (*e)->timing = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    Locked l;
    if (!e) return fail(cudaErrorInvalidResourceHandle);
    delete e; /* its state lives on in closures */
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (!e || !is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t x = refused(cudaErrorUnknown, s->device)) return x;
    e->capture = s->capture;
    e->captured_on = s->capture ? s : nullptr;
    if (s->capture) return cudaSuccess;
    auto moment = e->last = std::make_shared<Moment>();
    queue(s, [=] { moment->done = true, moment->seconds = seconds(); });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned)
{
    Locked l;
    Stream *s = stream_of(stream);
    if (!e || !is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t x = refused(cudaErrorUnknown, s->device)) return x;
    if (e->capture) { /* joins what is being recorded, or leads back to it */
        if (!s->capture) s->capture = e->capture;
        if (e->captured_on != s) e->captured_on->unjoined = false;
        return cudaSuccess;
    }
    if (s->capture) return fail(cudaErrorStreamCaptureUnsupported);
    if (!e->last) return cudaSuccess;
    auto moment = e->last;
    queue(
        s, [] {}, [=] { return moment->done; });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    Locked l;
    if (!e) return fail(cudaErrorInvalidResourceHandle);
    if (devices[e->device].lost) return fail(cudaErrorIllegalAddress);
    if (e->capture) return fail(cudaErrorCapturedEvent);
    if (!is_over(e) && next_random(2)) step();
    return is_over(e) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    Locked l;
    if (!e) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t x = refused(cudaErrorLaunchFailure, e->device)) return x;
    if (e->capture) return fail(cudaErrorCapturedEvent);
    while (!is_over(e))
        if (!step()) report("stream deadlock", nullptr, 0, "the host waits for an event that can never come");
    return survived(e->device);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    Locked l;
    if (!start || !end || !start->timing || !end->timing || !start->last || !end->last)
        return fail(cudaErrorInvalidResourceHandle);
    if (devices[end->device].lost) return fail(cudaErrorIllegalAddress);
    if (!is_over(start) || !is_over(end)) return fail(cudaErrorNotReady);
    *ms = (float)(1e3 * (end->last->seconds - start->last->seconds));
    return cudaSuccess;
}

/* ---- graphs: recorded closures in the order they were given, which is one that their edges allow */

struct emu_graph_exec {
    std::shared_ptr<std::vector<Work>> nodes;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    Locked l;
    if (!s || !is_stream(s)) return fail(cudaErrorStreamCaptureUnsupported); /* not the default stream */
    if (s->capture) return fail(cudaErrorInvalidValue);
    s->capture = new Graph;
    s->capture->origin = s;
    s->capture->mode = mode;
    s->unjoined = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    Locked l;
    *out = nullptr;
    if (!s || !is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    Graph *g = s->capture;
    if (!g) return fail(cudaErrorInvalidValue);
    if (g->origin != s) return fail(cudaErrorStreamCaptureUnmatched);
    bool unjoined = false;
    for (Stream *t : streams)
        if (t->capture == g) {
            unjoined = unjoined || (t != s && t->unjoined);
            t->capture = nullptr;
            t->unjoined = false;
        }
    if (g->invalid || unjoined) {
        cudaError_t e = unjoined ? cudaErrorStreamCaptureUnjoined : cudaErrorStreamCaptureInvalidated;
        delete g;
        return fail(e);
    }
    *out = g;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    Locked l;
    const Graph *g = stream_of(stream)->capture;
    *status = !g           ? cudaStreamCaptureStatusNone
              : g->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes) return fail(cudaErrorNotSupported); /* only their number is told */
    *n = g->nodes.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    *x = new emu_graph_exec{std::make_shared<std::vector<Work>>(g->nodes)};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    auto nodes = x->nodes;
    return enqueue(s, [nodes] {
        for (const Work &w : *nodes) w();
    });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return delete x, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete g, cudaSuccess; }
