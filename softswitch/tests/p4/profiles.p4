// SPDX-License-Identifier: Apache-2.0
// Action profiles and selectors. The packet asks for one table; the answer is what its action carries.
#include <core.p4>
#include <v1model.p4>

header query_t {
    bit<8> table_;
    bit<32> ip;
    bit<16> port;
    bit<4> low;
    bit<4> high;
    bit<64> entropy;
}

header answer_t {
    bit<8> hit;
    bit<8> ran; // which action
    bit<32> value;
    bit<128> wide;
}

header extra_t {
    bit<16> value;
}

struct headers_t {
    answer_t answer;
    query_t query;
    extra_t extra;
}

struct meta_t {}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.query);
        transition select(hdr.query.high) {
            1: more;
            default: accept;
        }
    }
    state more {
        packet.extract(hdr.extra);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action_profile(4) shared;
    action_selector(HashAlgorithm.crc16, 64, 16) by_crc16;
    action_selector(HashAlgorithm.identity, 64, 32) by_value;
    direct_counter(CounterType.packets_and_bytes) hits;

    action number(bit<32> value) {
        hdr.answer.ran = 1;
        hdr.answer.value = value;
    }
    action wide(bit<128> value) {
        hdr.answer.ran = 2;
        hdr.answer.wide = value;
    }
    action miss(bit<32> value) {
        hdr.answer.ran = 3;
        hdr.answer.value = value;
    }

    table first {
        key = { hdr.query.ip: exact; }
        actions = { number; wide; NoAction; }
        implementation = shared;
        counters = hits;
        size = 16;
    }
    table second {
        key = { hdr.query.port: ternary; }
        actions = { number; wide; NoAction; }
        implementation = shared;
        size = 16;
    }
    table spread {
        key = {
            hdr.query.ip: lpm;
            hdr.query.entropy: selector;
            hdr.query.low: selector;
            hdr.query.high: selector;
            hdr.extra.value: selector;
        }
        actions = { number; wide; }
        implementation = by_crc16;
        size = 64;
    }
    table chosen {
        key = { hdr.query.ip: exact; hdr.query.port: selector; }
        actions = { number; wide; @defaultonly miss; }
        default_action = miss(99);
        implementation = by_value;
        size = 64;
    }

    apply {
        sm.egress_spec = 3;
        hdr.answer.setValid();
        if (hdr.query.table_ == 1) {
            switch (first.apply().action_run) {
                number: { hdr.answer.hit = 1; }
                wide: { hdr.answer.hit = 2; }
            }
        } else if (hdr.query.table_ == 2) {
            if (second.apply().hit) {
                hdr.answer.hit = 1;
            }
        } else if (hdr.query.table_ == 3) {
            if (spread.apply().hit) {
                hdr.answer.hit = 1;
            }
        } else if (hdr.query.table_ == 4) {
            chosen.apply();
        }
        hdr.query.setInvalid();
        hdr.extra.setInvalid();
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
        packet.emit(hdr.query);
        packet.emit(hdr.extra);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
