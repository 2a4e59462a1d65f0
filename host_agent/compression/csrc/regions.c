/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of the levels of regions of blocks, which workers agree on. See encodings/mask_scales.py. */
#include <stdint.h>
#include <string.h>

/* Regions of the parameters of a bucket, in its order. counts: regions of each parameter;
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
