/* SPDX-License-Identifier: Apache-2.0 */
/* Block floating point for float32, from one vector to another; fixed.h has it in place. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"
#include "fixed.h"

enum { NOT_FINITE = 255 };

static inline uint32_t largest_exponent(const float *x, uint64_t count)
{
    uint32_t largest = largest_magnitude(x, count), exponent = largest >> 23;
    return exponent ? exponent : largest != 0; /* subnormals lie below 2^-125, as exponent 1 says */
}

void weir_exponents(const float *x, uint64_t count, uint32_t block, uint32_t *exponents)
{
    for (uint64_t start = 0; start < count; start += block)
        *exponents++ = largest_exponent(x + start, block_length(count, start, block));
}

/* As weir_pack_factors, of whole lanes. */
void weir_fixed_factors(const uint32_t *exponents, uint64_t n, uint32_t headroom, float *factors,
                        double *quanta)
{
    for (uint64_t i = 0; i < n; i++) {
        const int some = exponents[i] && exponents[i] < NOT_FINITE;
        const int shift = some ? weir_fixed_shift(exponents[i], headroom) : 0;
        const float first = weir_fixed_power(-(shift / 2)), second = weir_fixed_power(shift / 2 - shift);
        factors[2 * i] = some ? weir_fixed_power(shift / 2) : 0;
        factors[2 * i + 1] = some ? weir_fixed_power(shift - shift / 2) : 0;
        quanta[i] = some ? (double)first * second : 0;
    }
}

static void fix_block(int32_t *restrict lanes, const float *restrict x, uint64_t count, int shift)
{
    float first = ldexpf(1, shift / 2), second = ldexpf(1, shift - shift / 2);
    for (uint64_t i = 0; i < count; i++) lanes[i] = (int32_t)rintf(x[i] * first * second);
}

/* Returns how many blocks hold a number too large for their shared exponent (their lanes are zero). */
uint64_t weir_to_fixed(const float *x, uint64_t count, uint32_t block, const uint32_t *exponents,
                       uint32_t headroom, int32_t *lanes)
{
    uint64_t too_large = 0;
    for (uint64_t start = 0; start < count; start += block, exponents++) {
        uint64_t length = block_length(count, start, block);
        int exponent = (int)*exponents;
        int fits = largest_exponent(x + start, length) <= *exponents;
        too_large += !fits;
        if (exponent == 0 || exponent >= NOT_FINITE || !fits)
            memset(lanes + start, 0, length * sizeof *lanes);
        else
            fix_block(lanes + start, x + start, length, weir_fixed_shift(*exponents, headroom));
    }
    return too_large;
}

static void float_block(float *restrict x, const int32_t *restrict lanes, uint64_t count, int shift)
{
    double quantum = ldexp(1, shift);
    for (uint64_t i = 0; i < count; i++) x[i] = (float)(lanes[i] * quantum);
}

void weir_from_fixed(const int32_t *lanes, uint64_t count, uint32_t block, const uint32_t *exponents,
                     uint32_t headroom, float *x)
{
    for (uint64_t start = 0; start < count; start += block, exponents++) {
        uint64_t length = block_length(count, start, block);
        int exponent = (int)*exponents;
        if (exponent == 0)
            memset(x + start, 0, length * sizeof *x);
        else if (exponent >= NOT_FINITE)
            for (uint64_t i = 0; i < length; i++) x[start + i] = NAN;
        else
            float_block(x + start, lanes + start, length, -weir_fixed_shift(*exponents, headroom));
    }
}

/* As weir_to_fixed of the blocks `rows` alone: block i of the lanes, zero-padded, is block rows[i] of x, with
 * exponents[i]. */
uint64_t weir_to_fixed_rows(const float *x, uint64_t count, uint32_t block, const uint32_t *rows, uint64_t n,
                            const uint32_t *exponents, uint32_t headroom, int32_t *lanes)
{
    uint64_t too_large = 0;
    for (uint64_t i = 0; i < n; i++, lanes += block) {
        uint64_t start = (uint64_t)rows[i] * block, length = block_length(count, start, block);
        too_large += weir_to_fixed(x + start, length, block, exponents + i, headroom, lanes);
        memset(lanes + length, 0, (block - length) * sizeof *lanes);
    }
    return too_large;
}

/* The inverse: overwrites the blocks `rows` of x. */
void weir_from_fixed_rows(const int32_t *lanes, uint64_t count, uint32_t block, const uint32_t *rows,
                          uint64_t n, const uint32_t *exponents, uint32_t headroom, float *x)
{
    for (uint64_t i = 0; i < n; i++, lanes += block) {
        uint64_t start = (uint64_t)rows[i] * block;
        weir_from_fixed(lanes, block_length(count, start, block), block, exponents + i, headroom, x + start);
    }
}

/* The first of each `step`th of the blocks `rows` of x (NULL: the first n) in which at least one in 8 of the
 * values that are not zero, and the sums of their lanes, are below 64 quanta for each worker; n if there is
 * none. */
uint64_t weir_coarse_block(const float *x, const int32_t *sums, uint64_t count, uint32_t block,
                           const uint32_t *rows, uint64_t n, uint64_t step, const uint32_t *exponents,
                           uint32_t workers, uint32_t headroom)
{
    int64_t least = 64 * (int64_t)workers;
    for (uint64_t i = 0; i < n; i += step, sums += step * block) {
        uint64_t start = (rows ? rows[i] : i) * (uint64_t)block, length = block_length(count, start, block);
        float small = (float)ldexp((double)least, -weir_fixed_shift(exponents[i], headroom));
        uint32_t coarse = 0, occupied = 0;
        for (uint64_t j = 0; j < length; j++) {
            float value = fabsf(x[start + j]);
            occupied += value != 0;
            coarse += (value != 0) & (value < small) & (sums[j] < least) & (sums[j] > -least);
        }
        if (coarse && 8 * coarse >= occupied) return i;
    }
    return n;
}
