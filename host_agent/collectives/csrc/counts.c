/* SPDX-License-Identifier: Apache-2.0 */
/* Small counts as the digits of 32-bit lanes: value i is digit i % digits of lane i / digits, the first one of
 * least weight. The arithmetic is in counts.py. */
#include <stdint.h>

static inline void pack(const uint8_t *restrict values, uint64_t count, uint32_t base, uint32_t digits,
                        uint32_t *restrict lanes)
{
    for (uint64_t start = 0; start < count; start += digits) {
        uint32_t packed = 0, k = count - start < digits ? (uint32_t)(count - start) : digits;
        while (k) packed = packed * base + values[start + --k];
        *lanes++ = packed;
    }
}

static inline void unpack(const uint32_t *restrict lanes, uint64_t count, uint32_t base, uint32_t digits,
                          uint16_t *restrict sums)
{
    for (uint64_t start = 0; start < count; start += digits) {
        uint32_t packed = *lanes++, here = count - start < digits ? (uint32_t)(count - start) : digits;
        for (uint32_t k = 0; k < here; k++, packed /= base) sums[start + k] = (uint16_t)(packed % base);
    }
}

/* A constant base: divisions become multiplications. Those of signs, and of samples, of few workers. */
#define IF_BASE(constant, WORK)                                                                              \
    if (base == constant) {                                                                                  \
        WORK(constant);                                                                                      \
        return;                                                                                              \
    }
#define FOR_BASE(WORK)                                                                                       \
    IF_BASE(2, WORK)                                                                                         \
    IF_BASE(3, WORK)                                                                                         \
    IF_BASE(4, WORK)                                                                                         \
    IF_BASE(5, WORK)                                                                                         \
    IF_BASE(6, WORK)                                                                                         \
    IF_BASE(7, WORK)                                                                                         \
    IF_BASE(8, WORK)                                                                                         \
    IF_BASE(9, WORK)                                                                                         \
    IF_BASE(13, WORK)                                                                                        \
    IF_BASE(16, WORK)                                                                                        \
    IF_BASE(17, WORK)                                                                                        \
    WORK(base);

/* base: from 2 on; no value reaches it. digits: base to that power is 2^32 at most. */
void weir_pack_counts(const uint8_t *values, uint64_t count, uint32_t base, uint32_t digits, uint32_t *lanes)
{
#define PACK(constant) pack(values, count, constant, digits, lanes)
    FOR_BASE(PACK)
}

void weir_unpack_counts(const uint32_t *lanes, uint64_t count, uint32_t base, uint32_t digits, uint16_t *sums)
{
#define UNPACK(constant) unpack(lanes, count, constant, digits, sums)
    FOR_BASE(UNPACK)
}
