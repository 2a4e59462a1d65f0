/* SPDX-License-Identifier: Apache-2.0 */
/* Flows without I/O: tensors from a sender to a receiver, of which a bounded part may go missing (flows.md).
 * A sender or a receiver is for one thread at a time. Times are nanoseconds of any one monotonic clock. */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include <stdint.h>

#include "packet.h"

static const int64_t FLOW_NEVER = INT64_MAX;

/* Mirrored by weir.host_agent.flows.native.Config. */
typedef struct {
    uint32_t flow, worker, chunk_lanes, open_tensors, max_lanes, early_stop, congestion, first_window;
    int64_t initial_rto_ns, min_probe_ns, max_rto_ns;
    double max_loss;
} weir_flow_config;

/* A tensor to send: values stay where they are until it is settled, the rest is copied. Per chunk: magnitude
 * class, account, and whether a switch may trim it; NULL: all 0. Per account: how many lanes need not arrive.
 * Mirrored by weir.host_agent.flows.native.Tensor. */
typedef struct {
    const uint32_t *values;
    const uint8_t *magnitudes, *accounts, *droppable;
    const uint32_t *budgets;
    uint32_t number, lanes, layer, account_count;
} weir_flow_tensor;

/* Mirrored by weir.host_agent.flows.native.SenderCounts; `bytes` are those of payloads. */
typedef struct {
    uint64_t packets, bytes, chunks, droppable, resent, probes, timeouts, trimmed, marked;
} weir_flow_sender_counts;

/* Mirrored by weir.host_agent.flows.native.ReceiverCounts. */
typedef struct {
    uint64_t packets, bytes, marked;
} weir_flow_receiver_counts;

/* A tensor that was settled. `delivered`: a byte per chunk; missing, budgets: lanes per account. All three until
 * the next is taken. Mirrored by weir.host_agent.flows.native.Settled. */
typedef struct {
    const uint8_t *delivered;
    const uint64_t *missing, *budgets;
    uint32_t number, layer, count, account_count;
    uint32_t resent, trimmed, probes, timeouts;
    uint64_t kept_lanes, returned_lanes;
    int64_t entered_sum, kept_sum, returned_sum, began_ns, ended_ns;
} weir_flow_settled;

/* A tensor that was delivered. `values` are the caller's, for weir_flow_free; the rest until the next is taken.
 * `came`: a byte per chunk; missing, budgets: lanes per account, none when all of it came. Mirrored by
 * weir.host_agent.flows.native.Delivered. */
typedef struct {
    uint32_t *values;
    const uint8_t *came;
    const uint64_t *missing, *budgets;
    uint32_t number, layer, lanes, count, account_count;
    uint64_t came_lanes;
    int64_t came_sum;
} weir_flow_delivered;

typedef struct weir_flow_sender weir_flow_sender;
typedef struct weir_flow_receiver weir_flow_receiver;

/* NULL without memory. */
weir_flow_sender *weir_flow_sender_new(const weir_flow_config *config);
void weir_flow_sender_free(weir_flow_sender *s);

/* Send a tensor, whose number was not submitted before. 0, or -1 without memory. */
int weir_flow_sender_submit(weir_flow_sender *s, const weir_flow_tensor *tensor);

enum weir_flow_verdict weir_flow_sender_receive(weir_flow_sender *s, const uint8_t *payload, uint32_t length,
                                                int64_t now_ns);

/* The class of the packet that would be sent now (DSCP without drop precedence), -1 without one. */
int weir_flow_sender_urgency(weir_flow_sender *s, int64_t now_ns);

/* Write the packet to send now to `out`, FLOW_MAX_PACKET bytes, and its DSCP << 2 | ECN. Its length; 0: none. */
uint32_t weir_flow_sender_next(weir_flow_sender *s, int64_t now_ns, uint8_t *out, uint8_t *traffic_class);

/* When to look again if nothing arrives. */
int64_t weir_flow_sender_deadline(const weir_flow_sender *s);

/* Tensors that were submitted and are not settled; the numbers of the first `most` of them. */
uint32_t weir_flow_sender_waiting(const weir_flow_sender *s, uint32_t *numbers, uint32_t most);

/* Whether a tensor of this number was submitted. */
int weir_flow_sender_knows(const weir_flow_sender *s, uint32_t number);

/* Whether there is nothing to wait for, nor to say. */
int weir_flow_sender_idle(const weir_flow_sender *s);

/* The next settled tensor; 0 when there is none. And whether there is one. */
int weir_flow_sender_has_settled(const weir_flow_sender *s);
int weir_flow_sender_settled(weir_flow_sender *s, weir_flow_settled *out);

const weir_flow_sender_counts *weir_flow_sender_counted(const weir_flow_sender *s);
const uint64_t *weir_flow_sender_verdicts(const weir_flow_sender *s);

/* Chunks that may be under way, and how often that shrank. */
uint32_t weir_flow_sender_window(const weir_flow_sender *s, uint32_t *shrunk);

/* The smoothed round trip; 0 before the first sample. */

weir_flow_receiver *weir_flow_receiver_new(const weir_flow_config *config);
void weir_flow_receiver_free(weir_flow_receiver *r);
enum weir_flow_verdict weir_flow_receiver_receive(weir_flow_receiver *r, const uint8_t *payload,
                                                  uint32_t length, uint8_t traffic_class);
int weir_flow_receiver_has_answer(weir_flow_receiver *r);
uint32_t weir_flow_receiver_next(weir_flow_receiver *r, uint8_t *out);

/* Whether the sender has confirmed the end of all that it began. */
int weir_flow_receiver_is_settled(weir_flow_receiver *r);

/* The next delivered tensor; 0 when there is none. And whether there is one. */
int weir_flow_receiver_has_delivered(const weir_flow_receiver *r);
int weir_flow_receiver_delivered(weir_flow_receiver *r, weir_flow_delivered *out);
const weir_flow_receiver_counts *weir_flow_receiver_counted(const weir_flow_receiver *r);
const uint64_t *weir_flow_receiver_verdicts(const weir_flow_receiver *r);
void weir_flow_free(void *values);

#endif
