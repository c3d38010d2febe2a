/* test_vec_fma.c - the same with a real fused multiply-add, as from CPU level 1 on. */
#define NP_ISA 1
#include "test_vec.c"
