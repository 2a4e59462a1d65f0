/* SPDX-License-Identifier: Apache-2.0 */
/* How much the blocks of a vector hold, and which of them are worth their wire. See sparsifiers/dfs_blocks.py. */
#include <stdint.h>
#include <string.h>

enum { AT_ONCE = 16, WORD_BITS = 32 };

static const uint32_t INFINITE = 0x7f800000u; /* as a magnitude */

/* The bits of a float's magnitude: as integers they are in the order of the magnitudes, NaN behind infinity. */
static inline uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

static inline float value_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Which of up to 32 values have at least the magnitude `least`; without a branch, so that it is vector code. */
static inline uint32_t reaching(const float *x, uint64_t count, uint32_t least)
{
    uint32_t found = 0;
    if (count >= WORD_BITS)
        for (uint32_t i = 0; i < WORD_BITS; i++) found |= (uint32_t)(magnitude(x[i]) >= least) << i;
    else
        for (uint32_t i = 0; i < count; i++) found |= (uint32_t)(magnitude(x[i]) >= least) << i;
    return found;
}

/* The magnitude that is number `rank`, from 1, of so many, the largest first. Overwrites them. By their bits, the
 * upper ones first: only those that share these are looked at again. */
static uint32_t ranked(uint32_t *restrict magnitudes, uint64_t count, uint64_t rank)
{
    enum { DIGIT = 8, DIGITS = 1 << DIGIT };
    uint32_t prefix = 0;
    for (uint32_t shift = 32; shift > 0;) {
        uint32_t counted[DIGITS] = {0};
        shift -= DIGIT;
        for (uint64_t i = 0; i < count; i++) counted[magnitudes[i] >> shift & (DIGITS - 1)]++;
        uint32_t digit = DIGITS - 1;
        while (counted[digit] < rank) rank -= counted[digit--];
        prefix |= digit << shift;
        uint64_t kept = 0;
        for (uint64_t i = 0; i < count; i++) {
            const uint32_t own = magnitudes[i];
            magnitudes[kept] = own;
            kept += (own >> shift & (DIGITS - 1)) == digit;
        }
        count = kept;
    }
    return prefix;
}

static inline uint32_t finite_or_infinity(uint32_t bits) { return bits < INFINITE ? bits : INFINITE; }

/* The magnitude that is number `rank` of every `step`-th of the values; NaN counts as infinity.
 * scratch: as many words as values are looked at, which is not less than the rank. */
float weir_ranked(const float *restrict x, uint64_t count, uint64_t step, uint64_t rank,
                  uint32_t *restrict scratch)
{
    uint64_t n = 0;
    for (uint64_t at = 0; at < count; at += step) scratch[n++] = finite_or_infinity(magnitude(x[at]));
    return value_of(ranked(scratch, n, rank));
}

/* The indices, ascending, of the values of magnitude `least` or more, and their magnitudes. As many as there is room
 * for are written. Returns how many there are. */
static uint64_t candidates(const float *restrict x, uint64_t count, uint32_t least, int64_t *restrict found,
                           uint32_t *restrict magnitudes, uint64_t room)
{
    uint64_t n = 0;
    for (uint64_t start = 0; start < count; start += WORD_BITS)
        for (uint32_t left = reaching(x + start, count - start, least); left; left &= left - 1) {
            if (n < room) {
                const uint64_t at = start + (uint32_t)__builtin_ctz(left);
                found[n] = (int64_t)at;
                magnitudes[n] = finite_or_infinity(magnitude(x[at]));
            }
            n++;
        }
    return n;
}

/* The indices, ascending, of the `wanted` values of largest magnitude, the first of equal ones; and of all that are
 * not finite, but never of a zero. They are looked for among those that reach `floor`, or among all if these are too
 * few. scratch: two words for each index that there is room for. Returns how many there are; where that is more than
 * there is room for, what was written is of no use. */
uint64_t weir_worthiest(const float *restrict x, uint64_t count, float floor, uint64_t wanted,
                        int64_t *restrict found, uint32_t *restrict scratch, uint64_t room)
{
    const uint32_t least = magnitude(floor) | !magnitude(floor);
    uint32_t *magnitudes = scratch, *copy = scratch + room;
    uint64_t there = candidates(x, count, least, found, magnitudes, room);
    if (there < wanted && least > 1) there = candidates(x, count, 1, found, magnitudes, room);
    if (there <= wanted || there > room) return there;
    memcpy(copy, magnitudes, there * sizeof *copy);
    const uint32_t cut = wanted ? ranked(copy, there, wanted) : INFINITE;
    uint64_t above = 0, kept = 0;
    for (uint64_t i = 0; i < there; i++) above += magnitudes[i] > cut;
    uint64_t equal = cut < INFINITE ? wanted - above : there;
    for (uint64_t i = 0; i < there; i++) {
        if (magnitudes[i] < cut || (magnitudes[i] == cut && !equal)) continue;
        equal -= magnitudes[i] == cut;
        found[kept++] = found[i];
    }
    return kept;
}

/* Copies whole blocks of `size` values, the last one of x may be shorter, and zeros in place of all others. */
void weir_copy_blocks(const float *restrict x, uint64_t count, uint64_t size, const int64_t *restrict blocks,
                      uint64_t n, float *restrict out)
{
    memset(out, 0, count * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t start = (uint64_t)blocks[i] * size;
        if (size == 1)
            out[start] = x[start];
        else
            memcpy(out + start, x + start, (count - start < size ? count - start : size) * sizeof *out);
    }
}

/* The energies of whole blocks. Inlined with sizes that the compiler knows, so that the sums are vector code.
 * stride: values at a time, a block or AT_ONCE; folded: neighbours that belong to one block of them. */
static inline __attribute__((always_inline)) uint64_t whole_blocks(const float *restrict x, uint64_t count,
                                                                   uint64_t stride, uint32_t folded,
                                                                   float *restrict energies)
{
    uint64_t start = 0;
    for (; count - start >= stride; start += stride) {
        float sums[AT_ONCE] = {0};
        for (uint64_t row = 0; row < stride; row += AT_ONCE)
            for (uint32_t i = 0; i < AT_ONCE; i++) sums[i] += x[start + row + i] * x[start + row + i];
        for (uint32_t width = 1; width < folded; width *= 2)
            for (uint32_t i = 0; i < AT_ONCE / 2 / width; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
        for (uint32_t i = 0; i < AT_ONCE / folded; i++) *energies++ = sums[i];
    }
    return start;
}

/* The sum of squares of each block of `size` values, a power of two; the last block may be shorter. */
void weir_energies(const float *restrict x, uint64_t count, uint32_t size, float *restrict energies)
{
    uint64_t done = 0;
    switch (size) {
    case 1:
        done = whole_blocks(x, count, AT_ONCE, 1, energies);
        break;
    case 2:
        done = whole_blocks(x, count, AT_ONCE, 2, energies);
        break;
    case 4:
        done = whole_blocks(x, count, AT_ONCE, 4, energies);
        break;
    case 8:
        done = whole_blocks(x, count, AT_ONCE, 8, energies);
        break;
    default:
        done = whole_blocks(x, count, size, AT_ONCE, energies);
        break;
    }
    for (; done < count; done += size) {
        float *sum = &energies[done / size];
        *sum = 0;
        for (uint64_t at = done; at < count && at < done + size; at++) *sum += x[at] * x[at];
    }
}
