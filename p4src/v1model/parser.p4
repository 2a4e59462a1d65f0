// SPDX-License-Identifier: Apache-2.0
//
//   start ─┬─ from_controller                   as many lane groups as hdr.weir.groups has bits
//          └─ ethernet ─┬─ arp
//                       ├─ tagged                           ┌──────────────────────┐
//                       └─ ipv4 ── udp ── weir ── columns ── group0 ── … ── group7 ──
//
// The parser follows the packet's own word (block size, groups) and accepts as soon as it cannot go on:
// what is missing or contradictory is for Validation to refuse, so that it is counted. A packet that ends
// before its headers do leaves parser_error set.
#ifndef WEIR_PARSER_P4
#define WEIR_PARSER_P4

#include "headers.p4"
#include "lanes.p4"

// Lane group G: extracted when bit G of hdr.weir.groups says that it is there.
#define GROUP_STATES(G, NEXT) \
    state group##G { \
        transition select(hdr.weir.groups[G:G]) { \
            1: lanes##G; \
            default: NEXT; \
        } \
    } \
    state lanes##G { \
        packet.extract(hdr.lanes##G); \
        meta.length = meta.length + 16w128; \
        transition NEXT; \
    }

parser WeirParser(
        packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {

    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }

    // The payload of a packet-out is not looked at.
    state from_controller {
        packet.extract(hdr.packet_out);
        transition accept;
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_ARP: arp;
            ETHERTYPE_VLAN: tagged;
            ETHERTYPE_SERVICE_VLAN: tagged;
            default: accept;
        }
    }

    // A tag of VLAN 0 says a priority only (IEEE 802.1Q). What is behind a tag is not looked at.
    state tagged {
        bit<16> tag = packet.lookahead<bit<16>>();
        meta.priority_tagged = tag[11:0] == 0;
        transition accept;
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    // UDP is looked at only in unfragmented IPv4 without options.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            (4, 5, 0, 0, PROTOCOL_TCP): tcp;
            default: accept;
        }
    }

    state tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.src_port, hdr.udp.dst_port) {
            (_, UDP_PORT): weir;
            (_, FLOW_PORT): flow;
            (FLOW_PORT, _): flow; // a server's
            default: accept;
        }
    }

    state flow {
        packet.extract(hdr.flow);
        transition accept;
    }

    state weir {
        packet.extract(hdr.weir);
        meta.length = 28;
        transition select(hdr.weir.version, hdr.weir.block_log2) {
            (VERSION, 5): columns8;
            (VERSION, 6): columns4;
            (VERSION, 7): columns2;
            (VERSION, 8): columns1;
#ifdef WIDE
            (VERSION, WIDE_BLOCK_LOG2): wide_column;
#endif
            default: accept;
        }
    }

#ifdef WIDE
    state wide_column {
        packet.extract(hdr.columns.next);
        meta.length = meta.length + 8;
        meta.without_lanes = meta.length;
        transition select(hdr.weir.groups) {
            0xff: wide_lanes;
            default: accept;
        }
    }

    state wide_lanes {
        packet.extract(hdr.wide);
        meta.length = meta.length + WIDE_BYTES;
        transition accept;
    }
#endif

    // columnsN takes N columns: half of them here, the rest in the next state.
    state columns8 {
        packet.extract(hdr.columns.next);
        packet.extract(hdr.columns.next);
        packet.extract(hdr.columns.next);
        packet.extract(hdr.columns.next);
        meta.length = meta.length + 32;
        transition columns4;
    }

    state columns4 {
        packet.extract(hdr.columns.next);
        packet.extract(hdr.columns.next);
        meta.length = meta.length + 16;
        transition columns2;
    }

    state columns2 {
        packet.extract(hdr.columns.next);
        meta.length = meta.length + 8;
        transition columns1;
    }

    state columns1 {
        packet.extract(hdr.columns.next);
        meta.length = meta.length + 8;
        meta.without_lanes = meta.length;
        transition group0;
    }

    GROUP_STATES(0, group1)
    GROUP_STATES(1, group2)
    GROUP_STATES(2, group3)
    GROUP_STATES(3, group4)
    GROUP_STATES(4, group5)
    GROUP_STATES(5, group6)
    GROUP_STATES(6, group7)
    GROUP_STATES(7, accept)
}

// Headers with options are not verified: they are never aggregated, and routing keeps a wrong checksum wrong.
control WeirVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(
            hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,
              hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

#endif
