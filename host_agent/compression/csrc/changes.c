/* SPDX-License-Identifier: Apache-2.0 */
/* Which values of a vector differ from those of an older one, bit by bit: a mask, and the new values one after another. Values have 1, 2 or 4 bytes. See changes.py. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "words.h"

/* The bits of 32 bytes that are 0 or 1. */
static inline uint32_t gather(const uint8_t *flags)
{
    uint32_t word = 0;
    for (uint32_t i = 0; i < WORD_BITS; i += 8) {
        uint64_t eight;
        memcpy(&eight, flags + i, sizeof eight);
        /* Byte j, times 2^(56 - 7j), is bit 56 + j. */
        word |= (uint32_t)(eight * 0x0102040810204080u >> 56) << i;
    }
    return word;
}

/* A bit for each of `count` values, up to 32, that differs. `old` may be NULL: zeros. */
#define DEFINE_DIFFERING(name, type)                                                                         \
    static inline uint32_t name(const type *old, const type *new, uint32_t count)                            \
    {                                                                                                        \
        uint8_t flags[WORD_BITS] = {0};                                                                      \
        if (old)                                                                                             \
            for (uint32_t i = 0; i < count; i++) flags[i] = old[i] != new[i];                                \
        else                                                                                                 \
            for (uint32_t i = 0; i < count; i++) flags[i] = new[i] != 0;                                     \
        return gather(flags);                                                                                \
    }

/* Writes the words of all values; returns how many differ. Whole words have a constant count: vector code. Nothing
 * depends on whether a word is zero: with 1 % of changes, processors would guess wrong too often. */
#define DEFINE_FIND(name, differing, type)                                                                   \
    static uint64_t name(type *old, const type *new, uint64_t length, int update, uint32_t *mask)            \
    {                                                                                                        \
        uint64_t found = 0;                                                                                  \
        for (uint64_t at = 0; at < length; at += WORD_BITS, mask++) {                                        \
            const uint64_t left = length - at, count = left < WORD_BITS ? left : WORD_BITS;                  \
            type *before = old ? old + at : NULL;                                                            \
            const uint32_t word = count == WORD_BITS ? differing(before, new + at, WORD_BITS)                \
                                                     : differing(before, new + at, (uint32_t)count);         \
            if (update) memcpy(before, new + at, count * sizeof *new);                                       \
            found += (uint32_t)__builtin_popcount(word);                                                     \
            *mask = word;                                                                                    \
        }                                                                                                    \
        return found;                                                                                        \
    }

/* The same, and old becomes new; its values that differ, and the new ones, go one after another to before and after.
 * Where all of a word's values differ they are copied at once. */
#define DEFINE_RENEW(name, differing, type)                                                                  \
    static uint64_t name(type *restrict old, const type *restrict new, uint64_t length, uint32_t *mask,      \
                         type *restrict before, type *restrict after)                                        \
    {                                                                                                        \
        uint64_t found = 0;                                                                                  \
        for (uint64_t at = 0; at < length; at += WORD_BITS, mask++) {                                        \
            const uint64_t left = length - at, count = left < WORD_BITS ? left : WORD_BITS;                  \
            const uint32_t word = count == WORD_BITS ? differing(old + at, new + at, WORD_BITS)              \
                                                     : differing(old + at, new + at, (uint32_t)count);       \
            *mask = word;                                                                                    \
            if (!word) continue;                                                                             \
            if (word == UINT32_MAX) {                                                                        \
                memcpy(before + found, old + at, WORD_BITS * sizeof *old);                                   \
                memcpy(after + found, new + at, WORD_BITS * sizeof *new);                                    \
                found += WORD_BITS;                                                                          \
            } else                                                                                           \
                for (uint32_t bits = word; bits; bits &= bits - 1) {                                         \
                    const uint64_t i = at + (uint32_t)__builtin_ctz(bits);                                   \
                    before[found] = old[i];                                                                  \
                    after[found++] = new[i];                                                                 \
                }                                                                                            \
            memcpy(old + at, new + at, count * sizeof *new);                                                 \
        }                                                                                                    \
        return found;                                                                                        \
    }

#define DEFINE_ALL(bits)                                                                                     \
    DEFINE_DIFFERING(differing_##bits, uint##bits##_t)                                                       \
    DEFINE_FIND(find_##bits, differing_##bits, uint##bits##_t)                                               \
    DEFINE_RENEW(renew_##bits, differing_##bits, uint##bits##_t)                                             \
    static void take_##bits(const uint32_t *mask, uint64_t words, const uint##bits##_t *restrict from,       \
                            uint##bits##_t *restrict to)                                                     \
    {                                                                                                        \
        FOR_EACH_BIT(mask, words, at) *to++ = from[at];                                                      \
    }                                                                                                        \
    static void put_##bits(const uint32_t *mask, uint64_t words, const uint##bits##_t *restrict from,        \
                           uint##bits##_t *restrict to)                                                      \
    {                                                                                                        \
        FOR_EACH_BIT(mask, words, at) to[at] = *from++;                                                      \
    }

DEFINE_ALL(8)
DEFINE_ALL(16)
DEFINE_ALL(32)

/* Writes the mask of `length` values of `size` bytes, whole words, and returns how many differ. old: NULL: zeros.
 * update: old becomes new. */
uint64_t weir_changes_find(void *old, const void *new, uint64_t length, uint32_t size, int update,
                           uint32_t *mask)
{
    return size == 1   ? find_8(old, new, length, update, mask)
           : size == 2 ? find_16(old, new, length, update, mask)
                       : find_32(old, new, length, update, mask);
}

/* The same, and old becomes new. before, after: room for `length` values; they get those that differ. */
uint64_t weir_changes_renew(void *old, const void *new, uint64_t length, uint32_t size, uint32_t *mask,
                            void *before, void *after)
{
    return size == 1   ? renew_8(old, new, length, mask, before, after)
           : size == 2 ? renew_16(old, new, length, mask, before, after)
                       : renew_32(old, new, length, mask, before, after);
}

/* How many bits of a mask are set. */
uint64_t weir_changes_count(const uint32_t *mask, uint64_t words)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < words; i++) found += (uint32_t)__builtin_popcount(mask[i]);
    return found;
}

/* The values that a mask of this many words selects, one after another. */
void weir_changes_take(const uint32_t *mask, uint64_t words, uint32_t size, const void *from, void *to)
{
    size == 1   ? take_8(mask, words, from, to)
    : size == 2 ? take_16(mask, words, from, to)
                : take_32(mask, words, from, to);
}

/* The inverse: values to the places that a mask of this many words selects. */
void weir_changes_put(const uint32_t *mask, uint64_t words, uint32_t size, const void *from, void *to)
{
    size == 1   ? put_8(mask, words, from, to)
    : size == 2 ? put_16(mask, words, from, to)
                : put_32(mask, words, from, to);
}
