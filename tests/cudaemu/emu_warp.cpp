/* emu_warp.cpp - shuffles, votes and the other operations of a warp.
 *
 * A lane leaves what it brings and waits; the last lane of the mask computes everybody's result. Shuffles and votes
 * move registers and order no memory, __syncwarp does. */
#include "lane.h"

namespace emu
{

static const char *const op_names[] = {"",
                                       "__shfl_sync",
                                       "__shfl_up_sync",
                                       "__shfl_down_sync",
                                       "__shfl_xor_sync",
                                       "__ballot_sync",
                                       "__any_sync",
                                       "__all_sync",
                                       "__match_any_sync",
                                       "__match_all_sync",
                                       "__syncwarp",
                                       "__reduce_add_sync",
                                       "__reduce_add_sync",
                                       "__reduce_min_sync",
                                       "__reduce_min_sync",
                                       "__reduce_max_sync",
                                       "__reduce_max_sync",
                                       "__reduce_and_sync",
                                       "__reduce_or_sync",
                                       "__reduce_xor_sync",
                                       "a fused operation"};

static bool same_op(const Lane *a, const Lane *b)
{
    return b->state == State::warp && a->mask == b->mask && a->op == b->op && a->line == b->line &&
           (a->file == b->file || strcmp(a->file, b->file) == 0);
}

/* Lanes of the mask that can no longer come. */
static void check_not_ended(const Lane *l)
{
    const unsigned gone = l->mask & run.warps[l->index / 32].ended;
    if (gone)
        report("wrong mask", l->file, l->line, "%s: mask 0x%08x names lane %d, which has ended",
               op_names[(int)l->op], l->mask, __builtin_ctz(gone));
}

[[noreturn]] void report_stuck(const Lane *l)
{
    char text[120] = "?";
    const Lane *warp = l - l->index % 32;
    run.current = nullptr;
    check_not_ended(l);
    for (int i = 0; i < 32; i++) {
        const Lane *o = &warp[i];
        if (!(l->mask >> i & 1) || same_op(l, o)) continue;
        name_lane(text, sizeof text, o);
        if (o->state == State::warp)
            report("wrong mask", l->file, l->line,
                   "%s with mask 0x%08x of thread %u,%u,%u, but %s: %s with mask 0x%08x",
                   op_names[(int)l->op], l->mask, l->thread.x, l->thread.y, l->thread.z, text,
                   op_names[(int)o->op], o->mask);
        break;
    }
    report("deadlock", l->file, l->line, "%s with mask 0x%08x of thread %u,%u,%u, but %s",
           op_names[(int)l->op], l->mask, l->thread.x, l->thread.y, l->thread.z, text);
}

/* The lane whose value a shuffle takes, or -1 for its own. */
static int shuffle_source(const Lane *l, int lane)
{
    int low = lane & ~(l->width - 1), high = low + l->width;
    int from = l->op == Op::shfl        ? low + (l->arg & (l->width - 1))
               : l->op == Op::shfl_up   ? lane - l->arg
               : l->op == Op::shfl_down ? lane + l->arg
                                        : lane ^ l->arg;
    bool own = from < low || from >= high;
    if (l->op == Op::shfl_xor) own = from >= high || from < 0; /* lower groups may be read */
    return own ? -1 : from;
}

static uint64_t fold(Op op, uint64_t a, uint64_t b)
{
    switch (op) {
    case Op::add_i:
    case Op::add_u: return (uint32_t)a + (uint32_t)b;
    case Op::min_i: return (uint32_t)((int32_t)a < (int32_t)b ? a : b);
    case Op::min_u: return (uint32_t)a < (uint32_t)b ? a : b;
    case Op::max_i: return (uint32_t)((int32_t)a > (int32_t)b ? a : b);
    case Op::max_u: return (uint32_t)a > (uint32_t)b ? a : b;
    case Op::and_: return a & b;
    case Op::or_: return a | b;
    default: return a ^ b;
    }
}

/* All lanes of the mask are here: what each of them gets. */
static void complete(Lane *warp, unsigned mask, Op op)
{
    uint64_t in[32], out[32] = {0}, all = 0;
    unsigned ballot = 0;
    bool begun = false, same = true;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        in[i] = warp[i].value;
        ballot |= (unsigned)(in[i] != 0) << i;
        if (begun && op >= Op::add_i && op <= Op::xor_) all = fold(op, all, in[i]);
        if (begun) same = same && in[i] == in[__builtin_ctz(mask)];
        if (!begun) all = in[i];
        begun = true;
    }
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        switch (op) {
        case Op::shfl:
        case Op::shfl_up:
        case Op::shfl_down:
        case Op::shfl_xor: {
            int from = shuffle_source(&warp[i], i);
            if (from >= 0 && !(mask >> from & 1)) {
                run.current = &warp[i];
                report("bad source lane", warp[i].file, warp[i].line,
                       "%s: lane %d reads lane %d, outside mask 0x%08x", op_names[(int)op], i, from, mask);
            }
            out[i] = in[from < 0 ? i : from];
            break;
        }
        case Op::ballot: out[i] = ballot; break;
        case Op::any: out[i] = ballot != 0; break;
        case Op::all: out[i] = ballot == mask; break;
        case Op::match_any:
            for (int j = 0; j < 32; j++)
                if ((mask >> j & 1) && in[j] == in[i]) out[i] |= 1u << j;
            break;
        case Op::match_all: out[i] = same ? mask : 0; break;
        default: out[i] = all;
        }
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) warp[i].value = out[i];
}

