// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_ADMISSION_P4
#define WEIR_ADMISSION_P4

#include "headers.p4"

// Who may touch which slots: only what the controller installed, so a job cannot reach another's slots, nor
// one worker pass for another, nor anybody for the parent: by the port a packet comes in, and by the IPv4 address and UDP
// port that it comes from, which an ordinary user of the sender's machine cannot take from it. The direct counter of `workers` is the worker's uplink.
//
//   table      who                                              may send
//   ───────────────────────────────────────────────────────────────────────────────────────
//   parents    a switch above this one                          results; questions (REPEAT)
//   workers    a worker; with `rack`, a switch below            contributions; a switch: results, too
//
control Admission(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) uplink;

    action refuse() {
        meta.event = EVENT_DROP_NOT_ADMITTED;
    }

    // sender_ip, sender_port: of the sender. slot_base, slot_count: the job's slots; worker_bit: 1 << worker; all_workers: OR of the bits of all children
    // that this switch waits for; group: the multicast group of their ports, never 0. A core reaches a pod by the
    // spine of the slot's class, so it has a group for each: the slot's number & spread is added. rack: 1 when the
    // child is a switch, whose packets say themselves how many workers' lanes are in their sums.
    action admit(bit<32> sender_ip, bit<16> sender_port, bit<32> slot_base, bit<16> slot_count, bit<32> worker_bit,
                 bit<32> all_workers, bit<16> group, bit<16> spread, bit<1> rack) {
        meta.sender_ip = sender_ip;
        meta.sender_port = sender_port;
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.worker_bit = worker_bit;
        meta.all_workers = all_workers;
        meta.group = group + (hdr.weir.slot & spread);
        meta.from_rack = rack == 1;
    }

    // The same of this switch's own children, who get what the parent sends. own_bit: this switch's in the
    // parent's masks.
    action accept(bit<32> sender_ip, bit<16> sender_port, bit<32> slot_base, bit<16> slot_count, bit<32> own_bit,
                  bit<32> all_workers, bit<16> group, bit<16> spread) {
        meta.sender_ip = sender_ip;
        meta.sender_port = sender_port;
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.own_bit = own_bit;
        meta.all_workers = all_workers;
        meta.group = group + (hdr.weir.slot & spread);
        meta.from_parent = true;
    }

    table parents {
        key = {
            standard_metadata.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
        }
        actions = { accept; @defaultonly NoAction; }
        const default_action = NoAction;
        size = PARENTS;
    }

    table workers {
        key = {
            standard_metadata.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
        }
        actions = { admit; @defaultonly refuse; }
        const default_action = refuse;
        counters = uplink;
        size = WORKERS;
    }

    apply {
        if (hdr.weir.kind != TYPE_CONTRIBUTION) {
            parents.apply();
        }
        if (!meta.from_parent) {
            workers.apply();
        }
        if (meta.event == EVENT_CONTRIBUTION) {
            if (hdr.ipv4.src != meta.sender_ip || hdr.udp.src_port != meta.sender_port) {
                meta.event = EVENT_DROP_WRONG_SENDER;
            // The second test keeps registers safe from an entry that promises slots which do not exist.
            } else if (hdr.weir.slot >= meta.slot_count || meta.slot_base + (bit<32>)hdr.weir.slot >= SLOTS) {
                meta.event = EVENT_DROP_SLOT_RANGE;
            } else if (hdr.weir.kind != TYPE_CONTRIBUTION && !meta.from_parent
                    && !(meta.from_rack && hdr.weir.kind == TYPE_RESULT)) {
                meta.event = EVENT_DROP_NOT_A_CONTRIBUTION;
            }
        }
    }
}

#endif
