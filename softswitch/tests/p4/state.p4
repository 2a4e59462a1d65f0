// SPDX-License-Identifier: Apache-2.0
// Registers, counters, hashes, checksums, random numbers.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> what;
    bit<32> index;
    bit<32> value;
    bit<16> sum; // Internet checksum of the fields before
}

header extra_t {
    bit<12> a;
    bit<20> b;
}

header answer_t {
    bit<32> value;
    bit<8> checksum_error;
}

struct headers_t {
    answer_t answer;
    order_t order;
    extra_t extra;
}

struct meta_t {
    bit<16> out16;
    bit<32> out32;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.what[7:7]) {
            1: extra;
            default: accept;
        }
    }
    state extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.order.isValid() && hdr.order.value != 0,
            { hdr.order.what, 8w0, hdr.order.index, hdr.order.value, hdr.extra.a, hdr.extra.b },
            hdr.order.sum, HashAlgorithm.csum16);
    }
}

control Compute(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum_with_payload(hdr.order.isValid(),
            { hdr.order.what, 8w0, hdr.order.index, hdr.order.value, hdr.extra.a, hdr.extra.b },
            hdr.order.sum, HashAlgorithm.csum16);
    }
}

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(8) words;
    register<bit<5>>(8) narrow;
    register<bit<128>>(4) wide;
    register<int<16>>(4) signed;
    counter(4, CounterType.packets_and_bytes) events;

    apply {
        sm.egress_spec = 1;
        hdr.answer.setValid();
        hdr.answer.checksum_error = (bit<8>)sm.checksum_error;
        bit<32> old;
        bit<7> what = hdr.order.what[6:0];
        if (what == 1) {
            words.read(old, hdr.order.index);
            words.write(hdr.order.index, hdr.order.value);
            hdr.answer.value = old;
        } else if (what == 2) {
            bit<5> small;
            narrow.write(hdr.order.index, (bit<5>)hdr.order.value);
            narrow.read(small, hdr.order.index);
            hdr.answer.value = (bit<32>)small;
        } else if (what == 3) {
            bit<128> large;
            wide.read(large, hdr.order.index);
            large = large + ((bit<128>)hdr.order.value << 64);
            wide.write(hdr.order.index, large);
            hdr.answer.value = large[95:64];
        } else if (what == 4) {
            int<16> number;
            signed.read(number, hdr.order.index);
            number = number - (int<16>)(bit<16>)hdr.order.value;
            signed.write(hdr.order.index, number);
            hdr.answer.value = (bit<32>)(int<32>)number;
        } else if (what == 5) {
            events.count(hdr.order.index);
        } else if (what == 6) {
            hash(meta.out16, HashAlgorithm.crc16, 16w0, { hdr.order.index, hdr.order.value }, 32w0x10000);
            hdr.answer.value = (bit<32>)meta.out16;
        } else if (what == 7) {
            hash(hdr.answer.value, HashAlgorithm.crc32, 32w0, { hdr.order.index, hdr.order.value },
                64w0x100000000);
        } else if (what == 8) {
            hash(hdr.answer.value, HashAlgorithm.identity, 32w100, { hdr.order.value }, 32w1000);
        } else if (what == 9) {
            hash(meta.out16, HashAlgorithm.csum16, 16w0, { hdr.order.index, hdr.order.value }, 32w0x10000);
            hdr.answer.value = (bit<32>)meta.out16;
        } else if (what == 10) {
            hash(meta.out16, HashAlgorithm.xor16, 16w0, { hdr.order.index, hdr.order.value }, 32w0x10000);
            hdr.answer.value = (bit<32>)meta.out16;
        } else if (what == 11) {
            random(meta.out32, hdr.order.index, hdr.order.value);
            hdr.answer.value = meta.out32;
        } else if (what == 12) { // an invalid header reads as zero
            hdr.answer.value = hdr.extra.a ++ hdr.extra.b;
        } else if (what == 13) {
            hdr.extra.setInvalid();
        } else if (what == 14) {
            words.read(hdr.order.value, hdr.order.index);
            hdr.answer.value = hdr.order.value;
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
        packet.emit(hdr.order);
        packet.emit(hdr.extra);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
