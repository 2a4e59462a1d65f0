// SPDX-License-Identifier: Apache-2.0
// One round of the loop: what is due leaves the switch's queues, then a batch of each port comes in.
#define _GNU_SOURCE
#include "loop_state.h"

enum { FLUSH_AGAIN = 100000 }; // nanoseconds until a busy interface is tried again

void loop_emit(void *ctx, uint32_t number, const uint8_t *frame, uint32_t len)
{
    loop *l = ctx;
    port *p = loop_port(l, number);
    if (!p) {
        l->unknown_port++;
        return;
    }
    if (!p->up || p->ops->send(p, frame, len) != 0) {
        p->stats.tx_drops++;
        return;
    }
    p->dirty = 1;
    if (p->tapped & CAPTURE_OUT) loop_record(l, p, frame, len, CAPTURE_OUT);
}

uint64_t loop_now(const loop *l)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)((now.tv_sec - l->epoch.tv_sec) * 1000000000 + (now.tv_nsec - l->epoch.tv_nsec));
}

uint64_t loop_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void flush(loop *l)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->ports[i]->dirty || l->ports[i]->unsent) {
            l->ports[i]->dirty = 0;
            l->ports[i]->ops->flush(l->ports[i]);
        }
}

// Sends what waits in the switch's queues and is due. Returns whether anything was.
static uint32_t step(loop *l, sw_switch *sw)
{
    const uint64_t due = sw ? sw_deadline(sw) : SW_NEVER;
    if (due == SW_NEVER) return 0;
    const uint64_t now = loop_now(l);
    if (l->taps) l->tap_time = loop_wall_ns();
    sw_lock(sw);
    sw_step(sw, now, loop_emit, l);
    sw_unlock(sw);
    return due <= now;
}

// Whether a frame that waits outside may come in. While frames wait, the pace goes by when they could have
// come in, not by when the loop got round to it: a loop that wakes late loses nothing.
static int may_enter(port *p, uint32_t len, uint64_t now)
{
    const uint64_t due = sw_pace_next(&p->pace, &p->limits, p->held ? 0 : now);
    if (due > now) {
        p->held = 1;
        p->due = due;
        return 0;
    }
    sw_pace_take(&p->pace, &p->limits, due, len);
    return 1;
}

// One batch of one port. Returns how many frames it had.
uint32_t loop_serve_port(loop *l, port *p)
{
    uint32_t len, n = 0;
    const uint8_t *frame = p->ops->peek(p, &len);
    if (!frame) {
        p->held = 0;
        return 0;
    }
    sw_switch *sw = p->up ? l->sw : NULL;
    uint64_t now = loop_now(l);
    if (p->held && p->due > now) return 0;
    if (l->taps) l->tap_time = loop_wall_ns();
    if (sw) sw_lock(sw);
    do {
        if (p->paced && !may_enter(p, len, now)) break;
        p->stats.rx_packets++;
        p->stats.rx_bytes += len;
        if (p->tapped & CAPTURE_IN && p->up) loop_record(l, p, frame, len, CAPTURE_IN);
        if (sw)
            sw_process(sw, p->number, frame, len, now, loop_emit, l);
        else
            p->stats.rx_drops++;
        p->ops->release(p);
    } while (++n < LOOP_BATCH && (frame = p->ops->peek(p, &len)));
    if (!frame) p->held = 0;
    if (sw) sw_unlock(sw);
    return n;
}

uint32_t loop_serve(loop *l)
{
    uint32_t n = step(l, l->sw);
    uint32_t together;
    if (l->sw && sw_takes_many(l->sw) && loop_serve_together(l, &together) == 0)
        n += together;
    else
        for (uint32_t i = 0; i < l->count; i++) n += loop_serve_port(l, l->ports[i]);
    flush(l);
    return n;
}

uint64_t loop_deadline(const loop *l)
{
    uint64_t next = l->sw ? sw_deadline(l->sw) : SW_NEVER;
    for (uint32_t i = 0; i < l->count; i++) {
        const port *p = l->ports[i];
        if (p->held && p->due < next) next = p->due;
        if (p->unsent && loop_now(l) + FLUSH_AGAIN < next) next = loop_now(l) + FLUSH_AGAIN;
    }
    return next;
}

// -- limits ----------------------------------------------------------------------------------------

static void lift_limits(loop *l, sw_switch *sw, port *p)
{
    sw_set_queueing(sw, p->number, NULL);
    step(l, sw);
}

void loop_lift_limits(loop *l, port *p)
{
    if (l->sw && p->limited) lift_limits(l, l->sw, p);
}

// What waits in the old switch leaves at once. Returns 0, -ENOMEM or -EOPNOTSUPP: then not all ports of the
// new one are limited as they should be.
int loop_set_switch(loop *l, sw_switch *sw)
{
    int result = 0;
    loop_enter(l);
    sw_switch *old = l->sw;
    l->sw = sw;
    for (uint32_t i = 0; old != sw && i < l->count; i++) {
        port *p = l->ports[i];
        if (p->limited && old) lift_limits(l, old, p);
        int error = p->limited && sw ? sw_set_queueing(sw, p->number, &p->limits) : 0;
        result = result ? result : error;
    }
    flush(l);
    loop_leave(l);
    return result;
}

// NULL: no limits. Returns 0, -ENODEV, -ENOMEM or -EOPNOTSUPP.
int loop_set_queueing(loop *l, uint32_t number, const sw_queueing *wanted, int both_ways)
{
    static const sw_queueing none;
    loop_enter(l);
    port *p = loop_port(l, number);
    int result = p ? 0 : -ENODEV;
    if (p && l->sw) {
        step(l, l->sw); // up to now, the old limits hold
        result = sw_set_queueing(l->sw, number, wanted);
        step(l, l->sw);
        flush(l);
    }
    if (result == 0) {
        const sw_queueing old = p->paced ? p->limits : none;
        p->limited = wanted != NULL;
        p->paced = wanted != NULL && both_ways && (wanted->rate_bps || wanted->rate_pps);
        p->limits = wanted ? *wanted : none;
        sw_pace_change(&p->pace, loop_now(l), &old, p->paced ? &p->limits : &none);
        p->held = 0;
    }
    loop_leave(l);
    return result;
}

int loop_get_queue_stats(loop *l, uint32_t number, sw_queue_stats *out)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    memset(out, 0, SW_PRIORITIES * sizeof *out);
    if (p && l->sw) sw_get_queue_stats(l->sw, number, out);
    loop_leave(l);
    return p ? 0 : -ENODEV;
}
