// SPDX-License-Identifier: Apache-2.0
//
// Queues. An ingress pipeline cannot see how deep a queue is, nor what egress knows: so packets are not trimmed.
// What may be shed is told to the traffic manager by colour, and its thresholds per colour (set by the controller)
// drop yellow and red packets first. What is ECN-capable is marked in egress, by the depth that it found.
#ifndef WEIR_TNA_QUEUEING_P4
#define WEIR_TNA_QUEUEING_P4

#include "headers.p4"

control Queueing(inout headers_t hdr, inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    // cos: whose buffer; queue: of the port; colour: 0 green, 1 yellow, 3 red.
    action classify(bit<3> cos, bit<5> queue, bit<2> colour) {
        ig_tm_md.ingress_cos = cos;
        ig_tm_md.qid = queue;
        ig_tm_md.packet_color = colour;
    }

    table traffic_classes {
        key = { hdr.ipv4.dscp: exact @name("dscp"); }
        actions = { classify; @defaultonly NoAction; }
        const default_action = NoAction;
        size = TRAFFIC_CLASSES;
    }

    apply {
        traffic_classes.apply();
    }
}

control Marking(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md) {
    // The metadata's container holds a byte of the time stamp beside the depth, and the compiler lets the
    // subtraction take all of it: so the depth is taken out first.
    action measure() {
        meta.depth = eg_intr_md.deq_qdepth;
    }

    table depth_of_queue {
        actions = { measure; }
        const default_action = measure;
        size = 1;
    }

    // depth: in cells of 80 bytes.
    action limit(bit<19> depth) {
        meta.room = depth |-| meta.depth;
    }

    table marks {
        key = { eg_intr_md.egress_qid: exact @name("queue"); }
        actions = { limit; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 32;
    }

    action mark() {
        hdr.ipv4.ecn = CE;
        meta.checksum = 1;
    }

    apply {
        depth_of_queue.apply();
        if (hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && hdr.ipv4.ecn != NOT_ECT) {
            if (marks.apply().hit) {
                if (meta.room == 0) {
                    mark();
                }
            }
        }
    }
}

#endif
