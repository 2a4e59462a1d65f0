/* SPDX-License-Identifier: Apache-2.0 */
/* What goes out, and with which traffic class.
 *
 * First packets of rounds wait in `ready` and for the window; packets sent again come before them, and need no
 * room in the window: they are in it already. */
#include "recover.h"
#include "round.h"

/* ------------------------------------------------------------------------------------ what may go out */

/* Whether a packet is due again. Those whose result came meanwhile are not. */
static int again_due(weir_transport *t)
{
    while (t->again_length && !t->slots[t->again[t->again_head]].due) weir_take_again(t);
    return t->again_length != 0;
}

/* The window is narrower than the slots are many: put what waits in order, and say whether its first may go.
 *
 * It may when the window is not full, and also when nothing outstanding is before it in the order (round since
 * the reduce began, slot). Were it not so, workers whose windows hold different slots open would wait for each
 * other for ever. With it they cannot: take the least round that is not complete anywhere. Every round before
 * it is complete, and its results come, by timers if need be; so each worker gets to the point where that round
 * is its own to send and nothing it waits for is before it. Then it is the first of what waits there (all that
 * waits is incomplete) and comes before all that is outstanding (incomplete too). So every worker sends it,
 * and it completes. */
static int squeeze(weir_transport *t, int64_t now_ns)
{
    weir_ready_order(&t->ready);
    if (!weir_full(t)) return !weir_on_path(t) || now_ns >= t->path.free_ns;
    t->window.limited = 1;
    uint64_t first = *weir_ready_at(&t->ready, 0);
    /* The newest is the likeliest to be before it. */
    for (uint32_t s = t->unanswered.links[t->unanswered.end].older; s != t->unanswered.end;
         s = t->unanswered.links[s].older)
        if (weir_order_of(t, s) < first) return 0;
    return 1;
}

/* On a path, slots whose packets were lost are behind the others, and go first even if the window is open. */
static inline int first_due(weir_transport *t, int64_t now_ns)
{
    return t->ready.length && ((t->window.limit >= t->used && !weir_on_path(t)) || squeeze(t, now_ns));
}

int weir_transport_sendable(weir_transport *t, int64_t now_ns)
{
    weir_recover(t, now_ns);
    return again_due(t) || weir_replay_due(t) || first_due(t, now_ns);
}

/* -------------------------------------------------------------------------------------------- packets */

/* WEIR_BARE before the retransmission timeout: a rack's switch takes it for a question to itself. */
static const weir_treatment EARLY = {0, WEIR_FLAG_ANSWER, WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

/* Looks as if its lanes had been cut off: takes part in nothing, and is answered by the result of a complete
 * round, or by the wish for our lanes if the aggregator lacks them. */
static const weir_treatment PROBE = {0, WEIR_FLAG_PROTECTED | WEIR_FLAG_TRIMMED | WEIR_FLAG_ANSWER,
                                     WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

/* AFxy, as wire.definition.dscp has it. */
static inline uint32_t dscp_of(uint32_t layer, uint32_t magnitude)
{
    return 8 * (WEIR_LAYER_CLASSES - layer) + 2 * (WEIR_MAGNITUDE_CLASSES - magnitude);
}

/* Whether the round may complete without our lanes: they are reserved, or there is room to reserve them. */
static int expendable(weir_transport *t, slot_state *slot)
{
    weir_share shares[WEIR_MAX_SHARES];
    if (!t->budget.count) return 0;
    if (!slot->reserved)
        slot->reserved = (uint8_t)weir_budget_reserve(&t->budget, shares, weir_slot_shares(t, slot, shares));
    return slot->reserved;
}

static weir_treatment first_treatment(weir_transport *t, slot_state *slot)
{
    if (!slot->groups) return WEIR_BARE;
    int droppable = expendable(t, slot);
    uint32_t magnitude = droppable ? weir_magnitude_of(t, slot) : WEIR_MAGNITUDE_CLASSES - 1;
    return weir_with_lanes(slot, dscp_of(t->service.layer, magnitude), droppable);
}

/* Whether lanes that may be lost should go out unasked: on a long path, a question costs a round trip, and the line
 * has room when nothing else is left to send. Not if it was too full of late. */
static int in_tail(const weir_transport *t, slot_state *slot, int64_t now_ns)
{
    if (!weir_on_path(t) || t->ready.length || now_ns - t->path.cut_ns < 2 * t->path.smooth_ns) return 0;
    slot->suspect = 2;
    return 1;
}

/* A packet that was sent before. Lanes go out when they are asked for or the retransmission timeout is over,
 * unless they can be given up. */
static weir_treatment next_treatment(weir_transport *t, slot_state *slot, int64_t now_ns)
{
    uint8_t due = slot->due;
    slot->due = 0;
    slot->wanted |= due & WEIR_DUE_LANES;
    if (due & (WEIR_DUE_EARLY | WEIR_DUE_TIMER) && slot->groups && !slot->wanted && expendable(t, slot)) {
        t->report.releases++;
        return due & WEIR_DUE_TIMER ? WEIR_BARE : EARLY;
    }
    if (!(due & (WEIR_DUE_LANES | WEIR_DUE_TIMER)) && !t->fills && !in_tail(t, slot, now_ns)) {
        t->report.probes++;
        return slot->groups ? PROBE : EARLY;
    }
    t->report.retransmissions++;
    return weir_repeated(slot);
}

static uint32_t count_up(weir_transport *t, uint32_t length)
{
    t->report.packets_up++;
    t->report.bytes_up += length + WEIR_FRAME_OVERHEAD;
    return length;
}

uint32_t weir_transport_send(weir_transport *t, int64_t now_ns, uint8_t *out, uint8_t *traffic_class)
{
    uint32_t s;
    weir_treatment how;
    weir_recover(t, now_ns);
    if (again_due(t)) {
        s = weir_take_again(t);
        how = next_treatment(t, &t->slots[s], now_ns);
        weir_unanswered_remove(&t->unanswered, s);
    } else if (weir_replay_due(t)) {
        *traffic_class = WEIR_BARE.traffic_class;
        return count_up(t, weir_replay_write(t, out));
    } else if (first_due(t, now_ns)) {
        s = *weir_ready_at(&t->ready, 0) & UINT16_MAX;
        if (weir_on_path(t) && !t->slots[s].asked_ns && weir_path_asks(&t->path, now_ns)) {
            t->slots[s].asked_ns = now_ns;
            t->report.probes++;
            *traffic_class = first_treatment(t, &t->slots[s]).traffic_class;
            return count_up(t, weir_round_write(t, s, PROBE, out));
        }
        weir_ready_take(&t->ready);
        how = first_treatment(t, &t->slots[s]);
        t->slots[s].sent_ns = now_ns;
        t->slots[s].together = t->heard != 0;
        t->outstanding++;
        t->quiet_ns = now_ns;
    } else
        return 0;
    if (weir_on_path(t) && how.groups) weir_path_sent(&t->path, now_ns);
    t->slots[s].sends++;
    t->slots[s].last_ns = now_ns;
    t->slots[s].kind = weir_kind(s, how.traffic_class);
    weir_unanswered_add(&t->unanswered, s);
    weir_arm_timer(t, s, now_ns);
    *traffic_class = how.traffic_class;
    return count_up(t, weir_round_write(t, s, how, out));
}
