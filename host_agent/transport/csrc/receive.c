/* SPDX-License-Identifier: Apache-2.0 */
/* What a result does to vector, books and slots. */
#include <stdlib.h>
#include <string.h>

#include "recover.h"
#include "round.h"

/* Room for one more packet's worth of returned blocks. */
static int reserve_returned(weir_transport *t)
{
    uint64_t needed = t->returned + WEIR_MAX_COLUMNS;
    if (needed <= t->returned_capacity && t->block <= t->returned_block) return 1;
    uint64_t capacity = 2 * needed;
    uint32_t *blocks = realloc(t->returned_blocks, capacity * sizeof *blocks);
    if (blocks) t->returned_blocks = blocks;
    uint32_t *lanes = realloc(t->returned_lanes, capacity * t->block * sizeof *lanes);
    if (lanes) t->returned_lanes = lanes;
    if (!blocks || !lanes) return 0;
    t->returned_capacity = capacity;
    t->returned_block = t->block;
    return 1;
}

static void give_back(weir_transport *t, uint32_t block)
{
    uint32_t count = weir_block_count(t, block), *to = t->returned_lanes + t->returned * t->block;
    memcpy(to, weir_block_lanes(t, block), 4 * count);
    memset(to + count, 0, 4 * (t->block - count));
    t->returned_blocks[t->returned++] = block;
    t->report.returned_lanes += count;
    t->report.returned_sum += weir_lanes_sum(to, count);
}

/* What the result says about our lanes, for the loss budget. */
static void settle(weir_transport *t, slot_state *slot, int included)
{
    weir_share shares[WEIR_MAX_SHARES];
    uint32_t found = weir_slot_shares(t, slot, shares);
    t->report.trimmed += found && !included;
    if (t->budget.count) weir_budget_settle(&t->budget, shares, found, slot->reserved, !included);
    slot->reserved = 0;
}

/* Write a result over a block of float32 values. Returns the sum of its lanes. */
static uint64_t apply_values(weir_transport *t, uint32_t block, const uint32_t *exponents, const uint8_t *in,
                             uint32_t count)
{
    uint64_t sum = 0;
    uint32_t *values = weir_block_lanes(t, block);
    for (uint32_t at = 0, part; at < count; at += part) {
        part = weir_values_together(t, count - at);
        sum += weir_fixed_unpack(values + at, in + 4 * at, part, weir_shift_at(t, exponents, at));
    }
    return sum;
}

/* Write a result of lanes that we want over ours. Returns their sum. */
static uint64_t apply_lanes(weir_transport *t, uint32_t block, const uint8_t *in, uint32_t count)
{
    const uint32_t *exponents = weir_block_exponents(t, block);
    if (weir_block_how(t, block) & WEIR_PLACE_XOR)
        return weir_lanes_toggle(weir_block_lanes(t, block), in, count);
    if (weir_block_local(t, block)) return weir_lanes_combine(weir_block_lanes(t, block), in, count, t->op);
    if (exponents) return apply_values(t, block, exponents, in, count);
    return weir_lanes_unpack(weir_block_lanes(t, block), in, count);
}

/* Settle our lanes of each column (included or given back), then write the result's over them if we want it. */
static void apply_result(weir_transport *t, const slot_state *slot, const weir_result *h,
                         const uint8_t *lanes)
{
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t block = slot->block[c];
        int sent = weir_column_sent(t, slot, c), present = h->groups >> c * t->column_groups & 1;
        if (!sent && !present) continue;
        uint32_t count = weir_block_count(t, block);
        if (!weir_block_nonzero(t, block))
            ; /* nothing entered: zeros, sent or not */
        else if (weir_own_included(t, h)) {
            t->report.included_lanes += count;
            t->report.included_sum += weir_lanes_sum(weir_block_lanes(t, block), count);
        } else
            give_back(t, block);
        if (t->audiences && !weir_wanted(t, t->audiences[block]))
            ; /* and ours are the caller's to keep or not */
        else if (present) {
            t->report.applied_lanes += count;
            t->report.applied_sum += apply_lanes(t, block, lanes, count);
        } else
            memset(weir_block_lanes(t, block), 0, 4 * count);
        if (present) lanes += 4 * t->block;
    }
}

