/* SPDX-License-Identifier: Apache-2.0 */
/* Between a bucket, the vector in which each of its parameters begins with a block, and the packed vector of what is
 * selected of that. See bucket_layout.py and encodings/selection.py. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"

/* One parameter of a bucket: `length` elements of the vector from `source` on, and what is selected of them, from
 * `target` to `end` of the packed vector, padded with zeros. starts: the first elements of the `n` blocks of `m`
 * that are selected; NULL: all is. See encodings/selection.py. */
struct weir_part {
    const uint32_t *starts;
    uint64_t n, m, source, length, target, end;
};

/* For each selected block of a part, in order: `start`, its first element. */
#define FOR_EACH_BLOCK(part)                                                                                 \
    for (uint64_t block_ = 0, start; block_ < (part)->n && (start = (part)->starts[block_], 1); block_++)

/* As weir_pyramid, of one part of a vector that is zero but for what was selected of it. An element is the first of its
 * block of 2^k when its number differs from that of the one before it in bit k or above. */
void weir_part_pyramid(const struct weir_part *part, const float *packed, uint32_t levels, int64_t *counts)
{
    enum { BITS = 64 };
    int64_t differing[BITS + 1] = {0}; /* elements by how many of the lower bits hold all differences */
    uint64_t before = 1ull << (BITS - 1);
    packed += part->target;
    FOR_EACH_BLOCK(part)
    for (uint64_t element = start; element < start + part->m; element++) {
        if (*packed++ == 0) continue;
        differing[BITS - __builtin_clzll(before ^ element)]++;
        before = element;
    }
    int64_t first = 0;
    for (uint32_t level = BITS; level-- > 0;) {
        first += differing[level + 1];
        if (level < levels) counts[level] += first;
    }
}

/* The selected blocks of x one after another, each of m lanes: a partial one is padded with zeros. */
void weir_parts_pack(const struct weir_part *part, uint64_t parts, const float *restrict x,
                     float *restrict packed)
{
    for (; parts; parts--, part++) {
        const float *from = x + part->source;
        float *to = packed + part->target;
        if (!part->starts) {
            memcpy(to, from, part->length * sizeof *to);
            to += part->length;
        } else if (part->m == 1)
            FOR_EACH_BLOCK(part) *to++ = from[start];
        else
            FOR_EACH_BLOCK(part)
            {
                const uint64_t size = block_length(part->length, start, part->m);
                memcpy(to, from + start, size * sizeof *to);
                memset(to + size, 0, (part->m - size) * sizeof *to);
                to += part->m;
            }
        memset(to, 0, (size_t)(packed + part->end - to) * sizeof *to);
    }
}

/* The inverse of one part: its elements of x, zeros where nothing is selected. */
static void unpack(const struct weir_part *part, const float *restrict packed, float *restrict x)
{
    const float *from = packed + part->target;
    if (!part->starts) {
        memcpy(x, from, part->length * sizeof *x);
        return;
    }
    memset(x, 0, part->length * sizeof *x);
    if (part->m == 1)
        FOR_EACH_BLOCK(part) x[start] = *from++;
    else
        FOR_EACH_BLOCK(part)
        {
            memcpy(x + start, from, block_length(part->length, start, part->m) * sizeof *x);
            from += part->m;
        }
}

/* All `count` elements of x, zeros where nothing is selected. */
void weir_parts_unpack(const struct weir_part *part, uint64_t parts, const float *restrict packed,
                       float *restrict x, uint64_t count)
{
    uint64_t end = 0; /* of what is written, and of the padding before the next part */
    for (; parts; parts--, part++) {
        memset(x + end, 0, (part->source - end) * sizeof *x);
        unpack(part, packed, x + part->source);
        end = part->source + part->length;
    }
    memset(x + end, 0, (count - end) * sizeof *x);
}

/* Subtracts the packed elements from those of x. */
void weir_parts_subtract(const struct weir_part *part, uint64_t parts, const float *restrict packed,
                         float *restrict x)
{
    for (; parts; parts--, part++) {
        const float *from = packed + part->target;
        float *to = x + part->source;
        if (!part->starts)
            for (uint64_t i = 0; i < part->length; i++) to[i] -= from[i];
        else if (part->m == 1)
            FOR_EACH_BLOCK(part) to[start] -= *from++;
        else
            FOR_EACH_BLOCK(part)
            {
                const uint64_t size = block_length(part->length, start, part->m);
                for (uint64_t i = 0; i < size; i++) to[start + i] -= from[i];
                from += part->m;
            }
    }
}

/* Which of all `count` elements of x are selected; of a part that is whole, those that are not zero. */
void weir_parts_union(const struct weir_part *part, uint64_t parts, const float *restrict x,
                      uint8_t *restrict selected, uint64_t count)
{
    memset(selected, 0, count);
    for (; parts; parts--, part++) {
        uint8_t *to = selected + part->source;
        if (!part->starts)
            for (uint64_t i = 0; i < part->length; i++) to[i] = x[part->source + i] != 0;
        else if (part->m == 1)
            FOR_EACH_BLOCK(part) to[start] = 1;
        else
            FOR_EACH_BLOCK(part) memset(to + start, 1, block_length(part->length, start, part->m));
    }
}

/* For each run of `unit` lanes of the packed vector the largest of the values, one for every `run` elements of x,
 * of those that it has elements of; units[] is zero before. Powers of two: m and `unit` divide `run`, and each part
 * of x begins with one. */
