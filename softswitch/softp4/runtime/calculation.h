// SPDX-License-Identifier: Apache-2.0
// What a calculation keeps between packets: the parameters of a custom CRC, or the turn of a round robin.
#ifndef SOFTP4_CALCULATION_H
#define SOFTP4_CALCULATION_H

#include <stdint.h>

typedef struct {
    uint64_t polynomial, initial, final_xor; // of as many bits as the CRC has
    uint64_t reflect_data, reflect_remainder;
} sw_crc_parameters;

typedef struct {
    uint32_t bits; // 8, 16, 32 or 64; 0: no CRC
    sw_crc_parameters crc;
} sw_calculation_desc;

typedef struct {
    uint32_t bits;
    uint64_t mask, turn;
    sw_crc_parameters crc;
    uint64_t table[256]; // remainder of each byte
} sw_calculation;

static inline uint64_t sw_reflected(uint64_t value, unsigned bits)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < bits; i++) result |= (value >> i & 1) << (bits - 1 - i);
    return result;
}

static inline void sw_calculation_set(sw_calculation *c, uint32_t bits, const sw_crc_parameters *crc)
{
    c->bits = bits;
    c->mask = bits == 0 ? 0 : UINT64_MAX >> (64 - bits);
    c->crc = *crc;
    for (uint64_t byte = 0; bits != 0 && byte < 256; byte++) {
        uint64_t remainder = byte << (bits - 8);
        for (int bit = 0; bit < 8; bit++)
            remainder = (remainder << 1 ^ (remainder >> (bits - 1) & 1 ? crc->polynomial : 0)) & c->mask;
        c->table[byte] = remainder;
    }
}

#endif
