// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_FORWARDING_P4
#define WEIR_FORWARDING_P4

#include "headers.p4"

// One hop from SRC_MAC to DST_MAC. The checksum is mended as RFC 1624 has it, for a word (TTL, protocol) that
// falls by 0x0100. So options, which the parser leaves alone, do not matter. No function: p4c would copy the
// headers into it, and out again.
#define HOP(SRC_MAC, DST_MAC) \
    hdr.ethernet.src = SRC_MAC; \
    hdr.ethernet.dst = DST_MAC; \
    hdr.ipv4.ttl = hdr.ipv4.ttl - 1; \
    bit<32> sum = (bit<32>)(~hdr.ipv4.checksum) + 0xFEFF; \
    hdr.ipv4.checksum = ~(sum[15:0] + sum[31:16]);

// Everything that is not for this switch: by destination MAC, or by IPv4 route when the MAC is the switch's
// own. Forwarded frames leave as they came, whatever they hold above Ethernet.
control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    bool to_be_routed = false;
    bit<9> publisher_port = standard_metadata.ingress_port; // the only port that may send there

    action no_route() {
        meta.event = EVENT_DROP_NO_ROUTE;
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
        meta.event = EVENT_FORWARDED;
    }

    // group: multicast group of all ports; the packet does not go back to where it came from.
    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
        meta.flooded = true;
        meta.event = EVENT_FORWARDED;
    }

    // group: multicast group of a publication's subscribers; publisher: the port of its publisher.
    action publish(bit<16> group, bit<9> publisher) {
        flood(group);
        publisher_port = publisher;
    }

    // To the controller, as a packet-in.
    action punt() {
        standard_metadata.egress_spec = CPU_PORT;
        meta.event = EVENT_FORWARDED;
    }

    // The MAC address is the switch's own: look at IPv4.
    action local() {
        to_be_routed = true;
    }

    // What is unknown is dropped, unless the controller sets flood or punt as the default.
    table l2 {
        key = { hdr.ethernet.dst: exact @name("dst_mac"); }
        actions = { forward; flood; publish; punt; local; no_route; }
        default_action = no_route;
        size = L2_ENTRIES;
    }

    // The switch's own MAC becomes the source.
    action route(bit<9> port, bit<48> dst_mac) {
        HOP(hdr.ethernet.dst, dst_mac)
        standard_metadata.egress_spec = port;
        meta.event = EVENT_FORWARDED;
    }

    // To the same place by several paths.
    action spray(bit<16> group) {
        meta.spray_group = group;
    }

    table ipv4 {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { route; spray; no_route; }
        default_action = no_route;
        size = ROUTES;
    }

    apply {
        if (standard_metadata.parser_error != error.NoError && !hdr.udp.isValid()) {
            // A packet that ends inside its Weir header is none of our business here, and goes on.
            meta.event = EVENT_DROP_PARSER_ERROR;
        } else {
            l2.apply();
            if (publisher_port != standard_metadata.ingress_port) {
                standard_metadata.mcast_grp = 0;
                meta.event = EVENT_DROP_NOT_PUBLISHER;
            } else if (to_be_routed) {
                if (!hdr.ipv4.isValid()) {
                    meta.event = EVENT_DROP_NO_ROUTE;
                } else if (hdr.ipv4.version != 4 || hdr.ipv4.ihl < 5 || standard_metadata.checksum_error != 0) {
                    meta.event = EVENT_DROP_MALFORMED;
                } else if (hdr.ipv4.ttl <= 1) {
                    meta.event = EVENT_DROP_TTL_EXPIRED;
                } else {
                    ipv4.apply();
                }
            }
        }
    }
}

// Egress: a flooded frame does not return to the port it came from, and what goes to the controller says
// which port that was.
control Departure(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (meta.flooded && standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);
        }
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.pad = 0;
        }
    }
}

#endif
