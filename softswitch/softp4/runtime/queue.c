// SPDX-License-Identifier: Apache-2.0
#include "queue.h"

#include <errno.h>
#include <stdlib.h>

#include "trace.h"

// How often packets may start again, or enter a queue, during one step. More only comes of packets that go round,
// take no time on the line, and are cloned as they go; the next step goes on with them, so that others get the
// switch in between.
enum { STEP_ROUNDS = 16384 };

static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void set_deadline(sw_state *s, uint64_t due)
{
    atomic_store_explicit(&s->deadline, due, memory_order_relaxed);
}

static void set_due(sw_queued_port *port, uint64_t now)
{
    port->due = port->waiting == 0 ? SW_NEVER : sw_pace_next(&port->pace, &port->limits, now);
}

// -- packets ----------------------------------------------------------------------------------------

static sw_packet *take(sw_traffic *t)
{
    const size_t bytes = (sw_generated.packet_bytes + 63) / 64 * 64;
    sw_packet *packet = t->pool;
    if (packet != NULL)
        t->pool = packet->next;
    else if ((packet = aligned_alloc(64, bytes)) != NULL)
        memset(packet, 0, bytes);
    return packet;
}

static void give_back(sw_traffic *t, sw_packet *packet)
{
    packet->next = t->pool;
    t->pool = packet;
}

sw_packet *sw_enqueue(sw_state *s, sw_queued_port *port, uint32_t priority, uint32_t bytes, uint32_t passes)
{
    sw_traffic *t = s->traffic;
    sw_queue *queue = &port->queues[priority % SW_PRIORITIES];
    sw_queue_stats *stats = &queue->stats;
    sw_packet *packet = NULL;
    if (stats->depth_packets < port->limits.depth_packets && stats->depth_bytes <= port->limits.depth_bytes &&
        bytes <= port->limits.depth_bytes - stats->depth_bytes)
        packet = take(t);
    if (packet == NULL) {
        stats->dropped_packets++;
        stats->dropped_bytes += bytes;
        s->stats.packets_dropped++;
        return NULL;
    }
    t->rounds++;
    *packet = (sw_packet){NULL, t->now, bytes, (uint32_t)stats->depth_packets, passes, 0};
    if (queue->first == NULL)
        queue->first = packet;
    else
        queue->last->next = packet;
    queue->last = packet;
    stats->depth_packets++;
    stats->depth_bytes += bytes;
    if (port->waiting++ == 0) {
        set_due(port, t->now);
        if (port->due < s->deadline) set_deadline(s, port->due);
    }
    return packet;
}

static sw_queue *first_to_serve(sw_queued_port *port)
{
    sw_queue *queue = &port->queues[SW_PRIORITIES - 1];
    while (queue->first == NULL) queue--;
    return queue;
}

// Whether a packet that leaves a queue passes one that came earlier, and waits in a queue of a lower priority.
static int overtakes(const sw_queued_port *port, const sw_queue *from, const sw_packet *packet)
{
    if (port->waiting == from->stats.depth_packets) return 0; // all that waits is in this queue
    for (const sw_queue *queue = port->queues; queue < from; queue++)
        if (queue->first != NULL && queue->first->enqueued_ns < packet->enqueued_ns) return 1;
    return 0;
}

static void drop_port(sw_traffic *t, sw_queued_port *port)
{
    uint32_t i = 0;
    while (t->ports[i] != port) i++;
    t->count--;
    for (; i < t->count; i++) t->ports[i] = t->ports[i + 1];
    t->by_number[port->number] = NULL;
    free(port);
}

// Sends the packet that a port has waiting first, which is due.
static void depart(sw_state *s, sw_queued_port *port, sw_emit emit, void *ctx)
{
    sw_traffic *t = s->traffic;
    const uint64_t now = port->due;
    sw_queue *queue = first_to_serve(port);
    sw_packet *packet = queue->first;
    queue->stats.overtaking_packets += (uint64_t)overtakes(port, queue, packet);
    queue->first = packet->next;
    queue->stats.depth_packets--;
    queue->stats.depth_bytes -= packet->bytes;
    t->now = now;
    const uint32_t passes = packet->passes;
    // Still counted as waiting: what egress sends back to this port must not find it idle.
    const sw_program *program = packet->traced != 0 && s->trace != NULL ? s->trace->program : &sw_generated;
    const uint32_t sent =
        program->depart(s, packet, port->number, now, (uint32_t)queue->stats.depth_packets, emit, ctx);
    port->waiting--;
    t->rounds += packet->passes - passes - 1; // the first is its own turn
    give_back(t, packet);
    queue->stats.packets += sent != 0;
    queue->stats.bytes += sent;
    sw_pace_take(&port->pace, &port->limits, now, sent);
    set_due(port, now);
    if (port->waiting == 0 && port->closing) drop_port(t, port);
}

