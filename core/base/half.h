/* half.h - 16-bit floats as bits, shared by CPU and CUDA sources.
 *
 * Conversions round to nearest even; NaN stays NaN, overflow gives inf. What is an ordinary function for the CPU
 * (np_half_to_float in dtype.h) is these. */
#ifndef NP_HALF_H
#define NP_HALF_H

#include <stdint.h>
#include <string.h>

#ifndef NP_HOST_DEVICE
#define NP_HOST_DEVICE static inline
#endif

typedef uint16_t np_half; /* IEEE binary16 bits */
typedef uint16_t np_bf16; /* bfloat16 bits */

NP_HOST_DEVICE float np_half_widen(np_half h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 0x1fu, m = h & 0x3ffu, u;
    float f;
    if (e == 0x1f) {
        u = 0x7f800000u | m << 13; /* inf, NaN with its payload */
    } else if (e) {
        u = (e + 112) << 23 | m << 13;
    } else {
        f = (float)m * 0x1p-24f; /* 0 and the subnormals, exactly */
        memcpy(&u, &f, 4);
    }
    u |= sign;
    memcpy(&f, &u, 4);
    return f;
}

NP_HOST_DEVICE np_half np_half_narrow(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (np_half)(sign | 0x7e00u | ((a >> 13) & 0x3ffu)); /* NaN, quiet */
    if (a >= 0x47800000u) return (np_half)(sign | 0x7c00u);                       /* 65536 and above: inf */
    if (a >= 0x38800000u) { /* normal: a carry out of the mantissa moves the exponent up, to inf at the top */
        a -= 112u << 23;
        return (np_half)(sign | (a + 0xfffu + ((a >> 13) & 1u)) >> 13);
    }
    if (a <= 0x33000000u)
        return (np_half)sign; /* up to 2^-25, half the smallest subnormal: a tie goes to 0 */
    uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return (np_half)(sign | (q + (rest > tie || (rest == tie && (q & 1u)))));
}

NP_HOST_DEVICE float np_bf16_to_float(np_bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

NP_HOST_DEVICE np_bf16 np_float_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (np_bf16)((u >> 16) | 0x40u);
    return (np_bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
