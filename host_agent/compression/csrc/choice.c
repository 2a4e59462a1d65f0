/* SPDX-License-Identifier: Apache-2.0 */
/* How much the blocks of a vector hold, and which of them are worth their wire. See sparsifiers/dfs_blocks.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"
#include "words.h"

enum { AT_ONCE = 16, AT_A_GLANCE = 64, MOST_SIZE = 256 };

static inline float value_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Which of up to 64 values have at least the magnitude `least`; without a branch, so that it is vector code. */
static inline uint64_t reaching(const float *x, uint64_t count, uint32_t least)
{
    uint32_t low = 0, high = 0;
    if (count >= AT_A_GLANCE)
        for (uint32_t i = 0; i < WORD_BITS; i++) {
            low |= (uint32_t)(magnitude(x[i]) >= least) << i;
            high |= (uint32_t)(magnitude(x[WORD_BITS + i]) >= least) << i;
        }
    else
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t bit = (uint32_t)(magnitude(x[i]) >= least) << i % WORD_BITS;
            *(i < WORD_BITS ? &low : &high) |= bit;
        }
    return low | (uint64_t)high << WORD_BITS;
}

/* The magnitude that is number `rank`, from 1, of this many, the largest first. Overwrites them. By their bits, the
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
    for (uint64_t start = 0; start < count; start += AT_A_GLANCE)
        for (uint64_t left = reaching(x + start, count - start, least); left; left &= left - 1) {
            if (n < room) {
                const uint64_t at = start + (uint32_t)__builtin_ctzll(left);
                found[n] = (int64_t)at;
                magnitudes[n] = finite_or_infinity(magnitude(x[at]));
            }
            n++;
        }
    return n;
}

/* As `ranked`, of magnitudes of `least` and more, most of them not much more: one pass tells by how much they are above
 * it, and so among which few the one is. scratch: as many words. */
static uint32_t ranked_above(const uint32_t *restrict magnitudes, uint64_t count, uint64_t rank,
                             uint32_t least, uint32_t *restrict scratch)
{
    enum { BINS = 1 << 12, IN_BIN = 13 /* bits: 1024 bins are a binade */, FEW = 1 << 10 };
    uint32_t counted[BINS] = {0}, bin = BINS - 1;
    if (count < FEW) {
        memcpy(scratch, magnitudes, count * sizeof *scratch);
        return ranked(scratch, count, rank);
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t own = (magnitudes[i] - least) >> IN_BIN;
        counted[own < BINS - 1 ? own : BINS - 1]++;
    }
    while (counted[bin] < rank) rank -= counted[bin--];
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t own = (magnitudes[i] - least) >> IN_BIN;
        scratch[kept] = magnitudes[i];
        kept += (own < BINS - 1 ? own : BINS - 1) == bin;
    }
    return ranked(scratch, kept, rank);
}

enum { SAMPLE = 1 << 13 };

/* Values apart that make a sample of about SAMPLE; 0: of so few no sample is worth it. A sample must not follow the
 * rhythm of kernels and channels. */
static uint64_t stride_of(uint64_t count)
{
    uint64_t step = count / SAMPLE;
    if (step < 2) return 0;
    while (!(step % 2 && step % 3 && step % 5 && step % 7)) step++;
    return step;
}

/* A magnitude that at least `wanted` values reach, almost certainly, and not many more; 0: unknown.
 * scratch: 2 * SAMPLE words. */
static uint32_t likely_floor(const float *restrict x, uint64_t count, uint64_t wanted,
                             uint32_t *restrict scratch)
{
    const double deviations = 4; /* of the rank in the sample */
    const uint64_t step = stride_of(count);
    if (!wanted) return INFINITE;
    if (!step) return 0;
    const uint64_t looked_at = (count + step - 1) / step;
    const double expected = (double)wanted / (double)count * (double)looked_at;
    const uint64_t rank = (uint64_t)ceil(expected + deviations * sqrt(expected) + 2);
    if (rank >= looked_at) return 0;
    const uint32_t floor = magnitude(weir_ranked(x, count, step, rank, scratch));
    return floor < INFINITE ? floor : 0;
}

/* The indices, ascending, of the `wanted` values of largest magnitude, the first of equal ones; and of all that are
 * not finite, but never of a zero. A sample tells among which they are looked for (Floyd and Rivest, 1975).
 * room: of `found`, 2 * SAMPLE or more; scratch: two words for each. Returns how many there are; where that is more than
 * there is room for, what was written is useless. */
