/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit numbers as three 32-bit lanes each. The digits and bounds are derived in limbs.py.
 *
 * Lanes are limb-major: limb k of number i is lanes[k * count + i], least significant limb first, so that
 * limbs nobody needs are zero blocks. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    INTEGER_BITS = 27, /* of an integer's limb: digits in [-2^26, 2^26), 32 of them sum into 32 bits */
    FLOAT_BITS = 26,   /* of a float's lower limbs: digits in [-2^25, 2^25] */
    TOP_BITS = 25,     /* of a float's top limb: magnitude up to 2^25 */
    NOT_FINITE = 2047,
    EXPONENT_BIAS = 1022 /* |x| < 2^(exponent - 1022) */
};

static inline int64_t low_digit(uint64_t value)
{
    return (int64_t)(value << (64 - INTEGER_BITS)) >> (64 - INTEGER_BITS);
}

static inline uint64_t rest(uint64_t value)
{
    return (uint64_t)((int64_t)(value - (uint64_t)low_digit(value)) >> INTEGER_BITS);
}

void weir_split_int64(const uint64_t *restrict x, uint64_t count, int32_t *restrict lanes)
{
    int32_t *restrict low = lanes, *restrict middle = lanes + count, *restrict high = lanes + 2 * count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t above = rest(x[i]);
        low[i] = (int32_t)low_digit(x[i]);
        middle[i] = (int32_t)low_digit(above);
        high[i] = (int32_t)rest(above);
    }
}

void weir_join_int64(const int32_t *restrict lanes, uint64_t count, uint64_t *restrict x)
{
    const int32_t *low = lanes, *middle = lanes + count, *high = lanes + 2 * count;
    for (uint64_t i = 0; i < count; i++)
        x[i] = (uint64_t)low[i] + ((uint64_t)middle[i] << INTEGER_BITS) +
               ((uint64_t)high[i] << 2 * INTEGER_BITS);
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

static inline uint64_t block_length(uint64_t count, uint64_t start, uint32_t block)
{
    return count - start < block ? count - start : block;
}

void weir_exponents64(const double *x, uint64_t count, uint32_t block, uint32_t *exponents)
{
    for (uint64_t start = 0; start < count; start += block)
        *exponents++ = largest_exponent(x + start, block_length(count, start, block));
}

static void split_block(int32_t *restrict low, int32_t *restrict middle, int32_t *restrict high,
                        const double *restrict x, uint64_t count, int shift)
{
    double first = ldexp(1, shift / 2), second = ldexp(1, shift - shift / 2), digit = 1 << FLOAT_BITS;
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
                            int32_t *lanes)
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
            split_block(low, middle, high, x + start, length, TOP_BITS - (exponent - EXPONENT_BIAS));
    }
    return too_large;
}

static void join_block(double *restrict x, const int32_t *restrict low, const int32_t *restrict middle,
                       const int32_t *restrict high, uint64_t count, int shift)
{
    double first = ldexp(1, shift / 2), second = ldexp(1, shift - shift / 2);
    for (uint64_t i = 0; i < count; i++) {
        /* carry what the lower limbs hold above 2^52, so that one addition rounds, once */
        int64_t lower = ((int64_t)middle[i] << FLOAT_BITS) + low[i];
        int64_t carry = (lower + (1ll << 51)) >> 52;
        double upper = (double)(high[i] + carry) * 0x1p52;
        x[i] = (upper + (double)(lower - carry * (1ll << 52))) * first * second;
    }
}

void weir_join_float64(const int32_t *lanes, uint64_t count, uint32_t block, const uint32_t *exponents,
                       double *x)
{
    for (uint64_t start = 0; start < count; start += block, exponents++) {
        uint64_t length = block_length(count, start, block);
        int exponent = (int)*exponents;
        const int32_t *low = lanes + start, *middle = low + count, *high = middle + count;
        if (exponent == 0)
            memset(x + start, 0, length * sizeof *x);
        else if (exponent >= NOT_FINITE)
            for (uint64_t i = 0; i < length; i++) x[start + i] = NAN;
        else
            join_block(x + start, low, middle, high, length,
                       exponent - EXPONENT_BIAS - TOP_BITS - 2 * FLOAT_BITS);
    }
}
