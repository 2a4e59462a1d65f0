/* SPDX-License-Identifier: Apache-2.0 */
/* Flow packets: what a payload from the network is, and headers of our own. */
#ifndef WEIR_FLOW_PACKET_H
#define WEIR_FLOW_PACKET_H

#include <stdint.h>

#include "lanes.h"
#include "wire.h"

enum {
    FLOW_MAX_DATA = 1500 - 20 - 8 - (int)WEIR_FLOW_SIZE,
    FLOW_MAX_ACCOUNTS = 128,
    FLOW_MAX_BITMAP = 1024,          /* bytes in one packet ... */
    FLOW_SPAN = 8 * FLOW_MAX_BITMAP, /* ... and the chunks that they tell of */
    FLOW_RANGE = 8,                  /* bytes of a probe before its terms: end, final */
    FLOW_TERM = 8,                   /* bytes of an account's terms: lanes, budget */
    FLOW_MAX_PACKET = (int)WEIR_FLOW_SIZE + FLOW_MAX_DATA,
};

/* Mirrored by weir.host_agent.flows.verdict.FlowVerdict. From SHORT on: refused. */
enum weir_flow_verdict {
    FLOW_ACCEPTED,
    FLOW_DUPLICATE,
    FLOW_LATE,
    FLOW_TRIMMED,
    FLOW_SHORT,
    FLOW_BAD_VERSION,
    FLOW_BAD_TYPE,
    FLOW_BAD_FLAGS,
    FLOW_BAD_CLASS,
    FLOW_BAD_COUNT,
    FLOW_BAD_INDEX,
    FLOW_BAD_FIRST,
    FLOW_BAD_LENGTH,
    FLOW_BAD_TERMS,
    FLOW_BAD_BITMAP,
    FLOW_BAD_TENSOR,
    FLOW_WRONG_FLOW,
    FLOW_WRONG_WORKER,
    FLOW_WRONG_DIRECTION,
    FLOW_WRONG_SOURCE,
    FLOW_BEYOND_BOUND,
    FLOW_VERDICTS
};

/* A valid packet. `data`: what is behind the header, NULL when there is nothing, as when a switch trimmed it. */
typedef struct {
    uint8_t kind, flags, layer, magnitude, worker;
    uint32_t flow, tensor, index, count, first;
    const uint8_t *data;
    uint32_t length;     /* of `data` */
    uint32_t bits;       /* bitmap, stop: how many chunks `data` tells of */
    uint32_t end, final; /* probe with data */
} flow_packet;

/* What is the same in every packet of a tensor. */
typedef struct {
    uint32_t flow, tensor, count;
    uint8_t worker, layer;
} flow_head;

/* Understand a payload. FLOW_ACCEPTED, or why it is no flow packet. */
enum weir_flow_verdict flow_decode(const uint8_t *payload, uint32_t length, flow_packet *packet);

void flow_write_header(uint8_t *out, const flow_head *head, uint32_t kind, uint32_t flags, uint32_t magnitude,
                       uint32_t index, uint32_t first);

static inline int flow_bit(const uint8_t *bits, uint32_t i) { return bits[i >> 3] >> (i & 7) & 1; }

#endif
