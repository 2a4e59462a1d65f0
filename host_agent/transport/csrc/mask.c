/* SPDX-License-Identifier: Apache-2.0 */
/* Masks over blocks of a vector: bit j of the words, counted from each word's lowest bit, is block j of `m`
 * elements, m a power of two up to 256; the last block may be partial. See encodings/shared_mask.py. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { WORD_BITS = 32 };

/* Which of up to 32 elements are not zero; NaN is not. */
static inline uint32_t not_zero(const float *x, uint64_t count)
{
    uint32_t word = 0;
    if (count >= WORD_BITS)
        for (uint32_t i = 0; i < WORD_BITS; i++) word |= (uint32_t)(x[i] != 0) << i;
    else
        for (uint32_t i = 0; i < count; i++) word |= (uint32_t)(x[i] != 0) << i;
    return word;
}

/* Each pair of bits becomes one, their OR: 32 bits become the lower 16. */
static inline uint32_t halved(uint32_t word)
{
    word = (word | word >> 1) & 0x55555555u;
    word = (word | word >> 1) & 0x33333333u;
    word = (word | word >> 2) & 0x0f0f0f0fu;
    word = (word | word >> 4) & 0x00ff00ffu;
    return (word | word >> 8) & 0x0000ffffu;
}

/* Writes the mask of the blocks that have an element that is not zero; the words are zero before.
 * Returns how many elements are not zero. */
uint64_t weir_mask_write(const float *x, uint64_t count, uint32_t m, uint32_t *words)
{
    uint64_t found = 0;
    for (uint64_t start = 0; start < count; start += WORD_BITS) {
        uint32_t bits = not_zero(x + start, count - start);
        if (!bits) continue;
        found += (uint32_t)__builtin_popcount(bits);
        uint64_t block = start / m;
        if (m >= WORD_BITS)
            bits = 1;
        else
            for (uint32_t size = 1; size < m; size *= 2) bits = halved(bits);
        words[block / WORD_BITS] |= bits << block % WORD_BITS;
    }
    return found;
}

/* Sets the bits of these blocks; what lies beyond the words is left out. */
void weir_mask_mark(const int64_t *blocks, uint64_t count, uint32_t *words, uint64_t size)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t word = (uint64_t)blocks[i] / WORD_BITS;
        if (word < size) words[word] |= 1u << (uint64_t)blocks[i] % WORD_BITS;
    }
}

/* Adds to counts[k], for k below `levels`, how many blocks of 2^k elements hold one that is not zero; the
 * last one may be partial. See encodings/pyramid.py. */
void weir_pyramid(const float *x, uint64_t count, uint32_t levels, int64_t *counts)
{
    enum { IN_WORD = 5, MOST = 64 };
    uint64_t counted[MOST] = {0}; /* blocks of each level up to the last one that was counted */
    for (uint64_t start = 0; start < count; start += WORD_BITS) {
        uint32_t bits = not_zero(x + start, count - start);
        if (!bits) continue;
        for (uint32_t level = 0; level < levels && level < IN_WORD; level++) {
            counts[level] += __builtin_popcount(bits);
            bits = halved(bits);
        }
        for (uint32_t level = IN_WORD; level < levels && level < MOST; level++) {
            const uint64_t block = start >> level;
            if (block < counted[level]) break; /* and so are the larger blocks that it is in */
            counts[level]++;
            counted[level] = block + 1;
        }
    }
}

/* The mask of one parameter of `length` elements. */
struct weir_mask {
    const uint32_t *words;
    uint64_t length, m;
};

static inline uint64_t words_of(const struct weir_mask *mask)
{
    const uint64_t in_word = mask->m * WORD_BITS;
    return (mask->length + in_word - 1) / in_word;
}

/* How many elements each mask selects. */
void weir_masks_count(const struct weir_mask *mask, uint64_t masks, uint64_t *selected)
{
    for (; masks; masks--, mask++, selected++) {
        uint64_t blocks = 0;
        for (uint64_t i = 0; i < words_of(mask); i++) blocks += (uint32_t)__builtin_popcount(mask->words[i]);
        *selected = blocks * mask->m;
        const uint64_t last = mask->length / mask->m; /* the block that is partial, if there is one */
        if (mask->length % mask->m && mask->words[last / WORD_BITS] >> last % WORD_BITS & 1)
            *selected -= mask->m - mask->length % mask->m;
    }
}

