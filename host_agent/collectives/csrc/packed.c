/* SPDX-License-Identifier: Apache-2.0 */
/* Several narrow values in one 32-bit lane. The arithmetic, and why no field reaches into the next one, are
 * in packing.py.
 *
 * A group of 32 lanes holds 32 * fields values in a row: field k of lane j is value 32 k + j, so that every
 * loop is over neighbours in memory. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"

enum { GROUP = 32, MOST_FIELDS = 4, MANTISSA_BITS = 8, LEAST_EXPONENT = -149 };

void weir_largest(const float *x, uint64_t count, uint32_t block, uint32_t *largest)
{
    for (uint64_t start = 0; start < count; start += block)
        *largest++ = largest_magnitude(x + start, block_length(count, start, block));
}

enum { DOUBLE_BITS = 52, DOUBLE_BIAS = 1023, DROPPED = DOUBLE_BITS - (MANTISSA_BITS - 1) };

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The least number of MANTISSA_BITS significant bits that is no less than largest / most, if float32 has it. */
static inline double quantum(uint32_t largest, uint32_t most)
{
    float value;
    memcpy(&value, &largest, sizeof value);
    const double exact = (double)value / most;
    const uint64_t rest = (1ull << DROPPED) - 1, rounded = (bits_of(exact) + rest) & ~rest;
    const int last = (int)(bits_of(exact) >> DOUBLE_BITS) - DOUBLE_BIAS + 1 - MANTISSA_BITS;
    if (last >= LEAST_EXPONENT) return double_of(rounded);
    return ldexp(ceil(ldexp(exact, -LEAST_EXPONENT)), LEAST_EXPONENT);
}

static inline void pack_group(uint32_t *restrict lanes, const float *restrict x, float first, float second,
                              uint32_t fields, uint32_t width)
{
    uint32_t packed[GROUP] = {0};
    for (uint32_t k = 0; k < fields; k++)
        for (uint32_t j = 0; j < GROUP; j++)
            packed[j] += (uint32_t)(int32_t)rintf(x[k * GROUP + j] * first * second) << k * width;
    memcpy(lanes, packed, sizeof packed);
}

/* 1 / unit in two factors, neither of which overflows. */
static inline void inverse(double unit, float *first, float *second)
{
    const uint64_t bits = bits_of(unit), below = (1ull << DOUBLE_BITS) - 1;
    const int exponent = (int)(bits >> DOUBLE_BITS) - DOUBLE_BIAS + 1; /* of a mantissa from 1/2 up to 1 */
    const double mantissa = double_of((bits & below) | (uint64_t)(DOUBLE_BIAS - 1) << DOUBLE_BITS);
    const int half = -exponent / 2, other = -exponent - half;
    *first = (float)double_of((uint64_t)(DOUBLE_BIAS + half) << DOUBLE_BITS);
    *second = (float)(1 / mantissa * double_of((uint64_t)(DOUBLE_BIAS + other) << DOUBLE_BITS));
}

/* For each of n blocks the two factors that turn values into fields, and what one of these stands for; all 0 where a
 * block is zero or not finite. For devices, which have no frexp. */
void weir_pack_factors(const uint32_t *largest, uint64_t n, uint32_t most, float *factors, double *quanta)
{
    for (uint64_t i = 0; i < n; i++) {
        factors[2 * i] = factors[2 * i + 1] = 0;
        quanta[i] = 0;
        if (!largest[i] || largest[i] >= INFINITE) continue;
        quanta[i] = quantum(largest[i], most);
        inverse(quanta[i], &factors[2 * i], &factors[2 * i + 1]);
    }
}

static void pack_block(uint32_t *restrict lanes, const float *restrict x, uint64_t count, double unit,
                       uint32_t fields)
{
    float first, second;
    inverse(unit, &first, &second);
    for (uint64_t start = 0; start < count; start += GROUP * fields, lanes += GROUP) {
        const float *from = x + start;
        float padded[GROUP * MOST_FIELDS] = {0};
        if (count - start < GROUP * fields) {
            memcpy(padded, from, (count - start) * sizeof *from);
            from = padded;
        }
        if (fields == 2)
            pack_group(lanes, from, first, second, 2, 16);
        else if (fields == 3)
            pack_group(lanes, from, first, second, 3, 10);
        else
            pack_group(lanes, from, first, second, 4, 8);
    }
}

