/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads that came together: where each one is, and where it came from. Mirrored by datagram_batches.py. */
#ifndef WEIR_ARRIVALS_H
#define WEIR_ARRIVALS_H

#include <stdint.h>

enum { WEIR_ARRIVING_BYTES = 1 << 24, LONGEST_MESSAGE = 1 << 16, WEIR_MOST_ARRIVALS = 2048 };

typedef struct {
    uint64_t source; /* address << 16 | port */
    uint32_t at, length;
} weir_arrival;

#endif
