// SPDX-License-Identifier: Apache-2.0
// What lies between ingress and egress: priorities, what a packet learns about its queue, registers that both
// pipelines use, random numbers between bounds that the packet brings.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> what; // a bit each: multicast, drop in egress, clone at ingress, clone at egress, recirculate
    bit<8> priority;
    bit<16> to; // port or group
    bit<32> low;
    bit<32> high;
}

header seen_t {
    bit<8> instance_type;
    bit<8> priority;
    bit<16> rid;
    bit<16> ingress_port;
    bit<48> arrived; // microseconds
    bit<48> left;
    bit<32> enq_timestamp;
    bit<32> enq_qdepth;
    bit<32> deq_timedelta;
    bit<32> deq_qdepth;
    bit<32> inside; // packets that ingress let in and egress has not seen yet
    bit<32> number; // how many ingress had let in, this one included
    bit<32> drawn;
}

struct headers_t {
    seen_t seen;
    order_t order;
}

struct meta_t {
    @field_list(1)
    bit<32> number;
    bit<32> drawn;
    bit<48> arrived;
}

// Index: port. Ingress adds one, egress takes one away.
register<bit<32>>(512) inside;
register<bit<32>>(1) let_in;

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        bit<32> count;
        let_in.read(count, 0);
        meta.number = count + 1;
        let_in.write(0, meta.number);
        inside.read(count, (bit<32>)hdr.order.to & 511);
        inside.write((bit<32>)hdr.order.to & 511, count + 1);
        random(meta.drawn, hdr.order.low, hdr.order.high);
        meta.arrived = sm.ingress_global_timestamp;
        sm.priority = (bit<3>)hdr.order.priority;
        if (hdr.order.what & 1 != 0) {
            sm.mcast_grp = hdr.order.to;
        } else {
            sm.egress_spec = (bit<9>)hdr.order.to;
        }
        if (hdr.order.what & 4 != 0) {
            clone_preserving_field_list(CloneType.I2E, 1, 1);
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        bit<32> count;
        inside.read(count, (bit<32>)hdr.order.to & 511);
        count = count - 1;
        inside.write((bit<32>)hdr.order.to & 511, count);
        if (hdr.order.what & 2 != 0) {
            mark_to_drop(sm);
        }
        if (hdr.order.what & 8 != 0 && sm.instance_type == 0) {
            clone_preserving_field_list(CloneType.E2E, 1, 1);
        }
        if (hdr.order.what & 16 != 0) {
            hdr.order.what = hdr.order.what & 0xef;
            recirculate_preserving_field_list(1);
        } else {
            hdr.seen.setValid();
            hdr.seen.instance_type = (bit<8>)sm.instance_type;
            hdr.seen.priority = (bit<8>)sm.priority;
            hdr.seen.rid = sm.egress_rid;
            hdr.seen.ingress_port = (bit<16>)sm.ingress_port;
            hdr.seen.arrived = meta.arrived;
            hdr.seen.left = sm.egress_global_timestamp;
            hdr.seen.enq_timestamp = sm.enq_timestamp;
            hdr.seen.enq_qdepth = (bit<32>)sm.enq_qdepth;
            hdr.seen.deq_timedelta = sm.deq_timedelta;
            hdr.seen.deq_qdepth = (bit<32>)sm.deq_qdepth;
            hdr.seen.inside = count;
            hdr.seen.number = meta.number;
            hdr.seen.drawn = meta.drawn;
        }
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.seen);
        packet.emit(hdr.order);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
