// SPDX-License-Identifier: Apache-2.0
// Parser value sets, looking ahead into a whole header, advancing by what the packet says, ranges in a select;
// and what standard metadata says in ingress and egress.
#include <core.p4>
#include <v1model.p4>

header start_t {
    bit<8> op;
    bit<8> x;
    bit<16> y;
}

header report_t {
    bit<8> path; // one bit per state
    bit<8> problem;
    bit<32> ahead; // folded from what was looked at
    bit<16> ingress_port;
    bit<16> egress_port;
    bit<16> length_in;
    bit<16> length_out;
    bit<8> type_in;
    bit<8> type_out;
    bit<16> rid;
    bit<16> group;
    bit<8> timely; // timestamps and what is set for egress are what they must be
}

// More than 128 bits, on no whole bytes.
header record_t {
    bit<4> version;
    bit<128> address;
    bit<9> port;
    bit<35> rest;
}

struct pair_t {
    bit<8> x;
    bit<12> y;
}

struct headers_t {
    report_t report;
    start_t start;
    record_t record;
}

struct meta_t {
    bit<8> path;
    record_t ahead;
    bit<48> came;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    value_set<bit<8>>(4) ops;
    value_set<pair_t>(8) pairs;
    value_set<bit<8>>(2) nobody;

    state start {
        packet.extract(hdr.start);
        transition select(hdr.start.op) {
            nobody: skip;
            ops: in_ops;
            0x10..0x2d: in_range;
            0x80 &&& 0xc0: look;
            default: accept;
        }
    }
    state in_ops {
        meta.path = meta.path | 1;
        transition select(hdr.start.x, hdr.start.y[11:0]) {
            pairs: in_pairs;
            (5, _): look;
            default: accept;
        }
    }
    state in_pairs {
        meta.path = meta.path | 2;
        transition look;
    }
    state in_range {
        meta.path = meta.path | 4;
        transition select(hdr.start.x, hdr.start.y) {
            (3..77, 0x100..0x1ff): skip;
            (_, 9): look;
        }
    }
    state look {
        meta.path = meta.path | 8;
        meta.ahead = packet.lookahead<record_t>();
        verify(meta.ahead.version != 15, error.NoMatch);
        transition select(meta.ahead.address, meta.ahead.port) {
            (1, _): accept;
            (0x00112233445566778899aabbccddeeff &&& 0xffffffff00000000000000000000ffff, 0x55 &&& 0xff): take;
            default: skip;
        }
    }
    state take {
        meta.path = meta.path | 16;
        packet.extract(hdr.record);
        transition accept;
    }
    state skip {
        meta.path = meta.path | 32;
        packet.advance((bit<32>)hdr.start.x);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.start.op[0:0] == 1, { hdr.start.op, hdr.start.x }, hdr.start.y, HashAlgorithm.csum16);
    }
}
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.report.setValid();
        hdr.report.path = meta.path;
        hdr.report.problem = (bit<8>)sm.checksum_error << 7;
        if (sm.parser_error == error.PacketTooShort) { hdr.report.problem[3:0] = 1; }
        if (sm.parser_error == error.NoMatch) { hdr.report.problem[3:0] = 2; }
        if (sm.parser_error == error.ParserInvalidArgument) { hdr.report.problem[3:0] = 6; }
        if (meta.ahead.isValid()) {
            hdr.report.ahead = meta.ahead.address[31:0] ^ meta.ahead.address[127:96]
                ^ (bit<32>)meta.ahead.port ^ meta.ahead.rest[34:3];
        }
        hdr.report.ingress_port = (bit<16>)sm.ingress_port;
        hdr.report.length_in = (bit<16>)sm.packet_length;
        hdr.report.type_in = (bit<8>)sm.instance_type;
        sm.priority = 5;
        if (sm.enq_timestamp == 0 && sm.deq_timedelta == 0 && sm.enq_qdepth == 0 && sm.egress_port == 0) {
            hdr.report.timely[0:0] = 1;
        }
        meta.came = sm.ingress_global_timestamp;
        sm.egress_spec = 2;
        if (hdr.start.x == 6) { sm.mcast_grp = 1; }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.report.egress_port = (bit<16>)sm.egress_port;
        hdr.report.length_out = (bit<16>)sm.packet_length;
        hdr.report.type_out = (bit<8>)sm.instance_type;
        hdr.report.rid = (bit<16>)sm.egress_rid;
        hdr.report.group = sm.mcast_grp;
        if (sm.egress_global_timestamp >= meta.came && sm.ingress_global_timestamp == meta.came) {
            hdr.report.timely[1:1] = 1;
        }
        if (sm.priority == 5 && sm.egress_spec == 0) { hdr.report.timely[2:2] = 1; }
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.report);
        packet.emit(hdr.start);
        packet.emit(hdr.record);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