static inline uint32_t group_lanes(uint64_t values, uint32_t fields)
{
    return (uint32_t)((values + GROUP * fields - 1) / (GROUP * fields)) * GROUP;
}

/* Blocks rows[0..n) of x (rows NULL: the first n), each to whole groups of lanes, with its shared largest
 * magnitude. Returns how many blocks hold a number above theirs (their lanes are zero). */
uint64_t weir_pack(const float *x, uint64_t count, uint32_t block, const uint32_t *rows, uint64_t n,
                   const uint32_t *largest, uint32_t fields, uint32_t most, uint32_t *lanes)
{
    uint64_t too_large = 0;
    uint32_t block_lanes = group_lanes(block, fields);
    for (uint64_t i = 0; i < n; i++, lanes += block_lanes) {
        uint64_t start = (rows ? rows[i] : i) * (uint64_t)block, length = block_length(count, start, block);
        int fits = largest_magnitude(x + start, length) <= largest[i];
        uint32_t used = 0;
        too_large += !fits;
        if (fits && largest[i] && largest[i] < INFINITE) {
            pack_block(lanes, x + start, length, quantum(largest[i], most), fields);
            used = group_lanes(length, fields);
        }
        memset(lanes + used, 0, (block_lanes - used) * sizeof *lanes);
    }
    return too_large;
}

static inline void unpack_group(float *restrict x, const uint32_t *restrict lanes, float unit,
                                uint32_t fields, uint32_t width)
{
    const uint32_t half = 1u << (width - 1), mask = 2 * half - 1;
    uint32_t bias = 0;
    for (uint32_t k = 0; k < fields; k++) bias += half << k * width;
    for (uint32_t k = 0; k < fields; k++)
        for (uint32_t j = 0; j < GROUP; j++)
            x[k * GROUP + j] =
                (float)((int32_t)((lanes[j] + bias) >> k * width & mask) - (int32_t)half) * unit;
}

static void unpack_block(float *restrict x, const uint32_t *restrict lanes, uint64_t count, float unit,
                         uint32_t fields)
{
    for (uint64_t start = 0; start < count; start += GROUP * fields, lanes += GROUP) {
        float padded[GROUP * MOST_FIELDS], *to = x + start;
        int whole = count - start >= GROUP * fields;
        if (fields == 2)
            unpack_group(whole ? to : padded, lanes, unit, 2, 16);
        else if (fields == 3)
            unpack_group(whole ? to : padded, lanes, unit, 3, 10);
        else
            unpack_group(whole ? to : padded, lanes, unit, 4, 8);
        if (!whole) memcpy(to, padded, (count - start) * sizeof *to);
    }
}

/* Quanta are rounded up: next to float32's largest, what one worker may have sent can stand for more than that.
 * reach: half of the most that it can. */
static void double_values(float *x, uint64_t count, float reach)
{
    for (uint64_t i = 0; i < count; i++) {
        int single = fabsf(x[i]) > FLT_MAX / 2 && fabsf(x[i]) <= reach;
        x[i] = single ? copysignf(FLT_MAX, x[i]) : 2 * x[i];
    }
}

/* The inverse, of sums of lanes: overwrites the blocks of x. */
void weir_unpack(const uint32_t *lanes, uint64_t count, uint32_t block, const uint32_t *rows, uint64_t n,
                 const uint32_t *largest, uint32_t fields, uint32_t most, float *x)
{
    uint32_t block_lanes = group_lanes(block, fields);
    for (uint64_t i = 0; i < n; i++, lanes += block_lanes) {
        uint64_t start = (rows ? rows[i] : i) * (uint64_t)block, length = block_length(count, start, block);
        if (largest[i] == 0)
            memset(x + start, 0, length * sizeof *x);
        else if (largest[i] >= INFINITE)
            for (uint64_t j = 0; j < length; j++) x[start + j] = NAN;
        else {
            double unit = quantum(largest[i], most);
            int beyond = unit * most > FLT_MAX;
            unpack_block(x + start, lanes, length, (float)(beyond ? unit / 2 : unit), fields);
            if (beyond) double_values(x + start, length, (float)(unit / 2 * most));
        }
    }
}
