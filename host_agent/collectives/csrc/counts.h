/* SPDX-License-Identifier: Apache-2.0 */
/* Small counts as the digits of 32-bit lanes, CHUNK of them at a time: of L lanes for n counts, count i is digit
 * i / L, the first one of least weight, of lane i % L. So loops run over lanes: vector code. The arithmetic is in
 * counts.py. */
#ifndef WEIR_COUNTS_H
#define WEIR_COUNTS_H

#include <stdint.h>
#include <string.h>

enum { CHUNK = 1 << 14, LEAST_DIGITS = 2 };

static inline uint32_t lanes_of(uint32_t count, uint32_t digits) { return (count + digits - 1) / digits; }

/* The counts of a chunk that begins at `start`. */
static inline uint32_t chunk_length(uint64_t count, uint64_t start)
{
    return count - start < CHUNK ? (uint32_t)(count - start) : CHUNK;
}

/* Up to CHUNK counts to lanes. */
static inline void pack_counts(const uint8_t *restrict values, uint32_t count, uint32_t base, uint32_t digits,
                               uint32_t *restrict lanes)
{
    const uint32_t length = lanes_of(count, digits);
    memset(lanes, 0, length * sizeof *lanes);
    for (uint32_t weight = 1; count; weight *= base) {
        const uint32_t here = count < length ? count : length;
        for (uint32_t i = 0; i < here; i++) lanes[i] += weight * values[i];
        values += here, count -= here;
    }
}

/* The inverse. */
__attribute__((always_inline)) static inline void
unpack_digits(const uint32_t *lanes, uint32_t count, uint32_t base, uint32_t digits, uint16_t *restrict sums)
{
    uint32_t rest[CHUNK / LEAST_DIGITS];
    const uint32_t length = lanes_of(count, digits);
    memcpy(rest, lanes, length * sizeof *rest);
    while (count) {
        const uint32_t here = count < length ? count : length;
        for (uint32_t i = 0; i < here; i++) {
            const uint32_t above = rest[i] / base;
            sums[i] = (uint16_t)(rest[i] - above * base);
            rest[i] = above;
        }
        sums += here, count -= here;
    }
}

/* A constant base: divisions become multiplications. Those of signs, and of samples, of few workers. */
static inline void unpack_counts(const uint32_t *lanes, uint32_t count, uint32_t base, uint32_t digits,
                                 uint16_t *sums)
{
#define WITH_BASE(constant)                                                                                  \
    case constant:                                                                                           \
        unpack_digits(lanes, count, constant, digits, sums);                                                 \
        break;
    switch (base) {
        WITH_BASE(2)
        WITH_BASE(3)
        WITH_BASE(4)
        WITH_BASE(5)
        WITH_BASE(6)
        WITH_BASE(7)
        WITH_BASE(8)
        WITH_BASE(9)
        WITH_BASE(13)
        WITH_BASE(16)
        WITH_BASE(17)
    default:
        unpack_digits(lanes, count, base, digits, sums);
    }
#undef WITH_BASE
}

#endif