// The port that is due first; of several, the one with the lowest number.
static sw_queued_port *earliest(const sw_traffic *t)
{
    sw_queued_port *found = NULL;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->ports[i]->waiting != 0 && (found == NULL || t->ports[i]->due < found->due))
            found = t->ports[i];
    return found;
}

void sw_traffic_step(sw_state *s, uint64_t now_ns, sw_emit emit, void *ctx)
{
    sw_traffic *t = s->traffic;
    if (t == NULL) return;
    if (s->deadline <= now_ns) {
        const uint64_t most = t->rounds + STEP_ROUNDS;
        sw_queued_port *port;
        while ((port = earliest(t)) != NULL && port->due <= now_ns && t->rounds < most)
            depart(s, port, emit, ctx);
        set_deadline(s, port == NULL ? SW_NEVER : port->due);
        if (port != NULL && port->due <= now_ns) return;
    }
    t->now = max64(t->now, now_ns);
}

void sw_traffic_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                        sw_emit emit, void *ctx)
{
    sw_state *s = (sw_state *)sw;
    sw_traffic_step(s, now_ns, emit, ctx);
    const sw_program *program = s->trace == NULL ? &sw_generated : sw_trace_next(s->trace, port);
    program->process_limited(sw, port, frame, len, now_ns, emit, ctx);
    if (s->deadline <= now_ns) sw_traffic_step(s, now_ns, emit, ctx);
}

// -- settings ---------------------------------------------------------------------------------------

static sw_queued_port *add_port(sw_state *s, uint32_t number)
{
    if (s->traffic == NULL && (s->traffic = calloc(1, sizeof *s->traffic)) == NULL) return NULL;
    sw_traffic *t = s->traffic;
    sw_queued_port *port = calloc(1, sizeof *port);
    if (port == NULL) return NULL;
    port->number = number;
    port->due = SW_NEVER;
    uint32_t i = t->count++;
    for (; i > 0 && t->ports[i - 1]->number > number; i--) t->ports[i] = t->ports[i - 1];
    t->ports[i] = t->by_number[number] = port;
    return port;
}

int sw_traffic_set(sw_state *s, uint32_t number, const sw_queueing *wanted)
{
    // What is sent back to a port that is about to empty still waits there: not without end.
    static const sw_queueing unlimited = {.depth_packets = 1024, .depth_bytes = SW_NEVER};
    if (number >= SW_QUEUE_PORTS) return -ERANGE;
    sw_queued_port *port = sw_queues_of(s, number);
    if (port == NULL) {
        if (wanted == NULL) return 0;
        if ((port = add_port(s, number)) == NULL) return -ENOMEM;
    }
    sw_traffic *t = s->traffic;
    const sw_queueing old = port->limits;
    port->closing = wanted == NULL;
    port->limits = wanted == NULL ? unlimited : *wanted;
    sw_pace_change(&port->pace, t->now, &old, &port->limits);
    set_due(port, t->now);
    if (port->closing && port->waiting == 0) drop_port(t, port);
    const sw_queued_port *next = earliest(t);
    set_deadline(s, next == NULL ? SW_NEVER : next->due);
    return 0;
}

void sw_traffic_stats(const sw_state *s, uint32_t number, sw_queue_stats *out)
{
    const sw_queued_port *port = sw_queues_of(s, number);
    for (uint32_t i = 0; i < SW_PRIORITIES; i++)
        out[i] = port == NULL ? (sw_queue_stats){0} : port->queues[i].stats;
}

static void free_packets(sw_packet *packet)
{
    while (packet != NULL) {
        sw_packet *next = packet->next;
        free(packet);
        packet = next;
    }
}

void sw_traffic_free(sw_state *s)
{
    sw_traffic *t = s->traffic;
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->count; i++) {
        for (uint32_t k = 0; k < SW_PRIORITIES; k++) free_packets(t->ports[i]->queues[k].first);
        free(t->ports[i]);
    }
    free_packets(t->pool);
    free(t);
    s->traffic = NULL;
}