/* Wakes the lanes of a completed operation, in the configured order; the last one pushed runs first. */
static void wake(Lane *warp, unsigned mask)
{
    run.warps[warp->index / 32].n_waiting -= (unsigned)__builtin_popcount(mask);
    for (int i = 0; i < 32; i++) {
        int lane = settings().order == Settings::reverse ? i : 31 - i;
        if (mask >> lane & 1) make_ready(&warp[lane], true);
    }
}

/* Checks the mask of the lane that arrives; true when it is the last one. Lanes of the mask may be in operations of
 * smaller groups still, so that a mask which does not fit theirs is an error only when nothing can run any more. */
static bool mask_complete(const Lane *l, const Lane *warp)
{
    const unsigned lane = l->index % 32;
    if (!(l->mask >> lane & 1))
        report("wrong mask", l->file, l->line, "%s: lane %u is not in its own mask 0x%08x",
               op_names[(int)l->op], lane, l->mask);
    check_not_ended(l);
    if (++run.warps[l->index / 32].n_waiting < (unsigned)__builtin_popcount(l->mask)) return false;
    for (int i = 0; i < 32; i++)
        if ((l->mask >> i & 1) && !same_op(l, &warp[i])) return false;
    return true;
}

uint64_t warp_op(Op op, unsigned mask, uint64_t value, int arg, int width, const char *file, int line)
{
    Lane *l = run.current, *warp = &run.lanes[l->index & ~31u];
    l->op = op;
    l->mask = mask;
    l->value = value;
    l->arg = arg;
    l->width = width;
    l->file = file;
    l->line = line;
    l->state = State::warp;
    if (width < 1 || width > 32 || (width & (width - 1)))
        report("wrong mask", file, line, "%s: width %d is not 1, 2, 4, 8, 16 or 32", op_names[(int)op],
               width);
    /* Shuffles and votes move registers and order no memory; __syncwarp does, by an address of its own each time. */
    const bool orders = op == Op::sync;
    const bool last = mask_complete(l, warp);
    uint64_t *at = run.orders;
    if (orders) {
#ifdef NP_EMU_TSAN
        uint64_t id = ~0ull; /* the group's first lane chooses, the others find it in a waiting one */
        for (unsigned i = 0; i < 32; i++)
            if ((mask >> i & 1) && &warp[i] != l && same_op(l, &warp[i])) id = warp[i].value;
        if (id == ~0ull) id = 2 + run.n_orders++ % (orders_bytes / 8 - 2);
        l->value = id;
        at += id;
#endif
        NP_EMU_RELEASE(at);
    }
    if (last) {
        complete(warp, mask, op);
        wake(warp, mask);
    }
    park();
    if (orders) NP_EMU_ACQUIRE(at);
    return l->value;
}

void warp_fused(void (*fused)(void *const payload[32]), void *payload, const char *file, int line)
{
    Lane *l = run.current, *warp = &run.lanes[l->index & ~31u];
    l->op = Op::fused;
    l->mask = ~0u;
    l->value = (uint64_t)(uintptr_t)payload;
    l->file = file;
    l->line = line;
    l->state = State::warp;
    if (mask_complete(l, warp)) {
        void *all[32];
        for (int i = 0; i < 32; i++) all[i] = (void *)(uintptr_t)warp[i].value;
        fused(all);
        wake(warp, ~0u);
    }
    park();
}

} // namespace emu
