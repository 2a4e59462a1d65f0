/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of float32 values: where they end, and their largest magnitude. */
#ifndef WEIR_BLOCKS_H
#define WEIR_BLOCKS_H

#include <stdint.h>
#include <string.h>

static inline uint64_t block_length(uint64_t count, uint64_t start, uint32_t block)
{
    return count - start < block ? count - start : block;
}

/* Bit patterns of magnitudes sort as their values do, infinity and NaN last. */
static inline uint32_t largest_bits(const float *x, uint64_t count)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

#endif
