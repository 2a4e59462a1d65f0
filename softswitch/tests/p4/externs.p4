// SPDX-License-Identifier: Apache-2.0
// Externs with operands of more than 128 bits, hashes with parameters, checks and messages, also in parser
// and deparser. `what` says what happens to the packet.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> what;
    bit<32> index;
    bit<256> value;
    bit<256> answer;
}

header extra_t {
    bit<272> wide;
    bit<16> sum;
}

struct headers_t {
    order_t order;
    extra_t first;
    extra_t second;
}

struct meta_t {
    bit<256> found;
    bit<16> crc;
    bit<32> crc32;
    bit<160> prefix;
}

const bit<8> WRITE = 1;
const bit<8> READ = 2;
const bit<8> HASH = 3;
const bit<8> CUSTOM = 4;
const bit<8> CUSTOM32 = 5;
const bit<8> ASSERT = 6;
const bit<8> ASSUME = 7;
const bit<8> TRUNCATE = 8;
const bit<8> LOG = 9;
const bit<8> EXACT = 10;
const bit<8> LPM = 11;
const bit<8> TERNARY = 12;
const bit<8> EXTRA = 13;
const bit<8> TWO = 14;
const bit<8> EGRESS_ASSERT = 15;
const bit<8> EQUAL = 16;
const bit<8> RANDOM = 17;
const bit<8> AHEAD = 18;
const bit<8> LOOP = 20;

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        log_msg("parsed order {}", { hdr.order.what });
        transition select(hdr.order.what) {
            EXTRA: first;
            TWO: both;
            EQUAL: both;
            AHEAD: ahead;
            default: accept;
        }
    }
    state ahead {
        meta.found = packet.lookahead<bit<256>>();
        transition accept;
    }
    state first {
        packet.extract(hdr.first);
        transition select(hdr.first.wide) {
            272w0x0001_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0002: second;
            272w0x8000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000
                &&& 272w0x8000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0001: second;
            default: accept;
        }
    }
    state both {
        packet.extract(hdr.first);
        transition second;
    }
    state second {
        packet.extract(hdr.second);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.first.isValid() && hdr.order.index == 1, { hdr.first.wide }, hdr.first.sum,
                        HashAlgorithm.csum16);
    }
}

control Compute(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum_with_payload(hdr.second.isValid(), { hdr.second.wide, 16w0x1234 }, hdr.second.sum,
                                     HashAlgorithm.csum16);
    }
}

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<256>>(4) cells;

    action answer(bit<256> value) {
        hdr.order.answer = value;
    }
    action add(bit<136> value, bit<8> small) {
        hdr.order.answer = hdr.order.value + (bit<256>)value + (bit<256>)small;
    }
    table exact_ {
        key = { hdr.order.value: exact; hdr.order.index: exact; }
        actions = { answer; add; NoAction; }
        default_action = answer(256w0xdead_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_0000_beef);
    }
    table lpm_ {
        key = { meta.prefix: lpm; }
        actions = { answer; NoAction; }
        default_action = NoAction();
    }
    table ternary_ {
        key = { hdr.order.value: ternary; hdr.order.index: ternary; }
        actions = { answer; add; NoAction; }
        default_action = NoAction();
    }
    action failing() {
        hdr.order.answer = 1;
        assert(hdr.order.index != 7);
        hdr.order.answer = 2;
    }
    action assuming() {
        assume(hdr.order.value < hdr.order.answer);
    }

    action looping() {
        for (bit<32> i = 0; i != hdr.order.index; i = i + 1) {
            hdr.order.answer = hdr.order.answer + hdr.order.value;
        }
    }

    apply {
        sm.egress_spec = 1;
        if (hdr.order.what == WRITE) {
            cells.write(hdr.order.index, hdr.order.value);
        } else if (hdr.order.what == READ) {
            cells.read(meta.found, hdr.order.index);
            hdr.order.answer = meta.found;
        } else if (hdr.order.what == HASH) {
            hash(hdr.order.answer, HashAlgorithm.crc32, 256w5, { hdr.order.value }, 256w0x1_0000_0000);
        } else if (hdr.order.what == CUSTOM) {
            hash(meta.crc, HashAlgorithm.crc16_custom, 16w0, { hdr.order.value, hdr.order.index }, 32w0x10000);
            hdr.order.answer = (bit<256>)meta.crc;
        } else if (hdr.order.what == CUSTOM32) {
            hash(meta.crc32, HashAlgorithm.crc32_custom, 32w0, { hdr.order.value, hdr.order.index }, 64w0x100000000);
            hdr.order.answer = (bit<256>)meta.crc32;
        } else if (hdr.order.what == ASSERT) {
            failing();
        } else if (hdr.order.what == ASSUME) {
            assuming();
        } else if (hdr.order.what == TRUNCATE) {
            truncate(hdr.order.index);
        } else if (hdr.order.what == LOG) {
            log_msg("value {} of {}", { hdr.order.value, hdr.order.index });
            log_msg("no operands");
        } else if (hdr.order.what == EXACT) {
            exact_.apply();
        } else if (hdr.order.what == LPM) {
            meta.prefix = (bit<160>)hdr.order.value;
            lpm_.apply();
        } else if (hdr.order.what == TERNARY) {
            ternary_.apply();
        } else if (hdr.order.what == EXTRA) {
            hdr.order.answer = hdr.second.isValid() ? 256w2 : 256w1;
            hdr.order.index = (bit<32>)sm.checksum_error;
        } else if (hdr.order.what == EQUAL) {
            hdr.order.answer = hdr.first == hdr.second ? 256w1 : 256w0;
            hdr.second.wide = hdr.first.wide;
        } else if (hdr.order.what == RANDOM) {
            random(hdr.order.answer, 256w10, 256w13);
        } else if (hdr.order.what == LOOP) {
            looping();
        } else if (hdr.order.what == AHEAD) {
            hdr.order.answer = meta.found;
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.order.what == EGRESS_ASSERT) {
            assert(hdr.order.index != 7);
        }
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        log_msg("deparsing {}", { hdr.order.answer });
        packet.emit(hdr.order);
        packet.emit(hdr.first);
        packet.emit(hdr.second);
        packet.emit(hdr.first);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
