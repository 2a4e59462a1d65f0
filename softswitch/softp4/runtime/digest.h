// SPDX-License-Identifier: Apache-2.0
// Digests: what the program tells the control plane, kept until it is fetched.
//
// A sample is what one packet told: the number of its list, then the fields, each in whole bytes, padded with
// zeros to the program's `digest_words`. What waits already is not kept twice.
#ifndef SOFTP4_DIGEST_H
#define SOFTP4_DIGEST_H

#include <stdatomic.h>

#include "state.h"

enum { SW_DIGESTS = 4096, SW_DIGEST_SLOTS = 2 * SW_DIGESTS }; // samples that can wait; the next is lost

struct sw_digests {
    _Atomic uint32_t count;
    uint64_t lost;
    uint16_t slots[SW_DIGEST_SLOTS]; // by hash, with linear probing: number of the sample + 1, 0 for none
    uint64_t samples[];
};

void sw_digest_add(sw_state *s, const uint64_t *sample);

#endif
