/* lane.h - the grid that is running, as emu_grid.cpp, emu_warp.cpp and emu_report.cpp share it. */
#ifndef NP_EMU_LANE_H
#define NP_EMU_LANE_H

#include "fiber.h"
#include "state.h"

namespace emu
{

enum class State : uint8_t { fresh, ready, barrier, warp, done };

struct Lane {
    uint3 thread;
    unsigned index;
    State state;
    Bar bar;
    Op op;
    int predicate, arg, width; /* predicate: also a barrier's result */
    unsigned mask, n_barriers;
    uint64_t value; /* what a warp operation is given, then its result */
    const char *file;
    int line;
    Fiber *fiber;
};

struct SharedVar {
    const void *declaration;
    char *at;
    size_t bytes;
    const char *file;
    int line;
};

constexpr unsigned ready_size = 2048; /* a power of two above the number of lanes */
constexpr unsigned guard_bytes = 32, guard_value = 0xa5;

struct Run { /* the grid that is running; one at a time */
    const std::function<void()> *body;
    uint64_t n_blocks;
    unsigned n, n_done, fresh; /* lanes of a block, those that ended, those that began */
    Lane lanes[lanes_limit];
    uint16_t order[lanes_limit];
    Lane *ready[ready_size];
    unsigned head, tail;
    Lane *current, *starting;
    Fiber host;
    Fiber *fibers[lanes_limit];
    unsigned n_free;
    struct
    { /* a warp: how many lanes wait in its operations, which have ended (and those there never were) */
        unsigned n_waiting, ended;
    } warps[lanes_limit / 32];
    /* shared memory of the block */
    SharedVar vars[64];
    int n_vars;
    char *arena;
    size_t arena_used, static_bytes, dynamic_bytes;
    /* addresses that stand for orders: of the launch, and those of a block: two for its barriers, one a __syncwarp */
    uint64_t launched, ended, *orders;
    unsigned n_orders;
    unsigned haste; /* random order: how often, out of 4, the lane that woke last goes on */
};
extern Run run;

constexpr size_t arena_bytes = 512 * 1024, orders_bytes = 1 << 20;

void make_ready(Lane *l, bool first); /* at the end of the queue, or before all others */
void park();                          /* until the running lane is ready again */
void name_lane(char *out, size_t size, const Lane *l);
/* A warp operation that can never complete: which lane of its mask is elsewhere. emu_warp.cpp. */
[[noreturn]] void report_stuck(const Lane *l);

} // namespace emu

#endif
