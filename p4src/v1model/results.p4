// SPDX-License-Identifier: Apache-2.0
//
// How what a cell holds, or lacks, leaves the switch.
//
//   ingress   Room      can it?
//             Answer    the packet becomes       ── a result: multicast, one replica per worker,
//                                                └─    or back to the one that repeated its packet
//                                                ── partial sums, or a result that a spine lacks: up
//                                                ── a question (REPEAT): back to the sender, or to the other racks
//   egress    Results   each replica gets its receiver's addresses, and loses its lanes if those are for others
//
// To all workers it goes as replicas (port, replica id = worker + 1), to one as it is (replica id 0).
#ifndef WEIR_RESULTS_P4
#define WEIR_RESULTS_P4

#include "headers.p4"
#include "lanes.p4"

const bit<16> LANE_BYTES = 1024; // of a whole slot

// Ingress, after Lanes: can the packet leave with what it now holds? If not, the round is complete all the same:
// who has room may ask, and who sent no lanes can send them. Lanes of different operations stay here.
control Room(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.flags & FLAG_DISAGREE != 0) {
            CUT_OFF
            meta.written = 0;
            meta.included = 0;
            meta.count = 0;
        }
        if (meta.complete && meta.length > meta.received |+| meta.headroom) {
            meta.complete = false;
            if (hdr.weir.kind == TYPE_CONTRIBUTION && hdr.weir.groups == 0) {
                meta.bounce = true;
            } else {
                meta.event = EVENT_DROP_NO_ROOM;
            }
        }
    }
}

