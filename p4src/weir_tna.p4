// SPDX-License-Identifier: Apache-2.0
//
// Weir on Tofino 1 (TNA): docs/internals/tofino.md, which also says what differs from weir_v1model.p4.
//
//   ingress   aggregator, validation, admission, tree, audience     tables that do not wait for one another
//                  │ for us, well-formed, admitted       └ else ▶ arp, forwarding ▶ a queue
//                  ▼
//             slots ▶ weighing ▶ tally, above, included, column ▶ lanes
//                                  └▶ answer ▶ queueing ▶ a queue      every packet is counted once, in `events`
//                                         └ sums of 64 lanes ▶ the port for recirculation ▶ slots, for the upper 32
//
//   egress    results: which children, their addresses; their lanes went in the parser if they are for others
#include <core.p4>
#include <tna.p4>

#include "shared/network.p4"
#include "shared/wire.p4"
#include "tna/config.p4"
#include "tna/headers.p4"
#include "tna/parser.p4"
#include "tna/aggregator.p4"
#include "tna/admission.p4"
#include "tna/slots.p4"
#include "tna/cells.p4"
#include "tna/results.p4"
#include "tna/queueing.p4"
#include "tna/forwarding.p4"
#include "tna/deparser.p4"

#define DECLARE(L) Lane() L;
#define APPLY(L) L.apply(hdr.lanes.L, hdr.upper.L, meta);
#define BLANK_UPPER(L) hdr.upper.L = 0;
#define CHOOSE_OR(L) hdr.upper.L = CHOOSES_OR;

control WeirIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                    in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                    inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Counter<bit<64>, bit<8>>(EVENTS, CounterType_t.PACKETS_AND_BYTES) events;

    Aggregator() aggregator;
    Validation() validation;
    Admission() admission;
    Tree() tree;
    Audience() audience;
    Slots() slots;
    Weighing() weighing;
    Tally() tally;
    Above() above;
    Included() included;
    Column() column;
    EACH_LANE(DECLARE)
    Answer() answer;
    ArpResponder() arp;
    Queueing() queueing;
    Forwarding() forwarding;

    action bridge(bit<9> port) {
        hdr.bridge.setValid();
        hdr.bridge.role = ROLE_FORWARDED;
        hdr.bridge.in_port = (bit<16>)port;
    }

    // A packet without lanes is one with zeros, as far as the arithmetic goes.
    action blank() {
        hdr.lanes.setValid();
        hdr.upper.setValid();
        EACH_LANE(BLANK)
    }

    action blank_upper() {
        hdr.upper.setValid();
        EACH_LANE(BLANK_UPPER)
    }

    // Only where there are lanes: of a number and 0, the greater and the bits of both are the same.
    action choose_or() {
        hdr.upper.setValid();
        EACH_LANE(CHOOSE_OR)
    }

    table blanks {
        key = {
            hdr.weir.groups: ternary;
            hdr.weir.op: ternary;
            meta.second: ternary;
        }
        actions = { blank; blank_upper; choose_or; NoAction; }
        const entries = {
            (0, _, 0): blank();
            (1, OP_OR, 0): choose_or();
            (1, _, 0): blank_upper();
        }
        const default_action = NoAction;
        size = 3;
    }

    action refuse(bit<8> event) {
        ig_dprsr_md.drop_ctl = 1;
        meta.event = event;
    }

    table refusals {
        key = {
            meta.format_known: ternary;
            meta.fields_known: ternary;
            meta.admitted: ternary;
        }
        actions = { refuse; }
        const entries = {
            (1, 1, 1): refuse((bit<8>)EVENT_DROP_SLOT_RANGE);
            (1, 1, 0): refuse((bit<8>)EVENT_DROP_NOT_ADMITTED);
        }
        const default_action = refuse((bit<8>)EVENT_DROP_MALFORMED);
        size = 2;
    }

    apply {
        if (meta.second == 0) {
            bridge(ig_intr_md.ingress_port);
        }
        // One stage of tables that do not wait for one another, then what they say together.
        if (hdr.weir.isValid() && meta.second == 0) {
            aggregator.apply(hdr, meta);
            validation.apply(hdr, meta);
            admission.apply(hdr, meta, ig_intr_md);
            tree.apply(hdr, meta);
            audience.apply(hdr, meta);
        }
        if (meta.aggregate == 1 && meta.format_known == 1 && meta.fields_known == 1 && meta.admitted == 1
            && meta.in_range == 1) {
            blanks.apply();
            slots.apply(hdr, meta);
            weighing.apply(hdr, meta);
            tally.apply(hdr, meta);
            above.apply(hdr, meta);
            included.apply(hdr, meta);
            column.apply(hdr, meta);
            EACH_LANE(APPLY)
            answer.apply(hdr, meta, ig_intr_md, ig_dprsr_md, ig_tm_md);
        } else if (meta.aggregate == 1) {
            refusals.apply();
        } else {
            bit<1> answered;
            arp.apply(hdr, meta, ig_intr_md, ig_tm_md, answered);
            if (answered == 0) {
                forwarding.apply(hdr, meta, ig_dprsr_md, ig_tm_md);
            }
        }
        queueing.apply(hdr, ig_tm_md);
        if (meta.event != UNCOUNTED) {
            events.count(meta.event);
        }
    }
}

control WeirEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
                   in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                   inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                   inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Results() results;
    Marking() marking;

    apply {
        if (hdr.weir.isValid()) {
            results.apply(hdr, meta, eg_intr_md, eg_dprsr_md);
        } else if (hdr.bridge.role == ROLE_FLOODED && hdr.bridge.in_port == (bit<16>)eg_intr_md.egress_port) {
            eg_dprsr_md.drop_ctl = 1;
        }
        marking.apply(hdr, meta, eg_intr_md);
    }
}

Pipeline(WeirIngressParser(), WeirIngress(), WeirIngressDeparser(),
         WeirEgressParser(), WeirEgress(), WeirEgressDeparser()) pipe;

Switch(pipe) main;
