/* SPDX-License-Identifier: Apache-2.0 */
/* Where a vector has large values. See sparsifiers/dfs_blocks.py. */
#include <math.h>
#include <stdint.h>

enum { AT_ONCE = 32 };

/* Writes the indices of the values that are not smaller in magnitude than `floor` (NaN is not), ascending, as
 * many as there is room for. Returns how many there are. */
uint64_t weir_reach(const float *restrict x, uint64_t count, float floor, int64_t *restrict found, uint64_t room)
{
    uint64_t n = 0;
    for (uint64_t start = 0; start < count; start += AT_ONCE) {
        uint32_t bits = 0;
        if (count - start >= AT_ONCE)
            for (uint32_t i = 0; i < AT_ONCE; i++)
                bits |= (uint32_t)!(fabsf(x[start + i]) < floor) << i;
        else
            for (uint32_t i = 0; i < count - start; i++)
                bits |= (uint32_t)!(fabsf(x[start + i]) < floor) << i;
        for (; bits; bits &= bits - 1) {
            if (n < room)
                found[n] = (int64_t)(start + (uint32_t)__builtin_ctz(bits));
            n++;
        }
    }
    return n;
}
