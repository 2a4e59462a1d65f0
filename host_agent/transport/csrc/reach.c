/* SPDX-License-Identifier: Apache-2.0 */
/* How much the blocks of a vector hold, and which of them are worth their wire. See sparsifiers/dfs_blocks.py. */
#include <stdint.h>
#include <string.h>

enum { AT_ONCE = 16 };

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
    const uint32_t infinity = 0x7f800000u, least = magnitude(floor) | !magnitude(floor);
    uint64_t n = 0;
    for (uint64_t start = 0; start < count; start += AT_ONCE) {
        const uint64_t there = count - start < AT_ONCE ? count - start : AT_ONCE;
        uint32_t peak = 0;
        if (there == AT_ONCE)
            for (uint32_t i = 0; i < AT_ONCE; i++)
                peak = magnitude(x[start + i]) > peak ? magnitude(x[start + i]) : peak;
        else
            for (uint32_t i = 0; i < there; i++)
                peak = magnitude(x[start + i]) > peak ? magnitude(x[start + i]) : peak;
        if (peak < least) continue;
        for (uint32_t i = 0; i < there; i++) {
            const uint32_t own = magnitude(x[start + i]);
            if (own < least) continue;
            if (n < room) {
                found[n] = (int64_t)(start + i);
                magnitudes[n] = value_of(own < infinity ? own : infinity);
            }
            n++;
        }
    }
    return n;
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
