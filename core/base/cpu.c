/* cpu.c - what this CPU can run, by CPUID, and by XCR0 (the system must save the wide registers too). */
#include "ctx.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

typedef struct cpuid_regs {
    unsigned a, b, c, d;
} cpuid_regs;

static cpuid_regs cpuid(unsigned leaf)
{
    cpuid_regs r = {0, 0, 0, 0};
    (void)__get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
    return r;
}

static unsigned saved_registers(void)
{
    unsigned low, high;
    if (!(cpuid(1).c & bit_OSXSAVE)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* x86-64-v3: AVX2, BMI, F16C, FMA, LZCNT, MOVBE; v4 adds AVX-512 F, BW, CD, DQ, VL. */
int np_cpu_best_level(void)
{
    const unsigned need1 = bit_AVX | bit_F16C | bit_FMA | bit_MOVBE, need7 = bit_AVX2 | bit_BMI | bit_BMI2;
    const unsigned wide7 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    const unsigned ymm = 0x06, zmm = 0xe6;
    unsigned saved = saved_registers();
    cpuid_regs r1 = cpuid(1), r7 = cpuid(7), ext = cpuid(0x80000001u);
    if ((saved & ymm) != ymm || (r1.c & need1) != need1 || (r7.b & need7) != need7 || !(ext.c & bit_LZCNT))
        return 0;
    return (saved & zmm) == zmm && (r7.b & wide7) == wide7 ? 2 : 1;
}

static bool is_zen(void)
{
    cpuid_regs r0 = cpuid(0), r1 = cpuid(1);
    char vendor[12];
    memcpy(vendor, &r0.b, 4), memcpy(vendor + 4, &r0.d, 4), memcpy(vendor + 8, &r0.c, 4);
    unsigned family = (r1.a >> 8) & 0xf;
    if (family == 0xf) family += (r1.a >> 20) & 0xff;
    return family >= 0x17 && (!memcmp(vendor, "AuthenticAMD", 12) || !memcmp(vendor, "HygonGenuine", 12));
}

/* OpenBLAS does not know cores newer than itself and falls back to a kernel six times slower. */
const char *np_cpu_openblas_core(void)
{
    int level = np_cpu_best_level();
    return level == 2 ? "SkylakeX" : level == 0 ? NULL : is_zen() ? "Zen" : "Haswell";
}

#else

int np_cpu_best_level(void) { return 0; }

const char *np_cpu_openblas_core(void) { return NULL; }

#endif

const char *np_cpu_level_name(int level)
{
    static const char *const names[NP_N_ISA] = {"baseline", "avx2", "avx512"};
    return level >= 0 && level < NP_N_ISA ? names[level] : "unknown";
}

int np_cpu_choose_level(neap_ctx *c)
{
    int best = np_cpu_best_level();
    const char *want = getenv("NEAP_ISA");
    if (!want || !*want) return best;
    for (int level = 0; level < NP_N_ISA; level++) {
        if (strcmp(want, np_cpu_level_name(level))) continue;
        if (level <= best) return level;
        np_logf(c, 2, "NEAP_ISA is '%s'; this CPU cannot run it; using %s", want, np_cpu_level_name(best));
        return best;
    }
    np_logf(c, 2, "NEAP_ISA is '%.40s'; it must be baseline, avx2 or avx512; using %s", want,
            np_cpu_level_name(best));
    return best;
}
