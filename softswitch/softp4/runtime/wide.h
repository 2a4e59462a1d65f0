// SPDX-License-Identifier: Apache-2.0
// Integers beyond 128 bits, for generated code. The program says how many words it needs (SW_WIDE_WORDS, at
// least 3): two's complement, lowest word first, every value extended to all of them.
#ifndef SOFTP4_WIDE_H
#define SOFTP4_WIDE_H

#include <stdint.h>
#include <string.h>

#include "packet.h"

typedef struct {
    uint64_t w[SW_WIDE_WORDS];
} sw_wide;

#define SW_WIDE static inline __attribute__((always_inline, unused))
// What loops over all words for each of them is called, not inlined.
#define SW_WIDE_CALL static __attribute__((noinline, unused))
#define SW_WIDE_EACH(i) for (unsigned i = 0; i < SW_WIDE_WORDS; i++)

// -- conversions ------------------------------------------------------------------------------------

SW_WIDE sw_wide sw_wide_fill(sw_u128 low, uint64_t above)
{
    sw_wide r;
    r.w[0] = (uint64_t)low;
    r.w[1] = (uint64_t)(low >> 64);
    for (unsigned i = 2; i < SW_WIDE_WORDS; i++) r.w[i] = above;
    return r;
}
SW_WIDE sw_wide sw_wide_u(sw_u128 v) { return sw_wide_fill(v, 0); }
SW_WIDE sw_wide sw_wide_i(sw_i128 v) { return sw_wide_fill((sw_u128)v, v < 0 ? UINT64_MAX : 0); }
SW_WIDE sw_u128 sw_wide_low(sw_wide v) { return (sw_u128)v.w[1] << 64 | v.w[0]; }
SW_WIDE int sw_wide_negative(sw_wide v) { return (int64_t)v.w[SW_WIDE_WORDS - 1] < 0; }

// The lowest `bits` bits, zeros above.
SW_WIDE sw_wide sw_wide_zext(sw_wide v, unsigned bits)
{
    sw_wide r;
    SW_WIDE_EACH(i)
    {
        const unsigned below = 64 * i;
        r.w[i] = bits <= below ? 0 : bits >= below + 64 ? v.w[i] : v.w[i] & ((1ull << (bits - below)) - 1);
    }
    return r;
}
// The lowest `bits` bits as two's complement.
SW_WIDE sw_wide sw_wide_sext(sw_wide v, unsigned bits)
{
    const unsigned word = (bits - 1) / 64, shift = 63 - (bits - 1) % 64;
    const int64_t top = (int64_t)(v.w[word] << shift) >> shift;
    sw_wide r;
    SW_WIDE_EACH(i) r.w[i] = i < word ? v.w[i] : i == word ? (uint64_t)top : top < 0 ? UINT64_MAX : 0;
    return r;
}

// Fields and register cells: (bits + 7) / 8 bytes, lowest first, zeros above `bits`.
SW_WIDE sw_wide sw_wide_get(const uint8_t *from, unsigned bits)
{
    sw_wide r = {{0}};
    memcpy(&r, from, (bits + 7) / 8);
    return r;
}
SW_WIDE void sw_wide_put(uint8_t *to, unsigned bits, sw_wide v)
{
    memcpy(to, &v, (bits + 7) / 8);
    if (bits % 8 != 0) to[bits / 8] &= (uint8_t)((1u << bits % 8) - 1);
}
// Words of action data.
SW_WIDE sw_wide sw_wide_words(const uint64_t *from, unsigned count)
{
    sw_wide r = {{0}};
    memcpy(&r, from, count * sizeof *from);
    return r;
}
// `bits` bits of a packet, `offset` bits behind `from`.
SW_WIDE_CALL sw_wide sw_wide_bits(const uint8_t *from, unsigned offset, unsigned bits)
{
    sw_wide r = {{0}};
    sw_load_wide((uint8_t *)&r, from, offset, bits);
    return r;
}

// -- arithmetic, modulo 2^(64 * SW_WIDE_WORDS) --------------------------------------------------------

SW_WIDE sw_wide sw_wide_add(sw_wide a, sw_wide b)
{
    sw_wide r;
    unsigned char carry = 0;
    SW_WIDE_EACH(i)
    {
        uint64_t sum;
        const int over = __builtin_add_overflow(a.w[i], b.w[i], &sum);
        carry = (unsigned char)(over | __builtin_add_overflow(sum, (uint64_t)carry, &r.w[i]));
    }
    return r;
}
SW_WIDE sw_wide sw_wide_not(sw_wide a)
{
    SW_WIDE_EACH(i) a.w[i] = ~a.w[i];
    return a;
}
SW_WIDE sw_wide sw_wide_sub(sw_wide a, sw_wide b)
{
    sw_wide r;
    unsigned char borrow = 0;
    SW_WIDE_EACH(i)
    {
        uint64_t difference;
        const int under = __builtin_sub_overflow(a.w[i], b.w[i], &difference);
        borrow = (unsigned char)(under | __builtin_sub_overflow(difference, (uint64_t)borrow, &r.w[i]));
    }
    return r;
}
SW_WIDE sw_wide sw_wide_neg(sw_wide a) { return sw_wide_sub(sw_wide_u(0), a); }
SW_WIDE sw_wide sw_wide_and(sw_wide a, sw_wide b)
{
    SW_WIDE_EACH(i) a.w[i] &= b.w[i];
    return a;
}
SW_WIDE sw_wide sw_wide_or(sw_wide a, sw_wide b)
{
    SW_WIDE_EACH(i) a.w[i] |= b.w[i];
    return a;
}
SW_WIDE sw_wide sw_wide_xor(sw_wide a, sw_wide b)
{
    SW_WIDE_EACH(i) a.w[i] ^= b.w[i];
    return a;
}
SW_WIDE_CALL sw_wide sw_wide_mul(sw_wide a, sw_wide b)
{
    sw_wide r = {{0}};
    SW_WIDE_EACH(i)
    {
        uint64_t carry = 0;
        if (a.w[i] == 0) continue;
        for (unsigned j = 0; i + j < SW_WIDE_WORDS; j++) {
            const sw_u128 sum = (sw_u128)a.w[i] * b.w[j] + r.w[i + j] + carry;
            r.w[i + j] = (uint64_t)sum;
            carry = (uint64_t)(sum >> 64);
        }
    }
    return r;
}

