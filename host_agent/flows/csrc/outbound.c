/* SPDX-License-Identifier: Apache-2.0 */
#include "outbound.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------------- lists */

static uint32_t resend_list(const flow_outbound *t) { return t->head.count + KINDS; }

static uint32_t under_way_list(const flow_outbound *t, uint32_t kind) { return t->head.count + kind; }

static void enlist(flow_outbound *t, uint32_t list, uint32_t index)
{
    flow_chunk *head = &t->chunks[list], *chunk = &t->chunks[index];
    chunk->previous = head->previous;
    chunk->next = list;
    t->chunks[head->previous].next = index;
    head->previous = index;
}

static void delist(flow_outbound *t, uint32_t index)
{
    flow_chunk *chunk = &t->chunks[index];
    t->chunks[chunk->previous].next = chunk->next;
    t->chunks[chunk->next].previous = chunk->previous;
}

int flow_to_resend(const flow_outbound *t) { return t->chunks[resend_list(t)].next != resend_list(t); }

/* ----------------------------------------------------------------------------------------------- life */

flow_outbound *flow_outbound_new(const weir_flow_config *config, const weir_flow_tensor *tensor)
{
    const uint32_t count = tensor->lanes / config->chunk_lanes + (tensor->lanes % config->chunk_lanes != 0);
    flow_outbound *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->chunks = calloc((size_t)count + KINDS + 1, sizeof *t->chunks);
    t->parts = calloc(count / FLOW_SPAN + 2, 1);
    if (!t->chunks || !t->parts) {
        flow_outbound_free(t);
        return NULL;
    }
    t->head =
        (flow_head){config->flow, tensor->number, count, (uint8_t)config->worker, (uint8_t)tensor->layer};
    t->lanes = tensor->lanes;
    t->chunk_lanes = config->chunk_lanes;
    t->values = tensor->values;
    t->uncovered = count;
    t->reorder_at_ns = t->deadline_ns = FLOW_NEVER;
    t->began_ns = -1;
    for (uint32_t list = count; list <= count + KINDS; list++)
        t->chunks[list].previous = t->chunks[list].next = list;
    for (uint32_t i = 0; i < count; i++) {
        flow_chunk *chunk = &t->chunks[i];
        if (tensor->magnitudes) chunk->magnitude = tensor->magnitudes[i];
        if (tensor->accounts) chunk->account = tensor->accounts[i];
        if (tensor->droppable) chunk->droppable = tensor->droppable[i];
        t->totals[chunk->account] += flow_chunk_lanes(t, i);
    }
    t->account_count = tensor->account_count;
    for (uint32_t a = 0; a < t->account_count; a++) {
        t->budgets[a] = tensor->budgets[a] < t->totals[a] ? tensor->budgets[a] : t->totals[a];
        t->budgeted |= t->budgets[a] != 0;
    }
    return t;
}

void flow_outbound_free(flow_outbound *t)
{
    if (!t) return;
    free(t->chunks);
    free(t->parts);
    free(t);
}

/* ------------------------------------------------------------------------------------------- questions */

int flow_awaits_answer(const flow_outbound *t)
{
    return t->under_way || t->unanswered || !(flow_unsent(t) || flow_to_resend(t));
}

int flow_must_decide(const flow_outbound *t)
{
    if (!t->undecided || t->under_way || flow_unsent(t) || flow_to_resend(t)) return 0;
    for (uint32_t a = 0; a < t->account_count; a++)
        if (t->missing[a]) return 1;
    return 0;
}

/* --------------------------------------------------------------------------------------------- sending */

