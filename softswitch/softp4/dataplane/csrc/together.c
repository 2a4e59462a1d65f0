// SPDX-License-Identifier: Apache-2.0
// A round of a switch with several threads: a batch of every port is run at once. What leaves is kept until all are
// done, and goes out in the order of the frames that it comes of, each port by one thread.
#define _GNU_SOURCE
#include "kept.h"
#include "loop_state.h"

enum {
    TOGETHER = 1024, // frames of a round
    FEW = 16,        // not worth to be shared
};

struct gathered {
    sw_frame frames[TOGETHER];
    port *in_place[LOOP_PORTS]; // with frames that wait to be released
    uint32_t taken[LOOP_PORTS]; // how many
    sw_keeper keeper;
    uint8_t copies[TOGETHER][SW_MAX_FRAME + 8]; // of frames that do not stay
};

static void came_in(loop *l, port *p, const uint8_t *frame, uint32_t len)
{
    p->stats.rx_packets++;
    p->stats.rx_bytes += len;
    if (p->tapped & CAPTURE_IN) loop_record(l, p, frame, len, CAPTURE_IN);
}

// Takes up to `most` frames of a port, from place `at` on. Returns how many.
static uint32_t gather(loop *l, port *p, uint32_t at, uint32_t most)
{
    gathered *g = l->gathered;
    const uint8_t *frame;
    uint32_t n = 0, len;
    for (; n < most && (frame = p->ops->peek_ahead ? p->ops->peek_ahead(p, n, &len) : p->ops->peek(p, &len));
         n++) {
        came_in(l, p, frame, len);
        if (!p->ops->peek_ahead) {
            // One that is too long is counted and dropped by the switch, unread.
            frame = memcpy(g->copies[at + n], frame, len <= SW_MAX_FRAME ? len : 0);
            p->ops->release(p);
        }
        g->frames[at + n] = (sw_frame){frame, p->number, len};
    }
    return n;
}

// Sends what goes to the ports of a part; what goes nowhere is the first one's to count.
static void send_kept(void *arg, uint32_t part, uint32_t parts)
{
    loop *l = arg;
    sw_kept_at at = {0};
    const sw_kept_head *head;
    while ((head = sw_kept_next(&l->gathered->keeper, &at)) != NULL) {
        const uint32_t owner = loop_port(l, head->port) ? head->port % parts : 0;
        if (owner == part)
            loop_emit(l, head->port, sw_kept_frame(&l->gathered->keeper, head, &at), head->len);
    }
}

static void count_lost(loop *l, sw_kept *k)
{
    for (uint32_t i = 0; i < SW_KEPT_PORTS; i++) {
        port *p = loop_port(l, i);
        if (p) p->stats.tx_drops += k->lost[i];
        k->lost[i] = 0;
    }
    k->losses = 0;
}

static void run(loop *l, uint32_t count, uint64_t now)
{
    gathered *g = l->gathered;
    if (count <= FEW) {
        for (uint32_t i = 0; i < count; i++)
            sw_process(l->sw, g->frames[i].port, g->frames[i].frame, g->frames[i].len, now, loop_emit, l);
        return;
    }
    g->keeper.parts = l->sw->threads;
    sw_process_many(l->sw, g->frames, count, now, sw_keep, &g->keeper);
    if (l->taps) // a capture is of several ports
        send_kept(l, 0, 1);
    else
        sw_together(l->sw, send_kept, l);
    for (uint32_t i = 0; i < g->keeper.parts; i++)
        if (g->keeper.of[i].losses) count_lost(l, &g->keeper.of[i]);
    sw_kept_clear(&g->keeper);
}

int loop_serve_together(loop *l, uint32_t *count, uint64_t now)
{
    if (!l->gathered && (l->gathered = aligned_alloc(64, sizeof *l->gathered)))
        memset(l->gathered, 0, sizeof *l->gathered);
    if (!l->gathered) return -1;
    gathered *g = l->gathered;
    uint32_t waiting = 0, n = 0;
    *count = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        port *p = l->ports[i];
        if (p->paced) continue;
        if (!p->up) {
            *count += loop_serve_port(l, p, now);
            continue;
        }
        const uint32_t fair = (TOGETHER - n) / (l->count - i);
        const uint32_t taken = gather(l, p, n, fair < LOOP_BATCH * 4 ? fair : LOOP_BATCH * 4);
        n += taken;
        if (taken == 0 || !p->ops->peek_ahead) continue;
        g->in_place[waiting] = p;
        g->taken[waiting++] = taken;
    }
    if (n == 0) return 0;
    sw_lock(l->sw);
    run(l, n, now);
    sw_unlock(l->sw);
    for (uint32_t i = 0; i < waiting; i++)
        while (g->taken[i]-- != 0) g->in_place[i]->ops->release(g->in_place[i]);
    *count += n;
    return 0;
}

void loop_free_gathered(loop *l)
{
    if (!l->gathered) return;
    sw_keeper_free(&l->gathered->keeper);
    free(l->gathered);
}
