/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor on its way in: what arrived of it, and what to tell its sender.
 *
 * The receiver decides once, when nothing is on its way any more: what is missing then is forgiven if the terms
 * allow it, account by account, and from then on nothing changes. */
#ifndef WEIR_FLOW_INBOUND_H
#define WEIR_FLOW_INBOUND_H

#include "flow.h"
#include "queue.h"

typedef struct flow_inbound {
    flow_head head;
    uint32_t chunk_lanes, last_lanes; /* last_lanes: of the last chunk, once known */
    uint32_t *values;                 /* NULL once delivered */
    uint8_t *came, *accounted,
        *cut; /* per chunk; accounted: came, or known to be lost; cut: trimmed, not told */
    uint32_t left, unaccounted, cuts, cut_low; /* cut_low: none below is cut */
    uint32_t low, high; /* from the first to behind the last that came and was not told of */
    uint64_t came_lanes[FLOW_MAX_ACCOUNTS];
    int64_t came_sum;
    uint32_t term_count; /* 0: not known */
    uint64_t totals[FLOW_MAX_ACCOUNTS], budgets[FLOW_MAX_ACCOUNTS];
    double max_loss;
    uint8_t early_stop;
    uint8_t congested; /* the latest chunk met congestion; so did all those not told of yet */
    uint8_t say_stop;  /* the final word must be told */
    uint8_t stopped, confirmed;
    uint8_t has_news; /* it is in its receiver's list of those that have something to tell */
} flow_inbound;

/* NULL without memory. */
flow_inbound *flow_inbound_new(const weir_flow_config *config, const flow_packet *packet);
void flow_inbound_free(flow_inbound *t);

/* Take in a chunk; what has to be told at once goes to `answers`. */
enum weir_flow_verdict flow_on_chunk(flow_inbound *t, const flow_packet *p, int congested,
                                     flow_queue *answers);

/* Answer a probe: with the final word if there is nothing to wait for, else with what arrived. */
enum weir_flow_verdict flow_on_probe(flow_inbound *t, const flow_packet *p, int congested,
                                     flow_queue *answers);

/* Whether there is something to tell unasked, and to tell it. */
int flow_inbound_has_news(const flow_inbound *t);
void flow_inbound_tell(flow_inbound *t, flow_queue *answers);

#endif
