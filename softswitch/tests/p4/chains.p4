// SPDX-License-Identifier: Apache-2.0
// Long rows of tests for single bits, of which most fail: one whose steps only do something when their test
// holds, one over whole headers, and one that leaves something behind whether or not a test holds.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> what; // which of the three
    bit<32> base;
    bit<32> first;
    bit<32> second;
}

header answer_t {
    bit<32> hits;
    bit<32> last;
    bit<32> sum;
}

header block_t {
    bit<32> value;
}

struct headers_t {
    answer_t answer;
    order_t order;
    block_t[20] blocks;
}

struct meta_t {
    bit<32> first;
    bit<32> second;
    bit<32> hits;
    bit<32> last;
    bit<32> sum;
    bit<8> left;
}

register<bit<32>>(64) places;

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        meta.left = hdr.order.what >> 2;
        transition blocks;
    }
    state blocks {
        transition select(meta.left) {
            0: accept;
            default: block;
        }
    }
    state block {
        packet.extract(hdr.blocks.next);
        meta.left = meta.left - 1;
        transition blocks;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

// Where it writes is known before the test, and to nobody afterwards.
control Quiet(inout headers_t hdr, inout meta_t meta)(bit<32> number) {
    bit<32> at = hdr.order.base + number;
    action put() {
        places.write(at, number + 1);
        meta.hits = meta.hits + 1;
    }
    apply {
        if (meta.first & (32w1 << number) != 0) {
            put();
        } else if (meta.second & (32w1 << number) != 0) {
            places.write(at, number + 101);
        }
    }
}

control Block(inout headers_t hdr, inout meta_t meta)(bit<32> number) {
    apply {
        if (hdr.blocks[number].isValid()) {
            meta.sum = meta.sum + hdr.blocks[number].value;
        }
    }
}

// What it leaves behind is read by the next, and after the last.
control Loud(inout headers_t hdr, inout meta_t meta)(bit<32> number) {
    apply {
        meta.last = meta.last + number;
        if (meta.first & (32w1 << number) != 0) {
            meta.hits = meta.hits + meta.last;
        }
    }
}

#define ROW(KIND, P) \
    KIND(0) P##0; KIND(1) P##1; KIND(2) P##2; KIND(3) P##3; KIND(4) P##4; KIND(5) P##5; KIND(6) P##6; \
    KIND(7) P##7; KIND(8) P##8; KIND(9) P##9; KIND(10) P##10; KIND(11) P##11; KIND(12) P##12; KIND(13) P##13; \
    KIND(14) P##14; KIND(15) P##15; KIND(16) P##16; KIND(17) P##17; KIND(18) P##18; KIND(19) P##19;
#define APPLY(P) \
    P##0.apply(hdr, meta); P##1.apply(hdr, meta); P##2.apply(hdr, meta); P##3.apply(hdr, meta); \
    P##4.apply(hdr, meta); P##5.apply(hdr, meta); P##6.apply(hdr, meta); P##7.apply(hdr, meta); \
    P##8.apply(hdr, meta); P##9.apply(hdr, meta); P##10.apply(hdr, meta); P##11.apply(hdr, meta); \
    P##12.apply(hdr, meta); P##13.apply(hdr, meta); P##14.apply(hdr, meta); P##15.apply(hdr, meta); \
    P##16.apply(hdr, meta); P##17.apply(hdr, meta); P##18.apply(hdr, meta); P##19.apply(hdr, meta);

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    ROW(Quiet, quiet)
    ROW(Block, block)
    ROW(Loud, loud)
    apply {
        sm.egress_spec = 1;
        meta.first = hdr.order.first;
        meta.second = hdr.order.second;
        if (hdr.order.what & 3 == 1) {
            APPLY(quiet)
        } else if (hdr.order.what & 3 == 2) {
            APPLY(block)
        } else {
            APPLY(loud)
        }
        hdr.answer.setValid();
        hdr.answer.hits = meta.hits;
        hdr.answer.last = meta.last;
        hdr.answer.sum = meta.sum;
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
