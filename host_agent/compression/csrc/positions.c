/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of positions in Elias-Fano's code: how a worker says which bits of a mask it has set, in a number of bits
 * that follows from how many there may be. See encodings/position_lists.py. */
#include <stdint.h>

#include "words.h"

/* Sets bits from `at` on; `value` has `width` of them, up to 32. The words are zero there before. */
static inline void put(uint32_t *words, uint64_t at, uint32_t value, uint32_t width)
{
    if (!width) return;
    const uint32_t shift = at % WORD_BITS;
    words[at / WORD_BITS] |= value << shift;
    if (shift + width > WORD_BITS) words[at / WORD_BITS + 1] |= value >> (WORD_BITS - shift);
}

static inline uint32_t get(const uint32_t *words, uint64_t at, uint32_t width)
{
    if (!width) return 0;
    const uint32_t shift = at % WORD_BITS;
    uint32_t value = words[at / WORD_BITS] >> shift;
    if (shift + width > WORD_BITS) value |= words[at / WORD_BITS + 1] << (WORD_BITS - shift);
    return width < WORD_BITS ? value & ((1u << width) - 1) : value;
}

/* One parameter's list: from bit `at` on, `capacity` positions in its mask of this many `blocks`, `low` bits of each as
 * they are. */
struct weir_list {
    uint64_t at, capacity, low, blocks;
    uint32_t *mask;
};

/* Writes each list of the bits that are set in its mask; `words` are zero there before. Returns whether each has
 * all: of bits beyond a capacity there are only the first ones. */
int weir_positions_write(const struct weir_list *list, uint64_t lists, uint32_t *restrict words)
{
    int complete = 1;
    for (; lists; lists--, list++) {
        uint64_t found = 0;
        const uint32_t low = (uint32_t)list->low;
        const uint64_t high = list->at + list->capacity * low;
        FOR_EACH_BIT(list->mask, (list->blocks + WORD_BITS - 1) / WORD_BITS, position)
        {
            if (found < list->capacity) {
                put(words, list->at + found * low, (uint32_t)(position & ((1ull << low) - 1)), low);
                set_bit(words, high + (position >> low) + found);
            }
            found++;
        }
        complete &= found <= list->capacity;
    }
    return complete;
}

/* Sets the bits of each list in its mask. A position beyond its blocks is left out. */
void weir_positions_read(const struct weir_list *list, uint64_t lists, const uint32_t *restrict words)
{
    for (; lists; lists--, list++) {
        const uint32_t low = (uint32_t)list->low;
        const uint64_t high = list->at + list->capacity * low;
        const uint64_t end = high + list->capacity + (list->blocks >> low) + 1;
        uint64_t found = 0;
        for (uint64_t bit = high; bit < end && found < list->capacity;) {
            const uint32_t rest = words[bit / WORD_BITS] >> bit % WORD_BITS;
            if (!rest) {
                bit += WORD_BITS - bit % WORD_BITS;
                continue;
            }
            bit += (uint32_t)__builtin_ctz(rest);
            if (bit >= end) break;
            const uint64_t position = ((bit - high - found) << low) | get(words, list->at + found * low, low);
            if (position < list->blocks) set_bit(list->mask, position);
            found++;
            bit++;
        }
    }
}
