/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of a flow. It keeps no timers: it only answers. */
#include <stdlib.h>

#include "flow.h"
#include "inbound.h"

/* A delivery that nobody has taken yet. */
typedef struct delivery {
    struct delivery *later;
    weir_flow_delivered result;
    uint64_t missing[FLOW_MAX_ACCOUNTS], budgets[FLOW_MAX_ACCOUNTS];
    uint8_t came[];
} delivery;

struct weir_flow_receiver {
    weir_flow_config config;
    weir_flow_receiver_counts counts;
    uint64_t verdicts[FLOW_VERDICTS];
    flow_inbound *
        *tensors;        /* tensor `number` at number % open_tensors; none is older than `highest` allows */
    flow_inbound **news; /* those that have something to tell */
    uint32_t news_count;
    uint32_t highest, lowest; /* greatest number seen; every tensor below `lowest` is stopped */
    flow_queue answers;
    delivery *delivered, *taken; /* `taken`: what the caller was told of last */
};

weir_flow_receiver *weir_flow_receiver_new(const weir_flow_config *config)
{
    weir_flow_receiver *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->config = *config;
    r->lowest = 1;
    r->tensors = calloc(config->open_tensors, sizeof *r->tensors);
    r->news = calloc(config->open_tensors, sizeof *r->news);
    if (r->tensors && r->news) return r;
    weir_flow_receiver_free(r);
    return NULL;
}

void weir_flow_receiver_free(weir_flow_receiver *r)
{
    if (!r) return;
    for (uint32_t i = 0; r->tensors && i < r->config.open_tensors; i++) flow_inbound_free(r->tensors[i]);
    for (delivery *done = r->delivered, *later; done; done = later) {
        later = done->later;
        free(done->result.values);
        free(done);
    }
    free(r->taken);
    free(r->answers.bytes);
    free(r->tensors);
    free(r->news);
    free(r);
}

static flow_inbound *find(const weir_flow_receiver *r, uint32_t number)
{
    flow_inbound *t = r->tensors[number % r->config.open_tensors];
    return t && t->head.tensor == number ? t : NULL;
}

static void drop_news(weir_flow_receiver *r, const flow_inbound *t)
{
    for (uint32_t i = 0; i < r->news_count; i++)
        if (r->news[i] == t) {
            memmove(r->news + i, r->news + i + 1, (--r->news_count - i) * sizeof *r->news);
            return;
        }
}

/* Remember a tensor, and forget those whose end its sender must know by now. */
static void keep(weir_flow_receiver *r, flow_inbound *t)
{
    const uint32_t span = r->config.open_tensors;
    if (t->head.tensor > r->highest) r->highest = t->head.tensor;
    for (uint32_t i = 0; i < span; i++) {
        flow_inbound *old = r->tensors[i];
        if (!old || r->highest - old->head.tensor < span) continue;
        r->tensors[i] = NULL;
        drop_news(r, old);
        flow_inbound_free(old);
    }
    r->tensors[t->head.tensor % span] = t;
}

/* Hand a stopped tensor to anyone who asks for deliveries; -1 without memory. */
static int deliver(weir_flow_receiver *r, flow_inbound *t)
{
    delivery *done = calloc(1, sizeof *done + t->head.count);
    if (!done) return -1;
    weir_flow_delivered *d = &done->result;
    *d = (weir_flow_delivered){.values = t->values,
                               .came = done->came,
                               .missing = done->missing,
                               .budgets = done->budgets,
                               .number = t->head.tensor,
                               .layer = t->head.layer,
                               .lanes = (t->head.count - 1) * t->chunk_lanes + t->last_lanes,
                               .count = t->head.count,
                               .account_count = t->left ? t->term_count : 0,
                               .came_sum = t->came_sum};
    memcpy(done->came, t->came, t->head.count);
    memcpy(done->budgets, t->budgets, sizeof done->budgets);
    for (uint32_t a = 0; a < FLOW_MAX_ACCOUNTS; a++) {
        d->came_lanes += t->came_lanes[a];
        done->missing[a] = t->totals[a] - t->came_lanes[a];
    }
    t->values = NULL;
    delivery **last = &r->delivered;
    while (*last) last = &(*last)->later;
    *last = done;
    for (flow_inbound *lowest; (lowest = find(r, r->lowest)) && lowest->stopped;) r->lowest++;
    return 0;
}

