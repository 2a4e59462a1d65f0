// SPDX-License-Identifier: Apache-2.0
// The parser: stacks, look-ahead, masked and multi-field selects, verify, advance, headers of any alignment.
// A report in front of the packet says how far it came.
#include <core.p4>
#include <v1model.p4>

error { BadVersion }

header report_t {
    bit<32> parser_error;
    bit<8> labels; // valid elements of the stack
    bit<8> last;   // value of the last one
    bit<8> kind;   // what was looked at ahead of the tail
    bit<7> pad;
    bit<1> odd_valid;
}

header start_t {
    bit<4> version;
    bit<12> flags;
    bit<8> next;
}

header label_t {
    bit<7> value;
    bit<1> bottom;
}

// Nothing in it starts on a byte but the first field.
header odd_t {
    bit<3> a;
    bit<13> b;
    bit<33> c;
    bit<48> d;
    bit<7> e;
    bit<72> f;
    bit<16> g;
}

header tail_t {
    bit<8> kind;
    bit<200> wide; // carried along, never computed with
}

struct headers_t {
    report_t report;
    start_t start;
    label_t[4] labels;
    odd_t odd;
    tail_t tail;
}

struct meta_t {
    bit<8> kind;
    bit<8> last;
    bit<8> count;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.start);
        verify(hdr.start.version == 4, error.BadVersion);
        transition select(hdr.start.next, hdr.start.flags) {
            (1, _): labels;
            (2, 0x800 &&& 0x800): odd;
            (2, _): skip;
            (3 &&& 0xf3, 0): tail;
            default: accept;
        }
    }

    state labels {
        packet.extract(hdr.labels.next);
        meta.count = (bit<8>)hdr.labels.lastIndex + 1;
        meta.last = (bit<8>)hdr.labels.last.value;
        transition select(hdr.labels.last.bottom) {
            0: labels;
            1: tail;
        }
    }

    state odd {
        packet.extract(hdr.odd);
        transition tail;
    }

    state skip {
        packet.advance((bit<32>)hdr.start.flags * 8);
        transition tail;
    }

    state tail {
        meta.kind = packet.lookahead<bit<8>>();
        transition select(packet.lookahead<bit<8>>()) {
            0: accept;
            default: whole_tail;
        }
    }

    state whole_tail {
        packet.extract(hdr.tail);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        hdr.report.setValid();
        hdr.report.parser_error = 0;
        if (sm.parser_error == error.PacketTooShort) {
            hdr.report.parser_error = 1;
        } else if (sm.parser_error == error.StackOutOfBounds) {
            hdr.report.parser_error = 3;
        } else if (sm.parser_error == error.BadVersion) {
            hdr.report.parser_error = 100;
        } else if (sm.parser_error != error.NoError) {
            hdr.report.parser_error = 255;
        }
        hdr.report.labels = meta.count;
        hdr.report.last = meta.last;
        hdr.report.kind = meta.kind;
        hdr.report.odd_valid = (bit<1>)hdr.odd.isValid();
        if (hdr.odd.isValid()) {
            hdr.odd.b = hdr.odd.b + 1;
            hdr.odd.c = hdr.odd.c ^ 0x1ffffffff;
        }
        if (hdr.labels[0].isValid() && hdr.start.flags == 1) {
            hdr.labels.pop_front(1);
        } else if (hdr.labels[0].isValid() && hdr.start.flags == 2) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = 0x55;
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.start);
        packet.emit(hdr.labels);
        packet.emit(hdr.odd);
        packet.emit(hdr.tail);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
