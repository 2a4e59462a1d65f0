/* SPDX-License-Identifier: Apache-2.0 */
/* Float32 values to fixed-point lanes and back, in the memory that they are in. The arithmetic and its error bound
 * are derived in quantize.py.
 *
 * Every scale is a power of two and is applied in one factor, or in two where one would over- or underflow: so
 * scaling is exact, and what the lanes lose is one rounding to nearest, ties to even. */
#ifndef WEIR_FIXED_H
#define WEIR_FIXED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lanes.h"

enum { WEIR_EXPONENT_BIAS = 126 /* |x| < 2^(exponent - 126) */ };

/* The power of two that a block's values are multiplied by. */
static inline int weir_fixed_shift(uint32_t exponent, uint32_t headroom)
{
    return 31 - (int)headroom - ((int)exponent - WEIR_EXPONENT_BIAS);
}

/* 2^k as a float, k from -126 to 127. */
static inline float weir_fixed_power(int k)
{
    const uint32_t bits = (uint32_t)(k + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Inlined with a second factor of 1 where there is but one. */
static inline __attribute__((always_inline)) uint64_t weir_fixed_scaled(uint32_t *lanes, uint32_t count,
                                                                        float first, float second,
                                                                        uint32_t *any)
{
    uint64_t sum = 0;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, lanes + i, sizeof value);
        const int32_t lane = (int32_t)rintf(value * first * second);
        lanes[i] = (uint32_t)lane;
        seen |= (uint32_t)lane;
        sum += (uint64_t)(int64_t)lane;
    }
    *any = seen;
    return sum;
}

/* Values, none of them too large for the scale, become lanes. Returns these lanes' sum, and their OR in `any`. */
static inline uint64_t weir_fixed_enter(uint32_t *lanes, uint32_t count, int shift, uint32_t *any)
{
    if (shift >= -126 && shift <= 127)
        return weir_fixed_scaled(lanes, count, weir_fixed_power(shift), 1, any);
    return weir_fixed_scaled(lanes, count, ldexpf(1, shift / 2), ldexpf(1, shift - shift / 2), any);
}

/* Lanes become the values that they stand for, which become the same lanes again. */
static inline void weir_fixed_leave(uint32_t *lanes, uint32_t count, int shift)
{
    const double quantum = ldexp(1, -shift);
    for (uint32_t i = 0; i < count; i++) {
        const float value = (float)((int32_t)lanes[i] * quantum);
        memcpy(lanes + i, &value, sizeof value);
    }
}

/* Sums of lanes out of a packet become the values that they stand for; returns the sum of the lanes. */
static inline uint64_t weir_fixed_unpack(uint32_t *restrict to, const uint8_t *restrict in, uint32_t count,
                                         int shift)
{
    const weir_u32 *from = (const weir_u32 *)in;
    uint64_t sum = 0;
    if (shift >= -96 && shift <= 126) { /* no value over- or underflows: only the lane is rounded */
        const float quantum = weir_fixed_power(-shift);
        for (uint32_t i = 0; i < count; i++) {
            const int32_t lane = (int32_t)WEIR_BE32(from[i]);
            const float value = (float)lane * quantum;
            memcpy(to + i, &value, sizeof value);
            sum += (uint64_t)(int64_t)lane;
        }
        return sum;
    }
    const double quantum = ldexp(1, -shift);
    for (uint32_t i = 0; i < count; i++) {
        const int32_t lane = (int32_t)WEIR_BE32(from[i]);
        const float value = (float)(lane * quantum);
        memcpy(to + i, &value, sizeof value);
        sum += (uint64_t)(int64_t)lane;
    }
    return sum;
}

#endif
