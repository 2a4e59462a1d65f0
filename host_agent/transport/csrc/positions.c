/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of positions in Elias-Fano's code: how a worker says which bits of a mask it has set, in a number of bits
 * that follows from how many there may be. See encodings/position_lists.py. */
#include <stdint.h>

enum { WORD = 32 };

/* Sets bits from `at` on; `value` has `width` of them, up to 32. The words are zero there before. */
static inline void put(uint32_t *words, uint64_t at, uint32_t value, uint32_t width)
{
    if (!width) return;
    const uint32_t shift = at % WORD;
    words[at / WORD] |= value << shift;
    if (shift + width > WORD) words[at / WORD + 1] |= value >> (WORD - shift);
}

static inline uint32_t get(const uint32_t *words, uint64_t at, uint32_t width)
{
    if (!width) return 0;
    const uint32_t shift = at % WORD;
    uint32_t value = words[at / WORD] >> shift;
    if (shift + width > WORD) value |= words[at / WORD + 1] << (WORD - shift);
    return width < WORD ? value & ((1u << width) - 1) : value;
}

/* Writes the list of the bits that are set in `n` words of a mask, from bit `at` of `list` on, which is zero.
 * capacity: of positions, `low` bits of each are written as they are. Returns how many bits are set; where they
 * are more than the capacity, the list has the first ones. */
uint64_t weir_positions_write(const uint32_t *restrict mask, uint64_t n, uint64_t capacity, uint32_t low,
                              uint32_t *restrict list, uint64_t at)
{
    uint64_t found = 0;
    const uint64_t high = at + capacity * low;
    for (uint64_t word = 0; word < n; word++)
        for (uint32_t left = mask[word]; left; left &= left - 1) {
            const uint64_t position = word * WORD + (uint32_t)__builtin_ctz(left);
            if (found < capacity) {
                put(list, at + found * low, (uint32_t)(position & ((1ull << low) - 1)), low);
                const uint64_t one = high + (position >> low) + found;
                list[one / WORD] |= 1u << one % WORD;
            }
            found++;
        }
    return found;
}

/* Sets the bits of a list in the mask of so many `blocks`. A position beyond them is left out. */
void weir_positions_read(const uint32_t *restrict list, uint64_t at, uint64_t capacity, uint32_t low,
                         uint32_t *restrict mask, uint64_t blocks)
{
    const uint64_t high = at + capacity * low, end = high + capacity + (blocks >> low) + 1;
    uint64_t found = 0;
    for (uint64_t bit = high; bit < end && found < capacity;) {
        const uint32_t rest = list[bit / WORD] >> bit % WORD;
        if (!rest) {
            bit += WORD - bit % WORD;
            continue;
        }
        bit += (uint32_t)__builtin_ctz(rest);
        if (bit >= end) break;
        const uint64_t position = ((bit - high - found) << low) | get(list, at + found * low, low);
        if (position < blocks) mask[position / WORD] |= 1u << position % WORD;
        found++;
        bit++;
    }
}