uint64_t weir_worthiest(const float *restrict x, uint64_t count, uint64_t wanted, int64_t *restrict found,
                        uint32_t *restrict scratch, uint64_t room)
{
    const uint32_t floor = likely_floor(x, count, wanted, scratch);
    uint32_t reached = floor | !floor, *magnitudes = scratch, *copy = scratch + room;
    uint64_t there = candidates(x, count, reached, found, magnitudes, room);
    if (there < wanted && reached > 1) {
        reached = 1; /* the sample misled */
        there = candidates(x, count, reached, found, magnitudes, room);
    }
    if (there <= wanted || there > room) return there;
    const uint32_t cut = wanted ? ranked_above(magnitudes, there, wanted, reached, copy) : INFINITE;
    uint64_t above = 0, kept = 0;
    for (uint64_t i = 0; i < there; i++) above += magnitudes[i] > cut;
    uint64_t equal = cut < INFINITE ? wanted - above : there;
    for (uint64_t i = 0; i < there; i++) { /* without a branch: which way it goes is anybody's guess */
        const uint64_t taken = (magnitudes[i] == cut) & (equal > 0);
        found[kept] = found[i];
        kept += (magnitudes[i] > cut) | taken;
        equal -= taken;
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
            memcpy(out + start, x + start, block_length(count, start, size) * sizeof *out);
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
    for (; done < count; done += size) { /* padded, so that it is added up in the same order */
        float rest[MOST_SIZE] = {0}, found[AT_ONCE];
        memcpy(rest, x + done, block_length(count, done, size) * sizeof *rest);
        const uint32_t stride = size > AT_ONCE ? size : AT_ONCE;
        whole_blocks(rest, stride, stride, size < AT_ONCE ? size : AT_ONCE, found);
        energies[done / size] = found[0];
    }
}

/* The choice of one parameter: of its `length` values from x on, in blocks of `size`, those `wanted` blocks of most
 * energy, and those with what is not finite. Their bits are set in the mask, whose words are zero before.
 * elements: how many values of these blocks are not zero; NOT_CHOSEN: nothing was chosen here. */
struct weir_choice {
    const float *x;
    uint64_t length, size, wanted;
    uint32_t *mask;
    uint64_t elements;
};

static const uint64_t NOT_CHOSEN = UINT64_MAX;
static const float LEAST_ENERGY =
    0x1p-80f; /* of a largest block: below, squares of what matters would vanish */

/* The norms of blocks, NaN of one that is not finite. Returns whether squares do, with half a float's range. */
static int norms(const float *restrict x, uint64_t count, uint32_t size, float *restrict found)
{
    uint32_t peak = 0;
    const uint64_t blocks = (count + size - 1) / size;
    weir_energies(x, count, size, found);
    for (uint64_t i = 0; i < blocks; i++) peak = magnitude(found[i]) > peak ? magnitude(found[i]) : peak;
    for (uint64_t i = 0; i < blocks; i++) found[i] = sqrtf(found[i]);
    return peak != INFINITE && peak >= magnitude(LEAST_ENERGY);
}

static uint64_t not_zero_of(const struct weir_choice *choice, int64_t block)
{
    const uint64_t start = (uint64_t)block * choice->size;
    const uint64_t size = block_length(choice->length, start, choice->size);
    uint64_t found = 0;
    for (uint64_t i = 0; i < size; i++) found += choice->x[start + i] != 0;
    return found;
}

/* Makes each choice. room: of `found`, and of `scratch`, as for weir_worthiest; spare: for the norms of one parameter's
 * blocks. A choice is not made where there is too little room, or where squares do not do. */
void weir_choose(struct weir_choice *choice, uint64_t choices, float *restrict spare, int64_t *restrict found,
                 uint32_t *restrict scratch, uint64_t room)
{
    for (; choices; choices--, choice++) {
        const uint64_t size = choice->size;
        choice->elements = NOT_CHOSEN;
        if (size > 1 && !norms(choice->x, choice->length, (uint32_t)size, spare)) continue;
        const uint64_t kept = weir_worthiest(size > 1 ? spare : choice->x, (choice->length + size - 1) / size,
                                             choice->wanted, found, scratch, room);
        if (kept > room) continue;
        choice->elements = size > 1 ? 0 : kept;
        for (uint64_t i = 0; i < kept; i++) {
            set_bit(choice->mask, (uint64_t)found[i]);
            if (size > 1) choice->elements += not_zero_of(choice, found[i]);
        }
    }
}

/* What travelled of one parameter: this many blocks of `size` values, a power of two up to MOST_SIZE. */
struct weir_travelled {
    const float *x;
    uint64_t blocks, size;
};

/* The energy of a block. Squares of floats are exact as doubles, and added in one order, so that it is the same on
 * every machine. */
static double energy_in_order(const float *x, uint64_t size)
{
    double sums[MOST_SIZE];
    for (uint64_t i = 0; i < size; i++) sums[i] = (double)x[i] * (double)x[i];
    for (uint64_t width = size; width > 1; width /= 2)
        for (uint64_t i = 0; i < width / 2; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sums[0];
}

/* Writes of each parameter the root mean square that three in four of about `sample` of its blocks have, 0 of none.
 * scratch: 2 * sample words. */
void weir_marginals(const struct weir_travelled *part, uint64_t parts, uint64_t sample,
                    uint32_t *restrict scratch, float *restrict found)
{
    for (; parts; parts--, part++, found++) {
        const uint64_t every = part->blocks < 2 * sample ? 1 : part->blocks / sample;
        const uint64_t looked_at = (part->blocks + every - 1) / every;
        const uint64_t rank = looked_at - (looked_at + 3) / 4 + 1;
        *found = 0;
        if (!part->blocks) continue;
        if (part->size == 1) {
            *found = weir_ranked(part->x, part->blocks, every, rank, scratch);
            continue;
        }
        for (uint64_t i = 0; i < looked_at; i++) {
            const double energy = energy_in_order(part->x + i * every * part->size, part->size);
            scratch[i] = finite_or_infinity(magnitude((float)sqrt(energy / (double)part->size)));
        }
        *found = value_of(ranked(scratch, looked_at, rank));
    }
}
