// SPDX-License-Identifier: Apache-2.0
// State by slot, by flow, in one place, or none: what threads may share depends on which actions entries have.
#include <core.p4>
#include <v1model.p4>

header request_t {
    bit<8> what;
    bit<8> flow;
    bit<16> slot;
    bit<32> value;
    bit<32> found;
}

struct headers_t { request_t request; }
struct meta_t { bit<32> cell; bit<1> kept; bit<16> depth; }

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.request); transition accept; }
}
control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.request); } }

register<bit<16>>(16) depths; // of ports: loose

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(512) sums;
    register<bit<32>>(256) last;
    register<bit<32>>(1) total;
    meter(512, MeterType.packets) pace;
    counter(16, CounterType.packets_and_bytes) requests;
    direct_counter(CounterType.packets_and_bytes) hits;

    action add(bit<32> base) {
        meta.cell = (base + (bit<32>)hdr.request.slot) & 511;
        meta.kept = 1;
        bit<32> sum;
        sums.read(sum, meta.cell);
        hdr.request.found = sum;
        sums.write(meta.cell, sum + hdr.request.value);
    }
    action mark(bit<32> base) {
        bit<2> colour;
        pace.execute_meter(base + (bit<32>)hdr.request.slot, colour);
        hdr.request.found = (bit<32>)colour;
    }
    action remember() {
        last.read(hdr.request.found, (bit<32>)hdr.request.flow);
        last.write((bit<32>)hdr.request.flow, hdr.request.value);
    }
    action count_all() {
        total.read(hdr.request.found, 0);
        total.write(0, hdr.request.found + 1);
    }
    action draw() { random(hdr.request.found, 0, 7); }
    action look() {
        depths.read(meta.depth, (bit<32>)hdr.request.what & 15);
        hdr.request.found = (bit<32>)meta.depth;
    }
    action nothing() {}
    table requested {
        key = { hdr.request.what: exact; }
        actions = { add; mark; remember; count_all; draw; look; nothing; }
        default_action = nothing;
        counters = hits;
    }
    apply {
        requested.apply();
        requests.count((bit<32>)hdr.request.what & 15);
        if (meta.kept == 1) {
            last.write(meta.cell & 255, hdr.request.value);
        }
        if (hdr.request.flow == 255) {
            sm.mcast_grp = 1;
        } else {
            sm.egress_spec = (bit<9>)hdr.request.flow[1:0];
        }
    }
}
control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply { depths.write((bit<32>)sm.egress_port & 15, (bit<16>)sm.deq_qdepth); }
}
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
