// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_SPRAYING_P4
#define WEIR_SPRAYING_P4

#include "headers.p4"
#include "forwarding.p4"
#include "queueing.p4"

// One of several equal-cost paths. Nothing in Weir needs order, so its packets are spread one by one, by the
// group's mode. All other traffic keeps to the path of its flow.
control Spraying(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<16>>(SPRAY_GROUPS) turns; // whose it is (lower half), and how many are left of the round
    direct_counter(CounterType.packets_and_bytes) taken;

    bit<2> how = SPRAY_HASH;
    bit<16> first = 0;
    bit<16> width = 0;
    bit<16> choice = 0;
    bit<9> first_port = 0;
    bit<9> second_port = 0;
    bit<9> third_port = 0;
    bit<9> fourth_port = 0;

    // Paths base to base + count - 1, at most 255. port*: those of the first four, which LEAST_LOADED chooses
    // among, by the depth of the queue that the packet's DSCP has by default (DSCP / 8): the path whose turn it is,
    // unless another's queue is shorter by more than SPRAY_MARGIN packets.
    action choose(bit<2> mode, bit<16> base, bit<16> count,
                  bit<9> port0, bit<9> port1, bit<9> port2, bit<9> port3) {
        how = mode;
        first = base;
        width = count;
        first_port = port0;
        second_port = port1;
        third_port = port2;
        fourth_port = port3;
    }

    table groups {
        key = { meta.spray_group: exact @name("group"); }
        actions = { choose; @defaultonly NoAction; }
        const default_action = NoAction;
        size = SPRAY_GROUPS;
    }

    action take(bit<9> port, bit<48> src_mac, bit<48> dst_mac) {
        HOP(src_mac, dst_mac)
        standard_metadata.egress_spec = port;
        meta.event = EVENT_FORWARDED;
    }

    action no_path() {
        meta.event = EVENT_DROP_NO_PATH;
    }

    table paths {
        key = { choice: exact @name("index"); }
        actions = { take; @defaultonly no_path; }
        const default_action = no_path;
        counters = taken;
        size = PATHS;
    }

    action at_random() {
        random(choice, 0, width - 1);
    }

    action by_flow() {
        bit<16> source = hdr.udp.isValid() ? hdr.udp.src_port : (hdr.tcp.isValid() ? hdr.tcp.src_port : 0);
        bit<16> destination = hdr.udp.isValid() ? hdr.udp.dst_port : (hdr.tcp.isValid() ? hdr.tcp.dst_port : 0);
        hash(choice, HashAlgorithm.crc16, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, source, destination }, width);
    }

    // For packets that Forwarding gave a group.
    apply {
        groups.apply();
        if (width == 0) {
            no_path();
        } else {
            if (how == SPRAY_HASH || !(hdr.weir.isValid() || hdr.flow.isValid())) {
                by_flow();
            } else if (how == SPRAY_RANDOM) {
                at_random();
            } else {
                // Every path once in a round, from another one at random: senders that take turns, too, would
                // else get the same path again and again.
                bit<32> place = (bit<32>)meta.spray_group & (SPRAY_GROUPS - 1);
                bit<16> turn;
                turns.read(turn, place);
                if (turn[15:8] == 0 || turn[7:0] >= width[7:0]) {
                    at_random();
                    turn = width << 8 | choice;
                }
                choice = turn & 0xFF;
                turn = (turn & 0xFF00) - 0x100 | (choice + 1 == width ? 0 : choice + 1);
                turns.write(place, turn);
                if (how == SPRAY_LEAST_LOADED) {
                    bit<32> queue = (bit<32>)hdr.ipv4.dscp[5:3];
                    bit<16> depth0;
                    bit<16> depth1;
                    bit<16> depth2;
                    bit<16> depth3;
                    queue_depths.read(depth0, (bit<32>)first_port << 3 | queue);
                    queue_depths.read(depth1, (bit<32>)second_port << 3 | queue);
                    queue_depths.read(depth2, (bit<32>)third_port << 3 | queue);
                    queue_depths.read(depth3, (bit<32>)fourth_port << 3 | queue);
                    choice = choice & 3;
                    bit<16> limit = choice == 0 ? depth0 : (choice == 1 ? depth1 : (choice == 2 ? depth2 : depth3));
                    limit = limit |-| SPRAY_MARGIN;
                    if (depth0 < limit) {
                        limit = depth0;
                        choice = 0;
                    }
                    if (width > 1 && depth1 < limit) {
                        limit = depth1;
                        choice = 1;
                    }
                    if (width > 2 && depth2 < limit) {
                        limit = depth2;
                        choice = 2;
                    }
                    if (width > 3 && depth3 < limit) {
                        choice = 3;
                    }
                }
            }
            choice = choice + first;
            paths.apply();
        }
    }
}

#endif
