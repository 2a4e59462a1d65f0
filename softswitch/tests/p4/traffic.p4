// SPDX-License-Identifier: Apache-2.0
// Where packets go: unicast, multicast, drops, clones, resubmission, recirculation, truncation. The packet
// says what is to be done; every copy carries what its egress saw.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> what;
    bit<16> argument;
    bit<8> rounds;
}

header seen_t {
    bit<8> instance_type;
    bit<16> egress_port;
    bit<16> rid;
    bit<16> ingress_port;
    bit<16> length;
    bit<8> kept;
    bit<8> lost;
    bit<32> stamp; // microseconds
}

struct headers_t {
    seen_t seen;
    order_t order;
}

struct meta_t {
    @field_list(1)
    bit<8> kept;
    bit<8> lost;
}

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
        sm.egress_spec = 1;
        if (sm.instance_type == 0) {
            meta.kept = 0x77;
            meta.lost = 0x99;
        }
        if (hdr.order.what == 1) { // unicast
            sm.egress_spec = (bit<9>)hdr.order.argument;
        } else if (hdr.order.what == 2) { // multicast; a drop before does not matter
            mark_to_drop(sm);
            sm.mcast_grp = hdr.order.argument;
        } else if (hdr.order.what == 3) { // a drop after multicast wins
            sm.mcast_grp = hdr.order.argument;
            mark_to_drop(sm);
        } else if (hdr.order.what == 4) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.order.argument, 1);
            hdr.order.rounds = 0xee; // the clone is the packet as it came
        } else if (hdr.order.what == 5 && hdr.order.rounds != 0) {
            // headers are parsed again from the packet as it came; only the field list survives
            if (meta.kept < 0x79) {
                meta.kept = meta.kept + 1;
                resubmit_preserving_field_list(1);
            }
        } else if (hdr.order.what == 8) {
            truncate((bit<32>)hdr.order.argument);
        } else if (hdr.order.what == 9) {
            mark_to_drop(sm);
            clone(CloneType.I2E, (bit<32>)hdr.order.argument);
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.order.what == 6 && sm.instance_type == 0) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.order.argument, 1);
        }
        if (hdr.order.what == 10) { // without end
            recirculate_preserving_field_list(1);
            clone(CloneType.E2E, (bit<32>)hdr.order.argument);
        } else if (hdr.order.what == 7 && hdr.order.rounds != 0) {
            hdr.order.rounds = hdr.order.rounds - 1;
            recirculate_preserving_field_list(1);
        } else {
            hdr.seen.setValid();
            hdr.seen.instance_type = (bit<8>)sm.instance_type;
            hdr.seen.egress_port = (bit<16>)sm.egress_port;
            hdr.seen.rid = sm.egress_rid;
            hdr.seen.ingress_port = (bit<16>)sm.ingress_port;
            hdr.seen.length = (bit<16>)sm.packet_length;
            hdr.seen.kept = meta.kept;
            hdr.seen.lost = meta.lost;
            hdr.seen.stamp = (bit<32>)sm.egress_global_timestamp;
        }
        if (hdr.order.what == 2 && sm.egress_rid == 13) {
            mark_to_drop(sm);
        }
        meta.lost = 0x11; // each replica starts from what ingress left
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.seen);
        packet.emit(hdr.order);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
