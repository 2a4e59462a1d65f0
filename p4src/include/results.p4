// SPDX-License-Identifier: Apache-2.0
//
// How a complete round leaves the switch.
//
//   ingress   Answer    the packet becomes the result      ── multicast, one replica per worker
//                                                          └─ or back to the one that repeated its packet
//   egress    Results   each replica gets its receiver's addresses
//
// The result goes to all workers as replicas (port, replica id = worker + 1), or to one as it is (replica id 0).
#ifndef WEIR_RESULTS_P4
#define WEIR_RESULTS_P4

#include "headers.p4"

// Ingress, after Columns and Lanes: turns the packet that completed its round, or repeats a complete one,
// into the result. Both give the same payload but for hdr.weir.worker. Block indices and the traffic class are
// the packet's own.
control Answer(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action become_result() {
        meta.result = true;
        hdr.weir.kind = TYPE_RESULT;
        hdr.weir.groups = meta.written;
        hdr.weir.included = meta.included;
        hdr.weir.reserved = 0;
    }

    apply {
        if (meta.complete) {
            if (meta.length > meta.received |+| meta.headroom) {
                meta.event = EVENT_DROP_NO_ROOM; // the round is complete all the same: who has room may ask
            } else {
                become_result();
                if (meta.adds) {
                    standard_metadata.mcast_grp = meta.group;
                    meta.event = EVENT_ROUND_COMPLETE;
                } else {
                    standard_metadata.egress_spec = standard_metadata.ingress_port;
                    meta.event = EVENT_DUPLICATE_ANSWERED;
                }
            }
        }
    }
}

// Egress: addresses a result to its receiver. The direct counter is the worker's downlink; note that BMv2
// counts a packet's bytes as it was received, here the packet that completed the round.
control Results(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) downlink;

    action no_receiver() {
        meta.event = EVENT_DROP_NO_RECEIVER;
        mark_to_drop(standard_metadata);
    }

    // src_*: the aggregation address that the job uses; dst_*: the worker's.
    action deliver(bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac, bit<32> dst_ip, bit<16> dst_port) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.total_len = meta.length + 28;
        hdr.ipv4.id = 0; // allowed because it is never fragmented (RFC 6864)
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src_port = UDP_PORT;
        hdr.udp.dst_port = dst_port;
        hdr.udp.length = meta.length + 8;
        hdr.udp.checksum = 0; // none: legal over IPv4 (RFC 768)
        truncate((bit<32>)meta.length + 42); // whatever followed the IPv4 packet in the frame
    }

    table receivers {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
        }
        actions = { deliver; @defaultonly no_receiver; }
        const default_action = no_receiver;
        counters = downlink;
        size = WORKERS;
    }

    apply {
        if (standard_metadata.egress_rid != 0) {
            hdr.weir.worker = (bit<8>)(standard_metadata.egress_rid - 1);
        }
        receivers.apply();
    }
}

#endif
