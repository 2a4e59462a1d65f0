/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit numbers as three 32-bit lanes each. The digits and bounds are derived in limbs.py.
 *
 * Lanes are limb-major: limb k of number i is lanes[k * count + i], least significant limb first, so that
 * limbs nobody needs are zero blocks. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"

/* Bits of a limb where 2^headroom numbers are added: of an integer's, digits in [-2^(b-1), 2^(b-1)); of a float's
 * lower limbs, digits in [-2^(b-1), 2^(b-1)]; of a float's top limb, magnitude up to 2^b. */
static inline int integer_bits(uint32_t headroom) { return 32 - (int)headroom; }
static inline int float_bits(uint32_t headroom) { return 31 - (int)headroom; }
static inline int top_bits(uint32_t headroom) { return 30 - (int)headroom; }

enum {
    NOT_FINITE = 2047,
    EXPONENT_BIAS = 1022 /* |x| < 2^(exponent - 1022) */
};

static inline int64_t low_digit(uint64_t value, int bits)
{
    return (int64_t)(value << (64 - bits)) >> (64 - bits);
}

static inline uint64_t rest(uint64_t value, int bits)
{
    return (uint64_t)((int64_t)(value - (uint64_t)low_digit(value, bits)) >> bits);
}

void weir_split_int64(const uint64_t *restrict x, uint64_t count, uint32_t headroom, int32_t *restrict lanes)
{
    int bits = integer_bits(headroom);
    int32_t *restrict low = lanes, *restrict middle = lanes + count, *restrict high = lanes + 2 * count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t above = rest(x[i], bits);
        low[i] = (int32_t)low_digit(x[i], bits);
        middle[i] = (int32_t)low_digit(above, bits);
        high[i] = (int32_t)rest(above, bits);
    }
}

void weir_join_int64(const int32_t *restrict lanes, uint64_t count, uint32_t headroom, uint64_t *restrict x)
{
    int bits = integer_bits(headroom);
    const int32_t *low = lanes, *middle = lanes + count, *high = lanes + 2 * count;
    for (uint64_t i = 0; i < count; i++)
        x[i] = (uint64_t)low[i] + ((uint64_t)middle[i] << bits) + ((uint64_t)high[i] << 2 * bits);
}

static inline uint32_t largest_exponent(const double *x, uint64_t count)
{
    uint64_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= INT64_MAX;
        largest = bits > largest ? bits : largest;
    }
    uint32_t exponent = (uint32_t)(largest >> 52);
    return exponent ? exponent : largest != 0;
}

void weir_exponents64(const double *x, uint64_t count, uint32_t block, uint32_t *exponents)
{
    for (uint64_t start = 0; start < count; start += block)
        *exponents++ = largest_exponent(x + start, block_length(count, start, block));
}

static void split_block(int32_t *restrict low, int32_t *restrict middle, int32_t *restrict high,
                        const double *restrict x, uint64_t count, int bits, int shift)
{
    double first = ldexp(1, shift / 2), second = ldexp(1, shift - shift / 2), digit = 1 << bits;
    for (uint64_t i = 0; i < count; i++) {
        double value = x[i] * first * second, top = rint(value);
        double below = (value - top) * digit, next = rint(below); /* differences of neighbours: exact */
        high[i] = (int32_t)top;
        middle[i] = (int32_t)next;
        low[i] = (int32_t)rint((below - next) * digit);
    }
}

/* Returns how many blocks hold a number too large for their shared exponent (their lanes are zero). */
uint64_t weir_split_float64(const double *x, uint64_t count, uint32_t block, const uint32_t *exponents,
                            uint32_t headroom, int32_t *lanes)
{
    uint64_t too_large = 0;
    for (uint64_t start = 0; start < count; start += block, exponents++) {
        uint64_t length = block_length(count, start, block);
        int exponent = (int)*exponents;
        int fits = largest_exponent(x + start, length) <= *exponents;
        int32_t *low = lanes + start, *middle = low + count, *high = middle + count;
        too_large += !fits;
        if (exponent == 0 || exponent >= NOT_FINITE || !fits) {
            memset(low, 0, length * sizeof *low);
            memset(middle, 0, length * sizeof *middle);
            memset(high, 0, length * sizeof *high);
        } else
            split_block(low, middle, high, x + start, length, float_bits(headroom),
                        top_bits(headroom) - (exponent - EXPONENT_BIAS));
    }
    return too_large;
}

static void join_block(double *restrict x, const int32_t *restrict low, const int32_t *restrict middle,
                       const int32_t *restrict high, uint64_t count, int bits, int shift)
{
    double first = ldexp(1, shift / 2), second = ldexp(1, shift - shift / 2);
    int64_t unit = 1ll << 2 * bits; /* of the top limb */
    for (uint64_t i = 0; i < count; i++) {
        /* carry what the lower limbs hold above that, so that one addition rounds, once */
        int64_t lower = ((int64_t)middle[i] << bits) + low[i];
        int64_t carry = (lower + unit / 2) >> 2 * bits;
        double upper = (double)(high[i] + carry) * (double)unit;
        x[i] = (upper + (double)(lower - carry * unit)) * first * second;
    }
}

void weir_join_float64(const int32_t *lanes, uint64_t count, uint32_t block, const uint32_t *exponents,
                       uint32_t headroom, double *x)
{
    int bits = float_bits(headroom);
    for (uint64_t start = 0; start < count; start += block, exponents++) {
        uint64_t length = block_length(count, start, block);
        int exponent = (int)*exponents;
        const int32_t *low = lanes + start, *middle = low + count, *high = middle + count;
        if (exponent == 0)
            memset(x + start, 0, length * sizeof *x);
        else if (exponent >= NOT_FINITE)
            for (uint64_t i = 0; i < length; i++) x[start + i] = NAN;
        else
            join_block(x + start, low, middle, high, length, bits,
                       exponent - EXPONENT_BIAS - top_bits(headroom) - 2 * bits);
    }
}
