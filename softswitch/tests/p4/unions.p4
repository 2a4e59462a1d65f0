// SPDX-License-Identifier: Apache-2.0
// Header unions, stacks of them, and stacks of headers whose elements are chosen at run time. The first header
// says what is done to the others.
#include <core.p4>
#include <v1model.p4>

header top_t {
    bit<8> op;
    bit<8> arg;
    bit<16> report;
}

header short_t {
    bit<8> kind; // 1
    bit<8> x;
}

header sized_t {
    bit<8> kind; // 2
    bit<8> size; // of v, in bits
    varbit<64> v;
}

header long_t {
    bit<8> kind; // 3
    bit<32> z;
}

header_union choice_t {
    short_t a;
    sized_t b;
    long_t c;
}

struct headers_t {
    top_t top;
    choice_t one;
    choice_t[3] many;
    short_t[70] items; // more than a 64-bit word of validity bits
    choice_t spare;
}

struct meta_t {
    bit<16> size;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.top);
        transition select(hdr.top.op) {
            0x00 &&& 0xe0: one; // 0x00 to 0x1f
            0x20 &&& 0xe0: many;
            0x40 &&& 0xe0: items;
            0x60 &&& 0xe0: twice;
            default: accept;
        }
    }

    state one {
        transition select(packet.lookahead<bit<8>>()) {
            1: one_a;
            2: one_b;
            3: one_c;
            default: accept;
        }
    }
    state one_a { packet.extract(hdr.one.a); transition accept; }
    state one_b { packet.extract(hdr.one.b, (bit<32>)packet.lookahead<bit<16>>()[7:0]); transition accept; }
    state one_c { packet.extract(hdr.one.c); transition accept; }

    // The second member takes the place of the first.
    state twice {
        packet.extract(hdr.one.a);
        packet.extract(hdr.one.c);
        transition accept;
    }

    state many {
        transition select(packet.lookahead<bit<8>>()) {
            1: many_a;
            2: many_b;
            3: many_c;
            default: accept;
        }
    }
    state many_a { packet.extract(hdr.many.next.a); transition many; }
    state many_b { packet.extract(hdr.many.next.b, (bit<32>)packet.lookahead<bit<16>>()[7:0]); transition many; }
    state many_c { packet.extract(hdr.many.next.c); transition many; }

    state items {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.kind) {
            1: items;
            default: accept;
        }
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    varbit<64> kept;

    apply {
        sm.egress_spec = 2;
        if (sm.parser_error == error.PacketTooShort) { hdr.top.report[15:8] = 1; }
        if (sm.parser_error == error.StackOutOfBounds) { hdr.top.report[15:8] = 3; }
        if (sm.parser_error == error.HeaderTooShort) { hdr.top.report[15:8] = 4; }
        if (sm.parser_error == error.ParserInvalidArgument) { hdr.top.report[15:8] = 6; }
        if (hdr.one.isValid()) { hdr.top.report[0:0] = 1; }
        if (hdr.one.b.isValid()) { hdr.top.report[1:1] = 1; }
        if (hdr.many[1].c.isValid()) { hdr.top.report[2:2] = 1; }
        if (hdr.one == hdr.many[1]) { hdr.top.report[3:3] = 1; }
        if (hdr.many[0].b == hdr.many[1].b) { hdr.top.report[4:4] = 1; }

        if (hdr.top.op == 0x01) { // another member becomes the valid one
            hdr.one.a.setValid();
            hdr.one.a.x = 9;
        } else if (hdr.top.op == 0x02) {
            hdr.one.b.setInvalid();
        } else if (hdr.top.op == 0x03) {
            hdr.spare = hdr.one;
            hdr.one.c.setValid();
        } else if (hdr.top.op == 0x04) {
            hdr.one.b.setInvalid();
            hdr.one.b.setValid(); // as long as before, but zero
            hdr.one.b.kind = 5;
        } else if (hdr.top.op == 0x21) {
            hdr.many.pop_front(1);
        } else if (hdr.top.op == 0x22) {
            hdr.many.push_front(1);
        } else if (hdr.top.op == 0x23) {
            hdr.many.pop_front(2);
        } else if (hdr.top.op == 0x24) {
            hdr.many.push_front(2);
        } else if (hdr.top.op == 0x25) {
            hdr.many.pop_front(4);
        } else if (hdr.top.op == 0x26) {
            hdr.one = hdr.many[1];
            hdr.many[1].c.setValid();
            hdr.many[1].c.z = 7;
        } else if (hdr.top.op == 0x27) {
            kept = hdr.many[0].b.v;
            hdr.many[0].b.v = hdr.many[1].b.v;
            hdr.many[1].b.v = kept;
        } else if (hdr.top.op == 0x41) {
            hdr.items[hdr.top.arg].setValid();
            hdr.items[hdr.top.arg].x = 6;
        } else if (hdr.top.op == 0x42) {
            hdr.items[hdr.top.arg].setInvalid();
        } else if (hdr.top.op == 0x43) {
            hdr.items[1] = hdr.items[hdr.top.arg];
        } else if (hdr.top.op == 0x44) {
            hdr.items.push_front(66);
        } else if (hdr.top.op == 0x45) {
            hdr.items.pop_front(3);
        } else if (hdr.top.op == 0x46) {
            hdr.items[hdr.top.arg].x = hdr.items[hdr.top.arg - 1].x;
        }
        meta.size = (bit<16>)sm.packet_length;
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        // headers that were added and removed count
        hdr.top.arg = (bit<8>)((bit<16>)sm.packet_length - meta.size);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.top);
        packet.emit(hdr.one);
        packet.emit(hdr.many);
        packet.emit(hdr.items);
        packet.emit(hdr.spare);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