// Shifts: by any amount, right arithmetically.
SW_WIDE sw_wide sw_wide_shl(sw_wide v, uint64_t by)
{
    const uint64_t words = by / 64, bits = by % 64;
    sw_wide r;
    SW_WIDE_EACH(i)
    {
        const uint64_t here = i >= words ? v.w[i - words] : 0,
                       below = i >= words + 1 ? v.w[i - words - 1] : 0;
        r.w[i] = bits == 0 ? here : here << bits | below >> (64 - bits);
    }
    return r;
}
SW_WIDE sw_wide sw_wide_shr(sw_wide v, uint64_t by)
{
    const uint64_t words = by / 64, bits = by % 64, sign = sw_wide_negative(v) ? UINT64_MAX : 0;
    sw_wide r;
    SW_WIDE_EACH(i)
    {
        const uint64_t at = words < SW_WIDE_WORDS ? i + words : SW_WIDE_WORDS;
        const uint64_t here = at < SW_WIDE_WORDS ? v.w[at] : sign;
        const uint64_t above = at + 1 < SW_WIDE_WORDS ? v.w[at + 1] : sign;
        r.w[i] = bits == 0 ? here : here >> bits | above << (64 - bits);
    }
    return r;
}
// A shift amount: what does not fit 64 bits, or is negative, shifts everything out.
SW_WIDE uint64_t sw_wide_amount(sw_wide v)
{
    uint64_t above = 0;
    for (unsigned i = 1; i < SW_WIDE_WORDS; i++) above |= v.w[i];
    return above != 0 ? UINT64_MAX : v.w[0];
}

// -- comparison -------------------------------------------------------------------------------------

SW_WIDE int sw_wide_same(sw_wide a, sw_wide b)
{
    uint64_t difference = 0;
    SW_WIDE_EACH(i) difference |= a.w[i] ^ b.w[i];
    return difference == 0;
}
SW_WIDE int sw_wide_nonzero(sw_wide v)
{
    uint64_t any = 0;
    SW_WIDE_EACH(i) any |= v.w[i];
    return any != 0;
}
SW_WIDE int sw_wide_less(sw_wide a, sw_wide b)
{
    if (sw_wide_negative(a) != sw_wide_negative(b)) return sw_wide_negative(a);
    for (unsigned i = SW_WIDE_WORDS; i-- != 0;)
        if (a.w[i] != b.w[i]) return a.w[i] < b.w[i];
    return 0;
}
SW_WIDE sw_wide sw_wide_clamp(sw_wide v, sw_wide least, sw_wide most)
{
    return sw_wide_less(v, least) ? least : sw_wide_less(most, v) ? most : v;
}

// -- division, towards zero; by zero: zero -----------------------------------------------------------

// Quotient and remainder of values that are not negative, bit by bit: division is rare.
SW_WIDE_CALL sw_wide sw_wide_divide(sw_wide a, sw_wide b, sw_wide *rest)
{
    sw_wide quotient = {{0}}, left = {{0}};
    unsigned top = SW_WIDE_WORDS;
    while (top != 0 && a.w[top - 1] == 0) top--;
    for (unsigned bit = 64 * top; bit-- != 0;) {
        left = sw_wide_shl(left, 1);
        left.w[0] |= a.w[bit / 64] >> bit % 64 & 1;
        if (!sw_wide_less(left, b)) {
            left = sw_wide_sub(left, b);
            quotient.w[bit / 64] |= 1ull << bit % 64;
        }
    }
    *rest = left;
    return quotient;
}
SW_WIDE sw_wide sw_wide_magnitude(sw_wide v) { return sw_wide_negative(v) ? sw_wide_neg(v) : v; }
SW_WIDE sw_wide sw_wide_div(sw_wide a, sw_wide b)
{
    sw_wide rest;
    if (!sw_wide_nonzero(b)) return b;
    const sw_wide r = sw_wide_divide(sw_wide_magnitude(a), sw_wide_magnitude(b), &rest);
    return sw_wide_negative(a) != sw_wide_negative(b) ? sw_wide_neg(r) : r;
}
SW_WIDE sw_wide sw_wide_mod(sw_wide a, sw_wide b)
{
    sw_wide rest;
    if (!sw_wide_nonzero(b)) return b;
    sw_wide_divide(sw_wide_magnitude(a), sw_wide_magnitude(b), &rest);
    return sw_wide_negative(a) ? sw_wide_neg(rest) : rest;
}

#endif
