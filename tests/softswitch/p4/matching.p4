// SPDX-License-Identifier: Apache-2.0
// Tables of every match kind. The packet asks for one table; the answer is the number its action carries.
#include <core.p4>
#include <v1model.p4>

header query_t {
    bit<8> table_;
    bit<48> mac;
    bit<32> ip;
    bit<128> ip6;
    bit<16> port;
    bit<4> low;
    bit<4> high;
}

header answer_t {
    bit<8> hit;
    bit<8> ran; // which action
    bit<32> value;
    bit<128> wide;
}

struct headers_t {
    answer_t answer;
    query_t query;
}

struct meta_t {
    bit<8> unused;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.query);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) hits;

    action number(bit<32> value) {
        hdr.answer.ran = 1;
        hdr.answer.value = value;
    }
    action wide(bit<128> value) {
        hdr.answer.ran = 2;
        hdr.answer.wide = value;
    }
    action miss() {
        hdr.answer.ran = 3;
    }
    action stop() {
        hdr.answer.ran = 4;
        exit;
    }

    table exact_ {
        key = { hdr.query.mac: exact; hdr.query.low: exact @name("low"); hdr.query.isValid(): exact @name("there"); }
        actions = { number; wide; stop; @defaultonly miss; }
        default_action = miss();
        counters = hits;
        size = 64;
    }
    table routes {
        key = { hdr.query.ip: lpm; hdr.query.low: exact; }
        actions = { number; miss; }
        default_action = miss();
        size = 1024;
    }
    table routes6 {
        key = { hdr.query.ip6: lpm; }
        actions = { number; wide; NoAction; }
        size = 1024;
    }
    table acl {
        key = { hdr.query.ip: ternary; hdr.query.port: range; hdr.query.mac: optional; }
        actions = { number; miss; }
        default_action = number(7);
        size = 1024;
    }
    table masks {
        key = { hdr.query.ip: ternary; hdr.query.ip6: ternary; }
        actions = { number; }
        size = 1024;
    }
    table fixed {
        key = { hdr.query.low: exact; hdr.query.high: ternary; }
        actions = { number; miss; }
        const default_action = miss();
        const entries = {
            (1, 0x8 &&& 0x8): number(11);
            (1, _): number(12);
            (2, 3): number(13);
        }
    }
    table sliced {
        key = { hdr.query.mac[15:8]: exact; hdr.query.ip & 0xff00: exact @name("masked"); }
        actions = { number; }
        size = 16;
    }

    apply {
        sm.egress_spec = 3;
        hdr.answer.setValid();
        if (hdr.query.table_ == 1) {
            switch (exact_.apply().action_run) {
                number: { hdr.answer.hit = 1; }
                wide: { hdr.answer.hit = 2; }
                miss: { hdr.answer.hit = 0; }
            }
        } else if (hdr.query.table_ == 2) {
            if (routes.apply().hit) {
                hdr.answer.hit = 1;
            }
        } else if (hdr.query.table_ == 3) {
            if (!routes6.apply().miss) {
                hdr.answer.hit = 1;
            }
        } else if (hdr.query.table_ == 4) {
            acl.apply();
        } else if (hdr.query.table_ == 5) {
            masks.apply();
        } else if (hdr.query.table_ == 6) {
            fixed.apply();
        } else if (hdr.query.table_ == 7) {
            sliced.apply();
        }
        hdr.query.setInvalid(); // not reached after exit
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
        packet.emit(hdr.query);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
