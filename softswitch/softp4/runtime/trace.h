// SPDX-License-Identifier: Apache-2.0
// What a traced packet goes through, as records for softp4/tracing/events.py.
//
// A second library, generated from the same program with tracepoints, takes the traced packets through the
// same switch; all others run the plain code. The records gather in one buffer until somebody reads them.
#ifndef SOFTP4_TRACE_H
#define SOFTP4_TRACE_H

#include "state.h"

enum { SW_TRACE_PORTS = 512 };

// A record is one 64-bit word (kind, values behind it << 8, site << 32) and its values. What a site is (a state,
// a table, an action, ...) and what the values mean goes by the kind: see events.py.
enum {
    SW_TRACE_FRAME = 1, // a frame comes in: site port; number, length, time
    SW_TRACE_TURN, // a packet leaves a queue: site port; number, time, nanoseconds waited, packets left behind
    SW_TRACE_PASS,      // ingress begins, or for clones parsing: site instance type; length
    SW_TRACE_STATE,     // site parser state
    SW_TRACE_PARSER_OP, // site state << 16 | operation; values
    SW_TRACE_BYTES,     // bytes of the packet that the last operation took: site count
    SW_TRACE_SELECT,    // site state; select keys
    SW_TRACE_PARSED,    // site error; bytes parsed
    SW_TRACE_CHECKSUM,  // a checksum is wrong
    SW_TRACE_PIPELINE,  // site 0 ingress, 1 egress; egress port, rid
    SW_TRACE_CONDITION, // site conditional; result
    SW_TRACE_TABLE, // site table; hit, handle, priority, action as in the entry and as run, key and argument words
    SW_TRACE_CALL,      // site action, the only one of its table; argument words
    SW_TRACE_STATEMENT, // site action; statement, values
    SW_TRACE_CLONE,     // site session; copies, or SW_TRACE_NONE without such a session
    SW_TRACE_RESUBMIT,
    SW_TRACE_DESTINATION, // after ingress: site egress_spec; multicast group, copies or SW_TRACE_NONE
    SW_TRACE_QUEUED,      // site port; priority, packets found there or SW_TRACE_NONE when it was full
    SW_TRACE_EGRESS_DROP, // egress_spec after egress
    SW_TRACE_HEADER,      // site header; a SW_TRACE_BYTES record follows: what the deparser wrote
    SW_TRACE_OUT,         // site port; length
    SW_TRACE_RECIRCULATE, // length
    SW_TRACE_LOST,        // site: why (enum below)
};

enum { SW_TRACE_TOO_LONG = 1, SW_TRACE_PASSES, SW_TRACE_WAITING, SW_TRACE_ASSERTION };

#define SW_TRACE_NONE UINT64_MAX

typedef struct sw_trace {
    const sw_program *program;           // with tracepoints; packets pass between it and the plain one
    uint64_t ports[SW_TRACE_PORTS / 64]; // those whose frames are traced
    uint64_t left;                       // frames still to be traced
    uint64_t number;                     // of the last one
    uint64_t current;                    // of the packet whose block is being written
    uint64_t lost;                       // blocks that did not fit
    uint32_t room, used;                 // words
    uint32_t block;                      // where the current block begins
    int full;                            // the current block did not fit
    uint64_t words[];
} sw_trace;

void sw_trace_put(sw_trace *t, unsigned kind, uint32_t site, const uint64_t *values, uint32_t count);
void sw_trace_bytes(sw_trace *t, const uint8_t *bytes, uint32_t count);
void sw_trace_turn(sw_trace *t, const sw_packet *packet, uint32_t port, uint64_t now_ns, uint32_t left);
void sw_trace_frame(sw_trace *t, uint32_t port, uint32_t length, uint64_t now_ns);

// Records what became of a packet on its way into a queue (NULL: dropped). Returns it.
sw_packet *sw_trace_queued(sw_trace *t, sw_packet *packet, uint32_t port, uint64_t priority);

#define SW_TRACE(trace, kind, site, ...)                                                                     \
    do {                                                                                                     \
        const uint64_t trace_values[] = {0, ##__VA_ARGS__};                                                  \
        sw_trace_put(trace, kind, site, trace_values + 1, sizeof trace_values / 8 - 1);                      \
    } while (0)

// For the runtime: the program that the next frame of `port`, or a packet from a queue, runs through.
const sw_program *sw_trace_next(sw_trace *t, uint32_t port);
void sw_trace_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                      sw_emit emit, void *ctx);

#endif