uint32_t flow_send_chunk(flow_outbound *t, int again, int64_t now_ns, uint8_t *out, const flow_chunk **sent)
{
    const uint32_t index = again ? t->chunks[resend_list(t)].next : t->next++;
    flow_chunk *chunk = &t->chunks[index];
    if (again) {
        delist(t, index);
        chunk->again = 1;
        t->resent++;
    }
    chunk->state = CHUNK_UNDER_WAY;
    chunk->sent_ns = t->sent_at_ns = now_ns;
    chunk->order = ++t->orders;
    enlist(t, under_way_list(t, chunk->again), index);
    t->under_way++;
    const uint32_t lanes = flow_chunk_lanes(t, index);
    const uint32_t flags = again || !chunk->droppable ? WEIR_FLAG_PROTECTED : 0;
    flow_write_header(out, &t->head, WEIR_FLOW_CHUNK, flags, chunk->magnitude, index, chunk->account);
    weir_lanes_pack(out + WEIR_FLOW_SIZE, t->values + (size_t)index * t->chunk_lanes, lanes, lanes);
    *sent = chunk;
    return WEIR_FLOW_SIZE + 4 * lanes;
}

uint32_t flow_ask(flow_outbound *t, int64_t now_ns, int64_t timeout_ns, uint32_t kind, uint8_t *out)
{
    t->unanswered = ++t->probes;
    t->asked[t->probes % FLOW_REMEMBERED].number = t->probes;
    t->asked[t->probes % FLOW_REMEMBERED].kind = kind;
    t->asked[t->probes % FLOW_REMEMBERED].place = ++t->orders;
    t->asked[t->probes % FLOW_REMEMBERED].at_ns = now_ns;
    const int waited = now_ns - t->sent_at_ns >= timeout_ns;
    const uint32_t final = !flow_unsent(t) && (waited || !t->under_way);
    t->undecided = t->ask_at_once = 0;
    while (t->low < t->next && t->chunks[t->low].state == CHUNK_RECEIVED) t->low++;
    const uint32_t first = t->low < t->head.count ? t->low : t->head.count - 1;
    const uint32_t end = t->next > first ? t->next : first + 1;
    t->answer_first = first;
    t->parts_left = (end - first - 1) / FLOW_SPAN + 1;
    memset(t->parts, 0, t->head.count / FLOW_SPAN + 2);
    memset(t->parts, 1, t->parts_left);
    flow_write_header(out, &t->head, WEIR_FLOW_PROBE, WEIR_FLAG_PROTECTED, 0, t->probes, first);
    out += WEIR_FLOW_SIZE;
    weir_put32(out, end);
    weir_put32(out + 4, final);
    for (uint32_t a = 0; a < t->account_count; a++) {
        weir_put32(out + FLOW_RANGE + FLOW_TERM * a, (uint32_t)t->totals[a]);
        weir_put32(out + FLOW_RANGE + FLOW_TERM * a + 4, (uint32_t)t->budgets[a]);
    }
    return WEIR_FLOW_SIZE + FLOW_RANGE + FLOW_TERM * t->account_count;
}

/* --------------------------------------------------------------------------------------------- answers */

/* Take a chunk under way for lost: it is missing while its account has room, else it is sent again. */
static void lose(flow_outbound *t, uint32_t index)
{
    flow_chunk *chunk = &t->chunks[index];
    const uint64_t lanes = flow_chunk_lanes(t, index);
    delist(t, index);
    t->under_way--;
    if (t->missing[chunk->account] + lanes <= t->budgets[chunk->account]) {
        t->missing[chunk->account] += lanes;
        chunk->state = CHUNK_MISSING;
    } else {
        chunk->state = CHUNK_TO_RESEND;
        enlist(t, resend_list(t), index);
    }
}

/* When a chunk under way is lost by what has arrived of later packets; FLOW_NEVER: nothing has. A list is in the
 * order of sending, so of no chunk is this earlier than of those before it. */
static int64_t due(const flow_outbound *t, const flow_chunk *chunk, int64_t reordering_ns, int64_t timeout_ns)
{
    const uint32_t kind = chunk->again;
    int64_t due = FLOW_NEVER;
    if (chunk->order < t->newest[kind]) due = chunk->sent_ns + t->newest_took_ns[kind] + reordering_ns;
    if (chunk->order < t->newest[1 - kind]) {
        const int64_t other = chunk->sent_ns + t->newest_took_ns[1 - kind] + timeout_ns;
        due = due < other ? due : other;
    }
    return due;
}

