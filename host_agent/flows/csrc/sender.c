/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of a flow: which packet goes next, and what answers mean. */
#include <stdlib.h>

#include "flow.h"
#include "outbound.h"
#include "queue.h"
#include "rtt.h"
#include "window.h"

/* Questions in a row without an answer that count as silence: a machine may be busy for one or two. */
enum { SILENCE = 3 };

enum { MAX_WINDOW = 1 << 16 };

typedef enum { NOTHING, CONTROL, TIMER, ASK, RESEND, CHUNK } step;

/* A settlement that nobody has taken yet. */
typedef struct settlement {
    struct settlement *later;
    weir_flow_settled result;
    uint64_t missing[FLOW_MAX_ACCOUNTS], budgets[FLOW_MAX_ACCOUNTS];
    uint8_t delivered[];
} settlement;

struct weir_flow_sender {
    weir_flow_config config;
    weir_flow_sender_counts counts;
    uint64_t verdicts[FLOW_VERDICTS];
    weir_estimate rtt;
    weir_window window;     /* in chunks: those that were marked, trimmed or lost met congestion */
    flow_outbound *tensors; /* submitted, not settled, by number */
    flow_outbound **open;   /* those under way, in order of urgency: layer, number */
    uint32_t open_count, tensor_count;
    uint32_t lowest; /* every tensor below is settled */
    uint8_t *ended;  /* tensor `number` from there on, at number % open_tensors */
    flow_queue control;
    settlement *settled, *taken; /* `taken`: what the caller was told of last */
    int64_t silent_until_ns;     /* before then, further silence is the same silence */

    /* What to send next, while nothing has happened since (`fresh`), and no deadline has come. */
    int fresh;
    step step;
    uint8_t code; /* its DSCP */
    flow_outbound *chosen;
    int64_t earliest_ns;
};

/* ----------------------------------------------------------------------------------------------- life */

weir_flow_sender *weir_flow_sender_new(const weir_flow_config *config)
{
    weir_flow_sender *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->config = *config;
    s->lowest = 1;
    s->rtt = (weir_estimate){.timeout_ns = config->initial_rto_ns,
                             .most_ns = config->max_rto_ns,
                             .margin_ns = config->min_probe_ns,
                             .margin_part = 4};
    const uint32_t first = config->first_window < MAX_WINDOW ? config->first_window : MAX_WINDOW;
    weir_window_init(&s->window, 1, first, MAX_WINDOW, config->congestion != 0);
    s->open = calloc(config->open_tensors, sizeof *s->open);
    s->ended = calloc(config->open_tensors, 1);
    if (s->open && s->ended) return s;
    weir_flow_sender_free(s);
    return NULL;
}

void weir_flow_sender_free(weir_flow_sender *s)
{
    if (!s) return;
    for (flow_outbound *t = s->tensors, *later; t; t = later) {
        later = t->later;
        flow_outbound_free(t);
    }
    for (settlement *done = s->settled, *later; done; done = later) {
        later = done->later;
        free(done);
    }
    free(s->taken);
    free(s->control.bytes);
    free(s->open);
    free(s->ended);
    free(s);
}

/* -------------------------------------------------------------------------------------------- tensors */

static int may_open(const weir_flow_sender *s, uint32_t number)
{
    return number - s->lowest < s->config.open_tensors;
}

static void open_tensor(weir_flow_sender *s, flow_outbound *t)
{
    uint32_t place = s->open_count++;
    for (; place; place--) {
        const flow_head *before = &s->open[place - 1]->head;
        if (before->layer < t->head.layer ||
            (before->layer == t->head.layer && before->tensor < t->head.tensor))
            break;
        s->open[place] = s->open[place - 1];
    }
    s->open[place] = t;
    t->is_open = 1;
}

/* Open what the receiver can remember: this many tensors from the lowest that is not settled. */
static void open_more(weir_flow_sender *s)
{
    for (flow_outbound *t = s->tensors; t && may_open(s, t->head.tensor); t = t->later)
        if (!t->is_open) open_tensor(s, t);
}

