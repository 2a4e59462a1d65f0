// SPDX-License-Identifier: Apache-2.0
//
//   ingress   ethernet ─┬─ arp                              ┌ column ─ lanes ─ upper   one column, two lane groups
//                       └─ ipv4 ── udp ── weir ─────────────┼ column ─ lanes           one
//             again: bridge, then a result with both ───────┴ column                   none
//   egress    bridge ── ethernet ── ipv4 ── udp ── weir ── column       what ingress made; of all else ipv4 at most
//
// The parser follows the packet's own word and accepts as soon as it cannot go on: what is missing or
// contradictory is for Validation to refuse, so that it is counted.
#ifndef WEIR_TNA_PARSER_P4
#define WEIR_TNA_PARSER_P4

#include "headers.p4"

// Hardware and protocol address, and their sizes.
header arp_start_t {
    bit<32> types;
    bit<16> sizes;
}

parser WeirIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                         out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        meta = {...};
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        transition select(ig_intr_md.ingress_port) {
            AGAIN_PORT &&& 0x7f: again;
            default: ethernet;
        }
    }

    // Nobody but this switch sends there, and only what is admitted, well-formed, and has both lane groups.
    state again {
        packet.extract(hdr.bridge);
        packet.extract(hdr.again);
        meta.aggregate = 1;
        meta.format_known = 1;
        meta.fields_known = 1;
        meta.admitted = 1;
        meta.in_range = 1;
        meta.probe = 1;
        meta.second = 1;
        meta.event = UNCOUNTED;
        meta.base = hdr.again.base;
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.weir);
        transition column_and_both;
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_ARP: arp;
            default: accept;
        }
    }

    // Only IPv4 over Ethernet.
    state arp {
        transition select(packet.lookahead<arp_start_t>().types) {
            0x00010800: arp_sizes; // a parser compares 32 bits at a time
            default: accept;
        }
    }

    state arp_sizes {
        transition select(packet.lookahead<arp_start_t>().sizes) {
            0x0604: arp_ipv4;
            default: accept;
        }
    }

    state arp_ipv4 {
        packet.extract(hdr.arp);
        transition accept;
    }

    // UDP is looked at only in unfragmented IPv4 without options.
    state ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.bad_checksum = (bit<1>)ipv4_checksum.verify();
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            UDP_PORT: weir;
            default: accept;
        }
    }

    state weir {
        packet.extract(hdr.weir);
        transition select(hdr.weir.version, hdr.weir.block_log2, hdr.weir.groups) {
            (VERSION, MAX_BLOCK_LOG2, 0): column;
            (VERSION, MAX_BLOCK_LOG2, 1): column_and_lanes;
            (VERSION, MAX_BLOCK_LOG2, 3): column_and_both;
            default: accept;
        }
    }

    state column {
        packet.extract(hdr.column);
        transition accept;
    }

    state column_and_lanes {
        packet.extract(hdr.column);
        packet.extract(hdr.lanes);
        transition accept;
    }

    state column_and_both {
        packet.extract(hdr.column);
        packet.extract(hdr.lanes);
        packet.extract(hdr.upper);
        transition accept;
    }
}

// Lanes are payload here: an egress parser sees no more than 160 bytes.
parser WeirEgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                        out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        meta = {...};
        packet.extract(eg_intr_md);
        transition select(eg_intr_md.egress_port) {
            AGAIN_PORT &&& 0x7f: again;
            default: bridge;
        }
    }

    // What passes once more keeps what ingress told egress, which it will be told again.
    state again {
        packet.extract(hdr.kept);
        packet.extract(hdr.kept_again);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        transition accept;
    }

    state bridge {
        packet.extract(hdr.bridge);
        packet.extract(hdr.ethernet);
        transition select(hdr.bridge.role, hdr.ethernet.ether_type) {
            (ROLE_MADE, _): made;
            (ROLE_UP, _): made;
            (_, ETHERTYPE_IPV4): ipv4;
            default: rest;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }

    // An egress parser must take at least 65 bytes; no frame is so short that it lacks these.
    state rest {
        packet.extract(hdr.rest);
        transition accept;
    }

    state made {
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.weir);
        packet.extract(hdr.column);
        transition accept;
    }
}

#endif