void weir_parts_largest(const struct weir_part *part, uint64_t parts, const uint32_t *restrict values,
                        uint64_t run, uint64_t unit, uint32_t *restrict units)
{
    const int run_log2 = __builtin_ctzll(run), unit_log2 = __builtin_ctzll(unit);
    for (; parts; parts--, part++) {
        const uint32_t *own = values + (part->source >> run_log2);
        uint64_t at = part->target;
        if (!part->starts)
            for (; at < part->target + ((part->length + run - 1) & ~(run - 1)); at += unit)
                units[at >> unit_log2] = own[(at - part->target) >> run_log2];
        else
            FOR_EACH_BLOCK(part)
            {
                const uint32_t value = own[start >> run_log2];
                for (uint64_t i = at >> unit_log2; i <= (at + part->m - 1) >> unit_log2; i++)
                    if (units[i] < value) units[i] = value;
                at += part->m;
            }
    }
}

/* One parameter: its `length` elements of a bucket from `from` on, and its place in the vector, from `to` to `end`,
 * padded with zeros. See bucket_layout.py. */
struct weir_segment {
    uint64_t from, length, to, end;
};

/* Whether x times this rounds as x over the divisor does, which takes much longer. */
static inline bool is_exact(float reciprocal)
{
    int exponent;
    return frexpf(reciprocal, &exponent) == 0.5f;
}

enum spreading { DIVIDED, DIVIDED_PLUS, MULTIPLIED_PLUS };

/* A run of the bucket over a divisor, plus its residual. Returns the bits of the largest magnitude, NaN above infinity.
 * Inlined with a way that the compiler knows, so that it is vector code. */
static inline __attribute__((always_inline)) uint32_t spread(enum spreading way, const float *restrict from,
                                                             const float *restrict residual, float divisor,
                                                             float factor, uint64_t count, float *restrict to)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        const float value = way == DIVIDED        ? from[i] / divisor
                            : way == DIVIDED_PLUS ? from[i] / divisor + residual[i]
                                                  : from[i] * factor + residual[i];
        const uint32_t bits = magnitude(value);
        largest = bits > largest ? bits : largest;
        to[i] = value;
    }
    return largest;
}

/* The bucket over a divisor, plus the residuals of those parameters that have one, in the places of the vector, in
 * which each begins with a block; and the largest magnitude of each block. */
void weir_spread(const struct weir_segment *segment, uint64_t segments, const float *restrict bucket,
                 float divisor, const float *const *residuals, float *restrict vector, uint64_t block,
                 uint32_t *restrict largest)
{
    const float factor = 1 / divisor;
    const bool exact = is_exact(factor);
    for (; segments; segments--, segment++, residuals++) {
        const float *from = bucket + segment->from, *residual = *residuals;
        float *to = vector + segment->to;
        uint32_t *found = largest + segment->to / block;
        for (uint64_t i = 0; i < segment->length; i += block) {
            const uint64_t count = block_length(segment->length, i, block);
            *found++ = !residual ? spread(DIVIDED, from + i, NULL, divisor, 0, count, to + i)
                       : exact   ? spread(MULTIPLIED_PLUS, from + i, residual + i, 0, factor, count, to + i)
                                 : spread(DIVIDED_PLUS, from + i, residual + i, divisor, 0, count, to + i);
        }
        memset(to + segment->length, 0, (segment->end - segment->to - segment->length) * sizeof *to);
        while (found < largest + segment->end / block) *found++ = 0;
    }
}

/* How many values are not zero; NaN is not. */
uint64_t weir_nonzero(const float *values, uint64_t count)
{
    uint64_t zeros = 0;
    for (uint64_t start = 0; start < count; start += UINT16_MAX) { /* sums of 32 bits are wider vectors */
        const uint64_t left = count - start, run = left < UINT16_MAX ? left : UINT16_MAX;
        uint32_t found = 0;
        for (uint64_t i = start; i < start + run; i++) found += values[i] == 0;
        zeros += found;
    }
    return count - zeros;
}

/* The inverse, without divisor and residuals: the bucket's elements from their places in the vector. */
void weir_collect(const struct weir_segment *segment, uint64_t segments, const float *restrict vector,
                  float *restrict bucket)
{
    for (; segments; segments--, segment++)
        memcpy(bucket + segment->from, vector + segment->to, segment->length * sizeof *bucket);
}

/* The same of a packed vector: zeros where nothing is selected. */
void weir_parts_collect(const struct weir_part *part, uint64_t parts, const struct weir_segment *segment,
                        const float *restrict packed, float *restrict bucket)
{
    for (; parts; parts--, part++, segment++) unpack(part, packed, bucket + segment->from);
}

/* Clear the flags, one a block of the vector, of all blocks in which the bucket over the divisor is not zero. */
void weir_find_gradients(const struct weir_segment *segment, uint64_t segments, const float *bucket,
                         float divisor, uint64_t block, uint8_t *idle)
{
    for (; segments; segments--, segment++) {
        const float *from = bucket + segment->from;
        for (uint64_t i = 0, stop; i < segment->length; i = stop) {
            const uint64_t at = (segment->to + i) / block;
            stop = (at + 1) * block - segment->to;
            if (stop > segment->length) stop = segment->length;
            while (i < stop && from[i] / divisor == 0) i++;
            if (i < stop) idle[at] = 0;
        }
    }
}