int weir_flow_sender_knows(const weir_flow_sender *s, uint32_t number)
{
    if (number < s->lowest) return 1;
    if (may_open(s, number) && s->ended[number % s->config.open_tensors]) return 1;
    for (const flow_outbound *t = s->tensors; t && t->head.tensor <= number; t = t->later)
        if (t->head.tensor == number) return 1;
    return 0;
}

int weir_flow_sender_submit(weir_flow_sender *s, const weir_flow_tensor *tensor)
{
    flow_outbound *t = flow_outbound_new(&s->config, tensor);
    if (!t) return -1;
    flow_outbound **at = &s->tensors;
    while (*at && (*at)->head.tensor < tensor->number) at = &(*at)->later;
    t->later = *at;
    *at = t;
    s->tensor_count++;
    s->fresh = 0;
    open_more(s);
    return 0;
}

uint32_t weir_flow_sender_waiting(const weir_flow_sender *s, uint32_t *numbers, uint32_t most)
{
    uint32_t n = 0;
    for (const flow_outbound *t = s->tensors; t && n < most; t = t->later) numbers[n++] = t->head.tensor;
    return s->tensor_count;
}

int weir_flow_sender_idle(const weir_flow_sender *s) { return !s->tensors && flow_queue_empty(&s->control); }

/* ------------------------------------------------------------------------------------------- time-outs */

/* How long to wait before asking, after this many questions in a row without an answer. */
static int64_t timeout_ns(const weir_flow_sender *s, uint32_t backoff)
{
    return weir_backed_off(s->rtt.timeout_ns, backoff, s->rtt.most_ns);
}

/* For how long a packet may be overtaken, on a slower path, by packets sent after it. */
static int64_t early_ns(const weir_flow_sender *s)
{
    return s->rtt.mean_ns ? s->rtt.mean_ns + 2 * s->rtt.deviation_ns : s->rtt.timeout_ns;
}

/* How much later than others, sent after it, a packet may come that takes the same way. */
static int64_t reordering_ns(const weir_flow_sender *s) { return s->rtt.mean_ns / 2 + s->rtt.deviation_ns; }

int64_t weir_flow_sender_deadline(const weir_flow_sender *s)
{
    int64_t earliest = FLOW_NEVER;
    for (uint32_t i = 0; i < s->open_count; i++) {
        const flow_outbound *t = s->open[i];
        if (t->deadline_ns < earliest) earliest = t->deadline_ns;
        if (t->reorder_at_ns < earliest) earliest = t->reorder_at_ns;
    }
    return earliest;
}

/* Give up or repeat what others have overtaken. A loss is congestion, as far as one can know. */
static void find_lost(weir_flow_sender *s, flow_outbound *t, int64_t now_ns)
{
    const uint32_t lost = flow_find_lost(t, now_ns, reordering_ns(s), early_ns(s));
    if (lost) weir_window_results(&s->window, lost, lost);
}

static void count_silence(weir_flow_sender *s, flow_outbound *t, int64_t now_ns)
{
    t->timeouts++;
    t->timeouts_in_a_row++;
    s->counts.timeouts++;
    if (t->timeouts_in_a_row >= SILENCE && now_ns >= s->silent_until_ns) {
        weir_window_observe(&s->window); /* nothing else ends an observation now */
        weir_window_silence(&s->window);
        s->silent_until_ns = now_ns + timeout_ns(s, t->timeouts_in_a_row);
    }
}

/* --------------------------------------------------------------------------------------------- sending */

static uint8_t layer_code(const flow_outbound *t, uint32_t magnitude)
{
    return (uint8_t)((WEIR_LAYER_CLASSES - t->head.layer) << 3 | (WEIR_MAGNITUDE_CLASSES - magnitude) << 1);
}