uint32_t flow_find_lost(flow_outbound *t, int64_t now_ns, int64_t reordering_ns, int64_t timeout_ns)
{
    uint32_t lost = 0;
    t->reorder_at_ns = FLOW_NEVER;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        const uint32_t list = under_way_list(t, kind);
        for (uint32_t index; (index = t->chunks[list].next) != list; lost++) {
            const int64_t at = due(t, &t->chunks[index], reordering_ns, timeout_ns);
            if (at > now_ns) {
                if (at < t->reorder_at_ns) t->reorder_at_ns = at;
                break;
            }
            lose(t, index);
        }
    }
    if (lost) t->undecided = 1;
    return lost;
}

/* How a run of chunks fared, of which some were under way. */
typedef struct {
    uint32_t under_way;
    uint64_t latest; /* of those sent once, the place of the last ... */
    int64_t took_ns; /* ... and how long it took; -1 without one */
} arrivals;

/* A chunk has arrived: refund what was missing, and learn how long it took. */
static void receive(flow_outbound *t, uint32_t index, int64_t now_ns, arrivals *got)
{
    flow_chunk *chunk = &t->chunks[index];
    if (chunk->state == CHUNK_UNDER_WAY) {
        const uint32_t kind = chunk->again;
        const int64_t elapsed = now_ns - chunk->sent_ns;
        got->under_way++;
        delist(t, index);
        if (chunk->order > t->newest[kind] && (kind == KIND_FIRST || elapsed >= t->least_ns)) {
            t->newest[kind] = chunk->order;
            t->newest_took_ns[kind] = elapsed;
        }
        if (kind == KIND_FIRST && chunk->order > got->latest) {
            got->latest = chunk->order;
            got->took_ns = elapsed;
        }
    } else if (chunk->state == CHUNK_TO_RESEND) {
        delist(t, index);
    } else if (chunk->state == CHUNK_MISSING) {
        t->missing[chunk->account] -= flow_chunk_lanes(t, index);
    }
    chunk->state = CHUNK_RECEIVED;
}

/* What `receive` had to say of a packet's chunks. */
static flow_progress arrived(flow_outbound *t, const arrivals *got, int congested)
{
    t->under_way -= got->under_way;
    if (got->took_ns >= 0 && (!t->least_ns || got->took_ns < t->least_ns)) t->least_ns = got->took_ns;
    return (flow_progress){got->under_way, congested ? got->under_way : 0, got->took_ns};
}

/* Ask again at once, as an answer came without its data, unless a later question is under way. */
static enum weir_flow_verdict answer_was_cut(flow_outbound *t, uint32_t answers)
{
    if (!answers || answers == t->probes) t->ask_at_once = 1;
    return FLOW_TRIMMED;
}

/* A probe was answered. How long that took if it waited as chunks do, else -1. */
static int64_t on_answer(flow_outbound *t, uint32_t number, int64_t now_ns)
{
    const uint32_t at = number % FLOW_REMEMBERED;
    if (t->asked[at].number != number) return -1;
    const uint32_t kind = t->asked[at].kind;
    const int64_t took = now_ns - t->asked[at].at_ns;
    if (t->asked[at].place > t->newest[kind]) {
        t->newest[kind] = t->asked[at].place;
        t->newest_took_ns[kind] = took;
    }
    return kind == KIND_FIRST ? took : -1;
}

/* Take in a part of the latest probe's answer; whether it was the last one. */
static int is_answered(flow_outbound *t, const flow_packet *p)
{
    if (!p->index || p->index != t->unanswered) return 0;
    if (p->first >= t->answer_first && (p->first - t->answer_first) % FLOW_SPAN == 0) {
        uint8_t *part = &t->parts[(p->first - t->answer_first) / FLOW_SPAN];
        t->parts_left -= *part;
        *part = 0;
    }
    if (t->parts_left) return 0;
    t->unanswered = 0;
    return 1;
}

