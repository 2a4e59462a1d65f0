/* SPDX-License-Identifier: Apache-2.0 */
/* Packets that wait to be sent, in the order in which they were made. */
#ifndef WEIR_FLOW_QUEUE_H
#define WEIR_FLOW_QUEUE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *bytes; /* per packet: its length in two bytes, and its payload */
    size_t first, last, size;
} flow_queue;

static inline int flow_queue_empty(const flow_queue *q) { return q->first == q->last; }

/* Room for a packet at the end, to be written at once. NULL without memory: then it counts as lost. */
static inline uint8_t *flow_queue_add(flow_queue *q, uint32_t length)
{
    if (flow_queue_empty(q)) q->first = q->last = 0;
    if (q->last + 2 + length > q->size) {
        size_t size = 2 * (q->size + 2 + length);
        uint8_t *bytes = realloc(q->bytes, size);
        if (!bytes) return NULL;
        q->bytes = bytes;
        q->size = size;
    }
    uint16_t written = (uint16_t)length;
    memcpy(q->bytes + q->last, &written, 2);
    q->last += 2 + length;
    return q->bytes + q->last - length;
}

/* Move the first packet to `out`; returns its length. There must be one. */
static inline uint32_t flow_queue_take(flow_queue *q, uint8_t *out)
{
    uint16_t length;
    memcpy(&length, q->bytes + q->first, 2);
    memcpy(out, q->bytes + q->first + 2, length);
    q->first += 2u + length;
    return length;
}

#endif
