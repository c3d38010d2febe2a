/* emu_grid.cpp - runs a grid: blocks one after another, the lanes of a block as fibers on the calling thread.
 *
 * A lane runs until it waits. Whoever stops running picks the next lane itself: a ready one, else one that has not
 * begun (a lane that ends hands its stack to it without a switch), else, when nothing can run, all wait at the barrier
 * or something is wrong. The last lane to reach a warp operation computes everybody's result.
 *
 * For the thread sanitizer this file is compiled without instrumentation, and the only orders it announces are those
 * CUDA promises: launch before lanes before the launch's end, barriers, __syncwarp. Nothing here may allocate, free or
 * call memset on behalf of a lane, because the sanitizer would take that for an access of the lane. */
#include "lane.h"

#include <sys/mman.h>

namespace emu
{

Now now;

Run run;
static const int dynamic_key = 0;

/* ---- the scheduler */

/* At the end of the queue, or before all others: lanes that wake from a warp operation go on at once, so that a warp
 * runs as far ahead of the others as it can. */
void make_ready(Lane *l, bool first)
{
    l->state = State::ready;
    run.ready[(first ? --run.head : run.tail++) % ready_size] = l;
}

/* In random order the one that woke last, so that its warp gets ahead, or any. */
static Lane *take_ready()
{
    Lane **next = &run.ready[run.head % ready_size], *l = *next;
    if (settings().order == Settings::random && next_random(4) >= run.haste) {
        Lane **other = &run.ready[(run.head + next_random(run.tail - run.head)) % ready_size];
        l = *other;
        *other = *next;
    }
    run.head++;
    return l;
}

static void shuffle(uint16_t *list, unsigned n)
{
    for (unsigned i = n; i > 1; i--) {
        unsigned j = next_random(i);
        uint16_t t = list[i - 1];
        list[i - 1] = list[j];
        list[j] = t;
    }
}

static void order_lanes(uint16_t *list, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        list[i] = (uint16_t)(settings().order == Settings::reverse ? n - 1 - i : i);
    if (settings().order == Settings::random) shuffle(list, n);
}

/* Nothing can run: all lanes wait at one barrier and are let go, or the kernel is wrong. */
static void release_barrier()
{
    char a[120], b[120];
    const Lane *first = nullptr;
    int n_true = 0;
    for (unsigned i = 0; i < run.n; i++)
        if (run.lanes[i].state == State::barrier) {
            first = &run.lanes[i];
            break;
        }
    for (unsigned i = 0; i < run.n; i++)
        if (run.lanes[i].state == State::warp) report_stuck(&run.lanes[i]);
    for (unsigned i = 0; i < run.n; i++) {
        const Lane *l = &run.lanes[i];
        if (l->state == State::done) {
            name_lane(a, sizeof a, l);
            name_lane(b, sizeof b, first);
            run.current = nullptr;
            report("exit before barrier", first->file, first->line, "%s, but %s", a, b);
        }
        if (l->line != first->line || l->bar != first->bar || strcmp(l->file, first->file) != 0) {
            name_lane(a, sizeof a, first);
            name_lane(b, sizeof b, l);
            run.current = nullptr;
            report("divergent barrier", first->file, first->line, "%s, but %s", a, b);
        }
        n_true += l->predicate != 0;
    }
    const Bar kind = first->bar;
    const int result = kind == Bar::all ? n_true == (int)run.n : kind == Bar::any ? n_true > 0 : n_true;
    for (unsigned i = 0; i < run.n; i++) {
        Lane *l = &run.lanes[run.order[i]];
        l->predicate = result;
        make_ready(l, false);
    }
}

/* The lane that runs next; NULL when all have ended. */
static Lane *pick()
{
    for (;;) {
        bool any_ready = run.head != run.tail, any_fresh = run.fresh < run.n;
        if (any_ready && any_fresh && settings().order == Settings::random && next_random(2))
            any_ready = false;
        if (any_ready) return take_ready();
        if (any_fresh) return &run.lanes[run.order[run.fresh++]];
        if (run.n_done == run.n) return nullptr;
        release_barrier();
    }
}

static void fiber_main();

static Fiber *new_fiber(char *stack, size_t size)
{
    Fiber *f = new Fiber;
    fiber_init(f, stack, size, fiber_main);
    return f;
}

static Fiber *take_fiber(const Lane *l)
{
#ifdef NP_EMU_TSAN
    return run.fibers[l->index];
#endif
    (void)l;
    if (run.n_free > 0) return run.fibers[--run.n_free];
    size_t size = settings().stack, page = 4096;
    char *stack = (char *)map_pages(size + page);
    mprotect(stack, page, PROT_NONE);
    return new_fiber(stack + page, size);
}

/* From the stack `self` to that of `next`, or to the host's. */
static void go(Fiber *self, Lane *next)
{
    Fiber *to = &run.host;
    if (next) {
        if (next->state == State::fresh) {
            run.starting = next;
            next->fiber = take_fiber(next);
        }
        to = next->fiber;
        now.thread = &next->thread;
    }
    run.current = next;
    fiber_switch(self, to, &run.host);
}

void park()
{
    Lane *me = run.current, *next = pick();
    if (next != me) go(me->fiber, next);
    me->state = State::ready;
}

static void fiber_main()
{
    fiber_arrived(run.starting->fiber, &run.host);
    for (;;) {
        Lane *l = run.starting;
        Fiber *self = l->fiber;
        l->state = State::ready;
        NP_EMU_ACQUIRE(&run.launched);
        (*run.body)();
        NP_EMU_RELEASE(&run.ended);
        l->state = State::done;
        run.warps[l->index / 32].ended |= 1u << l->index % 32;
        run.n_done++;
        Lane *next = pick();
#ifndef NP_EMU_TSAN
        if (next && next->state == State::fresh) { /* the same stack serves */
            next->fiber = self;
            run.starting = run.current = next;
            now.thread = &next->thread;
            continue;
        }
        run.fibers[run.n_free++] = self;
#endif
        go(self, next);
    }
}

/* ---- barriers */

int barrier(Bar kind, int predicate, const char *file, int line)
{
    Lane *l = run.current;
    uint64_t *order = run.orders + (l->n_barriers++ & 1);
    l->bar = kind;
    l->predicate = predicate;
    l->file = file;
    l->line = line;
    l->state = State::barrier;
    NP_EMU_RELEASE(order);
    park();
    NP_EMU_ACQUIRE(order);
    return l->predicate;
}

/* ---- shared memory: made when first named, poisoned, its own for each block */

static void fill(char *p, int value, size_t n)
{
#ifdef __x86_64__ /* not memset: the thread sanitizer sees that */
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(value) : "memory");
#else
    for (volatile char *q = p; n--; q++) *q = (char)value;
#endif
}

