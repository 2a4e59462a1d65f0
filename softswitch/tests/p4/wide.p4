// SPDX-License-Identifier: Apache-2.0
// Every operator on values of more than 128 bits, each result in a field of its own. The answer is made of
// the operands in the packet, so a test can compute it beside the switch.
#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<256> a;
    bit<256> b;
    bit<200> c; // as two's complement
    bit<200> d;
    bit<128> w;
    bit<128> x;
    bit<16> n;
    bit<131> f;
    bit<5> g;
}

header results_t {
    bit<256> add;
    bit<256> sub;
    bit<256> mul;
    bit<256> and_;
    bit<256> or_;
    bit<256> xor_;
    bit<256> not_;
    bit<256> neg;
    bit<256> shl;
    bit<256> shr;
    bit<256> shl_c;
    bit<256> shr_c;
    bit<256> sadd;
    bit<256> ssub;
    bit<256> div;
    bit<256> mod;
    bit<8> lt;
    bit<8> ge;
    bit<8> eq;
    bit<8> zero;
    bit<256> mux;
    bit<512> concat;
    bit<144> slice;
    bit<64> low_slice;
    bit<256> widen;
    bit<48> narrow;
    bit<256> product;
    bit<5> g_plus;
    bit<131> f_minus;
    bit<256> one_bit;
}

header signed_results_t {
    bit<200> add;
    bit<200> div;
    bit<200> mod;
    bit<200> neg;
    bit<200> mul;
    bit<200> shr;
    bit<200> shr_c;
    bit<200> sadd;
    bit<200> ssub;
    bit<8> lt;
    bit<8> gt;
    bit<256> widen;
    bit<56> narrow;
    bit<200> from_narrow;
}

// Taken off the packet, because BMv2 lets a packet grow by 512 bytes only.
header padding_t {
    bit<2048> a;
    bit<2048> b;
    bit<2048> c;
}

struct headers_t {
    operands_t op;
    padding_t padding;
    results_t r;
    signed_results_t s;
}

struct meta_t {
    int<200> c;
    int<200> d;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.op);
        packet.extract(hdr.padding);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action unsigned_results() {
        bit<256> a = hdr.op.a;
        bit<256> b = hdr.op.b;
        hdr.r.setValid();
        hdr.r.add = a + b;
        hdr.r.sub = a - b;
        hdr.r.mul = a * b;
        hdr.r.and_ = a & b;
        hdr.r.or_ = a | b;
        hdr.r.xor_ = a ^ b;
        hdr.r.not_ = ~a;
        hdr.r.neg = -a;
        hdr.r.shl = a << (bit<8>)hdr.op.n;
        hdr.r.shr = a >> (bit<8>)hdr.op.n;
        hdr.r.shl_c = a << 77;
        hdr.r.shr_c = a >> 77;
        hdr.r.sadd = a |+| b;
        hdr.r.ssub = a |-| b;
        // p4c divides at compile time only; the test puts / and % here
        hdr.r.div = a ^ b;
        hdr.r.mod = a ^ b;
        hdr.r.lt = (bit<8>)(bit<1>)(a < b);
        hdr.r.ge = (bit<8>)(bit<1>)(a >= b);
        hdr.r.eq = (bit<8>)(bit<1>)(a == b);
        hdr.r.zero = (bit<8>)(bit<1>)(a == 0);
        hdr.r.mux = a > b ? a : b;
        hdr.r.concat = a ++ b;
        hdr.r.slice = a[200:57];
        hdr.r.low_slice = a[70:7];
        hdr.r.widen = (bit<256>)hdr.op.w;
        hdr.r.narrow = (bit<48>)a;
        hdr.r.product = (bit<256>)hdr.op.w * (bit<256>)hdr.op.x;
        hdr.r.f_minus = hdr.op.f - 1;
        hdr.r.g_plus = hdr.op.g + 1;
        hdr.r.one_bit = 256w1 << (bit<8>)hdr.op.n;
    }
    action signed_results() {
        hdr.s.setValid();
        hdr.s.add = (bit<200>)(meta.c + meta.d);
        hdr.s.div = (bit<200>)(meta.c ^ meta.d);
        hdr.s.mod = (bit<200>)(meta.c ^ meta.d);
        hdr.s.neg = (bit<200>)(-meta.c);
        hdr.s.mul = (bit<200>)(meta.c * meta.d);
        hdr.s.shr = (bit<200>)(meta.c >> (bit<8>)hdr.op.n);
        hdr.s.shr_c = (bit<200>)(meta.c >> 77);
        hdr.s.sadd = (bit<200>)(meta.c |+| meta.d);
        hdr.s.ssub = (bit<200>)(meta.c |-| meta.d);
        hdr.s.lt = (bit<8>)(bit<1>)(meta.c < meta.d);
        hdr.s.gt = (bit<8>)(bit<1>)(meta.c > -5);
        hdr.s.widen = (bit<256>)(int<256>)meta.c;
        hdr.s.narrow = (bit<56>)(int<56>)meta.c;
        hdr.s.from_narrow = (bit<200>)(int<200>)(int<16>)hdr.op.n;
    }
    apply {
        sm.egress_spec = 1;
        meta.c = (int<200>)hdr.op.c;
        meta.d = (int<200>)hdr.op.d;
        unsigned_results();
        signed_results();
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.r);
        packet.emit(hdr.s);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
