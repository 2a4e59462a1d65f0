/* SPDX-License-Identifier: Apache-2.0 */
/* How much the blocks of a vector hold, and which of them are worth their wire. See sparsifiers/dfs_blocks.py. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { AT_ONCE = 16, INFINITY_KEY = 0x7f800000 };

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

/* The indices, ascending, of the values of magnitude `floor` or more, and their magnitudes; NaN counts as
 * infinity, zeros never come into question. As many as there is room for are written. Returns how many there are. */
uint64_t weir_candidates(const float *restrict x, uint64_t count, float floor, int64_t *restrict found,
                         float *restrict magnitudes, uint64_t room)
{
    const uint32_t infinity = INFINITY_KEY, least = magnitude(floor) | !magnitude(floor);
    uint64_t n = 0;
    for (uint64_t start = 0; start < count; start += AT_ONCE) {
        const uint64_t there = count - start < AT_ONCE ? count - start : AT_ONCE;
        uint32_t hits = 0;
        if (there == AT_ONCE)
            for (uint32_t i = 0; i < AT_ONCE; i++) hits |= (uint32_t)(magnitude(x[start + i]) >= least) << i;
        else
            for (uint32_t i = 0; i < there; i++) hits |= (uint32_t)(magnitude(x[start + i]) >= least) << i;
        for (; hits; hits &= hits - 1, n++) {
            if (n >= room) continue;
            const uint64_t at = start + (uint32_t)__builtin_ctz(hits);
            const uint32_t own = magnitude(x[at]);
            found[n] = (int64_t)at;
            magnitudes[n] = value_of(own < infinity ? own : infinity);
        }
    }
    return n;
}

/* Returns the k-th smallest of the keys, counted from 0, and reorders them (Wirth's form of Hoare's selection). */
static uint32_t select_of_few(uint32_t *keys, int64_t count, int64_t k)
{
    for (int64_t first = 0, last = count - 1; first < last;) {
        const uint32_t a = keys[first], b = keys[first + (last - first) / 2], c = keys[last];
        const uint32_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        int64_t low = first, high = last;
        do {
            while (keys[low] < pivot) low++;
            while (keys[high] > pivot) high--;
            if (low > high) break;
            const uint32_t key = keys[low];
            keys[low++] = keys[high];
            keys[high--] = key;
        } while (low <= high);
        if (high < k) first = low;
        if (k < low) last = high;
    }
    return keys[k];
}

/* The same of keys below 2^31, of which only some are kept. A histogram of their leading bits leaves few to compare:
 * comparisons of numbers in no order are mostly mispredicted. */
static uint32_t select_key(uint32_t *keys, int64_t count, int64_t k)
{
    enum { FEW = 512, BINS = 1 << 11, SHIFT = 20 };
    if (count <= FEW) return select_of_few(keys, count, k);
    uint32_t counts[BINS] = {0}, bin = 0;
    for (int64_t i = 0; i < count; i++) counts[keys[i] >> SHIFT]++;
    while (k >= counts[bin]) k -= counts[bin++];
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t key = keys[i];
        keys[n] = key;
        n += key >> SHIFT == bin;
    }
    return select_of_few(keys, n, k);
}

enum { SAMPLE = 1 << 14, SAMPLED = 64 }; /* values in a sample at least, and to one of it at most */

/* A magnitude that at least `wanted` values reach, almost certainly, and not many more, from a sample; 0: unknown.
 * keys: room for the sample. */
static uint32_t sampled_floor(const float *x, uint64_t count, uint64_t wanted, uint32_t *keys)
{
    uint64_t step = count / SAMPLE < SAMPLED ? count / SAMPLE : SAMPLED, n = 0;
    if (step < 2) return 0;
    while (!(step % 2 && step % 3 && step % 5 && step % 7)) step++; /* no rhythm of kernels and channels */
    for (uint64_t i = 0; i < count; i += step) keys[n++] = magnitude(x[i]);
    const double expected = (double)wanted / (double)count * (double)n;
    const uint64_t rank = (uint64_t)ceil(expected + 4.0 * sqrt(expected) + 2.0);
    if (rank >= n) return 0;
    const uint32_t floor = select_key(keys, (int64_t)n, (int64_t)(n - rank));
    return floor < INFINITY_KEY ? floor : 0;
}