static void choose(weir_flow_sender *s, step step, flow_outbound *t, uint8_t code)
{
    s->step = step;
    s->chosen = t;
    s->code = code;
}

/* Find a question that is due. */
static int choose_question(weir_flow_sender *s, int64_t now_ns)
{
    for (uint32_t i = 0; i < s->open_count; i++) {
        flow_outbound *t = s->open[i];
        if (t->reorder_at_ns <= now_ns) find_lost(s, t, now_ns);
        if (t->ask_at_once || flow_must_decide(t)) {
            choose(s, ASK, t, WEIR_RELIABLE_DSCP);
            return 1;
        }
        if (t->deadline_ns <= now_ns) {
            /* A question rides behind the chunks, so that it finds all that was only slow. One that is not
             * answered was dropped there, so a short queue would drop the next one, too. */
            const int resending = !flow_unsent(t) && t->resent;
            const int behind = !resending && !t->unanswered;
            choose(s, t->unanswered ? TIMER : ASK, t,
                   behind ? layer_code(t, WEIR_MAGNITUDE_CLASSES - 1) : WEIR_RELIABLE_DSCP);
            return 1;
        }
    }
    return 0;
}

/* Find a chunk that may go. */
static int choose_chunk(weir_flow_sender *s)
{
    uint64_t under_way = 0;
    for (uint32_t i = 0; i < s->open_count; i++) under_way += s->open[i]->under_way;
    const int room = under_way < s->window.limit;
    for (uint32_t i = 0; i < s->open_count && room; i++)
        if (flow_to_resend(s->open[i])) {
            choose(s, RESEND, s->open[i], WEIR_RELIABLE_DSCP);
            return 1;
        }
    for (uint32_t i = 0; i < s->open_count; i++) {
        flow_outbound *t = s->open[i];
        if (!room && (flow_unsent(t) || flow_to_resend(t))) {
            s->window.limited = 1;
            return 0;
        }
        if (flow_unsent(t)) {
            if (t->budgeted && !t->probes) /* the receiver cannot decide without its terms */
                choose(s, ASK, t, WEIR_RELIABLE_DSCP);
            else
                choose(s, CHUNK, t, layer_code(t, WEIR_MAGNITUDE_CLASSES - 1));
            return 1;
        }
    }
    return 0;
}

static void find(weir_flow_sender *s, int64_t now_ns)
{
    if (s->fresh && s->earliest_ns > now_ns) return;
    if (!flow_queue_empty(&s->control))
        choose(s, CONTROL, NULL, WEIR_RELIABLE_DSCP);
    else if (!choose_question(s, now_ns) && !choose_chunk(s))
        choose(s, NOTHING, NULL, 0);
    s->earliest_ns = weir_flow_sender_deadline(s);
    s->fresh = 1;
}

int weir_flow_sender_urgency(weir_flow_sender *s, int64_t now_ns)
{
    find(s, now_ns);
    return s->step == NOTHING ? -1 : s->code >> 3;
}

uint32_t weir_flow_sender_next(weir_flow_sender *s, int64_t now_ns, uint8_t *out, uint8_t *traffic_class)
{
    find(s, now_ns);
    if (s->step == NOTHING) return 0;
    flow_outbound *t = s->chosen;
    const flow_chunk *chunk;
    uint32_t length;
    uint8_t ecn = WEIR_ECT;
    s->fresh = 0;
    if (s->step == CONTROL) {
        length = flow_queue_take(&s->control, out);
    } else if (s->step == ASK || s->step == TIMER) {
        if (s->step == TIMER) count_silence(s, t, now_ns);
        const uint32_t kind = s->code == WEIR_RELIABLE_DSCP ? KIND_REPEAT : KIND_FIRST;
        length = flow_ask(t, now_ns, early_ns(s), kind, out);
        t->deadline_ns = now_ns + timeout_ns(s, t->timeouts_in_a_row);
        s->counts.probes++;
    } else {
        length = flow_send_chunk(t, s->step == RESEND, now_ns, out, &chunk);
        if (t->began_ns < 0) t->began_ns = now_ns;
        t->deadline_ns = now_ns + timeout_ns(s, t->timeouts_in_a_row);
        s->counts.chunks++;
        s->counts.resent += s->step == RESEND;
        if (s->step == CHUNK && chunk->droppable) {
            s->code = layer_code(t, chunk->magnitude);
            ecn = WEIR_NOT_ECT;
            s->counts.droppable++;
        }
    }
    s->counts.packets++;
    s->counts.bytes += length;
    *traffic_class = (uint8_t)(s->code << 2 | ecn);
    return length;
}

