/* SPDX-License-Identifier: Apache-2.0 */
/* Masks over blocks of a vector: bit j of the words, counted from each word's lowest bit, is block j of `m`
 * elements, m a power of two up to 256; the last block may be partial. See encodings/shared_mask.py. */
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

uint64_t weir_mask_count(const uint32_t *words, uint64_t n)
{
    uint64_t blocks = 0;
    for (uint64_t i = 0; i < n; i++) blocks += (uint32_t)__builtin_popcount(words[i]);
    return blocks;
}

/* For each block of the mask, in order: `start`, its first element, and `length`, its elements. */
#define FOR_EACH_BLOCK(words, n, count, m)                                                                   \
    for (uint64_t word_ = 0, start, length; word_ < (n); word_++)                                            \
        for (uint32_t left_ = (words)[word_];                                                                \
             left_ && (start = (word_ * WORD_BITS + (uint32_t)__builtin_ctz(left_)) * (m),                   \
                      length = (count) - start < (m) ? (count) - start : (m), 1);                            \
             left_ &= left_ - 1)

/* The blocks of x one after another, each of m lanes: a partial one is padded with zeros. */
void weir_mask_pack(const float *restrict x, uint64_t count, uint32_t m, const uint32_t *restrict words,
                    uint64_t n, float *restrict packed)
{
    FOR_EACH_BLOCK(words, n, count, m)
    {
        if (m == 1)
            *packed = x[start];
        else {
            memcpy(packed, x + start, length * sizeof *x);
            memset(packed + length, 0, (m - length) * sizeof *x);
        }
        packed += m;
    }
}

/* The inverse: overwrites the blocks of x. */
void weir_mask_unpack(float *restrict x, uint64_t count, uint32_t m, const uint32_t *restrict words,
                      uint64_t n, const float *restrict packed)
{
    FOR_EACH_BLOCK(words, n, count, m)
    {
        if (m == 1)
            x[start] = *packed;
        else
            memcpy(x + start, packed, length * sizeof *x);
        packed += m;
    }
}

/* Subtracts them from the blocks of x. */
void weir_mask_subtract(float *restrict x, uint64_t count, uint32_t m, const uint32_t *restrict words,
                        uint64_t n, const float *restrict packed)
{
    FOR_EACH_BLOCK(words, n, count, m)
    {
        for (uint64_t i = 0; i < length; i++) x[start + i] -= packed[i];
        packed += m;
    }
}

/* For each run of `unit` lanes of the packed blocks the largest value among those of the parts of x, of `part`
 * elements each, that it has elements of; units[] is zero before. m and `unit` divide `part`. */
void weir_mask_largest(const uint32_t *restrict values, uint32_t part, uint32_t m,
                       const uint32_t *restrict words, uint64_t n, uint32_t unit, uint32_t *restrict units)
{
    uint64_t at = 0;
    for (uint64_t word = 0; word < n; word++)
        for (uint32_t left = words[word]; left; left &= left - 1) {
            uint64_t start = (word * WORD_BITS + (uint32_t)__builtin_ctz(left)) * m;
            uint32_t value = values[start / part];
            for (uint64_t i = at / unit; i <= (at + m - 1) / unit; i++)
                if (units[i] < value) units[i] = value;
            at += m;
        }
}
