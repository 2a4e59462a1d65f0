// SPDX-License-Identifier: Apache-2.0
// Meters, digests and entries that age. `what` is a set of bits; colours come back in the order.
#include <core.p4>
#include <v1model.p4>

const bit<8> PACKETS = 1;
const bit<8> BYTES = 2;
const bit<8> LEARN = 4;
const bit<8> PAIR = 8;
const bit<8> FLOOD = 16; // to the ports of group 1

header order_t {
    bit<8> what;
    bit<16> index;
    bit<48> who;
    bit<8> by_packets; // colour of packet_meters[index]
    bit<3> by_bytes;   // colour of byte_meters[index]
    bit<5> by_flow;    // colour of the flow's meter, 31 without one
    bit<8> at_egress;  // colour of the meter of `leaving`, 255 without one
}

struct pair_t {
    bit<16> index;
    bit<8> what;
}

struct learned_t {
    bit<48> who;
    bit<9> port;
    bit<5> mark;
}

struct headers_t {
    order_t order;
}

struct meta_t {
    bit<5> flow;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control Compute(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    meter(8, MeterType.packets) packet_meters;
    meter(4, MeterType.bytes) byte_meters;
    direct_meter<bit<5>>(MeterType.packets) flow_meters;
    direct_counter(CounterType.packets_and_bytes) flow_counters;

    action meet() {
        flow_counters.count();
        flow_meters.read(meta.flow);
        hdr.order.by_flow = meta.flow;
    }
    action greet(bit<5> extra) {
        flow_counters.count();
        flow_meters.read(meta.flow);
        hdr.order.by_flow = meta.flow + extra;
    }
    table flows {
        key = {
            hdr.order.who : exact;
        }
        actions = {
            meet;
            greet;
            @defaultonly NoAction;
        }
        default_action = NoAction;
        meters = flow_meters;
        counters = flow_counters;
        support_timeout = true;
        size = 1024;
    }

    action touch() {}
    table ranges {
        key = {
            hdr.order.who : ternary;
            hdr.order.index : range;
        }
        actions = {
            touch;
            NoAction;
        }
        default_action = NoAction;
        support_timeout = true;
    }

    apply {
        sm.egress_spec = 1;
        flows.apply();
        ranges.apply();
        if (hdr.order.what & PACKETS != 0) {
            packet_meters.execute_meter((bit<32>)hdr.order.index, hdr.order.by_packets);
        }
        if (hdr.order.what & BYTES != 0) {
            byte_meters.execute_meter((bit<32>)hdr.order.index, hdr.order.by_bytes);
        }
        if (hdr.order.what & LEARN != 0) {
            digest<learned_t>(1, { hdr.order.who, sm.ingress_port, hdr.order.by_flow });
        }
        if (hdr.order.what & PAIR != 0) {
            digest<pair_t>(1, { hdr.order.index, hdr.order.what });
        }
        if (hdr.order.what & FLOOD != 0) {
            sm.mcast_grp = 1;
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    direct_meter<bit<8>>(MeterType.bytes) leaving_meters;

    action mark() {
        leaving_meters.read(hdr.order.at_egress);
    }
    table leaving {
        key = {
            sm.egress_port : exact;
        }
        actions = {
            mark;
            NoAction;
        }
        default_action = NoAction;
        meters = leaving_meters;
    }

    apply {
        leaving.apply();
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.order);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
