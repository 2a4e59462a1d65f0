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

header pair_t {
    // all v are one entry's
    bit<64> v0;
    bit<64> v1;
    bit<64> v2;
    bit<64> v3;
    bit<64> v4;
    bit<64> v5;
    bit<64> v6;
    bit<64> v7;
    bit<64> v8;
    bit<64> v9;
    bit<64> v10;
    bit<64> v11;
    bit<64> v12;
    bit<64> v13;
    bit<64> v14;
    bit<64> v15;
    bit<64> v16;
    bit<64> v17;
    bit<64> v18;
    bit<64> v19;
    bit<64> v20;
    bit<64> v21;
    bit<64> v22;
    bit<64> v23;
    bit<64> other; // another table's
}

struct headers_t {
    answer_t answer;
    query_t query;
    pair_t pair;
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

    action many(bit<64> v0, bit<64> v1, bit<64> v2, bit<64> v3, bit<64> v4, bit<64> v5,
            bit<64> v6, bit<64> v7, bit<64> v8, bit<64> v9, bit<64> v10, bit<64> v11,
            bit<64> v12, bit<64> v13, bit<64> v14, bit<64> v15, bit<64> v16, bit<64> v17,
            bit<64> v18, bit<64> v19, bit<64> v20, bit<64> v21, bit<64> v22, bit<64> v23) {
        hdr.pair.setValid();
        hdr.pair.v0 = v0;
        hdr.pair.v1 = v1;
        hdr.pair.v2 = v2;
        hdr.pair.v3 = v3;
        hdr.pair.v4 = v4;
        hdr.pair.v5 = v5;
        hdr.pair.v6 = v6;
        hdr.pair.v7 = v7;
        hdr.pair.v8 = v8;
        hdr.pair.v9 = v9;
        hdr.pair.v10 = v10;
        hdr.pair.v11 = v11;
        hdr.pair.v12 = v12;
        hdr.pair.v13 = v13;
        hdr.pair.v14 = v14;
        hdr.pair.v15 = v15;
        hdr.pair.v16 = v16;
        hdr.pair.v17 = v17;
        hdr.pair.v18 = v18;
        hdr.pair.v19 = v19;
        hdr.pair.v20 = v20;
        hdr.pair.v21 = v21;
        hdr.pair.v22 = v22;
        hdr.pair.v23 = v23;
    }
    action one(bit<64> value) {
        hdr.pair.other = value;
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

    table left {
        key = { hdr.query.mac: exact; }
        actions = { many; }
        size = 1024;
    }
    table right {
        key = { hdr.query.mac: ternary; }
        actions = { one; }
        size = 1024;
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
        } else if (hdr.query.table_ == 8) {
            left.apply();
            right.apply();
        }
        hdr.query.setInvalid(); // not reached after exit
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
        packet.emit(hdr.pair);
        packet.emit(hdr.query);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
