// SPDX-License-Identifier: Apache-2.0
// What a control interface can touch, once each: every match kind, default and constant entries, direct and
// indirect counters, registers, multicast, clones, and packets from and to the controller.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> label;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t packet_in;
    ethernet_t ethernet;
}

struct metadata_t {
}

parser ControlParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control ControlIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) stations_hits;
    counter(16, CounterType.packets_and_bytes) frames;
    register<bit<32>>(8) cells;
    register<int<16>>(4) signed_cells;

    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action to_controller(bit<7> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = std.ingress_port;
        hdr.packet_in.reason = reason;
        std.egress_spec = CPU_PORT;
    }
    action stamp(bit<48> src, bit<16> type, bit<9> port) {
        hdr.ethernet.src = src;
        hdr.ethernet.type = type;
        std.egress_spec = port;
    }
    action mirror(bit<9> port) {
        clone(CloneType.I2E, 7);
        std.egress_spec = port;
    }

    table stations {
        key = {
            hdr.ethernet.dst: exact @name("dst");
        }
        actions = { forward; flood; to_controller; stamp; mirror; drop; @defaultonly NoAction; }
        default_action = NoAction();
        counters = stations_hits;
        size = 16;
    }
    table prefixes {
        key = {
            hdr.ethernet.src: lpm @name("src");
        }
        actions = { forward; drop; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table filters {
        key = {
            hdr.ethernet.dst: ternary @name("dst");
            std.ingress_port: optional @name("port");
            hdr.ethernet.type: range @name("type");
        }
        actions = { drop; NoAction; }
        const default_action = NoAction();
        size = 64;
    }
    table fixed {
        key = {
            hdr.ethernet.type: exact @name("type");
        }
        actions = { drop; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            0x88CC: drop();
            0x8809: drop();
        }
    }

    apply {
        frames.count((bit<32>)std.ingress_port & 15);
        cells.write(0, (bit<32>)hdr.ethernet.type);
        signed_cells.write(0, -2);
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else if (!fixed.apply().hit) {
            drop();
            stations.apply();
            prefixes.apply();
            filters.apply();
        }
    }
}

control ControlEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
    }
}

control ControlVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control ControlCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control ControlDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(ControlParser(), ControlVerify(), ControlIngress(), ControlEgress(), ControlCompute(), ControlDeparser()) main;