/* The first elements of the blocks that each mask selects, one mask's after the other's. */
void weir_masks_starts(const struct weir_mask *mask, uint64_t masks, uint32_t *restrict starts)
{
    for (; masks; masks--, mask++)
        for (uint64_t word = 0; word < words_of(mask); word++)
            for (uint32_t left = mask->words[word]; left; left &= left - 1)
                *starts++ = (uint32_t)((word * WORD_BITS + (uint32_t)__builtin_ctz(left)) * mask->m);
}

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

/* How many elements a block has; the last one of a part may be partial. */
static inline uint64_t size_of(const struct weir_part *part, uint64_t start)
{
    return part->length - start < part->m ? part->length - start : part->m;
}

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
                const uint64_t size = size_of(part, start);
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
            memcpy(x + start, from, size_of(part, start) * sizeof *x);
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
                const uint64_t size = size_of(part, start);
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
            FOR_EACH_BLOCK(part) memset(to + start, 1, size_of(part, start));
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
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= 0x7fffffffu;
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
            const uint64_t left = segment->length - i, count = left < block ? left : block;
            *found++ = !residual ? spread(DIVIDED, from + i, NULL, divisor, 0, count, to + i)
                       : exact   ? spread(MULTIPLIED_PLUS, from + i, residual + i, 0, factor, count, to + i)
                                 : spread(DIVIDED_PLUS, from + i, residual + i, divisor, 0, count, to + i);
        }
        memset(to + segment->length, 0, (segment->end - segment->to - segment->length) * sizeof *to);
        while (found < largest + segment->end / block) *found++ = 0;
    }
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

/* Regions of the parameters of a bucket, in its order. See encodings/mask_scales.py. counts: regions of each parameter;
 * sizes: blocks of each region; lowest: level of each parameter from which on levels have codes of their own. */
typedef struct {
    uint64_t parameters;
    const int64_t *counts, *sizes;
    const int32_t *lowest;
    uint32_t drop, bits; /* of a scale the lower bits that a level lacks; in a code */
} weir_regions;

static inline uint64_t get_code(const uint8_t *codes, uint32_t bits)
{
    uint16_t half;
    uint32_t whole;
    if (bits > 16) return memcpy(&whole, codes, sizeof whole), whole;
    return memcpy(&half, codes, sizeof half), half;
}

static inline void put_code(uint8_t *codes, uint32_t bits, uint64_t code)
{
    const uint16_t half = (uint16_t)code;
    const uint32_t whole = (uint32_t)code;
    if (bits > 16)
        memcpy(codes, &whole, sizeof whole);
    else
        memcpy(codes, &half, sizeof half);
}

/* The level of each region, that of its greatest scale, and its code, of 16 or 32 bits: as many ones as its step. */
void weir_region_codes(const weir_regions *regions, const uint32_t *scales, uint32_t *levels, uint8_t *codes)
{
    const int64_t *size = regions->sizes, bits = regions->bits;
    for (uint64_t p = 0; p < regions->parameters; p++)
        for (int64_t region = 0; region < regions->counts[p]; region++, size++, levels++, codes += bits / 8) {
            uint32_t greatest = 0;
            for (int64_t i = 0; i < *size; i++) greatest = scales[i] > greatest ? scales[i] : greatest;
            scales += *size;
            *levels = greatest && regions->drop ? (greatest >> regions->drop) + 1 : greatest;
            int64_t step = (int64_t)*levels - regions->lowest[p] + 2;
            step = !greatest ? 0 : step < 1 ? 1 : step > bits ? bits : step;
            put_code(codes, regions->bits, (1ull << step) - 1);
        }
}

/* The levels that codes stand for, and which of them are not sure: all below, or all above, have the same code. Returns
 * how many these are. */
uint64_t weir_region_levels(const weir_regions *regions, const uint8_t *codes, uint32_t *levels,
                            uint8_t *unsure)
{
    uint64_t found = 0;
    const int64_t bits = regions->bits;
    for (uint64_t p = 0; p < regions->parameters; p++)
        for (int64_t region = 0; region < regions->counts[p];
             region++, levels++, unsure++, codes += bits / 8) {
            const int step = __builtin_popcountll(get_code(codes, regions->bits));
            *levels = step ? (uint32_t)(regions->lowest[p] + step - 2) : 0;
            *unsure = step == 1 || step == bits;
            found += *unsure;
        }
    return found;
}
