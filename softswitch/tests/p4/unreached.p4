// SPDX-License-Identifier: Apache-2.0
// What P4Info says otherwise than the program: a key of type error has no width there, and a table that no packet can
// reach is still there.
#include <core.p4>
#include <v1model.p4>

header request_t {
    bit<32> value;
}

header answer_t {
    bit<8> code;
}

struct headers_t {
    request_t request;
    answer_t answer;
}

struct meta_t {}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.request);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets) hits;
    direct_meter<bit<2>>(MeterType.packets) rates;
    bit<2> colour = 0;

    action answer(bit<8> code) {
        hdr.answer.setValid();
        hdr.answer.code = code;
    }
    action count() {
        hits.count();
        rates.read(colour);
    }

    table faults {
        key = { sm.parser_error: exact @name("fault"); }
        actions = { answer; NoAction; }
        default_action = NoAction();
        size = 8;
    }
    table unreached {
        key = { hdr.request.value: exact; }
        actions = { count; NoAction; }
        counters = hits;
        meters = rates;
        size = 8;
    }

    apply {
        bit<8> fixed = 2;
        sm.egress_spec = 1;
        faults.apply();
        if (fixed > 5) {
            unreached.apply();
        }
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.answer);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