enum weir_flow_verdict flow_on_bitmap(flow_outbound *t, const flow_packet *p, int64_t now_ns,
                                      flow_progress *progress)
{
    if (!p->bits) return answer_was_cut(t, p->index);
    flow_chunk *chunks = t->chunks + p->first;
    for (uint32_t i = 0; i < p->bits; i++)
        if (flow_bit(p->data, i) && chunks[i].state == CHUNK_UNSENT) return FLOW_BAD_BITMAP;
    if (p->flags & WEIR_FLAG_TRIMMED) {
        uint32_t lost = 0;
        for (uint32_t i = 0; i < p->bits; i++)
            /* A repeat is not given up by an old report of its first copy. */
            if (flow_bit(p->data, i) && chunks[i].state == CHUNK_UNDER_WAY && !chunks[i].again) {
                lose(t, p->first + i);
                lost++;
            }
        t->trimmed += lost;
        *progress = (flow_progress){lost, lost, -1};
        return FLOW_ACCEPTED;
    }
    arrivals got = {.took_ns = -1};
    for (uint32_t i = 0; i < p->bits; i++)
        if (flow_bit(p->data, i) && chunks[i].state != CHUNK_RECEIVED) receive(t, p->first + i, now_ns, &got);
    *progress = arrived(t, &got, p->flags & WEIR_FLAG_CONGESTED);
    if (is_answered(t, p)) {
        const int64_t took = on_answer(t, p->index, now_ns);
        if (progress->round_trip_ns < 0) progress->round_trip_ns = took;
    }
    return FLOW_ACCEPTED;
}

static int says_delivered(const flow_packet *p, uint32_t i) { return !p->bits || flow_bit(p->data, i); }

/* Whether the final word, with this part of it, loses more than an account has. */
static int overdraws(const flow_outbound *t, const flow_packet *p, uint32_t bits)
{
    uint64_t missing[FLOW_MAX_ACCOUNTS] = {0};
    for (uint32_t i = 0; i < t->head.count; i++) {
        const flow_chunk *chunk = &t->chunks[i];
        const int here = i >= p->first && i - p->first < bits;
        if (here ? says_delivered(p, i - p->first) : chunk->final) continue;
        missing[chunk->account] += flow_chunk_lanes(t, i);
    }
    for (uint32_t a = 0; a < t->account_count; a++)
        if (missing[a] > t->budgets[a]) return 1;
    return 0;
}

enum weir_flow_verdict flow_on_stop(flow_outbound *t, const flow_packet *p, int64_t now_ns,
                                    flow_progress *progress)
{
    if (p->flags & WEIR_FLAG_TRIMMED) return answer_was_cut(t, p->index);
    flow_chunk *chunks = t->chunks + p->first;
    const uint32_t bits = p->data ? p->bits : t->head.count;
    uint32_t covers = 0;
    for (uint32_t i = 0; i < bits; i++) {
        /* What it once had, it has; what was never sent, it cannot have. */
        if (chunks[i].state == (says_delivered(p, i) ? CHUNK_UNSENT : CHUNK_RECEIVED)) return FLOW_BAD_BITMAP;
        covers += !chunks[i].covered;
    }
    if (covers == t->uncovered && overdraws(t, p, bits)) return FLOW_BEYOND_BOUND;
    t->uncovered -= covers;
    arrivals got = {.took_ns = -1};
    for (uint32_t i = 0; i < bits; i++) {
        chunks[i].covered = 1;
        chunks[i].final = (uint8_t)says_delivered(p, i);
        if (chunks[i].final && chunks[i].state != CHUNK_RECEIVED) receive(t, p->first + i, now_ns, &got);
    }
    *progress = arrived(t, &got, p->flags & WEIR_FLAG_CONGESTED);
    return FLOW_ACCEPTED;
}
