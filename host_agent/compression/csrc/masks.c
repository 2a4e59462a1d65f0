/* SPDX-License-Identifier: Apache-2.0 */
/* Masks over blocks of a vector: bit j of the words, counted from each word's lowest bit, is block j of `m`
 * elements, m a power of two up to 256; the last block may be partial. See encodings/shared_mask.py. */
#include <stdint.h>

#include "words.h"

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
        FOR_EACH_BIT(mask->words, words_of(mask), block) *starts++ = (uint32_t)(block * mask->m);
}
