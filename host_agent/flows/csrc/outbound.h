/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor on its way out: the state of each chunk, and what its accounts can still do without.
 *
 * Of every account, missing <= budget always holds; the receiver sees to it that no more is given up. */
#ifndef WEIR_FLOW_OUTBOUND_H
#define WEIR_FLOW_OUTBOUND_H

#include "flow.h"

/* State of a chunk, as far as its sender knows. MISSING: lost, and its account can do without it. */
enum { CHUNK_UNSENT, CHUNK_UNDER_WAY, CHUNK_RECEIVED, CHUNK_MISSING, CHUNK_TO_RESEND };

/* Packets of one kind wait in one queue, and so tell of each other what is lost. */
enum { KIND_FIRST, KIND_REPEAT, KINDS };

enum { FLOW_REMEMBERED = 64 }; /* probes whose answers still tell what is lost; of older ones, what came */

typedef struct {
    int64_t sent_ns;         /* time of the latest copy ... */
    uint64_t order;          /* ... and its place among all packets of the tensor */
    uint32_t previous, next; /* in its list, if it is in one */
    uint8_t state, again, magnitude, account, droppable;
    uint8_t final, covered; /* whether it was delivered, and whether the receiver said so or not */
} flow_chunk;

typedef struct flow_outbound {
    flow_head head;
    uint32_t lanes, chunk_lanes, account_count, budgeted; /* budgeted: something may be missing */
    const uint32_t *values;
    flow_chunk
        *chunks; /* and behind them, the heads of three lists: under way, of each kind, and to resend */
    uint64_t totals[FLOW_MAX_ACCOUNTS], budgets[FLOW_MAX_ACCOUNTS], missing[FLOW_MAX_ACCOUNTS];

    uint32_t next, low; /* first chunk never sent; none below is not received */
    uint32_t under_way;
    uint64_t orders,
        newest[KINDS]; /* newest: the latest packet known to have arrived, and how long it took */
    int64_t newest_took_ns[KINDS], least_ns, reorder_at_ns, sent_at_ns, began_ns, deadline_ns;
    uint32_t probes, unanswered; /* unanswered: number of the latest probe while its answer is not whole */
    uint32_t answer_first, parts_left;
    uint8_t *parts; /* of that answer, which are lacking */
    struct {
        uint32_t number, kind;
        uint64_t place;
        int64_t at_ns;
    } asked[FLOW_REMEMBERED];
    uint32_t uncovered; /* chunks of whose delivery the receiver's final word has not told yet */
    uint8_t undecided;  /* chunks were given up of which the receiver may not know */
    uint8_t ask_at_once, is_open;
    uint32_t timeouts_in_a_row, timeouts, resent, trimmed;

    struct flow_outbound *later; /* in a sender's list of tensors */
} flow_outbound;

/* What a packet made known: chunks whose fate was open, those of them that met congestion, and how long one took
 * (-1: nothing known). */
typedef struct {
    uint32_t settled, marked;
    int64_t round_trip_ns;
} flow_progress;

/* NULL without memory. */
flow_outbound *flow_outbound_new(const weir_flow_config *config, const weir_flow_tensor *tensor);
void flow_outbound_free(flow_outbound *t);

static inline uint32_t flow_chunk_lanes(const flow_outbound *t, uint32_t index)
{
    return index + 1 < t->head.count ? t->chunk_lanes : t->lanes - index * t->chunk_lanes;
}

static inline int flow_unsent(const flow_outbound *t) { return t->next < t->head.count; }

int flow_to_resend(const flow_outbound *t);

/* Whether the receiver has to say something before this can go on; otherwise it waits for its turn. */
int flow_awaits_answer(const flow_outbound *t);

/* Whether only the receiver's word is missing, and it may not know that it is its turn. */
int flow_must_decide(const flow_outbound *t);

/* Write the next chunk never sent, or the next one to be sent again. Returns its length, and the chunk. */
uint32_t flow_send_chunk(flow_outbound *t, int again, int64_t now_ns, uint8_t *out, const flow_chunk **chunk);

/* Write a probe about every chunk sent that is not known to have arrived. `timeout_ns`: for how long one may be
 * on its way when what was sent after it has arrived. */
uint32_t flow_ask(flow_outbound *t, int64_t now_ns, int64_t timeout_ns, uint32_t kind, uint8_t *out);

/* Take for lost what was sent well before something that has arrived, as RACK does (RFC 8985); returns how many
 * chunks. Only packets of one kind take the same way: what came of the other says something after the timeout. */
uint32_t flow_find_lost(flow_outbound *t, int64_t now_ns, int64_t reordering_ns, int64_t timeout_ns);

/* Take in what the receiver has. Whatever its age, it can only tell more. */
enum weir_flow_verdict flow_on_bitmap(flow_outbound *t, const flow_packet *p, int64_t now_ns,
                                      flow_progress *progress);

/* Take in a part of the receiver's final word, whole when `uncovered` is 0. */
enum weir_flow_verdict flow_on_stop(flow_outbound *t, const flow_packet *p, int64_t now_ns,
                                    flow_progress *progress);

#endif
