/* SPDX-License-Identifier: Apache-2.0 */
/* What goes out, and with which traffic class.
 *
 * First packets of rounds wait in `ready` and for the window; packets sent again come before them, and need no
 * room in the window: they are in it already. */
#include "state.h"

/* --------------------------------------------------------------------------------------------- rounds */

/* Turn a block of float32 values into lanes. Returns their sum, and their OR in `any`. */
static uint64_t enter_values(weir_transport *t, uint64_t block, uint32_t count, uint32_t *any)
{
    uint64_t sum = 0, lane = block << t->block_log2;
    *any = 0;
    for (uint32_t left = count, part, seen; left; left -= part, lane += part) {
        part = weir_values_together(t, left);
        sum += weir_fixed_enter(t->lanes + lane, part, weir_shift_at(t, lane), &seen);
        *any |= seen;
    }
    return sum;
}

int weir_block_enter(weir_transport *t, uint64_t block)
{
    if (weir_block_local(t, block)) return 0;
    uint32_t any, count = weir_block_count(t, block);
    uint64_t sum = t->floats.exponents ? enter_values(t, block, count, &any)
                                       : weir_lanes_scan(weir_block_lanes(t, block), count, &any);
    if (!any) return 0;
    t->nonzero[block >> 6] |= 1ull << (block & 63);
    t->report.entered_lanes += count;
    t->report.entered_sum += sum;
    return 1;
}

/* The stream's first non-zero block after this one: what we have to offer next. */
static uint32_t next_nonzero(weir_transport *t, uint64_t block)
{
    for (block += t->streams; block < t->blocks; block += t->streams)
        if (weir_block_enter(t, block)) return (uint32_t)block;
    return WEIR_NO_BLOCK;
}

/* The next packet of this slot will read these lanes within microseconds: fetch them now. */
static inline void prefetch_block(const weir_transport *t, uint64_t block)
{
    const char *lanes = (const char *)weir_block_lanes(t, block);
    for (uint32_t at = 0; at < 4 * t->block; at += 64) __builtin_prefetch(lanes + at, 1);
}

static inline uint64_t order_of(const weir_transport *t, uint32_t s)
{
    return weir_ready_key(t->slots[s].round - t->slots[s].before, s);
}

/* Who wants the round's result: all, unless its blocks have one audience. */
static uint16_t audience_of(const weir_transport *t, const slot_state *slot)
{
    uint16_t found = WEIR_AUDIENCE_ALL;
    if (!t->audiences) return found;
    for (uint32_t c = 0; c < t->columns; c++) {
        if (slot->block[c] == WEIR_NO_BLOCK) continue;
        uint16_t audience = t->audiences[slot->block[c]];
        if (found != WEIR_AUDIENCE_ALL && audience != found) return WEIR_AUDIENCE_ALL;
        found = audience;
    }
    return found;
}

void weir_round_start(weir_transport *t, uint32_t s)
{
    slot_state *slot = &t->slots[s];
    uint8_t all = (uint8_t)((1u << t->column_groups) - 1);
    slot->round++;
    slot->sends = 0;
    slot->groups = slot->due = slot->reserved = slot->wanted = slot->timeouts = slot->attempts = 0;
    slot->audience = audience_of(t, slot);
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t block = slot->block[c];
        if (block == WEIR_NO_BLOCK) continue;
        if (weir_block_nonzero(t, block) || t->fills) {
            slot->groups |= (uint8_t)(all << c * t->column_groups);
            t->report.blocks_sent++;
            prefetch_block(t, block);
        }
        if (slot->next[c] == block) slot->next[c] = next_nonzero(t, block);
    }
    weir_ready_add(&t->ready, order_of(t, s));
}

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
static int squeeze(weir_transport *t)
{
    weir_ready_order(&t->ready);
    if (t->outstanding < t->window.limit) return 1;
    t->window.limited = 1;
    uint64_t first = *weir_ready_at(&t->ready, 0);
    for (uint32_t s = 0; s < t->used; s++)
        if (t->slots[s].active && t->slots[s].sends && order_of(t, s) < first) return 0;
    return 1;
}

static inline int first_due(weir_transport *t)
{
    return t->ready.length && (t->window.limit >= t->used || squeeze(t));
}

int weir_transport_sendable(weir_transport *t, int64_t now_ns)
{
    weir_recover(t, now_ns);
    return again_due(t) || weir_replay_due(t) || first_due(t);
}

/* -------------------------------------------------------------------------------------------- packets */

/* How the contribution of a round travels. */
typedef struct {
    uint8_t groups, flags, traffic_class;
} treatment;

