/* SPDX-License-Identifier: Apache-2.0 */
#include "mux.h"

#include <stdlib.h>

typedef struct {
    uint32_t flow;
    uint64_t peer;
    weir_flow_sender *sender;
    weir_flow_receiver *receiver;
} served;

struct weir_flow_mux {
    served *flows; /* in order of turns: whose packet went last is last */
    uint32_t count, room;
    int ended; /* whether a packet that came had a tensor delivered or settled, since that was asked */
    uint64_t verdicts[FLOW_VERDICTS];
};

weir_flow_mux *weir_flow_mux_new(void) { return calloc(1, sizeof(weir_flow_mux)); }

void weir_flow_mux_free(weir_flow_mux *m)
{
    if (m) free(m->flows);
    free(m);
}

int weir_flow_mux_add(weir_flow_mux *m, uint32_t flow, uint64_t peer, weir_flow_sender *sender,
                      weir_flow_receiver *receiver)
{
    if (m->count == m->room) {
        const uint32_t room = 2 * m->room + 4;
        served *flows = realloc(m->flows, room * sizeof *flows);
        if (!flows) return -1;
        m->flows = flows;
        m->room = room;
    }
    m->flows[m->count++] = (served){flow, peer, sender, receiver};
    return 0;
}

static served *find(weir_flow_mux *m, uint32_t flow)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->flows[i].flow == flow) return &m->flows[i];
    return NULL;
}

static void take_out(weir_flow_mux *m, served *at)
{
    const uint32_t behind = m->count - 1 - (uint32_t)(at - m->flows);
    memmove(at, at + 1, behind * sizeof *at);
    m->count--;
}

void weir_flow_mux_remove(weir_flow_mux *m, uint32_t flow)
{
    served *at = find(m, flow);
    if (at) take_out(m, at);
}

enum weir_flow_verdict weir_flow_mux_receive(weir_flow_mux *m, const uint8_t *payload, uint32_t length,
                                             int64_t now_ns, uint8_t traffic_class, uint64_t peer)
{
    if (length < WEIR_FLOW_SIZE) {
        m->verdicts[FLOW_SHORT]++;
        return FLOW_SHORT;
    }
    const served *at = find(m, weir_get32(payload + WEIR_FLOW_FLOW_OFFSET));
    const enum weir_flow_verdict refusal = at ? FLOW_WRONG_SOURCE : FLOW_WRONG_FLOW;
    if (!at || at->peer != peer) {
        m->verdicts[refusal]++;
        return refusal;
    }
    const enum weir_flow_verdict verdict =
        at->sender ? weir_flow_sender_receive(at->sender, payload, length, now_ns)
                   : weir_flow_receiver_receive(at->receiver, payload, length, traffic_class);
    m->ended |= at->sender ? weir_flow_sender_has_settled(at->sender)
                           : weir_flow_receiver_has_delivered(at->receiver);
    return verdict;
}

int weir_flow_mux_ended(weir_flow_mux *m)
{
    const int ended = m->ended;
    m->ended = 0;
    return ended;
}

static int urgency(const served *at, int64_t now_ns)
{
    if (at->sender) return weir_flow_sender_urgency(at->sender, now_ns);
    return weir_flow_receiver_has_answer(at->receiver) ? (int)(WEIR_RELIABLE_DSCP >> 3) : -1;
}

static served *most_urgent(weir_flow_mux *m, int64_t now_ns, int *class)
{
    served *best = NULL;
    *class = -1;
    for (uint32_t i = 0; i < m->count; i++) {
        const int here = urgency(&m->flows[i], now_ns);
        if (here <= *class) continue;
        *class = here;
        best = &m->flows[i];
    }
    return best;
}

int weir_flow_mux_urgency(weir_flow_mux *m, int64_t now_ns)
{
    int class;
    most_urgent(m, now_ns, &class);
    return class;
}

uint32_t weir_flow_mux_next(weir_flow_mux *m, int64_t now_ns, uint8_t *out, uint8_t *traffic_class,
                            uint64_t *peer)
{
    int class;
    served *best = most_urgent(m, now_ns, &class);
    if (!best) return 0;
    const served chosen = *best;
    take_out(m, best);
    m->flows[m->count++] = chosen;
    *peer = chosen.peer;
    *traffic_class = WEIR_RELIABLE_DSCP << 2 | WEIR_ECT;
    return chosen.sender ? weir_flow_sender_next(chosen.sender, now_ns, out, traffic_class)
                         : weir_flow_receiver_next(chosen.receiver, out);
}

int64_t weir_flow_mux_deadline(const weir_flow_mux *m)
{
    int64_t earliest = FLOW_NEVER;
    for (uint32_t i = 0; i < m->count; i++) {
        const int64_t here = m->flows[i].sender ? weir_flow_sender_deadline(m->flows[i].sender) : FLOW_NEVER;
        if (here < earliest) earliest = here;
    }
    return earliest;
}

const uint64_t *weir_flow_mux_verdicts(const weir_flow_mux *m) { return m->verdicts; }
