// SPDX-License-Identifier: Apache-2.0
// One round of the loop: what is due leaves the switch's queues, then a batch of each port comes in.
#define _GNU_SOURCE
#include "loop_state.h"

enum {
    FLUSH_AGAIN = 100000,         // nanoseconds until a busy interface is tried again
    PACED_BATCH = 4 * LOOP_BATCH, // frames of all paced ports per hold of the switch's lock
    NAP_A_FRAME = 12500,          // nanoseconds
    MOST_NAP = 16 * NAP_A_FRAME,
    LATE = 1000000, // for so long frames may have been there unseen
};

// Returns how many frames have left: 1 or 0.
static uint32_t send_out(loop *l, uint32_t number, const uint8_t *frame, uint32_t len)
{
    port *p = loop_port(l, number);
    if (!p) {
        l->unknown_port++;
        return 0;
    }
    if (!p->up || p->ops->send(p, frame, len) != 0) {
        p->stats.tx_drops++;
        return 0;
    }
    p->dirty = 1;
    if (p->tapped & CAPTURE_OUT) loop_record(l, p, frame, len, CAPTURE_OUT);
    return 1;
}

// Threads of a pool may call it at once, for different ports: it leaves `sent` alone.
void loop_emit(void *ctx, uint32_t number, const uint8_t *frame, uint32_t len)
{
    send_out(ctx, number, frame, len);
}

// The same for the loop's thread alone.
static void emit_counted(void *ctx, uint32_t number, const uint8_t *frame, uint32_t len)
{
    loop *l = ctx;
    l->sent += send_out(l, number, frame, len);
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
static uint32_t step(loop *l, sw_switch *sw, uint64_t now)
{
    const uint64_t due = sw ? sw_deadline(sw) : SW_NEVER;
    if (due == SW_NEVER) return 0;
    if (l->taps) l->tap_time = loop_wall_ns();
    sw_lock(sw);
    sw_step(sw, now, emit_counted, l);
    sw_unlock(sw);
    return due <= now;
}

// A frame of a port, its oldest, comes in. It stays where it is until it is released.
static void enter(loop *l, port *p, const uint8_t *frame, uint32_t len, uint64_t at)
{
    p->stats.rx_packets++;
    p->stats.rx_bytes += len;
    if (p->tapped & CAPTURE_IN && p->up) loop_record(l, p, frame, len, CAPTURE_IN);
    if (p->up && l->sw)
        sw_process(l->sw, p->number, frame, len, at, emit_counted, l);
    else
        p->stats.rx_drops++;
}

// Whether a frame of a paced port waits outside; then p->due is when it may come in. That goes by the pace, not by when
// the loop got round to it: nobody knows when frames came that were found late, so they came evenly since it last looked.
static int look(port *p, uint64_t since, uint64_t now)
{
    uint32_t len;
    if (!p->ops->peek(p, &len)) return p->held = 0;
    const int waited = p->held;
    p->held = 1;
    if (waited)
        p->gap = 0;
    else {
        const uint32_t waiting = p->ops->waiting ? p->ops->waiting(p) : 1;
        p->gap = (now - since) / (waiting ? waiting : 1);
        p->due = sw_pace_next(&p->pace, &p->limits, since + p->gap);
    }
    return p->due <= now;
}

// Frames of paced ports come in, each at the time that its port's rate allows, and in the order of these times: what
// leaves is due at the same times however seldom the loop looks. Returns how many came in.
static uint32_t serve_paced(loop *l, uint64_t now)
{
    port *waiting[LOOP_PORTS];
    uint32_t count = 0, n = 0, len;
    const uint64_t since = now - l->served < LATE ? l->served : now - LATE;
    for (uint32_t i = 0; i < l->count; i++) {
        port *p = l->ports[i];
        if (p->paced && !(p->held && p->due > now) && look(p, since, now)) waiting[count++] = p;
    }
    if (count == 0) return 0;
    if (l->sw) sw_lock(l->sw);
    for (; count != 0 && n < PACED_BATCH; n++) {
        uint32_t first = 0;
        for (uint32_t i = 1; i < count; i++)
            if (waiting[i]->due < waiting[first]->due) first = i;
        port *p = waiting[first];
        const uint8_t *frame = p->ops->peek(p, &len);
        sw_pace_take(&p->pace, &p->limits, p->due, len);
        if (l->served < p->due) l->served = p->due;
        enter(l, p, frame, len, l->served);
        p->ops->release(p);
        p->held = p->ops->peek(p, &len) != NULL;
        const uint64_t next = p->due + p->gap;
        p->due = sw_pace_next(&p->pace, &p->limits, next < now ? next : now);
        if (!p->held || p->due > now) waiting[first] = waiting[--count];
    }
    if (l->sw) sw_unlock(l->sw);
    return n;
}

// One batch of one port. Returns how many frames it had.
uint32_t loop_serve_port(loop *l, port *p, uint64_t now)
{
    uint32_t len, n = 0;
    const uint8_t *frame = p->ops->peek(p, &len);
    if (!frame) return 0;
    if (l->sw) sw_lock(l->sw);
    do {
        enter(l, p, frame, len, now);
        p->ops->release(p);
    } while (++n < LOOP_BATCH && (frame = p->ops->peek(p, &len)));
    if (l->sw) sw_unlock(l->sw);
    return n;
}

// How long the loop may leave frames where they are that are due, or come in at a pace. Many frames a time make it
// longer, but step by step: a few frames are not kept waiting.
static void adapt_nap(loop *l, uint32_t frames, uint64_t since_last)
{
    const uint64_t earned = l->earned + (uint64_t)frames * NAP_A_FRAME;
    l->earned = earned <= since_last ? 0 : earned - since_last < MOST_NAP ? earned - since_last : MOST_NAP;
    l->nap = 2 * (l->nap > NAP_A_FRAME ? l->nap : NAP_A_FRAME);
    if (l->nap > l->earned) l->nap = l->earned;
}

uint32_t loop_serve(loop *l)
{
    uint64_t now = loop_now(l);
    const uint64_t since_last = now - l->served;
    if (l->taps) l->tap_time = loop_wall_ns();
    l->sent = 0;
    uint32_t n = serve_paced(l, now), together;
    l->more = n == PACED_BATCH;
    if (l->more) now = l->served; // the rest is of later
    l->served = now;
    n += step(l, l->sw, now);
    adapt_nap(l, n > l->sent ? n : l->sent, since_last);
    if (l->sw && sw_takes_many(l->sw) && loop_serve_together(l, &together, now) == 0)
        n += together;
    else
        for (uint32_t i = 0; i < l->count; i++)
            if (!l->ports[i]->paced) n += loop_serve_port(l, l->ports[i], now);
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
    step(l, sw, loop_now(l));
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
        step(l, l->sw, loop_now(l)); // up to now, the old limits hold
        result = sw_set_queueing(l->sw, number, wanted);
        step(l, l->sw, loop_now(l));
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
