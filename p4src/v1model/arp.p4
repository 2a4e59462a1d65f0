// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_ARP_P4
#define WEIR_ARP_P4

#include "headers.p4"

// Answers ARP requests for the addresses that the switch owns, so that hosts need no static entries. All
// other ARP is ordinary traffic: `answered` stays false.
control ArpResponder(
        inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata, out bool answered) {

    action answer(bit<48> mac) {
        hdr.ethernet.dst = hdr.arp.sender_mac;
        hdr.ethernet.src = mac;
        bit<32> address = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = address;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        meta.event = EVENT_ARP_ANSWERED;
    }

    table addresses {
        key = { hdr.arp.target_ip: exact @name("address"); }
        actions = { answer; @defaultonly NoAction; }
        const default_action = NoAction;
        size = AGGREGATION_ADDRESSES;
    }

    apply {
        answered = false;
        if (hdr.arp.isValid() && hdr.arp.hardware == 1 && hdr.arp.protocol == ETHERTYPE_IPV4
                && hdr.arp.hardware_size == 6 && hdr.arp.protocol_size == 4 && hdr.arp.operation == ARP_REQUEST) {
            answered = addresses.apply().hit;
        }
    }
}

#endif
