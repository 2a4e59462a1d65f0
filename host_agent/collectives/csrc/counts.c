/* SPDX-License-Identifier: Apache-2.0 */
/* Small counts as the digits of 32-bit lanes, chunk by chunk: see counts.h. */
#include "counts.h"

/* base: from 2 on; no value reaches it. digits: from 2 on; base to that power is 2^32 at most. */
void weir_pack_counts(const uint8_t *values, uint64_t count, uint32_t base, uint32_t digits, uint32_t *lanes)
{
    for (uint64_t start = 0; start < count; start += CHUNK, lanes += lanes_of(CHUNK, digits))
        pack_counts(values + start, chunk_length(count, start), base, digits, lanes);
}

void weir_unpack_counts(const uint32_t *lanes, uint64_t count, uint32_t base, uint32_t digits, uint16_t *sums)
{
    for (uint64_t start = 0; start < count; start += CHUNK, lanes += lanes_of(CHUNK, digits))
        unpack_counts(lanes, chunk_length(count, start), base, digits, sums + start);
}
