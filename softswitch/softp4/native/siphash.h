/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4 (Aumasson and Bernstein, 2012) of a word, or of bytes: who lacks the key cannot tell it from a random number. */
#ifndef SOFTP4_SIPHASH_H
#define SOFTP4_SIPHASH_H

#include <stdint.h>
#include <string.h>

static inline uint64_t sp4_little64(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
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

static inline void sp4_sip_begin(uint64_t v[4], const uint8_t key[16])
{
    const uint64_t k0 = sp4_little64(key), k1 = sp4_little64(key + 8);
    v[0] = k0 ^ 0x736f6d6570736575;
    v[1] = k1 ^ 0x646f72616e646f6d;
    v[2] = k0 ^ 0x6c7967656e657261;
    v[3] = k1 ^ 0x7465646279746573;
}

static inline void sp4_sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sp4_sip_rounds(v, 2);
    v[0] ^= word;
}

/* The last `count` bytes of a message of `length` bytes, after words for all bytes before them. */
static inline uint64_t sp4_sip_end(uint64_t v[4], const uint8_t *bytes, uint64_t count, uint64_t length)
{
    for (; count >= 8; count -= 8, bytes += 8) sp4_sip_word(v, sp4_little64(bytes));
    uint8_t last[8] = {0};
    memcpy(last, bytes, count);
    sp4_sip_word(v, sp4_little64(last) | length << 56);
    v[2] ^= 0xff;
    sp4_sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline uint64_t sp4_siphash(const uint8_t key[16], uint64_t word)
{
    uint64_t v[4];
    sp4_sip_begin(v, key);
    sp4_sip_word(v, word);
    return sp4_sip_end(v, (const uint8_t *)"", 0, sizeof word);
}

#endif