static const treatment BARE = {0, 0, WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

/* The same before the retransmission timeout: a rack's switch takes it for a question to itself. */
static const treatment EARLY = {0, WEIR_FLAG_ANSWER, WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

/* Looks as if its lanes had been cut off: takes part in nothing, and is answered by the result of a complete
 * round, or by the wish for our lanes if the aggregator lacks them. */
static const treatment PROBE = {0, WEIR_FLAG_PROTECTED | WEIR_FLAG_TRIMMED | WEIR_FLAG_ANSWER,
                                WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

/* AFxy, as wire.definition.dscp has it. */
static inline uint32_t dscp_of(uint32_t layer, uint32_t magnitude)
{
    return 8 * (WEIR_LAYER_CLASSES - layer) + 2 * (WEIR_MAGNITUDE_CLASSES - magnitude);
}

static inline treatment with_lanes(const slot_state *slot, uint32_t dscp, int droppable)
{
    return (treatment){slot->groups, droppable ? 0 : (uint8_t)WEIR_FLAG_PROTECTED,
                       (uint8_t)(dscp << 2 | (droppable ? WEIR_NOT_ECT : WEIR_ECT))};
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

/* The greatest magnitude class among the blocks that the packet carries. */
static inline uint8_t magnitude_of(const weir_transport *t, const slot_state *slot)
{
    uint8_t greatest = 0;
    if (t->service.magnitudes)
        for (uint32_t c = 0; c < t->columns; c++)
            if (weir_column_sent(t, slot, c) && t->service.magnitudes[slot->block[c]] > greatest)
                greatest = t->service.magnitudes[slot->block[c]];
    return greatest;
}

static treatment first_treatment(weir_transport *t, slot_state *slot)
{
    if (!slot->groups) return BARE;
    int droppable = expendable(t, slot);
    uint32_t magnitude = droppable ? magnitude_of(t, slot) : WEIR_MAGNITUDE_CLASSES - 1;
    return with_lanes(slot, dscp_of(t->service.layer, magnitude), droppable);
}

/* A packet that was sent before. Lanes go out when they are asked for or the retransmission timeout is over,
 * unless they can be given up. */
static treatment next_treatment(weir_transport *t, slot_state *slot)
{
    uint8_t due = slot->due;
    slot->due = 0;
    slot->wanted |= due & WEIR_DUE_LANES;
    if (due & (WEIR_DUE_EARLY | WEIR_DUE_TIMER) && slot->groups && !slot->wanted && expendable(t, slot)) {
        t->report.releases++;
        return due & WEIR_DUE_TIMER ? BARE : EARLY;
    }
    if (!(due & (WEIR_DUE_LANES | WEIR_DUE_TIMER)) && !t->fills) {
        t->report.probes++;
        return slot->groups ? PROBE : EARLY;
    }
    t->report.retransmissions++;
    return slot->groups ? with_lanes(slot, WEIR_RELIABLE_DSCP, 0) : BARE;
}

static uint32_t write_contribution(const weir_transport *t, uint32_t s, treatment how, uint8_t *out)
{
    const slot_state *slot = &t->slots[s];
    out[WEIR_WEIR_VERSION_OFFSET] = WEIR_VERSION << WEIR_WEIR_VERSION_SHIFT | WEIR_TYPE_CONTRIBUTION;
    out[WEIR_WEIR_FLAGS_OFFSET] = how.flags;
    out[WEIR_WEIR_OP_OFFSET] = (uint8_t)(t->op << WEIR_WEIR_OP_SHIFT | t->wire_log2);
    out[WEIR_WEIR_GROUPS_OFFSET] = how.groups;
    weir_put32(out + WEIR_WEIR_JOB_OFFSET, t->config.job);
    out[WEIR_WEIR_WORKER_OFFSET] = (uint8_t)t->config.worker;
    out[WEIR_WEIR_LAYER_OFFSET] =
        (uint8_t)(t->service.layer << WEIR_WEIR_LAYER_SHIFT | magnitude_of(t, slot));
    weir_put16(out + WEIR_WEIR_SLOT_OFFSET, (uint16_t)s);
    weir_put32(out + WEIR_WEIR_ROUND_OFFSET, slot->round);
    weir_put32(out + WEIR_WEIR_INCLUDED_OFFSET, 0);
    weir_put16(out + WEIR_WEIR_AUDIENCE_OFFSET, slot->audience);
    weir_put16(out + WEIR_WEIR_COUNT_OFFSET, how.groups != 0);
    weir_put32(out + WEIR_WEIR_CHECK_OFFSET, t->check);
    uint8_t *at = out + WEIR_WEIR_SIZE;
    for (uint32_t c = 0; c < t->columns; c++, at += WEIR_COLUMN_SIZE) {
        weir_put32(at + WEIR_COLUMN_BLOCK_OFFSET, slot->block[c]);
        weir_put32(at + WEIR_COLUMN_NEXT_OFFSET, slot->next[c]);
    }
    if (how.groups)
        for (uint32_t c = 0; c < t->columns; c++)
            if (weir_column_sent(t, slot, c)) {
                uint32_t block = slot->block[c];
                weir_lanes_pack(at, weir_block_lanes(t, block), weir_block_count(t, block), t->block);
                at += 4 * t->block;
            }
    return (uint32_t)(at - out);
}

uint32_t weir_write_repeated(const weir_transport *t, uint32_t s, uint8_t *out)
{
    const slot_state *slot = &t->slots[s];
    return write_contribution(t, s, slot->groups ? with_lanes(slot, WEIR_RELIABLE_DSCP, 0) : BARE, out);
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
    treatment how;
    weir_recover(t, now_ns);
    if (again_due(t)) {
        s = weir_take_again(t);
        how = next_treatment(t, &t->slots[s]);
        weir_sent_remove(&t->sent, s);
    } else if (weir_replay_due(t)) {
        *traffic_class = BARE.traffic_class;
        return count_up(t, weir_replay_write(t, out));
    } else if (first_due(t)) {
        s = weir_ready_take(&t->ready) & UINT16_MAX;
        how = first_treatment(t, &t->slots[s]);
        t->slots[s].sent_ns = now_ns;
        t->slots[s].together = t->heard != 0;
        t->outstanding++;
        t->quiet_ns = now_ns;
    } else
        return 0;
    t->slots[s].sends++;
    t->slots[s].last_ns = now_ns;
    t->slots[s].kind = weir_kind(s, how.traffic_class);
    weir_sent_add(&t->sent, s);
    weir_arm_timer(t, s, now_ns);
    *traffic_class = how.traffic_class;
    return count_up(t, write_contribution(t, s, how, out));
}
