/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of datagrams over a UDP socket, for others in C. */
#ifndef WEIR_DATAGRAM_BATCHES_H
#define WEIR_DATAGRAM_BATCHES_H

#include "arrivals.h"

typedef struct {
    int fd, segments; /* whether the kernel segments what we send */
} weir_datagrams;

weir_datagrams *weir_datagrams_open(int fd, int batches);
void weir_datagrams_close(weir_datagrams *d);
uint64_t weir_datagrams_send(weir_datagrams *d, const uint8_t *packets, uint64_t bytes, uint32_t size,
                             uint64_t to);
uint32_t weir_datagrams_receive(weir_datagrams *d, uint8_t *memory, weir_arrival *arrivals);

#endif
