// SPDX-License-Identifier: Apache-2.0
// Varbit fields: of any length the packet says, on any bit, in stacks; what is hashed and summed over them; and
// how long the packet is.
#include <core.p4>
#include <v1model.p4>

header start_t {
    bit<8> op;
    bit<8> count; // of options
    bit<32> bits; // of the first one's data
    bit<16> sum;
    bit<32> hash;
    bit<16> length; // at egress
    bit<8> problem;
}

// Nothing of it starts on a byte but the first field.
header ragged_t {
    bit<3> a;
    varbit<80> data;
    bit<12> b;
    bit<33> c;
}

header option_t {
    bit<8> kind;
    bit<8> size; // bytes of data
    varbit<128> data;
}

header tail_t {
    bit<16> value;
}

struct headers_t {
    start_t start;
    ragged_t ragged;
    ragged_t copy;
    option_t[3] options;
    tail_t tail;
}

struct meta_t {
    bit<8> left;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.start);
        meta.left = hdr.start.count;
        packet.extract(hdr.ragged, hdr.start.bits);
        transition next;
    }
    state next {
        transition select(meta.left) {
            0: tail;
            default: option;
        }
    }
    state option {
        meta.left = meta.left - 1;
        packet.extract(hdr.options.next, (bit<32>)(packet.lookahead<bit<16>>()[7:0]) << 3);
        transition next;
    }
    state tail {
        packet.extract(hdr.tail);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.start.op == 9,
            { hdr.ragged.a, hdr.ragged.data, hdr.ragged.b, hdr.ragged.c },
            hdr.start.sum, HashAlgorithm.csum16);
    }
}

control Compute(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.start.op != 9,
            { hdr.start.op, hdr.start.count, hdr.options[0].kind, hdr.options[0].size, hdr.options[0].data, hdr.tail.value },
            hdr.start.sum, HashAlgorithm.csum16);
    }
}

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        hdr.start.problem = (bit<8>)(bit<1>)sm.checksum_error << 7;
        if (sm.parser_error == error.PacketTooShort) { hdr.start.problem = hdr.start.problem | 1; }
        if (sm.parser_error == error.StackOutOfBounds) { hdr.start.problem = hdr.start.problem | 3; }
        if (sm.parser_error == error.HeaderTooShort) { hdr.start.problem = hdr.start.problem | 4; }
        if (sm.parser_error == error.ParserInvalidArgument) { hdr.start.problem = hdr.start.problem | 6; }
        if (hdr.options[1].isValid()) {
            hash(hdr.start.hash, HashAlgorithm.crc32, 32w0,
                 { hdr.ragged.a, hdr.ragged.data, hdr.ragged.b, hdr.options[1].data, hdr.ragged.c },
                 32w0xffffffff);
        }

        if (hdr.start.op == 1) {
            hdr.copy = hdr.ragged;
            hdr.copy.b = 0xabc;
        } else if (hdr.start.op == 2) {
            hdr.ragged.setInvalid();
        } else if (hdr.start.op == 3) {
            hdr.copy.setValid(); // no data yet
            hdr.copy.data = hdr.ragged.data;
        } else if (hdr.start.op == 4) {
            hdr.options.pop_front(1);
        } else if (hdr.start.op == 5) {
            hdr.options.push_front(1);
            hdr.options[0].setValid();
            hdr.options[0].kind = 7;
        } else if (hdr.start.op == 6 && hdr.start.count < 3) {
            hdr.options[0] = hdr.options[hdr.start.count];
        } else if (hdr.start.op == 7) {
            sm.mcast_grp = 1;
        } else if (hdr.start.op == 8) {
            hdr.ragged.setInvalid();
            hdr.ragged.setValid();
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.start.length = (bit<16>)sm.packet_length;
        if (hdr.start.op == 7 && sm.egress_rid == 2) {
            hdr.options[0].data = hdr.options[1].data; // the replicas differ in length
        }
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