/* --------------------------------------------------------------------------------------------- answers */

static void confirm(weir_flow_sender *s, const flow_head *head, uint32_t magnitude, uint32_t answers)
{
    uint8_t *out = flow_queue_add(&s->control, WEIR_FLOW_SIZE);
    if (out) flow_write_header(out, head, WEIR_FLOW_STOP, WEIR_FLAG_PROTECTED, magnitude, answers, 0);
}

/* Note how a tensor ended; -1 without memory. */
static int note(weir_flow_sender *s, const flow_outbound *t, int64_t now_ns)
{
    settlement *done = calloc(1, sizeof *done + t->head.count);
    if (!done) return -1;
    memcpy(done->budgets, t->budgets, sizeof done->budgets);
    weir_flow_settled *r = &done->result;
    *r = (weir_flow_settled){.delivered = done->delivered,
                             .missing = done->missing,
                             .budgets = done->budgets,
                             .number = t->head.tensor,
                             .layer = t->head.layer,
                             .count = t->head.count,
                             .account_count = t->account_count,
                             .resent = t->resent,
                             .trimmed = t->trimmed,
                             .probes = t->probes,
                             .timeouts = t->timeouts,
                             .entered_sum = (int64_t)weir_lanes_sum(t->values, t->lanes),
                             .began_ns = t->began_ns < 0 ? now_ns : t->began_ns,
                             .ended_ns = now_ns};
    for (uint32_t i = 0; i < t->head.count; i++) {
        const flow_chunk *chunk = &t->chunks[i];
        const uint32_t lanes = flow_chunk_lanes(t, i);
        const int64_t sum = (int64_t)weir_lanes_sum(t->values + (size_t)i * t->chunk_lanes, lanes);
        done->delivered[i] = chunk->final;
        if (chunk->final) {
            r->kept_lanes += lanes;
            r->kept_sum += sum;
        } else {
            r->returned_lanes += lanes;
            r->returned_sum += sum;
            done->missing[chunk->account] += lanes;
        }
    }
    settlement **last = &s->settled;
    while (*last) last = &(*last)->later;
    *last = done;
    return 0;
}

static void settle(weir_flow_sender *s, flow_outbound *t, uint32_t answers)
{
    s->counts.trimmed += t->trimmed;
    confirm(s, &t->head, 0, answers);
    flow_outbound **at = &s->tensors;
    while (*at != t) at = &(*at)->later;
    *at = t->later;
    s->tensor_count--;
    uint32_t place = 0;
    while (s->open[place] != t) place++;
    memmove(s->open + place, s->open + place + 1, (--s->open_count - place) * sizeof *s->open);
    const uint32_t span = s->config.open_tensors;
    s->ended[t->head.tensor % span] = 1;
    for (; s->ended[s->lowest % span]; s->lowest++) s->ended[s->lowest % span] = 0;
    flow_outbound_free(t);
    open_more(s);
}

static flow_outbound *find_open(const weir_flow_sender *s, uint32_t number)
{
    for (uint32_t i = 0; i < s->open_count; i++)
        if (s->open[i]->head.tensor == number) return s->open[i];
    return NULL;
}

