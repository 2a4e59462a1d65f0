// SPDX-License-Identifier: Apache-2.0
//
//   ingress   ethernet ─┬─ arp                              ┌ column ─ lanes   one column, one lane group
//                       └─ ipv4 ── udp ── weir ─────────────┴ column           no lanes
//   egress    bridge ── ethernet ── ipv4 ── udp ── weir ── column ── lanes: left as they are, or skipped
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
        transition ethernet;
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
        transition select(packet.lookahead<arp_start_t>().types, packet.lookahead<arp_start_t>().sizes) {
            (0x00010800, 0x0604): arp_ipv4;
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
}

// To child N + 1 goes the replica N + 1.
#define EACH_CHILD(DO) \
    DO(0, 1) DO(1, 2) DO(2, 3) DO(3, 4) DO(4, 5) DO(5, 6) DO(6, 7) DO(7, 8) \
    DO(8, 9) DO(9, 10) DO(10, 11) DO(11, 12) DO(12, 13) DO(13, 14) DO(14, 15) DO(15, 16) \
    DO(16, 17) DO(17, 18) DO(18, 19) DO(19, 20) DO(20, 21) DO(21, 22) DO(22, 23) DO(23, 24) \
    DO(24, 25) DO(25, 26) DO(26, 27) DO(27, 28) DO(28, 29) DO(29, 30) DO(30, 31) DO(31, 32)

#define KEEP_COPY(CHILD, RID) (1, LANES_TO_ONE, CHILD, RID): accept;
#define CUT_COPY(CHILD, RID) (1, LANES_TO_OTHERS, CHILD, RID): without_lanes;
#define KEEP_ONLY(CHILD, RID) (1, LANES_TO_ONE, CHILD, CHILD): accept;
#define CUT_ONLY(CHILD, RID) (1, LANES_TO_OTHERS, CHILD, CHILD): without_lanes;

// Lanes are payload here: there are no containers left for them. So whether its receiver gets them is found out in
// the parser, which skips them if not: nothing of what it skips is sent.
parser WeirEgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                        out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        meta = {...};
        packet.extract(eg_intr_md);
        packet.extract(hdr.bridge);
        packet.extract(hdr.ethernet);
        transition select(hdr.bridge.role, hdr.ethernet.ether_type) {
            (ROLE_MADE, _): made;
            (ROLE_UP, _): made;
            (_, ETHERTYPE_IPV4): ipv4;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }

    state made {
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.weir);
        packet.extract(hdr.column);
        transition select(hdr.bridge.role, eg_intr_md.egress_rid[7:0]) {
            (ROLE_UP, _): accept;
            (_, 0): only;
            default: copy;
        }
    }

    state copy {
        transition select(hdr.weir.groups, hdr.bridge.lanes_to, hdr.bridge.child, eg_intr_md.egress_rid[7:0]) {
            EACH_CHILD(KEEP_COPY)
            EACH_CHILD(CUT_COPY)
            (1, LANES_TO_NONE, _, _): without_lanes;
            (1, LANES_TO_ONE, _, _): without_lanes;
            default: accept;
        }
    }

    // To the child that asked.
    state only {
        transition select(hdr.weir.groups, hdr.bridge.lanes_to, hdr.bridge.child, hdr.weir.worker) {
            EACH_CHILD(KEEP_ONLY)
            EACH_CHILD(CUT_ONLY)
            (1, LANES_TO_NONE, _, _): without_lanes;
            (1, LANES_TO_ONE, _, _): without_lanes;
            default: accept;
        }
    }

    state without_lanes {
        packet.advance(1024);
        meta.cut = 1;
        transition accept;
    }
}

#endif
