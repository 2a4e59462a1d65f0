// SPDX-License-Identifier: Apache-2.0
// Every operator p4c-bm2-ss emits, each result in a field of its own. The answer is made of the operands in
// the packet, so a test can compute it beside the switch.
#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<32> a;
    bit<32> b;
    bit<8> c;
    bit<8> d;
    bit<48> e;
    bit<128> w;
    bit<7> f;
    bit<1> flag;
}

header results_t {
    bit<32> add;
    bit<32> sub;
    bit<32> mul;
    bit<32> and_;
    bit<32> or_;
    bit<32> xor_;
    bit<32> not_;
    bit<32> neg;
    bit<32> shl;
    bit<32> shr;
    bit<32> shl_c;
    bit<32> sadd;
    bit<32> ssub;
    bit<8> sadd8;
    bit<8> ssub8;
    bit<8> lt;
    bit<8> slt;
    bit<8> eq;
    bit<8> logic;
    bit<32> mux;
    bit<64> concat;
    bit<16> slice;
    bit<32> widen;
    bit<32> swiden;
    bit<8> sshr;
    bit<8> isadd;
    bit<8> issub;
    bit<48> e_plus;
    bit<128> w_plus;
    bit<128> w_shift;
    bit<32> w_slice;
    bit<7> f_minus;
    bit<1> flag_not;
    bit<32> nested;
}

struct headers_t {
    operands_t op;
    results_t r;
}

struct meta_t {
    bit<32> x;
    int<8> s;
    int<8> t;
}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        bit<32> a = hdr.op.a;
        bit<32> b = hdr.op.b;
        bit<8> c = hdr.op.c;
        bit<8> d = hdr.op.d;
        meta.s = (int<8>)c;
        meta.t = (int<8>)d;
        hdr.r.setValid();
        hdr.r.add = a + b;
        hdr.r.sub = a - b;
        hdr.r.mul = a * b;
        hdr.r.and_ = a & b;
        hdr.r.or_ = a | b;
        hdr.r.xor_ = a ^ b;
        hdr.r.not_ = ~a;
        hdr.r.neg = -a;
        hdr.r.shl = a << c;
        hdr.r.shr = a >> c;
        hdr.r.shl_c = a << 5;
        hdr.r.sadd = a |+| b;
        hdr.r.ssub = a |-| b;
        hdr.r.sadd8 = c |+| d;
        hdr.r.ssub8 = c |-| d;
        hdr.r.lt = (bit<8>)(bit<1>)(a < b);
        hdr.r.slt = (bit<8>)(bit<1>)(meta.s < meta.t);
        hdr.r.eq = (bit<8>)(bit<1>)(c == d);
        hdr.r.logic = (bit<8>)(bit<1>)((a > b && c != d) || !(c <= d));
        hdr.r.mux = c > d ? a : b;
        hdr.r.concat = a ++ b;
        hdr.r.slice = a[23:8];
        hdr.r.widen = (bit<32>)c;
        hdr.r.swiden = (bit<32>)(int<32>)meta.s;
        hdr.r.sshr = (bit<8>)(meta.s >> 2);
        hdr.r.isadd = (bit<8>)(meta.s |+| meta.t);
        hdr.r.issub = (bit<8>)(meta.s |-| meta.t);
        hdr.r.e_plus = hdr.op.e + (bit<48>)a;
        hdr.r.w_plus = hdr.op.w + (bit<128>)a;
        hdr.r.w_shift = hdr.op.w >> 40;
        hdr.r.w_slice = hdr.op.w[100:69];
        hdr.r.f_minus = hdr.op.f - 1;
        hdr.r.flag_not = ~hdr.op.flag;
        if (hdr.op.flag == 1) {
            meta.x = a;
            meta.x[15:8] = c;
        } else {
            meta.x = ((a ^ b) + (bit<32>)d) << 1;
        }
        hdr.r.nested = meta.x;
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.r);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
