// SPDX-License-Identifier: Apache-2.0
// Mixed keys, constant entries of every kind, and tables with room for one entry. The packet asks for one table.
#include <core.p4>
#include <v1model.p4>

header query_t {
    bit<8> table_;
    bit<32> src;
    bit<32> dst;
    bit<16> port;
    bit<8> kind;
}

header answer_t {
    bit<8> hit;
    bit<16> value;
}

struct headers_t {
    query_t query;
    answer_t answer;
}

struct meta_t {}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.query);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action set(bit<16> value) {
        hdr.answer.value = value;
    }
    action add(bit<16> value) {
        hdr.answer.value = value + 1000;
    }

    table mixed {
        key = { hdr.query.src: lpm; hdr.query.dst: ternary; hdr.query.kind: exact; }
        actions = { set; add; NoAction; }
        const default_action = NoAction();
        size = 64;
    }
    table everything {
        key = {
            hdr.query.src: lpm;
            hdr.query.dst: ternary;
            hdr.query.port: range;
            hdr.query.kind: optional;
            hdr.answer.isValid(): exact @name("answered");
        }
        actions = { set; add; }
        default_action = set(9);
        size = 64;
    }
    table single {
        key = { hdr.query.kind: exact; }
        actions = { set; add; }
        size = 1;
    }
    table fixed_exact {
        key = { hdr.query.kind: exact; hdr.query.port: exact; }
        actions = { set; add; }
        const default_action = add(1);
        const entries = {
            (1, 2): set(11);
            (1, 3): add(12);
        }
    }
    table fixed_lpm {
        key = { hdr.query.src: lpm; hdr.query.kind: exact; }
        actions = { set; add; }
        const entries = {
            (0x0a000000 &&& 0xff000000, 1): set(21);
            (0x0a010000 &&& 0xffff0000, 1): set(22);
            (0x0a010203, 1): set(23);
            (_, 1): set(24);
        }
    }
    table fixed_range {
        key = { hdr.query.port: range; hdr.query.dst: ternary; hdr.query.kind: optional; }
        actions = { set; add; }
        const entries = {
            (10 .. 20, _, 5): set(31);
            (15 .. 30, 0x80000000 &&& 0x80000000, _): set(32);
            (0 .. 100, _, _): set(33);
            (_, 7, 7): add(34);
        }
    }

    apply {
        sm.egress_spec = 3;
        hdr.answer.setValid();
        if (hdr.query.table_ == 0) {
            if (mixed.apply().hit) { hdr.answer.hit = 1; }
        } else if (hdr.query.table_ == 1) {
            if (everything.apply().hit) { hdr.answer.hit = 1; }
        } else if (hdr.query.table_ == 2) {
            if (single.apply().hit) { hdr.answer.hit = 1; }
        } else if (hdr.query.table_ == 3) {
            if (fixed_exact.apply().hit) { hdr.answer.hit = 1; }
        } else if (hdr.query.table_ == 4) {
            if (fixed_lpm.apply().hit) { hdr.answer.hit = 1; }
        } else if (hdr.query.table_ == 5) {
            if (fixed_range.apply().hit) { hdr.answer.hit = 1; }
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
