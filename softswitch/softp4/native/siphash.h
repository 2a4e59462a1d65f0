/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) of one word: who lacks the key cannot tell it from a random number. */
#ifndef SOFTP4_SIPHASH_H
#define SOFTP4_SIPHASH_H

#include <stdint.h>

static inline uint64_t sp4_little64(const uint8_t *bytes)
{
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--) word = word << 8 | bytes[i];
    return word;
}

static inline uint64_t sp4_rotate64(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline void sp4_sip_rounds(uint64_t v[4], int rounds)
{
    while (rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = sp4_rotate64(v[1], 13) ^ v[0];
        v[3] = sp4_rotate64(v[3], 16) ^ v[2];
        v[0] = sp4_rotate64(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = sp4_rotate64(v[1], 17) ^ v[2];
        v[3] = sp4_rotate64(v[3], 21) ^ v[0];
        v[2] = sp4_rotate64(v[2], 32);
    }
}

static inline uint64_t sp4_siphash(const uint8_t key[16], uint64_t word)
{
    const uint64_t k0 = sp4_little64(key), k1 = sp4_little64(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                     k1 ^ 0x7465646279746573};
    const uint64_t message[] = {word, (uint64_t)sizeof word << 56}; /* the last one holds the length */
    for (int i = 0; i < 2; i++) {
        v[3] ^= message[i];
        sp4_sip_rounds(v, 2);
        v[0] ^= message[i];
    }
    v[2] ^= 0xff;
    sp4_sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
