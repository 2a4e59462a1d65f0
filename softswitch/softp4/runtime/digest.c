// SPDX-License-Identifier: Apache-2.0
#include "digest.h"

#include <string.h>

void sw_digest_add(sw_state *s, const uint64_t *sample)
{
    sw_digests *digests = s->digests;
    const unsigned words = sw_generated.digest_words;
    const uint32_t count = atomic_load_explicit(&digests->count, memory_order_relaxed);
    uint32_t at = (uint32_t)sw_hash_words(sample, words) % SW_DIGEST_SLOTS;
    for (; digests->slots[at] != 0; at = (at + 1) % SW_DIGEST_SLOTS)
        if (sw_same_words(&digests->samples[(size_t)(digests->slots[at] - 1) * words], sample, words)) return;
    if (count == SW_DIGESTS) {
        digests->lost++;
        return;
    }
    memcpy(&digests->samples[(size_t)count * words], sample, words * sizeof(uint64_t));
    digests->slots[at] = (uint16_t)(count + 1);
    atomic_store_explicit(&digests->count, count + 1, memory_order_relaxed);
}

uint32_t swc_digest_room(void) { return SW_DIGESTS; }

// Whether there is anything to take. Needs no lock.
int swc_digests_wait(const sw_switch *sw)
{
    const sw_digests *digests = ((const sw_state *)sw)->digests;
    return digests != NULL && atomic_load_explicit(&digests->count, memory_order_relaxed) != 0;
}

// Moves all samples that wait to `out`, which has room for SW_DIGESTS. Returns how many there are.
uint32_t swc_take_digests(sw_switch *sw, uint64_t *out)
{
    sw_digests *digests = ((sw_state *)sw)->digests;
    sw_lock(sw);
    const uint32_t count = atomic_load_explicit(&digests->count, memory_order_relaxed);
    memcpy(out, digests->samples, (size_t)count * sw_generated.digest_words * sizeof(uint64_t));
    memset(digests->slots, 0, sizeof digests->slots);
    atomic_store_explicit(&digests->count, 0, memory_order_relaxed);
    sw_unlock(sw);
    return count;
}

uint64_t swc_lost_digests(sw_switch *sw)
{
    const sw_digests *digests = ((sw_state *)sw)->digests;
    sw_lock(sw);
    const uint64_t lost = digests == NULL ? 0 : digests->lost;
    sw_unlock(sw);
    return lost;
}
