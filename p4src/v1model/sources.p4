// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_SOURCES_P4
#define WEIR_SOURCES_P4

#include "headers.p4"

// Whose traffic comes in where: nobody behind a host's port may speak for a switch, or for another host. This is for
// what is forwarded; who may contribute is Admission's business, which knows the sender's address and UDP port.
//
//   source MAC     source IPv4, or ARP sender                      from a host         from a switch
//   ────────────────────────────────────────────────────────────────────────────────────────────────
//   of the port    the host's own; none; 0.0.0.0 (DHCP)            goes on             goes on
//   of the port    of nobody in the topology: a second address     goes on             goes on
//   of the port    another host's, or a switch's                   drop                goes on
//   any other                                                      drop                drop
//
// A frame with a tag of VLAN 0 is as good as one without to the host that gets it, and its addresses are not parsed here:
// no host may send it.
control Sources(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    bool trusted = false;
    bit<32> own = 0; // 0.0.0.0 while the host is not known
    bit<32> source = 0;

    action forged() {
        meta.event = EVENT_DROP_FORGED_SOURCE;
    }

    // A host, and its address.
    action host(bit<32> ip) {
        own = ip;
    }

    // A switch: what it forwards is others', and was looked at where it came in.
    action trust() {
        trusted = true;
    }

    table stations {
        key = {
            standard_metadata.ingress_port: exact @name("port");
            hdr.ethernet.src: exact @name("src_mac");
        }
        actions = { host; trust; forged; }
        default_action = forged;
        size = STATIONS;
    }

    // All that the topology says whose they are.
    table addresses {
        key = { source: lpm @name("src"); }
        actions = { forged; @defaultonly NoAction; }
        const default_action = NoAction;
        size = ROUTES;
    }

    apply {
        if (hdr.ethernet.isValid() && stations.apply().hit && !trusted) {
            if (hdr.ipv4.isValid()) {
                source = hdr.ipv4.src;
            } else if (hdr.arp.isValid()) {
                source = hdr.arp.sender_ip;
            }
            if (meta.priority_tagged) {
                forged();
            } else if (source != 0 && source != own) {
                addresses.apply();
            }
        }
    }
}

#endif
