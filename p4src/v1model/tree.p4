// SPDX-License-Identifier: Apache-2.0
//
// More than one rack: a switch whose own children's round is complete is one child of the switch above it.
//
//              core 0      core 1            slot s is summed along the tree of its class s mod 16: one spine in
//               /  \        /  \             each pod, one core. The controller spreads the classes over spines
//        spine 0    spine 1  (the same)      and cores: packets go to all alike, and those that belong together
//         /   \      /   \                   still meet. Two tiers end at the spines, one at the leaf.
//     leaf 0   leaf 1   ...
//     /    \   /    \
//    w0    w1 w2    w3
//
// A switch knows its children by their numbers, 0 to 31, and its parent. `included` is a mask of the children of
// whoever wrote it; what comes down is turned into a mask of this switch's children on the way (slots.p4), so
// that a worker finds its own bit. `count`, the number of workers in the sums, is the same for everybody.
//
// A worker that asks early, without lanes and with the flag ANSWER, is not worth the sums: its rack asks the
// parent in the same way.
//
// A spine that dies takes nothing with it that the switches below do not hold: the controller gives its classes to
// the others, and workers that wait for a result repeat their packets. Their switch repeats its sums. If another
// child already has the result, the new spine does not; asked by that spine, the child sends the result itself,
// with the mask that it came with, and the spine relays it.
//
// In three tiers, a spine may die after the core has taken its sums. Its successor must come to the very same sums,
// or its leaves would take the core's result for what it is not. So sums on their way to a switch that is not the
// root are never given up: `whole`.
#ifndef WEIR_TREE_P4
#define WEIR_TREE_P4

#include "headers.p4"

// Ingress: addresses a packet that holds this switch's sums, or the result that its parent asks for, to the parent
// of the slot's class. `up` stays false at the root, where there is no entry.
control Tree(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // number: this switch's among the parent's children. whole: 1 when its sums must not be trimmed on their way.
    // src_*: this switch's aggregation address; dst_*: the parent's.
    action climb(bit<9> port, bit<8> number, bit<1> whole, bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac,
                 bit<32> dst_ip) {
        standard_metadata.egress_spec = port;
        hdr.weir.worker = number;
        meta.whole = whole == 1;
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