static char *shared_new(const void *declaration, size_t bytes, size_t align, const char *file, int line)
{
    if (align < 16) align = 16;
    if (run.static_bytes > shared_static_limit)
        report("shared limit", file, line, "%zu bytes of static shared memory: a block has %zu",
               run.static_bytes, shared_static_limit);
    if (run.static_bytes + run.dynamic_bytes > shared_limit)
        report("shared limit", file, line,
               "%zu bytes of static and %zu of dynamic shared memory: a block has %zu", run.static_bytes,
               run.dynamic_bytes, shared_limit);
    if (run.n_vars == (int)(sizeof run.vars / sizeof run.vars[0]))
        report("shared limit", file, line, "more than %d shared variables", run.n_vars);
    SharedVar *v = &run.vars[run.n_vars++];
    *v = {declaration, nullptr, bytes, file, line};
#ifdef __SANITIZE_ADDRESS__ /* an allocation each: red zones at the exact end */
    if (posix_memalign((void **)&v->at, align, bytes)) abort();
#else
    run.arena_used = (run.arena_used + align - 1) / align * align;
    v->at = run.arena + run.arena_used;
    run.arena_used += bytes + guard_bytes;
    fill(v->at + bytes, (int)guard_value, guard_bytes);
#endif
    fill(v->at, 0xff, bytes);
    return v->at;
}

void *shared_static(size_t bytes, size_t align, const void *declaration, const char *file, int line)
{
    for (int i = 0; i < run.n_vars; i++)
        if (run.vars[i].declaration == declaration) return run.vars[i].at;
    run.static_bytes += bytes;
    return shared_new(declaration, bytes, align, file, line);
}

void *shared_dynamic(size_t align, const char *file, int line)
{
    for (int i = 0; i < run.n_vars; i++)
        if (run.vars[i].declaration == &dynamic_key) return run.vars[i].at;
    if (run.dynamic_bytes == 0)
        report("shared limit", file, line, "the launch asked for no dynamic shared memory");
    return shared_new(&dynamic_key, run.dynamic_bytes, align, file, line);
}

static void shared_end()
{
    for (int i = 0; i < run.n_vars; i++) {
        const SharedVar *v = &run.vars[i];
#ifdef __SANITIZE_ADDRESS__
        free(v->at);
#else
        for (unsigned k = 0; k < guard_bytes; k++)
            if ((unsigned char)v->at[v->bytes + k] != guard_value)
                report("overrun", v->file, v->line,
                       "block %u,%u,%u wrote past the end of %zu bytes of shared memory", now.block.x,
                       now.block.y, now.block.z, v->bytes);
#endif
    }
    run.n_vars = 0;
    run.arena_used = run.static_bytes = 0;
}

