// SPDX-License-Identifier: Apache-2.0
// Reading and writing packet bytes, for generated code.
#ifndef SOFTP4_PACKET_H
#define SOFTP4_PACKET_H

#include <stdint.h>
#include <string.h>

#include "state.h"

static inline uint16_t sw_load16(const uint8_t *b)
{
    uint16_t v;
    memcpy(&v, b, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t sw_load32(const uint8_t *b)
{
    uint32_t v;
    memcpy(&v, b, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t sw_load64(const uint8_t *b)
{
    uint64_t v;
    memcpy(&v, b, 8);
    return __builtin_bswap64(v);
}
static inline void sw_store16(uint8_t *b, uint16_t v)
{
    v = __builtin_bswap16(v);
    memcpy(b, &v, 2);
}
static inline void sw_store32(uint8_t *b, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(b, &v, 4);
}
static inline void sw_store64(uint8_t *b, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(b, &v, 8);
}

// `bytes` (1 to 16, a constant at each call) big-endian bytes.
static inline __attribute__((always_inline)) sw_u128 sw_load(const uint8_t *b, unsigned bytes)
{
    sw_u128 v = 0;
    unsigned i = 0;
    for (; i + 8 <= bytes; i += 8) v = (v << 64) | sw_load64(b + i);
    if (i + 4 <= bytes) v = (v << 32) | sw_load32(b + i), i += 4;
    if (i + 2 <= bytes) v = (v << 16) | sw_load16(b + i), i += 2;
    if (i < bytes) v = (v << 8) | b[i];
    return v;
}
static inline __attribute__((always_inline)) void sw_store(uint8_t *b, unsigned bytes, sw_u128 v)
{
    unsigned i = bytes;
    for (; i >= 8; i -= 8, v >>= 64) sw_store64(b + i - 8, (uint64_t)v);
    if (i >= 4) i -= 4, sw_store32(b + i, (uint32_t)v), v >>= 32;
    if (i >= 2) i -= 2, sw_store16(b + i, (uint16_t)v), v >>= 16;
    if (i != 0) b[0] = (uint8_t)v;
}

// `bits` bits, `offset` bits into `b`: any alignment, bit by byte. For the rare field that no wide
// load covers.
static inline sw_u128 sw_load_bits(const uint8_t *b, unsigned offset, unsigned bits)
{
    sw_u128 v = 0;
    for (unsigned done = 0; done < bits;) {
        unsigned skip = (offset + done) % 8, take = 8 - skip < bits - done ? 8 - skip : bits - done;
        v = (v << take) | ((b[(offset + done) / 8] >> (8 - skip - take)) & ((1u << take) - 1));
        done += take;
    }
    return v;
}
static inline void sw_store_bits(uint8_t *b, unsigned offset, unsigned bits, sw_u128 v)
{
    for (unsigned done = 0; done < bits;) {
        unsigned skip = (offset + done) % 8, take = 8 - skip < bits - done ? 8 - skip : bits - done;
        unsigned shift = 8 - skip - take, mask = ((1u << take) - 1) << shift;
        uint8_t *at = &b[(offset + done) / 8];
        *at = (uint8_t)((*at & ~mask) | (((unsigned)(v >> (bits - done - take)) << shift) & mask));
        done += take;
    }
}

// `bytes` (1 to 8) bytes of a field wider than 128 bits, which lies lowest byte first.
static inline __attribute__((always_inline)) uint64_t sw_load_lowest(const uint8_t *b, unsigned bytes)
{
    uint64_t v = 0;
    memcpy(&v, b, bytes);
    return v;
}

// A field wider than 128 bits into its storage.
static inline void sw_load_wide(uint8_t *to, const uint8_t *b, unsigned offset, unsigned bits)
{
    for (unsigned done = 0; done < bits; done += 8) {
        unsigned take = bits - done < 8 ? bits - done : 8;
        to[done / 8] = (uint8_t)sw_load_bits(b, offset + bits - done - take, take);
    }
}

// Runs of equal fields. Through pointers to unaligned integers, because compilers turn exactly that into
// byte-shuffle instructions.
typedef uint16_t __attribute__((aligned(1), may_alias)) sw_unaligned16;
typedef uint32_t __attribute__((aligned(1), may_alias)) sw_unaligned32;
typedef uint64_t __attribute__((aligned(1), may_alias)) sw_unaligned64;

#define SW_RUN(BITS)                                                                                         \
    static inline void sw_load_run##BITS(uint##BITS##_t *restrict to, const uint8_t *restrict from,          \
                                         unsigned count)                                                     \
    {                                                                                                        \
        const sw_unaligned##BITS *in = (const sw_unaligned##BITS *)from;                                     \
        for (unsigned i = 0; i < count; i++) to[i] = __builtin_bswap##BITS(in[i]);                           \
    }                                                                                                        \
    static inline void sw_store_run##BITS(uint8_t *restrict to, const uint##BITS##_t *restrict from,         \
                                          unsigned count)                                                    \
    {                                                                                                        \
        sw_unaligned##BITS *out = (sw_unaligned##BITS *)to;                                                  \
        for (unsigned i = 0; i < count; i++) out[i] = __builtin_bswap##BITS(from[i]);                        \
    }
SW_RUN(16)
SW_RUN(32)
SW_RUN(64)
#undef SW_RUN

#endif
