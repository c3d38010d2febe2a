/* cpu.h - which kernels this CPU can run. Levels: 0 baseline x86-64 (SSE2), 1 AVX2+FMA (x86-64-v3),
 * 2 AVX-512 (x86-64-v4). NEAP_ISA=baseline|avx2|avx512 forces one; a level the CPU lacks is refused with a
 * log line and the best available one is taken. */
#ifndef NP_CPU_H
#define NP_CPU_H

#include "neap.h"

#define NP_N_ISA 3

int np_cpu_best_level(void);              /* by CPUID and XCR0 */
int np_cpu_choose_level(neap_ctx *c);     /* best, or NEAP_ISA */
const char *np_cpu_level_name(int level); /* "baseline", "avx2", "avx512" */
const char *np_cpu_openblas_core(void);   /* "SkylakeX", "Haswell", "Zen" ... or NULL to leave it alone */

#endif
