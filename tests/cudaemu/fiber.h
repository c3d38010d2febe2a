/* fiber.h - stacks that take turns on one host thread, and what the sanitizers must be told about it.
 *
 * On x86-64 a switch saves six registers and jumps (an indirect jump, not a return: the processor's prediction of
 * returns is wrong across stacks). Elsewhere, or with NP_EMU_UCONTEXT, ucontext does it, ten times slower.
 * With NP_EMU_TSAN a fiber is one of the thread sanitizer's, which its maker sets, and a switch orders nothing. */
#ifndef NP_EMU_FIBER_H
#define NP_EMU_FIBER_H

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(NP_EMU_UCONTEXT)
#define NP_EMU_UCONTEXT
#endif
#ifdef NP_EMU_UCONTEXT
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef NP_EMU_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *at);
void __tsan_release(void *at);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
}
#define NP_EMU_ACQUIRE(at) __tsan_acquire(at)
#define NP_EMU_RELEASE(at) __tsan_release(at)
#else
#define NP_EMU_ACQUIRE(at) ((void)(at))
#define NP_EMU_RELEASE(at) ((void)(at))
#endif

namespace emu
{

struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr; /* lowest address; a page below it faults. NULL: the host's own stack */
    size_t size = 0;
    void *fake = nullptr, *tsan = nullptr;
#ifdef NP_EMU_UCONTEXT
    ucontext_t context;
#endif
};

#ifndef NP_EMU_UCONTEXT
extern "C" void np_emu_switch(void **save, void *load);
__asm__(".text\n"
        ".type np_emu_switch,@function\n"
        "np_emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    pop %rcx\n    jmp *%rcx\n"
        ".size np_emu_switch, .-np_emu_switch\n");
#endif

/* The stack [stack, stack + size) will run `entry`, which never returns. */
inline void fiber_init(Fiber *f, char *stack, size_t size, void (*entry)())
{
    f->stack = stack;
    f->size = size;
#ifdef NP_EMU_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = size;
    f->context.uc_link = nullptr;
    makecontext(&f->context, entry, 0);
#else
    void **top = (void **)(stack + size) - 1; /* 8 modulo 16 when entry begins, as after a call */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->sp = top;
#endif
}

/* What the code first does on a stack it was switched to; `from` learns its bounds if it is the host. */
inline void fiber_arrived(Fiber *self, Fiber *host)
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &size);
    if (!host->stack && self != host && !host->size) host->stack = (char *)bottom, host->size = size;
#else
    (void)self, (void)host;
#endif
}

inline void fiber_switch(Fiber *from, Fiber *to, Fiber *host)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
#endif
#ifdef NP_EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 1); /* 1: no order between what ran before and after */
#endif
#ifdef NP_EMU_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    np_emu_switch(&from->sp, to->sp);
#endif
    fiber_arrived(from, host);
}

} // namespace emu

#endif
