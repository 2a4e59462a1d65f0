/* SPDX-License-Identifier: Apache-2.0 */
/* Small counts in the fields of 32-bit lanes: value i is field i % f of lane i / f, f = 32 / width fields, the
 * first one in the lowest bits. The arithmetic is in counts.py. */
#include <stdint.h>

static inline void pack_counts(const uint8_t *restrict values, uint64_t count, uint32_t width,
                               uint32_t *restrict lanes)
{
    const uint32_t fields = 32 / width;
    const uint64_t whole = count / fields;
    for (uint64_t lane = 0; lane < whole; lane++) {
        uint32_t packed = 0;
        for (uint32_t k = 0; k < fields; k++) packed |= (uint32_t)values[lane * fields + k] << k * width;
        lanes[lane] = packed;
    }
    if (whole * fields == count) return;
    lanes[whole] = 0;
    for (uint64_t i = whole * fields; i < count; i++)
        lanes[whole] |= (uint32_t)values[i] << (i - whole * fields) * width;
}

static inline void unpack_counts(const uint32_t *restrict lanes, uint64_t count, uint32_t width,
                                 uint16_t *restrict counts)
{
    const uint32_t fields = 32 / width, mask = (1u << width) - 1;
    const uint64_t whole = count / fields;
    for (uint64_t lane = 0; lane < whole; lane++)
        for (uint32_t k = 0; k < fields; k++)
            counts[lane * fields + k] = (uint16_t)(lanes[lane] >> k * width & mask);
    for (uint64_t i = whole * fields; i < count; i++)
        counts[i] = (uint16_t)(lanes[whole] >> (i - whole * fields) * width & mask);
}

/* width: 2, 4, 8 or 16; no value has more bits. */
void weir_pack_counts(const uint8_t *values, uint64_t count, uint32_t width, uint32_t *lanes)
{
    if (width == 2)
        pack_counts(values, count, 2, lanes);
    else if (width == 4)
        pack_counts(values, count, 4, lanes);
    else if (width == 8)
        pack_counts(values, count, 8, lanes);
    else
        pack_counts(values, count, 16, lanes);
}

void weir_unpack_counts(const uint32_t *lanes, uint64_t count, uint32_t width, uint16_t *counts)
{
    if (width == 2)
        unpack_counts(lanes, count, 2, counts);
    else if (width == 4)
        unpack_counts(lanes, count, 4, counts);
    else if (width == 8)
        unpack_counts(lanes, count, 8, counts);
    else
        unpack_counts(lanes, count, 16, counts);
}
