/* emu_report.cpp - what is said when a kernel is wrong: one line, then the end of the process. */
#include "lane.h"

#include <csignal>
#include <cstdarg>
#include <sys/mman.h>

namespace emu
{

void report(const char *kind, const char *file, int line, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const char *name = file && strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    fprintf(stderr, "cudaemu: [%s] ", kind);
    if (name) fprintf(stderr, "%s:%d: ", name, line);
    fprintf(stderr, "%s", text);
    if (run.body) fprintf(stderr, " (block %u,%u,%u", now.block.x, now.block.y, now.block.z);
    if (run.body && run.current)
        fprintf(stderr, " thread %u,%u,%u", run.current->thread.x, run.current->thread.y,
                run.current->thread.z);
    if (run.body) fprintf(stderr, ")");
    static const char *const orders[] = {"forward", "reverse", "random"};
    fprintf(stderr, " NEAP_EMU_ORDER=%s NEAP_EMU_SEED=%u%s\n", orders[settings().order], settings().seed,
            settings().lazy ? " NEAP_EMU_LAZY=1" : "");
    fflush(stderr);
    abort();
}

void name_lane(char *out, size_t size, const Lane *l)
{
    static const char *const doing[] = {"has not begun", "runs", "waits at a barrier",
                                        "waits in a warp operation", "has ended"};
    const char *name = l->file && strrchr(l->file, '/') ? strrchr(l->file, '/') + 1 : l->file;
    bool waits = l->state == State::barrier || l->state == State::warp;
    int w = snprintf(out, size, "thread %u,%u,%u %s", l->thread.x, l->thread.y, l->thread.z,
                     doing[(int)l->state]);
    if (waits && w > 0) snprintf(out + w, size - (size_t)w, " (%s:%d)", name ? name : "?", l->line);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(NP_EMU_TSAN)
static void on_fault(int, siginfo_t *info, void *)
{
    signal(SIGSEGV, SIG_DFL);
    const char *p = (const char *)info->si_addr;
    const Fiber *f = run.current ? run.current->fiber : nullptr;
    const char *who = run.current ? "a kernel" : "the host";
    if (f && p < f->stack && p >= f->stack - 4096)
        report("stack", nullptr, 0, "a lane needs more than %zu KiB of stack: raise NEAP_EMU_STACK",
               f->size / 1024);
    if (info->si_code == SI_KERNEL) /* the processor does not tell which */
        report("misaligned", nullptr, 0, "%s accesses a misaligned or impossible address", who);
    report("fault", nullptr, 0, "%s touches %p, %s", who, (const void *)p, memory_at(p));
}

/* Faults are told in a lane's terms, on a stack of their own since the lane's may be what is exhausted. */
void catch_faults()
{
    static thread_local bool done;
    if (done) return;
    done = true;
    stack_t alternate = {};
    alternate.ss_size = 64 * 1024;
    alternate.ss_sp = map_pages(alternate.ss_size);
    sigaltstack(&alternate, nullptr);
    struct sigaction act = {};
    act.sa_sigaction = on_fault;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &act, nullptr);
}
#else
void catch_faults() {}
#endif

} // namespace emu