/* Take in an answer about a tensor under way. */
static enum weir_flow_verdict take_answer(weir_flow_sender *s, flow_outbound *t, const flow_packet *p,
                                          int64_t now_ns)
{
    flow_progress got = {.round_trip_ns = -1};
    const enum weir_flow_verdict verdict =
        p->kind == WEIR_FLOW_BITMAP ? flow_on_bitmap(t, p, now_ns, &got) : flow_on_stop(t, p, now_ns, &got);
    if (verdict >= FLOW_SHORT) return verdict;
    const int stopped = verdict == FLOW_ACCEPTED && !t->uncovered;
    if (stopped && note(s, t, now_ns) < 0)
        return FLOW_DUPLICATE; /* without memory: it is asked about again */
    if (got.round_trip_ns >= 0) weir_estimate_sample(&s->rtt, got.round_trip_ns);
    t->timeouts_in_a_row = 0;
    t->deadline_ns = flow_awaits_answer(t) ? now_ns + timeout_ns(s, 0) : FLOW_NEVER;
    if (verdict != FLOW_ACCEPTED) return verdict;
    if (stopped) {
        got.settled += t->under_way;
        settle(s, t, p->index);
    } else {
        find_lost(s, t, now_ns);
    }
    s->counts.marked += got.marked;
    if (!got.settled) return stopped ? FLOW_ACCEPTED : FLOW_DUPLICATE;
    weir_window_results(&s->window, got.settled, got.marked);
    return FLOW_ACCEPTED;
}

static enum weir_flow_verdict take_in(weir_flow_sender *s, const flow_packet *p, int64_t now_ns)
{
    if (p->flow != s->config.flow) return FLOW_WRONG_FLOW;
    if (p->worker != s->config.worker) return FLOW_WRONG_WORKER;
    if (p->kind != WEIR_FLOW_BITMAP && p->kind != WEIR_FLOW_STOP) return FLOW_WRONG_DIRECTION;
    if (p->tensor < s->lowest || (may_open(s, p->tensor) && s->ended[p->tensor % s->config.open_tensors])) {
        if (p->kind == WEIR_FLOW_STOP) { /* the receiver does not know that its word came */
            const flow_head head = {p->flow, p->tensor, p->count, p->worker, p->layer};
            confirm(s, &head, p->magnitude, p->index);
        }
        return FLOW_LATE;
    }
    flow_outbound *t = find_open(s, p->tensor);
    if (!t) return FLOW_BAD_TENSOR;
    if (p->count != t->head.count) return FLOW_BAD_COUNT;
    if (p->layer != t->head.layer) return FLOW_BAD_CLASS;
    if (p->index > t->probes) return FLOW_BAD_INDEX;
    return take_answer(s, t, p, now_ns);
}

enum weir_flow_verdict weir_flow_sender_receive(weir_flow_sender *s, const uint8_t *payload, uint32_t length,
                                                int64_t now_ns)
{
    flow_packet packet;
    enum weir_flow_verdict verdict = flow_decode(payload, length, &packet);
    if (verdict == FLOW_ACCEPTED) verdict = take_in(s, &packet, now_ns);
    s->fresh = 0;
    s->verdicts[verdict]++;
    return verdict;
}

/* -------------------------------------------------------------------------------------------- reporting */

int weir_flow_sender_has_settled(const weir_flow_sender *s) { return s->settled != NULL; }

int weir_flow_sender_settled(weir_flow_sender *s, weir_flow_settled *out)
{
    settlement *done = s->settled;
    free(s->taken);
    s->taken = done;
    if (!done) return 0;
    s->settled = done->later;
    *out = done->result;
    return 1;
}

const weir_flow_sender_counts *weir_flow_sender_counted(const weir_flow_sender *s) { return &s->counts; }

const uint64_t *weir_flow_sender_verdicts(const weir_flow_sender *s) { return s->verdicts; }

uint32_t weir_flow_sender_window(const weir_flow_sender *s, uint32_t *shrunk)
{
    *shrunk = s->window.cuts;
    return s->window.limit;
}
