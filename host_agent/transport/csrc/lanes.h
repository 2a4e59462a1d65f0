/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over lanes that the compiler turns into vector code: byte order, zero tests, exact sums.
 *
 * Sums are of lanes read as signed 32-bit numbers, modulo 2^64: exact for every vector of less than 2^32
 * lanes, and the number that means something for fixed-point gradients. */
#ifndef WEIR_LANES_H
#define WEIR_LANES_H

#include <stdint.h>
#include <string.h>

#include "wire.h"

typedef uint32_t __attribute__((aligned(1), may_alias)) weir_u32; /* anywhere inside a packet */

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define WEIR_BE16(x) __builtin_bswap16(x)
#define WEIR_BE32(x) __builtin_bswap32(x)
#else
#define WEIR_BE16(x) (x)
#define WEIR_BE32(x) (x)
#endif

static inline uint32_t weir_get32(const uint8_t *p) { return WEIR_BE32(*(const weir_u32 *)p); }

static inline void weir_put32(uint8_t *p, uint32_t value) { *(weir_u32 *)p = WEIR_BE32(value); }

static inline uint16_t weir_get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static inline void weir_put16(uint8_t *p, uint16_t value)
{
    p[0] = (uint8_t)(value >> 8);
    p[1] = (uint8_t)value;
}

/* Lanes into a packet, `block` of them: those beyond `count` are zero. */
static inline void weir_lanes_pack(uint8_t *restrict out, const uint32_t *restrict lanes, uint32_t count,
                                   uint32_t block)
{
    weir_u32 *to = (weir_u32 *)out;
    for (uint32_t i = 0; i < count; i++) to[i] = WEIR_BE32(lanes[i]);
    memset(to + count, 0, 4u * (block - count));
}

/* Lanes out of a packet; returns the sum of the new ones. */
static inline uint64_t weir_lanes_unpack(uint32_t *restrict lanes, const uint8_t *restrict in, uint32_t count)
{
    const weir_u32 *from = (const weir_u32 *)in;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t lane = WEIR_BE32(from[i]);
        lanes[i] = lane;
        sum += (uint64_t)(int64_t)(int32_t)lane;
    }
    return sum;
}

/* Lanes out of a packet, combined with those that are here; returns the sum of the new ones. */
static inline uint64_t weir_lanes_combine(uint32_t *restrict lanes, const uint8_t *restrict in,
                                          uint32_t count, uint32_t op)
{
    const weir_u32 *from = (const weir_u32 *)in;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t own = lanes[i], lane = WEIR_BE32(from[i]);
        lane = op == WEIR_OP_ADD ? own + lane : op == WEIR_OP_OR ? own | lane : own > lane ? own : lane;
        lanes[i] = lane;
        sum += (uint64_t)(int64_t)(int32_t)lane;
    }
    return sum;
}

/* Lanes out of a packet change those that are here by exclusive or; returns the sum of the packet's. */
static inline uint64_t weir_lanes_toggle(uint32_t *restrict lanes, const uint8_t *restrict in, uint32_t count)
{
    const weir_u32 *from = (const weir_u32 *)in;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t lane = WEIR_BE32(from[i]);
        lanes[i] ^= lane;
        sum += (uint64_t)(int64_t)(int32_t)lane;
    }
    return sum;
}

static inline uint64_t weir_lanes_sum(const uint32_t *lanes, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += (uint64_t)(int64_t)(int32_t)lanes[i];
    return sum;
}

/* The sum, and in `any` the OR of all lanes: zero exactly when every lane is. */
static inline uint64_t weir_lanes_scan(const uint32_t *lanes, uint32_t count, uint32_t *any)
{
    uint64_t sum = 0;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < count; i++) {
        seen |= lanes[i];
        sum += (uint64_t)(int64_t)(int32_t)lanes[i];
    }
    *any = seen;
    return sum;
}

#endif
