// SPDX-License-Identifier: Apache-2.0
//
// Which queue a packet joins, and what becomes of it when that queue is deep: the selective treatment of DLCP
// and MLT, as a per-hop behaviour for each DSCP, with limits in table entries that the controller changes while
// jobs run. The DSCP is AFxy: all drop precedences y of a layer class x share a queue, where each has limits of
// its own.
//
//   the packet is                                     depth reaches    then
//   ─────────────────────────────────────────────────────────────────────────────────────────────
//   lanes or a chunk, not protected, not ECN-capable  trim_at          they are cut off; top queue
//   a rack's sums of the smallest magnitudes, same    a result marked  the same: their result would wait
//   any other, not ECN-capable                        drop_at          it is dropped
//   ECN-capable                                       mark_at          it is marked (CE), in egress
//
// Ingress cannot see a v1model target's queues. So both pipelines keep `queue_depths`: ingress adds a packet
// when it sends one to a queue, egress writes what the traffic manager says when one leaves (deq_qdepth). Where
// pipelines run on several threads (BMv2), one may overwrite the other's change, and the depth is off
// by a few packets until the next one leaves; on the soft switch it is exact. Replicas of a multicast packet are
// not known in ingress: they count once the first one has left.
#ifndef WEIR_QUEUEING_P4
#define WEIR_QUEUEING_P4

#include "headers.p4"
#include "lanes.p4"
#include "shedding.p4"

const bit<3> TOP_QUEUE = 7;
const bit<16> NEVER = 0xFFFF;
const bit<9> NO_PORT = 511; // v1model's way to say "drop"

register<bit<16>>(QUEUES) queue_depths; // of (port, queue), in packets

// Last in ingress, for packets that go somewhere.
control Queueing(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) traffic;
    counter(4 * 8, CounterType.packets_and_bytes) per_hop_behaviours; // treatment, queue

    bit<16> trim_limit = NEVER;
    bit<16> drop_limit = NEVER;

    // queue: 7 is served first, 0 last. The limits are in packets of that queue, 65535: never.
    action enqueue(bit<3> queue, bit<16> trim_at, bit<16> mark_at, bit<16> drop_at) {
        meta.queue = queue;
        trim_limit = trim_at;
        meta.mark_at = mark_at;
        drop_limit = drop_at;
    }

    table classes {
        key = { hdr.ipv4.dscp: exact @name("dscp"); }
        actions = { enqueue; @defaultonly NoAction; }
        const default_action = NoAction;
        counters = traffic;
        size = TRAFFIC_CLASSES;
    }

    action cut() {
        meta.trimmed = true;
        meta.queue = TOP_QUEUE;
        hdr.ipv4.dscp = RELIABLE_DSCP;
        hdr.udp.checksum = 0;
    }

    action cut_lanes() {
        cut();
        CUT_OFF
        hdr.weir.included = 0;
        hdr.weir.count = 0;
        hdr.weir.flags = hdr.weir.flags | FLAG_TRIMMED;
        hdr.ipv4.total_len = meta.length + 28;
        hdr.udp.length = meta.length + 8;
        meta.keep = (bit<32>)meta.length + 42;
    }

    // Ethernet, IPv4 and UDP have 42 bytes, the flow header 24.
    action cut_chunk() {
        cut();
        hdr.flow.flags = hdr.flow.flags | FLAG_TRIMMED;
        hdr.ipv4.total_len = 52;
        hdr.udp.length = 32;
        meta.keep = 66;
    }

    apply {
        meta.mark_at = NEVER;
        if (hdr.ipv4.isValid()) {
            classes.apply();
        }
        bit<32> place = (bit<32>)standard_metadata.egress_spec << 3;
        bit<16> depth = 0;
        bit<32> treatment = TREATMENT_QUEUED << 3 | (bit<32>)meta.queue; // trimmed: its class's queue
        if (standard_metadata.mcast_grp == 0) {
            bit<32> deep = 0;
            if (meta.up && hdr.weir.magnitude == 0 && trim_limit != NEVER) {
                deep_children.read(deep, (bit<32>)meta.group);
            }
            queue_depths.read(depth, place | (bit<32>)meta.queue);
            if ((depth >= trim_limit || deep != 0) && hdr.ipv4.ecn == NOT_ECT) {
                if (hdr.weir.isValid()) {
                    if (hdr.weir.kind == TYPE_CONTRIBUTION && hdr.weir.flags & FLAG_PROTECTED == 0
                            && hdr.weir.groups != 0 && hdr.columns[0].isValid()
                            && standard_metadata.parser_error == error.NoError) {
                        cut_lanes();
                        treatment = TREATMENT_TRIMMED << 3 | treatment;
                    }
                } else if (hdr.flow.isValid() && hdr.flow.version == VERSION && hdr.flow.kind == FLOW_CHUNK
                        && hdr.flow.flags & FLAG_PROTECTED == 0 && hdr.udp.length > 32) {
                    cut_chunk();
                    treatment = TREATMENT_TRIMMED << 3 | treatment;
                }
                if (meta.trimmed) {
                    queue_depths.read(depth, place | (bit<32>)TOP_QUEUE);
                }
            }
            if (!meta.trimmed && depth >= drop_limit && hdr.ipv4.ecn == NOT_ECT) {
                treatment = TREATMENT_DROPPED << 3 | treatment;
                meta.event = EVENT_DROP_CONGESTION;
                mark_to_drop(standard_metadata);
            } else {
                queue_depths.write(place | (bit<32>)meta.queue, depth + 1);
            }
        }
        standard_metadata.priority = meta.queue;
        per_hop_behaviours.count(treatment);
    }
}

// Last in egress: congestion marks, and the word to ingress that a packet has left.
control Marking(inout headers_t hdr, in metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(4 * 8, CounterType.packets_and_bytes) per_hop_behaviours; // treatment, queue

    // RFC 1624 for a word that grows by as much as ECN does.
    action mark() {
        bit<32> sum = (bit<32>)(~hdr.ipv4.checksum) + (bit<32>)(CE - hdr.ipv4.ecn);
        hdr.ipv4.checksum = ~(sum[15:0] + sum[31:16]);
        hdr.ipv4.ecn = CE;
    }

    // Two actions, as no action may hold the register: threads share it as it is.
    bit<32> deep = 0;
    action look() {
        deep_children.read(deep, (bit<32>)meta.group);
    }
    action note() {
        bit<32> child = 32w1 << (bit<8>)(standard_metadata.egress_rid - 1);
        deep_children.write((bit<32>)meta.group, (deep & ~child)
            | (standard_metadata.deq_qdepth >= (bit<19>)meta.mark_at ? child : 0));
    }

    apply {
        if (standard_metadata.enq_qdepth >= (bit<19>)meta.mark_at
                && hdr.ipv4.isValid() && hdr.ipv4.ecn != NOT_ECT && hdr.ipv4.ecn != CE) {
            mark();
            per_hop_behaviours.count(TREATMENT_MARKED << 3 | (bit<32>)meta.queue);
        }
        if (meta.made && !meta.up && standard_metadata.egress_rid != 0 && meta.queue != TOP_QUEUE) {
            look();
            note();
        }
        queue_depths.write((bit<32>)standard_metadata.egress_port << 3 | (bit<32>)meta.queue,
                           (bit<16>)standard_metadata.deq_qdepth);
        if (meta.keep != 0) {
            truncate(meta.keep);
        }
    }
}

#endif
