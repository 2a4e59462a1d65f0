// SPDX-License-Identifier: Apache-2.0
// The hash and checksum algorithms, for generated code. All have BMv2's parameters and results.
#ifndef SOFTP4_ALGORITHMS_H
#define SOFTP4_ALGORITHMS_H

#include "packet.h"

// crc16 is CRC-16/ARC, crc32 is CRC-32/ISO-HDLC, crc_ccitt is CRC-16/IBM-3740.
static inline uint64_t sw_crc(const uint8_t *data, size_t length, uint32_t reflected_polynomial,
                              uint32_t initial)
{
    uint32_t crc = initial;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? reflected_polynomial : 0);
    }
    return crc;
}
static inline uint64_t sw_crc16(const uint8_t *data, size_t length)
{
    return sw_crc(data, length, 0xa001u, 0);
}
static inline uint64_t sw_crc32(const uint8_t *data, size_t length)
{
    return (uint32_t)~sw_crc(data, length, 0xedb88320u, 0xffffffffu);
}
static inline uint64_t sw_crc_ccitt(const uint8_t *data, size_t length)
{
    uint16_t crc = 0xffff;
    for (size_t i = 0; i < length; i++) {
        crc ^= (uint16_t)(data[i] << 8);
        for (int bit = 0; bit < 8; bit++) crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0));
    }
    return crc;
}

// Internet checksum, RFC 1071.
static inline uint64_t sw_csum16(const uint8_t *data, size_t length)
{
    uint64_t sum = 0;
    for (size_t i = 0; i + 2 <= length; i += 2) sum += sw_load16(data + i);
    if (length % 2 != 0) sum += (uint64_t)data[length - 1] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}
static inline uint64_t sw_xor16(const uint8_t *data, size_t length)
{
    uint16_t value = 0;
    for (size_t i = 0; i + 2 <= length; i += 2) value ^= sw_load16(data + i);
    if (length % 2 != 0) value ^= (uint16_t)(data[length - 1] << 8);
    return value;
}
static inline uint64_t sw_xor32(const uint8_t *data, size_t length)
{
    uint32_t value = 0;
    for (size_t i = 0; i < length; i++) value ^= (uint32_t)data[i] << (24 - 8 * (i % 4));
    return value;
}
static inline uint64_t sw_identity(const uint8_t *data, size_t length)
{
    uint64_t value = 0;
    for (size_t i = 0; i < length && i < 8; i++) value = (value << 8) | data[i];
    return value;
}

// -- with state, which is the switch's (sw_calculation) -----------------------------------------------

static inline uint64_t sw_crc_custom(sw_calculation *c, const uint8_t *data, size_t length)
{
    uint64_t crc = c->crc.initial;
    for (size_t i = 0; i < length; i++) {
        const uint8_t byte = c->crc.reflect_data ? (uint8_t)sw_reflected(data[i], 8) : data[i];
        crc = c->table[byte ^ (uint8_t)(crc >> (c->bits - 8))] ^ (crc << 8 & c->mask);
    }
    return (c->crc.reflect_remainder ? sw_reflected(crc, c->bits) : crc) ^ c->crc.final_xor;
}
static inline uint64_t sw_round_robin(sw_calculation *c, const uint8_t *data, size_t length)
{
    (void)data, (void)length;
    return c->turn++;
}

#endif
