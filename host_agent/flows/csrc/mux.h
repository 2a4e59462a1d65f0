/* SPDX-License-Identifier: Apache-2.0 */
/* All flows of a host behind one port: packets to the flow they name, and the most urgent packet first.
 *
 * A peer is a number that its owner gives it: IPv4 address << 16 | UDP port. */
#ifndef WEIR_FLOW_MUX_H
#define WEIR_FLOW_MUX_H

#include "flow.h"

typedef struct weir_flow_mux weir_flow_mux;

/* NULL without memory. */
weir_flow_mux *weir_flow_mux_new(void);
void weir_flow_mux_free(weir_flow_mux *m);

/* Serve a flow, which stays the caller's, whose id no other has: one of the two is NULL. -1 without memory. */
int weir_flow_mux_add(weir_flow_mux *m, uint32_t flow, uint64_t peer, weir_flow_sender *sender,
                      weir_flow_receiver *receiver);
void weir_flow_mux_remove(weir_flow_mux *m, uint32_t flow);

enum weir_flow_verdict weir_flow_mux_receive(weir_flow_mux *m, const uint8_t *payload, uint32_t length,
                                             int64_t now_ns, uint8_t traffic_class, uint64_t peer);

/* Whether packets had tensors delivered or settled since the last call: else nobody need ask the flows. */
int weir_flow_mux_ended(weir_flow_mux *m);

/* The class of the most urgent packet to send now (DSCP without drop precedence), -1 without one. */
int weir_flow_mux_urgency(weir_flow_mux *m, int64_t now_ns);

/* Write the most urgent packet to send now to `out`, FLOW_MAX_PACKET bytes, with its DSCP << 2 | ECN and where it
 * goes. Its length; 0: none. Flows of one class alternate. */
uint32_t weir_flow_mux_next(weir_flow_mux *m, int64_t now_ns, uint8_t *out, uint8_t *traffic_class,
                            uint64_t *peer);

/* When to look again if nothing arrives. */
int64_t weir_flow_mux_deadline(const weir_flow_mux *m);

/* Verdicts on packets that no flow got to see. */
const uint64_t *weir_flow_mux_verdicts(const weir_flow_mux *m);

#endif
