/* SPDX-License-Identifier: Apache-2.0 */
#include "inbound.h"

/* ----------------------------------------------------------------------------------------------- life */

flow_inbound *flow_inbound_new(const weir_flow_config *config, const flow_packet *packet)
{
    const size_t count = packet->count;
    flow_inbound *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->head = (flow_head){packet->flow, packet->tensor, packet->count, packet->worker, packet->layer};
    t->chunk_lanes = config->chunk_lanes;
    t->max_loss = config->max_loss;
    t->early_stop = config->early_stop != 0;
    t->left = t->unaccounted = t->low = t->cut_low = packet->count;
    t->values = calloc(count, 4 * (size_t)config->chunk_lanes);
    t->came = calloc(count, 3);
    if (!t->values || !t->came) {
        flow_inbound_free(t);
        return NULL;
    }
    t->accounted = t->came + count;
    t->cut = t->accounted + count;
    return t;
}

void flow_inbound_free(flow_inbound *t)
{
    if (!t) return;
    free(t->values);
    free(t->came);
    free(t);
}

/* --------------------------------------------------------------------------------------------- telling */

static void write_bits(flow_inbound *t, uint32_t kind, uint32_t flags, uint32_t answers, uint32_t first,
                       const uint8_t *told, uint32_t count, flow_queue *to)
{
    const uint32_t length = (count + 7) / 8;
    uint8_t *out = flow_queue_add(to, WEIR_FLOW_SIZE + length);
    if (!out) return;
    flow_write_header(out, &t->head, kind, WEIR_FLAG_PROTECTED | flags, 0, answers, first);
    out += WEIR_FLOW_SIZE;
    memset(out, 0, length);
    for (uint32_t i = 0; i < count; i++) out[i / 8] |= (uint8_t)(told[first + i] << i % 8);
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void tell_range(flow_inbound *t, uint32_t kind, uint32_t flags, uint32_t answers, uint32_t from,
                       uint32_t to, flow_queue *answered)
{
    for (uint32_t at = from; at < to; at += smaller(FLOW_SPAN, to - at))
        write_bits(t, kind, flags, answers, at, t->came, smaller(FLOW_SPAN, to - at), answered);
}

static void tell_cuts(flow_inbound *t, flow_queue *answers)
{
    for (uint32_t first = t->cut_low; t->cuts; first += FLOW_SPAN) {
        while (!t->cut[first]) first++;
        uint32_t count = 0;
        for (uint32_t i = 0; i < FLOW_SPAN && i < t->head.count - first; i++)
            if (t->cut[first + i]) {
                count = i + 1;
                t->cuts--;
            }
        write_bits(t, WEIR_FLOW_BITMAP, WEIR_FLAG_TRIMMED, 0, first, t->cut, count, answers);
        memset(t->cut + first, 0, count);
    }
    t->cut_low = t->head.count;
}

static void forget_news(flow_inbound *t)
{
    t->low = t->head.count;
    t->high = 0;
}

static void tell_end(flow_inbound *t, uint32_t answers, int congested, flow_queue *to)
{
    const uint32_t flags = congested ? WEIR_FLAG_CONGESTED : 0;
    if (t->left) {
        tell_range(t, WEIR_FLOW_STOP, flags, answers, 0, t->head.count, to);
        return;
    }
    uint8_t *out = flow_queue_add(to, WEIR_FLOW_SIZE);
    if (out) flow_write_header(out, &t->head, WEIR_FLOW_STOP, WEIR_FLAG_PROTECTED | flags, 0, answers, 0);
}

int flow_inbound_has_news(const flow_inbound *t)
{
    return t->say_stop || (!t->stopped && (t->high || t->cuts));
}

void flow_inbound_tell(flow_inbound *t, flow_queue *answers)
{
    if (t->stopped && !t->say_stop) return;
    tell_cuts(t, answers);
    if (t->stopped) {
        t->say_stop = 0;
        tell_end(t, 0, t->congested, answers);
        return;
    }
    tell_range(t, WEIR_FLOW_BITMAP, t->congested ? WEIR_FLAG_CONGESTED : 0, 0, t->low, t->high, answers);
    forget_news(t);
}

/* --------------------------------------------------------------------------------------------- taking in */

/* Stop if nothing is on its way any more, and the terms allow what is missing. */
static void decide(flow_inbound *t, int final)
{
    if (t->stopped) return;
    if (t->left) {
        if (!t->term_count || !(final || t->early_stop || !t->unaccounted)) return;
        for (uint32_t a = 0; a < t->term_count; a++)
            if (t->totals[a] > t->came_lanes[a] + t->budgets[a]) return;
    }
    t->stopped = t->say_stop = 1;
}

static void note(flow_inbound *t, uint32_t index)
{
    if (index < t->low) t->low = index;
    if (index >= t->high) t->high = index + 1;
}

static int fits(const flow_inbound *t, uint32_t index, uint32_t lanes)
{
    if (index + 1 < t->head.count) return lanes == t->chunk_lanes;
    return t->last_lanes ? lanes == t->last_lanes : lanes <= t->chunk_lanes;
}

static void account_for(flow_inbound *t, uint32_t index)
{
    t->unaccounted -= !t->accounted[index];
    t->accounted[index] = 1;
}

enum weir_flow_verdict flow_on_chunk(flow_inbound *t, const flow_packet *p, int congested,
                                     flow_queue *answers)
{
    const uint32_t index = p->index, lanes = p->length / 4;
    const int trimmed = (p->flags & WEIR_FLAG_TRIMMED) != 0;
    if (!trimmed && !fits(t, index, lanes)) return FLOW_BAD_LENGTH;
    if (t->stopped) {
        t->say_stop = !t->confirmed; /* its sender may not have heard */
        return FLOW_LATE;
    }
    if (t->came[index]) {
        note(t, index);
        return FLOW_DUPLICATE;
    }
    if (trimmed) {
        t->cuts += !t->cut[index];
        t->cut[index] = 1;
        if (index < t->cut_low) t->cut_low = index;
        account_for(t, index);
        decide(t, 0);
        return FLOW_TRIMMED;
    }
    if (congested != t->congested) { /* as DCTCP: one answer never is about both kinds */
        flow_inbound_tell(t, answers);
        t->congested = (uint8_t)congested;
    }
    t->came_sum += (int64_t)weir_lanes_unpack(t->values + (size_t)index * t->chunk_lanes, p->data, lanes);
    t->came[index] = 1;
    account_for(t, index);
    note(t, index);
    t->cuts -= t->cut[index];
    t->cut[index] = 0;
    t->left--;
    t->came_lanes[p->first] += lanes;
    if (index + 1 == t->head.count) t->last_lanes = lanes;
    decide(t, 0);
    return FLOW_ACCEPTED;
}

/* Take in a tensor's terms, unless they cannot be: FLOW_ACCEPTED, or why. */
static enum weir_flow_verdict take_terms(flow_inbound *t, const flow_packet *p)
{
    const uint32_t count = (p->length - FLOW_RANGE) / FLOW_TERM;
    uint64_t totals[FLOW_MAX_ACCOUNTS] = {0}, budgets[FLOW_MAX_ACCOUNTS] = {0}, lanes = 0, budget = 0;
    int impossible = 0;
    for (uint32_t a = 0; a < count; a++) {
        totals[a] = weir_get32(p->data + FLOW_RANGE + FLOW_TERM * a);
        budgets[a] = weir_get32(p->data + FLOW_RANGE + FLOW_TERM * a + 4);
        impossible |= budgets[a] > totals[a];
        lanes += totals[a];
        budget += budgets[a];
    }
    if (t->term_count) {
        const int same = count == t->term_count && !memcmp(totals, t->totals, sizeof totals) &&
                         !memcmp(budgets, t->budgets, sizeof budgets);
        return same ? FLOW_ACCEPTED : FLOW_BAD_TERMS;
    }
    const uint64_t before = (uint64_t)(t->head.count - 1) * t->chunk_lanes;
    if (lanes <= before || lanes - before > t->chunk_lanes) return FLOW_BAD_TERMS;
    if (t->last_lanes && t->last_lanes != lanes - before) return FLOW_BAD_TERMS;
    for (uint32_t a = 0; a < FLOW_MAX_ACCOUNTS; a++) impossible |= t->came_lanes[a] > totals[a];
    if (impossible) return FLOW_BAD_TERMS;
    if ((double)budget > t->max_loss * (double)lanes) return FLOW_BEYOND_BOUND;
    memcpy(t->totals, totals, sizeof totals);
    memcpy(t->budgets, budgets, sizeof budgets);
    t->term_count = count;
    t->last_lanes = (uint32_t)(lanes - before);
    return FLOW_ACCEPTED;
}

enum weir_flow_verdict flow_on_probe(flow_inbound *t, const flow_packet *p, int congested,
                                     flow_queue *answers)
{
    if (!p->data) {
        uint8_t *out = flow_queue_add(answers, WEIR_FLOW_SIZE);
        const uint32_t flags = WEIR_FLAG_PROTECTED | WEIR_FLAG_TRIMMED;
        if (out) flow_write_header(out, &t->head, WEIR_FLOW_BITMAP, flags, 0, p->index, 0);
        return FLOW_TRIMMED;
    }
    const enum weir_flow_verdict refusal = take_terms(t, p);
    if (refusal != FLOW_ACCEPTED) return refusal;
    congested |= t->congested;
    forget_news(t);
    decide(t, p->final && p->end == t->head.count);
    if (t->stopped) {
        t->say_stop = 0;
        t->cuts = 0; /* the final word says it */
        tell_end(t, p->index, congested, answers);
        return FLOW_ACCEPTED;
    }
    tell_cuts(t, answers);
    const uint32_t first = smaller(p->first, t->head.count - 1), end = p->end > first ? p->end : first + 1;
    tell_range(t, WEIR_FLOW_BITMAP, congested ? WEIR_FLAG_CONGESTED : 0, p->index, first, end, answers);
    return FLOW_ACCEPTED;
}
