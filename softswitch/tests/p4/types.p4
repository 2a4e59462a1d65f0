// SPDX-License-Identifier: Apache-2.0
// Types as controllers see them: enums with a width, new types, and ports that have 32 bits for a controller;
// and constant entries that are counted.
#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("example/port", bit<32>)
type bit<9> port_t;

type bit<16> label_t;

enum bit<8> kind_t {
    CALM = 1,
    WILD = 2
}

header beast_t {
    bit<7> unused;
    port_t port;
    label_t label;
    kind_t kind;
}

struct headers_t {
    beast_t beast;
}

struct meta_t {}

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.beast);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<kind_t>(4) kinds;
    register<label_t>(4) labels;
    register<port_t>(4) ports;
    direct_counter(CounterType.packets_and_bytes) known;

    action send(port_t port, label_t label, kind_t kind) {
        sm.egress_spec = (bit<9>)port;
        hdr.beast.label = label;
        hdr.beast.kind = kind;
        ports.write(0, port);
        labels.write(0, label);
        kinds.write(0, kind);
    }
    table beasts {
        key = {
            hdr.beast.port: exact @name("port");
            hdr.beast.label: ternary @name("label");
            hdr.beast.kind: exact @name("kind");
        }
        actions = { send; NoAction; }
        default_action = NoAction;
    }
    table kinds_known {
        key = {
            hdr.beast.kind: exact @name("kind");
        }
        actions = { NoAction; }
        counters = known;
        const entries = {
            kind_t.CALM: NoAction();
            kind_t.WILD: NoAction();
        }
    }

    apply {
        kinds_known.apply();
        beasts.apply();
    }
}

control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.beast);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
