// SPDX-License-Identifier: Apache-2.0
// Unrolled loops in many shapes: what the code generator makes loops of, and what only looks like one.
// Each order works on 16 lanes of the packet and a row of the registers.
#include <core.p4>
#include <v1model.p4>

#define EACH(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)

header order_t {
    bit<8> what;
    bit<8> wide; // whether 64-bit lanes follow
    bit<32> base;
    bit<32> keep;
}

header lanes_t {
    bit<32> l0;
    bit<32> l1;
    bit<32> l2;
    bit<32> l3;
    bit<32> l4;
    bit<32> l5;
    bit<32> l6;
    bit<32> l7;
    bit<32> l8;
    bit<32> l9;
    bit<32> l10;
    bit<32> l11;
    bit<32> l12;
    bit<32> l13;
    bit<32> l14;
    bit<32> l15;
}

header bytes_t {
    bit<8> b0;
    bit<8> b1;
    bit<8> b2;
    bit<8> b3;
    bit<8> b4;
    bit<8> b5;
    bit<8> b6;
    bit<8> b7;
    bit<8> b8;
    bit<16> s0;
    bit<16> s1;
    bit<16> s2;
    bit<16> s3;
    bit<16> s4;
    bit<16> s5;
    bit<16> s6;
    bit<16> s7;
    bit<16> s8;
    bit<64> d0;
    bit<64> d1;
    bit<64> d2;
    bit<64> d3;
    bit<64> d4;
    bit<64> d5;
    bit<64> d6;
    bit<64> d7;
    bit<64> d8;
}

struct headers_t {
    order_t order;
    lanes_t lanes;
    bytes_t bytes;
}

struct meta_t {
    bit<32> scratch;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        packet.extract(hdr.lanes);
        transition select(hdr.order.wide) {
            1: wide;
            default: accept;
        }
    }
    state wide {
        packet.extract(hdr.bytes);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(64) store;
    register<bit<64>>(16) store64;
    bit<32> at = hdr.order.base;
    bit<32> old;
    bit<64> old64;

#define ADD(i) { bit<32> was; store.read(was, hdr.order.base + i); \
    hdr.lanes.l##i = (was & hdr.order.keep) + hdr.lanes.l##i; store.write(hdr.order.base + i, hdr.lanes.l##i); }
    action add() { EACH(ADD) }

#define MAX(i) { bit<32> was; store.read(was, hdr.order.base + i); was = was & hdr.order.keep; \
    if (was > hdr.lanes.l##i) { hdr.lanes.l##i = was; } store.write(hdr.order.base + i, hdr.lanes.l##i); }
    action maximum() { EACH(MAX) }

#define WALK(i) store.read(old, at); hdr.lanes.l##i = old ^ hdr.lanes.l##i; store.write(at, hdr.lanes.l##i); at = at + 1;
    action walk() { EACH(WALK) }

#define DOWN(i) store.read(hdr.lanes.l##i, hdr.order.base - i);
    action down() { EACH(DOWN) }

#define STRIDE(i) store.write((hdr.order.base << 2) | (i & 3), hdr.lanes.l##i + i);
    action stride() { EACH(STRIDE) }

// Each step reads what the step before wrote: order matters.
#define CHAIN(i) store.read(old, hdr.order.base + i); store.write(hdr.order.base + i + 1, old + hdr.lanes.l##i);
    action chain() { EACH(CHAIN) }

#define SCAN(i) meta.scratch = meta.scratch + hdr.lanes.l##i; hdr.lanes.l##i = meta.scratch;
    action scan() { EACH(SCAN) }

    action shift() {
        hdr.lanes.l0 = hdr.lanes.l1; hdr.lanes.l1 = hdr.lanes.l2; hdr.lanes.l2 = hdr.lanes.l3;
        hdr.lanes.l3 = hdr.lanes.l4; hdr.lanes.l4 = hdr.lanes.l5; hdr.lanes.l5 = hdr.lanes.l6;
        hdr.lanes.l6 = hdr.lanes.l7; hdr.lanes.l7 = hdr.lanes.l8;
    }

    action smear() {
        hdr.lanes.l1 = hdr.lanes.l0; hdr.lanes.l2 = hdr.lanes.l1; hdr.lanes.l3 = hdr.lanes.l2;
        hdr.lanes.l4 = hdr.lanes.l3; hdr.lanes.l5 = hdr.lanes.l4; hdr.lanes.l6 = hdr.lanes.l5;
    }

#define SATURATE(i) store.read(old, hdr.order.base + i); hdr.lanes.l##i = hdr.lanes.l##i |-| old; \
    store.write(hdr.order.base + i, old |+| hdr.lanes.l##i);
    action saturate() { EACH(SATURATE) }

#define WIDE(i) store64.read(old64, hdr.order.base + i); hdr.bytes.d##i = hdr.bytes.d##i + old64; \
    store64.write(hdr.order.base + i, hdr.bytes.d##i); hdr.bytes.b##i = hdr.bytes.b##i + 1; \
    hdr.bytes.s##i = hdr.bytes.s##i << 1;
    action wide() { WIDE(0) WIDE(1) WIDE(2) WIDE(3) WIDE(4) WIDE(5) WIDE(6) WIDE(7) WIDE(8) }

    apply {
        sm.egress_spec = 1;
        if (hdr.order.what == 1) {
            add();
        } else if (hdr.order.what == 2) {
            maximum();
        } else if (hdr.order.what == 3) {
            walk();
        } else if (hdr.order.what == 4) {
            down();
        } else if (hdr.order.what == 5) {
            stride();
        } else if (hdr.order.what == 6) {
            chain();
        } else if (hdr.order.what == 7) {
            scan();
        } else if (hdr.order.what == 8) {
            shift();
        } else if (hdr.order.what == 9) {
            smear();
        } else if (hdr.order.what == 10) {
            saturate();
        } else if (hdr.order.what == 11) {
            wide();
        }
        hdr.order.base = at;
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.order);
        packet.emit(hdr.lanes);
        packet.emit(hdr.bytes);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
