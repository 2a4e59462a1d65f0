// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TNA_FORWARDING_P4
#define WEIR_TNA_FORWARDING_P4

#include "headers.p4"

// Answers ARP requests for the addresses that the switch owns, so that hosts need no static entries. All other ARP
// is ordinary traffic.
control ArpResponder(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
                     inout ingress_intrinsic_metadata_for_tm_t ig_tm_md, out bit<1> answered) {
    action answer(bit<48> mac) {
        hdr.ethernet.dst = hdr.arp.sender_mac;
        hdr.ethernet.src = mac;
        bit<32> address = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = address;
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
        meta.event = (bit<8>)EVENT_ARP_ANSWERED;
        answered = 1;
    }

    @stage(2)
    table addresses {
        key = {
            hdr.arp.target_ip: exact @name("address");
        }
        actions = { answer; @defaultonly NoAction; }
        const default_action = NoAction;
        size = AGGREGATION_ADDRESSES;
    }

    apply {
        answered = 0;
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            addresses.apply();
        }
    }
}

// Everything that is not for this switch: by destination MAC. Forwarded frames leave as they came.
control Forwarding(inout headers_t hdr, inout metadata_t meta,
                   inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                   inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action no_route() {
        ig_dprsr_md.drop_ctl = 1;
        meta.event = (bit<8>)EVENT_DROP_NO_ROUTE;
    }

    action forward(bit<9> port) {
        ig_tm_md.ucast_egress_port = port;
        meta.event = (bit<8>)EVENT_FORWARDED;
    }

    // group: multicast group of all ports; the packet does not go back to where it came from.
    action flood(bit<16> group) {
        ig_tm_md.mcast_grp_a = group;
        hdr.bridge.role = ROLE_FLOODED;
        meta.event = (bit<8>)EVENT_FORWARDED;
    }

    table l2 {
        key = { hdr.ethernet.dst: exact @name("dst_mac"); }
        actions = { forward; flood; no_route; }
        default_action = no_route;
        size = L2_ENTRIES;
    }

    apply {
        l2.apply();
    }
}

#endif
