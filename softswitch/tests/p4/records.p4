// SPDX-License-Identifier: Apache-2.0
// Several values of one flow, each in a register of its own, as P4 has no arrays of structs.
#include <core.p4>
#include <v1model.p4>

header packet_t {
    bit<8> flow;
    bit<16> length;
    bit<32> packets;
    bit<48> bytes;
    bit<8> longest;
}

struct headers_t { packet_t packet; }
struct meta_t { bit<32> cell; bit<32> packets; bit<48> bytes; bit<8> longest; }

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.packet); meta.cell = (bit<32>)hdr.packet.flow; transition accept; }
}
control Verify(inout headers_t hdr, inout meta_t meta) { apply {} }
control Compute(inout headers_t hdr, inout meta_t meta) { apply {} }
control Deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.packet); } }

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(256) packets;
    register<bit<48>>(256) bytes;
    register<bit<8>>(256) longest;
    register<bit<32>>(16) few; // of another size
    register<bit<32>>(256) alone; // read elsewhere
    action count() {
        packets.read(meta.packets, meta.cell);
        bytes.read(meta.bytes, meta.cell);
        longest.read(meta.longest, meta.cell);
        hdr.packet.packets = meta.packets + 1;
        hdr.packet.bytes = meta.bytes + (bit<48>)hdr.packet.length;
        hdr.packet.longest = meta.longest | hdr.packet.length[7:0];
        packets.write(meta.cell, hdr.packet.packets);
        bytes.write(meta.cell, hdr.packet.bytes);
        longest.write(meta.cell, hdr.packet.longest);
        few.write(meta.cell & 15, hdr.packet.packets);
    }
    action note() { alone.write(meta.cell, (bit<32>)hdr.packet.length); }
    table flows {
        actions = { count; }
        const default_action = count();
    }
    table notes {
        actions = { note; }
        const default_action = note();
    }
    apply {
        flows.apply();
        notes.apply();
        sm.egress_spec = 1;
    }
}
control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
