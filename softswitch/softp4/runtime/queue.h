// SPDX-License-Identifier: Apache-2.0
// The traffic manager: packets between ingress and egress, waiting for their port.
//
// Only limited ports have queues. A switch without any runs code that does not know of them.
#ifndef SOFTP4_QUEUE_H
#define SOFTP4_QUEUE_H

#include <stdatomic.h>

#include "pace.h"
#include "state.h"

enum { SW_QUEUE_PORTS = 512 }; // ports that can be limited

// A packet that waits. What the program keeps of it follows.
struct sw_packet {
    sw_packet *next;
    uint64_t enqueued_ns;
    uint32_t bytes;  // its length when it was put into the queue
    uint32_t depth;  // packets it found there
    uint32_t passes; // egress passes of the frame it comes from
    uint64_t traced; // its number when it is traced, or 0
};

typedef struct {
    sw_packet *first, *last;
    sw_queue_stats stats;
} sw_queue;

typedef struct {
    uint32_t number;
    int closing; // no longer limited: freed once empty
    sw_queueing limits;
    uint64_t due; // SW_NEVER when nothing waits
    sw_pace pace;
    uint32_t waiting;
    sw_queue queues[SW_PRIORITIES];
} sw_queued_port;

struct sw_traffic {
    sw_queued_port *by_number[SW_QUEUE_PORTS];
    sw_queued_port *ports[SW_QUEUE_PORTS]; // the same, packed, in order of their numbers
    uint32_t count;
    uint64_t now;    // of what is being done, or was done last; no packet is due before
    uint64_t rounds; // how often packets entered a queue, or were done and started again without
    sw_packet *pool; // free packets
};

// The queues of a port, or NULL.
static inline sw_queued_port *sw_queues_of(const sw_state *s, uint32_t port)
{
    return s->traffic != NULL && port < SW_QUEUE_PORTS ? s->traffic->by_number[port] : NULL;
}

// A place at the end of a queue, for the caller to fill; without one, NULL and a counted drop.
sw_packet *sw_enqueue(sw_state *s, sw_queued_port *port, uint32_t priority, uint32_t bytes, uint32_t passes);

// The rest is for control.c; the caller holds the lock, or is the only one who has the switch.
// Runs a frame through the program, after what waits and is due by then.
void sw_traffic_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                        sw_emit emit, void *ctx);
// Sends what is due. When packets go round and multiply, something may still be due afterwards.
void sw_traffic_step(sw_state *s, uint64_t now_ns, sw_emit emit, void *ctx);
int sw_traffic_set(sw_state *s, uint32_t port, const sw_queueing *wanted);
void sw_traffic_stats(const sw_state *s, uint32_t port, sw_queue_stats *out);
void sw_traffic_free(sw_state *s);

#endif
