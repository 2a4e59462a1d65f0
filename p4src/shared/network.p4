// SPDX-License-Identifier: Apache-2.0
// What every network has below Weir's own headers.
#ifndef WEIR_NETWORK_P4
#define WEIR_NETWORK_P4

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
@noWarn("unused") const bit<8> PROTOCOL_TCP = 6;
const bit<8> PROTOCOL_UDP = 17;
@noWarn("unused") const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

// ARP for IPv4 over Ethernet (RFC 826).
header arp_t {
    bit<16> hardware;
    bit<16> protocol;
    bit<8> hardware_size;
    bit<8> protocol_size;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> id;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// What spraying by flow looks at of TCP (RFC 9293); the rest of its header is payload to this program.
header tcp_ports_t {
    bit<16> src_port;
    bit<16> dst_port;
}

#endif