// Ingress, after Room and Tree. The packet that completed its round and one that repeats it get the same
// payload but for hdr.weir.worker. Block indices and layer class are the packet's own; the magnitude class is the
// greatest of what was added.
control Answer(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // AFxy as wire.definition.dscp has it. What nobody gave up is ECN-capable, and the last to be dropped.
    action sums(bit<4> kind, bit<8> flags) {
        bit<6> magnitude = (bit<6>)meta.magnitudes[0:0] + (bit<6>)meta.magnitudes[1:1];
        hdr.weir.magnitude = (bit<4>)magnitude;
        hdr.weir.kind = kind;
        hdr.weir.flags = flags;
        hdr.weir.groups = meta.written;
        hdr.weir.included = meta.included;
        hdr.weir.count = meta.count;
        hdr.weir.check = meta.check;
        hdr.ipv4.dscp = meta.shed ? RELIABLE_DSCP : ((bit<6>)LAYER_CLASSES - (bit<6>)hdr.weir.layer) << 3
            | (flags & FLAG_PROTECTED != 0 ? 1 : (bit<6>)MAGNITUDE_CLASSES - magnitude) << 1;
        hdr.ipv4.ecn = flags & FLAG_PROTECTED != 0 ? ECT : NOT_ECT;
        meta.made = true;
    }

    action strip() {
        CUT_OFF
    }

    action question() {
        hdr.weir.kind = TYPE_REPEAT;
        hdr.weir.flags = 0;
        hdr.weir.included = 0;
        hdr.weir.count = 0;
        hdr.ipv4.dscp = RELIABLE_DSCP;
        hdr.ipv4.ecn = ECT;
        meta.made = true;
    }

    // "Have you seen this rack?": like a packet whose lanes were lost, it makes the spine answer, or ask for them.
    action probe() {
        hdr.weir.flags = FLAG_PROTECTED | FLAG_TRIMMED | FLAG_ANSWER;
        hdr.weir.included = 0;
        hdr.weir.count = 0;
        hdr.ipv4.dscp = RELIABLE_DSCP;
        hdr.ipv4.ecn = ECT;
        meta.made = true;
    }

    action to_sender() {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    action to_all() {
        standard_metadata.mcast_grp = meta.group;
    }

    apply {
        if (meta.bounce) {
            strip();
            question();
            to_sender();
            meta.event = EVENT_REPEAT_ASKED;
        } else if (meta.ask) {
            if (meta.headroom >= LANE_BYTES) { // else who answers needs their room
                strip();
            }
            question();
            to_all();
            meta.event = EVENT_REPEAT_ASKED;
        } else if (meta.relay) {
            meta.made = true;
            to_all();
        } else if (meta.complete) {
            bool asked = hdr.weir.kind != TYPE_CONTRIBUTION; // by the spine
            // By a worker that does not know yet whether anything is lost, and sent no lanes.
            bool early = !asked && !meta.adds && hdr.weir.groups == 0 && hdr.weir.flags & FLAG_ANSWER != 0;
            bit<8> flags = meta.flags & (FLAG_CONGESTED | FLAG_DISAGREE | FLAG_ELSEWHERE);
            if (meta.up && meta.final) {
                sums(TYPE_RESULT, flags | FLAG_PROTECTED);
                hdr.weir.included = meta.above;
            } else if (meta.up && early) {
                strip();
                probe();
                meta.event = EVENT_PARTIAL_REPEATED;
            } else if (meta.up) {
                sums(TYPE_CONTRIBUTION, (meta.flags & FLAGS & ~(FLAG_ELSEWHERE | FLAG_TRIMMED))
                     | (asked ? FLAG_ANSWER : 0) | (meta.whole ? FLAG_PROTECTED : 0));
                if (!asked && meta.event != EVENT_DISAGREEMENT) {
                    meta.event = meta.adds ? EVENT_PARTIAL_SENT : EVENT_PARTIAL_REPEATED;
                }
            } else if (meta.adds) {
                sums(TYPE_RESULT, flags | FLAG_PROTECTED);
                to_all();
                if (!meta.from_parent && meta.event != EVENT_DISAGREEMENT) {
                    meta.event = meta.shed ? EVENT_ROUND_SHED : EVENT_ROUND_COMPLETE;
                }
            } else if (!meta.from_parent) {
                sums(TYPE_RESULT, flags | FLAG_PROTECTED);
                // Where it was lost once, it would be lost again. What goes up again keeps its class: nothing may be
                // missing yet, and needless repeats of back layers would overtake front ones.
                hdr.ipv4.dscp = RELIABLE_DSCP;
                to_sender();
                meta.event = EVENT_DUPLICATE_ANSWERED;
            } else {
                meta.event = EVENT_DROP_STALE_ROUND; // a question by a spine that is none any more
            }
        }
    }
}

// Egress: addresses what the switch made. The direct counter is the worker's downlink; note that BMv2
// counts a packet's bytes as it was received, here the packet that completed the round.
control Results(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) downlink;
    bit<16> paths = 0; // see deliver
    bit<16> own = 0;

    action no_receiver() {
        meta.event = EVENT_DROP_NO_RECEIVER;
        mark_to_drop(standard_metadata);
    }

    // src_*: the aggregation address that the job uses; dst_*: the worker's, or the rack's. A worker is, or is
    // in the rack, when its path is `path` in the bits of `mask`; a worker, in all of them.
    action deliver(bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac, bit<32> dst_ip, bit<16> dst_port,
                   bit<16> mask, bit<16> path) {
        paths = mask;
        own = path;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src_port = UDP_PORT;
        hdr.udp.dst_port = dst_port;
    }

    table receivers {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
            standard_metadata.egress_port: exact @name("port"); // a core has several to one pod
        }
        actions = { deliver; @defaultonly no_receiver; }
        const default_action = no_receiver;
        counters = downlink;
        size = WORKERS;
    }

    // The others get the header, which advances their slot.
    action pass_by() {
        CUT_OFF
        hdr.weir.flags = hdr.weir.flags | FLAG_ELSEWHERE;
    }

    action finish() {
        hdr.ipv4.total_len = meta.length + 28;
        hdr.ipv4.id = 0; // allowed because it is never fragmented (RFC 6864)
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = 64;
        hdr.udp.length = meta.length + 8;
        hdr.udp.checksum = 0; // none: legal over IPv4 (RFC 768)
        truncate((bit<32>)meta.length + 42); // whatever followed the IPv4 packet in the frame
    }

    apply {
        if (meta.skip != 0 && standard_metadata.egress_rid != 0
                && (meta.skip >> (bit<8>)(standard_metadata.egress_rid - 1)) & 1 != 0) {
            mark_to_drop(standard_metadata);
        } else {
            if (standard_metadata.egress_rid != 0) {
                hdr.weir.worker = (bit<8>)(standard_metadata.egress_rid - 1);
            }
            if (!meta.up) {
                receivers.apply();
                if (hdr.weir.audience != AUDIENCE_ALL && hdr.weir.kind == TYPE_RESULT && hdr.weir.groups != 0
                        && (hdr.weir.audience & AUDIENCE_EXCEPT == 0 ? hdr.weir.audience & paths != own
                            : paths == WHOLE_PATH && hdr.weir.audience & paths == own)) {
                    pass_by();
                }
            }
            finish();
        }
    }
}

#endif