static enum weir_flow_verdict on_confirmation(flow_inbound *t)
{
    if (!t || !t->stopped) return FLOW_BAD_TENSOR;
    const enum weir_flow_verdict verdict = t->confirmed ? FLOW_DUPLICATE : FLOW_ACCEPTED;
    t->confirmed = 1;
    return verdict;
}

static enum weir_flow_verdict take_in(weir_flow_receiver *r, const flow_packet *p, int congested)
{
    const uint32_t span = r->config.open_tensors;
    if (p->flow != r->config.flow) return FLOW_WRONG_FLOW;
    if (p->worker != r->config.worker) return FLOW_WRONG_WORKER;
    if (p->kind == WEIR_FLOW_BITMAP) return FLOW_WRONG_DIRECTION;
    if ((uint64_t)p->tensor + span <= r->highest) return FLOW_LATE;
    if (p->tensor >= (uint64_t)r->lowest + span) return FLOW_BAD_TENSOR;
    flow_inbound *t = find(r, p->tensor);
    if (t && p->count != t->head.count) return FLOW_BAD_COUNT;
    if (t && p->layer != t->head.layer) return FLOW_BAD_CLASS;
    if (p->kind == WEIR_FLOW_STOP) return on_confirmation(t);
    const int begins = !t;
    if (begins) {
        if ((uint64_t)(p->count - 1) * r->config.chunk_lanes >= r->config.max_lanes) return FLOW_BAD_COUNT;
        if (!(t = flow_inbound_new(&r->config, p))) return FLOW_BAD_COUNT; /* more than there is memory for */
    }
    const enum weir_flow_verdict verdict = p->kind == WEIR_FLOW_CHUNK
                                               ? flow_on_chunk(t, p, congested, &r->answers)
                                               : flow_on_probe(t, p, congested, &r->answers);
    if (verdict >= FLOW_SHORT) {
        if (begins) flow_inbound_free(t);
        return verdict;
    }
    r->counts.marked += p->kind == WEIR_FLOW_CHUNK && congested && verdict == FLOW_ACCEPTED;
    if (begins) keep(r, t);
    if (flow_inbound_has_news(t) && !t->has_news) {
        t->has_news = 1;
        r->news[r->news_count++] = t;
    }
    if (t->stopped && t->values) deliver(r, t);
    return verdict;
}

enum weir_flow_verdict weir_flow_receiver_receive(weir_flow_receiver *r, const uint8_t *payload,
                                                  uint32_t length, uint8_t traffic_class)
{
    flow_packet packet;
    enum weir_flow_verdict verdict = flow_decode(payload, length, &packet);
    if (verdict == FLOW_ACCEPTED) verdict = take_in(r, &packet, (traffic_class & 3) == WEIR_CE);
    r->verdicts[verdict]++;
    return verdict;
}

/* Tell the news there are, now that they can go out: packets that came together get one answer. */
int weir_flow_receiver_has_answer(weir_flow_receiver *r)
{
    while (r->news_count && flow_queue_empty(&r->answers)) {
        flow_inbound *t = r->news[--r->news_count];
        t->has_news = 0;
        flow_inbound_tell(t, &r->answers);
    }
    return !flow_queue_empty(&r->answers);
}

uint32_t weir_flow_receiver_next(weir_flow_receiver *r, uint8_t *out)
{
    if (!weir_flow_receiver_has_answer(r)) return 0;
    const uint32_t length = flow_queue_take(&r->answers, out);
    r->counts.packets++;
    r->counts.bytes += length;
    return length;
}

int weir_flow_receiver_is_settled(weir_flow_receiver *r)
{
    for (uint32_t i = 0; i < r->config.open_tensors; i++)
        if (r->tensors[i] && !r->tensors[i]->confirmed) return 0;
    return flow_queue_empty(&r->answers);
}

int weir_flow_receiver_has_delivered(const weir_flow_receiver *r) { return r->delivered != NULL; }

int weir_flow_receiver_delivered(weir_flow_receiver *r, weir_flow_delivered *out)
{
    delivery *done = r->delivered;
    free(r->taken);
    r->taken = done;
    if (!done) return 0;
    r->delivered = done->later;
    *out = done->result;
    return 1;
}

const weir_flow_receiver_counts *weir_flow_receiver_counted(const weir_flow_receiver *r)
{
    return &r->counts;
}

const uint64_t *weir_flow_receiver_verdicts(const weir_flow_receiver *r) { return r->verdicts; }

void weir_flow_free(void *values) { free(values); }
