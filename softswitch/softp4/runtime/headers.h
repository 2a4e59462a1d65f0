// SPDX-License-Identifier: Apache-2.0
// What generated code does with stacks, varbit fields and parser value sets.
#ifndef SOFTP4_HEADERS_H
#define SOFTP4_HEADERS_H

#include <stdint.h>
#include <string.h>

#include "state.h"

static inline int sw_get_bit(const uint64_t *bits, unsigned at) { return bits[at / 64] >> at % 64 & 1; }
static inline void sw_set_bit(uint64_t *bits, unsigned at, int value)
{
    bits[at / 64] = (bits[at / 64] & ~(1ull << at % 64)) | (uint64_t)(value != 0) << at % 64;
}
static inline void sw_swap_bits(uint64_t *bits, unsigned a, unsigned b)
{
    const int kept = sw_get_bit(bits, a);
    sw_set_bit(bits, a, sw_get_bit(bits, b));
    sw_set_bit(bits, b, kept);
}

// Whether two big-endian numbers are equal, however many bytes each has.
static inline int sw_same_number(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes)
{
    for (; a_bytes > b_bytes; a++, a_bytes--)
        if (*a != 0) return 0;
    for (; b_bytes > a_bytes; b++, b_bytes--)
        if (*b != 0) return 0;
    return memcmp(a, b, a_bytes) == 0;
}

// Whether a value set (NULL: an empty one) has a member equal to the key in the bits that the member's mask and
// `mask` have. `words` is a constant of the generated code.
static inline int sw_in_value_set(const sw_value_set *set, const uint64_t *key, const uint64_t *mask,
                                  unsigned words)
{
    if (set == NULL) return 0;
    for (uint32_t i = 0; i < set->count; i++) {
        const uint64_t *value = set->members + 2 * i * words;
        uint64_t different = 0;
        for (unsigned w = 0; w < words; w++) different |= (key[w] ^ value[w]) & value[words + w] & mask[w];
        if (different == 0) return 1;
    }
    return 0;
}

#endif
