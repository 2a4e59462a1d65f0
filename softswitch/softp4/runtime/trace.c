// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "queue.h"

// Returns where `count` words go, or NULL: then the whole block is given up and counted.
static uint64_t *take(sw_trace *t, uint32_t count)
{
    if (t->full) return NULL;
    if (count > t->room - t->used) {
        t->full = 1;
        t->lost++;
        t->used = t->block;
        return NULL;
    }
    t->used += count;
    return t->words + t->used - count;
}

void sw_trace_put(sw_trace *t, unsigned kind, uint32_t site, const uint64_t *values, uint32_t count)
{
    uint64_t *words = take(t, count + 1);
    if (words == NULL) return;
    words[0] = kind | (uint64_t)count << 8 | (uint64_t)site << 32;
    if (count != 0) memcpy(words + 1, values, count * sizeof *values);
}

void sw_trace_bytes(sw_trace *t, const uint8_t *bytes, uint32_t count)
{
    const uint32_t words = (count + 7) / 8;
    uint64_t *to = take(t, words + 1);
    if (to == NULL) return;
    to[0] = SW_TRACE_BYTES | (uint64_t)words << 8 | (uint64_t)count << 32;
    if (words != 0) to[words] = 0;
    memcpy(to + 1, bytes, count);
}

static void begin_block(sw_trace *t, uint64_t number)
{
    t->current = number;
    t->block = t->used;
    t->full = 0;
}

void sw_trace_frame(sw_trace *t, uint32_t port, uint32_t length, uint64_t now_ns)
{
    begin_block(t, t->number);
    SW_TRACE(t, SW_TRACE_FRAME, port, t->number, length, now_ns);
}

void sw_trace_turn(sw_trace *t, const sw_packet *packet, uint32_t port, uint64_t now_ns, uint32_t left)
{
    begin_block(t, packet->traced);
    SW_TRACE(t, SW_TRACE_TURN, port, packet->traced, now_ns, now_ns - packet->enqueued_ns, left);
}

sw_packet *sw_trace_queued(sw_trace *t, sw_packet *packet, uint32_t port, uint64_t priority)
{
    SW_TRACE(t, SW_TRACE_QUEUED, port, priority % SW_PRIORITIES,
             packet == NULL ? SW_TRACE_NONE : packet->depth);
    if (packet != NULL) packet->traced = t->current;
    return packet;
}

const sw_program *sw_trace_next(sw_trace *t, uint32_t port)
{
    if (t->left == 0 || port >= SW_TRACE_PORTS || !(t->ports[port / 64] >> port % 64 & 1))
        return &sw_generated;
    t->left--;
    t->number++;
    return t->program;
}

void sw_trace_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                      sw_emit emit, void *ctx)
{
    sw_state *s = (sw_state *)sw;
    if (s->traffic != NULL)
        sw_traffic_process(sw, port, frame, len, now_ns, emit, ctx);
    else
        sw_trace_next(s->trace, port)->process(sw, port, frame, len, now_ns, emit, ctx);
}