static void advance(weir_transport *t, uint32_t s, const weir_result *h)
{
    slot_state *slot = &t->slots[s];
    uint32_t more = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        slot->block[c] = h->next[c];
        more |= h->next[c] != WEIR_NO_BLOCK;
    }
    slot->asked = slot->attempts != 0;
    t->outstanding--;
    t->suspects -= slot->suspect != 0;
    weir_unanswered_remove(&t->unanswered, s);
    if (more)
        weir_round_start(t, s);
    else {
        slot->active = slot->due = 0;
        t->active--;
    }
}

/* A result of a round that is over: if we asked for it, the first answer was on its way then. */
static void notice_haste(weir_transport *t, const weir_result *h, int64_t now_ns)
{
    slot_state *slot = &t->slots[h->slot];
    if (slot->asked && h->type == WEIR_TYPE_RESULT && h->round == slot->round - (slot->active != 0)) {
        slot->asked = 0;
        weir_rtt_hasty(&t->rtt, now_ns);
    }
}

static inline void answered(weir_transport *t, const slot_state *slot)
{
    if (slot->sent_ns > t->answered_ns) t->answered_ns = slot->sent_ns;
    if (slot->sent_ns > t->answered_kind_ns[slot->kind]) t->answered_kind_ns[slot->kind] = slot->sent_ns;
}

/* What a result says about the path. One that comes within a round trip and a half after our question was there when
 * we asked: so it had been lost on its way to us. One for which others repeated their packets takes two. */
static void travelled(weir_transport *t, const slot_state *slot, int marked, int64_t now_ns)
{
    weir_path *path = &t->path;
    if (slot->sends == 1) weir_path_round(path, now_ns - slot->sent_ns);
    const int lost =
        slot->suspect == 1 && !slot->wanted && 2 * (now_ns - slot->suspect_ns) < 3 * path->smooth_ns;
    if (lost || marked) weir_path_signal(path, (uint32_t)lost, slot->sent_ns, now_ns);
    weir_path_result(path, slot->sent_ns, now_ns, &t->window.limited);
    t->window.limit = weir_path_limit(path);
}

/* Whether this is the answer to the question before a slot's packet: it asks for nothing that is not under way. */
static int echoes(weir_transport *t, slot_state *slot, int64_t now_ns)
{
    if (!slot->asked_ns || slot->sends > 1) return 0;
    weir_path_trip(&t->path, now_ns, now_ns - slot->asked_ns);
    slot->asked_ns = 0;
    return 1;
}

/* The switch lacks our packet. */
static void missed(weir_transport *t, const slot_state *slot, int64_t now_ns)
{
    if (!weir_on_path(t) || slot->wanted || slot->due & WEIR_DUE_LANES) return;
    weir_path_signal(&t->path, t->config.workers, slot->sent_ns, now_ns);
    t->window.limit = weir_path_limit(&t->path);
}

/* Whether a packet, or its answer, was lost: then the round says nothing about how long answers take. It was if one that
 * was sent later has been answered, or if a switch sent the result again, in the top class: a queue that overflows loses
 * the results of many slots together, and each would lengthen the timeout of the next. */
static int was_lost(const weir_transport *t, const slot_state *slot, uint8_t traffic_class)
{
    if (slot->sends == 1) return 0;
    return slot->sent_ns < t->answered_ns || (!weir_on_path(t) && traffic_class >> 2 == WEIR_RELIABLE_DSCP);
}