/* Writes where the `wanted` values of largest magnitude are, ascending; of equal ones the first. NaN and infinities
 * are there in any case, zeros never. Returns how many they are; if they, or those that come into question, are more
 * than there is room for, how much room it takes. room: entries of found[] and magnitudes[]; of keys[] there are as
 * many, and at least 2 * SAMPLE + count / SAMPLED. */
uint64_t weir_worthiest(const float *restrict x, uint64_t count, uint64_t wanted, uint64_t room,
                        int64_t *restrict found, float *restrict magnitudes, uint32_t *restrict keys)
{
    const uint32_t floor = wanted ? sampled_floor(x, count, wanted, keys) : INFINITY_KEY;
    uint64_t n = weir_candidates(x, count, value_of(floor), found, magnitudes, room);
    if (n < wanted && floor)
        n = weir_candidates(x, count, 0, found, magnitudes, room); /* the sample misled */
    if (n > room || n <= wanted || !wanted) return n;
    for (uint64_t i = 0; i < n; i++) keys[i] = magnitude(magnitudes[i]);
    const uint32_t least = select_key(keys, (int64_t)n, (int64_t)(n - wanted));
    uint64_t above = 0, kept = 0;
    for (uint64_t i = 0; i < n; i++) above += magnitude(magnitudes[i]) > least;
    uint64_t equal = least == INFINITY_KEY ? n : wanted - above;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t own = magnitude(magnitudes[i]);
        const uint64_t as_large = (own == least) & (equal > 0);
        found[kept] = found[i];
        kept += (own > least) | as_large;
        equal -= as_large;
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

/* The first flag from `at` on that is set, or `count`. */
static inline uint64_t next_set(const uint8_t *flags, uint64_t at, uint64_t count)
{
    for (; at + sizeof(uint64_t) <= count; at += sizeof(uint64_t)) {
        uint64_t eight;
        memcpy(&eight, flags + at, sizeof eight);
        if (eight) break;
    }
    while (at < count && !flags[at]) at++;
    return at;
}

/* Not inlined: with the sums that follow, compilers would make other roundings of them on some machines. */
static __attribute__((noinline)) void squares(const float *restrict x, uint64_t count,
                                              float *restrict squared)
{
    for (uint64_t i = 0; i < count; i++) squared[i] = x[i] * x[i];
}

/* The root mean square of a block of `size` values, up to 256, a power of two, of which `there` are not beyond
 * the end. Sums are made in one order on every machine. */
static float root_mean_square(const float *x, uint64_t size, uint64_t there)
{
    float sums[256];
    squares(x, there, sums);
    memset(sums + there, 0, (size - there) * sizeof *sums);
    for (uint64_t width = size / 2; width; width /= 2)
        for (uint64_t i = 0; i < width; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sqrtf(sums[0] / (float)size);
}

/* How many blocks of `size` have a flag set. */
static uint64_t count_blocks(const uint8_t *flags, uint64_t count, uint64_t size)
{
    uint64_t there = 0;
    if (size == 1)
        for (uint64_t i = 0; i < count; i++) there += flags[i];
    else
        for (uint64_t at = 0; (at = next_set(flags, at, count)) < count; at = (at | (size - 1)) + 1) there++;
    return there;
}

/* The least value of the upper three in four of x: root mean squares of the blocks of `size`, a power of two up to
 * 256, that have a flag (0 or 1) set, or of so many of them that are fewer than two times `most`. 0 where there
 * are none. keys: room for two times `most`. */
float weir_marginal(const float *restrict x, const uint8_t *restrict flags, uint64_t count, uint64_t size,
                    uint64_t most, uint32_t *restrict keys)
{
    const uint64_t there = count_blocks(flags, count, size), step = there / most ? there / most : 1;
    uint64_t n = 0, skip = 0;
    if (!there) return 0;
    for (uint64_t at = 0; (at = next_set(flags, at, count)) < count; at = (at | (size - 1)) + 1) {
        if (skip) {
            skip--;
            continue;
        }
        skip = step - 1;
        const uint64_t start = at & ~(size - 1), left = count - start;
        keys[n++] =
            magnitude(size == 1 ? x[start] : root_mean_square(x + start, size, left < size ? left : size));
    }
    return value_of(select_key(keys, (int64_t)n, (int64_t)((n + 3) / 4) - 1));
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
