/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of one host do in their shared memory: wait for one another, and reduce their vectors.
 *
 * A rank's words (how far it is) are written by it alone. Blocks that are zero are not copied: `nonzero` has a byte
 * for each block, and lanes of a block whose byte is 0 may be anything. Arithmetic is modulo 2^32, so a host's sum
 * summed with others' is bit for bit the sum of all their ranks' vectors, whatever their order. */
#include <stdatomic.h>

#include "lanes.h"
#include "ring.h"

enum { WEIR_RESULT = 255, WEIR_NOT_WANTED = 254 };

static int reached(const _Atomic uint32_t *words, uint32_t stride, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++)
        if ((int32_t)(atomic_load_explicit(&words[i * stride], memory_order_acquire) - value) < 0) return 0;
    return 1;
}

/* Set one of the own words, and wake anyone who waits for any. What was written before can be read by who sees it. */
void weir_host_tell(_Atomic uint32_t *bell, _Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    atomic_fetch_add_explicit(bell, 1, memory_order_seq_cst);
    sp4_futex_wake(bell);
}

/* Wait until `count` words, `stride` apart, are at `value` or beyond it (serial arithmetic, RFC 1982). Returns 0 when
 * the time is over first. */
int weir_host_wait(_Atomic uint32_t *bell, const _Atomic uint32_t *words, uint32_t stride, uint32_t count,
                   uint32_t value, int64_t timeout_ns)
{
    int64_t end = sp4_clock_ns() + timeout_ns;
    for (;;) {
        uint32_t seen = atomic_load_explicit(bell, memory_order_seq_cst);
        if (reached(words, stride, count, value)) return 1;
        int64_t left = end - sp4_clock_ns();
        if (left <= 0) return 0;
        if (!sp4_spin(bell, seen, left)) sp4_futex_wait(bell, seen, left);
    }
}

static inline uint32_t length_of(uint64_t count, uint64_t block, uint32_t lanes)
{
    uint64_t left = count - block * lanes;
    return left < lanes ? (uint32_t)left : lanes;
}

/* Copy the blocks of a vector that are not zero. Returns how many lanes they have; `sum`: of those. */
uint64_t weir_host_put(const uint32_t *vector, uint64_t count, uint32_t lanes, uint32_t *area,
                       uint8_t *nonzero, uint64_t *sum)
{
    uint64_t entered = 0;
    *sum = 0;
    for (uint64_t block = 0; block * lanes < count; block++) {
        uint32_t any, length = length_of(count, block, lanes);
        uint64_t total = weir_lanes_scan(vector + block * lanes, length, &any);
        nonzero[block] = any != 0;
        if (!any) continue;
        memcpy(area + block * lanes, vector + block * lanes, 4ul * length);
        entered += length;
        *sum += total;
    }
    return entered;
}

static inline void combine(uint32_t *restrict to, const uint32_t *restrict from, uint32_t count, uint32_t op)
{
    if (op == WEIR_OP_ADD)
        for (uint32_t i = 0; i < count; i++) to[i] += from[i];
    else if (op == WEIR_OP_OR)
        for (uint32_t i = 0; i < count; i++) to[i] |= from[i];
    else
        for (uint32_t i = 0; i < count; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}

/* Reduce the blocks first to end - 1 of all areas. */
void weir_host_reduce(const uint32_t *const *areas, const uint8_t *const *nonzero, uint32_t ranks,
                      uint32_t op, uint64_t count, uint32_t lanes, uint64_t first, uint64_t end,
                      uint32_t *result)
{
    for (uint64_t block = first; block < end; block++) {
        uint32_t length = length_of(count, block, lanes), *to = result + block * lanes;
        int begun = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            if (!nonzero[r][block]) continue;
            if (begun)
                combine(to, areas[r] + block * lanes, length, op);
            else
                memcpy(to, areas[r] + block * lanes, 4ul * length);
            begun = 1;
        }
        if (!begun) memset(to, 0, 4ul * length);
    }
}

/* Overwrite the blocks of a vector: sources[block] is WEIR_RESULT, WEIR_NOT_WANTED (it stays) or the rank whose own
 * lanes are the result; no sources: all are of the result. Returns how many lanes were written; `sum`: of those. */
uint64_t weir_host_take(const uint32_t *result, const uint32_t *const *areas, const uint8_t *const *nonzero,
                        const uint8_t *sources, uint64_t count, uint32_t lanes, uint32_t *vector,
                        uint64_t *sum)
{
    uint64_t written = 0;
    *sum = 0;
    for (uint64_t block = 0; block * lanes < count; block++) {
        uint32_t length = length_of(count, block, lanes), *to = vector + block * lanes;
        uint8_t source = sources ? sources[block] : WEIR_RESULT;
        if (source == WEIR_NOT_WANTED) continue;
        if (source == WEIR_RESULT)
            memcpy(to, result + block * lanes, 4ul * length);
        else if (nonzero[source][block])
            memcpy(to, areas[source] + block * lanes, 4ul * length);
        else
            memset(to, 0, 4ul * length);
        written += length;
        *sum += weir_lanes_sum(to, length);
    }
    return written;
}

/* Count the lanes of one rank's blocks that a result included: those that are not lost. `sum`: of those. */
uint64_t weir_host_included(const uint32_t *area, const uint8_t *nonzero, const uint8_t *lost, uint64_t count,
                            uint32_t lanes, uint64_t *sum)
{
    uint64_t included = 0;
    *sum = 0;
    for (uint64_t block = 0; block * lanes < count; block++) {
        if (!nonzero[block] || (lost && lost[block])) continue;
        uint32_t length = length_of(count, block, lanes);
        included += length;
        *sum += weir_lanes_sum(area + block * lanes, length);
    }
    return included;
}
