/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of values: where they end, and the magnitudes of float32. */
#ifndef WEIR_BLOCKS_H
#define WEIR_BLOCKS_H

#include <stdint.h>
#include <string.h>

static inline uint64_t block_length(uint64_t count, uint64_t start, uint64_t block)
{
    return count - start < block ? count - start : block;
}

/* The bits of a magnitude: as integers they sort as their values do, infinity and then NaN last. */
static inline uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

static const uint32_t INFINITE = 0x7f800000u;

static inline uint32_t largest_magnitude(const float *x, uint64_t count)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t own = magnitude(x[i]);
        largest = own > largest ? own : largest;
    }
    return largest;
}

#endif
