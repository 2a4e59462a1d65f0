// SPDX-License-Identifier: Apache-2.0
//
// Weir on v1model: BMv2's simple_switch and the soft switch.
//
//   ingress   ┌ packet_out ─────────────────────────────────────────────────────▶ the port it names
//   ──────────┤
//             │            yes
//   losses ▶──┼ aggregator ───▶ validation ▶ admission ▶ slots ▶ columns ▶ lanes ▶ answer ┐
//             │     │ no                                                                  ├▶ queueing ▶ a queue
//             │     └─────────▶ sources ▶ arp ▶ forwarding ▶ spraying ────────────────────┘
//             │
//             └ every packet is counted once, in `events`, by what was decided about it
//
//   egress      losses ▶ results: addresses of each receiver, or departure: flood pruning, packet-in ▶ marking
//
// All state lives in ingress, which v1model targets run on one thread; but for the depths of the queues, which
// egress writes. A packet is dropped unless a control says where it goes.
#include <core.p4>
#include <v1model.p4>

#include "v1model/config.p4"
#include "shared/wire.p4"
#include "v1model/headers.p4"
#include "v1model/parser.p4"
#include "v1model/losses.p4"
#include "v1model/aggregator.p4"
#include "v1model/admission.p4"
#include "v1model/slots.p4"
#include "v1model/columns.p4"
#include "v1model/lanes.p4"
#include "v1model/tree.p4"
#include "v1model/results.p4"
#include "v1model/sources.p4"
#include "v1model/arp.p4"
#include "v1model/queueing.p4"
#include "v1model/spraying.p4"
#include "v1model/forwarding.p4"
#include "v1model/deparser.p4"

control WeirIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(V1MODEL_EVENTS, CounterType.packets_and_bytes) events;
    register<bit<32>>(CELLS * MAX_COLUMNS) nexts; // next pointers of a cell's columns in a row
    register<bit<32>>(CELLS * SLOT_LANES) store; // lanes of a cell in a row

    Losses() losses;
    Aggregator() aggregator;
    Validation() validation;
    Admission() admission;
    Slots() slots;
    Column(nexts, 0) column0;
    Column(nexts, 1) column1;
    Column(nexts, 2) column2;
    Column(nexts, 3) column3;
    Column(nexts, 4) column4;
    Column(nexts, 5) column5;
    Column(nexts, 6) column6;
    Column(nexts, 7) column7;
    Lanes(store, 0, 1 << 0) lanes0;
    Lanes(store, 1, 1 << 1) lanes1;
    Lanes(store, 2, 1 << 2) lanes2;
    Lanes(store, 3, 1 << 3) lanes3;
    Lanes(store, 4, 1 << 4) lanes4;
    Lanes(store, 5, 1 << 5) lanes5;
    Lanes(store, 6, 1 << 6) lanes6;
    Lanes(store, 7, 1 << 7) lanes7;
#ifdef WIDE
    register<bit<32>>(CELLS * WIDE_LANES) wide_store; // lanes of a cell's wide packets in a row
    WideLanes(wide_store) wide;
#endif
    Room() room;
    Tree() tree;
    Shedding() shedding;
    Answer() answer;
    Sources() sources;
    ArpResponder() arp;
    Forwarding() forwarding;
    Spraying() spraying;
    Queueing() queueing;

    apply {
        bool answered = false;
        bool lost;
        mark_to_drop(standard_metadata);
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            meta.event = EVENT_FORWARDED;
        } else {
            losses.apply(hdr, standard_metadata.ingress_port, lost);
            if (lost) {
                meta.event = EVENT_DROP_SIMULATED;
            } else {
                aggregator.apply(hdr, meta);
                if (meta.aggregate) {
                    meta.event = EVENT_CONTRIBUTION;
                    validation.apply(hdr, meta, standard_metadata);
                    if (meta.event == EVENT_CONTRIBUTION) {
                        admission.apply(hdr, meta, standard_metadata);
                    }
                    if (meta.event == EVENT_CONTRIBUTION) {
                        slots.apply(hdr, meta);
                    }
                    if (meta.adds || meta.complete) {
                        column0.apply(hdr.columns[0], meta);
                        if (hdr.columns[1].isValid()) {
                            column1.apply(hdr.columns[1], meta);
                            column2.apply(hdr.columns[2], meta);
                            column3.apply(hdr.columns[3], meta);
                            column4.apply(hdr.columns[4], meta);
                            column5.apply(hdr.columns[5], meta);
                            column6.apply(hdr.columns[6], meta);
                            column7.apply(hdr.columns[7], meta);
                        }
#ifdef WIDE
                        if (hdr.weir.block_log2 == WIDE_BLOCK_LOG2) {
                            wide.apply(hdr.wide, meta);
                        } else {
#endif
                        lanes0.apply(hdr.lanes0, hdr.weir.op, meta);
                        lanes1.apply(hdr.lanes1, hdr.weir.op, meta);
                        lanes2.apply(hdr.lanes2, hdr.weir.op, meta);
                        lanes3.apply(hdr.lanes3, hdr.weir.op, meta);
                        lanes4.apply(hdr.lanes4, hdr.weir.op, meta);
                        lanes5.apply(hdr.lanes5, hdr.weir.op, meta);
                        lanes6.apply(hdr.lanes6, hdr.weir.op, meta);
                        lanes7.apply(hdr.lanes7, hdr.weir.op, meta);
#ifdef WIDE
                        }
#endif
                        room.apply(hdr, meta);
                        tree.apply(hdr, meta, standard_metadata);
                        shedding.apply(hdr, meta);
                    }
                    if (meta.complete || meta.bounce || meta.ask || meta.relay) {
                        answer.apply(hdr, meta, standard_metadata);
                    }
                } else {
                    sources.apply(hdr, meta, standard_metadata);
                    if (meta.event != EVENT_DROP_FORGED_SOURCE) {
                        arp.apply(hdr, meta, standard_metadata, answered);
                        if (!answered) {
                            forwarding.apply(hdr, meta, standard_metadata);
                        }
                        if (meta.spray_group != 0) {
                            spraying.apply(hdr, meta, standard_metadata);
                        }
                    }
                }
                if (standard_metadata.mcast_grp != 0 || standard_metadata.egress_spec != NO_PORT) {
                    queueing.apply(hdr, meta, standard_metadata);
                }
            }
        }
        events.count(meta.event);
    }
}

control WeirEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(V1MODEL_EVENTS, CounterType.packets_and_bytes) events; // drops only: the packet was counted in ingress

    Losses() losses;
    Results() results;
    Departure() departure;
    Marking() marking;

    apply {
        bool lost;
        losses.apply(hdr, standard_metadata.egress_port, lost);
        if (lost) {
            mark_to_drop(standard_metadata);
            events.count(EVENT_DROP_SIMULATED);
        } else if (meta.made) {
            results.apply(hdr, meta, standard_metadata);
            if (meta.event == EVENT_DROP_NO_RECEIVER) {
                events.count(EVENT_DROP_NO_RECEIVER);
            }
        } else {
            departure.apply(hdr, meta, standard_metadata);
        }
        marking.apply(hdr, meta, standard_metadata);
    }
}

V1Switch(WeirParser(), WeirVerifyChecksum(), WeirIngress(), WeirEgress(), WeirComputeChecksum(), WeirDeparser())
    main;