static void complete(weir_transport *t, const weir_result *h, const uint8_t *lanes, uint8_t traffic_class,
                     int64_t now_ns)
{
    slot_state *slot = &t->slots[h->slot];
    int included = weir_own_included(t, h);
    int marked = h->flags & WEIR_FLAG_CONGESTED || (traffic_class & 3) == WEIR_CE;
    t->report.rounds++;
    t->report.marked += (uint64_t)marked;
    if (!was_lost(t, slot, traffic_class))
        weir_rtt_round(&t->rtt, now_ns - slot->sent_ns, slot->sends > 1, slot->together);
    if (slot->sends == 1) /* else it may be the answer to the earlier packet */
        answered(t, slot);
    weir_rtt_calm(&t->rtt, now_ns);
    if (weir_on_path(t))
        travelled(t, slot, marked, now_ns);
    else {
        if (!t->ready.length)
            weir_rate_pause(&t->rate);
        else if (weir_rate_result(&t->rate, (uint32_t)__builtin_popcount(h->groups), now_ns))
            weir_window_share(&t->window, weir_rate_share(&t->rate));
        weir_window_trip(&t->window, now_ns, slot->sends == 1 ? now_ns - slot->sent_ns : 0, marked);
        weir_window_results(&t->window, 1, marked != 0);
    }
    if (slot->groups && (!included || t->budget.count)) settle(t, slot, included);
    weir_keep(t, h->slot);
    apply_result(t, slot, h, lanes);
    advance(t, h->slot, h);
}

/* Something came. */
static inline void stir(weir_transport *t, int64_t now_ns)
{
    t->quiet_ns = now_ns;
    t->quiet_times = 0;
    weir_replay_stop(t);
}

enum weir_verdict weir_transport_receive(weir_transport *t, const uint8_t *payload, uint32_t length,
                                         uint8_t traffic_class, int64_t now_ns)
{
    weir_result h;
    enum weir_verdict verdict = weir_result_check(t, payload, length, &h);
    if (verdict == WEIR_ACCEPTED && !weir_own_included(t, &h) && !reserve_returned(t))
        verdict = WEIR_NO_MEMORY;
    t->report.verdicts[verdict]++;
    t->report.packets_down++;
    t->report.bytes_down += length + WEIR_FRAME_OVERHEAD;
    switch (verdict) {
    case WEIR_ACCEPTED:
        complete(t, &h, payload + WEIR_WEIR_SIZE + t->columns * WEIR_COLUMN_SIZE, traffic_class, now_ns);
        break;
    case WEIR_STALE:
        notice_haste(t, &h, now_ns);
        return verdict;
    case WEIR_TRIMMED:
        weir_send_again(t, h.slot, WEIR_DUE_RESULT);
        break;
    case WEIR_REPEAT:
        if (echoes(t, &t->slots[h.slot], now_ns)) return verdict;
        stir(t, now_ns);
        missed(t, &t->slots[h.slot], now_ns);
        if (t->slots[h.slot].groups) { /* without lanes there is nothing that the last packet did not say */
            t->slots[h.slot].attempts = 0;
            weir_send_again(t, h.slot, WEIR_DUE_LANES);
        }
        return verdict;
    case WEIR_DISAGREE:
        t->disagreement = 1;
        return verdict;
    default:
        return verdict;
    }
    stir(t, now_ns);
    if (!t->heard) weir_hear(t, now_ns);
    if (!t->active) weir_replay_rest(t, now_ns);
    return verdict;
}

void weir_transport_refuse(weir_transport *t, enum weir_verdict verdict) { t->report.verdicts[verdict]++; }

void weir_transport_batch(weir_transport *t, int up)
{
    if (up)
        t->report.batches_up++;
    else
        t->report.batches_down++;
}

/* Where a link limits, results come at its pace, and waking a thread for each batch of them gains little.
 * So they may lie for half the time that packets spend in queues on their way: the other half of what is under way
 * still waits in front of the link, which does not run empty; and what waits for us does not wait there, so that
 * rounds take no longer. Where there is no queue nothing waits, nor at the end of a reduce, when each result may be
 * what the caller waits for. And no more than half of the room that there is for them is made use of. */
int64_t weir_transport_coalescing(const weir_transport *t, uint32_t room)
{
    const int64_t least_ns = 200000 /* shorter naps cost more than they save */;
    const int64_t most_ns = weir_on_path(t) ? WEIR_PACE_CHUNK_NS : 10000000;
    if (!t->heard || t->active < t->used) return 0;
    int64_t half = weir_rtt_queueing(&t->rtt) / 2;
    if (t->outstanding > room) half = half * room / t->outstanding;
    return half < least_ns ? 0 : half < most_ns ? half : most_ns;
}