/* ---- a grid */

/* What a block needs and no lane may allocate. For the thread sanitizer all memory of a block is fresh: what an earlier
 * block did at the same address is no race. It tells at most 255 threads apart, and those that come later take the
 * places of earlier ones, so that not every lane of a large block can be watched at a time: of each block three or
 * seven warps, drawn anew, are; the accesses of the others are ignored, and what they order is not. Three leave room
 * for those of the block before, with whom this one may race. */
#ifdef NP_EMU_TSAN
static char *block_pages;
static void *unwatched;
/* Those of earlier blocks are kept for a while: of a thread that is gone the sanitizer cannot report. */
constexpr unsigned kept_limit = 512;
static void *kept[kept_limit];
static unsigned n_kept;

static size_t block_bytes() { return arena_bytes + orders_bytes + run.n * settings().stack; }

/* One thread for all lanes that are not watched. */
static void make_unwatched()
{
    unwatched = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(unwatched, 1);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    __tsan_switch_to_fiber(run.host.tsan, 1);
}

static void block_begin()
{
    char *p = block_pages = (char *)map_pages(block_bytes());
    run.arena = p;
    run.orders = (uint64_t *)(p + arena_bytes);
    p += arena_bytes + orders_bytes;
    if (!unwatched) make_unwatched();
    unsigned left = (run.n + 31) / 32, wanted = run.n_blocks > 1 && next_random(2) ? 3 : 7;
    for (unsigned i = 0; i < run.n; i += 32, left--) {
        const bool watched =
            i == 0 || next_random(left) < wanted; /* the first thread often acts for its block */
        if (watched) wanted--;
        for (unsigned k = i; k < i + 32 && k < run.n; k++) {
            run.fibers[k] = new_fiber(p + k * settings().stack, settings().stack);
            run.fibers[k]->tsan = watched ? __tsan_create_fiber(0) : unwatched;
        }
    }
}
static void block_end()
{
    for (unsigned i = 0; i < run.n; i++) {
        void **place = &kept[n_kept % kept_limit];
        if (run.fibers[i]->tsan != unwatched) {
            if (*place) __tsan_destroy_fiber(*place);
            *place = run.fibers[i]->tsan;
            n_kept++;
        }
        delete run.fibers[i];
    }
    munmap(block_pages, block_bytes());
}
#else
static void block_begin()
{
    if (!run.arena) run.arena = (char *)map_pages(arena_bytes);
}
static void block_end() {}
#endif

static void run_block()
{
    run.n_done = run.fresh = run.head = run.tail = run.n_orders = 0;
    run.haste = next_random(4);
    if (settings().order == Settings::random) shuffle(run.order, run.n);
    for (unsigned i = 0; i < run.n; i++) run.lanes[i].state = State::fresh, run.lanes[i].n_barriers = 0;
    for (auto &w : run.warps) w = {0, 0};
    if (run.n % 32) run.warps[run.n / 32].ended = ~0u << run.n % 32;
    block_begin();
    NP_EMU_RELEASE(&run.launched);
    go(&run.host, pick());
    shared_end();
    block_end();
}

/* The i-th block to run: forward, backward, or in strides of a number without a common factor. */
static uint64_t block_number(uint64_t i, uint64_t n, uint64_t stride, uint64_t start)
{
    if (settings().order == Settings::forward) return i;
    if (settings().order == Settings::reverse) return n - 1 - i;
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)i * stride + start) % n);
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

void run_grid(const void *, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body)
{
    catch_faults();
    run.body = &body;
    run.n = block.x * block.y * block.z;
    run.n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    run.dynamic_bytes = shared;
#ifdef NP_EMU_TSAN
    run.host.tsan = __tsan_get_current_fiber();
#endif
    run.host.stack = nullptr;
    run.host.size = 0;
    now.block_dim = block;
    now.grid_dim = grid;
    order_lanes(run.order, run.n);
    for (unsigned i = 0; i < run.n; i++) {
        run.lanes[i].index = i;
        run.lanes[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    }
    const uint64_t n = run.n_blocks, start = next_random(1u << 30) % n;
    uint64_t stride = 1 + next_random(1u << 30) % n;
    while (gcd(stride, n) != 1) stride++;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = block_number(i, n, stride, start);
        now.block = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                     (unsigned)(b / grid.x / grid.y)};
        run_block();
    }
    NP_EMU_ACQUIRE(&run.ended); /* not before: blocks are not ordered among themselves */
    run.body = nullptr;
}

} // namespace emu
