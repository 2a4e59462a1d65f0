// SPDX-License-Identifier: Apache-2.0
//
// More than one rack: a rack's switch, whose own workers' round is complete, is one worker of the spine.
//
//        spine 0      spine 1           slot s is aggregated at the spine of class s mod 16, and the controller
//         /   \        /   \            spreads the classes over the spines: packets go to all spines alike,
//    rack 0   rack 1 (the same)         and those that belong together still meet
//    /    \   /    \
//   w0    w1 w2    w3
//
// A worker that asks early, without lanes and with the flag ANSWER, is not worth the sums: its rack asks the
// spine in the same way.
//
// A spine that dies takes nothing with it that the racks do not hold: the controller gives its classes to the
// others, and workers that wait for a result repeat their packets. The switch of such a rack repeats its
// partial sums. If another rack already has the result, the new spine does not; asked by that spine, the
// other rack sends the result itself, and the spine relays it.
#ifndef WEIR_TREE_P4
#define WEIR_TREE_P4

#include "headers.p4"

// Ingress, in a rack: addresses a packet that holds the rack's sums, or the result that the spine asks for, to
// the slot's spine. `up` stays false at the root, where there is no entry.
control Tree(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // member: this rack's number among the racks. src_*: this switch's aggregation address; dst_*: the spine's.
    action climb(bit<9> port, bit<8> member, bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac, bit<32> dst_ip) {
        standard_metadata.egress_spec = port;
        hdr.weir.worker = member;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src_port = UDP_PORT;
        hdr.udp.dst_port = UDP_PORT;
        meta.up = true;
    }

    table uplinks {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.slot[3:0]: exact @name("spine_class");
        }
        actions = { climb; @defaultonly NoAction; }
        const default_action = NoAction;
        size = UPLINKS;
    }

    apply {
        if (meta.complete && (!meta.final || (meta.from_parent && !meta.adds))) {
            uplinks.apply();
        }
    }
}

#endif
