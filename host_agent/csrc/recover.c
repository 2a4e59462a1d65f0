/* SPDX-License-Identifier: Apache-2.0 */
/* When a slot's packet goes out again.
 *
 * A packet counts as lost when something that was sent well after it has been answered, or when nothing came for
 * as long as answers take. Both may be wrong, so what is done about it first costs little: a release, or a
 * packet without lanes that asks what the aggregator has. Lanes go out again when it says that they are missing,
 * or when the retransmission timeout is over. */
#include "state.h"

void weir_send_again(weir_transport *t, uint32_t s, uint8_t reason)
{
    slot_state *slot = &t->slots[s];
    slot->due |= reason;
    if (slot->queued)
        return;
    uint32_t at = t->again_head + t->again_length++;
    t->again[at >= t->config.slots ? at - t->config.slots : at] = (uint16_t)s;
    slot->queued = 1;
}

uint32_t weir_take_again(weir_transport *t)
{
    uint32_t s = t->again[t->again_head];
    t->again_head = t->again_head + 1 == t->config.slots ? 0 : t->again_head + 1;
    t->again_length--;
    t->slots[s].queued = 0;
    return s;
}

/* Whether asking costs little: not where the switch cannot lengthen packets, and answers by asking for lanes. */
static int may_ask(const weir_transport *t, const slot_state *slot)
{
    return !t->config.fill || (slot->reserved && !slot->wanted);
}

/* How long the slot's last packet is given. */
static int64_t patience(const weir_transport *t, const slot_state *slot)
{
    int64_t timeout = may_ask(t, slot) ? weir_rtt_early(&t->rtt) : t->rtt.late.timeout_ns;
    return weir_rtt_backed_off(&t->rtt, timeout, slot->attempts);
}

void weir_arm_timer(weir_transport *t, uint32_t s, int64_t now_ns)
{
    int64_t deadline = WEIR_NEVER, timeout = patience(t, &t->slots[s]);
    t->slots[s].early = timeout < t->rtt.late.timeout_ns;
    if (t->heard || s == 0)
        deadline = now_ns + timeout;
    t->deadlines[s] = deadline;
    if (deadline < t->earliest)
        t->earliest = deadline;
}

void weir_hear(weir_transport *t, int64_t now_ns)
{
    t->heard = 1;
    for (uint32_t s = 0; s < t->used; s++)
        if (t->slots[s].active && t->slots[s].sends && !t->slots[s].due)
            weir_arm_timer(t, s, now_ns);
}

static void ask(weir_transport *t, uint32_t s)
{
    if (t->slots[s].attempts < UINT8_MAX)
        t->slots[s].attempts++;
    weir_send_again(t, s, WEIR_DUE_EARLY);
}

static void time_out(weir_transport *t, uint32_t s)
{
    slot_state *slot = &t->slots[s];
    if (slot->early) {
        ask(t, s);
        return;
    }
    t->report.timeouts++;
    if (slot->attempts < UINT8_MAX)
        slot->attempts++;
    if (slot->timeouts < UINT8_MAX && ++slot->timeouts == 2 && t->heard)
        weir_window_silence(&t->window); /* one may be chance, and a late worker is no congestion */
    weir_send_again(t, s, WEIR_DUE_TIMER);
}

static void expire_timers(weir_transport *t, int64_t now_ns)
{
    t->earliest = WEIR_NEVER;
    for (uint32_t s = 0; s < t->used; s++) {
        const slot_state *slot = &t->slots[s];
        if (!slot->active || !slot->sends || slot->due)
            continue;
        if (t->deadlines[s] <= now_ns)
            time_out(t, s);
        else if (t->deadlines[s] < t->earliest)
            t->earliest = t->deadlines[s];
    }
}

/* Of packets that may have overtaken each other on the way, the later is not taken to tell of the earlier. */
static int64_t reordering(const weir_transport *t)
{
    int64_t half = t->rtt.early.mean_ns / 2;
    return (half > t->config.reordering_ns ? half : t->config.reordering_ns) << t->rtt.caution;
}

/* Ask about the packets that were sent well before one of their kind that has been answered; RACK (RFC 8985). */
static void find_overtaken(weir_transport *t)
{
    int64_t window = reordering(t);
    for (uint32_t s = weir_sent_oldest(&t->sent); s != t->sent.end; s = t->sent.links[s].newer) {
        const slot_state *slot = &t->slots[s];
        if (slot->last_ns + window >= t->answered_ns)
            return;
        if (!slot->due && may_ask(t, slot) &&
            slot->last_ns + weir_rtt_backed_off(&t->rtt, window, slot->attempts) <
                t->answered_kind_ns[slot->kind])
            ask(t, s);
    }
}

void weir_recover(weir_transport *t, int64_t now_ns)
{
    if (now_ns >= t->earliest)
        expire_timers(t, now_ns);
    uint32_t oldest = weir_sent_oldest(&t->sent);
    if (oldest != t->sent.end && t->slots[oldest].last_ns < t->answered_ns - t->config.reordering_ns)
        find_overtaken(t);
}
